"""What commands print at several widths of the terminal: no line is wider, and no time stands without its unit."""

import re
from pathlib import Path
from typing import Any

import pytest

STUDY = """
[sweep]
scenario = "paper/gao2020-ch4"
[sweep.grid]
"cluster.link.rate" = ["1Gbps", "10Gbps"]
"job.train.collective" = [{ kind = "ring" }, { ps = { servers = 1, placement = "packed" } }]
"""
COMMANDS = {
    "sweep": ["sweep", "study.toml"],
    "buy": ["buy", "resnet50", "--nodes", "8", "--collectives", "ring,tree", "--rates", "10Gbps,25Gbps"],
    "compare": ["compare", "resnet50", "--workers", "2,4", "--schedule", "ddp", "--schedule", "priority+chunk=1MB"],
    "collectives": ["collectives", "resnet50", "--collectives", "ring,ps+distributed", "--sizes", "1kB,1MB"],
    "order": ["order", "tictac_alexnet_v2", "--scheduler", "tic"],
    "report": ["report", str(Path(__file__).parent.parent / "scenarios" / "traces")],
    "thresholds": ["bursts", "thresholds", "100Mbps", "13ms"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_table_is_wider_than_the_terminal(
    gradtide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(STUDY)
    for width in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        code, out, err = gradtide(*COMMANDS[name])
        assert code == 0, err
        # A line of a scenario, to be copied, is not wrapped.
        wide = [line for line in out.splitlines() if len(line) > width and "cluster.queue" not in line]
        assert not wide


def test_columns_of_times_have_a_unit(gradtide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for wide in ([], ["--wide"]):
        _, out, _ = gradtide(*COMMANDS["compare"], *wide)
        [header] = [line for line in out.splitlines() if line.startswith("schedule")]
        columns = re.split(r" {2,}", header)
        times = [column for column in columns if column.startswith(("mean", "p95", "T,", "bound"))]
        assert len(times) >= 2
        assert all(column.endswith(", ms") for column in times)
