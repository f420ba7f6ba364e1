"""Keys of background traffic."""

from typing import Literal

from gradtide.scenario.keys.priority import Priority
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
    """A point of a flow-size distribution; lines between the points are straight."""

    bytes: Size = key(examples=["4kB"])
    """Flow size."""
    cdf: Cumulated = key(examples=[0.15])
    """Share of the flows that are at most this large; 1 at the last point."""


class Arrivals(Table):
    """When flows start: a Poisson process."""

    rate: Frequency = key(examples=["23/s"])
    """Flows per time."""
    per: Literal["host", "cluster"] = key(default="host", examples=["host"])
    """Whether the rate is that of each host or of all together."""


class Burst(Table):
    """Flows arrive in bursts, with silence between them."""

    on_ps: Duration = key(examples=["10ms"])
    """Length of a burst."""
    off_ps: Duration = key(examples=["90ms"])
    """Silence after it."""


class Incast(Table):
    """Many hosts send to one at the same instant, again and again."""

    dst: Name = key(examples=["h0"])
    """Host that receives."""
    senders: int | None = key(default=None, ge=1, le=1_000_000, examples=[7])
    """Number of hosts that send: the lowest-numbered other ones. Default: all other hosts."""
    bytes: PartSize = key(examples=["1MB"])
    """Payload of each flow."""
    every_ps: Duration = key(examples=["100ms"])
    """Time from one incast to the next."""
    start_ps: Time = key(default="0s", examples=["0s"])
    """Time of the first."""


class Bursts(Table):
    """Hosts that send, pause and send again, as training jobs do."""

    src: list[Name] = key(examples=[["h6", "h7"]])
    """Hosts that send, each at its own pace."""
    dst: Name = key(examples=["h0"])
    """Host that receives."""
    bytes: PartSize = key(examples=["3MB"])
    """Payload of each burst."""
    count: int = key(ge=1, le=1_000_000, examples=[6])
    """Bursts of each host."""
    idle_ps: Time = key(examples=["7s"])
    """Pause from the end of a burst to the start of the next."""
    together: bool = key(default=False, examples=[True])
    """Whether the hosts wait for one another, as the workers of a job do: the pause runs from the end of the last of
    their bursts, and the next begin at once."""
    setup_ps: Time = key(default="0s", examples=["20ms"])
    """Time that the application takes before a burst's first byte, after the answer to its announcement if there is
    one; the handshake runs meanwhile."""
    start_ps: Time = key(default="0s", examples=["20s"])
    """Time of the first."""


class ListedFlow(Table):
    """One flow of a list."""

    start_ps: Time = key(examples=["1ms"])
    """When it starts."""
    src: Name = key(examples=["h0"])
    """Host that sends."""
    dst: Name = key(examples=["h1"])
    """Host that receives, another one."""
    bytes: PartSize = key(examples=["1MB"])
    """Payload."""
    band: int | None = key(default=None, ge=0, le=7, examples=[1])
    """Band on the network. Default: the tenant's `priority`."""


class TrafficTable(Table):
    """Background flows of a tenant that does not train. They start before `run.duration`. The pipe engine has none."""

    sizes: Name | None = key(default=None, examples=["web-search"])
    """Flow-size distribution: a preset (web-search, data-mining, cache-follower) or a CDF file, whose lines are bytes
    and percent, or bytes and share, or that is a CSV with the header bytes,cdf. This, `replay`, `flows`, `incast` or
    `bursts` is needed."""
    cdf: list[CdfPoint] | None = key(default=None, examples=[[{"bytes": "4kB", "cdf": 0}, {"bytes": "1MB", "cdf": 1}]])
    """In place of `sizes`, the distribution written here; the resolved scenario carries a CDF file so."""
    arrivals: Arrivals | None = key(default=None, examples=[{"rate": "23/s", "per": "host"}])
    """When flows start, each between two hosts drawn at random. This or `load` is needed with `sizes`. The first
    tenant with random arrivals draws exactly as Gao (2020) does with the run's number for seed; every other one draws
    from a stream of its own name."""
    load_ppm: Share | None = key(default=None, examples=[0.3])
    """In place of `arrivals`, the share of the hosts' nominal link rate that the flows' payload takes on average."""
    burst: Burst | None = key(default=None, examples=[{"on": "10ms", "off": "90ms"}])
    """Flows arrive in bursts only, the first at time 0; the rate or load stays that of the whole time. Default: they
    arrive all the time."""
    replay: FileName | None = key(default=None, examples=["flows.csv"])
    """List of flows, a file with the header start_ns,src,dst,bytes[,band] or a connection matrix of htsim; hosts are
    h0, h1, … or 0, 1, …, lines may be in any order, and what starts at or after `run.duration` is left out. Given by
    --set it takes the place of the sizes and arrivals that the scenario has. The resolved scenario carries up to 100
    flows as `flows`, a longer list as its path and `replay_sha256`."""
    replay_sha256: Name | None = key(default=None, examples=["875275afa1f8d463" * 4])
    """SHA-256 of the file that `replay` names; a file with another one is refused."""
    flows: list[ListedFlow] | None = key(
        default=None, examples=[[{"start": "1ms", "src": "h0", "dst": "h1", "bytes": "1MB"}]]
    )
    """In place of `replay`, the list written here."""
    incast: Incast | None = key(default=None, examples=[{"senders": 7, "dst": "h0", "bytes": "1MB", "every": "100ms"}])
    """Many hosts that send to one at once."""
    bursts: Bursts | None = key(
        default=None, examples=[{"src": ["h6"], "dst": "h0", "bytes": "3MB", "count": 6, "idle": "7s"}]
    )
    """Hosts that send bursts with pauses between them."""
    announce: Announce | None = key(default=None, examples=[True, "15pkt"])
    """Whether each flow is announced to the switches before its connection is opened, as for a job."""
    priority: Priority = key(default="high", examples=["high"])
    """Band of the flows on the network, as for a job; it does not change."""
