//! Expands a step from rank classes to all ranks. Every rank executes the ops of its class, with its own process
//! groups.
//!
//! ```text
//! class c                      ranks c·n … (c+1)·n-1
//! group of class c             one process group for every `size` of these ranks
//! op of c  ─► transfer         op of each rank ─► transfer of the rank's group
//! transfer ─► transfer         for each rank in both groups: transfer of one group ─► transfer of the other
//! ```
//!
//! Out of scope: the placement of ranks on hosts.

use super::ranges::{GROUP_LIMIT, strided};
use super::{Group, GroupTransfer, RankClass, Step, recorded};
use crate::dag::{Dag, DagOp, Edge, Edges, OpId, OpKind, Program, Transfer};
use gradtide_net::Time;
use std::sync::Arc;
use thiserror::Error;

/// Error: a step cannot be simulated rank by rank.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RanksError {
    /// The step would not fit in memory.
    #[error("a step of all ranks has {ops} ops and transfers, more than {limit}")]
    Ops {
        /// Number of ops and transfers of all ranks.
        ops: u64,
        /// Limit of a run.
        limit: u64,
    },
    /// The step has more process groups than streams that a job may use, and each group needs one.
    #[error("its ranks form {groups} process groups, more than {limit}")]
    Groups {
        /// Number of process groups.
        groups: u64,
        /// Limit of a run.
        limit: u64,
    },
}

/// Limit on the number of ops and transfers of all ranks. Each takes about 100 bytes.
const OP_LIMIT: u64 = 1 << 25;
/// A group of rank classes, with the process groups that it represents.
struct Instances<'a> {
    group: &'a Group,
    /// Index, in the step of all ranks, of the first process group that the group represents.
    first: u32,
    /// For each rank, the index in `members` of its process group; `None` if the group has no process group with this
    /// rank.
    of_rank: Vec<Option<u32>>,
    /// Ranks of each of these process groups.
    members: Vec<Vec<u32>>,
}

impl Step {
    /// Returns the number of ranks of all classes.
    pub fn rank_count(&self) -> u32 {
        self.classes.iter().map(|class| class.ranks).sum()
    }

    /// Returns this step with one class per rank. Ranks are numbered class by class.
    ///
    /// # Errors
    /// [`RanksError`] if the step exceeds the limits.
    pub fn per_rank(self) -> Result<Self, RanksError> {
        if self.is_per_rank {
            return Ok(self);
        }
        let ranks: Vec<u32> = (0..).zip(&self.classes).flat_map(|(class, of)| vec![class; of.ranks as usize]).collect();
        let instances = self.instances(&ranks)?;
        let of_group = |transfer: usize| &instances[self.transfers[transfer].group as usize];
        let program_len = |class: u32| u64::from(self.program(class).ops.end - self.program(class).ops.start);
        let computes: u64 = ranks.iter().map(|&class| program_len(class)).sum();
        let sends: u64 = (0..self.transfers.len()).map(|transfer| of_group(transfer).members.len() as u64).sum();
        if computes + sends > OP_LIMIT {
            return Err(RanksError::Ops { ops: computes + sends, limit: OP_LIMIT });
        }
        let mut writer = Writer::new(&self, &ranks, &instances);
        writer.edges();
        let Writer { programs, first_transfer, mut within, across, .. } = writer;
        if self.is_recorded() {
            recorded::keep_in_step(&programs, sends as u32, &mut within);
        }
        let (compute_count, op_count) = (computes as u32, (computes + sends) as usize);
        let own_ops = |&class: &u32| self.program(class).ops.clone();
        let labels: Vec<_> = ranks.iter().flat_map(own_ops).map(|op| self.labels[op as usize]).collect();
        let costs = ranks.iter().flat_map(own_ops).map(|op| self.dag.ops[op as usize].cost);
        let mut ops: Vec<DagOp> = (0..).zip(costs).map(|(op, cost)| DagOp::new(OpKind::Compute(op), cost)).collect();
        ops.extend((0..sends as u32).map(|send| DagOp::new(OpKind::Transfer(send), Time::ZERO)));
        let (mut transfers, mut queued) = (Vec::new(), Vec::new());
        for (transfer, known) in self.transfers.iter().zip(&self.dag.transfers) {
            let Instances { first, members, .. } = &instances[transfer.group as usize];
            for group in (*first..).take(members.len()) {
                transfers.push(GroupTransfer { group, ..*transfer });
                queued.push(Transfer { communicator: group, ..*known });
            }
        }
        debug_assert_eq!(first_transfer.last().copied(), Some(sends as u32));
        let dag = Dag {
            ops,
            programs,
            compute_count,
            layer_count: self.dag.layer_count,
            transfers: queued,
            within: Edges::new(op_count, &within),
            across: Edges::new(op_count, &across),
        };
        let group = |of: &Instances<'_>| {
            let group = of.group.clone();
            of.members
                .iter()
                .map(move |members| Group { classes: members.clone(), stride: None, ..group.clone() })
                .collect::<Vec<_>>()
        };
        Ok(Self {
            dag: Arc::new(dag),
            labels,
            classes: ranks.iter().map(|&class| RankClass { ranks: 1, ..self.classes[class as usize] }).collect(),
            groups: instances.iter().flat_map(group).collect(),
            transfers: transfers.into(),
            is_per_rank: true,
            gpus_per_node: self.gpus_per_node,
            names: self.names.clone(),
        })
    }

    fn program(&self, class: u32) -> &Program {
        &self.dag.programs[class as usize]
    }

    /// Returns, for each group of rank classes, the process groups that it represents.
    fn instances(&self, ranks: &[u32]) -> Result<Vec<Instances<'_>>, RanksError> {
        let mut first = 0;
        let mut all = Vec::new();
        for group in &self.groups {
            let members = self.members(group);
            let mut of_rank = vec![None; ranks.len()];
            for (instance, members) in (0..).zip(&members) {
                members.iter().for_each(|&rank| of_rank[rank as usize] = Some(instance));
            }
            let count = members.len() as u64;
            all.push(Instances { group, first, of_rank, members });
            first = u32::try_from(u64::from(first) + count).unwrap_or(u32::MAX);
        }
        let groups = u64::from(first);
        if groups > GROUP_LIMIT { Err(RanksError::Groups { groups, limit: GROUP_LIMIT }) } else { Ok(all) }
    }

    /// Returns the ranks of each process group that `group` represents.
    fn members(&self, group: &Group) -> Vec<Vec<u32>> {
        let first_rank = |class: u32| -> u32 { self.classes[..class as usize].iter().map(|class| class.ranks).sum() };
        let (Some(&from), Some(&to)) = (group.classes.first(), group.classes.last()) else { return Vec::new() };
        let Some(stride) = group.stride else {
            // Each process group has one rank of each of the two classes.
            let places = 0..self.classes[from as usize].ranks;
            return places.map(|place| vec![first_rank(from) + place, first_rank(to) + place]).collect();
        };
        strided(first_rank(from)..first_rank(to) + self.classes[to as usize].ranks, group.span.ranks(), stride)
    }
}

/// Builds the edges of the step of all ranks.
struct Writer<'a> {
    step: &'a Step,
    instances: &'a [Instances<'a>],
    /// Ranks of each class.
    ranks: Vec<Vec<u32>>,
    /// Program of each rank.
    programs: Vec<Program>,
    compute_count: u32,
    /// For each transfer of rank classes, the index of its first transfer in the step of all ranks. The last entry is
    /// the number of transfers in that step.
    first_transfer: Vec<u32>,
    within: Vec<Edge>,
    across: Vec<Edge>,
}

impl<'a> Writer<'a> {
    fn new(step: &'a Step, ranks: &[u32], instances: &'a [Instances<'a>]) -> Self {
        let mut end = 0;
        let program = |&class: &u32| {
            let Program { ops, forward, backward } = step.program(class);
            let start = end;
            end += ops.end - ops.start;
            Program { ops: start..end, forward: start + forward - ops.start, backward: start + backward - ops.start }
        };
        let programs: Vec<Program> = ranks.iter().map(program).collect();
        let mut sum = 0;
        let mut first_transfer = vec![0];
        for transfer in step.transfers.iter() {
            sum += instances[transfer.group as usize].members.len() as u32;
            first_transfer.push(sum);
        }
        let mut of_class = vec![Vec::new(); step.classes.len()];
        (0..).zip(ranks).for_each(|(rank, &class)| of_class[class as usize].push(rank));
        let (within, across) = (Vec::new(), Vec::new());
        Self { step, instances, ranks: of_class, programs, compute_count: end, first_transfer, within, across }
    }

    /// Expands every edge for all ranks of the classes that it connects.
    fn edges(&mut self) {
        let dag = &self.step.dag;
        for from in 0..dag.ops.len() as OpId {
            for &to in dag.within.from(from) {
                let edges = self.edge(from, to);
                self.within.extend(edges);
            }
            for &to in dag.across.from(from) {
                let edges = self.edge(from, to);
                self.across.extend(edges);
            }
        }
        self.keep_together();
    }

    /// Adds edges that keep ranks within one step of each other. A single class needs no such edge, but its individual
    /// ranks do.
    fn keep_together(&mut self) {
        let Some(norm) = (self.step.transfers.iter()).position(|it| self.group(it).axis == super::Axis::Norm) else {
            return;
        };
        if self.step.classes.len() == 1 {
            let begin = self.step.program(0).ops.start;
            let edges = self.edge(self.step.dag.transfer_op(norm as u32), begin);
            self.across.extend(edges);
        }
    }

    fn group(&self, transfer: &GroupTransfer) -> &Group {
        &self.step.groups[transfer.group as usize]
    }

    /// Returns the edges that an edge between rank classes represents.
    fn edge(&self, from: OpId, to: OpId) -> Vec<Edge> {
        let ranks = match (self.class(from), self.class(to)) {
            (Some(class), _) | (_, Some(class)) => self.ranks[class].clone(),
            (None, None) => (0..self.programs.len() as u32).collect(),
        };
        let pair = |rank| Some((self.copy(from, rank)?, self.copy(to, rank)?));
        let mut edges: Vec<Edge> = ranks.into_iter().filter_map(pair).collect();
        edges.sort_unstable();
        edges.dedup();
        edges
    }

    /// Returns the class whose program contains an op; `None` for a transfer.
    fn class(&self, op: OpId) -> Option<usize> {
        let dag = &self.step.dag;
        (op < dag.compute_count).then(|| dag.programs.partition_point(|program| program.ops.end <= op))
    }

    /// Returns the copy of an op for a rank of its class, or the copy of a transfer for a rank of its group.
    fn copy(&self, op: OpId, rank: u32) -> Option<OpId> {
        match (self.class(op), op.checked_sub(self.step.dag.compute_count)) {
            (Some(class), _) => {
                let own = self.step.dag.programs[class].ops.start;
                Some(self.programs[rank as usize].ops.start + op - own)
            }
            (None, Some(transfer)) => {
                let group = self.step.transfers[transfer as usize].group;
                let instance = self.instances[group as usize].of_rank[rank as usize]?;
                Some(self.compute_count + self.first_transfer[transfer as usize] + instance)
            }
            (None, None) => None,
        }
    }
}
