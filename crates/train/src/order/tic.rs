//! Timing-independent communication scheduling.

use super::needs::Needs;

/// Priority of each transfer: how many transfers have a strictly smaller M+ (TicTac, Algorithm 2, as released).
///
/// M+ of a transfer is the least M of an op that needs it and others, M the time of all that an op needs, and every
/// transfer takes 1. The least is found at a join right below the transfer: whatever needs more comes later. A
/// transfer that no join needs has an infinite M+, and shares the last place.
pub fn tic(needs: &Needs) -> Vec<u32> {
    let recv_count = needs.recv_count();
    let mut m_plus = vec![u32::MAX; recv_count];
    for (parents, &count) in needs.parents.iter().zip(&needs.counts) {
        for &parent in parents.iter().filter(|&&parent| (parent as usize) < recv_count) {
            let least = &mut m_plus[parent as usize];
            *least = (*least).min(count);
        }
    }
    let mut sorted = m_plus.clone();
    sorted.sort_unstable();
    m_plus.iter().map(|value| sorted.partition_point(|other| other < value) as u32).collect()
}
