//! HyStart: where slow start ends before anything is lost or marked. Ha & Rhee, *Taming the elephants: New TCP slow
//! start* (Computer Networks 55(9), 2011), with the constants of Linux's CUBIC, of which it is a part.
//!
//! ```text
//! ack train   acknowledgements closer than 2 ms last longer than half the least round trip: they fill it
//! delay       the least round trip of a round, once it has had eight, is above the least of all by an eighth, 4 to
//!             16 ms
//! ```
//!
//! Where round trips are under a millisecond, only trains end slow start. Differs from HyStart++ (RFC 9406), which
//! has no trains and confirms an exit by five rounds of slower growth: hosts run this one. Left out: Linux's
//! allowance for segments that the network card splits.

use crate::packet::tcp::congestion::control::Ack;

/// Least window in segments that it ends.
const WINDOW_LOW: u64 = 16;
/// Greatest interval between two acknowledgements of a train.
const APART_PS: u64 = 2_000_000_000;
/// Samples of a round before its least round trip is compared.
const SAMPLES: u32 = 8;
/// An eighth of the least round trip counts as a delay, within these bounds.
const DELAY_NS: std::ops::RangeInclusive<u64> = 4_000_000..=16_000_000;

/// Round trips and trains of one connection.
#[derive(Clone, Debug)]
pub(crate) struct HyStart {
    /// Least round trip of all.
    least_ns: u64,
    /// Least of this round, and how many samples there were.
    round_ns: u64,
    samples: u32,
    /// The round ends when what had been sent at its beginning is acknowledged.
    round_end: u64,
    round_at_ps: u64,
    /// The last acknowledgement of the train that began with the round.
    train_ps: u64,
}

impl Default for HyStart {
    fn default() -> Self {
        Self { least_ns: u64::MAX, round_ns: u64::MAX, samples: 0, round_end: 0, round_at_ps: 0, train_ps: 0 }
    }
}

impl HyStart {
    /// Whether an acknowledgement of new data ends slow start at a window of `window` segments.
    pub fn ends_slow_start(&mut self, ack: &Ack, window: u64) -> bool {
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
        // Linux, since June 2020 ("tcp_cubic: fix spurious HYSTART_DELAY exit upon drop in min RTT"): every sample of a
        // round counts, so that a fall back to the least does not end slow start.
        self.round_ns = self.round_ns.min(ack.rtt_ns);
        let is_sampled = self.samples == SAMPLES;
        self.samples += u32::from(!is_sampled);
        if window < WINDOW_LOW {
            return false;
        }
        let fills = in_train && (ack.now_ps - self.round_at_ps) / 1_000 > self.least_ns / 2;
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

    /// One round: `count` acknowledgements of two segments, `apart_ns` from each other, with one round trip. Returns
    /// which of them ends slow start.
    fn round(hystart: &mut HyStart, at_ns: u64, una: &mut u64, count: u64, apart_ns: u64, rtt_ns: u64) -> Option<u64> {
        let high = *una + 2 * count;
        (0..count).find(|index| {
            *una += 2;
            let now_ps = (at_ns + index * apart_ns) * 1_000;
            // The window grows by one for each.
            hystart.ends_slow_start(&acknowledged(now_ps, rtt_ns, *una, high), 2 * count + index)
        })
    }

    #[test]
    fn a_train_of_half_a_round_trip_ends_it() {
        // A round trip of 10 ms and acknowledgements 0.4 ms apart: the first beyond 5 ms is the 13th after the first.
        let (mut hystart, mut una) = (HyStart::default(), 0);
        assert_eq!(round(&mut hystart, 0, &mut una, 10, 400_000, 10 * MS), None, "3.6 ms are no half");
        assert_eq!(round(&mut hystart, 10 * MS, &mut una, 20, 400_000, 10 * MS), Some(13));
        // Further apart than 2 ms they are no train, however long they last.
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
        // Eight round trips of 20 ms, behind a burst of others; then the least of all again, or a new one.
        for falls_to_ms in [10, 5] {
            let (mut hystart, mut una) = (HyStart::default(), 0);
            assert_eq!(round(&mut hystart, 0, &mut una, 16, 1_000, 10 * MS), None);
            let ack = |rtt_ns, index| acknowledged(MS * 1_000_000 + index, rtt_ns, 33, 96);
            let found: Vec<bool> = (0..8).map(|index| hystart.ends_slow_start(&ack(20 * MS, index), 32)).collect();
            assert!(
                !found.contains(&true) && !hystart.ends_slow_start(&ack(falls_to_ms * MS, 8), 32),
                "{falls_to_ms} ms"
            );
        }
    }

    #[test]
    fn it_ends_no_window_below_16_segments() {
        let (mut hystart, mut una) = (HyStart::default(), 0);
        // Seven acknowledgements of a window that reaches 14 + 6 with the last: 16 with the third.
        assert_eq!(round(&mut hystart, 0, &mut una, 7, 1_900_000, 3 * MS), Some(2));
        let (mut hystart, mut una) = (HyStart::default(), 0);
        assert_eq!(round(&mut hystart, 0, &mut una, 5, 1_900_000, 3 * MS), None);
    }
}
