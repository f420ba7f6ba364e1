"""A scenario in ns-3: what is compared, what is refused, and how it ends when something is missing.

The tests that run ns-3 need it (libns3-dev); the others have a program in its place.
"""

import csv
import json
import os
import stat
import subprocess
import sys
import textwrap

import pytest

from gradtide import Scenario, ScenarioError, SimulationError, _core, check
from gradtide.scenario.core import ns3 as foreign
from gradtide.studies.check import NS3MissingError, figures, ns3

FLOWS = """
[cluster]
topology = { kind = "leaf_spine", leaves = 2, hosts_per_leaf = 2, spines = 2 }
link = { rate = "10Gbps", delay = "2us" }

[traffic.web]
flows = [
  { start = "0us", src = "h0", dst = "h2", bytes = "100kB" },
  { start = "5us", src = "h1", dst = "h3", bytes = "1MB" },
  { start = "5us", src = "h3", dst = "h0", bytes = "40kB", band = 2 },
]

[run]
engine = "packet"
duration = "20ms"
"""
JOB = """
[job.train]
model = { layers = [
  { name = "a", forward = "100us", backward = "200us", parameters = "300kB" },
  { name = "b", forward = "100us", backward = "200us", parameters = "1MB" },
] }
workers = 4
iterations = 3
schedule = { order = "priority", fusion = "0B", barrier = false }
"""


def has_ns3():
    try:
        ns3.find(None)
    except NS3MissingError:
        return False
    return True


needs_ns3 = pytest.mark.skipif(not has_ns3(), reason="ns-3 is not installed (apt-get install libns3-dev)")


@pytest.fixture
def other(tmp_path, monkeypatch):
    """A folder with something that looks like ns-3, and a compiler that makes a program of what it is told."""

    def make(program="", compiler=None):
        home = tmp_path / "ns3-home"
        (home / "include/ns3").mkdir(parents=True)
        (home / "include/ns3/core-module.h").write_text("")
        (home / "lib").mkdir()
        (home / "lib/libns3.99-core-default.so").write_text("")
        text = f"#!{sys.executable}\nimport csv, json, pathlib, sys\n{GIVEN}{textwrap.dedent(program)}"
        (tmp_path / "program").write_text(text)
        build = f"import shutil, sys; shutil.copy({str(tmp_path / 'program')!r}, sys.argv[sys.argv.index('-o') + 1])"
        (tmp_path / "c++").write_text(f"#!{sys.executable}\n{compiler or build}\n")
        for file in (tmp_path / "program", tmp_path / "c++"):
            file.chmod(file.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", str(tmp_path / "c++"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return home

    return make


GIVEN = """
given = dict(one.removeprefix("--").split("=", 1) for one in sys.argv[1:])
folder = pathlib.Path(given["in"])
flows = list(csv.DictReader((folder / "flows.csv").read_text().splitlines()))
def answer(times):
    rows = ["fct_close_ns,fct_rx_ns,conn_ns,status", *(f"{time},{time},1,YES" for time in times)]
    (folder / "fct.csv").write_text("\\n".join(rows) + "\\n")
    (folder / "summary.json").write_text(json.dumps({"packet_hops": 1, "cpu_s": 1.0}))
"""


def test_every_field_of_the_cores_input_is_in_a_table():
    """A new key that the program does not have would otherwise be left out of the comparison unsaid."""
    spec = Scenario.load("paper/gao2020-ch5").spec()
    tables = [
        (spec["run"], foreign.RUN),
        (spec["jobs"][0], foreign.JOB),
        (spec["traffic"][0], foreign.TRAFFIC),
        (spec["cluster"], foreign.CLUSTER),
    ]
    for table, rules in tables:
        known = set(rules)
        for field, value in table.items():
            inner = {f"{field}.{name}" for name in value} if isinstance(value, dict) else set()
            assert field in known or (inner and inner <= known), field


REFUSED = {
    "cluster.node": ({"node": {"gpus": 2, "scale_up": {"rate": "100Gbps"}}}, {}),
    "cluster.queue.kind": ({"queue": {"kind": "drr", "weights": [2, 1]}}, {}),
    "cluster.queue.capacity": ({"queue": {"capacity": "1MB"}}, {}),
    "cluster.transport.kind": ({"transport": {"kind": "ideal"}}, {}),
    "cluster.transport.recovery": ({"transport": {"recovery": "ns3.30"}}, {}),
    "cluster.host": ({"host": {"message": "5us"}}, {}),
    "cluster.switch_buffer": ({"switch_buffer": {"capacity": "1MB"}}, {}),
    "cluster.link.delay": ({"link": {"delay": "1500ps"}}, {}),
    "job.train.collective.kind": ({}, {"collective": {"kind": "halving_doubling"}}),
    "job.train.schedule.credit": ({}, {"schedule": {"credit": 2}}),
    "job.train.schedule.chunk": ({}, {"schedule": {"chunk": "100kB"}}),
    "job.train.compute.noise": ({}, {"compute": {"noise": 0.1}}),
    "job.train.start": ({}, {"start": "1ms"}),
    "job.train.priority": ({}, {"priority": ["high", "low"]}),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_ns3_does_not_have_is_refused_by_name(key):
    cluster, job = REFUSED[key]
    data = Scenario.from_toml(FLOWS + JOB).to_dict()
    base = {
        "job": {"train": {**data["job"]["train"], **job}},
        "cluster": {"topology": {"kind": "star", "hosts": 4}, **cluster},
        "run": {"engine": "packet"},
    }
    if "hosts" in base["job"]["train"] and "node" in cluster:
        base["job"]["train"]["hosts"] = ["h0", "h1", "h2", "h3"]
    scenario = Scenario.from_dict(base)
    with pytest.raises(ScenarioError) as caught:
        scenario.check_for_ns3()
    found = {fault["loc"]: fault for fault in caught.value.errors}
    assert found[key]["code"] == "GT091"
    assert found[key]["hint"].startswith("available: ")


def test_a_second_job_and_closed_loops_are_refused():
    text = FLOWS.replace("[traffic.web]", JOB + JOB.replace("job.train", "job.other") + "\n[traffic.web]")
    text = text.replace('topology = { kind = "leaf_spine", leaves = 2, hosts_per_leaf = 2, spines = 2 }', "")
    text = text.replace("workers = 4", "workers = 2")
    with pytest.raises(ScenarioError, match="a second job is not in the comparison"):
        Scenario.from_toml(text).check_for_ns3()


def test_the_ways_are_those_that_the_core_counts_bytes_on(tmp_path):
    """Of a flow alone: each link of its ways carries bytes, and no other one does."""
    for number in range(6):
        text = FLOWS.split("  { start")[0] + (
            '  { start = "0us", src = "h0", dst = "h2", bytes = "100kB" },\n]\n[run]\nengine = "packet"\n'
            f'duration = "20ms"\nseed = {number}\n'
        )
        scenario = Scenario.from_toml(text)
        routed = json.loads(_core.routed(json.dumps(scenario.spec())))
        [[ways]] = routed["flows"]
        names = [link["name"] for link in routed["links"]]
        from gradtide import run

        result = run(scenario)
        used = {name for name, count in zip(result.links["link"], result.links["bytes"], strict=True) if count}
        assert used == {names[link] for link in (*ways["there"], *ways["back"])}


def test_the_case_that_is_written(tmp_path):
    scenario = Scenario.from_toml(FLOWS + JOB)
    settings = ns3.write_case(scenario, tmp_path)
    tables = {file.stem: list(csv.DictReader(file.read_text().splitlines())) for file in tmp_path.glob("*.csv")}
    assert len(tables["links"]) == 2 * (4 + 4)
    for there, back in zip(tables["links"][::2], tables["links"][1::2], strict=True):
        assert (there["from"], there["to"]) == (back["to"], back["from"])
    assert [row["tos"] for row in tables["flows"]] == ["16", "16", "8"]
    for row in (*tables["flows"], *tables["ring"]):
        links = [tables["links"][int(link)] for link in row["there"].split()]
        assert [link["to"] for link in links[:-1]] == [link["from"] for link in links[1:]]
    assert [(row["forward_ns"], row["bucket"]) for row in tables["layers"]] == [("100000", "0"), ("100000", "1")]
    sent = {bucket: sum(int(row["bytes"]) for row in tables["parts"] if row["bucket"] == bucket) for bucket in "01"}
    assert sent == {"0": 6 * 300_000, "1": 6 * 1_000_000}  # 2 (N - 1) / N of it by each of 4
    assert (settings["by_priority"], settings["barrier"], settings["iterations"]) == (1, 0, 3)


def test_differences_are_told(other, tmp_path):
    home = other("answer([100000 + 1000 * number for number in range(len(flows))])")
    scenario = Scenario.from_toml(FLOWS)
    result = check(scenario, ns3=home)
    one = result.summary["flows"]
    assert (one["compared"], one["equal"], one["unfinished_in_one"]) == (3, 0, 0)
    assert "0 flows of 3 take the same time in ns-3.37" in result.summary["headline"]
    assert "This is one run, with seed 0." in result.summary["headline"]
    assert result.summary["first_difference_ms"] < 1
    assert figures(result.summary)["equal"] == 0
    result.save(tmp_path / "out")
    assert len((tmp_path / "out/flows_in_both.csv").read_text().splitlines()) == 4
    assert (tmp_path / "out/report.html").exists()


def test_what_is_unfinished_in_one_is_counted(other):
    home = other("answer([-1] * len(flows))")
    result = check(Scenario.from_toml(FLOWS), ns3=home)
    assert result.summary["flows"]["unfinished_in_one"] == 3
    assert "3 flows more end in only one of the two" in result.summary["headline"]


def test_a_program_that_fails_is_an_error_with_its_words(other):
    home = other("sys.exit('msg=no such queue')")
    with pytest.raises(SimulationError, match="ns-3 ended with an error: msg=no such queue"):
        check(Scenario.from_toml(FLOWS), ns3=home)


def test_a_program_that_cannot_be_built_is_an_error_with_the_compilers_words(other):
    home = other(compiler="import sys; sys.exit('ns3.cc:7: error: no member Route')")
    with pytest.raises(SimulationError, match=r"cannot be built .* error: no member Route; .* ns-3 3\.37"):
        check(Scenario.from_toml(FLOWS), ns3=home)


def test_it_is_built_once(other, tmp_path):
    home = other("answer([1] * len(flows))")
    built = [ns3.build(home), ns3.build(home)]
    assert built[0] == built[1]
    assert [file.name for file in (tmp_path / "cache/gradtide").iterdir()] == [built[0].name]


def test_ns3_that_is_missing_is_a_usage_error(gradtide, tmp_path):
    (tmp_path / "flows.toml").write_text(FLOWS)
    code, _, err = gradtide("check", str(tmp_path / "flows.toml"), "--ns3", str(tmp_path / "nowhere"))
    assert code == 2
    assert f"ns-3 is not in {tmp_path / 'nowhere'}; install it (on Debian: apt-get install libns3-dev g++)" in err


def test_another_simulator_is_refused(gradtide, tmp_path):
    (tmp_path / "flows.toml").write_text(FLOWS)
    code, _, err = gradtide("check", str(tmp_path / "flows.toml"), "--against", "opnet")
    assert code == 2
    assert "no simulator is called 'opnet'; there is ns3" in err


def test_a_limit_ends_the_other_program(other, tmp_path):
    home = other("pathlib.Path(given['in']).parent; import time\ntime.sleep(60)")
    (tmp_path / "flows.toml").write_text(FLOWS)
    command = [sys.executable, "-m", "gradtide", "check", "flows.toml", "--ns3", str(home), "--max-time", "2s"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    running = subprocess.run(["pgrep", "-f", str(tmp_path / "cache")], capture_output=True, text=True, check=False)
    assert running.stdout == ""


@needs_ns3
def test_flows_on_leaf_and_spine_are_equal_to_the_nanosecond():
    result = check(Scenario.from_toml(FLOWS))
    assert result.summary["headline"] == (
        "3 flows take the same time in ns-3.37, to the nanosecond. This is one run, with seed 0."
    )


@needs_ns3
@pytest.mark.parametrize("order", ["fifo", "priority"])
@pytest.mark.parametrize("barrier", [True, False])
@pytest.mark.parametrize("kind", ["star", "leaf_spine"])
def test_a_job_is_equal_to_the_nanosecond(order, barrier, kind):
    scenario = Scenario.from_toml(FLOWS + JOB).set({"job.train.schedule.order": order})
    data = scenario.to_dict()
    data["job"]["train"]["schedule"]["barrier"] = barrier
    if kind == "star":
        data["cluster"]["topology"] = {"kind": "star", "hosts": 4}
    summary = check(Scenario.from_dict(data)).summary
    assert summary["iterations"]["compared"] == summary["iterations"]["equal"] == 3
    assert summary["flows"]["compared"] == summary["flows"]["equal"] == 3


@needs_ns3
def test_the_command_says_it_in_a_table(gradtide, tmp_path):
    (tmp_path / "flows.toml").write_text(FLOWS)
    os.environ.pop("NS3", None)
    code, out, _ = gradtide("check", str(tmp_path / "flows.toml"), "--against", "ns3", "--fail-if", "equal<3")
    assert code == 0
    assert "3 flows take the same time in ns-3.37" in " ".join(out.split())
