"""`gradtide reproduce`: tables and figures of papers, with our values next to the published ones.

A TOML file next to each paper's module contains the published values, and the paper's statements about each figure. Our
values are computed when the command runs. Three modules fit parameters: `caramel2020` the rate of a host's stages and
the cost of a message, `pcn` the size of a burst, and `tictac2019` the share of transfers that leave their order. Rows
that a parameter was fitted to are not counted. For other parameters that a paper does not state, the module has our
choice and the reason.
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
    """Return, for each part of a paper, the counts of `harness.tally` in its last reproduction."""
    return published(f"{__name__}.verdicts")


def find(what: str) -> tuple[Part, str | None] | None:
    """Return the part and the figure that `PAPER/PART[/FIGURE]` names; `None` if either does not exist."""
    if what in PARTS:
        return PARTS[what], None
    name, _, figure = what.rpartition("/")
    part = PARTS.get(name)
    found = part.figure(figure) if part else None
    return (part, found) if part and found else None


def named(what: str) -> tuple[Part, str | None]:
    """Return the result of `find`; if it is None, raise a ValueError that lists the available names."""
    found = find(what)
    if found is None:
        name = what.rpartition("/")[0]
        known = f"{name} has {', '.join(PARTS[name].figures)}" if name in PARTS else ", ".join(PARTS)
        raise ValueError(f"no reproduction {what!r}; there are {known}")
    return found


def everything(**how: Any) -> site.Site:
    """Reproduce all parts. The arguments `how` are quick, jobs, progress, keep and limits of `site.make`."""
    return site.make(PARTS, verdicts(), **how)


@within_limits
def reproduce(what: str, *, jobs: int = 1, limits: Limits | None = None) -> Reproduction:
    """Reproduce tables and figures of a paper.

    Args:
        what: `PAPER/PART[/FIGURE]`, as in `gao2020/ch5/5.12` or `caramel/11`.
        jobs: number of concurrent runs; the result does not depend on it.
        limits: memory and time limits.

    Raises:
        ValueError: if there is no such reproduction.
    """
    part, figure = named(what)
    return part.make(jobs, None, figure, None, limits)


__all__ = ["PARTS", "Part", "Reproduction", "everything", "find", "named", "reproduce", "verdicts"]
