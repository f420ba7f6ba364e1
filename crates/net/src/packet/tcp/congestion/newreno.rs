//! NewReno: RFC 5681 (slow start, congestion avoidance), as implemented in ns-3.37.

use super::control::{Ack, CongestionControl, CongestionWindow};
use serde::{Deserialize, Serialize};

/// Parameters of NewReno.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Whether the window grows with the segments that are acknowledged (RFC 3465 without its limit L, as in Linux),
    /// instead of with the number of acknowledgements.
    pub byte_counting: bool,
}

/// The state of NewReno for one connection.
#[derive(Clone, Debug)]
pub(crate) struct NewReno {
    counts_bytes: bool,
    /// Bytes acknowledged in congestion avoidance since the window last grew (`bytes_acked` of RFC 3465).
    acknowledged_bytes: u64,
}

impl CongestionControl for NewReno {
    type Parameters = Parameters;
    const SUMMARY: &'static str = "RFC 5681, 6582 and 6675";
    const WINDOW: &'static str = "+1 segment per acknowledgement in slow start, +1 a round trip beyond (half of it with \
                                  delayed acknowledgements, as in ns-3); half of \
                                  [FlightSize](#standards-and-simulators) after a loss";

    fn new(parameters: &Parameters, _: u64) -> Self {
        Self { counts_bytes: parameters.byte_counting, acknowledged_bytes: 0 }
    }

    #[inline]
    fn on_ack(&mut self, window: &mut CongestionWindow, ack: &Ack) {
        if self.counts_bytes {
            self.grow_by_bytes(window, ack.segments);
        } else {
            grow(window, ack.segments);
        }
    }

    fn on_loss(&mut self, window: &CongestionWindow, flight_size: u64, _: u64) -> u64 {
        self.acknowledged_bytes = 0;
        ssthresh(window, flight_size)
    }
}

impl NewReno {
    /// Grows the window by RFC 3465: by every acknowledged segment in slow start, and by one segment for each window of
    /// acknowledged bytes in congestion avoidance.
    fn grow_by_bytes(&mut self, window: &mut CongestionWindow, segments: u64) {
        let CongestionWindow { cwnd, ssthresh, segment_bytes } = window;
        let in_slow_start = ssthresh.saturating_sub(*cwnd).div_ceil(*segment_bytes).min(segments);
        *cwnd += in_slow_start * *segment_bytes;
        self.acknowledged_bytes += (segments - in_slow_start) * *segment_bytes;
        while self.acknowledged_bytes >= *cwnd {
            self.acknowledged_bytes -= *cwnd;
            *cwnd += *segment_bytes;
        }
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
    fn byte_counting_grows_by_acknowledged_segments_then_by_one_per_window() {
        let mut newreno = NewReno::new(&Parameters { byte_counting: true }, 0);
        let mut window = CongestionWindow { cwnd: 10_000, ssthresh: 12_000, segment_bytes: 1_000 };
        newreno.grow_by_bytes(&mut window, 2);
        assert_eq!(window.cwnd, 12_000);
        // In congestion avoidance, 12 segments grow the window by one, however many acknowledgements they take.
        for segments in [2, 2, 5, 2] {
            newreno.grow_by_bytes(&mut window, segments);
        }
        assert_eq!(window.cwnd, 12_000);
        newreno.grow_by_bytes(&mut window, 1);
        assert_eq!((window.cwnd, newreno.acknowledged_bytes), (13_000, 0));
        // An acknowledgement that ends slow start counts its other segments for congestion avoidance.
        window = CongestionWindow { cwnd: 9_000, ssthresh: 10_000, segment_bytes: 1_000 };
        newreno.grow_by_bytes(&mut window, 12);
        assert_eq!((window.cwnd, newreno.acknowledged_bytes), (11_000, 1_000));
    }

    #[test]
    fn half_the_flight_but_two_segments() {
        let window = CongestionWindow { cwnd: 20_000, ssthresh: u64::MAX, segment_bytes: 1_000 };
        assert_eq!(ssthresh(&window, 20_000), 10_000);
        assert_eq!(ssthresh(&window, 3_000), 2_000);
    }
}
