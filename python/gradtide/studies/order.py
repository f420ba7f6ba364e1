"""`gradtide order`: orders the parameter transfers of a worker; returns the makespan and its gap to the optimum."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from gradtide import words
from gradtide.answer import Answer, Candidate, Premise, ranked
from gradtide.answer.again import again
from gradtide.answer.uncertainty import ORDERS
from gradtide.errors import SchedulerError, hinted
from gradtide.scenario.core import job as core
from gradtide.scenario.opdag import OpDag, load_ranks, op_dag
from gradtide.studies.graph import find_dag

SCHEDULERS = ("layer", "tic", "tac", "tac_folded", "random", "arbitrary", "optimal")
TIES = ("id", "upstream")
WITH_TIES, WITH_SEED = ("tac", "tac_folded"), ("random", "arbitrary", "optimal")
"""Schedulers whose result depends on `ties` (first tuple) or on the seed (second tuple)."""


class OrderScheduler(Protocol):
    """Interface of user-defined schedulers."""

    def ranks(self, dag: OpDag) -> Mapping[int, Any]:
        """Return {op id: rank} for every transfer in `dag.recvs`; smaller ranks go first, then smaller ids."""
        ...


@dataclass(frozen=True)
class OrderResult:
    """An order of a DAG's transfers, with its makespan and lower bounds. All times are in the unit of the DAG.

    Attributes:
        scheduler: name of the scheduler.
        ties: rule that orders transfers with the same rank in TAC.
        seed: root seed of the random streams.
        priority: rank (send priority) by op id, in send order. TIC may give equal ranks, which are sent by ascending
            id.
        makespan: time until the target op ends.
        lower_bound: maximum of critical path, total compute time and total transfer time.
        proven_bound: best proven lower bound on the makespan of any order, which is at least `lower_bound`.
        time_unit: unit of all times, from ps to s; "" if the DAG states none.
    """

    scheduler: str
    ties: str
    seed: int
    priority: dict[int, int]
    makespan: int
    lower_bound: int
    proven_bound: int
    time_unit: str = ""

    @property
    def order(self) -> list[int]:
        """Op ids of the transfers in send order."""
        return list(self.priority)

    @property
    def optimal(self) -> bool:
        """Whether the makespan is proven to be minimal."""
        return self.makespan == self.proven_bound

    @property
    def gap(self) -> float:
        """Excess of the makespan over `lower_bound`, as a share of it. An optimal order can have a gap above 0."""
        return self._above(self.lower_bound)

    @property
    def proven_gap(self) -> float:
        """Excess of the makespan over `proven_bound`, as a share of this bound; 0 for an optimal order."""
        return self._above(self.proven_bound)

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `gradtide order --json`."""
        return {
            "schema": "gradtide.order/1",
            **vars(self),
            "priority": {str(op): rank for op, rank in self.priority.items()},
            "optimal": self.optimal,
            "gap": self.gap,
            "proven_gap": self.proven_gap,
            **self.answer.to_dict(),
        }

    @property
    def answer(self) -> Answer:
        """The study's answer: headline, premises, and the makespan as a candidate with its lower bound."""
        by = self.scheduler
        most = words.difference(100 * self.proven_gap)
        best = "and no order is faster" if self.optimal else f"at most {most} more than with the best order"
        bound = words.ticks(self.lower_bound, self.time_unit)
        above = "it equals" if self.makespan == self.lower_bound else f"it is {words.difference(100 * self.gap)} above"
        takes = words.ticks(self.makespan, self.time_unit)
        unit = "" if self.time_unit else ", which states no unit (time_unit)"
        return Answer(
            f"{self.scheduler}: the iteration takes {takes}, {best}; {above} the lower bound of {bound}.",
            (
                Premise("times of ops", f"those of the graph{unit}", True),
                *([Premise("ties", self.ties, self.ties != "id", change="--ties")] if by in WITH_TIES else []),
                *([Premise("seed", str(self.seed), self.seed != 0, change="--seed")] if by in WITH_SEED else []),
            ),
            ranked(
                [
                    Candidate(self.scheduler, float(self.makespan)),
                    Candidate("lower bound", float(self.lower_bound), is_bound=True),
                ]
            ),
            ORDERS.to_dict(),
            again(),
        )

    def _above(self, bound: int) -> float:
        return (self.makespan - bound) / bound if bound else 0.0


def order(
    dag: OpDag | Mapping[str, Any] | str | Path,
    scheduler: "str | Path | OrderScheduler" = "optimal",
    *,
    ties: str = "id",
    seed: int = 0,
) -> OrderResult:
    """Order the transfers of an op DAG.

    Args:
        dag: a file, the name of a built-in op graph, the content of a file as a dict (`ops` with id, kind, inputs and
            time, and `target`), or an `OpDag`.
        scheduler: layer, tic, tac, tac_folded, random, arbitrary or optimal; the path of an order file, which has a
            suffix or a slash; or an object with a method `ranks(dag)` that returns {op id: rank}.
        ties: order of transfers with the same rank in TAC: "id", or "upstream" as in TicTac's released code.
        seed: root seed of the random streams, at least 0.

    Returns:
        The order, its exact makespan, and lower bounds on the makespan of any order.

    Raises:
        ScenarioError: if the DAG or the order file is invalid.
        ValueError: if the scheduler or rule for ties is unknown, or a user-defined scheduler omits transfers.

    Source:
        Hashemi et al., TicTac (2019), sections 3 and 4, and its released code; docs/models/orders.md.

    Example:
        >>> ops = [
        ...     {"id": 0, "kind": "recv", "inputs": [], "time": 9},
        ...     {"id": 1, "kind": "recv", "inputs": [], "time": 2},
        ...     {"id": 2, "kind": "comp", "inputs": [1], "time": 9},
        ...     {"id": 3, "kind": "comp", "inputs": [0, 2], "time": 1},
        ... ]
        >>> best = order({"ops": ops, "target": 3})
        >>> best.order, best.makespan, best.optimal
        ([1, 0], 12, True)
    """
    if ties not in TIES:
        raise ValueError(f"no rule for ties is called {ties!r}; there are {', '.join(TIES)}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"a seed is a whole number from 0 below 2^64, not {seed}")
    file = _order_file(scheduler)
    if isinstance(scheduler, str) and file is None and scheduler not in SCHEDULERS:
        there_are = f"there are {', '.join(SCHEDULERS)}, and order files (.json)"
        hint = hinted(scheduler, SCHEDULERS, there_are, kind="order")
        raise ValueError(f"no scheduler is called {scheduler!r}; {hint}")
    if isinstance(dag, (str, Path)):
        dag = find_dag(dag)
    elif not isinstance(dag, OpDag):
        dag = op_dag(dag)
    if file is not None:
        name, ranks = str(scheduler), load_ranks(file, dag)
    elif isinstance(scheduler, str):
        name, ranks = scheduler, None
    else:
        assert not isinstance(scheduler, Path)  # paths are order files, handled above
        name, ranks = type(scheduler).__name__, ranks_of(scheduler, dag)
    ordered = core.order(dag, name, ranks, ties, seed)
    ids = [dag.ops[place].id for place in ordered["order"]]
    return OrderResult(
        scheduler=name,
        ties=ties,
        seed=seed,
        priority=dict(zip(ids, ordered["priority"], strict=True)),
        makespan=ordered["makespan_ticks"],
        lower_bound=ordered["lower_bound_ticks"],
        proven_bound=ordered["proven_bound_ticks"],
        time_unit=dag.time_unit,
    )


def _order_file(scheduler: object) -> Path | None:
    if isinstance(scheduler, Path):
        return scheduler
    return Path(scheduler) if isinstance(scheduler, str) and ("." in scheduler or "/" in scheduler) else None


def ranks_of(scheduler: OrderScheduler, dag: OpDag) -> dict[int, int]:
    """Return the ranks of a user-defined scheduler, renumbered from 0, ties by op id; raise a `SchedulerError`."""
    name, recvs = type(scheduler).__name__, dag.recvs
    try:
        given = scheduler.ranks(dag)
    except Exception as error:
        raise SchedulerError(f"{name}.ranks(dag) failed{_place(error)}: {type(error).__name__}: {error}") from error
    names = {op.id: op.name for op in dag.ops}
    wanted = "{op id: number} for every id in dag.recvs"
    if not isinstance(given, Mapping):
        raise SchedulerError(f"{name}.ranks(dag) returned {type(given).__name__}; return {wanted}")
    missing = [op for op in recvs if op not in given]
    if missing:
        raise SchedulerError(
            f"{name} does not rank transfer {missing[0]} ({names[missing[0]]}): {len(recvs) - len(missing)} of "
            f"{len(recvs)} transfers have a rank; return {wanted}"
        )
    unknown = [op for op in given if op not in set(recvs)]
    if unknown:
        raise SchedulerError(f"{name} ranks {unknown[0]!r}, which is not a needed transfer; return {wanted}")
    for op in recvs:
        rank = given[op]
        if isinstance(rank, bool) or not isinstance(rank, Real) or rank != rank:
            raise SchedulerError(
                f"{name} gives transfer {op} ({names[op]}) the rank {rank!r}, which is not a number; return {wanted}"
            )
    return {op: rank for rank, op in enumerate(sorted(recvs, key=lambda op: given[op]))}


def _place(error: Exception) -> str:
    """Return the file and line of the user's code that raised an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    # The first frame of the traceback is the call in `ranks_of`. Without a second one, the call itself failed.
    return f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if len(frames) > 1 else ""
