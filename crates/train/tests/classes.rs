//! Times of collectives on rank classes, against closed forms and a simulation of every rank on the cluster's graph.
#![allow(missing_docs)]

use CollectiveKind::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter, Send};
use gradtide_net::route::Policy;
use gradtide_net::{Band, Bytes, Fluid, Host, Network, Seed, Time};
use gradtide_train::classes::{Classes, GroupOp};
use gradtide_train::collective::algorithms::hierarchical::{Hierarchical, Inside};
use gradtide_train::collective::algorithms::{self, Algorithm, PointToPoint, Ring};
use gradtide_train::collective::levels::{CollectiveKind, Span};
use gradtide_train::collective::messages::{Collective, Depth, MessageSize};
use gradtide_train::collective::nodes::Carriage;
use gradtide_train::fabric::Fabric;
use gradtide_train::fabric::NetworkError;
use gradtide_train::spec::ClusterSpec;
use serde_json::{Value, json};

const KINDS: [CollectiveKind; 6] = [AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Send];

/// Nodes of 8 GPUs. A scale-up port sends 1 byte per ps, a network card 0.1 byte per ps. A message is delayed by 2 us
/// within a node and by 20 us between nodes.
fn cluster(topology: Value, nics: u32) -> ClusterSpec {
    serde_json::from_value(json!({
        "topology": topology,
        "link": {"rate_bps": 800_000_000_000_u64, "delay_ps": 10_000_000},
        "node": {
            "gpus": 8,
            "nics": nics,
            "scale_up": {"rate_bps": 8_000_000_000_000_u64, "delay_ps": 1_000_000}
        },
    }))
    .unwrap()
}

fn star(nics: u32) -> ClusterSpec {
    cluster(json!({"kind": "star", "hosts": 64}), nics)
}

fn op<'a>(kind: CollectiveKind, ranks: u32, per_node: u32, bytes: u64, classes: &'a [u32]) -> GroupOp<'a> {
    GroupOp { kind, bytes: Bytes(bytes), span: Span::new(ranks, per_node).unwrap(), classes }
}

fn carriage() -> Carriage {
    Carriage { band: Band::new(0).unwrap(), stream: 0 }
}

/// Returns the end of each op. All ops begin at time 0.
fn ends(classes: &Classes, network: &mut dyn Network, ops: &[GroupOp<'_>]) -> Vec<Time> {
    let mut under_way: Vec<_> = ops.iter().map(|op| classes.begin(op, carriage(), network)).collect();
    let mut ends = vec![network.now(); ops.len()];
    let mut done = Vec::new();
    while under_way.iter().any(Option::is_some) {
        network.advance(Time::MAX, &mut done);
        for completion in done.drain(..) {
            for (aggregation, end) in under_way.iter_mut().zip(&mut ends) {
                if aggregation
                    .as_mut()
                    .is_some_and(|it| it.has(completion.flow) && it.on_completion(completion, &mut &mut *network))
                {
                    (*aggregation, *end) = (None, network.now());
                }
            }
        }
    }
    ends
}

fn ends_on_fluid(classes: &Classes, ops: &[GroupOp<'_>]) -> Vec<Time> {
    ends(classes, &mut classes.fluid(Seed(0)).unwrap(), ops)
}

fn assert_near(found: Time, expected: f64, what: &str) {
    // Times are rounded to picoseconds. Sizes are rounded to bytes at each of two levels, and a byte takes at most 10
    // ps.
    assert!((found.ps() as f64 - expected).abs() <= 32.0, "{what}: {found:?}, and {expected} ps are expected");
}

#[test]
fn collectives_alone_take_their_closed_forms() {
    let classes = Classes::new(&star(8), 2).unwrap();
    let (s, inside, outside) = (64e6, 2e6, 20e6);
    let cases = [
        // One node of n = 8 ranks. An all-gather or reduce-scatter has n-1 rounds of S/n, an all-reduce twice as many.
        // The messages of an all-to-all share the port and its delay. A broadcast is a pipeline over a chain of n-1
        // links.
        (op(AllGather, 8, 8, 64_000_000, &[0]), 7.0 * (s / 8.0 + inside)),
        (op(ReduceScatter, 8, 8, 64_000_000, &[0]), 7.0 * (s / 8.0 + inside)),
        (op(AllReduce, 8, 8, 64_000_000, &[0]), 14.0 * (s / 8.0 + inside)),
        (op(AllToAll, 8, 8, 64_000_000, &[0]), 7.0 * s / 8.0 + inside),
        (op(Broadcast, 8, 8, 64_000_000, &[0]), s + 7.0 * inside),
        // One rank on each of 64 nodes. Every message of S/64 is sent by a card, at 0.1 byte per ps: S/6.4 ps.
        (op(AllGather, 64, 1, 64_000_000, &[0]), 63.0 * (s / 6.4 + outside)),
        (op(AllToAll, 64, 1, 64_000_000, &[0]), 63.0 * s / 6.4 + outside),
        // 8 ranks on each of 8 nodes. A ring has 56 rounds within nodes and 7 between them. The 8 cards of a node share
        // its traffic: 63/64 S leave the node at 0.8 byte per ps. In an all-to-all, each card sends 56/64 S, the parts
        // for other nodes.
        (op(AllGather, 64, 8, 64_000_000, &[0]), 56.0 * inside + s * 63.0 / 64.0 / 0.8 + 7.0 * outside),
        (op(AllToAll, 64, 8, 64_000_000, &[0]), s * 56.0 / 64.0 * 10.0 + outside),
        // A small all-reduce is a tree: 14 rounds within nodes, 6 rounds between 8 nodes, and 2 S at 0.8 byte per ps.
        (op(AllReduce, 64, 8, 1_000, &[0]), 14.0 * inside + 2_000.0 / 0.8 + 6.0 * outside),
        (op(Send, 2, 2, 64_000_000, &[0, 1]), s + inside),
        (op(Send, 2, 1, 64_000_000, &[0, 1]), s * 10.0 + outside),
    ];
    for (op, expected) in cases {
        let what = format!("{:?} of {:?}", op.kind, op.span);
        assert_near(classes.time(&op).unwrap(), expected, &what);
        assert_near(ends_on_fluid(&classes, &[op])[0], expected, &what);
    }
}

#[test]
fn of_ring_and_tree_the_faster_one_is_taken() {
    let classes = Classes::new(&star(8), 1).unwrap();
    let time = |bytes| classes.time(&op(AllReduce, 64, 8, bytes, &[0])).unwrap().ps() as f64;
    // A small all-reduce is the tree, with 14 + 6 rounds instead of 112 + 14 of the ring. A large one is the ring, in
    // which a card sends 2 · 63/64 S / 8 instead of 2 S / 8.
    assert!(time(8) < 14.0 * 2e6 + 6.0 * 20e6 + 100.0);
    let large = 64_000_000_000_f64;
    assert_near(
        Time::from_ps(time(64_000_000_000) as u64),
        112.0 * 2e6 + large * 126.0 / 64.0 / 0.8 + 14.0 * 20e6,
        "ring",
    );
}

#[test]
fn gpus_that_share_a_card_have_their_part_of_it() {
    let op = op(AllToAll, 64, 1, 64_000_000, &[0]);
    let time = |nics| Classes::new(&star(nics), 1).unwrap().time(&op).unwrap();
    assert_near(time(4), 2.0 * (time(8).ps() as f64 - 20e6) + 20e6, "two GPUs at a card");
}

#[test]
fn groups_of_one_class_share_its_ports() {
    let classes = Classes::new(&star(8), 2).unwrap();
    let alone = classes.time(&op(AllToAll, 8, 8, 64_000_000, &[0])).unwrap().ps() as f64;
    let sending = alone - 2e6;
    let ops = [op(AllToAll, 8, 8, 64_000_000, &[0]); 2];
    assert_near(ends_on_fluid(&classes, &ops)[1], 2.0 * sending + 2e6, "both");
    // An op of another class, or on another level, does not delay the first op.
    let apart = [op(AllToAll, 8, 8, 64_000_000, &[0]), op(AllToAll, 8, 8, 64_000_000, &[1])];
    ends_on_fluid(&classes, &apart).iter().for_each(|&end| assert_near(end, alone, "another class"));
    let levels = [op(AllToAll, 8, 8, 64_000_000, &[0]), op(Send, 2, 1, 64_000_000, &[0, 1])];
    assert_near(ends_on_fluid(&classes, &levels)[0], alone, "another level");
}

#[test]
fn an_all_to_all_has_the_share_of_each_of_its_messages() {
    let classes = Classes::new(&star(8), 2).unwrap();
    // Eight flows share the port at 1/8 byte per ps each: seven messages of 8 MB and the send of 64 MB. The messages
    // end after 64 us and the delay of 2 us. The send ends when all 120 MB have left the port, plus the delay.
    let ops = [op(AllToAll, 8, 8, 64_000_000, &[0]), op(Send, 2, 2, 64_000_000, &[0, 1])];
    let [exchange, send] = ends_on_fluid(&classes, &ops)[..] else { panic!("two ends") };
    assert_near(exchange, 8.0 * 8e6 + 2e6, "the all-to-all");
    assert_near(send, 56e6 + 64e6 + 2e6, "the send");
}

#[test]
fn a_group_of_several_classes_ends_with_the_last_of_them() {
    let classes = Classes::new(&star(8), 3).unwrap();
    let all = op(AllReduce, 64, 8, 64_000_000, &[0, 1, 2]);
    let alone = classes.time(&all).unwrap();
    let ends = ends_on_fluid(&classes, &[op(AllToAll, 64, 1, 64_000_000, &[2]), all]);
    assert!(ends[1] > alone, "the third class is late by what it sends beside");
    assert_near(ends_on_fluid(&classes, &[all])[0], alone.ps() as f64, "alone");
}

#[test]
fn one_rank_and_no_bytes_need_no_flow_or_no_time() {
    let classes = Classes::new(&star(8), 1).unwrap();
    for kind in KINDS.into_iter().filter(|&kind| kind != Send) {
        let mut network = classes.fluid(Seed(0)).unwrap();
        assert!(classes.begin(&op(kind, 1, 1, 1_000, &[0]), carriage(), &mut network).is_none(), "{kind:?}");
        assert!(ends_on_fluid(&classes, &[op(kind, 8, 8, 0, &[0])])[0].ps() <= 28_000_000);
    }
    assert_eq!(classes.time(&op(AllReduce, 8, 8, u64::MAX, &[0])), None, "too long for the clock");
}

#[test]
fn stages_of_hosts_are_refused() {
    let mut slow = star(8);
    slow.host = Some(Host { message: Time::from_ps(1), ..Host::default() });
    assert_eq!(Classes::new(&slow, 1).unwrap_err(), NetworkError::StagesOfClasses);
}

#[test]
fn networks_of_several_switches_have_no_classes() {
    let leaf_spine = json!({"kind": "leaf_spine", "leaves": 8, "hosts_per_leaf": 8, "spines": 8,
                            "fabric_link": {"rate_bps": 800_000_000_000_u64, "delay_ps": 5_000_000}});
    let clos = |kind, ratio| json!({"kind": kind, "ports": 8, "bisection": [1, ratio]});
    // Without a list of hosts, `unshared` assumes the longest route: two links of 10 us to the hosts, and the links
    // between switches.
    let networks = [(leaf_spine, 30), (clos("clos2", 1), 40), (clos("clos2", 2), 40), (clos("clos3", 1), 60)];
    for (topology, delay_us) in networks {
        let cluster = cluster(topology, 8);
        assert_eq!(Classes::new(&cluster, 1).unwrap_err(), NetworkError::SwitchesOfClasses);
        let time_of = |hosts: &[u32]| {
            Classes::unshared(&cluster, hosts).unwrap().time(&op(AllToAll, 64, 1, 0, &[0])).unwrap().ps() / 1_000_000
        };
        assert_eq!(time_of(&[]), delay_us);
        // On nodes of 8 cards, GPUs 0 and 1 are below one switch, but GPUs 0 and 127 are not.
        assert_eq!((time_of(&[0, 1]), time_of(&[0, 127])), (20, delay_us));
    }
}

#[test]
fn nodes_that_cannot_be_are_refused() {
    for nics in [0, 3] {
        assert!(matches!(Classes::new(&star(nics), 1), Err(NetworkError::Node(_))), "{nics} cards");
    }
    let mut slow = star(8);
    slow.node.as_mut().unwrap().scale_up.efficiency_ppm = 0;
    assert_eq!(Classes::new(&slow, 1).unwrap_err(), NetworkError::ZeroRate);
}

/// Simulates one collective in each group, with all ranks on the cluster's graph, and returns the time at which the
/// last message arrives. A group lists its GPUs in the order of its ranks.
fn per_rank(cluster: &ClusterSpec, algorithm: Algorithm, groups: &[Vec<u32>], bytes: u64) -> Time {
    let fabric = Fabric::new(cluster).unwrap();
    let mut fluid = Fluid::new(&fabric.graph, Policy::Ecmp, Seed(0)).unwrap();
    let mut network = fabric.ends.around(&mut fluid);
    let band = Band::new(0).unwrap();
    let mut under_way: Vec<_> = (0..)
        .zip(groups)
        .map(|(stream, group)| {
            let depth = Depth::Fixed(1);
            Collective::new(algorithm, group.clone(), Bytes(bytes), depth, None, MessageSize::Even).unwrap().begin(
                Bytes(bytes),
                band,
                stream,
                network.as_mut(),
            )
        })
        .collect();
    let (mut left, mut done) = (groups.len(), Vec::new());
    while left > 0 {
        network.advance(Time::MAX, &mut done);
        for completion in done.drain(..) {
            left -= usize::from(under_way[completion.stream as usize].on_completion(completion, network.as_mut()));
        }
    }
    network.now()
}

/// Returns, for each i below 8, the group of the i-th GPUs of all nodes.
fn across(nodes: u32) -> Vec<Vec<u32>> {
    (0..8).map(|gpu| (0..nodes).map(|node| 8 * node + gpu).collect()).collect()
}

fn within(nodes: u32) -> Vec<Vec<u32>> {
    (0..nodes).map(|node| (8 * node..8 * node + 8).collect()).collect()
}

fn eight_nodes(nics: u32) -> ClusterSpec {
    cluster(json!({"kind": "star", "hosts": 8 * nics}), nics)
}

#[test]
fn classes_take_the_time_of_all_their_ranks_on_a_star() {
    let bytes = 64_000_000;
    let everyone = vec![(0..64).collect::<Vec<u32>>()];
    let cases = [
        (Algorithm::from(Ring), AllReduce, within(8), 8, 8),
        (algorithms::AllGather.into(), AllGather, within(8), 8, 8),
        (algorithms::ReduceScatter.into(), ReduceScatter, within(8), 8, 8),
        (algorithms::AllToAll.into(), AllToAll, within(8), 8, 8),
        (algorithms::AllGather.into(), AllGather, across(8), 8, 1),
        (algorithms::ReduceScatter.into(), ReduceScatter, across(8), 8, 1),
        (algorithms::AllToAll.into(), AllToAll, across(8), 8, 1),
        (algorithms::AllToAll.into(), AllToAll, everyone, 64, 8),
        (PointToPoint.into(), Send, (0..4).map(|i| vec![2 * i, 2 * i + 1]).collect(), 2, 2),
        (PointToPoint.into(), Send, (0..8).map(|i| vec![i, 8 + i]).collect(), 2, 1),
    ];
    for nics in [8, 4] {
        let cluster = eight_nodes(nics);
        let classes = Classes::new(&cluster, 2).unwrap();
        for (algorithm, kind, groups, ranks, per_node) in &cases {
            let of_classes = ends_on_fluid(
                &classes,
                &[op(*kind, *ranks, *per_node, bytes, &[0, 1][..1 + usize::from(*kind == Send)])],
            );
            let expected = per_rank(&cluster, *algorithm, groups, bytes).ps() as f64;
            assert_near(of_classes[0], expected, &format!("{kind:?} of {ranks}, {per_node} on a node of {nics} cards"));
        }
    }
}

#[test]
fn a_hierarchical_all_reduce_is_four_collectives_of_classes() {
    let bytes = 64_000_000;
    let sharded = Hierarchical { group: 8, inside: Inside::Sharded }.into();
    // The per-rank simulation uses a ring between nodes. An all-reduce of classes would use the tree, which has fewer
    // rounds, so its two halves are listed as ring collectives.
    let rings = [
        op(ReduceScatter, 8, 8, bytes, &[0]),
        op(ReduceScatter, 8, 1, bytes / 8, &[0]),
        op(AllGather, 8, 1, bytes / 8, &[0]),
        op(AllGather, 8, 8, bytes, &[0]),
    ];
    for nics in [8, 4] {
        // Cho et al. (2019): 2 · 7 messages of S/8 = 8 MB within nodes, and 2 · 7 of S/64 = 1 MB between them, where a
        // rank has nics/8 of a card.
        let expected = 14.0 * (8e6 + 2e6) + 14.0 * (10e6 * 8.0 / f64::from(nics) + 20e6);
        let cluster = eight_nodes(nics);
        assert_near(per_rank(&cluster, sharded, &[(0..64).collect()], bytes), expected, "all ranks");
        let classes = Classes::new(&cluster, 1).unwrap();
        let time: u64 = rings.iter().map(|ring| classes.time(ring).unwrap().ps()).sum();
        assert_near(Time::from_ps(time), expected, "classes");
    }
}

/// Returns eight rings over 64 GPUs. Each ring leaves a node through a different card.
fn turned_rings() -> Vec<Vec<u32>> {
    (0..8).map(|ring| (0..64).map(|rank| rank / 8 * 8 + (ring + rank) % 8).collect()).collect()
}

#[test]
fn a_ring_over_nodes_is_a_ring_for_each_card() {
    let (mut cluster, bytes) = (eight_nodes(8), 64_000_000);
    let rings = |cluster: &ClusterSpec| per_rank(cluster, algorithms::AllGather.into(), &turned_rings(), bytes / 8);
    let op = op(AllGather, 64, 8, bytes, &[0]);
    let sending = 64e6 * 63.0 / 64.0 / 0.8;
    // With delays, a card may send the next message while the previous one still travels. All ranks thus take at most
    // the time of the classes, and at least the time of sending plus one delay.
    let of_classes = Classes::new(&cluster, 1).unwrap().time(&op).unwrap();
    let found = rings(&cluster);
    assert!(found <= of_classes, "{found:?} of all ranks, {of_classes:?} of classes");
    assert!(found.ps() as f64 >= sending + 20e6, "cards are busy for {sending} ps, and the last message travels");
    // Without delays, cards are never idle, so the time is the pure sending time.
    cluster.link.delay = Time::ZERO;
    cluster.node.as_mut().unwrap().scale_up.delay = Time::ZERO;
    assert_near(rings(&cluster), sending, "all ranks without delays");
    assert_near(Classes::new(&cluster, 1).unwrap().time(&op).unwrap(), sending, "classes without delays");
}

#[test]
fn links_of_nodes_say_what_they_join() {
    let leaf_spine = json!({"kind": "leaf_spine", "leaves": 2, "hosts_per_leaf": 4, "spines": 1,
        "fabric_link": {"rate_bps": 800_000_000_000_u64, "delay_ps": 0}});
    let fabric = Fabric::new(&cluster(leaf_spine, 4)).unwrap();
    let names: Vec<&str> = fabric.link_names.iter().map(AsRef::as_ref).collect();
    for name in
        ["node0.nic3->leaf0", "leaf1->node1.nic0", "leaf1-spine0", "node1.gpu7->nvswitch", "nvswitch->node0.gpu0"]
    {
        assert_eq!(names.iter().filter(|&&other| other == name).count(), 1, "{name} of {names:?}");
    }
    assert_eq!((fabric.place_count(), fabric.graph.host_count, fabric.graph.switch_count), (16, 8 + 16, 3 + 2));
}

#[test]
fn cards_that_are_no_whole_number_of_nodes_are_refused() {
    let fabric = |hosts| Fabric::new(&cluster(json!({"kind": "star", "hosts": hosts}), 8)).map(|_| ());
    assert_eq!(fabric(16), Ok(()));
    for hosts in [0, 4, 12] {
        assert!(fabric(hosts).is_err(), "{hosts} cards on nodes with 8");
    }
}
