"""Steps of language models that others measured, beside ours (validation/llm_steps.py)."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

import gradtide as gt
import scripts
from gradtide import presets
from gradtide.parallel import fit
from gradtide.parallel import spec as spec_of_a_job
from gradtide.parallel.mesh import Mesh

ROOT = Path(__file__).parent.parent
llm_rows = scripts.load("validation/llm_rows.py")
llm_fits = scripts.load("validation/llm_fits.py")
llm_steps = scripts.load("validation/llm_steps.py")

READ = {table: llm_rows.read(llm_rows.TABLES, table) for table in llm_steps.READERS}


@pytest.mark.parametrize("table", READ)
def test_steps_are_within_ten_percent_on_average(table):
    """What simulators that profile every operator reach on these rows is 8 % and 15 % (vTrain, 2024)."""
    assert fmean(map(abs, llm_fits.errors(READ[table], {}))) < 0.10


def test_steps_of_megatron_are_predicted():
    """Nothing is fitted on them: constants are those of vTrain's steps."""
    assert max(map(abs, llm_fits.errors(READ["megatron_table5"], {}))) < 0.15
    assert not any("megatron_table5" in one.tables for one in llm_fits.FITS)


def test_constants_are_those_of_the_fits():
    """`--fit` starts from what presets say."""
    a100, h100 = presets.accelerator("A100"), presets.accelerator("H100-500W")
    vtrain, titan = (one.start for one in llm_fits.FITS)
    assert (a100.efficiency["fp16"], a100.memory_efficiency, a100.half_size) == (
        vtrain["product"], vtrain["memory"], vtrain["half_size"],
    )  # fmt: skip
    assert (h100.efficiency["bf16"], h100.efficiency["float8"], h100.attention_efficiency) == (
        titan["product"], titan["float8"], titan["flash"],
    )  # fmt: skip
    h200 = presets.accelerator("H200")
    assert h200.efficiency["float8"] == pytest.approx(h100.efficiency["float8"] * titan["power"], rel=0.005)


def test_each_option_moves_llama_as_it_did():
    """torch.compile, float8 and asynchronous tensor parallelism are faster; longer sequences are slower."""
    steps = {step.id: step for step in READ["torchtitan"]}
    ours = {name: llm_fits.closed_form(step, llm_fits.with_constants(step, {})) for name, step in steps.items()}
    assert ours["t00"] > ours["t01"] > ours["t02"]
    assert ours["t10"] > ours["t11"]
    assert ours["t06"] < ours["t07"] < ours["t08"] < ours["t09"]
    assert ours["t14"] < ours["t15"] < ours["t16"] < ours["t17"]
    # One node, FSDP, no compile and compile: tokens of a GPU.
    for name in ("t00", "t01", "t02"):
        assert ours[name] == pytest.approx(steps[name].measured_s, rel=0.1)


def test_more_nodes_lose_what_mpt_loses():
    """Fitted on the doublings of MPT; torchtitan's 8B, which loses 2.7 % from 8 to 128 GPUs, is kept aside."""
    pairs = llm_fits.doublings(llm_rows.TABLES)
    loss = presets.accelerator("H100").scaling_loss
    assert llm_fits.fit_loss(pairs) == loss
    assert llm_fits.loss_distance(pairs, loss) < llm_fits.loss_distance(pairs, 0.0)
    few = next(step for step in READ["torchtitan"] if step.id == "t00")
    many = replace(few, mesh=Mesh(fsdp=128), gpus=128)
    few_s, many_s = (llm_fits.closed_form(step, llm_fits.with_constants(step, {})) for step in (few, many))
    assert few_s < many_s
    assert few.tokens / few.gpus / many_s == pytest.approx(5605, rel=0.1)


def test_the_page_shows_what_the_comparison_gave():
    page = llm_steps.PAGE.read_text(encoding="utf-8")
    assert llm_steps.tables_of_kinds(llm_rows.TABLES) in page, "python validation/llm_steps.py --write makes it anew"
    file = (llm_rows.TABLES / llm_steps.PREDICTIONS).read_text(encoding="utf-8")
    assert llm_steps.predictions(llm_rows.TABLES) == file, "python validation/llm_steps.py --write makes it anew"
    kept = llm_steps.kept(llm_rows.TABLES)
    assert llm_steps.tables(llm_rows.TABLES, kept) in page, "python validation/llm_steps.py --write makes it anew"
    for table, steps in READ.items():
        found = [abs(kept[table][step.id] / step.measured_s - 1) for step in steps]
        assert fmean(found) < 0.10, table


@pytest.mark.parametrize("table", READ)
def test_simulated_steps_are_those_that_are_kept(table):
    """Of each table a few that are simulated fast."""
    kept = llm_steps.kept(llm_rows.TABLES)[table]
    steps = sorted(READ[table], key=lambda step: step.layout.micro_batches * step.mesh.pp)[:40:5]
    for step in steps[: 1 if table == "megatron_table5" else None]:
        time_s = llm_fits.simulated(step, llm_fits.with_constants(step, {}))
        assert time_s == pytest.approx(kept[step.id], abs=1e-6), step.id


def test_the_closed_form_is_the_simulation_where_nothing_is_shared():
    """One tensor group on a node, no pipeline: both know the same, by other ways."""
    for step in READ["torchtitan"]:
        if step.mesh.pp == 1:
            costs = llm_fits.with_constants(step, {})
            assert llm_fits.simulated(step, costs) == pytest.approx(llm_fits.closed_form(step, costs), rel=0.01)


# ── as a user states them ─────────────────────────────────────────────────────────────────────────────────


ANSWERS = llm_steps.answers(llm_rows.TABLES)
PUBLISHED = {row["id"]: row for row in llm_rows.published(llm_rows.TABLES)}


def test_every_published_row_is_predicted_or_says_why_not():
    left_out = llm_rows.published(llm_rows.TABLES, "no")
    assert len(PUBLISHED) + len(left_out) == 89
    assert {one.id for one in ANSWERS if one.table == "published"} == set(PUBLISHED)
    assert all(row["note"] for row in left_out)


@pytest.mark.parametrize("name", ["p00", "p11", "p16", "p19", "p29", "p37", "p48", "p88"])
def test_predicted_steps_are_what_run_gives(name):
    (kept,) = (one for one in ANSWERS if one.id == name)
    assert gt.run(llm_rows.of_published(PUBLISHED[name])).iteration_time == pytest.approx(kept.ours_s, abs=1e-6)


@pytest.mark.parametrize(("table", "name"), [("torchtitan", "t00"), ("torchtitan", "t30"), ("vtrain_multi", "m0002")])
def test_a_step_as_stated_is_the_scenario_that_a_user_writes(table, name):
    """So the prediction by a fit that has not seen the row is what `run` would give with those constants."""
    (step,) = (step for step in READ[table] if step.id == name)
    stated = llm_rows.as_stated(step)
    ours_s = llm_fits.simulated(stated, llm_fits.with_constants(stated, {}))
    assert gt.run(llm_rows.scenario_of(step)).iteration_time == pytest.approx(ours_s, rel=1e-9)


def test_rows_that_constants_are_fitted_on_are_predicted_without_them():
    """Each configuration by the constants of a fit that left it out, which stand in left_out.json."""
    (one,) = (fit for fit in llm_fits.FITS if fit.tables == ("torchtitan",))
    without = llm_steps.json.loads((llm_rows.TABLES / llm_fits.LEFT_OUT).read_text(encoding="utf-8"))[one.name]
    folds = list(llm_fits.folds([READ["torchtitan"]], one.folds))
    assert len(without) == len(folds) == 15
    kept = {one.id: one.ours_s for one in ANSWERS if one.table == "torchtitan"}
    for ((seen,), (left_out,)), constants in list(zip(folds, without, strict=True))[:4]:
        for step in left_out:
            assert step.configuration not in {other.configuration for other in seen}
            stated = llm_rows.as_stated(step)
            ours_s = llm_fits.simulated(stated, llm_fits.with_constants(stated, constants))
            assert kept[step.id] == pytest.approx(ours_s, abs=1e-6)


def test_readme_says_how_far_off_steps_are():
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert llm_steps.summed_up(ANSWERS) in readme


def test_what_the_package_says_of_its_errors_is_what_tables_and_pages_give():
    compared = llm_steps.compared
    assert compared.FILE.read_text(encoding="utf-8") == compared.text_of(ANSWERS), "python validation/compared.py"
    for row in compared.rows(ANSWERS):
        assert (ROOT / row["source"]).is_file()


def test_measured_memory_lies_within_what_is_likely():
    """Of the fullest rank, by what counted memory was off: `fit.OVER`, `UNDER` and `UNDER_OF_PIPELINE`."""
    measured = [step for step in READ["torchtitan"] if step.memory_gib]
    assert len(measured) == 15
    for step in measured:
        memory = spec_of_a_job.describe(llm_fits.with_constants(step, {}), step.layout).memory
        least, most = fit.fit(memory, step.mesh.pp).likely_bytes
        assert least <= step.memory_gib * 2**30 <= most, step.id
