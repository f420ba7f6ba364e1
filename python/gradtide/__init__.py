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
    from gradtide.errors import (
        GradtideError,
        ProfileError,
        ScenarioError,
        SchedulerError,
        SimulationError,
        TraceError,
    )
    from gradtide.lp import StartAndBand, start_and_band
    from gradtide.profiling import ModelProfile, op_dag, profile
    from gradtide.results import RunResult, Series, Table
    from gradtide.scenario import Scenario
    from gradtide.scenario.graph import from_networkx
    from gradtide.scenario.opdag import Op, OpDag
    from gradtide.scenario.plan import Plan, read_plan
    from gradtide.studies.buy import BuyResult, buy
    from gradtide.studies.collectives import CollectivesResult, compare_collectives
    from gradtide.studies.compare import CompareResult, compare
    from gradtide.studies.exchange import messages
    from gradtide.studies.graph import preset_graph
    from gradtide.studies.order import OrderResult, order
    from gradtide.studies.plan import PlanResult, plan
    from gradtide.studies.run import preset, run
    from gradtide.traces import Trace, from_chakra, from_kineto

_HOMES = {
    "BuyResult": "studies.buy",
    "CollectivesResult": "studies.collectives",
    "CompareResult": "studies.compare",
    "GradtideError": "errors",
    "ModelProfile": "profiling",
    "Op": "scenario.opdag",
    "OpDag": "scenario.opdag",
    "OrderResult": "studies.order",
    "Plan": "scenario.plan",
    "PlanResult": "studies.plan",
    "ProfileError": "errors",
    "RunResult": "results",
    "Scenario": "scenario",
    "ScenarioError": "errors",
    "SchedulerError": "errors",
    "Series": "results",
    "SimulationError": "errors",
    "StartAndBand": "lp",
    "Table": "results",
    "Trace": "traces",
    "TraceError": "errors",
    "buy": "studies.buy",
    "compare": "studies.compare",
    "compare_collectives": "studies.collectives",
    "from_chakra": "traces",
    "from_kineto": "traces",
    "from_networkx": "scenario.graph",
    "messages": "studies.exchange",
    "op_dag": "profiling",
    "order": "studies.order",
    "plan": "studies.plan",
    "preset": "studies.run",
    "preset_graph": "studies.graph",
    "profile": "profiling",
    "read_plan": "scenario.plan",
    "run": "studies.run",
    "start_and_band": "lp",
}

__all__ = [
    "BuyResult",
    "CollectivesResult",
    "CompareResult",
    "GradtideError",
    "ModelProfile",
    "Op",
    "OpDag",
    "OrderResult",
    "Plan",
    "PlanResult",
    "ProfileError",
    "RunResult",
    "Scenario",
    "ScenarioError",
    "SchedulerError",
    "Series",
    "SimulationError",
    "StartAndBand",
    "Table",
    "Trace",
    "TraceError",
    "__version__",
    "buy",
    "compare",
    "compare_collectives",
    "from_chakra",
    "from_kineto",
    "from_networkx",
    "messages",
    "op_dag",
    "order",
    "plan",
    "preset",
    "preset_graph",
    "profile",
    "read_plan",
    "run",
    "start_and_band",
]


def __getattr__(name: str) -> Any:
    if name == "torch":  # needs PyTorch, which `from gradtide import *` must not
        return import_module("gradtide.torch")
    if name not in _HOMES:
        raise AttributeError(f"module 'gradtide' has no attribute {name!r}")
    return getattr(import_module(f"gradtide.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
