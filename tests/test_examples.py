"""The notebooks of examples/ print what they say that they print."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "notebook",
    [pytest.param(path, marks=[pytest.mark.ray] if "ray" in path.stem else []) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_and_prints_what_it_says(notebook: Path) -> None:
    if "ray" in notebook.stem:
        pytest.importorskip("ray", reason="needs Ray, which is optional: make test-ray")
    command = [sys.executable, str(ROOT / "tools" / "notebooks.py"), str(notebook)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {"my_model", "tenants_map", "fsdp_order", "sweep_on_ray"}
