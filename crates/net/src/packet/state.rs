//! What decides how a quiet network goes on, as numbers that can be compared.
//!
//! Quiet means that no packet is under way and no application waits to write. What is left is the state of connections
//! and qdiscs. It is written relative to the present: instants as distances from now, stream offsets as distances from
//! the first byte that is not acknowledged. Two moments of one network at which the numbers are equal are followed by
//! the same, picosecond by picosecond, as long as the same flows are started.
//!
//! Left out is what has no effect any more: totals, offsets that have been passed, the times at which deadlines that
//! moved on are looked at. Every `write_state` takes its struct apart whole, so that a new field cannot be forgotten.

use super::tcp::sender::NEVER;

/// Writes a state down.
#[derive(Debug)]
pub(crate) struct Writer {
    words: Vec<u64>,
    now_ps: u64,
    times_round_trips: bool,
    tells_odd_bytes: bool,
    is_lasting: bool,
    pub omits: Omits,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct State {
    words: Box<[u64]>,
    /// It stays the same while nothing is started.
    pub is_lasting: bool,
    pub omits: Omits,
}

/// What is left out of a state, because it has no effect unless something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Omits {
    /// Estimates of round trips, and phases of the ticks in which they are measured. They have an effect when a
    /// retransmission timer has run for the least timeout, unless no estimate can make it longer than that.
    pub estimates: bool,
    /// By how much some congestion windows are larger than what limits their senders. It has an effect when a window is
    /// reduced.
    pub growth: bool,
    /// Acknowledged bytes that do not make a segment yet. They have an effect when as few are acknowledged at once.
    pub odd_bytes: bool,
}

impl Omits {
    /// What either leaves out.
    pub fn or(self, other: Self) -> Self {
        Self {
            estimates: self.estimates || other.estimates,
            growth: self.growth || other.growth,
            odd_bytes: self.odd_bytes || other.odd_bytes,
        }
    }
}

impl State {
    /// What it takes to keep it.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.words)
    }
}

impl Writer {
    /// Of `now_ps`. `times_round_trips`: estimates of round trips have an effect, and with them the times that packets
    /// carry, in ticks of `tick_ps`. `tells_odd_bytes`: no [`Omits::odd_bytes`].
    pub fn new(now_ps: u64, times_round_trips: bool, tick_ps: u64, tells_odd_bytes: bool) -> Self {
        let omits = Omits { estimates: !times_round_trips, ..Omits::default() };
        let phase = if times_round_trips { now_ps % tick_ps } else { u64::MAX };
        let words = vec![phase, u64::from(tells_odd_bytes)];
        Self { words, now_ps, times_round_trips, tells_odd_bytes, is_lasting: !times_round_trips, omits }
    }

    pub fn times_round_trips(&self) -> bool {
        self.times_round_trips
    }

    pub fn tells_odd_bytes(&self) -> bool {
        self.tells_odd_bytes
    }

    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    pub fn into_state(self) -> State {
        State { words: self.words.into(), is_lasting: self.is_lasting, omits: self.omits }
    }

    pub fn word(&mut self, word: u64) {
        self.words.push(word);
    }

    pub fn flag(&mut self, flag: bool) {
        self.words.push(u64::from(flag));
    }

    pub fn number(&mut self, number: f64) {
        self.words.push(number.to_bits());
    }

    /// A stream offset as seen from `from`, before or after it.
    pub fn offset(&mut self, offset: u64, from: u64) {
        self.words.push(if offset == u64::MAX { offset } else { offset.wrapping_sub(from) });
    }

    /// A stream offset that is only asked whether `from`, which grows, has come to it or passed it.
    pub fn bound(&mut self, offset: u64, from: u64) {
        self.words.push(if offset < from { 0 } else { 1 + (offset - from) });
    }

    /// A deadline.
    pub fn deadline(&mut self, at_ps: u64) {
        if at_ps == NEVER { self.word(NEVER) } else { self.instant(at_ps) }
    }

    /// An instant before or after now.
    pub fn instant(&mut self, at_ps: u64) {
        self.is_lasting = false;
        self.words.push(at_ps.wrapping_sub(self.now_ps));
    }
}
