//! All-reduce scheduling of Caramel (Hashemi et al., 2020) and of the systems it is compared with, on one channel.
//!
//! ```text
//! op DAG ─► compute order ─► boundaries ─► batches ─► packing ─► timeline
//!          (compute)     (boundaries)    (batch)    (pack)     (timeline)
//! ```
//!
//! [`transfers`] contains the plans of the other systems, which use the same boundaries and timeline.
//! `docs/models/caramel.md` states the rules. Where the paper leaves details open (question: choice):
//!
//! - A1, A2: is an update part of its own cost; ties: yes; the first in topological order.
//! - A3: several gradients from one op: one update; its parameters follow at once.
//! - A4, A5: sum or critical path; ops that no update needs: the sum of computing ops; they run last.
//! - A6: sizes in the compute order: ignored.
//! - A7, A8, A9: which ops are held back, and by what: the ops that the next update needs, by the update before it,
//!   through one op per update that takes no time.
//! - A10: an update that needs nothing new: belongs to an op that has run, and shares its place.
//! - A11, A12: larger than X or as large; may a batch exceed X: larger; yes, by less than its last member.
//! - A13: a large parameter while a batch is open: is sent first; the batch stays open, or is sent if the queue is
//!   empty by the next update.
//! - A14, A15: when the queue is empty: counted without the open batch; a small parameter alone on an idle channel is
//!   sent at once, and so is the last batch.
//! - A16: boundaries of a batch: the latest update, the earliest read.
//! - A17, A18: the minimum of an open interval; a <= 0: the next byte; X = 0, nothing is batched.
//! - A19, A20, A21: 4 MB; repeats; measured on what: 4 x 2^20 B; the median; that collective on that many workers.
//! - A22, A27: where in a gap; ties: earliest; larger, then earlier update, then as listed; the backward pass if both
//!   choices cost the same.
//! - A23: the second dimension, data size: one channel, one transfer at a time.
//! - A24: across the end of the backward pass: allowed.
//! - A25, A26: cost of a delay: T of the timeline with the transfer minus T without it; a stall delays all that comes
//!   later.
//! - A28: the last iteration: its remaining transfers are sent in the next one; plans are cyclic.
//! - A29: "end" and "start of the batch": its update and its read.
//! - A30: depth of what: of a message.

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

/// Batches and packs parameters (Caramel, sections 4.2 and 4.3). `threshold` and `time` are those of [`cost::Costs`].
pub fn plan(boundaries: &Boundaries, threshold: Bytes, time: &dyn Fn(Bytes) -> Time) -> TransferPlan {
    pack::pack(boundaries, &batch::batch(boundaries, threshold, time), time).plan
}
