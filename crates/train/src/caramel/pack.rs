//! When each group is sent: Caramel's packing (section 4.3) into the backward pass and the next forward pass.
//!
//! The plan is a circle of compute time: what the forward pass carries belongs to the iteration before (A28). Stage 2
//! puts a group where the channel is free between its update and its read; whether that lies in the backward pass, in
//! the next forward pass or across both makes no difference (A24), so the earliest place (A22) is one in the backward
//! pass if there is one. Stage 3 has no free place left and measures which of two is the lesser evil.

use super::transfers::{PlannedTransfer, TransferPlan};
use super::{Boundaries, Boundary, ParameterGroup, timeline};
use gradtide_net::{Bytes, Time};
use gradtide_watch::look;
use std::cmp::Reverse;

/// A plan, and which of it delays nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// One transfer per group, in the order in which they were placed.
    pub plan: TransferPlan,
    /// Number of the plan's first transfers that stage 2 placed: they run in parallel with compute, inside their
    /// boundaries.
    pub hidden_count: usize,
}

/// Packs groups, largest first; ties go to the earlier update, then to the one that is listed first (A27).
///
/// Stage 3 places what is left in the same order: behind what the backward pass carries, or in the next forward pass
/// right before its read, whoever else has that place. It takes the one with which a simulation of all that has been
/// placed has shorter iterations, and the backward pass if they are equal (A25, A26, A27). What lies behind the
/// backward pass may be sent as soon as that is over.
///
/// # Source
/// Caramel, section 4.3; A22 to A29 of docs/models/caramel.md.
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
        let attempt = |rank: Time, gate: Time| {
            let mut attempt = plan.clone();
            attempt.transfers.push(placed(group, rank, gate, length));
            (timeline::run(boundaries, &attempt).iteration_time(), attempt)
        };
        let [(in_backward, one), (in_forward, other)] =
            [attempt(backward, backward.min(compute)), attempt(forward, forward)];
        plan = if in_backward <= in_forward { one } else { other };
    }
    Packed { plan, hidden_count }
}

fn placed(group: &ParameterGroup, rank: Time, gate: Time, time: Time) -> PlannedTransfer {
    PlannedTransfer { parameters: group.parameters.clone(), bytes: group.window.bytes, time, gate, rank }
}

/// The channel in an iteration whose compute never waits: what is taken is taken in every iteration.
struct Circle {
    length: Time,
    /// Ascending and disjoint, within one round.
    busy: Vec<(Time, Time)>,
}

impl Circle {
    /// The earliest start from `from` on of `length` without interruption, if there is one.
    fn earliest(&self, from: Time, length: Time) -> Option<Time> {
        look();
        let mut start = from;
        // What takes no time still has a moment of its own, or it would be in the way of what begins there.
        let moment = length.max(Time::from_ps(1));
        // What begins within a round ends within two, and `from` lies in the first two.
        for round in 0..4 {
            let turned = |time: Time| time + Time::from_ps(self.length.ps() * round);
            for &(busy_from, busy_to) in &self.busy {
                if turned(busy_to) > start && turned(busy_from) < start + moment {
                    start = turned(busy_to);
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
