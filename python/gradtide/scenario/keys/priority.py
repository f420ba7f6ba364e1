"""Keys of priorities: bands, and policies that change them."""

from typing import Annotated, Literal

from pydantic import (
    Discriminator,
    Field,
    Tag,
)

from gradtide.scenario.keys.table import Table, key
from gradtide.scenario.keys.types import PartSize, Tolerance


class AdaptiveTable(Table):
    """In which band each worker sends what it sends next. docs/models/adaptive.md."""

    policy: Literal["deadline", "background", "oracle", "all-low", "lower-layers-high", "all-high"] = key(
        default="deadline", examples=["deadline"], core=False
    )
    """deadline: low as long as the predicted end is not behind the end of the slack, with several chunks under way and
    small windows, and else high. background: the same, but always low. all-low and all-high are the priorities "low"
    and 0; lower-layers-high sends the lower half of the layers high (thesis, section 5.5). oracle: one chunk at a
    time, low or high, whichever a run of both shows to be better, with every flow to come. No real worker can know
    that; it is there to be compared with."""
    credit: int | None = key(default=None, ge=1, le=1024, examples=[4])
    """Chunks under way at one time as long as they go low, so that the network is not idle where one of them is held
    up; those that go high go one by one. Default: 4; of deadline with ECN, whose queues are short: 1."""
    window_bytes: PartSize | None = key(default=None, examples=["128kB"])
    """Most bytes that a connection has under way in the low band. Default: what the slowest link carries in 100 us, or
    in two round trips without queues if that is longer; at least 16 kB. With ECN: the transport's."""
    tolerance_ppm: Tolerance | None = key(default=None, examples=[0.02])
    """How much longer than its workers expect in the high band an iteration may take, as a share. Default: 0.02."""
    margin_ppm: Tolerance | None = key(default=None, examples=[0.1])
    """How much longer than measured, as a share, a worker takes all transfers behind the present one to be: the more,
    the more goes high. Default: 0."""
    exchange: bool | None = key(default=None, examples=[False])
    """Whether the syncer, which starts each transfer, starts it high everywhere if one worker wants it high.
    Default: true."""
    price_ppm: Tolerance | None = key(default=None, examples=[1])
    """Of the oracle: by how many seconds an iteration may be longer so that small flows, of up to 100 kB, are one
    second less in the network, all together. 0 sends low only what costs nothing. Default: 1."""


class Adaptive(Table):
    """A band that changes as the job sends."""

    adaptive: AdaptiveTable = key(examples=[{"policy": "deadline"}])
    """How the band is chosen."""


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
