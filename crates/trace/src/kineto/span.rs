//! Spans: events that last for some time, with their information about a transfer.

use crate::kernels::Transferred;
use std::sync::Arc;

/// Source of information about a transfer, in ascending order of detail. An event with more detail replaces the events
/// of lower levels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// The call, such as `c10d::allreduce_`.
    Call,
    /// The record of the call by a backend that enqueues transfers, such as `record_param_comms` or `nccl:all_reduce`.
    Record,
    /// The event of a host backend during the transfer, such as `gloo:all_reduce`.
    Backend,
    /// The kernel that transfers the bytes.
    Kernel,
}

/// Information about a transfer in an event.
pub(super) struct TransferInfo {
    pub level: Level,
    pub kind: Option<Transferred>,
    /// Bytes of the rank's buffer.
    pub bytes: Option<u64>,
    pub group: Arc<str>,
    /// Number of ranks of the group, if known.
    pub group_size: Option<u64>,
    /// The peer of a point-to-point message.
    pub peer: Option<u32>,
    /// Whether arguments or the name of a call contain the kind. In old versions, `record_param_comms` does not contain
    /// the kind.
    pub is_named: bool,
    /// For a kernel: whether it belongs to a backend of c10d, so that calls of c10d describe it.
    pub is_of_backend: bool,
}

/// An event with a duration on a track.
pub(super) struct Span {
    pub name: Arc<str>,
    pub track: u32,
    pub start_ns: u64,
    pub duration_ns: u64,
    pub is_host: bool,
    /// External id. It links a kernel to the operator that launched it, if the kernel has no
    /// [`Launch`](super::join::Launch).
    pub external: Option<u64>,
    /// Correlation id. It links a kernel to its [`Launch`](super::join::Launch), and ascends with the launches.
    pub correlation: Option<u64>,
    pub said: Option<Box<TransferInfo>>,
    /// Whether the thread waits for a transfer during the span, and therefore does not compute.
    pub waits: bool,
}

impl Span {
    pub fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }

    pub fn level(&self) -> Option<Level> {
        self.said.as_ref().map(|said| said.level)
    }

    /// Returns whether the span is a host operator. Events and records of backends are not.
    pub fn is_operator(&self) -> bool {
        self.is_host && self.level().is_none_or(|level| level == Level::Call)
    }
}
