//! Linear cost model of a collective (Caramel, section 4.2): a buffer of d bytes takes the time f(d) = a + b d. The
//! batching threshold and the chunk size are derived from it.

use crate::collective::messages::{Depth, MAX_DEPTH};
use gradtide_net::{Bytes, Time};
use std::collections::BTreeMap;
use thiserror::Error;

/// Sizes that Caramel's benchmarks measure: 64 B and 4 MB, where we take 4 MB as 4 · 2^20 B (A19).
pub const BENCHMARK_SIZES: [Bytes; 2] = [Bytes(64), Bytes(4 << 20)];

/// A line f(d) = a + b d, fitted to the measured times of one collective on one number of workers (A21).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Fixed cost a of a transfer, in picoseconds. It is the intercept of a fitted line, so it may be negative.
    pub fixed_ps: f64,
    /// Cost b per byte, in picoseconds; positive.
    pub ps_per_byte: f64,
}

/// Error: the times do not determine a cost model.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum CostError {
    /// One size does not determine the slope.
    #[error("a cost model takes the times of two sizes or more")]
    OneSize,
    /// The slope is not positive.
    #[error("larger messages do not take longer: there is nothing to fit")]
    Flat,
}

impl Cost {
    /// Fits a least-squares line through the median time of each size (A20). With two sizes, the line passes through
    /// both medians.
    ///
    /// # Errors
    /// [`CostError`] if there are fewer than two sizes, or if the slope is not positive.
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

    /// Returns the time of a transfer of `bytes`, rounded up to a picosecond; 0 for 0 bytes.
    pub fn time(self, bytes: Bytes) -> Time {
        if bytes.0 == 0 {
            return Time::ZERO;
        }
        Time::from_ps((self.fixed_ps + self.ps_per_byte * bytes.0 as f64).max(0.0).ceil() as u64)
    }

    /// Returns the batching threshold: the smallest size x in bytes for which one message of 2x takes more than 0.8 of
    /// the time of two messages of x, `f(2x) / (2 f(x)) > 0.8`. This is the case above 1.5 a/b, where the fixed cost is
    /// less than 40 % of f(x). Returns 0 without a fixed cost.
    ///
    /// # Source
    /// Caramel, section 4.2. We take the inequality as strict (A17), and do not batch if a is not positive (A18).
    pub fn threshold(self) -> Bytes {
        if self.fixed_ps <= 0.0 {
            return Bytes(0);
        }
        Bytes((1.5 * self.fixed_ps / self.ps_per_byte).floor() as u64 + 1)
    }
}

/// Cost of one collective on a network, with one line per depth. The depth is the number of chunks into which a message
/// is cut.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// Batching threshold: [`Cost::threshold`] of the line for depth 1 or, if the depth is fixed, for that depth.
    pub threshold: Bytes,
    /// Rule that cuts messages into chunks.
    pub depth: Depth,
    /// Lines by depth, from depth 1 on. There is a single line if the depth is fixed.
    lines: Vec<Cost>,
}

impl Costs {
    /// Fits the lines to `alone`, which returns the time of a message of the given depth and size on an idle network.
    /// `depth` is `None` if the depth is adaptive. Each size is measured once, because simulated times have no noise.
    ///
    /// If the depth is adaptive, each depth has a line of its own through two sizes, because the time that one more
    /// chunk saves is not linear in the size.
    ///
    /// # Errors
    /// As [`Cost::fit`].
    pub fn measure(depth: Option<u32>, alone: &mut dyn FnMut(u32, Bytes) -> Time) -> Result<Self, CostError> {
        let mut line = |depth: u32, sizes: [Bytes; 2]| Cost::fit(&sizes.map(|bytes| (bytes, alone(depth, bytes))));
        let plain = line(depth.unwrap_or(1), BENCHMARK_SIZES)?;
        let threshold = plain.threshold();
        if let Some(depth) = depth {
            return Ok(Self { threshold, depth: Depth::Fixed(depth), lines: vec![plain] });
        }
        let lines = match threshold.0 {
            // Without a fixed cost per message, more chunks cost nothing, so every message has the maximum depth.
            0 => vec![line(MAX_DEPTH, BENCHMARK_SIZES)?; MAX_DEPTH as usize],
            threshold => {
                let sizes = |depth: u32| {
                    let from = threshold.saturating_mul(u64::from(depth));
                    [Bytes(from), Bytes(from.saturating_add(threshold.max(LEAST_SPAN)))]
                };
                let deeper = (2..=MAX_DEPTH).map(|depth| line(depth, sizes(depth)));
                [Ok(plain)].into_iter().chain(deeper).collect::<Result<_, _>>()?
            }
        };
        Ok(Self { threshold, depth: Depth::Adaptive { threshold }, lines })
    }

    /// Returns the time of a message of `bytes`, including the effect of its depth.
    pub fn time(&self, bytes: Bytes) -> Time {
        let line = (self.depth.of(bytes) as usize).min(self.lines.len()) - 1;
        self.lines[line].time(bytes)
    }

    /// Returns an upper bound, in picoseconds, of the total time of `count` messages with `bytes` in total, whatever
    /// the depth of each message.
    pub fn most_ps(&self, count: u64, bytes: Bytes) -> f64 {
        let of_line = |line: &Cost| line.fixed_ps.max(0.0) * count as f64 + line.ps_per_byte * bytes.0 as f64;
        self.lines.iter().map(of_line).fold(0.0, f64::max) + count as f64
    }

    /// Returns the chunk size at which the fixed cost is a tenth of the time, but at least [`LEAST_CHUNK`]. This size
    /// is six times the threshold, because the threshold is 1.5 a/b, and a = 0.1 (a + b d) for d = 9 a/b.
    pub fn chunk(&self) -> Bytes {
        Bytes(self.threshold.0.saturating_mul(6)).max(LEAST_CHUNK)
    }
}

/// Smallest chunk size that a cost model returns. Without a fixed cost, the optimum would be 0.
pub const LEAST_CHUNK: Bytes = Bytes(64 << 10);

/// Smallest difference, in bytes, between the two message sizes through which a line is fitted. It is large enough for
/// their times to differ.
const LEAST_SPAN: u64 = 64 << 10;

fn median(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    let middle = times.len() / 2;
    if times.len() % 2 == 1 { times[middle] as f64 } else { (times[middle - 1] as f64 + times[middle] as f64) / 2.0 }
}
