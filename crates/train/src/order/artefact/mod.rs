//! The tie-breaks of TicTac's released code, which the paper leaves open. They are used only for comparisons with that
//! code. [`tac`](super::tac::tac) itself breaks ties by the smallest id.

pub mod cpython_sort;

use super::needs::{Needs, Recv};
use super::tac::Outstanding;
use gradtide_watch::check_cancelled;

/// Returns the order of TAC with the tie-breaks of the released code. In every round, this code sorts the list of the
/// previous round with a stable sort and takes its first element.
pub fn tac(needs: &Needs, work_ticks: &[u64]) -> Vec<Recv> {
    let mut listed = needs.discovered.clone();
    Outstanding::new(needs, work_ticks).order_by(needs.recv_count(), |state| {
        let m_plus = state.m_plus();
        let candidate = |recv: Recv| {
            check_cancelled();
            state.candidate(recv, m_plus[recv as usize])
        };
        cpython_sort::sort(&mut listed, |&a, &b| candidate(a).is_before(&candidate(b)));
        listed.remove(0)
    })
}
