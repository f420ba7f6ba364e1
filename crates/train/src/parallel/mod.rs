//! The training step of a parallel job as a graph. Each kind of parallelism has a builder. Builders have no side
//! effects.
//!
//! `build` calls the builders, which write the ops of one pipeline stage after the other into a `writer`. The next op
//! waits for the *front*, which is usually the op or transfer that was written last.
//!
//! | file | what it adds | from |
//! |---|---|---|
//! | `pipeline` | the schedule of micro-batches, and the sends between stages | Narayanan et al. 2021; Megatron-LM |
//! | `fsdp` | all-gathers of parameters, before the unit that needs them | Zhao et al. 2023; torch `fully_shard` |
//! | `data` | reductions of gradients, the norm, the optimizer step | Rajbhandari et al. 2020 |
//! | `tensor` | collectives before and after an op | Shoeybi et al. 2019; Korthikanti et al. 2022 |
//! | `expert` | all-to-all before and after experts | Lepikhin et al. 2021 |
//! | `context` | the exchange of keys and values | Liu et al. 2023; Llama Team 2024 |
//!
//! A builder writes the ops of one rank per class, and `ranks` expands them to all ranks. `recorded` reads a step that
//! was recorded, and `graph` writes any step in the form that `recorded` reads.
//!
//! Out of scope: the duration of transfers, the order in which ready transfers are sent, and the times of ops.

mod build;
mod check;
mod context;
mod data;
mod expert;
mod fsdp;
mod graph;
mod mesh;
mod pipeline;
mod ranges;
mod ranks;
mod recorded;
mod state;
mod tensor;
mod writer;

pub use check::ParallelError;
pub use ranks::RanksError;
pub use recorded::RecordedError;

use crate::collective::levels::{CollectiveKind, Span};
use crate::dag::{Dag, Program};
use crate::spec::{JobSpec, ParallelSpec};
use gradtide_net::{Bytes, Time};
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

/// One training step of a parallel job.
pub struct Step {
    /// Ops of one rank of each class, followed by the transfers. A compute op and its label have the same index.
    pub dag: Arc<Dag>,
    /// Label of each compute op.
    pub labels: Vec<Label>,
    /// The rank class of each program of `dag`.
    pub classes: Vec<RankClass>,
    /// The process group of each communicator of `dag`.
    pub groups: Vec<Group>,
    /// Group, kind, bytes and label of each transfer of `dag`.
    pub transfers: Arc<[GroupTransfer]>,
    /// Whether the step has all ranks, so that each rank is a class of its own.
    pub is_per_rank: bool,
    /// Number of consecutive ranks on a node: rank r is on node r / `gpus_per_node`.
    pub gpus_per_node: u32,
    names: Names,
}

/// The ranks of a pipeline stage, which behave identically, so that one rank represents all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankClass {
    /// Number of ranks.
    pub ranks: u32,
    /// Pipeline stage of the ranks.
    pub stage: u32,
}

/// Process groups that behave identically, so that one group represents all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Axis of the mesh along which the group lies, or its other purpose.
    pub axis: Axis,
    /// Classes of the group's ranks. For a link between stages: the sender's class, then the receiver's class.
    pub classes: Vec<u32>,
    /// Distribution of the ranks of one group over nodes.
    pub span: Span,
    /// Distance between consecutive ranks of one group, in the numbering of all ranks of its classes. `None` if the
    /// group has one rank from each of two classes, at the same index in both.
    pub stride: Option<u32>,
}

/// Purpose of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Axis {
    /// Tensor parallelism. The group's ranks split each matrix.
    Tensor,
    /// Context parallelism. The group's ranks split each sequence.
    Context,
    /// Expert parallelism. The group's ranks split the experts.
    Expert,
    /// Sharded data parallelism. The group's ranks shard all parameters except those of experts.
    Sharded,
    /// Replicated data parallelism. The group's ranks replicate all parameters except those of experts.
    Replicated,
    /// Sharded data parallelism of experts. The group's ranks have the same experts and shard their parameters.
    ExpertSharded,
    /// Replicated data parallelism of experts. The group's ranks replicate the parameters of the same experts.
    ExpertReplicated,
    /// Pipeline parallelism. The group consists of two consecutive stages.
    Pipeline,
    /// Tied embeddings. The first and the last stage share the embedding.
    Embedding,
    /// Norm of the gradients, over all ranks.
    Norm,
    /// Message of a recorded step, from a sender to a receiver.
    Message,
    /// Group of a recorded step. The field is the index of its name.
    Recorded(u32),
}

impl Axis {
    /// Returns the name shown to users. For a recorded group, [`Step::name_of`] returns it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tensor => "tp",
            Self::Context => "cp",
            Self::Expert => "ep",
            Self::Sharded => "fsdp",
            Self::Replicated => "dp",
            Self::ExpertSharded => "expert fsdp",
            Self::ExpertReplicated => "expert dp",
            Self::Pipeline => "pp",
            Self::Embedding => "embedding",
            Self::Norm => "norm",
            Self::Message => "messages",
            Self::Recorded(_) => "recorded",
        }
    }

    /// Returns whether the group is a link, in which the first of two ranks sends to the second.
    pub fn is_link(self) -> bool {
        matches!(self, Self::Pipeline | Self::Message)
    }
}

/// A transfer of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupTransfer {
    /// Index of the group.
    pub group: u32,
    /// Kind of collective.
    pub kind: CollectiveKind,
    /// Bytes of the transfer, as defined in [`crate::collective::levels`].
    pub bytes: Bytes,
    /// Part of the model and of the step to which the transfer belongs.
    pub label: Label,
}

/// The part of the model and of the step to which an op or a transfer belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Part of the model.
    pub subject: Subject,
    /// Part of the step.
    pub phase: Phase,
    /// Micro-batch, counted from 0. It is 0 for ops that occur once in a step.
    pub micro_batch: u32,
}

/// Part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The part of the model that is on a rank, as a whole.
    All,
    /// The output of a virtual stage.
    Stage(u32),
    /// A block.
    Block(u32),
    /// An op of a block.
    Op {
        /// Index of the block.
        block: u32,
        /// Index of the op among the ops of the block's kind.
        op: u32,
    },
    /// An op or transfer of a recorded step, whose phase and micro-batch are unknown. The field is the index of its
    /// name.
    Recorded(u32),
}

/// Part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Start of the step, before all other ops.
    Begin,
    /// Forward pass.
    Forward,
    /// Recomputation of activations for the backward pass.
    Recompute,
    /// Backward pass.
    Backward,
    /// Norm of the gradients, and optimizer step.
    Update,
    /// End of a recorded step, after all recorded ops.
    End,
}

impl Label {
    /// Creates a label for the whole model.
    fn of_all(phase: Phase) -> Self {
        Self { subject: Subject::All, phase, micro_batch: 0 }
    }

    /// Returns the block to which the label belongs, if it belongs to one.
    pub fn block(self) -> Option<u32> {
        match self.subject {
            Subject::Block(block) | Subject::Op { block, .. } => Some(block),
            Subject::All | Subject::Stage(_) | Subject::Recorded(_) => None,
        }
    }
}

impl Phase {
    /// Returns the name shown to users.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Forward => "forward",
            Self::Recompute => "recompute",
            Self::Backward => "backward",
            Self::Update => "optimizer",
            Self::End => "end",
        }
    }
}

#[derive(Clone)]
struct Names {
    blocks: Vec<(String, u32)>,
    ops: Vec<Vec<String>>,
    recorded: Vec<String>,
}

impl Names {
    fn new(spec: &ParallelSpec) -> Self {
        Self {
            blocks: spec.blocks.iter().map(|block| (block.name.clone(), block.kind)).collect(),
            ops: spec.kinds.iter().map(|kind| kind.ops.iter().map(|op| op.name.clone()).collect()).collect(),
            recorded: Vec::new(),
        }
    }
}

/// A label, together with the names to which it refers.
pub struct Shown<'a> {
    names: &'a Names,
    label: Label,
}

impl Display for Shown<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Label { subject, phase, micro_batch } = self.label;
        match subject {
            Subject::All => return out.write_str(phase.name()),
            Subject::Recorded(name) => return out.write_str(&self.names.recorded[name as usize]),
            Subject::Stage(stage) => write!(out, "stage {stage}")?,
            Subject::Block(block) => out.write_str(&self.names.blocks[block as usize].0)?,
            Subject::Op { block, op } => {
                let (name, kind) = &self.names.blocks[block as usize];
                write!(out, "{name}.{}", self.names.ops[*kind as usize][op as usize])?;
            }
        }
        match phase {
            Phase::Begin | Phase::Update => write!(out, " {}", phase.name()),
            _ => write!(out, " {}, micro-batch {micro_batch}", phase.name()),
        }
    }
}

impl Step {
    /// Returns the step of a job; `None` if the job is not a parallel job.
    ///
    /// # Errors
    /// See [`ParallelError`].
    pub fn of_job(spec: &JobSpec) -> Result<Option<Self>, ParallelError> {
        match (&spec.parallel, &spec.recorded) {
            (None, None) => Ok(None),
            (Some(parallel), None) => Self::new(parallel).map(Some),
            (None, Some(recorded)) => Self::recorded(recorded).map(Some),
            (Some(_), Some(_)) => Err(ParallelError::Both),
        }
    }

    /// Builds the step of a mesh.
    ///
    /// # Errors
    /// See [`ParallelError`].
    pub fn new(spec: &ParallelSpec) -> Result<Self, ParallelError> {
        check::check(spec)?;
        let groups = mesh::Groups::new(spec)?;
        Ok(build::build(spec, groups))
    }

    fn is_recorded(&self) -> bool {
        !self.names.recorded.is_empty()
    }

    /// Returns the longest compute time of any class.
    pub fn longest(&self) -> Time {
        let cost = |program: &Program| program.ops.clone().map(|op| self.dag.ops[op as usize].cost).sum();
        self.dag.programs.iter().map(cost).max().unwrap_or_default()
    }

    /// Returns the names of the classes.
    pub fn class_names(&self) -> Vec<String> {
        match self.classes.len() {
            count if self.is_per_rank => (0..count).map(|rank| format!("rank{rank}")).collect(),
            1 => vec!["rank".into()],
            count => (0..count).map(|stage| format!("stage{stage}")).collect(),
        }
    }

    /// Returns whether a group has ranks of a stage.
    pub fn is_of_stage(&self, group: &Group, stage: u32) -> bool {
        group.classes.iter().any(|&class| self.classes[class as usize].stage == stage)
    }

    /// Returns whether a group contains the first class of its stage. Results per stage count only one group of each
    /// kind, and this is the one. With rank classes a stage is one class, so this holds for every group.
    pub fn is_first_of_its_kind(&self, group: &Group) -> bool {
        let Some(&class) = group.classes.first() else { return true };
        let is_of_it = |before: u32| self.classes[before as usize].stage == self.classes[class as usize].stage;
        class == 0 || !is_of_it(class - 1)
    }

    /// Returns the name of an axis of this step, for users.
    pub fn name_of(&self, axis: Axis) -> &str {
        match axis {
            Axis::Recorded(name) => &self.names.recorded[name as usize],
            known => known.name(),
        }
    }

    /// Returns the name of the part of the step to which an op belongs.
    pub fn part_of(&self, label: Label) -> &str {
        match label.subject {
            Subject::Recorded(name) => &self.names.recorded[name as usize],
            _ => label.phase.name(),
        }
    }

    /// Returns the text of a label for users, as in `layers.3.attn forward, micro-batch 2`.
    pub fn shown(&self, label: Label) -> Shown<'_> {
        Shown { names: &self.names, label }
    }
}
