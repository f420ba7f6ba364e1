//! What is kept of a job under way.

use crate::dag::OpKind;
use crate::servers::ServedRecord;
use gradtide_net::Time;
use serde::Serialize;

/// Iterations of a job beside which not all jobs ran, or nobody measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unmeasured {
    /// Begun before the last job started.
    pub before: u32,
    /// Begun for other jobs, which had not all their iterations.
    pub after: u32,
}

/// What a job did.
#[derive(Debug, Default)]
pub struct JobRecord {
    /// Measured iterations of every worker or rank class, in order, as many of one as of another; one entry if all are
    /// alike.
    pub workers: Vec<Vec<IterationRecord>>,
    /// The pass of each after its last measured iteration, as far as it went; its time is not known.
    pub last_passes: Vec<IterationRecord>,
    /// Iterations run before the first measured one: its own first, and those of [`unmeasured`](Self::unmeasured).
    pub warmup_count: u32,
    /// Iterations that are not measured because of other jobs.
    pub unmeasured: Unmeasured,
    /// Those of all iterations, warm-up iterations first; of each worker by itself where servers have the parameters.
    pub transfers: Vec<Records>,
    /// Ops of the first measured iterations, as they ended.
    pub operations: Vec<OperationRecord>,
    /// Compute ops and chunks that ended.
    pub event_count: u64,
    /// Iterations of workers with parameter servers, in place of `workers`.
    pub served: Option<ServedRecord>,
}

impl JobRecord {
    /// Iterations of the job that are complete.
    pub fn iteration_count(&self) -> usize {
        self.served.as_ref().map_or_else(|| self.iterations().len(), |served| served.iterations().len())
    }

    /// Transfers of measured iterations, a slice of each.
    pub fn blocks(&self) -> impl Iterator<Item = &[TransferRecord]> {
        self.transfers[0].blocks(self.warmup_count, self.iterations().len())
    }

    /// The worker that computes longest in all, the first of several: what the others wait for.
    pub fn slowest(&self) -> usize {
        let compute = |&worker: &usize| self.workers[worker].iter().map(|record| record.compute).sum::<Time>();
        (0..self.workers.len()).rev().max_by_key(compute).unwrap_or(0)
    }

    /// Measured iterations of the slowest worker.
    pub fn iterations(&self) -> &[IterationRecord] {
        &self.workers[self.slowest()]
    }

    /// The longest that a worker waits for others' computing, as a share of the iteration: the largest of all
    /// iterations.
    pub fn straggler_share(&self) -> f64 {
        let share = |record: &IterationRecord| record.straggler.ps() as f64 / record.time.ps() as f64;
        self.workers.iter().flatten().map(share).fold(0.0, f64::max)
    }
}

/// One measured iteration of a worker: from the start of a pass to the start of the next one of its kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct IterationRecord {
    /// Start of the pass that it is measured from.
    pub start: Time,
    /// To the start of the next one.
    pub time: Time,
    /// What its ops take by themselves.
    pub compute: Time,
    /// Of it, the device stood idle for the host: see [`DagOp::is_host`](crate::dag::DagOp::is_host).
    pub host: Time,
    /// Compute stood still for gradients that another worker had not computed yet; a part of the next two.
    pub straggler: Time,
    /// Compute stood still for a gradient that it needed next.
    pub exposed: Time,
    /// Compute stood still only because the barrier asked for gradients that it did not need yet.
    pub barrier: Time,
    /// What overlap with transfers added to the compute time.
    pub slowdown: Time,
}

impl IterationRecord {
    /// What the device computed.
    pub fn computing(&self) -> Time {
        self.compute - self.host
    }
}

/// One transfer of one iteration.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransferRecord {
    /// All that it waits for was done, on all ranks.
    pub ready: Time,
    /// First chunk began.
    pub start: Time,
    /// Last chunk arrived.
    pub end: Time,
    /// Compute asked for it, on the last rank.
    pub needed: Time,
    /// Whether compute asked for it at all, and not only what waits for it.
    pub is_needed: bool,
    /// Time for which it held the network.
    pub busy: Time,
    /// Place in the order.
    pub rank: u32,
    /// Chunks that have arrived.
    pub arrived_count: u32,
    /// Messages, and those of them in the high band, where workers change their bands.
    pub messages: u32,
    /// See `messages`.
    pub high: u32,
}

/// One record of every transfer for each iteration.
#[derive(Debug, Default)]
pub struct Records {
    per_iteration: usize,
    all: Vec<TransferRecord>,
}

impl Records {
    /// Of iterations with so many transfers.
    pub fn new(per_iteration: usize) -> Self {
        Self { per_iteration, all: Vec::new() }
    }

    /// Makes room for an iteration.
    pub fn grow(&mut self, iteration: u32) {
        let room = (iteration as usize + 1) * self.per_iteration;
        if room > self.all.len() {
            self.all.resize(room, TransferRecord::default());
        }
    }

    /// That of a transfer of an iteration.
    #[inline]
    pub fn get(&self, iteration: u32, transfer: u32) -> &TransferRecord {
        &self.all[iteration as usize * self.per_iteration + transfer as usize]
    }

    /// See [`get`](Self::get).
    #[inline]
    pub fn of(&mut self, iteration: u32, transfer: u32) -> &mut TransferRecord {
        &mut self.all[iteration as usize * self.per_iteration + transfer as usize]
    }

    /// Those of `count` iterations from one on, a slice of each.
    pub fn blocks(&self, first: u32, count: usize) -> impl Iterator<Item = &[TransferRecord]> {
        let (all, width) = (&self.all[..], self.per_iteration);
        let first = first as usize;
        (first..first + count).map(move |block| &all[block * width..(block + 1) * width])
    }

    /// How many of `count` iterations from one on come before the first with a transfer that has not ended.
    pub fn ended_count(&self, first: u32, count: usize) -> usize {
        let is_over = |block: &&[TransferRecord]| block.iter().all(|record| record.end > Time::ZERO);
        self.blocks(first, count).take_while(is_over).count()
    }

    /// Transfers that have ended, of all iterations, each with its index.
    pub fn ended(&self) -> impl Iterator<Item = (u32, &TransferRecord)> {
        (0..self.per_iteration as u32).cycle().zip(&self.all).filter(|(_, record)| record.end > Time::ZERO)
    }
}

/// One op or chunk, for timelines.
#[derive(Clone, Copy, Debug)]
pub struct OperationRecord {
    /// Measured iteration; -1 for the one before the first.
    pub iteration: i64,
    /// What it did.
    pub kind: OpKind,
    /// Which worker or rank class, for compute; 0 if all are alike.
    pub worker: u32,
    /// Which chunk of a transfer.
    pub chunk: u64,
    /// Start; for a barrier, when compute reached it.
    pub start: Time,
    /// End.
    pub end: Time,
}
