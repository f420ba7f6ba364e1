//! All-reduce in three phases: binomial reduce in each group of consecutive ranks, butterfly among the first ranks of
//! the groups, binomial broadcast in each group.
//!
//! # Source
//! Zhang et al. (2017), section 2.1 and fig. 2.

use super::broadcast::{BinomialBroadcast, BinomialReduce};
use super::butterfly::{Butterfly, Fold, RecursiveDoubling, Unfold};
use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::levels::CollectiveKind;
use crate::collective::plan::{Phase, PlanError, Subgroups};
use serde::Deserialize;

/// Butterfly among groups of ranks.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ButterflyLayered {
    /// Number of ranks of a group; the last group may have fewer.
    pub group: u32,
}

const ABOUT: About = About {
    title: "layered butterfly",
    operation: CollectiveKind::AllReduce,
    keys: &["group"],
    needs_even_nodes: false,
    rows: &[Row {
        form: "",
        does: "all-reduce",
        steps: "2 ceil(log2 g) + butterfly of G",
        bytes: "heads S (ceil(log2 g) + log2 G); others at most S ceil(log2 g)",
        source: "Zhang et al. (2017), section 2.1",
    }],
};

impl CollectiveAlgorithm for ButterflyLayered {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        let group = self.group;
        if group == 0 {
            return Err(PlanError::EmptyGroup);
        }
        Ok(vec![
            Phase::new(BinomialReduce, Subgroups::Inside { group }),
            Phase::new(Fold, Subgroups::Heads { group }),
            Phase::new(RecursiveDoubling, Subgroups::Heads { group }),
            Phase::new(Unfold, Subgroups::Heads { group }),
            Phase::new(BinomialBroadcast, Subgroups::Inside { group }),
        ])
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let group = ranks.min(self.group);
        Butterfly.counts(ranks.div_ceil(group)).between_trees(ranks, group)
    }

    fn samples(ranks: u32) -> Vec<Self> {
        (1..=ranks.min(6)).map(|group| Self { group }).collect()
    }
}
