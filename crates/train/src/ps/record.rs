//! The record of a parameter-server job: iterations of its workers, transfers and ops.

use crate::run::{OperationRecord, Records, Unmeasured};
use gradtide_net::Time;

/// The record of a parameter-server job.
#[derive(Debug)]
pub struct PsRecord {
    /// Complete iterations of every worker, in order; equal counts if workers are synchronous.
    pub workers: Vec<Vec<WorkerRecord>>,
    /// By worker: number of its first measured iteration.
    pub first: Vec<u32>,
    /// Iterations of the job if its workers are asynchronous: see [`share`](super::share).
    pub shared: Option<Vec<WorkerRecord>>,
    /// By worker: pulls and pushes of all its iterations.
    pub transfers: Vec<Records>,
    /// Ops and transfers of the first measured iterations, in order of their ends.
    pub operations: Vec<OperationRecord>,
    /// Iterations that are not measured because of other jobs: the maximum over workers.
    pub unmeasured: Unmeasured,
    /// Number of ops and transfers that ended.
    pub event_count: u64,
}

impl PsRecord {
    /// The worker with the longest mean own part, on which the others wait; the lowest index if several tie.
    pub fn slowest(&self) -> usize {
        let own =
            |worker: usize| -> u128 { self.workers[worker].iter().map(|record| u128::from(record.own.ps())).sum() };
        let count = |worker: usize| self.workers[worker].len() as u128;
        let longer = |&a: &usize, &b: &usize| (own(a) * count(b)).cmp(&(own(b) * count(a)));
        (0..self.workers.len()).rev().max_by(longer).unwrap_or(0)
    }

    /// Iterations of the job: those of its slowest worker, or, if workers are asynchronous, the shares of all of them.
    pub fn iterations(&self) -> &[WorkerRecord] {
        self.shared.as_deref().unwrap_or_else(|| &self.workers[self.slowest()])
    }
}

/// One iteration of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerRecord {
    /// Start; equal on all synchronous workers.
    pub start: Time,
    /// Time from the start until the worker may begin the next iteration.
    pub time: Time,
    /// Time to the end of the worker's own part: the end of its last op or the arrival of its last push, whichever is
    /// later.
    pub own: Time,
    /// Time from there to the end of the latest own part that the worker has to wait for.
    pub waited: Time,
    /// Time to the end of its last op.
    pub computed: Time,
    /// Total time of its ops.
    pub compute: Time,
    /// Part of `compute` in which the device was idle because the host ran.
    pub host: Time,
    /// Time in which at least one of its transfers was in flight.
    pub comm: Time,
    /// Staleness of the parameters it pulled; zero if workers are synchronous.
    pub staleness: Staleness,
}

/// Staleness of the parameters that a worker computes an iteration with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Staleness {
    /// Lead over the slowest worker when it began, in iterations.
    pub iterations: u32,
    /// Gradients of other workers applied to a parameter between the start of the iteration and this worker's gradient,
    /// summed over all parameters that it pushed.
    pub updates: u64,
    /// The maximum over these parameters.
    pub most_updates: u64,
}
