//! HyStart: an exit from slow start before losses or marks occur. Ha & Rhee, *Taming the elephants: New TCP slow start*
//! (Computer Networks 55(9), 2011), with the constants of Linux's CUBIC, which includes HyStart.
//!
//! Slow start ends on the first of two signs:
//!
//! ```text
//! ack train   acknowledgements no more than 2 ms apart have come for longer than half the minimum round-trip time:
//!             the data in flight fills the path
//! delay       the minimum round-trip time of this round, after at least eight samples, exceeds the minimum of the
//!             connection by an eighth, but by at least 4 ms and at most 16 ms
//! ```
//!
//! With round trips under a millisecond, only ack trains end slow start. Differs from HyStart++ (RFC 9406), which has
//! no ack trains and confirms an exit by five rounds of slower growth. The older version is implemented because hosts
//! run it. Linux adds an allowance for delayed acknowledgements to the minimum round-trip time of the first sign.

use crate::packet::tcp::congestion::control::Ack;

/// Minimum window at which HyStart ends slow start, in segments.
const WINDOW_LOW: u64 = 16;
/// Maximum interval between two acknowledgements of an ack train, in ps.
const APART_PS: u64 = 2_000_000_000;
/// Number of samples in a round before its minimum round-trip time is compared.
const SAMPLES: u32 = 8;
/// Bounds of the delay threshold, in ns. The threshold is an eighth of the minimum round-trip time.
const DELAY_NS: std::ops::RangeInclusive<u64> = 4_000_000..=16_000_000;

/// Round-trip times and ack trains of one connection.
#[derive(Clone, Debug)]
pub(crate) struct HyStart {
    /// Minimum round-trip time so far.
    least_ns: u64,
    /// Minimum round-trip time in this round.
    round_ns: u64,
    samples: u32,
    /// End of the round: the first unsent byte at the beginning of the round.
    round_end: u64,
    round_at_ps: u64,
    /// Time of the last acknowledgement in the ack train that began with the round.
    train_ps: u64,
}

impl Default for HyStart {
    fn default() -> Self {
        Self { least_ns: u64::MAX, round_ns: u64::MAX, samples: 0, round_end: 0, round_at_ps: 0, train_ps: 0 }
    }
}

impl HyStart {
    /// Returns whether an acknowledgement of new data ends slow start at a window of `window` segments. `allowance_ns` is
    /// the delay of acknowledgements that does not count as a full path.
    pub fn ends_slow_start(&mut self, ack: &Ack, window: u64, allowance_ns: u64) -> bool {
        self.least_ns = self.least_ns.min(ack.rtt_ns);
        if ack.una > self.round_end {
            let least_ns = self.least_ns;
            *self = Self {
                least_ns,
                round_end: ack.high,
                round_at_ps: ack.now_ps,
                train_ps: ack.now_ps,
                ..Self::default()
            };
        }
        let in_train = ack.now_ps - self.train_ps <= APART_PS;
        if in_train {
            self.train_ps = ack.now_ps;
        }
        // Every sample of a round counts, so that slow start does not end when the round-trip time falls back to its
        // minimum. Linux does this since June 2020 ("tcp_cubic: fix spurious HYSTART_DELAY exit upon drop in min RTT").
        self.round_ns = self.round_ns.min(ack.rtt_ns);
        let is_sampled = self.samples == SAMPLES;
        self.samples += u32::from(!is_sampled);
        if window < WINDOW_LOW {
            return false;
        }
        let fills = in_train && (ack.now_ps - self.round_at_ps) / 1_000 > (self.least_ns + allowance_ns) / 2;
        let delay_ns = (self.least_ns / 8).clamp(*DELAY_NS.start(), *DELAY_NS.end());
        fills || (is_sampled && self.round_ns > self.least_ns + delay_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn acknowledged(now_ps: u64, rtt_ns: u64, una: u64, high: u64) -> Ack {
        Ack { now_ps, rtt_ns, srtt_ns: rtt_ns, una, high, segments: 2 }
    }

    /// Simulates one round of `count` acknowledgements of two segments each, `apart_ns` apart, with a constant
    /// round-trip time. Returns the index of the acknowledgement that ends slow start.
    fn round(hystart: &mut HyStart, at_ns: u64, una: &mut u64, count: u64, apart_ns: u64, rtt_ns: u64) -> Option<u64> {
        let high = *una + 2 * count;
        (0..count).find(|index| {
            *una += 2;
            let now_ps = (at_ns + index * apart_ns) * 1_000;
            // The window grows from 2 · count by one segment per acknowledgement.
            hystart.ends_slow_start(&acknowledged(now_ps, rtt_ns, *una, high), 2 * count + index, 0)
        })
    }

    #[test]
    fn a_train_of_half_a_round_trip_ends_it() {
        // The round trip is 10 ms, and acknowledgements are 0.4 ms apart. The 13th acknowledgement after the first is
        // more than half a round trip after it.
        let (mut hystart, mut una) = (HyStart::default(), 0);
        assert_eq!(round(&mut hystart, 0, &mut una, 10, 400_000, 10 * MS), None, "3.6 ms are no half");
        assert_eq!(round(&mut hystart, 10 * MS, &mut una, 20, 400_000, 10 * MS), Some(13));
        // Acknowledgements more than 2 ms apart form no train, however many there are.
        let (mut hystart, mut una) = (HyStart::default(), 0);
        assert_eq!(round(&mut hystart, 0, &mut una, 40, 2_000_001, 10 * MS), None);
    }

    #[test]
    fn a_round_trip_longer_by_an_eighth_ends_it_but_4_ms_are_needed() {
        for (least_ms, enough_ns) in [(10, 4 * MS), (80, 10 * MS), (400, 16 * MS)] {
            for (more_ns, over) in [(enough_ns, None), (enough_ns + 1, Some(8))] {
                let (mut hystart, mut una) = (HyStart::default(), 0);
                assert_eq!(round(&mut hystart, 0, &mut una, 16, 1_000, least_ms * MS), None);
                let found = round(&mut hystart, 1_000 * MS, &mut una, 32, 1_000, least_ms * MS + more_ns);
                assert_eq!(found, over, "the ninth sample decides: {least_ms} ms and {more_ns} ns");
            }
        }
    }

    #[test]
    fn a_round_trip_that_falls_does_not_end_it() {
        // A burst of other traffic causes eight round-trip times of 20 ms. Then the round-trip time returns to its
        // minimum of 10 ms, or falls below it.
        for falls_to_ms in [10, 5] {
            let (mut hystart, mut una) = (HyStart::default(), 0);
            assert_eq!(round(&mut hystart, 0, &mut una, 16, 1_000, 10 * MS), None);
            let ack = |rtt_ns, index| acknowledged(MS * 1_000_000 + index, rtt_ns, 33, 96);
            let found: Vec<bool> = (0..8).map(|index| hystart.ends_slow_start(&ack(20 * MS, index), 32, 0)).collect();
            assert!(
                !found.contains(&true) && !hystart.ends_slow_start(&ack(falls_to_ms * MS, 8), 32, 0),
                "{falls_to_ms} ms"
            );
        }
    }

    #[test]
    fn it_ends_no_window_below_16_segments() {
        let (mut hystart, mut una) = (HyStart::default(), 0);
        // The round has seven acknowledgements. The window is 14 segments at the first, 16 at the third, 20 at the last
        // one.
        assert_eq!(round(&mut hystart, 0, &mut una, 7, 1_900_000, 3 * MS), Some(2));
        let (mut hystart, mut una) = (HyStart::default(), 0);
        assert_eq!(round(&mut hystart, 0, &mut una, 5, 1_900_000, 3 * MS), None);
    }
}
