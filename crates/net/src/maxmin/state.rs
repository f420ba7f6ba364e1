//! The state of the solver: links, the classes of flows on them, and their bottlenecks.

use crate::index::Index;
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

/// Flows with the same links and the same first link, or one flow added [unshared](MaxMin::add_unshared); they have one
/// rate. The number of a class whose last flow was removed is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClassId(pub u32);

/// No rate yet, and no level: faster than any link.
pub(super) const UNBOUNDED: u64 = u64::MAX;
/// Sentinel: no link.
pub(super) const NO_LINK: u32 = u32::MAX;

/// The solver: capacities, classes of flows on them, and their rates.
#[derive(Clone, Debug, Default)]
pub struct MaxMin {
    pub(super) links: Vec<LinkState>,
    /// By link: rate of the flows whose bottleneck it is; [`UNBOUNDED`] if the link is not full. Not in [`LinkState`]
    /// because it is read most.
    pub(super) levels: Vec<u64>,
    pub(super) bottlenecked: Vec<Bottlenecked>,
    /// By link, the classes that cross it, and some without flows: see [`Self::sweep`].
    pub(super) members: Vec<Vec<u32>>,
    pub(super) classes: Vec<Class>,
    /// Most links of a path so far.
    pub(super) stride: usize,
    pub(super) free: Vec<u32>,
    /// Classes without flows that links may still have among their members.
    pub(super) dead: Vec<u32>,
    /// By link, the shared classes of which it is the first: small tables, local in memory if flows begin with the link
    /// of their source.
    pub(super) shared_classes: Vec<Index>,
    /// Links that have become stale, each once.
    pub(super) stale: Vec<u32>,
    /// Links whose level has changed.
    pub(super) changed: Vec<LinkId>,
    /// Classes that are new or have another bottleneck than before.
    pub(super) moved: Vec<ClassId>,
    /// Links whose used capacity has changed; `None` until they are first read.
    pub(super) touched: Option<Vec<LinkId>>,
    pub(super) scratch: Scratch,
    pub(super) refill_scratch: RefillScratch,
    /// Flows of all classes.
    pub(super) flow_count: u64,
    /// Classes that the current solve has visited.
    pub(super) visited: u64,
    /// Number of stale links from which a solve starts from scratch at once: that of the last solve that had to.
    pub(super) refill_from: u64,
    pub(super) solve_count: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LinkState {
    pub(super) capacity: u64,
    /// Its key in the heap of links to move; [`UNBOUNDED`] if it is not there.
    pub(super) moves_at: u64,
    /// Level that follows from those of the other links, unless it is stale.
    pub(super) target: u64,
    /// Sum of the rates of its flows; above the capacity only during a solve.
    pub(super) used: u128,
    pub(super) flows: u64,
    /// Upper bound of the rates of its flows with another bottleneck.
    pub(super) fastest_elsewhere: u64,
    /// Members without flows.
    pub(super) dead: u32,
    /// Whether its level has to be computed again.
    pub(super) stale: bool,
    /// Whether it is among the links whose level has changed.
    pub(super) changed: bool,
}

/// Classes whose bottleneck is a link: its level is the least on their path. If several links have that level, one of
/// them is the bottleneck.
#[derive(Clone, Debug, Default)]
pub(super) struct Bottlenecked {
    /// One record per class: its number, its count, and `stride` links of which it uses the first few, sorted but for
    /// the first in a shared class. Contiguous, because a link that moves reads all of them.
    pub(super) records: Vec<u32>,
    pub(super) flows: u64,
}

impl Bottlenecked {
    /// Removes the record that begins at `place`; returns the class whose record begins there now.
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
    /// Adds a flow of this rate.
    #[inline]
    pub fn enter(&mut self, rate: u128) {
        self.used += rate;
        self.flows += 1;
    }

    /// Removes a flow of this rate.
    #[inline]
    pub fn leave(&mut self, rate: u128) {
        self.used -= rate;
        self.flows -= 1;
    }

    /// Whether it has more room than rounding leaves on a full link: less than a part for each flow.
    #[inline]
    pub fn surely_not_full(&self) -> bool {
        self.used + u128::from(self.flows) <= u128::from(self.capacity)
    }

    /// Its level if it stays the bottleneck of the `bottlenecked` flows that are at `level`, and of no others: they
    /// share what the others leave.
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

    /// Lower bound of the level at which it moves, if it is the bottleneck of `bottlenecked` flows at `level`.
    #[inline]
    pub fn earliest_move(&self, level: u64, bottlenecked: u64) -> u64 {
        if self.surely_not_full() {
            // It rises from where it is.
            return level;
        }
        // If it falls and becomes the bottleneck of others, all together give up less.
        level.min(self.level_of_bottlenecked(level, bottlenecked)).max(self.capacity / self.flows)
    }
}

/// Flows of one rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) rate: u64,
    pub(super) count: u64,
}

/// A class without its record, in a quarter of a cache line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// The link whose level is the least on the path, and the rate of the class.
    pub(super) bottleneck: u32,
    /// Where its record there begins.
    pub(super) place: u32,
    /// Flows.
    pub(super) count: u32,
    pub(super) hop_count: u16,
    /// Whether it is among the moved classes.
    pub(super) moved: bool,
    /// Whether other flows can join it.
    pub(super) shared: bool,
}

/// Buffers of a solve, kept for their memory.
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

/// A link of a refill: 16 bytes, because they are accessed at random.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    pub(super) left: u64,
    pub(super) rising: u32,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Rising,
    /// It fills now.
    Next,
    /// It has a level.
    Full,
}

impl Filling {
    #[inline]
    pub fn level(self) -> u64 {
        self.left.checked_div(self.rising.into()).unwrap_or(UNBOUNDED)
    }

    /// `count` of its flows stop at `rate` elsewhere.
    #[inline]
    pub fn stop(&mut self, rate: u64, count: u32) {
        self.left -= rate * u64::from(count);
        self.rising -= count;
    }
}

/// Buffers of a refill, kept for their memory.
#[derive(Clone, Debug, Default)]
pub(super) struct RefillScratch {
    pub(super) fillings: Vec<Filling>,
    /// Levels before.
    pub(super) before: Vec<u64>,
    /// Links that fill now.
    pub(super) next: Vec<u32>,
    /// Their misplaced classes.
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
