"""Background flows: size distributions, arrivals and lists of flows; texts and numbers in, columns out.

    sizes (a CDF) + arrivals (Poisson, perhaps in bursts)  ─┐
    a list of flows (CSV)                                   ├─► BackgroundFlows: start_ps, src, dst, bytes, band
    incast (many to one, again and again)                  ─┘

No file is opened here, and nothing here reads a scenario.
"""

from gradtide.traffic.arrivals import Bursts, Incast, Poisson, root_seed
from gradtide.traffic.flows import (
    BYTES_PER_FLOW,
    MAX_FAULTS_OF_A_FILE,
    MAX_FLOW_BYTES,
    MAX_FLOWS,
    BackgroundFlows,
    background_flows,
    host_index,
    too_many,
)
from gradtide.traffic.lists import FlowList, flow_rows, read_flows
from gradtide.traffic.sizes import MAX_POINTS, MAX_SHARE_DIGITS, Point, Sizes, checked_points, read_points, read_sizes

__all__ = [
    "BYTES_PER_FLOW",
    "MAX_FAULTS_OF_A_FILE",
    "MAX_FLOWS",
    "MAX_FLOW_BYTES",
    "MAX_POINTS",
    "MAX_SHARE_DIGITS",
    "BackgroundFlows",
    "Bursts",
    "FlowList",
    "Incast",
    "Point",
    "Poisson",
    "Sizes",
    "background_flows",
    "checked_points",
    "flow_rows",
    "host_index",
    "read_flows",
    "read_points",
    "read_sizes",
    "root_seed",
    "too_many",
]
