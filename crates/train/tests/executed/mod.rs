//! Executes plans of collectives on arrays and checks the final buffer of every rank.
//!
//! Shared by `tests/plans.rs` and the targets of `fuzz`.
#![allow(dead_code)]

use gradtide_net::Bytes;
use gradtide_train::collective::algorithms::{Algorithm, tree};
use gradtide_train::collective::levels::CollectiveKind;
use gradtide_train::collective::pattern::Action;
use gradtide_train::collective::plan::{CollectivePlan, Message};
use gradtide_train::collective::progress::Progress;

/// A plan and the collective that it has to implement.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// `None` for the chained tree over nodes, which is a part of an algorithm.
    pub algorithm: Option<Algorithm>,
    pub plan: CollectivePlan,
    pub operation: CollectiveKind,
    pub servers: Vec<u32>,
}

/// Returns a case for every algorithm with every combination of parameters that suits the ranks, and for the trees over
/// nodes.
pub fn cases(ranks: u32, bytes: u64) -> Vec<Case> {
    let of_algorithm = |algorithm: Algorithm| Case {
        name: format!("{algorithm:?} of {ranks}, {bytes} bytes"),
        algorithm: Some(algorithm),
        plan: plan(algorithm, ranks, bytes),
        operation: algorithm.about().operation,
        servers: algorithm.servers(ranks),
    };
    let of_nodes = |per_node| Case {
        name: format!("tree over nodes of {per_node} of {ranks}, {bytes} bytes"),
        algorithm: None,
        plan: CollectivePlan::new(tree::chained_tree(per_node), ranks, Bytes(bytes), 1).expect("a plan"),
        operation: CollectiveKind::AllReduce,
        servers: Vec::new(),
    };
    Algorithm::samples(ranks).into_iter().map(of_algorithm).chain((1..=ranks.min(6)).map(of_nodes)).collect()
}

pub fn plan(algorithm: impl Into<Algorithm>, ranks: u32, bytes: u64) -> CollectivePlan {
    algorithm.into().plan(ranks, Bytes(bytes), 1).expect("the numbers suit the algorithm")
}

pub fn messages(plan: &CollectivePlan) -> Vec<Message> {
    let mut all = Vec::new();
    for step in 0..plan.step_count() {
        for rank in 0..plan.ranks() {
            plan.sends(step, rank, &mut |message| all.push(message));
        }
    }
    all
}

/// Returns the bytes of part `index` of `count`. Unlike the implementation, it deals out the bytes one at a time.
pub fn part(bytes: u64, count: u32, index: u32) -> u64 {
    (0..bytes).filter(|byte| byte % u64::from(count) == u64::from(index)).count() as u64
}

/// Returns the position of the first byte of part `index`.
fn start(bytes: u64, count: u32, index: u32) -> usize {
    (0..index).map(|before| part(bytes, count, before)).sum::<u64>() as usize
}

/// Returns the buffers after the execution of a plan. Messages arrive in an order drawn by `draw`.
///
/// A message carries the sender's values at its start. An arrived message is applied when the receiver begins a later
/// step according to `Progress`. Hence a message that is sent before its inputs have arrived carries a wrong sum.
pub fn execute(
    plan: &CollectivePlan,
    mut buffers: Vec<Vec<u64>>,
    draw: &mut dyn FnMut(usize) -> usize,
) -> Vec<Vec<u64>> {
    let mut aside: Vec<Vec<(Message, Vec<u64>)>> = vec![Vec::new(); plan.ranks() as usize];
    let mut under_way: Vec<(Message, Vec<u64>)> = Vec::new();
    let mut sent = Vec::new();
    let mut arrived_count = 0;
    let mut progress = Progress::begin(plan.clone(), &mut |message| sent.push(message));
    loop {
        for message in sent.drain(..) {
            let rank = message.from as usize;
            take_in(&mut buffers[rank], &mut aside[rank], message.step);
            let begin = message.offset as usize;
            under_way.push((message, buffers[rank][begin..begin + message.bytes.0 as usize].to_vec()));
        }
        if under_way.is_empty() {
            break;
        }
        let (message, values) = under_way.swap_remove(draw(under_way.len()));
        arrived_count += 1;
        aside[message.to as usize].push((message, values));
        assert!(!progress.is_complete(), "complete before the last arrival");
        progress.on_arrival(message.passage(), &mut |message| sent.push(message));
    }
    assert!(progress.is_complete(), "nothing is under way and the plan is not complete");
    assert_eq!(arrived_count, messages(plan).len(), "every message is sent once");
    for (buffer, aside) in buffers.iter_mut().zip(&mut aside) {
        take_in(buffer, aside, plan.step_count());
    }
    buffers
}

/// Applies the arrived messages of steps before `step`, in the order of steps.
fn take_in(buffer: &mut [u64], aside: &mut Vec<(Message, Vec<u64>)>, step: u32) {
    aside.sort();
    let later = aside.split_off(aside.partition_point(|(message, _)| message.step < step));
    for (message, values) in std::mem::replace(aside, later) {
        let mine = &mut buffer[message.offset as usize..][..values.len()];
        for (mine, value) in mine.iter_mut().zip(values) {
            *mine = if message.action == Action::Reduce { *mine + value } else { value };
        }
    }
}

/// Returns the initial value of rank `rank` in place `place`; the digits of a sum identify its ranks and its place.
pub fn value(rank: u32, place: usize) -> u64 {
    (1 << (2 * rank)) * (1 + place as u64 % 3)
}

const NOTHING: u64 = 1 << 60;

/// Executes a plan and compares the final buffer of every rank with the result of the collective.
pub fn check(case: &Case, draw: &mut dyn FnMut(usize) -> usize) {
    let Case { name, plan, servers, .. } = case;
    let (ranks, bytes) = (plan.ranks(), plan.bytes().0);
    let size = bytes as usize;
    let is_worker = |rank: u32| !servers.contains(&rank);
    let whole = |rank: u32| (0..size).map(move |place| value(rank, place)).collect::<Vec<u64>>();
    let own_part = |rank: u32| start(bytes, ranks, rank)..start(bytes, ranks, rank + 1);
    let sum = |place| (0..ranks).filter(|&rank| is_worker(rank)).map(|rank| value(rank, place)).sum::<u64>();
    let each = |of: &dyn Fn(u32) -> Vec<u64>| (0..ranks).map(of).collect::<Vec<_>>();
    match case.operation {
        CollectiveKind::AllReduce => {
            let end = execute(plan, each(&|rank| if is_worker(rank) { whole(rank) } else { vec![0; size] }), draw);
            let expected: Vec<u64> = (0..size).map(sum).collect();
            for worker in (0..ranks).filter(|&rank| is_worker(rank)) {
                assert_eq!(end[worker as usize], expected, "{name}");
            }
        }
        CollectiveKind::AllGather => {
            let begin = each(&|rank| {
                let mut buffer = vec![NOTHING; size];
                own_part(rank).for_each(|place| buffer[place] = value(rank, place));
                buffer
            });
            let all: Vec<u64> = (0..ranks).flat_map(|rank| begin[rank as usize][own_part(rank)].to_vec()).collect();
            assert_eq!(execute(plan, begin, draw), each(&|_| all.clone()), "{name}");
        }
        CollectiveKind::ReduceScatter => {
            let end = execute(plan, each(&whole), draw);
            for (rank, place) in (0..ranks).flat_map(|rank| own_part(rank).map(move |place| (rank, place))) {
                assert_eq!(end[rank as usize][place], sum(place), "{name}");
            }
        }
        CollectiveKind::AllToAll => {
            let begin = each(&|rank| {
                let mut buffer = vec![NOTHING; size * ranks as usize];
                buffer[rank as usize * size..][..size].copy_from_slice(&whole(rank));
                buffer
            });
            let end = execute(plan, begin, draw);
            for (rank, origin) in (0..ranks).flat_map(|rank| (0..ranks).map(move |origin| (rank, origin))) {
                for place in own_part(rank) {
                    assert_eq!(end[rank as usize][origin as usize * size + place], value(origin, place), "{name}");
                }
            }
        }
        CollectiveKind::Broadcast | CollectiveKind::Send => {
            let end = execute(plan, each(&|rank| if rank == 0 { whole(0) } else { vec![NOTHING; size] }), draw);
            let reached = if case.operation == CollectiveKind::Send { ranks.min(2) } else { ranks };
            assert!(end[..reached as usize].iter().all(|buffer| *buffer == whole(0)), "{name}");
        }
    }
}
