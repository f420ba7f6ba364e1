"""Study files: which keys of a scenario vary, and the scenario of each run of the study.

    [sweep]                                     runs every combination of grid, zip and sample, with every seed
    scenario = "base.toml"                      or a model, together with a cluster
    cluster = "h100-hgx/16"                     replaces the cluster of the scenario
    seeds = 5                                   number of seeds
    [sweep.grid]                                every combination of the values of all keys
    "cluster.link.rate" = ["1Gbps", "10Gbps"]
    [sweep.zip]                                 keys that vary together: all have their i-th values at the same point
    "job.train.workers" = [2, 4]
    [sweep.sample]                              low-discrepancy points between bounds (Sobol)
    points = 64
    "job.train.compute.batch" = { min = 8, max = 256, log = true }

Runs are numbered from 0. The first key of the grid varies slowest, then the next keys, the zip and the sample; the seed
varies fastest.
"""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from gradtide import estimate, units
from gradtide.errors import Fault, ScenarioError, did_you_mean
from gradtide.recognise import expecting
from gradtide.scenario import Scenario, read
from gradtide.scenario.keys import short_names
from gradtide.scenario.source import Faults, Loc, Source, of_command_line, parse_json, parse_toml, read_text, scalar
from gradtide.studies.arguments import as_scenario
from gradtide.studies.sweep import figures, settings, sobol
from gradtide.studies.sweep.settings import quantity
from gradtide.studies.trained import trained

MAX_RUNS = 1_000_000
"""Largest number of runs of a study; more runs must be divided into several studies."""

SCENARIO, CLUSTER = "scenario", "cluster"
"""Keys of a grid or zip whose values are whole scenarios, and whole clusters."""
SEED, ENGINE = "run.seed", "run.engine"

KEYS = ("scenario", "cluster", "seeds", "figure", "best", "against", "grid", "zip", "sample")
BOUNDS = ("min", "max", "log")
BEST = ("least", "most")
TABLES = ("job", "cluster", "traffic", "run")
"""Top-level tables of a scenario. A dict or JSON file without any of them is a model."""

TRAINING = ("parallel", "seq", "micro_batch", "global_batch", "recompute", "precision", "efficiency")
"""Short names of keys that describe how a language model is trained; they are options of `gradtide run MODEL`."""
TRAINED = {".".join(map(str, ("job.train", *short_names()[name][2:]))): name for name in TRAINING}
"""The names in `TRAINING`, each by the path of its key in the scenario that trains the model."""
_DIGITS = 6
"""Significant digits of a sampled value. More digits would differ between machines, because `pow` does."""


@dataclass(frozen=True)
class Range:
    """Range of a sampled key; bounds are numbers, or quantities in the base unit `unit` (bps, ps or B)."""

    low: float
    high: float
    unit: str | None
    is_whole: bool
    is_log: bool

    def value(self, share: float) -> Any:
        """Return the value at the relative position `share` in the range, from 0 to 1."""
        if self.unit is None and self.is_whole and not self.is_log:
            return math.floor(self.low + share * (self.high - self.low + 1))
        at = self.low * (self.high / self.low) ** share if self.is_log else self.low + share * (self.high - self.low)
        if self.unit is None and self.is_whole:
            return round(at)
        at = float(f"{at:.{_DIGITS}g}")
        return at if self.unit is None else f"{round(at)}{self.unit}"


@dataclass(frozen=True)
class Axis:
    """An axis of the study's grid: one or several keys that vary together, with `length` values each.

    Attributes:
        kind: table of the study file that contains the keys: "grid" (one key), "zip" or "sample".
        keys: paths of the keys in the scenario, such as `cluster.link.rate`.
        length: number of values of each key.
        values: for each key, the list of its values, or its `Range` in a sample.
    """

    kind: str
    keys: tuple[str, ...]
    length: int
    values: tuple[Any, ...]

    def at(self, index: int) -> dict[str, Any]:
        """Return the value of each key at position `index` of the axis."""
        if self.kind == "sample":
            shares = (self.share(index, number) for number in range(len(self.keys)))
            return {key: one.value(share) for key, one, share in zip(self.keys, self.values, shares, strict=True)}
        return {key: values[index] for key, values in zip(self.keys, self.values, strict=True)}

    def share(self, index: int, number: int) -> float:
        """Return the relative position (0 to 1), within its range, of the key `keys[number]` of a sample at `index`."""
        return sobol.point(index, number)

    def loc(self, key: str, index: int) -> Loc:
        """Return the location, in the study file, of the value of `key` at position `index`."""
        return ("sweep", self.kind, key) if self.kind == "sample" else ("sweep", self.kind, key, index)


def _apart(study: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
    """Return the study without an inline scenario or model, and that scenario or model (`None` if there is none)."""
    table = study.get("sweep")
    if not isinstance(table, Mapping) or isinstance(table.get(SCENARIO), str | int | float | None):
        return study, None
    return {**study, "sweep": {key: value for key, value in table.items() if key != SCENARIO}}, table[SCENARIO]


class Study:
    """A valid study file, with the scenario of each of its runs, numbered from 0.

    Attributes:
        text: text of the study file; `None` if the study was given as a dict.
        axes: axes of the study's grid: each key of `[sweep.grid]`, then the zip, then the sample.
        seeds: number of runs of each point, with consecutive seeds.
        figure: name of the figure by which points are ranked; `None` for the default of `SweepResult.figure`.
        best: "least" or "most", if the smallest or the largest figure is best; `None` to derive this from its name.
        against: second objective of the Pareto front, which is another figure or a varied key; `None` for no front.

    Raises:
        ScenarioError: with all errors in the file.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        source: Source,
        base_dir: Path,
        scenario: Any = None,
        cluster: Any = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self.text = source.text
        self._source, self._base_dir, self._faults = source, base_dir, Faults()
        self._bases: dict[str, Scenario] = {}
        self._are_models: dict[str, bool] = {}
        self._labels: dict[str, list[str]] = {}
        table = self._table(data)
        self.seeds = self._count(table, "seeds", 1)
        self.figure, self.against = self._text(table, "figure"), self._text(table, "against")
        self.best = self._text(table, "best")
        if self.best not in (None, *BEST):
            self._fault("GT013", ("sweep", "best"), "it is none of its values", 'write "least" or "most"', self.best)
        self.axes = [*self._grid(table), *self._zip(table), *self._sample(table)]
        self._refuse_twice()
        is_held = isinstance(scenario, Mapping) and any(name in scenario for name in TABLES)
        self._base: Any = (
            as_scenario(dict(scenario)) if is_held else table.get(SCENARIO) if scenario is None else scenario
        )
        is_named = scenario is not None or isinstance(self._base, str)
        if not is_named and not any(SCENARIO in axis.keys for axis in self.axes):
            code, msg = ("GT010", "`scenario` is missing") if self._base is None else ("GT011", "expected a text")
            self._fault(code, ("sweep", SCENARIO), msg, 'write scenario = "base.toml"', self._base)
        self._cluster, self._is_option = self._cluster_of(table, cluster), cluster is not None
        self._changes = dict(changes or {})
        self._refuse_changed()
        if self._faults:
            raise ScenarioError(self._faults)
        self._refuse_many()

    def _cluster_of(self, table: Mapping[str, Any], option: Any) -> Any:
        """Return the cluster that replaces the scenario's: `option` (`--cluster`), else `sweep.cluster` or `None`."""
        varied = next((axis for axis in self.axes if CLUSTER in axis.keys), None)
        if varied is not None and (option is not None or CLUSTER in table):
            where = ("sweep", varied.kind, CLUSTER)
            by = "--cluster" if option is not None else "the study's own `cluster`"
            self._fault("GT103", where, f"`cluster` is varied, and {by} names one, too", "leave one of the two out")
        own = table.get(CLUSTER)
        if own is not None and not isinstance(own, str | Mapping):
            self._fault("GT011", ("sweep", CLUSTER), "expected a text", 'write cluster = "h100-hgx/16"', own)
        return self._at_home(own) if option is None else option

    @classmethod
    def load(
        cls,
        study: "str | Path | Mapping[str, Any]",
        cluster: Any = None,
        changes: Mapping[str, Any] | None = None,
    ) -> "Study":
        """Read a study file, or a dict with its keys, in which the scenario may also be a `Scenario` or a model.

        Args:
            study: the file or dict.
            cluster: cluster that replaces the cluster of each scenario, as in `gradtide.run`.
            changes: values for all runs, by the path of their key, as in `--set`; the study must not vary these keys.

        Raises:
            ScenarioError: with all errors in the file.
        """
        if isinstance(study, Mapping):
            study, scenario = _apart(study)
            return cls(read.plain(study, Source()), Source(), Path(), scenario, cluster, changes)
        name = str(study)
        text = read_text(Path(study), name, of_command_line(name)).removeprefix("\ufeff")
        with expecting(text, name, "a study", "study"):
            return cls(parse_toml(text, name), Source(name, text), Path(study).parent, None, cluster, changes)

    # contents

    @property
    def command(self) -> str:
        """The command that repeats the study."""
        cluster = ["--cluster", str(self._cluster)] if self._is_option else []
        changes = [f"{key}={settings.argument(value)}" for key, value in self._changes.items()]
        sets = [part for change in changes for part in ("--set", change)]
        return shlex.join(["gradtide", "sweep", self._source.name, *cluster, *sets])

    @property
    def keys(self) -> tuple[str, ...]:
        """Paths of all keys in the grid, the zip and the sample."""
        return tuple(key for axis in self.axes for key in axis.keys)

    @property
    def varied(self) -> tuple[str, ...]:
        """Paths of the keys with more than one value."""
        return tuple(key for axis in self.axes if axis.length > 1 for key in axis.keys)

    @property
    def points(self) -> int:
        """Number of points, i.e. of combinations of values; every point has a run per seed."""
        return math.prod(axis.length for axis in self.axes)

    def __len__(self) -> int:
        return self.points * self.seeds

    def values(self, run: int) -> dict[str, Any]:
        """Return {path: value in the run} for every key of the grid, the zip and the sample."""
        return {key: value for axis, index in self._indices(run) for key, value in axis.at(index).items()}

    def sampled(self, key: str) -> list[Any]:
        """Return examples of values of the key `key`: all values if they are listed, or the first point of a sample."""
        axis = next(axis for axis in self.axes if key in axis.keys)
        return [axis.at(0)[key]] if axis.kind == "sample" else list(axis.values[axis.keys.index(key)])

    def first_seed(self, run: int) -> int:
        """Return the seed in a run's base scenario; 0 if the scenario cannot be read."""
        try:
            values = self._all_values(run)
            base = self._load(values, run)
            return (base.set({SEED: self._changes[SEED]}) if SEED in self._changes else base).seed
        except ScenarioError:
            return 0

    def scenario(self, run: int) -> Scenario:
        """Return the scenario of a run.

        Raises:
            ScenarioError: if the scenario is invalid; errors in varied values have their location in the study file.
        """
        values = self._all_values(run)
        base = self._load(values, run)
        nth_seed = run % self.seeds
        try:
            if nth_seed:  # with several seeds, `run.seed` is not a varied key
                first = base.set({SEED: values[SEED]}) if SEED in values else base
                values[SEED] = first.seed + nth_seed
            scenario = base.set(values) if values else base
            scenario.check_built()
        except ScenarioError as error:
            raise ScenarioError([self._placed(fault, run) for fault in error.faults]) from None
        return scenario

    def again(self, run: int) -> list[str] | None:
        """Return the command line that executes only this run; `None` if options cannot express its values."""
        values = self._all_values(run)
        base, cluster = self._named(values)
        if not isinstance(base, str) or not isinstance(cluster, str | Path | None):
            return None
        line = ["gradtide", "run", base] + ([] if cluster is None else ["--cluster", str(cluster)])
        for key, name in TRAINED.items() if self._is_model(base) else ():
            if values.get(key) is not None:
                line += [f"--{name.replace('_', '-')}", settings.option(values.pop(key))]
        nth_seed = run % self.seeds
        if nth_seed:
            values.pop(SEED, None)
        for key, value in values.items():
            text = settings.argument(value)
            if text is None:
                return None
            line += ["--set", f"{key}={text}"]
        return line + (["--seed", str(self.first_seed(run) + nth_seed)] if nth_seed else [])

    def label(self, run: int, against: int | None = None) -> str:
        """Return the values of a run as a label, such as `workers 16; parallel fsdp=8, tp=2`.

        Args:
            run: number of the run.
            against: number of another run; only values that differ from those of this other run are included.
        """
        keys = settings.short(self.keys)
        # Values that all points share are omitted.
        varied = [one for one in self._indices(run) if one[0].length > 1] or self._indices(run)
        if against is not None:
            places = {id(axis): index for axis, index in self._indices(against)}
            varied = [(axis, index) for axis, index in varied if places[id(axis)] != index]
        return "; ".join(f"{keys[key]} {text}" for one in varied for key, text in self.labels(*one).items())

    def labels(self, axis: Axis, index: int) -> dict[str, str]:
        """Return each key's label at position `index` of an axis; different values have different labels."""
        if axis.kind == "sample":
            return {key: settings.sampled(value) for key, value in axis.at(index).items()}
        for key, values in zip(axis.keys, axis.values, strict=True):
            if key not in self._labels:
                self._labels[key] = settings.labels(values)
        return {key: self._labels[key][index] for key in axis.keys}

    def _all_values(self, run: int) -> dict[str, Any]:
        """Return the values that are set in a run: those given with `--set`, and those of the varied keys."""
        return self._changes | self.values(run)

    def _indices(self, run: int) -> list[tuple[Axis, int]]:
        rest, found = run // self.seeds, []
        for axis in reversed(self.axes):
            rest, index = divmod(rest, axis.length)
            found.append((axis, index))
        return found[::-1]

    def _load(self, values: dict[str, Any], run: int) -> Scenario:
        """Return the base scenario of a run, and remove the values that it already includes from `values`."""
        base, cluster = self._named(values)
        cluster = {CLUSTER: cluster} if isinstance(cluster, Mapping) and CLUSTER not in cluster else cluster
        keys: dict[str, Any] = {}
        if self._is_model(base):
            given = {name: values.pop(key) for key, name in TRAINED.items() if values.get(key) is not None}
            keys = {name: scalar(value) if isinstance(value, str) else value for name, value in given.items()}
        if not keys and cluster is None and isinstance(base, Scenario):
            return base
        name = base if isinstance(base, str) else ""
        known = json.dumps([name, cluster], sort_keys=True, default=str)
        if keys or known not in self._bases:
            try:
                found = trained(base, cluster, **keys)
            except ScenarioError as error:
                # Errors in an existing scenario file keep their location in that file.
                is_there = isinstance(base, str) and base.endswith((".toml", ".json")) and Path(base).is_file()
                if is_there and cluster is None and not keys:
                    raise
                raise ScenarioError([self._placed(one, run, str(cluster)) for one in error.faults]) from None
            if keys:
                return found
            self._bases[known] = found
        return self._bases[known]

    def _named(self, values: dict[str, Any]) -> tuple[Any, Any]:
        """Remove the scenario (or model) and the cluster from `values`, and return them; by default, the study's."""
        base = self._at_home(values.pop(SCENARIO, self._base))
        return base, self._at_home(values.pop(CLUSTER)) if CLUSTER in values else self._cluster

    def _at_home(self, name: Any) -> Any:
        """Return a file name relative to the study's folder; return any other value unchanged."""
        is_file = isinstance(name, str) and name.endswith((".toml", ".json", ".csv"))
        return str(self._base_dir / name) if is_file else name

    def _is_model(self, base: Any) -> bool:
        """Whether `base` is a model, for which a job has to be made, rather than a scenario."""
        if isinstance(base, Mapping):
            return not any(name in base for name in TABLES)
        if not isinstance(base, str):
            return not isinstance(base, Scenario)
        if not base.endswith(".json"):
            return not base.endswith(".toml") and not base.startswith("paper/")
        if base not in self._are_models:
            data = parse_json(read_text(Path(base), base, of_command_line(base)), base)
            self._are_models[base] = isinstance(data, dict) and not any(name in data for name in TABLES)
        return self._are_models[base]

    def _placed(self, fault: Fault, run: int, cluster: str | None = None) -> Fault:
        """Return an error with its location in the study file or on the command line, if its value was set there."""
        key = (fault.text or "").partition("=")[0] if fault.file in ("--set", "replace()") else None
        short = {"engine": ENGINE, **{name: path for path, name in TRAINED.items()}}
        key = short.get(str(key), key) if fault.file == "replace()" else key
        if key in self._changes:
            return replace(fault, file="--set", text=f"{key}={fault.text.partition('=')[2]}" if fault.text else None)
        is_name = key is None and fault.code in ("GT002", "GT006")
        if is_name and self._is_option and fault.file == cluster:
            return replace(fault, file="--cluster")
        named = CLUSTER if is_name and fault.file == cluster else SCENARIO
        for axis, index in self._indices(run):
            if key in axis.keys:
                at_key = fault.code == "GT017"
                return self._source.fault(
                    fault.code, axis.loc(str(key), index), fault.msg, fault.hint, fault.input, at_key=at_key
                )
            if is_name and named in axis.keys:
                return self._source.fault(fault.code, axis.loc(named, index), fault.msg, fault.hint, fault.input)
        if is_name:
            return self._source.fault(fault.code, ("sweep", named), fault.msg, fault.hint, fault.input)
        # A scenario that was made from a model has no file, so its errors name the study file.
        return replace(fault, file=self._source.name) if key is not None or fault.file == Source().name else fault

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

    def refuse_figure(self, name: str, known: Sequence[str]) -> NoReturn:
        """Raise the error for a `figure` or `against` that no run has; the message suggests a similar name in `known`.

        Raises:
            ScenarioError: always, with its location in the study file.
        """
        where = "figure" if name == self.figure else "against"
        alike = figures.alike(name, known)
        hint = f"did you mean {alike}?" if alike else "the columns of rows.csv are the figures"
        fault = self._source.fault("GT105", ("sweep", where), f"no run has a figure `{name}`", hint, name)
        raise ScenarioError([fault])

    def _lists(self, table: Mapping[str, Any], kind: str) -> dict[str, list[Any]]:
        """Return the valid lists of values in `[sweep.grid]` or `[sweep.zip]` by key; record errors for the others."""
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
            msg = "`min` and `max` are not two numbers, rates, times or sizes"
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

    def _refuse_changed(self) -> None:
        """Record an error for each varied key whose values would replace a value that was set with `--set`."""
        for axis in self.axes:
            for key in axis.keys:
                changed = next((one for one in self._changes if f"{one}.".startswith(f"{key}.")), None)
                if changed is not None and key not in (SCENARIO, CLUSTER):
                    also = "it" if changed == key else f"`{changed}`"
                    msg = f"`{key}` is varied, and {also} is set for all runs, too"
                    self._fault("GT103", ("sweep", axis.kind, key), msg, "leave one of the two out", at_key=True)

    def _refuse_many(self) -> None:
        """Raise a ScenarioError if the study has more than `MAX_RUNS` runs, with the estimated time of all of them."""
        if len(self) <= MAX_RUNS:
            return
        msg = f"the study has {len(self):,} runs"
        with suppress(ScenarioError):
            time_s = estimate.estimate(self.scenario(0)).cpu_s * len(self)
            msg += f", about {units.time_words(time_s)} if all are as the first"
        hint = f"at most {MAX_RUNS:,}; shorten a list, or take [sweep.sample] for a grid of many keys"
        raise ScenarioError([self._source.fault("GT104", ("sweep",), msg, hint)])


def _bounds(low: Any, high: Any) -> tuple[float, float, str | None] | None:
    """Return two bounds as numbers with their common base unit; `None` if they are not quantities of the same kind."""
    first, last = quantity(low), quantity(high)
    if first is None or last is None or first[1] != last[1]:
        return None
    return first[0], last[0], first[1]
