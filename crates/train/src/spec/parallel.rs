//! A job that is more than data parallel: how its model is laid over its ranks, and what a block of it costs one rank.

use serde::Deserialize;

/// How a model is trained on a mesh of ranks.
///
/// Units are what data parallelism shards, gathers and reduces as a whole: one block, or several in line.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelSpec {
    /// Ranks along each axis.
    pub mesh: MeshSpec,
    /// Rank r sits on node r / `gpus_per_node`; not 0.
    pub gpus_per_node: u32,
    /// What is spread over the ranks of axes `cp` and `fsdp`; `dp` replicates it.
    pub sharding: ShardingSpec,
    /// Micro-batches of a data-parallel rank in a step; not 0.
    pub micro_batches: u32,
    /// Order of the micro-batches on a pipeline stage. Without a pipeline, each goes forward and backward in turn.
    pub pipeline: PipelineSpec,
    /// Whether what tensor parallelism leaves whole is spread over the sequence: an all-gather and a reduce-scatter in
    /// place of each all-reduce.
    pub sequence_parallel: bool,
    /// Whether tensor groups send in parts beside the products of `beside`; needs `sequence_parallel`.
    pub async_tp: bool,
    /// Whether a rank sends its `tp`-th of what all ranks of a tensor group have to the next stage, which gathers it.
    pub scatter_gather: bool,
    /// How ranks of axis `cp` come by the keys and values of others.
    pub context: ContextSpec,
    /// Units of which parameters are gathered ahead of the forward pass; torch's default is 1.
    pub forward_prefetch: u32,
    /// The same of the backward pass.
    pub backward_prefetch: u32,
    /// Whether gradients are reduced unit by unit beside the backward pass, and the parameters of ZeRO-1 gathered unit by
    /// unit beside the forward pass; otherwise all at once, after the one and before the other.
    pub overlap_gradients: bool,
    /// Whether gloo sends: a reduce-scatter is carried out as an all-reduce, and the pass waits for it.
    pub gloo: bool,
    /// Distinct kinds of blocks.
    pub kinds: Vec<BlockKindSpec>,
    /// The model, from its input on.
    pub blocks: Vec<BlockSpec>,
    /// Blocks of each unit, from the input on; not 0, together all of them. No unit is on two virtual stages.
    pub units: Vec<u32>,
    /// Blocks of each virtual stage, from the input on; not 0, together all of them. Virtual stage s is on pipeline
    /// stage s modulo `mesh.pp`.
    pub stages: Vec<u32>,
    /// Time of the optimizer step of one rank, by pipeline stage.
    pub optimizer_ps: Vec<u64>,
    /// Bytes between blocks of one micro-batch on one rank of axis `cp`, not divided by `mesh.tp`.
    pub activation_bytes: u64,
    /// Bytes of the all-reduce of the gradients' norm over all ranks, before the optimizer step; 0: there is none.
    pub norm_bytes: u64,
    /// Gradient of the embedding of one rank, which the first and the last stage share; 0: they do not.
    pub tied_embedding_bytes: u64,
}

/// Ranks along each axis, the innermost first. `ep` does not multiply: it divides `cp * fsdp * dp`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct MeshSpec {
    /// Tensor parallel.
    pub tp: u32,
    /// Context parallel.
    pub cp: u32,
    /// Expert parallel.
    pub ep: u32,
    /// Data parallel, sharded.
    pub fsdp: u32,
    /// Data parallel, replicated.
    pub dp: u32,
    /// Pipeline parallel.
    pub pp: u32,
}

impl Default for MeshSpec {
    fn default() -> Self {
        Self { tp: 1, cp: 1, ep: 1, fsdp: 1, dp: 1, pp: 1 }
    }
}

/// What is sharded.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub enum ShardingSpec {
    /// Nothing: gradients are summed everywhere.
    #[default]
    None,
    /// Optimizer states: gradients are reduced once in a step, parameters gathered after the optimizer step.
    Zero1,
    /// Gradients, too: parameters are gathered before the forward pass and freed after the backward pass.
    Zero2,
    /// Parameters, too: they are freed after the forward pass and gathered again before the backward pass.
    Zero3,
}

/// How keys and values get to all ranks that share a sequence.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum ContextSpec {
    /// Around a ring, beside attention.
    #[default]
    Ring,
    /// Gathered before attention.
    AllGather,
}

/// In which order a pipeline stage goes through its micro-batches.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum PipelineSpec {
    /// All forward, then all backward.
    Gpipe,
    /// One forward, one backward.
    #[default]
    OneFOneB,
    /// One forward, one backward over several virtual stages on each rank.
    Interleaved {
        /// Virtual stages of a rank; not 0.
        chunks: u32,
    },
}

/// A block of the model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockSpec {
    /// Name shown to users.
    pub name: String,
    /// Index of its kind.
    pub kind: u32,
}

/// What blocks of a kind have in common. Bytes are of one rank.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlockKindSpec {
    /// What is gathered of a block but for its experts: after `tp`, before sharding.
    pub parameter_bytes: u64,
    /// What is reduced of a block but for its experts: after `tp`, before sharding.
    pub gradient_bytes: u64,
    /// What is gathered of its experts: after `tp` and `ep`, before sharding.
    pub expert_parameter_bytes: u64,
    /// What is reduced of its experts: after `tp` and `ep`, before sharding.
    pub expert_gradient_bytes: u64,
    /// Its ops in the order of the forward pass; at least one.
    pub ops: Vec<BlockOpSpec>,
}

/// An op of a block: times of one rank for one micro-batch, and of the slowest where ranks have unequal work.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlockOpSpec {
    /// Name shown to users.
    pub name: String,
    /// What is sent around it.
    pub role: RoleSpec,
    /// Forward time.
    pub forward_ps: u64,
    /// Backward time.
    pub backward_ps: u64,
    /// Time in which it is computed again before its backward pass; 0: its results are kept.
    pub recompute_ps: u64,
    /// Whether it is computed again with all that is sent around it, before the first op of the block goes backward.
    /// Otherwise it is computed again by itself, right before it goes backward.
    pub recompute_communicates: bool,
    /// Experts: what one rank has for all ranks, and gets back from them. Attention: keys and values of one rank. 0 for
    /// all others.
    pub exchanged_bytes: u64,
    /// What asynchronous tensor parallelism sends beside, forward and backward; computing again is as forward.
    pub beside: [BesideSpec; 2],
}

/// Parts of an op's time.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct BesideSpec {
    /// Products that read what is gathered; 0: they wait for all of it.
    pub join_ps: u64,
    /// Products that leave what is scattered; 0: it is scattered when all of it is there.
    pub sum_ps: u64,
    /// Adding up the parts that have come, if `sum_ps` is not 0: beyond the op's own time.
    pub add_ps: u64,
}

/// What an op is, and thus what is sent around it.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum RoleSpec {
    /// Lookup of tokens in a table that tensor parallelism divides.
    Embedding,
    /// Attention.
    Attention,
    /// A network that all tokens go through.
    Mlp,
    /// Networks each of which some of the tokens go through.
    Experts,
    /// Logits over a vocabulary that tensor parallelism divides, and the loss.
    Head,
    /// Computation alone.
    #[default]
    Other,
}
