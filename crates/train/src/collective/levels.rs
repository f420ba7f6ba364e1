//! Bytes and rounds of a collective at the two levels of the network: the scale-up switch of a node, and the network
//! cards between nodes.
//!
//! A group has n ranks, k on each of m nodes. A rank has a port on its node's scale-up switch and a share of the node's
//! network cards. S is the size of the collective in bytes. For an all-gather it is the size of the gathered buffer,
//! for a reduce-scatter that of the buffer before it is scattered, and for an all-to-all the size of one rank's data
//! for all ranks.
//!
//! | | bytes from a rank's port to the scale-up switch | rounds | bytes out of a rank's share of the cards | rounds |
//! |---|---|---|---|---|
//! | all-gather, reduce-scatter | S (n-1)/n (k-1)/k | n-m | S (n-1)/n 1/k | m-1 |
//! | all-gather, reduce-scatter on one node | S (n-1)/n | n-1 | | |
//! | all-reduce, ring | 2 × all-gather | 2 × all-gather | 2 × all-gather | 2 × all-gather |
//! | all-reduce, tree | 2S (k-1)/k | 2(k-1) | 2S/k; on two nodes S/k | 2⌊log2 m⌋ |
//! | broadcast | S (k-1)/k; on one node S | n-m | S/k | m-1 |
//! | all-to-all | S (k-1)/n | 1 | S (n-k)/n | 1 |
//! | send | S on one node | 1 | S between nodes | 1 |
//!
//! A ring over several nodes consists of k rings, each with 1/k of the buffer. Each ring leaves a node through the card
//! of a different rank, so all cards of a node carry the same load. A round is a message on whose arrival the next
//! message depends. Along a ring, n-1 messages follow one another, m-1 of them between nodes. If nodes have different
//! numbers of ranks, there are as many rings as the smallest node has ranks. A rank through which no ring leaves the
//! node sends the data of all rings to the next rank of its node.
//!
//! # Source
//! Rings: Patarasuk & Yuan (2009). One ring per card, and the rounds of rings over nodes and of trees: NCCL's published
//! sources, `src/graph/tuning.cc`. Trees: the two binary trees of Sanders, Speck & Träff (2009), whose inner nodes send
//! three halves of the buffer and whose leaves send one half. Within a node the ranks form a chain, as in NCCL since
//! 2.4 (Jeaugey 2019).
//!
//! Out of scope: rates, delays, and the choice between ring and tree.

use gradtide_net::Bytes;
use serde::Serialize;
use thiserror::Error;

/// The operation of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveKind {
    /// Every rank receives the sum of all buffers.
    AllReduce,
    /// Every rank receives one part from each rank.
    AllGather,
    /// Each rank receives one part of the sum of all buffers.
    ReduceScatter,
    /// Each rank receives a different part from every rank.
    AllToAll,
    /// Every rank receives the buffer of the first rank.
    Broadcast,
    /// Point-to-point: the second of two ranks receives the buffer of the first.
    Send,
}

impl CollectiveKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::AllReduce, Self::AllGather, Self::ReduceScatter, Self::AllToAll, Self::Broadcast, Self::Send];

    /// Returns the name shown to users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Broadcast => "broadcast",
            Self::Send => "send",
        }
    }
}

/// Distribution of a process group's ranks over nodes. `per_node` is the number of ranks on the node with the fewest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    ranks: u32,
    per_node: u32,
    nodes: u32,
}

/// Error: the ranks do not fill whole nodes.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{ranks} ranks of a group cannot fill nodes with {per_node} each")]
pub struct SpanError {
    /// Number of ranks of the group.
    pub ranks: u32,
    /// Number of ranks per node.
    pub per_node: u32,
}

impl Span {
    /// Creates the span of a group of `ranks`, with `per_node` on each node.
    ///
    /// # Errors
    /// [`SpanError`] unless the ranks fill one or more whole nodes.
    pub fn new(ranks: u32, per_node: u32) -> Result<Self, SpanError> {
        let fits = per_node > 0 && ranks > 0 && ranks.is_multiple_of(per_node);
        if fits { Ok(Self { ranks, per_node, nodes: ranks / per_node }) } else { Err(SpanError { ranks, per_node }) }
    }

    /// Creates the span of a group from `counts`, the number of ranks on each of its nodes. Returns `None` without
    /// nodes or with an empty node.
    pub fn of_nodes(counts: impl Iterator<Item = usize> + Clone) -> Option<Self> {
        let per_node = counts.clone().min().filter(|&least| least > 0)? as u32;
        Some(Self { ranks: counts.clone().sum::<usize>() as u32, per_node, nodes: counts.count() as u32 })
    }

    /// Returns the number of ranks of the group.
    pub fn ranks(self) -> u32 {
        self.ranks
    }

    /// Returns the number of ranks per node. If nodes differ, this is the number on the node with the fewest.
    pub fn per_node(self) -> u32 {
        self.per_node
    }

    /// Returns whether all messages use one level (scale-up switch or network cards), because the group is on one node
    /// or has one rank per node.
    pub fn is_on_one_level(self) -> bool {
        self.ranks == self.nodes || self.nodes == 1
    }

    /// Returns the number of nodes.
    pub fn nodes(self) -> u32 {
        self.nodes
    }

    /// Returns whether every node has the same number of ranks.
    pub fn is_even(self) -> bool {
        u64::from(self.per_node) * u64::from(self.nodes) == u64::from(self.ranks)
    }
}

/// Load of one rank at one level. The rank sends the fraction `sent / of` of S, the bytes of the collective: either in
/// `rounds` that depend on one another, or (`is_direct`) in `sent` concurrent messages of S / `of`, one per peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortLoad {
    sent: u64,
    of: u64,
    rounds: u32,
    is_direct: bool,
}

impl PortLoad {
    const NONE: Self = Self { sent: 0, of: 1, rounds: 0, is_direct: false };

    /// Creates a load of `sent / of` of S in rounds that depend on one another.
    pub fn new(sent: u64, of: u64, rounds: u32) -> Self {
        if rounds == 0 || sent == 0 { Self::NONE } else { Self { sent, of, rounds, is_direct: false } }
    }

    /// Creates a load of `peers` concurrent messages of S / `of` bytes, one to each peer.
    fn direct(peers: u64, of: u64) -> Self {
        Self { is_direct: true, ..Self::new(peers, of, 1) }
    }

    /// Returns the number of ranks to which the rank sends concurrently.
    pub fn peers(self) -> u32 {
        if self.is_direct { self.sent as u32 } else { self.rounds.min(1) }
    }

    /// Returns the bytes that leave the port in a collective of `bytes`, rounded up.
    pub fn bytes(self, bytes: Bytes) -> Bytes {
        let sent = (u128::from(bytes.0) * u128::from(self.sent)).div_ceil(u128::from(self.of));
        Bytes(u64::try_from(sent).unwrap_or(u64::MAX))
    }

    /// Returns the size of one message as a fraction (bytes, divisor). The size is exact if a message is 1/q of `bytes`
    /// for an integer q, as on one level. Otherwise it is derived from the bytes of the port, which are rounded up.
    pub fn message(self, bytes: Bytes) -> (Bytes, u32) {
        let count = self.rounds * self.peers();
        let parts = u128::from(self.of) * u128::from(count);
        let is_one = parts.is_multiple_of(u128::from(self.sent.max(1)));
        match u32::try_from(parts / u128::from(self.sent.max(1))) {
            Ok(parts) if is_one => (bytes, parts),
            _ => (self.bytes(bytes), count),
        }
    }

    /// Returns the number of dependent messages in sequence; 0 if nothing is sent.
    pub fn rounds(self) -> u32 {
        self.rounds
    }
}

/// Load of one rank at both levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Load out of the rank's port on the node's scale-up switch.
    pub scale_up: PortLoad,
    /// Load out of the rank's share of the node's network cards.
    pub nic: PortLoad,
    /// Load within the node of a rank through which no ring leaves the node. Such ranks exist if another node has fewer
    /// ranks.
    pub passing: PortLoad,
    /// Whether a message crosses both levels, so that traffic between nodes waits for the rounds within a node.
    pub crosses_both: bool,
    /// Whether the algorithm itself cuts its buffer into pipelined parts, so that chunks have no effect.
    pub is_pipelined: bool,
    /// Number of rounds with a reduction, summed over both levels.
    pub reductions: u32,
}

impl Levels {
    /// Creates the load of concurrent rings, one for each card that all nodes have. Each rank sends `sent / of` of S in
    /// total, in `turns` turns around the ring.
    pub fn rings(span: Span, (sent, of): (u64, u64), turns: u32, reductions: u32) -> Self {
        let (per_node, nodes) = (u64::from(span.per_node), span.nodes);
        let inside = turns * (span.ranks - nodes);
        Self {
            scale_up: match nodes {
                1 => PortLoad::new(sent, of, turns * (span.ranks - 1)),
                _ => PortLoad::new(sent * (per_node - 1), of * per_node, inside),
            },
            nic: PortLoad::new(sent, of * per_node, turns * (nodes - 1)),
            passing: PortLoad::new(sent, of, inside),
            crosses_both: true,
            is_pipelined: false,
            reductions,
        }
    }

    /// Creates the load of an all-to-all or a send: one part of S / `of` to each of `inside` ranks of the node and
    /// `outside` other ranks, sent concurrently.
    pub fn direct(inside: u64, outside: u64, of: u64) -> Self {
        Self {
            scale_up: PortLoad::direct(inside, of),
            nic: PortLoad::direct(outside, of),
            passing: PortLoad::NONE,
            crosses_both: false,
            is_pipelined: false,
            reductions: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::algorithm::CollectiveAlgorithm;
    use crate::collective::algorithms::{self, Algorithm, Ring, Tree};
    use CollectiveKind::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter, Send};

    fn levels(kind: CollectiveKind, span: Span) -> Levels {
        Algorithm::of_group(kind, span).1
    }

    fn tree(span: Span) -> Levels {
        Tree.levels(span).unwrap()
    }

    const KINDS: [CollectiveKind; 6] = [AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Send];

    fn span(ranks: u32, per_node: u32) -> Span {
        Span::new(ranks, per_node).unwrap()
    }

    /// Returns bytes and rounds at both levels.
    fn costs(levels: Levels, bytes: u64) -> [(u64, u32); 2] {
        [levels.scale_up, levels.nic].map(|load| (load.bytes(Bytes(bytes)).0, load.rounds()))
    }

    /// Returns the bytes that each rank sends and the number of steps, for a plan in which all ranks send equally many
    /// bytes.
    fn of_plan(algorithm: &Algorithm, ranks: u32, bytes: u64) -> (u64, u32) {
        let plan = algorithm.plan(ranks, Bytes(bytes), 1).unwrap();
        let mut sent = 0;
        for step in 0..plan.step_count() {
            plan.sends(step, 0, &mut |message| sent += message.bytes.0);
        }
        (sent, plan.step_count())
    }

    #[test]
    fn on_one_level_rings_and_direct_ones_cost_what_their_plans_send() {
        for ranks in [2, 3, 7, 8, 64] {
            let bytes = 5 * 64 * 63 * u64::from(ranks);
            let plans = [
                (AllReduce, Algorithm::from(Ring)),
                (AllGather, algorithms::AllGather.into()),
                (ReduceScatter, algorithms::ReduceScatter.into()),
                (AllToAll, algorithms::AllToAll.into()),
            ];
            for (kind, algorithm) in plans {
                let expected = of_plan(&algorithm, ranks, bytes);
                assert_eq!(costs(levels(kind, span(ranks, ranks)), bytes), [expected, (0, 0)], "{kind:?} of {ranks}");
                assert_eq!(costs(levels(kind, span(ranks, 1)), bytes), [(0, 0), expected], "{kind:?} of {ranks}");
            }
        }
    }

    #[test]
    fn a_ring_over_nodes_shares_what_crosses_among_their_cards() {
        // On 8 nodes with 8 ranks each, a rank sends 2 · 63/64 S, an eighth of it through its card.
        assert_eq!(costs(levels(AllReduce, span(64, 8)), 6_400), [(11_025, 112), (1_575, 14)]);
        assert_eq!(costs(levels(AllGather, span(64, 8)), 6_400), [(5_513, 56), (788, 7)]);
    }

    #[test]
    fn a_ring_sends_the_same_in_all_wherever_its_ranks_are() {
        for kind in [AllReduce, AllGather, ReduceScatter] {
            for per_node in [1, 2, 4, 8, 16, 32, 64] {
                let bytes = 64 * 64 * 63;
                let [(inside, rounds_inside), (outside, rounds_outside)] =
                    costs(levels(kind, span(64, per_node)), bytes);
                let turns = if kind == AllReduce { 2 } else { 1 };
                assert_eq!(inside + outside, turns * bytes * 63 / 64, "{kind:?} with {per_node} on a node");
                assert_eq!(rounds_inside + rounds_outside, turns as u32 * 63);
            }
        }
    }

    #[test]
    fn an_all_to_all_sends_to_each_rank_where_it_is() {
        assert_eq!(costs(levels(AllToAll, span(64, 8)), 6_400), [(700, 1), (5_600, 1)]);
        assert_eq!(costs(levels(AllToAll, span(8, 8)), 6_400), [(5_600, 1), (0, 0)]);
    }

    #[test]
    fn a_send_crosses_one_level() {
        assert_eq!(costs(levels(Send, span(2, 2)), 100), [(100, 1), (0, 0)]);
        assert_eq!(costs(levels(Send, span(2, 1)), 100), [(0, 0), (100, 1)]);
    }

    #[test]
    fn a_broadcast_leaves_every_rank_once() {
        assert_eq!(costs(levels(Broadcast, span(4, 4)), 100), [(100, 3), (0, 0)]);
        assert_eq!(costs(levels(Broadcast, span(8, 4)), 100), [(75, 6), (25, 1)]);
    }

    #[test]
    fn trees_have_fewer_rounds_and_at_most_two_buffers_out_of_a_node() {
        assert_eq!(costs(tree(span(64, 8)), 800), [(1_400, 14), (200, 6)]);
        assert_eq!(costs(tree(span(16, 8)), 800), [(1_400, 14), (100, 2)]);
        assert_eq!(costs(tree(span(5, 1)), 800), [(0, 0), (1_600, 4)]);
        // On one node a tree is a chain upwards and downwards, which costs as much as a ring.
        assert_eq!(costs(tree(span(8, 8)), 800), costs(levels(AllReduce, span(8, 8)), 800));
    }

    #[test]
    fn one_rank_sends_nothing_and_huge_groups_do_not_overflow() {
        for kind in KINDS {
            assert_eq!(costs(levels(kind, span(1, 1)), 1 << 50), [(0, 0), (0, 0)], "{kind:?}");
        }
        let [(inside, _), (outside, _)] = costs(levels(AllReduce, span(1 << 20, 8)), 1 << 50);
        assert!(inside + outside <= 1 << 51);
    }

    #[test]
    fn ranks_that_do_not_fill_nodes_are_refused() {
        for (ranks, per_node) in [(0, 1), (8, 0), (12, 8), (4, 8)] {
            assert_eq!(Span::new(ranks, per_node), Err(SpanError { ranks, per_node }));
        }
    }
}
