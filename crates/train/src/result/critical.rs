//! The critical path of an iteration, and the causes of all gaps in compute.

use crate::dag::{Dag, OpId};
use gradtide_net::Time;
use std::cmp::Reverse;

/// Start and end of an op in an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Start of the op; for a transfer, the start of its first chunk.
    pub start: Time,
    /// End of the op; for a transfer, the end of its last chunk.
    pub end: Time,
}

/// An executed iteration, with the possible causes of each op's start. They are the dependencies of the op, the
/// previous op of its compute stream, and the previous transfer of its send queue.
pub struct Causes<'a> {
    dag: &'a Dag,
    spans: &'a [Span],
    starts: Vec<u32>,
    sources: Vec<OpId>,
}

impl<'a> Causes<'a> {
    /// Collects the causes. `spans` has one entry per op of `dag`.
    pub fn new(dag: &'a Dag, spans: &'a [Span]) -> Self {
        let mut pairs: Vec<(OpId, OpId)> = Vec::new();
        for source in 0..dag.ops.len() as OpId {
            pairs.extend(dag.within.from(source).iter().map(|&target| (target, source)));
        }
        for program in &dag.programs {
            pairs.extend(program.ops.clone().skip(1).map(|op| (op, op - 1)));
        }
        let mut queued: Vec<OpId> = (dag.compute_count..dag.ops.len() as OpId).collect();
        let communicator = |op: OpId| dag.transfers[(op - dag.compute_count) as usize].communicator;
        queued.sort_by_key(|&op| (communicator(op), spans[op as usize].start, spans[op as usize].end, op));
        // Two transfers that begin at the same time do not wait for each other. Without this condition the causes could
        // have a cycle.
        let is_behind = |pair: &&[OpId]| {
            communicator(pair[0]) == communicator(pair[1])
                && spans[pair[0] as usize].start < spans[pair[1] as usize].start
        };
        pairs.extend(queued.windows(2).filter(is_behind).map(|pair| (pair[1], pair[0])));
        pairs.sort_unstable();
        let mut starts = vec![0_u32; dag.ops.len() + 1];
        pairs.iter().for_each(|&(target, _)| starts[target as usize + 1] += 1);
        for index in 0..dag.ops.len() {
            starts[index + 1] += starts[index];
        }
        Self { dag, spans, starts, sources: pairs.into_iter().map(|(_, source)| source).collect() }
    }

    /// Returns the critical path: the ops that lead to the end of the iteration, in order of time. Each op is preceded
    /// by its possible cause that ended last. Ties go to compute ops, so a transfer is on the path only if it ended
    /// later than all compute ops among the causes.
    pub fn critical_path(&self) -> Vec<OpId> {
        let mut path: Vec<OpId> = (0..self.dag.ops.len() as OpId).max_by_key(|&op| self.ends(op)).into_iter().collect();
        while let Some(before) = path.last().and_then(|&op| self.last_before(op, |_| true)) {
            path.push(before);
        }
        path.reverse();
        path
    }

    /// Returns the gaps in the compute of each program since `began`, with their causes. The cause of a gap is the
    /// transfer that ended last among the dependencies of the next op. The part of the gap before this transfer could
    /// begin is attributed to the transfer's own last cause, and so on, as long as the causes are transfers of the same
    /// ranks. The cause of the rest is `None`: other ranks were not ready. `is_own` returns whether the ranks of a
    /// program take part in a transfer.
    pub fn waits(&self, began: Time, is_own: impl Fn(usize, OpId) -> bool) -> Vec<(Time, Option<OpId>)> {
        let mut waits = Vec::new();
        for (index, program) in self.dag.programs.iter().enumerate() {
            let mut free_at = began;
            for op in program.ops.clone() {
                let Span { start, end } = self.spans[op as usize];
                if start > free_at {
                    let is_own =
                        |op| if op < self.dag.compute_count { program.ops.contains(&op) } else { is_own(index, op) };
                    self.split(op, free_at, is_own, &mut waits);
                }
                free_at = end;
            }
        }
        waits
    }

    /// Splits the gap between `free_at` and the start of a compute op among its causes.
    fn split(&self, op: OpId, free_at: Time, is_own: impl Fn(OpId) -> bool, waits: &mut Vec<(Time, Option<OpId>)>) {
        let mut until = self.spans[op as usize].start;
        let mut cause = self.last_before(op, |before| before >= self.dag.compute_count);
        while let Some(transfer) = cause.filter(|&before| before >= self.dag.compute_count && is_own(before)) {
            cause = self.last_before(transfer, |_| true);
            let from = cause.map_or(free_at, |before| self.spans[before as usize].end.max(free_at)).min(until);
            waits.push((until - from, Some(transfer)));
            until = from;
        }
        if until > free_at {
            waits.push((until - free_at, None));
        }
    }

    /// Returns the cause that ended last before the op's start, among the possible causes of the op for which `wanted`
    /// returns `true`.
    fn last_before(&self, op: OpId, wanted: impl Fn(OpId) -> bool) -> Option<OpId> {
        let start = self.spans[op as usize].start;
        let range = self.starts[op as usize] as usize..self.starts[op as usize + 1] as usize;
        let before = self.sources[range].iter().copied();
        before.filter(|&other| wanted(other) && self.spans[other as usize].end <= start).max_by_key(|&op| self.ends(op))
    }

    fn ends(&self, op: OpId) -> (Time, Reverse<OpId>) {
        (self.spans[op as usize].end, Reverse(op))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dag::{DagOp, Edges, OpKind, Program, Transfer};
    use gradtide_net::Bytes;

    /// Returns a DAG with compute ops 0 and 1 of one class, ops 2 and 3 of another class, and a transfer for each entry
    /// of `communicators`.
    fn dag(communicators: &[u32], within: &[(OpId, OpId)]) -> Dag {
        let op_count = 4 + communicators.len();
        let program = |ops: std::ops::Range<OpId>| Program { forward: ops.start, backward: ops.start, ops };
        let transfer = |&communicator: &u32| Transfer { first_layer: 0, bytes: Bytes(1), communicator };
        Dag {
            ops: vec![DagOp::new(OpKind::Compute(0), Time::ZERO); op_count],
            programs: vec![program(0..2), program(2..4)],
            compute_count: 4,
            layer_count: 0,
            transfers: communicators.iter().map(transfer).collect(),
            within: Edges::new(op_count, within),
            across: Edges::new(op_count, &[]),
        }
    }

    fn spans(times: &[(u64, u64)]) -> Vec<Span> {
        times.iter().map(|&(start, end)| Span { start: Time::from_ps(start), end: Time::from_ps(end) }).collect()
    }

    fn path(dag: &Dag, times: &[(u64, u64)]) -> Vec<OpId> {
        Causes::new(dag, &spans(times)).critical_path()
    }

    #[test]
    fn it_goes_over_a_send_to_another_class() {
        let dag = dag(&[0], &[(0, 4), (4, 3)]);
        let path = path(&dag, &[(0, 5), (5, 6), (0, 2), (8, 12), (5, 8)]);
        assert_eq!(path, [0, 4, 3]);
    }

    #[test]
    fn a_transfer_that_compute_covers_is_not_on_it() {
        let dag = dag(&[0], &[(0, 4), (4, 3)]);
        let path = path(&dag, &[(0, 5), (5, 6), (0, 8), (8, 12), (5, 8)]);
        assert_eq!(path, [2, 3]);
    }

    #[test]
    fn a_transfer_waits_for_the_one_before_it_in_its_queue_alone() {
        let times = [(0, 1), (1, 2), (0, 1), (9, 10), (1, 6), (6, 9), (1, 7)];
        let edges = [(0, 4), (1, 5), (0, 6), (5, 3)];
        assert_eq!(path(&dag(&[0, 0, 1], &edges), &times), [0, 4, 5, 3]);
    }

    #[test]
    fn a_gap_is_for_the_last_transfer_that_the_next_op_needs() {
        let dag = dag(&[0, 1], &[(0, 4), (0, 5), (4, 3), (5, 3)]);
        let times = spans(&[(2, 5), (5, 6), (0, 2), (9, 12), (5, 8), (5, 9)]);
        let waits = Causes::new(&dag, &times).waits(Time::ZERO, |_, _| true);
        assert_eq!(waits, [(Time::from_ps(2), None), (Time::from_ps(4), Some(5)), (Time::from_ps(3), None)]);
    }

    #[test]
    fn a_gap_is_split_among_transfers_that_follow_one_another() {
        let dag = dag(&[0, 1], &[(0, 4), (4, 5), (5, 3)]);
        let times = spans(&[(0, 5), (5, 6), (0, 2), (11, 12), (5, 9), (9, 11)]);
        let waits = Causes::new(&dag, &times).waits(Time::ZERO, |_, _| true);
        assert_eq!(waits, [(Time::from_ps(2), Some(5)), (Time::from_ps(4), Some(4)), (Time::from_ps(3), None)]);
    }
}
