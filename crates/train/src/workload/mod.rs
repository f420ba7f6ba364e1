//! The training step of a parallel job as a graph. Each kind of parallelism has a builder, all without side effects.
//!
//! `build` calls the builders, which write the ops of one pipeline stage after the other into a `writer`. The next
//! op waits for the *front*: the op or transfer that was written last.
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
//! A builder writes the ops of one rank per class; `ranks` expands them to all ranks. `recorded` reads a step that was
//! recorded; `graph` writes any step in the same form.
//!
//! Out of scope: the duration of transfers, the order in which ready transfers are sent, and the times of ops.

mod build;
mod check;
mod context;
mod data;
mod division;
mod expert;
mod fsdp;
mod graph;
mod mesh;
mod pipeline;
mod ranks;
mod recorded;
mod state;
mod tensor;
mod writer;

pub use check::WorkloadError;
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
    /// Ops of one rank of each class, then transfers. Compute ops have the index of their label.
    pub dag: Arc<Dag>,
    /// Label of each compute op.
    pub labels: Vec<Label>,
    /// One entry per program of the graph.
    pub classes: Vec<RankClass>,
    /// One entry per communicator of the graph.
    pub groups: Vec<Group>,
    /// One entry per transfer of the graph.
    pub transfers: Arc<[GroupTransfer]>,
    /// Whether the step is per rank: each rank is a class of its own.
    pub is_spelled_out: bool,
    /// Rank r sits on node r / `gpus_per_node`.
    pub gpus_per_node: u32,
    names: Names,
}

/// Ranks that behave identically, so that one represents all: those of a pipeline stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankClass {
    /// Number of ranks.
    pub ranks: u32,
    /// Their pipeline stage.
    pub stage: u32,
}

/// Process groups that behave identically, so that one represents all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Axis of the mesh along which the group lies, or its other purpose.
    pub axis: Axis,
    /// Classes of its ranks; for a link between stages the sender, then the receiver.
    pub classes: Vec<u32>,
    /// How the ranks of one such group are spread over nodes.
    pub span: Span,
    /// Distance between neighbours of one such group, in the numbering of all ranks of its classes. `None` if the group
    /// has one rank from each of two classes, at the same position in both.
    pub stride: Option<u32>,
}

/// Purpose of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Axis {
    /// Tensor parallelism: its ranks split each matrix.
    Tensor,
    /// Context parallelism: its ranks split each sequence.
    Context,
    /// Expert parallelism: its ranks split the experts.
    Expert,
    /// Sharded data parallelism: the group's ranks shard the parameters except those of experts.
    Sharded,
    /// Replicated data parallelism: the group's ranks replicate the parameters except those of experts.
    Replicated,
    /// Sharded data parallelism of experts: the group's ranks shard the parameters of the same experts.
    ExpertSharded,
    /// Replicated data parallelism of experts: the group's ranks replicate the parameters of experts.
    ExpertReplicated,
    /// Neighbouring stages of the pipeline.
    Pipeline,
    /// The first and the last stage, which share the embedding.
    Embedding,
    /// All ranks, for the norm of the gradients.
    Norm,
    /// Sender and receiver of a message in a recorded step.
    Message,
    /// A group of a recorded step: index of its name.
    Recorded(u32),
}

impl Axis {
    /// Returns the name shown to users; for a recorded group see [`Step::name_of`].
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

    /// Returns whether the group is a link: the first of two ranks sends to the second.
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
    /// Bytes of the transfer, by the convention of [`crate::collective::levels`].
    pub bytes: Bytes,
    /// Part of the model and of the step that the transfer belongs to.
    pub label: Label,
}

/// The part of the model and of the step that an op or a transfer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Part of the model.
    pub subject: Subject,
    /// Part of the step.
    pub phase: Phase,
    /// Micro-batch, counted from 0; 0 for ops that occur once in a step.
    pub micro_batch: u32,
}

/// Part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The whole part of the model on a rank.
    All,
    /// Output of a virtual stage.
    Stage(u32),
    /// A block.
    Block(u32),
    /// An op of a block.
    Op {
        /// The block.
        block: u32,
        /// Index among the ops of its kind.
        op: u32,
    },
    /// Index of the name in a recorded step, whose phase and micro-batch are unknown.
    Recorded(u32),
}

/// Part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before all other ops.
    Begin,
    /// Forward pass.
    Forward,
    /// Recomputation of activations for the backward pass.
    Recompute,
    /// Backward pass.
    Backward,
    /// The norm of the gradients, and the optimizer step.
    Update,
    /// After all recorded ops.
    End,
}

impl Label {
    /// Creates a label without a part of the model.
    fn of_all(phase: Phase) -> Self {
        Self { subject: Subject::All, phase, micro_batch: 0 }
    }

    /// Returns the block that the label belongs to, if any.
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

/// A label with the names that it refers to.
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
    /// See [`WorkloadError`].
    pub fn of_job(spec: &JobSpec) -> Result<Option<Self>, WorkloadError> {
        match (&spec.parallel, &spec.recorded) {
            (None, None) => Ok(None),
            (Some(parallel), None) => Self::new(parallel).map(Some),
            (None, Some(recorded)) => Self::recorded(recorded).map(Some),
            (Some(_), Some(_)) => Err(WorkloadError::Both),
        }
    }

    /// Builds the step of a mesh.
    ///
    /// # Errors
    /// See [`WorkloadError`].
    pub fn new(spec: &ParallelSpec) -> Result<Self, WorkloadError> {
        check::check(spec)?;
        let groups = mesh::Groups::new(spec)?;
        Ok(build::build(spec, groups))
    }

    /// Returns whether the step is a recorded one.
    fn is_recorded(&self) -> bool {
        !self.names.recorded.is_empty()
    }

    /// Returns the longest compute time of a class.
    pub fn longest(&self) -> Time {
        let cost = |program: &Program| program.ops.clone().map(|op| self.dag.ops[op as usize].cost).sum();
        self.dag.programs.iter().map(cost).max().unwrap_or_default()
    }

    /// Returns the names of the classes.
    pub fn class_names(&self) -> Vec<String> {
        match self.classes.len() {
            count if self.is_spelled_out => (0..count).map(|rank| format!("rank{rank}")).collect(),
            1 => vec!["rank".into()],
            count => (0..count).map(|stage| format!("stage{stage}")).collect(),
        }
    }

    /// Returns whether a group has ranks of a stage.
    pub fn is_of_stage(&self, group: &Group, stage: u32) -> bool {
        group.classes.iter().any(|&class| self.classes[class as usize].stage == stage)
    }

    /// Returns whether a group is counted for all groups of its stage: always with rank classes, and only the first
    /// group of a stage if every rank is simulated.
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

    /// Returns the part of the step that an op belongs to.
    pub fn part_of(&self, label: Label) -> &str {
        match label.subject {
            Subject::Recorded(name) => &self.names.recorded[name as usize],
            _ => label.phase.name(),
        }
    }

    /// Returns a label of this step, for users: `layers.3.attn forward, micro-batch 2`.
    pub fn shown(&self, label: Label) -> Shown<'_> {
        Shown { names: &self.names, label }
    }
}
