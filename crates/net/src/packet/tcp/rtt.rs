//! Round-trip time and retransmission timeout: RFC 6298 in whole nanoseconds.

use crate::packet::state::Writer;

/// SRTT, RTTVAR and RTO.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    srtt_ns: i64,
    rttvar_ns: i64,
    latest_ns: i64,
    /// The longest sample.
    most_us: u32,
    sampled: bool,
}

impl Rtt {
    /// Before the first sample, the estimate is `initial_ns` and its variation 0.
    pub fn new(initial_ns: u64) -> Self {
        Self { srtt_ns: initial_ns as i64, rttvar_ns: 0, latest_ns: initial_ns as i64, most_us: 0, sampled: false }
    }

    /// RFC 6298 (2.2) and (2.3), alpha = 1/8, beta = 1/4.
    pub fn sample(&mut self, rtt_ns: u64) {
        self.most_us = self.most_us.max(rtt_ns.div_ceil(1_000) as u32);
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

    /// Whether there has been a sample.
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }

    /// The last sample.
    pub fn latest_ns(&self) -> u64 {
        self.latest_ns as u64
    }

    /// SRTT.
    pub fn srtt_ns(&self) -> u64 {
        self.srtt_ns as u64
    }

    /// A bound of [`Rtt::timeout_ns`] by the samples so far, whatever fraction of a tick each was rounded by; `None`
    /// before the first one.
    ///
    /// With samples up to R, `RTTVAR / R <= 13/16 - (SRTT / R - 1/2)^2` holds after the first one, and if it holds before
    /// a sample it does after it; so SRTT + 4 RTTVAR is at most 61/16 R, of which 4 R is more by any rounding.
    pub fn timeout_bound_ns(&self, tick_ns: u64) -> Option<u64> {
        self.sampled.then_some(4 * (u64::from(self.most_us) * 1_000 + tick_ns))
    }

    pub fn write_state(&self, writer: &mut Writer) {
        let Self { srtt_ns, rttvar_ns, latest_ns, most_us: _, sampled } = *self;
        writer.flag(sampled);
        for estimate in [srtt_ns, rttvar_ns, latest_ns] {
            writer.word(estimate as u64);
        }
    }

    /// SRTT + max(G, 4 RTTVAR) (RFC 6298 (2.3)), without the minimum of (2.4).
    pub fn timeout_ns(&self, granularity_ns: u64) -> u64 {
        self.srtt_ns as u64 + granularity_ns.max(4 * self.rttvar_ns as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_timeout_has_a_bound(samples in prop::collection::vec(prop_oneof![Just(0), Just(9), 0_u64..9], 1..200)) {
            let mut rtt = Rtt::new(1_000);
            let ms = |ticks: u64| if ticks == 0 { 1_000 } else { ticks * 1_000_000 };
            for &sample in &samples {
                rtt.sample(ms(sample));
                // A bound by its own samples is one by those of any other phase.
                let bound_ns = rtt.timeout_bound_ns(0).expect("there was a sample");
                prop_assert!(rtt.timeout_ns(1) <= bound_ns, "{rtt:?}");
            }
        }
    }

    #[test]
    fn the_first_sample_sets_and_later_ones_smooth() {
        let mut rtt = Rtt::new(1_000);
        assert_eq!(rtt.timeout_ns(1), 1_001);
        rtt.sample(800);
        assert_eq!(rtt.timeout_ns(1), 800 + 4 * 400);
        rtt.sample(1_600);
        // SRTT 800 + 800/8 = 900; RTTVAR 400 + (800 - 400)/4 = 500.
        assert_eq!(rtt.timeout_ns(1), 900 + 4 * 500);
    }
}
