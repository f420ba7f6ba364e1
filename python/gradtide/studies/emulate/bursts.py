"""Table of an emulation's bursts: what their senders measured, and the queue that each burst met."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradtide.results import Table
from gradtide.studies.bursts import QueueSamples, in_order, slowest_link

if TYPE_CHECKING:
    from gradtide.studies.emulate.study import _Run


def bursts_of(run: "_Run", core: Mapping[str, Any], network: Mapping[str, Any], queues: Table) -> Table:
    """Return one row per burst, ordered by the time at which its first packet reached the switch."""
    links = network["links"]
    rows = []
    for src, (tenant, dst, path, sent) in _paths(run, network).items():
        found = (one for one in core["openings"] if (one["src"], one["dst"]) == (src, dst))
        openings = sorted(found, key=lambda one: int(one["at_ps"]))
        slowest, delay_us = slowest_link(path, links)
        queue = QueueSamples.of_link(queues, links[slowest]["name"])
        for opening, burst in zip(openings, sent, strict=False):
            at_us = opening["at_ps"] / 1e6 - run.offset_us
            first_us = at_us + delay_us
            end_us = first_us + burst["burst_ms"] * 1e3
            rows.append(
                {
                    "traffic": tenant,
                    "src": src,
                    "dst": dst,
                    "at_us": at_us,
                    "announced": opening["is_announced"],
                    **queue.met(first_us, end_us, links[slowest]["rate_bps"]),
                    "burst_ms": burst["burst_ms"],
                    "completion_ms": burst["completion_ms"],
                    "retransmits": burst["retransmits"],
                }
            )
    return in_order(rows)


def _paths(run: "_Run", network: Mapping[str, Any]) -> dict[int, tuple[str, int, list[int], list[dict[str, Any]]]]:
    """Return {sending host: (tenant, receiving host, links of the path, rows that the sender printed)}."""
    outputs = {program.host: run.text(program) for program in run.players.bursts if not program.is_receiver}
    found = {}
    for tenant, ways in zip(run.scenario.traffic, network["flows"], strict=True):
        if tenant.idle_ps is None:
            continue
        for src, dst, way in zip(tenant.src, tenant.dst, ways, strict=True):
            if src not in found and outputs.get(src, "").strip().startswith("{"):
                found[src] = (tenant.name, dst, way["there"], json.loads(outputs[src])["rows"])
    return found
