//! A job from its start to its end: it waits for its start, opens its connections, and is executed.

use super::executor::Executor;
use super::{Done, IterationError, Limits};
use crate::job::Job;
use crate::traffic::BackgroundFlows;
use gradtide_net::{Completion, Network, Time};

/// The duration of the run ended before the first measured iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort;

/// One job under way.
pub struct JobRunner<'a> {
    name: String,
    start: Time,
    duration: Option<Time>,
    phase: Phase,
    executor: Executor<'a>,
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
    pub fn new(job: &'a mut Job, stream: u32, limits: Limits) -> Self {
        let (name, start) = (job.name.clone(), job.start);
        let executor = Executor::new(job, stream, limits);
        Self { name, start, duration: limits.duration, phase: Phase::Waiting, executor }
    }

    /// What it did.
    pub fn into_done(self) -> Done<'a> {
        let is_cut_off = !self.is_finished();
        self.executor.into_done(is_cut_off)
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
            Phase::UnderWay => self.executor.wakes_at(),
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
            self.phase = Phase::Opening(self.executor.open(network));
        }
        if self.phase == Phase::Opening(0) {
            self.executor.begin(now).map_err(|TooShort| self.too_short())?;
            self.phase = Phase::UnderWay;
        }
        if self.phase == Phase::UnderWay {
            match self.executor.settle(now, network, background) {
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
            _ => self.executor.on_completion(now, completion, network),
        }
    }

    /// Ops and transfers that wait.
    pub fn waiting_ops(&self) -> usize {
        self.executor.waiting_ops()
    }

    /// Share of the run that is over.
    pub fn progress(&self, now: Time) -> f64 {
        let of_duration = self.duration.map(|duration| now.ps() as f64 / duration.ps() as f64);
        self.executor.progress().into_iter().chain(of_duration).fold(0.0, f64::max).min(1.0)
    }
}
