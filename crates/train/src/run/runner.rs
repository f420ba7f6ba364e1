//! A job from its start to its end: it waits for its start, opens its connections, and is executed.

use super::executor::Executor;
use super::{Done, IterationError, Limits, STARVED_AFTER, Together};
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
    /// Whether it has what is asked of it. It may go on for others.
    has_enough: bool,
    /// Its completed flows, and how many extra iterations other jobs had run when the last of them completed.
    ended_count: u64,
    heard_at: (u64, u32),
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
    /// It does nothing more.
    Finished,
}

impl<'a> JobRunner<'a> {
    /// A job that has not begun, whose flows carry `stream` and those that follow, one for each communicator.
    pub fn new(job: &'a mut Job, stream: u32, limits: Limits, together: Together) -> Self {
        let (name, start) = (job.name.clone(), job.start);
        let executor = Executor::new(job, stream, limits, together);
        let (duration, phase) = (limits.duration, Phase::Waiting);
        Self { name, start, duration, phase, has_enough: false, ended_count: 0, heard_at: (0, 0), executor }
    }

    /// What it did.
    pub fn into_done(self) -> Done<'a> {
        let is_cut_off = !self.has_enough;
        self.executor.into_done(is_cut_off)
    }

    /// Key of the job in the scenario.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it does nothing more.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Whether it has all the iterations that are asked of it.
    #[inline]
    pub fn has_enough(&self) -> bool {
        self.has_enough
    }

    /// Nobody needs it any more.
    pub fn stop(&mut self) {
        self.phase = Phase::Finished;
    }

    /// Iterations that it has gone on for others.
    #[inline]
    pub fn extra_count(&self) -> u32 {
        self.executor.extra_count()
    }

    /// Whether it has only waited for the network, and received nothing, during the last [`STARVED_AFTER`] of the `extra`
    /// iterations that another job has run for it.
    pub fn is_starved(&mut self, extra: u32) -> bool {
        let waits = !self.has_enough && self.phase != Phase::Waiting && self.wakes_at().is_none();
        if !waits || self.heard_at.0 != self.ended_count {
            self.heard_at = (self.ended_count, extra);
        }
        extra - self.heard_at.1 >= STARVED_AFTER
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
                Ok(false) => self.has_enough = true,
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
        self.ended_count += 1;
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
