//! Parameter servers, op by op, against recurrences, closed forms and a literal simulation.
#![allow(missing_docs)]

mod star;
mod tables;

use gradtide_table::Table;
use gradtide_train::opdag::{Kind, Op, OpDag};
use gradtide_train::order::makespan::Scorer;
use gradtide_train::order::needs::Needs;
use gradtide_train::result::RunResult;
use gradtide_train::run;
use proptest::prelude::*;
use serde_json::{Value, json};
use star::star;
use tables::column;

/// At 8 Gbit/s a byte takes 1 ns, so all times of the tests are whole picoseconds.
const RATE_BPS: u64 = 8_000_000_000;
const PS_PER_BYTE: u64 = 1000;

/// An op of a test graph: the bytes of a receive op, or the time of a compute op; its inputs, and the parameters that
/// it updates.
#[derive(Clone, Debug)]
struct Row {
    bytes: Option<u64>,
    time_ps: u64,
    inputs: Vec<u32>,
    updates: Vec<u32>,
}

/// Draws graphs in topological order. The last op needs every op that no other op needs, so every receive op is needed.
fn graphs(most_ops: usize) -> impl Strategy<Value = Vec<Row>> {
    let op = (0..3_u8, 1..50_000_u64, prop::collection::vec(any::<prop::sample::Index>(), 1..4));
    prop::collection::vec(op, 2..most_ops).prop_map(|drawn| {
        let mut rows = vec![Row { bytes: Some(700), time_ps: 0, inputs: vec![], updates: vec![] }];
        for (kind, size, draws) in drawn {
            let inputs: std::collections::BTreeSet<u32> = draws.iter().map(|d| d.index(rows.len()) as u32).collect();
            rows.push(match kind {
                0 => Row { bytes: Some(size), time_ps: 0, inputs: vec![], updates: vec![] },
                _ => Row { bytes: None, time_ps: size * 700, inputs: inputs.into_iter().collect(), updates: vec![] },
            });
        }
        let used: std::collections::BTreeSet<u32> = rows.iter().flat_map(|row| row.inputs.clone()).collect();
        let inputs = (0..rows.len() as u32).filter(|op| !used.contains(op)).collect();
        rows.push(Row { bytes: None, time_ps: 1000, inputs, updates: vec![] });
        rows
    })
}

/// Appends a backward pass: a chain of ops after the last op, each of which updates one parameter.
fn trained(mut rows: Vec<Row>) -> Vec<Row> {
    let recvs: Vec<u32> = (0..rows.len() as u32).filter(|&op| rows[op as usize].bytes.is_some()).collect();
    for &recv in recvs.iter().rev() {
        let before = rows.len() as u32 - 1;
        let time_ps = 1000 * (1 + u64::from(recv) % 7);
        rows.push(Row { bytes: None, time_ps, inputs: vec![before], updates: vec![recv] });
    }
    rows
}

fn spec(rows: &[Row], change: impl FnOnce(&mut Value)) -> Value {
    let ops: Vec<Value> = (0..)
        .zip(rows)
        .map(|(id, row): (u64, _)| {
            json!({"id": id, "name": format!("op{id}"), "inputs": row.inputs, "receives_bytes": row.bytes,
                   "time_ps": row.time_ps, "updates": row.updates})
        })
        .collect();
    let is_trained = rows.iter().any(|row| !row.updates.is_empty());
    let mut spec = json!({
        "jobs": [{
            "name": "train", "layers": [], "hosts": [0, 1], "iterations": 2,
            "collective": {"algorithm": {"kind": "ps", "servers": 1, "placement": "separate"}},
            "schedule": {"order": {"kind": "priority"}, "barrier": true},
            "servers": {"count": 1, "placement": "separate", "shards": "bytes", "disorder_ppm": 0,
                        "sync": {"kind": "sync"}, "task": if is_trained { "train" } else { "inference" },
                        "graph": {"ops": ops, "target": rows.len().saturating_sub(1)}}
        }],
        "cluster": star(2, RATE_BPS, 0),
        "run": {"seed": 1}
    });
    change(&mut spec);
    spec
}

fn hosts(spec: &mut Value, workers: u64, servers: u64) {
    spec["cluster"]["topology"]["hosts"] = json!(workers + servers);
    spec["jobs"][0]["hosts"] = (0..workers + servers).collect();
    spec["jobs"][0]["servers"]["count"] = json!(servers);
    spec["jobs"][0]["collective"]["algorithm"]["servers"] = json!(servers);
}

fn ran(spec: &Value) -> RunResult {
    run(&serde_json::from_value(spec.clone()).expect("a spec"), &mut |_| true).expect("a run")
}

fn times(result: &RunResult) -> &[u64] {
    &result.summary.jobs[0].iteration_time_ps
}

/// Sets the ranks of the parameters: the rank of a parameter is its position in `order`.
fn ranked(spec: &mut Value, order: &[usize]) {
    let mut ranks = vec![0; order.len()];
    order.iter().enumerate().for_each(|(rank, &parameter)| ranks[parameter] = rank);
    spec["jobs"][0]["schedule"]["order"] = json!({"kind": "file", "ranks": ranks});
}

/// Simulates an iteration of one worker and returns its end. Pulls leave back to back in `order`, and each arrives
/// `delay_ps` after its last byte has left. Ready ops run one at a time. Pushes leave back to back as they become
/// ready. A transfer takes `share` times as long as alone on the link.
fn by_hand(rows: &[Row], order: &[usize], share: u64, delay_ps: u64) -> u64 {
    let recvs: Vec<usize> = (0..rows.len()).filter(|&op| rows[op].bytes.is_some()).collect();
    let sending = |op: usize| rows[op].bytes.unwrap_or(0) * PS_PER_BYTE * share;
    let mut done: Vec<Option<u64>> = vec![None; rows.len()];
    let mut sent = 0;
    for &parameter in order {
        sent += sending(recvs[parameter]);
        done[recvs[parameter]] = Some(sent + delay_ps);
    }
    let (mut now, mut pushed) = (0, 0);
    loop {
        let ready_at = |op: usize| -> Option<u64> {
            rows[op].inputs.iter().map(|&input| done[input as usize]).try_fold(0, |at, one| Some(at.max(one?)))
        };
        let open = (0..rows.len()).filter(|&op| done[op].is_none());
        let Some((at, op)) = open.filter_map(|op| Some((ready_at(op)?.max(now), op))).min() else { break };
        now = at + rows[op].time_ps;
        done[op] = Some(now);
        for &recv in &rows[op].updates {
            pushed = now.max(pushed) + sending(recv as usize);
        }
    }
    now.max(if pushed > 0 { pushed + delay_ps } else { 0 })
}

fn permutation(rows: &[Row], draws: &[usize]) -> Vec<usize> {
    let count = rows.iter().filter(|row| row.bytes.is_some()).count();
    let mut left: Vec<usize> = (0..count).collect();
    (0..count).map(|place| left.remove(draws[place % draws.len()] % left.len())).collect()
}

/// Places the job on `nodes` machines with `gpus` GPUs and `nics` network cards each. GPUs of one machine are connected
/// at `scale_up_bps`.
fn on_nodes(spec: &mut Value, nodes: u64, gpus: u64, nics: u64, scale_up_bps: u64) {
    spec["cluster"]["topology"]["hosts"] = json!(nodes * nics);
    spec["cluster"]["node"] = json!({"gpus": gpus, "nics": nics,
        "scale_up": {"rate_bps": scale_up_bps}});
}

/// A pull of 700 B, a forward op of 1 us, a backward op of 1 ns and the push of the gradient.
fn pulled_and_pushed() -> Vec<Row> {
    trained(vec![
        Row { bytes: Some(700), time_ps: 0, inputs: vec![], updates: vec![] },
        Row { bytes: None, time_ps: 1_000_000, inputs: vec![0], updates: vec![] },
    ])
}

#[test]
fn between_gpus_of_a_machine_the_bound_is_that_of_the_scale_up_switch() {
    // One worker and one server, on the same machine or on two. The links within a machine are ten times as fast as
    // those between machines, or ten times as slow.
    for (nodes, gpus, scale_up_bps, byte_ps) in [
        (1, 2, 10 * RATE_BPS, PS_PER_BYTE / 10),
        (1, 2, RATE_BPS / 10, PS_PER_BYTE * 10),
        (2, 1, 10 * RATE_BPS, PS_PER_BYTE),
        (2, 1, RATE_BPS / 10, PS_PER_BYTE),
    ] {
        let result = ran(&spec(&pulled_and_pushed(), |spec| on_nodes(spec, nodes, gpus, 1, scale_up_bps)));
        let expected = 2 * 700 * byte_ps + 1_000_000 + 1000;
        assert_eq!(times(&result), [expected; 2], "{nodes} machines, {scale_up_bps} bit/s");
        assert_eq!(result.summary.jobs[0].lower_bound_ps, expected as f64);
    }
}

#[test]
fn a_card_carries_what_all_gpus_behind_it_send() {
    // Of four GPUs, the two workers are on the first machine and the two servers on the second. Each worker pulls 2 x
    // 10 MB, and all pulls leave through the one card of the second machine.
    let rows = trained(vec![
        Row { bytes: Some(10_000_000), time_ps: 0, inputs: vec![], updates: vec![] },
        Row { bytes: Some(10_000_000), time_ps: 0, inputs: vec![], updates: vec![] },
        Row { bytes: None, time_ps: 1, inputs: vec![0, 1], updates: vec![] },
    ]);
    let result = ran(&spec(&rows, |spec| {
        hosts(spec, 2, 2);
        on_nodes(spec, 2, 2, 1, 100 * RATE_BPS);
    }));
    let pulls = 2 * 2 * 10_000_000 * PS_PER_BYTE;
    assert_eq!(result.summary.jobs[0].lower_bound_ps, pulls as f64);
    assert!(times(&result)[0] > pulls, "pushes come after pulls");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// The recurrence of `order::makespan` has no latency, so the network of this test has none either.
    #[test]
    fn one_worker_and_one_server_take_the_makespan_of_the_order(
        rows in graphs(40), draws in prop::collection::vec(0..1000_usize, 8)
    ) {
        let order = permutation(&rows, &draws);
        let op = |(id, row): (u64, &Row)| Op {
            id,
            kind: if row.bytes.is_some() { Kind::Recv } else { Kind::Comp },
            inputs: row.inputs.clone(),
            time_ticks: row.bytes.map_or(row.time_ps, |bytes| bytes * PS_PER_BYTE),
            param_only: false,
        };
        let dag = OpDag { ops: (0..).zip(&rows).map(op).collect(), target: rows.len() as u32 - 1 };
        let needs = Needs::new(&dag).unwrap();
        let recvs: Vec<u32> = order.iter().map(|&parameter| parameter as u32).collect();
        let makespan = Scorer::new(&needs).makespan(&recvs);
        let result = ran(&spec(&rows, |spec| ranked(spec, &order)));
        prop_assert_eq!(times(&result), &[makespan; 2][..]);
        let bound = result.summary.jobs[0].lower_bound_ps;
        prop_assert_eq!(bound, needs.lower_bound_ticks() as f64);
    }

    /// A transfer arrives one delay after its last byte has left, while the connection already sends the next transfer.
    /// W workers with the same order share the server's link in lock step, so each transfer takes W times as long as
    /// alone.
    #[test]
    fn workers_that_share_a_link_take_as_long_as_by_hand(
        rows in graphs(25), draws in prop::collection::vec(0..1000_usize, 8), workers in 1..5_u64,
        delay_ps in prop::sample::select(vec![0_u64, 10_000_000]), is_trained in any::<bool>(),
    ) {
        let order = permutation(&rows, &draws);
        let rows = if is_trained { trained(rows) } else { rows };
        let result = ran(&spec(&rows, |spec| {
            ranked(spec, &order);
            hosts(spec, workers, 1);
            spec["cluster"]["link"]["delay_ps"] = json!(delay_ps / 2);
        }));
        let expected = by_hand(&rows, &order, workers, delay_ps);
        // At 1/W of the link's rate a byte does not take a whole number of femtoseconds. Each completion is rounded by
        // at most 1 fs and reported up to 1 ps late.
        let most = 2 + rows.len() as u64 / 500;
        for &time in times(&result) {
            prop_assert!(time.abs_diff(expected) <= most, "{time} {expected}");
        }
        prop_assert!(result.summary.jobs[0].lower_bound_ps <= times(&result)[0] as f64 + 2.0);
    }

    /// Servers do not wait for each other's counters: every run ends, and each channel sends its pulls by ascending
    /// rank.
    #[test]
    fn every_order_comes_to_its_end_on_several_servers(
        rows in graphs(40), workers in 1..4_u64, servers in 1..5_u64, shards in prop::sample::select(vec!["bytes", "round_robin"]),
        kind in prop::sample::select(vec!["random", "priority", "tic", "tac", "tac_folded", "optimal"]),
    ) {
        let result = ran(&spec(&trained(rows.clone()), |spec| {
            hosts(spec, workers, servers);
            spec["jobs"][0]["schedule"]["order"] = json!({"kind": kind});
            spec["jobs"][0]["servers"]["shards"] = json!(shards);
        }));
        let table = &result.transfers;
        prop_assert!(!table.is_ragged());
        let sizes: u64 = rows.iter().filter_map(|row| row.bytes).sum();
        prop_assert_eq!(inversions(table), 0);
        // In 2 iterations each worker pulls and pushes every parameter twice. The servers' links carry exactly the
        // pulled bytes, the workers' links the pushed bytes.
        let of_links = column(&result.links, "bytes");
        let (from_workers, from_servers) = of_links[..(workers + servers) as usize].split_at(workers as usize);
        prop_assert_eq!(from_servers.iter().sum::<i64>(), (2 * workers * sizes) as i64);
        prop_assert_eq!(from_workers.iter().sum::<i64>(), (2 * workers * sizes) as i64);
        let job = &result.summary.jobs[0];
        prop_assert!(job.lower_bound_ps <= times(&result)[0] as f64 + 2.0);
        let mean = times(&result).iter().sum::<u64>() as f64 / 2.0;
        prop_assert!((job.compute_ps + job.exposed_ps + job.barrier_ps - mean).abs() < 1.0);
    }

    /// The mean iteration time is at least the lower bound, on machines of any kind, with synchronous and asynchronous
    /// workers.
    #[test]
    fn no_iteration_on_nodes_is_shorter_than_the_bound(
        rows in graphs(25), workers in 1..6_u64, servers in 1..4_u64,
        (gpus, nics) in prop::sample::select(vec![(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (8, 2), (8, 8)]),
        scale_up in prop::sample::select(vec![RATE_BPS / 100, RATE_BPS, 20 * RATE_BPS]),
        sync in prop::sample::select(vec![json!({"kind": "sync"}), json!({"kind": "async"})]),
        kind in prop::sample::select(vec!["random", "tac", "optimal"]), is_trained in any::<bool>(),
        noise_ppm in prop::sample::select(vec![0, 300_000]), receive_bps in prop::option::of(1_000_000..RATE_BPS),
    ) {
        let rows = if is_trained { trained(rows) } else { rows };
        let result = ran(&spec(&rows, |spec| {
            hosts(spec, workers, servers);
            on_nodes(spec, (workers + servers).div_ceil(gpus), gpus, nics, scale_up);
            spec["cluster"]["host"] = json!({"stages": {"receive_bps": receive_bps}});
            spec["jobs"][0]["servers"]["sync"] = sync;
            spec["jobs"][0]["schedule"]["order"] = json!({"kind": kind});
            spec["jobs"][0]["compute"]["noise_ppm"] = json!(noise_ppm);
        }));
        let mean = times(&result).iter().sum::<u64>() as f64 / times(&result).len() as f64;
        let bound = result.summary.jobs[0].lower_bound_ps;
        prop_assert!(bound <= mean + 2.0 + rows.len() as f64 / 2.0, "a bound of {bound}, iterations of {mean}");
    }
}

/// Returns the number of pulls that started on their channel right after a pull with a larger rank.
fn inversions(table: &Table) -> usize {
    let names = ["iteration", "worker", "server", "start_us", "rank", "direction"];
    let columns: Vec<Vec<i64>> = names.iter().map(|name| column(table, name)).collect();
    let mut rows: Vec<[i64; 5]> = (0..table.row_count())
        .filter(|&row| columns[5][row] == 0)
        .map(|row| std::array::from_fn(|column| columns[column][row]))
        .collect();
    rows.sort_unstable();
    rows.windows(2).filter(|pair| pair[0][..3] == pair[1][..3] && pair[0][4] > pair[1][4]).count()
}

/// Returns a spec with a chain of layers (forward time in ps, backward time in ps, bytes) instead of an op graph.
fn chain(layers: &[(u64, u64, u64)], change: impl FnOnce(&mut Value)) -> Value {
    spec(&[], |spec| {
        spec["jobs"][0]["layers"] = layers
            .iter()
            .enumerate()
            .map(|(index, &(forward, backward, bytes))| {
                json!({"name": format!("layer{index}"), "forward_ps": forward, "backward_ps": backward, "update_ps": 0,
                       "parameter_bytes": bytes})
            })
            .collect();
        spec["jobs"][0]["servers"]["graph"] = Value::Null;
        spec["jobs"][0]["servers"]["task"] = json!("train");
        change(spec);
    })
}

#[test]
fn a_chain_takes_its_closed_form() {
    // Layers 0, 1 and 2 take 3, 2 and 4 us forward and 6, 4 and 8 us backward; their pulls and pushes take 5, 1 and 10
    // us.
    //
    // Pulls in the order 0, 1, 2 end at 5, 6 and 16 us. Forward ops wait for them and end at 8, 10 and 20 us. Backward
    // ops of layers 2, 1 and 0 end at 28, 32 and 38 us, and their pushes at 38, 39 and 44 us.
    let us = |value: u64| value * 1_000_000;
    let layers = [(us(3), us(6), 5000), (us(2), us(4), 1000), (us(4), us(8), 10_000)];
    assert_eq!(times(&ran(&chain(&layers, |_| ()))), [us(44); 2]);
    // With pulls in the order 2, 1, 0, all parameters have arrived at 16 us. The forward pass ends at 25 us, the
    // backward ops at 33, 37 and 43 us, and the pushes at 43, 44 and 49 us.
    assert_eq!(times(&ran(&chain(&layers, |spec| ranked(spec, &[2, 1, 0])))), [us(49); 2]);
    // Inference ends with the forward pass.
    let forward = ran(&chain(&layers, |spec| spec["jobs"][0]["servers"]["task"] = json!("inference")));
    assert_eq!(times(&forward), [us(20); 2]);
    // The server adds one gradient at a time, at 2 ns per byte. The pushes of layers 2, 1 and 0 arrive at 38, 39 and 44
    // us. Layer 2 (20 us) is added until 58 us, layer 1 (2 us) until 60 us, and layer 0 (10 us, then 1 us to apply the
    // sum) until 71 us.
    let adding = ran(&chain(&layers, |spec| {
        spec["jobs"][0]["collective"]["reduction_rate_bps"] = json!(RATE_BPS / 2);
        spec["jobs"][0]["layers"][0]["update_ps"] = json!(us(1));
    }));
    assert_eq!(times(&adding), [us(71); 2]);
    // Each transfer is preceded by 2 us of overhead. Pulls end at 7, 10 and 22 us, forward ops at 10, 12 and 26 us,
    // backward ops of layers 2, 1 and 0 at 34, 38 and 44 us, their pushes at 46, 49 and 56 us.
    let held = ran(&chain(&layers, |spec| spec["jobs"][0]["schedule"]["overhead_ps"] = json!(us(2))));
    assert_eq!(times(&held), [us(56); 2]);
    let job = &ran(&chain(&layers, |_| ())).summary.jobs[0];
    assert_eq!((job.compute_ps, job.exposed_ps, job.barrier_ps), (27e6, 11e6, 6e6));
    // Pulls are in progress from 0 to 16 us, pushes from 28 to 44 us.
    assert_eq!(job.comm_ps, 32e6);
    // Layers 0, 1 and 2 are needed at 0, 8 and 10 us; their pulls are ready at 0 and end at 5, 6 and 16 us. Slack
    // (needed - ready) and margin (needed - arrived) are given as minimum, median and maximum.
    assert_eq!(job.slack_ps.unwrap(), [0.0, 8e6, 10e6]);
    assert_eq!(job.margin_ps.unwrap(), [-6e6, -5e6, 2e6]);
}

#[test]
fn without_bytes_to_speak_of_all_orders_tie() {
    let layers: Vec<_> = (1..20).map(|layer| (layer * 1_000_000, layer * 2_000_000, 1)).collect();
    let compute: u64 = layers.iter().map(|(forward, backward, _)| forward + backward).sum();
    for order in ["random", "tic", "tac", "tac_folded", "optimal"] {
        let result = ran(&chain(&layers, |spec| {
            hosts(spec, 4, 2);
            spec["jobs"][0]["schedule"]["order"] = json!({"kind": order});
        }));
        // 19 pulls of 1 B take at most 76 ns, since four workers share a server's link. So do the 19 pushes after
        // compute.
        assert!(times(&result).iter().all(|&time| (compute..=compute + 2 * 76_000).contains(&time)), "{order}");
    }
}

#[test]
fn disorder_is_none_at_none_and_grows() {
    let layers: Vec<_> = (1..100).map(|layer| (1_000_000, 1_000_000, 100 * layer)).collect();
    let disordered = |ppm: u64| {
        let result = ran(&chain(&layers, |spec| {
            hosts(spec, 2, 3);
            spec["jobs"][0]["iterations"] = json!(20);
            spec["jobs"][0]["servers"]["disorder_ppm"] = json!(ppm);
        }));
        inversions(&result.transfers)
    };
    let seen: Vec<usize> = [0, 5_000, 50_000, 500_000].into_iter().map(disordered).collect();
    // 2 workers make 99 pulls in each of 20 iterations. A swap inverts one or two pairs of neighbouring pulls.
    assert_eq!(seen[0], 0);
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    let swaps = 0.005 * 99.0 * 40.0;
    assert!((0.3 * swaps..3.0 * swaps).contains(&(seen[1] as f64)), "{seen:?}");
}

#[test]
fn random_orders_differ_between_workers_and_iterations_and_follow_the_seed() {
    let layers: Vec<_> = (1..30).map(|layer| (1_000_000, 1_000_000, 1000 * layer)).collect();
    let random = |seed: u64| {
        ran(&chain(&layers, |spec| {
            hosts(spec, 2, 1);
            spec["jobs"][0]["schedule"]["order"] = json!({"kind": "random"});
            spec["run"]["seed"] = json!(seed);
        }))
    };
    let (first, again, other) = (random(1), random(1), random(2));
    assert_eq!(first.transfers, again.transfers);
    assert_ne!(first.transfers, other.transfers);
    let (ranks, directions) = (column(&first.transfers, "rank"), column(&first.transfers, "direction"));
    let pulls: Vec<i64> = ranks.iter().zip(directions).filter(|(_, push)| *push == 0).map(|(&rank, _)| rank).collect();
    let orders: std::collections::BTreeSet<&[i64]> = pulls.chunks(layers.len()).collect();
    assert_eq!(orders.len(), 4);
}

#[test]
fn jobs_of_both_kinds_run_side_by_side_on_both_engines() {
    let layers: Vec<_> = (1..8).map(|layer| (200_000_000, 400_000_000, 100_000 * layer)).collect();
    for engine in ["fluid", "packet"] {
        let mixed = chain(&layers, |spec| {
            hosts(spec, 3, 1);
            spec["run"]["engine"] = json!(engine);
            spec["run"]["timeline_iterations"] = json!(1);
            spec["cluster"]["link"]["delay_ps"] = json!(1_000_000);
            let mut ring = spec["jobs"][0].clone();
            ring["name"] = json!("ring");
            ring["servers"] = Value::Null;
            ring["collective"]["algorithm"] = json!({"kind": "ring"});
            ring["schedule"]["order"] = json!({"kind": "fifo"});
            spec["jobs"] = json!([ring, spec["jobs"][0]]);
        });
        let result = ran(&mixed);
        for table in [&result.iterations, &result.workers, &result.transfers, &result.operations, &result.links] {
            assert!(!table.is_ragged() && table.row_count() > 0);
        }
        let names: Vec<&str> = result.summary.jobs.iter().map(|job| job.name.as_str()).collect();
        assert_eq!(names, ["ring", "train"]);
        let mut alone = mixed.clone();
        alone["jobs"] = json!([mixed["jobs"][1]]);
        let (beside, alone) = (&result.summary.jobs[1], &ran(&alone).summary.jobs[0]);
        assert!(beside.iteration_time_ps[0] > alone.iteration_time_ps[0], "{engine}: neighbours cost time");
    }
}

#[test]
fn packets_take_as_long_as_the_fluid_and_their_headers() {
    // One worker pulls and pushes ten layers of 4 MB. A segment of 1380 B takes 1434 B on the wire. Slow start from 10
    // segments lasts a few round trips of about 8 us, less than 1 % of the 40 ms that 40 MB take.
    let layers = [(1_000_000, 1_000_000, 4_000_000); 10];
    let time = |engine: &str| {
        let result = ran(&chain(&layers, |spec| {
            spec["run"]["engine"] = json!(engine);
            spec["cluster"]["link"]["delay_ps"] = json!(2_000_000);
        }));
        times(&result)[1] as f64
    };
    let ratio = time("packet") / time("fluid");
    assert!((1434.0 / 1380.0..1.01 * 1434.0 / 1380.0).contains(&ratio), "{ratio}");
}

#[test]
fn specs_that_mean_nothing_are_refused() {
    let (recv, comp) = (
        Row { bytes: Some(9), time_ps: 0, inputs: vec![], updates: vec![] },
        Row { bytes: None, time_ps: 5, inputs: vec![0], updates: vec![0] },
    );
    let refused = |rows: &[Row], change: &dyn Fn(&mut Value)| {
        let spec = spec(rows, |spec| change(spec));
        run(&serde_json::from_value(spec).expect("a spec"), &mut |_| true).expect_err("it means nothing").to_string()
    };
    let good = [recv.clone(), comp.clone()];
    assert_eq!(times(&ran(&spec(&good, |_| ()))), [9 * PS_PER_BYTE + 5 + 9 * PS_PER_BYTE; 2]);
    let of_job = |key: &'static str, value: Value| move |spec: &mut Value| spec["jobs"][0][key] = value.clone();
    let servers =
        |key: &'static str, value: Value| move |spec: &mut Value| spec["jobs"][0]["servers"][key] = value.clone();
    let schedule =
        |key: &'static str, value: Value| move |spec: &mut Value| spec["jobs"][0]["schedule"][key] = value.clone();
    type Change = Box<dyn Fn(&mut Value)>;
    let cases: Vec<(Change, &str)> = vec![
        (Box::new(servers("graph", Value::Null)), "nothing takes any time"),
        (Box::new(|spec| spec["jobs"][0]["servers"]["graph"]["target"] = json!(7)), "op 7 does not exist"),
        (Box::new(servers("count", json!(2))), "2 servers of 2 hosts"),
        (Box::new(servers("disorder_ppm", json!(1_000_001))), "a share is at most one"),
        (Box::new(schedule("order", json!({"kind": "fifo"}))), "no first in"),
        (Box::new(schedule("order", json!({"kind": "file", "ranks": [], "in_turn": false}))), "0 of 1 parameters"),
        (Box::new(schedule("chunk_bytes", json!(4))), "sent whole"),
        (Box::new(schedule("credit", json!(2))), "one transfer at a time"),
        (Box::new(schedule("order", json!({"kind": "caramel"}))), "all-reduce"),
        (Box::new(schedule("sync_ps", json!(1))), "no transfer waits"),
        (Box::new(of_job("bands", json!([9]))), "band 9"),
        (Box::new(of_job("bands", json!([]))), "one band"),
        (
            Box::new(|spec| {
                spec["jobs"][0]["compute"]["straggler"] = json!({"worker": 1, "factor_ppm": 2_000_000,
                                                                          "probability_ppm": 5})
            }),
            "none of the workers",
        ),
    ];
    for (change, words) in cases {
        let message = refused(&good, &*change);
        assert!(message.contains(words), "{message}: {words}");
    }
    let twice = [recv.clone(), comp.clone(), Row { inputs: vec![1], ..comp.clone() }];
    assert!(refused(&twice, &|_| ()).contains("id 2 cannot update"));
    let cycle = [recv.clone(), Row { inputs: vec![0, 1], ..comp.clone() }];
    assert!(refused(&cycle, &|_| ()).contains("waits for itself"));
    let empty = [Row { bytes: Some(0), ..recv }, comp];
    assert!(refused(&empty, &|_| ()).contains("receives no bytes"));
}

#[test]
fn a_duration_ends_the_job_and_what_is_under_way_does_not_count() {
    let layers = [(1_000_000_000, 1_000_000_000, 1000); 2];
    let spec = chain(&layers, |spec| {
        spec["jobs"][0]["iterations"] = Value::Null;
        spec["run"]["duration_ps"] = json!(10_000_000_000_u64);
    });
    let result = ran(&spec);
    // An iteration takes 4 ms and a few microseconds, so two are complete after 10 ms.
    assert_eq!(result.summary.jobs[0].iteration_count, 2);
    assert_eq!(result.summary.end_ps, 10_000_000_000);
}
