//! The interface that a port requires of the code that runs it: transmission times, and schedules for arrivals and for
//! later calls of the port.
//!
//! A [`Port`](super::port::Port) receives all times as arguments and has no events of its own, so the same port runs in
//! simulated time ([`Calendar`](super::calendar::Calendar)) and on the arrival times of real packets
//! ([`Departures`](super::forwarder)).

use super::event_key::Train;
use super::wire::Wire;

/// The event queue under the ports.
pub(crate) trait PortDriver {
    fn sending_ps(&self, link: u32, wire_bytes: u16) -> u64;

    /// Schedules the arrival of a packet whose transmission on `link` ends at `sent_ps`. It belongs to the packet train
    /// with index `train`.
    fn push(&mut self, sent_ps: u64, link: u32, train: u32, packet: Wire);

    /// Schedules [`Port::on_schedule`](super::port::Port::on_schedule) of port `link`, which has waiting packets and is
    /// busy until `busy_until_ps`. The call must come after that time, and before the arrival of the next packet that
    /// the port transmits.
    fn schedule_port(&mut self, busy_until_ps: u64, link: u32);

    /// Adds a packet train and returns its index, which is valid while an arrival or a port refers to the train.
    fn begin_train(&mut self, train: Train) -> u32;

    fn train(&self, index: u32) -> Train;

    /// Adds a packet to the waiting bytes of its connection in the sender's NIC.
    fn enter_nic(&mut self, packet: &Wire);

    /// Subtracts a packet from the waiting bytes of its connection, when the sender's NIC begins to transmit it.
    fn leave_nic(&mut self, packet: &Wire);

    /// Returns the bytes of a connection that wait in its sender's NIC as of the last
    /// [`Port::catch_up`](super::port::Port::catch_up).
    fn nic_bytes(&self, connection: u32) -> u64;
}
