//! Leaf-spine and Clos networks: their paths, the distribution of flows by each policy, SimGrid's paths, and the packet
//! engine on them.
#![allow(missing_docs)]

mod study;

use gradtide_net::route::{Hashes, Policy, Routes};
use gradtide_net::topology::{FatTree, Graph, Link, NodeId, PortId};
use gradtide_net::{
    Bytes, Connection, Flow, Fluid, HostId, Network, PacketConfig, PacketEngine, Rate, Ratio, Seed, Star, Time,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use study::{Arrival, NS, replay};

const POLICIES: [Policy; 3] = [Policy::Ecmp, Policy::DModK, Policy::Spread];

fn link() -> Link {
    Link { rate: Rate::from_bps(10_000_000_000).unwrap(), delay: Time::from_ps(1_000 * NS) }
}

fn ratio(denominator: u64) -> Ratio {
    Ratio::new(1, denominator).unwrap()
}

fn clos2(ports: u32, denominator: u64) -> FatTree {
    FatTree::clos2(ports, ratio(denominator), link()).unwrap()
}

fn clos3(ports: u32, denominator: u64) -> FatTree {
    FatTree::clos3(ports, ratio(denominator), link()).unwrap()
}

fn routes(tree: &FatTree, policy: Policy) -> (Graph, Routes) {
    let graph = tree.graph();
    let routes = Routes::shortest(&graph).unwrap().by(policy);
    (graph, routes)
}

fn loads(graph: &Graph, routes: &Routes, flows: impl IntoIterator<Item = (u32, u32)>) -> Vec<u32> {
    let mut loads = vec![0; graph.links.len()];
    for (src, dst) in flows {
        routes.path(src, dst, 0).iter().for_each(|port| loads[port.0 as usize] += 1);
    }
    loads
}

fn tier(tree: &FatTree, node: NodeId) -> u32 {
    match tree.node_name(node).trim_end_matches(char::is_numeric) {
        "h" => 0,
        "s" | "leaf" | "edge" => 1,
        "spine" | "agg" => 2,
        _ => 3,
    }
}

fn any_tree() -> impl Strategy<Value = FatTree> {
    prop_oneof![
        (1_u32..9).prop_map(|host_count| FatTree::from(Star { host_count, link: link() })),
        (1_u32..6, 1_u32..6, 1_u32..6).prop_map(|(leaves, hosts, spines)| FatTree::leaf_spine(
            leaves,
            hosts,
            spines,
            link(),
            link()
        )
        .unwrap()),
        (1_u32..6, 1_u32..6).prop_filter_map("no more up than down", |(half, up)| {
            let ratio = Ratio::new(up.into(), half.into()).unwrap();
            FatTree::clos2(2 * half, ratio, link()).ok()
        }),
        (1_u32..4, 1_u32..4).prop_filter_map("no more up than down", |(half, up)| {
            let ratio = Ratio::new(up.into(), half.into()).unwrap();
            FatTree::clos3(2 * half, ratio, link()).ok()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_host_reaches_every_host_up_and_then_down(tree in any_tree(), hash: u32, policy in 0..3_usize) {
        let (graph, routes) = routes(&tree, POLICIES[policy]);
        for (src, dst) in (0..graph.host_count).flat_map(|src| (0..graph.host_count).map(move |dst| (src, dst))) {
            let path = routes.path(src, dst, hash);
            let mut nodes = vec![NodeId(src)];
            for &port in &path {
                prop_assert_eq!(graph.near(port), *nodes.last().unwrap(), "links join");
                nodes.push(graph.far(port));
            }
            prop_assert_eq!(nodes.last(), Some(&NodeId(dst)));
            let tiers: Vec<u32> = nodes.iter().map(|&node| tier(&tree, node)).collect();
            let top = path.len() as u32 / 2;
            prop_assert!(top <= 3);
            let expected: Vec<u32> = (0..=top).chain((0..top).rev()).collect();
            prop_assert_eq!(tiers, expected, "2, 4 or 6 hops, and no loops: up, then down");
            prop_assert!(path.len() as u32 <= tree.hop_count());
        }
    }

    #[test]
    fn a_shape_is_what_the_graph_has(tree in any_tree()) {
        let graph = tree.graph();
        let nodes: Vec<NodeId> = (0..graph.host_count + graph.switch_count).map(NodeId).collect();
        let top = nodes.iter().map(|&node| tier(&tree, node)).max().unwrap();
        prop_assert_eq!(tree.hop_count(), 2 * top, "up to the top and down again");
        // Links are listed by tier, so all hosts below a node are known before the node's own links up are visited.
        let mut below: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); nodes.len()];
        (0..graph.host_count).for_each(|host| { below[host as usize].insert(host); });
        let mut shared = 0;
        for wire in graph.links.iter().filter(|wire| tier(&tree, wire.from) < tier(&tree, wire.to)) {
            let carried = below[wire.from.0 as usize].clone();
            shared = shared.max(carried.len());
            below[wire.to.0 as usize].extend(carried);
        }
        prop_assert_eq!(tree.shared_by() as usize, shared, "hosts whose traffic up one link can carry");
        for &edge in nodes.iter().filter(|&&node| tier(&tree, node) == 1) {
            prop_assert_eq!(tree.hosts_per_edge() as usize, below[edge.0 as usize].len());
        }
    }
}

#[test]
fn paths_are_as_long_as_the_hosts_are_apart() {
    let (_, routes) = routes(&clos3(4, 1), Policy::Ecmp);
    let lengths = [0, 1, 2, 4, 15].map(|dst| routes.path(0, dst, 0).len());
    assert_eq!(lengths, [0, 2, 4, 6, 6]);
}

#[test]
fn hashes_use_every_top_alike() {
    // 160 hashes in equal steps over all 32 bits: each of the 16 top switches of a Clos network of 8-port switches gets
    // 10.
    let (graph, routes) = routes(&clos3(8, 1), Policy::Ecmp);
    let mut loads = vec![0; graph.links.len()];
    for step in 0..160_u32 {
        let path = routes.path(0, 127, (u64::from(step) * (1 << 32) / 160) as u32);
        loads[path[2].0 as usize] += 1;
    }
    let used: Vec<u32> = loads.into_iter().filter(|&load| load > 0).collect();
    assert_eq!(used, [10; 16]);
}

#[test]
fn shifts_meet_no_conflict_when_spread() {
    // With as many links up as down, a permutation of hosts can use every link exclusively. With `spread`, every cyclic
    // shift of the hosts does.
    for tree in [clos2(6, 1), clos2(8, 1), clos2(16, 1), clos3(4, 1), clos3(6, 1), clos3(8, 1)] {
        let (graph, routes) = routes(&tree, Policy::Spread);
        let hosts = graph.host_count;
        for shift in 1..hosts {
            let most = loads(&graph, &routes, (0..hosts).map(|src| (src, (src + shift) % hosts))).into_iter().max();
            assert_eq!(most, Some(1), "{hosts} hosts, shift {shift}");
        }
    }
}

#[test]
fn shifts_share_the_links_up_evenly_at_any_bisection() {
    // The 8 hosts of a leaf share its 8 r links up (r: bisection ratio), so a link carries at most 1/r flows.
    for denominator in [2, 4, 8] {
        let (graph, routes) = routes(&clos2(16, denominator), Policy::Spread);
        for shift in 1..128 {
            let most = loads(&graph, &routes, (0..128).map(|src| (src, (src + shift) % 128))).into_iter().max();
            assert!(most.unwrap() <= denominator as u32, "r = 1/{denominator}, shift {shift}: {most:?}");
        }
    }
}

#[test]
fn heads_of_sub_clusters_collide_with_d_mod_k_and_part_when_spread() {
    // A butterfly among the first hosts of the 128 edge switches of a network of 1024 hosts. In step s, the partner is
    // 2^s edge switches away.
    let heads = |step: u32| (0..128_u32).map(move |edge| (8 * edge, 8 * (edge ^ (1 << step))));
    for denominator in [1, 2, 4, 8] {
        let tree = clos3(16, denominator);
        let most = |policy| {
            let (graph, routes) = routes(&tree, policy);
            (0..7).map(|step| loads(&graph, &routes, heads(step)).into_iter().max().unwrap()).max().unwrap()
        };
        assert_eq!(most(Policy::Spread), 1, "r = 1/{denominator}");
        // The number of a head, i.e. of the first host of an edge switch, is a multiple of 8. With r = 1 its top switch
        // is dst mod 64, so heads use 8 top switches. All of these are connected to aggregation switch 0 of a pod,
        // whose 8 links up carry one head each. With P = 8 r aggregation switches, the top switch's number dst / P mod
        // 8 is a multiple of 1/r, so the 8 heads of a pod share 8 r links.
        assert_eq!(most(Policy::DModK), denominator as u32, "r = 1/{denominator}");
    }
}

#[test]
fn one_server_on_every_edge_switch_loads_no_link_more_than_its_share_when_spread() {
    // 32 servers are the first hosts of the edge switches; each of the 96 workers has a flow to or from each server.
    // With an even distribution, a link between an edge and an aggregation switch carries the 31 flows of one worker to
    // the other edge switches. D-mod-k sends all flows of three workers through one link.
    let tree = clos3(8, 1);
    let pairs = || (0..128_u32).filter(|host| host % 4 != 0).flat_map(|worker| (0..32).map(move |e| (worker, 4 * e)));
    let most = |policy, pull: bool| {
        let (graph, routes) = routes(&tree, policy);
        let flows = pairs().map(|(worker, server)| if pull { (server, worker) } else { (worker, server) });
        let loads = loads(&graph, &routes, flows);
        let fabric = graph.links.iter().zip(loads);
        let between =
            fabric.filter(|(to, _)| [to.from, to.to].iter().all(|node| (1..=2).contains(&tier(&tree, *node))));
        between.map(|(_, load)| load).max().unwrap()
    };
    assert_eq!((most(Policy::Spread, false), most(Policy::Spread, true)), (31, 31));
    assert_eq!(most(Policy::DModK, false), 93);
}

/// Returns the ends of SimGrid's link `lower_upper_number_UP` or `..._DOWN`. SimGrid numbers hosts from 0 to n - 1, and
/// switches from 2n - 1 downwards.
fn simgrid_link(graph: &Graph, name: &str) -> (NodeId, NodeId) {
    let hosts = graph.host_count;
    let node = |text: &str| match text.parse::<u32>().unwrap() {
        host if host < hosts => NodeId(host),
        switch => NodeId(hosts + 2 * hosts - 1 - switch),
    };
    let parts: Vec<&str> = name.split('_').collect();
    let (lower, upper) = (node(parts[0]), node(parts[1]));
    if parts[3] == "UP" { (lower, upper) } else { (upper, lower) }
}

#[test]
fn d_mod_k_takes_the_links_that_simgrid_takes() {
    let cases = [
        (clos2(16, 2), include_str!("../../../validation/simgrid/routes_clos2_128.csv"), 2000),
        (clos3(16, 2), include_str!("../../../validation/simgrid/routes_clos3_1024.csv"), 1000),
    ];
    for (tree, text, count) in cases {
        let (graph, routes) = routes(&tree, Policy::DModK);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(rows.len(), count);
        for row in rows {
            let names = row.split_once(',').unwrap().1.split_whitespace();
            let expected: Vec<(NodeId, NodeId)> = names.map(|name| simgrid_link(&graph, name)).collect();
            let (src, dst) = (expected[0].0, expected[expected.len() - 1].1);
            let path = routes.path(src.0, dst.0, 0);
            let taken: Vec<_> = path.iter().map(|&port| (graph.near(port), graph.far(port))).collect();
            assert_eq!(taken, expected, "{row}");
        }
    }
}

fn engine(tree: &FatTree, policy: Policy) -> PacketEngine {
    let star = Star { host_count: tree.host_count(), link: link() };
    let config = PacketConfig { routing: policy, ..PacketConfig::basic_sim(&star) };
    PacketEngine::new(&tree.graph(), config).unwrap()
}

fn arrival(src: u32, dst: u32, bytes: u64) -> Arrival {
    Arrival { start_ns: 0, src, dst, bytes, tos: 16 }
}

#[test]
fn one_segment_takes_as_many_serialisations_and_delays_as_there_are_hops() {
    // The formula is that of two hops in packet_theory.rs, but with `hops` links of 10 Gbit/s and 1 us: the SYN (58 B)
    // and the SYN-ACK, then a segment behind the handshake's ACK (54 B), then the acknowledgement with the receiver's
    // FIN behind it.
    let wire_ns = |bytes: u64| (bytes * 8 + 5) / 10;
    for policy in POLICIES {
        for (tree, dst, hops) in [(clos2(8, 1), 31, 4), (clos3(4, 1), 2, 4), (clos3(4, 1), 15, 6)] {
            let way_ns = |bytes| hops * (wire_ns(bytes) + 1_000);
            let fct = replay(&mut engine(&tree, policy), &[arrival(0, dst, 1000)])[0].unwrap();
            let connected_ns = 2 * way_ns(58);
            let received_ns = connected_ns + wire_ns(54) + way_ns(54 + 1000);
            assert_eq!(fct.connected_ns, connected_ns);
            assert_eq!(fct.received_ns, received_ns, "{hops} hops");
            assert_eq!(fct.close_ns, received_ns + way_ns(54) + wire_ns(54));
        }
    }
}

#[test]
fn a_permutation_without_conflicts_is_as_fast_as_one_flow() {
    // Every host sends a flow to the corresponding host of the next pod. With `spread`, data of no two flows shares a
    // link.
    let tree = clos3(4, 1);
    let alone = replay(&mut engine(&tree, Policy::Spread), &[arrival(0, 4, 1_000_000)])[0].unwrap().received_ns;
    let list: Vec<Arrival> = (0..16).map(|src| arrival(src, (src + 4) % 16, 1_000_000)).collect();
    let slowest = |policy| {
        let mut engine = engine(&tree, policy);
        let results = replay(&mut engine, &list);
        assert!(engine.is_idle() && engine.conserves_packets());
        results.into_iter().map(|fct| fct.expect("every flow completes").received_ns).max().unwrap()
    };
    let spread = slowest(Policy::Spread);
    // Acknowledgements of other flows share the links and take 44 ns for each of 725 segments. An acknowledgement also
    // waits on each of six hops for at most one packet of data (1434 B, 1148 ns), which delays slow start once per
    // round: the windows 10, 15, ... reach 725 segments in 9 rounds, and the handshake counts as two more rounds.
    let most = alone + 725 * 44 + 11 * 6 * 1_148;
    assert!((alone..=most).contains(&spread), "{alone} <= {spread} <= {most}");
    // If two flows share a link, the slower one takes longer by the transmission of 1 MB.
    let ecmp = slowest(Policy::Ecmp);
    assert!(ecmp > most, "hashes collide: {ecmp} > {most}");
}

#[test]
fn a_spread_packet_takes_the_path_of_its_source() {
    // The counters of the ports match `Routes::path`, for data and for acknowledgements.
    let tree = clos3(4, 1);
    for policy in [Policy::DModK, Policy::Spread] {
        let (graph, routes) = routes(&tree, policy);
        for (src, dst) in [(0, 15), (1, 6), (9, 2), (5, 7)] {
            let mut engine = engine(&tree, policy);
            replay(&mut engine, &[arrival(src, dst, 100_000)]);
            let mut expected = [routes.path(src, dst, 0), routes.path(dst, src, 0)].concat();
            expected.sort();
            let ports = (0..graph.links.len() as u32).map(PortId);
            let used: Vec<PortId> = ports.filter(|&port| engine.port_counters(port).packets > 0).collect();
            assert_eq!(used, expected, "{src} to {dst}");
        }
    }
}

/// Runs three waves of flows, each until its end. Some flows have connections of their own, and some share the
/// connections of two streams. Engines thus open and close connections at different instants, and reuse the slots of
/// closed connections.
fn waves(network: &mut dyn Network, bytes: u64) {
    for wave in 0..3_u32 {
        for number in 0..12_u32 {
            let (src, dst) = (number, (number + 5 + wave) % 16);
            let connection = if number.is_multiple_of(3) { Connection::Stream } else { Connection::Own };
            let alone = Flow::alone(HostId(src), HostId(dst), Bytes(bytes));
            network.start(Flow { stream: number % 2, connection, ..alone });
        }
        let mut done = Vec::new();
        while done.len() < 12 {
            network.advance(Time::MAX, &mut done);
        }
    }
}

#[test]
fn flows_take_the_same_links_on_the_fluid_and_the_packet_engine() {
    // A flow has 200 segments with a payload of 1380 bytes. The paths are the same on both engines if a port of the
    // packet engine counts the data bytes of the fluid engine's port, plus less than one flow for handshakes and
    // acknowledgements: all of these together, 101 acknowledgements of 54 bytes and 4 packets of 58 bytes for each of
    // 36 flows, are less than one flow.
    const SEGMENTS: u64 = 200;
    let of_flow = SEGMENTS * (1_380 + 54);
    assert!(36 * (101 * 54 + 4 * 58) < of_flow);
    let graph = FatTree::leaf_spine(4, 4, 4, link(), link()).unwrap().graph();
    let ports = || (0..graph.links.len() as u32).map(PortId);
    let mut loads = Vec::new();
    for seed in [0, 1, 2].map(Seed) {
        let mut fluid = Fluid::new(&graph, Policy::Ecmp, seed).unwrap();
        waves(&mut fluid, of_flow);
        let star = Star { host_count: 16, link: link() };
        let mut packets = PacketEngine::new(&graph, PacketConfig { seed, ..PacketConfig::basic_sim(&star) }).unwrap();
        waves(&mut packets, SEGMENTS * 1_380);
        assert_eq!(packets.counters().retransmits, 0);
        for port in ports() {
            let (fluids, packets) = (fluid.port_counters(port).bytes, packets.port_counters(port).bytes);
            assert!((fluids..fluids + of_flow).contains(&packets), "{seed:?}, {port:?}: {packets} bytes, not {fluids}");
        }
        loads.push(ports().map(|port| fluid.port_counters(port).bytes).collect::<Vec<u64>>());
    }
    assert!(loads[0] != loads[1] && loads[1] != loads[2] && loads[2] != loads[0], "each seed has its own paths");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// There are 8192 connections on 16 paths, so a path has 512 on average, with a standard deviation of 21.9. The
    /// tolerance is five of them.
    #[test]
    fn hashes_share_connections_among_paths_evenly(seed: u64, stream in 0..4_u32) {
        let mut hashes = Hashes::new(Seed(seed));
        let mut counts = [0_i64; 16];
        for (src, dst) in (0..64_u32).flat_map(|src| (0..64).map(move |dst| (src, dst))) {
            let alone = Flow { stream, ..Flow::alone(HostId(src), HostId(dst), Bytes(1)) };
            for connection in [Connection::Own, Connection::Stream] {
                counts[(hashes.open(&Flow { connection, ..alone }) >> 28) as usize] += 1;
            }
        }
        prop_assert!(counts.iter().all(|count| (count - 512).abs() < 110), "{counts:?}");
    }
}
