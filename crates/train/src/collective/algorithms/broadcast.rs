//! Broadcast from rank 0 to all ranks along a binomial tree. In a process group, flows along rings model it.
//!
//! # Source
//! Thakur et al. (2005): binomial tree.

use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::levels::{CollectiveKind, Levels, Span};
use crate::collective::pattern::{Action, BufferShare, Pattern, Send, log2_ceil};
use crate::collective::plan::{Phase, PlanError};
use serde::Deserialize;

/// Broadcast.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Broadcast;

const ABOUT: About = About {
    title: "broadcast",
    operation: CollectiveKind::Broadcast,
    keys: &[],
    needs_even_nodes: false,
    rows: &[Row {
        form: "",
        does: "rank 0's buffer to all",
        steps: "ceil(log2 N)",
        bytes: "root S ceil(log2 N)",
        source: "Thakur et al. (2005), binomial tree",
    }],
};

/// Sends the whole buffer from rank i to rank i - 2^k, where k is the index of the lowest set bit of i.
#[derive(Debug)]
pub(super) struct BinomialReduce;

/// Sends the whole buffer down the tree of [`BinomialReduce`], to the largest subtree first.
#[derive(Debug)]
pub(super) struct BinomialBroadcast;

impl CollectiveAlgorithm for Broadcast {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(vec![Phase::of_all(BinomialBroadcast)])
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let (n, depth) = (u64::from(ranks), u64::from(log2_ceil(ranks)));
        Counts { steps: depth, messages: n - 1, sent: n - 1, most: (depth, 1) }
    }

    fn levels(&self, span: Span) -> Option<Levels> {
        Some(Levels::rings(span, (1, 1), 1, 0))
    }

    fn is_of_flows(&self, _span: Span) -> bool {
        true
    }
}

impl Pattern for BinomialReduce {
    fn step_count(&self, n: u32) -> u32 {
        log2_ceil(n)
    }

    fn sends(&self, step: u32, i: u32, _n: u32, send: Send<'_>) {
        if i.trailing_zeros() == step {
            send(i - (1 << step), BufferShare::WHOLE, Action::Reduce);
        }
    }

    fn receive_count(&self, step: u32, i: u32, n: u32) -> u32 {
        u32::from(i.is_multiple_of(2 << step) && i + (1 << step) < n)
    }
}

impl Pattern for BinomialBroadcast {
    fn step_count(&self, n: u32) -> u32 {
        log2_ceil(n)
    }

    fn sends(&self, step: u32, i: u32, n: u32, send: Send<'_>) {
        let subtree = 1 << (log2_ceil(n) - 1 - step);
        if i.is_multiple_of(2 * subtree) && i + subtree < n {
            send(i + subtree, BufferShare::WHOLE, Action::Copy);
        }
    }

    fn receive_count(&self, step: u32, i: u32, n: u32) -> u32 {
        u32::from(i.trailing_zeros() == log2_ceil(n) - 1 - step)
    }

    fn is_one_at_a_time(&self) -> bool {
        true
    }
}
