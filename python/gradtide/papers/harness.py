"""What all reproductions share: figures with claims and drawings, and the folder with the results.

A TOML file next to each paper's module contains what the paper published: titles, statements about each figure, and
values. The module defines the runs of each figure, and derives claims, tables and charts from the runs. The same rule
decides for all papers whether our value agrees:

- A statement of a paper is counted once, even if it can be read in several ways.
- A value agrees within `TOLERANCES`. Signs, orders, counts and arithmetic must agree exactly.
- The number that is compared is the one that the row prints and the figure's table contains (`judged`).
- A variant of our own, or a value to which a parameter was fitted, is shown but not counted.
- A sentence states the cause of a difference; otherwise the cause counts as unknown.
"""

import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from gradtide import _core, report
from gradtide.answer.build import build
from gradtide.estimate import Limits
from gradtide.scenario import Scenario
from gradtide.scenario.source import parse_toml
from gradtide.studies.folder import whole_folder, write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.result import RunResult
from gradtide.studies.run import run_seen, total_cost
from gradtide.studies.run_folder import write_runs, write_summary

S = TypeVar("S")
C = TypeVar("C", bound=Hashable)
Progress = Callable[[float], object] | None
Check = dict[str, Any]
Drawn = dict[str, Any]

TOLERANCES = {"text": 0.1, "plot": 1 / 3}
"""Largest relative difference at which our value agrees with a published one, by where the paper has its value.

Values in a text or a table come from one run on one machine. From a plot, little more than the height of lines and bars
can be read.
"""

RULE = (
    "The difference is that of our value from the published one. Ours agrees with a value in a text or a table "
    f"within {100 * TOLERANCES['text']:.0f} %, and with one that is read off a plot within "
    f"{100 * TOLERANCES['plot']:.0f} %. Signs, orders, counts and arithmetic agree exactly. Two kinds of rows do not "
    "count: rows marked shown are variants of our own, and rows marked fitted have a value to which a parameter was "
    "fitted. The verdict is on the number as printed."
)
"""The rule as printed on the pages of results."""

SHOWN: Literal["shown"] = "shown"
FITTED: Literal["fitted"] = "fitted"
"""Verdicts of rows that are not counted: variants of our own, and values to which a parameter was fitted."""

Verdict = bool | Literal["shown", "fitted"]
Claim = tuple[str, str, str, Verdict] | tuple[str, str, str, Verdict, str]
"""(quantity, published text, our text, verdict, note): the note is the cause of a difference, or why it is not counted.
"""


@dataclass(frozen=True)
class Said:
    """A paper's statement about a quantity, with the bounds, fixed in advance, within which our value agrees."""

    words: str
    low: float = -math.inf
    high: float = math.inf

    def agrees(self, ours: float) -> bool:
        """Return whether our value agrees. No other function decides this."""
        return self.low <= ours <= self.high


_ROUNDED = 1 + 1e-12
"""Relative slack for rounding errors, so that a value exactly at the tolerance agrees."""


def value(theirs: float, words: str, source: Literal["text", "plot"] = "text") -> Said:
    """Return the statement that a quantity has the value `theirs`, with the tolerance of its source."""
    width = TOLERANCES[source] * abs(theirs) * _ROUNDED
    return Said(words, theirs - width, theirs + width)


def least(theirs: float, words: str) -> Said:
    """Return the statement that a quantity is at least `theirs`, minus the tolerance for values from a text."""
    return Said(words, low=theirs - TOLERANCES["text"] * abs(theirs) * _ROUNDED)


def above(limit: float, words: str) -> Said:
    """Return the statement that a quantity is above `limit`, our reading of a word such as "significant" (5 %)."""
    return Said(words, low=math.nextafter(limit, math.inf))


def below(limit: float, words: str) -> Said:
    """Return the statement that a quantity is below `limit`, our reading of a word of the paper."""
    return Said(words, high=math.nextafter(limit, -math.inf))


def exactly(theirs: float, words: str) -> Said:
    """Return the statement of a count or of an arithmetic result, which our printed value must equal."""
    return Said(words, theirs, theirs)


def judged(
    quantity: str,
    said: "Said | Sequence[Said]",
    ours: "float | Sequence[float]",
    form: str,
    note: str = "",
    counts: "Verdict | None" = None,
) -> Claim:
    """Return the claim that our values agree with a statement. The printed, i.e. rounded, values are compared.

    Args:
        quantity: the quantity of the statement.
        said: the statement, or one statement per value.
        ours: our values, one for each place of `form`.
        form: format of our values, as in `"{:.1f} % on average"`.
        note: cause of a difference, or the reason why the claim is not counted.
        counts: SHOWN or FITTED for a claim that is not counted.
    """
    values = [ours] if isinstance(ours, (int, float)) else list(ours)
    shown = [format(one, spec) for one, spec in zip(values, _PLACE.findall(form), strict=True)]
    each = [said] * len(values) if isinstance(said, Said) else list(said)
    text, words = _PLACE.sub("{}", form).format(*shown), " and ".join(dict.fromkeys(one.words for one in each))
    agrees = all(one.agrees(float(number)) for one, number in zip(each, shown, strict=True))
    return quantity, words, text, agrees if counts is None else counts, note


def changed(
    quantity: str, words: str, ours: tuple[float, float], form: str, note: str = "", *, grows: bool, by: float = 0.0
) -> Claim:
    """Return the claim that a quantity grows, or else shrinks, from the first to the second printed value of `ours`.

    `by` is the smallest change that counts, relative to the first value: our reading of the paper's word.
    """
    shown = [format(one, spec) for one, spec in zip(ours, _PLACE.findall(form), strict=True)]
    before, after = map(float, shown)
    holds = after > (1 + by) * before if grows else after < (1 - by) * before
    return quantity, words, _PLACE.sub("{}", form).format(*shown), holds, note


_PLACE = re.compile(r"\{:([^{}]*)\}")


def near(ours: float, theirs: float, source: Literal["text", "plot"] = "text") -> bool:
    """Return whether our value agrees with a published one."""
    return value(theirs, "", source).agrees(ours)


class Reproduction:
    """The results of one part of a paper: checks, tables, series and timelines.

    Attributes:
        summary: the document of `--json`.
        runs: the runs whose timelines are drawn, by name.
    """

    def __init__(self, summary: dict[str, Any], runs: Mapping[str, RunResult]) -> None:
        self.summary = summary
        self.runs = runs

    def only(self, figure: str) -> "Reproduction":
        """Return the part of the results that belongs to one figure or table."""
        kept = {
            key: [item for item in self.summary[key] if figure in item["figure"].split(", ")]
            for key in ("checks", "tables", "series", "timelines", "commands")
        }
        used = {item["run"].removeprefix("runs/") for item in kept["timelines"]}
        part = f"{self.summary['part']}/{command_name(figure)}"
        runs = {name: result for name, result in self.runs.items() if name in used}
        return Reproduction({**self.summary, "part": part, **kept}, runs)

    def save(self, path: str | Path) -> Path:
        """Write the study folder `path` atomically, by rename."""
        path = Path(path)
        with whole_folder(path) as folder:
            self.write(folder)
        return path

    def write(self, folder: Path, **more: Any) -> None:
        """Write the results into the existing `folder`; `more` is added to the summary."""
        write_runs(self.runs, folder)
        write_summary({**self.summary, **more}, folder)
        write_versions(folder)
        report.write_report(folder)


@dataclass(frozen=True)
class Part:
    """A part of a paper, such as a chapter, that can be reproduced as a whole or figure by figure.

    `make` runs the part. Its arguments are those of `Statements.make`. With a figure, only the runs of this figure are
    made. If there are `slow` figures, `quick=True` omits them.

    Attributes:
        seconds: approximate time for all figures, with two jobs on two cores.
        slow: figures whose runs need more than half a minute of processor time.
        quick_seconds: approximate time for the other figures.
    """

    title: str
    make: Callable[..., Reproduction]
    figures: Collection[str]
    seconds: float = 1.0
    slow: Collection[str] = ()
    quick_seconds: float = 1.0

    def figure(self, name: str) -> str | None:
        """Return the figure with a name, or `None`: "5.20" finds "5.20, 5.21", and "table-5.1" finds "Table 5.1"."""

        def plain(text: str) -> str:
            return text.lower().replace("-", " ")

        return next((f for f in self.figures if plain(name) in (plain(f), *plain(f).split(", "))), None)


def command_name(figure: str) -> str:
    """Return the name of a figure on a command line: 5.20 for "5.20, 5.21", and table-5.1 for "Table 5.1"."""
    return figure.partition(", ")[0].lower().replace(" ", "-")


def commands(part: str, figures: Iterable[str]) -> list[dict[str, str]]:
    """Return the command for each figure of a part."""
    return [{"figure": one, "command": f"gradtide reproduce {part}/{command_name(one)}"} for one in figures]


def _nothing(_study: Any) -> tuple[()]:
    return ()


@dataclass(frozen=True)
class Figure(Generic[S, C]):
    """A reproduced figure or table: its cases (runs), and functions that derive results from the study of the runs.

    `claims` compares the paper's statements with our values. `runs` returns the runs that `progress` draws, by name.
    The runs of a slow figure need more than half a minute of CPU time.
    """

    cases: Iterable[C] = ()
    claims: Callable[[S], Iterable[Claim]] = _nothing
    maps: Callable[[S], Iterable[Drawn]] = _nothing
    tables: Callable[[S], Iterable[Drawn]] = _nothing
    series: Callable[[S], Iterable[Drawn]] = _nothing
    bars: Callable[[S], Iterable[Drawn]] = _nothing
    progress: Callable[[S], Iterable[Drawn]] = _nothing
    runs: Callable[[S], Mapping[str, RunResult]] = lambda _study: {}
    is_slow: bool = False


def published(module: str) -> dict[str, Any]:
    """Return the content of the TOML file next to a module, with what the paper published."""
    file = f"{module.rpartition('.')[2]}.toml"
    return parse_toml(resources.files(__package__).joinpath(file).read_text(encoding="utf-8"), file)


def tally(checks: Sequence[Check]) -> dict[str, int]:
    """Return the numbers of statements: all, agreeing, and differing with a known or an unknown cause."""
    differ = [one for one in checks if one["verdict"] == "differs"]
    known = sum(bool(one["note"]) for one in differ)
    agree = sum(one["verdict"] == "agrees" for one in checks)
    return {"statements": agree + len(differ), "agree": agree, "known": known, "unknown": len(differ) - known}


def statements_hold(checks: Sequence[Check], _study: object = None, _figure: str | None = None) -> str:
    """Return a sentence with how many statements agree and differ."""
    return counted(tally(checks))


def counted(counts: Mapping[str, int]) -> str:
    """Return a sentence with the counts that `tally` returned."""
    parts = [f"; {counts[key]} differ, cause {key}" for key in ("known", "unknown") if counts[key]]
    return f"{counts['agree']} of {counts['statements']} statements agree{''.join(parts)}."


@dataclass(frozen=True, kw_only=True)
class Statements(Generic[S, C]):
    """A part that compares a paper's statements about figures with runs.

    Attributes:
        paper: content of the paper's TOML file: `title` is the title in lists, `preset` the name of a scenario.
        figures: the figures, by name.
        scenario: function that returns the scenario of a case, from the preset and the case.
        study: function that returns the study of all figures, from the preset and {case: value of `seen`}.
        headline: function that returns a sentence with the result, from the checks.
        seen: function that returns the data of a run to keep, from the case and the run.
        seeds: seeds of the runs, if there are several.
        base: scenario from which all runs are derived. Default: the preset.
    """

    paper: Mapping[str, Any]
    figures: Mapping[str, Figure[S, C]]
    scenario: Callable[[Scenario, C], Scenario]
    study: Callable[[Scenario, dict[C, Any]], S]
    headline: Callable[[Sequence[Check], S, str | None], str] = statements_hold
    seen: Callable[[C, RunResult], Any] = lambda _case, result: result
    seeds: Sequence[int] = ()
    base: Scenario | None = None

    def part(self, *, seconds: float = 1.0, quick_seconds: float = 1.0) -> Part:
        """Return the part; the arguments are its approximate times in seconds, with and without the slow figures."""
        return Part(self.paper["title"], self.make, self.figures, seconds, self._slow, quick_seconds)

    def changed(self, change: Callable[[C, Scenario], Scenario]) -> "Statements[S, C]":
        """Return a copy in which `change` edits the scenario of each case, to test what causes a difference."""
        return replace(self, scenario=lambda base, case: change(case, self.scenario(base, case)))

    @property
    def _slow(self) -> list[str]:
        return [name for name, one in self.figures.items() if one.is_slow]

    def make(
        self,
        jobs: int,
        progress: Progress,
        figure: str | None = None,
        keep: Kept | None = None,
        limits: Limits | None = None,
        *,
        quick: bool = False,
    ) -> Reproduction:
        """Reproduce all figures, or one of them. `quick` omits the slow figures, `keep` stores finished runs."""
        left_out = self._slow if quick and figure is None else []
        wanted = self.figures if figure is None else {figure: self.figures[figure]}
        shown = {name: one for name, one in wanted.items() if name not in left_out}
        base = self.base or Scenario.load(self.paper["preset"])
        cases = list(dict.fromkeys(case for one in shown.values() for case in one.cases))

        def reduced(index: int, result: RunResult) -> tuple[Any, dict[str, Any]]:
            return self.seen(cases[index], result), {"cost": result.summary["cost"]}

        scenarios = [self.scenario(base, case) for case in cases]
        results = run_seen(scenarios, reduced, jobs, progress, keep, limits)
        done = self.study(base, {case: kept for case, (kept, _) in zip(cases, results, strict=True)})
        checks = [check(name, *claim) for name, one in shown.items() for claim in one.claims(done)]
        answer = build("reproduce", self.headline(checks, done, figure), scenarios).to_dict()
        drawn = {
            kind: [{"figure": name, **item} for name, one in shown.items() for item in getattr(one, kind)(done)]
            for kind in ("maps", "tables", "series", "bars", "progress")
        }
        name, _, part = self.paper["name"].partition("/")
        summary = {
            "schema": "gradtide.reproduce/1",
            "version": _core.__version__,
            "engine": base.engine,
            **({"seed": list(self.seeds)} if self.seeds else {}),
            "paper": name,
            "part": "/".join(filter(None, (part, figure and command_name(figure)))),
            "title": self.paper["subject"],
            **answer,
            "figures": [
                {"figure": of, "title": text["title"], "says": text.get("says", "")}
                for of in shown
                for text in [self.paper["figures"][of]]
            ],
            "commands": commands(self.paper["name"], shown),
            **({"left_out": left_out} if left_out else {}),
            "rule": RULE,
            "checks": checks,
            "maps": drawn["maps"],
            "tables": drawn["tables"],
            "series": drawn["series"],
            **({"bars": drawn["bars"]} if drawn["bars"] else {}),
            "timelines": [],
            "progress": drawn["progress"],
            "cost": total_cost(cost for _, cost in results),
        }
        return Reproduction(summary, {name: run for one in shown.values() for name, run in one.runs(done).items()})


def check(figure: str, quantity: str, published: str, ours: str, agrees: Verdict, note: str = "") -> Check:
    """Return a row with a published value and ours; `note` is the cause of a difference, or why it is not counted."""
    verdict = agrees if isinstance(agrees, str) else "agrees" if agrees else "differs"
    return {
        "figure": figure,
        "quantity": quantity,
        "published": published,
        "ours": ours,
        "difference_percent": difference_percent(published, ours),
        "unit": "",
        "verdict": verdict,
        "note": "" if agrees is True else note,
    }


_VALUE = re.compile(r"(?<![\w.,:/-])([-+−]?\d+(?:\.\d+)?) ?(%|[A-Za-z]+(?:/s)?)?(?![\d.:/-]*\d)")
"""A number with its unit, if it is not part of a name, a ratio or a list."""


_BOUND = re.compile(r"\b(less|more|at least|at most|up to|within)\b(?! *$)")
"""Words that make our value a bound, which has no difference in percent; but "60 % less" is a value."""


def difference_percent(published: str, ours: str) -> float | None:
    """Return how many percent ours is above the published value; `None` unless both are one number of the same unit."""
    if _BOUND.search(ours):
        return None
    (theirs, unit), (own, own_unit) = _value(published), _value(ours)
    if not theirs or own is None or unit != own_unit:
        return None
    return round(100 * (own - theirs) / abs(theirs), 1)


def _value(text: str) -> tuple[float | None, str]:
    """Return the number and the unit in a text, (None, "") if it has several numbers; text in brackets is ignored."""
    plain = re.sub(r"\(.*?\)", "", text)
    found = _VALUE.findall(plain)
    if len(found) != 1 or len(re.findall(r"\d+(?:\.\d+)?", plain)) != 1:
        return None, ""
    number, unit = found[0]
    return float(number.replace("−", "-")), unit


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[Any]], note: str = "") -> Drawn:
    """Return a table."""
    return {"title": title, "columns": list(columns), "rows": [list(row) for row in rows], "note": note}


def line(name: str, values: Iterable[float | None], **style: str) -> Drawn:
    """Return a line of a chart. `style` may contain `band`, and `who` (ours or published)."""
    return {"name": name, **style, "values": list(values)}


def chart(
    title: str, x: tuple[str, Sequence[float]], ylabel: str, lines: Iterable[Drawn], note: str | None = None
) -> Drawn:
    """Return a chart of lines over one axis. `x` is (label, values); the note is printed below the chart."""
    axes = {"x": {"label": x[0], "values": list(x[1])}, "y": {"label": ylabel}}
    return {"title": title, **axes, "lines": list(lines), **({} if note is None else {"note": note})}
