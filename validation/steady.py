"""Packets within an accuracy beside every packet: CPU seconds, and how far completion times are off.

    python validation/steady.py [--accuracy 1%] [CASE ...]

Each case runs twice in one process: exactly, and with `run.accuracy`. Errors are those of flow completion times; of a
job alone, those of its iterations. Nothing is fitted. The table is that of docs/models/packet.md.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

import numpy as np  # noqa: E402

import gradtide as gt  # noqa: E402

STAR = {"topology": {"kind": "star", "hosts": 8}, "link": {"rate": "10Gbps", "delay": "10us"}}
DCTCP = {"queue": {"kind": "ecn", "threshold": "65pkt"}, "transport": {"kind": "dctcp"}}
PAPER = "paper/gao2020-ch5"


def _flows(pairs: list[tuple[int, int]], size: str, **cluster: Any) -> gt.Scenario:
    flows = [{"start": "0s", "src": f"h{src}", "dst": f"h{dst}", "bytes": size} for src, dst in pairs]
    run = {"engine": "packet", "duration": "20s"}
    return gt.Scenario.from_dict({"cluster": {**STAR, **cluster}, "traffic": {"long": {"flows": flows}}, "run": run})


def _mixed(**cluster: Any) -> gt.Scenario:
    """Flows of five sizes between random hosts at random times: many share a link with a long one."""
    draw = np.random.default_rng(1)
    sizes = ("10kB", "1MB", "10MB", "100MB", "400MB")
    flows = []
    for start_us in sorted(draw.integers(0, 10_000_000, 200)):
        src, dst = draw.choice(8, 2, replace=False)
        flows.append({"start": f"{start_us}us", "src": f"h{src}", "dst": f"h{dst}", "bytes": str(draw.choice(sizes))})
    run = {"engine": "packet", "duration": "20s"}
    return gt.Scenario.from_dict({"cluster": {**STAR, **cluster}, "traffic": {"mixed": {"flows": flows}}, "run": run})


def _ring(**cluster: Any) -> gt.Scenario:
    """Eight workers that exchange 8 GB at once: messages of 1 GB."""
    model = {"kind": "thesis", "layers": 4, "size": "8GB", "time": "1s", "precision": "float32"}
    job = {"model": model, "workers": 8, "iterations": 2, "collective": {"kind": "ring"}}
    job["schedule"] = {"fusion": "16GB"}
    return gt.Scenario.from_dict({"cluster": {**STAR, **cluster}, "job": {"train": job}, "run": {"engine": "packet"}})


def _study(*, job: bool, **keys: Any) -> gt.Scenario:
    study = gt.Scenario.load(PAPER).set({"cluster.transport.recovery": "sack", **keys})
    if job:
        return study
    table = {key: value for key, value in study.to_dict().items() if key != "job"}
    return gt.Scenario.from_dict(table)


def _web() -> gt.Scenario:
    topology = {"kind": "leaf_spine", "leaves": 4, "hosts_per_leaf": 8, "spines": 4}
    traffic = {"web": {"sizes": "web-search", "load": 0.5}}
    run = {"engine": "packet", "duration": "200ms"}
    return gt.Scenario.from_dict(
        {"cluster": {"topology": topology, "link": STAR["link"]}, "traffic": traffic, "run": run}
    )


PAIRS = [(host, host + 4) for host in range(4)]
CASES = {
    "4 flows of 1 GB, each with its links": lambda: _flows(PAIRS, "1GB"),
    "the same, DCTCP": lambda: _flows(PAIRS, "1GB", **DCTCP),
    "8 flows of 1 GB around a ring, DCTCP": lambda: _flows([(h, (h + 1) % 8) for h in range(8)], "1GB", **DCTCP),
    "8 flows of 1 GB around a ring": lambda: _flows([(h, (h + 1) % 8) for h in range(8)], "1GB"),
    "4 flows of 1 GB into one host": lambda: _flows([(h, 7) for h in range(4)], "1GB"),
    "the same into one host, DCTCP": lambda: _flows([(h, 7) for h in range(4)], "1GB", **DCTCP),
    "200 flows of 10 kB to 400 MB in 10 s, 8 hosts": _mixed,
    "the same 200, DCTCP": lambda: _mixed(**DCTCP),
    "thesis, traffic and job": lambda: _study(job=True),
    "thesis, traffic alone": lambda: _study(job=False),
    "thesis, ratio 4, 92 flows/s, seed 4": lambda: _study(
        job=True, **{"job.train.model.time": "560ms", "traffic.web.arrivals.rate": "92/s", "run.seed": 4}
    ),
    "web-search at half load, leaf-spine of 32": _web,
    "ring of 8, messages of 1 GB": _ring,
    "ring of 8, messages of 1 GB, DCTCP": lambda: _ring(**DCTCP),
}
SHARED = ("200 flows of 10 kB to 400 MB in 10 s, 8 hosts", "the same 200, DCTCP", "thesis, traffic and job")
"""Cases beside which a run is shown that differs by next to nothing."""
HEAD = "| case | CPU s, exact | within {} | times faster | mean | 99th percentile | largest of one |"


def run(scenario: gt.Scenario) -> tuple[float, np.ndarray, np.ndarray]:
    """Return CPU seconds of the core, and completion times of flows and of iterations."""
    result = gt.run(scenario)
    seconds = result.summary["cost"]["cpu_s"]
    flows = result.flows["fct_us"]
    iterations = np.array([job["iteration_time_ms"]["all"] for job in result.summary["jobs"].values()], dtype=float)
    return seconds, flows, iterations.ravel()


def row(name: str, scenario: gt.Scenario, changes: dict[str, str]) -> str:
    """Return a row of the table: a scenario, and the same with changes."""
    exact_s, *exact = run(scenario)
    bounded_s, *bounded = run(scenario.set(changes))
    times = next((was, now) for was, now in zip(exact, bounded, strict=True) if was.size)
    # Flows that end after the run have no time in either.
    ended = np.isfinite(times[0]) & np.isfinite(times[1])
    was, now = times[0][ended], times[1][ended]
    means, tails = (f"{100 * (of(now) / of(was) - 1):+.3f} %" for of in (np.mean, lambda all_: np.percentile(all_, 99)))
    largest = f"{100 * np.max(np.abs(now / was - 1)):.3f} %"
    return f"| {name} | {exact_s:.2f} | {bounded_s:.2f} | {exact_s / bounded_s:.1f} | {means} | {tails} | {largest} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accuracy", default="1%")
    parser.add_argument("case", nargs="*", help="part of the name of a case; all if none is given")
    asked = parser.parse_args()
    print(HEAD.format(asked.accuracy))
    print("|---" + "|---:" * 6 + "|")
    for name, make in CASES.items():
        if not asked.case or any(part in name for part in asked.case):
            print(row(name, make(), {"run.accuracy": asked.accuracy}), flush=True)
            if name in SHARED:
                print(row("exact, with 1 ns more of delay", make(), {"cluster.link.delay": "10.001us"}), flush=True)


if __name__ == "__main__":
    main()
