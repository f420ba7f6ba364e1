//! Mostly first come, first served.

use super::Scheduler;
use crate::dag::Dag;
use gradtide_net::seed::Stream;

/// In the order in which buckets become ready, but for some that swap places, drawn anew for each iteration: what
/// frameworks do that enforce no order (TicTac, section 2.2).
#[derive(Debug)]
pub struct Arbitrary {
    /// Where the swaps are drawn from.
    pub stream: Stream,
    /// Share of the transfers that swap places with a later one, in millionths.
    pub disorder_ppm: u64,
}

impl Scheduler for Arbitrary {
    fn ranks(&mut self, dag: &Dag, ranks: &mut Vec<u32>) {
        // Transfers are listed as the backward pass completes them.
        let mut order: Vec<u32> = (0..dag.transfers.len() as u32).collect();
        self.stream.disorder(&mut order, self.disorder_ppm);
        ranks.resize(order.len(), 0);
        (0..).zip(order).for_each(|(rank, transfer)| ranks[transfer as usize] = rank);
    }

    fn is_fixed(&self) -> bool {
        false
    }
}
