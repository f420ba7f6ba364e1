//! Future arrivals in order: a calendar queue (Brown 1988) whose buckets are no longer than the shortest link latency.
//!
//! A packet arrives at least one link latency after the event that sends it, so events within a bucket add no arrival
//! to that bucket. Arrivals are appended to their bucket unsorted. When the bucket begins, ports with a queue first
//! compute their departures up to that time, which adds their arrivals. All arrivals of the bucket are then known and
//! are sorted once.

use super::driver::PortDriver;
use super::event_key::{EventKey, Train};
use super::timing::{Serialization, Timing};
use super::wire::{Wire, flag};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

/// A packet that will arrive at the far end of its link.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// Time since the start of the bucket.
    offset_ps: u32,
    link: u32,
    /// Index of the [`Train`] of its transmission.
    train: u32,
}

/// Arrivals of one bucket, unsorted. Entries are small, because with thousands of links most of them have left the
/// cache by the time the bucket begins.
#[derive(Clone, Debug, Default)]
struct Bucket {
    arrivals: Vec<Arrival>,
    /// Packet of each arrival.
    packets: Vec<Wire>,
    /// Ports with waiting packets, which compute their departures when the bucket begins.
    backlogged: Vec<u32>,
}

/// Propagation delay and serialization times of a link. They are copied here, so that handling an arrival does not have
/// to load the port.
#[derive(Clone, Copy, Debug)]
struct Link {
    delay_ps: u64,
    /// Start of the link's table in [`Calendar::times`].
    table: usize,
}

/// The calendar's view of a port.
pub(crate) trait CalendarPort {
    /// Returns the timing of the port's link.
    fn timing(&self) -> &Timing;
    /// Returns the index of the packet train to which the packet in transmission belongs.
    fn train_mut(&mut self) -> &mut u32;
    /// Reads the memory that [`advance`](Self::advance) will read, as a prefetch.
    fn peek(&self) -> u64;
    /// Computes the departures before `now_ps`, the start of a bucket.
    fn advance(&mut self, now_ps: u64, calendar: &mut Calendar);
}

/// Number of low bits of a sorted entry that hold the index of the arrival.
const INDEX_BITS: u32 = 28;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// Target number of arrivals per bucket. A bucket should fit into the cache, because arrivals are read in a different
/// order than they were written. Its memory is then reused while it is still cached.
const ARRIVALS: u64 = 1024;
/// Maximum number of buckets per transmission of a full packet. With very many ports, this limits how short a bucket
/// becomes.
const BUCKETS_PER_PACKET: u64 = 4;
/// Number of ports whose memory is fetched together.
const BATCH: usize = 16;
/// Up to this number of arrivals, a bucket is sorted by insertion only.
const FEW: usize = 16;
/// Binary logarithm of the maximum number of time slots into which [`Calendar::sort`] distributes arrivals.
const SLOT_BITS: u32 = 12;
/// Maximum number of buckets in the ring. Buckets farther in the future are in a map.
const RING_MAX: u64 = 1024;
/// Minimum number of [trains](Train) at which ended ones are removed from the list.
const TRAINS_MIN: usize = 256;

/// Returns the length of a lookahead window if every packet arrives at least `latency_ps` after it was sent. The window
/// is the longest possible bucket; shorter buckets divide it evenly. Endpoints of different hosts exchange information
/// by packets. All other information takes effect at the start of the next window, so that results do not depend on the
/// bucket length.
pub(crate) fn window_ps(latency_ps: u64) -> u64 {
    // Times within a bucket have 32 bits.
    1 << latency_ps.max(1).ilog2().min(32)
}

/// The arrivals on all links.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calendar {
    /// Logarithm of the bucket length in ps.
    shift: u32,
    /// Number of the current bucket.
    number: u64,
    current: Bucket,
    /// Arrivals of the current bucket in order. The high bits of an entry are the time within the bucket, the low bits
    /// the index of the arrival.
    sorted: Vec<u64>,
    /// Scratch memory of [`Calendar::sort`].
    slots: Vec<u32>,
    ordered: Vec<(EventKey, u32, u64)>,
    /// Index in `sorted` of the next arrival.
    next: usize,
    /// Later buckets: bucket number n is at index n modulo the ring's length, a power of two.
    ring: Vec<Bucket>,
    /// Memory of past buckets, most recent last. The most recent one is reused first, because it is still cached.
    spare: Vec<Bucket>,
    far: BTreeMap<u64, Bucket>,
    /// Number of the next non-empty bucket.
    upcoming: u64,
    links: Arc<[Link]>,
    /// Serialization times by number of bytes: one table per rate, concatenated.
    times: Arc<[u64]>,
    /// Packet [trains](Train) that arrivals or ports refer to, and ended trains that are not removed yet.
    trains: Vec<Train>,
    /// Length of `trains` at which ended trains are removed.
    trains_max: usize,
    /// Bytes on the wire that wait in the sender's NIC, for each connection.
    nic_bytes: Vec<u32>,
}

impl Bucket {
    /// Returns whether the bucket has no memory yet.
    #[inline]
    fn is_new(&self) -> bool {
        self.arrivals.capacity() == 0 && self.backlogged.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.arrivals.is_empty() && self.backlogged.is_empty()
    }

    fn clear(&mut self) {
        self.arrivals.clear();
        self.packets.clear();
        self.backlogged.clear();
    }
}

/// Returns an empty bucket with memory.
#[cold]
fn spare(spare: &mut Vec<Bucket>) -> Bucket {
    spare.pop().unwrap_or_else(|| Bucket { arrivals: Vec::with_capacity(FEW), ..Bucket::default() })
}

/// Sorts nearly ordered entries by insertion. Returns `false` only if all times are distinct.
fn insert_each(sorted: &mut [u64]) -> bool {
    let mut moves_left = 8 * sorted.len();
    let mut ties = false;
    let mut last = 0;
    for index in 0..sorted.len() {
        let entry = sorted[index];
        if entry >= last {
            ties |= (entry ^ last) >> INDEX_BITS == 0;
            last = entry;
            continue;
        }
        let mut place = index;
        while place > 0 && sorted[place - 1] > entry {
            sorted[place] = sorted[place - 1];
            place -= 1;
        }
        sorted[place] = entry;
        let before = if place > 0 { sorted[place - 1] } else { u64::MAX };
        ties |= (before ^ entry) >> INDEX_BITS == 0 || (sorted[place + 1] ^ entry) >> INDEX_BITS == 0;
        moves_left = moves_left.saturating_sub(index - place);
        if moves_left == 0 {
            // Insertion sort needs this many moves only if most arrivals share a few time slots.
            sorted.sort_unstable();
            return true;
        }
    }
    ties
}

impl Calendar {
    pub fn new(ports: &[impl CalendarPort]) -> Self {
        let timings = || ports.iter().map(CalendarPort::timing);
        let shortest_ps = timings().map(Timing::latency_ps).min().unwrap_or(1);
        let farthest_ps = timings().map(Timing::latency_max_ps).max().unwrap_or(1);
        let busiest_ps = timings().map(Timing::serialization_max_ps).min().unwrap_or(1);
        let full_ps = ARRIVALS.saturating_mul(busiest_ps) / ports.len().max(1) as u64;
        let shift = window_ps(shortest_ps).min(full_ps.max(busiest_ps / BUCKETS_PER_PACKET)).max(1).ilog2();
        let bucket_count = ((farthest_ps >> shift) + 2).min(RING_MAX).next_power_of_two();
        let mut tables: Vec<(&Serialization, usize)> = Vec::new();
        let mut times = Vec::new();
        let links = timings().map(|&Timing { delay_ps, ref serialization }| {
            let known = tables.iter().find(|(table, _)| table.is(serialization)).map(|&(_, start)| start);
            let table = known.unwrap_or_else(|| {
                tables.push((serialization, times.len()));
                times.extend_from_slice(serialization.times());
                times.len() - serialization.times().len()
            });
            Link { delay_ps, table }
        });
        let links = links.collect();
        Self {
            shift,
            number: 0,
            current: Bucket::default(),
            sorted: Vec::new(),
            slots: Vec::new(),
            ordered: Vec::new(),
            next: 0,
            ring: (0..bucket_count).map(|_| Bucket::default()).collect(),
            spare: Vec::new(),
            far: BTreeMap::new(),
            upcoming: u64::MAX,
            links,
            times: times.into(),
            trains: vec![Train::default()],
            trains_max: TRAINS_MIN,
            nic_bytes: Vec::new(),
        }
    }

    /// Returns the number of packets whose arrival is in the calendar, and their bytes.
    pub fn held(&self) -> (u64, u64) {
        let left = self.sorted[self.next..].iter().map(|entry| &self.current.packets[(entry & INDEX_MASK) as usize]);
        let to_come = self.ring.iter().chain(self.far.values()).flat_map(|bucket| &bucket.packets);
        left.chain(to_come).fold((0, 0), |(packets, bytes), packet| (packets + 1, bytes + u64::from(packet.wire_bytes)))
    }

    #[inline]
    pub fn bucket_is_done(&self) -> bool {
        self.next == self.sorted.len()
    }

    /// Returns the time of the next arrival. If the current bucket has none left, returns a lower bound: the start of
    /// the next bucket.
    #[inline]
    pub fn next_ps(&self) -> u64 {
        match self.sorted.get(self.next) {
            Some(&entry) => self.at_ps(entry),
            None if self.upcoming == u64::MAX => u64::MAX,
            None => self.upcoming << self.shift,
        }
    }

    /// Removes the next arrival of the current bucket. Returns the start of its transmission, its link and its packet.
    #[inline(always)]
    pub fn pop(&mut self) -> (u64, u32, &Wire) {
        let entry = self.sorted[self.next];
        self.next += 1;
        let index = (entry & INDEX_MASK) as usize;
        let (arrival, packet) = (self.current.arrivals[index], &self.current.packets[index]);
        (self.start_ps(self.at_ps(entry), arrival.link, packet.wire_bytes), arrival.link, packet)
    }

    #[inline(always)]
    fn at_ps(&self, entry: u64) -> u64 {
        (self.number << self.shift) + (entry >> INDEX_BITS)
    }

    /// Returns the start of the transmission of a packet of `wire_bytes` that arrives at `at_ps`.
    #[inline]
    fn start_ps(&self, at_ps: u64, link: u32, wire_bytes: u16) -> u64 {
        let link = self.links[link as usize];
        at_ps - link.delay_ps - self.times[link.table + usize::from(wire_bytes)]
    }

    /// Returns the key that orders simultaneous entries. Equal event keys are ordered by link number.
    #[inline]
    fn key(&self, entry: u64) -> (EventKey, u32) {
        let index = (entry & INDEX_MASK) as usize;
        let Arrival { link, train, .. } = self.current.arrivals[index];
        let start_ps = self.start_ps(self.at_ps(entry), link, self.current.packets[index].wire_bytes);
        (EventKey::new(start_ps, self.trains[train as usize]), link)
    }

    #[inline]
    fn bucket(&mut self, at_ps: u64) -> &mut Bucket {
        let number = at_ps >> self.shift;
        debug_assert!(number > self.number, "a bucket is complete when it begins");
        self.upcoming = self.upcoming.min(number);
        let ring_length = self.ring.len() as u64;
        if number - self.number > ring_length {
            return self.far.entry(number).or_default();
        }
        let bucket = &mut self.ring[(number & (ring_length - 1)) as usize];
        if bucket.is_new() {
            *bucket = spare(&mut self.spare);
        }
        bucket
    }

    /// Begins the next non-empty bucket, after all earlier events.
    pub fn begin_bucket(&mut self, ports: &mut [impl CalendarPort]) {
        self.collect(self.upcoming, ports);
        self.sort();
        // Packets are read in a different order than they were written, so one sequential pass fetches them into the
        // cache.
        black_box(self.current.packets.iter().fold(0, |sum, packet| sum ^ packet.connection));
    }

    /// Makes bucket `number` the current one and adds the arrivals of its backlogged ports.
    fn collect(&mut self, number: u64, ports: &mut [impl CalendarPort]) {
        self.current.clear();
        self.spare.push(std::mem::take(&mut self.current));
        self.sorted.clear();
        self.next = 0;
        if self.trains.len() > self.trains_max {
            self.drop_ended_trains(ports);
        }
        let slot = (number & (self.ring.len() as u64 - 1)) as usize;
        if let Some(bucket) = self.far.remove(&number) {
            // Some arrivals are in the map, because the bucket was beyond the ring when they were added.
            let near = &mut self.ring[slot];
            near.arrivals.extend(bucket.arrivals);
            near.packets.extend(bucket.packets);
            near.backlogged.extend(bucket.backlogged);
        }
        // The calendar is set one bucket back, so that arrivals added by ports go to the ring slot of bucket `number`,
        // even if the bucket itself came from `far`.
        self.number = number - 1;
        let mut backlogged = std::mem::take(&mut self.ring[slot].backlogged);
        // Sorting the ports improves locality. Results do not depend on their order.
        backlogged.sort_unstable();
        for batch in backlogged.chunks(BATCH) {
            // Reading all ports of the batch first lets their cache misses overlap.
            black_box(batch.iter().fold(0, |sum, &link| sum ^ ports[link as usize].peek()));
            for &link in batch {
                ports[link as usize].advance(number << self.shift, self);
            }
        }
        self.current = std::mem::take(&mut self.ring[slot]);
        self.current.backlogged = backlogged;
        self.number = number;
        let ring_length = self.ring.len() as u64;
        let near = (1..=ring_length).map(|ahead| number + ahead);
        let near = near.into_iter().find(|bucket| !self.ring[(bucket & (ring_length - 1)) as usize].is_empty());
        let far = self.far.keys().next().copied();
        self.upcoming = near.into_iter().chain(far).min().unwrap_or(u64::MAX);
    }

    /// Sorts the arrivals of the current bucket. They are distributed over about as many time slots as there are
    /// arrivals, and then sorted by insertion.
    fn sort(&mut self) {
        let arrivals = &self.current.arrivals;
        let entry = |(index, arrival): (usize, &Arrival)| u64::from(arrival.offset_ps) << INDEX_BITS | index as u64;
        self.sorted.clear();
        if arrivals.len() < FEW {
            self.sorted.extend(arrivals.iter().enumerate().map(entry));
        } else {
            let bits = arrivals.len().ilog2().min(SLOT_BITS);
            let down = self.shift.saturating_sub(bits);
            self.slots.clear();
            self.slots.resize(1 << (self.shift - down), 0);
            let slots = self.slots.as_mut_slice();
            for arrival in arrivals {
                slots[(arrival.offset_ps >> down) as usize] += 1;
            }
            let mut start = 0;
            for slot in &mut *slots {
                start += std::mem::replace(slot, start);
            }
            self.sorted.resize(arrivals.len(), 0);
            for (index, arrival) in arrivals.iter().enumerate() {
                let place = &mut slots[(arrival.offset_ps >> down) as usize];
                self.sorted[*place as usize] = entry((index, arrival));
                *place += 1;
            }
        }
        let ties = insert_each(&mut self.sorted);
        if ties {
            self.sort_ties();
        }
        self.next = 0;
    }

    /// Orders simultaneous arrivals.
    fn sort_ties(&mut self) {
        let mut sorted = std::mem::take(&mut self.sorted);
        let mut ordered = std::mem::take(&mut self.ordered);
        for tied in sorted.chunk_by_mut(|one, other| one >> INDEX_BITS == other >> INDEX_BITS) {
            if tied.len() == 1 {
                continue;
            }
            ordered.extend(tied.iter().map(|&entry| {
                let (key, link) = self.key(entry);
                (key, link, entry)
            }));
            ordered.sort_unstable();
            for (place, (.., entry)) in tied.iter_mut().zip(ordered.drain(..)) {
                *place = entry;
            }
        }
        self.sorted = sorted;
        self.ordered = ordered;
    }

    /// Removes the packet trains that neither a port nor a future arrival refers to.
    #[cold]
    fn drop_ended_trains(&mut self, ports: &mut [impl CalendarPort]) {
        const GONE: u32 = u32::MAX;
        let mut places = vec![GONE; self.trains.len()];
        let mut kept = Vec::with_capacity(self.trains.capacity());
        let mut count = 0;
        let arrivals = self.ring.iter_mut().chain(self.far.values_mut()).flat_map(|bucket| &mut bucket.arrivals);
        for train in arrivals.map(|arrival| &mut arrival.train).chain(ports.iter_mut().map(CalendarPort::train_mut)) {
            let place = &mut places[*train as usize];
            if *place == GONE {
                *place = kept.len() as u32;
                kept.push(self.trains[*train as usize]);
            }
            *train = *place;
            count += 1;
        }
        self.trains = kept;
        self.trains_max = TRAINS_MIN + 4 * count;
    }
}

impl PortDriver for Calendar {
    #[inline]
    fn enter_nic(&mut self, packet: &Wire) {
        if packet.flags & flag::REVERSE == 0 {
            let index = packet.connection as usize;
            if index >= self.nic_bytes.len() {
                self.nic_bytes.resize(index + 1, 0);
            }
            self.nic_bytes[index] += u32::from(packet.wire_bytes);
        }
    }

    #[inline]
    fn leave_nic(&mut self, packet: &Wire) {
        if packet.flags & flag::REVERSE == 0 {
            self.nic_bytes[packet.connection as usize] -= u32::from(packet.wire_bytes);
        }
    }

    #[inline]
    fn nic_bytes(&self, connection: u32) -> u64 {
        self.nic_bytes.get(connection as usize).copied().map_or(0, u64::from)
    }

    #[inline]
    fn sending_ps(&self, link: u32, wire_bytes: u16) -> u64 {
        self.times[self.links[link as usize].table + usize::from(wire_bytes)]
    }

    #[inline]
    fn push(&mut self, sent_ps: u64, link: u32, train: u32, packet: Wire) {
        let at_ps = sent_ps + self.links[link as usize].delay_ps;
        // A bucket has at most 2^32 ps.
        let offset_ps = (at_ps & ((1 << self.shift) - 1)) as u32;
        let bucket = self.bucket(at_ps);
        bucket.arrivals.push(Arrival { offset_ps, link, train });
        bucket.packets.push(packet);
    }

    #[inline]
    fn schedule_port(&mut self, busy_until_ps: u64, link: u32) {
        let Link { delay_ps, table } = self.links[link as usize];
        // The first entry of a link's table is the transmission time of the shortest packet.
        self.bucket(busy_until_ps + delay_ps + self.times[table]).backlogged.push(link);
    }

    #[inline]
    fn begin_train(&mut self, train: Train) -> u32 {
        self.trains.push(train);
        // Fits 32 bits, because ended trains are removed long before there are 2^32.
        (self.trains.len() - 1) as u32
    }

    #[inline]
    fn train(&self, index: u32) -> Train {
        self.trains[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::super::port::Port;
    use super::super::qdisc::{Qdisc, QueueConfig};
    use super::super::tcp::Follow;
    use super::*;
    use crate::Seed;
    use crate::units::{Rate, Time};
    use proptest::prelude::*;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    /// Creates the ports of 10 Gbit/s links with the delays `delays_ps`.
    fn ports(delays_ps: &[u64]) -> Vec<Port> {
        let table = Serialization::new(Rate::from_bps(10_000_000_000).unwrap(), Follow::Standards, 54..=1_500);
        let port = |(link, &delay_ps): (usize, &u64)| {
            let qdisc = Qdisc::new(&QueueConfig::pfifo_fast(), 1_500, || Seed(0).stream("test"));
            Port::new(link as u32, Time::from_ps(delay_ps), table.clone(), qdisc)
        };
        delays_ps.iter().enumerate().map(port).collect()
    }

    #[test]
    fn a_bucket_is_no_longer_than_the_shortest_link() {
        // 54 bytes at 10 Gbit/s take 43.2 ns.
        for (delays_ps, shortest_ps) in [(vec![0, 1_000_000_000], 43_200), (vec![10_000_000], 10_043_200)] {
            let calendar = Calendar::new(&ports(&delays_ps));
            assert!(1 << calendar.shift <= shortest_ps && shortest_ps < 2 << calendar.shift);
        }
    }

    #[test]
    fn backlogged_ports_of_a_bucket_without_arrivals_are_kept() {
        let mut ports = ports(&[0, 0]);
        let mut calendar = Calendar::new(&ports);
        // Both collected buckets leave memory for reuse. The buckets of a clone have no memory and must not be taken
        // for new ones.
        calendar.collect(1, &mut ports);
        calendar.collect(2, &mut ports);
        for link in 0..2 {
            calendar = calendar.clone();
            calendar.schedule_port(3 << calendar.shift, link);
        }
        assert_eq!(calendar.ring.iter().map(|bucket| bucket.backlogged.len()).sum::<usize>(), 2);
    }

    #[test]
    fn ended_trains_are_dropped() {
        let mut ports = ports(&[0, 0]);
        let mut calendar = Calendar::new(&ports);
        // Both links have an arrival at every instant. The arrival on link 1 comes first, because the sequence number
        // of its train is lower.
        for step in 0..10_000_u64 {
            for link in 0..2 {
                let train = calendar.begin_train(Train::idle(0, step, 1 - link));
                calendar.push(1_000_000 + step * 50_000, link, train, Wire::NOTHING);
            }
            while calendar.bucket_is_done() {
                calendar.begin_bucket(&mut ports);
            }
            assert_eq!((calendar.pop().1, calendar.bucket_is_done()), (1, false));
            assert_eq!((calendar.pop().1, calendar.bucket_is_done()), (0, true));
        }
        assert!(calendar.trains.len() < 2 * TRAINS_MIN, "{}", calendar.trains.len());
    }

    proptest! {
        #[test]
        fn entries_are_sorted_from_any_order(
            times in prop::collection::vec(prop_oneof![0_u64..8, 0_u64..1 << 20], 0..300),
            is_reversed: bool,
        ) {
            let mut sorted: Vec<u64> =
                times.iter().enumerate().map(|(index, &at)| at << INDEX_BITS | index as u64).collect();
            if is_reversed {
                // The worst case of insertion sort.
                sorted.sort_unstable_by_key(|&entry| Reverse(entry));
            }
            let mut expected = sorted.clone();
            expected.sort_unstable();
            let ties = insert_each(&mut sorted);
            prop_assert_eq!(&sorted, &expected);
            let tied = expected.windows(2).any(|pair| pair[0] >> INDEX_BITS == pair[1] >> INDEX_BITS);
            prop_assert!(ties || !tied);
        }

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
                    let at_ps = now_ps + ports[link as usize].timing().latency_ps() + later_ps;
                    let sent_ps = at_ps - ports[link as usize].timing().delay_ps;
                    calendar.push(sent_ps, link, 0, Wire::NOTHING);
                    // Ties go to the packet that was sent first, because all packets have the same size.
                    heap.push(Reverse((at_ps, sent_ps, link)));
                }
                while calendar.bucket_is_done() && calendar.next_ps() < u64::MAX {
                    calendar.begin_bucket(&mut ports);
                }
                prop_assert_eq!(calendar.held().0, heap.len() as u64);
                if let Some(Reverse((at_ps, _, link))) = heap.pop() {
                    prop_assert_eq!((calendar.next_ps(), calendar.pop().1), (at_ps, link));
                    now_ps = at_ps;
                }
            }
        }
    }
}
