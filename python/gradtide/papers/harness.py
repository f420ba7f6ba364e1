"""What every reproduction is made of: checks, tables, series, timelines, and the folder that they are written to."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gradtide import _core, report
from gradtide.estimate import Limits
from gradtide.results import RunResult
from gradtide.scenario import Scenario
from gradtide.studies.folder import whole_folder, write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.run import part_of, run_all, total_cost, write_core, write_summary

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


def statements_hold(checks: Sequence[dict[str, str]], _study: object = None, _figure: str | None = None) -> str:
    """Return the result of checks in a sentence."""
    return f"{sum(one['verdict'] == 'agrees' for one in checks)} of {len(checks)} statements hold."


@dataclass(frozen=True)
class Part:
    """A part of a paper that can be reproduced.

    Attributes:
        title: what it is.
        make: runs it, given the number of jobs, progress, and if wanted a figure, what is kept and the limits; with a
            figure, what that figure needs alone.
        figures: what can be reproduced alone.
    """

    title: str
    make: Callable[..., Reproduction]
    figures: Collection[str]

    def figure(self, name: str) -> str | None:
        """Return the figure of that name; "5.20" finds "5.20, 5.21", and "table-5.1" finds "Table 5.1"."""

        def plain(text: str) -> str:
            return text.lower().replace("-", " ")

        return next((f for f in self.figures if plain(name) in (plain(f), *plain(f).split(", "))), None)


def of_statements(
    title: str,
    *,
    name: str,
    preset: str,
    subject: str,
    figures: Shown[C],
    scenario: Callable[[Scenario, C], Scenario],
    study: Callable[[Scenario, dict[C, Any]], T],
    claims: Makers[T, Claim],
    headline: Callable[[Sequence[dict[str, str]], T, str | None], str] = statements_hold,
    seen: Callable[[C, RunResult], Any] = lambda _case, result: result,
    batch: int | None = None,
    **drawn: Makers[T, dict[str, Any]],
) -> Part:
    """Return a part that compares what a paper says of its figures with runs, without timelines.

    Args:
        title: what is listed.
        name: of the paper for `gradtide reproduce`.
        preset: scenario that all runs start from.
        subject: authors, year and subject.
        figures: what is shown.
        scenario: from the paper's preset to the scenario of a case.
        study: what the makers are given, of the preset and what has been seen of each case.
        claims: published beside ours.
        headline: the result in a sentence, of the checks that claims become.
        seen: what is kept of a run.
        batch: runs that are in memory at one time; None for all.
        drawn: `tables`, `series`, `bars`.
    """

    def make(
        jobs: int,
        progress: Progress,
        figure: str | None = None,
        keep: Kept | None = None,
        limits: Limits | None = None,
        *,
        shown: Shown[C] | None = None,
        base: Scenario | None = None,
    ) -> Reproduction:
        shown = shown or (figures if figure is None else {figure: figures[figure]})
        base = base or Scenario.load(preset)
        cases = list(dict.fromkeys(case for _, _, needed in shown.values() for case in needed))
        kept: dict[C, Any] = {}
        summaries: list[dict[str, Any]] = []
        for first in range(0, len(cases), batch or max(1, len(cases))):
            now = cases[first : first + batch] if batch else cases
            told = part_of(progress, first / len(cases), (first + len(now)) / len(cases))
            results = run_all([scenario(base, case) for case in now], jobs, told, keep, limits)
            kept |= {case: seen(case, result) for case, result in zip(now, results, strict=True)}
            summaries += [result.summary for result in results]
        done = study(base, kept)
        checks = [check(of, *claim) for of in shown if of in claims for claim in claims[of](done)]
        kinds: dict[str, Makers[T, dict[str, Any]]] = {"tables": {}, "series": {}, **drawn}
        summary = {
            "schema": "gradtide.reproduce/1",
            "version": _core.__version__,
            "engine": base.engine,
            "paper": name,
            "part": figure or "",
            "title": subject,
            "headline": headline(checks, done, figure),
            "figures": [{"figure": of, "title": title, "says": says} for of, (title, says, _) in shown.items()],
            "checks": checks,
            "maps": [],
            **{
                kind: [{"figure": of, **item} for of in shown if of in makers for item in makers[of](done)]
                for kind, makers in kinds.items()
            },
            "timelines": [],
            "progress": [],
            "cost": total_cost(summaries),
        }
        return Reproduction(summary, {})

    return Part(title, make, figures)


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
