//! Context parallelism: keys and values circulate in a ring, while each rank computes attention on the parts that have
//! arrived.
//!
//! ```text
//! compute   part 0   part 1   part 2        an op in one part per rank
//! send        1 ───►   2 ───►               the input of part k has passed k ranks
//! ```
//!
//! In the backward pass the gradients of keys and values circulate with them, which doubles the bytes. All parts take
//! the same time. This is also the case with a causal mask, if each rank has a part from either end of the sequence.
//!
//! With an all-gather instead of the ring, keys and values are gathered before attention and again before its backward
//! pass. After the backward pass, their gradients are reduce-scattered. Compute waits for each of these collectives.
//! Differs from torchtitan, which meanwhile computes attention on the rank's own part, and sends gradients in a ring.
//!
//! # Source
//! Ring: Liu et al. (2023), ring attention, section 3. All-gather: Llama Team (2024), The Llama 3 Herd of Models,
//! section 3.3.2.

use super::writer::Writer;
use super::{Label, Phase};
use crate::collective::levels::CollectiveKind;
use crate::spec::ContextSpec;
use gradtide_net::Time;

impl Writer<'_> {
    /// Computes attention over the whole sequence. `bytes` is the size of the keys and values of one rank's part.
    pub fn attention(&mut self, bytes: u64, cost: Time, label: Label) {
        let (Some(group), 1..) = (self.own().context, bytes) else {
            self.compute(cost, label);
            return;
        };
        let ranks = self.spec.mesh.cp;
        let is_backward = label.phase == Phase::Backward;
        match self.spec.context {
            ContextSpec::Ring => {
                let bytes = if is_backward { 2 * bytes } else { bytes };
                self.in_parts(group, ranks, bytes, cost, label);
            }
            ContextSpec::AllGather => {
                let whole = u64::from(ranks) * bytes;
                self.exchange(Some(group), CollectiveKind::AllGather, whole, label);
                self.compute(cost, label);
                if is_backward {
                    self.exchange(Some(group), CollectiveKind::ReduceScatter, whole, label);
                }
            }
        }
    }
}
