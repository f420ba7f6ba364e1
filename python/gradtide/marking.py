"""Marking thresholds of a link, from its round-trip time and its number of long flows (Kang et al. 2021, section 3.3).

`RunResult.thresholds` passes measured values to `thresholds`; `gradtide bursts thresholds` passes given values.
"""

import math
from typing import TypedDict

from gradtide import units
from gradtide.units import ANNOUNCED_STEP, MAX_ANNOUNCED

LONG_FLOWS, K = 3.0, 0.25
"""The paper's number of long flows (N), and its ratio of the announced to the initial threshold (k)."""
PACKET = "1500B"
"""Default size of a full packet (MTU)."""


class Thresholds(TypedDict):
    """Marking thresholds of a link, in packets.

    Attributes:
        long_flows: number of long flows that share the link, N.
        round_trip_packets: packets that fill the link for a round trip without queues, RTT · C / MTU.
        policy_packets: lower bound of the marking threshold, RTT · C / (N · MTU).
        threshold_packets: marking threshold without announcements, the next multiple of 5 above the lower bound.
        announced_packets: threshold to announce: k times `threshold_packets`, as a multiple of 5 from 5 to 75.
    """

    long_flows: float
    round_trip_packets: float
    policy_packets: float
    threshold_packets: int
    announced_packets: int


def thresholds(round_trip_packets: float, long_flows: float = LONG_FLOWS, k: float = K) -> Thresholds:
    """Return the marking thresholds of a link.

    Args:
        round_trip_packets: packets that fill the link for a round trip without queues, RTT · C / MTU; at least 0.
        long_flows: number of long flows that share the link, N; above 0.
        k: ratio of the announced threshold to the threshold without announcements, above 0 and at most 1.

    Raises:
        ValueError: if an argument is out of range.

    Source:
        Kang et al. (2021), equations 1 and 2. Equation 2 multiplies the lower bound by k. Here, k multiplies the
        threshold, so that k = 1 announces the threshold itself.

    Example:
        >>> found = thresholds(111)
        >>> found["policy_packets"], found["threshold_packets"], found["announced_packets"]
        (37.0, 40, 10)
    """
    check_k(k)
    if not 0 <= round_trip_packets < math.inf:
        raise ValueError(f"round_trip_packets: {round_trip_packets:g} is out of range; write a number of at least 0")
    if not 0 < long_flows < math.inf:
        raise ValueError(f"long_flows: {long_flows:g} is out of range; write a number above 0")
    policy = round_trip_packets / long_flows
    threshold = ANNOUNCED_STEP * (int(policy // ANNOUNCED_STEP) + 1)
    announced = ANNOUNCED_STEP * round(k * threshold / ANNOUNCED_STEP)
    return {
        "long_flows": long_flows,
        "round_trip_packets": round_trip_packets,
        "policy_packets": policy,
        "threshold_packets": threshold,
        "announced_packets": min(MAX_ANNOUNCED, max(ANNOUNCED_STEP, announced)),
    }


def thresholds_of(
    rate: str, round_trip: str, *, long_flows: float = LONG_FLOWS, packet: str = PACKET, k: float = K
) -> Thresholds:
    """Return the thresholds of a link from its rate and the round trip of its long flows.

    Args:
        rate: rate of the link, as in `"100Mbps"`.
        round_trip: round-trip time of the long flows without queues, as in `"13.32ms"`.
        long_flows: number of long flows that share the link, above 0.
        packet: size of a full packet.
        k: ratio of the announced threshold to the threshold without announcements, above 0 and at most 1.

    Raises:
        ValueError: if an argument is out of range or has no unit.

    Example:
        >>> thresholds_of("100Mbps", "13.32ms")["threshold_packets"]
        40
    """
    rate_bps = units.parse_option("rate", units.parse_rate, rate)
    if rate_bps == 0:
        raise ValueError("rate: a link of 0 bit/s has no threshold; write a rate above 0, as in 100Mbps")
    round_trip_ps = units.parse_option("round_trip", units.parse_time, round_trip)
    packet_bytes = units.parse_option("packet", units.parse_bytes, packet)
    if packet_bytes == 0:
        raise ValueError(f"packet: {packet} is not a packet size; write one such as {PACKET}")
    return thresholds(rate_bps * round_trip_ps / (packet_bytes * 8 * 10**12), long_flows, k)


def check_k(k: float) -> None:
    """Raise `ValueError` if the ratio `k` is out of range."""
    if not 0 < k <= 1:
        raise ValueError(f"k: {k} is out of range; write a number above 0 and at most 1")
