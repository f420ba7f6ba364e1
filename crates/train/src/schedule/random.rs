//! A new random order in every iteration.

use super::Scheduler;
use crate::dag::Dag;
use gradtide_net::seed::Stream;

/// Sends buckets in a uniformly random order that is drawn anew in each iteration. This is TicTac's baseline (section
/// 6).
#[derive(Debug)]
pub struct Random {
    /// Random stream of the orders.
    pub stream: Stream,
}

impl Scheduler for Random {
    fn ranks(&mut self, dag: &Dag, ranks: &mut Vec<u32>) {
        ranks.clear();
        ranks.extend(0..dag.transfers.len() as u32);
        self.stream.shuffle(ranks);
    }

    fn is_fixed(&self) -> bool {
        false
    }
}
