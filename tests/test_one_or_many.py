"""A list that the Python functions take may be one value where that can mean only one thing."""

import inspect
import re

import pytest

import gradtide as gt

SMALL = {"job": {"train": {"model": "alexnet", "workers": 2}}}
FLOWS = SMALL | {
    "traffic": {"web": {"incast": {"dst": "h0", "bytes": "1kB", "every": "1ms"}}},
    "run": {"engine": "fluid", "duration": "2s"},
}
STUDY = {"sweep": {"scenario": SMALL, "seeds": 1}}


def lists():
    """Yield every parameter of a public function that is a list, and whether it is one of texts."""
    for name in gt.__all__:
        function = getattr(gt, name)
        if not inspect.isfunction(function):
            continue
        for parameter in inspect.signature(function).parameters.values():
            hint = str(parameter.annotation)
            if re.match(r"(collections\.abc\.)?(Sequence|Iterable|Collection|list|tuple|set)\[", hint):
                yield name, parameter.name, "str" in hint and "Mapping" not in hint


TEXTS = {(name, parameter) for name, parameter, is_text in lists() if is_text} - {("emulate", "command")}
"""Without the words of a command line: a text in their place is refused (tests/test_emulate.py)."""
NUMBERS = {(name, parameter) for name, parameter, is_text in lists() if not is_text} - {
    ("start_and_band", "buckets"),
    ("start_and_band", "order"),
}

ONE = {
    ("buy", "fabrics"): "star",
    ("buy", "bisection"): "1/2",
    ("buy", "collectives"): "ring",
    ("buy", "rates"): "25Gbps",
    ("collectives", "collectives"): "tree",
    ("collectives", "sizes"): "1MB",
    ("compare", "schedules"): "priority",
    ("compare", "models"): "alexnet",
    ("compare", "tasks"): "inference",
    ("compare", "rates"): "1Gbps",
    ("plan", "collectives"): "ring",
    ("tenants_policies", "names"): "all-low",
}
SERVED = {
    "job": {
        "train": {
            "model": "tictac_alexnet_v2",
            "workers": 2,
            "collective": {"ps": {"servers": 1, "pull": "start"}},
        }
    },
    "run": {"engine": "fluid"},
}
CALLS = {
    "buy": lambda **given: gt.buy("alexnet", **{"nodes": 4, "fabrics": ["star"], "collectives": ["ring"]} | given),
    "collectives": lambda **given: gt.collectives(SMALL, **{"collectives": ["ring"], "sizes": [1000]} | given),
    "compare": lambda **given: gt.compare(
        SERVED if "tasks" in given else SMALL,
        **{"schedules": ["random" if "tasks" in given else "fifo"]} | given,
    ),
    "plan": lambda **given: gt.plan(SMALL, seeds=1, **given),
    "sweep": lambda **given: gt.sweep(STUDY, **given),
    "sweep_merge": lambda **given: gt.sweep_merge(STUDY, **given),
    "tenants": lambda **given: gt.tenants(FLOWS, **given),
    "tenants_lp": lambda **given: gt.tenants_lp(FLOWS, **given),
    "tenants_map": lambda **given: gt.tenants_map("paper/gao2020-ch5", **given),
    "tenants_policies": lambda **given: gt.tenants_policies(FLOWS, **given),
}


def test_every_list_of_a_public_function_is_tried():
    assert set(ONE) == TEXTS
    assert {name for name, _ in NUMBERS} <= set(CALLS)


@pytest.mark.parametrize(("name", "parameter"), sorted(TEXTS))
def test_a_text_in_place_of_a_list_of_texts_is_one_of_them(name, parameter, tmp_path):
    value = ONE[name, parameter]
    if value == "{store}":
        value = str(tmp_path / "runs.store")
        gt.sweep(STUDY, store=value)
    results = [CALLS[name](**{parameter: given}) for given in (value, [value])]
    assert results[0].rows == results[1].rows
    assert len(results[0].rows) >= 1


@pytest.mark.parametrize("value", ["12", 3], ids=["text", "number"])
@pytest.mark.parametrize(("name", "parameter"), sorted(NUMBERS))
def test_a_text_or_a_number_in_place_of_a_list_of_numbers_is_refused(name, parameter, value):
    with pytest.raises(ValueError, match=parameter):
        CALLS[name](**{parameter: value})


def test_a_text_is_no_order_of_buckets():
    buckets = [{"name": "a", "bytes": 1, "ready": 0, "needed": 1, "times": [1]}]
    with pytest.raises(ValueError, match="order"):
        gt.start_and_band(buckets, 1, order="0")


def test_a_scheduler_of_ones_own_is_one_schedule():
    class Largest:
        def ranks(self, dag):
            return {op.id: -op.bytes for op in dag.ops if op.id in dag.recvs}

    assert [row["schedule"] for row in gt.compare(SMALL, schedules=Largest()).rows] == ["Largest"]
