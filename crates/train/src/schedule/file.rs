//! The user's own order.

use super::Scheduler;
use crate::dag::Dag;

/// Ranks from the user's file. A bucket is as urgent as its most urgent layer.
#[derive(Debug)]
pub struct File {
    /// Rank of every layer.
    pub layer_ranks: Vec<u32>,
    /// Layers of every bucket.
    pub bucket_layers: Vec<Vec<u32>>,
}

impl Scheduler for File {
    fn ranks(&mut self, _dag: &Dag, ranks: &mut Vec<u32>) {
        ranks.clear();
        ranks.extend(
            self.bucket_layers
                .iter()
                .map(|layers| layers.iter().map(|&layer| self.layer_ranks[layer as usize]).min().unwrap_or(u32::MAX)),
        );
    }
}
