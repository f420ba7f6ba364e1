"""Scenarios to plan, small enough for a test, and a plan of one of them."""

from functools import partial
from pathlib import Path
from typing import Any

import gradtide as gt

MIB = 1 << 20
ROOT = Path(__file__).resolve().parent.parent
TEN_LAYERS = ROOT / "scenarios" / "ten-layers.toml"


def job(rows: list[tuple[float, float, float]], **more: Any) -> dict[str, Any]:
    """Return a scenario of layers of (forward ms, backward ms, MiB) on two workers at 1 Gbit/s."""
    layers = [
        {"name": f"l{i}", "forward": f"{f}ms", "backward": f"{b}ms", "parameters": f"{round(m * MIB)}B"}
        for i, (f, b, m) in enumerate(rows)
    ]
    return {
        "job": {"train": {"model": {"name": "m", "layers": layers}, "workers": 2, "iterations": 4, **more}},
        "cluster": {"link": {"rate": "1Gbps", "delay": "50us"}},
    }


SIX = job([(8, 16, 4)] * 6)
on_cpus = partial(gt.plan, device="cpu")
