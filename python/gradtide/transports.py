"""Congestion controls of the packet engine. Made by tools/generate.py from crates/net/src/packet/tcp/congestion."""

from typing import Literal

TransportKind = Literal[
    "newreno",
    "cubic",
    "dctcp",
    "ideal",
    "newreno+ecn",
    "cubic+ecn",
]
"""Values of `cluster.transport.kind`."""

MEANING = (
    "Congestion control. newreno: RFC 5681, 6582 and 6675. cubic: RFC 9438. dctcp: RFC 8257. ideal: a window that "
    'never changes. "newreno+ecn" and "cubic+ecn" are short for `ecn = true`.'
)
"""What `cluster.transport.kind` is."""

PARAMETERS: dict[str, dict[str, bool | int]] = {
    "newreno": {"byte_counting": False},
    "cubic": {"hystart": False, "byte_counting": False, "as_linux": False},
    "dctcp": {"gain_ppm": 62500},
    "ideal": {},
}
"""Parameters of each congestion control, with their defaults."""

ECN: dict[str, Literal["ignored", "classic", "scalable"]] = {
    "newreno": "classic",
    "cubic": "classic",
    "dctcp": "scalable",
    "ideal": "ignored",
}
"""Reaction to ECN marks: none; that of RFC 3168, if `ecn` is true; that of RFC 8257, always."""
