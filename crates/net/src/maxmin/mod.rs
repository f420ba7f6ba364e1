//! Max-min fair shares of link capacities by progressive filling. After a change, only the affected part is solved
//! again.
//!
//! The rates of all flows rise together. When a link is full, its flows stop at the *level* of the link, and all others
//! continue to rise, until every flow has stopped (Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2):
//!
//! ```text
//! level(l) = (capacity(l) - rates of the flows of l that stopped below level(l)) / number of the other flows of l
//! rate(f)  = minimum of level(l) over the links l of flow f
//! ```
//!
//! All quantities are whole [parts](PARTS) of a unit of capacity, and levels are rounded down. Sums of integers do not
//! depend on their order, and links that fill at one level stop their flows together. The shares are therefore a
//! function of the flows alone, to the last bit, independent of the order of links and of the history of changes, and
//! no link ever exceeds its capacity.
//!
//! Five techniques make the solver fast:
//!
//! 1. Flows with the same links form a *class* with a count.
//! 2. Any number of changes is one solve, at the next read.
//! 3. A class has one *bottleneck*, a link whose level is its rate. When that level changes, the rates of all classes
//!    of the bottleneck change with it.
//! 4. A solve changes levels, lowest first, from the links that gained or lost a flow to the links where a rate
//!    changes, and no further. It [reports](MaxMin::take_changed_levels) the changed levels.
//! 5. If most levels change, the solver fills all links from scratch.
//!
//! The solver does not depend on time, bytes or routes.

mod classes;
mod refill;
mod solve;
mod state;

use crate::index::Index;
use classes::hash_of;
use state::{Bottlenecked, LinkState, UNBOUNDED, mark, record_size};
pub use state::{CAPACITY_LIMIT, ClassId, LinkId, MaxMin, PARTS};

impl MaxMin {
    /// Creates a solver for links of these capacities without flows.
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
                target: UNBOUNDED,
                used: 0,
                flows: 0,
                fastest_elsewhere: 0,
                dead: 0,
                stale: false,
                changed: false,
            }
        };
        Self {
            links: capacities.iter().map(link).collect(),
            levels: vec![UNBOUNDED; capacities.len()],
            bottlenecked: vec![Bottlenecked::default(); capacities.len()],
            members: vec![Vec::new(); capacities.len()],
            shared_classes: vec![Index::default(); capacities.len()],
            refill_from: u64::MAX,
            ..Self::default()
        }
    }

    /// Adds a flow that crosses `links`, which may be in any order, and returns its class. Flows share a class if they
    /// have the same set of links and the same first link.
    ///
    /// # Panics
    /// If `links` is empty, contains a link twice or contains one that does not exist; or if there are 2^16 links, or
    /// 2^32 flows of one class.
    pub fn add(&mut self, links: &[LinkId]) -> ClassId {
        let mut path = std::mem::take(&mut self.scratch.path);
        path.clear();
        path.extend_from_slice(links);
        let (first, rest) = path.split_first_mut().expect("a flow crosses a link");
        rest.sort_unstable();
        let is_once = rest.windows(2).all(|two| two[0] < two[1]) && !rest.contains(first);
        assert!(is_once, "a flow crosses a link once");
        let hash = hash_of(&path);
        let has_path = |class: u32| self.hops_of(class).iter().eq(path.iter().map(|link| &link.0));
        let class = match self.shared_classes[path[0].0 as usize].find(hash, has_path) {
            Some(class) => {
                self.count(class, true);
                class
            }
            None => {
                let class = self.open(&path, true);
                self.shared_classes[path[0].0 as usize].insert(hash, class);
                class
            }
        };
        self.scratch.path = path;
        ClassId(class)
    }

    /// Adds a flow in a class of its own, without searching for an existing class. This is faster for flows that rarely
    /// cross the same links as another. Rates are the same as with [`add`](Self::add).
    ///
    /// # Panics
    /// If `links` is empty or contains a link that does not exist, or if there are 2^16 links. The caller guarantees
    /// that no link appears twice.
    pub fn add_unshared(&mut self, links: &[LinkId]) -> ClassId {
        debug_assert!(
            (1..links.len()).all(|place| !links[..place].contains(&links[place])),
            "a flow crosses a link once"
        );
        ClassId(self.open(links, false))
    }

    /// Removes a flow of a class. Returns whether the class still has flows.
    ///
    /// # Panics
    /// If the class has no flow.
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

    /// Returns the rate of each flow of a class, in [`PARTS`]. Solves first if flows were added or removed.
    ///
    /// # Panics
    /// If the class does not exist.
    pub fn rate(&mut self, class: ClassId) -> u64 {
        self.solve();
        self.rate_of(class.0)
    }

    /// Returns every class that has flows and the rate of each of its flows, in [`PARTS`]. Solves first if flows were
    /// added or removed.
    pub fn rates(&mut self) -> impl Iterator<Item = (ClassId, u64)> {
        self.solve();
        let live = self.classes.iter().enumerate().filter(|(_, class)| class.count > 0);
        live.map(|(id, class)| (ClassId(id as u32), self.levels[class.bottleneck as usize]))
    }

    /// Solves, and calls `each` once for every link whose level has changed since the last call. The arguments are the
    /// link, its level, and the number of classes whose bottleneck the link is.
    pub fn take_changed_levels(&mut self, mut each: impl FnMut(LinkId, u64, usize)) {
        self.solve();
        for link in self.changed.drain(..) {
            self.links[link.0 as usize].changed = false;
            let level = self.levels[link.0 as usize];
            if level != UNBOUNDED {
                each(link, level, self.bottlenecked[link.0 as usize].records.len() / record_size(self.stride));
            }
        }
    }

    /// Solves, and calls `each` once for every class that is new or has another bottleneck since the last call. The
    /// arguments are the class and its bottleneck.
    pub fn take_moved_classes(&mut self, mut each: impl FnMut(ClassId, LinkId)) {
        self.solve();
        for id in self.moved.drain(..) {
            let class = &mut self.classes[id.0 as usize];
            class.moved = false;
            if class.count > 0 {
                each(id, LinkId(class.bottleneck));
            }
        }
    }

    /// Sets the capacity of a link, in [`PARTS`].
    pub fn set_capacity(&mut self, link: LinkId, parts: u64) {
        let state = &mut self.links[link.0 as usize];
        if state.capacity != parts {
            state.capacity = parts;
            mark(state, link.0, &self.levels, &mut self.stale, &mut self.touched);
        }
    }

    /// Returns the sum of the rates on a link, in [`PARTS`]. Solves first if flows were added or removed.
    pub fn used(&mut self, link: LinkId) -> u64 {
        self.solve();
        u64::try_from(self.links[link.0 as usize].used).expect("no link is above its capacity")
    }

    /// Makes the next [`take_touched`](Self::take_touched) report all links.
    pub fn touch_all(&mut self) {
        self.touched = None;
    }

    /// Solves, and calls `each` for every link on which the sum of rates may have changed since the last call. A link
    /// may be reported more than once. The first call reports all links.
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

    /// Makes the next solve start from scratch. The rates do not depend on this.
    pub fn start_over(&mut self) {
        self.refill_from = 0;
    }

    /// Returns the number of solves.
    pub fn solve_count(&self) -> u64 {
        self.solve_count
    }

    /// Returns the links of a class.
    pub fn links(&self, class: ClassId) -> impl Iterator<Item = LinkId> {
        self.hops_of(class.0).iter().map(|&link| LinkId(link))
    }

    /// Returns the classes that cross a link, in no particular order.
    pub fn classes(&self, link: LinkId) -> impl Iterator<Item = ClassId> {
        let members = self.members[link.0 as usize].iter();
        members.filter(|&&class| self.classes[class as usize].count > 0).map(|&class| ClassId(class))
    }
}
