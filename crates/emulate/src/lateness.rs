//! How late packets leave the switch: a histogram of the delays from the computed to the actual departure.

use serde::Serialize;

/// Resolution of the histogram, in ns.
const BIN_NS: u64 = 100;
/// Number of bins, enough for delays of 2 ms (20 times [`LATE_NS`]). The last bin also counts all longer delays.
const BINS: usize = 20_000;
/// Delay after the computed departure beyond which a packet counts as late, in ns.
pub const LATE_NS: u64 = 100_000;

/// Delays of departures beyond their computed times.
#[derive(Clone, Debug)]
pub(crate) struct Lateness {
    bins: Vec<u64>,
    count: u64,
    late_count: u64,
    max_ns: u64,
}

/// Figures of a [`Lateness`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Delays {
    /// Number of departures.
    pub count: u64,
    /// Median of the delays, in ns.
    pub p50_ns: u64,
    /// 99th percentile, in ns.
    pub p99_ns: u64,
    /// 99.9th percentile, in ns.
    pub p999_ns: u64,
    /// Longest delay, in ns.
    pub max_ns: u64,
    /// Departures more than [`LATE_NS`] late.
    pub late_count: u64,
}

impl Lateness {
    pub fn new() -> Self {
        Self { bins: vec![0; BINS], count: 0, late_count: 0, max_ns: 0 }
    }

    /// Adds a departure that was `delay_ns` late.
    pub fn add(&mut self, delay_ns: u64) {
        self.bins[((delay_ns / BIN_NS) as usize).min(BINS - 1)] += 1;
        self.count += 1;
        self.late_count += u64::from(delay_ns > LATE_NS);
        self.max_ns = self.max_ns.max(delay_ns);
    }

    /// Returns the fraction of departures that were late, in parts per million.
    pub fn late_ppm(&self) -> u64 {
        self.late_count * 1_000_000 / self.count.max(1)
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn delays(&self) -> Delays {
        Delays {
            count: self.count,
            p50_ns: self.quantile(500),
            p99_ns: self.quantile(990),
            p999_ns: self.quantile(999),
            max_ns: self.max_ns,
            late_count: self.late_count,
        }
    }

    /// Returns the delay in ns that a fraction `per_mille` / 1000 of the departures did not exceed, rounded up.
    fn quantile(&self, per_mille: u64) -> u64 {
        let rank = (self.count * per_mille).div_ceil(1_000);
        let mut below = 0;
        for (bin, count) in self.bins.iter().enumerate() {
            below += count;
            if below >= rank && below > 0 && bin < BINS - 1 {
                return ((bin as u64 + 1) * BIN_NS).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_sorted_list_to_one_bin() {
        let mut lateness = Lateness::new();
        let mut list: Vec<u64> = (0..9_973_u64).map(|index| index * index % 150_013).collect();
        list.iter().for_each(|&delay_ns| lateness.add(delay_ns));
        list.sort_unstable();
        let delays = lateness.delays();
        for (found, per_mille) in [(delays.p50_ns, 500), (delays.p99_ns, 990), (delays.p999_ns, 999)] {
            let exact = list[(list.len() * per_mille).div_ceil(1_000) - 1];
            assert!((exact..=exact + BIN_NS).contains(&found), "{found} against {exact}");
        }
        let late = list.iter().filter(|&&delay_ns| delay_ns > LATE_NS).count() as u64;
        assert_eq!((delays.late_count, delays.max_ns, delays.count), (late, list[list.len() - 1], list.len() as u64));
        assert_eq!(lateness.late_ppm(), late * 1_000_000 / list.len() as u64);
    }

    #[test]
    fn a_quantile_beyond_the_last_bin_is_the_longest_delay() {
        let mut lateness = Lateness::new();
        [1, 5_000_000, 9_000_000].iter().for_each(|&delay_ns| lateness.add(delay_ns));
        let delays = lateness.delays();
        assert_eq!((delays.p50_ns, delays.p99_ns), (9_000_000, 9_000_000));
    }

    #[test]
    fn nothing_is_late_before_the_first_packet() {
        assert_eq!((Lateness::new().delays(), Lateness::new().late_ppm()), (Delays::default(), 0));
    }
}
