//! Costs of a collective in closed form.

use super::pattern::log2_ceil;

/// Costs of one collective on a buffer of S bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Number of dependent messages in sequence.
    pub steps: u64,
    /// Total number of messages.
    pub messages: u64,
    /// Total bytes sent, in units of S.
    pub sent: u64,
    /// Bytes that the busiest rank sends, as a fraction of S: (numerator, denominator).
    pub most: (u64, u64),
}

impl Counts {
    /// Costs of a collective that sends nothing.
    pub const NONE: Self = Self { steps: 0, messages: 0, sent: 0, most: (0, 1) };

    /// Returns the costs of a hierarchical collective on `ranks` ranks in groups of `group`. `self` contains the costs
    /// among the heads (first ranks) of the groups. A binomial reduce within each group precedes, and a binomial
    /// broadcast follows.
    pub fn between_trees(self, ranks: u32, group: u32) -> Self {
        let (depth, below) = (u64::from(log2_ceil(group)), u64::from(ranks - ranks.div_ceil(group)));
        Self {
            steps: self.steps + 2 * depth,
            messages: self.messages + 2 * below,
            sent: self.sent + 2 * below,
            most: sum(self.most, (depth, 1)),
        }
    }
}

/// Returns the sum of two fractions.
pub fn sum(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    if a.1 == b.1 { (a.0 + b.0, a.1) } else { (a.0 * b.1 + b.0 * a.1, a.1 * b.1) }
}
