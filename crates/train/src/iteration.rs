//! The event loop that joins compute with a network.
//!
//! Every job has one compute stream, which executes its ops in program order, and one transmission queue, which has
//! at most one chunk on the network at a time and picks the most urgent ready bucket whenever that chunk is through.
//! All workers of a job do the same at the same time, so one stands for all.
//!
//! At one instant everything that ends is taken in, and every op of zero length is done, before the queue picks:
//! a choice at time t sees every bucket that became ready at or before t.
//!
//! A job is measured from the start of one pass to the start of the same pass of the next iteration, and begins with
//! it. From forward to forward, the first iteration starts with all parameters present and can be shorter than the
//! network allows: it is run and not measured, and after the last measured iteration one more forward pass runs,
//! because it needs the transfers. From backward to backward, every iteration starts with an idle network and all
//! parameters present: all are measured.

use crate::collective::Aggregation;
use crate::dag::{Edge, Edges, Op, OpId, OpKind};
use crate::job::{Job, Pass};
use crate::traffic::Neighbour;
use gradtide_net::{Completion, Network, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use thiserror::Error;

/// What a job did.
#[derive(Debug, Default)]
pub struct Trace {
    /// Measured iterations, in order.
    pub iterations: Vec<IterationRecord>,
    /// Iterations run before the first measured one.
    pub warmup_count: u32,
    /// One block of `buckets` records per iteration, warm-up iterations first.
    pub transfers: Vec<TransferRecord>,
    /// Ops of the first measured iterations, as they ended.
    pub operations: Vec<OperationRecord>,
    /// Compute ops and chunks that ended.
    pub event_count: u64,
}

/// One measured iteration: from the start of a pass to the start of the next one of its kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct IterationRecord {
    /// Start of the pass that it is measured from.
    pub start: Time,
    /// To the start of the next one.
    pub time: Time,
    /// Compute stood still for a gradient that it needed next.
    pub exposed: Time,
    /// Compute stood still only because the barrier asked for gradients that it did not need yet.
    pub barrier: Time,
    /// What overlap with transfers added to the compute time.
    pub slowdown: Time,
}

/// One bucket of one iteration.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransferRecord {
    /// Gradient of the lowest layer computed.
    pub ready: Time,
    /// First chunk began.
    pub start: Time,
    /// Last chunk arrived.
    pub end: Time,
    /// Compute asked for the bucket.
    pub needed: Time,
    /// Time for which it held the network.
    pub busy: Time,
    /// Place in the order.
    pub rank: u32,
}

/// One op or chunk, for timelines.
#[derive(Clone, Copy, Debug)]
pub struct OperationRecord {
    /// Measured iteration; -1 for the one before the first.
    pub iteration: i64,
    /// What it did.
    pub kind: OpKind,
    /// Which chunk of a transfer.
    pub chunk: u64,
    /// Start; for a barrier, when compute reached it.
    pub start: Time,
    /// End.
    pub end: Time,
}

/// When to stop, and what to keep.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// No further iteration begins at or after this time.
    pub duration: Option<Time>,
    /// Whether the duration also ends what is under way then.
    pub ends_at_duration: bool,
    /// Measured iterations whose ops are kept one by one.
    pub timeline_iterations: u32,
}

/// The run cannot go on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum IterationError {
    /// Nothing can happen any more, yet a job is not done.
    #[error("stalled at {at} us: job {job} waits for {waiting_ops} ops that nothing can finish")]
    Stalled {
        /// When.
        at: Time,
        /// Index of the job.
        job: usize,
        /// Number of ops that wait.
        waiting_ops: usize,
    },
    /// The duration of the run ended before the first measured iteration.
    #[error("job {job} completes no measured iteration within the run's duration; make it longer")]
    TooShort {
        /// Index of the job.
        job: usize,
    },
    /// The observer asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Rounds of the loop between two calls of the observer, where the engine does not pause of itself: about 5 ms.
const OBSERVE_EVERY: u64 = 1 << 16;

/// Runs all jobs and neighbours to their ends. The stream of a job is its index; those of neighbours follow. `observe` is told now and then what share of the iterations is done, and stops the
/// run by answering `false`.
///
/// # Errors
/// See [`IterationError`].
pub fn run(
    jobs: &mut [Job],
    neighbours: &mut [Neighbour<'_>],
    network: &mut dyn Network,
    limits: Limits,
    observe: &mut dyn FnMut(f64) -> bool,
) -> Result<Vec<Trace>, IterationError> {
    let mut runners: Vec<Runner<'_>> =
        jobs.iter_mut().enumerate().map(|(stream, job)| Runner::new(job, stream as u32, limits)).collect();
    let runner_count = runners.len();
    let mut done: Vec<Completion> = Vec::new();
    for round in 1_u64.. {
        let now = network.now();
        for runner in &mut runners {
            runner.settle(now, network)?;
        }
        for neighbour in neighbours.iter_mut() {
            neighbour.settle(now, network);
        }
        let is_over = limits.ends_at_duration && limits.duration.is_some_and(|duration| now >= duration);
        let is_finished = runners.iter().all(|runner| runner.finished) && neighbours.iter().all(Neighbour::is_finished);
        if is_over || is_finished {
            break;
        }
        let until = (runners.iter().filter_map(Runner::wakes_at))
            .chain(neighbours.iter().filter_map(Neighbour::wakes_at))
            .chain(limits.duration.filter(|_| limits.ends_at_duration))
            .min()
            .unwrap_or(Time::MAX);
        network.advance(until, &mut done);
        let pauses = done.is_empty() && network.now() < until;
        if done.is_empty() && !pauses && until == Time::MAX {
            let (job, waiting_ops) = (runners.iter().enumerate())
                .find(|(_, runner)| !runner.finished)
                .map_or((0, 0), |(job, runner)| (job, runner.waiting_ops()));
            return Err(IterationError::Stalled { at: now, job, waiting_ops });
        }
        for completion in done.drain(..) {
            let (now, stream) = (network.now(), completion.stream as usize);
            match runners.get_mut(stream) {
                Some(runner) => runner.on_completion(now, completion, network),
                None => neighbours[stream - runner_count].on_completion(now, completion),
            }
        }
        if pauses || round.is_multiple_of(OBSERVE_EVERY) {
            let progress = runners.iter().map(|runner| runner.progress(network.now())).fold(1.0, f64::min);
            if !observe(progress) {
                return Err(IterationError::Interrupted);
            }
        }
    }
    match runners.iter().position(|runner| runner.trace.iterations.is_empty()) {
        Some(job) => Err(IterationError::TooShort { job }),
        None => Ok(runners.into_iter().map(|runner| runner.trace).collect()),
    }
}

/// One job under way.
struct Runner<'a> {
    job: &'a mut Job,
    stream: u32,
    limits: Limits,
    /// Transfers that each compute op is the first to use.
    first_uses: Edges,
    indegrees: Vec<u32>,
    /// Ops that each op still waits for: `missing[k % 2]` in iteration k. Two suffice, because a transfer is needed
    /// by the forward pass of the next iteration, before that iteration's first transfer can be ready.
    missing: [Vec<u32>; 2],
    /// Iteration of the compute stream.
    iteration: u32,
    /// The op at which an iteration is measured to begin.
    first_op: OpId,
    next_op: OpId,
    /// When compute came to `next_op`.
    reached_at: Time,
    running: Option<Running>,
    /// Iteration of every bucket that is ready or under way.
    sending_iteration: u32,
    queue: BinaryHeap<Reverse<Ready>>,
    ready_count: u64,
    sending: Option<Sending>,
    ranks: Vec<u32>,
    /// The iteration being measured, from one start of forward to the next.
    current: IterationRecord,
    /// Whether this is the forward pass after the last measured iteration.
    is_last_pass: bool,
    finished: bool,
    /// Connections that are not open yet; `None` before the start of the job.
    opening_count: Option<usize>,
    /// Whether compute ops are kept: from the first measured forward pass to the one after the last wanted.
    is_timeline_open: bool,
    trace: Trace,
}

/// A compute op under way.
#[derive(Clone, Copy)]
struct Running {
    started: Time,
    end: Time,
    /// Work left at `since`.
    left: Time,
    since: Time,
    is_slow: bool,
}

/// A bucket in the transmission queue. Ordered as the queue sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ready {
    rank: u32,
    /// Place among all buckets by when they became ready.
    sequence: u64,
    bucket: u32,
    /// Chunks sent before.
    chunk: u64,
}

/// The chunk that the queue has picked.
#[derive(Debug)]
struct Sending {
    ready: Ready,
    /// When its first flow starts.
    begins_at: Time,
    /// Its flows, once they have started.
    aggregation: Option<Aggregation>,
}

impl<'a> Runner<'a> {
    fn new(job: &'a mut Job, stream: u32, limits: Limits) -> Self {
        let dag = &job.dag;
        let within = dag.within.indegrees();
        let indegrees: Vec<u32> = within.iter().zip(dag.across.indegrees()).map(|(a, b)| a + b).collect();
        let first_uses: Vec<Edge> = (0..dag.transfers.len() as u32)
            .filter_map(|bucket| dag.across.from(dag.transfer_op(bucket)).iter().min().map(|&op| (op, bucket)))
            .collect();
        let pass = match job.manner.measured_from {
            Pass::Forward => OpKind::Forward(0),
            Pass::Backward => OpKind::Backward(dag.layer_count - 1),
        };
        let first_op = dag.ops.iter().position(|op| op.kind == pass).expect("a model has layers") as OpId;
        let mut ranks = Vec::new();
        job.scheduler.ranks(&job.dag, &mut ranks);
        Self {
            first_uses: Edges::new(job.dag.ops.len(), &first_uses),
            missing: [within, indegrees.clone()],
            indegrees,
            reached_at: job.start,
            stream,
            limits,
            iteration: 0,
            first_op,
            next_op: if job.manner.measured_from == Pass::Forward { 0 } else { first_op },
            running: None,
            sending_iteration: 0,
            queue: BinaryHeap::new(),
            ready_count: 0,
            sending: None,
            ranks,
            current: IterationRecord::default(),
            is_last_pass: false,
            finished: false,
            opening_count: None,
            is_timeline_open: false,
            trace: Trace {
                warmup_count: u32::from(job.manner.measured_from == Pass::Forward),
                transfers: vec![TransferRecord::default(); job.dag.transfers.len()],
                ..Trace::default()
            },
            job,
        }
    }

    /// When compute will do something of its own accord.
    fn wakes_at(&self) -> Option<Time> {
        let begins_at =
            self.sending.as_ref().filter(|sending| sending.aggregation.is_none()).map(|sending| sending.begins_at);
        let start = self.opening_count.is_none().then_some(self.job.start);
        self.running.map(|running| running.end).into_iter().chain(begins_at).chain(start).min()
    }

    /// Does everything that happens at `now` without the network, then lets the queue pick.
    fn settle(&mut self, now: Time, network: &mut dyn Network) -> Result<(), IterationError> {
        if self.finished || now < self.job.start {
            return Ok(());
        }
        if self.opening_count.is_none() {
            self.opening_count = Some(self.job.open(self.stream, network));
        }
        if self.opening_count != Some(0) {
            return Ok(());
        }
        while self.finish_op(now) && self.start_op(now)? {}
        if self.sending.is_none() {
            let begins_at = now + self.job.delay_before_flows();
            self.sending = self.queue.pop().map(|Reverse(ready)| Sending { ready, begins_at, aggregation: None });
        }
        if let Some(sending) = &mut self.sending
            && sending.aggregation.is_none()
            && sending.begins_at <= now
        {
            let Ready { bucket, chunk, .. } = sending.ready;
            sending.aggregation = Some(self.job.aggregate(bucket, chunk, self.stream, network));
        }
        self.change_speed(now);
        Ok(())
    }

    /// Ends the running op if it ends now; `false` if it goes on.
    fn finish_op(&mut self, now: Time) -> bool {
        match self.running {
            Some(running) if running.end > now => false,
            Some(running) => {
                self.running = None;
                self.on_computed(now, running.started);
                true
            }
            None => true,
        }
    }

    /// Starts the next op if all it waits for is done; `false` if it must wait or the job is finished.
    fn start_op(&mut self, now: Time) -> Result<bool, IterationError> {
        if self.missing[self.iteration as usize % 2][self.next_op as usize] > 0 {
            return Ok(false);
        }
        let Op { kind, cost } = self.job.dag.ops[self.next_op as usize];
        let wait = now - self.reached_at;
        if wait > Time::ZERO {
            let exposed = if kind == OpKind::Barrier { self.wait_without_barrier() } else { wait };
            self.current.exposed += exposed;
            self.current.barrier += wait - exposed;
        }
        if kind == OpKind::Barrier {
            self.record(kind, self.reached_at, now);
        }
        if self.next_op == self.first_op {
            self.on_iteration_begins(now)?;
        }
        if let OpKind::Backward(_) = kind {
            if self.is_last_pass {
                self.finished = true;
                return Ok(false);
            }
            if self.iteration >= self.trace.warmup_count + self.limits.timeline_iterations {
                self.is_timeline_open = false;
            }
        }
        let is_slow = self.sending.is_some();
        let end = now + self.stretched(cost, is_slow);
        self.running = Some(Running { started: now, end, left: cost, since: now, is_slow });
        Ok(true)
    }

    /// The pass that iterations are measured from begins.
    fn on_iteration_begins(&mut self, now: Time) -> Result<(), IterationError> {
        let measured_count = self.iteration.checked_sub(self.trace.warmup_count);
        if measured_count.is_some_and(|count| count > 0) {
            self.current.time = now - self.current.start;
            self.trace.iterations.push(self.current);
        }
        self.current = IterationRecord { start: now, ..IterationRecord::default() };
        let Some(measured_count) = measured_count else { return Ok(()) };
        let is_over = self.limits.duration.is_some_and(|duration| now >= duration);
        if measured_count == 0 {
            self.is_timeline_open = self.limits.timeline_iterations > 0;
            return if is_over { Err(IterationError::TooShort { job: self.stream as usize }) } else { Ok(()) };
        }
        self.is_last_pass = is_over || self.job.iteration_limit.is_some_and(|limit| measured_count >= limit);
        Ok(())
    }

    /// How long layer 0 would have had to wait for its own bucket.
    fn wait_without_barrier(&self) -> Time {
        let own = self.job.buckets.iter().position(|bucket| bucket.first_layer() == 0);
        own.map_or(Time::ZERO, |bucket| {
            self.trace.transfers[self.block(self.iteration - 1) + bucket].end.saturating_since(self.reached_at)
        })
    }

    fn on_computed(&mut self, now: Time, started: Time) {
        let (op, parity) = (self.next_op, self.iteration as usize % 2);
        let Op { kind, cost } = self.job.dag.ops[op as usize];
        self.current.slowdown += now - started - cost;
        self.trace.event_count += 1;
        if kind != OpKind::Barrier {
            self.record(kind, started, now);
        }
        let compute_count = self.job.dag.compute_count;
        for index in 0..self.job.dag.within.from(op).len() {
            let target = self.job.dag.within.from(op)[index];
            let missing = &mut self.missing[parity][target as usize];
            *missing -= 1;
            if *missing == 0 && target >= compute_count {
                self.on_bucket_ready(target - compute_count, now);
            }
        }
        self.next_op += 1;
        if self.next_op == compute_count {
            self.on_program_ends(parity);
        }
        self.reached_at = now;
        if self.iteration > 0 {
            let block = self.block(self.iteration - 1);
            for &bucket in self.first_uses.from(self.next_op) {
                self.trace.transfers[block + bucket as usize].needed = now;
            }
        }
    }

    fn on_program_ends(&mut self, parity: usize) {
        self.next_op = 0;
        self.iteration += 1;
        self.missing[parity].copy_from_slice(&self.indegrees);
        self.trace.transfers.resize(self.block(self.iteration + 1), TransferRecord::default());
        if !self.job.scheduler.is_fixed() {
            self.job.scheduler.ranks(&self.job.dag, &mut self.ranks);
        }
    }

    fn on_bucket_ready(&mut self, bucket: u32, now: Time) {
        debug_assert!(self.sending_iteration == self.iteration || (self.queue.is_empty() && self.sending.is_none()));
        self.sending_iteration = self.iteration;
        let rank = self.ranks[bucket as usize];
        let block = self.block(self.iteration);
        let record = &mut self.trace.transfers[block + bucket as usize];
        record.ready = now;
        record.rank = rank;
        self.queue.push(Reverse(Ready { rank, sequence: self.ready_count, bucket, chunk: 0 }));
        self.ready_count += 1;
    }

    fn on_completion(&mut self, now: Time, completion: Completion, network: &mut dyn Network) {
        if let Some(count @ 1..) = &mut self.opening_count {
            *count -= 1;
            self.reached_at = now;
            return;
        }
        let sending = self.sending.as_mut().expect("the job has a chunk under way");
        let aggregation = sending.aggregation.as_mut().expect("its flows have started");
        if aggregation.on_completion(completion, network) {
            let (ready, began) = (sending.ready, sending.begins_at);
            self.sending = None;
            self.on_chunk_arrived(now, ready, began);
        }
    }

    fn on_chunk_arrived(&mut self, now: Time, sent: Ready, began: Time) {
        self.trace.event_count += 1;
        let block = self.block(self.sending_iteration);
        let record = &mut self.trace.transfers[block + sent.bucket as usize];
        if sent.chunk == 0 {
            record.start = began;
        }
        record.busy += now - began;
        if self.sending_iteration < self.trace.warmup_count + self.limits.timeline_iterations {
            let iteration = i64::from(self.sending_iteration) - i64::from(self.trace.warmup_count);
            let kind = OpKind::Transfer(sent.bucket);
            self.trace.operations.push(OperationRecord { iteration, kind, chunk: sent.chunk, start: began, end: now });
        }
        if sent.chunk + 1 < self.job.chunk_count(sent.bucket) {
            self.queue.push(Reverse(Ready { chunk: sent.chunk + 1, ..sent }));
            return;
        }
        let record = &mut self.trace.transfers[block + sent.bucket as usize];
        record.end = now;
        let parity = (self.sending_iteration as usize + 1) % 2;
        for &target in self.job.dag.across.from(self.job.dag.transfer_op(sent.bucket)) {
            self.missing[parity][target as usize] -= 1;
        }
    }

    /// Compute beside a transfer takes longer; when one begins or ends, the running op's end moves.
    fn change_speed(&mut self, now: Time) {
        let is_slow = self.sending.is_some();
        let Some(running) = self.running.filter(|running| running.is_slow != is_slow) else { return };
        let elapsed = u128::from((now - running.since).ps());
        let worked = match running.is_slow {
            true => (elapsed * 1_000_000 / u128::from(self.job.overlap_slowdown_ppm)) as u64,
            false => elapsed as u64,
        };
        let left = Time::from_ps(running.left.ps().saturating_sub(worked));
        let end = now + self.stretched(left, is_slow);
        self.running = Some(Running { end, left, since: now, is_slow, ..running });
    }

    fn stretched(&self, work: Time, is_slow: bool) -> Time {
        let ppm = self.job.overlap_slowdown_ppm;
        if !is_slow || ppm == 1_000_000 {
            return work;
        }
        Time::from_ps((u128::from(work.ps()) * u128::from(ppm)).div_ceil(1_000_000) as u64)
    }

    /// Keeps a compute op for the timeline; an update that takes no time is not to be seen there.
    fn record(&mut self, kind: OpKind, start: Time, end: Time) {
        let is_visible = start < end || !matches!(kind, OpKind::Update(_));
        if self.is_timeline_open && is_visible {
            let iteration = i64::from(self.iteration) - i64::from(self.trace.warmup_count);
            self.trace.operations.push(OperationRecord { iteration, kind, chunk: 0, start, end });
        }
    }

    /// Index of the first transfer record of an iteration.
    fn block(&self, iteration: u32) -> usize {
        iteration as usize * self.job.buckets.len()
    }

    fn waiting_ops(&self) -> usize {
        self.missing[self.iteration as usize % 2].iter().filter(|&&count| count > 0).count()
    }

    fn progress(&self, now: Time) -> f64 {
        let of_limit = self.job.iteration_limit.map(|limit| f64::from(self.iteration) / (f64::from(limit) + 1.0));
        let of_duration = self.limits.duration.map(|duration| now.ps() as f64 / duration.ps() as f64);
        of_limit.into_iter().chain(of_duration).fold(0.0, f64::max).min(1.0)
    }
}
