//! Counters and states for observers. Engines write them and never read them.

use crate::units::{Bytes, Time};

/// Totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that have crossed a link, counted once per link.
    pub packet_hops: u64,
    /// Bytes that have crossed a link, headers included, counted once per link.
    pub hop_bytes: u64,
    /// Events: arrivals at a node, timers, and writes by applications.
    pub events: u64,
    /// Packets that a qdisc dropped.
    pub drops: u64,
    /// Packets marked CE.
    pub marks: u64,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Retransmission timeouts of data.
    pub timeouts: u64,
}

/// Totals of one egress port and its link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets put on the link.
    pub packets: u64,
    /// Bytes put on the link, headers included.
    pub bytes: u64,
    /// Time for which the link was busy.
    pub busy: Time,
    /// Packets that the qdisc dropped.
    pub drops: u64,
    /// Packets marked CE.
    pub marks: u64,
    /// Largest number of packets that waited in the qdisc simultaneously.
    pub queue_packets_max: u64,
    /// Largest number of bytes that waited in the qdisc simultaneously.
    pub queue_bytes_max: u64,
}

/// State of one egress port and its link at an instant, with the totals up to that instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortState {
    /// Packets waiting in the qdisc.
    pub queue_packets: u32,
    /// Bytes waiting in the qdisc.
    pub queue_bytes: u64,
    /// Time for which the link was busy.
    pub busy: Time,
    /// Packets that the qdisc dropped.
    pub drops: u64,
    /// Packets marked CE.
    pub marks: u64,
    /// Number of long flows that cross the link. A flow is long if its sender has at least as many unsent bytes as
    /// bytes in flight, so that a mark can still slow it.
    pub long_flows: u32,
    /// Bytes in flight of the long flows, on their whole paths.
    pub long_flight: Bytes,
}

/// State of a connection's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Congestion window.
    pub cwnd: Bytes,
    /// Slow-start threshold; `None` before it is first set.
    pub ssthresh: Option<Bytes>,
    /// Bytes sent but not acknowledged (RFC 5681, FlightSize).
    pub flight: Bytes,
}
