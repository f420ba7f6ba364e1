//! TCP: one sender and one receiver per connection. Data flows in one direction.
//!
//! Implemented are RFC 5681 (congestion control), 6298 (timeout), 6582 and 6675 (recovery with SACK), 7323 (timestamps
//! and window scaling), 2018 (SACK), 3168 (ECN), and the handshake and close of 9293. Options are CUBIC (9438) and
//! DCTCP (8257) in place of NewReno, and RACK-TLP (8985) with proportional rate reduction (9937) in place of 6675.
//! Endpoints read no clock and access no queue: time is an argument, and packets to send are appended to a list.

pub mod congestion;
pub(crate) mod rack;
pub(crate) mod receiver;
pub(crate) mod rtt;
pub(crate) mod sack;
pub(crate) mod sender;

pub use congestion::CongestionAlgorithm;

use crate::Band;
use crate::units::{Bytes, Rate, Time};
use serde::Deserialize;

/// Band of the packets that a receiver sends (SYN-ACK, ACK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReverseBand {
    /// A fixed band. In ns-3, an accepted socket has ToS 0, which is band 1 of pfifo_fast, whatever ToS the opening
    /// socket has.
    Fixed(Band),
    /// The band of the data.
    OfData,
}

/// The reference that the packet engine follows where ns-3 differs from the standards.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Follow {
    /// The RFCs listed in this module's header, with exact times.
    #[default]
    Standards,
    /// ns-3.37.
    Ns3,
}

/// Variant of fast recovery. It determines how much is sent during recovery.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub enum Recovery {
    /// RFC 6675: the window is immediately set to ssthresh, and the sender keeps that many bytes in flight (ns-3's
    /// "classic" recovery).
    #[serde(rename = "sack")]
    Pipe,
    /// RFC 6675 with three behaviours of ns-3.30.1 that ns-3.37 has dropped:
    ///
    /// - Every partial acknowledgement retransmits the first outstanding segment, even if a retransmission is in flight
    ///   (RFC 6582, 3.2 (3), without regard to SACK). A lost segment therefore crosses the network at least twice.
    /// - An acknowledgement with SACK blocks is a duplicate even if the blocks report nothing new.
    /// - The window grows in the state Disorder, before recovery, but not by the acknowledgement that ends recovery.
    #[serde(rename = "ns3.30")]
    Ns330,
    /// RACK-TLP (RFC 8985), i.e. loss detection by time and tail loss probes, with proportional rate reduction (RFC
    /// 9937), as in Linux: [`sender`].
    #[serde(rename = "rack")]
    Rack,
}

impl Recovery {
    /// Returns the resolution of timestamps that the variant needs; `None` if any resolution will do. RACK compares
    /// times of transmission, which Linux measures in microseconds.
    pub fn stamp_tick(self) -> Option<Time> {
        (self == Self::Rack).then_some(Time::from_ps(1_000_000))
    }
}

/// Parameters of every connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpConfig {
    /// Payload of a full segment, in bytes.
    pub segment_bytes: u16,
    /// Bytes of a packet on the wire in addition to the payload: IPv4 20, TCP 20, timestamp option 12, framing.
    pub header_bytes: u16,
    /// Bytes of a SYN on the wire: IPv4 20, TCP 20, options 16 (timestamp, window scale, SACK permitted), framing.
    pub syn_bytes: u16,
    /// Initial window (RFC 6928).
    pub initial_window_segments: u16,
    /// Number of in-order segments per acknowledgement (RFC 5681, 4.2).
    pub delayed_ack_segments: u8,
    /// Maximum delay of an acknowledgement.
    pub delayed_ack_timeout: Time,
    /// Minimum retransmission timeout (RFC 6298 (2.4): 1 s).
    pub min_rto: Time,
    /// Round-trip time assumed before the first sample.
    pub initial_rtt: Time,
    /// Timeout of the first SYN. It is doubled for each retransmission.
    pub connect_timeout: Time,
    /// Size of the send and receive buffers; with [`congestion::ideal`], also the congestion window.
    pub window: Bytes,
    /// Resolution of timestamps (ns-3: 1 ms). A round trip within one tick is measured as 1 us.
    pub stamp_tick: Time,
    /// Time from an application's write to its first segment (ns-3: 1 ns).
    pub write_delay: Time,
    /// Band of acknowledgements on single-flow connections.
    pub own_reverse_band: ReverseBand,
    /// Band of acknowledgements on the connections of streams.
    pub stream_reverse_band: ReverseBand,
    /// Congestion control.
    pub algorithm: CongestionAlgorithm,
    /// Whether connections negotiate ECN (RFC 3168).
    pub ecn: bool,
    /// Reference for behaviour in which ns-3 differs from the RFCs.
    pub follow: Follow,
    /// Variant of fast recovery.
    pub recovery: Recovery,
    /// Whether the congestion window is reset to the initial window after an idle time longer than the retransmission
    /// timeout (RFC 5681, 4.1).
    pub restart_after_idle: bool,
}

impl TcpConfig {
    /// Returns the parameters of Gao (2020), chapter 5, for a network of `host_count` hosts on links of `rate` and
    /// `delay`: docs/models/packet.md.
    pub fn basic_sim(host_count: u32, rate: Rate, delay: Time) -> Self {
        Self::over(host_count.saturating_mul(2).min(20), rate, delay)
    }

    /// Returns the parameters of [`TcpConfig::basic_sim`], with timers for round trips over `hop_count` hops.
    ///
    /// All timers are fractions or multiples of a deliberately high estimate of the worst round-trip time: for each
    /// hop, 100 times the sum of the serialization time of three 1502-byte packets and the propagation delay.
    pub fn over(hop_count: u32, rate: Rate, delay: Time) -> Self {
        let hop_ps = rate.serialize(Bytes(3 * 1502), 1, 1).map_or(u64::MAX, Time::ps).saturating_add(delay.ps());
        // Each hop counts as at least a nanosecond, the tick of ns-3's timers, because a timer of length zero would
        // expire for ever.
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
            algorithm: CongestionAlgorithm::NewReno(congestion::newreno::Parameters::default()),
            ecn: false,
            follow: Follow::Ns3,
            recovery: Recovery::Pipe,
            restart_after_idle: false,
        }
    }

    /// Returns the parameters with Linux's timers: TCP_RTO_MIN, TCP_DELACK_MIN and TCP_TIMEOUT_INIT of its `net/tcp.h`.
    /// RFC 6298 (2.1) recommends the value of TCP_TIMEOUT_INIT.
    pub fn with_linux_timers(self) -> Self {
        let ms = |count: u64| Time::from_ps(count * 1_000_000_000);
        // The retransmission timeout before the first sample is `initial_rtt`.
        Self { min_rto: ms(200), delayed_ack_timeout: ms(40), initial_rtt: ms(1000), connect_timeout: ms(1000), ..self }
    }

    /// Returns the parameters with another minimum retransmission timeout. Acknowledgements are delayed by at most half
    /// of that timeout. Otherwise a single segment would be retransmitted each time its acknowledgement is delayed.
    pub fn with_min_rto(self, min_rto: Time) -> Self {
        let delayed_ack_timeout = self.delayed_ack_timeout.min(Time::from_ps(min_rto.ps() / 2));
        Self { min_rto, delayed_ack_timeout, ..self }
    }

    #[inline]
    pub(crate) fn initial_window_bytes(&self) -> u64 {
        u64::from(self.initial_window_segments) * u64::from(self.segment_bytes)
    }

    #[inline]
    pub(crate) fn stamp(&self, at_ps: u64) -> u32 {
        (at_ps / self.stamp_tick.ps()) as u32
    }

    /// Returns the size of a packet without payload and with `block_count` SACK blocks, in bytes on the wire.
    #[inline]
    pub(crate) fn ack_bytes(&self, block_count: usize) -> u16 {
        // RFC 2018: the option takes 2 + 8n bytes. The 2 bytes replace padding after the 10 bytes of the timestamp
        // option.
        self.header_bytes + 8 * block_count as u16
    }
}
