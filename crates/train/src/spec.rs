//! A valid scenario as Python passes it: whole numbers with their units in the field names; unknown fields are errors.
//!
//! Network records use the types of `gradtide_net`. A field that has a default has one without effect, so that a
//! scenario written before the field existed stays valid and keeps its meaning. User-facing defaults, units and error
//! messages are in `gradtide.scenario` (Python); constraints that JSON cannot express are checked when the run is
//! planned ([`crate::SpecError`]).
//!
//! The file is longer than 600 lines because it lists one record for each table of a scenario.

mod parallel;
mod step;

pub use parallel::{
    BesideSpec, BlockKindSpec, BlockOpSpec, BlockSpec, ContextSpec, MeshSpec, ParallelSpec, PipelineSpec, RoleSpec,
    ShardingSpec,
};
pub use step::{RecordedSpec, StepClassSpec, StepGroupSpec, StepSpec, StepTransferSpec};

use crate::collective::algorithms::ps::Placement;
use crate::collective::algorithms::{Algorithm, Ring};
use gradtide_net::hosts::Host;
use gradtide_net::packet::tcp::{CongestionAlgorithm, Recovery, TcpConfig};
use gradtide_net::packet::{Capacity, Discipline, Follow, Marking, PcnConfig, QueueConfig, SharedBuffer};
use gradtide_net::route::Policy;
use gradtide_net::{Bytes, Link, Rate, Ratio, Time};
use serde::Deserialize;
use std::num::NonZeroU32;

/// One run: jobs on a cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Training jobs, in the order of the scenario file.
    #[serde(default)]
    pub jobs: Vec<JobSpec>,
    /// Background flows.
    #[serde(default)]
    pub traffic: Vec<TrafficSpec>,
    /// Hosts and links.
    pub cluster: ClusterSpec,
    /// Engine, seed and length.
    #[serde(default)]
    pub run: RunSpec,
}

/// One data-parallel training job.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Key of the job in the scenario (`job.<name>`).
    pub name: String,
    /// Layers from the input side (index 0) to the output side.
    #[serde(default)]
    pub layers: Vec<LayerSpec>,
    /// Host index of each worker; the length is the number of workers.
    pub hosts: Vec<u32>,
    /// Number of measured iterations; `None` if `run.duration_ps` limits the run.
    pub iterations: Option<u32>,
    /// Collective algorithm that aggregates a bucket.
    #[serde(default)]
    pub collective: CollectiveSpec,
    /// Grouping of gradients into buckets, and the send order of the buckets.
    #[serde(default)]
    pub schedule: ScheduleSpec,
    /// Traffic classes (bands) of the job's flows, divided evenly over the layers from the input side; 0 is the most
    /// urgent. A chunk takes the band of the layer that contains its first byte.
    #[serde(default = "first_band")]
    pub bands: Vec<u8>,
    /// Simulated time at which the job starts.
    #[serde(default, rename = "start_ps")]
    pub start: Time,
    /// Variation of the workers' compute times.
    #[serde(default)]
    pub compute: ComputeSpec,
    /// Parameter servers on some of the hosts, from which workers pull at the start of every iteration; `None`
    /// aggregates buckets with `collective`.
    pub servers: Option<ServersSpec>,
    /// Op graph of a worker's computation if it is not a chain of layers; `layers` then contains the parameters that
    /// the graph receives, without times. Excludes `servers`.
    pub ops: Option<OpsSpec>,
    /// Mesh of a parallel job and the step of a rank; `layers` then contains nothing that is simulated.
    pub parallel: Option<ParallelSpec>,
    /// A recorded step of all ranks, in place of `parallel`.
    pub recorded: Option<RecordedSpec>,
    /// Queue length, in packets, from which switches mark while an announced message of the job is in flight; a
    /// multiple of 5 below 80. `None` disables announcements.
    pub announced_packets: Option<u32>,
    /// Policy by which workers change their bands while they send; `None` keeps the bands of `bands`.
    pub adaptive: Option<AdaptiveSpec>,
}

fn first_band() -> Vec<u8> {
    vec![0]
}

impl JobSpec {
    /// Returns whether the job trains a model that is divided over ranks.
    pub fn is_divided(&self) -> bool {
        self.parallel.is_some() || self.recorded.is_some()
    }

    /// Returns the number of hosts that compute; parameter servers are not counted.
    pub fn worker_count(&self) -> usize {
        self.hosts.len() - self.collective.algorithm.servers(self.hosts.len() as u32).len()
    }

    /// Returns whether an oracle with full knowledge of future flows chooses the bands.
    pub fn has_oracle(&self) -> bool {
        matches!(self.adaptive, Some(AdaptiveSpec::Oracle(_)))
    }
}

/// Policy by which workers change their bands.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "policy", rename_all = "snake_case")]
pub enum AdaptiveSpec {
    /// Policy from a worker's own observations.
    Deadline(DeadlineSpec),
    /// Policy with full knowledge of future flows, which is not realisable.
    Oracle(OracleSpec),
}

/// Upper bound for the policies: see [`research`](crate::research).
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OracleSpec {
    /// The more urgent of the two bands.
    pub high: u8,
    /// The less urgent of the two bands.
    pub low: u8,
    /// Exchange rate of the objective: the iteration time, in µs, that is worth one second of a flow's time in the
    /// network.
    pub price_ppm: u64,
    /// Size, in bytes, of the largest flow whose time in the network counts.
    pub small_bytes: u64,
}

/// Band chosen by the remaining slack: see [`Rule`](crate::research::Rule).
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadlineSpec {
    /// Band of chunks that would miss their deadline otherwise.
    pub high: u8,
    /// Band of chunks with slack.
    pub low: u8,
    /// Whether chunks have deadlines; without deadlines all chunks use the low band.
    pub has_deadlines: bool,
    /// Limit on chunks in flight in the low band; not 0.
    pub credit: u32,
    /// Limit on the bytes in flight of a connection in the low band.
    pub window_bytes: u64,
    /// Rate of the slowest link in bit/s; not 0.
    pub link_bps: u64,
    /// Round-trip time without queueing, in picoseconds.
    pub round_trip_ps: u64,
    /// Tolerated increase of the iteration time over sending in the high band only, in millionths.
    pub tolerance_ppm: u64,
    /// Safety margin on the measured time of a worker's remaining work, in millionths.
    pub margin_ppm: u64,
    /// Whether the smallest slack of all workers decides the band in which a chunk starts.
    pub exchange: bool,
    /// Whether a worker's slack includes the time for which it waits for slower workers.
    pub counts_waits: bool,
}

/// Computation of an op graph, executed sequentially.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpsSpec {
    /// Order in which the ops are executed.
    #[serde(default)]
    pub order: ComputeOrderSpec,
    /// Ops and their dependencies.
    pub graph: GraphSpec,
}

/// Order in which a worker executes its ops.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ComputeOrderSpec {
    /// Executes the runnable op that is first in the graph.
    #[default]
    Listed,
    /// Executes a random runnable op: every worker has its own random order, the same in all iterations.
    Random,
    /// Executes next the update that takes the least compute time to reach (Caramel, section 4.1).
    Caramel,
}

/// Training with parameter servers op by op: pull, compute, push, update.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServersSpec {
    /// Number of hosts that are servers; the others are workers.
    pub count: u32,
    /// Choice of the hosts that are servers.
    pub placement: Placement,
    /// Assignment of parameters to servers.
    pub shards: ShardSpec,
    /// Training or inference.
    pub task: TaskSpec,
    /// Synchronisation of workers at the start of an iteration.
    pub sync: SyncSpec,
    /// Share of the pulls that swap places with a later pull, in millionths.
    pub disorder_ppm: u64,
    /// Op graph of a worker; `None` is the chain of the layers.
    pub graph: Option<GraphSpec>,
}

/// Assignment of parameters to servers.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ShardSpec {
    /// Assigns parameters by descending size, each to the server with the fewest bytes.
    Bytes,
    /// Assigns parameters round-robin, in the order of the model.
    RoundRobin,
}

/// Synchronisation of workers at the start of an iteration.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum SyncSpec {
    /// Waits for all workers.
    Sync,
    /// Waits for no worker.
    Async,
    /// Waits for workers that would fall too far behind (stale synchronous parallel, Ho et al. 2013).
    Bounded {
        /// Number of iterations by which a worker may be ahead of the slowest; 0 waits for all.
        staleness: u32,
    },
}

impl SyncSpec {
    /// Returns the number of iterations by which a worker may be ahead of the slowest; `None` without a bound.
    pub const fn bound(self) -> Option<u32> {
        match self {
            Self::Sync => Some(0),
            Self::Async => None,
            Self::Bounded { staleness } => Some(staleness),
        }
    }
}

/// Phases of an iteration.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum TaskSpec {
    /// Pull, forward, backward, push, update.
    Train,
    /// Pull, forward.
    Inference,
}

/// Op graph of a worker: the parameters it receives and the ops it computes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSpec {
    /// Ops in the order of the file.
    pub ops: Vec<GraphOpSpec>,
    /// Index of the op whose end completes the computation.
    pub target: u32,
    /// Index of the last op of the forward pass; `None` if the graph is only a forward pass, or does not specify the
    /// op.
    pub inference_target: Option<u32>,
}

/// A vertex of a [`GraphSpec`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphOpSpec {
    /// The user's number of the op; the smaller one breaks ties.
    pub id: u64,
    /// Name shown to users.
    pub name: String,
    /// Indices of the ops that this op waits for.
    #[serde(default)]
    pub inputs: Vec<u32>,
    /// Size, in bytes, of the parameter that the op receives, not 0; `None` for an op that computes.
    pub receives_bytes: Option<u64>,
    /// Compute time; for a received parameter, the time in which its server applies the summed gradients.
    #[serde(default)]
    pub time_ps: u64,
    /// Whether the op depends on parameters alone.
    #[serde(default)]
    pub param_only: bool,
    /// Indices of the ops that receive the parameters whose gradients this op completes.
    #[serde(default)]
    pub updates: Vec<u32>,
}

/// Variation of the workers' compute times around the times of the layers.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ComputeSpec {
    /// Time that a unit of compute takes while a transfer of the job is in flight, in millionths (1_000_000 = no
    /// slowdown).
    pub overlap_slowdown_ppm: u64,
    /// Coefficient of variation of a worker's compute time from iteration to iteration, in millionths.
    pub noise_ppm: u64,
    /// A worker that is slow.
    pub straggler: Option<StragglerSpec>,
}

/// Identical workers, without a slowdown by overlapping transfers.
impl Default for ComputeSpec {
    fn default() -> Self {
        Self { overlap_slowdown_ppm: 1_000_000, noise_ppm: 0, straggler: None }
    }
}

/// A worker that is slow, in all iterations or in some.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StragglerSpec {
    /// Index of the slow worker; `None` draws one in every iteration.
    pub worker: Option<u32>,
    /// Ratio of its compute time to that of the others, in millionths.
    pub factor_ppm: u64,
    /// Probability that the worker is slow in an iteration, in millionths.
    pub probability_ppm: u64,
}

/// One layer; times are of one worker and one mini-batch.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LayerSpec {
    /// Name shown to users.
    pub name: String,
    /// Forward time in picoseconds.
    pub forward_ps: u64,
    /// Backward time in picoseconds.
    pub backward_ps: u64,
    /// Time to apply the aggregated gradient, in picoseconds.
    pub update_ps: u64,
    /// Size of the layer's gradient, in bytes; 0 for a layer without parameters.
    pub parameter_bytes: u64,
    /// Whether the entry is host time in which the device is idle, rather than a layer of the model.
    pub is_host: bool,
}

/// Aggregation of a bucket.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollectiveSpec {
    /// Collective algorithm.
    pub algorithm: Algorithm,
    /// Treatment of the bytes that remain when a chunk is divided by the number of ranks.
    pub remainder: RemainderSpec,
    /// Number of parts of a chunk, which pass through the algorithm independently; not 0. `None` chooses the number for
    /// each chunk (Caramel, section 4.4).
    pub depth: Option<u32>,
    /// Rate at which a rank adds received data to its own; `None` for additions that take no time.
    #[serde(rename = "reduction_rate_bps")]
    pub reduction_rate: Option<Rate>,
}

/// A ring over undivided chunks, whose reductions take no time.
impl Default for CollectiveSpec {
    fn default() -> Self {
        let algorithm = Algorithm::from(Ring);
        Self { algorithm, remainder: RemainderSpec::Sent, depth: Some(1), reduction_rate: None }
    }
}

impl CollectiveSpec {
    /// Returns whether the bytes that remain when a chunk is divided by the number of ranks are not sent.
    pub fn drops_remainder(&self) -> bool {
        self.remainder == RemainderSpec::Dropped
    }
}

/// Treatment of the bytes that remain when a chunk is divided by the number of ranks.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum RemainderSpec {
    /// Some parts are one byte longer.
    Sent,
    /// The remainder is not sent, as in the thesis's simulator.
    Dropped,
}

/// Grouping of gradients into buckets, and the send order of the buckets.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Order of the transmission queue.
    pub order: OrderSpec,
    /// Rule that groups gradients into buckets.
    pub fusion: FusionSpec,
    /// Largest part of a bucket that is sent without returning to the queue; `None` sends buckets whole, unless the
    /// order chooses chunks itself.
    #[serde(rename = "chunk_bytes")]
    pub chunk: Option<Bytes>,
    /// Limit on chunks in flight; not 0.
    pub credit: u32,
    /// Whether the next forward pass waits for all transfers.
    pub barrier: bool,
    /// Time for which every transfer occupies the transmission queue before its first byte (0 in the thesis).
    #[serde(rename = "overhead_ps")]
    pub overhead: Time,
    /// Time from the end of a transfer on all workers to the earliest start of the next (0 in the thesis).
    #[serde(rename = "sync_ps")]
    pub sync: Time,
}

/// Layer-wise transfers in order of readiness, one at a time; the next iteration waits only for the parameters that it
/// reads.
impl Default for ScheduleSpec {
    fn default() -> Self {
        let (order, fusion) = (OrderSpec::Fifo, FusionSpec::Cap { bytes: Bytes(0) });
        Self { order, fusion, chunk: None, credit: 1, barrier: false, overhead: Time::ZERO, sync: Time::ZERO }
    }
}

/// Rule that groups gradients into buckets.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FusionSpec {
    /// Groups consecutive layers from the output side while they fit.
    Cap {
        /// Largest size of a bucket, in bytes; 0 gives every layer its own bucket.
        bytes: Bytes,
    },
    /// Groups the layers as the user lists them.
    Buckets {
        /// Number of layers in each bucket, from the input side; the sum is the number of layers.
        layer_counts: Vec<u32>,
    },
    /// Groups layers from the output side; the layer that reaches the cap closes the bucket, as in PyTorch DDP.
    Reach {
        /// Cap of the first bucket, in bytes.
        #[serde(rename = "first_bytes")]
        first: Bytes,
        /// Cap of the other buckets, in bytes.
        bytes: Bytes,
    },
    /// Groups the gradients that are expected to be ready by the end of a cycle, as in Horovod.
    Ready {
        /// Largest size of a bucket, in bytes; a larger layer has its own bucket.
        bytes: Bytes,
        /// Length of a cycle; with 0 a cycle ends as soon as a gradient is ready and the network is idle.
        #[serde(rename = "cycle_ps")]
        cycle: Time,
    },
    /// Chooses buckets by the order and the message cost: groups small layers that are computed while the network is
    /// busy (Caramel, section 4.2).
    Adaptive,
}

/// Order of the transmission queue.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OrderSpec {
    /// Sends buckets in the order in which they become ready.
    Fifo,
    /// Sends the lowest layer first; with `queues`, layers are divided into that many classes, each first come, first
    /// served.
    Priority {
        /// Number of classes of layers; `None` gives every layer its own class.
        queues: Option<u32>,
    },
    /// Sends buckets in a random order, drawn anew in every iteration.
    Random,
    /// Sends buckets in the order of readiness (pulls: in the order of the model), with swaps that are drawn anew in
    /// every iteration. Models frameworks that enforce no order.
    Arbitrary {
        /// Share of the transfers that swap places with a later one, in millionths.
        disorder_ppm: u64,
    },
    /// Timing-independent order of TicTac: by the smallest number of transfers that an op needs together with this one;
    /// for layers, the lowest one first.
    Tic,
    /// Timing-aware order of TicTac: first the transfer that unblocks compute soonest; for layers, the lowest one.
    Tac,
    /// TAC in which ops that depend on parameters alone take no time; only for pulls.
    TacFolded,
    /// Places each bucket in the backward pass or the next forward pass (Caramel, section 4.3).
    Caramel,
    /// Earliest deadline first, in chunks; the deadline of a bucket is its first read.
    Edf,
    /// The best of all other orders, by a simulation of one channel; for pulls, the best order that the search finds.
    Optimal,
    /// Order by a rank for each layer, from the user's file; smaller ranks are sent earlier.
    File {
        /// One rank per layer, in layer order; with servers and a graph, one per parameter in the order of the graph.
        ranks: Vec<u32>,
        /// Whether a bucket waits until all buckets of smaller rank have been sent; not for pulls.
        #[serde(default)]
        in_turn: bool,
    },
    /// Sends the buckets of a plan, in place of those of `fusion`.
    Planned {
        /// Buckets in descending priority; every layer with parameters is in exactly one.
        buckets: Vec<PlannedBucketSpec>,
    },
}

/// A bucket of a plan.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct PlannedBucketSpec {
    /// Layers of the bucket, all of which have parameters.
    pub layers: Vec<u32>,
    /// Release time, as an offset of compute time; beyond the compute time of an iteration, an offset of the next.
    #[serde(default, rename = "gate_ps")]
    pub gate: Time,
}

/// Background flows of one tenant, drawn or read in Python; columns have equal lengths and are ordered by start.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficSpec {
    /// Key of the tenant in the scenario (`traffic.<name>`).
    pub name: String,
    /// Start time of each flow.
    #[serde(rename = "start_ps")]
    pub start: Vec<Time>,
    /// Sending host of each flow.
    pub src: Vec<u32>,
    /// Receiving host of each flow, different from the sending host.
    pub dst: Vec<u32>,
    /// Payload of each flow, in bytes.
    pub bytes: Vec<Bytes>,
    /// Traffic class (band) of each flow.
    pub band: Vec<u8>,
    /// Time from a flow's completion to the start of the next flow of the same sending host, which does not start
    /// before its start time; `None` starts every flow at its start time.
    #[serde(rename = "idle_ps")]
    pub idle: Option<Time>,
    /// Whether all sending hosts wait for one another: `idle` then begins with the completion of the last flow in
    /// flight.
    #[serde(default)]
    pub together: bool,
    /// Time from the moment at which a flow may open its connection to its first byte.
    #[serde(default, rename = "setup_ps")]
    pub setup: Time,
    /// Queue length for announcements, as [`JobSpec::announced_packets`].
    pub announced_packets: Option<u32>,
}

/// Queue of every egress port; used by the packet engine only.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSpec {
    /// Queueing discipline.
    pub discipline: Discipline,
    /// Capacity of a port's queue over all bands.
    pub capacity: Capacity,
    /// Active queue management; `None` drops at the tail only.
    pub mark: Option<Marking>,
    /// Burst announcements (PCN), if switches support them; these switches mark by threshold.
    pub pcn: Option<PcnConfig>,
}

impl Default for QueueSpec {
    fn default() -> Self {
        let QueueConfig { discipline, capacity, .. } = QueueConfig::pfifo_fast();
        Self { discipline, capacity, mark: None, pcn: None }
    }
}

/// Transport protocol of every flow; used by the packet engine only.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransportSpec {
    /// Congestion control algorithm.
    pub congestion: CongestionAlgorithm,
    /// Whether connections negotiate ECN.
    pub ecn: bool,
    /// Payload of a full segment, in bytes.
    pub segment_bytes: u32,
    /// Initial window, in segments.
    pub initial_window_segments: u32,
    /// Size of the send and receive buffers, in bytes; the window of the ideal transport.
    pub window_bytes: u64,
    /// Choice of segments to send during fast recovery.
    pub recovery: Recovery,
    /// Source of the timer settings.
    pub timers: TimersSpec,
}

/// Transport of [`TcpConfig::over`], of which only the timers depend on the network.
impl Default for TransportSpec {
    fn default() -> Self {
        let tcp = TcpConfig::over(1, Rate::MAX, Time::ZERO);
        Self {
            congestion: tcp.algorithm,
            ecn: tcp.ecn,
            segment_bytes: tcp.segment_bytes.into(),
            initial_window_segments: tcp.initial_window_segments.into(),
            window_bytes: tcp.window.0,
            recovery: tcp.recovery,
            timers: TimersSpec::Derived,
        }
    }
}

/// Source of the minimum retransmission timeout, the delayed-ACK time and the initial retransmission timeout.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum TimersSpec {
    /// Derived from an estimate of the longest round-trip time.
    Derived,
    /// The values of Linux: 200 ms, 40 ms and 1 s.
    Linux,
}

/// Hosts and links.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Shape of the network.
    pub topology: TopologySpec,
    /// Links for which the topology has no other values.
    pub link: LinkSpec,
    /// Machines with several GPUs, whose network cards are the hosts of the topology; `None`: every host is a worker.
    pub node: Option<NodeSpec>,
    /// Time that a host's stack takes for a message, added to the delay of every link of a host (0 in the thesis).
    #[serde(default, rename = "host_latency_ps")]
    pub host_latency: Time,
    /// Additional delay of a host for messages of jobs; `None` adds none.
    pub host: Option<Host>,
    /// Choice among equal-cost routes.
    #[serde(default)]
    pub routing: Policy,
    /// Queue of every egress port.
    #[serde(default)]
    pub queue: QueueSpec,
    /// Buffer shared by the ports of a switch; `None` gives each port its own.
    pub switch_buffer: Option<SharedBuffer>,
    /// Transport protocol of every flow.
    #[serde(default)]
    pub transport: TransportSpec,
}

/// A machine whose GPUs are connected by a scale-up switch.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Number of GPUs of a node; not 0.
    pub gpus: u32,
    /// Number of network cards of a node; not 0, and a divisor of the GPUs. GPU g uses card g · nics / gpus.
    pub nics: u32,
    /// Link between a GPU and the node's scale-up switch, in each direction.
    pub scale_up: LinkSpec,
}

/// Shape of the network; [`gradtide_net::FatTree`] describes all variants but `Custom`.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TopologySpec {
    /// Hosts on one switch.
    Star {
        /// Number of hosts.
        hosts: u32,
    },
    /// Leaf switches with hosts, each linked to every spine.
    LeafSpine {
        /// Number of leaf switches.
        leaves: u32,
        /// Number of hosts of each leaf switch.
        hosts_per_leaf: u32,
        /// Number of spine switches.
        spines: u32,
        /// Links between leaves and spines.
        fabric_link: Link,
    },
    /// Fat tree with two layers of switches.
    Clos2 {
        /// Number of ports of a switch; even.
        ports: u32,
        /// Uplink capacity of an edge switch divided by its downlink capacity.
        bisection: Ratio,
    },
    /// Fat tree with three layers of switches.
    Clos3 {
        /// Number of ports of a switch; even.
        ports: u32,
        /// Uplink capacity of an edge switch divided by its downlink capacity.
        bisection: Ratio,
    },
    /// Topology given as a list of cables.
    Custom {
        /// Number of hosts; hosts are the first nodes.
        hosts: u32,
        /// Names of the switches, which are the nodes after the hosts.
        switches: Vec<String>,
        /// Cables of the network; at least one.
        cables: Vec<CableSpec>,
    },
}

/// A cable: one link in each direction.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CableSpec {
    /// Node at the first end.
    pub a: u32,
    /// Node at the second end.
    pub b: u32,
    /// Nominal rate.
    #[serde(rename = "rate_bps")]
    pub rate: Rate,
    /// Propagation delay.
    #[serde(default, rename = "delay_ps")]
    pub delay: Time,
}

/// One link.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Nominal rate.
    #[serde(rename = "rate_bps")]
    pub rate: Rate,
    /// Propagation delay.
    #[serde(default, rename = "delay_ps")]
    pub delay: Time,
    /// Share of the rate that remains for gradients after headers and retransmissions, in millionths (1_000_000 = all).
    #[serde(default = "all_ppm")]
    pub efficiency_ppm: u64,
}

const fn all_ppm() -> u64 {
    1_000_000
}

impl LinkSpec {
    /// Returns the link at its nominal rate.
    pub const fn nominal(&self) -> Link {
        Link { rate: self.rate, delay: self.delay }
    }
}

/// Engine, seed and length.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunSpec {
    /// Network engine.
    pub engine: EngineSpec,
    /// Largest relative error of the fluid engine's rates, in millionths; `None` for exact rates.
    pub accuracy_ppm: Option<NonZeroU32>,
    /// Root seed of all random streams.
    pub seed: u64,
    /// Standards or simulator whose clock and transport the packet engine follows.
    pub follow: Follow,
    /// Upper bound of the random delay of each background flow's start, on the packet engine.
    #[serde(rename = "start_jitter_ps")]
    pub start_jitter: Option<Time>,
    /// Whether each rank of a parallel job is simulated instead of one per class. Always so on the packet engine.
    pub all_ranks: bool,
    /// Simulated time after which no further iteration starts.
    #[serde(rename = "duration_ps")]
    pub duration: Option<Time>,
    /// Number of measured iterations of each job for which individual operations are recorded.
    pub timeline_iterations: u32,
    /// Quantities that are sampled over time; `None` disables the probe. Used by the packet engine only.
    pub probe: Option<ProbeSpec>,
}

/// Quantities that are sampled over time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeSpec {
    /// Sampling interval; not 0.
    #[serde(rename = "every_ps")]
    pub every: Time,
    /// Names of the links whose queues are sampled; `None` samples all.
    pub links: Option<Vec<String>>,
    /// Connections whose congestion windows are sampled.
    #[serde(default)]
    pub cwnd: Vec<CwndSpec>,
}

/// Connections of a job or of background flows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CwndSpec {
    /// Name of the job or of the background flows.
    pub tenant: String,
    /// Number of the background flow; `None` selects all.
    pub flow: Option<u64>,
}

/// Network engine.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum EngineSpec {
    /// Fluid engine: flows at their max-min fair rates.
    #[default]
    Fluid,
    /// Packet engine: queues and TCP, packet by packet.
    Packet,
}
