//! Lowest layer first.

use super::Scheduler;
use crate::dag::Dag;

/// Sends the bucket with the lowest layer first, because the forward pass needs it first (Gao 2020, section 4.4).
#[derive(Debug)]
pub struct LayerPriority {
    /// Number of priority queues. Layer `i` of `L` layers belongs to queue `floor(i · queue_count / L)`, and buckets
    /// within a queue are sent first come, first served. `None` gives every layer its own queue.
    pub queue_count: Option<u32>,
}

impl Scheduler for LayerPriority {
    fn ranks(&mut self, dag: &Dag, ranks: &mut Vec<u32>) {
        ranks.clear();
        ranks.extend(dag.transfers.iter().map(|transfer| match self.queue_count {
            None => transfer.first_layer,
            Some(queue_count) => {
                (u64::from(transfer.first_layer) * u64::from(queue_count) / u64::from(dag.layer_count)) as u32
            }
        }));
    }
}
