//! A training step as a document: the compute ops of each class of ranks, the transfers of groups, and their
//! dependencies.
//!
//! In the numbering of ops, the compute ops come first, class by class in program order, followed by the transfers.

use serde::{Deserialize, Serialize};

/// A recorded step that a job repeats.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedSpec {
    /// Number of consecutive ranks on a node, not 0. Rank r is on node r / `gpus_per_node`.
    pub gpus_per_node: u32,
    /// The recorded step.
    pub step: StepSpec,
}

/// A training step.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StepSpec {
    /// Classes of identical ranks. Ranks are numbered consecutively, class by class.
    pub classes: Vec<StepClassSpec>,
    /// Process groups.
    pub groups: Vec<StepGroupSpec>,
    /// Transfers of the groups.
    pub transfers: Vec<StepTransferSpec>,
    /// Dependencies as pairs of op indices; the second op waits for the first. A compute op also waits for the previous
    /// op of its class.
    pub edges: Vec<(u32, u32)>,
}

/// A class of ranks whose computation is identical.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StepClassSpec {
    /// Name shown to users.
    pub name: String,
    /// Number of ranks of the class.
    pub ranks: u32,
    /// Compute ops of a rank in order, each with its name and its time in picoseconds.
    pub ops: Vec<(String, u64)>,
}

/// Process groups of the same shape.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StepGroupSpec {
    /// Name shown to users.
    pub name: String,
    /// Classes of the group's ranks. For a point-to-point link: the sender's class, then the receiver's class.
    pub classes: Vec<u32>,
    /// Number of ranks of one group.
    pub ranks: u32,
    /// Distance between consecutive ranks of one group, in the numbering of all ranks of its classes. `None` if the
    /// group has one rank of each of two classes, at the same index in both. Ignored if each class has a single rank,
    /// because these ranks then are the group.
    pub stride: Option<u32>,
}

/// A transfer of a group.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StepTransferSpec {
    /// Name shown to users.
    pub name: String,
    /// Index of the group.
    pub group: u32,
    /// Name of the collective or point-to-point operation.
    pub kind: String,
    /// Bytes of the transfer, as defined in `collective::levels`.
    pub bytes: u64,
}
