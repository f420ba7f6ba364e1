//! Engine 2: packets, queues and TCP.
//!
//! Hosts and switches joined by links, each fed by an egress port (qdisc, device, serialisation, propagation);
//! on the hosts TCP as [`tcp`] says. Every byte on the wire is counted, every packet moves alone.
//!
//! ```text
//! write -> sender -> [qdisc -> device -> link] -> switch -> [qdisc -> device -> link] -> receiver
//!              ^------------------------- acknowledgements ------------------------------'
//! ```
//!
//! Why it is fast stands in docs/decisions/13-packet-engine.md. What it leaves out: the time that a switch and a host's
//! stack need, errors on links, PFC.

mod buffer;
mod calendar;
mod division;
mod ends;
mod host;
mod lanes;
mod order;
mod pcn;
mod port;
mod qdisc;
pub mod tcp;
mod threads;
mod timing;
mod wire;

pub use buffer::SharedBuffer;
pub use pcn::PcnConfig;
pub use qdisc::{Capacity, Discipline, MarkAt, Marking, QueueConfig};
pub use tcp::{Follow, TcpConfig};
pub use threads::Threads;

use crate::event::EventQueue;
use crate::route::{Hashes, Policy, RouteError, Routes};
use crate::topology::{Graph, NodeId, PortId, Star};
use crate::trace::{Counters, PortCounters, PortState, Window};
use crate::units::{Bytes, Time};
use crate::{Band, Completion, Flow, FlowId, ForkNetwork, HostId, Network, Seed};
use buffer::SharedBuffers;
use calendar::{Calendar, Driven, epoch_ps};
use division::PerLane;
use ends::DayBounds;
use host::{Due, Hosts};
use lanes::{Lane, Map};
use order::Moment;
use port::Port;
use qdisc::Verdict;
use std::collections::BTreeMap;
use std::sync::Arc;
use threads::Rooms;
use timing::Serialization;
use wire::{Wire, flag};

/// Everything about the network beside its graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// Transport on every host.
    pub tcp: TcpConfig,
    /// Qdisc of the hosts' ports.
    pub host_queue: QueueConfig,
    /// Qdisc of the switches' ports.
    pub switch_queue: QueueConfig,
    /// Buffer that the ports of a switch share, in place of the capacity of `switch_queue`.
    pub switch_buffer: Option<SharedBuffer>,
    /// Whether switches heed announcements of bursts; their queues then mark by threshold ([`Marking::Threshold`]).
    pub pcn: Option<PcnConfig>,
    /// Choice among equal routes.
    pub routing: Policy,
    /// Root of what is random: the hashes of [`Policy::Ecmp`], and for each port the coin of [`Marking::Red`].
    pub seed: Seed,
    /// Names of the first links, by which random streams are called, so that neither an idle host nor another order of
    /// links changes them. Other links are called by their ends.
    pub link_names: Vec<Arc<str>>,
}

impl PacketConfig {
    /// The network of Gao (2020), chapter 5, as ns-3 runs it with basic-sim's settings: validation/ns3/README.md.
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

/// A day in which all links are full has so many times the arrivals that make a segment worth threads: most days have
/// fewer, or several segments.
const FULL_DAY: u64 = 8;

/// The lanes that are of use, of `count` at most, if each thread must have so many arrivals in a segment.
fn lane_count(tcp: &TcpConfig, ports: &[Port], latency_ps: u64, arrivals_least: u64, count: usize) -> usize {
    let day_ps = epoch_ps(latency_ps);
    let has_room = [tcp.delayed_ack_timeout, tcp.min_rto, tcp.connect_timeout].iter().all(|wait| wait.ps() >= day_ps);
    if !has_room {
        return 1;
    }
    // A port may send less than a packet in a day, which has 32 bits.
    let thousandths: u64 = ports.iter().map(|port| 1_000 * day_ps / port.timing().segment_ps()).sum();
    let busy = thousandths.checked_div(1_000 * FULL_DAY * arrivals_least).unwrap_or(u64::MAX);
    count.min(usize::try_from(busy).unwrap_or(usize::MAX)).max(1)
}

/// Names that do not depend on what else there is.
struct LinkNames<'a> {
    graph: &'a Graph,
    given: &'a [Arc<str>],
    /// How many have had a name.
    counts: BTreeMap<String, u32>,
}

impl LinkNames<'_> {
    /// Of the link of that index; call it for one after the other. Parallel cables between two nodes are told apart by
    /// their number.
    fn next(&mut self, index: usize) -> String {
        let node = |node: NodeId| match self.graph.switch(node) {
            Some(switch) => format!("switch{switch}"),
            None => format!("h{}", node.0),
        };
        let directed = &self.graph.links[index];
        let ends = || format!("{}-{}", node(directed.from), node(directed.to));
        let name = self.given.get(index).map_or_else(ends, |name| name.to_string());
        let count = self.counts.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}/{count}") }
    }
}

/// The packet engine.
#[derive(Clone, Debug)]
pub struct PacketEngine {
    config: PacketConfig,
    map: Map,
    now: Time,
    lanes: PerLane<Lane>,
    /// Whose threads it uses, if any.
    threads: Option<Arc<dyn Threads>>,
    rooms: Rooms,
    bounds: DayBounds,
    /// A port sees nothing but its own packets: no `buffers` and no `pcn`.
    is_plain: bool,
    /// Ports of hosts are [cards](Port::into_card).
    has_cards: bool,
    buffers: Option<Box<SharedBuffers>>,
    pcn: Option<Box<pcn::Switches>>,
    hosts: Hosts,
    scheduled: EventQueue<(FlowId, Flow)>,
    /// The earliest event that is no arrival, and whether it comes after the arrivals of its instant.
    other_ps: u64,
    other_late: bool,
    /// Of the event under way: see [`order::Order`].
    planned_ps: u64,
    label: u32,
    started_count: u64,
    out: Vec<Wire>,
    counters: Counters,
    /// Events between two pauses, and how many there will have been at the next one.
    pause_every: u64,
    pause_at: u64,
    injected: Volume,
    delivered: Volume,
    dropped: Volume,
    completed_count: u64,
}

/// Packets and their bytes on the wire, counted once from end to end; bytes in debug builds only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Volume {
    packets: u64,
    bytes: u64,
}

impl Volume {
    fn add_all(&mut self, more: Self) {
        self.packets += more.packets;
        self.bytes += more.bytes;
    }

    #[inline]
    fn add(&mut self, packet: &Wire) {
        self.packets += 1;
        if cfg!(debug_assertions) {
            self.bytes += u64::from(packet.wire_bytes);
        }
    }
}

impl PacketEngine {
    /// Most threads of one engine.
    pub const THREADS_MAX: usize = 64;

    /// An idle network at time zero.
    ///
    /// # Errors
    /// [`RouteError`] if the graph does not connect its hosts.
    pub fn new(graph: &Graph, config: PacketConfig) -> Result<Self, RouteError> {
        Self::with(graph, config, None)
    }

    /// The same on up to `count` of somebody's threads: no more than [`THREADS_MAX`](Self::THREADS_MAX), than hosts, and
    /// than have something to do in a day of the calendar when all links are full. It is one where ports of a switch
    /// share a buffer or heed announcements, and where a deadline may be sooner than a packet crosses a link. Results are
    /// the same.
    ///
    /// # Errors
    /// See [`new`](Self::new).
    pub fn on_threads(
        graph: &Graph,
        config: PacketConfig,
        threads: Arc<dyn Threads>,
        count: usize,
    ) -> Result<Self, RouteError> {
        Self::with(graph, config, Some((threads, count)))
    }

    fn with(
        graph: &Graph,
        config: PacketConfig,
        threads: Option<(Arc<dyn Threads>, usize)>,
    ) -> Result<Self, RouteError> {
        let routes = Routes::shortest(graph)?.by(config.routing);
        let bytes_max = (config.tcp.header_bytes + config.tcp.segment_bytes).max(config.tcp.syn_bytes).max(128);
        let mut tables: Vec<(u64, Serialization)> = Vec::new();
        let card_bytes = match config.host_queue.capacity {
            Capacity::Packets(packets) => u64::from(packets) * u64::from(bytes_max),
            Capacity::Bytes(bytes) => bytes,
        };
        let mut names = LinkNames { graph, given: &config.link_names, counts: BTreeMap::new() };
        let ports = graph.links.iter().enumerate().map(|(index, directed)| {
            let bps = directed.link.rate.bps();
            let table = match tables.iter().find(|(known, _)| *known == bps) {
                Some((_, table)) => table.clone(),
                None => {
                    let table =
                        Serialization::new(directed.link.rate, config.tcp.follow, config.tcp.header_bytes..=bytes_max);
                    tables.push((bps, table.clone()));
                    table
                }
            };
            let of_host = directed.from.0 < graph.host_count;
            let queue = if of_host { &config.host_queue } else { &config.switch_queue };
            let name = names.next(index);
            let stream = || config.seed.stream(&format!("red/{name}"));
            let port = Port::new(index as u32, directed.link.delay, table, queue, stream);
            // ns-3's cards drop what finds them full.
            if of_host && config.tcp.follow == Follow::Standards { port.into_card(card_bytes) } else { port }
        });
        let ports: Vec<Port> = ports.collect();
        let switches = config.pcn.zip(config.switch_queue.marking.threshold());
        let pcn = switches.map(|(pcn, initial)| Box::new(pcn::Switches::new(graph, pcn, initial)));
        let latency_ps = ports.iter().map(|port| port.timing().latency_ps()).min().unwrap_or(0);
        let is_plain = config.switch_buffer.is_none() && pcn.is_none();
        let count = threads.as_ref().filter(|_| is_plain).map_or(1, |(threads, count)| {
            let count = (*count).clamp(1, Self::THREADS_MAX.min(graph.host_count.max(1) as usize));
            lane_count(&config.tcp, &ports, latency_ps, threads.arrivals_least(), count)
        });
        let calendar = Calendar::new(&ports, count);
        let day_length_ps = calendar.day_length_ps();
        let payload =
            ports.iter().map(|port| port.timing().payload_within(day_length_ps, config.tcp.header_bytes)).max();
        let bounds = DayBounds { length_ps: day_length_ps, bytes: payload.unwrap_or(0) };
        let map = Map::new(graph, routes, count);
        let mut lanes = PerLane::new(count, || Lane { ports: Vec::new(), calendar: calendar.clone() });
        for (index, port) in (0..).zip(ports) {
            lanes[map.division.port(PortId(index)).0].ports.push(port);
        }
        Ok(Self {
            threads: threads.map(|(threads, _)| threads),
            rooms: Rooms::default(),
            bounds,
            now: Time::ZERO,
            is_plain,
            has_cards: config.tcp.follow == Follow::Standards,
            pcn,
            buffers: config.switch_buffer.map(|buffer| Box::new(SharedBuffers::new(graph, buffer))),
            hosts: Hosts::new(latency_ps, Hashes::new(config.seed), Arc::clone(&map.division)),
            lanes,
            map,
            scheduled: EventQueue::default(),
            other_ps: u64::MAX,
            other_late: false,
            planned_ps: 0,
            label: 0,
            started_count: 0,
            out: Vec::new(),
            counters: Counters::default(),
            pause_every: u64::MAX,
            pause_at: u64::MAX,
            injected: Volume::default(),
            delivered: Volume::default(),
            dropped: Volume::default(),
            completed_count: 0,
            config,
        })
    }

    /// Starts `flow` at `at`, which is not in the past. A replay of thousands of flows needs no [`Network::advance`]
    /// per arrival.
    ///
    /// # Panics
    /// If `at` lies before [`Network::now`].
    pub fn schedule(&mut self, at: Time, flow: Flow) -> FlowId {
        assert!(at >= self.now, "time never goes back");
        let id = self.next_id();
        self.scheduled.push(at, (id, flow));
        self.refresh_other();
        id
    }

    /// From now on, lets [`Network::advance`] come back now and then, between two instants and before its time, with
    /// nothing complete: after every `events` events. So a caller can look up during long work; results do not change.
    pub fn pause_every(&mut self, events: u64) {
        self.pause_every = events;
        self.pause_at = self.counters.events.saturating_add(events);
    }

    /// Totals so far.
    pub fn counters(&self) -> Counters {
        let hosts = self.hosts.totals();
        let marks = self.ports().map(Port::marks).sum();
        Counters {
            drops: self.dropped.packets,
            retransmits: hosts.retransmits,
            timeouts: hosts.timeouts,
            marks,
            ..self.counters
        }
    }

    /// Totals of one port so far.
    pub fn port_counters(&mut self, port: PortId) -> PortCounters {
        let now_ps = self.now.ps();
        let (port, calendar) = self.port_mut::<false>(port);
        port.catch_up(now_ps, 0, calendar);
        port.counters(now_ps)
    }

    /// All of them, in order.
    fn ports(&self) -> impl Iterator<Item = &Port> {
        (0..self.map.ends.len()).map(|index| self.port(PortId(index as u32)))
    }

    fn port(&self, id: PortId) -> &Port {
        let (lane, place) = self.map.division.port(id);
        &self.lanes[lane].ports[place]
    }

    /// A port, and the calendar of its lane. Here and below, `ONE` says that there is one lane: what every packet needs
    /// is compiled for it apart.
    #[inline(always)]
    fn port_mut<const ONE: bool>(&mut self, id: PortId) -> (&mut Port, &mut Calendar) {
        let (lane, place) = if ONE { (0, id.0 as usize) } else { self.map.division.port(id) };
        let Lane { ports, calendar } = if ONE { &mut self.lanes.first } else { &mut self.lanes[lane] };
        (&mut ports[place], calendar)
    }

    /// Whether nothing is left of the present day.
    #[inline(always)]
    fn day_is_over<const ONE: bool>(&self) -> bool {
        if ONE {
            return self.lanes.first.calendar.day_is_over();
        }
        self.rooms.due_ps() == u64::MAX
    }

    /// A time before which nothing arrives: while the day is not over, when the next packet arrives.
    #[inline(always)]
    fn next_arrival_ps<const ONE: bool>(&self) -> u64 {
        if ONE {
            return self.lanes.first.calendar.next_ps();
        }
        match self.rooms.due_ps() {
            u64::MAX => self.lanes.iter().map(|lane| lane.calendar.next_ps()).min().unwrap_or(u64::MAX),
            due_ps => due_ps,
        }
    }

    /// Begins the next day that has anything. Every event before it has taken place.
    fn begin_day(&mut self) {
        let day_ps = self.next_arrival_ps::<false>();
        self.hosts.hear_losses(day_ps);
        if self.lanes.len() == 1 {
            let Lane { ports, calendar } = &mut self.lanes.first;
            calendar.begin_day(ports);
        } else {
            self.begin_day_of_lanes(day_ps);
        }
    }

    /// What can be seen of `port` now, as of before this instant's events. Looking changes nothing that follows.
    pub fn port_state(&mut self, port: PortId) -> PortState {
        let now_ps = self.now.ps();
        let (looked_at, calendar) = self.port_mut::<false>(port);
        let state = looked_at.state(now_ps, calendar);
        let crossing = self.hosts.long_flows().filter(|&(first, packet, _)| self.crosses(port, first, packet));
        let (long_flows, flight) = crossing.fold((0, 0), |(count, sum), (.., flight)| (count + 1, sum + flight));
        PortState { long_flows, long_flight: Bytes(flight), ..state }
    }

    /// Whether a packet that leaves its host by `first` comes through `port`.
    fn crosses(&self, port: PortId, first: PortId, packet: &Wire) -> bool {
        self.path(first, packet).any(|at| at == port)
    }

    /// The ports through which a packet comes that leaves its host by `first`.
    fn path(&self, first: PortId, packet: &Wire) -> impl Iterator<Item = PortId> {
        std::iter::successors(Some(first), move |at| {
            let node = self.map.ends[at.0 as usize];
            let is_switch = node.0 >= self.map.host_count;
            is_switch.then(|| self.map.port_of(self.hosts.connections.pairs(), node, packet))
        })
    }

    /// Queue length from which `port` marks now; `None` if it does not mark by threshold.
    pub fn threshold(&self, port: PortId) -> Option<u32> {
        let initial = self.config.switch_queue.marking.threshold();
        self.pcn.as_ref().map(|switches| switches.threshold(port, self.now.ps())).or(initial)
    }

    /// Flows under way on connections of their own, in no order that means anything, with their senders' windows.
    pub fn flow_windows(&self) -> impl Iterator<Item = (FlowId, Window)> {
        self.hosts.flow_windows()
    }

    /// Connections of `stream`, by sending and receiving host, with their senders' windows.
    pub fn stream_windows(&self, stream: u32) -> impl Iterator<Item = (HostId, HostId, Window)> {
        self.hosts.stream_windows(stream)
    }

    /// Whether nothing will happen any more unless a flow is started.
    pub fn is_idle(&self) -> bool {
        self.next_arrival_ps::<false>().min(self.other_ps) == u64::MAX
    }

    /// Whether every packet ever sent (in debug builds, every byte) has arrived, been dropped, or is still in a port or
    /// on a link.
    pub fn conserves_packets(&self) -> bool {
        let held = self.ports().map(Port::held).chain(self.lanes.iter().map(|lane| lane.calendar.held()));
        let (packets, bytes) = held.fold((0, 0), |(packets, bytes), held| (packets + held.0, bytes + held.1));
        let bytes = if cfg!(debug_assertions) { bytes } else { 0 };
        self.injected.packets == self.delivered.packets + self.dropped.packets + packets
            && self.injected.bytes == self.delivered.bytes + self.dropped.bytes + bytes
    }

    /// What must hold between events; checked in debug builds.
    fn check(&self) {
        assert!(self.conserves_packets(), "bytes in = bytes delivered + dropped + held");
        let fits = self.buffers.as_ref().is_none_or(|buffers| buffers.holds(&self.lanes.first.ports));
        assert!(fits, "the queues of a switch fit into its buffer");
        assert!(!self.is_idle() || self.completed_count == self.started_count, "all flows complete");
        assert!(!self.is_idle() || self.hosts.slots_are_free(), "closed connections leave their slots");
    }

    fn next_id(&mut self) -> FlowId {
        let id = FlowId(self.started_count);
        self.started_count += 1;
        id
    }

    fn begin(&mut self, id: FlowId, flow: &Flow) {
        assert!(flow.src != flow.dst, "a flow from a host to itself crosses no network");
        assert!(flow.rounds == 1 && flow.parts == 1, "the packet engine moves messages, not whole collectives");
        let ports = (self.map.first(flow.src), self.map.first(flow.dst));
        let mut out = std::mem::take(&mut self.out);
        let announced = flow.announced.zip(self.config.pcn.filter(|_| self.pcn.is_some()).map(|pcn| pcn.timeout));
        let port = self.hosts.start(&self.config.tcp, self.now, id, flow, announced, ports, &mut out);
        self.out = out;
        self.flush::<false>(port);
        self.refresh_other();
    }

    #[inline]
    fn refresh_other(&mut self) {
        let (timer_ps, late_ps) = self.hosts.next_at_ps();
        let flow_ps = self.scheduled.next_at().map_or(u64::MAX, Time::ps);
        let early_ps = timer_ps.min(flow_ps);
        self.other_ps = early_ps.min(late_ps);
        self.other_late = late_ps < early_ps;
    }

    /// Time goes on. What the caller does at an instant to which it came before all events was planned before them.
    #[inline]
    fn come_to(&mut self, now_ps: u64) {
        debug_assert!(now_ps >= self.now.ps(), "time never goes back");
        if now_ps != self.now.ps() {
            self.now = Time::from_ps(now_ps);
            self.label = 0;
            self.planned_ps = 0;
        }
    }

    /// An event takes place at `now_ps`.
    #[inline]
    fn begin_event(&mut self, now_ps: u64) {
        self.come_to(now_ps);
        self.label += 1;
        self.counters.events += 1;
    }

    /// Sends what a host has put out.
    #[inline]
    fn flush<const ONE: bool>(&mut self, port: PortId) {
        if self.out.is_empty() {
            return;
        }
        let mut out = std::mem::take(&mut self.out);
        for packet in out.drain(..) {
            self.injected.add(&packet);
            if self.has_cards {
                self.port_mut::<ONE>(port).1.enter_card(&packet);
            }
            self.send::<ONE>(port, packet);
        }
        self.out = out;
    }

    #[inline(always)]
    fn send<const ONE: bool>(&mut self, id: PortId, packet: Wire) {
        let at = Moment { now_ps: self.now.ps(), planned_ps: self.planned_ps, label: self.label };
        let verdict = if self.is_plain {
            let (port, calendar) = self.port_mut::<ONE>(id);
            port.send(at, packet, calendar)
        } else {
            self.send_among_others(id, at, packet)
        };
        if verdict == Verdict::Dropped {
            self.dropped.add(&packet);
            self.hosts.on_drop(self.now, self.map.division.port(id).0, &packet);
        }
    }

    /// A packet comes to a port that other ports or announced bursts matter to.
    #[inline(never)]
    fn send_among_others(&mut self, id: PortId, at: Moment, packet: Wire) -> Verdict {
        // All in one lane.
        let Lane { ports, calendar } = &mut self.lanes.first;
        if let Some(switches) = &mut self.pcn {
            switches.on_packet(ports, id, at, &packet, calendar);
        }
        match &mut self.buffers {
            None => ports[id.0 as usize].send(at, packet, calendar),
            Some(buffers) => buffers.send(ports, id, at, packet, calendar),
        }
    }

    /// When the next event is, and whether it is no arrival.
    #[inline(always)]
    fn next_event<const ONE: bool>(&self) -> (u64, bool) {
        let link_ps = self.next_arrival_ps::<ONE>();
        let is_other = self.other_ps < link_ps || (self.other_ps == link_ps && !self.other_late);
        (link_ps.min(self.other_ps), is_other)
    }

    #[inline(always)]
    fn take_event<const ONE: bool>(&mut self, now_ps: u64, is_other: bool) {
        self.begin_event(now_ps);
        if is_other {
            self.other();
        } else {
            self.arrive::<ONE>();
        }
    }

    #[inline(always)]
    fn arrive<const ONE: bool>(&mut self) {
        let lane = if ONE { 0 } else { self.next_lane() };
        let Lane { calendar, .. } = if ONE { &mut self.lanes.first } else { &mut self.lanes[lane] };
        let (begun_ps, link, packet) = calendar.pop();
        let packet = *packet;
        let now_ps = self.now.ps();
        if !ONE {
            self.rooms.see_due(lane, calendar);
        }
        let node = self.map.ends[link as usize];
        self.planned_ps = begun_ps;
        self.counters.packet_hops += 1;
        self.counters.hop_bytes += u64::from(packet.wire_bytes);
        if node.0 >= self.map.host_count {
            let port = self.map.port_of(self.hosts.connections.pairs(), node, &packet);
            let packet = if ONE { packet } else { self.hosts.connections.hand_over(packet, lane, port) };
            self.send::<ONE>(port, packet);
            return;
        }
        debug_assert_eq!(node.0, packet.dst, "routes lead to the host that a packet is for");
        self.delivered.add(&packet);
        let room_bytes = if !self.has_cards || packet.flags & flag::REVERSE == 0 {
            u64::MAX
        } else {
            let (card, calendar) = self.port_mut::<ONE>(self.map.first(HostId(packet.dst)));
            card.room_bytes((now_ps, begun_ps), packet.connection, calendar)
        };
        let mut out = std::mem::take(&mut self.out);
        let Lane { calendar, .. } = if ONE { &self.lanes.first } else { &self.lanes[lane] };
        let port = self.hosts.deliver(&self.config.tcp, self.now, &packet, room_bytes, &mut out, || calendar.cause());
        self.out = out;
        if let Some(port) = port {
            self.flush::<ONE>(port);
        }
        if !packet.is_plain() || self.hosts.has_planned() {
            self.refresh_other();
        }
    }

    fn other(&mut self) {
        self.planned_ps = 0;
        if let Some((_, (id, flow))) = self.scheduled.pop_until(self.now) {
            self.begin(id, &flow);
            return;
        }
        let due = self.hosts.pop(self.now);
        self.planned_ps = due.map_or(0, Due::planned_ps);
        let sender = due.and_then(|due| self.hosts.sender_of(due));
        let room_bytes = sender.map_or(u64::MAX, |(connection, card)| {
            let at_ps = (self.now.ps(), self.planned_ps);
            let (card, calendar) = self.port_mut::<false>(card);
            card.room_bytes(at_ps, connection, calendar)
        });
        let mut out = std::mem::take(&mut self.out);
        let port = due.and_then(|due| self.hosts.on_due(&self.config.tcp, self.now, due, room_bytes, &mut out));
        self.out = out;
        match port {
            Some(port) => self.flush::<false>(port),
            // Deadlines move on: how often one is looked at in vain is nobody's business.
            None => self.counters.events -= 1,
        }
        self.refresh_other();
    }

    /// Up to `until`, or to the instant of a completion, or to a pause, if one is due: then it is true.
    fn go_on<const ONE: bool>(&mut self, until: Time) -> bool {
        let mut end_ps = if self.hosts.done.is_empty() { until.ps() } else { self.now.ps() + 1 };
        let mut asks_threads = !ONE;
        loop {
            let (next_ps, is_other) = self.next_event::<ONE>();
            if next_ps >= end_ps {
                return false;
            }
            if self.counters.events >= self.pause_at && next_ps > self.now.ps() {
                self.pause_at = self.counters.events.saturating_add(self.pause_every);
                return true;
            }
            if !is_other && self.day_is_over::<ONE>() {
                self.begin_day();
                // Looked at once a day: it takes a look at every lane.
                asks_threads = !ONE;
                continue;
            }
            if asks_threads && next_ps > self.now.ps() {
                asks_threads = false;
                if self.is_worth_threads() {
                    self.go_on_threads(end_ps);
                    if !self.hosts.done.is_empty() {
                        end_ps = self.now.ps() + 1;
                    }
                    continue;
                }
            }
            self.take_event::<ONE>(next_ps, is_other);
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
        self.begin(id, &flow);
        id
    }

    /// What happens at `until` itself comes with the next call, after what the caller starts there: that was due before
    /// any packet knew that it would arrive then.
    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        let paused = if self.lanes.len() == 1 { self.go_on::<true>(until) } else { self.go_on::<false>(until) };
        if self.hosts.done.is_empty() && !paused {
            self.come_to(until.ps());
        }
        self.completed_count += self.hosts.done.len() as u64;
        done.append(&mut self.hosts.done);
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// What has arrived out of order counts as not received.
    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        self.hosts.remaining().collect()
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        self.hosts.set_band(&self.config.tcp, stream, band.index());
    }
}

impl ForkNetwork for PacketEngine {
    /// Without pauses: nobody looks up during what may be.
    fn fork(&self) -> Box<dyn ForkNetwork> {
        Box::new(Self { pause_every: u64::MAX, pause_at: u64::MAX, ..self.clone() })
    }
}
