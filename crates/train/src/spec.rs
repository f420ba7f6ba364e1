//! The valid scenario, as Python passes it: whole numbers with their units in their names, nothing unknown.
//!
//! Records of the network are the types of `gradtide_net` themselves. A field has a default wherever a value has no
//! effect: a scenario written before the field existed stays valid, and means the same. Defaults of users, units and
//! error messages live in `gradtide.scenario` (Python); what JSON cannot express is checked where a run is planned
//! ([`crate::SpecError`]).
//!
//! The file is longer than 600 lines because it is a list: one record for each table of a scenario.

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
    /// Host of each worker, by index into the cluster's hosts; its length is the number of workers.
    pub hosts: Vec<u32>,
    /// Measured iterations; `None` when `run.duration_ps` decides.
    pub iterations: Option<u32>,
    /// Algorithm that aggregates a bucket.
    #[serde(default)]
    pub collective: CollectiveSpec,
    /// Buckets and their order.
    #[serde(default)]
    pub schedule: ScheduleSpec,
    /// Bands of the job's flows on the network, shared out evenly over the layers from the input side; 0 is the most
    /// urgent. A chunk takes the band of the layer in which it begins.
    #[serde(default = "first_band")]
    pub bands: Vec<u8>,
    /// Simulated time at which the job starts.
    #[serde(default, rename = "start_ps")]
    pub start: Time,
    /// How long workers compute.
    #[serde(default)]
    pub compute: ComputeSpec,
    /// Parameter servers that every iteration begins with a pull from, some of the hosts; `None` aggregates buckets as
    /// `collective` says.
    pub servers: Option<ServersSpec>,
    /// What a worker computes where it is no chain of layers; `layers` then has what the graph receives, without times.
    /// Not with `servers`.
    pub ops: Option<OpsSpec>,
    /// How the model is divided over ranks, and what the step of a rank is; `layers` then has nothing that is simulated.
    pub parallel: Option<ParallelSpec>,
    /// A step of all its ranks that was recorded, in place of `parallel`.
    pub recorded: Option<RecordedSpec>,
    /// Queue length from which switches are to mark while a message of the job is on its way, announced before it; a
    /// multiple of 5 below 80. `None` announces nothing.
    pub announced_packets: Option<u32>,
    /// How workers change their bands as they send; `None`: they keep to `bands`.
    pub adaptive: Option<AdaptiveSpec>,
}

fn first_band() -> Vec<u8> {
    vec![0]
}

impl JobSpec {
    /// Whether it trains a model that is divided over ranks.
    pub fn is_divided(&self) -> bool {
        self.parallel.is_some() || self.recorded.is_some()
    }

    /// Number of hosts that compute, which parameter servers do not.
    pub fn worker_count(&self) -> usize {
        self.hosts.len() - self.collective.algorithm.servers(self.hosts.len() as u32).len()
    }

    /// Whether its bands are chosen by who knows what is to come.
    pub fn has_oracle(&self) -> bool {
        matches!(self.adaptive, Some(AdaptiveSpec::Oracle(_)))
    }
}

/// How workers change their bands.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "policy", rename_all = "snake_case")]
pub enum AdaptiveSpec {
    /// By what each has seen.
    Deadline(DeadlineSpec),
    /// By what will be, which no worker knows.
    Oracle(OracleSpec),
}

/// A bound for what a policy can do: see [`research`](crate::research).
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OracleSpec {
    /// The more urgent band.
    pub high: u8,
    /// The other.
    pub low: u8,
    /// Iteration time that a second of a flow's time in the network is worth, in millionths of a second.
    pub price_ppm: u64,
    /// Largest flow whose time counts.
    pub small_bytes: u64,
}

/// Priority that follows the remaining slack: see [`Rule`](crate::research::Rule).
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadlineSpec {
    /// Band of what is late.
    pub high: u8,
    /// Band of what has time.
    pub low: u8,
    /// Whether anything is ever late.
    pub has_deadlines: bool,
    /// Chunks under way at one time as long as they go low; not 0.
    pub credit: u32,
    /// Most bytes that a connection has under way in the low band.
    pub window_bytes: u64,
    /// Rate of the slowest link in bit/s; not 0.
    pub link_bps: u64,
    /// A round trip without queues.
    pub round_trip_ps: u64,
    /// How much longer than in the high band an iteration may take, in millionths.
    pub tolerance_ppm: u64,
    /// How much longer than measured a worker takes what is left to be, in millionths.
    pub margin_ppm: u64,
    /// Whether the least slack of all workers decides in which band a chunk begins.
    pub exchange: bool,
    /// Whether a worker may be late by as long as it waits for slower ones anyway.
    pub counts_waits: bool,
}

/// Computation of an op graph, one op after the other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpsSpec {
    /// In which order.
    #[serde(default)]
    pub order: ComputeOrderSpec,
    /// What waits for what.
    pub graph: GraphSpec,
}

/// In which order a worker computes.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ComputeOrderSpec {
    /// Of the ops that can run, the first of the graph.
    #[default]
    Listed,
    /// Of the ops that can run, any: every worker has a random order of its own, the same in all iterations.
    Random,
    /// The update next that is cheapest to reach (Caramel, section 4.1).
    Caramel,
}

/// Training with parameter servers op by op: pull, compute, push, update.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServersSpec {
    /// How many of the hosts are servers; the others are workers.
    pub count: u32,
    /// Which.
    pub placement: Placement,
    /// Which parameter is on which server.
    pub shards: ShardSpec,
    /// What an iteration is.
    pub task: TaskSpec,
    /// Whom a worker waits for before it begins the next one.
    pub sync: SyncSpec,
    /// Share of the pulls that change places with one behind them, in millionths.
    pub disorder_ppm: u64,
    /// What a worker computes; `None` is the chain of the layers.
    pub graph: Option<GraphSpec>,
}

/// Which parameter is on which server.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ShardSpec {
    /// The largest first, each to the server that has the fewest bytes.
    Bytes,
    /// In turn, in the order of the model.
    RoundRobin,
}

/// Whom a worker waits for before it begins its next iteration.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum SyncSpec {
    /// All workers.
    Sync,
    /// Nobody.
    Async,
    /// Those that would fall too far behind (stale synchronous parallel, Ho et al. 2013).
    Bounded {
        /// Iterations by which a worker may be ahead of the slowest; 0 waits for all.
        staleness: u32,
    },
}

impl SyncSpec {
    /// Iterations by which a worker may be ahead of the slowest; `None` without a bound.
    pub const fn bound(self) -> Option<u32> {
        match self {
            Self::Sync => Some(0),
            Self::Async => None,
            Self::Bounded { staleness } => Some(staleness),
        }
    }
}

/// What an iteration is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum TaskSpec {
    /// Pull, forward, backward, push, update.
    Train,
    /// Pull, forward.
    Inference,
}

/// What a worker receives and computes, op by op.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSpec {
    /// In the order of the file.
    pub ops: Vec<GraphOpSpec>,
    /// Index of the op that is waited for.
    pub target: u32,
    /// Index of the last op of the forward pass; `None` if the graph is a forward pass, or does not say.
    pub inference_target: Option<u32>,
}

/// A vertex of a [`GraphSpec`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphOpSpec {
    /// The user's number of it; ties go to the smaller one.
    pub id: u64,
    /// Name shown to users.
    pub name: String,
    /// Indices of what it waits for.
    #[serde(default)]
    pub inputs: Vec<u32>,
    /// Bytes of the parameter that it receives, not 0; `None` computes.
    pub receives_bytes: Option<u64>,
    /// Compute time, or of a parameter the time in which its server applies the sum of its gradients.
    #[serde(default)]
    pub time_ps: u64,
    /// Whether it depends on parameters alone.
    #[serde(default)]
    pub param_only: bool,
    /// Indices of the ops that receive the parameters whose gradients it completes.
    #[serde(default)]
    pub updates: Vec<u32>,
}

/// How long the workers of a job compute, beside what its layers say.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ComputeSpec {
    /// Time that a unit of compute takes while a transfer of the job is under way, in millionths (1_000_000 = no
    /// slowdown).
    pub overlap_slowdown_ppm: u64,
    /// Coefficient of variation of a worker's compute time from iteration to iteration, in millionths.
    pub noise_ppm: u64,
    /// The slow worker.
    pub straggler: Option<StragglerSpec>,
}

/// Workers are alike, and overlap costs nothing.
impl Default for ComputeSpec {
    fn default() -> Self {
        Self { overlap_slowdown_ppm: 1_000_000, noise_ppm: 0, straggler: None }
    }
}

/// A worker that is slow, always or now and then.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StragglerSpec {
    /// Which; `None` draws one in every iteration.
    pub worker: Option<u32>,
    /// Times as long as the others compute, in millionths.
    pub factor_ppm: u64,
    /// Share of the iterations in which it is slow, in millionths.
    pub probability_ppm: u64,
}

/// One layer: times of one worker for one mini-batch.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LayerSpec {
    /// Name shown to users.
    pub name: String,
    /// Forward time.
    pub forward_ps: u64,
    /// Backward time.
    pub backward_ps: u64,
    /// Time to apply the aggregated gradient.
    pub update_ps: u64,
    /// Bytes of the layer's gradient; 0 for a layer that sends nothing.
    pub parameter_bytes: u64,
    /// Whether these times are the host's, in which the device stands idle: no layer of the model.
    pub is_host: bool,
}

/// How a bucket is aggregated.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CollectiveSpec {
    /// What is sent to whom.
    pub algorithm: Algorithm,
    /// What a chunk leaves when it is divided by the ranks.
    pub remainder: RemainderSpec,
    /// Parts into which a chunk is cut, each of which goes through the algorithm by itself; not 0. `None` adapts it to
    /// the chunk (Caramel, section 4.4).
    pub depth: Option<u32>,
    /// Rate at which a rank adds to its own what it has received; `None` takes no time.
    #[serde(rename = "reduction_rate_bps")]
    pub reduction_rate: Option<Rate>,
}

/// A ring of whole chunks, whose reductions take no time.
impl Default for CollectiveSpec {
    fn default() -> Self {
        let algorithm = Algorithm::from(Ring);
        Self { algorithm, remainder: RemainderSpec::Sent, depth: Some(1), reduction_rate: None }
    }
}

impl CollectiveSpec {
    /// Whether what a chunk leaves when it is divided by the ranks is not sent.
    pub fn drops_remainder(&self) -> bool {
        self.remainder == RemainderSpec::Dropped
    }
}

/// What a chunk leaves when it is divided by the ranks.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum RemainderSpec {
    /// Some parts are a byte longer.
    Sent,
    /// It is not sent, as in the thesis's simulator.
    Dropped,
}

/// How gradients are grouped and in what order the groups are sent.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Order of the transmission queue.
    pub order: OrderSpec,
    /// What makes a bucket.
    pub fusion: FusionSpec,
    /// Largest part that is sent without looking at the queue again; `None` sends a bucket whole, but where the order
    /// has chunks of its own.
    #[serde(rename = "chunk_bytes")]
    pub chunk: Option<Bytes>,
    /// Chunks that are on the network at one time; not 0.
    pub credit: u32,
    /// Whether the next forward pass waits for all transfers.
    pub barrier: bool,
    /// Time for which every transfer holds the transmission queue before its first byte (0 in the thesis).
    #[serde(rename = "overhead_ps")]
    pub overhead: Time,
    /// Time from the end of a transfer on all workers to the earliest start of the next (0 in the thesis).
    #[serde(rename = "sync_ps")]
    pub sync: Time,
}

/// Each layer by itself as it becomes ready, one at a time; the next iteration waits for nothing that it does not use.
impl Default for ScheduleSpec {
    fn default() -> Self {
        let (order, fusion) = (OrderSpec::Fifo, FusionSpec::Cap { bytes: Bytes(0) });
        Self { order, fusion, chunk: None, credit: 1, barrier: false, overhead: Time::ZERO, sync: Time::ZERO }
    }
}

/// What makes a bucket.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FusionSpec {
    /// Layers from the output side, as long as they fit.
    Cap {
        /// Most bytes of a bucket; 0 leaves every layer alone.
        bytes: Bytes,
    },
    /// The user's own buckets.
    Buckets {
        /// Number of layers in each, from the input side; together all layers.
        layer_counts: Vec<u32>,
    },
    /// Layers from the output side; the one that reaches the cap closes the bucket, as in PyTorch DDP.
    Reach {
        /// Cap of the first bucket.
        #[serde(rename = "first_bytes")]
        first: Bytes,
        /// Cap of the others.
        bytes: Bytes,
    },
    /// What is expected to have been computed by the end of a cycle, as in Horovod.
    Ready {
        /// Most bytes of a bucket, or one layer.
        bytes: Bytes,
        /// Length of a cycle; with 0 it ends when there is something to send and the network is free.
        #[serde(rename = "cycle_ps")]
        cycle: Time,
    },
    /// As the order and the cost of a message ask for: small layers together that are computed while the network is
    /// busy (Caramel, section 4.2).
    Adaptive,
}

/// Order of the transmission queue.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OrderSpec {
    /// In the order in which buckets become ready.
    Fifo,
    /// Lowest layer first; with `queues`, that many classes of layers, first come first served inside a class.
    Priority {
        /// Number of classes; `None` gives every layer its own.
        queues: Option<u32>,
    },
    /// A fresh random order in every iteration.
    Random,
    /// As buckets become ready, or in the order of the model for pulls, but for swaps that are drawn anew in every
    /// iteration: what frameworks do that enforce no order.
    Arbitrary {
        /// Share of the transfers that swap places with a later one, in millionths.
        disorder_ppm: u64,
    },
    /// What fewest computations wait for first (TicTac); of layers, the lowest.
    Tic,
    /// What lets compute go on soonest first (TicTac); of layers, the lowest.
    Tac,
    /// TAC with ops that depend on parameters alone taken to cost nothing: of pulls alone.
    TacFolded,
    /// Each bucket in its place in the backward or the next forward pass (Caramel, section 4.3).
    Caramel,
    /// Earliest deadline first, in chunks: what is read first.
    Edf,
    /// The best of what all others would do, by a simulation of one channel; of pulls, the best that is found.
    Optimal,
    /// Rank of every layer, from the user's file; smaller is sent earlier.
    File {
        /// One rank per layer, in layer order; with servers and a graph, one per parameter in the order of the graph.
        ranks: Vec<u32>,
        /// Whether nothing is sent before all of smaller rank; of buckets alone.
        #[serde(default)]
        in_turn: bool,
    },
    /// The buckets of a plan, in place of those of `fusion`.
    Planned {
        /// The first of those that may be sent goes first; every layer that has parameters is in one.
        buckets: Vec<PlannedBucketSpec>,
    },
}

/// A bucket of a plan.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct PlannedBucketSpec {
    /// Layers that have parameters.
    pub layers: Vec<u32>,
    /// From which offset of compute time on it may be sent; beyond that of an iteration, in the next.
    #[serde(default, rename = "gate_ps")]
    pub gate: Time,
}

/// Background flows of one tenant, drawn or read in Python; columns of one length, in order of start.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficSpec {
    /// Key of the tenant in the scenario (`traffic.<name>`).
    pub name: String,
    /// When each flow starts.
    #[serde(rename = "start_ps")]
    pub start: Vec<Time>,
    /// Sending host.
    pub src: Vec<u32>,
    /// Receiving host, another one.
    pub dst: Vec<u32>,
    /// Payload.
    pub bytes: Vec<Bytes>,
    /// Band on the network.
    pub band: Vec<u8>,
    /// Time from a flow's completion to the start of the next one of its sending host, which does not start before;
    /// `None` starts every flow at its time.
    #[serde(rename = "idle_ps")]
    pub idle: Option<Time>,
    /// Whether that is the completion of the last flow under way, for all of them: the hosts wait for one another.
    #[serde(default)]
    pub together: bool,
    /// Time from when a flow may open its connection to its first byte.
    #[serde(default, rename = "setup_ps")]
    pub setup: Time,
    /// As of [`JobSpec`].
    pub announced_packets: Option<u32>,
}

/// Queue of every egress port; read by the packet engine only.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueSpec {
    /// Who is sent next.
    pub discipline: Discipline,
    /// What waits in a port at most, all bands together.
    pub capacity: Capacity,
    /// Who is marked or dropped before the queue is full; `None` drops at the tail only.
    pub mark: Option<Marking>,
    /// Whether switches heed announcements of bursts; they then mark by threshold.
    pub pcn: Option<PcnConfig>,
}

impl Default for QueueSpec {
    fn default() -> Self {
        let QueueConfig { discipline, capacity, .. } = QueueConfig::pfifo_fast();
        Self { discipline, capacity, mark: None, pcn: None }
    }
}

/// Transport protocol of every flow; read by the packet engine only.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransportSpec {
    /// Congestion control.
    pub congestion: CongestionAlgorithm,
    /// Whether connections negotiate ECN.
    pub ecn: bool,
    /// Payload of a full segment.
    pub segment_bytes: u32,
    /// Initial window.
    pub initial_window_segments: u32,
    /// Send and receive buffers; the window of the ideal transport.
    pub window_bytes: u64,
    /// What fast recovery sends.
    pub recovery: Recovery,
    /// Where its timers come from.
    pub timers: TimersSpec,
}

/// As [`TcpConfig::over`], of which only timers depend on the network.
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

/// Least retransmission timeout, delay of acknowledgements, and timeout before the first sample.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum TimersSpec {
    /// From an estimate of the worst round trip.
    Derived,
    /// 200 ms, 40 ms and 1 s.
    Linux,
}

/// Hosts and links.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Shape of the network.
    pub topology: TopologySpec,
    /// Links that the topology says nothing else of.
    pub link: LinkSpec,
    /// Machines with several GPUs, whose network cards are the hosts of the topology; `None`: every host is a worker.
    pub node: Option<NodeSpec>,
    /// Time that a host's stack takes for a message: a part of the delay of every link of a host (0 in the thesis).
    #[serde(default, rename = "host_latency_ps")]
    pub host_latency: Time,
    /// What every host adds to the messages of jobs; `None` adds nothing.
    pub host: Option<Host>,
    /// Choice among equal routes.
    #[serde(default)]
    pub routing: Policy,
    /// Queue of every egress port.
    #[serde(default)]
    pub queue: QueueSpec,
    /// Buffer that the ports of a switch share; `None` gives each its own.
    pub switch_buffer: Option<SharedBuffer>,
    /// Transport protocol of every flow.
    #[serde(default)]
    pub transport: TransportSpec,
}

/// A machine with GPUs that a switch of its own joins.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// GPUs; not 0.
    pub gpus: u32,
    /// Network cards; not 0, and a divisor of the GPUs. GPU g uses card g · nics / gpus.
    pub nics: u32,
    /// Link between a GPU and the node's scale-up switch, in each direction.
    pub scale_up: LinkSpec,
}

/// Shape of the network; [`gradtide_net::FatTree`] says what all but the last are.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TopologySpec {
    /// Hosts around one switch.
    Star {
        /// Number of hosts.
        hosts: u32,
    },
    /// Leaves with hosts, each with a link to every spine.
    LeafSpine {
        /// Number of leaves.
        leaves: u32,
        /// Hosts of each.
        hosts_per_leaf: u32,
        /// Number of spines.
        spines: u32,
        /// Links between leaves and spines.
        fabric_link: Link,
    },
    /// Two layers of switches.
    Clos2 {
        /// Ports of a switch; even.
        ports: u32,
        /// Capacity of an edge switch upwards over that downwards, as a fraction.
        bisection: Ratio,
    },
    /// Three layers of switches.
    Clos3 {
        /// As of [`TopologySpec::Clos2`].
        ports: u32,
        /// As of [`TopologySpec::Clos2`].
        bisection: Ratio,
    },
    /// Cable by cable.
    Custom {
        /// Number of hosts, the first nodes.
        hosts: u32,
        /// Names of the switches, the nodes that follow.
        switches: Vec<String>,
        /// Cables; one at least.
        cables: Vec<CableSpec>,
    },
}

/// A link in each direction.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CableSpec {
    /// Node at one end.
    pub a: u32,
    /// Node at the other.
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
    /// Share of the rate left to gradients after headers and retransmissions, in millionths (1_000_000 = all).
    #[serde(default = "all_ppm")]
    pub efficiency_ppm: u64,
}

const fn all_ppm() -> u64 {
    1_000_000
}

impl LinkSpec {
    /// The link at its nominal rate.
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
    /// How far rates of the fluid engine may be off, in millionths; `None` if they are exact.
    pub accuracy_ppm: Option<NonZeroU32>,
    /// Root of all random streams.
    pub seed: u64,
    /// Whose clock and transport the packet engine has; read by it only.
    pub follow: Follow,
    /// Background flows on the packet engine start up to so much later than they could, each by a draw of its own.
    #[serde(rename = "start_jitter_ps")]
    pub start_jitter: Option<Time>,
    /// Whether each rank of a divided job is simulated, and not one of each class. The packet engine always does so.
    pub all_ranks: bool,
    /// Simulated time after which no further iteration is begun.
    #[serde(rename = "duration_ps")]
    pub duration: Option<Time>,
    /// Measured iterations of each job whose operations are recorded one by one.
    pub timeline_iterations: u32,
    /// What is sampled over time; `None` samples nothing. Read by the packet engine only.
    pub probe: Option<ProbeSpec>,
}

/// What is sampled over time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeSpec {
    /// Time from one sample to the next; not 0.
    #[serde(rename = "every_ps")]
    pub every: Time,
    /// Links whose queues are sampled, by name; `None` samples all.
    pub links: Option<Vec<String>>,
    /// Connections whose windows are sampled.
    #[serde(default)]
    pub cwnd: Vec<CwndSpec>,
}

/// Connections of a job or of background flows.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CwndSpec {
    /// Name of the job or of the background flows.
    pub tenant: String,
    /// Which of the background flows; `None` takes all.
    pub flow: Option<u64>,
}

/// Network engine.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum EngineSpec {
    /// Flows at their max-min fair rates.
    #[default]
    Fluid,
    /// Queues and TCP, packet by packet.
    Packet,
}
