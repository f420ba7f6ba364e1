//! The flows of one band: their max-min fair rates, and the times at which their next messages are received.

use super::due::Due;
use super::group::{Groups, NO_MESSAGE};
use crate::maxmin::{ClassId, MaxMin};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The flows of one band, in classes.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    pub solver: MaxMin,
    /// Classes by their bottlenecks.
    pub groups: Groups,
    /// Target and slot of each message of a class except the first to be received. The list may end before the last
    /// class, because it is only extended for classes with several flows.
    pub later: Vec<BinaryHeap<Reverse<(u128, u32)>>>,
    /// Time at which the next message of each group is received.
    pub due: Due,
}

impl Shares {
    pub fn new(solver: MaxMin, link_count: usize) -> Self {
        Self { solver, groups: Groups::new(link_count), later: Vec::new(), due: Due::default() }
    }

    /// Adds a flow with the remaining work `work` to a class. The next solve computes the time at which it is received.
    pub fn join(&mut self, id: ClassId, now_fs: u128, (work, slot): (u128, u32)) {
        self.groups.open(id.0);
        let target =
            self.groups.work_at(id.0, now_fs).checked_add(work).expect("work stays below 2^128: see `Fluid::start`");
        let (new, known) = ((target, slot), self.groups.first(id.0));
        let later = new.max(known);
        if new < known {
            self.groups.set_first(id.0, new);
        }
        if later != NO_MESSAGE {
            let index = id.0 as usize;
            if index >= self.later.len() {
                self.later.resize_with(index + 1, BinaryHeap::new);
            }
            self.later[index].push(Reverse(later));
        }
    }

    /// Removes the flow of a class that is received first.
    pub fn remove(&mut self, id: ClassId) {
        let is_empty = !self.solver.remove(id);
        let next = if is_empty { None } else { self.later[id.0 as usize].pop() };
        match next {
            Some(Reverse(next)) => self.groups.set_first(id.0, next),
            None => self.groups.close(id.0),
        }
    }

    /// Removes a flow from a class and returns the remaining work of the flow.
    pub fn detach(&mut self, id: ClassId, slot: u32, now_fs: u128) -> u128 {
        let done = self.groups.work_at(id.0, now_fs);
        let (mut target, first) = self.groups.first(id.0);
        if first == slot {
            self.remove(id);
        } else {
            self.solver.remove(id);
            self.later[id.0 as usize].retain(|&Reverse((of_flow, flow))| {
                target = if flow == slot { of_flow } else { target };
                flow != slot
            });
        }
        target.saturating_sub(done)
    }
}
