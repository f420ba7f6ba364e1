"""Checks keys against one another: one module per concern. All share one `Context`, which collects the faults."""

from gradtide.scenario.check import (  # noqa: F401
    collective,
    limits,
    model,
    placement,
    priority,
    queue,
    run,
    schedule,
    topology,
    traffic,
    transport,
)
