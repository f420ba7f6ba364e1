//! Flows and connections of all hosts: delivery of packets, timers, and completion of flows.

use super::calendar::window_ps;
use super::endpoints::{Connections, Message, Opened, Outcome, Receiving, Sending};
use super::event_key::{End, FollowUp, Origin, TimerCheck};
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

/// A timer that is not the deadline of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    connection: u32,
    generation: u16,
    kind: TimerKind,
}

#[derive(Clone, Copy, Debug)]
enum TimerKind {
    /// The application writes this many bytes.
    Write(u64),
    /// No answer to the announcement with this number has arrived in time.
    Unanswered(u64),
}

/// An event at a host other than an arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostEvent {
    TimerCheck(TimerCheck),
    Timer(Timer),
    FollowUp(FollowUp),
}

impl HostEvent {
    /// Returns the time at which the event was scheduled. Returns 0 for events scheduled at least a link latency ahead,
    /// because these come before simultaneous arrivals.
    pub fn scheduled_ps(self) -> u64 {
        match self {
            Self::TimerCheck(_) | Self::Timer(_) => 0,
            Self::FollowUp(follow_up) => follow_up.scheduled_ps,
        }
    }
}

/// An announced burst that waits for the answer to its announcement.
#[derive(Clone, Debug)]
struct PendingBurst {
    /// Number of the announcement.
    number: u64,
    bytes: u64,
    /// Time from the answer to the first byte.
    hold: Time,
    /// Whether the connection is opened only after the answer.
    opens: bool,
}

/// Flows and connections of all hosts.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    hashes: Hashes,
    pub connections: Connections,
    streams: BTreeMap<(u32, u32, StreamKey), u32>,
    timers: EventQueue<Timer>,
    /// Minimum time from sending a packet to its arrival.
    latency_ps: u64,
    /// Dropped FINs of receivers, each with the time at which its receiver reacts to the drop.
    lost_fins: VecDeque<(u64, Wire)>,
    /// Announced bursts by connection.
    pending_bursts: BTreeMap<u32, PendingBurst>,
    /// Completed flows that are not yet reported.
    pub done: Vec<Completion>,
    pub counters: Counters,
}

impl Hosts {
    /// Creates hosts without connections, on links with a latency of at least `latency_ps`.
    pub fn new(latency_ps: u64, hashes: Hashes) -> Self {
        Self {
            hashes,
            connections: Connections::new(latency_ps),
            streams: BTreeMap::new(),
            timers: EventQueue::default(),
            latency_ps,
            lost_fins: VecDeque::new(),
            pending_bursts: BTreeMap::new(),
            done: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Starts a flow. Appends packets to `out`, to be sent through the returned port. `announced` is the announcement
    /// of a burst and the timeout for the answer; a connection with unacknowledged data sends no announcement. `ports`
    /// are the egress ports of the source and the destination.
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
        let single_flow = flow.connection == Carrier::Own;
        let key = (flow.src.0, flow.dst.0, flow.stream_key());
        let known = if single_flow { None } else { self.streams.get(&key).copied() };
        let index = known.unwrap_or_else(|| {
            let index = self.open(config, now, flow, ports);
            if !single_flow {
                self.streams.insert(key, index);
            }
            if announced.is_none() {
                self.connections.sending_mut(index).sender.connect(config, now.ps(), out);
            }
            index
        });
        let sending = self.connections.sending_mut(index);
        sending.sender.closing = single_flow;
        let end = sending.messages.back().map_or(sending.sender.written(), |message| message.end) + flow.bytes.0;
        sending.messages.push_back(Message { end, flow: id, stream: flow.stream, began: now });
        let (port, message_end, backlog) = (sending.port, sending.messages[0].end, sending.sender.backlog());
        let template = sending.sender.template;
        self.connections.receiving_mut(index).message_end = message_end;
        if let Some(burst) = self.pending_bursts.get_mut(&index) {
            // The flow joins the announced burst.
            burst.bytes += flow.bytes.0;
            return port;
        }
        if let Some((announced, timeout)) = announced.filter(|_| backlog == 0) {
            let burst = PendingBurst { number: id.0, bytes: flow.bytes.0, hold: flow.hold, opens: known.is_none() };
            out.push(pcn::start(template, announced, burst.number));
            let kind = TimerKind::Unanswered(burst.number);
            let timer = Timer { connection: index, generation: template.generation, kind };
            self.timers.push(now + timeout, timer);
            self.pending_bursts.insert(index, burst);
            return port;
        }
        self.write_after(config, now, index, flow.hold, flow.bytes.0);
        self.connections.arm_sender(index);
        self.complete_flows(index, now);
        port
    }

    fn write_after(&mut self, config: &TcpConfig, now: Time, index: u32, hold: Time, bytes: u64) {
        let sender = &mut self.connections.sending_mut(index).sender;
        if hold > Time::ZERO {
            // Keeps the connection from closing before the write.
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
        self.connections.pump_later(now, config.write_delay, Origin::LOCAL, index);
    }

    fn open(&mut self, config: &TcpConfig, now: Time, flow: &Flow, (src_port, dst_port): (PortId, PortId)) -> u32 {
        let (index, generation) = self.connections.slot(now.ps());
        let forward =
            Wire { connection: index, dst: flow.dst.0, generation, wire_bytes: config.header_bytes, ..Wire::NOTHING }
                .in_band(flow.band.index());
        let reverse = Wire { dst: flow.src.0, flags: flag::REVERSE, ..forward };
        let single_flow = flow.connection == Carrier::Own;
        let rule = if single_flow { config.own_reverse_band } else { config.stream_reverse_band };
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
            single_flow,
            port: dst_port,
            armed_ps: NEVER,
            message_end: u64::MAX,
            receiver,
            received: Time::ZERO,
        };
        let sending = Sending {
            port: src_port,
            armed_ps: NEVER,
            sender: Sender::new(config, window, forward),
            messages: VecDeque::new(),
            began: Time::ZERO,
        };
        let (src, dst, hash) = (flow.src, flow.dst, self.hashes.open(flow));
        self.connections.open(index, Opened { src, dst, hash, receiving, sending });
        index
    }

    /// Starts the burst whose announcement has `number`, after the answer or its timeout.
    #[cold]
    fn release(&mut self, config: &TcpConfig, now: Time, index: u32, number: u64, out: &mut Vec<Wire>) {
        if self.pending_bursts.get(&index).is_none_or(|burst| burst.number != number) {
            return;
        }
        let Some(burst) = self.pending_bursts.remove(&index) else { return };
        self.write_after(config, now, index, burst.hold, burst.bytes);
        if burst.opens {
            self.connections.sending_mut(index).sender.connect(config, now.ps(), out);
        }
        self.connections.arm_sender(index);
        self.complete_flows(index, now);
    }

    /// Processes a burst announcement at the burst's receiver, or the answer to the announcement at the burst's sender.
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

    /// Delivers a packet to its host. Appends answers to `out`, to be sent through the returned port.
    #[inline]
    pub fn deliver(
        &mut self,
        config: &TcpConfig,
        now: Time,
        packet: &Wire,
        room_bytes: u64,
        out: &mut Vec<Wire>,
    ) -> Option<PortId> {
        if packet.flags & flag::PCN != 0 {
            return if self.connections.accepts(packet) {
                self.on_announcement(config, now, packet, out)
            } else {
                None
            };
        }
        let (port, outcome) = self.connections.deliver(config, now, packet, room_bytes, out)?;
        let index = packet.connection;
        match outcome {
            Outcome::None => (),
            Outcome::MessageComplete => self.complete_flows(index, now),
            Outcome::Established => {
                self.connections.receiving_mut(index).receiver.syn_ack_stamp = packet.number() as u32;
                self.complete_flows(index, now);
            }
            Outcome::SenderClosed => self.close(now, index),
            Outcome::ReceiverFinished => self.release_if_closed(now, index),
        }
        Some(port)
    }

    /// Records a dropped packet. A receiver reacts to a dropped FIN at the start of the next window.
    #[cold]
    pub fn on_drop(&mut self, now: Time, packet: &Wire) {
        self.connections.pool.forget(*packet);
        if packet.is_receiver_fin() {
            self.lost_fins.push_back((self.next_window_ps(now), *packet));
        }
    }

    fn next_window_ps(&self, now: Time) -> u64 {
        let window_ps = window_ps(self.latency_ps);
        (now.ps() / window_ps + 1) * window_ps
    }

    /// Lets receivers react to the dropped FINs that take effect by `now_ps`.
    pub fn apply_losses(&mut self, now_ps: u64) {
        while let Some(&(at_ps, packet)) = self.lost_fins.front()
            && at_ps <= now_ps
        {
            self.lost_fins.pop_front();
            if self.connections.accepts(&packet) {
                self.connections.receiving_mut(packet.connection).receiver.on_lost_fin();
            }
        }
    }

    /// Completes the flow of a single-flow connection whose sender has closed.
    fn close(&mut self, now: Time, index: u32) {
        let received = self.connections.receiving(index).received;
        let Sending { messages, began, .. } = self.connections.sending_mut(index);
        let message = messages.pop_front().expect("the connection carries one flow");
        self.done.push(Completion { flow: message.flow, stream: message.stream, began: *began, received });
        self.release_if_closed(now, index);
    }

    #[inline]
    fn release_if_closed(&mut self, now: Time, index: u32) {
        // The receiver is checked first, because after data its cache lines are cached and the sender's are not.
        if !self.connections.receiving(index).receiver.is_finished() {
            return;
        }
        let sender = &mut self.connections.sending_mut(index).sender;
        if sender.is_closed() {
            self.counters.retransmits += std::mem::take(&mut sender.retransmits);
            self.counters.timeouts += std::mem::take(&mut sender.timeouts);
            let from_ps = self.next_window_ps(now);
            self.connections.release(index, from_ps);
        }
    }

    /// Returns whether all slots except those of streams are free, as in an idle network.
    pub fn slots_are_free(&self) -> bool {
        self.connections.used_count() == self.streams.len()
    }

    fn complete_flows(&mut self, index: u32, now: Time) {
        let receiving = self.connections.receiving_mut(index);
        let (received, single_flow) = (receiving.receiver.received(), receiving.single_flow);
        if received < receiving.message_end {
            return;
        }
        let Sending { sender, messages, .. } = self.connections.sending_mut(index);
        if !sender.is_established() {
            return;
        }
        let mut message_end = u64::MAX;
        if !single_flow {
            while messages.front().is_some_and(|message| message.end <= received)
                && let Some(message) = messages.pop_front()
            {
                self.done.push(Completion {
                    flow: message.flow,
                    stream: message.stream,
                    began: message.began,
                    received: now,
                });
            }
            message_end = messages.front().map_or(u64::MAX, |message| message.end);
        }
        let receiving = self.connections.receiving_mut(index);
        receiving.message_end = message_end;
        if single_flow {
            receiving.received = now;
        }
    }

    /// Returns whether a timer check or follow-up was added since the last call. Data and acknowledgements change
    /// [`Hosts::next_at_ps`] only by adding one.
    #[inline]
    pub fn take_changed(&mut self) -> bool {
        let pending = &mut self.connections.pending;
        let changed = pending.changed;
        if changed {
            pending.changed = false;
        }
        changed
    }

    /// Returns the times of the next timer and of the next follow-up.
    #[inline]
    pub fn next_at_ps(&self) -> (u64, u64) {
        let pending = &self.connections.pending;
        let check_ps = pending.timer_checks.peek().map_or(NEVER, |Reverse(check)| check.at_ps);
        let timer_ps = self.timers.next_at().map_or(NEVER, Time::ps);
        let follow_up_ps = pending.follow_ups.peek().map_or(NEVER, |Reverse(follow_up)| follow_up.at_ps);
        (check_ps.min(timer_ps), follow_up_ps)
    }

    /// Removes and returns the next event at `now`: timer checks first, then timers, then follow-ups.
    pub fn pop(&mut self, now: Time) -> Option<HostEvent> {
        let pending = &mut self.connections.pending;
        if pending.timer_checks.peek().is_some_and(|Reverse(check)| check.at_ps <= now.ps()) {
            return pending.timer_checks.pop().map(|Reverse(check)| HostEvent::TimerCheck(check));
        }
        if let Some((_, timer)) = self.timers.pop_until(now) {
            return Some(HostEvent::Timer(timer));
        }
        let is_due = pending.follow_ups.peek().is_some_and(|Reverse(follow_up)| follow_up.at_ps <= now.ps());
        if is_due { pending.follow_ups.pop().map(|Reverse(follow_up)| HostEvent::FollowUp(follow_up)) } else { None }
    }

    /// Returns the connection and the port of the sender that may transmit during `event`; `None` for other events.
    pub fn sender_of(&self, event: HostEvent) -> Option<(u32, PortId)> {
        let (connection, end) = match event {
            HostEvent::TimerCheck(check) => (check.connection, check.end),
            // A timer for a write causes a follow-up event that transmits the data.
            HostEvent::Timer(_) => return None,
            HostEvent::FollowUp(follow_up) => (follow_up.connection, follow_up.end()),
        };
        (end == End::Sender).then(|| (connection, self.connections.sending(connection).port))
    }

    /// Processes an event. The sender's NIC has room for `room_bytes`. Appends packets to `out`, to be sent through the
    /// returned port. Returns `None` for an obsolete event.
    pub fn on_event(
        &mut self,
        config: &TcpConfig,
        now: Time,
        event: HostEvent,
        room_bytes: u64,
        out: &mut Vec<Wire>,
    ) -> Option<PortId> {
        self.apply_losses(now.ps());
        match event {
            HostEvent::TimerCheck(check) => self.on_timer_check(config, now, check, room_bytes, out),
            HostEvent::Timer(timer) => self.on_timer(config, now, timer, out),
            HostEvent::FollowUp(follow_up) => self.on_follow_up(config, now, &follow_up, room_bytes, out),
        }
    }

    /// Checks the timer of an endpoint. The check has no effect if the deadline has moved or if an earlier check has
    /// replaced this one.
    fn on_timer_check(
        &mut self,
        config: &TcpConfig,
        now: Time,
        check: TimerCheck,
        room_bytes: u64,
        out: &mut Vec<Wire>,
    ) -> Option<PortId> {
        let index = check.connection;
        match check.end {
            End::Sender => {
                let Sending { port, armed_ps, sender, .. } = self.connections.sending_mut(index);
                if *armed_ps != check.at_ps {
                    return None;
                }
                *armed_ps = NEVER;
                let (has_expired, port) = (sender.deadline_ps <= now.ps(), *port);
                if has_expired {
                    let peer_aborted = self.connections.receiving(index).receiver.aborted_silently();
                    let sender = &mut self.connections.sending_mut(index).sender;
                    sender.room_bytes = room_bytes;
                    sender.on_timeout(config, now.ps(), peer_aborted, out);
                }
                self.connections.arm_sender(index);
                has_expired.then_some(port)
            }
            End::Receiver => {
                let receiving = self.connections.receiving(index);
                if receiving.armed_ps != check.at_ps {
                    return None;
                }
                let has_expired = receiving.receiver.deadline_ps <= now.ps();
                let (port, outcome) =
                    self.connections.check_receiver_timer(config, now.ps(), index, Origin::LOCAL, out);
                if outcome == Outcome::ReceiverFinished {
                    self.release_if_closed(now, index);
                }
                has_expired.then_some(port)
            }
        }
    }

    fn on_timer(&mut self, config: &TcpConfig, now: Time, timer: Timer, out: &mut Vec<Wire>) -> Option<PortId> {
        let index = timer.connection;
        let &Receiving { generation, single_flow, .. } = self.connections.receiving(index);
        if generation != timer.generation {
            return None;
        }
        match timer.kind {
            TimerKind::Write(bytes) => {
                let sender = &mut self.connections.sending_mut(index).sender;
                sender.closing = single_flow;
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

    fn on_follow_up(
        &mut self,
        config: &TcpConfig,
        now: Time,
        follow_up: &FollowUp,
        room_bytes: u64,
        out: &mut Vec<Wire>,
    ) -> Option<PortId> {
        let (port, outcome) = self.connections.on_follow_up(config, follow_up, room_bytes, out)?;
        if outcome == Outcome::ReceiverFinished {
            self.release_if_closed(now, follow_up.connection);
        }
        Some(port)
    }

    /// Assigns `band` to later packets of `stream`.
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

    /// Returns the flows in progress on single-flow connections, with their senders' windows.
    pub fn flow_windows(&self) -> impl Iterator<Item = (FlowId, Window)> {
        let single = self.connections.iter().filter(|(receiving, _)| receiving.single_flow);
        single.filter_map(|(_, sending)| Some((sending.messages.front()?.flow, sending.sender.window())))
    }

    /// Returns the flows in progress on single-flow connections, each with the bytes that its receiver does not have in
    /// order.
    pub fn remaining(&self) -> impl Iterator<Item = (FlowId, Bytes)> {
        let single = self.connections.iter().filter(|(receiving, _)| receiving.single_flow);
        single.filter_map(|(receiving, sending)| {
            let message = sending.messages.front()?;
            Some((message.flow, Bytes(message.end.saturating_sub(receiving.receiver.received()))))
        })
    }

    /// Returns each flow with at least as many unsent bytes as bytes in flight. The values are the port of its sender,
    /// a packet that determines its path, and its number of bytes in flight.
    pub fn long_flows(&self) -> impl Iterator<Item = (PortId, &Wire, u64)> {
        let flights = self.connections.iter().map(|(_, sending)| (sending, sending.sender.window().flight.0));
        flights
            .filter(|(sending, flight)| *flight > 0 && sending.sender.backlog() >= 2 * flight)
            .map(|(sending, flight)| (sending.port, &sending.sender.template, flight))
    }

    /// Returns the sending host, the receiving host and the sender's window of each connection of `stream`.
    pub fn stream_windows(&self, stream: u32) -> impl Iterator<Item = (HostId, HostId, Window)> {
        let connections = self.streams.iter().filter(move |(key, _)| key.2.stream == stream);
        connections.map(|(key, &index)| (HostId(key.0), HostId(key.1), self.connections.sending(index).sender.window()))
    }

    /// Returns the totals, including open connections.
    pub fn totals(&self) -> Counters {
        let mut totals = self.counters;
        for (_, Sending { sender, .. }) in self.connections.iter() {
            totals.retransmits += sender.retransmits;
            totals.timeouts += sender.timeouts;
        }
        totals
    }
}
