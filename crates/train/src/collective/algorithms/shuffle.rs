//! All-reduce in two all-to-all steps: a reduce-scatter and an all-gather.
//!
//! # Source
//! Caramel (Hashemi et al. 2020), section 2: "shuffle", after Dean & Ghemawat (2008).

use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::levels::CollectiveKind;
use crate::collective::pattern::{Action, BufferShare, Pattern, Send, others};
use crate::collective::plan::{Phase, PlanError};
use serde::Deserialize;

/// All-reduce in two all-to-all steps.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Shuffle;

const ABOUT: About = About {
    title: "shuffle",
    operation: CollectiveKind::AllReduce,
    keys: &[],
    needs_even_nodes: false,
    rows: &[Row {
        form: "",
        does: "all-reduce",
        steps: "2",
        bytes: "2 S (N-1)/N",
        source: "Caramel (2020), section 2",
    }],
};

/// Sends part j to rank j.
#[derive(Debug)]
struct DirectReduceScatter;

/// Sends the sum of each rank's part to every other rank.
#[derive(Debug)]
struct DirectAllGather;

impl CollectiveAlgorithm for Shuffle {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(vec![Phase::of_all(DirectReduceScatter), Phase::of_all(DirectAllGather)])
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let n = u64::from(ranks);
        Counts { steps: 2, messages: 2 * n * (n - 1), sent: 2 * (n - 1), most: (2 * (n - 1), n) }
    }
}

impl Pattern for DirectReduceScatter {
    fn step_count(&self, n: u32) -> u32 {
        u32::from(n > 1)
    }

    fn sends(&self, _step: u32, i: u32, n: u32, send: Send<'_>) {
        others(i, n).for_each(|j| send(j, BufferShare::part(j, n), Action::Reduce));
    }

    fn receive_count(&self, _step: u32, _i: u32, n: u32) -> u32 {
        n - 1
    }
}

impl Pattern for DirectAllGather {
    fn step_count(&self, n: u32) -> u32 {
        u32::from(n > 1)
    }

    fn sends(&self, _step: u32, i: u32, n: u32, send: Send<'_>) {
        others(i, n).for_each(|j| send(j, BufferShare::part(i, n), Action::Copy));
    }

    fn receive_count(&self, _step: u32, _i: u32, n: u32) -> u32 {
        n - 1
    }
}
