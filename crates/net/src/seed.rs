//! One root seed, and named, independent random streams derived from it.
//!
//! Every consumer draws from a stream of its own name, so that a new consumer does not change the numbers of the
//! others. The generator is PCG XSL RR 128/64 (O'Neill 2014) of `rand_pcg`, whose output is fixed by its definition.
//! Sampling is implemented in this module, because a later version of a library might draw differently.

use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng as _;

/// The root of all random streams of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Stream(Pcg64);

impl Seed {
    /// Returns the stream called `name`.
    pub fn stream(self, name: &str) -> Stream {
        // FNV-1a with 64 bits. Any fixed hash would do, because there are few names, all fixed by the code or by the
        // keys of a scenario.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Stream(Pcg64::new(u128::from(self.0), u128::from(hash)))
    }
}

impl Stream {
    /// Returns a uniform 64-bit number.
    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a uniform number below `bound` (Lemire 2019: multiply, and reject the biased remainder).
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a range without numbers");
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.word()) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// Shuffles `items` into a uniformly random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }

    /// Swaps each of `items`, with a probability of `share_ppm` millionths, with a uniformly random later one.
    pub fn disorder<T>(&mut self, items: &mut [T], share_ppm: u64) {
        let count = items.len();
        for place in 0..count {
            let behind = count - place - 1;
            // The number is drawn in any case, so that a larger share swaps all items that a smaller share swaps.
            let is_wrong = self.below(1_000_000) < share_ppm;
            let other = self.below(behind.max(1) as u64) as usize;
            if is_wrong && behind > 0 {
                items.swap(place, place + 1 + other);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(mut stream: Stream) -> Vec<u64> {
        (0..8).map(|_| stream.below(1 << 40)).collect()
    }

    #[test]
    fn a_name_and_a_seed_fix_a_stream_and_nothing_else_does() {
        assert_eq!(draws(Seed(1).stream("order")), draws(Seed(1).stream("order")));
        assert_ne!(draws(Seed(1).stream("order")), draws(Seed(2).stream("order")));
        assert_ne!(draws(Seed(1).stream("order")), draws(Seed(1).stream("arrivals")));
    }

    #[test]
    fn disorder_swaps_as_many_as_it_says_and_more_where_less_did() {
        let moved = |share_ppm: u64| -> Vec<bool> {
            let mut items: Vec<usize> = (0..10_000).collect();
            Seed(0).stream("test").disorder(&mut items, share_ppm);
            let mut sorted = items.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..10_000));
            items.iter().enumerate().map(|(place, &item)| place != item).collect()
        };
        assert!(moved(0).iter().all(|moved| !moved));
        let count = moved(10_000).iter().filter(|&&moved| moved).count();
        // About 100 swaps move two items each, or fewer where two swaps affect the same item. The number of swaps is
        // binomial with a standard deviation of 10. The tolerance is five standard deviations.
        assert!((100..=300).contains(&count), "{count}");
        assert!(moved(1_000_000).iter().filter(|&&moved| moved).count() > 9_900);
    }

    #[test]
    fn all_orders_of_three_are_equally_likely() {
        let mut stream = Seed(0).stream("test");
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..60_000 {
            let mut items = [0, 1, 2];
            stream.shuffle(&mut items);
            *counts.entry(items).or_insert(0_i32) += 1;
        }
        assert_eq!(counts.len(), 6);
        // The counts are binomial with n = 60,000 and p = 1/6, so their standard deviation is 91. The tolerance is five
        // of them.
        assert!(counts.values().all(|count| (count - 10_000).abs() < 457), "{counts:?}");
    }
}
