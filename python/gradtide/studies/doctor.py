"""`gradtide doctor`: installed and missing dependencies, and their purpose."""

import importlib.metadata
import importlib.util
import platform
import shutil
import tempfile
from pathlib import Path

from gradtide import _core
from gradtide.extras import how_to_install

OPTIONAL = {
    "pyarrow": "tables as Parquet; polars and pandas read results without it",
    "highspy": "linear programmes of tenants lp",
    "ray": "studies on a Ray cluster: sweep --executor ray",
    "torch": "profiles of real models, and plans in their training",
}


def doctor() -> list[dict[str, str]]:
    """Return one dict per check with the keys `state` (ok, missing or broken), `what`, `found` and `needed_for`."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("firefox")
    findings = [
        ("ok", "gradtide", _core.__version__, "everything"),
        ("ok", "python", platform.python_version(), "everything"),
        _self_test(),
        _temporary_folder(),
        *(_package(*one) for one in OPTIONAL.items()),
        ("ok" if browser else "missing", "browser", browser or "none on the PATH", "checking reports"),
    ]
    return [dict(zip(("state", "what", "found", "needed_for"), one, strict=True)) for one in findings]


def _package(name: str, purpose: str) -> tuple[str, ...]:
    if importlib.util.find_spec(name) is None:
        return "missing", name, "not installed", f"{purpose} ({how_to_install(name)})"
    return "ok", name, importlib.metadata.version(name), purpose


def _self_test() -> tuple[str, ...]:
    """Check that the exchange of one layer of 10 MB by 8 workers at 10 Gbit/s takes 14 ms (Gao 2020, eq. 4.1)."""
    from gradtide.studies.run import run

    layer = {"name": "layer", "forward": "1ms", "backward": "1ms", "parameters": "10MB"}
    scenario = {
        "job": {"self-test": {"model": {"layers": [layer]}, "workers": 8, "iterations": 1}},
        "cluster": {"link": {"rate": "10Gbps", "delay": "0s"}},
    }
    comm_ms = run(scenario).job["comm_ms"]
    state = "ok" if comm_ms == 14.0 else "broken"
    return state, "core", f"ring of 8: {comm_ms} ms, by hand 14.0 ms", "everything"


def _temporary_folder() -> tuple[str, ...]:
    folder = Path(tempfile.gettempdir())
    free_gb = shutil.disk_usage(folder).free / 1e9
    state = "ok" if free_gb > 0.1 else "broken"
    return state, "temporary folder", f"{folder}, {free_gb:.1f} GB free", "reports"
