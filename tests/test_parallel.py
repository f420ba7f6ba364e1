"""Divided language models: meshes, times of ops, memory, and what the core is told."""

import dataclasses
import random
import re
from functools import reduce
from math import prod
from operator import getitem

import pytest

from gradtide import presets
from gradtide.architecture import FAMILIES, Architecture, FieldError
from gradtide.parallel import memory
from gradtide.parallel.costs import ADAM_BYTES, Accelerator, Costs, NoPeakError, Training, slowest_of
from gradtide.parallel.mesh import AXES, Mesh, MeshError, split
from gradtide.parallel.spec import Layout, describe, micro_batches, model_flops, units
from gradtide.scenario.core.job import parallel as core_parallel
from specs import core_fields, spec

HIDDEN, LAYERS, HEADS, SEQ, VOCABULARY = 1024, 8, 16, 512, 50304
GPT = Architecture.of(
    {"model_type": "gpt2", "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": SEQ,
     "vocab_size": VOCABULARY}
)  # fmt: skip
LLAMA = Architecture.of(presets.configuration("llama3-8b"))
MIXTRAL = Architecture.of(presets.configuration("mixtral-8x7b"))
PEAK = 1e12
IDEAL = Accelerator(
    "ideal", "no memory to wait for", dict.fromkeys(("bf16", "fp16", "float8", "fp32"), PEAK), 80 * 2**30, 1e30, 1.0,
    0.0, "", "", dict.fromkeys(("bf16", "fp16", "float8", "fp32"), 1.0), 1.0,
)  # fmt: skip
H100 = presets.accelerator("H100")


def mesh_of(text):
    return Mesh(**{axis: int(ranks) for axis, ranks in (part.split("=") for part in text.split(","))})


def costs(model=GPT, accelerator=IDEAL, mesh="tp=1", **training):
    given = {"seq": SEQ, "host_s": 0.0, **training}
    return Costs(model, accelerator, mesh_of(mesh), Training(**given))


def forward(found):
    ops = [*found.embedding(), *(op for block in found.model.blocks for op in found.block(block)), *found.head()]
    return sum(op.forward for op in ops), sum(op.backward for op in ops)


# Meshes


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("tp=0", "tp", "from 1 to 1,000,000"),
        ("fsdp=1000000,tp=2", "parallel", "at most 1,000,000"),
        ("fsdp=4,ep=8", "ep", "let `ep` divide 4"),
    ],
)
def test_a_mesh_that_cannot_be_names_its_axis(text, field, says):
    with pytest.raises(MeshError, match=re.escape(says)) as caught:
        mesh_of(text)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("text", "model", "chunks", "ranks", "field", "says"),
    [
        ("tp=3", GPT, 1, None, "tp", "16 heads of queries"),
        ("tp=16", GPT, 1, None, None, ""),
        ("tp=16", LLAMA, 1, None, None, ""),
        ("pp=9", GPT, 1, None, "pp", "8 blocks cannot fill 9 stages"),
        ("pp=8", GPT, 2, None, "pp", "write at most 4"),
        ("cp=3", GPT, 1, None, "cp", "let it divide 512"),
        ("fsdp=8,ep=8", GPT, 1, None, "ep", "has no experts"),
        ("fsdp=8,ep=1", GPT, 1, None, None, ""),
        ("fsdp=8", MIXTRAL, 1, None, "ep", "missing for 8 experts"),
        ("fsdp=16,ep=16", MIXTRAL, 1, None, "ep", "let `ep` divide 8"),
        ("fsdp=16,ep=8", MIXTRAL, 1, 16, None, ""),
        ("fsdp=16,tp=8", GPT, 1, 64, "parallel", "128 ranks, and there are 64"),
    ],
)
def test_a_model_is_divided_only_where_it_can_be(text, model, chunks, ranks, field, says):
    mesh = mesh_of(text)
    if field is None:
        mesh.check(model, SEQ, chunks, ranks)
        return
    with pytest.raises(MeshError, match=re.escape(says)) as caught:
        mesh.check(model, SEQ, chunks, ranks)
    assert caught.value.field == field


def test_blocks_are_spread_evenly_and_the_ends_have_least():
    assert list(split(126, 16)) == [7, *[8] * 14, 7]
    for blocks, stages in [(1, 1), (7, 3), (8, 8), (31, 4)]:
        found = list(split(blocks, stages))
        assert sum(found) == blocks
        assert max(found) - min(found) <= 1


# Times


@pytest.mark.parametrize("model", [GPT, LLAMA, MIXTRAL], ids=["gpt", "llama", "mixtral"])
@pytest.mark.parametrize("mesh", ["tp=1", "tp=4", "cp=4", "tp=2,cp=2,fsdp=4"])
def test_where_memory_is_no_limit_ranks_share_the_models_flops(model, mesh):
    """Unfused attention computes all pairs, as `Architecture.forward_flops` counts them; backward is two products."""
    found = costs(model, mesh=mesh + (",ep=1" if model is MIXTRAL else ""), attention="unfused", micro_batch=2)
    shared = found.mesh.tp * found.mesh.cp
    whole = 2 * model.forward_flops(SEQ)
    # Every rank of a tensor group computes the router.
    routers = 2 * SEQ * sum(m.flops_per_token for m in model.modules() if m.name.endswith("mlp.gate"))
    expected = ((whole - routers) / shared + routers / found.mesh.cp) / PEAK
    times = forward(found)
    assert times[0] == pytest.approx(expected, rel=1e-9)
    assert times[1] == pytest.approx(2 * expected, rel=1e-9)


def test_experts_that_are_spread_do_not_change_what_a_rank_computes():
    times = {forward(costs(MIXTRAL, mesh=f"fsdp=8,ep={ep}")) for ep in (1, 2, 8)}
    assert max(times)[0] == pytest.approx(min(times)[0], rel=1e-12)
    one = costs(MIXTRAL, mesh="fsdp=8,ep=8").block(MIXTRAL.blocks[0])[1]
    assert one.role == "experts"
    assert one.exchanged_bytes == SEQ * 2 * MIXTRAL.hidden * 2  # two experts for a token, 16 bits


def test_a_flash_kernel_leaves_out_what_the_mask_hides():
    """Of s² pairs s²/2 are left; of a window w, s w - w²/2. Backward has five products for two."""
    flash, whole = costs(GPT), costs(GPT, attention="unfused")
    attention = GPT.blocks[0].attention.flops(SEQ) / PEAK
    ours, theirs = flash.block(GPT.blocks[0])[0], whole.block(GPT.blocks[0])[0]
    assert theirs.forward - ours.forward == pytest.approx(attention / 2, rel=1e-9)
    assert theirs.backward - ours.backward == pytest.approx((2 - 2.5 / 2) * attention, rel=1e-9)


def test_times_by_hand():
    """One product of 512 x 1024 x 4096 at half of the peak; depth 1024 costs 1 + 128/1024; 100 GB/s for the rest."""
    slow = dataclasses.replace(
        IDEAL, memory_bytes_per_s=200e9, memory_efficiency=0.5, half_size=128, efficiency={"bf16": 0.5}
    )
    up = 2 * SEQ * HIDDEN * 4096 / (PEAK / 2) * (1 + 128 / 1024)
    down = 2 * SEQ * HIDDEN * 4096 / (PEAK / 2) * (1 + 128 / 4096)
    # norm: in, out; activation: 4 h in, 4 h out; residual: two in, one out. Two bytes each.
    moved = 2 * SEQ * HIDDEN * (2 + 8 + 3) / 100e9
    mlp = costs(GPT, slow).block(GPT.blocks[0])[1]
    assert mlp.forward == pytest.approx(up + down + moved, rel=1e-9)
    assert mlp.backward == pytest.approx(2 * (up + down) + 1.5 * moved, rel=1e-9)
    assert costs(GPT, slow, compiled=False, eager_moved=2.0).block(GPT.blocks[0])[1].forward == pytest.approx(
        up + down + 2 * moved, rel=1e-9
    )
    assert costs(GPT, slow).optimizer(1000) == pytest.approx(1000 * ADAM_BYTES / 100e9)


def test_what_the_host_cannot_issue_faster_takes_as_long_as_the_host_does():
    attention, mlp = costs(GPT, host_s=1.0).block(GPT.blocks[0])
    assert (attention.forward, attention.backward) == (9, 18)  # two products, six element-wise kernels, flash
    assert (mlp.forward, mlp.backward) == (6, 12)


@pytest.mark.parametrize("kernel", ["flash", "unfused"])
def test_what_is_recomputed(kernel):
    none, selective, full = (
        costs(GPT, recompute=what, attention=kernel).block(GPT.blocks[0]) for what in ("none", "selective", "full")
    )
    assert [op.recompute for op in none] == [0, 0]
    assert [op.recompute for op in full] == [op.forward for op in none]
    assert all(op.recompute_communicates for op in full)
    assert not any(op.recompute_communicates for op in (*none, *selective))
    scores = GPT.blocks[0].attention.flops(SEQ) / PEAK
    # Of queries, keys and values, their sum, up and down, the second and the fourth.
    products = 2 * SEQ * HIDDEN**2 / PEAK, 2 * SEQ * 4 * HIDDEN**2 / PEAK
    assert [op.recompute for op in selective] == pytest.approx([scores, 0] if kernel == "unfused" else products)


def test_float8_multiplies_in_blocks_alone():
    fast = dataclasses.replace(IDEAL, peaks={**IDEAL.peaks, "float8": 2 * PEAK})
    half, whole = costs(LLAMA, fast, precision="float8"), costs(LLAMA, fast)
    assert half.head() == whole.head()
    ours, theirs = half.block(LLAMA.blocks[0])[1], whole.block(LLAMA.blocks[0])[1]
    assert ours.forward == pytest.approx(theirs.forward / 2)


def test_a_device_that_cannot_or_is_not_known_is_refused():
    with pytest.raises(NoPeakError, match="A100 does not multiply in float8; it multiplies in bf16, fp16, fp32"):
        costs(GPT, presets.accelerator("A100"), precision="float8").block(GPT.blocks[0])
    unknown = presets.accelerator("MI300X-bf16")
    with pytest.raises(NoPeakError, match="state the share of its peak") as caught:
        costs(GPT, unknown).block(GPT.blocks[0])
    assert caught.value.field == "efficiency"
    assert forward(costs(GPT, unknown.stated(0.5)))[0] > 0
    with pytest.raises(KeyError, match="built in are A100, H100"):
        presets.accelerator("H1000")


@pytest.mark.parametrize("name", presets.accelerator_names())
def test_accelerators_are_possible_and_say_where_their_figures_come_from(name):
    found = presets.accelerator(name)
    assert re.search("data ?sheet", found.source)
    assert found.peaks["bf16"] == found.peaks["fp16"]
    assert all(0 < share < 1 for share in (*found.efficiency.values(), found.memory_efficiency))
    assert ("llm-steps" in found.basis or "as the H200" in found.basis) == bool(found.efficiency)


def test_all_ops_take_as_long_as_on_the_slowest_rank():
    """Each doubling of nodes adds the same share, to ops, recomputation and the optimizer."""
    assert [slowest_of(nodes, 0.02) for nodes in (1, 2, 16)] == pytest.approx([1, 1.02, 1.08])
    slow, alike = (costs(LLAMA, H100, mesh="tp=2", recompute="full", slowest=one) for one in (1.08, 1.0))
    for ours, theirs in zip(slow.block(LLAMA.blocks[0]), alike.block(LLAMA.blocks[0]), strict=True):
        assert ours[2:5] == pytest.approx([1.08 * time for time in theirs[2:5]])
        assert ours.beside[0].join == pytest.approx(1.08 * theirs.beside[0].join)
    assert slow.optimizer(1000) == pytest.approx(1.08 * alike.optimizer(1000))


# Memory


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("sequence", [False, True])
def test_activations_are_those_of_korthikanti(tp, sequence):
    """Korthikanti et al. (2022), equations 1 to 4 and 6: bytes of a layer with dropout, in 16 bits."""
    micro = 2
    sbh, scores = SEQ * micro * HIDDEN, 5 * HEADS * SEQ / HIDDEN

    def ours(recompute):
        given = {"micro_batch": micro, "sequence_parallel": sequence, "dropout": True, "attention": "unfused"}
        return memory.activations(GPT.blocks[:3], 1, costs(mesh=f"tp={tp}", recompute=recompute, **given))

    layer = sbh * (34 + scores) / tp if sequence else sbh * (10 + 24 / tp + scores / tp)
    selective = layer - sbh * scores / tp
    entering = 2 * sbh / (tp if sequence else 1)
    assert ours("none") == 3 * layer
    assert ours("selective") == 3 * selective
    assert ours("full") == 3 * entering + layer


def test_states_are_those_of_zero():
    """Rajbhandari et al. (2020), section 3.1: 16 bytes of a parameter with gradients in 16 bits; here fp32: 18."""
    found, parameters = costs(mesh="fsdp=8"), 8_000_000
    for zero, expected in [
        (0, (2, 4, 12)),
        (1, (2, 4, 12 / 8)),
        # The gradients of a unit, a 16th of all, in 16 bits, and of the one before, as they are reduced.
        (2, (2, 4 / 8 + 6 / 16, 12 / 8)),
        (3, (0.25, 4 / 8 + 6 / 16, 12 / 8)),  # two blocks of a 16th are gathered
    ]:
        states = memory.states(parameters, 0, parameters // 16, zero, 1, 4, found)
        assert states == pytest.approx([share * parameters for share in expected])


def test_what_selective_recomputation_keeps_of_llama():
    """By hand: what enters, what attention leaves, queries, values, gate and down; 4 bytes for a token and head."""
    block, tokens = LLAMA.blocks[0], 2 * SEQ
    for tp in (1, 4):
        found = costs(LLAMA, mesh=f"tp={tp}", micro_batch=2, recompute="selective")
        whole = costs(LLAMA, mesh=f"tp={tp}", micro_batch=2, recompute="none")
        part = tokens * (2 * (4096 + 4096 + 4096 + 1024 + 14336 + 4096) + 4 * 32) / tp
        assert memory.selected(block, found) == pytest.approx(part)
        again = 2 * tokens * 4096 / tp + memory.kept(block, whole) - part
        assert memory.activations(LLAMA.blocks[:3], 1, found) == pytest.approx(3 * part + again, abs=1)


def test_a_divided_sequence_is_whole_around_a_product():
    """Its input and the input's gradient, of 16 bits; without division every rank has them anyway."""
    assert memory.gathered(costs(LLAMA, mesh="tp=4", micro_batch=2)) == 2 * 2 * (2 * SEQ) * 4096
    for mesh, divided in (("tp=4", False), ("fsdp=4", True)):
        assert memory.gathered(costs(LLAMA, mesh=mesh, sequence_parallel=divided)) == 0


@pytest.mark.parametrize(("mesh", "compiled", "each"), [("fsdp=4", 0, 14), ("tp=4", 0, 18), ("tp=4", 1, 4)])
def test_logits_have_what_the_loss_makes_of_them(mesh, compiled, each):
    found = costs(LLAMA, mesh=mesh, compiled_loss=bool(compiled))
    assert describe(found, Layout()).memory.logits == SEQ * 128256 * each // found.mesh.tp


def test_a_compiled_loss_reads_its_logits_twice():
    """Not six passes of 16 bits; backward moves half as much again."""
    slow = dataclasses.replace(IDEAL, memory_bytes_per_s=100e9, memory_efficiency=1.0)
    (eager,), (compiled,) = (costs(LLAMA, slow, compiled_loss=one).head() for one in (False, True))
    assert eager.forward - compiled.forward == pytest.approx(SEQ * 128256 * 8 / 100e9, rel=1e-9)
    assert eager.backward - compiled.backward == pytest.approx(1.5 * SEQ * 128256 * 8 / 100e9, rel=1e-9)


def test_micro_batches_that_are_under_way():
    """Narayanan et al. (2021), section 2.2; the first interleaved stage: Korthikanti et al. (2022), section 4.2.3."""
    assert [memory.under_way("1f1b", stage, 4, 8, 1) for stage in range(4)] == [4, 3, 2, 1]
    assert memory.under_way("1f1b", 0, 4, 2, 1) == 2
    assert memory.under_way("gpipe", 3, 4, 8, 1) == 8
    assert memory.under_way("interleaved", 0, 4, 8, 2) == pytest.approx(4 * (1 + 3 / (4 * 2)))


def test_a_job_that_does_not_fit_says_so():
    large = Architecture.of(presets.configuration("llama3-70b"))
    found = describe(Costs(large, H100, Mesh(fsdp=8), Training(8192, recompute="full")), Layout()).memory
    assert not found.fits
    small = describe(Costs(LLAMA, H100, Mesh(fsdp=64), Training(8192, recompute="full")), Layout()).memory
    assert small.fits
    assert small.total == sum((small.parameters, small.gradients, small.optimizer, small.activations, small.logits))


# What the core is told


def test_the_core_gets_exactly_what_it_reads_of_a_parallel_job():
    found, layout = costs(MIXTRAL, mesh="tp=2,fsdp=8,ep=4,pp=2"), Layout(micro_batches=2)
    described = core_parallel(found, layout, describe(found, layout))
    whole = spec([])
    whole["jobs"][0]["parallel"] = described
    for place in (
        (),
        ("mesh",),
        ("kinds", 1),
        ("kinds", 1, "ops", 0),
        ("kinds", 1, "ops", 0, "beside", 0),
        ("blocks", 0),
    ):
        assert set(reduce(getitem, place, described)) == core_fields(whole, "jobs", 0, "parallel", *place), place
    prefetches = core_parallel(found, Layout(backward_prefetch=2), describe(found, Layout(backward_prefetch=2)))
    assert (prefetches["forward_prefetch"], prefetches["backward_prefetch"]) == (1, 2)


def test_units_are_blocks_in_line_of_one_stage():
    found = describe(costs(LLAMA, mesh="fsdp=8"), Layout(unit=3))
    assert sum(found.unit_blocks) == len(LLAMA.blocks) + 2
    assert found.unit_blocks[:3] == [1, 3, 3]
    # Stages of 3 and 4 blocks, with the embedding before and the head behind.
    assert units([3, 4], 2) == [1, 2, 1, 2, 2, 1]


def test_memory_has_the_units_that_are_gathered():
    def gathered(**layout):
        return describe(costs(mesh="fsdp=8"), Layout(**layout)).memory.parameters

    block = 2 * sum(module.parameters for module in GPT.blocks[0].modules)
    table = 2 * sum(module.parameters for module in GPT.before)
    assert gathered() == 2 * max(block, table)
    assert gathered(unit=4, backward_prefetch=2) == min(3 * max(4 * block, table), 2 * GPT.parameters)


@pytest.mark.parametrize("seed", range(20))
def test_ranks_together_have_every_parameter(seed):
    draw = random.Random(seed)
    model = draw.choice([GPT, LLAMA, MIXTRAL])
    tp, ep, pp = draw.choice([1, 2, 8]), draw.choice([1, 2, 8]), draw.choice([1, 2, 4])
    mesh = Mesh(tp=tp, fsdp=8, ep=ep if model is MIXTRAL else None, pp=pp)
    found = describe(Costs(model, H100, mesh, Training(SEQ)), Layout(micro_batches=pp))
    assert sum(found.stages) == len(found.blocks) == len(model.blocks) + 2
    assert len(found.stages) == len(found.optimizer_ps) == pp
    kinds = [found.kinds[kind] for _, kind in found.blocks]
    whole = tp * sum(kind.parameter_bytes + mesh.experts * kind.expert_parameter_bytes for kind in kinds)
    # Norms, biases of rows and routers are on every rank of a tensor group; a tied table is on two stages.
    alone = sum(module.parameters for module in model.modules() if not module.split)
    tied = model.vocabulary * model.hidden if model.tied and pp > 1 else 0
    assert whole == 2 * (model.parameters + (tp - 1) * alone + tied)
    assert (found.tied_embedding_bytes > 0) == (tied > 0)


def test_useful_flops_are_megatrons():
    """Narayanan et al. (2021), equation 3 without its recomputation: 72 B s l h² (1 + s/6h + V/12lh)."""
    formula = 72 * 4 * SEQ * LAYERS * HIDDEN**2
    formula = formula * (1 + SEQ / (6 * HIDDEN) + VOCABULARY / (12 * LAYERS * HIDDEN))
    assert model_flops(costs(), 4) == pytest.approx(formula, rel=1e-12)
    found = describe(costs(mesh="fsdp=4"), Layout())
    assert found.utilisation(found.model_flops / 4 / PEAK, PEAK) == 1
    assert found.tokens_per_s(2.0) == SEQ / 2


@pytest.mark.parametrize(
    ("mesh", "layout", "training", "field", "says"),
    [
        ("pp=2", {"chunks": 2}, {}, "chunks", "only an interleaved pipeline"),
        ("tp=1", {"pipeline": "interleaved", "chunks": 2}, {}, "pipeline", "nothing to interleave"),
        ("pp=2", {"pipeline": "interleaved", "chunks": 2, "micro_batches": 3}, {}, "pipeline", "not a multiple of 2"),
        ("pp=3", {}, {}, "pp", r"3 stages cannot share 8 blocks equally"),
        ("pp=2", {"stages": [8]}, {}, "stages", "2 stages are needed, and 1 are listed"),
        ("pp=2", {"stages": [3, 4]}, {}, "stages", "the stages have 7 blocks, and the model has 8"),
        ("tp=4", {}, {"seq": 6}, "sequence", "cannot share 6 tokens"),
        ("tp=1", {}, {"seq": 1024}, "seq", "write at most 512"),
    ],
)
def test_a_layout_that_cannot_be_names_its_key(mesh, layout, training, field, says):
    with pytest.raises(FieldError, match=says) as caught:
        describe(costs(mesh=mesh, **training), Layout(**layout))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("mesh", "stages", "blocks"),
    [
        ("pp=4", None, [2, 2, 2, 2]),
        # With the embedding and the head, each stage has two.
        ("pp=5", None, [1, 2, 2, 2, 1]),
        ("pp=3", [1, 4, 3], [1, 4, 3]),
    ],
)
def test_stages_have_the_blocks_that_they_are_given(mesh, stages, blocks):
    """The first stage of the core has the embedding besides, the last one the head."""
    found = describe(costs(GPT, mesh=mesh), Layout(stages=stages)).stages
    assert found == [blocks[0] + 1, *blocks[1:-1], blocks[-1] + 1]


def test_sequences_of_an_iteration_are_shared_equally():
    assert micro_batches(None, 1, 8, 4) == 4
    assert micro_batches(64, 2, 8, 4) == 4
    with pytest.raises(FieldError, match="write a multiple of 16"):
        micro_batches(60, 2, 8, 1)


def drawn(draw):
    """Draw a configuration of any family that is small."""
    kv_heads, size = draw.choice([1, 2, 4]), draw.choice([8, 16])
    heads = kv_heads * draw.choice([1, 2, 4])
    family = draw.choice(sorted(FAMILIES))
    config = {
        "model_type": family, "hidden_size": heads * size, "n_embd": heads * size,
        "num_hidden_layers": draw.randint(1, 6), "num_attention_heads": heads, "n_head": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": draw.choice([48, 96, 130]), "vocab_size": 99,
        "n_positions": 64, "tie_word_embeddings": draw.random() < 0.4, "num_local_experts": 4,
        "num_experts_per_tok": 2, "n_routed_experts": 4, "n_shared_experts": draw.choice([0, 1]),
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "first_k_dense_replace": 1,
        "kv_lora_rank": 16, "q_lora_rank": draw.choice([None, 24]), "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
        "v_head_dim": 16, "sliding_window": draw.choice([None, 4, 100]),
    }  # fmt: skip
    if "moe" not in family and family not in ("mixtral", "deepseek_v2", "deepseek_v3"):
        config = {key: value for key, value in config.items() if "expert" not in key and "dense" not in key}
        del config["moe_intermediate_size"]
    if family not in ("mistral", "mixtral"):
        del config["sliding_window"]
    return Architecture.of({**config, "n_layer": config["num_hidden_layers"]})


@pytest.mark.parametrize("seed", range(300))
def test_any_model_on_any_mesh_is_described_or_refused_with_a_field(seed):
    draw = random.Random(seed)
    model = drawn(draw)
    mesh = Mesh(
        tp=draw.choice([1, 1, 2, 4]), cp=draw.choice([1, 2]), fsdp=draw.choice([1, 4]), dp=draw.choice([1, 2]),
        pp=draw.choice([1, 1, 2, 3]),
    )  # fmt: skip
    if any(module.experts > 1 for module in model.modules()) or draw.random() < 0.05:
        mesh = dataclasses.replace(mesh, ep=draw.choice([one for one in (1, 2, 4) if mesh.spread % one == 0]))
    training = Training(
        seq=draw.choice([16, 64]), micro_batch=draw.choice([1, 3]),
        precision=draw.choice(["bf16", "fp16", "float8", "fp32"]),
        recompute=draw.choice(["none", "selective", "full"]), attention=draw.choice(["flash", "unfused"]),
        compiled=draw.random() < 0.5, sequence_parallel=draw.random() < 0.5, dropout=draw.random() < 0.5,
    )  # fmt: skip
    layout = Layout(
        micro_batches=draw.choice([1, 6]), zero=draw.choice([0, 1, 2, 3]), prefetch=draw.choice([0, 1, 9]),
        pipeline=draw.choice(["1f1b", "gpipe"]), unit=draw.choice([1, 2, 9]),
    )  # fmt: skip
    known = dataclasses.replace(H100, efficiency=dict.fromkeys(H100.peaks, 0.5))
    try:
        found = describe(Costs(model, known, mesh, training), layout)
    except FieldError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.field in {*AXES, "sequence"}
        assert refused.hint
        return
    ops = [op for kind in found.kinds for op in kind.ops]
    whole = [value for op in ops for key, value in op._asdict().items() if key.endswith(("_ps", "bytes"))]
    whole += [value for kind in found.kinds for key, value in kind._asdict().items() if key.endswith("bytes")]
    whole += [*found.optimizer_ps, *found.stages]
    assert all(type(value) is int and value >= 0 for value in whole)
    assert all(op.forward_ps > 0 and op.backward_ps > 0 for op in ops)
    assert all(part >= 0 for part in dataclasses.astuple(found.memory))
    assert found.memory.total > 0
    # More recomputation never keeps more, and never takes less time.
    times = [
        describe(Costs(model, known, mesh, dataclasses.replace(training, recompute=what)), layout)
        for what in ("none", "selective", "full")
    ]
    again = [sum(op.recompute_ps for kind in one.kinds for op in kind.ops) for one in times]
    assert again == sorted(again)


# What is sent beside products, and experts that are used unequally


def test_what_asynchronous_tensor_parallelism_sends_beside_is_pytorchs():
    """All-gathers go beside all products that read them, scatters beside one product; a sum of several is not cut."""
    for model, is_cut in [(GPT, True), (LLAMA, False)]:
        found = costs(model, mesh="tp=4")
        core, hidden = model.blocks[0].attention, model.hidden
        out = 2 * SEQ * hidden * core.heads * core.value_size / 4 / PEAK
        entering = 2 * SEQ * hidden * (core.heads + 2 * core.kv_heads) * core.key_size / 4 / PEAK
        forward, backward = found.block(model.blocks[0])[0].beside
        assert (forward.join, forward.sum) == pytest.approx((entering, out), rel=1e-9)
        assert (backward.join, backward.sum) == pytest.approx((out, entering if is_cut else 0), rel=1e-9)
        assert found.embedding()[0].beside == found.head()[0].beside == ((0, 0, 0), (0, 0, 0))


def test_parts_that_have_come_are_added_up_by_memory():
    """Read in 16 bits: the activations; written: a fourth of them."""
    slow = dataclasses.replace(IDEAL, memory_bytes_per_s=100e9)
    forward, _ = costs(GPT, slow, "tp=4").block(GPT.blocks[0])[1].beside
    assert forward.add == pytest.approx(SEQ * HIDDEN * 2 * 1.25 / 100e9)


def test_products_that_are_sent_beside_are_within_their_op():
    for model in (GPT, LLAMA):
        described = describe(costs(model, H100, "tp=8", recompute="full"), Layout(async_tp=True))
        for kind in described.kinds:
            for op in kind.ops:
                for beside, whole in zip(op.beside, (op.forward_ps, op.backward_ps), strict=True):
                    assert 0 <= beside.join_ps + beside.sum_ps <= whole
    assert describe(costs(LLAMA, H100, "tp=8"), Layout()).kinds[1].ops[0].beside[0].join_ps == 0


def test_the_busiest_rank_of_experts_has_more_to_do():
    """1.5 times the mean: of tokens that are sent, of products of experts and of what they keep; nothing else."""
    even, skewed = (costs(MIXTRAL, mesh="fsdp=8,ep=8", expert_skew=skew) for skew in (1.0, 1.5))
    block = MIXTRAL.blocks[0]
    (attention, one), (same, other) = even.block(block), skewed.block(block)
    assert attention == same
    assert other.exchanged_bytes == 1.5 * one.exchanged_bytes
    router = sum(2 * SEQ * prod(shape) for m in block.modules if m.name.endswith("mlp.gate") for shape in m.shapes)
    assert other.forward - router / PEAK == pytest.approx(1.5 * (one.forward - router / PEAK), rel=1e-9)
    expert = next(m for m in block.modules if m.name.endswith("down_proj"))
    # In 16 bits: what enters the experts, what leaves both their halves, and what enters the way down.
    kept = 2 * SEQ * expert.active * (MIXTRAL.hidden + 3 * expert.inputs)
    assert memory.kept(block, skewed) - memory.kept(block, even) == pytest.approx(0.5 * kept, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "mesh", "layout", "training", "field", "says"),
    [
        (GPT, "fsdp=8", {"async_tp": True}, {}, "async_tp", "a tensor group of one rank sends nothing"),
        (GPT, "tp=8", {"async_tp": True}, {"sequence_parallel": False}, "async_tp", "needs sequence parallelism"),
        (GPT, "tp=16", {"async_tp": True}, {}, "async_tp", "write tp = 8 at most"),
        (GPT, "tp=8", {"scatter_gather": True}, {}, "scatter_gather", "only tensor groups in a pipeline"),
        (GPT, "tp=2,pp=2", {"scatter_gather": True}, {}, "scatter_gather", "write sequence = false"),
        (GPT, "fsdp=8", {"context": "all-gather"}, {}, "context", "write cp"),
        (GPT, "fsdp=8", {}, {"expert_skew": 1.5}, "expert_skew", "write ep above 1"),
        (MIXTRAL, "fsdp=8,ep=1", {}, {"expert_skew": 1.5}, "expert_skew", "write ep above 1"),
        (MIXTRAL, "fsdp=8,ep=2", {}, {"expert_skew": 2.5}, "expert_skew", "write at most 2"),
        (MIXTRAL, "fsdp=8,ep=8", {}, {"expert_skew": 4.5}, "expert_skew", "write at most 4"),
    ],
)
def test_ways_to_send_that_cannot_be_are_refused(model, mesh, layout, training, field, says):
    with pytest.raises(FieldError, match=re.escape(says)) as caught:
        describe(costs(model, mesh=mesh, **training), Layout(**layout))
    assert caught.value.field == field
