//! When rates are solved, if finish times may be off by a bound.
//!
//! A solve for all messages that end within an interval costs little more than one for a single end. So the rates that
//! follow from an end may come up to `shift` too late or too early:
//!
//! ```text
//! shift(t) = a / DIVISOR * (t - the latest instant at which a flow entered)
//! ```
//!
//! The solve for an end is deferred by `shift` at most. It then counts all ends so far, and [anticipates](Leaving)
//! those within another `shift`, so that ends are late and early in turn.
//!
//! Why this bounds times: let n equal flows share a link of capacity C. While i of them are left, each has C / i. An
//! end that is late by `shift` costs each of them `shift * (C / i - C / (i + 1))`. The sum of that from n to i is below
//! `shift * C / i`, and takes `shift` at the rate C / i. So an end is off by `shift` in all, however many came before.
//! Where a flow gets what others leave, its rate goes up and down; then each change counts by its size. [`DIVISOR`] is
//! for those.
//!
//! There is no bound for a flow that is starved by another band: a flow that ends just before the starvation in an
//! exact run may end after it here. So no solve is deferred while flows of several bands are in flight.
//!
//! What does not live here: rates. They are max-min fair for the flows that a solve counts, to the last bit.

use super::due::NEVER;
use crate::Band;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

/// Largest error of the times from start to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    ppm: u32,
    /// Number of flows up to which no solve is deferred.
    exact_below: u64,
}

/// Number of flows up to which no solve is deferred. Solving at each of their ends visits 16,384^2 / 2 rates at most,
/// at 4 ns each: half a second.
pub(super) const EXACT_BELOW: u64 = 1 << 14;

/// Calibrated: with 1, the largest error of 65,000 flows is up to 2.3 times the accuracy; with 2, up to 1.5 times. With
/// 4 and 5, one flow of a million was off by 1.05 and 1.04 times the accuracy. See the table in `docs/models/fluid.md`.
const DIVISOR: u128 = 6;

const MILLION: u128 = 1_000_000;

impl Bound {
    pub fn new(ppm: NonZeroU32, exact_below: u64) -> Self {
        Self { ppm: ppm.get(), exact_below }
    }

    /// Whether every change is solved at once, with this number of flows in flight.
    fn is_exact(self, flows: u64) -> bool {
        flows <= self.exact_below
    }

    /// Whether `ends` at one instant justify a solve at once, with this number of flows in flight. There are no more
    /// such instants than deferred solves.
    fn justifies_solve(self, ends: u64, flows: u64) -> bool {
        u128::from(ends) * MILLION >= u128::from(flows) * u128::from(self.ppm)
    }

    /// Largest shift of an end if every flow is at least `age_fs` old.
    fn shift_fs(self, age_fs: u128) -> u128 {
        age_fs * u128::from(self.ppm) / (DIVISOR * MILLION)
    }
}

/// When rates are solved next.
#[derive(Clone, Debug)]
pub(super) struct SolveTimer {
    bound: Option<Bound>,
    /// [`NEVER`] if nothing has changed since the last solve.
    pub solve_at_fs: u128,
    /// Whether the next solve anticipates nothing.
    is_exact: bool,
    /// Number of messages that a solve counts, by band.
    flows: [u64; Band::COUNT],
    /// The last instant at which messages ended, and their number.
    ended: (u128, u64),
    /// When a flow entered last.
    entered_fs: u128,
    /// Messages that end soon and that a solve no longer counts.
    pub leaving: BinaryHeap<Reverse<Leaving>>,
}

impl SolveTimer {
    pub fn new(bound: Option<Bound>) -> Self {
        Self {
            bound,
            solve_at_fs: NEVER,
            is_exact: true,
            flows: [0; Band::COUNT],
            ended: (0, 0),
            entered_fs: 0,
            leaving: BinaryHeap::new(),
        }
    }

    /// A message has entered; `is_first`: the first of its flow.
    pub fn enter(&mut self, now_fs: u128, band: Band, is_first: bool) {
        self.flows[usize::from(band.index())] += 1;
        if is_first {
            self.entered_fs = now_fs;
        }
        self.solve_at_once(now_fs);
    }

    /// A message that was counted leaves its band before its end.
    pub fn leave_band(&mut self, now_fs: u128, band: Band) {
        self.flows[usize::from(band.index())] -= 1;
        self.solve_at_once(now_fs);
    }

    /// A message that was counted has ended.
    pub fn end(&mut self, now_fs: u128, band: Band) {
        self.flows[usize::from(band.index())] -= 1;
        self.ended = (now_fs, if self.ended.0 == now_fs { self.ended.1 + 1 } else { 1 });
        let flows: u64 = self.flows.iter().sum();
        let has_several = self.flows.iter().any(|&of_band| of_band > 0 && of_band < flows);
        match self.bound {
            Some(bound) if !(has_several || bound.is_exact(flows) || bound.justifies_solve(self.ended.1, flows)) => {
                self.solve_at_fs = self.solve_at_fs.min(now_fs + bound.shift_fs(now_fs - self.entered_fs));
            }
            _ => self.solve_at_once(now_fs),
        }
    }

    /// Until when the next solve anticipates ends; `None` if it does not.
    pub fn horizon_fs(&self, now_fs: u128) -> Option<u128> {
        let bound = self.bound.filter(|_| !self.is_exact)?;
        Some(now_fs + bound.shift_fs(now_fs - self.entered_fs))
    }

    /// A message ends soon.
    pub fn leave(&mut self, leaving: Leaving, band: Band) {
        self.flows[usize::from(band.index())] -= 1;
        self.leaving.push(Reverse(leaving));
    }

    /// The next message that has ended by now.
    pub fn take_left(&mut self, now_fs: u128) -> Option<u32> {
        self.leaving.peek().filter(|Reverse(first)| first.at_fs <= now_fs)?;
        self.leaving.pop().map(|Reverse(first)| first.slot)
    }

    /// Rates are solved.
    pub fn solved(&mut self) {
        (self.solve_at_fs, self.is_exact) = (NEVER, false);
    }

    fn solve_at_once(&mut self, now_fs: u128) {
        (self.solve_at_fs, self.is_exact) = (now_fs, true);
    }
}

/// A message that the solves no longer count. It keeps its rate until it is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Leaving {
    pub at_fs: u128,
    pub slot: u32,
    pub rate: u64,
}

impl Leaving {
    /// Work that it has left.
    pub fn left(self, now_fs: u128) -> u128 {
        u128::from(self.rate) * (self.at_fs - now_fs)
    }
}
