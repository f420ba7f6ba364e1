//! Process groups of a mesh, and the distribution of their ranks over nodes. The axes are, from the innermost one: tp,
//! cp, fsdp, dp, pp.
//!
//! Experts are distributed over the data-parallel ranks, from the innermost on. Ranks with the same experts shard and
//! replicate them as they do other parameters. Axis `cp` also shards parameters, because its ranks have the same
//! parameters (torchtitan, Megatron).

use super::{Axis, Group, ParallelError, check};
use crate::collective::levels::Span;
use crate::spec::{MeshSpec, ParallelSpec, PipelineSpec, ShardingSpec};

/// All process groups of a mesh, and the indices of groups with a special purpose.
pub(super) struct Groups {
    pub all: Vec<Group>,
    /// Groups within each class.
    pub classes: Vec<ClassGroups>,
    pub embedding: Option<u32>,
    pub norm: Option<u32>,
    /// Number of ranks of a class.
    pub class_ranks: u32,
}

/// Groups within a class, as indices. `None` for a group of one rank, which needs no transfers.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassGroups {
    pub tensor: Option<u32>,
    pub context: Option<u32>,
    pub expert: Option<u32>,
    pub dense: DataGroups,
    pub experts: DataGroups,
}

/// The groups of data parallelism: one whose ranks shard parameters, and one whose ranks replicate them.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataGroups {
    pub sharded: Option<u32>,
    pub replicated: Option<u32>,
    /// Number of shards.
    pub shards: u32,
}

impl Groups {
    /// Creates all groups of a mesh.
    pub fn new(spec: &ParallelSpec) -> Result<Self, ParallelError> {
        let MeshSpec { tp, cp, ep, fsdp, dp, pp } = spec.mesh;
        let ranks = check::ranks(&spec.mesh).ok_or(ParallelError::TooManyRanks)?;
        let class_ranks = ranks / pp;
        let mut groups = Self { all: Vec::new(), classes: Vec::new(), embedding: None, norm: None, class_ranks };
        let (sharded, data) = (cp * fsdp, cp * fsdp * dp);
        for class in 0..pp {
            let mut along = |axis, stride, size| groups.add(spec, axis, &[class], stride, size);
            let tensor = along(Axis::Tensor, 1, tp)?;
            let context = along(Axis::Context, tp, cp)?;
            let expert = along(Axis::Expert, tp, ep)?;
            let dense = match spec.sharding {
                ShardingSpec::None => {
                    DataGroups { sharded: None, replicated: along(Axis::Replicated, tp, data)?, shards: 1 }
                }
                _ => DataGroups {
                    sharded: along(Axis::Sharded, tp, sharded)?,
                    replicated: along(Axis::Replicated, tp * sharded, dp)?,
                    shards: sharded,
                },
            };
            // Ranks with the same experts are `ep` ranks apart. Without expert parallelism, experts count as dense
            // parameters.
            let shards = if spec.sharding == ShardingSpec::None || ep > sharded { 1 } else { sharded / ep };
            let has_experts = ep > 1
                && spec.kinds.iter().any(|kind| kind.expert_parameter_bytes > 0 || kind.expert_gradient_bytes > 0);
            let experts = if has_experts {
                DataGroups {
                    sharded: along(Axis::ExpertSharded, tp * ep, shards)?,
                    replicated: along(Axis::ExpertReplicated, tp * ep * shards, data / ep / shards)?,
                    shards,
                }
            } else {
                DataGroups { sharded: None, replicated: None, shards: 1 }
            };
            groups.classes.push(ClassGroups { tensor, context, expert, dense, experts });
        }
        if spec.tied_embedding_bytes > 0 && pp > 1 {
            groups.embedding = Some(groups.between(spec, Axis::Embedding, 0, pp - 1)?);
        }
        if spec.norm_bytes > 0 {
            let classes: Vec<u32> = (0..pp).collect();
            groups.norm = groups.add(spec, Axis::Norm, &classes, 1, ranks)?;
        }
        for class in 0..pp.saturating_sub(1) {
            groups.between(spec, Axis::Pipeline, class, class + 1)?;
            groups.between(spec, Axis::Pipeline, class + 1, class)?;
        }
        if pp > 1 && matches!(spec.pipeline, PipelineSpec::Interleaved { chunks: 2.. }) {
            groups.between(spec, Axis::Pipeline, pp - 1, 0)?;
            groups.between(spec, Axis::Pipeline, 0, pp - 1)?;
        }
        Ok(groups)
    }

    /// Returns the index of the group that connects two stages.
    pub fn link(&self, from: u32, to: u32) -> u32 {
        let is_link = |group: &Group| group.axis == Axis::Pipeline && group.classes == [from, to];
        self.all.iter().position(is_link).expect("stages that follow one another are linked") as u32
    }

    /// Adds a group of `size` ranks that are `stride` ranks apart.
    fn add(
        &mut self,
        spec: &ParallelSpec,
        axis: Axis,
        classes: &[u32],
        stride: u32,
        size: u32,
    ) -> Result<Option<u32>, ParallelError> {
        if size == 1 {
            return Ok(None);
        }
        let (gpus, reach) = (spec.gpus_per_node, u64::from(stride) * u64::from(size));
        let divides = |part: u64, whole: u64| whole.is_multiple_of(part);
        let (gpus_64, stride_64) = (u64::from(gpus), u64::from(stride));
        let per_node = if check::ranks(&spec.mesh) <= Some(gpus) || divides(reach, gpus_64) {
            size
        } else if divides(gpus_64, stride_64) {
            1
        } else if divides(stride_64, gpus_64) && divides(gpus_64, reach) {
            gpus / stride
        } else {
            return Err(ParallelError::Uneven { axis: axis.name(), gpus });
        };
        self.push(axis, classes, size, per_node, Some(stride)).map(Some)
    }

    /// Adds a group of one rank from each of two stages, unless there is one already.
    fn between(&mut self, spec: &ParallelSpec, axis: Axis, from: u32, to: u32) -> Result<u32, ParallelError> {
        let is_it = |group: &Group| group.axis == axis && group.classes == [from, to];
        if let Some(known) = self.all.iter().position(is_it) {
            return Ok(known as u32);
        }
        let (gpus, ranks) = (spec.gpus_per_node, self.class_ranks);
        let node = |class: u32| u64::from(class) * u64::from(ranks) / u64::from(gpus);
        let per_node = if check::ranks(&spec.mesh) <= Some(gpus) {
            2
        } else if ranks.is_multiple_of(gpus) {
            1
        } else if gpus.is_multiple_of(ranks) {
            if node(from) == node(to) { 2 } else { 1 }
        } else {
            return Err(ParallelError::Uneven { axis: axis.name(), gpus });
        };
        self.push(axis, &[from, to], 2, per_node, None)
    }

    fn push(
        &mut self,
        axis: Axis,
        classes: &[u32],
        size: u32,
        per_node: u32,
        stride: Option<u32>,
    ) -> Result<u32, ParallelError> {
        let uneven = |_| ParallelError::Uneven { axis: axis.name(), gpus: per_node };
        let span = Span::new(size, per_node).map_err(uneven)?;
        self.all.push(Group { axis, classes: classes.to_vec(), span, stride });
        Ok(self.all.len() as u32 - 1)
    }
}
