//! Latency of a link: serialisation and propagation.

use super::tcp::Follow;
use crate::units::{Bytes, Rate};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Serialization times by number of bytes, shared by all ports of one rate.
#[derive(Clone, Debug)]
pub(crate) struct Serialization(Arc<Vec<u64>>);

impl Serialization {
    /// Creates the table for packets of `bytes` on the wire.
    pub fn new(rate: Rate, follow: Follow, bytes: RangeInclusive<u16>) -> Self {
        let span = |count: u16| {
            // Smaller packets take the minimum length. 1 bit/s and 2^16 bytes are 5.2e17 ps: far from overflow.
            let count = Bytes(u64::from(count.max(*bytes.start())));
            match follow {
                // No link exceeds its rate. The rate is lower by under a picosecond per packet, and exact at Ethernet
                // rates, where a byte takes whole picoseconds.
                Follow::Standards => rate.transmit(count).ps(),
                // ns-3's clock has whole nanoseconds.
                Follow::Ns3 => rate.serialize(count, 1, 1).map_or(u64::MAX, |exact| (exact.ps() + 500) / 1_000 * 1_000),
            }
            .max(1)
        };
        Self(Arc::new((0..=*bytes.end()).map(span).collect()))
    }

    /// Returns whether both are the same table.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the times by number of bytes.
    pub fn times(&self) -> &[u64] {
        &self.0
    }

    /// Returns the shortest time.
    fn least(&self) -> u64 {
        self.0[0]
    }

    /// Returns the longest time.
    fn most(&self) -> u64 {
        self.0[self.0.len() - 1]
    }
}

/// Propagation delay and serialization times of a link.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    pub delay_ps: u64,
    pub serialization: Serialization,
}

impl Timing {
    /// Returns the minimum time from the event that sends a packet to its arrival at the far end.
    pub fn latency_ps(&self) -> u64 {
        self.delay_ps + self.serialization.least()
    }

    /// Returns an upper bound of the time from sending to arrival, for the packet in the device.
    pub fn latency_max_ps(&self) -> u64 {
        self.delay_ps.saturating_add(2 * self.serialization.most())
    }

    /// Returns the serialization time of the longest packet.
    pub fn serialization_max_ps(&self) -> u64 {
        self.serialization.most()
    }
}
