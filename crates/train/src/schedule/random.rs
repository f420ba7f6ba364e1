//! A fresh random order in every iteration.

use super::Scheduler;
use crate::dag::Dag;
use gradtide_net::seed::Stream;

/// Every order equally likely, drawn anew for each iteration: TicTac's baseline (section 6).
#[derive(Debug)]
pub struct Random {
    /// Where the orders are drawn from.
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
