"""Finds this process's TCP connections to other ranks, and the address at which rank 0 listens for the others."""

import contextlib
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch.distributed as dist

Address = tuple[str, int]
Ends = tuple[Address, Address]


def ends(one: socket.socket) -> Ends:
    """Return the local and the peer address of a connected socket; IPv4-mapped IPv6 addresses become IPv4."""
    return address(one.getsockname()), address(one.getpeername())


def address(name: Any) -> Address:
    """Return host and port of a socket name."""
    host = ipaddress.ip_address(name[0].partition("%")[0])
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return str(mapped or host), int(name[1])


def open_connections(stack: contextlib.ExitStack) -> Iterator[socket.socket]:
    """Yield duplicates of this process's connected TCP sockets, from /proc/self/fd (proc(5)); none without /proc."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile, or not connected
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
                one = stack.enter_context(socket.socket(fileno=os.dup(int(name))))
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    one.getpeername()
                    yield one


def all_ends() -> list[Ends]:
    """Return the addresses of all TCP connections of this process."""
    with contextlib.ExitStack() as stack:
        return [ends(one) for one in open_connections(stack)]


def matched(own: "Sequence[Ends]", everyone: "Sequence[Iterable[Ends]]", rank: int) -> dict[Ends, int]:
    """Return the other rank of each connection in `own`, by matching its addresses with those of all ranks."""
    theirs = {pair: other for other, pairs in enumerate(everyone) if other != rank for pair in pairs}
    return {(local, peer): theirs[peer, local] for local, peer in own if (peer, local) in theirs}


def cut(pairs: "Iterable[Ends]") -> None:
    """Shut down the connections with these addresses, so that pending receives on them fail."""
    wanted = set(pairs)
    with contextlib.ExitStack() as stack:
        for one in open_connections(stack):
            with contextlib.suppress(OSError):  # ended meanwhile
                if ends(one) in wanted:
                    one.shutdown(socket.SHUT_RDWR)


def meeting_address() -> str:
    """Return the address of this host at which other ranks can reach it.

    It is the address of the interface in GLOO_SOCKET_IFNAME. Without that variable, it is that of the interface with
    the route to the store through which the ranks rendezvous; failing that, as in gloo, the address to which this
    host's name resolves, or the loopback address.
    """
    for interface in filter(None, os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")):
        if found := address_of(interface):
            return found
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    for host in (getattr(store, "host", ""), socket.gethostname()):
        with contextlib.suppress(OSError):
            family, kind, *_, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(target)  # sends nothing: the kernel chooses the interface
                return str(probe.getsockname()[0])
    return "127.0.0.1"


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface (netdevice(7), SIOCGIFADDR); empty if it has none."""
    if sys.platform == "win32":
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return ""
