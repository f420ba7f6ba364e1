"""gradtide: see, plan and tame the network traffic of distributed training.

    >>> import gradtide as gt
    >>> base = gt.preset("paper/gao2020-ch4").replace(link_rate="1Gbps")
    >>> fifo, priority = gt.run(base), gt.run(base.replace(order="priority", barrier=False))
    >>> round(1 - priority.iteration_time / fifo.iteration_time, 3)
    0.16

Importing this module is cheap, because the module that defines a name is imported when the name is first used.
"""

from importlib import import_module

# Importing `typing` and the core would delay the handling of Ctrl-C in `__main__` by 20 ms. Type checkers treat this
# name as true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gradtide._core import __version__
    from gradtide.announced import Arrival, Burst, BurstsResult, bursts
    from gradtide.announced import receive as bursts_receive
    from gradtide.codes import explain
    from gradtide.errors import (
        EmulationRefusal,
        GradtideError,
        ProfileError,
        ScenarioError,
        SchedulerError,
        SimulationError,
        TraceError,
    )
    from gradtide.lp import StartAndBand, start_and_band
    from gradtide.marking import thresholds_of as bursts_thresholds
    from gradtide.papers import Reproduction, reproduce
    from gradtide.profiling import ModelProfile, op_dag, profile
    from gradtide.results import Series, Table
    from gradtide.scenario import Scenario
    from gradtide.scenario import json_schema as schema
    from gradtide.scenario.cables import from_networkx
    from gradtide.scenario.opdag import Op, OpDag
    from gradtide.scenario.plan import Plan, read_plan
    from gradtide.studies.buy import BuyResult, buy
    from gradtide.studies.calibrate import Calibration, calibrate
    from gradtide.studies.check import CheckResult, check
    from gradtide.studies.collectives import CollectivesResult, collectives
    from gradtide.studies.compare import CompareResult, compare
    from gradtide.studies.convert import convert
    from gradtide.studies.demo import demo
    from gradtide.studies.doctor import doctor
    from gradtide.studies.emulate import EmulationResult, emulate
    from gradtide.studies.exchange import messages
    from gradtide.studies.graph import preset_graph
    from gradtide.studies.order import OrderResult, order
    from gradtide.studies.plan import PlanResult, plan
    from gradtide.studies.result import RunResult
    from gradtide.studies.run import preset, run
    from gradtide.studies.store import listed as sweep_list
    from gradtide.studies.sweep import SweepResult, sweep
    from gradtide.studies.sweep import merge as sweep_merge
    from gradtide.studies.tenants.bands import TenantsResult, tenants
    from gradtide.studies.tenants.boundary import BoundaryResult
    from gradtide.studies.tenants.boundary import boundary as tenants_map
    from gradtide.studies.tenants.lp import LpResult
    from gradtide.studies.tenants.lp import plan_bands as tenants_lp
    from gradtide.studies.tenants.policies import PoliciesResult
    from gradtide.studies.tenants.policies import policies as tenants_policies
    from gradtide.traces import Trace, from_chakra, from_execution_trace, from_kineto

_MODULES = ("presets", "report")
"""Public modules."""

_NAMES = {
    "_core": "__version__",
    "announced": "Arrival Burst BurstsResult bursts bursts_receive=receive",
    "codes": "explain",
    "errors": "EmulationRefusal GradtideError ProfileError ScenarioError SchedulerError SimulationError TraceError",
    "lp": "StartAndBand start_and_band",
    "marking": "bursts_thresholds=thresholds_of",
    "papers": "Reproduction reproduce",
    "profiling": "ModelProfile op_dag profile",
    "results": "Series Table",
    "scenario": "Scenario schema=json_schema",
    "scenario.cables": "from_networkx",
    "scenario.opdag": "Op OpDag",
    "scenario.plan": "Plan read_plan",
    "studies.buy": "BuyResult buy",
    "studies.calibrate": "Calibration calibrate",
    "studies.check": "CheckResult check",
    "studies.collectives": "CollectivesResult collectives",
    "studies.compare": "CompareResult compare",
    "studies.convert": "convert",
    "studies.demo": "demo",
    "studies.doctor": "doctor",
    "studies.emulate": "EmulationResult emulate",
    "studies.exchange": "messages",
    "studies.graph": "preset_graph",
    "studies.order": "OrderResult order",
    "studies.plan": "PlanResult plan",
    "studies.run": "preset run",
    "studies.result": "RunResult",
    "studies.store": "sweep_list=listed",
    "studies.sweep": "SweepResult sweep sweep_merge=merge",
    "studies.tenants.bands": "TenantsResult tenants",
    "studies.tenants.boundary": "BoundaryResult tenants_map=boundary",
    "studies.tenants.lp": "LpResult tenants_lp=plan_bands",
    "studies.tenants.policies": "PoliciesResult tenants_policies=policies",
    "traces": "Trace from_chakra from_execution_trace from_kineto",
}
"""The other public names by module, as `public` or, if the name in the module differs, `public=own`."""

_HOMES = {
    public: (module, own or public)
    for module, names in _NAMES.items()
    for public, _, own in (name.partition("=") for name in names.split())
}

# fmt: off
__all__ = [
    "Arrival", "BoundaryResult", "Burst", "BurstsResult", "BuyResult", "Calibration", "CheckResult",
    "CollectivesResult", "CompareResult", "EmulationRefusal", "EmulationResult", "GradtideError", "LpResult",
    "ModelProfile", "Op", "OpDag", "OrderResult", "Plan", "PlanResult", "PoliciesResult", "ProfileError",
    "Reproduction", "RunResult", "Scenario", "ScenarioError", "SchedulerError", "Series", "SimulationError",
    "StartAndBand", "SweepResult", "Table", "TenantsResult", "Trace", "TraceError", "__version__", "bursts",
    "bursts_receive", "bursts_thresholds", "buy", "calibrate", "check", "collectives", "compare", "convert", "demo",
    "doctor", "emulate", "explain", "from_chakra", "from_execution_trace", "from_kineto", "from_networkx", "messages",
    "op_dag", "order", "plan", "preset", "preset_graph", "presets", "profile", "read_plan", "report", "reproduce",
    "run", "schema", "start_and_band", "sweep", "sweep_list", "sweep_merge", "tenants", "tenants_lp", "tenants_map",
    "tenants_policies",
]
# fmt: on


def __getattr__(name: str) -> "Any":
    if name in (*_MODULES, "torch"):  # torch is not in `__all__`, because `import *` must work without PyTorch
        return import_module(f"gradtide.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'gradtide' has no attribute {name!r}")
    module, own = _HOMES[name]
    return getattr(import_module(f"gradtide.{module}"), own)


def __dir__() -> list[str]:
    return __all__
