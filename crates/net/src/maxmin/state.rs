//! The state of the solver: links, the classes of flows on them, and their bottlenecks.

use crate::index::Index;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of parts per unit of capacity (say, of 1 bit/s): 2^20. Rates are counted in parts.
///
/// A level is rounded down by less than one part: 1e-10 of a share of 10 kbit/s, if capacities are in bit/s.
pub const PARTS: u64 = 1 << 20;

/// Exclusive upper bound of capacities, which have to fit 64 bits in [`PARTS`]: 2^44 units, or 17.6 Tbit/s.
pub const CAPACITY_LIMIT: u64 = u64::MAX / PARTS;

/// Index of a link in the capacities with which the solver was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// Flows of one rate: those with the same links and the same first link, or one flow added
/// [unshared](MaxMin::add_unshared). The number of a class is reused after its last flow was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassId(pub u32);

/// Rate or level before the first solve: faster than any link.
pub(super) const UNBOUNDED: u64 = u64::MAX;
/// Sentinel: no link.
pub(super) const NO_LINK: u32 = u32::MAX;

/// The solver: capacities, classes of flows on them, and their rates.
#[derive(Clone, Debug, Default)]
pub struct MaxMin {
    pub(super) links: Vec<LinkState>,
    /// Rate of the flows whose bottleneck is the link, by link; [`UNBOUNDED`] if the link is not full. Outside of
    /// [`LinkState`] because it is read most often.
    pub(super) levels: Vec<u64>,
    pub(super) bottlenecked: Vec<Bottlenecked>,
    /// Classes that cross each link, and some without flows: see [`Self::sweep`].
    pub(super) members: Vec<Vec<u32>>,
    pub(super) classes: Vec<Class>,
    /// Largest number of links of a path so far.
    pub(super) stride: usize,
    pub(super) free: Vec<u32>,
    /// Classes without flows that may still be members of links.
    pub(super) dead: Vec<u32>,
    /// Shared classes by their first link: small tables, local in memory if flows begin with the link of their source.
    pub(super) shared_classes: Vec<Index>,
    /// Stale links, each once.
    pub(super) stale: Vec<u32>,
    /// Links whose level has changed.
    pub(super) changed: Vec<LinkId>,
    /// Classes that are new or have another bottleneck than before.
    pub(super) moved: Vec<ClassId>,
    /// Links whose used capacity has changed; `None` until the first read.
    pub(super) touched: Option<Vec<LinkId>>,
    pub(super) scratch: Scratch,
    pub(super) refill_scratch: RefillScratch,
    /// Number of flows of all classes.
    pub(super) flow_count: u64,
    /// Number of classes that the current solve has visited.
    pub(super) visited: u64,
    /// Number of stale links from which a solve starts from scratch at once: that of the last solve that had to start
    /// over.
    pub(super) refill_from: u64,
    pub(super) solve_count: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LinkState {
    pub(super) capacity: u64,
    /// Key in the heap of links to move; [`UNBOUNDED`] outside of the heap.
    pub(super) moves_at: u64,
    /// Level that follows from those of the other links, unless it is stale.
    pub(super) target: u64,
    /// Sum of the rates of the link's flows; above the capacity only during a solve.
    pub(super) used: u128,
    pub(super) flows: u64,
    /// Upper bound of the rates of the flows that have another bottleneck.
    pub(super) fastest_elsewhere: u64,
    /// Number of members without flows.
    pub(super) dead: u32,
    /// Whether the level has to be computed again.
    pub(super) stale: bool,
    /// Whether the link is in [`MaxMin::changed`].
    pub(super) changed: bool,
}

/// Classes whose bottleneck is a link, that is, whose path has no lower level than that of the link. If several links
/// of a path have the lowest level, one of them is the bottleneck.
#[derive(Clone, Debug, Default)]
pub(super) struct Bottlenecked {
    /// One record per class: its number, its count, and `stride` links, of which the first ones are in use, sorted
    /// except for the first link of a shared class. Contiguous, because moving a link reads all of them.
    pub(super) records: Vec<u32>,
    pub(super) flows: u64,
}

impl Bottlenecked {
    /// Removes the record that begins at `place`; returns the class whose record begins there afterwards.
    #[inline]
    pub fn remove(&mut self, place: usize, size: usize) -> Option<u32> {
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
    /// Adds a flow of rate `rate`.
    #[inline]
    pub fn enter(&mut self, rate: u128) {
        self.used += rate;
        self.flows += 1;
    }

    /// Removes a flow of rate `rate`.
    #[inline]
    pub fn leave(&mut self, rate: u128) {
        self.used -= rate;
        self.flows -= 1;
    }

    /// Returns whether the link has more free capacity than rounding leaves on a full link: less than a part for each
    /// flow.
    #[inline]
    pub fn surely_not_full(&self) -> bool {
        self.used + u128::from(self.flows) <= u128::from(self.capacity)
    }

    /// Returns the level of the link if it stays the bottleneck of the `bottlenecked` flows that are at `level`, and of
    /// no others: these flows share the capacity that the other flows leave.
    #[inline]
    pub fn level_of_bottlenecked(&self, level: u64, bottlenecked: u64) -> u64 {
        let capacity = u128::from(self.capacity);
        if bottlenecked == 0 || level == UNBOUNDED {
            0
        } else if self.used <= capacity {
            level + (capacity - self.used) as u64 / bottlenecked
        } else {
            let excess = u64::try_from(self.used - capacity);
            excess.map_or(0, |excess| level.saturating_sub(excess.div_ceil(bottlenecked)))
        }
    }

    /// Returns a lower bound of the level at which the link moves, if it is the bottleneck of `bottlenecked` flows at
    /// `level`.
    #[inline]
    pub fn earliest_move(&self, level: u64, bottlenecked: u64) -> u64 {
        if self.surely_not_full() {
            // The link rises from its present level.
            return level;
        }
        // If the link falls and becomes the bottleneck of other flows, all flows together give up less.
        level.min(self.level_of_bottlenecked(level, bottlenecked)).max(self.capacity / self.flows)
    }
}

/// A number of flows of one rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) rate: u64,
    pub(super) count: u64,
}

/// A class without its record, in a quarter of a cache line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Link with the lowest level on the path; that level is the rate of the class.
    pub(super) bottleneck: u32,
    /// Start of the record among those of the bottleneck.
    pub(super) place: u32,
    /// Number of flows.
    pub(super) count: u32,
    pub(super) hop_count: u16,
    /// Whether the class is in [`MaxMin::moved`].
    pub(super) moved: bool,
    /// Whether other flows can join the class.
    pub(super) shared: bool,
}

/// Buffers of a solve that are kept between calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    pub(super) path: Vec<LinkId>,
    /// Links to move, by the lower of their old and new level, or by a lower bound of it.
    pub(super) moves: BinaryHeap<Reverse<(u64, u32)>>,
    /// Links that move now, with their new levels.
    pub(super) movers: Vec<(u32, u64)>,
    /// Classes that get another bottleneck.
    pub(super) regrouped: Vec<u32>,
    pub(super) rising: Vec<Share>,
}

/// State of a link during a refill: 16 bytes, because the access is random.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    pub(super) left: u64,
    pub(super) rising: u32,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Rising,
    /// Filling now.
    Next,
    /// Filled, with a final level.
    Full,
}

impl Filling {
    #[inline]
    pub fn level(self) -> u64 {
        self.left.checked_div(self.rising.into()).unwrap_or(UNBOUNDED)
    }

    /// Stops `count` of the link's flows at `rate`, on another link.
    #[inline]
    pub fn stop(&mut self, rate: u64, count: u32) {
        self.left -= rate * u64::from(count);
        self.rising -= count;
    }
}

/// Buffers of a refill that are kept between calls.
#[derive(Clone, Debug, Default)]
pub(super) struct RefillScratch {
    pub(super) fillings: Vec<Filling>,
    /// Levels before the refill.
    pub(super) before: Vec<u64>,
    /// Links that fill now.
    pub(super) next: Vec<u32>,
    /// Misplaced classes of the links that fill now.
    pub(super) misplaced: Vec<u32>,
}

/// Words before the links of a record: see [`Bottlenecked`].
pub(super) const HEAD: usize = 2;

#[inline]
pub(super) fn record_size(stride: usize) -> usize {
    HEAD + stride
}

/// Marks a link whose level may change.
#[inline]
pub(super) fn mark(
    state: &mut LinkState,
    link: u32,
    levels: &[u64],
    stale: &mut Vec<u32>,
    touched: &mut Option<Vec<LinkId>>,
) {
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
