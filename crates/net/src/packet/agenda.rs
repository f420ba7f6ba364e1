//! Which link delivers next: a tournament over the links' earliest arrivals.
//!
//! One leaf per link; an inner node holds the winner of its two children. Changing a leaf replays the matches on its
//! way up, log2(links) of them, with no search and no allocation. Ties are rare, and settled only when
//! they come up.

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

    /// The link of the earliest arrival; of several at one instant, that of the least `order`.
    #[inline]
    pub fn link<T: Ord>(&self, order: impl Fn(usize) -> T) -> usize {
        let at = self.times[1];
        let mut node = 1;
        while node < self.leaf_count {
            node *= 2;
            let left = self.times[node] == at;
            if left && self.times[node + 1] == at {
                return self.first_of_equals(node / 2, at, &order);
            }
            node += usize::from(!left);
        }
        node - self.leaf_count
    }

    fn first_of_equals<T: Ord>(&self, node: usize, at_ps: u64, order: &impl Fn(usize) -> T) -> usize {
        if node >= self.leaf_count {
            return node - self.leaf_count;
        }
        let (left, right) = (2 * node, 2 * node + 1);
        if self.times[left] != at_ps {
            return self.first_of_equals(right, at_ps, order);
        }
        let first = self.first_of_equals(left, at_ps, order);
        if self.times[right] != at_ps {
            return first;
        }
        let second = self.first_of_equals(right, at_ps, order);
        if order(second) < order(first) { second } else { first }
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
    fn the_earliest_wins_and_of_equals_the_least_in_order() {
        let mut agenda = Agenda::new(5);
        assert_eq!(agenda.next_ps(), u64::MAX);
        for (link, at) in [(4, 7), (1, 9), (3, 7), (0, 8), (2, 7)] {
            agenda.set(link, at);
        }
        let mut order = Vec::new();
        while agenda.next_ps() != u64::MAX {
            let link = agenda.link(|link| [0, 0, 5, 9, 7][link]);
            order.push((agenda.next_ps(), link));
            agenda.set(link, u64::MAX);
        }
        assert_eq!(order, [(7, 2), (7, 4), (7, 3), (8, 0), (9, 1)]);
    }
}
