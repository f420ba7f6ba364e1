//! Solves and CPU seconds of the max-min solver: `maxmin [FLOWS.csv ROUTES.csv]`.
//!
//! Flows start together and leave as they finish. Without files: 10,000 random flows on 1024 hosts, three switches
//! high, half bisection. Links carry 32 Gbit/s.
#![allow(missing_docs)]

#[path = "../tests/drain/mod.rs"]
mod drain;

use gradtide_net::maxmin::LinkId;
use std::time::Instant;

/// CPU seconds of this process, by the kernel's account (10 ms steps); wall clock where there is none.
fn cpu_seconds(start: Instant) -> f64 {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return start.elapsed().as_secs_f64() };
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / 100.0
}

/// Hosts under edges of 16 with 8 ways up, pods of 8 edges with 64 ways to the core; every way is drawn at random.
fn random_fabric(flow_count: usize) -> (Vec<u64>, Vec<Vec<LinkId>>, usize) {
    let mut state = 1_u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut bytes, mut paths) = (Vec::new(), Vec::new());
    while paths.len() < flow_count {
        let (src, dst) = (draw(1024), draw(1024));
        if src == dst {
            continue;
        }
        // Links by kind: hosts' (0), edges' (1), pods' (2), each up and down.
        let mut path = vec![src, 3072 + dst];
        if src / 16 != dst / 16 {
            let (up, down) = (draw(8), draw(8));
            path.extend([1024 + src / 16 * 8 + up, 4096 + dst / 16 * 8 + down]);
        }
        if src / 128 != dst / 128 {
            let way = draw(64);
            path.extend([2048 + src / 128 * 64 + way, 5120 + dst / 128 * 64 + way]);
        }
        paths.push(path.into_iter().map(|link| LinkId(link as u32)).collect());
        bytes.push(100_000 + draw(20_000_000));
    }
    (bytes, paths, 6144)
}

fn main() {
    let start = Instant::now();
    let files: Vec<String> = std::env::args().skip(1).map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let (bytes, paths, link_count) = match &files[..] {
        [flows, routes] => drain::read_flows(flows, routes),
        _ => random_fabric(10_000),
    };
    let before = cpu_seconds(start);
    let (finish, solve_count) = drain::finish_times(&vec![32_000_000_000; link_count], &paths, &bytes);
    let seconds = cpu_seconds(start) - before;
    let last = finish.iter().copied().fold(0.0, f64::max);
    println!(
        "{} flows on {link_count} links, the last at {last:.9} s: {solve_count} solves in {seconds:.2} CPU s",
        paths.len()
    );
}
