//! A training step as a document: what each class of ranks computes, what groups transfer, and what waits for what.
//!
//! Ops are numbered: compute ops class by class in the order of their programs, then transfers.

use serde::{Deserialize, Serialize};

/// A recorded step that a job repeats.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedSpec {
    /// Rank r sits on node r / `gpus_per_node`; not 0.
    pub gpus_per_node: u32,
    /// The step.
    pub step: StepSpec,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StepSpec {
    /// Ranks that do the same; their numbers follow one another, class by class.
    pub classes: Vec<StepClassSpec>,
    /// Process groups.
    pub groups: Vec<StepGroupSpec>,
    /// What they transfer.
    pub transfers: Vec<StepTransferSpec>,
    /// Pairs of ops, of which the second waits for the first. A compute op also waits for the one before it.
    pub edges: Vec<(u32, u32)>,
}

/// What a class computes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StepClassSpec {
    /// Shown to users.
    pub name: String,
    /// How many ranks.
    pub ranks: u32,
    /// Its compute ops, one after the other: name and time in picoseconds.
    pub ops: Vec<(String, u64)>,
}

/// Groups of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StepGroupSpec {
    /// Shown to users.
    pub name: String,
    /// Classes whose ranks are in it; of a link, the sender, then the receiver.
    pub classes: Vec<u32>,
    /// Ranks of one group.
    pub ranks: u32,
    /// By how much the ranks of one such group are apart, in the numbers of all ranks of its classes. `None` if it has
    /// one rank of each of two classes, at the same place in both. Classes of one rank each are the group, whatever is
    /// said here.
    pub stride: Option<u32>,
}

/// What the ranks of a group do together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StepTransferSpec {
    /// Shown to users.
    pub name: String,
    /// Index of the group.
    pub group: u32,
    /// Name of what it does.
    pub kind: String,
    /// As `collective::levels` counts them.
    pub bytes: u64,
}
