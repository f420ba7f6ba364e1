//! CPython's `list.sort`, with the same sequence of comparisons.
//!
//! With a consistent comparator every stable sort returns the same list. TAC's comparator is not consistent if there
//! are ties, so the result of its released code depends on the sequence of comparisons. This module implements the
//! method of CPython 3.11 and 3.12, as described in its `Objects/listsort.txt`: natural runs are extended to a minimum
//! length by binary insertion, and merged in the order of Munro & Wild (2018), with galloping. Other versions may
//! differ, but only for inconsistent comparators.

const MIN_GALLOP: usize = 7;

/// Sorts `items` as `list.sort` does, with the comparison `is_less`.
pub fn sort<T: Copy>(items: &mut [T], is_less: impl Fn(&T, &T) -> bool) {
    let count = items.len();
    if count < 2 {
        return;
    }
    let least = least_run(count);
    let mut merger = Merger { runs: Vec::new(), min_gallop: MIN_GALLOP, is_less };
    let mut start = 0;
    while start < count {
        let mut length = merger.natural_run(&mut items[start..]);
        if length < least {
            let forced = least.min(count - start);
            merger.insert(&mut items[start..start + forced], length);
            length = forced;
        }
        merger.found(items, start, length);
        start += length;
    }
    while merger.runs.len() > 1 {
        let mut at = merger.runs.len() - 2;
        if at > 0 && merger.runs[at - 1].length < merger.runs[at + 1].length {
            at -= 1;
        }
        merger.merge_at(items, at);
    }
}

/// Returns the minimum length of a run. It is chosen such that `count` divided by this length is a power of two or
/// slightly less.
fn least_run(mut count: usize) -> usize {
    let mut remainder = 0;
    while count >= 64 {
        remainder |= count & 1;
        count >>= 1;
    }
    count + remainder
}

#[derive(Clone, Copy)]
struct Run {
    start: usize,
    length: usize,
    power: u32,
}

struct Merger<F> {
    runs: Vec<Run>,
    min_gallop: usize,
    is_less: F,
}

impl<F> Merger<F> {
    /// Returns the length of the run at the start of `items`. A strictly descending run is reversed.
    fn natural_run<T: Copy>(&self, items: &mut [T]) -> usize
    where
        F: Fn(&T, &T) -> bool,
    {
        if items.len() < 2 {
            return items.len();
        }
        let falls = |at: usize| (self.is_less)(&items[at], &items[at - 1]);
        let is_falling = falls(1);
        let length = (2..items.len()).find(|&at| falls(at) != is_falling).unwrap_or(items.len());
        if is_falling {
            items[..length].reverse();
        }
        length
    }

    /// Sorts `items` by binary insertion. The first `sorted` items are sorted already.
    fn insert<T: Copy>(&self, items: &mut [T], sorted: usize)
    where
        F: Fn(&T, &T) -> bool,
    {
        for at in sorted..items.len() {
            let pivot = items[at];
            let (mut low, mut high) = (0, at);
            while low < high {
                let middle = low + (high - low) / 2;
                if (self.is_less)(&pivot, &items[middle]) {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            items[low..=at].rotate_right(1);
        }
    }

    /// Registers a new run, after merging the earlier runs whose border is deeper in the merge tree than the border
    /// between the last run and the new one.
    fn found<T: Copy>(&mut self, items: &mut [T], start: usize, length: usize)
    where
        F: Fn(&T, &T) -> bool,
    {
        if let Some(last) = self.runs.last() {
            let power = power(last.start, last.length, length, items.len());
            while self.runs.len() > 1 && self.runs[self.runs.len() - 2].power > power {
                self.merge_at(items, self.runs.len() - 2);
            }
            self.runs.last_mut().expect("merging leaves one").power = power;
        }
        self.runs.push(Run { start, length, power: 0 });
    }

    /// Merges run `at` with the next one.
    fn merge_at<T: Copy>(&mut self, items: &mut [T], at: usize)
    where
        F: Fn(&T, &T) -> bool,
    {
        let (left, right) = (self.runs[at], self.runs.remove(at + 1));
        self.runs[at].length += right.length;
        let items = &mut items[left.start..right.start + right.length];
        let (a, b) = items.split_at(left.length);
        let skipped = self.gallop_right(&b[0], a, 0);
        if skipped == left.length {
            return;
        }
        let kept = self.gallop_left(&a[left.length - 1], b, right.length - 1);
        if kept == 0 {
            return;
        }
        let items = &mut items[skipped..left.length + kept];
        let middle = left.length - skipped;
        if middle <= kept {
            self.merge_low(items, middle);
        } else {
            self.merge_high(items, middle);
        }
    }

    /// Returns the insertion point of `key` in `items`, before equal items.
    fn gallop_left<T: Copy>(&self, key: &T, items: &[T], hint: usize) -> usize
    where
        F: Fn(&T, &T) -> bool,
    {
        gallop(items.len(), hint, |at| (self.is_less)(&items[at], key))
    }

    /// Returns the insertion point of `key` in `items`, after equal items.
    fn gallop_right<T: Copy>(&self, key: &T, items: &[T], hint: usize) -> usize
    where
        F: Fn(&T, &T) -> bool,
    {
        gallop(items.len(), hint, |at| !(self.is_less)(key, &items[at]))
    }

    /// Merges the first `middle` items with the rest, from the front. The first part is the shorter one.
    fn merge_low<T: Copy>(&mut self, items: &mut [T], middle: usize)
    where
        F: Fn(&T, &T) -> bool,
    {
        let left = items[..middle].to_vec();
        let (mut a, mut b, mut to) = (0, middle, 0);
        let end = items.len();
        let move_right = |items: &mut [T], b: &mut usize, to: &mut usize, count: usize| {
            items.copy_within(*b..*b + count, *to);
            *b += count;
            *to += count;
        };
        move_right(items, &mut b, &mut to, 1);
        'merge: {
            if b == end || left.len() == 1 {
                break 'merge;
            }
            loop {
                let (mut a_wins, mut b_wins) = (0, 0);
                while a_wins < self.min_gallop && b_wins < self.min_gallop {
                    if (self.is_less)(&items[b], &left[a]) {
                        move_right(items, &mut b, &mut to, 1);
                        (a_wins, b_wins) = (0, b_wins + 1);
                        if b == end {
                            break 'merge;
                        }
                    } else {
                        items[to] = left[a];
                        (a, to) = (a + 1, to + 1);
                        (a_wins, b_wins) = (a_wins + 1, 0);
                        if left.len() - a == 1 {
                            break 'merge;
                        }
                    }
                }
                self.min_gallop += 1;
                loop {
                    self.min_gallop -= usize::from(self.min_gallop > 1);
                    let a_run = self.gallop_right(&items[b], &left[a..], 0);
                    items[to..to + a_run].copy_from_slice(&left[a..a + a_run]);
                    (a, to) = (a + a_run, to + a_run);
                    if a_run > 0 && left.len() - a <= 1 {
                        break 'merge;
                    }
                    move_right(items, &mut b, &mut to, 1);
                    if b == end {
                        break 'merge;
                    }
                    let b_run = self.gallop_left(&left[a], &items[b..], 0);
                    move_right(items, &mut b, &mut to, b_run);
                    if b == end {
                        break 'merge;
                    }
                    items[to] = left[a];
                    (a, to) = (a + 1, to + 1);
                    if left.len() - a == 1 {
                        break 'merge;
                    }
                    if a_run < MIN_GALLOP && b_run < MIN_GALLOP {
                        break;
                    }
                }
                self.min_gallop += 1;
            }
        }
        // One side is exhausted. If `left` has a single item left, the rest of the right side precedes this item.
        if left.len() - a == 1 {
            let count = end - b;
            move_right(items, &mut b, &mut to, count);
        }
        items[to..to + left.len() - a].copy_from_slice(&left[a..]);
    }

    /// Merges the first `middle` items with the rest, from the back. The rest is the shorter part.
    fn merge_high<T: Copy>(&mut self, items: &mut [T], middle: usize)
    where
        F: Fn(&T, &T) -> bool,
    {
        let right = items[middle..].to_vec();
        // End positions (exclusive) of the rest of the left side, the rest of the right side, and the free part of the
        // output.
        let (mut a, mut b, mut to) = (middle, right.len(), items.len());
        let move_left = |items: &mut [T], a: &mut usize, to: &mut usize, count: usize| {
            items.copy_within(*a - count..*a, *to - count);
            *a -= count;
            *to -= count;
        };
        move_left(items, &mut a, &mut to, 1);
        'merge: {
            if a == 0 || right.len() == 1 {
                break 'merge;
            }
            loop {
                let (mut a_wins, mut b_wins) = (0, 0);
                while a_wins < self.min_gallop && b_wins < self.min_gallop {
                    if (self.is_less)(&right[b - 1], &items[a - 1]) {
                        move_left(items, &mut a, &mut to, 1);
                        (a_wins, b_wins) = (a_wins + 1, 0);
                        if a == 0 {
                            break 'merge;
                        }
                    } else {
                        items[to - 1] = right[b - 1];
                        (b, to) = (b - 1, to - 1);
                        (a_wins, b_wins) = (0, b_wins + 1);
                        if b == 1 {
                            break 'merge;
                        }
                    }
                }
                self.min_gallop += 1;
                loop {
                    self.min_gallop -= usize::from(self.min_gallop > 1);
                    let a_run = a - self.gallop_right(&right[b - 1], &items[..a], a - 1);
                    move_left(items, &mut a, &mut to, a_run);
                    if a == 0 {
                        break 'merge;
                    }
                    items[to - 1] = right[b - 1];
                    (b, to) = (b - 1, to - 1);
                    if b == 1 {
                        break 'merge;
                    }
                    let b_run = b - self.gallop_left(&items[a - 1], &right[..b], b - 1);
                    items[to - b_run..to].copy_from_slice(&right[b - b_run..b]);
                    (b, to) = (b - b_run, to - b_run);
                    if b_run > 0 && b <= 1 {
                        break 'merge;
                    }
                    move_left(items, &mut a, &mut to, 1);
                    if a == 0 {
                        break 'merge;
                    }
                    if a_run < MIN_GALLOP && b_run < MIN_GALLOP {
                        break;
                    }
                }
                self.min_gallop += 1;
            }
        }
        // One side is exhausted. If `right` has a single item left, the rest of the left side follows this item.
        if b == 1 {
            let count = a;
            move_left(items, &mut a, &mut to, count);
        }
        items[to - b..to].copy_from_slice(&right[..b]);
    }
}

/// Returns the number of items that precede the key, out of `count`. An exponential search from `hint` is followed by a
/// binary search.
fn gallop(count: usize, hint: usize, is_in_front: impl Fn(usize) -> bool) -> usize {
    let goes_up = is_in_front(hint);
    let limit = if goes_up { count - hint } else { hint + 1 };
    let (mut before, mut step) = (0, 1);
    while step < limit && is_in_front(if goes_up { hint + step } else { hint - step }) == goes_up {
        before = step;
        step = 2 * step + 1;
    }
    step = step.min(limit);
    let (mut low, mut high) = if goes_up { (hint + before + 1, hint + step) } else { (hint + 1 - step, hint - before) };
    while low < high {
        let middle = low + (high - low) / 2;
        if is_in_front(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Returns the depth of the border between two adjacent runs in the binary tree that halves the whole list.
fn power(start: usize, left: usize, right: usize, count: usize) -> u32 {
    let (mut a, mut b) = (2 * start + left, 2 * start + 2 * left + right);
    let mut power = 1;
    loop {
        if a >= count {
            a -= count;
            b -= count;
        } else if b >= count {
            return power;
        }
        a *= 2;
        b *= 2;
        power += 1;
    }
}
