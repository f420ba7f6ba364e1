//! Caramel's packing (section 4.3), which places each group of parameters in the backward pass or the next forward
//! pass.
//!
//! The plan is circular in compute time: transfers in the forward pass belong to the previous iteration (A28). Stage 2
//! places a group at the earliest time at which the channel is free between the group's update and its read (A22). This
//! place may be in the backward pass, in the next forward pass, or across both (A24); the earliest one is taken. Stage
//! 3 handles the groups for which there is no free place, and chooses the better of two places by simulation.

use super::transfers::{PlannedTransfer, TransferPlan};
use super::{Boundaries, Boundary, ParameterGroup, timeline};
use gradtide_net::{Bytes, Time};
use gradtide_watch::check_cancelled;
use std::cmp::Reverse;

/// A plan, and the number of its transfers that delay no compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// One transfer per group, in the order in which the groups were placed.
    pub plan: TransferPlan,
    /// Number of transfers that stage 2 placed. They come first in the plan, and each fits between the update and the
    /// read of its group.
    pub hidden_count: usize,
}

/// Packs groups, the largest first. Ties are broken by the earlier update, then by the index (A27).
///
/// Stage 3 places the remaining groups in this order. It simulates two places: after the transfers of the backward
/// pass, and in the next forward pass right before the group's read, even if that place is taken. It keeps the plan
/// with the shorter iterations; a tie goes to the backward pass (A25, A26, A27). A transfer that is placed after the
/// backward pass may start as soon as the backward pass is over.
///
/// # Source
/// Caramel, section 4.3; A22 to A29 of the header of `mod.rs`.
pub fn pack(boundaries: &Boundaries, groups: &[ParameterGroup], time: &dyn Fn(Bytes) -> Time) -> Packed {
    let compute = boundaries.compute;
    let mut sorted: Vec<&ParameterGroup> = groups.iter().collect();
    sorted.sort_by_key(|group| (Reverse(group.window.bytes), group.window.update));
    let mut channel = Circle { length: compute, busy: Vec::new() };
    let mut plan = TransferPlan { transfers: Vec::new(), has_barrier: false, credit: 1 };
    let mut left = Vec::new();
    for group in sorted {
        let (length, window) = (time(group.window.bytes), group.window);
        match channel.earliest(window.update, length).filter(|&start| start + length <= compute + window.read) {
            Some(start) => {
                channel.take(start, length);
                plan.transfers.push(placed(group, start, start, length));
            }
            None => left.push((group, length)),
        }
    }
    let hidden_count = plan.transfers.len();
    for (group, length) in left {
        let Boundary { update, read, .. } = group.window;
        let in_backward = plan.transfers.iter().filter(|transfer| transfer.rank < compute);
        let backward = in_backward.map(|transfer| transfer.rank + transfer.time).fold(update, Time::max);
        let forward = (compute + read).saturating_since(length).max(compute);
        let attempt = |rank: Time, release: Time| {
            let mut attempt = plan.clone();
            attempt.transfers.push(placed(group, rank, release, length));
            (timeline::run(boundaries, &attempt).iteration_time(), attempt)
        };
        let [(in_backward, one), (in_forward, other)] =
            [attempt(backward, backward.min(compute)), attempt(forward, forward)];
        plan = if in_backward <= in_forward { one } else { other };
    }
    Packed { plan, hidden_count }
}

fn placed(group: &ParameterGroup, rank: Time, release: Time, time: Time) -> PlannedTransfer {
    PlannedTransfer { parameters: group.parameters.clone(), bytes: group.window.bytes, time, release, rank }
}

/// Times at which the channel is busy in an iteration without stalls. They repeat in every iteration.
struct Circle {
    length: Time,
    /// Busy intervals within one period, ascending and disjoint.
    busy: Vec<(Time, Time)>,
}

impl Circle {
    /// Returns the start of the earliest free interval of `length` that begins at or after `from`; `None` if there is
    /// none.
    fn earliest(&self, from: Time, length: Time) -> Option<Time> {
        check_cancelled();
        let mut start = from;
        // A transfer of no time is treated as an instant, so that it may begin exactly at the end of a busy interval
        // but not within one.
        let moment = length.max(Time::from_ps(1));
        // Four periods suffice: `from` is in the first two, and a busy interval ends in the period after its start at
        // the latest.
        for period in 0..4 {
            let shifted = |time: Time| time + Time::from_ps(self.length.ps() * period);
            for &(busy_from, busy_to) in &self.busy {
                if shifted(busy_to) > start && shifted(busy_from) < start + moment {
                    start = shifted(busy_to);
                }
            }
        }
        (length <= self.length && start < from + self.length).then_some(start)
    }

    fn take(&mut self, start: Time, length: Time) {
        if length == Time::ZERO {
            return;
        }
        let lap = self.length.ps();
        let (from, to) = (start.ps() % lap, start.ps() % lap + length.ps());
        self.busy.push((Time::from_ps(from), Time::from_ps(to.min(lap))));
        if to > lap {
            self.busy.push((Time::ZERO, Time::from_ps(to - lap)));
        }
        self.busy.sort_unstable();
    }
}
