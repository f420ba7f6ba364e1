"""From the keys of background traffic to where its flows come from: presets, CDF files, lists, incasts.

The flows themselves are drawn or held by `gradtide.traffic`; files are opened here.
"""

import difflib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from gradtide import traffic, units
from gradtide.errors import Fault, ScenarioError
from gradtide.scenario.keys.traffic import Bursts as BurstsTable
from gradtide.scenario.keys.traffic import CdfPoint, ListedFlow, TrafficTable
from gradtide.scenario.keys.traffic import Incast as IncastTable
from gradtide.scenario.source import Failure, Loc, Source, decoded, read_data, read_text
from gradtide.traffic import BackgroundFlows, Bursts, FlowList, Incast, Poisson, Sizes
from gradtide.units import PPM

MAX_LIST_BYTES = 300_000_000
"""Size of a list of flows; calibration, that of the largest number of flows."""

MAX_HEAD = 10_000
"""Characters of a list of flows from which its format is recognised."""

MAX_WRITTEN_FLOWS = 100
"""Most flows of a list that a resolved scenario contains. For a longer list it has the path and the digest."""


@dataclass(frozen=True)
class Origin:
    """Where the flows of a tenant come from.

    Attributes:
        name: key of the tenant in the scenario.
        key: key of the table that decides the number of flows.
        flows: draws them.
        replaced: keys that `written` takes the place of.
        written: what the resolved scenario says instead, so that it needs no other small file.
    """

    name: str
    key: str
    flows: "Poisson | FlowList | Incast | Bursts"
    replaced: tuple[str, ...] = ()
    written: dict[str, Any] = field(default_factory=dict)

    @property
    def is_random(self) -> bool:
        """Whether the flows are drawn."""
        return isinstance(self.flows, Poisson)


def read_origin(
    name: str,
    table: TrafficTable,
    *,
    source: Source,
    base_dir: Path,
    host_count: int,
    rate_bps: Fraction,
    band: int,
    band_count: int,
    until_ps: int,
    run_seed: int,
    is_first: bool,
) -> Origin:
    """Return where the flows of a tenant come from.

    Args:
        name: key of the tenant in the scenario.
        table: its keys, which do not contradict each other.
        source: where the scenario came from.
        base_dir: directory that relative paths start from.
        host_count: hosts of the cluster, at least 2.
        rate_bps: nominal rate of a host's link.
        band: band of flows that have none of their own.
        band_count: bands of the queue.
        until_ps: flows start before this.
        run_seed: seed of the run.
        is_first: whether no tenant before it draws its flows.

    Raises:
        ScenarioError: with every fault of a file or list, or if there are too many flows.
    """
    loc: Loc = ("traffic", name)
    if table.replay is not None:
        fail = Failure(source, (*loc, "replay"), table.replay)
        return _replay(name, table, fail, base_dir, (host_count, band_count, band, until_ps))
    if table.flows is not None:
        listed = _listed(name, table.flows, source, loc, (host_count, band_count, band))
        return _heard(Origin(name, "flows", FlowList(listed, True, until_ps)), Failure(source, (*loc, "flows")))
    if table.incast is not None:
        incast = _incast(name, table.incast, source, loc, host_count, band, until_ps)
        return _limited(Origin(name, "incast", incast), source, loc)
    if table.bursts is not None:
        bursts = _bursts(name, table.bursts, source, loc, host_count, band, until_ps)
        return _limited(Origin(name, "bursts", bursts), source, loc)
    written: dict[str, Any] = {}
    if table.cdf is not None:
        sizes = _points(table.cdf, source, loc)
    else:
        sizes, written = _sizes(table.sizes or "", Failure(source, (*loc, "sizes"), table.sizes), base_dir)
    key = "arrivals" if table.arrivals is not None else "load"
    if table.arrivals is not None:
        flows_per_s = table.arrivals.rate * (host_count if table.arrivals.per == "host" else 1)
    else:
        flows_per_s = Fraction(table.load_ppm or 0, PPM) * rate_bps * host_count / (8 * sizes.mean_bytes)
    poisson = Poisson(
        name=name,
        sizes=sizes,
        flows_per_s=flows_per_s,
        host_count=host_count,
        until_ps=until_ps,
        root_seed=traffic.root_seed(run_seed, name, is_first=is_first),
        band=band,
        on_ps=0 if table.burst is None else table.burst.on_ps,
        off_ps=0 if table.burst is None else table.burst.off_ps,
    )
    return _limited(Origin(name, key, poisson, ("sizes",) if written else (), written), source, loc)


def _limited(origin: Origin, source: Source, loc: Loc) -> Origin:
    count = origin.flows.expected_count
    if count > traffic.MAX_FLOWS:
        raise ScenarioError([traffic.too_many(count, Failure(source, (*loc, origin.key)))])
    return origin


def _sizes(value: str, fail: Failure, base_dir: Path) -> tuple[Sizes, dict[str, Any]]:
    """Return the distribution that a preset or a file holds, and what to write in place of the file."""
    from gradtide import presets

    names = presets.flow_names()
    if value in names:
        return traffic.read_sizes(presets.flow_text(value), value), {}
    path = base_dir / value
    if not (path.suffix or "/" in value or _is_file(path)):
        near = difflib.get_close_matches(value.lower(), names, 1, 0.5)
        hint = f'did you mean "{near[0]}"?' if near else f"presets are {', '.join(names)}; or name a CDF file"
        raise ScenarioError([fail("GT060", f'unknown flow sizes "{value}"', hint)])
    sizes = traffic.read_sizes(read_text(path, value, fail), value)
    points = zip(sizes.bytes, sizes.cdf, strict=True)
    return sizes, {"cdf": [{"bytes": units.format_bytes(size), "cdf": share} for size, share in points]}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _points(points: Sequence[CdfPoint], source: Source, loc: Loc) -> Sizes:
    faults: list[Fault] = []

    def add(index: int, key: str, msg: str, hint: str) -> None:
        if len(faults) < traffic.MAX_FAULTS_OF_A_FILE:
            faults.append(source.fault("GT061", (*loc, "cdf", index, key), msg, hint))

    if not points:
        raise ScenarioError([source.fault("GT061", (*loc, "cdf"), "the list has no points", "write at least one")])
    if len(points) > traffic.MAX_POINTS:
        msg, hint = f"{len(points):,} points are too many", f"at most {traffic.MAX_POINTS:,}"
        raise ScenarioError([source.fault("GT050", (*loc, "cdf"), msg, hint)])
    for index, point in enumerate(points):
        if point.bytes > traffic.MAX_FLOW_BYTES:
            add(index, "bytes", "the flow is too large", f"at most {units.format_bytes(traffic.MAX_FLOW_BYTES)}")
        if index and point.bytes < points[index - 1].bytes:
            add(index, "bytes", "the sizes fall", "sort the points by size")
        if index and point.cdf < points[index - 1].cdf:
            add(index, "cdf", "the shares fall", "each point holds the share of flows of at most that size")
    last = len(points) - 1
    if points[last].cdf != 1:
        add(last, "cdf", f"the last share is {points[last].cdf:g}", "it is 1: all flows are of at most that size")
    if points[last].bytes == 0:
        add(last, "bytes", "all flows have 0 bytes", "the largest size is at least 1")
    if faults:
        raise ScenarioError(faults)
    return Sizes(tuple(point.bytes for point in points), tuple(point.cdf for point in points))


def _replay(name: str, table: TrafficTable, fail: Failure, base_dir: Path, bounds: tuple[int, int, int, int]) -> Origin:
    from gradtide import formats

    host_count, band_count, band, until_ps = bounds
    value = str(table.replay)
    path = base_dir / value
    data = read_data(path, value, fail, MAX_LIST_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    if table.replay_sha256 not in (None, digest):
        where = (*fail.loc[:-1], "replay_sha256")
        hint = "restore the file, or delete `replay_sha256` to take it as it is"
        msg = f"{value} has another SHA-256"
        raise ScenarioError([fail.source.fault("GT064", where, msg, hint, table.replay_sha256)])
    text = decoded(data, value, fail)
    form = formats.form_of(text[:MAX_HEAD].split("\n"))
    if form in ("htsim-cm", "hpcc-flow"):
        flows, has_bands = formats.flows.read_flows(text, value, form, name, host_count, band), False
    else:
        flows, has_bands = traffic.read_flows(text, value, name, host_count, band_count, band)
    listed = FlowList(flows, has_bands, until_ps)
    written: dict[str, Any]
    if len(flows) > MAX_WRITTEN_FLOWS:
        written = {"replay": os.path.abspath(path), "replay_sha256": digest}
    else:
        written = {"flows": _rows(flows, has_bands=has_bands)}
    return _heard(Origin(name, "replay", listed, ("replay", "replay_sha256"), written), fail)


def _heard(origin: Origin, fail: Failure) -> Origin:
    """Refuse a list if none of its flows starts within the run."""
    listed = origin.flows
    if isinstance(listed, FlowList) and listed.expected_count == 0:
        first, end = units.format_time(listed.flows.start_ps[0]), units.format_time(listed.until_ps)
        hint = "lengthen run.duration; are the times in the unit you meant?"
        raise ScenarioError([fail("GT065", f"the first flow starts at {first}, the run ends at {end}", hint)])
    return origin


def _rows(flows: BackgroundFlows, *, has_bands: bool) -> list[dict[str, Any]]:
    rows = []
    for index in range(len(flows)):
        row: dict[str, Any] = {
            "start": units.format_time(flows.start_ps[index]),
            "src": f"h{flows.src[index]}",
            "dst": f"h{flows.dst[index]}",
            "bytes": units.format_bytes(flows.bytes[index]),
        }
        rows.append(row | {"band": flows.band[index]} if has_bands else row)
    return rows


def _listed(
    name: str, rows: Sequence[ListedFlow], source: Source, loc: Loc, bounds: tuple[int, int, int]
) -> BackgroundFlows:
    host_count, band_count, band = bounds
    faults: list[Fault] = []

    def add(code: str, index: int, key: str, msg: str, hint: str, value: Any) -> None:
        if len(faults) < traffic.MAX_FAULTS_OF_A_FILE:
            faults.append(source.fault(code, (*loc, "flows", index, key), msg, hint, value))

    if not rows:
        raise ScenarioError([source.fault("GT063", (*loc, "flows"), "the list has no flows", "write at least one")])
    ends: list[tuple[int, int]] = []
    for index, row in enumerate(rows):
        src, dst = traffic.host_index(row.src, host_count), traffic.host_index(row.dst, host_count)
        for key, end in (("src", src), ("dst", dst)):
            if end is None:
                value = getattr(row, key)
                add("GT040", index, key, f'unknown host "{value[:80]}"', f"hosts are h0 to h{host_count - 1}", value)
        if src is not None and src == dst:
            add("GT063", index, "dst", f"the flow goes from h{src} to itself", "name another host", row.dst)
        if row.bytes > traffic.MAX_FLOW_BYTES:
            hint = f"at most {units.format_bytes(traffic.MAX_FLOW_BYTES)}"
            add("GT014", index, "bytes", "the flow is too large", hint, row.bytes)
        if row.band is not None and row.band >= band_count:
            hint = f"the queue has bands 0 to {band_count - 1}"
            add("GT014", index, "band", f"there is no band {row.band}", hint, row.band)
        ends.append((src or 0, dst or 0))
    if faults:
        raise ScenarioError(faults)
    return traffic.background_flows(
        name,
        [row.start_ps for row in rows],
        [src for src, _ in ends],
        [dst for _, dst in ends],
        [row.bytes for row in rows],
        [band if row.band is None else row.band for row in rows],
    )


def _incast(
    name: str, table: IncastTable, source: Source, loc: Loc, host_count: int, band: int, until_ps: int
) -> Incast:
    at = (*loc, "incast")
    dst = traffic.host_index(table.dst, host_count)
    faults: list[Fault] = []
    if dst is None:
        msg, hint = f'unknown host "{table.dst[:80]}"', f"hosts are h0 to h{host_count - 1}"
        faults.append(source.fault("GT040", (*at, "dst"), msg, hint, table.dst))
    senders = host_count - 1 if table.senders is None else table.senders
    if senders > host_count - 1:
        msg, hint = f"{senders:,} senders beside the receiver", f"the cluster has {host_count - 1} other hosts"
        faults.append(source.fault("GT042", (*at, "senders"), msg, hint, senders))
    faults += _repeated_faults("flow", "incast", table, source, at, until_ps)
    if faults:
        raise ScenarioError(faults)
    others = tuple(host for host in range(host_count) if host != dst)[:senders]
    return Incast(name, others, dst or 0, table.bytes, table.every_ps, table.start_ps, until_ps, band)


def _repeated_faults(
    flow: str, event: str, table: IncastTable | BurstsTable, source: Source, at: Loc, until_ps: int
) -> Iterator[Fault]:
    """Yield the faults in size and start of repeated flows."""
    if table.bytes > traffic.MAX_FLOW_BYTES:
        hint = f"at most {units.format_bytes(traffic.MAX_FLOW_BYTES)}"
        yield source.fault("GT014", (*at, "bytes"), f"the {flow} is too large", hint, table.bytes)
    if table.start_ps >= until_ps:
        starts, ends = units.format_time(table.start_ps), units.format_time(until_ps)
        msg = f"the first {event} is at {starts}, the run ends at {ends}"
        yield source.fault("GT065", (*at, "start"), msg, "lengthen run.duration", table.start_ps)


def _bursts(
    name: str, table: BurstsTable, source: Source, loc: Loc, host_count: int, band: int, until_ps: int
) -> Bursts:
    at = (*loc, "bursts")
    faults: list[Fault] = []
    dst = traffic.host_index(table.dst, host_count)
    hosts = [traffic.host_index(src, host_count) for src in table.src]
    known = f"hosts are h0 to h{host_count - 1}"
    if dst is None:
        faults.append(source.fault("GT040", (*at, "dst"), f'unknown host "{table.dst[:80]}"', known, table.dst))
    if not hosts:
        faults.append(source.fault("GT063", (*at, "src"), "no host sends", "write at least one"))
    for index, (host, text) in enumerate(zip(hosts, table.src, strict=True)):
        if len(faults) >= traffic.MAX_FAULTS_OF_A_FILE:
            break
        where = (*at, "src", index)
        if host is None:
            faults.append(source.fault("GT040", where, f'unknown host "{text[:80]}"', known, text))
        elif host == dst:
            msg = f"the bursts go from h{host} to itself"
            faults.append(source.fault("GT063", where, msg, "name another host", text))
        elif host in hosts[:index]:
            msg, hint = f"h{host} is named twice", "a host sends one burst at a time; for more, write another table"
            faults.append(source.fault("GT063", where, msg, hint, text))
    faults += _repeated_faults("burst", "burst", table, source, at, until_ps)
    if table.start_ps < until_ps <= table.start_ps + table.setup_ps:
        first, ends = units.format_time(table.start_ps + table.setup_ps), units.format_time(until_ps)
        msg = f"the first byte of a burst is sent at {first}, the run ends at {ends}"
        faults.append(source.fault("GT065", (*at, "setup"), msg, "lengthen run.duration", table.setup_ps))
    if faults:
        raise ScenarioError(faults)
    senders = tuple(host or 0 for host in hosts)
    return Bursts(
        name,
        senders,
        dst or 0,
        table.bytes,
        table.count,
        table.idle_ps,
        table.together,
        table.setup_ps,
        table.start_ps,
        band,
    )
