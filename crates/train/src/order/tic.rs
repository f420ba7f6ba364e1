//! Timing-independent communication scheduling (TIC).

use super::needs::Needs;

/// Returns the priority of each transfer, which is the number of transfers with a strictly smaller M+ (TicTac,
/// Algorithm 2, as in the released code).
///
/// In TIC every transfer takes time 1. M of an op is the total time of the transfers that it needs, and M+ of a
/// transfer is the smallest M of the ops that need it and at least one other transfer. Only joins right below the
/// transfer are considered, because joins further down need more transfers. A transfer that no join needs has an
/// infinite M+ and is last.
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
