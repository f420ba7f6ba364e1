//! Caramel's order of compute ops against hand-solved cases and a literal implementation: updates, boundaries, and
//! edges.
#![allow(missing_docs)]

mod iterations;

use gradtide_net::{Bytes, Seed, Time};
use gradtide_train::caramel::Boundaries;
use gradtide_train::caramel::compute::{self, ComputeError, Parameter, boundaries, enforce, greedy};
use gradtide_train::opdag::{Kind, Op, OpDag, OpDagError};
use iterations::{iteration, ps};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn comp(id: u64, time_ticks: u64, inputs: &[u32]) -> Op {
    Op { id, kind: Kind::Comp, inputs: inputs.to_vec(), time_ticks, param_only: false }
}

fn recv(id: u64) -> Op {
    Op { id, kind: Kind::Recv, inputs: Vec::new(), time_ticks: 5, param_only: false }
}

/// Draws DAGs and parameters; several parameters may share an update op.
fn models() -> impl Strategy<Value = (OpDag, Vec<Parameter>)> {
    let op = (0..4_u64, prop::collection::vec(any::<prop::sample::Index>(), 0..4));
    let update = (any::<prop::sample::Index>(), 0..20_u64);
    (prop::collection::vec(op, 1..40), prop::collection::vec(update, 1..8)).prop_map(|(ops, updates)| {
        let first = updates.len() as u32;
        let mut dag = OpDag { ops: (0..u64::from(first)).map(recv).collect(), target: first };
        for (time_ticks, draws) in ops {
            let inputs: Vec<u32> = draws.iter().map(|draw| draw.index(dag.ops.len()) as u32).collect();
            dag.ops.push(comp(dag.ops.len() as u64, time_ticks, &inputs));
        }
        let comps = dag.ops.len() as u32 - first;
        let parameter = |(recv, (draw, bytes)): (usize, (prop::sample::Index, u64))| Parameter {
            bytes: Bytes(bytes),
            recv: recv as u32,
            update: first + draw.index(comps as usize) as u32,
        };
        (dag, updates.into_iter().enumerate().map(parameter).collect())
    })
}

/// Returns the compute ops that `op` needs, including `op` itself.
fn ancestors(dag: &OpDag, op: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut stack = vec![op];
    while let Some(op) = stack.pop() {
        if dag.ops[op as usize].kind == Kind::Comp && found.insert(op) {
            stack.extend(&dag.ops[op as usize].inputs);
        }
    }
    found
}

fn is_topological(dag: &OpDag, ops: &[u32]) -> bool {
    let mut done: BTreeSet<u32> =
        (0..dag.ops.len() as u32).filter(|&op| dag.ops[op as usize].kind == Kind::Recv).collect();
    ops.iter().all(|&op| dag.ops[op as usize].inputs.iter().all(|input| done.contains(input)) && done.insert(op))
        && done.len() == dag.ops.len()
}

proptest! {
    /// A literal implementation of Caramel's section 4.1, stage 1, with sets. In the drawn DAGs every op is listed
    /// after its inputs, so the list is a topological order.
    #[test]
    fn the_compute_order_is_the_papers((dag, parameters) in models()) {
        let order = greedy(&dag, &parameters).unwrap();
        let mut done = BTreeSet::new();
        let mut left: BTreeSet<u32> = parameters.iter().map(|parameter| parameter.update).collect();
        for tag in &order.tags {
            let cost = |update: u32| -> u64 {
                ancestors(&dag, update).difference(&done).map(|&op| dag.ops[op as usize].time_ticks).sum()
            };
            let cheapest = left.iter().copied().min_by_key(|&update| (cost(update), update)).unwrap();
            prop_assert_eq!(tag.ops.last(), Some(&cheapest));
            let need: Vec<u32> = ancestors(&dag, cheapest).difference(&done).copied().collect();
            prop_assert_eq!(&tag.ops, &need);
            let theirs: Vec<u32> = (0..parameters.len() as u32)
                .filter(|&parameter| parameters[parameter as usize].update == cheapest).collect();
            prop_assert_eq!(&tag.parameters, &theirs);
            done.extend(need);
            left.remove(&cheapest);
        }
        prop_assert!(left.is_empty());
        prop_assert!(is_topological(&dag, &order.ops()));
    }

    /// Adds the enforcing edges and draws a random order that they allow. The updates come in the chosen order, and
    /// before an update only ops run that this update or an earlier one needs.
    #[test]
    fn enforcing_edges_leave_one_order_of_updates((dag, parameters) in models(), seed in any::<u64>()) {
        let order = greedy(&dag, &parameters).unwrap();
        let enforced = enforce(&dag, &order);
        let updates: Vec<u32> = order.updates().collect();
        for (before, tag) in order.tags.iter().enumerate().skip(1) {
            for &op in &tag.ops {
                prop_assert!(ancestors(&enforced, op).contains(&updates[before - 1]));
            }
        }
        for &op in &order.rest {
            prop_assert!(ancestors(&enforced, op).contains(updates.last().unwrap()));
        }
        let any = compute::random(&enforced, &mut Seed(seed).stream("compute order")).unwrap();
        prop_assert!(is_topological(&enforced, &any));
        let seen: Vec<u32> = any.iter().copied().filter(|op| updates.contains(op)).collect();
        prop_assert_eq!(seen, updates);
        // The edges do not change the model's results: an order that they allow was also a topological order without
        // them.
        let old: Vec<u32> = any.into_iter().filter(|&op| (op as usize) < dag.ops.len()).collect();
        prop_assert!(is_topological(&dag, &old));
        let updates = |ops: &[u32]| -> Vec<Time> {
            boundaries(&dag, &parameters, ops, ps(1)).unwrap().windows.iter().map(|window| window.update).collect()
        };
        prop_assert_eq!(updates(&old), updates(&order.ops()));
    }

    /// If two workers compute in different orders, the joint window of a parameter is within the window of each worker.
    #[test]
    fn workers_that_disagree_narrow_the_boundaries((dag, parameters) in models(), seed in 0..1_000_u64) {
        let of = |seed| boundaries(&dag, &parameters, &compute::random(&dag, &mut Seed(seed).stream("compute order")).unwrap(), ps(3)).unwrap();
        let (one, other) = (of(seed), of(seed + 1));
        let both = Boundaries::jointly(&[one.clone(), other.clone()]);
        for worker in [&one, &other] {
            prop_assert_eq!(worker.compute, both.compute);
            for (window, narrow) in worker.windows.iter().zip(&both.windows) {
                prop_assert!(narrow.update >= window.update && narrow.read <= window.read);
            }
        }
    }
}

/// Traces of real models, whose last op waits for all gradients. The assignment of gradients to parameters does not
/// affect update times, so the first receive op gets the last gradient.
#[test]
fn updates_of_real_graphs_come_earlier_than_in_their_files_and_in_random_orders() {
    for name in ["resnet18_train", "resnet18_train_amp", "vgg16_train"] {
        let path = format!("{}/../../tests/orders/real_{name}.json", env!("CARGO_MANIFEST_DIR"));
        let file: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let op = |row: &serde_json::Value| {
            let inputs: Vec<u32> =
                row["inputs"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
            let (id, time) = (row["id"].as_u64().unwrap(), row["time"].as_u64().unwrap());
            if row["kind"] == "recv" { recv(id) } else { comp(id, time, &inputs) }
        };
        let ops: Vec<Op> = file["ops"].as_array().unwrap().iter().map(op).collect();
        let gradients = ops.last().unwrap().inputs.clone();
        let recvs = (0..ops.len() as u32).filter(|&op| ops[op as usize].kind == Kind::Recv);
        let parameters: Vec<Parameter> = (recvs.zip(gradients.into_iter().rev()))
            .map(|(recv, update)| Parameter { bytes: Bytes(1), recv, update })
            .collect();
        let dag = OpDag { target: ops.len() as u32 - 1, ops };
        let mean_update = |ops: &[u32]| {
            let of = boundaries(&dag, &parameters, ops, ps(1)).unwrap();
            of.windows.iter().map(|window| window.update.ps()).sum::<u64>() as f64
                / (of.windows.len() as u64 * of.compute.ps()) as f64
        };
        let order = greedy(&dag, &parameters).unwrap();
        let (ours, theirs) = (mean_update(&order.ops()), mean_update(&compute::topological(&dag).unwrap()));
        println!("{name}: mean update at {ours:.3} of compute, in the file's order at {theirs:.3}");
        assert!(ours < theirs);
        let enforced = enforce(&dag, &order);
        for seed in 0..20 {
            assert!(ours < mean_update(&compute::random(&dag, &mut Seed(seed).stream("compute order")).unwrap()));
            let any = compute::random(&enforced, &mut Seed(seed).stream("compute order")).unwrap();
            let seen = any.into_iter().filter(|op| order.updates().any(|update| update == *op));
            assert!(seen.eq(order.updates()));
        }
    }
}

/// Two branches. The right one is cheap, so its update, op 5, comes first although the file lists it last. The ops that
/// it needs, 2 and 3, run before it.
#[test]
fn the_cheap_branch_is_computed_first() {
    let ops = vec![recv(0), recv(1), comp(2, 10, &[0]), comp(3, 1, &[1]), comp(4, 7, &[2]), comp(5, 2, &[2, 3])];
    let dag = OpDag { ops, target: 5 };
    let parameters =
        [Parameter { bytes: Bytes(1), recv: 0, update: 4 }, Parameter { bytes: Bytes(1), recv: 1, update: 5 }];
    let order = greedy(&dag, &parameters).unwrap();
    assert_eq!(order.ops(), [2, 3, 5, 4]);
    let ours = boundaries(&dag, &parameters, &order.ops(), ps(100)).unwrap();
    assert_eq!(ours, iteration(2000, &[(1, 2000, 0), (1, 1300, 1000)]));
    let edges = enforce(&dag, &order);
    assert_eq!(edges.ops[6].inputs, [5]);
    assert_eq!(edges.ops[4].inputs, [2, 6]);
}

#[test]
fn dags_that_mean_nothing_are_refused() {
    let dag = |ops| OpDag { ops, target: 0 };
    let cycle = dag(vec![recv(0), comp(1, 1, &[2]), comp(2, 1, &[1])]);
    assert_eq!(compute::topological(&cycle), Err(OpDagError::Cycle(1)));
    let parameter = |recv, update| [Parameter { bytes: Bytes(1), recv, update }];
    let fine = dag(vec![recv(0), comp(1, 1 << 50, &[0])]);
    assert_eq!(greedy(&fine, &parameter(1, 1)), Err(ComputeError::Kind(0)));
    assert_eq!(greedy(&fine, &parameter(0, 7)), Err(ComputeError::Dag(OpDagError::NoSuchOp(7))));
    assert_eq!(boundaries(&fine, &parameter(0, 1), &[1], ps(1000)), Err(ComputeError::TooLong));
}
