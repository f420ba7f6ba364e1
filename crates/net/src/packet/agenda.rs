//! Which link delivers next: a tournament over the links' earliest arrivals.
//!
//! One leaf per link; an inner node holds the winner of its two children. Changing a leaf replays the matches on its
//! way up, log2(links) of them, with no search and no allocation.

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

    /// Appends, in ascending order, every link whose earliest arrival comes before `end_ps`.
    pub fn links_before(&self, end_ps: u64, found: &mut Vec<u32>) {
        if self.times[1] < end_ps {
            self.collect(1, end_ps, found);
        }
    }

    fn collect(&self, node: usize, end_ps: u64, found: &mut Vec<u32>) {
        if node >= self.leaf_count {
            found.push((node - self.leaf_count) as u32);
            return;
        }
        for child in [2 * node, 2 * node + 1] {
            if self.times[child] < end_ps {
                self.collect(child, end_ps, found);
            }
        }
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
    fn the_links_before_an_instant_come_in_ascending_order() {
        let mut agenda = Agenda::new(5);
        assert_eq!(agenda.next_ps(), u64::MAX);
        for (link, at) in [(4, 7), (1, 9), (3, 7), (0, 8), (2, 7)] {
            agenda.set(link, at);
        }
        let before = |agenda: &Agenda, end_ps| {
            let mut found = Vec::new();
            agenda.links_before(end_ps, &mut found);
            found
        };
        assert_eq!(agenda.next_ps(), 7);
        assert_eq!(before(&agenda, 7), []);
        assert_eq!(before(&agenda, 8), [2, 3, 4]);
        assert_eq!(before(&agenda, 9), [0, 2, 3, 4]);
        agenda.set(0, u64::MAX);
        assert_eq!(before(&agenda, u64::MAX), [1, 2, 3, 4]);
    }
}
