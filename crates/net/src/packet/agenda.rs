//! Which link delivers next: a tournament over the links' earliest arrivals.
//!
//! One leaf per link; an inner node holds the winner of its two children. Changing a leaf replays the matches on its
//! way up, log2(links) of them, with no search and no allocation. Links that
//! deliver at one instant are handed out together, for the caller to order.

/// The tournament.
#[derive(Debug)]
pub(crate) struct Agenda {
    /// Node 1 is the root, leaves start at `leaf_count`: the time of the earliest arrival below each.
    times: Vec<u64>,
    leaf_count: usize,
}

impl Agenda {
    /// No link has anything under way.
    pub fn new(link_count: usize) -> Self {
        let leaf_count = link_count.next_power_of_two().max(2);
        Self { times: vec![u64::MAX; 2 * leaf_count], leaf_count }
    }

    /// The earliest arrival, `u64::MAX` if there is none.
    #[inline]
    pub fn next_ps(&self) -> u64 {
        self.times[1]
    }

    /// The link of the earliest arrival, or `None` if several deliver at that instant.
    #[inline]
    pub fn link(&self) -> Option<usize> {
        let at = self.times[1];
        let mut node = 1;
        while node < self.leaf_count {
            node *= 2;
            let left = self.times[node] == at;
            if left && self.times[node + 1] == at {
                return None;
            }
            node += usize::from(!left);
        }
        Some(node - self.leaf_count)
    }

    /// Appends all links that deliver at the earliest instant.
    pub fn links(&self, found: &mut Vec<u32>) {
        self.collect(1, found);
    }

    fn collect(&self, node: usize, found: &mut Vec<u32>) {
        if self.times[node] != self.times[1] {
            return;
        }
        if node >= self.leaf_count {
            found.push((node - self.leaf_count) as u32);
            return;
        }
        self.collect(2 * node, found);
        self.collect(2 * node + 1, found);
    }

    /// `link` next delivers at `at_ps`.
    #[inline]
    pub fn set(&mut self, link: usize, at_ps: u64) {
        let mut node = self.leaf_count + link;
        self.times[node] = at_ps;
        while node > 1 {
            let winner = self.times[node].min(self.times[node ^ 1]);
            node /= 2;
            if self.times[node] == winner {
                return;
            }
            self.times[node] = winner;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_wins_and_equals_come_together() {
        let mut agenda = Agenda::new(5);
        assert_eq!(agenda.next_ps(), u64::MAX);
        for (link, at) in [(4, 7), (1, 9), (3, 7), (0, 8), (2, 7)] {
            agenda.set(link, at);
        }
        let mut found = Vec::new();
        assert_eq!((agenda.next_ps(), agenda.link()), (7, None));
        agenda.links(&mut found);
        assert_eq!(found, [2, 3, 4]);
        for link in found {
            agenda.set(link as usize, 10);
        }
        assert_eq!((agenda.next_ps(), agenda.link()), (8, Some(0)));
        agenda.set(0, u64::MAX);
        assert_eq!((agenda.next_ps(), agenda.link()), (9, Some(1)));
    }
}
