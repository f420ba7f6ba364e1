//! The record of a parameter-server job: iterations of its workers, transfers and ops.

use crate::run::{OperationRecord, Records, Unmeasured};
use gradtide_net::Time;

/// The record of a parameter-server job.
#[derive(Debug)]
pub struct PsRecord {
    /// Complete iterations of every worker, in order. Synchronous workers have equal numbers of iterations.
    pub workers: Vec<Vec<WorkerRecord>>,
    /// Index of the first measured iteration of each worker.
    pub first: Vec<u32>,
    /// Iterations of the job if its workers are asynchronous; see [`share`](super::share).
    pub shared: Option<Vec<WorkerRecord>>,
    /// Pulls and pushes of all iterations, by worker.
    pub transfers: Vec<Records>,
    /// Ops and transfers of the first measured iterations, in order of their ends.
    pub operations: Vec<OperationRecord>,
    /// Number of iterations that are not measured because of other jobs: the maximum over all workers.
    pub unmeasured: Unmeasured,
    /// Number of ops and transfers that ended.
    pub event_count: u64,
}

impl PsRecord {
    /// Returns the worker whose own part of an iteration (see [`WorkerRecord::own`]) is longest on average. The other
    /// workers wait for it. Ties go to the lowest index.
    pub fn slowest(&self) -> usize {
        let own =
            |worker: usize| -> u128 { self.workers[worker].iter().map(|record| u128::from(record.own.ps())).sum() };
        let count = |worker: usize| self.workers[worker].len() as u128;
        let longer = |&a: &usize, &b: &usize| (own(a) * count(b)).cmp(&(own(b) * count(a)));
        (0..self.workers.len()).rev().max_by(longer).unwrap_or(0)
    }

    /// Returns the iterations of the job. They are the iterations of the slowest worker if workers are synchronous,
    /// otherwise `shared`.
    pub fn iterations(&self) -> &[WorkerRecord] {
        self.shared.as_deref().unwrap_or_else(|| &self.workers[self.slowest()])
    }
}

/// One iteration of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerRecord {
    /// Start of the iteration; equal on all synchronous workers.
    pub start: Time,
    /// Time from the start until the worker may begin the next iteration.
    pub time: Time,
    /// Time from the start to the end of the worker's own part, which ends with its last op or the arrival of its last
    /// push, whichever is later.
    pub own: Time,
    /// Time for which the worker waits for slower workers after the end of its own part.
    pub waited: Time,
    /// Time from the start to the end of the worker's last op.
    pub computed: Time,
    /// Total time of the worker's ops.
    pub compute: Time,
    /// Part of `compute` during which the device was idle because the host was working.
    pub host: Time,
    /// Time in which at least one of the worker's transfers was in flight.
    pub comm: Time,
    /// Staleness of the parameters that the worker pulled; zero if workers are synchronous.
    pub staleness: Staleness,
}

/// Staleness of the parameters with which a worker computes an iteration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Staleness {
    /// Lead of the worker over the slowest one at the start of the iteration, in iterations.
    pub iterations: u32,
    /// Number of gradients of other workers that were applied to a parameter between the start of the iteration and
    /// this worker's gradient, summed over all parameters that the worker pushed.
    pub updates: u64,
    /// Largest number of these gradients for a single parameter.
    pub most_updates: u64,
}
