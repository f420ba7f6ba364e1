//! Measurements of a worker (the time per KiB of each band, the spread of chunk ends, and the worker's waits), and the
//! budget of time that the low band may cost.

use super::chunk::Expected;
use super::forecast::{PsPerKib, after, pace_from};
use gradtide_net::{Bytes, Time};
use std::collections::VecDeque;

/// Window of an average, in rounds. It corresponds to an iteration of about twenty buckets on eight workers. The value
/// is calibrated.
pub const MEMORY: u64 = 128;

/// Window of the spread of chunk ends, in chunks. The value is calibrated.
const SPREAD_MEMORY: u64 = 16;

/// Limit on the unused budget that accumulates, in multiples of the budget of one iteration.
const SAVED_ITERATIONS: u64 = 8;

/// Number of iterations in which a worker must have waited for slower workers before its deadlines include this wait.
/// The value is not calibrated.
pub const WAIT_ITERATIONS: usize = 8;

/// An exponential moving average. It is the plain mean as long as there are few samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Average {
    /// The average.
    pub mean: u64,
    /// Number of samples, limited to the memory.
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
/// Time in each iteration for which a worker waits, after its last gradient, for the last gradients of slower workers.
/// The worker may be late by this time without delaying the job. The slowest worker never waits.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// Waits of recent iterations, in order.
    last: VecDeque<Time>,
    /// Part of the minimum wait that is unused in the current iteration.
    pub left: Time,
}

impl Waits {
    pub fn add(&mut self, wait: Time) {
        self.last.push_back(wait);
        if self.last.len() > WAIT_ITERATIONS {
            self.last.pop_front();
        }
    }

    /// Returns the wait that a worker can rely on: the minimum of the samples, or 0 while there are too few.
    pub fn least(&self) -> Time {
        let least = self.last.iter().min().filter(|_| self.last.len() == WAIT_ITERATIONS);
        least.copied().unwrap_or(Time::ZERO)
    }
}

/// Measurements and budget of one worker, or of all workers together.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    /// Number of workers whose messages are observed, which is the number of observed messages per round.
    pub share: u64,
    /// Length of the window of averages, in messages.
    pub memory: u64,
    /// Average time per KiB while all chunks in flight are in the high band.
    pub high: Average,
    /// Average time per KiB while all chunks in flight are in the low band.
    pub low: Average,
    /// Relative deviation of the actual end of chunks from the expected end, in millionths of the expected duration,
    /// for chunks that start in the low band and in the high band. Only chunks that are sent one at a time are
    /// measured, because with several in flight the end of one chunk is not informative about the others.
    pub spreads: [Average; 2],
    /// Arrival time of the last message.
    pub since: Time,
    /// Band of the chunks in flight at the time `since`: `Some(true)` if all were high, `Some(false)` if all were low,
    /// otherwise `None`.
    pub were_high: Option<bool>,
    /// Delay of the job that the low band may still cause.
    pub budget: Time,
    /// Time by which the delay that the low band caused has exceeded the budget.
    pub debt: Time,
    /// Bytes sent in the low band before the time per KiB of this band was known.
    pub tried: Bytes,
    /// Whether the last chunk was sent in the high band.
    pub is_high: bool,
}

impl History {
    pub fn new(share: u64) -> Self {
        Self { share, memory: MEMORY * share, is_high: true, ..Self::default() }
    }

    /// Returns the times per KiB of the high band and of the low band, each if it is known. The time of the high band
    /// is at most the time of the low band.
    pub fn times_per_kib(&self) -> (Option<PsPerKib>, Option<PsPerKib>) {
        let [high, low] = [self.high, self.low].map(|average| average.known(self.memory));
        (high.map(|high| high.min(low.unwrap_or(PsPerKib::MAX))), low)
    }

    /// Begins an iteration, in which the low band may cost the time `more`: pays off the debt and adds the rest to the
    /// budget.
    pub fn save(&mut self, more: Time) {
        let most = Time::from_ps(more.ps().saturating_mul(SAVED_ITERATIONS));
        self.budget = after(self.budget, more.saturating_since(self.debt)).min(most);
        self.debt = self.debt.saturating_since(more);
    }

    /// Subtracts a cost of the low band from the budget. The part that exceeds the budget becomes debt.
    pub fn spend(&mut self, cost: Time) {
        self.debt = after(self.debt, cost.saturating_since(self.budget));
        self.budget = self.budget.saturating_since(cost);
    }

    /// Records the deviation of the actual end of a chunk from its expected end.
    pub fn on_last_message(&mut self, now: Time, Expected { begun, ends, began_high }: Expected) {
        let way = usize::from(began_high);
        let off = now.ps().abs_diff(ends[way].ps());
        let share_ppm = u128::from(off) * 1_000_000 / u128::from((ends[way] - begun).ps().max(1));
        let sample = u64::try_from(share_ppm).unwrap_or(u64::MAX);
        self.spreads[way].add(sample, SPREAD_MEMORY * self.share);
    }

    /// Updates the averages with a message of a round of `bytes`. `are_high` is the band of all chunks in flight;
    /// `None` if they use different bands.
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
