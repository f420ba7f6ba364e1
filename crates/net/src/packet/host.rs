//! The connections of all hosts: who gets an arriving packet, what a timer means, when a flow is complete.

use super::pcn;
use super::state::Writer;
use super::tcp::receiver::Receiver;
use super::tcp::sender::{NEVER, News, Sender};
use super::tcp::{ReverseBand, TcpConfig};
use super::wire::{SackPool, Wire, flag};
use crate::event::EventQueue;
use crate::route::{self, Hashes};
use crate::topology::PortId;
use crate::trace::{Counters, Window};
use crate::units::Time;
use crate::{Announced, Completion, Connection as Carrier, Flow, FlowId, HostId, StreamKey};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Something a connection waits for, beside its deadlines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    connection: u32,
    generation: u16,
    kind: TimerKind,
    /// When it was planned; 0 if that is long ago.
    planned_ps: u64,
}

#[derive(Clone, Copy, Debug)]
enum TimerKind {
    /// The receiver's deadline, where that is so near that it counts as planned.
    Receiver,
    /// A SYN is answered.
    Accept,
    /// The application writes so many bytes.
    Write(u64),
    /// What has been written is looked at.
    Pump,
    /// The announcement of that number has gone unanswered.
    Unanswered(u64),
}

/// When a connection's end is looked at because of its deadline, which may have moved on by then. At one instant they
/// come in order of connections: it must not depend on looks that found nothing due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Look {
    at_ps: u64,
    connection: u32,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Sender,
    Receiver,
}

impl TcpConnection {
    fn write_state(&self, config: &TcpConfig, writer: &mut Writer) -> Option<()> {
        let Self {
            generation: _,
            own,
            dst_port: _,
            receiver_armed_ps: _,
            next_goal: _,
            receiver,
            hash: _,
            src: _,
            dst: _,
            src_port: _,
            sender_armed_ps: _,
            sender,
            goals,
            began: _,
            received: _,
        } = self;
        if *own || !goals.is_empty() || !sender.is_established() || !receiver.is_open() {
            return None;
        }
        sender.write_state(config, writer);
        receiver.write_state(config, sender.una(), writer);
        Some(())
    }
}

/// What a host is to do at an instant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    Look(Look),
    Timer(Timer),
}

impl Due {
    /// When it was planned; 0 if that is long ago.
    pub fn planned_ps(self) -> u64 {
        match self {
            Self::Look(_) => 0,
            Self::Timer(timer) => timer.planned_ps,
        }
    }
}

/// A flow on its way: complete when the stream has reached `end`.
#[derive(Clone, Debug)]
struct Goal {
    end: u64,
    flow: FlowId,
    stream: u32,
    began: Time,
}

/// A burst that has been announced, and that waits for the answer.
#[derive(Clone, Debug)]
struct Waiting {
    /// Of the announcement.
    number: u64,
    bytes: u64,
    /// From the answer to the first byte.
    hold: Time,
    /// The connection is yet to be opened.
    opens: bool,
}

/// How far a connection is that has a flow under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress<'a> {
    pub connection: u32,
    pub src_port: PortId,
    pub sender: &'a Sender,
    /// Bytes that have arrived.
    pub arrived: u64,
    /// Bytes of its first flow that have been written and never sent; `None` unless the connection is open and all of
    /// the flow is written.
    pub unsent: Option<u64>,
}

/// Fields in the order of use (see [`super::port::Port`]): the first line is what data needs that arrives in order, an
/// acknowledgement begins with the fourth.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct TcpConnection {
    generation: u16,
    own: bool,
    dst_port: PortId,
    receiver_armed_ps: u64,
    /// For the next goal the stream must reach this offset; `u64::MAX` without a goal.
    next_goal: u64,
    receiver: Receiver,
    /// Of what it sends: see [`Hashes`].
    hash: u32,
    src: HostId,
    dst: HostId,
    src_port: PortId,
    /// Earliest pending look at either end; [`NEVER`] if none.
    sender_armed_ps: u64,
    /// Its template has the generation, too.
    sender: Sender,
    goals: VecDeque<Goal>,
    began: Time,
    received: Time,
}

/// All connections.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    hashes: Hashes,
    connections: Vec<TcpConnection>,
    free: Vec<u32>,
    streams: BTreeMap<(u32, u32, StreamKey), u32>,
    looks: BinaryHeap<Reverse<Look>>,
    timers: EventQueue<Timer>,
    /// Those planned so late that they come after what arrives at their instant: writes of applications, answers to
    /// SYNs, and a FIN repeated sooner than a packet crosses a link.
    late: EventQueue<Timer>,
    /// No packet arrives sooner after it was sent.
    latency_ps: u64,
    pub pool: SackPool,
    syn_stamps: BTreeMap<u32, u32>,
    /// By connection.
    waiting: BTreeMap<u32, Waiting>,
    /// Flows that completed since the last look.
    pub done: Vec<Completion>,
    pub counters: Counters,
}

impl Hosts {
    /// Without connections, on links that take at least `latency_ps`.
    pub fn new(latency_ps: u64, hashes: Hashes) -> Self {
        Self {
            hashes,
            connections: Vec::new(),
            free: Vec::new(),
            streams: BTreeMap::new(),
            looks: BinaryHeap::new(),
            timers: EventQueue::default(),
            late: EventQueue::default(),
            latency_ps,
            pool: SackPool::default(),
            syn_stamps: BTreeMap::new(),
            waiting: BTreeMap::new(),
            done: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Starts a flow; packets go to `out`, and all of them through the returned port. `announced`: it is a burst, which
    /// its connection announces if it has nothing under way, and the time to wait for an answer.
    #[expect(clippy::too_many_arguments, reason = "two callers, and a struct of them would be made to be taken apart")]
    pub fn start(
        &mut self,
        config: &TcpConfig,
        now: Time,
        id: FlowId,
        flow: &Flow,
        announced: Option<(Announced, Time)>,
        ports: (PortId, PortId),
        out: &mut Vec<Wire>,
    ) -> PortId {
        let own = flow.connection == Carrier::Own;
        let key = (flow.src.0, flow.dst.0, flow.stream_key());
        let known = if own { None } else { self.streams.get(&key).copied() };
        let index = known.unwrap_or_else(|| {
            let index = self.open(config, flow, ports);
            if !own {
                self.streams.insert(key, index);
            }
            if announced.is_none() {
                self.connections[index as usize].sender.connect(config, now.ps(), out);
            }
            index
        });
        let connection = &mut self.connections[index as usize];
        connection.sender.closing = own;
        connection.own = own;
        let end = connection.goals.back().map_or(connection.sender.written(), |goal| goal.end) + flow.bytes.0;
        connection.goals.push_back(Goal { end, flow: id, stream: flow.stream, began: now });
        connection.next_goal = connection.goals[0].end;
        if let Some(waiting) = self.waiting.get_mut(&index) {
            // It follows what has been announced.
            waiting.bytes += flow.bytes.0;
            return connection.src_port;
        }
        if let Some((announced, timeout)) = announced.filter(|_| connection.sender.backlog() == 0) {
            let waiting = Waiting { number: id.0, bytes: flow.bytes.0, hold: flow.hold, opens: known.is_none() };
            out.push(pcn::start(connection.sender.template, announced, waiting.number));
            let kind = TimerKind::Unanswered(waiting.number);
            let timer = Timer { connection: index, generation: connection.generation, kind, planned_ps: 0 };
            self.timers.push(now + timeout, timer);
            self.waiting.insert(index, waiting);
            return self.connections[index as usize].src_port;
        }
        self.write_after(config, now, index, flow.hold, flow.bytes.0);
        self.after_sender(index);
        self.check_goals(index, now);
        self.connections[index as usize].src_port
    }

    /// The application writes `bytes`, `hold` from `now`.
    fn write_after(&mut self, config: &TcpConfig, now: Time, index: u32, hold: Time, bytes: u64) {
        let connection = &mut self.connections[index as usize];
        if hold > Time::ZERO {
            // Closing has to wait for the bytes.
            connection.sender.closing = false;
            let kind = TimerKind::Write(bytes);
            let timer = Timer { connection: index, generation: connection.generation, kind, planned_ps: 0 };
            self.timers.push(now + hold, timer);
        } else {
            connection.sender.write(bytes);
            if connection.sender.is_established() {
                self.pump_later(config, now, index);
            }
        }
    }

    fn open(&mut self, config: &TcpConfig, flow: &Flow, (src_port, dst_port): (PortId, PortId)) -> u32 {
        let index = self.free.pop().unwrap_or(self.connections.len() as u32);
        let generation = self.connections.get(index as usize).map_or(0, |old| old.generation);
        let forward = Wire {
            connection: index,
            dst: flow.dst.0,
            generation,
            wire_bytes: config.header_bytes,
            band: flow.band.index(),
            ..Wire::NOTHING
        };
        let reverse = Wire { dst: flow.src.0, flags: flag::REVERSE, ..forward };
        let rule = if flow.connection == Carrier::Own { config.own_reverse_band } else { config.stream_reverse_band };
        let mut receiver = Receiver::new(config, reverse);
        if let ReverseBand::Fixed(band) = rule {
            receiver.set_band(band.index());
        }
        let window = match flow.connection {
            Carrier::StreamBand { window } => window.min(config.window),
            Carrier::Stream | Carrier::Own => config.window,
        };
        let connection = TcpConnection {
            sender: Sender::new(config, window, forward),
            receiver,
            src_port,
            dst_port,
            src: flow.src,
            dst: flow.dst,
            hash: self.hashes.open(flow),
            generation,
            own: true,
            sender_armed_ps: NEVER,
            receiver_armed_ps: NEVER,
            next_goal: u64::MAX,
            goals: VecDeque::new(),
            began: Time::ZERO,
            received: Time::ZERO,
        };
        match self.connections.get_mut(index as usize) {
            Some(place) => *place = connection,
            None => self.connections.push(connection),
        }
        index
    }

    /// The announcement of that number has been answered, or nobody waits for that any longer: the burst begins.
    #[cold]
    fn release(&mut self, config: &TcpConfig, now: Time, index: u32, number: u64, out: &mut Vec<Wire>) {
        if self.waiting.get(&index).is_none_or(|waiting| waiting.number != number) {
            return;
        }
        let Some(waiting) = self.waiting.remove(&index) else { return };
        self.write_after(config, now, index, waiting.hold, waiting.bytes);
        if waiting.opens {
            self.connections[index as usize].sender.connect(config, now.ps(), out);
        }
        self.after_sender(index);
        self.check_goals(index, now);
    }

    /// An announcement has reached the burst's receiver, or its answer the sender.
    #[cold]
    fn on_announcement(&mut self, config: &TcpConfig, now: Time, packet: &Wire, out: &mut Vec<Wire>) -> Option<PortId> {
        let connection = &self.connections[packet.connection as usize];
        if packet.flags & flag::REVERSE == 0 {
            out.push(pcn::answer(packet, connection.src.0));
            return Some(connection.dst_port);
        }
        let port = connection.src_port;
        self.release(config, now, packet.connection, pcn::number(packet), out);
        Some(port)
    }

    fn pump_later(&mut self, config: &TcpConfig, now: Time, index: u32) {
        let generation = self.connections[index as usize].generation;
        let timer = Timer { connection: index, generation, kind: TimerKind::Pump, planned_ps: now.ps() };
        self.late.push(now + config.write_delay, timer);
    }

    /// A packet has reached its host. Answers go to `out` and through the returned port.
    #[inline]
    pub fn deliver(&mut self, config: &TcpConfig, now: Time, packet: &Wire, out: &mut Vec<Wire>) -> Option<PortId> {
        let index = packet.connection;
        let (blocks, block_count) = self.pool.take(packet.sack);
        let connection = &mut self.connections[index as usize];
        if packet.flags & flag::REVERSE == 0 {
            if connection.generation != packet.generation {
                return None;
            }
            let receiver = &mut connection.receiver;
            if packet.flags & (flag::SYN | flag::PCN) == 0 {
                receiver.on_packet(config, now.ps(), packet, &mut self.pool, out);
            } else if packet.flags & flag::PCN != 0 {
                return self.on_announcement(config, now, packet, out);
            } else if receiver.on_syn(config, now.ps(), packet, out) {
                if connection.own {
                    // ns-3: a listener keeps the latest timestamp of all SYNs, and a fork begins with that.
                    let latest = self.syn_stamps.entry(packet.dst).or_default();
                    *latest = (*latest).max(packet.stamp);
                    receiver.echo = *latest;
                }
                // ns-3 forks a socket, which comes after all else of this instant.
                let timer = Timer {
                    connection: index,
                    generation: packet.generation,
                    kind: TimerKind::Accept,
                    planned_ps: now.ps(),
                };
                self.late.push(now, timer);
            }
            let port = connection.dst_port;
            if connection.receiver.received() >= connection.next_goal {
                self.check_goals(index, now);
            }
            self.after_receiver(now, index);
            self.release_if_closed(index);
            return Some(port);
        }
        if connection.sender.template.generation != packet.generation {
            return None;
        }
        let port = connection.src_port;
        let news = if packet.flags & (flag::SYN | flag::PCN) == 0 {
            connection.sender.on_ack(config, now.ps(), packet, &blocks[..block_count], out)
        } else if packet.flags & flag::PCN != 0 {
            return self.on_announcement(config, now, packet, out);
        } else {
            connection.sender.on_syn_ack(config, now.ps(), packet, out)
        };
        match news {
            News::None => self.after_sender(index),
            News::Established => {
                connection.receiver.syn_ack_stamp = packet.number as u32;
                self.on_established(config, now, index, out);
            }
            News::Closed => self.close(index),
        }
        Some(port)
    }

    /// A packet has been dropped on its way.
    #[cold]
    pub fn on_drop(&mut self, packet: &Wire) {
        self.pool.take(packet.sack);
        let connection = &mut self.connections[packet.connection as usize];
        let fin = flag::REVERSE | flag::FIN;
        if packet.flags & fin == fin && connection.generation == packet.generation {
            connection.receiver.on_lost_fin();
        }
    }

    fn on_established(&mut self, config: &TcpConfig, now: Time, index: u32, out: &mut Vec<Wire>) {
        let connection = &mut self.connections[index as usize];
        connection.began = now;
        if connection.sender.backlog() > 0 {
            self.pump_later(config, now, index);
        } else {
            connection.sender.pump(config, now.ps(), out);
        }
        self.after_sender(index);
        self.check_goals(index, now);
    }

    /// The sender has closed: the flow is complete.
    fn close(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let goal = connection.goals.pop_front().expect("a connection of its own has one flow");
        self.done.push(Completion {
            flow: goal.flow,
            stream: goal.stream,
            began: connection.began,
            received: connection.received,
        });
        self.release_if_closed(index);
    }

    /// Frees the slot once neither end needs it.
    #[inline]
    fn release_if_closed(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        // The receiver first: after data its cache lines are at hand, and the sender's are not.
        if connection.receiver.is_gone() && connection.sender.is_closed() {
            self.counters.retransmits += std::mem::take(&mut connection.sender.retransmits);
            self.counters.timeouts += std::mem::take(&mut connection.sender.timeouts);
            connection.generation = connection.generation.wrapping_add(1);
            connection.sender.template.generation = connection.generation;
            connection.sender_armed_ps = NEVER;
            connection.receiver_armed_ps = NEVER;
            self.free.push(index);
        }
    }

    fn check_goals(&mut self, index: u32, now: Time) {
        let connection = &mut self.connections[index as usize];
        let received = connection.receiver.received();
        if !connection.sender.is_established() || received < connection.next_goal {
            return;
        }
        if connection.own {
            connection.received = now;
            connection.next_goal = u64::MAX;
            return;
        }
        while connection.goals.front().is_some_and(|goal| goal.end <= received)
            && let Some(goal) = connection.goals.pop_front()
        {
            self.done.push(Completion { flow: goal.flow, stream: goal.stream, began: goal.began, received: now });
        }
        connection.next_goal = connection.goals.front().map_or(u64::MAX, |goal| goal.end);
    }

    /// The host that sent `packet`, and the hash of its direction; of a late one whose connection is gone, perhaps
    /// those of its successor.
    #[inline]
    pub fn source_and_hash(&self, packet: &Wire) -> (u32, u32) {
        let connection = &self.connections[packet.connection as usize];
        match packet.flags & flag::REVERSE {
            0 => (connection.src.0, connection.hash),
            _ => (connection.dst.0, route::reverse(connection.hash)),
        }
    }

    /// When the next timer comes, and when the next late one.
    #[inline]
    pub fn next_at_ps(&self) -> (u64, u64) {
        let look_ps = self.looks.peek().map_or(NEVER, |Reverse(look)| look.at_ps);
        let timer_ps = self.timers.next_at().map_or(NEVER, Time::ps);
        (look_ps.min(timer_ps), self.late.next_at().map_or(NEVER, Time::ps))
    }

    /// The receiver is looked at because of its deadline.
    fn at_receiver(&mut self, config: &TcpConfig, now: Time, index: u32, out: &mut Vec<Wire>) -> PortId {
        let connection = &mut self.connections[index as usize];
        connection.receiver_armed_ps = NEVER;
        if connection.receiver.deadline_ps <= now.ps() {
            connection.receiver.on_timeout(config, now.ps(), &mut self.pool, out);
        }
        let port = connection.dst_port;
        self.after_receiver(now, index);
        self.release_if_closed(index);
        port
    }

    /// Takes what comes now: a look at a deadline before a timer, and a late timer only if there is nothing else.
    pub fn pop(&mut self, now: Time) -> Option<Due> {
        if self.looks.peek().is_some_and(|Reverse(look)| look.at_ps <= now.ps()) {
            return self.looks.pop().map(|Reverse(look)| Due::Look(look));
        }
        let timer = self.timers.pop_until(now).or_else(|| self.late.pop_until(now));
        timer.map(|(_, timer)| Due::Timer(timer))
    }

    /// What was due is done. Packets go to `out` and through the returned port; `None` if there was nothing to do.
    pub fn on_due(&mut self, config: &TcpConfig, now: Time, due: Due, out: &mut Vec<Wire>) -> Option<PortId> {
        match due {
            Due::Look(look) => self.look(config, now, look, out),
            Due::Timer(timer) => self.on_timer(config, now, timer, out),
        }
    }

    /// A connection's end is looked at because of a deadline. Nothing is done where it has moved on, or where an earlier
    /// look has replaced this one.
    fn look(&mut self, config: &TcpConfig, now: Time, look: Look, out: &mut Vec<Wire>) -> Option<PortId> {
        let index = look.connection;
        let connection = &mut self.connections[index as usize];
        match look.end {
            End::Sender if connection.sender_armed_ps != look.at_ps => None,
            End::Receiver if connection.receiver_armed_ps != look.at_ps => None,
            End::Sender => {
                connection.sender_armed_ps = NEVER;
                let (is_due, port) = (connection.sender.deadline_ps <= now.ps(), connection.src_port);
                if is_due {
                    let unheard = connection.receiver.is_unheard();
                    connection.sender.on_timeout(config, now.ps(), unheard, out);
                }
                self.after_sender(index);
                is_due.then_some(port)
            }
            End::Receiver => {
                let is_due = connection.receiver.deadline_ps <= now.ps();
                let port = self.at_receiver(config, now, index, out);
                is_due.then_some(port)
            }
        }
    }

    fn on_timer(&mut self, config: &TcpConfig, now: Time, timer: Timer, out: &mut Vec<Wire>) -> Option<PortId> {
        let index = timer.connection;
        let connection = &mut self.connections[index as usize];
        if connection.generation != timer.generation {
            return None;
        }
        match timer.kind {
            TimerKind::Receiver if connection.receiver_armed_ps != now.ps() => return None,
            TimerKind::Receiver => return Some(self.at_receiver(config, now, index, out)),
            TimerKind::Accept => {
                connection.receiver.accept(config, now.ps(), out);
                let port = connection.dst_port;
                self.after_receiver(now, index);
                return Some(port);
            }
            TimerKind::Write(bytes) => {
                connection.sender.closing = connection.own;
                connection.sender.write(bytes);
                if connection.sender.is_established() {
                    self.pump_later(config, now, index);
                }
            }
            TimerKind::Pump => connection.sender.pump(config, now.ps(), out),
            TimerKind::Unanswered(number) => self.release(config, now, index, number, out),
        }
        self.after_sender(index);
        Some(self.connections[index as usize].src_port)
    }

    /// Keeps one event pending no later than the sender's deadline. A deadline that moves on costs nothing until its
    /// old event comes.
    #[inline]
    fn after_sender(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let deadline_ps = connection.sender.deadline_ps;
        if deadline_ps < connection.sender_armed_ps {
            connection.sender_armed_ps = deadline_ps;
            self.looks.push(Reverse(Look { at_ps: deadline_ps, connection: index, end: End::Sender }));
        }
    }

    #[inline]
    fn after_receiver(&mut self, now: Time, index: u32) {
        let connection = &mut self.connections[index as usize];
        let deadline_ps = connection.receiver.deadline_ps;
        if deadline_ps < connection.receiver_armed_ps {
            connection.receiver_armed_ps = deadline_ps;
            if connection.receiver.awaits_last_ack() && deadline_ps < now.ps() + self.latency_ps {
                let (generation, kind) = (connection.generation, TimerKind::Receiver);
                let timer = Timer { connection: index, generation, kind, planned_ps: now.ps() };
                self.late.push(Time::from_ps(deadline_ps), timer);
            } else {
                self.looks.push(Reverse(Look { at_ps: deadline_ps, connection: index, end: End::Receiver }));
            }
        }
    }

    /// Packets of `stream` travel in `band` from now on.
    pub fn set_band(&mut self, config: &TcpConfig, stream: u32, band: u8) {
        for (key, &index) in &self.streams {
            if key.2 == (StreamKey { stream, band: 0 }) {
                let connection = &mut self.connections[index as usize];
                connection.sender.template.band = band;
                if config.stream_reverse_band == ReverseBand::OfData {
                    connection.receiver.set_band(band);
                }
            }
        }
    }

    /// Flows under way on connections of their own, with their senders' windows.
    pub fn flow_windows(&self) -> impl Iterator<Item = (FlowId, Window)> {
        let own = self.connections.iter().filter(|connection| connection.own);
        own.filter_map(|connection| Some((connection.goals.front()?.flow, connection.sender.window())))
    }

    /// Of each flow that has as much to send as it has under way: its first port, a packet of it, and what is under
    /// way.
    pub fn long_flows(&self) -> impl Iterator<Item = (PortId, &Wire, u64)> {
        let flights = self.connections.iter().map(|connection| (connection, connection.sender.window().flight.0));
        flights
            .filter(|(connection, flight)| *flight > 0 && connection.sender.backlog() >= 2 * flight)
            .map(|(connection, flight)| (connection.src_port, &connection.sender.template, flight))
    }

    /// Connections with a flow under way, always in the same order.
    pub fn progress(&self) -> impl Iterator<Item = Progress<'_>> {
        (0..).zip(&self.connections).filter_map(|(index, connection)| {
            let &TcpConnection { ref sender, ref receiver, src_port, .. } = connection;
            let end = connection.goals.front()?.end;
            let is_open = sender.is_established() && receiver.is_open() && sender.written() >= end;
            let unsent = is_open.then(|| end.saturating_sub(sender.high()));
            Some(Progress { connection: index, src_port, sender, arrived: receiver.arrived(), unsent })
        })
    }

    /// Takes `bytes` from what a connection's first flow has not sent yet. Its stream is that much shorter.
    pub fn skip(&mut self, connection: u32, bytes: u64) {
        let TcpConnection { sender, goals, next_goal, .. } = &mut self.connections[connection as usize];
        sender.skip(bytes);
        goals.iter_mut().for_each(|goal| goal.end -= bytes);
        *next_goal -= bytes;
        debug_assert!(*next_goal == goals[0].end && *next_goal >= sender.high(), "what has been sent stays");
    }

    /// Whether an application waits to write, or a connection for something else than a deadline.
    pub fn awaits_timers(&self) -> bool {
        self.timers.next_at().is_some() || self.late.next_at().is_some()
    }

    /// Connections of `stream`, by sending and receiving host.
    pub fn stream_windows(&self, stream: u32) -> impl Iterator<Item = (HostId, HostId, Window)> {
        let own = self.streams.iter().filter(move |(key, _)| key.2.stream == stream);
        own.map(|(key, &index)| (HostId(key.0), HostId(key.1), self.connections[index as usize].sender.window()))
    }

    /// About what it takes to keep a state.
    pub fn state_bytes(&self) -> usize {
        50 * size_of::<u64>() * self.connections.len()
    }

    /// How often windows have been reduced, and how often odd bytes may have made a difference.
    pub fn effects(&self) -> (u64, u64) {
        let senders = self.connections.iter().map(|connection| &connection.sender);
        senders
            .fold((0, 0), |(reductions, counts), sender| (reductions + sender.reductions, counts + sender.odd_counts))
    }

    /// Whether estimates of round trips have an effect on any connection.
    pub fn time_round_trips(&self, config: &TcpConfig, now: Time) -> bool {
        self.connections.iter().any(|connection| connection.sender.times_round_trips(config, now.ps()))
    }

    /// `None` unless all that there is are connections of streams, whose flows are complete.
    pub fn write_state(&self, config: &TcpConfig, writer: &mut Writer) -> Option<()> {
        // Streams' connections are never closed: those of a stream, its slot and its hash are what they were.
        let Self {
            hashes: _,
            connections,
            free: _,
            streams: _,
            looks: _,
            timers,
            late,
            latency_ps: _,
            pool: _,
            syn_stamps: _,
            waiting,
            done,
            counters: _,
        } = self;
        if timers.next_at().is_some() || late.next_at().is_some() || !waiting.is_empty() || !done.is_empty() {
            return None;
        }
        writer.word(connections.len() as u64);
        connections.iter().try_for_each(|connection| connection.write_state(config, writer))
    }

    /// Totals, those of open connections included.
    pub fn totals(&self) -> Counters {
        let mut totals = self.counters;
        for connection in &self.connections {
            totals.retransmits += connection.sender.retransmits;
            totals.timeouts += connection.sender.timeouts;
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn data_in_order_needs_one_cache_line() {
        assert_eq!((offset_of!(TcpConnection, receiver), offset_of!(TcpConnection, sender)), (24, 192));
    }
}
