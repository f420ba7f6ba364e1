//! Simulates a list of flows that start together, or one collective, on the fluid engine. The options and the output
//! are those of `validation/simgrid/exchange.cc`: `simgrid --network=clos2 --ports=16 --collective=ring`.
#![allow(missing_docs)]

use gradtide_net::route::Policy;
use gradtide_net::{Bytes, FatTree, Flow, Fluid, HostId, Link, Network, Rate, Ratio, Seed, Star, Time};
use gradtide_train::collective::algorithms::ps::Placement;
use gradtide_train::collective::algorithms::{Algorithm, AllToAll, Butterfly, ButterflyLayered, ParameterServer, Ring};
use gradtide_train::collective::exchange;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Options of the command line. Defaults are those of `exchange.cc`.
struct Options(BTreeMap<String, String>);

impl Options {
    fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.0.get(name).map_or(default, String::as_str)
    }

    fn number(&self, name: &str, default: f64) -> f64 {
        self.0.get(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("--{name}={text}")))
    }
}

fn main() {
    let options = Options(std::env::args().skip(1).map(|argument| option(&argument)).collect());
    let rate = Rate::from_bps(options.number("rate_bps", 32e9) as u64).expect("a rate");
    let link = Link { rate, delay: Time::from_ps((options.number("delay_ns", 200.0) * 1e3) as u64) };
    let half = options.number("ports", 16.0) as u32 / 2;
    let (tree, group) = fabric(&options, half, link);
    let hosts = tree.host_count();
    let network = Fluid::new(&tree.graph(), Policy::DModK, Seed(0)).expect("a network with routes");
    let (messages, simulated) = match options.text("flows", "") {
        "" => {
            let bytes = Bytes(options.number("bytes", 1e8) as u64);
            let algorithm = algorithm(options.text("collective", ""), hosts, group);
            let plan = algorithm.plan(hosts, bytes, 1).expect("a plan");
            let found = exchange::run(&plan, &(0..hosts).collect::<Vec<_>>(), network);
            (found.message_count, found.duration)
        }
        flows => drain(network, flows, options.text("out", "")),
    };
    println!(
        "{{\"hosts\": {hosts}, \"messages\": {messages}, \"simulated_s\": {}, \"peak_rss_mb\": {:.1}}}",
        simulated.ps() as f64 / 1e12,
        peak_megabytes()
    );
}

fn option(argument: &str) -> (String, String) {
    let (name, value) = argument.strip_prefix("--").and_then(|rest| rest.split_once('=')).expect("--option=value");
    (name.into(), value.into())
}

/// Returns the network and the number of hosts below one edge switch.
fn fabric(options: &Options, half: u32, link: Link) -> (FatTree, u32) {
    let divisor = options.number("divisor", 1.0) as u32;
    let ratio = Ratio::new(1, divisor.into()).expect("a ratio");
    let hosts = options.number("hosts", 8.0) as u32;
    let tree = match options.text("network", "clos2") {
        "clos2" => FatTree::clos2(2 * half, ratio, link),
        "clos3" => FatTree::clos3(2 * half, ratio, link),
        "leaf-spine" => FatTree::leaf_spine(hosts / half, half, half / divisor, link, link),
        "star" => return (Star { host_count: hosts, link }.into(), hosts),
        other => panic!("no such network: {other}"),
    };
    (tree.expect("a fabric"), half)
}

fn algorithm(name: &str, hosts: u32, group: u32) -> Algorithm {
    let servers = |placement| ParameterServer { servers: hosts / 8, placement }.into();
    match name {
        "ring" => Ring.into(),
        "all-to-all" => AllToAll.into(),
        "butterfly" => Butterfly.into(),
        "butterfly-layered" => ButterflyLayered { group }.into(),
        "ps-packed" => servers(Placement::Packed),
        "ps-distributed" => servers(Placement::Distributed),
        other => panic!("no such collective: {other}"),
    }
}

/// Starts all flows of the file `flows` at once, and writes the end of each flow to the file `out`. Returns the number
/// of flows and the end of the last flow.
fn drain(mut network: Fluid, flows: &str, out: &str) -> (u64, Time) {
    let text = std::fs::read_to_string(flows).unwrap_or_else(|error| panic!("{flows}: {error}"));
    let mut order = BTreeMap::new();
    for (flow, line) in text.lines().skip(1).enumerate() {
        let fields: Vec<u64> = line.split(',').map(|field| field.parse().expect("a whole number")).collect();
        let id = network.start(Flow::alone(HostId(fields[0] as u32), HostId(fields[1] as u32), Bytes(fields[2])));
        order.insert(id, flow);
    }
    let mut finish = vec![Time::ZERO; order.len()];
    let (mut done, mut left) = (Vec::new(), finish.len());
    while left > 0 {
        network.advance(Time::MAX, &mut done);
        left -= done.len();
        for completion in done.drain(..) {
            finish[order[&completion.flow]] = completion.received;
        }
    }
    if !out.is_empty() {
        let mut table = String::from("flow,finish_s\n");
        for (flow, time) in finish.iter().enumerate() {
            writeln!(table, "{flow},{:.12}", time.ps() as f64 / 1e12).expect("text grows");
        }
        std::fs::write(out, table).unwrap_or_else(|error| panic!("{out}: {error}"));
    }
    (finish.len() as u64, network.now())
}

fn peak_megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<f64>().map_or(f64::NAN, |kb| kb / 1024.0)
}
