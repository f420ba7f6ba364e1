//! Records of a run: iterations, transfers and ops of each job.

use crate::dag::OpKind;
use gradtide_net::Time;
use serde::Serialize;

/// Numbers of iterations that are not measured because of other jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unmeasured {
    /// Number of iterations begun before the last job started.
    pub before: u32,
    /// Number of iterations begun only as load for other jobs, which had not completed their iterations.
    pub after: u32,
}

/// The record of a job.
#[derive(Debug, Default)]
pub struct JobRecord {
    /// Measured iterations, by worker or rank class; one entry if all workers are identical. All entries have equally
    /// many iterations.
    pub workers: Vec<Vec<IterationRecord>>,
    /// The pass after the last measured iteration of each worker, as far as it ran; its `time` is not set.
    pub last_passes: Vec<IterationRecord>,
    /// Number of iterations before the first measured one: the job's warm-up and `unmeasured.before`.
    pub warmup_count: u32,
    /// Iterations that are not measured because of other jobs.
    pub unmeasured: Unmeasured,
    /// Transfers of all iterations, warm-up iterations first.
    pub transfers: Records,
    /// Ops of the first measured iterations, in order of their ends.
    pub operations: Vec<OperationRecord>,
    /// Number of compute ops and chunks that ended.
    pub event_count: u64,
}

impl JobRecord {
    /// Returns the transfers of measured iterations, one slice per iteration.
    pub fn blocks(&self) -> impl Iterator<Item = &[TransferRecord]> {
        self.transfers.blocks(self.warmup_count, self.iterations().len())
    }

    /// Returns the worker with the longest total compute time, for which the others wait; ties go to the first.
    pub fn slowest(&self) -> usize {
        let compute = |&worker: &usize| self.workers[worker].iter().map(|record| record.compute).sum::<Time>();
        (0..self.workers.len()).rev().max_by_key(compute).unwrap_or(0)
    }

    /// Returns the measured iterations of the slowest worker.
    pub fn iterations(&self) -> &[IterationRecord] {
        &self.workers[self.slowest()]
    }

    /// Returns the largest share of an iteration, over workers and iterations, for which a worker waits for the compute
    /// of others.
    pub fn straggler_share(&self) -> f64 {
        let share = |record: &IterationRecord| record.straggler.ps() as f64 / record.time.ps() as f64;
        self.workers.iter().flatten().map(share).fold(0.0, f64::max)
    }
}

/// One measured iteration of a worker, from the start of a pass to the start of the same pass of the next iteration.
#[derive(Clone, Copy, Debug, Default)]
pub struct IterationRecord {
    /// Start of the pass from which the iteration is measured.
    pub start: Time,
    /// Duration, up to the start of the next iteration.
    pub time: Time,
    /// Total duration of the worker's ops without the slowdown by transfers.
    pub compute: Time,
    /// Part of `compute` during which the device is idle: see [`DagOp::is_host`](crate::dag::DagOp::is_host).
    pub host: Time,
    /// Stall for gradients that another worker had not computed yet. It is also part of `exposed` or `barrier`.
    pub straggler: Time,
    /// Stall for gradients that the next op needs.
    pub exposed: Time,
    /// Stall that is due only to the barrier, for gradients that are not needed yet.
    pub barrier: Time,
    /// Compute time added by overlap with transfers.
    pub slowdown: Time,
}

impl IterationRecord {
    /// Returns the time for which the device computes.
    pub fn computing(&self) -> Time {
        self.compute - self.host
    }
}

/// One transfer of one iteration.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransferRecord {
    /// Time at which all dependencies of the transfer were met, on all ranks.
    pub ready: Time,
    /// Start of the first chunk.
    pub start: Time,
    /// Arrival of the last chunk.
    pub end: Time,
    /// Time at which the last rank's compute reached the first op that needs the transfer.
    pub needed: Time,
    /// Whether a compute op needs the transfer, rather than only other transfers.
    pub is_needed: bool,
    /// Time for which the transfer occupied the network.
    pub busy: Time,
    /// Send priority, or place in the order of pulls or pushes.
    pub priority: u32,
    /// Number of chunks that have arrived.
    pub arrived_count: u32,
    /// Number of messages, if workers change their bands.
    pub messages: u32,
    /// Number of messages that were sent in the high band, if workers change their bands.
    pub high: u32,
}

/// Records of every transfer in every iteration.
#[derive(Debug, Default)]
pub struct Records {
    per_iteration: usize,
    all: Vec<TransferRecord>,
}

impl Records {
    /// Creates empty records; each iteration will have `per_iteration` transfers.
    pub fn new(per_iteration: usize) -> Self {
        Self { per_iteration, all: Vec::new() }
    }

    /// Adds records up to `iteration`.
    pub fn grow(&mut self, iteration: u32) {
        let room = (iteration as usize + 1) * self.per_iteration;
        if room > self.all.len() {
            self.all.resize(room, TransferRecord::default());
        }
    }

    /// Returns the record of a transfer in an iteration.
    #[inline]
    pub fn get(&self, iteration: u32, transfer: u32) -> &TransferRecord {
        &self.all[iteration as usize * self.per_iteration + transfer as usize]
    }

    /// Returns the record of a transfer in an iteration, mutably.
    #[inline]
    pub fn of(&mut self, iteration: u32, transfer: u32) -> &mut TransferRecord {
        &mut self.all[iteration as usize * self.per_iteration + transfer as usize]
    }

    /// Returns the records of an iteration, mutably.
    pub fn of_iteration(&mut self, iteration: u32) -> &mut [TransferRecord] {
        let first = iteration as usize * self.per_iteration;
        &mut self.all[first..first + self.per_iteration]
    }

    /// Returns the records of `count` iterations from `first` on, one slice per iteration.
    pub fn blocks(&self, first: u32, count: usize) -> impl Iterator<Item = &[TransferRecord]> {
        let (all, width) = (&self.all[..], self.per_iteration);
        let first = first as usize;
        (first..first + count).map(move |block| &all[block * width..(block + 1) * width])
    }

    /// Returns the number of iterations from `first` on, at most `count`, before the first iteration with a transfer
    /// that has not ended.
    pub fn ended_count(&self, first: u32, count: usize) -> usize {
        let is_over = |block: &&[TransferRecord]| block.iter().all(|record| record.end > Time::ZERO);
        self.blocks(first, count).take_while(is_over).count()
    }

    /// Returns the ended transfers of all iterations, each with its index within the iteration.
    pub fn ended(&self) -> impl Iterator<Item = (u32, &TransferRecord)> {
        (0..self.per_iteration as u32).cycle().zip(&self.all).filter(|(_, record)| record.end > Time::ZERO)
    }
}

/// Record of one op or chunk, for timelines.
#[derive(Clone, Copy, Debug)]
pub struct OperationRecord {
    /// Index of the measured iteration; -1 for the iteration before the first measured one.
    pub iteration: i64,
    /// Kind of the op, and index of its layer or transfer.
    pub kind: OpKind,
    /// Worker or rank class of a compute op; 0 if all are identical.
    pub worker: u32,
    /// Index of the chunk of a transfer.
    pub chunk: u64,
    /// Start of the op or chunk; for a barrier, the time at which compute reached it.
    pub start: Time,
    /// End of the op or chunk.
    pub end: Time,
}
