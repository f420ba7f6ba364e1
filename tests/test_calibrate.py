"""What hosts add to transfers, fitted to tables of measured times: `gradtide calibrate`."""

import json
from itertools import product
from pathlib import Path

import pytest

import gradtide as gt
from gradtide.cli import main
from gradtide.errors import ScenarioError

DATA = Path(__file__).parent / "data/timings"
SIZES = [10**power for power in range(3, 9)]
NCCL = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 67108864 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#
# Using devices
{devices}#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
{rows}# Out of bounds values : 0 OK
# Avg bus bandwidth    : 5.43
#
"""


def table(tmp_path, rows, header="bytes,time_us,depth"):
    path = tmp_path / "times.csv"
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    return path


def send_us(size, depth, *, latency_us=50.0, message_us=15.0, gbps=(10, 7, 7, 7)):
    """Return the time of parts one behind the other through stages in series."""
    times = [message_us, *(size * 8 / depth / rate / 1e3 for rate in gbps)]
    return latency_us + sum(times) + (depth - 1) * max(times)


def nccl_tests(tmp_path, time_us, ranks=8, sizes=SIZES, factor=None):
    """Write what all_reduce_perf prints."""
    factor = 2 * (ranks - 1) / ranks if factor is None else factor
    devices = "".join(
        f"#  Rank {r:2} Group  0 Pid  {4000 + r} on  node{r:02} device  0 [0x07] A100\n" for r in range(ranks)
    )
    rows = ""
    for size in sizes:
        time, rate = time_us(size), size / time_us(size) / 1e3
        block = f"{time:9.2f} {rate:7.2f} {factor * rate:7.2f}      0"
        rows += f"{size:12} {size // 4:13}     float     sum      -1 {block} {block}\n"
    path = tmp_path / "nccl.txt"
    path.write_text(NCCL.format(devices=devices, rows=rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("gbps", "link", "stages"),
    [
        ((10, 7, 7, 7), "10Gbps", ["7Gbps"] * 3),
        ((10, 4), "10Gbps", ["4Gbps"]),
        ((10, 20, 20), "10Gbps", ["10Gbps"]),
        ((10,), "10Gbps", []),
        # The link is taken for the slowest stage, and what is left (10, 7 and 7) is shared out.
        ((10, 7, 7, 7), None, ["7778Mbps"] * 3),
    ],
)
def test_stages_and_the_cost_of_a_message_are_found_again(tmp_path, gbps, link, stages):
    """Stages faster than the slowest cannot be told apart: two of 20 Gbit/s are one of 10."""
    rows = [(size, f"{send_us(size, depth, gbps=gbps):.6f}", depth) for size, depth in product(SIZES, (1, 2, 4, 8))]
    found = gt.calibrate(table(tmp_path, rows), link=link)
    assert found.cluster["link"] == {"rate": link or "7Gbps", "delay": "25us"}
    host = found.cluster["host"]
    assert host["message"] == "15us"
    assert list(host.get("stages", {}).values()) == stages
    assert max(abs(row["error_percent"]) for row in found.rows()) < 0.1


def test_a_simulated_table_is_simulated_again(tmp_path):
    """The formula of the fit is what the engine does, so the keys give the measured times."""
    host = {"message": "12us", "stages": {"copy": "5Gbps", "receive": "8Gbps"}}
    layer = {"name": "all", "forward": "1ms", "backward": "1ms"}
    job = {"workers": 2, "iterations": 1, "task": "exchange", "collective": {"kind": "point_to_point"}}

    def simulated_us(cluster, size, depth):
        model = {"layers": [{**layer, "parameters": f"{size}B"}]}
        one = {"job": {"a": {**job, "model": model, "schedule": {"depth": depth}}}, "cluster": cluster}
        return 1e3 * gt.run({**one, "run": {"engine": "fluid"}}).job["comm_ms"]

    true = {"link": {"rate": "10Gbps", "delay": "20us"}, "host": host}
    rows = [(size, f"{simulated_us(true, size, depth):.6f}", depth) for size, depth in product(SIZES, (1, 8))]
    found = gt.calibrate(table(tmp_path, rows), link="10Gbps")
    # The corner between message and slowest stage lies between two sizes; keys have four digits.
    for row in found.rows():
        assert row["fitted_us"] == pytest.approx(row["measured_us"], rel=2e-3)
        assert simulated_us(found.cluster, row["bytes"], row["depth"]) == pytest.approx(row["fitted_us"], rel=1e-4)


def test_nccl_tests_is_read_as_it_is(tmp_path):
    # 8 ranks: 14 messages of an eighth in sequence, each 60 us and its bytes at 4 Gbit/s.
    path = nccl_tests(tmp_path, lambda size: 14 * (60 + size / 8 * 8 / 4e3))
    found = gt.calibrate(path, link="10Gbps")
    assert (found.timings.collective, found.timings.ranks, found.timings.rounds) == ("all_reduce", 8, 14)
    assert found.cluster["link"] == {"rate": "10Gbps", "delay": "30us"}
    # 1/4 - 1/10 of a nanosecond a bit is left beside the link.
    assert found.cluster["host"] == {"stages": {"copy": "6667Mbps"}}
    assert any("All rows have one part" in note for note in found.notes)
    sent = gt.calibrate(path, collective="reduce_scatter", ranks=8)
    assert sent.timings.rounds == 7


def test_the_name_of_the_test_counts_more_than_its_figures(tmp_path):
    path = nccl_tests(tmp_path, lambda size: 20 + size / 1e3, ranks=2, factor=1.0)
    assert gt.calibrate(path).timings.collective == "all_reduce"
    path.write_text("# Collective test starting: sendrecv_perf\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert gt.calibrate(path).timings.collective == "send"


# In the files of these names: ranks and the first time.
PRINTED = {
    "all_reduce": (72, 1806.7),  # a GB200 NVL72 (coreweave/nccl-tests, pull request 43); the list of devices is cut off
    "reduce_scatter": (2, 21.0),  # with -J, -T and -C, as version 2.18 prints it
    "all_gather": (2, 35.21),  # a version without `root`; nothing was run out of place
}


def printed(collective):
    return (DATA / f"nccl_{collective}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("collective", PRINTED)
def test_what_versions_of_nccl_tests_print_is_read(tmp_path, collective):
    ranks, first_us = PRINTED[collective]
    found = gt.calibrate(DATA / f"nccl_{collective}.txt").timings
    assert (found.collective, found.ranks) == (collective, ranks)
    assert found.rows[0][2] == pytest.approx(first_us / 1e6)
    assert len(found.rows) == printed(collective).count(" float ")


def test_ranks_and_a_test_that_nccl_tests_does_not_name_are_asked_for(tmp_path):
    path = tmp_path / "nccl.txt"
    unnamed = "\n".join(line for line in printed("all_gather").splitlines() if "starting" not in line)
    path.write_text(unnamed, encoding="utf-8")
    with pytest.raises(ScenarioError, match="does not name the test"):
        gt.calibrate(path)
    assert gt.calibrate(path, collective="all_gather").timings.rounds == 1
    path.write_text("\n".join(line for line in unnamed.splitlines() if "Rank" not in line), encoding="utf-8")
    with pytest.raises(ScenarioError, match="does not state the number of ranks"):
        gt.calibrate(path, collective="all_gather")
    assert gt.calibrate(path, collective="all_gather", ranks=4).timings.rounds == 3


def test_noise_widens_the_intervals_and_a_fixed_time_that_may_be_none_is_told(tmp_path):
    large = [
        (size, send_us(size, 1, latency_us=0, message_us=1) * (1.1 if size % 3 else 0.9))
        for size in (10**7, 2 * 10**7, 3 * 10**7, 4 * 10**7, 2 * 10**8)
    ]
    found = gt.calibrate(table(tmp_path, large, "bytes,time_us"))
    assert found.fixed_s[1] > found.fixed_s[0]
    assert any("does not differ significantly from 0" in note for note in found.notes)
    wild = [(size, send_us(size, 1) * (4 if size == 10**5 else 1)) for size in SIZES]
    notes = gt.calibrate(table(tmp_path, wild, "bytes,time_us")).notes
    assert any("do not follow the formula" in note for note in notes)


@pytest.mark.parametrize(
    ("rows", "header", "line", "says"),
    [
        ([(1000, 20), (100_000, 120)], "bytes,time_us", None, "2 sizes of whole transfers, and a fit needs 3"),
        ([(1000, 20), (2000, 21), (3000, 22)], "bytes,time_us", None, "cannot separate a fixed time from a rate"),
        ([(1000, 20), (2000, "fast"), (10**6, 2000), (10**7, 20000)], "bytes,time_us", 3, "not a row of the table"),
        ([(1000, -1), (10**6, 2000), (10**7, 20000)], "bytes,time_us", 2, "not a row of the table"),
        ([(1000, 20), (10**6, 2000), (10**7, 20000)], "size,time_us", 1, "no column bytes"),
        ([(1000, 9, "broadcast"), (10**6, 2000, "broadcast"), (10**7, 20000, "broadcast")], "bytes,time_us,collective",
         None, '"broadcast" is not a collective that can be fitted'),
        ([(1000, 9, "send"), (10**6, 99, "all_reduce")], "bytes,time_us,collective", 3, "several values of collective"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_fitted_is_refused_with_its_line(tmp_path, rows, header, line, says):
    with pytest.raises(ScenarioError) as raised:
        gt.calibrate(table(tmp_path, rows, header))
    first = raised.value.errors[0]
    assert (first["code"], first["line"]) == ("GT066", line)
    assert says in first["msg"]
    assert first["hint"]


def test_files_that_hold_no_times_are_refused(tmp_path):
    for text in ("", "hello\nworld\n", "# size time\n", "\n,\n", "1,2\n"):
        path = tmp_path / "other.txt"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ScenarioError, match="GT066"):
            gt.calibrate(path)


def test_the_command_writes_a_cluster_that_a_plan_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = table(tmp_path, [(size, send_us(size, depth), depth) for size, depth in product(SIZES, (1, 4))])
    arguments = ["gradtide", "calibrate", str(path), "--link", "10Gbps", "--json", "-o", "host.toml"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "gradtide.calibration/1"
    assert len(document["rows"]) == 12
    found = gt.compare("alexnet", cluster="host.toml", workers=[2], schedules=["fifo+barrier", "fifo+barrier+depth=4"])
    assert found.rows[1]["saves_percent"] > 0
