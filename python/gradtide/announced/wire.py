"""The protocol of announced bursts: packets, ports and addresses that sender and receiver share.

Packets on the wire:

    START, ACK          UDP: the announcement of a burst, and the receiver's answer. They use the same two ports as the
                        burst's TCP connection. The type of service says which it is (Kang et al. 2021, fig. 7).
    burst               TCP; the first eight bytes contain the size of the burst in bytes
    confirmation        one byte from the receiver on the same TCP connection
"""

import socket
import struct
from typing import Any

from gradtide.errors import SimulationError

PORT, MAX_PORT = 7474, 65_535

START, ACK = 1 << 7, 1 << 6
"""Bits of a control packet's type of service: START announces a burst, ACK answers (Kang et al. 2021, fig. 7)."""
MARK = b"PCN1"
NUMBER = struct.Struct("!4sI10x")
"""Payload of a control packet: `MARK`, the burst's number, and zeros up to the minimum Ethernet frame of 64 bytes."""
SIZE = struct.Struct("!Q")
ARRIVED = b"\x06"
CHUNK_BYTES = 1 << 20


class BurstError(SimulationError):
    """A burst could not be sent or received."""


def addresses(host: str, port: int, flags: int = 0) -> list[tuple[int, tuple[Any, ...]]]:
    """Resolve a host: return (address family, socket address) pairs. An empty name means this host."""
    if not 0 <= port <= MAX_PORT:  # getaddrinfo would silently use another port
        raise ValueError(f"port: {port} is not a port; ports end at {MAX_PORT}")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as error:
        raise BurstError(f"{host or 'this host'} port {port} is not an address: {error}") from None
    return [(family, address) for family, _, _, _, address in found]


def set_service(udp: socket.socket, service: int) -> None:
    """Set the type of service (IPv6: traffic class) of a socket's packets."""
    if udp.family == socket.AF_INET6:
        udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, service)
    else:
        udp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, service)
