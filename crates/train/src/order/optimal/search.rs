//! Branch and bound from both ends of the order: decides whether an order with at most a given makespan exists.
//!
//! Let S be the set of transfers sent so far, T(S) their total time, A(S) the compute time of the ops that need no
//! other transfers, and C the total compute time. An order has a makespan of at most L if and only if C <= L and every
//! next transfer r satisfies `t_r <= L - C + A(S) - T(S)`, where t_r is the time of r. The right side is called the
//! *capital*: a transfer costs its time, and the work that it completes adds to the capital. In the reverse direction,
//! to take r off the end adds t_r and costs the compute time of the ops that need r.
//!
//! A is supermodular: if a transfer is sent earlier, no other transfer completes less work. This yields two rules:
//!
//! - At the front, a set of transfers may be sent at once if it is affordable, completes at least as much work as it
//!   costs, and has no subset with a better balance. Any feasible order remains feasible if this set is moved to its
//!   front.
//! - At the back, the same rule holds in the reverse direction.
//!
//! If neither rule applies, the search branches over single transfers. DAGs that are chains, or sequences of blocks
//! with parallel branches, rarely need branching.

use super::super::needs::{Needs, Recv, bits};
use gradtide_watch::check_cancelled;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An order within the limit.
    Order(Vec<Recv>),
    /// No order is within the limit.
    None,
    /// The budget was exhausted before the search was complete.
    Unknown,
}

/// Limit on the number of 64-bit words of transfer sets that one pass over all transfers may read.
const MAX_STEPS: usize = 1 << 27;

/// A set of transfers as bits, one for each transfer.
type Set = Vec<u64>;

/// Searches the orders of one DAG.
pub struct Search<'a> {
    needs: &'a Needs,
    /// Set of the transfers that each node needs.
    sets: Vec<Set>,
    compute_ticks: i128,
    /// Remaining steps. A step reads one word of one set.
    budget: u64,
    failed: BTreeSet<(Set, Set)>,
}

/// A node of the search tree. The transfers of `front` are sent first, the transfers of `back` last. All others are
/// undecided.
#[derive(Clone)]
struct SearchNode {
    front: Set,
    back: Set,
    first: Vec<Recv>,
    /// Transfers sent last, in reverse order.
    last: Vec<Recv>,
}

/// Costs and gains of the undecided transfers at a node of the search tree.
struct View {
    middle: Vec<Recv>,
    front_capital: i128,
    back_capital: i128,
    /// For each transfer, the compute time of the ops that need no other undecided transfer.
    gains: Vec<u64>,
    /// For each transfer, the compute time of the ops that need it and do not need any transfer of `back`.
    losses: Vec<u64>,
    /// Ops that need several undecided transfers: the set of these transfers, and the compute time of the ops.
    joins: Vec<(Set, u64)>,
}

impl<'a> Search<'a> {
    /// Creates a search over orders of the transfers of `needs`. Returns `None` if their sets would take too much time
    /// and memory.
    pub fn new(needs: &'a Needs) -> Option<Self> {
        let recv_count = needs.recv_count();
        let words = recv_count.div_ceil(64);
        if words * needs.work_ticks.len() * recv_count > MAX_STEPS {
            return None;
        }
        let mut sets: Vec<Set> = (0..recv_count)
            .map(|recv| {
                let mut set = vec![0; words];
                insert(&mut set, recv as Recv);
                set
            })
            .collect();
        for parents in &needs.parents {
            let mut set = vec![0; words];
            for &parent in parents {
                set.iter_mut().zip(&sets[parent as usize]).for_each(|(word, other)| *word |= other);
            }
            sets.push(set);
        }
        let compute_ticks = i128::from(needs.compute_ticks());
        Some(Self { needs, sets, compute_ticks, budget: 0, failed: BTreeSet::new() })
    }

    /// Searches for an order with a makespan of at most `limit_ticks`, in at most `budget` steps.
    pub fn within(&mut self, limit_ticks: u64, budget: u64) -> Answer {
        if i128::from(limit_ticks) < self.compute_ticks {
            return Answer::None;
        }
        self.budget = budget;
        self.failed.clear();
        let empty = vec![0; self.sets[0].len()];
        let start = SearchNode { front: empty.clone(), back: empty, first: Vec::new(), last: Vec::new() };
        match self.descend(start, i128::from(limit_ticks), 0) {
            Some(mut place) => {
                place.first.extend(place.last.iter().rev());
                Answer::Order(place.first)
            }
            None if self.budget == 0 => Answer::Unknown,
            None => Answer::None,
        }
    }

    /// Returns a greedy order. In each round, it sends the transfers of the op or join that is first by Johnson's rule.
    pub fn greedy(&self) -> Vec<Recv> {
        let empty = vec![0; self.sets[0].len()];
        let mut place = SearchNode { front: empty.clone(), back: empty, first: Vec::new(), last: Vec::new() };
        loop {
            let view = self.view(&place, 0);
            if view.middle.is_empty() {
                return place.first;
            }
            let key = |gain: u64, cost: u64| {
                if gain >= cost { (0, cost, Reverse(gain)) } else { (1, 0, Reverse(gain)) }
            };
            let singles = view.middle.iter().map(|&recv| {
                let (gain, cost) = (view.gains[recv as usize], self.needs.recv_ticks[recv as usize]);
                (key(gain, cost), vec![recv])
            });
            let minimal = minimal(&view.joins);
            let sets = minimal.iter().map(|set| {
                let (gain, cost) = self.terms(&view, set);
                (key(gain, cost), self.by_gain(&view, set))
            });
            // A transfer that completes no work on its own is a candidate only if there are no joins.
            let goods =
                singles.filter(|(_, recvs)| minimal.is_empty() || view.gains[recvs[0] as usize] > 0).chain(sets);
            let (_, recvs) = goods.min().expect("something is in between");
            place.send_first(&recvs);
        }
    }

    /// Applies the two rules as long as possible, then branches.
    fn descend(&mut self, mut place: SearchNode, limit: i128, depth: usize) -> Option<SearchNode> {
        loop {
            let view = self.view(&place, limit);
            let steps = (self.sets.len() * self.sets[0].len()) as u64;
            self.budget = self.budget.saturating_sub(steps);
            if view.middle.is_empty() {
                return Some(place);
            }
            if self.budget == 0 {
                return None;
            }
            if let Some(recvs) = self.sure_first(&view) {
                place.send_first(&recvs);
                continue;
            }
            if let Some(recvs) = self.sure_last(&view, &place) {
                place.send_last(&recvs);
                continue;
            }
            let cost = |recv: Recv| i128::from(self.needs.recv_ticks[recv as usize]);
            let loss = |recv: Recv| i128::from(view.losses[recv as usize]);
            let mut firsts: Vec<Recv> =
                view.middle.iter().copied().filter(|&recv| cost(recv) <= view.front_capital).collect();
            let mut lasts: Vec<Recv> =
                view.middle.iter().copied().filter(|&recv| loss(recv) <= view.back_capital).collect();
            // The depth is limited because it grows with the number of transfers and the call stack is finite.
            if firsts.is_empty() || lasts.is_empty() || depth > 200 {
                self.budget = if depth > 200 { 0 } else { self.budget };
                return None;
            }
            if !self.failed.insert((place.front.clone(), place.back.clone())) {
                return None;
            }
            if firsts.len() <= lasts.len() {
                firsts.sort_by_key(|&recv| (cost(recv) - i128::from(view.gains[recv as usize]), recv));
                for recv in firsts {
                    let mut next = place.clone();
                    next.send_first(&[recv]);
                    if let found @ Some(_) = self.descend(next, limit, depth + 1) {
                        return found;
                    }
                }
            } else {
                lasts.sort_by_key(|&recv| (loss(recv) - cost(recv), recv));
                for recv in lasts {
                    let mut next = place.clone();
                    next.send_last(&[recv]);
                    if let found @ Some(_) = self.descend(next, limit, depth + 1) {
                        return found;
                    }
                }
            }
            return None;
        }
    }

    fn view(&self, place: &SearchNode, limit: i128) -> View {
        let recv_count = self.needs.recv_count();
        let mut view = View {
            middle: (0..recv_count as Recv)
                .filter(|&recv| !contains(&place.front, recv) && !contains(&place.back, recv))
                .collect(),
            front_capital: limit - self.compute_ticks + i128::from(self.needs.free_ticks),
            back_capital: limit - self.compute_ticks + i128::from(self.needs.free_ticks),
            gains: vec![0; recv_count],
            losses: vec![0; recv_count],
            joins: Vec::new(),
        };
        for recv in 0..recv_count as Recv {
            let ticks = i128::from(self.needs.recv_ticks[recv as usize]);
            view.front_capital -= if contains(&place.front, recv) { ticks } else { 0 };
            view.back_capital -= if contains(&place.back, recv) { 0 } else { ticks };
        }
        for (set, &ticks) in self.sets.iter().zip(&self.needs.work_ticks) {
            check_cancelled();
            if ticks == 0 || set.iter().zip(&place.back).any(|(word, back)| word & back != 0) {
                continue;
            }
            view.back_capital += i128::from(ticks);
            let missing: Set = set.iter().zip(&place.front).map(|(word, front)| word & !front).collect();
            for recv in members(&missing) {
                view.losses[recv as usize] += ticks;
            }
            match missing.iter().map(|word| word.count_ones()).sum::<u32>() {
                0 => view.front_capital += i128::from(ticks),
                1 => view.gains[members(&missing).next().expect("it has one") as usize] += ticks,
                _ => view.joins.push((missing, ticks)),
            }
        }
        view
    }

    /// Returns transfers that may be sent next by the front rule, if there are any. They are a single transfer or the
    /// set of a join that is affordable and completes at least as much work as it costs.
    fn sure_first(&self, view: &View) -> Option<Vec<Recv>> {
        let pays = |&recv: &Recv| {
            let ticks = self.needs.recv_ticks[recv as usize];
            view.gains[recv as usize] >= ticks && i128::from(ticks) <= view.front_capital
        };
        if let Some(recv) = view.middle.iter().copied().find(pays) {
            return Some(vec![recv]);
        }
        minimal(&view.joins).into_iter().find_map(|set| {
            let (gain, cost) = self.terms(view, &set);
            let recvs = self.by_gain(view, &set);
            (gain >= cost && self.can_send(view, &recvs)).then_some(recvs)
        })
    }

    /// Returns transfers that may be sent last by the back rule, if there are any. They are a transfer whose time is at
    /// least the work that needs it, together with the transfers that are needed only by this work.
    fn sure_last(&self, view: &View, place: &SearchNode) -> Option<Vec<Recv>> {
        let affordable = |&recv: &Recv| i128::from(view.losses[recv as usize]) <= view.back_capital;
        let ticks = |recv: Recv| self.needs.recv_ticks[recv as usize];
        let mut candidates: Vec<Recv> = view.middle.iter().copied().filter(affordable).collect();
        candidates.sort_by_key(|&recv| (view.losses[recv as usize], recv));
        if let Some(&recv) = candidates.iter().find(|&&recv| ticks(recv) >= view.losses[recv as usize]) {
            return Some(vec![recv]);
        }
        candidates.into_iter().find_map(|recv| {
            let freed = self.freed(view, place, recv);
            let least = freed.iter().map(|&other| view.losses[other as usize]).min()?;
            let loss = view.losses[recv as usize];
            let gain = ticks(recv) + freed.iter().map(|&other| ticks(other)).sum::<u64>();
            // The second condition ensures that no subset without `recv` has a better balance.
            (gain >= loss && ticks(recv) + least >= loss).then(|| [&[recv], &freed[..]].concat())
        })
    }

    /// Returns the undecided transfers that are needed only by ops that also need `recv` or a transfer at the back.
    fn freed(&self, view: &View, place: &SearchNode, recv: Recv) -> Vec<Recv> {
        check_cancelled();
        let mut still: Set = vec![0; place.front.len()];
        for (set, &ticks) in self.sets.iter().zip(&self.needs.work_ticks) {
            let is_lost = contains(set, recv) || set.iter().zip(&place.back).any(|(word, back)| word & back != 0);
            if ticks > 0 && !is_lost {
                still.iter_mut().zip(set).for_each(|(word, other)| *word |= other);
            }
        }
        view.middle.iter().copied().filter(|&other| other != recv && !contains(&still, other)).collect()
    }

    /// Returns the compute time that the transfers of a set complete, and their total time.
    fn terms(&self, view: &View, set: &Set) -> (u64, u64) {
        check_cancelled();
        let inside = |other: &Set| other.iter().zip(set).all(|(word, set)| word & !set == 0);
        let alone: u64 = members(set).map(|recv| view.gains[recv as usize]).sum();
        let joined: u64 = view.joins.iter().filter(|(other, _)| inside(other)).map(|&(_, ticks)| ticks).sum();
        (alone + joined, members(set).map(|recv| self.needs.recv_ticks[recv as usize]).sum())
    }

    /// Sorts the members of a set by descending completed work. This is Johnson's rule for transfers that cost more
    /// than they complete.
    fn by_gain(&self, view: &View, set: &Set) -> Vec<Recv> {
        let mut recvs: Vec<Recv> = members(set).collect();
        recvs.sort_by_key(|&recv| (Reverse(view.gains[recv as usize]), recv));
        recvs
    }

    fn can_send(&self, view: &View, recvs: &[Recv]) -> bool {
        let mut capital = view.front_capital;
        recvs.iter().all(|&recv| {
            let ticks = i128::from(self.needs.recv_ticks[recv as usize]);
            let can = ticks <= capital;
            capital += i128::from(view.gains[recv as usize]) - ticks;
            can
        })
    }
}

impl SearchNode {
    fn send_first(&mut self, recvs: &[Recv]) {
        recvs.iter().for_each(|&recv| insert(&mut self.front, recv));
        self.first.extend(recvs);
    }

    fn send_last(&mut self, recvs: &[Recv]) {
        recvs.iter().for_each(|&recv| insert(&mut self.back, recv));
        self.last.extend(recvs);
    }
}

/// Returns the sets of joins that do not contain the set of another join, the smallest first.
fn minimal(joins: &[(Set, u64)]) -> Vec<Set> {
    let mut sorted: Vec<(u32, &Set)> =
        joins.iter().map(|(set, _)| (set.iter().map(|word| word.count_ones()).sum(), set)).collect();
    sorted.sort_unstable();
    let mut found: Vec<Set> = Vec::new();
    for (_, set) in sorted {
        check_cancelled();
        if !found.iter().any(|other| other.iter().zip(set).all(|(word, set)| word & !set == 0)) {
            found.push(set.clone());
        }
    }
    found
}

fn insert(set: &mut Set, recv: Recv) {
    set[recv as usize / 64] |= 1 << (recv % 64);
}

fn contains(set: &Set, recv: Recv) -> bool {
    set[recv as usize / 64] >> (recv % 64) & 1 == 1
}

fn members(set: &Set) -> impl Iterator<Item = Recv> {
    set.iter().enumerate().flat_map(|(index, &word)| bits(word).map(move |bit| (index * 64 + bit) as Recv))
}
