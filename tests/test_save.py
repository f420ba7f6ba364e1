"""Results are never lost: whatever fails, interrupts or kills, the old or the new ones are there whole."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import faults
import gradtide as gt
from gradtide import files
from gradtide.errors import GradtideError
from gradtide.profiling import write_json as write_model
from gradtide.studies.folder import whole_folder, write_json, write_versions
from gradtide.studies.keep import Kept
from gradtide.studies.run import sample
from run_folders import contents

CH4 = "paper/gao2020-ch4"

pytestmark = [pytest.mark.linux, pytest.mark.process]


# What is not ours


def notes(folder: Path) -> str:
    (folder / "notes.txt").write_text("what I think of this run")
    return "notes.txt"


def repository(folder: Path) -> str:
    (folder / ".git" / "objects").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main")
    return ".git"


def edited(folder: Path) -> str:
    with (folder / "scenario.resolved.toml").open("a") as file:
        file.write("# my own change\n")
    return "scenario.resolved.toml"


def nested(folder: Path) -> str:
    [run, *_] = sorted((folder / "runs").iterdir())
    (run / "mine.csv").write_text("1,2")
    return f"runs/{run.name}/mine.csv"


def empty_folder(folder: Path) -> str:
    (folder / "plots").mkdir()
    return "plots"


def link(folder: Path) -> str:
    (folder / "links.csv").unlink()
    (folder / "links.csv").symlink_to("/etc/hostname")
    return "links.csv"


@pytest.mark.parametrize(
    ("command", "touch"),
    [("run", notes), ("run", repository), ("run", edited), ("run", empty_folder), ("run", link), ("compare", nested)],
)
def test_what_a_user_put_into_a_results_folder_is_named_and_kept(
    gradtide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, touch: Callable[[Path], str]
) -> None:
    out = tmp_path / "res"
    assert gradtide(command, CH4, "-q", "-o", out)[0] == 0
    name = touch(out)
    before = contents(out)
    monkeypatch.setattr(gt._core, "run", None)  # refused before anything is run
    code, stdout, err = gradtide(command, CH4, "-q", "-o", out)
    assert (code, stdout) == (2, "")
    assert f"{name} (" in err
    assert contents(out) == before
    assert os.listdir(tmp_path) == ["res"]


def test_what_is_put_into_the_folder_during_the_run_costs_neither(
    gradtide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "res"
    assert gradtide("run", CH4, "-q", "-o", out)[0] == 0
    run = gt._core.run

    def slow(*arguments: Any) -> Any:
        notes(out)
        return run(*arguments)

    monkeypatch.setattr(gt._core, "run", slow)
    code, _, err = gradtide("run", CH4, "-q", "-o", out)
    assert (code, f"These results are in {tmp_path / 'res-2'}" in err) == (3, True)
    assert (out / "notes.txt").exists()
    new, old = contents(tmp_path / "res-2"), contents(out)
    assert all(new[name] == old[name] for name in new if name != "versions.json")


def test_a_report_that_was_made_again_is_still_ours(gradtide: Any, tmp_path: Path) -> None:
    out = tmp_path / "res"
    assert gradtide("run", CH4, "-q", "-o", out)[0] == 0
    page = (out / "report.html").read_bytes()
    files.write_listed(out / "report.html", page + b"<!-- of another version -->")
    assert gradtide("run", CH4, "-q", "-o", out)[0] == 0
    assert (out / "report.html").read_bytes() == page


def test_a_report_of_a_run_of_a_study_is_ours(gradtide: Any, tmp_path: Path) -> None:
    out = tmp_path / "res"
    assert gradtide("compare", CH4, "-q", "-o", out)[0] == 0
    [run, *_] = (out / "runs").iterdir()
    assert gradtide("report", run)[0] == 0
    assert (run / "report.html").exists()
    assert gradtide("compare", CH4, "-q", "-o", out)[0] == 0
    assert not (run / "report.html").exists()


def test_a_folder_without_a_list_of_its_files_is_left_alone(gradtide: Any, tmp_path: Path) -> None:
    out = tmp_path / "res"
    assert gradtide("run", CH4, "-q", "-o", out)[0] == 0
    versions = json.loads((out / "versions.json").read_text())
    del versions["files"]
    write_json(out / "versions.json", versions)
    code, _, err = gradtide("run", CH4, "-q", "-o", out)
    assert (code, "bandwidth.csv (not gradtide's)" in err) == (2, True)


def test_a_user_keeps_what_lies_beside_an_unfinished_study(gradtide: Any, tmp_path: Path) -> None:
    keep = Kept(tmp_path / "out")
    keep.add(gt.run(sample()))
    notes(keep.folder)
    keep.forget()
    assert (keep.folder / "notes.txt").exists()
    code, _, err = gradtide("compare", CH4, "-q", "-o", tmp_path / "out")
    assert (code, "out.incomplete contains" in err) == (2, True)
    assert (keep.folder / "notes.txt").exists()


# Faults


class Place:
    """A folder that is written again and again, as `old` and as `new`; nested, and with a file that only one has."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        self.path = parent / "out"

    def save(self, what: str) -> None:
        with whole_folder(self.path) as folder:
            write_json(folder / "summary.json", {"schema": "gradtide.run/1", "what": what})
            (folder / "rows.csv").write_text(f"a,b\n{what},1\n")
            (folder / f"{what}.csv").write_text(what)
            (folder / "runs" / what).mkdir(parents=True)
            (folder / "runs" / what / "links.csv").write_text(what)
            write_versions(folder)

    def prepare(self, *, is_old: bool) -> None:
        """Make an empty parent, or one with an older folder."""
        if self.path.is_dir():
            empty(self.path)
        empty(self.parent)
        if is_old:
            self.save("old")

    def holds(self) -> str:
        """Return which folder is there; fail unless it is whole."""
        if not self.path.exists() or not os.listdir(self.path):
            return ""
        what = json.loads((self.path / "summary.json").read_text())["what"]
        visible = {name for name in contents(self.path) if not name.startswith(".")}
        assert visible == {"summary.json", "versions.json", "rows.csv", f"{what}.csv", f"runs/{what}/links.csv"}
        assert files.foreign(self.path) == {}
        return str(what)

    def after_a_fault(self) -> str:
        """Return which folder is there when the next command has looked at it; nothing else may be there then."""
        files.heal(self.path)
        what = self.holds()
        assert set(os.listdir(self.parent)) <= {"out"}
        assert not [name for name in contents(self.path) if name.startswith(".")]
        return what


def empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


HOW = {"fails": faults.fails, "full": faults.full, "interrupts": faults.interrupts, "kills": faults.kills}


def no_exchange(one: Path, other: Path) -> None:
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


@pytest.fixture(params=["new", "replaced", "busy", "fixed"])
def state(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is at the place: nothing, an older result, one that turns out to be in use, or one that is fixed."""
    set_state(request.param, monkeypatch)
    return str(request.param)


def set_state(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if state == "busy":
        monkeypatch.setattr(files, "exchange", no_exchange)
    if state == "fixed":
        monkeypatch.setattr(files, "is_fixed", Path.is_dir)


def series(parent: Path, state: str, how: str) -> int:
    """Let every change of a save go wrong, one after the other; return how many there were."""
    place = Place(parent)
    found = set()
    at = 0
    for at in faults.every_fault(
        HOW[how],
        save=lambda: place.save("new"),
        prepare=lambda: place.prepare(is_old=state != "new"),
        lasts=how == "full",
    ):
        left = place.after_a_fault()
        assert left in (("", "new") if state == "new" else ("old", "new")), (at, left)
        found.add(left)
        place.save("new")
        assert place.after_a_fault() == "new"
    assert len(found) == 2 or how == "full"
    return at


@pytest.mark.parametrize("how", ["fails", "full", "interrupts"])
def test_no_fault_of_a_save_loses_both_results(tmp_path: Path, state: str, how: str) -> None:
    assert series(tmp_path, state, how) >= 10


def test_no_kill_in_a_save_loses_both_results(tmp_path: Path, state: str) -> None:
    # In a process of its own, because it is forked and must have no threads.
    script = f"import test_save as t, pathlib, pytest; p = pytest.MonkeyPatch(); t.set_state({state!r}, p)"
    script += f"; print(t.series(pathlib.Path({str(tmp_path)!r}), {state!r}, 'kills'))"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10


@pytest.mark.parametrize("how", ["fails", "interrupts"])
def test_no_fault_of_an_interrupted_study_loses_a_finished_run(tmp_path: Path, how: str) -> None:
    scenario, results = sample(), [gt.run(sample()), None]
    folder = tmp_path / "out.incomplete"

    def prepare() -> None:
        empty(tmp_path)
        with closing(Kept(tmp_path / "out")) as keep:
            keep.add(results[0])

    def show() -> None:
        with closing(Kept(tmp_path / "out")) as keep:
            keep.show_part(gt.errors.Interrupted(results))

    for _ in faults.every_fault(HOW[how], show, prepare):
        keep = Kept(tmp_path / "out")
        assert keep.find(scenario) is not None
        assert not [name for name in os.listdir(folder) if name.startswith(".")]
        keep.forget()
        assert os.listdir(tmp_path) == []


def test_what_live_writers_write_is_left_to_them(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "out") as folder:
        left = [tmp_path / ".out.01234567.partial", tmp_path / ".out.txt.01234567.partial"]
        left[0].mkdir()
        (left[0] / "rows.csv").write_text("half")
        left[1].write_text("half, of somebody else")
        files.heal(tmp_path / "out")
        assert folder.exists()
        assert [path.exists() for path in left] == [False, True]


def test_what_a_delete_that_failed_left_does_not_come_into_the_folder(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "out") as folder:
        (folder / "runs").mkdir()
        for name in (".table.csv.0123abcd.lock", "runs/.table.csv.0123abcd.partial", "table.csv", "runs/.hidden"):
            (folder / name).write_text(name)
        write_versions(folder)
    left = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*"))
    assert left == ["runs", "runs/.hidden", "table.csv", "versions.json"]


# Files


def writers(folder: Path) -> dict[str, Callable[[], object]]:
    """Return whatever writes one file that a user names."""
    layers = [{"name": name, "forward": "1us", "backward": "1us", "parameters": "8B"} for name in ("a", "b")]
    trace = gt.from_kineto(Path(__file__).parent / "data" / "traces")
    result = gt.run(sample())
    plan = gt.plan({"job": {"train": {"model": {"layers": layers}, "workers": 2}}}, device="cpu")
    return {
        "model.json": lambda: write_model({"a": [1]}, folder / "model.json"),
        "trace.json": lambda: trace.save(folder / "trace.json", rank=0, cut=True),
        "trace.et": lambda: trace.save(folder / "trace.et", rank=0),
        "report.html": lambda: result.report(folder / "report.html"),
        "run.pftrace": lambda: result.timeline(folder / "run.pftrace"),
        "plan.json": lambda: plan.plan.save(folder / "plan.json"),
    }


@pytest.mark.parametrize("how", ["full", "interrupts"])
def test_no_writer_of_a_file_leaves_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    (tmp_path / "made").mkdir()
    # What is made elsewhere first is no change of the place itself.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "made"))
    folder = tmp_path / "files"
    folder.mkdir()
    for name, write in writers(folder).items():
        write()
        path, old = folder / name, b"old"
        new = path.read_bytes()
        for at in range(1, 12):
            path.write_bytes(old)
            with faults.injected(at, HOW[how], within=folder) as fault:
                try:
                    write()
                except (GradtideError, OSError, KeyboardInterrupt):
                    assert fault.changes
            assert path.read_bytes() in (old, new), (name, at)
            files.heal(path)
            assert os.listdir(folder) == [name]
            if fault.changes < at:
                break
        else:
            pytest.fail(f"{name} takes more changes than expected")
        path.unlink()


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path: Path) -> None:
    import resource

    # A limit on the size of files stops a write halfway, as a full disk does.
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for name, write in writers(tmp_path).items():
            write()
            size = (tmp_path / name).stat().st_size
            (tmp_path / name).write_bytes(b"old")
            resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, most))
            with pytest.raises((GradtideError, OSError)):
                write()
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            assert (tmp_path / name).read_bytes() == b"old"
            (tmp_path / name).unlink()
            assert os.listdir(tmp_path) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, before)


def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_whole(pipe, b"model")
    assert os.read(reader, 100) == b"model"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


# Places


def test_a_link_stays_a_link_to_the_new_results(gradtide: Any, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk/run")
    for rate in ("1Gbps", "2Gbps"):
        code, _, _ = gradtide("run", CH4, "-q", "-o", tmp_path / "out", "--set", f"cluster.link.rate={rate}")
        assert code == 0
        assert os.readlink(tmp_path / "out") == "disk/run"
        assert f'"{rate}"' in (tmp_path / "disk" / "run" / "scenario.resolved.toml").read_text()
    assert os.listdir(tmp_path / "disk") == ["run"]
    (tmp_path / "model.json").symlink_to("disk/model.json")
    write_model({"a": 1}, tmp_path / "model.json")
    assert (tmp_path / "model.json").is_symlink()
    assert (tmp_path / "disk" / "model.json").exists()


@pytest.mark.parametrize(
    ("umask", "folder", "file"), [(0o022, 0o755, 0o644), (0o077, 0o700, 0o600), (0o002, 0o775, 0o664)]
)
def test_modes_follow_the_umask(gradtide: Any, tmp_path: Path, umask: int, folder: int, file: int) -> None:
    before = os.umask(umask)
    try:
        for _ in range(2):
            assert gradtide("run", CH4, "-q", "-o", tmp_path / "out")[0] == 0
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").rglob("*")}
    assert (stat.S_IMODE((tmp_path / "out").stat().st_mode), modes) == (folder, {file})


@pytest.mark.parametrize("suffix", ["", ".json"])
@pytest.mark.parametrize("length", [240, 300])
def test_a_name_that_is_too_long_is_refused_before_the_run(
    gradtide: Any, tmp_path: Path, length: int, suffix: str
) -> None:
    command = "plan" if suffix else "run"
    code, out, err = gradtide(command, CH4, "-o", tmp_path / ("x" * length + suffix))
    assert (code, out) == (2, "")
    assert err.startswith("error: cannot write")


@pytest.fixture
def volume(mounted: Callable[..., Path]) -> Path:
    """A folder that is a mount point."""
    return mounted("volume")


def test_a_mount_point_is_written_inside(gradtide: Any, volume: Path, tmp_path: Path) -> None:
    (volume / "lost+found").mkdir()
    assert gradtide("compare", CH4, "-q", "-o", volume)[0] == 0
    for _ in range(2):
        assert gradtide("run", CH4, "-q", "-o", volume)[0] == 0
        gt.run(CH4).save(tmp_path / "twin")
        mine, twin = contents(volume), contents(tmp_path / "twin")
        assert mine.keys() == twin.keys()
        assert all(mine[name] == twin[name] for name in mine if name != "versions.json")
    assert sorted(os.listdir(tmp_path)) == ["twin", "volume"]
    assert (volume / "lost+found").exists()


def test_an_unfinished_study_is_kept_inside_a_mount_point(gradtide: Any, volume: Path, tmp_path: Path) -> None:
    with closing(Kept(volume)) as keep:
        keep.add(gt.run(sample()))
        keep.show_part(gt.errors.Interrupted([None]))
        assert keep.folder == volume / "incomplete"
    assert gradtide("compare", CH4, "-q", "-o", volume)[0] == 0
    assert os.listdir(tmp_path) == ["volume"]
    with closing(Kept(volume)) as keep:
        assert keep.find(sample()) is not None
        keep.forget()
    assert not (volume / "incomplete").exists()


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["run", "compare"])
def test_every_signal_that_stops_a_command_ends_it_as_ctrl_c_does(
    tmp_path: Path, number: signal.Signals, command: str
) -> None:
    # The command sends the signal to itself when it runs, so that nothing depends on how fast the machine is.
    script = (
        "import os, sys, time; from gradtide import __main__ as cli\n"
        "from gradtide.scenario.core import queries\n"
        "def stopped(*arguments):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    time.sleep(60)\n"
        "queries.core_input = stopped\n"
        f"sys.argv = ['gradtide', {command!r}, {CH4!r}, '-o', 'out']\n"
        "cli.main()\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False
    )
    assert process.returncode == 128 + number, process.stderr
    assert process.stderr.startswith("interrupted")
    assert "Traceback" not in process.stderr
    assert os.listdir(tmp_path) == []


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); from gradtide import __main__ as cli\n"
        "from gradtide.scenario.core import queries; core = queries.core_input\n"
        "queries.core_input = lambda scenario: (os.kill(os.getpid(), signal.SIGHUP), core(scenario))[1]\n"
        f"sys.argv = ['gradtide', 'run', {CH4!r}, '-q']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=tmp_path, timeout=50, check=False)
    assert done.returncode == 0
