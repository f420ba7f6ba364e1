//! Definition of a collective algorithm: its messages, its costs in closed form, and its plans on nodes with several
//! ranks.
//!
//! S is the size of the collective's buffer in bytes; n (N in the table of the docs) is its number of ranks.

use super::counts::Counts;
use super::group::{GroupHosts, GroupPlans};
use super::levels::{CollectiveKind, Levels, Span};
use super::plan::{CollectivePlan, Phase, PlanError};
use gradtide_net::Bytes;
use serde::Serialize;
use std::fmt::Debug;

/// Description of an algorithm for docs and reports, with its scenario keys.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct About {
    /// Name for use in a sentence.
    pub title: &'static str,
    /// Operation that the algorithm implements.
    pub operation: CollectiveKind,
    /// Keys of `job.NAME.collective` that belong to the algorithm.
    pub keys: &'static [&'static str],
    /// Whether every node must have the same number of ranks.
    pub needs_even_nodes: bool,
    /// Rows of the table in `docs/models/collectives.md`, one for each form of the algorithm.
    pub rows: &'static [Row],
}

/// Description of an algorithm, with properties derived from its messages.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Description {
    #[serde(flatten)]
    about: &'static About,
    /// Whether the algorithm is a single ring: see [`CollectiveAlgorithm::is_ring`].
    is_ring: bool,
    /// Whether the algorithm uses all network cards of nodes with several ranks.
    uses_all_cards: bool,
}

/// A row of the table in `docs/models/collectives.md`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Scenario keys and values that select this form of the algorithm; empty if there is only one form.
    pub form: &'static str,
    /// What the algorithm does in this form, in a few words.
    pub does: &'static str,
    /// Number of dependent messages in sequence.
    pub steps: &'static str,
    /// Bytes sent by the busiest rank.
    pub bytes: &'static str,
    /// Published source.
    pub source: &'static str,
}

/// A collective algorithm. Each algorithm has its own file in [`algorithms`](super::algorithms); only the list there
/// names all of them.
pub trait CollectiveAlgorithm: Debug {
    /// Returns the description for docs and reports.
    fn about(&self) -> &'static About;

    /// Returns the messages among `ranks` ranks, at least two, as a list of phases.
    ///
    /// # Errors
    /// [`PlanError`] if the algorithm does not support this number of ranks.
    fn phases(&self, ranks: u32) -> Result<Vec<Phase>, PlanError>;

    /// Returns the costs in closed form among `ranks` ranks, at least two. [`counts`](Self::counts) accepts any number
    /// of ranks.
    fn closed_form(&self, ranks: u32) -> Counts;

    /// Returns the bytes that the busiest of `ranks` ranks, at least two, sends of a buffer that divides evenly. If
    /// these bytes are a sum of fractions, an algorithm overrides this function and adds them one by one, because
    /// results print all digits of the floating-point sum.
    fn busiest(&self, ranks: u32, bytes: u128) -> f64 {
        let (sent, of) = self.closed_form(ranks).most;
        (u128::from(sent) * bytes) as f64 / of as f64
    }

    /// Returns the ranks that are parameter servers, which compute nothing.
    fn servers(&self, _ranks: u32) -> Vec<u32> {
        Vec::new()
    }

    /// Returns the load of a rank of a process group within its node and between nodes; `None` if process groups do not
    /// use the algorithm.
    fn levels(&self, _span: Span) -> Option<Levels> {
        None
    }

    /// Returns whether a data-parallel job runs the algorithm over all network cards of its nodes. It then uses the
    /// plans of [`group_plans`](Self::group_plans).
    fn is_over_nodes(&self, _span: Span) -> bool {
        false
    }

    /// Returns whether the engine may simulate the algorithm as flows with the bytes and rounds of
    /// [`levels`](Self::levels), instead of single messages. The engine does so only if all messages have equal size.
    fn is_of_flows(&self, span: Span) -> bool {
        self.is_over_nodes(span)
    }

    /// Returns the number of plans that a process group runs concurrently, and the number of parts into which each plan
    /// cuts its buffer. `depth` is the number of chunks that the job requests.
    fn concurrency(&self, _span: Span, _bytes: Bytes, _depth: u32) -> (u64, u64) {
        (1, 1)
    }

    /// Returns the concurrent plans of a process group for `bytes`.
    ///
    /// # Errors
    /// [`PlanError`] if the algorithm does not support the ranks, or if there are too many bytes.
    fn group_plans(&self, group: &GroupHosts, bytes: Bytes, depth: u32) -> Result<GroupPlans, PlanError> {
        let (plans, depth) = self.concurrency(group.span(), bytes, depth);
        // Each plan rotates the ranks of a node by a different number of places. The last rank of a node sends to the
        // next node, so the plans use different network cards.
        let turn = |plan: u64| if plans > 1 { plan as usize + 1 } else { 0 };
        let phases = self.phases_of(group.span().ranks())?;
        group.plans(&phases, bytes, (plans, depth), |plan| (turn(plan), false))
    }

    /// Returns the number of messages in the plans that [`group_plans`](Self::group_plans) returns for a group of this
    /// span.
    fn group_messages(&self, span: Span, bytes: Bytes, depth: u32) -> u64 {
        let (plans, depth) = self.concurrency(span, bytes, depth);
        plans * depth * self.counts(span.ranks()).messages
    }

    /// Returns every combination of parameters that tests use on `ranks` ranks.
    fn samples(_ranks: u32) -> Vec<Self>
    where
        Self: Sized + Default,
    {
        vec![Self::default()]
    }

    /// Returns the messages among any number of ranks, as a list of phases.
    ///
    /// # Errors
    /// [`PlanError`] if there are no ranks, or if the algorithm does not support their number.
    fn phases_of(&self, ranks: u32) -> Result<Vec<Phase>, PlanError> {
        match ranks {
            0 => Err(PlanError::NoRanks),
            // A single rank sends nothing, whatever the algorithm.
            1 => Ok(Vec::new()),
            _ if ranks > 1 << 30 => Err(PlanError::TooManyRanks(ranks)),
            _ => self.phases(ranks),
        }
    }

    /// Returns the plan for `bytes` on each of `ranks` ranks. Parts of the buffer differ by at most one element of
    /// `element_bytes`. A trailing partial element belongs to the last part.
    ///
    /// # Errors
    /// [`PlanError`] if the algorithm does not support these numbers.
    fn plan(&self, ranks: u32, bytes: Bytes, element_bytes: u64) -> Result<CollectivePlan, PlanError> {
        CollectivePlan::new(self.phases_of(ranks)?, ranks, bytes, element_bytes)
    }

    /// Returns the costs in closed form among any number of ranks.
    fn counts(&self, ranks: u32) -> Counts {
        if ranks < 2 { Counts::NONE } else { self.closed_form(ranks) }
    }

    /// Returns the bytes that the busiest of any number of ranks sends.
    fn sent_by_busiest(&self, ranks: u32, bytes: u128) -> f64 {
        if ranks < 2 { 0.0 } else { self.busiest(ranks, bytes) }
    }

    /// Returns the description with the derived properties, for Python and the docs.
    fn description(&self) -> Description {
        let two_nodes = Span::of_nodes([2, 2].into_iter()).expect("both have ranks");
        let uses_all_cards = self.is_over_nodes(two_nodes);
        Description { about: self.about(), is_ring: self.is_ring(), uses_all_cards }
    }

    /// Returns whether the algorithm is a single ring all-reduce, in which every rank sends one equal share to the next
    /// rank in every step.
    fn is_ring(&self) -> bool {
        let phases = || self.phases(2).is_ok_and(|phases| phases.iter().all(Phase::is_ring));
        self.about().operation == CollectiveKind::AllReduce && phases()
    }
}
