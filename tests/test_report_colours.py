"""The colours of reports: contrast, differences between meanings, and colour-blind readers."""

import itertools
import re
from pathlib import Path

import pytest

from gradtide.report import _TOKENS, render
from run_folders import make_run


def luminance(colour: str) -> float:
    """Return the relative luminance of `#rrggbb` (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_text_has_the_contrast_that_wcag_asks_for(tmp_path: Path) -> None:
    make_run(tmp_path)
    css = render(tmp_path)
    blocks = [dict(re.findall(r"--([\w-]+):(#\w{6})", b)) for b in re.findall(r"color-scheme:\w+;([^}]*)", css)]
    assert len(blocks) == 3
    assert blocks[1] == blocks[2]
    assert blocks[0] != blocks[1]
    for tokens in blocks:
        for ink in ("text", "muted", "link", "good", "exposed-text", "barrier-text"):
            for ground in ("bg", "panel"):
                assert contrast(tokens[ink], tokens[ground]) >= 4.5, (ink, ground)
        for fill in ("compute", "slowdown", "exposed", "barrier"):
            assert contrast(tokens["on-colour"], tokens[fill]) >= 4.5, fill
        assert contrast(tokens["on-warn"], tokens["warn"]) >= 4.5
        for fill in ("good", "bad", "muted"):
            assert contrast(tokens["on-colour"], tokens[fill]) >= 4.5, fill
        for ink, fill in [(f"on-{c}", f"cell-{c}") for c in ("green", "yellow", "red")] + [
            *((f"on-shade-{step}", f"shade-{step}") for step in range(5)),
            ("text", "exposed-soft"),
        ]:
            assert contrast(tokens[ink], tokens[fill]) >= 4.5, fill
        for mark in (
            "band-same",
            "band-low",
            "compute",
            "backward",
            "transfer",
            "exposed",
            "barrier",
            "focus",
            "s1",
            "s2",
            "s3",
            "s4",
        ):
            assert contrast(tokens[mark], tokens["bg"]) >= 3, mark  # graphics: WCAG 1.4.11


# Linear RGB as seen without the cones for red or for green: Machado, Oliveira & Fernandes (2009), severity 1.
SEEN = {
    "trichromat": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanope": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranope": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}


def lab(colour: str, eye: str) -> list[float]:
    """Return CIE L*a*b* (D65) of `#rrggbb` as that eye sees it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    rgb = [min(max(sum(m * c for m, c in zip(row, linear, strict=True)), 0.0), 1.0) for row in SEEN[eye]]
    to_xyz = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8728))  # over the white point
    x, y, z = (sum(m * c for m, c in zip(row, rgb, strict=True)) for row in to_xyz)
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return [116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)]


@pytest.mark.parametrize("theme", [0, 1])
def test_alternatives_do_not_have_the_colours_of_parts_of_an_iteration(theme: int) -> None:
    parts = ("compute", "backward", "transfer", "exposed", "barrier", "slowdown")
    alternatives = [name for name in _TOKENS if name.startswith(("s1", "s2", "s3", "s4", "s5", "axis-", "band-"))]
    for one, part in itertools.product(alternatives, parts):
        a, b = (lab(_TOKENS[name][theme], "trichromat") for name in (one, part))
        # Nine times the just noticeable difference of about 2.3.
        assert sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) ** 0.5 > 20, (one, part)


@pytest.mark.parametrize("eye", sorted(SEEN))
@pytest.mark.parametrize("theme", [0, 1])
def test_the_colours_of_a_boundary_differ_for_every_eye(eye: str, theme: int) -> None:
    seen = [lab(_TOKENS[f"cell-{colour}"][theme], eye) for colour in ("green", "yellow", "red")]
    for a, b in itertools.combinations(seen, 2):
        # A difference of 2.3 is just noticeable. Fifteen times as much is distinct at a glance.
        assert sum((p - q) ** 2 for p, q in zip(a, b, strict=True)) ** 0.5 > 35
