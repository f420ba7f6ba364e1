//! All-reduce of whole buffers by recursive doubling: in step s each rank exchanges its buffer with the rank at
//! distance 2^s. Let p be the largest power of two up to n. If n exceeds p, the n - p surplus ranks take no part in the
//! exchange. They are the first n - p even ranks; each sends its bytes to the next rank in the first step, and receives
//! the result from it in the last step.
//!
//! # Source
//! Zhang et al. (2017), section 2.1 and fig. 2; Thakur et al. (2005): recursive doubling. Surplus ranks are folded as
//! in MPICH's implementation.

use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::levels::CollectiveKind;
use crate::collective::pattern::{Action, BufferShare, Pattern, Send};
use crate::collective::plan::{Phase, PlanError};
use serde::Deserialize;

/// Butterfly all-reduce.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Butterfly;

const ABOUT: About = About {
    title: "flat butterfly",
    operation: CollectiveKind::AllReduce,
    keys: &[],
    needs_even_nodes: false,
    rows: &[Row {
        form: "",
        does: "all-reduce",
        steps: "log2 p, + 2 if N > p",
        bytes: "S log2 p, + S if folded upon",
        source: "Zhang et al. (2017), section 2.1",
    }],
};

/// Sends the data of each surplus rank to the next rank. The surplus ranks are idle afterwards.
#[derive(Debug)]
pub(super) struct Fold;

/// Returns the result to the surplus ranks.
#[derive(Debug)]
pub(super) struct Unfold;

/// Exchanges the whole buffer with the rank at distance 1, 2 … p/2.
#[derive(Debug)]
pub(super) struct RecursiveDoubling;

impl CollectiveAlgorithm for Butterfly {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(vec![Phase::of_all(Fold), Phase::of_all(RecursiveDoubling), Phase::of_all(Unfold)])
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let (power, surplus, low) = powers(ranks);
        let is_folded = u64::from(surplus > 0);
        let messages = power * low + 2 * surplus;
        Counts { steps: low + 2 * is_folded, messages, sent: messages, most: (low + is_folded, 1) }
    }
}

/// Returns the largest power of two p up to `n`, the number of surplus ranks n - p, and log2 p.
pub(super) fn powers(n: u32) -> (u64, u64, u64) {
    let power = 1 << n.ilog2();
    (power, u64::from(n) - power, n.ilog2().into())
}

impl Pattern for Fold {
    fn step_count(&self, n: u32) -> u32 {
        u32::from(!n.is_power_of_two())
    }

    fn sends(&self, _step: u32, i: u32, n: u32, send: Send<'_>) {
        if is_folded(i, n) {
            send(i + 1, BufferShare::WHOLE, Action::Reduce);
        }
    }

    fn receive_count(&self, _step: u32, i: u32, n: u32) -> u32 {
        u32::from(i > 0 && is_folded(i - 1, n))
    }
}

impl Pattern for Unfold {
    fn step_count(&self, n: u32) -> u32 {
        u32::from(!n.is_power_of_two())
    }

    fn sends(&self, _step: u32, i: u32, n: u32, send: Send<'_>) {
        if i > 0 && is_folded(i - 1, n) {
            send(i - 1, BufferShare::WHOLE, Action::Copy);
        }
    }

    fn receive_count(&self, _step: u32, i: u32, n: u32) -> u32 {
        u32::from(is_folded(i, n))
    }
}

impl Pattern for RecursiveDoubling {
    fn step_count(&self, n: u32) -> u32 {
        n.ilog2()
    }

    fn sends(&self, step: u32, i: u32, n: u32, send: Send<'_>) {
        if let Some(j) = place(i, n) {
            send(at_place(j ^ (1 << step), n), BufferShare::WHOLE, Action::Reduce);
        }
    }

    fn receive_count(&self, _step: u32, i: u32, n: u32) -> u32 {
        u32::from(place(i, n).is_some())
    }
}

/// Returns whether rank `i` of `n` = 2^k + r ranks is a surplus rank. The surplus ranks are the even ranks below 2r.
fn is_folded(i: u32, n: u32) -> bool {
    i < 2 * (n - (1 << n.ilog2())) && i.is_multiple_of(2)
}

/// Returns the index of a rank among the 2^k ranks that are not surplus; `None` for a surplus rank.
pub(super) fn place(i: u32, n: u32) -> Option<u32> {
    let surplus = n - (1 << n.ilog2());
    match i {
        _ if is_folded(i, n) => None,
        _ if i < 2 * surplus => Some(i / 2),
        _ => Some(i - surplus),
    }
}

/// Returns the rank at an index among the 2^k ranks that are not surplus.
pub(super) fn at_place(j: u32, n: u32) -> u32 {
    let surplus = n - (1 << n.ilog2());
    if j < surplus { 2 * j + 1 } else { j + surplus }
}
