//! All-reduce by recursive vector halving with the rank at distance 1, 2 … p/2, and doubling in reverse. p is the
//! largest power of two up to the number of ranks. Surplus ranks beyond p are folded as in a
//! [butterfly](super::butterfly).
//!
//! # Source
//! Rabenseifner's algorithm in Thakur, Rabenseifner & Gropp (2005); Caramel section 2: "vector halving and distance
//! doubling".

use super::butterfly::{Fold, Unfold, at_place, place, powers};
use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::{Counts, sum};
use crate::collective::levels::CollectiveKind;
use crate::collective::pattern::{Action, BufferShare, Pattern, Send};
use crate::collective::plan::{Phase, PlanError};
use serde::Deserialize;

/// All-reduce by halving and doubling.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct HalvingDoubling;

const ABOUT: About = About {
    title: "halving-doubling",
    operation: CollectiveKind::AllReduce,
    keys: &[],
    needs_even_nodes: false,
    rows: &[Row {
        form: "",
        does: "all-reduce",
        steps: "2 log2 p, + 2 if N > p",
        bytes: "2 S (p-1)/p, + S if folded upon",
        source: "Thakur et al. (2005), Rabenseifner's",
    }],
};

/// Sends half of the part that the rank still reduces to the rank at distance 1, 2 … p/2.
#[derive(Debug)]
struct Halving;

/// Sends all gathered parts to the rank at distance p/2, p/4 … 1.
#[derive(Debug)]
struct Doubling;

impl CollectiveAlgorithm for HalvingDoubling {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(vec![Phase::of_all(Fold), Phase::of_all(Halving), Phase::of_all(Doubling), Phase::of_all(Unfold)])
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let (power, surplus, low) = powers(ranks);
        let is_folded = u64::from(surplus > 0);
        Counts {
            steps: 2 * (low + is_folded),
            messages: 2 * (power * low + surplus),
            sent: 2 * (power - 1 + surplus),
            most: sum((2 * (power - 1), power), (is_folded, 1)),
        }
    }
}

impl Pattern for Halving {
    fn step_count(&self, n: u32) -> u32 {
        n.ilog2()
    }

    fn sends(&self, step: u32, i: u32, n: u32, send: Send<'_>) {
        if let Some(j) = place(i, n) {
            let (p, half) = (1 << n.ilog2(), 1 << (n.ilog2() - 1 - step));
            let peer = kept_part(j, p) ^ half;
            let first = peer & !(half - 1);
            let share = BufferShare { origin: 0, first, end: first + half, count: p };
            send(at_place(kept_part(peer, p), n), share, Action::Reduce);
        }
    }

    fn receive_count(&self, _step: u32, i: u32, n: u32) -> u32 {
        u32::from(place(i, n).is_some())
    }
}

impl Pattern for Doubling {
    fn step_count(&self, n: u32) -> u32 {
        n.ilog2()
    }

    fn sends(&self, step: u32, i: u32, n: u32, send: Send<'_>) {
        if let Some(j) = place(i, n) {
            let (p, block) = (1 << n.ilog2(), 1 << step);
            let first = kept_part(j, p) & !(block - 1);
            let share = BufferShare { origin: 0, first, end: first + block, count: p };
            send(at_place(kept_part(kept_part(j, p) ^ block, p), n), share, Action::Copy);
        }
    }

    fn receive_count(&self, _step: u32, i: u32, n: u32) -> u32 {
        u32::from(place(i, n).is_some())
    }
}

/// Returns the part that the rank with index j has after halving. It is j with its bits reversed, because the first
/// halving determines the highest bit. The function is its own inverse.
fn kept_part(j: u32, p: u32) -> u32 {
    if p == 1 { j } else { j.reverse_bits() >> (u32::BITS - p.ilog2()) }
}
