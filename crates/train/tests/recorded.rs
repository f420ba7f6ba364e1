//! Recorded steps: against equivalent meshes, against hand-solved cases, and with invalid documents.
#![allow(missing_docs)]

mod parallel;
mod star;

use gradtide_train::parallel::Step;
use gradtide_train::spec::{MeshSpec, ParallelSpec, RecordedSpec, ShardingSpec, Spec, StepSpec};
use parallel::{scenario, transformer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Returns the time of each iteration of the first job in ps, and the figures of its groups by name.
fn run(spec: &Spec) -> (Vec<u64>, Value) {
    let result = gradtide_train::run(spec, &mut |_| true).unwrap();
    let summary: Value = serde_json::to_value(&result.summary).unwrap();
    let times = summary["jobs"][0]["iteration_time_ps"].as_array().unwrap();
    (times.iter().map(|ps| ps.as_u64().unwrap()).collect(), summary["jobs"][0]["step"]["groups"].clone())
}

/// Returns the scenario with a recorded step in place of its mesh.
fn recorded(spec: &Spec, step: StepSpec) -> Spec {
    let mut spec = spec.clone();
    let gpus_per_node = spec.jobs[0].parallel.take().map_or(1, |parallel| parallel.gpus_per_node);
    spec.jobs[0].recorded = Some(RecordedSpec { gpus_per_node, step });
    spec
}

fn step(spec: &Spec) -> Step {
    Step::new(spec.jobs[0].parallel.as_ref().unwrap()).unwrap()
}

/// Returns the step of a scenario's mesh with one class per rank, as in a trace.
fn of_all_ranks(spec: &Spec) -> StepSpec {
    let mut document = step(spec).per_rank().unwrap().graph();
    document.groups.iter_mut().filter(|group| group.name != "pp").for_each(|group| group.stride = Some(1));
    document
}

fn meshes() -> impl Strategy<Value = MeshSpec> {
    let axis = || prop_oneof![Just(1_u32), Just(2), Just(4)];
    let axes = (axis(), 1..3_u32, axis(), 1..3_u32, axis());
    axes.prop_map(|(tp, cp, fsdp, dp, pp)| MeshSpec { tp, cp, ep: 1, fsdp, dp, pp })
        .prop_filter("at most 16 ranks, and two", |mesh| {
            (2..=16).contains(&(mesh.tp * mesh.cp * mesh.fsdp * mesh.dp * mesh.pp))
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A recorded step takes as long as the mesh that it was recorded from, on rank classes and with all ranks.
    #[test]
    fn a_recorded_step_takes_as_long_as_its_mesh(
        mesh in meshes(),
        sharding in prop::sample::select(vec![ShardingSpec::None, ShardingSpec::Zero2, ShardingSpec::Zero3]),
        engine in prop::sample::select(vec!["fluid", "packet"]),
        sequence_parallel in any::<bool>(),
    ) {
        let base = transformer(mesh, mesh.pp, 2, mesh.pp);
        let base = ParallelSpec { sharding, sequence_parallel, gpus_per_node: 1, ..base };
        let mut spec = scenario(base, engine);
        spec.jobs[0].iterations = Some(1);
        let (times, _) = run(&spec);
        let late = step(&spec).transfers.len() as u64;
        // The two runs use different networks, and the fluid engine rounds rates, so times may differ by 1 ps per
        // transfer.
        let (again, _) = run(&recorded(&spec, of_all_ranks(&spec)));
        prop_assert!(times[0].abs_diff(again[0]) <= late, "{} ps and {} ps", times[0], again[0]);
        if mesh.pp == 1 {
            // The same step with one rank per class.
            let (again, _) = run(&recorded(&spec, step(&spec).graph()));
            prop_assert_eq!(&times, &again);
        }
    }
}

/// Ranks 0 and 1 compute for 30 and 40 ns, all-reduce 8000 bytes in two rounds of 40 ns and 8 ps each, and compute for
/// 5 and 1 ns.
fn summed() -> StepSpec {
    serde_json::from_value(json!({
        "classes": [
            {"name": "rank0", "ranks": 1, "ops": [["forward", 30_000], ["update", 5_000]]},
            {"name": "rank1", "ranks": 1, "ops": [["forward", 40_000], ["update", 1_000]]},
        ],
        "groups": [{"name": "data", "classes": [0, 1], "ranks": 2, "stride": 1}],
        "transfers": [{"name": "all_reduce", "kind": "all_reduce", "bytes": 8_000, "group": 0}],
        "edges": [[0, 4], [2, 4], [4, 1], [4, 3]],
    }))
    .unwrap()
}

fn on_two(step: StepSpec) -> Spec {
    let base = ParallelSpec { gpus_per_node: 1, ..transformer(MeshSpec { dp: 2, ..MeshSpec::default() }, 1, 1, 1) };
    recorded(&scenario(base, "fluid"), step)
}

#[test]
fn iterations_follow_one_another_on_all_ranks() {
    let (times, groups) = run(&on_two(summed()));
    // Rank 0 is done after 30 ns and waits for rank 1. The ring takes two rounds of 4000 bytes at 100 bytes per ns,
    // each over two links of 4 ps. The longer update takes 5 ns.
    let each = 40_000 + 2 * (40_000 + 8) + 5_000;
    assert_eq!(times, [each, each]);
    assert_eq!((&groups[0]["name"], &groups[0]["bytes_per_rank"]), (&json!("data"), &json!(8_000.0)));
}

#[test]
fn what_waits_for_nothing_begins_with_the_iteration_and_ends_in_it() {
    let mut step = summed();
    step.edges.clear();
    let (times, _) = run(&on_two(step));
    assert_eq!(times, [2 * (40_000 + 8); 2]);
}

#[test]
fn a_message_goes_one_way() {
    let mut step = summed();
    (step.groups[0].classes, step.groups[0].stride) = (vec![1, 0], None);
    step.transfers[0].kind = "send".into();
    step.edges = vec![(2, 4), (4, 1)];
    let (times, groups) = run(&on_two(step));
    assert_eq!(times, [40_000 + 80_000 + 8 + 5_000; 2]);
    assert_eq!((&groups[0]["name"], &groups[0]["bytes_per_rank"]), (&json!("messages"), &json!(4_000.0)));
}

type Change = fn(&mut StepSpec);

#[test]
fn what_is_no_step_is_refused() {
    let wrong: [(Change, &str); 10] = [
        (|step| step.classes.clear(), "the number of ranks is 0"),
        (|step| step.classes[0].ranks = 2, "2 classes of 3 ranks"),
        (|step| step.classes.iter_mut().for_each(|class| class.ops.clear()), "no op takes any time"),
        (|step| step.classes[0].ops[0].1 = u64::MAX, "computes for more than"),
        (|step| step.transfers[0].bytes = u64::MAX, "more than 2^64 bytes"),
        (|step| step.groups[0].classes = vec![0, 2], "group 0 (data)"),
        (|step| step.transfers[0].group = 1, "all_reduce in group 1"),
        (|step| step.groups[0].stride = None, "no send: all_reduce"),
        (|step| step.edges.push((0, 5)), "from op 0 to op 5, and 5 ops"),
        (|step| step.edges.push((1, 4)), "wait for each other"),
    ];
    for (change, why) in wrong {
        let mut step = summed();
        change(&mut step);
        let error = Step::recorded(&RecordedSpec { gpus_per_node: 1, step }).err().expect(why);
        assert!(error.to_string().contains(why), "{error}");
    }
    let mut three = summed();
    three.classes.push(three.classes[1].clone());
    three.edges = vec![];
    (three.groups[0].classes, three.groups[0].ranks) = (vec![0, 1, 2], 3);
    let error = Step::recorded(&RecordedSpec { gpus_per_node: 2, step: three }).err().unwrap();
    assert!(error.to_string().contains("do not lie evenly on nodes of 2 GPUs"), "{error}");
}
