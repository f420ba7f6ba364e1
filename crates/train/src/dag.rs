//! The graph of one iteration: its ops and their dependencies, within the iteration and on the previous one.

use gradtide_net::{Bytes, Time};
use std::ops::Range;

/// Index of an op in [`Dag::ops`].
pub type OpId = u32;

/// A dependency, as (op, op that waits for it).
pub type Edge = (OpId, OpId);

/// Kind of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Waits for every transfer of the previous iteration, and takes no time.
    Barrier,
    /// Applies the aggregated gradient of a layer.
    Update(u32),
    /// Forward pass of a layer.
    Forward(u32),
    /// Backward pass of a layer.
    Backward(u32),
    /// A named compute op. The field is the index of its name among the names of the job's ops.
    Compute(u32),
    /// Aggregation of a bucket over the network.
    Transfer(u32),
}

/// An op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DagOp {
    /// Kind of op.
    pub kind: OpKind,
    /// Compute time. Zero for a transfer, whose duration depends on the network.
    pub cost: Time,
    /// Whether the op is host work, during which the device is idle because the host has not launched the next kernel
    /// yet.
    pub is_host: bool,
}

impl DagOp {
    /// Creates an op that is not host work.
    pub fn new(kind: OpKind, cost: Time) -> Self {
        Self { kind, cost, is_host: false }
    }
}

/// Properties of a transfer that schedulers use.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// Lowest layer of the bucket, which is the first that the next forward pass needs.
    pub first_layer: u32,
    /// Bytes of the bucket.
    pub bytes: Bytes,
    /// Index of the communicator whose send queue sends the transfer.
    pub communicator: u32,
}

/// The ops of one compute stream. The stream executes them in order, each after its dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Ops of the program, as indices of the DAG.
    pub ops: Range<OpId>,
    /// First op of the forward pass.
    pub forward: OpId,
    /// First op after the forward pass. Neither this op nor a later one waits for a transfer of the previous iteration.
    pub backward: OpId,
}

/// One iteration of a training job.
///
/// The compute ops come first, program by program, followed by the transfers in bucket order. `within` contains the
/// edges between ops of one iteration, `across` the edges to ops of the next one. An op depends on the earlier ops of
/// its own program through the order of the program, and on all other ops through edges.
#[derive(Clone, Debug)]
pub struct Dag {
    /// Compute ops in program order, then transfers.
    pub ops: Vec<DagOp>,
    /// Programs: one for each rank class or worker, or one that all workers share.
    pub programs: Vec<Program>,
    /// Number of compute ops.
    pub compute_count: u32,
    /// Number of layers.
    pub layer_count: u32,
    /// One entry per transfer op.
    pub transfers: Vec<Transfer>,
    /// Edges between ops of one iteration.
    pub within: Edges,
    /// Edges to ops of the next iteration.
    pub across: Edges,
}

/// Edges, grouped by their source.
#[derive(Clone, Debug)]
pub struct Edges {
    starts: Vec<u32>,
    targets: Vec<OpId>,
}

impl Edges {
    /// Groups `pairs` of (source, target) by source, keeping their order within a source.
    pub fn new(op_count: usize, pairs: &[Edge]) -> Self {
        let mut sorted = pairs.to_vec();
        sorted.sort_by_key(|&(source, _)| source);
        let mut starts = vec![0_u32; op_count + 1];
        for &(source, _) in &sorted {
            starts[source as usize + 1] += 1;
        }
        for index in 0..op_count {
            starts[index + 1] += starts[index];
        }
        Self { starts, targets: sorted.into_iter().map(|(_, target)| target).collect() }
    }

    /// Returns the ops that depend on `source`.
    pub fn from(&self, source: OpId) -> &[OpId] {
        let source = source as usize;
        &self.targets[self.starts[source] as usize..self.starts[source + 1] as usize]
    }

    /// Returns the number of dependencies of each op.
    pub fn indegrees(&self) -> Vec<u32> {
        let mut counts = vec![0; self.starts.len() - 1];
        for &target in &self.targets {
            counts[target as usize] += 1;
        }
        counts
    }
}

impl Dag {
    /// Returns the op of transfer `bucket`.
    pub fn transfer_op(&self, bucket: u32) -> OpId {
        self.compute_count + bucket
    }

    /// Returns the compute time of an iteration on one worker. It is the same for all programs.
    pub fn compute_time(&self) -> Time {
        let Range { start, end } = self.programs[0].ops;
        self.ops[start as usize..end as usize].iter().map(|op| op.cost).sum()
    }

    /// Returns whether an iteration can be executed to its end, which is the case if its edges and the order of its
    /// programs have no cycle.
    pub fn is_executable(&self) -> bool {
        let mut missing = self.within.indegrees();
        let mut done_count = 0;
        let mut programs: Vec<Range<OpId>> = self.programs.iter().map(|program| program.ops.clone()).collect();
        let mut stack: Vec<OpId> =
            (self.compute_count..self.ops.len() as u32).filter(|&op| missing[op as usize] == 0).collect();
        loop {
            let op = match stack.pop() {
                Some(op) => op,
                None => {
                    let goes_on = |ops: &&mut Range<OpId>| ops.start < ops.end && missing[ops.start as usize] == 0;
                    match programs.iter_mut().find(goes_on).and_then(Iterator::next) {
                        Some(op) => op,
                        None => return done_count == self.ops.len(),
                    }
                }
            };
            done_count += 1;
            for &target in self.within.from(op) {
                missing[target as usize] -= 1;
                if missing[target as usize] == 0 && target >= self.compute_count {
                    stack.push(target);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dag(compute_count: u32, transfer_count: u32, within: &[Edge]) -> Dag {
        let op = DagOp::new(OpKind::Barrier, Time::ZERO);
        let op_count = (compute_count + transfer_count) as usize;
        Dag {
            ops: vec![op; op_count],
            programs: vec![Program { ops: 0..compute_count, forward: 0, backward: 0 }],
            compute_count,
            layer_count: 0,
            transfers: Vec::new(),
            within: Edges::new(op_count, within),
            across: Edges::new(op_count, &[]),
        }
    }

    #[test]
    fn an_edge_against_program_order_is_a_cycle() {
        assert!(dag(2, 1, &[(0, 2), (2, 1)]).is_executable());
        assert!(!dag(2, 1, &[(1, 2), (2, 0)]).is_executable());
    }

    #[test]
    fn two_transfers_that_wait_for_each_other_are_a_cycle() {
        assert!(!dag(0, 2, &[(0, 1), (1, 0)]).is_executable());
    }

    #[test]
    fn compute_ops_and_transfers_may_wait_for_either() {
        // Two classes: ops 0 to 2 are the first program, op 3 is the second. Transfer 4 goes from the first class to
        // the second. Transfer 5 goes back and also waits for transfer 6, which depends only on transfer 4.
        let two = |within: &[Edge]| {
            let programs = [0..3, 3..4].map(|ops| Program { forward: ops.start, backward: ops.start, ops });
            Dag { programs: programs.to_vec(), ..dag(4, 3, within) }
        };
        assert!(two(&[(0, 4), (4, 3), (3, 5), (4, 6), (6, 5), (5, 2)]).is_executable());
        assert!(!two(&[(0, 4), (4, 3), (3, 5), (6, 4), (5, 6)]).is_executable());
        assert!(!two(&[(2, 4), (4, 3), (3, 5), (5, 1)]).is_executable(), "against the order of a program");
    }

    #[test]
    fn edges_are_found_by_source() {
        let edges = Edges::new(4, &[(2, 0), (0, 3), (2, 1)]);
        assert_eq!((edges.from(0), edges.from(1), edges.from(2)), (&[3][..], &[][..], &[0, 1][..]));
        assert_eq!(edges.indegrees(), [1, 1, 0, 1]);
    }
}
