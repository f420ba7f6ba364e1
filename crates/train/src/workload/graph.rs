//! A step as a document: what each class computes, what groups transfer, and what waits for what.
//!
//! Ops are numbered as in the graph of the step: compute ops class by class in the order of their programs, then
//! transfers.

use super::{Group, Step};
use crate::dag::{Edge, Edges, OpId};
use serde::Serialize;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Graph {
    /// Ranks that do the same; their numbers follow one another, class by class.
    pub classes: Vec<GraphClass>,
    /// Process groups.
    pub groups: Vec<GraphGroup>,
    /// What they transfer.
    pub transfers: Vec<GraphTransfer>,
    /// Pairs of ops, of which the second waits for the first. A compute op also waits for the one before it.
    pub edges: Vec<Edge>,
}

/// What a class computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GraphClass {
    /// Shown to users.
    pub name: String,
    /// How many ranks.
    pub ranks: u32,
    /// Its compute ops, one after the other: name and time in picoseconds.
    pub ops: Vec<(String, u64)>,
}

/// Groups of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GraphGroup {
    /// Shown to users.
    pub name: String,
    /// Classes whose ranks are in it; of a link between stages the sender, then the receiver.
    pub classes: Vec<u32>,
    /// Ranks of one group.
    pub ranks: u32,
    /// See [`Group::stride`].
    pub stride: Option<u32>,
}

/// What the ranks of a group do together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GraphTransfer {
    /// Shown to users.
    pub name: String,
    /// Index of the group.
    pub group: u32,
    /// Name of what it does.
    pub kind: &'static str,
    /// As `collective::levels` counts them.
    pub bytes: u64,
}

impl Step {
    /// The step as a document.
    pub fn graph(&self) -> Graph {
        let ops = |range: std::ops::Range<OpId>| {
            range.map(|op| (self.shown(self.labels[op as usize]).to_string(), self.dag.ops[op as usize].cost.ps()))
        };
        let classes = self.class_names().into_iter().zip(&self.classes).zip(&self.dag.programs);
        let group = |group: &Group| GraphGroup {
            name: group.axis.name().into(),
            classes: group.classes.clone(),
            ranks: group.span.ranks(),
            stride: group.stride,
        };
        Graph {
            classes: classes
                .map(|((name, class), program)| GraphClass {
                    name,
                    ranks: class.ranks,
                    ops: ops(program.ops.clone()).collect(),
                })
                .collect(),
            groups: self.groups.iter().map(group).collect(),
            transfers: (self.transfers.iter())
                .map(|transfer| GraphTransfer {
                    name: self.shown(transfer.label).to_string(),
                    group: transfer.group,
                    kind: transfer.kind.name(),
                    bytes: transfer.bytes.0,
                })
                .collect(),
            edges: pairs(&self.dag.within, self.dag.ops.len() as OpId),
        }
    }
}

fn pairs(edges: &Edges, op_count: OpId) -> Vec<Edge> {
    (0..op_count).flat_map(|op| edges.from(op).iter().map(move |&after| (op, after))).collect()
}
