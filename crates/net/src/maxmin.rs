//! Max-min fair shares of capacities: progressive filling, solved again only where something changed.
//!
//! All rates rise together. When the flows that still rise fill a link, they stop there, at the link's *level*; the
//! rest rises on, until all have stopped (Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2):
//!
//! ```text
//! level(l) = (capacity(l) - what flows stopped below the level use) / flows of l not stopped below the level
//! rate(f)  = the least level of the links of f
//! ```
//!
//! Numbers are whole [parts](PARTS) of a unit of capacity, and a level is rounded down to one. Sums of whole numbers do
//! not depend on their order, and links that fill at one level stop their flows together. So the shares are a function
//! of the flows alone, to the last bit: neither the order of links nor the history of changes is seen in them, and no
//! link is ever above its capacity.
//!
//! Three things make it fast. Flows with the same links are one *class* with a count. Any number of changes
//! is one solve, at the next read. And a solve moves levels, lowest first, from the links that gained or lost a flow to
//! those that see a rate change, and no further; it [tells](MaxMin::take_changed) which rates those are. What does not
//! live here: time, bytes, routes.

use crate::index::{self, Index};
use gradtide_watch::look;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Parts of one unit of capacity (say, of 1 bit/s) that rates are counted in: 2^20.
///
/// A level is rounded down by less than one part: 1e-10 of a share of 10 kbit/s, if capacities are in bit/s.
pub const PARTS: u64 = 1 << 20;

/// Capacities are below this, so that they fit 64 bits in [`PARTS`]: 2^44 units, or 17.6 Tbit/s.
pub const CAPACITY_LIMIT: u64 = u64::MAX / PARTS;

/// Index of a link in the capacities that the solver was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// Flows with the same links that name the same link first, or one flow added [apart](MaxMin::add_apart); they have
/// one rate. The number of a class whose last flow was removed is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassId(pub u32);

/// No rate yet, and no level: faster than any link.
const UNBOUNDED: u64 = u64::MAX;
/// A link that there is not.
const NO_LINK: LinkId = LinkId(u32::MAX);

/// The solver: capacities, classes of flows on them, and their rates.
#[derive(Clone, Debug, Default)]
pub struct MaxMin {
    links: Vec<LinkState>,
    /// By link: rate at which flows are held there; [`UNBOUNDED`] if the link is not full. Apart from the rest because
    /// this is read most.
    levels: Vec<u64>,
    /// By link, the classes that cross it, and some that had their last flow removed: see [`Self::sweep`].
    members: Vec<Vec<u32>>,
    classes: Vec<Class>,
    /// `stride` links for each class, of which it uses the first few; sorted but for the first where others may join.
    hops: Vec<LinkId>,
    stride: usize,
    free: Vec<u32>,
    /// Classes that have had their last flow removed, and that links may still have among their members.
    gone: Vec<u32>,
    /// By link, the classes of which it is the first and that others may join: small tables, so that what is used
    /// together is near, if flows begin with the link of their source.
    known: Vec<Index>,
    /// Links that are to be looked at, each once.
    stale: Vec<u32>,
    /// Classes whose rate has changed.
    changed: Vec<ClassId>,
    /// Links whose used capacity has changed, if somebody wants to know.
    touched: Option<Vec<LinkId>>,
    scratch: Scratch,
    solve_count: u64,
}

#[derive(Clone, Copy, Debug)]
struct LinkState {
    capacity: u64,
    /// Where it stands among the links that are to move; [`UNBOUNDED`] if it does not.
    moves_at: u64,
    /// Level that the other links ask for, if they have been looked at since something changed.
    asked: Option<u64>,
    /// Sum of the rates of its flows, above the capacity while a solve goes on.
    used: u128,
    flows: u64,
    /// Members without flows.
    gone: u32,
    /// Whether something that its level depends on has changed.
    stale: bool,
}

impl LinkState {
    /// A flow of this rate comes.
    fn enter(&mut self, rate: u128) {
        self.used += rate;
        self.flows += 1;
    }

    /// A flow of this rate goes.
    fn leave(&mut self, rate: u128) {
        self.used -= rate;
        self.flows -= 1;
    }

    /// Rounding leaves less than a part for each flow of a full link.
    fn surely_not_full(&self) -> bool {
        self.used + u128::from(self.flows) <= u128::from(self.capacity)
    }

    /// Where it moves at the earliest, by what is known of its flows together.
    fn earliest_move(&self, level: u64) -> u64 {
        if self.surely_not_full() {
            // It rises from where it is.
            return level;
        }
        // It falls by no more than what one flow has to give up for all, or than rounding leaves.
        let excess = self.used.saturating_sub(u128::from(self.capacity)) + u128::from(self.flows);
        let least = self.capacity / self.flows;
        if level == UNBOUNDED {
            least
        } else {
            u64::try_from(u128::from(level).saturating_sub(excess)).unwrap_or(0).max(least)
        }
    }
}

/// So many flows of one rate.
#[derive(Clone, Copy, Debug)]
struct Share {
    rate: u64,
    count: u64,
}

/// What is known of a class but its links, in a quarter of a cache line.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// The least of its links' levels.
    rate: u64,
    /// Flows.
    count: u32,
    hop_count: u16,
    /// Whether it stands among the changed ones.
    changed: bool,
    /// Whether others may join.
    shared: bool,
}

/// Kept between solves for their memory alone.
#[derive(Clone, Debug, Default)]
struct Scratch {
    path: Vec<LinkId>,
    /// Links that are to move, by the lower of their two levels, or less if they have not been looked at.
    moves: BinaryHeap<Reverse<(u64, u32)>>,
    /// Those that move now.
    movers: Vec<u32>,
    rising: Vec<Share>,
}

impl MaxMin {
    /// Links of these capacities and no flow.
    ///
    /// # Panics
    /// If a capacity is not below [`CAPACITY_LIMIT`], or there are 2^32 links.
    pub fn new(capacities: &[u64]) -> Self {
        assert!(u32::try_from(capacities.len()).is_ok(), "links are counted in 32 bits");
        let link = |&capacity: &u64| {
            assert!(capacity < CAPACITY_LIMIT, "capacity {capacity} is not below {CAPACITY_LIMIT}");
            LinkState {
                capacity: capacity * PARTS,
                moves_at: UNBOUNDED,
                asked: None,
                used: 0,
                flows: 0,
                gone: 0,
                stale: false,
            }
        };
        Self {
            links: capacities.iter().map(link).collect(),
            levels: vec![UNBOUNDED; capacities.len()],
            members: vec![Vec::new(); capacities.len()],
            known: vec![Index::default(); capacities.len()],
            ..Self::default()
        }
    }

    /// Adds a flow that crosses `links`, in any order, and tells its class. Flows have it in common if the first one of
    /// their links is the same, too.
    ///
    /// # Panics
    /// If there is no link, one that stands there twice, or one that does not exist; or there are 2^16 links, or 2^32
    /// flows of one class.
    pub fn add(&mut self, links: &[LinkId]) -> ClassId {
        let mut path = std::mem::take(&mut self.scratch.path);
        path.clear();
        path.extend_from_slice(links);
        let (first, rest) = path.split_first_mut().expect("a flow crosses a link");
        rest.sort_unstable();
        let is_once = rest.windows(2).all(|two| two[0] < two[1]) && !rest.contains(first);
        assert!(is_once, "a flow crosses a link once");
        let hash = hash_of(&path);
        let is_it = |class: u32| *self.hops_of(class) == path[..];
        let class = match self.known[path[0].0 as usize].find(hash, is_it) {
            Some(class) => {
                self.count(class, true);
                class
            }
            None => {
                let class = self.open(&path, true);
                self.known[path[0].0 as usize].insert(hash, class);
                class
            }
        };
        self.scratch.path = path;
        ClassId(class)
    }

    /// As [`add`](Self::add), in a class of its own: for flows of which no two cross the same links at once, so that
    /// looking for another would be in vain. Rates are the same either way.
    ///
    /// # Panics
    /// If there is no link, or one that does not exist; or there are 2^16 links. That each is there once is the
    /// caller's word.
    pub fn add_apart(&mut self, links: &[LinkId]) -> ClassId {
        debug_assert!(
            (1..links.len()).all(|place| !links[..place].contains(&links[place])),
            "a flow crosses a link once"
        );
        ClassId(self.open(links, false))
    }

    /// Removes a flow of a class; tells whether others are left.
    ///
    /// # Panics
    /// If there is none.
    pub fn remove(&mut self, class: ClassId) -> bool {
        let class = class.0;
        let count = self.classes[class as usize].count;
        assert!(count > 0, "class {class} has a flow");
        if count > 1 {
            self.count(class, false);
        } else {
            self.close(class);
        }
        count > 1
    }

    /// Rate of each flow of a class in [`PARTS`]. Solves first if flows were added or removed.
    ///
    /// # Panics
    /// If there never was such a class.
    pub fn rate(&mut self, class: ClassId) -> u64 {
        self.solve();
        self.classes[class.0 as usize].rate
    }

    /// Every class that has flows, and their rate in [`PARTS`]. Solves first if flows were added or removed.
    pub fn rates(&mut self) -> impl Iterator<Item = (ClassId, u64)> {
        self.solve();
        let live = self.classes.iter().enumerate().filter(|(_, class)| class.count > 0);
        live.map(|(id, class)| (ClassId(id as u32), class.rate))
    }

    /// Solves, and gives `each` the classes that since the last call have gained or lost a flow and still have some, or
    /// have had another rate; each once, with its rate.
    pub fn take_changed(&mut self, mut each: impl FnMut(ClassId, u64)) {
        self.solve();
        for id in self.changed.drain(..) {
            let class = &mut self.classes[id.0 as usize];
            class.changed = false;
            if class.count > 0 {
                each(id, class.rate);
            }
        }
    }

    /// Gives a link another capacity, in [`PARTS`].
    pub fn set_capacity(&mut self, link: LinkId, parts: u64) {
        let state = &mut self.links[link.0 as usize];
        if state.capacity != parts {
            state.capacity = parts;
            mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
        }
    }

    /// Sum of the rates on a link, in [`PARTS`]. Solves first if flows were added or removed.
    pub fn used(&mut self, link: LinkId) -> u64 {
        self.solve();
        u64::try_from(self.links[link.0 as usize].used).expect("no link is above its capacity")
    }

    /// The next [`take_touched`](Self::take_touched) gives all links.
    pub fn touch_all(&mut self) {
        self.touched = None;
    }

    /// Solves, and gives `each` the links on which the sum of rates may be another than at the last call, some of them
    /// more than once; at the first call all.
    pub fn take_touched(&mut self, mut each: impl FnMut(LinkId)) {
        self.solve();
        match &mut self.touched {
            Some(touched) => touched.drain(..).for_each(each),
            None => {
                self.touched = Some(Vec::new());
                (0..self.links.len() as u32).for_each(|link| each(LinkId(link)));
            }
        }
    }

    /// How often flows were added or removed and then read.
    pub fn solve_count(&self) -> u64 {
        self.solve_count
    }

    /// The links of a class.
    pub fn links(&self, class: ClassId) -> impl Iterator<Item = LinkId> {
        self.hops_of(class.0).iter().copied()
    }

    /// The classes that cross a link, in no order.
    pub fn classes(&self, link: LinkId) -> impl Iterator<Item = ClassId> {
        let members = self.members[link.0 as usize].iter();
        members.filter(|&&class| self.classes[class as usize].count > 0).map(|&class| ClassId(class))
    }

    fn hops_of(&self, class: u32) -> &[LinkId] {
        let begin = class as usize * self.stride;
        &self.hops[begin..begin + self.classes[class as usize].hop_count as usize]
    }

    /// One flow of a class more, or less, that keeps some.
    fn count(&mut self, class: u32, more: bool) {
        self.change(class);
        let state = &mut self.classes[class as usize];
        state.count = if more { state.count + 1 } else { state.count - 1 };
        let rate = u128::from(state.rate);
        let begin = class as usize * self.stride;
        for &link in &self.hops[begin..begin + state.hop_count as usize] {
            let state = &mut self.links[link.0 as usize];
            if more {
                state.enter(rate);
            } else {
                state.leave(rate);
            }
            mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
        }
    }

    /// A new class with one flow.
    fn open(&mut self, path: &[LinkId], shared: bool) -> u32 {
        if path.len() > self.stride {
            self.widen(path.len());
        }
        if self.free.is_empty() && 2 * self.gone.len() > self.classes.len() {
            (0..self.links.len() as u32).for_each(|link| self.sweep(link));
            // The ones that ended first are used first, so that numbers are in the order of coming again.
            self.free.extend(self.gone.drain(..).rev());
        }
        let index = self.free.pop().unwrap_or(self.classes.len() as u32);
        let hop_count = u16::try_from(path.len()).expect("a flow crosses fewer than 2^16 links");
        let rate = path.iter().map(|link| self.levels[link.0 as usize]).fold(UNBOUNDED, u64::min);
        for &link in path {
            self.members[link.0 as usize].push(index);
            let state = &mut self.links[link.0 as usize];
            state.enter(u128::from(rate));
            mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
        }
        let class = Class { rate, count: 1, hop_count, changed: false, shared };
        let begin = index as usize * self.stride;
        if index as usize == self.classes.len() {
            self.classes.push(class);
            self.hops.extend_from_slice(path);
            self.hops.resize(begin + self.stride, NO_LINK);
        } else {
            let changed = self.classes[index as usize].changed;
            self.classes[index as usize] = Class { changed, ..class };
            self.hops[begin..begin + path.len()].copy_from_slice(path);
        }
        self.change(index);
        index
    }

    /// Lays the classes out anew, for paths of more links.
    fn widen(&mut self, stride: usize) {
        let mut hops = vec![NO_LINK; self.classes.len() * stride];
        if self.stride > 0 {
            for (wide, narrow) in hops.chunks_mut(stride).zip(self.hops.chunks(self.stride)) {
                wide[..narrow.len()].copy_from_slice(narrow);
            }
        }
        (self.hops, self.stride) = (hops, stride);
    }

    /// Removes the last flow of a class.
    fn close(&mut self, index: u32) {
        let begin = index as usize * self.stride;
        let Class { rate, hop_count, shared, .. } = self.classes[index as usize];
        self.classes[index as usize].count = 0;
        if shared {
            let hash = hash_of(self.hops_of(index));
            self.known[self.hops[begin].0 as usize].remove(hash, index);
        }
        for &link in &self.hops[begin..begin + hop_count as usize] {
            let state = &mut self.links[link.0 as usize];
            state.leave(u128::from(rate));
            state.gone += 1;
            if state.flows == 0 {
                state.gone = 0;
                self.members[link.0 as usize].clear();
            }
            mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
        }
        self.gone.push(index);
    }

    /// Takes classes without flows out of the members of a link, all in one go.
    fn sweep(&mut self, link: u32) {
        if std::mem::take(&mut self.links[link as usize].gone) > 0 {
            self.members[link as usize].retain(|&class| self.classes[class as usize].count > 0);
        }
    }

    fn change(&mut self, class: u32) {
        if !std::mem::replace(&mut self.classes[class as usize].changed, true) {
            self.changed.push(ClassId(class));
        }
    }

    /// Rate of a class, were it not for the link `but`: the least level of the others.
    fn rate_but(&self, class: u32, but: u32) -> u64 {
        let others = self.hops_of(class).iter().filter(|link| link.0 != but);
        others.map(|link| self.levels[link.0 as usize]).fold(UNBOUNDED, u64::min)
    }

    /// Level that a link should have, given the levels of all others.
    fn level(&mut self, link: u32, rising: &mut Vec<Share>) -> u64 {
        let (state, current) = (self.links[link as usize], self.levels[link as usize]);
        if current == UNBOUNDED {
            if state.surely_not_full() {
                return UNBOUNDED;
            }
            if state.used == u128::from(state.flows) * u128::from(UNBOUNDED) {
                // None has a rate yet.
                return state.capacity / state.flows;
            }
        }
        self.sweep(link);
        if state.surely_not_full() {
            // Even with all at its level: that rises, and from there, for those that are faster elsewhere.
            return self.fill(
                link,
                current,
                |id, class| {
                    if class.rate < current { class.rate } else { self.rate_but(id, link) }
                },
                rising,
            );
        }
        let least = state.capacity / state.flows;
        let level = self.fill(link, least, |_, class| class.rate, rising);
        if level <= current {
            return level;
        }
        // By less than what rounding leaves.
        self.fill(
            link,
            least,
            |id, class| {
                if class.rate < current { class.rate } else { self.rate_but(id, link) }
            },
            rising,
        )
    }

    /// Level at which flows that rise together from `level`, each up to its rate elsewhere, fill a link. Those that
    /// stop on the way are taken out.
    fn fill(&self, link: u32, mut level: u64, elsewhere: impl Fn(u32, &Class) -> u64, rising: &mut Vec<Share>) -> u64 {
        let (mut left, mut count) = (self.links[link as usize].capacity, 0_u64);
        rising.clear();
        for &id in &self.members[link as usize] {
            let class = &self.classes[id as usize];
            let share = Share { rate: elsewhere(id, class), count: class.count.into() };
            if share.rate < level {
                left -= share.rate * share.count;
            } else {
                count += share.count;
                rising.push(share);
            }
        }
        loop {
            let next = left.checked_div(count).unwrap_or(UNBOUNDED);
            if next == level || next == UNBOUNDED {
                return next;
            }
            level = next;
            rising.retain(|share| {
                let stays = share.rate >= level;
                if !stays {
                    left -= share.rate * share.count;
                    count -= share.count;
                }
                stays
            });
        }
    }

    /// Moves levels, lowest first, until each is what the others ask for. A level depends only on lower ones. So levels
    /// below the one that moves are final, and a link need not be examined before it can be the next to move.
    fn solve(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        self.solve_count += 1;
        let Scratch { mut moves, mut movers, mut rising, path } = std::mem::take(&mut self.scratch);
        loop {
            look();
            while let Some(link) = self.stale.pop() {
                let state = &mut self.links[link as usize];
                let moves_at = state.earliest_move(self.levels[link as usize]);
                (state.stale, state.asked) = (false, None);
                if std::mem::replace(&mut state.moves_at, moves_at) != moves_at && moves_at != UNBOUNDED {
                    moves.push(Reverse((moves_at, link)));
                }
            }
            let Some(&Reverse((lowest, _))) = moves.peek() else { break };
            // All links that move at one level move together, so none of them depends on another.
            while let Some(&Reverse((at, link))) = moves.peek() {
                if at != lowest {
                    break;
                }
                moves.pop();
                if self.links[link as usize].moves_at != at {
                    // It is to move elsewhere since.
                    continue;
                }
                let level = self.levels[link as usize];
                let asked = self.links[link as usize].asked.unwrap_or_else(|| self.level(link, &mut rising));
                let state = &mut self.links[link as usize];
                state.asked = Some(asked);
                state.moves_at = if asked == level { UNBOUNDED } else { asked.min(level) };
                if state.moves_at == at {
                    state.moves_at = UNBOUNDED;
                    movers.push(link);
                } else if state.moves_at != UNBOUNDED {
                    moves.push(Reverse((state.moves_at, link)));
                }
            }
            for link in movers.drain(..) {
                self.move_level(link);
            }
        }
        self.scratch = Scratch { moves, movers, rising, path };
    }

    /// Gives a link the level it is asked for, its flows the rates that follow, and marks the links that see it.
    fn move_level(&mut self, link: u32) {
        let level = self.links[link as usize].asked.expect("it has been looked at");
        let before = std::mem::replace(&mut self.levels[link as usize], level);
        // One that falls takes rates from its flows and asks for no other level then. For one that rises the levels of
        // the others count, which may have moved without moving a rate here.
        let rises = level > before;
        if rises {
            mark(&mut self.links[link as usize], LinkId(link), &self.levels, &mut self.stale, &mut self.touched);
        } else if let Some(touched) = &mut self.touched {
            touched.push(LinkId(link));
        }
        for place in 0..self.members[link as usize].len() {
            let class = self.members[link as usize][place];
            let Class { rate, count, hop_count, .. } = self.classes[class as usize];
            let now = if level < before {
                rate.min(level)
            } else if rate == before {
                self.rate_but(class, NO_LINK.0)
            } else {
                rate
            };
            if now != rate && count > 0 {
                self.classes[class as usize].rate = now;
                self.change(class);
                let [before, after] = [rate, now].map(|rate| u128::from(rate) * u128::from(count));
                let more = after.wrapping_sub(before);
                let begin = class as usize * self.stride;
                for &other in &self.hops[begin..begin + hop_count as usize] {
                    let state = &mut self.links[other.0 as usize];
                    state.used = state.used.wrapping_add(more);
                    if other.0 != link || rises {
                        mark(state, other, &self.levels, &mut self.stale, &mut self.touched);
                    }
                }
            }
        }
    }
}

/// Under which a class stands in `known`.
fn hash_of(path: &[LinkId]) -> u32 {
    index::hash(path.iter().map(|link| link.0))
}

/// Marks a link to be examined, unless that could change nothing.
fn mark(state: &mut LinkState, link: LinkId, levels: &[u64], stale: &mut Vec<u32>, touched: &mut Option<Vec<LinkId>>) {
    if let Some(touched) = touched {
        touched.push(link);
    }
    if state.stale {
        return;
    }
    if levels[link.0 as usize] == UNBOUNDED && state.moves_at == UNBOUNDED && state.surely_not_full() {
        return;
    }
    state.stale = true;
    stale.push(link.0);
}
