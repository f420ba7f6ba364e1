//! Parallel jobs that simulate all ranks, against jobs with one rank per class, and in cases where ranks of a class
//! differ.
#![allow(missing_docs)]

mod parallel;
mod star;

use gradtide_net::Time;
use gradtide_train::parallel::Step;
use gradtide_train::spec::{BesideSpec, ContextSpec, MeshSpec, ParallelSpec, ShardingSpec, Spec, StragglerSpec};
use parallel::{scenario, transformer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Unit of all sizes: they divide evenly by the ranks of a mesh and are so large that rings are faster than trees.
const PART: u64 = 1 << 14;

fn sized(spec: ParallelSpec) -> ParallelSpec {
    let mut spec = ParallelSpec { gpus_per_node: 1, activation_bytes: 2 * PART, norm_bytes: PART, ..spec };
    let kind = &mut spec.kinds[0];
    (kind.parameter_bytes, kind.gradient_bytes) = (3 * PART, 6 * PART);
    (kind.expert_parameter_bytes, kind.expert_gradient_bytes) = (12 * PART, 24 * PART);
    for (op, bytes) in kind.ops.iter_mut().zip([PART, 4 * PART]) {
        op.exchanged_bytes = bytes;
        (op.forward_ps, op.backward_ps) = (op.forward_ps * 1_000, op.backward_ps * 1_000);
    }
    spec
}

/// Returns the time of each iteration of the first job in ps.
fn run(spec: &Spec) -> Vec<u64> {
    let result = gradtide_train::run(spec, &mut |_| true).unwrap();
    let summary: Value = serde_json::to_value(&result.summary).unwrap();
    summary["jobs"][0]["iteration_time_ps"].as_array().unwrap().iter().map(|ps| ps.as_u64().unwrap()).collect()
}

fn meshes() -> impl Strategy<Value = MeshSpec> {
    let axis = || prop_oneof![Just(1_u32), Just(2), Just(4)];
    let axes = (axis(), 1..3_u32, axis(), axis(), 1..3_u32, axis());
    axes.prop_map(|(tp, cp, ep, fsdp, dp, pp)| MeshSpec { tp, cp, ep, fsdp, dp, pp }).prop_filter(
        "at most 32 ranks, and two; experts over ranks that share parameters, or over all of several such groups",
        |&MeshSpec { tp, cp, ep, fsdp, dp, pp }| {
            let is_nested = cp * fsdp % ep == 0 || ep % (cp * fsdp) == 0 && cp * fsdp * dp % ep == 0;
            (2..=32).contains(&(tp * cp * fsdp * dp * pp)) && is_nested
        },
    )
}

fn shardings() -> impl Strategy<Value = ShardingSpec> {
    prop::sample::select(vec![ShardingSpec::None, ShardingSpec::Zero1, ShardingSpec::Zero2, ShardingSpec::Zero3])
}

fn on_all_ranks(spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    spec.run.all_ranks = true;
    spec
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// One rank of each class represents all its ranks. Rates are rounded to 2^-20 bit/s and times to 1 fs, so a flow
    /// is late by at most 1 ps. In the worst case all transfers are sequential and their differences add up.
    #[test]
    fn classes_take_as_long_as_all_of_their_ranks(
        mesh in meshes(),
        sharding in shardings(),
        (sequence_parallel, async_tp, scatter_gather) in any::<(bool, bool, bool)>(),
        context in prop::sample::select(vec![ContextSpec::Ring, ContextSpec::AllGather]),
        overlap_gradients in any::<bool>(),
        rounds in 1..3_u32,
    ) {
        let base = transformer(mesh, mesh.pp, 2, rounds * mesh.pp);
        let async_tp = async_tp && sequence_parallel;
        let base = ParallelSpec { sequence_parallel, async_tp, scatter_gather, context, ..base };
        let mut spec = sized(ParallelSpec { sharding, overlap_gradients, ..base });
        spec.kinds[0].ops[0].beside = [
            BesideSpec { join_ps: 200_000, sum_ps: 100_000, add_ps: 10_000 },
            BesideSpec { join_ps: 400_000, ..BesideSpec::default() },
        ];
        let spec = scenario(spec, "fluid");
        let late = 2 * Step::new(spec.jobs[0].parallel.as_ref().unwrap()).unwrap().transfers.len() as u64;
        for (of_class, of_ranks) in run(&spec).into_iter().zip(run(&on_all_ranks(&spec))) {
            prop_assert!(of_class.abs_diff(of_ranks) <= late, "{of_class} ps and {of_ranks} ps; {late} ps at most");
        }
    }
}

/// Compute time of two blocks in ps: 600 and 1200 ns forward per block, and twice that backward.
const COMPUTE: u64 = 2 * 3 * 1_800_000;
/// Bytes of gradients that data-parallel ranks reduce for two blocks, if every rank has all experts.
const GRADIENTS: u64 = 2 * 30 * PART;
/// Time of a byte on links of 100 bytes per nanosecond.
const PS_PER_BYTE: u64 = 10;

/// Returns a scenario of two blocks whose ranks first compute and then sum their gradients, without overlap.
fn summed(mesh: MeshSpec, engine: &str) -> Spec {
    scenario(sized(ParallelSpec { overlap_gradients: false, ..transformer(mesh, 1, 2, 1) }), engine)
}

#[test]
fn all_wait_for_a_rank_that_computes_twice_as_long() {
    let alike = on_all_ranks(&summed(MeshSpec { dp: 4, ..MeshSpec::default() }, "fluid"));
    let mut uneven = alike.clone();
    uneven.jobs[0].compute.straggler =
        Some(StragglerSpec { worker: Some(2), factor_ppm: 2_000_000, probability_ppm: 1_000_000 });
    for (slow, fast) in run(&uneven).into_iter().zip(run(&alike)) {
        assert_eq!(slow - fast, COMPUTE);
    }
}

#[test]
fn groups_that_share_a_link_get_half_of_it_each() {
    // Ranks 0 and 1 are on one leaf, ranks 2 and 3 on the other. The data-parallel groups (0, 2) and (1, 3) share the
    // cable to the spine in each direction.
    let leaves = |rate_bps: u64| {
        let mut spec = on_all_ranks(&summed(MeshSpec { tp: 2, dp: 2, ..MeshSpec::default() }, "fluid"));
        let fabric_link = json!({"rate_bps": rate_bps, "delay_ps": 4});
        let topology =
            json!({"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 2, "spines": 1, "fabric_link": fabric_link});
        spec.cluster.topology = serde_json::from_value(topology).unwrap();
        run(&spec)
    };
    // With the fast cable, the hosts' links are the bottleneck. They also carry the last tensor-parallel sum, 2 PART
    // bytes, which hides two delays of 4 ps. With the slow cable, this sum takes no additional time, because it uses
    // the hosts' links only.
    for (half, whole) in leaves(800_000_000_000).into_iter().zip(leaves(1_600_000_000_000)) {
        assert_eq!(half - whole, (GRADIENTS - 2 * PART) * PS_PER_BYTE + 8);
    }
}

#[test]
fn a_sum_beside_another_flow_takes_twice_as_long() {
    let alone = on_all_ranks(&summed(MeshSpec { dp: 2, ..MeshSpec::default() }, "fluid"));
    let mut beside = alone.clone();
    let flow = json!({
        "name": "other", "start_ps": [0], "src": [0], "dst": [1], "bytes": [1_u64 << 40], "band": [0]
    });
    beside.traffic.push(serde_json::from_value(flow).unwrap());
    beside.run.duration = Some(Time::from_ps(1 << 33));
    // The background flow uses the link from rank 0 to rank 1 only. Rank 0 therefore receives the first message of a
    // sum before its own first message has left, and sends the second one without a delay. This saves 8 ps in each of
    // two sums: the gradients and the norm.
    for (both, one) in run(&beside).into_iter().zip(run(&alone)) {
        assert_eq!(both - one, (GRADIENTS + PART) * PS_PER_BYTE - 2 * 8);
    }
}

#[test]
fn jobs_on_other_hosts_change_nothing() {
    let alone = on_all_ranks(&summed(MeshSpec { tp: 2, dp: 2, ..MeshSpec::default() }, "fluid"));
    let mut both = alone.clone();
    both.cluster.topology = serde_json::from_value(json!({"kind": "star", "hosts": 8})).unwrap();
    let mut other = alone.jobs[0].clone();
    (other.name, other.hosts) = ("other".into(), (4..8).collect());
    both.jobs.push(other);
    assert_eq!(run(&both), run(&alone));
}

#[test]
fn packets_add_headers_and_no_more() {
    let [fluid, packet] =
        ["fluid", "packet"].map(|engine| run(&summed(MeshSpec { dp: 2, ..MeshSpec::default() }, engine)));
    for (fluid, packet) in fluid.into_iter().zip(packet) {
        // On the wire, a segment of 1380 bytes has 92 bytes of headers, and every second segment has an acknowledgement
        // of 92 bytes in the other direction: 138 bytes per segment.
        let sent = (GRADIENTS + PART) * PS_PER_BYTE;
        let most = sent * 138 / 1380 + 100_000;
        assert!(
            (fluid..=fluid + most).contains(&packet),
            "{packet} ps, {fluid} ps without headers, {most} ps for them"
        );
    }
}

/// Nodes of 8 GPUs. A scale-up port sends 1 byte per ps, a network card 0.1 byte per ps. A message is delayed by 2 us
/// within a node and by 20 us between nodes.
fn on_nodes(mesh: MeshSpec, engine: &str) -> Spec {
    let ranks = mesh.fsdp * mesh.dp;
    let mut spec = summed(mesh, engine);
    spec.jobs[0].parallel.as_mut().unwrap().gpus_per_node = 8;
    let cluster = &mut spec.cluster;
    cluster.topology = serde_json::from_value(json!({"kind": "star", "hosts": ranks})).unwrap();
    cluster.link.delay = Time::from_ps(10_000_000);
    let scale_up = json!({"rate_bps": 8_000_000_000_000_u64, "delay_ps": 1_000_000});
    cluster.node = Some(serde_json::from_value(json!({"gpus": 8, "nics": 8, "scale_up": scale_up})).unwrap());
    spec
}

#[test]
fn on_nodes_ranks_take_what_their_classes_take() {
    for ranks in [16, 64] {
        let mut sharded = on_nodes(MeshSpec { fsdp: ranks, ..MeshSpec::default() }, "fluid");
        let parallel = sharded.jobs[0].parallel.as_mut().unwrap();
        (parallel.sharding, parallel.norm_bytes) = (ShardingSpec::Zero2, 0);
        for spec in [sharded, on_nodes(MeshSpec { dp: ranks, ..MeshSpec::default() }, "fluid")] {
            assert_eq!(run(&spec), run(&on_all_ranks(&spec)), "{ranks} ranks");
        }
    }
}
