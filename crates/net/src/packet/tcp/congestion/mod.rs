//! How a congestion window grows and shrinks.

pub(crate) mod newreno;

/// Which algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 5681 and 6582.
    #[default]
    NewReno,
}

/// The algorithm of one connection, with its state.
#[derive(Clone, Debug)]
pub(crate) enum Congestion {
    NewReno,
}

impl Congestion {
    pub fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::NewReno => Self::NewReno,
        }
    }

    /// The window after an acknowledgement of `segments` new segments.
    #[inline]
    pub fn grow(&mut self, cwnd: u64, ssthresh: u64, segment_bytes: u64, segments: u64) -> u64 {
        match self {
            Self::NewReno => newreno::grow(cwnd, ssthresh, segment_bytes, segments),
        }
    }

    /// ssthresh after a loss, with `flight_bytes` outstanding.
    pub fn ssthresh(&mut self, _cwnd: u64, flight_bytes: u64, segment_bytes: u64) -> u64 {
        match self {
            Self::NewReno => newreno::ssthresh(flight_bytes, segment_bytes),
        }
    }
}
