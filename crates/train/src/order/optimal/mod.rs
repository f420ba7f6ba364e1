//! Search for the order with the smallest makespan, and proven bounds on the optimum.

pub mod exact;
pub mod search;

use super::makespan::Scorer;
use super::needs::{Needs, Recv, bits};
use super::tac::tac;
use super::{by_priority, tic::tic};
use gradtide_net::Seed;
use gradtide_watch::check_cancelled;
use search::{Answer, Search};

/// Budget of the local search, about one second of CPU time. It counts the joins and edges that evaluations visit.
const LOCAL_STEPS: u64 = 200_000_000;

/// Budget of one search for an order within a limit, about 0.2 s of CPU time. It counts the 64-bit words of transfer
/// sets that the search reads.
const SEARCH_STEPS: u64 = 10_000_000;

/// Like [`SEARCH_STEPS`], for the search that tests whether an order is optimal.
const SHORT_STEPS: u64 = 1_000_000;

/// An order, and a lower bound on the makespans of all orders.
#[derive(Clone, Debug)]
pub struct Best {
    /// Transfers in order.
    pub order: Vec<Recv>,
    /// Makespan of the order.
    pub makespan_ticks: u64,
    /// Proven lower bound on the makespan of all orders.
    pub bound_ticks: u64,
}

/// Returns the best order of several candidates and of searches that start from them. The candidates are layer order,
/// TIC, TAC, TAC folded and a greedy order.
///
/// For up to [`exact::MAX_RECVS`] transfers, the result is the optimum. For more transfers, the searches stop after a
/// fixed number of steps instead of a time limit, so that a DAG and a seed give the same order on every machine.
pub fn best(needs: &Needs, seed: Seed) -> Best {
    if let Some((makespan_ticks, order)) = exact::optimum(needs) {
        return Best { order, makespan_ticks, bound_ticks: makespan_ticks };
    }
    let mut scorer = Scorer::new(needs);
    let mut search = Search::new(needs);
    let starts = [
        needs.listed.clone(),
        by_priority(&tic(needs)),
        tac(needs, &needs.work_ticks),
        tac(needs, &needs.folded_ticks),
    ];
    let scored =
        starts.into_iter().chain(search.as_ref().map(Search::greedy)).map(|order| (scorer.makespan(&order), order));
    let (makespan_ticks, order) = scored.min().expect("there are several");
    let mut best = Best { order, makespan_ticks, bound_ticks: bound(needs) };
    if let Some(search) = &mut search {
        close(&mut best, search, &mut scorer);
    }
    if best.makespan_ticks > best.bound_ticks {
        improve(&mut best, &mut scorer, seed);
    }
    best
}

/// Returns a lower bound on the makespan of all orders, if an order with `makespan_ticks` exists. If a short but
/// exhaustive search finds no better order, the bound is `makespan_ticks` itself. Otherwise it is the result of
/// [`bound`].
pub fn proven(needs: &Needs, makespan_ticks: u64) -> u64 {
    let bound = bound(needs);
    if bound == makespan_ticks {
        return bound;
    }
    let answer = Search::new(needs).map(|mut search| search.within(makespan_ticks - 1, SHORT_STEPS));
    if answer == Some(Answer::None) { makespan_ticks } else { bound }
}

/// Returns a lower bound on the makespan of all orders that is computed from a few sums.
///
/// It is the largest of three bounds. The first is [`Needs::lower_bound_ticks`]. The second holds because no op that
/// needs a transfer can run before all transfers of one such op have arrived. The third holds because the ops that need
/// the last transfer run after all transfers.
pub fn bound(needs: &Needs) -> u64 {
    let first_work = first_work_ticks(needs) + needs.compute_ticks() - needs.free_ticks;
    let last_work = needs.transfer_ticks() + least_loss_ticks(needs);
    needs.lower_bound_ticks().max(first_work).max(last_work)
}

/// Returns a lower bound on the time at which the first op that needs transfers can run.
fn first_work_ticks(needs: &Needs) -> u64 {
    let recv_count = needs.recv_count();
    // The transfers that a node needs take at least as long as the transfers that each of its parents needs, and at
    // least as long as all transfers that are its parents.
    let mut needed = needs.recv_ticks.clone();
    for parents in &needs.parents {
        let (above, joins): (Vec<u32>, Vec<u32>) = parents.iter().partition(|&&parent| (parent as usize) < recv_count);
        let above = above.iter().map(|&recv| needed[recv as usize]).sum();
        needed.push(joins.iter().map(|&join| needed[join as usize]).fold(above, u64::max));
    }
    let worked = needed.iter().zip(&needs.work_ticks).filter(|&(_, &work)| work > 0);
    worked.map(|(&needed, _)| needed).min().unwrap_or(0)
}

/// Limit on the number of pairs of a transfer and a join that are summed for a bound. It corresponds to some tenths of
/// a second.
const MAX_PAIRS: usize = 1 << 27;

/// Returns the minimum, over all transfers, of the compute time of the ops that need the transfer. Returns 0, which
/// also yields a valid bound, if the computation would take too long.
fn least_loss_ticks(needs: &Needs) -> u64 {
    let recv_count = needs.recv_count();
    if recv_count * needs.join_count() > MAX_PAIRS {
        return 0;
    }
    let mut least = u64::MAX;
    let mut reach = vec![0_u64; needs.work_ticks.len()];
    for first in (0..recv_count).step_by(64) {
        let mut losses = [0_u64; 64];
        for node in 0..reach.len() {
            check_cancelled();
            reach[node] = match node.checked_sub(recv_count) {
                None => u64::from(node / 64 == first / 64) << (node % 64),
                Some(join) => needs.parents[join].iter().fold(0, |word, &parent| word | reach[parent as usize]),
            };
            for bit in bits(if needs.work_ticks[node] == 0 { 0 } else { reach[node] }) {
                losses[bit] += needs.work_ticks[node];
            }
        }
        least = losses[..(recv_count - first).min(64)].iter().fold(least, |least, &loss| least.min(loss));
    }
    least
}

/// Bisects the interval between the bound and the best makespan until they are equal or the searches exhaust their
/// budgets.
fn close(best: &mut Best, search: &mut Search<'_>, scorer: &mut Scorer<'_>) {
    // Smallest limit at which a search exhausted its budget.
    let mut unknown = best.makespan_ticks;
    while best.bound_ticks < unknown.min(best.makespan_ticks) {
        let limit = best.bound_ticks + (unknown.min(best.makespan_ticks) - best.bound_ticks) / 2;
        match search.within(limit, SEARCH_STEPS) {
            Answer::Order(order) => {
                best.makespan_ticks = scorer.makespan(&order);
                best.order = order;
            }
            Answer::None => best.bound_ticks = limit + 1,
            Answer::Unknown => unknown = limit,
        }
    }
}

/// Moves one random transfer at a time to another place in the order, unless this increases the makespan.
fn improve(best: &mut Best, scorer: &mut Scorer<'_>, seed: Seed) {
    let mut stream = seed.stream("order");
    let count = best.order.len() as u64;
    let mut order = best.order.clone();
    for _ in 0..LOCAL_STEPS / scorer.cost() {
        let (from, to) = (stream.below(count) as usize, stream.below(count) as usize);
        shift(&mut order, from, to);
        let makespan = scorer.makespan(&order);
        if makespan > best.makespan_ticks {
            shift(&mut order, to, from);
            continue;
        }
        if makespan < best.makespan_ticks {
            best.order.clone_from(&order);
            best.makespan_ticks = makespan;
            if makespan == best.bound_ticks {
                return;
            }
        }
    }
}

/// Moves the item at `from` to `to`.
fn shift(order: &mut [Recv], from: usize, to: usize) {
    if from < to {
        order[from..=to].rotate_left(1);
    } else {
        order[to..=from].rotate_right(1);
    }
}
