"""Whatever a file holds, reading it gives a `Scenario` or a `ScenarioError` that says what is wrong, and nothing else."""

# ruff: noqa: E501, PT017 (rows of tables; faults are looked at where they are caught)

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradtide.codes import CODES
from gradtide.errors import ScenarioError
from gradtide.scenario import Scenario
from gradtide.scenario.keys import json_schema
from gradtide.scenario.source import locate, parse_json
from gradtide.scenario.tables import read_layers_csv
from gradtide.traffic import read_flows, read_sizes

# A busy machine is no fault of the parser; the time of a load has a test of its own.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

pytest.importorskip("gradtide.roofline")
PRESETS = Path(__file__).parent.parent / "python" / "gradtide" / "presets" / "papers"
VALID = [path.read_text() for path in sorted(PRESETS.glob("*.toml"))] + [
    """
[job.a]
hosts = ["h0", "h2"]
iterations = 3
compute = { scale_to = "1s", overlap_slowdown = 1.5 }
collective = { kind = "ring" }
schedule = { order = "file", ranking = ["b", "a"], chunk = "1MB" }
[[job.a.model.layers]]
name = "a"
forward = "1ms"
backward = "2ms"
parameters = "4MB"
[[job.a.model.layers]]
name = "b"
forward = "1ms"
backward = "2ms"
parameters = "4MB"
update = "5us"
[cluster]
topology = { kind = "clos2", ports = 4, bisection = "1/2" }
queue = { kind = "ecn", threshold = "40pkt", mark_at = "dequeue" }
[traffic."web"]
flows = [{ start = "1ms", src = "h0", dst = "h3", bytes = "4kB" }, { start = "0s", src = "h1", dst = "h0", bytes = "1B" }]
priority = { adaptive = { policy = "deadline", margin = 0.1 } }
[traffic.in]
incast = { dst = "h2", senders = 3, bytes = "1MB", every = "100ms" }
[traffic.own]
cdf = [{ bytes = "4kB", cdf = 0.25 }, { bytes = "1MB", cdf = 1 }]
load = 0.125
burst = { on = "1ms", off = "9ms" }
[run]
engine = "packet"
duration = "2s"
warmup = "500ms"
"""
]
WORDS = [
    "[job.a]", "[[job]]", "[cluster]", "[run]", "[traffic.w]", "model", "workers", "hosts", "rate", "=", "{", "}", "[",
    "]", ",", ".", "\n", " ", '"', "'", '"""', "'''", "#", "\\", "10", "1e400", "-1", "nan", "inf", "true", '"10Gbps"',
    '"10us"', '"thesis"', "0x10", "1979-05-27", "é", "\x00", "\r\n", "\ufeff", "\u2028", "\ud7ff", "9" * 30, "kind",
]  # fmt: skip


def outcome(read: Callable[[], Any]) -> None:
    """Check that `read` gives a result or faults that can be shown."""
    try:
        result = read()
    except ScenarioError as error:
        assert error.errors
        assert str(error).startswith("error[GT")
        assert str(error).encode()
        for fault in error.errors:
            assert set(fault) == {"code", "loc", "msg", "input", "hint", "file", "line", "column", "option"}
            assert fault["code"] in CODES
            assert fault["msg"]
            assert fault["line"] is None or fault["line"] >= 1
        json.dumps(error.errors)
        return
    if isinstance(result, Scenario):
        assert Scenario.from_toml(result.to_toml()) == result
        assert result.to_toml().encode()


@settings(max_examples=300)
@given(st.lists(st.sampled_from(WORDS), max_size=30).map("".join))
@example("[job.a]\nmodel = '\\ud800'\n")
@example("x = '''" + "\n" * 1000)
def test_any_words_of_toml(text: str) -> None:
    outcome(lambda: Scenario.from_toml(text))


@settings(max_examples=150)
@given(st.text())
def test_any_text(text: str) -> None:
    outcome(lambda: Scenario.from_toml(text))
    outcome(lambda: read_layers_csv(text, "m.csv"))
    outcome(lambda: read_layers_csv("layer,forward_us,backward_us,parameter_bytes\n" + text, "m.csv"))
    outcome(lambda: parse_json(text, "m.json"))
    outcome(lambda: read_sizes(text, "s.cdf"))
    outcome(lambda: read_flows(text, "f.csv", "web", 2, 3, 0))
    outcome(lambda: read_flows("start_ns,src,dst,bytes\n" + text, "f.csv", "web", 2, 3, 0))


@settings(max_examples=300)
@given(st.text(alphabet="0123456789hb,.:# \n-+_e\x00\u0663", max_size=60))
def test_any_numbers_in_a_list_of_flows_or_a_cdf(text: str) -> None:
    outcome(lambda: read_sizes(text, "s.cdf"))
    outcome(lambda: read_sizes("bytes,cdf\n" + text, "s.cdf"))
    outcome(lambda: read_flows("start_ns,src,dst,bytes\n" + text, "f.csv", "web", 2, 3, 0))
    outcome(lambda: read_flows("band,bytes,dst,src,start_ns\n" + text, "f.csv", "web", 2, 3, 0))


@settings(max_examples=300)
@given(st.sampled_from(VALID), st.randoms(use_true_random=False))
def test_any_mutation_of_a_valid_file(text: str, chance: random.Random) -> None:
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        until = min(len(text), at + chance.choice([0, 0, 1, 1, 5, 40]))
        kind = chance.randrange(3)
        if kind == 0:
            text = text[:at] + text[until:]
        elif kind == 1:
            text = text[:at] + chance.choice(WORDS) + text[until:]
        else:
            lines = text.split("\n")
            lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
            text = "\n".join(lines)
    outcome(lambda: Scenario.from_toml(text))


SCHEMA = json_schema()
KEYS = sorted({key for table in [SCHEMA, *SCHEMA["$defs"].values()] for key in table["properties"]})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=3)
    | st.sampled_from(["10Gbps", "1us", "4MB", "thesis", "star", "ps", "file", "h0", "1/2", "40pkt", "23/s", "packet"])
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=4)
        | st.dictionaries(st.integers(0, 2), inner, max_size=1)
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(["job", "cluster", "run", "traffic", "jobs"]), TREES, max_size=4))
@example({"job": {"a": {"model": "x.csv\x00", "workers": 1}}})
@example({"job": {"a": {"model": {"kind": "thesis"}, "workers": 1, "priority": {"adaptive": {"a": [None]}}}}})
@example({"job": {"a": {"model": "\ud800", "workers": 1}}})
@example({"job": {"\ud800": {"model": {"kind": "thesis"}, "workers": 1}}})
@example({"job": {"a": {"model": {"layers": [{"name": "\ud800"}]}, "workers": 10**30}}})
@example({"job": {"<name>": {"<table>": 1}, "a": {"model": {"<thesis>": 2}, "priority": {"<band>": 1}}}})
@example({"job": {"a": {"model": "../" * 2000 + "x.csv", "workers": 1}}})
def test_any_dict(data: dict[str, Any]) -> None:
    outcome(lambda: Scenario.from_dict(data))


def places(table: dict[str, Any], at: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every path of a resolved scenario."""
    found = []
    for key, value in table.items():
        found.append((*at, key))
        if isinstance(value, dict):
            found += places(value, (*at, key))
    return found


BASES = [Scenario.load("paper/gao2020-ch5").to_dict(), Scenario.from_toml(VALID[-1]).to_dict()]
PLACES = places(BASES[0])


@settings(max_examples=400)
@given(st.sampled_from([(base, path) for base in BASES for path in places(base)]), TREES)
def test_any_value_at_any_key(place: tuple[dict[str, Any], tuple[str, ...]], value: Any) -> None:
    base, path = place
    data = json.loads(json.dumps(base))
    table = data
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    outcome(lambda: Scenario.from_dict(data))


@settings(max_examples=150)
@given(st.sampled_from([".".join(p) for p in PLACES]) | st.text(max_size=20), SCALARS | TREES)
def test_any_value_of_set(path: str, value: Any) -> None:
    base = Scenario.load("paper/gao2020-ch5")
    outcome(lambda: base.set({path: value}))


MODEL_FILE = {
    "schema": "gradtide.model/1",
    "name": "m",
    "layers": [
        {"name": "a", "forward_us": 1.5, "backward_us": 2, "parameter_bytes": 3},
        {"name": "b", "forward_us": 1.5, "backward_us": 2, "parameter_bytes": 3, "update_us": 0},
    ],
}


@settings(max_examples=200)
@given(
    st.sampled_from([("schema",), ("name",), ("layers",), ("x",), *[("layers", 1, k) for k in (
        "name", "forward_us", "backward_us", "update_us", "parameter_bytes", "winograd", "x")]]),
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just([1]),
)  # fmt: skip
def test_any_value_in_a_model_file(tmp_path_factory: pytest.TempPathFactory, path: tuple[Any, ...], value: Any) -> None:
    data: Any = json.loads(json.dumps(MODEL_FILE))
    table = data
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    folder = tmp_path_factory.getbasetemp()
    (folder / "fuzz.json").write_text(json.dumps(data))
    outcome(lambda: Scenario.from_dict({"job": {"a": {"model": "fuzz.json", "workers": 2}}}, folder))


@given(st.sampled_from(VALID), st.integers(0, 2000))
def test_a_file_cut_off_anywhere(text: str, length: int) -> None:
    outcome(lambda: Scenario.from_toml(text[:length]))


@given(st.text(alphabet="[]{}=.,\"'#\n ab1"))
def test_places_are_found_in_any_text(text: str) -> None:
    """The walk is made for valid texts; on any other it ends."""
    locate(text)


PLACED = st.fixed_dictionaries(
    {"workers": st.integers(1, 6), "placement": st.sampled_from(["packed", "spread", "random"])}
)
NETWORKS = st.sampled_from(
    [
        {"kind": "star"},
        {"kind": "star", "hosts": 40},
        {"kind": "leaf_spine", "leaves": 3, "spines": 2, "hosts_per_leaf": 3},
    ]
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(PLACED, min_size=1, max_size=4),
    NETWORKS,
    st.sampled_from(["fluid", "packet"]),
    st.integers(0, 3),
    st.sampled_from([None, ["h2", "h0"], ["h7", "h3"]]),
)
def test_a_resolved_scenario_is_the_same_scenario(jobs, topology, engine, seed, named):
    layers = {"layers": [{"name": "a", "parameters": "1MB", "forward": "1us", "backward": "1us"}]}
    tables = {f"job{index}": {"model": layers, **job} for index, job in enumerate(jobs)}
    if named is not None:
        tables["named"] = {"model": layers, "hosts": named, "placement": "random"}
    scenario = Scenario.from_dict(
        {"job": tables, "cluster": {"topology": topology}, "run": {"engine": engine, "seed": seed}}
    )
    again = Scenario.from_toml(scenario.to_toml())
    assert again.sha256 == scenario.sha256
    assert again.spec() == scenario.spec()
