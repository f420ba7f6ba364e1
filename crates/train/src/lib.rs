//! The training step: the transfers of an iteration, their release times and their send order.
//!
//! [`run()`] shows how the crate works: scenario -> DAG and schedule -> network engine -> results.

pub mod bands;
pub mod bucket;
pub mod caramel;
pub mod classes;
pub mod collective;
pub mod communicator;
pub mod dag;
pub mod engine;
mod error;
pub mod exchange_cache;
pub mod fabric;
pub mod jitter;
pub mod job;
pub mod model;
pub mod opdag;
pub mod order;
pub mod parallel;
pub mod parallel_job;
pub mod planned;
pub mod probe;
pub mod program;
pub mod ps;
pub mod research;
pub mod result;
pub mod routed;
pub mod run;
pub mod schedule;
pub mod spec;
pub mod traffic;

use collective::messages::{Collective, Depth};
use communicator::AggregationForm;
use engine::{Engine, Idle};
pub use error::{RunError, SpecError};
use fabric::Fabric;
use gradtide_net::{Announced, Band, Bytes, Ends, Network, Seed, Time};
use gradtide_table::Table;
use job::{CollectiveJob, Job, JobError};
use parallel::Step;
use ps::{PsExecutor, PsJob};
use research::World;
use result::RunResult;
use run::{CollectiveExecutor, Executor, Limits, RunContext};
use spec::{EngineSpec, Spec, TrafficSpec};
use traffic::{Background, BackgroundFlows};

/// Runs one scenario. `observe` is called periodically with the completed share of the run, and stops the run by
/// returning `false`.
///
/// # Errors
/// [`RunError::Spec`] before the run starts, [`RunError::Iteration`] if the run cannot continue.
pub fn run(spec: &Spec, observe: &mut dyn FnMut(f64) -> bool) -> Result<RunResult, RunError> {
    let Ready { mut jobs, background, mut engine, ends } = ready(spec)?;
    let has_oracle = jobs.iter().any(|job| matches!(job, Job::Collective(job) if job.has_oracle()));
    let (mut network, world): (Box<dyn Network + '_>, _) = if has_oracle {
        let world = World::new(engine.forkable(&ends), background.clone());
        (Box::new(world.clone()), Some(world))
    } else {
        (engine.network(&ends), None)
    };
    let limits = limits(spec);
    let executors = executors(&mut jobs, limits, world.as_ref());
    let done = run::run(executors, &background, network.as_mut(), limits, observe)?;
    let end = network.now();
    drop((network, world));
    Ok(RunResult::new(spec, done, background, end, engine.usage()))
}

/// Creates the executors of all jobs of a run. The streams of jobs are numbered from 0, job by job.
fn executors<'p, 'a: 'p, 'n: 'p, 's: 'p>(
    jobs: &'a mut [Job],
    limits: Limits,
    world: Option<&World<'n, 's>>,
) -> Vec<Box<dyn Executor<'a> + 'p>> {
    let last_start = jobs.iter().map(Job::start).max().unwrap_or(Time::ZERO);
    let context = RunContext { limits, last_start, is_shared: jobs.len() > 1 };
    let mut stream = 0;
    let executor = |job: &'a mut Job| -> Box<dyn Executor<'a> + 'p> {
        let first = stream;
        stream += job.stream_count() as u32;
        match job {
            Job::Collective(job) => {
                let policy = job.policy(world);
                Box::new(CollectiveExecutor::new(job, first, context, policy))
            }
            Job::Ps(job) => Box::new(PsExecutor::new(job, first, context)),
        }
    };
    jobs.iter_mut().map(executor).collect()
}

struct Ready<'a> {
    jobs: Vec<Job>,
    background: Background<'a>,
    engine: Engine,
    ends: Ends,
}

fn ready(spec: &Spec) -> Result<Ready<'_>, SpecError> {
    if let Some((job, classes)) = parallel_job::on_classes(spec)? {
        let names = job.step.as_ref().map(Step::class_names).unwrap_or_default();
        let engine = Engine::of_classes(&spec.run, &classes, &names)?;
        return Ok(Ready { jobs: vec![job.into()], background: Background::default(), engine, ends: Ends::default() });
    }
    let fabric = Fabric::new(&spec.cluster)?;
    let (jobs, background) = plan(spec, &fabric)?;
    let ends = fabric.ends.clone();
    let engine = Engine::new(spec, fabric, &jobs)?;
    Ok(Ready { jobs, background, engine, ends })
}

/// Returns the step of the parallel job as a document, without simulating it. Returns `None` if no job is parallel.
///
/// # Errors
/// [`SpecError`] if the job is invalid.
pub fn step_graph(spec: &Spec) -> Result<Option<spec::StepSpec>, SpecError> {
    let of_job = |job: &spec::JobSpec| {
        let step = Step::of_job(job).transpose()?;
        Some(step.map_err(|error| SpecError::Job { name: job.name.clone(), error: error.into() }))
    };
    spec.jobs.iter().find_map(of_job).map(|step| step.map(|step| step.graph())).transpose()
}

/// Returns the messages by which the ranks of the job with index `job` exchange `bytes`, in whole bytes. The table has
/// one row per message, ordered by chunk, step and sender. Nothing is simulated.
///
/// # Errors
/// [`SpecError`] if there is no such job, or if its collective does not support its number of ranks.
pub fn messages(spec: &Spec, job: usize, bytes: Bytes) -> Result<Table, SpecError> {
    let stream = job as u32;
    let job = spec.jobs.get(job).ok_or(SpecError::NoSuchJob)?;
    let mode = engine::mode(spec, job)?;
    let refused = |error| SpecError::Job { name: job.name.clone(), error };
    let depth = match job.collective.depth {
        Some(depth) => Depth::Fixed(depth),
        None => {
            let fabric = Fabric::new(&spec.cluster)?;
            check_hosts(job, fabric.place_count())?;
            let mut idle = Idle::requested(spec, &fabric)?;
            job::costs(job, mode, &mut |collective, bytes| idle.time(stream, collective, bytes)).map_err(refused)?.depth
        }
    };
    let collective = job::collective(job, bytes, depth, mode).map_err(|error| refused(error.into()))?;
    let bytes = if job.collective.drops_remainder() { communicator::divisible(bytes, job.hosts.len()) } else { bytes };
    Ok(result::messages(&collective, bytes))
}

/// Returns the transfer times that schedulers assume, one for each layer of the job with index `job`, or for each
/// parameter of its op graph. If workers pull from servers, the time in which all workers pull everything is divided
/// among the parameters in proportion to their bytes. In other jobs a transfer takes as long as on an idle network.
///
/// # Errors
/// [`SpecError`] if there is no such job, or if it is invalid.
pub fn transfer_times(spec: &Spec, job: usize) -> Result<Vec<Time>, SpecError> {
    let stream = job as u32;
    let job = spec.jobs.get(job).ok_or(SpecError::NoSuchJob)?;
    let refused = |error| SpecError::Job { name: job.name.clone(), error };
    let fabric = Fabric::new(&spec.cluster)?;
    check_hosts(job, fabric.place_count())?;
    if job.servers.is_some() {
        let plan = PsJob::new(job, Seed(spec.run.seed), &fabric.paths(), false);
        return Ok(plan.map_err(|error| refused(error.into()))?.expected_times());
    }
    if job.hosts.len() == 1 {
        return Ok(vec![Time::ZERO; job.layers.len()]);
    }
    let (mode, mut idle) = (engine::mode(spec, job)?, Idle::requested(spec, &fabric)?);
    let costs =
        job::costs(job, mode, &mut |collective, bytes| idle.time(stream, collective, bytes)).map_err(refused)?;
    Ok(job.layers.iter().map(|layer| costs.time(Bytes(layer.parameter_bytes))).collect())
}

/// Returns the buckets of an iteration of the job with index `job`, in send order: the layers of each bucket, and its
/// release time as an offset of compute time. Nothing is simulated.
///
/// # Errors
/// [`SpecError`] if there is no such job, if it uses parameter servers, or if it is invalid.
pub fn planned(spec: &Spec, job: usize) -> Result<Vec<(Vec<u32>, Time)>, SpecError> {
    let fabric = Fabric::new(&spec.cluster)?;
    let (mut jobs, _) = plan(spec, &fabric)?;
    match jobs.get_mut(job) {
        Some(Job::Collective(job)) => Ok(job.sends()),
        _ => Err(SpecError::NoSuchJob),
    }
}

fn plan<'a>(spec: &'a Spec, fabric: &Fabric) -> Result<(Vec<Job>, Background<'a>), SpecError> {
    if spec.jobs.is_empty() && spec.traffic.is_empty() {
        return Err(SpecError::Nothing);
    }
    let host_count = fabric.place_count();
    let mut idle = Idle::new(spec, fabric)?;
    let plan_job = |(stream, job): (u32, &spec::JobSpec)| {
        let name = || job.name.clone();
        check_hosts(job, host_count)?;
        if job.iterations.is_none() && spec.run.duration.is_none() {
            return Err(SpecError::Endless { name: name() });
        }
        let (seed, mode) = (Seed(spec.run.seed), engine::mode(spec, job)?);
        let mut alone = |collective: &Collective, bytes| idle.time(stream, collective, bytes);
        if job.is_parallel() {
            let opens = spec.run.engine == EngineSpec::Packet;
            return parallel_job::on_ranks(spec, job, mode.sizes, opens).map(Job::from);
        }
        let planned = match &job.servers {
            None => CollectiveJob::plan(job, seed, mode, &mut alone).map(Job::from),
            Some(_) => {
                let opens = mode.messages == AggregationForm::EachHost { opens: true };
                let planned = PsJob::new(job, seed, &fabric.paths(), opens);
                planned.map(Job::from).map_err(JobError::from)
            }
        };
        planned.map_err(|error| SpecError::Job { name: name(), error })
    };
    let jobs = (0..).zip(&spec.jobs).map(plan_job).collect::<Result<Vec<Job>, SpecError>>()?;
    if let (Some(seer), true) = (spec.jobs.iter().find(|job| job.has_oracle()), spec.jobs.len() > 1) {
        return Err(SpecError::OracleOfSeveral { name: seer.name.clone() });
    }
    let jitter = spec.run.start_jitter.unwrap_or_default();
    let card = |place| fabric.ends.nodes.map_or(place, |nodes| nodes.card(place));
    let background = (spec.traffic.iter().enumerate())
        .map(|(index, traffic)| {
            check_flows(traffic, host_count)?;
            Ok(BackgroundFlows::new(traffic, traffic::stream(index), card, Seed(spec.run.seed), jitter))
        })
        .collect::<Result<_, SpecError>>()?;
    Ok((jobs, Background::new(background)))
}

/// Returns an error if a host of the job is not on the network, or has two workers.
fn check_hosts(job: &spec::JobSpec, host_count: u32) -> Result<(), SpecError> {
    let mut taken = std::collections::BTreeSet::new();
    let name = || job.name.clone();
    for &host in &job.hosts {
        if host >= host_count {
            return Err(SpecError::NoSuchHost { name: name(), host, host_count });
        }
        if !taken.insert(host) {
            return Err(SpecError::SharedHost { name: name(), host });
        }
    }
    Ok(())
}

fn check_flows(traffic: &TrafficSpec, host_count: u32) -> Result<(), SpecError> {
    let wrong = |index, what| Err(SpecError::Flow { name: traffic.name.clone(), index, what });
    let count = traffic.start.len();
    let columns = [traffic.src.len(), traffic.dst.len(), traffic.bytes.len(), traffic.band.len()];
    if let Some(&shorter) = columns.iter().find(|&&length| length != count) {
        return wrong(shorter.min(count), "columns differ in length");
    }
    for index in 0..count {
        if traffic.src[index] >= host_count || traffic.dst[index] >= host_count {
            return wrong(index, "no such host");
        }
        if traffic.src[index] == traffic.dst[index] {
            return wrong(index, "it goes nowhere");
        }
        if Band::new(traffic.band[index]).is_none() {
            return wrong(index, "no such band");
        }
        if traffic.announced_packets.is_some_and(|packets| Announced::new(packets).is_none()) {
            return wrong(index, "no packet can announce such a threshold");
        }
        if index > 0 && traffic.start[index] < traffic.start[index - 1] {
            return wrong(index, "it starts before the one in front of it");
        }
    }
    Ok(())
}

fn limits(spec: &Spec) -> Limits {
    let run = &spec.run;
    // The waiting times of a parallel step are computed from its recorded ops, so its first iteration is recorded even
    // if the scenario requests no timeline.
    let least = u32::from(spec.jobs.iter().any(spec::JobSpec::is_parallel));
    Limits { duration: run.duration, timeline_iterations: run.timeline_iterations.max(least) }
}
