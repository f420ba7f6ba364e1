//! The training step: what must be sent, when, and in what order.
//!
//! [`run`] is the whole floor in one function: scenario -> DAG and schedule -> network engine -> results.

pub mod bucket;
pub mod collective;
pub mod dag;
pub mod iteration;
pub mod job;
pub mod model;
pub mod result;
pub mod schedule;
pub mod spec;

use gradtide_net::{Link, Network, Pipe, Rate, Seed, Star, Time};
use iteration::Limits;
use job::{Job, JobError};
use result::RunResult;
use spec::{ClusterSpec, EngineSpec, RunSpec, Spec, TopologySpec};
use thiserror::Error;

/// Runs one scenario. `observe` is told now and then what share of the run is done, and stops it by answering `false`.
///
/// # Errors
/// [`RunError::Spec`] before anything ran, [`RunError::Iteration`] if the run could not go on.
pub fn run(spec: &Spec, observe: &mut dyn FnMut(f64) -> bool) -> Result<RunResult, RunError> {
    let mut jobs = plan(spec)?;
    let mut network = engine(&spec.run, star(&spec.cluster)?, &jobs)?;
    let traces = iteration::run(&mut jobs, network.as_mut(), limits(&spec.run), observe)?;
    Ok(RunResult::new(spec, &jobs, traces, network.now()))
}

/// Why a run gave no result.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// The scenario means nothing.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The run could not go on.
    #[error(transparent)]
    Iteration(#[from] iteration::IterationError),
}

/// A scenario that means nothing. The face refuses these first, with a file and a line; the core holds the line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SpecError {
    /// No jobs.
    #[error("the scenario has no jobs")]
    NoJobs,
    /// A job that means nothing.
    #[error("job {name}: {error}")]
    Job {
        /// Name of the job.
        name: String,
        /// What is wrong.
        error: JobError,
    },
    /// Nothing would ever arrive.
    #[error("the links carry less than one bit per second")]
    ZeroRate,
    /// A host that does not exist.
    #[error("job {name} runs on host {host}, but the cluster has {host_count} hosts")]
    NoSuchHost {
        /// Name of the job.
        name: String,
        /// Index of the host.
        host: u32,
        /// Hosts of the cluster.
        host_count: u32,
    },
    /// Two workers on one host, which the pipe engine cannot tell apart.
    #[error("host {host} has two workers, the second one of job {name}: the pipe engine gives every host one")]
    SharedHost {
        /// Name of the second job.
        name: String,
        /// Index of the host.
        host: u32,
    },
    /// Nothing ends the run.
    #[error("job {name} has no number of iterations and the run has no duration")]
    Endless {
        /// Name of the job.
        name: String,
    },
    /// Simulated time would pass 2^63 picoseconds.
    #[error("job {name} would run past 106 days of simulated time")]
    TooLong {
        /// Name of the job.
        name: String,
    },
    /// The results would not fit in memory.
    #[error("job {name} would record {records} transfers, more than {limit}; run fewer iterations or larger buckets")]
    TooManyRecords {
        /// Name of the job.
        name: String,
        /// Iterations times buckets.
        records: u64,
        /// Most that a run keeps.
        limit: u64,
    },
}

/// Most transfers a run keeps: 48 bytes each while it runs and about 170 in its table, 4.4 GB in all.
const RECORD_LIMIT: u64 = 20_000_000;

fn plan(spec: &Spec) -> Result<Vec<Job>, SpecError> {
    if spec.jobs.is_empty() {
        return Err(SpecError::NoJobs);
    }
    let TopologySpec::Star { hosts: host_count } = spec.cluster.topology;
    let mut taken = std::collections::BTreeSet::new();
    spec.jobs
        .iter()
        .map(|job| {
            let name = || job.name.clone();
            for &host in &job.hosts {
                if host >= host_count {
                    return Err(SpecError::NoSuchHost { name: name(), host, host_count });
                }
                if !taken.insert(host) {
                    return Err(SpecError::SharedHost { name: name(), host });
                }
            }
            if job.iterations.is_none() && spec.run.duration_ps.is_none() {
                return Err(SpecError::Endless { name: name() });
            }
            Job::plan(job, Seed(spec.run.seed)).map_err(|error| SpecError::Job { name: name(), error })
        })
        .collect()
}

fn star(cluster: &ClusterSpec) -> Result<Star, SpecError> {
    let TopologySpec::Star { hosts: host_count } = cluster.topology;
    let payload_bps = u128::from(cluster.link.rate_bps) * u128::from(cluster.link.efficiency_ppm) / 1_000_000;
    let rate = u64::try_from(payload_bps).ok().and_then(Rate::from_bps).ok_or(SpecError::ZeroRate)?;
    let delay = Time::from_ps(cluster.link.delay_ps.saturating_add(cluster.host_latency_ps));
    Ok(Star { host_count, link: Link { rate, delay } })
}

fn limits(run: &RunSpec) -> Limits {
    Limits { duration: run.duration_ps.map(Time::from_ps), timeline_iterations: run.timeline_iterations }
}

/// The one place that names the engines.
fn engine(run: &RunSpec, star: Star, jobs: &[Job]) -> Result<Box<dyn Network>, SpecError> {
    match run.engine {
        EngineSpec::Pipe => {
            for (stream, job) in jobs.iter().enumerate() {
                check_length(run, &star, job, stream as u32)?;
            }
            Ok(Box::new(Pipe::new(star)))
        }
    }
}

/// No time in the run passes half of [`Time::MAX`], so that differences have a sign, and what it records fits in memory.
fn check_length(run: &RunSpec, star: &Star, job: &Job, stream: u32) -> Result<(), SpecError> {
    let too_long = || SpecError::TooLong { name: job.name.clone() };
    let mut sending: u128 = 0;
    for bucket in 0..job.buckets.len() as u32 {
        let chunk_count = job.chunk_count(bucket);
        let longest = Pipe::occupancy(star, &job.flow(bucket, 0, stream)).ok_or_else(too_long)?;
        sending += u128::from(longest.ps()) * u128::from(chunk_count);
    }
    let compute: u128 = job.dag.ops.iter().map(|op| u128::from(op.cost.ps())).sum();
    let iteration = compute * u128::from(job.overlap_slowdown_ppm).div_ceil(1_000_000) + sending;
    let start = u128::from(job.start.ps());
    let duration = run.duration_ps.map(u128::from);
    // Every iteration takes at least the compute time; the warm-up and the last pass come on top.
    let iterations = job
        .iteration_limit
        .map_or(u128::MAX, u128::from)
        .min(duration.map_or(u128::MAX, |duration| duration.div_ceil(compute.max(1)) + 1));
    let by_iterations = iterations.saturating_add(2).saturating_mul(iteration).saturating_add(start);
    let by_duration = duration.map_or(u128::MAX, |duration| start.max(duration) + 3 * iteration);
    if by_iterations.min(by_duration) > u128::from(Time::MAX.ps() / 2) {
        return Err(too_long());
    }
    let records = iterations.saturating_mul(job.buckets.len().max(1) as u128);
    if records > u128::from(RECORD_LIMIT) {
        let records = u64::try_from(records).unwrap_or(u64::MAX);
        return Err(SpecError::TooManyRecords { name: job.name.clone(), records, limit: RECORD_LIMIT });
    }
    Ok(())
}
