"""`gradtide doctor`: what is installed, what is missing, and what for."""

import importlib.metadata
import importlib.util
import platform
import shutil
import tempfile
from pathlib import Path

from gradtide import _core

OPTIONAL = {
    "pyarrow": "tables as Parquet; polars and pandas read results without it (pip install 'gradtide[df]')",
    "highspy": "linear programmes of tenants lp (pip install 'gradtide[lp]')",
    "torch": "profiles of real models, and plans in their training (pip install 'gradtide[torch]')",
}


def doctor() -> list[dict[str, str]]:
    """Return one finding per thing looked at: state (ok, missing, broken), what, found, needed for."""
    findings = [
        _finding("ok", "gradtide", _core.__version__, "everything"),
        _finding("ok", "python", platform.python_version(), "everything"),
        _self_test(),
        _temporary_folder(),
    ]
    for package, purpose in OPTIONAL.items():
        is_there = importlib.util.find_spec(package) is not None
        version = importlib.metadata.version(package) if is_there else "not installed"
        findings.append(_finding("ok" if is_there else "missing", package, version, purpose))
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("firefox")
    findings.append(
        _finding("ok" if browser else "missing", "browser", browser or "none on the PATH", "looking at reports")
    )
    return findings


def _self_test() -> dict[str, str]:
    """One layer of 10 MB on 8 workers at 10 Gbit/s takes 14 ms (thesis eq. 4.1)."""
    from gradtide.studies.run import run

    layer = {"name": "layer", "forward": "1ms", "backward": "1ms", "parameters": "10MB"}
    scenario = {
        "job": {"self-test": {"model": {"layers": [layer]}, "workers": 8, "iterations": 1}},
        "cluster": {"link": {"rate": "10Gbps", "delay": "0s"}},
    }
    comm_ms = run(scenario).job["comm_ms"]
    state = "ok" if comm_ms == 14.0 else "broken"
    return _finding(state, "core", f"ring of 8: {comm_ms} ms, by hand 14.0 ms", "everything")


def _temporary_folder() -> dict[str, str]:
    folder = Path(tempfile.gettempdir())
    free_gb = shutil.disk_usage(folder).free / 1e9
    return _finding(
        "ok" if free_gb > 0.1 else "broken", "temporary folder", f"{folder}, {free_gb:.1f} GB free", "reports"
    )


def _finding(state: str, what: str, found: str, purpose: str) -> dict[str, str]:
    return {"state": state, "what": what, "found": found, "needed_for": purpose}
