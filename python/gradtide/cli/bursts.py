"""`gradtide bursts`, `gradtide bursts receive` and `gradtide bursts thresholds`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradtide.cli.ends import as_usage_error, fail_usage, writing
from gradtide.cli.options import OUTPUT, JsonOption, QuietOption, WideOption, option
from gradtide.cli.printing import cell, print_json, print_table, put, put_at_once, say, talk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradtide.announced import Arrival, Burst, BurstsResult
    from gradtide.results import Table

PORT_TEXT = "Use this UDP and TCP port of the receiver. Default: 7474."


def bursts(  # noqa: PLR0913 - options of the command
    host: Annotated[str, typer.Argument(metavar="HOST", help="A host that runs gradtide bursts receive.")],
    bytes_: str | None = option("SIZE", "Send this payload in each burst, as in 400kB.", None, "--bytes"),
    count: int | None = option("N", "Send N bursts. Default: 1.", min=1),
    idle: str | None = option("TIME", "Wait between the end of a burst and the next burst, as in 7s. Default: 0s."),
    setup: str | None = option(
        "TIME", "Wait before the first byte of each burst, as an application does. Default: 0s."
    ),
    start: str | None = option("TIME", "Wait before the first burst. Default: 0s."),
    announce: str | None = option("PACKETS", "Announce each burst with this threshold, as in 10pkt."),
    timeout: str | None = option(
        "TIME", "Send a burst without an answer to its announcement after this time. Default: 200ms."
    ),
    transport: str | None = option(
        "NAME", "Use this congestion control of the system, as in cubic. Default: the system's."
    ),
    like: str | None = option("SCENARIO", "Send the bursts of a scenario's tenant, as in paper/pcn."),
    tenant: str | None = option(
        "NAME", "With --like: send the bursts of this tenant. Default: the only tenant with bursts."
    ),
    port: int | None = option("PORT", PORT_TEXT, min=1, max=65535),
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write a CSV file.", rich_help_panel=OUTPUT)
    ] = None,
    as_json: JsonOption = False,
    wide: WideOption = False,
    quiet: QuietOption = False,
) -> None:
    """Send bursts to a host as a training worker does.

    The other host runs gradtide bursts receive. With --announce, each burst is announced to switches with PCN first.
    """
    from gradtide import announced
    from gradtide.files import write_whole

    given = {"bytes": bytes_, "count": count, "idle": idle, "setup": setup, "start": start, "announce": announce}
    given |= {"timeout": timeout, "transport": transport, "port": port}
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if like is not None:
        with as_usage_error(ValueError):
            known = announced.bursts_of(like, tenant) | known
    elif tenant is not None:
        fail_usage("--tenant names a tenant of the scenario of --like and has no effect without --like")
    if not host.strip():
        fail_usage("HOST is empty; name the host that runs gradtide bursts receive")
    if "bytes" not in known:
        fail_usage("--bytes is missing: the payload of a burst, as in --bytes 400kB")
    with as_usage_error(ValueError):
        result = announced.bursts(host, on_burst=None if quiet or as_json else _print_burst, **known)
    if output is not None:
        with writing(output):
            write_whole(output, result.table.to_csv().encode())
    if as_json:
        print_json(result.summary)
        return
    columns = ["burst", "start, s", "answer, ms", "burst, ms", "completion, ms", "retransmits"]
    print_table(columns, [[cell(value) for value in asdict(row).values()] for row in result.rows])
    say("", _words(result))


def _print_burst(row: "Burst") -> None:
    talk(f"burst {row.burst}: {row.completion_ms:.1f} ms")


def _words(result: "BurstsResult") -> str:
    from gradtide.units import format_bytes

    times = [row.burst_ms for row in result.rows]
    mbps = result.size_bytes * 8e-3 / (sum(times) / len(times))
    what = f"{len(times)} bursts of" if len(times) > 1 else "One burst of"
    words = f"{what} {format_bytes(result.size_bytes)} to {result.receiver}: {sum(times) / len(times):.1f} ms"
    words += f" on average, {min(times):.1f} to {max(times):.1f} ms" if len(times) > 1 else ""
    words += f", {mbps:.0f} Mbit/s, from the first byte until the receiver has all of it."
    if result.announced_packets is not None:
        answered = sum(row.answer_ms is not None for row in result.rows)
        words += f" {answered} of {len(times)} announcements of {result.announced_packets} packets were answered."
    return words


def receive(
    listen: str = option("ADDRESS", "Listen on this address. Default: all addresses of this host.", ""),
    port: int | None = option("PORT", PORT_TEXT, min=1, max=65535),
    together: int = option("N", "Let N senders wait for one another after each burst.", 1, min=1),
    count: int | None = option("N", "Exit after N bursts. Default: run until Ctrl-C.", min=1),
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Receive bursts and answer their announcements.

    Accepts every sender, prints the time of each burst, and discards its contents.
    """
    from gradtide import announced

    if as_json and count is None:
        fail_usage("--json prints one document at the end; limit the bursts, as in --count 6")
    arrivals = []
    for arrival in announced.receive(listen=listen, port=port or announced.PORT, together=together, count=count):
        arrivals.append(asdict(arrival))
        if not (quiet or as_json or put_at_once(_line(arrival))):
            return
    if as_json:
        print_json({"schema": "gradtide.bursts_received/1", "rows": arrivals})


def _line(arrival: "Arrival") -> str:
    from gradtide.units import format_bytes

    packets = arrival.announced_packets
    announced = "" if packets is None else f", announced with {packets} packets"
    return f"{arrival.sender}: {format_bytes(arrival.size_bytes)} in {arrival.burst_ms:.1f} ms{announced}"


def thresholds(
    rate: Annotated[str, typer.Argument(metavar="RATE", help="Rate of the link, as in 100Mbps.")],
    round_trip: Annotated[
        str, typer.Argument(metavar="TIME", help="Round-trip time of the long flows without queues, as in 13.32ms.")
    ],
    long_flows: float = option("N", "Assume that N long flows share the link.", 3.0),
    packet: str = option("SIZE", "Assume full packets of this size.", "1500B"),
    k: float = option("K", "Announce this share of the threshold, above 0 and at most 1.", 0.25, "--k"),
    as_json: JsonOption = False,
    wide: WideOption = False,
) -> None:
    """Compute the marking threshold of a link, and one to announce.

    The thresholds follow equations 1 and 2 of Kang et al. (2021). The first keeps the link busy with N long flows.
    """
    from gradtide import marking

    with as_usage_error(ValueError):
        found = marking.thresholds_of(rate, round_trip, long_flows=long_flows, packet=packet, k=k)
    if as_json:
        print_json({"schema": "gradtide.thresholds/1", **found})
        return
    say(f"In packets of {packet}, by equations 1 and 2 of Kang et al. (2021)")
    print_thresholds([found])
    queue = f'threshold = "{found["threshold_packets"]}pkt", announced = "{found["announced_packets"]}pkt"'
    say("", "In a scenario:")
    put(f'  cluster.queue = {{ kind = "pcn", {queue} }}')


BURST_COLUMNS = {
    "src": "from",
    "announced": "announced",
    "start_queue_packets": "start queue",
    "longest_queue_packets": "longest queue",
    "mean_wait_us": "mean wait, us",
    "queue_drops": "drops",
    "burst_ms": "burst, ms",
    "completion_ms": "with setup, ms",
    "retransmits": "retransmits",
}
"""Heading of each column of `bursts.csv` that is printed."""
BURSTS_SHOWN = 24


def print_bursts(bursts: "Table") -> None:
    """Print the first bursts of a run or an emulation."""
    columns = [name for name in BURST_COLUMNS if name in bursts.columns]
    rows = bursts.to_dicts()

    def written(name: str, value: Any) -> str:
        is_count = name.endswith("_packets") or name == "queue_drops"
        return f"{value:.0f}" if is_count and value is not None else cell(value)

    shown = [[written(name, row[name]) for name in columns] for row in rows[:BURSTS_SHOWN]]
    print_table([BURST_COLUMNS[name] for name in columns], shown)
    say("Queues in packets, on the slowest link of the burst's path.")
    if len(rows) > BURSTS_SHOWN:
        say(f"{len(rows) - BURSTS_SHOWN} more bursts are in bursts.csv (-o DIR).")


def print_thresholds(rows: "Sequence[Mapping[str, Any]]") -> None:
    """Print a table of thresholds in packets; it has a column of link names if the rows have them."""
    columns = {"link": "link"} if "link" in rows[0] else {}
    columns |= {
        "long_flows": "long flows",
        "round_trip_packets": "round trip",
        "policy_packets": "per long flow",
        "threshold_packets": "threshold",
        "announced_packets": "announced",
    }
    print_table(list(columns.values()), [[cell(row[key]) for key in columns] for row in rows])
