//! State that a policy keeps of a chunk in flight.

use gradtide_net::{Bytes, Time};

/// A chunk in flight.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Bytes of one round of the chunk.
    pub round: Bytes,
    /// Number of messages in which each worker receives the chunk.
    pub rounds: u32,
    /// State of the chunk on each worker.
    pub ranks: Vec<Receiving>,
    /// Number of workers that send the rest of the chunk in the high band. It is cached because it is read for every
    /// message.
    pub high_count: usize,
}

/// State of a chunk on one worker.
#[derive(Clone, Copy, Debug)]
pub struct Receiving {
    /// Whether the worker sends the rest of the chunk in the high band.
    pub is_high: bool,
    /// Number of messages received.
    pub received: u32,
    /// Latest time at which the chunk may end.
    pub deadline: Time,
    /// Expected end if the chunk is sent on its own. `None` as long as the times per KiB are unknown.
    pub expected: Option<Expected>,
}

/// Expected times of a chunk on one worker.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Start of the chunk.
    pub begun: Time,
    /// Expected end if the chunk starts in the low band, and if it starts in the high band, in this order.
    pub ends: [Time; 2],
    /// Whether the chunk starts in the high band.
    pub began_high: bool,
}

impl Chunk {
    /// Returns whether a worker sends the rest of the chunk in the high band.
    pub fn is_high(&self, rank: usize) -> bool {
        self.ranks[rank].is_high
    }

    /// Returns whether any worker sends the rest of the chunk in the high band.
    pub fn is_high_somewhere(&self) -> bool {
        self.high_count > 0
    }

    /// Returns whether all workers send the rest of the chunk in the high band or, if `is_high` is false, in the low
    /// band.
    pub fn is_everywhere(&self, is_high: bool) -> bool {
        self.high_count == if is_high { self.ranks.len() } else { 0 }
    }

    /// Creates a chunk of `bytes`, which each of `count` workers receives in `rounds` messages. All workers start in
    /// the same band.
    pub fn new(bytes: Bytes, rounds: u32, count: usize, is_high: bool) -> Self {
        let rounds = rounds.max(1);
        let receiving = Receiving { is_high, received: 0, deadline: Time::MAX, expected: None };
        let high_count = if is_high { count } else { 0 };
        Self { round: Bytes(bytes.0 / u64::from(rounds)), rounds, ranks: vec![receiving; count], high_count }
    }

    /// Moves the rest of the chunk to the high band, because a more urgent chunk uses this band.
    pub fn turn_high(&mut self) {
        self.ranks.iter_mut().for_each(|receiving| receiving.is_high = true);
        self.high_count = self.ranks.len();
    }

    /// Returns the bytes that a worker has not received.
    pub fn left(&self, rank: usize) -> Bytes {
        Bytes(self.round.0 * u64::from(self.rounds - self.ranks[rank].received))
    }
}
