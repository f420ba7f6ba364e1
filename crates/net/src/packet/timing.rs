//! Latency of a link: serialisation and propagation.

use super::tcp::Follow;
use crate::units::{Bytes, Rate};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Serialization times by number of bytes, shared by all ports of one rate.
#[derive(Clone, Debug)]
pub(crate) struct Serialization(Arc<Vec<u64>>);

impl Serialization {
    /// Creates the table for packets whose length on the wire lies within `bytes`.
    pub fn new(rate: Rate, follow: Follow, bytes: RangeInclusive<u16>) -> Self {
        let span = |count: u16| {
            // Shorter packets are padded to the minimum length. 2^16 bytes at 1 bit/s take 5.2e17 ps, so times fit 64
            // bits.
            let count = Bytes(u64::from(count.max(*bytes.start())));
            match follow {
                // Times are rounded up, so that no link exceeds its rate. The error is less than a picosecond per
                // packet, and zero at Ethernet rates, where a byte takes whole picoseconds.
                Follow::Standards => rate.transmit(count).ps(),
                // ns-3's clock counts whole nanoseconds, so times are rounded to the nearest one.
                Follow::Ns3 => rate.serialize(count, 1, 1).map_or(u64::MAX, |exact| (exact.ps() + 500) / 1_000 * 1_000),
            }
            .max(1)
        };
        Self(Arc::new((0..=*bytes.end()).map(span).collect()))
    }

    /// Returns whether both share one table.
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

    /// Returns an upper bound on the time until the packet in the device arrives: its transmission may have to wait for
    /// another one.
    pub fn latency_max_ps(&self) -> u64 {
        self.delay_ps.saturating_add(2 * self.serialization.most())
    }

    pub fn serialization_max_ps(&self) -> u64 {
        self.serialization.most()
    }
}
