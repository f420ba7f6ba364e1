//! In which order a worker receives its parameters: TIC and TAC of TicTac (2019), and what is better than both.
//!
//! [`order`] is the whole module in one function: op DAG -> what an order decides -> order -> makespan and bound.

pub mod artefact;
pub mod makespan;
pub mod needs;
pub mod optimal;
pub mod tac;
pub mod tic;

use crate::opdag::{OpDag, OpDagError};
use gradtide_net::Seed;
use makespan::Scorer;
use needs::{Needs, Recv};
use serde::{Deserialize, Serialize};
use tac::{Ties, tac};
use tic::tic;

/// A DAG and how its transfers are to be ordered, as Python hands it down.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderRequest {
    /// The DAG.
    pub dag: OpDag,
    /// How.
    pub scheduler: OrderMethod,
    /// What happens to transfers that TAC holds for equal.
    pub ties: Ties,
    /// Root of random streams.
    pub seed: u64,
}

/// A way to order transfers.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderMethod {
    /// As the file lists them: the order in which a model registers its parameters.
    Layer,
    /// Timing-independent (TicTac, Algorithm 2).
    Tic,
    /// Timing-aware (TicTac, Algorithm 3).
    Tac,
    /// TAC, with ops that depend on parameters alone taken to cost nothing.
    TacFolded,
    /// Every order equally likely.
    Random,
    /// As the file lists them, but for this share of swaps, in millionths.
    Arbitrary(u64),
    /// The best that is found, with what is proven about it.
    Optimal,
    /// The user's: a rank for each op of the DAG, smaller first; those of ops that are no needed transfers are not
    /// looked at.
    Given(Vec<u64>),
}

/// An order, and how good it is. Times are in ticks of the DAG.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ordered {
    /// Index of the op of each transfer that the target needs, first to last.
    pub order: Vec<u32>,
    /// Priority of each of them, smaller first. TIC's may be equal; the smaller id goes first then.
    pub priority: Vec<u32>,
    /// Time to the end of the target.
    pub makespan_ticks: u64,
    /// The critical path, all computation or all transfers, whichever is longest.
    pub lower_bound_ticks: u64,
    /// No order has a smaller makespan; at least the lower bound.
    pub proven_bound_ticks: u64,
}

/// Orders the transfers of a DAG, and says how good the order is.
///
/// # Errors
/// [`OpDagError`] if the DAG means nothing.
pub fn order(spec: &OrderRequest) -> Result<Ordered, OpDagError> {
    let needs = Needs::new(&spec.dag)?;
    let Sequence { order, priority, proven_bound_ticks } = sequence(&needs, spec)?;
    let makespan_ticks = Scorer::new(&needs).makespan(&order);
    let proven_bound_ticks = proven_bound_ticks.unwrap_or_else(|| optimal::proven(&needs, makespan_ticks));
    Ok(Ordered {
        priority: match priority {
            Some(priority) => order.iter().map(|&recv| priority[recv as usize]).collect(),
            None => (0..order.len() as u32).collect(),
        },
        order: order.iter().map(|&recv| needs.recv_ops[recv as usize]).collect(),
        makespan_ticks,
        lower_bound_ticks: needs.lower_bound_ticks(),
        proven_bound_ticks,
    })
}

/// An order of transfers, and what its scheduler knows beside it.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// First to last.
    pub order: Vec<Recv>,
    /// Priority of each transfer, where it is not its place in the order.
    pub priority: Option<Vec<u32>>,
    /// No order has a smaller makespan; where the scheduler has proven something.
    pub proven_bound_ticks: Option<u64>,
}

/// Orders the transfers of a DAG whose needs are known.
///
/// # Errors
/// [`OpDagError::NoSuchOp`] if a transfer has no rank.
pub fn sequence(needs: &Needs, spec: &OrderRequest) -> Result<Sequence, OpDagError> {
    let mut proven_bound_ticks = None;
    let mut priority = None;
    let by_tac = |work_ticks: &[u64]| match spec.ties {
        Ties::Id => tac(needs, work_ticks),
        Ties::Upstream => artefact::tac(needs, work_ticks),
    };
    let order = match &spec.scheduler {
        OrderMethod::Layer => needs.listed.clone(),
        OrderMethod::Tic => by_priority(priority.insert(tic(needs))),
        OrderMethod::Tac => by_tac(&needs.work_ticks),
        OrderMethod::TacFolded => by_tac(&needs.folded_ticks),
        OrderMethod::Random => {
            let mut order: Vec<Recv> = (0..needs.recv_count() as Recv).collect();
            Seed(spec.seed).stream("random order").shuffle(&mut order);
            order
        }
        OrderMethod::Arbitrary(disorder_ppm) => {
            let mut order = needs.listed.clone();
            Seed(spec.seed).stream("random order").disorder(&mut order, *disorder_ppm);
            order
        }
        OrderMethod::Optimal => {
            let best = optimal::best(needs, Seed(spec.seed));
            proven_bound_ticks = Some(best.bound_ticks);
            best.order
        }
        OrderMethod::Given(ranks) => {
            let rank = |op: u32| ranks.get(op as usize).copied().ok_or(OpDagError::NoSuchOp(op));
            by_priority(&needs.recv_ops.iter().map(|&op| rank(op)).collect::<Result<Vec<_>, _>>()?)
        }
    };
    Ok(Sequence { order, priority, proven_bound_ticks })
}

/// Transfers by ascending priority, equal ones by id.
fn by_priority<T: Ord + Copy>(priority: &[T]) -> Vec<Recv> {
    let mut order: Vec<Recv> = (0..priority.len() as Recv).collect();
    order.sort_by_key(|&recv| priority[recv as usize]);
    order
}
