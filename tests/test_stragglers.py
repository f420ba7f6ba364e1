"""Workers that differ, the syncer's time and a job's bands, against closed forms, on both engines."""

import math

import numpy as np
import pytest

import gradtide as gt
from gradtide.studies.tenants.bands import tenants
from specs import PRIORITY, column_ps, run, spec

MS = 10**9
ENGINES = ("fluid", "packet")
LAYERS = [(2 * MS, 4 * MS, 10**6), (MS, 3 * MS, 2 * 10**6), (3 * MS, MS, 4 * 10**6)]


def scaled(layers, factor):
    return [(forward * factor, backward * factor, size) for forward, backward, size in layers]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("barrier", [True, False])
@pytest.mark.parametrize("order", [{"kind": "fifo"}, PRIORITY])
def test_one_worker_f_times_as_slow_is_a_job_f_times_as_slow(engine, barrier, order):
    # A bucket begins when the slow worker has it, since every op ends there last: by induction over the ops, each
    # starts no later on the others, whose ops are shorter and wait for the same transfers. So every transfer, and every
    # start on the slow worker, is that of a job whose workers are all slow.
    options = {"workers": 4, "barrier": barrier, "order": order, "engine": engine, "rate_bps": 2 * 10**9}
    slow, slow_output = run(spec(LAYERS, straggler=(2, 3 * 10**6), **options))
    all_slow, all_slow_output = run(spec(scaled(LAYERS, 3), **options))
    assert slow["jobs"][0]["iteration_time_ps"] == all_slow["jobs"][0]["iteration_time_ps"]
    assert slow["jobs"][0]["slowest_worker"] == 2
    assert slow_output.iterations.to_csv() == all_slow_output.iterations.to_csv()
    assert slow_output.transfers.to_csv() == all_slow_output.transfers.to_csv()


def test_behind_a_barrier_others_wait_for_what_the_straggler_computes_longer():
    # All start at the barrier; the others have computed C when the straggler has computed 1.5 C, and the bucket of the
    # lowest layer is ready then.
    summary, output = run(spec(LAYERS, workers=4, straggler=(1, 1_500_000)))
    compute = sum(forward + backward for forward, backward, _ in LAYERS)
    waits = np.array(column_ps(output.workers, "straggler_us")).reshape(-1, 4)
    assert (waits == [compute // 2, 0, compute // 2, compute // 2]).all()
    time = summary["jobs"][0]["iteration_time_ps"][0]
    assert summary["jobs"][0]["straggler_percent"] == pytest.approx(100 * compute / 2 / time, rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_workers_waterfall_adds_up_and_the_jobs_is_that_of_the_slowest(engine):
    drawn = spec(LAYERS, workers=5, noise_ppm=200_000, straggler=(3, 1_400_000, 500_000), engine=engine, iterations=6)
    summary, output = run(drawn)
    rows = {name: np.array(column_ps(output.workers, f"{name}_us")) for name in (*PARTS, "time", "straggler")}
    assert (sum(rows[name] for name in PARTS) == rows["time"]).all()
    assert (rows["straggler"] <= rows["exposed"] + rows["barrier"]).all()
    slowest = summary["jobs"][0]["slowest_worker"]
    compute = rows["compute"].reshape(-1, 5)
    assert slowest == compute.sum(axis=0).argmax()
    for name in (*PARTS, "time"):
        assert column_ps(output.iterations, f"{name}_us") == rows[name].reshape(-1, 5)[:, slowest].tolist()
    share = (rows["straggler"] / rows["time"]).max()
    assert summary["jobs"][0]["straggler_percent"] == pytest.approx(100 * share, rel=1e-12)


PARTS = ("compute", "slowdown", "exposed", "barrier")


def test_an_iteration_takes_the_longest_of_n_uniform_draws():
    # Behind a barrier all workers start together, so T = C · max of n factors + what follows the slowest: the transfer
    # of the only bucket. The maximum of n draws, uniform on [1 - w, 1 + w], has mean 1 + w (n - 1)/(n + 1) and variance
    # (2w)² n / ((n + 1)² (n + 2)).
    workers, iterations, variation = 8, 4000, 0.1
    summary, _ = run(spec([(MS, 2 * MS, 1000)], workers=workers, iterations=iterations, noise_ppm=int(variation * 1e6)))
    job = summary["jobs"][0]
    longest = (np.array(job["iteration_time_ps"]) - job["comm_ps"]) / (3 * MS)
    width = variation * math.sqrt(3)
    mean = 1 + width * (workers - 1) / (workers + 1)
    deviation = 2 * width * math.sqrt(workers / (workers + 2)) / (workers + 1)
    assert abs(longest.mean() - mean) <= 5 * deviation / math.sqrt(iterations)
    assert longest.max() <= 1 + width + 2e-6


@pytest.mark.parametrize("worker", [None, 2])
def test_a_straggler_is_slow_as_often_as_its_probability_says(worker):
    iterations, probability = 2000, 0.3
    # At 100 Gbit/s all buckets but the last are there when backward ends, slow or not.
    straggler = (worker, 2 * 10**6, int(probability * 1e6))
    drawn = spec(LAYERS, workers=4, iterations=iterations, straggler=straggler, rate_bps=10**11)
    summary, output = run(drawn)
    compute = np.array(column_ps(output.workers, "compute_us")).reshape(-1, 4) // (14 * MS)
    slow = compute == 2
    assert slow.sum(axis=1).max() == 1
    # Binomial: standard deviation √(n p (1 - p)); five of them.
    assert abs(slow.sum() - probability * iterations) <= 5 * math.sqrt(iterations * probability * (1 - probability))
    assert (slow.any(axis=0) == [worker is None or index == worker for index in range(4)]).all()
    times = np.array(summary["jobs"][0]["iteration_time_ps"])
    assert (times[slow.any(axis=1)] - times[~slow.any(axis=1)][0] == 14 * MS).all()


def test_draws_do_not_depend_on_what_is_compared():
    base = {"workers": 4, "noise_ppm": 100_000, "straggler": (None, 1_500_000, 400_000), "iterations": 20}
    drawn = [
        column_ps(run(spec(LAYERS, **base | change))[1].workers, "compute_us")
        for change in ({}, {"barrier": False}, {"order": PRIORITY}, {"rate_bps": 10**8}, {"fusion": 10**7})
    ]
    assert all(other == drawn[0] for other in drawn)
    assert drawn[0] != column_ps(run(spec(LAYERS, seed=1, **base))[1].workers, "compute_us")


def test_workers_that_send_nothing_wait_for_nobody():
    # No transfer joins them, so each is as fast as it is; the run ends when all have done their iterations.
    layers = [(MS, 2 * MS, 0)] * 3
    _, output = run(spec(layers, workers=3, straggler=(1, 5 * 10**6), iterations=4))
    times = np.array(column_ps(output.workers, "time_us")).reshape(-1, 3)
    assert (times == [9 * MS, 45 * MS, 9 * MS]).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(5))
def test_a_duration_ends_uneven_workers_together(engine, seed):
    # Whether an iteration is run is decided once, or a worker that began it would wait for ever for one that did not.
    options = {"barrier": False, "iterations": None, "duration_ps": 400 * MS, "rate_bps": 10**10}
    _, output = run(spec(LAYERS, workers=4, noise_ppm=300_000, engine=engine, seed=seed, **options))
    starts = np.array(column_ps(output.workers, "start_us")).reshape(-1, 4)
    assert len(starts) >= 5
    assert (starts.min(axis=1) < 400 * MS).all()


# ── the syncer ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("barrier", [True, False])
def test_the_syncer_costs_its_time_between_transfers_and_not_before_the_first(engine, barrier):
    # Backward takes no time but for its first layer, so k buckets are ready at once and sent one after the other. The
    # forward pass of the next iteration waits for all of them: behind the barrier, or because layer 0 goes last (FIFO).
    # Parts of 1000 bytes fit into one segment and any window, so a pause changes nothing but the time; only where
    # there are packets may one be behind an acknowledgement, 54 bytes in whole nanoseconds, or not, in each bucket.
    count, sync, overhead = 5, 3 * 10**8, 10**8
    layers = [(MS, 0, 4000)] * (count - 1) + [(MS, MS, 4000)]

    def times(**more):
        summary, _ = run(spec(layers, workers=4, barrier=barrier, engine=engine, rate_bps=10**10, **more))
        return np.array(summary["jobs"][0]["iteration_time_ps"])

    free = times()
    tolerance_ps = {"fluid": 0, "packet": count * 44_000}[engine]
    assert (abs(times(sync_ps=sync) - free - (count - 1) * sync) <= tolerance_ps).all()
    both = times(sync_ps=sync, overhead_ps=overhead)
    assert (abs(both - free - (count - 1) * sync - count * overhead) <= tolerance_ps).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_queue_that_rests_longer_than_the_syncer_takes_does_not_notice_it(engine):
    layers = [(MS, 4 * MS, 10**5)] * 4
    options = {"workers": 4, "engine": engine, "rate_bps": 10**10}
    assert run(spec(layers, **options))[1].transfers.to_csv() == (
        run(spec(layers, sync_ps=MS, **options))[1].transfers.to_csv()
    )


# ── bands ──────────────────────────────────────────────────────────────────────────────────────


def chunk_bands(output):
    bands = output.operations.column("band")
    return {
        (bucket, chunk): band
        for bucket, chunk, band, kind in zip(
            output.operations.column("index").tolist(),
            output.operations.column("chunk").tolist(),
            bands.tolist(),
            output.operations.column("kind"),
            strict=True,
        )
        if kind == "transfer"
    }


def test_a_chunk_takes_the_band_of_the_layer_in_which_it_begins():
    # One bucket of layers of 2.5, 1, 1 and 1.5 MB from the input side; chunks of 1 MB begin at 0, 1, 2 (layer 0), 3
    # (layer 1), 4 (layer 2) and 5 MB (layer 3). Two bands are shared out over four layers: two each.
    layers = [(MS, MS, size) for size in (2_500_000, 10**6, 10**6, 1_500_000)]
    _, output = run(spec(layers, workers=4, fusion=10**8, chunk=10**6, bands=[0, 2]))
    assert chunk_bands(output) == {(0, chunk): 0 if chunk < 4 else 2 for chunk in range(6)}
    _, output = run(spec(layers, workers=4, fusion=10**8, chunk=10**6, bands=[3, 2, 1, 0]))
    assert chunk_bands(output) == {(0, chunk): band for chunk, band in enumerate([3, 3, 3, 2, 1, 0])}


def test_a_band_that_is_the_same_for_all_layers_is_one_band():
    plain, listed = (run(spec(LAYERS, workers=4, engine="packet", bands=bands))[1] for bands in ([2], [2, 2, 2]))
    for name in ("iterations", "transfers", "operations", "links"):
        assert getattr(plain, name).to_csv() == getattr(listed, name).to_csv()


@pytest.mark.parametrize("bands", [[0, 2], [2, 0]])
def test_a_flow_between_two_bands_delays_the_lower_alone(bands):
    # Two buckets on connections that stay; a neighbour fills host 0's link in the band between, for all the run, and no
    # queue is ever full. Bucket 0 holds layer 1, is sent first, and takes the second band.
    layers = [(MS, 3 * MS, 10**6)] * 2
    options = {"workers": 4, "engine": "packet", "rate_bps": 10**9, "iterations": None, "duration_ps": 1500 * MS}

    def taken_ms(**more):
        drawn = spec(layers, bands=bands, **options, **more)
        drawn["cluster"]["queue"] = {"capacity": {"packets": 10**6}}
        _, output = run(drawn)
        taken = np.array(column_ps(output.transfers, "end_us")) - np.array(column_ps(output.transfers, "start_us"))
        return {bucket: taken[output.transfers.column("bucket") == bucket] / MS for bucket in (0, 1)}

    alone, beside = taken_ms(), taken_ms(traffic=[(0, 0, 1, 10**8, 1)])
    above, below = (1, 0) if bands == [0, 2] else (0, 1)
    assert beside[below].mean() >= 3 * alone[below].mean()
    # The two share their connections, so what is sent above starts with the window that timeouts below have left.
    assert beside[above].mean() <= 1.5 * alone[above].mean()
    if above == 0:
        # The first transfer finds a fresh connection: it is late by no more than the two packets of 1434 bytes that the
        # device of either port on the way may hold, each of the 6 times that a step begins, and each of the 5 times
        # that the window doubles from 10 segments to the 182 of a step of 250 kB.
        held_ms = 2 * 1434 * 8 / 1e9 * 1e3
        assert beside[above][0] <= alone[above][0] + (6 + 5) * 2 * held_ms


# ── from the scenario to the answer ────────────────────────────────────────────────────────────

SCENARIO = {
    "job": {
        "train": {
            "model": {"kind": "thesis", "layers": 10, "size": "10MB", "time": "30ms"},
            "workers": 4,
            "iterations": 3,
            "schedule": {"order": "priority", "fusion": "1MB", "barrier": False, "sync": "50us"},
            "compute": {"noise": 0.05, "straggler": {"worker": 3, "factor": 1.5}},
            "priority": ["high", "low", "low", "low"],
        }
    }
}


def test_a_scenario_with_stragglers_runs_saves_and_draws(tmp_path):
    for engine in ENGINES:
        result = gt.run(gt.Scenario.from_dict(SCENARIO).replace(engine=engine))
        folder = result.save(tmp_path / engine)
        assert (folder / "workers.csv").read_text() == result.workers.to_csv()
        assert "worker 3, the slowest" in (folder / "report.html").read_text()
        assert result.job["slowest_worker"] == 3
        assert result.job["straggler_percent"] > 20
        again = gt.run(gt.Scenario.load(folder / "scenario.resolved.toml"))
        assert again.summary["jobs"] == result.summary["jobs"]


def test_alike_workers_leave_no_table_of_workers(tmp_path):
    result = gt.run(gt.Scenario.from_dict(SCENARIO).replace(noise=None, straggler=None))
    folder = result.save(tmp_path / "run")
    assert not (folder / "workers.csv").exists()
    assert len(result.workers) == 0
    assert result.job["straggler_percent"] == 0
    assert "slowest_worker" not in result.job


def test_compare_meets_the_same_luck_in_every_schedule():
    study = gt.compare(SCENARIO, schedules=["fifo+barrier", "priority"])
    first, second = study.results.values()
    assert first.workers["compute_us"].tolist() == second.workers["compute_us"].tolist()


def test_tenants_compares_the_neighbours_band_with_the_jobs_own_list_of_bands():
    scenario = gt.Scenario.from_dict(
        SCENARIO
        | {
            "traffic": {"web": {"sizes": "web-search", "arrivals": {"rate": "50/s"}}},
            "run": {"engine": "packet", "duration": "200ms"},
        }
    )
    study = tenants(scenario.replace(iterations=None))
    bands = {case.folder: run.scenario.jobs[0].bands for case, run in study.results.items() if run.scenario.jobs}
    assert bands == {"seed0-same": (0,), "seed0-low": (0, 2, 2, 2)}


def test_one_entry_for_each_layer_gives_every_bucket_a_band_of_its_own():
    base = gt.Scenario.from_dict(SCENARIO).replace(
        engine="packet", noise=None, straggler=None, fusion="2.5MB", timeline=3
    )
    of_bucket = {row["bucket"]: row for row in gt.run(base.replace(priority="high")).transfers.to_dicts()}
    # Neighbouring buckets differ, so that no shorter list, shared out evenly over the layers, says the same.
    wanted = {bucket: (0, 2, 1, 2)[bucket] for bucket in of_bucket}
    bands = [
        next(wanted[b] for b, row in of_bucket.items() if row["first_layer"] <= layer <= row["last_layer"])
        for layer in range(10)
    ]
    assert len(of_bucket) == 4
    result = gt.run(base.replace(priority=bands))
    sent = [(row["index"], row["band"]) for row in result.operations.to_dicts() if row["kind"] == "transfer"]
    assert set(sent) == set(wanted.items())
