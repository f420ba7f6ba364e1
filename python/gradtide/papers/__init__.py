"""`gradtide reproduce`: a paper's tables and figures, with the published value beside ours.

What a paper published, and what it says of each figure, lies in a TOML file beside its module. Ours is computed when
the command runs. Three modules fit one value each: `caramel2020` the share of the link that programs get, `pcn` the
size of a burst, and `tictac2019` how far orders stray that nobody enforces. Rows that it was fitted on do not count.
Where a paper leaves something else open, the module says what was taken and why.
"""

from typing import Any

from gradtide.estimate import Limits, within_limits
from gradtide.papers import caramel2020, gao2020_ch3, gao2020_ch4, gao2020_ch5, pcn, site, tictac2019, zhang2017
from gradtide.papers.harness import Part, Reproduction, published

PARTS = {
    "caramel": caramel2020.PART,
    "gao2020/ch3": gao2020_ch3.PART,
    "gao2020/ch4": gao2020_ch4.PART,
    "gao2020/ch5": gao2020_ch5.PART,
    "pcn": pcn.PART,
    "tictac": tictac2019.PART,
    "zhang2017": zhang2017.PART,
}


def verdicts() -> dict[str, dict[str, int]]:
    """Return how many statements each part had when it was last made, as `harness.tally` counts them."""
    return published(f"{__name__}.verdicts")


def find(what: str) -> tuple[Part, str | None] | None:
    """Return the part of a paper and the figure that `PAPER/PART[/FIGURE]` means; None if there is none."""
    if what in PARTS:
        return PARTS[what], None
    name, _, figure = what.rpartition("/")
    part = PARTS.get(name)
    found = part.figure(figure) if part else None
    return (part, found) if part and found else None


def named(what: str) -> tuple[Part, str | None]:
    """Return the part and figure that `find` finds, or raise a ValueError that lists what there is."""
    found = find(what)
    if found is None:
        name = what.rpartition("/")[0]
        known = f"{name} has {', '.join(PARTS[name].figures)}" if name in PARTS else ", ".join(PARTS)
        raise ValueError(f"no reproduction {what!r}; there are {known}")
    return found


def everything(**how: Any) -> site.Site:
    """Reproduce all parts; `how` is what `site.make` takes: quick, jobs, progress, keep and limits."""
    return site.make(PARTS, verdicts(), **how)


@within_limits
def reproduce(what: str, *, jobs: int = 1, limits: Limits | None = None) -> Reproduction:
    """Reproduce tables and figures of a paper.

    Args:
        what: `PAPER/PART[/FIGURE]`, as in `gao2020/ch5/5.12` or `caramel/11`.
        jobs: runs under way at once; the result does not depend on it.
        limits: memory and time that the reproduction may take.

    Raises:
        ValueError: if there is no such reproduction.
    """
    part, figure = named(what)
    return part.make(jobs, None, figure, None, limits)


__all__ = ["PARTS", "Part", "Reproduction", "everything", "find", "named", "reproduce", "verdicts"]
