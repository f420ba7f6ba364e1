//! Background flows on the packet engine: idle hosts change no flow, and completion times exclude the start jitter.
#![allow(missing_docs)]

mod star;
mod tables;

use gradtide_train::result::RunResult;
use gradtide_train::run;
use serde_json::{Value, json};
use star::star;
use tables::column;

const RATE_BPS: u64 = 10_000_000_000;
/// Serialisation time of a packet of 1434 bytes.
const PACKET_PS: i64 = 1_147_200;

/// Flows (start in ps, source, destination, bytes) on a star with queues of 20 packets.
fn flows(hosts: u32, mark: &Value, list: &[[u64; 4]]) -> Value {
    let of = |place: usize| list.iter().map(|row| row[place]).collect::<Vec<u64>>();
    let mut cluster = star(hosts, RATE_BPS, 1_000_000);
    cluster["queue"] = json!({"discipline": {"kind": "fifo"}, "capacity": {"packets": 20}, "mark": mark});
    json!({
        "cluster": cluster,
        "traffic": [{
            "name": "web", "start_ps": of(0), "src": of(1), "dst": of(2), "bytes": of(3), "band": vec![0; list.len()]
        }],
        "run": {"engine": "packet", "seed": 1, "duration_ps": 5_000_000_000_000_u64}
    })
}

fn ran(spec: &Value) -> RunResult {
    run(&serde_json::from_value(spec.clone()).expect("a spec"), &mut |_| true).expect("a run")
}

fn times(result: &RunResult) -> [Vec<i64>; 2] {
    ["start_us", "fct_us"].map(|name| column(&result.flows, name))
}

/// Only hosts that send or receive have timers, and RED draws by the name of a link, so idle hosts have no effect.
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

/// The completion time of a single flow does not depend on its start jitter, which is less than a packet's time.
#[test]
fn jitter_is_no_part_of_a_flows_time() {
    let list: Vec<[u64; 4]> = (0..20).map(|index| [10_000_000_000 * index, 0, 1, 100_000]).collect();
    let mut spec = flows(2, &json!(null), &list);
    spec["run"]["start_jitter_ps"] = json!(PACKET_PS);
    let [starts_ps, fcts_ps] = times(&ran(&spec));
    spec["run"]["start_jitter_ps"] = json!(0);
    let [exact_starts_ps, exact_fcts_ps] = times(&ran(&spec));
    assert_eq!(fcts_ps, exact_fcts_ps);
    let late: Vec<i64> = starts_ps.iter().zip(&exact_starts_ps).map(|(start, exact)| start - exact).collect();
    assert!(late.iter().all(|late_ps| (0..PACKET_PS).contains(late_ps)), "{late:?}");
    assert!(late.iter().max() > late.iter().min().map(|least| least + 500_000).as_ref(), "{late:?}");
}

/// Jitter determines which of several flows with the same start time starts first. A flow keeps its number, and hence
/// its row, its window and its path.
#[test]
fn flows_keep_their_numbers_and_paths_whichever_starts_first() {
    let list: Vec<[u64; 4]> = (0..8).map(|index| [0, index % 4, 4 + index / 2, 400_000]).collect();
    let mut spec = flows(8, &json!(null), &list);
    spec["cluster"]["topology"] = json!({"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 4,
                                         "fabric_link": {"rate_bps": RATE_BPS, "delay_ps": 1_000_000}});
    let cwnd: Vec<Value> = (0..8).map(|flow| json!({"tenant": "web", "flow": flow})).collect();
    spec["run"]["probe"] = json!({"every_ps": 50_000_000, "cwnd": cwnd});
    let carried = |result: &RunResult| {
        let (names, bytes) = (&result.links, column(&result.links, "bytes"));
        // Counts bytes in units of half a flow, so that acknowledgements do not count.
        assert_eq!(names.row_count(), bytes.len());
        bytes.iter().map(|bytes| bytes / 200_000).collect::<Vec<_>>()
    };
    let exact = ran(&spec);
    let mut firsts = std::collections::BTreeSet::new();
    for seed in 0..4 {
        spec["run"]["start_jitter_ps"] = json!(PACKET_PS);
        spec["run"]["seed"] = json!(seed);
        let result = ran(&spec);
        let starts_ps = column(&result.flows, "start_us");
        firsts.insert((0..8).min_by_key(|&index| starts_ps[index]));
        assert_eq!(column(&result.flows, "flow"), Vec::from_iter(0..8));
        let (numbers, sources) = (column(&result.cwnd, "flow"), column(&result.cwnd, "src"));
        assert!(numbers.iter().zip(&sources).all(|(number, src)| number % 4 == *src), "{numbers:?} from {sources:?}");
        if seed == 1 {
            assert_eq!(carried(&result), carried(&exact));
        }
    }
    assert!(firsts.len() > 1, "{firsts:?}");
}
