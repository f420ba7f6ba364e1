//! Band policies: the traffic class (band) in which each worker of a job sends its next message.
//!
//! A send queue calls its [`BandPolicy`] at four points: a transfer is ready, a chunk could be picked, its flows start,
//! a message has arrived. [`Deadlines`] uses what workers measure themselves; [`Foreseeing`] is an oracle for
//! comparison.

pub mod foresight;
pub mod priority;

use crate::caramel::Boundaries;
use crate::collective::Aggregation;
use crate::collective::messages::{Bands, Messages};
use crate::traffic::BackgroundFlows;
use foresight::foresee;
use gradtide_net::{Band, Bytes, Network, Time};
use priority::{Chunk, Milestone, Oracle, Outlook, Rule, Workers};

/// Chooses and changes the bands of the chunks of a send queue.
pub trait BandPolicy {
    /// In-flight limit, if it differs from the queue's own.
    fn credit(&self) -> Option<usize> {
        None
    }

    /// A transfer is ready. `gave_at` has the time at which each worker completed its last part of a transfer.
    fn on_ready(&mut self, _transfer: u32, _now: Time, _gave_at: &mut dyn Iterator<Item = Time>) {}

    /// The queue could pick a chunk. Returns the policy's state for it, if it keeps any; an error makes the chunk wait
    /// until another one has ended.
    fn on_pick(&mut self, _view: &View<'_>, _beside: &mut [UnderWay<'_>]) -> Result<Option<Chunk>, Waits> {
        Ok(None)
    }

    /// The flows of a chunk start: chooses its bands.
    fn on_begin(&mut self, beginning: Beginning<'_>, network: &mut dyn Network) -> Begun;

    /// `rank` has received a message of chunk `own` in `under_way`, and sends the next one.
    fn on_message(&mut self, _now: Time, _rank: u32, _under_way: &mut [UnderWay<'_>], _own: usize) {}
}

/// The chunk must wait until another one has ended.
#[derive(Clone, Copy, Debug)]
pub struct Waits;

/// The rest of an iteration when a chunk is picked or begins.
pub struct View<'a> {
    /// Present time.
    pub now: Time,
    /// Iteration of the chunk.
    pub iteration: u32,
    /// Its bytes.
    pub bytes: Bytes,
    /// Compute progress of each worker since the start of the iteration; one entry if all are alike.
    pub positions: Vec<Time>,
    /// Bytes of every bucket that have not arrived, except those of this chunk and of others in flight.
    pub left: Vec<Bytes>,
    /// Buckets of the chunk that begins and of those in flight.
    pub under_way: Vec<u32>,
    /// Send order of the queue.
    pub ranks: &'a [u32],
}

/// A chunk in flight for which the policy keeps state.
pub struct UnderWay<'a> {
    /// State of the policy for it.
    pub chunk: &'a mut Chunk,
    /// Its messages, once they have started.
    pub messages: Option<&'a mut Messages>,
}

/// A chunk whose flows are about to start.
pub struct Beginning<'a> {
    /// State of the policy for it.
    pub chunk: Option<&'a Chunk>,
    /// Returns the rest of the iteration, and the state of the chunks in flight.
    pub view: &'a dyn Fn() -> (View<'a>, Vec<&'a Chunk>),
    /// Starts its flows in a band.
    pub begin: &'a dyn Fn(Band, &mut dyn Network) -> Aggregation,
    /// Background flows on the network.
    pub background: &'a [BackgroundFlows<'a>],
}

/// The choice for a chunk that begins.
pub struct Begun {
    /// The bands.
    pub bands: Bands,
    /// New state of the chunk, if the policy creates it now.
    pub chunk: Option<Chunk>,
    /// When it will end, if the policy predicts it exactly.
    pub ends: Option<Time>,
}

/// The workers of a job and the windows of their buckets.
#[derive(Clone, Debug)]
pub struct Group {
    boundaries: Boundaries,
    milestones: Vec<Milestone>,
    /// Number of messages that each worker receives of a chunk.
    rounds: u32,
    count: usize,
    /// The last bucket to become ready in an iteration.
    last_bucket: Option<u32>,
}

impl Group {
    /// `count` workers, each of which receives a chunk in `rounds` messages; `last_bucket` is the last one of an
    /// iteration to become ready.
    pub fn new(boundaries: Boundaries, rounds: u32, count: usize, last_bucket: Option<u32>) -> Self {
        Self { milestones: Milestone::all(&boundaries), boundaries, rounds, count, last_bucket }
    }

    fn outlook<'a>(&'a self, view: &'a View<'_>, rank: usize, ahead: Bytes) -> Outlook<'a> {
        Outlook {
            boundaries: &self.boundaries,
            milestones: &self.milestones,
            ranks: view.ranks,
            now: view.now,
            position: view.positions[if view.positions.len() > 1 { rank } else { 0 }],
            left: &view.left,
            under_way: &view.under_way,
            ahead,
        }
    }
}

/// Sends chunks with slack low and late ones high, by the deadlines that workers compute.
pub struct Deadlines {
    rule: Rule,
    workers: Workers,
    group: Group,
    /// Limit on high chunks in flight.
    credit: usize,
}

impl Deadlines {
    /// Workers without measurements.
    pub fn new(rule: Rule, group: Group, credit: usize) -> Self {
        Self { rule, workers: Workers::new(rule, group.count), group, credit }
    }
}

impl BandPolicy for Deadlines {
    fn credit(&self) -> Option<usize> {
        Some(self.workers.credit())
    }

    fn on_ready(&mut self, transfer: u32, now: Time, gave_at: &mut dyn Iterator<Item = Time>) {
        if self.group.last_bucket == Some(transfer) {
            // A single worker that represents all waits for none.
            self.workers.on_computed(gave_at.map(|gave_at| now - gave_at));
        }
    }

    fn on_pick(&mut self, view: &View<'_>, beside: &mut [UnderWay<'_>]) -> Result<Option<Chunk>, Waits> {
        let Self { workers, group, .. } = self;
        let may_be_high = beside.iter().filter(|it| it.chunk.is_high_somewhere()).count() < self.credit;
        let picked = (view.iteration, view.bytes, group.rounds);
        let chunk = workers.begin(view.now, picked, may_be_high, &mut |rank| {
            group.outlook(view, rank, beside.iter().map(|it| it.chunk.left(rank)).sum())
        });
        let chunk = chunk.ok_or(Waits)?;
        if chunk.is_high_somewhere() {
            for UnderWay { chunk, messages } in beside {
                chunk.turn_high();
                if let Some(messages) = messages {
                    (0..group.count as u32).for_each(|rank| messages.set_band(rank, self.rule.high));
                }
            }
        }
        Ok(Some(chunk))
    }

    fn on_begin(&mut self, beginning: Beginning<'_>, _network: &mut dyn Network) -> Begun {
        let is_high = |rank| beginning.chunk.is_some_and(|chunk| chunk.is_high(rank));
        let bands = self.rule.bands_of(self.group.count, |rank| self.workers.band(is_high(rank)));
        Begun { bands, chunk: None, ends: None }
    }

    fn on_message(&mut self, now: Time, rank: u32, under_way: &mut [UnderWay<'_>], own: usize) {
        let place = rank as usize;
        let is_high = under_way[own].chunk.is_high(place);
        let beside = under_way.iter().filter(|it| it.chunk.is_high(place) == is_high).count() as u32;
        let all = |&all: &bool| under_way.iter().all(|it| it.chunk.is_everywhere(all));
        let are_high = [true, false].into_iter().find(all);
        let UnderWay { chunk, messages } = &mut under_way[own];
        self.workers.on_received(chunk, place, now, (beside, are_high));
        if let Some(messages) = messages {
            messages.set_band(rank, self.workers.band(chunk.is_high(place)));
        }
    }
}

/// An oracle that simulates each band in a copy of the network.
pub struct Foreseeing {
    oracle: Oracle,
    group: Group,
}

impl Foreseeing {
    /// An oracle for these workers.
    pub fn new(oracle: Oracle, group: Group) -> Self {
        Self { oracle, group }
    }
}

impl BandPolicy for Foreseeing {
    fn on_begin(&mut self, beginning: Beginning<'_>, network: &mut dyn Network) -> Begun {
        let Self { oracle, group } = self;
        let ways = foresee(network, beginning.background, oracle.small, &oracle.ways, beginning.begin);
        let (view, beside) = (beginning.view)();
        let ahead = |rank| beside.iter().map(|chunk| chunk.left(rank)).sum();
        let outlooks: Vec<Outlook<'_>> =
            (0..view.positions.len()).map(|rank| group.outlook(&view, rank, ahead(rank))).collect();
        let chosen = oracle.choose(view.bytes, &outlooks, &ways);
        let chunk = Chunk::new(view.bytes, group.rounds, group.count, chosen > 0);
        Begun { bands: Bands::Alike(oracle.ways[chosen]), chunk: Some(chunk), ends: Some(ways[chosen].ends) }
    }
}
