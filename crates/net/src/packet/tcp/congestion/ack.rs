//! What every congestion control receives of an acknowledgement.

/// An acknowledgement as congestion control sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    pub now_ps: u64,
    pub srtt_ns: u64,
    /// Whole segments that it acknowledges.
    pub segments: u64,
}
