"""Limits and Ctrl-C end work whatever part of it is under way, and say what to do."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide import Scenario, _core, estimate, traces, watch
from gradtide.errors import LimitReached, ScenarioError, SimulationError
from gradtide.estimate import Limits
from gradtide.studies.run import run_all
from gradtide.studies.what_ifs import what_if_count
from specs import dag, spec

GRADTIDE = [sys.executable, "-m", "gradtide"]
LAYER = {"name": "a", "parameters": "1MB", "forward": "1us", "backward": "1us"}


def job(layers: int = 2, **keys: Any) -> dict[str, Any]:
    model = {"layers": [{**LAYER, "name": f"a{index}"} for index in range(layers)]}
    return {"job": {"train": {"model": model, "workers": 2, "iterations": 1, **keys}}, "run": {"engine": "fluid"}}


def uneven(workers: int, iterations: int) -> dict[str, Any]:
    return job(workers=workers, iterations=iterations, compute={"noise": 0.1})


@contextlib.contextmanager
def allowed(looks: int) -> Iterator[None]:
    """Let work be looked at so often, and end it then: a limit that does not depend on how fast the machine is."""

    class Counted:
        count = 0

        def check(self) -> None:
            self.count += 1
            if self.count > looks:
                raise LimitReached("time", 1.0, 2.0)

    with watch.watching(Counted()):  # type: ignore[arg-type]
        yield


def order(folder: Path) -> None:
    (folder / "dag.json").write_text(dag(3000, 40))
    gt.order(str(folder / "dag.json"), "optimal")


def order_by_tac(folder: Path) -> None:
    (folder / "dag.json").write_text(dag(3000, 40))
    gt.order(str(folder / "dag.json"), "tac")


def run(folder: Path) -> None:
    _core.run(json.dumps(spec([(1, 1, 8)] * 9, workers=64, iterations=200_000, noise_ppm=10**5)))


def set_up(folder: Path) -> None:
    topology = {"kind": "leaf_spine", "leaves": 400, "spines": 16, "hosts_per_leaf": 64}
    flow = {"start": "0s", "src": "h0", "dst": "h1", "bytes": "1B"}
    scenario = {
        "traffic": {"web": {"flows": [flow]}},
        "cluster": {"topology": topology},
        "run": {"engine": "fluid", "duration": "1s"},
    }
    gt.run(Scenario.from_dict(scenario), limits=Limits(10**11, 1e5))


def read_kineto(folder: Path) -> None:
    event = '{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d,"dur":3,"args":{"External id":1}}'
    events = ",".join(event % number for number in range(50_000))
    (folder / "trace.json").write_text(f'{{"traceEvents":[{events}]}}')
    traces.read(folder / "trace.json")


def write_table(folder: Path) -> None:
    # A fast machine writes a million cells in 10 ms, and looks are 20 ms apart.
    cells = list(range(300_000))
    _core.Table.from_columns([(f"column{index}", cells) for index in range(60)]).to_csv()


# The schedulers tic and layer are not among them: their time is linear in the size of the graph.
LONG_WORK = [run, set_up, order, order_by_tac, read_kineto, write_table]


@pytest.mark.parametrize("work", LONG_WORK)
def test_a_limit_ends_long_work_of_the_core(work: Callable[[Path], None], tmp_path: Path) -> None:
    with allowed(0), pytest.raises(LimitReached):
        work(tmp_path)


@pytest.mark.parametrize("work", LONG_WORK)
def test_ctrl_c_ends_long_work_of_the_core(work: Callable[[Path], None], tmp_path: Path) -> None:
    class Impatient:
        count = 0

        def check(self) -> None:
            self.count += 1
            if self.count == 1:
                os.kill(os.getpid(), signal.SIGINT)

    impatient = Impatient()
    with watch.watching(impatient), pytest.raises(KeyboardInterrupt):  # type: ignore[arg-type]
        work(tmp_path)
    # Looks are 20 ms apart: it is heard at one of the next.
    assert impatient.count <= 3


def test_a_limit_of_time_ends_a_run_and_says_how_to_go_on() -> None:
    scenario = Scenario.from_dict(uneven(1000, 20_000))
    limits = Limits(memory_bytes=10**12, time_s=estimate.estimate(scenario).cpu_s)
    began = watch.Watch(limits.allowed_bytes, 0.0, began_s=time.monotonic() - watch.LEAST_S)
    with watch.watching(began), pytest.raises(SimulationError) as caught:
        gt.run(scenario, limits=limits)
    assert isinstance(caught.value, LimitReached)
    assert caught.value.errors[0]["code"] == "GT054"
    assert "--max-time" in str(caught.value)


def test_a_limit_of_memory_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "check", lambda scenarios, *_: [estimate.estimate(one) for one in scenarios])
    before = watch.resident_bytes()
    with pytest.raises(LimitReached, match=r"of memory.*200 MB is allowed") as caught:
        run_all([Scenario.from_dict(uneven(4000, 5_000))], limits=Limits(memory_bytes=200_000_000))
    assert caught.value.what == "memory"
    assert caught.value.share is not None
    assert watch.resident_bytes() - before < 400_000_000


def test_a_study_keeps_and_shows_what_is_finished_at_a_limit(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(job()))
    small, large = Scenario.from_dict(job()), Scenario.from_dict(uneven(1000, 15_000))
    with allowed(20), pytest.raises(LimitReached) as caught:
        run_all([small, large], jobs=1, limits=Limits(10**12, 1e6))
    assert caught.value.results[0] is not None
    assert caught.value.results[1] is None
    assert caught.value.share is not None
    assert caught.value.share < 1


def test_the_command_line_ends_at_a_limit_with_exit_code_3(tmp_path: Path) -> None:
    # It takes half a minute, so that the fastest machine is not done within the second that nothing ends.
    (tmp_path / "dag.json").write_text(dag(40_000, 100))
    command = [*GRADTIDE, "order", str(tmp_path / "dag.json"), "--max-time", "10ms", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert "error[GT054]: stopped after" in done.stderr
    assert json.loads(done.stdout)["errors"][0]["code"] == "GT054"


def test_one_deadline_holds_for_all_that_is_called_inside() -> None:
    scenario = Scenario.from_dict(job())
    with (
        watch.watching(watch.Watch(10**12, 0.0, began_s=time.monotonic() - watch.LEAST_S)),
        pytest.raises(LimitReached),
    ):
        run_all([scenario], limits=Limits(10**12, 1e6))


# Scenario; CPU seconds and bytes that its run took, and CPU seconds of its what-ifs.
TAKEN = {
    "many workers that differ": (uneven(1000, 10_000), 7.8, 2.6e9, 0.56),
    "what-ifs of workers that differ": (job(20, workers=2000, iterations=2, compute={"noise": 0.1}), 0.10, 67e6, 1.3),
    "what-ifs of many ranks": (job(4, workers=1000, iterations=3), 0.004, 7e6, 0.06),
}


@pytest.mark.parametrize("name", TAKEN)
def test_a_small_scenario_that_takes_much_is_told_to_take_much(name: str) -> None:
    data, run_s, run_bytes, what_ifs_s = TAKEN[name]
    scenario = Scenario.from_dict(data)
    alone, whole = estimate.estimate(scenario), estimate.estimate(scenario, what_if_count(scenario))
    # A factor of three is promised.
    assert (run_s + what_ifs_s) / 3 < whole.cpu_s < (run_s + what_ifs_s) * 3
    assert run_bytes / 3 < alone.memory_bytes < 3 * (run_bytes + estimate.BASE_BYTES)


@pytest.mark.parametrize("engine", ["fluid"])
def test_the_estimate_covers_workers_that_differ(engine: str) -> None:
    data = uneven(64, 4000)
    data["run"]["engine"] = engine
    scenario = Scenario.from_dict(data)
    told = estimate.estimate(scenario)
    # 7 times of 8 bytes while it runs, and 11 columns of 8 bytes in the table.
    assert told.memory_bytes > estimate.BASE_BYTES + 64 * 4000 * (56 + 88)
    alike = estimate.estimate(Scenario.from_dict(job(workers=64, iterations=4000)))
    assert told.cpu_s > 10 * alike.cpu_s


def test_the_estimate_covers_runs_at_other_rates() -> None:
    scenario = Scenario.from_dict(job(layers=20, iterations=20))
    count = what_if_count(scenario)
    assert count == len(gt.run(scenario).bandwidth)
    assert estimate.estimate(scenario, count).cpu_s > count / 2 * estimate.estimate(scenario).cpu_s
    with pytest.raises(ScenarioError, match="GT053"):
        run_all([scenario], limits=Limits(10**12, 2 * estimate.estimate(scenario).cpu_s), what_ifs=count)
