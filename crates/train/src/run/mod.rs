//! The event loop that joins compute with a network.
//!
//! A job is executed by an [`Executor`]: [`CollectiveExecutor`] if its ranks communicate by collectives, or
//! [`PsExecutor`](crate::ps::PsExecutor) if it has parameter servers. The rest of this page describes
//! [`CollectiveExecutor`].
//!
//! Every worker has one compute stream, which executes its ops in program order. If all workers of a job are identical,
//! a single worker is simulated. The workers of an op graph may have different programs.
//!
//! Every communicator of a job has one send queue, with a limit on the chunks in flight (default: one). Whenever a
//! chunk has completed on all workers, the queue picks the most urgent ready bucket. A bucket is ready when all workers
//! have computed it, and it arrives on all workers simultaneously. This is the global syncer of Gao (2020), section
//! 5.2.
//!
//! A schedule may give a bucket a release time as an offset of compute time. The bucket is then sent when it is ready
//! and every worker has passed this offset. Compute time does not advance during a stall, so a stall delays all later
//! releases.
//!
//! At each event time the loop first handles all ends of ops and flows, and every op of zero length. Only then do the
//! queues pick, so that a choice at time t considers every bucket that became ready at or before t.
//!
//! An iteration is measured from the start of one pass (forward or backward) to the start of the same pass of the next
//! iteration. A job begins with the measured pass. If iterations are measured from the forward pass, the first
//! iteration is run but not measured, because it starts with all parameters present and can be shorter than the network
//! allows. One more forward pass runs after the last measured iteration, because this pass needs the transfers of that
//! iteration. If iterations are measured from the backward pass, each starts with an idle network and all parameters
//! present, and all of them are measured.
//!
//! With several jobs, an iteration is measured only if it begins after the last job has started, so that all jobs run
//! during every measured iteration. A job that has completed its iterations continues as load until all other jobs have
//! completed theirs. The iterations before and after the measured ones are run and counted.

mod execution;
mod executor;
mod queue;
mod record;
mod runner;
mod streams;
mod waits;

use crate::traffic::Background;
pub use execution::{Done, Executor, Limits, RunContext, TooShort};
pub use executor::CollectiveExecutor;
use gradtide_net::{Completion, Network, Time};
pub use record::{IterationRecord, JobRecord, OperationRecord, Records, TransferRecord, Unmeasured};
pub use runner::IterationError;
use runner::JobRunner;

/// Number of loop rounds between two calls of the observer, for engines that do not pause by themselves. This is about
/// 5 ms of wall time.
const OBSERVE_EVERY: u64 = 1 << 16;

/// Runs all jobs and background flows to their ends. The streams of jobs are numbered from 0, job by job;
/// [`stream`](crate::traffic::stream) returns the numbers of background flows. `observe` is called periodically with
/// the completed share of the run, and stops the run by returning `false`.
///
/// # Errors
/// See [`IterationError`].
pub fn run<'a, 'p>(
    jobs: Vec<Box<dyn Executor<'a> + 'p>>,
    background: &Background<'_>,
    network: &mut dyn Network,
    limits: Limits,
    observe: &mut dyn FnMut(f64) -> bool,
) -> Result<Vec<Done<'a>>, IterationError> {
    // Index of the job that owns each stream.
    let owners: Vec<usize> =
        (jobs.iter().enumerate()).flat_map(|(index, job)| std::iter::repeat_n(index, job.stream_count())).collect();
    let mut runners: Vec<JobRunner<'a, 'p>> =
        jobs.into_iter().map(|job| JobRunner::new(job, limits.duration)).collect();
    let mut done: Vec<Completion> = Vec::new();
    for round in 1_u64.. {
        let now = network.now();
        for runner in &mut runners {
            runner.settle(now, network)?;
        }
        background.settle(now, network);
        let is_over = limits.duration.is_some_and(|duration| now >= duration);
        if runners.iter().all(JobRunner::has_enough) {
            runners.iter_mut().for_each(JobRunner::stop);
        }
        let is_finished = runners.iter().all(JobRunner::is_finished) && background.is_finished();
        if is_over || is_finished {
            break;
        }
        check_starved(&mut runners)?;
        let until = (runners.iter().filter_map(JobRunner::wakes_at))
            .chain(background.wakes_at())
            .chain(limits.duration)
            .min()
            .unwrap_or(Time::MAX);
        network.advance(until, &mut done);
        let pauses = done.is_empty() && network.now() < until;
        if done.is_empty() && !pauses && until == Time::MAX {
            let (job, waiting_ops) = (runners.iter())
                .find(|runner| !runner.is_finished())
                .map_or_else(Default::default, |runner| (runner.name().to_owned(), runner.waiting_ops()));
            return Err(IterationError::Stalled { at: now, job, waiting_ops });
        }
        for completion in done.drain(..) {
            let now = network.now();
            if !background.on_completion(now, &completion) {
                runners[owners[completion.stream as usize]].on_completion(now, completion, network);
            }
        }
        if (pauses || round.is_multiple_of(OBSERVE_EVERY))
            && !observe(progress(&runners, background, network.now(), limits.duration))
        {
            return Err(IterationError::Interrupted);
        }
    }
    background.on_end(network);
    let names: Vec<String> = runners.iter().map(|runner| runner.name().to_owned()).collect();
    let done: Vec<Done<'a>> = runners.into_iter().map(JobRunner::into_done).collect();
    match done.iter().position(|done| done.iteration_count() == 0) {
        Some(job) => Err(IterationError::TooShort { job: names[job].clone() }),
        None => Ok(done),
    }
}

/// Returns an error if a job only waits for the network and gets no bandwidth while the other jobs continue as its
/// load.
fn check_starved(runners: &mut [JobRunner<'_, '_>]) -> Result<(), IterationError> {
    let extra = runners.iter().map(JobRunner::extra_count).max().unwrap_or(0);
    if extra == 0 {
        return Ok(());
    }
    let Some(starved) = runners.iter_mut().position(|runner| runner.is_starved(extra)) else { return Ok(()) };
    let named = |index: usize| runners[index].name().to_owned();
    let beside = runners.iter().position(|runner| runner.extra_count() == extra).unwrap_or(starved);
    Err(IterationError::Starved { job: named(starved), beside: named(beside) })
}

/// Returns the completed share of the run, which is the minimum over its jobs. Without a job, it is the share of the
/// background flows or of the duration, whichever is larger.
fn progress(runners: &[JobRunner<'_, '_>], background: &Background<'_>, now: Time, duration: Option<Time>) -> f64 {
    if !runners.is_empty() {
        return runners.iter().map(|runner| runner.progress(now)).fold(1.0, f64::min);
    }
    let of_duration = duration.map_or(0.0, |duration| now.ps() as f64 / duration.ps() as f64);
    background.progress().max(of_duration).min(1.0)
}
