//! The critical path: the chain of ops that decides how long an iteration takes.

use crate::dag::{Dag, OpId};
use gradtide_net::Time;
use std::cmp::Reverse;

/// When an op of one iteration began, and when it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Of a transfer, its first chunk.
    pub start: Time,
    /// Of a transfer, its last chunk.
    pub end: Time,
}

/// Ops that lead to the last end of an iteration, first what began first. Each began when the one before it had ended:
/// an op that it waits for, the op before it on its compute stream, or the transfer before it in its send queue. Of
/// several that ended last, it is a compute op rather than a transfer, so that a transfer is on the path only where
/// nothing else would have taken as long.
///
/// `spans` has one entry per op of `dag`.
pub fn critical_path(dag: &Dag, spans: &[Span]) -> Vec<OpId> {
    let before = Before::new(dag, spans);
    let ends = |&op: &OpId| (spans[op as usize].end, Reverse(op));
    let mut path: Vec<OpId> = (0..dag.ops.len() as OpId).max_by_key(ends).into_iter().collect();
    while let Some(&op) = path.last() {
        let start = spans[op as usize].start;
        // What takes no time may end when it begins: in a chain of such ops, each has one before it.
        let waited = before.of(op).filter(|&other| spans[other as usize].end <= start).max_by_key(ends);
        match waited {
            Some(other) => path.push(other),
            None => break,
        }
    }
    path.reverse();
    path
}

/// What each op may have waited for.
struct Before {
    starts: Vec<u32>,
    sources: Vec<OpId>,
}

impl Before {
    fn new(dag: &Dag, spans: &[Span]) -> Self {
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
        // Of two that begin at one instant neither waits for the other, so no chain leads back to itself.
        let is_behind = |pair: &&[OpId]| {
            communicator(pair[0]) == communicator(pair[1])
                && spans[pair[0] as usize].start < spans[pair[1] as usize].start
        };
        let in_turn = queued.windows(2).filter(is_behind);
        pairs.extend(in_turn.map(|pair| (pair[1], pair[0])));
        pairs.sort_unstable();
        let mut starts = vec![0_u32; dag.ops.len() + 1];
        pairs.iter().for_each(|&(target, _)| starts[target as usize + 1] += 1);
        for index in 0..dag.ops.len() {
            starts[index + 1] += starts[index];
        }
        Self { starts, sources: pairs.into_iter().map(|(_, source)| source).collect() }
    }

    fn of(&self, op: OpId) -> impl Iterator<Item = OpId> + '_ {
        let range = self.starts[op as usize] as usize..self.starts[op as usize + 1] as usize;
        self.sources[range].iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dag::{DagOp, Edges, OpKind, Program, Transfer};
    use gradtide_net::Bytes;

    /// Compute ops 0 and 1 of one class, 2 and 3 of another, then transfers of the communicators given.
    fn dag(communicators: &[u32], within: &[(OpId, OpId)]) -> Dag {
        let op_count = 4 + communicators.len();
        let program = |ops: std::ops::Range<OpId>| Program { forward: ops.start, backward: ops.start, ops };
        let transfer = |&communicator: &u32| Transfer { first_layer: 0, bytes: Bytes(1), communicator };
        Dag {
            ops: vec![DagOp { kind: OpKind::Compute(0), cost: Time::ZERO }; op_count],
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

    #[test]
    fn it_goes_over_a_send_to_another_class() {
        let dag = dag(&[0], &[(0, 4), (4, 3)]);
        let path = critical_path(&dag, &spans(&[(0, 5), (5, 6), (0, 2), (8, 12), (5, 8)]));
        assert_eq!(path, [0, 4, 3]);
    }

    #[test]
    fn a_transfer_that_compute_covers_is_not_on_it() {
        let dag = dag(&[0], &[(0, 4), (4, 3)]);
        let path = critical_path(&dag, &spans(&[(0, 5), (5, 6), (0, 8), (8, 12), (5, 8)]));
        assert_eq!(path, [2, 3]);
    }

    #[test]
    fn a_transfer_waits_for_the_one_before_it_in_its_queue_alone() {
        let times = spans(&[(0, 1), (1, 2), (0, 1), (9, 10), (1, 6), (6, 9), (1, 7)]);
        let edges = [(0, 4), (1, 5), (0, 6), (5, 3)];
        assert_eq!(critical_path(&dag(&[0, 0, 1], &edges), &times), [0, 4, 5, 3]);
    }
}
