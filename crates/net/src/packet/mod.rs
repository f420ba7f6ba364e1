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
//! Why it is fast stands in docs/decisions/014. What it leaves out: the time that a switch and a host's stack need,
//! errors on links, PFC.

mod calendar;
mod host;
mod port;
mod qdisc;
mod switch;
pub mod tcp;
mod wire;

pub use qdisc::{Capacity, Discipline, MarkAt, Marking, QueueConfig};
pub use tcp::TcpConfig;

use crate::event::EventQueue;
use crate::route::{RouteError, Routes};
use crate::topology::{Graph, NodeId, PortId, Star};
use crate::trace::{Counters, PortCounters};
use crate::units::Time;
use crate::{Band, Completion, Flow, FlowId, Network};
use calendar::Calendar;
use host::Hosts;
use port::{Arrival, Moment, Port, Serialization};
use qdisc::Verdict;
use wire::Wire;

/// Everything about the network beside its graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// Transport on every host.
    pub tcp: TcpConfig,
    /// Qdisc of the hosts' ports.
    pub host_queue: QueueConfig,
    /// Qdisc of the switches' ports.
    pub switch_queue: QueueConfig,
    /// Times on the wire are rounded to whole ticks: 1 ns is ns-3's clock, 1 ps is exact at Ethernet rates.
    pub tick: Time,
}

impl PacketConfig {
    /// The network of seed 000, ch. 5, as ns-3 with basic-sim's settings runs it: MODELS.md, section 2.
    pub fn basic_sim(star: &Star) -> Self {
        Self {
            tcp: TcpConfig::basic_sim(star.host_count, star.link.rate, star.link.delay),
            host_queue: QueueConfig::pfifo_fast(),
            switch_queue: QueueConfig::pfifo_fast(),
            tick: Time::from_ps(1_000),
        }
    }
}

/// The packet engine.
#[derive(Debug)]
pub struct PacketEngine {
    config: PacketConfig,
    host_count: u32,
    now: Time,
    ports: Vec<Port>,
    calendar: Calendar,
    /// Where each link ends.
    ends: Vec<NodeId>,
    routes: Routes,
    hosts: Hosts,
    scheduled: EventQueue<(FlowId, Flow)>,
    /// The earliest event that is no arrival, and whether it comes after the arrivals of its instant.
    other_ps: u64,
    other_late: bool,
    /// Of the event under way: see [`port::Order`].
    planned_ps: u64,
    label: u64,
    started_count: u64,
    out: Vec<Wire>,
    counters: Counters,
    injected_count: u64,
    delivered_count: u64,
}

impl PacketEngine {
    /// An idle network at time zero.
    ///
    /// # Errors
    /// [`RouteError`] if the graph does not connect its hosts.
    pub fn new(graph: &Graph, config: PacketConfig) -> Result<Self, RouteError> {
        let routes = Routes::shortest(graph)?;
        let bytes_max = (config.tcp.header_bytes + config.tcp.segment_bytes).max(config.tcp.syn_bytes).max(128);
        let mut tables: Vec<(u64, Serialization)> = Vec::new();
        let ports = graph.links.iter().enumerate().map(|(index, directed)| {
            let bps = directed.link.rate.bps();
            let table = match tables.iter().find(|(known, _)| *known == bps) {
                Some((_, table)) => table.clone(),
                None => {
                    let table = Serialization::new(directed.link.rate, config.tick, bytes_max);
                    tables.push((bps, table.clone()));
                    table
                }
            };
            let of_host = directed.from.0 < graph.host_count;
            let queue = if of_host { &config.host_queue } else { &config.switch_queue };
            Port::new(index as u32, directed.link.delay, table, queue)
        });
        let ports: Vec<Port> = ports.collect();
        Ok(Self {
            host_count: graph.host_count,
            now: Time::ZERO,
            calendar: Calendar::new(&ports),
            ends: graph.links.iter().map(|directed| directed.to).collect(),
            ports,
            routes,
            hosts: Hosts::default(),
            scheduled: EventQueue::default(),
            other_ps: u64::MAX,
            other_late: false,
            planned_ps: 0,
            label: u64::MAX / 2,
            started_count: 0,
            out: Vec::new(),
            counters: Counters::default(),
            injected_count: 0,
            delivered_count: 0,
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

    /// Totals so far.
    pub fn counters(&self) -> Counters {
        let hosts = self.hosts.totals();
        let marks = self.ports.iter().map(|port| port.counters().marks).sum();
        Counters { retransmits: hosts.retransmits, timeouts: hosts.timeouts, marks, ..self.counters }
    }

    /// Totals of one port so far.
    pub fn port_counters(&self, port: PortId) -> PortCounters {
        self.ports[port.0 as usize].counters()
    }

    /// Packets and bytes that wait in the qdisc of `port` now.
    pub fn queue(&mut self, port: PortId) -> (u32, u64) {
        self.ports[port.0 as usize].queue(self.now.ps(), &mut self.calendar)
    }

    /// Whether every packet ever sent has arrived, been dropped, or is still in a port or on a link.
    pub fn conserves_packets(&self) -> bool {
        let held: u64 = self.ports.iter().map(Port::held).sum();
        self.injected_count == self.delivered_count + self.counters.drops + held + self.calendar.len()
    }

    fn next_id(&mut self) -> FlowId {
        let id = FlowId(self.started_count);
        self.started_count += 1;
        id
    }

    fn begin(&mut self, id: FlowId, flow: &Flow) {
        assert!(flow.src != flow.dst, "a flow from a host to itself crosses no network");
        assert!(flow.rounds == 1 && flow.parts == 1, "the packet engine moves messages, not whole collectives");
        let ports = (self.routes.first(flow.src.0), self.routes.first(flow.dst.0));
        let mut out = std::mem::take(&mut self.out);
        let port = self.hosts.start(&self.config.tcp, self.now, id, flow, ports, &mut out);
        self.out = out;
        self.flush(port);
        self.refresh_other();
    }

    #[inline]
    fn refresh_other(&mut self) {
        let (timer_ps, write_ps) = self.hosts.next_at_ps();
        let flow_ps = self.scheduled.next_at().map_or(u64::MAX, Time::ps);
        let early_ps = timer_ps.min(flow_ps);
        self.other_ps = early_ps.min(write_ps);
        self.other_late = write_ps < early_ps;
    }

    /// An event takes place at `now_ps`: later instants have smaller labels, later events of one instant larger ones.
    #[inline]
    fn begin_event(&mut self, now_ps: u64) {
        const EVENTS: u64 = 1 << 24;
        self.label = if now_ps == self.now.ps() { self.label + 1 } else { (self.label / EVENTS - 1) * EVENTS };
        self.now = Time::from_ps(now_ps);
        self.counters.events += 1;
    }

    /// Sends what a host has put out.
    #[inline]
    fn flush(&mut self, port: PortId) {
        if self.out.is_empty() {
            return;
        }
        let mut out = std::mem::take(&mut self.out);
        self.injected_count += out.len() as u64;
        for packet in out.drain(..) {
            self.send(port, packet);
        }
        self.out = out;
    }

    #[inline]
    fn send(&mut self, id: PortId, packet: Wire) {
        let port = &mut self.ports[id.0 as usize];
        let at = Moment { now_ps: self.now.ps(), planned_ps: self.planned_ps, label: self.label };
        if port.send(at, packet, &mut self.calendar) == Verdict::Dropped {
            self.counters.drops += 1;
            self.hosts.pool.take(packet.sack);
        }
    }

    #[inline]
    fn arrive(&mut self) {
        let Arrival { begun_ps, link, packet } = *self.calendar.pop();
        let node = self.ends[link as usize];
        self.planned_ps = begun_ps;
        self.counters.packet_hops += 1;
        self.counters.hop_bytes += u64::from(packet.wire_bytes);
        if node.0 >= self.host_count {
            let port = switch::port_of(&self.routes, self.host_count, node, &packet);
            self.send(port, packet);
            return;
        }
        debug_assert_eq!(node.0, packet.dst, "routes lead to the host that a packet is for");
        self.delivered_count += 1;
        let mut out = std::mem::take(&mut self.out);
        let port = self.hosts.deliver(&self.config.tcp, self.now, &packet, &mut out);
        self.out = out;
        if let Some(port) = port {
            self.flush(port);
        }
        self.refresh_other();
    }

    fn other(&mut self) {
        self.planned_ps = 0;
        if let Some((_, (id, flow))) = self.scheduled.pop_until(self.now) {
            self.begin(id, &flow);
            return;
        }
        if let Some(timer) = self.hosts.pop(self.now) {
            self.planned_ps = self.now.ps().saturating_sub(Hosts::notice(&self.config.tcp, &timer));
            let mut out = std::mem::take(&mut self.out);
            let port = self.hosts.on_timer(&self.config.tcp, self.now, timer, &mut out);
            self.out = out;
            if let Some(port) = port {
                self.flush(port);
            }
        }
        self.refresh_other();
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

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        let mut limit_ps = if self.hosts.done.is_empty() { until.ps() } else { self.now.ps() };
        loop {
            let link_ps = self.calendar.next_ps();
            let other = self.other_ps < link_ps || (self.other_ps == link_ps && !self.other_late);
            let next_ps = link_ps.min(self.other_ps);
            if next_ps > limit_ps || next_ps == u64::MAX {
                break;
            }
            if !other && self.calendar.day_is_over() {
                self.calendar.begin_day(&mut self.ports);
                continue;
            }
            debug_assert!(next_ps >= self.now.ps(), "time never goes back");
            self.begin_event(next_ps);
            if other {
                self.other();
            } else {
                self.arrive();
            }
            if !self.hosts.done.is_empty() {
                limit_ps = next_ps;
            }
        }
        self.now = Time::from_ps(limit_ps);
        done.append(&mut self.hosts.done);
        debug_assert!(self.conserves_packets(), "packets in = packets delivered + dropped + held");
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        self.hosts.set_band(&self.config.tcp, stream, band.index());
    }
}
