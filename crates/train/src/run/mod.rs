//! The event loop that joins compute with a network.
//!
//! Every worker has one compute stream, which executes its ops in program order. Where all workers of a job are alike
//! they do the same at the same time, and one stands for all; workers of an op graph may have programs of their own.
//!
//! Every job has one transmission queue. It has at most one chunk on the network at a time, or as many as its credit
//! says. Whenever a chunk has ended on all workers, the queue picks the most urgent ready bucket. A bucket is ready
//! when all workers have it, and it arrives on all workers at once: the global syncer of the thesis, section 5.2.
//!
//! A schedule may hold a ready bucket back until compute has come to its gate, an offset of compute time that every
//! worker must have passed. While compute stalls, its offset does not advance, so a stall delays all later gates.
//!
//! At one instant the loop first handles everything that ends and every op of zero length. Then the queue picks, so
//! a choice at time t sees every bucket that became ready at or before t.
//!
//! A job is measured from the start of one pass to the start of the same pass of the next iteration, and begins with
//! it. From forward to forward, the first iteration starts with all parameters present and can be shorter than the
//! network allows: it is run and not measured, and after the last measured iteration one more forward pass runs,
//! because it needs the transfers. From backward to backward, every iteration starts with an idle network and all
//! parameters present: all are measured.

use crate::bands::foresight::foresee;
use crate::bands::priority::{Chunk, Milestone, Oracle, Outlook, Workers};
use crate::collective::Aggregation;
use crate::collective::messages::Bands;
use crate::collective::plan::Passage;
use crate::dag::{Dag, DagOp, Edge, Edges, OpId, OpKind, Program};
use crate::job::{AggregationForm, AnyJob, Job, Pass};
use crate::pace::{ONE_PPM, Pace, stretched};
use crate::servers::{self, TooShort};
use crate::traffic::{self, BackgroundFlows};
use gradtide_net::{Bytes, Completion, FlowId, Network, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use thiserror::Error;

/// What a job did.
#[derive(Debug, Default)]
pub struct JobRecord {
    /// Measured iterations of every worker, in order, as many of one as of another; one entry if all are alike.
    pub workers: Vec<Vec<IterationRecord>>,
    /// Iterations run before the first measured one.
    pub warmup_count: u32,
    /// One block of `buckets` records per iteration, warm-up iterations first.
    pub transfers: Vec<TransferRecord>,
    /// Ops of the first measured iterations, as they ended.
    pub operations: Vec<OperationRecord>,
    /// Compute ops and chunks that ended.
    pub event_count: u64,
}

impl JobRecord {
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
    /// Compute stood still for gradients that another worker had not computed yet; a part of the next two.
    pub straggler: Time,
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
    /// Gradient of the lowest layer computed, on all workers.
    pub ready: Time,
    /// First chunk began.
    pub start: Time,
    /// Last chunk arrived.
    pub end: Time,
    /// Compute asked for the bucket, on the last worker.
    pub needed: Time,
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

/// One op or chunk, for timelines.
#[derive(Clone, Copy, Debug)]
pub struct OperationRecord {
    /// Measured iteration; -1 for the one before the first.
    pub iteration: i64,
    /// What it did.
    pub kind: OpKind,
    /// Which worker, for compute; 0 if all are alike.
    pub worker: u32,
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
    #[error("stalled at {at} us: job `{job}` waits for {waiting_ops} ops that nothing can finish")]
    Stalled {
        /// When.
        at: Time,
        /// Key of the job in the scenario.
        job: String,
        /// Number of ops that wait.
        waiting_ops: usize,
    },
    /// The duration of the run ended before the first measured iteration.
    #[error("job `{job}` completes no measured iteration within the run's duration; make it longer")]
    TooShort {
        /// Key of the job in the scenario.
        job: String,
    },
    /// The observer asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Rounds of the loop between two calls of the observer, where the engine does not pause of itself: about 5 ms.
const OBSERVE_EVERY: u64 = 1 << 16;

/// Runs all jobs and background flows to their ends. The stream of a job is its index; [`traffic::stream`] has those of
/// background flows. `observe` is called now and then with the share of the run that is done, and stops the run by
/// returning `false`.
///
/// # Errors
/// See [`IterationError`].
pub fn run(
    jobs: &mut [AnyJob],
    background: &mut [BackgroundFlows<'_>],
    network: &mut dyn Network,
    limits: Limits,
    observe: &mut dyn FnMut(f64) -> bool,
) -> Result<Vec<Did>, IterationError> {
    let mut runners: Vec<AnyRunner<'_>> =
        jobs.iter_mut().zip(0..).map(|(job, stream)| AnyRunner::new(job, stream, limits)).collect();
    let mut done: Vec<Completion> = Vec::new();
    for round in 1_u64.. {
        let now = network.now();
        for runner in &mut runners {
            runner.settle(now, network, background)?;
        }
        for flows in background.iter_mut() {
            flows.settle(now, network);
        }
        let is_over = limits.ends_at_duration && limits.duration.is_some_and(|duration| now >= duration);
        let is_finished =
            runners.iter().all(AnyRunner::is_finished) && background.iter().all(BackgroundFlows::is_finished);
        if is_over || is_finished {
            break;
        }
        let until = (runners.iter().filter_map(AnyRunner::wakes_at))
            .chain(background.iter().filter_map(BackgroundFlows::wakes_at))
            .chain(limits.duration.filter(|_| limits.ends_at_duration))
            .min()
            .unwrap_or(Time::MAX);
        network.advance(until, &mut done);
        let pauses = done.is_empty() && network.now() < until;
        if done.is_empty() && !pauses && until == Time::MAX {
            let (job, waiting_ops) = (runners.iter())
                .find(|runner| !runner.is_finished())
                .map_or_else(Default::default, |runner| (runner.name().to_owned(), runner.waiting_ops()));
            return Err(IterationError::Stalled { at: now, job, waiting_ops });
        }
        for completion in done.drain(..) {
            let now = network.now();
            match traffic::index(completion.stream) {
                Some(index) => background[index].on_completion(now, completion),
                None => runners[completion.stream as usize].on_completion(now, completion, network),
            }
        }
        if (pauses || round.is_multiple_of(OBSERVE_EVERY))
            && !observe(progress(&runners, background, network.now(), limits.duration))
        {
            return Err(IterationError::Interrupted);
        }
    }
    let names: Vec<String> = runners.iter().map(|runner| runner.name().to_owned()).collect();
    let done: Vec<Did> = runners.into_iter().map(AnyRunner::into_trace).collect();
    match done.iter().position(|did| did.iteration_count() == 0) {
        Some(job) => Err(IterationError::TooShort { job: names[job].clone() }),
        None => Ok(done),
    }
}

/// What share of the run is done: of its jobs, the least; without a job, of the flows or of the duration.
fn progress(runners: &[AnyRunner<'_>], background: &[BackgroundFlows<'_>], now: Time, duration: Option<Time>) -> f64 {
    if !runners.is_empty() {
        return runners.iter().map(|runner| runner.progress(now)).fold(1.0, f64::min);
    }
    let of_flows = background.iter().map(BackgroundFlows::progress).fold(1.0, f64::min);
    let of_duration = duration.map_or(0.0, |duration| now.ps() as f64 / duration.ps() as f64);
    of_flows.max(of_duration).min(1.0)
}

/// What a job of either kind did.
#[derive(Debug)]
pub enum Did {
    /// One whose gradients are aggregated in buckets.
    Buckets(JobRecord),
    /// One with parameter servers.
    Servers(servers::ServerJobRecord),
}

impl Did {
    /// Compute ops and transfers that ended.
    pub fn event_count(&self) -> u64 {
        match self {
            Self::Buckets(trace) => trace.event_count,
            Self::Servers(trace) => trace.event_count,
        }
    }

    fn iteration_count(&self) -> usize {
        match self {
            Self::Buckets(trace) => trace.iterations().len(),
            Self::Servers(trace) => trace.iterations().len(),
        }
    }
}

/// A job of either kind under way.
enum AnyRunner<'a> {
    Buckets(Box<JobRunner<'a>>),
    Servers(Box<servers::ServerRunner<'a>>),
}

impl<'a> AnyRunner<'a> {
    fn new(job: &'a mut AnyJob, stream: u32, limits: Limits) -> Self {
        match job {
            AnyJob::Buckets(job) => Self::Buckets(Box::new(JobRunner::new(job, stream, limits))),
            AnyJob::Servers(plan) => Self::Servers(Box::new(servers::ServerRunner::new(
                plan,
                stream,
                limits.duration,
                limits.timeline_iterations,
            ))),
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Buckets(runner) => &runner.job.name,
            Self::Servers(runner) => runner.name(),
        }
    }

    fn settle(
        &mut self,
        now: Time,
        network: &mut dyn Network,
        background: &[BackgroundFlows<'_>],
    ) -> Result<(), IterationError> {
        match self {
            Self::Buckets(runner) => runner.settle(now, network, background),
            Self::Servers(runner) => match runner.settle(now, network) {
                Ok(()) => Ok(()),
                Err(TooShort) => Err(IterationError::TooShort { job: runner.name().to_owned() }),
            },
        }
    }

    fn on_completion(&mut self, now: Time, completion: Completion, network: &mut dyn Network) {
        match self {
            Self::Buckets(runner) => runner.on_completion(now, completion, network),
            Self::Servers(runner) => runner.on_completion(now, completion),
        }
    }

    fn wakes_at(&self) -> Option<Time> {
        match self {
            Self::Buckets(runner) => runner.wakes_at(),
            Self::Servers(runner) => runner.wakes_at(),
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Self::Buckets(runner) => runner.is_finished(),
            Self::Servers(runner) => runner.is_finished(),
        }
    }

    fn waiting_ops(&self) -> usize {
        match self {
            Self::Buckets(runner) => runner.waiting_ops(),
            Self::Servers(runner) => runner.waiting_ops(),
        }
    }

    fn progress(&self, now: Time) -> f64 {
        match self {
            Self::Buckets(runner) => runner.progress(now),
            Self::Servers(runner) => runner.progress(now),
        }
    }

    fn into_trace(self) -> Did {
        match self {
            Self::Buckets(runner) => Did::Buckets(runner.into_trace()),
            Self::Servers(runner) => Did::Servers(runner.into_trace()),
        }
    }
}

/// Iterations that workers can be in at one time. A worker begins iteration k + 2 only when it has done a forward pass
/// that needed every transfer of iteration k, so the slowest has nothing of iteration k left but what comes behind its
/// last update, and none can be three ahead of another. Without transfers nothing is waited for, and all slots are
/// alike.
const SLOTS: usize = 3;

/// One job under way.
struct JobRunner<'a> {
    job: &'a mut Job,
    stream: u32,
    limits: Limits,
    /// Transfers that each compute op is the first to use.
    first_uses: Edges,
    indegrees: Vec<u32>,
    /// Ops that each op still waits for: `missing[k % SLOTS]` in iteration k. A transfer waits for the ops of all
    /// workers; what a compute op waits for has arrived on all workers or on none.
    missing: [Vec<u32>; SLOTS],
    /// Workers that have ended the program of each iteration.
    ended_counts: [usize; SLOTS],
    workers: Vec<Worker>,
    /// When each op under way ends, and on which worker; empty where one worker stands for all.
    ends: BinaryHeap<Reverse<(Time, u32)>>,
    /// Workers whose next op waits for transfers, and those that are to look whether it still does.
    waiting: Vec<u32>,
    woken: Vec<u32>,
    /// Whether something has arrived that they may have waited for.
    has_arrived: bool,
    /// Iterations that a worker has begun.
    begun_count: u32,
    /// The iteration whose first pass is the last of the run. The first worker to reach it decides for all.
    last_iteration: Option<u32>,
    unfinished_count: usize,
    queue: BinaryHeap<Reverse<Ready>>,
    ready_count: u64,
    /// Whether a bucket may have to wait though it is ready.
    has_gates: bool,
    /// Ready buckets that are held back.
    held: BinaryHeap<Reverse<Held>>,
    /// Compute offset at which each compute op begins.
    offsets: Vec<Time>,
    /// Chunks that the queue has picked, as it did.
    sending: Vec<Sending>,
    /// Up to when the time for which the network is held has been counted.
    counted_to: Time,
    /// When the syncer lets the next chunk go.
    free_at: Time,
    ranks: Vec<u32>,
    /// Where bands change: what compute passes.
    milestones: Vec<Milestone>,
    /// Where workers change them.
    adaptive: Option<Box<Adaptive>>,
    /// Who chooses them in their place, and when the present chunk is to be through.
    oracle: Option<Box<(Oracle, Option<Time>)>>,
    /// Connections that are not open yet; `None` before the start of the job.
    opening_count: Option<usize>,
    trace: JobRecord,
}

/// Workers that change their bands.
struct Adaptive {
    workers: Workers,
    /// The next chunk waits for the end of one that goes high.
    is_waiting: bool,
    /// When each worker last completed its part of a bucket.
    gave_at: Vec<Time>,
    /// The bucket whose gradients are the last of an iteration.
    last_bucket: Option<u32>,
}

/// One compute stream.
struct Worker {
    /// `None` where all workers are alike.
    pace: Option<Pace>,
    /// Factor on the times of the present iteration, in millionths.
    factor_ppm: u64,
    iteration: u32,
    /// `iteration % SLOTS`.
    slot: usize,
    program: Program,
    /// The op at which an iteration is measured to begin.
    first_op: OpId,
    next_op: OpId,
    /// When compute came to `next_op`.
    reached_at: Time,
    running: Option<Running>,
    /// The iteration being measured, from one start of forward to the next.
    current: IterationRecord,
    measured: Vec<IterationRecord>,
    /// Whether this is the pass after the last measured iteration.
    is_last_pass: bool,
    /// Whether compute ops are kept: from the first measured forward pass to the one after the last wanted.
    is_timeline_open: bool,
}

impl Worker {
    fn new(mut pace: Option<Pace>, program: Program, measured_from: Pass, reached_at: Time) -> Self {
        let (first_op, next_op) = match measured_from {
            Pass::Forward => (program.forward, program.ops.start),
            Pass::Backward => (program.backward, program.backward),
        };
        Self {
            program,
            first_op,
            factor_ppm: pace.as_mut().map_or(ONE_PPM, Pace::next_ppm),
            pace,
            iteration: 0,
            slot: 0,
            next_op,
            reached_at,
            running: None,
            current: IterationRecord::default(),
            measured: Vec::new(),
            is_last_pass: false,
            is_timeline_open: false,
        }
    }

    fn own_cost(&self, cost: Time) -> Time {
        if self.factor_ppm == ONE_PPM { cost } else { Time::from_ps(stretched(cost.ps(), self.factor_ppm)) }
    }
}

/// A compute op under way.
#[derive(Clone, Copy)]
struct Running {
    started: Time,
    end: Time,
    /// What it takes by itself.
    cost: Time,
    /// Work left at `since`.
    left: Time,
    since: Time,
    is_slow: bool,
}

/// A bucket in the transmission queue. Ordered as the queue sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ready {
    /// What is left of an iteration goes before the next one's.
    iteration: u32,
    rank: u32,
    /// Place among all buckets by when they became ready.
    sequence: u64,
    bucket: u32,
    /// Chunks sent before.
    chunk: u64,
}

/// A bucket behind its gate. Ordered as compute passes the gates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    /// In which iteration the gate is, and where in it.
    gate: (u32, Time),
    /// Iteration and index of the bucket.
    iteration: u32,
    bucket: u32,
}

/// The chunk that the queue has picked.
#[derive(Debug)]
struct Sending {
    ready: Ready,
    /// When its first flow starts.
    begins_at: Time,
    /// Its flows, once they have started.
    aggregation: Option<Aggregation>,
    /// Where workers change their bands.
    followed: Option<Chunk>,
}

impl<'a> JobRunner<'a> {
    fn new(job: &'a mut Job, stream: u32, limits: Limits) -> Self {
        let dag = &job.dag;
        let paces = job.paces.take().map_or_else(|| vec![None], |paces| paces.into_iter().map(Some).collect());
        let worker_count = paces.len();
        let mut within = dag.within.indegrees();
        let (compute, transfers) = within.split_at_mut(dag.compute_count as usize);
        debug_assert!(compute.iter().all(|&count| count == 0), "inside an iteration only transfers wait for ops");
        debug_assert!(dag.programs.len() == 1 || dag.programs.len() == worker_count, "a program for each worker");
        for count in transfers {
            *count *= (worker_count / dag.programs.len()) as u32;
        }
        let indegrees: Vec<u32> = within.iter().zip(dag.across.indegrees()).map(|(a, b)| a + b).collect();
        let mut first_uses: Vec<Edge> = Vec::new();
        for bucket in 0..dag.transfers.len() as u32 {
            let readers = dag.across.from(dag.transfer_op(bucket));
            let first = |program: &Program| readers.iter().filter(|op| program.ops.contains(op)).min();
            first_uses.extend(dag.programs.iter().filter_map(first).map(|&op| (op, bucket)));
        }
        let mut offsets = Vec::with_capacity(dag.compute_count as usize);
        for program in &dag.programs {
            let mut now = Time::ZERO;
            for op in &dag.ops[program.ops.start as usize..program.ops.end as usize] {
                offsets.push(now);
                now += op.cost;
            }
        }
        let program = |worker: usize| dag.programs[if dag.programs.len() > 1 { worker } else { 0 }].clone();
        let worker = |(index, pace)| Worker::new(pace, program(index), job.manner.measured_from, job.start);
        let workers = paces.into_iter().enumerate().map(worker).collect();
        let mut ranks = Vec::new();
        job.scheduler.ranks(&job.dag, &mut ranks);
        let has_bands = matches!(job.manner.messages, AggregationForm::EachHost { .. })
            && (job.rule.is_some() || job.oracle.is_some());
        Self {
            first_uses: Edges::new(job.dag.ops.len(), &first_uses),
            missing: [within, indegrees.clone(), indegrees.clone()],
            indegrees,
            ended_counts: [0; SLOTS],
            stream,
            limits,
            workers,
            ends: BinaryHeap::new(),
            waiting: (0..worker_count as u32).collect(),
            woken: Vec::new(),
            has_arrived: true,
            begun_count: 0,
            last_iteration: None,
            unfinished_count: worker_count,
            queue: BinaryHeap::new(),
            ready_count: 0,
            has_gates: job.gates.iter().zip(&job.boundaries.windows).any(|(&gate, window)| gate > window.update),
            held: BinaryHeap::new(),
            offsets,
            sending: Vec::new(),
            counted_to: Time::ZERO,
            free_at: Time::ZERO,
            ranks,
            opening_count: None,
            milestones: if has_bands { Milestone::all(&job.boundaries) } else { Vec::new() },
            adaptive: job.rule.filter(|_| has_bands).map(|rule| {
                Box::new(Adaptive {
                    workers: Workers::new(rule, job.collective.hosts().len()),
                    is_waiting: false,
                    gave_at: vec![Time::ZERO; worker_count],
                    last_bucket: last_bucket(&job.dag),
                })
            }),
            oracle: job.oracle.clone().filter(|_| has_bands).map(|oracle| Box::new((oracle, None))),
            trace: JobRecord {
                warmup_count: u32::from(job.manner.measured_from == Pass::Forward),
                transfers: vec![TransferRecord::default(); job.dag.transfers.len()],
                ..JobRecord::default()
            },
            job,
        }
    }

    /// What it did; an iteration counts when all workers have completed it.
    fn into_trace(self) -> JobRecord {
        let count = self.workers.iter().map(|worker| worker.measured.len()).min().unwrap_or(0);
        let measured = |mut worker: Worker| {
            worker.measured.truncate(count);
            worker.measured
        };
        JobRecord { workers: self.workers.into_iter().map(measured).collect(), ..self.trace }
    }

    fn is_finished(&self) -> bool {
        self.unfinished_count == 0
    }

    /// When the job next acts without an event of the network.
    fn wakes_at(&self) -> Option<Time> {
        let mut at = self.next_end().map_or(Time::MAX, |(end, _)| end);
        for sending in &self.sending {
            at = at.min(match &sending.aggregation {
                None => sending.begins_at,
                Some(aggregation) => aggregation.wakes_at().unwrap_or(Time::MAX),
            });
        }
        if self.can_pick() && !self.queue.is_empty() {
            at = at.min(self.free_at);
        }
        if self.has_gates {
            at = at.min(self.opens_at().unwrap_or(Time::MAX));
        }
        if self.opening_count.is_none() {
            at = at.min(self.job.start);
        }
        Some(at).filter(|&at| at < Time::MAX)
    }

    /// When the next op under way ends, and on which worker.
    fn next_end(&self) -> Option<(Time, u32)> {
        match &self.workers[..] {
            [one] => one.running.as_ref().map(|running| (running.end, 0)),
            _ => self.ends.peek().map(|&Reverse(next)| next),
        }
    }

    /// Does everything that happens at `now` without the network, then lets the queue pick. An oracle reads
    /// `background`.
    fn settle(
        &mut self,
        now: Time,
        network: &mut dyn Network,
        background: &[BackgroundFlows<'_>],
    ) -> Result<(), IterationError> {
        if self.is_finished() || now < self.job.start {
            return Ok(());
        }
        if self.opening_count.is_none() {
            self.opening_count = Some(self.job.open(self.stream, network));
        }
        if self.opening_count != Some(0) {
            return Ok(());
        }
        for index in (0..self.sending.len()).rev() {
            if let Some(aggregation) = &mut self.sending[index].aggregation
                && aggregation.wakes_at().is_some_and(|at| at <= now)
                && aggregation.settle(now, network)
            {
                self.on_aggregated(index, now);
            }
        }
        if std::mem::take(&mut self.has_arrived) {
            std::mem::swap(&mut self.waiting, &mut self.woken);
        }
        while let Some(worker) = self.next_worker(now) {
            while self.finish_op(worker, now) && self.start_op(worker, now)? {}
        }
        while self.has_gates
            && self.opens_at().is_some_and(|at| at <= now)
            && let Some(Reverse(held)) = self.held.pop()
        {
            self.enqueue(held.bucket, held.iteration);
        }
        while self.can_pick()
            && self.free_at <= now
            && let Some(&Reverse(ready)) = self.queue.peek()
        {
            let Some(followed) = self.follow(ready, now) else { break };
            self.queue.pop();
            let begins_at = now + self.job.delay_before_flows();
            if ready.chunk + 1 < self.job.chunk_count(ready.bucket) {
                self.queue.push(Reverse(Ready { chunk: ready.chunk + 1, ..ready }));
            }
            self.sending.push(Sending { ready, begins_at, aggregation: None, followed });
        }
        for index in 0..self.sending.len() {
            let Sending { ready: Ready { bucket, chunk, .. }, begins_at, .. } = self.sending[index];
            if self.sending[index].aggregation.is_none() && begins_at <= now {
                self.count_busy(now);
                let bands = self.bands(index, now, network, background);
                let aggregation = self.job.aggregate(bucket, chunk, bands, self.stream, network);
                self.sending[index].aggregation = Some(aggregation);
            }
        }
        self.change_speed(now);
        Ok(())
    }

    /// In which bands a chunk begins, if not in the job's.
    fn bands(
        &mut self,
        index: usize,
        now: Time,
        network: &mut dyn Network,
        background: &[BackgroundFlows<'_>],
    ) -> Option<Bands> {
        let Sending { ready, followed, .. } = &self.sending[index];
        if let (Some(chunk), Some(adaptive), Some(rule)) = (followed, &self.adaptive, self.job.rule) {
            return Some(self.job.bands_of(rule, |rank| adaptive.workers.band(chunk.is_high(rank))));
        }
        let mut oracle = self.oracle.take()?;
        let Ready { bucket, chunk, .. } = *ready;
        let bytes = self.job.chunk_bytes(bucket, chunk);
        let begin = |band, network: &mut dyn Network| {
            network.set_band(self.stream, band);
            self.job.aggregate(bucket, chunk, Some(Bands::Alike(band)), self.stream, network)
        };
        let (chooses, expected) = &mut *oracle;
        let ways = foresee(network, background, chooses.small, &chooses.ways, &begin);
        let chosen = self.look_ahead(*ready, &[], now, |count, outlook| {
            chooses.choose(bytes, &(0..count).map(outlook).collect::<Vec<_>>(), &ways)
        });
        *expected = Some(ways[chosen].ends);
        let band = chooses.ways[chosen];
        network.set_band(self.stream, band);
        let (rounds, count) = (self.job.collective.rounds(), self.job.collective.hosts().len());
        self.sending[index].followed = Some(Chunk::new(bytes, rounds, count, chosen > 0));
        self.oracle = Some(oracle);
        Some(Bands::Alike(band))
    }

    /// Workers whose bands change look at what is left: what they make of the next chunk, `Some(None)` where they do
    /// not change them, and `None` if it has to wait.
    fn follow(&mut self, ready: Ready, now: Time) -> Option<Option<Chunk>> {
        let Some(mut adaptive) = self.adaptive.take() else { return Some(None) };
        let (bytes, rounds) = (self.job.chunk_bytes(ready.bucket, ready.chunk), self.job.collective.rounds());
        let high_count = self.followed().filter(|chunk| chunk.is_high_somewhere()).count();
        let may_be_high = high_count < self.job.credit;
        let ahead: Vec<u32> = self.sending.iter().map(|sending| sending.ready.bucket).collect();
        let followed = self.look_ahead(ready, &ahead, now, |_, outlook| {
            adaptive.workers.begin(now, (ready.iteration, bytes, rounds), may_be_high, outlook)
        });
        adaptive.is_waiting = followed.is_none();
        if followed.as_ref().is_some_and(Chunk::is_high_somewhere) {
            let (high, ranks) = (adaptive.workers.band(true), 0..self.job.collective.hosts().len() as u32);
            for Sending { followed, aggregation, .. } in &mut self.sending {
                followed.iter_mut().for_each(Chunk::turn_high);
                if let Some(messages) = aggregation.as_mut().and_then(Aggregation::messages) {
                    ranks.clone().for_each(|rank| messages.set_band(rank, high));
                }
            }
        }
        self.adaptive = Some(adaptive);
        followed.map(Some)
    }

    /// Chunks under way whose bands change.
    fn followed(&self) -> impl Iterator<Item = &Chunk> {
        self.sending.iter().filter_map(|sending| sending.followed.as_ref())
    }

    /// Tells how many workers there are and what each sees of what is left of an iteration when a chunk begins behind
    /// others, of the buckets `ahead`.
    fn look_ahead<T>(
        &self,
        Ready { iteration, bucket, .. }: Ready,
        ahead: &[u32],
        now: Time,
        then: impl for<'o> FnOnce(usize, &mut dyn FnMut(usize) -> Outlook<'o>) -> T,
    ) -> T {
        let block = self.block(iteration);
        let under_way = [ahead, &[bucket]].concat();
        let left_of = |other: u32| {
            let begun = under_way.iter().filter(|&&begun| begun == other).count() as u64;
            let gone = u64::from(self.trace.transfers[block + other as usize].arrived_count) + begun;
            (gone..self.job.chunk_count(other)).map(|chunk| self.job.chunk_bytes(other, chunk)).sum()
        };
        let left: Vec<Bytes> = (0..self.job.buckets.len() as u32).map(left_of).collect();
        let positions: Vec<Time> = self.workers.iter().map(|worker| self.position(worker, iteration, now)).collect();
        then(positions.len(), &mut |rank| Outlook {
            boundaries: &self.job.boundaries,
            milestones: &self.milestones,
            ranks: &self.ranks,
            now,
            position: positions[if positions.len() > 1 { rank } else { 0 }],
            left: &left,
            under_way: &under_way,
            ahead: self.followed().map(|chunk| chunk.left(rank)).sum(),
        })
    }

    /// How far a worker has computed, in compute time from the start of an iteration.
    fn position(&self, worker: &Worker, iteration: u32, now: Time) -> Time {
        let begins = self.offsets[worker.next_op as usize];
        let gone = worker.running.as_ref().map_or(Time::ZERO, |running| now - running.started);
        let iterations = u64::from(worker.iteration.saturating_sub(iteration));
        begins + gone + Time::from_ps(iterations * self.job.boundaries.compute.ps())
    }

    /// Whether another chunk may be put on the network.
    fn can_pick(&self) -> bool {
        let low =
            self.adaptive.as_ref().map(|adaptive| if adaptive.is_waiting { 0 } else { adaptive.workers.credit() });
        self.sending.len() < low.unwrap_or(self.job.credit)
    }

    /// When the last worker comes to the next gate, if nothing stands in the way of any until then: of a worker that
    /// waits or has yet to come to the op, nobody knows.
    fn opens_at(&self) -> Option<Time> {
        let &Reverse(Held { gate: (iteration, gate), .. }) = self.held.peek()?;
        let passes_at = |worker: &Worker| {
            let begins = self.offsets[worker.next_op as usize];
            if worker.iteration > iteration || (worker.iteration == iteration && gate <= begins) {
                return Some(Time::ZERO);
            }
            let running = worker.running.as_ref().filter(|_| worker.iteration == iteration)?;
            let ends = begins + self.job.dag.ops[worker.next_op as usize].cost;
            let after = worker.own_cost(ends.saturating_since(gate));
            (gate <= ends).then(|| {
                let until = running.left.saturating_since(after);
                running.since + beside_transfers(until, running.is_slow, self.job.overlap_slowdown_ppm)
            })
        };
        self.workers.iter().map(passes_at).try_fold(Time::ZERO, |latest, at| Some(latest.max(at?)))
    }

    /// Counts the time for which the network is held: with several chunks on it, as that of the first.
    fn count_busy(&mut self, now: Time) {
        if let Some(first) = self.sending.first().filter(|first| first.aggregation.is_some()) {
            let block = self.block(first.ready.iteration);
            let bucket = first.ready.bucket as usize;
            self.trace.transfers[block + bucket].busy += now - self.counted_to;
        }
        self.counted_to = now;
    }

    /// A worker that may have something to do now.
    fn next_worker(&mut self, now: Time) -> Option<u32> {
        self.woken.pop().or_else(|| {
            let (_, worker) = self.next_end().filter(|&(end, _)| end <= now)?;
            self.ends.pop();
            Some(worker)
        })
    }

    /// Starts a worker's next op if all it waits for is done; `false` if it must wait or is finished.
    fn start_op(&mut self, index: u32, now: Time) -> Result<bool, IterationError> {
        let worker = &self.workers[index as usize];
        if self.missing[worker.slot][worker.next_op as usize] > 0 {
            self.waiting.push(index);
            return Ok(false);
        }
        let (op, reached_at, is_first) = (worker.next_op, worker.reached_at, worker.next_op == worker.first_op);
        let DagOp { kind, cost } = self.job.dag.ops[op as usize];
        if now > reached_at {
            self.on_waited(index, kind, now);
        }
        if kind == OpKind::Barrier {
            self.record(index, kind, reached_at, now);
        }
        if is_first {
            self.on_iteration_begins(index, now)?;
        }
        let is_slow = !self.sending.is_empty();
        let worker = &mut self.workers[index as usize];
        if op >= worker.program.backward {
            if worker.is_last_pass {
                self.unfinished_count -= 1;
                return Ok(false);
            }
            if worker.iteration >= self.trace.warmup_count + self.limits.timeline_iterations {
                worker.is_timeline_open = false;
            }
        }
        let cost = worker.own_cost(cost);
        let end = now + beside_transfers(cost, is_slow, self.job.overlap_slowdown_ppm);
        worker.running = Some(Running { started: now, end, cost, left: cost, since: now, is_slow });
        Ok(true)
    }

    /// A worker has stood still from when it reached its next op until now.
    fn on_waited(&mut self, index: u32, kind: OpKind, now: Time) {
        let worker = &self.workers[index as usize];
        let wait = now - worker.reached_at;
        let exposed = if kind == OpKind::Barrier { self.wait_without_barrier(index) } else { wait };
        let straggler = self.ready_at(worker).saturating_since(worker.reached_at);
        let current = &mut self.workers[index as usize].current;
        current.exposed += exposed;
        current.barrier += wait - exposed;
        current.straggler += straggler;
    }

    /// When the last bucket that a worker's next op is the first to use was ready.
    fn ready_at(&self, worker: &Worker) -> Time {
        let Some(before) = worker.iteration.checked_sub(1) else { return Time::ZERO };
        let block = self.block(before);
        let ready = |&bucket: &u32| self.trace.transfers[block + bucket as usize].ready;
        self.first_uses.from(worker.next_op).iter().map(ready).max().unwrap_or(Time::ZERO)
    }

    /// The pass that iterations are measured from begins on a worker.
    fn on_iteration_begins(&mut self, index: u32, now: Time) -> Result<(), IterationError> {
        let worker = &mut self.workers[index as usize];
        let is_first = worker.iteration >= self.begun_count;
        self.begun_count = self.begun_count.max(worker.iteration + 1);
        let measured_count = worker.iteration.checked_sub(self.trace.warmup_count);
        if measured_count.is_some_and(|count| count > 0) {
            worker.current.time = now - worker.current.start;
            worker.measured.push(worker.current);
        }
        worker.current = IterationRecord { start: now, ..IterationRecord::default() };
        let Some(measured_count) = measured_count else { return Ok(()) };
        let is_over = self.limits.duration.is_some_and(|duration| now >= duration);
        if measured_count == 0 {
            worker.is_timeline_open = self.limits.timeline_iterations > 0;
            let too_short = is_first && is_over;
            return if too_short { Err(IterationError::TooShort { job: self.job.name.clone() }) } else { Ok(()) };
        }
        if is_first && (is_over || self.job.iteration_limit.is_some_and(|limit| measured_count >= limit)) {
            self.last_iteration = Some(worker.iteration);
        }
        worker.is_last_pass = self.last_iteration == Some(worker.iteration);
        Ok(())
    }

    /// How long the first op would have had to wait for what it reads.
    fn wait_without_barrier(&self, index: u32) -> Time {
        let worker = &self.workers[index as usize];
        let block = self.block(worker.iteration - 1);
        let programs = &self.job.without_barrier;
        let windows = &programs[if programs.len() > 1 { index as usize } else { 0 }].windows;
        let first = (block..).zip(windows).filter(|(_, window)| window.read == Time::ZERO);
        first
            .map(|(transfer, _)| self.trace.transfers[transfer].end.saturating_since(worker.reached_at))
            .max()
            .unwrap_or(Time::ZERO)
    }

    /// Ends a worker's op if it ends now; `false` if it goes on.
    fn finish_op(&mut self, index: u32, now: Time) -> bool {
        let worker_count = self.workers.len();
        let worker = &mut self.workers[index as usize];
        let Some(running) = &worker.running else { return true };
        if running.end > now {
            if worker_count > 1 {
                self.ends.push(Reverse((running.end, index)));
            }
            return false;
        }
        let (started, cost) = (running.started, running.cost);
        worker.running = None;
        let (op, slot) = (worker.next_op, worker.slot);
        let is_last = op + 1 == worker.program.ops.end;
        worker.current.compute += cost;
        worker.current.slowdown += now - started - cost;
        worker.reached_at = now;
        worker.next_op += 1;
        self.trace.event_count += 1;
        let kind = self.job.dag.ops[op as usize].kind;
        if kind != OpKind::Barrier {
            self.record(index, kind, started, now);
        }
        let compute_count = self.job.dag.compute_count;
        if let Some(adaptive) = self.adaptive.as_mut().filter(|_| !self.job.dag.within.from(op).is_empty()) {
            adaptive.gave_at[index as usize] = now;
        }
        for edge in 0..self.job.dag.within.from(op).len() {
            let target = self.job.dag.within.from(op)[edge];
            let missing = &mut self.missing[slot][target as usize];
            *missing -= 1;
            if *missing == 0 {
                self.on_bucket_ready(target - compute_count, self.workers[index as usize].iteration, now);
            }
        }
        if is_last {
            self.on_program_ends(index);
        }
        let worker = &self.workers[index as usize];
        if worker.iteration > 0 {
            let block = self.block(worker.iteration - 1);
            for &bucket in self.first_uses.from(worker.next_op) {
                self.trace.transfers[block + bucket as usize].needed = now;
            }
        }
        true
    }

    fn on_program_ends(&mut self, index: u32) {
        let worker = &mut self.workers[index as usize];
        let slot = worker.slot;
        worker.next_op = worker.program.ops.start;
        worker.iteration += 1;
        worker.slot = worker.iteration as usize % SLOTS;
        if let Some(pace) = &mut worker.pace {
            worker.factor_ppm = pace.next_ppm();
        }
        let room = self.block(self.workers[index as usize].iteration + 1);
        if room > self.trace.transfers.len() {
            self.trace.transfers.resize(room, TransferRecord::default());
        }
        self.ended_counts[slot] += 1;
        if self.ended_counts[slot] == self.workers.len() {
            self.ended_counts[slot] = 0;
            self.missing[slot].copy_from_slice(&self.indegrees);
            if !self.job.scheduler.is_fixed() {
                self.job.scheduler.ranks(&self.job.dag, &mut self.ranks);
            }
        }
    }

    fn on_bucket_ready(&mut self, bucket: u32, iteration: u32, now: Time) {
        let rank = self.ranks[bucket as usize];
        let block = self.block(iteration);
        let record = &mut self.trace.transfers[block + bucket as usize];
        record.ready = now;
        record.rank = rank;
        if let Some(adaptive) = self.adaptive.as_mut().filter(|adaptive| adaptive.last_bucket == Some(bucket)) {
            // One worker that stands for all waits for none.
            adaptive.workers.on_computed(adaptive.gave_at.iter().map(|&gave_at| now - gave_at));
        }
        if self.has_gates {
            // All of them, so that what opens at one instant is in the plan's order.
            let gate = self.job.gates[bucket as usize].max(self.job.boundaries.windows[bucket as usize].update);
            let compute = self.job.boundaries.compute.ps().max(1);
            let gate = (iteration + (gate.ps() / compute) as u32, Time::from_ps(gate.ps() % compute));
            self.held.push(Reverse(Held { gate, iteration, bucket }));
        } else {
            self.enqueue(bucket, iteration);
        }
    }

    fn enqueue(&mut self, bucket: u32, iteration: u32) {
        let rank = self.ranks[bucket as usize];
        self.queue.push(Reverse(Ready { iteration, rank, sequence: self.ready_count, bucket, chunk: 0 }));
        self.ready_count += 1;
    }

    fn on_completion(&mut self, now: Time, completion: Completion, network: &mut dyn Network) {
        if let Some(count @ 1..) = &mut self.opening_count {
            *count -= 1;
            for worker in &mut self.workers {
                worker.reached_at = now;
            }
            return;
        }
        let has = |sending: &Sending| sending.aggregation.as_ref().is_some_and(|it| it.has(completion.flow));
        let index = if self.sending.len() == 1 { Some(0) } else { self.sending.iter().position(has) };
        let index = index.expect("the job has a chunk under way");
        if self.sending[index].followed.is_some() {
            self.on_message(index, completion.flow, now);
        }
        let aggregation = self.sending[index].aggregation.as_mut().expect("its flows have started");
        if aggregation.on_completion(completion, network) {
            self.on_aggregated(index, now);
        }
    }

    /// A worker whose band changes has received a message, and sends the next.
    fn on_message(&mut self, index: usize, flow: FlowId, now: Time) {
        let messages = self.sending[index].aggregation.as_mut().and_then(Aggregation::messages);
        let Some(Passage { from, to, .. }) = messages.map(|messages| messages.passage(flow)) else { return };
        let is_high = |chunk: &Chunk| chunk.is_high(to as usize);
        let own = self.sending[index].followed.as_ref().map(is_high);
        let beside = self.followed().filter(|chunk| Some(is_high(chunk)) == own).count() as u32;
        let are_high = [true, false].into_iter().find(|&all| self.followed().all(|chunk| chunk.is_everywhere(all)));
        let Sending { aggregation, ready, followed, .. } = &mut self.sending[index];
        let (Some(chunk), Some(Aggregation::Messages(messages))) = (followed, aggregation) else { return };
        let block = ready.iteration as usize * self.job.buckets.len();
        let record = &mut self.trace.transfers[block + ready.bucket as usize];
        record.messages += 1;
        record.high += u32::from(chunk.is_high(from as usize));
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.workers.on_received(chunk, to as usize, now, (beside, are_high));
            messages.set_band(to, adaptive.workers.band(chunk.is_high(to as usize)));
        }
    }

    fn on_aggregated(&mut self, index: usize, now: Time) {
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.is_waiting = false;
        }
        self.count_busy(now);
        let foreseen = self.oracle.as_mut().and_then(|oracle| oracle.1.take());
        assert!(foreseen.is_none_or(|at| at == now), "what was foreseen comes: {foreseen:?}, not {now:?}");
        let Sending { ready, begins_at, .. } = self.sending.remove(index);
        self.free_at = now + self.job.sync;
        self.on_chunk_arrived(now, ready, begins_at);
    }

    fn on_chunk_arrived(&mut self, now: Time, sent: Ready, began: Time) {
        self.trace.event_count += 1;
        let block = self.block(sent.iteration);
        let record = &mut self.trace.transfers[block + sent.bucket as usize];
        if sent.chunk == 0 {
            record.start = began;
        }
        if sent.iteration < self.trace.warmup_count + self.limits.timeline_iterations {
            let iteration = i64::from(sent.iteration) - i64::from(self.trace.warmup_count);
            let kind = OpKind::Transfer(sent.bucket);
            let (chunk, worker) = (sent.chunk, 0);
            self.trace.operations.push(OperationRecord { iteration, kind, worker, chunk, start: began, end: now });
        }
        let chunk_count = self.job.chunk_count(sent.bucket);
        let record = &mut self.trace.transfers[block + sent.bucket as usize];
        record.arrived_count += 1;
        if u64::from(record.arrived_count) < chunk_count {
            return;
        }
        let record = &mut self.trace.transfers[block + sent.bucket as usize];
        record.end = now;
        self.has_arrived = true;
        let slot = (sent.iteration as usize + 1) % SLOTS;
        for &target in self.job.dag.across.from(self.job.dag.transfer_op(sent.bucket)) {
            self.missing[slot][target as usize] -= 1;
        }
    }

    /// Compute beside a transfer takes longer; when one begins or ends, the ends of running ops move.
    fn change_speed(&mut self, now: Time) {
        let (is_slow, ppm) = (!self.sending.is_empty(), self.job.overlap_slowdown_ppm);
        if ppm == ONE_PPM {
            return;
        }
        let mut has_changed = false;
        for running in self.workers.iter_mut().filter_map(|worker| worker.running.as_mut()) {
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

    /// Keeps a compute op for the timeline; an update that takes no time is not to be seen there.
    fn record(&mut self, index: u32, kind: OpKind, start: Time, end: Time) {
        let worker = &self.workers[index as usize];
        let is_visible = start < end || !matches!(kind, OpKind::Update(_));
        if worker.is_timeline_open && is_visible {
            let iteration = i64::from(worker.iteration) - i64::from(self.trace.warmup_count);
            let record = OperationRecord { iteration, kind, worker: index, chunk: 0, start, end };
            self.trace.operations.push(record);
        }
    }

    /// Index of the first transfer record of an iteration.
    fn block(&self, iteration: u32) -> usize {
        iteration as usize * self.job.buckets.len()
    }

    fn waiting_ops(&self) -> usize {
        self.missing[self.workers[0].slot].iter().filter(|&&count| count > 0).count()
    }

    fn progress(&self, now: Time) -> f64 {
        let iteration = f64::from(self.workers[0].iteration);
        let of_limit = self.job.iteration_limit.map(|limit| iteration / (f64::from(limit) + 1.0));
        let of_duration = self.limits.duration.map(|duration| now.ps() as f64 / duration.ps() as f64);
        of_limit.into_iter().chain(of_duration).fold(0.0, f64::max).min(1.0)
    }
}

/// The bucket that the last op of the backward pass with a gradient completes.
fn last_bucket(dag: &Dag) -> Option<u32> {
    let targets = (0..dag.compute_count).rev().find_map(|op| dag.within.from(op).iter().max().copied());
    targets.map(|target| target - dag.compute_count)
}

/// How long work takes beside transfers, or without them.
fn beside_transfers(work: Time, is_slow: bool, slowdown_ppm: u64) -> Time {
    if !is_slow || slowdown_ppm == ONE_PPM {
        return work;
    }
    Time::from_ps((u128::from(work.ps()) * u128::from(slowdown_ppm)).div_ceil(u128::from(ONE_PPM)) as u64)
}
