//! TCP: one sender and one receiver per connection, data one way.
//!
//! RFC 5681 (congestion control), 6298 (timeout), 6582 and 6675 (recovery with SACK), 7323 (timestamps and window
//! scaling), 2018 (SACK), 3168 (ECN), handshake and close of 9293; CUBIC (9438) and DCTCP (8257) in place of NewReno.
//! Endpoints read no clock and access no queue: time is an argument, and packets to send are appended to a list.

pub mod congestion;
pub(crate) mod receiver;
pub(crate) mod rtt;
pub(crate) mod sack;
pub(crate) mod sender;

pub use congestion::CongestionAlgorithm;

use crate::Band;
use crate::units::{Bytes, Rate, Time};
use serde::Deserialize;

/// In which band a receiver's packets (SYN-ACK, ACK) travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReverseBand {
    /// Always in this one. An accepted socket of ns-3 has ToS 0 whatever the opener's is: pfifo_fast's band 1.
    Fixed(Band),
    /// In that of the data.
    OfData,
}

/// What the packet engine follows where simulators and standards differ.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Follow {
    /// The RFCs of this module's header, and exact times.
    #[default]
    Standards,
    /// ns-3.37.
    Ns3,
}

/// How much is sent during fast recovery.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum Recovery {
    /// RFC 6675: the window is ssthresh at once, and the pipe is kept as full as that (ns-3's «classic» recovery).
    #[serde(rename = "sack")]
    Pipe,
    /// The same with three habits of ns-3.30.1 that ns-3.37 has lost: every partial acknowledgement sends the first
    /// outstanding segment again, even if it is under way again (RFC 6582, 3.2 (3), without regard to SACK), so that a
    /// lost segment crosses the network twice or more; an acknowledgement with SACK blocks is a duplicate whether they
    /// say anything new or not; and the window grows in disorder, but not by the acknowledgement that ends recovery.
    #[serde(rename = "ns3.30")]
    Ns330,
}

/// Parameters of every connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Payload of a full segment.
    pub segment_bytes: u16,
    /// On the wire beside the payload: IPv4 20, TCP 20, timestamp option 12, framing.
    pub header_bytes: u16,
    /// A SYN on the wire: IPv4 20, TCP 20, options 16 (timestamp, window scale, SACK permitted), framing.
    pub syn_bytes: u16,
    /// Initial window (RFC 6928).
    pub initial_window_segments: u16,
    /// In-order segments per acknowledgement (RFC 5681, 4.2).
    pub delayed_ack_segments: u8,
    /// Longest delay of an acknowledgement.
    pub delayed_ack_timeout: Time,
    /// Least retransmission timeout (RFC 6298 (2.4) says 1 s).
    pub min_rto: Time,
    /// Estimate before the first sample.
    pub initial_rtt: Time,
    /// Timeout of the first SYN; doubled for each further one.
    pub connect_timeout: Time,
    /// Send and receive buffers; the window of [`congestion::ideal`].
    pub window: Bytes,
    /// Resolution of timestamps: round-trip times shorter than it are seen as 1 us (ns-3: 1 ms).
    pub stamp_tick: Time,
    /// From an application's write to the first segment of it (ns-3: 1 ns).
    pub write_delay: Time,
    /// Band of acknowledgements of connections that flows open for themselves.
    pub own_reverse_band: ReverseBand,
    /// Band of acknowledgements of streams' connections.
    pub stream_reverse_band: ReverseBand,
    /// Congestion control.
    pub algorithm: CongestionAlgorithm,
    /// Whether connections negotiate ECN (RFC 3168).
    pub ecn: bool,
    /// Where ns-3 differs from the RFCs, which of them is followed.
    pub follow: Follow,
    /// Fast recovery.
    pub recovery: Recovery,
}

impl TcpConfig {
    /// Gao (2020), chapter 5, for a network of `host_count` hosts on links of `rate` and `delay`:
    /// docs/models/packet.md.
    pub fn basic_sim(host_count: u32, rate: Rate, delay: Time) -> Self {
        Self::over(host_count.saturating_mul(2).min(20), rate, delay)
    }

    /// The same with timers for round trips of `hop_count` hops.
    ///
    /// Everything that waits is derived from w, a deliberately high estimate of the worst round trip: each hop with 100
    /// times three packets of 1502 bytes and a propagation delay.
    pub fn over(hop_count: u32, rate: Rate, delay: Time) -> Self {
        let hop_ps = rate.serialize(Bytes(3 * 1502), 1, 1).map_or(u64::MAX, Time::ps).saturating_add(delay.ps());
        // Timers of no length would never end: no hop takes less than a nanosecond, the tick of the wire.
        let hop_ps = hop_ps.max(1_000);
        let worst_ps = hop_ps.saturating_mul(100 * u64::from(hop_count)).min(u64::MAX / 1_000_000);
        let share = |tenths: u64| Time::from_ps(worst_ps * tenths / 10);
        Self {
            segment_bytes: 1380,
            header_bytes: 54,
            syn_bytes: 58,
            initial_window_segments: 10,
            delayed_ack_segments: 2,
            delayed_ack_timeout: share(2),
            min_rto: share(15),
            initial_rtt: share(20),
            connect_timeout: share(20),
            window: Bytes(32 * 1024 * 1024),
            stamp_tick: Time::from_ps(1_000_000_000),
            write_delay: Time::from_ps(1_000),
            own_reverse_band: ReverseBand::Fixed(Band::new(1).expect("1 is a band")),
            stream_reverse_band: ReverseBand::OfData,
            algorithm: CongestionAlgorithm::NewReno(congestion::newreno::Parameters {}),
            ecn: false,
            follow: Follow::Ns3,
            recovery: Recovery::Pipe,
        }
    }

    /// The same with Linux's timers: TCP_RTO_MIN, TCP_DELACK_MIN and TCP_TIMEOUT_INIT of its `net/tcp.h`, the last of
    /// which RFC 6298 (2.1) recommends.
    pub fn with_linux_timers(self) -> Self {
        let ms = |count: u64| Time::from_ps(count * 1_000_000_000);
        // The timeout before the first sample is that estimate.
        Self { min_rto: ms(200), delayed_ack_timeout: ms(40), initial_rtt: ms(1000), connect_timeout: ms(1000), ..self }
    }

    /// The window that a connection begins with.
    #[inline]
    pub(crate) fn initial_window_bytes(&self) -> u64 {
        u64::from(self.initial_window_segments) * u64::from(self.segment_bytes)
    }

    /// `at` as a timestamp.
    #[inline]
    pub(crate) fn stamp(&self, at_ps: u64) -> u32 {
        (at_ps / self.stamp_tick.ps()) as u32
    }

    /// A packet without payload and with `block_count` SACK blocks, on the wire.
    #[inline]
    pub(crate) fn ack_bytes(&self, block_count: usize) -> u16 {
        // RFC 2018: 2 + 8n bytes; together with the 10 of the timestamp, 2 of padding less.
        self.header_bytes + 8 * block_count as u16
    }
}
