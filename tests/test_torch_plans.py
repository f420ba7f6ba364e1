"""Plans of models in real training: predicted against measured times, release events, depth, and layers of the module.

Needs torch: `make test-torch` installs it. Ranks are processes on this machine.
"""

import io

import pytest
import torch
from torch import nn

import gradtide as gt
import torch_ranks
from gradtide.errors import ScenarioError
from gradtide.scenario.plan import read_plan
from gradtide.torch import unwrap, verify, wrap
from gradtide.torch.groups import groups_of
from torch_ranks import plan_of
from torch_training import LEVELS, DistributedDataParallel, batches, cross_entropy, network, said_by, sgd, step_of

pytestmark = torch_ranks.MARKS


# Predicted against measured


def verified(rank):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = wrap(model, optimizer, plan_of(model, "crossiter", predicted={"iteration_time_ms": 0.001}))
    out = io.StringIO()
    result = verify(wrapped, step_of(wrapped, optimizer, rank), steps=5, warm_up=1, file=out)
    unwrap(wrapped)
    return out.getvalue(), result.measured, result.ratio


def test_verify_prints_predicted_and_measured_with_a_reason(tmp_path):
    for value in torch_ranks.values(2, verified, tmp_path):
        text, measured, ratio = value
        assert ratio == pytest.approx(measured / 1e-6)
        for words in ("measured", "waits for gradients", "predicted", "above predicted", "Profile it here"):
            assert words in text


def test_verify_says_when_they_agree():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = wrap(model, optimizer, plan_of(model, "none", predicted={"iteration_time_ms": 104.0}))
    ticks = iter(range(100))
    result = verify(wrapped, lambda: None, steps=10, clock=lambda: next(ticks) / 10, file=io.StringIO())
    assert result.measured == pytest.approx(0.1)
    assert result.reason.startswith("Measured and predicted agree within 3.8%")


def test_verify_does_not_agree_where_half_of_what_the_plan_saves_is_missed():
    model = network()
    said = {"iteration_time_ms": 100.0, "baseline_iteration_time_ms": 110.0}
    wrapped = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), plan_of(model, "none", predicted=said))
    wrapped.level = "priority"
    model.compile()
    ticks = iter(range(100))
    result = verify(wrapped, lambda: None, steps=10, clock=lambda: next(ticks) * 0.109, file=io.StringIO())
    assert result.reason.startswith("Measured is 9.0% above predicted.")


# Caramel's plans: batches, releases and depth


def released(model, level, **more):
    """Plan the head to wait for the first layer's gradient, and the second layer for the next forward pass."""
    plan = plan_of(model, level, chunk=512, depth=3, order="caramel", **more)
    releases = {"6": ("backward", "0"), "4": ("forward", "1")}
    for bucket in plan["buckets"]:
        if bucket["layers"][0] in releases and level == "crossiter":
            bucket["release"] = dict(zip(("pass", "layer"), releases[bucket["layers"][0]], strict=True))
    return plan


def train_gated(rank, level):
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    sent = []
    if level == "ddp":
        wrapped = DistributedDataParallel(model)
    else:
        wrapped = wrap(model, optimizer, released(model, level))
        if level == "crossiter":
            cross = wrapped._cross
            names = {bucket.key: bucket.names[0].partition(".")[0] for bucket in cross._buckets}
            submit = cross._sender.submit
            cross._sender.submit = lambda key, *rest: sent.append(names[key]) or submit(key, *rest)
            model[0].weight.register_post_accumulate_grad_hook(lambda _: sent.append("gradient of 0"))
            for layer in (0, 1):
                model[layer].register_forward_hook(lambda *_, layer=layer: sent.append(f"call of {layer}"))
    for inputs, labels in batches(rank, 4):
        optimizer.zero_grad()
        cross_entropy(wrapped(inputs), labels).backward()
        optimizer.step()
    if level != "ddp":
        unwrap(wrapped)
    return [value.clone() for value in model.state_dict().values()], sent


def compare_gated(rank):
    expected, _ = train_gated(rank, "ddp")
    found = {}
    for level in LEVELS[1:]:
        weights, sent = train_gated(rank, level)
        found[level] = all(map(torch.equal, expected, weights)), sent
    return found


def test_release_events_and_depth_of_a_plan_are_carried_out_with_ddps_weights(tmp_path):
    for value in torch_ranks.values(2, compare_gated, tmp_path):
        assert [value[level][0] for level in LEVELS[1:]] == [True] * 3
        *_, sent = value["crossiter"]
        second = sent.index("call of 0", sent.index("gradient of 0"))
        after = sent[sent.index("gradient of 0") :]
        assert "6" not in sent[: sent.index("gradient of 0")]
        assert after[1:3] == ["6", "0"] or after[1:3] == ["0", "6"]
        assert "4" not in sent[:second]
        assert sent[second + 1 : second + 3] == ["4", "call of 1"]


def train_profiled(rank):
    """Measure a model, keep what came of it, and train by a plan with releases; return how many opened."""
    with torch_ranks.no_garbage_collection():
        model = network()
        (inputs, _), *_ = batches(rank, 1)
        profile = gt.profile(model, inputs, device="measure", runs=1)
        graph = gt.op_dag(model, inputs, device="measure", runs=1)
        optimizer = sgd(model)
        wrapped = wrap(model, optimizer, released(model, "crossiter"))
        said = said_by(lambda: verify(wrapped, step_of(wrapped, optimizer, rank), steps=8, file=io.StringIO()))
        opened = wrapped._cross.released
        unwrap(wrapped)
    return said, opened, bool(profile and graph)


def test_a_model_that_was_profiled_has_the_release_events_of_its_plan(tmp_path):
    for value in torch_ranks.values(2, train_profiled, tmp_path):
        said, opened, _ = value
        assert said == "nothing"
        assert opened >= 2 * 8


def in_line():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))


def caramel_plan(folder):
    """What `gradtide plan` writes for Caramel's schedule, at a depth of 2; the model is planned for slow links."""
    layers = [{"name": str(i), "forward": "1ms", "backward": "2ms", "parameters": f"{4 * 65 * 64}B"} for i in range(8)]
    train = {"model": {"layers": layers}, "workers": 2, "schedule": {"depth": 2}}
    scenario = {"job": {"train": train}, "cluster": {"link": {"rate": "30Mbps"}}, "run": {"engine": "fluid"}}
    options = {"overhead": "0us", "smallest": 0, "seeds": 2, "worth": 50.0}
    return gt.plan(scenario, device="cpu", schedule="caramel", **options).save(folder / "plan.json")


def logged(model, wrapped, log):
    """Log gradients, the end of each layer's call, and what is handed to the sender."""
    for name, module in model.named_children():
        for parameter in module.parameters():
            parameter.register_hook(lambda _, name=name: log.append(("backward", name)))
        module.register_forward_hook(lambda *_, name=name: log.append(("called", name)))
    names = [bucket.names[0].partition(".")[0] for bucket in wrapped._cross._buckets]
    submit = wrapped._cross._sender.submit
    wrapped._cross._sender.submit = lambda key, *rest: log.append(("sent", names[key])) or submit(key, *rest)


def drop_releases(model, wrapped, log):
    for bucket in wrapped._cross._buckets:
        bucket.opens_in, bucket.is_open = "", True


def drop_depth(model, wrapped, log):
    wrapped._sender._depth = 1


CARAMEL_STEPS = 7


def train_caramel(rank, path, change):
    """Train by a plan, or by DDP; return the weights, what was sent behind which event, and what verify says."""
    model, log, out = in_line(), [], io.StringIO()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    wrapped = DistributedDataParallel(model) if change is None else wrap(model, optimizer, path)
    inputs = torch.randn(4, 64, generator=torch.Generator().manual_seed(rank))

    def step():
        optimizer.zero_grad()
        wrapped(inputs).square().sum().backward()
        optimizer.step()
        log.append(("step", ""))

    if change is None:
        for _ in range(CARAMEL_STEPS):
            step()
        return list(model.state_dict().values()), log, ""
    change(model, wrapped, log)
    ticks, each_s = iter(range(100)), read_plan(path).predicted["iteration_time_ms"] / 1e3
    options = {"steps": CARAMEL_STEPS - 1, "warm_up": 1, "file": out, "clock": lambda: next(ticks) * each_s}
    error = said_by(lambda: verify(wrapped, step, **options))
    unwrap(wrapped)
    return list(model.state_dict().values()), log, f"{error}: {out.getvalue()}"


def compare_caramel(rank, path):
    expected, *_ = train_caramel(rank, path, None)
    weights, log, said = train_caramel(rank, path, logged)
    missed = [train_caramel(rank, path, change)[2] for change in (drop_releases, drop_depth)]
    return all(map(torch.equal, expected, weights)), log, said, missed


def test_release_events_and_depth_that_gradtide_plan_wrote_are_carried_out_and_verify_tells(tmp_path):
    path = caramel_plan(tmp_path)
    plan = read_plan(path)
    releases = {bucket.layers[0]: bucket.release for bucket in plan.buckets if bucket.release}
    assert (plan.order, plan.depth) == ("caramel", 2)
    assert {where for where, _ in releases.values()} == {"backward", "forward"}
    for value in torch_ranks.values(2, compare_caramel, tmp_path, str(path)):
        is_equal, log, said, missed = value
        assert is_equal
        assert said.startswith("nothing: ")
        assert "Measured and predicted agree within 0.0%" in said
        assert f"an iteration opened 0 release events instead of {len(releases)}" in missed[0]
        # How many exactly depends on what is under way at either end.
        assert f" parts of pieces (depth) instead of {2 * len(plan.buckets)}. " in missed[1]
        places = {}
        for place, event in enumerate(log):
            places.setdefault(event, []).append(place)
        for layer, (where, opener) in releases.items():
            sent = places["sent", layer]
            assert len(sent) == CARAMEL_STEPS
            if where == "backward":  # of two parameters
                assert all(place > both for place, both in zip(sent, places["backward", opener][1::2], strict=True))
                continue
            # Behind the step and the calls in front of the opener, before the opener's call has ended.
            calls = [*places["called", opener][1:], len(log)]
            assert all(a < b < c for a, b, c in zip(places["step", ""], sent, calls, strict=True))
            if opener != "0":
                before = places["called", str(int(opener) - 1)][1:]
                assert all(place > call for place, call in zip(sent, before, strict=False))


def refuse_plans(rank):
    model = network()
    said = []
    for change, level in (
        ({"collective": {"kind": "tree"}}, "priority"),
        ({"order": "random"}, "crossiter"),
        ({"release": True}, "priority"),
    ):
        plan = released(model, "crossiter", **{key: value for key, value in change.items() if key == "collective"})
        plan["order"] = change.get("order", "caramel")
        said.append(said_by(lambda plan=plan, level=level: wrap(model, sgd(model), plan, level=level)))
    return said


def test_what_a_plan_asks_for_and_gloo_cannot_do_is_refused(tmp_path):
    for value in torch_ranks.values(2, refuse_plans, tmp_path):
        for said, words in zip(
            value, ("by tree, which cannot be selected on CPUs", "order 'random'", "only level crossiter"), strict=True
        ):
            assert words in said


def verify_missed(rank):
    # All buckets but the last of one size, which is all that a DDP without bucket_cap_mb_list can have.
    model = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    plan = plan_of(model, "buckets")
    said = []
    for _ in range(2):
        wrapped = wrap(model, sgd(model), plan)

        def step(wrapped=wrapped):
            wrapped(torch.ones(4, 8)).sum().backward()

        said.append(said_by(lambda wrapped=wrapped, step=step: verify(wrapped, step, steps=2, file=io.StringIO())))
        unwrap(wrapped)
        plan["buckets"].reverse()  # not the order in which gradients come
    return said


def test_verify_fails_when_ddps_buckets_are_not_the_plans(tmp_path):
    for value in torch_ranks.values(2, verify_missed, tmp_path):
        assert value[0] == "nothing"
        assert "The plan was not carried out: DDP sent buckets of" in value[1]


# A plan and a model


def test_a_plan_of_a_profile_fits_the_module_that_was_profiled():
    model = network()
    profile = gt.profile(model, torch.randn(8, 3, 8, 8), device="V100")
    link = {"cluster": {"link": {"rate": "10Mbps"}}}
    result = gt.plan(profile, cluster=link, workers=2, device="cpu", overhead="0us", smallest=0, worth=0.0, seeds=2)
    wrapped = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), result)
    assert wrapped.plan.buckets
    assert {name for group in groups_of(wrapped.plan, model) for name in group.names} == dict(
        model.named_parameters()
    ).keys()
    assert unwrap(wrapped) is model


def test_layers_are_modules_parameters_or_what_is_inside_them():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3)), nn.MultiheadAttention(4, 2))
    plan = read_plan(
        {
            "schema": "gradtide.plan/1",
            "level": "crossiter",
            "buckets": [
                {"layers": ["1.in_proj_weight"], "bytes": 4 * 48, "rank": 1},
                {"layers": ["1", "0.1"], "bytes": 4 * (12 + 16 + 4 + 12), "rank": 2},
                {"layers": ["0"], "bytes": 4 * 9, "rank": 0},
            ],
        }
    )
    assert [group.names for group in groups_of(plan, model)] == [
        ("1.in_proj_weight",),
        ("1.in_proj_bias", "1.out_proj.weight", "1.out_proj.bias", "0.1.weight", "0.1.bias"),
        ("0.0.weight", "0.0.bias"),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan["buckets"][0].update(layers=["7"]), "Sequential has no layer '7'"),
        (lambda plan: plan["buckets"].pop(), r"no layer of the plan has '0\.weight', '0\.bias' of Sequential"),
        (lambda plan: plan["buckets"][0].update(bytes=12), r"GT081.*bucket 0 has 12 B in the plan and 1320 B"),
        (
            lambda plan: plan.update(model="resnet50", buckets=[{"layers": ["fc"], "bytes": 1, "rank": 0}]),
            "no layer 'fc'; the plan is for resnet50",
        ),
    ],
)
def test_a_plan_of_another_model_is_refused(change, message):
    plan = plan_of(network(), "crossiter")
    change(plan)
    with pytest.raises(ScenarioError, match=message):
        wrap(network(), torch.optim.SGD(network().parameters(), lr=0.1), plan)


def test_shared_parameters_belong_to_the_first_layer_that_has_them():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    plan = {"schema": "gradtide.plan/1", "level": "buckets", "buckets": [{"layers": ["1"], "bytes": 64, "rank": 0}]}
    (group,) = groups_of(read_plan(plan), model)
    assert group.names == ("0.weight",)
