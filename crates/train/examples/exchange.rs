//! Prints the simulated time of a collective, and the CPU time and memory that the simulation takes. `exchange CASE…`
//! runs the named cases; without a name, all cases run.
//!
//! The buffer has 100 MB. Links have 4 GB/s and a delay of 0.2 us, those of star networks 1.25 GB/s and 1 us. Routes
//! follow d-mod-k.
#![allow(missing_docs)]

#[path = "../../net/examples/cost/mod.rs"]
mod cost;

use cost::{cpu_seconds, peak_megabytes};
use gradtide_net::route::Policy;
use gradtide_net::{Bytes, FatTree, Fluid, Graph, Link, Rate, Ratio, Seed, Star, Time};
use gradtide_train::collective::algorithms::ps::Placement;
use gradtide_train::collective::algorithms::{Algorithm, AllToAll, Butterfly, ButterflyLayered, ParameterServer, Ring};
use gradtide_train::collective::exchange;
use std::time::Instant;

fn link(gigabytes_per_s: f64, delay_ns: u64) -> Link {
    let rate = Rate::from_bps((gigabytes_per_s * 8e9) as u64).expect("a rate");
    Link { rate, delay: Time::from_ps(1_000 * delay_ns) }
}

fn case(name: &str) -> Option<(Graph, Algorithm)> {
    let (slow, fast) = (link(1.25, 1_000), link(4.0, 200));
    let ratio = |denominator| Ratio::new(1, denominator).expect("a ratio");
    let clos2 = |denominator| FatTree::clos2(64, ratio(denominator), fast).expect("a network").graph();
    let clos3 = |denominator| FatTree::clos3(16, ratio(denominator), fast).expect("a network").graph();
    let star = |host_count| Star { host_count, link: slow }.graph();
    let servers = |servers, placement| ParameterServer { servers, placement }.into();
    Some(match name {
        "ps_packed_1024" => (clos3(2), servers(128, Placement::Packed)),
        "ps_dist_1024" => (clos3(2), servers(128, Placement::Distributed)),
        "ps_packed_2048" => (clos2(2), servers(256, Placement::Packed)),
        "ps_dist_2048" => (clos2(1), servers(256, Placement::Distributed)),
        "a2a_512" => (star(512), AllToAll.into()),
        "ring_2048" => (star(2048), Ring.into()),
        "ring_2048_clos2" => (clos2(1), Ring.into()),
        "butterfly_2048" => (clos2(2), Butterfly.into()),
        "layered_16384" => {
            let fabric = FatTree::leaf_spine(256, 64, 64, fast, fast).expect("a network");
            (fabric.graph(), ButterflyLayered { group: 64 }.into())
        }
        "layered_16000_clos3" => {
            let fabric = FatTree::clos3(40, ratio(2), fast).expect("a network");
            (fabric.graph(), ButterflyLayered { group: 20 }.into())
        }
        _ => return None,
    })
}

const CASES: [&str; 10] = [
    "ps_packed_1024",
    "ps_dist_1024",
    "ps_packed_2048",
    "ps_dist_2048",
    "a2a_512",
    "ring_2048",
    "ring_2048_clos2",
    "butterfly_2048",
    "layered_16384",
    "layered_16000_clos3",
];

fn main() {
    let start = Instant::now();
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names = CASES.map(String::from).to_vec();
    }
    for name in names {
        let Some((graph, algorithm)) = case(&name) else { panic!("no case {name}: there are {}", CASES.join(", ")) };
        let before = cpu_seconds(start);
        let ranks = graph.host_count;
        let hosts: Vec<u32> = (0..ranks).collect();
        let plan = algorithm.plan(ranks, Bytes(100_000_000), 1).expect("a plan");
        let network = Fluid::new(&graph, Policy::DModK, Seed(0)).expect("a network");
        let exchange = exchange::run(&plan, &hosts, network);
        println!(
            "{{\"case\": \"{name}\", \"hosts\": {ranks}, \"exchange_us\": {}, \"messages\": {}, \"cpu_s\": {:.2}, \
             \"peak_mb\": {:.0}}}",
            exchange.duration,
            exchange.message_count,
            cpu_seconds(start) - before,
            peak_megabytes()
        );
    }
}
