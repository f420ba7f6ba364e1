//! The job under way: what happens at each instant.

use super::{ServerJob, ServerJobRecord, ServerOperation, ServerOperationRecord, ServerTransferRecord, WorkerRecord};
use crate::pace::{ONE_PPM, Pace, stretched};
use gradtide_net::{Bytes, Completion, Connection, Flow, FlowId, HostId, Network, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// The duration of the run ended before the first iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort;

/// One job under way.
pub struct ServerRunner<'a> {
    plan: &'a mut ServerJob,
    stream: u32,
    duration: Option<Time>,
    timeline_iterations: u32,
    paces: Option<Vec<Pace>>,
    phase: JobPhase,
    /// Iterations begun before the present one.
    iteration: u32,
    began: Time,
    workers: Vec<ServedWorker>,
    /// When each server has added and applied all that it has: one after another, as they come.
    server_free_at: Vec<Time>,
    /// When the op under way on a worker ends.
    ends: BinaryHeap<Reverse<(Time, u32)>>,
    /// Workers that may have something to begin.
    woken: Vec<u32>,
    /// Place in the block of every transfer under way.
    under_way: BTreeMap<FlowId, usize>,
    /// Transfers of the iteration: of each worker its pulls, by parameter, then its pushes, as they become ready.
    block: Vec<ServerTransferRecord>,
    per_worker: usize,
    /// Of each parameter, gradients that its server does not have.
    missing_pushes: Vec<u32>,
    /// Ops and transfers of the iteration that are not done.
    left_count: usize,
    trace: ServerJobRecord,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobPhase {
    /// Before the start of the job.
    Waiting,
    /// So many connections are not open yet.
    Opening(usize),
    RunningOp,
    Finished,
}

/// What a worker does in the present iteration.
struct ServedWorker {
    factor_ppm: u64,
    /// Nodes that each op still waits for.
    missing: Vec<u32>,
    /// When the last thing that is computed, and not out of parameters alone, was there for each op.
    computed_at: Vec<Time>,
    /// Ops that could run, the first in topological order on top.
    ready: BinaryHeap<Reverse<u32>>,
    running: Option<RunningOp>,
    /// Pulls and pushes under way, and since when there are any.
    transfer_count: u32,
    busy_since: Time,
    push_count: u32,
    /// When the last transfer on the channel from and to each server ended.
    free_at: Vec<[Time; 2]>,
    record: WorkerRecord,
}

#[derive(Clone, Copy, Debug)]
struct RunningOp {
    op: u32,
    started: Time,
    cost: Time,
}

impl<'a> ServerRunner<'a> {
    /// A job whose flows are to carry `stream`. No iteration begins at or after `duration`, and the ops and transfers
    /// of the first iterations are kept one by one.
    pub fn new(plan: &'a mut ServerJob, stream: u32, duration: Option<Time>, timeline_iterations: u32) -> Self {
        let op_count = plan.graph.ops.len();
        let worker = |_| ServedWorker {
            factor_ppm: ONE_PPM,
            missing: Vec::with_capacity(op_count),
            computed_at: Vec::with_capacity(op_count),
            ready: BinaryHeap::new(),
            running: None,
            transfer_count: 0,
            busy_since: Time::ZERO,
            push_count: 0,
            free_at: vec![[Time::ZERO; 2]; plan.servers.len()],
            record: WorkerRecord::default(),
        };
        Self {
            workers: (0..plan.workers.len()).map(worker).collect(),
            server_free_at: vec![Time::ZERO; plan.servers.len()],
            per_worker: plan.transfer_count(),
            trace: ServerJobRecord { workers: vec![Vec::new(); plan.workers.len()], ..ServerJobRecord::default() },
            stream,
            duration,
            timeline_iterations,
            paces: plan.paces.take(),
            phase: JobPhase::Waiting,
            iteration: 0,
            began: plan.start,
            ends: BinaryHeap::new(),
            woken: Vec::new(),
            under_way: BTreeMap::new(),
            block: Vec::new(),
            missing_pushes: Vec::new(),
            left_count: 0,
            plan,
        }
    }

    /// What it did.
    pub fn into_trace(self) -> ServerJobRecord {
        self.trace
    }

    /// Key of the job in the scenario.
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Whether all iterations are over.
    pub fn is_finished(&self) -> bool {
        self.phase == JobPhase::Finished
    }

    /// Ops and transfers that are not done.
    pub fn waiting_ops(&self) -> usize {
        self.left_count
    }

    /// Share of the iterations that is over.
    pub fn progress(&self, now: Time) -> f64 {
        let of_limit = self.plan.iteration_limit.map(|limit| f64::from(self.iteration) / f64::from(limit));
        let of_duration = self.duration.map(|duration| now.ps() as f64 / duration.ps() as f64);
        of_limit.into_iter().chain(of_duration).fold(0.0, f64::max).min(1.0)
    }

    /// When the job next acts without an event of the network.
    pub fn wakes_at(&self) -> Option<Time> {
        match self.phase {
            JobPhase::Waiting => Some(self.plan.start),
            JobPhase::Opening(_) | JobPhase::Finished => None,
            JobPhase::RunningOp if self.left_count == 0 => Some(self.updated_at()),
            JobPhase::RunningOp => self.ends.peek().map(|&Reverse((end, _))| end),
        }
    }

    /// Does everything that happens at `now` without the network.
    ///
    /// # Errors
    /// [`TooShort`] if the first iteration would begin too late.
    pub fn settle(&mut self, now: Time, network: &mut dyn Network) -> Result<(), TooShort> {
        if self.phase == JobPhase::Waiting && now >= self.plan.start {
            self.phase = JobPhase::Opening(self.open(network));
        }
        if self.phase == JobPhase::Opening(0) {
            self.phase = JobPhase::RunningOp;
            self.begin(now, network)?;
        }
        while self.phase == JobPhase::RunningOp {
            self.compute(now, network);
            if self.left_count > 0 || self.updated_at() > now {
                break;
            }
            self.end(now);
            self.begin(now, network)?;
        }
        Ok(())
    }

    /// Handles the arrival of a transfer.
    pub fn on_completion(&mut self, now: Time, completion: Completion) {
        if let JobPhase::Opening(count) = &mut self.phase {
            *count -= 1;
            return;
        }
        let place = self.under_way.remove(&completion.flow).expect("the transfer is under way");
        self.trace.event_count += 1;
        self.left_count -= 1;
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
            worker.record.own = now - self.began;
            self.on_pushed(now, server, parameter);
            self.keep(index, ServerOperation::Push(parameter), start, now);
        } else {
            self.on_done(index, parameter);
            self.keep(index, ServerOperation::Pull(parameter), start, now);
        }
    }

    /// A server adds gradients as they come, one after another, and applies a sum when it is complete.
    fn on_pushed(&mut self, now: Time, server: usize, parameter: u32) {
        let free_at = &mut self.server_free_at[server];
        *free_at = (*free_at).max(now) + self.plan.adding_time(parameter);
        let missing = &mut self.missing_pushes[parameter as usize];
        *missing -= 1;
        if *missing == 0 {
            *free_at += self.plan.graph.parameters[parameter as usize].update;
        }
    }

    /// Ends what ends now and begins what can, until nothing more happens at this instant.
    fn compute(&mut self, now: Time, network: &mut dyn Network) {
        loop {
            while let Some(&Reverse((end, worker))) = self.ends.peek()
                && end <= now
            {
                self.ends.pop();
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

    /// Opens the connections that the job keeps for its life; how many.
    fn open(&self, network: &mut dyn Network) -> usize {
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

    fn flow(&self, worker: u32, server: usize, is_push: bool, bytes: Bytes) -> Flow {
        let (worker, server) = (HostId(self.plan.workers[worker as usize]), HostId(self.plan.servers[server]));
        let (src, dst) = if is_push { (worker, server) } else { (server, worker) };
        let (hold, band, stream) = (self.plan.hold, self.plan.band, self.stream);
        let (counted, connection) = (bytes, Connection::Stream);
        Flow { src, dst, bytes, rounds: 1, parts: 1, counted, hold, band, stream, connection, part: None }
    }

    /// When the last update of the iteration is over, once all gradients are there.
    fn updated_at(&self) -> Time {
        self.server_free_at.iter().copied().max().unwrap_or(Time::ZERO)
    }

    /// Begins an iteration, or finishes the job.
    fn begin(&mut self, now: Time, network: &mut dyn Network) -> Result<(), TooShort> {
        let is_over = self.duration.is_some_and(|duration| now >= duration);
        if is_over && self.iteration == 0 {
            return Err(TooShort);
        }
        if is_over || self.plan.iteration_limit.is_some_and(|limit| self.iteration >= limit) {
            self.phase = JobPhase::Finished;
            return Ok(());
        }
        self.began = now;
        let per_worker = self.per_worker;
        let pull_count = self.plan.graph.parameters.len();
        let (iteration, worker_count) = (self.iteration, self.workers.len());
        self.block.clear();
        self.block.resize(per_worker * worker_count, ServerTransferRecord::default());
        self.missing_pushes.clear();
        self.missing_pushes.resize(pull_count, worker_count as u32);
        self.left_count = worker_count * (self.plan.graph.ops.len() + per_worker);
        for index in 0..worker_count {
            let factor_ppm = self.paces.as_mut().map_or(ONE_PPM, |paces| paces[index].next_ppm());
            let worker = &mut self.workers[index];
            worker.factor_ppm = factor_ppm;
            worker.record = WorkerRecord { start: now, ..WorkerRecord::default() };
            worker.push_count = 0;
            worker.missing.clone_from(&self.plan.graph.indegrees);
            worker.computed_at.clear();
            worker.computed_at.resize(self.plan.graph.ops.len(), now);
            let roots = (0..).zip(&self.plan.graph.indegrees).filter(|(_, count)| **count == 0);
            worker.ready.extend(roots.map(|(op, _)| Reverse(op)));
            let (order, handed) = self.plan.pulls.next(index, &self.plan.server_of);
            for (rank, &parameter) in (0..).zip(&order) {
                let record = &mut self.block[index * per_worker + parameter as usize];
                *record = ServerTransferRecord {
                    iteration,
                    worker: index as u32,
                    parameter,
                    rank,
                    ready: now,
                    needed: Time::MAX,
                    ..ServerTransferRecord::default()
                };
            }
            for parameter in handed {
                self.hand_over(index as u32, parameter, index * per_worker + parameter as usize, now, network);
            }
        }
        self.woken.extend(0..worker_count as u32);
        Ok(())
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

    /// Ends an iteration: all is computed, pushed and updated.
    fn end(&mut self, now: Time) {
        let longest = self.workers.iter().map(|worker| worker.record.own).max().unwrap_or(Time::ZERO);
        for (worker, records) in self.workers.iter_mut().zip(&mut self.trace.workers) {
            worker.record.time = now - self.began;
            worker.record.longest = longest;
            records.push(worker.record);
        }
        for record in &mut self.block {
            record.needed = record.needed.min(now);
        }
        self.trace.transfers.extend_from_slice(&self.block);
        self.iteration += 1;
    }

    /// Starts the next op of a worker if it is idle and an op is ready.
    fn start_op(&mut self, index: u32, now: Time) {
        let worker = &mut self.workers[index as usize];
        if worker.running.is_some() {
            return;
        }
        let Some(Reverse(op)) = worker.ready.pop() else { return };
        let cost = self.plan.graph.ops[op as usize].cost;
        let cost =
            if worker.factor_ppm == ONE_PPM { cost } else { Time::from_ps(stretched(cost.ps(), worker.factor_ppm)) };
        worker.running = Some(RunningOp { op, started: now, cost });
        self.ends.push(Reverse((now + cost, index)));
    }

    fn finish_op(&mut self, index: u32, now: Time, network: &mut dyn Network) {
        let worker = &mut self.workers[index as usize];
        let RunningOp { op, started, cost } = worker.running.take().expect("an op is under way");
        worker.record.compute += cost;
        worker.record.computed = now - self.began;
        worker.record.own = worker.record.own.max(worker.record.computed);
        self.trace.event_count += 1;
        self.left_count -= 1;
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
                iteration: self.iteration,
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
        if self.iteration < self.timeline_iterations && start < end {
            self.trace.operations.push(ServerOperationRecord { iteration: self.iteration, worker, what, start, end });
        }
    }
}
