//! The state of the solver: links, the classes of flows on them, and their bottlenecks.

use crate::index::Index;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Number of parts per unit of capacity: 2^20. Rates are counted in parts.
///
/// A level is rounded down by less than one part. With capacities in bit/s, this is 1e-10 of a rate of 10 kbit/s.
pub const PARTS: u64 = 1 << 20;

/// Exclusive upper bound of capacities: 2^44 units, or 17.6 Tbit/s with units of 1 bit/s. A capacity in [`PARTS`] then
/// fits 64 bits.
pub const CAPACITY_LIMIT: u64 = u64::MAX / PARTS;

/// A link, by its index in the capacities with which the solver was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// Flows of one rate: all flows with the same set of links and the same first link, or one flow that was added
/// [unshared](MaxMin::add_unshared). The number of a class is reused after its last flow was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassId(pub u32);

/// Initial rate or level, before the first solve. It is higher than the level of any link.
pub(super) const UNBOUNDED: u64 = u64::MAX;
/// Sentinel: no link.
pub(super) const NO_LINK: u32 = u32::MAX;

/// The solver: capacities, classes of flows on them, and their rates.
#[derive(Clone, Debug, Default)]
pub struct MaxMin {
    pub(super) links: Vec<LinkState>,
    /// Level of each link, which is the rate of the flows whose bottleneck the link is; [`UNBOUNDED`] if the link is
    /// not full. Levels are stored outside [`LinkState`], because they are read most often.
    pub(super) levels: Vec<u64>,
    pub(super) bottlenecked: Vec<Bottlenecked>,
    /// Classes that cross each link. The list may contain classes without flows: see [`Self::sweep`].
    pub(super) members: Vec<Vec<u32>>,
    pub(super) classes: Vec<Class>,
    /// Maximum number of links of a path so far.
    pub(super) stride: usize,
    pub(super) free: Vec<u32>,
    /// Classes without flows that may still be listed as members of links.
    pub(super) dead: Vec<u32>,
    /// Shared classes by their first link. If that is the link of the flow's source, the tables are small and local in
    /// memory.
    pub(super) shared_classes: Vec<Index>,
    /// Links whose level has to be computed again, each listed once.
    pub(super) stale: Vec<u32>,
    /// Links whose level has changed.
    pub(super) changed: Vec<LinkId>,
    /// Classes that are new or have another bottleneck than before.
    pub(super) moved: Vec<ClassId>,
    /// Links on which the sum of rates has changed; `None` until the first call that reads them.
    pub(super) touched: Option<Vec<LinkId>>,
    pub(super) scratch: Scratch,
    pub(super) refill_scratch: RefillScratch,
    /// Number of flows of all classes.
    pub(super) flow_count: u64,
    /// Number of classes that the current solve has visited.
    pub(super) visited: u64,
    /// Number of stale links from which a solve starts from scratch immediately. It is set to the number of stale links
    /// with which the incremental solve last failed.
    pub(super) refill_from: u64,
    pub(super) solve_count: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LinkState {
    pub(super) capacity: u64,
    /// Key in the heap of links to move; [`UNBOUNDED`] if the link is not in the heap.
    pub(super) moves_at: u64,
    /// Level that follows from the levels of the other links. It is valid only while `stale` is unset.
    pub(super) target: u64,
    /// Sum of the rates of the link's flows. It exceeds the capacity only during a solve.
    pub(super) used: u128,
    pub(super) flows: u64,
    /// Upper bound on the rates of the link's flows that have another bottleneck.
    pub(super) fastest_elsewhere: u64,
    /// Number of member classes without flows.
    pub(super) dead: u32,
    /// Whether the level has to be computed again.
    pub(super) stale: bool,
    /// Whether the link is in [`MaxMin::changed`].
    pub(super) changed: bool,
}

/// Classes whose bottleneck is a given link: no link of their paths has a lower level. If several links of a path have
/// the lowest level, one of them is the bottleneck.
#[derive(Clone, Debug, Default)]
pub(super) struct Bottlenecked {
    /// One record per class: its number, its count, and space for `stride` links. Unused space follows the links. The
    /// links are sorted, except for the first one of a shared class. Records are contiguous, because moving a link
    /// reads all of them.
    pub(super) records: Vec<u32>,
    pub(super) flows: u64,
}

impl Bottlenecked {
    /// Removes the record that begins at `place`. The last record takes its place; returns the class of that record.
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

    /// Returns whether the link is certainly not full. Rounding leaves free capacity even on a full link, but less than
    /// one part for each flow.
    #[inline]
    pub fn surely_not_full(&self) -> bool {
        self.used + u128::from(self.flows) <= u128::from(self.capacity)
    }

    /// Returns the level at which the link becomes exactly full if only the rates of the `bottlenecked` flows whose
    /// bottleneck it is change. These flows now run at `level`.
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

    /// Returns a lower bound on the link's key in the heap of moves, i.e. on the lower of its old and new level. The
    /// link is now the bottleneck of `bottlenecked` flows at `level`.
    #[inline]
    pub fn earliest_move(&self, level: u64, bottlenecked: u64) -> u64 {
        if self.surely_not_full() {
            // The link rises from its current level.
            return level;
        }
        // If a falling link becomes the bottleneck of more flows, each of them loses less.
        level.min(self.level_of_bottlenecked(level, bottlenecked)).max(self.capacity / self.flows)
    }
}

/// A group of flows with the same rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) rate: u64,
    pub(super) count: u64,
}

/// The data of a class that are not in its record (see [`Bottlenecked`]). They take a quarter of a cache line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Link with the lowest level on the path; that level is the rate of the class.
    pub(super) bottleneck: u32,
    /// Start of the class's record in [`Bottlenecked::records`] of its bottleneck.
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
    /// Links to move, by the lower of their old and new levels, or by a lower bound on it.
    pub(super) moves: BinaryHeap<Reverse<(u64, u32)>>,
    /// Links that are being moved, with their new levels.
    pub(super) movers: Vec<(u32, u64)>,
    /// Classes whose bottleneck is about to change.
    pub(super) regrouped: Vec<u32>,
    pub(super) rising: Vec<Share>,
}

/// State of a link during a refill. It has 16 bytes, because access is random.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    pub(super) left: u64,
    pub(super) rising: u32,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Rising,
    /// Filling in this step.
    Next,
    /// Full, with a final level.
    Full,
}

impl Filling {
    #[inline]
    pub fn level(self) -> u64 {
        self.left.checked_div(self.rising.into()).unwrap_or(UNBOUNDED)
    }

    /// Stops `count` of the link's flows at `rate`, because another link on their path is full.
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
    /// Links that fill in this step.
    pub(super) next: Vec<u32>,
    /// Misplaced classes of the links that fill in this step.
    pub(super) misplaced: Vec<u32>,
}

/// Number of words in a record before its links: see [`Bottlenecked`].
pub(super) const HEAD: usize = 2;

#[inline]
pub(super) fn record_size(stride: usize) -> usize {
    HEAD + stride
}

/// Marks a link as stale if its level may change.
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
