//! The criterion for max-min fair rates (Bertsekas & Gallager): no link exceeds its capacity, and each flow has a
//! bottleneck link.
//!
//! Shared by `tests/maxmin.rs` and the targets of `fuzz`.

use gradtide_net::maxmin::{LinkId, PARTS};

/// Checks the rates of flows, which are given as pairs of a rate and the links of the flow.
pub fn check(capacities: &[u64], flows: &[(u64, &[LinkId])]) {
    let mut used = vec![0; capacities.len()];
    let mut fastest = vec![0; capacities.len()];
    let mut count = vec![0; capacities.len()];
    for &(rate, path) in flows {
        for link in path {
            let link = link.0 as usize;
            used[link] += rate;
            fastest[link] = rate.max(fastest[link]);
            count[link] += 1;
        }
    }
    for (link, capacity) in capacities.iter().enumerate() {
        assert!(used[link] <= capacity * PARTS, "link {link} is above its capacity");
    }
    for &(rate, path) in flows {
        // Levels are rounded down, so a full link may have less than one part per flow left.
        let full = |link: &LinkId| {
            let link = link.0 as usize;
            rate == fastest[link] && capacities[link] * PARTS - used[link] < count[link]
        };
        assert!(path.iter().any(full), "a flow of {rate} has no bottleneck");
    }
}
