"""Whole-run benchmarks: the time to an answer, end to end, beside that of a plain-Python simulator of the same model.

    python bench/run.py [--no-history]

Prints one table and appends one JSON line to bench/history.jsonl. It asserts nothing: readers judge the figures. The
digest in the line proves that a faster version computes the same results.
"""

import argparse
import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HISTORY = ROOT / "bench" / "history.jsonl"
sys.path.insert(0, str(ROOT / "tests"))

BEST_OF = 5
LAYERS = 200
ITERATIONS = 10_000
# The reference is hundreds of times slower, so it runs fewer iterations, and events per second are compared.
REFERENCE_ITERATIONS = 3


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description="Whole-run benchmarks; asserts nothing.")
    parser.add_argument("--no-history", action="store_true", help="do not append to bench/history.jsonl")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        # One core for this process and its children.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    figures: dict[str, Any] = {}
    figures["import_s"] = best_of(BEST_OF, lambda: spawn("-c", "import gradtide"))
    figures["interpreter_s"] = best_of(BEST_OF, lambda: spawn("-c", "pass"))
    with tempfile.TemporaryDirectory() as folder:
        bad = Path(folder) / "bad.toml"
        bad.write_text('[job.train]\nmodel = "resnet5"\nworkers = 0\n', encoding="utf-8")
        figures["refusal_s"] = best_of(BEST_OF, lambda: spawn("-m", "gradtide", "run", str(bad), code=2))
        large = Path(folder) / "large.toml"
        large.write_text('[job.train]\nmodel = "resnet152"\nworkers = 64\n[run]\nengine = "fluid"\n', encoding="utf-8")
        figures["plan_s"] = best_of(2, lambda: spawn("-m", "gradtide", "plan", str(large), "-q", "-j", "1"))
        figures["demo_s"] = best_of(2, lambda: spawn("-m", "gradtide", "demo", "-q", "-o", f"{folder}/demo"))
    results = {}
    for name, scenario in scenarios(ITERATIONS).items():
        figures[name], results[name] = measure_run(scenario)
        figures[name]["reference_events_per_s"] = reference_speed(scenarios(REFERENCE_ITERATIONS)[name])
        figures[name]["ratio"] = figures[name]["events_per_s"] / figures[name]["reference_events_per_s"]
    figures["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    # Last, because writing the tables takes memory of its own.
    digests = {name: digest(result) for name, result in results.items()}
    print_table(figures)
    if not options.no_history:
        remember(f"{ITERATIONS} iterations of {LAYERS} layers", {"digests": digests, **figures})


def scenarios(iterations: int) -> dict[str, Any]:
    """Return the runs: 200 layers on 8 hosts at 2 Gbit/s, in buckets and layer by layer."""
    layers = [
        {"name": f"layer{i}", "forward": "1.5ms", "backward": "3ms", "parameters": f"{100_000 + 4_000 * i}B"}
        for i in range(LAYERS)
    ]
    job = {"model": {"name": "growing", "layers": layers}, "workers": 8, "iterations": iterations}
    cluster = {"link": {"rate": "2Gbps", "delay": "10us"}}
    schedules = {
        "fifo, barrier, buckets of 6.28 MB": {"order": "fifo", "barrier": True, "fusion": "6.28MB"},
        "priority, no barrier, 200 buckets": {"order": "priority", "barrier": False, "fusion": "0B"},
    }
    return {
        name: {"job": {"train": {**job, "schedule": schedule}}, "cluster": cluster}
        for name, schedule in schedules.items()
    }


def measure_run(scenario: Any) -> tuple[dict[str, Any], Any]:
    """Run from a dict to tables in Python; return figures and the result."""
    import gradtide

    results = []

    def once() -> None:
        results[:] = [gradtide.run(scenario)]

    wall_s = best_of(3, once)
    result = results[0]
    events = result.summary["cost"]["events"]
    figures = {
        "wall_s": wall_s,
        "core_s": result.summary["cost"]["wall_s"],
        "events": events,
        "events_per_s": events / wall_s,
        "iteration_time_ms": 1e3 * result.iteration_time,
    }
    return figures, result


def digest(result: Any) -> str:
    """Return a digest of the results of a run."""
    return hashlib.sha256((result.iterations.to_csv() + result.transfers.to_csv()).encode()).hexdigest()


def reference_speed(scenario: Any) -> float:
    """Return events per second of tests/reference.py, which simulates the same in plain Python and exact fractions."""
    import gradtide
    import reference

    events = gradtide.run(scenario).summary["cost"]["events"]
    parsed = gradtide.Scenario.from_dict(scenario)
    order, spec = parsed.jobs[0].schedule.order, parsed.spec()

    def ranks(_iteration: int, buckets: list[list[int]]) -> list[int]:
        return [min(bucket) if order == "priority" else 0 for bucket in buckets]

    count = spec["jobs"][0]["iterations"]
    return float(events / best_of(3, lambda: reference.simulate(spec, ranks, count)))


def spawn(*arguments: str, code: int = 0) -> None:
    """Run Python and wait; report a failure, because its time would be meaningless."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    if done.returncode != code:
        print(f"{arguments}: exit {done.returncode}, expected {code}", file=sys.stderr)


def best_of(count: int, call: Callable[[], object]) -> float:
    """Return the least wall time of `count` calls, seconds, because disturbances only add time."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def remember(scenario: str, figures: dict[str, Any]) -> None:
    """Append one line to bench/history.jsonl: machine, scenario and figures."""
    with HISTORY.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**where(), "scenario": scenario, **figures}) + "\n")
    print(f"\nappended to {HISTORY.relative_to(ROOT)}")


def where() -> dict[str, Any]:
    """Return commit, machine and compiler."""
    return {
        "commit": said("git", "rev-parse", "--short=12", "HEAD"),
        "dirty": bool(said("git", "status", "--porcelain", "--untracked-files=no")),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "rustc": said("rustc", "--version"),
    }


def cpu_model() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def said(*command: str) -> str:
    """Return the output of a command, or nothing if the command is missing."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def print_table(figures: dict[str, Any]) -> None:
    """Print the figures."""
    rows = [
        ("python -c pass", f"{1e3 * figures['interpreter_s']:.0f} ms"),
        ("import gradtide, a process of its own", f"{1e3 * figures['import_s']:.0f} ms"),
        ("gradtide run BAD.toml, refused", f"{1e3 * figures['refusal_s']:.0f} ms"),
        ("gradtide plan, ResNet-152 on 64 workers", f"{figures['plan_s']:.2f} s"),
        ("gradtide demo, with its report", f"{figures['demo_s']:.2f} s"),
    ]
    for name, run in figures.items():
        if isinstance(run, dict):
            rows += [
                (f"{ITERATIONS} iterations of {LAYERS} layers: {name}", f"{run['wall_s']:.2f} s"),
                ("    of which the core", f"{run['core_s']:.2f} s"),
                ("    events per second", f"{run['events_per_s'] / 1e6:.2f} million"),
                ("    plain-Python reference", f"{run['reference_events_per_s'] / 1e6:.4f} million"),
                ("    ratio", f"{run['ratio']:.0f}"),
            ]
    rows.append(("peak memory", f"{figures['peak_rss_mb']:.0f} MB"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value:>16}")


if __name__ == "__main__":
    main()
