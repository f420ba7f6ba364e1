"""Studies on a Ray cluster of two nodes on this machine.

Needs Ray: `make test-ray` installs it.
"""

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from attack import sweeps
from gradtide.errors import ExecutorError
from gradtide.studies.sweep import on_ray

ray = pytest.importorskip("ray", reason="needs Ray, which is optional: make test-ray")

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default"), pytest.mark.slow, pytest.mark.timeout(300)]

TABLES = ("rows.csv", "rows.parquet", "summary.json", "report.html")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with sweeps.cluster() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that ran here and was not interrupted."""
    place = tmp_path_factory.mktemp("whole")
    sweeps.write_files(place)
    assert sweeps.start(place).wait() == 0
    return place / "out"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    sweeps.write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begun(cluster: Any) -> "subprocess.Popen[bytes]":
    return sweeps.start(Path(), "--executor", "ray", "--address", cluster.address)


def finished(store: str = sweeps.STORE) -> int:
    return sweeps.finished(Path(store))


def wait_for(runs: int, driver: "subprocess.Popen[bytes]") -> None:
    """Wait until so many runs are finished: moments are counted in runs, because a machine may be slow."""
    while finished() < runs:
        assert driver.poll() is None, "the study ended before it could be disturbed"
        time.sleep(0.02)


def same(whole: Path) -> None:
    for name in TABLES:
        assert Path("out", name).read_bytes() == (whole / name).read_bytes(), name


def test_the_table_is_that_of_this_machine(cluster: Any, place: Path, whole: Path) -> None:
    assert begun(cluster).wait() == 0
    same(whole)


def test_runs_of_workers_that_are_killed_begin_again(cluster: Any, place: Path, whole: Path) -> None:
    driver = begun(cluster)
    for runs in (20, 70):
        wait_for(runs, driver)
        pid = next(iter(sweeps.workers(cluster)), None)
        if pid is not None:
            subprocess.run(["kill", "-9", str(pid)], check=True)
    assert driver.wait() == 0
    same(whole)


def test_a_node_that_is_lost_loses_no_run(cluster: Any, place: Path, whole: Path) -> None:
    node = cluster.add_node(num_cpus=1)
    driver = begun(cluster)
    wait_for(20, driver)
    cluster.remove_node(node, allow_graceful=False)
    assert driver.wait() == 0
    same(whole)


def test_a_driver_that_is_killed_goes_on_where_it_was(cluster: Any, place: Path, whole: Path) -> None:
    moments = random.Random(1)
    kept = 0
    for _ in range(3):
        driver = begun(cluster)
        wait_for(kept + moments.randrange(1, 40), driver)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        kept = finished()
    assert 0 < kept < 200
    assert begun(cluster).wait() == 0
    same(whole)


def test_ctrl_c_keeps_what_is_done(cluster: Any, place: Path, whole: Path) -> None:
    driver = begun(cluster)
    wait_for(20, driver)
    driver.send_signal(signal.SIGINT)
    assert driver.wait() == 130
    assert 20 <= finished() < 200
    assert begun(cluster).wait() == 0
    same(whole)


def test_here_and_on_the_cluster_share_one_store(cluster: Any, place: Path, whole: Path) -> None:
    here = sweeps.start(place, "-j", "1", out="here")
    assert begun(cluster).wait() == 0
    assert here.wait() == 0
    same(whole)
    assert finished() == 200


def test_python_uses_the_connection_that_is_there_and_leaves_it(cluster: Any, place: Path, whole: Path) -> None:
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        result = gt.sweep("s.toml", executor="ray", jobs=1)
        assert json.loads((whole / "summary.json").read_text())["headline"] == result.summary["headline"]
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_a_worker_with_another_gradtide_is_refused(cluster: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "_code", lambda: "0.0.1 (abc)")
    with pytest.raises(ExecutorError) as caught:
        gt.sweep("s.toml", executor="ray", address=cluster.address, store="store")
    [error] = caught.value.errors
    assert error["code"] == "GT107"
    assert "and here is 0.0.1 (abc)" in error["msg"]
    assert finished("store") == 0
    assert not ray.is_initialized()
