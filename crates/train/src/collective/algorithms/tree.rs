//! All-reduce along binary trees. Each tree reduces an equal share of the bytes, which it cuts into parts and
//! pipelines. Within a node the ranks form a chain.
//!
//! # Source
//! The two binary trees of Sanders, Speck & Träff (2009), whose inner nodes send three halves of the buffer and whose
//! leaves send one half; within a node NCCL has used a chain since 2.4 (Jeaugey 2019). The size of parts follows NCCL,
//! whose buffer of 4 MiB (`NCCL_BUFFSIZE`) has 8 slots.

use super::binary_tree::{BinaryTree, TreeBroadcast, TreeReduce};
use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::group::{GroupHosts, GroupPlans};
use crate::collective::levels::{CollectiveKind, Levels, PortLoad, Span};
use crate::collective::pattern::{Action, BufferShare, Pattern, Send};
use crate::collective::plan::{Phase, PlanError, Subgroups};
use gradtide_net::Bytes;
use serde::Deserialize;

/// All-reduce along two binary trees. [`plan`](CollectiveAlgorithm::plan) contains only one of them,
/// [`group_plans`](CollectiveAlgorithm::group_plans) contains all.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Tree;

const ABOUT: About = About {
    title: "tree",
    operation: CollectiveKind::AllReduce,
    keys: &[],
    needs_even_nodes: true,
    rows: &[Row {
        form: "",
        does: "all-reduce",
        steps: "2 floor(log2 N)",
        bytes: "2 S; of two ranks S",
        source: "Sanders et al. (2009), two binary trees, each with half of the bytes, as a pipeline; NCCL",
    }],
};

/// Size of a pipelined part, in bytes.
const PART: u64 = 4 << 20 >> 3;
/// Largest number of parts of one tree.
const MOST_PARTS: u64 = 64;

/// Sends the whole buffer from rank i to rank i-1, starting at the last rank.
#[derive(Debug)]
struct ChainReduce;

/// Sends the whole buffer from rank i to rank i+1, starting at the first rank.
#[derive(Debug)]
struct ChainBroadcast;

impl CollectiveAlgorithm for Tree {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, ranks: u32) -> Result<Vec<Phase>, PlanError> {
        BinaryTree.phases(ranks)
    }

    /// Returns the costs of both trees. As in the flow model, every rank counts like the busiest rank.
    fn closed_form(&self, ranks: u32) -> Counts {
        let n = u64::from(ranks);
        let most = (n - 1).min(2);
        Counts { steps: 2 * u64::from(ranks.ilog2()), messages: 4 * (n - 1), sent: n * most, most: (most, 1) }
    }

    fn levels(&self, span: Span) -> Option<Levels> {
        let (per_node, nodes) = (u64::from(span.per_node()), span.nodes());
        let scale_up = PortLoad::new(2 * (per_node - 1), per_node, 2 * (span.per_node() - 1));
        Some(Levels {
            scale_up,
            nic: PortLoad::new(if nodes == 2 { 1 } else { 2 }, per_node, 2 * nodes.ilog2()),
            passing: scale_up,
            crosses_both: true,
            is_pipelined: true,
            reductions: 1,
        })
    }

    fn is_over_nodes(&self, _span: Span) -> bool {
        true
    }

    fn concurrency(&self, span: Span, bytes: Bytes, _depth: u32) -> (u64, u64) {
        let trees = if span.nodes() == 1 { 2 } else { u64::from(span.per_node()).max(2) };
        (trees, (bytes.0 / trees / PART).clamp(1, MOST_PARTS))
    }

    fn group_plans(&self, group: &GroupHosts, bytes: Bytes, depth: u32) -> Result<GroupPlans, PlanError> {
        let span = group.span();
        if !span.is_even() {
            return Err(PlanError::UnevenNodes { ranks: span.ranks(), nodes: span.nodes() });
        }
        // Each tree has a different rank as the head of its chains, and every second tree takes the nodes in reverse
        // order.
        let turned = |tree: u64| (tree as usize, tree % 2 == 1);
        group.plans(&chained_tree(span.per_node()), bytes, self.concurrency(span, bytes, depth), turned)
    }

    fn group_messages(&self, span: Span, bytes: Bytes, depth: u32) -> u64 {
        let (trees, parts) = self.concurrency(span, bytes, depth);
        trees * parts * 2 * u64::from(span.ranks() - 1)
    }
}

/// Returns the phases of one tree: in each `group` of consecutive ranks a chain to the group's first rank (head), a
/// binary tree of the heads upwards and downwards, and the chain in reverse.
pub fn chained_tree(group: u32) -> Vec<Phase> {
    vec![
        Phase::new(ChainReduce, Subgroups::Inside { group }),
        Phase::new(TreeReduce, Subgroups::Heads { group }),
        Phase::new(TreeBroadcast, Subgroups::Heads { group }),
        Phase::new(ChainBroadcast, Subgroups::Inside { group }),
    ]
}

impl Pattern for ChainReduce {
    fn step_count(&self, n: u32) -> u32 {
        n - 1
    }

    fn sends(&self, step: u32, i: u32, n: u32, send: Send<'_>) {
        if i > 0 && step == n - 1 - i {
            send(i - 1, BufferShare::WHOLE, Action::Reduce);
        }
    }

    fn receive_count(&self, step: u32, i: u32, n: u32) -> u32 {
        u32::from(step + i + 2 == n)
    }
}

impl Pattern for ChainBroadcast {
    fn step_count(&self, n: u32) -> u32 {
        n - 1
    }

    fn sends(&self, step: u32, i: u32, _n: u32, send: Send<'_>) {
        if i == step {
            send(i + 1, BufferShare::WHOLE, Action::Copy);
        }
    }

    fn receive_count(&self, step: u32, i: u32, _n: u32) -> u32 {
        u32::from(i == step + 1)
    }
}
