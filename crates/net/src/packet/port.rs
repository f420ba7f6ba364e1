//! An egress port and its link: qdisc, device queue of one packet, serialisation, propagation.
//!
//! A port has no event of its own. Between two arrivals at a port nothing can change what it does, so its departures
//! are worked out when they are next needed ([`Port::catch_up`]): when a packet arrives, and when the link runs dry.
//! The only event per packet and hop is its arrival at the far end, and of those only the earliest per link is in
//! the agenda, because a link keeps order.
//!
//! The device holds one packet beside the one being sent, as a network card does (and ns-3's with a drop-tail queue
//! of one packet under a qdisc): a packet of a high band waits for up to two of a low band.

use super::qdisc::{Qdisc, QueueConfig, Verdict};
use super::wire::Wire;
use crate::topology::NodeId;
use crate::trace::PortCounters;
use crate::units::{Bytes, Rate, Time};
use std::collections::VecDeque;
use std::sync::Arc;

/// Time on the wire by number of bytes, shared by all ports of one rate.
#[derive(Clone, Debug)]
pub(crate) struct Serialization(Arc<[u64]>);

impl Serialization {
    /// For packets of up to `bytes_max`, rounded down to whole ticks as a simulator's clock does.
    pub fn new(rate: Rate, tick: Time, bytes_max: u16) -> Self {
        let tick_ps = tick.ps().max(1);
        let span = |bytes| {
            let exact = rate.serialize(Bytes(bytes), 1, 1).map_or(u64::MAX, Time::ps);
            (exact - exact % tick_ps).max(1)
        };
        Self((0..=u64::from(bytes_max)).map(span).collect())
    }

    #[inline]
    fn of(&self, wire_bytes: u16) -> u64 {
        self.0[usize::from(wire_bytes)]
    }
}

/// A port, and the packets in flight on its link.
#[derive(Debug)]
pub(crate) struct Port {
    /// Where the link ends.
    pub to: NodeId,
    delay_ps: u64,
    serialization: Serialization,
    /// Packets on the link, by arrival.
    flight: VecDeque<(u64, Wire)>,
    /// A packet is being sent, until `busy_until_ps`.
    busy: bool,
    busy_until_ps: u64,
    /// When the packet being sent was taken from the device queue: only *after* that instant is there room for the
    /// next, so that of packets which arrive at one instant one is sent and the others see the qdisc.
    taken_at_ps: u64,
    device: Option<Wire>,
    qdisc: Qdisc,
    packets: u64,
    bytes: u64,
    busy_ps: u64,
    drops: u64,
}

impl Port {
    pub fn new(to: NodeId, delay: Time, serialization: Serialization, queue: &QueueConfig, seed: u64) -> Self {
        Self {
            to,
            delay_ps: delay.ps(),
            serialization,
            flight: VecDeque::new(),
            busy: false,
            busy_until_ps: 0,
            taken_at_ps: 0,
            device: None,
            qdisc: Qdisc::new(queue, seed),
            packets: 0,
            bytes: 0,
            busy_ps: 0,
            drops: 0,
        }
    }

    /// When the next packet arrives at the far end; `u64::MAX` if none is on the link.
    #[inline]
    pub fn next_arrival_ps(&self) -> u64 {
        self.flight.front().map_or(u64::MAX, |&(at, _)| at)
    }

    /// Sends a packet, or queues it, or drops it.
    #[inline]
    pub fn send(&mut self, now_ps: u64, mut packet: Wire) -> Verdict {
        self.catch_up(now_ps);
        if !self.busy {
            self.qdisc.pass(&mut packet);
            self.begin(now_ps, packet);
            return Verdict::Queued;
        }
        if self.device.is_none() && self.taken_at_ps < now_ps {
            self.qdisc.pass(&mut packet);
            self.device = Some(packet);
            return Verdict::Queued;
        }
        let verdict = self.qdisc.enqueue(packet);
        self.drops += u64::from(verdict == Verdict::Dropped);
        verdict
    }

    /// Takes the packet that arrives now.
    #[inline]
    pub fn arrive(&mut self, now_ps: u64) -> Wire {
        let (at, packet) = self.flight.pop_front().expect("the agenda names ports with packets in flight");
        debug_assert_eq!(at, now_ps, "a packet arrives when the agenda says so");
        if self.flight.is_empty() && self.busy {
            // Its transmission ended a propagation delay ago, at the latest now.
            self.catch_up(now_ps.max(now_ps - self.delay_ps + 1));
        }
        packet
    }

    /// Works out everything that happened before `limit_ps`.
    #[inline]
    fn catch_up(&mut self, limit_ps: u64) {
        while self.busy && self.busy_until_ps < limit_ps {
            let at = self.busy_until_ps;
            let next = match self.device.take() {
                Some(packet) => packet,
                None if self.qdisc.is_empty() => {
                    self.busy = false;
                    return;
                }
                None => self.qdisc.dequeue(),
            };
            self.begin(at, next);
        }
        if self.busy && self.device.is_none() && self.taken_at_ps < limit_ps && !self.qdisc.is_empty() {
            self.device = Some(self.qdisc.dequeue());
        }
    }

    #[inline]
    fn begin(&mut self, at_ps: u64, packet: Wire) {
        let sending_ps = self.serialization.of(packet.wire_bytes);
        self.busy = true;
        self.taken_at_ps = at_ps;
        self.busy_until_ps = at_ps + sending_ps;
        self.packets += 1;
        self.bytes += u64::from(packet.wire_bytes);
        self.busy_ps += sending_ps;
        self.flight.push_back((self.busy_until_ps + self.delay_ps, packet));
    }

    /// What has passed so far.
    pub fn counters(&self) -> PortCounters {
        PortCounters {
            packets: self.packets,
            bytes: self.bytes,
            busy: Time::from_ps(self.busy_ps),
            drops: self.drops,
            marks: self.qdisc.marks,
            queue_packets_max: u64::from(self.qdisc.packets_max),
            queue_bytes_max: self.qdisc.bytes_max,
        }
    }

    /// Packets and bytes that wait in the qdisc at `now`, as an observer sees them.
    pub fn queue(&mut self, now_ps: u64) -> (u32, u64) {
        self.catch_up(now_ps);
        (self.qdisc.packets(), self.qdisc.bytes())
    }

    /// Packets of every kind that are in the port or on its link.
    pub fn held(&self) -> u64 {
        self.flight.len() as u64 + u64::from(self.device.is_some()) + u64::from(self.qdisc.packets())
    }
}
