//! Patterns: the messages of each step in one phase of a collective.
//!
//! A pattern is arithmetic on the index of a rank among the `n` ranks of its subgroup; nothing is stored per message.
//! Its functions must agree, which a test checks for every algorithm.

use std::fmt::Debug;

/// Action of a rank on received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Reduces them into its buffer.
    Reduce,
    /// Overwrites its buffer.
    Copy,
}

/// A share of the buffer: parts `first..end` of `count` parts that differ by at most one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferShare {
    /// In an all-to-all, where each rank has its own buffer: the rank that owns the buffer.
    pub origin: u32,
    /// First part.
    pub first: u32,
    /// Index after the last part.
    pub end: u32,
    /// Number of parts.
    pub count: u32,
}

impl BufferShare {
    /// The whole buffer.
    pub const WHOLE: Self = Self { origin: 0, first: 0, end: 1, count: 1 };

    /// Returns one of `count` parts.
    pub fn part(index: u32, count: u32) -> Self {
        Self { origin: 0, first: index, end: index + 1, count }
    }
}

/// Callback that receives the messages of a rank: receiver, share, and the receiver's action.
pub type Send<'a> = &'a mut dyn FnMut(u32, BufferShare, Action);

/// The messages of one phase, step by step.
pub trait Pattern: Debug + std::marker::Send + Sync {
    /// Returns the number of steps for `n` ranks.
    fn step_count(&self, n: u32) -> u32;

    /// Calls `send` for every message of rank `i` of `n` in `step`, which is below the step count.
    fn sends(&self, step: u32, i: u32, n: u32, send: Send<'_>);

    /// Returns the number of messages that rank `i` of `n` receives in `step`, which is below the step count.
    fn receive_count(&self, step: u32, i: u32, n: u32) -> u32;

    /// Returns whether a rank sends to one peer at a time: its next step then also waits for the arrival of its own
    /// messages.
    fn is_one_at_a_time(&self) -> bool {
        false
    }

    /// Returns the part that rank `i` of `n` sends in `step` of a ring, where every rank sends one part to the next
    /// rank in each step. With `step` equal to the step count, returns the part that the rank never sends.
    fn ring_part(&self, _step: u32, _i: u32, _n: u32) -> Option<u32> {
        None
    }

    /// Returns whether each rank has its own buffer, as in an all-to-all; see [`BufferShare::origin`].
    fn has_buffer_of_each_rank(&self) -> bool {
        false
    }
}

/// Returns the ranks of `n` other than `i`, beginning with the next one.
pub fn others(i: u32, n: u32) -> impl Iterator<Item = u32> {
    (1..n).map(move |distance| (i + distance) % n)
}

/// Returns the depth of a binomial tree of `n` ranks.
pub fn log2_ceil(n: u32) -> u32 {
    n.next_power_of_two().ilog2()
}
