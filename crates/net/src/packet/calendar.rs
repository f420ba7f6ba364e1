//! Every arrival to come, in order: a calendar queue (Brown 1988) whose days are no longer than a link.
//!
//! No packet arrives sooner after the event that sends it than the shortest link takes. So what happens in a day can
//! add no arrival to that day: when it begins, all its arrivals are known, and are sorted once. Until then they are
//! only appended. Ports with packets waiting are driven up to a day when it begins, which makes their arrivals in it
//! known.

use super::port::{Arrival, Order, Port};
use std::collections::BTreeMap;

/// Arrivals of one day, as they became known.
#[derive(Clone, Debug, Default)]
struct Day {
    /// Time within the day, and, in the low bits, index of the arrival.
    turns: Vec<u64>,
    arrivals: Vec<Arrival>,
    /// Their places among those of one instant, apart because only ties look at them.
    orders: Vec<Order>,
    /// Ports that are driven when the day begins.
    drives: Vec<u32>,
}

/// Bits of a turn that say which arrival.
const INDEX_BITS: u32 = 28;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// A day is to have no more arrivals than about this, for the cache: they are read in another order than they were
/// written.
const ARRIVALS: u64 = 2048;
/// Days kept in a ring; later ones are in a map.
const RING_MAX: u64 = 1024;

/// The calendar.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    /// A day has 2^shift ps.
    shift: u32,
    /// Number of the present day.
    today: u64,
    present: Day,
    /// The first turn of the present day that has not taken place.
    next: usize,
    /// The days after it: number d at d modulo the length, a power of two.
    ring: Vec<Day>,
    far: BTreeMap<u64, Day>,
    /// Number of the first day to come that has anything.
    upcoming: u64,
}

impl Day {
    fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.drives.is_empty()
    }

    #[inline]
    fn push(&mut self, within_ps: u64, order: Order, arrival: Arrival) {
        self.turns.push(within_ps << INDEX_BITS | self.arrivals.len() as u64);
        self.arrivals.push(arrival);
        self.orders.push(order);
    }

    fn sort(&mut self) {
        self.turns.sort_unstable();
        let of = |turn: &u64| {
            let index = (turn & INDEX_MASK) as usize;
            (self.orders[index], self.arrivals[index].link)
        };
        for tied in self.turns.chunk_by_mut(|one, other| one >> INDEX_BITS == other >> INDEX_BITS) {
            if let [first, second] = tied {
                // Most ties are of two.
                if of(first) > of(second) {
                    tied.swap(0, 1);
                }
            } else if tied.len() > 1 {
                tied.sort_unstable_by_key(of);
            }
        }
    }

    fn clear(&mut self) {
        self.turns.clear();
        self.arrivals.clear();
        self.orders.clear();
        self.drives.clear();
    }
}

impl Calendar {
    /// An empty calendar for `ports`, on the first day.
    pub fn new(ports: &[Port]) -> Self {
        let shortest_ps = ports.iter().map(Port::latency_ps).min().unwrap_or(1);
        let farthest_ps = ports.iter().map(Port::reach_ps).max().unwrap_or(1);
        let busiest_ps = ports.iter().map(Port::segment_ps).min().unwrap_or(1);
        let full_ps = (ARRIVALS / ports.len().max(1) as u64).max(1).saturating_mul(busiest_ps);
        let shift = shortest_ps.min(full_ps).ilog2().min(63 - INDEX_BITS);
        let day_count = ((farthest_ps >> shift) + 2).min(RING_MAX).next_power_of_two();
        Self {
            shift,
            today: 0,
            present: Day::default(),
            next: 0,
            ring: (0..day_count).map(|_| Day::default()).collect(),
            far: BTreeMap::new(),
            upcoming: u64::MAX,
        }
    }

    /// Packets, and their bytes, whose arrival is known and has not taken place.
    pub fn held(&self) -> (u64, u64) {
        let left = &self.present.turns[self.next..];
        let present = left.iter().map(|turn| &self.present.arrivals[(turn & INDEX_MASK) as usize]);
        let to_come = self.ring.iter().chain(self.far.values()).flat_map(|day| &day.arrivals);
        present
            .chain(to_come)
            .fold((0, 0), |(packets, bytes), arrival| (packets + 1, bytes + u64::from(arrival.packet.wire_bytes)))
    }

    /// Whether nothing is left of the present day.
    #[inline]
    pub fn day_is_over(&self) -> bool {
        self.next == self.present.turns.len()
    }

    /// A time before which nothing arrives: while the day is not over, when the next packet arrives.
    #[inline]
    pub fn next_ps(&self) -> u64 {
        match self.present.turns.get(self.next) {
            Some(turn) => (self.today << self.shift) + (turn >> INDEX_BITS),
            None if self.upcoming == u64::MAX => u64::MAX,
            None => self.upcoming << self.shift,
        }
    }

    /// The next arrival of the day.
    #[inline]
    pub fn pop(&mut self) -> &Arrival {
        let turn = self.present.turns[self.next];
        self.next += 1;
        &self.present.arrivals[(turn & INDEX_MASK) as usize]
    }

    /// A packet will arrive.
    #[inline]
    pub fn push(&mut self, at_ps: u64, order: Order, arrival: Arrival) {
        let within_ps = at_ps & ((1 << self.shift) - 1);
        self.day(at_ps).push(within_ps, order, arrival);
    }

    /// Port `link` has packets waiting; none of them will arrive before `at_ps`.
    #[inline]
    pub fn drive(&mut self, at_ps: u64, link: u32) {
        self.day(at_ps).drives.push(link);
    }

    #[inline]
    fn day(&mut self, at_ps: u64) -> &mut Day {
        let number = at_ps >> self.shift;
        debug_assert!(number > self.today, "a day is complete when it begins");
        self.upcoming = self.upcoming.min(number);
        let ring_length = self.ring.len() as u64;
        if number - self.today <= ring_length {
            return &mut self.ring[(number & (ring_length - 1)) as usize];
        }
        self.far.entry(number).or_default()
    }

    /// Begins the next day that has anything. Every event before it has taken place.
    pub fn begin_day(&mut self, ports: &mut [Port]) {
        let number = self.upcoming;
        let slot = (number & (self.ring.len() as u64 - 1)) as usize;
        if let Some(day) = self.far.remove(&number) {
            // Nothing is in the ring that far ahead.
            for (place, turn) in day.turns.iter().enumerate() {
                self.ring[slot].push(turn >> INDEX_BITS, day.orders[place], day.arrivals[place]);
            }
            self.ring[slot].drives.extend(day.drives);
        }
        // What the ports add to the day that begins belongs into the ring, however far ahead it was.
        self.today = number - 1;
        let mut drives = std::mem::take(&mut self.ring[slot].drives);
        // Only for memory: adjacent entries lie side by side.
        drives.sort_unstable();
        for &link in &drives {
            ports[link as usize].drive(number << self.shift, self);
        }
        self.ring[slot].drives = drives;
        self.present.clear();
        std::mem::swap(&mut self.present, &mut self.ring[slot]);
        self.present.sort();
        self.next = 0;
        self.today = number;
        let ring_length = self.ring.len() as u64;
        let near = (1..=ring_length).map(|ahead| number + ahead);
        let near = near.into_iter().find(|day| !self.ring[(day & (ring_length - 1)) as usize].is_empty());
        let far = self.far.keys().next().copied();
        self.upcoming = near.into_iter().chain(far).min().unwrap_or(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::super::port::Serialization;
    use super::super::qdisc::QueueConfig;
    use super::super::wire::Wire;
    use super::*;
    use crate::Seed;
    use crate::units::{Rate, Time};
    use proptest::prelude::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    /// Links of 10 Gbit/s with these delays.
    fn ports(delays_ps: &[u64]) -> Vec<Port> {
        let table = Serialization::new(Rate::from_bps(10_000_000_000).unwrap(), Time::from_ps(1), 54..=1_500);
        let port = |(link, &delay_ps): (usize, &u64)| {
            Port::new(link as u32, Time::from_ps(delay_ps), table.clone(), &QueueConfig::pfifo_fast(), Seed(0))
        };
        delays_ps.iter().enumerate().map(port).collect()
    }

    #[test]
    fn a_day_is_no_longer_than_the_shortest_link() {
        // 54 bytes at 10 Gbit/s take 43.2 ns.
        for (delays_ps, shortest_ps) in [(vec![0, 1_000_000_000], 43_200), (vec![10_000_000], 10_043_200)] {
            let calendar = Calendar::new(&ports(&delays_ps));
            assert!(1 << calendar.shift <= shortest_ps && shortest_ps < 2 << calendar.shift);
        }
    }

    proptest! {
        #[test]
        fn arrivals_come_as_from_a_heap(
            long_ps in prop::sample::select(vec![0_u64, 700_000, 10_000_000_000]),
            steps in prop::collection::vec(prop::collection::vec((0_u64..3_000_000, 0_u32..2), 0..6), 1..60),
        ) {
            let mut ports = ports(&[0, long_ps]);
            let mut calendar = Calendar::new(&ports);
            let mut heap = BinaryHeap::new();
            let mut now_ps = 0;
            for sent in steps {
                for (later_ps, link) in sent {
                    let at_ps = now_ps + ports[link as usize].latency_ps() + later_ps;
                    calendar.push(at_ps, Order::default(), Arrival { begun_ps: 0, link, packet: Wire::NOTHING });
                    heap.push(Reverse((at_ps, link)));
                }
                while calendar.day_is_over() && calendar.next_ps() < u64::MAX {
                    calendar.begin_day(&mut ports);
                }
                prop_assert_eq!(calendar.held().0, heap.len() as u64);
                if let Some(Reverse((at_ps, link))) = heap.pop() {
                    prop_assert_eq!((calendar.next_ps(), calendar.pop().link), (at_ps, link));
                    now_ps = at_ps;
                }
            }
        }
    }
}
