//! Asynchronous workers: iteration rates against closed forms, the staleness bound as a property, and staleness figures
//! against a recount.
#![allow(missing_docs)]

mod star;
mod tables;

use gradtide_table::Table;
use gradtide_train::result::{Asynchrony, RunResult};
use gradtide_train::run;
use proptest::prelude::*;
use serde_json::{Value, json};
use star::star;
use tables::column;

/// At 8 Gbit/s a byte takes 1 ns.
const RATE_BPS: u64 = 8_000_000_000;
const PS_PER_BYTE: u64 = 1000;

/// Returns a spec of layers (forward time in ps, backward time in ps, bytes) on `workers` and `servers` around one
/// switch.
fn chain(layers: &[(u64, u64, u64)], workers: u64, servers: u64, sync: Value) -> Value {
    let layers: Vec<Value> = (layers.iter().enumerate())
        .map(|(index, &(forward, backward, bytes))| {
            json!({"name": format!("layer{index}"), "forward_ps": forward, "backward_ps": backward,
                   "parameter_bytes": bytes})
        })
        .collect();
    json!({
        "jobs": [{
            "name": "train", "layers": layers, "hosts": Vec::from_iter(0..workers + servers), "iterations": 6,
            "collective": {"algorithm": {"kind": "ps", "servers": servers, "placement": "separate"}},
            "schedule": {"order": {"kind": "priority"}, "barrier": true},
            "servers": {"count": servers, "placement": "separate", "shards": "bytes", "disorder_ppm": 0, "sync": sync,
                        "task": "train"}
        }],
        "cluster": star((workers + servers) as u32, RATE_BPS, 0),
        "run": {"seed": 1}
    })
}

fn sync(bound: Option<u32>) -> Value {
    bound.map_or(json!({"kind": "async"}), |staleness| json!({"kind": "bounded", "staleness": staleness}))
}

fn straggler(worker: Option<u32>, factor_ppm: u64, probability_ppm: u64) -> Value {
    json!({"worker": worker, "factor_ppm": factor_ppm, "probability_ppm": probability_ppm})
}

fn ran(spec: &Value) -> RunResult {
    run(&serde_json::from_value(spec.clone()).expect("a spec"), &mut |_| true).expect("a run")
}

fn figures(result: &RunResult) -> &Asynchrony {
    result.summary.jobs[0].asynchrony.as_ref().expect("workers that are not in step")
}

fn mean_ps(result: &RunResult) -> f64 {
    let times = &result.summary.jobs[0].iteration_time_ps;
    times.iter().sum::<u64>() as f64 / times.len() as f64
}

fn rows<const N: usize>(table: &Table, names: [&str; N]) -> Vec<[i64; N]> {
    let columns = names.map(|name| column(table, name));
    (0..table.row_count()).map(|row| std::array::from_fn(|index| columns[index][row])).collect()
}

/// Returns the minimum and the maximum iteration time of a worker: `compute_ps`, and the pull and push of all bytes at
/// the full link rate or at 1/`workers` of it.
fn span(compute_ps: f64, bytes: u64, workers: u64) -> [f64; 2] {
    [1, workers].map(|share| compute_ps + (2 * bytes * PS_PER_BYTE * share) as f64)
}

#[test]
fn equal_workers_are_as_fast_as_one_and_together_n_times() {
    // An iteration has 3 ms of compute, and 1 us each to pull and to push, or up to n us if n workers share the link.
    let layers = [(1_000_000_000, 2_000_000_000, 1000)];
    for workers in [1_u64, 2, 5, 16] {
        for bound in [None, Some(1), Some(4)] {
            let result = ran(&chain(&layers, workers, 1, sync(bound)));
            let [least, most] = span(3e9, 1000, workers);
            let found = figures(&result);
            // Each completion is rounded by at most 1 ps.
            for worker in &found.workers {
                assert!(
                    (least - 2.0..=most + 2.0).contains(&worker.time_ps),
                    "{workers} {bound:?}: {}",
                    worker.time_ps
                );
            }
            let mean = mean_ps(&result);
            assert!((least - 2.0..=most + 2.0).contains(&mean), "{workers} {bound:?}: {mean} in {least}..{most}");
        }
    }
}

#[test]
fn with_a_straggler_the_job_goes_at_the_sum_of_the_workers_rates() {
    let layers = [(1_000_000_000, 2_000_000_000, 1000)];
    for (workers, factor_ppm) in [(2_u64, 3_000_000_u64), (2, 1_500_000), (4, 7_300_000), (8, 2_000_000)] {
        let mut spec = chain(&layers, workers, 1, sync(None));
        spec["jobs"][0]["compute"]["straggler"] = straggler(Some(0), factor_ppm, 1_000_000);
        let result = ran(&spec);
        let rate = |share: usize| {
            let slow = span(3e9 * factor_ppm as f64 / 1e6, 1000, workers)[share];
            1.0 / slow + (workers - 1) as f64 / span(3e9, 1000, workers)[share]
        };
        let [least, most] = [0, 1].map(|share| workers as f64 / rate(share));
        // The limits also hold for the last iteration, because an unfinished iteration counts with its completed share.
        for &time in &result.summary.jobs[0].iteration_time_ps {
            assert!((least - 2.0..=most + 2.0).contains(&(time as f64)), "{workers} {factor_ppm}: {time}");
        }
        // Synchronous workers take as long as the slowest one.
        spec["jobs"][0]["servers"]["sync"] = json!({"kind": "sync"});
        let in_step = mean_ps(&ran(&spec));
        let [slowest, shared] = span(3e9 * factor_ppm as f64 / 1e6, 1000, workers);
        assert!((slowest - 2.0..=shared + 2.0).contains(&in_step));
    }
}

#[test]
fn two_workers_have_their_closed_form() {
    // A pull or push takes 5 us alone on the link, and 10 us while the other worker uses it too. Worker 0 computes for
    // 10 us, worker 1 for 30 us.
    //
    // The following times are in us. Both workers pull from 0 to 10. Worker 0 computes until 20, pushes until 25, pulls
    // until 30 and computes until 40; worker 1 computes from 10 to 40. Both push from 40 to 50, and the pattern
    // repeats. In 50, worker 0 completes two iterations and worker 1 completes one.
    let mut spec = chain(&[(4_000_000, 6_000_000, 5000)], 2, 1, sync(None));
    spec["jobs"][0]["compute"]["straggler"] = straggler(Some(1), 3_000_000, 1_000_000);
    let result = ran(&spec);
    let mut iterations = rows(&result.workers, ["worker", "start_us", "time_us"]);
    iterations.sort_unstable();
    let us = |row: &[i64; 3]| row.map(|value| value / 1_000_000)[1..].to_vec();
    let [first, second] =
        [0, 1].map(|worker| iterations.iter().filter(|row| row[0] == worker).map(us).take(4).collect::<Vec<_>>());
    assert_eq!(first, [[0, 25], [25, 25], [50, 25], [75, 25]]);
    assert_eq!(second, [[0, 50], [50, 50], [100, 50], [150, 50]]);
    // The workers complete three iterations per 50 us. An iteration of the job is two of these, one per worker: 100/3
    // us.
    let times = &result.summary.jobs[0].iteration_time_ps;
    assert!(times.iter().all(|&time| time.abs_diff(100_000_000 / 3) <= 1), "{times:?}");
    // Between worker 1's pull and the update with its gradients, one gradient of worker 0 is applied (the push that
    // ends at 25 us). Another arrives together with worker 1's at 50 us and may be applied before or after it:
    // staleness 1 to 2.
    let found = figures(&result);
    assert_eq!(found.workers[0].bound_wait_ps, 0.0);
    assert!((1.0..=2.0).contains(&found.workers[1].staleness_updates.unwrap().0));
    assert_eq!(found.workers[1].staleness_iterations, (0.0, 0));
}

#[test]
fn a_bound_lets_the_job_go_at_the_stragglers_pace_in_the_long_run() {
    let layers = [(1_000_000_000, 2_000_000_000, 1000)];
    for bound in [0_u32, 1, 3] {
        let mut spec = chain(&layers, 4, 1, sync(Some(bound)));
        spec["jobs"][0]["iterations"] = json!(60);
        spec["jobs"][0]["compute"]["straggler"] = straggler(Some(2), 5_000_000, 1_000_000);
        let result = ran(&spec);
        let [least, most] = span(15e9, 1000, 4);
        // The job has 60 iterations. When it ends, the other workers are at most bound + 1 iterations ahead of the
        // straggler, which has thus completed between 60 - (bound + 1) and 60 iterations.
        let mean = mean_ps(&result);
        let least = least * f64::from(60 - bound - 1) / 60.0;
        assert!((least..=most + 2.0).contains(&mean), "{bound}: {mean} in {least}..{most}");
        if bound > 0 {
            let found = figures(&result);
            assert_eq!(found.workers[2].bound_wait_ps, 0.0, "nobody waits for others who is last");
            for worker in [0, 1, 3] {
                assert_eq!(found.workers[worker].staleness_iterations.1, u64::from(bound));
                assert!(found.workers[worker].bound_wait_ps > 0.7 * 12e9 * f64::from(60 - 2 * bound - 2) / 60.0);
            }
        }
    }
}

#[test]
fn inference_without_a_barrier_has_no_updates_that_it_could_miss() {
    let mut spec = chain(&[(1_000_000_000, 0, 1000)], 3, 1, sync(None));
    spec["jobs"][0]["servers"]["task"] = json!("inference");
    spec["jobs"][0]["compute"]["straggler"] = straggler(Some(0), 2_000_000, 1_000_000);
    let result = ran(&spec);
    let found = figures(&result);
    assert!(found.workers.iter().all(|worker| worker.staleness_updates.is_none()));
    assert!(found.workers[0].time_ps > 1.9 * found.workers[1].time_ps);
}

#[test]
fn a_server_applies_each_gradient_alone() {
    // The server adds 4000 B in 8 us and applies the result in 1 us. With one worker this is the same as with
    // synchronous workers. With two workers, both gradients arrive at 46 us; the server adds and applies one after the
    // other, until 55 and 64 us.
    let spec = |workers, sync| {
        let mut spec = chain(&[(10_000_000, 20_000_000, 4000)], workers, 1, sync);
        spec["jobs"][0]["collective"]["reduction_rate_bps"] = json!(RATE_BPS / 2);
        spec["jobs"][0]["layers"][0]["update_ps"] = json!(1_000_000);
        spec["jobs"][0]["iterations"] = json!(1);
        spec
    };
    let alone = ran(&spec(1, sync(None)));
    assert_eq!(alone.summary.jobs[0].iteration_time_ps, [4_000_000 + 30_000_000 + 4_000_000 + 9_000_000]);
    let two = ran(&spec(2, sync(None)));
    let first: Vec<i64> =
        rows(&two.workers, ["iteration", "time_us"]).iter().filter(|row| row[0] == 0).map(|row| row[1]).collect();
    assert_eq!(first, [55_000_000, 64_000_000]);
    // A synchronous server adds both gradients and applies their sum once: 46 + 2 · 8 + 1 us.
    assert_eq!(ran(&spec(2, json!({"kind": "sync"}))).summary.jobs[0].iteration_time_ps, [63_000_000]);
}

#[test]
fn packets_take_as_long_as_the_fluid_and_their_headers() {
    let layers = [(1_000_000, 1_000_000, 4_000_000); 5];
    let time = |engine: &str| {
        let mut spec = chain(&layers, 1, 1, sync(None));
        spec["run"]["engine"] = json!(engine);
        spec["cluster"]["link"]["delay_ps"] = json!(2_000_000);
        mean_ps(&ran(&spec))
    };
    // A segment with 1380 B of payload takes 1434 B on the wire. Slow start, in the first of six iterations, adds less
    // than 1 %.
    let ratio = time("packet") / time("fluid");
    assert!((1434.0 / 1380.0..1.01 * 1434.0 / 1380.0).contains(&ratio), "{ratio}");
}

#[test]
fn a_duration_ends_a_job_that_is_not_in_step() {
    let mut spec = chain(&[(1_000_000_000, 1_000_000_000, 1000)], 2, 1, sync(None));
    spec["jobs"][0]["iterations"] = Value::Null;
    spec["jobs"][0]["compute"]["straggler"] = straggler(Some(1), 2_000_000, 1_000_000);
    spec["run"]["duration_ps"] = json!(21_000_000_000_u64);
    let result = ran(&spec);
    // In 21 ms, worker 0 completes 10 iterations of 2 ms and worker 1 completes 5 of 4 ms. One iteration of the job is
    // two iterations of workers, so 15 of these make 7 complete iterations of the job.
    let found = figures(&result);
    assert_eq!(found.workers.iter().map(|worker| worker.iteration_count).collect::<Vec<_>>(), [10, 5]);
    assert_eq!(result.summary.jobs[0].iteration_count, 7);
    // If worker 1 completes no iteration, the job has none.
    spec["run"]["duration_ps"] = json!(3_000_000_000_u64);
    let error = run(&serde_json::from_value(spec).unwrap(), &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("completes no measured iteration"), "{error}");
}

/// Draws jobs with random layers, workers, servers, bound, noise, straggler and reduction rate.
fn jobs() -> impl Strategy<Value = (Value, u64, u64, Option<u32>)> {
    let layer = (1..3_000_000_u64, 1..3_000_000_u64, 1..3000_u64);
    let layers = prop::collection::vec(layer, 1..6);
    let bound = prop::option::of(0..5_u32);
    let slow = prop::option::of((any::<bool>(), 1_000_000..9_000_000_u64, 100_000..1_000_000_u64));
    (layers, 1..5_u64, 1..4_u64, bound, 0..300_000_u64, slow, any::<bool>(), 0..2_000_000_u64).prop_map(
        |(layers, workers, servers, bound, noise_ppm, slow, adds, update_ps)| {
            let mut spec = chain(&layers, workers, servers, sync(bound));
            spec["jobs"][0]["compute"]["noise_ppm"] = json!(noise_ppm);
            if let Some((is_drawn, factor, probability)) = slow {
                spec["jobs"][0]["compute"]["straggler"] = straggler((!is_drawn).then_some(0), factor, probability);
            }
            if adds {
                spec["jobs"][0]["collective"]["reduction_rate_bps"] = json!(RATE_BPS);
                spec["jobs"][0]["layers"][0]["update_ps"] = json!(update_ps);
            }
            (spec, workers, servers, bound)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_worker_begins_when_the_slowest_is_near_enough_and_its_gradients_are_applied((spec, workers, _, bound) in jobs()) {
        let result = ran(&spec);
        prop_assert!(!result.workers.is_ragged() && !result.transfers.is_ragged());
        let names = ["worker", "iteration", "start_us", "time_us"];
        let iterations = rows(&result.workers, names);
        let pushes: Vec<[i64; 4]> = rows(&result.transfers, ["worker", "iteration", "end_us", "direction"]);
        for &[worker, iteration, start, time] in &iterations {
            // Iteration k may begin when all workers have completed iteration k - bound - 1. An iteration is complete
            // when its gradients are applied, which is not before its last push has arrived.
            let behind = iterations.iter().filter(|row| row[1] == iteration - i64::from(bound.unwrap_or(0)) - 1);
            let allowed = behind.filter(|_| bound.is_some()).count() as u64;
            prop_assert!(bound.is_none() || iteration <= i64::from(bound.unwrap()) || allowed == workers);
            for push in pushes.iter().filter(|push| push[3] == 1 && push[..2] == [worker, iteration]) {
                prop_assert!(push[2] <= start + time);
            }
            let awaited = iteration - i64::from(bound.unwrap_or(0)) - 1;
            for push in pushes.iter().filter(|push| push[3] == 1 && bound.is_some() && push[1] <= awaited) {
                prop_assert!(push[2] <= start, "{push:?} {worker} {iteration} {start}");
            }
        }
        if let (Some(most), Some(found)) = (bound, &result.summary.jobs[0].asynchrony) {
            prop_assert!(found.workers.iter().all(|worker| worker.staleness_iterations.1 <= u64::from(most)));
        }
    }

    #[test]
    fn iterations_of_the_job_follow_each_other_and_bytes_are_conserved((spec, workers, servers, bound) in jobs()) {
        let result = ran(&spec);
        let again = ran(&spec);
        prop_assert_eq!(&result.workers, &again.workers);
        let job = &result.summary.jobs[0];
        prop_assert_eq!(job.iteration_count, 6);
        let mut end = 0;
        for [start, time, compute, exposed, barrier] in
            rows(&result.iterations, ["start_us", "time_us", "compute_us", "exposed_us", "barrier_us"])
        {
            prop_assert_eq!((start, time), (end, compute + exposed + barrier));
            end = start + time;
        }
        prop_assert!(job.lower_bound_ps <= mean_ps(&result) + 2.0);
        // The job ends when the workers have completed 6 iterations each on average. Iterations in progress, fewer than
        // one per worker, are recorded too.
        let done: u64 = rows(&result.workers, ["worker"]).len() as u64;
        prop_assert!((6 * workers..7 * workers).contains(&done) || bound == Some(0) && done == 6 * workers, "{done}");
        let sent: i64 = rows(&result.transfers, ["bytes"]).iter().map(|row| row[0]).sum();
        let links: i64 = column(&result.links, "bytes")[..(workers + servers) as usize].iter().sum();
        prop_assert_eq!(sent, links);
        let sizes: i64 = spec["jobs"][0]["layers"].as_array().unwrap().iter().map(|layer| layer["parameter_bytes"].as_i64().unwrap()).sum();
        prop_assert_eq!(sent, 2 * sizes * done as i64);
    }

    #[test]
    fn staleness_is_what_the_tables_say((mut spec, _, _, bound) in jobs()) {
        // Servers add and apply gradients in no time, so that a gradient is applied on arrival.
        spec["jobs"][0]["collective"]["reduction_rate_bps"] = Value::Null;
        spec["jobs"][0]["layers"][0]["update_ps"] = json!(0);
        prop_assume!(bound != Some(0));
        let result = ran(&spec);
        let starts = rows(&result.workers, ["worker", "iteration", "start_us", "time_us"]);
        let parts = rows(&result.transfers, ["worker", "iteration", "bucket", "end_us", "direction"]);
        let pushes: Vec<[i64; 5]> = parts.into_iter().filter(|row| row[4] == 1).collect();
        let found = figures(&result);
        for (worker, figures) in (0..).zip(&found.workers) {
            let (mut least, mut most, mut count) = (0, 0, 0);
            for own in pushes.iter().filter(|push| push[0] == worker) {
                let start = starts.iter().find(|row| row[..2] == own[..2]).unwrap()[2];
                let others = || pushes.iter().filter(|push| push[0] != worker && push[2] == own[2] && push[3] > start);
                // Gradients that arrive at the same instant may be applied in any order.
                least += others().filter(|push| push[3] < own[3]).count();
                most += others().filter(|push| push[3] <= own[3]).count();
                count += 1;
            }
            let sum = figures.staleness_updates.unwrap().0 * f64::from(count);
            prop_assert!((least as f64 - 1e-6..=most as f64 + 1e-6).contains(&sum), "{least} {sum} {most}");
            // Returns the number of iterations that worker `other` has completed by the time `at`.
            let completed = |other: i64, at: i64| {
                starts.iter().filter(|row| row[0] == other).filter(|row| {
                    pushes.iter().filter(|push| push[..2] == row[..2]).all(|push| push[3] <= at)
                }).count() as i64
            };
            let own: Vec<&[i64; 4]> = starts.iter().filter(|row| row[0] == worker).collect();
            let leads = own.iter().map(|row| {
                row[1] - (0..found.workers.len() as i64).map(|other| completed(other, row[2])).min().unwrap().min(row[1])
            });
            let mean = leads.sum::<i64>() as f64 / own.len() as f64;
            prop_assert!((figures.staleness_iterations.0 - mean).abs() < 1e-6);
        }
    }

    #[test]
    fn one_worker_is_always_in_step((mut spec, ..) in jobs(), bound in prop::option::of(1..4_u32)) {
        let hosts = spec["jobs"][0]["hosts"].as_array().unwrap().len();
        let servers = spec["jobs"][0]["servers"]["count"].as_u64().unwrap();
        spec["jobs"][0]["hosts"] = Vec::from_iter(hosts as u64 - servers - 1..hosts as u64).into();
        spec["jobs"][0]["servers"]["sync"] = sync(bound);
        let alone = ran(&spec);
        spec["jobs"][0]["servers"]["sync"] = json!({"kind": "sync"});
        let in_step = ran(&spec);
        prop_assert_eq!(&alone.transfers, &in_step.transfers);
        prop_assert_eq!(&alone.iterations, &in_step.iterations);
        prop_assert_eq!(&alone.links, &in_step.links);
    }

    #[test]
    fn a_bound_that_nobody_reaches_changes_nothing((mut spec, ..) in jobs()) {
        // No worker completes 40 iterations, since all workers together complete fewer.
        let tables = [None, Some(40)].map(|bound| {
            spec["jobs"][0]["servers"]["sync"] = sync(bound);
            let result = ran(&spec);
            (result.workers, result.transfers, result.iterations)
        });
        prop_assert_eq!(&tables[0], &tables[1]);
    }
}
