"""Study files: which keys of a scenario are varied, and what each run of the study is.

    [sweep]                                     every combination of grid, zip and sample, each with every seed
    scenario = "base.toml"
    seeds = 5
    [sweep.grid]                                every combination of the values
    "cluster.link.rate" = ["1Gbps", "10Gbps"]
    [sweep.zip]                                 the first values together, then the second ones, ...
    "job.train.workers" = [2, 4]
    [sweep.sample]                              points between bounds, spread evenly (Sobol)
    points = 64
    "job.train.compute.batch" = { min = 8, max = 256, log = true }

Runs are in the order of the file: the first key of the grid changes last, seeds change first.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradtide import estimate, units
from gradtide.errors import Fault, ScenarioError, did_you_mean
from gradtide.recognise import expecting
from gradtide.scenario import Scenario, read
from gradtide.scenario.source import Faults, Loc, Source, of_command_line, parse_toml, read_text
from gradtide.studies.asked import as_scenario
from gradtide.studies.sweep import sobol

MAX_RUNS = 1_000_000
"""Runs of a study; its shards and parts may be studies of their own."""

SCENARIO = "scenario"
"""The key that varies the scenario itself."""
SEED = "run.seed"

KEYS = ("scenario", "seeds", "figure", "against", "grid", "zip", "sample")
BOUNDS = ("min", "max", "log")
_QUANTITIES: tuple[tuple[Callable[[object], int], str], ...] = (
    (units.parse_rate, "bps"),
    (units.parse_time, "ps"),
    (units.parse_bytes, "B"),
)
_DIGITS = 6
"""Of a sampled number that is not whole: logarithms differ between machines in the last digits of a float."""


@dataclass(frozen=True)
class Range:
    """Bounds of a sampled key: numbers, or quantities in whole `unit`s."""

    low: float
    high: float
    unit: str | None
    is_whole: bool
    is_log: bool

    def value(self, share: float) -> Any:
        """Return the value at a share of the way, 0 to 1."""
        if self.unit is None and self.is_whole and not self.is_log:
            return math.floor(self.low + share * (self.high - self.low + 1))
        at = self.low * (self.high / self.low) ** share if self.is_log else self.low + share * (self.high - self.low)
        if self.unit is None and self.is_whole:
            return round(at)
        at = float(f"{at:.{_DIGITS}g}")
        return at if self.unit is None else f"{round(at)}{self.unit}"


@dataclass(frozen=True)
class Axis:
    """Keys that vary together: `length` points, each with a value for every key.

    Attributes:
        kind: grid, zip or sample.
        keys: dotted paths.
        values: the values of each key; for a sample its range.
    """

    kind: str
    keys: tuple[str, ...]
    length: int
    values: tuple[Any, ...]

    def at(self, index: int) -> dict[str, Any]:
        """Return the value of each key at a point."""
        if self.kind == "sample":
            shares = (self.share(index, number) for number in range(len(self.keys)))
            return {key: one.value(share) for key, one, share in zip(self.keys, self.values, shares, strict=True)}
        return {key: values[index] for key, values in zip(self.keys, self.values, strict=True)}

    def share(self, index: int, number: int) -> float:
        """Return how far between its bounds a sampled key is at a point, 0 to 1; `number` is that of the key."""
        return sobol.point(index, number)

    def loc(self, key: str, index: int) -> Loc:
        """Return where the file has the value of a key at a point."""
        return ("sweep", self.kind, key) if self.kind == "sample" else ("sweep", self.kind, key, index)


def _apart(study: Mapping[str, Any]) -> tuple[Mapping[str, Any], Scenario | None]:
    """Return a study without the scenario that it holds, and that; None if it names one."""
    table = study.get("sweep")
    if not isinstance(table, Mapping) or not isinstance(table.get(SCENARIO), Scenario | Mapping):
        return study, None
    scenario = table[SCENARIO]
    rest = {key: value for key, value in table.items() if key != SCENARIO}
    return {**study, "sweep": rest}, as_scenario(scenario if isinstance(scenario, Scenario) else dict(scenario))


class Study:
    """A valid study: its runs by number, from 0.

    Attributes:
        text: the text of the file; None for a dict.
        axes: what varies together, in the order of the file.
        keys: the keys that vary, in the order of the file.
        seeds: runs of each point.
        figure: the figure that the report is about; None for the iteration time of the first job.
        against: what it is weighed against: another figure, or a key that varies; None for nothing.

    Raises:
        ScenarioError: with every fault of the file.
    """

    def __init__(
        self, data: Mapping[str, Any], source: Source, base_dir: Path, scenario: Scenario | None = None
    ) -> None:
        self.text = source.text
        self._source, self._base_dir, self._faults = source, base_dir, Faults()
        self._bases: dict[str, Scenario] = {}
        table = self._table(data)
        self.seeds = self._count(table, "seeds", 1)
        self.figure, self.against = self._text(table, "figure"), self._text(table, "against")
        self.axes = [*self._grid(table), *self._zip(table), *self._sample(table)]
        self._refuse_twice()
        self._base: Any = table.get(SCENARIO) if scenario is None else scenario
        if not isinstance(self._base, str | Scenario) and not any(SCENARIO in axis.keys for axis in self.axes):
            code, msg = ("GT010", "`scenario` is missing") if self._base is None else ("GT011", "expected a text")
            self._fault(code, ("sweep", SCENARIO), msg, 'write scenario = "base.toml"', self._base)
        if self._faults:
            raise ScenarioError(self._faults)
        self._refuse_many()

    @classmethod
    def load(cls, study: "str | Path | Mapping[str, Any]") -> "Study":
        """Read a study file, or a dict with the keys of one, whose scenario may also be a dict or a `Scenario`.

        Raises:
            ScenarioError: with every fault.
        """
        if isinstance(study, Mapping):
            study, scenario = _apart(study)
            return cls(read.plain(study, Source()), Source(), Path(), scenario)
        name = str(study)
        text = read_text(Path(study), name, of_command_line(name)).removeprefix("\ufeff")
        with expecting(text, name, "a study", "study"):
            return cls(parse_toml(text, name), Source(name, text), Path(study).parent)

    # what it says

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that vary."""
        return tuple(key for axis in self.axes for key in axis.keys)

    @property
    def points(self) -> int:
        """Points, of which each is run with every seed."""
        return math.prod(axis.length for axis in self.axes)

    def __len__(self) -> int:
        return self.points * self.seeds

    def values(self, run: int) -> dict[str, Any]:
        """Return the value of each key in a run."""
        return {key: value for axis, index in self._indices(run) for key, value in axis.at(index).items()}

    def first_seed(self, run: int) -> int:
        """Return the seed of the scenario that a run varies."""
        return self._load(self.values(run).get(SCENARIO, self._base), run).seed

    def scenario(self, run: int) -> Scenario:
        """Return the scenario of a run.

        Raises:
            ScenarioError: if a key or value is wrong; its faults name the study file.
        """
        values = self.values(run)
        base = self._load(values.pop(SCENARIO, self._base), run)
        nth_seed = run % self.seeds
        if nth_seed:  # with several seeds no axis is `run.seed`
            values[SEED] = base.seed + nth_seed
        try:
            scenario = base.set(values) if values else base
            scenario.check_built()
        except ScenarioError as error:
            raise ScenarioError([self._placed(fault, run) for fault in error.faults]) from None
        return scenario

    def _indices(self, run: int) -> list[tuple[Axis, int]]:
        rest, found = run // self.seeds, []
        for axis in reversed(self.axes):
            rest, index = divmod(rest, axis.length)
            found.append((axis, index))
        return found[::-1]

    def _load(self, base: Any, run: int) -> Scenario:
        if isinstance(base, Scenario):
            return base
        name = str(base)
        if name not in self._bases:
            is_file = name.endswith((".toml", ".json"))
            try:
                self._bases[name] = Scenario.load(str(self._base_dir / name) if is_file else name)
            except ScenarioError as error:
                is_there = is_file and (self._base_dir / name).is_file()
                raise error if is_there else ScenarioError([self._placed(one, run) for one in error.faults]) from None
        return self._bases[name]

    def _placed(self, fault: Fault, run: int) -> Fault:
        """Return a fault of a value that the study sets, at its place in the study file."""
        key = (fault.text or "").partition("=")[0] if fault.file == "--set" else None
        for axis, index in self._indices(run):
            if key in axis.keys:
                at_key = fault.code == "GT017"
                return self._source.fault(
                    fault.code, axis.loc(str(key), index), fault.msg, fault.hint, fault.input, at_key=at_key
                )
            if key is None and SCENARIO in axis.keys and fault.code in ("GT002", "GT006"):
                return self._source.fault(fault.code, axis.loc(SCENARIO, index), fault.msg, fault.hint, fault.input)
        if key is None and fault.code in ("GT002", "GT006"):
            return self._source.fault(fault.code, ("sweep", SCENARIO), fault.msg, fault.hint, fault.input)
        return replace(fault, file=self._source.name) if key is not None else fault

    # reading

    def _fault(self, code: str, loc: Loc, msg: str, hint: str, value: Any = None, *, at_key: bool = False) -> None:
        self._faults.append(self._source.fault(code, loc, msg, hint, value, at_key=at_key))

    def _table(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        for key in data:
            if key != "sweep":
                hint = "a study has one table, [sweep]; keys of the scenario stay in its own file"
                self._fault("GT012", (key,), f"unknown field `{key}`", hint, at_key=True)
        table = data.get("sweep")
        if not isinstance(table, Mapping):
            self._fault("GT010", ("sweep",), "`sweep` is missing", 'write [sweep] and under it scenario = "base.toml"')
            raise ScenarioError(self._faults)
        for key in table:
            if key not in KEYS:
                hint = did_you_mean(key, KEYS, f"known fields are {', '.join(KEYS)}")
                self._fault("GT012", ("sweep", key), f"unknown field `{key}`", hint, at_key=True)
        return table

    def _part(self, table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        part = table.get(name, {})
        if isinstance(part, Mapping):
            return part
        self._fault(
            "GT011", ("sweep", name), f"expected a table, found {units.describe(part)}", f"write [sweep.{name}]"
        )
        return {}

    def _count(self, table: Mapping[str, Any], name: str, default: int, home: Loc = ("sweep",)) -> int:
        value = table.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            msg = f"expected a whole number, found {units.describe(value)}"
            self._fault("GT011", (*home, name), msg, f"write {name} = 5", value)
        elif value < 1:
            self._fault("GT014", (*home, name), f"{value} is out of range", f"`{name}` is at least 1", value)
        else:
            return value
        return 1

    def _text(self, table: Mapping[str, Any], name: str) -> str | None:
        value = table.get(name)
        if value is None or isinstance(value, str):
            return value
        msg = f"expected a text, found {units.describe(value)}"
        self._fault("GT011", ("sweep", name), msg, f'write {name} = "jobs.train.iteration_time_ms.mean"', value)
        return None

    def refuse_figure(self, name: str, known: Sequence[str]) -> None:
        """Refuse a figure that no run has.

        Raises:
            ScenarioError: always, at `figure` or `against`.
        """
        where = "figure" if name == self.figure else "against"
        hint = did_you_mean(name, known, "the columns of rows.csv are the figures")
        fault = self._source.fault("GT105", ("sweep", where), f"no run has a figure `{name}`", hint, name)
        raise ScenarioError([fault])

    def _lists(self, table: Mapping[str, Any], kind: str) -> dict[str, list[Any]]:
        """Return the lists of a part, without those that are wrong."""
        found = {}
        for key, values in self._part(table, kind).items():
            loc = ("sweep", kind, key)
            if not isinstance(values, Sequence) or isinstance(values, str):
                msg = f"expected a list, found {units.describe(values)}"
                hint = f'write the key in quotes and its values in a list, as in "{"run.seed"}" = [1, 2]'
                self._fault("GT011", loc, msg, hint, values)
            elif not values:
                self._fault("GT100", loc, f"`{key}` has no values", "write at least one, or delete the line", values)
            else:
                found[key] = list(values)
        return found

    def _grid(self, table: Mapping[str, Any]) -> list[Axis]:
        return [Axis("grid", (key,), len(one), (one,)) for key, one in self._lists(table, "grid").items()]

    def _zip(self, table: Mapping[str, Any]) -> list[Axis]:
        lists = self._lists(table, "zip")
        if not lists:
            return []
        first, *_ = lists
        length = len(lists[first])
        for key, values in lists.items():
            if len(values) != length:
                msg = f"`{key}` has {len(values)} values, `{first}` has {length}"
                self._fault("GT101", ("sweep", "zip", key), msg, "zipped keys have one value each for every point")
        return [Axis("zip", tuple(lists), length, tuple(lists.values()))]

    def _sample(self, table: Mapping[str, Any]) -> list[Axis]:
        part = self._part(table, "sample")
        home = ("sweep", "sample")
        bounds = {key: value for key, value in part.items() if key != "points"}
        if not part:
            return []
        if "points" not in part:
            self._fault("GT010", home, "`points` is missing", "write points = 64")
        points = self._count(part, "points", 1, home)
        if not bounds:
            self._fault("GT100", home, "no key is sampled", 'write "run.KEY" = { min = 1, max = 10 }')
        if len(bounds) > sobol.DIMENSIONS:
            hint = f"at most {sobol.DIMENSIONS} keys are sampled at once; vary the others in a grid"
            self._fault("GT014", home, f"{len(bounds)} keys are sampled", hint)
        ranges = [self._range((*home, key), value) for key, value in bounds.items()]
        return [Axis("sample", tuple(bounds), points, tuple(ranges))]

    def _range(self, loc: Loc, value: Any) -> Range | None:
        example = 'write { min = "1Gbps", max = "100Gbps", log = true }'
        if not isinstance(value, Mapping) or not {"min", "max"} <= set(value):
            self._fault("GT102", loc, "the bounds of a sampled key are missing", example, value)
            return None
        for key in value:
            if key not in BOUNDS:
                self._fault(
                    "GT012", (*loc, key), f"unknown field `{key}`", did_you_mean(key, BOUNDS, example), at_key=True
                )
        is_log = value.get("log", False)
        if not isinstance(is_log, bool):
            self._fault("GT011", (*loc, "log"), "expected true or false", "write log = true", is_log)
            return None
        found = _bounds(value["min"], value["max"])
        if found is None:
            msg = "the bounds are no two numbers, rates, times or sizes"
            self._fault("GT102", loc, msg, example, value)
            return None
        low, high, unit = found
        if not (math.isfinite(low) and math.isfinite(high)) or low >= high:
            self._fault("GT102", loc, "`min` is not below `max`", example, value)
            return None
        if is_log and low <= 0:
            self._fault(
                "GT102", (*loc, "min"), "a logarithmic range begins above 0", "raise `min`, or delete `log`", low
            )
            return None
        is_whole = isinstance(low, int) and isinstance(high, int)
        return Range(low, high, unit, is_whole, is_log)

    def _refuse_twice(self) -> None:
        seen: dict[str, str] = {SEED: "seeds"} if self.seeds > 1 else {}
        for axis in self.axes:
            for key in axis.keys:
                if key in seen:
                    msg = f"`{key}` is varied twice, also by `{seen[key]}`"
                    self._fault("GT103", ("sweep", axis.kind, key), msg, "delete one of the two", at_key=True)
                seen[key] = axis.kind

    def _refuse_many(self) -> None:
        """Refuse a study of too many runs, before any but its first is looked at."""
        if len(self) <= MAX_RUNS:
            return
        time_s = estimate.estimate(self.scenario(0)).cpu_s * len(self)
        msg = f"the study has {len(self):,} runs, about {units.time_words(time_s)} if all are as the first"
        hint = f"at most {MAX_RUNS:,}; shorten a list, or take [sweep.sample] for a grid of many keys"
        raise ScenarioError([self._source.fault("GT104", ("sweep",), msg, hint)])


def _bounds(low: Any, high: Any) -> tuple[float, float, str | None] | None:
    """Return two bounds of one kind as numbers, and their unit if they have one."""
    first, last = quantity(low), quantity(high)
    if first is None or last is None or first[1] != last[1]:
        return None
    return first[0], last[0], first[1]


def quantity(value: Any) -> tuple[float, str | None] | None:
    """Return a value as a number, or as a whole number of bps, ps or B with that unit; None if it is neither."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value, None
    for parse, unit in _QUANTITIES:
        try:
            return parse(value), unit
        except units.UnitError:
            continue
    return None


def shown(value: Any) -> Any:
    """Return a value of a study as a cell of its table: a number, a text or a truth; of others their JSON."""
    return value if isinstance(value, (bool, int, float, str)) else json.dumps(value, sort_keys=True)
