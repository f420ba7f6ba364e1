"""`gradtide reproduce`: a paper's tables and figures, the published value beside ours.

Published values are constants of these files, each with its figure; ours are computed when the command runs. Nothing is
fitted; where a paper leaves something open, as the size of a burst in `pcn`, the file says what was taken and why.
"""

from gradtide.estimate import Limits
from gradtide.papers.caramel2020 import FIGURES as FIGURES_CARAMEL
from gradtide.papers.caramel2020 import caramel2020
from gradtide.papers.gao2020_ch4 import FIGURES as FIGURES_4
from gradtide.papers.gao2020_ch4 import chapter4
from gradtide.papers.gao2020_ch5 import FIGURES as FIGURES_5
from gradtide.papers.gao2020_ch5 import chapter5
from gradtide.papers.harness import Part, Reproduction
from gradtide.papers.pcn import FIGURES as FIGURES_PCN
from gradtide.papers.pcn import pcn
from gradtide.papers.tictac2019 import FIGURES as FIGURES_TICTAC
from gradtide.papers.tictac2019 import tictac2019
from gradtide.papers.zhang2017 import FIGURES as FIGURES_ZHANG
from gradtide.papers.zhang2017 import zhang2017

PARTS = {
    "caramel": Part("Caramel (Hashemi et al., 2020): figs 2, 4, 8 to 14", caramel2020, FIGURES_CARAMEL),
    "gao2020/ch4": Part("Gao (2020), chapter 4: table 3.1, figs 4.7 to 4.11", chapter4, FIGURES_4),
    "gao2020/ch5": Part("Gao (2020), chapter 5: tables 5.1 to 5.5, figs 5.5 to 5.23", chapter5, FIGURES_5),
    "pcn": Part("Kang et al. (2021): figs 8 to 10, section 4.4, equation 3", pcn, FIGURES_PCN),
    "tictac": Part("TicTac (Hashemi et al., 2019): table 1, orders, figs 4, 9 to 15", tictac2019, FIGURES_TICTAC),
    "zhang2017": Part("Zhang et al. (2017): table 1, figs 6 to 10, four conclusions", zhang2017, FIGURES_ZHANG),
}


def find(what: str) -> tuple[Part, str | None] | None:
    """Return the part of a paper and the figure that `PAPER/PART[/FIGURE]` means; None if there is none."""
    if what in PARTS:
        return PARTS[what], None
    name, _, figure = what.rpartition("/")
    part = PARTS.get(name)
    found = part.figure(figure) if part else None
    return (part, found) if part and found else None


def named(what: str) -> tuple[Part, str | None]:
    """Return the part of a paper and the figure that `PAPER/PART[/FIGURE]` means.

    Raises:
        ValueError: if there is none.
    """
    found = find(what)
    if found is None:
        name = what.rpartition("/")[0]
        known = f"{name} has {', '.join(PARTS[name].figures)}" if name in PARTS else ", ".join(PARTS)
        raise ValueError(f"no reproduction {what!r}; there are {known}")
    return found


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


__all__ = ["PARTS", "Part", "Reproduction", "find", "named", "reproduce"]
