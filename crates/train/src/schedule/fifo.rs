//! First come, first served.

use super::Scheduler;
use crate::dag::Dag;

/// Sends buckets in the order in which they become ready (Gao 2020, section 4.3), which is the default of frameworks.
#[derive(Debug)]
pub struct Fifo;

impl Scheduler for Fifo {
    fn ranks(&mut self, dag: &Dag, ranks: &mut Vec<u32>) {
        ranks.clear();
        ranks.resize(dag.transfers.len(), 0);
    }
}
