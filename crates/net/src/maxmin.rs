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
//! Five things make it fast. Flows with the same links are one *class* with a count. Any number of changes
//! is one solve, at the next read. A class is *held* at one link whose level is its rate, and when a level moves, all that
//! the link holds moves with it. A solve moves levels, lowest first, from the links that gained or lost a flow to
//! those that see a rate change, and no further; it [tells](MaxMin::take_turned) which levels those are. And where most
//! levels move, it fills all links from scratch. What does not live here: time, bytes, routes.

mod refill;

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
/// Sentinel: no link.
const NO_LINK: u32 = u32::MAX;

/// A solve starts from scratch when it has looked at a quarter as many classes as there are flows, and at so many more for
/// each link. Measured: with less for a link, `random 50000 star` of `examples/fluid.rs` takes up to twice the time; with
/// as many classes as flows, `skewed 1024 within 1000` takes a tenth more.
const REFILL_PER_LINK: u64 = 16;
/// With so few stale links, as after one end, it looks at twice as many classes as flows first. Measured: a tenth of
/// `skewed 256 star`.
const FEW_STALE: u64 = 16;
/// After a solve that started from scratch at once, the next one does so with a part more of stale links. So the other
/// way is tried again now and then.
const REFILL_LESS: u64 = 256;

/// The solver: capacities, classes of flows on them, and their rates.
#[derive(Clone, Debug, Default)]
pub struct MaxMin {
    links: Vec<LinkState>,
    /// By link: rate at which flows are held there; [`UNBOUNDED`] if the link is not full. Apart from the rest because
    /// this is read most.
    levels: Vec<u64>,
    held: Vec<Held>,
    /// By link, the classes that cross it, and some that had their last flow removed: see [`Self::sweep`].
    members: Vec<Vec<u32>>,
    classes: Vec<Class>,
    /// Most links of a path so far.
    stride: usize,
    free: Vec<u32>,
    /// Classes that have had their last flow removed, and that links may still have among their members.
    gone: Vec<u32>,
    /// By link, the classes of which it is the first and that others may join: small tables, so that what is used
    /// together is near, if flows begin with the link of their source.
    known: Vec<Index>,
    /// Links that have become stale, each once.
    stale: Vec<u32>,
    /// Links whose level has changed.
    turned: Vec<LinkId>,
    /// Classes that are new, or held at another link than before.
    moved: Vec<ClassId>,
    /// Links whose used capacity has changed, if somebody wants to know.
    touched: Option<Vec<LinkId>>,
    scratch: Scratch,
    refill_scratch: refill::RefillScratch,
    /// Flows that there are.
    flow_count: u64,
    /// Classes that the solve under way has looked at.
    seen: u64,
    /// With so many stale links a solve starts from scratch at once: the last one that had to had so many.
    refill_from: u64,
    solve_count: u64,
}

#[derive(Clone, Copy, Debug)]
struct LinkState {
    capacity: u64,
    /// Where it stands among the links that are to move; [`UNBOUNDED`] if it does not.
    moves_at: u64,
    /// Level that the other links ask for, unless it is stale.
    asked: u64,
    /// Sum of the rates of its flows, above the capacity while a solve goes on.
    used: u128,
    flows: u64,
    /// No flow that is held elsewhere is faster.
    fastest_guest: u64,
    /// Members without flows.
    gone: u32,
    /// Whether something that its level depends on has changed since that was last computed.
    stale: bool,
    /// Whether it stands among the turned ones.
    turned: bool,
}

/// Classes that have the level of a link for their rate, because it is the least of their links'. If several are, the
/// class is held at one of these.
#[derive(Clone, Debug, Default)]
struct Held {
    /// Of each its number, its count, and `stride` links of which it uses the first few; sorted but for the first where
    /// others may join. One after the other, because when a link moves all that it holds are read.
    records: Vec<u32>,
    flows: u64,
}

impl Held {
    /// Removes the record that begins at `place`; tells whose record begins there now.
    fn remove(&mut self, place: usize, size: usize) -> Option<u32> {
        let last = self.records.len() - size;
        if place == last {
            self.records.truncate(last);
            return None;
        }
        let (records, moved) = self.records.split_at_mut(last);
        records[place..place + size].iter_mut().zip(moved).for_each(|(old, new)| *old = *new);
        self.records.truncate(last);
        Some(self.records[place])
    }
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

    /// Its level if it holds these flows that it has at `level`, and no others: they share what the others leave.
    fn level_of_held(&self, level: u64, held: u64) -> u64 {
        let capacity = u128::from(self.capacity);
        if held == 0 || level == UNBOUNDED {
            0
        } else if self.used <= capacity {
            level + (capacity - self.used) as u64 / held
        } else {
            let excess = u64::try_from(self.used - capacity);
            excess.map_or(0, |excess| level.saturating_sub(excess.div_ceil(held)))
        }
    }

    /// Where it moves at the earliest, if it holds so many flows at `level`.
    fn earliest_move(&self, level: u64, held: u64) -> u64 {
        if self.surely_not_full() {
            // It rises from where it is.
            return level;
        }
        // If it falls and holds others from then on, all together give up less.
        level.min(self.level_of_held(level, held)).max(self.capacity / self.flows)
    }
}

/// So many flows of one rate.
#[derive(Clone, Copy, Debug)]
struct Share {
    rate: u64,
    count: u64,
}

/// What is known of a class beside its record, in a quarter of a cache line.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// The link at which it is held: its level is the least of all on the path, and the rate of the class.
    holder: u32,
    /// Where its record begins there.
    place: u32,
    /// Flows.
    count: u32,
    hop_count: u16,
    /// Whether it stands among the moved ones.
    moved: bool,
    /// Whether others may join.
    shared: bool,
}

/// Kept between solves for their memory alone.
#[derive(Clone, Debug, Default)]
struct Scratch {
    path: Vec<LinkId>,
    /// Links that are to move, by the lower of their two levels, or less if they have not been looked at.
    moves: BinaryHeap<Reverse<(u64, u32)>>,
    /// Those that move now, and where to.
    movers: Vec<(u32, u64)>,
    /// Those that are held elsewhere from now on.
    regrouped: Vec<u32>,
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
                asked: UNBOUNDED,
                used: 0,
                flows: 0,
                fastest_guest: 0,
                gone: 0,
                stale: false,
                turned: false,
            }
        };
        Self {
            links: capacities.iter().map(link).collect(),
            levels: vec![UNBOUNDED; capacities.len()],
            held: vec![Held::default(); capacities.len()],
            members: vec![Vec::new(); capacities.len()],
            known: vec![Index::default(); capacities.len()],
            refill_from: u64::MAX,
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
        let is_it = |class: u32| self.hops_of(class).iter().eq(path.iter().map(|link| &link.0));
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
        self.rate_of(class.0)
    }

    /// Every class that has flows, and their rate in [`PARTS`]. Solves first if flows were added or removed.
    pub fn rates(&mut self) -> impl Iterator<Item = (ClassId, u64)> {
        self.solve();
        let live = self.classes.iter().enumerate().filter(|(_, class)| class.count > 0);
        live.map(|(id, class)| (ClassId(id as u32), self.levels[class.holder as usize]))
    }

    /// Solves, and gives `each` the links whose level has changed since the last call, each once, with the rate of those
    /// that are held there and how many classes they are.
    pub fn take_turned(&mut self, mut each: impl FnMut(LinkId, u64, usize)) {
        self.solve();
        for link in self.turned.drain(..) {
            self.links[link.0 as usize].turned = false;
            let level = self.levels[link.0 as usize];
            if level != UNBOUNDED {
                each(link, level, self.held[link.0 as usize].records.len() / record_size(self.stride));
            }
        }
    }

    /// Solves, and gives `each` the classes that are new since the last call or have another bottleneck, each once, with
    /// the link at which it is held now.
    pub fn take_moved(&mut self, mut each: impl FnMut(ClassId, LinkId)) {
        self.solve();
        for id in self.moved.drain(..) {
            let class = &mut self.classes[id.0 as usize];
            class.moved = false;
            if class.count > 0 {
                each(id, LinkId(class.holder));
            }
        }
    }

    /// Gives a link another capacity, in [`PARTS`].
    pub fn set_capacity(&mut self, link: LinkId, parts: u64) {
        let state = &mut self.links[link.0 as usize];
        if state.capacity != parts {
            state.capacity = parts;
            mark(state, link.0, &self.levels, &mut self.stale, &mut self.touched);
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

    /// Lets the next solve start from scratch, whatever that costs. Rates are the same.
    pub fn start_over(&mut self) {
        self.refill_from = 0;
    }

    /// How often flows were added or removed and then read.
    pub fn solve_count(&self) -> u64 {
        self.solve_count
    }

    /// The links of a class.
    pub fn links(&self, class: ClassId) -> impl Iterator<Item = LinkId> {
        self.hops_of(class.0).iter().map(|&link| LinkId(link))
    }

    /// The classes that cross a link, in no order.
    pub fn classes(&self, link: LinkId) -> impl Iterator<Item = ClassId> {
        let members = self.members[link.0 as usize].iter();
        members.filter(|&&class| self.classes[class as usize].count > 0).map(|&class| ClassId(class))
    }

    fn hops_of(&self, class: u32) -> &[u32] {
        let Class { holder, place, hop_count, .. } = self.classes[class as usize];
        &self.held[holder as usize].records[place as usize + HEAD..][..hop_count as usize]
    }

    fn rate_of(&self, class: u32) -> u64 {
        self.levels[self.classes[class as usize].holder as usize]
    }

    /// One flow of a class more, or less, that keeps some.
    fn count(&mut self, class: u32, more: bool) {
        let rate = u128::from(self.rate_of(class));
        let Self { links, levels, held, classes, stale, touched, .. } = self;
        let Class { holder, place, count, hop_count, .. } = &mut classes[class as usize];
        let held = &mut held[*holder as usize];
        self.flow_count = if more { self.flow_count + 1 } else { self.flow_count - 1 };
        if more {
            (*count, held.flows) = (*count + 1, held.flows + 1);
        } else {
            (*count, held.flows) = (*count - 1, held.flows - 1);
        }
        let record = &mut held.records[*place as usize..];
        record[1] = *count;
        for &link in &record[HEAD..][..*hop_count as usize] {
            let state = &mut links[link as usize];
            if more {
                state.enter(rate);
            } else {
                state.leave(rate);
            }
            mark(state, link, levels, stale, touched);
        }
    }

    /// A new class with one flow.
    fn open(&mut self, path: &[LinkId], shared: bool) -> u32 {
        self.flow_count += 1;
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
        // If no link is full, the one with the most flows is likely to hold it.
        let key = |link: LinkId| (self.levels[link.0 as usize], self.links[link.0 as usize].flows);
        let mut first = (key(path[0]), path[0].0);
        for &link in &path[1..] {
            let (level, flows) = key(link);
            if level < first.0.0 || (level == first.0.0 && flows > first.0.1) {
                first = ((level, flows), link.0);
            }
        }
        let ((rate, _), holder) = first;
        for &LinkId(link) in path {
            self.members[link as usize].push(index);
            let state = &mut self.links[link as usize];
            state.enter(u128::from(rate));
            if link != holder {
                state.fastest_guest = state.fastest_guest.max(rate);
            }
            mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
        }
        let held = &mut self.held[holder as usize];
        let place = u32::try_from(held.records.len()).expect("a link has fewer than 2^32 links of its classes");
        held.records.extend([index, 1].into_iter().chain(path.iter().map(|link| link.0)));
        held.records.resize(place as usize + record_size(self.stride), NO_LINK);
        held.flows += 1;
        let class = Class { holder, place, count: 1, hop_count, moved: true, shared };
        let has_moved = match self.classes.get_mut(index as usize) {
            Some(state) => std::mem::replace(state, class).moved,
            None => {
                self.classes.push(class);
                false
            }
        };
        if !has_moved {
            self.moved.push(ClassId(index));
        }
        index
    }

    /// Lets a class be held at another link.
    fn hold(&mut self, class: u32, holder: u32) {
        let size = record_size(self.stride);
        let state = &mut self.classes[class as usize];
        let (begin, count) = (state.place as usize, u64::from(state.count));
        let both = self.held.get_disjoint_mut([state.holder as usize, holder as usize]);
        let [before, held] = both.expect("it is another link");
        state.holder = holder;
        state.place = u32::try_from(held.records.len()).expect("a link has fewer than 2^32 links of its classes");
        if !std::mem::replace(&mut state.moved, true) {
            self.moved.push(ClassId(class));
        }
        held.records.extend_from_slice(&before.records[begin..begin + size]);
        held.flows += count;
        before.flows -= count;
        if let Some(other) = before.remove(begin, size) {
            self.classes[other as usize].place = begin as u32;
        }
    }

    /// Lays the records out anew, for paths of more links.
    fn widen(&mut self, stride: usize) {
        let (narrow, wide) = (record_size(self.stride), record_size(stride));
        for held in &mut self.held {
            let mut records = Vec::with_capacity(held.records.len() / narrow * wide);
            for record in held.records.chunks(narrow) {
                self.classes[record[0] as usize].place = records.len() as u32;
                records.extend_from_slice(record);
                records.resize(records.len() + wide - narrow, NO_LINK);
            }
            held.records = records;
        }
        self.stride = stride;
    }

    /// Removes the last flow of a class.
    fn close(&mut self, index: u32) {
        let rate = u128::from(self.rate_of(index));
        let Class { holder, place, hop_count, shared, .. } = self.classes[index as usize];
        self.classes[index as usize].count = 0;
        self.flow_count -= 1;
        if shared {
            let hops = self.hops_of(index);
            let (first, hash) = (hops[0], index::hash(hops.iter().copied()));
            self.known[first as usize].remove(hash, index);
        }
        let held = &mut self.held[holder as usize];
        for &link in &held.records[place as usize + HEAD..][..hop_count as usize] {
            let state = &mut self.links[link as usize];
            state.leave(rate);
            state.gone += 1;
            if state.flows == 0 {
                state.gone = 0;
                self.members[link as usize].clear();
            }
            mark(state, link, &self.levels, &mut self.stale, &mut self.touched);
        }
        held.flows -= 1;
        if let Some(other) = held.remove(place as usize, record_size(self.stride)) {
            self.classes[other as usize].place = place;
        }
        self.gone.push(index);
    }

    /// Takes classes without flows out of the members of a link, all in one go.
    fn sweep(&mut self, link: u32) {
        if std::mem::take(&mut self.links[link as usize].gone) > 0 {
            self.members[link as usize].retain(|&class| self.classes[class as usize].count > 0);
        }
    }

    /// Rate of a class, were it not for the link `but`.
    fn rate_but(&self, class: u32, but: u32) -> u64 {
        lowest(&self.levels, self.hops_of(class).iter().copied(), but).map_or(UNBOUNDED, |(level, _)| level)
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
        let of_held = state.level_of_held(current, self.held[link as usize].flows);
        if of_held > state.fastest_guest.saturating_add(state.flows) {
            // The others are slower by more than what rounding leaves. If some that it holds are slower elsewhere, this
            // is too low, and is looked at once more when these have been let go.
            return of_held;
        }
        self.sweep(link);
        if state.surely_not_full() {
            // Even with all at its level: that rises, and from there, for those that are faster elsewhere.
            return self.fill(link, current, true, rising);
        }
        // If it is to hold others, too, all together give up less; but for what rounding leaves.
        let least = of_held.saturating_sub(state.flows + 1).max(state.capacity / state.flows);
        let level = self.fill(link, least, false, rising);
        // Above the level that it has by less than what rounding leaves.
        if level <= current { level } else { self.fill(link, least, true, rising) }
    }

    /// Level at which flows that rise together from `level`, each up to its rate elsewhere, fill a link. Those that
    /// stop on the way are taken out. Unless the link `rises`, flows that it holds are not slower elsewhere.
    fn fill(&mut self, link: u32, mut level: u64, rises: bool, rising: &mut Vec<Share>) -> u64 {
        let (mut left, mut count) = (self.links[link as usize].capacity, 0_u64);
        let mut fastest_guest = 0;
        self.seen += self.members[link as usize].len() as u64;
        rising.clear();
        for &id in &self.members[link as usize] {
            let class = &self.classes[id as usize];
            let mut rate = self.levels[class.holder as usize];
            if class.holder != link {
                fastest_guest = rate.max(fastest_guest);
            } else if rises {
                rate = self.rate_but(id, link);
            }
            let share = Share { rate, count: class.count.into() };
            if share.rate < level {
                left -= share.rate * share.count;
            } else {
                count += share.count;
                rising.push(share);
            }
        }
        self.links[link as usize].fastest_guest = fastest_guest;
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

    /// Moves levels, lowest first, until each is what the others ask for. A level depends only on lower ones, so a link
    /// need not be examined before it can be the next to move.
    ///
    /// A link that falls because others rise keeps its place in this order. It is then looked at once, after these, and
    /// not for each. Should it catch flows of a link between, that one moves once more.
    fn solve(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        self.solve_count += 1;
        self.seen = 0;
        let stale = self.stale.len() as u64;
        let flows = if stale <= FEW_STALE { 2 * self.flow_count } else { self.flow_count / 4 };
        let mut most_seen = flows + REFILL_PER_LINK * self.links.len() as u64;
        if stale >= self.refill_from {
            self.refill();
            (self.refill_from, most_seen) = (self.refill_from + self.refill_from / REFILL_LESS + 1, u64::MAX);
        }
        let Scratch { mut moves, mut movers, mut rising, mut regrouped, path } = std::mem::take(&mut self.scratch);
        loop {
            look();
            if self.seen > most_seen {
                moves.clear();
                self.refill();
                (self.refill_from, most_seen) = (stale, u64::MAX);
            }
            while let Some(link) = self.stale.pop() {
                let (state, level) = (&mut self.links[link as usize], self.levels[link as usize]);
                if state.moves_at <= level && level != UNBOUNDED {
                    continue;
                }
                let moves_at = state.earliest_move(level, self.held[link as usize].flows);
                state.stale = moves_at != UNBOUNDED;
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
                let LinkState { mut asked, stale, .. } = self.links[link as usize];
                if stale {
                    asked = self.level(link, &mut rising);
                }
                let state = &mut self.links[link as usize];
                (state.asked, state.stale, state.moves_at) = (asked, false, UNBOUNDED);
                if asked != level && asked.min(level) <= at {
                    movers.push((link, asked));
                } else if asked != level {
                    // If it rises, levels of others may move until then without marking it.
                    state.stale = asked > level;
                    state.moves_at = asked.min(level);
                    moves.push(Reverse((state.moves_at, link)));
                }
            }
            let is_alone = movers.len() == 1;
            for (link, level) in movers.drain(..) {
                self.move_level(link, level, is_alone, &mut regrouped);
            }
        }
        self.scratch = Scratch { moves, movers, rising, regrouped, path };
    }

    /// Gives a link another level, its flows the rates that follow, and marks the links that see it.
    fn move_level(&mut self, link: u32, level: u64, is_alone: bool, regrouped: &mut Vec<u32>) {
        let before = std::mem::replace(&mut self.levels[link as usize], level);
        let rises = level > before;
        self.seen += (self.held[link as usize].records.len() / record_size(self.stride)) as u64;
        let Self { links, levels, held, classes, stale, touched, .. } = self;
        let state = &mut links[link as usize];
        if !std::mem::replace(&mut state.turned, true) {
            self.turned.push(LinkId(link));
        }
        if let Some(touched) = touched {
            touched.push(LinkId(link));
        }
        if !rises && state.fastest_guest > level {
            regrouped.extend(self.members[link as usize].iter().copied().filter(|&class| {
                let Class { holder, count, .. } = classes[class as usize];
                count > 0 && holder != link && levels[holder as usize] > level
            }));
        }
        let held = &held[link as usize];
        let more = u128::from(level).wrapping_sub(u128::from(before));
        state.used = state.used.wrapping_add(more.wrapping_mul(u128::from(held.flows)));
        // Most of the time is spent here.
        let (links, levels) = (&mut links[..], &levels[..]);
        for record in held.records.chunks_exact(record_size(self.stride)) {
            let more = if record[1] == 1 { more } else { more.wrapping_mul(u128::from(record[1])) };
            let mut elsewhere = UNBOUNDED;
            for &other in &record[HEAD..] {
                if other == NO_LINK {
                    break;
                }
                if other != link {
                    elsewhere = elsewhere.min(levels[other as usize]);
                    let state = &mut links[other as usize];
                    state.used = state.used.wrapping_add(more);
                    state.fastest_guest = state.fastest_guest.max(level);
                    if !state.stale {
                        mark(state, other, levels, stale, touched);
                    }
                }
            }
            if rises && elsewhere < level {
                regrouped.push(record[0]);
            }
        }
        // One that falls takes rates from its flows and asks for no other level then. One that lets flows go can rise
        // further, and for one that rises the levels of the others count, which may move now without moving a rate here.
        if rises && !(is_alone && regrouped.is_empty()) {
            mark(&mut self.links[link as usize], link, &self.levels, &mut self.stale, &mut self.touched);
        }
        for class in regrouped.drain(..) {
            let elsewhere = || lowest(&self.levels, self.hops_of(class).iter().copied(), link);
            let holder = if rises { elsewhere().expect("a link is lower").1 } else { link };
            self.move_class(class, holder);
        }
    }

    /// Lets a class be held at another link, and marks the links that see its other rate.
    fn move_class(&mut self, class: u32, holder: u32) {
        let before = u128::from(self.rate_of(class));
        self.hold(class, holder);
        let rate = self.levels[holder as usize];
        let Self { links, levels, held, classes, stale, touched, .. } = self;
        let Class { place, count, hop_count, .. } = classes[class as usize];
        let more = u128::from(rate).wrapping_sub(before).wrapping_mul(u128::from(count));
        for &link in &held[holder as usize].records[place as usize + HEAD..][..hop_count as usize] {
            let state = &mut links[link as usize];
            state.used = state.used.wrapping_add(more);
            if link != holder {
                state.fastest_guest = state.fastest_guest.max(rate);
                mark(state, link, levels, stale, touched);
            }
        }
    }
}

/// Numbers before the links of a record: see [`Held`].
const HEAD: usize = 2;

fn record_size(stride: usize) -> usize {
    HEAD + stride
}

/// The least level of some links but one, and which of them has it, the first if there are several.
fn lowest(levels: &[u64], links: impl Iterator<Item = u32>, but: u32) -> Option<(u64, u32)> {
    links.filter(|&link| link != but).map(|link| (levels[link as usize], link)).min_by_key(|&(level, _)| level)
}

/// Under which a class stands in `known`.
fn hash_of(path: &[LinkId]) -> u32 {
    index::hash(path.iter().map(|link| link.0))
}

/// Marks a link to be examined, unless that could change nothing.
fn mark(state: &mut LinkState, link: u32, levels: &[u64], stale: &mut Vec<u32>, touched: &mut Option<Vec<LinkId>>) {
    if state.stale {
        return;
    }
    if let Some(touched) = touched {
        touched.push(LinkId(link));
    }
    if levels[link as usize] == UNBOUNDED && state.moves_at == UNBOUNDED && state.surely_not_full() {
        return;
    }
    state.stale = true;
    stale.push(link);
}
