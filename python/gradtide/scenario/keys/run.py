"""Keys of a run."""

from typing import Literal

from gradtide.scenario.keys.table import Table, key
from gradtide.scenario.keys.types import Duration, Time


class Probe(Table):
    """What is sampled over time. Only the packet engine uses it. Sampling does not change the run."""

    every_ps: Duration = key(examples=["100us"])
    """Time between samples. When a table reaches a million rows, every second sample is deleted and the interval
    doubles. `summary.json` has the final interval."""
    links: list[str] | None = key(default=None, examples=[["s-h0", "h1"]])
    """Links whose queues are sampled into `queues.csv`. h0 is the link from host 0, and s-h0 the link from the switch
    of a star to it. On other networks a link is named after its ends: leaf0-h3, leaf0-spine1. Default: all links."""
    cwnd: list[str] | None = key(default=None, examples=[["train", "web.17"]], core=False)
    """Jobs and tenants whose congestion windows are sampled into `cwnd.csv`. "web.17" is flow 17 of `web` alone.
    Default: none."""


class Run(Table):
    """Engine, seed and length of the run."""

    SHORT = "{}"

    engine: Literal["pipe", "fluid", "packet"] = key(default="pipe")
    """Network engine. pipe: one transmission queue per host, solvable by hand. fluid: max-min fair rates. packet: TCP,
    packet by packet."""
    seed: int = key(default=0, ge=0, le=2**63 - 1)
    """Root of all random streams. Equal seeds give equal results."""
    duration_ps: Duration | None = key(default=None, examples=["12s"])
    """Simulated time after which no iteration and no background flow starts. Background traffic needs it. Default
    without traffic: no limit."""
    warmup_ps: Time = key(default="0s", examples=["2s"], core=False)
    """Background flows that start before this are not counted."""
    cooldown_ps: Time = key(default="0s", examples=["2s"], core=False)
    """Background flows that start within this time before the last start are not counted."""
    timeline_iterations: int = key(default=2, ge=0, le=1000)
    """Number of measured iterations of each job whose operations are recorded one by one, for the timeline."""
    probe: Probe | None = key(default=None, examples=[{"every": "100us"}], core=False)
    """Samples of queues, link use, drops, marks and congestion windows over time. Default: none."""
