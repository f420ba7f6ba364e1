//! A parallel job: how its model is divided over ranks, and the costs of each block on one rank.

use serde::Deserialize;

/// Training of a model on a mesh of ranks.
///
/// A unit is one or several consecutive blocks whose parameters and gradients data parallelism shards, gathers and
/// reduces together.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelSpec {
    /// Number of ranks along each axis.
    pub mesh: MeshSpec,
    /// Number of consecutive ranks on a node, not 0. Rank r is on node r / `gpus_per_node`.
    pub gpus_per_node: u32,
    /// State that is sharded over the ranks of the axes `cp` and `fsdp`. Axis `dp` replicates it.
    pub sharding: ShardingSpec,
    /// Number of micro-batches that a data-parallel rank processes in a step; not 0.
    pub micro_batches: u32,
    /// Order of the micro-batches on a pipeline stage. Without a pipeline, the forward pass of each micro-batch is
    /// followed by its backward pass.
    pub pipeline: PipelineSpec,
    /// Whether sequence parallelism shards the activations that tensor parallelism replicates. An all-gather and a
    /// reduce-scatter then replace each all-reduce.
    pub sequence_parallel: bool,
    /// Whether the collectives of tensor-parallel groups are pipelined with the matrix products of
    /// [`BlockOpSpec::beside`]. Requires `sequence_parallel`.
    pub async_tp: bool,
    /// Whether each rank of a tensor-parallel group sends 1/`tp` of the group's activations to the next stage, which
    /// gathers them.
    pub scatter_gather: bool,
    /// Exchange of keys and values among the ranks of axis `cp`.
    pub context: ContextSpec,
    /// Number of units whose parameters are gathered ahead of the forward pass; PyTorch's default is 1.
    pub forward_prefetch: u32,
    /// Number of units whose parameters are gathered ahead of the backward pass; PyTorch's default is 1.
    pub backward_prefetch: u32,
    /// Whether gradients are reduced unit by unit during the backward pass, and the parameters of ZeRO-1 are gathered
    /// unit by unit during the forward pass. Otherwise one collective after the backward pass reduces all gradients,
    /// and one before the forward pass gathers all parameters.
    pub overlap_gradients: bool,
    /// Whether the backend is gloo, which implements a reduce-scatter as an all-reduce that blocks the pass.
    pub gloo: bool,
    /// Distinct kinds of blocks.
    pub kinds: Vec<BlockKindSpec>,
    /// Blocks of the model, from the input side to the output side.
    pub blocks: Vec<BlockSpec>,
    /// Number of blocks of each unit, from the input side; not 0. The sum is the number of all blocks. A unit lies
    /// within one virtual stage.
    pub units: Vec<u32>,
    /// Number of blocks of each virtual stage, from the input side; not 0. The sum is the number of all blocks. Virtual
    /// stage s is on pipeline stage s modulo `mesh.pp`.
    pub stages: Vec<u32>,
    /// Time of the optimizer step on one rank, in picoseconds, by pipeline stage.
    pub optimizer_ps: Vec<u64>,
    /// Bytes of the activations that one block passes to the next, for one micro-batch on one rank of axis `cp`, before
    /// division by `mesh.tp`.
    pub activation_bytes: u64,
    /// Bytes of the all-reduce of the gradient norm over all ranks, before the optimizer step; 0 if there is none.
    pub norm_bytes: u64,
    /// Bytes per rank of the embedding gradient that the first and the last stage share; 0 if they share none.
    pub tied_embedding_bytes: u64,
}

/// Number of ranks along each axis, the innermost axis first. The product of all axes but `ep` is the number of ranks;
/// `ep` divides `cp * fsdp * dp`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct MeshSpec {
    /// Number of tensor-parallel ranks.
    pub tp: u32,
    /// Number of context-parallel ranks.
    pub cp: u32,
    /// Number of expert-parallel ranks.
    pub ep: u32,
    /// Number of ranks of sharded data parallelism.
    pub fsdp: u32,
    /// Number of ranks of replicated data parallelism.
    pub dp: u32,
    /// Number of pipeline stages.
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
    /// None: gradients are summed over all ranks.
    #[default]
    None,
    /// Shards optimizer states. Gradients are reduced once in a step, and parameters are gathered after the optimizer
    /// step.
    Zero1,
    /// Shards optimizer states and gradients. Parameters are gathered before the forward pass and freed after the
    /// backward pass.
    Zero2,
    /// Shards optimizer states, gradients and parameters. Parameters are also freed after the forward pass and gathered
    /// again before the backward pass.
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
    /// All forward passes precede all backward passes.
    Gpipe,
    /// Forward and backward passes alternate (1F1B).
    #[default]
    OneFOneB,
    /// 1F1B over several virtual stages on each rank.
    Interleaved {
        /// Number of virtual stages on each rank; not 0.
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

/// Properties of all blocks of a kind. Bytes are counted on one rank.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlockKindSpec {
    /// Bytes of the block's parameters that are gathered, after division by `tp` and before sharding. Experts are
    /// excluded.
    pub parameter_bytes: u64,
    /// Bytes of the block's gradients that are reduced, after division by `tp` and before sharding. Experts are
    /// excluded.
    pub gradient_bytes: u64,
    /// Bytes of the experts' parameters that are gathered, after division by `tp` and `ep` and before sharding.
    pub expert_parameter_bytes: u64,
    /// Bytes of the experts' gradients that are reduced, after division by `tp` and `ep` and before sharding.
    pub expert_gradient_bytes: u64,
    /// Ops of the block, at least one, in the order of the forward pass.
    pub ops: Vec<BlockOpSpec>,
}

/// An op of a block. Times are the durations on one rank for one micro-batch. If ranks have unequal work, they are the
/// durations on the slowest rank.
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
    /// Time to recompute the op's results before its backward pass, in picoseconds; 0 if the results are kept.
    pub recompute_ps: u64,
    /// Whether recomputation repeats the op's communication. Recomputation then precedes the backward pass of the whole
    /// block. Otherwise the op is recomputed alone, right before its own backward pass.
    pub recompute_communicates: bool,
    /// For experts, the bytes that one rank sends to all ranks, and receives back. For attention, the bytes of one
    /// rank's keys and values. For all other roles, 0.
    pub exchanged_bytes: u64,
    /// Compute that overlaps with the transfers of asynchronous tensor parallelism: [forward pass, backward pass].
    /// Recomputation uses the first entry.
    pub beside: [BesideSpec; 2],
}

/// Parts of an op's time that overlap with the transfers of asynchronous tensor parallelism, in picoseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct BesideSpec {
    /// Time of matrix products on gathered data; 0 if they wait for the complete all-gather.
    pub join_ps: u64,
    /// Time of matrix products whose results are scattered; 0 if the reduce-scatter waits for the complete result.
    pub sum_ps: u64,
    /// Time to add received parts, on top of the op's own time; used if `sum_ps` is not 0.
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
    /// Feed-forward network that processes all tokens.
    Mlp,
    /// Feed-forward networks that each process some of the tokens (mixture of experts).
    Experts,
    /// Logits over a vocabulary that is sharded by tensor parallelism, and the loss.
    Head,
    /// Computation without communication.
    #[default]
    Other,
}
