//! Direct all-to-all: rank j receives part j of the S bytes of every rank. All messages are concurrent. Rank i sends to
//! rank i+1 first.
//!
//! # Source
//! Thakur et al. (2005): MPICH's algorithm for medium messages, which posts all sends at once.

use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::levels::{CollectiveKind, Levels, Span};
use crate::collective::pattern::{Action, BufferShare, Pattern, Send, others};
use crate::collective::plan::{Phase, PlanError};
use serde::Deserialize;

/// Direct all-to-all.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct AllToAll;

const ABOUT: About = About {
    title: "all-to-all",
    operation: CollectiveKind::AllToAll,
    keys: &[],
    needs_even_nodes: false,
    rows: &[Row {
        form: "",
        does: "part j of every rank to rank j",
        steps: "1",
        bytes: "S (N-1)/N",
        source: "Thakur et al. (2005), all at once",
    }],
};

/// Sends part j of every rank's buffer to rank j.
#[derive(Debug)]
struct Direct;

impl CollectiveAlgorithm for AllToAll {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(vec![Phase::of_all(Direct)])
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let n = u64::from(ranks);
        Counts { steps: 1, messages: n * (n - 1), sent: n - 1, most: (n - 1, n) }
    }

    fn levels(&self, span: Span) -> Option<Levels> {
        let (ranks, per_node) = (u64::from(span.ranks()), u64::from(span.per_node()));
        Some(Levels::direct(per_node - 1, ranks - per_node, ranks))
    }
}

impl Pattern for Direct {
    fn step_count(&self, n: u32) -> u32 {
        u32::from(n > 1)
    }

    fn sends(&self, _step: u32, i: u32, n: u32, send: Send<'_>) {
        others(i, n).for_each(|j| send(j, BufferShare { origin: i, ..BufferShare::part(j, n) }, Action::Copy));
    }

    fn receive_count(&self, _step: u32, _i: u32, n: u32) -> u32 {
        n - 1
    }

    fn has_buffer_of_each_rank(&self) -> bool {
        true
    }
}
