//! Writes a step as a document, in the form that `recorded` reads.

use super::{Group, Step};
use crate::dag::{Edge, Edges, OpId};
use crate::spec::{StepClassSpec, StepGroupSpec, StepSpec, StepTransferSpec};

impl Step {
    /// Returns the step as a document.
    pub fn graph(&self) -> StepSpec {
        let ops = |range: std::ops::Range<OpId>| {
            range.map(|op| (self.shown(self.labels[op as usize]).to_string(), self.dag.ops[op as usize].cost.ps()))
        };
        let classes = self.class_names().into_iter().zip(&self.classes).zip(&self.dag.programs);
        let group = |group: &Group| StepGroupSpec {
            name: self.name_of(group.axis).into(),
            classes: group.classes.clone(),
            ranks: group.span.ranks(),
            stride: group.stride,
        };
        StepSpec {
            classes: classes
                .map(|((name, class), program)| StepClassSpec {
                    name,
                    ranks: class.ranks,
                    ops: ops(program.ops.clone()).collect(),
                })
                .collect(),
            groups: self.groups.iter().map(group).collect(),
            transfers: (self.transfers.iter())
                .map(|transfer| StepTransferSpec {
                    name: self.shown(transfer.label).to_string(),
                    group: transfer.group,
                    kind: transfer.kind.name().into(),
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
