"""Finished run and study folders for the tests of reports: real ones, nasty ones too."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gradtide import Scenario, buy, collectives, compare, from_kineto, plan, run, sweep, tenants_policies
from gradtide.papers import PARTS, site, verdicts
from gradtide.studies.check import compared
from gradtide.studies.check.ns3 import Measured
from gradtide.studies.meshes import meshes
from gradtide.studies.run_folder import summary as described
from gradtide.studies.run_folder import write_core, write_run, write_summary
from gradtide.studies.tenants.bands import tenants
from gradtide.studies.tenants.boundary import boundary
from gradtide.studies.tenants.lp import plan_bands
from kineto_of_run import kineto_of_run

EVIL = "<script>alert('x')</script> & \"größe\" ${7*7} {{7*7}} 層"


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a folder by relative path, and its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def results(folder: Path) -> dict[str, bytes]:
    """Return the contents of a folder of results without the time at which it was made."""
    found = contents(folder)
    for name in [name for name in found if name.endswith("versions.json")]:
        versions = json.loads(found[name])
        assert versions.pop("made_at")
        found[name] = json.dumps(versions).encode()
    return found


@dataclass(frozen=True)
class Job:
    """One job of a scenario, with the thesis's chapter-4 defaults."""

    name: str = "train"
    model: str = "thesis"
    layers: int = 100
    compute_ms: float = 900.0
    fusion_bytes: int = 6_280_000
    workers: int = 2
    order: str = "fifo"
    barrier: bool = True
    layer_names: Sequence[str] = ()

    def keys(self) -> dict[str, Any]:
        """Return the job's keys in a scenario."""
        thesis = {"kind": "thesis", "layers": self.layers, "size": "100MB", "time": f"{self.compute_ms}ms"}
        named = [{"name": name, "forward": "3ms", "backward": "6ms", "parameters": "1MB"} for name in self.layer_names]
        if self.layers == 1:
            named = [{"name": "only", "forward": "300ms", "backward": "600ms", "parameters": "100MB"}]
        return {
            "model": {"name": self.model, "layers": named} if named else thesis,
            "workers": self.workers,
            "schedule": {"order": self.order, "barrier": self.barrier, "fusion": f"{self.fusion_bytes}B"},
        }


def make_run(
    folder: Path,
    *,
    jobs: Sequence[Job] | None = None,
    rate_bps: int = 10**10,
    iterations: int = 10,
    bandwidth: bool = True,
    headline: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Write a run folder without report and timeline; `options` are those of its only `Job`. Return its summary."""
    keys = {job.name: {**job.keys(), "iterations": iterations} for job in jobs or [Job(**options)]}
    link = {"rate": f"{rate_bps}bps", "delay": "5us"}
    result = run(Scenario.from_dict({"job": keys, "cluster": {"link": link}}))
    folder.mkdir(parents=True, exist_ok=True)
    if not bandwidth:
        write_core(result, folder)
        summary = result.summary
    else:
        write_run(result, folder)
        summary = described(result)
    if headline is not None:
        summary = {**summary, "headline": headline}
        write_summary(summary, folder)
    return summary


def make_study(folder: Path, **grid: Any) -> dict[str, Any]:
    """Write the study folder of a comparison without its report; return its summary."""
    grid = {"rates": ["1Gbps", "2Gbps", "5Gbps"], "workers": [2, 8], "models": ["resnet50", "vgg16"], **grid}
    base = Scenario.load("paper/gao2020-ch4").replace(model="resnet50", scale_to="900ms", iterations=2)
    compare(base, **grid).save(folder)
    (folder / "report.html").unlink()
    return _summary(folder)


def make_reproduce(folder: Path) -> dict[str, Any]:
    """Write the study folder of `gradtide reproduce gao2020/ch4` without its report; return its summary."""
    PARTS["gao2020/ch4"].make(1, None, None).save(folder)
    (folder / "report.html").unlink()
    return _summary(folder)


def make_site(folder: Path) -> dict[str, Any]:
    """Write a quick site of two parts that take a second and two that leave figures out; return its summary."""
    some = replace(PARTS["gao2020/ch5"], slow=[one for one in PARTS["gao2020/ch5"].figures if one != "Table 5.4"])
    parts = {
        "gao2020/ch3": PARTS["gao2020/ch3"],
        "gao2020/ch4": PARTS["gao2020/ch4"],
        "gao2020/ch5": replace(some, make=lambda *how, quick: PARTS["gao2020/ch5"].make(*how[:2], "Table 5.4")),
        "tictac": replace(PARTS["tictac"], slow=PARTS["tictac"].figures),
    }
    site.make(parts, verdicts(), quick=True).save(folder)
    (folder / "index.html").unlink()
    return _summary(folder)


def make_sweep(folder: Path, noise: float = 0.0) -> dict[str, Any]:
    """Write the folder of a study over three keys, one of them sampled, with a front, without its report.

    With noise of compute times, changes have intervals.
    """
    study = {
        "scenario": Scenario.load("paper/gao2020-ch4").replace(iterations=2).set({"job.train.compute.noise": noise}),
        "seeds": 2,
        "against": "cluster.link.rate",
        "grid": {"cluster.link.rate": ["1Gbps", "2Gbps", "10Gbps"], "job.train.schedule.order": ["fifo", "priority"]},
        "sample": {"points": 8, "job.train.workers": {"min": 2, "max": 16}},
    }
    sweep({"sweep": study}).save(folder)
    (folder / "report.html").unlink()
    return _summary(folder)


def make_tenants(folder: Path, *, seeds: Sequence[int] = (0, 1), **changes: Any) -> dict[str, Any]:
    """Write the study folder of `gradtide tenants` without its report; return its summary.

    A small job on four hosts beside flows of all classes, about 80 of them, for 0.4 s; `changes` replace the tables.
    """
    base = {
        "job": {
            "train": {
                "model": {"kind": "thesis", "layers": 12, "size": "4MB", "time": "30ms"},
                "workers": 4,
                "schedule": {"order": "priority", "barrier": False, "fusion": "400kB"},
            }
        },
        "cluster": {"link": {"rate": "10Gbps", "delay": "10us"}},
        "traffic": {"web": random_flows()},
        "run": {"engine": "packet", "duration": "400ms", "warmup": "20ms", "cooldown": "20ms"},
    }
    tenants(Scenario.from_dict({**base, **changes}), seeds=seeds).save(folder)
    (folder / "report.html").unlink()
    return _summary(folder)


def make_boundary(folder: Path, **options: Any) -> dict[str, Any]:
    """Write the study folder of `gradtide tenants map`, 2 x 2 loads, without its report; return its summary."""
    boundary(Scenario.from_dict(tiny_tenants(options.pop("name", "tiny"))), **{**TINY_LOADS, **options}).save(folder)
    (folder / "report.html").unlink()
    return _summary(folder)


TINY_LOADS: dict[str, Any] = {"job_loads": (0.125, 0.5), "traffic_loads": (0.0625, 0.25)}


def make_buy(folder: Path) -> Path:
    """Write what to buy for a job of 16 workers that sends 10 MB: two fabrics, three ratios, two collectives."""
    fabrics, ratios, collectives = ["clos2", "star"], [1, "1/2", 0.25], ["ring", "butterfly"]
    return buy(_sender(), nodes=32, fabrics=fabrics, bisection=ratios, collectives=collectives).save(folder)


def make_collectives(folder: Path) -> Path:
    """Write a comparison of three collectives over three sizes for the same job."""
    names = ["ring", "halving_doubling", "ps+servers=2"]
    return collectives(_sender(), collectives=names, sizes=["1kB", "1MB", "100MB"]).save(folder)


def make_meshes(folder: Path) -> Path:
    """Write a comparison of a mesh that fits in memory with one that does not."""
    parallel = [{"fsdp": 16}, {"dp": 8, "tp": 2}]
    return meshes("llama3-8b", parallel, cluster="h100-hgx/2", seq=4096, global_batch=16).save(folder)


def make_plan(folder: Path) -> Path:
    """Write the plan of a small job, with few candidates."""
    return plan("alexnet", cluster="ethernet-1g/2", budget=5, seeds=1).save(folder)


def make_policies(folder: Path) -> Path:
    """Write a comparison of two policies over one seed."""
    return tenants_policies(Scenario.from_dict(tiny_tenants("policies")), ["all-low", "deadline"]).save(folder)


def make_check(folder: Path) -> Path:
    """Write a comparison with another simulator, in which one flow in three is slower and one does not end."""
    scenario = Scenario.from_dict(tiny_tenants("check"))
    result = run(scenario)
    times = [float(time_us) for time_us in result.flows["fct_us"]]
    flows = [{"fct_close_ns": round(time_us * (1000 + 50 * (at % 3 == 0)))} for at, time_us in enumerate(times)]
    flows[-1] = {"fct_close_ns": -1}
    iterations = [(0, round(1e3 * float(time_us))) for time_us in result.iterations["time_us"]]
    measured = Measured("3.37", flows, iterations, [], {"packet_hops": 12345, "cpu_s": 3.0})
    return compared(scenario, result, measured).save(folder)


def make_lp(folder: Path) -> Path:
    """Write start and band of four buckets beside neighbours."""
    return plan_bands(Scenario.from_dict(tiny_tenants("bands"))).save(folder)


def make_waterfall(folder: Path, *, late_us: float = 0.0) -> Path:
    """Write the waterfall of a step that a simulated run took, as two ranks recorded it."""
    job = {"model": "resnet50", "workers": 2, "iterations": 3, "schedule": {"first_fusion": "1MiB"}}
    cluster = {"link": {"rate": "10Gbps", "delay": "10us"}}
    result = run({"job": {"train": job}, "cluster": cluster, "run": {"timeline": 3}})
    with TemporaryDirectory() as traces:
        return from_kineto(kineto_of_run(result, Path(traces), late_us=late_us)).waterfall().save(folder)


def make_evil_waterfall(folder: Path) -> Path:
    """Write the waterfall of a trace whose names are markup."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": EVIL, "pid": 1, "tid": 1, "ts": 0, "dur": 9},
        {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 2, "ts": 4, "dur": 9,
         "args": {"Process Group Name": EVIL, "Input Dims": [[9]], "Input type": ["float"]}},
    ]  # fmt: skip
    document = {"distributedInfo": {"pg_config": [{"pg_name": EVIL, "ranks": [0, 1]}]}, "traceEvents": events}
    with TemporaryDirectory() as traces:
        path = Path(traces) / "rank0.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return from_kineto(path).waterfall().save(folder)


def _sender() -> dict[str, Any]:
    layer = {"name": "fc", "forward": "3ms", "backward": "7ms", "parameters": "10MB"}
    return {
        "job": {"train": {"model": {"name": "fc", "layers": [layer]}, "workers": 16}},
        "cluster": {"link": {"rate": "10Gbps", "delay": "1us"}, "routing": "dmodk"},
    }


def tiny_tenants(name: str = "tiny") -> dict[str, Any]:
    """Return a scenario for a study of tenants that takes no time: four layers on four hosts for 0.3 s."""
    return {
        "job": {
            "train": {
                "model": {"name": name, "layers": [_layer(f"{name}{index}") for index in range(4)]},
                "workers": 4,
                "schedule": {"order": "priority", "barrier": False, "fusion": "0B"},
            }
        },
        "cluster": {"link": {"rate": "10Gbps", "delay": "10us"}},
        "traffic": {"web": {"sizes": "web-search", "arrivals": {"rate": "60/s"}}},
        "run": {"engine": "packet", "duration": "300ms"},
    }


def random_flows() -> dict[str, Any]:
    """Return a neighbour whose flows each seed draws anew: about 80 in 0.4 s, of 1 kB to 14 MB."""
    sizes = [(1000, 0.0), (100_000, 0.6), (2_000_000, 0.92), (14_000_000, 1.0)]
    return {"cdf": [{"bytes": f"{size}B", "cdf": share} for size, share in sizes], "arrivals": {"rate": "50/s"}}


def listed_flows(seed: int, count: int, *, first_us: int = 0, size_bytes: int | None = None) -> dict[str, Any]:
    """Return a neighbour with a list of flows between four hosts, all of one size if one is given."""
    draw = random.Random(seed)
    flows = []
    for _ in range(count):
        src, dst = draw.sample(range(4), 2)
        size = size_bytes or int(10 ** draw.uniform(3, 6.5))
        start = f"{draw.randrange(first_us, 390_000)}us"
        flows.append({"start": start, "src": f"h{src}", "dst": f"h{dst}", "bytes": f"{size}B"})
    return {"flows": flows}


def nasty_tenants() -> dict[str, dict[str, Any]]:
    """Options of `make_tenants` that a report must survive."""
    counted = {"engine": "packet", "duration": "400ms"}
    evil = {
        "model": {"name": EVIL, "layers": [_layer(f"{EVIL}{index}") for index in range(8)]},
        "workers": 4,
        "schedule": {"order": "priority", "barrier": False, "fusion": "0B"},
    }
    return {
        "none-completed": {
            "seeds": [0],
            "traffic": {"web": listed_flows(0, 4, first_us=380_000, size_bytes=400_000_000)},
            "run": counted,
        },
        "one-seed": {"seeds": [7]},
        "evil-tenants": {"seeds": [0], "job": {"evil": evil}},
        "two-neighbours": {
            "seeds": [0],
            "traffic": {"web": listed_flows(1, 40), "store": listed_flows(2, 30)},
            "run": {**counted, "timeline": 0},
        },
    }


def _layer(name: str) -> dict[str, Any]:
    return {"name": name, "forward": "1ms", "backward": "2ms", "parameters": "500kB"}


def _summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def nasty() -> dict[str, dict[str, Any]]:
    """Options of `make_run` that a report must survive."""
    evil_layers = [f"{EVIL}{index}" for index in range(100)]
    return {
        "one-layer": {"layers": 1, "rate_bps": 10**9},
        "thousand-buckets": {"layers": 1000, "fusion_bytes": 0, "rate_bps": 2 * 10**9, "bandwidth": False},
        "one-worker": {"workers": 1},
        "evil-names": {
            "jobs": [Job(name="evil", model=EVIL, layer_names=evil_layers, order="priority", barrier=False)],
            "rate_bps": 10**9,
            "headline": EVIL,
        },
        "two-jobs": {
            "jobs": [Job(name="a"), Job(name="b", workers=4, order="priority", barrier=False, compute_ms=500.0)],
            "rate_bps": 2 * 10**9,
        },
    }
