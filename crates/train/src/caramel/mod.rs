//! All-reduce scheduling of Caramel (Hashemi et al., 2020) and of the systems it is compared with, on one channel.
//!
//! ```text
//! op DAG ─► compute order ─► boundaries ─► batches ─► packing ─► timeline
//!          (compute)     (boundaries)    (batch)    (pack)     (timeline)
//! ```
//!
//! [`transfers`] contains the plans of the other systems, which use the same boundaries and timeline.
//! `docs/models/caramel.md` states the rules. Where the paper leaves details open, the choices are:
//!
//! - A1, A2: the time of an update op is part of its update's cost. Ties go to the first update in topological order.
//! - A3: an op that completes several gradients is one update of several parameters.
//! - A4, A5: the cost of an update is the sum of its ops, not their critical path. Ops that no update needs run last.
//! - A6: the compute order ignores the sizes of parameters.
//! - A7, A8, A9: the ops that the next update needs are delayed until the update before it has ended, through one op of
//!   zero length per update.
//! - A10: if all ops that an update needs have run, its last op is among them. The update then has the place of this
//!   op.
//! - A11, A12: a parameter is large if it exceeds the batching threshold X. A batch may exceed X by less than the size
//!   of its last member.
//! - A13: a large parameter is sent before an open batch. The batch stays open, or is sent if the queue is empty by
//!   the next update.
//! - A14, A15: the test for an empty queue ignores the open batch. A small parameter that is alone on an idle channel
//!   is sent immediately, and so is the last batch.
//! - A16: the boundaries of a batch are the latest update and the earliest read of its members.
//! - A17, A18: the threshold X is the next byte above the bound of the open interval. If the fixed cost is not
//!   positive, X is 0 and nothing is batched.
//! - A19, A20, A21: 4 MB are 4 x 2^20 B. Repeated measurements are replaced by their median. The measured collective is
//!   that of the job, on the job's number of workers.
//! - A22, A27: a transfer is placed at the start of the earliest gap. Larger groups are placed first; ties go to the
//!   earlier update, then to the lower index. If both places of stage 3 cost the same, the backward pass is chosen.
//! - A23: data size, the second dimension of the packing, is one channel that sends one transfer at a time.
//! - A24: a transfer may extend across the end of the backward pass.
//! - A25, A26: the cost of a delay is T of the timeline with the transfer minus T without it. A stall delays all later
//!   ops and transfers.
//! - A28: plans are cyclic: the transfers that an iteration has left are sent in the next one.
//! - A29: the paper's "end" and "start of the batch" are the update and the read of the batch.
//! - A30: the depth (number of chunks) is chosen for each message.

pub mod batch;
mod boundaries;
pub mod compute;
pub mod cost;
pub mod pack;
pub mod timeline;
pub mod transfers;

pub use boundaries::{Boundaries, Boundary, ParameterGroup};
use gradtide_net::{Bytes, Time};
use transfers::TransferPlan;

/// Batches and packs parameters (Caramel, sections 4.2 and 4.3). `threshold` and `time` come from [`cost::Costs`].
pub fn plan(boundaries: &Boundaries, threshold: Bytes, time: &dyn Fn(Bytes) -> Time) -> TransferPlan {
    pack::pack(boundaries, &batch::batch(boundaries, threshold, time), time).plan
}
