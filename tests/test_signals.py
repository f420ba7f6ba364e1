"""Signals at any moment of a command, while it loads and when it does not answer, and limits in whatever it does."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import GRACE_S, GRADTIDE, NAMES, STUDY
from gradtide import signals

pytestmark = [pytest.mark.linux, pytest.mark.process]

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
    assert done.stderr == "interrupted; no incomplete files remain\n"
