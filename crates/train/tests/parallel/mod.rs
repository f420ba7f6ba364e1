//! Small jobs that divide a transformer over ranks.
#![allow(dead_code)] // Each test uses some of it.

use gradtide_train::spec::{BlockKindSpec, BlockOpSpec, BlockSpec, MeshSpec, ParallelSpec, RoleSpec, Spec};
use serde_json::json;

/// Bytes of one micro-batch's activations between blocks.
pub const ACTIVATIONS: u64 = 64;
/// Bytes of keys and values of one rank.
pub const KEYS_AND_VALUES: u64 = 24;
/// Bytes of tokens that one rank has for all experts.
pub const TOKENS: u64 = 40;

pub fn op(name: &str, role: RoleSpec, forward_ps: u64, exchanged_bytes: u64) -> BlockOpSpec {
    BlockOpSpec {
        name: name.into(),
        role,
        forward_ps,
        backward_ps: 2 * forward_ps,
        exchanged_bytes,
        ..BlockOpSpec::default()
    }
}

/// Returns a transformer of identical blocks, `blocks_of_stage` on each virtual stage.
pub fn transformer(mesh: MeshSpec, stages: u32, blocks_of_stage: u32, micro_batches: u32) -> ParallelSpec {
    let kind = BlockKindSpec {
        parameter_bytes: 48,
        gradient_bytes: 96,
        expert_parameter_bytes: 480,
        expert_gradient_bytes: 960,
        ops: vec![
            op("attn", RoleSpec::Attention, 600, KEYS_AND_VALUES),
            op("experts", RoleSpec::Experts, 1200, TOKENS),
        ],
    };
    let count = stages * blocks_of_stage;
    ParallelSpec {
        mesh,
        gpus_per_node: 8,
        micro_batches,
        forward_prefetch: 1,
        backward_prefetch: 1,
        overlap_gradients: true,
        kinds: vec![kind],
        blocks: (0..count).map(|index| BlockSpec { name: format!("layers.{index}"), kind: 0 }).collect(),
        units: vec![1; count as usize],
        stages: vec![blocks_of_stage; stages as usize],
        optimizer_ps: vec![0; mesh.pp as usize],
        activation_bytes: ACTIVATIONS,
        norm_bytes: 4,
        ..ParallelSpec::default()
    }
}

/// A scenario of one job on hosts around a switch.
pub fn scenario(parallel: ParallelSpec, engine: &str) -> Spec {
    let MeshSpec { tp, cp, fsdp, dp, pp, .. } = parallel.mesh;
    let ranks = tp * cp * fsdp * dp * pp;
    let mut spec: Spec = serde_json::from_value(json!({
        "jobs": [{
            "name": "train", "hosts": (0..ranks).collect::<Vec<_>>(), "iterations": 2
        }],
        "cluster": super::star::star(ranks, 800_000_000_000, 4),
        "run": {"engine": engine, "timeline_iterations": 2}
    }))
    .unwrap();
    spec.jobs[0].parallel = Some(parallel);
    spec
}
