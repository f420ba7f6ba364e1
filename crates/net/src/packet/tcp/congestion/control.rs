//! The interface of a congestion control: its parameters, its hooks, and their arguments.
//!
//! Loss detection, recovery and timers belong to the sender and are the same for all algorithms, which differ in these
//! hooks alone.

use crate::units::Time;
use serde::Serialize;

/// Reaction of an algorithm to congestion marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ecn {
    /// No reaction.
    Ignored,
    /// RFC 3168, where connections negotiate ECN: the receiver echoes a mark until the sender has reduced its window
    /// (6.1.3), and a loss in a window of data for which the window was already reduced does not reduce it again
    /// (6.1.2).
    Classic,
    /// RFC 8257, on every connection: the echo identifies the marked packets (3.2), and a loss reduces the window even
    /// after a mark, because the reaction to a mark may have been slight (3.4).
    Scalable,
}

/// The window of a connection, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CongestionWindow {
    pub cwnd: u64,
    pub ssthresh: u64,
    pub segment_bytes: u64,
}

/// An acknowledgement of new data outside of recovery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    pub now_ps: u64,
    /// The latest sample of the round-trip time.
    pub rtt_ns: u64,
    pub srtt_ns: u64,
    /// First byte not acknowledged (SND.UNA).
    pub una: u64,
    /// First byte never sent (SND.NXT).
    pub high: u64,
    /// Number of whole segments that the acknowledgement covers.
    pub segments: u64,
}

/// An acknowledgement on a connection with ECN, and its marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Echo {
    /// First byte not acknowledged (SND.UNA).
    pub una: u64,
    /// First byte never sent (SND.NXT).
    pub high: u64,
    /// Bytes newly acknowledged.
    pub bytes: u64,
    /// Whether the acknowledgement carries ECE.
    pub is_marked: bool,
}

/// A congestion control, with its state for one connection.
pub(crate) trait CongestionControl {
    /// Parameters that a scenario can set; each has a default.
    type Parameters;

    /// Short description of the algorithm: the standard, for an algorithm that has one.
    const SUMMARY: &'static str;
    /// Description of the window's evolution, in Markdown.
    const WINDOW: &'static str;
    /// Reaction to marks.
    const ECN: Ecn = Ecn::Classic;
    /// Whether the first round trip respects the window field of a SYN, which is not scaled (RFC 7323, 2.2).
    const KEEPS_TO_SYN_WINDOW: bool = true;

    /// Creates the state of a new connection with send and receive buffers of `buffer_bytes`.
    fn new(parameters: &Self::Parameters, buffer_bytes: u64) -> Self;

    /// Returns the resolution of timestamps that the algorithm needs; `None` for any.
    fn stamp_tick(_parameters: &Self::Parameters) -> Option<Time> {
        None
    }

    /// Returns the window of a new connection (`bytes`: the initial window) or after a timeout (`bytes`: the loss
    /// window of RFC 5681, 3.1).
    fn start_window(&self, bytes: u64) -> u64 {
        bytes
    }

    /// Grows the window.
    fn on_ack(&mut self, window: &mut CongestionWindow, ack: &Ack);

    /// Processes every acknowledgement of a connection with ECN, before [`CongestionControl::on_ack`] and
    /// [`CongestionControl::on_mark`].
    fn on_echo(&mut self, _echo: &Echo) {}

    /// Runs after an acknowledgement has been processed and `flight_bytes` are in flight.
    fn on_sent(&mut self, _window: &CongestionWindow, _flight_bytes: u64) {}

    /// Returns ssthresh after a loss. `flight_size` is the FlightSize of RFC 5681 or of the simulator that is followed,
    /// `outstanding_bytes` all unacknowledged data.
    fn on_loss(&mut self, window: &CongestionWindow, flight_size: u64, outstanding_bytes: u64) -> u64;

    /// Returns ssthresh after a timeout.
    fn on_timeout(&mut self, window: &CongestionWindow, flight_size: u64) -> u64 {
        self.on_loss(window, flight_size, flight_size)
    }

    /// Returns ssthresh after the first mark in a window of data; `None` leaves the window as it is. RFC 3168, 6.1.2:
    /// the same as after a loss.
    fn on_mark(&mut self, window: &CongestionWindow, outstanding_bytes: u64) -> Option<u64> {
        (Self::ECN != Ecn::Ignored).then(|| self.on_loss(window, outstanding_bytes, outstanding_bytes))
    }
}
