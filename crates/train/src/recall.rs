//! The fluid engine for one job that has the network for itself: an exchange takes as long every time.
//!
//! The job's flow stands for all messages of a collective. The first one of a size is carried out on the fluid engine,
//! which is idle between exchanges; of all that follow the answer is remembered.

use crate::collective::exchange;
use crate::collective::messages::Collective;
use crate::collective::ring;
use gradtide_net::fluid::Lane;
use gradtide_net::{Band, Bytes, Completion, Flow, FlowId, Fluid, Host, Hosts, Network, PortId, Time};
use gradtide_watch::look;
use std::collections::BTreeMap;

/// A network that knows how long exchanges take.
#[derive(Debug)]
pub struct Recall {
    fluid: Fluid,
    collective: Collective,
    /// What hosts add to its messages, if anything.
    host: Option<Host>,
    /// The job's.
    stream: u32,
    /// Ways of a ring whose ranks never slow one another.
    lanes: Option<Vec<Lane>>,
    /// By bytes.
    known: BTreeMap<Bytes, Known>,
    now: Time,
    /// When the exchange under way ends.
    under_way: Option<(Time, Completion)>,
    started_count: u64,
}

/// An exchange of one size.
#[derive(Debug)]
struct Known {
    duration: Time,
    /// Bytes and time on each link.
    links: Vec<(u64, Time)>,
    events: u64,
    count: u64,
}

impl Recall {
    /// An idle network, of which `fluid` has carried nothing, for the job of this stream.
    pub fn new(fluid: Fluid, collective: Collective, stream: u32, host: Option<Host>) -> Self {
        let of_plan = || exchange::lanes(&collective.plan(Bytes(0)), collective.hosts(), stream, &fluid);
        let lanes = (collective.is_plain() && host.is_none()).then(of_plan).flatten();
        let (known, now) = (BTreeMap::new(), Time::ZERO);
        Self { fluid, collective, host, stream, lanes, known, now, under_way: None, started_count: 0 }
    }

    /// How long an exchange of `bytes` takes.
    pub fn time(&mut self, bytes: Bytes) -> Time {
        let hosts = self.collective.hosts();
        let flow = ring::lock_step(hosts, bytes, Band::new(0).expect("there is a first band"), self.stream, Time::ZERO);
        flow.map_or(Time::ZERO, |flow| self.known(&flow).duration)
    }

    /// The network below, idle.
    pub fn into_fluid(self) -> Fluid {
        self.fluid
    }

    /// Bytes and busy time of a link.
    pub fn used(&self, port: u32) -> (u64, Time) {
        let of_size = |known: &Known| {
            let (bytes, busy) = known.links[port as usize];
            (bytes * known.count, Time::from_ps(busy.ps() * known.count))
        };
        self.known.values().map(of_size).fold((0, Time::ZERO), |(all, busy), (bytes, time)| (all + bytes, busy + time))
    }

    /// Events inside the engine, had every exchange been carried out.
    pub fn event_count(&self) -> u64 {
        self.known.values().map(|known| known.events * known.count).sum()
    }

    fn known(&mut self, flow: &Flow) -> &mut Known {
        if !self.known.contains_key(&flow.bytes) {
            let known = self.exchange(flow);
            self.known.insert(flow.bytes, known);
        }
        self.known.get_mut(&flow.bytes).expect("it has just been put there")
    }

    fn exchange(&mut self, flow: &Flow) -> Known {
        if let Some(lanes) = &self.lanes {
            let plan = self.collective.plan(flow.bytes);
            let took = exchange::in_lanes(&plan, lanes, self.fluid.link_count());
            let busy = |(port, bytes): (u32, &Bytes)| (bytes.0, self.fluid.sending_time(PortId(port), *bytes));
            return Known {
                duration: took.duration,
                links: (0..).zip(&took.link_bytes).map(busy).collect(),
                events: took.message_count,
                count: 0,
            };
        }
        let used = |fluid: &Fluid| -> Vec<(u64, Time)> {
            let of = |port| fluid.port_counters(PortId(port));
            (0..fluid.link_count()).map(of).map(|counters| (counters.bytes, counters.busy)).collect()
        };
        let (began, before, events) = (self.fluid.now(), used(&self.fluid), self.fluid.counters().events);
        match &self.host {
            None => carry_out(&self.collective, flow, &mut self.fluid),
            Some(host) => carry_out(&self.collective, flow, &mut Hosts::new(host.clone(), &mut self.fluid)),
        }
        let links = used(&self.fluid).into_iter().zip(before);
        Known {
            duration: self.fluid.now() - began,
            links: links.map(|(after, before)| (after.0 - before.0, after.1 - before.1)).collect(),
            events: self.fluid.counters().events - events,
            count: 0,
        }
    }
}

/// Carries out an exchange on an idle network, to its end.
fn carry_out(collective: &Collective, flow: &Flow, network: &mut dyn Network) {
    let mut messages = collective.begin(flow.bytes, flow.band, flow.stream, network);
    let mut done = Vec::new();
    loop {
        look();
        let until = messages.wakes_at().unwrap_or(Time::MAX);
        network.advance(until, &mut done);
        let now = network.now();
        let mut is_over = until <= now && messages.settle(now, network);
        for completion in done.drain(..) {
            is_over = messages.on_completion(completion, network);
        }
        if is_over {
            return;
        }
    }
}

impl Network for Recall {
    fn now(&self) -> Time {
        self.now
    }

    /// # Panics
    /// If an exchange is under way.
    fn start(&mut self, flow: Flow) -> FlowId {
        assert!(self.under_way.is_none(), "a job has one exchange on the network at a time");
        let known = self.known(&flow);
        known.count += 1;
        let duration = known.duration;
        let id = FlowId(self.started_count);
        self.started_count += 1;
        let ends_at = self.now + duration;
        let completion = Completion { flow: id, stream: flow.stream, began: self.now, received: ends_at };
        self.under_way = Some((ends_at, completion));
        id
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        match self.under_way.take_if(|(ends_at, _)| *ends_at <= until) {
            Some((ends_at, completion)) => {
                self.now = ends_at;
                done.push(completion);
            }
            None => self.now = until,
        }
    }
}
