//! Is there an order with at most this makespan? Branch and bound from both ends.
//!
//! With S the transfers that have been sent, T(S) their time, A(S) the work that needs no others and C all work, an
//! order has a makespan of at most L if and only if C <= L and the next transfer r always has `t_r <= L - C + A(S) -
//! T(S)`. Call the right side the *capital*: a transfer costs its time, completed work pays. Read backwards, taking r
//! off the end pays t_r and costs the work that needs r. A is supermodular: what is sent earlier never makes another
//! pay less. So
//!
//! - at the front, a set that can be afforded, pays at least what it costs, and has no subset that pays better, may be
//!   sent at once: any order that succeeds still does with that set moved to its front;
//! - at the back, the same holds of what may be sent last.
//!
//! What neither rule decides is tried, one transfer after another. Chains, and blocks of branches, seldom need that.

use super::super::needs::{Needs, Recv, bits};
use gradtide_watch::look;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// What became of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// An order within the limit.
    Order(Vec<Recv>),
    /// There is none.
    None,
    /// The budget did not suffice.
    Unknown,
}

/// Most words of sets that one walk through all transfers may look at.
const MAX_STEPS: usize = 1 << 27;

/// A set of transfers, a bit each.
type Set = Vec<u64>;

/// Searches orders of one DAG.
pub struct Search<'a> {
    needs: &'a Needs,
    /// What each node needs.
    sets: Vec<Set>,
    compute_ticks: i128,
    /// Steps that are left; a step looks at one word of one set.
    budget: u64,
    failed: BTreeSet<(Set, Set)>,
}

/// A place in the search: what is sent first and what is sent last; in between, nothing is decided.
#[derive(Clone)]
struct SearchNode {
    front: Set,
    back: Set,
    first: Vec<Recv>,
    /// Last transfer first.
    last: Vec<Recv>,
}

/// What the transfers in between mean at a place.
struct View {
    middle: Vec<Recv>,
    front_capital: i128,
    back_capital: i128,
    /// Work that a transfer completes on its own, by transfer.
    gains: Vec<u64>,
    /// Work that needs it and nothing at the back, by transfer.
    losses: Vec<u64>,
    /// What is missing of work that needs several, and that work.
    joins: Vec<(Set, u64)>,
}

impl<'a> Search<'a> {
    /// For orders of the transfers of `needs`; `None` if sets of them would take too much room.
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

    /// Whether an order has a makespan of at most `limit_ticks`, in `budget` steps.
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

    /// An order of the nearest goods: always the set of a piece of work that comes first by Johnson's rule.
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
            // A transfer that completes nothing is no goods of its own while there are others.
            let goods =
                singles.filter(|(_, recvs)| minimal.is_empty() || view.gains[recvs[0] as usize] > 0).chain(sets);
            let (_, recvs) = goods.min().expect("something is in between");
            place.send_first(&recvs);
        }
    }

    /// Follows the rules as far as they lead, then tries.
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
            // A path of tries is as long as there are transfers; the machine's stack is not.
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
            look();
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

    /// What may be sent at once: a transfer or the set of a join that can be afforded and pays for itself.
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

    /// What may be sent last: a transfer whose time is at least the work that needs it, with all that is needed by
    /// nothing else.
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
            // The second condition: no part of the set without `recv` pays better.
            (gain >= loss && ticks(recv) + least >= loss).then(|| [&[recv], &freed[..]].concat())
        })
    }

    /// Transfers in between that nothing but what is lost with `recv` needs.
    fn freed(&self, view: &View, place: &SearchNode, recv: Recv) -> Vec<Recv> {
        look();
        let mut still: Set = vec![0; place.front.len()];
        for (set, &ticks) in self.sets.iter().zip(&self.needs.work_ticks) {
            let is_lost = contains(set, recv) || set.iter().zip(&place.back).any(|(word, back)| word & back != 0);
            if ticks > 0 && !is_lost {
                still.iter_mut().zip(set).for_each(|(word, other)| *word |= other);
            }
        }
        view.middle.iter().copied().filter(|&other| other != recv && !contains(&still, other)).collect()
    }

    /// Work that a set completes, and its time.
    fn terms(&self, view: &View, set: &Set) -> (u64, u64) {
        look();
        let inside = |other: &Set| other.iter().zip(set).all(|(word, set)| word & !set == 0);
        let alone: u64 = members(set).map(|recv| view.gains[recv as usize]).sum();
        let joined: u64 = view.joins.iter().filter(|(other, _)| inside(other)).map(|&(_, ticks)| ticks).sum();
        (alone + joined, members(set).map(|recv| self.needs.recv_ticks[recv as usize]).sum())
    }

    /// The members of a set as Johnson's rule sends what costs more than it pays: the best payer first.
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

/// The sets of joins that have no other's set inside, smallest first.
fn minimal(joins: &[(Set, u64)]) -> Vec<Set> {
    let mut sorted: Vec<(u32, &Set)> =
        joins.iter().map(|(set, _)| (set.iter().map(|word| word.count_ones()).sum(), set)).collect();
    sorted.sort_unstable();
    let mut found: Vec<Set> = Vec::new();
    for (_, set) in sorted {
        look();
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
