//! Orders in which a worker receives its parameters: TIC and TAC of TicTac (2019), and searches for better orders.
//!
//! [`order`] shows how the module works: op DAG -> needs of its ops -> order -> makespan and bound.

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

/// A DAG and the method that orders its transfers, in the form in which Python passes them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OrderRequest {
    /// The DAG.
    pub dag: OpDag,
    /// Method that orders the transfers.
    pub scheduler: OrderMethod,
    /// Tie-break among transfers that TAC's comparator considers equal.
    pub ties: Ties,
    /// Root seed of random streams.
    pub seed: u64,
}

/// A method that orders transfers.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderMethod {
    /// Order of the file, in which the model registers its parameters.
    Layer,
    /// Timing-independent (TicTac, Algorithm 2).
    Tic,
    /// Timing-aware (TicTac, Algorithm 3).
    Tac,
    /// Timing-aware order in which ops that depend only on parameters count as taking no time.
    TacFolded,
    /// Random order. All orders are equally likely.
    Random,
    /// Order of the file with random swaps. The field is the share of swapped transfers, in millionths.
    Arbitrary(u64),
    /// Best order that the search finds. The search also proves a bound on the makespan.
    Optimal,
    /// Order of the user, as a rank for each op of the DAG, smaller first. Only the ranks of transfers on which the
    /// target depends are used.
    Given(Vec<u64>),
}

/// An order, and its makespan. Times are in ticks of the DAG.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ordered {
    /// Ops of the transfers on which the target depends, in send order. An op is an index in the DAG.
    pub order: Vec<u32>,
    /// Priority of each transfer of `order`, smaller first. TIC may assign equal priorities; then the smaller id is
    /// first.
    pub priority: Vec<u32>,
    /// Time at which the target ends.
    pub makespan_ticks: u64,
    /// Lower bound on the makespan: the longest of the critical path, the total compute time and the total transfer
    /// time.
    pub lower_bound_ticks: u64,
    /// Proven lower bound on the makespan of all orders. It is at least `lower_bound_ticks`.
    pub proven_bound_ticks: u64,
}

/// Orders the transfers of a DAG, and evaluates the order.
///
/// # Errors
/// [`OpDagError`] if the DAG is invalid.
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

/// An order of transfers, with additional results of its scheduler.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Transfers in order.
    pub order: Vec<Recv>,
    /// Priority of each transfer; `None` if it is the position of the transfer in the order.
    pub priority: Option<Vec<u32>>,
    /// Proven lower bound on the makespan of all orders, if the scheduler proves one.
    pub proven_bound_ticks: Option<u64>,
}

/// Orders the transfers of a DAG, reduced to `needs`.
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

/// Sorts transfers by ascending priority. Ties are ordered by id.
fn by_priority<T: Ord + Copy>(priority: &[T]) -> Vec<Recv> {
    let mut order: Vec<Recv> = (0..priority.len() as Recv).collect();
    order.sort_by_key(|&recv| priority[recv as usize]);
    order
}
