//! State of a worker during a run: its compute resource, which runs the ready op that is first in topological order,
//! and the record of its current iteration.

use super::server::Applied;
use super::{PsJob, WorkerGraph, WorkerRecord};
use crate::dag::OpId;
use crate::jitter::Jitter;
use crate::run::Records;
use gradtide_net::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A worker and its current iteration.
pub struct Worker {
    jitter: Jitter,
    /// Number of open inputs of each op.
    open_inputs: Vec<u32>,
    /// Ready ops; the first in topological order is on top.
    ready: BinaryHeap<Reverse<OpId>>,
    running: Option<Running>,
    /// Index of the current iteration.
    pub iteration: u32,
    /// Index of the first measured iteration. It increases as long as other jobs have not started.
    pub first: u32,
    /// Whether the worker's ops are recorded for the timeline.
    pub is_timeline_open: bool,
    /// Start of the iteration.
    began: Time,
    /// Number of ops and transfers of the iteration that have not ended.
    pub left_count: usize,
    /// Time at which the last gradient of this iteration that has been pushed will be applied. Used for asynchronous
    /// workers.
    pub applied_at: Time,
    /// Number of updates that each parameter had when it was pulled, at the start of the iteration. Used for
    /// asynchronous workers.
    pulled: Vec<u64>,
    /// Time at which the last input of each op was computed. Inputs that depend only on parameters do not count.
    computed_at: Vec<Time>,
    /// Number of pulls and pushes in progress, and the time since which there has been at least one.
    transfer_count: u32,
    busy_since: Time,
    push_count: u32,
    record: WorkerRecord,
    /// Complete iterations.
    pub complete: Vec<WorkerRecord>,
    /// Pulls and pushes of all iterations.
    pub transfers: Records,
}

/// A running op.
#[derive(Clone, Copy)]
pub struct Running {
    /// Index of the op.
    pub op: OpId,
    /// Start of the op.
    pub started: Time,
    /// Duration of the op.
    pub cost: Time,
}

impl Worker {
    /// Creates a worker before its first iteration.
    pub fn new(job: &PsJob, jitter: Jitter) -> Self {
        Self {
            jitter,
            open_inputs: Vec::new(),
            ready: BinaryHeap::new(),
            running: None,
            iteration: 0,
            first: 0,
            is_timeline_open: false,
            began: Time::ZERO,
            left_count: 0,
            applied_at: Time::ZERO,
            pulled: Vec::new(),
            computed_at: Vec::new(),
            transfer_count: 0,
            busy_since: Time::ZERO,
            push_count: 0,
            record: WorkerRecord::default(),
            complete: Vec::new(),
            transfers: Records::new(job.transfer_count()),
        }
    }

    /// Begins an iteration. Returns whether ops without inputs are ready. For asynchronous workers, `lead` is the
    /// number of iterations by which the worker is ahead of the slowest one, and `pulled` is the number of updates that
    /// each parameter has had so far.
    pub fn begin(&mut self, now: Time, job: &PsJob, lead: u32, pulled: impl Iterator<Item = u64>) -> bool {
        let op_count = job.graph.ops.len();
        (self.began, self.applied_at, self.push_count) = (now, Time::ZERO, 0);
        self.left_count = op_count + job.transfer_count();
        self.record = WorkerRecord { start: now, ..WorkerRecord::default() };
        self.record.staleness.iterations = lead;
        self.pulled.clear();
        self.pulled.extend(pulled);
        self.computed_at.clear();
        self.computed_at.resize(op_count, now);
        self.open_inputs = job.graph.readers.indegrees();
        self.ready.extend((0..op_count as u32).filter(|&op| self.open_inputs[op as usize] == 0).map(Reverse));
        self.transfers.grow(self.iteration);
        for transfer in 0..job.transfer_count() as u32 {
            let record = self.transfers.of(self.iteration, transfer);
            (record.ready, record.needed, record.is_needed) = (now, Time::MAX, true);
        }
        !self.ready.is_empty()
    }

    /// Ends the iteration and records it. `waited` is the time for which the worker has waited for other workers.
    pub fn end(&mut self, now: Time, waited: Time) {
        (self.record.time, self.record.waited) = (now - self.began, waited);
        self.complete.push(self.record);
        for transfer in self.transfers.of_iteration(self.iteration) {
            transfer.needed = transfer.needed.min(now);
        }
        self.iteration += 1;
        self.jitter.begin_iteration();
    }

    /// Begins the first ready op if the worker is idle. Returns the end of the op.
    pub fn begin_op(&mut self, now: Time, graph: &WorkerGraph) -> Option<Time> {
        if self.running.is_some() {
            return None;
        }
        let Reverse(op) = self.ready.pop()?;
        let cost = self.jitter.stretched(graph.ops[op as usize].cost);
        self.running = Some(Running { op, started: now, cost });
        Some(now + cost)
    }

    /// Ends the running op.
    pub fn end_op(&mut self, now: Time, graph: &WorkerGraph) -> Running {
        let running = self.running.take().expect("an op is running");
        let Running { op, cost, .. } = running;
        self.record.compute += cost;
        if graph.ops[op as usize].is_host {
            self.record.host += cost;
        }
        self.record.computed = now - self.began;
        self.record.own = self.record.own.max(self.record.computed);
        let asked_at = self.computed_at[op as usize];
        for &parameter in graph.uses.from(op) {
            let needed = &mut self.transfers.of(self.iteration, parameter).needed;
            *needed = (*needed).min(asked_at);
        }
        let node = graph.parameters.len() as u32 + op;
        if !graph.ops[op as usize].is_param_only {
            for &reader in graph.readers.from(node) {
                self.computed_at[reader as usize] = now;
            }
        }
        self.on_input(node, graph);
        running
    }

    /// Resolves the input `node`, a parameter or an op, of all ops that depend on it. Returns whether one of these ops
    /// has become ready.
    fn on_input(&mut self, node: u32, graph: &WorkerGraph) -> bool {
        let before = self.ready.len();
        for &reader in graph.readers.from(node) {
            let open = &mut self.open_inputs[reader as usize];
            *open -= 1;
            if *open == 0 {
                self.ready.push(Reverse(reader));
            }
        }
        self.ready.len() > before
    }

    /// Records that a push is ready.
    pub fn on_push_ready(&mut self, transfer: u32, now: Time) {
        let record = self.transfers.of(self.iteration, transfer);
        (record.ready, record.priority) = (now, self.push_count);
        self.push_count += 1;
    }

    /// Counts a pull or push that begins.
    pub fn on_transfer_begins(&mut self, now: Time) {
        if self.transfer_count == 0 {
            self.busy_since = now;
        }
        self.transfer_count += 1;
    }

    /// Records a pull or push that has ended.
    fn on_transfer_ended(&mut self, transfer: u32, began: Time, now: Time) {
        let record = self.transfers.of(self.iteration, transfer);
        (record.start, record.end) = (began, now);
        self.transfer_count -= 1;
        if self.transfer_count == 0 {
            self.record.comm += now - self.busy_since;
        }
    }

    /// Records that a parameter has arrived. Returns whether an op that reads it has become ready.
    pub fn on_pulled(&mut self, parameter: u32, began: Time, now: Time, graph: &WorkerGraph) -> bool {
        self.on_transfer_ended(parameter, began, now);
        self.on_input(parameter, graph)
    }

    /// Records that a gradient has arrived on its server. `applied` is used only for asynchronous workers.
    pub fn on_pushed(&mut self, (transfer, parameter): (u32, u32), began: Time, now: Time, applied: Option<Applied>) {
        self.on_transfer_ended(transfer, began, now);
        self.record.own = now - self.began;
        if let Some(Applied { at, before }) = applied {
            let missed = before - self.pulled[parameter as usize];
            let staleness = &mut self.record.staleness;
            staleness.updates += missed;
            staleness.most_updates = missed.max(staleness.most_updates);
            self.applied_at = self.applied_at.max(at);
        }
    }

    /// Returns the latest time so far at which an op of the iteration ended or a push arrived. After all of them, this
    /// is the end of the worker's own part.
    pub fn own_end(&self) -> Time {
        self.began + self.record.own
    }
}
