"""Keys of a run."""

from typing import Literal

from gradtide.scenario.keys.table import Table, key
from gradtide.scenario.keys.types import Duration, Time


class Probe(Table):
    """What is sampled over time. Read by the packet engine only; a run is the same with it and without."""

    every_ps: Duration = key(examples=["100us"])
    """Time from one sample to the next. A table that reaches a million rows is thinned: every second instant is
    forgotten and the step doubles. `summary.json` says what it came to."""
    links: list[str] | None = key(default=None, examples=[["s-h0", "h1"]])
    """Links whose queues are sampled into `queues.csv`: h0 is what host 0 sends, s-h0 what the switch of a star sends
    to it; on other networks links are named from end to end, as leaf0-h3 and leaf0-spine1. Default: all."""
    cwnd: list[str] | None = key(default=None, examples=[["train", "web.17"]], core=False)
    """Jobs and tenants whose senders' congestion windows are sampled into `cwnd.csv`; "web.17" is flow 17 of `web`
    alone. Default: none."""


class Run(Table):
    """How the run is made."""

    SHORT = "{}"

    engine: Literal["pipe", "fluid", "packet"] = key(default="pipe", examples=["pipe"])
    """Network engine. pipe: one transmission queue per host, solvable by hand; fluid: max-min fair rates;
    packet: TCP packet by packet."""
    seed: int = key(default=0, ge=0, le=2**63 - 1, examples=[0])
    """Root of all random streams. Equal seeds give equal results."""
    duration_ps: Duration | None = key(default=None, examples=["12s"])
    """Simulated time after which no iteration begins and no background flow starts. Needed with traffic;
    without, the default is no limit."""
    warmup_ps: Time = key(default="0s", examples=["2s"], core=False)
    """Background flows that start before this are not counted."""
    cooldown_ps: Time = key(default="0s", examples=["2s"], core=False)
    """Background flows that start within this time before the last start are not counted."""
    timeline_iterations: int = key(default=2, ge=0, le=1000, examples=[2])
    """Measured iterations of each job whose operations are recorded one by one, for pictures."""
    probe: Probe | None = key(default=None, examples=[{"every": "100us"}], core=False)
    """Samples of queues, link use, drops, marks and congestion windows over time. Default: none are taken."""
