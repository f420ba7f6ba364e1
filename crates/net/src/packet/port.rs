//! An egress port and its link: qdisc, device queue of one packet, serialisation, propagation.
//!
//! A port has no events of its own. Only arrivals can change its behaviour, so its departures are computed when they
//! are next needed ([`Port::catch_up`]): at an arrival, and when a bucket of the [`Calendar`] begins. The only event
//! per packet and hop is the arrival at the far end.
//!
//! A port stores the information by which its packets are ordered among simultaneous packets: see
//! [`event_key`](super::event_key).
//!
//! The device holds one packet in addition to the one in transmission, as the drop-tail queue of one packet below a
//! qdisc in ns-3. A packet of a high band therefore waits for up to two packets of a lower band.

use super::calendar::{Calendar, CalendarPort};
use super::driver::PortDriver;
use super::event_key::{EventTime, Train};
use super::qdisc::{Capacity, Qdisc, Verdict};
use super::timing::{Serialization, Timing};
use super::wire::Wire;
use crate::trace::{PortCounters, PortState};
use crate::units::Time;

/// A port. Fields are in the order of use, because with thousands of ports most time is spent on fetching their cache
/// lines.
#[derive(Clone, Debug)]
#[repr(C, align(128))]
pub(crate) struct Port {
    busy_until_ps: u64,
    /// Start of the current transmission, at which its packet left the device queue. The qdisc refills the device after
    /// this instant. A packet that arrives exactly at this instant is offered to the qdisc first, so it finds the queue
    /// unchanged.
    taken_at_ps: u64,
    /// Index of the port and its link.
    link: u32,
    /// Whether a packet is in transmission, until `busy_until_ps`.
    busy: bool,
    /// Whether the port was idle before the packet in transmission. If so, the device can take another one immediately.
    fresh: bool,
    /// Whether `device` holds a packet.
    loaded: bool,
    /// Whether the port is scheduled in the calendar of its driver.
    is_scheduled: bool,
    qdisc: Qdisc,
    timing: Timing,
    /// Total idle time before the current busy period.
    idle_ps: u64,
    /// `sending_ps` of the current [`Train`].
    train_sending_ps: u64,
    device: Wire,
    packets: u64,
    bytes: u64,
    /// Index of the train of the packet in transmission.
    train: u32,
    /// Maximum number of a connection's bytes in a [NIC](Port::into_nic). 0: the port is not a NIC.
    nic_limit_bytes: u64,
}

impl Port {
    pub fn new(link: u32, delay: Time, serialization: Serialization, qdisc: Qdisc) -> Self {
        Self {
            link,
            timing: Timing { delay_ps: delay.ps(), serialization },
            busy: false,
            fresh: false,
            is_scheduled: false,
            busy_until_ps: 0,
            taken_at_ps: 0,
            train_sending_ps: 0,
            train: 0,
            loaded: false,
            device: Wire::NOTHING,
            qdisc,
            packets: 0,
            bytes: 0,
            idle_ps: 0,
            nic_limit_bytes: 0,
        }
    }

    /// Converts the port to a host's NIC, which drops nothing. A connection with `bytes` or more waiting in the NIC
    /// sends nothing until its next acknowledgement. The caller must pass each packet to [`Calendar::enter_nic`] before
    /// sending it.
    ///
    /// Linux limits connections in the same way (TCP small queues, Dumazet 2012), but wakes the sender when a
    /// transmission ends.
    pub fn into_nic(mut self, bytes: u64) -> Self {
        self.qdisc.keep_all();
        self.nic_limit_bytes = bytes.max(1);
        self
    }

    /// Returns the number of bytes that a connection may still enqueue in a NIC, or no limit for other ports. The last
    /// packet may exceed the limit.
    #[inline]
    pub fn room_bytes(
        &mut self,
        (now_ps, scheduled_ps): (u64, u64),
        connection: u32,
        driver: &mut impl PortDriver,
    ) -> u64 {
        if self.nic_limit_bytes == 0 {
            return u64::MAX;
        }
        self.catch_up(now_ps, scheduled_ps, driver);
        self.nic_limit_bytes.saturating_sub(driver.nic_bytes(connection))
    }

    /// Transmits, queues or drops a packet.
    #[inline]
    pub fn send(&mut self, at: EventTime, mut packet: Wire, driver: &mut impl PortDriver) -> Verdict {
        self.catch_up(at.now_ps, at.scheduled_ps, driver);
        if !self.busy {
            if self.qdisc.pass(&mut packet) == Verdict::Dropped {
                return Verdict::Dropped;
            }
            self.fresh = true;
            self.train_sending_ps = 0;
            self.idle_ps += at.now_ps - self.busy_until_ps;
            self.train = driver.begin_train(Train::idle(at.now_ps, at.scheduled_ps, at.sequence));
            self.transmit(at.now_ps, packet, driver);
            return Verdict::Queued;
        }
        self.schedule(driver);
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

    /// Enqueues a packet that arrives at the instant at which the device became empty. The packet finds the qdisc
    /// unchanged. Then the qdisc refills the device, so later packets find the device occupied.
    #[cold]
    fn enqueue_at_departure(&mut self, packet: Wire) -> Verdict {
        let verdict = self.qdisc.enqueue(packet);
        if !self.qdisc.is_empty() {
            let next = self.qdisc.dequeue();
            self.load(next);
        }
        verdict
    }

    /// Schedules the port in its driver's calendar, unless it is already scheduled. Packets are waiting.
    #[inline]
    fn schedule(&mut self, driver: &mut impl PortDriver) {
        if !self.is_scheduled {
            self.is_scheduled = true;
            driver.schedule_port(self.busy_until_ps, self.link);
        }
    }

    /// Computes the departures before `now_ps`, for which the port was [scheduled](PortDriver::schedule_port).
    /// Schedules the port again if packets still wait.
    #[inline]
    pub fn on_schedule(&mut self, now_ps: u64, driver: &mut impl PortDriver) {
        self.is_scheduled = false;
        self.catch_up(now_ps, 0, driver);
        if self.loaded || !self.qdisc.is_empty() {
            self.schedule(driver);
        }
    }

    /// Computes all departures before an event at `now_ps` that was scheduled at `scheduled_ps`.
    #[inline]
    pub fn catch_up(&mut self, now_ps: u64, scheduled_ps: u64, driver: &mut impl PortDriver) {
        while self.busy
            && (self.busy_until_ps < now_ps || (self.busy_until_ps == now_ps && self.taken_at_ps < scheduled_ps))
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
            self.extend_train(driver);
            self.transmit(self.busy_until_ps, next, driver);
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

    /// Determines the train of the next transmission, which starts at the end of the current one. The train continues
    /// if the current transmission took as long as the earlier ones of the train; otherwise, a new train begins.
    #[inline]
    fn extend_train(&mut self, driver: &mut impl PortDriver) {
        self.fresh = false;
        let start_ps = self.taken_at_ps;
        let sending_ps = self.busy_until_ps - start_ps;
        if sending_ps != self.train_sending_ps {
            let followed = driver.train(self.train).followed(start_ps, sending_ps);
            self.train = driver.begin_train(followed);
            self.train_sending_ps = sending_ps;
        }
    }

    #[inline]
    fn transmit(&mut self, start_ps: u64, packet: Wire, driver: &mut impl PortDriver) {
        let sending_ps = driver.sending_ps(self.link, packet.wire_bytes);
        if self.nic_limit_bytes > 0 {
            driver.leave_nic(&packet);
        }
        self.busy = true;
        self.taken_at_ps = start_ps;
        self.busy_until_ps = start_ps + sending_ps;
        self.packets += 1;
        self.bytes += u64::from(packet.wire_bytes);
        driver.push(self.busy_until_ps, self.link, self.train, packet);
    }

    /// Returns the totals up to `now_ps`, the time of the last [`Port::catch_up`].
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

    /// Returns the number of marked packets.
    pub fn marks(&self) -> u64 {
        self.qdisc.marks()
    }

    /// Returns the time spent on transmissions up to `now_ps`, including part of the current one.
    fn busy_by(&self, now_ps: u64) -> Time {
        let unsent_ps = if self.busy { self.busy_until_ps.saturating_sub(now_ps) } else { 0 };
        Time::from_ps(self.busy_until_ps - self.idle_ps - unsent_ps)
    }

    /// Returns the packets and bytes in the qdisc as of the last [`Port::catch_up`].
    pub fn waiting(&self) -> (u32, u64) {
        (self.qdisc.packets(), self.qdisc.bytes())
    }

    pub fn has_room(&self, wire_bytes: u16) -> bool {
        self.qdisc.has_room(wire_bytes)
    }

    pub fn set_capacity(&mut self, capacity: Capacity) {
        self.qdisc.set_capacity(capacity);
    }

    pub fn set_threshold(&mut self, packets: u32) {
        self.qdisc.set_threshold(packets);
    }

    /// Returns the state at `now_ps`, before the events of that instant. The call does not affect the simulation,
    /// because later events would compute the same departures.
    pub fn state(&mut self, now_ps: u64, driver: &mut impl PortDriver) -> PortState {
        self.catch_up(now_ps, 0, driver);
        PortState {
            queue_packets: self.qdisc.packets(),
            queue_bytes: self.qdisc.bytes(),
            busy: self.busy_by(now_ps),
            drops: self.qdisc.drops(),
            marks: self.qdisc.marks(),
            ..PortState::default()
        }
    }

    /// Returns the packets and bytes in the port, except for the packet in transmission, which the driver holds.
    pub fn held(&self) -> (u64, u64) {
        let (packets, bytes) = self.waiting();
        let loaded = if self.loaded { (1, u64::from(self.device.wire_bytes)) } else { (0, 0) };
        (u64::from(packets) + loaded.0, bytes + loaded.1)
    }
}

impl CalendarPort for Port {
    fn timing(&self) -> &Timing {
        &self.timing
    }

    fn train_mut(&mut self) -> &mut u32 {
        &mut self.train
    }

    #[inline]
    fn peek(&self) -> u64 {
        self.qdisc.peek() ^ self.packets ^ u64::from(self.device.connection)
    }

    fn advance(&mut self, now_ps: u64, calendar: &mut Calendar) {
        self.on_schedule(now_ps, calendar);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saturated_port_needs_three_of_its_four_cache_lines() {
        assert_eq!((size_of::<Port>(), std::mem::offset_of!(Port, train_sending_ps)), (256, 192));
    }
}
