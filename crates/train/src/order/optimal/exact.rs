//! Optimal order of few transfers, by dynamic programming over the subsets of transfers.

use super::super::needs::{Needs, Recv};
use gradtide_watch::check_cancelled;

/// Largest number of transfers. Arrays over their subsets take 24 MB.
pub const MAX_RECVS: usize = 20;

/// Returns the smallest makespan and an order with this makespan. Returns `None` for more than [`MAX_RECVS`] transfers.
///
/// Let T(S) be the total time of the transfers in the set S, and A(S) the compute time of the ops that need no
/// transfers outside S. The smallest time F(S) at which all these transfers and ops can be complete is
///
/// ```text
/// F(S) = min over r in S of max(F(S - r), T(S)) + A(S) - A(S - r)
/// ```
///
/// This is the recurrence of the makespan ([`Scorer`](super::super::makespan::Scorer)), over sets instead of prefixes
/// of an order.
pub fn optimum(needs: &Needs) -> Option<(u64, Vec<Recv>)> {
    let recv_count = needs.recv_count();
    if recv_count > MAX_RECVS {
        return None;
    }
    let set_count = 1_usize << recv_count;
    let mut work = vec![0_u64; set_count];
    let mut masks: Vec<usize> = (0..recv_count).map(|recv| 1 << recv).collect();
    for parents in &needs.parents {
        masks.push(parents.iter().fold(0, |mask, &parent| mask | masks[parent as usize]));
    }
    work[0] = needs.free_ticks;
    for (&mask, &ticks) in masks.iter().zip(&needs.work_ticks) {
        work[mask] += ticks;
    }
    for recv in 0..recv_count {
        for set in 0..set_count {
            if set >> recv & 1 == 1 {
                work[set] += work[set ^ 1 << recv];
            }
        }
    }
    let mut sent = vec![0_u64; set_count];
    let mut done = vec![needs.free_ticks; set_count];
    let best_last = |done: &[u64], sent: &[u64], set: usize| {
        let ends = (0..recv_count).filter(|recv| set >> recv & 1 == 1).map(|recv| {
            let before = set ^ 1 << recv;
            (done[before].max(sent[set]) + work[set] - work[before], recv)
        });
        ends.min().expect("the set is not empty")
    };
    for set in 1..set_count {
        check_cancelled();
        sent[set] = sent[set & (set - 1)] + needs.recv_ticks[set.trailing_zeros() as usize];
        done[set] = best_last(&done, &sent, set).0;
    }
    let mut order = Vec::new();
    let mut set = set_count - 1;
    while set != 0 {
        let (_, last) = best_last(&done, &sent, set);
        order.push(last as Recv);
        set ^= 1 << last;
    }
    order.reverse();
    Some((done[set_count - 1], order))
}
