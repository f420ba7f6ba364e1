//! What servers add to the iterations of their workers: the order of pulls, what they do with gradients, and who may go
//! on. All else the executor does.

use super::Together;
use super::channels::Channels;
use super::record::Records;
use crate::dag::OpId;
use crate::servers::clocks::Clocks;
use crate::servers::{ServedRecord, ServerJob, Staleness, WorkerRecord, share};
use gradtide_net::{Network, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The servers of a job under way.
pub struct Served {
    /// The job.
    pub plan: Box<ServerJob>,
    /// What carries pulls and pushes.
    pub channels: Channels,
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
    /// Of each parameter, gradients of the iteration that its server does not have; of workers in step.
    missing_pushes: Vec<u32>,
    together: Together,
    /// Iterations that workers have completed, of those that are measured, all together.
    measured_count: u64,
    /// When enough has been measured: iterations of each worker until then, with what it had begun.
    enough: Option<Vec<u32>>,
    /// Of each parameter, the gradients that have come; of workers that are not in step.
    versions: Vec<Version>,
    records: Vec<Vec<WorkerRecord>>,
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
    /// Present iteration.
    iteration: u32,
    /// The first one that is measured, as far as is known.
    first: u32,
    /// Ops and transfers of the iteration that are not done.
    left_count: usize,
    /// When the last of its gradients so far will have been applied.
    applied_at: Time,
    /// Gradients that each parameter had when it was pulled, if they are applied one by one.
    pulled: Vec<u64>,
    /// When the last thing that is computed, and not out of parameters alone, was there for each op.
    computed_at: Vec<Time>,
    /// Pulls and pushes under way, and since when there are any.
    transfer_count: u32,
    busy_since: Time,
    push_count: u32,
    record: WorkerRecord,
}

impl ServedWorker {
    /// Something is on a channel from now on.
    fn on_begun(&mut self, now: Time) {
        if self.transfer_count == 0 {
            self.busy_since = now;
        }
        self.transfer_count += 1;
    }
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

impl Served {
    /// Servers that have nothing to do yet.
    pub fn new(plan: Box<ServerJob>, together: Together) -> Self {
        let worker = |_| ServedWorker {
            began: Time::ZERO,
            iteration: 0,
            first: 0,
            left_count: 0,
            applied_at: Time::ZERO,
            pulled: Vec::new(),
            computed_at: Vec::with_capacity(plan.graph.ops.len()),
            transfer_count: 0,
            busy_since: Time::ZERO,
            push_count: 0,
            record: WorkerRecord::default(),
        };
        let (worker_count, pull_count) = (plan.workers.len(), plan.graph.parameters.len());
        let versions = if plan.is_in_step() { 0 } else { pull_count };
        Self {
            channels: Channels::new(&plan),
            clocks: Clocks::new(worker_count, plan.bound),
            workers: (0..worker_count).map(worker).collect(),
            server_free_at: vec![Time::ZERO; plan.servers.len()],
            applied: BinaryHeap::new(),
            arrived_count: 0,
            held: Vec::new(),
            together,
            measured_count: 0,
            enough: None,
            active_count: worker_count,
            missing_pushes: vec![worker_count as u32; pull_count],
            versions: (0..versions).map(|_| Version::default()).collect(),
            records: vec![Vec::new(); worker_count],
            plan,
        }
    }

    /// A worker begins an iteration: its pulls are ready.
    pub fn begin(&mut self, index: u32, now: Time, records: &mut Records) {
        let worker = &mut self.workers[index as usize];
        let (ops, pulls, pushes) =
            (self.plan.graph.ops.len(), self.plan.graph.parameters.len(), self.plan.pushes.len());
        worker.began = now;
        if now < self.together.since {
            worker.first = worker.iteration + 1;
        }
        worker.left_count = ops + pulls + pushes;
        worker.applied_at = Time::ZERO;
        worker.record = WorkerRecord { start: now, ..WorkerRecord::default() };
        if !self.plan.is_in_step() {
            worker.record.staleness.iterations = self.clocks.lead(worker.iteration);
            worker.pulled.clear();
            worker.pulled.extend(self.versions.iter_mut().map(|version| version.at(now)));
        }
        worker.push_count = 0;
        worker.computed_at.clear();
        worker.computed_at.resize(ops, now);
        records.grow(worker.iteration);
        for transfer in 0..(pulls + pushes) as u32 {
            let record = records.of(worker.iteration, transfer);
            (record.ready, record.needed, record.is_needed) = (now, Time::MAX, true);
        }
        let (order, handed) = self.plan.pulls.next(index as usize, &self.plan.server_of);
        for (rank, parameter) in (0..).zip(order) {
            records.of(worker.iteration, parameter).rank = rank;
        }
        for parameter in handed {
            self.channels.on_ready(index, worker.iteration, parameter);
        }
    }

    /// A gradient is ready: its place among those of the worker.
    pub fn on_push_ready(&mut self, worker: u32, transfer: u32) -> u32 {
        let ServedWorker { push_count, iteration, .. } = &mut self.workers[worker as usize];
        self.channels.on_ready(worker, *iteration, transfer);
        *push_count += 1;
        *push_count - 1
    }

    /// Begins all transfers that are ready.
    pub fn send(&mut self, now: Time, stream: u32, network: &mut dyn Network) {
        let Self { channels, plan, workers, .. } = self;
        channels.send(plan, stream, network, |worker| workers[worker as usize].on_begun(now));
    }

    /// A worker has computed an op, which takes `cost`.
    pub fn on_op_end(&mut self, index: u32, op: OpId, cost: Time, now: Time, records: &mut Records) {
        let worker = &mut self.workers[index as usize];
        worker.record.compute += cost;
        if self.plan.graph.ops[op as usize].is_host {
            worker.record.host += cost;
        }
        worker.record.computed = now - worker.began;
        worker.record.own = worker.record.own.max(worker.record.computed);
        let asked_at = worker.computed_at[op as usize];
        for &parameter in self.plan.graph.uses.from(op) {
            let needed = &mut records.of(worker.iteration, parameter).needed;
            *needed = (*needed).min(asked_at);
        }
        if !self.plan.graph.ops[op as usize].is_param_only {
            let node = self.plan.graph.parameters.len() as u32 + op;
            for &reader in self.plan.graph.readers.from(node) {
                worker.computed_at[reader as usize] = now;
            }
        }
    }

    /// A pull or push of a worker has arrived.
    pub fn on_arrived(&mut self, index: u32, transfer: u32, now: Time) {
        let worker = &mut self.workers[index as usize];
        worker.transfer_count -= 1;
        if worker.transfer_count == 0 {
            worker.record.comm += now - worker.busy_since;
        }
        if let (parameter, true) = self.plan.carried(transfer) {
            worker.record.own = now - worker.began;
            self.on_pushed(index, now, parameter);
        }
    }

    /// A server adds gradients as they come, one after another, and applies a sum when it is complete: that of all
    /// workers in step, else each gradient alone.
    fn on_pushed(&mut self, index: u32, now: Time, parameter: u32) {
        let server = self.plan.server_of[parameter as usize] as usize;
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

    /// An op or a transfer of a worker's iteration is done. After the last, servers have yet to apply its gradients.
    pub fn on_less_left(&mut self, index: u32) {
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

    /// Workers that end their iterations now, since those have been applied and they may go on; `None` if none has been
    /// applied. With `is_over`, all do.
    pub fn released(&mut self, now: Time, is_over: bool, wanted: Option<u64>) -> Option<(Vec<u32>, bool)> {
        let before = self.held.len();
        while let Some(&Reverse((at, index))) = self.applied.peek()
            && at <= now
        {
            self.applied.pop();
            let worker = &self.workers[index as usize];
            self.clocks.complete(worker.iteration, worker.began + worker.record.own);
            self.measured_count += u64::from(worker.first <= worker.iteration);
            self.held.push(index);
        }
        if self.held.len() == before {
            return None;
        }
        if self.enough.is_none() && wanted.is_some_and(|wanted| self.measured_count >= wanted) {
            self.enough = Some(self.workers.iter().map(|worker| worker.iteration + 1).collect());
        }
        let is_over = is_over || (self.enough.is_some() && !self.together.is_shared);
        self.held.sort_unstable();
        let may_go_on = |&worker: &u32| is_over || self.clocks.may_begin(self.workers[worker as usize].iteration + 1);
        let (released, held): (Vec<u32>, Vec<u32>) = std::mem::take(&mut self.held).into_iter().partition(may_go_on);
        self.held = held;
        if is_over {
            self.active_count -= released.len();
        }
        Some((released, is_over))
    }

    /// Ends a worker's iteration: it may begin the next one.
    pub fn end(&mut self, index: u32, now: Time, records: &mut Records) {
        let worker = &mut self.workers[index as usize];
        let own_end = worker.began + worker.record.own;
        worker.record.time = now - worker.began;
        worker.record.waited = match self.clocks.may_begin(worker.iteration + 1) {
            true => self.clocks.waited(worker.iteration, own_end),
            // The job is over, and it would still have to wait.
            false => now - own_end,
        };
        self.records[index as usize].push(worker.record);
        for transfer in 0..(self.plan.graph.parameters.len() + self.plan.pushes.len()) as u32 {
            let needed = &mut records.of(worker.iteration, transfer).needed;
            *needed = (*needed).min(now);
        }
        worker.iteration += 1;
    }

    /// Whether workers have iterations left that are needed.
    pub fn is_active(&self) -> bool {
        let has_left = |enough: &Vec<u32>| self.workers.iter().zip(enough).any(|(worker, &all)| worker.iteration < all);
        self.active_count > 0 && self.enough.as_ref().is_none_or(has_left)
    }

    /// The first measured iteration of a worker, as far as is known.
    pub fn first_measured(&self, worker: u32) -> u32 {
        self.workers[worker as usize].first
    }

    /// Whether the present iteration of a worker is measured.
    pub fn is_measured(&self, index: u32) -> bool {
        let worker = &self.workers[index as usize];
        let is_extra = self.enough.as_ref().is_some_and(|enough| worker.iteration >= enough[index as usize]);
        worker.first <= worker.iteration && !is_extra
    }

    /// The most iterations of a worker that are not measured because a job had not started.
    pub fn most_before(&self) -> u32 {
        self.workers.iter().map(|worker| worker.first).max().unwrap_or(0)
    }

    /// The most iterations that a worker has begun for other jobs.
    pub fn extra_count(&self) -> u32 {
        let extra = |(worker, &all): (&ServedWorker, &u32)| (worker.iteration + 1).saturating_sub(all);
        self.enough.as_ref().and_then(|enough| self.workers.iter().zip(enough).map(extra).max()).unwrap_or(0)
    }

    /// When gradients will next have been applied.
    pub fn wakes_at(&self) -> Option<Time> {
        self.applied.peek().map(|&Reverse((at, _))| at)
    }

    /// Ops and transfers that wait.
    pub fn waiting_ops(&self) -> usize {
        self.workers.iter().map(|worker| worker.left_count).sum()
    }

    /// Iterations that workers have completed, of those that are measured, all together.
    pub fn measured_count(&self) -> u64 {
        self.measured_count
    }

    /// What its workers did, of at most `limit` iterations of the job; and the job.
    pub fn into_record(mut self, limit: Option<u32>) -> (ServedRecord, Box<ServerJob>) {
        let shared = (!self.plan.is_in_step()).then(|| share::iterations(&self.records, self.together.since, limit));
        let first: Vec<u32> = self.workers.iter().map(|worker| worker.first).collect();
        for (index, records) in self.records.iter_mut().enumerate() {
            if let Some(enough) = &self.enough {
                records.truncate(enough[index] as usize);
            }
            records.drain(..records.len().min(first[index] as usize));
        }
        (ServedRecord { workers: self.records, first, shared }, self.plan)
    }
}
