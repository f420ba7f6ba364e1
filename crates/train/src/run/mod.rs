//! The event loop that joins compute with a network.
//!
//! Every worker has one compute stream, which executes its ops in program order, or with parameter servers as they
//! become ready. Where all workers of a job are alike they do the same at the same time, and one stands for all; workers
//! of an op graph may have programs of their own.
//!
//! Every job has one transmission queue. It has at most one chunk on the network at a time, or as many as its credit
//! says. Whenever a chunk has ended on all workers, the queue picks the most urgent ready bucket. A bucket is ready
//! when all workers have it, and it arrives on all workers at once: the global syncer of the thesis, section 5.2.
//!
//! A schedule may hold a ready bucket back until compute has come to its gate, an offset of compute time that every
//! worker must have passed. While compute stalls, its offset does not advance, so a stall delays all later gates.
//!
//! At one instant the loop first handles everything that ends and every op of zero length. Then the queue picks, so
//! a choice at time t sees every bucket that became ready at or before t.
//!
//! A job is measured from the start of one pass to the start of the same pass of the next iteration, and begins with
//! it. From forward to forward, the first iteration starts with all parameters present and can be shorter than the
//! network allows: it is run and not measured, and after the last measured iteration one more forward pass runs,
//! because it needs the transfers. From backward to backward, every iteration starts with an idle network and all
//! parameters present: all are measured.
//!
//! Of several jobs, iterations are measured in which all jobs run, so that a mean is over like conditions: those that
//! begin when the last job has started, and a job that has its iterations goes on until all others have theirs. What it
//! does before and after is run and counted, and not measured.

mod channels;
mod executor;
mod queue;
mod record;
mod runner;
mod served;
mod streams;
mod waits;

use crate::job::Job;
use crate::traffic::{self, BackgroundFlows};
use gradtide_net::{Completion, Network, Time};
pub use record::{IterationRecord, JobRecord, OperationRecord, Records, TransferRecord, Unmeasured};
use runner::JobRunner;
use thiserror::Error;

/// When to stop, and what to keep.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// When the run ends, whatever is under way then.
    pub duration: Option<Time>,
    /// Measured iterations whose ops are kept one by one.
    pub timeline_iterations: u32,
}

/// What a job is told of the jobs beside it.
#[derive(Clone, Copy, Debug)]
pub struct Together {
    /// The start of the last job: an iteration that begins earlier is not measured.
    since: Time,
    /// Whether there are others, for which a job goes on when it has its iterations.
    is_shared: bool,
}

impl Together {
    fn of(jobs: &[Job]) -> Self {
        let since = jobs.iter().map(|job| job.start).max().unwrap_or(Time::ZERO);
        Self { since, is_shared: jobs.len() > 1 }
    }
}

/// The run cannot go on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum IterationError {
    /// Nothing can happen any more, yet a job is not done.
    #[error("stalled at {at} us: job `{job}` waits for {waiting_ops} ops that nothing can finish")]
    Stalled {
        /// When.
        at: Time,
        /// Key of the job in the scenario.
        job: String,
        /// Number of ops that wait.
        waiting_ops: usize,
    },
    /// The duration of the run ended before the first measured iteration.
    #[error("job `{job}` completes no measured iteration within the run's duration; make it longer")]
    TooShort {
        /// Key of the job in the scenario.
        job: String,
    },
    /// Other jobs go on for a job that gets nothing done beside them.
    #[error(
        "job `{job}` gets nothing done while job `{beside}` runs {STARVED_AFTER} iterations: what it sends is never served; \
         give it a higher priority, or the run a duration"
    )]
    Starved {
        /// Key of the job in the scenario.
        job: String,
        /// One of those that have their iterations and go on.
        beside: String,
    },
    /// The observer asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Extra iterations of a job that has finished its own, after which another job counts as starved if none of its ops and
/// messages has completed meanwhile. A message that is served at all completes sooner, unless it takes ten thousand times
/// as long as an iteration of the job that goes on.
const STARVED_AFTER: u32 = 10_000;

/// Rounds of the loop between two calls of the observer, where the engine does not pause of itself: about 5 ms.
const OBSERVE_EVERY: u64 = 1 << 16;

/// Runs all jobs and background flows to their ends. Each communicator of a job has a stream: those of the first job
/// come first, from 0 on. [`traffic::stream`] has those of background flows. `observe` is called now and then with the share of the run that is done, and stops the run by
/// returning `false`.
///
/// # Errors
/// See [`IterationError`].
pub fn run<'a>(
    jobs: &'a mut [Job],
    background: &mut [BackgroundFlows<'_>],
    network: &mut dyn Network,
    limits: Limits,
    observe: &mut dyn FnMut(f64) -> bool,
) -> Result<Vec<Done<'a>>, IterationError> {
    // Of each stream, the job.
    let mut owners: Vec<usize> = Vec::new();
    let together = Together::of(jobs);
    let runner = |(index, job): (usize, &'a mut Job)| {
        let stream = owners.len() as u32;
        owners.extend(std::iter::repeat_n(index, job.stream_count()));
        JobRunner::new(job, stream, limits, together)
    };
    let mut runners: Vec<JobRunner<'a>> = jobs.iter_mut().enumerate().map(runner).collect();
    let mut done: Vec<Completion> = Vec::new();
    for round in 1_u64.. {
        let now = network.now();
        for runner in &mut runners {
            runner.settle(now, network, background)?;
        }
        for flows in background.iter_mut() {
            flows.settle(now, network);
        }
        let is_over = limits.duration.is_some_and(|duration| now >= duration);
        if runners.iter().all(JobRunner::has_enough) {
            runners.iter_mut().for_each(JobRunner::stop);
        }
        let is_finished =
            runners.iter().all(JobRunner::is_finished) && background.iter().all(BackgroundFlows::is_finished);
        if is_over || is_finished {
            break;
        }
        check_served(&mut runners)?;
        let until = (runners.iter().filter_map(JobRunner::wakes_at))
            .chain(background.iter().filter_map(BackgroundFlows::wakes_at))
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
            match traffic::index(completion.stream) {
                Some(index) => background[index].on_completion(now, completion),
                None => runners[owners[completion.stream as usize]].on_completion(now, completion, network),
            }
        }
        if (pauses || round.is_multiple_of(OBSERVE_EVERY))
            && !observe(progress(&runners, background, network.now(), limits.duration))
        {
            return Err(IterationError::Interrupted);
        }
    }
    if background.iter().any(|flows| !flows.is_finished()) {
        let remaining = network.remaining().into_iter().collect();
        background.iter_mut().for_each(|flows| flows.on_end(&remaining));
    }
    let names: Vec<String> = runners.iter().map(|runner| runner.name().to_owned()).collect();
    let done: Vec<Done<'a>> = runners.into_iter().map(JobRunner::into_done).collect();
    match done.iter().position(|done| done.record.iteration_count() == 0) {
        Some(job) => Err(IterationError::TooShort { job: names[job].clone() }),
        None => Ok(done),
    }
}

/// Refuses to go on for ever for a job that waits for the network alone, and gets nothing from it.
fn check_served(runners: &mut [JobRunner<'_>]) -> Result<(), IterationError> {
    let extra = runners.iter().map(JobRunner::extra_count).max().unwrap_or(0);
    if extra == 0 {
        return Ok(());
    }
    let Some(starved) = runners.iter_mut().position(|runner| runner.is_starved(extra)) else { return Ok(()) };
    let named = |index: usize| runners[index].name().to_owned();
    let beside = runners.iter().position(|runner| runner.extra_count() == extra).unwrap_or(starved);
    Err(IterationError::Starved { job: named(starved), beside: named(beside) })
}

/// What share of the run is done: of its jobs, the least; without a job, of the flows or of the duration.
fn progress(runners: &[JobRunner<'_>], background: &[BackgroundFlows<'_>], now: Time, duration: Option<Time>) -> f64 {
    if !runners.is_empty() {
        return runners.iter().map(|runner| runner.progress(now)).fold(1.0, f64::min);
    }
    let of_flows = background.iter().map(BackgroundFlows::progress).fold(1.0, f64::min);
    let of_duration = duration.map_or(0.0, |duration| now.ps() as f64 / duration.ps() as f64);
    of_flows.max(of_duration).min(1.0)
}

/// A job, and what it did.
pub struct Done<'a> {
    /// The job.
    pub job: &'a Job,
    /// What it did.
    pub record: JobRecord,
}
