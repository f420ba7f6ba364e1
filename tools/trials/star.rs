//! All-reduce at one rank: every rank sends its buffer to rank 0, which sends the sum back.

use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::levels::CollectiveKind;
use crate::collective::pattern::{Action, BufferShare, Pattern, Send};
use crate::collective::plan::{Phase, PlanError};
use serde::Deserialize;

/// The algorithm.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Star;

const ABOUT: About = About {
    title: "star",
    operation: CollectiveKind::AllReduce,
    keys: &[],
    needs_even_nodes: false,
    rows: &[Row { form: "", does: "all-reduce", steps: "2", bytes: "rank 0 S (N-1); others S", source: "" }],
};

/// Whole buffer to rank 0.
#[derive(Debug)]
struct ToRoot;

/// Whole buffer from rank 0.
#[derive(Debug)]
struct FromRoot;

impl CollectiveAlgorithm for Star {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(vec![Phase::of_all(ToRoot), Phase::of_all(FromRoot)])
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let others = u64::from(ranks - 1);
        Counts { steps: 2, messages: 2 * others, sent: 2 * others, most: (others, 1) }
    }
}

impl Pattern for ToRoot {
    fn step_count(&self, n: u32) -> u32 {
        u32::from(n > 1)
    }

    fn sends(&self, _step: u32, i: u32, _n: u32, send: Send<'_>) {
        if i > 0 {
            send(0, BufferShare::WHOLE, Action::Reduce);
        }
    }

    fn receive_count(&self, _step: u32, i: u32, n: u32) -> u32 {
        if i == 0 { n - 1 } else { 0 }
    }
}

impl Pattern for FromRoot {
    fn step_count(&self, n: u32) -> u32 {
        u32::from(n > 1)
    }

    fn sends(&self, _step: u32, i: u32, n: u32, send: Send<'_>) {
        if i == 0 {
            (1..n).for_each(|j| send(j, BufferShare::WHOLE, Action::Copy));
        }
    }

    fn receive_count(&self, _step: u32, i: u32, _n: u32) -> u32 {
        u32::from(i > 0)
    }
}
