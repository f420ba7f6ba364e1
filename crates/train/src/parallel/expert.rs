//! Expert parallelism: tokens are sent to the ranks of their experts, and the results are sent back. Both transfers are
//! on the critical path.
//!
//! An all-to-all ends on all ranks when it ends on the slowest rank. If the load is unequal, all experts take as long
//! as the busiest one; the specification contains its bytes and times.
//!
//! # Source
//! Lepikhin et al. (2021), GShard, section 3.2. The backward pass of an all-to-all is an all-to-all, too.

use super::Label;
use super::writer::Writer;
use crate::collective::levels::CollectiveKind;
use gradtide_net::Time;

impl Writer<'_> {
    /// Writes the dispatch of `bytes`, the compute of the experts, and the combine. In the backward pass, writes the
    /// same ops for the gradients.
    pub fn experts(&mut self, bytes: u64, cost: Time, label: Label) {
        let group = self.own().expert;
        self.exchange(group, CollectiveKind::AllToAll, bytes, label);
        self.compute(cost, label);
        self.exchange(group, CollectiveKind::AllToAll, bytes, label);
    }
}
