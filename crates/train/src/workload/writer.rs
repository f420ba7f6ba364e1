//! Writes the graph of a step: the program of each class, op by op, and the dependencies of each op.

use super::fsdp::Parameters;
use super::mesh::{ClassGroups, Groups};
use super::pipeline::{Sends, turns};
use super::{GroupTransfer, Label, Names, Phase, RankClass, Step, Subject, tensor};
use crate::collective::levels::CollectiveKind;
use crate::dag::{Dag, DagOp, Edge, Edges, OpId, OpKind, Program, Transfer};
use crate::spec::{BesideSpec, BlockKindSpec, ParallelSpec, RoleSpec};
use gradtide_net::{Bytes, Time};
use std::ops::Range;
use std::sync::Arc;

/// An op, as long as the number of compute ops is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Compute(u32),
    Transfer(u32),
}

/// The graph so far, and the state of the program that is being written.
pub(super) struct Writer<'a> {
    pub spec: &'a ParallelSpec,
    pub groups: Groups,
    /// Blocks of each unit.
    pub units: Vec<Range<u32>>,
    /// Blocks of each virtual stage.
    pub stages: Vec<Range<u32>>,
    /// The class whose program is written.
    pub class: u32,
    /// Dependencies of the next op or transfer of the program.
    pub front: Vec<Node>,
    /// Additional dependencies of the next compute op.
    pub awaited: Vec<Node>,
    /// State of gathered parameters and of gradients.
    pub parameters: Parameters,
    costs: Vec<Time>,
    labels: Vec<Label>,
    transfers: Vec<GroupTransfer>,
    within: Vec<(Node, Node)>,
    across: Vec<(Node, Node)>,
}

/// Writes the whole step.
pub(super) fn write(spec: &ParallelSpec, groups: Groups) -> Step {
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
        // Keeps classes within one step of each other.
        writer.across.extend(begins.iter().map(|&begin| (norm, begin)));
    }
    writer.into_step(programs)
}

/// Consecutive ranges with `counts` blocks each.
pub(super) fn ranges(counts: &[u32]) -> Vec<Range<u32>> {
    let mut end = 0;
    let part = |&count: &u32| {
        end += count;
        end - count..end
    };
    counts.iter().map(part).collect()
}

/// Duration of one of `parts` equal parts; the first one gets the remainder.
pub(super) fn share(cost: Time, part: u32, parts: u32) -> Time {
    let (share, rest) = (cost.ps() / u64::from(parts), cost.ps() % u64::from(parts));
    Time::from_ps(share + if part == 0 { rest } else { 0 })
}

impl<'a> Writer<'a> {
    /// Groups of the class that is being written.
    pub fn own(&self) -> ClassGroups {
        self.groups.classes[self.class as usize]
    }

    /// The kind of a block, which has its ops and bytes.
    pub fn kind(&self, block: u32) -> &'a BlockKindSpec {
        &self.spec.kinds[self.spec.blocks[block as usize].kind as usize]
    }

    /// Name of a unit for users: its first block.
    pub fn subject(&self, unit: u32) -> Subject {
        Subject::Block(self.units[unit as usize].start)
    }

    /// The op that was written last.
    pub fn last_op(&self) -> Node {
        Node::Compute(self.costs.len() as u32 - 1)
    }

    /// Makes `after` wait for `before` in the same step.
    pub fn within(&mut self, before: Node, after: Node) {
        self.within.push((before, after));
    }

    /// Writes a compute op, which waits for the front and becomes the front.
    pub fn compute(&mut self, cost: Time, label: Label) -> Node {
        let op = Node::Compute(self.costs.len() as u32);
        for before in self.front.drain(..).chain(self.awaited.drain(..)) {
            // A compute op at the front is the previous op of the program, so needs no edge.
            if let Node::Transfer(_) = before {
                self.within.push((before, op));
            }
        }
        self.costs.push(cost);
        self.labels.push(label);
        self.front.push(op);
        op
    }

    /// Writes a transfer that waits for `after`, in parallel to the program.
    pub fn transfer(&mut self, group: u32, kind: CollectiveKind, bytes: u64, label: Label, after: &[Node]) -> Node {
        let transfer = Node::Transfer(self.transfers.len() as u32);
        self.transfers.push(GroupTransfer { group, kind, bytes: Bytes(bytes), label });
        self.within.extend(after.iter().map(|&before| (before, transfer)));
        transfer
    }

    /// Writes a transfer that the program waits for, unless there is nothing to send or no other rank.
    pub fn exchange(&mut self, group: Option<u32>, kind: CollectiveKind, bytes: u64, label: Label) {
        if let (Some(group), 1..) = (group, bytes) {
            let front = std::mem::take(&mut self.front);
            let transfer = self.transfer(group, kind, bytes, label, &front);
            self.front.push(transfer);
        }
    }

    /// Computes in one part per rank: the first on local data, each other one on `bytes` from the neighbour, whose
    /// transfer overlaps with the part before.
    pub fn in_parts(&mut self, group: u32, ranks: u32, bytes: u64, cost: Time, label: Label) {
        let mut held = self.front.clone();
        for part in 0..ranks {
            let sent = (part + 1 < ranks).then(|| self.transfer(group, CollectiveKind::Send, bytes, label, &held));
            self.compute(share(cost, part, ranks), label);
            if let Some(sent) = sent {
                held = vec![sent];
                self.front.push(sent);
            }
        }
    }

    /// Forward pass of a block.
    pub fn forward(&mut self, block: u32, micro_batch: u32) {
        for (index, op) in self.kind(block).ops.iter().enumerate() {
            self.op(block, index, Phase::Forward, micro_batch, op.forward_ps);
        }
    }

    /// Backward pass of a block, with its recomputation.
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

    fn into_step(self, programs: Vec<Program>) -> Step {
        let compute_count = self.costs.len() as u32;
        let op_count = self.costs.len() + self.transfers.len();
        let id = |node: Node| match node {
            Node::Compute(op) => op,
            Node::Transfer(transfer) => compute_count + transfer,
        };
        let edges = |pairs: &[(Node, Node)]| {
            let pairs: Vec<Edge> = pairs.iter().map(|&(before, after)| (id(before), id(after))).collect();
            Edges::new(op_count, &pairs)
        };
        let computes = (0..).zip(&self.costs).map(|(op, &cost)| DagOp::new(OpKind::Compute(op), cost));
        let sends = (0..self.transfers.len() as u32).map(|transfer| DagOp::new(OpKind::Transfer(transfer), Time::ZERO));
        let first_layer = |label: Label| match label.subject {
            Subject::Block(block) | Subject::Op { block, .. } => block,
            Subject::All | Subject::Stage(_) | Subject::Recorded(_) => 0,
        };
        let transfer = |transfer: &GroupTransfer| Transfer {
            first_layer: first_layer(transfer.label),
            bytes: transfer.bytes,
            communicator: transfer.group,
        };
        let dag = Dag {
            ops: computes.chain(sends).collect(),
            compute_count,
            layer_count: self.spec.blocks.len() as u32,
            transfers: self.transfers.iter().map(transfer).collect(),
            within: edges(&self.within),
            across: edges(&self.across),
            programs,
        };
        let ranks = self.groups.class_ranks;
        Step {
            classes: (0..dag.programs.len() as u32).map(|stage| RankClass { ranks, stage }).collect(),
            dag: Arc::new(dag),
            labels: self.labels,
            groups: self.groups.all,
            transfers: self.transfers.into(),
            is_spelled_out: false,
            gpus_per_node: self.spec.gpus_per_node,
            names: Names::new(self.spec),
        }
    }
}
