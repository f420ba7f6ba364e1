//! Schedules in a run: the engines against the simulation of one channel, and invariants of all schedules.
#![allow(missing_docs)]

mod star;
mod tables;

use gradtide_net::{Bytes, Seed, Time};
use gradtide_table::Table;
use gradtide_train::caramel::timeline;
use gradtide_train::engine::{self, Idle};
use gradtide_train::fabric::Fabric;
use gradtide_train::job::CollectiveJob;
use gradtide_train::opdag::{Kind, Op, OpDag};
use gradtide_train::order::tac::Ties;
use gradtide_train::order::{self, OrderMethod, OrderRequest};
use gradtide_train::result::RunResult;
use gradtide_train::spec::Spec;
use proptest::prelude::*;
use serde_json::{Value, json};
use star::star;
use tables::column;

/// Forward, backward and update times of a layer in microseconds, and its bytes.
type Row = (u64, u64, u64, u64);

const US: u64 = 1_000_000;

fn scenario(rows: &[Row], workers: u32, schedule: &Value, collective: &Value) -> Spec {
    let layer = |(index, &(forward, backward, update, bytes)): (usize, &Row)| {
        json!({
            "name": format!("l{index}"), "forward_ps": forward * US, "backward_ps": backward * US,
            "update_ps": update * US, "parameter_bytes": bytes
        })
    };
    let layers: Vec<Value> = rows.iter().enumerate().map(layer).collect();
    let hosts: Vec<u32> = (0..workers).collect();
    serde_json::from_value(json!({
        "jobs": [{
            "name": "train", "layers": layers, "hosts": hosts, "iterations": 6, "collective": collective,
            "schedule": schedule
        }],
        "cluster": star(workers, 10_000_000_000, 10 * US),
        "run": {"seed": 1}
    }))
    .unwrap()
}

fn collective(kind: &str, depth: Option<u32>, reduction_bps: Option<u64>) -> Value {
    json!({"algorithm": {"kind": kind}, "depth": depth, "reduction_rate_bps": reduction_bps})
}

fn schedule(order: &Value, fusion: &Value, chunk_bytes: Option<u64>, credit: u32, barrier: bool) -> Value {
    json!({"order": order, "fusion": fusion, "chunk_bytes": chunk_bytes, "credit": credit, "barrier": barrier})
}

fn orders(layers: usize) -> Vec<Value> {
    let ranks: Vec<usize> = (0..layers).map(|layer| (layer * 7 + 3) % layers).collect();
    let plain = ["fifo", "tic", "tac", "caramel", "edf", "optimal", "priority"].map(|kind| json!({"kind": kind}));
    let mut orders = plain.to_vec();
    orders.push(json!({"kind": "priority", "queues": 2}));
    orders.extend([false, true].map(|in_turn| json!({"kind": "file", "ranks": ranks, "in_turn": in_turn})));
    orders
}

fn fusions() -> Vec<Value> {
    vec![
        json!({"kind": "cap", "bytes": 0}),
        json!({"kind": "cap", "bytes": 500_000}),
        json!({"kind": "reach", "first_bytes": 100_000, "bytes": 400_000}),
        json!({"kind": "ready", "bytes": 500_000, "cycle_ps": 300 * US}),
        json!({"kind": "ready", "bytes": 500_000, "cycle_ps": 0}),
        json!({"kind": "adaptive"}),
    ]
}

/// Draws layers with positive forward and backward times, so that no two buckets are complete at the same instant.
fn rows() -> impl Strategy<Value = Vec<Row>> {
    let bytes = prop_oneof![Just(0_u64), 1..20_000_u64, 1..1_000_000_u64];
    prop::collection::vec((1..600_u64, 1..600_u64, 0..3_u64, bytes), 1..9)
}

fn counts(table: &Table, name: &str) -> Vec<u64> {
    column(table, name).into_iter().map(|value| value as u64).collect()
}

fn run(spec: &Spec) -> RunResult {
    gradtide_train::run(spec, &mut |_| true).unwrap()
}

/// Runs a job, and simulates it on one channel, where each message takes its time on an idle network. Returns the
/// result of the run, the job and the simulated timeline.
fn both(spec: &Spec) -> (RunResult, CollectiveJob, timeline::Timeline) {
    let fabric = Fabric::new(&spec.cluster).unwrap();
    // With adaptive fusion the job measures message times, whatever fusion its schedule has.
    let mut asking = spec.clone();
    asking.jobs[0].schedule.fusion = gradtide_train::spec::FusionSpec::Adaptive;
    let mut idle = Idle::new(&asking, &fabric).unwrap();
    let mut job = CollectiveJob::plan(
        &spec.jobs[0],
        Seed(1),
        engine::mode(spec, &spec.jobs[0]).unwrap(),
        &mut |collective, bytes| idle.time(0, collective, bytes),
    )
    .unwrap();
    let collective = job.gradients().unwrap().collective.clone();
    let plan = job.on_one_channel(&mut |bytes| idle.time(0, &collective, bytes));
    let timeline = timeline::run(&job.gradients().unwrap().boundaries, &plan);
    (run(spec), job, timeline)
}

/// Checks that the run sends each bucket of each iteration when the channel sends it, and that iterations take the same
/// time. Each exchange may differ by `rounding` ps.
fn check_against_the_channel(spec: &Spec, rounding: u64) {
    let (result, job, timeline) = both(spec);
    let what = &spec.jobs[0].schedule;
    let (iteration, bucket) = (counts(&result.transfers, "iteration"), counts(&result.transfers, "bucket"));
    let (start, end) = (counts(&result.transfers, "start_us"), counts(&result.transfers, "end_us"));
    let mut compared = 0;
    let plan_of: Vec<u32> = {
        let mut job = job;
        job.on_one_channel(&mut |_| Time::ZERO).transfers.iter().map(|transfer| transfer.parameters[0]).collect()
    };
    let close = |one: Option<u64>, other: u64, iterations: u64, of: &str| {
        let most = rounding * iterations * plan_of.len() as u64;
        assert!(one.is_some_and(|one| one.abs_diff(other) <= most), "{of}: {one:?} and {other} with {what:?}");
    };
    for row in 0..iteration.len() {
        // The timeline has one iteration before the first measured one. Transfers of its last iteration are not
        // compared, because no iteration follows them.
        let number = iteration[row] as u32 + 1;
        if number as usize + 2 >= timeline.starts.len() {
            continue;
        }
        let mine = || {
            timeline
                .sent
                .iter()
                .filter(|sent| sent.iteration == number && u64::from(plan_of[sent.transfer as usize]) == bucket[row])
        };
        close(mine().map(|sent| sent.end.ps()).max(), end[row], iteration[row] + 2, "end");
        if what.credit == 1 {
            close(mine().map(|sent| sent.start.ps()).min(), start[row], iteration[row] + 2, "start");
        }
        compared += 1;
    }
    let time = *result.summary.jobs[0].iteration_time_ps.last().unwrap();
    close(Some(timeline.iteration_time().ps()), time, 1, "iteration");
    assert!(compared > 0 || bucket.is_empty() || timeline.starts.len() < 4);
    let bound = result.summary.jobs[0].lower_bound_ps;
    // The bound is a mean in floats; transfers take whole picoseconds.
    assert!(bound <= time as f64 + 1.0, "bound {bound} above {time} with {what:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The time of each message size is measured once on an idle network. In the run, an exchange that is simulated
    /// message by message may start between two whole picoseconds, so its duration may round to the neighbouring one.
    #[test]
    fn the_fluid_engine_does_what_one_channel_does(
        rows in rows(), workers in 2..5_u32, chunk in prop::option::of(20_000..300_000_u64), barrier in any::<bool>(),
        depth in prop::sample::select(vec![Some(1), Some(2), None]), kind in prop::sample::select(vec!["ring", "shuffle"]),
        reduction in prop::option::of(Just(40_000_000_000_u64)),
    ) {
        for order in orders(rows.len()) {
            for fusion in fusions() {
                let schedule = schedule(&order, &fusion, chunk, 1, barrier);
                let collective = collective(kind, depth, reduction);
                check_against_the_channel(&scenario(&rows, workers, &schedule, &collective), 1);
            }
        }
    }

    /// The buckets of a schedule contain every layer with parameters exactly once. Without bytes, an iteration takes
    /// its compute time.
    #[test]
    fn schedules_send_the_model_and_nothing_else(rows in rows()) {
        let bytes: u64 = rows.iter().map(|row| row.3).sum();
        let silent: Vec<Row> = rows.iter().map(|&(forward, backward, update, _)| (forward, backward, update, 0)).collect();
        let compute: u64 = rows.iter().map(|row| (row.0 + row.1 + row.2) * US).sum();
        for order in orders(rows.len()) {
            for fusion in fusions() {
                let schedule = schedule(&order, &fusion, None, 1, false);
                let ring = collective("ring", Some(1), None);
                let spec = scenario(&rows, 3, &schedule, &ring);
                let (_, job, _) = both(&spec);
                prop_assert_eq!(job.gradients().unwrap().buckets.iter().map(|bucket| bucket.bytes.0).sum::<u64>(), bytes);
                let mut layers: Vec<u32> = job.gradients().unwrap().buckets.iter().flat_map(|bucket| bucket.layers.clone()).collect();
                prop_assert!(job.gradients().unwrap().buckets.iter().all(|bucket| bucket.layers.is_sorted_by(|a, b| a > b)));
                layers.sort_unstable();
                let sends = |&layer: &u32| rows[layer as usize].3 > 0;
                prop_assert!(layers.into_iter().eq((0..rows.len() as u32).filter(sends)));
                let result = run(&scenario(&silent, 3, &schedule, &ring));
                prop_assert_eq!(&result.summary.jobs[0].iteration_time_ps, &vec![compute; 6]);
            }
        }
    }

    /// The optimal order is no worse than its candidate orders, on the engine and with the schedule's own buckets.
    #[test]
    fn the_best_order_is_no_worse_than_the_others(rows in rows(), fusion in prop::sample::select(fusions())) {
        let time = |kind: &str, chunk| {
            let schedule = schedule(&json!({"kind": kind}), &fusion, chunk, 1, false);
            let spec = scenario(&rows, 4, &schedule, &collective("ring", Some(1), None));
            *run(&spec).summary.jobs[0].iteration_time_ps.last().unwrap()
        };
        // The fitted line is exact to 1 ps at each of its two sizes, and an iteration has few messages.
        let slack = 1000;
        let optimal = time("optimal", None);
        for other in ["caramel", "edf"] {
            prop_assert!(optimal <= time(other, None) + slack, "{} {}", other, optimal);
        }
        if fusion["kind"] != "ready" {
            prop_assert!(optimal <= time("fifo", None) + slack);
            prop_assert!(optimal <= time("tac", None) + slack);
        }
    }
}

/// In a chain of forward ops, each op needs its own parameter and the previous op. TIC and TAC then receive the
/// parameters in the order of the chain, whatever the times.
#[test]
fn tictac_receives_a_chain_from_the_input_side() {
    for seed in 0..50_u64 {
        let layers = 2 + seed % 9;
        let mut ops = Vec::new();
        for layer in 0..layers {
            let transfer = 1 + (seed * 31 + layer * 17) % 97;
            let recv = Op { id: layer, kind: Kind::Recv, inputs: vec![], time_ticks: transfer, param_only: false };
            ops.push(recv);
        }
        for layer in 0..layers {
            let mut inputs = vec![layer as u32];
            inputs.extend((layer > 0).then(|| (layers + layer - 1) as u32));
            let time_ticks = 1 + (seed * 13 + layer * 29) % 53;
            ops.push(Op { id: layers + layer, kind: Kind::Comp, inputs, time_ticks, param_only: false });
        }
        let dag = OpDag { target: ops.len() as u32 - 1, ops };
        let first: Vec<u32> = (0..layers as u32).collect();
        for scheduler in [OrderMethod::Tic, OrderMethod::Tac] {
            let spec = OrderRequest { dag: dag.clone(), scheduler, ties: Ties::Id, seed: 1 };
            assert_eq!(order::order(&spec).unwrap().order, first);
        }
    }
}

/// Two layers of 1 ms forward, 1 ms backward and 100 kB each: updates at 3 and 4 ms. A bucket is released at the end of
/// a cycle of tensor fusion, which may be in the middle of an op. The tables contain both the time at which a bucket is
/// ready and the time at which it is sent.
#[test]
fn a_gate_holds_a_bucket_back() {
    let rows = [(1000, 1000, 0, 100_000), (1000, 1000, 0, 100_000)];
    let cycle = json!({"kind": "ready", "bytes": 1_000_000, "cycle_ps": 1400 * US});
    let schedule = schedule(&json!({"kind": "fifo"}), &cycle, None, 1, true);
    let result = run(&scenario(&rows, 2, &schedule, &collective("ring", Some(1), None)));
    let (ready, start) = (counts(&result.transfers, "ready_us"), counts(&result.transfers, "start_us"));
    // The cycle of 1.4 ms ends at 4.2 ms, after compute, so both layers are sent in one bucket when compute ends.
    assert_eq!(ready.len(), 6);
    assert_eq!(start[0], ready[0]);
    let cycle = json!({"kind": "ready", "bytes": 1_000_000, "cycle_ps": 700 * US});
    let schedule = json!({"fusion": cycle, "barrier": true});
    let result = run(&scenario(&rows, 2, &schedule, &collective("ring", Some(1), None)));
    let (ready, start) = (counts(&result.transfers, "ready_us"), counts(&result.transfers, "start_us"));
    // The cycle of 0.7 ms ends at 3.5 ms, 0.5 ms after the first update.
    assert_eq!(ready.len(), 12);
    assert_eq!(start[0] - ready[0], 500 * US);
    assert_eq!(start[1], ready[1]);
    assert_eq!(Bytes(counts(&result.transfers, "bytes")[0]), Bytes(100_000));
}

/// If workers differ, a bucket is released when the slowest worker has reached the end of the cycle. Here this is 1.5
/// ms after the update, in the middle of an op of 3 ms.
#[test]
fn the_slowest_worker_opens_the_gate() {
    let rows = [(1000, 1000, 0, 100_000), (1000, 1000, 0, 100_000)];
    let cycle = json!({"kind": "ready", "bytes": 1_000_000, "cycle_ps": 700 * US});
    let schedule = schedule(&json!({"kind": "fifo"}), &cycle, None, 1, true);
    let mut spec = scenario(&rows, 3, &schedule, &collective("ring", Some(1), None));
    spec.jobs[0].compute = serde_json::from_value(json!({
        "straggler": {"worker": 1, "factor_ppm": 3_000_000, "probability_ppm": 1_000_000}
    }))
    .unwrap();
    let result = run(&spec);
    let (ready, start) = (counts(&result.transfers, "ready_us"), counts(&result.transfers, "start_us"));
    assert_eq!(start[0] - ready[0], 3 * 500 * US);
}
