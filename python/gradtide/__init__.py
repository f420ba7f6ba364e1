"""gradtide: see, plan and tame the network traffic of distributed training.

    >>> import gradtide as gt
    >>> base = gt.preset("paper/gao2020-ch4").replace(link_rate="1Gbps")
    >>> fifo, priority = gt.run(base), gt.run(base.replace(order="priority", barrier=False))
    >>> round(1 - priority.iteration_time / fifo.iteration_time, 3)
    0.16

Importing this module is cheap: what a name needs is imported when the name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradtide._core import __version__

if TYPE_CHECKING:
    from gradtide.codes import explain
    from gradtide.errors import (
        GradtideError,
        ProfileError,
        ScenarioError,
        SchedulerError,
        SimulationError,
        TraceError,
    )
    from gradtide.lp import StartAndBand, start_and_band
    from gradtide.papers import Reproduction, reproduce
    from gradtide.profiling import ModelProfile, op_dag, profile
    from gradtide.results import RunResult, Series, Table
    from gradtide.scenario import Scenario
    from gradtide.scenario import json_schema as schema
    from gradtide.scenario.graph import from_networkx
    from gradtide.scenario.opdag import Op, OpDag
    from gradtide.scenario.plan import Plan, read_plan
    from gradtide.studies.buy import BuyResult, buy
    from gradtide.studies.collectives import CollectivesResult, collectives
    from gradtide.studies.compare import CompareResult, compare
    from gradtide.studies.convert import convert
    from gradtide.studies.demo import demo
    from gradtide.studies.doctor import doctor
    from gradtide.studies.exchange import messages
    from gradtide.studies.graph import preset_graph
    from gradtide.studies.order import OrderResult, order
    from gradtide.studies.plan import PlanResult, plan
    from gradtide.studies.run import preset, run
    from gradtide.studies.tenants.bands import TenantsResult, tenants
    from gradtide.studies.tenants.boundary import BoundaryResult
    from gradtide.studies.tenants.boundary import boundary as tenants_map
    from gradtide.studies.tenants.lp import LpResult
    from gradtide.studies.tenants.lp import plan_bands as tenants_lp
    from gradtide.studies.tenants.policies import PoliciesResult
    from gradtide.studies.tenants.policies import policies as tenants_policies
    from gradtide.traces import Trace, from_chakra, from_kineto

_HOMES = {
    "BoundaryResult": "studies.tenants.boundary",
    "BuyResult": "studies.buy",
    "CollectivesResult": "studies.collectives",
    "CompareResult": "studies.compare",
    "GradtideError": "errors",
    "LpResult": "studies.tenants.lp",
    "ModelProfile": "profiling",
    "Op": "scenario.opdag",
    "OpDag": "scenario.opdag",
    "OrderResult": "studies.order",
    "Plan": "scenario.plan",
    "PlanResult": "studies.plan",
    "PoliciesResult": "studies.tenants.policies",
    "ProfileError": "errors",
    "Reproduction": "papers",
    "RunResult": "results",
    "Scenario": "scenario",
    "ScenarioError": "errors",
    "SchedulerError": "errors",
    "Series": "results",
    "SimulationError": "errors",
    "StartAndBand": "lp",
    "Table": "results",
    "TenantsResult": "studies.tenants.bands",
    "Trace": "traces",
    "TraceError": "errors",
    "buy": "studies.buy",
    "collectives": "studies.collectives",
    "compare": "studies.compare",
    "convert": "studies.convert",
    "demo": "studies.demo",
    "doctor": "studies.doctor",
    "explain": "codes",
    "from_chakra": "traces",
    "from_kineto": "traces",
    "from_networkx": "scenario.graph",
    "messages": "studies.exchange",
    "op_dag": "profiling",
    "order": "studies.order",
    "plan": "studies.plan",
    "preset": "studies.run",
    "preset_graph": "studies.graph",
    "presets": "presets:",
    "profile": "profiling",
    "read_plan": "scenario.plan",
    "report": "report:",
    "reproduce": "papers",
    "run": "studies.run",
    "schema": "scenario:json_schema",
    "start_and_band": "lp",
    "tenants": "studies.tenants.bands",
    "tenants_lp": "studies.tenants.lp:plan_bands",
    "tenants_map": "studies.tenants.boundary:boundary",
    "tenants_policies": "studies.tenants.policies:policies",
}
"""Where a name is: a module, after a colon the name that it has there if it is another; none for the module itself."""

__all__ = [
    "BoundaryResult",
    "BuyResult",
    "CollectivesResult",
    "CompareResult",
    "GradtideError",
    "LpResult",
    "ModelProfile",
    "Op",
    "OpDag",
    "OrderResult",
    "Plan",
    "PlanResult",
    "PoliciesResult",
    "ProfileError",
    "Reproduction",
    "RunResult",
    "Scenario",
    "ScenarioError",
    "SchedulerError",
    "Series",
    "SimulationError",
    "StartAndBand",
    "Table",
    "TenantsResult",
    "Trace",
    "TraceError",
    "__version__",
    "buy",
    "collectives",
    "compare",
    "convert",
    "demo",
    "doctor",
    "explain",
    "from_chakra",
    "from_kineto",
    "from_networkx",
    "messages",
    "op_dag",
    "order",
    "plan",
    "preset",
    "preset_graph",
    "presets",
    "profile",
    "read_plan",
    "report",
    "reproduce",
    "run",
    "schema",
    "start_and_band",
    "tenants",
    "tenants_lp",
    "tenants_map",
    "tenants_policies",
]


def __getattr__(name: str) -> Any:
    if name == "torch":  # needs PyTorch, which `from gradtide import *` must not
        return import_module("gradtide.torch")
    if name not in _HOMES:
        raise AttributeError(f"module 'gradtide' has no attribute {name!r}")
    home, colon, other = _HOMES[name].partition(":")
    module = import_module(f"gradtide.{home}")
    return module if colon and not other else getattr(module, other or name)


def __dir__() -> list[str]:
    return __all__
