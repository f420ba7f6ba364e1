"""A resolved job: its model, compute, communication and hosts, with all defaults filled in."""

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
class ParallelModel:
    """A model that is divided over ranks, with all defaults filled in.

    Attributes:
        keys: the table `parallel`, with defaults.
        device: device of the ranks, and where the scenario names it.
        costs: model, accelerator, mesh and training settings, from which the times of ops are estimated.
        layout: pipeline schedule, sharding and prefetch of the ranks.
        described: times and sizes of all ops, and the memory that a rank needs.
        own: times of ops given by the user; None if times are estimated for the accelerator.
        times: `own` as the table `compute.times` of the resolved scenario.
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
        """The accelerator of the ranks."""
        return self.costs.accelerator

    @property
    def training(self) -> Training:
        """How the model is trained."""
        return self.costs.training

    @property
    def fit(self) -> Fit:
        """Whether the rank that needs most memory fits in the memory of its device, and how much is left or lacking."""
        return fit(self.described.memory, self.costs.mesh.pp)

    @property
    def feasibility(self) -> dict[str, Any]:
        """Memory in a job's summary: the verdict, the bytes to spare or lacking, and changes with which the model fits.

        `would_fit` lists changes with the same number of ranks, each with the table `parallel` to write. If there are
        none, `fits_on` is a mesh with more ranks, or None if no mesh that was tried fits.
        """
        found = {
            "feasibility": self.fit.verdict,
            "spare_bytes": self.fit.spare_bytes,
            "likely_bytes": list(self.fit.likely_bytes),
        }
        if self.fit.verdict == "fits":
            return found
        # A mesh keeps the global batch only if the user set the number of micro-batches, whose default is `pp`.
        is_own_batch = self.layout.micro_batches != self.costs.mesh.pp
        ways = would_fit(self.costs, self.layout, self.global_batch if is_own_batch else None)
        on_more = {} if ways.changes else {"fits_on": None if ways.more is None else ways.more.described}
        return {**found, "would_fit": [change.described for change in ways.changes], **on_more}

    @property
    def global_batch(self) -> int:
        """Number of sequences per iteration."""
        return self.described.tokens // self.training.seq

    @property
    def compute_ps(self) -> int:
        """Compute time of an iteration on the slowest rank, picoseconds."""
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
        """Estimated number of compute ops and transfers per iteration, over all pipeline stages."""
        ops = sum(1 for _ in self.described.ops_of(self.described.blocks))
        return 8 * ops * self.layout.micro_batches


@dataclass(frozen=True)
class RecordedStep:
    """A recorded training step, which a job repeats as its iteration.

    Attributes:
        recorded: the step in the form of the core's input.
        ranks: number of ranks.
        op_count: number of compute ops and transfers of all ranks.
        compute_ps: compute time of the slowest rank, picoseconds.
    """

    recorded: dict[str, Any]
    ranks: int
    op_count: int
    compute_ps: int


@dataclass(frozen=True)
class Job:
    """A training job whose keys have been checked.

    `compute`, `collective` and `schedule` are the tables of the file with all defaults, including defaults that depend
    on other keys. docs/reference/scenario.md describes the keys.

    Attributes:
        name: NAME of `job.NAME`.
        model: name of the model in results.
        layers: layers, input side first, with a worker's times for one mini-batch, scaled to `compute.scale_to`.
        graph: ops of a worker with times in picoseconds; `None` for a model of layers.
        hosts: host of each rank, by number.
        iterations: number of measured iterations; `None` if `run.duration` limits it.
        placement: how ranks were assigned to hosts: packed, spread or random; packed if the key is a list of hosts.
        task: "train" or "inference" if workers pull from servers, "exchange" if the bytes are not gradients; otherwise
            `None`.
        compute: `batch` is `None` for a model with given times, `device` is `None` for such a model if the job names
            no device, and `order` is `None` without a graph.
        collective: `group` is a number of ranks; `ps` is present and complete if `kind` is "ps".
        schedule: buckets and their order.
        ranks: send priority of every layer if the order is "file"; the smallest is sent first.
        bands: priority bands of the job's flows, distributed evenly over the layers from the input side; the initial
            bands if `adaptive` is set.
        adaptive: policy by which workers change their bands; `None` if the bands are fixed.
        start_ps: simulated time at which the job starts.
        announced_packets: marking threshold that the job's bursts announce to switches; `None` without announcements.
        parallel_model: how the model is divided over ranks; `None` if every worker has the whole model.
        step: the recorded step that the ranks repeat; `None` for other models.
        device: device of the job, and where the scenario names it.
        stated: keys of `compute` that the user set; all others have their default.
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
    parallel_model: ParallelModel | None
    step: RecordedStep | None
    # `device` and `stated` record the origin of values, so they do not affect equality.
    device: JobDevice = field(compare=False)
    stated: frozenset[str] = field(compare=False)

    @property
    def is_parallel(self) -> bool:
        """Whether the model of the job is divided over ranks."""
        return self.parallel_model is not None or self.step is not None

    @property
    def servers(self) -> int:
        """Number of parameter servers; 0 if the collective has none."""
        ps = self.collective.ps
        return 0 if ps is None else ps.servers or 0

    @property
    def group(self) -> int:
        """Number of ranks per group of the collective; 0 if it has no groups."""
        return self.collective.group if isinstance(self.collective.group, int) else 0

    @property
    def workers(self) -> int:
        """Number of workers, as in the key `workers`. It includes parameter servers unless they are separate hosts."""
        ps = self.collective.ps
        return len(self.hosts) - (self.servers if ps is not None and ps.placement == "separate" else 0)

    @property
    def computing(self) -> int:
        """Number of workers that compute: the job's hosts other than parameter servers."""
        return len(self.hosts) - (self.servers if len(self.hosts) > 1 else 0)

    @property
    def is_pulled(self) -> bool:
        """Whether every iteration begins with a pull from the servers."""
        return self.collective.is_pulled

    @property
    def is_in_step(self) -> bool:
        """Whether all workers wait for one another between iterations: always, unless `collective.ps.sync` is set."""
        return self.collective.bound == 0

    @property
    def is_uneven(self) -> bool:
        """Whether workers compute at different times or in different orders."""
        compute = self.compute
        return compute.noise_ppm > 0 or compute.straggler is not None or compute.order == "random"

    @property
    def draws_orders(self) -> bool:
        """Whether the order of the job's transfers is drawn anew in every iteration."""
        return self.schedule.order in ("random", "arbitrary")

    @property
    def is_foreseen(self) -> bool:
        """Whether the job uses the policy oracle, which simulates each chunk in both bands before sending it."""
        return self.adaptive is not None and self.adaptive.policy == "oracle"

    @property
    def compute_ps(self) -> int:
        """Compute time of one iteration in picoseconds, without noise or straggler."""
        if (parallel := self.parallel_model or self.step) is not None:
            return parallel.compute_ps
        if self.graph is not None:
            return sum(op.time for op in self.graph.ops if op.kind == "comp")
        return sum(r.forward_ps + r.backward_ps + r.update_ps for r in self.layers)

    @property
    def pace_ppm(self) -> tuple[int, int]:
        """Smallest and largest factor that noise and straggler can apply to compute times, in millionths."""
        width = -(-self.compute.noise_ppm * 1_732_051 // PPM)
        straggler = PPM if self.compute.straggler is None else self.compute.straggler.factor_ppm
        return PPM - width, -(-(PPM + width) * straggler // PPM)

    @property
    def op_count(self) -> int:
        """Number of compute ops of a worker per iteration; for a parallel job, `op_count` of its model or step."""
        if (parallel := self.parallel_model or self.step) is not None:
            return parallel.op_count
        return 2 * len(self.layers) if self.graph is None else sum(op.kind == "comp" for op in self.graph.ops)

    @property
    def parameter_count(self) -> int:
        """Number of layers, or receiving ops of a graph, that have parameters."""
        return sum(r.parameter_bytes > 0 for r in self.layers)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the whole gradient."""
        return sum(r.parameter_bytes for r in self.layers)

    @property
    def counts(self) -> Counts:
        """Numbers of steps and messages, and bytes, of one collective operation of the job."""
        keys = self.collective
        group = None if keys.group is None else self.group or 1
        return core.counts(core.algorithm(keys.kind, group, keys.inside, self.servers), len(self.hosts))
