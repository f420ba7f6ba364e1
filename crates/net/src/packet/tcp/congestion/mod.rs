//! How a congestion window grows and shrinks.

mod ack;
pub(crate) mod cubic;
pub(crate) mod dctcp;
pub(crate) mod hystart;
pub(crate) mod newreno;

pub(crate) use ack::Ack;

use super::TcpConfig;
use cubic::Cubic;
use dctcp::Dctcp;
use hystart::Heard;

/// Which algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionAlgorithm {
    /// RFC 5681 and 6582.
    #[default]
    NewReno,
    /// RFC 9438.
    Cubic {
        /// Whether slow start ends where acknowledgements say so (HyStart). It needs round trips as fine as they are:
        /// [`TcpConfig::stamp_tick`].
        hystart: bool,
        /// Whether slow start grows by all segments that an acknowledgement covers (RFC 3465 without its limit L, as in
        /// Linux) and not by one.
        byte_counting: bool,
    },
    /// RFC 8257. It needs [`TcpConfig::ecn`], and queues that mark.
    Dctcp {
        /// Weight g of a new observation, in parts per million (RFC 8257, 4.2: 1/16).
        gain_ppm: u32,
    },
    /// A window of [`TcpConfig::window`] from the first segment to the last, whatever is lost or marked.
    Ideal,
}

/// The algorithm of one connection, with its state: two words, because every acknowledgement asks which one it is.
#[derive(Clone, Debug)]
pub(crate) enum Congestion {
    NewReno,
    Cubic(Box<Cubic>),
    Dctcp(Box<Dctcp>),
    Ideal { window_bytes: u64 },
}

impl Congestion {
    pub fn new(config: &TcpConfig) -> Self {
        match config.algorithm {
            CongestionAlgorithm::NewReno => Self::NewReno,
            CongestionAlgorithm::Cubic { hystart, byte_counting } => {
                Self::Cubic(Box::new(Cubic::new(hystart, byte_counting)))
            }
            CongestionAlgorithm::Dctcp { gain_ppm } => Self::Dctcp(Box::new(Dctcp::new(gain_ppm))),
            CongestionAlgorithm::Ideal => Self::Ideal { window_bytes: config.window.0 },
        }
    }

    /// The window to begin with, and to begin again with after a timeout: `bytes`, but for
    /// [`CongestionAlgorithm::Ideal`].
    pub fn restart(&self, bytes: u64) -> u64 {
        match self {
            Self::NewReno | Self::Cubic(_) | Self::Dctcp(_) => bytes,
            Self::Ideal { window_bytes } => *window_bytes,
        }
    }

    /// Whether an acknowledgement ends slow start, though nothing is lost or marked.
    #[inline]
    pub fn ends_slow_start(&mut self, ack: Heard) -> bool {
        match self {
            Self::Cubic(cubic) => cubic.hystart.as_mut().is_some_and(|hystart| hystart.is_over(ack)),
            Self::NewReno | Self::Dctcp(_) | Self::Ideal { .. } => false,
        }
    }

    /// The window after an acknowledgement.
    #[inline]
    pub fn grow(&mut self, cwnd: u64, ssthresh: u64, segment_bytes: u64, ack: Ack) -> u64 {
        match self {
            Self::NewReno | Self::Dctcp(_) => newreno::grow(cwnd, ssthresh, segment_bytes, ack.segments),
            Self::Cubic(cubic) => cubic.grow(cwnd, ssthresh, segment_bytes, ack),
            Self::Ideal { .. } => cwnd,
        }
    }

    /// Takes note of how full the window is once an acknowledgement has been answered.
    #[inline]
    pub fn on_sent(&mut self, cwnd: u64, flight_bytes: u64, segment_bytes: u64) {
        if let Self::Cubic(cubic) = self {
            cubic.on_sent(flight_bytes + segment_bytes > cwnd);
        }
    }

    /// ssthresh after a loss. `flight_bytes` is RFC 5681's FlightSize or what a simulator takes for it, `outstanding_bytes`
    /// all that is not acknowledged.
    pub fn on_loss(&mut self, cwnd: u64, flight_bytes: u64, outstanding_bytes: u64, segment_bytes: u64) -> u64 {
        match self {
            // RFC 8257, 3.4: DCTCP answers a loss as any TCP.
            Self::NewReno | Self::Dctcp(_) => newreno::ssthresh(flight_bytes, segment_bytes),
            Self::Cubic(cubic) => cubic.reduce(cwnd, outstanding_bytes, segment_bytes),
            Self::Ideal { window_bytes } => *window_bytes,
        }
    }

    /// ssthresh after a timeout.
    pub fn on_timeout(&mut self, cwnd: u64, flight_bytes: u64, segment_bytes: u64) -> u64 {
        match self {
            Self::NewReno | Self::Dctcp(_) => newreno::ssthresh(flight_bytes, segment_bytes),
            Self::Cubic(cubic) => cubic.on_timeout(cwnd, flight_bytes, segment_bytes),
            Self::Ideal { window_bytes } => *window_bytes,
        }
    }

    /// Counts `bytes` newly acknowledged up to `una`, with or without ECE; `high` is the first byte never sent.
    #[inline]
    pub fn on_echo(&mut self, una: u64, high: u64, bytes: u64, ece: bool) {
        if let Self::Dctcp(dctcp) = self {
            dctcp.observe(una, high, bytes, ece);
        }
    }

    /// ssthresh after a congestion mark, the first of its window; `None` if marks do not matter.
    pub fn on_mark(&mut self, cwnd: u64, outstanding_bytes: u64, segment_bytes: u64) -> Option<u64> {
        match self {
            Self::NewReno => Some(newreno::ssthresh(outstanding_bytes, segment_bytes)),
            Self::Cubic(cubic) => Some(cubic.reduce(cwnd, outstanding_bytes, segment_bytes)),
            Self::Dctcp(dctcp) => Some(dctcp.reduce(cwnd, segment_bytes)),
            Self::Ideal { .. } => None,
        }
    }

    /// Whether a loss in a window that a mark has reduced already reduces it once more. By RFC 3168, 6.1.2, it does
    /// not; by RFC 8257, 3.4, it does, because a mark's answer may have been slight.
    pub fn answers_loss_after_mark(&self) -> bool {
        matches!(self, Self::Dctcp(_))
    }
}
