//! All-reduce training of op graphs. A chain of ops is compared with a table of layers, and workers with one compute
//! order are compared with the simulation of one channel. Invariants are checked for any orders.
#![allow(missing_docs)]

mod star;
mod tables;

use gradtide_net::{Seed, Time};
use gradtide_train::caramel::timeline;
use gradtide_train::engine::{self, Idle};
use gradtide_train::fabric::Fabric;
use gradtide_train::job::CollectiveJob;
use gradtide_train::result::RunResult;
use gradtide_train::spec::{FusionSpec, Spec};
use proptest::prelude::*;
use serde_json::{Value, json};
use star::star;
use tables::column;

const US: u64 = 1_000_000;
const ORDERS: [&str; 3] = ["listed", "random", "caramel"];

/// An op of a test graph: the bytes of a receive op, or the time of a compute op in microseconds; its inputs, and the
/// parameters that it updates.
#[derive(Clone, Debug)]
struct Row {
    bytes: Option<u64>,
    time: u64,
    inputs: Vec<u32>,
    updates: Vec<u32>,
}

fn comp(time: u64, inputs: Vec<u32>, updates: Vec<u32>) -> Row {
    Row { bytes: None, time, inputs, updates }
}

/// Draws models. Each parameter has a forward op, with random edges between them, and the loss op needs all forward
/// ops. Each parameter also has a gradient op, which needs the loss op and any earlier gradient op, and updates the
/// parameter. With `early`, it needs its own forward op instead of the loss op.
fn models(early: bool) -> impl Strategy<Value = Vec<Row>> {
    let sizes = prop::collection::vec(1..1_000_000_u64, 1..8);
    let draws = prop::collection::vec((1..400_u64, any::<prop::sample::Index>(), any::<prop::sample::Index>()), 16);
    (sizes, draws).prop_map(move |(sizes, draws)| {
        let count = sizes.len() as u32;
        let recv = |bytes| Row { bytes: Some(bytes), time: 0, inputs: vec![], updates: vec![] };
        let mut rows: Vec<Row> = sizes.into_iter().map(recv).collect();
        for parameter in 0..count {
            let (time, draw, _) = draws[parameter as usize];
            let before = count + draw.index(parameter as usize + 1) as u32;
            let inputs = [parameter].into_iter().chain((before < count + parameter).then_some(before)).collect();
            rows.push(comp(time, inputs, vec![]));
        }
        rows.push(comp(3, (count..2 * count).collect(), vec![]));
        let loss = rows.len() as u32 - 1;
        for parameter in 0..count {
            let (_, one, other) = draws[8 + parameter as usize];
            let forward = if early { count + parameter } else { loss };
            let mut inputs = vec![forward, loss + one.index(parameter as usize + 1) as u32];
            if early && inputs[1] == loss {
                inputs.pop();
            }
            inputs.dedup();
            rows.push(comp(1 + other.index(500) as u64, inputs, vec![parameter]));
        }
        let first = loss + 1;
        rows.push(comp(1, (first..first + count).chain([loss]).collect(), vec![]));
        rows
    })
}

/// Returns the ops of a chain of layers (forward time, backward time, bytes).
fn chain(layers: &[(u64, u64, u64)]) -> Vec<Row> {
    let recv = |&(_, _, bytes): &(u64, u64, u64)| Row { bytes: Some(bytes), time: 0, inputs: vec![], updates: vec![] };
    let mut rows: Vec<Row> = layers.iter().map(recv).collect();
    for (layer, &(forward, ..)) in (0..).zip(layers) {
        let before = (layer > 0).then(|| rows.len() as u32 - 1);
        rows.push(comp(forward, [layer].into_iter().chain(before).collect(), vec![]));
    }
    for (layer, &(_, backward, _)) in (0..layers.len() as u32).zip(layers).rev() {
        rows.push(comp(backward, vec![rows.len() as u32 - 1], vec![layer]));
    }
    rows
}

fn graph(rows: &[Row], order: &str) -> Value {
    let op = |(id, row): (u64, &Row)| {
        json!({"id": id, "name": format!("op{id}"), "inputs": row.inputs, "receives_bytes": row.bytes,
               "time_ps": row.time * US, "updates": row.updates})
    };
    let ops: Vec<Value> = (0..).zip(rows).map(op).collect();
    json!({"order": order, "graph": {"target": ops.len() - 1, "ops": ops}})
}

fn layer(name: String, forward: u64, backward: u64, bytes: u64) -> Value {
    json!({"name": name, "forward_ps": forward * US, "backward_ps": backward * US, "parameter_bytes": bytes})
}

fn spec(layers: &[Value], ops: &Value, workers: u32, engine: &str, schedule: &Value) -> Spec {
    let hosts: Vec<u32> = (0..workers).collect();
    serde_json::from_value(json!({
        "jobs": [{
            "name": "train", "layers": layers, "hosts": hosts, "iterations": 6, "ops": ops, "schedule": schedule
        }],
        "cluster": star(workers, 10_000_000_000, 10 * US),
        "run": {"engine": engine, "seed": 1}
    }))
    .unwrap()
}

fn of_graph(rows: &[Row], order: &str, workers: u32, engine: &str, schedule: &Value) -> Spec {
    let recvs = rows.iter().enumerate().filter_map(|(id, row)| Some((id, row.bytes?)));
    let layers: Vec<Value> = recvs.map(|(id, bytes)| layer(format!("op{id}"), 0, 0, bytes)).collect();
    spec(&layers, &graph(rows, order), workers, engine, schedule)
}

fn schedules(parameters: usize) -> Vec<Value> {
    let ranks: Vec<usize> = (0..parameters).map(|parameter| (parameter * 7 + 3) % parameters).collect();
    let plain = ["fifo", "priority", "tic", "tac", "caramel", "edf", "optimal", "random"];
    let fusions = [
        json!({"kind": "cap", "bytes": 0}),
        json!({"kind": "cap", "bytes": 500_000}),
        json!({"kind": "reach", "first_bytes": 100_000, "bytes": 400_000}),
        json!({"kind": "ready", "bytes": 500_000, "cycle_ps": 300 * US}),
        json!({"kind": "adaptive"}),
    ];
    let orders = plain.map(|kind| json!({"kind": kind})).into_iter().chain([json!({"kind": "file", "ranks": ranks})]);
    let each = |order: Value| fusions.clone().map(|fusion| json!({"order": order, "fusion": fusion}));
    orders.flat_map(each).collect()
}

fn with_barrier(schedule: &Value, barrier: bool) -> Value {
    let mut schedule = schedule.clone();
    schedule["barrier"] = barrier.into();
    schedule
}

fn run(spec: &Spec) -> RunResult {
    gradtide_train::run(spec, &mut |_| true).unwrap()
}

fn plan(spec: &Spec) -> (CollectiveJob, Idle) {
    let fabric = Fabric::new(&spec.cluster).unwrap();
    let mut asking = spec.clone();
    asking.jobs[0].schedule.fusion = FusionSpec::Adaptive;
    let mut idle = Idle::new(&asking, &fabric).unwrap();
    let job = CollectiveJob::plan(
        &spec.jobs[0],
        Seed(spec.run.seed),
        engine::mode(spec, &spec.jobs[0]).unwrap(),
        &mut |collective, bytes| idle.time(0, collective, bytes),
    );
    (job.unwrap(), idle)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// A chain has only one order, so the workers of an op graph take as long as the single worker that represents all
    /// workers of a layered job, to the picosecond.
    #[test]
    fn a_chain_is_its_layers(
        layers in prop::collection::vec((1..600_u64, 1..600_u64, 1..1_000_000_u64), 1..7), workers in 2..4_u32,
        barrier in any::<bool>(),
    ) {
        let rows = chain(&layers);
        let named = |(index, &(forward, backward, bytes)): (usize, &(u64, u64, u64))| {
            layer(format!("op{index}"), forward, backward, bytes)
        };
        let table: Vec<Value> = layers.iter().enumerate().map(named).collect();
        for schedule in schedules(layers.len()) {
            let schedule = with_barrier(&schedule, barrier);
            let expected = run(&spec(&table, &Value::Null, workers, "fluid", &schedule));
            for order in ORDERS {
                let found = run(&of_graph(&rows, order, workers, "fluid", &schedule));
                for name in ["iteration", "bucket", "bytes", "ready_us", "start_us", "end_us"] {
                    let (found, expected) = (column(&found.transfers, name), column(&expected.transfers, name));
                    prop_assert_eq!(found, expected, "{} of {} with {}", name, order, schedule);
                }
                let (found, expected) = (&found.summary.jobs[0], &expected.summary.jobs[0]);
                prop_assert_eq!(&found.iteration_time_ps, &expected.iteration_time_ps, "{} with {}", order, schedule);
                prop_assert_eq!(found.lower_bound_ps, expected.lower_bound_ps);
            }
        }
    }

    /// Workers with one compute order behave like the simulation of one channel, even if updates precede reads.
    #[test]
    fn one_order_is_one_channel(
        rows in any::<bool>().prop_flat_map(models), workers in 2..4_u32, barrier in any::<bool>(),
        order in prop::sample::select(vec!["listed", "caramel"]),
    ) {
        let parameters = rows.iter().filter(|row| row.bytes.is_some()).count();
        for schedule in schedules(parameters) {
            if schedule["order"]["kind"] == "random" {
                continue;
            }
            let spec = of_graph(&rows, order, workers, "fluid", &with_barrier(&schedule, barrier));
            let (mut job, mut idle) = plan(&spec);
            let collective = job.gradients().unwrap().collective.clone();
            let plan = job.on_one_channel(&mut |bytes| idle.time(0, &collective, bytes));
            let timeline = timeline::run(&job.gradients().unwrap().boundaries, &plan);
            let result = run(&spec);
            let found = result.summary.jobs[0].iteration_time_ps.clone();
            // The engine runs 7 iterations. The simulation runs until its iterations repeat.
            let starts: Vec<u64> = timeline.starts.iter().map(|start| start.ps()).collect();
            let reads_first = job.gradients().unwrap().without_barrier[0].windows.iter().any(|window| window.read == Time::ZERO) || barrier;
            if reads_first {
                // An iteration is measured from the start of its first op, which may have to wait.
                let total = |times: &[u64]| times.iter().sum::<u64>();
                if timeline.starts.len() == timeline.repeats_from + 2 && timeline.repeats_from <= 6 {
                    prop_assert_eq!(found[5], timeline.iteration_time().ps(), "{} with {}: {:?}", order, schedule, starts);
                }
                prop_assert!(total(&found) >= 6 * job.gradients().unwrap().boundaries.compute.ps());
            } else {
                let expected: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).skip(1).take(6).collect();
                prop_assert_eq!(&found[..expected.len()], &expected[..], "{} with {}", order, schedule);
            }
            // Iterations may be shorter while the channel's backlog still grows.
            prop_assert!(result.summary.jobs[0].lower_bound_ps <= timeline.iteration_time().ps() as f64 + 1.0);
        }
    }

    /// With random orders a run ends and is reproducible, every parameter is sent once, and a single worker, which
    /// sends nothing, never waits.
    #[test]
    fn any_orders_train_the_model(
        rows in any::<bool>().prop_flat_map(models), workers in 1..5_u32, barrier in any::<bool>(), seed in 0..99_u64,
    ) {
        let parameters: Vec<u32> = (0..).zip(&rows).filter(|(_, row)| row.bytes.is_some()).map(|(id, _)| id).collect();
        let bytes: u64 = rows.iter().filter_map(|row| row.bytes).sum();
        let compute: u64 = rows.iter().map(|row| row.time * US).sum();
        for schedule in schedules(parameters.len()) {
            let mut spec = of_graph(&rows, "random", workers, "fluid", &with_barrier(&schedule, barrier));
            spec.run.seed = seed;
            let result = run(&spec);
            prop_assert!(result.summary.jobs[0].iteration_time_ps.iter().sum::<u64>() >= 6 * compute);
            if workers == 1 {
                prop_assert_eq!(&result.summary.jobs[0].iteration_time_ps, &vec![compute; 6]);
                continue;
            }
            let (job, _) = plan(&spec);
            let mut sent: Vec<u32> = job.gradients().unwrap().buckets.iter().flat_map(|bucket| bucket.layers.clone()).collect();
            sent.sort_unstable();
            prop_assert_eq!(&sent, &(0..parameters.len() as u32).collect::<Vec<u32>>());
            prop_assert_eq!(job.gradients().unwrap().buckets.iter().map(|bucket| bucket.bytes.0).sum::<u64>(), bytes);
            let again = run(&spec);
            prop_assert_eq!(result.transfers.to_csv(), again.transfers.to_csv());
        }
    }

    /// No order has an earlier first update than Caramel's, which begins with the cheapest update. The joint window of
    /// all workers is no wider than the window of any worker.
    #[test]
    fn no_order_updates_earlier(rows in any::<bool>().prop_flat_map(models), workers in 2..5_u32, seed in 0..99_u64) {
        let of = |order| {
            let mut spec = of_graph(&rows, order, workers, "fluid", &json!({}));
            spec.run.seed = seed;
            plan(&spec).0
        };
        let (random, caramel) = (of("random"), of("caramel"));
        prop_assert_eq!(random.gradients().unwrap().without_barrier.len(), workers as usize);
        prop_assert_eq!(caramel.gradients().unwrap().without_barrier.len(), 1);
        let first = |job: &CollectiveJob| job.gradients().unwrap().boundaries.windows.iter().map(|window| window.update).min();
        prop_assert!(first(&caramel) <= first(&random));
        for program in &random.gradients().unwrap().without_barrier {
            prop_assert_eq!(program.compute, random.gradients().unwrap().boundaries.compute);
            for (joint, own) in random.gradients().unwrap().boundaries.windows.iter().zip(&program.windows) {
                prop_assert!(joint.update >= own.update && joint.read <= own.read);
            }
        }
    }
}

/// Two branches, of 1000 and 2000 us, each read and update one parameter. Caramel's order updates the parameter of the
/// cheap branch at 1000 us, so its transfer overlaps with the other branch. If two workers compute in different orders,
/// both joint updates are at 3000 us.
#[test]
fn different_orders_narrow_the_boundaries() {
    let recv = |bytes| Row { bytes: Some(bytes), time: 0, inputs: vec![], updates: vec![] };
    let rows = [
        recv(1_000_000),
        recv(1_000_000),
        comp(1000, vec![0], vec![0]),
        comp(2000, vec![1], vec![1]),
        comp(1, vec![2, 3], vec![]),
    ];
    let updates = |order: &str, seed| {
        let mut spec = of_graph(&rows, order, 2, "fluid", &json!({}));
        spec.run.seed = seed;
        let mut updates: Vec<u64> =
            plan(&spec).0.gradients().unwrap().boundaries.windows.iter().map(|it| it.update.ps() / US).collect();
        updates.sort_unstable();
        updates
    };
    assert_eq!(updates("caramel", 0), [1000, 3000]);
    let drawn: Vec<Vec<u64>> = (0..20).map(|seed| updates("random", seed)).collect();
    // In a draw, both workers start with the cheap branch, both with the expensive one, or each with a different one.
    assert!(
        drawn.contains(&vec![1000, 3000]) && drawn.contains(&vec![2000, 3000]) && drawn.contains(&vec![3000, 3000])
    );
}

/// A parameter that is updated but not read would be sent without any op waiting for it, so the core refuses it.
#[test]
fn what_nobody_reads_is_refused() {
    let mut rows = chain(&[(1, 1, 100), (1, 1, 100)]);
    rows[3].inputs.retain(|&input| input != 1);
    let refused = gradtide_train::run(&of_graph(&rows, "listed", 2, "fluid", &json!({})), &mut |_| true).unwrap_err();
    assert!(refused.to_string().contains("`op1`"), "{refused}");
}
