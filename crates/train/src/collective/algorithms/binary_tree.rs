//! All-reduce of whole buffers along one binary tree, in which the parent of rank i is (i-1)/2.
//!
//! # Source
//! Sanders, Speck & Träff (2009), "binary tree". Their algorithm uses two such trees.

use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::levels::CollectiveKind;
use crate::collective::pattern::{Action, BufferShare, Pattern, Send};
use crate::collective::plan::{Phase, PlanError};
use serde::Deserialize;

/// All-reduce along one binary tree.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct BinaryTree;

const ABOUT: About = About {
    title: "binary tree",
    operation: CollectiveKind::AllReduce,
    keys: &[],
    needs_even_nodes: false,
    rows: &[Row {
        form: "",
        does: "all-reduce",
        steps: "2 floor(log2 N)",
        bytes: "root 2 S, inner ranks 3 S, leaves S",
        source: "Sanders et al. (2009), the binary tree, with whole buffers",
    }],
};

/// Sends the whole buffer from rank i to its parent (i-1)/2, the deepest level first.
#[derive(Debug)]
pub(super) struct TreeReduce;

/// Sends the whole buffer from rank i to its children 2i+1 and 2i+2.
#[derive(Debug)]
pub(super) struct TreeBroadcast;

impl CollectiveAlgorithm for BinaryTree {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(vec![Phase::of_all(TreeReduce), Phase::of_all(TreeBroadcast)])
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let (n, sent) = (u64::from(ranks), 2 * u64::from(ranks - 1));
        let most = ((n - 1).min(n.div_ceil(2)).min(3), 1);
        Counts { steps: 2 * u64::from(ranks.ilog2()), messages: sent, sent, most }
    }
}

impl Pattern for TreeReduce {
    fn step_count(&self, n: u32) -> u32 {
        n.ilog2()
    }

    fn sends(&self, step: u32, i: u32, n: u32, send: Send<'_>) {
        if (i + 1).ilog2() == n.ilog2() - step {
            send((i - 1) / 2, BufferShare::WHOLE, Action::Reduce);
        }
    }

    fn receive_count(&self, step: u32, i: u32, n: u32) -> u32 {
        if (i + 1).ilog2() + 1 == n.ilog2() - step { children(i, n).count() as u32 } else { 0 }
    }
}

impl Pattern for TreeBroadcast {
    fn step_count(&self, n: u32) -> u32 {
        n.ilog2()
    }

    fn sends(&self, step: u32, i: u32, n: u32, send: Send<'_>) {
        if (i + 1).ilog2() == step {
            children(i, n).for_each(|child| send(child, BufferShare::WHOLE, Action::Copy));
        }
    }

    fn receive_count(&self, step: u32, i: u32, _n: u32) -> u32 {
        u32::from((i + 1).ilog2() == step + 1)
    }
}

fn children(i: u32, n: u32) -> impl Iterator<Item = u32> {
    [2 * i + 1, 2 * i + 2].into_iter().filter(move |&child| child < n)
}
