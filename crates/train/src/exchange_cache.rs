//! The fluid engine for one job that is alone on the network. The duration of an exchange then depends only on its
//! size.
//!
//! One flow of the job represents all messages of a collective. The first exchange of a size is simulated on the fluid
//! engine, which is idle between exchanges. Later exchanges of this size reuse the result.

use crate::collective::algorithms::ring;
use crate::collective::exchange;
use crate::collective::messages::Collective;
use gradtide_net::fluid::{ExclusivePath, Load};
use gradtide_net::{Band, Bytes, Completion, Ends, Flow, FlowId, Fluid, Network, Time};
use gradtide_watch::check_cancelled;
use std::collections::BTreeMap;

/// A network that caches, by size, the duration of exchanges and the loads that they add to links.
#[derive(Debug)]
pub struct ExchangeCache {
    fluid: Fluid,
    collective: Collective,
    /// Delays between the ranks and the network.
    ends: Ends,
    /// Stream of the job's flows.
    stream: u32,
    /// Paths of the exchange's flows, if no two of them share a bottleneck. Durations are then computed in closed form.
    paths: Option<Vec<ExclusivePath>>,
    /// Cached exchanges, by their bytes.
    known: BTreeMap<Bytes, Known>,
    now: Time,
    /// Exchange in flight, with its future completion.
    under_way: Option<(Flow, Completion)>,
    started_count: u64,
}

/// Cached result of an exchange of one size.
#[derive(Debug)]
struct Known {
    duration: Time,
    /// Bytes and busy time of each link, by port.
    loads: Vec<Load>,
    events: u64,
    /// Number of exchanges of this size that have begun.
    count: u64,
}

impl ExchangeCache {
    /// Creates the cache for the job whose flows use `stream`. `fluid` must be idle and must not have carried traffic.
    pub fn new(fluid: Fluid, collective: Collective, stream: u32, ends: Ends) -> Self {
        let band = Band::new(0).expect("there is a first band");
        let of_plan = || exchange::exclusive_paths(&collective.plan(Bytes(0)), collective.hosts(), stream, &fluid);
        let paths = match collective.flows(Bytes(0), band, stream) {
            Some(flows) => exchange::ways(&flows, &ends, stream, &fluid),
            None => (collective.is_plain() && ends.host.is_none() && ends.nodes.is_none()).then(of_plan).flatten(),
        };
        let (known, now) = (BTreeMap::new(), Time::ZERO);
        Self { fluid, collective, ends, stream, paths, known, now, under_way: None, started_count: 0 }
    }

    /// Returns the duration of an exchange of `bytes`.
    pub fn time(&mut self, bytes: Bytes) -> Time {
        let hosts = self.collective.hosts();
        let flow = ring::lock_step(hosts, bytes, Band::new(0).expect("there is a first band"), self.stream, Time::ZERO);
        flow.map_or(Time::ZERO, |flow| self.known(&flow).duration)
    }

    /// Returns the underlying network, which is idle.
    pub fn into_fluid(self) -> Fluid {
        self.fluid
    }

    /// Returns the underlying network, which is idle between exchanges.
    pub fn fluid(&self) -> &Fluid {
        &self.fluid
    }

    /// Returns the load of each link up to now, by port.
    pub fn loads(&self) -> Vec<Load> {
        let none = || vec![Load::default(); self.fluid.link_count() as usize];
        let mut loads = self.under_way.map_or_else(none, |(flow, completion)| self.loads_of(&flow, completion.began));
        for (bytes, known) in &self.known {
            let under_way = self.under_way.is_some_and(|(flow, _)| flow.bytes == *bytes);
            let ended = known.count - u64::from(under_way);
            loads.iter_mut().zip(&known.loads).for_each(|(sum, load)| *sum += *load * ended);
        }
        loads
    }

    /// Returns the load that an exchange in progress has added to each link so far.
    fn loads_of(&self, flow: &Flow, began: Time) -> Vec<Load> {
        let elapsed = self.now - began;
        if let Some(paths) = &self.paths {
            let link_count = self.fluid.link_count();
            return match self.collective.flows(flow.bytes, flow.band, flow.stream) {
                Some(flows) => exchange::loads_of_flows(&flows, paths, link_count, elapsed),
                None => exchange::loads_on_paths(&self.collective.plan(flow.bytes), paths, link_count, elapsed),
            };
        }
        let mut fluid = self.fluid.clone();
        let (before, until) = (exchange::loads(&fluid), fluid.now() + elapsed);
        carry_out(&self.collective, &self.ends, flow, &mut fluid, until);
        since(&before, &fluid)
    }

    /// Returns the number of events that a simulation of every exchange would have processed.
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
        if let Some(paths) = &self.paths {
            let link_count = self.fluid.link_count();
            let took = match self.collective.flows(flow.bytes, flow.band, flow.stream) {
                Some(flows) => exchange::of_flows(&flows, paths, link_count),
                None => exchange::on_exclusive_paths(&self.collective.plan(flow.bytes), paths, link_count),
            };
            return Known { duration: took.duration, loads: took.loads, events: took.message_count, count: 0 };
        }
        let (began, before, events) = (self.fluid.now(), exchange::loads(&self.fluid), self.fluid.counters().events);
        carry_out(&self.collective, &self.ends, flow, &mut self.fluid, Time::MAX);
        Known {
            duration: self.fluid.now() - began,
            loads: since(&before, &self.fluid),
            events: self.fluid.counters().events - events,
            count: 0,
        }
    }
}

/// Simulates an exchange on an idle network until its end or until the time `until`.
fn carry_out(collective: &Collective, ends: &Ends, flow: &Flow, fluid: &mut Fluid, until: Time) {
    let mut network = ends.around(fluid);
    let network = network.as_mut();
    let mut aggregation = collective.begin(flow.bytes, flow.band, flow.stream, network);
    let mut done = Vec::new();
    while network.now() < until {
        check_cancelled();
        let wakes_at = aggregation.wakes_at().unwrap_or(Time::MAX);
        network.advance(wakes_at.min(until), &mut done);
        let now = network.now();
        let mut is_over = wakes_at <= now && aggregation.settle(now, network);
        for completion in done.drain(..) {
            is_over = aggregation.on_completion(completion, network);
        }
        if is_over {
            return;
        }
    }
}

/// Returns the load that each link has gained since `before`.
fn since(before: &[Load], fluid: &Fluid) -> Vec<Load> {
    exchange::loads(fluid).into_iter().zip(before).map(|(after, &before)| after - before).collect()
}

impl Network for ExchangeCache {
    fn now(&self) -> Time {
        self.now
    }

    /// # Panics
    /// If an exchange is in flight.
    fn start(&mut self, flow: Flow) -> FlowId {
        assert!(self.under_way.is_none(), "a job has one exchange on the network at a time");
        let known = self.known(&flow);
        known.count += 1;
        let duration = known.duration;
        let id = FlowId(self.started_count);
        self.started_count += 1;
        let ends_at = self.now + duration;
        let completion = Completion { flow: id, stream: flow.stream, began: self.now, received: ends_at };
        self.under_way = Some((flow, completion));
        id
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        match self.under_way.take_if(|(_, completion)| completion.received <= until) {
            Some((_, completion)) => {
                self.now = completion.received;
                done.push(completion);
            }
            None => self.now = until,
        }
    }

    /// Returns nothing, because the cache opens no connections.
    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        Vec::new()
    }
}
