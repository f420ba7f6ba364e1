//! Execution state of a plan: counts arrivals, and sends the messages that depend on them.

use super::plan::{CollectivePlan, Message, Passage};
use std::collections::BTreeMap;

/// State of one execution of a plan, independent of the transport.
///
/// The state takes two words per rank, plus a few for each step in which messages arrive before their receiver has
/// begun the step.
#[derive(Clone, Debug)]
pub struct Progress {
    plan: CollectivePlan,
    /// Current step of each rank.
    places: Vec<RankProgress>,
    /// Number of messages that arrived before their receiver began the step, by (step, rank).
    early: BTreeMap<(u32, u32), u32>,
    /// Number of ranks that have not completed their last step.
    left_count: u32,
}

/// A rank's current step, which ends when `missing` more messages have arrived.
#[derive(Clone, Copy, Debug)]
struct RankProgress {
    step: u32,
    missing: u32,
}

impl Progress {
    /// Starts the plan by calling `send` with every message that has no dependency.
    pub fn begin(plan: CollectivePlan, send: &mut dyn FnMut(Message)) -> Self {
        let ranks = plan.ranks();
        let places = vec![RankProgress { step: 0, missing: 0 }; ranks as usize];
        let mut progress = Self { plan, places, early: BTreeMap::new(), left_count: ranks };
        for rank in 0..ranks {
            progress.begin_step(0, rank, send);
        }
        progress
    }

    /// Handles a message that has arrived and, if its action is [`Action::Reduce`](super::plan::Action), has been
    /// reduced. Calls `send` with the messages whose dependencies are now met. Each message must be reported once.
    pub fn on_arrival(&mut self, passage: Passage, send: &mut dyn FnMut(Message)) {
        let Passage { step, from, to } = passage;
        if self.plan.is_one_at_a_time(step) {
            self.count(step, from, send);
        }
        self.count(step, to, send);
    }

    /// Returns whether every message has arrived.
    pub fn is_complete(&self) -> bool {
        self.left_count == 0
    }

    /// Returns the current step of a rank, or the number of steps if the rank has completed all of them.
    pub fn step(&self, rank: u32) -> u32 {
        self.places[rank as usize].step
    }

    fn count(&mut self, step: u32, rank: u32, send: &mut dyn FnMut(Message)) {
        let place = &mut self.places[rank as usize];
        if place.step != step {
            *self.early.entry((step, rank)).or_default() += 1;
            return;
        }
        place.missing -= 1;
        if place.missing == 0 {
            self.begin_step(step + 1, rank, send);
        }
    }

    /// Begins a step of a rank, and each following step whose messages have all arrived already.
    fn begin_step(&mut self, mut step: u32, rank: u32, send: &mut dyn FnMut(Message)) {
        while step < self.plan.step_count() {
            let mut sent_count = 0;
            self.plan.sends(step, rank, &mut |message| {
                sent_count += 1;
                send(message);
            });
            let own = if self.plan.is_one_at_a_time(step) { sent_count } else { 0 };
            let early = self.early.remove(&(step, rank)).unwrap_or(0);
            let missing = self.plan.receive_count(step, rank) + own - early;
            if missing > 0 {
                self.places[rank as usize] = RankProgress { step, missing };
                return;
            }
            step += 1;
        }
        self.places[rank as usize] = RankProgress { step, missing: 0 };
        self.left_count -= 1;
    }
}
