//! Random early detection: Floyd & Jacobson 1993.
//!
//! Differs from the paper: the average changes only when a packet arrives, not while the queue is idle, because a qdisc
//! has no clock.

use crate::seed::Stream;

#[derive(Clone, Debug)]
pub(super) struct Red {
    /// Average queue length, in units of 2^-16 packets.
    average: u64,
    /// Number of packets since the last mark.
    since_mark: u64,
    coin: Stream,
}

impl Red {
    pub fn new(coin: Stream) -> Self {
        Self { average: 0, since_mark: 0, coin }
    }

    /// Updates the average at the arrival of a packet while `waiting` others are queued. `weight_ppm` is the weight of
    /// the new queue length.
    pub fn on_arrival(&mut self, waiting: u32, weight_ppm: u32) {
        // No overflow: 2^32 packets in units of 2^-16, times a million, need 68 bits.
        let (target, weight) = (u128::from(waiting) << 16, u128::from(weight_ppm));
        let average = u128::from(self.average) * (1_000_000 - weight) + target * weight;
        self.average = (average / 1_000_000) as u64;
    }

    /// Returns whether the arriving packet is selected to be marked or dropped.
    pub fn hits(&mut self, min_packets: u32, max_packets: u32, max_probability_ppm: u32) -> bool {
        let (min, max) = (u64::from(min_packets) << 16, u64::from(max_packets) << 16);
        if self.average < min {
            self.since_mark = 0;
            return false;
        }
        if self.average >= max {
            self.since_mark = 0;
            return true;
        }
        // Floyd & Jacobson, sec. 7: the probability p_b grows linearly with the average. Packets are selected with p_a
        // = p_b / (1 - count p_b), where count is the number of packets since the last mark, which makes the gaps
        // between marks uniform.
        let base_ppm = u64::from(max_probability_ppm) * (self.average - min) / (max - min);
        let left = 1_000_000_u64.saturating_sub(self.since_mark * base_ppm);
        let hit = left == 0 || self.coin.below(left) < base_ppm;
        self.since_mark = if hit { 0 } else { self.since_mark + 1 };
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seed;

    #[test]
    fn the_average_follows_a_step_by_its_weight() {
        // After n arrivals at a queue of length q, the average is q (1 - (1 - w)^n), where w is the weight. Each update
        // truncates by up to 2^-16 packets, so the total error is at most 2^-16 / w.
        let mut red = Red::new(Seed(1).stream("red"));
        let mut expected = 0.0;
        for _ in 0..1_000 {
            red.on_arrival(4, 2_000);
            expected += (4.0 - expected) * 0.002;
        }
        let average = red.average as f64 / 65_536.0;
        assert!((expected - 1.0 / 65_536.0 / 0.002..=expected).contains(&average), "{average} against {expected}");
    }
}
