//! Collectives of a process group whose ranks are all simulated: the messages of what [`levels`](super::levels) counts.
//!
//! | | messages |
//! |---|---|
//! | all-gather, reduce-scatter, all-reduce | a ring, each round of which waits for the one before it; over several nodes k rings, of which each has a k-th of the buffer and leaves a node by another rank |
//! | all-reduce in trees | k chains in each node and trees between their heads, half of them the other way round; 512 KiB at a time |
//! | all-to-all | from each rank to each |
//! | broadcast | a binomial tree |
//! | send | from the first of two ranks to the second; of more, from each to the next |
//!
//! What does not live here: which of ring and tree is taken, and in what order transfers follow one another.
//!
//! # Source
//! As [`levels`](super::levels). Rounds of a ring are paid one by one, as NCCL's own cost model has it
//! (`src/graph/tuning.cc`: latency times steps, and bytes over bandwidth). Parts of trees: NCCL's buffer of 4 MiB
//! (`NCCL_BUFFSIZE`) has 8 slots.

use super::levels::{CollectiveKind, Span};
use super::messages::{MessageSize, Messages};
use super::plan::{Algorithm, CollectivePlan, Inside, PlanError};
use gradtide_net::{Band, Bytes, Network};
use std::collections::BTreeSet;

/// The ranks of a process group.
#[derive(Clone, Debug)]
pub struct GroupHosts {
    /// Host of each by node, those of a node one after the other; one at least on each.
    pub nodes: Vec<Vec<u32>>,
    /// Whether a send goes from the first to the second alone, and not from each to the next.
    pub is_link: bool,
}

/// A collective of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMessages {
    /// What it does.
    pub kind: CollectiveKind,
    /// See [`levels`](super::levels).
    pub bytes: Bytes,
    /// Whether an all-reduce goes along trees.
    pub is_tree: bool,
    /// Chunks of a buffer that go round rings side by side; not 0.
    pub depth: u32,
}

/// Plans side by side, and the hosts of each.
pub type Ways = (Vec<CollectivePlan>, Vec<Vec<u32>>);

/// Bytes of a tree that follow one another.
const TREE_PART: u64 = 4 << 20 >> 3;
/// Parts of a way at most.
const MOST_PARTS: u64 = 64;

impl GroupHosts {
    /// Starts a collective.
    ///
    /// # Panics
    /// If [`check`](Self::check) refuses it.
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

    /// Whether there is such a collective.
    ///
    /// # Errors
    /// [`PlanError`] if it has too many ranks or bytes.
    pub fn check(&self, op: GroupMessages) -> Result<(), PlanError> {
        self.ways(op).map(|_| ())
    }

    /// Hosts of which one sends to the other in a collective.
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

    /// How its ranks lie on nodes.
    ///
    /// # Panics
    /// If it has none.
    pub fn span(&self) -> Span {
        Span::of_nodes(self.nodes.iter().map(Vec::len)).expect("a group has ranks on each of its nodes")
    }

    /// Plans that go side by side, and round and round the hosts of each.
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
            // The head of a chain is another one in each tree.
            Algorithm::Hierarchical { .. } => self.turned(way as usize, way % 2 == 1),
            // The last rank of a node sends to the next node.
            _ if ways > 1 => self.turned(way as usize + 1, false),
            _ => self.nodes.concat(),
        });
        // Part by part, so that the first parts of all trees go first.
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

    /// Hosts with those of each node turned, so that another one is the first; or with the last node first.
    fn turned(&self, by: usize, is_reversed: bool) -> Vec<u32> {
        let turned = |node: &Vec<u32>| {
            let mut node = node.clone();
            let count = node.len();
            node.rotate_left(by % count);
            node
        };
        let mut nodes: Vec<Vec<u32>> = self.nodes.iter().map(turned).collect();
        if is_reversed {
            nodes.reverse();
        }
        nodes.concat()
    }
}

/// Plans side by side: so many ways, of so many parts each.
struct Form {
    algorithm: Algorithm,
    ways: u64,
    depth: u64,
}

impl GroupMessages {
    /// Messages of the collective on such a group; of a send, if each rank sends to the next.
    pub fn count(self, span: Span) -> u64 {
        let Form { algorithm, ways, depth } = self.form(span);
        let each = if self.kind == CollectiveKind::Send { span.ranks().into() } else { ways * depth };
        each * algorithm.counts(span.ranks()).messages
    }

    fn form(self, span: Span) -> Form {
        let is_one_node = span.nodes() == 1;
        let around = if is_one_node { 1 } else { u64::from(span.per_node()) };
        let part = |ways: u64| self.bytes.0 / ways;
        let ring = |algorithm| Form { algorithm, ways: around, depth: self.depth.into() };
        let whole = |algorithm| Form { algorithm, ways: 1, depth: 1 };
        match self.kind {
            CollectiveKind::AllReduce if self.is_tree => {
                let ways = around.max(2);
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
