//! The switches of the packet engine without its hosts: packets enter at a host's port at given times, and leave at
//! another host or are dropped.
//!
//! ```text
//! send(time, frame) -> [host port -> link] -> switch -> [port -> link] -> … -> Decision
//! ```
//!
//! Ports, qdiscs, shared buffers, PCN and routes are those of the [engine](super), so the same arrivals cause the same
//! departures, drops and marks, packet by packet. A forwarder reads no clock: the caller sends packets as they arrive,
//! and [advances](Forwarder::advance) the network to a time before which all packets are known. A packet takes at least
//! [`Forwarder::lookahead`] from its host's port to the first switch, so switches are advanced to a time later by this
//! lookahead.

mod departures;
mod fabric;
mod replay;
#[cfg(test)]
mod tests;

pub use fabric::Origin;
pub use replay::replay;

use super::calendar::CalendarPort;
use super::event_key::EventTime;
use super::qdisc::Verdict;
use super::wire::{Wire, flag};
use super::{PacketConfig, pcn, ports};
use crate::route::RouteError;
use crate::topology::{Graph, PortId};
use crate::trace::{PortCounters, PortState};
use crate::units::Time;
use crate::{Band, HostId};
use departures::{Arrival, Departures, Next};
use fabric::Fabric;

/// The role of a packet in PCN (proactive congestion notification).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A packet with data. It withdraws the announcement of its connection's burst.
    Data,
    /// Carries no data.
    Empty,
    /// A burst announcement or the answer to one, with this type-of-service field (Kang et al. 2021, fig. 7).
    Announcement(u8),
}

/// A packet that a host sends to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of the packet, chosen by the caller and returned in the packet's [`Decision`].
    pub number: u32,
    /// Number of the connection, from [`Forwarder::open`].
    pub connection: u32,
    /// Destination.
    pub dst: HostId,
    /// Bytes on the wire, at most [`Forwarder::bytes_max`].
    pub wire_bytes: u16,
    /// Band in every qdisc on the path.
    pub band: Band,
    /// Whether the packet is ECN-capable (RFC 3168).
    pub is_ecn_capable: bool,
    /// Meaning to a switch with PCN.
    pub kind: Kind,
}

/// What the network did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// [`Frame::number`] of the packet.
    pub number: u32,
    /// Time of the arrival at the destination, or of the drop.
    pub at: Time,
    /// Whether a switch has marked the packet (CE of RFC 3168).
    pub is_marked: bool,
    /// The port that dropped the packet; `None` if the packet arrived.
    pub dropped_by: Option<PortId>,
}

impl Frame {
    fn wire(&self) -> Wire {
        let (tos, kind) = match self.kind {
            Kind::Announcement(tos) => (tos, flag::PCN),
            Kind::Data | Kind::Empty => (0, 0),
        };
        let ect = if self.is_ecn_capable { flag::ECT } else { 0 };
        let headers = Wire { connection: self.connection, dst: self.dst.0, flags: kind | ect, ..Wire::NOTHING };
        let wire = match self.kind {
            // The length of the payload is unknown here, but ports only read the length on the wire.
            Kind::Data => headers.carrying(self.wire_bytes),
            Kind::Empty | Kind::Announcement(_) => Wire { wire_bytes: self.wire_bytes, ..headers },
        };
        wire.numbered(pcn::numbered(u64::from(self.number), tos)).in_band(self.band.index())
    }
}

impl Decision {
    fn of(at_ps: u64, packet: &Wire, dropped_by: Option<PortId>) -> Self {
        // A frame's number has 32 bits.
        let number = pcn::number(packet) as u32;
        Self { number, at: Time::from_ps(at_ps), is_marked: packet.flags & flag::CE != 0, dropped_by }
    }
}

/// Sequence number of the first arrival at an instant. Packets that hosts send at that instant have smaller numbers.
const FIRST_ARRIVAL: u32 = 1 << 30;

/// The switches and links of a network, advanced by their caller.
#[derive(Clone, Debug)]
pub struct Forwarder {
    fabric: Fabric<Departures>,
    bytes_max: u16,
    lookahead_ps: u64,
    /// Shortest latency of all links.
    latency_ps: u64,
    /// Time before which all packets that hosts sent are known.
    known_ps: u64,
    /// Time and sequence number of the last arrival.
    event: (u64, u32),
    /// Time at which each host last sent a packet.
    last_sent_ps: Vec<u64>,
    sent_count: u32,
}

impl Forwarder {
    /// Creates an idle network at time zero. `config` is a configuration of the [engine](super::PacketEngine). Its
    /// transport parameters only determine packet sizes.
    ///
    /// # Errors
    /// [`RouteError`] if the graph does not connect its hosts.
    pub fn new(graph: &Graph, config: &PacketConfig) -> Result<Self, RouteError> {
        let fabric = Fabric::new(graph, config, |ports| Departures::new(graph, ports))?;
        let first = |host| fabric.ports[fabric.routes.first(host).0 as usize].timing().latency_ps();
        Ok(Self {
            bytes_max: ports::bytes_max(config),
            lookahead_ps: (0..graph.host_count).map(first).min().unwrap_or(0),
            latency_ps: fabric.ports.iter().map(|port| port.timing().latency_ps()).min().unwrap_or(0),
            known_ps: 0,
            event: (0, FIRST_ARRIVAL),
            last_sent_ps: vec![0; graph.host_count as usize],
            sent_count: 0,
            fabric,
        })
    }

    /// Returns the maximum size of a packet on the links, in bytes on the wire.
    pub fn bytes_max(&self) -> u16 {
        self.bytes_max
    }

    /// Returns the minimum time that a packet takes from a host's port to the first switch.
    pub fn lookahead(&self) -> Time {
        Time::from_ps(self.lookahead_ps)
    }

    /// Adds one direction of a connection and returns its number. A burst announcement has the connection of its burst.
    pub fn open(&mut self, origin: Origin) -> u32 {
        self.fabric.origins.push(origin);
        (self.fabric.origins.len() - 1) as u32
    }

    /// Sends a packet from its connection's host at `at`. If the last packet of the host or the last
    /// [`Forwarder::advance`] has a later time than `at`, the packet is sent at that later time. Returns the
    /// difference.
    ///
    /// # Panics
    /// If the packet is longer than [`Forwarder::bytes_max`], or its connection is not open.
    pub fn send(&mut self, at: Time, frame: &Frame, decisions: &mut Vec<Decision>) -> Time {
        assert!(frame.wire_bytes <= self.bytes_max, "the packet fits the links");
        let host = self.fabric.origins[frame.connection as usize].src.0 as usize;
        let at_ps = at.ps().max(self.last_sent_ps[host]).max(self.known_ps);
        self.last_sent_ps[host] = at_ps;
        // Sequence numbers may wrap around, because only those of packets at one instant are compared.
        self.sent_count = (self.sent_count + 1) % FIRST_ARRIVAL;
        let wire = frame.wire();
        // Events of hosts count as scheduled before all simultaneous arrivals.
        let at_host = EventTime { now_ps: at_ps, scheduled_ps: 0, sequence: self.sent_count };
        let (port, verdict) = self.fabric.enter(at_host, wire);
        if verdict == Verdict::Dropped {
            decisions.push(Decision::of(at_ps, &wire, Some(port)));
        }
        Time::from_ps(at_ps - at.ps())
    }

    /// Returns a lower bound on the time of the next arrival at a host if no host sends another packet, or
    /// [`Time::MAX`] if no packet is in the network. A packet at a switch arrives after at least the shortest latency
    /// of all links.
    pub fn next_at(&self) -> Time {
        let (at_switch_ps, at_host_ps) = self.fabric.driver.next_ps();
        Time::from_ps(at_switch_ps.saturating_add(self.latency_ps).min(at_host_ps))
    }

    /// Processes the events of hosts' ports before `until`, and all other events before `until` plus
    /// [`Forwarder::lookahead`]. All packets that hosts send before `until` must have been [sent](Forwarder::send).
    /// Appends decisions in the order of their times.
    pub fn advance(&mut self, until: Time, decisions: &mut Vec<Decision>) {
        self.known_ps = self.known_ps.max(until.ps());
        let Fabric { ports, driver, .. } = &mut self.fabric;
        while let Some((at_ps, link)) = driver.pop_host(self.known_ps) {
            ports[link as usize].on_schedule(at_ps, driver);
        }
        let end_ps = self.now_ps();
        while let Some(next) = self.fabric.driver.pop(end_ps) {
            self.on_event(next, decisions);
        }
        self.fabric.driver.drop_ended_trains(&mut self.fabric.ports);
    }

    /// Returns the time up to which the switches were advanced.
    fn now_ps(&self) -> u64 {
        self.known_ps.saturating_add(self.lookahead_ps)
    }

    /// Returns the time up to which `port` was advanced.
    fn now_of(&self, port: PortId) -> u64 {
        if self.fabric.is_of_host(port) { self.known_ps } else { self.now_ps() }
    }

    fn on_event(&mut self, next: Next, decisions: &mut Vec<Decision>) {
        let arrival = match next {
            Next::Schedule { at_ps, link } => {
                let Fabric { ports, driver, .. } = &mut self.fabric;
                ports[link as usize].on_schedule(at_ps, driver);
                return;
            }
            Next::Arrival(arrival) => arrival,
        };
        let Arrival { at_ps, link, start_ps, packet, .. } = arrival;
        self.event = if self.event.0 == at_ps { (at_ps, self.event.1 + 1) } else { (at_ps, FIRST_ARRIVAL) };
        let Some(port) = self.fabric.port_after(link, &packet) else {
            decisions.push(Decision::of(at_ps, &packet, None));
            return;
        };
        let at = EventTime { now_ps: at_ps, scheduled_ps: start_ps, sequence: self.event.1 };
        if self.fabric.send(port, at, packet) == Verdict::Dropped {
            decisions.push(Decision::of(at_ps, &packet, Some(port)));
        }
    }

    /// Returns the totals of one port at the time up to which the port was advanced.
    pub fn port_counters(&mut self, port: PortId) -> PortCounters {
        let now_ps = self.now_of(port);
        let Fabric { ports, driver, .. } = &mut self.fabric;
        let port = &mut ports[port.0 as usize];
        port.catch_up(now_ps, 0, driver);
        port.counters(now_ps)
    }

    /// Returns the state of one port at the time up to which the port was advanced, without information about flows.
    pub fn port_state(&mut self, port: PortId) -> PortState {
        let now_ps = self.now_of(port);
        let Fabric { ports, driver, .. } = &mut self.fabric;
        ports[port.0 as usize].state(now_ps, driver)
    }

    /// Returns the current marking threshold of `port`, in packets; `None` without PCN.
    pub fn threshold(&self, port: PortId) -> Option<u32> {
        self.fabric.threshold(port, self.now_ps())
    }
}
