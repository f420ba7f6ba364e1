//! Iteration counts of all workers, and the bound on the lead of a worker over the slowest one.
//!
//! These are the clocks of stale synchronous parallel (Ho et al., NIPS 2013): a worker that has completed c iterations
//! may begin the next one when the slowest worker has completed c - bound iterations.

use gradtide_net::Time;
use std::collections::VecDeque;

/// The clocks of all workers.
pub struct Clocks {
    worker_count: u32,
    bound: Option<u32>,
    /// Number of iterations that every worker has completed.
    floor: u32,
    /// Number of workers that have completed each iteration, from iteration `floor` on.
    counts: VecDeque<u32>,
    /// For each iteration, the latest time so far at which any worker ended its own part of the iteration: its last op,
    /// or the arrival of its last push. See [`super::WorkerRecord::own`].
    own_ends: Vec<Time>,
}

impl Clocks {
    /// Creates the clocks before the first iteration.
    pub fn new(worker_count: usize, bound: Option<u32>) -> Self {
        let (counts, own_ends) = (VecDeque::new(), Vec::new());
        Self { worker_count: worker_count as u32, bound, floor: 0, counts, own_ends }
    }

    /// Records that a worker has completed `iteration`, and that its own part ended at `own_end`. A worker must
    /// complete its iterations in order.
    pub fn complete(&mut self, iteration: u32, own_end: Time) {
        let ahead = (iteration - self.floor) as usize;
        self.counts.resize(self.counts.len().max(ahead + 1), 0);
        self.counts[ahead] += 1;
        while self.counts.front() == Some(&self.worker_count) {
            self.counts.pop_front();
            self.floor += 1;
        }
        let index = iteration as usize;
        self.own_ends.resize(self.own_ends.len().max(index + 1), Time::ZERO);
        self.own_ends[index] = self.own_ends[index].max(own_end);
    }

    /// Returns whether the bound allows a worker to begin `iteration`.
    pub fn may_begin(&self, iteration: u32) -> bool {
        self.bound.is_none_or(|bound| iteration <= self.floor.saturating_add(bound))
    }

    /// Returns the lead of a worker that begins `iteration` over the slowest worker, in iterations.
    pub fn lead(&self, iteration: u32) -> u32 {
        iteration - self.floor
    }

    /// Returns the time for which the bound makes a worker wait after `iteration`. The wait begins when the worker has
    /// ended its own part of `iteration` (its ops and pushes). It ends when all workers have ended their own parts of
    /// iteration `iteration - bound`.
    pub fn waited(&self, iteration: u32, own_end: Time) -> Time {
        let awaited = self.bound.and_then(|bound| iteration.checked_sub(bound));
        let last = awaited.and_then(|awaited| self.own_ends.get(awaited as usize));
        last.map_or(Time::ZERO, |last| last.saturating_since(own_end))
    }
}
