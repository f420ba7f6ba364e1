//! The interface of a congestion control algorithm: its parameters, its hooks, and their arguments.
//!
//! Algorithms differ only in these hooks. Loss detection, recovery and timers are the same for all and belong to the
//! sender.

use crate::units::Time;
use serde::Serialize;

/// Reaction of an algorithm to congestion marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ecn {
    /// No reaction.
    Ignored,
    /// ECN as in RFC 3168, if the connection has negotiated it. The receiver echoes a mark until the sender has reduced
    /// its window (6.1.3). The window is reduced at most once per window of data, for marks and losses together
    /// (6.1.2).
    Classic,
    /// ECN as in RFC 8257, on every connection. The echo identifies the marked packets (3.2). A loss reduces the window
    /// even after a mark, because the reduction after a mark may have been small (3.4).
    Scalable,
}

/// The window of a connection, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CongestionWindow {
    pub cwnd: u64,
    pub ssthresh: u64,
    pub segment_bytes: u64,
}

/// An acknowledgement of new data outside recovery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    pub now_ps: u64,
    /// Latest sample of the round-trip time.
    pub rtt_ns: u64,
    pub srtt_ns: u64,
    /// First unacknowledged byte (SND.UNA).
    pub una: u64,
    /// First byte never sent (SND.NXT).
    pub high: u64,
    /// Number of whole segments that the acknowledgement covers.
    pub segments: u64,
}

/// An acknowledgement on a connection with ECN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Echo {
    /// First unacknowledged byte (SND.UNA).
    pub una: u64,
    /// First byte never sent (SND.NXT).
    pub high: u64,
    /// Number of newly acknowledged bytes.
    pub bytes: u64,
    /// Whether the acknowledgement carries ECE.
    pub is_marked: bool,
}

/// A congestion control algorithm, with its state for one connection.
pub(crate) trait CongestionControl {
    /// Parameters that a scenario can set; each has a default.
    type Parameters;

    /// Short description of the algorithm: the RFCs that define it, if there are any.
    const SUMMARY: &'static str;
    /// Description of the window's evolution, in Markdown.
    const WINDOW: &'static str;
    /// Reaction to marks.
    const ECN: Ecn = Ecn::Classic;
    /// Whether the sender respects the window field of the SYN during the first round trip. The field is at most 65,535
    /// bytes, because it is not scaled (RFC 7323, 2.2).
    const KEEPS_TO_SYN_WINDOW: bool = true;

    /// Creates the state of a new connection with send and receive buffers of `buffer_bytes`.
    fn new(parameters: &Self::Parameters, buffer_bytes: u64) -> Self;

    /// Returns the resolution of timestamps that the algorithm needs; `None` if any resolution will do.
    fn stamp_tick(_parameters: &Self::Parameters) -> Option<Time> {
        None
    }

    /// Returns the window of a new connection or after a timeout. `bytes` is RFC 5681's initial window or its loss
    /// window (3.1), respectively.
    fn start_window(&self, bytes: u64) -> u64 {
        bytes
    }

    /// Grows the window.
    fn on_ack(&mut self, window: &mut CongestionWindow, ack: &Ack);

    /// Processes the ECN information of an acknowledgement, before [`CongestionControl::on_ack`] and
    /// [`CongestionControl::on_mark`]. The sender calls this hook for every acknowledgement on a connection with ECN.
    fn on_echo(&mut self, _echo: &Echo) {}

    /// Runs after the sender has processed an acknowledgement and sent data; `flight_bytes` are then in flight.
    fn on_sent(&mut self, _window: &CongestionWindow, _flight_bytes: u64) {}

    /// Returns ssthresh after a loss. `flight_size` is the FlightSize of RFC 5681, or its counterpart in ns-3 with
    /// `Follow::Ns3`. `outstanding_bytes` are all unacknowledged bytes.
    fn on_loss(&mut self, window: &CongestionWindow, flight_size: u64, outstanding_bytes: u64) -> u64;

    /// Returns ssthresh after a timeout.
    fn on_timeout(&mut self, window: &CongestionWindow, flight_size: u64) -> u64 {
        self.on_loss(window, flight_size, flight_size)
    }

    /// Returns ssthresh after the first mark in a window of data, or `None` if the window stays the same. By default, a
    /// mark has the effect of a loss (RFC 3168, 6.1.2).
    fn on_mark(&mut self, window: &CongestionWindow, outstanding_bytes: u64) -> Option<u64> {
        (Self::ECN != Ecn::Ignored).then(|| self.on_loss(window, outstanding_bytes, outstanding_bytes))
    }
}
