"""The figures of docs/models/training.md, of the tutorial's prose and of the decisions, computed again."""

import csv
import random
import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

import gradtide
import reference
from gradtide.scenario import json_schema
from test_engine_reference import random_spec
from test_layers import read_tables

ROOT = Path(__file__).resolve().parent.parent
PIPE = (ROOT / "docs/models/training.md").read_text(encoding="utf-8")


def author_groups(sizes, cap):
    """Group layers as the thesis author's program does: from the input side, strictly below the cap, the last alone."""
    groups, total = [[0]], sizes[0]
    for layer in range(1, len(sizes) - 1):
        if total + sizes[layer] < cap:
            groups[-1].append(layer)
            total += sizes[layer]
        else:
            groups.append([layer])
            total = sizes[layer]
    return [list(reversed(group)) for group in reversed([*groups, [len(sizes) - 1]])]


def exact_time_ms(order, barrier):
    scenario = gradtide.preset("paper/gao2020-ch4").replace(link_rate="1Gbps", order=order, barrier=barrier)

    def ranks(_, buckets):
        return [min(bucket) if order == "priority" else 0 for bucket in buckets]

    (starts,), _ = reference.simulate(scenario.spec(), ranks, 1)
    return (starts[1] - starts[0]) / 10**9


@pytest.mark.parametrize("row", [0, 1], ids=["ours", "author's"])
def test_the_two_groupings_in_exact_fractions(row, monkeypatch):
    if row == 1:
        monkeypatch.setattr(reference, "fuse", author_groups)
    fifo, priority = exact_time_ms("fifo", True), exact_time_ms("priority", False)
    computed = [f"{float(fifo):.1f}", f"{float(priority):.1f}", f"{float(100 * (1 - priority / fifo)):.1f} %"]
    assert list(read_tables(PIPE)["grouping"][row].values())[1:] == computed


def test_the_parameters_and_their_defaults_are_those_of_scenario_files():
    schema = json_schema()
    tables = {"job": "JobTable", "schedule": "Schedule", "compute": "Compute", "cluster": "Cluster", "link": "Link"}
    for row in read_tables(PIPE)["parameters"]:
        *path, key = row["key"].strip("`").split(".")
        table = tables[next(part for part in reversed(path) if part != "NAME")]
        default = schema["$defs"][table]["properties"][key].get("default")
        shown = row["default"].strip("`")
        assert shown == ("" if default is None else str(default).lower() if isinstance(default, bool) else shown), key
        if isinstance(default, str):
            assert shown == f'"{default}"', key
        elif default is not None and not isinstance(default, bool):
            assert float(shown) == default, key


@pytest.mark.parametrize("case", range(20))
def test_with_a_fixed_order_all_measured_iterations_are_equal(case):
    drawn = random_spec(random.Random(1000 + case))
    drawn["jobs"][0]["iterations"] = 4
    order = drawn["jobs"][0]["schedule"]["order"]
    if order["kind"] == "random":
        drawn["jobs"][0]["schedule"]["order"] = {"kind": "priority", "queues": None}
    (starts,), _ = reference.simulate(drawn, lambda _, buckets: [min(bucket) for bucket in buckets], 4)
    assert len({late - early for early, late in pairwise(starts)}) == 1


def test_the_numbers_of_the_tutorials_prose():
    prose = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    with (ROOT / "scenarios/twelve-layers.csv").open() as file:
        rows = list(csv.DictReader(file))
    compute_ms = sum(Fraction(row["forward_us"]) + Fraction(row["backward_us"]) for row in rows) / 1000
    megabytes = Fraction(sum(int(row["parameter_bytes"]) for row in rows), 10**6)
    sending_ms = megabytes * Fraction(3, 2) * 8 / 100
    assert f"about {int(compute_ms)} ms, and the gradients to about {round(float(megabytes))} MB" in prose
    assert f"1.5 times {round(float(megabytes))} MB = {round(float(megabytes * 3 / 2))} MB" in prose
    assert f"about {round(float(sending_ms))} ms at 100 Gbit/s" in prose
    assert 2 * compute_ms < sending_ms
    assert f"{round(float(sending_ms))} + {int(compute_ms)}" in prose
    delays_us = 2 * (4 - 1) * 2 * 10
    assert f"here {delays_us} us" in prose
    chunks = sum(-(-bucket // 4_000_000) for bucket in bucket_bytes())
    assert chunks > 80
    assert "more than 80 chunks, which add about 10 ms" in prose
    assert round(chunks * delays_us / 1000) == 10


def bucket_bytes():
    first = [
        row for row in gradtide.run(ROOT / "scenarios/own-model.toml").transfers.to_dicts() if row["iteration"] == 0
    ]
    return [row["bytes"] for row in first]


def test_every_decision_has_its_four_parts_and_its_place_in_the_index():
    folder = ROOT / "docs/decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    pages = sorted(folder.glob("[0-9]*.md"))
    removed = re.findall(r"^(\d+)\. Removed\. ", index, re.MULTILINE)
    numbers = sorted([page.name[:2] for page in pages] + [f"{int(number):02}" for number in removed])
    assert numbers == [f"{number:02}" for number in range(1, len(numbers) + 1)]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for part in ("Context.", "Choice.", "Rejected.", "What would change our mind."):
            assert f"**{part}**" in text, page.name
        assert f"({page.name})" in index
        assert re.match(rf"# {int(page.name[:2])} ", text)
        assert len(text.split()) < 360, f"{page.name}: half a page"
