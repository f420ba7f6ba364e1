//! What a collective algorithm is: its messages, what they add up to, and what it does on nodes of several ranks.
//!
//! S is the bytes of a collective, n its ranks.

use super::counts::Counts;
use super::group::{GroupHosts, GroupPlans};
use super::levels::{CollectiveKind, Levels, Span};
use super::plan::{CollectivePlan, Phase, PlanError};
use gradtide_net::Bytes;
use serde::Serialize;
use std::fmt::Debug;

/// What docs and reports say of an algorithm, and what a scenario needs for it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct About {
    /// Its name in a sentence.
    pub title: &'static str,
    /// What ranks end up with.
    pub operation: CollectiveKind,
    /// Keys of `job.NAME.collective` that belong to it.
    pub keys: &'static [&'static str],
    /// Whether every node must have the same number of ranks.
    pub needs_even_nodes: bool,
    /// Its rows of the table in `docs/models/collectives.md`, one for each form.
    pub rows: &'static [Row],
}

/// What an algorithm says of itself, and what follows from its messages.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Description {
    #[serde(flatten)]
    about: &'static About,
    /// See [`CollectiveAlgorithm::is_ring`].
    is_ring: bool,
    /// Whether it uses all cards of nodes with several ranks.
    uses_all_cards: bool,
}

/// A row of the table in `docs/models/collectives.md`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// The form, as further keys with their values; empty if there is only one.
    pub form: &'static str,
    /// What it does.
    pub does: &'static str,
    /// Messages in sequence.
    pub steps: &'static str,
    /// Bytes of the rank that sends most.
    pub bytes: &'static str,
    /// Where it is published.
    pub source: &'static str,
}

/// A collective algorithm. One file each in [`algorithms`](super::algorithms), whose list is the only place that names
/// them all.
pub trait CollectiveAlgorithm: Debug {
    /// What docs and reports say of it.
    fn about(&self) -> &'static About;

    /// Its messages among `ranks` ranks, at least two.
    ///
    /// # Errors
    /// [`PlanError`] if it does not support that number.
    fn phases(&self, ranks: u32) -> Result<Vec<Phase>, PlanError>;

    /// Steps, messages and bytes in closed form among `ranks` ranks, at least two; see [`counts`](Self::counts).
    fn closed_form(&self, ranks: u32) -> Counts;

    /// Bytes that the busiest of at least two ranks sends of a buffer that divides evenly. Results print all digits, so
    /// a sum of several fractions is added up term by term.
    fn busiest(&self, ranks: u32, bytes: u128) -> f64 {
        let (sent, of) = self.closed_form(ranks).most;
        (u128::from(sent) * bytes) as f64 / of as f64
    }

    /// Ranks that compute nothing and only serve the others.
    fn servers(&self, _ranks: u32) -> Vec<u32> {
        Vec::new()
    }

    /// What a rank of a process group sends at each level; `None` if process groups do not use the algorithm.
    fn levels(&self, _span: Span) -> Option<Levels> {
        None
    }

    /// Whether a data-parallel job runs it over all cards of its nodes, by [`group_plans`](Self::group_plans).
    fn is_over_nodes(&self, _span: Span) -> bool {
        false
    }

    /// Whether flows with the bytes and rounds of [`levels`](Self::levels) model it in place of messages, if messages
    /// have even shares.
    fn is_of_flows(&self, span: Span) -> bool {
        self.is_over_nodes(span)
    }

    /// Number of plans that a process group runs concurrently, and number of parts of the buffer of each. `depth` is
    /// the number of chunks that the job asks for.
    fn concurrency(&self, _span: Span, _bytes: Bytes, _depth: u32) -> (u64, u64) {
        (1, 1)
    }

    /// The concurrent plans of a process group.
    ///
    /// # Errors
    /// [`PlanError`] if it does not support the ranks, or the bytes are too many.
    fn group_plans(&self, group: &GroupHosts, bytes: Bytes, depth: u32) -> Result<GroupPlans, PlanError> {
        let (plans, depth) = self.concurrency(group.span(), bytes, depth);
        // The last rank of a node sends to the next node, in each plan another one.
        let turn = |plan: u64| if plans > 1 { plan as usize + 1 } else { 0 };
        let phases = self.phases_of(group.span().ranks())?;
        group.plans(&phases, bytes, (plans, depth), |plan| (turn(plan), false))
    }

    /// Number of messages of [`group_plans`](Self::group_plans) on a group of this span.
    fn group_messages(&self, span: Span, bytes: Bytes, depth: u32) -> u64 {
        let (plans, depth) = self.concurrency(span, bytes, depth);
        plans * depth * self.counts(span.ranks()).messages
    }

    /// Every combination of parameters that is worth a test on `ranks` ranks.
    fn samples(_ranks: u32) -> Vec<Self>
    where
        Self: Sized + Default,
    {
        vec![Self::default()]
    }

    /// Its messages among any number of ranks.
    ///
    /// # Errors
    /// As [`phases`](Self::phases), and without ranks.
    fn phases_of(&self, ranks: u32) -> Result<Vec<Phase>, PlanError> {
        match ranks {
            0 => Err(PlanError::NoRanks),
            // A single rank sends nothing, whatever the algorithm.
            1 => Ok(Vec::new()),
            _ if ranks > 1 << 30 => Err(PlanError::TooManyRanks(ranks)),
            _ => self.phases(ranks),
        }
    }

    /// Its plan for `bytes` on each of `ranks` ranks. Parts differ by at most one element of `element_bytes`; a trailing
    /// partial element belongs to the last part.
    ///
    /// # Errors
    /// [`PlanError`] if it does not support these numbers.
    fn plan(&self, ranks: u32, bytes: Bytes, element_bytes: u64) -> Result<CollectivePlan, PlanError> {
        CollectivePlan::new(self.phases_of(ranks)?, ranks, bytes, element_bytes)
    }

    /// Steps, messages and bytes among any number of ranks.
    fn counts(&self, ranks: u32) -> Counts {
        if ranks < 2 { Counts::NONE } else { self.closed_form(ranks) }
    }

    /// Bytes that the busiest of any number of ranks sends.
    fn sent_by_busiest(&self, ranks: u32, bytes: u128) -> f64 {
        if ranks < 2 { 0.0 } else { self.busiest(ranks, bytes) }
    }

    /// Everything that Python and the docs need.
    fn description(&self) -> Description {
        let two_nodes = Span::of_nodes([2, 2].into_iter()).expect("both have ranks");
        let uses_all_cards = self.is_over_nodes(two_nodes);
        Description { about: self.about(), is_ring: self.is_ring(), uses_all_cards }
    }

    /// Whether it is one ring all-reduce: in every step every rank sends one equal share to the next rank.
    fn is_ring(&self) -> bool {
        let phases = || self.phases(2).is_ok_and(|phases| phases.iter().all(Phase::is_ring));
        self.about().operation == CollectiveKind::AllReduce && phases()
    }
}
