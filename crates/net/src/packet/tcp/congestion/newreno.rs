//! NewReno: RFC 5681 (slow start, congestion avoidance), with ns-3.37's reading of it.

/// The window after an acknowledgement of `segments` new segments.
///
/// Differs from RFC 3465: an acknowledgement of two segments grows slow start by one, as in RFC 5681 (3.1) with
/// N >= SMSS; what slow start has not used of it then counts for congestion avoidance.
#[inline]
pub fn grow(mut cwnd: u64, ssthresh: u64, segment_bytes: u64, mut segments: u64) -> u64 {
    if cwnd < ssthresh && segments > 0 {
        cwnd += segment_bytes;
        segments -= 1;
    }
    if cwnd >= ssthresh && segments > 0 {
        // RFC 5681, equation (3).
        cwnd += (segment_bytes * segment_bytes / cwnd).max(1);
    }
    cwnd
}

/// RFC 5681, equation (4).
pub fn ssthresh(flight_bytes: u64, segment_bytes: u64) -> u64 {
    (flight_bytes / 2).max(2 * segment_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_start_by_one_segment_then_one_per_window() {
        assert_eq!(grow(10_000, u64::MAX, 1_000, 2), 11_000);
        assert_eq!(grow(10_000, 10_000, 1_000, 2), 10_100);
        // Slow start ends inside: one segment, and the rest avoids congestion.
        assert_eq!(grow(9_500, 10_000, 1_000, 2), 10_500 + 95);
        assert_eq!(grow(10_000, u64::MAX, 1_000, 0), 10_000);
    }

    #[test]
    fn half_the_flight_but_two_segments() {
        assert_eq!(ssthresh(20_000, 1_000), 10_000);
        assert_eq!(ssthresh(3_000, 1_000), 2_000);
    }
}
