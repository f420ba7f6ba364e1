//! What the released code of TicTac does where its paper leaves the order open: TAC's ties. Only comparisons with that code
//! need it; [`tac`](super::tac::tac) itself takes the smallest id.

pub mod cpython_sort;

use super::needs::{Needs, Recv};
use super::tac::Outstanding;
use gradtide_watch::look;

/// TAC with the ties of the released code: every round sorts the list that the round before left, stably, and takes its
/// head.
pub fn tac(needs: &Needs, work_ticks: &[u64]) -> Vec<Recv> {
    let mut listed = needs.discovered.clone();
    Outstanding::new(needs, work_ticks).order_by(needs.recv_count(), |state| {
        let m_plus = state.m_plus();
        let candidate = |recv: Recv| {
            look();
            state.candidate(recv, m_plus[recv as usize])
        };
        cpython_sort::sort(&mut listed, |&a, &b| candidate(a).is_before(&candidate(b)));
        listed.remove(0)
    })
}
