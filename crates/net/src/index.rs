//! From what a caller can hash and compare to its number: open addressing with linear probing (Knuth 6.4, algorithms L
//! and R). Never walked through, so no order depends on a hash, and no hash on the machine.

/// Nothing here.
const EMPTY: u32 = u32::MAX;

/// Numbers of things that the caller keeps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    slots: Vec<u32>,
    count: usize,
}

/// Hash of some words: all bits count, and the upper ones are spread best.
#[inline]
pub(crate) fn hash(words: impl IntoIterator<Item = u32>) -> u32 {
    // Fibonacci hashing (Knuth 6.4), word by word, the upper half folded in so that every bit reaches every other.
    let mixed = words.into_iter().fold(0_u64, |mixed, word| {
        let product = (mixed ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ (product >> 32)
    });
    mixed as u32
}

impl Index {
    #[inline]
    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    /// The number of this hash for which `is_it` holds.
    #[inline]
    pub fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let mut slot = self.home(hash);
        while self.slots[slot] != EMPTY {
            if is_it(self.slots[slot]) {
                return Some(self.slots[slot]);
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        None
    }

    /// Adds a number that is not there; `hash_of` tells the hashes of those that are.
    #[inline]
    pub fn insert(&mut self, hash: u32, number: u32, hash_of: impl Fn(u32) -> u32) {
        if 2 * (self.count + 1) > self.slots.len() {
            let larger = vec![EMPTY; (2 * self.slots.len()).max(16)];
            for known in std::mem::replace(&mut self.slots, larger) {
                if known != EMPTY {
                    self.put(hash_of(known), known);
                }
            }
        }
        self.put(hash, number);
        self.count += 1;
    }

    #[inline]
    fn put(&mut self, hash: u32, number: u32) {
        let mut slot = self.home(hash);
        while self.slots[slot] != EMPTY {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = number;
    }

    /// Removes a number that is there under this hash.
    #[inline]
    pub fn remove(&mut self, hash: u32, number: u32, hash_of: impl Fn(u32) -> u32) {
        let last = self.slots.len() - 1;
        let mut hole = self.home(hash);
        while self.slots[hole] != number {
            hole = (hole + 1) & last;
        }
        // What stands behind the hole comes forward, unless it would be before its home.
        let mut slot = hole;
        loop {
            slot = (slot + 1) & last;
            let moved = self.slots[slot];
            if moved == EMPTY {
                break;
            }
            let home = self.home(hash_of(moved));
            if (slot.wrapping_sub(home) & last) >= (slot.wrapping_sub(hole) & last) {
                self.slots[hole] = moved;
                hole = slot;
            }
        }
        self.slots[hole] = EMPTY;
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Hashes that collide, wrap round the end and leave holes, against a set.
    #[test]
    fn what_is_in_is_found_and_what_is_out_is_not() {
        for spread in [1, 3, 7, 1 << 28] {
            let hash_of = |number: u32| (number / spread).wrapping_mul(15);
            let (mut index, mut set) = (Index::default(), BTreeSet::new());
            let mut state = 1_u64;
            for _ in 0..4000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let number = (state >> 40) as u32 % 200;
                if set.insert(number) {
                    index.insert(hash_of(number), number, hash_of);
                } else {
                    set.remove(&number);
                    index.remove(hash_of(number), number, hash_of);
                }
                for number in 0..200 {
                    let found = index.find(hash_of(number), |other| other == number);
                    assert_eq!(found, set.get(&number).copied());
                }
            }
        }
    }
}
