//! Checks a parallel job before its graph is built.

use super::ranges::ranges;
use crate::caramel::compute::MAX_COMPUTE_PS;
use crate::spec::{BlockOpSpec, MeshSpec, ParallelSpec, PipelineSpec};
use std::collections::BTreeSet;
use thiserror::Error;

/// Limit on the number of ops and transfers of a step, which take about 2 GB at this limit.
pub(super) const MOST_OPS: u128 = 1 << 24;

/// An invalid parallel job. `gradtide.scenario` reports all of these errors earlier, with a file
/// and a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ParallelError {
    /// The job has both a mesh and a recorded step.
    #[error("a job has a mesh or a recorded step, not both")]
    Both,
    /// The recorded step is invalid.
    #[error("the recorded step {0}")]
    Recorded(#[from] super::RecordedError),
    /// A number is 0 but must be positive.
    #[error("{0} is 0, and must be at least 1")]
    Zero(&'static str),
    /// The mesh and the job differ in the number of ranks.
    #[error("the mesh has {mesh} ranks, but the job has {workers} workers")]
    Ranks {
        /// Number of ranks of the mesh, which is the product of its axes except `ep`.
        mesh: u64,
        /// Number of hosts of the job.
        workers: u64,
    },
    /// The mesh and the cluster differ in the number of GPUs per node.
    #[error("the mesh is laid on nodes of {wanted} GPUs, but those of the cluster have {gpus}")]
    Node {
        /// Number of GPUs of a node of the cluster.
        gpus: u32,
        /// Number of GPUs of a node in the mesh.
        wanted: u32,
    },
    /// The workers do not fill one node after the other.
    #[error("workers of a model that is divided over ranks must fill one node after the other")]
    Places,
    /// The number of ranks exceeds 32 bits.
    #[error("the mesh has more than 2^32 ranks")]
    TooManyRanks,
    /// The experts cannot be distributed evenly over the data-parallel ranks.
    #[error(
        "ep is {ep}: it must divide cp * fsdp = {sharded}, or be a multiple of it that divides cp * fsdp * dp = {data}"
    )]
    Experts {
        /// Number of ranks that share the experts.
        ep: u32,
        /// Number of ranks over which all parameters except experts are sharded.
        sharded: u64,
        /// Number of data-parallel ranks.
        data: u64,
    },
    /// The groups of an axis are not spread evenly over nodes.
    #[error("groups of axis {axis} do not lie evenly on nodes of {gpus} GPUs: write a mesh that fills whole nodes")]
    Uneven {
        /// Name of the axis.
        axis: &'static str,
        /// Number of GPUs of a node.
        gpus: u32,
    },
    /// A block has a kind that does not exist.
    #[error("block {0} is of a kind that does not exist")]
    NoSuchKind(String),
    /// The number of virtual stages is wrong.
    #[error("there are {stages} stages, but pp and the schedule ask for {wanted}")]
    StageCount {
        /// Number of stages in the specification.
        stages: usize,
        /// Required number of virtual stages, which is `pp` times the number on each rank.
        wanted: u64,
    },
    /// The stages do not contain all blocks of the model exactly once.
    #[error("the stages hold {counted} blocks of {blocks}")]
    Stages {
        /// Number of blocks in the stages.
        counted: u64,
        /// Number of blocks of the model.
        blocks: usize,
    },
    /// The units do not contain all blocks of the model exactly once.
    #[error("the units hold {counted} blocks of {blocks}")]
    Units {
        /// Number of blocks in the units.
        counted: u64,
        /// Number of blocks of the model.
        blocks: usize,
    },
    /// The parts of an op that overlap with transfers take longer than the op.
    #[error("what op {0} sends beside takes longer than the op")]
    Beside(String),
    /// A unit extends over two virtual stages.
    #[error("a stage begins with block {0}, inside a unit: end units where stages end")]
    SplitUnit(u32),
    /// The number of micro-batches cannot be divided into the rounds of an interleaved schedule.
    #[error("an interleaved pipeline needs micro-batches in multiples of pp: {micro_batches} is none of {pp}")]
    Rounds {
        /// Number of micro-batches of a step.
        micro_batches: u32,
        /// Number of pipeline stages.
        pp: u32,
    },
    /// The pipeline is interleaved but has only one stage.
    #[error("an interleaved pipeline needs at least 2 stages")]
    InterleavedAlone,
    /// There is not exactly one optimizer time for each pipeline stage.
    #[error("there are {given} times of the optimizer step for {pp} pipeline stages")]
    OptimizerTimes {
        /// Number of times in the specification.
        given: usize,
        /// Number of pipeline stages.
        pp: u32,
    },
    /// The step takes no time, so it would be repeated for ever at one instant.
    #[error("no op takes any time")]
    NoTime,
    /// Simulated time would overflow.
    #[error("a step computes for more than {MAX_COMPUTE_PS} ps")]
    TooLong,
    /// Byte counters would overflow.
    #[error("a step moves more than 2^64 bytes")]
    TooManyBytes,
    /// The graph would not fit in memory.
    #[error("a step has more than {MOST_OPS} ops and transfers: use fewer micro-batches")]
    TooManyOps,
}

/// Returns the number of ranks of a mesh; `None` if it exceeds 32 bits.
pub(super) fn ranks(mesh: &MeshSpec) -> Option<u32> {
    [mesh.cp, mesh.fsdp, mesh.dp, mesh.pp].iter().try_fold(mesh.tp, |product, &axis| product.checked_mul(axis))
}

pub(super) fn check(spec: &ParallelSpec) -> Result<(), ParallelError> {
    let MeshSpec { tp, cp, ep, fsdp, dp, pp } = spec.mesh;
    let chunks = match spec.pipeline {
        PipelineSpec::Interleaved { chunks } => chunks,
        PipelineSpec::Gpipe | PipelineSpec::OneFOneB => 1,
    };
    let moves_activations = tp > 1 || pp > 1;
    for (name, is_zero) in [
        ("mesh.tp", tp == 0),
        ("mesh.cp", cp == 0),
        ("mesh.ep", ep == 0),
        ("mesh.fsdp", fsdp == 0),
        ("mesh.dp", dp == 0),
        ("mesh.pp", pp == 0),
        ("gpus_per_node", spec.gpus_per_node == 0),
        ("micro_batches", spec.micro_batches == 0),
        ("pipeline.chunks", chunks == 0),
        ("the number of blocks", spec.blocks.is_empty()),
        ("the number of ops of a block", spec.kinds.iter().any(|kind| kind.ops.is_empty())),
        ("the number of blocks of a stage", spec.stages.contains(&0)),
        ("the number of blocks of a unit", spec.units.contains(&0)),
        ("activation_bytes", moves_activations && spec.activation_bytes == 0),
    ] {
        if is_zero {
            return Err(ParallelError::Zero(name));
        }
    }
    ranks(&spec.mesh).ok_or(ParallelError::TooManyRanks)?;
    let (sharded, data) = (u64::from(cp) * u64::from(fsdp), u64::from(cp) * u64::from(fsdp) * u64::from(dp));
    let is_nested = |ep: u64| sharded.is_multiple_of(ep) || ep.is_multiple_of(sharded) && data.is_multiple_of(ep);
    if !is_nested(ep.into()) {
        return Err(ParallelError::Experts { ep, sharded, data });
    }
    if let Some(block) = spec.blocks.iter().find(|block| block.kind as usize >= spec.kinds.len()) {
        return Err(ParallelError::NoSuchKind(block.name.clone()));
    }
    let ops = spec.kinds.iter().flat_map(|kind| &kind.ops);
    let is_whole = |op: &&BlockOpSpec| {
        let [forward, backward] = op.beside.map(|beside| u128::from(beside.join_ps) + u128::from(beside.sum_ps));
        let again = if op.recompute_communicates { op.recompute_ps.min(op.forward_ps) } else { op.forward_ps };
        forward <= again.into() && backward <= op.backward_ps.into()
    };
    if let Some(op) = ops.into_iter().find(|op| !is_whole(op)) {
        return Err(ParallelError::Beside(op.name.clone()));
    }
    let wanted = u64::from(pp) * u64::from(chunks);
    if spec.stages.len() as u64 != wanted {
        return Err(ParallelError::StageCount { stages: spec.stages.len(), wanted });
    }
    let blocks = spec.blocks.len();
    let counted = |counts: &[u32]| counts.iter().map(|&blocks| u64::from(blocks)).sum::<u64>();
    match (counted(&spec.stages), counted(&spec.units)) {
        (counted, _) if counted != blocks as u64 => return Err(ParallelError::Stages { counted, blocks }),
        (_, counted) if counted != blocks as u64 => return Err(ParallelError::Units { counted, blocks }),
        _ => {}
    }
    let begins: BTreeSet<u32> = ranges(&spec.units).into_iter().map(|unit| unit.start).collect();
    if let Some(stage) = ranges(&spec.stages).into_iter().find(|stage| !begins.contains(&stage.start)) {
        return Err(ParallelError::SplitUnit(stage.start));
    }
    if chunks > 1 && pp == 1 {
        return Err(ParallelError::InterleavedAlone);
    }
    if matches!(spec.pipeline, PipelineSpec::Interleaved { .. }) && !spec.micro_batches.is_multiple_of(pp) {
        return Err(ParallelError::Rounds { micro_batches: spec.micro_batches, pp });
    }
    if spec.optimizer_ps.len() != pp as usize {
        return Err(ParallelError::OptimizerTimes { given: spec.optimizer_ps.len(), pp });
    }
    sizes(spec)
}

/// Checks that times, bytes and ops of a step do not overflow.
fn sizes(spec: &ParallelSpec) -> Result<(), ParallelError> {
    let mut uses = vec![0_u128; spec.kinds.len()];
    spec.blocks.iter().for_each(|block| uses[block.kind as usize] += 1);
    let [tp, cp, micro_batches] = [spec.mesh.tp, spec.mesh.cp, spec.micro_batches].map(u128::from);
    let (mut time, mut bytes, mut ops) = (0_u128, 0_u128, 0_u128);
    for (kind, uses) in spec.kinds.iter().zip(uses) {
        let sum = |figure: fn(&crate::spec::BlockOpSpec) -> u128| kind.ops.iter().map(figure).sum::<u128>() * uses;
        time += sum(|op| u128::from(op.forward_ps) + u128::from(op.backward_ps) + u128::from(op.recompute_ps));
        time += sum(|op| 2 * u128::from(op.beside[0].add_ps) + u128::from(op.beside[1].add_ps));
        // The factors cover the forward pass, the backward pass and recomputation. Each has a transfer before and after
        // every op.
        bytes += 6 * cp * sum(|op| op.exchanged_bytes.into()) + 6 * sum(|_| 1) * u128::from(spec.activation_bytes);
        let held = [kind.parameter_bytes, kind.gradient_bytes, kind.expert_parameter_bytes, kind.expert_gradient_bytes];
        bytes += 2 * uses * held.into_iter().map(u128::from).sum::<u128>();
        let parts = if spec.async_tp { 4 * tp } else { 0 };
        ops += sum(|_| 1) * 3 * (2 * cp + 4 + parts) + uses * 8;
    }
    bytes += 4 * spec.stages.len() as u128 * u128::from(spec.activation_bytes);
    ops += 4 * spec.stages.len() as u128;
    let time = time * micro_batches + spec.optimizer_ps.iter().map(|&time| u128::from(time)).sum::<u128>();
    let once = u128::from(spec.norm_bytes) + u128::from(spec.tied_embedding_bytes);
    match () {
        () if time == 0 => Err(ParallelError::NoTime),
        () if time > MAX_COMPUTE_PS => Err(ParallelError::TooLong),
        () if ops * micro_batches > MOST_OPS => Err(ParallelError::TooManyOps),
        () if bytes * micro_batches + once > u64::MAX.into() => Err(ParallelError::TooManyBytes),
        () => Ok(()),
    }
}
