//! Exchanges and 10 000 flows against the times of SimGrid, which `validation/simgrid/make_cases.py` produces. Debug
//! builds skip the largest cases.
#![allow(missing_docs)]

use gradtide_net::route::Policy;
use gradtide_net::{Bytes, FatTree, Flow, Fluid, Graph, HostId, Link, Network, Rate, Ratio, Seed, Star, Time};
use gradtide_train::collective::algorithms::ps::Placement;
use gradtide_train::collective::algorithms::{Algorithm, AllToAll, Butterfly, ButterflyLayered, ParameterServer, Ring};
use gradtide_train::collective::exchange;
use std::collections::BTreeMap;

/// Debug builds skip exchanges with this many messages or more.
const MANY: usize = 5_000;

fn data(name: &str) -> String {
    let path = format!("{}/../../validation/simgrid/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A row of exchange_cases.csv.
struct Row {
    network: String,
    collective: String,
    divisor: u64,
    delay_ns: u64,
    messages: usize,
    simulated_s: f64,
    graph: Graph,
    group: u32,
    bytes: u64,
}

impl Row {
    fn parse(line: &str) -> Self {
        let fields: Vec<&str> = line.split(',').collect();
        let [network, collective, ports, divisor, hosts, rate_bps, delay_ns, bytes, messages, simulated_s] = fields[..]
        else {
            panic!("{line}");
        };
        let number = |text: &str| text.parse::<u64>().unwrap();
        let (ports, hosts) = (number(ports) as u32, number(hosts) as u32);
        let link =
            Link { rate: Rate::from_bps(number(rate_bps)).unwrap(), delay: Time::from_ps(1_000 * number(delay_ns)) };
        let ratio = Ratio::new(1, number(divisor)).unwrap();
        let graph = match network {
            "clos2" => FatTree::clos2(ports, ratio, link).unwrap().graph(),
            "clos3" => FatTree::clos3(ports, ratio, link).unwrap().graph(),
            _ => Star { host_count: hosts, link }.graph(),
        };
        Self {
            network: network.into(),
            collective: collective.into(),
            divisor: number(divisor),
            delay_ns: number(delay_ns),
            messages: number(messages) as usize,
            simulated_s: simulated_s.parse().unwrap(),
            graph,
            group: ports / 2,
            bytes: number(bytes),
        }
    }

    /// Returns the duration in gradtide, in s.
    fn ours(&self) -> f64 {
        let hosts = self.graph.host_count;
        let servers = |placement| ParameterServer { servers: hosts / 8, placement }.into();
        let algorithm: Algorithm = match self.collective.as_str() {
            "ring" => Ring.into(),
            "all-to-all" => AllToAll.into(),
            "butterfly" => Butterfly.into(),
            "butterfly-layered" => ButterflyLayered { group: self.group }.into(),
            "ps-packed" => servers(Placement::Packed),
            "ps-distributed" => servers(Placement::Distributed),
            other => panic!("SimGrid ran a {other}"),
        };
        let plan = algorithm.plan(hosts, Bytes(self.bytes), 1).unwrap();
        let network = Fluid::new(&self.graph, Policy::DModK, Seed(0)).unwrap();
        let found = exchange::run(&plan, &(0..hosts).collect::<Vec<_>>(), network);
        assert_eq!(found.message_count as usize, self.messages, "{self}");
        found.duration.ps() as f64 * 1e-12
    }

    /// Returns whether flows with different delays share saturated links. SimGrid divides such a link in inverse
    /// proportion to the delays.
    fn is_weighed_by_delays(&self) -> bool {
        self.delay_ns > 0 && self.collective == "ps-distributed"
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { network, collective, divisor, delay_ns, .. } = self;
        write!(f, "{collective} on {network}, bisection 1/{divisor}, {delay_ns} ns a link")
    }
}

fn rows() -> Vec<Row> {
    let rows: Vec<Row> = data("exchange_cases.csv").lines().skip(1).map(Row::parse).collect();
    assert_eq!(rows.len(), 53);
    rows.into_iter().filter(|row| row.messages < MANY || !cfg!(debug_assertions)).collect()
}

#[test]
fn exchanges_take_as_long_as_on_simgrid() {
    for row in rows().iter().filter(|row| !row.is_weighed_by_delays()) {
        // SimGrid prints 12 digits and merges events within 1e-9 s. The documented claim is a relative error below
        // 1e-6.
        let (ours, theirs) = (row.ours(), row.simulated_s);
        assert!((ours - theirs).abs() < 1e-9, "{row}: {ours} s, SimGrid {theirs} s");
    }
}

#[test]
fn distributed_servers_take_as_long_as_without_delays_and_the_delays() {
    let rows = rows();
    for row in rows.iter().filter(|row| row.is_weighed_by_delays()) {
        let same =
            |other: &&Row| (other.divisor, other.delay_ns, &other.collective) == (row.divisor, 0, &row.collective);
        let without = rows.iter().find(|other| same(other) && other.network == row.network).unwrap().simulated_s;
        // A server's link is busy without a gap while all pushes arrive, and again while all pulls leave. Each of the
        // two phases adds the delay of its path: at least two links, at most four.
        let (least, most) = (without + 4e-9 * row.delay_ns as f64, without + 8e-9 * row.delay_ns as f64);
        let ours = row.ours();
        assert!(least - 1e-12 < ours && ours < most + 1e-12, "{row}: {ours} s, not {least} s to {most} s");
    }
}

#[test]
fn ten_thousand_flows_end_when_they_do_on_simgrid() {
    if cfg!(debug_assertions) {
        return;
    }
    let link = Link { rate: Rate::from_bps(32_000_000_000).unwrap(), delay: Time::ZERO };
    let tree = FatTree::clos3(16, Ratio::new(1, 2).unwrap(), link).unwrap();
    let mut network = Fluid::new(&tree.graph(), Policy::DModK, Seed(0)).unwrap();
    let mut theirs = BTreeMap::new();
    for (flow, finish) in data("f10000_1024.csv").lines().zip(data("f10000_1024_fin.csv").lines()).skip(1) {
        let fields: Vec<u64> = flow.split(',').map(|field| field.parse().unwrap()).collect();
        let id = network.start(Flow::alone(HostId(fields[0] as u32), HostId(fields[1] as u32), Bytes(fields[2])));
        theirs.insert(id, finish.split(',').nth(1).unwrap().parse::<f64>().unwrap());
    }
    assert_eq!(theirs.len(), 10_000);
    let mut done = Vec::new();
    while !theirs.is_empty() {
        network.advance(Time::MAX, &mut done);
        for completion in done.drain(..) {
            let theirs = theirs.remove(&completion.flow).unwrap();
            let ours = completion.received.ps() as f64 * 1e-12;
            // SimGrid merges events within 1e-9 s; for flows that end within 1 ms, the relative limit is stricter.
            assert!((ours - theirs).abs() < 1e-9, "{:?}: {ours} s, SimGrid {theirs} s", completion.flow);
            assert!((ours / theirs - 1.0).abs() < 1e-6, "{:?}: {ours} s, SimGrid {theirs} s", completion.flow);
        }
    }
}
