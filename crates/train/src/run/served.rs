//! Parameter servers during a run: the order of pulls, when gradients are applied, which worker may begin its next
//! iteration (the bound on its lead, see `ps::clocks`), and the record of every worker. The executor runs ops and
//! connects them with transfers.
//!
//! In step (synchronous), a server applies the sum of all workers' gradients of a parameter; otherwise each gradient
//! alone as it arrives, and a worker's staleness is counted.

use super::Together;
use super::channels::Channels;
use super::record::Records;
use crate::dag::OpId;
use crate::ps::clocks::Clocks;
use crate::ps::{PsJob, ServedRecord, Staleness, WorkerRecord, share};
use gradtide_net::{Network, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// State of a job's parameter servers and their workers.
pub struct Served {
    /// The job.
    pub plan: Box<PsJob>,
    /// Connections for pulls and pushes.
    pub channels: Channels,
    clocks: Clocks,
    workers: Vec<ServedWorker>,
    /// When each server has summed and applied all gradients received so far, in order of arrival.
    server_free_at: Vec<Time>,
    /// Workers whose iteration is complete but for the servers, with the time at which all its gradients are applied.
    applied: BinaryHeap<Reverse<(Time, u32)>>,
    /// In step: workers whose ops and transfers of the iteration are done.
    arrived_count: usize,
    /// Workers that have completed an iteration and may not begin the next one yet.
    held: Vec<u32>,
    /// Workers that have not ended their last iteration.
    active_count: usize,
    /// In step: for each parameter, gradients of the iteration that its server has not received.
    missing_pushes: Vec<u32>,
    together: Together,
    /// Measured iterations that all workers together have completed.
    measured_count: u64,
    /// Once enough is measured: for each worker, the number of iterations that count, with the present one.
    enough: Option<Vec<u32>>,
    /// Not in step: the gradients received for each parameter.
    versions: Vec<Version>,
    records: Vec<Vec<WorkerRecord>>,
}

/// Gradients of one parameter, each applied alone.
#[derive(Default)]
struct Version {
    arrived_count: u64,
    applied_count: u64,
    /// Times at which gradients that have arrived will be applied.
    pending: VecDeque<Time>,
}

/// State of a worker in its present iteration.
struct ServedWorker {
    began: Time,
    iteration: u32,
    /// First measured iteration. It moves on while other jobs have not started.
    first: u32,
    /// Ops and transfers of the iteration that have not ended.
    left_count: usize,
    /// When the last gradient pushed so far in this iteration will be applied.
    applied_at: Time,
    /// Not in step: updates that each parameter had at the start of the iteration, when it was pulled.
    pulled: Vec<u64>,
    /// For each op, when its last input was computed, inputs that depend on parameters alone excepted.
    computed_at: Vec<Time>,
    /// Pulls and pushes in progress, and since when there are any.
    transfer_count: u32,
    busy_since: Time,
    push_count: u32,
    record: WorkerRecord,
}

impl ServedWorker {
    /// Counts a pull or a push that begins.
    fn on_begun(&mut self, now: Time) {
        if self.transfer_count == 0 {
            self.busy_since = now;
        }
        self.transfer_count += 1;
    }
}

impl Version {
    /// Number of gradients applied by `now`.
    fn at(&mut self, now: Time) -> u64 {
        while self.pending.front().is_some_and(|&at| at <= now) {
            self.pending.pop_front();
            self.applied_count += 1;
        }
        self.applied_count
    }
}

impl Served {
    /// Idle servers.
    pub fn new(plan: Box<PsJob>, together: Together) -> Self {
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
        let versions = if plan.is_synchronous() { 0 } else { pull_count };
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

    /// Begins a worker's iteration: its pulls are ready.
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
        if !self.plan.is_synchronous() {
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

    /// Queues a push; returns its position in the worker's order of pushes.
    pub fn on_push_ready(&mut self, worker: u32, transfer: u32) -> u32 {
        let ServedWorker { push_count, iteration, .. } = &mut self.workers[worker as usize];
        self.channels.on_ready(worker, *iteration, transfer);
        *push_count += 1;
        *push_count - 1
    }

    /// Starts all transfers that are ready.
    pub fn send(&mut self, now: Time, stream: u32, network: &mut dyn Network) {
        let Self { channels, plan, workers, .. } = self;
        channels.send(plan, stream, network, |worker| workers[worker as usize].on_begun(now));
    }

    /// Records that a worker has computed an op, which took `cost`.
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

    /// Records that a pull or push has arrived.
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

    /// Adds a gradient on its server, in order of arrival. In step, the sum of all workers is applied when complete;
    /// otherwise each gradient is applied at once.
    fn on_pushed(&mut self, index: u32, now: Time, parameter: u32) {
        let server = self.plan.server_of[parameter as usize] as usize;
        let free_at = &mut self.server_free_at[server];
        *free_at = (*free_at).max(now) + self.plan.adding_time(parameter);
        let update = self.plan.graph.parameters[parameter as usize].update;
        if self.plan.is_synchronous() {
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

    /// Counts an op or a transfer that has ended. After the last one of the iteration, the servers still have to apply
    /// its gradients.
    pub fn on_less_left(&mut self, index: u32) {
        let worker = &mut self.workers[index as usize];
        worker.left_count -= 1;
        if worker.left_count > 0 {
            return;
        }
        if !self.plan.is_synchronous() {
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

    /// Workers that end their iterations now, because their gradients are applied and the clocks let them continue, and
    /// whether the job is over; `None` if no gradients have been applied since the last call. If the job is over, all
    /// workers end theirs.
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

    /// Ends a worker's iteration and records it; the next one may begin.
    pub fn end(&mut self, index: u32, now: Time, records: &mut Records) {
        let worker = &mut self.workers[index as usize];
        let own_end = worker.began + worker.record.own;
        worker.record.time = now - worker.began;
        worker.record.waited = match self.clocks.may_begin(worker.iteration + 1) {
            true => self.clocks.waited(worker.iteration, own_end),
            // The job is over while the worker would still have to wait.
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

    /// The first measured iteration of a worker. It moves on while other jobs have not started.
    pub fn first_measured(&self, worker: u32) -> u32 {
        self.workers[worker as usize].first
    }

    /// Whether the present iteration of a worker is measured.
    pub fn is_measured(&self, index: u32) -> bool {
        let worker = &self.workers[index as usize];
        let is_extra = self.enough.as_ref().is_some_and(|enough| worker.iteration >= enough[index as usize]);
        worker.first <= worker.iteration && !is_extra
    }

    /// Maximum over workers of the iterations excluded because another job had not started.
    pub fn most_before(&self) -> u32 {
        self.workers.iter().map(|worker| worker.first).max().unwrap_or(0)
    }

    /// Maximum over workers of the iterations run only because other jobs continue.
    pub fn extra_count(&self) -> u32 {
        let extra = |(worker, &all): (&ServedWorker, &u32)| (worker.iteration + 1).saturating_sub(all);
        self.enough.as_ref().and_then(|enough| self.workers.iter().zip(enough).map(extra).max()).unwrap_or(0)
    }

    /// When the gradients of an iteration will next be applied.
    pub fn wakes_at(&self) -> Option<Time> {
        self.applied.peek().map(|&Reverse((at, _))| at)
    }

    /// Number of ops and transfers that have not ended.
    pub fn waiting_ops(&self) -> usize {
        self.workers.iter().map(|worker| worker.left_count).sum()
    }

    /// Measured iterations that all workers together have completed.
    pub fn measured_count(&self) -> u64 {
        self.measured_count
    }

    /// The record of the workers, limited to `limit` iterations of the job, and the job.
    pub fn into_record(mut self, limit: Option<u32>) -> (ServedRecord, Box<PsJob>) {
        let shared =
            (!self.plan.is_synchronous()).then(|| share::iterations(&self.records, self.together.since, limit));
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
