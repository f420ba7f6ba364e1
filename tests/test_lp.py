"""Start and band by a linear programme: against hand, exhaustive search, and runs."""

import json
import random
import re
import subprocess
import sys
from itertools import permutations, product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gradtide as gt
from gradtide import cli, lp
from gradtide.errors import ScenarioError
from gradtide.intervals import mean_interval
from gradtide.studies.tenants import lp as study
from gradtide.studies.tenants.cases import Case
from run_folders import tiny_tenants

# A toy: five layers of Gao (2020), chapter 4, with F = 100 and B = 200 (docs/models/training.md): forward 40, 30, 20,
# 10, 10, backward 20, 20, 40, 60, 80, sizes 1, 1, 1, 4, 12. Chapter 6 has five layers and three levels, too, and
# prints no numbers; these levels take 8, 12 and 20 a unit of size. Ready when backward has come down to the layer,
# needed when forward comes up to it, behind 220 of backward.
TOY = [
    {
        "name": f"layer{layer}",
        "bytes": size,
        "ready": ready,
        "needed": needed,
        "times": [8 * size, 12 * size, 20 * size],
    }
    for layer, (size, ready, needed) in enumerate(
        [(1, 220, 220), (1, 200, 260), (1, 180, 290), (4, 140, 310), (12, 80, 320)]
    )
]
TOY_COMPUTE = 330


def test_the_toy_is_solved_as_by_hand():
    """Why nothing is better.

    Layer 0 is ready at 220 and all of forward, 110, comes behind it: T >= 220 + 8 + 110 = 338, with equality only if it
    goes high and the channel is free at 220. At T = 338 each bucket may end 8 later than it is needed. Layer 4 then has
    [80, 328], of which [220, 228] is layer 0's: 140 before and 100 behind. It takes 96 high, 144 mid: high it is, and
    13 of 19 units at least go high. Before: [80, 176]; then layers 2 and 1 low, [180, 200] and [200, 220]; layer 3 low
    would end at 256, so it goes behind, [228, 308], before 318. None of the other three is high, and none mid.
    """
    found = gt.start_and_band(TOY, TOY_COMPUTE)
    assert found.iteration_time == found.lower_bound == 338
    assert found.order == (4, 2, 1, 0, 3)
    assert found.bands == (0, 2, 2, 2, 0)
    assert found.starts == (220, 200, 180, 228, 80)
    assert found.shares == (13 / 19, 0, 6 / 19)
    assert found.least_share == pytest.approx(13 / 19, abs=lp.SAME)
    assert found.optimal
    rows = {row["bucket"]: row for row in found.to_dicts()}
    assert (rows["layer0"]["needed"], rows["layer0"]["margin"]) == (220, -8)  # what all others wait for, too
    assert (rows["layer3"]["needed"], rows["layer3"]["margin"]) == (318, 10)
    # A queue of these ranks that never rests takes layer 3 at 176, as layer 2 is not ready, and is busy with it to 256.
    buckets = found.buckets
    assert lp.by_rank(buckets, found.bands, [found.order.index(i) for i in range(5)]) == (4, 3, 2, 1, 0)
    assert lp.evaluate(buckets, TOY_COMPUTE, (4, 3, 2, 1, 0), found.bands) == 256 + 20 + 20 + 8 + 110
    # All high in priority order: layers 4, 3, 1 and 2 follow one another from 80 on, so layer 0 waits from 220 to 224.
    # All low: layer 4 until 320, then 0, 1, 2 and 3, with two layers of forward behind them.
    by_layer = range(5)
    assert lp.evaluate(buckets, TOY_COMPUTE, lp.by_rank(buckets, [0] * 5, by_layer), [0] * 5) == 224 + 8 + 110
    assert lp.evaluate(buckets, TOY_COMPUTE, lp.by_rank(buckets, [2] * 5, by_layer), [2] * 5) == 320 + 3 * 20 + 80 + 20


# Against exhaustive search


def exact(buckets, compute):
    """Return the least (iteration time, bytes in each band but the last), by sets of buckets that have been sent."""
    bands = len(buckets[0]["times"])
    reached = {0: {(0, compute, (0,) * (bands - 1))}}
    everything = (1 << len(buckets)) - 1
    for sent in range(everything):
        for end, time, share in pareto(reached.pop(sent, ())):
            for index, bucket in enumerate(buckets):
                if sent >> index & 1:
                    continue
                for band, takes in enumerate(bucket["times"]):
                    ends = max(end, bucket["ready"]) + takes
                    moved = tuple(size + (bucket["bytes"] if band == at else 0) for at, size in enumerate(share))
                    longer = max(time, ends + compute - bucket["needed"])
                    reached.setdefault(sent | 1 << index, set()).add((ends, longer, moved))
    return min((time, share) for _, time, share in reached[everything])


def pareto(states):
    kept = []
    for end, time, share in sorted(states):
        if not any(t <= time and all(a <= b for a, b in zip(s, share, strict=True)) for _, t, s in kept):
            kept.append((end, time, share))
    return kept


def drawn_buckets(rng, count, bands):
    """Draw buckets in whole numbers: of layers, the last to be ready the first to be needed, or of anything."""
    compute = rng.randint(count, 40 * count)
    windows = [tuple(sorted((rng.randint(0, compute), rng.randint(0, compute)))) for _ in range(count)]
    if rng.random() < 0.5:
        turn = rng.randint(0, compute)
        ready = sorted(rng.randint(0, turn) for _ in range(count))
        windows = list(zip(ready, sorted((rng.randint(turn, compute) for _ in ready), reverse=True), strict=True))
    times = [sorted(rng.randint(0, 30) for _ in range(bands)) for _ in range(count)]
    if rng.random() < 0.2:
        rng.shuffle(times[0])
    return [
        {"bytes": rng.randint(1, 9), "ready": ready, "needed": needed, "times": each}
        for (ready, needed), each in zip(windows, times, strict=True)
    ], compute


def value(found):
    sizes = [0] * len(found.buckets[0].times)
    for bucket, band in zip(found.buckets, found.bands, strict=True):
        sizes[band] += bucket.bytes
    return found.iteration_time, tuple(sizes[:-1])


def check_schedule(found):
    """Whatever is found is a schedule: none before it is ready, none beside another, and the time is what it says."""
    free = 0
    for index in found.order:
        bucket, start = found.buckets[index], found.starts[index]
        assert start >= max(free, bucket.ready)
        free = found.ends[index]
        assert free == start + bucket.times[found.bands[index]]
        assert found.iteration_time >= free + found.compute - bucket.needed
    assert sorted(found.order) == list(range(len(found.buckets)))
    assert found.iteration_time >= max(found.compute, found.lower_bound * (1 - lp.SAME))
    assert found.shares[0] >= found.least_share - lp.SAME


@pytest.mark.parametrize("case", range(60))
def test_nothing_is_better_in_an_exhaustive_search(case):
    rng = random.Random(case)
    buckets, compute = drawn_buckets(rng, rng.randint(1, 7 if case % 6 == 0 else 5), rng.choice([1, 2, 2, 3]))
    found = gt.start_and_band(buckets, compute)
    check_schedule(found)
    assert value(found) == exact(buckets, compute)
    assert found.optimal
    assert found.lower_bound == pytest.approx(found.iteration_time, rel=lp.SAME)


@pytest.mark.parametrize("case", range(20))
def test_no_list_in_any_bands_is_faster(case):
    rng = random.Random(500 + case)
    buckets, compute = drawn_buckets(rng, 4, 2)
    found = gt.start_and_band(buckets, compute)
    lists = (
        (
            lp.evaluate(found.buckets, compute, order, bands),
            sum(b["bytes"] for b, x in zip(buckets, bands, strict=True) if x == 0),
        )
        for bands in product(range(2), repeat=4)
        for order in {*permutations(range(4)), *(lp.by_rank(found.buckets, bands, r) for r in permutations(range(4)))}
    )
    time, (high,) = value(found)
    assert (time, high) <= min(lists)


@pytest.mark.parametrize("case", range(20))
def test_of_a_given_order_no_bands_are_better(case):
    rng = random.Random(900 + case)
    buckets, compute = drawn_buckets(rng, 5, rng.choice([2, 3]))
    order = rng.sample(range(5), 5)
    found = gt.start_and_band(buckets, compute, order=order)
    check_schedule(found)
    assert found.order == tuple(order)
    levels = len(buckets[0]["times"])

    def worth(bands):
        sizes = [sum(b["bytes"] for b, band in zip(buckets, bands, strict=True) if band == at) for at in range(levels)]
        return lp.evaluate(found.buckets, compute, order, bands), tuple(sizes[:-1])

    assert value(found) == min(worth(bands) for bands in product(range(levels), repeat=5))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.01, 0.1, 0.5]), st.sampled_from([1000, 10**9]))
# The lists alone need longer than the least, and what is given up counts from that.
@example(221, 0.1, 1000)
def test_units_do_not_matter_and_what_is_given_up_buys_lower_bands(seed, give, unit):
    rng = random.Random(seed)
    buckets, compute = drawn_buckets(rng, 4, 2)
    found = gt.start_and_band(buckets, compute)
    larger = [
        {**b, "ready": unit * b["ready"], "needed": unit * b["needed"], "times": [unit * t for t in b["times"]]}
        for b in buckets
    ]
    same = gt.start_and_band(larger, unit * compute)
    assert value(same) == (unit * found.iteration_time, value(found)[1])
    slower = gt.start_and_band(buckets, compute, give=give)
    check_schedule(slower)
    assert slower.iteration_time <= (1 + give) * found.iteration_time * (1 + lp.SAME)
    assert slower.shares[0] <= found.shares[0]


def test_behind_a_barrier_all_are_needed_at_once():
    """The queue then only has to be through: ready at 0 and 6, 4 each, all needed at 6 of 9: T = 10 + 3 high."""
    buckets = [{"bytes": 1, "ready": ready, "needed": 6, "times": [4, 5]} for ready in (0, 6)]
    found = gt.start_and_band(buckets, 9)
    assert (found.iteration_time, found.bands, found.optimal) == (13, (1, 0), True)


# More than can be decided


def many(count, seed=0):
    rng = random.Random(seed)
    ready = sorted(rng.sample(range(1, 600_000), count))
    needed = sorted(rng.sample(range(600_000, 10**6), count), reverse=True)
    return [
        {"bytes": size, "ready": r, "needed": n, "times": [size, round(1.7 * size)]}
        for r, n, size in zip(ready, needed, (rng.randint(1, 8_000) for _ in ready), strict=True)
    ]


@pytest.mark.slow
def test_of_two_hundred_buckets_there_is_a_schedule_and_its_distance_to_what_none_beats():
    found = gt.start_and_band(many(200), 10**6)
    check_schedule(found)
    assert found.lower_bound <= found.iteration_time
    by_layer = range(200, 0, -1)
    listed = lp.evaluate(found.buckets, 10**6, lp.by_rank(found.buckets, [0] * 200, by_layer), [0] * 200)
    assert found.iteration_time <= listed


def test_equal_input_gives_equal_bytes():
    program = (
        "import json, sys; import gradtide as gt\n"
        "print(json.dumps(gt.start_and_band(json.loads(sys.argv[1]), 10**6).to_dict()))"
    )
    command = [sys.executable, "-c", program, json.dumps(many(12))]
    first, second = (subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2))
    assert first == second
    assert json.loads(first)["schema"] == "gradtide.start_and_band/1"


# Awkward input

GOOD = {"bytes": 1, "ready": 1, "needed": 2, "times": [1, 2]}
NAN = float("nan")


@pytest.mark.parametrize(
    ("buckets", "compute", "options", "said"),
    [
        ([], 9, {}, "there are no buckets"),
        ([{**GOOD, "ready": NAN}], 9, {}, "bucket 0: ready is nan; write a number from 0"),
        ([{**GOOD, "times": [1, NAN]}], 9, {}, "bucket 0: a time is nan"),
        ([{**GOOD, "times": [1, -1]}], 9, {}, "bucket 0: a time is -1"),
        ([{**GOOD, "times": []}], 9, {}, "bucket 0 has 0 times"),
        ([GOOD, {**GOOD, "times": [1]}], 9, {}, "bucket 1 has 1 times, the first bucket 2"),
        ([{**GOOD, "times": "12"}], 9, {}, "write one time for each band"),
        ([{**GOOD, "bytes": 0}], 9, {}, "leave out buckets that send nothing"),
        ([{**GOOD, "bytes": True}], 9, {}, "bytes is True; write a number"),
        ([{**GOOD, "needed": 0, "name": "fc"}], 9, {}, "bucket fc is needed at 0, before it is ready at 1"),
        ([{**GOOD, "needed": 10}], 9, {}, "needed at 10, after the end of the iteration"),
        ([{"bytes": 1, "ready": 1, "needed": 2}], 9, {}, "'times' is missing"),
        ([{**GOOD, "band": 1}], 9, {}, "bucket 0 has no 'band'"),
        ([7], 9, {}, "bucket 0: expected a table, found 7"),
        ([GOOD], float("inf"), {}, "compute is inf"),
        ([{**GOOD, "ready": 0, "needed": 0}], 0, {}, "compute is 0"),
        ([{**GOOD, "bytes": 10**400}], 9, {}, "write a number from 0 to 1e+100"),
        ([GOOD], 9, {"give": -0.1}, "give: -0.1"),
        ([GOOD], 9, {"give": 1.1}, "give: 1.1"),
        ([GOOD, GOOD], 9, {"order": [0, 0]}, "order is [0, 0]; name each of the 2 buckets once"),
    ],
)
def test_awkward_input_is_told_in_one_sentence(buckets, compute, options, said):
    with pytest.raises(ValueError, match=r".") as error:
        gt.start_and_band(buckets, compute, **options)
    assert said in str(error.value)


def test_a_missing_solver_is_told_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(lp.SolverMissingError, match="pip install 'highspy>="):
        gt.start_and_band([GOOD], 9)


# Applied


def toy_layers():
    """The toy as layers on two hosts: at 1 Gbit/s a ring of two takes 8 ms a MB, as the high band does in ms."""
    forward, backward = (40, 30, 20, 10, 10), (20, 20, 40, 60, 80)
    return [
        {"name": f"layer{i}", "forward": f"{f}ms", "backward": f"{b}ms", "parameters": f"{size}MB"}
        for i, (f, b, size) in enumerate(zip(forward, backward, (1, 1, 1, 4, 12), strict=True))
    ]


def alone(model, **schedule):
    job = {"model": {"layers": model}, "workers": 2, "schedule": {"fusion": "0B", "barrier": False, **schedule}}
    return gt.Scenario.from_dict({"job": {"train": job}, "cluster": {"link": {"rate": "1Gbps", "delay": "0s"}}})


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize("overhead", ["0us", "700us"])
def test_what_is_predicted_is_what_happens_where_nothing_else_is(overhead, barrier):
    """A transfer takes overhead + 8 ms a MB: the line that is fitted goes through all of them."""
    base = alone(toy_layers(), order="priority", barrier=barrier, overhead=overhead)
    job = base.jobs[0]
    buckets = study.buckets_of(job, {0: [gt.run(base)]})
    found = gt.start_and_band(buckets, job.compute_ps)
    order = [[4 - index] for index in found.order]  # bucket 0 is the output side
    result = gt.run(study.in_bands(base, order, [0] * 5, in_turn=True))
    # Five buckets, each rounded to the picosecond here, in the fit, and in the engine.
    assert result.job["iteration_time_ms"]["all"] == pytest.approx([found.iteration_time / 1e9] * 10, abs=15e-9)
    rows = {row["bucket"]: row for row in result.transfers.to_dicts() if row["iteration"] == 1}
    starts = sorted(rows, key=lambda bucket: rows[bucket]["start_us"])
    assert tuple(starts) == found.order
    of = {row["bucket"]: row for row in found.to_dicts()}
    for row in rows.values():
        ours = of[str(row["first_layer"])]
        assert row["slack_us"] == pytest.approx(ours["slack"] / 1e6, abs=15e-6)
        assert row["margin_us"] == pytest.approx(ours["margin"] / 1e6, abs=15e-6)


def test_a_list_that_is_kept_to_in_turn_lets_the_network_rest():
    """Two layers: what is ready first is large, needed last, and in the way of the small one.

    Backward: layer 1 until 1, layer 0 until 2. Layer 0 takes 1, all of forward, 4, behind it; layer 1 takes 8 and has 1
    behind. Layer 0 first: [2, 3], [3, 11]: T = 12. Layer 1 at once: [1, 9], [9, 10]: T = 14.
    """
    layers = [
        {"name": "small", "forward": "3ms", "backward": "1ms", "parameters": "125kB"},
        {"name": "large", "forward": "1ms", "backward": "1ms", "parameters": "1MB"},
    ]
    listed = alone(layers, order="file", ranking=["small", "large"])
    assert gt.run(listed).job["iteration_time_ms"]["mean"] == 14.0
    assert gt.run(listed.replace(in_turn=True)).job["iteration_time_ms"]["mean"] == 12.0
    assert listed.replace(in_turn=True).to_dict()["job"]["train"]["schedule"]["in_turn"] is True


def beside_a_neighbour(**changes):
    # Two long flows into host 1 from one iteration to the next, ahead of what is sent low.
    flows = [{"start": f"{20 * i}ms", "src": "h2", "dst": "h1", "bytes": "5MB"} for i in range(40)]
    job = {"model": {"layers": toy_layers()}, "workers": 2, "iterations": 2, "compute": {"scale_to": "60ms"}}
    job["schedule"] = {"order": "fifo", "fusion": "0B", "barrier": False}
    data = {
        "job": {"train": job},
        "traffic": {"web": {"flows": flows}},
        "cluster": {"topology": {"kind": "star", "hosts": 3}, "link": {"rate": "10Gbps", "delay": "1us"}},
        "run": {"engine": "packet", "duration": "1s"},
    }
    return gt.Scenario.from_dict(data).replace(**changes)


def test_a_run_has_the_bands_and_the_order_that_were_chosen():
    result = study.plan_bands(beside_a_neighbour())
    assert [row["policy"] for row in result.rows] == ["same", "low", "priority", "lp"]
    chosen = {bucket["layers"]: bucket["band"] for bucket in result.summary["buckets"]}
    applied = result.policies["lp"].scenario.jobs[0]
    assert {str(layer): band for layer, band in enumerate(applied.bands)} == chosen
    assert applied.schedule.in_turn
    rows = [row for row in result.results[Case(0, "lp")].transfers.to_dicts() if row["iteration"] == 1]
    sent = [str(row["first_layer"]) for row in sorted(rows, key=lambda row: row["start_us"])]
    assert sent == [bucket["layers"] for bucket in result.summary["buckets"]]
    by_policy = {row["policy"]: row for row in result.summary["policies"]}
    assert by_policy["lp"]["predicted_ms"] <= min(row["predicted_ms"] for row in by_policy.values()) * (1 + lp.SAME)
    assert result.summary["optimal"]
    again = study.plan_bands(beside_a_neighbour(), jobs=2)
    for summary in (result.summary, again.summary):
        del summary["cost"]
    assert again.summary == result.summary


def test_where_the_plan_never_rests_the_queue_does_not_either():
    # One layer of all: the order is one bucket, and no list has to wait.
    result = study.plan_bands(beside_a_neighbour(fusion="100MB"))
    assert len(result.summary["buckets"]) == 1
    assert not result.policies["lp"].scenario.jobs[0].schedule.in_turn


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"order": "random"}, {}, "an order that is the same in every iteration"),
        ({"chunk": "1MB"}, {}, "buckets that are sent whole"),
        ({"credit": 2}, {}, "one bucket at a time"),
        ({}, {"quantile": 1.5}, "quantile is 1.5"),
        ({}, {"give": NAN}, "give: nan"),
        ({}, {"bands": [0]}, "write at least two"),
        ({}, {"bands": [2, 0]}, "the highest first"),
        ({}, {"seeds": []}, "at least one seed"),
    ],
)
def test_what_a_programme_cannot_take_is_refused_before_anything_runs(changes, options, said):
    with pytest.raises(ValueError, match=r".") as error:
        study.plan_bands(beside_a_neighbour(**changes), **options)
    assert said in str(error.value)


def test_in_turn_needs_a_list():
    with pytest.raises(ScenarioError, match='order = "fifo"'):
        alone(toy_layers(), in_turn=True)


@pytest.mark.slow
def test_the_command_prints_buckets_policies_and_a_sentence(tmp_path, monkeypatch, capsys):
    def gradtide(*arguments):
        monkeypatch.setattr(sys, "argv", ["gradtide", *map(str, arguments)])
        return cli._main(), *capsys.readouterr()

    (tmp_path / "s.toml").write_text(beside_a_neighbour().to_toml(), encoding="utf-8")
    code, out, err = gradtide("tenants", "lp", tmp_path / "s.toml")
    assert (code, err) == (0, "")
    header = ["layers", "ready", "start", "end", "needed", "slack", "margin", "band"]
    assert header in [line.split() for line in out.splitlines()]
    summary = json.loads(gradtide("tenants", "lp", tmp_path / "s.toml", "--give", "5%", "--json")[1])
    assert summary["schema"] == "gradtide.lp/1"
    assert gradtide("tenants", "lp", tmp_path / "s.toml", "--fail-if", "lp_simulated_ms>0")[0] == 1
    for wrong, said in (
        (("--policy", "deadline"), "No such option: --policy"),
        (("--give", "much"), "not a percentage"),
        (("--fail-if", "lp_time>1"), "no figure"),
    ):
        code, _, err = gradtide("tenants", "lp", tmp_path / "s.toml", *wrong)
        assert (code, said in err) == (2, True)


def test_from_two_seeds_on_changes_have_paired_intervals_and_one_seed_is_called_one_run():
    pytest.importorskip("highspy")
    keys = tiny_tenants()
    keys["job"]["train"]["schedule"] = {"order": "fifo", "fusion": "0B"}
    two, one = (gt.tenants_lp(keys, seeds=seeds, jobs=2) for seeds in ((0, 1), (0,)))
    rows = {row["policy"]: row for row in two.summary["policies"]}
    for name, row in rows.items():
        times = {
            side: [two.results[Case(seed, side)].job["iteration_time_ms"]["mean"] for seed in (0, 1)]
            for side in ("same", name)
        }
        mean = sum(times["same"]) / 2
        changes = [100 * (other - same) / mean for same, other in zip(times["same"], times[name], strict=True)]
        low, high = mean_interval(changes)
        assert row["iteration_change_percent"] == pytest.approx(sum(changes) / 2)
        assert row["iteration_change_from_percent"] == pytest.approx(low)
        assert row["iteration_change_to_percent"] == pytest.approx(high)
        assert row["small_mean_saves_from_percent"] <= row["small_mean_saves_percent"]
    assert rows["low"]["iteration_change_percent"] != 0
    assert re.search(r"over 2 seeds its iterations take .*95 % interval", two.summary["headline"])
    assert {row["iteration_change_from_percent"] for row in one.summary["policies"]} == {None}
    assert "One run (seed 0), the solution: its" in one.summary["headline"]
    assert one.summary["headline"].endswith("One run has no interval: add --seeds 5.")


def test_several_jobs_are_refused_with_the_reason():
    keys = tiny_tenants()
    keys["job"]["other"] = keys["job"]["train"]
    with pytest.raises(ValueError, match=r"has 2 jobs \(train, other\).*plans one channel.*: delete the others"):
        gt.tenants_lp(keys)
