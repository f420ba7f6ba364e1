//! Schedulers, which determine the order in which a job's transfers are sent. A scheduler depends on the DAG but on no
//! engine.

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

/// A policy that orders transfers.
pub trait Scheduler {
    /// Sets the send priorities (`ranks`) of the next iteration's transfers. The queue sends the ready transfer of the
    /// smallest rank first, and transfers of equal rank in the order in which they became ready.
    fn ranks(&mut self, dag: &Dag, ranks: &mut Vec<u32>);

    /// Returns whether all iterations have the same ranks.
    fn is_fixed(&self) -> bool {
        true
    }
}
