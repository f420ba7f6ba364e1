//! Background flows on the packet engine: what is not theirs changes nothing, and their jitter is not their time.
#![allow(missing_docs)]

mod star;
mod tables;

use gradtide_train::result::RunResult;
use gradtide_train::run;
use serde_json::{Value, json};
use star::star;
use tables::column;

const RATE_BPS: u64 = 10_000_000_000;

/// Flows (start in ps, source, destination, bytes) on a star with queues of 20 packets.
fn flows(hosts: u32, mark: &Value, list: &[[u64; 4]]) -> Value {
    let of = |place: usize| list.iter().map(|row| row[place]).collect::<Vec<u64>>();
    let mut cluster = star(hosts, RATE_BPS, 1_000_000);
    cluster["queue"] = json!({"discipline": {"kind": "fifo"}, "capacity": {"packets": 20}, "mark": mark});
    json!({
        "jobs": [],
        "cluster": cluster,
        "traffic": [{
            "name": "web", "start_ps": of(0), "src": of(1), "dst": of(2), "bytes": of(3), "band": vec![0; list.len()],
            "idle_ps": null, "together": false, "setup_ps": 0, "announced_packets": null
        }],
        "run": {"engine": "packet", "seed": 1, "duration_ps": 5_000_000_000_000_u64, "timeline_iterations": 0,
                "probe": null}
    })
}

fn ran(spec: &Value) -> RunResult {
    run(&serde_json::from_value(spec.clone()).expect("a spec"), &mut |_| true).expect("a run")
}

fn times(result: &RunResult) -> [Vec<i64>; 2] {
    ["start_us", "fct_us"].map(|name| column(&result.flows, name))
}

/// Timers are made for hosts that send or receive, and RED's coins for links by name.
#[test]
fn idle_hosts_change_no_flow() {
    let list: Vec<[u64; 4]> = (0..12).map(|index| [1_000 * index, index % 3, 3, 300_000 + index]).collect();
    let red = json!({"kind": "red", "min_packets": 2, "max_packets": 15, "max_probability_ppm": 200_000,
                     "weight_ppm": 100_000, "ecn": false});
    for mark in [json!(null), red] {
        let [few, many] = [4, 7].map(|hosts| ran(&flows(hosts, &mark, &list)));
        assert_eq!(times(&few), times(&many));
        assert!(column(&few.links, "drops").iter().any(|&drops| drops > 0));
    }
}

/// Alone, a flow takes the same time whenever its jitter lets it start: less than a packet later.
#[test]
fn jitter_is_no_part_of_a_flows_time() {
    let list: Vec<[u64; 4]> = (0..20).map(|index| [10_000_000_000 * index, 0, 1, 100_000]).collect();
    let mut spec = flows(2, &json!(null), &list);
    let [starts_ps, fcts_ps] = times(&ran(&spec));
    spec["run"]["start_jitter_ps"] = json!(0);
    let [exact_starts_ps, exact_fcts_ps] = times(&ran(&spec));
    assert_eq!(fcts_ps, exact_fcts_ps);
    let late: Vec<i64> = starts_ps.iter().zip(&exact_starts_ps).map(|(start, exact)| start - exact).collect();
    // 1434 bytes at 10 Gbit/s.
    assert!(late.iter().all(|late_ps| (0..1_147_200).contains(late_ps)), "{late:?}");
    assert!(late.iter().max() > late.iter().min().map(|least| least + 500_000).as_ref(), "{late:?}");
}
