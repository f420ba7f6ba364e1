//! NewReno: RFC 5681 (slow start, congestion avoidance), as implemented in ns-3.37.

use super::control::{Ack, CongestionControl, CongestionWindow};
use serde::{Deserialize, Serialize};

/// NewReno has no parameters.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {}

/// NewReno has no state besides the window.
#[derive(Clone, Debug)]
pub(crate) struct NewReno;

impl CongestionControl for NewReno {
    type Parameters = Parameters;
    const SUMMARY: &'static str = "RFC 5681, 6582 and 6675";
    const WINDOW: &'static str = "+1 segment per acknowledgement in slow start, +1 a round trip beyond (half of it with \
                                  delayed acknowledgements, as in ns-3); half of \
                                  [FlightSize](#standards-and-simulators) after a loss";

    fn new(_: &Parameters, _: u64) -> Self {
        Self
    }

    #[inline]
    fn on_ack(&mut self, window: &mut CongestionWindow, ack: &Ack) {
        grow(window, ack.segments);
    }

    fn on_loss(&mut self, window: &CongestionWindow, flight_size: u64, _: u64) -> u64 {
        ssthresh(window, flight_size)
    }
}

/// Grows the window after an acknowledgement of `segments` new segments.
///
/// Differs from RFC 3465: in slow start, an acknowledgement grows the window by one segment even if it covers more, as
/// in RFC 5681 (3.1) with N >= SMSS. If this ends slow start, the remaining segments count for congestion avoidance.
#[inline]
pub(super) fn grow(window: &mut CongestionWindow, mut segments: u64) {
    let CongestionWindow { cwnd, ssthresh, segment_bytes } = window;
    if *cwnd < *ssthresh && segments > 0 {
        *cwnd += *segment_bytes;
        segments -= 1;
    }
    if *cwnd >= *ssthresh && segments > 0 {
        // RFC 5681, equation (3).
        *cwnd += (*segment_bytes * *segment_bytes / *cwnd).max(1);
    }
}

/// Returns ssthresh by RFC 5681, equation (4).
pub(super) fn ssthresh(window: &CongestionWindow, flight_size: u64) -> u64 {
    (flight_size / 2).max(2 * window.segment_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(cwnd: u64, ssthresh: u64, segments: u64) -> u64 {
        let mut window = CongestionWindow { cwnd, ssthresh, segment_bytes: 1_000 };
        grow(&mut window, segments);
        window.cwnd
    }

    #[test]
    fn slow_start_by_one_segment_then_one_per_window() {
        assert_eq!(grown(10_000, u64::MAX, 2), 11_000);
        assert_eq!(grown(10_000, 10_000, 2), 10_100);
        // Slow start ends within the acknowledgement: one segment counts for slow start, the other for congestion
        // avoidance.
        assert_eq!(grown(9_500, 10_000, 2), 10_500 + 95);
        assert_eq!(grown(10_000, u64::MAX, 0), 10_000);
    }

    #[test]
    fn half_the_flight_but_two_segments() {
        let window = CongestionWindow { cwnd: 20_000, ssthresh: u64::MAX, segment_bytes: 1_000 };
        assert_eq!(ssthresh(&window, 20_000), 10_000);
        assert_eq!(ssthresh(&window, 3_000), 2_000);
    }
}
