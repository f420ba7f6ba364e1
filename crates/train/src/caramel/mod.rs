//! All-reduce scheduling of Caramel (Hashemi et al., 2020) and of the systems it is compared with, on one channel.
//!
//! ```text
//! op DAG ─► compute order ─► boundaries ─► batches ─► packing ─► timeline
//!          (compute)     (boundaries)    (batch)    (pack)     (timeline)
//! ```
//!
//! [`transfers`] contains the plans of the other systems, which use the same boundaries and timeline.
//! `docs/models/caramel.md` states the rules, numbered from A1, including our choices where the paper leaves details
//! open.

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
