//! How long a collective takes: f(d) = a + b d (Caramel, section 4.2), and what follows from it.

use crate::collective::messages::{Depth, MAX_DEPTH};
use gradtide_net::{Bytes, Time};
use std::collections::BTreeMap;
use thiserror::Error;

/// The sizes of Caramel's benchmarks: 64 B and 4 MB, the latter read as 4 x 2^20 (A19).
pub const BENCHMARK_SIZES: [Bytes; 2] = [Bytes(64), Bytes(4 << 20)];

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

/// What the messages of one collective take on a network: the line of each depth that they may have.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// Below it, messages are batched: [`Cost::threshold`] of messages that are cut as a small one is.
    pub threshold: Bytes,
    /// Into how many chunks a message is cut.
    pub depth: Depth,
    /// By depth from 1 on; a fixed depth has one line.
    lines: Vec<Cost>,
}

impl Costs {
    /// Asks `alone` how long messages of some depth and size take by themselves; a depth of `None` is adaptive.
    /// Simulated times do not scatter, so each is asked for once.
    ///
    /// An adaptive depth has a line through two sizes for each number of chunks, since what a chunk more saves is no
    /// line.
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
            // Nothing speaks against cutting.
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

    /// Time of a message.
    pub fn time(&self, bytes: Bytes) -> Time {
        let line = (self.depth.of(bytes) as usize).min(self.lines.len()) - 1;
        self.lines[line].time(bytes)
    }

    /// More picoseconds than `count` messages of `bytes` in all take, whatever their depths.
    pub fn most_ps(&self, count: u64, bytes: Bytes) -> f64 {
        let of_line = |line: &Cost| line.fixed_ps.max(0.0) * count as f64 + line.ps_per_byte * bytes.0 as f64;
        self.lines.iter().map(of_line).fold(0.0, f64::max) + count as f64
    }

    /// The size of a chunk of which a tenth of the time is fixed cost: six thresholds, since a threshold is 1.5 a/b and
    /// a = 0.1 (a + b d) at d = 9 a/b. At least [`LEAST_CHUNK`].
    pub fn chunk(&self) -> Bytes {
        Bytes(self.threshold.0.saturating_mul(6)).max(LEAST_CHUNK)
    }
}

/// Smallest chunk that a cost model may ask for: where there is no fixed cost, no chunk is small enough.
pub const LEAST_CHUNK: Bytes = Bytes(64 << 10);

/// Least bytes between the two sizes of a line: enough that they take different times.
const LEAST_SPAN: u64 = 64 << 10;

fn median(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    let middle = times.len() / 2;
    if times.len() % 2 == 1 { times[middle] as f64 } else { (times[middle - 1] as f64 + times[middle] as f64) / 2.0 }
}
