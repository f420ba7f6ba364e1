"""The packet engine on several threads: they are used, and the run folder is the same, byte for byte."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradtide import Scenario, ScenarioError, run

Command = Callable[..., tuple[int, str, str]]

COUNTS = (2, 4, 8, 16)
SHARED_POOL = {"switch_buffer": {"capacity": "2MB"}}
ANNOUNCED = {"queue": {"kind": "pcn", "capacity": "100pkt", "threshold": "20pkt", "announced": "5pkt"}}


def job(workers: int, size: str = "8MB", iterations: int = 1, **keys: Any) -> dict[str, Any]:
    """Return a job that sends nearly all the time, around a ring."""
    layer = {"name": "a", "parameters": size, "forward": "10us", "backward": "20us"}
    return {"train": {"model": {"layers": [layer]}, "workers": workers, "iterations": iterations, **keys}}


def flows(hosts: int, size: str = "150kB", **keys: Any) -> dict[str, Any]:
    """Return three flows from every host, to a near one and two farther ones, which all start within 4 us."""
    pairs = [(src, (src + step) % hosts, 100 * step + 13 * src) for step in (1, 5, 9) for src in range(hosts)]
    listed = [{"start": f"{at}ns", "src": f"h{src}", "dst": f"h{dst}", "bytes": size} for src, dst, at in pairs]
    return {"flows": listed, **keys}


def scenario(hosts: int = 64, **tables: Any) -> Scenario:
    """Return a network of long and full links: a day of the engine's calendar has enough for 8 threads or more."""
    cluster = {"topology": {"kind": "star", "hosts": hosts}, "link": {"rate": "10Gbps", "delay": "50us"}}
    return Scenario.from_dict(
        {
            "job": job(8),
            "traffic": {"web": flows(hosts)},
            "run": {"engine": "packet", "duration": "5s", **tables.pop("run", {})},
            **{name: table for name, table in tables.items() if name != "cluster"},
            "cluster": {**cluster, **tables.get("cluster", {})},
        }
    )


LEAF_SPINE = {"kind": "leaf_spine", "leaves": 3, "hosts_per_leaf": 16, "spines": 6}
CASES = {
    "a star with a job and flows": scenario(),
    "a leaf-spine network with ECMP": scenario(48, cluster={"topology": LEAF_SPINE}),
    "losses, and SACK that repairs them": scenario(cluster={"queue": {"kind": "pfifo_fast", "capacity": "20pkt"}}),
    "marks, which DCTCP heeds": scenario(
        cluster={
            "queue": {"kind": "ecn", "capacity": "200pkt", "threshold": "20pkt"},
            "transport": {"kind": "dctcp"},
        }
    ),
    "two strict bands": scenario(
        job=job(8, priority="low"),
        traffic={"web": flows(64, "100kB", priority="high"), "bulk": flows(64, "60kB", priority="low")},
        cluster={"queue": {"kind": "strict", "bands": 2, "capacity": "100pkt"}},
    ),
    "a probe": scenario(run={"probe": {"every": "1ms", "cwnd": ["train"]}}),
    "a job alone": scenario(job=job(64, "2MB", iterations=2), traffic={}, cluster={"transport": {"kind": "ideal"}}),
}


def folder(scenario: Scenario, threads: int, path: Path) -> tuple[int, dict[str, bytes]]:
    """Return how often threads worked together, and the files of a run folder but for the time at which it was made."""
    result = run(scenario, threads=threads)
    result.save(path)
    return result.output.thread_stretches, contents(path)


def contents(path: Path) -> dict[str, bytes]:
    """Return the files of a run folder."""
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    del files["versions.json"]
    return files


@pytest.mark.parametrize("name", CASES)
def test_a_run_folder_is_the_same_on_any_number_of_threads(name: str, tmp_path: Path) -> None:
    stretches, on_one = folder(CASES[name], 1, tmp_path / "1")
    assert stretches == 0
    for count in COUNTS:
        stretches, found = folder(CASES[name], count, tmp_path / str(count))
        # 16 threads need 1,600 arrivals in a day of the calendar, which not every case has.
        assert stretches > 0 or count > 8
        assert found.keys() == on_one.keys()
        assert {file for file in found if found[file] != on_one[file]} == set()


@pytest.mark.parametrize("cluster", [SHARED_POOL, ANNOUNCED], ids=["a shared buffer", "announcements"])
def test_switches_whose_ports_share_something_are_left_to_one_thread(cluster: dict[str, Any], tmp_path: Path) -> None:
    shared = scenario(16, traffic={"web": flows(16, "50kB")}, cluster=cluster)
    assert folder(shared, 8, tmp_path / "8") == folder(shared, 1, tmp_path / "1")


def test_the_command_runs_on_threads_and_leaves_the_same_folder(gradtide: Command, tmp_path: Path) -> None:
    path = tmp_path / "case.toml"
    path.write_text(CASES["marks, which DCTCP heeds"].to_toml())
    printed = []
    for count in (1, 2):
        code, out, err = gradtide("run", path, "--threads", count, "-o", tmp_path / str(count), "-q")
        assert (code, err) == (0, "")
        printed.append(out)
    assert printed[0] == printed[1]
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_a_user_hears_of_threads_that_were_of_no_use(gradtide: Command, tmp_path: Path) -> None:
    path = tmp_path / "case.toml"
    path.write_text(scenario(8, traffic={}, cluster=SHARED_POOL).to_toml())
    code, _, err = gradtide("run", path, "--threads", 2)
    assert code == 0
    assert err.startswith("note: one thread did everything")


@pytest.mark.parametrize("count", ["0", "-1", "65", "two", "1.5"])
def test_what_is_no_number_of_threads_is_refused_with_the_name_of_the_option(gradtide: Command, count: str) -> None:
    code, out, err = gradtide("run", "paper/gao2020-ch5", "--threads", count)
    assert (code, out) == (2, "")
    assert "--threads" in err


@pytest.mark.parametrize("count", [0, -1, 65, True, 1.5, "2", None])
def test_so_it_is_in_python(count: Any) -> None:
    with pytest.raises(ValueError, match=r"threads: .* is no number of threads; write a whole number from 1 to 64"):
        run("paper/gao2020-ch5", threads=count)


@pytest.mark.parametrize("engine", ["fluid"])
def test_an_engine_with_one_thread_is_given_no_more(gradtide: Command, engine: str) -> None:
    arguments = ("run", "paper/gao2020-ch4", "--engine", engine, "--threads")
    assert gradtide(*arguments, 1)[0] == 0
    code, out, err = gradtide(*arguments, 2)
    assert (code, out) == (2, "")
    expected = f"--threads: the {engine} engine runs on one thread; leave this out, or take the packet engine"
    assert err.strip() == f"error: {expected}"
    with pytest.raises(ValueError, match=f"threads: the {engine} engine") as refused:
        run("paper/gao2020-ch4", engine=engine, threads=2)
    assert not isinstance(refused.value, ScenarioError)


def test_an_estimate_uses_no_threads(gradtide: Command) -> None:
    code, _, err = gradtide("run", "paper/gao2020-ch5", "--threads", 2, "--estimate")
    assert code == 2
    assert "--threads needs a run" in err


def test_a_run_on_threads_ends_where_it_is_told_to() -> None:
    case, told = CASES["a star with a job and flows"], []

    def stop(share: float) -> None:
        told.append(share)
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        run(case, threads=2, progress=stop)
    assert len(told) == 1
    run(case, threads=2, progress=told.append)
    assert len(told) > 2


@pytest.mark.linux
def test_threads_that_the_system_does_not_give_are_an_error_and_no_wait() -> None:
    program = """
import resource
from gradtide import run
from gradtide.errors import SimulationError
from gradtide.studies.run import sample

scenario = sample()
run(scenario)
pages = int(open("/proc/self/statm").read().split()[0])
# Each thread has a stack of 2 MiB.
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**25,) * 2)
run(scenario, threads=4)
try:
    run(scenario, threads=64)
except SimulationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("the system does not give this process 64 threads")
    assert done.stdout.strip().endswith("ask for fewer")
