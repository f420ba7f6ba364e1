//! A parallel job: the layout of its model over ranks, and the cost of each block on one rank.

use serde::Deserialize;

/// How a model is trained on a mesh of ranks.
///
/// A unit is the set of blocks that data parallelism shards, gathers and reduces together: one or several consecutive
/// blocks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelSpec {
    /// Number of ranks along each axis.
    pub mesh: MeshSpec,
    /// Number of consecutive ranks on a node: rank r is on node r / `gpus_per_node`; not 0.
    pub gpus_per_node: u32,
    /// State that is sharded over the ranks of axes `cp` and `fsdp`; axis `dp` replicates it.
    pub sharding: ShardingSpec,
    /// Number of micro-batches of a data-parallel rank in a step; not 0.
    pub micro_batches: u32,
    /// Order of the micro-batches on a pipeline stage. Without a pipeline, each micro-batch goes forward and then
    /// backward.
    pub pipeline: PipelineSpec,
    /// Whether sequence parallelism shards the activations that tensor parallelism replicates: an all-gather and a
    /// reduce-scatter replace each all-reduce.
    pub sequence_parallel: bool,
    /// Whether the collectives of tensor groups are pipelined with the matrix products of `beside`; needs
    /// `sequence_parallel`.
    pub async_tp: bool,
    /// Whether a rank sends 1/`tp` of the activations of its tensor group to the next stage, which gathers them.
    pub scatter_gather: bool,
    /// Exchange of keys and values among the ranks of axis `cp`.
    pub context: ContextSpec,
    /// Number of units whose parameters are gathered ahead of the forward pass; PyTorch's default is 1.
    pub forward_prefetch: u32,
    /// Number of units whose parameters are gathered ahead of the backward pass; PyTorch's default is 1.
    pub backward_prefetch: u32,
    /// Whether gradients are reduced unit by unit during the backward pass, and the parameters of ZeRO-1 gathered unit
    /// by unit during the forward pass; otherwise both are one collective, after the backward and before the forward
    /// pass.
    pub overlap_gradients: bool,
    /// Whether the backend is gloo, which implements a reduce-scatter as an all-reduce that blocks the pass.
    pub gloo: bool,
    /// Distinct kinds of blocks.
    pub kinds: Vec<BlockKindSpec>,
    /// Blocks of the model, from the input side.
    pub blocks: Vec<BlockSpec>,
    /// Number of blocks of each unit, from the input side; not 0; the sum is the number of blocks. A unit lies within
    /// one virtual stage.
    pub units: Vec<u32>,
    /// Number of blocks of each virtual stage, from the input side; not 0; the sum is the number of blocks. Virtual
    /// stage s is on pipeline stage s modulo `mesh.pp`.
    pub stages: Vec<u32>,
    /// Optimizer time of one rank, in picoseconds, by pipeline stage.
    pub optimizer_ps: Vec<u64>,
    /// Bytes of activations between blocks for one micro-batch on one rank of axis `cp`, before division by `mesh.tp`.
    pub activation_bytes: u64,
    /// Bytes of the all-reduce of the gradient norm over all ranks before the optimizer step; 0 without one.
    pub norm_bytes: u64,
    /// Bytes of the embedding gradient of one rank that the first and the last stage share; 0 if they share none.
    pub tied_embedding_bytes: u64,
}

/// Number of ranks along each axis, the innermost first. `ep` does not multiply the number of ranks: it divides `cp *
/// fsdp * dp`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct MeshSpec {
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// Context-parallel ranks.
    pub cp: u32,
    /// Expert-parallel ranks.
    pub ep: u32,
    /// Ranks of sharded data parallelism.
    pub fsdp: u32,
    /// Ranks of replicated data parallelism.
    pub dp: u32,
    /// Pipeline stages.
    pub pp: u32,
}

impl Default for MeshSpec {
    fn default() -> Self {
        Self { tp: 1, cp: 1, ep: 1, fsdp: 1, dp: 1, pp: 1 }
    }
}

/// State that data parallelism shards.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub enum ShardingSpec {
    /// No state: gradients are summed over all ranks.
    #[default]
    None,
    /// Optimizer states: gradients are reduced once in a step, parameters are gathered after the optimizer step.
    Zero1,
    /// Optimizer states and gradients: parameters are gathered before the forward pass and freed after the backward
    /// pass.
    Zero2,
    /// Also parameters: they are freed after the forward pass and gathered again before the backward pass.
    Zero3,
}

/// Exchange of keys and values among the ranks that share a sequence.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ContextSpec {
    /// Ring exchange, concurrent with attention.
    #[default]
    Ring,
    /// All-gather before attention.
    AllGather,
}

/// Order of the micro-batches on a pipeline stage.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum PipelineSpec {
    /// All forward passes, then all backward passes.
    Gpipe,
    /// Alternating forward and backward passes (1F1B).
    #[default]
    OneFOneB,
    /// 1F1B over several virtual stages of each rank.
    Interleaved {
        /// Number of virtual stages of a rank; not 0.
        chunks: u32,
    },
}

/// A block of the model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockSpec {
    /// Name shown to users.
    pub name: String,
    /// Index of the block's kind.
    pub kind: u32,
}

/// Properties of all blocks of a kind; bytes are those of one rank.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlockKindSpec {
    /// Parameter bytes of a block to gather, without experts: after division by `tp`, before sharding.
    pub parameter_bytes: u64,
    /// Gradient bytes of a block to reduce, without experts: after division by `tp`, before sharding.
    pub gradient_bytes: u64,
    /// Parameter bytes of the block's experts to gather: after division by `tp` and `ep`, before sharding.
    pub expert_parameter_bytes: u64,
    /// Gradient bytes of the block's experts to reduce: after division by `tp` and `ep`, before sharding.
    pub expert_gradient_bytes: u64,
    /// Ops of the block in the order of the forward pass; at least one.
    pub ops: Vec<BlockOpSpec>,
}

/// An op of a block, with the times of one rank for one micro-batch (of the slowest rank if their work is unequal).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlockOpSpec {
    /// Name shown to users.
    pub name: String,
    /// Role of the op, which determines its communication.
    pub role: RoleSpec,
    /// Forward time in picoseconds.
    pub forward_ps: u64,
    /// Backward time in picoseconds.
    pub backward_ps: u64,
    /// Recomputation time before the op's backward pass, in picoseconds; 0 if its results are kept.
    pub recompute_ps: u64,
    /// Whether recomputation repeats the op's communication and runs before the first op of the block goes backward.
    /// Otherwise the op is recomputed alone, right before its own backward pass.
    pub recompute_communicates: bool,
    /// For experts, the bytes that one rank dispatches to all ranks, and receives back; for attention, the bytes of the
    /// keys and values of one rank; 0 for all other roles.
    pub exchanged_bytes: u64,
    /// Compute that overlaps with the transfers of asynchronous tensor parallelism, forward and backward; recomputation
    /// is as forward.
    pub beside: [BesideSpec; 2],
}

/// Parts of an op's time that overlap with the transfers of asynchronous tensor parallelism, in picoseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct BesideSpec {
    /// Matrix products on gathered data; 0 if they wait for the complete all-gather.
    pub join_ps: u64,
    /// Matrix products whose results are scattered; 0 if the reduce-scatter waits for the complete result.
    pub sum_ps: u64,
    /// Additions of received parts, beyond the op's own time, if `sum_ps` is not 0.
    pub add_ps: u64,
}

/// Role of an op, which determines its communication.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum RoleSpec {
    /// Lookup of tokens in a table that is sharded by tensor parallelism.
    Embedding,
    /// Attention.
    Attention,
    /// Feed-forward network of all tokens.
    Mlp,
    /// Feed-forward networks, each of some of the tokens (mixture of experts).
    Experts,
    /// Logits over a vocabulary that is sharded by tensor parallelism, and the loss.
    Head,
    /// Computation without communication.
    #[default]
    Other,
}
