"""The report of `gradtide buy`: cost of networks against iteration time, and what causes the differences."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from gradtide import words
from gradtide.report import pieces, scatter
from gradtide.report.folder import Row, RunFolderError, entry, grouped, read_table, row_of
from gradtide.report.reproduce import series_chart
from gradtide.report.run import resolved_scenario

UNIT_NOTE = (
    "No prices were given, so the cost is the total size of the switches: a switch with k ports costs (k/2)² switch "
    "units, the number of crossbars of 2x2 ports in it."
)
FABRICS = ("clos2", "clos3", "leaf_spine", "star")


@dataclass(frozen=True)
class _Offer:
    """A candidate: its row in the summary with the row's index, and the address of its page."""

    index: int
    row: Row
    href: str

    @property
    def words(self) -> str:
        """Fabric, collective and link rate in one line."""
        row = self.row
        what = f"{_network(row)}, {words.collective(row['collective'])}"
        return f"{what}, {words.rate(row['rate_bps'])}"

    @property
    def built(self) -> str:
        row = self.row
        return words.built(row)

    def key(self, figure: str) -> str:
        """Return the dotted path of a figure of this candidate in `summary.json`."""
        return f"rows.{self.index}.{figure}"


def _network(row: Row) -> str:
    """Return the name of a network with its oversubscription, as in `leaf-spine, 4:1`."""
    fabric = words.fabric(row["fabric"])
    return fabric if row["fabric"] == "star" else f"{fabric}, {words.oversubscription(row['bisection'])}"


_WORDS = ("candidate", "fabric", "bisection", "collective")
_FLAGS = ("is_knee", "is_frontier")
_COUNTS = ("rate_bps", "nodes", "hosts", "ports", "switches", "cables", "unused_ports", "crossbars")
_FIGURES = (
    "cost",
    "exchange_ms",
    "iteration_ms",
    "other_delay_iteration_ms",
    "compute_ms",
    "slower_percent",
    "max_link_utilisation",
)


def view(run_dir: Path, summary: Row, caps: pieces.Caps) -> tuple[str, dict[str, Any]]:
    """Return the name of the Jinja template and its context, for the report of a study of what to buy."""
    path = run_dir / "summary.json"
    model, nodes = entry(path, summary, "model", str), entry(path, summary, "nodes", int)
    unit = pieces.clip(entry(path, summary, "cost_unit", str), 20)
    # Without prices, cost is the total size of the switches, in crossbars.
    unit_note = "" if unit != "crossbars" else UNIT_NOTE
    unit = words.cost_unit(unit)
    offers = [_offer(path, row, index, run_dir) for index, row in enumerate(entry(path, summary, "rows", list))]
    if not offers:
        raise RunFolderError(f"{path}: key `rows`: at least one candidate was expected")
    knees = [one for one in offers if one.row["is_knee"]] or offers[:1]
    knee = knees[0]
    by_name = {one.row["candidate"]: one for one in offers}
    charts = [
        {**series_chart(path, item, caps), "title": pieces.clip(item.get("title", "")), "hint": ""}
        for item in _series(path, summary, "exchange")[: caps.charts]
    ]
    switches = [series_chart(path, item, caps) for item in _series(path, summary, "switches")[:1]]
    collectives = list(dict.fromkeys(one.row["collective"] for one in offers))
    fabrics = [kind for kind in FABRICS if any(one.row["fabric"] == kind for one in offers)]
    cheapest_first = sorted(offers, key=lambda one: [one.row[key] for key in ("rate_bps", "cost", "iteration_ms")])
    note = f"The first {caps.rows} of {len(offers)}; all are in candidates.csv." if len(offers) > caps.rows else ""
    candidate = run_dir / "candidates" / knee.row["candidate"]
    return "buy.html.j2", {
        "title": f"gradtide buy: {pieces.clip(model, 40)} on {nodes} nodes",
        "what": f"networks for {pieces.clip(model, 40)} on {nodes} nodes: {len(offers)} candidates",
        "tiles": _tiles(knee, offers, unit),
        "knee": knee,
        "plots": _plots(offers, collectives, fabrics, unit),
        "colours": scatter.legend(words.collective(pieces.clip(name, 60)) for name in collectives),
        "shapes": [
            {"svg": Markup(scatter.shape(i, 13, 7, 5)), "name": words.fabric(name)} for i, name in enumerate(fabrics)
        ],
        "charts": charts,
        "switches": switches[0] if switches else None,
        "needs": _needs(path, summary, by_name, unit, caps),
        "hottest": _hottest(run_dir, knee, caps),
        "unit": unit,
        "unit_note": unit_note,
        "offers": [_line(one) for one in cheapest_first[: caps.rows]],
        "offers_note": note,
        "skipped": [
            pieces.clip(entry(path, item, "why", str), 300) for item in entry(path, summary, "skipped", list)[:40]
        ],
        "not_priced": " and ".join(pieces.clip(x, 30) for x in entry(path, summary, "not_priced", list)[:3]),
        "parameter_bytes": words.size(entry(path, summary, "parameter_bytes", int)),
        "other_delay": words.spaced(pieces.clip(entry(path, summary, "other_cable_delay", str), 20)),
        "routing": pieces.clip(entry(path, summary, "routing", str), 20),
        "scenario": resolved_scenario(candidate, caps) if (candidate / "scenario.resolved.toml").is_file() else None,
    }


def _offer(path: Path, row: object, index: int, run_dir: Path) -> _Offer:
    row = row_of(path, "rows", row, index, words=_WORDS, counts=_COUNTS, flags=_FLAGS)
    for key in _FIGURES:
        if not math.isfinite(entry(path, row, key, (int, float))) or row[key] < 0:
            raise RunFolderError(f"{path}: key `{key}`: not a number of 0 or more")
    name = row["candidate"]
    if re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,150}", name) is None:
        raise RunFolderError(f"{path}: key `rows`: `{pieces.clip(name)}` is not a folder below it")
    page = f"candidates/{name}/report.html"
    clipped = {**row, "fabric": pieces.clip(row["fabric"], 30), "collective": pieces.clip(row["collective"], 60)}
    return _Offer(index, clipped, page if (run_dir / page).is_file() else "")


def _series(path: Path, summary: Row, figure: str) -> list[Mapping[str, Any]]:
    found = entry(path, summary, "series", list)
    return [item for item in found if isinstance(item, dict) and item.get("figure") == figure]


def _comparable(offers: Sequence[_Offer]) -> dict[int, list[_Offer]]:
    """Group candidates by link rate, because the best value (the knee) is determined for each rate."""
    return grouped(offers, lambda one: one.row["rate_bps"])


def _tiles(knee: _Offer, offers: Sequence[_Offer], unit: str) -> list[dict[str, str]]:
    group = next(group for group in _comparable(offers).values() if knee in group)
    fastest = min(group, key=lambda one: (one.row["iteration_ms"], one.row["cost"]))
    full = [one for one in group if one.row["fabric"] == knee.row["fabric"] and one.row["bisection"] == "1"]
    row = knee.row
    slower = row["slower_percent"]
    times = f"{slower:.1f} % more than the fastest, {fastest.words}"
    if slower < 0.05:
        times = "the fastest of all candidates"
    collective, tile = words.collective(row["collective"]), pieces.tile
    exchange = "Gradient exchange, alone"
    tiles = [
        tile("Iteration time", pieces.ms(row["iteration_ms"]), "ms", "", times, knee.key("iteration_ms")),
        tile(exchange, pieces.ms(row["exchange_ms"]), "ms", "transfer", collective, knee.key("exchange_ms")),
        tile("Cost", words.amount(row["cost"]), unit, "", knee.built, knee.key("cost")),
    ]
    if full and full[0].row["cost"] > row["cost"]:
        saves = f"{100 * (1 - row['cost'] / full[0].row['cost']):.0f}"
        note = f"{words.fabric(row['fabric'])} at 1:1 costs {words.amount(full[0].row['cost'])} {unit}"
        tiles.append(tile("Saved by oversubscription", saves, "%", "better", note))
    return tiles


def _plots(
    offers: Sequence[_Offer], collectives: Sequence[str], fabrics: Sequence[str], unit: str
) -> list[dict[str, Any]]:
    made, groups = [], _comparable(offers)
    for rate_bps, group in groups.items():
        points = [
            scatter.Point(
                max(one.row["cost"], 1e-9),
                max(one.row["iteration_ms"], 1e-9),
                collectives.index(one.row["collective"]),
                fabrics.index(one.row["fabric"]) if one.row["fabric"] in fabrics else 0,
                f"{one.words}: {pieces.ms(one.row['iteration_ms'])} ms an iteration, "
                f"{pieces.ms(one.row['exchange_ms'])} ms an exchange, {words.amount(one.row['cost'])} {unit} "
                f"({one.built})",
                one.href,
                f"best value: {_network(one.row)}" if one.row["is_knee"] else "",
            )
            for one in group
        ]
        corners = sorted((one.row["cost"], one.row["iteration_ms"]) for one in group if one.row["is_frontier"])
        title = words.rate(rate_bps) if len(groups) > 1 else ""
        label = f"Cost against iteration time{', ' + title if title else ''}"
        svg = scatter.draw(
            points,
            corners,
            label=label,
            xlabel=f"cost, {unit}",
            ylabel="iteration time, ms",
            floor=(min(one.row["compute_ms"] for one in group), "compute alone"),
        )
        made.append({"title": title, "label": label, "svg": svg})
    return made


def _needs(path: Path, summary: Row, by_name: Mapping[str, _Offer], unit: str, caps: pieces.Caps) -> dict[str, Any]:
    has_rates = len(_comparable(list(by_name.values()))) > 1
    needs = entry(path, summary, "needs", list)

    def of(item: Row) -> Row:
        return by_name[item["candidate"]].row

    def spread(item: Row) -> dict[str, str]:
        fast, slow = item["fastest_exchange_ms"], item["slowest_exchange_ms"]
        return pieces.cell(f"{slow / fast:.1f}x" if fast else "–", "differs" if slow > 1.05 * fast else "agrees")

    for item in needs:
        if entry(path, item, "candidate", str) not in by_name:
            raise RunFolderError(f"{path}: key `needs`: it names a candidate that is not in `rows`")
        for key in ("fastest_exchange_ms", "slowest_exchange_ms"):
            entry(path, item, key, (int, float))
    columns: pieces.Columns = {
        "collective": lambda item: words.collective(of(item)["collective"]),
        "#link": lambda item: words.rate(of(item)["rate_bps"]),
        "needs": lambda item: _network(of(item)),
        f"#{unit}": lambda item: words.amount(of(item)["cost"]),
        "#iteration, ms": lambda item: pieces.ms(of(item)["iteration_ms"]),
        "#fastest exchange, ms": lambda item: pieces.ms(item["fastest_exchange_ms"]),
        "#slowest, ms": lambda item: pieces.ms(item["slowest_exchange_ms"]),
        "#spread": spread,
    }
    if not has_rates:
        del columns["#link"]
    return pieces.listing("What each collective needs", columns, needs, cap=caps.rows, where="summary.json")


def _hottest(run_dir: Path, knee: _Offer, caps: pieces.Caps) -> dict[str, Any]:
    rows = [row for row in read_table(run_dir, "hottest.csv") if row["candidate"] == knee.row["candidate"]]
    columns: pieces.Columns = {
        "link": lambda row: row["link"],
        "#carries, MB": lambda row: pieces.figure(row["bytes"] / 1e6),
        "#busy, ms": lambda row: pieces.ms(row["busy_us"] / 1e3),
        "#utilisation, %": lambda row: pieces.percent(row["utilisation"]),
    }
    label = f"Busiest links in an exchange, {knee.words}"
    return pieces.listing(label, columns, rows, cap=caps.rows, where="hottest.csv")


def _line(one: _Offer) -> dict[str, Any]:
    row = one.row
    return {
        "href": one.href,
        "name": _network(row),
        "collective": words.collective(row["collective"]),
        "rate": words.rate(row["rate_bps"]),
        "built": f"{row['switches']:,} x {row['ports']:,}",
        "cables": f"{row['cables']:,}",
        "unused": f"{row['unused_ports']:,}",
        "cost": words.amount(row["cost"]),
        "exchange": pieces.ms(row["exchange_ms"]),
        "iteration": pieces.ms(row["iteration_ms"]),
        "slower": f"{row['slower_percent']:.1f}",
        "delayed": pieces.ms(row["other_delay_iteration_ms"]),
        "key": one.key("iteration_ms"),
        "cls": "best" if one.row["is_knee"] else "",
        "words": one.words,
    }
