//! DCTCP: RFC 8257. What differs from Reno is the answer to marks, in proportion to how many there are; growth and the
//! answer to losses are Reno's.

/// A connection's state, with the names of RFC 8257, 3.3.
#[derive(Clone, Debug)]
pub(crate) struct Dctcp {
    /// Estimate of the share of bytes that are marked.
    alpha: f64,
    gain: f64,
    /// End of the present observation window.
    window_end: u64,
    bytes_acked: u64,
    bytes_marked: u64,
}

impl Dctcp {
    pub fn new(gain_ppm: u32) -> Self {
        // 4.2: alpha begins at 1, so that the first mark halves.
        Self { alpha: 1.0, gain: f64::from(gain_ppm) * 1e-6, window_end: 0, bytes_acked: 0, bytes_marked: 0 }
    }

    /// 3.3, steps 1 to 8: counts `bytes` newly acknowledged up to `una`.
    pub fn observe(&mut self, una: u64, high: u64, bytes: u64, ece: bool) {
        self.bytes_acked += bytes;
        if ece {
            self.bytes_marked += bytes;
        }
        if una <= self.window_end {
            return;
        }
        let marked = self.bytes_marked as f64 / self.bytes_acked.max(1) as f64;
        self.alpha = self.alpha * (1.0 - self.gain) + self.gain * marked;
        self.window_end = high;
        self.bytes_acked = 0;
        self.bytes_marked = 0;
    }

    /// 3.3, step 9: the window after the first mark of a window, at least two segments.
    pub fn reduce(&self, cwnd: u64, segment_bytes: u64) -> u64 {
        ((cwnd as f64 * (1.0 - self.alpha / 2.0)) as u64).max(2 * segment_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_moves_by_the_gain_once_per_window() {
        let mut dctcp = Dctcp::new(62_500);
        assert_eq!(dctcp.reduce(100_000, 1_000), 50_000);
        // The first acknowledgement ends the window that began at 0: nothing was marked in it.
        dctcp.observe(1_000, 10_000, 1_000, false);
        assert_eq!(dctcp.alpha, 15.0 / 16.0);
        // Up to 10 000 nothing is decided; a quarter of the bytes beyond 1 000 is marked.
        dctcp.observe(4_000, 20_000, 3_000, true);
        dctcp.observe(10_000, 20_000, 6_000, false);
        assert_eq!(dctcp.alpha, 15.0 / 16.0);
        dctcp.observe(13_000, 20_000, 3_000, false);
        assert_eq!(dctcp.alpha, 15.0 / 16.0 * (15.0 / 16.0) + 0.25 / 16.0);
    }

    #[test]
    fn without_marks_alpha_fades_and_the_window_hardly_shrinks() {
        let mut dctcp = Dctcp::new(62_500);
        for window in 1..=200 {
            dctcp.observe(window * 1_000, window * 1_000, 1_000, false);
        }
        assert!(dctcp.alpha < 1e-5 && dctcp.reduce(100_000, 1_000) == 99_999);
        assert_eq!(dctcp.reduce(2_000, 1_000), 2_000);
    }
}
