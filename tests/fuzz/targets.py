"""What must hold for whatever hypothesis draws: what is written is read back, and what is read is a value or a fault.

`make test` runs each on some examples, `make fuzz` on many. Round trips of `convert` and any text of a scenario have
tests of their own, which are targets, too.
"""

# ruff: noqa: PT017 (faults are looked at where they are caught)

import csv
import io
import json
import math
import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

import gradtide as gt
import test_formats
import test_scenario_fuzz
from attack.readers import CONFIGURATIONS, READERS
from gradtide import units
from gradtide.architecture import FAMILIES
from gradtide.errors import GradtideError, InternalError, ScenarioError
from gradtide.report.folder import RunFolderError
from gradtide.scenario import Scenario
from gradtide.scenario.plan import read_plan
from gradtide.scenario.tables import read_layers_csv
from gradtide.studies.sweep.study import Study
from gradtide.traffic import read_sizes

Target = Callable[[], None]
NUMBERS = st.integers(0, 2**64 - 1)
VALUES = test_scenario_fuzz.TREES


def in_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for the files of one example."""
    return tempfile.TemporaryDirectory(prefix="gradtide-fuzz.")


# Quantities


QUANTITY = r"\s*[-+]?[\d_]{0,22}([.][\d_]{0,22})?([eE][-+]?\d{0,4})?\s*[A-Za-zµμ/]{0,6}\s*"


@given(
    NUMBERS,
    st.fractions(min_value=0, max_value=10**9, max_denominator=10**9),
    st.from_regex(QUANTITY, fullmatch=True),
)
def quantities(number: int, share: Fraction, text: str) -> None:
    """What is written as a quantity is read as the same; so is any text that is one."""
    assert units.parse_time(units.format_time(number)) == number
    assert units.parse_rate(units.format_rate(number)) == number
    assert units.parse_bytes(units.format_bytes(number)) == number
    assert units.parse_packets(units.format_packets(number)) == number
    for is_bytes in (False, True):
        buffer = units.Buffer(number, is_bytes)
        assert units.parse_buffer(units.format_buffer(buffer)) == buffer
    decimal = units.format_decimal(share)
    if decimal is not None:
        assert Fraction(decimal) == share
        assert units.parse_frequency(f"{decimal}/s") == share
    for parse, written in (
        (units.parse_time, units.format_time),
        (units.parse_rate, units.format_rate),
        (units.parse_bytes, units.format_bytes),
        (units.parse_packets, units.format_packets),
        (units.parse_buffer, units.format_buffer),
    ):
        try:
            value: Any = parse(text)
        except units.UnitError as error:
            assert str(error).encode()
            continue
        assert parse(written(value)) == value  # type: ignore[operator]


# Tables


TIMES = st.integers(0, 10**12)
LAYERS = st.lists(
    st.tuples(test_formats.layer_names, TIMES, TIMES, st.integers(0, 2**40), TIMES),
    min_size=1,
    max_size=9,
    unique_by=lambda row: row[0],
)


@given(
    LAYERS,
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.booleans(),
)
def layers(rows: list[tuple[str, int, int, int, int]], end: str, quoting: Any, has_updates: bool) -> None:
    """A table of layers is read as the layers that any writer of CSV wrote."""
    assume(any(forward + backward for _, forward, backward, *_ in rows))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=end, quoting=quoting)
    count = 5 if has_updates else 4
    writer.writerow(["layer", "forward_us", "backward_us", "parameter_bytes", "update_us"][:count])
    micro = [units.format_decimal(Fraction(ps, 10**6)) for row in rows for ps in (row[1], row[2], row[4])]
    for index, (name, _, _, size, _) in enumerate(rows):
        forward, backward, update = micro[3 * index : 3 * index + 3]
        writer.writerow([name, forward, backward, size, update][:count])
    found = read_layers_csv(file.getvalue(), "m.csv")
    given_rows = [(*row[:4], row[4] * has_updates) for row in rows]
    for one, row in zip(found, given_rows, strict=True):
        assert (one.name, one.forward_ps, one.backward_ps, one.parameter_bytes, one.update_ps) == row


@given(test_formats.points)
def sizes(drawn: Any) -> None:
    """Sizes are drawn between the smallest and the largest of their distribution, and have its mean."""
    points = test_formats.cdf_of(*drawn)
    text = "bytes,cdf\n" + "".join(f"{size},{units.format_decimal(share)}\n" for size, share in points)
    test_scenario_fuzz.outcome(lambda: read_sizes(text, "s.cdf"))
    found = read_sizes(text, "s.cdf")
    assert points[0][0] <= found.mean_bytes <= points[-1][0]
    assert all(max(1, points[0][0]) <= found.at(share / 7) <= max(1, points[-1][0]) for share in range(1, 8))


MEASURED = st.lists(
    st.tuples(st.floats(1, 1e9), st.sampled_from([1, 2, 4, 16])),
    min_size=4,
    max_size=12,
    unique_by=lambda row: (round(math.log2(row[0])), row[1]),
)


@given(
    MEASURED,
    st.floats(1e-6, 1e-2),
    st.floats(1e-12, 1e-6),
)
def timings(rows: list[tuple[float, int]], fixed_s: float, byte_s: float) -> None:
    """Times that follow the formula are found again; others are fitted or refused."""
    table = [(int(size), depth, 1e6 * (fixed_s + byte_s * int(size))) for size, depth in rows]
    text = "bytes,time_us,depth\n" + "".join(f"{size},{time},{depth}\n" for size, depth, time in table)
    with in_folder() as folder:
        path = Path(folder) / "times.csv"
        path.write_text(text)
        try:
            found = gt.calibrate(path)
        except ScenarioError as error:
            assert {fault["code"] for fault in error.errors} <= {"GT014", "GT066"}
            return
        job = '[job.a]\nmodel = "resnet50"\nworkers = 2\n'
        scenario = Scenario.from_toml(job + found.to_toml("times.csv"))
        assert Scenario.from_toml(scenario.to_toml()) == scenario


# Documents


PLAN = json.loads(READERS["plan"].samples()[0])


LEVELS = st.sampled_from(["fc", "none", "priority", "crossiter"])


@given(st.sampled_from(test_scenario_fuzz.places(PLAN)), VALUES | LEVELS)
def plans(place: tuple[str, ...], value: Any) -> None:
    """A plan is refused, or is the same plan when it is written and read again."""
    document = json.loads(json.dumps(PLAN))
    table = document
    for key in place[:-1]:
        table = table[key]
    table[place[-1]] = value
    with in_folder() as folder:
        path = Path(folder) / "plan.json"
        try:
            path.write_text(json.dumps(document))
            plan = read_plan(path)
        except (ScenarioError, TypeError, ValueError) as error:
            assert isinstance(error, ScenarioError) or not path.exists() or not path.read_text()
            return
        again = Path(folder) / "again.json"
        again.write_text(json.dumps(plan.to_dict()))
        assert read_plan(again).to_dict() == plan.to_dict()


SIZES = st.integers(1, 4).map(lambda power: 16 * 2**power) | st.integers(0, 70)
FIELDS = sorted({key for one in CONFIGURATIONS for key in json.loads(one)} - {"model_type"})


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.dictionaries(st.sampled_from(FIELDS), SIZES | st.booleans() | st.none() | st.text(max_size=3)),
    st.sampled_from([json.loads(one) for one in CONFIGURATIONS]),
    st.booleans(),
)
def configurations(family: str, fields: dict[str, Any], known: dict[str, Any], is_known: bool) -> None:
    """A configuration of Hugging Face is refused, or a model whose bytes are whole and whose scenario is the same."""
    model = {**(known if is_known else {"model_type": family}), **fields}
    job = {"model": model, "workers": 2, "compute": {"seq": 64, "batch": 1, "device": "H100-bf16"}}
    try:
        scenario = Scenario.from_dict({"job": {"a": job}})
    except ScenarioError as error:
        assert error.errors
        return
    assert scenario.jobs[0].parameter_bytes > 0
    assert Scenario.from_toml(scenario.to_toml()) == scenario


BASE = {"job": {"train": {"model": {"kind": "thesis", "layers": 3}, "workers": 2}}}
SWEPT: dict[str, list[Any]] = {
    "cluster.link.rate": ["1Gbps", "10Gbps", "25Gbps"],
    "job.train.workers": [2, 3, 4],
    "job.train.schedule.order": ["fifo", "priority"],
    "run.engine": ["fluid"],
    "no.such.key": [1, 2],
}
LISTS = {key: st.lists(st.sampled_from(values) | VALUES, max_size=3) for key, values in SWEPT.items()}


@given(
    st.fixed_dictionaries({}, optional=LISTS),
    st.fixed_dictionaries({}, optional=LISTS),
    st.integers(0, 5),
    st.sampled_from([{}, {"points": 3, "cluster.link.delay": {"min": "1us", "max": "9us"}}, {"points": 2}]) | VALUES,
)
def studies(grid: dict[str, Any], zipped: dict[str, Any], seeds: int, sample: Any) -> None:
    """A study is refused, or has as many runs as its lists say, each of which is a scenario or a fault."""
    tables = {"grid": grid, "zip": zipped, "sample": sample}
    study = {"sweep": {"scenario": BASE, "seeds": seeds, **{key: table for key, table in tables.items() if table}}}
    try:
        found = Study.load(study)
    except ScenarioError as error:
        assert error.errors
        return
    rows = max((len(values) for values in zipped.values()), default=1)
    points = sample.get("points", 1) if isinstance(sample, dict) and sample else 1
    assert len(found) == math.prod(len(values) for values in grid.values()) * rows * points * seeds
    for run in {0, len(found) // 2, len(found) - 1}:
        try:
            scenario = found.scenario(run)
        except ScenarioError as error:
            assert error.errors
            continue
        assert set(found.values(run)) == set(found.keys)
        assert scenario.seed == found.first_seed(run) + run % seeds or "run.seed" in found.keys


SUMMARY: dict[str, Any] = {}


def _summary() -> dict[str, Any]:
    if not SUMMARY:
        run = gt.run(Scenario.from_dict({"job": {"a": {**BASE["job"]["train"], "iterations": 2}}}))
        with in_folder() as folder:
            run.save(Path(folder) / "run")
            kept = sorted(path for path in (Path(folder) / "run").iterdir() if path.suffix != ".html")
            SUMMARY.update({path.name: path.read_bytes() for path in kept})
    return SUMMARY


@given(st.data(), VALUES)
def run_folders(data: st.DataObject, value: Any) -> None:
    """A run folder with any value in its summary, or any cell in a table, is reported or refused."""
    files = dict(_summary())
    if data.draw(st.booleans()):
        document = json.loads(files["summary.json"])
        table, place = document, data.draw(st.sampled_from(test_scenario_fuzz.places(document)))
        for key in place[:-1]:
            table = table[key]
        table[place[-1]] = value
        try:
            files["summary.json"] = json.dumps(document).encode()
        except (TypeError, ValueError):
            assume(False)
    else:
        name = data.draw(st.sampled_from(sorted(name for name in files if name.endswith(".csv"))))
        lines = files[name].split(b"\n")
        line = data.draw(st.integers(0, len(lines) - 1))
        cells = lines[line].split(b",")
        cells[data.draw(st.integers(0, len(cells) - 1))] = str(value).encode("utf-8", "surrogateescape")[:50]
        files[name] = b"\n".join([*lines[:line], b",".join(cells), *lines[line + 1 :]])
    with in_folder() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        try:
            gt.report.write_report(Path(folder))
        except (GradtideError, RunFolderError) as error:
            assert not isinstance(error, InternalError), error
            assert str(error)


# Conversions


def _inner(test: Any) -> Callable[..., None]:
    found: Callable[..., None] = test.hypothesis.inner_test
    return found


@given(st.data())
def conversions(data: st.DataObject) -> None:
    """Flows, sizes, networks and models come back from the files of other tools."""
    made = test_formats
    one = data.draw(st.integers(0, 3))
    with in_folder() as name:
        folder = made.Folder(Path(name))
        if one == 0:
            _inner(made.test_flows_come_back_from_htsim_and_in_order_of_start_from_hpcc)(folder, data.draw(made.flows))
        elif one == 1:
            _inner(made.test_a_distribution_comes_back_exactly_from_each_dialect)(folder, data.draw(made.points))
        elif one == 2:
            cable = st.tuples(made.rates, made.delays)
            leaves = data.draw(st.lists(st.lists(cable, min_size=1, max_size=4), min_size=1, max_size=4))
            _inner(made.test_a_network_comes_back_from_hpcc)(folder, leaves, data.draw(cable))
        else:
            row = st.tuples(made.layer_names, made.times_us, made.times_us, st.integers(0, 2**63), made.times_us)
            rows = data.draw(st.lists(row, min_size=1, max_size=8, unique_by=lambda layer: layer[0]))
            _inner(made.test_a_model_comes_back_exactly)(folder, rows)


TARGETS: dict[str, Target] = {
    "scenario_mutants": test_scenario_fuzz.test_any_mutation_of_a_valid_file,
    "scenario_values": test_scenario_fuzz.test_any_value_at_any_key,
    "set_values": test_scenario_fuzz.test_any_value_of_set,
    "quantities": quantities,
    "layers": layers,
    "sizes": sizes,
    "timings": timings,
    "plans": plans,
    "configurations": configurations,
    "studies": studies,
    "run_folders": run_folders,
    "conversions": conversions,
}
"""Every target by name. The first three have tests in `test_scenario_fuzz.py`."""
