"""What a probe saw, over time: the queue of the busiest switch port and the use of its link, a column per run."""

from collections.abc import Mapping, Sequence
from typing import Any

from gradtide.report import pieces
from gradtide.report.folder import Row
from gradtide.report.timeline import milliseconds

STEPS = 160
"""Steps of a chart; samples that share one are folded into one value."""


def draw(runs: Mapping[str, Sequence[Row]], tokens: Sequence[str], caps: pieces.Caps) -> dict[str, Any] | None:
    """Return charts of `queues.csv` on axes that all runs share; None where nothing was sampled.

    `runs` are the rows of each run by its name, and `tokens` their colours.
    """
    link = busiest([row for rows in runs.values() for row in rows])
    if link is None:
        return None
    own = {name: [row for row in rows if row["link"] == link] for name, rows in runs.items()}
    if not all(own.values()):
        return None
    size = max(-(-len(rows) // min(STEPS, 20 + caps.rows)) for rows in own.values())
    bins = {name: [rows[i : i + size] for i in range(0, len(rows), size)] for name, rows in own.items()}
    longest = max(row["queue_packets"] for rows in own.values() for row in rows)
    until = max(rows[-1]["time_us"] for rows in own.values()) / 1e3

    def chart(
        name: str, token: str, title: str, values: list[float], ylabel: str, unit: str, top: float
    ) -> dict[str, Any]:
        x = [0.0, *(part[-1]["time_us"] / 1e3 for part in bins[name])]
        line = pieces.line(0, title, [*values, values[-1]], token=token, width=1.2, fill=token)
        drawn = pieces.chart(
            f"{title} over time{', ' + name if name else ''}",
            x=x,
            lines=[line],
            xlabel="time, ms",
            ylabel=ylabel,
            xname="from",
            xunit="ms",
            unit=unit,
            stepped=True,
            xrange=[0, until],
            yrange=[0, top],
            cap=caps.rows,
        )
        return {**drawn, "hint": "", "title": name.capitalize()}

    queues, uses = [], []
    for (name, parts), token in zip(bins.items(), tokens, strict=True):
        peaks = [float(max(row["queue_packets"] for row in part)) for part in parts]
        shares = [100 * sum(row["utilisation"] for row in part) / len(part) for part in parts]
        queues.append(chart(name, token, f"Queue before {link}", peaks, "packets", "packets", 1.05 * max(longest, 1)))
        uses.append(chart(name, token, f"Use of {link}", shares, "busy, %", "%", 104))
    first = next(iter(own.values()))
    every = first[1]["time_us"] - first[0]["time_us"] if len(first) > 1 else first[0]["time_us"]
    note = f"{link} is the switch port with the longest queue on average. A sample every {milliseconds(every)} ms"
    note += f"; a step shows the longest queue and the mean use of {size} samples." if size > 1 else "."
    return {"charts": [*queues, *uses], "note": note, "link": link}


def busiest(rows: Sequence[Row]) -> str | None:
    """Return the switch port with the longest queue on average; if none ever waits, the one that is used most."""
    sums: dict[str, list[float]] = {}
    for row in rows:
        total = sums.setdefault(row["link"], [0.0, 0.0])
        total[0] += row["queue_packets"]
        total[1] += row["utilisation"]
    ports = [link for link in sums if "-" in link] or list(sums)
    return max(ports, key=lambda link: (sums[link], -ports.index(link)), default=None)
