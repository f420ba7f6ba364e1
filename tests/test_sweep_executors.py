"""Where the runs of a study take place: what an executor may lose, and what is refused before anything runs."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, wait
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gradtide as gt
from gradtide.errors import ExecutorError
from gradtide.studies import sweep as package
from gradtide.studies.store import Store
from gradtide.studies.sweep.executors import Documents, Local, WorkerLost
from gradtide.studies.sweep.on_ray import OtherCodeError, run_packed

NOISY = {"compute": {"noise": 0.05}}
"""Each seed gives another run."""
BASE = {
    "job": {"train": {"model": {"kind": "thesis", "layers": 4, "time": "1ms"}, "workers": 2, "iterations": 2, **NOISY}},
    "cluster": {"link": {"rate": "10Gbps", "delay": "10us"}},
}
GRADTIDE = f'gradtide() {{ {sys.executable} -m gradtide "$@"; }}\n'
RATES_BPS = [10**9, 2 * 10**9, 5 * 10**9, 10**10]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text(gt.Scenario.from_dict(BASE).to_toml())
    return {
        "sweep": {
            "scenario": "base.toml",
            "seeds": 5,
            "grid": {"cluster.link.rate": [f"{rate}bps" for rate in RATES_BPS]},
        }
    }


class Losing(Local):
    """Batches of many runs; the worker is lost for those that `is_lost` says, once the first other has ended."""

    batch_s = 3600.0

    def __init__(self, is_lost: Any) -> None:
        super().__init__(2)
        self.batches: list[list[tuple[int, int]]] = []
        self._is_lost = is_lost
        self._others: list[Future[Documents]] = []

    def submit(self, scenarios: Sequence[gt.Scenario]) -> "Future[Documents]":
        batch = [(one.link_rate_bps, one.seed) for one in scenarios]
        self.batches.append(batch)
        if not self._is_lost(batch, len(self.batches)):
            self._others.append(super().submit(scenarios))
            return self._others[-1]
        wait(self._others[:1])
        future: Future[Documents] = Future()
        future.set_exception(WorkerLost("its node is gone"))
        return future


def test_a_batch_that_was_lost_begins_again_run_by_run(study: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = gt.sweep(study).to_dicts()
    executor = Losing(lambda batch, number: number == 1)
    monkeypatch.setattr(package, "opened", lambda *_: executor)
    assert gt.sweep(study).to_dicts() == expected
    first, *rest = executor.batches
    # The runs that are left are of one length, so the first batch has a quarter of the share of two workers of them.
    assert len(first) == 3
    assert [batch for batch in rest if batch[0] in first] == [[one] for one in first]
    assert sorted(one for batch in rest for one in batch) == sorted(product(RATES_BPS, range(5)))


def test_a_run_that_ends_its_worker_again_and_again_is_named(
    study: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Losing(lambda batch, _: (2 * 10**9, 3) in batch)
    monkeypatch.setattr(package, "opened", lambda *_: executor)
    with pytest.raises(ExecutorError) as caught:
        gt.sweep(study, store="store")
    [error] = caught.value.errors
    assert error["code"] == "GT108"
    assert "run 8 of the study (cluster.link.rate = 2000000000bps) was lost 3 times" in error["msg"]
    assert sum((2 * 10**9, 3) in batch for batch in executor.batches) == 3
    # What had ended is kept.
    with Store(Path("store")) as store:
        assert len(store) > 0


def test_a_worker_with_another_gradtide_computes_nothing() -> None:
    with pytest.raises(OtherCodeError, match=r"and here is 0\.0\.1"):
        run_packed("0.0.1", b"")


REFUSED = {
    "an unknown executor": (["--executor", "slurm"], "--executor: there is no 'slurm'; write local or ray"),
    "an address of nothing": (["--address", "10.0.0.1:6379"], "--address: '10.0.0.1:6379' is of a Ray cluster"),
}


@pytest.mark.parametrize(("options", "words"), REFUSED.values(), ids=REFUSED)
def test_an_executor_that_means_nothing_is_a_usage_error(
    gradtide: Any, study: dict[str, Any], options: list[str], words: str
) -> None:
    Path("s.toml").write_text('[sweep]\nscenario = "base.toml"\n')
    code, out, err = gradtide("sweep", "s.toml", "-o", "out", *options)
    assert (code, out) == (2, "")
    assert words in err
    assert not Path("gradtide.store").exists()


def test_without_ray_or_a_cluster_the_error_says_how_to_get_it(
    gradtide: Any, study: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("s.toml").write_text('[sweep]\nscenario = "base.toml"\n')
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = gradtide("sweep", "s.toml", "--executor", "ray")
    assert code == 3
    assert "error[GT106]" in err
    assert "pip install 'ray>=" in err
    # Port 9 of this machine: nothing listens there.
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    code, _, err = gradtide("sweep", "s.toml", "--executor", "ray", "--address", "127.0.0.1:9")
    assert code == 3
    assert "error[GT106]: there is no Ray cluster at 127.0.0.1:9" in err
    assert "ray start --head" in err


@pytest.mark.slow
def test_the_script_for_slurm_gives_the_table_of_one_machine(study: dict[str, Any]) -> None:
    page = (Path(__file__).parent.parent / "docs" / "sweeping-slurm.md").read_text()
    script, submitted = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[:2]
    count = int(re.findall(r"--array=1-(\d+)", script)[0])
    merge = re.findall(r"--wrap '(.*)'", submitted)[0]
    Path("study.toml").write_text('[sweep]\nscenario = "base.toml"\nseeds = 10\n')
    array = {"SLURM_ARRAY_TASK_COUNT": str(count), "SLURM_CPUS_PER_TASK": "1", "SLURM_MEM_PER_NODE": "2000"}
    for task in range(1, count + 1):
        of_task = {**os.environ, **array, "SLURM_ARRAY_TASK_ID": str(task)}
        subprocess.run(["bash", "-e", "-c", GRADTIDE + script.replace("exec ", "")], env=of_task, check=True)
    subprocess.run(["bash", "-e", "-c", GRADTIDE + merge], check=True)
    gt.sweep("study.toml").save("out")
    assert Path("merged/rows.csv").read_bytes() == Path("out/rows.csv").read_bytes()
