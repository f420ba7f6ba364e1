"""No name that a user can give makes a terminal do anything, or makes a line of its own."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradtide import cli
from gradtide.cli import printing
from gradtide.words import shown

EVIL = "a\x1b[2J\x1b]0;title\x07\x9b31m\u202eb\u2066\u200f\x7f\x00\r\nforged: all is well\n\u2028\ud800z"
IN_A_FILE_NAME = EVIL.replace("\x00", "").replace("\ud800", "\udcff").replace("/", "")

TRACES = Path(__file__).parent.parent / "scenarios" / "traces"


@pytest.fixture
def gradtide(gradtide):
    """Run the command line in this process, look at everything that it prints, and return (exit code, all of it)."""

    def call(*arguments):
        code, out, err = gradtide(*arguments)
        for line in (out + err).split("\n"):
            assert line.isprintable(), f"{line!r} of {arguments}"
            assert not line.startswith("forged"), f"a line of its own in {arguments}: {out + err}"
        return code, out + err

    return call


def toml(text: str) -> str:
    """Return a text as a TOML string."""
    return json.dumps(text).replace("\\ud800", "").replace("\\u007f", "\\u007F")


SCENARIOS = {
    "job": "[job.{evil}]\nmodel = 'resnet50'\nworkers = 2",
    "tenant": "[job.a]\nmodel = 'resnet50'\nworkers = 2\n[traffic.{evil}]\nincast = {{}}",
    "key": "[job.a]\nmodel = 'resnet50'\nworkers = 2\n{evil} = 1",
    "model": "[job.a]\nmodel = {evil}\nworkers = 2",
    "file of a model": "[job.a]\nmodel = {file}\nworkers = 2",
    "device": "[job.a]\nmodel = 'resnet50'\nworkers = 2\ncompute = {{ device = {evil} }}",
    "host": "[job.a]\nmodel = 'resnet50'\nworkers = 2\nhosts = [{evil}, 'h1']",
    "link": "[job.a]\nmodel = 'resnet50'\nworkers = 2\ncluster.topology = {{ links = [{{ a = {evil}, b = 'h0' }}] }}",
    "collective": "[job.a]\nmodel = 'resnet50'\nworkers = 2\ncollective = {{ kind = {evil} }}",
    "quantity": "[job.a]\nmodel = 'resnet50'\nworkers = 2\n[cluster.link]\nrate = {evil}",
    "layer": "[job.a]\nworkers = 2\nmodel = {{ layers = [{{ name = {evil}, forward = '1ms' }}] }}",
    "layer twice": "[job.a]\nworkers = 2\nmodel = {{ layers = [{{ name = {evil} }}, {{ name = {evil} }}] }}",
    "order": "[job.a]\nmodel = 'resnet50'\nworkers = 2\nschedule = {{ ranking = [{evil}] }}",
    "text that is no TOML": "[job.a]\nmodel = {raw}",
}


@pytest.mark.parametrize("what", SCENARIOS)
def test_what_a_scenario_names_never_commands_the_terminal(gradtide, tmp_path, what):
    path = tmp_path / "s.toml"
    raw = EVIL.replace("\ud800", "")
    path.write_text(SCENARIOS[what].format(evil=toml(EVIL), file=toml("./" + EVIL), raw=raw))
    assert gradtide("run", path)[0] == 2
    assert gradtide("run", path, "--json")[0] == 2


COMMAND_LINES = [
    ["run", EVIL],
    [EVIL],
    ["run", "paper/gao2020-ch4", f"--{EVIL}"],
    ["run", "paper/gao2020-ch4", "--set", f"{EVIL}=1"],
    ["run", "paper/gao2020-ch4", "--set", f"run.seed={EVIL}"],
    ["run", "paper/gao2020-ch4", "--seed", EVIL],
    ["run", "paper/gao2020-ch4", "--engine", EVIL],
    ["run", "paper/gao2020-ch4", "--fail-if", EVIL],
    ["run", "paper/gao2020-ch4", "--fail-if", f"{EVIL}>1"],
    ["run", "paper/gao2020-ch4", "--max-time", EVIL],
    ["run", "paper/gao2020-ch4", "--plan", IN_A_FILE_NAME],
    ["run", "resnet50", "--cluster", EVIL],
    ["compare", "paper/gao2020-ch4", "--rate", EVIL],
    ["compare", "paper/gao2020-ch4", "--schedule", EVIL],
    ["compare", "paper/gao2020-ch4", "--workers", EVIL],
    ["compare", "paper/gao2020-ch4", "--model", EVIL],
    ["tenants", "paper/gao2020-ch5", "--job", EVIL],
    ["tenants", "paper/gao2020-ch5", "--classes", EVIL],
    ["tenants", "map", "paper/gao2020-ch5", "--job-loads", EVIL],
    ["tenants", "policies", "paper/gao2020-ch5", "--policy", EVIL],
    ["tenants", "lp", "paper/gao2020-ch5", "--give", EVIL],
    ["buy", "alexnet", "--fabrics", EVIL],
    ["buy", "alexnet", "--prices", IN_A_FILE_NAME],
    ["plan", "alexnet", "--level", EVIL],
    ["plan", "alexnet", "-o", f"/proc/{IN_A_FILE_NAME}"],
    ["collectives", "paper/zhang2017", "--sizes", EVIL],
    ["reproduce", EVIL],
    ["profile", EVIL],
    ["report", IN_A_FILE_NAME],
    ["presets", EVIL],
    ["order", EVIL],
    ["order", "tictac_alexnet_v2", "--scheduler", EVIL],
    ["convert", IN_A_FILE_NAME],
    ["convert", __file__, "--from", EVIL],
    ["explain", EVIL],
]


@pytest.mark.parametrize("arguments", COMMAND_LINES, ids=lambda line: " ".join(line).replace(EVIL, "EVIL")[:60])
def test_what_is_typed_never_commands_the_terminal(gradtide, arguments):
    assert gradtide(*arguments)[0] == 2 + ("/proc" in arguments[-1])
    assert gradtide(*arguments, "--json")[0] == 2 + ("/proc" in arguments[-1])


def test_an_evil_folder_and_file_are_named_and_written(gradtide, tmp_path):
    folder = tmp_path / IN_A_FILE_NAME
    folder.mkdir()
    scenario = folder / f"{IN_A_FILE_NAME}.toml"
    scenario.write_text('[job.a]\nmodel = "alexnet"\nworkers = 2\n')
    code, text = gradtide("run", scenario, "-o", folder / IN_A_FILE_NAME)
    assert (code, "report.html" in text) == (0, True)
    assert gradtide("report", folder / IN_A_FILE_NAME)[0] == 0
    assert gradtide("run", scenario, "-o", folder / IN_A_FILE_NAME)[0] == 0  # says what it replaces
    (folder / IN_A_FILE_NAME / "summary.json").write_text(json.dumps({"schema": EVIL, "headline": EVIL}))
    assert gradtide("report", folder / IN_A_FILE_NAME)[0] == 2


def test_an_evil_trace_is_reported(gradtide, tmp_path):
    paths = []
    for path in sorted(TRACES.glob("*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        for event in trace["traceEvents"]:
            if event.get("cat") in ("cpu_op", "user_annotation") and not event["name"].startswith("Prof"):
                event["name"] += EVIL.replace("\ud800", "")
            for key, value in event.get("args", {}).items():
                if key in ("Process Group Name", "Process Group Description", "Collective name"):
                    event["args"][key] = value + EVIL.replace("\ud800", "")
        paths.append(tmp_path / path.name)
        paths[-1].write_bytes(gzip.compress(json.dumps(trace).encode()))
    for command in (["report", *paths], ["convert", paths[0]], ["convert", paths[0], tmp_path / "out.json"]):
        gradtide(*command)
        gradtide(*command, "--json")


def test_evil_ops_of_a_dag_and_layers_of_a_table_are_shown(gradtide, tmp_path):
    ops = [
        {"id": 0, "kind": "recv", "inputs": [], "time": 5, "name": EVIL[:-2]},
        {"id": 1, "kind": "comp", "inputs": [0], "time": 5, "name": "b"},
    ]
    (tmp_path / "dag.json").write_text(json.dumps({"ops": ops, "target": 1, "name": EVIL[:-2]}))
    gradtide("order", tmp_path / "dag.json")
    (tmp_path / "m.csv").write_text(f'layer,forward_us,backward_us,parameter_bytes\n"{EVIL[:-2]}",1,2,{EVIL[:-2]}\n')
    (tmp_path / "m.json").write_text(
        json.dumps({"schema": "gradtide.model/1", "name": EVIL[:-2], "layers": [EVIL[:-2]]})
    )
    (tmp_path / "plan.json").write_text(json.dumps({"schema": "gradtide.plan/1", "level": EVIL[:-2], EVIL[:-2]: 1}))
    assert gradtide("run", tmp_path / "m.csv")[0] == 2
    for model in ("m.csv", "m.json"):
        (tmp_path / "s.toml").write_text(f'[job.a]\nmodel = "./{model}"\nworkers = 2\n')
        assert gradtide("run", tmp_path / "s.toml")[0] == 2
    assert gradtide("run", "paper/gao2020-ch4", "--plan", tmp_path / "plan.json")[0] == 2


def test_the_traceback_of_a_bug_never_commands_the_terminal(gradtide, monkeypatch):
    def broken(name):
        raise RuntimeError(EVIL)

    monkeypatch.setattr("gradtide.scenario.Scenario.load", broken)
    code, text = gradtide("tenants", "paper/gao2020-ch5")
    assert (code, "RuntimeError: a␛[2J" in text) == (70, True)


def test_tables_texts_and_progress_show_each_character_in_one_place(capsys):
    printing.print_table(["name", EVIL], [[EVIL, EVIL], ["b", 2]])
    printing.say("", EVIL, EVIL)
    printing.put(EVIL)
    printing.talk(EVIL, "b")
    out, err = capsys.readouterr()
    assert all(line.isprintable() for line in (out + err).split("\n"))
    assert err.count("\n") == 2
    assert "forged" not in {line.strip()[:6] for line in (out + err).split("\n")}


@pytest.mark.parametrize("arguments", [["presets"], ["run", "--help"], ["run", "漢"]])
def test_a_terminal_that_knows_few_characters_is_no_bug(arguments):
    command = [sys.executable, "-m", "gradtide", *arguments]
    few = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=few, capture_output=True, text=True, encoding="utf-8", check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (2 if "漢" in arguments else 0, False)


def test_every_unprintable_character_has_one_visible_one():
    for number in range(0x11000):
        assert len(shown(chr(number))) == 1
        assert shown(chr(number)).isprintable()
    assert shown("\x1b\n\t\x7f\x9b\u202e\ud800\u00a0é漢") == "␛␊ ␡��� é漢"


def test_only_one_module_of_the_command_prints():
    for path in Path(cli.__file__).parent.glob("*.py"):
        found = re.findall(r"\bprint\(|\bsys\.std(?:out|err)\.write|typer\.(?:echo|secho)|Console\(", path.read_text())
        assert not found or path.name in ("printing.py", "progress.py"), f"{path.name}: {found}"
