//! Open dependencies of every op, in all iterations in progress.
//!
//! The successor of an op is in the same iteration (`Dag::within`) or in the next one (`Dag::across`). Slot `k % SLOTS`
//! contains the counters of iteration k.

use crate::dag::{Dag, Edge, Edges, OpId};

/// Number of iterations that can be in progress at a time. A rank class begins iteration k + 2 only after its own ops
/// that needed every transfer of iteration k. Hence ranks are at most two iterations apart, and three slots suffice.
/// Without transfers no rank waits for another, but then the counters of all slots are identical.
pub const SLOTS: usize = 3;

/// Returns the slot of an iteration's counters.
pub fn slot(iteration: u32) -> usize {
    iteration as usize % SLOTS
}

/// Flag in an edge whose source and target are in different iterations.
const OTHER_ITERATION: u32 = 1 << 31;

/// An op or a transfer that an edge connects with a given op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the op, or of the transfer in [`Waits::first_uses`].
    pub index: u32,
    /// Whether the neighbour is in another iteration: in the next one for [`Waits::release`], in the previous one for
    /// [`Waits::first_uses`].
    pub is_of_other: bool,
}

impl Neighbour {
    fn of(word: u32) -> Self {
        Self { index: word & !OTHER_ITERATION, is_of_other: word & OTHER_ITERATION != 0 }
    }
}

/// Counters of open dependencies.
#[derive(Debug)]
pub struct Waits {
    /// Edges from each op to its successors.
    after: Edges,
    /// Edges from a compute op to the transfers of which it is the first user in its program.
    first_uses: Edges,
    /// Number of dependencies of each op.
    counts: Vec<u32>,
    /// Number of open dependencies of each op in iteration k, in `missing[k % SLOTS]`. A dependency on an op that
    /// several workers execute counts once for each of these workers. A compute op that several workers execute has the
    /// same dependencies on all of them.
    missing: [Vec<u32>; SLOTS],
    /// Number of programs and transfers that have not ended, in each slot.
    left: [u32; SLOTS],
    /// Number of programs and transfers of an iteration.
    ends_per_iteration: u32,
    /// Iteration whose counters are in each slot.
    iteration_of_slot: [u32; SLOTS],
    /// Number of programs that have not ended, in each slot.
    programs_left: [u32; SLOTS],
    worker_count: u32,
}

impl Waits {
    /// Creates the counters before any op has ended. In the first iteration, dependencies on an earlier iteration are
    /// met.
    pub fn new(dag: &Dag, worker_count: usize) -> Self {
        assert!(dag.ops.len() < OTHER_ITERATION as usize, "ops leave a bit free");
        let shared = (worker_count / dag.programs.len()) as u32;
        let op_count = dag.ops.len();
        let mut after: Vec<Edge> = Vec::new();
        let (mut within, mut across) = (vec![0; op_count], vec![0; op_count]);
        for source in 0..op_count as OpId {
            let times = if source < dag.compute_count { shared } else { 1 };
            for &target in dag.within.from(source) {
                after.push((source, target));
                within[target as usize] += times;
            }
            for &target in dag.across.from(source) {
                after.push((source, target | OTHER_ITERATION));
                across[target as usize] += times;
            }
        }
        let counts: Vec<u32> = within.iter().zip(across).map(|(&within, across)| within + across).collect();
        let (worker_count, ends_per_iteration) =
            (worker_count as u32, worker_count as u32 + dag.transfers.len() as u32);
        Self {
            after: Edges::new(op_count, &after),
            first_uses: Edges::new(op_count, &first_uses(dag)),
            missing: [within, counts.clone(), counts.clone()],
            counts,
            left: [ends_per_iteration; SLOTS],
            ends_per_iteration,
            iteration_of_slot: [0, 1, 2],
            programs_left: [worker_count; SLOTS],
            worker_count,
        }
    }

    /// Returns whether all dependencies of an op are met.
    #[inline]
    pub fn is_ready(&self, slot: usize, op: OpId) -> bool {
        self.missing[slot][op as usize] == 0
    }

    /// Returns the number of successors of an op.
    #[inline]
    pub fn waiting_count(&self, op: OpId) -> usize {
        self.after.from(op).len()
    }

    /// Resolves the dependency of one successor of a finished op; `place` is the index of the successor. Returns the
    /// successor, and whether all its dependencies are met now.
    #[inline]
    pub fn release(&mut self, op: OpId, slot: usize, place: usize) -> (Neighbour, bool) {
        let neighbour = Neighbour::of(self.after.from(op)[place]);
        let slot = if neighbour.is_of_other { (slot + 1) % SLOTS } else { slot };
        let missing = &mut self.missing[slot][neighbour.index as usize];
        *missing -= 1;
        (neighbour, *missing == 0)
    }

    /// Counts a program or transfer that has ended. When all programs and transfers of the iteration have ended, the
    /// slot is reset for the iteration `SLOTS` later.
    pub fn on_end(&mut self, slot: usize) {
        self.left[slot] -= 1;
        if self.left[slot] == 0 {
            self.left[slot] = self.ends_per_iteration;
            self.iteration_of_slot[slot] += SLOTS as u32;
            self.missing[slot].copy_from_slice(&self.counts);
        }
    }

    /// Counts a worker that has ended its program. Returns whether it was the last worker of the iteration.
    pub fn on_program_end(&mut self, slot: usize) -> bool {
        self.on_end(slot);
        self.programs_left[slot] -= 1;
        let is_last = self.programs_left[slot] == 0;
        if is_last {
            self.programs_left[slot] = self.worker_count;
        }
        is_last
    }

    /// Returns whether the ops of `iteration` may begin, which requires that its slot has been reset for it. Without
    /// transfers no iteration has to wait for its slot.
    pub fn can_begin(&self, iteration: u32) -> bool {
        self.iteration_of_slot[slot(iteration)] == iteration || self.ends_per_iteration == self.worker_count
    }

    /// Returns the transfers of which `op` is the first user in its program. The transfers belong to the iteration of
    /// the op or to the previous iteration.
    #[inline]
    pub fn first_uses(&self, op: OpId) -> impl Iterator<Item = Neighbour> {
        self.first_uses.from(op).iter().map(|&word| Neighbour::of(word))
    }

    /// Returns the number of ops with open dependencies.
    pub fn missing_count(&self, slot: usize) -> usize {
        self.missing[slot].iter().filter(|&&count| count > 0).count()
    }
}

/// Returns, for each transfer and program, an edge from the transfer's first user in the program to the transfer. A
/// user in the iteration of the transfer precedes all users in the next iteration.
fn first_uses(dag: &Dag) -> Vec<Edge> {
    let mut uses = Vec::new();
    for transfer in 0..dag.transfers.len() as u32 {
        let op = dag.transfer_op(transfer);
        let mut users: Vec<usize> = Vec::new();
        for (readers, word) in [(dag.within.from(op), transfer), (dag.across.from(op), transfer | OTHER_ITERATION)] {
            let mut readers: Vec<OpId> = readers.iter().copied().filter(|&reader| reader < dag.compute_count).collect();
            readers.sort_unstable();
            let known = users.len();
            for reader in readers {
                // Programs are adjacent ranges of ops.
                let program = dag.programs.partition_point(|program| program.ops.end <= reader);
                if users[known..].last() != Some(&program) && users[..known].binary_search(&program).is_err() {
                    users.push(program);
                    uses.push((reader, word));
                }
            }
        }
    }
    uses
}
