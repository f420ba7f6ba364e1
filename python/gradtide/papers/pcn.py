"""Kang et al. (2021), «Proactive Congestion Avoidance for Distributed Deep Learning» (PCN).

Hosts announce bursts, and switches then mark packets at a lower threshold. The paper ran a traffic generator on BMv2, a
software switch. It does not state the rate of the switch, the TCP of the hosts, the number of workers, or the size of a
burst. Our choices are:

- Links between switches have 100 Mbit/s.
- Hosts run CUBIC with ECN, byte counting and HyStart, the default of Linux, on which BMv2 runs.
- Two workers send at the same time, as in the paper's measurement (section 2.1).
- The path holds D = 12 packets without queues. D follows from section 3.2: the queue of the long flows falls to 25
  packets when CUBIC reduces the packets in flight to 0.7 of their number. Before, D packets are on the path, and 41 in
  the queue (the threshold of 40, and one more), so 0.7 (D + 41) = D + 25.
- Bursts are sent by iperf3, whose set-up takes five round trips.
- A burst has 400 kB. Of the sizes in figure «Hosts», 300 and 400 kB are nearest to the published completion time and
  throughput. No other parameter is fitted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from gradtide import units
from gradtide.papers.harness import (
    FITTED,
    SHOWN,
    Check,
    Claim,
    Drawn,
    Figure,
    Statements,
    chart,
    judged,
    line,
    published,
    statements_hold,
    table,
    value,
)
from gradtide.scenario import Scenario
from gradtide.studies.bursts import QueueSamples
from gradtide.studies.result import RunResult

PAPER = published(__name__)
NOTES = PAPER["notes"]
LINK, WORKER = "a-root", 0
SWITCHES = {"a", "b", "root"}
LINK_BPS = 100e6
PACKET_BYTES, SEGMENT_BYTES = 1500, 1446
PACKET_S = PACKET_BYTES * 8 / LINK_BPS
CAPACITY, ANNOUNCED = 60, 10
EVERY = "500us"
DELAY_US = 100.0
"""One-way delay of a host's link, in microseconds."""
SETUP_ROUNDS = 5
"""Round trips of iperf3's set-up: handshake, cookie, parameters, handshake of the data connection, second cookie."""
REPETITIONS = 8
APART_S = 0.037
"""Seconds by which each repetition starts its bursts later, at another phase of CUBIC's sawtooth."""

BURSTS = 6
SETTLED_S = (10.0, 20.0)
LATER_S = 1.0

ACKS, HYSTART, LINUX = "acks", "acks, HyStart", "bytes, HyStart"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A run, by its differences from the preset `paper/pcn`.

    Attributes:
        announced: marking threshold in packets while a burst is announced; `None` for no announcements.
        slow_start: slow start of CUBIC: whether it counts acknowledgements or bytes, and whether HyStart ends it.
        workers: number of hosts that send bursts at the same time through the leaf.
        setup_rounds: round trips, with a queue at the announced threshold, before the first byte of a burst.
        round_packets: packets on the path without queues: RTT · C / MTU.
        across: whether long flows end behind the other leaf, where they meet acknowledgements of other flows.
        mark_at: when the queue is compared with the threshold: "enqueue" or "dequeue" of a packet.
        has_bursts: whether the run lasts long enough for bursts; otherwise it has only long flows.
    """

    announced: int | None
    transport: str = "cubic+ecn"
    slow_start: str = LINUX
    workers: int = 2
    burst: str = "400kB"
    setup_rounds: int = SETUP_ROUNDS
    round_packets: int = 12
    host_bps: int = 1_000_000_000
    across: bool = False
    repetition: int = 0
    threshold: int = 40
    mark_at: str = "enqueue"
    has_bursts: bool = True


def _again(case: Case) -> list[Case]:
    return [replace(case, repetition=number) for number in range(AGAIN)]


def _pair(case: Case) -> tuple[Case, Case]:
    return replace(case, announced=None), case


ON = Case(ANNOUNCED)
REPEATED = tuple(replace(one, repetition=number) for number in range(REPETITIONS) for one in _pair(ON))
AGAIN = 4
"""Number of repetitions of runs that vary settings which the paper does not state."""

SIZES = ("100kB", "200kB", "300kB", "400kB", "500kB", "1MB", "2MB")
ROUNDS = {"cubic+ecn": (12, 20, 33, 50, 111), "newreno+ecn": (12, 33, 111), "dctcp": (12, 33, 111)}
ALONE = replace(ON, workers=1, setup_rounds=0, burst="2MB", slow_start=HYSTART, round_packets=33)
"""A single worker, whose bursts have 2 MB and no set-up before the first byte."""
VARIANTS = tuple(
    dict.fromkeys(
        [replace(ON, transport=kind, round_packets=packets) for kind, rounds in ROUNDS.items() for packets in rounds]
        + [replace(ON, slow_start=ACKS, round_packets=packets) for packets in ROUNDS["cubic+ecn"]]
        + [replace(ON, slow_start=HYSTART, round_packets=packets) for packets in ROUNDS["cubic+ecn"]]
        + [replace(ON, burst=size) for size in SIZES]
        + [replace(ON, workers=workers) for workers in (1, 3, 4)]
        + [replace(ON, setup_rounds=rounds) for rounds in (0, 3, 4, 6, 8)]
        + [replace(ON, host_bps=int(LINK_BPS)), replace(ON, across=True), replace(ON, mark_at="dequeue")]
        + [ALONE, replace(ALONE, slow_start=LINUX), replace(ALONE, round_packets=111)]
    )
)
KS = (5, 10, 15, 20, 25, 30, 35, 40)
FIXED = tuple(
    Case(None, transport=kind, round_packets=packets, threshold=threshold, has_bursts=False)
    for kind, rounds in ROUNDS.items()
    for packets in rounds
    for threshold in (40, 10)
)


def scenario(base: Scenario, case: Case) -> Scenario:
    """Return the scenario of a case."""
    topology = dict(base.to_dict()["cluster"]["topology"])
    # In each direction, the path has two host links and one or two links between switches. A round trip includes the
    # serialisation times of a packet and an acknowledgement on each link.
    trunks = 2 if case.across else 1
    rates = (case.host_bps, case.host_bps, *(LINK_BPS for _ in range(trunks)))
    sent_us = sum(size * 8 / rate * 1e6 for size in (PACKET_BYTES, 54) for rate in rates)
    delay_us = ((case.round_packets * PACKET_S * 1e6 - sent_us) / 2 - 2 * DELAY_US) / trunks
    topology["links"] = [
        {**link, "delay": f"{delay_us:.3f}us"} if {link["a"], link["b"]} <= SWITCHES else _attached(link, case)
        for link in topology["links"]
    ]
    workers = [f"h{number}" for number in (0, 1, *range(topology["hosts"], topology["hosts"] + 2))][: case.workers]
    topology["links"] += [{"a": worker, "b": "a"} for worker in workers[2:]]
    topology["hosts"] += len(workers[2:])
    setup_us = case.setup_rounds * (case.round_packets + ANNOUNCED) * PACKET_S * 1e6
    queue: dict[str, Any] = {"kind": "pcn", "capacity": f"{CAPACITY}pkt", "threshold": f"{case.threshold}pkt"}
    queue |= {"announced": f"{case.announced or ANNOUNCED}pkt", "mark_at": case.mark_at}
    transport: dict[str, Any] = {"kind": case.transport, "segment": f"{SEGMENT_BYTES}B", "timers": "linux"}
    if "cubic" in case.transport:
        transport |= {"hystart": case.slow_start != ACKS, "byte_counting": case.slow_start == LINUX}
    start_ps = units.parse_time(base.to_dict()["traffic"]["worker"]["bursts"]["start"])
    first_us = start_ps // 10**6 + round(case.repetition * APART_S * 1e6)
    before_us = first_us + round(setup_us) + 1
    return base.set(
        {
            "cluster.topology": topology,
            "cluster.queue": queue,
            "cluster.transport": transport,
            "cluster.link": {"rate": f"{case.host_bps}bps", "delay": f"{DELAY_US:g}us"},
            "traffic.worker.announce": case.announced is not None,
            "traffic.worker.bursts.src": workers,
            "traffic.worker.bursts.bytes": case.burst,
            "traffic.worker.bursts.setup": f"{setup_us:.3f}us",
            "traffic.worker.bursts.start": f"{first_us}us",
            "run.duration": base.to_dict()["run"]["duration"] if case.has_bursts else f"{before_us}us",
            "run.probe": {"every": EVERY, "links": [LINK], "cwnd": ["worker"]},
        }
    )


def _attached(link: dict[str, Any], case: Case) -> dict[str, Any]:
    """Return a host's link. The link of a receiver leads to the root or, if long flows end `across`, to a leaf."""
    number = int(link["a"][1:])
    leaf = ("b" if number < 12 else "a") if case.across else "root"
    return {**link, "b": leaf} if number >= 8 else link


@dataclass(frozen=True)
class Burst:
    """Measurements of a burst.

    Attributes:
        at_s: time of the burst's announcement; without announcements, the time of its start.
        waited_s: time from `at_s` to the burst's first segment.
        sent_s: time from the first segment to the last byte at the receiver.
        start: queue before the first segment arrived, in packets.
        longest, latency_s, drops: longest queue in packets, mean waiting time of a packet, and number of dropped
            packets, from the first segment to the end of the burst.
        whole_latency_s: mean waiting time of a packet from `at_s` to the end of the burst.
        later_bps, meanwhile_bps: rate of the long flows, in the `LATER_S` seconds after `at_s`, and until the end of
            the burst.
    """

    at_s: float
    waited_s: float
    sent_s: float
    start: float
    longest: float
    latency_s: float
    whole_latency_s: float
    drops: float
    later_bps: float
    meanwhile_bps: float

    @property
    def whole_s(self) -> float:
        """Time from `at_s` to the last byte at the receiver, in seconds."""
        return self.waited_s + self.sent_s

    @property
    def rate(self) -> float:
        """Bursts per second that a host would send if all took as long as this one, with no pauses between them."""
        return 1 / self.sent_s


class Seen:
    """Measurements of a run at the bottleneck link. The run is dropped, because its samples have some ten megabytes."""

    def __init__(self, case: Case, result: RunResult) -> None:
        self.case = case
        self.samples = QueueSamples.of_link(result.queues, LINK)
        self.at_s: Floats = self.samples.at_us / 1e6
        self.queue, self.busy = self.samples.packets, self.samples.utilisation
        flows, windows = result.flows, result.cwnd
        flying = (np.asarray(windows["src"]) == WORKER) & (np.asarray(windows["flight_bytes"]) > 0)
        sent_at_s: Floats = np.asarray(windows["time_us"], dtype=np.float64)[flying] / 1e6
        bursts = np.asarray(flows["traffic"]).astype(str) == "worker"
        self.wire_bits: Floats = np.asarray(flows["bytes"], dtype=np.float64)[bursts] * 8 * PACKET_BYTES / SEGMENT_BYTES
        columns = (np.asarray(flows[name], dtype=np.float64)[bursts] / 1e6 for name in ("start_us", "received_us"))
        self.start_s, lasted_s = columns
        self.end_s: Floats = self.start_s + lasted_s
        mine = (np.asarray(flows["src"])[bursts] == WORKER) & ~np.isnan(self.end_s)
        self.bursts = [
            self._burst(start_s, end_s, sent_at_s)
            for start_s, end_s in zip(self.start_s[mine], self.end_s[mine], strict=True)
        ]
        bits = float(self.wire_bits.sum())
        since = self.at_s >= SETTLED_S[1]
        span_s = float(since.sum()) * self.step_s
        self.long_bps = float(self.busy[since].mean()) * LINK_BPS - bits / span_s if since.any() else 0.0

    @property
    def step_s(self) -> float:
        """Time between two samples, in seconds."""
        return float(self.at_s[1] - self.at_s[0])

    def _latency_s(self, from_s: float, until_s: float) -> float:
        """Return the mean waiting time of a packet, by Little's law: mean queue divided by departures per second."""
        within = (self.at_s > from_s) & (self.at_s <= until_s)
        return float(self.queue[within].mean()) * PACKET_S / float(self.busy[within].mean())

    def _long_bps(self, from_s: float, until_s: float) -> float:
        """Return the rate of the long flows: the sending rate of the link minus the rate of the bursts.

        Each burst is assumed to send at a constant rate from its start to its end.
        """
        within = (self.at_s > from_s) & (self.at_s <= until_s)
        shared_s = np.minimum(self.end_s, until_s) - np.maximum(self.start_s, from_s)
        shares = np.clip(shared_s / (self.end_s - self.start_s), 0, 1)
        own_bps = float(np.nansum(self.wire_bits * shares)) / (until_s - from_s)
        return float(self.busy[within].mean()) * LINK_BPS - own_bps

    def _burst(self, at_s: float, end_s: float, sent_at_s: Floats) -> Burst:
        # `first_s` is the time of the last sample before packets of the burst are in flight.
        first_s = float(sent_at_s[(sent_at_s > at_s) & (sent_at_s < end_s)].min()) - self.step_s
        # Half a step later, this sample is the last one before the burst.
        found = self.samples.met((first_s + self.step_s / 2) * 1e6, end_s * 1e6, LINK_BPS)
        met = {name: value for name, value in found.items() if value is not None}
        return Burst(
            at_s=at_s,
            waited_s=first_s - at_s,
            sent_s=end_s - first_s,
            start=met["start_queue_packets"],
            longest=met["longest_queue_packets"],
            latency_s=self._latency_s(first_s, end_s),
            whole_latency_s=self._latency_s(at_s, end_s),
            drops=met["queue_drops"],
            later_bps=self._long_bps(at_s, at_s + LATER_S),
            meanwhile_bps=self._long_bps(at_s, end_s),
        )

    @property
    def settled(self) -> Floats:
        """Samples of the queue in packets while only the long flows send (`SETTLED_S`)."""
        queue: Floats = self.queue[(self.at_s >= SETTLED_S[0]) & (self.at_s < SETTLED_S[1])]
        return queue


class Study:
    """The measurements of the runs, by case."""

    def __init__(self, seen: dict[Case, Seen]) -> None:
        self.seen = seen

    def repeated(self, is_announced: bool) -> list[Case]:
        """Return the repetitions of the paper's setting, either with or without announcements."""
        return [case for case in REPEATED if (case.announced is not None) == is_announced]

    def of(self, cases: Iterable[Case]) -> list[Burst]:
        """Return the bursts of those given cases that were run."""
        return [burst for case in cases if case in self.seen for burst in self.seen[case].bursts]

    def values(self, is_announced: bool, figure: str) -> Floats:
        """Return an attribute of `Burst` for every burst of the repetitions."""
        return values(self.of(self.repeated(is_announced)), figure)

    def change(self, figure: str) -> float:
        """Return by how many percent announcements change the mean of an attribute of `Burst`."""
        return percent(self.values(False, figure).mean(), self.values(True, figure).mean())


def values(bursts: Iterable[Burst], figure: str) -> Floats:
    """Return the attribute `figure` of each burst."""
    return np.array([getattr(burst, figure) for burst in bursts])


def percent(without: float, with_pcn: float) -> float:
    """Return the change from the first to the second value in percent."""
    return float(100 * (with_pcn / without - 1))


# -- statements -------------------------------------------------------------------------------------------------------


_STATE = {False: "without PCN", True: "with PCN"}


def _queue_claims(study: Study) -> Iterable[Claim]:
    for which, (state, name) in product(("start", "longest"), _STATE.items()):
        theirs, ours = PAPER[which][name], study.values(state, which)
        text = f"{{:.1f}} ({ours.min():.0f} to {ours.max():.0f})"
        said = value(theirs, f"{theirs:g}")
        yield judged(f"{which} queue {name}", said, float(ours.mean()), text, NOTES["scatter"])
    full = {state: float((study.values(state, "drops") > 0).mean()) for state in _STATE}
    text = f"{full[False]:.0%} of the bursts without, {full[True]:.0%} with"
    yield "bursts that lose packets", "some without, none with", text, full[True] == 0 < full[False]


def _changes(
    published: str, figures: Mapping[str, str], note: str, *, fitted: bool
) -> Callable[[Study], Iterable[Claim]]:
    """Return a function that compares a published change with changes of our figures; only the first is counted."""

    def claims(study: Study) -> Iterable[Claim]:
        theirs = PAPER[published]
        for index, (what, figure) in enumerate(figures.items()):
            counts = FITTED if fitted else SHOWN if index else None
            yield judged(what, value(theirs, f"{theirs:+.0f} %"), study.change(figure), "{:+.0f} %", note, counts)

    return claims


def _background_claims(study: Study) -> Iterable[Claim]:
    theirs = PAPER["background_percent"]
    means = [np.mean([study.seen[case].long_bps for case in study.repeated(state)]) for state in _STATE]
    windows = (
        ("from the announcement to the end of the burst", study.change("meanwhile_bps")),
        (f"in the {LATER_S:g} s after each announcement", study.change("later_bps")),
        ("all the time from 20 s on", percent(*map(float, means))),
    )
    for index, (what, ours) in enumerate(windows):
        counts = SHOWN if index else None
        yield judged(what, value(theirs, f"{theirs} %"), ours, "{:+.1f} %", NOTES["full"], counts)


def _training_claims(study: Study) -> Iterable[Claim]:
    ratio = 1 / (1 + study.change("rate") / 100)
    for model, theirs in PAPER["training"].items():
        rho, published_percent = theirs["rho"], theirs["gain_percent"]
        ours = 100 * rho * (1 - ratio)
        yield f"{model}, rho = {rho:.1%}", f"{published_percent:g} %", f"{ours:.1f} %", FITTED, NOTES["equation"]


def _headline(checks: Sequence[Check], study: Study, _figure: str | None) -> str:
    if not checks or not study.of(study.repeated(True)):
        return "The gain of announcements depends on settings that the paper does not state."
    return (
        f"Announced bursts take {-study.change('sent_s'):.0f} % less time and run {study.change('rate'):.0f} % faster "
        f"(published: 39 and 72). {statements_hold(checks)}"
    )


# -- tables and series ------------------------------------------------------------------------------------------------


_COLUMNS = [
    "start off", "start on", "longest off", "longest on", "drops off", "drops on", "completion", "with announcement",
    "throughput", "latency", "with announcement", "long flows",
]  # fmt: skip


def _change_row(off: list[Burst], on: list[Burst]) -> list[str]:
    means = {name: [float(values(bursts, name).mean()) for bursts in (off, on)] for name in _FIGURES}
    pairs = [format(mean, form) for name, form in _FIGURES.items() if form for mean in means[name]]
    return pairs + [f"{percent(*means[name]):+.0f} %" for name, form in _FIGURES.items() if not form]


_FIGURES = {
    "start": ".0f",
    "longest": ".0f",
    "drops": ".1f",
    **dict.fromkeys(("sent_s", "whole_s", "rate", "latency_s", "whole_latency_s", "later_bps"), ""),
}
"""Format of an attribute's two means, without and with announcements; empty for the change of the mean in percent."""


def _host_tables(study: Study) -> list[Drawn]:
    queues = [f"{PAPER[which][state]:.0f}" for which in ("start", "longest") for state in _STATE.values()]
    sent, rate, waited, background = (
        f"{PAPER[f'{what}_percent']:+.0f} %" for what in ("completion", "throughput", "latency", "background")
    )
    rows = [["paper", *[""] * 5, *queues, "", "0", sent, "", rate, waited, "", background]]
    for case in VARIANTS:
        off, on = (study.of(_again(one)) for one in _pair(case))
        slow_start = case.slow_start if "cubic" in case.transport else ACKS
        what: list[Any] = [_name(case), slow_start, case.workers, case.burst, case.setup_rounds, case.round_packets]
        rows.append([*what, *_change_row(off, on)])
    columns = ["hosts", "slow start by", "workers", "burst", "setup, rounds", "round trip, packets", *_COLUMNS]
    note = f"Of {AGAIN * BURSTS} bursts each; long flows in the {LATER_S:g} s after each announcement."
    settled = []
    for case in FIXED:
        queue = study.seen[case].settled
        low, high = np.percentile(queue, [5, 95])
        cells = [f"{queue.mean():.1f}", f"{low:.0f} to {high:.0f}"]
        settled.append([case.transport, case.round_packets, case.threshold, *cells])
    return [
        table("Without and with PCN", columns, rows, note),
        table(
            "The queue under a fixed threshold",
            ["transport", "round trip, packets", "threshold", "mean queue", "5th to 95th percentile"],
            settled,
            "The long flows alone, 10 to 20 s. Published: 35 (26 to 48) at 40, 5 (1 to 8) at 10.",
        ),
    ]


def _name(case: Case) -> str:
    """Return the differences of a case from `paper/pcn` that have no column of their own in the table."""
    rate = "" if case.host_bps == ON.host_bps else f", links of {case.host_bps / 1e6:g} Mbit/s"
    place = ", behind the other leaf" if case.across else ""
    return case.transport + rate + place + ("" if case.mark_at == ON.mark_at else f", marked at {case.mark_at}")


def _k_tables(study: Study) -> list[Drawn]:
    off = study.of(_again(_pair(ON)[0]))
    rows = [[k, f"{k / ON.threshold:.3g}", *_change_row(off, _k_seen(study, k))] for k in KS]
    return [table("By announced threshold", ["announced", "k", *_COLUMNS], rows)]


def _k_seen(study: Study, packets: int) -> list[Burst]:
    return study.of(_again(replace(ON, announced=packets)))


def _through_one(study: Study) -> list[Drawn]:
    """Draw the queue around the third burst of the first repetition, without and with announcements."""
    lines, times = [], np.arange(-0.05, 0.3, 0.001)
    for case in REPEATED[:2]:
        seen = study.seen[case]
        if len(seen.bursts) < BURSTS // 2:
            return []
        at = np.searchsorted(seen.at_s, seen.bursts[BURSTS // 2 - 1].at_s + times)
        queue = seen.queue[np.minimum(at, seen.queue.size - 1)]
        lines.append(line(_STATE[case.announced is not None], map(float, queue)))
    x = ("time since the announcement, or the start without (ms)", [float(1e3 * t) for t in times])
    return [chart("third burst", x, "packets in the queue", lines)]


def _by_iteration(figure: str) -> Callable[[Study], list[Drawn]]:
    def series(study: Study) -> list[Drawn]:
        lines = []
        for case in REPEATED[:2]:
            own = list(values(study.seen[case].bursts, figure))
            lines.append(line(_STATE[case.announced is not None], own + [float("nan")] * (BURSTS - len(own))))
        return [chart("first repetition", ("burst", range(1, BURSTS + 1)), "packets in the queue", lines)]

    return series


def _over_k(study: Study) -> list[Drawn]:
    lines = [
        line(f"{figure} queue", [float(values(_k_seen(study, packets), figure).mean()) for packets in KS])
        for figure in ("start", "longest")
    ]
    return [chart("queue", ("announced threshold (packets)", KS), "packets", lines)]


def figures() -> dict[str, Figure[Study, Case]]:
    """Return the figures, by name."""
    return {
        "8": Figure(REPEATED, series=_through_one),
        "9a": Figure(REPEATED, _queue_claims),
        "9b": Figure(REPEATED, series=_by_iteration("start")),
        "9c": Figure(REPEATED, series=_by_iteration("longest")),
        "10a": Figure(
            REPEATED,
            _changes(
                "completion_percent",
                {"from the first segment": "sent_s", "from the announcement, handshake and answer included": "whole_s"},
                NOTES["size"],
                fitted=True,
            ),
        ),
        "10b": Figure(
            REPEATED, _changes("throughput_percent", {"from the first segment": "rate"}, NOTES["size"], fitted=True)
        ),
        "10c": Figure(
            REPEATED,
            _changes(
                "latency_percent",
                {
                    "mean wait, from the first segment": "latency_s",
                    "mean wait, from the announcement": "whole_latency_s",
                },
                NOTES["wait"],
                fitted=False,
            ),
        ),
        "4.4": Figure(REPEATED, _background_claims),
        "Eq. 3": Figure(REPEATED, _training_claims),
        "Hosts": Figure(
            [*(one for case in VARIANTS for own in _pair(case) for one in _again(own)), *FIXED],
            tables=_host_tables,
            is_slow=True,
        ),
        "k": Figure(
            [one for packets in KS for own in _pair(replace(ON, announced=packets)) for one in _again(own)],
            tables=_k_tables,
            series=_over_k,
        ),
    }


FIGURES = figures()

STATEMENTS = Statements(
    paper=PAPER,
    figures=FIGURES,
    scenario=scenario,
    study=lambda _base, seen: Study(seen),
    headline=_headline,
    seen=Seen,
)
PART = STATEMENTS.part(seconds=72, quick_seconds=10)
