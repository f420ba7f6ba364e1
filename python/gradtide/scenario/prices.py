"""Reads the prices of switches, cables and network cards from a user's TOML file.

    currency = "EUR"
    [[switch]]
    ports = 32
    rate = "25Gbps"
    price = 9000

`[[cable]]` and `[[nic]]` have a rate and a price. If a file has no `[[cable]]`, all cables are free; if it has some but
not with the required rate, there is no price. The same holds for `[[nic]]`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from gradtide import units
from gradtide.errors import Fault, ScenarioError, did_you_mean
from gradtide.recognise import expecting
from gradtide.scenario.keys.types import positive_rate
from gradtide.scenario.source import Faults, Loc, Source, parse_toml, read_text

_MOST = 10**15
"""Maximum price of a part, so that the sum of a million prices is exact enough in a float."""
_KEYS = {"switch": ("ports", "rate", "price"), "cable": ("rate", "price"), "nic": ("rate", "price")}
_EXAMPLE = {"ports": "ports = 32", "rate": 'rate = "25Gbps"', "price": "price = 9000", "currency": 'currency = "EUR"'}
MAX_PORTS = 100_000
"""Maximum number of ports of a switch or chassis in a file of prices."""


@dataclass(frozen=True)
class Prices:
    """Prices of switches by (rate in bit/s, ports), and of cables and network cards by rate; {} if they are free."""

    name: str
    currency: str
    switches: Mapping[tuple[int, int], Fraction]
    cables: Mapping[int, Fraction]
    nics: Mapping[int, Fraction]

    @property
    def free(self) -> list[str]:
        """The kinds of parts without any price in the file, which are free: cables, network cards, or both."""
        return [what for what, table in (("cables", self.cables), ("network cards", self.nics)) if not table]

    def switch(self, ports: int, rate_bps: int) -> tuple[int, Fraction] | None:
        """Return ports and price of the cheapest switch with at least `ports` ports of `rate_bps`; None without one."""
        own = ((price, count) for (rate, count), price in self.switches.items() if rate == rate_bps)
        price, count = min((one for one in own if one[1] >= ports), default=(None, 0))
        return None if price is None else (count, price)

    def missing(self, rate_bps: int) -> list[str]:
        """Return the kinds of parts for which the file has prices at other rates but none at `rate_bps`."""
        rates = {"switch": {rate for rate, _ in self.switches}, "cable": set(self.cables), "nic": set(self.nics)}
        return [what for what, known in rates.items() if known and rate_bps not in known]


def read_prices(path: str | Path) -> Prices:
    """Read a file of prices; raise a `ScenarioError` with all of its faults, each at its line."""
    name = str(path)
    text = read_text(Path(path), name, lambda code, msg, hint: Fault(code, "", msg, name, hint, name))
    source = Source(name, text)
    with expecting(text, name, "a list of prices", "prices"):
        reader = _Reader(parse_toml(text, name), source)
        prices = reader.prices()
        if reader.faults:
            raise ScenarioError(sorted(reader.faults, key=lambda fault: fault.line or 0))
    return prices


class _Reader:
    def __init__(self, data: Mapping[str, Any], source: Source) -> None:
        self.data, self.source, self.faults = data, source, Faults()

    def add(self, code: str, loc: Loc, msg: str, hint: str, value: Any = None, *, at_key: bool = False) -> None:
        self.faults.append(self.source.fault(code, loc, msg, hint, value, at_key=at_key))

    def prices(self) -> Prices:
        self.refuse_unknown((), self.data, ("currency", *_KEYS))
        currency = self.data.get("currency", "")
        if not isinstance(currency, str):
            self.refuse_type(("currency",), "a text", currency)
            currency = ""
        switches, cables, nics = (self.table(what) for what in ("switch", "cable", "nic"))
        if not self.data.get("switch"):
            hint = 'write [[switch]] with ports = 32, rate = "25Gbps" and price = 9000'
            self.add("GT010", ("switch",), "`switch` is missing", hint)
        return Prices(
            self.source.name,
            currency,
            {(rate, ports): price for ports, rate, price in switches},
            {rate: price for _, rate, price in cables},
            {rate: price for _, rate, price in nics},
        )

    def table(self, what: str) -> list[tuple[int, int, Fraction]]:
        """Return ports (0 for cables and network cards), rate and price of every row without a fault."""
        rows = self.data.get(what, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            hint = f"write [[{what}]] with {', '.join(_EXAMPLE[key] for key in _KEYS[what])}"
            self.add("GT011", (what,), f"expected a list of tables, found {units.describe(rows)}", hint, rows)
            return []
        found: list[tuple[int, int, Fraction]] = []
        for index, row in enumerate(rows):
            loc, before = (what, index), len(self.faults)
            self.refuse_unknown(loc, row, _KEYS[what])
            for key in _KEYS[what]:
                if key not in row:
                    self.add("GT010", loc, f"`{key}` is missing", f"write {_EXAMPLE[key]}")
            ports = self.ports((*loc, "ports"), row["ports"]) if "ports" in row and what == "switch" else 0
            rate_bps = self.rate((*loc, "rate"), row["rate"]) if "rate" in row else 0
            price = self.price((*loc, "price"), row["price"]) if "price" in row else Fraction(0)
            if len(self.faults) > before:
                continue
            if any((ports, rate_bps) == one[:2] for one in found):
                self.add("GT016", loc, f"this {what} has a price already", "delete one of the two")
            found.append((ports, rate_bps, price))
        return found

    def refuse_unknown(self, loc: Loc, table: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                hint = did_you_mean(key, known, "known fields are " + ", ".join(known))
                self.add("GT012", (*loc, key), f"unknown field `{key}`", hint, at_key=True)

    def refuse_type(self, loc: Loc, expected: str, value: object) -> None:
        msg = f"expected {expected}, found {units.describe(value)}"
        self.add("GT011", loc, msg, f"write {_EXAMPLE[str(loc[-1])]}", value)

    def ports(self, loc: Loc, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse_type(loc, "a whole number", value)
            return 0
        if not 2 <= value <= MAX_PORTS:
            self.add("GT014", loc, f"{value} is out of range", f"`ports` is from 2 to {MAX_PORTS:,}", value)
        return value

    def rate(self, loc: Loc, value: object) -> int:
        try:
            return int(positive_rate(value))
        except units.UnitError as error:
            self.add(error.code, loc, error.msg, error.hint, value)
            return 0

    def price(self, loc: Loc, value: object) -> Fraction:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse_type(loc, "a number", value)
        elif not 0 <= value <= _MOST:  # also refuses NaN
            self.add("GT014", loc, f"{units.describe(value)} is out of range", f"a price is from 0 to {_MOST:g}", value)
        else:
            return Fraction(repr(value))
        return Fraction(0)
