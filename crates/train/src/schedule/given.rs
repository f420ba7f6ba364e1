//! A fixed order that the user or a plan provides.

use super::Scheduler;
use crate::dag::Dag;

/// Uses the same ranks in every iteration. They come from the user's file or from a plan.
#[derive(Debug)]
pub struct Given {
    /// Send priority of every bucket.
    pub bucket_ranks: Vec<u32>,
}

impl Scheduler for Given {
    fn ranks(&mut self, _dag: &Dag, ranks: &mut Vec<u32>) {
        ranks.clone_from(&self.bucket_ranks);
    }
}
