//! Expert parallelism: tokens go to the ranks of their experts, and back. Both are on the critical path.
//!
//! An all-to-all ends on all ranks when it ends on the slowest. Experts that are used unequally take as long as the one
//! used most: its bytes and times are given.
//!
//! # Source
//! Lepikhin et al. (2021), GShard, section 3.2; the backward pass of an all-to-all is one.

use super::Label;
use super::writer::Writer;
use crate::collective::levels::CollectiveKind;
use gradtide_net::Time;

impl Writer<'_> {
    /// Dispatches `bytes`, computes, and combines; backward, the gradients of both.
    pub fn experts(&mut self, bytes: u64, cost: Time, label: Label) {
        let group = self.own().expert;
        self.exchange(group, CollectiveKind::AllToAll, bytes, label);
        self.compute(cost, label);
        self.exchange(group, CollectiveKind::AllToAll, bytes, label);
    }
}
