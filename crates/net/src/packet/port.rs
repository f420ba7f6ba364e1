//! An egress port and its link: qdisc, device queue of one packet, serialisation, propagation.
//!
//! A port has no event of its own. Between two arrivals at a port nothing can change what it does, so its departures
//! are worked out when they are next needed ([`Port::catch_up`]): when a packet arrives, and when a day of the
//! [`Calendar`] begins. The only event per packet and hop is its arrival at the far end.
//!
//! Events at one instant take place in the order in which they were planned, as in any event-driven simulator; a
//! saturated network is full of such ties, and its losses depend on them. A port therefore remembers when the event
//! behind each departure was planned ([`Order`](super::order::Order)).
//!
//! The device holds one packet beside the one being sent, as a network card does (and ns-3's with a drop-tail queue
//! of one packet under a qdisc): a packet of a high band waits for up to two of a low band.

use super::calendar::{Calendar, Driven};
use super::order::{Moment, Run};
use super::qdisc::{Capacity, Qdisc, Verdict};
use super::timing::{Serialization, Timing};
use super::wire::Wire;
use crate::trace::{PortCounters, PortState};
use crate::units::Time;

/// A port. Fields in the order of use: with thousands of ports, fetching their cache lines is what takes the time.
#[derive(Clone, Debug)]
#[repr(C, align(128))]
pub(crate) struct Port {
    busy_until_ps: u64,
    /// When the packet being sent was taken from the device queue, which is when its transmission began: the qdisc gives
    /// the next one out *after* that instant, or once a packet has been offered to it, so that the first to come at the
    /// end of a transmission sees it as it was.
    taken_at_ps: u64,
    /// Its place among all ports.
    link: u32,
    /// A packet is being sent, until `busy_until_ps`.
    busy: bool,
    /// It found the port idle: there is room in the device at once.
    fresh: bool,
    /// Another is in `device`.
    loaded: bool,
    /// It is in the calendar to be driven.
    driven: bool,
    qdisc: Qdisc,
    timing: Timing,
    /// How long it has been idle since time zero, up to the last time that it began to send without a pause.
    idle_ps: u64,
    /// [`Run::sending_ps`] of the present run.
    run_sending_ps: u64,
    device: Wire,
    packets: u64,
    bytes: u64,
    /// Place of the run that the packet being sent belongs to.
    run: u32,
    /// What each connection may have in it, as a [card](Port::into_card); 0 if it is none.
    card_bytes: u64,
}

impl Port {
    /// An idle port with an empty queue.
    pub fn new(link: u32, delay: Time, serialization: Serialization, qdisc: Qdisc) -> Self {
        Self {
            link,
            timing: Timing { delay_ps: delay.ps(), serialization },
            busy: false,
            fresh: false,
            driven: false,
            busy_until_ps: 0,
            taken_at_ps: 0,
            run_sending_ps: 0,
            run: 0,
            loaded: false,
            device: Wire::NOTHING,
            qdisc,
            packets: 0,
            bytes: 0,
            idle_ps: 0,
            card_bytes: 0,
        }
    }

    /// The network card of a host, which drops nothing: a connection that has `bytes` or more in it waits until its next
    /// acknowledgement. Whoever sends has the packet [counted](Calendar::enter_card) first.
    ///
    /// Linux does the same (TCP small queues, Dumazet 2012), but wakes the sender when a transmission ends.
    pub fn into_card(mut self, bytes: u64) -> Self {
        self.qdisc.keep_all();
        self.card_bytes = bytes.max(1);
        self
    }

    /// What a sender may hand over now, if it is a card: the last packet may be longer than that.
    #[inline]
    pub fn room_bytes(&mut self, (now_ps, planned_ps): (u64, u64), connection: u32, calendar: &mut Calendar) -> u64 {
        if self.card_bytes == 0 {
            return u64::MAX;
        }
        self.catch_up(now_ps, planned_ps, calendar);
        self.card_bytes.saturating_sub(calendar.in_card(connection))
    }

    /// Sends a packet, or queues it, or drops it.
    #[inline]
    pub fn send(&mut self, at: Moment, mut packet: Wire, calendar: &mut Calendar) -> Verdict {
        self.catch_up(at.now_ps, at.planned_ps, calendar);
        if !self.busy {
            if self.qdisc.pass(&mut packet) == Verdict::Dropped {
                return Verdict::Dropped;
            }
            self.fresh = true;
            self.run_sending_ps = 0;
            self.idle_ps += at.now_ps - self.busy_until_ps;
            self.run = calendar.begin_run(Run::idle(at.now_ps, at.planned_ps, at.label));
            self.begin(at.now_ps, packet, calendar);
            return Verdict::Queued;
        }
        self.be_driven(calendar);
        if self.loaded {
            return self.qdisc.enqueue(packet);
        }
        if !self.fresh && self.taken_at_ps == at.now_ps {
            return self.enqueue_at_departure(packet);
        }
        if self.qdisc.pass(&mut packet) == Verdict::Dropped {
            return Verdict::Dropped;
        }
        self.load(packet);
        Verdict::Queued
    }

    /// The device is empty since this instant. The packet sees the qdisc as it was, and what comes after it finds the
    /// device taken.
    #[cold]
    fn enqueue_at_departure(&mut self, packet: Wire) -> Verdict {
        let verdict = self.qdisc.enqueue(packet);
        if !self.qdisc.is_empty() {
            let next = self.qdisc.dequeue();
            self.load(next);
        }
        verdict
    }

    /// Asks to be driven, because packets wait.
    #[inline]
    fn be_driven(&mut self, calendar: &mut Calendar) {
        if !self.driven {
            self.driven = true;
            calendar.drive(self.busy_until_ps, self.link);
        }
    }

    /// Works out everything that happened before an event of `now_ps` that was planned at `planned_ps`.
    #[inline]
    pub fn catch_up(&mut self, now_ps: u64, planned_ps: u64, calendar: &mut Calendar) {
        while self.busy
            && (self.busy_until_ps < now_ps || (self.busy_until_ps == now_ps && self.taken_at_ps < planned_ps))
        {
            let next = if self.loaded {
                self.loaded = false;
                self.device
            } else if self.qdisc.is_empty() {
                self.busy = false;
                return;
            } else {
                self.qdisc.dequeue()
            };
            self.follow(calendar);
            self.begin(self.busy_until_ps, next, calendar);
        }
        if !self.loaded && self.taken_at_ps < now_ps && !self.qdisc.is_empty() {
            let packet = self.qdisc.dequeue();
            self.load(packet);
        }
    }

    #[inline]
    fn load(&mut self, packet: Wire) {
        self.loaded = true;
        self.device = packet;
    }

    /// A transmission begins when the present one ends.
    #[inline]
    fn follow(&mut self, calendar: &mut Calendar) {
        self.fresh = false;
        let begun_ps = self.taken_at_ps;
        let sending_ps = self.busy_until_ps - begun_ps;
        if sending_ps != self.run_sending_ps {
            let followed = calendar.run(self.run).followed(begun_ps, sending_ps);
            self.run = calendar.begin_run(followed);
            self.run_sending_ps = sending_ps;
        }
    }

    #[inline]
    fn begin(&mut self, begun_ps: u64, packet: Wire, calendar: &mut Calendar) {
        let sending_ps = calendar.sending_ps(self.link, packet.wire_bytes);
        if self.card_bytes > 0 {
            calendar.leave_card(&packet);
        }
        self.busy = true;
        self.taken_at_ps = begun_ps;
        self.busy_until_ps = begun_ps + sending_ps;
        self.packets += 1;
        self.bytes += u64::from(packet.wire_bytes);
        calendar.push(self.busy_until_ps, self.link, self.run, packet);
    }

    /// What has passed by `now_ps`, that of the last [`Port::catch_up`].
    pub fn counters(&self, now_ps: u64) -> PortCounters {
        let (queue_packets_max, queue_bytes_max) = self.qdisc.longest();
        PortCounters {
            packets: self.packets,
            bytes: self.bytes,
            busy: self.busy_by(now_ps),
            drops: self.qdisc.drops(),
            marks: self.qdisc.marks(),
            queue_packets_max: u64::from(queue_packets_max),
            queue_bytes_max,
        }
    }

    /// Packets that it has marked.
    pub fn marks(&self) -> u64 {
        self.qdisc.marks()
    }

    /// How long it has sent by `now_ps`: of a packet that is being sent, what is over.
    fn busy_by(&self, now_ps: u64) -> Time {
        let unsent_ps = if self.busy { self.busy_until_ps.saturating_sub(now_ps) } else { 0 };
        Time::from_ps(self.busy_until_ps - self.idle_ps - unsent_ps)
    }

    /// Packets and bytes that wait in the qdisc, as of the last [`Port::catch_up`].
    pub fn waiting(&self) -> (u32, u64) {
        (self.qdisc.packets(), self.qdisc.bytes())
    }

    /// Whether the qdisc would take a packet of that length.
    pub fn has_room(&self, wire_bytes: u16) -> bool {
        self.qdisc.has_room(wire_bytes)
    }

    /// Packets that arrive from now on find a qdisc of this capacity.
    pub fn set_capacity(&mut self, capacity: Capacity) {
        self.qdisc.set_capacity(capacity);
    }

    /// Packets that come from now on are marked from this queue length on.
    pub fn set_threshold(&mut self, packets: u32) {
        self.qdisc.set_threshold(packets);
    }

    /// What an observer sees at `now_ps`, before whatever else happens at that instant. Nothing that follows can tell
    /// whether somebody looked: every event of the instant or after it begins by working out as much.
    pub fn state(&mut self, now_ps: u64, calendar: &mut Calendar) -> PortState {
        self.catch_up(now_ps, 0, calendar);
        PortState {
            queue_packets: self.qdisc.packets(),
            queue_bytes: self.qdisc.bytes(),
            busy: self.busy_by(now_ps),
            drops: self.qdisc.drops(),
            marks: self.qdisc.marks(),
            ..PortState::default()
        }
    }

    /// Packets and bytes that are in the port, the packet being sent not among them: that is in the calendar.
    pub fn held(&self) -> (u64, u64) {
        let (packets, bytes) = self.waiting();
        let loaded = if self.loaded { (1, u64::from(self.device.wire_bytes)) } else { (0, 0) };
        (u64::from(packets) + loaded.0, bytes + loaded.1)
    }
}

impl Driven for Port {
    fn timing(&self) -> &Timing {
        &self.timing
    }

    fn run_mut(&mut self) -> &mut u32 {
        &mut self.run
    }

    #[inline]
    fn peek(&self) -> u64 {
        self.qdisc.peek() ^ self.packets ^ u64::from(self.device.connection)
    }

    fn drive(&mut self, now_ps: u64, calendar: &mut Calendar) {
        self.driven = false;
        self.catch_up(now_ps, 0, calendar);
        if self.loaded || !self.qdisc.is_empty() {
            self.be_driven(calendar);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saturated_port_needs_three_of_its_four_cache_lines() {
        assert_eq!((size_of::<Port>(), std::mem::offset_of!(Port, run_sending_ps)), (256, 192));
    }
}
