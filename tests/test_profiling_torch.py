"""Profiles of real modules: bytes, FLOPs and order of their layers, what is kept, and faults.

Needs torch, and for their models torchvision, transformers and timm:
`pip install '.[torch]' torchvision transformers timm`.
"""

import gc
import weakref

import pytest
import torch
from torch import nn

import gradtide as gt
import torch_models
import torch_ranks
from gradtide import presets
from gradtide.profiling.walk import count
from gradtide.roofline import forward_seconds
from gradtide.torch.deferred import is_held
from test_presets import PARAMETERS, published_throughputs
from torch_models import library_model, small_cnn

pytestmark = torch_models.MARKS


def counted(model, *inputs, **kwargs):
    return count(model, inputs, kwargs, fake=True)


def shape_of(counts):
    return [(layer.name, layer.parameters) for layer in counts.layers]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_bytes_and_flops_of_library_models_are_exact(name):
    # Parameters: the libraries' own figures, for the CNNs and BERT checked by hand in test_presets.py; FLOPs of one
    # sample as torch 2.13 counted them. A shared matrix (GPT-2's head, BERT's decoder) counts once.
    model, (args, kwargs) = library_model(name)
    counts = count(model, args, kwargs, fake=True)
    preset = presets.model(name)
    assert sum(layer.gradient_bytes for layer in counts.layers) == 4 * PARAMETERS[name]
    assert (counts.tensors, len(counts.layers)) == (preset.tensors, len(preset.layers))
    assert (counts.unused, counts.frozen) == ((), ())
    assert sum(layer.forward_flops for layer in counts.layers) == 2 * preset.forward_flops
    assert {layer.name: layer.gradient_bytes for layer in counts.layers} == {
        layer.name: layer.parameter_bytes for layer in preset.layers
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet50", "googlenet", "inception_v3"])
def test_layers_of_a_cnn_are_those_of_its_preset_one_by_one(name):
    model, (args, kwargs) = library_model(name)
    ours = [layer.forward_counts() for layer in count(model, args, kwargs, fake=True).layers]
    for layer, known in zip(ours, presets.model(name).layers, strict=True):
        assert (layer.name, layer.parameter_bytes, layer.winograd) == (
            known.name,
            known.parameter_bytes,
            known.winograd,
        )
        assert (layer.forward_flops, layer.activation_bytes) == (2 * known.forward_flops, 2 * known.activation_bytes)


@pytest.mark.slow
def test_resnet_50_trains_as_fast_as_published():
    # NVIDIA's published single-device throughputs, in presets/devices.toml with their source. The first of a device has
    # calibrated it, so the others are the proof: another framework's (MXNet), other batches, 25 % at most.
    figures = [one for one in published_throughputs() if one.model == "resnet50"]
    checks = [one for one in figures if not one.calibrates]
    assert {one.device for one in checks} >= {"V100", "A100", "A100-bf16"}
    model, _ = library_model("resnet50")
    for figure in figures:
        found = gt.profile(model, torch.empty(figure.batch, 3, 224, 224, device="meta"), device=figure.device)
        throughput = found.batch / (found.forward_time + found.backward_time)
        assert throughput == pytest.approx(figure.images_per_s, rel=0.25), figure


# Layers, by hand


class Branches(nn.Module):
    """Registered in another order than used; one parameter shared, one unused, one frozen, one at the root."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 4)
        self.first = nn.Linear(16, 8)
        self.again = nn.Linear(16, 8)
        self.again.weight = self.first.weight
        self.never = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(8)
        self.norm.weight.requires_grad_(False)
        self.offset = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return self.last(self.norm(self.first(x) + self.again(x))) + self.offset


def test_layers_stand_in_order_of_first_use_and_shared_parameters_count_once():
    counts = counted(Branches(), torch.zeros(5, 16))
    assert shape_of(counts) == [
        ("first", ["first.weight", "first.bias"]),
        ("again", ["again.bias"]),
        ("norm", ["norm.weight", "norm.bias"]),
        ("last", ["last.weight", "last.bias"]),
        ("offset", ["offset"]),
    ]
    assert counts.unused == ("never.weight", "never.bias")
    assert counts.frozen == ("norm.weight",)
    assert counts.shared == ("first.weight = again.weight",)
    assert [layer.gradient_bytes for layer in counts.layers] == [4 * (16 * 8 + 8), 4 * 8, 4 * 8, 4 * (8 * 4 + 4), 16]


def test_flops_of_backward_are_the_two_products_and_one_where_the_input_needs_no_gradient():
    # A linear layer of n x i -> n x o multiplies and adds 2nio times in each of its three products.
    counts = counted(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)), torch.zeros(5, 16))
    assert [layer.forward_flops for layer in counts.layers] == [2 * 5 * 16 * 8, 2 * 5 * 8 * 4]
    assert [layer.backward_flops for layer in counts.layers] == [2 * 5 * 16 * 8, 2 * 2 * 5 * 8 * 4]


@pytest.mark.parametrize("groups", [1, 4, 8])
@pytest.mark.parametrize("make", [nn.Conv2d, nn.ConvTranspose2d])
def test_grouped_convolutions_count_what_a_group_multiplies(make, groups):
    # Every output of a convolution (every input of a transposed one) takes k² multiply-adds for each channel of its
    # group; the images are 4x4, padded so that they stay so.
    model = nn.Sequential(make(8, 8, 3, padding=1, groups=groups), make(8, 8, 3, padding=1, groups=groups))
    product = 2 * (2 * 8 * 4 * 4) * (8 // groups) * 9
    counts = counted(model, torch.zeros(2, 8, 4, 4))
    assert [layer.forward_flops for layer in counts.layers] == [product, product]
    assert [layer.backward_flops for layer in counts.layers] == [product, 2 * product]


def test_frozen_layers_below_the_first_trained_one_have_no_backward():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16))
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    result = gt.profile(model, torch.zeros(4, 16))
    assert [layer.parameter_bytes for layer in result.layers] == [0, 4 * (16 * 16 + 16), 0]
    assert [layer.backward_ps > 0 for layer in result.layers] == [False, True, True]
    # The last has one product, for its input, and its norm-free weight none.
    flops = [layer.backward_flops for layer in counted(model, torch.zeros(4, 16)).layers]
    assert flops == [0, 2 * 4 * 16 * 16, 2 * 4 * 16 * 16]


class Changing(nn.Module):
    """Leaves a layer out, or calls the layers in another order, from the second pass on."""

    def __init__(self, later):
        super().__init__()
        self.a, self.b, self.later, self.passes = nn.Linear(8, 8), nn.Linear(8, 8), later, 0

    def forward(self, x):
        self.passes += 1
        for name in "ab" if self.passes == 1 else self.later:
            x = getattr(self, name)(x)
        return x


@pytest.mark.parametrize(("later", "said"), [("a", "layer 'b' was not called"), ("ba", "called in another order")])
def test_layers_that_change_from_pass_to_pass_cannot_be_measured(later, said):
    with pytest.raises(gt.ProfileError, match=said):
        gt.profile(Changing(later), torch.zeros(2, 8), device="measure", runs=1)


def compiled_block():
    return nn.Sequential(nn.Linear(8, 8), torch.compile(nn.Sequential(nn.Linear(8, 8)), backend="eager"))


def block_compiled_in_place():
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8)))
    model[1].compile(backend="eager")
    return model


def model_compiled_in_place():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize("make", [compiled_block, block_compiled_in_place, model_compiled_in_place])
def test_layers_that_are_compiled_cannot_be_measured(make):
    with pytest.raises(gt.ProfileError, match=r"before torch\.compile"):
        gt.profile(make(), torch.zeros(2, 8), device="measure", runs=1)


def test_a_module_called_twice_computes_twice_and_sends_once():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.cell(self.cell(x)))

    counts = counted(Twice(), torch.zeros(3, 8))
    assert [(layer.name, layer.forward_flops) for layer in counts.layers] == [
        ("cell", 2 * 2 * 3 * 8 * 8),
        ("head", 2 * 3 * 8 * 2),
    ]


def test_parameters_that_a_parent_uses_without_a_call_begin_layers_too():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.zeros(2, 5, 8)
    counts = counted(attention, x, x, x)
    assert shape_of(counts) == [
        ("in_proj_weight", ["in_proj_weight"]),
        ("out_proj", ["out_proj.weight", "out_proj.bias"]),
    ] or shape_of(counts) == [
        ("in_proj_weight", ["in_proj_weight", "in_proj_bias"]),
        ("out_proj", ["out_proj.weight", "out_proj.bias"]),
    ]
    assert {layer.call for layer in counts.layers} == {("", 0)}


class Attention(nn.Module):
    """Attention as one op, of 4 heads of 16."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(64, 3 * 64), nn.Linear(64, 64)

    def forward(self, x):
        heads = [part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.into(x).chunk(3, -1)]
        return self.out(nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("fake", [True, False])
def test_attention_in_one_op_counts_its_products(fake):
    # Forward has two products, of 2·16·16·16 FLOPs for a head of a sequence; backward has four and makes one again.
    into, product = 2 * 2 * 16 * 64 * 3 * 64, 2 * 4 * 2 * 16 * 16 * 16
    first, _ = count(Attention(), (torch.randn(2, 16, 64),), {}, fake=fake).layers
    assert first.forward_flops == into + 2 * product
    assert first.backward_flops == into + 5 * product


@pytest.mark.parametrize("make", [lambda: nn.LSTM(8, 16, 2), lambda: nn.GRU(8, 16)])
def test_recurrent_models_count_all_their_parameters(make):
    model = make()
    counts = counted(model, torch.zeros(7, 2, 8))
    assert sum(layer.gradient_bytes for layer in counts.layers) == sum(4 * p.numel() for p in model.parameters())
    assert counts.unused == ()


def test_outputs_of_any_nesting_take_part_and_a_loss_stands_for_all():
    class Heads(nn.Module):
        def __init__(self, loss):
            super().__init__()
            self.a, self.b, self.loss = nn.Linear(4, 4), nn.Linear(4, 4), loss

        def forward(self, x):
            out = {"a": self.a(x), "b": [(self.b(x), None, "text", torch.tensor(1))]}
            return type("Output", (dict,), {"loss": self.a(x).mean() if self.loss else None})(out)

    assert counted(Heads(False), torch.zeros(2, 4)).unused == ()
    assert counted(Heads(True), torch.zeros(2, 4)).unused == ("b.weight", "b.bias")


def test_half_precision_halves_the_gradient_and_not_the_count_of_the_roofline():
    single, half = nn.Linear(64, 64), nn.Linear(64, 64).bfloat16()
    x = torch.zeros(8, 64)
    found = gt.profile(half, x.bfloat16())
    assert 2 * found.parameter_bytes == gt.profile(single, x).parameter_bytes
    assert found.counts == gt.profile(single, x).counts


def test_checkpointed_layers_compute_their_forward_again_in_backward():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self, again):
            super().__init__()
            self.a, self.b, self.again = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), again

        def forward(self, x):
            x = self.a(x)
            return checkpoint(self.b, x, use_reentrant=False) if self.again else self.b(x)

    x = torch.zeros(4, 8)
    plain, again = (counted(Checkpointed(yes), x).layers for yes in (False, True))
    one = 2 * 4 * 8 * 8
    assert sum(layer.backward_flops for layer in plain) == 3 * one
    assert sum(layer.backward_flops for layer in again) == 4 * one
    assert [layer.forward_flops for layer in again] == [one, one]


def test_times_are_the_rooflines_of_the_counts():
    device = presets.device("A100")
    found = gt.profile(nn.Linear(512, 256), torch.zeros(64, 512), device="a100")
    (layer,), (count_,) = found.layers, found.counts
    assert count_.forward_flops == 2 * 64 * 512 * 256
    assert count_.activation_bytes == 4 * 64 * (512 + 256)
    assert layer.forward_ps == round(forward_seconds(count_, device, 1) * 1e12)
    assert found.device == "A100"


def test_no_weight_is_allocated_and_no_value_is_needed():
    with torch.device("meta"):
        huge = nn.Sequential(nn.Linear(400_000, 400_000), nn.ReLU(), nn.Linear(400_000, 10))  # 640 GB
        found = gt.profile(huge, torch.empty(64, 400_000))
    assert found.parameter_bytes == 4 * (400_000**2 + 400_000 + 400_000 * 10 + 10)


def snapshot(model):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    hooks = sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())
    hooks += sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    return state, grads, [m.training for m in model.modules()], hooks, torch.get_rng_state()


@pytest.mark.parametrize("device", ["V100", "measure"])
def test_the_model_is_left_as_it_was(device):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 2))
    x = torch.randn(4, 3, 8, 8)
    model(x).sum().backward()
    model[1].eval()
    before = snapshot(model)
    gt.profile(model, x, device=device, runs=1)
    for was, now in zip(before, snapshot(model), strict=True):
        torch.testing.assert_close(now, was, rtol=0, atol=0)
    model.train()
    gc.collect()
    model(x).sum().backward()  # nothing of the profile hangs on it


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


KEEPERS = {
    "roofline": lambda model, x: gt.profile(model, x),
    "measured": lambda model, x: gt.profile(model, x, device="measure", runs=1),
    "measured in autocast": lambda model, x: in_autocast(gt.profile, model, x),
    "optimizer": lambda model, x: gt.profile(model, x, device="measure", runs=1, optimizer=sgd(model)),
    "op graph": lambda model, x: gt.op_dag(model, x),
    "measured op graph": lambda model, x: gt.op_dag(model, x, device="measure", runs=1),
    "fault": lambda model, x: fault_of(gt.profile, model, x[:, :1], device="measure", runs=1),
}


def in_autocast(call, model, x):
    with torch.autocast("cpu", torch.bfloat16):
        return call(model, x, device="measure", runs=1)


def fault_of(call, *arguments, **options):
    try:
        return call(*arguments, **options)
    except gt.ProfileError as error:  # pytest.raises would refer to itself
        return str(error)


class WithConstant(nn.Module):
    """Has a tensor that is neither a parameter nor a buffer, which an op graph takes in as a constant."""

    def __init__(self):
        super().__init__()
        self.net, self.constant = small_cnn()[0], torch.ones(8, 10)

    def forward(self, x):
        return self.net(x) * self.constant


@pytest.mark.parametrize("case", KEEPERS)
def test_a_profile_keeps_no_tensor(case):
    # Not even until the next garbage collection: whoever wraps the model then would find its weights held.
    model, x = WithConstant(), torch.randn(8, 3, 32, 32)
    KEEPERS[case](model, x)  # torch keeps some things of a first time
    with torch_ranks.no_garbage_collection():
        before = set(torch_ranks.live_tensors())
        result = KEEPERS[case](model, x)
        assert [type(one) for key, one in torch_ranks.live_tensors().items() if key not in before] == []
        assert not any(is_held(parameter) for parameter in model.parameters())
        seen = [weakref.ref(one) for one in (*model.parameters(), *model.buffers(), model.constant, model, x)]
        del model, x
        assert [one for one in seen if one() is not None] == []
    assert result


def test_compiled_and_data_parallel_models_are_their_own_module():
    model = nn.Linear(4, 4)
    plain = gt.profile(model, torch.zeros(2, 4))
    assert gt.profile(torch.compile(model), torch.zeros(2, 4)) == plain
    assert gt.profile(nn.DataParallel(model), torch.zeros(2, 4)) == plain


# Faults


class Branching(nn.Module):
    """Goes one of two ways by a value."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x) if x.sum() > 0 else self.b(x)


class Hungry(nn.Module):
    """Runs out of memory."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(
    ("model", "inputs", "options", "said"),
    [
        (nn.Linear(4, 4), (torch.zeros(2, 5),), {}, "forward pass of the model raises RuntimeError.*shape and dtype"),
        (nn.Linear(4, 4), (), {}, "forward pass of the model raises TypeError.*name inputs"),
        # On shapes alone, not every version of torch sees this one.
        (nn.Embedding(4, 4), (torch.zeros(2),), {"device": "measure"}, "raises RuntimeError.*Long"),
        (nn.BatchNorm1d(4), (torch.zeros(1, 4),), {}, "mini-batch of at least 2"),
        (nn.ReLU(), (torch.zeros(2),), {}, "ReLU has no parameters"),
        (nn.Linear(4, 4).requires_grad_(False), (torch.zeros(1, 4),), {}, "Linear trains nothing"),
        (nn.LazyLinear(4), (torch.zeros(1, 4),), {}, "call it once first"),
        (Branching(), (torch.ones(1, 4),), {}, "reads the values.*measure"),
        (Hungry(), (torch.ones(1),), {"device": "measure"}, "does not fit in memory.*2.00 GiB.*smaller mini-batch"),
        (nn.Linear(4, 4), (torch.zeros(1, 4),), {"device": "v10"}, "unknown device 'v10': there are K80"),
        (nn.Linear(4, 4), (torch.zeros(1, 4),), {"runs": 0}, "at least 1"),
        ("resnet50", (torch.zeros(1, 4),), {}, "expected a torch.nn.Module, got str"),
    ],
)
def test_what_cannot_be_profiled_is_told_in_one_line(model, inputs, options, said):
    with pytest.raises(gt.ProfileError, match=said) as caught:
        gt.profile(model, *inputs, **options)
    assert "\n" not in str(caught.value)


def test_a_model_that_branches_on_values_can_be_measured_and_has_no_graph():
    found = gt.profile(Branching(), torch.ones(1, 4), device="measure", runs=1)
    assert [layer.name for layer in found.layers] == ["a"]
    assert found.unused == ("b.weight", "b.bias")
    for device in ("V100", "measure"):
        with pytest.raises(gt.ProfileError, match="a pass over shapes or a graph of ops does not have"):
            gt.op_dag(Branching(), torch.ones(1, 4), device=device)
    with pytest.raises(gt.ProfileError, match=r"rate: .*10Gbps"):
        gt.op_dag(nn.Linear(4, 4), torch.ones(1, 4), rate="10")
