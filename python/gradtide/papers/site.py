"""All reproductions as one site: an index, and a page for each part of a paper.

    DIR/index.html              number of statements that agree, and a row for each part
    DIR/gao2020-ch4/report.html published and our values, figure by figure, with the command of each figure

A quick site omits the figures with long runs (`Figure.is_slow`), and lists them with their commands.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradtide import _core, report
from gradtide.answer import Answer
from gradtide.answer.again import again
from gradtide.errors import Unfinished
from gradtide.estimate import Limits, NothingRun, foresee, within_limits
from gradtide.papers.harness import Part, Progress, Reproduction, commands, counted, tally
from gradtide.studies.folder import whole_folder, write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.run import part_of, total_cost
from gradtide.studies.run_folder import write_summary


class Site:
    """The reproductions of all parts, and their summary.

    Attributes:
        summary: the document of `--json`.
        made: the reproductions, by the name of their part.
    """

    def __init__(
        self,
        parts: Mapping[str, Part],
        made: Mapping[str, Reproduction],
        known: Mapping[str, Mapping[str, int]],
        *,
        is_quick: bool = False,
        ended: str = "",
    ) -> None:
        """Count the statements of the parts.

        Args:
            parts: the requested parts, by name.
            made: the finished reproductions, by name.
            known: for each part, the counts of `tally` when it was last made with all of its figures.
            is_quick: whether slow figures are omitted.
            ended: reason why not all parts are made, in a sentence; empty if they are.
        """
        self.made = made
        rows = [_row(name, part, made.get(name), known.get(name), is_quick=is_quick) for name, part in parts.items()]
        self.summary: dict[str, Any] = {
            "schema": "gradtide.site/1",
            "version": _core.__version__,
            "complete": not ended,
            "quick": is_quick,
            **Answer(_headline(rows, ended), again=again()).to_dict(),
            "parts": rows,
            "cost": total_cost(one.summary for one in made.values()),
        }

    def save(self, path: str | Path) -> Path:
        """Write the folder `path` atomically, by rename."""
        path = Path(path)
        with whole_folder(path) as folder:
            self.write(folder)
        return path

    def write(self, folder: Path) -> None:
        """Write the site into the existing `folder`."""
        for row in self.summary["parts"]:
            if row["folder"] is not None:
                (folder / row["folder"]).mkdir()
                self.made[row["name"]].write(folder / row["folder"], has_index=True)
        write_summary(self.summary, folder)
        write_versions(folder)
        report.write_report(folder)


@within_limits
def make(
    parts: Mapping[str, Part],
    known: Mapping[str, Mapping[str, int]],
    *,
    quick: bool = False,
    jobs: int = 1,
    progress: Progress = None,
    keep: Kept | None = None,
    limits: Limits | None = None,
) -> Site:
    """Make every part, one after the other.

    Args:
        parts: the parts to make, by name.
        known: for each part, the counts of `tally` when it was last made with all of its figures.
        quick: omit the slow figures.
        jobs: number of concurrent runs; the result does not depend on it.
        progress: called periodically with the completed fraction; parts are weighted by their usual times.
        keep: where finished runs are stored until the site is complete.
        limits: memory and time limits of the whole site.

    Raises:
        Interrupted: on Ctrl-C, with the site of the finished parts.
        ScenarioError: if a part would exceed the limits.
    """
    wanted = {name: part for name, part in parts.items() if _figures(part, is_quick=quick)}
    seconds = {name: part.quick_seconds if quick and part.slow else part.seconds for name, part in wanted.items()}
    made: dict[str, Reproduction] = {}
    done_s, all_s = 0.0, sum(seconds.values())
    for name, part in wanted.items():
        share_of = part_of(progress, done_s / all_s, (done_s + seconds[name]) / all_s)
        how: dict[str, Any] = {"quick": True} if quick and part.slow else {}
        try:
            made[name] = part.make(jobs, share_of, None, keep, limits, **how)
        except NothingRun:
            continue  # only an estimate is wanted: the part's runs are counted, and the next part follows
        except Unfinished as stop:
            if made:
                ended = f"{stop.how} at {name}; {len(made)} of {len(wanted)} parts are made."
                stop.study = Site(parts, made, known, is_quick=quick, ended=ended)
            raise
        done_s += seconds[name]
        if share_of is not None:
            share_of(1.0)
    foresee(list)
    return Site(parts, made, known, is_quick=quick)


def _figures(part: Part, *, is_quick: bool) -> list[str]:
    return [name for name in part.figures if not (is_quick and name in part.slow)]


def _row(
    name: str, part: Part, made: Reproduction | None, known: Mapping[str, int] | None, *, is_quick: bool
) -> dict[str, Any]:
    counts = tally([] if made is None else made.summary["checks"])
    left_out = [one for one in part.figures if made is None or (is_quick and one in part.slow)]
    return {
        "name": name,
        "title": part.title,
        "folder": None if made is None else name.replace("/", "-"),
        **counts,
        "not_made": max(0, known["statements"] - counts["statements"]) if known and left_out else 0,
        "when_last_made": dict(known) if known and left_out else None,
        "left_out": commands(name, left_out),
        "command": f"gradtide reproduce {name}",
        "seconds": part.seconds,
    }


def _headline(rows: list[dict[str, Any]], ended: str) -> str:
    papers = len({row["name"].partition("/")[0] for row in rows})
    counts = {key: sum(row[key] for row in rows) for key in ("statements", "agree", "known", "unknown", "not_made")}
    missing = counts["not_made"]
    why = "are not made" if ended else "need longer runs, which --quick leaves out"
    more = f" {missing} more {why}." if missing else ""
    return f"{ended} {papers} paper{'s' * (papers != 1)}: {counted(counts)}{more}".lstrip()
