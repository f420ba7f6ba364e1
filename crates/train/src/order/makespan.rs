//! Duration of a worker's iteration in which the transfers arrive in a given order.

use super::needs::{Needs, Recv};
use gradtide_watch::check_cancelled;

/// Evaluates orders of the transfers of one DAG. Its arrays are reused between calls.
///
/// In the model, one channel sends the transfers back to back, one compute resource is never idle while an op is ready,
/// and nothing is preempted. Let T_k be the time of the first k transfers, and w_k the compute time of the ops whose
/// last transfer is the k-th. Then `F_0 = w_0`, `F_k = max(F_(k-1), T_k) + w_k`, and the makespan of n transfers is
/// F_n. It does not depend on the order of ready ops.
#[derive(Debug)]
pub struct Scorer<'a> {
    needs: &'a Needs,
    last: Vec<u32>,
    work: Vec<u64>,
}

impl<'a> Scorer<'a> {
    /// Creates a scorer for orders of the transfers of `needs`.
    pub fn new(needs: &'a Needs) -> Self {
        Self { needs, last: vec![0; needs.work_ticks.len()], work: vec![0; needs.recv_count()] }
    }

    /// Returns the effort of one evaluation, in the steps that the budgets of searches count.
    pub fn cost(&self) -> u64 {
        (self.last.len() + self.needs.parents.iter().map(Vec::len).sum::<usize>()) as u64
    }

    /// Returns the makespan in ticks of `order`, a permutation of the transfers.
    pub fn makespan(&mut self, order: &[Recv]) -> u64 {
        let (needs, mut sent) = (self.needs, 0);
        self.makespan_at(
            order,
            order.iter().map(|&recv| {
                sent += needs.recv_ticks[recv as usize];
                sent
            }),
        )
    }

    /// Returns the makespan in ticks if the transfers arrive in `order` at the times `arrivals`, also in ticks.
    pub fn makespan_at(&mut self, order: &[Recv], arrivals: impl IntoIterator<Item = u64>) -> u64 {
        check_cancelled();
        let recv_count = order.len();
        for (rank, &recv) in order.iter().enumerate() {
            self.last[recv as usize] = rank as u32;
            self.work[rank] = self.needs.work_ticks[recv as usize];
        }
        for (join, parents) in self.needs.parents.iter().enumerate() {
            let last = parents.iter().fold(0, |last, &parent| last.max(self.last[parent as usize]));
            self.last[recv_count + join] = last;
            self.work[last as usize] += self.needs.work_ticks[recv_count + join];
        }
        let mut done = self.needs.free_ticks;
        for (arrival, &work) in arrivals.into_iter().zip(&self.work) {
            done = done.max(arrival) + work;
        }
        done
    }
}
