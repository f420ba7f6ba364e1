//! Executes a parameter-server job. Each worker runs its own iterations. It begins the next one when the servers have
//! applied its gradients and the bound on its lead allows it (see [`clocks`](super::clocks)).

use super::clocks::Clocks;
use super::connections::{Connections, Sent};
use super::server::Servers;
use super::worker::{Running, Worker};
use super::{PsJob, PsRecord, share};
use crate::dag::OpKind;
use crate::jitter::Jitter;
use crate::run::{Done, Executor, OperationRecord, RunContext, TooShort, Unmeasured};
use gradtide_net::{Completion, Network, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A parameter-server job in execution.
pub struct PsExecutor<'a> {
    job: &'a mut PsJob,
    /// Stream of the job's flows.
    stream: u32,
    context: RunContext,
    workers: Vec<Worker>,
    /// Ends of running ops, each with its worker.
    ends: BinaryHeap<Reverse<(Time, u32)>>,
    /// Workers that may be able to start an op, because an op has ended or has become ready.
    woken: Vec<u32>,
    connections: Connections,
    servers: Servers,
    clocks: Clocks,
    /// Workers whose iteration is complete except for updates on the servers, each with the time at which all its
    /// gradients are applied.
    applied: BinaryHeap<Reverse<(Time, u32)>>,
    /// Number of synchronous workers whose ops and transfers of the current iteration have ended.
    arrived_count: usize,
    /// Workers that have completed an iteration and may not begin the next one yet.
    held: Vec<u32>,
    /// Number of workers that have not ended their last iteration.
    active_count: usize,
    /// Total number of measured iterations that workers have completed.
    measured_count: u64,
    /// Number of iterations of each worker that the results include, with the current one; `None` until enough
    /// iterations are measured.
    enough: Option<Vec<u32>>,
    operations: Vec<OperationRecord>,
    event_count: u64,
}

impl<'a> PsExecutor<'a> {
    /// Creates the executor of a job that has not begun; its flows use `stream`.
    pub fn new(job: &'a mut PsJob, stream: u32, context: RunContext) -> Self {
        let worker_count = job.workers.len();
        let jitters = Jitter::of_workers(job.factors.take(), worker_count);
        Self {
            stream,
            context,
            workers: jitters.into_iter().map(|jitter| Worker::new(job, jitter)).collect(),
            ends: BinaryHeap::new(),
            woken: Vec::new(),
            connections: Connections::new(job),
            servers: Servers::new(job),
            clocks: Clocks::new(worker_count, job.bound),
            applied: BinaryHeap::new(),
            arrived_count: 0,
            held: Vec::new(),
            active_count: worker_count,
            measured_count: 0,
            enough: None,
            operations: Vec::new(),
            event_count: 0,
            job,
        }
    }

    /// Returns the number of iterations of all workers together; `None` if only the duration limits the run.
    fn wanted_count(&self) -> Option<u64> {
        self.job.iteration_limit.map(|limit| u64::from(limit) * self.workers.len() as u64)
    }

    fn is_active(&self) -> bool {
        let has_left = |enough: &Vec<u32>| self.workers.iter().zip(enough).any(|(worker, &all)| worker.iteration < all);
        self.active_count > 0 && self.enough.as_ref().is_none_or(has_left)
    }

    fn is_in_timeline(&self, index: u32) -> bool {
        let worker = &self.workers[index as usize];
        let is_extra = self.enough.as_ref().is_some_and(|enough| worker.iteration >= enough[index as usize]);
        let shown = worker.first..worker.first + self.context.limits.timeline_iterations;
        shown.contains(&worker.iteration) && !is_extra
    }

    fn record(&mut self, worker: u32, kind: OpKind, start: Time, end: Time) {
        let of = &self.workers[worker as usize];
        let iteration = i64::from(of.iteration) - i64::from(of.first);
        self.operations.push(OperationRecord { iteration, kind, worker, chunk: 0, start, end });
    }

    /// Begins a worker's next iteration, whose pulls are ready.
    fn begin_iteration(&mut self, index: u32, now: Time) {
        let worker = &mut self.workers[index as usize];
        if now < self.context.last_start {
            worker.first = worker.iteration + 1;
        }
        let lead = self.clocks.lead(worker.iteration);
        if worker.begin(now, self.job, lead, self.servers.applied_counts(now)) {
            self.woken.push(index);
        }
        let (order, sent) = self.job.pulls.next(index as usize, &self.job.server_of);
        for (priority, parameter) in (0..).zip(order) {
            worker.transfers.of(worker.iteration, parameter).priority = priority;
        }
        for parameter in sent {
            self.connections.on_ready(index, parameter);
        }
        self.workers[index as usize].is_timeline_open = self.is_in_timeline(index);
    }

    /// Ends a worker's iteration and records it.
    fn end_iteration(&mut self, index: u32, now: Time) {
        let worker = &mut self.workers[index as usize];
        let waited = match self.clocks.may_begin(worker.iteration + 1) {
            true => self.clocks.waited(worker.iteration, worker.own_end()),
            // The job ends while the worker waits because of the bound.
            false => now - worker.own_end(),
        };
        worker.end(now, waited);
    }

    /// Handles the end of a worker's running op. The gradients that the op completes are then ready to be pushed.
    fn on_op_ended(&mut self, index: u32, now: Time) {
        let worker = &mut self.workers[index as usize];
        let Running { op, started, .. } = worker.end_op(now, &self.job.graph);
        self.woken.push(index);
        self.event_count += 1;
        let first = self.job.graph.ops[op as usize].first_push;
        for push in first..first + self.job.graph.ops[op as usize].updates.len() as u32 {
            let transfer = self.job.graph.parameters.len() as u32 + push;
            worker.on_push_ready(transfer, now);
            self.connections.on_ready(index, transfer);
        }
        if worker.is_timeline_open && started < now {
            self.record(index, OpKind::Compute(op), started, now);
        }
        self.on_less_left(index);
    }

    /// Counts an op or a transfer that has ended. After the last op or transfer of the iteration, only the servers'
    /// updates remain.
    fn on_less_left(&mut self, index: u32) {
        let worker = &mut self.workers[index as usize];
        worker.left_count -= 1;
        if worker.left_count > 0 {
            return;
        }
        if !self.job.is_synchronous() {
            self.applied.push(Reverse((worker.applied_at, index)));
            return;
        }
        self.arrived_count += 1;
        if self.arrived_count == self.workers.len() {
            let at = self.servers.idle_at();
            self.applied.extend((0..self.workers.len() as u32).map(|worker| Reverse((at, worker))));
            self.arrived_count = 0;
        }
    }

    /// Starts and ends all ops that are due. No worker starts an op before all ops that end now have ended.
    fn run_ops(&mut self, now: Time) {
        loop {
            if let Some(&Reverse((end, worker))) = self.ends.peek()
                && end <= now
            {
                self.ends.pop();
                self.on_op_ended(worker, now);
            } else if let Some(worker) = self.woken.pop() {
                let end = self.workers[worker as usize].begin_op(now, &self.job.graph);
                self.ends.extend(end.map(|end| Reverse((end, worker))));
            } else {
                return;
            }
        }
    }

    /// Ends the iterations whose gradients are applied by now. Workers within the bound then begin their next
    /// iterations, unless the job is over. Returns whether a worker has completed an iteration.
    fn end_iterations(&mut self, now: Time) -> bool {
        let before = self.held.len();
        while let Some(&Reverse((at, index))) = self.applied.peek()
            && at <= now
        {
            self.applied.pop();
            let worker = &self.workers[index as usize];
            self.clocks.complete(worker.iteration, worker.own_end());
            self.measured_count += u64::from(worker.first <= worker.iteration);
            self.held.push(index);
        }
        if self.held.len() == before {
            return false;
        }
        if self.enough.is_none() && self.wanted_count().is_some_and(|wanted| self.measured_count >= wanted) {
            self.enough = Some(self.workers.iter().map(|worker| worker.iteration + 1).collect());
        }
        let is_over = self.context.is_over(now) || (self.enough.is_some() && !self.context.is_shared);
        self.held.sort_unstable();
        let may_go_on = |&worker: &u32| is_over || self.clocks.may_begin(self.workers[worker as usize].iteration + 1);
        let (released, held): (Vec<u32>, Vec<u32>) = std::mem::take(&mut self.held).into_iter().partition(may_go_on);
        self.held = held;
        if is_over {
            self.active_count -= released.len();
        }
        for worker in released {
            self.end_iteration(worker, now);
            if !is_over {
                self.begin_iteration(worker, now);
            }
        }
        true
    }
}

impl<'a> Executor<'a> for PsExecutor<'a> {
    fn name(&self) -> &str {
        &self.job.name
    }

    fn start(&self) -> Time {
        self.job.start
    }

    fn stream_count(&self) -> usize {
        1
    }

    fn open(&mut self, network: &mut dyn Network) -> usize {
        self.job.open(self.stream, network)
    }

    fn begin(&mut self, now: Time) -> Result<(), TooShort> {
        if self.context.is_over(now) || self.wanted_count() == Some(0) {
            return Err(TooShort);
        }
        (0..self.workers.len() as u32).for_each(|worker| self.begin_iteration(worker, now));
        Ok(())
    }

    fn settle(&mut self, now: Time, network: &mut dyn Network) -> Result<bool, TooShort> {
        loop {
            self.run_ops(now);
            let Self { connections, job, workers, .. } = self;
            connections.send(job, self.stream, network, |worker| workers[worker as usize].on_transfer_begins(now));
            // A new iteration may have ops or transfers that start at once.
            if !self.end_iterations(now) {
                return Ok(self.is_active());
            }
        }
    }

    fn on_completion(&mut self, now: Time, completion: Completion, _network: &mut dyn Network) {
        let (Sent { worker: index, transfer }, began) = self.connections.on_completion(now, completion, self.job);
        self.event_count += 1;
        if began < now && self.is_in_timeline(index) {
            self.record(index, OpKind::Transfer(transfer), began, now);
        }
        let worker = &mut self.workers[index as usize];
        match self.job.carried(transfer) {
            (parameter, true) => {
                let applied = self.servers.on_pushed(parameter, now, self.job);
                worker.on_pushed((transfer, parameter), began, now, applied);
            }
            (parameter, false) => {
                if worker.on_pulled(parameter, began, now, &self.job.graph) {
                    self.woken.push(index);
                }
            }
        }
        self.on_less_left(index);
    }

    fn wakes_at(&self) -> Option<Time> {
        let ends = [self.ends.peek(), self.applied.peek()];
        ends.into_iter().flatten().map(|&Reverse((at, _))| at).min()
    }

    /// Returns the maximum over all workers.
    fn extra_count(&self) -> u32 {
        let extra = |(worker, &all): (&Worker, &u32)| (worker.iteration + 1).saturating_sub(all);
        self.enough.as_ref().and_then(|enough| self.workers.iter().zip(enough).map(extra).max()).unwrap_or(0)
    }

    fn waiting_ops(&self) -> usize {
        self.workers.iter().map(|worker| worker.left_count).sum()
    }

    fn progress(&self) -> Option<f64> {
        self.wanted_count().map(|wanted| self.measured_count as f64 / wanted as f64)
    }

    fn into_done(self: Box<Self>) -> Done<'a> {
        let after = self.extra_count();
        let Self { job, context, mut workers, enough, operations, event_count, .. } = *self;
        let first: Vec<u32> = workers.iter().map(|worker| worker.first).collect();
        let mut complete: Vec<_> = workers.iter_mut().map(|worker| std::mem::take(&mut worker.complete)).collect();
        let shared =
            (!job.is_synchronous()).then(|| share::iterations(&complete, context.last_start, job.iteration_limit));
        for (index, records) in complete.iter_mut().enumerate() {
            if let Some(enough) = &enough {
                records.truncate(enough[index] as usize);
            }
            records.drain(..records.len().min(first[index] as usize));
        }
        let unmeasured = Unmeasured { before: first.iter().copied().max().unwrap_or(0), after };
        let transfers = workers.into_iter().map(|worker| worker.transfers).collect();
        let record = PsRecord { workers: complete, first, shared, transfers, operations, unmeasured, event_count };
        Done::Ps(job, record)
    }
}
