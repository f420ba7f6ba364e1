"""How commands end: one JSON document for every outcome, exit codes, and limits."""

import json
import os

import pytest

from commands import FLOWS, NAMES, SMALL, STUDY, TRACE, TRACES, commands
from gradtide.cli.ends import EXIT_CHECK_FAILED, EXIT_CODES, EXIT_HUNG_UP, KEYS_OF_AN_ERROR, KINDS, UsageError
from gradtide.errors import CoreRefusal, LimitReached, SimulationError, TraceError
from gradtide.estimate import Limits
from specs import dag

pytestmark = [pytest.mark.linux, pytest.mark.process]


@pytest.fixture
def failure(gradtide):
    """Run the command line with `--json`; return the one document that it prints of a failure."""

    def call(*arguments):
        code, out, err = gradtide(*arguments, "--json")
        document = json.loads(out)
        assert list(document) == ["schema", "kind", "exit_code", "message", "errors"]
        assert (document["schema"], document["exit_code"]) == ("gradtide.error/1", code)
        assert KINDS[document["kind"]][0] == code
        assert code in EXIT_CODES
        assert document["message"]
        assert err
        assert all(tuple(error) == KEYS_OF_AN_ERROR for error in document["errors"])
        return document

    return call


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=NAMES)
def test_every_command_has_json(name, command):
    [option] = [param for param in command.params if "--json" in param.opts]
    assert option.help == "Print one JSON document and nothing else."


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_one_document(failure, name):
    document = failure(*name.split(), "--no-such-option")
    assert document["kind"] == "usage"
    assert [error["option"] for error in document["errors"]] == ["--no-such-option"]


def options_of(command):
    return [param for param in command.params if param.param_type_name == "option"]


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=NAMES)
def test_an_option_of_one_value_given_twice_is_refused(failure, name, command):
    for option in options_of(command):
        if option.is_flag or option.multiple:
            continue
        for first in option.opts:
            for second in option.opts:
                # With two values or with one, and before anything is read.
                document = failure(*name.split(), first, "1", second, "2")
                longest = max(option.opts, key=len)
                assert (document["kind"], document["exit_code"]) == ("usage", 2)
                assert [error["option"] for error in document["errors"]] == [longest]
                assert longest in document["message"]


REPEATABLE = {"--set", "--fail-if", "--schedule", "--parallel"}


def test_flags_and_options_that_collect_values_may_be_repeated(gradtide, in_folder):
    collecting = {option.opts[-1] for _, command in commands() for option in options_of(command) if option.multiple}
    assert collecting >= REPEATABLE
    twice = ["--json", "--json", "--quiet", "-q", "--set", "run.seed=1", "--set", "job.a.workers=3"]
    twice += ["--schedule", "fifo", "--schedule", "priority", "--fail-if", "rho<0", "--fail-if", "rho>1e9"]
    code, out, _ = gradtide("compare", "small.toml", *twice)
    assert (code, len(json.loads(out)["rows"])) == (0, 2)


BAD = {
    "run": ["run", "none.toml"],
    "compare": ["compare", "bad.toml"],
    "check": ["check", "bad.toml"],
    "sweep": ["sweep", "none.toml"],
    "sweep merge": ["sweep", "merge", "none.toml"],
    "sweep list": ["sweep", "list", "none.store", "--seed", "first"],
    "collectives": ["collectives", "bad.toml"],
    "tenants": ["tenants", "bad.toml"],
    "tenants map": ["tenants", "map", "bad.toml"],
    "tenants policies": ["tenants", "policies", "bad.toml"],
    "tenants lp": ["tenants", "lp", "bad.toml"],
    "buy": ["buy", "bad.toml"],
    "plan": ["plan", "bad.toml"],
    "calibrate": ["calibrate", "bad.json"],
    "demo": ["demo", "extra"],
    "reproduce": ["reproduce", "gao2020/ch9"],
    "profile": ["profile", "none.py:make", "--input", "1x2"],
    "emulate": ["emulate", "bad.toml"],
    "bursts": ["bursts", "localhost", "--bytes", "7B"],
    "bursts receive": ["bursts", "receive", "--count", "0"],
    "bursts thresholds": ["bursts", "thresholds", "10", "1ms"],
    "report": ["report", "none"],
    "presets": ["presets", "modell"],
    "order": ["order", "bad.json"],
    "convert": ["convert", "bad.json"],
    "schema": ["schema", "extra"],
    "explain": ["explain", "GT999"],
    "doctor": ["doctor", "extra"],
}
MISSING = [name for name, command in commands() if any(param.required for param in command.params)]
REFUSED = {
    "the memory of a run": ["run", "small.toml", "--max-memory", "1B"],
    "the time of a comparison": ["compare", "small.toml", "--max-time", "0.0001s"],
    "the memory of a collective": ["collectives", "small.toml", "--max-memory", "1B"],
    "the memory of tenants": ["tenants", "flows.toml", "--max-memory", "1B"],
    "the memory of a map": ["tenants", "map", "paper/gao2020-ch5", "--max-memory", "1B"],
    "the memory of policies": ["tenants", "policies", "flows.toml", "--max-memory", "1B"],
    "the memory of a programme": ["tenants", "lp", "flows.toml", "--max-memory", "1B"],
    "the memory of an offer": ["buy", "alexnet", "--max-memory", "1B"],
    "the memory of a plan": ["plan", "small.toml", "--max-memory", "1B"],
    "the memory of a demo": ["demo", "--max-memory", "1B"],
    "the memory of a paper": ["reproduce", "gao2020/ch4", "--max-memory", "1B"],
    "a limit that is no limit": ["run", "small.toml", "--max-time", "soon"],
    "a foreign folder of a run": ["run", "small.toml", "-o", "foreign"],
    "a foreign folder of a study": ["compare", "small.toml", "-o", "foreign"],
    "a foreign folder of a report": ["report", str(TRACES / "rank0.pt.trace.json.gz"), "-o", "foreign"],
    "a plan into a file that is a folder": ["plan", "small.toml", "-o", "small.toml/plan.json"],
    "an option without effect": ["order", "tictac_alexnet_v2", "--scheduler", "tic", "--ties", "id"],
    "a conversion into nowhere": ["convert", str(TRACES / "rank0.pt.trace.json.gz"), "none/out.json"],
    "a quick figure": ["reproduce", "gao2020/ch4", "--quick"],
    "a quick list": ["reproduce", "--quick", "--list"],
    "the list of one paper": ["reproduce", "gao2020/ch4", "--list"],
}


@pytest.fixture
def in_folder(monkeypatch, tmp_path):
    """Stand in a folder with a good scenario, a bad one, and somebody else's folder."""
    (tmp_path / "bad.toml").write_text('[job.a]\nmodel = "resnet5"\nworkers = 0\n')
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "study.toml").write_text(STUDY.format(name="small.toml"))
    (tmp_path / "dag.json").write_text(dag(3000, 40))
    (tmp_path / "flows.toml").write_text(FLOWS)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/thesis.txt").write_text("years of work")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("name", NAMES)
def test_a_bad_file_or_argument_is_one_document(failure, name):
    document = failure(*BAD[name])
    assert document["exit_code"] == 2
    if BAD[name][-1] == "bad.toml":
        places = [(error["code"], error["file"], error["line"], error["column"]) for error in document["errors"]]
        assert places == [("GT030", "bad.toml", 2, 9), ("GT014", "bad.toml", 3, 11)]


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_argument_is_one_document(failure, name):
    assert failure(*name.split())["message"].startswith("Missing argument")


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_is_one_document(failure, what):
    document = failure(*REFUSED[what])
    assert document["exit_code"] == 2
    if "--max-memory" in REFUSED[what]:
        assert [error["code"] for error in document["errors"]] == ["GT053"]


def test_a_value_from_an_option_names_the_option(failure):
    [error] = failure("run", "paper/gao2020-ch4", "--set", "run.sed=1")["errors"]
    assert (error["option"], error["column"]) == ("--set", 9)
    [error] = failure("compare", "paper/gao2020-ch4", "--rate", "10")["errors"]
    assert error["option"] == "--rate"
    for arguments, option in (
        (["run", "paper/gao2020-ch4", "--fail-if", "tme>1"], "--fail-if"),
        (["run", "paper/gao2020-ch4", "--seed", "x"], "--seed"),
        (["run", "paper/gao2020-ch4", "--seed"], "--seed"),
        (["run", "paper/gao2020-ch4", "-o", "/proc/version"], "--output"),
    ):
        [error] = failure(*arguments)["errors"]
        assert error["option"] == option


class _Odd(BaseException):
    """What no `except Exception` catches, as a panic of the core."""


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (KeyboardInterrupt(), "interrupted", 130),
        (SimulationError("a waits for b"), "failed", 3),
        (CoreRefusal("too long"), "refused", 2),
        (TraceError("cut off"), "file", 2),
        (UsageError("--set x: write KEY=VALUE"), "usage", 2),
        (ZeroDivisionError("division by zero"), "bug", 70),
        (MemoryError(), "bug", 70),
        (RecursionError("too deep"), "bug", 70),
        (_Odd("a panic"), "bug", 70),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_every_exception_is_one_document(failure, monkeypatch, error, kind, code):
    def load(name):
        raise error

    monkeypatch.setattr("gradtide.scenario.Scenario.load", load)
    document = failure("tenants", "paper/gao2020-ch5")
    assert (document["kind"], document["exit_code"]) == (kind, code)


@pytest.mark.parametrize("command", [["run", "paper/gao2020-ch4"], ["report", TRACES / "rank0.pt.trace.json.gz"]])
def test_a_result_that_cannot_be_saved_is_one_document(failure, monkeypatch, tmp_path, command):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gradtide.report.write_report", full)
    assert failure(*command, "-o", tmp_path / "out")["kind"] in ("failed", "bug")


@pytest.mark.torch
@pytest.mark.parametrize("where", ["sys.exit(0)", "def make():\n    sys.exit(0)"])
def test_a_module_of_the_user_that_exits_is_one_document(failure, tmp_path, where):
    pytest.importorskip("torch")
    (tmp_path / "leaves.py").write_text(f"import sys\n{where}\n")
    assert "SystemExit" in failure("profile", f"{tmp_path}/leaves.py:make", "--input", "1x2")["message"]


@pytest.mark.torch
def test_what_a_module_of_the_user_prints_goes_to_stderr(gradtide, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "loud.py").write_text("import torch\nprint('loud')\ndef make():\n    return torch.nn.Linear(2, 2)\n")
    code, out, err = gradtide("profile", f"{tmp_path}/loud.py:make", "--input", "1x2", "--json")
    assert (code, json.loads(out)["schema"], "loud" in err) == (0, "gradtide.model/1", True)


@pytest.mark.parametrize(
    ("arguments", "schema"),
    [
        (["reproduce", "--list"], "gradtide.parts/1"),
        (["convert", "--formats"], "gradtide.formats/1"),
        (["explain", "GT012"], "gradtide.explain/1"),
        (["doctor"], "gradtide.doctor/1"),
        (["presets"], "gradtide.presets/1"),
        (["order", "tictac_alexnet_v2", "--scheduler", "tic"], "gradtide.order/1"),
        (["run", "paper/gao2020-ch4", "--estimate"], "gradtide.estimate/1"),
    ],
)
def test_what_lists_or_explains_is_one_document(gradtide, arguments, schema):
    code, out, _ = gradtide(*arguments, "--json")
    assert (code, json.loads(out)["schema"]) == (0, schema)


def test_a_failed_check_is_the_document_of_the_result(gradtide):
    code, out, err = gradtide("run", "paper/gao2020-ch4", "--fail-if", "rho>0", "--json")
    assert (code, json.loads(out)["schema"], "check failed" in err) == (1, "gradtide.run/1", True)


def test_an_interrupted_study_is_the_document_of_what_is_known(gradtide, monkeypatch):
    from gradtide.studies import run

    whole, runs = run.simulate, []

    def stop(*arguments):
        runs.append(arguments)
        if len(runs) > 4:
            raise KeyboardInterrupt
        return whole(*arguments)

    monkeypatch.setattr(run, "simulate", stop)
    code, out, _ = gradtide("compare", "paper/gao2020-ch4", "--rate", "1Gbps,2Gbps", "-j", "1", "--json")
    assert (code, json.loads(out)["complete"]) == (130, False)


def test_every_end_has_its_exit_code():
    assert {code for code, _ in KINDS.values()} | {0, EXIT_CHECK_FAILED, EXIT_HUNG_UP} == set(EXIT_CODES)


LIMITED = [name for name, command in commands() if any("--max-time" in param.opts for param in command.params)]
AT_LIMIT = {
    "run": ["run", "small.toml", "-o", "out"],
    "compare": ["compare", "small.toml", "-o", "out"],
    "sweep": ["sweep", "study.toml", "-o", "out", "--store", "out.incomplete/store"],
    "sweep merge": ["sweep", "merge", "study.toml", "-o", "out", "--store", "out.incomplete/store"],
    "collectives": ["collectives", "small.toml", "-o", "out"],
    "tenants": ["tenants", "flows.toml", "-o", "out"],
    "tenants map": ["tenants", "map", "paper/gao2020-ch5", "-o", "out"],
    "tenants policies": ["tenants", "policies", "flows.toml", "-o", "out"],
    "tenants lp": ["tenants", "lp", "flows.toml", "-o", "out"],
    "buy": ["buy", "alexnet", "-o", "out"],
    "plan": ["plan", "small.toml", "-o", "out"],
    "demo": ["demo", "-o", "out"],
    "reproduce": ["reproduce", "gao2020/ch4", "-o", "out"],
    "reproduce all": ["reproduce", "-o", "out"],
    "report": ["report", TRACE, "-o", "out"],
    "order": ["order", "dag.json"],
    "convert": ["convert", TRACE, "out.json"],
}


@pytest.fixture
def watches(monkeypatch):
    """Let every limit be reached when it is looked at for the first time; return those that were made."""
    made = []

    class Reached:
        def __init__(self):
            made.append(self)

        def check(self):
            raise LimitReached("time", 1.0, 2.0)

    monkeypatch.setattr(Limits, "watch", Reached)
    return made


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize("name", AT_LIMIT)
def test_a_command_at_its_limit_is_one_document_and_leaves_nothing_half_written(gradtide, watches, name):
    given = set(os.listdir())
    code, out, err = gradtide(*AT_LIMIT[name], "--json")
    assert (code, err.count("error[GT054]: stopped after 2 s")) == (3, 1)
    document = json.loads(out)
    if document["schema"] == "gradtide.error/1":
        assert (document["kind"], document["exit_code"]) == ("limit", 3)
        assert [(error["code"], error["option"]) for error in document["errors"]] == [("GT054", "--max-time")]
    else:
        # What is known of a study by then.
        assert document["complete"] is False
    # What is finished is kept, and nothing else is there.
    assert set(os.listdir()) - given <= {"out.incomplete"}
    assert len(watches) == 1, "all of a command shares one deadline"


def test_what_is_no_work_of_ours_has_no_limit():
    free = {"profile", "bursts", "bursts receive", "bursts thresholds", "presets", "schema", "explain", "doctor"}
    free |= {"sweep list", "emulate"}
    assert set(NAMES) - set(LIMITED) == free
    # It computes in Python alone, where the thread looks that hears signals.
    # And `check` needs ns-3, which test_check.py has something in place of.
    assert set(LIMITED) - set(AT_LIMIT) == {"calibrate", "check"}
