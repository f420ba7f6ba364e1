//! The event queue: a total order, so that a run produces the same bytes on every machine.

use crate::units::Time;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A queue of events ordered by `(time, sequence)`. Simultaneous events keep the order in which they were pushed.
#[derive(Clone, Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    pushed_count: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), pushed_count: 0 }
    }
}

impl<E> EventQueue<E> {
    /// Adds an event.
    pub fn push(&mut self, at: Time, event: E) {
        self.heap.push(Entry { at, sequence: self.pushed_count, event });
        self.pushed_count += 1;
    }

    /// Returns the time of the earliest event.
    pub fn next_at(&self) -> Option<Time> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Removes and returns the earliest event, unless it is later than `until`.
    pub fn pop_until(&mut self, until: Time) -> Option<(Time, E)> {
        if self.next_at()? > until {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

#[derive(Clone, Debug)]
struct Entry<E> {
    at: Time,
    sequence: u64,
    event: E,
}

impl<E> Ord for Entry<E> {
    /// Compares in reverse, because `BinaryHeap` is a max-heap.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_are_first_in_first_out() {
        let mut queue = EventQueue::default();
        for (at, name) in [(5, 'c'), (1, 'a'), (5, 'd'), (1, 'b')] {
            queue.push(Time::from_ps(at), name);
        }
        let order: String = std::iter::from_fn(|| queue.pop_until(Time::MAX)).map(|(_, name)| name).collect();
        assert_eq!(order, "abcd");
    }

    #[test]
    fn an_event_after_until_stays() {
        let mut queue = EventQueue::default();
        queue.push(Time::from_ps(2), ());
        assert_eq!(queue.pop_until(Time::from_ps(1)), None);
        assert_eq!(queue.pop_until(Time::from_ps(2)), Some((Time::from_ps(2), ())));
    }
}
