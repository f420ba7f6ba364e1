//! Context parallelism: keys and values go around a ring, while each rank works on those that it has.
//!
//! ```text
//! compute   part 0   part 1   part 2        an op in as many parts as there are ranks
//! send        1 ───►   2 ───►               what part k needs has come k ranks far
//! ```
//!
//! In the backward pass the gradients of keys and values go with them: twice the bytes. All parts take the same time, as
//! with a causal mask of which each rank has a part from either end of the sequence.
//!
//! torchtitan gathers keys and values before it attends by default, Megatron has the ring. The ring hides what it sends.
//!
//! # Source
//! Liu et al. (2023), ring attention, section 3.

use super::writer::Writer;
use super::{Label, Phase};
use crate::collective::levels::CollectiveKind;
use gradtide_net::Time;

impl Writer<'_> {
    /// Attends to the whole sequence, of which each rank has the keys and values of its own part: `bytes`.
    pub fn attention(&mut self, bytes: u64, cost: Time, label: Label) {
        let (Some(group), 1..) = (self.own().context, bytes) else {
            self.compute(cost, label);
            return;
        };
        let bytes = if label.phase == Phase::Backward { 2 * bytes } else { bytes };
        let part_count = u64::from(self.spec.mesh.cp);
        let (share, rest) = (cost.ps() / part_count, cost.ps() % part_count);
        let mut held = self.front.clone();
        for part in 0..part_count {
            let sent = (part + 1 < part_count).then(|| self.transfer(group, CollectiveKind::Send, bytes, label, &held));
            self.compute(Time::from_ps(share + if part == 0 { rest } else { 0 }), label);
            if let Some(sent) = sent {
                held = vec![sent];
                self.front.push(sent);
            }
        }
    }
}
