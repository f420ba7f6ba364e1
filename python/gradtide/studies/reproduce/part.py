"""What every reproduction is made of: checks, tables, series, timelines, and the folder that they are written to."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradtide import report
from gradtide.estimate import Limits
from gradtide.results import RunResult
from gradtide.studies.folder import whole_folder, write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.run import write_core, write_summary

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
