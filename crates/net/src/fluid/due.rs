//! An indexed heap: a priority queue of numbers (such as group indices) by time, with the earliest time first.

/// A 4-ary heap (Johnson 1975). An entry consists of a time and, in the lowest 32 bits, its number, so that equal times
/// are ordered by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Due {
    heap: Vec<u128>,
    /// Position in the heap, by number.
    places: Vec<u32>,
}

const BRANCHES: usize = 4;
/// Position of a number that is not in the heap.
const NOWHERE: u32 = u32::MAX;

/// Exclusive upper bound of times.
pub(super) const NEVER: u128 = u128::MAX >> 32;

impl Due {
    /// Returns the earliest time; [`NEVER`] if the heap is empty.
    #[inline]
    pub fn first_at(&self) -> u128 {
        self.heap.first().map_or(NEVER, |entry| entry >> 32)
    }

    /// Sets the time of `number`.
    #[inline]
    pub fn set(&mut self, number: u32, at: u128) {
        let entry = at << 32 | u128::from(number);
        if self.places.len() <= number as usize {
            self.places.resize(number as usize + 1, NOWHERE);
        }
        let mut place = self.places[number as usize] as usize;
        if place == NOWHERE as usize {
            place = self.heap.len();
            self.heap.push(entry);
        } else {
            let before = std::mem::replace(&mut self.heap[place], entry);
            if entry > before {
                return self.sift_down(place);
            }
        }
        self.sift_up(place);
    }

    /// Removes `number`.
    #[inline]
    pub fn remove(&mut self, number: u32) {
        let Some(&place) = self.places.get(number as usize) else { return };
        if place == NOWHERE {
            return;
        }
        self.places[number as usize] = NOWHERE;
        let last = self.heap.pop().expect("it is in the heap");
        if (place as usize) < self.heap.len() {
            let before = std::mem::replace(&mut self.heap[place as usize], last);
            if last > before { self.sift_down(place as usize) } else { self.sift_up(place as usize) }
        }
    }

    /// Removes all numbers with times up to `at` and appends them to `numbers`, in no particular order.
    pub fn take(&mut self, at: u128, numbers: &mut Vec<u32>) {
        let begin = numbers.len();
        let last = at << 32 | u128::from(u32::MAX);
        if self.first_at() <= at {
            numbers.push(0);
        }
        // The loop first collects positions in the heap. If an entry is later than `at`, so are all entries below it.
        let mut visited = begin;
        while visited < numbers.len() {
            let first = BRANCHES * numbers[visited] as usize + 1;
            let below = first.min(self.heap.len())..(first + BRANCHES).min(self.heap.len());
            numbers.extend(below.filter(|&place| self.heap[place] <= last).map(|place| place as u32));
            visited += 1;
        }
        numbers[begin..].iter_mut().for_each(|place| *place = self.heap[*place as usize] as u32);
        let count = numbers.len() - begin;
        if count <= self.heap.len() / 8 {
            numbers[begin..].iter().for_each(|&number| self.remove(number));
            return;
        }
        numbers[begin..].iter().for_each(|&number| self.places[number as usize] = NOWHERE);
        self.heap.retain(|&entry| entry > last);
        for place in 0..self.heap.len() {
            self.places[self.heap[place] as u32 as usize] = place as u32;
        }
        for place in (0..self.heap.len().div_ceil(BRANCHES)).rev() {
            self.sift_down(place);
        }
    }

    fn put(&mut self, place: usize, entry: u128) {
        self.heap[place] = entry;
        self.places[entry as u32 as usize] = place as u32;
    }

    fn sift_up(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 {
            let above = (place - 1) / BRANCHES;
            if self.heap[above] <= entry {
                break;
            }
            self.put(place, self.heap[above]);
            place = above;
        }
        self.put(place, entry);
    }

    fn sift_down(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let first = BRANCHES * place + 1;
            let below = first..(first + BRANCHES).min(self.heap.len());
            let Some(least) = below.min_by_key(|&place| self.heap[place]) else { break };
            if self.heap[least] >= entry {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn it_equals_a_map_and_its_minimum() {
        let (mut due, mut map) = (Due::default(), BTreeMap::new());
        let mut state = 1_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            let number = draw(100) as u32;
            match draw(10) {
                0 => {
                    due.remove(number);
                    map.remove(&number);
                }
                1 if !map.is_empty() => {
                    let first = *map.values().min().unwrap();
                    let mut taken = Vec::new();
                    due.take(first, &mut taken);
                    taken.sort_unstable();
                    let expected: Vec<u32> = map.iter().filter(|&(_, &at)| at == first).map(|(&n, _)| n).collect();
                    assert_eq!(taken, expected);
                    map.retain(|_, &mut at| at != first);
                }
                _ => {
                    let at = u128::from(draw(if number < 50 { 5 } else { 1000 })) << 70;
                    due.set(number, at);
                    map.insert(number, at);
                }
            }
            assert_eq!(due.first_at(), map.values().min().copied().unwrap_or(NEVER));
        }
    }
}
