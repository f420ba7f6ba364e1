"""Bursts of an emulation: what their senders measured, and the queues that they met."""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradtide.results import Table

if TYPE_CHECKING:
    from gradtide.studies.emulate.study import _Run


def bursts_of(run: "_Run", core: Mapping[str, Any], network: Mapping[str, Any]) -> Table:
    """Return the table of bursts, in the order of their first packets.

    The queue is that of the slowest link on the burst's path: at the first packet (start), and the longest from there
    to the end of the burst. Without samples of this link, both are absent.
    """
    paths = _paths(run, network)
    rates = [link["rate_bps"] for link in network["links"]]
    times: dict[int, list[float]] = {}
    lengths: dict[int, list[int]] = {}
    for row in core["samples"]:
        times.setdefault(row["port"], []).append(row["at_ps"] / 1e6)
        lengths.setdefault(row["port"], []).append(row["packets"])
    rows = []
    for src, (dst, path, sent) in paths.items():
        found = (one for one in core["openings"] if (one["src"], one["dst"]) == (src, dst))
        openings = sorted(found, key=lambda one: int(one["at_ps"]))
        slowest = min(path, key=lambda link: rates[link])
        delay_us = sum(network["links"][link]["delay_ps"] for link in path[: path.index(slowest)]) / 1e6
        for opening, burst in zip(openings, sent, strict=False):
            at_us = opening["at_ps"] / 1e6 + delay_us
            of_link = times.get(slowest, [])
            before = bisect_left(of_link, at_us) - 1
            after = bisect_right(of_link, at_us + burst["burst_ms"] * 1e3)
            queue = lengths[slowest][before : max(after, before + 1)] if before >= 0 else []
            rows.append(
                {
                    "src": src,
                    "dst": dst,
                    "at_us": at_us - run.offset_us,
                    "announced": opening["is_announced"],
                    "start_queue_packets": float(queue[0]) if queue else None,
                    "longest_queue_packets": float(max(queue)) if queue else None,
                    "burst_ms": burst["burst_ms"],
                    "completion_ms": burst["completion_ms"],
                    "retransmits": burst["retransmits"],
                }
            )
    rows.sort(key=lambda row: row["at_us"])
    return Table.of_dicts(rows) if rows else Table.of({"src": []})


def _paths(run: "_Run", network: Mapping[str, Any]) -> dict[int, tuple[int, list[int], list[dict[str, Any]]]]:
    """Return for each sender of bursts its receiver, its path, and what it measured."""
    outputs = {program.host: run.text(program) for program in run.players.bursts if not program.is_receiver}
    found = {}
    for tenant, ways in zip(run.scenario.spec()["traffic"], network["flows"], strict=True):
        if tenant["idle_ps"] is None:
            continue
        for src, dst, way in zip(tenant["src"], tenant["dst"], ways, strict=True):
            if src not in found and outputs.get(src, "").strip().startswith("{"):
                found[src] = (dst, way["there"], json.loads(outputs[src])["rows"])
    return found
