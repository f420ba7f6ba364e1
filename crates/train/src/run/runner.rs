//! A job from its start to its end: it waits for its start, opens its connections, and is executed.

use super::executor::Executor;
use super::served::ServedExecutor;
use super::{Did, IterationError, Limits};
use crate::job::AnyJob;
use crate::traffic::BackgroundFlows;
use gradtide_net::{Completion, Network, Time};

/// The duration of the run ended before the first measured iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort;

/// What happens in a job once it has started.
pub trait Execution<'a> {
    /// Opens the connections that the job keeps for its life; how many.
    fn open(&mut self, network: &mut dyn Network) -> usize;

    /// The first iteration begins.
    fn begin(&mut self, now: Time, network: &mut dyn Network) -> Result<(), TooShort>;

    /// Does everything that happens at `now` without the network, then sends what may be sent; whether iterations are
    /// left. An oracle reads `background`.
    fn settle(
        &mut self,
        now: Time,
        network: &mut dyn Network,
        background: &[BackgroundFlows<'_>],
    ) -> Result<bool, TooShort>;

    /// Handles the end of a flow.
    fn on_completion(&mut self, now: Time, completion: Completion, network: &mut dyn Network);

    /// When it next acts without an event of the network.
    fn wakes_at(&self) -> Option<Time>;

    /// Ops and transfers that wait.
    fn waiting_ops(&self) -> usize;

    /// Share of the iterations that is over, if the job has a limit of them.
    fn progress(&self) -> Option<f64>;

    /// What it did.
    fn into_did(self: Box<Self>) -> Did<'a>;
}

/// One job under way.
pub struct JobRunner<'a> {
    name: String,
    start: Time,
    duration: Option<Time>,
    phase: Phase,
    execution: Box<dyn Execution<'a> + 'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before the start of the job.
    Waiting,
    /// So many connections are not open yet.
    Opening(usize),
    /// Ops are executed.
    UnderWay,
    /// All iterations are over.
    Finished,
}

impl<'a> JobRunner<'a> {
    /// A job that has not begun, whose flows carry `stream` and those that follow, one for each communicator.
    pub fn new(job: &'a mut AnyJob, stream: u32, limits: Limits) -> Self {
        let (name, start) = match job {
            AnyJob::Buckets(job) => (job.name.clone(), job.start),
            AnyJob::Servers(job) => (job.name.clone(), job.start),
        };
        let execution: Box<dyn Execution<'a> + 'a> = match job {
            AnyJob::Buckets(job) => Box::new(Executor::new(job, stream, limits)),
            AnyJob::Servers(job) => Box::new(ServedExecutor::new(job, stream, limits)),
        };
        Self { name, start, duration: limits.duration, phase: Phase::Waiting, execution }
    }

    /// What it did.
    pub fn into_did(self) -> Did<'a> {
        self.execution.into_did()
    }

    /// Key of the job in the scenario.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether all iterations are over.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// When the job next acts without an event of the network.
    #[inline]
    pub fn wakes_at(&self) -> Option<Time> {
        match self.phase {
            Phase::Waiting => Some(self.start),
            Phase::Opening(_) | Phase::Finished => None,
            Phase::UnderWay => self.execution.wakes_at(),
        }
    }

    /// Goes from one phase to the next, and does what happens at `now`.
    pub fn settle(
        &mut self,
        now: Time,
        network: &mut dyn Network,
        background: &[BackgroundFlows<'_>],
    ) -> Result<(), IterationError> {
        if self.phase == Phase::Waiting && now >= self.start {
            self.phase = Phase::Opening(self.execution.open(network));
        }
        if self.phase == Phase::Opening(0) {
            self.execution.begin(now, network).map_err(|TooShort| self.too_short())?;
            self.phase = Phase::UnderWay;
        }
        if self.phase == Phase::UnderWay {
            match self.execution.settle(now, network, background) {
                Ok(true) => {}
                Ok(false) => self.phase = Phase::Finished,
                Err(TooShort) => return Err(self.too_short()),
            }
        }
        Ok(())
    }

    #[cold]
    fn too_short(&self) -> IterationError {
        IterationError::TooShort { job: self.name.clone() }
    }

    /// Handles the end of a flow of the job.
    pub fn on_completion(&mut self, now: Time, completion: Completion, network: &mut dyn Network) {
        match &mut self.phase {
            Phase::Opening(count) => *count -= 1,
            _ => self.execution.on_completion(now, completion, network),
        }
    }

    /// Ops and transfers that wait.
    pub fn waiting_ops(&self) -> usize {
        self.execution.waiting_ops()
    }

    /// Share of the run that is over.
    pub fn progress(&self, now: Time) -> f64 {
        let of_duration = self.duration.map(|duration| now.ps() as f64 / duration.ps() as f64);
        self.execution.progress().into_iter().chain(of_duration).fold(0.0, f64::max).min(1.0)
    }
}
