//! Max-min fair shares of capacities: progressive filling, solved again only where something changed.
//!
//! All rates rise together. When the flows that still rise fill a link, they stop there, at the link's *level*; the
//! rest rises on, until all have stopped (Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2):
//!
//! ```text
//! level(l) = (capacity(l) - what flows stopped below the level use) / flows of l not stopped below the level
//! rate(f)  = the least level of the links of f, or the cap of f if that is less
//! ```
//!
//! Numbers are whole [parts](PARTS) of a unit of capacity, and a level is rounded down to one. Sums of whole numbers do
//! not depend on their order, and links that fill at one level stop their flows together. So the shares are a function
//! of the flows alone, to the last bit: neither the order of links nor the history of changes is seen in them, and no
//! link is ever above its capacity.
//!
//! Three things make it fast. Flows with the same links and cap are one *class* with a count. Any number of changes
//! is one solve, at the next read. And a solve moves levels, lowest first, from the links that gained or lost a flow to
//! those that see a rate change, and no further. What does not live here: time, bytes, routes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Parts of one unit of capacity (say, of 1 bit/s) that rates are counted in: 2^20.
///
/// A level is rounded down by less than one part: 1e-10 of a share of 10 kbit/s, if capacities are in bit/s.
pub const PARTS: u64 = 1 << 20;

/// Capacities are below this, so that they fit 64 bits in [`PARTS`]: 2^44 units, or 17.6 Tbit/s.
pub const CAPACITY_LIMIT: u64 = u64::MAX / PARTS;

/// Index of a link in the capacities that the solver was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// Identity of a flow from [`MaxMin::add`] to [`MaxMin::remove`]; then it is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey(pub u32);

/// No rate yet, and no level: faster than any link.
const UNBOUNDED: u64 = u64::MAX;
/// Class of a key that is free.
const NONE: u32 = u32::MAX;

/// The solver: capacities, classes of flows on them, and their rates.
#[derive(Clone, Debug, Default)]
pub struct MaxMin {
    links: Vec<LinkState>,
    /// By link, the classes that cross it.
    members: Vec<Vec<Member>>,
    classes: Vec<Class>,
    /// By class; apart from the rest because this is read most.
    shares: Vec<Share>,
    free_classes: Vec<u32>,
    class_of: BTreeMap<(Box<[LinkId]>, u64), u32>,
    /// By key.
    flows: Vec<u32>,
    free_flows: Vec<u32>,
    /// Links that are to be looked at, each once.
    stale: Vec<u32>,
    scratch: Scratch,
    solve_count: u64,
}

#[derive(Clone, Copy, Debug)]
struct LinkState {
    capacity: u64,
    /// Rate at which flows are held here; [`UNBOUNDED`] if the link is not full.
    level: u64,
    /// Level that the other links asked for when last looked at.
    asked: u64,
    /// Sum of the rates of its flows, above the capacity while a solve goes on.
    used: u128,
    flows: u64,
    /// Whether something that `asked` depends on has changed.
    stale: bool,
}

impl LinkState {
    /// Rounding leaves less than a part for each flow of a full link.
    fn surely_not_full(&self) -> bool {
        self.used + u128::from(self.flows) <= u128::from(self.capacity)
    }
}

#[derive(Clone, Copy, Debug)]
struct Member {
    class: u32,
    /// Which of the class's links this is.
    hop: u32,
}

/// Flows of one rate: the least of their links' levels and their cap.
#[derive(Clone, Copy, Debug)]
struct Share {
    rate: u64,
    count: u64,
}

#[derive(Clone, Debug)]
struct Class {
    /// Sorted.
    path: Box<[LinkId]>,
    /// By hop: where in `members` of that link this class stands.
    places: Box<[u32]>,
    cap: u64,
}

/// Kept between solves for their memory alone.
#[derive(Clone, Debug, Default)]
struct Scratch {
    /// Links that are to move, by the lower of their two levels.
    moves: BinaryHeap<Reverse<(u64, u32)>>,
    elsewhere: Vec<Share>,
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
                level: UNBOUNDED,
                asked: UNBOUNDED,
                used: 0,
                flows: 0,
                stale: false,
            }
        };
        Self {
            links: capacities.iter().map(link).collect(),
            members: vec![Vec::new(); capacities.len()],
            ..Self::default()
        }
    }

    /// Adds a flow that crosses `links`, in any order.
    ///
    /// # Panics
    /// If there is no link, one that stands there twice, or one that does not exist.
    pub fn add(&mut self, links: &[LinkId]) -> FlowKey {
        self.add_with_cap(links, UNBOUNDED)
    }

    /// Adds a flow that is never faster than `cap`, in [`PARTS`], as if it also crossed a link of its own.
    ///
    /// # Panics
    /// As [`add`](Self::add).
    pub fn add_with_cap(&mut self, links: &[LinkId], cap: u64) -> FlowKey {
        assert!(!links.is_empty(), "a flow crosses a link");
        let mut path: Box<[LinkId]> = links.into();
        path.sort_unstable();
        assert!(path.windows(2).all(|two| two[0] < two[1]), "a flow crosses a link once");
        let class = match self.class_of.get(&(path.clone(), cap)) {
            Some(&class) => class,
            None => self.open_class(path, cap),
        };
        self.shares[class as usize].count += 1;
        let rate = u128::from(self.shares[class as usize].rate);
        for link in &self.classes[class as usize].path {
            let state = &mut self.links[link.0 as usize];
            state.used += rate;
            state.flows += 1;
            mark(state, link.0, &mut self.stale);
        }
        let key = self.free_flows.pop().unwrap_or(self.flows.len() as u32);
        if key as usize == self.flows.len() {
            self.flows.push(class);
        } else {
            self.flows[key as usize] = class;
        }
        FlowKey(key)
    }

    /// Removes a flow.
    ///
    /// # Panics
    /// If there is none of this key.
    pub fn remove(&mut self, key: FlowKey) {
        let index = std::mem::replace(&mut self.flows[key.0 as usize], NONE);
        assert!(index != NONE, "no flow has the key {}", key.0);
        self.free_flows.push(key.0);
        let rate = u128::from(self.shares[index as usize].rate);
        for link in &self.classes[index as usize].path {
            let state = &mut self.links[link.0 as usize];
            state.used -= rate;
            state.flows -= 1;
            mark(state, link.0, &mut self.stale);
        }
        self.shares[index as usize].count -= 1;
        if self.shares[index as usize].count == 0 {
            self.close_class(index);
        }
    }

    /// Rate of a flow in [`PARTS`]. Solves first if flows were added or removed.
    ///
    /// # Panics
    /// If there is none of this key.
    pub fn rate(&mut self, key: FlowKey) -> u64 {
        self.solve();
        self.shares[self.flows[key.0 as usize] as usize].rate
    }

    /// Every flow and its rate in [`PARTS`], by key. Solves first if flows were added or removed.
    pub fn rates(&mut self) -> impl Iterator<Item = (FlowKey, u64)> {
        self.solve();
        let live = self.flows.iter().enumerate().filter(|&(_, &class)| class != NONE);
        live.map(|(key, &class)| (FlowKey(key as u32), self.shares[class as usize].rate))
    }

    /// How often flows were added or removed and then read.
    pub fn solve_count(&self) -> u64 {
        self.solve_count
    }

    fn open_class(&mut self, path: Box<[LinkId]>, cap: u64) -> u32 {
        let index = self.free_classes.pop().unwrap_or(self.classes.len() as u32);
        let mut places = Vec::with_capacity(path.len());
        for (hop, link) in path.iter().enumerate() {
            let members = &mut self.members[link.0 as usize];
            places.push(members.len() as u32);
            members.push(Member { class: index, hop: hop as u32 });
        }
        self.class_of.insert((path.clone(), cap), index);
        let class = Class { path, places: places.into(), cap };
        let share = Share { rate: self.rate_but(&class, usize::MAX), count: 0 };
        if index as usize == self.classes.len() {
            self.classes.push(class);
            self.shares.push(share);
        } else {
            self.classes[index as usize] = class;
            self.shares[index as usize] = share;
        }
        index
    }

    fn close_class(&mut self, index: u32) {
        for hop in 0..self.classes[index as usize].path.len() {
            let class = &self.classes[index as usize];
            let (link, place) = (class.path[hop], class.places[hop]);
            let members = &mut self.members[link.0 as usize];
            members.swap_remove(place as usize);
            if let Some(moved) = members.get(place as usize) {
                self.classes[moved.class as usize].places[moved.hop as usize] = place;
            }
        }
        let class = &mut self.classes[index as usize];
        self.class_of.remove(&(std::mem::take(&mut class.path), class.cap));
        self.free_classes.push(index);
    }

    /// Rate of a class, were it not for its `but`-th link: the least level of the others, and its cap.
    fn rate_but(&self, class: &Class, but: usize) -> u64 {
        let others = class.path.iter().enumerate().filter(|&(hop, _)| hop != but);
        others.map(|(_, link)| self.links[link.0 as usize].level).fold(class.cap, u64::min)
    }

    /// Level that a link should have, given the levels of all others.
    fn level(&self, link: u32, elsewhere: &mut Vec<Share>) -> u64 {
        let LinkState { capacity, level: current, .. } = self.links[link as usize];
        let members = &self.members[link as usize];
        elsewhere.clear();
        elsewhere.extend(members.iter().map(|member| self.shares[member.class as usize]));
        let level = fill(capacity, elsewhere);
        if level <= current {
            return level;
        }
        // Who is held here would be faster elsewhere, which is of no matter unless this link's level rises.
        for (member, share) in members.iter().zip(elsewhere.iter_mut()) {
            if share.rate == current {
                share.rate = self.rate_but(&self.classes[member.class as usize], member.hop as usize);
            }
        }
        fill(capacity, elsewhere)
    }

    /// Moves levels, lowest first, until each is what the others ask for. A level depends on lower ones alone, so what
    /// is below the one that moves has come to rest.
    fn solve(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        self.solve_count += 1;
        let mut scratch = std::mem::take(&mut self.scratch);
        loop {
            // In any order: none of these looks at what another is asked for.
            while let Some(link) = self.stale.pop() {
                let asked = self.level(link, &mut scratch.elsewhere);
                let state = &mut self.links[link as usize];
                state.stale = false;
                state.asked = asked;
                if asked != state.level {
                    scratch.moves.push(Reverse((asked.min(state.level), link)));
                }
            }
            let Some(&Reverse((lowest, _))) = scratch.moves.peek() else { break };
            // All that move at one level move together.
            while let Some(&Reverse((at, link))) = scratch.moves.peek() {
                if at != lowest {
                    break;
                }
                scratch.moves.pop();
                let LinkState { level, asked, .. } = self.links[link as usize];
                // Otherwise it was asked for something else since.
                if level != asked && level.min(asked) == at {
                    self.move_level(link);
                }
            }
        }
        self.scratch = scratch;
    }

    /// Gives a link the level it is asked for, its flows the rates that follow, and marks the links that see it.
    fn move_level(&mut self, link: u32) {
        let LinkState { level: before, asked: level, .. } = self.links[link as usize];
        self.links[link as usize].level = level;
        mark(&mut self.links[link as usize], link, &mut self.stale);
        for place in 0..self.members[link as usize].len() {
            let Member { class: index, .. } = self.members[link as usize][place];
            let class = &self.classes[index as usize];
            let Share { rate, count } = self.shares[index as usize];
            let now = if level < before {
                rate.min(level)
            } else if rate == before {
                self.rate_but(class, usize::MAX)
            } else {
                rate
            };
            if now != rate {
                self.shares[index as usize].rate = now;
                let (less, more) = (u128::from(rate) * u128::from(count), u128::from(now) * u128::from(count));
                for other in &class.path {
                    let state = &mut self.links[other.0 as usize];
                    state.used = state.used - less + more;
                    mark(state, other.0, &mut self.stale);
                }
            }
        }
    }
}

/// Has a link looked at, unless that could change nothing.
fn mark(state: &mut LinkState, link: u32, stale: &mut Vec<u32>) {
    let idle = state.level == UNBOUNDED && state.asked == UNBOUNDED && state.surely_not_full();
    if !state.stale && !idle {
        state.stale = true;
        stale.push(link);
    }
}

/// Level at which flows that rise together, each up to its rate elsewhere, fill a capacity.
fn fill(capacity: u64, elsewhere: &[Share]) -> u64 {
    let mut level = 0;
    loop {
        let (mut left, mut rising) = (capacity, 0);
        for share in elsewhere {
            if share.rate < level {
                left -= share.rate * share.count;
            } else {
                rising += share.count;
            }
        }
        let next = left.checked_div(rising).unwrap_or(UNBOUNDED);
        if next == level || next == UNBOUNDED {
            return next;
        }
        level = next;
    }
}
