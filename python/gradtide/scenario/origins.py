"""Reads the background flows of each tenant: a flow-size distribution, a list of flows, an incast or bursts.

Files are opened here; the classes of `gradtide.traffic` draw random flows and store lists of flows.
"""

import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from gradtide import inputs, traffic, units
from gradtide.errors import Fault, ScenarioError, did_you_mean
from gradtide.recognise import HEAD_BYTES, expecting
from gradtide.scenario.keys.traffic import Bursts as BurstsTable
from gradtide.scenario.keys.traffic import CdfPoint, ListedFlow, TrafficTable
from gradtide.scenario.keys.traffic import Incast as IncastTable
from gradtide.scenario.source import Failure, Loc, Source, decoded, read_data, read_text
from gradtide.traffic import BackgroundFlows, Bursts, FlowList, Incast, Poisson, Sizes
from gradtide.units import PPM

MAX_LIST_BYTES = 300_000_000
"""Maximum size of a file with a list of flows. It suffices for a list with the maximum number of flows."""

MAX_WRITTEN_FLOWS = 100
"""Longest list of flows that a resolved scenario contains. Of a longer list, it contains the file's path and digest."""


@dataclass(frozen=True)
class Origin:
    """The flows of a tenant, and how the resolved scenario describes them.

    Attributes:
        key: key of the tenant's table that determines the number of flows.
        flows: the flows; random flows are drawn only by `flows.draw()`.
        replaced: keys that name a file. In the resolved scenario, `written` replaces them.
        written: keys with the content of a small file, or with the absolute path and the digest of a large file.
        warnings: warnings about the flows, one sentence each.
    """

    name: str
    key: str
    flows: "Poisson | FlowList | Incast | Bursts"
    replaced: tuple[str, ...] = ()
    written: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def is_random(self) -> bool:
        """Whether the flows are drawn."""
        return isinstance(self.flows, Poisson)

    def groups(self, host_count: int) -> Iterable[Collection[int]]:
        """Return the groups of hosts that communicate: the two ends of each flow, or all hosts for random flows."""
        between = self.flows.between()
        if between is None:
            return [range(host_count)]
        return {(min(src, dst), max(src, dst)) for src, dst, _ in between}


@dataclass
class Tenant:
    """A tenant with background flows, and everything on which its flows depend.

    Attributes:
        table: keys of the tenant, already checked against one another.
        rate_bps: mean rate of the hosts' links, to which `load` refers.
        band: priority band of flows whose list gives none.
        until_ps: end of the run; flows start before this time.
        is_first: whether this is the first tenant with random flows, whose seed is derived in another way.
    """

    name: str
    table: TrafficTable
    source: Source
    base_dir: Path
    host_count: int
    rate_bps: Fraction
    band: int
    band_count: int
    until_ps: int
    run_seed: int
    is_first: bool
    faults: list[Fault] = field(default_factory=list)

    def origin(self) -> Origin:
        """Return the tenant's flows; raise a `ScenarioError` if a file or list has faults, or for too many flows."""
        table = self.table
        if table.replay is not None:
            return self._replay(table.replay)
        if table.flows is not None:
            flows = FlowList(self._listed(table.flows), True, self.until_ps)
            return _heard(Origin(self.name, "flows", flows), self._fail("flows"))
        if table.incast is not None:
            origin = Origin(self.name, "incast", self._incast(table.incast))
        elif table.bursts is not None:
            origin = Origin(self.name, "bursts", self._bursts(table.bursts))
        else:
            origin = self._poisson()
        count = origin.flows.expected_count
        if count > traffic.MAX_FLOWS:
            raise ScenarioError([traffic.too_many(count, self._fail(origin.key))])
        return origin

    def _fail(self, key: str, value: object = None) -> Failure:
        return Failure(self.source, ("traffic", self.name, key), value)

    def _add(self, code: str, loc: Loc, msg: str, hint: str, value: object = None) -> None:
        if len(self.faults) < traffic.MAX_FAULTS_OF_A_FILE:
            self.faults.append(self.source.fault(code, ("traffic", self.name, *loc), msg, hint, value))

    def _raise_faults(self) -> None:
        if self.faults:
            raise ScenarioError(self.faults)

    def _host(self, text: str, loc: Loc) -> int | None:
        host = traffic.host_index(text, self.host_count)
        if host is None:
            self._add("GT040", loc, f'unknown host "{text[:80]}"', f"hosts are h0 to h{self.host_count - 1}", text)
        return host

    def _poisson(self) -> Origin:
        table = self.table
        written: dict[str, Any] = {}
        if table.cdf is not None:
            sizes = self._points(table.cdf)
        else:
            sizes, written = _sizes(table.sizes or "", self._fail("sizes", table.sizes), self.base_dir)
        if table.arrivals is not None:
            flows_per_s = table.arrivals.rate * (self.host_count if table.arrivals.per == "host" else 1)
        else:
            load = Fraction(table.load_ppm or 0, PPM)
            flows_per_s = load * self.rate_bps * self.host_count / (8 * sizes.mean_bytes)
        poisson = Poisson(
            name=self.name,
            sizes=sizes,
            flows_per_s=flows_per_s,
            host_count=self.host_count,
            until_ps=self.until_ps,
            root_seed=traffic.root_seed(self.run_seed, self.name, is_first=self.is_first),
            band=self.band,
            on_ps=0 if table.burst is None else table.burst.on_ps,
            off_ps=0 if table.burst is None else table.burst.off_ps,
        )
        key = "arrivals" if table.arrivals is not None else "load"
        return Origin(self.name, key, poisson, ("sizes",) if written else (), written)

    def _points(self, points: Sequence[CdfPoint]) -> Sizes:
        def add(index: int, key: str, msg: str, hint: str) -> None:
            self._add("GT061", ("cdf", index, key), msg, hint)

        if not points:
            raise ScenarioError([self._fail("cdf")("GT061", "the list has no points", "write at least one")])
        if len(points) > traffic.MAX_POINTS:
            msg, hint = f"{len(points):,} points are too many", f"at most {traffic.MAX_POINTS:,}"
            raise ScenarioError([self._fail("cdf")("GT050", msg, hint)])
        for index, point in enumerate(points):
            if point.bytes > traffic.MAX_FLOW_BYTES:
                add(index, "bytes", "the flow is too large", f"at most {units.format_bytes(traffic.MAX_FLOW_BYTES)}")
            if index and point.bytes < points[index - 1].bytes:
                add(index, "bytes", "the sizes fall", "sort the points by size")
            if index and point.cdf < points[index - 1].cdf:
                add(index, "cdf", "the shares fall", "each point has the share of flows of at most its size")
        last = len(points) - 1
        if points[last].cdf != 1:
            add(last, "cdf", f"the last share is {points[last].cdf:g}", "it is 1: all flows are of at most that size")
        sizes = Sizes(tuple(point.bytes for point in points), tuple(point.cdf for point in points))
        if sizes.mean_bytes == 0:
            add(last, "bytes", *traffic.NO_BYTES)
        self._raise_faults()
        return sizes

    def _replay(self, value: str) -> Origin:
        from gradtide import formats

        fail, path = self._fail("replay", value), self.base_dir / value
        data = read_data(path, value, fail, MAX_LIST_BYTES)
        digest = hashlib.sha256(data).hexdigest()
        if self.table.replay_sha256 not in (None, digest):
            hint = "restore the file, or delete `replay_sha256` to use the file unchanged"
            other = self._fail("replay_sha256", self.table.replay_sha256)
            raise ScenarioError([other("GT064", f"{value} has another SHA-256", hint)])
        text = decoded(data, value, fail)
        form, unit = formats.form_of(text), self.table.replay_start_unit
        if unit is not None and form != "htsim-cm":
            hint = "it is for a connection matrix of htsim; leave it out"
            msg = f"`replay_start_unit` has no effect with {value}"
            raise ScenarioError([self._fail("replay_start_unit", unit)("GT015", msg, hint)])
        nodes = formats.flows.nodes_of(text) if form == "htsim-cm" else None
        if nodes is not None and nodes > self.host_count:
            msg = f"{value} has {nodes:,} nodes, and the cluster {self.host_count:,} hosts"
            raise ScenarioError([fail("GT042", msg, f"give the cluster {nodes:,} hosts")])
        with expecting(text, value, "a list of flows", "flows", "htsim-cm", "hpcc-flow"):
            if form in ("htsim-cm", "hpcc-flow"):
                has_bands = False
                flows = formats.flows.read_flows(text, value, form, self.name, self.host_count, self.band, unit)
            else:
                bounds = self.host_count, self.band_count, self.band
                flows, has_bands = traffic.read_flows(text, value, self.name, *bounds)
        written: dict[str, Any] = {"replay": os.path.abspath(path), "replay_sha256": digest}
        if len(flows) <= MAX_WRITTEN_FLOWS:
            written = {"flows": _rows(flows, has_bands=has_bands)}
        elif unit is not None:
            written["replay_start_unit"] = unit
        listed = FlowList(flows, has_bands, self.until_ps)
        keys = ("replay", "replay_sha256", "replay_start_unit")
        warnings: tuple[str, ...] = ()
        if nodes is not None and nodes < self.host_count:
            warnings = (f"{value} has {nodes:,} nodes, and the cluster {self.host_count:,} hosts",)
        return _heard(Origin(self.name, "replay", listed, keys, written, warnings), fail)

    def _listed(self, rows: Sequence[ListedFlow]) -> BackgroundFlows:
        if not rows:
            raise ScenarioError([self._fail("flows")("GT063", "the list has no flows", "write at least one")])
        ends: list[tuple[int, int]] = []
        for index, row in enumerate(rows):
            loc = ("flows", index)
            src, dst = self._host(row.src, (*loc, "src")), self._host(row.dst, (*loc, "dst"))
            if src is not None and src == dst:
                msg = f"the flow goes from h{src} to itself"
                self._add("GT063", (*loc, "dst"), msg, "name another host", row.dst)
            self._check_bytes("flow", row.bytes, loc)
            if row.band is not None and row.band >= self.band_count:
                hint = f"the queue has bands 0 to {self.band_count - 1}"
                self._add("GT014", (*loc, "band"), f"there is no band {row.band}", hint, row.band)
            ends.append((src or 0, dst or 0))
        self._raise_faults()
        return traffic.background_flows(
            self.name,
            [row.start_ps for row in rows],
            [src for src, _ in ends],
            [dst for _, dst in ends],
            [row.bytes for row in rows],
            [self.band if row.band is None else row.band for row in rows],
        )

    def _check_bytes(self, what: str, size_bytes: int, loc: Loc) -> None:
        if size_bytes > traffic.MAX_FLOW_BYTES:
            hint = f"at most {units.format_bytes(traffic.MAX_FLOW_BYTES)}"
            self._add("GT014", (*loc, "bytes"), f"the {what} is too large", hint, size_bytes)

    def _check_start(self, what: str, start_ps: int, loc: Loc) -> None:
        if start_ps >= self.until_ps:
            starts, ends = units.format_time(start_ps), units.format_time(self.until_ps)
            msg = f"the first {what} is at {starts}, the run ends at {ends}"
            self._add("GT065", (*loc, "start"), msg, "lengthen run.duration", start_ps)

    def _incast(self, table: IncastTable) -> Incast:
        dst = self._host(table.dst, ("incast", "dst"))
        senders = self.host_count - 1 if table.senders is None else table.senders
        if senders > self.host_count - 1:
            msg, hint = f"{senders:,} senders beside the receiver", f"the cluster has {self.host_count - 1} other hosts"
            self._add("GT042", ("incast", "senders"), msg, hint, senders)
        self._check_bytes("flow", table.bytes, ("incast",))
        self._check_start("incast", table.start_ps, ("incast",))
        self._raise_faults()
        others = tuple(host for host in range(self.host_count) if host != dst)[:senders]
        times = table.every_ps, table.start_ps, self.until_ps
        return Incast(self.name, others, dst or 0, table.bytes, *times, self.band)

    def _bursts(self, table: BurstsTable) -> Bursts:
        dst = self._host(table.dst, ("bursts", "dst"))
        if not table.src:
            self._add("GT063", ("bursts", "src"), "no host sends", "write at least one")
        hosts: list[int | None] = []
        for index, text in enumerate(table.src):
            loc = ("bursts", "src", index)
            host = self._host(text, loc)
            if host is not None and host == dst:
                self._add("GT063", loc, f"the bursts go from h{host} to itself", "name another host", text)
            elif host is not None and host in hosts:
                hint = "a host sends one burst at a time; for more, write another table"
                self._add("GT063", loc, f"h{host} is named twice", hint, text)
            hosts.append(host)
        self._check_bytes("burst", table.bytes, ("bursts",))
        self._check_start("burst", table.start_ps, ("bursts",))
        if table.start_ps < self.until_ps <= table.start_ps + table.setup_ps:
            first, ends = units.format_time(table.start_ps + table.setup_ps), units.format_time(self.until_ps)
            msg = f"the first byte of a burst is sent at {first}, the run ends at {ends}"
            self._add("GT065", ("bursts", "setup"), msg, "lengthen run.duration", table.setup_ps)
        self._raise_faults()
        senders = tuple(host or 0 for host in hosts)
        sent = table.bytes, table.count, table.idle_ps, table.together, table.setup_ps, table.start_ps
        return Bursts(self.name, senders, dst or 0, *sent, self.band)


def _sizes(value: str, fail: Failure, base_dir: Path) -> tuple[Sizes, dict[str, Any]]:
    """Return the flow sizes of a preset or file, and the keys that replace a file's name in the resolved scenario."""
    from gradtide import presets

    names = presets.flow_names()
    if value in names:
        return traffic.read_sizes(presets.flow_text(value), value), {}
    path = base_dir / value
    if not (path.suffix or "/" in value or os.path.isfile(path)):
        listed = f"presets are {', '.join(names)}; or name a CDF file"
        hint = did_you_mean(value, names, listed, '"{}"', kind="sizes")
        raise ScenarioError([fail("GT060", f'unknown flow sizes "{value}"', hint)])
    text = read_text(path, value, fail)
    with expecting(text, value, "a distribution of flow sizes", "cdf", "cdf-percent", "cdf-ns2"):
        sizes = traffic.read_sizes(text, value)
    points = zip(sizes.bytes, sizes.cdf, strict=True)
    return sizes, {"cdf": [{"bytes": units.format_bytes(size), "cdf": share} for size, share in points]}


def nodes_of(path: Path) -> int | None:
    """Return the number of nodes of an htsim connection matrix; `None` for other and for unreadable files."""
    from gradtide import formats

    try:
        head = inputs.start(path, HEAD_BYTES).decode("utf-8-sig", errors="replace")
    except (OSError, ValueError, inputs.InputError):
        return None
    return formats.flows.nodes_of(head) if formats.form_of(head) == "htsim-cm" else None


def _heard(origin: Origin, fail: Failure) -> Origin:
    """Return `origin`; raise a `ScenarioError` if it is a list of flows and none of them starts within the run."""
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
