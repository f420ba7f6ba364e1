//! Builders of parallel steps: cases solved by hand, to the picosecond.
#![allow(missing_docs)]

mod reference;
mod steps;

use gradtide_train::collective::levels::CollectiveKind;
use gradtide_train::parallel::{ParallelError, Phase, Step};
use gradtide_train::schedule::{FirstNeed, Scheduler};
use gradtide_train::spec::ParallelSpec;
use reference::{Times, run};
use serde_json::{Value, json};
use steps::{build, by_bytes, check, end, three_layers, timeline, with};

#[test]
fn data_parallel_reduces_each_layer_beside_the_backward_pass() {
    check(
        &build(with(three_layers(), &[("/mesh/dp", json!(2))])),
        &[
            "0-10 a.op forward",
            "10-30 b.op forward",
            "30-60 c.op forward",
            "60-120 c.op backward",
            "120-160 b.op backward",
            "120-220 dp AllReduce c backward",
            "160-180 a.op backward",
            "220-320 dp AllReduce b backward",
            "320-420 dp AllReduce a backward",
            "420-425 optimizer",
        ],
    );
}

#[test]
fn gradients_that_do_not_overlap_are_reduced_at_once() {
    let step = build(with(three_layers(), &[("/mesh/dp", json!(2)), ("/overlap_gradients", json!(false))]));
    let times = &run(&step, 1, &by_bytes)[0];
    assert_eq!(step.transfers.len(), 1);
    assert_eq!((times.start.last(), times.end.last()), (Some(&180), Some(&480)));
    assert_eq!(end(times), 485);
}

#[test]
fn accumulated_gradients_are_reduced_with_the_last_micro_batch() {
    let step = build(with(three_layers(), &[("/mesh/dp", json!(2)), ("/micro_batches", json!(2))]));
    assert_eq!(step.transfers.len(), 3);
    // In the second micro-batch, the backward op of c ends at 300. Three reductions of 100 ps follow one another, then
    // the optimizer runs.
    assert_eq!(end(&run(&step, 1, &by_bytes)[0]), 300 + 3 * 100 + 5);
}

#[test]
fn one_rank_sends_nothing() {
    let step = build(with(three_layers(), &[("/sharding", json!("zero3")), ("/norm_bytes", json!(4))]));
    assert!(step.groups.is_empty() && step.transfers.is_empty());
    assert_eq!(end(&run(&step, 1, &by_bytes)[0]), 185);
}

fn sharded(sharding: &str) -> Value {
    let mut spec = with(three_layers(), &[("/mesh/fsdp", json!(2)), ("/sharding", json!(sharding))]);
    for kind in 0..3 {
        for key in ["parameter_bytes", "gradient_bytes"] {
            spec["kinds"][kind][key] = json!(50);
        }
    }
    spec
}

#[test]
fn fsdp_gathers_one_block_ahead_and_keeps_the_last() {
    check(
        &build(sharded("zero3")),
        &[
            "0-50 fsdp AllGather a forward",
            "50-60 a.op forward",
            "50-100 fsdp AllGather b forward",
            "100-120 b.op forward",
            "100-150 fsdp AllGather c forward",
            "150-180 c.op forward",
            "180-230 fsdp AllGather b backward",
            "180-240 c.op backward",
            "240-280 b.op backward",
            "240-290 fsdp ReduceScatter c backward",
            "290-340 fsdp AllGather a backward",
            "340-360 a.op backward",
            "340-390 fsdp ReduceScatter b backward",
            "390-440 fsdp ReduceScatter a backward",
            "440-445 optimizer",
        ],
    );
}

#[test]
fn fsdp_without_prefetch_gathers_when_a_block_is_reached() {
    let spec = with(sharded("zero3"), &[("/forward_prefetch", json!(0)), ("/backward_prefetch", json!(0))]);
    check(
        &build(spec),
        &[
            "0-50 fsdp AllGather a forward",
            "50-60 a.op forward",
            "60-110 fsdp AllGather b forward",
            "110-130 b.op forward",
            "130-180 fsdp AllGather c forward",
            "180-210 c.op forward",
            "210-270 c.op backward",
            "270-320 fsdp ReduceScatter c backward",
            "320-370 fsdp AllGather b backward",
            "370-410 b.op backward",
            "410-460 fsdp ReduceScatter b backward",
            "460-510 fsdp AllGather a backward",
            "510-530 a.op backward",
            "530-580 fsdp ReduceScatter a backward",
            "580-585 optimizer",
        ],
    );
}

#[test]
fn gloo_reduces_all_of_a_gradient_and_the_pass_waits() {
    check(
        &build(with(sharded("zero3"), &[("/gloo", json!(true))])),
        &[
            "0-50 fsdp AllGather a forward",
            "50-60 a.op forward",
            "50-100 fsdp AllGather b forward",
            "100-120 b.op forward",
            "100-150 fsdp AllGather c forward",
            "150-180 c.op forward",
            "180-230 fsdp AllGather b backward",
            "180-240 c.op backward",
            "240-290 fsdp AllReduce c backward",
            "290-330 b.op backward",
            "290-340 fsdp AllGather a backward",
            "340-390 fsdp AllReduce b backward",
            "390-410 a.op backward",
            "410-460 fsdp AllReduce a backward",
            "460-465 optimizer",
        ],
    );
}

#[test]
fn blocks_of_a_unit_are_gathered_and_reduced_together() {
    check(
        &build(with(sharded("zero3"), &[("/units", json!([1, 2]))])),
        &[
            "0-50 fsdp AllGather a forward",
            "50-60 a.op forward",
            "50-150 fsdp AllGather b forward",
            "150-170 b.op forward",
            "170-200 c.op forward",
            "200-250 fsdp AllGather a backward",
            "200-260 c.op backward",
            "260-300 b.op backward",
            "300-320 a.op backward",
            "300-400 fsdp ReduceScatter b backward",
            "400-450 fsdp ReduceScatter a backward",
            "450-455 optimizer",
        ],
    );
}

#[test]
fn zero2_gathers_once_and_has_one_buffer_to_scatter_from() {
    check(
        &build(sharded("zero2")),
        &[
            "0-50 fsdp AllGather a forward",
            "50-60 a.op forward",
            "50-100 fsdp AllGather b forward",
            "100-120 b.op forward",
            "100-150 fsdp AllGather c forward",
            "150-180 c.op forward",
            "180-240 c.op backward",
            "240-280 b.op backward",
            "240-290 fsdp ReduceScatter c backward",
            // The reduce-scatter of c occupies the only buffer until 290, so the backward op of a begins at 290 instead
            // of 280.
            "290-310 a.op backward",
            "290-340 fsdp ReduceScatter b backward",
            "340-390 fsdp ReduceScatter a backward",
            "390-395 optimizer",
        ],
    );
}

#[test]
fn zero1_gathers_once_at_the_beginning_of_a_step() {
    let expected = [
        "0-50 fsdp AllGather a begin",
        "50-60 a.op forward",
        "50-100 fsdp AllGather b begin",
        "100-120 b.op forward",
        "100-150 fsdp AllGather c begin",
        "150-180 c.op forward",
        "180-240 c.op backward",
        "240-280 b.op backward",
        "240-290 fsdp ReduceScatter c backward",
        "280-300 a.op backward",
        "290-340 fsdp ReduceScatter b backward",
        "340-390 fsdp ReduceScatter a backward",
        "390-395 optimizer",
    ];
    check(&build(sharded("zero1")), &expected);
    let step = build(with(sharded("zero1"), &[("/overlap_gradients", json!(false))]));
    // Without overlap these follow one another: the all-gathers, the forward and backward passes, the reduce-scatters
    // and the optimizer.
    assert_eq!(end(&run(&step, 1, &by_bytes)[0]), 150 + 180 + 150 + 5);
}

/// Four layers run backward in ops 5 to 8, and op 9 is the optimizer. With a prefetch of 3, all all-gathers are queued
/// at once. A reduce-scatter has to free its buffer before the backward op of the unit after the next one: the
/// reduce-scatter of layer 3 is needed at op 7, earlier than the all-gather of layer 0 at op 8.
#[test]
fn a_reduce_scatter_is_needed_before_what_is_gathered_far_ahead() {
    let blocks = [0, 1, 2, 2].map(|kind| json!({"name": format!("l{kind}"), "kind": kind}));
    let changes = [("/blocks", json!(blocks)), ("/units", json!([1, 1, 1, 1])), ("/stages", json!([4]))];
    let step = build(with(with(sharded("zero3"), &changes), &[("/backward_prefetch", json!(3))]));
    let mut needs = Vec::new();
    FirstNeed.ranks(&step.dag, &mut needs);
    let backward: Vec<(CollectiveKind, u32, u32)> = (step.transfers.iter().zip(&needs))
        .filter(|(transfer, _)| transfer.label.phase == Phase::Backward)
        .map(|(transfer, &need)| (transfer.kind, transfer.label.block().unwrap(), need))
        .collect();
    let (gather, scatter) = (CollectiveKind::AllGather, CollectiveKind::ReduceScatter);
    let gathers = [(gather, 2, 6), (gather, 1, 7), (gather, 0, 8)];
    let scatters = [(scatter, 3, 7), (scatter, 2, 8), (scatter, 1, 9), (scatter, 0, 9)];
    assert_eq!(backward, [&gathers[..], &scatters].concat());
}

#[test]
fn all_steps_are_alike() {
    for sharding in ["none", "zero1", "zero2", "zero3"] {
        let step = build(with(sharded(sharding), &[("/mesh/dp", json!(2)), ("/norm_bytes", json!(4))]));
        let times = run(&step, 3, &by_bytes);
        let (first, third) = (timeline(&step, &times[0], 0), timeline(&step, &times[2], 2 * end(&times[0])));
        assert_eq!(first, third, "{sharding}");
    }
}

#[test]
fn fsdp_reduces_every_micro_batch_and_gathers_again() {
    let step = build(with(sharded("zero3"), &[("/micro_batches", json!(2))]));
    let times = &run(&step, 1, &by_bytes)[0];
    // The second micro-batch begins when the gradients of the first one are reduced, at 440, and takes another 440 ps.
    assert_eq!(end(times), 440 + 440 + 5);
    assert_eq!(step.transfers.len(), 2 * 8);
    let with_pipeline = [("/mesh/pp", json!(2)), ("/stages", json!([2, 1])), ("/optimizer_ps", json!([5, 5]))];
    let step = build(with(with(sharded("zero2"), &[("/micro_batches", json!(2))]), &with_pipeline));
    // With a pipeline, each of 3 blocks is gathered and reduced once, and 2 micro-batches cross one boundary in both
    // directions.
    assert_eq!(step.transfers.len(), 3 + 3 + 4);
}

#[test]
fn hsdp_sums_the_shards_of_its_replicas() {
    let step = build(with(sharded("zero3"), &[("/mesh/dp", json!(2))]));
    let times = &run(&step, 1, &by_bytes)[0];
    let lines = timeline(&step, times, 0);
    let sums: Vec<&String> = lines.iter().filter(|line| line.contains("dp AllReduce")).collect();
    assert_eq!(
        sums,
        [
            "290-315 dp AllReduce c backward, micro-batch 0",
            "390-415 dp AllReduce b backward, micro-batch 0",
            "440-465 dp AllReduce a backward, micro-batch 0"
        ]
    );
    assert_eq!(end(times), 470);
}

/// Three blocks without parameters, each with an attention op (10 ps forward) and an MLP op (20 ps forward).
fn transformer() -> Value {
    let op = |name: &str, forward: u64| json!({"name": name, "role": name, "forward_ps": forward, "backward_ps": 2 * forward});
    let kind = json!({"ops": [op("attention", 10), op("mlp", 20)]});
    let block = |name: &str| json!({"name": name, "kind": 0});
    with(three_layers(), &[("/kinds", json!([kind])), ("/blocks", json!([block("a"), block("b"), block("c")]))])
}

/// Returns whether every transfer starts as soon as it is ready, and another op or transfer starts at its end.
fn is_on_the_critical_path(step: &Step, times: &Times) -> bool {
    let transfers = step.labels.len()..times.start.len();
    transfers.into_iter().all(|op| times.ready[op] == times.start[op] && times.start.contains(&times.end[op]))
}

#[test]
fn tensor_parallel_sums_twice_forward_and_twice_backward() {
    let step = build(with(transformer(), &[("/mesh/tp", json!(2))]));
    let times = &run(&step, 1, &by_bytes)[0];
    let lines = timeline(&step, times, 0);
    assert_eq!(
        lines[1..5],
        [
            "0-10 a.attention forward, micro-batch 0",
            "10-20 tp AllReduce a.attention forward, micro-batch 0",
            "20-40 a.mlp forward, micro-batch 0",
            "40-50 tp AllReduce a.mlp forward, micro-batch 0"
        ]
    );
    assert_eq!(
        lines[13..17],
        [
            "150-190 c.mlp backward, micro-batch 0",
            "190-200 tp AllReduce c.mlp backward, micro-batch 0",
            "200-220 c.attention backward, micro-batch 0",
            "220-230 tp AllReduce c.attention backward, micro-batch 0"
        ]
    );
    assert_eq!(end(times), 3 * 50 + 3 * 80 + 5);
    assert!(is_on_the_critical_path(&step, times));
}

#[test]
fn sequence_parallel_gathers_and_scatters_in_place_of_a_sum() {
    let step = build(with(transformer(), &[("/mesh/tp", json!(2)), ("/sequence_parallel", json!(true))]));
    let times = &run(&step, 1, &by_bytes)[0];
    let lines = timeline(&step, times, 0);
    assert_eq!(
        lines[1..7],
        [
            "0-10 tp AllGather a.attention forward, micro-batch 0",
            "10-20 a.attention forward, micro-batch 0",
            "20-30 tp ReduceScatter a.attention forward, micro-batch 0",
            "30-40 tp AllGather a.mlp forward, micro-batch 0",
            "40-60 a.mlp forward, micro-batch 0",
            "60-70 tp ReduceScatter a.mlp forward, micro-batch 0"
        ]
    );
    assert_eq!(end(times), 3 * 70 + 3 * 100 + 5);
    assert!(is_on_the_critical_path(&step, times));
}

#[test]
fn embedding_and_head_communicate_on_one_side() {
    let mut spec = with(transformer(), &[("/mesh/tp", json!(2))]);
    spec["kinds"][0]["ops"][0]["role"] = json!("embedding");
    spec["kinds"][0]["ops"][1]["role"] = json!("head");
    let with_sums = run(&build(spec.clone()), 1, &by_bytes);
    // A block has one tensor-parallel sum in the forward pass, after the embedding, and one in the backward pass, after
    // the head.
    assert_eq!(end(&with_sums[0]), 3 * (30 + 10) + 3 * (60 + 10) + 5);
    let split = run(&build(with(spec, &[("/sequence_parallel", json!(true))])), 1, &by_bytes);
    assert_eq!(end(&split[0]), 3 * (30 + 20) + 3 * (60 + 20) + 5);
}

#[test]
fn full_recomputation_repeats_the_sums_and_selective_does_not() {
    let mut spec = with(transformer(), &[("/mesh/tp", json!(2))]);
    spec["kinds"][0]["ops"][0]["recompute_ps"] = json!(7);
    let selective = run(&build(spec.clone()), 1, &by_bytes);
    assert_eq!(end(&selective[0]), 3 * 50 + 3 * (80 + 7) + 5);
    for op in 0..2 {
        spec["kinds"][0]["ops"][op]["recompute_ps"] = spec["kinds"][0]["ops"][op]["forward_ps"].clone();
        spec["kinds"][0]["ops"][op]["recompute_communicates"] = json!(true);
    }
    let step = build(spec);
    let times = &run(&step, 1, &by_bytes)[0];
    assert_eq!(end(times), 3 * 50 + 3 * (50 + 80) + 5);
    assert_eq!(
        timeline(&step, times, 0)[13..15],
        ["150-160 c.attention recompute, micro-batch 0", "160-170 tp AllReduce c.attention recompute, micro-batch 0"]
    );
}

#[test]
fn experts_exchange_tokens_before_and_after_both_ways() {
    let mut spec = with(transformer(), &[("/mesh/dp", json!(2)), ("/mesh/ep", json!(2))]);
    spec["kinds"][0]["ops"][1]["role"] = json!("experts");
    spec["kinds"][0]["ops"][1]["exchanged_bytes"] = json!(3);
    let step = build(spec);
    let times = &run(&step, 1, &by_bytes)[0];
    let lines = timeline(&step, times, 0);
    assert_eq!(
        lines[1..5],
        [
            "0-10 a.attention forward, micro-batch 0",
            "10-13 ep AllToAll a.mlp forward, micro-batch 0",
            "13-33 a.mlp forward, micro-batch 0",
            "33-36 ep AllToAll a.mlp forward, micro-batch 0"
        ]
    );
    assert_eq!(end(times), 3 * 36 + 3 * 66 + 5);
    assert!(is_on_the_critical_path(&step, times));
}

#[test]
fn gradients_of_experts_are_summed_by_those_who_have_the_same() {
    let mut spec = with(three_layers(), &[("/mesh/dp", json!(4)), ("/mesh/ep", json!(2))]);
    spec["kinds"][1]["expert_gradient_bytes"] = json!(30);
    let step = build(spec.clone());
    let of = |axis: &str| step.groups.iter().find(|group| group.axis.name() == axis).unwrap();
    assert_eq!((of("dp").span.ranks(), of("expert dp").span.ranks(), of("ep").span.ranks()), (4, 2, 2));
    let times = &run(&step, 1, &by_bytes)[0];
    let lines = timeline(&step, times, 0);
    assert!(lines.contains(&"160-190 expert dp AllReduce b backward, micro-batch 0".into()), "{lines:#?}");
    // If every rank has all experts, the gradients of experts are reduced with the rest of their block.
    let all = build(with(spec, &[("/mesh/ep", json!(1))]));
    let bytes: Vec<u64> = all.transfers.iter().map(|transfer| transfer.bytes.0).collect();
    assert_eq!(bytes, [100, 130, 100]);
}

#[test]
fn keys_and_values_go_around_while_ranks_attend() {
    let mut spec = with(transformer(), &[("/mesh/cp", json!(2))]);
    spec["kinds"][0]["ops"][0]["exchanged_bytes"] = json!(4);
    let step = build(spec.clone());
    let times = &run(&step, 1, &by_bytes)[0];
    assert_eq!(
        timeline(&step, times, 0)[1..4],
        [
            "0-4 cp Send a.attention forward, micro-batch 0",
            "0-5 a.attention forward, micro-batch 0",
            "5-10 a.attention forward, micro-batch 0"
        ]
    );
    assert_eq!(end(times), 3 * 30 + 3 * 60 + 5, "all of it is hidden");
    // A send takes longer than the compute that overlaps with it: 8 ps against 5 ps forward, and 16 ps against 10 ps
    // backward. The difference is exposed.
    spec["kinds"][0]["ops"][0]["exchanged_bytes"] = json!(8);
    assert_eq!(end(&run(&build(spec.clone()), 1, &by_bytes)[0]), 3 * (30 + 3) + 3 * (60 + 6) + 5);
    // With four ranks, each rank computes the 10 ps of attention in four parts, of 4, 2, 2 and 2 ps. The keys and values
    // of the other ranks arrive at 8, 16 and 24 ps, so the last part ends at 24 + 2 ps. Backward, they arrive at 16, 32
    // and 48 ps, and each part takes 5 ps. The other ops of a block take 20 ps forward and 40 ps backward.
    spec["mesh"]["cp"] = json!(4);
    let times = &run(&build(spec), 1, &by_bytes)[0];
    assert_eq!(end(times), 3 * (24 + 2 + 20) + 3 * (48 + 5 + 40) + 5);
}

#[test]
fn gathered_keys_and_values_are_waited_for() {
    let mut spec = with(transformer(), &[("/mesh/cp", json!(2)), ("/context", json!("all_gather"))]);
    spec["kinds"][0]["ops"][0]["exchanged_bytes"] = json!(4);
    let step = build(spec);
    let times = &run(&step, 1, &by_bytes)[0];
    let lines = timeline(&step, times, 0);
    assert_eq!(
        lines[1..4],
        [
            "0-8 cp AllGather a.attention forward, micro-batch 0",
            "8-18 a.attention forward, micro-batch 0",
            "18-38 a.mlp forward, micro-batch 0"
        ]
    );
    assert_eq!(
        lines[10..14],
        [
            "114-154 c.mlp backward, micro-batch 0",
            "154-162 cp AllGather c.attention backward, micro-batch 0",
            "162-182 c.attention backward, micro-batch 0",
            "182-190 cp ReduceScatter c.attention backward, micro-batch 0"
        ]
    );
    assert_eq!(end(times), 3 * (8 + 30) + 3 * (8 + 60 + 8) + 5);
    assert!(is_on_the_critical_path(&step, times));
}

/// Of attention's 10 ps forward, 4 use the gathered activations and 4 compute the sum that is scattered; of its 20 ps
/// backward, 8 use gathered activations.
fn asynchronous(activations: u64) -> Value {
    let changes = [
        ("/mesh/tp", json!(2)),
        ("/sequence_parallel", json!(true)),
        ("/async_tp", json!(true)),
        ("/activation_bytes", json!(activations)),
        ("/stages", json!([1])),
        ("/units", json!([1])),
        ("/blocks", json!([{"name": "a", "kind": 0}])),
    ];
    let mut spec = with(transformer(), &changes);
    spec["kinds"][0]["ops"].as_array_mut().unwrap().truncate(1);
    spec["kinds"][0]["ops"][0]["beside"] = json!([{"join_ps": 4, "sum_ps": 4, "add_ps": 1}, {"join_ps": 8}]);
    spec
}

#[test]
fn asynchronous_tensor_parallel_sends_parts_beside_products() {
    check(
        &build(asynchronous(4)),
        &[
            // The rank computes its own half of the sequence first; the other rank's half arrives meanwhile.
            "0-2 a.attention forward",
            "0-2 tp Send a.attention forward",
            "2-4 a.attention forward",
            "4-6 a.attention forward",
            // The other rank's half of the sum is computed first.
            "6-8 a.attention forward",
            "8-10 a.attention forward",
            "8-10 tp Send a.attention forward",
            "10-11 a.attention forward",
            "11-13 tp Send a.attention backward",
            "11-15 a.attention backward",
            "15-19 a.attention backward",
            "19-31 a.attention backward",
            "31-35 tp ReduceScatter a.attention backward",
            "35-40 optimizer",
        ],
    );
    // With 20 bytes of activations a send takes 10 ps. Forward, each of two sends overlaps with 2 ps of compute and
    // exposes 8 ps; backward, one send overlaps with 4 ps and exposes 6 ps.
    let times = &run(&build(asynchronous(20)), 1, &by_bytes)[0];
    assert_eq!(end(times), (11 + 2 * 8) + (20 + 6 + 20) + 5);
}

#[test]
fn what_is_sent_beside_an_op_takes_no_longer_than_the_op() {
    let mut spec = asynchronous(4);
    spec["kinds"][0]["ops"][0]["beside"][0]["sum_ps"] = json!(7);
    let spec: ParallelSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(Step::new(&spec).err(), Some(ParallelError::Beside("attention".into())));
}

#[test]
fn stages_send_parts_that_the_next_one_gathers() {
    let spec = |is_parallel| {
        with(
            transformer(),
            &[
                ("/mesh/pp", json!(2)),
                ("/mesh/tp", json!(2)),
                ("/stages", json!([2, 1])),
                ("/optimizer_ps", json!([5, 5])),
                ("/scatter_gather", json!(is_parallel)),
            ],
        )
    };
    let sent = |step: &Step, name: &str| -> Vec<u64> {
        let of_kind = step.transfers.iter().filter(|transfer| transfer.kind.name() == name);
        of_kind.map(|transfer| transfer.bytes.0).collect()
    };
    let (whole, split) = (build(spec(false)), build(spec(true)));
    assert_eq!((sent(&whole, "send"), sent(&whole, "all_gather")), (vec![10, 10], vec![]));
    assert_eq!((sent(&split, "send"), sent(&split, "all_gather")), (vec![5, 5], vec![10, 10]));
    // With `scatter_gather`, the send in each direction takes 5 ps less, and the additional all-gather takes 10 ps.
    let ends = [whole, split].map(|step| end(&run(&step, 1, &by_bytes)[0]));
    assert_eq!(ends[1], ends[0] + 2 * (10 - 5));
}
