"""Studies, on this machine and on a Ray cluster of two nodes: overhead per run, and growth of memory.

    python bench/sweep.py [--runs N] [--pairs N] [--no-history]

Every figure covers the whole command `gradtide sweep`, on two processors. Prints tables and appends one JSON line to
bench/history.jsonl; asserts nothing. Everything takes about 20 minutes, `--runs 10000` five. Without Ray, its rows are
left out.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from run import remember

PROCESSORS = 2
LONG_RUNS = 60
SHORT_RUNS = 2_000
SCENARIO = """
[job.train]
model = {{ kind = "thesis", layers = 200, size = "100MB", time = "900ms" }}
workers = 2
iterations = {iterations}
"""
STUDY = '[sweep]\nscenario = "base.toml"\nseeds = {seeds}\n[sweep.grid]\n"cluster.link.rate" = ["1Gbps", "10Gbps"]\n'


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description="Studies here and on Ray; asserts nothing.")
    parser.add_argument("--runs", type=int, default=100_000, metavar="N", help="runs of the largest study (100000)")
    parser.add_argument("--pairs", type=int, default=3, metavar="N", help="runs of each, here and on Ray in turn (3)")
    parser.add_argument("--no-history", action="store_true", help="do not append to bench/history.jsonl")
    options = parser.parse_args()
    figures: dict[str, Any] = {"long_iterations": iterations_of_a_second()}
    with cluster() as address, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for key, runs, iterations in (
            ("long", LONG_RUNS, figures["long_iterations"]),
            ("short", SHORT_RUNS, 200),
        ):
            figures[key] = beside(folder / key, runs, iterations, options.pairs, address)
        figures["sizes"] = sizes(folder, options.runs)
    if not options.no_history:
        remember("studies", figures)


def iterations_of_a_second() -> int:
    """Return the number of iterations of the scenario that take a second of CPU time."""
    count = 20_000
    return round(count / alone(count))


@contextmanager
def cluster() -> Iterator[str | None]:
    """Yield the address of a Ray cluster with two nodes of one processor each; None without Ray."""
    try:
        from ray.cluster_utils import Cluster
    except ImportError:
        from gradtide.extras import how_to_install

        print(f"bench/sweep.py: Ray is missing ({how_to_install('ray')}): its rows are left out")
        yield None
        return
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for _ in range(PROCESSORS):
        nodes.add_node(num_cpus=1)
    try:
        yield nodes.address
    finally:
        nodes.shutdown()


def beside(folder: Path, runs: int, iterations: int, pairs: int, address: str | None) -> dict[str, Any]:
    """Run one study here and on the cluster in turn, each time without kept runs."""
    study(folder, runs, iterations)
    ways = {"-j 2": ["-j", str(PROCESSORS)]}
    if address is not None:
        ways["Ray"] = ["--executor", "ray", "--address", address]
    walls: dict[str, list[float]] = {way: [] for way in ways}
    alone_s = alone(iterations)
    for number in range(pairs):
        for place, (way, words) in enumerate(ways.items()):
            walls[way].append(sweep(folder, f"{number}-{place}.store", words)["wall_s"])
    print(
        f"\n{runs} runs of {1e3 * alone_s:.3g} ms each, medians of {pairs}; least possible {runs * alone_s / 2:.3g} s"
    )
    print(f"{'':8}{'s':>10}{'s a run, beside its own':>28}{'to -j 2':>12}")
    base = statistics.median(walls["-j 2"])
    for way, found in walls.items():
        wall_s = statistics.median(found)
        print(f"{way:8}{wall_s:>10.2f}{wall_s * PROCESSORS / runs - alone_s:>28.5f}{wall_s / base:>12.2f}")
    return {"runs": runs, "run_s": alone_s, "wall_s": walls}


def alone(iterations: int) -> float:
    """Return the CPU seconds of one run."""
    from gradtide import Scenario, run

    scenario = Scenario.from_toml(SCENARIO.format(iterations=iterations))
    return min(float(run(scenario).summary["cost"]["cpu_s"]) for _ in range(3))


def study(folder: Path, runs: int, iterations: int) -> None:
    """Write a study."""
    folder.mkdir(exist_ok=True)
    (folder / "base.toml").write_text(SCENARIO.format(iterations=iterations), encoding="utf-8")
    (folder / "study.toml").write_text(STUDY.format(seeds=runs // 2), encoding="utf-8")


def sweep(folder: Path, store: str, words: list[str]) -> dict[str, float]:
    """Run a whole study; return its time, and the peak memory of its process."""
    command = [
        sys.executable,
        "-m",
        "gradtide",
        "sweep",
        "study.toml",
        "-q",
        "--max-time",
        "10h",
        "--store",
        store,
        *words,
    ]
    begun = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return {"wall_s": time.perf_counter() - begun, "peak_rss_mb": used.ru_maxrss / 1024}


def sizes(folder: Path, most: int) -> list[dict[str, float]]:
    """Run studies with increasing numbers of short runs, and list their stores."""
    found: list[dict[str, float]] = []
    print(f"\n{'runs':>8}{'s, -j 2':>10}{'MB, driver':>12}{'again, s':>10}{'list, s':>9}{'of one seed, s':>16}")
    runs = 1_000
    while runs <= most:
        place = folder / str(runs)
        study(place, runs, 1)
        row = {"runs": float(runs), **sweep(place, "all.store", ["-j", str(PROCESSORS)])}
        row["again_s"] = sweep(place, "all.store", ["-j", str(PROCESSORS)])["wall_s"]
        for key, words in (("list_s", []), ("filter_s", ["--seed", "7"])):
            begun = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "gradtide", "sweep", "list", "all.store", *words],
                cwd=place,
                stdout=subprocess.DEVNULL,
                check=True,
            )
            row[key] = time.perf_counter() - begun
        print(
            f"{runs:>8,}{row['wall_s']:>10.1f}{row['peak_rss_mb']:>12.0f}{row['again_s']:>10.1f}{row['list_s']:>9.2f}"
            f"{row['filter_s']:>16.2f}",
            flush=True,
        )
        found.append(row)
        runs *= 10
    return found


if __name__ == "__main__":
    main()
