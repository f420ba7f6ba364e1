"""The timeline of a divided model."""

import re

import pytest

from gradtide.report import lanes


def operation(number, kind, group, start, end, *, critical=0, exposed=0.0, iteration=0):
    return {
        "iteration": iteration,
        "class": number,
        "kind": kind,
        "group": group,
        "start_us": start,
        "end_us": end,
        "critical": critical,
        "exposed_us": exposed,
    }


def stages(count):
    rows = []
    for number in range(count):
        rows += [
            operation(number, "forward", "", 0.0, 40.0, critical=1),
            operation(number, "transfer", "tp", 40.0, 50.0, exposed=10.0 + number % 7),
            operation(number, "transfer", "fsdp", 10.0, 30.0),
            operation(number, "backward", "", 50.0, 100.0),
            operation(number, "backward", "", 150.0, 300.0, iteration=1),
        ]
    return rows


def drawn(rows, names=None):
    view = lanes.view(rows, names or {})
    assert view is not None
    return view, str(lanes.draw(view, label="a step", ident="t"))


def test_every_stream_of_a_few_classes_has_a_lane():
    view, svg = drawn(stages(3), {0: "stage 0", 1: "stage 1", 2: "stage 2"})
    assert (view.start, view.end) == (0.0, 100.0)  # the first iteration alone
    assert view.groups == ["tp", "fsdp"]
    assert re.findall(r">(stage \d|tp|fsdp)</text>", svg) == [
        name for number in range(3) for name in (f"stage {number}", "tp", "fsdp")
    ]
    for kind, count in (("forward", 3), ("backward", 3), ("axis-tp", 3), ("axis-fsdp", 3), ("critical", 3)):
        assert svg.count(f'<rect class="{kind}"') == count, kind


def test_what_compute_waited_for_is_marked_and_said():
    _, svg = drawn(stages(1))
    assert svg.count('<rect class="overdue"') == 1
    assert "class 0 · computes 0.090 of 0.100 ms · waits for tp 0.010 ms" in svg


@pytest.mark.parametrize("count", [1, 13, 14, 64, 8192])
def test_classes_are_drawn_as_far_as_a_screen_goes(count):
    view = lanes.view(stages(count), {})
    numbers, with_groups = lanes.detailed(view)
    assert len(numbers) + 2 * len(with_groups) <= lanes.MAX_LANES
    assert {0, count - 1} <= set(numbers)
    if 3 * count <= lanes.MAX_LANES:
        assert with_groups == set(range(count))
    else:
        # The first, the last and the one that waits longest.
        assert with_groups == {0, 6, count - 1}
        assert len(numbers) > lanes.MAX_LANES // 2


def test_nothing_recorded_is_nothing_drawn():
    assert lanes.view([], {}) is None
    assert lanes.view(stages(1)[-1:], {}) is None
