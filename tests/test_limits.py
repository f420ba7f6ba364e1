"""Hostile scale is refused before it is run, and what is interrupted keeps its finished part."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import gradtide as gt
from gradtide import Scenario, estimate
from gradtide.errors import Interrupted, LimitReached, ScenarioError
from gradtide.estimate import Limits
from gradtide.studies.compare import compare
from gradtide.studies.keep import Kept
from gradtide.studies.result import RunResult
from gradtide.studies.run import run_all, run_seen, sample
from gradtide.studies.store import key_of
from gradtide.studies.tenants.bands import tenants
from gradtide.studies.tenants.boundary import boundary
from run_folders import TINY_LOADS, results, tiny_tenants

pytestmark = pytest.mark.process

GRADTIDE = [sys.executable, "-m", "gradtide"]
WEB = "[traffic.web]\nsizes = 'web-search'\n"
FLUID: dict[str, Any] = {"engine": "fluid", "duration": None}


def hostile(
    *, job: str = "", cluster: str = "", traffic: str = "", engine: str = "packet", **values: str | int | None
) -> str:
    """Return a small scenario with something in it blown up."""
    size: dict[str, str | int | None] = {"workers": 2, "iterations": 1, "hosts": 8, "rate": "10Gbps", "delay": "10us"}
    size |= {"duration": "1s", "model": "{ kind = 'thesis', layers = 10, time = '1ms' }"} | values
    duration = "" if size["duration"] is None else f"duration = '{size['duration']}'"
    return (
        f"[job.train]\nmodel = {size['model']}\n"
        f"workers = {size['workers']}\niterations = {size['iterations']}\n{job}\n"
        f"[cluster]\ntopology = {{ kind = 'star', hosts = {size['hosts']} }}\n"
        f"link = {{ rate = '{size['rate']}', delay = '{size['delay']}' }}\n{cluster}\n{traffic}\n"
        f"[run]\nengine = '{engine}'\n{duration}\n"
    )


REFUSED = {
    "10^9 flows": ("GT050", hostile(traffic=WEB + "arrivals = { rate = '1000000000/s' }")),
    "10^8 flows": ("GT053", hostile(traffic=WEB + "arrivals = { rate = '100000000/s', per = 'cluster' }")),
    "full load at 10^18 bit/s": ("GT050", hostile(rate="1000000000Gbps", traffic=WEB + "load = 1")),
    "an incast of 10^6 hosts, 10^4 times": (
        "GT050",
        hostile(hosts=1_000_000, traffic="[traffic.web]\nincast = { dst = 'h0', bytes = '1B', every = '100us' }"),
    ),
    "10^7 hosts": ("GT050", hostile(hosts=10_000_000)),
    "a ring of 10^6 hosts": ("GT053", hostile(hosts=1_000_000, workers=1_000_000)),
    "no buffer": ("GT026", hostile(cluster="queue = { kind = 'fifo', capacity = '0pkt' }")),
    "0 bit/s": ("GT026", hostile(rate="0bps")),
    "1 bit/s": ("GT051", hostile(rate="1bps")),
    "1 bit/s on the fluid engine": ("GT051", hostile(rate="1bps", **FLUID)),
    "a delay of a year": ("GT024", hostile(delay="31536000s")),
    "a delay of a hundred days": ("GT051", hostile(delay="8640000s")),
    "a delay of a hundred days on the fluid engine": ("GT051", hostile(delay="8640000s", **FLUID)),
    "10^15 bytes in a flow, to its end": (
        "GT053",
        hostile(traffic="[traffic.web]\nflows=[{start='0s',src='h0',dst='h1',bytes='1000TB'}]", duration="1000000s"),
    ),
    "10^18 bytes of parameters": (
        "GT050",
        hostile(
            rate="1000000Gbps",
            model="{ layers = [{ name = 'a', forward = '1s', backward = '1s', parameters = '1000000TB' }] }",
        ),
    ),
    "10^9 iterations": ("GT050", hostile(iterations=1_000_000_000)),
    "10^9 seconds": ("GT024", hostile(duration="1000000000s")),
    "NaN iterations": ("GT011", hostile(iterations="nan")),
    "minus five iterations": ("GT014", hostile(iterations=-5)),
    "a rate below zero": ("GT023", hostile(rate="-1Gbps")),
    "a rate that is no number": ("GT022", hostile(rate="nanGbps")),
    "chunks of a byte": ("GT053", hostile(job="schedule = { chunk = '1B' }")),
    "chunks of a byte on the fluid engine": ("GT053", hostile(job="schedule = { chunk = '1B' }", **FLUID)),
    "segments of a byte for minutes": (
        "GT053",
        hostile(cluster="transport = { segment = '1B' }", traffic=WEB + "load = 0.9", duration="100s"),
    ),
}


@pytest.fixture(autouse=True)
def _four_gigabytes_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is refused not depend on the machine."""
    monkeypatch.setattr(estimate.system, "free_bytes", lambda: 5_000_000_000)


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_scale_is_refused_with_one_kind_of_error(gradtide: Any, tmp_path: Path, name: str) -> None:
    code, text = REFUSED[name]
    (tmp_path / "s.toml").write_text(text)
    status, out, err = gradtide("run", tmp_path / "s.toml", "-o", tmp_path / "out")
    assert (status, out) == (2, "")
    # A run can take too much of both, memory and time.
    assert err.count(f"error[{code}]") == err.count("error[") in (1, 2 if code == "GT053" else 1)
    assert os.listdir(tmp_path) == ["s.toml"]


@pytest.mark.linux
@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"traffic": WEB + "arrivals = { rate = '100000000/s', per = 'cluster' }"},
        {"traffic": "[traffic.web]\nreplay = 'flows.csv'"},
    ],
)
def test_a_refusal_needs_no_memory(tmp_path: Path, more: dict[str, str]) -> None:
    import resource

    with open(tmp_path / "flows.csv", "wb") as file:
        file.truncate(20_000_000_000)  # of 10^9 lines; it takes no room on the disk
    (tmp_path / "s.toml").write_text(hostile(**more))  # type: ignore[arg-type]

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1_500_000_000, 1_500_000_000))

    command = [*GRADTIDE, "run", str(tmp_path / "s.toml")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=small, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "error[GT0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_star_of_a_hundred_thousand_hosts_simply_works() -> None:
    flow = "[traffic.web]\nflows = [{ start = '0s', src = 'h0', dst = 'h99999', bytes = '1MB' }]"
    result = gt.run(Scenario.from_toml(hostile(hosts=100_000, traffic=flow)))
    assert result.summary["traffic"]["web"]["all"]["completed"] == 1
    assert len(result.links) == 200_000


def test_a_terabyte_that_the_duration_cuts_off_is_no_terabyte() -> None:
    flow = "[traffic.web]\nflows = [{ start = '0s', src = 'h0', dst = 'h7', bytes = '1TB' }]"
    expected = estimate.estimate(Scenario.from_toml(hostile(traffic=flow, duration="10ms")))
    # All eight hosts' links for 10 ms: 8 · 10 ms · 10 Gbit/s / 1434 bytes, the acknowledgements and two hops each.
    assert expected.packet_hops < 3 * (8 + 2) * 10e-3 * 10e9 / 8 / 1434 + 1000


def test_a_terabyte_that_slow_links_between_switches_hold_back_is_no_terabyte() -> None:
    text = """
    [cluster.topology]
    kind = "leaf_spine"
    leaves = 2
    hosts_per_leaf = 4
    spines = 1
    fabric_link = { rate = "100Mbps" }
    [traffic.web]
    flows = [{ start = "0s", src = "h0", dst = "h7", bytes = "1TB" }]
    [run]
    engine = "packet"
    duration = "1s"
    """
    expected = estimate.estimate(Scenario.from_toml(text))
    # A second of 100 Mbit/s in segments, with an acknowledgement for two of them, over four hops.
    assert expected.packet_hops == pytest.approx(4 * 1.5 * 100e6 / 8 / 1380, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        hostile(workers=8, iterations=2, duration="2s"),
        hostile(hosts=64, workers=32, job="schedule = { chunk = '10MB' }"),
        hostile(traffic=WEB + "arrivals = { rate = '100/s' }", duration="2s"),
        hostile(traffic="[traffic.web]\ncdf = [{ bytes = '1B', cdf = 1 }]\narrivals = { rate = '2000/s' }"),
        hostile(traffic=WEB + "load = 0.4", duration="500ms"),
        hostile(iterations=200, job="schedule = { fusion = '0B' }", **FLUID),
        "paper/pcn",
    ],
)
def test_an_estimate_holds_within_a_factor_of_three(text: str) -> None:
    scenario = Scenario.load(text) if text == "paper/pcn" else Scenario.from_toml(text)
    expected, cost = estimate.estimate(scenario), gt.run(scenario).summary["cost"]
    for name in ("packet_hops", "events"):
        told, found = getattr(expected, name), cost[name]
        assert told == found == 0 or 1 / 3 < told / found < 3, f"{name}: {told} told, {found} found"


def test_flows_of_a_list_are_counted_exactly() -> None:
    starts = "".join(f"{{ start = '{ms}ms', src = 'h0', dst = 'h1', bytes = '1kB' }}," for ms in range(10))
    scenario = Scenario.from_toml(hostile(traffic=f"[traffic.web]\nflows = [{starts}]", duration="5ms"))
    assert scenario.expected_traffic == ((5, 5000),)
    assert estimate.estimate(scenario).flows == len(scenario.traffic[0]) == 5


def test_what_is_estimated_is_printed_and_not_run(gradtide: Any, tmp_path: Path) -> None:
    code, _, err = gradtide("run", "paper/gao2020-ch5", "--estimate", "-o", tmp_path / "out")
    assert (code, os.listdir(tmp_path)) == (2, [])
    assert "--estimate runs nothing" in err
    code, out, _ = gradtide("run", "paper/gao2020-ch5", "--estimate", "--json")
    document = json.loads(out)
    assert (code, document["schema"]) == (0, "gradtide.estimate/1")
    # 23 flows a second and host, 8 hosts, 12 s.
    assert document["flows"] == 23 * 8 * 12
    code, out, _ = gradtide("run", "paper/gao2020-ch5", "--estimate")
    assert code == 0
    assert f"{document['packet_hops']:,}" in out
    assert "Most of the time goes into" in out


@pytest.mark.parametrize("command", ["run", "compare", "tenants"])
def test_a_limit_is_lowered_and_raised(gradtide: Any, tmp_path: Path, command: str) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(tiny_tenants()))
    more = ["--schedule", "fifo"] if command == "compare" else []
    for limit in (["--max-memory", "1MB"], ["--max-time", "1ms"]):
        code, _, err = gradtide(command, tmp_path / "tiny.json", *more, *limit)
        assert (code, err.count("error[GT053]")) == (2, 1)
        assert f"allow it: {limit[0]}" in err
    code, _, _ = gradtide(command, tmp_path / "tiny.json", *more, "--max-memory", "64GB", "--max-time", "10d")
    assert code == 0


def test_what_the_refusal_asks_for_is_enough() -> None:
    scenario = Scenario.from_dict(tiny_tenants())
    told = estimate.estimate(scenario)
    with pytest.raises(ScenarioError) as caught:
        gt.run(scenario, limits=Limits(memory_bytes=1, time_s=1e-6))
    asked = [error["hint"].split()[-1] for error in caught.value.errors]
    allowed = estimate.limits(*asked)
    assert allowed.memory_bytes is not None
    assert told.memory_bytes <= allowed.memory_bytes <= 1.2 * told.memory_bytes
    assert told.cpu_s <= allowed.time_s <= 1.2 * told.cpu_s


@pytest.mark.parametrize("limit", [("--max-memory", "5"), ("--max-time", "5"), ("--max-time", "fast")])
def test_a_limit_has_a_unit(gradtide: Any, limit: tuple[str, str]) -> None:
    code, _, err = gradtide("run", "paper/gao2020-ch4", *limit)
    assert code == 2
    assert limit[1] in err
    assert "write" in err


def test_runs_at_once_need_their_memory_together() -> None:
    scenarios = [Scenario.from_dict(tiny_tenants()).replace(seed=seed) for seed in range(4)]
    one = estimate.estimate(scenarios[0]).memory_bytes - estimate.BASE_BYTES
    limits = Limits(memory_bytes=estimate.BASE_BYTES + one + one // 2)
    assert len(estimate.check(scenarios, limits, jobs=1)) == 4
    with pytest.raises(ScenarioError, match="GT053"):
        estimate.check(scenarios, limits, jobs=2)


def test_what_runs_cost_adds_up() -> None:
    scenarios = [Scenario.from_dict(tiny_tenants()).replace(seed=seed) for seed in range(6)]
    before = time.process_time()
    results = run_all(scenarios, jobs=3)
    spent_s = time.process_time() - before
    # The threads are parts of the process; each clock reads in steps of a tick, 10 ms at most.
    assert sum(result.summary["cost"]["cpu_s"] for result in results) <= spent_s + len(results) * 0.01


# What is interrupted


class _Interrupter:
    """Progress that presses Ctrl-C when so much is done."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __call__(self, share: float) -> None:
        if share >= self.share:
            raise KeyboardInterrupt


def runs_kept(folder: Path) -> int:
    """Return how many finished runs an unfinished folder holds, also while somebody writes it."""
    for path in folder.glob("finished/*.store"):
        # There is a moment in which the file has no tables yet.
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT count(*) FROM outputs").fetchone()[0])
    return 0


STUDIES: dict[str, Callable[..., Any]] = {
    "tenants": lambda **more: tenants(tiny_tenants(), seeds=(0, 1), **more),
    "map": lambda **more: boundary(tiny_tenants(), **TINY_LOADS, **more),
    "compare": lambda **more: compare(tiny_tenants(), **more),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_an_interrupted_study_goes_on_where_it_was(tmp_path: Path, name: str) -> None:
    STUDIES[name]().save(tmp_path / "whole")
    keep = Kept(tmp_path / "out")
    with pytest.raises(Interrupted) as caught:
        STUDIES[name](keep=keep, progress=_Interrupter(0.5))
    stop = caught.value
    finished = sum(result is not None for result in stop.results)
    assert 0 < finished == keep.count == runs_kept(keep.folder) < len(stop.results)
    assert str(stop) == f"interrupted: {finished} of {len(stop.results)} runs are finished"

    keep.show_part(stop)
    summary = json.loads((keep.folder / "summary.json").read_text())
    assert summary["complete"] is False
    assert summary["headline"].startswith(f"Interrupted with {finished} of {len(stop.results)} runs finished")
    assert "Interrupted with" in (keep.folder / "report.html").read_text()
    part = results(keep.folder)
    # What is finished reads as it does in the whole study.
    same = [path for path in part if path.startswith(("runs/", "cells/")) and path.endswith("flows.csv")]
    assert same
    assert all(part[path] == (tmp_path / "whole" / path).read_bytes() for path in same)
    keep.close()

    again = Kept(tmp_path / "out")
    ran: list[float] = []
    study = STUDIES[name](keep=again, progress=ran.append)
    study.save(tmp_path / "out")
    again.forget()
    assert study.summary["complete"] is True
    assert results(tmp_path / "out") == results(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]


def test_a_study_at_a_limit_keeps_its_finished_runs_and_goes_on(
    gradtide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["compare", "paper/gao2020-ch4", "--rate", "1Gbps,2Gbps", "-j", "1", "-q", "-o"]
    kept = tmp_path / "out.incomplete"

    class ReachedAtThree:
        def check(self) -> None:
            if runs_kept(kept) >= 3:
                raise LimitReached("memory", 1e9, 2e9, 0.5)

    with monkeypatch.context() as patch:
        patch.setattr(Limits, "watch", ReachedAtThree)
        code, _, err = gradtide(*command, tmp_path / "out")
    finished = runs_kept(kept)
    assert code == 3
    assert 3 <= finished < 8
    assert f"{finished} finished runs are kept in" in err
    assert "error[GT054]: stopped at 2 GB of memory" in err
    assert "or allow more: --max-memory" in err
    assert os.listdir(tmp_path) == ["out.incomplete"]
    summary = json.loads((kept / "summary.json").read_text())
    assert summary["complete"] is False
    assert summary["headline"].startswith(f"Stopped at a limit with {finished} of")
    assert gradtide(*command, tmp_path / "out")[0] == gradtide(*command, tmp_path / "whole")[0] == 0
    assert results(tmp_path / "out") == results(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]


def test_a_finished_run_comes_back_without_a_digit_lost(tmp_path: Path) -> None:
    scenario = Scenario.from_dict(tiny_tenants())
    result = gt.run(scenario)
    with closing(Kept(tmp_path / "out")) as keep:
        assert keep.find(scenario) is None
        keep.add(result)
    with closing(Kept(tmp_path / "out")) as keep:
        found = keep.find(scenario)
        assert keep.find(scenario.replace(seed=5)) is None
    assert found is not None
    assert found.summary == result.summary
    for table in ("iterations", "transfers", "operations", "links", "flows"):
        assert getattr(found, table).to_csv() == getattr(result, table).to_csv()


def test_of_runs_that_are_seen_no_more_are_in_memory_than_are_under_way(tmp_path: Path) -> None:
    scenarios = [sample().replace(seed=seed) for seed in range(8)]
    whole: weakref.WeakSet[RunResult] = weakref.WeakSet()

    def seen(index: int, result: RunResult) -> tuple[int, int, int]:
        whole.add(result)
        return index, result.scenario.seed, len(whole)

    for _ in range(2):  # the second time they are found again
        with closing(Kept(tmp_path / "out")) as keep:
            found = run_seen(scenarios, seen, 2, None, keep)
        assert [(index, seed) for index, seed, _ in found] == [(seed, seed) for seed in range(8)]
        assert max(count for *_, count in found) <= 2


@pytest.mark.parametrize("damage", [None, 7, "text", b"", b"garbage", b"\x78\x01\x00\x00"])
def test_a_damaged_finished_run_is_run_again(tmp_path: Path, damage: Any) -> None:
    scenarios = [sample(), sample().replace(seed=1)]
    said: list[str] = []
    with closing(Kept(tmp_path / "out", said.append)) as keep:
        run_all(scenarios, keep=keep)
        [path] = (keep.folder / "finished").glob("*.store")
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            # The table wants a value; what is damaged may have none.
            database.execute("PRAGMA writable_schema = ON")
            database.execute("UPDATE sqlite_master SET sql = replace(sql, 'payload BLOB NOT NULL', 'payload BLOB')")
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("UPDATE outputs SET payload = ? WHERE key = ?", (damage, key_of(scenarios[0])))
        assert [keep.find(one) is None for one in scenarios] == [True, False]
        run_all(scenarios, keep=keep)
        assert keep.count == 2
    [text] = said
    assert "it is run again" in text


def test_another_study_with_the_same_folder_deletes_nothing(tmp_path: Path) -> None:
    first, second = Kept(tmp_path / "out"), Kept(tmp_path / "out")
    first.add(gt.run(sample()))
    second.add(gt.run(sample().replace(seed=1)))
    second.forget()
    with closing(Kept(tmp_path / "out")) as third:
        assert third.find(sample()) is not None
        assert third.find(sample().replace(seed=1)) is None
    first.forget()
    assert os.listdir(tmp_path) == []


def test_the_last_of_two_studies_on_one_folder_deletes_what_is_kept(tmp_path: Path) -> None:
    first, second = Kept(tmp_path / "out"), Kept(tmp_path / "out")
    first.add(gt.run(sample()))
    second.add(gt.run(sample().replace(seed=1)))
    assert second.find(sample()) is not None
    # It has all runs of the folder; the other has it open, and keeps what it still runs.
    second.forget()
    first.add(gt.run(sample().replace(seed=2)))
    with closing(Kept(tmp_path / "out")) as third:
        assert third.find(sample().replace(seed=2)) is not None
    first.forget()
    assert os.listdir(tmp_path) == []


def test_somebody_elses_folder_is_not_taken_for_an_unfinished_study(gradtide: Any, tmp_path: Path) -> None:
    (tmp_path / "out.incomplete").mkdir()
    (tmp_path / "out.incomplete" / "thesis.txt").write_text("ten years of work")
    code, out, err = gradtide("compare", "paper/gao2020-ch4", "-o", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "contains files that gradtide did not write" in err
    assert os.listdir(tmp_path / "out.incomplete") == ["thesis.txt"]


def test_a_study_that_cannot_go_on_keeps_what_is_finished(gradtide: Any, tmp_path: Path) -> None:
    # The second run is over before the first iteration is.
    scenarios = [Scenario.from_dict(tiny_tenants()), Scenario.from_dict(tiny_tenants()).replace(duration="1us")]
    with closing(Kept(tmp_path / "out")) as keep:
        with pytest.raises(gt.SimulationError, match="completes no measured iteration"):
            run_all(scenarios, keep=keep)
        assert keep.find(scenarios[0]) is not None


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["tenants", "--seeds", "4"], ["tenants", "map"], ["reproduce"]])
def test_ctrl_c_ends_a_study_and_keeps_its_finished_runs(tmp_path: Path, arguments: list[str]) -> None:
    command = [*GRADTIDE, *arguments, "gao2020/ch5" if arguments[0] == "reproduce" else "paper/gao2020-ch5"]
    command += ["-j", "2", "-o", str(tmp_path / "out")]
    kept = tmp_path / "out.incomplete"
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        while runs_kept(kept) < 2:
            assert process.poll() is None, "the study ended before it could be interrupted; make it longer"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    kept_runs = runs_kept(kept)
    place = os.path.relpath(kept, Path.cwd())
    kept_text = f"{kept_runs} finished runs are kept in {place}, and the same command continues from there"
    assert err == f"interrupted: {kept_text}\n"
    assert os.listdir(tmp_path) == ["out.incomplete"]
    assert json.loads((kept / "summary.json").read_text())["complete"] is False
    assert not list(kept.rglob("*.partial"))


@pytest.mark.slow
def test_ctrl_c_ends_a_packet_run_in_which_nothing_completes(tmp_path: Path) -> None:
    flow = "[traffic.web]\nflows = [{ start = '0s', src = 'h0', dst = 'h7', bytes = '1TB' }]"
    model = "model = { layers = [{ name = 'a', forward = '1000s', backward = '1000s', parameters = '1MB' }] }\n"
    text = hostile(traffic=flow, duration="9000s")
    (tmp_path / "s.toml").write_text(text.replace(text.splitlines(keepends=True)[1], model))
    command = [*GRADTIDE, "run", str(tmp_path / "s.toml"), "-o", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(3)
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (130, "")
    assert err == "interrupted; no incomplete files remain\n"
    assert os.listdir(tmp_path) == ["s.toml"]


# Where nothing can be written


@pytest.fixture
def small_disk(mounted: Callable[..., Path]) -> Path:
    """A file system of 64 kB."""
    return mounted("disk", "-o", "size=64k")


@pytest.mark.parametrize(
    ("command", "words"), [("run", "No space left on device"), ("tenants", "disk is full; make room")]
)
def test_a_full_disk_is_one_error_and_nothing_half_written(
    gradtide: Any, small_disk: Path, tmp_path: Path, command: str, words: str
) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(tiny_tenants()))
    code, out, err = gradtide(command, tmp_path / "tiny.json", "-o", small_disk / "out")
    assert (code, out) == (3, "")
    assert err.count(words) == 1
    assert "kept in" not in err
    assert os.listdir(small_disk) == []


def test_finished_runs_on_a_full_disk_are_whole_and_spoken_of(
    gradtide: Any, mounted: Callable[..., Path], tmp_path: Path
) -> None:
    disk = mounted("disk", "-o", "size=200k")
    command = ["compare", "paper/gao2020-ch4", "--rate", "1Gbps,2Gbps", "-j", "1", "-q", "-o"]
    code, out, err = gradtide(*command, disk / "out")
    assert (code, out) == (3, "")
    assert err.count("disk is full; make room") == 1
    assert os.listdir(disk) == ["out.incomplete"]
    subprocess.run(["mount", "-o", "remount,size=64M", str(disk)], check=True)
    found = runs_kept(disk / "out.incomplete")
    assert 0 < found < 8
    assert f"{found} finished run" in err
    assert gradtide(*command, disk / "out")[0] == gradtide(*command, tmp_path / "whole")[0] == 0
    assert results(disk / "out") == results(tmp_path / "whole")
    assert os.listdir(disk) == ["out"]


def test_a_path_that_a_store_cannot_have_is_refused_before_the_run(gradtide: Any, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 150) / ("y" * 150)
    most = 504 - len(".incomplete/finished/0123456789abcdef.store") - len(f"{deep}/")
    for length, code in ((most + 1, 2), (most, 0)):
        out = deep / ("z" * length)
        ended, _, err = gradtide("compare", "paper/gao2020-ch4", "-q", "-o", out)
        assert (ended, "more than 504 bytes" in err) == (code, code == 2)


def test_a_place_that_cannot_be_written_is_refused_before_the_run(
    gradtide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = gradtide("run", "paper/gao2020-ch4", "-o", tmp_path / "file" / "out")
    assert (code, out) == (2, "")
    assert "is a file" in err
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    code, out, err = gradtide("tenants", "paper/gao2020-ch5", "-o", tmp_path / "new" / "out")
    assert (code, out) == (2, "")
    assert "read-only" in err


@pytest.mark.parametrize(
    ("command", "near"),
    [
        (["run", "paper/gao2020-ch4"], "iteration_time_ms"),
        (["compare", "paper/gao2020-ch4"], "iteration_time_ms"),
        (["tenants", "paper/gao2020-ch5"], "iteration_change_percent"),
        (["tenants", "map", "paper/gao2020-ch5"], "iteration_change_percent"),
    ],
)
def test_a_check_of_no_figure_is_refused_before_the_run(
    gradtide: Any, tmp_path: Path, command: list[str], near: str
) -> None:
    wrong = near[:-2] + "z"
    code, out, err = gradtide(*command, "--fail-if", f"{wrong}>1", "-o", tmp_path / "out")
    assert (code, out) == (2, "")
    assert f"no figure '{wrong}'" in err
    assert near in err
    assert os.listdir(tmp_path) == []
