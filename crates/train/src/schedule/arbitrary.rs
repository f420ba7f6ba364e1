//! First come, first served, with random swaps.

use super::Scheduler;
use crate::dag::Dag;
use gradtide_net::seed::Stream;

/// Sends buckets in the order in which they become ready, with a share of random swaps that are drawn anew in each
/// iteration. Models frameworks that enforce no order (TicTac, section 2.2).
#[derive(Debug)]
pub struct Arbitrary {
    /// Random stream of the swaps.
    pub stream: Stream,
    /// Share of the transfers that trade places with a later transfer, in millionths.
    pub disorder_ppm: u64,
}

impl Scheduler for Arbitrary {
    fn ranks(&mut self, dag: &Dag, ranks: &mut Vec<u32>) {
        // The DAG lists transfers in the order in which the backward pass completes them.
        let mut order: Vec<u32> = (0..dag.transfers.len() as u32).collect();
        self.stream.disorder(&mut order, self.disorder_ppm);
        ranks.resize(order.len(), 0);
        (0..).zip(order).for_each(|(rank, transfer)| ranks[transfer as usize] = rank);
    }

    fn is_fixed(&self) -> bool {
        false
    }
}
