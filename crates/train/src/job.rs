//! A job that is ready to run: its DAG, its buckets, its scheduler. Built from a [`JobSpec`], checked once.

use crate::bucket::Bucket;
use crate::caramel::cost::{CostError, Costs, LEAST_CHUNK};
use crate::caramel::{Boundaries, transfers};
use crate::collective::Aggregation;
use crate::collective::messages::{Bands, Collective, Depth, MessageSize};
use crate::collective::plan::{self, Algorithm, Inside, PlanError};
use crate::dag::Dag;
use crate::model::{ComputeSteps, iteration_dag};
use crate::pace::{self, Pace};
use crate::planned::{Planned, asks_costs};
use crate::priority::{Oracle, Rule};
use crate::program::{self, ProgramError};
use crate::schedule::Scheduler;
use crate::servers::{self, ServersError};
use crate::spec::{
    AdaptiveSpec, AlgorithmSpec, DeadlineSpec, FusionSpec, InsideSpec, JobSpec, LayerSpec, OracleSpec, OrderSpec,
    PlannedBucketSpec, ServerSpec,
};
use gradtide_net::{Announced, Band, Bytes, Flow, Network, Rate, Seed, Time};
use std::sync::Arc;
use thiserror::Error;

/// A planned job.
pub struct Job {
    /// Key of the job in the scenario.
    pub name: String,
    /// One iteration.
    pub dag: Dag,
    /// Names of the ops that have one of their own.
    pub op_names: Vec<Arc<str>>,
    /// What each transfer carries.
    pub buckets: Vec<Bucket>,
    /// From which offset of compute time on each bucket may be sent; beyond the compute time of an iteration, in the
    /// next.
    pub gates: Vec<Time>,
    /// Compute time of an iteration, and between which offsets of it each bucket can be sent without delaying any
    /// worker.
    pub boundaries: Boundaries,
    /// The same of each program, if there were no barrier.
    pub without_barrier: Vec<Boundaries>,
    /// Order of the transmission queue.
    pub scheduler: Box<dyn Scheduler>,
    /// Chunks on the network at one time.
    pub credit: usize,
    /// When the first iteration begins.
    pub start: Time,
    /// Measured iterations; `None` if the duration of the run decides.
    pub iteration_limit: Option<u32>,
    /// Time of a unit of compute beside a transfer, in millionths.
    pub overlap_slowdown_ppm: u64,
    /// Time from the end of a chunk on all workers to the earliest start of the next.
    pub sync: Time,
    /// How it runs on its engine.
    pub manner: Manner,
    /// The least and the largest factor on a worker's compute times, in millionths.
    pub pace_range_ppm: (u64, u64),
    /// Pace of each worker; `None` if all are alike, so that one stands for all.
    pub paces: Option<Vec<Pace>>,
    /// How a chunk is aggregated.
    pub collective: Collective,
    drops_remainder: bool,
    chunk: Option<Bytes>,
    /// For each bucket, from which byte on which band holds; not empty, and the first from byte 0 on.
    bands: Vec<Vec<(Bytes, Band)>>,
    /// Band in which connections are opened: that of the lowest layer.
    opening_band: Band,
    has_several_bands: bool,
    /// How workers change their bands; `None` if they keep to the job's.
    pub rule: Option<Rule>,
    /// Who chooses the bands in their place.
    pub oracle: Option<Oracle>,
    hold: Time,
}

/// A job of either kind.
pub enum AnyJob {
    /// Layers, whose gradients are aggregated in buckets.
    Buckets(Box<Job>),
    /// Ops, with parameter servers.
    Servers(Box<servers::ServerJob>),
}

impl AnyJob {
    /// The job, if its gradients are aggregated in buckets.
    pub fn buckets(&self) -> Option<&Job> {
        match self {
            Self::Buckets(job) => Some(job),
            Self::Servers(_) => None,
        }
    }
}

/// One of the two passes of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Input side to output side.
    Forward,
    /// Output side to input side.
    Backward,
}

/// How a job runs on an engine.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// From which pass of one iteration to the same of the next a job is measured; it begins there, too.
    pub measured_from: Pass,
    /// How its aggregations are put to the network.
    pub messages: AggregationForm,
    /// What messages carry of what does not divide evenly.
    pub sizes: MessageSize,
}

/// How an aggregation is put to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AggregationForm {
    /// As one flow that stands for all hosts.
    LockStep,
    /// As one flow that stands for all messages.
    Recalled,
    /// As messages between hosts.
    EachHost {
        /// Whether connections are opened before the job begins.
        opens: bool,
    },
}

/// A job that means nothing. `gradtide.scenario` refuses all of these first, with a file and a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum JobError {
    /// No layers.
    #[error("the model has no layers")]
    NoLayers,
    /// No hosts.
    #[error("the job has no workers")]
    NoWorkers,
    /// The priority is outside the network's bands.
    #[error("band {0} is not among the network's {count} bands", count = Band::COUNT)]
    Band(u8),
    /// No priority, or one for no layer.
    #[error("{bands} bands for {layers} layers")]
    Bands {
        /// Bands given.
        bands: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A straggler that is none of the workers, or a factor that cannot be.
    #[error("the workers cannot differ so: {0}")]
    Pace(&'static str),
    /// Ranks that do not suit the collective.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No chunk of a collective, or ranks that never add what they have received.
    #[error("a collective has a depth and a rate of reduction above 0")]
    NoCollective,
    /// A chunk of no bytes.
    #[error("a chunk has at least one byte")]
    EmptyChunk,
    /// Nothing may be sent.
    #[error("at least one chunk is on the network at a time")]
    NoCredit,
    /// Workers that change their bands know what their links carry.
    #[error("a link carries nothing")]
    Link,
    /// Connections that carry several chunks have one band.
    #[error("with several chunks on the network at a time, all layers have one band")]
    CreditOfBands,
    /// Planning adds times up.
    #[error("an iteration's messages take more than a day")]
    TooLong,
    /// Messages whose times tell nothing of their sizes.
    #[error("a schedule asks what messages cost: {0}")]
    Cost(#[from] CostError),
    /// Overlap that speeds compute up.
    #[error("overlap can slow compute down, not speed it up: {0} is below 1000000 ppm")]
    Slowdown(u64),
    /// An order of pulls for what is not pulled.
    #[error("the order is for parameter servers that every iteration begins with a pull from")]
    OrderOfServers,
    /// Servers op by op that mean nothing.
    #[error(transparent)]
    Servers(#[from] ServersError),
    /// Ops that cannot be computed in a line.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// No class of layers.
    #[error("there is at least one priority queue")]
    NoQueues,
    /// Buckets of another model.
    #[error("the buckets hold {counted} layers of {layers}")]
    Buckets {
        /// Layers in the buckets.
        counted: u64,
        /// Layers of the model.
        layers: usize,
    },
    /// An order file for another model.
    #[error("the order ranks {ranks} layers of {layers}")]
    Ranks {
        /// Ranks given.
        ranks: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A plan for another model.
    #[error("the planned buckets do not hold every layer with parameters once")]
    Planned,
    /// An iteration that takes no time would be repeated for ever at one instant.
    #[error("no layer takes any time")]
    NoTime,
    /// An announcement that no packet can carry.
    #[error("a threshold of {0} packets cannot be announced: multiples of 5 up to 75 can")]
    Announced(u32),
    /// More bytes than 64 bits count.
    #[error("the parameters are larger than 2^64 bytes")]
    TooManyBytes,
}

impl Job {
    /// Plans a job. `alone` tells how long a collective takes for a number of bytes on a network that carries nothing
    /// else; only schedules that plan ask.
    ///
    /// # Errors
    /// See [`JobError`].
    pub fn plan(spec: &JobSpec, seed: Seed, manner: Manner, alone: Alone<'_>) -> Result<Self, JobError> {
        check(spec)?;
        let sizes: Vec<Bytes> = spec.layers.iter().map(|layer| Bytes(layer.parameter_bytes)).collect();
        let costs = if asks_costs(spec) { Some(costs(spec, manner.sizes, alone)?) } else { None };
        let mut programs = match &spec.ops {
            None => vec![ComputeSteps::of_layers(&spec.layers)],
            Some(ops) => {
                let any = collective(spec, Bytes(0), Depth::Fixed(1), manner.sizes)?;
                program::of_workers(ops, &spec.layers, any.worker_hosts().count() as u32, &spec.name, seed)?
            }
        };
        let planned = Planned::new(spec, &programs, costs.as_ref(), seed);
        let buckets = planned.buckets;
        let largest = buckets.iter().map(|bucket| bucket.bytes).max().unwrap_or_default();
        let announced =
            spec.announced_packets.map(|packets| Announced::new(packets).ok_or(JobError::Announced(packets)));
        let depth = costs.map_or(Depth::Fixed(spec.collective.depth.unwrap_or(1)), |costs| costs.depth);
        let collective = collective(spec, largest, depth, manner.sizes)?.announced(announced.transpose()?);
        let worker_count = collective.worker_hosts().count() as u32;
        if spec.schedule.barrier {
            programs.iter_mut().for_each(|steps| *steps = steps.behind_barrier());
        }
        let dag = iteration_dag(&programs, &buckets, spec.layers.len() as u32);
        debug_assert!(dag.is_executable(), "an iteration has no cycle");
        let paces = match dag.programs.len() {
            1 => Pace::of_workers(&spec.compute, worker_count, &spec.name, seed),
            _ => Some(Pace::of_each(&spec.compute, worker_count, &spec.name, seed)),
        };
        // In an op graph passes are not one after the other: there is no moment with an idle network and all
        // parameters.
        let measured_from = if spec.ops.is_some() { Pass::Forward } else { manner.measured_from };
        let manner = Manner { measured_from, ..manner };
        let bands = (spec.bands.iter()).map(|&index| band(index)).collect::<Result<Vec<Band>, JobError>>()?;
        let (rule, oracle) = match spec.adaptive {
            None => (None, None),
            Some(AdaptiveSpec::Deadline(spec)) => (Some(rule(spec)?), None),
            Some(AdaptiveSpec::Oracle(spec)) => (None, Some(oracle(spec)?)),
        };
        Ok(Self {
            dag,
            op_names: Vec::new(),
            bands: buckets.iter().map(|bucket| bands_of(bucket, &sizes, &bands)).collect(),
            buckets,
            opening_band: bands[0],
            has_several_bands: bands.iter().any(|&band| band != bands[0]),
            rule,
            oracle,
            gates: planned.gates,
            boundaries: planned.boundaries,
            without_barrier: planned.without_barrier,
            scheduler: planned.scheduler,
            credit: spec.schedule.credit as usize,
            name: spec.name.clone(),
            start: Time::from_ps(spec.start_ps),
            iteration_limit: spec.iterations,
            overlap_slowdown_ppm: spec.compute.overlap_slowdown_ppm,
            sync: Time::from_ps(spec.schedule.sync_ps),
            manner,
            pace_range_ppm: pace::range_ppm(&spec.compute),
            paces,
            collective,
            drops_remainder: spec.collective.drops_remainder(),
            chunk: planned.chunk,
            hold: Time::from_ps(spec.schedule.overhead_ps),
        })
    }

    /// What the job sends, for a simulation of one channel on which a message takes `time`: what
    /// [`timeline::run`](crate::caramel::timeline::run) says of it with the job's boundaries, an engine does if the job
    /// is alone, its workers are alike, and its order holds for all iterations.
    pub fn on_one_channel(&mut self, time: &mut dyn FnMut(Bytes) -> Time) -> transfers::TransferPlan {
        let mut ranks = Vec::new();
        self.scheduler.ranks(&self.dag, &mut ranks);
        let mut plan =
            transfers::TransferPlan { transfers: Vec::new(), has_barrier: false, credit: self.credit as u32 };
        for (index, &rank) in (0..).zip(&ranks) {
            let gate = self.gates[index as usize].max(self.boundaries.windows[index as usize].update);
            for chunk in 0..self.chunk_count(index) {
                let bytes = self.chunk_bytes(index, chunk);
                let (time, rank) = (time(bytes), Time::from_ps(rank.into()));
                plan.transfers.push(transfers::PlannedTransfer { parameters: vec![index], bytes, time, gate, rank });
            }
        }
        // Among equal ranks, the first that may be sent is first.
        plan.transfers.sort_by_key(|transfer| (transfer.rank, transfer.gate));
        plan
    }

    /// The layers of each bucket, and from which offset of compute time on it may be sent; what is sent first comes
    /// first.
    pub fn sends(&mut self) -> Vec<(Vec<u32>, Time)> {
        let mut ranks = Vec::new();
        self.scheduler.ranks(&self.dag, &mut ranks);
        let mut order: Vec<usize> = (0..self.buckets.len()).collect();
        order.sort_by_key(|&bucket| (ranks[bucket], bucket));
        order.into_iter().map(|bucket| (self.buckets[bucket].layers.clone(), self.gates[bucket])).collect()
    }

    /// Number of chunks of a bucket.
    pub fn chunk_count(&self, bucket: u32) -> u64 {
        self.buckets[bucket as usize].chunk_count(self.chunk)
    }

    /// Chunk `index` of a bucket as one flow, for the job whose index is `stream`.
    pub fn lock_step_flow(&self, bucket: u32, index: u64, stream: u32) -> Flow {
        let bytes = self.chunk_bytes(bucket, index);
        (self.collective.lock_step(bytes, self.band(bucket, index), stream, self.hold))
            .expect("a job of one worker has no buckets")
    }

    /// Band of chunk `index` of a bucket: that of the layer in which it begins.
    pub fn band(&self, bucket: u32, index: u64) -> Band {
        let begins = self.chunk.map_or(0, |chunk| index * chunk.0);
        let steps = &self.bands[bucket as usize];
        steps[steps.partition_point(|&(from, _)| from.0 <= begins) - 1].1
    }

    /// Whether chunks of the job travel in different bands.
    pub fn has_several_bands(&self) -> bool {
        self.has_several_bands
    }

    /// Starts the aggregation of chunk `index` of a bucket, for the job whose index is `stream`; `bands` has those of
    /// workers that have their own.
    pub fn aggregate(
        &self,
        bucket: u32,
        index: u64,
        bands: Option<Bands>,
        stream: u32,
        network: &mut dyn Network,
    ) -> Aggregation {
        let band = self.band(bucket, index);
        match self.manner.messages {
            AggregationForm::LockStep => Aggregation::whole(self.lock_step_flow(bucket, index, stream), network),
            AggregationForm::Recalled => {
                let flow = Flow { hold: Time::ZERO, rounds: 1, parts: 1, ..self.lock_step_flow(bucket, index, stream) };
                Aggregation::whole(flow, network)
            }
            AggregationForm::EachHost { .. } => {
                if self.has_several_bands {
                    // All before it has been received, so the connections carry nothing new of another chunk.
                    network.set_band(stream, band);
                }
                let bands = bands.unwrap_or(Bands::Alike(band));
                let messages = self.collective.begin(self.chunk_bytes(bucket, index), bands, stream, network);
                Aggregation::Messages(Box::new(messages))
            }
        }
    }

    /// Opens the connections that the job keeps for its life; how many flows must complete before it can begin.
    pub fn open(&self, stream: u32, network: &mut dyn Network) -> usize {
        match self.manner.messages {
            AggregationForm::EachHost { opens: true } if !self.buckets.is_empty() => {
                let each = |rule: Rule| [rule.high, rule.low].map(|band| self.bands_of(rule, |_| band)).to_vec();
                let bands = self.rule.map_or_else(|| vec![Bands::Alike(self.opening_band)], each);
                bands.into_iter().map(|bands| self.collective.open(bands, stream, network)).sum()
            }
            _ => 0,
        }
    }

    /// Bands of ranks that change them.
    pub fn bands_of(&self, rule: Rule, band: impl Fn(usize) -> Band) -> Bands {
        let bands = (0..self.collective.hosts().len()).map(band).collect();
        Bands::OfRank { bands, low: rule.low, window: rule.window }
    }

    /// How long the queue waits between picking a chunk and starting its first flow; a lock-step flow holds it itself.
    pub fn delay_before_flows(&self) -> Time {
        match self.manner.messages {
            AggregationForm::LockStep => Time::ZERO,
            AggregationForm::Recalled | AggregationForm::EachHost { .. } => self.hold,
        }
    }

    /// Bytes of `bytes` that the rank sends that sends most.
    pub fn sent_by_busiest(&self, bytes: u128) -> f64 {
        if self.buckets.is_empty() { 0.0 } else { self.collective.sent_by_busiest(bytes) }
    }

    /// Bytes of all chunks of a bucket.
    pub fn sent_bytes(&self, bucket: u32) -> Bytes {
        match self.drops_remainder {
            false => self.buckets[bucket as usize].bytes,
            true => (0..self.chunk_count(bucket)).map(|index| self.chunk_bytes(bucket, index)).sum(),
        }
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self, bucket: u32, index: u64) -> Bytes {
        let bytes = self.buckets[bucket as usize].chunk_bytes(self.chunk, index);
        if self.drops_remainder { divisible(bytes, self.collective.hosts().len()) } else { bytes }
    }
}

fn oracle(OracleSpec { high, low, price_ppm, small_bytes }: OracleSpec) -> Result<Oracle, JobError> {
    Ok(Oracle::new(price_ppm, [band(low)?, band(high)?], Bytes(small_bytes)))
}

fn band(index: u8) -> Result<Band, JobError> {
    Band::new(index).ok_or(JobError::Band(index))
}

fn rule(spec: DeadlineSpec) -> Result<Rule, JobError> {
    Ok(Rule {
        high: band(spec.high)?,
        low: band(spec.low)?,
        has_deadlines: spec.has_deadlines,
        credit: spec.credit as usize,
        window: Bytes(spec.window_bytes),
        link: Rate::from_bps(spec.link_bps).ok_or(JobError::Link)?,
        round_trip: Time::from_ps(spec.round_trip_ps),
        tolerance_ppm: spec.tolerance_ppm,
        margin_ppm: spec.margin_ppm,
        exchange: spec.exchange,
        counts_waits: spec.counts_waits,
    })
}

/// The most of `bytes` that `parts` ranks can have equal parts of.
pub fn divisible(bytes: Bytes, parts: usize) -> Bytes {
    let parts = parts as u64;
    Bytes(bytes.0 / parts * parts)
}

/// Tells how long a collective takes for a number of bytes on a network that carries nothing else.
pub type Alone<'a> = &'a mut dyn FnMut(&Collective, Bytes) -> Time;

/// Longest that the messages of an iteration that is planned may take: a day.
const MOST_SENDING_PS: f64 = 8.64e16;

/// How a job aggregates buffers of up to `largest` bytes, cut into chunks as `depth` says.
///
/// # Errors
/// [`PlanError`] if its ranks do not suit the algorithm.
pub fn collective(spec: &JobSpec, largest: Bytes, depth: Depth, sizes: MessageSize) -> Result<Collective, PlanError> {
    let adding = spec.collective.reduction_rate_bps.and_then(Rate::from_bps);
    let algorithm = algorithm(spec.collective.algorithm, spec.hosts.len() as u32);
    Collective::new(algorithm, spec.hosts.clone(), largest, depth, adding, sizes)
}

/// What a job's messages cost, each with the time for which it holds the queue before its first byte.
///
/// # Errors
/// [`JobError::Plan`] and [`JobError::Cost`].
pub fn costs(spec: &JobSpec, sizes: MessageSize, alone: Alone<'_>) -> Result<Costs, JobError> {
    let plain = collective(spec, Bytes(0), Depth::Fixed(1), sizes)?;
    let hold = Time::from_ps(spec.schedule.overhead_ps);
    let mut time =
        |depth, bytes| alone(&plain.with_depth(Depth::Fixed(depth)), bytes).checked_add(hold).unwrap_or(Time::MAX);
    let costs = Costs::measure(spec.collective.depth, &mut time)?;
    // In the smallest pieces that there may be, and far from the end of 64 bits.
    let bytes: u64 = spec.layers.iter().map(|layer| layer.parameter_bytes).sum();
    let chunks = bytes / spec.schedule.chunk_bytes.unwrap_or(LEAST_CHUNK.0);
    if costs.most_ps(spec.layers.len() as u64 + chunks, Bytes(bytes)) > MOST_SENDING_PS {
        return Err(JobError::TooLong);
    }
    Ok(costs)
}

/// What a collective of so many ranks sends.
pub fn algorithm(spec: AlgorithmSpec, ranks: u32) -> Algorithm {
    match spec {
        // Nobody to send to, whatever the algorithm.
        _ if ranks == 1 => Algorithm::Ring,
        AlgorithmSpec::Ring => Algorithm::Ring,
        AlgorithmSpec::HalvingDoubling => Algorithm::HalvingDoubling,
        AlgorithmSpec::Shuffle => Algorithm::Shuffle,
        AlgorithmSpec::Tree => Algorithm::Tree,
        AlgorithmSpec::Butterfly => Algorithm::Butterfly,
        AlgorithmSpec::ButterflyLayered { group } => Algorithm::ButterflyLayered { group },
        AlgorithmSpec::Hierarchical { group, inside } => {
            let inside = match inside {
                InsideSpec::Reduce => Inside::Reduce,
                InsideSpec::Ring => Inside::Ring,
                InsideSpec::Sharded => Inside::Sharded,
            };
            Algorithm::Hierarchical { group, inside }
        }
        AlgorithmSpec::ParameterServer { servers, placement } => {
            let servers = match placement {
                ServerSpec::Packed => plan::packed_servers(servers),
                ServerSpec::Distributed => plan::distributed_servers(ranks, servers),
                ServerSpec::Separate => (ranks.saturating_sub(servers)..ranks).collect(),
            };
            Algorithm::ParameterServer { servers }
        }
        AlgorithmSpec::AllGather => Algorithm::AllGather,
        AlgorithmSpec::ReduceScatter => Algorithm::ReduceScatter,
        AlgorithmSpec::AllToAll => Algorithm::AllToAll,
        AlgorithmSpec::Broadcast => Algorithm::Broadcast,
        AlgorithmSpec::PointToPoint => Algorithm::PointToPoint,
    }
}

/// From which byte of a bucket on which band holds. The bytes of a bucket lie from its lowest layer to its highest.
fn bands_of(bucket: &Bucket, sizes: &[Bytes], bands: &[Band]) -> Vec<(Bytes, Band)> {
    let mut begins = 0;
    let of_layer = |&layer: &u32| {
        let from = Bytes(begins);
        begins += sizes[layer as usize].0;
        (from, bands[layer as usize * bands.len() / sizes.len()])
    };
    let mut steps: Vec<(Bytes, Band)> = bucket.layers.iter().rev().map(of_layer).collect();
    steps.dedup_by_key(|&mut (_, band)| band);
    steps
}

/// Whether buckets hold every layer with parameters once, and nothing else.
fn holds_all(buckets: &[PlannedBucketSpec], layers: &[LayerSpec]) -> bool {
    let mut listed: Vec<u32> = buckets.iter().flat_map(|bucket| bucket.layers.iter().copied()).collect();
    listed.sort_unstable();
    let with_parameters = (0..).zip(layers).filter(|(_, layer)| layer.parameter_bytes > 0).map(|(index, _)| index);
    with_parameters.eq(listed) && buckets.iter().all(|bucket| !bucket.layers.is_empty())
}

fn check(spec: &JobSpec) -> Result<(), JobError> {
    if spec.layers.is_empty() {
        return Err(JobError::NoLayers);
    }
    if spec.hosts.is_empty() {
        return Err(JobError::NoWorkers);
    }
    if spec.schedule.chunk_bytes == Some(0) {
        return Err(JobError::EmptyChunk);
    }
    if spec.schedule.credit == 0 {
        return Err(JobError::NoCredit);
    }
    if spec.schedule.credit > 1 && spec.bands.iter().any(|&band| band != spec.bands[0]) {
        return Err(JobError::CreditOfBands);
    }
    if spec.compute.overlap_slowdown_ppm < 1_000_000 {
        return Err(JobError::Slowdown(spec.compute.overlap_slowdown_ppm));
    }
    if !(1..=spec.layers.len()).contains(&spec.bands.len()) {
        return Err(JobError::Bands { bands: spec.bands.len(), layers: spec.layers.len() });
    }
    if spec.collective.depth == Some(0) || spec.collective.reduction_rate_bps == Some(0) {
        return Err(JobError::NoCollective);
    }
    pace::check(&spec.compute, spec.hosts.len()).map_err(JobError::Pace)?;
    match &spec.schedule.order {
        OrderSpec::Priority { queues: Some(0) } => return Err(JobError::NoQueues),
        OrderSpec::TacFolded => return Err(JobError::OrderOfServers),
        OrderSpec::File { ranks, .. } if ranks.len() != spec.layers.len() => {
            return Err(JobError::Ranks { ranks: ranks.len(), layers: spec.layers.len() });
        }
        OrderSpec::Planned { buckets } if spec.ops.is_some() || !holds_all(buckets, &spec.layers) => {
            return Err(JobError::Planned);
        }
        _ => {}
    }
    if let FusionSpec::Buckets { layer_counts } = &spec.schedule.fusion {
        let counted = layer_counts.iter().map(|&count| u64::from(count)).sum();
        if counted != spec.layers.len() as u64 {
            return Err(JobError::Buckets { counted, layers: spec.layers.len() });
        }
    }
    let takes_time = match &spec.ops {
        Some(ops) => ops.graph.ops.iter().any(|op| op.receives_bytes.is_none() && op.time_ps > 0),
        None => spec.layers.iter().any(|layer| layer.forward_ps > 0 || layer.backward_ps > 0 || layer.update_ps > 0),
    };
    if !takes_time {
        return Err(JobError::NoTime);
    }
    spec.layers
        .iter()
        .try_fold(0_u64, |sum, layer| sum.checked_add(layer.parameter_bytes))
        .map(|_| ())
        .ok_or(JobError::TooManyBytes)
}
