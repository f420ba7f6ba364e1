//! The sending and receiving endpoints of all connections, with their pending timer checks and follow-up events.

use super::event_key::{End, FollowUp, FollowUpKind, Origin, TimerCheck};
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

/// A receiving endpoint. Fields are in the order of their use, so that in-order data needs only the first cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Receiving {
    pub generation: u16,
    /// Whether the connection carries one flow and then closes.
    pub single_flow: bool,
    pub port: PortId,
    /// Time of the earliest timer check; [`NEVER`] without one.
    pub armed_ps: u64,
    /// Stream offset at which the next message is complete; `u64::MAX` without a message.
    pub message_end: u64,
    pub receiver: Receiver,
    /// Time at which the flow of a single-flow connection was received completely.
    pub received: Time,
}

/// A sending endpoint.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Sending {
    pub port: PortId,
    /// Time of the earliest timer check; [`NEVER`] without one.
    pub armed_ps: u64,
    /// TCP state of the sender, with the generation of the slot in its template.
    pub sender: Sender,
    pub messages: VecDeque<Message>,
    /// Time at which the connection was established.
    pub began: Time,
}

/// A flow in progress. It is complete when the receiver has the stream up to `end`.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub end: u64,
    pub flow: FlowId,
    pub stream: u32,
    pub began: Time,
}

/// Pending timer checks and follow-ups of all connections.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    pub timer_checks: BinaryHeap<Reverse<TimerCheck>>,
    pub follow_ups: BinaryHeap<Reverse<FollowUp>>,
    /// Number of follow-ups so far.
    follow_up_count: u64,
    /// Minimum time from sending a packet to its arrival.
    pub latency_ps: u64,
    /// Whether anything was added since the flag was cleared.
    pub changed: bool,
}

/// Effect of an endpoint's event on the connection as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    None,
    /// The receiver has all bytes of the next message of the stream.
    MessageComplete,
    /// The sender has received the first SYN-ACK.
    Established,
    /// The sender has closed.
    SenderClosed,
    /// The receiver has finished. Its slot stays in use until the sender has closed.
    ReceiverFinished,
}

/// The hosts of a connection.
#[derive(Clone, Copy, Debug)]
struct Peers {
    src: HostId,
    dst: HostId,
    /// Hash of the direction from `src` to `dst`: see [`route::Hashes`].
    hash: u32,
}

/// All connections. The slot of a closed connection is reused with another generation.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections {
    peers: Vec<Peers>,
    receiving: Vec<Receiving>,
    sending: Vec<Sending>,
    pub pending: Pending,
    /// Latest timestamp of all SYNs that open single-flow connections, by receiving host.
    syn_stamps: BTreeMap<u32, u32>,
    /// SACK blocks of packets in flight.
    pub pool: SackPool,
    free: Vec<u32>,
    /// Closed slots, each with the time from which it may be reused, which is the start of a
    /// [window](super::calendar::window_ps). Remaining packets of the closed connection that are forwarded before then
    /// still find its hosts.
    freed: VecDeque<(u64, u32)>,
}

/// Parameters of a new connection.
#[derive(Debug)]
pub(super) struct Opened {
    pub src: HostId,
    pub dst: HostId,
    pub hash: u32,
    pub receiving: Receiving,
    pub sending: Sending,
}

/// Schedules a timer check at `at_ps` unless an earlier one is pending. A deadline that is postponed hence causes no
/// new event until the earlier check.
#[inline]
fn arm(armed_ps: &mut u64, at_ps: u64, (connection, end): (u32, End), pending: &mut Pending) {
    if at_ps < *armed_ps {
        *armed_ps = at_ps;
        pending.changed = true;
        pending.timer_checks.push(Reverse(TimerCheck { at_ps, connection, end }));
    }
}

impl Receiving {
    /// Schedules a timer check at the receiver's deadline. While the receiver waits for the last acknowledgement, every
    /// deadline has its own event: a follow-up if it is less than a link latency ahead, otherwise a timer check.
    #[inline]
    fn arm(&mut self, connection: u32, now_ps: u64, origin: Origin, pending: &mut Pending) {
        let deadline_ps = self.receiver.deadline_ps;
        let is_closing = self.receiver.awaits_last_ack();
        if is_closing && self.armed_ps != deadline_ps {
            self.armed_ps = NEVER;
        }
        if !is_closing || deadline_ps >= now_ps + pending.latency_ps {
            arm(&mut self.armed_ps, deadline_ps, (connection, End::Receiver), pending);
        } else if deadline_ps < self.armed_ps {
            self.armed_ps = deadline_ps;
            let follow_up =
                FollowUp::new((deadline_ps, now_ps), origin, FollowUpKind::Fin, (connection, self.generation));
            pending.add_follow_up(follow_up);
        }
    }

    /// Returns whether the next message of a stream is complete. On a single-flow connection, records the completion
    /// time instead and returns `false`.
    #[inline]
    fn completes_message(&mut self, now: Time) -> bool {
        // Data has arrived, so the connection is established and `message_end` is set.
        let completed = self.receiver.received() >= self.message_end;
        if completed && self.single_flow {
            (self.received, self.message_end) = (now, u64::MAX);
            return false;
        }
        completed
    }
}

impl Sending {
    #[inline]
    fn arm(&mut self, connection: u32, pending: &mut Pending) {
        arm(&mut self.armed_ps, self.sender.deadline_ps, (connection, End::Sender), pending);
    }
}

impl Pending {
    fn add_follow_up(&mut self, follow_up: FollowUp) {
        self.changed = true;
        self.follow_up_count += 1;
        let origin = follow_up.origin.or_numbered(self.follow_up_count);
        self.follow_ups.push(Reverse(FollowUp { origin, ..follow_up }));
    }
}

impl Connections {
    /// Creates an empty set of connections, on links with a latency of at least `latency_ps`.
    pub fn new(latency_ps: u64) -> Self {
        Self { pending: Pending { latency_ps, ..Pending::default() }, ..Self::default() }
    }

    /// Returns the number of slots.
    fn count(&self) -> u32 {
        self.peers.len() as u32
    }

    /// Returns the number of slots in use.
    pub fn used_count(&self) -> usize {
        self.peers.len() - self.free.len() - self.freed.len()
    }

    /// Allocates a slot. Returns its index and the generation of the next connection in it.
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
        let (hosts, index) = (Peers { src, dst, hash }, index as usize);
        if index == self.peers.len() {
            self.peers.push(hosts);
            self.receiving.push(receiving);
            self.sending.push(sending);
        } else {
            (self.peers[index], self.receiving[index], self.sending[index]) = (hosts, receiving, sending);
        }
    }

    /// Closes the connection in slot `index`. The slot becomes free at `from_ps`.
    pub fn release(&mut self, index: u32, from_ps: u64) {
        let (receiving, sending) = (&mut self.receiving[index as usize], &mut self.sending[index as usize]);
        receiving.generation = receiving.generation.wrapping_add(1);
        receiving.armed_ps = NEVER;
        sending.sender.template.generation = receiving.generation;
        sending.armed_ps = NEVER;
        self.freed.push_back((from_ps, index));
    }

    fn is_open(&self, connection: u32, generation: u16) -> bool {
        self.receiving[connection as usize].generation == generation
    }

    pub fn accepts(&self, packet: &Wire) -> bool {
        self.is_open(packet.connection, packet.generation)
    }

    /// Returns the sending host of a connection.
    pub fn src(&self, index: u32) -> HostId {
        self.peers[index as usize].src
    }

    /// Returns the source host of `packet` and the routing hash of its direction. For a late packet of a closed
    /// connection, both may belong to the next connection in the slot.
    #[inline]
    pub fn source_and_hash(&self, packet: &Wire) -> (u32, u32) {
        let Peers { src, dst, hash } = self.peers[packet.connection as usize];
        match packet.flags & flag::REVERSE {
            0 => (src.0, hash),
            _ => (dst.0, route::reverse(hash)),
        }
    }

    /// Returns the receiving endpoint of a connection.
    pub fn receiving(&self, index: u32) -> &Receiving {
        &self.receiving[index as usize]
    }

    /// See [`receiving`](Self::receiving).
    #[inline]
    pub fn receiving_mut(&mut self, index: u32) -> &mut Receiving {
        &mut self.receiving[index as usize]
    }

    /// Returns the sending endpoint of a connection.
    pub fn sending(&self, index: u32) -> &Sending {
        &self.sending[index as usize]
    }

    /// See [`sending`](Self::sending).
    #[inline]
    pub fn sending_mut(&mut self, index: u32) -> &mut Sending {
        &mut self.sending[index as usize]
    }

    /// Returns both endpoints of every slot.
    pub fn iter(&self) -> impl Iterator<Item = (&Receiving, &Sending)> {
        self.receiving.iter().zip(&self.sending)
    }

    /// Schedules the sender's timer check, after an event that may have moved its deadline.
    #[inline]
    pub fn arm_sender(&mut self, index: u32) {
        self.sending[index as usize].arm(index, &mut self.pending);
    }

    /// Schedules the sender to transmit written data at `now + delay`.
    pub fn pump_later(&mut self, now: Time, delay: Time, origin: Origin, connection: u32) {
        let user = (connection, self.receiving[connection as usize].generation);
        self.pending.add_follow_up(FollowUp::new(((now + delay).ps(), now.ps()), origin, FollowUpKind::Pump, user));
    }

    /// Processes the receiver's timeout if it is due, and schedules the next timer check. Appends packets to `out`, to
    /// be sent through the returned port.
    pub fn check_receiver_timer(
        &mut self,
        config: &TcpConfig,
        now_ps: u64,
        connection: u32,
        origin: Origin,
        out: &mut Vec<Wire>,
    ) -> (PortId, Outcome) {
        let receiving = &mut self.receiving[connection as usize];
        receiving.armed_ps = NEVER;
        if receiving.receiver.deadline_ps <= now_ps {
            receiving.receiver.on_timeout(config, now_ps, &mut self.pool, out);
        }
        receiving.arm(connection, now_ps, origin, &mut self.pending);
        (receiving.port, if receiving.receiver.is_finished() { Outcome::ReceiverFinished } else { Outcome::None })
    }

    /// Processes a follow-up. The sender's NIC has room for `room_bytes`. Appends packets to `out`, to be sent through
    /// the returned port. Returns `None` for an obsolete follow-up.
    pub fn on_follow_up(
        &mut self,
        config: &TcpConfig,
        follow_up: &FollowUp,
        room_bytes: u64,
        out: &mut Vec<Wire>,
    ) -> Option<(PortId, Outcome)> {
        let &FollowUp { at_ps, connection, generation, origin, kind, .. } = follow_up;
        if !self.is_open(connection, generation) {
            return None;
        }
        match kind {
            FollowUpKind::Fin => {
                if self.receiving[connection as usize].armed_ps != at_ps {
                    return None;
                }
                Some(self.check_receiver_timer(config, at_ps, connection, origin.after(), out))
            }
            FollowUpKind::Accept => {
                let receiving = &mut self.receiving[connection as usize];
                receiving.receiver.accept(config, at_ps, out);
                receiving.arm(connection, at_ps, origin.after(), &mut self.pending);
                Some((receiving.port, Outcome::None))
            }
            FollowUpKind::Pump => {
                let sending = &mut self.sending[connection as usize];
                sending.sender.room_bytes = room_bytes;
                sending.sender.pump(config, at_ps, out);
                sending.arm(connection, &mut self.pending);
                Some((sending.port, Outcome::None))
            }
        }
    }

    /// Delivers a TCP packet. Appends answers to `out`, to be sent through the returned port. Returns `None` if the
    /// connection has closed.
    #[inline]
    pub fn deliver(
        &mut self,
        config: &TcpConfig,
        now: Time,
        packet: &Wire,
        room_bytes: u64,
        out: &mut Vec<Wire>,
    ) -> Option<(PortId, Outcome)> {
        if !packet.is_data_or_ack() {
            return self.deliver_rare(config, now, packet, room_bytes, out);
        }
        let connection = packet.connection;
        if packet.flags & flag::REVERSE == 0 {
            let receiving = &mut self.receiving[connection as usize];
            if receiving.generation != packet.generation {
                return None;
            }
            receiving.receiver.on_packet(config, now.ps(), packet, &mut self.pool, out);
            let completed = receiving.completes_message(now);
            receiving.arm(connection, now.ps(), Origin::ARRIVAL, &mut self.pending);
            return Some((receiving.port, if completed { Outcome::MessageComplete } else { Outcome::None }));
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
        sending.arm(connection, &mut self.pending);
        Some((sending.port, Outcome::None))
    }

    /// Delivers a packet that opens or closes a connection. Such a packet completes no message of a stream.
    #[inline(never)]
    fn deliver_rare(
        &mut self,
        config: &TcpConfig,
        now: Time,
        packet: &Wire,
        room_bytes: u64,
        out: &mut Vec<Wire>,
    ) -> Option<(PortId, Outcome)> {
        let mut packet = *packet;
        let (blocks, block_count) = self.pool.detach(&mut packet);
        if !self.accepts(&packet) {
            return None;
        }
        let connection = packet.connection;
        let has = |flag| packet.flags & flag != 0;
        if !has(flag::REVERSE) {
            let receiving = &mut self.receiving[connection as usize];
            let mut outcome = Outcome::None;
            if !has(flag::SYN) {
                let was_finished = receiving.receiver.is_finished();
                receiving.receiver.on_packet(config, now.ps(), &packet, &mut self.pool, out);
                let completed = receiving.completes_message(now);
                debug_assert!(!completed, "an empty message is complete once the sender is established");
                if receiving.receiver.is_finished() && !was_finished {
                    // The receiver may keep its slot, but it no longer repeats its FIN.
                    (outcome, receiving.armed_ps) = (Outcome::ReceiverFinished, NEVER);
                }
            } else if receiving.receiver.on_syn(config, now.ps(), &packet, out) {
                if receiving.single_flow {
                    // In ns-3, a listener keeps the latest timestamp of all SYNs, and each forked socket starts with
                    // that timestamp.
                    let latest = self.syn_stamps.entry(packet.dst).or_default();
                    *latest = (*latest).max(packet.stamp());
                    receiving.receiver.echo = *latest;
                }
                // In ns-3, the listener forks the socket in a separate event, which is the last event of this instant.
                let user = (connection, packet.generation);
                self.pending.add_follow_up(FollowUp::new(
                    (now.ps(), now.ps()),
                    Origin::ARRIVAL,
                    FollowUpKind::Accept,
                    user,
                ));
            }
            receiving.arm(connection, now.ps(), Origin::ARRIVAL, &mut self.pending);
            return Some((receiving.port, outcome));
        }
        let Sending { sender, began, .. } = &mut self.sending[connection as usize];
        sender.room_bytes = room_bytes;
        let mut outcome = Outcome::None;
        if !has(flag::SYN) {
            if sender.on_ack(config, now.ps(), &packet, &blocks[..block_count], out) {
                outcome = Outcome::SenderClosed;
            }
        } else if sender.on_syn_ack(config, now.ps(), &packet, out) {
            (outcome, *began) = (Outcome::Established, now);
            if sender.backlog() > 0 {
                self.pump_later(now, config.write_delay, Origin::ARRIVAL, connection);
            } else {
                sender.pump(config, now.ps(), out);
            }
        }
        self.arm_sender(connection);
        Some((self.sending[connection as usize].port, outcome))
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
