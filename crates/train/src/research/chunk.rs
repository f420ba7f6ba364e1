//! A chunk in flight, as a policy follows it.

use gradtide_net::{Bytes, Time};

/// A chunk in flight.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// Bytes of a round.
    pub round: Bytes,
    /// Number of messages that each worker receives of it.
    pub rounds: u32,
    /// By worker.
    pub ranks: Vec<Receiving>,
    /// Number of workers that send the rest of it high; cached because every message reads it.
    pub high_count: usize,
}

/// State of a chunk on one worker.
#[derive(Clone, Copy, Debug)]
pub struct Receiving {
    /// Whether it sends the rest high.
    pub is_high: bool,
    /// Number of messages received.
    pub received: u32,
    /// When it has to have ended.
    pub deadline: Time,
    /// Expected end, if the chunk is sent alone and the paces are known.
    pub expected: Option<Expected>,
}

/// A worker's expectation for a chunk.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// When it begins.
    pub begun: Time,
    /// End of the chunk if it begins low, or high.
    pub ends: [Time; 2],
    /// Whether it begins high.
    pub began_high: bool,
}

impl Chunk {
    /// Whether a worker sends the rest of it in the high band.
    pub fn is_high(&self, rank: usize) -> bool {
        self.ranks[rank].is_high
    }

    /// Whether any worker does.
    pub fn is_high_somewhere(&self) -> bool {
        self.high_count > 0
    }

    /// Whether all workers send the rest of it high, or all low.
    pub fn is_everywhere(&self, is_high: bool) -> bool {
        self.high_count == if is_high { self.ranks.len() } else { 0 }
    }

    /// A chunk of `bytes` in `rounds` messages to each of `count` workers, all of which begin in the same band.
    pub fn new(bytes: Bytes, rounds: u32, count: usize, is_high: bool) -> Self {
        let rounds = rounds.max(1);
        let receiving = Receiving { is_high, received: 0, deadline: Time::MAX, expected: None };
        let high_count = if is_high { count } else { 0 };
        Self { round: Bytes(bytes.0 / u64::from(rounds)), rounds, ranks: vec![receiving; count], high_count }
    }

    /// Moves the rest of the chunk to the high band, because a more urgent one uses it.
    pub fn turn_high(&mut self) {
        self.ranks.iter_mut().for_each(|receiving| receiving.is_high = true);
        self.high_count = self.ranks.len();
    }

    /// Bytes that a worker has not received.
    pub fn left(&self, rank: usize) -> Bytes {
        Bytes(self.round.0 * u64::from(self.rounds - self.ranks[rank].received))
    }
}
