"""Table of the bursts of a run or an emulation, with the queue that each one met (Kang et al. 2021, figures 9, 10)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradtide.results import Table
from gradtide.scenario import Scenario
from gradtide.scenario.core.queries import routed

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class QueueSamples:
    """Samples of one link's queue, in the order of time.

    Attributes:
        at_us: time of each sample.
        packets, size_bytes: length of the queue at the time of each sample.
        utilisation, drops: share of time in which the link was sending, and number of dropped packets, both since the
            previous sample.
    """

    at_us: Floats
    packets: Floats
    size_bytes: Floats
    utilisation: Floats
    drops: Floats

    @classmethod
    def of_link(cls, queues: Table, link: str) -> "QueueSamples":
        """Return the samples of a link from a table of queues. If no link was sampled, all arrays are empty."""
        if not len(queues):
            return cls(*[np.array([])] * 5)
        mine = np.asarray(queues["link"]).astype(str) == link
        names = ("time_us", "queue_packets", "queue_bytes", "utilisation", "drops")
        return cls(*(np.asarray(queues[name], dtype=np.float64)[mine] for name in names))

    def met(self, first_us: float, end_us: float, rate_bps: float) -> dict[str, float | None]:
        """Return figures of a link's queue for a burst that reached the link at `first_us` and ended at `end_us`.

        The queue at the burst's start is taken from the last sample before `first_us`. The mean wait of a packet
        follows from Little's law: the mean queue in bytes, divided by the mean rate at which the link was sending. All
        figures are None without a sample before the burst and another one during it.
        """
        before = int(np.searchsorted(self.at_us, first_us)) - 1
        during = slice(before + 1, int(np.searchsorted(self.at_us, end_us, side="right")))
        names = ("start_queue_packets", "longest_queue_packets", "mean_wait_us", "queue_drops")
        if before < 0 or not self.packets[during].size:
            return dict.fromkeys(names)
        sent_bps = rate_bps * float(self.utilisation[during].mean())
        wait_us = float(self.size_bytes[during].mean()) * 8e6 / sent_bps if sent_bps else None
        longest, drops = float(self.packets[during].max()), float(self.drops[during].sum())
        return dict(zip(names, (float(self.packets[before]), longest, wait_us, drops), strict=True))


def slowest_link(path: Sequence[int], links: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Return the slowest link of a path (the first of equal ones), and the delay of the links before it in us."""
    slowest = min(path, key=lambda link: int(links[link]["rate_bps"]))
    return slowest, sum(links[link]["delay_ps"] for link in path[: path.index(slowest)]) / 1e6


def bursts_of_run(scenario: Scenario, flows: Table, queues: Table) -> Table:
    """Return the table of bursts of a simulated run. A burst ends with its last acknowledgement.

    Args:
        scenario: the scenario of the run.
        flows: the run's flows. Flows of tenants without bursts are skipped.
        queues: the run's sampled queues. If the table is empty, figures of queues are None.
    """
    network = routed(scenario)
    links = network["links"]
    sampled: dict[int, QueueSamples] = {}
    rows = []
    of_tenant = np.asarray(flows["traffic"]).astype(str) if len(flows) else np.array([], dtype=str)
    columns = {name: flows[name] for name in ("flow", "start_us", "fct_us", "src", "dst")}
    for tenant, ways in zip(scenario.traffic, network["flows"], strict=True):
        if tenant.idle_ps is None:
            continue
        is_announced = scenario.announced_packets(tenant.name) is not None
        for row in np.flatnonzero(of_tenant == tenant.name).tolist():
            flow, at_us, lasted_us, src, dst = (column[row].item() for column in columns.values())
            slowest, delay_us = slowest_link(ways[flow]["there"], links)
            queue = sampled.setdefault(slowest, QueueSamples.of_link(queues, links[slowest]["name"]))
            setup_us = tenant.setup_ps / 1e6
            is_complete = not np.isnan(lasted_us)
            end_us = at_us + lasted_us if is_complete else np.inf
            rows.append(
                {
                    "traffic": tenant.name,
                    "src": src,
                    "dst": dst,
                    "at_us": at_us,
                    "announced": is_announced,
                    **queue.met(at_us + setup_us + delay_us, end_us, links[slowest]["rate_bps"]),
                    "burst_ms": (lasted_us - setup_us) / 1e3 if is_complete else None,
                    "completion_ms": lasted_us / 1e3 if is_complete else None,
                }
            )
    return in_order(rows)


def in_order(rows: list[dict[str, Any]]) -> Table:
    """Return the table of bursts from its rows, ordered by `at_us`."""
    rows.sort(key=lambda row: float(row["at_us"]))
    return Table.of_dicts(rows) if rows else Table.of({"traffic": []})
