//! Hierarchical all-reduce, within groups of consecutive ranks and between the groups. The first rank of a group is its
//! head.

use super::broadcast::{BinomialBroadcast, BinomialReduce};
use super::ring::{Ring, RingAllGather, RingReduceScatter};
use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::{Counts, sum};
use crate::collective::levels::CollectiveKind;
use crate::collective::pattern::log2_ceil;
use crate::collective::plan::{Phase, PlanError, Subgroups};
use serde::Deserialize;

/// Hierarchical all-reduce.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Hierarchical {
    /// Number of ranks of a group; the last group may have fewer, except with [`Inside::Sharded`].
    pub group: u32,
    /// Algorithm within a group.
    pub inside: Inside,
}

/// Algorithm within a group.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Inside {
    /// A binomial reduce to the head of each group, a ring among the heads, and a binomial broadcast in each group.
    Reduce,
    /// A ring all-reduce in each group, a ring among the heads, and a binomial broadcast in each group.
    ///
    /// # Source
    /// Jia et al. (2018): hierarchical all-reduce in three phases.
    #[default]
    Ring,
    /// A ring reduce-scatter in each group, a ring among all ranks with the same shard, and a ring all-gather in each
    /// group.
    ///
    /// # Source
    /// BlueConnect (Cho et al. 2019), with two dimensions.
    Sharded,
}

const ABOUT: About = About {
    title: "hierarchical",
    operation: CollectiveKind::AllReduce,
    keys: &["group", "inside"],
    needs_even_nodes: false,
    rows: &[
        Row {
            form: "inside = \"reduce\"",
            does: "all-reduce",
            steps: "2 ceil(log2 g) + 2(G-1)",
            bytes: "heads S ceil(log2 g) + 2 S (G-1)/G",
            source: "Jia et al. (2018), with a reduction in place of the inner ring",
        },
        Row {
            form: "inside = \"ring\"",
            does: "all-reduce",
            steps: "2(g-1) + 2(G-1) + ceil(log2 g)",
            bytes: "heads 2 S (g-1)/g + 2 S (G-1)/G + S ceil(log2 g)",
            source: "Jia et al. (2018)",
        },
        Row {
            form: "inside = \"sharded\"",
            does: "all-reduce",
            steps: "2(g-1) + 2(G-1)",
            bytes: "2 S (g-1)/g + 2 (S/g) (G-1)/G",
            source: "BlueConnect (2019), two dimensions",
        },
    ],
};

impl CollectiveAlgorithm for Hierarchical {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, ranks: u32) -> Result<Vec<Phase>, PlanError> {
        let group = self.group;
        if group == 0 {
            return Err(PlanError::EmptyGroup);
        }
        let ring = |shift, subgroups| {
            [Phase::new(RingReduceScatter { shift }, subgroups), Phase::new(RingAllGather { shift }, subgroups)]
        };
        let [scatter, gather] = ring(0, Subgroups::Heads { group });
        let broadcast = Phase::new(BinomialBroadcast, Subgroups::Inside { group });
        match self.inside {
            Inside::Reduce => {
                Ok(vec![Phase::new(BinomialReduce, Subgroups::Inside { group }), scatter, gather, broadcast])
            }
            Inside::Ring => {
                let [inner_scatter, inner_gather] = ring(0, Subgroups::Inside { group });
                Ok(vec![inner_scatter, inner_gather, scatter, gather, broadcast])
            }
            Inside::Sharded if !ranks.is_multiple_of(group) => Err(PlanError::UnevenGroups { ranks, group }),
            Inside::Sharded => {
                let [inner_scatter, inner_gather] = ring(1, Subgroups::Inside { group });
                let [scatter, gather] = ring(0, Subgroups::Across { group });
                Ok(vec![inner_scatter, scatter, gather, inner_gather])
            }
        }
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let (group, heads) = self.sizes(ranks);
        let (within, between) = (Ring.counts(group), Ring.counts(heads));
        match self.inside {
            Inside::Reduce => between.between_trees(ranks, group),
            Inside::Sharded => Counts {
                steps: within.steps + between.steps,
                messages: u64::from(heads) * within.messages + u64::from(group) * between.messages,
                sent: u64::from(heads) * within.sent + between.sent,
                most: sum(within.most, (between.most.0, between.most.1 * u64::from(group))),
            },
            Inside::Ring => {
                let last = Ring.counts(ranks - (heads - 1) * group);
                let (down, full) = (u64::from(ranks - heads), u64::from(heads - 1));
                let depth = u64::from(log2_ceil(group));
                Counts {
                    steps: within.steps + between.steps + depth,
                    messages: full * within.messages + last.messages + between.messages + down,
                    sent: full * within.sent + last.sent + between.sent + down,
                    most: sum(sum(within.most, between.most), (depth, 1)),
                }
            }
        }
    }

    fn busiest(&self, ranks: u32, bytes: u128) -> f64 {
        let (group, heads) = self.sizes(ranks);
        let ring = |ranks| Ring.sent_by_busiest(ranks, bytes);
        let tree = f64::from(log2_ceil(group)) * bytes as f64;
        match self.inside {
            Inside::Reduce => tree + ring(heads),
            Inside::Ring => ring(group) + ring(heads) + tree,
            Inside::Sharded => ring(group) + ring(heads) / f64::from(group),
        }
    }

    fn samples(ranks: u32) -> Vec<Self> {
        let inside = |group: u32| {
            let sharded = ranks.is_multiple_of(group).then_some(Inside::Sharded);
            [Inside::Reduce, Inside::Ring].into_iter().chain(sharded).map(move |inside| Self { group, inside })
        };
        (1..=ranks.min(6)).flat_map(inside).collect()
    }
}

impl Hierarchical {
    /// Returns the number of ranks of the largest group, and the number of groups.
    fn sizes(&self, ranks: u32) -> (u32, u32) {
        let group = ranks.min(self.group);
        (group, ranks.div_ceil(group))
    }
}
