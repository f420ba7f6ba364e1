//! CPU seconds of the fluid engine for flows that start together:
//!
//! ```text
//! fluid [FLOWS.csv]             flows of a file (`src,dst,bytes`); without a file, 10,000 random flows
//! fluid random COUNT [star]     random flows
//! fluid skewed HOSTS [star]     all-to-all of 1 MB on average, log-normal with sigma 0.8
//! fluid even HOSTS [star]       all-to-all of 1 MB, and as many random flows as there are hosts
//! fluid bands HOSTS [star]      skewed all-to-all, every second flow in a second band
//! fluid errors                  table of the errors of finish times in these cases
//! ... within PPM [compare]      finish times may be off by PPM millionths; `compare`: against exact finish times
//! ```
//!
//! Flows of a file and random flows run on a three-layer Clos network of 1024 hosts with half bisection bandwidth,
//! all-to-alls on a leaf-spine network with 16 hosts per leaf and 8 spines. With `star`, all of them run on a star.
//! Links have 4 GB/s and no delay, and routing is d-mod-k.
#![allow(missing_docs)]

mod cost;

use cost::{cpu_seconds, peak_megabytes};
use gradtide_net::route::Policy;
use gradtide_net::{
    Band, Bytes, Completion, FatTree, Flow, Fluid, Graph, HostId, Link, Network, Rate, Ratio, Seed, Star, Time,
};
use std::num::NonZeroU32;
use std::time::Instant;

/// The linear congruential generator of Knuth's MMIX.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Box and Muller's method.
    fn normal(&mut self) -> f64 {
        let [first, second] = [0, 1].map(|_| (self.below(1 << 30) as f64 + 0.5) / f64::from(1 << 30));
        (-2.0 * first.ln()).sqrt() * (std::f64::consts::TAU * second).cos()
    }
}

fn random_flows(count: usize) -> Vec<(u32, u32, u64)> {
    let mut draws = Draws(1);
    let mut flow = || (draws.below(1024) as u32, draws.below(1024) as u32, 100_000 + draws.below(20_000_000));
    std::iter::repeat_with(&mut flow).filter(|&(src, dst, _)| src != dst).take(count).collect()
}

fn skewed_flows(hosts: u32) -> Vec<(u32, u32, u64)> {
    const SIGMA: f64 = 0.8;
    let mut draws = Draws(1);
    let pairs = (0..hosts).flat_map(|src| (0..hosts).map(move |dst| (src, dst))).filter(|(src, dst)| src != dst);
    pairs.map(|(src, dst)| (src, dst, (1e6 * (SIGMA * draws.normal() - SIGMA * SIGMA / 2.0).exp()) as u64)).collect()
}

fn even_flows(hosts: u32) -> Vec<(u32, u32, u64)> {
    let mut draws = Draws(1);
    let mut flow =
        || (draws.below(hosts.into()) as u32, draws.below(hosts.into()) as u32, 100_000 + draws.below(1_000_000));
    let others = std::iter::repeat_with(&mut flow).filter(|&(src, dst, _)| src != dst).take(hosts as usize);
    skewed_flows(hosts)
        .into_iter()
        .map(|(src, dst, _)| (src, dst, 1_000_000))
        .chain(others.collect::<Vec<_>>())
        .collect()
}

fn read_flows(text: &str) -> Vec<(u32, u32, u64)> {
    let row = |line: &str| {
        let mut fields = line.split(',').map(|field| field.parse::<u64>().unwrap());
        let mut next = || fields.next().unwrap();
        (next() as u32, next() as u32, next())
    };
    text.lines().skip(1).map(row).collect()
}

fn case(words: &[&str]) -> (Graph, Vec<(u32, u32, u64)>) {
    let link = Link { rate: Rate::from_bps(32_000_000_000).unwrap(), delay: Time::ZERO };
    let clos = || FatTree::clos3(16, Ratio::new(1, 2).unwrap(), link).unwrap().graph();
    match words {
        [] => (clos(), random_flows(10_000)),
        ["random", count] => (clos(), random_flows(count.parse().unwrap())),
        ["random", count, "star"] => (Star { host_count: 1024, link }.graph(), random_flows(count.parse().unwrap())),
        [kind @ ("skewed" | "even" | "bands"), hosts, shape @ ..] => {
            let hosts = hosts.parse().unwrap();
            let graph = match shape {
                ["star"] => Star { host_count: hosts, link }.graph(),
                _ => FatTree::leaf_spine(hosts / 16, 16, 8, link, link).unwrap().graph(),
            };
            (graph, if *kind == "even" { even_flows(hosts) } else { skewed_flows(hosts) })
        }
        [path] => (clos(), read_flows(&std::fs::read_to_string(path).unwrap())),
        _ => panic!(
            "fluid [errors | FLOWS.csv | random COUNT [star] | skewed HOSTS [star] | even HOSTS [star] | bands HOSTS [star]] [within PPM [compare]]"
        ),
    }
}

/// Returns the number of bands of a case's flows.
fn bands(words: &[&str]) -> usize {
    if words.first() == Some(&"bands") { 2 } else { 1 }
}

/// Runs the flows, assigned to `bands` bands in turn. Returns the completions by flow, the CPU seconds, the number of
/// calls of `advance` and the number of events.
fn drain(
    graph: &Graph,
    flows: &[(u32, u32, u64)],
    bands: usize,
    ppm: Option<NonZeroU32>,
) -> (Vec<Completion>, f64, u64, u64) {
    let start = Instant::now();
    let before = cpu_seconds(start);
    let mut network = Fluid::new(graph, Policy::DModK, Seed(0)).unwrap();
    if let Some(ppm) = ppm {
        network = network.within(ppm);
    }
    for (number, &(src, dst, bytes)) in flows.iter().enumerate() {
        let band = Band::new((number % bands) as u8).unwrap();
        network.start(Flow { band, ..Flow::alone(HostId(src), HostId(dst), Bytes(bytes)) });
    }
    let mut done = Vec::new();
    let mut instants = 0;
    while !network.is_idle() {
        network.advance(Time::MAX, &mut done);
        instants += 1;
    }
    (done, cpu_seconds(start) - before, instants, network.counters().events)
}

/// Compares flow durations with exact ones. Returns the largest relative error, its 99th percentile and signed mean,
/// the relative error of the last end, and the fraction of flows whose relative error exceeds `most`.
fn errors(exact: &[Completion], bounded: &[Completion], most: f64) -> [f64; 5] {
    let times = |done: &[Completion]| {
        let mut by_flow: Vec<(u64, f64)> =
            done.iter().map(|done| (done.flow.0, (done.received - done.began).ps() as f64)).collect();
        by_flow.sort_unstable_by_key(|&(flow, _)| flow);
        by_flow
    };
    let pairs = times(exact).into_iter().zip(times(bounded));
    let signed: Vec<f64> = pairs.map(|((_, exact), (_, bounded))| bounded / exact - 1.0).collect();
    let mut sizes: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    let last = |done: &[Completion]| done.iter().map(|done| done.received.ps()).max().unwrap() as f64;
    let beyond = sizes.iter().filter(|&&error| error > most).count() as f64 / sizes.len() as f64;
    let mean = signed.iter().sum::<f64>() / signed.len() as f64;
    [sizes[sizes.len() - 1], sizes[sizes.len() * 99 / 100], mean, last(bounded) / last(exact) - 1.0, beyond]
}

/// Prints the table of `docs/models/fluid.md`.
fn print_errors() {
    println!("| flows | accuracy | CPU s | largest error | 99th percentile | mean | last end | beyond the accuracy |");
    println!("|---|---|---:|---:|---:|---:|---:|---:|");
    let hosts = ["32", "64", "128", "256"];
    let skewed = hosts.iter().flat_map(|hosts| [vec!["skewed", hosts, "star"], vec!["skewed", hosts]]);
    let others = [["random", "50000"], ["even", "256"], ["bands", "256"]]
        .map(|[kind, size]| [vec![kind, size, "star"], vec![kind, size]]);
    for words in skewed.chain(others.into_iter().flatten()) {
        let ((graph, flows), bands) = (case(&words), bands(&words));
        let (exact, seconds, ..) = drain(&graph, &flows, bands, None);
        println!("| `{}` | exact | {seconds:.2} | | | | | |", words.join(" "));
        for ppm in [10_000, 1_000, 100] {
            let (done, seconds, ..) = drain(&graph, &flows, bands, NonZeroU32::new(ppm));
            let [largest, percentile, mean, last, beyond] =
                errors(&exact, &done, f64::from(ppm) * 1e-6).map(|error| 100.0 * error);
            let accuracy = f64::from(ppm) * 1e-4;
            println!(
                "| | {accuracy} % | {seconds:.2} | {largest:.4} % | {percentile:.4} % | {mean:+.4} % | {last:+.4} % | \
                 {beyond:.3} % |"
            );
        }
    }
}

fn main() {
    if std::env::args().nth(1).is_some_and(|word| word == "errors") {
        return print_errors();
    }
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let compares = words.last().is_some_and(|word| word == "compare");
    words.truncate(words.len() - usize::from(compares));
    let ppm = words.iter().position(|word| word == "within").map(|place| {
        let ppm: NonZeroU32 = words[place + 1].parse().unwrap();
        words.truncate(place);
        ppm
    });
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ((graph, flows), bands) = (case(&words), bands(&words));
    let (done, seconds, instants, events) = drain(&graph, &flows, bands, ppm);
    let last = done.iter().map(|done| done.received.ps()).max().unwrap_or(0) as f64 * 1e-12;
    // Digest of the completion times, to show that two versions produce the same results.
    let digest = done.iter().fold(0_u64, |digest, completion| {
        (digest ^ completion.flow.0 ^ completion.received.ps().rotate_left(24)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    println!(
        "{} flows, the last at {last:.12} s, digest {digest:016x}: {instants} instants, {events} events in \
         {seconds:.2} CPU s, {:.0} MB",
        done.len(),
        peak_megabytes()
    );
    if compares {
        let most = ppm.map_or(0.0, |ppm| f64::from(ppm.get()) * 1e-6);
        let [largest, percentile, mean, last, beyond] =
            errors(&drain(&graph, &flows, bands, None).0, &done, most).map(|error| 100.0 * error);
        println!(
            "times are off by {largest:.4} % at most, by {percentile:.4} % at the 99th percentile, by {mean:+.4} % in \
             the mean; the last end by {last:+.4} %; {beyond:.4} % of the flows by more than they may"
        );
    }
}
