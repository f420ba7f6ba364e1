//! The op DAG reduced to the dependencies on which an order of transfers has an effect. Ops that need the same
//! transfers are merged.
//!
//! An op needs a transfer if the op depends on the transfer, directly or through other ops.

use crate::opdag::{Kind, OpDag, OpDagError};
use gradtide_watch::check_cancelled;
use std::collections::BTreeMap;

/// Index of a transfer, by ascending id of its op.
pub type Recv = u32;

/// A node, which is a transfer or a join: the index of a transfer, or the number of transfers plus the index of a join.
pub type NeedNode = u32;

/// An op DAG whose ops are merged into one node if they need the same transfers, because no order of the transfers can
/// distinguish them.
///
/// Ops that need no transfer are `free`. Ops that need exactly one transfer are merged into the node of this transfer.
/// A *join* is an op, or several ops with equal needs, that needs two or more transfers. Joins are in topological
/// order, and each join needs strictly more transfers than any of its parents.
#[derive(Clone, Debug)]
pub struct Needs {
    /// Index of the op of each transfer.
    pub recv_ops: Vec<u32>,
    /// Time of each transfer.
    pub recv_ticks: Vec<u64>,
    /// Compute time of each node.
    pub work_ticks: Vec<u64>,
    /// Compute time of each node. Ops that depend only on parameters are not included.
    pub folded_ticks: Vec<u64>,
    /// Compute time of the ops that need no transfer.
    pub free_ticks: u64,
    /// Parents of each join, at least two: the transfers and joins on which it depends directly.
    pub parents: Vec<Vec<NeedNode>>,
    /// Number of transfers that each join needs.
    pub counts: Vec<u32>,
    /// Transfers in the order of the file.
    pub listed: Vec<Recv>,
    /// Transfers in the order in which TicTac's released code discovers them.
    pub discovered: Vec<Recv>,
    /// Length of the longest path through the DAG, including transfers.
    pub critical_path_ticks: u64,
}

impl Needs {
    /// Merges ops that need the same transfers.
    ///
    /// # Errors
    /// [`OpDagError`] if the DAG is invalid.
    pub fn new(dag: &OpDag) -> Result<Self, OpDagError> {
        let needed = dag.needed()?;
        let is_recv = |&op: &u32| dag.ops[op as usize].kind == Kind::Recv;
        let mut recv_ops: Vec<u32> = needed.iter().copied().filter(is_recv).collect();
        recv_ops.sort_by_key(|&op| dag.ops[op as usize].id);
        let recv_count = recv_ops.len();
        let mut node_of: Vec<Option<NeedNode>> = vec![None; dag.ops.len()];
        for (recv, &op) in recv_ops.iter().enumerate() {
            node_of[op as usize] = Some(recv as NeedNode);
        }
        let by_op = |ops: Vec<u32>| ops.into_iter().filter_map(|op| node_of[op as usize]).collect::<Vec<Recv>>();
        let mut listed = recv_ops.clone();
        listed.sort_unstable();
        let (listed, discovered) = (by_op(listed), by_op(dag.discovery()));

        let mut needs = Self {
            recv_ticks: recv_ops.iter().map(|&op| dag.ops[op as usize].time_ticks).collect(),
            work_ticks: vec![0; recv_count],
            folded_ticks: vec![0; recv_count],
            free_ticks: 0,
            parents: Vec::new(),
            counts: Vec::new(),
            listed,
            discovered,
            critical_path_ticks: 0,
            recv_ops,
        };
        let mut ends = vec![0_u64; dag.ops.len()];
        let mut known: BTreeMap<Vec<NeedNode>, NeedNode> = BTreeMap::new();
        for &op in &needed {
            check_cancelled();
            let it = &dag.ops[op as usize];
            let start = it.inputs.iter().map(|&input| ends[input as usize]).max().unwrap_or(0);
            ends[op as usize] = start + it.time_ticks;
            if it.kind == Kind::Recv {
                continue;
            }
            let mut parents: Vec<NeedNode> = it.inputs.iter().filter_map(|&input| node_of[input as usize]).collect();
            parents.sort_unstable();
            parents.dedup();
            let node = match parents[..] {
                [] => None,
                [node] => Some(node),
                _ => Some(*known.entry(parents).or_insert_with_key(|parents| {
                    needs.parents.push(parents.clone());
                    needs.work_ticks.push(0);
                    needs.folded_ticks.push(0);
                    needs.work_ticks.len() as NeedNode - 1
                })),
            };
            node_of[op as usize] = node;
            match node {
                None => needs.free_ticks += it.time_ticks,
                Some(node) => {
                    needs.work_ticks[node as usize] += it.time_ticks;
                    needs.folded_ticks[node as usize] += if it.param_only { 0 } else { it.time_ticks };
                }
            }
        }
        needs.critical_path_ticks = ends[dag.target as usize];
        needs.merge();
        Ok(needs)
    }

    /// Returns the number of transfers.
    pub fn recv_count(&self) -> usize {
        self.recv_ops.len()
    }

    /// Returns the number of joins.
    pub fn join_count(&self) -> usize {
        self.parents.len()
    }

    /// Returns the total time of all transfers: TicTac's N.
    pub fn transfer_ticks(&self) -> u64 {
        self.recv_ticks.iter().sum()
    }

    /// Returns the total compute time: TicTac's C.
    pub fn compute_ticks(&self) -> u64 {
        self.free_ticks + self.work_ticks.iter().sum::<u64>()
    }

    /// Returns a lower bound on the makespan: the longest of the critical path, the total compute time and the total
    /// transfer time.
    pub fn lower_bound_ticks(&self) -> u64 {
        self.critical_path_ticks.max(self.compute_ticks()).max(self.transfer_ticks())
    }

    /// Returns, for each node, the joins that depend directly on it.
    pub fn children(&self) -> Vec<Vec<u32>> {
        let mut children = vec![Vec::new(); self.work_ticks.len()];
        for (join, parents) in self.parents.iter().enumerate() {
            for &parent in parents {
                children[parent as usize].push(join as u32);
            }
        }
        children
    }

    /// Merges each join into a parent that needs the same transfers, if there is such a parent, and stores the number
    /// of transfers that each remaining join needs.
    fn merge(&mut self) {
        let recv_count = self.recv_count();
        let counts = self.count();
        let mut node_of: Vec<NeedNode> = (0..recv_count as NeedNode).collect();
        let (mut parents_of, mut kept) = (Vec::new(), Vec::new());
        for (join, parents) in std::mem::take(&mut self.parents).into_iter().enumerate() {
            let node = recv_count + join;
            let same = parents
                .iter()
                .find(|&&parent| parent as usize >= recv_count && counts[parent as usize - recv_count] == counts[join]);
            if let Some(&parent) = same {
                let parent = node_of[parent as usize];
                node_of.push(parent);
                self.work_ticks[parent as usize] += self.work_ticks[node];
                self.folded_ticks[parent as usize] += self.folded_ticks[node];
                continue;
            }
            let merged = recv_count + parents_of.len();
            node_of.push(merged as NeedNode);
            // A node moves to a smaller or equal index, so it does not overwrite nodes that are still to be processed.
            self.work_ticks[merged] = self.work_ticks[node];
            self.folded_ticks[merged] = self.folded_ticks[node];
            let mut parents: Vec<NeedNode> = parents.iter().map(|&parent| node_of[parent as usize]).collect();
            parents.sort_unstable();
            parents.dedup();
            parents_of.push(parents);
            kept.push(counts[join]);
        }
        self.work_ticks.truncate(recv_count + parents_of.len());
        self.folded_ticks.truncate(recv_count + parents_of.len());
        self.parents = parents_of;
        self.counts = kept;
    }

    /// Counts the transfers that each join needs. Sets of [`SET_SIZE`] transfers at a time are propagated as bits from
    /// parents to joins.
    fn count(&self) -> Vec<u32> {
        let recv_count = self.recv_count();
        let mut counts = vec![0; self.join_count()];
        let mut paths = vec![BitWord::default(); recv_count + self.join_count()];
        let children = self.children();
        for first in (0..recv_count).step_by(SET_SIZE) {
            let last = (first + SET_SIZE).min(recv_count);
            paths[first.saturating_sub(SET_SIZE)..first].fill(BitWord::default());
            paths[first..last].iter_mut().enumerate().for_each(|(bit, path)| *path = BitWord::of(bit));
            let firsts = children[first..last].iter().filter_map(|joins| joins.first());
            let first_join = firsts.min().map_or(self.join_count(), |&join| join as usize);
            paths[recv_count..recv_count + first_join].fill(BitWord::default());
            for (join, parents) in self.parents.iter().enumerate().skip(first_join) {
                check_cancelled();
                let mut path = BitWord::default();
                parents.iter().for_each(|&parent| path.add(&paths[parent as usize]));
                paths[recv_count + join] = path;
                counts[join] += path.0.iter().map(|word| word.count_ones()).sum::<u32>();
            }
        }
        counts
    }
}

/// A set of up to [`SET_SIZE`] elements as bits. It fills one cache line.
#[derive(Clone, Copy, Debug, Default)]
pub struct BitWord(pub [u64; 8]);

/// Number of bits of a [`BitWord`].
pub const SET_SIZE: usize = 512;

impl BitWord {
    /// Returns the set with only bit `index`.
    pub fn of(index: usize) -> Self {
        let mut path = Self::default();
        path.0[index / 64] = 1 << (index % 64);
        path
    }

    /// Adds the elements of another set.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }
}

/// Returns the positions of the bits that are set in a word.
pub fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = word.trailing_zeros() as usize;
            word &= word - 1;
            bit
        })
    })
}
