//! Round-trip time and retransmission timeout: RFC 6298 in whole nanoseconds.

/// Estimator of SRTT, RTTVAR and RTO.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    srtt_ns: i64,
    rttvar_ns: i64,
    latest_ns: i64,
    sampled: bool,
}

impl Rtt {
    /// Creates the estimator. Until the first sample, SRTT is `initial_ns` and RTTVAR is 0.
    pub fn new(initial_ns: u64) -> Self {
        Self { srtt_ns: initial_ns as i64, rttvar_ns: 0, latest_ns: initial_ns as i64, sampled: false }
    }

    /// Applies a sample: RFC 6298 (2.2) and (2.3), alpha = 1/8, beta = 1/4.
    pub fn sample(&mut self, rtt_ns: u64) {
        let rtt_ns = rtt_ns as i64;
        self.latest_ns = rtt_ns;
        if !self.sampled {
            self.sampled = true;
            self.srtt_ns = rtt_ns;
            self.rttvar_ns = rtt_ns / 2;
            return;
        }
        let error = rtt_ns - self.srtt_ns;
        self.srtt_ns = ((self.srtt_ns << 3) + error) >> 3;
        self.rttvar_ns = ((self.rttvar_ns << 2) + error.abs() - self.rttvar_ns) >> 2;
    }

    /// Returns whether a sample has been applied.
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }

    /// Returns the latest sample.
    pub fn latest_ns(&self) -> u64 {
        self.latest_ns as u64
    }

    /// Returns SRTT.
    pub fn srtt_ns(&self) -> u64 {
        self.srtt_ns as u64
    }

    /// Returns SRTT + max(G, 4 RTTVAR) (RFC 6298 (2.3)) without the lower limit of (2.4).
    pub fn timeout_ns(&self, granularity_ns: u64) -> u64 {
        self.srtt_ns as u64 + granularity_ns.max(4 * self.rttvar_ns as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_sample_sets_and_later_ones_smooth() {
        let mut rtt = Rtt::new(1_000);
        assert_eq!(rtt.timeout_ns(1), 1_001);
        rtt.sample(800);
        assert_eq!(rtt.timeout_ns(1), 800 + 4 * 400);
        rtt.sample(1_600);
        // Expected: SRTT = 800 + 800/8 = 900, and RTTVAR = 400 + (800 - 400)/4 = 500.
        assert_eq!(rtt.timeout_ns(1), 900 + 4 * 500);
    }
}
