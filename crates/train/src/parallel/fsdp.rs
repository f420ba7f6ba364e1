//! Sharded parameters (ZeRO, FSDP), which are gathered before the unit that needs them and freed after it.
//!
//! The gather of unit j in a pass is issued when unit j-d of this pass can begin, where d is the prefetch depth; for
//! the first d units, at the start of the pass. Within a step, gathered parameters are kept until they are freed:
//!
//! | | after the forward pass of a unit | after its backward pass |
//! |---|---|---|
//! | ZeRO-1 | kept | kept to the end of the step; the next one begins with the gathers of all units, in the order of the model |
//! | ZeRO-2 | kept | freed |
//! | ZeRO-3 | freed, except the last unit of the model | freed |
//! | ZeRO-2 and ZeRO-3 with a pipeline | as without a pipeline | freed after the last micro-batch |
//!
//! The gathers and reduce-scatters of a unit use one communicator. A stage issues its gathers without waiting for its
//! input.
//!
//! # Source
//! PyTorch's `fully_shard`, `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch`, whose default is
//! one unit ahead. Like torchtitan, keeps the last unit, which would otherwise be gathered again immediately. With a
//! pipeline, torch's stages keep parameters up to the last backward pass.

use super::pipeline::{Direction, Turn};
use super::state::Node;
use super::writer::Writer;
use super::{Label, Phase, Subject};
use crate::collective::levels::CollectiveKind;
use crate::spec::ShardingSpec;
use std::ops::Add;

/// Bytes of parameters and gradients of one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub parameters: u64,
    pub gradients: u64,
}

impl Add for Held {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { parameters: self.parameters + other.parameters, gradients: self.gradients + other.gradients }
    }
}

impl Writer<'_> {
    /// Returns the bytes of a unit on one rank, first of dense parameters and then of experts.
    pub fn held(&self, unit: u32) -> (Held, Held) {
        let all = self.units[unit as usize].clone().map(|block| self.held_of_block(block));
        all.fold(Default::default(), |(dense, experts), held| (dense + held.0, experts + held.1))
    }

    /// Returns the bytes of a block on one rank. Without expert parallelism, experts count as dense parameters.
    fn held_of_block(&self, block: u32) -> (Held, Held) {
        let kind = self.kind(block);
        let dense = Held { parameters: kind.parameter_bytes, gradients: kind.gradient_bytes };
        let experts = Held { parameters: kind.expert_parameter_bytes, gradients: kind.expert_gradient_bytes };
        if self.spec.mesh.ep > 1 {
            return (dense, experts);
        }
        (dense + experts, Held::default())
    }

    /// Returns the total bytes on one rank of the current class, first of dense parameters and then of experts.
    pub fn held_by_class(&self) -> (Held, Held) {
        let all = self.class_units().into_iter().map(|unit| self.held(unit));
        all.fold(Default::default(), |(dense, experts), held| (dense + held.0, experts + held.1))
    }

    /// Gathers, at the start of a step, the parameters that the last optimizer step left sharded (ZeRO-1).
    pub fn gather_at_begin(&mut self) {
        if self.spec.sharding != ShardingSpec::Zero1 {
            return;
        }
        let (phase, micro_batch) = (Phase::Begin, 0);
        let begin = self.front.clone();
        if self.spec.overlap_gradients {
            for unit in self.class_units() {
                let (dense, experts) = self.held(unit);
                let label = Label { subject: self.subject(unit), phase, micro_batch };
                let gathers = self.gather(dense.parameters, experts.parameters, label, &begin);
                self.parameters.arriving[unit as usize] = gathers;
            }
        } else {
            let (dense, experts) = self.held_by_class();
            let label = Label { subject: Subject::All, phase, micro_batch };
            let gathers = self.gather(dense.parameters, experts.parameters, label, &begin);
            self.front.extend(gathers);
        }
    }

    /// Gathers the parameters of `units[index]` and of later units up to the prefetch depth, unless they have been
    /// gathered.
    pub fn gather_ahead(&mut self, units: &[u32], index: usize, turn: Turn) {
        let depth = match turn.direction {
            Direction::Forward => self.spec.forward_prefetch,
            Direction::Backward => self.spec.backward_prefetch,
        };
        let end = index.saturating_add(depth as usize).saturating_add(1).min(units.len());
        let start = if index == 0 { 0 } else { index.saturating_add(depth as usize).min(end) };
        for &unit in &units[start..end] {
            if self.spec.sharding >= ShardingSpec::Zero2 && !self.parameters.is_gathered[unit as usize] {
                self.parameters.is_gathered[unit as usize] = true;
                let label = Label { subject: self.subject(unit), phase: turn.phase(), micro_batch: turn.micro_batch };
                let front = self.front.clone();
                let (dense, experts) = self.held(unit);
                let gathers = self.gather(dense.parameters, experts.parameters, label, &front);
                self.parameters.arriving[unit as usize] = gathers;
            }
        }
    }

    /// Makes the next compute op wait for the parameters of a unit.
    pub fn await_parameters(&mut self, unit: u32) {
        self.awaited.append(&mut self.parameters.arriving[unit as usize]);
    }

    /// Gathers `dense` and `experts` bytes of parameters when the ops and transfers `after` have ended.
    fn gather(&mut self, dense: u64, experts: u64, label: Label, after: &[Node]) -> Vec<Node> {
        let own = self.own();
        let mut gathers = Vec::new();
        for (group, bytes) in [(own.dense.sharded, dense), (own.experts.sharded, experts)] {
            if let (Some(group), 1..) = (group, bytes) {
                gathers.push(self.transfer(group, CollectiveKind::AllGather, bytes, label, after));
            }
        }
        gathers
    }

    /// Frees the parameters of a unit after a pass, if the sharding frees them.
    pub fn free(&mut self, unit: u32, turn: Turn) {
        let is_last = unit as usize + 1 == self.units.len();
        let is_freed = match turn.phase() {
            Phase::Backward => self.spec.mesh.pp == 1 || turn.micro_batch + 1 == self.spec.micro_batches,
            _ => self.spec.sharding == ShardingSpec::Zero3 && !is_last,
        };
        if is_freed {
            self.parameters.is_gathered[unit as usize] = false;
        }
    }
}
