//! Tensor parallelism: what an op joins before it, and sums after it. All of it is on the critical path.
//!
//! In the forward pass an op that divides its input joins the sequence first, and one that leaves partial results sums
//! them; in the backward pass the two change places. A sum is an all-reduce. With sequence parallelism it is a
//! reduce-scatter, and only then is there anything to join: an all-gather.
//!
//! Left out, because they are small: the all-reduces of the loss over a divided vocabulary, and of the gradients of
//! normalisations under sequence parallelism. Left out, because it hides behind a product: the all-gather that Megatron
//! repeats in the backward pass to save memory.
//!
//! # Source
//! Shoeybi et al. (2019), section 3, operators f and g; Korthikanti et al. (2022), section 4.2.2.

use super::writer::Writer;
use super::{Label, Phase};
use crate::collective::levels::CollectiveKind;
use crate::spec::RoleSpec;

/// What happens around an op.
pub(super) struct Sides {
    /// Before it.
    pub joins: bool,
    /// After it.
    pub sums: bool,
}

pub(super) fn sides(role: RoleSpec, phase: Phase) -> Sides {
    let (divides, leaves_parts) = match role {
        RoleSpec::Embedding => (false, true),
        RoleSpec::Attention | RoleSpec::Mlp | RoleSpec::Experts => (true, true),
        RoleSpec::Head => (true, false),
        RoleSpec::Other => (false, false),
    };
    match phase {
        Phase::Backward => Sides { joins: leaves_parts, sums: divides },
        _ => Sides { joins: divides, sums: leaves_parts },
    }
}

impl Writer<'_> {
    /// Makes a divided sequence whole.
    pub fn join(&mut self, label: Label) {
        if self.spec.sequence_parallel {
            self.exchange(self.own().tensor, CollectiveKind::AllGather, self.spec.activation_bytes, label);
        }
    }

    /// Adds up what the ranks have.
    pub fn sum(&mut self, label: Label) {
        let is_divided = self.spec.sequence_parallel;
        let kind = if is_divided { CollectiveKind::ReduceScatter } else { CollectiveKind::AllReduce };
        self.exchange(self.own().tensor, kind, self.spec.activation_bytes, label);
    }
}
