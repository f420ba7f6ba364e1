"""Every study ends in one answer: headline, premises, candidates, uncertainty, and how to have it again."""

import html
import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

import gradtide as gt
from gradtide import Scenario, cli, words
from gradtide.answer import KEYS, Answer, Candidate, Feasibility, ranked
from gradtide.answer.premises import OPTIONS, change_of, premises_of
from gradtide.cli.options import Changes, Training, exact_command, with_options
from gradtide.scenario.keys import short_names

STEP = """\
layer,forward_us,backward_us,parameter_bytes
conv,4540,9095,27621056
fc6,610,1240,205537280
fc7,120,250,67125248
fc8,40,85,16388000
"""

BESIDE = """\
[job.train]
model = { kind = "thesis", layers = 4, size = "1MB", time = "10ms" }
workers = 4

[cluster]
link = { rate = "1Gbps", delay = "10us" }
topology = { kind = "star", hosts = 4 }

[traffic.web]
sizes = "web-search"
arrivals = { rate = "30/s" }

[run]
engine = "packet"
duration = "100ms"
"""

SWEEP = """\
[sweep]
scenario = "beside.toml"

[sweep.grid]
"cluster.link.rate" = ["1Gbps", "2Gbps"]
"""

STUDIES = {
    "run": ["run", "step.csv", "--cluster", "ethernet-25g/4"],
    "run beside flows": ["run", "beside.toml"],
    "compare": ["compare", "step.csv", "--cluster", "ethernet-25g/4"],
    "meshes": ["compare", "llama3-8b", "--seq", "4096", "--cluster", "h100-hgx/1", "--parallel", "fsdp=8"],
    "plan": ["plan", "step.csv", "--cluster", "ethernet-25g/4"],
    "sweep": ["sweep", "study.toml"],
    "buy": ["buy", "paper/gao2020-ch4", "--fabrics", "star"],
    "tenants": ["tenants", "beside.toml"],
    "collectives": ["collectives", "paper/gao2020-ch4", "--sizes", "1MB"],
    "order": ["order", "dag.json"],
    "reproduce": ["reproduce", "gao2020/ch4/4.7"],
}
"""A small question of every study, by what it is."""

DAG = {
    "ops": [
        {"id": 0, "kind": "recv", "inputs": [], "time": 60, "name": "fc"},
        {"id": 1, "kind": "recv", "inputs": [], "time": 1, "name": "w"},
        {"id": 2, "kind": "comp", "inputs": [0, 1], "time": 4, "name": "out"},
    ],
    "target": 2,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the files of the questions into a folder of their own."""
    files = {"step.csv": STEP, "beside.toml": BESIDE, "study.toml": SWEEP, "dag.json": json.dumps(DAG)}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(gradtide: Any, *arguments: str) -> dict[str, Any]:
    """Return the document of a command."""
    code, out, err = gradtide(*arguments, "--json")
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.parametrize("study", STUDIES)
def test_every_study_ends_in_an_answer(study: str, gradtide: Any, here: Path) -> None:
    document = asked(gradtide, *STUDIES[study])
    assert set(KEYS) <= set(document)
    answer = Answer.of(document)
    assert answer.to_dict() == {key: document[key] for key in KEYS}
    assert answer.headline
    assert answer.premises
    assert answer.uncertainty["sentence"]
    assert answer.again.command == exact_command(STUDIES[study])


@pytest.mark.parametrize("study", ["run", "compare", "meshes", "plan", "sweep", "buy", "collectives"])
def test_terminal_json_and_report_say_the_same(study: str, gradtide: Any, here: Path) -> None:
    document = asked(gradtide, *STUDIES[study])
    code, out, _ = gradtide(*STUDIES[study], "-o", here / "out")
    assert code == 0
    for line in words.answer_lines(document):
        assert line in out
    page = html.unescape((here / "out" / "report.html").read_text())
    written = json.loads((here / "out" / "summary.json").read_text())
    assert written["premises"] == document["premises"]
    for premise in document["premises"]:
        assert premise["value"][:40] in page


def test_a_notebook_shows_the_premises(here: Path) -> None:
    for result in (gt.run("paper/gao2020-ch4"), gt.compare("paper/gao2020-ch4", schedules=["fifo", "priority"])):
        shown = html.unescape(result._repr_html_())
        assert result.answer.premises
        assert all(one.value in shown for one in result.answer.premises)


def test_an_unstated_premise_names_an_option_that_states_it(gradtide: Any, here: Path) -> None:
    (here / "bare.toml").write_text('[job.train]\nmodel = "resnet50"\nworkers = 4\n')
    scenario = Scenario.load("bare.toml")
    assumed = [one for one in premises_of(scenario) if not one.stated]
    assert {"device", "mini-batch", "link rate", "engine"} <= {one.name for one in assumed}
    taken = {word for word in gradtide("run", "--help")[1].split() if word.startswith("--")}
    for one in assumed:
        option, _, key = one.change.partition(" ")
        assert option in taken, one
        if option == "--set":
            # What is set to the value that was assumed is stated, and changes nothing.
            path = key.partition("=")[0]
            value: Any = scenario.to_dict()
            for part in path.split("."):
                value = value[part]
            again = scenario.set({path: value})
            assert again == scenario
            assert again.is_stated(path)


def options_of_commands() -> dict[str, set[str]]:
    """Return the names of all options of every command that simulates, by the name of the command."""
    inner = {f"tenants {name}": one for name, one in cli.SUBCOMMANDS["tenants"].items()}
    inner["sweep merge"] = cli.SUBCOMMANDS["sweep"]["merge"]
    names = ("run", "compare", "sweep", "collectives", "tenants", "buy", "plan", "check", "demo", "reproduce")
    found = {}
    for name, function in ({one: cli.COMMANDS[one] for one in names} | inner).items():
        command = typer.Typer()
        command.command()(with_options(function))
        found[name] = {option for param in typer.main.get_command(command).params for option in param.opts}
    return found


def test_every_command_has_the_options_that_its_answers_suggest() -> None:
    for command, taken in options_of_commands().items():
        for key in (*OPTIONS, "cluster.link.delay", "job.train.collective.group"):
            whole = key if key.startswith(("cluster.", "run.", "job.")) else f"job.train.{key}"
            suggested = change_of(whole, command).partition(" ")[0]
            assert suggested in taken or (suggested == "" and "--set" not in taken), (command, key, suggested)


def test_a_suggestion_is_the_option_of_its_key_and_not_set() -> None:
    """Each option of `run` that sets one key by its short name is in the table of suggestions."""
    paths = {name: ".".join(map(str, path)).removeprefix("job.*.") for name, path in short_names().items()}
    own = {"rate": "cluster.link.rate", "collective": "collective.kind", "schedule": "schedule.order"}
    for field in (*fields(Training), *fields(Changes)):
        key = own.get(field.name) or paths.get(field.name)
        if key is not None:
            assert OPTIONS[key] == f"--{field.name.replace('_', '-')}"
    # An option of several jobs changes them all; a premise is that of one job.
    assert change_of("job.a.workers", "run", is_shared=True) == "--set job.a.workers=…"


def test_an_option_states_the_premise_that_suggests_it(gradtide: Any, here: Path) -> None:
    values = {
        "--device": "A100", "--batch": 16, "--collective": "tree", "--schedule": "priority",
        "--cluster": "ethernet-25g/4", "--rate": "25Gbps", "--engine": "fluid", "--workers": 4,
    }  # fmt: skip
    premises = asked(gradtide, "run", "resnet50")["premises"]
    suggested = {
        one["key"]: one["change"] for one in premises if not one["stated"] and not one["change"].startswith("--set")
    }
    assert len(suggested) >= 6
    for key, change in suggested.items():
        changed = asked(gradtide, "run", "resnet50", change, values[change])["premises"]
        assert next(one for one in changed if one["key"] == key)["stated"], change


def test_a_run_speaks_of_the_rate_that_was_asked_about(gradtide: Any, here: Path) -> None:
    document = asked(gradtide, *STUDIES["run"])
    rate = next(one["value"] for one in document["premises"] if one["name"] == "link rate")
    assert rate == "25 Gbit/s"
    before_ending, _, _ = document["headline"].partition("; from ")
    named = [part for part in before_ending.split(",")[0].split(" at ") if "bit/s" in part]
    assert all("25 Gbit/s" in part for part in named)
    assert "100 Gbit/s" not in before_ending
    assert "200 Gbit/s" not in before_ending


def test_a_run_says_that_all_machines_are_slower_than_one(gradtide: Any, here: Path) -> None:
    document = asked(gradtide, *STUDIES["run"])
    speed_up = document["jobs"]["train"]["speed_up"]
    assert speed_up < 1
    assert f"{1 / speed_up:.2g} times" in document["headline"]
    faster = asked(gradtide, "run", "step.csv", "--cluster", "ethernet-100g/4")
    assert faster["jobs"]["train"]["speed_up"] > 1
    assert "slower than one" not in faster["headline"]


def test_a_bound_has_no_rank_and_is_never_advice(gradtide: Any, here: Path) -> None:
    document = asked(gradtide, "compare", "step.csv", "--cluster", "ethernet-25g/4", "--schedule", "fifo+barrier",
                     "--schedule", "priority", "--schedule", "optimal")  # fmt: skip
    bound = next(one for one in document["candidates"] if one["name"] == "optimal")
    assert bound["is_bound"]
    assert bound["rank"] is None
    assert "optimal" not in document["headline"]
    best = next(one for one in document["candidates"] if one["rank"] == 1)
    assert best["name"] == "priority without barrier"


def test_compare_and_plan_give_the_same_advice_about_one_file(gradtide: Any, here: Path) -> None:
    compared = asked(gradtide, *STUDIES["compare"])
    planned = asked(gradtide, *STUDIES["plan"])
    can = [one for one in compared["candidates"] if one["runs_on"] and one["rank"]]
    assert [one["name"] for one in can] == ["FIFO with barrier"]
    assert planned["plan"]["level"] == "none"


def test_a_candidate_says_why_nothing_carries_it_out(gradtide: Any, here: Path) -> None:
    for one in asked(gradtide, *STUDIES["compare"])["candidates"]:
        assert one["is_bound"] or bool(one["runs_on"]) != bool(one["why_not"])


def test_the_command_of_an_answer_gives_it_again(gradtide: Any, here: Path) -> None:
    first = asked(gradtide, *STUDIES["compare"], "-j", "1", "-q")
    _, *arguments = shlex.split(first["again"]["command"])
    again = asked(gradtide, *arguments)
    assert again["rows"] == first["rows"]
    assert {key: again[key] for key in KEYS} == {key: first[key] for key in KEYS}


def test_the_scenario_beside_a_report_gives_the_run_again(gradtide: Any, here: Path) -> None:
    gradtide(*STUDIES["run"], "-o", "out")
    first = json.loads(Path("out/summary.json").read_text())
    assert first["again"] == {"command": None, "scenario": "scenario.resolved.toml"}
    again = asked(gradtide, "run", f"out/{first['again']['scenario']}")
    assert again["jobs"] == first["jobs"]
    assert "gradtide run scenario.resolved.toml" in Path("out/report.html").read_text()


@pytest.mark.parametrize("name", ["meshes", "buy", "sweep"])
def test_a_report_names_the_exact_command(name: str, gradtide: Any, here: Path) -> None:
    gradtide(*STUDIES[name], "-o", "out")
    page = Path("out/report.html").read_text()
    assert shlex.join(["gradtide", *STUDIES[name]]) in page
    assert "MODEL" not in page
    assert "MESH" not in page


def test_options_that_change_no_result_are_not_named() -> None:
    given = ["run", "a b.toml", "-o", "out", "--jobs=4", "--json", "--seed", "3", "--store", "x.db", "-q"]
    assert exact_command(given) == "gradtide run 'a b.toml' --seed 3"


VERDICTS = st.sampled_from(["fits", "does not fit", "too close to call", "not checked"])
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        st.text(max_size=3),
        st.none() | st.floats(0, 100),
        st.builds(Feasibility, VERDICTS),
        refused=st.sampled_from(["", "failed"]),
        is_bound=st.booleans(),
        group=st.sampled_from(["", "a", "b"]),
    ),
    max_size=8,
)


@settings(derandomize=True)
@given(CANDIDATES, st.booleans())
def test_only_what_is_feasible_is_ranked_and_the_best_is_first(given_ones: list[Candidate], most: bool) -> None:
    found = ranked(given_ones, most=most)
    assert len(found) == len(given_ones)
    for group in {one.group for one in found}:
        mine = [one for one in found if one.group == group]
        feasible = [one for one in mine if one.is_feasible]
        assert [one.rank for one in feasible] == list(range(1, len(feasible) + 1))
        assert all(one.rank is None for one in mine if not one.is_feasible)
        figures = [one.figure for one in feasible]
        assert figures == sorted(figures, key=lambda figure: figure or 0.0, reverse=most)
        assert not any(one.is_bound or one.refused or one.feasibility.verdict == "does not fit" for one in feasible)
