//! Builds a parallel job, whose model is divided over ranks. The graph of its step runs on the network of its rank
//! classes, or of all its ranks.
//!
//! Ranks of a class behave identically unless compute jitter makes them differ. One of several identical ranks can
//! represent its class on the network of [`Classes`], which has no hosts, switches or routes. Ranks that differ are
//! simulated individually, each on its own host and in its own groups. The packet engine always simulates each rank,
//! the fluid engine only if the scenario requests it.

use crate::classes::{self, Classes, GroupOp};
use crate::collective::algorithms::Algorithm;
use crate::collective::group::GroupHosts;
use crate::collective::messages::MessageSize;
use crate::communicator::{AggregationForm, Communicator, GroupCollectives, GroupRanks, TransferKind};
use crate::dag::Program;
use crate::engine::RECORD_LIMIT;
use crate::error::SpecError;
use crate::jitter::{self, FactorStream};
use crate::job::{CollectiveJob, EngineMode, JobError, Pass};
use crate::parallel::{Group, ParallelError, Step};
use crate::schedule::{Fifo, FirstNeed, Scheduler};
use crate::spec::{ClusterSpec, ComputeSpec, EngineSpec, JobSpec, OrderSpec, RunSpec, Spec};
use gradtide_net::{Band, Seed, Time};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Returns whether each rank of a parallel job is simulated, instead of one rank per class.
fn is_per_rank(run: &RunSpec) -> bool {
    match run.engine {
        EngineSpec::Fluid => run.all_ranks,
        EngineSpec::Packet => true,
    }
}

/// Builds the parallel job of a scenario and the network of its rank classes. Returns `None` if no job is parallel, or
/// if each rank is simulated.
///
/// # Errors
/// [`SpecError`] if the job is invalid, is not the only job in the scenario, or could not be run to its end.
pub fn on_classes(spec: &Spec) -> Result<Option<(CollectiveJob, Arc<Classes>)>, SpecError> {
    let parallel = spec.jobs.iter().find(|job| job.is_parallel()).filter(|_| !is_per_rank(&spec.run));
    let Some(parallel) = parallel else { return Ok(None) };
    let name = || parallel.name.clone();
    let ([job], []) = (&spec.jobs[..], &spec.traffic[..]) else { return Err(SpecError::NotAlone { name: name() }) };
    if job.iterations.is_none() && spec.run.duration.is_none() {
        return Err(SpecError::Endless { name: name() });
    }
    if has_jitter(&job.compute) {
        let error = JobError::Parallel("workers that differ, where one rank stands for all of its class");
        return Err(SpecError::Job { name: name(), error });
    }
    let step = checked(job, &spec.cluster)?;
    let classes = Arc::new(Classes::new(&spec.cluster, step.classes.len() as u32)?);
    check_length(spec, job, &step, Some(&classes))?;
    Ok(Some((build_job(job, step, &classes, |_| None)?, classes)))
}

/// Builds a parallel job with all of its ranks. If `opens`, connections are opened before the job begins.
///
/// # Errors
/// [`SpecError`] if the job is invalid, or could not be run to its end.
pub fn on_ranks(spec: &Spec, job: &JobSpec, sizes: MessageSize, opens: bool) -> Result<CollectiveJob, SpecError> {
    let refused = |error: JobError| SpecError::Job { name: job.name.clone(), error };
    let step = checked(job, &spec.cluster)?.per_rank().map_err(|error| refused(error.into()))?;
    jitter::check(&job.compute, job.hosts.len()).map_err(|why| refused(JobError::Jitter(why)))?;
    check_length(spec, job, &step, None)?;
    let classes = Arc::new(Classes::unshared(&spec.cluster, &job.hosts)?);
    let ranks = |group: &Group| {
        let hosts: Vec<u32> = group.classes.iter().map(|&rank| job.hosts[rank as usize]).collect();
        let nodes = hosts.chunks(group.span.per_node() as usize).map(<[u32]>::to_vec).collect();
        let hosts = GroupHosts { nodes, is_link: group.axis.is_link() };
        Some(GroupRanks { hosts, sizes, opens: BTreeSet::new() })
    };
    let mut ready = build_job(job, step, &classes, ranks)?;
    let mut seen = BTreeSet::new();
    for (index, transfer) in ready.dag.transfers.iter().enumerate() {
        let TransferKind::Group(group) = &mut ready.communicators[transfer.communicator as usize].carries else {
            continue;
        };
        let ((algorithm, _), bytes) = (group.algorithm(index as u32), group.transfers[index].bytes);
        if let Some(ranks) = &mut group.ranks {
            let plans = algorithm.group_plans(&ranks.hosts, bytes, 1).map_err(|error| refused(error.into()))?;
            if opens && seen.insert((transfer.communicator, algorithm.name())) {
                ranks.opens.extend(plans.pairs());
            }
        }
    }
    let worker_count = job.hosts.len() as u32;
    let factors = FactorStream::of_workers(&job.compute, worker_count, &job.name, Seed(spec.run.seed));
    Ok(CollectiveJob { factors, ..ready })
}

/// Size of one iteration of a parallel job in which each rank is simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of compute ops and transfers.
    pub ops: u64,
    /// Number of messages of all transfers.
    pub messages: u64,
    /// Bytes sent over network cards.
    pub bytes: u64,
}

impl Load {
    /// Computes the load of a job on a cluster.
    ///
    /// # Errors
    /// [`SpecError`] if the job or the cluster is invalid.
    pub fn new(job: &JobSpec, cluster: &ClusterSpec) -> Result<Self, SpecError> {
        let step = checked(job, cluster)?;
        let links = classes::links(cluster, &job.hosts)?;
        let programs = step.classes.iter().zip(&step.dag.programs);
        let computes = programs.map(|(class, program)| u64::from(class.ranks) * program.ops.len() as u64);
        let mut load = Self { ops: computes.sum(), ..Self::default() };
        each_op(&step, |op| {
            let members: u64 = op.classes.iter().map(|&class| u64::from(step.classes[class as usize].ranks)).sum();
            let groups = members / u64::from(op.span.ranks());
            let (algorithm, _) = Algorithm::fastest(op.kind, op.span, op.bytes, &links);
            let messages = algorithm.group_messages(op.span, op.bytes, 1);
            load.ops += groups;
            load.messages = load.messages.saturating_add(groups.saturating_mul(messages));
            let sent = Algorithm::of_group(op.kind, op.span).1.nic.bytes(op.bytes).0;
            load.bytes = load.bytes.saturating_add(members.saturating_mul(sent));
        });
        Ok(load)
    }
}

fn has_jitter(compute: &ComputeSpec) -> bool {
    compute.noise_ppm > 0 || compute.straggler.is_some()
}

/// Returns the step of a job after validating its keys and hosts.
fn checked(job: &JobSpec, cluster: &ClusterSpec) -> Result<Step, SpecError> {
    let refused = |error| SpecError::Job { name: job.name.clone(), error };
    check_keys(job).map_err(refused)?;
    let step = Step::of_job(job).map_err(|error| refused(error.into()))?;
    let step = step.ok_or_else(|| refused(JobError::Parallel("no step")))?;
    check_hosts(job, cluster, &step)?;
    Ok(step)
}

/// Number of collectives of one group that gloo runs concurrently. NCCL has one stream for each communicator.
///
/// Source: `ProcessGroupGloo::Options::threads` of PyTorch 2.15.
const GLOO_THREADS: usize = 2;

/// Builds the job of a step. `ranks` returns the ranks of a group, or `None` if the group consists of rank classes.
fn build_job(
    spec: &JobSpec,
    step: Step,
    network: &Arc<Classes>,
    ranks: impl Fn(&Group) -> Option<GroupRanks>,
) -> Result<CollectiveJob, SpecError> {
    let refused = |error| SpecError::Job { name: spec.name.clone(), error };
    let band = Band::new(spec.bands[0]).ok_or_else(|| refused(JobError::Band(spec.bands[0])))?;
    let is_gloo = spec.parallel.as_ref().is_some_and(|parallel| parallel.gloo);
    let in_flight_limit = if is_gloo { GLOO_THREADS } else { 1 };
    let communicator = |group: &Group| Communicator {
        name: step.name_of(group.axis).into(),
        classes: group.classes.clone(),
        scheduler: scheduler(&spec.schedule.order),
        in_flight_limit,
        sync: spec.schedule.sync,
        carries: TransferKind::Group(GroupCollectives {
            network: network.clone(),
            span: group.span,
            transfers: step.transfers.clone(),
            band,
            hold: spec.schedule.overhead,
            ranks: ranks(group),
        }),
    };
    Ok(CollectiveJob {
        name: spec.name.clone(),
        communicators: step.groups.iter().map(communicator).collect(),
        dag: step.dag.clone(),
        step: Some(step),
        start: spec.start,
        iteration_limit: spec.iterations,
        overlap_slowdown_ppm: spec.compute.overlap_slowdown_ppm,
        // A step ends when none of its ops and transfers is in progress, so the next step begins with an idle network
        // and no warm-up iteration is needed.
        mode: EngineMode {
            measured_from: Pass::Backward,
            messages: AggregationForm::EachHost { opens: false },
            sizes: MessageSize::Whole,
            links: *network.links(),
        },
        jitter_range_ppm: jitter::range_ppm(&spec.compute),
        factors: None,
        adaptive: None,
    })
}

/// Creates the scheduler of a group.
fn scheduler(order: &OrderSpec) -> Box<dyn Scheduler> {
    match order {
        OrderSpec::Tic | OrderSpec::Tac => Box::new(FirstNeed),
        _ => Box::new(Fifo),
    }
}

/// Calls `visit` with each transfer, as a collective of rank classes.
fn each_op(step: &Step, mut visit: impl FnMut(GroupOp<'_>)) {
    for transfer in step.transfers.iter() {
        let group = &step.groups[transfer.group as usize];
        let (kind, bytes) = (transfer.kind, transfer.bytes);
        visit(GroupOp { kind, bytes, span: group.span, classes: &group.classes });
    }
}

/// Returns an error for keys that have no meaning for a parallel job, whose step is a fixed graph.
fn check_keys(job: &JobSpec) -> Result<(), JobError> {
    let compute = &job.compute;
    if compute.overlap_slowdown_ppm < jitter::ONE_PPM {
        return Err(JobError::Slowdown(compute.overlap_slowdown_ppm));
    }
    if job.bands.len() != 1 {
        return Err(JobError::Bands { bands: job.bands.len(), layers: 1 });
    }
    for (what, is_there) in [
        ("parameter servers", job.servers.is_some()),
        ("a graph of ops", job.ops.is_some()),
        ("adaptive bands", job.adaptive.is_some()),
        ("announced bursts", job.announced_packets.is_some()),
        ("chunks", job.schedule.chunk.is_some()),
        ("several chunks at a time", job.schedule.credit != 1),
        ("an order of layers", !matches!(job.schedule.order, OrderSpec::Fifo | OrderSpec::Tic | OrderSpec::Tac)),
    ] {
        if is_there {
            return Err(JobError::Parallel(what));
        }
    }
    Ok(())
}

/// Checks that rank r is on node r / `gpus_per_node`, and that the nodes of the cluster have this number of GPUs.
fn check_hosts(job: &JobSpec, cluster: &ClusterSpec, step: &Step) -> Result<(), SpecError> {
    let refused = |error: ParallelError| SpecError::Job { name: job.name.clone(), error: error.into() };
    let (mesh, workers) = (step.classes.iter().map(|class| u64::from(class.ranks)).sum(), job.hosts.len() as u64);
    if mesh != workers {
        return Err(refused(ParallelError::Ranks { mesh, workers }));
    }
    let gpus = cluster.node.as_ref().map_or(1, |node| node.gpus);
    if step.gpus_per_node != gpus {
        return Err(refused(ParallelError::Node { gpus, wanted: step.gpus_per_node }));
    }
    let first = |rank: usize| job.hosts[rank - rank % gpus as usize];
    let mut sorted = job.hosts.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let is_in_place = |(rank, &host): (usize, &u32)| {
        first(rank).is_multiple_of(gpus) && u64::from(host) == u64::from(first(rank)) + rank as u64 % u64::from(gpus)
    };
    if sorted.len() != job.hosts.len() || !job.hosts.iter().enumerate().all(is_in_place) {
        return Err(refused(ParallelError::Places));
    }
    Ok(())
}

/// Checks that records and byte counts stay within their limits. For rank classes, also checks that no time exceeds
/// half of [`Time::MAX`].
fn check_length(spec: &Spec, job: &JobSpec, step: &Step, classes: Option<&Classes>) -> Result<(), SpecError> {
    let name = || job.name.clone();
    let each = u128::from(job.schedule.overhead.ps()) + u128::from(job.schedule.sync.ps());
    let (mut sending, mut bytes) = (Some(0_u128), 0_u128);
    each_op(step, |op| {
        let time =
            classes.map_or(Some(Time::ZERO), |classes| classes.time(&op)).map(|time| u128::from(time.ps()) + each);
        sending = sending.zip(time).map(|(sum, time)| sum + time);
        // A rank sends at most twice the buffer.
        bytes += 2 * u128::from(op.bytes.0);
    });
    let (_, slowest_ppm) = jitter::range_ppm(&job.compute);
    let of_program = |program: &Program| {
        let ops = &step.dag.ops[program.ops.start as usize..program.ops.end as usize];
        ops.iter().map(|op| u128::from(op.cost.ps())).sum::<u128>() * u128::from(slowest_ppm)
            / u128::from(jitter::ONE_PPM)
    };
    let computing = || step.dag.programs.iter().map(of_program);
    let slowed = computing().sum::<u128>() * u128::from(job.compute.overlap_slowdown_ppm);
    // Upper bound of an iteration, in which all ops and transfers follow one another.
    let longest = sending.ok_or_else(|| SpecError::TooLong { name: name() })? + slowed.div_ceil(jitter::ONE_PPM.into());
    let shortest = computing().max().unwrap_or(0).max(1);
    let ps = |time: Time| u128::from(time.ps());
    let (start, duration) = (ps(job.start), spec.run.duration.map(ps));
    let by_duration = duration.map_or(u128::MAX, |duration| duration.div_ceil(shortest) + 1);
    let iterations = job.iterations.map_or(u128::MAX, u128::from).min(by_duration).saturating_add(1);
    let end = iterations.saturating_mul(longest).saturating_add(start);
    let end = end.min(duration.map_or(u128::MAX, |duration| start.max(duration) + 2 * longest));
    if end > u128::from(Time::MAX.ps() / 2) {
        return Err(SpecError::TooLong { name: name() });
    }
    let records = iterations.saturating_mul(step.transfers.len() as u128);
    if records > u128::from(RECORD_LIMIT) {
        let records = u64::try_from(records).unwrap_or(u64::MAX);
        return Err(SpecError::TooManyRecords { name: name(), records, limit: RECORD_LIMIT });
    }
    if iterations.saturating_mul(bytes) > u128::from(u64::MAX) {
        return Err(SpecError::TooManySent { name: name() });
    }
    Ok(())
}
