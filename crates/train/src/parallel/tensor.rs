//! Tensor parallelism: the gather before an op and the reduction after it. All transfers are on the critical path.
//!
//! In the forward pass, an op that divides its input first gathers the sequence (*join*), and an op that leaves partial
//! results reduces them (*sum*). In the backward pass a join becomes a sum and a sum becomes a join. Without sequence
//! parallelism a sum is an all-reduce and a join needs no transfer. With sequence parallelism a sum is a reduce-scatter
//! and a join is an all-gather.
//!
//! Three collectives are left out. The all-reduces of the loss over a divided vocabulary, and of the gradients of
//! normalisations under sequence parallelism, are small. The all-gather that Megatron repeats in the backward pass to
//! save memory overlaps with a matrix product.
//!
//! Asynchronous tensor parallelism splits a matrix product into one part per rank, and overlaps the transfer of each
//! part with the compute of others. This applies to products whose input is gathered before or whose result is
//! scattered after them. The specification of an op states which products these are.
//!
//! # Source
//! Shoeybi et al. (2019), section 3, operators f and g; Korthikanti et al. (2022), section 4.2.2; PyTorch's
//! `fused_all_gather_matmul` and `fused_matmul_reduce_scatter`.

use super::writer::{Writer, share};
use super::{Label, Phase};
use crate::collective::levels::CollectiveKind;
use crate::spec::{BesideSpec, RoleSpec};
use gradtide_net::Time;

/// Collectives before and after an op.
pub(super) struct Sides {
    /// Whether the sequence is gathered before the op.
    pub joins: bool,
    /// Whether partial results are reduced after the op.
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
    /// Gathers a divided sequence, if the spec requires it.
    pub fn join(&mut self, beside: BesideSpec, label: Label) {
        match (self.own().tensor, beside.join_ps) {
            (Some(group), 1..) => {
                let cost = Time::from_ps(beside.join_ps);
                self.in_parts(group, self.spec.mesh.tp, self.part_bytes(), cost, label);
            }
            (group, _) if self.spec.sequence_parallel => {
                self.exchange(group, CollectiveKind::AllGather, self.spec.activation_bytes, label);
            }
            _ => {}
        }
    }

    /// Reduces the partial results of all ranks.
    pub fn sum(&mut self, beside: BesideSpec, label: Label) {
        if let (Some(group), 1..) = (self.own().tensor, beside.sum_ps) {
            self.sum_in_parts(group, beside, label);
            return;
        }
        let is_parallel = self.spec.sequence_parallel;
        let kind = if is_parallel { CollectiveKind::ReduceScatter } else { CollectiveKind::AllReduce };
        self.exchange(self.own().tensor, kind, self.spec.activation_bytes, label);
    }

    /// Computes and sends the parts of other ranks, then computes the rank's own part, and adds the received parts.
    fn sum_in_parts(&mut self, group: u32, beside: BesideSpec, label: Label) {
        let ranks = self.spec.mesh.tp;
        let mut sent = Vec::new();
        for part in 0..ranks {
            let done = self.compute(share(Time::from_ps(beside.sum_ps), part, ranks), label);
            if part + 1 < ranks {
                sent.push(self.transfer(group, CollectiveKind::Send, self.part_bytes(), label, &[done]));
            }
        }
        self.front.append(&mut sent);
        self.compute(Time::from_ps(beside.add_ps), label);
    }

    fn part_bytes(&self) -> u64 {
        self.spec.activation_bytes.div_ceil(self.spec.mesh.tp.into())
    }
}
