"""Declares every key of a scenario file: type, unit, default and meaning. `resolve` checks keys against one another.

The JSON Schema, docs/reference/scenario.md, the resolved scenario and the core's input follow from the declarations.
Quantities are stored as whole picoseconds, bytes and bits per second; files write them with units.
"""

from functools import cache
from typing import Annotated, Any, Literal

from gradtide.scenario.keys.cluster import Cluster, Host, Link, Stages
from gradtide.scenario.keys.job import Collective, Compute, JobTable, Ps, Schedule
from gradtide.scenario.keys.table import Table, key, notes
from gradtide.scenario.keys.traffic import TrafficTable
from gradtide.scenario.keys.types import Accuracy, Duration, OrName, Time
from gradtide.scenario.source import Loc


class Probe(Table):
    """Samples of queues and congestion windows, which do not change the run. Only the packet engine takes samples."""

    every_ps: Duration = key(examples=["100us"])
    """Time between samples. When a table reaches a million samples, every second sample is deleted and the time between
    samples doubles (its final value is in `summary.json`)."""
    links: list[str] | None = key(default=None, examples=[["s-h0", "h1"]])
    """Names of the links whose queues are sampled into `queues.csv` (docs/models/fabrics.md#networks). Default: all."""
    cwnd: list[str] | None = key(default=None, examples=[["train", "web.17"]], core=False)
    """Names of the jobs and tenants whose congestion windows are sampled into `cwnd.csv`. "web.17" samples only flow 17
    of the tenant `web`. Default: none."""


class Run(Table):
    """Engine, seed and length of the run."""

    SHORT = "{}"

    engine: Literal["fluid", "packet"] = key(default="fluid")
    """Network model. fluid: flows get max-min fair rates. packet: TCP is simulated packet by packet."""
    accuracy_ppm: Accuracy | None = key(default=None, examples=["0.1%"])
    """Maximum relative error of results of the fluid engine, which makes large irregular exchanges much faster to
    simulate (docs/models/fluid.md#bounded-rates). Default: results are exact."""
    follow: Literal["standards", "ns3"] = key(default="standards")
    """Behaviour of the packet engine where ns-3 differs from the standards
    (docs/models/packet.md#standards-and-simulators). standards: as in the standards. ns3: as in ns-3.37, for
    comparisons flow by flow."""
    start_jitter_ps: Time | None = key(default=None, examples=["1us"])
    """Maximum of the random delay that the packet engine adds to the start of each background flow
    (docs/models/packet.md#standards-and-simulators). Default: a full packet's transmission time on the slowest link
    that messages cross; 0 with follow = "ns3"."""
    seed: int = key(default=0, ge=0, le=2**63 - 1)
    """Seed of all random streams: compute noise, stragglers, random orders, placements and arrivals, ECMP hashes, RED
    and `start_jitter`. In a scenario without any of these, the seed has no effect, and studies run one seed."""
    duration_ps: Duration | None = key(default=None, examples=["12s"])
    """Simulated time after which no iteration and no background flow starts. Required with background traffic. Default:
    no limit."""
    warmup_ps: Time = key(default="0s", examples=["2s"], core=False)
    """Background flows that start before this simulated time are left out of statistics."""
    cooldown_ps: Time = key(default="0s", examples=["2s"], core=False)
    """Background flows that start less than this time before the last flow are left out of statistics."""
    timeline_iterations: int = key(default=2, ge=0, le=1000)
    """Number of measured iterations of each job whose ops and transfers are recorded one by one."""
    probe: Probe | None = key(default=None, examples=[{"every": "100us"}], core=False)
    """Samples of queues and congestion windows, which do not change the run. Default: none."""


class ScenarioFile(Table):
    """Training jobs and background traffic on a cluster. Quantities have units: B is byte, b is bit."""

    job: dict[str, JobTable] = key(default={}, examples=[{"train": {"model": "resnet50", "workers": 8}}])
    """Training jobs by name. At least one job is required unless there is background traffic."""
    cluster: Annotated[Cluster, OrName("ethernet-25g/16", "h100-hgx/32")] = key(
        default={}, examples=[{"link": {"rate": "10Gbps"}}], short="cluster"
    )
    """Hosts, links and switches: a table, or the name of a built-in cluster."""
    traffic: dict[str, TrafficTable] = key(default={}, examples=[{"web": {"sizes": "web-search", "load": 0.3}}])
    """Background flows, by name of the tenant that sends them."""
    run: Run = key(default={}, examples=[{"engine": "packet", "seed": 0}])
    """Engine, seed and length of the run."""


@cache
def short_names() -> dict[str, Loc]:
    """Return the path of the key for each short name of `Scenario.replace`; `*` in a path is any job's name."""
    tables: list[tuple[type[Table], Loc]] = [
        (ScenarioFile, ()),
        (JobTable, ("job", "*")),
        (Compute, ("job", "*", "compute")),
        (Collective, ("job", "*", "collective")),
        (Ps, ("job", "*", "collective", "ps")),
        (Schedule, ("job", "*", "schedule")),
        (Cluster, ("cluster",)),
        (Link, ("cluster", "link")),
        (Host, ("cluster", "host")),
        (Stages, ("cluster", "host", "stages")),
        (Run, ("run",)),
    ]
    found: dict[str, Loc] = {}
    for table, path in tables:
        for name, info in table.declared().items():
            short = notes(info).short
            short = table.SHORT.format(name) if short is None else short
            if short:
                assert short not in found, f"{short} is the short name of two keys"
                found[short] = (*path, name)
    return found


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a scenario file; every field has a description and examples."""
    schema = ScenarioFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "gradtide scenario", **schema}
