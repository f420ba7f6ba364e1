"""Bursts on real sockets, announced to the switches on their path as in PCN (Kang et al. 2021, section 3.1).

bursts(host, …)     sender (a worker): announces a burst, waits for the answer, sends the burst, waits for the
                    confirmation of its arrival, pauses
receive(…)          receiver: answers announcements, receives bursts and confirms their arrival
"""

from gradtide.announced.places import (
    MOST_CONNECTIONS,
    MOST_OF_ADDRESS,
    MOST_WAITING,
    PATIENCE_S,
    SILENCE_S,
    SLOW_BYTES_PER_S,
    Places,
    Sender,
)
from gradtide.announced.receiver import Arrival, Receiver, receive
from gradtide.announced.sender import TIMEOUT, Burst, BurstsResult, bursts, bursts_of
from gradtide.announced.wire import ACK, PORT, START, BurstError

__all__ = [
    "ACK", "MOST_CONNECTIONS", "MOST_OF_ADDRESS", "MOST_WAITING", "PATIENCE_S", "PORT", "SILENCE_S",
    "SLOW_BYTES_PER_S", "START", "TIMEOUT", "Arrival", "Burst", "BurstError", "BurstsResult", "Places", "Receiver",
    "Sender", "bursts", "bursts_of", "receive",
]  # fmt: skip
