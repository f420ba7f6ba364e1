//! CPU seconds of the fluid engine for flows that start together: `fluid [FLOWS.csv]` (`src,dst,bytes`).
//!
//! A Clos network of three layers: 1024 hosts, half bisection, links of 4 GB/s without delay, d-mod-k. Without a file:
//! 10,000 random flows.
#![allow(missing_docs)]

use gradtide_net::route::Policy;
use gradtide_net::{Bytes, FatTree, Flow, Fluid, HostId, Link, Network, Rate, Ratio, Seed, Time};
use std::time::Instant;

/// CPU seconds of this process, by the kernel's account (10 ms steps); wall clock where there is none.
fn cpu_seconds(start: Instant) -> f64 {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return start.elapsed().as_secs_f64() };
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / 100.0
}

fn random_flows(count: usize) -> Vec<(u32, u32, u64)> {
    let mut state = 1_u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut flow = || (draw(1024) as u32, draw(1024) as u32, 100_000 + draw(20_000_000));
    std::iter::repeat_with(&mut flow).filter(|&(src, dst, _)| src != dst).take(count).collect()
}

fn read_flows(text: &str) -> Vec<(u32, u32, u64)> {
    let row = |line: &str| {
        let mut fields = line.split(',').map(|field| field.parse::<u64>().unwrap());
        let mut next = || fields.next().unwrap();
        (next() as u32, next() as u32, next())
    };
    text.lines().skip(1).map(row).collect()
}

fn main() {
    let start = Instant::now();
    let flows = match std::env::args().nth(1) {
        Some(path) => read_flows(&std::fs::read_to_string(path).unwrap()),
        None => random_flows(10_000),
    };
    let link = Link { rate: Rate::from_bps(32_000_000_000).unwrap(), delay: Time::ZERO };
    let graph = FatTree::clos3(16, Ratio::new(1, 2).unwrap(), link).unwrap().graph();
    let before = cpu_seconds(start);
    let mut network = Fluid::new(&graph, Policy::DModK, Seed(0)).unwrap();
    for &(src, dst, bytes) in &flows {
        network.start(Flow::alone(HostId(src), HostId(dst), Bytes(bytes)));
    }
    let mut done = Vec::new();
    let mut instants = 0;
    while !network.is_idle() {
        network.advance(Time::MAX, &mut done);
        instants += 1;
    }
    let seconds = cpu_seconds(start) - before;
    let last = network.now().ps() as f64 * 1e-12;
    let events = network.counters().events;
    println!(
        "{} flows, the last at {last:.12} s: {instants} instants, {events} events in {seconds:.2} CPU s",
        done.len()
    );
}
