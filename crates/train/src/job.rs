//! A job that is ready to run: its engine mode, and either its DAG and communicators or its parameter servers. It is
//! built from a [`JobSpec`], which is validated in the process.

use crate::bands::BandPolicy;
use crate::bucket::Bucket;
use crate::caramel::cost::{CostError, Costs, LEAST_CHUNK};
use crate::caramel::transfers;
use crate::collective::messages::{Bands, Collective, Depth, MessageSize};
use crate::collective::nodes::Links;
use crate::collective::plan::PlanError;
use crate::communicator::{self, AggregationForm, Communicator, DataParallel, TransferKind};
use crate::dag::Dag;
use crate::jitter::{self, FactorStream};
use crate::model::{ComputeSteps, iteration_dag};
use crate::parallel::{ParallelError, RanksError, Step};
use crate::planned::{Planned, asks_costs};
use crate::program::{self, ProgramError};
use crate::ps::{PsError, PsJob};
use crate::research::{Adaptive, PolicyError, World};
use crate::spec::{FusionSpec, JobSpec, LayerSpec, OrderSpec, PlannedBucketSpec};
use gradtide_net::{Announced, Band, Bytes, Seed, Time};
use std::sync::Arc;
use thiserror::Error;

/// A job that is ready to run.
pub enum Job {
    /// A job whose ranks communicate by collectives.
    Collective(Box<CollectiveJob>),
    /// A job whose workers pull parameters from servers and push gradients to them.
    Ps(Box<PsJob>),
}

impl Job {
    /// Returns the time at which the first iteration begins.
    pub fn start(&self) -> Time {
        match self {
            Self::Collective(job) => job.start,
            Self::Ps(job) => job.start,
        }
    }

    /// Returns the number of streams of the job's flows.
    pub fn stream_count(&self) -> usize {
        match self {
            Self::Collective(job) => job.stream_count(),
            Self::Ps(_) => 1,
        }
    }
}

impl From<CollectiveJob> for Job {
    fn from(job: CollectiveJob) -> Self {
        Self::Collective(Box::new(job))
    }
}

impl From<PsJob> for Job {
    fn from(job: PsJob) -> Self {
        Self::Ps(Box::new(job))
    }
}

/// A job whose ranks communicate by collectives, ready to run.
pub struct CollectiveJob {
    /// Key of the job in the scenario.
    pub name: String,
    /// Graph of one iteration.
    pub dag: Arc<Dag>,
    /// The step of a parallel job, which describes the ops and transfers of `dag`; otherwise `None`.
    pub step: Option<Step>,
    /// Communicators, each with its send queue.
    pub communicators: Vec<Communicator>,
    /// Time at which the first iteration begins.
    pub start: Time,
    /// Number of measured iterations; `None` if only the duration limits the run.
    pub iteration_limit: Option<u32>,
    /// Duration of a piece of compute that overlaps with a transfer, in millionths of its duration without transfers.
    pub overlap_slowdown_ppm: u64,
    /// Choices that depend on the network engine.
    pub mode: EngineMode,
    /// Smallest and largest factor of compute jitter, in millionths.
    pub jitter_range_ppm: (u64, u64),
    /// Compute jitter of each worker. `None` if one worker represents all because they are identical, or if there are
    /// rank classes.
    pub factors: Option<Vec<FactorStream>>,
    /// Policy by which workers change their bands. `None` without a policy, or if messages are not simulated.
    pub adaptive: Option<Adaptive>,
}

/// A pass of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Forward pass, from the input side to the output side.
    Forward,
    /// Backward pass, from the output side to the input side.
    Backward,
}

/// The engine mode of a job: the choices that depend on the network engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineMode {
    /// Pass with which the job begins. An iteration is measured from the start of this pass to its next start.
    pub measured_from: Pass,
    /// How collectives are represented as flows of the engine.
    pub messages: AggregationForm,
    /// Size of messages whose bytes do not divide evenly.
    pub sizes: MessageSize,
    /// A rank's links within its node and to the network.
    pub links: Links,
}

/// An invalid job. `gradtide.scenario` reports all of these errors earlier, with a file and a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum JobError {
    /// The model has no layers.
    #[error("the model has no layers")]
    NoLayers,
    /// The job has no hosts.
    #[error("the job has no workers")]
    NoWorkers,
    /// A band is outside the range of the network's bands.
    #[error("band {0} is not among the network's {count} bands", count = Band::COUNT)]
    Band(u8),
    /// There is no band, or there are more bands than layers.
    #[error("{bands} bands for {layers} layers")]
    Bands {
        /// Number of bands.
        bands: usize,
        /// Number of layers of the model.
        layers: usize,
    },
    /// The straggler is not one of the workers, or its factor is invalid.
    #[error("the workers cannot differ so: {0}")]
    Jitter(&'static str),
    /// The collective does not support the number of ranks.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The depth of a collective is 0.
    #[error("a collective has a depth above 0")]
    NoCollective,
    /// The chunk size is 0.
    #[error("a chunk has at least one byte")]
    EmptyChunk,
    /// The in-flight limit is 0.
    #[error("at least one chunk is on the network at a time")]
    NoCredit,
    /// The band policy is invalid.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Several chunks are in flight but the layers have different bands. The chunks share connections, and a connection
    /// has one band.
    #[error("with several chunks on the network at a time, all layers have one band")]
    CreditOfBands,
    /// Adaptive bands require a model that is a chain of layers, and one ring at a time.
    #[error("bands change for a chain of layers and one ring at a time alone: depth and credit are 1")]
    AdaptiveOfOneRing,
    /// The total time of the messages could overflow in planning.
    #[error("an iteration's messages take more than a day")]
    TooLong,
    /// The measured message costs do not yield a cost model, which the schedule needs.
    #[error("a schedule asks what messages cost: {0}")]
    Cost(#[from] CostError),
    /// The slowdown factor is below 1.
    #[error("overlap can slow compute down, not speed it up: {0} is below 1000000 ppm")]
    Slowdown(u64),
    /// A key is set that parallel jobs do not have.
    #[error("a model that is divided over ranks cannot have {0}")]
    Parallel(&'static str),
    /// The parallel job is invalid.
    #[error(transparent)]
    Step(#[from] ParallelError),
    /// The parallel job has too many ranks to simulate each of them.
    #[error(transparent)]
    TooManyRanks(#[from] RanksError),
    /// The order applies to pulls, but the job has no parameter servers.
    #[error("the order is for parameter servers that every iteration begins with a pull from")]
    OrderOfServers,
    /// The parameter servers are invalid.
    #[error(transparent)]
    Servers(#[from] PsError),
    /// The op graph has no sequential order.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The number of priority queues is 0.
    #[error("there is at least one priority queue")]
    NoQueues,
    /// The buckets do not contain the layers of this model.
    #[error("the buckets hold {counted} layers of {layers}")]
    Buckets {
        /// Number of layers in the buckets.
        counted: u64,
        /// Number of layers of the model.
        layers: usize,
    },
    /// The order file does not rank the layers of this model.
    #[error("the order ranks {ranks} layers of {layers}")]
    Ranks {
        /// Number of ranks in the file.
        ranks: usize,
        /// Number of layers of the model.
        layers: usize,
    },
    /// The plan does not contain the layers of this model.
    #[error("the planned buckets do not hold every layer with parameters once")]
    Planned,
    /// An iteration takes no time, so it would be repeated for ever at one instant.
    #[error("no layer takes any time")]
    NoTime,
    /// The announced queue threshold cannot be encoded in a packet.
    #[error("a threshold of {0} packets cannot be announced: multiples of 5 up to 75 can")]
    Announced(u32),
    /// The parameters have more bytes than 64 bits can count.
    #[error("the parameters are larger than 2^64 bytes")]
    TooManyBytes,
}

impl CollectiveJob {
    /// Plans a data-parallel job. `alone` returns the time of a collective on an otherwise idle network. It is called
    /// only if the schedule needs message costs.
    ///
    /// # Errors
    /// See [`JobError`].
    pub fn plan(spec: &JobSpec, seed: Seed, mode: EngineMode, alone: Alone<'_>) -> Result<Self, JobError> {
        check(spec)?;
        let sizes: Vec<Bytes> = spec.layers.iter().map(|layer| Bytes(layer.parameter_bytes)).collect();
        let costs = if asks_costs(spec) { Some(costs(spec, mode, alone)?) } else { None };
        let mut programs = match &spec.ops {
            None => vec![ComputeSteps::of_layers(&spec.layers)],
            Some(ops) => {
                let any = collective(spec, Bytes(0), Depth::Fixed(1), mode)?;
                program::of_workers(ops, &spec.layers, any.worker_hosts().count() as u32, &spec.name, seed)?
            }
        };
        let planned = Planned::new(spec, &programs, costs.as_ref(), seed);
        let buckets = planned.buckets;
        let largest = buckets.iter().map(|bucket| bucket.bytes).max().unwrap_or_default();
        let announced =
            spec.announced_packets.map(|packets| Announced::new(packets).ok_or(JobError::Announced(packets)));
        let depth = costs.map_or(Depth::Fixed(spec.collective.depth.unwrap_or(1)), |costs| costs.depth);
        let collective = collective(spec, largest, depth, mode)?.announced(announced.transpose()?);
        if spec.adaptive.is_some() && collective.is_over_nodes() {
            return Err(JobError::AdaptiveOfOneRing);
        }
        let worker_count = collective.worker_hosts().count() as u32;
        if spec.schedule.barrier {
            programs.iter_mut().for_each(|steps| *steps = steps.behind_barrier());
        }
        let dag = iteration_dag(&programs, &buckets, spec.layers.len() as u32);
        debug_assert!(dag.is_executable(), "an iteration has no cycle");
        let factors = match dag.programs.len() {
            1 => FactorStream::of_workers(&spec.compute, worker_count, &spec.name, seed),
            _ => Some(FactorStream::of_each(&spec.compute, worker_count, &spec.name, seed)),
        };
        // In an op graph the passes overlap, so there is no time between them at which the network is idle and all
        // parameters are present. Iterations are then measured from the forward pass.
        let measured_from = if spec.ops.is_some() { Pass::Forward } else { mode.measured_from };
        let mode = EngineMode { measured_from, ..mode };
        let bands = (spec.bands.iter()).map(|&index| band(index)).collect::<Result<Vec<Band>, JobError>>()?;
        let adaptive = spec.adaptive.map(Adaptive::new).transpose()?;
        let opening_bands = adaptive.as_ref().and_then(|adaptive| adaptive.opening_bands(collective.hosts().len()));
        let is_simulated = matches!(mode.messages, AggregationForm::EachHost { .. });
        let adaptive = adaptive.filter(|_| is_simulated);
        let in_flight_limit = adaptive.as_ref().and_then(Adaptive::in_flight_limit);
        let gradients = DataParallel {
            releases: planned.releases,
            boundaries: planned.boundaries,
            without_barrier: planned.without_barrier,
            collective,
            form: mode.messages,
            changes_bands: spec.adaptive.is_some(),
            drops_remainder: spec.collective.drops_remainder(),
            chunk: planned.chunk,
            bands: buckets.iter().map(|bucket| bands_of(bucket, &sizes, &bands)).collect(),
            buckets,
            opening_bands: opening_bands.unwrap_or_else(|| vec![Bands::Alike(bands[0])]),
            has_several_bands: bands.iter().any(|&band| band != bands[0]),
            hold: spec.schedule.overhead,
        };
        Ok(Self {
            dag: Arc::new(dag),
            step: None,
            communicators: vec![Communicator {
                name: "".into(),
                classes: Vec::new(),
                scheduler: planned.scheduler,
                in_flight_limit: in_flight_limit.unwrap_or(spec.schedule.credit as usize),
                sync: spec.schedule.sync,
                carries: TransferKind::Gradients(Box::new(gradients)),
            }],
            name: spec.name.clone(),
            start: spec.start,
            iteration_limit: spec.iterations,
            overlap_slowdown_ppm: spec.compute.overlap_slowdown_ppm,
            mode,
            jitter_range_ppm: jitter::range_ppm(&spec.compute),
            factors,
            adaptive,
        })
    }

    /// Returns the number of streams of the job's flows.
    pub fn stream_count(&self) -> usize {
        self.communicators.len().max(1)
    }

    /// Returns whether an oracle chooses the bands.
    pub fn has_oracle(&self) -> bool {
        matches!(self.adaptive, Some(Adaptive::Oracle(_)))
    }

    /// Returns the policy that chooses the bands, if the job has one. An oracle simulates the future in `world`.
    pub fn policy<'p, 'n: 'p, 's: 'p>(&self, world: Option<&World<'n, 's>>) -> Option<Box<dyn BandPolicy + 'p>> {
        let (adaptive, gradients) = (self.adaptive.as_ref()?, self.gradients()?);
        Some(adaptive.policy(gradients, communicator::last_transfer(&self.dag), world))
    }

    /// Returns the gradient aggregation, unless the job is a parallel job.
    pub fn gradients(&self) -> Option<&DataParallel> {
        match &self.communicators[..] {
            [one] => one.gradients(),
            _ => None,
        }
    }

    /// Returns the transfers of a data-parallel job as a plan for one channel, on which a message takes `time`.
    /// Simulating the plan by [`timeline::run`](crate::caramel::timeline::run) with the job's windows agrees with an
    /// engine if the job is alone, its workers are identical, and its order is the same in all iterations.
    pub fn on_one_channel(&mut self, time: &mut dyn FnMut(Bytes) -> Time) -> transfers::TransferPlan {
        let ranks = self.next_ranks();
        let credit = self.communicators[0].in_flight_limit as u32;
        let mut plan = transfers::TransferPlan { transfers: Vec::new(), has_barrier: false, credit };
        let Some(gradients) = self.gradients() else { return plan };
        for (index, &rank) in (0..).zip(&ranks) {
            let release = gradients.releases[index as usize].max(gradients.boundaries.windows[index as usize].update);
            for chunk in 0..gradients.chunk_count(index) {
                let bytes = gradients.chunk_bytes(index, chunk);
                let (time, rank) = (time(bytes), Time::from_ps(rank.into()));
                plan.transfers.push(transfers::PlannedTransfer { parameters: vec![index], bytes, time, release, rank });
            }
        }
        // Transfers of equal rank are sent in the order of their release.
        plan.transfers.sort_by_key(|transfer| (transfer.rank, transfer.release));
        plan
    }

    /// Returns the buckets of a data-parallel job in send order: the layers of each bucket, and its release time as an
    /// offset of compute time.
    pub fn sends(&mut self) -> Vec<(Vec<u32>, Time)> {
        let ranks = self.next_ranks();
        let Some(DataParallel { buckets, releases, .. }) = self.gradients() else { return Vec::new() };
        let mut order: Vec<usize> = (0..buckets.len()).collect();
        order.sort_by_key(|&bucket| (ranks[bucket], bucket));
        order.into_iter().map(|bucket| (buckets[bucket].layers.clone(), releases[bucket])).collect()
    }

    fn next_ranks(&mut self) -> Vec<u32> {
        let mut ranks = Vec::new();
        communicator::rank(&self.dag, &mut self.communicators, |_| true, &mut ranks);
        ranks
    }
}

fn band(index: u8) -> Result<Band, JobError> {
    Band::new(index).ok_or(JobError::Band(index))
}

/// Callback that returns the duration of a collective for a number of bytes on an otherwise idle network.
pub type Alone<'a> = &'a mut dyn FnMut(&Collective, Bytes) -> Time;

/// Limit on the total time of an iteration's messages, in picoseconds, for schedules that need message costs: one day.
const MOST_SENDING_PS: f64 = 8.64e16;

/// Returns the collective of a job for buffers of up to `largest` bytes, which `depth` cuts into chunks.
///
/// # Errors
/// [`PlanError`] if the algorithm does not support the number of ranks.
pub fn collective(spec: &JobSpec, largest: Bytes, depth: Depth, mode: EngineMode) -> Result<Collective, PlanError> {
    let algorithm = spec.collective.algorithm;
    let adding = spec.collective.reduction_rate;
    Collective::new(algorithm, spec.hosts.clone(), largest, depth, adding, mode.sizes)?.over_nodes(&mode.links)
}

/// Measures the cost of a job's messages. The cost includes the time for which a message occupies the queue before its
/// first byte.
///
/// # Errors
/// [`JobError::EmptyChunk`], [`JobError::Plan`], [`JobError::Cost`] and [`JobError::TooLong`].
pub fn costs(spec: &JobSpec, mode: EngineMode, alone: Alone<'_>) -> Result<Costs, JobError> {
    if spec.schedule.chunk == Some(Bytes(0)) {
        return Err(JobError::EmptyChunk);
    }
    let plain = collective(spec, Bytes(0), Depth::Fixed(1), mode)?;
    let hold = spec.schedule.overhead;
    let mut time =
        |depth, bytes| alone(&plain.with_depth(Depth::Fixed(depth)), bytes).checked_add(hold).unwrap_or(Time::MAX);
    let depth = if plain.has_depth() { spec.collective.depth } else { Some(1) };
    let costs = Costs::measure(depth, &mut time)?;
    // This upper bound assumes the smallest possible chunks.
    let bytes: u64 = spec.layers.iter().map(|layer| layer.parameter_bytes).sum();
    let chunks = bytes / spec.schedule.chunk.unwrap_or(LEAST_CHUNK).0;
    if costs.most_ps(spec.layers.len() as u64 + chunks, Bytes(bytes)) > MOST_SENDING_PS {
        return Err(JobError::TooLong);
    }
    Ok(costs)
}

/// Returns the bands of a bucket, each with the byte offset from which it applies. The layers of a bucket are laid out
/// from the lowest to the highest.
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

/// Returns whether the buckets together contain every layer with parameters exactly once, and no other layer.
fn holds_all(buckets: &[PlannedBucketSpec], layers: &[LayerSpec]) -> bool {
    let mut listed: Vec<u32> = buckets.iter().flat_map(|bucket| bucket.layers.iter().copied()).collect();
    listed.sort_unstable();
    let with_parameters = (0..).zip(layers).filter(|(_, layer)| layer.parameter_bytes > 0).map(|(index, _)| index);
    with_parameters.eq(listed) && buckets.iter().all(|bucket| !bucket.layers.is_empty())
}

fn check(spec: &JobSpec) -> Result<(), JobError> {
    if spec.is_parallel() {
        return Err(JobError::Parallel("buckets of gradients"));
    }
    if spec.layers.is_empty() {
        return Err(JobError::NoLayers);
    }
    if spec.hosts.is_empty() {
        return Err(JobError::NoWorkers);
    }
    if spec.schedule.chunk == Some(Bytes(0)) {
        return Err(JobError::EmptyChunk);
    }
    if spec.schedule.credit == 0 {
        return Err(JobError::NoCredit);
    }
    if spec.schedule.credit > 1 && spec.bands.iter().any(|&band| band != spec.bands[0]) {
        return Err(JobError::CreditOfBands);
    }
    let is_one_ring = spec.collective.algorithm.is_ring()
        && spec.collective.depth == Some(1)
        && spec.schedule.credit == 1
        && spec.ops.is_none();
    if spec.adaptive.is_some() && !is_one_ring {
        return Err(JobError::AdaptiveOfOneRing);
    }
    if spec.compute.overlap_slowdown_ppm < 1_000_000 {
        return Err(JobError::Slowdown(spec.compute.overlap_slowdown_ppm));
    }
    if !(1..=spec.layers.len()).contains(&spec.bands.len()) {
        return Err(JobError::Bands { bands: spec.bands.len(), layers: spec.layers.len() });
    }
    if spec.collective.depth == Some(0) {
        return Err(JobError::NoCollective);
    }
    jitter::check(&spec.compute, spec.hosts.len()).map_err(JobError::Jitter)?;
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
