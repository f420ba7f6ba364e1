//! Ring all-reduce. On nodes with several ranks there is one ring per network card of a node.
//!
//! # Source
//! Patarasuk & Yuan (2009); Gao (2020), section 5.2. One ring per card: NCCL's published sources,
//! `src/graph/tuning.cc`.

use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::levels::{CollectiveKind, Levels, Span};
use crate::collective::pattern::{Action, BufferShare, Pattern, Send};
use crate::collective::plan::{Phase, PlanError};
use gradtide_net::{Band, Bytes, Connection, Flow, HostId, Time};
use serde::Deserialize;

/// Ring all-reduce.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Ring;

/// Row of the documentation for a ring all-reduce, irrespective of the number of rings.
pub(super) const ROWS: &[Row] =
    &[Row { form: "", does: "all-reduce", steps: "2(N-1)", bytes: "2 S (N-1)/N", source: "Patarasuk & Yuan (2009)" }];

const ABOUT: About =
    About { title: "ring", operation: CollectiveKind::AllReduce, keys: &[], needs_even_nodes: false, rows: ROWS };

/// Reduce-scatter along a ring: in step k rank i sends part i - `shift` - k to rank i+1. At the end rank i has the sum
/// of part i+1 - `shift`.
#[derive(Debug)]
pub(super) struct RingReduceScatter {
    pub shift: u32,
}

/// All-gather along a ring of the result of [`RingReduceScatter`] with the same `shift`.
#[derive(Debug)]
pub(super) struct RingAllGather {
    pub shift: u32,
}

/// Returns the two phases of a ring all-reduce.
pub(super) fn both_halves() -> [Phase; 2] {
    [Phase::of_all(RingReduceScatter { shift: 0 }), Phase::of_all(RingAllGather { shift: 0 })]
}

/// Returns the number of concurrent rings of a process group, one for each card that all of its nodes have, and the
/// number of chunks of each ring.
pub(super) fn rings(span: Span, depth: u32) -> (u64, u64) {
    (if span.nodes() == 1 { 1 } else { span.per_node().into() }, depth.into())
}

impl CollectiveAlgorithm for Ring {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(both_halves().into())
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let n = u64::from(ranks);
        Counts { steps: 2 * (n - 1), messages: 2 * n * (n - 1), sent: 2 * (n - 1), most: (2 * (n - 1), n) }
    }

    fn levels(&self, span: Span) -> Option<Levels> {
        let ranks = u64::from(span.ranks());
        Some(Levels::rings(span, (2 * (ranks - 1), ranks), 2, span.ranks() - 1))
    }

    fn is_over_nodes(&self, span: Span) -> bool {
        !span.is_on_one_level()
    }

    fn concurrency(&self, span: Span, _bytes: Bytes, depth: u32) -> (u64, u64) {
        rings(span, depth)
    }
}

impl Pattern for RingReduceScatter {
    fn step_count(&self, n: u32) -> u32 {
        n - 1
    }

    fn sends(&self, step: u32, i: u32, n: u32, send: Send<'_>) {
        send((i + 1) % n, BufferShare::part(part(2 * n - self.shift, step, i, n), n), Action::Reduce);
    }

    fn receive_count(&self, _step: u32, _i: u32, _n: u32) -> u32 {
        1
    }

    fn ring_part(&self, step: u32, i: u32, n: u32) -> Option<u32> {
        Some(part(2 * n - self.shift, step, i, n))
    }
}

impl Pattern for RingAllGather {
    fn step_count(&self, n: u32) -> u32 {
        n - 1
    }

    fn sends(&self, step: u32, i: u32, n: u32, send: Send<'_>) {
        send((i + 1) % n, BufferShare::part(part(2 * n - self.shift + 1, step, i, n), n), Action::Copy);
    }

    fn receive_count(&self, _step: u32, _i: u32, _n: u32) -> u32 {
        1
    }

    fn ring_part(&self, step: u32, i: u32, n: u32) -> Option<u32> {
        Some(part(2 * n - self.shift + 1, step, i, n))
    }
}

/// Returns the part that rank `i` of `n` sends in `step` if rank 0 sends part `ahead` mod `n` in step 0.
fn part(ahead: u32, step: u32, i: u32, n: u32) -> u32 {
    (i + ahead - step) % n
}

/// Returns the ring all-reduce of `bytes` as one flow of the first host, with 2(N-1) messages of S/N, each followed by
/// the propagation delay. One host represents all N hosts, because they behave identically at the same time. Returns
/// `None` for a single host, which has no peer.
///
/// # Source
/// Gao (2020), eq. 4.1; Patarasuk & Yuan (2009).
pub fn lock_step(hosts: &[u32], bytes: Bytes, band: Band, stream: u32, hold: Time) -> Option<Flow> {
    let host_count = hosts.len() as u32;
    (host_count > 1).then(|| Flow {
        src: HostId(hosts[0]),
        dst: HostId(hosts[1]),
        bytes,
        rounds: 2 * (host_count - 1),
        parts: host_count,
        counted: Bytes(bytes.0 / u64::from(host_count)),
        hold,
        band,
        stream,
        connection: Connection::Stream,
        part: None,
        announced: None,
        listed: None,
    })
}
