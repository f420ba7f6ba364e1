"""What holds for all tests."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradtide import cli

# A shell that starts the tests in the background has them ignore Ctrl-C, and nohup the end of a terminal; so would the
# commands that they interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A container often forbids Python to keep compiled modules: every command that a test starts would compile the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests that need PyTorch import it; `make test-torch` installs it.
NEED_TORCH = ["test_profiling_torch*.py", "test_torch_*.py", "test_wire.py"]
collect_ignore_glob = [] if importlib.util.find_spec("torch") else NEED_TORCH


def pytest_configure(config):
    """Let no test that needs PyTorch or Ray be skipped where GRADTIDE_REQUIRE_TORCH or _RAY is set, as in CI."""
    if os.environ.get("GRADTIDE_REQUIRE_RAY"):
        try:
            import ray  # noqa: F401
        except ImportError as error:
            raise pytest.UsageError(f"GRADTIDE_REQUIRE_RAY is set, and Ray is missing: {error}") from None
    if os.environ.get("GRADTIDE_REQUIRE_TORCH"):
        try:
            import torch.distributed
        except ImportError as error:
            raise pytest.UsageError(f"GRADTIDE_REQUIRE_TORCH is set, and PyTorch is missing: {error}") from None
        if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
            raise pytest.UsageError("GRADTIDE_REQUIRE_TORCH is set, and this PyTorch has no gloo")


def pytest_collection_modifyitems(items):
    """Skip what needs Linux elsewhere."""
    if sys.platform != "linux":
        for item in items:
            if item.get_closest_marker("linux"):
                item.add_marker(pytest.mark.skip(reason="needs Linux"))


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    """Let no test depend on the width of the terminal that it is started in."""
    monkeypatch.setenv("COLUMNS", "10000")


@pytest.fixture
def gradtide(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process; return (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gradtide", *map(str, arguments)])
        code = cli._main()
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with `base.toml`, the scenario of the studies in tests of sweeps, the current directory."""
    import sweep_studies  # other tests do not wait for its modules to load

    (tmp_path / "base.toml").write_text(sweep_studies.BASE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def slow_fifo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run at 1 Gbit/s, first come, first served."""
    return run_folder(tmp_path_factory)


@pytest.fixture(scope="module")
def slow_priority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run at 1 Gbit/s, by priority and without the barrier."""
    return run_folder(tmp_path_factory, order="priority", barrier=False)


def run_folder(factory: pytest.TempPathFactory, **changes: Any) -> Path:
    import run_folders  # other tests do not wait for its modules to load

    folder = factory.mktemp("runs") / "run"
    run_folders.make_run(folder, rate_bps=1_000_000_000, **changes)
    return folder


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Have PyTorch compute in one thread, so that concurrent tests do not wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a file system in memory at an empty folder, as a container's volume is, with options of mount."""
    with contextlib.ExitStack() as ends:

        def mount(name: str, *options: str) -> Path:
            folder = tmp_path / name
            folder.mkdir()
            command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
            if (
                sys.platform != "linux"
                or os.geteuid() != 0
                or subprocess.run(command, capture_output=True, check=False).returncode != 0
            ):
                pytest.skip("only root may mount a file system, and not everywhere")
            ends.callback(subprocess.run, ["umount", str(folder)], check=True)
            return folder

        yield mount
