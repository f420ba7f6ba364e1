//! Compute streams, one per rank class or worker. A stream executes one op at a time, in the order of its program.
//!
//! Two effects stretch ops. Compute jitter ([`Jitter`]) multiplies costs by a factor for each worker and iteration.
//! Transfers slow down the compute that overlaps with them.

use super::record::IterationRecord;
use super::waits::slot;
use crate::dag::{Dag, DagOp, OpId, Program};
use crate::jitter::{Jitter, ONE_PPM};
use crate::job::{CollectiveJob, Pass};
use gradtide_net::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One compute stream.
pub struct Worker {
    jitter: Jitter,
    /// Index of the current iteration.
    pub iteration: u32,
    /// Slot of the iteration in `Waits`: `iteration % SLOTS`.
    pub slot: usize,
    /// Ops of an iteration, in order.
    pub program: Program,
    /// Op at which the measurement of an iteration begins.
    pub first_op: OpId,
    /// The running op; if none is running, the next op.
    pub next_op: OpId,
    /// Time at which compute reached `next_op`.
    pub reached_at: Time,
    /// The running op.
    pub running: Option<Running>,
    /// Number of the worker's communicators that have a chunk in progress; used only if transfers slow down compute.
    pub slowed_by: u32,
    /// End of the worker's latest op with dependents (ops or transfers).
    pub last_output_at: Time,
    /// Record of the iteration in progress, from one start of the measured pass to the next.
    pub current: IterationRecord,
    /// Records of completed iterations.
    pub measured: Vec<IterationRecord>,
    /// Whether the current pass is the one after the last measured iteration.
    pub is_last_pass: bool,
    /// Record of the pass after the last measured iteration, once complete.
    pub last_pass: Option<IterationRecord>,
    /// Whether compute ops are recorded: from the first measured pass to the one after the last recorded iteration.
    pub is_timeline_open: bool,
}

/// A running compute op.
#[derive(Clone, Copy)]
pub struct Running {
    /// Start of the op.
    pub started: Time,
    /// End of the op, unless its speed changes before.
    pub end: Time,
    /// Duration without the slowdown by transfers.
    pub cost: Time,
    /// Work left at the time `since`, as a duration without the slowdown.
    left: Time,
    since: Time,
    is_slow: bool,
    /// Whether the op is host work. The device is idle during host work, so transfers do not slow it down.
    is_host: bool,
}

impl Worker {
    fn new(jitter: Jitter, program: Program, measured_from: Pass, reached_at: Time) -> Self {
        let (first_op, next_op) = match measured_from {
            Pass::Forward => (program.forward, program.ops.start),
            Pass::Backward => (program.backward, program.backward),
        };
        Self {
            program,
            first_op,
            jitter,
            iteration: 0,
            slot: 0,
            next_op,
            reached_at,
            running: None,
            slowed_by: 0,
            last_output_at: Time::ZERO,
            current: IterationRecord::default(),
            measured: Vec::new(),
            is_last_pass: false,
            last_pass: None,
            is_timeline_open: false,
        }
    }

    /// Resets the worker to the start of its program, for the next iteration.
    pub fn begin_next(&mut self) {
        self.next_op = self.program.ops.start;
        self.iteration += 1;
        self.slot = slot(self.iteration);
        self.jitter.begin_iteration();
    }
}

/// All compute streams of a job.
pub struct Streams {
    /// Compute streams, by rank class or by worker.
    pub workers: Vec<Worker>,
    /// Ends of running ops, each with its worker. Unused if there is a single worker.
    ends: BinaryHeap<Reverse<(Time, u32)>>,
    /// Workers whose next op waits for dependencies, and workers that have to check their dependencies again.
    waiting: Vec<u32>,
    woken: Vec<u32>,
    /// Whether an op or transfer has ended since the workers in `waiting` last checked their dependencies.
    pub must_recheck: bool,
    /// Offset of compute time at which each compute op of a program begins.
    offsets: Vec<Time>,
    /// Duration of a piece of compute that overlaps with a transfer, in millionths of its duration without transfers.
    slowdown_ppm: u64,
}

impl Streams {
    /// Creates the streams of a job, before their first op.
    pub fn new(job: &mut CollectiveJob) -> Self {
        let dag = &job.dag;
        let jitters = Jitter::of_workers(job.factors.take(), dag.programs.len());
        let worker_count = jitters.len();
        debug_assert!(dag.programs.len() == 1 || dag.programs.len() == worker_count, "a program for each worker");
        let program = |worker: usize| dag.programs[if dag.programs.len() > 1 { worker } else { 0 }].clone();
        let worker = |(index, jitter)| Worker::new(jitter, program(index), job.mode.measured_from, job.start);
        let mut offsets = Vec::with_capacity(dag.compute_count as usize);
        for program in &dag.programs {
            let mut now = Time::ZERO;
            for op in &dag.ops[program.ops.start as usize..program.ops.end as usize] {
                offsets.push(now);
                now += op.cost;
            }
        }
        Self {
            workers: jitters.into_iter().enumerate().map(worker).collect(),
            ends: BinaryHeap::new(),
            waiting: (0..worker_count as u32).collect(),
            woken: Vec::new(),
            must_recheck: true,
            offsets,
            slowdown_ppm: job.overlap_slowdown_ppm,
        }
    }

    /// Returns the earliest end of a running op, and its worker.
    #[inline]
    pub fn next_end(&self) -> Option<(Time, u32)> {
        match &self.workers[..] {
            [one] => one.running.as_ref().map(|running| (running.end, 0)),
            _ => self.ends.peek().map(|&Reverse(next)| next),
        }
    }

    /// Returns a worker whose op may end or start now.
    #[inline]
    pub fn next_worker(&mut self, now: Time) -> Option<u32> {
        if self.woken.is_empty() && self.must_recheck {
            self.must_recheck = false;
            std::mem::swap(&mut self.waiting, &mut self.woken);
        }
        self.woken.pop().or_else(|| self.next_ended(now))
    }

    #[inline]
    fn next_ended(&mut self, now: Time) -> Option<u32> {
        let (_, worker) = self.next_end().filter(|&(end, _)| end <= now)?;
        self.ends.pop();
        Some(worker)
    }

    /// Registers a worker whose next op has to wait.
    pub fn wait(&mut self, index: u32) {
        self.waiting.push(index);
    }

    /// Begins a worker's next op.
    #[inline]
    pub fn begin(&mut self, index: u32, &DagOp { cost, is_host, .. }: &DagOp, now: Time) {
        let worker = &mut self.workers[index as usize];
        let (cost, is_slow) = (worker.jitter.stretched(cost), worker.slowed_by > 0 && !is_host);
        let end = now + beside_transfers(cost, is_slow, self.slowdown_ppm);
        worker.running = Some(Running { started: now, end, cost, left: cost, since: now, is_slow, is_host });
    }

    /// Ends a worker's op if its end has come.
    #[inline]
    pub fn end(&mut self, index: u32, now: Time) -> OpEnd {
        let Some(Running { started, end, cost, .. }) = self.workers[index as usize].running else {
            return OpEnd::Idle;
        };
        if end > now {
            self.await_end(index, end);
            return OpEnd::GoesOn;
        }
        self.workers[index as usize].running = None;
        OpEnd::Ended { started, cost }
    }

    /// Schedules the end of an op. A single worker needs no entry, because `next_end` reads its running op.
    #[inline]
    fn await_end(&mut self, index: u32, end: Time) {
        if self.workers.len() > 1 {
            self.ends.push(Reverse((end, index)));
        }
    }

    /// Returns whether transfers slow down compute.
    #[inline]
    pub fn can_be_slowed(&self) -> bool {
        self.slowdown_ppm != ONE_PPM
    }

    /// Registers that a communicator of these rank classes starts (`is_slow`) or stops sending. An empty list means all
    /// classes.
    pub fn slow(&mut self, classes: &[u32], is_slow: bool) {
        let change = |worker: &mut Worker| {
            worker.slowed_by = if is_slow { worker.slowed_by + 1 } else { worker.slowed_by - 1 };
        };
        match classes {
            [] => self.workers.iter_mut().for_each(change),
            some => some.iter().for_each(|&class| change(&mut self.workers[class as usize])),
        }
    }

    /// Adapts the ends of running ops on workers where transfers have begun or ended.
    pub fn change_speed(&mut self, now: Time) {
        let ppm = self.slowdown_ppm;
        let mut has_changed = false;
        for worker in &mut self.workers {
            let is_beside = worker.slowed_by > 0;
            let Some(running) = worker.running.as_mut() else { continue };
            let is_slow = is_beside && !running.is_host;
            if running.is_slow == is_slow {
                continue;
            }
            has_changed = true;
            let elapsed = u128::from((now - running.since).ps());
            let worked = match running.is_slow {
                true => (elapsed * u128::from(ONE_PPM) / u128::from(ppm)) as u64,
                false => elapsed as u64,
            };
            let left = Time::from_ps(running.left.ps().saturating_sub(worked));
            let end = now + beside_transfers(left, is_slow, ppm);
            *running = Running { end, left, since: now, is_slow, ..*running };
        }
        if has_changed && self.workers.len() > 1 {
            let ends = self.workers.iter().zip(0..).filter_map(|(worker, index)| Some((worker.running?.end, index)));
            self.ends.clear();
            self.ends.extend(ends.map(Reverse));
        }
    }

    /// Returns the time at which the last worker passes a release time, if no worker has to wait before. Returns `None`
    /// if a worker waits, or has not reached the op that contains the release time.
    pub fn passes_at(&self, (iteration, release): (u32, Time), dag: &Dag) -> Option<Time> {
        let passes_at = |worker: &Worker| {
            let begins = self.offsets[worker.next_op as usize];
            if worker.iteration > iteration || (worker.iteration == iteration && release <= begins) {
                return Some(Time::ZERO);
            }
            let running = worker.running.as_ref().filter(|_| worker.iteration == iteration)?;
            let ends = begins + dag.ops[worker.next_op as usize].cost;
            let after = worker.jitter.stretched(ends.saturating_since(release));
            (release <= ends).then(|| {
                let until = running.left.saturating_since(after);
                running.since + beside_transfers(until, running.is_slow, self.slowdown_ppm)
            })
        };
        self.workers.iter().map(passes_at).try_fold(Time::ZERO, |latest, at| Some(latest.max(at?)))
    }

    /// Returns each worker's position: the compute time that it has completed since the start of `iteration`. `compute`
    /// is the compute time of one iteration.
    pub fn positions(&self, iteration: u32, compute: Time, now: Time) -> Vec<Time> {
        let position = |worker: &Worker| {
            let begins = self.offsets[worker.next_op as usize];
            let gone = worker.running.as_ref().map_or(Time::ZERO, |running| now - running.started);
            let iterations = u64::from(worker.iteration.saturating_sub(iteration));
            begins + gone + Time::from_ps(iterations * compute.ps())
        };
        self.workers.iter().map(position).collect()
    }
}

/// State of a worker's op at the time of the check.
#[derive(Clone, Copy, Debug)]
pub enum OpEnd {
    /// No op is running.
    Idle,
    /// The op has not ended.
    GoesOn,
    /// The op has ended.
    Ended {
        /// Start of the op.
        started: Time,
        /// Duration without the slowdown by transfers.
        cost: Time,
    },
}

/// Returns the duration of `work`. If it overlaps with transfers (`is_slow`), it takes `slowdown_ppm` millionths as
/// long.
fn beside_transfers(work: Time, is_slow: bool, slowdown_ppm: u64) -> Time {
    if !is_slow || slowdown_ppm == ONE_PPM {
        return work;
    }
    Time::from_ps((u128::from(work.ps()) * u128::from(slowdown_ppm)).div_ceil(u128::from(ONE_PPM)) as u64)
}
