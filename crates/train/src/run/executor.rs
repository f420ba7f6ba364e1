//! Executes a job whose ranks communicate by collectives: its op graph runs on compute streams, send queues and a
//! network.

use super::execution::{Done, Executor, RunContext, TooShort};
use super::queue::{Ended, QueueContext, SendQueue};
use super::record::{IterationRecord, JobRecord, OperationRecord, Records, Unmeasured};
use super::streams::{OpEnd, Streams};
use super::waits::{Waits, slot};
use crate::bands::BandPolicy;
use crate::communicator::{self, Communicator};
use crate::dag::{DagOp, OpKind};
use crate::job::{CollectiveJob, Pass};
use gradtide_net::{Completion, Network, Time};

/// A job in execution.
pub struct CollectiveExecutor<'a, 'p> {
    job: &'a mut CollectiveJob,
    /// Stream of the first communicator's flows; the streams of the other communicators follow.
    stream: u32,
    context: RunContext,
    /// Open dependencies of ops.
    waits: Waits,
    streams: Streams,
    /// Send queue of each communicator.
    queues: Vec<SendQueue<'p>>,
    /// Send priority of each transfer; the lowest number is sent first.
    priorities: Vec<u32>,
    /// Whether any scheduler draws a new order in every iteration.
    changes_priorities: bool,
    /// For each program, the transfers that its first op reads. Without the barrier, the op would wait for them only.
    read_at_start: Vec<Vec<u32>>,
    /// Number of iterations that at least one worker has begun.
    begun_count: u32,
    /// Iteration whose first pass ends the measurement. The first worker that reaches the limit sets it for all
    /// workers.
    last_iteration: Option<u32>,
    unfinished_count: usize,
    trace: JobRecord,
}

impl<'a, 'p> CollectiveExecutor<'a, 'p> {
    /// Creates the executor of a job that has not begun. The flows of communicator i use the stream `stream + i`.
    /// `policy` chooses the bands of the first communicator.
    pub fn new(
        job: &'a mut CollectiveJob,
        stream: u32,
        context: RunContext,
        mut policy: Option<Box<dyn BandPolicy + 'p>>,
    ) -> Self {
        let streams = Streams::new(job);
        let mut priorities = Vec::new();
        communicator::rank(&job.dag, &mut job.communicators, |_| true, &mut priorities);
        let at_start = |windows: &crate::caramel::Boundaries| {
            let first = (0..).zip(&windows.windows).filter(|(_, window)| window.read == Time::ZERO);
            first.map(|(transfer, _)| transfer).collect()
        };
        let gradients = job.gradients().map_or(&[][..], |gradients| &gradients.without_barrier);
        let mut transfers = Records::new(job.dag.transfers.len());
        transfers.grow(1);
        Self {
            waits: Waits::new(&job.dag, streams.workers.len()),
            queues: job.communicators.iter().map(|communicator| SendQueue::new(communicator, policy.take())).collect(),
            changes_priorities: job.communicators.iter().any(|communicator| !communicator.scheduler.is_fixed()),
            read_at_start: gradients.iter().map(at_start).collect(),
            stream,
            context,
            begun_count: 0,
            last_iteration: None,
            unfinished_count: streams.workers.len(),
            streams,
            priorities,
            trace: JobRecord { warmup_count: own_warmup_count(job), transfers, ..JobRecord::default() },
            job,
        }
    }

    /// Starts a worker's next op if its dependencies are complete. Returns `false` if the op must wait or the worker is
    /// finished.
    fn start_op(&mut self, index: u32, now: Time) -> Result<bool, TooShort> {
        let worker = &self.streams.workers[index as usize];
        let (op, reached_at, is_first) = (worker.next_op, worker.reached_at, worker.next_op == worker.first_op);
        if !self.waits.is_ready(worker.slot, op) {
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
                if !self.context.is_shared {
                    return Ok(false);
                }
            }
            if worker.iteration >= self.trace.warmup_count + self.context.limits.timeline_iterations {
                worker.is_timeline_open = false;
            }
        }
        self.streams.begin(index, &self.job.dag.ops[op as usize], now);
        Ok(true)
    }

    /// Adds a worker's stall, from the time at which the worker reached its next op until now, to its record.
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

    /// Returns the part of a worker's stall that is due to slower workers. A transfer is ready when the slowest worker
    /// has computed it. This part of the stall therefore ends when all transfers of which the next op is the first user
    /// were ready. If none of these transfers ends now, the op waited for an op of another worker, and the whole stall
    /// counts.
    fn straggler_wait(&self, index: u32, now: Time) -> Time {
        let worker = &self.streams.workers[index as usize];
        let (mut ready, mut has_ended) = (Time::ZERO, false);
        for neighbour in self.waits.first_uses(worker.next_op) {
            if let Some(iteration) = worker.iteration.checked_sub(u32::from(neighbour.is_of_other)) {
                let record = self.trace.transfers.get(iteration, neighbour.index);
                ready = ready.max(record.ready);
                has_ended |= record.end == now;
            }
        }
        if has_ended { ready } else { now }.saturating_since(worker.reached_at)
    }

    /// Ends the current iteration of a worker and begins the next one, at the start of the measured pass.
    fn on_iteration_begins(&mut self, index: u32, now: Time) -> Result<(), TooShort> {
        let worker = &mut self.streams.workers[index as usize];
        let is_first = worker.iteration >= self.begun_count;
        self.begun_count = self.begun_count.max(worker.iteration + 1);
        if is_first && now < self.context.last_start {
            let later = (worker.iteration + 1).saturating_sub(self.trace.warmup_count);
            self.trace.warmup_count += later;
            // A transfer of the iteration may have ended before the iteration's first op begins.
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
        let is_over = self.context.is_over(now);
        if measured_count == 0 {
            worker.is_timeline_open = self.context.limits.timeline_iterations > 0;
            let too_short = is_first && is_over;
            return if too_short { Err(TooShort) } else { Ok(()) };
        }
        if is_first && !is_extra && (is_over || self.job.iteration_limit.is_some_and(|limit| measured_count >= limit)) {
            self.last_iteration = Some(worker.iteration);
        }
        worker.is_last_pass = self.last_iteration == Some(worker.iteration);
        Ok(())
    }

    /// Returns the stall that the first op would have had without the barrier: until the transfers that it reads have
    /// ended.
    fn wait_without_barrier(&self, index: u32) -> Time {
        let worker = &self.streams.workers[index as usize];
        let Some(before) = worker.iteration.checked_sub(1) else { return Time::ZERO };
        let programs = &self.read_at_start;
        let first = &programs[if programs.len() > 1 { index as usize } else { 0 }];
        let records = &self.trace.transfers;
        let wait = |&transfer: &u32| records.get(before, transfer).end.saturating_since(worker.reached_at);
        first.iter().map(wait).max().unwrap_or(Time::ZERO)
    }

    /// Ends a worker's op if it ends now; returns `false` if it continues.
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
        if self.waits.waiting_count(op) > 0 {
            // A band policy reads this time when a transfer becomes ready.
            self.streams.workers[index as usize].last_output_at = now;
            self.release((op, slot), iteration, now);
        }
        if is_last {
            self.on_program_ends(index);
        }
        self.on_reached(index, now);
        true
    }

    /// Resolves the dependencies on a finished op or transfer, and queues the transfers that have become ready.
    fn release(&mut self, (op, slot): (u32, usize), iteration: u32, now: Time) {
        for place in 0..self.waits.waiting_count(op) {
            let (neighbour, is_ready) = self.waits.release(op, slot, place);
            match neighbour.index.checked_sub(self.job.dag.compute_count) {
                None => self.streams.must_recheck = true,
                Some(transfer) if is_ready => {
                    self.on_transfer_ready(transfer, iteration + u32::from(neighbour.is_of_other), now);
                }
                Some(_) => {}
            }
        }
    }

    fn on_program_ends(&mut self, index: u32) {
        let worker = &mut self.streams.workers[index as usize];
        let slot = worker.slot;
        worker.begin_next();
        let iteration = worker.iteration;
        self.trace.transfers.grow(iteration + 1);
        if self.waits.on_program_end(slot) && self.changes_priorities {
            let changes = |scheduler: &dyn crate::schedule::Scheduler| !scheduler.is_fixed();
            communicator::rank(&self.job.dag, &mut self.job.communicators, changes, &mut self.priorities);
        }
        assert!(self.waits.can_begin(iteration), "no rank class is two iterations ahead of another");
    }

    /// Records that a worker's compute has reached its next op, as the time at which this op needs its transfers.
    fn on_reached(&mut self, index: u32, now: Time) {
        let worker = &self.streams.workers[index as usize];
        for neighbour in self.waits.first_uses(worker.next_op) {
            if let Some(iteration) = worker.iteration.checked_sub(u32::from(neighbour.is_of_other)) {
                let record = self.trace.transfers.of(iteration, neighbour.index);
                (record.needed, record.is_needed) = (now, true);
            }
        }
    }

    fn on_transfer_ready(&mut self, transfer: u32, iteration: u32, now: Time) {
        let record = self.trace.transfers.of(iteration, transfer);
        record.ready = now;
        record.priority = self.priorities[transfer as usize];
        let index = self.job.dag.transfers[transfer as usize].communicator as usize;
        let context = queue_context(self.job, &self.streams, &self.priorities, (self.stream, index), now);
        self.queues[index].on_ready(transfer, iteration, &context);
    }

    fn on_chunk_ended(&mut self, queue: usize, ended: Ended, now: Time) {
        let Ended { transfer, iteration, chunk, began } = ended;
        if self.streams.can_be_slowed() && !self.queues[queue].is_sending() {
            self.streams.slow(&self.job.communicators[queue].classes, false);
        }
        self.trace.event_count += 1;
        self.record_chunk(ended, now);
        let record = self.trace.transfers.of(iteration, transfer);
        if chunk == 0 {
            record.start = began;
        }
        record.arrived_count += 1;
        if u64::from(record.arrived_count) == self.job.communicators[queue].chunk_count(transfer) {
            record.end = now;
            self.streams.must_recheck = true;
            self.release((self.job.dag.transfer_op(transfer), slot(iteration)), iteration, now);
            self.waits.on_end(slot(iteration));
        }
    }

    /// Records a chunk for the timeline.
    fn record_chunk(&mut self, ended: Ended, now: Time) {
        let Ended { transfer, iteration, chunk, began } = ended;
        let first = self.trace.warmup_count;
        let is_wanted = self.last_iteration.is_none_or(|last| iteration <= last);
        if is_wanted && iteration < first + self.context.limits.timeline_iterations {
            let iteration = i64::from(iteration) - i64::from(first);
            let kind = OpKind::Transfer(transfer);
            self.trace.operations.push(OperationRecord { iteration, kind, worker: 0, chunk, start: began, end: now });
        }
    }

    /// Records a compute op for the timeline, unless the op is an update of zero length.
    fn record(&mut self, index: u32, kind: OpKind, start: Time, end: Time) {
        let worker = &self.streams.workers[index as usize];
        let is_visible = start < end || !matches!(kind, OpKind::Update(_));
        if worker.is_timeline_open && is_visible {
            let iteration = i64::from(worker.iteration) - i64::from(self.trace.warmup_count);
            let record = OperationRecord { iteration, kind, worker: index, chunk: 0, start, end };
            self.trace.operations.push(record);
        }
    }
}

impl<'a> Executor<'a> for CollectiveExecutor<'a, '_> {
    fn name(&self) -> &str {
        &self.job.name
    }

    fn start(&self) -> Time {
        self.job.start
    }

    fn stream_count(&self) -> usize {
        self.job.stream_count()
    }

    fn open(&mut self, network: &mut dyn Network) -> usize {
        let open = |(stream, communicator): (u32, &Communicator)| communicator.open(stream, network);
        (self.stream..).zip(&self.job.communicators).map(open).sum()
    }

    /// Queues the transfers without dependencies, which are ready from the start.
    fn begin(&mut self, now: Time) -> Result<(), TooShort> {
        for transfer in 0..self.job.dag.transfers.len() as u32 {
            if self.waits.is_ready(0, self.job.dag.transfer_op(transfer)) {
                self.on_transfer_ready(transfer, 0, now);
            }
        }
        for worker in 0..self.streams.workers.len() as u32 {
            self.streams.workers[worker as usize].reached_at = now;
            self.on_reached(worker, now);
        }
        Ok(())
    }

    fn settle(&mut self, now: Time, network: &mut dyn Network) -> Result<bool, TooShort> {
        for queue in 0..self.queues.len() {
            while let Some(ended) = self.queues[queue].settle(now, network, &mut self.trace.transfers) {
                self.on_chunk_ended(queue, ended, now);
            }
        }
        while let Some(worker) = self.streams.next_worker(now) {
            while self.finish_op(worker, now) && self.start_op(worker, now)? {}
        }
        self.send(now, network);
        Ok(self.unfinished_count > 0)
    }

    fn on_completion(&mut self, now: Time, completion: Completion, network: &mut dyn Network) {
        let queue = (completion.stream - self.stream) as usize;
        let ended = self.queues[queue].on_completion(now, completion, network, &mut self.trace.transfers);
        if let Some(ended) = ended {
            self.on_chunk_ended(queue, ended, now);
        }
    }

    fn wakes_at(&self) -> Option<Time> {
        let mut at = self.streams.next_end().map_or(Time::MAX, |(end, _)| end);
        for queue in &self.queues {
            at = at.min(queue.wakes_at(&self.job.dag, &self.streams));
        }
        Some(at).filter(|&at| at < Time::MAX)
    }

    fn extra_count(&self) -> u32 {
        self.last_iteration.map_or(0, |last| self.begun_count - 1 - last)
    }

    /// Returns the number of waiting ops in the iteration of the first worker.
    fn waiting_ops(&self) -> usize {
        self.waits.missing_count(self.streams.workers[0].slot)
    }

    fn progress(&self) -> Option<f64> {
        let worker = &self.streams.workers[0];
        let within = f64::from(worker.next_op - worker.program.ops.start) / worker.program.ops.len() as f64;
        let iteration = f64::from(worker.iteration) + within;
        self.job.iteration_limit.map(|limit| iteration / f64::from(limit + self.trace.warmup_count))
    }

    /// Truncates the records to complete iterations. An iteration is complete when all workers have ended it. If the
    /// run was cut off, all transfers of the iteration must have arrived as well, because without a barrier they may
    /// arrive after its end.
    fn into_done(self: Box<Self>) -> Done<'a> {
        let (after, is_cut_off) = (self.extra_count(), self.unfinished_count > 0);
        let Self { job, streams, mut trace, .. } = *self;
        trace.unmeasured = Unmeasured { before: trace.warmup_count - own_warmup_count(job), after };
        let mut count = streams.workers.iter().map(|worker| worker.measured.len()).min().unwrap_or(0);
        if is_cut_off {
            count = trace.transfers.ended_count(trace.warmup_count, count);
        }
        let workers = streams.workers.iter();
        trace.last_passes = workers
            .map(|worker| worker.measured.get(count).copied().or(worker.last_pass).unwrap_or(worker.current))
            .collect();
        let measured = |mut measured: Vec<IterationRecord>| {
            measured.truncate(count);
            measured
        };
        trace.workers = streams.workers.into_iter().map(|worker| measured(worker.measured)).collect();
        Done::Collective(job, trace)
    }
}

impl CollectiveExecutor<'_, '_> {
    /// Lets every queue send, and adapts the speed of compute that overlaps with transfers.
    fn send(&mut self, now: Time, network: &mut dyn Network) {
        for index in 0..self.queues.len() {
            let queue = &mut self.queues[index];
            if !queue.may_send() {
                continue;
            }
            let was_sending = queue.is_sending();
            let context = queue_context(self.job, &self.streams, &self.priorities, (self.stream, index), now);
            queue.send(&context, network, &mut self.trace.transfers);
            if queue.is_sending() != was_sending && self.streams.can_be_slowed() {
                self.streams.slow(&self.job.communicators[index].classes, true);
            }
        }
        if self.streams.can_be_slowed() {
            self.streams.change_speed(now);
        }
    }
}

/// Returns the number of warm-up iterations that a job runs even without other jobs; see the header of [`run`](super).
fn own_warmup_count(job: &CollectiveJob) -> u32 {
    u32::from(job.mode.measured_from == Pass::Forward)
}

/// Returns the state that the queue of communicator `index` reads. `first` is the stream of the job's first
/// communicator.
#[inline]
fn queue_context<'b>(
    job: &'b CollectiveJob,
    streams: &'b Streams,
    priorities: &'b [u32],
    (first, index): (u32, usize),
    now: Time,
) -> QueueContext<'b> {
    QueueContext {
        communicator: &job.communicators[index],
        stream: first + index as u32,
        dag: &job.dag,
        streams,
        priorities,
        now,
    }
}
