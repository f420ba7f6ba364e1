"""What every reproduction is made of: checks, tables, series, timelines, and the folder that they are written to."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gradtide import _core, report
from gradtide.estimate import Limits
from gradtide.results import RunResult
from gradtide.studies.folder import whole_folder, write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.run import total_cost, write_core, write_summary

T = TypeVar("T")
M = TypeVar("M")
C = TypeVar("C", bound=Hashable)
Progress = Callable[[float], object] | None


class Reproduction:
    """Checks, tables, series and timelines of one part of a paper.

    Attributes:
        summary: what `--json` prints.
        runs: the runs whose timelines are drawn, by name.
    """

    def __init__(self, summary: dict[str, Any], runs: dict[str, RunResult]) -> None:
        self.summary = summary
        self.runs = runs

    def only(self, figure: str) -> "Reproduction":
        """Return what belongs to one figure or table."""
        kept = {
            key: [item for item in self.summary[key] if item["figure"] == figure]
            for key in ("checks", "tables", "series", "timelines")
        }
        used = {item["run"].removeprefix("runs/") for item in kept["timelines"]}
        part = f"{self.summary['part']}/{figure}"
        runs = {name: result for name, result in self.runs.items() if name in used}
        return Reproduction({**self.summary, "part": part, **kept}, runs)

    def save(self, path: str | Path) -> Path:
        """Write the study folder `path`; it appears by rename when it is complete."""
        path = Path(path)
        with whole_folder(path) as folder:
            for name, result in self.runs.items():
                (folder / "runs" / name).mkdir(parents=True)
                write_core(result, folder / "runs" / name)
            write_summary(self.summary, folder)
            write_versions(folder)
            report.write_report(folder)
        return path


Shown = Mapping[str, tuple[str, str, Iterable[C]]]
"""Of every figure that is shown: its title, what the paper says of it, and the cases that it needs."""

Claim = tuple[str, str, str, bool, str]
"""Quantity, published, ours, whether they agree, and why not."""

Makers = Mapping[str, Callable[[T], Iterable[M]]]
"""By figure, what makes its claims, tables, series or bars from a study."""


def cases_of(shown: Shown[C]) -> list[C]:
    """Return the cases that figures need, each once."""
    return list(dict.fromkeys(case for _, _, needed in shown.values() for case in needed))


def statements_hold(checks: Sequence[dict[str, str]]) -> str:
    """Return the result of checks in a sentence."""
    return f"{sum(one['verdict'] == 'agrees' for one in checks)} of {len(checks)} statements hold."


def of_statements(
    paper: str,
    title: str,
    *,
    figure: str | None,
    shown: Shown[Any],
    study: T,
    claims: Makers[T, Claim],
    headline: Callable[[Sequence[dict[str, str]]], str] = statements_hold,
    engine: str,
    summaries: Iterable[dict[str, Any]],
    **drawn: Makers[T, dict[str, Any]],
) -> Reproduction:
    """Return a reproduction of what a paper says of its figures, without timelines.

    Args:
        paper: its name for `gradtide reproduce`.
        title: authors, year and subject.
        figure: the one that is shown alone; None for all.
        shown: the figures.
        study: what the makers are given.
        claims: published beside ours.
        headline: the result in a sentence, of the checks that claims become.
        engine: of the runs.
        summaries: of the runs, for what they cost.
        drawn: `tables`, `series`, `bars`.
    """
    checks = [check(name, *claim) for name in shown if name in claims for claim in claims[name](study)]
    kinds: dict[str, Makers[T, dict[str, Any]]] = {"tables": {}, "series": {}, **drawn}
    summary = {
        "schema": "gradtide.reproduce/1",
        "version": _core.__version__,
        "engine": engine,
        "paper": paper,
        "part": figure or "",
        "title": title,
        "headline": headline(checks),
        "figures": [{"figure": name, "title": title, "says": says} for name, (title, says, _) in shown.items()],
        "checks": checks,
        "maps": [],
        **{
            kind: [{"figure": name, **item} for name in shown if name in makers for item in makers[name](study)]
            for kind, makers in kinds.items()
        },
        "timelines": [],
        "progress": [],
        "cost": total_cost(summaries),
    }
    return Reproduction(summary, {})


@dataclass(frozen=True)
class Part:
    """A part of a paper that can be reproduced.

    Attributes:
        title: what it is.
        make: runs it; with a figure, what that figure needs alone.
        figures: what can be reproduced alone.
    """

    title: str
    make: Callable[[int, Progress, str | None, Kept | None, Limits | None], Reproduction]
    figures: Collection[str]

    def figure(self, name: str) -> str | None:
        """Return the figure of that name; "5.20" finds "5.20, 5.21", and "table-5.1" finds "Table 5.1"."""

        def plain(text: str) -> str:
            return text.lower().replace("-", " ")

        return next((f for f in self.figures if plain(name) in (plain(f), *plain(f).split(", "))), None)


def check(figure: str, quantity: str, published: str, ours: str, agrees: bool, note: str = "") -> dict[str, str]:
    """Return a published value beside ours; `note` says why if they differ."""
    return {
        "figure": figure,
        "quantity": quantity,
        "published": published,
        "ours": ours,
        "unit": "",
        "verdict": "agrees" if agrees else "differs",
        "note": "" if agrees else note,
    }
