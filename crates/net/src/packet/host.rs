//! The connections of all hosts: who gets an arriving packet, what a timer means, when a flow is complete.

use super::calendar::epoch_ps;
use super::ends::{Arrived, Connections, Goal, News, Opened, Receiving, Sending};
use super::order::{Cause, End, Late, Look};
use super::pcn;
use super::tcp::receiver::Receiver;
use super::tcp::sender::{NEVER, Sender};
use super::tcp::{ReverseBand, TcpConfig};
use super::wire::{Wire, flag};
use crate::event::EventQueue;
use crate::route::Hashes;
use crate::topology::PortId;
use crate::trace::{Counters, Window};
use crate::units::{Bytes, Time};
use crate::{Announced, Completion, Connection as Carrier, Flow, FlowId, HostId, StreamKey};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Something a connection waits for, beside its deadlines and what comes [late](Late).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    connection: u32,
    generation: u16,
    kind: TimerKind,
}

#[derive(Clone, Copy, Debug)]
enum TimerKind {
    /// The application writes so many bytes.
    Write(u64),
    /// The announcement of that number has gone unanswered.
    Unanswered(u64),
}

/// What a host is to do at an instant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    Look(Look),
    Timer(Timer),
    Late(Late),
}

impl Due {
    /// When it was planned; 0 if that is long ago.
    pub fn planned_ps(self) -> u64 {
        match self {
            Self::Look(_) | Self::Timer(_) => 0,
            Self::Late(late) => late.planned_ps,
        }
    }
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

/// All connections.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    hashes: Hashes,
    pub connections: Connections,
    streams: BTreeMap<(u32, u32, StreamKey), u32>,
    timers: EventQueue<Timer>,
    /// How many [causes](Cause) there have been that are no arrival.
    cause_count: u64,
    /// No packet arrives sooner after it was sent.
    latency_ps: u64,
    /// FINs of receivers that were dropped, and when their connections hear of it.
    lost: VecDeque<(u64, Wire)>,
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
            connections: Connections::new(latency_ps),
            streams: BTreeMap::new(),
            timers: EventQueue::default(),
            cause_count: 0,
            latency_ps,
            lost: VecDeque::new(),
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
            let index = self.open(config, now, flow, ports);
            if !own {
                self.streams.insert(key, index);
            }
            if announced.is_none() {
                self.connections.sending_mut(index).sender.connect(config, now.ps(), out);
            }
            index
        });
        let sending = self.connections.sending_mut(index);
        sending.sender.closing = own;
        let end = sending.goals.back().map_or(sending.sender.written(), |goal| goal.end) + flow.bytes.0;
        sending.goals.push_back(Goal { end, flow: id, stream: flow.stream, began: now });
        let (port, next_goal, backlog) = (sending.port, sending.goals[0].end, sending.sender.backlog());
        let template = sending.sender.template;
        self.connections.receiving_mut(index).next_goal = next_goal;
        if let Some(waiting) = self.waiting.get_mut(&index) {
            // It follows what has been announced.
            waiting.bytes += flow.bytes.0;
            return port;
        }
        if let Some((announced, timeout)) = announced.filter(|_| backlog == 0) {
            let waiting = Waiting { number: id.0, bytes: flow.bytes.0, hold: flow.hold, opens: known.is_none() };
            out.push(pcn::start(template, announced, waiting.number));
            let kind = TimerKind::Unanswered(waiting.number);
            let timer = Timer { connection: index, generation: template.generation, kind };
            self.timers.push(now + timeout, timer);
            self.waiting.insert(index, waiting);
            return port;
        }
        self.write_after(config, now, index, flow.hold, flow.bytes.0);
        self.connections.arm_sender(index);
        self.check_goals(index, now);
        port
    }

    /// The application writes `bytes`, `hold` from `now`.
    fn write_after(&mut self, config: &TcpConfig, now: Time, index: u32, hold: Time, bytes: u64) {
        let sender = &mut self.connections.sending_mut(index).sender;
        if hold > Time::ZERO {
            // Closing has to wait for the bytes.
            sender.closing = false;
            let (generation, kind) = (sender.template.generation, TimerKind::Write(bytes));
            let timer = Timer { connection: index, generation, kind };
            self.timers.push(now + hold, timer);
        } else {
            sender.write(bytes);
            if sender.is_established() {
                self.pump_later(config, now, index);
            }
        }
    }

    fn pump_later(&mut self, config: &TcpConfig, now: Time, index: u32) {
        let cause = self.other_cause();
        self.connections.pump_later(now, config.write_delay, cause, index);
    }

    /// Of what is no arrival.
    fn other_cause(&mut self) -> Cause {
        self.cause_count += 1;
        Cause::Other(self.cause_count)
    }

    fn open(&mut self, config: &TcpConfig, now: Time, flow: &Flow, (src_port, dst_port): (PortId, PortId)) -> u32 {
        let (index, generation) = self.connections.slot(now.ps());
        let forward =
            Wire { connection: index, dst: flow.dst.0, generation, wire_bytes: config.header_bytes, ..Wire::NOTHING }
                .in_band(flow.band.index());
        let reverse = Wire { dst: flow.src.0, flags: flag::REVERSE, ..forward };
        let own = flow.connection == Carrier::Own;
        let rule = if own { config.own_reverse_band } else { config.stream_reverse_band };
        let mut receiver = Receiver::new(config, reverse);
        if let ReverseBand::Fixed(band) = rule {
            receiver.set_band(band.index());
        }
        let window = match flow.connection {
            Carrier::StreamBand { window } => window.min(config.window),
            Carrier::Stream | Carrier::Own => config.window,
        };
        let receiving = Receiving {
            generation,
            own,
            port: dst_port,
            armed_ps: NEVER,
            next_goal: u64::MAX,
            receiver,
            received: Time::ZERO,
        };
        let sending = Sending {
            port: src_port,
            armed_ps: NEVER,
            sender: Sender::new(config, window, forward),
            goals: VecDeque::new(),
            began: Time::ZERO,
        };
        let (src, dst, hash) = (flow.src, flow.dst, self.hashes.open(flow));
        self.connections.open(index, Opened { src, dst, hash, receiving, sending });
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
            self.connections.sending_mut(index).sender.connect(config, now.ps(), out);
        }
        self.connections.arm_sender(index);
        self.check_goals(index, now);
    }

    /// An announcement has reached the burst's receiver, or its answer the sender.
    #[cold]
    fn on_announcement(&mut self, config: &TcpConfig, now: Time, packet: &Wire, out: &mut Vec<Wire>) -> Option<PortId> {
        if packet.flags & flag::REVERSE == 0 {
            out.push(pcn::answer(packet, self.connections.src(packet.connection).0));
            return Some(self.connections.receiving(packet.connection).port);
        }
        let port = self.connections.sending(packet.connection).port;
        self.release(config, now, packet.connection, pcn::number(packet), out);
        Some(port)
    }

    /// A packet has reached its host. Answers go to `out` and through the returned port; `cause` tells which arrival it is.
    #[inline]
    pub fn deliver(
        &mut self,
        config: &TcpConfig,
        now: Time,
        packet: &Wire,
        room_bytes: u64,
        out: &mut Vec<Wire>,
        cause: impl FnOnce() -> Cause,
    ) -> Option<PortId> {
        if packet.flags & flag::PCN != 0 {
            return if self.connections.is_known(packet) {
                self.on_announcement(config, now, packet, out)
            } else {
                None
            };
        }
        let arrived = Arrived { now, packet, room_bytes, cause };
        let (port, news) = self.connections.deliver(config, arrived, out)?;
        let index = packet.connection;
        match news {
            News::None => (),
            News::Reached => self.check_goals(index, now),
            News::Established => {
                self.connections.receiving_mut(index).receiver.syn_ack_stamp = packet.number() as u32;
                self.check_goals(index, now);
            }
            News::Closed => self.close(now, index),
            News::Gone => self.release_if_closed(now, index),
        }
        Some(port)
    }

    /// A packet has been dropped. Its connection hears of it when the next epoch begins.
    #[cold]
    pub fn on_drop(&mut self, now: Time, packet: &Wire) {
        self.connections.pool.forget(*packet);
        if packet.matters_when_lost() {
            self.lost.push_back((self.next_epoch_ps(now), *packet));
        }
    }

    fn next_epoch_ps(&self, now: Time) -> u64 {
        let epoch_ps = epoch_ps(self.latency_ps);
        (now.ps() / epoch_ps + 1) * epoch_ps
    }

    /// Connections hear of what has been lost, as far as they do so by `now_ps`.
    pub fn hear_losses(&mut self, now_ps: u64) {
        while let Some(&(at_ps, packet)) = self.lost.front()
            && at_ps <= now_ps
        {
            self.lost.pop_front();
            if self.connections.is_known(&packet) {
                self.connections.receiving_mut(packet.connection).receiver.on_lost_fin();
            }
        }
    }

    /// The sender has closed: the flow is complete.
    fn close(&mut self, now: Time, index: u32) {
        let received = self.connections.receiving(index).received;
        let Sending { goals, began, .. } = self.connections.sending_mut(index);
        let goal = goals.pop_front().expect("a connection of its own has one flow");
        self.done.push(Completion { flow: goal.flow, stream: goal.stream, began: *began, received });
        self.release_if_closed(now, index);
    }

    /// Frees the slot once neither end needs it.
    #[inline]
    fn release_if_closed(&mut self, now: Time, index: u32) {
        // The receiver first: after data its cache lines are at hand, and the sender's are not.
        if !self.connections.receiving(index).receiver.is_gone() {
            return;
        }
        let sender = &mut self.connections.sending_mut(index).sender;
        if sender.is_closed() {
            self.counters.retransmits += std::mem::take(&mut sender.retransmits);
            self.counters.timeouts += std::mem::take(&mut sender.timeouts);
            let from_ps = self.next_epoch_ps(now);
            self.connections.release(index, from_ps);
        }
    }

    /// Whether all slots are free but those of streams, as they are when nothing will happen any more.
    pub fn slots_are_free(&self) -> bool {
        self.connections.used_count() == self.streams.len()
    }

    fn check_goals(&mut self, index: u32, now: Time) {
        let receiving = self.connections.receiving_mut(index);
        let (received, own) = (receiving.receiver.received(), receiving.own);
        if received < receiving.next_goal {
            return;
        }
        let Sending { sender, goals, .. } = self.connections.sending_mut(index);
        if !sender.is_established() {
            return;
        }
        let mut next_goal = u64::MAX;
        if !own {
            while goals.front().is_some_and(|goal| goal.end <= received)
                && let Some(goal) = goals.pop_front()
            {
                self.done.push(Completion { flow: goal.flow, stream: goal.stream, began: goal.began, received: now });
            }
            next_goal = goals.front().map_or(u64::MAX, |goal| goal.end);
        }
        let receiving = self.connections.receiving_mut(index);
        receiving.next_goal = next_goal;
        if own {
            receiving.received = now;
        }
    }

    /// Whether something has been planned since this was last asked. A plain packet may do so, and changes nothing else of
    /// what [`Hosts::next_at_ps`] says.
    #[inline]
    pub fn has_planned(&mut self) -> bool {
        let plans = &mut self.connections.plans;
        let has_news = plans.has_news;
        if has_news {
            plans.has_news = false;
        }
        has_news
    }

    /// When the next timer comes, and when the next late one.
    #[inline]
    pub fn next_at_ps(&self) -> (u64, u64) {
        let plans = &self.connections.plans;
        let look_ps = plans.looks.peek().map_or(NEVER, |Reverse(look)| look.at_ps);
        let timer_ps = self.timers.next_at().map_or(NEVER, Time::ps);
        let late_ps = plans.lates.peek().map_or(NEVER, |Reverse(late)| late.at_ps);
        (look_ps.min(timer_ps), late_ps)
    }

    /// Takes what comes now: a look at a deadline before a timer, and what is late only if there is nothing else.
    pub fn pop(&mut self, now: Time) -> Option<Due> {
        let plans = &mut self.connections.plans;
        if plans.looks.peek().is_some_and(|Reverse(look)| look.at_ps <= now.ps()) {
            return plans.looks.pop().map(|Reverse(look)| Due::Look(look));
        }
        if let Some((_, timer)) = self.timers.pop_until(now) {
            return Some(Due::Timer(timer));
        }
        let is_due = plans.lates.peek().is_some_and(|Reverse(late)| late.at_ps <= now.ps());
        if is_due { plans.lates.pop().map(|Reverse(late)| Due::Late(late)) } else { None }
    }

    /// The connection whose sender has something due, and its port.
    pub fn sender_of(&self, due: Due) -> Option<(u32, PortId)> {
        let (connection, end) = match due {
            Due::Look(look) => (look.connection, look.end),
            // It writes, and sends later.
            Due::Timer(_) => return None,
            Due::Late(late) => (late.connection, late.end()),
        };
        (end == End::Sender).then(|| (connection, self.connections.sending(connection).port))
    }

    /// What was due is done; a sender's card takes `room_bytes`. Packets go to `out` and through the returned port;
    /// `None` if there was nothing to do.
    pub fn on_due(
        &mut self,
        config: &TcpConfig,
        now: Time,
        due: Due,
        room_bytes: u64,
        out: &mut Vec<Wire>,
    ) -> Option<PortId> {
        self.hear_losses(now.ps());
        match due {
            Due::Look(look) => self.look(config, now, look, room_bytes, out),
            Due::Timer(timer) => self.on_timer(config, now, timer, out),
            Due::Late(late) => self.on_late(config, now, &late, room_bytes, out),
        }
    }

    /// A connection's end is looked at because of a deadline. Nothing is done where it has moved on, or where an earlier
    /// look has replaced this one.
    fn look(
        &mut self,
        config: &TcpConfig,
        now: Time,
        look: Look,
        room_bytes: u64,
        out: &mut Vec<Wire>,
    ) -> Option<PortId> {
        let index = look.connection;
        match look.end {
            End::Sender => {
                let Sending { port, armed_ps, sender, .. } = self.connections.sending_mut(index);
                if *armed_ps != look.at_ps {
                    return None;
                }
                *armed_ps = NEVER;
                let (is_due, port) = (sender.deadline_ps <= now.ps(), *port);
                if is_due {
                    let unheard = self.connections.receiving(index).receiver.is_unheard();
                    let sender = &mut self.connections.sending_mut(index).sender;
                    sender.room_bytes = room_bytes;
                    sender.on_timeout(config, now.ps(), unheard, out);
                }
                self.connections.arm_sender(index);
                is_due.then_some(port)
            }
            End::Receiver => {
                let receiving = self.connections.receiving(index);
                if receiving.armed_ps != look.at_ps {
                    return None;
                }
                let is_due = receiving.receiver.deadline_ps <= now.ps();
                let cause = (0, self.other_cause());
                let (port, news) = self.connections.look_at_receiver(config, now.ps(), index, cause, out);
                if news == News::Gone {
                    self.release_if_closed(now, index);
                }
                is_due.then_some(port)
            }
        }
    }

    fn on_timer(&mut self, config: &TcpConfig, now: Time, timer: Timer, out: &mut Vec<Wire>) -> Option<PortId> {
        let index = timer.connection;
        let &Receiving { generation, own, .. } = self.connections.receiving(index);
        if generation != timer.generation {
            return None;
        }
        match timer.kind {
            TimerKind::Write(bytes) => {
                let sender = &mut self.connections.sending_mut(index).sender;
                sender.closing = own;
                sender.write(bytes);
                if sender.is_established() {
                    self.pump_later(config, now, index);
                }
            }
            TimerKind::Unanswered(number) => self.release(config, now, index, number, out),
        }
        self.connections.arm_sender(index);
        Some(self.connections.sending(index).port)
    }

    fn on_late(
        &mut self,
        config: &TcpConfig,
        now: Time,
        late: &Late,
        room_bytes: u64,
        out: &mut Vec<Wire>,
    ) -> Option<PortId> {
        let (port, news) = self.connections.on_late(config, late, room_bytes, out)?;
        if news == News::Gone {
            self.release_if_closed(now, late.connection);
        }
        Some(port)
    }

    /// Packets of `stream` travel in `band` from now on.
    pub fn set_band(&mut self, config: &TcpConfig, stream: u32, band: u8) {
        for (key, &index) in &self.streams {
            if key.2 == (StreamKey { stream, band: 0 }) {
                self.connections.sending_mut(index).sender.set_band(band);
                if config.stream_reverse_band == ReverseBand::OfData {
                    self.connections.receiving_mut(index).receiver.set_band(band);
                }
            }
        }
    }

    /// Flows under way on connections of their own, with their senders' windows.
    pub fn flow_windows(&self) -> impl Iterator<Item = (FlowId, Window)> {
        let own = self.connections.iter().filter(|(receiving, _)| receiving.own);
        own.filter_map(|(_, sending)| Some((sending.goals.front()?.flow, sending.sender.window())))
    }

    /// Flows under way on connections of their own, with the bytes that their receivers do not have in order.
    pub fn remaining(&self) -> impl Iterator<Item = (FlowId, Bytes)> {
        let own = self.connections.iter().filter(|(receiving, _)| receiving.own);
        own.filter_map(|(receiving, sending)| {
            let goal = sending.goals.front()?;
            Some((goal.flow, Bytes(goal.end.saturating_sub(receiving.receiver.received()))))
        })
    }

    /// Of each flow that has as much to send as it has under way: its first port, a packet of it, and what is under
    /// way.
    pub fn long_flows(&self) -> impl Iterator<Item = (PortId, &Wire, u64)> {
        let flights = self.connections.iter().map(|(_, sending)| (sending, sending.sender.window().flight.0));
        flights
            .filter(|(sending, flight)| *flight > 0 && sending.sender.backlog() >= 2 * flight)
            .map(|(sending, flight)| (sending.port, &sending.sender.template, flight))
    }

    /// Connections of `stream`, by sending and receiving host.
    pub fn stream_windows(&self, stream: u32) -> impl Iterator<Item = (HostId, HostId, Window)> {
        let own = self.streams.iter().filter(move |(key, _)| key.2.stream == stream);
        own.map(|(key, &index)| (HostId(key.0), HostId(key.1), self.connections.sending(index).sender.window()))
    }

    /// Totals, those of open connections included.
    pub fn totals(&self) -> Counters {
        let mut totals = self.counters;
        for (_, Sending { sender, .. }) in self.connections.iter() {
            totals.retransmits += sender.retransmits;
            totals.timeouts += sender.timeouts;
        }
        totals
    }
}
