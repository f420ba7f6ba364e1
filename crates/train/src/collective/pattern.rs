//! Patterns: the messages of each step in one phase of a collective.
//!
//! A pattern computes its messages from the index of a rank among the `n` ranks of its subgroup, so that nothing is
//! stored per message. The functions of a pattern must agree with each other, which a test checks for every algorithm.

use std::fmt::Debug;

/// Action of a rank on received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Reduces the bytes into its buffer.
    Reduce,
    /// Overwrites the range of its buffer.
    Copy,
}

/// A share of the buffer. The buffer is cut into `count` parts that differ by at most one element, and the share
/// consists of the parts `first..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferShare {
    /// In an all-to-all, the rank whose buffer contains the share. In other collectives all ranks work on one common
    /// buffer, and `origin` is 0.
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

/// Callback that receives each message of a rank: the receiver, the share, and the receiver's action.
pub type Send<'a> = &'a mut dyn FnMut(u32, BufferShare, Action);

/// The messages of one phase, step by step.
pub trait Pattern: Debug + std::marker::Send + Sync {
    /// Returns the number of steps for `n` ranks.
    fn step_count(&self, n: u32) -> u32;

    /// Calls `send` for every message that rank `i` of `n` sends in `step`, which is below the step count.
    fn sends(&self, step: u32, i: u32, n: u32, send: Send<'_>);

    /// Returns the number of messages that rank `i` of `n` receives in `step`, which is below the step count.
    fn receive_count(&self, step: u32, i: u32, n: u32) -> u32;

    /// Returns whether a rank sends to one peer at a time. Its next step then also waits until the messages that it
    /// sent have arrived.
    fn is_one_at_a_time(&self) -> bool {
        false
    }

    /// Returns the part that rank `i` of `n` sends in `step`, if the pattern is a ring: in each step every rank sends
    /// one part to the next rank. If `step` equals the step count, returns the part that the rank never sends. Returns
    /// `None` if the pattern is no ring.
    fn ring_part(&self, _step: u32, _i: u32, _n: u32) -> Option<u32> {
        None
    }

    /// Returns whether the ranks have different buffers, as in an all-to-all, instead of contributing to one common
    /// buffer. See [`BufferShare::origin`].
    fn has_buffer_of_each_rank(&self) -> bool {
        false
    }
}

/// Returns all ranks of `n` other than `i`, beginning with the next rank.
pub fn others(i: u32, n: u32) -> impl Iterator<Item = u32> {
    (1..n).map(move |distance| (i + distance) % n)
}

/// Returns the depth of a binomial tree of `n` ranks.
pub fn log2_ceil(n: u32) -> u32 {
    n.next_power_of_two().ilog2()
}
