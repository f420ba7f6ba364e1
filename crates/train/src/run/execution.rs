//! The interface between the event loop and a job in execution.

use super::record::JobRecord;
use crate::job::CollectiveJob;
use crate::ps::{PsJob, PsRecord};
use gradtide_net::{Completion, Network, Time};

/// Time at which the run stops, and number of recorded iterations.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Simulated time at which the run ends, even with ops and flows in progress.
    pub duration: Option<Time>,
    /// Number of measured iterations whose ops are recorded individually.
    pub timeline_iterations: u32,
}

/// Properties of the run that an executor depends on.
#[derive(Clone, Copy, Debug)]
pub struct RunContext {
    /// Time limit and recorded iterations.
    pub limits: Limits,
    /// Start of the last job: iterations that begin earlier are not measured.
    pub last_start: Time,
    /// Whether the run has other jobs, so that this job continues as their load after its own iterations.
    pub is_shared: bool,
}

impl RunContext {
    /// Creates the context of the only job of a run.
    pub fn alone(limits: Limits) -> Self {
        Self { limits, last_start: Time::ZERO, is_shared: false }
    }

    /// Returns whether the duration of the run has passed.
    pub fn is_over(&self, now: Time) -> bool {
        self.limits.duration.is_some_and(|duration| now >= duration)
    }
}

/// Error: the duration of the run ended before the first measured iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort;

/// Executes one job. The loop calls [`open`](Self::open) at the start time of the job, and [`begin`](Self::begin) when
/// all connections are open. From then on it calls [`on_completion`](Self::on_completion) for each flow of the job that
/// ends, and [`settle`](Self::settle) at every event time.
pub trait Executor<'a> {
    /// Returns the key of the job in the scenario.
    fn name(&self) -> &str;

    /// Returns the start time of the job.
    fn start(&self) -> Time;

    /// Returns the number of streams of the job's flows.
    fn stream_count(&self) -> usize;

    /// Opens the persistent connections of the job; returns the number of connections.
    fn open(&mut self, network: &mut dyn Network) -> usize;

    /// Begins the first iteration.
    ///
    /// # Errors
    /// [`TooShort`] if the duration of the run has already passed.
    fn begin(&mut self, now: Time) -> Result<(), TooShort>;

    /// Handles the end of a flow of the job.
    fn on_completion(&mut self, now: Time, completion: Completion, network: &mut dyn Network);

    /// Handles all events at `now` outside the network, then starts flows. Returns whether the job has iterations left
    /// to complete.
    ///
    /// # Errors
    /// [`TooShort`] if the duration of the run ended before the first measured iteration.
    fn settle(&mut self, now: Time, network: &mut dyn Network) -> Result<bool, TooShort>;

    /// Returns the time of the job's next event outside the network.
    fn wakes_at(&self) -> Option<Time>;

    /// Returns the number of iterations that were run only as load for other jobs, after the job's own.
    fn extra_count(&self) -> u32;

    /// Returns the number of ops and transfers that wait for dependencies.
    fn waiting_ops(&self) -> usize;

    /// Returns the completed share of the iterations, if their number is limited.
    fn progress(&self) -> Option<f64>;

    /// Returns the job and its record.
    fn into_done(self: Box<Self>) -> Done<'a>;
}

/// A job and its record.
pub enum Done<'a> {
    /// A job whose ranks communicate by collectives.
    Collective(&'a CollectiveJob, JobRecord),
    /// A parameter-server job.
    Ps(&'a PsJob, PsRecord),
}

impl Done<'_> {
    /// Returns the number of complete measured iterations.
    pub fn iteration_count(&self) -> usize {
        match self {
            Self::Collective(_, record) => record.iterations().len(),
            Self::Ps(_, record) => record.iterations().len(),
        }
    }

    /// Returns the number of ops and chunks that ended.
    pub fn event_count(&self) -> u64 {
        match self {
            Self::Collective(_, record) => record.event_count,
            Self::Ps(_, record) => record.event_count,
        }
    }
}
