"""Measures when announcing bursts pays off, and writes the tables of docs/validation/pcn.md.

    python validation/pcn/study.py            prints the tables, and those of `gradtide reproduce pcn` (paper)
    python validation/pcn/study.py --page     writes them into the page, long ones into validation/pcn
    python validation/pcn/study.py --page --only paper policy

Long flows share a link with a host that sends bursts, as in `paper/pcn`, but on current links. Takes minutes on two
cores.
"""

import argparse
import csv
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pages import aligned

from gradtide import RunResult, Scenario
from gradtide.papers import PARTS
from gradtide.studies.run import run_all

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "validation" / "pcn.md"
FILES = Path(__file__).parent
IN_FILES = ("hosts", "settled", "k", "jobs", "met", "policy", "dctcp")
"""Tables that are too long for the page; they are written into CSV files."""
PACKET_BYTES, SEGMENT_BYTES = 1500, 1446
BURSTS = 8
JOBS = 2
PAPER = "paper"
SEEDS = 6
WEB = "web-search flows"
PORTS = {"star": "star, to the hosts", "leaf-spine": "leaf-spine, up"}
TICK = {"name": "tick", "forward": "1us", "backward": "1us", "parameters": "0B"}
CLOCK = {"model": {"name": "clock", "layers": [TICK]}, "workers": 1, "iterations": 1}
"""A job that sends nothing, for runs that only need a clock."""


@dataclass(frozen=True)
class Setting:
    """A link, its queue, and the flows that cross it.

    Attributes:
        rate_bps: rate of the link; those of hosts are four times as fast.
        round_us: round trip of all flows without queues and serialisation.
        capacity: capacity of the queue in packets.
        threshold: marking threshold in packets.
        announced: announced threshold in packets; `None` announces nothing.
        transport: transport of all hosts.
        burst: size of a burst; empty for none.
        long_count: number of long flows.
        long_round_us: round trip of the long flows, if it differs.
    """

    rate_bps: int
    round_us: float
    capacity: int
    threshold: int
    announced: int | None = None
    transport: str = "cubic+ecn"
    burst: str = ""
    long_count: int = 3
    long_round_us: float | None = None

    @property
    def packet_us(self) -> float:
        """Serialisation time of a packet on the link."""
        return PACKET_BYTES * 8e6 / self.rate_bps

    @property
    def settle_us(self) -> float:
        """Time after which the long flows are in steady state: some hundred round trips, queues included."""
        return 400 * (max(self.round_us, self.long_round_us or 0) + self.threshold * self.packet_us)

    @property
    def is_fast(self) -> bool:
        """Whether timers are derived from the links, because Linux's would be thousands of round trips."""
        return self.rate_bps > 1_000_000_000

    @property
    def lost_us(self) -> float:
        """Time that the loss of a segment may cost."""
        return 1e5 if self.is_fast else 4e5

    def scenario(self) -> Scenario:
        """Return the scenario: senders at one switch and receivers at another, which share the link in between."""
        senders = self.long_count + 1
        rate, bytes_per_us = f"{self.rate_bps}bps", self.rate_bps / 8e6
        links: list[dict[str, Any]] = [{"a": "left", "b": "right", "rate": rate, "delay": "0.1us"}]
        for sender in range(senders):
            round_us = self.round_us if sender == 0 else self.long_round_us or self.round_us
            delay = f"{round_us / 4:.4f}us"
            links.append({"a": f"h{sender}", "b": "left", "rate": f"{4 * self.rate_bps}bps", "delay": delay})
            links.append({"a": f"h{senders + sender}", "b": "right", "rate": f"{4 * self.rate_bps}bps", "delay": delay})
        flows = [
            {"start": f"{self.settle_us * n / 400:.3f}us", "src": f"h{n}", "dst": f"h{senders + n}", "bytes": "999GB"}
            for n in range(1, senders)
        ]
        size = float(re.sub(r"\D", "", self.burst) or 0) * (1e6 if "MB" in self.burst else 1e3)
        idle_us = 100 * (self.round_us + self.threshold * self.packet_us)
        duration_us = self.settle_us
        traffic: dict[str, Any] = {"long": {"flows": flows}}
        if self.burst:
            # A burst gets about a quarter of the link, which four flows share, and may suffer a timeout or two.
            duration_us += BURSTS * (idle_us + 12 * size / bytes_per_us + 100 * self.round_us + self.lost_us)
            bursts = {"src": ["h0"], "dst": f"h{senders}", "bytes": self.burst, "count": BURSTS}
            bursts |= {"idle": f"{idle_us:.3f}us", "start": f"{self.settle_us:.3f}us"}
            traffic["ddl"] = {"bursts": bursts, "announce": self.announced is not None}
        queue: dict[str, Any] = {"kind": "ecn", "capacity": f"{self.capacity}pkt", "threshold": f"{self.threshold}pkt"}
        if self.burst:
            queue |= {"kind": "pcn", "announced": f"{self.announced or 10}pkt"}
        cluster = {
            "topology": {"kind": "custom", "hosts": 2 * senders, "links": links},
            "queue": queue,
            "transport": {
                "kind": self.transport,
                "segment": f"{SEGMENT_BYTES}B",
                "timers": "derived" if self.is_fast else "linux",
            },
        }
        run: dict[str, Any] = {"engine": "packet", "duration": f"{duration_us:.3f}us"}
        if not self.burst:
            run["probe"] = {"every": f"{self.settle_us / 2000:.3f}us", "links": ["left-right"]}
        return Scenario.from_dict({"job": {"clock": CLOCK}, "cluster": cluster, "traffic": traffic, "run": run})


def measured(settings: Sequence[Setting]) -> list[RunResult]:
    """Run the scenarios of these settings."""
    return run_all([setting.scenario() for setting in settings], JOBS)


# A setting for each link and queue: rate, round trip, capacity, threshold, announced threshold.
LINKS = {
    "100 Mbit/s, 13.3 ms, 60": Setting(100_000_000, 13_000, 60, 40, 10),
    "1 Gbit/s, 1.3 ms, 60": Setting(1_000_000_000, 1_300, 60, 40, 10),
    "10 Gbit/s, 130 us, 60": Setting(10_000_000_000, 130, 60, 40, 10),
    "10 Gbit/s, 130 us, 250": Setting(10_000_000_000, 130, 250, 65, 15),
    "10 Gbit/s, 30 us, 250": Setting(10_000_000_000, 30, 250, 65, 15),
    "100 Gbit/s, 12 us, 250": Setting(100_000_000_000, 12, 250, 65, 15),
    "100 Gbit/s, 12 us, 1000": Setting(100_000_000_000, 12, 1000, 200, 50),
}
SIZES = ("50kB", "200kB", "1MB", "5MB")


def change_text(off: RunResult, on: RunResult) -> str:
    """Return the effect of announcing on the mean and the slowest burst, from its announcement on, as text."""
    times = [np.asarray(one.flows["received_us"])[np.asarray(one.flows["traffic"]) == "ddl"] for one in (off, on)]
    if any(np.isnan(own).any() or own.size < BURSTS for own in times):
        return "not complete"
    mean, slowest = (100 * (of(times[1]) / of(times[0]) - 1) for of in (np.mean, np.max))
    return f"{mean:+.0f}/{slowest:+.0f}"


def changes(cases: Sequence[Setting]) -> list[str]:
    """Return the effect of announcing in each case as text."""
    results = measured([one for case in cases for one in (replace(case, announced=None), case)])
    return [change_text(*pair) for pair in zip(results[::2], results[1::2], strict=True)]


def pays(transport: str) -> list[list[str]]:
    """Return the effect of announcing on bursts, by link and size, in percent."""
    texts = iter(changes([replace(link, burst=size, transport=transport) for link in LINKS.values() for size in SIZES]))
    return [[name, *(next(texts) for _ in SIZES)] for name in LINKS]


def by_long_round() -> list[list[str]]:
    """Return the same by the round trip of the long flows; that of the burst is 130 us, at 10 Gbit/s."""
    base = LINKS["10 Gbit/s, 130 us, 60"]
    rounds = (30.0, 130.0, 260.0, 500.0)
    rows = []
    for transport in ("cubic+ecn", "dctcp"):
        cases = [replace(base, burst="200kB", transport=transport, long_round_us=round_us) for round_us in rounds]
        rows.append([transport, *changes(cases)])
    return rows


def policy() -> list[list[str]]:
    """Return the utilisation of a link by long flows, by threshold in units of RTT · C / (N · MTU)."""
    held = 111
    rate_bps = 1_000_000_000
    shares = (0.25, 0.5, 1.0, 1.5)
    round_us = held * PACKET_BYTES * 8e6 / rate_bps
    rows = []
    for transport in ("newreno+ecn", "cubic+ecn", "dctcp"):
        for count in (1, 3, 8):
            settings = [
                Setting(rate_bps, round_us, 1000, max(1, round(share * held / count)), None, transport, "", count)
                for share in shares
            ]
            cells = []
            for result in measured(settings):
                half = np.asarray(result.queues["time_us"]) > settings[0].settle_us / 2
                cells.append(f"{100 * float(np.asarray(result.queues['utilisation'])[half].mean()):.1f}")
            rows.append([transport, str(count), *cells])
    return rows


def job_scenario(job: str, transport: str, fabric: str, announced: bool, seed: int) -> Scenario:
    """Return a job of eight workers, or seven and a parameter server, beside web-search traffic at 10 Gbit/s."""
    layers = {"kind": "thesis", "layers": 10, "size": "5MB", "time": "10ms", "precision": "float32"}
    star = {"kind": "star", "hosts": 16}
    leaf_spine = {"kind": "leaf_spine", "leaves": 4, "hosts_per_leaf": 4, "spines": 2}
    hystart = {"hystart": True} if "cubic" in transport else {}
    collectives: dict[str, Any] = {"ring": {"kind": "ring"}, "parameter server": {"ps": {"servers": 1}}}
    train: dict[str, Any] = {"model": layers, "workers": 8, "collective": collectives[job]}
    return Scenario.from_dict(
        {
            "job": {"train": train | {"announce": announced}},
            "cluster": {
                "topology": star if fabric == "star" else leaf_spine,
                "link": {"rate": "10Gbps", "delay": "2us"},
                "queue": {"kind": "pcn", "capacity": "250pkt", "threshold": "65pkt", "announced": "15pkt"},
                "transport": {"kind": transport, "segment": f"{SEGMENT_BYTES}B", **hystart},
            },
            "traffic": {"web": {"sizes": "web-search", "arrivals": {"rate": "200/s", "per": "host"}}},
            "run": {"engine": "packet", "duration": "600ms", "warmup": "50ms", "cooldown": "100ms", "seed": seed},
        }
    )


def jobs_beside_tenants() -> list[list[str]]:
    """Return the effect of announcing on a job's iterations and on background flows, with its standard error."""
    kinds = ("ring", "parameter server")
    cases = [(job, kind, net) for job in kinds for kind in ("cubic+ecn", "dctcp") for net in ("star", "leaf-spine")]
    runs = [(*case, announced, seed) for case in cases for announced in (False, True) for seed in range(SEEDS)]
    results = dict(zip(runs, run_all([job_scenario(*one) for one in runs], JOBS), strict=True))
    rows = []
    for case in cases:
        figures = []
        for announced in (False, True):
            own = []
            for seed in range(SEEDS):
                result = results[(*case, announced, seed)]
                fct_ms = np.asarray(result.flows["fct_us"], dtype=np.float64) / 1e3
                tail_ms = float(np.nanpercentile(fct_ms, 99))
                own.append([1e3 * result.iteration_time, float(np.nanmean(fct_ms)), tail_ms])
            figures.append(own)
        off, on = np.array(figures)
        change = 100 * (on / off - 1)
        error = change.std(axis=0, ddof=1) / SEEDS**0.5
        cells = [
            f"{a:.2f}, {b:.2f} ({mean:+.1f} ± {own:.1f} %)"
            for a, b, mean, own in zip(off.mean(axis=0), on.mean(axis=0), change.mean(axis=0), error, strict=True)
        ]
        rows.append([*case, *cells])
    return rows


def met() -> list[list[str]]:
    """Return the queues at the ports of a job's messages: due to background flows alone, and due to the job alone."""
    ports = {
        "star": [f"s-h{host}" for host in range(8)],
        "leaf-spine": [f"leaf{leaf}-spine{spine}" for leaf in range(2) for spine in range(2)],
    }
    rows = []
    for transport in ("cubic+ecn", "dctcp"):
        for who, fabric in (("ring", "star"), ("parameter server", "star"), (WEB, "star"), (WEB, "leaf-spine")):
            data = job_scenario("ring" if who == WEB else who, transport, fabric, False, 0).to_dict()
            if who == WEB:
                data["job"] = {"clock": CLOCK}
            else:
                del data["traffic"], data["run"]["warmup"], data["run"]["cooldown"]
            data["run"]["probe"] = {"every": "50us", "links": ports[fabric]}
            queues = run_all([Scenario.from_dict(data)], 1)[0].queues
            names, waiting = np.asarray(queues["link"]), np.asarray(queues["queue_packets"], dtype=np.float64)
            all_ports = np.stack([waiting[names == name] for name in ports[fabric]])
            fullest = all_ports[all_ports.mean(axis=1).argmax()]
            cells = [f"{own.mean():.1f}, {100 * (own > 15).mean():.0f} %" for own in (all_ports, fullest)]
            rows.append([who, transport, PORTS[fabric], *cells])
    return rows


def reproduced() -> Iterable[tuple[str, list[str], list[list[str]]]]:
    """Return the checks and tables of `gradtide reproduce pcn`."""
    summary = PARTS["pcn"].make(JOBS, None, None, None, None).summary
    checks = []
    for (figure, verdict), group in groupby(summary["checks"], lambda one: (one["figure"], one["verdict"])):
        parts = zip(*((one["quantity"], one["published"], one["ours"]) for one in group), strict=True)
        quantities, published, ours = ("; ".join(texts) for texts in parts)
        checks.append([f"{figure}: {quantities}", published, ours, verdict])
    yield "published", ["statement", "published", "ours", "verdict"], checks
    for name, table in zip(("hosts", "settled", "k"), summary["tables"], strict=True):
        yield name, table["columns"], [[str(cell) for cell in row] for row in table["rows"]]


OWN: dict[str, tuple[list[str], Callable[[], list[list[str]]]]] = {
    "cubic": (["link, round trip, queue", *SIZES], lambda: pays("cubic+ecn")),
    "dctcp": (["link, round trip, queue", *SIZES], lambda: pays("dctcp")),
    "rounds": (["transport", "30 us", "130 us", "260 us", "500 us"], by_long_round),
    "jobs": (["job", "transport", "network", "iteration, ms", "mean FCT, ms", "99 % of FCT, ms"], jobs_beside_tenants),
    "met": (["alone on the network", "transport", "ports", "all of them", "the fullest"], met),
    "policy": (["transport", "N", "1/4", "1/2", "1", "3/2"], policy),
}


def tables(names: Sequence[str]) -> Iterable[tuple[str, list[str], list[list[str]]]]:
    """Yield the tables of these names: name, columns, rows."""
    for name in names:
        if name == PAPER:
            yield from reproduced()
        else:
            columns, rows = OWN[name]
            yield name, columns, rows()


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write docs/validation/pcn.md")
    parser.add_argument("--only", nargs="+", choices=[PAPER, *OWN], default=[PAPER, *OWN], help="these tables")
    given = parser.parse_args()
    has_page = given.page
    page = PAGE.read_text(encoding="utf-8") if has_page else ""
    for name, columns, rows in tables(given.only):
        table = aligned([columns, *rows]) if name in OWN else markdown(columns, rows)
        text = f"<!-- table: pcn {name} -->\n\n{table}\n"
        if has_page and name in IN_FILES:
            with (FILES / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows([columns, *rows])
        elif has_page:
            old = rf"<!-- table: pcn {name} -->\n\n(?:(?:(?:\|.*\n)+|```text\n(?:.*\n)*?```\n)\n)?"
            page, count = re.subn(old, lambda _, text=text: f"{text}\n", page)
            assert count == 1, f"{PAGE} has no table `pcn {name}`"
        else:
            print(text, flush=True)
    if has_page:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
