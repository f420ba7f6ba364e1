"""Stdout and stderr that are full, closed or read by nobody: one sentence, exit code 3, and whole files."""

import errno
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

import faults
import gradtide as gt
from commands import FLOWS, GRACE_S, GRADTIDE, NAMES, SMALL, STUDY, TRACE
from gradtide import files, streams
from gradtide.cli.ends import EXIT_BAD_INPUT, EXIT_CANNOT_GO_ON

pytestmark = [pytest.mark.linux, pytest.mark.process]

WORK = {
    "run": ["run", "small.toml", "-o", "out"],
    "compare": ["compare", "small.toml", "--schedule", "fifo", "-o", "out", "-v"],
    "sweep": ["sweep", "study.toml", "-o", "out", "--store", "store"],
    "sweep merge": ["sweep", "merge", "study.toml", "-o", "out", "--store", "store"],
    "sweep list": ["sweep", "list", "store"],
    "collectives": ["collectives", "small.toml", "--sizes", "1MB", "-o", "out"],
    "tenants": ["tenants", "flows.toml", "-o", "out"],
    "tenants map": ["tenants", "map", "random.toml", "--job-loads", "0.1", "--traffic-loads", "0.1", "-o", "out"],
    "tenants policies": ["tenants", "policies", "flows.toml", "-o", "out"],
    "tenants lp": ["tenants", "lp", "flows.toml", "-o", "out"],
    "buy": ["buy", "alexnet", "--nodes", "4", "--fabrics", "star", "--bisection", "1", "-o", "out"],
    "plan": ["plan", "small.toml", "--seeds", "1", "-o", "out/plan.json"],
    "demo": ["demo", "-o", "out"],
    "reproduce": ["reproduce", "gao2020/ch4", "-o", "out"],
    "report": ["report", TRACE, "-o", "out"],
    "convert": ["convert", TRACE],
    "presets": ["presets"],
    "bursts thresholds": ["bursts", "thresholds", "100Mbps", "13.32ms"],
    "order": ["order", "tictac_alexnet_v2", "--scheduler", "tic"],
    "schema": ["schema"],
    "explain": ["explain", "GT012"],
    "doctor": ["doctor"],
}
"""A command line of each command that can do its work here alone, and quickly."""

HELP_ONLY = {"calibrate", "check", "emulate", "profile", "bursts", "bursts receive"}
"""Commands that need a recording of several ranks, ns-3, the right to create namespaces, PyTorch or another process."""

STREAMS = {
    "a full stdout": "> /dev/full",
    "a closed stdout": ">&-",
    "a full stderr": "2> /dev/full",
    "a closed stderr": "2>&-",
    "both full": "> /dev/full 2> /dev/full",
    "all closed": "<&- >&- 2>&-",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "study.toml").write_text(STUDY.format(name="small.toml"))
    (tmp_path / "flows.toml").write_text(FLOWS)
    flows = FLOWS.replace(
        'incast = { dst = "h0", bytes = "1kB", every = "1ms" }', 'sizes = "web-search"\nload = 0.1'
    ).replace('"2s"', '"30s"')
    (tmp_path / "random.toml").write_text(flows)
    (tmp_path / "out").mkdir()
    return tmp_path


def ended(folder, arguments, redirected, **environment):
    """Run a command in a shell; return its exit code, stdout and stderr."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"$@" {redirected}', "bash", *GRADTIDE, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=GRACE_S,
        check=False,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout, done.stderr


def assert_whole(folder):
    """Check that nothing half-written is there, and that a folder of results has every file of its list."""
    assert not [path for path in folder.rglob("*") if path.suffix in (".partial", ".ready", ".lock")]
    for versions in folder.rglob(files.VERSIONS):
        for name in json.loads(versions.read_bytes()).get(files.LISTED, ()):
            assert (versions.parent / name).is_file()
    for document in folder.glob("out/*.json"):
        json.loads(document.read_bytes())


def is_one_sentence(err, name):
    lines = [line for line in err.splitlines() if line.startswith("error")]
    assert len(lines) == 1
    assert name in lines[0]
    assert not [word for word in ("Traceback", "bug of gradtide", "Exception ignored") if word in err]


@pytest.mark.parametrize("name", NAMES)
def test_help_that_cannot_be_printed_is_one_sentence(tmp_path, name):
    code, out, err = ended(tmp_path, [*name.split(), "--help"], "> /dev/full")
    assert (code, out, err.count("\n")) == (EXIT_CANNOT_GO_ON, "", 1)
    is_one_sentence(err, "stdout")


def test_every_command_is_run_with_a_full_stdout():
    assert set(WORK) | HELP_ONLY == set(NAMES)


@pytest.mark.parametrize(
    ("name", "more"),
    [*((name, []) for name in WORK), *((name, ["--json"]) for name in ("run", "plan", "report", "presets"))],
)
def test_a_result_that_cannot_be_printed_is_one_sentence_and_its_files_are_whole(folder, name, more):
    if name in ("sweep merge", "sweep list"):
        assert ended(folder, WORK["sweep"], "")[0] == 0
    code, out, err = ended(folder, [*WORK[name], *more], "> /dev/full")
    assert (code, out) == (EXIT_CANNOT_GO_ON, ""), err
    is_one_sentence(err, "stdout")
    assert_whole(folder)
    if "-o" in WORK[name]:
        assert list((folder / "out").iterdir())


@pytest.mark.parametrize("name", [name for name in WORK if "-o" in WORK[name]])
def test_a_disk_that_fills_up_is_one_sentence_and_leaves_nothing_half_written(gradtide, folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    # What is there can still be renamed and deleted.
    monkeypatch.setattr(faults, "_CHANGES", {"os.mkdir"})
    if name == "sweep merge":
        assert gradtide(*WORK["sweep"])[0] == 0
        shutil.rmtree(folder / "out")
        (folder / "out").mkdir()
    for at in (1, 4, 12):
        with faults.injected(at, faults.full, lasts=True, within=folder) as fault:
            code, out, err = gradtide(*WORK[name])
        if fault.changes < at:
            break
        assert code == EXIT_CANNOT_GO_ON, err
        # Where a step goes is known, and printed, before it is written.
        assert bool(out) is (name == "report")
        assert err.count("error: ") == 1
        assert "No space left on device" in err
        assert_whole(folder)
        assert [one for one in (folder / "out").iterdir() if one.suffix != ".incomplete"] == []


def test_a_file_that_cannot_be_written_now_is_no_wrong_command_line(gradtide, folder, monkeypatch):
    monkeypatch.chdir(folder)
    command = ["convert", TRACE, "dag.json", "--rank", "0", "--cut"]
    before = sorted(folder.rglob("*"))
    with faults.injected(1, faults.full, lasts=True, within=folder):
        code, out, err = gradtide(*command)
    assert (code, out, err.count("error: ")) == (EXIT_CANNOT_GO_ON, "", 1)
    assert "dag.json cannot be written: No space left on device" in err
    assert sorted(folder.rglob("*")) == before
    assert gradtide(*command[:2], "nowhere/dag.json", *command[3:])[0] == EXIT_BAD_INPUT


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_an_error_of_the_system_is_no_bug_of_gradtide(gradtide, folder, monkeypatch, error):
    def refused(*arguments, **options):
        raise OSError(error, os.strerror(error), "some.file")

    monkeypatch.chdir(folder)
    monkeypatch.setattr("gradtide.studies.run.run_all", refused)
    code, out, err = gradtide("run", "small.toml")
    assert (code, out, err) == (EXIT_CANNOT_GO_ON, "", f"error: some.file: {os.strerror(error)}\n")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("redirected", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("name", ["run", "report"])
def test_what_is_printed_on_such_streams_is_lost_and_nothing_else(folder, name, redirected, unbuffered):
    code, out, err = ended(folder, WORK[name], redirected, PYTHONUNBUFFERED=unbuffered)
    assert code == EXIT_CANNOT_GO_ON
    assert (folder / "out/report.html").exists()
    assert_whole(folder)
    if "2>" in redirected:
        assert err == ""
        assert ("iteration time" in out or "exposed" in out) is (redirected in ("2> /dev/full", "2>&-"))
    else:
        is_one_sentence(err, "stdout")
        assert out == ""


@pytest.mark.parametrize("redirected", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("arguments", [["run", "none.toml"], ["run", "none.toml", "--json"], ["run"], ["--bad"], []])
def test_an_error_that_cannot_be_printed_keeps_its_exit_code(folder, arguments, redirected):
    code, out, err = ended(folder, arguments, redirected)
    assert code == 2
    assert "Traceback" not in err
    if out:
        assert json.loads(out)["exit_code"] == 2


@pytest.mark.parametrize("redirected", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_of_a_command_gets_the_number_of_a_closed_stream(folder, redirected):
    # The interpreter would print there, and so would a library in C.
    program = (
        "import os, sys\n"
        "from gradtide.__main__ import main\n"
        "from gradtide.studies import run\n"
        "whole = run.simulate\n"
        "def loud(*arguments):\n"
        "    for number in (1, 2):\n"
        "        try:\n            os.write(number, b'loud')\n"
        "        except OSError:\n            pass\n"
        "    return whole(*arguments)\n"
        "run.simulate = loud\n"
        "main()\n"
    )
    command = f'"$@" {redirected}'
    arguments = ["compare", "small.toml", "--schedule", "fifo", "-o", "out", "--store", "store"]
    subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-c", program, *arguments],
        cwd=folder,
        timeout=GRACE_S,
        capture_output=True,
        check=False,
    )
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 8
    assert not [path for path in written if b"loud" in path.read_bytes()]


@pytest.mark.parametrize("redirected", ["| true", "| head -1", "2>&1 >/dev/null | true"])
@pytest.mark.parametrize("name", ["run", "report", "schema"])
def test_a_reader_that_has_left_is_no_error_and_files_are_written(folder, name, redirected):
    code, _, err = ended(folder, WORK[name], redirected)
    assert code == 0
    assert "error" not in err
    if name != "schema":
        assert (folder / "out/report.html").exists()
        assert_whole(folder)


def test_a_failed_check_is_told_to_a_reader_that_has_left(folder):
    assert ended(folder, ["run", "small.toml", "--fail-if", "rho>0"], "| true")[0] == 1


def test_messages_that_nobody_asked_for_are_not_missed(folder):
    assert ended(folder, ["run", "small.toml", "-q"], "2>&-")[0] == 0
    assert ended(folder, ["--version"], "2> /dev/full")[0] == 0


def test_a_pipe_that_does_not_block_gets_all_that_is_printed(folder):
    receiving, sending = os.pipe()
    os.set_blocking(sending, False)
    with subprocess.Popen([*GRADTIDE, "schema"], stdout=sending, cwd=folder, stderr=subprocess.PIPE) as process:
        os.close(sending)
        with open(receiving, "rb") as pipe:
            document = json.loads(pipe.read())
        assert process.wait(GRACE_S) == 0
    assert "properties" in document or "$defs" in document


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_whose_reader_does_not_read(folder, number):
    with subprocess.Popen([*GRADTIDE, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder) as process:
        assert process.stdout is not None
        # Once the pipe has something in it, the command prints.
        os.set_blocking(process.stdout.fileno(), True)
        process.stdout.read(1)
        process.send_signal(number)
        _, err = process.communicate(timeout=GRACE_S)
    assert process.returncode in (0, 128 + number)
    assert b"Traceback" not in err


def test_a_receiver_prints_each_burst_when_it_is_there_and_ends_when_nobody_reads(folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*GRADTIDE, "bursts", "receive", "--listen", "127.0.0.1", "--port", str(port)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder) as process,
        ExitStack() as ends,
    ):
        ends.callback(process.kill)
        assert process.stdout is not None
        for number in range(2):
            while process.poll() is None:
                try:
                    gt.bursts("127.0.0.1", port=port, bytes="1kB")
                    break
                except gt.SimulationError:
                    assert number == 0, "the receiver has ended"
                    time.sleep(0.05)
            if number == 0:
                assert b"1kB in" in process.stdout.readline()
                process.stdout.close()
        assert process.stderr is not None
        assert (process.wait(GRACE_S), process.stderr.read()) == (0, b"")


class Raw(io.RawIOBase):
    """Takes so many bytes at a time, in so many writes, and then no more."""

    def __init__(self, taken, most=10**9):
        self.taken, self.most, self.data = taken, most, b""

    def writable(self):
        return True

    def write(self, data):
        if self.most <= 0:
            raise OSError(errno.ENOSPC, "full")
        self.most -= 1
        self.data += bytes(data[: self.taken])
        return min(self.taken, len(data))


def test_what_is_written_in_parts_is_whole():
    raw = Raw(3)
    stream = streams.StandardStream(raw)
    assert stream.write(b"0123456789") == 10
    assert (raw.data, stream.error) == (b"0123456789", None)


def test_after_a_failed_write_nothing_is_written_any_more():
    raw = Raw(3, most=2)
    stream = streams.StandardStream(raw)
    stream.write(b"0123456789")
    raw.most = 9
    stream.write(b"abc")
    assert raw.data == b"012345"
    assert stream.error is not None
    assert stream.error.errno == errno.ENOSPC


def test_a_stream_that_was_closed_fails_only_if_it_is_used():
    stream = streams.StandardStream(None)
    stream.write(b"")
    assert stream.error is None
    stream.write(b"a")
    assert stream.error is not None
    assert stream.error.errno == errno.EBADF


def printed(folder, columns, *arguments):
    """Return what a command prints on a terminal."""
    import pty

    own, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "dumb"}
    with subprocess.Popen(
        [*GRADTIDE, *arguments], stdout=theirs, stderr=subprocess.DEVNULL, cwd=folder, env=environment
    ) as process:
        os.close(theirs)
        found = b""
        while True:
            try:
                part = os.read(own, 1 << 16)
            except OSError:  # Linux: EIO once the other side is closed
                break
            if not part:
                break
            found += part
    os.close(own)
    assert process.returncode == 0
    return found.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 20])
def test_a_terminal_gets_lines_that_are_no_wider(folder, columns):
    lines = printed(folder, columns, "compare", "small.toml").splitlines()
    assert len(lines) > 5
    # A word that is longer, such as an option, is not broken.
    assert all(len(line) <= columns or " " not in line.strip() for line in lines)
