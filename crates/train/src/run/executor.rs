//! The execution of one job: its op graph on compute streams, send queues and a network.
//!
//! Workers of a collective job run the iterations together and form one [`ReplicaSet`]. With parameter servers each
//! worker runs iterations of its own, in a set of one; functions with `PER_WORKER` handle this case.

use super::queue::{Around, Ended, SendQueue};
use super::record::{IterationRecord, JobRecord, OperationRecord, Records, Unmeasured};
use super::runner::TooShort;
use super::served::Served;
use super::streams::{OpEnd, Streams};
use super::waits::{Waits, slot};
use super::{Done, Limits, Together};
use crate::communicator::{self, Communicator};
use crate::dag::{DagOp, OpKind};
use crate::job::{Job, Pass};
use crate::traffic::BackgroundFlows;
use gradtide_net::{Completion, Network, Time};
use std::iter::once;

/// A job in execution.
pub struct Executor<'a> {
    job: &'a mut Job,
    /// Stream of the first communicator; those of the other communicators follow.
    stream: u32,
    limits: Limits,
    together: Together,
    /// All workers; with parameter servers the first one.
    replicas: ReplicaSet,
    /// With parameter servers, the other workers, one set each.
    other_replicas: Vec<ReplicaSet>,
    streams: Streams,
    /// One per communicator.
    queues: Vec<SendQueue>,
    /// State of the parameter servers, if the job has any.
    served: Option<Box<Served>>,
    ranks: Vec<u32>,
    /// Whether a scheduler draws a new order in every iteration.
    changes_ranks: bool,
    /// For each program, the transfers that it would need at its start without the barrier.
    read_at_start: Vec<Vec<u32>>,
    /// Iterations that at least one worker has begun.
    begun_count: u32,
    /// The iteration whose first pass ends the measurement. The first worker to reach it decides for all.
    last_iteration: Option<u32>,
    unfinished_count: usize,
    trace: JobRecord,
}

/// Workers that run the same iteration together, and its dependencies.
struct ReplicaSet {
    /// Open dependencies of ops.
    waits: Waits,
    /// Times of transfers.
    records: Records,
}

impl<'a> Executor<'a> {
    /// A job that has not begun; flows of its communicator i carry the stream `stream + i`.
    pub fn new(job: &'a mut Job, stream: u32, limits: Limits, together: Together) -> Self {
        let streams = Streams::new(job);
        let mut ranks = Vec::new();
        communicator::rank(&job.dag, &mut job.communicators, |_| true, &mut ranks);
        let at_start = |windows: &crate::caramel::Boundaries| {
            let first = (0..).zip(&windows.windows).filter(|(_, window)| window.read == Time::ZERO);
            first.map(|(transfer, _)| transfer).collect()
        };
        let gradients = job.gradients().map_or(&[][..], |gradients| &gradients.without_barrier);
        let worker_count = streams.workers.len();
        let (set_count, set_size) = if job.served.is_some() { (worker_count, 1) } else { (1, worker_count) };
        let replicas = |_| {
            let mut records = Records::new(job.dag.transfers.len());
            records.grow(1);
            ReplicaSet { waits: Waits::new(&job.dag, set_size), records }
        };
        Self {
            replicas: replicas(0),
            other_replicas: (1..set_count).map(replicas).collect(),
            queues: job.communicators.iter().map(|communicator| SendQueue::new(communicator, &job.dag)).collect(),
            changes_ranks: job.communicators.iter().any(|communicator| !communicator.scheduler.is_fixed()),
            read_at_start: gradients.iter().map(at_start).collect(),
            stream,
            limits,
            together,
            begun_count: 0,
            last_iteration: None,
            unfinished_count: streams.workers.len(),
            streams,
            ranks,
            trace: JobRecord { warmup_count: own_warmup_count(job), ..JobRecord::default() },
            served: job.served.take().map(|plan| Box::new(Served::new(plan, together))),
            job,
        }
    }

    /// Starts a worker's next op if its dependencies are complete; `false` if it must wait or the worker is finished.
    fn start_op(&mut self, index: u32, now: Time) -> Result<bool, TooShort> {
        if self.served.is_some() {
            self.streams.begin_ready(index, &self.job.dag, now);
            return Ok(false);
        }
        let worker = &self.streams.workers[index as usize];
        let (op, reached_at, is_first) = (worker.next_op, worker.reached_at, worker.next_op == worker.first_op);
        if !self.replicas.waits.is_ready(worker.slot, op) {
            self.streams.wait(index);
            return Ok(false);
        }
        let DagOp { kind, .. } = self.job.dag.ops[op as usize];
        if now > reached_at {
            self.on_waited(index, kind, now);
        }
        if kind == OpKind::Barrier {
            self.record(index, kind, reached_at, now);
        }
        if is_first {
            self.on_iteration_begins(index, now)?;
        }
        let worker = &mut self.streams.workers[index as usize];
        if op >= worker.program.backward {
            if worker.is_last_pass {
                worker.is_last_pass = false;
                worker.last_pass = Some(worker.current);
                self.unfinished_count -= 1;
                if !self.together.is_shared {
                    return Ok(false);
                }
            }
            if worker.iteration >= self.trace.warmup_count + self.limits.timeline_iterations {
                worker.is_timeline_open = false;
            }
        }
        self.streams.begin(index, &self.job.dag.ops[op as usize], now);
        Ok(true)
    }

    /// Accounts for a worker's stall, from when it reached its next op until now.
    fn on_waited(&mut self, index: u32, kind: OpKind, now: Time) {
        let worker = &self.streams.workers[index as usize];
        let wait = now - worker.reached_at;
        let exposed = if kind == OpKind::Barrier { self.wait_without_barrier(index) } else { wait };
        let straggler = self.straggler_wait(index, now);
        let current = &mut self.streams.workers[index as usize].current;
        current.exposed += exposed;
        current.barrier += wait - exposed;
        current.straggler += straggler;
    }

    /// The part of a worker's stall that is due to the compute of other workers: until the last transfer that its next
    /// op is the first to use was ready. If none of these transfers ends now, the op waited for an op of another
    /// worker, and the whole stall counts.
    fn straggler_wait(&self, index: u32, now: Time) -> Time {
        let worker = &self.streams.workers[index as usize];
        let (mut ready, mut has_ended) = (Time::ZERO, false);
        let ReplicaSet { waits, records } = &self.replicas;
        for near in waits.first_uses(worker.next_op) {
            if let Some(iteration) = worker.iteration.checked_sub(u32::from(near.is_of_other)) {
                let record = records.get(iteration, near.index);
                ready = ready.max(record.ready);
                has_ended |= record.end == now;
            }
        }
        if has_ended { ready } else { now }.saturating_since(worker.reached_at)
    }

    /// Handles the start of the pass that iterations are measured from, on one worker.
    fn on_iteration_begins(&mut self, index: u32, now: Time) -> Result<(), TooShort> {
        let worker = &mut self.streams.workers[index as usize];
        let is_first = worker.iteration >= self.begun_count;
        self.begun_count = self.begun_count.max(worker.iteration + 1);
        if is_first && now < self.together.since {
            let later = (worker.iteration + 1).saturating_sub(self.trace.warmup_count);
            self.trace.warmup_count += later;
            // A transfer of the iteration may have ended before its first op begins.
            let before = -i64::from(own_warmup_count(self.job));
            self.trace.operations.iter_mut().for_each(|operation| operation.iteration -= i64::from(later));
            self.trace.operations.retain(|operation| operation.iteration >= before);
        }
        let measured_count = worker.iteration.checked_sub(self.trace.warmup_count);
        let is_extra = self.last_iteration.is_some_and(|last| worker.iteration > last);
        if measured_count.is_some_and(|count| count > 0) && !is_extra {
            worker.current.time = now - worker.current.start;
            worker.measured.push(worker.current);
        }
        worker.current = IterationRecord { start: now, ..IterationRecord::default() };
        let Some(measured_count) = measured_count else { return Ok(()) };
        let is_over = self.limits.duration.is_some_and(|duration| now >= duration);
        if measured_count == 0 {
            worker.is_timeline_open = self.limits.timeline_iterations > 0;
            let too_short = is_first && is_over;
            return if too_short { Err(TooShort) } else { Ok(()) };
        }
        if is_first && !is_extra && (is_over || self.job.iteration_limit.is_some_and(|limit| measured_count >= limit)) {
            self.last_iteration = Some(worker.iteration);
        }
        worker.is_last_pass = self.last_iteration == Some(worker.iteration);
        Ok(())
    }

    /// How long the first op would have had to wait for the transfers that it reads.
    fn wait_without_barrier(&self, index: u32) -> Time {
        let worker = &self.streams.workers[index as usize];
        let Some(before) = worker.iteration.checked_sub(1) else { return Time::ZERO };
        let programs = &self.read_at_start;
        let first = &programs[if programs.len() > 1 { index as usize } else { 0 }];
        let records = &self.replicas.records;
        let wait = |&transfer: &u32| records.get(before, transfer).end.saturating_since(worker.reached_at);
        first.iter().map(wait).max().unwrap_or(Time::ZERO)
    }

    /// Ends a worker's op if it ends now; `false` if it continues.
    fn finish_op(&mut self, index: u32, now: Time) -> bool {
        let (started, cost) = match self.streams.end(index, now) {
            OpEnd::Idle => return true,
            OpEnd::GoesOn => return false,
            OpEnd::Ended { started, cost } => (started, cost),
        };
        let worker = &mut self.streams.workers[index as usize];
        let (op, slot, iteration) = (worker.next_op, worker.slot, worker.iteration);
        let is_last = op + 1 == worker.program.ops.end;
        let DagOp { kind, is_host, .. } = self.job.dag.ops[op as usize];
        worker.current.compute += cost;
        if is_host {
            worker.current.host += cost;
        }
        worker.current.slowdown += now - started - cost;
        worker.reached_at = now;
        worker.next_op += 1;
        self.trace.event_count += 1;
        if kind != OpKind::Barrier {
            self.record(index, kind, started, now);
        }
        if self.served.is_some() {
            self.on_served_op_ended(index, op, cost, now);
            return false;
        }
        let waiting_count = self.replicas.waits.waiting_count(op);
        if waiting_count > 0 {
            self.streams.workers[index as usize].gave_at = now;
            self.release::<false>(0, (op, slot), iteration, waiting_count, now);
        }
        if is_last {
            self.on_program_ends(index);
        }
        self.on_reached(index, now);
        true
    }

    /// The replica set of a worker.
    #[inline]
    fn replicas_mut(&mut self, worker: usize) -> &mut ReplicaSet {
        match worker.checked_sub(1) {
            None => &mut self.replicas,
            Some(other) => &mut self.other_replicas[other],
        }
    }

    /// Resolves the dependencies on a finished op, and starts what has become ready. With `PER_WORKER`, workers run
    /// iterations of their own and execute ops as they become ready.
    fn release<const PER_WORKER: bool>(
        &mut self,
        worker: usize,
        (op, slot): (u32, usize),
        iteration: u32,
        waiting_count: usize,
        now: Time,
    ) {
        for place in 0..waiting_count {
            let replicas = if PER_WORKER { self.replicas_mut(worker) } else { &mut self.replicas };
            let (near, is_ready) = replicas.waits.release(op, slot, place);
            match near.index.checked_sub(self.job.dag.compute_count) {
                None if !PER_WORKER => self.streams.has_news = true,
                None if is_ready => self.streams.on_ready(worker as u32, near.index),
                Some(transfer) if is_ready && PER_WORKER => self.on_push_ready(worker as u32, transfer, iteration, now),
                Some(transfer) if is_ready => {
                    self.on_transfer_ready(transfer, iteration + u32::from(near.is_of_other), now);
                }
                _ => {}
            }
        }
    }

    /// Handles the end of an op on a worker with parameter servers.
    fn on_served_op_ended(&mut self, index: u32, op: u32, cost: Time, now: Time) {
        let Some(mut served) = self.served.take() else { return };
        served.on_op_end(index, op, cost, now, &mut self.replicas_mut(index as usize).records);
        self.served = Some(served);
        let (slot, iteration) =
            (self.streams.workers[index as usize].slot, self.streams.workers[index as usize].iteration);
        let waiting_count = self.replicas_mut(index as usize).waits.waiting_count(op);
        self.release::<true>(index as usize, (op, slot), iteration, waiting_count, now);
        if let Some(served) = &mut self.served {
            served.on_less_left(index);
        }
    }

    /// Queues the push of a gradient that a worker has computed.
    fn on_push_ready(&mut self, worker: u32, transfer: u32, iteration: u32, now: Time) {
        let Some(served) = &mut self.served else { return };
        let rank = served.on_push_ready(worker, transfer);
        let record = self.replicas_mut(worker as usize).records.of(iteration, transfer);
        (record.ready, record.rank) = (now, rank);
    }

    fn on_program_ends(&mut self, index: u32) {
        let worker = &mut self.streams.workers[index as usize];
        let slot = worker.slot;
        worker.begin_next();
        let iteration = worker.iteration;
        let ReplicaSet { waits, records } = &mut self.replicas;
        records.grow(iteration + 1);
        if waits.on_program_end(slot) && self.changes_ranks {
            let changes = |scheduler: &dyn crate::schedule::Scheduler| !scheduler.is_fixed();
            communicator::rank(&self.job.dag, &mut self.job.communicators, changes, &mut self.ranks);
        }
        assert!(self.replicas.waits.can_begin(iteration), "no rank class is two iterations ahead of another");
    }

    /// Records that a worker's compute has reached its next op, which may need transfers.
    fn on_reached(&mut self, index: u32, now: Time) {
        let worker = &self.streams.workers[index as usize];
        let ReplicaSet { waits, records } = &mut self.replicas;
        for near in waits.first_uses(worker.next_op) {
            if let Some(iteration) = worker.iteration.checked_sub(u32::from(near.is_of_other)) {
                let record = records.of(iteration, near.index);
                (record.needed, record.is_needed) = (now, true);
            }
        }
    }

    fn on_transfer_ready(&mut self, transfer: u32, iteration: u32, now: Time) {
        let record = self.replicas.records.of(iteration, transfer);
        record.ready = now;
        record.rank = self.ranks[transfer as usize];
        let index = self.job.dag.transfers[transfer as usize].communicator as usize;
        let around = around(self.job, &self.streams, &self.ranks, (self.stream, index), now);
        self.queues[index].on_ready(transfer, iteration, &around);
    }

    fn on_chunk_ended(&mut self, queue: usize, ended: Ended, now: Time) {
        let Ended { transfer, iteration, chunk, began } = ended;
        if self.streams.can_be_slowed() && !self.queues[queue].is_sending() {
            self.streams.slow(&self.job.communicators[queue].classes, false);
        }
        self.trace.event_count += 1;
        self.record_chunk(0, ended, now);
        let record = self.replicas.records.of(iteration, transfer);
        if chunk == 0 {
            record.start = began;
        }
        record.arrived_count += 1;
        if u64::from(record.arrived_count) == self.job.communicators[queue].chunk_count(transfer) {
            record.end = now;
            self.streams.has_news = true;
            self.on_transfer_ended::<false>(0, transfer, iteration, now);
        }
    }

    /// Handles the end of a pull or a push.
    fn on_channel_ended(&mut self, worker: u32, ended: Ended, now: Time) {
        let Ended { transfer, iteration, began, .. } = ended;
        if began < now {
            self.record_chunk(worker, ended, now);
        }
        let record = self.replicas_mut(worker as usize).records.of(iteration, transfer);
        (record.start, record.end) = (began, now);
        if let Some(served) = &mut self.served {
            served.on_arrived(worker, transfer, now);
        }
        self.on_transfer_ended::<true>(worker as usize, transfer, iteration, now);
        if let Some(served) = &mut self.served {
            served.on_less_left(worker);
        }
    }

    /// Resolves the dependencies on a transfer, which has ended on all ranks.
    fn on_transfer_ended<const PER_WORKER: bool>(&mut self, worker: usize, transfer: u32, iteration: u32, now: Time) {
        let op = self.job.dag.transfer_op(transfer);
        let waiting_count = self.replicas_mut(worker).waits.waiting_count(op);
        self.release::<PER_WORKER>(worker, (op, slot(iteration)), iteration, waiting_count, now);
        self.replicas_mut(worker).waits.on_end(slot(iteration));
    }

    /// Records a chunk for the timeline.
    fn record_chunk(&mut self, worker: u32, ended: Ended, now: Time) {
        let Ended { transfer, iteration, chunk, began } = ended;
        let first = self.first_measured(worker);
        let is_wanted = match &self.served {
            Some(served) => served.is_measured(worker),
            None => self.last_iteration.is_none_or(|last| iteration <= last),
        };
        if is_wanted && iteration < first + self.limits.timeline_iterations {
            let iteration = i64::from(iteration) - i64::from(first);
            let kind = OpKind::Transfer(transfer);
            self.trace.operations.push(OperationRecord { iteration, kind, worker, chunk, start: began, end: now });
        }
    }

    /// Begins the next iteration of a worker with parameter servers.
    fn begin_iteration(&mut self, index: u32, now: Time) {
        let Some(mut served) = self.served.take() else { return };
        let worker = &mut self.streams.workers[index as usize];
        let (slot, iteration) = (worker.slot, worker.iteration);
        served.begin(index, now, &mut self.replicas_mut(index as usize).records);
        let is_wanted =
            served.is_measured(index) && iteration < served.first_measured(index) + self.limits.timeline_iterations;
        self.streams.workers[index as usize].is_timeline_open = is_wanted;
        self.served = Some(served);
        for op in 0..self.job.dag.compute_count {
            if self.replicas_mut(index as usize).waits.is_ready(slot, op) {
                self.streams.on_ready(index, op);
            }
        }
    }

    /// Begins the next iteration of workers that the servers' clock releases, unless enough has been measured: then
    /// workers only complete the iterations that they have begun. Returns whether any iteration has ended.
    fn begin_released(&mut self, now: Time) -> bool {
        let is_over = self.limits.duration.is_some_and(|duration| now >= duration);
        let wanted = self.wanted_count();
        let Some(served) = &mut self.served else { return false };
        let Some((released, is_over)) = served.released(now, is_over, wanted) else { return false };
        for worker in released {
            let slot = self.streams.workers[worker as usize].slot;
            let Some(mut served) = self.served.take() else { return false };
            let ReplicaSet { waits, records } = self.replicas_mut(worker as usize);
            served.end(worker, now, records);
            waits.on_program_end(slot);
            self.served = Some(served);
            self.streams.workers[worker as usize].begin_next();
            if !is_over {
                self.begin_iteration(worker, now);
            }
        }
        true
    }

    /// Iterations that all workers with parameter servers together are to complete; `None` if only the duration limits
    /// the run.
    fn wanted_count(&self) -> Option<u64> {
        self.job.iteration_limit.map(|limit| u64::from(limit) * self.streams.workers.len() as u64)
    }

    /// The first measured iteration of a worker. It moves on while other jobs have not started.
    fn first_measured(&self, worker: u32) -> u32 {
        self.served.as_ref().map_or(self.trace.warmup_count, |served| served.first_measured(worker))
    }

    /// Iterations run beyond its own, while other jobs need it as load.
    pub fn extra_count(&self) -> u32 {
        match (&self.served, self.last_iteration) {
            (Some(served), _) => served.extra_count(),
            (None, Some(last)) => self.begun_count - 1 - last,
            (None, None) => 0,
        }
    }

    /// Records a compute op for the timeline, unless it is invisible there: an update that takes no time.
    fn record(&mut self, index: u32, kind: OpKind, start: Time, end: Time) {
        let worker = &self.streams.workers[index as usize];
        let is_visible = start < end || (self.served.is_none() && !matches!(kind, OpKind::Update(_)));
        if worker.is_timeline_open && is_visible {
            let iteration = i64::from(worker.iteration) - i64::from(self.first_measured(index));
            let record = OperationRecord { iteration, kind, worker: index, chunk: 0, start, end };
            self.trace.operations.push(record);
        }
    }
}

impl<'a> Executor<'a> {
    /// Opens the persistent connections of the job; returns their number.
    pub fn open(&mut self, network: &mut dyn Network) -> usize {
        if let Some(served) = &self.served {
            return served.plan.open(self.stream, network);
        }
        let open = |(stream, communicator): (u32, &Communicator)| communicator.open(stream, network);
        (self.stream..).zip(&self.job.communicators).map(open).sum()
    }

    /// Begins the first iteration: transfers without dependencies are ready.
    pub fn begin(&mut self, now: Time) -> Result<(), TooShort> {
        if self.served.is_some() {
            if self.limits.duration.is_some_and(|duration| now >= duration) || self.wanted_count() == Some(0) {
                return Err(TooShort);
            }
            (0..self.streams.workers.len() as u32).for_each(|worker| self.begin_iteration(worker, now));
            return Ok(());
        }
        for transfer in 0..self.job.dag.transfers.len() as u32 {
            if self.replicas.waits.is_ready(0, self.job.dag.transfer_op(transfer)) {
                self.on_transfer_ready(transfer, 0, now);
            }
        }
        for worker in 0..self.streams.workers.len() as u32 {
            self.streams.workers[worker as usize].reached_at = now;
            self.on_reached(worker, now);
        }
        Ok(())
    }

    /// Handles all events at `now` outside the network, then sends; returns whether needed iterations remain. An oracle
    /// reads `background`.
    pub fn settle(
        &mut self,
        now: Time,
        network: &mut dyn Network,
        background: &[BackgroundFlows<'_>],
    ) -> Result<bool, TooShort> {
        loop {
            for queue in 0..self.queues.len() {
                while let Some(ended) = self.queues[queue].settle(now, network, &mut self.replicas.records) {
                    self.on_chunk_ended(queue, ended, now);
                }
            }
            while let Some(worker) = self.streams.next_worker(now) {
                while self.finish_op(worker, now) && self.start_op(worker, now)? {}
            }
            self.send(now, network, background);
            // A released worker may have ops or transfers that start at once.
            if self.served.is_none() {
                return Ok(self.unfinished_count > 0);
            }
            if !self.begin_released(now) {
                return Ok(self.served.as_ref().is_some_and(|served| served.is_active()));
            }
        }
    }

    /// Lets every queue send, and adapts the speed of compute beside transfers.
    fn send(&mut self, now: Time, network: &mut dyn Network, background: &[BackgroundFlows<'_>]) {
        for index in 0..self.queues.len() {
            let queue = &mut self.queues[index];
            if !queue.may_send() {
                continue;
            }
            let was_sending = queue.is_sending();
            let around = around(self.job, &self.streams, &self.ranks, (self.stream, index), now);
            queue.send(&around, network, background, &mut self.replicas.records);
            if queue.is_sending() != was_sending && self.streams.can_be_slowed() {
                self.streams.slow(&self.job.communicators[index].classes, true);
            }
        }
        if self.streams.can_be_slowed() {
            self.streams.change_speed(now);
        }
        if let Some(served) = &mut self.served {
            served.send(now, self.stream, network);
        }
    }

    /// Handles the end of a flow.
    pub fn on_completion(&mut self, now: Time, completion: Completion, network: &mut dyn Network) {
        if let Some(served) = &mut self.served {
            let (worker, ended) = served.channels.on_completion(now, completion, &served.plan);
            self.trace.event_count += 1;
            return self.on_channel_ended(worker, ended, now);
        }
        let queue = (completion.stream - self.stream) as usize;
        let ended = self.queues[queue].on_completion(now, completion, network, &mut self.replicas.records);
        if let Some(ended) = ended {
            self.on_chunk_ended(queue, ended, now);
        }
    }

    /// Time of the next event outside the network.
    pub fn wakes_at(&self) -> Option<Time> {
        let mut at = self.streams.next_end().map_or(Time::MAX, |(end, _)| end);
        for queue in &self.queues {
            at = at.min(queue.wakes_at(&self.job.dag, &self.streams));
        }
        if let Some(served) = &self.served {
            at = at.min(served.wakes_at().unwrap_or(Time::MAX));
        }
        Some(at).filter(|&at| at < Time::MAX)
    }

    /// Number of ops and transfers that wait: in the iteration of the first worker, or with parameter servers in all
    /// workers.
    pub fn waiting_ops(&self) -> usize {
        match &self.served {
            None => self.replicas.waits.missing_count(self.streams.workers[0].slot),
            Some(served) => served.waiting_ops(),
        }
    }

    /// Completed share of the iterations, if their number is limited.
    pub fn progress(&self) -> Option<f64> {
        if let Some(served) = &self.served {
            return self.wanted_count().map(|wanted| served.measured_count() as f64 / wanted as f64);
        }
        let worker = &self.streams.workers[0];
        let within = f64::from(worker.next_op - worker.program.ops.start) / worker.program.ops.len() as f64;
        let iteration = f64::from(worker.iteration) + within;
        self.job.iteration_limit.map(|limit| iteration / f64::from(limit + self.trace.warmup_count))
    }

    /// The record of the job. An iteration counts when all workers have completed it. If the run was cut off, all
    /// transfers of the iteration must have arrived too: without a barrier they may arrive later.
    pub fn into_done(self, is_cut_off: bool) -> Done<'a> {
        let extra_count = self.extra_count();
        let Self { job, streams, replicas, other_replicas, served, mut trace, .. } = self;
        trace.unmeasured = Unmeasured {
            before: served.as_ref().map_or(trace.warmup_count - own_warmup_count(job), |served| served.most_before()),
            after: extra_count,
        };
        trace.transfers = once(replicas).chain(other_replicas).map(|replicas| replicas.records).collect();
        if let Some(served) = served {
            let (record, plan) = served.into_record(job.iteration_limit);
            (trace.served, job.served) = (Some(record), Some(plan));
        }
        let mut count = streams.workers.iter().map(|worker| worker.measured.len()).min().unwrap_or(0);
        if is_cut_off && trace.served.is_none() {
            let ended = trace.transfers.iter().map(|records| records.ended_count(trace.warmup_count, count));
            count = ended.min().unwrap_or(count);
        }
        let measured = |mut measured: Vec<IterationRecord>| {
            measured.truncate(count);
            measured
        };
        let workers = streams.workers.iter();
        trace.last_passes = workers
            .map(|worker| worker.measured.get(count).copied().or(worker.last_pass).unwrap_or(worker.current))
            .collect();
        trace.workers = streams.workers.into_iter().map(|worker| measured(worker.measured)).collect();
        Done { job, record: trace }
    }
}

/// Warm-up iterations that a job runs regardless of other jobs: see the header of [`run`](super).
fn own_warmup_count(job: &Job) -> u32 {
    u32::from(job.manner.measured_from == Pass::Forward)
}

/// The state that the queue of communicator `index` reads; `first` is the stream of the job's first communicator.
#[inline]
fn around<'b>(
    job: &'b Job,
    streams: &'b Streams,
    ranks: &'b [u32],
    (first, index): (u32, usize),
    now: Time,
) -> Around<'b> {
    Around { communicator: &job.communicators[index], stream: first + index as u32, dag: &job.dag, streams, ranks, now }
}
