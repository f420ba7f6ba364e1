//! Orders of op DAGs against literal implementations of the papers' rules, all permutations, and a simulation op by op.
#![allow(missing_docs)]

use gradtide_net::Seed;
use gradtide_train::opdag::{Kind, Op, OpDag, OpDagError};
use gradtide_train::order::artefact::cpython_sort;
use gradtide_train::order::makespan::Scorer;
use gradtide_train::order::needs::{Needs, Recv};
use gradtide_train::order::optimal::search::{Answer, Search};
use gradtide_train::order::optimal::{self, exact};
use gradtide_train::order::tac::{Ties, tac};
use gradtide_train::order::{OrderMethod, OrderRequest, Ordered, order};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Draws a DAG with random received ops, op times, and inputs from earlier ops.
fn dags(op_count: usize, most_ticks: u64) -> impl Strategy<Value = OpDag> {
    let op = (0..3_u8, 0..=most_ticks, prop::collection::vec(any::<prop::sample::Index>(), 0..4), 1..20_usize);
    prop::collection::vec(op, 1..op_count).prop_map(|rows| {
        let mut ops = vec![Op { id: 0, kind: Kind::Recv, inputs: Vec::new(), time_ticks: 3, param_only: false }];
        for (kind, time_ticks, draws, reach) in rows {
            let first = ops.len().saturating_sub(reach);
            let inputs = draws.iter().map(|draw| (first + draw.index(ops.len() - first)) as u32).collect();
            let (kind, inputs) = if kind == 0 { (Kind::Recv, Vec::new()) } else { (Kind::Comp, inputs) };
            ops.push(Op { id: 7 * ops.len() as u64 % 1009, kind, inputs, time_ticks, param_only: false });
        }
        let target = ops.len() as u32;
        let inputs = (0..target).rev().step_by(3).chain([0]).collect();
        ops.push(Op { id: 2000, kind: Kind::Comp, inputs, time_ticks: 1, param_only: false });
        OpDag { ops, target }
    })
}

/// Returns the transfers that each op needs, by ascending id as in [`Needs`].
fn needs_of(dag: &OpDag, needs: &Needs) -> Vec<BTreeSet<Recv>> {
    let mut sets: Vec<BTreeSet<Recv>> = Vec::new();
    for (index, op) in dag.ops.iter().enumerate() {
        let mut set: BTreeSet<Recv> = op.inputs.iter().flat_map(|&input| sets[input as usize].clone()).collect();
        set.extend(needs.recv_ops.iter().position(|&recv| recv as usize == index).map(|recv| recv as Recv));
        sets.push(set);
    }
    sets
}

/// A literal implementation of TicTac's Algorithms 1 and 3, with Equation 2 and a scan by ascending id.
fn naive_tac(dag: &OpDag, needs: &Needs) -> Vec<Recv> {
    let sets = needs_of(dag, needs);
    let reached: BTreeSet<u32> = dag.needed().unwrap().into_iter().collect();
    let mut outstanding: BTreeSet<Recv> = (0..needs.recv_count() as Recv).collect();
    let mut order = Vec::new();
    while !outstanding.is_empty() {
        let ticks = |recv: Recv| needs.recv_ticks[recv as usize];
        let mut p = vec![0_u64; needs.recv_count()];
        let mut m_plus = vec![u64::MAX; needs.recv_count()];
        for &op in reached.iter().filter(|&&op| dag.ops[op as usize].kind == Kind::Comp) {
            let left: Vec<Recv> = sets[op as usize].intersection(&outstanding).copied().collect();
            let m = left.iter().map(|&recv| ticks(recv)).sum();
            match left[..] {
                [] => {}
                [recv] => p[recv as usize] += dag.ops[op as usize].time_ticks,
                _ => left.iter().for_each(|&recv| m_plus[recv as usize] = m_plus[recv as usize].min(m)),
            }
        }
        let is_before = |a: Recv, b: Recv| {
            let (a_first, b_first) = (p[b as usize].min(ticks(a)), p[a as usize].min(ticks(b)));
            (a_first, m_plus[a as usize]) < (b_first, m_plus[b as usize]) && a_first <= b_first
        };
        let mut scan = outstanding.iter().copied();
        let first = scan.next().unwrap();
        let next = scan.fold(first, |best, recv| if is_before(recv, best) { recv } else { best });
        order.push(next);
        outstanding.remove(&next);
    }
    order
}

/// Simulates one channel and one compute resource, op by op, and returns the makespan. Of the ready ops, the first in
/// the file runs, or the last one if `takes_last`.
fn simulated(dag: &OpDag, needs: &Needs, order: &[Recv], takes_last: bool) -> u64 {
    let mut end = vec![None; dag.ops.len()];
    let mut sent = 0;
    for &recv in order {
        sent += needs.recv_ticks[recv as usize];
        end[needs.recv_ops[recv as usize] as usize] = Some(sent);
    }
    let mut waiting: Vec<u32> =
        dag.needed().unwrap().into_iter().filter(|&op| dag.ops[op as usize].kind == Kind::Comp).collect();
    waiting.sort_unstable();
    let mut now = 0_u64;
    while !waiting.is_empty() {
        let ready_at = |&op: &u32| {
            let inputs = &dag.ops[op as usize].inputs;
            inputs.iter().try_fold(0, |at: u64, &input| end[input as usize].map(|end| at.max(end)))
        };
        let ready: Vec<(usize, u64)> =
            waiting.iter().enumerate().filter_map(|(index, op)| ready_at(op).map(|at| (index, at))).collect();
        let start = now.max(ready.iter().map(|&(_, at)| at).min().unwrap());
        let mut choices = ready.iter().filter(|&&(_, at)| at <= start).map(|&(index, _)| index);
        let index = if takes_last { choices.next_back() } else { choices.next() }.unwrap();
        let op = waiting.remove(index);
        now = start + dag.ops[op as usize].time_ticks;
        end[op as usize] = Some(now);
    }
    end[dag.target as usize].unwrap().max(now)
}

fn permutations(items: &[Recv]) -> Vec<Vec<Recv>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let with_first = |index: usize| {
        let mut rest = items.to_vec();
        let first = rest.remove(index);
        permutations(&rest).into_iter().map(move |tail| [vec![first], tail].concat())
    };
    (0..items.len()).flat_map(with_first).collect()
}

fn ordered(dag: &OpDag, scheduler: OrderMethod, ties: Ties, seed: u64) -> Ordered {
    order(&OrderRequest { dag: dag.clone(), scheduler, ties, seed }).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// With op times of 0 to 3, many transfers compare as equal, and P = M is common.
    #[test]
    fn tac_is_the_papers_algorithm_under_ties(dag in dags(40, 3)) {
        let needs = Needs::new(&dag).unwrap();
        prop_assert_eq!(tac(&needs, &needs.work_ticks), naive_tac(&dag, &needs));
    }

    #[test]
    fn tac_is_the_papers_algorithm(dag in dags(40, 1000)) {
        let needs = Needs::new(&dag).unwrap();
        prop_assert_eq!(tac(&needs, &needs.work_ticks), naive_tac(&dag, &needs));
    }

    #[test]
    fn the_recurrence_is_a_work_conserving_machine(dag in dags(40, 9), seed in any::<u64>()) {
        let needs = Needs::new(&dag).unwrap();
        let mut order: Vec<Recv> = (0..needs.recv_count() as Recv).collect();
        Seed(seed).stream("test").shuffle(&mut order);
        let makespan = Scorer::new(&needs).makespan(&order);
        prop_assert_eq!(makespan, simulated(&dag, &needs, &order, false));
        prop_assert_eq!(makespan, simulated(&dag, &needs, &order, true));
        prop_assert!(makespan >= optimal::bound(&needs));
        prop_assert!(optimal::bound(&needs) >= needs.lower_bound_ticks());
    }

    #[test]
    fn the_optimum_is_that_of_all_permutations(dag in dags(18, 30)) {
        let needs = Needs::new(&dag).unwrap();
        prop_assume!(needs.recv_count() <= 6);
        let mut scorer = Scorer::new(&needs);
        let all: Vec<Recv> = (0..needs.recv_count() as Recv).collect();
        let least = permutations(&all).iter().map(|order| scorer.makespan(order)).min().unwrap();
        let (makespan, order) = exact::optimum(&needs).unwrap();
        prop_assert_eq!((makespan, scorer.makespan(&order)), (least, least));
    }

    /// The search finds the optimum, which `exact::optimum` determines by enumerating subsets.
    #[test]
    fn the_search_knows_the_optimum(dag in dags(40, 30)) {
        let needs = Needs::new(&dag).unwrap();
        prop_assume!(needs.recv_count() <= 12);
        let (makespan, _) = exact::optimum(&needs).unwrap();
        let mut search = Search::new(&needs).unwrap();
        prop_assert_eq!(search.within(makespan - 1, 1 << 40), Answer::None);
        let Answer::Order(order) = search.within(makespan, 1 << 40) else { panic!("the optimum was not found") };
        prop_assert_eq!(Scorer::new(&needs).makespan(&order), makespan);
    }

    #[test]
    fn every_order_is_a_permutation_and_says_the_truth(dag in dags(60, 50), seed in any::<u64>()) {
        let needs = Needs::new(&dag).unwrap();
        let given = OrderMethod::Given((0..dag.ops.len() as u64).rev().collect());
        let schedulers = [OrderMethod::Layer, OrderMethod::Tic, OrderMethod::Tac, OrderMethod::TacFolded, OrderMethod::Random, given];
        let best = ordered(&dag, OrderMethod::Optimal, Ties::Id, seed);
        for scheduler in schedulers {
            for ties in [Ties::Id, Ties::Upstream] {
                let result = ordered(&dag, scheduler.clone(), ties, seed);
                let mut recvs = result.order.clone();
                recvs.sort_by_key(|&op| dag.ops[op as usize].id);
                prop_assert_eq!(&recvs, &needs.recv_ops);
                prop_assert!(result.priority.is_sorted());
                prop_assert!(result.makespan_ticks >= best.makespan_ticks);
                prop_assert!(result.proven_bound_ticks <= best.makespan_ticks);
            }
        }
    }

    #[test]
    fn without_communication_all_orders_tie(mut dag in dags(40, 50), seed in any::<u64>()) {
        dag.ops.iter_mut().filter(|op| op.kind == Kind::Recv).for_each(|op| op.time_ticks = 0);
        let compute = Needs::new(&dag).unwrap().compute_ticks();
        for scheduler in [OrderMethod::Layer, OrderMethod::Tic, OrderMethod::Tac, OrderMethod::Random, OrderMethod::Optimal] {
            let result = ordered(&dag, scheduler, Ties::Id, seed);
            prop_assert_eq!((result.makespan_ticks, result.proven_bound_ticks), (compute, compute));
        }
    }

    /// Nothing in TAC's rules excludes the worst order, but the paper claims that TAC avoids it.
    #[test]
    fn tac_is_never_worse_than_the_worst_of_a_thousand_random_orders(dag in dags(40, 50)) {
        let needs = Needs::new(&dag).unwrap();
        let mut scorer = Scorer::new(&needs);
        let mut order: Vec<Recv> = (0..needs.recv_count() as Recv).collect();
        let mut stream = Seed(1).stream("test");
        let worst = (0..1000).map(|_| { stream.shuffle(&mut order); scorer.makespan(&order) }).max().unwrap();
        prop_assert!(scorer.makespan(&tac(&needs, &needs.work_ticks)) <= worst);
    }

    #[test]
    fn a_consistent_comparator_is_sorted_stably(values in prop::collection::vec(0..20_u32, 0..400)) {
        let mut items: Vec<(u32, usize)> = values.into_iter().zip(0..).collect();
        let mut expected = items.clone();
        expected.sort_by_key(|item| item.0);
        cpython_sort::sort(&mut items, |a, b| a.0 < b.0);
        prop_assert_eq!(items, expected);
    }
}

/// DAGs with more joins than a block of the implementation holds, in sequence and in parallel.
#[test]
fn tac_is_the_papers_algorithm_on_larger_dags() {
    // In the last two cases some transfers take no time. They have P = M = 0 until an op waits for such a transfer
    // alone.
    for (seed, reach, most, idle) in
        [(1, 4, 9, 0), (2, 30, 1000, 0), (3, 200, 4, 0), (4, 30, 20, 0), (5, 30, 1000, 9), (6, 12, 30, 2)]
    {
        let mut stream = Seed(seed).stream("test");
        let mut ops: Vec<Op> = Vec::new();
        while ops.len() < 600 {
            let (id, time_ticks) = (ops.len() as u64, stream.below(most));
            let is_recv = ops.is_empty() || stream.below(4) == 0;
            let time_ticks = if is_recv && idle > 0 && stream.below(idle) == 0 { 0 } else { time_ticks };
            let first = ops.len().saturating_sub(reach);
            let inputs = if is_recv { 0 } else { 1 + stream.below(3) };
            let inputs =
                (0..inputs).map(|_| (first as u64 + stream.below((ops.len() - first) as u64)) as u32).collect();
            let kind = if is_recv { Kind::Recv } else { Kind::Comp };
            ops.push(Op { id, kind, inputs, time_ticks, param_only: false });
        }
        let inputs = (0..600).collect();
        ops.push(Op { id: 600, kind: Kind::Comp, inputs, time_ticks: 1, param_only: false });
        let dag = OpDag { ops, target: 600 };
        let needs = Needs::new(&dag).unwrap();
        assert!(needs.join_count() > 64 && needs.recv_count() > 100, "{} {}", needs.join_count(), needs.recv_count());
        assert_eq!(tac(&needs, &needs.work_ticks), naive_tac(&dag, &needs));
    }
}

#[test]
fn what_means_nothing_is_refused() {
    let op =
        |id, kind, inputs: &[u32], time_ticks| Op { id, kind, inputs: inputs.to_vec(), time_ticks, param_only: false };
    let refusal = |ops: Vec<Op>| Needs::new(&OpDag { target: ops.len() as u32 - 1, ops }).unwrap_err();
    let recv = || op(5, Kind::Recv, &[], 1);
    assert_eq!(refusal(vec![recv(), op(6, Kind::Comp, &[0, 2], 1), op(7, Kind::Comp, &[1], 1)]), OpDagError::Cycle(7));
    assert_eq!(refusal(vec![recv(), op(6, Kind::Comp, &[9], 1)]), OpDagError::NoSuchOp(9));
    assert_eq!(refusal(vec![recv(), op(6, Kind::Recv, &[0], 1)]), OpDagError::RecvWithInputs(6));
    assert_eq!(refusal(vec![recv(), op(6, Kind::Comp, &[], 1)]), OpDagError::NoRecv);
    assert_eq!(refusal(vec![recv(), op(6, Kind::Comp, &[0], u64::MAX)]), OpDagError::TooLong);
}
