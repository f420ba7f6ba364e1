//! Rank classes against closed forms, on the pipe and the fluid engine.
#![allow(missing_docs)]

use CollectiveKind::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter, Send};
use gradtide_net::{Band, Bytes, Network, Seed, Time};
use gradtide_train::SpecError;
use gradtide_train::classes::{Carriage, Classes, GroupOp};
use gradtide_train::collective::levels::{CollectiveKind, Span};
use gradtide_train::spec::ClusterSpec;
use serde_json::{Value, json};

const KINDS: [CollectiveKind; 6] = [AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Send];

/// Nodes of 8 GPUs with ports of 1 byte per picosecond and cards of 0.1; a message takes 2 us inside and 20 us outside.
fn cluster(topology: Value, nics: u32) -> ClusterSpec {
    serde_json::from_value(json!({
        "topology": topology,
        "link": {"rate_bps": 800_000_000_000_u64, "delay_ps": 10_000_000, "efficiency_ppm": 1_000_000},
        "node": {
            "gpus": 8,
            "nics": nics,
            "scale_up": {"rate_bps": 8_000_000_000_000_u64, "delay_ps": 1_000_000, "efficiency_ppm": 1_000_000}
        },
        "host_latency_ps": 0,
        "routing": "ecmp",
        "queue": {"discipline": {"kind": "fifo"}, "capacity": {"packets": 100}, "mark": null, "pcn": null},
        "switch_buffer": null,
        "transport": {
            "congestion": {"kind": "newreno"}, "ecn": false, "segment_bytes": 1380, "initial_window_segments": 10,
            "window_bytes": 1_000_000, "recovery": "sack", "timers": "derived"
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
    Carriage { band: Band::new(0).unwrap(), stream: 0, hold: Time::ZERO }
}

/// When each of these ops, begun at once, is complete.
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

/// On both engines.
fn both(classes: &Classes, ops: &[GroupOp<'_>]) -> [Vec<Time>; 2] {
    let fluid = ends(classes, &mut classes.fluid(Seed(0)).unwrap(), ops);
    [ends(classes, &mut classes.pipe(), ops), fluid]
}

fn assert_near(found: Time, expected: f64, what: &str) {
    // Whole picoseconds, and whole bytes at each of two levels: 10 ps each at most.
    assert!((found.ps() as f64 - expected).abs() <= 32.0, "{what}: {found:?}, and {expected} ps are expected");
}

#[test]
fn collectives_alone_take_their_closed_forms_on_pipe_and_fluid() {
    let classes = Classes::new(&star(8), 2).unwrap();
    let (s, inside, outside) = (64e6, 2e6, 20e6);
    let cases = [
        // On one node of 8: (n-1) messages of S/n.
        (op(AllGather, 8, 8, 64_000_000, &[0]), 7.0 * (s / 8.0 + inside)),
        (op(ReduceScatter, 8, 8, 64_000_000, &[0]), 7.0 * (s / 8.0 + inside)),
        (op(AllReduce, 8, 8, 64_000_000, &[0]), 14.0 * (s / 8.0 + inside)),
        (op(AllToAll, 8, 8, 64_000_000, &[0]), 7.0 * s / 8.0 + inside),
        (op(Broadcast, 8, 8, 64_000_000, &[0]), s + 7.0 * inside),
        // One rank on each of 64 nodes: the same through cards, a tenth as fast.
        (op(AllGather, 64, 1, 64_000_000, &[0]), 63.0 * (s / 6.4 + outside)),
        (op(AllToAll, 64, 1, 64_000_000, &[0]), 63.0 * s / 6.4 + outside),
        // 8 on each of 8 nodes: cards carry an eighth of the ring, which the 56 rounds within nodes precede.
        (op(AllGather, 64, 8, 64_000_000, &[0]), 56.0 * inside + s * 63.0 / 64.0 / 0.8 + 7.0 * outside),
        (op(AllToAll, 64, 8, 64_000_000, &[0]), s * 56.0 / 64.0 * 10.0 + outside),
        // A tree of 8 nodes has 6 rounds between them.
        (op(AllReduce, 64, 8, 1_000, &[0]), 14.0 * inside + 2_000.0 / 0.8 + 6.0 * outside),
        (op(Send, 2, 2, 64_000_000, &[0, 1]), s + inside),
        (op(Send, 2, 1, 64_000_000, &[0, 1]), s * 10.0 + outside),
    ];
    for (op, expected) in cases {
        let what = format!("{:?} of {:?}", op.kind, op.span);
        assert_near(classes.time(&op).unwrap(), expected, &what);
        for ends in both(&classes, &[op]) {
            assert_near(ends[0], expected, &what);
        }
    }
}

#[test]
fn of_ring_and_tree_the_faster_one_is_taken() {
    let classes = Classes::new(&star(8), 1).unwrap();
    let time = |bytes| classes.time(&op(AllReduce, 64, 8, bytes, &[0])).unwrap().ps() as f64;
    // Small: 14 + 6 rounds of the tree, not 112 + 14 of the ring. Large: 2 · 63/64 S / 8 of the ring, not 2S/8.
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
fn groups_of_one_class_share_its_ports_on_fluid_and_take_turns_on_pipe() {
    let classes = Classes::new(&star(8), 2).unwrap();
    let alone = classes.time(&op(AllToAll, 8, 8, 64_000_000, &[0])).unwrap().ps() as f64;
    let sending = alone - 2e6;
    let ops = [op(AllToAll, 8, 8, 64_000_000, &[0]); 2];
    let [pipe, fluid] = both(&classes, &ops);
    assert_near(pipe[1], 2.0 * alone, "the second on pipe");
    assert_near(fluid[1], 2.0 * sending + 2e6, "both on fluid");
    // Another class, and another level, are not in the way.
    let apart = [op(AllToAll, 8, 8, 64_000_000, &[0]), op(AllToAll, 8, 8, 64_000_000, &[1])];
    both(&classes, &apart).iter().flatten().for_each(|&end| assert_near(end, alone, "another class"));
    let levels = [op(AllToAll, 8, 8, 64_000_000, &[0]), op(Send, 2, 1, 64_000_000, &[0, 1])];
    both(&classes, &levels).iter().for_each(|ends| assert_near(ends[0], alone, "another level"));
}

#[test]
fn a_group_of_several_classes_ends_with_the_last_of_them() {
    let classes = Classes::new(&star(8), 3).unwrap();
    let all = op(AllReduce, 64, 8, 64_000_000, &[0, 1, 2]);
    let alone = classes.time(&all).unwrap();
    let ends = both(&classes, &[op(AllToAll, 64, 1, 64_000_000, &[2]), all]);
    for ends in ends {
        assert!(ends[1] > alone, "the third class is late by what it sends before");
    }
    both(&classes, &[all]).iter().for_each(|ends| assert_eq!(ends[0], alone));
}

#[test]
fn one_rank_and_no_bytes_need_no_flow_or_no_time() {
    let classes = Classes::new(&star(8), 1).unwrap();
    for kind in KINDS.into_iter().filter(|&kind| kind != Send) {
        let mut pipe = classes.pipe();
        assert!(classes.begin(&op(kind, 1, 1, 1_000, &[0]), carriage(), &mut pipe).is_none(), "{kind:?}");
        both(&classes, &[op(kind, 8, 8, 0, &[0])]).iter().for_each(|ends| assert!(ends[0].ps() <= 28_000_000));
    }
    assert_eq!(classes.time(&op(AllReduce, 8, 8, u64::MAX, &[0])), None, "too long for the clock");
}

#[test]
fn networks_on_which_ranks_share_links_have_no_classes() {
    let leaf_spine = |spines| {
        json!({"kind": "leaf_spine", "leaves": 8, "hosts_per_leaf": 8, "spines": spines,
               "fabric_link": {"rate_bps": 800_000_000_000_u64, "delay_ps": 5_000_000}})
    };
    let time = |topology| {
        Classes::new(&cluster(topology, 8), 1).map(|it| it.time(&op(AllToAll, 64, 1, 0, &[0])).unwrap().ps())
    };
    // Two links of hosts, two between switches.
    assert_eq!(time(leaf_spine(8)), Ok(30_000_000));
    assert_eq!(time(leaf_spine(7)), Err(SpecError::Blocks));
    assert_eq!(time(json!({"kind": "clos2", "ports": 8, "bisection": [1, 1]})), Ok(40_000_000));
    assert_eq!(time(json!({"kind": "clos2", "ports": 8, "bisection": [1, 2]})), Err(SpecError::Blocks));
    assert_eq!(time(json!({"kind": "clos3", "ports": 8, "bisection": [1, 1]})), Ok(60_000_000));
}

#[test]
fn nodes_that_cannot_be_are_refused() {
    for nics in [0, 3] {
        assert!(matches!(Classes::new(&star(nics), 1), Err(SpecError::Node(_))), "{nics} cards");
    }
    let mut slow = star(8);
    slow.node.as_mut().unwrap().scale_up.rate_bps = 0;
    assert_eq!(Classes::new(&slow, 1).unwrap_err(), SpecError::ZeroRate);
}
