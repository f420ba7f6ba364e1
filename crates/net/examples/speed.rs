//! Prints the packet engine's speed in packet-hops per CPU second: `speed [FLOWS.csv]`. For a profiler, `speed HOSTS
//! FLOWS.csv` or `speed HOSTS BYTES` runs one case only: the flows of the file, or a saturated star with flows of
//! `BYTES`.
//!
//! 1. With a file of flows: 12 s of the validation study, i.e. 8 hosts with these flows and a training job. Then the
//!    flows alone at eight times the load, on stars of 8, 64 and 1024 hosts.
//! 2. Saturated stars of 8, 64 and 1024 hosts, where every host sends to the next seven hosts simultaneously.
#![allow(missing_docs)]

mod cost;

#[path = "../tests/study/mod.rs"]
mod study;

use cost::{cpu_seconds, peak_megabytes};
use std::time::Instant;
use study::*;

fn report(name: &str, hops: u64, seconds: f64) {
    println!(
        "{name}: {hops} packet-hops in {seconds:.2} CPU s, {:.0} MB: {:.2} M/s",
        peak_megabytes(),
        hops as f64 / seconds / 1e6
    );
}

fn main() {
    let start = Instant::now();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [host_count, load] = arguments.as_slice() {
        let host_count = host_count.parse().unwrap();
        return match load.parse() {
            Ok(bytes) => saturated(host_count, (64 / host_count).max(1), bytes),
            Err(_) => flows(host_count, &arrivals(&std::fs::read_to_string(load).unwrap())),
        };
    }
    if let Some(path) = arguments.first() {
        let list = arrivals(&std::fs::read_to_string(path).unwrap());
        for tos in [16, 8, 16, 8] {
            let mut engine = engine(8);
            let before = cpu_seconds(start);
            study(&mut engine, &list, &Job::thesis(2240, tos), 12_000_000_000);
            let (hops, seconds) = (engine.counters().packet_hops, cpu_seconds(start) - before);
            report(&format!("study, job's ToS {tos}"), hops, seconds);
        }
        for host_count in STARS {
            flows(host_count, &list);
        }
    }
    for host_count in STARS {
        saturated(host_count, 1024 / host_count, 1_000_000);
    }
}

/// Runs the flows of a list compressed to an eighth of the time. On larger stars the flows are spread over all hosts
/// and compressed further, so that the load per host is the same.
fn flows(host_count: u32, list: &[Arrival]) {
    let groups = host_count / 8;
    let spread = |(index, arrival): (usize, &Arrival)| Arrival {
        start_ns: arrival.start_ns / 8 / u64::from(groups),
        src: arrival.src + 8 * (index as u32 % groups),
        dst: arrival.dst + 8 * (index as u32 * 7 % groups),
        ..*arrival
    };
    let list = list.iter().enumerate().map(spread).collect();
    run(&format!("flows on a star of {host_count}"), host_count, list);
}

/// Runs a star in which every host sends `bytes` to each of the next seven hosts, `turn_count` times. Callers choose
/// `turn_count` so that stars of all sizes have the same number of flows.
fn saturated(host_count: u32, turn_count: u32, bytes: u64) {
    let list = (0..turn_count)
        .flat_map(|turn| (0..host_count).flat_map(move |src| (1..8).map(move |step| (turn, src, step))))
        .map(|(turn, src, step)| Arrival {
            start_ns: u64::from(turn) * 100_000_000 + u64::from(step) * 1_000 + u64::from(src) * 13,
            src,
            dst: (src + step) % host_count,
            bytes,
            tos: 16,
        });
    run(&format!("saturated star of {host_count}"), host_count, list.collect());
}

const STARS: [u32; 3] = [8, 64, 1024];

fn run(name: &str, host_count: u32, list: Vec<Arrival>) {
    let mut engine = engine(host_count);
    let start = Instant::now();
    let before = cpu_seconds(start);
    let results = replay(&mut engine, &list);
    let (seconds, counters) = (cpu_seconds(start) - before, engine.counters());
    // FNV-1a hash of all completion times, to compare two builds.
    let times = results.iter().flatten().flat_map(|fct| [fct.connected_ns, fct.received_ns, fct.close_ns]);
    let digest = times.fold(0xcbf2_9ce4_8422_2325, |hash: u64, time| (hash ^ time).wrapping_mul(0x100_0000_01b3));
    report(&format!("{name}, {} drops, {digest:016x}", counters.drops), counters.packet_hops, seconds);
}
