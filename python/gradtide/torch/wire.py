"""Marks the job's packets with a type of service, from which hosts and switches derive a priority.

The connections between ranks are sockets of the training process, and a process may set the type of service of its own
sockets. The connections of gloo, and of NCCL over TCP, can therefore be marked without root and without any option of
these libraries. The process cannot mark RDMA traffic, connections with translated addresses, or connections that open
later. For these, `wire_priority` prints firewall rules that an operator can load, and `nccl_options` sets NCCL's
traffic class for RDMA.
"""

import contextlib
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from gradtide.errors import TrainingError
from gradtide.system import in_forked_children
from gradtide.torch import control, sockets
from gradtide.torch.sockets import Address, ends, matched, open_connections

SERVICES = {"high": 0x10, "normal": 0x00, "low": 0x08}
"""Types of service that Linux distinguishes: low delay, normal, and high throughput (RFC 1349, section 4)."""

_PRIORITIES = {0x00: 0, 0x08: 2, 0x10: 6, 0x18: 4}
"""Linux's packet priority by type of service, of which only bits 0x18 matter (tc-prio(8))."""

_BANDS = {0: 1, 2: 2, 6: 0, 4: 1}
"""Band of pfifo_fast by Linux's packet priority (tc-prio(8), default priomap); band 0 is sent first."""

LOADED_S = 10.0
"""Seconds to wait until the command `nft` has loaded a table of firewall rules."""


@dataclass(frozen=True)
class Connection:
    """A connection of this rank to another rank.

    Attributes:
        rank: the other rank.
        local, peer: address and port of this end and of the other end.
        interface: name of the interface with the local address; empty if none is found.
        service: type of service of the packets that this rank sends, as read back from the kernel.
    """

    rank: int
    local: Address
    peer: Address
    interface: str
    service: int


@dataclass(frozen=True)
class WirePriority:
    """Result of `wire_priority`: the mark on this rank's packets, and rules that an operator can load.

    Attributes:
        service: type of service, a byte whose first six bits are the DSCP.
        connections: connections to other ranks that were found. `service` of each says whether the mark was accepted.
        rules: shell commands that mark the same packets in the kernel's firewall, and configure priority bands on ports
            that have none.
    """

    service: int
    connections: tuple[Connection, ...]
    rules: str

    @property
    def dscp(self) -> int:
        """The six bits by which switches classify packets (RFC 2474)."""
        return self.service >> 2

    @property
    def band(self) -> int:
        """Band of Linux's pfifo_fast: 0 is sent first, 2 last.

        DSCP 8 (CS1) and 1 (LE) are low priorities by their RFCs, but share band 1 with unmarked packets (tc-prio(8)).
        """
        return _BANDS[_PRIORITIES[self.service & 0x18]]

    def __str__(self) -> str:
        marked = sum(connection.service == self.service for connection in self.connections)
        head = (
            f"type of service 0x{self.service:02x} (DSCP {self.dscp}, band {self.band} of pfifo_fast) on "
            f"{marked} of {len(self.connections)} connections to other ranks"
        )
        rows = [f"  rank {c.rank:<4} {_ended(c.local)} -> {_ended(c.peer)} {c.interface}" for c in self.connections]
        return "\n".join([head, *rows, "", self.rules])


def service_of(priority: "str | int") -> int:
    """Return the type of service for "high", "normal", "low" or a DSCP from 0 to 63; else raise `TrainingError`."""
    if isinstance(priority, str) and priority in SERVICES:
        return SERVICES[priority]
    if isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority < 64:
        return priority << 2
    raise TrainingError(f"priority is {priority!r}, and can be high, normal, low, or a DSCP from 0 to 63")


def wire_priority(
    priority: "str | int", *, process_group: Any = None, apply: bool = False, file: TextIO | None = None
) -> WirePriority:
    """Mark the packets of a job with a type of service. Every rank must call this, once its process groups exist.

    It marks the open TCP connections of this process to other ranks, except the control connections of `wrap`, which
    remain urgent. Connections that open later need another call; e.g. NCCL over TCP connects at its first collective.
    `wire_priority("normal")` removes the mark.

    Args:
        priority: "high" (type of service 0x10), "normal" (0x00), "low" (0x08), or a DSCP from 0 to 63. On Linux ports
            with pfifo_fast, the three names select bands 0, 1 and 2.
        process_group: the ranks of the job. Default: all.
        apply: load the nft rules that mark the same packets, until the process ends. Needs root.
        file: where the result and the rules are printed. Default: standard output on the first rank, nowhere on the
            others.

    Raises:
        TrainingError: if there is no other rank, or `apply` is set and the rules cannot be loaded.

    Warns:
        UserWarning: if no connection to another rank is found, the mark of a connection cannot be set, or pfifo_fast
            sends the DSCP in the band of unmarked packets.
    """
    import torch.distributed as dist

    service = service_of(priority)
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(process_group) < 2:
        raise TrainingError("wire_priority: there is no other rank; call it after init_process_group")
    if apply and (not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("nft") is None):
        raise TrainingError("wire_priority: apply needs root and nft; without it the rules are printed")
    rank = dist.get_rank(process_group)
    with contextlib.ExitStack() as stack:
        own = {ends(one): one for one in open_connections(stack) if ends(one)[0] not in _announcing()}
        everyone: list[Any] = [None] * dist.get_world_size(process_group)
        dist.all_gather_object(everyone, list(own), group=process_group)
        ranks = matched(list(own), everyone, rank)
        interfaces = {sockets.address_of(name): name for _, name in socket.if_nameindex()}
        connections = []
        for pair, other in sorted(ranks.items(), key=lambda item: (item[1], item[0])):
            found = _mark(own[pair], service)
            connections.append(Connection(other, *pair, interfaces.get(pair[0][0], ""), found))
    rules = rules_of(service, connections, table=_table(), cgroup=_cgroup(), bands=_ports(connections))
    result = WirePriority(service, tuple(connections), rules)
    for warning in _doubts(result, priority):
        warnings.warn(warning, stacklevel=2)
    if apply:
        _Loaded.replace(result)
    if file is None and rank == 0:
        file = sys.stdout
    if file is not None:
        print(result, file=file)
    return result


def nccl_options(priority: "str | int", environ: "Mapping[str, str] | None" = None) -> Any:
    """Return options for `init_process_group("nccl", pg_options=…)` or `new_group` that set a traffic class on RDMA.

    The option `traffic_class` of this process group is set, which needs a recent NCCL in torch. NCCL uses its value
    also as service level (InfiniBand) and as priority of the VLAN tag, unless NCCL_IB_SL is set.

    Args:
        priority: as for `wire_priority`.
        environ: the environment. Default: `os.environ`.

    Raises:
        TrainingError: if torch has no NCCL, or its NCCL has no `traffic_class`. In this case, set NCCL_IB_TC before the
            first process group is made; it applies to all groups of the process.

    Warns:
        UserWarning: if NCCL_IB_TC is set to another value, which takes precedence.
    """
    service = service_of(priority)
    try:
        from torch.distributed import ProcessGroupNCCL
    except ImportError:
        raise TrainingError("nccl_options: this torch has no NCCL") from None
    options = ProcessGroupNCCL.Options()
    config: Any = getattr(options, "config", None)
    if not hasattr(config, "traffic_class"):
        raise TrainingError(
            f"nccl_options: this torch's NCCL has no traffic_class; set NCCL_IB_TC={service} before the first group"
        )
    config.traffic_class = service
    if config.traffic_class != service:
        raise TrainingError(f"nccl_options: traffic_class is {config.traffic_class} after it was set to {service}")
    said = (os.environ if environ is None else environ).get("NCCL_IB_TC", "").strip()
    if said and said not in ("-1", str(service), hex(service)):
        warnings.warn(
            f"NCCL_IB_TC={said} in the environment overrides traffic_class {service}: unset it, or set it to {service}",
            stacklevel=2,
        )
    return options


# ── connections ───────────────────────────────────────────────────────────────────────────────────────────


def _announcing() -> set[Address]:
    peers = [peer for each in list(control._open) for peer in each._peers.values()]
    return {sockets.address(peer.getsockname()) for peer in peers if peer.fileno() >= 0}


def _mark(one: socket.socket, service: int) -> int:
    """Set the type of service of a socket, and read it back (ip(7), ipv6(7))."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, service)  # also for IPv4-mapped IPv6
    if one.family == socket.AF_INET6 and ipaddress.ip_address(one.getpeername()[0].partition("%")[0]).version == 6:
        with contextlib.suppress(OSError):
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, service)
        if ":" in ends(one)[0][0]:
            return one.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
    return one.getsockopt(socket.IPPROTO_IP, socket.IP_TOS)


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────


def rules_of(
    service: int,
    connections: "Sequence[Connection]",
    *,
    table: str,
    cgroup: str = "",
    bands: "Mapping[str, str] | None" = None,
) -> str:
    """Return shell commands (nft(8), tc-prio(8)) that mark packets in the kernel, and configure priority bands.

    `cgroup` is the process's path in the unified hierarchy; empty or "/" if the process has no cgroup of its own. With
    a cgroup, the rules mark all TCP packets of the cgroup, including those of future connections. `bands` has the queue
    discipline of each interface.
    """
    chosen = nft_of(service, connections, table=table, cgroup=cgroup)
    lines = ["# the operator's rules; as root, on this host"]
    if chosen:
        lines += ["nft -f - <<'END'", chosen, "END", f"#   undo: nft delete table inet {table}"]
    if cgroup in ("", "/"):
        lines.append("#   started by `systemd-run --scope`, the job has a cgroup, whose packets one rule marks")
    for interface, kind in sorted((bands or {}).items()):
        if kind in ("pfifo_fast", "prio"):
            lines.append(f"# {interface}: {kind} has three bands by type of service; nothing to do")
        else:
            lines += [
                f"# {interface}: {kind or 'its queue'} may have no bands; this is for the traffic of all programs",
                f"tc qdisc replace dev {interface} root pfifo_fast",
            ]
    return "\n".join(lines)


def nft_of(
    service: int, connections: "Sequence[Connection]", *, table: str, cgroup: str = "", owned: bool = False
) -> str:
    """Return nft's commands that mark the packets and set the packet priority that Linux derives from the mark.

    If the table is `owned`, the kernel deletes it when the nft process that loaded it ends.
    """
    then = f"meta priority set 0:{_PRIORITIES[service & 0x18]}"
    rules = []
    for family, version in (("ip", 4), ("ip6", 6)):
        ours = [one for one in connections if ipaddress.ip_address(one.local[0]).version == version]
        ends_of = (f"{one.local[0]} . {one.local[1]} . {one.peer[0]} . {one.peer[1]}" for one in ours)
        listed = ", ".join(sorted(ends_of))
        action = f"{family} dscp set {service >> 2} {then}"
        if cgroup not in ("", "/"):
            level = len(cgroup.strip("/").split("/"))
            rules.append(f'socket cgroupv2 level {level} "{cgroup.strip("/")}" meta l4proto tcp {action}')
        elif listed:
            rules.append(f"{family} saddr . tcp sport . {family} daddr . tcp dport {{ {listed} }} {action}")
    if not rules:
        return ""
    flags = " { flags owner; }" if owned else ""
    hook = "{ type filter hook output priority mangle; policy accept; }"
    made = [f"add table inet {table}{flags}", f"add chain inet {table} output {hook}"]
    return "\n".join([*made, *(f"add rule inet {table} output {rule}" for rule in rules)])


def _table() -> str:
    return f"gradtide_{os.getpid()}"


def _cgroup() -> str:
    """Return the path of this process in the unified hierarchy (cgroups(7)); empty if there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                return line[3:]
    return ""


def _ports(connections: "Sequence[Connection]") -> dict[str, str]:
    """Return the root queue discipline of each interface in use; empty if tc does not report it."""
    found = {}
    for interface in sorted({one.interface for one in connections} - {"", "lo"}):
        found[interface] = ""
        with contextlib.suppress(OSError, subprocess.SubprocessError, IndexError):
            words = ["tc", "qdisc", "show", "dev", interface]
            said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=10).stdout
            kinds = [line.split()[1] for line in said.splitlines()]
            found[interface] = next((kind for kind in kinds if kind in ("pfifo_fast", "prio")), kinds[0])
    return found


class _Loaded:
    """The rules that this process has loaded, in a table that a running nft process owns.

    The rules are removed however this process ends: nft's input pipe closes, nft exits, and the kernel deletes the
    table.
    """

    nft: "subprocess.Popen[str] | None" = None

    @classmethod
    def replace(cls, result: WirePriority) -> None:
        cls.drop()
        text = nft_of(result.service, result.connections, table=_table(), cgroup=_cgroup(), owned=True)
        if not text or not result.service:
            return
        trial = subprocess.run(["nft", "-c", "-f", "-"], input=f"{text}\n", check=False, capture_output=True, text=True)
        if trial.returncode:
            raise TrainingError(f"wire_priority: nft refuses the rules: {trial.stderr.strip()}")
        cls.nft = subprocess.Popen(
            ["nft", "-i"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
        )
        assert cls.nft.stdin is not None
        cls.nft.stdin.write(text + "\n")
        cls.nft.stdin.flush()
        until = time.monotonic() + LOADED_S
        listing = ["nft", "list", "table", "inet", _table()]
        while "dscp set" not in subprocess.run(listing, check=False, capture_output=True, text=True).stdout:
            if time.monotonic() > until or cls.nft.poll() is not None:
                cls.drop()
                raise TrainingError("wire_priority: nft has not loaded the rules; load the printed ones by hand")
            time.sleep(0.01)

    @classmethod
    def drop(cls, is_ours: bool = True) -> None:
        """Stop nft, or in a forked child (not `is_ours`) only close the inherited pipe."""
        nft, cls.nft = cls.nft, None
        if nft is not None and nft.stdin is not None:
            nft.stdin.close()
            if is_ours:
                nft.wait()


in_forked_children(lambda: _Loaded.drop(is_ours=False))


def _doubts(result: WirePriority, priority: "str | int") -> Iterator[str]:
    if not result.connections:
        yield (
            "no connection of this process leads to another rank: the backend has not connected yet (call "
            "wire_priority after the first iteration), uses RDMA (nccl_options), or addresses are translated (rules)"
        )
    refused = [one for one in result.connections if one.service != result.service]
    if refused:
        yield f"{len(refused)} connections refuse type of service 0x{result.service:02x}: use the operator's rules"
    if result.service and result.band == 1:
        yield (
            f"Linux's pfifo_fast puts DSCP {result.dscp} into band 1, like unmarked traffic: {priority!r} has an "
            f"effect only on switches with a rule for this DSCP; 'low' is DSCP 2 and 'high' DSCP 4"
        )


def _ended(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
