//! Builds the graph of a step. The program of a pipeline stage is a sequence of turns, each of which is one pass of one
//! micro-batch. A turn consists of blocks, and a block of ops.

use super::mesh::Groups;
use super::pipeline::{Sends, turns};
use super::ranges::ranges;
use super::state::Parameters;
use super::writer::Writer;
use super::{Label, Phase, Step, Subject, tensor};
use crate::dag::{OpId, Program};
use crate::spec::{BesideSpec, ParallelSpec, RoleSpec};
use gradtide_net::Time;

/// Writes the whole step.
pub(super) fn build(spec: &ParallelSpec, groups: Groups) -> Step {
    let mut writer = Writer {
        spec,
        groups,
        units: ranges(&spec.units),
        stages: ranges(&spec.stages),
        class: 0,
        front: Vec::new(),
        awaited: Vec::new(),
        parameters: Parameters::new(spec),
        costs: Vec::new(),
        labels: Vec::new(),
        transfers: Vec::new(),
        within: Vec::new(),
        across: Vec::new(),
    };
    let sends = Sends::new(&mut writer);
    let last = writer.last_sums();
    let (mut begins, mut programs) = (Vec::new(), Vec::new());
    for class in 0..spec.mesh.pp {
        let start = writer.costs.len() as OpId;
        writer.class = class;
        writer.front.clear();
        let begin = writer.compute(Time::ZERO, Label { subject: Subject::All, phase: Phase::Begin, micro_batch: 0 });
        writer.gather_at_begin();
        for turn in turns(spec, class) {
            writer.turn(turn, &sends);
        }
        writer.update(last);
        begins.push(begin);
        programs.push(Program { ops: start..writer.costs.len() as OpId, forward: start, backward: start });
    }
    if let (Some(norm), 2..) = (last.norm, begins.len()) {
        // The next step of every class waits for this step's norm, so classes are at most one step apart.
        writer.across.extend(begins.iter().map(|&begin| (norm, begin)));
    }
    writer.into_step(programs)
}

impl Writer<'_> {
    /// Writes the forward pass of a block.
    pub fn forward(&mut self, block: u32, micro_batch: u32) {
        for (index, op) in self.kind(block).ops.iter().enumerate() {
            self.op(block, index, Phase::Forward, micro_batch, op.forward_ps);
        }
    }

    /// Writes the backward pass of a block, with its recomputation.
    pub fn backward(&mut self, block: u32, micro_batch: u32) {
        let ops = &self.kind(block).ops;
        for (index, op) in ops.iter().enumerate().filter(|(_, op)| op.recompute_communicates) {
            self.op(block, index, Phase::Recompute, micro_batch, op.recompute_ps);
        }
        for (index, op) in ops.iter().enumerate().rev() {
            let again_ps = if op.recompute_communicates { 0 } else { op.recompute_ps };
            self.op(block, index, Phase::Backward, micro_batch, again_ps + op.backward_ps);
        }
    }

    fn op(&mut self, block: u32, index: usize, phase: Phase, micro_batch: u32, cost_ps: u64) {
        let op = &self.kind(block).ops[index];
        let label = Label { subject: Subject::Op { block, op: index as u32 }, phase, micro_batch };
        let sides = tensor::sides(op.role, phase);
        let beside = if self.own().tensor.is_some() && self.spec.async_tp {
            op.beside[usize::from(phase == Phase::Backward)]
        } else {
            BesideSpec::default()
        };
        let cost = Time::from_ps(cost_ps - beside.join_ps - beside.sum_ps);
        if sides.joins {
            self.join(beside, label);
        }
        match op.role {
            RoleSpec::Experts => self.experts(op.exchanged_bytes, cost, label),
            RoleSpec::Attention => self.attention(op.exchanged_bytes, cost, label),
            _ => {
                self.compute(cost, label);
            }
        }
        if sides.sums {
            self.sum(beside, label);
        }
    }
}
