//! The two ends of every connection, each with the lane of its host.

use super::host::{End, Goal, Look};
use super::lanes::{Division, PerLane};
use super::tcp::TcpConfig;
use super::tcp::receiver::Receiver;
use super::tcp::sender::{NEVER, News, Sender};
use super::wire::{SackPool, Wire, flag};
use crate::HostId;
use crate::route;
use crate::topology::PortId;
use crate::units::Time;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
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

/// Something that comes after all that arrives at its instant, because it was planned later than that: sooner before it
/// than a packet crosses a link. Of one instant, in the order in which they were planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Late {
    pub at_ps: u64,
    pub planned_ps: u64,
    /// Of two that were planned at one instant, the first has the smaller one. A FIN that is repeated in a lane keeps its
    /// number: two FINs that were planned at one instant for one instant wait equally long, so they have always been
    /// repeated at the same instants, and got their numbers at one.
    pub number: u64,
    pub connection: u32,
    pub generation: u16,
    pub kind: LateKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LateKind {
    /// The receiver repeats its FIN, or gives up.
    Fin,
    /// A SYN is answered.
    Accept,
    /// What the application has written is looked at.
    Pump,
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
    /// FINs to be repeated, [evenly](Receiver::repeats_fin_evenly) and late.
    pub late: BinaryHeap<Reverse<Late>>,
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
    /// Both if it closes the end that it is for, which [`Closes`] tells.
    Close,
}

/// Packets of a day that may close an end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closes(Vec<MayClose>);

/// Those of one end are in the order of their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MayClose {
    connection: u32,
    is_for_sender: bool,
    at_ps: u64,
    has_fin: bool,
}

impl Closes {
    pub fn add(&mut self, at_ps: u64, packet: &Wire) {
        let has = |flag| packet.flags & flag != 0;
        let (is_for_sender, has_fin) = (has(flag::REVERSE), has(flag::FIN));
        self.0.push(MayClose { connection: packet.connection, is_for_sender, at_ps, has_fin });
    }

    /// Tells when such a packet comes that has to do with both ends. The first FIN closes a sender. A receiver is closed by
    /// what completes the stream: by the FIN, or by data after it.
    pub fn find(&mut self, mut found: impl FnMut(u64)) {
        self.0.sort_unstable();
        for end in
            self.0.chunk_by(|one, other| (one.connection, one.is_for_sender) == (other.connection, other.is_for_sender))
        {
            let from_fin = end.iter().skip_while(|packet| !packet.has_fin);
            let most = if end[0].is_for_sender { 1 } else { usize::MAX };
            from_fin.take(most).for_each(|packet| found(packet.at_ps));
        }
        self.0.clear();
    }
}

/// What bounds what happens in a day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DayBounds {
    /// How long it is.
    pub length_ps: u64,
    /// No connection receives more.
    pub bytes: u64,
    /// No packet arrives sooner after it was sent, and no day is longer.
    pub latency_ps: u64,
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
fn arm(armed_ps: &mut u64, at_ps: u64, (connection, end): (u32, End), mut look: impl FnMut(Look)) {
    if at_ps < *armed_ps {
        *armed_ps = at_ps;
        look(Look { at_ps, connection, end });
    }
}

impl Receiving {
    /// Looks at its deadline.
    pub fn look(&mut self, config: &TcpConfig, now_ps: u64, pool: &mut SackPool, out: &mut Vec<Wire>) {
        self.armed_ps = NEVER;
        if self.receiver.deadline_ps <= now_ps {
            self.receiver.on_timeout(config, now_ps, pool, out);
        }
    }

    /// See [`arm`]. While it closes, each deadline has a look of its own, which knows when it was set.
    #[inline]
    pub fn arm(&mut self, connection: u32, look: impl FnMut(Look)) {
        if self.receiver.awaits_last_ack() && self.armed_ps != self.receiver.deadline_ps {
            self.armed_ps = NEVER;
        }
        arm(&mut self.armed_ps, self.receiver.deadline_ps, (connection, End::Receiver), look);
    }
}

impl Sending {
    /// See [`arm`].
    #[inline]
    pub fn arm(&mut self, connection: u32, look: impl FnMut(Look)) {
        arm(&mut self.armed_ps, self.sender.deadline_ps, (connection, End::Sender), look);
    }
}

impl Pairs {
    /// The place of the receiving end of a connection, if it has that user.
    fn receiving_place(&self, connection: u32, generation: u16) -> Option<u32> {
        let pair = &self.0[connection as usize];
        (pair.generation == generation).then_some(pair.receiving)
    }

    /// The place of the end that `packet` is for, if its connection is still the one that sent it.
    #[inline]
    pub fn place(&self, packet: &Wire) -> Option<u32> {
        let pair = &self.0[packet.connection as usize];
        let place = if packet.flags & flag::REVERSE == 0 { pair.receiving } else { pair.sending };
        (pair.generation == packet.generation).then_some(place)
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
    /// What a packet that is not [routine](Wire::is_routine) by itself has to do with, that arrives in the day that begins
    /// for the end at `place`.
    pub fn concern(&self, place: u32, packet: &Wire, bounds: &DayBounds) -> Concern {
        if packet.flags & (flag::SYN | flag::PCN) != 0 {
            return Concern::Both;
        }
        let has_fin = packet.flags & flag::FIN != 0;
        if packet.flags & flag::REVERSE != 0 {
            // It is a FIN.
            let is_closed = self.sending[place as usize].sender.is_closed();
            return if is_closed { Concern::Own } else { Concern::Close };
        }
        let Receiving { receiver, next_goal, own, .. } = &self.receiving[place as usize];
        let reaches_goal = receiver.arrived().saturating_add(bounds.bytes) >= *next_goal;
        let is_own = if *own && (has_fin || (packet.has_payload() && reaches_goal)) {
            // What completes the stream is answered by a FIN. Is the next look at that no late event, and not today?
            let is_later = receiver.answers_fin_after().is_some_and(|delay_ps| delay_ps >= bounds.latency_ps);
            if !is_later && !receiver.knows_end() {
                return Concern::Close;
            }
            is_later || receiver.awaits_last_ack() || receiver.is_gone()
        } else {
            (packet.has_payload() || receiver.awaits_first_packet()) && (*own || !reaches_goal)
        };
        if is_own { Concern::Own } else { Concern::Both }
    }

    /// When the next [late](Self::late) event comes.
    #[inline]
    pub fn late_ps(&self) -> u64 {
        self.late.peek().map_or(NEVER, |Reverse(late)| late.at_ps)
    }

    /// Takes out the next late event. Packets go to `out` and through the returned port; `None` if there was nothing to
    /// do. Whether the receiver has given up: then its slot may be free.
    pub fn repeat_fin(&mut self, config: &TcpConfig, out: &mut Vec<Wire>) -> Option<(PortId, Late, bool)> {
        let Reverse(late) = self.late.pop()?;
        let Late { at_ps, connection, generation, .. } = late;
        let receiving = &mut self.receiving[self.pairs.receiving_place(connection, generation)? as usize];
        if receiving.armed_ps != at_ps {
            return None;
        }
        receiving.look(config, at_ps, &mut self.pool, out);
        let repeats = &mut self.late;
        receiving.arm(connection, |look| repeats.push(Reverse(Late { at_ps: look.at_ps, planned_ps: at_ps, ..late })));
        Some((receiving.port, late, receiving.receiver.is_gone()))
    }

    /// A plain packet has reached its host, for the end at `place`. Answers go to `out` and through the returned port, and
    /// looks at deadlines to `look`. Whether the next goal of a stream has been reached.
    #[inline]
    pub fn deliver(
        &mut self,
        config: &TcpConfig,
        now: Time,
        packet: &Wire,
        place: u32,
        out: &mut Vec<Wire>,
        look: impl FnMut(Look),
    ) -> Option<(PortId, bool)> {
        if packet.flags & flag::REVERSE == 0 {
            let receiving = &mut self.receiving[place as usize];
            if receiving.generation != packet.generation {
                return None;
            }
            receiving.receiver.on_packet(config, now.ps(), packet, &mut self.pool, out);
            // A sender that has sent data is established.
            let mut reached = receiving.receiver.received() >= receiving.next_goal;
            if reached && receiving.own {
                (receiving.received, receiving.next_goal) = (now, u64::MAX);
                reached = false;
            }
            receiving.arm(packet.connection, look);
            return Some((receiving.port, reached));
        }
        let mut packet = *packet;
        let (blocks, block_count) = self.pool.detach(&mut packet);
        let sending = &mut self.sending[place as usize];
        if sending.sender.template.generation != packet.generation {
            return None;
        }
        let news = sending.sender.on_ack(config, now.ps(), &packet, &blocks[..block_count], out);
        debug_assert_eq!(news, News::None, "a FIN closes");
        sending.arm(packet.connection, look);
        Some((sending.port, false))
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
    /// None, in those lanes.
    pub fn new(division: Arc<Division>) -> Self {
        let ends = PerLane::new(division.count(), Ends::default);
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

    /// A plain packet has reached its host: see [`Ends::deliver`].
    #[inline]
    pub fn deliver(
        &mut self,
        config: &TcpConfig,
        now: Time,
        packet: &Wire,
        out: &mut Vec<Wire>,
        look: impl FnMut(Look),
    ) -> Option<(PortId, bool)> {
        if self.ends.len() == 1 {
            return self.ends.first.deliver(config, now, packet, packet.connection, out, look);
        }
        let ends = &mut self.ends[self.division.host(HostId(packet.dst))];
        let Some(place) = ends.pairs.place(packet) else {
            ends.pool.forget(*packet);
            return None;
        };
        ends.deliver(config, now, packet, place, out, look)
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

    /// The SACK blocks of what is at the host that `packet` is for.
    pub fn pool_at(&mut self, packet: &Wire) -> &mut SackPool {
        &mut self.ends[self.division.host(HostId(packet.dst))].pool
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
        let (lane, place) = self.receiving_spot(index);
        &self.ends[lane].receiving[place]
    }

    /// See [`receiving`](Self::receiving).
    #[inline]
    pub fn receiving_mut(&mut self, index: u32) -> &mut Receiving {
        self.receiving_with_pool(index).0
    }

    /// The same, and the SACK blocks of its lane.
    #[inline]
    pub fn receiving_with_pool(&mut self, index: u32) -> (&mut Receiving, &mut SackPool) {
        let (lane, place) = self.receiving_spot(index);
        let Ends { receiving, pool, .. } = &mut self.ends[lane];
        (&mut receiving[place], pool)
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
        let (lane, place) = self.sending_spot(index);
        &self.ends[lane].sending[place]
    }

    /// See [`sending`](Self::sending).
    #[inline]
    pub fn sending_mut(&mut self, index: u32) -> &mut Sending {
        let (lane, place) = self.sending_spot(index);
        &mut self.ends[lane].sending[place]
    }

    #[inline]
    pub fn receiving_spot(&self, index: u32) -> (usize, usize) {
        if self.ends.len() == 1 {
            return (0, index as usize);
        }
        let pair = &self.pairs().0[index as usize];
        (self.division.host(pair.dst), pair.receiving as usize)
    }

    #[inline]
    fn sending_spot(&self, index: u32) -> (usize, usize) {
        if self.ends.len() == 1 {
            return (0, index as usize);
        }
        let pair = &self.pairs().0[index as usize];
        (self.division.host(pair.src), pair.sending as usize)
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
    fn an_end_is_closed_by_no_packet_before_a_fin() {
        let packet = |connection, flags| Wire { connection, flags, ..Wire::NOTHING };
        let (fin, reverse) = (flag::FIN, flag::FIN | flag::REVERSE);
        // In no order, as they lie.
        let packets = [(9, 1, reverse), (4, 2, fin), (3, 1, reverse), (2, 2, 0), (6, 2, 0), (5, 3, 0), (8, 2, fin)];
        let mut closes = Closes::default();
        packets.iter().for_each(|&(at_ps, connection, flags)| closes.add(at_ps, &packet(connection, flags)));
        let mut found = Vec::new();
        closes.find(|at_ps| found.push(at_ps));
        assert_eq!(found, [3, 4, 6, 8], "a sender's first FIN; a receiver's, and what comes after it");
        closes.find(|at_ps| panic!("forgotten: {at_ps}"));
    }

    #[test]
    fn data_in_order_needs_one_cache_line() {
        assert_eq!((offset_of!(Receiving, receiver), offset_of!(Sending, sender)), (24, 16));
    }
}
