"""Keys of background traffic."""

from typing import Literal

from gradtide.scenario.keys.job import Priority
from gradtide.scenario.keys.table import Table, key
from gradtide.scenario.keys.types import (
    Announce,
    Cumulated,
    Duration,
    FileName,
    Frequency,
    Name,
    PartSize,
    Share,
    Size,
    Time,
)


class CdfPoint(Table):
    """A point of a flow-size distribution. Between points, the distribution is linear."""

    bytes: Size = key(examples=["4kB"])
    """Flow size."""
    cdf: Cumulated = key(examples=[0.15])
    """Share of the flows that have at most this size; 1 at the last point."""


class Arrivals(Table):
    """When flows start: a Poisson process (docs/models/traffic.md#arrivals)."""

    rate: Frequency = key(examples=["23/s"])
    """Number of background flows that start per time."""
    per: Literal["host", "cluster"] = key(default="host")
    """Whether `rate` counts the flows of each host or of all hosts together."""


class Burst(Table):
    """Flows start only during bursts, the first of which begins at time 0. `arrivals` and `load` remain averages."""

    on_ps: Duration = key(examples=["10ms"])
    """Length of a burst."""
    off_ps: Duration = key(examples=["90ms"])
    """Pause between bursts of flows."""


class Incast(Table):
    """Many hosts that send to one host at the same time, again and again."""

    dst: Name = key(examples=["h0"])
    """Receiving host."""
    senders: int | None = key(default=None, ge=1, le=1_000_000, examples=[7])
    """Number of senders of an incast: the lowest-numbered hosts other than the receiver. Default: all other hosts."""
    bytes: PartSize = key(examples=["1MB"])
    """Payload of each flow."""
    every_ps: Duration = key(examples=["100ms"])
    """Time from the start of an incast to the start of the next."""
    start_ps: Time = key(default="0s")
    """Time of the first incast."""


class Bursts(Table):
    """Hosts that send, pause and send again, like training jobs."""

    src: list[Name] = key(examples=[["h6", "h7"]])
    """Hosts that send bursts, each at its own pace."""
    dst: Name = key(examples=["h0"])
    """Host that receives the bursts."""
    bytes: PartSize = key(examples=["3MB"])
    """Payload of each burst."""
    count: int = key(ge=1, le=1_000_000, examples=[6])
    """Number of bursts that each host sends."""
    idle_ps: Time = key(examples=["7s"])
    """Pause from the end of a burst to the start of the next burst."""
    together: bool = key(default=False, examples=[True])
    """Whether all hosts pause when the last of their bursts ends, and then start together, like the workers of a
    job."""
    setup_ps: Time = key(default="0s", examples=["20ms"])
    """Time that the application needs before the first byte of a burst, during which TCP's handshake runs. For an
    announced burst, it begins when the announcement is answered."""
    start_ps: Time = key(default="0s", examples=["20s"])
    """Time of the first burst."""


class ListedFlow(Table):
    """One flow of a list."""

    start_ps: Time = key(examples=["1ms"])
    """Start time."""
    src: Name = key(examples=["h0"])
    """Sending host."""
    dst: Name = key(examples=["h1"])
    """Receiving host, not the sender."""
    bytes: PartSize = key(examples=["1MB"])
    """Payload."""
    band: int | None = key(default=None, ge=0, le=7, examples=[1])
    """Priority band of the flow. Default: the tenant's `priority`."""


class TrafficTable(Table):
    """Background flows of a tenant that does not train (docs/models/traffic.md).

    The table needs one of `sizes`, `cdf`, `replay`, `flows`, `incast` and `bursts`.
    """

    sizes: Name | None = key(default=None, examples=["web-search"])
    """Flow-size distribution: a preset (web-search, data-mining, cache-follower) or a file of points
    (docs/models/traffic.md#sizes)."""
    cdf: list[CdfPoint] | None = key(default=None, examples=[[{"bytes": "4kB", "cdf": 0}, {"bytes": "1MB", "cdf": 1}]])
    """Flow-size distribution as a list of points, instead of `sizes`."""
    arrivals: Arrivals | None = key(default=None, examples=[{"rate": "23/s", "per": "host"}])
    """When flows start: a Poisson process (docs/models/traffic.md#arrivals). `sizes` needs this key or `load`."""
    load_ppm: Share | None = key(default=None, examples=[0.3])
    """Average share of the hosts' nominal link rate that the flows' payload takes, instead of `arrivals`."""
    burst: Burst | None = key(default=None, examples=[{"on": "10ms", "off": "90ms"}])
    """Flows start only during bursts, the first of which begins at time 0. Default: flows start at any time."""
    replay: FileName | None = key(default=None, examples=["flows.csv"])
    """File of flows: a CSV file with the header start_ns,src,dst,bytes[,band] and hosts h0, h1, … or 0, 1, …, or a
    connection matrix of htsim. Lines may be in any order. Flows that start at `run.duration` or later are left out. The
    resolved scenario lists up to 100 flows as `flows`; otherwise it contains the path and `replay_sha256`."""
    replay_sha256: Name | None = key(default=None, examples=["875275afa1f8d463" * 4])
    """SHA-256 of the `replay` file. A file with another digest is an error."""
    replay_start_unit: Literal["ps", "us"] | None = key(default=None, examples=["us"])
    """Unit of the start times in a connection matrix of htsim (docs/reference/formats.md#flows), if the file does not
    show it."""
    flows: list[ListedFlow] | None = key(
        default=None, examples=[[{"start": "1ms", "src": "h0", "dst": "h1", "bytes": "1MB"}]]
    )
    """Background flows as a list, instead of a `replay` file."""
    incast: Incast | None = key(default=None, examples=[{"senders": 7, "dst": "h0", "bytes": "1MB", "every": "100ms"}])
    """Many hosts that send to one host at the same time, again and again."""
    bursts: Bursts | None = key(
        default=None, examples=[{"src": ["h6"], "dst": "h0", "bytes": "3MB", "count": 6, "idle": "7s"}]
    )
    """Hosts that send, pause and send again, like training jobs."""
    announce: Announce | None = key(default=None, examples=[True, "15pkt"])
    """Whether each flow is announced to the switches before its connection opens, with the values of
    `job.NAME.announce`."""
    priority: Priority = key(default="high")
    """Priority band of the background flows, as in `job.NAME.priority`."""
