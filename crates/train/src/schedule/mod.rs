//! The order in which a job's transfers are sent. A scheduler sees the DAG and no engine.

mod arbitrary;
mod fifo;
mod first_need;
mod given;
mod layer_priority;
mod random;

pub use arbitrary::Arbitrary;
pub use fifo::Fifo;
pub use first_need::FirstNeed;
pub use given::Given;
pub use layer_priority::LayerPriority;
pub use random::Random;

use crate::dag::Dag;

/// An order of transfers.
pub trait Scheduler {
    /// Ranks of the transfers of the next iteration: the transmission queue sends the smallest that is ready first,
    /// and equal ranks in the order in which they became ready.
    fn ranks(&mut self, dag: &Dag, ranks: &mut Vec<u32>);

    /// Whether the ranks of one iteration hold for all.
    fn is_fixed(&self) -> bool {
        true
    }
}
