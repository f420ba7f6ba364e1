"""A resolved job: compute, communication and placement, with all derived defaults."""

from dataclasses import dataclass, field
from typing import Any

from gradtide.counts import Counts
from gradtide.layers import Layer
from gradtide.parallel.costs import Accelerator, Costs, Training
from gradtide.parallel.fit import Fit, fit, would_fit
from gradtide.parallel.spec import Described, Layout
from gradtide.parallel.times import OwnTimes
from gradtide.scenario.core import job as core
from gradtide.scenario.device import JobDevice
from gradtide.scenario.keys.job import AdaptiveTable, Collective, Compute, OpTimes, Schedule
from gradtide.scenario.keys.parallel import Parallel
from gradtide.scenario.opdag import OpDag
from gradtide.units import PPM


@dataclass(frozen=True)
class Division:
    """How a model is divided over ranks, with every default.

    Attributes:
        keys: the table `parallel` of the file.
        device: what ranks compute on, and who says so.
        costs: what they compute, and on which accelerator.
        layout: how they work together.
        described: all of it in numbers, and the memory of a rank.
        own: times of ops that the user gives; None where the accelerator decides.
        times: the same as a resolved scenario has them.
    """

    keys: Parallel
    device: JobDevice = field(compare=False)
    costs: Costs
    layout: Layout
    described: Described
    own: OwnTimes | None = None
    times: OpTimes | None = None

    @property
    def accelerator(self) -> Accelerator:
        """What ranks compute on."""
        return self.costs.accelerator

    @property
    def training(self) -> Training:
        """How the model is trained."""
        return self.costs.training

    @property
    def fit(self) -> Fit:
        """Whether the fullest rank fits in the memory of its device."""
        return fit(self.described.memory, self.costs.mesh.pp)

    @property
    def feasibility(self) -> dict[str, Any]:
        """What a summary says of that: the verdict, the bytes to spare or lacking, and what would make it fit.

        `would_fit` lists changes on as many ranks, each with the table `parallel` to write. Where there are none,
        `fits_on` is a mesh of more ranks, and None if nothing that was tried is enough.
        """
        found = {
            "feasibility": self.fit.verdict,
            "spare_bytes": self.fit.spare_bytes,
            "likely_bytes": list(self.fit.likely_bytes),
        }
        if self.fit.verdict == "fits":
            return found
        # The default number of micro-batches is that of the stages; only another number fixes the global batch.
        is_own_batch = self.layout.micro_batches != self.costs.mesh.pp
        ways = would_fit(self.costs, self.layout, self.global_batch if is_own_batch else None)
        on_more = {} if ways.changes else {"fits_on": None if ways.more is None else ways.more.described}
        return {**found, "would_fit": [change.described for change in ways.changes], **on_more}

    @property
    def global_batch(self) -> int:
        """Sequences of an iteration."""
        return self.described.tokens // self.training.seq

    @property
    def compute_ps(self) -> int:
        """Compute time of an iteration of the rank that computes longest."""
        described = self.described
        kinds = [sum(op.forward_ps + op.backward_ps + op.recompute_ps for op in kind.ops) for kind in described.kinds]
        stages = [0] * self.costs.mesh.pp
        first = 0
        for index, count in enumerate(described.stages):
            stages[index % len(stages)] += sum(kinds[kind] for _, kind in described.blocks[first : first + count])
            first += count
        micro = self.layout.micro_batches
        return max(micro * stage + update for stage, update in zip(stages, described.optimizer_ps, strict=True))

    @property
    def op_count(self) -> int:
        """Compute ops and transfers of an iteration, of all stages, about."""
        ops = sum(1 for _ in self.described.ops_of(self.described.blocks))
        return 8 * ops * self.layout.micro_batches


@dataclass(frozen=True)
class RecordedStep:
    """A recorded step that a job repeats.

    Attributes:
        recorded: the step as the core reads it.
        ranks: how many it has.
        op_count: compute ops and transfers of all of them.
        compute_ps: compute time of the rank that computes longest.
    """

    recorded: dict[str, Any]
    ranks: int
    op_count: int
    compute_ps: int


@dataclass(frozen=True)
class Job:
    """A training job, resolved.

    `compute`, `collective` and `schedule` are the tables of the file (docs/reference/scenario.md says what each key
    means) with nothing left to be decided: what a default depends on has been looked at.

    Attributes:
        name: key of the job in the scenario.
        model: name of the model in results.
        layers: times of one worker for one mini-batch, after `compute.scale_to`; input side first.
        graph: what a worker computes, times in picoseconds; `None` is what the layers mean.
        hosts: host of each rank, by index into the cluster's hosts.
        iterations: measured iterations; `None` if `run.duration` decides.
        placement: packed, spread or random: which rank is on which host; what a list names is in `hosts`.
        task: train or inference where workers pull from servers; exchange if the bytes are not gradients; else `None`.
        compute: `batch` is `None` for a model with times of its own, and so is `device` if the job names none; `order`
            without a graph.
        collective: `group` is a number of ranks; `ps` is there if `kind` is "ps" and then complete.
        schedule: buckets and their order.
        ranks: with order "file", rank of every layer; smaller is sent earlier.
        bands: bands of the job's flows, shared out evenly over the layers from the input side; if adaptive, low.
        adaptive: how its workers change their bands; `None` if they do not.
        start_ps: simulated time at which the job starts.
        announced_packets: threshold that its messages announce to switches; `None` if they announce nothing.
        division: how its model is divided over ranks; `None` if every worker has the whole model.
        step: what its ranks do, where that was recorded.
        device: what it computes on, and who says so.
        stated: keys of `compute` that somebody gave; all others are defaults.
    """

    name: str
    model: str
    layers: tuple[Layer, ...]
    graph: OpDag | None
    hosts: tuple[int, ...]
    iterations: int | None
    placement: str
    task: str | None
    compute: Compute
    collective: Collective
    schedule: Schedule
    ranks: tuple[int, ...] | None
    bands: tuple[int, ...]
    adaptive: AdaptiveTable | None
    start_ps: int
    announced_packets: int | None
    division: Division | None
    step: RecordedStep | None
    # The origin of a value does not affect equality.
    device: JobDevice = field(compare=False)
    stated: frozenset[str] = field(compare=False)

    @property
    def is_divided(self) -> bool:
        """Whether its model is divided over ranks."""
        return self.division is not None or self.step is not None

    @property
    def servers(self) -> int:
        """Number of parameter servers; 0 without."""
        ps = self.collective.ps
        return 0 if ps is None else ps.servers or 0

    @property
    def group(self) -> int:
        """Ranks of a group of the collective; 0 where it has none."""
        return self.collective.group if isinstance(self.collective.group, int) else 0

    @property
    def workers(self) -> int:
        """Number of workers, including servers that are not on extra hosts."""
        ps = self.collective.ps
        return len(self.hosts) - (self.servers if ps is not None and ps.placement == "separate" else 0)

    @property
    def computing(self) -> int:
        """Number of workers that compute: all hosts of the job but its parameter servers, wherever these are."""
        return len(self.hosts) - (self.servers if len(self.hosts) > 1 else 0)

    @property
    def is_pulled(self) -> bool:
        """Whether every iteration begins with a pull from the servers."""
        return self.collective.is_pulled

    @property
    def is_in_step(self) -> bool:
        """Whether all workers are in the same iteration at any time."""
        return self.collective.bound == 0

    @property
    def is_uneven(self) -> bool:
        """Whether workers compute at different times or in different orders."""
        compute = self.compute
        return compute.noise_ppm > 0 or compute.straggler is not None or compute.order == "random"

    @property
    def draws_orders(self) -> bool:
        """Whether the order of its transfers is drawn anew in every iteration."""
        return self.schedule.order in ("random", "arbitrary")

    @property
    def is_foreseen(self) -> bool:
        """Whether each of its transfers is tried in both bands before it is sent."""
        return self.adaptive is not None and self.adaptive.policy == "oracle"

    @property
    def compute_ps(self) -> int:
        """Compute time of one iteration, without noise or straggler."""
        if (divided := self.division or self.step) is not None:
            return divided.compute_ps
        if self.graph is not None:
            return sum(op.time for op in self.graph.ops if op.kind == "comp")
        return sum(r.forward_ps + r.backward_ps + r.update_ps for r in self.layers)

    @property
    def pace_ppm(self) -> tuple[int, int]:
        """The least and the largest factor on a worker's compute times, in millionths."""
        width = -(-self.compute.noise_ppm * 1_732_051 // PPM)
        straggler = PPM if self.compute.straggler is None else self.compute.straggler.factor_ppm
        return PPM - width, -(-(PPM + width) * straggler // PPM)

    @property
    def op_count(self) -> int:
        """Ops that a worker computes in an iteration."""
        if (divided := self.division or self.step) is not None:
            return divided.op_count
        return 2 * len(self.layers) if self.graph is None else sum(op.kind == "comp" for op in self.graph.ops)

    @property
    def parameter_count(self) -> int:
        """Layers or ops that have parameters."""
        return sum(r.parameter_bytes > 0 for r in self.layers)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the whole gradient."""
        return sum(r.parameter_bytes for r in self.layers)

    @property
    def counts(self) -> Counts:
        """What one exchange takes."""
        keys = self.collective
        group = None if keys.group is None else self.group or 1
        return core.counts(core.algorithm(keys.kind, group, keys.inside, self.servers), len(self.hosts))
