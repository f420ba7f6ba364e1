"""How commands end: one JSON document for every outcome, exit codes, and signals at any moment."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradtide import cli, signals
from gradtide.cli.ends import EXIT_CHECK_FAILED, EXIT_CODES, EXIT_HUNG_UP, KEYS_OF_AN_ERROR, KINDS, UsageError
from gradtide.errors import CoreRefusal, LimitReached, SimulationError, TraceError
from gradtide.estimate import Limits
from specs import dag

pytestmark = [pytest.mark.linux, pytest.mark.process]

TRACES = Path(__file__).parent.parent / "scenarios" / "traces"


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


def commands():
    """Return every command with its name, as in `tenants map`."""
    for name in cli.COMMANDS:
        command = cli._made(name, cli.COMMANDS[name])
        yield name, command
        for inner in cli.SUBCOMMANDS.get(name, ()):
            yield f"{name} {inner}", command.commands[inner]


NAMES = [name for name, _ in commands()]


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
    "bursts": ["bursts", "localhost", "--bytes", "7B"],
    "emulate": ["emulate", "bad.toml"],
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
SMALL = '[job.a]\nmodel = "alexnet"\nworkers = 2\n'
STUDY = '[sweep]\nscenario = "{name}"\nseeds = 3\n'
FLOWS = (
    SMALL
    + """[traffic.web]
incast = { dst = "h0", bytes = "1kB", every = "1ms" }
[run]
engine = "fluid"
duration = "2s"
"""
)
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


# Limits

LIMITED = [name for name, command in commands() if any("--max-time" in param.opts for param in command.params)]
TRACE = str(TRACES / "rank0.pt.trace.json.gz")
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
    free = {
        "profile",
        "bursts",
        "emulate",
        "bursts receive",
        "bursts thresholds",
        "presets",
        "schema",
        "explain",
        "doctor",
    }
    free |= {"sweep list"}
    assert set(NAMES) - set(LIMITED) == free
    # It computes in Python alone, where the thread looks that hears signals.
    # And `check` needs ns-3, which test_check.py has something in place of.
    assert set(LIMITED) - set(AT_LIMIT) == {"calibrate", "check"}


# Signals

GRADTIDE = [sys.executable, "-m", "gradtide"]
GRACE_S = 60
"""After so long a command must have ended; a machine that is not loaded needs a tenth of a second."""

LONG = """[job.a]
workers = 8
iterations = 100000
model = { kind = "thesis", layers = 450, time = "1ms" }
schedule = { fusion = "10MB", barrier = false }
"""
INTERRUPTED = {
    "run": ["run", "long.toml", "-o", "out"],
    "compare": ["compare", "paper/gao2020-ch5", "-o", "out"],
    "sweep": ["sweep", "study.toml", "-o", "out", "--store", "out.incomplete/store"],
    "sweep merge": ["sweep", "merge", "study.toml", "-o", "out", "--store", "out.incomplete/store"],
    "sweep list": ["sweep", "list", "none.store"],
    "collectives": ["collectives", "paper/gao2020-ch4", "-o", "out"],
    "tenants": ["tenants", "paper/gao2020-ch5", "--seeds", "9", "-o", "out"],
    "tenants map": ["tenants", "map", "paper/gao2020-ch5", "-o", "out"],
    "tenants policies": ["tenants", "policies", "paper/gao2020-ch5", "-o", "out"],
    "tenants lp": ["tenants", "lp", "paper/gao2020-ch5", "--seeds", "5", "-o", "out"],
    "buy": ["buy", "resnet50", "--nodes", "64", "-o", "out"],
    "plan": ["plan", "resnet50", "--workers", "16", "-o", "out"],
    "calibrate": ["calibrate", "rank0.json", "-o", "out"],
    "demo": ["demo", "-o", "out"],
    "reproduce": ["reproduce", "gao2020/ch5", "-o", "out"],
    "check": ["check", "paper/gao2020-ch5", "-o", "out"],
    "profile": ["profile", "model.py:make", "--input", "32x100", "--device", "measure", "--runs", "9999", "-o", "out"],
    "bursts": ["bursts", "localhost", "--bytes", "1MB", "--start", "99s"],
    "emulate": ["emulate", "paper/pcn", "--max-late", "1"],
    "bursts receive": ["bursts", "receive", "--count", "1", "--listen", "127.0.0.1"],
    "bursts thresholds": ["bursts", "thresholds", "100Mbps", "13.32ms"],
    "report": ["report", "rank0.json", "-o", "out"],
    "presets": ["presets"],
    "order": ["order", "tictac_inception_v3"],
    "convert": ["convert", "rank0.json", "out"],
    "schema": ["schema"],
    "explain": ["explain", "GT012"],
    "doctor": ["doctor"],
}


@pytest.fixture(scope="module")
def long_inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "long.toml").write_text(LONG)
    (folder / "study.toml").write_text(STUDY.format(name="long.toml"))
    layers = "torch.nn.Sequential(*[torch.nn.Linear(100, 100) for _ in range(99)])"
    (folder / "model.py").write_text(f"import torch\ndef make():\n    return {layers}\n")
    event = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d,"dur":3,"args":{"External id":1}}'
    block = ",\n".join(event % number for number in range(10_000))
    (folder / "rank0.json").write_text(f'{{"traceEvents": [{",".join([block] * 50)}]}}')
    return folder


def stopped(arguments, number, after_s, cwd):
    """Run a command and send it a signal; return (exit code or None if it was faster, stdout, stderr).

    The time counts from when gradtide hears signals. Before, Python loads itself, and a signal ends it as any program.
    """
    process = subprocess.Popen(
        [*GRADTIDE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd
    )
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt"))
        if int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
            break
        time.sleep(0.005)
    try:
        process.communicate(timeout=after_s)
        return None, "", ""
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        out, err = process.communicate(timeout=GRACE_S)
        return process.returncode, out, err
    finally:
        process.kill()


@pytest.mark.parametrize("name", NAMES)
def test_a_signal_at_any_moment_ends_a_command_and_leaves_nothing_half_written(long_inputs, tmp_path, name):
    for file in long_inputs.iterdir():
        (tmp_path / file.name).symlink_to(file)
    given = set(os.listdir(tmp_path))
    # Moments while Python loads, reads, runs and writes; a machine that is loaded is in an earlier phase.
    for after_s, number, more in (
        (0.05, signal.SIGINT, []),
        (0.4, signal.SIGTERM, ["--json"]),
        (0.9, signal.SIGINT, ["--json"]),
    ):
        code, out, err = stopped([*INTERRUPTED[name], *more], number, after_s, tmp_path)
        # A command that has just ended well, or has just found that something is missing here, is not interrupted.
        assert code in (None, 0, 2, signals.EXIT_SIGNAL + number), err
        assert "Traceback" not in err
        assert "ignored" not in err
        if more and code is not None:
            document = json.loads(out)
            assert document.get("exit_code", code) == code
        left = set(os.listdir(tmp_path)) - given - {"out", "out.incomplete"}
        assert not left, err
        assert not list(tmp_path.rglob("*.partial"))
        subprocess.run(["rm", "-rf", tmp_path / "out", tmp_path / "out.incomplete"], check=True)


WHILE_IT_LOADS = """
import os, signal, sys
from gradtide.__main__ import main
class Interrupt:
    def find_spec(name, path, target=None):
        if name == "gradtide.system":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt)
sys.argv[1:] = ["presets"]
main()
"""


def test_ctrl_c_is_noted_before_the_modules_are_loaded_that_note_it():
    done = subprocess.run([sys.executable, "-c", WHILE_IT_LOADS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("interrupted;"), done.stderr


STUCK = """
import hashlib, os, signal, threading, time
from gradtide import signals
signals.catch()
signals.answer()
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
{body}
"""


@pytest.mark.parametrize(
    "body",
    [
        # Outside Python, where no handler runs before it is over.
        "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
        "while True:\n    try:\n        time.sleep(99)\n    except KeyboardInterrupt:\n        pass",
    ],
    ids=["a computation outside Python", "an exception that is swallowed"],
)
def test_what_does_not_answer_a_signal_is_ended(body):
    program = [sys.executable, "-c", STUCK.format(body=body)]
    assert subprocess.run(program, timeout=GRACE_S, check=False).returncode == 143


DROPPED = """
import os, signal, time, weakref
from gradtide import signals
class Limit(Exception):
    pass
class Thing:
    def __del__(self):
        {come}
        time.sleep(0.5)
def ended(what, finish):
    # Long enough that what was dropped is raised here, and short enough that the process is not ended as it is.
    try:
        finish()
        time.sleep(0.5)
        raise SystemExit("nothing was raised")
    except what:
        print("ended")
signals.catch()
signals.answer()
{body}
"""

DROPS = {
    "a finalizer": "thing = Thing()\nended({what}, lambda: globals().pop('thing'))",
    "the callback of a weak reference": (
        "class Other:\n    pass\nthing = Other()\n"
        "def call(_):\n    {come}\n    time.sleep(0.5)\n"
        "reference = weakref.ref(thing, call)\nended({what}, lambda: globals().pop('thing'))"
    ),
}
COMES = {
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT)", "KeyboardInterrupt"),
    "a limit": ("signals.reached = Limit(); os.kill(os.getpid(), signals.LIMIT)", "Limit"),
}


@pytest.mark.parametrize("comes", COMES)
@pytest.mark.parametrize("drops", DROPS)
def test_an_exception_that_python_drops_is_raised_again(drops, comes):
    come, what = COMES[comes]
    program = DROPPED.format(come=come, body=DROPS[drops].format(come=come, what=what))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=GRACE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_other_exceptions_that_python_drops_are_printed():
    body = "class Fails:\n    def __del__(self):\n        raise ValueError('seen')\nFails()"
    program = [sys.executable, "-c", f"from gradtide import signals\nsignals.catch()\n{body}"]
    assert "ValueError: seen" in subprocess.run(program, capture_output=True, text=True, check=False).stderr


AT_A_LIMIT = """
import hashlib, time
from gradtide import signals
class Limit(Exception):
    pass
def check():
    raise Limit
signals.catch()
signals.answer()
signals.check = check
{body}
"""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("try:\n    while True:\n        pass\nexcept Limit:\n    raise SystemExit(5)", 5),
        ("try:\n    time.sleep(99)\nexcept Limit:\n    raise SystemExit(5)", 5),
        ("hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)", 3),
    ],
    ids=["Python", "waiting", "a computation outside Python"],
)
def test_a_limit_ends_whatever_is_under_way(body, code):
    program = [sys.executable, "-c", AT_A_LIMIT.format(body=body)]
    assert subprocess.run(program, timeout=GRACE_S, check=False).returncode == code


def test_a_program_that_calls_the_command_line_keeps_its_signals(gradtide):
    before = [signal.getsignal(number) for number in signals.STOPS]
    assert gradtide("presets")[0] == 0
    assert [signal.getsignal(number) for number in signals.STOPS] == before
    assert signal.SIG_IGN not in before


def test_a_signal_that_is_ignored_stays_ignored():
    code = "import signal; from gradtide import signals; signals.catch(); print(int(signal.getsignal(signal.SIGHUP)))"
    done = subprocess.run(["nohup", sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == signal.SIG_IGN


def test_a_signal_while_the_command_is_loaded_is_answered_when_it_is():
    code = (
        "import os, signal, sys\n"
        "from gradtide import signals\n"
        "signals.catch()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.argv = ['gradtide', 'doctor', '--json']\n"
        "from gradtide.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    assert (done.returncode, document["kind"], document["exit_code"]) == (143, "terminated", 143)
    assert done.stderr == "interrupted; nothing half-written is left behind\n"
