"""Small valid scenarios of many kinds, drawn at random, for the relations between runs.

`KINDS` has a function for each kind, from a source of chance to the dict of a scenario. A kind fixes what makes it one,
such as a network of nodes or a pipeline of stages; everything else is drawn. All of a scenario is milliseconds long.
"""

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

Data = dict[str, Any]

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "vocab_size": 2048,
}
MIXTURE = {**CONFIG, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
RATES = ("1Gbps", "10Gbps", "25Gbps", "100Gbps", "400Gbps")
DELAYS = ("0us", "1us", "5us", "50us", "200us")
SIZES = (0, 1, 100, 1680, 4096, 10_000, 100_000, 1_000_000, 3_000_017)
PACKET_SIZES = (0, 1, 100, 1380, 4096, 10_000, 60_000, 300_000)
SUMS = ("ring", "halving_doubling", "shuffle", "tree", "butterfly", "hierarchical")
EXCHANGES = ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "point_to_point")
PRESETS = ("h100-hgx", "a100-hgx", "ethernet-100g", "ethernet-25g")
QUEUES: tuple[Data, ...] = (
    {"kind": "pfifo_fast", "capacity": "20pkt"},
    {"kind": "fifo", "capacity": "100pkt"},
    {"kind": "strict", "bands": 3},
    {"kind": "drr", "weights": [1, 4, 2], "capacity": "200pkt"},
    {"kind": "ecn", "threshold": "20pkt", "capacity": "200pkt"},
    {"kind": "red", "min": "20pkt", "max": "60pkt", "capacity": "200pkt"},
)
TRANSPORTS: tuple[Data, ...] = (
    {"kind": "newreno"},
    {"kind": "cubic"},
    {"kind": "cubic", "hystart": True},
    {"kind": "ideal"},
    {"kind": "newreno", "segment": "8kB"},
    {"kind": "newreno", "timers": "linux"},
)
PLAIN_ORDERS = ("fifo", "priority", "tac", "caramel", "random", "arbitrary")


def _time(chance: Random, most_us: int) -> str:
    return f"{chance.randint(1, most_us)}us"


def layered(chance: Random, sizes: Iterable[int] = SIZES, most: int = 5) -> Data:
    """Return a model of a few layers."""
    pool = tuple(sizes)
    layers = [
        {
            "name": f"l{index}",
            "forward": _time(chance, 400),
            "backward": _time(chance, 800),
            "parameters": f"{chance.choice(pool)}B",
        }
        for index in range(chance.randint(1, most))
    ]
    return {"name": "m", "layers": layers}


def schedule(chance: Random) -> Data:
    """Return how a plain job sends its buckets."""
    table: Data = {}
    if chance.random() < 0.6:
        table["order"] = chance.choice(PLAIN_ORDERS)
    if chance.random() < 0.5:
        table["fusion"] = chance.choice(("0B", "64kB", "1MB", "25MiB"))
    if chance.random() < 0.3:
        table["chunk"] = chance.choice(("64kB", "200kB", "1MB"))
    if chance.random() < 0.3:
        table["barrier"] = chance.random() < 0.5
    if chance.random() < 0.2:
        table["overhead"] = chance.choice(("1us", "20us"))
    if chance.random() < 0.15:
        table["credit"] = chance.choice((2, 4))
    if chance.random() < 0.15:
        table["depth"] = chance.choice((2, 4))
    return table


def plain(chance: Random, sizes: Iterable[int] = SIZES, kinds: tuple[str, ...] = SUMS, most: int = 6) -> Data:
    """Return a job whose workers all have the whole model."""
    job: Data = {
        "model": layered(chance, sizes),
        "workers": chance.randint(2, most),
        "iterations": chance.randint(1, 3),
        "collective": {"kind": chance.choice(kinds)},
    }
    if table := schedule(chance):
        job["schedule"] = table
    if chance.random() < 0.15:
        job["collective"]["reduction_rate"] = "80Gbps"
    if chance.random() < 0.1:
        job["compute"] = {"overlap_slowdown": 1.1}
    return job


def link(chance: Random) -> Data:
    """Return rate and delay of links."""
    return {"rate": chance.choice(RATES), "delay": chance.choice(DELAYS)}


def star(chance: Random, hosts: int = 0) -> Data:
    """Return a cluster around one switch; of a size of its own if `hosts` is given."""
    cluster: Data = {"link": link(chance)}
    if hosts:
        cluster["topology"] = {"kind": "star", "hosts": hosts}
    if chance.random() < 0.15:
        cluster["host_latency"] = "3us"
    return cluster


def leaf_spine(chance: Random) -> Data:
    """Return two or three leaves below one or two spines."""
    topology: Data = {
        "kind": "leaf_spine",
        "leaves": chance.choice((2, 3)),
        "hosts_per_leaf": 4,
        "spines": chance.choice((1, 2)),
    }
    if chance.random() < 0.3:
        topology["fabric_link"] = link(chance)
    return _routed(chance, {"topology": topology, "link": link(chance)})


def clos(chance: Random, kind: str) -> Data:
    """Return a Clos network of switches with four ports."""
    topology = {"kind": kind, "ports": 4, "bisection": chance.choice(("1", "1/2"))}
    return _routed(chance, {"topology": topology, "link": link(chance)})


def _routed(chance: Random, cluster: Data) -> Data:
    if chance.random() < 0.3:
        cluster["routing"] = chance.choice(("dmodk", "spread"))
    return cluster


def custom(chance: Random) -> Data:
    """Return a tree of cables: a chain of switches with eight hosts, whose rates and delays differ."""
    switches = chance.randint(1, 3)
    links = [{"a": f"h{index}", "b": f"s{chance.randrange(switches)}", **_some(chance)} for index in range(8)]
    # Every switch has a host, so that each is the end of a cable.
    for index in range(switches):
        links[index]["b"] = f"s{index}"
    links += [{"a": f"s{index}", "b": f"s{index + 1}", **_some(chance)} for index in range(switches - 1)]
    return {"topology": {"kind": "custom", "links": links}, "link": link(chance)}


def _some(chance: Random) -> Data:
    return link(chance) if chance.random() < 0.3 else {}


def nodes(chance: Random, gpus: int = 0) -> Data:
    """Return machines of several GPUs around one switch."""
    gpus = gpus or chance.choice((2, 4))
    node: Data = {
        "gpus": gpus,
        "scale_up": {"rate": chance.choice(("400Gbps", "1600Gbps")), "delay": chance.choice(("0us", "1us"))},
    }
    if chance.random() < 0.5:
        node["nics"] = chance.choice([count for count in (1, 2, 4) if gpus % count == 0])
    if chance.random() < 0.3:
        node["launch"] = "10us"
    return {"link": link(chance), "node": node}


def packets(chance: Random, cluster: Data) -> Data:
    """Return the cluster with a queue and a transport."""
    if chance.random() < 0.7:
        cluster["queue"] = dict(chance.choice(QUEUES))
    if chance.random() < 0.7:
        cluster["transport"] = dict(chance.choice(TRANSPORTS))
    if cluster.get("queue", {}).get("kind") == "ecn":
        cluster["transport"] = {"kind": chance.choice(("dctcp", "newreno+ecn"))}
    if chance.random() < 0.1:
        cluster["switch_buffer"] = {"capacity": "100pkt"}
    return cluster


def of(engine: str, jobs: Iterable[Data], cluster: Data, traffic: Data | None = None, **run: Any) -> Data:
    """Return a scenario; jobs are called j0, j1, …"""
    data: Data = {}
    if named := {f"j{index}": job for index, job in enumerate(jobs)}:
        data["job"] = named
    if traffic:
        data["traffic"] = traffic
        run.setdefault("duration", "20ms" if not named else "10s")
    data["cluster"] = cluster
    data["run"] = {"engine": engine, **run}
    return data


def flows(chance: Random, hosts: int, most: int, largest: int = 1_000_000) -> Data:
    """Return a tenant of a few flows between the first hosts."""
    rows = []
    for _ in range(chance.randint(1, most)):
        src, dst = chance.sample(range(hosts), 2)
        start = f"{chance.randint(0, 2000)}us"
        rows.append({"start": start, "src": f"h{src}", "dst": f"h{dst}", "bytes": f"{chance.randint(1, largest)}B"})
    return {"flows": rows}


def arrivals(chance: Random) -> Data:
    """Return a tenant of random flows."""
    cdf = [{"bytes": "1kB", "cdf": 0.0}, {"bytes": "10kB", "cdf": 0.6}, {"bytes": "200kB", "cdf": 1.0}]
    return {"cdf": cdf, "load": chance.choice((0.05, 0.3))}


def incast(chance: Random) -> Data:
    """Return a tenant of flows that meet at one host."""
    return {"incast": {"dst": "h0", "senders": chance.randint(2, 5), "bytes": "30kB", "every": "5ms"}}


def bursts(chance: Random) -> Data:
    """Return a tenant of hosts that send and pause."""
    src = [f"h{index}" for index in chance.sample(range(1, 6), chance.randint(1, 3))]
    table = {"src": src, "dst": "h0", "bytes": "50kB", "count": 3, "idle": "2ms", "together": chance.random() < 0.5}
    return {"bursts": table}


def mesh(chance: Random, parallel: Data, model: Data = CONFIG) -> Data:
    """Return a job that is divided over ranks."""
    ranks = 1
    for axis in ("tp", "cp", "fsdp", "dp", "pp"):
        ranks *= parallel.get(axis, 1)
    compute: Data = {"device": "A100", "seq": 256, "scaling_loss": 0}
    return {
        "model": dict(model),
        "workers": ranks,
        "iterations": chance.randint(1, 2),
        "parallel": parallel,
        "compute": compute,
    }


def sharded(chance: Random) -> Data:
    """Return a mesh along `fsdp`."""
    parallel: Data = {"fsdp": chance.choice((2, 4, 8))}
    if chance.random() < 0.4:
        parallel["zero"] = chance.choice((1, 2, 3))
    if chance.random() < 0.3:
        parallel["prefetch"] = chance.choice((0, 2))
    if chance.random() < 0.3:
        parallel["unit"] = 2
    return parallel


def tensors(chance: Random) -> Data:
    """Return a mesh along `tp`."""
    parallel: Data = {"tp": chance.choice((2, 4)), "dp": chance.choice((1, 2))}
    if chance.random() < 0.5:
        parallel["sequence"] = False
    elif chance.random() < 0.3:
        parallel["async_tp"] = True
    return parallel


def staged(chance: Random) -> Data:
    """Return a mesh along `pp`."""
    parallel: Data = {"pp": 2, "dp": chance.choice((1, 2)), "pipeline": chance.choice(("1f1b", "gpipe"))}
    if chance.random() < 0.3:
        parallel |= {"pipeline": "interleaved", "chunks": 2}
    return parallel


def experts(chance: Random) -> Data:
    """Return a mesh along `ep`."""
    return {"fsdp": 4, "ep": chance.choice((2, 4)), "expert_skew": chance.choice((1.0, 1.2))}


def contexts(chance: Random) -> Data:
    """Return a mesh along `cp`."""
    return {"cp": 2, "fsdp": chance.choice((1, 2)), "context": chance.choice(("ring", "all-gather"))}


def copies(chance: Random) -> Data:
    """Return a mesh along `dp` alone."""
    return {"dp": chance.choice((2, 4, 8))}


def mixed(chance: Random) -> Data:
    """Return a mesh along several axes."""
    return {"tp": 2, "fsdp": chance.choice((1, 2)), "dp": 2, "pp": chance.choice((1, 2))}


def servers(chance: Random, sizes: Iterable[int]) -> Data:
    """Return a job with parameter servers that sum one bucket after another."""
    ps: Data = {"servers": chance.randint(1, 2), "placement": chance.choice(("packed", "distributed", "separate"))}
    job = plain(chance, sizes, ("ps",))
    job["workers"] = chance.randint(3, 6)
    job["collective"] = {"kind": "ps", "ps": ps}
    return job


def pulled(chance: Random) -> Data:
    """Return a job whose workers begin an iteration by pulling every parameter."""
    ps: Data = {"servers": chance.randint(1, 2), "pull": "start", "sync": chance.choice(("sync", "async"))}
    return {
        "model": layered(chance),
        "workers": chance.randint(2, 4),
        "iterations": chance.randint(1, 3),
        "collective": {"kind": "ps", "ps": ps},
        "schedule": {"order": chance.choice(("priority", "tic", "tac"))},
    }


def uneven(chance: Random) -> Data:
    """Return a job whose workers do not compute equally long."""
    job = plain(chance)
    compute: Data = job.setdefault("compute", {})
    if chance.random() < 0.6:
        compute["noise"] = 0.05
    if chance.random() < 0.6:
        compute["straggler"] = {"factor": 1.5, "probability": chance.choice((0.3, 1.0))}
    return job


def exchanged(chance: Random, sizes: Iterable[int] = SIZES) -> Data:
    """Return a job of one of the collectives that sum nothing."""
    job = plain(chance, sizes, EXCHANGES)
    job["task"] = "exchange"
    return job


def pair(chance: Random, sizes: Iterable[int] = SIZES) -> list[Data]:
    """Return two jobs on hosts of their own, one of which may be in a lower band or start later."""
    jobs = [plain(chance, sizes, most=4) for _ in range(2)]
    if chance.random() < 0.5:
        jobs[1]["priority"] = "low"
    if chance.random() < 0.5:
        jobs[1]["start"] = _time(chance, 3000)
    return jobs


def staged_hosts(chance: Random) -> Data:
    """Return a star whose hosts add stages and a time to each message."""
    cluster = star(chance)
    cluster["host"] = {"message": chance.choice(("0us", "5us")), "stages": {"copy": "50Gbps", "receive": "80Gbps"}}
    return cluster


def preset(chance: Random) -> Data:
    """Return a cluster of the presets."""
    return {"preset": f"{chance.choice(PRESETS)}/2"}


SMALL = PACKET_SIZES
KINDS: dict[str, Callable[[Random], Data]] = {
    "star": lambda chance: of("fluid", [plain(chance)], star(chance)),
    "star of packets": lambda chance: of("packet", [plain(chance, SMALL, most=4)], packets(chance, star(chance))),
    "star of jobs": lambda chance: of("fluid", pair(chance), star(chance)),
    "star of jobs of packets": lambda chance: of("packet", pair(chance, SMALL), packets(chance, star(chance))),
    "leaf-spine": lambda chance: of("fluid", [plain(chance)], leaf_spine(chance)),
    "leaf-spine of jobs": lambda chance: of("fluid", pair(chance), leaf_spine(chance)),
    "leaf-spine of packets": lambda chance: of("packet", [plain(chance, SMALL)], packets(chance, leaf_spine(chance))),
    "clos2": lambda chance: of("fluid", [plain(chance)], clos(chance, "clos2")),
    "clos3 of packets": lambda chance: of("packet", [plain(chance, SMALL)], packets(chance, clos(chance, "clos3"))),
    "custom": lambda chance: of("fluid", [plain(chance)], custom(chance)),
    "custom of packets": lambda chance: of("packet", [plain(chance, SMALL)], packets(chance, custom(chance))),
    "nodes": lambda chance: of("fluid", [plain(chance, most=8)], nodes(chance)),
    "nodes of packets": lambda chance: of("packet", [plain(chance, SMALL)], packets(chance, nodes(chance))),
    "nodes of jobs": lambda chance: of("fluid", pair(chance), nodes(chance)),
    "preset": lambda chance: of("fluid", [plain(chance)], preset(chance)),
    "exchange": lambda chance: of("fluid", [exchanged(chance)], star(chance)),
    "exchange of nodes": lambda chance: of("fluid", [exchanged(chance)], nodes(chance)),
    "exchange of packets": lambda chance: of("packet", [exchanged(chance, SMALL)], packets(chance, star(chance))),
    "fsdp": lambda chance: of("fluid", [mesh(chance, sharded(chance))], star(chance)),
    "tp": lambda chance: of("fluid", [mesh(chance, tensors(chance))], star(chance)),
    "pp": lambda chance: of("fluid", [mesh(chance, staged(chance))], star(chance)),
    "ep": lambda chance: of("fluid", [mesh(chance, experts(chance), MIXTURE)], star(chance)),
    "cp": lambda chance: of("fluid", [mesh(chance, contexts(chance))], star(chance)),
    "dp": lambda chance: of("fluid", [mesh(chance, copies(chance))], star(chance)),
    "mesh": lambda chance: of("fluid", [mesh(chance, mixed(chance))], star(chance)),
    "fsdp of nodes": lambda chance: of("fluid", [mesh(chance, sharded(chance))], nodes(chance, 2)),
    "mesh of nodes": lambda chance: of("fluid", [mesh(chance, mixed(chance))], nodes(chance, 2)),
    "mesh of packets": lambda chance: of("packet", [mesh(chance, {"fsdp": 2})], star(chance)),
    "mesh and flows": lambda chance: of(
        "fluid", [mesh(chance, sharded(chance))], star(chance, 8), {"web": flows(chance, 8, 3)}
    ),
    "mesh and job": lambda chance: of("fluid", [mesh(chance, copies(chance)), plain(chance)], star(chance)),
    "servers": lambda chance: of("fluid", [servers(chance, SIZES)], star(chance)),
    "servers of packets": lambda chance: of("packet", [servers(chance, SMALL)], packets(chance, star(chance))),
    "pulled": lambda chance: of("fluid", [pulled(chance)], star(chance)),
    "uneven": lambda chance: of("fluid", [uneven(chance)], star(chance)),
    "host stages": lambda chance: of("fluid", [plain(chance)], staged_hosts(chance)),
    "job and flows": lambda chance: of("fluid", [plain(chance)], star(chance, 8), {"web": flows(chance, 8, 4)}),
    "job and flows of packets": lambda chance: of(
        "packet", [plain(chance, SMALL)], packets(chance, star(chance, 8)), {"web": flows(chance, 8, 3, 100_000)}
    ),
    "flows": lambda chance: of("fluid", [], custom(chance), {"web": flows(chance, 8, 8)}),
    "flows of packets": lambda chance: of(
        "packet", [], packets(chance, custom(chance)), {"web": flows(chance, 8, 5, 100_000)}
    ),
    "arrivals": lambda chance: of("fluid", [], star(chance, 6), {"web": arrivals(chance)}, duration="3ms"),
    "incast": lambda chance: of("packet", [], packets(chance, star(chance, 6)), {"web": incast(chance)}),
    "bursts": lambda chance: of("packet", [], packets(chance, star(chance, 6)), {"web": bursts(chance)}),
}
