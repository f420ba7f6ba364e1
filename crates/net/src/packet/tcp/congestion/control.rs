//! The interface of a congestion control: its parameters and hooks, and what these receive of a connection.
//!
//! Loss detection, recovery and timers are the sender's, the same for all: two algorithms differ in these hooks alone.

use crate::units::Time;
use serde::Serialize;

/// How an algorithm reacts to congestion marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ecn {
    /// Not at all.
    Ignored,
    /// RFC 3168, where connections negotiate ECN: the receiver echoes a mark until the sender has reduced its window
    /// (6.1.3), and a loss in a window of data that was reduced already does not reduce it again (6.1.2).
    Classic,
    /// RFC 8257, on every connection: the echo says which packets were marked (3.2), and a loss reduces the window even
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
    /// Whole segments that it acknowledges.
    pub segments: u64,
}

/// What an acknowledgement on a connection with ECN says of marks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Echo {
    /// First byte not acknowledged (SND.UNA).
    pub una: u64,
    /// First byte never sent (SND.NXT).
    pub high: u64,
    /// Bytes newly acknowledged.
    pub bytes: u64,
    /// Whether it carries ECE.
    pub is_marked: bool,
}

/// A congestion control, with its state of one connection.
pub(crate) trait CongestionControl {
    /// What a scenario can set of it; each has a default.
    type Parameters;

    /// What it is, in a few words: the standard, for one that has a standard.
    const SUMMARY: &'static str;
    /// How the window moves, in Markdown.
    const WINDOW: &'static str;
    /// How it reacts to marks.
    const ECN: Ecn = Ecn::Classic;
    /// Whether the first round trip keeps to the window field of a SYN, which is not scaled (RFC 7323, 2.2).
    const KEEPS_TO_SYN_WINDOW: bool = true;

    /// The state of a new connection with send and receive buffers of `buffer_bytes`.
    fn new(parameters: &Self::Parameters, buffer_bytes: u64) -> Self;

    /// Resolution of timestamps that it needs; `None` if any will do.
    fn stamp_tick(_parameters: &Self::Parameters) -> Option<Time> {
        None
    }

    /// The window of a new connection (`bytes`: the initial window) and after a timeout (the loss window of RFC 5681,
    /// 3.1).
    fn start_window(&self, bytes: u64) -> u64 {
        bytes
    }

    /// Grows the window.
    fn on_ack(&mut self, window: &mut CongestionWindow, ack: &Ack);

    /// Every acknowledgement of a connection with ECN, before [`CongestionControl::on_ack`] and
    /// [`CongestionControl::on_mark`].
    fn on_echo(&mut self, _echo: &Echo) {}

    /// An acknowledgement has been processed: `flight_bytes` are now in flight.
    fn on_sent(&mut self, _window: &CongestionWindow, _flight_bytes: u64) {}

    /// ssthresh after a loss. `flight_size` is RFC 5681's FlightSize or the simulator's that is followed,
    /// `outstanding_bytes` all that is not acknowledged.
    fn on_loss(&mut self, window: &CongestionWindow, flight_size: u64, outstanding_bytes: u64) -> u64;

    /// ssthresh after a timeout.
    fn on_timeout(&mut self, window: &CongestionWindow, flight_size: u64) -> u64 {
        self.on_loss(window, flight_size, flight_size)
    }

    /// ssthresh after the first mark in a window of data; `None` leaves the window as it is. RFC 3168, 6.1.2: as after a
    /// loss.
    fn on_mark(&mut self, window: &CongestionWindow, outstanding_bytes: u64) -> Option<u64> {
        (Self::ECN != Ecn::Ignored).then(|| self.on_loss(window, outstanding_bytes, outstanding_bytes))
    }
}
