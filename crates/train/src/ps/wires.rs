//! Paths between workers and servers, the bytes that an iteration sends over them, and lower bounds of transfer times.
//! A [`Passage`] is a shared resource of a path in one direction, such as a host's link. Comments call it a link.

use super::WorkerGraph;
use super::channels::Channels;
use gradtide_net::path::{Passage, Paths};
use gradtide_net::{Bytes, HostId, Link, Rate, Time};
use std::collections::BTreeMap;

/// The links between the workers and the servers of a job, with their loads.
pub struct Wires {
    /// For each worker and server, the bottleneck rate of their path, equal in both directions, and its total delay.
    routes: Vec<Vec<Link>>,
    /// Lower bound of each worker's transfer time in an iteration, which is the time of all its bytes on its busiest
    /// link.
    busiest: Vec<Time>,
    loads: BTreeMap<Passage, Load>,
}

/// Load of a link from one iteration of every worker.
struct Load {
    rate: Rate,
    pulled: u128,
    sent: u128,
    /// Smallest number of bytes that any worker sends and receives over the link in an iteration.
    least: u128,
    workers: u32,
    /// Number of workers that pull over the link, and number of pairs of a worker and a server whose pulls use the
    /// link.
    pullers: u32,
    pairs: u32,
}

/// Load of a link from one iteration of one worker.
struct WorkerLoad {
    rate: Rate,
    pulled: u128,
    pushed: u128,
    pairs: u32,
}

impl Wires {
    /// Computes the loads of all links. `workers` and `servers` are the hosts of workers and servers, and `server_of`
    /// is the server of each parameter.
    pub fn new(graph: &WorkerGraph, workers: &[u32], servers: &[u32], server_of: &[u32], paths: &Paths) -> Self {
        let mut bytes = vec![[0_u128; 2]; servers.len()];
        for (parameter, &server) in graph.parameters.iter().zip(server_of) {
            let [pulled, pushed] = &mut bytes[server as usize];
            *pulled += u128::from(parameter.bytes.0);
            *pushed += if parameter.is_trained { u128::from(parameter.bytes.0) } else { 0 };
        }
        let mut wires = Self {
            routes: Vec::with_capacity(workers.len()),
            busiest: Vec::with_capacity(workers.len()),
            loads: BTreeMap::new(),
        };
        for &worker in workers {
            let mut loads: BTreeMap<Passage, WorkerLoad> = BTreeMap::new();
            let mut routes = Vec::with_capacity(servers.len());
            for (&server, &[pulled, pushed]) in servers.iter().zip(&bytes) {
                let (worker, server) = (HostId(worker), HostId(server));
                for (passage, link) in paths.passages(server, worker) {
                    let load = WorkerLoad::at(&mut loads, passage, link.rate);
                    load.pulled += pulled;
                    load.pairs += 1;
                }
                for (passage, link) in paths.passages(worker, server) {
                    WorkerLoad::at(&mut loads, passage, link.rate).pushed += pushed;
                }
                let links = paths.passages(server, worker).map(|(_, link)| link);
                let both = |a: Link, b: Link| Link { rate: a.rate.min(b.rate), delay: a.delay + b.delay };
                routes.push(links.reduce(both).expect("a message passes a link"));
            }
            let times = loads.values().map(|load| sending(load.pulled + load.pushed, load.rate));
            wires.busiest.push(times.max().unwrap_or_default());
            wires.routes.push(routes);
            for (passage, own) in loads {
                wires.add(passage, &own);
            }
        }
        wires
    }

    fn add(&mut self, passage: Passage, own: &WorkerLoad) {
        let none = Load { rate: own.rate, pulled: 0, sent: 0, least: u128::MAX, workers: 0, pullers: 0, pairs: 0 };
        let load = self.loads.entry(passage).or_insert(none);
        load.pulled += own.pulled;
        load.sent += own.pulled + own.pushed;
        load.least = load.least.min(own.pulled + own.pushed);
        load.workers += 1;
        load.pullers += u32::from(own.pairs > 0);
        load.pairs += own.pairs;
    }

    /// Returns the time from the start of a message between a worker and a server to the arrival of its last byte, on
    /// an idle network.
    pub fn alone(&self, worker: usize, server: u32, bytes: Bytes) -> Time {
        let route = self.routes[worker][server as usize];
        sending(bytes.0.into(), route.rate) + route.delay
    }

    /// Returns a lower bound of one worker's transfer time in an iteration.
    pub fn of_worker(&self, worker: usize) -> Time {
        self.busiest[worker]
    }

    /// Returns a lower bound of the transfer time of one iteration of every worker. If workers are asynchronous
    /// (`are_in_step` is false), the bound holds for any n iterations of the n workers.
    pub fn together(&self, are_in_step: bool) -> Time {
        let count = self.routes.len() as u32;
        let bytes = |load: &Load| match are_in_step {
            true => load.sent,
            false if load.workers == count => load.least * u128::from(count),
            false => 0,
        };
        self.loads.values().map(|load| sending(bytes(load), load.rate)).max().unwrap_or_default()
    }

    /// Returns a lower bound of the time in which all workers pull everything once, if they start simultaneously.
    pub fn pulls(&self) -> Time {
        self.loads.values().map(|load| sending(load.pulled, load.rate)).max().unwrap_or_default()
    }

    /// Returns the channels to the worker with the longest transfer time. Ties go to the lowest index.
    pub fn channels<'a>(
        &self,
        workers: &[u32],
        servers: &[u32],
        server_of: &'a [u32],
        sizes: &'a [Bytes],
        paths: &Paths,
    ) -> Channels<'a> {
        let worker = (0..workers.len()).rev().max_by_key(|&worker| self.busiest[worker]).unwrap_or(0);
        let mut channels = Channels {
            server_of,
            sizes,
            delays: self.routes[worker].iter().map(|route| route.delay).collect(),
            shares_bps: Vec::new(),
            entries: Vec::new(),
            entry_bps: Vec::new(),
        };
        let mut entries: Vec<Passage> = Vec::new();
        for &server in servers {
            let (mut share, mut entry, mut entry_bps) = (f64::INFINITY, None, f64::INFINITY);
            for (passage, link) in paths.passages(HostId(server), HostId(workers[worker])) {
                let (load, bps) = (&self.loads[&passage], link.rate.bps() as f64);
                if passage.is_sender() {
                    share = share.min(bps / f64::from(load.pairs));
                } else {
                    entry = entry.or(Some(passage));
                    entry_bps = entry_bps.min(bps / f64::from(load.pullers));
                }
            }
            let entry = entry.expect("a message goes into a host");
            let known = entries.iter().position(|&other| other == entry);
            channels.shares_bps.push(share);
            channels.entries.push(known.unwrap_or(entries.len()));
            if known.is_none() {
                entries.push(entry);
                channels.entry_bps.push(entry_bps);
            }
        }
        channels
    }
}

impl WorkerLoad {
    fn at(loads: &mut BTreeMap<Passage, Self>, passage: Passage, rate: Rate) -> &mut Self {
        loads.entry(passage).or_insert(Self { rate, pulled: 0, pushed: 0, pairs: 0 })
    }
}

/// Returns the serialization time of `bytes`, rounded up and limited to [`Time::MAX`].
fn sending(bytes: u128, rate: Rate) -> Time {
    let ps = (bytes * 8 * 1_000_000_000_000).div_ceil(u128::from(rate.bps()));
    Time::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
}
