//! The phases of a job, which waits for its start, opens its connections and is then executed; and the errors that end
//! a run without a result.

use super::execution::{Done, Executor, TooShort};
use gradtide_net::{Completion, Network, Time};
use thiserror::Error;

/// Errors that end a run without a result.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum IterationError {
    /// No event is left, but a job is not finished.
    #[error("stalled at {at} us: job `{job}` waits for {waiting_ops} ops that nothing can finish")]
    Stalled {
        /// Current time.
        at: Time,
        /// Key of the job in the scenario.
        job: String,
        /// Number of ops that wait for dependencies.
        waiting_ops: usize,
    },
    /// The duration of the run ended before the first measured iteration.
    #[error("job `{job}` completes no measured iteration within the run's duration; make it longer")]
    TooShort {
        /// Key of the job in the scenario.
        job: String,
    },
    /// A job makes no progress while other jobs continue as its load.
    #[error(
        "job `{job}` gets nothing done while job `{beside}` runs {STARVED_AFTER} iterations: what it sends is never served; \
         give it a higher priority, or the run a duration"
    )]
    Starved {
        /// Key of the job in the scenario.
        job: String,
        /// A job that has completed its iterations and continues for others.
        beside: String,
    },
    /// The observer has cancelled the run.
    #[error("interrupted")]
    Interrupted,
}

/// Number of extra iterations of a job, run as load for other jobs, after which another job counts as starved if none
/// of its ops and messages has completed meanwhile. A message that gets any bandwidth completes sooner, unless it takes
/// ten thousand times as long as an iteration of the other job.
const STARVED_AFTER: u32 = 10_000;

/// A job and its phase.
pub struct JobRunner<'a, 'p> {
    duration: Option<Time>,
    phase: Phase,
    /// Whether the job has completed its iterations. It may continue as load for other jobs.
    has_enough: bool,
    /// Number of flows of the job that have ended.
    ended_count: u64,
    last_progress: (u64, u32),
    executor: Box<dyn Executor<'a> + 'p>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before the start of the job.
    Waiting,
    /// Opening connections; the field is the number of connections that are not open yet.
    Opening(usize),
    /// Executing ops and sending.
    UnderWay,
    /// Stopped: no longer needed as load for other jobs.
    Finished,
}

impl<'a, 'p> JobRunner<'a, 'p> {
    pub fn new(executor: Box<dyn Executor<'a> + 'p>, duration: Option<Time>) -> Self {
        Self { duration, phase: Phase::Waiting, has_enough: false, ended_count: 0, last_progress: (0, 0), executor }
    }

    /// Returns the job and its record.
    pub fn into_done(self) -> Done<'a> {
        self.executor.into_done()
    }

    pub fn name(&self) -> &str {
        self.executor.name()
    }

    /// Returns whether the job has been stopped.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Returns whether the job has completed its own iterations.
    #[inline]
    pub fn has_enough(&self) -> bool {
        self.has_enough
    }

    pub fn stop(&mut self) {
        self.phase = Phase::Finished;
    }

    #[inline]
    pub fn extra_count(&self) -> u32 {
        self.executor.extra_count()
    }

    /// Returns whether the job has waited only for the network, without a completed flow, for [`STARVED_AFTER`]
    /// iterations of another job. `extra` is the number of iterations that the other job has run as load so far.
    pub fn is_starved(&mut self, extra: u32) -> bool {
        let waits = !self.has_enough && self.phase != Phase::Waiting && self.wakes_at().is_none();
        if !waits || self.last_progress.0 != self.ended_count {
            self.last_progress = (self.ended_count, extra);
        }
        extra - self.last_progress.1 >= STARVED_AFTER
    }

    #[inline]
    pub fn wakes_at(&self) -> Option<Time> {
        match self.phase {
            Phase::Waiting => Some(self.executor.start()),
            Phase::Opening(_) | Phase::Finished => None,
            Phase::UnderWay => self.executor.wakes_at(),
        }
    }

    /// Advances the phase, and handles all events at `now`.
    pub fn settle(&mut self, now: Time, network: &mut dyn Network) -> Result<(), IterationError> {
        if self.phase == Phase::Waiting && now >= self.executor.start() {
            self.phase = Phase::Opening(self.executor.open(network));
        }
        if self.phase == Phase::Opening(0) {
            self.executor.begin(now).map_err(|TooShort| self.too_short())?;
            self.phase = Phase::UnderWay;
        }
        if self.phase == Phase::UnderWay {
            match self.executor.settle(now, network) {
                Ok(true) => {}
                Ok(false) => self.has_enough = true,
                Err(TooShort) => return Err(self.too_short()),
            }
        }
        Ok(())
    }

    #[cold]
    fn too_short(&self) -> IterationError {
        IterationError::TooShort { job: self.name().to_owned() }
    }

    pub fn on_completion(&mut self, now: Time, completion: Completion, network: &mut dyn Network) {
        self.ended_count += 1;
        match &mut self.phase {
            Phase::Opening(count) => *count -= 1,
            _ => self.executor.on_completion(now, completion, network),
        }
    }

    pub fn waiting_ops(&self) -> usize {
        self.executor.waiting_ops()
    }

    /// Returns the completed share of the run.
    pub fn progress(&self, now: Time) -> f64 {
        let of_duration = self.duration.map(|duration| now.ps() as f64 / duration.ps() as f64);
        self.executor.progress().into_iter().chain(of_duration).fold(0.0, f64::max).min(1.0)
    }
}
