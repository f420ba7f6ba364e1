"""Checks keys against one another: one module per concern. All share one `Context`, which collects the faults."""

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
