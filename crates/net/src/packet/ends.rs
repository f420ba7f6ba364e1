//! The two ends of every connection, each with the lane of its host.

use super::division::{Division, PerLane};
use super::order::{Cause, End, Late, LateKind, Look};
use super::tcp::TcpConfig;
use super::tcp::receiver::Receiver;
use super::tcp::sender::{NEVER, Sender};
use super::wire::{SackPool, Wire, flag};
use crate::route;
use crate::topology::PortId;
use crate::units::Time;
use crate::{FlowId, HostId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

/// The end at the host that data is for. Fields in the order of use (see [`super::port::Port`]): the first line is what
/// data needs that arrives in order.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Receiving {
    pub generation: u16,
    /// The connection carries one flow, and is closed after it.
    pub own: bool,
    pub port: PortId,
    /// Earliest pending look at its deadline; [`NEVER`] if none.
    pub armed_ps: u64,
    /// For the next goal the stream must reach this offset; `u64::MAX` without a goal.
    pub next_goal: u64,
    pub receiver: Receiver,
    /// When an own connection had all of its flow.
    pub received: Time,
}

/// The end at the host that sends data.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Sending {
    pub port: PortId,
    /// Earliest pending look at its deadline; [`NEVER`] if none.
    pub armed_ps: u64,
    /// Its template has the generation.
    pub sender: Sender,
    pub goals: VecDeque<Goal>,
    /// When the connection was established.
    pub began: Time,
}

/// A flow on its way: complete when the stream has reached `end`.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    pub end: u64,
    pub flow: FlowId,
    pub stream: u32,
    pub began: Time,
}

/// What is [late](Late) to come at the hosts of one lane.
#[derive(Clone, Debug, Default)]
struct Lates {
    to_come: BinaryHeap<Reverse<Late>>,
    /// No packet arrives sooner after it was sent.
    latency_ps: u64,
}

/// What a connection's end waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    Look(Look),
    /// Its lane has something [late](Late) at that time.
    Late(u64),
}

/// A packet that has reached its host.
pub(crate) struct Arrived<'a, C> {
    pub now: Time,
    pub packet: &'a Wire,
    /// That of the end that it is for.
    pub place: u32,
    /// See [`Sender::room_bytes`].
    pub room_bytes: u64,
    /// Tells which arrival it is.
    pub cause: C,
}

/// What a packet or something late has changed that both ends have to do with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    None,
    /// The next goal of a stream has been reached.
    Reached,
    /// The sender has had a SYN-ACK.
    Established,
    /// The sender has closed.
    Closed,
    /// The receiver needs its slot only to answer a sender that has not closed.
    Gone,
}

/// Between which hosts a connection is, and where its ends are: what does not change while it is open.
#[derive(Clone, Copy, Debug)]
struct Pair {
    src: HostId,
    dst: HostId,
    /// Of what it sends: see [`route::Hashes`].
    hash: u32,
    /// Places of the ends with the lanes of their hosts.
    receiving: u32,
    sending: u32,
    /// Which user of the slot.
    generation: u16,
}

/// By connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs(Vec<Pair>);

/// Ends at the hosts of one lane, and what else it needs for its packets.
#[derive(Clone, Debug, Default)]
#[repr(align(128))]
pub(crate) struct Ends {
    receiving: Vec<Receiving>,
    sending: Vec<Sending>,
    /// Places that nobody has.
    free_receiving: Vec<u32>,
    free_sending: Vec<u32>,
    lates: Lates,
    /// By host, the latest timestamp of all SYNs for own connections.
    syn_stamps: BTreeMap<u32, u32>,
    /// Of all connections. Each lane has a copy: a lock around one for all would go from core to core with every task.
    pub pairs: Pairs,
    /// SACK blocks of its packets.
    pub pool: SackPool,
}

/// All of them.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    pub division: Arc<Division>,
    /// By lane.
    pub ends: PerLane<Ends>,
    free: Vec<u32>,
    /// Those that are free from an instant on, when an [epoch](super::calendar::epoch_ps) begins: who passes a late
    /// packet on during a day sees one user of its slot.
    freed: VecDeque<(u64, u32)>,
}

/// What a packet has to do with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concern {
    /// The end that it is for.
    Own,
    /// Both ends, or it may.
    Both,
    /// Both if it is the first of them: it closes a sender.
    Close,
}

/// FINs of a day, when and of which connection, that senders have not closed for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closes(Vec<(u32, u64)>);

impl Closes {
    pub fn add(&mut self, at_ps: u64, packet: &Wire) {
        self.0.push((packet.connection, at_ps));
    }

    /// Tells when the first one of each connection comes.
    pub fn find(&mut self, found: impl FnMut(u64)) {
        self.0.sort_unstable();
        self.0.dedup_by_key(|&mut (connection, _)| connection);
        self.0.drain(..).map(|(_, at_ps)| at_ps).for_each(found);
    }
}

/// What bounds what happens in a day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DayBounds {
    /// How long it is.
    pub length_ps: u64,
    /// No connection receives more.
    pub bytes: u64,
}

/// A connection that is opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub src: HostId,
    pub dst: HostId,
    pub hash: u32,
    pub receiving: Receiving,
    pub sending: Sending,
}

/// Keeps one look pending no later than a deadline. A deadline that moves on costs nothing until its old look comes.
#[inline]
fn arm(armed_ps: &mut u64, at_ps: u64, (connection, end): (u32, End), look: impl FnOnce(Look)) {
    if at_ps < *armed_ps {
        *armed_ps = at_ps;
        look(Look { at_ps, connection, end });
    }
}

impl Receiving {
    /// Has it looked at when its deadline comes. While it closes, each deadline has a look of its own, which knows when it
    /// was set, and which is [late](Late) if it comes sooner than a packet crosses a link. `cause` tells what set it, and
    /// after how many late events.
    #[inline]
    fn arm(
        &mut self,
        connection: u32,
        now_ps: u64,
        cause: impl FnOnce() -> (u8, Cause),
        lates: &mut Lates,
        mut plan: impl FnMut(Plan),
    ) {
        let is_closing = self.receiver.awaits_last_ack();
        if is_closing && self.armed_ps != self.receiver.deadline_ps {
            self.armed_ps = NEVER;
        }
        arm(&mut self.armed_ps, self.receiver.deadline_ps, (connection, End::Receiver), |look| {
            if !is_closing || look.at_ps >= now_ps + lates.latency_ps {
                plan(Plan::Look(look));
                return;
            }
            let (repeats, cause) = cause();
            let late = Late::new((look.at_ps, now_ps), cause, LateKind::Fin, (connection, self.generation));
            plan(lates.add(Late { repeats, ..late }));
        });
    }

    /// Whether the next goal of a stream has been reached. Of a connection's only flow, that is kept here.
    #[inline]
    fn reaches(&mut self, now: Time) -> bool {
        // A sender that has sent data is established.
        let reached = self.receiver.received() >= self.next_goal;
        if reached && self.own {
            (self.received, self.next_goal) = (now, u64::MAX);
            return false;
        }
        reached
    }
}

impl Sending {
    /// See [`arm`].
    #[inline]
    pub fn arm(&mut self, connection: u32, look: impl FnOnce(Look)) {
        arm(&mut self.armed_ps, self.sender.deadline_ps, (connection, End::Sender), look);
    }
}

impl Lates {
    fn add(&mut self, late: Late) -> Plan {
        self.to_come.push(Reverse(late));
        Plan::Late(late.at_ps)
    }
}

impl Pairs {
    /// The place of an end of a connection, if it has that user.
    #[inline]
    fn end(&self, connection: u32, generation: u16, end: End) -> Option<u32> {
        let pair = &self.0[connection as usize];
        let place = match end {
            End::Sender => pair.sending,
            End::Receiver => pair.receiving,
        };
        (pair.generation == generation).then_some(place)
    }

    /// The place of the end that `packet` is for, if its connection is still the one that sent it.
    #[inline]
    pub fn place(&self, packet: &Wire) -> Option<u32> {
        let end = if packet.flags & flag::REVERSE == 0 { End::Receiver } else { End::Sender };
        self.end(packet.connection, packet.generation, end)
    }

    /// The host that sent `packet`, and the hash of its direction; of a late one whose connection is gone, perhaps
    /// those of its successor.
    #[inline]
    pub fn source_and_hash(&self, packet: &Wire) -> (u32, u32) {
        let Pair { src, dst, hash, .. } = self.0[packet.connection as usize];
        match packet.flags & flag::REVERSE {
            0 => (src.0, hash),
            _ => (dst.0, route::reverse(hash)),
        }
    }
}

impl Ends {
    /// None, on links that take at least `latency_ps`.
    fn new(latency_ps: u64) -> Self {
        Self { lates: Lates { latency_ps, ..Lates::default() }, ..Self::default() }
    }

    /// What a packet that is not [routine](Wire::is_routine) by itself has to do with, that arrives in the day that begins
    /// for the end at `place`.
    pub fn concern(&self, place: u32, packet: &Wire, bounds: &DayBounds) -> Concern {
        let has = |flag| packet.flags & flag != 0;
        if has(flag::PCN) {
            return Concern::Both;
        }
        if has(flag::REVERSE) {
            let Sending { sender, goals, .. } = &self.sending[place as usize];
            if has(flag::FIN) {
                return if sender.is_closed() { Concern::Own } else { Concern::Close };
            }
            // The receiver knows which SYN-ACK was the first, but not which one was lost; and it has had an empty message.
            let is_own = !packet.is_repeated() && goals.front().is_none_or(|goal| goal.end > 0);
            return if is_own { Concern::Own } else { Concern::Both };
        }
        let Receiving { receiver, next_goal, .. } = &self.receiving[place as usize];
        let reaches_goal = receiver.arrived().saturating_add(bounds.bytes) >= *next_goal;
        if reaches_goal { Concern::Both } else { Concern::Own }
    }

    /// The next [late](Late) event.
    pub fn next_late(&self) -> Option<&Late> {
        self.lates.to_come.peek().map(|Reverse(late)| late)
    }

    /// When it comes.
    #[inline]
    pub fn late_ps(&self) -> u64 {
        self.next_late().map_or(NEVER, |late| late.at_ps)
    }

    /// Takes it out.
    pub fn pop_late(&mut self) -> Option<Late> {
        self.lates.to_come.pop().map(|Reverse(late)| late)
    }

    /// What the application has written is looked at `delay` from `now`, for the sender of that connection and
    /// generation.
    pub fn pump_later(&mut self, now: Time, delay: Time, cause: Cause, user: (u32, u16)) -> Plan {
        self.lates.add(Late::new(((now + delay).ps(), now.ps()), cause, LateKind::Pump, user))
    }

    /// The port of the sender that a late event is for, if it is for one.
    pub fn sends_late(&self, late: &Late) -> Option<PortId> {
        let &Late { connection, generation, .. } = late;
        match late.end() {
            End::Sender => Some(self.sending[self.pairs.end(connection, generation, End::Sender)? as usize].port),
            End::Receiver => None,
        }
    }

    /// The receiver at `place` is looked at because of its deadline.
    pub fn look_at_receiver(
        &mut self,
        config: &TcpConfig,
        now_ps: u64,
        (connection, place): (u32, u32),
        cause: (u8, Cause),
        out: &mut Vec<Wire>,
        plan: impl FnMut(Plan),
    ) -> (PortId, News) {
        let receiving = &mut self.receiving[place as usize];
        receiving.armed_ps = NEVER;
        if receiving.receiver.deadline_ps <= now_ps {
            receiving.receiver.on_timeout(config, now_ps, &mut self.pool, out);
        }
        receiving.arm(connection, now_ps, || cause, &mut self.lates, plan);
        (receiving.port, if receiving.receiver.is_gone() { News::Gone } else { News::None })
    }

    /// Does what is late; a sender's card takes `room_bytes`. Packets go to `out` and through the returned port;
    /// `None` if there was nothing to do.
    pub fn on_late(
        &mut self,
        config: &TcpConfig,
        late: &Late,
        room_bytes: u64,
        out: &mut Vec<Wire>,
        mut plan: impl FnMut(Plan),
    ) -> Option<(PortId, News)> {
        let &Late { at_ps, connection, generation, repeats, cause, kind, .. } = late;
        let place = self.pairs.end(connection, generation, late.end())?;
        match kind {
            LateKind::Fin => {
                if self.receiving[place as usize].armed_ps != at_ps {
                    return None;
                }
                let cause = (repeats + 1, cause);
                Some(self.look_at_receiver(config, at_ps, (connection, place), cause, out, plan))
            }
            LateKind::Accept => {
                let receiving = &mut self.receiving[place as usize];
                receiving.receiver.accept(config, at_ps, out);
                receiving.arm(connection, at_ps, || (0, cause), &mut self.lates, plan);
                Some((receiving.port, News::None))
            }
            LateKind::Pump => {
                let sending = &mut self.sending[place as usize];
                sending.sender.room_bytes = room_bytes;
                sending.sender.pump(config, at_ps, out);
                sending.arm(connection, |look| plan(Plan::Look(look)));
                Some((sending.port, News::None))
            }
        }
    }

    /// A packet is here, for TCP. Answers go to `out` and through the returned port.
    #[inline]
    pub fn deliver(
        &mut self,
        config: &TcpConfig,
        arrived: Arrived<'_, impl FnOnce() -> Cause>,
        out: &mut Vec<Wire>,
        mut plan: impl FnMut(Plan),
    ) -> Option<(PortId, News)> {
        if !arrived.packet.is_plain() {
            return self.deliver_rare(config, arrived, out, plan);
        }
        let Arrived { now, packet, place, room_bytes, cause } = arrived;
        if packet.flags & flag::REVERSE == 0 {
            let receiving = &mut self.receiving[place as usize];
            if receiving.generation != packet.generation {
                return None;
            }
            receiving.receiver.on_packet(config, now.ps(), packet, &mut self.pool, out);
            let reached = receiving.reaches(now);
            receiving.arm(packet.connection, now.ps(), || (0, cause()), &mut self.lates, plan);
            return Some((receiving.port, if reached { News::Reached } else { News::None }));
        }
        let mut packet = *packet;
        let (blocks, block_count) = self.pool.detach(&mut packet);
        let sending = &mut self.sending[place as usize];
        if sending.sender.template.generation != packet.generation {
            return None;
        }
        sending.sender.room_bytes = room_bytes;
        let is_closed = sending.sender.on_ack(config, now.ps(), &packet, &blocks[..block_count], out);
        debug_assert!(!is_closed, "a FIN closes");
        sending.arm(packet.connection, |look| plan(Plan::Look(look)));
        Some((sending.port, News::None))
    }

    /// The same of a packet that opens or closes a connection. No goal of a stream is reached by it.
    #[inline(never)]
    fn deliver_rare(
        &mut self,
        config: &TcpConfig,
        arrived: Arrived<'_, impl FnOnce() -> Cause>,
        out: &mut Vec<Wire>,
        mut plan: impl FnMut(Plan),
    ) -> Option<(PortId, News)> {
        let Arrived { now, packet, place, room_bytes, cause } = arrived;
        let cause = cause();
        let mut packet = *packet;
        let (blocks, block_count) = self.pool.detach(&mut packet);
        let (connection, generation) = (packet.connection, packet.generation);
        self.pairs.place(&packet)?;
        let has = |flag| packet.flags & flag != 0;
        if !has(flag::REVERSE) {
            let receiving = &mut self.receiving[place as usize];
            let mut news = News::None;
            if !has(flag::SYN) {
                let was_gone = receiving.receiver.is_gone();
                receiving.receiver.on_packet(config, now.ps(), &packet, &mut self.pool, out);
                let reached = receiving.reaches(now);
                debug_assert!(!reached, "an empty message was complete when the sender was established");
                if receiving.receiver.is_gone() && !was_gone {
                    // Its FIN is not looked at again, also while it has its slot.
                    (news, receiving.armed_ps) = (News::Gone, NEVER);
                }
            } else if receiving.receiver.on_syn(config, now.ps(), &packet, out) {
                if receiving.own {
                    // ns-3: a listener keeps the latest timestamp of all SYNs, and a fork begins with that.
                    let latest = self.syn_stamps.entry(packet.dst).or_default();
                    *latest = (*latest).max(packet.stamp());
                    receiving.receiver.echo = *latest;
                }
                // ns-3 forks a socket, which comes after all else of this instant.
                let user = (connection, generation);
                plan(self.lates.add(Late::new((now.ps(), now.ps()), cause, LateKind::Accept, user)));
            }
            receiving.arm(connection, now.ps(), || (0, cause), &mut self.lates, plan);
            return Some((receiving.port, news));
        }
        let Sending { sender, began, .. } = &mut self.sending[place as usize];
        sender.room_bytes = room_bytes;
        let mut news = News::None;
        if !has(flag::SYN) {
            if sender.on_ack(config, now.ps(), &packet, &blocks[..block_count], out) {
                news = News::Closed;
            }
        } else if sender.on_syn_ack(config, now.ps(), &packet, out) {
            (news, *began) = (News::Established, now);
            if sender.backlog() > 0 {
                plan(self.pump_later(now, config.write_delay, cause, (connection, generation)));
            } else {
                sender.pump(config, now.ps(), out);
            }
        }
        let sending = &mut self.sending[place as usize];
        sending.arm(connection, |look| plan(Plan::Look(look)));
        Some((sending.port, news))
    }
}

/// Puts an end in its place: that of its connection, if there is one lane, or else one that is free.
fn put<T>(ends: &mut Vec<T>, free: &mut Vec<u32>, fixed: Option<u32>, end: T) -> u32 {
    let place = fixed.or_else(|| free.pop()).unwrap_or(ends.len() as u32);
    match ends.get_mut(place as usize) {
        Some(old) => *old = end,
        None => ends.push(end),
    }
    place
}

impl Connections {
    /// None, in those lanes, on links that take at least `latency_ps`.
    pub fn new(latency_ps: u64, division: Arc<Division>) -> Self {
        let ends = PerLane::new(division.count(), || Ends::new(latency_ps));
        Self { division, ends, free: Vec::new(), freed: VecDeque::new() }
    }

    /// Where the ends of all are.
    #[inline]
    pub fn pairs(&self) -> &Pairs {
        &self.ends.first.pairs
    }

    fn pair(&self, index: u32) -> Option<&Pair> {
        self.pairs().0.get(index as usize)
    }

    /// How many there have been at once.
    pub fn count(&self) -> u32 {
        self.pairs().0.len() as u32
    }

    /// How many slots have a user.
    pub fn used_count(&self) -> usize {
        self.count() as usize - self.free.len() - self.freed.len()
    }

    /// A slot that is free now, and the generation of its next user.
    pub fn slot(&mut self, now_ps: u64) -> (u32, u16) {
        while let Some(&(from_ps, index)) = self.freed.front()
            && from_ps <= now_ps
        {
            self.freed.pop_front();
            self.free.push(index);
        }
        let index = self.free.pop().unwrap_or(self.count());
        (index, self.pair(index).map_or(0, |old| old.generation))
    }

    /// Opens a connection in a [`slot`](Self::slot).
    pub fn open(&mut self, index: u32, opened: Opened) {
        let Opened { src, dst, hash, receiving, sending } = opened;
        let generation = receiving.generation;
        let fixed = (self.ends.len() == 1).then_some(index);
        if fixed.is_none()
            && let Some(&old) = self.pair(index)
        {
            // Only now: until then its places are looked at as its own.
            self.ends[self.division.host(old.dst)].free_receiving.push(old.receiving);
            self.ends[self.division.host(old.src)].free_sending.push(old.sending);
        }
        let Ends { receiving: ends, free_receiving, .. } = &mut self.ends[self.division.host(dst)];
        let receiving = put(ends, free_receiving, fixed, receiving);
        let Ends { sending: ends, free_sending, .. } = &mut self.ends[self.division.host(src)];
        let sending = put(ends, free_sending, fixed, sending);
        let pair = Pair { src, dst, hash, receiving, sending, generation };
        for Ends { pairs: Pairs(pairs), .. } in self.ends.iter_mut() {
            match pairs.get_mut(index as usize) {
                Some(old) => *old = pair,
                None => pairs.push(pair),
            }
        }
    }

    /// Nobody needs the slot any longer; it is free from `from_ps` on.
    pub fn release(&mut self, index: u32, from_ps: u64) {
        let generation = self.receiving(index).generation.wrapping_add(1);
        self.ends.iter_mut().for_each(|ends| ends.pairs.0[index as usize].generation = generation);
        self.receiving_mut(index).generation = generation;
        self.receiving_mut(index).armed_ps = NEVER;
        self.sending_mut(index).sender.template.generation = generation;
        self.sending_mut(index).armed_ps = NEVER;
        self.freed.push_back((from_ps, index));
    }

    /// The lane that has an end of a connection, and its place there.
    #[inline]
    pub fn spot(&self, index: u32, end: End) -> (usize, u32) {
        if self.ends.len() == 1 {
            return (0, index);
        }
        let pair = &self.pairs().0[index as usize];
        match end {
            End::Sender => (self.division.host(pair.src), pair.sending),
            End::Receiver => (self.division.host(pair.dst), pair.receiving),
        }
    }

    /// A packet has reached its host: its lane, and the place of the end that it is for. The packet is gone if that is
    /// `None`.
    #[inline]
    pub fn find(&mut self, packet: &Wire) -> Option<(usize, u32)> {
        if self.ends.len() == 1 {
            return Some((0, packet.connection));
        }
        let lane = self.division.host(HostId(packet.dst));
        let ends = &mut self.ends[lane];
        let place = ends.pairs.place(packet);
        if place.is_none() {
            ends.pool.forget(*packet);
        }
        Some((lane, place?))
    }

    /// A packet that is in lane `from` is about to be in that of `port`: the day is one thread's, or since it began the
    /// packet's slot has another user, and with it another way.
    pub fn hand_over(&mut self, mut packet: Wire, from: usize, port: PortId) -> Wire {
        let (to, _) = self.division.port(port);
        if from == to {
            return packet;
        }
        let (blocks, count) = self.ends[from].pool.detach(&mut packet);
        self.ends[to].pool.attach(packet, &blocks[..count])
    }

    /// Whether the connection of a packet is still the one that sent it.
    pub fn is_known(&self, packet: &Wire) -> bool {
        self.pairs().place(packet).is_some()
    }

    /// The host that sends the data of a connection.
    pub fn src(&self, index: u32) -> HostId {
        self.pairs().0[index as usize].src
    }

    /// The end that receives data.
    pub fn receiving(&self, index: u32) -> &Receiving {
        let (lane, place) = self.spot(index, End::Receiver);
        &self.ends[lane].receiving[place as usize]
    }

    /// See [`receiving`](Self::receiving).
    #[inline]
    pub fn receiving_mut(&mut self, index: u32) -> &mut Receiving {
        let (lane, place) = self.spot(index, End::Receiver);
        &mut self.ends[lane].receiving[place as usize]
    }

    /// Of an end, its earliest pending look and its deadline.
    pub fn armed(&mut self, index: u32, end: End) -> (&mut u64, u64) {
        match end {
            End::Sender => {
                let Sending { armed_ps, sender, .. } = self.sending_mut(index);
                (armed_ps, sender.deadline_ps)
            }
            End::Receiver => {
                let Receiving { armed_ps, receiver, .. } = self.receiving_mut(index);
                (armed_ps, receiver.deadline_ps)
            }
        }
    }

    /// The end that sends data.
    pub fn sending(&self, index: u32) -> &Sending {
        let (lane, place) = self.spot(index, End::Sender);
        &self.ends[lane].sending[place as usize]
    }

    /// See [`sending`](Self::sending).
    #[inline]
    pub fn sending_mut(&mut self, index: u32) -> &mut Sending {
        let (lane, place) = self.spot(index, End::Sender);
        &mut self.ends[lane].sending[place as usize]
    }

    /// Both ends of all connections, by connection.
    pub fn iter(&self) -> impl Iterator<Item = (&Receiving, &Sending)> {
        (0..self.count()).map(|index| (self.receiving(index), self.sending(index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn a_sender_is_closed_by_its_first_fin() {
        let fin = |connection| Wire { connection, flags: flag::FIN | flag::REVERSE, ..Wire::NOTHING };
        let mut closes = Closes::default();
        // In no order, as they lie.
        [(9, 1), (4, 2), (3, 1), (8, 2)].iter().for_each(|&(at_ps, connection)| closes.add(at_ps, &fin(connection)));
        let mut found = Vec::new();
        closes.find(|at_ps| found.push(at_ps));
        assert_eq!(found, [3, 4]);
        closes.find(|at_ps| panic!("forgotten: {at_ps}"));
    }

    #[test]
    fn data_in_order_needs_one_cache_line() {
        assert_eq!((offset_of!(Receiving, receiver), offset_of!(Sending, sender)), (24, 16));
    }
}
