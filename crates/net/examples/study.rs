//! Replays the reference cases: `study micro DIR`, `study ring`, `study run FLOWS ITERATION_MS TOS [ORACLE_DIR]`.
#![allow(missing_docs)]

#[path = "../tests/study/mod.rs"]
mod study;

use std::time::Instant;
use study::*;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments[0].as_str() {
        "micro" => micro(&arguments[1]),
        "ring" => ring(),
        _ => run(&arguments[1..]),
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn micro(directory: &str) {
    for case in [
        "a_single_1MB",
        "a_single_10MB",
        "a_single_100MB",
        "b_incast_2x10MB",
        "b_incast_4x10MB",
        "b_incast_8x10MB",
        "d_prio",
        "d_prio_same_src",
    ] {
        let list = arrivals(&read(&format!("{directory}/in_{case}.csv")));
        let expected = oracle(&read(&format!("{directory}/fct_{case}.csv")));
        let host_count = list.iter().map(|arrival| arrival.src.max(arrival.dst) + 1).max().unwrap();
        let mut engine = engine(host_count);
        let results = replay(&mut engine, &list);
        println!("{case}: {:?}", engine.counters());
        for (ours, theirs) in results.iter().zip(&expected) {
            let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
            println!(
                "  close {:>9} {:>9} {:+.3} %  rx {:>9} {:>9}  conn {} {}",
                ours.close_ns,
                theirs.close_ns,
                (ours.close_ns as f64 / theirs.close_ns as f64 - 1.0) * 100.0,
                ours.received_ns,
                theirs.received_ns,
                ours.connected_ns,
                theirs.connected_ns
            );
        }
    }
}

fn ring() {
    let mut engine = engine(8);
    let start = Instant::now();
    for all_reduce in all_reduce_everything(&mut engine, &Job::thesis(2240, 16)) {
        println!("{all_reduce:?}");
    }
    println!("{:?} in {:?}", engine.counters(), start.elapsed());
}

fn run(arguments: &[String]) {
    let list = arrivals(&read(&arguments[0]));
    let job = Job::thesis(arguments[1].parse().unwrap(), arguments[2].parse().unwrap());
    let mut engine = engine(8);
    let start = Instant::now();
    let outcome = study(&mut engine, &list, &job, 12_000_000_000);
    let counters = engine.counters();
    let seconds = start.elapsed().as_secs_f64();
    println!("{counters:?}");
    println!("{:.3} s, {:.2} M packet-hops/s", seconds, counters.packet_hops as f64 / seconds / 1e6);
    let Some(directory) = arguments.get(3) else { return };
    let expected = oracle(&read(&format!("{directory}/fct.csv")));
    println!("iterations {:?}", outcome.iterations_ns);
    let rings = read(&format!("{directory}/allreduce.csv"));
    let rings: Vec<Vec<u64>> = rings.lines().skip(1).map(numbers).collect();
    let first = outcome.all_reduces.iter().zip(&rings).position(|(ours, theirs)| ours.end_ns != theirs[3]);
    println!("all-reduces {} of {}", outcome.all_reduces.len(), rings.len());
    if let Some(first) = first {
        println!("first difference: all-reduce {first} {:?} {:?}", outcome.all_reduces[first], rings[first]);
    }
    let equal = outcome
        .fcts
        .iter()
        .zip(&expected)
        .filter(|(ours, theirs)| ours.map(|fct| fct.close_ns) == theirs.map(|fct| fct.close_ns))
        .count();
    println!("equal to the ns: {equal} of {}", expected.len());
    let first = outcome
        .fcts
        .iter()
        .zip(&expected)
        .position(|(ours, theirs)| ours.map(|fct| fct.close_ns) != theirs.map(|fct| fct.close_ns));
    if let Some(first) = first {
        println!(
            "first difference: flow {first} {:?}\n {:?}\n {:?}",
            list[first], outcome.fcts[first], expected[first]
        );
    }
    for (name, low, high) in [("small", 0, 100_000), ("medium", 100_001, 9_999_999), ("large", 10_000_000, u64::MAX)] {
        let (mut ours, mut theirs): (Vec<f64>, Vec<f64>) = outcome
            .fcts
            .iter()
            .zip(&expected)
            .filter_map(|(ours, theirs)| Some(((*ours)?, (*theirs)?)))
            .filter(|(_, theirs)| (low..=high).contains(&theirs.bytes))
            .map(|(ours, theirs)| (ours.close_ns as f64, theirs.close_ns as f64))
            .unzip();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64 / 1e6;
        print!(
            "{name} ({}) mean {:.4} {:.4} {:+.2} %",
            ours.len(),
            mean(&ours),
            mean(&theirs),
            (mean(&ours) / mean(&theirs) - 1.0) * 100.0
        );
        ours.sort_by(f64::total_cmp);
        theirs.sort_by(f64::total_cmp);
        for quantile in [0.5, 0.9, 0.99] {
            let at = ((ours.len() as f64 * quantile) as usize).min(ours.len() - 1);
            print!(
                "  p{} {:.4} {:.4} {:+.2} %",
                quantile * 100.0,
                ours[at] / 1e6,
                theirs[at] / 1e6,
                (ours[at] / theirs[at] - 1.0) * 100.0
            );
        }
        println!();
    }
    println!("rank correlation {:.4}", rank_correlation(&outcome.fcts, &expected));
}

fn rank_correlation(ours: &[Option<Fct>], theirs: &[Option<Fct>]) -> f64 {
    let pairs: Vec<(u64, u64)> =
        ours.iter().zip(theirs).filter_map(|(a, b)| Some((a.as_ref()?.close_ns, b.as_ref()?.close_ns))).collect();
    let ranks = |value: fn(&(u64, u64)) -> u64| {
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        order.sort_by_key(|&index| value(&pairs[index]));
        let mut ranks = vec![0.0; pairs.len()];
        for (rank, &index) in order.iter().enumerate() {
            ranks[index] = rank as f64;
        }
        ranks
    };
    let (a, b) = (ranks(|pair| pair.0), ranks(|pair| pair.1));
    let n = pairs.len() as f64;
    let squares: f64 = a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum();
    1.0 - 6.0 * squares / (n * (n * n - 1.0))
}
