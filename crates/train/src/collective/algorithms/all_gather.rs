//! Ring all-gather: every rank receives part i from rank i. On nodes with several ranks there is one ring per network
//! card of a node.
//!
//! # Source
//! Thakur et al. (2005): ring all-gather.

use super::ring::{self, RingAllGather};
use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::levels::{CollectiveKind, Levels, Span};
use crate::collective::plan::{Phase, PlanError};
use gradtide_net::Bytes;
use serde::Deserialize;

/// Ring all-gather.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct AllGather;

const ABOUT: About = About {
    title: "all-gather",
    operation: CollectiveKind::AllGather,
    keys: &[],
    needs_even_nodes: false,
    rows: &[Row {
        form: "",
        does: "rank i's part i to all",
        steps: "N-1",
        bytes: "S (N-1)/N",
        source: "Thakur et al. (2005), ring",
    }],
};

impl CollectiveAlgorithm for AllGather {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(vec![Phase::of_all(RingAllGather { shift: 1 })])
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let n = u64::from(ranks);
        Counts { steps: n - 1, messages: n * (n - 1), sent: n - 1, most: (n - 1, n) }
    }

    fn levels(&self, span: Span) -> Option<Levels> {
        let ranks = u64::from(span.ranks());
        Some(Levels::rings(span, (ranks - 1, ranks), 1, 0))
    }

    fn is_over_nodes(&self, span: Span) -> bool {
        !span.is_on_one_level()
    }

    fn concurrency(&self, span: Span, _bytes: Bytes, depth: u32) -> (u64, u64) {
        ring::rings(span, depth)
    }
}
