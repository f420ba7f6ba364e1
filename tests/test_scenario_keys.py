"""Keys of a scenario as text: a resolved scenario read back, the line of each key, its schema, short names and options."""

# ruff: noqa: E501 (rows of tables)

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gradtide import units
from gradtide.errors import ScenarioError
from gradtide.scenario import Scenario, json_schema
from gradtide.scenario.keys import short_names
from gradtide.scenario.source import locate, tomllib
from scenario_parts import MODEL

ROOT = Path(__file__).parent.parent


# ── round trips ────────────────────────────────────────────────────────────────────────────────

NAMES = st.text(st.characters(categories=["L", "M", "N", "P", "S"]), min_size=1, max_size=12)
LAYER = st.fixed_dictionaries(
    {
        "name": NAMES,
        "forward": st.integers(1, 10**12).map(units.format_time),
        "backward": st.integers(0, 10**12).map(units.format_time),
        "parameters": st.integers(0, 10**9).map(units.format_bytes),
    },
    optional={"update": st.integers(0, 10**9).map(units.format_time)},
)
SCENARIOS = st.fixed_dictionaries(
    {
        "job": st.dictionaries(
            st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True),
            st.fixed_dictionaries(
                {
                    "model": st.fixed_dictionaries(
                        {"layers": st.lists(LAYER, min_size=1, max_size=4, unique_by=lambda r: r["name"])},
                        optional={"name": NAMES},
                    ),
                    "workers": st.integers(1, 20),
                },
                optional={
                    "iterations": st.integers(1, 1000),
                    "priority": st.sampled_from(["high", 0, {"adaptive": {"policy": "deadline"}}]),
                    "compute": st.fixed_dictionaries(
                        {},
                        optional={
                            "scale_to": st.integers(1, 10**12).map(units.format_time),
                            "overlap_slowdown": st.floats(1, 100),
                        },
                    ),
                    "schedule": st.fixed_dictionaries(
                        {"order": st.sampled_from(["fifo", "random", "priority", "tic"])},
                        optional={
                            "fusion": st.integers(0, 10**9).map(units.format_bytes),
                            "chunk": st.integers(10**6, 10**9).map(units.format_bytes),
                            "barrier": st.booleans(),
                        },
                    ),
                },
            ),
            min_size=1,
            max_size=3,
        )
    },
    optional={
        "cluster": st.fixed_dictionaries(
            {},
            optional={
                "link": st.fixed_dictionaries(
                    {}, optional={"efficiency": st.floats(0.01, 1), "delay": st.sampled_from(["0s", "1us"])}
                ),
                "routing": st.sampled_from(["ecmp", "dmodk", "spread"]),
                "queue": st.sampled_from(
                    [
                        {"kind": "fifo", "capacity": "1MB"},
                        {"kind": "red", "min": "5pkt", "max": "15pkt"},
                        {"kind": "drr", "weights": [4, 2, 1], "threshold": "9pkt"},
                    ]
                ),
                "switch_buffer": st.sampled_from([{"capacity": "100pkt"}, {"capacity": "1MB", "alpha": 0.5}]),
            },
        ),
        "run": st.fixed_dictionaries(
            {},
            optional={
                "seed": st.integers(0, 2**63 - 1),
                "probe": st.sampled_from([{"every": "1ms"}, {"every": "3us", "links": ["h0"]}]),
            },
        ),
    },
)


@given(SCENARIOS)
def test_a_resolved_scenario_is_read_back(data: dict[str, dict[str, dict[str, object]]]) -> None:
    has_one_band = data.get("cluster", {}).get("queue", {}).get("kind") in ("fifo", "red")
    assume(not (has_one_band and any(isinstance(job.get("priority"), dict) for job in data["job"].values())))
    scenario = Scenario.from_dict(data)
    again = Scenario.from_toml(scenario.to_toml())
    assert again.to_toml() == scenario.to_toml()
    assert again.jobs == scenario.jobs
    assert again.sha256 == scenario.sha256
    assert Scenario.from_dict(scenario.to_dict()) == scenario
    spans = locate(scenario.to_toml())
    assert paths(scenario.to_dict()) <= set(spans)


def paths(tree: object, at: tuple[object, ...] = ()) -> set[tuple[object, ...]]:
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found = {at} if at else set()
    return found.union(*(paths(value, (*at, key)) for key, value in children))


def test_every_way_to_write_a_key_has_its_line() -> None:
    text = (
        'a = 1 # not b = 2\n"quoted \\u0061" = 2\nsite."google.com" = true\n[t . "x y"]\ns = """\n[no]\nk = 1\\"""" \n'
        "l = [ 1, # one\n  { z = 'a]b', y.x = [[2]] },\n]\n[[arr]]\nn = 1\n[[arr]]\nn = 2\n[arr.sub]\nd = 1979-05-27 07:32:00\n"
        "[[arr.deep]]\nq = ''''two'' quotes'''\n[t.u]\nv = {}\n"
    )
    spans = locate(text)
    lines = {".".join(str(p) for p in path): text.count("\n", 0, span.value[0]) + 1 for path, span in spans.items()}
    data = tomllib.loads(text)
    assert paths(data) <= set(spans)
    assert lines["quoted a"] == 2
    assert lines["site.google.com"] == 3
    assert lines["t.x y.s"] == 5
    assert lines["t.x y.l.1.y.x.0.0"] == 9
    assert (lines["arr.0.n"], lines["arr.1.n"], lines["arr.1.sub.d"], lines["arr.1.deep.0.q"]) == (
        12,
        14,
        16,
        18,
    )
    assert lines["t.u.v"] == 20
    start, stop = spans["arr", 1, "sub", "d"].value
    assert text[start:stop] == "1979-05-27 07:32:00"


# ── schema ─────────────────────────────────────────────────────────────────────────────────────


def test_the_schema_describes_every_field_with_an_example() -> None:
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    tables = [schema, *schema["$defs"].values()]
    for table in tables:
        assert table["description"]
        assert table["additionalProperties"] is False
        for name, field in table["properties"].items():
            assert field["description"].endswith("."), name
            assert field["examples"], name


def test_examples_of_the_schema_are_valid() -> None:
    fields = json_schema()["$defs"]["Schedule"]["properties"]
    for key in ("order", "fusion", "chunk", "barrier", "depth", "overhead"):
        for value in fields[key]["examples"]:
            Scenario.from_toml(f"[job.a]\n{MODEL}\nworkers = 2").set({f"job.a.schedule.{key}": value})


def test_importing_the_parser_brings_nothing_heavy() -> None:
    code = (
        "import sys, gradtide.scenario; "
        "print([m for m in ('numpy', 'torch', 'rich', 'typer', 'jinja2', 'tomlkit') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_short_name_reaches_its_key() -> None:
    base = Scenario.from_toml(f"[job.a]\n{MODEL}\nworkers = 2")
    tables = json_schema()["$defs"]
    assert {"overhead", "link_rate", "compute_order", "order_file", "servers"} <= set(short_names())
    for name, path in short_names().items():
        with pytest.raises(ScenarioError) as caught:
            base.replace(**{name: {"nonsense": 1}})
        where = ".".join("a" if part == "*" else part for part in path)
        assert any(fault.loc.startswith(where) or fault.text.startswith(f"{name}=") for fault in caught.value.faults)
    assert path[-1] in tables["Run"]["properties"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["compare", "--rate", "10"], "--rate 10"),
        (["compare", "--workers", "0"], "--workers 0"),
        (["run", "--engine", "foo"], "--engine foo"),
        (["run", "--set", "run.engine=foo"], "run.engine=foo"),
    ],
)
def test_a_fault_names_the_option_that_was_typed(gradtide: Any, arguments: list[str], shown: str) -> None:
    command, *rest = arguments
    _, _, err = gradtide(command, ROOT / "scenarios" / "own-model.toml", *rest)
    assert f"--> {rest[0]} " in err
    assert f"   | {shown}\n" in err
    assert "replace()" not in err
