//! The two ends of every connection, and what they wait for.

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

/// What connections wait for, in order: looks at their deadlines, and what is [late](Late).
#[derive(Clone, Debug, Default)]
pub(super) struct Plans {
    pub looks: BinaryHeap<Reverse<Look>>,
    pub lates: BinaryHeap<Reverse<Late>>,
    /// No packet arrives sooner after it was sent.
    pub latency_ps: u64,
    /// Something has been added since this was last cleared.
    pub has_news: bool,
}

/// A packet that has reached its host.
pub(crate) struct Arrived<'a, C> {
    pub now: Time,
    pub packet: &'a Wire,
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

/// Between which hosts a connection is.
#[derive(Clone, Copy, Debug)]
struct Pair {
    src: HostId,
    dst: HostId,
    /// Of what it sends: see [`route::Hashes`].
    hash: u32,
}

/// All connections, by slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    pairs: Vec<Pair>,
    receiving: Vec<Receiving>,
    sending: Vec<Sending>,
    pub plans: Plans,
    /// By host, the latest timestamp of all SYNs for own connections.
    syn_stamps: BTreeMap<u32, u32>,
    /// SACK blocks of packets under way.
    pub pool: SackPool,
    free: Vec<u32>,
    /// Those that are free from an instant on, when an [epoch](super::calendar::epoch_ps) begins: who passes a late
    /// packet on before that sees one user of its slot.
    freed: VecDeque<(u64, u32)>,
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
fn arm(armed_ps: &mut u64, at_ps: u64, (connection, end): (u32, End), plans: &mut Plans) {
    if at_ps < *armed_ps {
        *armed_ps = at_ps;
        plans.has_news = true;
        plans.looks.push(Reverse(Look { at_ps, connection, end }));
    }
}

impl Receiving {
    /// Has it looked at when its deadline comes. While it closes, each deadline has a look of its own, which knows when it
    /// was set, and which is [late](Late) if it comes sooner than a packet crosses a link. `cause` tells what set it, and
    /// after how many late events.
    #[inline]
    fn arm(&mut self, connection: u32, now_ps: u64, cause: impl FnOnce() -> (u8, Cause), plans: &mut Plans) {
        let deadline_ps = self.receiver.deadline_ps;
        let is_closing = self.receiver.awaits_last_ack();
        if is_closing && self.armed_ps != deadline_ps {
            self.armed_ps = NEVER;
        }
        if !is_closing || deadline_ps >= now_ps + plans.latency_ps {
            arm(&mut self.armed_ps, deadline_ps, (connection, End::Receiver), plans);
        } else if deadline_ps < self.armed_ps {
            self.armed_ps = deadline_ps;
            let (repeats, cause) = cause();
            let late = Late::new((deadline_ps, now_ps), cause, LateKind::Fin, (connection, self.generation));
            plans.add_late(Late { repeats, ..late });
        }
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
    fn arm(&mut self, connection: u32, plans: &mut Plans) {
        arm(&mut self.armed_ps, self.sender.deadline_ps, (connection, End::Sender), plans);
    }
}

impl Plans {
    fn add_late(&mut self, late: Late) {
        self.has_news = true;
        self.lates.push(Reverse(late));
    }
}

impl Connections {
    /// None, on links that take at least `latency_ps`.
    pub fn new(latency_ps: u64) -> Self {
        Self { plans: Plans { latency_ps, ..Plans::default() }, ..Self::default() }
    }

    /// How many there have been at once.
    fn count(&self) -> u32 {
        self.pairs.len() as u32
    }

    /// How many slots have a user.
    pub fn used_count(&self) -> usize {
        self.pairs.len() - self.free.len() - self.freed.len()
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
        (index, self.receiving.get(index as usize).map_or(0, |old| old.generation))
    }

    /// Opens a connection in a [`slot`](Self::slot).
    pub fn open(&mut self, index: u32, opened: Opened) {
        let Opened { src, dst, hash, receiving, sending } = opened;
        let (pair, index) = (Pair { src, dst, hash }, index as usize);
        if index == self.pairs.len() {
            self.pairs.push(pair);
            self.receiving.push(receiving);
            self.sending.push(sending);
        } else {
            (self.pairs[index], self.receiving[index], self.sending[index]) = (pair, receiving, sending);
        }
    }

    /// Nobody needs the slot any longer; it is free from `from_ps` on.
    pub fn release(&mut self, index: u32, from_ps: u64) {
        let (receiving, sending) = (&mut self.receiving[index as usize], &mut self.sending[index as usize]);
        receiving.generation = receiving.generation.wrapping_add(1);
        receiving.armed_ps = NEVER;
        sending.sender.template.generation = receiving.generation;
        sending.armed_ps = NEVER;
        self.freed.push_back((from_ps, index));
    }

    /// Whether a slot has that user.
    fn has_user(&self, connection: u32, generation: u16) -> bool {
        self.receiving[connection as usize].generation == generation
    }

    /// Whether the connection of a packet is still the one that sent it.
    pub fn is_known(&self, packet: &Wire) -> bool {
        self.has_user(packet.connection, packet.generation)
    }

    /// The host that sends the data of a connection.
    pub fn src(&self, index: u32) -> HostId {
        self.pairs[index as usize].src
    }

    /// The host that sent `packet`, and the hash of its direction; of a late one whose connection is gone, perhaps
    /// those of its successor.
    #[inline]
    pub fn source_and_hash(&self, packet: &Wire) -> (u32, u32) {
        let Pair { src, dst, hash } = self.pairs[packet.connection as usize];
        match packet.flags & flag::REVERSE {
            0 => (src.0, hash),
            _ => (dst.0, route::reverse(hash)),
        }
    }

    /// The end that receives data.
    pub fn receiving(&self, index: u32) -> &Receiving {
        &self.receiving[index as usize]
    }

    /// See [`receiving`](Self::receiving).
    #[inline]
    pub fn receiving_mut(&mut self, index: u32) -> &mut Receiving {
        &mut self.receiving[index as usize]
    }

    /// The end that sends data.
    pub fn sending(&self, index: u32) -> &Sending {
        &self.sending[index as usize]
    }

    /// See [`sending`](Self::sending).
    #[inline]
    pub fn sending_mut(&mut self, index: u32) -> &mut Sending {
        &mut self.sending[index as usize]
    }

    /// Both ends of all connections, by connection.
    pub fn iter(&self) -> impl Iterator<Item = (&Receiving, &Sending)> {
        self.receiving.iter().zip(&self.sending)
    }

    /// The sender's deadline may have changed.
    #[inline]
    pub fn arm_sender(&mut self, index: u32) {
        self.sending[index as usize].arm(index, &mut self.plans);
    }

    /// What the application has written is looked at `delay` from `now`.
    pub fn pump_later(&mut self, now: Time, delay: Time, cause: Cause, connection: u32) {
        let user = (connection, self.receiving[connection as usize].generation);
        self.plans.add_late(Late::new(((now + delay).ps(), now.ps()), cause, LateKind::Pump, user));
    }

    /// A receiver is looked at because of its deadline.
    pub fn look_at_receiver(
        &mut self,
        config: &TcpConfig,
        now_ps: u64,
        connection: u32,
        cause: (u8, Cause),
        out: &mut Vec<Wire>,
    ) -> (PortId, News) {
        let receiving = &mut self.receiving[connection as usize];
        receiving.armed_ps = NEVER;
        if receiving.receiver.deadline_ps <= now_ps {
            receiving.receiver.on_timeout(config, now_ps, &mut self.pool, out);
        }
        receiving.arm(connection, now_ps, || cause, &mut self.plans);
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
    ) -> Option<(PortId, News)> {
        let &Late { at_ps, connection, generation, repeats, cause, kind, .. } = late;
        if !self.has_user(connection, generation) {
            return None;
        }
        match kind {
            LateKind::Fin => {
                if self.receiving[connection as usize].armed_ps != at_ps {
                    return None;
                }
                Some(self.look_at_receiver(config, at_ps, connection, (repeats + 1, cause), out))
            }
            LateKind::Accept => {
                let receiving = &mut self.receiving[connection as usize];
                receiving.receiver.accept(config, at_ps, out);
                receiving.arm(connection, at_ps, || (0, cause), &mut self.plans);
                Some((receiving.port, News::None))
            }
            LateKind::Pump => {
                let sending = &mut self.sending[connection as usize];
                sending.sender.room_bytes = room_bytes;
                sending.sender.pump(config, at_ps, out);
                sending.arm(connection, &mut self.plans);
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
    ) -> Option<(PortId, News)> {
        if !arrived.packet.is_plain() {
            return self.deliver_rare(config, arrived, out);
        }
        let Arrived { now, packet, room_bytes, cause } = arrived;
        let connection = packet.connection;
        if packet.flags & flag::REVERSE == 0 {
            let receiving = &mut self.receiving[connection as usize];
            if receiving.generation != packet.generation {
                return None;
            }
            receiving.receiver.on_packet(config, now.ps(), packet, &mut self.pool, out);
            let reached = receiving.reaches(now);
            receiving.arm(connection, now.ps(), || (0, cause()), &mut self.plans);
            return Some((receiving.port, if reached { News::Reached } else { News::None }));
        }
        let mut packet = *packet;
        let (blocks, block_count) = self.pool.detach(&mut packet);
        let sending = &mut self.sending[connection as usize];
        if sending.sender.template.generation != packet.generation {
            return None;
        }
        sending.sender.room_bytes = room_bytes;
        let is_closed = sending.sender.on_ack(config, now.ps(), &packet, &blocks[..block_count], out);
        debug_assert!(!is_closed, "a FIN closes");
        sending.arm(connection, &mut self.plans);
        Some((sending.port, News::None))
    }

    /// The same of a packet that opens or closes a connection. No goal of a stream is reached by it.
    #[inline(never)]
    fn deliver_rare(
        &mut self,
        config: &TcpConfig,
        arrived: Arrived<'_, impl FnOnce() -> Cause>,
        out: &mut Vec<Wire>,
    ) -> Option<(PortId, News)> {
        let Arrived { now, packet, room_bytes, cause } = arrived;
        let cause = cause();
        let mut packet = *packet;
        let (blocks, block_count) = self.pool.detach(&mut packet);
        if !self.is_known(&packet) {
            return None;
        }
        let connection = packet.connection;
        let has = |flag| packet.flags & flag != 0;
        if !has(flag::REVERSE) {
            let receiving = &mut self.receiving[connection as usize];
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
                let user = (connection, packet.generation);
                self.plans.add_late(Late::new((now.ps(), now.ps()), cause, LateKind::Accept, user));
            }
            receiving.arm(connection, now.ps(), || (0, cause), &mut self.plans);
            return Some((receiving.port, news));
        }
        let Sending { sender, began, .. } = &mut self.sending[connection as usize];
        sender.room_bytes = room_bytes;
        let mut news = News::None;
        if !has(flag::SYN) {
            if sender.on_ack(config, now.ps(), &packet, &blocks[..block_count], out) {
                news = News::Closed;
            }
        } else if sender.on_syn_ack(config, now.ps(), &packet, out) {
            (news, *began) = (News::Established, now);
            if sender.backlog() > 0 {
                self.pump_later(now, config.write_delay, cause, connection);
            } else {
                sender.pump(config, now.ps(), out);
            }
        }
        self.arm_sender(connection);
        Some((self.sending[connection as usize].port, news))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn data_in_order_needs_one_cache_line() {
        assert_eq!((offset_of!(Receiving, receiver), offset_of!(Sending, sender)), (24, 16));
    }
}
