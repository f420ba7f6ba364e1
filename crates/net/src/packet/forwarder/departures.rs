//! The [`PortDriver`] of a [`Forwarder`](super::Forwarder), which receives its packets one by one: a heap of future
//! arrivals.
//!
//! The [calendar](super::super::calendar) is faster, but it collects all arrivals of a bucket before the first one
//! takes place. A forwarder is advanced in arbitrarily short steps.

use super::super::calendar::CalendarPort;
use super::super::driver::PortDriver;
use super::super::event_key::{EventKey, Train};
use super::super::port::Port;
use super::super::timing::Timing;
use super::super::wire::Wire;
use crate::topology::Graph;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A packet on its way to the far end of its link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub at_ps: u64,
    key: EventKey,
    pub link: u32,
    /// Start of the transmission.
    pub start_ps: u64,
    pub packet: Wire,
}

impl Arrival {
    fn order(&self) -> (u64, EventKey, u32) {
        (self.at_ps, self.key, self.link)
    }
}

impl PartialEq for Arrival {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Arrival {}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

/// The next event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// [`Port::on_schedule`] of a port.
    Schedule {
        at_ps: u64,
        link: u32,
    },
    Arrival(Arrival),
}

/// Minimum number of [trains](Train) at which ended ones are removed from the list.
const TRAINS_MIN: usize = 256;

/// Arrivals and scheduled ports.
#[derive(Clone, Debug)]
pub(super) struct Departures {
    timings: Vec<Timing>,
    /// Arrivals at switches.
    arrivals: BinaryHeap<Reverse<Arrival>>,
    /// Arrivals at hosts.
    deliveries: BinaryHeap<Reverse<Arrival>>,
    /// Scheduled ports of switches.
    scheduled: BinaryHeap<Reverse<(u64, u32)>>,
    /// Scheduled ports of hosts.
    scheduled_hosts: BinaryHeap<Reverse<(u64, u32)>>,
    is_of_host: Vec<bool>,
    /// Whether each link leads to a host.
    leads_to_host: Vec<bool>,
    /// Packet trains that ports refer to, and ended trains that are not removed yet. Arrivals do not refer to trains,
    /// because their keys are complete.
    trains: Vec<Train>,
}

impl Departures {
    pub fn new(graph: &Graph, ports: &[Port]) -> Self {
        Self {
            is_of_host: graph.links.iter().map(|link| link.from.0 < graph.host_count).collect(),
            leads_to_host: graph.links.iter().map(|link| link.to.0 < graph.host_count).collect(),
            scheduled_hosts: BinaryHeap::new(),
            deliveries: BinaryHeap::new(),
            timings: ports.iter().map(|port| port.timing().clone()).collect(),
            arrivals: BinaryHeap::new(),
            scheduled: BinaryHeap::new(),
            trains: vec![Train::default()],
        }
    }

    /// Returns the times of the next arrivals at a switch and at a host, in ps; `u64::MAX` without one.
    pub fn next_ps(&self) -> (u64, u64) {
        let next_ps = |arrivals: &BinaryHeap<Reverse<Arrival>>| {
            arrivals.peek().map_or(u64::MAX, |Reverse(arrival)| arrival.at_ps)
        };
        (next_ps(&self.arrivals), next_ps(&self.deliveries))
    }

    /// Removes and returns the first scheduled port of a host whose time is before `end_ps`.
    pub fn pop_host(&mut self, end_ps: u64) -> Option<(u64, u32)> {
        let &Reverse((at_ps, _)) = self.scheduled_hosts.peek()?;
        if at_ps >= end_ps {
            return None;
        }
        self.scheduled_hosts.pop().map(|Reverse(scheduled)| scheduled)
    }

    /// Removes and returns the first event before `end_ps`: a scheduled port of a switch, or an arrival at a switch or
    /// host. At equal times, ports compute their departures first.
    pub fn pop(&mut self, end_ps: u64) -> Option<Next> {
        let (at_switch_ps, at_host_ps) = self.next_ps();
        let arrival_ps = at_switch_ps.min(at_host_ps);
        if let Some(&Reverse((at_ps, link))) = self.scheduled.peek()
            && at_ps <= arrival_ps
        {
            return (at_ps < end_ps).then(|| {
                self.scheduled.pop();
                Next::Schedule { at_ps, link }
            });
        }
        if arrival_ps >= end_ps {
            return None;
        }
        let is_at_host = match (self.arrivals.peek(), self.deliveries.peek()) {
            // `Arrival` is ordered in reverse: the greater one is earlier.
            (Some(at_switch), Some(at_host)) => at_host > at_switch,
            (at_switch, _) => at_switch.is_none(),
        };
        let next = if is_at_host { self.deliveries.pop() } else { self.arrivals.pop() };
        next.map(|Reverse(arrival)| Next::Arrival(arrival))
    }

    /// Removes the packet trains that no port refers to, if there are many trains.
    pub fn drop_ended_trains(&mut self, ports: &mut [Port]) {
        if self.trains.len() < TRAINS_MIN + 4 * ports.len() {
            return;
        }
        self.trains = ports
            .iter_mut()
            .enumerate()
            .map(|(index, port)| {
                let kept = self.trains[*port.train_mut() as usize];
                *port.train_mut() = index as u32;
                kept
            })
            .collect();
    }
}

impl PortDriver for Departures {
    fn sending_ps(&self, link: u32, wire_bytes: u16) -> u64 {
        self.timings[link as usize].serialization.times()[usize::from(wire_bytes)]
    }

    fn push(&mut self, sent_ps: u64, link: u32, train: u32, packet: Wire) {
        let start_ps = sent_ps - self.sending_ps(link, packet.wire_bytes);
        let at_ps = sent_ps + self.timings[link as usize].delay_ps;
        let key = EventKey::new(start_ps, self.trains[train as usize]);
        let arrivals = if self.leads_to_host[link as usize] { &mut self.deliveries } else { &mut self.arrivals };
        arrivals.push(Reverse(Arrival { at_ps, key, link, start_ps, packet }));
    }

    fn schedule_port(&mut self, busy_until_ps: u64, link: u32) {
        let is_of_host = self.is_of_host[link as usize];
        let scheduled = if is_of_host { &mut self.scheduled_hosts } else { &mut self.scheduled };
        scheduled.push(Reverse((busy_until_ps + 1, link)));
    }

    fn begin_train(&mut self, train: Train) -> u32 {
        self.trains.push(train);
        (self.trains.len() - 1) as u32
    }

    fn train(&self, index: u32) -> Train {
        self.trains[index as usize]
    }

    // Hosts are outside of the forwarder and limit the bytes of a connection in their NIC themselves.
    fn enter_nic(&mut self, _packet: &Wire) {}

    fn leave_nic(&mut self, _packet: &Wire) {}

    fn nic_bytes(&self, _connection: u32) -> u64 {
        0
    }
}
