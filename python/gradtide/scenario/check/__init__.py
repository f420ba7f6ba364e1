"""Checks keys against one another: one module per concern. All share one `Context`, which collects the faults."""

from gradtide.scenario.check import job, memory, network, parallel, run, traffic  # noqa: F401
