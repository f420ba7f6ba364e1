//! The executor on small graphs that are solved by hand, to the picosecond.
#![allow(missing_docs)]

mod star;

use gradtide_net::{Band, Bytes, Link, Rate, Seed, Time};
use gradtide_train::classes::Classes;
use gradtide_train::collective::levels::{CollectiveKind, Span};
use gradtide_train::collective::messages::MessageSize;
use gradtide_train::collective::nodes::Links;
use gradtide_train::communicator::{AggregationForm, Communicator, GroupCollectives, TransferKind};
use gradtide_train::dag::{Dag, DagOp, Edge, Edges, OpId, OpKind, Program, Transfer};
use gradtide_train::job::{CollectiveJob, EngineMode, Pass};
use gradtide_train::parallel::{GroupTransfer, Label, Phase, Subject};
use gradtide_train::run::{self, CollectiveExecutor, Done, JobRecord, Limits, RunContext};
use gradtide_train::schedule::Fifo;
use gradtide_train::traffic::Background;
use std::sync::Arc;

/// Links carry 800 Gbit/s without delay: an all-gather among two ranks of class 0 takes 5 ps per byte, a send 10 ps per
/// byte.
const GATHER: CollectiveKind = CollectiveKind::AllGather;
const SEND: CollectiveKind = CollectiveKind::Send;

fn link() -> Link {
    Link { rate: Rate::from_bps(800_000_000_000).unwrap(), delay: Time::ZERO }
}

/// A job in short form: op costs in ps for each class, transfers as (communicator, kind, bytes), and the classes of
/// each communicator. The ids of transfers follow the ids of the ops.
struct Graph<'a> {
    programs: &'a [&'a [u64]],
    transfers: &'a [(u32, CollectiveKind, u64)],
    communicators: &'a [&'a [u32]],
    within: &'a [Edge],
    across: &'a [Edge],
    slowdown_ppm: u64,
}

fn job(graph: &Graph<'_>, classes: &Arc<Classes>) -> CollectiveJob {
    let mut programs: Vec<Program> = Vec::new();
    let mut ops = Vec::new();
    for &costs in graph.programs {
        let start = ops.len() as OpId;
        ops.extend(costs.iter().map(|&cost| DagOp::new(OpKind::Compute(0), Time::from_ps(cost))));
        programs.push(Program { ops: start..ops.len() as OpId, forward: start, backward: start });
    }
    let compute_count = ops.len() as u32;
    ops.extend((0..graph.transfers.len() as u32).map(|index| DagOp::new(OpKind::Transfer(index), Time::ZERO)));
    let label = Label { subject: Subject::All, phase: Phase::Forward, micro_batch: 0 };
    let transfers: Arc<[GroupTransfer]> = (graph.transfers.iter())
        .map(|&(group, kind, bytes)| GroupTransfer { group, kind, bytes: Bytes(bytes), label })
        .collect();
    let dag = Dag {
        programs,
        compute_count,
        layer_count: 1,
        transfers: (transfers.iter())
            .map(|it| Transfer { first_layer: 0, bytes: it.bytes, communicator: it.group })
            .collect(),
        within: Edges::new(ops.len(), graph.within),
        across: Edges::new(ops.len(), graph.across),
        ops,
    };
    assert!(dag.is_executable());
    let communicator = |of: &&[u32]| Communicator {
        name: "group".into(),
        classes: of.to_vec(),
        scheduler: Box::new(Fifo),
        in_flight_limit: 1,
        sync: Time::ZERO,
        carries: TransferKind::Group(GroupCollectives {
            network: classes.clone(),
            span: Span::new(2, 1).unwrap(),
            transfers: transfers.clone(),
            band: Band::new(0).unwrap(),
            hold: Time::ZERO,
            ranks: None,
        }),
    };
    CollectiveJob {
        name: "train".into(),
        dag: Arc::new(dag),
        step: None,
        communicators: graph.communicators.iter().map(communicator).collect(),
        start: Time::ZERO,
        iteration_limit: Some(2),
        overlap_slowdown_ppm: graph.slowdown_ppm,
        mode: EngineMode {
            measured_from: Pass::Backward,
            messages: AggregationForm::EachHost { opens: false },
            sizes: MessageSize::Whole,
            links: Links { gpus: 1, scale_up: link(), nic: link() },
        },
        jitter_range_ppm: (1_000_000, 1_000_000),
        factors: None,
        adaptive: None,
    }
}

fn run(graph: &Graph<'_>) -> JobRecord {
    let mut cluster = star::star(2, 800_000_000_000, 1);
    cluster["link"]["delay_ps"] = 0.into();
    let cluster = serde_json::from_value(cluster).unwrap();
    let classes = Arc::new(Classes::new(&cluster, graph.programs.len() as u32).unwrap());
    let mut network = classes.fluid(Seed(0)).unwrap();
    let mut job = job(graph, &classes);
    let limits = Limits { duration: None, timeline_iterations: 2 };
    let executor = Box::new(CollectiveExecutor::new(&mut job, 0, RunContext::alone(limits), None));
    let mut done = run::run(vec![executor], &Background::default(), &mut network, limits, &mut |_| true).unwrap();
    let Some(Done::Collective(_, record)) = done.pop() else { panic!("one job") };
    record
}

/// Returns for each transfer of an iteration the times in ps at which it is ready, starts, ends and is needed.
fn transfers(record: &JobRecord, iteration: u32) -> Vec<[u64; 4]> {
    let times = |it: &run::TransferRecord| [it.ready, it.start, it.end, it.needed].map(Time::ps);
    record.transfers.blocks(iteration, 1).flatten().map(times).collect()
}

/// Returns for an iteration of a class its start, duration, compute time, exposed time and straggler time in ps.
fn iteration(record: &JobRecord, class: usize, index: usize) -> [u64; 5] {
    let it = &record.workers[class][index];
    [it.start, it.time, it.compute, it.exposed, it.straggler].map(Time::ps)
}

#[test]
fn a_class_waits_for_what_another_sends() {
    // Class 0 runs a (100 ps) and b (50 ps), class 1 runs c (30 ps) and d (20 ps). Op d needs 10 bytes that a sends,
    // from 100 to 200, so d runs from 200 to 220. In the next iteration a waits for d, so an iteration takes 220 ps.
    let (a, d, send) = (0, 3, 4);
    let graph = Graph {
        programs: &[&[100, 50], &[30, 20]],
        transfers: &[(0, SEND, 10)],
        communicators: &[&[0, 1]],
        within: &[(a, send), (send, d)],
        across: &[(d, a)],
        slowdown_ppm: 1_000_000,
    };
    let record = run(&graph);
    assert_eq!(transfers(&record, 0), [[100, 100, 200, 30]]);
    assert_eq!(transfers(&record, 1), [[320, 320, 420, 250]]);
    // Class 0 ends at 150 and waits 70 for the compute of class 1. Class 1 waits 170: 70 until a ends at 100, which is
    // compute of class 0, and 100 for the send.
    assert_eq!(iteration(&record, 0, 0), [0, 220, 150, 70, 70]);
    assert_eq!(iteration(&record, 0, 1), [220, 220, 150, 70, 70]);
    assert_eq!(iteration(&record, 1, 0), [0, 220, 50, 170, 70]);
    assert_eq!(iteration(&record, 1, 1), [220, 220, 50, 170, 70]);
}

#[test]
fn three_layers_wait_for_their_parameters() {
    // Gathering a layer's parameters takes 100 ps, its op 60 ps. The gathers follow one another; the third also waits
    // for the first op. Ops run from 100, 200 and 300. The first gather of the next iteration follows the last op.
    let (gather, last) = ([3, 4, 5], 2);
    let graph = Graph {
        programs: &[&[60, 60, 60]],
        transfers: &[(0, GATHER, 20); 3],
        communicators: &[&[0]],
        within: &[
            (gather[0], 0),
            (gather[1], 1),
            (gather[2], 2),
            (gather[0], gather[1]),
            (gather[1], gather[2]),
            (0, gather[2]),
        ],
        across: &[(last, gather[0])],
        slowdown_ppm: 1_000_000,
    };
    let record = run(&graph);
    assert_eq!(transfers(&record, 0), [[0, 0, 100, 0], [100, 100, 200, 160], [200, 200, 300, 260]]);
    assert_eq!(transfers(&record, 1)[0], [360, 360, 460, 360]);
    let runs: Vec<(u64, u64)> = (record.operations.iter())
        .filter(|op| op.kind == OpKind::Compute(0) && op.iteration == 0)
        .map(|op| (op.start.ps(), op.end.ps()))
        .collect();
    assert_eq!(runs, [(100, 160), (200, 260), (300, 360)]);
    // An iteration lasts from the start of its first op, at 100, to the start of the next iteration's first op, at 460.
    assert_eq!(iteration(&record, 0, 0), [100, 360, 180, 180, 0]);
}

#[test]
fn transfers_of_two_communicators_share_the_network_and_those_of_one_follow_each_other() {
    // Two all-gathers of 100 ps each are ready when the first op ends, at 10. The second op needs both. On two
    // communicators they share the network and end at 210; on one communicator they follow each other and end at 110
    // and 210.
    let graph = |communicators| Graph {
        programs: &[&[10, 10]],
        transfers: communicators,
        communicators: &[&[0], &[0]],
        within: &[(0, 2), (0, 3), (2, 1), (3, 1)],
        across: &[(1, 0)],
        slowdown_ppm: 1_000_000,
    };
    let two: [(u32, CollectiveKind, u64); 2] = [(0, GATHER, 20), (1, GATHER, 20)];
    let one: [(u32, CollectiveKind, u64); 2] = [(0, GATHER, 20); 2];
    let (shared, in_turn) = ([[10, 10, 210, 10]; 2], [[10, 10, 110, 10], [10, 110, 210, 10]]);
    assert_eq!(transfers(&run(&graph(&two)), 0), shared);
    assert_eq!(transfers(&run(&graph(&one)), 0), in_turn);
}

#[test]
fn a_transfer_slows_the_classes_of_its_communicator_alone() {
    // Class 0 gathers from 100 to 600 and computes at half speed meanwhile: 250 of the 1000 ps of its second op are
    // done at 600, and the op ends at 1350. Class 1 is not slowed down and ends at 1100.
    let (first, last) = ([0, 2], [1, 3]);
    let graph = Graph {
        programs: &[&[100, 1000], &[100, 1000]],
        transfers: &[(0, GATHER, 100)],
        communicators: &[&[0]],
        within: &[(0, 4)],
        across: &[(4, 0), (last[0], first[1]), (last[1], first[0])],
        slowdown_ppm: 2_000_000,
    };
    let record = run(&graph);
    assert_eq!(transfers(&record, 0)[0][..3], [100, 100, 600]);
    let slowdown = |class: usize| record.workers[class][0].slowdown.ps();
    assert_eq!((slowdown(0), slowdown(1)), (250, 0));
    assert_eq!(iteration(&record, 0, 0), [0, 1350, 1100, 0, 0]);
    // The next iteration of class 1 waits for the compute of class 0, not for the network.
    assert_eq!(iteration(&record, 1, 0), [0, 1350, 1100, 250, 250]);
}
