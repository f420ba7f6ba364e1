//! Tests of the fluid engine with a bounded error: flow durations are within the accepted error of the exact ones, and
//! no link exceeds its capacity.
#![allow(missing_docs)]

mod flows;

use flows::{US, flow, fluid, in_band, link, star};
use gradtide_net::{Bytes, Connection, FatTree, Flow, Fluid, Graph, Network, PortId, Time};
use std::num::NonZeroU32;

/// Returns flows from all hosts to all others, with a wide range of sizes. Some belong to one stream, and some are in a
/// second band.
fn irregular(hosts: u32, seed: u64, bands: u8) -> Vec<Flow> {
    let mut state = seed;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let pairs = (0..hosts).flat_map(|src| (0..hosts).map(move |dst| (src, dst))).filter(|(src, dst)| src != dst);
    let bytes = |draw: &mut dyn FnMut(u64) -> u64| (1 + draw(20)) * (1 + draw(20)) * (1 + draw(20)) * 1_000;
    pairs
        .map(|(src, dst)| {
            let flow = in_band(draw(u64::from(bands)) as u8, flow(src, dst, bytes(&mut draw)));
            Flow { connection: if draw(4) == 0 { Connection::Stream } else { Connection::Own }, ..flow }
        })
        .collect()
}

/// Returns the times in ps at which each flow starts and is received, in the order of starts. `flows` contains the
/// start time of each flow.
fn spans(network: &mut Fluid, flows: &[(u64, Flow)]) -> Vec<(u64, u64)> {
    let mut done = Vec::new();
    for &(start, flow) in flows {
        while network.now().ps() < start {
            network.advance(Time::from_ps(start), &mut done);
        }
        network.start(flow);
    }
    while !network.is_idle() {
        network.advance(Time::MAX, &mut done);
    }
    done.sort_by_key(|completion| completion.flow);
    done.iter().map(|done| (done.began.ps(), done.received.ps())).collect()
}

/// Returns the error of each flow's duration, as a fraction of the exact duration.
fn errors(graph: &Graph, flows: &[(u64, Flow)], ppm: u32, exact_below: u64) -> Vec<f64> {
    let exact = spans(&mut fluid(graph), flows);
    let mut network = within(graph, ppm, exact_below);
    let ours = spans(&mut network, flows);
    let last = *ours.iter().map(|(_, end)| end).max().unwrap() as f64;
    for port in 0..graph.links.len() as u32 {
        let busy = network.port_counters(PortId(port)).busy.ps() as f64;
        assert!(busy < last * (1.0 + f64::from(ppm) * 1e-6), "link {port}: busy for {busy} ps of {last}");
    }
    let times = exact.iter().zip(&ours).map(|(exact, ours)| [exact, ours].map(|(begin, end)| (end - begin) as f64));
    times.map(|[exact, ours]| ours / exact - 1.0).collect()
}

fn within(graph: &Graph, ppm: u32, exact_below: u64) -> Fluid {
    fluid(graph).within_above(NonZeroU32::new(ppm).unwrap(), exact_below)
}

fn largest<'a>(errors: impl IntoIterator<Item = &'a f64>) -> f64 {
    errors.into_iter().map(|error| error.abs()).fold(0.0, f64::max)
}

fn at_once(flows: Vec<Flow>) -> Vec<(u64, Flow)> {
    flows.into_iter().map(|flow| (0, flow)).collect()
}

/// Distributes flows over `groups` groups. The groups start one after another within half of the total time.
fn spread(flows: Vec<Flow>, groups: usize, hosts: u32) -> Vec<(u64, Flow)> {
    // A thousand bytes take a microsecond.
    let all: u64 = flows.iter().map(|flow| flow.bytes.0 * US / 1_000).sum::<u64>() / u64::from(hosts);
    let count = flows.len();
    let group = |index: usize| (index * groups / count) as u64;
    flows.into_iter().enumerate().map(|(index, flow)| (all / 2 * group(index) / groups as u64, flow)).collect()
}

fn both_networks(hosts: u32) -> [Graph; 2] {
    [star(hosts), FatTree::leaf_spine(hosts / 8, 8, 4, link(), link()).unwrap().graph()]
}

/// With few flows, times are exact, because solving costs little.
#[test]
fn bounded_times_of_few_flows_are_exact() {
    for graph in both_networks(48) {
        for bands in [1, 2] {
            let flows = at_once(irregular(48, 1, bands));
            assert_eq!(largest(&errors(&graph, &flows, 10_000, 1 << 14)), 0.0);
        }
    }
}

/// Checks the largest error of flows that start together, one after another, in groups, or consecutively on streams.
/// `exact_below` is 0, so that no case is exact because of its size.
#[test]
fn bounded_times_of_one_band_are_within_the_accuracy() {
    const HOSTS: u32 = 48;
    for graph in both_networks(HOSTS) {
        for ppm in [30_000, 10_000, 1_000] {
            let accuracy = f64::from(ppm) * 1e-6;
            for seed in 1..3 {
                let flows = irregular(HOSTS, seed, 1);
                let follow = |flow: &Flow| Flow { connection: Connection::Stream, ..*flow };
                let streams = flows.iter().chain(flows.iter().rev()).map(follow).collect();
                let cases = [
                    ("at once", at_once(flows.clone())),
                    ("one by one", spread(flows.clone(), flows.len(), HOSTS)),
                    ("in groups", spread(flows, 8, HOSTS)),
                    ("streams", at_once(streams)),
                ];
                for (name, flows) in cases {
                    let errors = errors(&graph, &flows, ppm, 0);
                    let (largest, mean) = (largest(&errors), errors.iter().sum::<f64>() / errors.len() as f64);
                    println!("{accuracy}, seed {seed}, {name}: {largest:.6}, {mean:+.6} in the mean");
                    assert!(largest <= accuracy, "{name}, {accuracy}, seed {seed}: {largest}");
                    assert!(mean.abs() <= accuracy / 10.0, "{name}, {accuracy}, seed {seed}: {mean} in the mean");
                    // Otherwise the test would be vacuous.
                    assert!(largest > 0.0 || name == "streams" || ppm < 10_000, "{name}, {accuracy}, seed {seed}");
                }
            }
        }
    }
}

/// While flows of several bands are in flight, no solve is deferred. Otherwise, a flow could end just before instead of
/// just after it has to wait for another band.
#[test]
fn bounded_times_of_several_bands_are_within_the_accuracy() {
    for graph in both_networks(48) {
        for ppm in [30_000, 10_000, 1_000] {
            let accuracy = f64::from(ppm) * 1e-6;
            for seed in 1..4 {
                // Flows of the second band are larger, so that they remain alone at the end, and solves are deferred.
                let flows: Vec<Flow> =
                    irregular(48, seed, 2)
                        .into_iter()
                        .map(|flow| {
                            if flow.band.index() == 0 { flow } else { Flow { bytes: Bytes(3 * flow.bytes.0), ..flow } }
                        })
                        .collect();
                let largest = largest(&errors(&graph, &at_once(flows), ppm, 0));
                println!("{accuracy}, seed {seed}: {largest:.6}");
                assert!(largest <= accuracy, "{accuracy}, seed {seed}: {largest}");
                // Otherwise the test would be vacuous.
                assert!(largest > 0.0 || ppm < 10_000, "{accuracy}, seed {seed}");
            }
        }
    }
}

/// Equal messages end at one instant, and there are enough of them to justify a solve.
#[test]
fn bounded_times_of_equal_messages_are_exact() {
    for graph in both_networks(48) {
        let equal = |flow: Flow| Flow { bytes: Bytes(50_000), counted: Bytes(50_000), ..flow };
        let flows = at_once(irregular(48, 1, 1).into_iter().map(equal).collect());
        assert_eq!(largest(&errors(&graph, &flows, 10_000, 0)), 0.0);
    }
}

#[test]
fn bounded_times_are_the_same_every_time() {
    let run = || spans(&mut within(&star(32), 30_000, 0), &at_once(irregular(32, 1, 2)));
    assert_eq!(run(), run());
}

/// Flows in flight are included in counters and have their rate, even if the last solve excluded them.
#[test]
fn bounded_links_count_what_has_crossed() {
    let graph = star(32);
    let flows = irregular(32, 1, 1);
    let mut network = within(&graph, 30_000, 0);
    flows.iter().for_each(|&flow| {
        network.start(flow);
    });
    let (mut under_way, mut done) = (flows.len(), Vec::new());
    let mut before = 0;
    while under_way > 0 {
        network.advance(Time::from_ps(network.now().ps() + 50 * US), &mut done);
        under_way -= done.drain(..).count();
        let crossed: u64 = (0..graph.links.len() as u32).map(|port| network.port_counters(PortId(port)).bytes).sum();
        let rates = network.rates();
        assert_eq!(rates.len(), if network.now().ps() < 2 * US { 0 } else { under_way });
        assert!(rates.iter().all(|&(_, rate)| rate > 0.0));
        assert!(crossed >= before);
        before = crossed;
    }
    assert_eq!(before, 2 * flows.iter().map(|flow| flow.bytes.0).sum::<u64>());
}
