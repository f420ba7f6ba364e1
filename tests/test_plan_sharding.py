"""Plans of FSDP: the search against a second executor, its bound, the memory of a rank, plan.json and refusals."""

import itertools
import json
import sys
from pathlib import Path

import pytest

import gradtide as gt
from architectures import SMALL_LLAMA
from gradtide.measured import SHARDED, pairs, saving_errors
from gradtide.parallel.bound import Position, least
from gradtide.scenario import Scenario
from gradtide.scenario.plan import read_plan
from gradtide.studies.plan import sharding_result
from gradtide.studies.plan.fsdp import DEFAULT, Setting

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "validation" / "testbed"))
import fsdp as testbed  # noqa: E402 - a script of the repository, not of a package

CASES_OF_TESTBED = json.loads(testbed.DATA.read_text())
BLOCKS = 6
CONFIG = {
    **SMALL_LLAMA,
    "hidden_size": 2048,
    "num_key_value_heads": 16,
    "num_hidden_layers": BLOCKS,
    "rope_scaling": None,
}


def scenario(parallel=None, *, model=CONFIG, rate="400Gbps", ranks=8, **compute):
    job = {"model": model, "parallel": {"fsdp": ranks, **(parallel or {})}}
    job["compute"] = {"seq": 4096, "device": "H100", **compute}
    cluster = {"topology": {"kind": "star", "hosts": ranks}, "link": {"rate": rate, "delay": "1us"}}
    return Scenario.from_dict({"cluster": cluster, "job": {"train": job}, "run": {"engine": "fluid"}})


def row(result, name):
    return next(one for one in result.rows if one["name"] == name)


# The bound


def test_bound_of_three_units_by_hand():
    """Gathers of 50, forward 10, 20, 30, backward twice as long, the last unit kept; reduce-scatters of 50."""

    def positions(gather, reduce):
        forward = [Position(name, gather, time, 0) for name, time in (("a", 10), ("b", 20), ("c", 30))]
        kept = [Position("c back", 0, 60, reduce)]
        return [*forward, *kept, Position("b back", gather, 40, reduce), Position("a back", gather, 20, reduce)]

    # 5 gathers and 3 reduce-scatters; a chain has at most 3 · 50 + 30 + 60 + 150.
    sent = least(positions(50, 50))
    assert sent == (400, "all all-gathers and reduce-scatters, one after the other")
    # Gathers of 1: the first, all compute, and the last of the reduce-scatters.
    computes = least(positions(1, 1))
    assert computes == (1 + 180 + 1, "the first all-gather, all compute, and the last reduce-scatter")
    # Gathers of 15: a's and b's, then b's forward pass and all that follows, beat a's gather and a's forward pass too.
    assert least(positions(15, 1)).time == 15 + 15 + 20 + 30 + 60 + 40 + 20 + 1


def executed(tried):
    """Return the time of a step, by recurrences: compute in turn, and one communicator on which all is sent in turn.

    Times of compute are those of the specification, and those of transfers what each took in the run.
    """
    described, rows, setting = tried.parallel_model.described, tried.result.transfers.to_dicts(), tried.setting
    took = {(one["collective"], one["first_layer"]): (one["end_us"] - one["start_us"]) / 1e3 for one in rows}
    ends = list(itertools.accumulate(described.unit_blocks))
    units = [range(end - count, end) for end, count in zip(ends, described.unit_blocks, strict=True)]

    def computes(unit, *keys):
        blocks = [described.blocks[block] for block in unit]
        return sum(getattr(op, key) for op in described.ops_of(blocks) for key in keys) / 1e9

    now = channel = 0.0
    for _ in range(tried.parallel_model.layout.micro_batches):
        now = channel = max(now, channel)
        there, arrived, reduced = set(), {}, []
        for is_forward, depth in ((True, setting.forward), (False, setting.backward)):
            order = units if is_forward else units[::-1]
            for place, unit in enumerate(order):
                for other in order[place : place + depth + 1]:
                    if other not in there:
                        there.add(other)
                        arrived[other] = channel = max(channel, now) + took["all_gather", other.start]
                # One buffer to reduce from: the reduce-scatter before the last one has ended.
                now = max([now, arrived[unit], *reduced[-2:-1]])
                now += computes(unit, *(("forward_ps",) if is_forward else ("backward_ps", "recompute_ps")))
                if not is_forward:
                    channel = max(channel, now) + took["reduce_scatter", unit.start]
                    reduced.append(channel)
            if is_forward and setting.zero == 3:
                there = {units[-1]}
    norm = sum(one["end_us"] - one["start_us"] for one in rows if one["group"] == "norm") / 1e3
    return max(now, channel) + norm + described.optimizer_ps[0] / 1e9


CASES = {
    "compute-bound": ({}, {}),
    "network-bound": ({"rate": "50Gbps"}, {}),
    "balanced": ({"rate": "160Gbps"}, {}),
    "two micro-batches": ({"rate": "160Gbps", "global_batch": 16}, {}),
    "short": ({"rate": "160Gbps", "seq": 512}, {}),
    "a large head": ({"rate": "200Gbps", "seq": 2048}, {"vocab_size": 128000}),
}


def every_setting(monkeypatch, base, **how):
    """Return a plan, and all that was tried for it."""
    seen = []
    original = sharding_result.ShardingResult.__init__

    def kept(self, every, *rest):
        seen.extend(every)
        original(self, every, *rest)

    monkeypatch.setattr(sharding_result.ShardingResult, "__init__", kept)
    return gt.plan(base, **how), seen


@pytest.mark.parametrize("case", CASES)
def test_every_setting_takes_what_a_second_executor_says_and_no_less_than_the_bound(case, monkeypatch):
    how, changes = CASES[case]
    result, every = every_setting(monkeypatch, scenario(model={**CONFIG, **changes}, **how))
    assert len(every) == 24
    for one in every:
        assert one.time_ms == pytest.approx(executed(one), rel=1e-9), one.setting
    fastest = min(one.time_ms for one in every)
    assert result.summary["lower_bound_ms"] - 1e-6 <= fastest <= 1.1 * result.summary["lower_bound_ms"]


LARGE_HEAD = {**CONFIG, "vocab_size": 128000}


def test_a_deeper_prefetch_pays_where_a_block_computes_for_less_than_the_head_is_gathered(monkeypatch):
    """With one ahead the head is gathered beside the last block, with d ahead beside the last d."""
    _, every = every_setting(monkeypatch, scenario(seq=8192, model=LARGE_HEAD))
    time_ms = {one.setting: one.time_ms for one in every}
    described = every[0].parallel_model.described
    block_ms = sum(op.forward_ps for op in described.kinds[1].ops) / 1e9
    for depth in (2, 3):
        saved = time_ms[Setting(3, 1, depth - 1)] - time_ms[Setting(3, 1, depth)]
        # The head is gathered for longer than three blocks compute, and it begins a block earlier.
        assert saved == pytest.approx(block_ms, rel=1e-6)
    # Where every gather is shorter than the compute of a block, the default is at the bound.
    easy, every = every_setting(monkeypatch, scenario(rate="800Gbps", seq=8192))
    assert min(one.time_ms for one in every) == pytest.approx(every[0].time_ms, rel=1e-9)
    assert easy.summary["lower_bound_ms"] == pytest.approx(every[0].time_ms, rel=1e-9)
    assert easy.plan.fsdp == DEFAULT.planned(every[0].parallel_model)
    assert "keep torch's default" in easy.summary["headline"]
    assert easy.plan.predicted["verdict"] == "leave alone"


# What is chosen


def test_what_does_not_fit_in_memory_is_not_run_and_not_chosen():
    """26.4 billion parameters: 53 GB gathered at once, beside shards and activations, and 15 GB of shards."""
    large = {**CONFIG, "hidden_size": 8192, "intermediate_size": 22016, "num_hidden_layers": 40}
    result = gt.plan(scenario(model=large, rate="50Gbps", ranks=32, seq=1024))
    kept = [one for one in result.candidates if not one["reshard_after_forward"]]
    assert kept
    assert not any(one["fits"] for one in kept)
    assert all(one["iteration_ms"] is None and one["memory_bytes"] > one["device_bytes"] for one in kept)
    assert row(result, "parameters kept")["fits"] is False
    assert result.plan.fsdp.reshard_after_forward
    assert result.summary["searched"]["too_large"] == len([one for one in result.candidates if not one["fits"]])


def test_a_plan_is_worth_it_if_the_low_end_of_measured_errors_saves_enough():
    base = scenario(rate="50Gbps")
    result = gt.plan(base)
    best = row(result, "best of all")
    errors = saving_errors(pairs(sharded=True))
    ratio = best["iteration_ms"] / row(result, "torch's default")["iteration_ms"]
    assert best["saves_low_percent"] == pytest.approx(100 * (1 - errors.interval(ratio)[1]))
    assert best["saves_low_percent"] > 1
    assert best["chosen"]
    assert result.plan.predicted["verdict"] == "worth it"
    assert not result.plan.fsdp.reshard_after_forward
    # Asked to save more than it does, it is left alone, and what was found is there to try.
    alone = gt.plan(base, worth=50)
    assert row(alone, "torch's default")["chosen"]
    assert alone.plan.predicted["verdict"] == "leave alone"
    assert alone.plan.fsdp.reshard_after_forward
    assert not alone.best.fsdp.reshard_after_forward


def test_the_best_setting_is_run_in_tictacs_order():
    result = gt.plan(scenario(rate="50Gbps"))
    assert result.ordered.scenario == result.scenario.set({"job.train.schedule.order": "tic"})
    took = result.summary["tictac_order_ms"]
    assert result.summary["lower_bound_ms"] <= took <= row(result, "best of all")["iteration_ms"]
    assert any("what is needed first" in line for line in result.plan.advice)


def test_of_settings_that_take_as_long_the_one_nearest_to_the_default_is_chosen():
    result = gt.plan(scenario(rate="50Gbps"))
    best = row(result, "best of all")
    fastest = min(one["iteration_ms"] for one in result.candidates)
    assert best["iteration_ms"] <= 1.01 * fastest
    assert (best["unit"], best["forward_prefetch"], best["backward_prefetch"]) == (1, 1, 1)


def test_the_scenarios_own_setting_is_shown_beside_torchs():
    result = gt.plan(scenario({"prefetch": 2, "unit": 3, "backward_prefetch": 0}))
    own = row(result, "the scenario's")
    assert (own["unit"], own["forward_prefetch"], own["backward_prefetch"]) == (3, 2, 0)
    assert len(result.candidates) == 25


# plan.json


def test_a_scenario_runs_as_its_plan_says(tmp_path):
    base = scenario(rate="50Gbps")
    result = gt.plan(base)
    plan = read_plan(result.save(tmp_path / "plan.json"))
    assert plan.fsdp == result.plan.fsdp
    assert plan.fsdp.units[0] == ("model.embed_tokens",)
    assert plan.fsdp.units[1] == ("model.layers.0",)
    assert plan.fsdp.units[-1] == ("model.norm", "lm_head")
    run = gt.run(plan.on(base))
    assert run.iteration_time == pytest.approx(plan.predicted["iteration_time_ms"] / 1e3, rel=1e-12)
    fours = Setting(3, 4).planned(scenario({"unit": 4}).jobs[0].parallel_model)
    assert (
        read_plan({"schema": "gradtide.plan/1", "fsdp": fours.to_dict()}).on(base).jobs[0].parallel_model.layout.unit
        == 4
    )
    with pytest.raises(gt.ScenarioError, match="GT082"):
        plan.on(scenario(ranks=16))
    with pytest.raises(gt.ScenarioError, match="GT081"):
        plan.on(scenario(model={**CONFIG, "num_hidden_layers": 7}))
    text = json.loads((tmp_path / "plan.json").read_text())
    text["fsdp"]["keep_last"] = True
    with pytest.raises(gt.ScenarioError, match="`keep_last` has no effect"):
        read_plan(text)


def test_a_tied_head_is_of_the_model_itself():
    tied = scenario(model={**CONFIG, "tie_word_embeddings": True}).jobs[0].parallel_model
    planned = DEFAULT.planned(tied)
    assert planned.units[0] == ("",)
    assert len(planned.units) == BLOCKS + 1
    assert planned.reshard_after_forward
    assert not planned.keep_last


def test_a_folder_has_the_plan_its_report_and_every_setting(tmp_path):
    result = gt.plan(scenario(rate="50Gbps"))
    folder = result.save(tmp_path / "out")
    assert (folder / "report.html").read_text().count("torch&#39;s default") >= 1
    assert len((folder / "settings.csv").read_text().splitlines()) == 25
    assert read_plan(folder / "best.json").fsdp == result.best.fsdp
    assert json.loads((folder / "summary.json").read_text())["lower_bound_ms"] == result.summary["lower_bound_ms"]


@pytest.mark.parametrize(
    ("parallel", "options", "words"),
    [
        ({"pp": 2}, {}, "pp = 2"),
        ({"zero": 1}, {}, "zero = 1"),
        ({"fsdp": 1, "dp": 8}, {}, "FSDP shards"),
        ({}, {"device": "gpu"}, "device: has no effect"),
        ({}, {"level": "buckets"}, "level: has no effect"),
        ({}, {"smallest": "1MiB"}, "smallest: has no effect"),
        ({}, {"worth": 100}, "not a percentage"),
    ],
)
def test_what_cannot_be_planned_is_refused(parallel, options, words):
    ranks = 16 if "pp" in parallel else 8
    base = scenario({"fsdp": 8, **parallel}, ranks=ranks)
    with pytest.raises(ValueError, match=words):
        gt.plan(base, **options)


def test_ranks_that_differ_are_refused():
    with pytest.raises(ValueError, match="ranks that are alike"):
        gt.plan(scenario(noise=0.05))


def test_the_fluid_engine_searches_for_the_packet_engine_whose_runs_are_the_figures():
    base = scenario()
    requested = base.set({"run.engine": "packet"})
    packet, fluid = gt.plan(requested), gt.plan(base)
    assert [packet.summary[key] for key in ("engine", "searched_on", "confirmed_on")] == ["packet", "fluid", "packet"]
    assert [fluid.summary[key] for key in ("engine", "searched_on", "confirmed_on")] == ["fluid"] * 3
    assert {row["engine"] for row in packet.rows if row["iteration_ms"]} == {"packet"}
    assert packet.rows[0]["iteration_ms"] == gt.run(packet.baseline.scenario).job["iteration_time_ms"]["mean"]
    assert packet.scenario.engine == "packet"
    assert [row["setting"] for row in packet.candidates] == [row["setting"] for row in fluid.candidates]


def test_pairs_of_fsdp_are_those_that_the_testbed_measured():
    rows = testbed.PAIRS.read_text().splitlines()
    assert [row for row in rows if row.startswith("fsdp ")] == testbed.pairs(CASES_OF_TESTBED)
    assert {one.source for one in pairs(sharded=True)} == {SHARDED}
    assert SHARDED not in {one.source for one in pairs()}
    assert testbed.page(CASES_OF_TESTBED) in testbed.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("number", range(len(CASES_OF_TESTBED)))
def test_predicted_steps_of_the_testbed_are_what_gradtide_simulates(number):
    """From units that were timed on a network without limit, and the rate alone."""
    case = CASES_OF_TESTBED[number]
    assert case["arguments"]["rate"] == "1gbit"
    for row in case["rows"]:
        mode = testbed.MODES_BY_NAME[row["mode"]]
        units = [unit for unit in case["units"] if unit["of_unit"] == mode.of_unit]
        ms = testbed.predicted(units, mode, case["arguments"]["workers"], 1e9 / 8 * testbed.PAYLOAD)
        assert ms == pytest.approx(row["predicted_ms"], rel=1e-9), row["mode"]
