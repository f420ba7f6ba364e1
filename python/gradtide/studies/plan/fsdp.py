"""Settings of PyTorch's FSDP2 (`fully_shard`): the search space, the best setting, and a bound of the time."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import product
from typing import Any

from gradtide.parallel.bound import Least, Position, least
from gradtide.scenario import Scenario
from gradtide.scenario.job import ParallelModel
from gradtide.scenario.plan import PlannedSharding
from gradtide.studies.result import RunResult

UNITS = (1, 2, 4)
"""Numbers of blocks per unit that are tried. Larger units have fewer fixed costs, but their collectives start later."""
DEPTHS = (1, 2, 3)
"""Prefetch depths that are tried, in units. Depth 0 is not tried, because a GPU cannot run without prefetch."""
ALIKE = 0.01
"""Settings whose iteration times exceed the shortest by at most this share are considered equally fast."""


@dataclass(frozen=True, order=True)
class Setting:
    """A way to shard a model with `fully_shard`.

    Attributes:
        zero: ZeRO stage; 3 frees a unit's gathered parameters after its forward pass, 2 keeps them until backward.
        unit: number of blocks in a unit, whose parameters are gathered together.
        forward: prefetch depth of the forward pass, in units.
        backward: prefetch depth of the backward pass, in units.
    """

    zero: int = 3
    unit: int = 1
    forward: int = 1
    backward: int = 1

    @property
    def changes(self) -> int:
        """Number of attributes that differ from PyTorch's default."""
        return sum(mine != torchs for mine, torchs in zip(astuple(self), astuple(DEFAULT), strict=True))

    @property
    def keys(self) -> dict[str, int]:
        """The setting as keys of the scenario's table `parallel`."""
        return {
            "zero": self.zero,
            "unit": self.unit,
            "prefetch": self.forward,
            "backward_prefetch": self.backward,
        }

    def planned(self, parallel_model: ParallelModel) -> PlannedSharding:
        """Return the setting as the FSDP part of a plan."""
        units = parallel_model.described.units
        most = len(units) - 1
        reshards = self.zero == 3
        # The last unit keeps its parameters after the forward pass, because its backward pass follows at once. With
        # tied embeddings this does not apply: the head's parameters are in the root unit, which torch never reshards.
        keeps = reshards and units[0] != ("",)
        return PlannedSharding(units, min(self.forward, most), min(self.backward, most), reshards, keeps)


DEFAULT = Setting()
"""PyTorch's default, with one block in each unit."""


def settings(parallel_model: ParallelModel) -> list[Setting]:
    """Return the search space, with PyTorch's default first. ZeRO-2 needs no prefetch in the backward pass."""
    blocks = len(parallel_model.described.blocks) - 2
    units = [unit for unit in UNITS if unit == 1 or 2 * unit <= blocks]
    freed = [Setting(3, *one) for one in product(units, DEPTHS, DEPTHS)]
    return freed + [Setting(2, *one) for one in product(units, DEPTHS)]


@dataclass
class Tried:
    """A setting with its runs.

    Attributes:
        setting: the setting.
        scenario: the job with this setting.
        result: run of the scenario; `None` if it does not fit in memory or has not run yet.
        checked: run with the user's engine, for settings in the result's table; `None` if the search used this engine.
    """

    setting: Setting
    scenario: Scenario
    result: RunResult | None = None
    checked: RunResult | None = None

    @property
    def parallel_model(self) -> ParallelModel:
        """Parallelisation of the model over the ranks with this setting."""
        found = self.scenario.jobs[0].parallel_model
        assert found is not None
        return found

    @property
    def memory_bytes(self) -> int:
        """Memory that the rank with the largest need uses, in bytes."""
        return self.parallel_model.described.memory.total

    @property
    def fits(self) -> bool:
        """Whether the setting fits in the memory of each rank."""
        return self.parallel_model.fit.verdict != "does not fit"

    @property
    def time_ms(self) -> float:
        """Iteration time on the engine of the search, in milliseconds, by which settings are ranked."""
        assert self.result is not None
        return run_ms(self.result)

    def run_beside(self, default: "Tried") -> RunResult | None:
        """Return the run to compare with `default`: with the user's engine if both have that, else the search's."""
        return self.result if self.checked is None or default.checked is None else self.checked

    @property
    def shown_ms(self) -> float:
        """Iteration time to display, in milliseconds: with the user's engine if the setting was run with it."""
        run = self.run_beside(self)
        assert run is not None
        return run_ms(run)


def run_ms(result: RunResult) -> float:
    """Return the mean iteration time of a run, in milliseconds."""
    time_ms: float = result.job["iteration_time_ms"]["mean"]
    return time_ms


def best_of(every: Sequence[Tried]) -> Tried:
    """Return the best setting that was run and fits in memory; PyTorch's default, `every[0]`, if there is none."""
    return _best([one for one in every if one.result is not None and one.fits]) or every[0]


def _best(some: Sequence[Tried]) -> Tried | None:
    """Of the settings whose times exceed the shortest by at most `ALIKE`, return the one closest to the default."""
    if not some:
        return None
    limit = (1 + ALIKE) * min(one.time_ms for one in some)
    return min(
        (one for one in some if one.time_ms <= limit),
        key=lambda one: (one.setting.changes, sort_key(one)),
    )


def sort_key(one: Tried) -> tuple[float, int, Setting]:
    """Return the sort key of settings: time, then memory; the setting itself makes the order total."""
    return round(one.time_ms, 6), one.memory_bytes, one.setting


def bound(ran: Sequence[Tried]) -> Least:
    """Return a lower bound of the iteration time of all settings and all orders of transfers, in milliseconds.

    The bound is the minimum over all combinations of unit size and ZeRO stage. Transfers take their simulated times,
    or 0 if transfers of other groups than FSDP's may have slowed them down.
    """
    found = []
    for one in {(one.setting.zero, one.setting.unit): one for one in ran}.values():
        assert one.result is not None
        rows = one.result.transfers.to_dicts()
        step = least(_positions(one))
        once = one.parallel_model.described.optimizer_ps[0] / 1e9
        once += sum(_took_ms(row, one) for row in rows if row["group"] == "norm")
        found.append(Least(one.parallel_model.layout.micro_batches * step.time + once, step.why))
    return min(found)


def _took_ms(row: Mapping[str, Any], one: Tried) -> float:
    """Return the time in ms for which a transfer (`row`) occupies its queue: launch overhead and transfer time."""
    assert one.result is not None
    launch_ps: int = one.result.scenario.jobs[0].schedule.overhead_ps
    moving_us: float = row["end_us"] - row["start_us"]
    return launch_ps / 1e9 + moving_us / 1e3


def _positions(one: Tried) -> list[Position]:
    """Return all units in the order of the forward pass, then of the backward pass, with their times in ms."""
    assert one.result is not None
    described, rows = one.parallel_model.described, one.result.transfers.to_dicts()
    # Transfers of other groups may have slowed the FSDP transfers down. Then the measured durations are not lower
    # bounds, and count as 0.
    is_alone = {row["group"] for row in rows} <= {"fsdp", "norm"}
    took: dict[tuple[str, int], float] = {}
    for row in rows:
        if row["group"] == "fsdp":
            took.setdefault((row["collective"], row["first_layer"]), _took_ms(row, one))
    first, units = 0, []
    for count in described.unit_blocks:
        units.append((first, described.blocks[first : first + count]))
        first += count

    def compute(blocks: Sequence[tuple[str, int]], *keys: str) -> float:
        times: list[int] = [getattr(op, key) for op in described.ops_of(blocks) for key in keys]
        return sum(times) / 1e9

    forward = [
        Position(
            blocks[0][0],
            took.get(("all_gather", place), 0.0) if is_alone or place == 0 else 0.0,
            compute(blocks, "forward_ps"),
            0.0,
        )
        for place, blocks in units
    ]
    is_freed = one.setting.zero == 3
    backward = [
        Position(
            f"{blocks[0][0]} backward",
            took.get(("all_gather", place), 0.0) if is_freed and is_alone and place != units[-1][0] else 0.0,
            compute(blocks, "backward_ps", "recompute_ps"),
            took.get(("reduce_scatter", place), 0.0) if is_alone else 0.0,
        )
        for place, blocks in reversed(units)
    ]
    return forward + backward
