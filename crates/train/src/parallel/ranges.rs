//! Divisions of blocks and of ranks.

use std::ops::Range;

/// Limit on the number of groups of one job. Each group has a stream, and streams from 2^16 on
/// belong to background flows.
pub(super) const GROUP_LIMIT: u64 = 1 << 15;

/// Returns consecutive ranges with these numbers of blocks.
pub(super) fn ranges(counts: &[u32]) -> Vec<Range<u32>> {
    let mut end = 0;
    let part = |&count: &u32| {
        end += count;
        end - count..end
    };
    counts.iter().map(part).collect()
}

/// Divides ranks into groups of `size` members, which are `stride` ranks apart.
pub(super) fn strided(ranks: Range<u32>, size: u32, stride: u32) -> Vec<Vec<u32>> {
    let start = ranks.start;
    let begins = ranks.filter(|rank| ((rank - start) / stride).is_multiple_of(size));
    begins.map(|begin| (0..size).map(|place| begin + place * stride).collect()).collect()
}
