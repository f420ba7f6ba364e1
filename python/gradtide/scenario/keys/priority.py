"""Keys of priorities: bands, and policies that change them."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from gradtide.scenario.keys.table import Table, key
from gradtide.scenario.keys.types import PartSize, Tolerance


class AdaptiveTable(Table):
    """How each worker chooses the band of its next chunk (docs/models/adaptive.md)."""

    policy: Literal["deadline", "background", "oracle", "all-low", "lower-layers-high", "all-high"] = key(
        default="deadline", core=False
    )
    """deadline: low while the predicted end is within the slack, else high. Low chunks go several at a time with small
    windows. background: like deadline, but always low. all-low and all-high: the priorities "low" and 0.
    lower-layers-high: the lower half of the layers is high (thesis, section 5.5). oracle: one chunk at a time, low or
    high, whichever is better in a run of both with all future flows known. No real worker knows them: use it for
    comparison."""
    credit: int | None = key(default=None, ge=1, le=1024, examples=[4])
    """Number of low chunks in flight at the same time, so that the network is not idle while one is delayed. High
    chunks go one by one. Default: 4; 1 for deadline with ECN, whose queues are short."""
    window_bytes: PartSize | None = key(default=None, examples=["128kB"])
    """Most bytes that a connection has in flight in the low band. Default: what the slowest link carries in 100 us, or
    in two round trips without queues if that is longer; at least 16 kB. With ECN: the window of the transport."""
    tolerance_ppm: Tolerance | None = key(default=None, examples=[0.02])
    """How much longer an iteration may take than the workers expect in the high band, as a share. Default: 0.02."""
    margin_ppm: Tolerance | None = key(default=None, examples=[0.1])
    """Share by which a worker lengthens its estimate of all transfers after the present one. A larger margin sends more
    chunks high. Default: 0."""
    exchange: bool | None = key(default=None, examples=[False])
    """Whether the syncer, which starts each transfer, sends it high on all workers if one worker needs it high.
    Default: true."""
    price_ppm: Tolerance | None = key(default=None, examples=[1])
    """Seconds by which the oracle may lengthen an iteration to save one second of completion time, summed over small
    flows (up to 100 kB). 0: low only if it costs nothing. Default: 1."""


class Adaptive(Table):
    """A band that changes while the job sends."""

    adaptive: AdaptiveTable = key(examples=[{"policy": "deadline"}])
    """How a worker chooses the band."""


def _priority_tag(value: object) -> str | None:
    if isinstance(value, str):
        return "<word>"
    if isinstance(value, (dict, Adaptive)):
        return "<adaptive>"
    return "<band>" if isinstance(value, int) and not isinstance(value, bool) else None


_Word = Annotated[Literal["high", "low"], Tag("<word>")]
_Band = Annotated[int, Field(ge=0, le=7), Tag("<band>")]
_Adaptive = Annotated[Adaptive, Tag("<adaptive>")]
Priority = Annotated[_Word | _Band | _Adaptive, Discriminator(_priority_tag)]


def _job_priority_tag(value: object) -> str | None:
    return "<bands>" if isinstance(value, list) else _priority_tag(value)


_Bands = Annotated[list[Annotated[_Word | _Band, Discriminator(_priority_tag)]], Tag("<bands>")]
JobPriority = Annotated[_Word | _Band | _Bands | _Adaptive, Discriminator(_job_priority_tag)]
