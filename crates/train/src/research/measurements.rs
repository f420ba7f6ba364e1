//! Measurements of a worker: the pace of each band, the spread of chunk ends, its waits, and the budget of time that
//! the low band may cost.

use super::chunk::Expected;
use super::forecast::{PsPerKib, after, pace_from};
use gradtide_net::{Bytes, Time};
use std::collections::VecDeque;

/// Window of an average, in rounds: an iteration of some twenty buckets on eight workers. Calibration.
pub const MEMORY: u64 = 128;

/// Window of the spread of chunk ends, in chunks. Calibration.
const SPREAD_MEMORY: u64 = 16;

/// Limit on the saved budget, in iterations.
const SAVED_ITERATIONS: u64 = 8;

/// Number of iterations in which a worker must have waited for slower workers before it counts on this wait. Not
/// calibrated.
pub const WAIT_ITERATIONS: usize = 8;

/// An exponential moving average; the plain mean while there are few samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Average {
    /// The average.
    pub mean: u64,
    /// Number of samples, at most the memory.
    pub count: u64,
}

impl Average {
    pub fn add(&mut self, sample: u64, memory: u64) {
        self.count = (self.count + 1).min(memory);
        let step = sample.abs_diff(self.mean) / self.count;
        self.mean = if sample >= self.mean { self.mean + step } else { self.mean - step };
    }

    pub fn known(&self, memory: u64) -> Option<u64> {
        (self.count >= memory / 2).then_some(self.mean)
    }
}
/// Time for which a worker waits in an iteration, after its last gradient, for the last gradients of slower workers. It
/// may be late by this time without delaying the job. The slowest worker never waits.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// Waits of recent iterations, in order.
    last: VecDeque<Time>,
    /// Unused rest of the minimum wait in the current iteration.
    pub left: Time,
}

impl Waits {
    pub fn add(&mut self, wait: Time) {
        self.last.push_back(wait);
        if self.last.len() > WAIT_ITERATIONS {
            self.last.pop_front();
        }
    }

    /// Returns the wait that a worker can count on: the minimum of the samples, once there are enough.
    pub fn least(&self) -> Time {
        let least = self.last.iter().min().filter(|_| self.last.len() == WAIT_ITERATIONS);
        least.copied().unwrap_or(Time::ZERO)
    }
}

/// Measurements and budget of one worker, or of all workers together.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    /// Number of messages observed per round.
    pub share: u64,
    /// Length of the averages' window, in messages.
    pub memory: u64,
    /// Average pace while all chunks in flight are in the high band.
    pub high: Average,
    /// Average pace while all chunks in flight are in the low band.
    pub low: Average,
    /// Relative deviation of a chunk's actual end from its expected end, as a share of the expected duration, in
    /// millionths; for chunks that start in the low band and in the high band. Only chunks that are sent one at a time
    /// count: with several in flight, the end of one says little about the others.
    pub spreads: [Average; 2],
    /// Arrival time of the last message.
    pub since: Time,
    /// Whether all chunks in flight were high (`Some(true)`) or low (`Some(false)`) at that arrival.
    pub were_high: Option<bool>,
    /// Remaining time that the low band may cost.
    pub budget: Time,
    /// Cost of the low band in excess of the budget.
    pub debt: Time,
    /// Bytes sent low before the pace of the low band was known.
    pub tried: Bytes,
    /// Whether the last chunk was high.
    pub is_high: bool,
}

impl History {
    pub fn new(share: u64) -> Self {
        Self { share, memory: MEMORY * share, is_high: true, ..Self::default() }
    }

    /// Returns the paces of the high and of the low band, if known. The pace of the high band is at most that of the
    /// low band.
    pub fn paces(&self) -> (Option<PsPerKib>, Option<PsPerKib>) {
        let [high, low] = [self.high, self.low].map(|average| average.known(self.memory));
        (high.map(|high| high.min(low.unwrap_or(PsPerKib::MAX))), low)
    }

    /// Adds the budget of a new iteration: `more` is the time that the low band may cost in it.
    pub fn save(&mut self, more: Time) {
        let most = Time::from_ps(more.ps().saturating_mul(SAVED_ITERATIONS));
        self.budget = after(self.budget, more.saturating_since(self.debt)).min(most);
        self.debt = self.debt.saturating_since(more);
    }

    /// Charges the cost of the low band.
    pub fn spend(&mut self, cost: Time) {
        self.debt = after(self.debt, cost.saturating_since(self.budget));
        self.budget = self.budget.saturating_since(cost);
    }

    /// Records the difference between the actual and the expected end of a chunk.
    pub fn on_last_message(&mut self, now: Time, Expected { begun, ends, began_high }: Expected) {
        let way = usize::from(began_high);
        let off = now.ps().abs_diff(ends[way].ps());
        let share_ppm = u128::from(off) * 1_000_000 / u128::from((ends[way] - begun).ps().max(1));
        let sample = u64::try_from(share_ppm).unwrap_or(u64::MAX);
        self.spreads[way].add(sample, SPREAD_MEMORY * self.share);
    }

    /// Updates the averages with a message of a round of `bytes`.
    pub fn on_received(&mut self, now: Time, bytes: Bytes, are_high: Option<bool>) {
        let time = now - std::mem::replace(&mut self.since, now);
        if std::mem::replace(&mut self.were_high, are_high) == are_high
            && let Some(is_high) = are_high
        {
            let average = if is_high { &mut self.high } else { &mut self.low };
            average.add(pace_from(time, bytes).saturating_mul(self.share), self.memory);
        }
    }
}
