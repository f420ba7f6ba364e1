//! How long a collective takes: f(d) = a + b d (Caramel, section 4.2), and what follows from it.

use crate::collective::exchange;
use crate::collective::plan::{Algorithm, Plan, PlanError};
use gradtide_net::{Bytes, Fluid, Time};
use std::collections::BTreeMap;
use thiserror::Error;

/// The sizes of Caramel's benchmarks: 64 B and 4 MB, the latter read as 4 x 2^20 (A19).
pub const BENCHMARK_SIZES: [Bytes; 2] = [Bytes(64), Bytes(4 << 20)];

/// Most chunks of a message (Caramel, section 4.4).
pub const MAX_DEPTH: u32 = 8;

/// A line through measured times of one collective on one number of workers (A21).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// a: what a transfer of nothing would take, in picoseconds. Measured times may make it negative.
    pub fixed_ps: f64,
    /// b: what each byte adds, in picoseconds; above 0.
    pub ps_per_byte: f64,
}

/// Times that are no cost model.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CostError {
    /// One point leaves the slope open.
    #[error("a cost model takes the times of two sizes or more")]
    OneSize,
    /// More bytes take no longer.
    #[error("larger messages do not take longer: there is nothing to fit")]
    Flat,
}

impl Cost {
    /// The line of least squares through the median time of each size (A20): with two sizes, through both medians.
    ///
    /// # Errors
    /// [`CostError`] if there are fewer than two sizes, or the line does not rise.
    ///
    /// # Source
    /// Caramel, section 4.2: "a simple linear regression model".
    pub fn fit(samples: &[(Bytes, Time)]) -> Result<Self, CostError> {
        let mut by_size: BTreeMap<Bytes, Vec<u64>> = BTreeMap::new();
        for &(bytes, time) in samples {
            by_size.entry(bytes).or_default().push(time.ps());
        }
        let points: Vec<(f64, f64)> =
            by_size.into_iter().map(|(bytes, times)| (bytes.0 as f64, median(times))).collect();
        if points.len() < 2 {
            return Err(CostError::OneSize);
        }
        let count = points.len() as f64;
        let mean_x = points.iter().map(|point| point.0).sum::<f64>() / count;
        let mean_y = points.iter().map(|point| point.1).sum::<f64>() / count;
        let (mut with, mut square) = (0.0, 0.0);
        for (x, y) in points {
            with += (x - mean_x) * (y - mean_y);
            square += (x - mean_x) * (x - mean_x);
        }
        let ps_per_byte = with / square;
        if ps_per_byte <= 0.0 {
            return Err(CostError::Flat);
        }
        Ok(Self { fixed_ps: mean_y - ps_per_byte * mean_x, ps_per_byte })
    }

    /// Time of `bytes`, rounded up to a picosecond; nothing takes no time.
    pub fn time(self, bytes: Bytes) -> Time {
        if bytes.0 == 0 {
            return Time::ZERO;
        }
        Time::from_ps((self.fixed_ps + self.ps_per_byte * bytes.0 as f64).max(0.0).ceil() as u64)
    }

    /// Below it, messages are batched: the least size in bytes at which two messages in one take more than 0.8 of the
    /// time that they take apart, `f(2x) / (2 f(x)) > 0.8`. That is above 1.5 a/b: fixed cost is less than 40 % there.
    /// 0 if there is no fixed cost.
    ///
    /// # Source
    /// Caramel, section 4.2, with `>` strict (A17) and nothing to save where a is not positive (A18).
    pub fn threshold(self) -> Bytes {
        if self.fixed_ps <= 0.0 {
            return Bytes(0);
        }
        Bytes((1.5 * self.fixed_ps / self.ps_per_byte).floor() as u64 + 1)
    }
}

/// Times of one collective by itself at [`BENCHMARK_SIZES`], for [`Cost::fit`], with rank i on `hosts[i]`; `fluid`
/// gives a fresh network. Simulated times do not scatter, so each size is carried out once.
///
/// # Errors
/// [`PlanError`] if the ranks do not suit the algorithm.
pub fn measure(
    algorithm: &Algorithm,
    hosts: &[u32],
    fluid: &dyn Fn() -> Fluid,
) -> Result<Vec<(Bytes, Time)>, PlanError> {
    let time = |bytes| {
        let plan = Plan::new(algorithm, hosts.len() as u32, bytes, 1)?;
        Ok((bytes, exchange::run(&plan, hosts, fluid()).duration))
    };
    BENCHMARK_SIZES.into_iter().map(time).collect()
}

/// Chunks of a message: as many as thresholds fit in, from 1 to [`MAX_DEPTH`] (A30: of a message, not a parameter);
/// so no chunk is smaller than the threshold but that of a message that is.
///
/// # Source
/// Caramel, section 4.4, which has no formula: 3.6 of docs/models/caramel.md.
pub fn depth(bytes: Bytes, threshold: Bytes) -> u32 {
    bytes.0.checked_div(threshold.0).map_or(MAX_DEPTH, |count| count.clamp(1, u64::from(MAX_DEPTH)) as u32)
}

fn median(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    let middle = times.len() / 2;
    if times.len() % 2 == 1 { times[middle] as f64 } else { (times[middle - 1] as f64 + times[middle] as f64) / 2.0 }
}
