//! Writes ops and transfers into the graph of a step, each with its dependencies.

use super::mesh::{ClassGroups, Groups};
use super::state::{Node, Parameters};
use super::{GroupTransfer, Label, Names, RankClass, Step, Subject};
use crate::collective::levels::CollectiveKind;
use crate::dag::{Dag, DagOp, Edge, Edges, OpKind, Program, Transfer};
use crate::spec::{BlockKindSpec, ParallelSpec};
use gradtide_net::{Bytes, Time};
use std::ops::Range;
use std::sync::Arc;

/// The graph so far, with the state of the program that is being written.
pub(super) struct Writer<'a> {
    pub spec: &'a ParallelSpec,
    pub groups: Groups,
    /// Blocks of each unit.
    pub units: Vec<Range<u32>>,
    /// Blocks of each virtual stage.
    pub stages: Vec<Range<u32>>,
    /// Class whose program is being written.
    pub class: u32,
    /// Dependencies of the next op or transfer of the program.
    pub front: Vec<Node>,
    /// Additional dependencies of the next compute op.
    pub awaited: Vec<Node>,
    /// State of gathered parameters and of gradients.
    pub parameters: Parameters,
    pub costs: Vec<Time>,
    pub labels: Vec<Label>,
    pub transfers: Vec<GroupTransfer>,
    pub within: Vec<(Node, Node)>,
    pub across: Vec<(Node, Node)>,
}

/// Returns the duration of one of `parts` equal parts. The first part includes the remainder.
pub(super) fn share(cost: Time, part: u32, parts: u32) -> Time {
    let (share, rest) = (cost.ps() / u64::from(parts), cost.ps() % u64::from(parts));
    Time::from_ps(share + if part == 0 { rest } else { 0 })
}

impl<'a> Writer<'a> {
    /// Returns the groups of the class that is being written.
    pub fn own(&self) -> ClassGroups {
        self.groups.classes[self.class as usize]
    }

    pub fn kind(&self, block: u32) -> &'a BlockKindSpec {
        &self.spec.kinds[self.spec.blocks[block as usize].kind as usize]
    }

    /// Returns the subject of a unit in labels, which is the unit's first block.
    pub fn subject(&self, unit: u32) -> Subject {
        Subject::Block(self.units[unit as usize].start)
    }

    /// Returns the op that was written last.
    pub fn last_op(&self) -> Node {
        Node::Compute(self.costs.len() as u32 - 1)
    }

    /// Adds a dependency of `after` on `before` in the same step.
    pub fn within(&mut self, before: Node, after: Node) {
        self.within.push((before, after));
    }

    /// Writes a compute op, which waits for the ops and transfers in `front` and then replaces them.
    pub fn compute(&mut self, cost: Time, label: Label) -> Node {
        let op = Node::Compute(self.costs.len() as u32);
        for before in self.front.drain(..).chain(self.awaited.drain(..)) {
            // If the front is a compute op, it is the previous op of the program and needs no edge.
            if let Node::Transfer(_) = before {
                self.within.push((before, op));
            }
        }
        self.costs.push(cost);
        self.labels.push(label);
        self.front.push(op);
        op
    }

    /// Writes a transfer that waits for `after`. The program does not wait for the transfer.
    pub fn transfer(&mut self, group: u32, kind: CollectiveKind, bytes: u64, label: Label, after: &[Node]) -> Node {
        let transfer = Node::Transfer(self.transfers.len() as u32);
        self.transfers.push(GroupTransfer { group, kind, bytes: Bytes(bytes), label });
        self.within.extend(after.iter().map(|&before| (before, transfer)));
        transfer
    }

    /// Writes a transfer for which the program waits. Writes nothing if there are no bytes to send or no other ranks.
    pub fn exchange(&mut self, group: Option<u32>, kind: CollectiveKind, bytes: u64, label: Label) {
        if let (Some(group), 1..) = (group, bytes) {
            let front = std::mem::take(&mut self.front);
            let transfer = self.transfer(group, kind, bytes, label, &front);
            self.front.push(transfer);
        }
    }

    /// Writes compute in one part per rank. The first part uses local data. Each other part uses `bytes` that the
    /// neighbour sends while the previous part is computed.
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

    pub fn into_step(self, programs: Vec<Program>) -> Step {
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
            is_per_rank: false,
            gpus_per_node: self.spec.gpus_per_node,
            names: Names::new(self.spec),
        }
    }
}
