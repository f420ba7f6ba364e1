"""Keeps evidence before the code is restructured: the run folders of many scenarios, over all engines and studies.

    python tools/evidence.py make FOLDER [CASE…]  runs every case (or those named) with the `gradtide` on the PATH
    python tools/evidence.py compare BEFORE AFTER lists each file that differs, and exits 1 if one does

Tables (CSV) and resolved scenarios are compared byte by byte, and JSON documents figure by figure, without headlines,
costs in time and memory, and dates. Reports show the same figures, so they are not compared.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOT_COMPARED = {".html", ".pftrace", ".log"}
NOT_FIGURES = {"headline", "cost", "made_at", "python", "platform", "gradtide", "version", "files"}

TWO_JOBS = "scenarios/two-jobs.toml"
OWN = "scenarios/own-model.toml"
REAL = "scenarios/real-network.toml"
THIN = "scenarios/thin-fabric.toml"
CH4, CH5, ZHANG, PCN = (f"paper/{name}" for name in ("gao2020-ch4", "gao2020-ch5", "zhang2017", "pcn"))
TICTAC, CARAMEL = "paper/tictac2019", "paper/caramel2020"

BESIDE = """\
[job.train]
model = { kind = "thesis", layers = 20, size = "4MB", time = "30ms" }
workers = 4

[cluster]
link = { rate = "1Gbps", delay = "10us" }
topology = { kind = "star", hosts = 4 }

[traffic.web]
sizes = "web-search"
arrivals = { rate = "30/s" }

[run]
engine = "packet"
duration = "600ms"
warmup = "50ms"
cooldown = "50ms"
"""
"""A small job beside background flows, written into the folder as `beside.toml`."""


def cases(beside: str) -> dict[str, list[str]]:  # a table
    """Return the arguments of every case by its name; each writes one folder.

    Args:
        beside: path of a small job beside background flows.
    """
    found: dict[str, list[str]] = {}

    def run(name: str, scenario: str, *settings: str) -> None:
        found[name] = ["run", scenario, *(part for setting in settings for part in ("--set", setting))]

    for path in (OWN, TWO_JOBS, REAL, THIN, "scenarios/ten-layers.toml", "scenarios/chunked-priority.toml"):
        run(Path(path).stem, path)
    run("own-order", "scenarios/own-order.toml")
    for name in (CH4, ZHANG, TICTAC, CARAMEL):
        run(name.removeprefix("paper/"), name)
    run("beside", beside)
    run("gao2020-ch5", CH5)
    run("pcn", PCN)
    job = "job.train.{}={}".format
    for engine in ("fluid", "packet"):
        base = [f"run.engine={engine}", job("iterations", 3)]
        for order in ("fifo", "priority", "random", "tic", "tac", "caramel", "edf", "optimal"):
            run(f"{engine}-{order}", OWN, *base, job("schedule.order", order))
        run(f"{engine}-chunks", OWN, *base, job("schedule.chunk", "1MB"), job("schedule.credit", 4))
        run(f"{engine}-ddp", OWN, *base, job("schedule.first_fusion", "1MiB"), job("schedule.fusion", "25MiB"))
        run(f"{engine}-cycle", OWN, *base, job("schedule.cycle", "5ms"), job("schedule.overhead", "50us"))
        run(f"{engine}-sync", OWN, *base, job("schedule.sync", "20us"), job("compute.overlap_slowdown", 1.1))
        run(f"{engine}-noise", OWN, *base, job("compute.noise", 0.05), "run.seed=3")
        run(f"{engine}-straggler", OWN, *base, job("compute.straggler", "{ worker = 1, factor = 1.5 }"))
        run(f"{engine}-queues", OWN, *base, job("schedule.order", "priority"), job("schedule.queues", 3))
        run(f"{engine}-host-latency", OWN, *base, "cluster.host_latency=5us")
    for kind in (
        "halving_doubling", "shuffle", "tree", "butterfly", "butterfly_layered", "hierarchical", "ps",
    ):  # fmt: skip
        for engine in ("fluid", "packet"):
            group = [job("collective.group", 2)] if kind in ("butterfly_layered", "hierarchical") else []
            run(
                f"{engine}-{kind}",
                OWN,
                f"run.engine={engine}",
                job("iterations", 2),
                job("collective.kind", kind),
                *group,
            )
    fabric = ["run.engine=fluid", job("iterations", 2), "cluster.routing=spread"]
    packets = ["run.engine=packet", job("iterations", 2), "cluster.routing=dmodk"]
    for name, topology in {
        "leaf-spine": '{ kind = "leaf_spine", leaves = 4, hosts_per_leaf = 4, spines = 2 }',
        "clos2": '{ kind = "clos2", ports = 8, bisection = "1/2" }',
        "clos3": '{ kind = "clos3", ports = 4 }',
    }.items():
        for engine, base in (("fluid", fabric), ("packet", packets)):
            workers = [job("workers", 8), job("placement", "spread"), f"cluster.topology={topology}"]
            run(f"{engine}-{name}", OWN, *base, *workers)
    for name, queue in {
        "pfifo-fast": '{ kind = "pfifo_fast", capacity = "200pkt" }',
        "strict": '{ kind = "strict", bands = 4 }',
        "drr": '{ kind = "drr", weights = [3, 1] }',
        "ecn": '{ kind = "ecn", threshold = "65pkt" }',
        "pcn": '{ kind = "pcn", threshold = "40pkt", announced = "10pkt" }',
        "red": '{ kind = "red", min = "50pkt", max = "300pkt" }',
    }.items():
        run(f"queue-{name}", beside, f"cluster.queue={queue}")
    ecn = 'cluster.queue={ kind = "ecn", threshold = "65pkt" }'
    for kind in ("newreno", "cubic", "ideal", "dctcp", "newreno+ecn", "cubic+ecn"):
        marks = [ecn] if kind in ("dctcp", "newreno+ecn", "cubic+ecn") else []
        run(f"transport-{kind}", beside, *marks, f'cluster.transport={{ kind = "{kind}" }}')
    run("traffic-fluid", beside, "run.engine=fluid")
    run("switch-buffer", beside, 'cluster.switch_buffer={ capacity = "1MB", alpha = 1 }')
    run("probe", beside, 'run.probe={ every = "1ms", cwnd = ["train", "web"] }')
    run("incast", beside, 'traffic.web.incast={ dst = "h0", senders = 3, bytes = "1MB", every = "50ms" }')
    run("bands", beside, 'job.train.priority=["high", "low"]')
    for policy in ("deadline", "background", "oracle"):
        run(f"policy-{policy}", beside, f'job.train.priority={{ adaptive = {{ policy = "{policy}" }} }}')
    found["compare"] = ["compare", OWN, "--rate", "1Gbps,10Gbps", "--workers", "2,4"]
    found["compare-systems"] = [
        "compare", CARAMEL, "--schedule", "ddp", "--schedule", "horovod", "--schedule", "p3", "--schedule", "caramel",
    ]  # fmt: skip
    found["compare-servers"] = ["compare", TICTAC, "--servers", "1,2", "--task", "train,inference"]
    found["collectives"] = ["compare", OWN, "--collective", "ring,halving_doubling,tree,ps", "--sizes", "1MB,100MB"]
    found["tenants"] = ["tenants", beside, "--seeds", "2"]
    found["map"] = ["tenants", beside, "--map", "--job-loads", "0.2,0.3", "--traffic-loads", "0.1"]
    found["policies"] = ["tenants", beside, "--policy", "all-low", "--policy", "deadline"]
    found["lp"] = ["tenants", beside, "--lp"]
    found["buy"] = ["buy", "resnet50", "--nodes", "16"]
    # Its routes do not depend on a hash.
    found["buy-spread"] = [*found["buy"], "--set", "cluster.routing=spread"]
    found["plan"] = ["plan", "resnet50", "--workers", "4", "--seeds", "2"]
    found["waterfall"] = [
        "report",
        "scenarios/traces/rank0.pt.trace.json.gz",
        "scenarios/traces/rank1.pt.trace.json.gz",
    ]
    for paper in ("gao2020/ch4", "tictac", "caramel", "zhang2017"):
        found[f"reproduce-{paper.replace('/', '-')}"] = ["reproduce", paper]
    return found


NEW_SPELLING = {
    "map": ["tenants", "map"],
    "policies": ["tenants", "policies"],
    "lp": ["tenants", "lp"],
    "collectives": ["collectives"],
}
"""Present spelling of cases whose command was once an option of another command."""


def respelt(name: str, arguments: list[str]) -> list[str]:
    """Return the arguments of a case in the present spelling of commands."""
    if name not in NEW_SPELLING:
        return arguments
    rest = [part for part in arguments[1:] if part not in ("--map", "--lp", "--collective")]
    if name == "collectives":
        rest.insert(1, "--collectives")
    return [*NEW_SPELLING[name], *rest]


def make(folder: Path, spellings: list[bool], named: list[str]) -> int:
    """Run every case, or those whose names match a pattern, each into its own folder; return the number of failures."""
    folder.mkdir(parents=True, exist_ok=True)
    scenario = folder / "beside.toml"
    scenario.write_text(BESIDE, encoding="utf-8")
    every = cases(str(scenario))
    if named:
        every = {name: one for name, one in every.items() if any(fnmatch(name, pattern) for pattern in named)}

    def one(name: str, arguments: list[str]) -> str:
        target, log = folder / name, folder / f"{name}.log"
        if target.exists():
            return ""
        env = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
        texts = []
        for is_new in spellings:
            command = ["gradtide", *(respelt(name, arguments) if is_new else arguments), "-q", "-o", str(target)]
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
            texts.append(" ".join(command) + "\n" + done.stdout + done.stderr)
            if target.exists():
                break
        log.write_text("\n".join(texts), encoding="utf-8")
        return "" if target.exists() else f"{name}: {texts[-1]}"

    with ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
        failed = [text for text in pool.map(lambda item: one(*item), every.items()) if text]
    print("\n".join(failed))
    print(f"{len(every) - len(failed)} of {len(every)} cases ran")
    return len(failed)


def figures(tree: Any) -> Any:
    """Return a JSON document without the keys that are no figures."""
    if isinstance(tree, dict):
        return {key: figures(value) for key, value in tree.items() if key not in NOT_FIGURES}
    if isinstance(tree, list):
        return [figures(value) for value in tree]
    return tree


def paths(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Yield the paths at which two JSON documents differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            if key not in after:
                yield f"{at}.{key} is gone"
            elif key not in before:
                yield f"{at}.{key} is new"
            else:
                yield from paths(before[key], after[key], f"{at}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from paths(*pair, f"{at}[{index}]")
    elif before != after or type(before) is not type(after):
        yield f"{at}: {str(before)[:60]} -> {str(after)[:60]}"


def differences(before: Path, after: Path) -> Iterator[str]:
    """Yield a line for every file of a folder that differs, or that only one of the two folders has."""
    names = {p.relative_to(root) for root in (before, after) for p in root.rglob("*") if p.is_file()}
    for name in sorted(names):
        one, other = before / name, after / name
        if name.suffix in NOT_COMPARED:
            continue
        if not one.exists() or not other.exists():
            yield f"{name}: only {'after' if other.exists() else 'before'}"
        elif name.suffix == ".json":
            found = list(paths(*(figures(json.loads(p.read_text(encoding="utf-8"))) for p in (one, other))))
            if found:
                yield f"{name}: {len(found)}: " + "; ".join(found[:4])
        elif one.read_bytes() != other.read_bytes():
            lines = [p.read_text(encoding="utf-8").splitlines() for p in (one, other)]
            changed = [pair for pair in zip(*lines, strict=False) if pair[0] != pair[1]]
            shown = f": {changed[0][0][:70]} -> {changed[0][1][:70]}" if changed else ""
            yield f"{name}: {len(changed)} lines, {len(lines[0])} -> {len(lines[1])}{shown}"


def main() -> int:
    """Make or compare."""
    if sys.argv[1:2] == ["make"] and len(sys.argv) >= 3:
        return 1 if make(Path(sys.argv[2]).resolve(), [True, False], sys.argv[3:]) else 0
    if sys.argv[1:2] == ["compare"] and len(sys.argv) == 4:
        found = list(differences(Path(sys.argv[2]), Path(sys.argv[3])))
        print("\n".join(found) if found else "nothing differs")
        return 1 if found else 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
