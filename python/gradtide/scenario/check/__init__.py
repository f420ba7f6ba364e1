"""What one key means for another: one module per concern, all over one `Context` that gathers the faults."""

from gradtide.scenario.check import (
    collective,
    length,
    limits,
    model,
    order,
    placement,
    priority,
    probe,
    queue,
    schedule,
    topology,
    traffic,
    transport,
)

__all__ = [
    "collective",
    "length",
    "limits",
    "model",
    "order",
    "placement",
    "priority",
    "probe",
    "queue",
    "schedule",
    "topology",
    "traffic",
    "transport",
]
