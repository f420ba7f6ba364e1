//! Collectives of a process group whose ranks are all simulated: the messages behind the loads of
//! [`levels`](super::levels).
//!
//! | | messages |
//! |---|---|
//! | all-gather, reduce-scatter, all-reduce | a ring; over nodes k rings, each with 1/k of the buffer and its own exit rank |
//! | all-reduce in trees | k chains per node, trees of their heads (half with nodes reversed); 512 KiB parts |
//! | all-to-all | from each rank to every other |
//! | broadcast | a binomial tree |
//! | send | from the first of two ranks to the second; with more ranks, from each to the next |
//!
//! What does not live here: the choice between ring and tree, and the order of transfers.
//!
//! # Source
//! As [`levels`](super::levels). Each round of a ring pays its latency, as in NCCL's cost model (`src/graph/tuning.cc`:
//! latency times steps, plus bytes over bandwidth). Tree parts: NCCL's buffer of 4 MiB (`NCCL_BUFFSIZE`) has 8 slots.

use super::levels::{CollectiveKind, Span};
use super::messages::{MessageSize, Messages};
use super::plan::{Algorithm, CollectivePlan, Inside, PlanError};
use gradtide_net::{Band, Bytes, Network};
use std::collections::BTreeSet;

/// The ranks of a process group.
#[derive(Clone, Debug)]
pub struct GroupHosts {
    /// Hosts of the ranks of each node, in order; no node is empty.
    pub nodes: Vec<Vec<u32>>,
    /// Whether a send goes from the first rank to the second only; otherwise every rank sends to the next.
    pub is_link: bool,
}

/// A collective of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMessages {
    /// Operation.
    pub kind: CollectiveKind,
    /// See [`levels`](super::levels).
    pub bytes: Bytes,
    /// Whether an all-reduce uses trees.
    pub is_tree: bool,
    /// Chunks of a buffer that travel along the rings concurrently; not 0.
    pub depth: u32,
}

/// Concurrent plans, and the hosts of the ranks of each. If there are fewer host lists than plans, plan i uses list i
/// mod their number.
pub type Ways = (Vec<CollectivePlan>, Vec<Vec<u32>>);

/// Size of a pipelined part of a tree, in bytes.
const TREE_PART: u64 = 4 << 20 >> 3;
/// Most parts of one tree.
const MOST_PARTS: u64 = 64;

impl GroupHosts {
    /// Starts a collective.
    ///
    /// # Panics
    /// If [`check`](Self::check) fails.
    pub fn begin(
        &self,
        op: GroupMessages,
        size: MessageSize,
        carried: (Band, u32),
        network: &mut dyn Network,
    ) -> Messages {
        let (plans, hosts) = self.ways(op).expect("checked when the run is planned");
        Messages::along(plans, hosts, size, carried, network)
    }

    /// Validates a collective.
    ///
    /// # Errors
    /// [`PlanError`] if it has too many ranks or bytes.
    pub fn check(&self, op: GroupMessages) -> Result<(), PlanError> {
        self.ways(op).map(|_| ())
    }

    /// Pairs of hosts (sender, receiver) of a collective.
    ///
    /// # Panics
    /// As [`begin`](Self::begin).
    pub fn pairs(&self, op: GroupMessages) -> BTreeSet<(u32, u32)> {
        let (plans, hosts) = self.ways(op).expect("checked when the run is planned");
        let mut pairs = BTreeSet::new();
        for (plan, hosts) in plans.iter().zip(hosts.iter().cycle()) {
            // Every step of a ring sends to the same ranks.
            let step_count = if plan.is_ring() { 1 } else { plan.step_count() };
            for (step, rank) in (0..step_count).flat_map(|step| (0..plan.ranks()).map(move |rank| (step, rank))) {
                plan.sends(step, rank, &mut |message| {
                    pairs.insert((hosts[message.from as usize], hosts[message.to as usize]));
                });
            }
        }
        pairs
    }

    /// How its ranks are spread over nodes.
    ///
    /// # Panics
    /// If the group is empty.
    pub fn span(&self) -> Span {
        Span::of_nodes(self.nodes.iter().map(Vec::len)).expect("a group has ranks on each of its nodes")
    }

    /// The concurrent plans of a collective, with their hosts.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn ways(&self, op: GroupMessages) -> Result<Ways, PlanError> {
        if op.kind == CollectiveKind::Send {
            return self.sends(op.bytes);
        }
        let span = self.span();
        if op.is_tree && !span.is_even() {
            return Err(PlanError::UnevenNodes { ranks: span.ranks(), nodes: span.nodes() });
        }
        let Form { algorithm, ways, depth } = op.form(span);
        let hosts = (0..ways).map(|way| match algorithm {
            // Each tree has a different rank as head of its chains.
            Algorithm::Hierarchical { .. } => self.rotated(way as usize, way % 2 == 1),
            // The last rank of a node sends to the next node.
            _ if ways > 1 => self.rotated(way as usize + 1, false),
            _ => self.nodes.concat(),
        });
        // Ordered by part, so that the first parts of all trees are sent first.
        let plans = parts(op.bytes, ways * depth).map(|part| plan(&algorithm, span.ranks() as usize, part));
        Ok((plans.collect::<Result<_, _>>()?, hosts.collect()))
    }

    fn sends(&self, bytes: Bytes) -> Result<Ways, PlanError> {
        let all = self.nodes.concat();
        let next = all.iter().cycle().skip(1);
        let mut hosts: Vec<Vec<u32>> = all.iter().zip(next).map(|(&host, &next)| vec![host, next]).collect();
        if self.is_link {
            hosts.truncate(1);
        }
        let plans = hosts.iter().map(|_| plan(&Algorithm::PointToPoint, 2, bytes));
        Ok((plans.collect::<Result<_, _>>()?, hosts))
    }

    /// Hosts with the ranks of each node rotated by `by`, and the order of the nodes reversed if `is_reversed`.
    fn rotated(&self, by: usize, is_reversed: bool) -> Vec<u32> {
        let rotated = |node: &Vec<u32>| {
            let mut node = node.clone();
            let count = node.len();
            node.rotate_left(by % count);
            node
        };
        let mut nodes: Vec<Vec<u32>> = self.nodes.iter().map(rotated).collect();
        if is_reversed {
            nodes.reverse();
        }
        nodes.concat()
    }
}

/// Concurrent plans: `ways` rings or trees, each with `depth` parts or chunks.
struct Form {
    algorithm: Algorithm,
    ways: u64,
    depth: u64,
}

impl GroupMessages {
    /// Number of messages of the collective on a group of this span; a send counts one per rank, each to the next.
    pub fn count(self, span: Span) -> u64 {
        let Form { algorithm, ways, depth } = self.form(span);
        let each = if self.kind == CollectiveKind::Send { span.ranks().into() } else { ways * depth };
        each * algorithm.counts(span.ranks()).messages
    }

    fn form(self, span: Span) -> Form {
        let is_one_node = span.nodes() == 1;
        let rings = if is_one_node { 1 } else { u64::from(span.per_node()) };
        let part = |ways: u64| self.bytes.0 / ways;
        let ring = |algorithm| Form { algorithm, ways: rings, depth: self.depth.into() };
        let whole = |algorithm| Form { algorithm, ways: 1, depth: 1 };
        match self.kind {
            CollectiveKind::AllReduce if self.is_tree => {
                let ways = rings.max(2);
                let algorithm = Algorithm::Hierarchical { group: span.per_node(), inside: Inside::Chain };
                Form { algorithm, ways, depth: (part(ways) / TREE_PART).clamp(1, MOST_PARTS) }
            }
            CollectiveKind::AllReduce => ring(Algorithm::Ring),
            CollectiveKind::AllGather => ring(Algorithm::AllGather),
            CollectiveKind::ReduceScatter => ring(Algorithm::ReduceScatter),
            CollectiveKind::AllToAll => whole(Algorithm::AllToAll),
            CollectiveKind::Broadcast => whole(Algorithm::Broadcast),
            CollectiveKind::Send => whole(Algorithm::PointToPoint),
        }
    }
}

fn plan(algorithm: &Algorithm, ranks: usize, bytes: Bytes) -> Result<CollectivePlan, PlanError> {
    CollectivePlan::new(algorithm, ranks as u32, bytes, 1)
}

/// Parts of `bytes` that differ by at most one byte.
fn parts(bytes: Bytes, count: u64) -> impl Iterator<Item = Bytes> {
    let before = move |index: u64| (u128::from(bytes.0) * u128::from(index) / u128::from(count)) as u64;
    (0..count).map(move |index| Bytes(before(index + 1) - before(index)))
}
