//! The training step of a parallel job as a graph: one builder per kind of parallelism, all of them pure.
//!
//! A builder writes the ops of one pipeline stage into a [`writer`]. What follows must wait for the *front*: the op or
//! transfer that came last.
//!
//! | file | what it adds | from |
//! |---|---|---|
//! | `pipeline` | the order of micro-batches, and what goes from stage to stage | Narayanan et al. 2021; Megatron-LM |
//! | `fsdp` | all-gathers of parameters, ahead of the block that needs them | Zhao et al. 2023; torch `fully_shard` |
//! | `data` | reductions of gradients, the norm, the optimizer step | Rajbhandari et al. 2020 |
//! | `tensor` | collectives before and after an op | Shoeybi et al. 2019; Korthikanti et al. 2022 |
//! | `expert` | all-to-all before and after experts | Lepikhin et al. 2021 |
//! | `context` | keys and values for all | Liu et al. 2023; Llama Team 2024 |
//!
//! A builder writes what one rank of each class does; `ranks` makes of it what all ranks do. A step that was recorded is
//! read by `recorded`; `graph` writes any step in the same form.
//!
//! What does not live here: how long a transfer takes, which of those that are ready goes first, and how long an op
//! computes.

mod check;
mod context;
mod data;
mod expert;
mod fsdp;
mod graph;
mod mesh;
mod pipeline;
mod ranks;
mod recorded;
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
    /// What each compute op is.
    pub labels: Vec<Label>,
    /// One for each program of the graph.
    pub classes: Vec<RankClass>,
    /// One for each communicator of the graph.
    pub groups: Vec<Group>,
    /// One for each transfer of the graph.
    pub transfers: Arc<[GroupTransfer]>,
    /// Whether each rank is a class by itself.
    pub is_spelled_out: bool,
    /// Rank r sits on node r / `gpus_per_node`.
    pub gpus_per_node: u32,
    names: Names,
}

/// Ranks that do the same at the same time, so that one stands for all: those of a pipeline stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankClass {
    /// How many.
    pub ranks: u32,
    /// Their pipeline stage.
    pub stage: u32,
}

/// Process groups that do the same at the same time, so that one stands for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Axis of the mesh, or what else brings its ranks together.
    pub axis: Axis,
    /// Classes whose ranks are in it; of a link between stages the sender, then the receiver.
    pub classes: Vec<u32>,
    /// How the ranks of one such group lie on nodes.
    pub span: Span,
    /// By how much the ranks of one such group are apart, in the numbers of all ranks of its classes. `None` if it has
    /// one rank of each of two classes, at the same place in both.
    pub stride: Option<u32>,
}

/// What brings the ranks of a group together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Axis {
    /// They share each matrix.
    Tensor,
    /// They share each sequence.
    Context,
    /// They share the experts.
    Expert,
    /// They share the parameters, but for experts.
    Sharded,
    /// They have the same parameters, but for experts.
    Replicated,
    /// They share the parameters of the same experts.
    ExpertSharded,
    /// They have the same parameters of experts.
    ExpertReplicated,
    /// They are neighbours in the pipeline.
    Pipeline,
    /// They have copies of the embedding: the first and the last stage.
    Embedding,
    /// All ranks, for the norm of the gradients.
    Norm,
    /// One sends a message to the other in a recorded step.
    Message,
    /// They are a group of a recorded step: index of its name.
    Recorded(u32),
}

impl Axis {
    /// Name shown to users; [`Step::name_of`] knows that of a recorded group.
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

    /// Whether the first of two ranks sends to the second.
    pub fn is_link(self) -> bool {
        matches!(self, Self::Pipeline | Self::Message)
    }
}

/// What a transfer does on its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupTransfer {
    /// Index of the group.
    pub group: u32,
    /// What its ranks do together.
    pub kind: CollectiveKind,
    /// Its bytes, as [`crate::collective::levels`] counts them.
    pub bytes: Bytes,
    /// What it is for.
    pub label: Label,
}

/// What an op or a transfer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Part of the model.
    pub subject: Subject,
    /// Part of the step.
    pub phase: Phase,
    /// Which micro-batch, from 0 on; 0 of what happens once in a step.
    pub micro_batch: u32,
}

/// Part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// All of it that is on a rank.
    All,
    /// What goes out of a virtual stage.
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
    /// What a recorded step calls it, index of its name; phase and micro-batch are not known.
    Recorded(u32),
}

/// Part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before everything.
    Begin,
    /// Forward pass.
    Forward,
    /// What is computed again for the backward pass.
    Recompute,
    /// Backward pass.
    Backward,
    /// The norm of the gradients, and the optimizer step.
    Update,
    /// After everything that was recorded.
    End,
}

impl Label {
    /// What is no part of the model.
    fn of_all(phase: Phase) -> Self {
        Self { subject: Subject::All, phase, micro_batch: 0 }
    }

    /// The block that it is about, if it is one.
    pub fn block(self) -> Option<u32> {
        match self.subject {
            Subject::Block(block) | Subject::Op { block, .. } => Some(block),
            Subject::All | Subject::Stage(_) | Subject::Recorded(_) => None,
        }
    }
}

impl Phase {
    /// Name shown to users.
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

/// A label beside the names that it refers to.
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
    /// The step of a job; `None` if it divides no model.
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
        Ok(writer::write(spec, groups))
    }

    /// Whether it was recorded.
    fn is_recorded(&self) -> bool {
        !self.names.recorded.is_empty()
    }

    /// Compute time of the class that computes longest.
    pub fn longest(&self) -> Time {
        let cost = |program: &Program| program.ops.clone().map(|op| self.dag.ops[op as usize].cost).sum();
        self.dag.programs.iter().map(cost).max().unwrap_or_default()
    }

    /// Names of its classes.
    pub fn class_names(&self) -> Vec<String> {
        match self.classes.len() {
            count if self.is_spelled_out => (0..count).map(|rank| format!("rank{rank}")).collect(),
            1 => vec!["rank".into()],
            count => (0..count).map(|stage| format!("stage{stage}")).collect(),
        }
    }

    /// Whether a group is one of those of a stage.
    pub fn is_of_stage(&self, group: &Group, stage: u32) -> bool {
        group.classes.iter().any(|&class| self.classes[class as usize].stage == stage)
    }

    /// Whether a group stands for all that do the same: the first of them, where each is simulated.
    pub fn is_first_of_its_kind(&self, group: &Group) -> bool {
        let Some(&class) = group.classes.first() else { return true };
        let is_of_it = |before: u32| self.classes[before as usize].stage == self.classes[class as usize].stage;
        class == 0 || !is_of_it(class - 1)
    }

    /// What users call an axis of this step.
    pub fn name_of(&self, axis: Axis) -> &str {
        match axis {
            Axis::Recorded(name) => &self.names.recorded[name as usize],
            known => known.name(),
        }
    }

    /// What part of the step an op is of.
    pub fn part_of(&self, label: Label) -> &str {
        match label.subject {
            Subject::Recorded(name) => &self.names.recorded[name as usize],
            _ => label.phase.name(),
        }
    }

    /// What users call a label of this step: `layers.3.attn forward, micro-batch 2`.
    pub fn shown(&self, label: Label) -> Shown<'_> {
        Shown { names: &self.names, label }
    }
}
