//! All-reduce along one ring, irrespective of the placement of ranks. The ring leaves each node through one network
//! card.

use super::ring::{self, Ring};
use crate::collective::algorithm::{About, CollectiveAlgorithm};
use crate::collective::counts::Counts;
use crate::collective::levels::CollectiveKind;
use crate::collective::plan::{Phase, PlanError};
use serde::Deserialize;

/// All-reduce over a single ring.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct SingleRing;

const ABOUT: About = About {
    title: "single ring",
    operation: CollectiveKind::AllReduce,
    keys: &[],
    needs_even_nodes: false,
    rows: ring::ROWS,
};

impl CollectiveAlgorithm for SingleRing {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(ring::both_halves().into())
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        Ring.closed_form(ranks)
    }
}
