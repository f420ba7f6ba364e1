//! A valid scenario in the form in which Python passes it. Quantities are whole numbers with their units in the field
//! names, and unknown fields are errors.
//!
//! Network records use the types of `gradtide_net`. A field's default is the behaviour before the field existed, so
//! that older scenarios stay valid and keep their meaning. User-facing defaults, units and error messages are in
//! `gradtide.scenario` (Python). Constraints that JSON cannot express are checked when the run is planned
//! ([`crate::SpecError`]).
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

/// One run of jobs and background flows on a cluster.
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
    /// Engine, seed and duration of the run.
    #[serde(default)]
    pub run: RunSpec,
}

/// One training job.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Key of the job in the scenario (`job.<name>`).
    pub name: String,
    /// Layers from the input side (index 0) to the output side.
    #[serde(default)]
    pub layers: Vec<LayerSpec>,
    /// Host index of each rank. Ranks are workers, except those that are parameter servers.
    pub hosts: Vec<u32>,
    /// Number of measured iterations; `None` if `run.duration_ps` limits the run.
    pub iterations: Option<u32>,
    /// Collective algorithm that aggregates a bucket.
    #[serde(default)]
    pub collective: CollectiveSpec,
    /// Grouping of gradients into buckets, and the send order of the buckets.
    #[serde(default)]
    pub schedule: ScheduleSpec,
    /// Traffic classes (bands) of the job's flows, divided evenly over the layers from the input side. Band 0 is the
    /// most urgent. A chunk has the band of the layer that contains its first byte.
    #[serde(default = "first_band")]
    pub bands: Vec<u8>,
    /// Simulated time at which the job starts.
    #[serde(default, rename = "start_ps")]
    pub start: Time,
    /// Variation of the workers' compute times.
    #[serde(default)]
    pub compute: ComputeSpec,
    /// Parameter servers on some of the hosts, from which workers pull at the start of every iteration. If `None`,
    /// `collective` aggregates the buckets.
    pub servers: Option<ServersSpec>,
    /// Op graph of a worker's computation, unless it is a chain of layers. `layers` then contains the parameters that
    /// the graph receives, without times. Cannot be combined with `servers`.
    pub ops: Option<OpsSpec>,
    /// Mesh of a parallel job, with the step of one rank. `layers` then has no effect on the simulation.
    pub parallel: Option<ParallelSpec>,
    /// A recorded step of all ranks, as an alternative to `parallel`.
    pub recorded: Option<RecordedSpec>,
    /// Announced queue length, in packets: while an announced message of the job is in flight, switches mark packets
    /// from this queue length on. A multiple of 5 below 80. `None` disables announcements.
    pub announced_packets: Option<u32>,
    /// Policy by which workers change their bands during a run. `None` keeps the bands of `bands`.
    pub adaptive: Option<AdaptiveSpec>,
}

fn first_band() -> Vec<u8> {
    vec![0]
}

impl JobSpec {
    /// Returns whether the job is a parallel job, whose model is divided over ranks.
    pub fn is_parallel(&self) -> bool {
        self.parallel.is_some() || self.recorded.is_some()
    }

    /// Returns the number of hosts that compute. Parameter servers are not counted.
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
    /// Policy based on the workers' own measurements.
    Deadline(DeadlineSpec),
    /// Policy with full knowledge of future flows, which is not realisable.
    Oracle(OracleSpec),
}

/// Parameters of the oracle, an upper bound for the policies. See [`research`](crate::research).
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OracleSpec {
    /// The more urgent of the two bands.
    pub high: u8,
    /// The less urgent of the two bands.
    pub low: u8,
    /// Price of flow time: the iteration time, in µs, that is worth one second of a flow's time in the network.
    pub price_ppm: u64,
    /// Size, in bytes, of the largest flow whose time in the network counts.
    pub small_bytes: u64,
}

/// Parameters of the policy that chooses bands by the remaining slack. See [`Rule`](crate::research::Rule).
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadlineSpec {
    /// Band of chunks that would otherwise miss their deadline.
    pub high: u8,
    /// Band of chunks with slack.
    pub low: u8,
    /// Whether chunks have deadlines. Without deadlines, all chunks use the low band.
    pub has_deadlines: bool,
    /// Limit on the chunks in flight in the low band; not 0.
    pub credit: u32,
    /// Limit on the bytes in flight of a connection in the low band.
    pub window_bytes: u64,
    /// Rate of the slowest link in bit/s; not 0.
    pub link_bps: u64,
    /// Round-trip time without queueing, in picoseconds.
    pub round_trip_ps: u64,
    /// Tolerated increase of the iteration time, relative to sending only in the high band, in millionths.
    pub tolerance_ppm: u64,
    /// Safety margin that is added to the measured duration of the remaining transfers, in millionths.
    pub margin_ppm: u64,
    /// Whether the smallest slack of all workers determines the band in which a chunk starts.
    pub exchange: bool,
    /// Whether a worker's slack includes the time for which it waits for slower workers.
    pub counts_waits: bool,
}

/// Computation of an op graph, whose ops are executed one after the other.
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
    /// Executes the ready op that is first in the graph.
    #[default]
    Listed,
    /// Executes a random ready op. Every worker has its own random order, which is the same in all iterations.
    Random,
    /// Executes the ops of the update that takes the least remaining compute time (Caramel, section 4.1).
    Caramel,
}

/// Training with parameter servers op by op, with the phases pull, compute, push and update.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServersSpec {
    /// Number of hosts that are servers. All other hosts are workers.
    pub count: u32,
    /// Rule that selects the hosts of the servers.
    pub placement: Placement,
    /// Assignment of parameters to servers.
    pub shards: ShardSpec,
    /// Training or inference.
    pub task: TaskSpec,
    /// Synchronisation of workers at the start of an iteration.
    pub sync: SyncSpec,
    /// Share of the pulls that swap places with a later pull, in millionths.
    pub disorder_ppm: u64,
    /// Op graph of a worker; `None` for the chain of the layers.
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
    /// A worker waits for all workers.
    Sync,
    /// A worker waits for no other worker.
    Async,
    /// A worker waits for workers that would otherwise fall too far behind (stale synchronous parallel, Ho et al.
    /// 2013).
    Bounded {
        /// Number of iterations by which a worker may be ahead of the slowest worker. With 0, a worker waits for all
        /// others.
        staleness: u32,
    },
}

impl SyncSpec {
    /// Returns the number of iterations by which a worker may be ahead of the slowest worker; `None` without a bound.
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
    /// Training: pull, forward, backward, push, update.
    Train,
    /// Inference: pull, forward.
    Inference,
}

/// Op graph of a worker: the parameters that it receives and the ops that it computes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSpec {
    /// Ops in the order in which the file lists them.
    pub ops: Vec<GraphOpSpec>,
    /// Index of the op whose end completes the computation.
    pub target: u32,
    /// Index of the last op of the forward pass. `None` if the whole graph is a forward pass, or if the graph does not
    /// specify this op.
    pub inference_target: Option<u32>,
}

/// A vertex of a [`GraphSpec`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphOpSpec {
    /// The user's number of the op. The smaller number breaks ties.
    pub id: u64,
    /// Name shown to users.
    pub name: String,
    /// Indices of the ops on which this op depends.
    #[serde(default)]
    pub inputs: Vec<u32>,
    /// Size, in bytes, of the parameter that the op receives, not 0; `None` for an op that computes.
    pub receives_bytes: Option<u64>,
    /// Compute time. For a received parameter, the time in which its server applies the summed gradients.
    #[serde(default)]
    pub time_ps: u64,
    /// Whether the op depends only on parameters.
    #[serde(default)]
    pub param_only: bool,
    /// Indices of the ops that receive the parameters whose gradients this op completes.
    #[serde(default)]
    pub updates: Vec<u32>,
}

/// Variation of the workers' compute times around the given times.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ComputeSpec {
    /// Duration of a piece of compute while a transfer of the job is in flight, in millionths of its duration without
    /// transfers. 1_000_000 means no slowdown.
    pub overlap_slowdown_ppm: u64,
    /// Coefficient of variation of a worker's compute time from iteration to iteration, in millionths.
    pub noise_ppm: u64,
    /// The worker that is slow, if there is one.
    pub straggler: Option<StragglerSpec>,
}

/// By default, workers are identical, and transfers do not slow down compute.
impl Default for ComputeSpec {
    fn default() -> Self {
        Self { overlap_slowdown_ppm: 1_000_000, noise_ppm: 0, straggler: None }
    }
}

/// A worker that is slow, in all iterations or in some.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StragglerSpec {
    /// Index of the slow worker. `None` draws a worker in every iteration.
    pub worker: Option<u32>,
    /// Compute time of the slow worker relative to the other workers, in millionths.
    pub factor_ppm: u64,
    /// Probability that the worker is slow in an iteration, in millionths.
    pub probability_ppm: u64,
}

/// One layer. Times are the durations on one worker for one mini-batch.
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
    /// Whether the entry is host time, during which the device is idle, rather than a layer of the model.
    pub is_host: bool,
}

/// Aggregation of a bucket.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollectiveSpec {
    /// Collective algorithm.
    pub algorithm: Algorithm,
    /// Treatment of the bytes that are left over when a chunk is divided by the number of ranks.
    pub remainder: RemainderSpec,
    /// Number of parts into which a chunk is cut; not 0. The parts pass through the algorithm independently. `None`
    /// chooses the number for each chunk (Caramel, section 4.4).
    pub depth: Option<u32>,
    /// Rate at which a rank adds received data to its own. `None` if additions take no time.
    #[serde(rename = "reduction_rate_bps")]
    pub reduction_rate: Option<Rate>,
}

/// By default, a ring whose reductions take no time aggregates chunks as a whole.
impl Default for CollectiveSpec {
    fn default() -> Self {
        let algorithm = Algorithm::from(Ring);
        Self { algorithm, remainder: RemainderSpec::Sent, depth: Some(1), reduction_rate: None }
    }
}

impl CollectiveSpec {
    /// Returns whether the bytes that are left over when a chunk is divided by the number of ranks are not sent.
    pub fn drops_remainder(&self) -> bool {
        self.remainder == RemainderSpec::Dropped
    }
}

/// Treatment of the bytes that are left over when a chunk is divided by the number of ranks.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum RemainderSpec {
    /// The bytes are sent, so some parts are one byte longer.
    Sent,
    /// The bytes are not sent, as in the simulator of Gao (2020).
    Dropped,
}

/// Grouping of gradients into buckets, and the send order of the buckets.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Order of the send queue.
    pub order: OrderSpec,
    /// Rule that groups gradients into buckets.
    pub fusion: FusionSpec,
    /// Largest part of a bucket that is sent without returning to the queue. `None` sends buckets whole, unless the
    /// order itself chooses chunks.
    #[serde(rename = "chunk_bytes")]
    pub chunk: Option<Bytes>,
    /// Limit on the chunks in flight; not 0.
    pub credit: u32,
    /// Whether the next forward pass waits for all transfers.
    pub barrier: bool,
    /// Time for which every transfer occupies the send queue before its first byte. Gao (2020) assumes 0.
    #[serde(rename = "overhead_ps")]
    pub overhead: Time,
    /// Time from the end of a transfer on all workers to the earliest start of the next one. Gao (2020) assumes 0.
    #[serde(rename = "sync_ps")]
    pub sync: Time,
}

/// By default, layers are sent one at a time, in the order in which they become ready. The next iteration waits only
/// for the parameters that it reads.
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
    /// Groups consecutive layers from the output side into buckets, as long as a bucket has at most `bytes`.
    Cap {
        /// Largest size of a bucket, in bytes. With 0, every layer is a bucket of its own.
        bytes: Bytes,
    },
    /// Groups the layers as the user specifies.
    Buckets {
        /// Number of layers in each bucket, from the input side. The sum is the number of all layers.
        layer_counts: Vec<u32>,
    },
    /// Groups layers from the output side. The layer with which a bucket reaches its size cap closes the bucket, as in
    /// PyTorch DDP.
    Reach {
        /// Cap of the first bucket, in bytes.
        #[serde(rename = "first_bytes")]
        first: Bytes,
        /// Cap of all other buckets, in bytes.
        bytes: Bytes,
    },
    /// Groups the gradients that are expected to be ready by the end of a cycle, as in Horovod.
    Ready {
        /// Largest size of a bucket, in bytes. A larger layer is a bucket of its own.
        bytes: Bytes,
        /// Length of a cycle. With 0, a cycle ends as soon as a gradient is ready and the network is idle.
        #[serde(rename = "cycle_ps")]
        cycle: Time,
    },
    /// Chooses buckets according to the order and the message cost. Small layers that are computed while the network is
    /// busy share a bucket (Caramel, section 4.2).
    Adaptive,
}

/// Order of the send queue.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OrderSpec {
    /// Sends buckets in the order in which they become ready.
    Fifo,
    /// Sends the lowest layer first. With `queues`, layers are divided into this number of classes, and each class is
    /// served first come, first served.
    Priority {
        /// Number of classes of layers. `None` gives every layer its own class.
        queues: Option<u32>,
    },
    /// Sends buckets in a random order that is drawn anew in every iteration.
    Random,
    /// Sends buckets in the order in which they become ready, or pulls in the order of the model, with swaps that are
    /// drawn anew in every iteration. Models frameworks that enforce no order.
    Arbitrary {
        /// Share of the transfers that trade places with a later transfer, in millionths.
        disorder_ppm: u64,
    },
    /// Timing-independent order of TicTac. A transfer is earlier if the ops that need it need fewer other transfers.
    /// For layers, the lowest layer is first.
    Tic,
    /// Timing-aware order of TicTac. The transfer that unblocks compute soonest is first. For layers, this is the
    /// lowest layer.
    Tac,
    /// TAC in which ops that depend only on parameters take no time. Available only for pulls.
    TacFolded,
    /// Places each bucket in the backward pass or the next forward pass (Caramel, section 4.3).
    Caramel,
    /// Earliest deadline first, in chunks. The deadline of a bucket is its first read.
    Edf,
    /// The best of all other orders in a simulation of one channel. For pulls, the best order that the search finds.
    Optimal,
    /// Order by a rank for each layer from the user's file. The smallest rank is sent first.
    File {
        /// One rank per layer, in layer order. With servers and a graph, one rank per parameter in the order of the
        /// graph.
        ranks: Vec<u32>,
        /// Whether a bucket waits until all buckets of smaller rank are ready. Not available for pulls.
        #[serde(default)]
        in_turn: bool,
    },
    /// Sends the buckets of a plan, which replace the buckets of `fusion`.
    Planned {
        /// Buckets in descending priority. Every layer with parameters is in exactly one of them.
        buckets: Vec<PlannedBucketSpec>,
    },
}

/// A bucket of a plan.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct PlannedBucketSpec {
    /// Layers of the bucket, all of which have parameters.
    pub layers: Vec<u32>,
    /// Release time, in compute time since the beginning of the iteration. If it exceeds the compute time of an
    /// iteration, the bucket is released in the next iteration.
    #[serde(default, rename = "release_ps")]
    pub release: Time,
}

/// Background flows of one tenant, which Python draws or reads. The columns have equal lengths and are ordered by
/// start.
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
    /// Time from the end of a flow to the start of the next flow of the same sending host. No flow starts before its
    /// start time. `None` starts every flow at its start time.
    #[serde(rename = "idle_ps")]
    pub idle: Option<Time>,
    /// Whether all sending hosts wait for one another. `idle` then begins with the end of the last flow in flight.
    #[serde(default)]
    pub together: bool,
    /// Time from the instant at which a flow may open its connection to its first byte.
    #[serde(default, rename = "setup_ps")]
    pub setup: Time,
    /// Queue length that is announced, as in [`JobSpec::announced_packets`].
    pub announced_packets: Option<u32>,
}

/// Queue of every egress port. Only the packet engine uses it.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSpec {
    /// Queueing discipline.
    pub discipline: Discipline,
    /// Capacity of a port's queue over all bands.
    pub capacity: Capacity,
    /// Active queue management. `None` only drops at the tail.
    pub mark: Option<Marking>,
    /// Burst announcements (PCN), if switches support them. Such switches must mark by threshold.
    pub pcn: Option<PcnConfig>,
}

impl Default for QueueSpec {
    fn default() -> Self {
        let QueueConfig { discipline, capacity, .. } = QueueConfig::pfifo_fast();
        Self { discipline, capacity, mark: None, pcn: None }
    }
}

/// Transport protocol of every flow. Only the packet engine uses it.
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
    /// Size of the send and receive buffers, in bytes. It is the window of the ideal transport.
    pub window_bytes: u64,
    /// Rule that chooses the segments to send during fast recovery.
    pub recovery: Recovery,
    /// Source of the timer settings.
    pub timers: TimersSpec,
    /// Minimum retransmission timeout. `None` leaves it to `timers`.
    #[serde(rename = "min_rto_ps")]
    pub min_rto: Option<Time>,
    /// Whether the congestion window falls back to the initial window after an idle time.
    pub restart_after_idle: bool,
}

/// The default is the transport of [`TcpConfig::over`]. Of this configuration, only the timers depend on the network.
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
            min_rto: None,
            restart_after_idle: tcp.restart_after_idle,
        }
    }
}

/// Source of the minimum retransmission timeout, the delayed-ACK timeout and the initial retransmission timeout.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum TimersSpec {
    /// Derived from an estimate of the longest round-trip time.
    Derived,
    /// The values of Linux: a minimum retransmission timeout of 200 ms, delayed ACKs after 40 ms, and an initial
    /// timeout of 1 s.
    Linux,
}

/// Hosts and links.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Shape of the network.
    pub topology: TopologySpec,
    /// Links whose rate and delay the topology does not set.
    pub link: LinkSpec,
    /// Machines with several GPUs, whose network cards are the hosts of the topology. If `None`, every host is a place
    /// for one worker.
    pub node: Option<NodeSpec>,
    /// Time that a host's stack takes for a message. It is added to the delay of every link of a host. Gao (2020)
    /// assumes 0.
    #[serde(default, rename = "host_latency_ps")]
    pub host_latency: Time,
    /// Additional delays of a host for messages of jobs; `None` for no such delays.
    pub host: Option<Host>,
    /// Rule that chooses among routes of equal cost.
    #[serde(default)]
    pub routing: Policy,
    /// Queue of every egress port.
    #[serde(default)]
    pub queue: QueueSpec,
    /// Buffer that the ports of a switch share. `None` gives each port a buffer of its own.
    pub switch_buffer: Option<SharedBuffer>,
    /// Transport protocol of every flow.
    #[serde(default)]
    pub transport: TransportSpec,
}

/// A machine with several GPUs, which a scale-up switch connects.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Number of GPUs of a node; not 0.
    pub gpus: u32,
    /// Number of network cards of a node; not 0, and a divisor of `gpus`. GPU g uses card g · nics / gpus.
    pub nics: u32,
    /// Link between a GPU and the node's scale-up switch, in each direction.
    pub scale_up: LinkSpec,
}

/// Shape of the network. [`gradtide_net::FatTree`] implements all variants but `Custom`.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TopologySpec {
    /// Hosts on one switch.
    Star {
        /// Number of hosts.
        hosts: u32,
    },
    /// Leaf switches with hosts. Each leaf switch is linked to every spine switch.
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
        /// Number of hosts. The first nodes are hosts.
        hosts: u32,
        /// Names of the switches, which are the nodes after the hosts.
        switches: Vec<String>,
        /// Cables of the network; at least one.
        cables: Vec<CableSpec>,
    },
}

/// A cable, which consists of one link in each direction.
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
    /// Share of the link rate that is left for gradients after headers and retransmissions, in millionths. 1_000_000
    /// means all of the rate.
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

/// Engine, seed and duration of a run.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunSpec {
    /// Network engine.
    pub engine: EngineSpec,
    /// Largest relative error of the fluid engine's rates, in millionths; `None` for exact rates.
    pub accuracy_ppm: Option<NonZeroU32>,
    /// Root seed of all random streams.
    pub seed: u64,
    /// Standards or simulator that determine the clock and the transport of the packet engine.
    pub follow: Follow,
    /// Upper bound of the random time by which the packet engine delays the start of each background flow.
    #[serde(rename = "start_jitter_ps")]
    pub start_jitter: Option<Time>,
    /// Whether each rank of a parallel job is simulated, instead of one rank per class. The packet engine always
    /// simulates each rank.
    pub all_ranks: bool,
    /// Simulated time at which the run ends, even with ops and flows in progress; `None` for no limit.
    #[serde(rename = "duration_ps")]
    pub duration: Option<Time>,
    /// Number of measured iterations of each job whose ops are recorded individually.
    pub timeline_iterations: u32,
    /// Quantities that are sampled over time. `None` disables the probe. Only the packet engine uses it.
    pub probe: Option<ProbeSpec>,
}

/// Quantities that are sampled over time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeSpec {
    /// Sampling interval; not 0.
    #[serde(rename = "every_ps")]
    pub every: Time,
    /// Names of the links whose queues are sampled; `None` for all links.
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
    /// Number of the background flow; `None` for all flows.
    pub flow: Option<u64>,
}

/// Network engine.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum EngineSpec {
    /// Fluid engine, in which flows share links at max-min fair rates.
    #[default]
    Fluid,
    /// Packet engine, which simulates queues and TCP packet by packet.
    Packet,
}
