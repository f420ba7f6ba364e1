//! Data parallelism: the reduction of gradients, their norm, and the optimizer step.
//!
//! A sharded gradient is reduce-scattered over the ranks that shard it, and its parts are all-reduced over their
//! replicas (HSDP). The sharding determines when gradients are reduced:
//!
//! | | reduced |
//! |---|---|
//! | nothing sharded, or ZeRO-1 | with the last micro-batch |
//! | ZeRO-2, ZeRO-3 | with every micro-batch; the next one begins when all reductions have ended |
//! | any of these, with a pipeline | with the last micro-batch |
//!
//! With ZeRO-2 and ZeRO-3 the reduce-scatter of a unit must end before the backward pass of the unit after the next
//! one, because there is only one buffer for its input.
//!
//! The gloo backend has no reduce-scatter: torch all-reduces the whole gradient, keeps one part, and waits until the
//! all-reduce has ended.
//!
//! The gradients of tied embeddings are summed when the first and the last stage have reduced their gradients. Then the
//! norm is computed.
//!
//! # Source
//! Rajbhandari et al. (2020). In PyTorch's `fully_shard` every backward pass reduces unless
//! `set_requires_gradient_sync` is off, and torch's pipeline stages turn it off until the last micro-batch. Megatron
//! always reduces only with the last micro-batch.

use super::mesh::DataGroups;
use super::pipeline::Turn;
use super::state::Node;
use super::writer::Writer;
use super::{Label, Phase, Subject};
use crate::collective::levels::CollectiveKind;
use crate::spec::ShardingSpec;
use gradtide_net::Time;

/// All-reduces at the end of a step that connect classes: the gradients of tied embeddings, and the norm of all
/// gradients.
#[derive(Clone, Copy)]
pub(super) struct LastSums {
    pub embedding: Option<Node>,
    pub norm: Option<Node>,
}

const UPDATE: Label = Label { subject: Subject::All, phase: Phase::Update, micro_batch: 0 };

impl Writer<'_> {
    /// Writes the all-reduces at the end of a step.
    pub fn last_sums(&mut self) -> LastSums {
        let (spec, embedding, norm) = (self.spec, self.groups.embedding, self.groups.norm);
        let mut sum = |group: Option<u32>, bytes| {
            group.map(|group| self.transfer(group, CollectiveKind::AllReduce, bytes, UPDATE, &[]))
        };
        let sums = LastSums { embedding: sum(embedding, spec.tied_embedding_bytes), norm: sum(norm, spec.norm_bytes) };
        if let LastSums { embedding: Some(embedding), norm: Some(norm) } = sums {
            self.within(embedding, norm);
        }
        sums
    }

    /// Reduces the gradients of a unit after its backward pass, if this micro-batch reduces them.
    pub fn reduce_unit(&mut self, unit: u32, turn: Turn) {
        if !self.spec.overlap_gradients || !self.reduces_with(turn.micro_batch) {
            return;
        }
        let (dense, experts) = self.held(unit);
        if dense.gradients == 0 && experts.gradients == 0 {
            return;
        }
        let label = Label { subject: self.subject(unit), phase: Phase::Backward, micro_batch: turn.micro_batch };
        let before = std::mem::take(&mut self.parameters.scattering);
        self.reduce(dense.gradients, experts.gradients, label);
        if self.spec.gloo {
            self.parameters.scattering.clear();
            self.front.append(&mut self.parameters.reduced);
        } else if self.spec.sharding >= ShardingSpec::Zero2 {
            self.awaited.extend(before);
        }
    }

    /// Makes the next backward pass wait for the reductions of this backward pass, if there are any.
    pub fn end_backward(&mut self, turn: Turn) {
        if self.reduces_with(turn.micro_batch) && turn.micro_batch + 1 < self.spec.micro_batches {
            self.parameters.scattering.clear();
            self.awaited.clear();
            self.front.append(&mut self.parameters.reduced);
        }
    }

    /// Reduces the remaining gradients, and writes the optimizer step of a class.
    pub fn update(&mut self, last: LastSums) {
        if !self.spec.overlap_gradients {
            let (dense, experts) = self.held_by_class();
            self.reduce(dense.gradients, experts.gradients, Label { phase: Phase::Backward, ..UPDATE });
        }
        self.parameters.scattering.clear();
        self.awaited.clear();
        self.front.append(&mut self.parameters.reduced);
        let is_outer = self.class == 0 || self.class + 1 == self.spec.mesh.pp;
        let embedding = last.embedding.filter(|_| is_outer);
        if let (Some(first), Some(last)) = (embedding.or(last.norm), last.norm.or(embedding)) {
            for end in std::mem::replace(&mut self.front, vec![last]) {
                self.within(end, first);
            }
        }
        self.compute(Time::from_ps(self.spec.optimizer_ps[self.class as usize]), UPDATE);
    }

    fn reduces_with(&self, micro_batch: u32) -> bool {
        let is_each = self.spec.sharding >= ShardingSpec::Zero2 && self.spec.mesh.pp == 1;
        is_each || micro_batch + 1 == self.spec.micro_batches
    }

    /// Reduces the gradients, of `dense` and `experts` bytes, that the last op completes.
    fn reduce(&mut self, dense: u64, experts: u64, label: Label) {
        let (own, done) = (self.own(), self.last_op());
        let scatter = if self.spec.gloo { CollectiveKind::AllReduce } else { CollectiveKind::ReduceScatter };
        for (DataGroups { sharded, replicated, shards }, bytes) in [(own.dense, dense), (own.experts, experts)] {
            if bytes == 0 {
                continue;
            }
            let scattered = sharded.map(|group| self.transfer(group, scatter, bytes, label, &[done]));
            self.parameters.scattering.extend(scattered);
            let (kind, part) = (CollectiveKind::AllReduce, bytes.div_ceil(u64::from(shards)));
            let after = scattered.unwrap_or(done);
            let summed = replicated.map(|group| self.transfer(group, kind, part, label, &[after]));
            self.parameters.reduced.extend(summed.or(scattered));
        }
    }
}
