//! The state of the solver: links, what they hold, and classes of flows.

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

/// Flows with the same links that name the same link first, or one flow added [apart](MaxMin::add_apart); they have
/// one rate. The number of a class whose last flow was removed is used again.
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
    /// By link: rate at which flows are held there; [`UNBOUNDED`] if the link is not full. Apart from the rest because
    /// this is read most.
    pub(super) levels: Vec<u64>,
    pub(super) held: Vec<Held>,
    /// By link, the classes that cross it, and some that had their last flow removed: see [`Self::sweep`].
    pub(super) members: Vec<Vec<u32>>,
    pub(super) classes: Vec<Class>,
    /// Most links of a path so far.
    pub(super) stride: usize,
    pub(super) free: Vec<u32>,
    /// Classes that have had their last flow removed, and that links may still have among their members.
    pub(super) gone: Vec<u32>,
    /// By link, the classes of which it is the first and that others may join: small tables, so that what is used
    /// together is near, if flows begin with the link of their source.
    pub(super) known: Vec<Index>,
    /// Links that have become stale, each once.
    pub(super) stale: Vec<u32>,
    /// Links whose level has changed.
    pub(super) turned: Vec<LinkId>,
    /// Classes that are new, or held at another link than before.
    pub(super) moved: Vec<ClassId>,
    /// Links whose used capacity has changed, if somebody wants to know.
    pub(super) touched: Option<Vec<LinkId>>,
    pub(super) scratch: Scratch,
    pub(super) refill_scratch: RefillScratch,
    /// Flows that there are.
    pub(super) flow_count: u64,
    /// Classes that the solve under way has looked at.
    pub(super) seen: u64,
    /// With so many stale links a solve starts from scratch at once: the last one that had to had so many.
    pub(super) refill_from: u64,
    pub(super) solve_count: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LinkState {
    pub(super) capacity: u64,
    /// Where it stands among the links that are to move; [`UNBOUNDED`] if it does not.
    pub(super) moves_at: u64,
    /// Level that the other links ask for, unless it is stale.
    pub(super) asked: u64,
    /// Sum of the rates of its flows, above the capacity while a solve goes on.
    pub(super) used: u128,
    pub(super) flows: u64,
    /// No flow that is held elsewhere is faster.
    pub(super) fastest_guest: u64,
    /// Members without flows.
    pub(super) gone: u32,
    /// Whether something that its level depends on has changed since that was last computed.
    pub(super) stale: bool,
    /// Whether it stands among the turned ones.
    pub(super) turned: bool,
}

/// Classes that have the level of a link for their rate, because it is the least of their links'. If several are, the
/// class is held at one of these.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    /// Of each its number, its count, and `stride` links of which it uses the first few; sorted but for the first where
    /// others may join. One after the other, because when a link moves all that it holds are read.
    pub(super) records: Vec<u32>,
    pub(super) flows: u64,
}

impl Held {
    /// Removes the record that begins at `place`; tells whose record begins there now.
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
    /// A flow of this rate comes.
    #[inline]
    pub fn enter(&mut self, rate: u128) {
        self.used += rate;
        self.flows += 1;
    }

    /// A flow of this rate goes.
    #[inline]
    pub fn leave(&mut self, rate: u128) {
        self.used -= rate;
        self.flows -= 1;
    }

    /// Rounding leaves less than a part for each flow of a full link.
    #[inline]
    pub fn surely_not_full(&self) -> bool {
        self.used + u128::from(self.flows) <= u128::from(self.capacity)
    }

    /// Its level if it holds these flows that it has at `level`, and no others: they share what the others leave.
    #[inline]
    pub fn level_of_held(&self, level: u64, held: u64) -> u64 {
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
    #[inline]
    pub fn earliest_move(&self, level: u64, held: u64) -> u64 {
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
pub(super) struct Share {
    pub(super) rate: u64,
    pub(super) count: u64,
}

/// What is known of a class beside its record, in a quarter of a cache line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// The link at which it is held: its level is the least of all on the path, and the rate of the class.
    pub(super) holder: u32,
    /// Where its record begins there.
    pub(super) place: u32,
    /// Flows.
    pub(super) count: u32,
    pub(super) hop_count: u16,
    /// Whether it stands among the moved ones.
    pub(super) moved: bool,
    /// Whether others may join.
    pub(super) shared: bool,
}

/// Kept between solves for their memory alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    pub(super) path: Vec<LinkId>,
    /// Links that are to move, by the lower of their two levels, or less if they have not been looked at.
    pub(super) moves: BinaryHeap<Reverse<(u64, u32)>>,
    /// Those that move now, and where to.
    pub(super) movers: Vec<(u32, u64)>,
    /// Those that are held elsewhere from now on.
    pub(super) regrouped: Vec<u32>,
    pub(super) rising: Vec<Share>,
}

/// A link that fills: 16 bytes, as all of them are looked at in no order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filling {
    pub(super) left: u64,
    pub(super) rising: u32,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Rising,
    /// It is next.
    Next,
    /// It has a level.
    Full,
}

impl Filling {
    #[inline]
    pub fn level(self) -> u64 {
        self.left.checked_div(self.rising.into()).unwrap_or(UNBOUNDED)
    }

    /// So many flows stop elsewhere.
    #[inline]
    pub fn stop(&mut self, rate: u64, count: u32) {
        self.left -= rate * u64::from(count);
        self.rising -= count;
    }
}

/// Kept between solves for their memory alone.
#[derive(Clone, Debug, Default)]
pub(super) struct RefillScratch {
    pub(super) fillings: Vec<Filling>,
    /// Levels before.
    pub(super) before: Vec<u64>,
    /// Links that are next.
    pub(super) next: Vec<u32>,
    /// Their strays.
    pub(super) strays: Vec<u32>,
}

/// Numbers before the links of a record: see [`Held`].
pub(super) const HEAD: usize = 2;

#[inline]
pub(super) fn record_size(stride: usize) -> usize {
    HEAD + stride
}

/// Marks a link to be examined, unless that could change nothing.
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
