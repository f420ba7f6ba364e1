//! Ring reduce-scatter: rank i receives the sum of part i. On nodes with several ranks there is one ring per network
//! card of a node.
//!
//! # Source
//! Patarasuk & Yuan (2009), the first half.

use super::ring::{self, RingReduceScatter};
use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::levels::{CollectiveKind, Levels, Span};
use crate::collective::plan::{Phase, PlanError};
use gradtide_net::Bytes;
use serde::Deserialize;

/// Ring reduce-scatter.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct ReduceScatter;

const ABOUT: About = About {
    title: "reduce-scatter",
    operation: CollectiveKind::ReduceScatter,
    keys: &[],
    needs_even_nodes: false,
    rows: &[Row {
        form: "",
        does: "the sum of part i to rank i",
        steps: "N-1",
        bytes: "S (N-1)/N",
        source: "Patarasuk & Yuan (2009), first half",
    }],
};

impl CollectiveAlgorithm for ReduceScatter {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(vec![Phase::of_all(RingReduceScatter { shift: 1 })])
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let n = u64::from(ranks);
        Counts { steps: n - 1, messages: n * (n - 1), sent: n - 1, most: (n - 1, n) }
    }

    fn levels(&self, span: Span) -> Option<Levels> {
        let ranks = u64::from(span.ranks());
        Some(Levels::rings(span, (ranks - 1, ranks), 1, span.ranks() - 1))
    }

    fn is_over_nodes(&self, span: Span) -> bool {
        !span.is_on_one_level()
    }

    fn concurrency(&self, span: Span, _bytes: Bytes, depth: u32) -> (u64, u64) {
        ring::rings(span, depth)
    }
}
