"""Runs of scenarios that are changed: what their tables say, what a scenario has, and the changes themselves.

Times are whole picoseconds. `relations` and `rows` say which changes change nothing.
"""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

from attack.draws import Data
from gradtide import _core, units
from gradtide.errors import GradtideError
from gradtide.scenario import Scenario
from gradtide.studies.run import simulate

ROUNDING_PS = 20_000
"""A time is rounded up once, at the edge of the solver, by less than a picosecond; a drawn run has fewer events."""

Times = dict[str, int]


@dataclass(frozen=True)
class Ran:
    """What a run gave: times in picoseconds by name, and everything else.

    Attributes:
        starts: when iterations and flows began.
        lengths: how long iterations and flows took.
        output: tables of the core.
        spec: what the core was given.
    """

    starts: Times
    lengths: Times
    output: _core.RunOutput
    spec: dict[str, Any]


def rows_of(table: Any) -> list[dict[str, str]]:
    """Return the rows of a table as texts, which have all digits of a time."""
    return list(csv.DictReader(io.StringIO(table.to_csv())))


def picoseconds(text: str) -> int:
    """Return a time of a table, which has six decimals of a microsecond."""
    return int(text.replace(".", ""))


def ran(data: Data | Scenario, *, is_of_ranks: bool | None = None) -> Ran:
    """Run a scenario.

    Args:
        data: the scenario or its dict.
        is_of_ranks: whether every rank of a divided job is simulated; as gradtide decides, if None.
    """
    if isinstance(data, Scenario):
        return _ran(data, is_of_ranks)
    text = json.dumps(data)
    return _remembered(text) if is_of_ranks is None else _ran(_read(text), is_of_ranks)


@lru_cache(4)
def _read(text: str) -> Scenario:
    return Scenario.from_dict(json.loads(text))


@lru_cache(4)
def _remembered(text: str) -> Ran:
    """Run a scenario that was just run no second time: whether it is valid has been tried so."""
    return _ran(_read(text), None)


def _ran(scenario: Scenario, is_of_ranks: bool | None) -> Ran:
    spec = scenario.spec()
    if is_of_ranks is None:
        output = simulate(scenario, None).output
    else:
        spec["run"]["all_ranks"] = is_of_ranks
        output = _core.run(json.dumps(spec), None)
    starts, lengths = {}, {}
    for row in rows_of(output.iterations):
        name = f"{row['job']} iteration {row['iteration']}"
        starts[name], lengths[name] = picoseconds(row["start_us"]), picoseconds(row["time_us"])
    for row in rows_of(output.flows):
        name = f"{row['traffic']} flow {row['flow']}"
        starts[name] = picoseconds(row["start_us"])
        lengths[name] = picoseconds(row["received_us"]) if row["received_us"] else -1
    return Ran(starts, lengths, output, spec)


def apart(one: Times, other: Times, tolerance_ps: int = 0, only_common: bool = False) -> str:
    """Return what differs by more than the tolerance; nothing if that is nothing."""
    if not only_common and one.keys() != other.keys():
        return f"only one of them has {sorted(one.keys() ^ other.keys())[:4]}"
    wrong = [name for name in one if name in other and abs(one[name] - other[name]) > tolerance_ps]
    if not wrong:
        return ""
    worst = max(wrong, key=lambda name: abs(one[name] - other[name]))
    change = 100 * (other[worst] / one[worst] - 1) if one[worst] > 0 else float("inf")
    return f"{worst}: {one[worst] / 1e6} us, then {other[worst] / 1e6} us ({change:+.3g} %)"


def equal(one: Ran, other: Ran, tolerance_ps: int = 0, only_common: bool = False) -> str:
    """Return what differs in when things began or how long they took."""
    return apart(one.starts, other.starts, tolerance_ps, only_common) or apart(
        one.lengths, other.lengths, tolerance_ps, only_common
    )


def copied(data: Data) -> Data:
    """Return a copy that may be changed."""
    return dict(json.loads(json.dumps(data)))


def resolved(data: Data) -> Data:
    """Return the scenario with every default written."""
    return Scenario.from_dict(copied(data)).to_dict()


# what a scenario has


def jobs(data: Data) -> list[Data]:
    return list(data.get("job", {}).values())


def tenants(data: Data) -> list[Data]:
    return list(data.get("traffic", {}).values())


def engine(data: Data) -> str:
    return str(data["run"]["engine"])


def kind(data: Data) -> str:
    return str(data["cluster"].get("topology", {}).get("kind", "star"))


def is_parallel(job: Data) -> bool:
    return "parallel" in job


def is_plain_star(data: Data) -> bool:
    """Whether hosts are around one switch without GPUs below them, and the cluster is no preset."""
    return kind(data) == "star" and "node" not in data["cluster"] and "preset" not in data["cluster"]


def is_random(data: Data) -> bool:
    """Whether the seed of a scenario decides anything; also of one that cannot be read."""
    try:
        return bool(_read(json.dumps(data)).drawn)
    except GradtideError:
        return True


def changes_by_load(data: Data) -> bool:
    """Whether what is sent depends on what was measured before."""
    return any(job.get("schedule", {}).get("fusion") == "adaptive" for job in jobs(data))


# changes of a scenario


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield every key of a scenario that holds no table, with its path."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    else:
        yield path, data


def has(data: Any, path: tuple[Any, ...]) -> bool:
    """Whether a scenario says what a key is, as a table or otherwise."""
    for key in path:
        if not isinstance(data, dict):
            return True
        if key not in data:
            return False
        data = data[key]
    return True


def take(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def put(data: Data, path: tuple[Any, ...], value: Any) -> None:
    """Set a key and make the tables that it is in."""
    for key in path[:-1]:
        data = data.setdefault(key, {})
    data[path[-1]] = value


_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(ps|ns|us|ms|s|B|kB|MB|GB|KiB|MiB|GiB|bps|kbps|Mbps|Gbps|Tbps|GBps)")
_SMALLER = {"ns": "ps", "us": "ns", "ms": "us", "s": "ms", "kB": "B", "MB": "kB", "GB": "MB", "kbps": "bps"}
_SMALLER |= {"Mbps": "kbps", "Gbps": "Mbps", "Tbps": "Gbps"}


def respelled(value: Any) -> Any:
    """Return a scenario with every quantity in a smaller unit."""
    if isinstance(value, dict):
        return {key: respelled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [respelled(inner) for inner in value]
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if not found or found[2] not in _SMALLER or "." in found[1]:
        return value
    return f"{int(found[1]) * 1000}{_SMALLER[found[2]]}"


def shuffled(value: Any, chance: Random, depth: int = 0, parent: str = "") -> Any:
    """Return a scenario whose tables have their keys in another order; jobs and tenants keep theirs."""
    if isinstance(value, dict):
        keys = list(value)
        if parent not in ("job", "traffic"):
            chance.shuffle(keys)
        return {key: shuffled(value[key], chance, depth + 1, key if depth == 0 else "") for key in keys}
    return [shuffled(inner, chance, depth + 1) for inner in value] if isinstance(value, list) else value


def draws_hosts(data: Data) -> bool:
    """Whether hosts are chosen among all that there are."""
    text = json.dumps(data)
    return any(word in text for word in ('"load"', '"arrivals"', '"placement": "random"', '"placement": "spread"'))


def groups_by_leaf(data: Data) -> bool:
    """Whether a collective has groups of the hosts of an edge switch."""
    kinds = {job.get("collective", {}).get("kind") for job in jobs(data)}
    return bool(kinds & {"hierarchical", "butterfly_layered"})


def is_pulled(data: Data) -> bool:
    return '"pull"' in json.dumps(data)


def is_in_parts(data: Data) -> bool:
    """Whether parts of a chunk go through a collective one behind the other, where one byte decides which is first."""
    return any(job.get("schedule", {}).get("depth", 1) != 1 for job in jobs(data))


def is_only_layers(data: Data) -> bool:
    """Whether all compute times are the scenario's own."""
    return all("layers" in job["model"] for job in jobs(data)) and "cdf" not in json.dumps(data)


def is_behind_a_barrier(data: Data) -> bool:
    """Whether jobs send buckets as gradients become ready and wait for all of them."""
    return all(
        not is_parallel(job)
        and job.get("schedule", {}).get("order", "fifo") == "fifo"
        and job.get("schedule", {}).get("barrier", True)
        and "credit" not in job.get("schedule", {})
        and not is_pulled(data)
        for job in jobs(data)
    )


def is_symmetric(data: Data) -> bool:
    """Whether every rank sends and receives as much as any other."""
    kinds = ("ring", "all_gather", "reduce_scatter", "all_to_all", "shuffle")
    return all(not is_parallel(job) and job.get("collective", {}).get("kind", "ring") in kinds for job in jobs(data))


def has_bands(data: Data) -> bool:
    """Whether the network tells low from high."""
    one_band = ("fifo", "ecn", "red", "pcn")
    return "priority" not in jobs(data)[0] and data["cluster"].get("queue", {}).get("kind") not in one_band


def with_hosts(data: Data, more: int) -> Data:
    """Return a star with its number of hosts written, and so many more."""
    base = copied(data)
    hosts = Scenario.from_dict(copied(data)).hosts
    base["cluster"]["topology"] = {**base["cluster"].get("topology", {}), "kind": "star", "hosts": hosts + more}
    return base


def named_hosts(data: Data) -> Data:
    """Return a scenario in which each job names its hosts, servers included."""
    base = copied(data)
    for job, spec in zip(jobs(base), Scenario.from_dict(copied(data)).spec()["jobs"], strict=True):
        job["hosts"] = [f"h{host}" for host in spec["hosts"]]
        job.pop("workers", None)
        job.pop("placement", None)
    return base


def moved(data: Data, places: list[int]) -> Data:
    """Return a scenario in which host i is host `places[i]`."""

    def other(host: str) -> str:
        return f"h{places[int(host[1:])]}"

    more = copied(data)
    for job in jobs(more):
        job["hosts"] = [other(host) for host in job["hosts"]]
    for tenant in tenants(more):
        for flow in tenant.get("flows", []):
            flow["src"], flow["dst"] = other(flow["src"]), other(flow["dst"])
    return more


def renamed(one: Ran, names: dict[str, str]) -> Ran:
    """Return a run whose jobs have other names."""

    def back(times: Times) -> Times:
        words = {name: name.split(" ", 1) for name in times}
        return {f"{names.get(words[name][0], words[name][0])} {words[name][1]}": times[name] for name in times}

    return Ran(back(one.starts), back(one.lengths), one.output, one.spec)


_SIZES = ("parameters", "bytes", "fusion", "first_fusion", "chunk")
_RATES = ("rate", "reduction_rate", "copy", "serialise", "receive")
_TIMES = (
    *("forward", "backward", "update", "delay", "overhead", "sync", "start", "launch", "message", "duration"),
    *("host_latency", "every", "idle", "setup"),
)


def scaled(data: Data, bytes_by: int = 1, rates_by: int = 1, times_by: int = 1) -> Data:
    """Return a scenario with all defaults written and its sizes, rates or times multiplied."""

    def times(text: str, key: str) -> str:
        if key in _SIZES and bytes_by > 1 and text != "adaptive":
            return f"{units.parse_bytes(text) * bytes_by}B"
        if key in _RATES and rates_by > 1:
            return f"{units.parse_rate(text) * rates_by}bps"
        if key in _TIMES and times_by > 1 and not text.isalpha():
            return f"{units.parse_time(text) * times_by}ps"
        return text

    def walk(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {inner: walk(value[inner], inner) for inner in value}
        if isinstance(value, list):
            return [walk(inner) for inner in value]
        return times(value, key) if isinstance(value, str) else value

    return dict(walk(resolved(data)))


def byte_tolerance_ps(one: Ran) -> int:
    """Return how long the bytes take by which parts of buffers may differ: two for each message of a chain.

    A collective of n ranks has at most 2n steps, and each step one message after another for each part of a chunk.
    """
    parts = sum(int(row["chunks"]) for row in rows_of(one.output.transfers))
    depth = max(
        (job["collective"]["depth"] if isinstance(job["collective"]["depth"], int) else 8 for job in one.spec["jobs"]),
        default=1,
    )
    steps = parts * depth * 2 * max((len(job["hosts"]) for job in one.spec["jobs"]), default=1)
    rates = [int(row["rate_bps"]) for row in rows_of(one.output.links)]
    return steps * 2 * 8 * 10**12 // min(rates) + ROUNDING_PS
