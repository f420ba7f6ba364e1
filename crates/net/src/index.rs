//! A hash table that maps keys to numbers and leaves the storage of keys to its caller. It uses open addressing with
//! linear probing (Knuth 6.4, algorithms L and R). It cannot be iterated over, so no result depends on the order of
//! hashes. Hashes are the same on every machine.

/// An empty slot.
const EMPTY: u64 = u64::MAX;

/// A hash table that contains the numbers of the caller's records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// Slots with the hash in the upper half and the number in the lower half.
    slots: Vec<u64>,
    count: usize,
}

/// Returns the hash of some words.
#[inline]
pub(crate) fn hash(words: impl IntoIterator<Item = u32>) -> u32 {
    // Fibonacci hashing (Knuth 6.4), word by word. The upper half is folded in, so that every input bit reaches every
    // output bit.
    let mixed = words.into_iter().fold(0_u64, |mixed, word| {
        let product = (mixed ^ u64::from(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ (product >> 32)
    });
    mixed as u32
}

impl Index {
    #[inline]
    fn home(&self, slot: u64) -> usize {
        (slot >> 32) as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.slots.len() - 1)
    }

    /// Returns the number that was inserted under `hash` and for which `is_match` returns true.
    #[inline]
    pub fn find(&self, hash: u32, is_match: impl Fn(u32) -> bool) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let mut place = self.home(u64::from(hash) << 32);
        loop {
            let slot = self.slots[place];
            if slot == EMPTY {
                return None;
            }
            if (slot >> 32) as u32 == hash && is_match(slot as u32) {
                return Some(slot as u32);
            }
            place = self.next(place);
        }
    }

    /// Inserts a number. The number must not be in the table, and not be [`u32::MAX`].
    #[inline]
    pub fn insert(&mut self, hash: u32, number: u32) {
        if 4 * (self.count + 1) > 3 * self.slots.len() {
            let larger = vec![EMPTY; (2 * self.slots.len()).max(8)];
            let known = std::mem::replace(&mut self.slots, larger);
            known.into_iter().filter(|&slot| slot != EMPTY).for_each(|slot| self.put(slot));
        }
        self.put(u64::from(hash) << 32 | u64::from(number));
        self.count += 1;
    }

    #[inline]
    fn put(&mut self, slot: u64) {
        let mut place = self.home(slot);
        while self.slots[place] != EMPTY {
            place = self.next(place);
        }
        self.slots[place] = slot;
    }

    /// Removes a number that was inserted under `hash`.
    #[inline]
    pub fn remove(&mut self, hash: u32, number: u32) {
        let slot = u64::from(hash) << 32 | u64::from(number);
        let mut hole = self.home(slot);
        while self.slots[hole] != slot {
            hole = self.next(hole);
        }
        // Moves later entries forward into the hole, unless that puts an entry before its home slot.
        let last = self.slots.len() - 1;
        let mut place = self.next(hole);
        while self.slots[place] != EMPTY {
            let home = self.home(self.slots[place]);
            if (place.wrapping_sub(home) & last) >= (place.wrapping_sub(hole) & last) {
                self.slots[hole] = self.slots[place];
                hole = place;
            }
            place = self.next(place);
        }
        self.slots[hole] = EMPTY;
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Compares the table with a `BTreeSet`, for hashes that collide, wrap around the end and leave holes.
    #[test]
    fn inserted_numbers_are_found_and_removed_ones_are_not() {
        for spread in [1, 3, 7, 1 << 28] {
            let hash_of = |number: u32| (number / spread).wrapping_mul(15);
            let (mut index, mut set) = (Index::default(), BTreeSet::new());
            let mut state = 1_u64;
            for _ in 0..4000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let number = (state >> 40) as u32 % 200;
                if set.insert(number) {
                    index.insert(hash_of(number), number);
                } else {
                    set.remove(&number);
                    index.remove(hash_of(number), number);
                }
                for number in 0..200 {
                    let found = index.find(hash_of(number), |other| other == number);
                    assert_eq!(found, set.get(&number).copied());
                }
            }
        }
    }
}
