//! The deadline policy. Chunks that have slack until their deadline are sent in the low band, late chunks in the high
//! band. The workers compute the deadlines.

use super::chunk::Chunk;
use super::forecast::Group;
use super::workers::{Rule, Workers};
use crate::bands::{Arrival, BandPolicy, Begin, NextMessage, Pick, StartChunk, View};
use gradtide_net::Time;
use std::collections::BTreeMap;

/// Deadline policy of a job.
pub struct Deadlines {
    rule: Rule,
    workers: Workers,
    group: Group,
    /// Chunks in flight, by number. Chunks that have ended may remain until the next chunk is picked.
    chunks: BTreeMap<u64, Chunk>,
}

impl Deadlines {
    /// Creates a policy whose workers have no measurements yet.
    pub fn new(rule: Rule, group: Group) -> Self {
        Self { rule, workers: Workers::new(rule, group.count), group, chunks: BTreeMap::new() }
    }
}

impl BandPolicy for Deadlines {
    fn on_ready(&mut self, transfer: u32, now: Time, last_output_at: &mut dyn Iterator<Item = Time>) {
        if self.group.last_bucket == Some(transfer) {
            // If a single worker represents all workers, it never waits for another one.
            self.workers.on_computed(last_output_at.map(|last_output_at| now - last_output_at));
        }
    }

    fn on_pick(&mut self, chunk: u64, view: &View) -> Pick {
        let Self { rule, workers, group, chunks } = self;
        chunks.retain(|number, _| view.in_flight.contains(number));
        let may_be_high = !chunks.values().any(Chunk::is_high_somewhere);
        let picked = (view.iteration, view.bytes, group.rounds);
        let begun = workers.begin(view.now, picked, may_be_high, &mut |rank| {
            group.forecast(view, rank, chunks.values().map(|chunk| chunk.left(rank)).sum())
        });
        let Some(begun) = begun else { return Pick::Wait };
        let is_high = begun.is_high_somewhere();
        if is_high {
            chunks.values_mut().for_each(Chunk::turn_high);
        }
        chunks.insert(chunk, begun);
        if is_high { Pick::Raise(rule.high) } else { Pick::Send }
    }

    fn on_begin(&mut self, chunk: u64, _view: &dyn Fn() -> View, _start: &StartChunk<'_>) -> Begin {
        let band = |rank| self.workers.band(self.chunks[&chunk].is_high(rank));
        Begin { bands: self.rule.bands_of(self.group.count, band), ends: None }
    }

    fn on_message(&mut self, arrival: &Arrival<'_>) -> NextMessage {
        let (from, to) = (arrival.from as usize, arrival.to as usize);
        let (is_sent_high, is_high) =
            (self.chunks[&arrival.chunk].is_high(from), self.chunks[&arrival.chunk].is_high(to));
        let in_flight = || arrival.in_flight.iter().map(|chunk| &self.chunks[chunk]);
        let beside = in_flight().filter(|chunk| chunk.is_high(to) == is_high).count() as u32;
        let are_high = [true, false].into_iter().find(|&all| in_flight().all(|chunk| chunk.is_everywhere(all)));
        let chunk = self.chunks.get_mut(&arrival.chunk).expect("the chunk is in flight");
        self.workers.on_received(chunk, to, arrival.now, (beside, are_high));
        NextMessage { is_high: is_sent_high, band: Some(self.workers.band(chunk.is_high(to))) }
    }
}
