"""Plans of FSDP applied to real training: weights against plain fully_shard's, the order of what is sent, refusals.

Needs torch: `make test-torch` installs it. Ranks are processes on this machine.
"""

import io

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradtide as gt
import torch_ranks
from gradtide.errors import ScenarioError, TrainingError

fsdp = pytest.importorskip("torch.distributed.fsdp")
if not hasattr(getattr(fsdp, "FSDPModule", None), "set_custom_all_gather"):
    pytest.skip("this torch has no FSDPModule.set_custom_all_gather", allow_module_level=True)

from torch.utils.checkpoint import checkpoint  # noqa: E402

from gradtide.torch import unwrap, verify, wrap  # noqa: E402
from gradtide.torch.sharded import expected_backward, expected_forward, sharded_of  # noqa: E402

pytestmark = torch_ranks.MARKS

WIDTH, WORDS, STEPS = 16, 11, 4


class Block(nn.Module):
    def __init__(self, again=False):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mixes = nn.Linear(WIDTH, 3 * WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.again = again

    def inside(self, x):
        query, key, value = self.mixes(self.norm(x)).chunk(3, dim=-1)
        x = x + nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.down(torch.relu(self.up(x)))

    def forward(self, x):
        return checkpoint(self.inside, x, use_reentrant=False) if self.again else self.inside(x)


class Gpt(nn.Module):
    """Words to scores of words; `tied` shares the embedding with the head, `again` computes activations twice."""

    def __init__(self, blocks=4, tied=False, again=False):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(again) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


BLOCKS = [[f"blocks.{number}"] for number in range(4)]
WHOLE = [["embedding"], *BLOCKS, ["norm", "head"]]
PAIRS = [["embedding"], ["blocks.0", "blocks.1"], ["blocks.2", "blocks.3"], ["norm", "head"]]
ROOT = [[""], *BLOCKS]
INSIDE = [["embedding"], ["blocks.0"], ["blocks.0.up"], *BLOCKS[1:], ["norm", "head"]]
TIED = [["embedding", "head"], *BLOCKS, ["norm"]]


def planned(units=WHOLE, forward=1, backward=1, reshard=True, keep_last=False, **more):
    table = {"units": units, "forward_prefetch": forward, "backward_prefetch": backward, "keep_last": keep_last}
    return {"schema": "gradtide.plan/1", "fsdp": {**table, "reshard_after_forward": reshard}, **more}


def plain(model, units, reshard, **options):
    """fully_shard as PyTorch's documents have it: the inside first, the model last."""
    for unit in sorted(units, key=lambda unit: -max(name.count(".") for name in unit)):
        if unit != [""]:
            fsdp.fully_shard([model.get_submodule(name) for name in unit], reshard_after_forward=reshard, **options)
    return fsdp.fully_shard(model, **options)


def loss_of(model, rank, number):
    words = torch.randint(WORDS, (2, 6), generator=torch.Generator().manual_seed(100 * number + rank))
    return nn.functional.cross_entropy(model(words).flatten(0, 1).float(), words.roll(-1, 1).flatten())


def train(model, rank, habit):
    make = torch.optim.AdamW if habit == "adamw" else torch.optim.SGD
    optimizer = make([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for number in range(STEPS):
        if habit in ("accumulates", "holds back"):
            for part in range(3):
                if habit == "holds back":
                    model.set_requires_gradient_sync(part == 2)
                loss_of(model, rank, 10 * number + part).backward()
        else:
            loss_of(model, rank, number).backward()
        if habit == "clips":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        if habit == "evaluates":
            model.eval()
            with torch.no_grad():
                loss_of(model, rank, 1000 + number)
            model.train()
        if habit == "saves":
            model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    return [value.to_local().clone() for value in model.state_dict().values()]


HALF = {"mp_policy": fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
CASES = {
    **{
        f"depth {forward} and {backward}, {'freed' if reshard else 'kept'}": (
            {},
            {"forward": forward, "backward": backward, "reshard": reshard},
            "",
            {},
        )
        for forward, backward in ((0, 0), (1, 1), (2, 2), (0, 2), (2, 0), (5, 5))
        for reshard in (True, False)
    },
    "pairs": ({}, {"units": PAIRS}, "", {}),
    "the last is kept": ({}, {"forward": 2, "keep_last": True}, "", {}),
    "the model is a unit": ({}, {"units": ROOT, "forward": 2, "backward": 2}, "", {}),
    "all in one": ({}, {"units": [[""]], "forward": 0, "backward": 0}, "", {}),
    "a unit inside a unit": ({}, {"units": INSIDE}, "", {}),
    "tied": ({"tied": True}, {"units": TIED, "backward": 2}, "", {}),
    "computes again": ({"again": True}, {"backward": 2}, "", {}),
    "frozen": ({}, {"backward": 2}, "freezes", {}),
    "half": ({}, {"forward": 2}, "", HALF),
    **{
        f"{habit}{'' if reshard else ', kept'}": ({}, {"forward": 2, "backward": 2, "reshard": reshard}, habit, {})
        for habit in ("adamw", "accumulates", "holds back", "clips", "evaluates", "saves")
        for reshard in (True, False)
    },
}


def made(habit, **kind):
    torch.manual_seed(0)
    model = Gpt(**kind)
    if habit == "freezes":
        for part in (model.embedding, model.blocks[0], model.blocks[2]):
            part.requires_grad_(False)
    return model


def all_cases(rank, names):
    found = {}
    for name in names:
        kind, plan, habit, options = CASES[name]
        document = planned(**plan)
        sharding = document["fsdp"]
        reference = plain(made(habit, **kind), sharding["units"], sharding["reshard_after_forward"], **options)
        wanted = train(reference, rank, habit)
        model = made(habit, **kind)
        assert wrap(model, document, **options) is model
        got = train(model, rank, habit)
        sharded = sharded_of(model)
        sharded.close()
        same = [torch.equal(*pair) for pair in zip(got, wanted, strict=True)]
        found[name] = all(same), sharded.passes, sharded.fault
    return found


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    names = torch_ranks.wanted(request, "case")
    return torch_ranks.values(2, all_cases, tmp_path_factory.mktemp("ranks"), names)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_plain_fsdp_and_the_order_is_the_plans(outcomes, case):
    habit = CASES[case][2]
    passes = {"accumulates": 3, "holds back": 3, "evaluates": 2}.get(habit, 1) * STEPS
    for value in outcomes:
        assert value[case] == (True, passes, "")


# The order in which a plan sends


def sharding(*args, **more):
    return gt.read_plan(planned(*args, **more)).fsdp


def shown(events):
    return " ".join(
        {"all-gather": "ag", "reduce-scatter": "rs", "forward": "F"}[kind] + str(unit) for kind, unit in events
    )


def turns(units):
    return [(unit, is_start) for unit in range(units) for is_start in (True, False)]


ORDERS = {
    (0, True): ("ag0 F0 ag1 F1 ag2 F2", "ag2 rs2 ag1 rs1 ag0 rs0"),
    (1, True): ("ag0 ag1 F0 ag2 F1 F2", "ag2 ag1 rs2 ag0 rs1 rs0"),
    (2, True): ("ag0 ag1 ag2 F0 F1 F2", "ag2 ag1 ag0 rs2 rs1 rs0"),
    (1, False): ("ag0 ag1 F0 ag2 F1 F2", "rs2 rs1 rs0"),
}
"""As recorded of torch 2.15 and gloo, of three units; the first needs no gradient of its input."""


def test_the_last_unit_is_not_gathered_again_if_it_is_kept():
    plan = sharding([["a"], ["b"], ["c"]], 1, 1, keep_last=True)
    gathered = set()
    assert shown(expected_forward(plan, gathered)) == ORDERS[1, True][0]
    assert shown(expected_backward(plan, turns(3), [0], {0, 1, 2}, gathered)) == "ag1 rs2 ag0 rs1 rs0"


@pytest.mark.parametrize(("depth", "reshard"), ORDERS)
def test_depth_says_what_is_gathered_before_what_is_computed(depth, reshard):
    plan = sharding([["a"], ["b"], ["c"]], depth, depth, reshard)
    gathered = set()
    forward = expected_forward(plan, gathered)
    backward = expected_backward(plan, turns(3), [0], {0, 1, 2}, gathered)
    assert (shown(forward), shown(backward)) == ORDERS[depth, reshard]
    assert not gathered


def test_every_unit_is_gathered_once_a_pass_and_reduced_once():
    for units in range(1, 6):
        for depth in range(units):
            plan = sharding([[f"{number}"] for number in range(units)], depth, depth)
            gathered = set()
            there = expected_forward(plan, gathered)
            back = expected_backward(plan, turns(units), [], set(range(units)), gathered)
            for events, kinds in ((there, ("all-gather", "forward")), (back, ("all-gather", "reduce-scatter"))):
                for kind in kinds:
                    assert sorted(unit for one, unit in events if one == kind) == list(range(units))


# What gradtide plan writes


class Named(nn.Module):
    """Four blocks, with modules as a Hugging Face model names them."""

    def __init__(self):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(WORDS, WIDTH)
        self.model.layers = nn.ModuleList(Block() for _ in range(4))
        self.model.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words):
        x = self.model.embed_tokens(words)
        for block in self.model.layers:
            x = block(x)
        return self.lm_head(self.model.norm(x))


CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 4,
    "vocab_size": 32000,
}


def found_plan(rate, **parallel):
    cluster = {"topology": {"kind": "star", "hosts": 2}, "link": {"rate": rate, "delay": "1us"}}
    train = {"model": CONFIG, "parallel": {"fsdp": 2, **parallel}, "compute": {"seq": 4096, "device": "H100"}}
    return gt.plan({"cluster": cluster, "job": {"train": train}, "run": {"engine": "fluid"}})


def trains_as_planned(rank, plans, snippet):
    found = []
    for plan in (*plans, None):
        torch.manual_seed(0)
        model = Named()
        if plan is None:
            exec("\n".join(snippet), {"model": model, "mesh": dist.init_device_mesh("cpu", (2,))})
        else:
            wrap(model, plan)
        weights = train(model, rank, "")
        if plan is not None:
            sharded_of(model).close()
            found.append((sharded_of(model).passes, sharded_of(model).fault))
        found.append([weight.tolist() for weight in weights])
    return found


def test_what_gradtide_plan_writes_is_carried_out_and_so_is_its_code(tmp_path):
    easy, hard = found_plan("1600Gbps"), found_plan("10Gbps")
    assert easy.plan.fsdp.keep_last
    assert not hard.plan.fsdp.reshard_after_forward
    plans = [easy.to_dict(), hard.to_dict()]
    for value in torch_ranks.values(2, trains_as_planned, tmp_path, plans, hard.snippet):
        first, weights, second, *others = value
        assert first == second == (STEPS, "")
        assert all(other == weights for other in others)


# verify


def verifies(rank):
    told = []
    model = made("")
    wrap(model, planned(forward=2, workers=2, predicted={"iteration_time_ms": 1e6}))
    file = io.StringIO()
    result = verify(model, lambda: loss_of(model, rank, 0).backward(), steps=3, file=file)
    told.append((result.level, result.missed, "below predicted" in result.reason, result.predicted))
    model.blocks[0].set_modules_to_forward_prefetch([])
    with pytest.raises(TrainingError) as caught:
        verify(model, lambda: loss_of(model, rank, 0).backward(), steps=3, file=file)
    told.append(str(caught.value))
    with pytest.raises(TrainingError, match="cannot be undone"):
        unwrap(model)
    return told


def test_verify_says_where_the_order_is_not_the_plans(tmp_path):
    for value in torch_ranks.values(2, verifies, tmp_path):
        well, ill = value
        assert well == ("fsdp", "", True, 1000.0)
        assert (
            "after ag0 ag1 ag2 F0 came forward of unit 1 ('blocks.0'), where the plan has all-gather of unit 3 "
            "('blocks.2')"
        ) in ill


# What is refused


REFUSED = {
    "another module": (planned([["embedding"], ["block.0"], ["norm", "head"]]), {}, "GT081.*no module 'block.0'"),
    "a parameter in no unit": (planned(WHOLE[:-1]), {}, r"GT081.*'norm.weight', 'norm.bias', 'head.weight'"),
    "a unit without parameters": (planned([[""], *WHOLE]), {}, r"GT081.*unit 0 \(''\) has no parameters of its own"),
    "an option that the plan has": (
        planned(),
        {"reshard_after_forward": True},
        "does not accept reshard_after_forward",
    ),
    "a list of modules": (
        planned([["embedding"], ["blocks"], ["norm", "head"]]),
        {},
        "unit 1 has 'blocks', a ModuleList without",
    ),
    "modules inside each other": (
        planned(
            [
                ["embedding", "blocks.0", "blocks.1.up"],
                ["blocks.0.up", "blocks.1"],
                ["blocks.2"],
                ["blocks.3"],
                ["norm", "head"],
            ]
        ),
        {},
        "inside each other",
    ),
}


def refused(rank, names):
    found = {}
    for name in names:
        plan, options, _ = REFUSED[name]
        try:
            wrap(made(""), plan, **options)
        except (ScenarioError, TrainingError) as error:
            found[name] = str(error).replace("\n", " ")
    with pytest.raises(
        TrainingError, match=r"'embedding.weight', 'head.weight' are one parameter in the units 0 and 5"
    ):
        wrap(made("", tied=True), planned())
    model = made("")
    with pytest.raises(TrainingError, match="takes no optimizer"):
        wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), planned())
    with pytest.raises(TrainingError, match="takes no optimizer, level"):
        wrap(model, planned(), level="none")
    with pytest.raises(TrainingError, match="rank 1 has another plan"):
        wrap(model, planned(forward=1 + rank))
    wrap(model, planned())
    with pytest.raises(TrainingError, match="sharded already"):
        wrap(model, planned())
    with pytest.raises(TrainingError, match="the bare module"):
        wrap(nn.parallel.DistributedDataParallel(made("")), planned())
    with pytest.warns(UserWarning, match="made for 4 workers and is applied to 2"):
        wrap(made(""), planned(workers=4))
    return found


@pytest.fixture(scope="module")
def refusals(request, tmp_path_factory):
    names = torch_ranks.wanted(request, "what")
    return torch_ranks.values(2, refused, tmp_path_factory.mktemp("refused"), names)[0]


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_carried_out_is_refused(refusals, what):
    import re

    assert re.search(REFUSED[what][2], refusals[what])


def alone(rank):
    model = made("")
    wrap(model, planned())
    train(model, rank, "")
    verify(model, lambda: loss_of(model, rank, 0).backward(), steps=2, file=io.StringIO())
    return sharded_of(model).fault


def test_one_rank_trains_and_sends_nothing(tmp_path):
    assert torch_ranks.values(1, alone, tmp_path) == [""]


def test_without_a_process_group_it_says_what_to_call():
    with pytest.raises(TrainingError, match="call init_process_group first"):
        wrap(made(""), planned())
    with pytest.raises(TrainingError, match="wrap needs the optimizer"):
        wrap(made(""), {"schema": "gradtide.plan/1", "level": "none"})


# Two dimensions: sharded in pairs of ranks, replicated over the pairs


def in_two_dimensions(rank):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    wanted = train(plain(made(""), WHOLE, True, mesh=mesh), rank, "clips")
    model = made("")
    wrap(model, planned(forward=2, backward=2), mesh=mesh)
    got = train(model, rank, "clips")
    sharded_of(model).close()
    return all(torch.equal(*pair) for pair in zip(got, wanted, strict=True)), sharded_of(model).fault


def test_replicas_of_shards_have_the_weights_of_plain_fsdp(tmp_path):
    assert torch_ranks.values(4, in_two_dimensions, tmp_path) == [(True, "")] * 4
