//! The packet engine: packets, queues and TCP.
//!
//! Hosts and switches are joined by links, each fed by an egress port (qdisc, device, serialisation, propagation);
//! hosts run [`tcp`]. Every packet is simulated individually, and every byte on the wire is counted.
//!
//! ```text
//! write -> sender -> [qdisc -> device -> link] -> switch -> [qdisc -> device -> link] -> receiver
//!              ^------------------------- acknowledgements ------------------------------'
//! ```
//!
//! docs/decisions/13-packet-engine.md explains why it is fast. Not modelled: processing time of switches and of hosts'
//! stacks, bit errors, PFC.

mod buffer;
mod calendar;
mod driver;
mod endpoints;
mod event_key;
mod forwarder;
mod host;
mod pcn;
mod port;
mod ports;
mod qdisc;
pub mod tcp;
mod timing;
mod wire;

pub use buffer::SharedBuffer;
pub use forwarder::{Decision, Forwarder, Frame, Kind, Origin, replay};
pub use pcn::PcnConfig;
pub use qdisc::{Capacity, Discipline, MarkAt, Marking, QueueConfig};
pub use tcp::{Follow, TcpConfig};

use crate::event::EventQueue;
use crate::route::{Hashes, Policy, RouteError, Routes};
use crate::topology::{Graph, NodeId, PortId, Star};
use crate::trace::{Counters, PortCounters, PortState, Window};
use crate::units::{Bytes, Time};
use crate::{Band, Completion, Flow, FlowId, ForkNetwork, HostId, Network, Seed};
use buffer::SharedBuffers;
use calendar::{Calendar, CalendarPort};
use driver::PortDriver;
use event_key::EventTime;
use host::{HostEvent, Hosts};
use port::Port;
use qdisc::Verdict;
#[cfg(test)]
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{Wire, flag};

/// Configuration of the network, except for its graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// Transport on every host.
    pub tcp: TcpConfig,
    /// Qdisc of the hosts' ports.
    pub host_queue: QueueConfig,
    /// Qdisc of the switches' ports.
    pub switch_queue: QueueConfig,
    /// Buffer shared by the ports of a switch; replaces the capacity of `switch_queue`.
    pub switch_buffer: Option<SharedBuffer>,
    /// Whether switches react to announced bursts; if so, their queues mark by threshold ([`Marking::Threshold`]).
    pub pcn: Option<PcnConfig>,
    /// Policy for equal-cost routes.
    pub routing: Policy,
    /// Root of the random streams. Random numbers are used for the hashes of [`Policy::Ecmp`], and for drops and marks
    /// by [`Marking::Red`] at each port.
    pub seed: Seed,
    /// Names of the links, in the order of the graph. Links beyond the end of this list are named after their nodes.
    /// The random stream of a link is named after the link, so that it does not depend on other hosts and links.
    pub link_names: Vec<Arc<str>>,
}

impl PacketConfig {
    /// Returns the network of Gao (2020), chapter 5, as ns-3 simulates it with the settings of basic-sim. See
    /// validation/ns3/README.md.
    pub fn basic_sim(star: &Star) -> Self {
        Self {
            tcp: TcpConfig::basic_sim(star.host_count, star.link.rate, star.link.delay),
            host_queue: QueueConfig::pfifo_fast(),
            switch_queue: QueueConfig::pfifo_fast(),
            switch_buffer: None,
            pcn: None,
            routing: Policy::Ecmp,
            seed: Seed(0),
            link_names: Vec::new(),
        }
    }
}

/// The packet engine.
#[derive(Clone, Debug)]
pub struct PacketEngine {
    config: PacketConfig,
    now: Time,
    host_count: u32,
    link_ends: Vec<NodeId>,
    routes: Routes,
    ports: Vec<Port>,
    calendar: Calendar,
    /// Whether the state of a port depends on its own packets only: true without `buffers` and `pcn`.
    ports_are_independent: bool,
    /// Whether hosts' ports are [NICs](Port::into_nic), which hold back their senders instead of dropping packets.
    has_nic_backpressure: bool,
    buffers: Option<Box<SharedBuffers>>,
    pcn: Option<Box<pcn::Switches>>,
    hosts: Hosts,
    flow_starts: EventQueue<(FlowId, Flow)>,
    /// Time of the next host event, i.e. of the next event other than an arrival. Follow-ups come after simultaneous
    /// arrivals, all other host events before them.
    host_event_ps: u64,
    host_event_is_follow_up: bool,
    /// Time at which the current event was scheduled, and its sequence number: see [`EventTime`].
    scheduled_ps: u64,
    sequence: u32,
    started_count: u64,
    out: Vec<Wire>,
    counters: Counters,
    /// Number of events between pauses. `pause_at` is the event count of the next pause.
    pause_every: u64,
    pause_at: u64,
    injected: Volume,
    delivered: Volume,
    dropped: Volume,
    completed_count: u64,
    #[cfg(test)]
    log: Option<Box<Log>>,
}

/// Packets of a run. Tests compare them with the decisions of a [`Forwarder`].
#[cfg(test)]
#[derive(Clone, Debug, Default)]
struct Log {
    /// Packets that hosts send: time, source, hash of the connection, packet.
    sent: Vec<(EventTime, u32, u32, Wire)>,
    /// Arrivals: time, start of the transmission, link, packet.
    arrivals: Vec<(u64, u64, u32, Wire)>,
    /// Drops: time, port, packet.
    drops: Vec<(u64, u32, Wire)>,
    /// Sequence number of the first arrival of each time.
    first_arrivals: BTreeMap<u64, u32>,
}

/// Number of packets and number of their bytes on the wire. Bytes are counted in debug builds only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Volume {
    packets: u64,
    bytes: u64,
}

impl Volume {
    #[inline]
    fn add(&mut self, packet: &Wire) {
        self.packets += 1;
        if cfg!(debug_assertions) {
            self.bytes += u64::from(packet.wire_bytes);
        }
    }
}

impl PacketEngine {
    /// Creates an idle network at time zero.
    ///
    /// # Errors
    /// [`RouteError`] if the graph does not connect its hosts.
    pub fn new(graph: &Graph, config: PacketConfig) -> Result<Self, RouteError> {
        let routes = Routes::shortest(graph)?.by(config.routing);
        let ports = ports::of(graph, &config);
        let pcn = ports::pcn(graph, &config).map(Box::new);
        let latency_ps = ports.iter().map(|port| port.timing().latency_ps()).min().unwrap_or(0);
        let ports_are_independent = config.switch_buffer.is_none() && pcn.is_none();
        let calendar = Calendar::new(&ports);
        Ok(Self {
            now: Time::ZERO,
            host_count: graph.host_count,
            link_ends: graph.links.iter().map(|directed| directed.to).collect(),
            routes,
            ports,
            calendar,
            ports_are_independent,
            has_nic_backpressure: config.tcp.follow == Follow::Standards,
            pcn,
            buffers: config.switch_buffer.map(|buffer| Box::new(SharedBuffers::new(graph, buffer))),
            hosts: Hosts::new(latency_ps, Hashes::new(config.seed)),
            flow_starts: EventQueue::default(),
            host_event_ps: u64::MAX,
            host_event_is_follow_up: false,
            scheduled_ps: 0,
            sequence: 0,
            started_count: 0,
            out: Vec::new(),
            counters: Counters::default(),
            pause_every: u64::MAX,
            pause_at: u64::MAX,
            injected: Volume::default(),
            delivered: Volume::default(),
            dropped: Volume::default(),
            completed_count: 0,
            #[cfg(test)]
            log: None,
            config,
        })
    }

    /// Schedules `flow` to start at `at`. A replay can thus schedule all its flows in advance, instead of calling
    /// [`Network::advance`] for each of them.
    ///
    /// # Panics
    /// If `at` lies before [`Network::now`].
    pub fn schedule(&mut self, at: Time, flow: Flow) -> FlowId {
        assert!(at >= self.now, "time never goes back");
        let id = self.next_id();
        self.flow_starts.push(at, (id, flow));
        self.refresh_host_event();
        id
    }

    /// Makes [`Network::advance`] return early after every `events` events, even without a completion, so that a caller
    /// can check for cancellation. Pauses occur between two instants and do not change results.
    pub fn pause_every(&mut self, events: u64) {
        self.pause_every = events;
        self.pause_at = self.counters.events.saturating_add(events);
    }

    /// Returns the totals so far.
    pub fn counters(&self) -> Counters {
        let hosts = self.hosts.totals();
        let marks = self.ports.iter().map(Port::marks).sum();
        Counters {
            drops: self.dropped.packets,
            retransmits: hosts.retransmits,
            timeouts: hosts.timeouts,
            marks,
            ..self.counters
        }
    }

    /// Returns the totals of one port so far.
    pub fn port_counters(&mut self, port: PortId) -> PortCounters {
        let now_ps = self.now.ps();
        let port = &mut self.ports[port.0 as usize];
        port.catch_up(now_ps, 0, &mut self.calendar);
        port.counters(now_ps)
    }

    /// Returns the state of `port` before the events at the current time. The call does not affect the simulation.
    pub fn port_state(&mut self, port: PortId) -> PortState {
        let now_ps = self.now.ps();
        let state = self.ports[port.0 as usize].state(now_ps, &mut self.calendar);
        let crossing = self.hosts.long_flows().filter(|&(first, packet, _)| self.crosses(port, first, packet));
        let (long_flows, flight) = crossing.fold((0, 0), |(count, sum), (.., flight)| (count + 1, sum + flight));
        PortState { long_flows, long_flight: Bytes(flight), ..state }
    }

    fn crosses(&self, port: PortId, first: PortId, packet: &Wire) -> bool {
        self.path(first, packet).any(|at| at == port)
    }

    /// Returns the ports on the path of a packet that leaves its host by port `first`.
    fn path(&self, first: PortId, packet: &Wire) -> impl Iterator<Item = PortId> {
        std::iter::successors(Some(first), move |at| {
            let node = self.link_ends[at.0 as usize];
            (node.0 >= self.host_count).then(|| self.port_of(node, packet))
        })
    }

    /// Returns the egress port of switch `node` for `packet`. All packets of one direction of a connection take the
    /// same path.
    #[inline]
    fn port_of(&self, node: NodeId, packet: &Wire) -> PortId {
        let flow = || self.hosts.connections.source_and_hash(packet);
        self.routes.next(node.0 - self.host_count, packet.dst, flow)
    }

    /// Returns the current marking threshold of `port`, in packets; `None` if the port does not mark by threshold.
    pub fn threshold(&self, port: PortId) -> Option<u32> {
        let initial = self.config.switch_queue.marking.threshold();
        self.pcn.as_ref().map(|switches| switches.threshold(port, self.now.ps())).or(initial)
    }

    /// Returns the flows in progress on single-flow connections, in no particular order, with their senders' windows.
    pub fn flow_windows(&self) -> impl Iterator<Item = (FlowId, Window)> {
        self.hosts.flow_windows()
    }

    /// Returns the sending host, the receiving host and the sender's window, for each connection of `stream`.
    pub fn stream_windows(&self, stream: u32) -> impl Iterator<Item = (HostId, HostId, Window)> {
        self.hosts.stream_windows(stream)
    }

    /// Returns whether no event is pending.
    pub fn is_idle(&self) -> bool {
        self.calendar.next_ps().min(self.host_event_ps) == u64::MAX
    }

    /// Returns whether every packet sent has been delivered or dropped, or is in a port or on a link. Debug builds also
    /// compare the bytes of these packets.
    pub fn conserves_packets(&self) -> bool {
        let held = self.ports.iter().map(Port::held).chain([self.calendar.held()]);
        let (packets, bytes) = held.fold((0, 0), |(packets, bytes), held| (packets + held.0, bytes + held.1));
        let bytes = if cfg!(debug_assertions) { bytes } else { 0 };
        self.injected.packets == self.delivered.packets + self.dropped.packets + packets
            && self.injected.bytes == self.delivered.bytes + self.dropped.bytes + bytes
    }

    /// Checks invariants between events, in debug builds.
    fn check(&self) {
        assert!(self.conserves_packets(), "bytes in = bytes delivered + dropped + held");
        let fits = self.buffers.as_ref().is_none_or(|buffers| buffers.holds(&self.ports));
        assert!(fits, "the queues of a switch fit into its buffer");
        assert!(!self.is_idle() || self.completed_count == self.started_count, "all flows complete");
        assert!(!self.is_idle() || self.hosts.slots_are_free(), "closed connections leave their slots");
    }

    fn next_id(&mut self) -> FlowId {
        let id = FlowId(self.started_count);
        self.started_count += 1;
        id
    }

    fn start_flow(&mut self, id: FlowId, flow: &Flow) {
        assert!(flow.src != flow.dst, "a flow from a host to itself crosses no network");
        assert!(flow.rounds == 1 && flow.parts == 1, "the packet engine moves messages, not whole collectives");
        let ports = (self.routes.first(flow.src.0), self.routes.first(flow.dst.0));
        let mut out = std::mem::take(&mut self.out);
        let announced = flow.announced.zip(self.config.pcn.filter(|_| self.pcn.is_some()).map(|pcn| pcn.timeout));
        let port = self.hosts.start(&self.config.tcp, self.now, id, flow, announced, ports, &mut out);
        self.out = out;
        self.flush(port);
        self.refresh_host_event();
    }

    #[inline]
    fn refresh_host_event(&mut self) {
        let (timer_ps, follow_up_ps) = self.hosts.next_at_ps();
        let flow_ps = self.flow_starts.next_at().map_or(u64::MAX, Time::ps);
        let early_ps = timer_ps.min(flow_ps);
        self.host_event_ps = early_ps.min(follow_up_ps);
        self.host_event_is_follow_up = follow_up_ps < early_ps;
    }

    /// Sets the time. At a new time the sequence number restarts and [`EventTime::scheduled_ps`] becomes 0, so that
    /// actions of the caller count as scheduled before all events of that time.
    #[inline]
    fn advance_clock(&mut self, now_ps: u64) {
        debug_assert!(now_ps >= self.now.ps(), "time never goes back");
        if now_ps != self.now.ps() {
            self.now = Time::from_ps(now_ps);
            self.sequence = 0;
            self.scheduled_ps = 0;
        }
    }

    #[inline]
    fn flush(&mut self, port: PortId) {
        if self.out.is_empty() {
            return;
        }
        let mut out = std::mem::take(&mut self.out);
        for packet in out.drain(..) {
            #[cfg(test)]
            self.log_sent(&packet);
            self.injected.add(&packet);
            if self.has_nic_backpressure {
                self.calendar.enter_nic(&packet);
            }
            self.send(port, packet);
        }
        self.out = out;
    }

    #[cfg(test)]
    fn log_sent(&mut self, packet: &Wire) {
        let at = EventTime { now_ps: self.now.ps(), scheduled_ps: self.scheduled_ps, sequence: self.sequence };
        let (src, hash) = self.hosts.connections.source_and_hash(packet);
        if let Some(log) = &mut self.log {
            log.sent.push((at, src, hash, *packet));
        }
    }

    #[inline(always)]
    fn send(&mut self, id: PortId, packet: Wire) {
        let at = EventTime { now_ps: self.now.ps(), scheduled_ps: self.scheduled_ps, sequence: self.sequence };
        let verdict = if self.ports_are_independent {
            self.ports[id.0 as usize].send(at, packet, &mut self.calendar)
        } else {
            self.send_dependent(id, at, packet)
        };
        if verdict == Verdict::Dropped {
            #[cfg(test)]
            if let Some(log) = &mut self.log {
                log.drops.push((at.now_ps, id.0, packet));
            }
            self.dropped.add(&packet);
            self.hosts.on_drop(self.now, &packet);
        }
    }

    /// Implements [`send`](Self::send) for ports that share buffers or react to announced bursts.
    #[inline(never)]
    fn send_dependent(&mut self, id: PortId, at: EventTime, packet: Wire) -> Verdict {
        let Self { ports, calendar, .. } = self;
        if let Some(switches) = &mut self.pcn {
            switches.on_packet(ports, id, at, &packet, calendar);
        }
        match &mut self.buffers {
            None => ports[id.0 as usize].send(at, packet, calendar),
            Some(buffers) => buffers.send(ports, id, at, packet, calendar),
        }
    }

    /// Returns the time of the next event, and whether it is a host event instead of an arrival.
    #[inline(always)]
    fn next_event(&self) -> (u64, bool) {
        let link_ps = self.calendar.next_ps();
        let is_host_event =
            self.host_event_ps < link_ps || (self.host_event_ps == link_ps && !self.host_event_is_follow_up);
        (link_ps.min(self.host_event_ps), is_host_event)
    }

    #[inline(always)]
    fn handle_arrival(&mut self) {
        let (start_ps, link, packet) = self.calendar.pop();
        let packet = *packet;
        let node = self.link_ends[link as usize];
        #[cfg(test)]
        if let Some(log) = &mut self.log {
            log.arrivals.push((self.now.ps(), start_ps, link, packet));
            log.first_arrivals.entry(self.now.ps()).or_insert(self.sequence);
        }
        self.scheduled_ps = start_ps;
        self.counters.packet_hops += 1;
        self.counters.hop_bytes += u64::from(packet.wire_bytes);
        if node.0 >= self.host_count {
            let port = self.port_of(node, &packet);
            self.send(port, packet);
            return;
        }
        debug_assert_eq!(node.0, packet.dst, "routes lead to the destination");
        self.delivered.add(&packet);
        let room_bytes = if !self.has_nic_backpressure || packet.flags & flag::REVERSE == 0 {
            u64::MAX
        } else {
            let nic = &mut self.ports[self.routes.first(packet.dst).0 as usize];
            nic.room_bytes((self.now.ps(), start_ps), packet.connection, &mut self.calendar)
        };
        let mut out = std::mem::take(&mut self.out);
        let port = self.hosts.deliver(&self.config.tcp, self.now, &packet, room_bytes, &mut out);
        self.out = out;
        if let Some(port) = port {
            self.flush(port);
        }
        if !packet.is_data_or_ack() || self.hosts.take_changed() {
            self.refresh_host_event();
        }
    }

    fn handle_host_event(&mut self) {
        self.scheduled_ps = 0;
        if let Some((_, (id, flow))) = self.flow_starts.pop_until(self.now) {
            self.start_flow(id, &flow);
            return;
        }
        let event = self.hosts.pop(self.now);
        self.scheduled_ps = event.map_or(0, HostEvent::scheduled_ps);
        let sender = event.and_then(|event| self.hosts.sender_of(event));
        let room_bytes = sender.map_or(u64::MAX, |(connection, nic)| {
            let at_ps = (self.now.ps(), self.scheduled_ps);
            self.ports[nic.0 as usize].room_bytes(at_ps, connection, &mut self.calendar)
        });
        let mut out = std::mem::take(&mut self.out);
        let port = event.and_then(|event| self.hosts.on_event(&self.config.tcp, self.now, event, room_bytes, &mut out));
        self.out = out;
        match port {
            Some(port) => self.flush(port),
            // Timer checks without effect are not counted as events, because they only exist for speed.
            None => self.counters.events -= 1,
        }
        self.refresh_host_event();
    }

    /// Processes all events before `until`. Returns early after the first instant at which a flow completes, and at a
    /// [pause](Self::pause_every). Returns `true` only at a pause.
    fn run_until(&mut self, until: Time) -> bool {
        let mut end_ps = if self.hosts.done.is_empty() { until.ps() } else { self.now.ps() + 1 };
        loop {
            let (next_ps, is_host_event) = self.next_event();
            if next_ps >= end_ps {
                return false;
            }
            if self.counters.events >= self.pause_at && next_ps > self.now.ps() {
                self.pause_at = self.counters.events.saturating_add(self.pause_every);
                return true;
            }
            if !is_host_event && self.calendar.bucket_is_done() {
                self.hosts.apply_losses(next_ps);
                self.calendar.begin_bucket(&mut self.ports);
                continue;
            }
            self.advance_clock(next_ps);
            self.sequence += 1;
            self.counters.events += 1;
            if is_host_event {
                self.handle_host_event();
            } else {
                self.handle_arrival();
            }
            if !self.hosts.done.is_empty() {
                end_ps = self.now.ps() + 1;
            }
        }
    }
}

impl Network for PacketEngine {
    fn now(&self) -> Time {
        self.now
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        let id = self.next_id();
        self.start_flow(id, &flow);
        id
    }

    /// Leaves events at `until` itself to the next call: flows that the caller starts at that time come first, because
    /// they were scheduled before any packet that arrives then.
    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        let paused = self.run_until(until);
        if self.hosts.done.is_empty() && !paused {
            self.advance_clock(until.ps());
        }
        self.completed_count += self.hosts.done.len() as u64;
        done.append(&mut self.hosts.done);
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Bytes that a receiver has out of order count as remaining.
    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        self.hosts.remaining().collect()
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        self.hosts.set_band(&self.config.tcp, stream, band.index());
    }
}

impl ForkNetwork for PacketEngine {
    /// Returns a copy. The copy does not pause.
    fn fork(&self) -> Box<dyn ForkNetwork> {
        Box::new(Self { pause_every: u64::MAX, pause_at: u64::MAX, ..self.clone() })
    }
}
