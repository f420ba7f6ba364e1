//! What each op waits for, in all iterations that are under way at one time.

use crate::dag::{Dag, Edge, Edges, OpId};

/// Iterations that rank classes can be in at one time. A class begins iteration k + 2 only when it has done what needed
/// every transfer of iteration k, so the slowest has nothing of iteration k left but what comes behind that, and none
/// can be three ahead of another. Without transfers nothing is waited for, and all slots are alike.
pub const SLOTS: usize = 3;

/// Where an iteration keeps what its ops wait for.
pub fn slot(iteration: u32) -> usize {
    iteration as usize % SLOTS
}

/// Marks what belongs to another iteration than the op that it is listed with.
const OTHER: u32 = 1 << 31;

/// An op, or a transfer, of an op's own iteration or of the one beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Near {
    /// Which.
    pub index: u32,
    /// Whether it is of the next iteration, or of the one before.
    pub is_of_other: bool,
}

impl Near {
    fn of(word: u32) -> Self {
        Self { index: word & !OTHER, is_of_other: word & OTHER != 0 }
    }
}

/// Ops that each op still waits for.
#[derive(Debug)]
pub struct Waits {
    /// Ops that wait for each op.
    after: Edges,
    /// Transfers that each compute op is the first of its program to need.
    first_uses: Edges,
    /// Ops that each op waits for in an iteration.
    counts: Vec<u32>,
    /// Those that are not done: `missing[k % SLOTS]` in iteration k. What waits for an op of several workers waits for
    /// all of them; what a compute op of several workers waits for is done for all of them or for none.
    missing: [Vec<u32>; SLOTS],
    /// Programs and transfers of each iteration that have not ended.
    left: [u32; SLOTS],
    left_of_all: u32,
    /// The iteration that each slot is of.
    serves: [u32; SLOTS],
    /// Programs of each iteration that have not ended.
    programs_left: [u32; SLOTS],
    worker_count: u32,
}

impl Waits {
    /// Nothing is done, and all that the first iteration waits for of one before it is.
    pub fn new(dag: &Dag, worker_count: usize) -> Self {
        assert!(dag.ops.len() < OTHER as usize, "ops leave a bit free");
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
                after.push((source, target | OTHER));
                across[target as usize] += times;
            }
        }
        let counts: Vec<u32> = within.iter().zip(across).map(|(&within, across)| within + across).collect();
        let (worker_count, left_of_all) = (worker_count as u32, worker_count as u32 + dag.transfers.len() as u32);
        Self {
            after: Edges::new(op_count, &after),
            first_uses: Edges::new(op_count, &first_uses(dag)),
            missing: [within, counts.clone(), counts.clone()],
            counts,
            left: [left_of_all; SLOTS],
            left_of_all,
            serves: [0, 1, 2],
            programs_left: [worker_count; SLOTS],
            worker_count,
        }
    }

    /// Whether all that an op waits for is done.
    #[inline]
    pub fn is_ready(&self, slot: usize, op: OpId) -> bool {
        self.missing[slot][op as usize] == 0
    }

    /// How many ops wait for an op.
    #[inline]
    pub fn waiting_count(&self, op: OpId) -> usize {
        self.after.from(op).len()
    }

    /// An op of an iteration is done: who waited for it, `place` among them, and whether for nothing else.
    #[inline]
    pub fn release(&mut self, op: OpId, slot: usize, place: usize) -> (Near, bool) {
        let near = Near::of(self.after.from(op)[place]);
        let slot = if near.is_of_other { (slot + 1) % SLOTS } else { slot };
        let missing = &mut self.missing[slot][near.index as usize];
        *missing -= 1;
        (near, *missing == 0)
    }

    /// A program or a transfer of an iteration has ended. After the last, what waits for the iteration after next but
    /// one can be counted.
    pub fn on_end(&mut self, slot: usize) {
        self.left[slot] -= 1;
        if self.left[slot] == 0 {
            self.left[slot] = self.left_of_all;
            self.serves[slot] += SLOTS as u32;
            self.missing[slot].copy_from_slice(&self.counts);
        }
    }

    /// A worker has ended the program of an iteration; whether it is the last.
    pub fn on_program_end(&mut self, slot: usize) -> bool {
        self.on_end(slot);
        self.programs_left[slot] -= 1;
        let is_last = self.programs_left[slot] == 0;
        if is_last {
            self.programs_left[slot] = self.worker_count;
        }
        is_last
    }

    /// Whether what waits for an iteration is counted, so that its ops may begin: the one in its slot before is over.
    /// Without transfers nothing is waited for.
    pub fn can_begin(&self, iteration: u32) -> bool {
        self.serves[slot(iteration)] == iteration || self.left_of_all == self.worker_count
    }

    /// Transfers that a compute op is the first of its program to need, of its own iteration or of the one before.
    #[inline]
    pub fn first_uses(&self, op: OpId) -> impl Iterator<Item = Near> {
        self.first_uses.from(op).iter().map(|&word| Near::of(word))
    }

    /// Ops that wait in an iteration.
    pub fn missing_count(&self, slot: usize) -> usize {
        self.missing[slot].iter().filter(|&&count| count > 0).count()
    }
}

/// A program that uses a transfer in its own iteration needs it no more in the next.
fn first_uses(dag: &Dag) -> Vec<Edge> {
    let mut uses = Vec::new();
    for transfer in 0..dag.transfers.len() as u32 {
        let op = dag.transfer_op(transfer);
        let mut users: Vec<usize> = Vec::new();
        for (readers, word) in [(dag.within.from(op), transfer), (dag.across.from(op), transfer | OTHER)] {
            let mut readers: Vec<OpId> = readers.iter().copied().filter(|&reader| reader < dag.compute_count).collect();
            readers.sort_unstable();
            let known = users.len();
            for reader in readers {
                // Programs lie one behind the other.
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
