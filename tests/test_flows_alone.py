"""Scenarios of background flows without any job: run, slowdowns, folder, report and command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradtide import Scenario, run
from run_folders import tiny_tenants


def flows_only(engine: str) -> dict[str, Any]:
    base = tiny_tenants()
    del base["job"]
    base["cluster"]["topology"] = {"kind": "star", "hosts": 4}
    base["run"]["engine"] = engine
    return base


@pytest.mark.parametrize("engine", ["fluid", "packet"])
def test_flows_without_a_job_run_and_have_slowdowns(engine: str, tmp_path: Path) -> None:
    result = run(flows_only(engine))
    assert result.summary["jobs"] == {}
    figures = result.summary["traffic"]["web"]["all"]
    assert figures["started"] == len(result.flows) > 20
    assert figures["mean_slowdown"] >= 1
    assert result.summary["headline"].startswith(f"web: {figures['completed']} of {figures['started']} flows complete")
    folder = result.save(tmp_path / "run")
    assert json.loads((folder / "summary.json").read_text())["traffic"] == result.summary["traffic"]
    page = (folder / "report.html").read_text()
    assert "background flows without a job" in page
    assert "slowdown, mean" in page
    assert run(Scenario.load(folder / "scenario.resolved.toml")).summary["traffic"] == result.summary["traffic"]


def test_two_flows_into_one_host_are_slowed_by_two_and_one_alone_is_not() -> None:
    # On the fluid engine two flows that start together share a link evenly: both take twice as long.
    keys = flows_only("fluid")
    rows = [{"start": "0s", "src": f"h{src}", "dst": "h0", "bytes": "12500kB"} for src in (1, 2)]
    keys["cluster"]["link"]["delay"] = "0us"
    both, one = (run({**keys, "traffic": {"web": {"flows": rows[:count]}}}) for count in (2, 1))
    assert both.summary["traffic"]["web"]["large"]["mean_slowdown"] == pytest.approx(2)
    assert one.summary["traffic"]["web"]["large"]["mean_slowdown"] == pytest.approx(1)
