//! Scheduling of max-min solves if finish times may have a bounded error.
//!
//! One solve for all messages that end within an interval costs little more than a solve for one end of a message. The
//! rates therefore change up to `shift` too late or too early after an end:
//!
//! ```text
//! shift(t) = a / DIVISOR * (t - time of the latest flow's entry)        a: accepted relative error
//! ```
//!
//! The solve for an end is deferred by at most `shift`. It then applies all ends so far, and [anticipates](Leaving)
//! those within another `shift`, so that some ends take effect late and others early.
//!
//! Why this bounds the error: let n equal flows share a link of capacity C. While i of them are left, each has C / i.
//! If an end takes effect late by `shift`, each of the i flows left loses `shift * (C / i - C / (i + 1))`. The sum of
//! these losses, from n flows down to i, is less than `shift * C / i`, which a flow recovers in the time `shift` at its
//! rate C / i. The finish time of a flow is thus off by `shift` in total, regardless of the number of earlier ends. The
//! rate of a flow with another bottleneck may rise and fall repeatedly, and each change adds to its error. [`DIVISOR`]
//! allows for such flows.
//!
//! There is no such bound for a flow that is starved by another band: a flow that ends just before the starvation in an
//! exact run may end after it here. Hence no solve is deferred while flows of several bands are in flight.
//!
//! This module computes no rates. Rates are max-min fair, to the last bit, for the flows that a solve counts.

use super::due::NEVER;
use crate::Band;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;

/// Accepted error of finish times, in millionths of the time since the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    ppm: u32,
    /// Number of flows up to which no solve is deferred.
    exact_below: u64,
}

/// Default number of flows up to which no solve is deferred. Solving at every end then visits at most 16,384^2 / 2
/// rates, which take half a second at 4 ns each.
pub(super) const EXACT_BELOW: u64 = 1 << 14;

/// Divisor of the accepted error in the module's formula of `shift`, calibrated: with 1, the largest error among 65,000
/// flows is up to 2.3 times the accepted error; with 2, up to 1.5 times. With 4 and 5, the largest error among a
/// million flows was 1.05 and 1.04 times the accepted error. See the table in `docs/models/fluid.md`.
const DIVISOR: u128 = 6;

const MILLION: u128 = 1_000_000;

impl Bound {
    pub fn new(ppm: NonZeroU32, exact_below: u64) -> Self {
        Self { ppm: ppm.get(), exact_below }
    }

    /// Returns whether no solve is deferred with `flows` flows in flight.
    fn is_exact(self, flows: u64) -> bool {
        flows <= self.exact_below
    }

    /// Returns whether at least `ppm` millionths of the `flows` in flight have ended at one instant (`ends`), so that a
    /// solve is due immediately. There are at most as many such solves as deferred ones.
    fn justifies_solve(self, ends: u64, flows: u64) -> bool {
        u128::from(ends) * MILLION >= u128::from(flows) * u128::from(self.ppm)
    }

    /// Returns the maximum shift of an end, in fs, if the latest flow entered `age_fs` ago.
    fn shift_fs(self, age_fs: u128) -> u128 {
        age_fs * u128::from(self.ppm) / (DIVISOR * MILLION)
    }
}

/// Schedules the next solve, and counts the flows that take part in it.
#[derive(Clone, Debug)]
pub(super) struct SolveTimer {
    bound: Option<Bound>,
    /// Time of the next solve; [`NEVER`] if nothing has changed since the last one.
    pub solve_at_fs: u128,
    /// Whether the next solve must be exact, i.e. must not treat messages that end soon as ended.
    is_exact: bool,
    /// Number of messages in flight that the next solve counts, by band.
    flows: [u64; Band::COUNT],
    /// The last instant at which messages ended, in fs, and how many messages ended then.
    ended: (u128, u64),
    /// Time at which the latest flow entered.
    entered_fs: u128,
    /// Messages that end soon and that solves therefore no longer count.
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

    /// Records that a message has entered. `is_first` is set for the first message of its flow.
    pub fn enter(&mut self, now_fs: u128, band: Band, is_first: bool) {
        self.flows[usize::from(band.index())] += 1;
        if is_first {
            self.entered_fs = now_fs;
        }
        self.solve_at_once(now_fs);
    }

    /// Records that a counted message leaves `band` for another band, and schedules an immediate solve.
    pub fn leave_band(&mut self, now_fs: u128, band: Band) {
        self.flows[usize::from(band.index())] -= 1;
        self.solve_at_once(now_fs);
    }

    /// Records that a counted message has ended, and schedules a solve.
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

    /// Returns the time up to which the next solve treats messages as ended, or `None` for an exact solve.
    pub fn horizon_fs(&self, now_fs: u128) -> Option<u128> {
        let bound = self.bound.filter(|_| !self.is_exact)?;
        Some(now_fs + bound.shift_fs(now_fs - self.entered_fs))
    }

    /// Excludes a message that ends soon from the next solve and all later solves.
    pub fn leave(&mut self, leaving: Leaving, band: Band) {
        self.flows[usize::from(band.index())] -= 1;
        self.leaving.push(Reverse(leaving));
    }

    /// Removes and returns the next excluded message that has ended by `now_fs`.
    pub fn take_left(&mut self, now_fs: u128) -> Option<u32> {
        self.leaving.peek().filter(|Reverse(first)| first.at_fs <= now_fs)?;
        self.leaving.pop().map(|Reverse(first)| first.slot)
    }

    /// Records that rates are solved.
    pub fn solved(&mut self) {
        (self.solve_at_fs, self.is_exact) = (NEVER, false);
    }

    fn solve_at_once(&mut self, now_fs: u128) {
        (self.solve_at_fs, self.is_exact) = (now_fs, true);
    }
}

/// A message that solves no longer count. The message keeps its rate until it is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Leaving {
    pub at_fs: u128,
    pub slot: u32,
    pub rate: u64,
}

impl Leaving {
    /// Returns the remaining work of the message.
    pub fn left(self, now_fs: u128) -> u128 {
        u128::from(self.rate) * (self.at_fs - now_fs)
    }
}
