//! A job with parameter servers under way: what happens at each instant.

use super::runner::{Execution, TooShort};
use super::streams::{OpEnd, Streams};
use super::{Did, Limits};
use crate::servers::clocks::Clocks;
use crate::servers::{
    ServerJob, ServerJobRecord, ServerOperation, ServerOperationRecord, ServerTransferRecord, Staleness, WorkerRecord,
    share,
};
use crate::traffic::BackgroundFlows;
use gradtide_net::{Bytes, Completion, Connection, Flow, FlowId, HostId, Network, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// A job with parameter servers under way.
pub struct ServedExecutor<'a> {
    plan: &'a mut ServerJob,
    stream: u32,
    limits: Limits,
    streams: Streams,
    clocks: Clocks,
    workers: Vec<ServedWorker>,
    /// When each server has added and applied all that it has: one after another, as they come.
    server_free_at: Vec<Time>,
    /// When servers will have applied all gradients of a worker's iteration.
    applied: BinaryHeap<Reverse<(Time, u32)>>,
    /// Workers of whose iteration all is computed and has arrived, if they are in step.
    arrived_count: usize,
    /// Workers that have completed an iteration and may not begin the next, and how many have not ended their last.
    held: Vec<u32>,
    active_count: usize,
    /// Workers that may have something to begin.
    woken: Vec<u32>,
    /// Place in the block of every transfer under way.
    under_way: BTreeMap<FlowId, usize>,
    /// Transfers of each worker's iteration: its pulls, by parameter, then its pushes, as they become ready.
    block: Vec<ServerTransferRecord>,
    per_worker: usize,
    /// Of each parameter, gradients of the iteration that its server does not have; of workers in step.
    missing_pushes: Vec<u32>,
    /// Of each parameter, the gradients that have come; of workers that are not in step.
    versions: Vec<Version>,
    trace: ServerJobRecord,
}

/// Gradients of a parameter that are applied one by one.
#[derive(Default)]
struct Version {
    arrived_count: u64,
    applied_count: u64,
    /// When those that have arrived will have been applied.
    pending: VecDeque<Time>,
}

/// What a worker does in its present iteration.
struct ServedWorker {
    began: Time,
    /// Ops and transfers of the iteration that are not done.
    left_count: usize,
    /// When the last of its gradients so far will have been applied.
    applied_at: Time,
    /// Gradients that each parameter had when it was pulled, if they are applied one by one.
    pulled: Vec<u64>,
    /// Nodes that each op still waits for.
    missing: Vec<u32>,
    /// When the last thing that is computed, and not out of parameters alone, was there for each op.
    computed_at: Vec<Time>,
    /// Ops that could run, the first in topological order on top.
    ready: BinaryHeap<Reverse<u32>>,
    /// Pulls and pushes under way, and since when there are any.
    transfer_count: u32,
    busy_since: Time,
    push_count: u32,
    /// When the last transfer on the channel from and to each server ended.
    free_at: Vec<[Time; 2]>,
    record: WorkerRecord,
}

impl Version {
    /// Gradients that have been applied.
    fn at(&mut self, now: Time) -> u64 {
        while self.pending.front().is_some_and(|&at| at <= now) {
            self.pending.pop_front();
            self.applied_count += 1;
        }
        self.applied_count
    }
}

impl<'a> ServedExecutor<'a> {
    /// A job that has not begun, whose flows carry `stream`.
    pub fn new(plan: &'a mut ServerJob, stream: u32, limits: Limits) -> Self {
        let op_count = plan.graph.ops.len();
        let worker = |_| ServedWorker {
            began: plan.start,
            left_count: 0,
            applied_at: Time::ZERO,
            pulled: Vec::new(),
            missing: Vec::with_capacity(op_count),
            computed_at: Vec::with_capacity(op_count),
            ready: BinaryHeap::new(),
            transfer_count: 0,
            busy_since: Time::ZERO,
            push_count: 0,
            free_at: vec![[Time::ZERO; 2]; plan.servers.len()],
            record: WorkerRecord::default(),
        };
        let (worker_count, pull_count) = (plan.workers.len(), plan.graph.parameters.len());
        let per_worker = plan.transfer_count();
        let versions = if plan.is_in_step() { 0 } else { pull_count };
        Self {
            workers: (0..worker_count).map(worker).collect(),
            server_free_at: vec![Time::ZERO; plan.servers.len()],
            per_worker,
            trace: ServerJobRecord { workers: vec![Vec::new(); worker_count], ..ServerJobRecord::default() },
            stream,
            limits,
            streams: Streams::of_servers(plan),
            clocks: Clocks::new(worker_count, plan.bound),
            applied: BinaryHeap::new(),
            arrived_count: 0,
            held: Vec::new(),
            active_count: worker_count,
            woken: Vec::new(),
            under_way: BTreeMap::new(),
            block: vec![ServerTransferRecord::default(); per_worker * worker_count],
            missing_pushes: vec![worker_count as u32; pull_count],
            versions: (0..versions).map(|_| Version::default()).collect(),
            plan,
        }
    }

    /// An op or a transfer of a worker's iteration is done. After the last, servers have yet to apply its gradients.
    fn on_less_left(&mut self, index: u32) {
        let worker = &mut self.workers[index as usize];
        worker.left_count -= 1;
        if worker.left_count > 0 {
            return;
        }
        if !self.plan.is_in_step() {
            self.applied.push(Reverse((worker.applied_at, index)));
            return;
        }
        self.arrived_count += 1;
        if self.arrived_count == self.workers.len() {
            let at = self.server_free_at.iter().copied().max().unwrap_or(Time::ZERO);
            self.applied.extend((0..self.workers.len() as u32).map(|worker| Reverse((at, worker))));
            self.arrived_count = 0;
        }
    }

    /// A server adds gradients as they come, one after another, and applies a sum when it is complete: that of all
    /// workers in step, else each gradient alone.
    fn on_pushed(&mut self, index: u32, now: Time, server: usize, parameter: u32) {
        let free_at = &mut self.server_free_at[server];
        *free_at = (*free_at).max(now) + self.plan.adding_time(parameter);
        let update = self.plan.graph.parameters[parameter as usize].update;
        if self.plan.is_in_step() {
            let missing = &mut self.missing_pushes[parameter as usize];
            *missing -= 1;
            if *missing == 0 {
                *free_at += update;
                *missing = self.workers.len() as u32;
            }
            return;
        }
        *free_at += update;
        let worker = &mut self.workers[index as usize];
        let version = &mut self.versions[parameter as usize];
        let Staleness { updates, most_updates, .. } = &mut worker.record.staleness;
        let missed = version.arrived_count - worker.pulled[parameter as usize];
        *updates += missed;
        *most_updates = missed.max(*most_updates);
        version.arrived_count += 1;
        version.pending.push_back(*free_at);
        worker.applied_at = worker.applied_at.max(*free_at);
    }

    /// Ends what ends now and begins what can, until nothing more happens at this instant.
    fn compute(&mut self, now: Time, network: &mut dyn Network) {
        loop {
            while let Some(worker) = self.streams.next_worker(now) {
                self.finish_op(worker, now, network);
            }
            if self.woken.is_empty() {
                return;
            }
            while let Some(worker) = self.woken.pop() {
                self.start_op(worker, now);
            }
        }
    }

    fn flow(&self, worker: u32, server: usize, is_push: bool, bytes: Bytes) -> Flow {
        let (worker, server) = (HostId(self.plan.workers[worker as usize]), HostId(self.plan.servers[server]));
        let (src, dst) = if is_push { (worker, server) } else { (server, worker) };
        let (hold, band, stream) = (self.plan.hold, self.plan.band, self.stream);
        let (counted, connection, part, announced) = (bytes, Connection::Stream, None, None);
        Flow { src, dst, bytes, rounds: 1, parts: 1, counted, hold, band, stream, connection, part, announced }
    }

    /// Iterations that workers are to complete, all together; `None` if the duration of the run decides.
    fn wanted_count(&self) -> Option<u64> {
        self.plan.iteration_limit.map(|limit| u64::from(limit) * self.workers.len() as u64)
    }

    /// Completes the iterations whose gradients have been applied; whether there are any.
    fn complete(&mut self, now: Time) -> bool {
        let before = self.held.len();
        while let Some(&Reverse((at, index))) = self.applied.peek()
            && at <= now
        {
            self.applied.pop();
            let worker = &self.workers[index as usize];
            self.clocks.complete(self.streams.workers[index as usize].iteration, worker.began + worker.record.own);
            self.held.push(index);
        }
        self.held.len() > before
    }

    /// Workers that may go on begin their next iteration. When enough is done none does, but what has begun is done.
    fn go_on(&mut self, now: Time, network: &mut dyn Network) {
        let is_over = self.limits.duration.is_some_and(|duration| now >= duration)
            || self.wanted_count().is_some_and(|wanted| self.clocks.completed_count() >= wanted);
        self.held.sort_unstable();
        let may_go_on =
            |&worker: &u32| is_over || self.clocks.may_begin(self.streams.workers[worker as usize].iteration + 1);
        let (released, held): (Vec<u32>, Vec<u32>) = std::mem::take(&mut self.held).into_iter().partition(may_go_on);
        self.held = held;
        for worker in released {
            self.end(worker, now);
            if is_over {
                self.active_count -= 1;
            } else {
                self.begin_next(worker, now, network);
            }
        }
    }

    /// Begins the next iteration of a worker.
    fn begin_next(&mut self, index: u32, now: Time, network: &mut dyn Network) {
        let first = index as usize * self.per_worker;
        let pull_count = self.plan.graph.parameters.len();
        let worker = &mut self.workers[index as usize];
        let iteration = self.streams.workers[index as usize].iteration;
        worker.began = now;
        worker.left_count = self.plan.graph.ops.len() + self.per_worker;
        worker.applied_at = Time::ZERO;
        worker.record = WorkerRecord { start: now, ..WorkerRecord::default() };
        if !self.plan.is_in_step() {
            worker.record.staleness.iterations = self.clocks.lead(iteration);
            worker.pulled.clear();
            worker.pulled.extend(self.versions.iter_mut().map(|version| version.at(now)));
        }
        worker.push_count = 0;
        worker.missing.clone_from(&self.plan.graph.indegrees);
        worker.computed_at.clear();
        worker.computed_at.resize(self.plan.graph.ops.len(), now);
        let roots = (0..).zip(&self.plan.graph.indegrees).filter(|(_, count)| **count == 0);
        worker.ready.extend(roots.map(|(op, _)| Reverse(op)));
        let (order, handed) = self.plan.pulls.next(index as usize, &self.plan.server_of);
        self.block[first + pull_count..first + self.per_worker].fill(ServerTransferRecord::default());
        for (rank, &parameter) in (0..).zip(&order) {
            self.block[first + parameter as usize] = ServerTransferRecord {
                iteration,
                worker: index,
                parameter,
                rank,
                ready: now,
                needed: Time::MAX,
                ..ServerTransferRecord::default()
            };
        }
        for parameter in handed {
            self.hand_over(index, parameter, first + parameter as usize, now, network);
        }
        self.woken.push(index);
    }

    /// Puts a transfer on its channel.
    fn hand_over(&mut self, worker: u32, parameter: u32, place: usize, now: Time, network: &mut dyn Network) {
        let bytes = self.plan.graph.parameters[parameter as usize].bytes;
        let server = self.plan.server_of[parameter as usize] as usize;
        let flow = self.flow(worker, server, self.block[place].is_push, bytes);
        self.under_way.insert(network.start(flow), place);
        let worker = &mut self.workers[worker as usize];
        if worker.transfer_count == 0 {
            worker.busy_since = now;
        }
        worker.transfer_count += 1;
    }

    /// Ends a worker's iteration: it may begin the next one.
    fn end(&mut self, index: u32, now: Time) {
        let worker = &mut self.workers[index as usize];
        let own_end = worker.began + worker.record.own;
        worker.record.time = now - worker.began;
        let stream = &mut self.streams.workers[index as usize];
        worker.record.waited = match self.clocks.may_begin(stream.iteration + 1) {
            true => self.clocks.waited(stream.iteration, own_end),
            // The job is over, and it would still have to wait.
            false => now - own_end,
        };
        self.trace.workers[index as usize].push(worker.record);
        stream.begin_next();
        let first = index as usize * self.per_worker;
        let block = &mut self.block[first..first + self.per_worker];
        for record in &mut *block {
            record.needed = record.needed.min(now);
        }
        self.trace.transfers.extend_from_slice(block);
    }

    /// Starts the next op of a worker if it is idle and an op is ready.
    fn start_op(&mut self, index: u32, now: Time) {
        if self.streams.workers[index as usize].running.is_some() {
            return;
        }
        let Some(Reverse(op)) = self.workers[index as usize].ready.pop() else { return };
        let cost = self.plan.graph.ops[op as usize].cost;
        self.streams.begin_behind_others(index, op, cost, now);
    }

    fn finish_op(&mut self, index: u32, now: Time, network: &mut dyn Network) {
        let OpEnd::Ended { started, cost } = self.streams.end(index, now) else { return };
        let stream = &self.streams.workers[index as usize];
        let (op, iteration) = (stream.next_op, stream.iteration);
        let worker = &mut self.workers[index as usize];
        worker.record.compute += cost;
        worker.record.computed = now - worker.began;
        worker.record.own = worker.record.own.max(worker.record.computed);
        self.trace.event_count += 1;
        self.keep(index, ServerOperation::Op(op), started, now);
        let pull_count = self.plan.graph.parameters.len();
        let node = (pull_count + op as usize) as u32;
        let asked_at = self.workers[index as usize].computed_at[op as usize];
        for &parameter in self.plan.graph.uses.from(op) {
            let needed = &mut self.block[index as usize * self.per_worker + parameter as usize].needed;
            *needed = (*needed).min(asked_at);
        }
        if !self.plan.graph.ops[op as usize].is_param_only {
            let worker = &mut self.workers[index as usize];
            for &reader in self.plan.graph.readers.from(node) {
                worker.computed_at[reader as usize] = now;
            }
        }
        self.on_done(index, node);
        for update in 0..self.plan.graph.ops[op as usize].updates.len() {
            let parameter = self.plan.graph.ops[op as usize].updates[update];
            let rank = self.workers[index as usize].push_count;
            self.workers[index as usize].push_count += 1;
            let place = index as usize * self.per_worker + pull_count + rank as usize;
            self.block[place] = ServerTransferRecord {
                iteration,
                worker: index,
                parameter,
                is_push: true,
                rank,
                ready: now,
                needed: Time::MAX,
                ..ServerTransferRecord::default()
            };
            self.hand_over(index, parameter, place, now, network);
        }
        self.on_less_left(index);
    }

    /// A node is done: ops that waited for it alone are ready.
    fn on_done(&mut self, index: u32, node: u32) {
        let graph = &self.plan.graph;
        let worker = &mut self.workers[index as usize];
        for &op in graph.readers.from(node) {
            let missing = &mut worker.missing[op as usize];
            *missing -= 1;
            if *missing == 0 {
                worker.ready.push(Reverse(op));
            }
        }
        self.woken.push(index);
    }

    /// Keeps an op or a transfer for the timeline; what takes no time is not to be seen there.
    fn keep(&mut self, worker: u32, what: ServerOperation, start: Time, end: Time) {
        let iteration = self.streams.workers[worker as usize].iteration;
        if iteration < self.limits.timeline_iterations && start < end {
            self.trace.operations.push(ServerOperationRecord { iteration, worker, what, start, end });
        }
    }
}

impl<'a> Execution<'a> for ServedExecutor<'a> {
    fn open(&mut self, network: &mut dyn Network) -> usize {
        if !self.plan.opens {
            return 0;
        }
        let mut count = 0;
        for worker in 0..self.workers.len() {
            for server in 0..self.plan.servers.len() {
                let flow = self.flow(worker as u32, server, false, Bytes(0));
                network.start(flow);
                count += 1;
                if self.plan.is_training {
                    network.start(Flow { src: flow.dst, dst: flow.src, ..flow });
                    count += 1;
                }
            }
        }
        count
    }

    fn begin(&mut self, now: Time, network: &mut dyn Network) -> Result<(), TooShort> {
        if self.limits.duration.is_some_and(|duration| now >= duration) || self.wanted_count() == Some(0) {
            return Err(TooShort);
        }
        (0..self.workers.len() as u32).for_each(|worker| self.begin_next(worker, now, network));
        Ok(())
    }

    fn settle(&mut self, now: Time, network: &mut dyn Network, _: &[BackgroundFlows<'_>]) -> Result<bool, TooShort> {
        while self.active_count > 0 {
            self.compute(now, network);
            if !self.complete(now) {
                break;
            }
            self.go_on(now, network);
        }
        Ok(self.active_count > 0)
    }

    fn on_completion(&mut self, now: Time, completion: Completion, _: &mut dyn Network) {
        let place = self.under_way.remove(&completion.flow).expect("the transfer is under way");
        self.trace.event_count += 1;
        let record = &mut self.block[place];
        let ServerTransferRecord { worker: index, parameter, is_push, .. } = *record;
        let server = self.plan.server_of[parameter as usize] as usize;
        let worker = &mut self.workers[index as usize];
        let free_at = &mut worker.free_at[server][usize::from(is_push)];
        let start = completion.began.max(*free_at);
        (record.start, record.end, *free_at) = (start, now, now);
        worker.transfer_count -= 1;
        if worker.transfer_count == 0 {
            worker.record.comm += now - worker.busy_since;
        }
        if is_push {
            worker.record.own = now - worker.began;
            self.on_pushed(index, now, server, parameter);
            self.keep(index, ServerOperation::Push(parameter), start, now);
        } else {
            self.on_done(index, parameter);
            self.keep(index, ServerOperation::Pull(parameter), start, now);
        }
        self.on_less_left(index);
    }

    fn wakes_at(&self) -> Option<Time> {
        let ends = self.streams.next_end().map(|(end, _)| end);
        ends.into_iter().chain(self.applied.peek().map(|&Reverse((at, _))| at)).min()
    }

    fn waiting_ops(&self) -> usize {
        self.workers.iter().map(|worker| worker.left_count).sum()
    }

    fn progress(&self) -> Option<f64> {
        self.wanted_count().map(|wanted| self.clocks.completed_count() as f64 / wanted as f64)
    }

    fn into_did(mut self: Box<Self>) -> Did<'a> {
        if !self.plan.is_in_step() {
            self.trace.transfers.sort_by_key(|transfer| (transfer.iteration, transfer.worker));
            self.trace.shared = Some(share::iterations(&self.trace.workers, self.plan.iteration_limit));
        }
        Did::Servers(self.plan, self.trace)
    }
}
