//! The valid scenario, as Python hands it down: integers with their units in their names, nothing optional
//! that has a default, nothing unknown.
//!
//! Defaults, unit parsing and every message to a user live in `gradtide.scenario` (Python). What arrives here is
//! only checked against what would make the model meaningless ([`crate::SpecError`]); an unknown field is refused.

mod parallel;
mod step;

pub use parallel::{
    BesideSpec, BlockKindSpec, BlockOpSpec, BlockSpec, ContextSpec, MeshSpec, ParallelSpec, PipelineSpec, RoleSpec,
    ShardingSpec,
};
pub use step::{RecordedSpec, StepClassSpec, StepGroupSpec, StepSpec, StepTransferSpec};

use serde::Deserialize;
use std::num::NonZeroU32;

/// One run: jobs on a cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Training jobs, in the order of the scenario file.
    pub jobs: Vec<JobSpec>,
    /// Background flows.
    pub traffic: Vec<TrafficSpec>,
    /// Hosts and links.
    pub cluster: ClusterSpec,
    /// Engine, seed and length.
    pub run: RunSpec,
}

/// One data-parallel training job.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Key of the job in the scenario (`job.<name>`).
    pub name: String,
    /// Layers from the input side (index 0) to the output side.
    pub layers: Vec<LayerSpec>,
    /// Host of each worker, by index into the cluster's hosts; its length is the number of workers.
    pub hosts: Vec<u32>,
    /// Measured iterations; `None` when `run.duration_ps` decides.
    pub iterations: Option<u32>,
    /// Algorithm that aggregates a bucket.
    pub collective: CollectiveSpec,
    /// Buckets and their order.
    pub schedule: ScheduleSpec,
    /// Bands of the job's flows on the network, shared out evenly over the layers from the input side; 0 is the most
    /// urgent. A chunk takes the band of the layer in which it begins.
    pub bands: Vec<u8>,
    /// Simulated time at which the job starts.
    pub start_ps: u64,
    /// How long workers compute.
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

impl JobSpec {
    /// Whether it trains a model that is divided over ranks.
    pub fn is_divided(&self) -> bool {
        self.parallel.is_some() || self.recorded.is_some()
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
    pub order: ComputeOrderSpec,
    /// What waits for what.
    pub graph: GraphSpec,
}

/// In which order a worker computes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ComputeOrderSpec {
    /// Of the ops that can run, the first of the graph.
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
    pub placement: ServerSpec,
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
    pub inputs: Vec<u32>,
    /// Bytes of the parameter that it receives, not 0; `None` computes.
    pub receives_bytes: Option<u64>,
    /// Compute time, or of a parameter the time in which its server applies the sum of its gradients.
    pub time_ps: u64,
    /// Whether it depends on parameters alone.
    pub param_only: bool,
    /// Indices of the ops that receive the parameters whose gradients it completes.
    pub updates: Vec<u32>,
}

/// How long the workers of a job compute, beside what its layers say.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeSpec {
    /// Time that a unit of compute takes while a transfer of the job is under way, in millionths (1_000_000 = no
    /// slowdown).
    pub overlap_slowdown_ppm: u64,
    /// Coefficient of variation of a worker's compute time from iteration to iteration, in millionths.
    pub noise_ppm: u64,
    /// The slow worker.
    pub straggler: Option<StragglerSpec>,
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
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
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
    #[serde(default)]
    pub is_host: bool,
}

/// How a bucket is aggregated.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveSpec {
    /// What is sent to whom.
    pub algorithm: AlgorithmSpec,
    /// What a chunk leaves when it is divided by the ranks.
    pub remainder: RemainderSpec,
    /// Parts into which a chunk is cut, each of which goes through the algorithm by itself; not 0. `None` adapts it to
    /// the chunk (Caramel, section 4.4).
    pub depth: Option<u32>,
    /// Rate at which a rank adds to its own what it has received, in bits per second; `None` takes no time. Not 0.
    pub reduction_rate_bps: Option<u64>,
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

/// Collective algorithm; [`crate::collective::plan::Algorithm`] says what each does.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum AlgorithmSpec {
    /// Ring all-reduce (thesis eq. 4.1); over nodes, rings over all of their cards.
    Ring,
    /// One ring wherever its ranks are, which leaves a node by one card.
    SingleRing,
    /// All-reduce by halving and doubling.
    HalvingDoubling,
    /// All-reduce in two steps of all to all.
    Shuffle,
    /// All-reduce along two binary trees, part by part.
    Tree,
    /// All-reduce of whole buffers along one binary tree.
    BinaryTree,
    /// All-reduce by recursive doubling.
    Butterfly,
    /// Binomial trees in groups, butterfly between them.
    ButterflyLayered {
        /// Ranks of a group.
        group: u32,
    },
    /// All-reduce within groups and between them.
    Hierarchical {
        /// Ranks of a group.
        group: u32,
        /// What happens within a group.
        inside: InsideSpec,
    },
    /// Parameter servers, which are some of the ranks.
    ParameterServer {
        /// How many.
        servers: u32,
        /// Which.
        placement: ServerSpec,
    },
    /// Ring all-gather.
    AllGather,
    /// Ring reduce-scatter.
    ReduceScatter,
    /// All at once.
    AllToAll,
    /// Along a binomial tree.
    Broadcast,
    /// From rank 0 to rank 1.
    PointToPoint,
}

/// What a hierarchical all-reduce does within a group.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum InsideSpec {
    /// Binomial reduce.
    Reduce,
    /// Ring all-reduce.
    Ring,
    /// Ring reduce-scatter; all ranks take part between groups.
    Sharded,
}

/// Which ranks are parameter servers.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ServerSpec {
    /// The first ones.
    Packed,
    /// One in each of as many equal stretches.
    Distributed,
    /// The last ones.
    Separate,
}

/// How gradients are grouped and in what order the groups are sent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Order of the transmission queue.
    pub order: OrderSpec,
    /// What makes a bucket.
    pub fusion: FusionSpec,
    /// Largest part that is sent without looking at the queue again; `None` sends a bucket whole, but where the order
    /// has chunks of its own.
    pub chunk_bytes: Option<u64>,
    /// Chunks that are on the network at one time; not 0.
    pub credit: u32,
    /// Whether the next forward pass waits for all transfers.
    pub barrier: bool,
    /// Time for which every transfer holds the transmission queue before its first byte (0 in the thesis).
    pub overhead_ps: u64,
    /// Time from the end of a transfer on all workers to the earliest start of the next (0 in the thesis).
    pub sync_ps: u64,
}

/// What makes a bucket.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FusionSpec {
    /// Layers from the output side, as long as they fit.
    Cap {
        /// Most bytes of a bucket; 0 leaves every layer alone.
        bytes: u64,
    },
    /// The user's own buckets.
    Buckets {
        /// Number of layers in each, from the input side; together all layers.
        layer_counts: Vec<u32>,
    },
    /// Layers from the output side; the one that reaches the cap closes the bucket, as in PyTorch DDP.
    Reach {
        /// Cap of the first bucket.
        first_bytes: u64,
        /// Cap of the others.
        bytes: u64,
    },
    /// What is expected to have been computed by the end of a cycle, as in Horovod.
    Ready {
        /// Most bytes of a bucket, or one layer.
        bytes: u64,
        /// Length of a cycle; with 0 it ends when there is something to send and the network is free.
        cycle_ps: u64,
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
    pub gate_ps: u64,
}

/// Background flows of one tenant, drawn or read in Python; columns of one length, in order of start.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrafficSpec {
    /// Key of the tenant in the scenario (`traffic.<name>`).
    pub name: String,
    /// When each flow starts.
    pub start_ps: Vec<u64>,
    /// Sending host.
    pub src: Vec<u32>,
    /// Receiving host, another one.
    pub dst: Vec<u32>,
    /// Payload.
    pub bytes: Vec<u64>,
    /// Band on the network.
    pub band: Vec<u8>,
    /// Time from a flow's completion to the start of the next one of its sending host, which does not start before;
    /// `None` starts every flow at its time.
    pub idle_ps: Option<u64>,
    /// Whether that is the completion of the last flow under way, for all of them: the hosts wait for one another.
    pub together: bool,
    /// Time from when a flow may open its connection to its first byte.
    pub setup_ps: u64,
    /// As of [`JobSpec`].
    pub announced_packets: Option<u32>,
}

/// Queue of every egress port; read by the packet engine only.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueSpec {
    /// Who is sent next.
    pub discipline: DisciplineSpec,
    /// What waits in a port at most, all bands together.
    pub capacity: CapacitySpec,
    /// Who is marked or dropped before the queue is full; `None` drops at the tail only.
    pub mark: Option<MarkSpec>,
    /// Whether switches heed announcements of bursts; they then mark by threshold.
    pub pcn: Option<PcnSpec>,
}

/// Proactive congestion notification; [`gradtide_net::packet::PcnConfig`] says what both are.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcnSpec {
    /// Age at which a switch forgets an announcement.
    pub expire_ps: u64,
    /// How long a sender waits for the answer.
    pub timeout_ps: u64,
}

/// Size of a buffer.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CapacitySpec {
    /// Packets of any size.
    Packets(u32),
    /// Bytes on the wire.
    Bytes(u64),
}

/// Buffer that the ports of a switch share.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferSpec {
    /// What waits in all ports of a switch at most.
    pub capacity: CapacitySpec,
    /// A port's queue holds at most this many millionths of what is free.
    pub alpha_ppm: u32,
}

/// Who is sent next.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DisciplineSpec {
    /// Linux's three strict bands.
    PfifoFast,
    /// First come first served.
    Fifo,
    /// Strict bands, 0 first.
    Strict {
        /// Number of bands, 1 to 8.
        bands: u8,
    },
    /// Deficit round robin: in each round a band sends its weight in full packets.
    Drr {
        /// One weight per band, 1 to 8 bands; none is 0.
        weights: Vec<u16>,
    },
}

/// What happens to packets before the queue is full.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum MarkSpec {
    /// Congestion marks above a queue length.
    Threshold {
        /// Packets in the queue from which CE is set.
        packets: u32,
        /// When the queue is looked at.
        at: MarkAtSpec,
    },
    /// Random early detection.
    Red {
        /// Average queue below which nothing happens.
        min_packets: u32,
        /// Average queue from which every packet is hit; above the least.
        max_packets: u32,
        /// Probability at `max_packets`, in millionths.
        max_probability_ppm: u32,
        /// Weight of the average, in millionths.
        weight_ppm: u32,
        /// Whether ECN-capable packets are marked and not dropped.
        ecn: bool,
    },
}

/// When a queue is compared with its threshold.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum MarkAtSpec {
    /// When a packet arrives.
    Enqueue,
    /// When a packet leaves.
    Dequeue,
}

/// Transport protocol of every flow; read by the packet engine only.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransportSpec {
    /// Congestion control.
    pub congestion: CongestionSpec,
    /// Whether connections negotiate ECN.
    pub ecn: bool,
    /// Payload of a full segment.
    pub segment_bytes: u32,
    /// Initial window.
    pub initial_window_segments: u32,
    /// Send and receive buffers; the window of the ideal transport.
    pub window_bytes: u64,
    /// What fast recovery sends.
    pub recovery: RecoverySpec,
    /// Where its timers come from.
    pub timers: TimersSpec,
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

/// What fast recovery sends.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum RecoverySpec {
    /// RFC 6675: each lost segment once.
    Sack,
    /// As ns-3.30.1 did: repeated segments that are under way already.
    #[serde(rename = "ns3.30")]
    Ns330,
}

/// Congestion control.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum CongestionSpec {
    /// RFC 5681, 6582.
    Newreno,
    /// RFC 9438.
    Cubic {
        /// Whether slow start ends by HyStart.
        hystart: bool,
        /// Whether slow start grows by what is acknowledged.
        byte_counting: bool,
    },
    /// RFC 8257.
    Dctcp {
        /// Weight g of a new observation of marks, in millionths.
        gain_ppm: u32,
    },
    /// Line rate with a window.
    Ideal,
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
    pub host_latency_ps: u64,
    /// What every host adds to the messages of jobs; `None` adds nothing.
    pub host: Option<HostSpec>,
    /// Choice among equal routes.
    pub routing: RoutingSpec,
    /// Queue of every egress port.
    pub queue: QueueSpec,
    /// Buffer that the ports of a switch share; `None` gives each its own.
    pub switch_buffer: Option<BufferSpec>,
    /// Transport protocol of every flow.
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

/// What a host adds to a message: see [`gradtide_net::hosts`].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// Time for each message that it sends, one after the other.
    pub message_ps: u64,
    /// Stages in series.
    pub stages: StagesSpec,
}

/// Stages of a host, each with its rate in bits per second, not 0; `None` takes no time.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StagesSpec {
    /// The first before the network interface.
    pub copy_bps: Option<u64>,
    /// The second.
    pub serialise_bps: Option<u64>,
    /// The one behind it.
    pub receive_bps: Option<u64>,
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
        fabric_link: WireSpec,
    },
    /// Two layers of switches.
    Clos2 {
        /// Ports of a switch; even.
        ports: u32,
        /// Capacity of an edge switch upwards over that downwards, as a fraction.
        bisection: [u64; 2],
    },
    /// Three layers of switches.
    Clos3 {
        /// As of [`TopologySpec::Clos2`].
        ports: u32,
        /// As of [`TopologySpec::Clos2`].
        bisection: [u64; 2],
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

/// How a switch chooses among equal routes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum RoutingSpec {
    /// By hash.
    Ecmp,
    /// By destination.
    Dmodk,
    /// By both ends.
    Spread,
}

/// A link in each direction.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CableSpec {
    /// Node at one end.
    pub a: u32,
    /// Node at the other.
    pub b: u32,
    /// As of [`LinkSpec`].
    pub rate_bps: u64,
    /// As of [`LinkSpec`].
    pub delay_ps: u64,
}

/// A link whose efficiency is that of all.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WireSpec {
    /// Nominal rate in bits per second; not 0.
    pub rate_bps: u64,
    /// Propagation delay.
    pub delay_ps: u64,
}

/// One link.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// Nominal rate in bits per second; not 0.
    pub rate_bps: u64,
    /// Propagation delay.
    pub delay_ps: u64,
    /// Share of the rate left to gradients after headers and retransmissions, in millionths (1_000_000 = all).
    pub efficiency_ppm: u64,
}

/// Engine, seed and length.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Network engine.
    pub engine: EngineSpec,
    /// How far rates of the fluid engine may be off, in millionths; `None` if they are exact.
    #[serde(default)]
    pub accuracy_ppm: Option<NonZeroU32>,
    /// Root of all random streams.
    pub seed: u64,
    /// Whose clock and transport the packet engine has; read by it only.
    #[serde(default)]
    pub follow: FollowSpec,
    /// Background flows on the packet engine start up to so much later than they could, each by a draw of its own.
    #[serde(default)]
    pub start_jitter_ps: Option<u64>,
    /// Whether each rank of a divided job is simulated, and not one of each class. The packet engine always does so.
    #[serde(default)]
    pub all_ranks: bool,
    /// Simulated time after which no further iteration is begun.
    pub duration_ps: Option<u64>,
    /// Measured iterations of each job whose operations are recorded one by one.
    pub timeline_iterations: u32,
    /// What is sampled over time; `None` samples nothing. Read by the packet engine only.
    pub probe: Option<ProbeSpec>,
}

/// What the packet engine does where simulators differ from standards.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum FollowSpec {
    /// The RFCs, and exact times.
    #[default]
    Standards,
    /// ns-3.37, to its nanosecond.
    Ns3,
}

/// What is sampled over time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeSpec {
    /// Time from one sample to the next; not 0.
    pub every_ps: u64,
    /// Links whose queues are sampled, by name; `None` samples all.
    pub links: Option<Vec<String>>,
    /// Connections whose windows are sampled.
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
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum EngineSpec {
    /// Flows at their max-min fair rates.
    Fluid,
    /// Queues and TCP, packet by packet.
    Packet,
}
