//! Every arrival to come, in order: a calendar queue (Brown 1988) whose days are no longer than a link.
//!
//! No packet arrives sooner after the event that sends it than the shortest link takes. So what happens in a day can
//! add no arrival to that day: when it begins, all its arrivals are known, and are sorted once. Until then they are
//! only appended. Ports with packets waiting are driven up to a day when it begins, which makes their arrivals in it
//! known.

use super::order::{Cause, Order, Run};
use super::timing::{Serialization, Timing};
use super::wire::{Wire, flag};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

/// A packet that will be at the far end of its link.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// Time within its day.
    within_ps: u32,
    link: u32,
    /// Place of the [`Run`] that its transmission belongs to.
    run: u32,
}

/// Arrivals of one day, as they became known. They are as small as can be: with thousands of links, most of what is
/// written here is out of the cache when its day begins.
#[derive(Clone, Debug, Default)]
struct Day {
    arrivals: Vec<Arrival>,
    /// Of each arrival.
    packets: Vec<Wire>,
    /// Ports that are driven when the day begins.
    drives: Vec<u32>,
}

/// Propagation, and time on the wire: here and not with its port, because arrivals ask for them, too.
#[derive(Clone, Copy, Debug)]
struct Link {
    delay_ps: u64,
    /// Where its table begins in [`Calendar::times`].
    table: usize,
}

/// A port, as the calendar needs it: what has packets waiting is driven when a day begins.
pub(crate) trait Driven {
    /// Of its link.
    fn timing(&self) -> &Timing;
    /// Place of the run that the packet being sent belongs to.
    fn run_mut(&mut self) -> &mut u32;
    /// Reads what [`drive`](Self::drive) will.
    fn peek(&self) -> u64;
    /// Works out everything that happened before `now_ps`, where a day begins.
    fn drive(&mut self, now_ps: u64, calendar: &mut Calendar);
}

/// Bits of a turn that say which arrival.
const INDEX_BITS: u32 = 28;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// A day is to have no more arrivals than about this, for the cache: they are read in another order than they were
/// written, and a day's memory is written again while it is still there.
const ARRIVALS: u64 = 1024;
/// With more ports than that allows, a port is to send a packet in so many days.
const DAYS_MAX: u64 = 4;
/// So many things to do are looked at together.
const BATCH: usize = 16;
/// Fewer arrivals than this are sorted without slots.
const FEW: usize = 16;
/// Arrivals of a day are put into 2^SLOT_BITS slots at most.
const SLOT_BITS: u32 = 12;
/// Days kept in a ring; later ones are in a map.
const RING_MAX: u64 = 1024;
/// So many runs are kept, at least, before those that have ended are looked for.
const RUNS_MIN: usize = 256;

/// The longest that a day may be if no packet arrives sooner than `latency_ps` after it was sent; shorter days lie each in
/// one of this length. What connections hear of one another otherwise than by packets takes effect when the next one
/// begins: results must not depend on how long days are.
pub(crate) fn epoch_ps(latency_ps: u64) -> u64 {
    // Times within a day have 32 bits.
    1 << latency_ps.max(1).ilog2().min(32)
}

/// The calendar of all links.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calendar {
    /// A day has 2^shift ps.
    shift: u32,
    /// Number of the present day.
    today: u64,
    present: Day,
    /// The present day's arrivals in order: time within the day, and, in the low bits, index of the arrival.
    turns: Vec<u64>,
    /// Used by [`Calendar::sort`] alone.
    slots: Vec<u32>,
    ordered: Vec<(Order, u32, u64)>,
    /// The first turn that has not taken place.
    next: usize,
    /// The days after it: number d at d modulo the length, a power of two.
    ring: Vec<Day>,
    /// Days that are over. The next one that gets something gets the memory of the last of them, which is in the cache.
    spare: Vec<Day>,
    far: BTreeMap<u64, Day>,
    /// Number of the first day to come that has anything.
    upcoming: u64,
    /// By link.
    links: Arc<[Link]>,
    /// Time on the wire by number of bytes: one table after the other, one for each rate.
    times: Arc<[u64]>,
    /// Runs that arrivals and ports refer to, among others that have ended.
    runs: Vec<Run>,
    /// How many there are when the ended ones are forgotten.
    runs_max: usize,
    /// By connection, the bytes on the wire that it has in its sender's card and whose transmission has not begun.
    in_card: Vec<u32>,
}

impl Day {
    /// Whether it is empty, and has never had anything.
    #[inline]
    fn is_new(&self) -> bool {
        self.arrivals.capacity() == 0 && self.drives.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.arrivals.is_empty() && self.drives.is_empty()
    }

    fn clear(&mut self) {
        self.arrivals.clear();
        self.packets.clear();
        self.drives.clear();
    }
}

/// A day with room for some arrivals.
#[cold]
fn spare(spare: &mut Vec<Day>) -> Day {
    spare.pop().unwrap_or_else(|| Day { arrivals: Vec::with_capacity(FEW), ..Day::default() })
}

/// Sorts turns that are nearly in order; whether any two are of one instant.
fn insert_each(turns: &mut [u64]) -> bool {
    let mut moves_left = 8 * turns.len();
    let mut ties = false;
    let mut last = 0;
    for index in 0..turns.len() {
        let turn = turns[index];
        if turn >= last {
            ties |= (turn ^ last) >> INDEX_BITS == 0;
            last = turn;
            continue;
        }
        let mut place = index;
        while place > 0 && turns[place - 1] > turn {
            turns[place] = turns[place - 1];
            place -= 1;
        }
        turns[place] = turn;
        let before = if place > 0 { turns[place - 1] } else { u64::MAX };
        ties |= (before ^ turn) >> INDEX_BITS == 0 || (turns[place + 1] ^ turn) >> INDEX_BITS == 0;
        moves_left = moves_left.saturating_sub(index - place);
        if moves_left == 0 {
            // Nearly all of them are in a few slots.
            turns.sort_unstable();
            return true;
        }
    }
    ties
}

impl Calendar {
    /// An empty calendar for `ports`, on the first day.
    pub fn new(ports: &[impl Driven]) -> Self {
        let timings = || ports.iter().map(Driven::timing);
        let shortest_ps = timings().map(Timing::latency_ps).min().unwrap_or(1);
        let farthest_ps = timings().map(Timing::reach_ps).max().unwrap_or(1);
        let busiest_ps = timings().map(Timing::segment_ps).min().unwrap_or(1);
        let full_ps = ARRIVALS.saturating_mul(busiest_ps) / ports.len().max(1) as u64;
        let shift = epoch_ps(shortest_ps).min(full_ps.max(busiest_ps / DAYS_MAX)).max(1).ilog2();
        let day_count = ((farthest_ps >> shift) + 2).min(RING_MAX).next_power_of_two();
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
            today: 0,
            present: Day::default(),
            turns: Vec::new(),
            slots: Vec::new(),
            ordered: Vec::new(),
            next: 0,
            ring: (0..day_count).map(|_| Day::default()).collect(),
            spare: Vec::new(),
            far: BTreeMap::new(),
            upcoming: u64::MAX,
            links,
            times: times.into(),
            runs: vec![Run::default()],
            runs_max: RUNS_MIN,
            in_card: Vec::new(),
        }
    }

    /// A packet is handed to a card.
    #[inline]
    pub fn enter_card(&mut self, packet: &Wire) {
        if packet.flags & flag::REVERSE == 0 {
            let index = packet.connection as usize;
            if index >= self.in_card.len() {
                self.in_card.resize(index + 1, 0);
            }
            self.in_card[index] += u32::from(packet.wire_bytes);
        }
    }

    /// The transmission of a packet in a card begins.
    #[inline]
    pub fn leave_card(&mut self, packet: &Wire) {
        if packet.flags & flag::REVERSE == 0 {
            self.in_card[packet.connection as usize] -= u32::from(packet.wire_bytes);
        }
    }

    /// What a connection has in its sender's card, as of the last [`Port::catch_up`](super::port::Port::catch_up).
    #[inline]
    pub fn in_card(&self, connection: u32) -> u64 {
        self.in_card.get(connection as usize).copied().map_or(0, u64::from)
    }

    /// Packets, and their bytes, whose arrival is known and has not taken place.
    pub fn held(&self) -> (u64, u64) {
        let left = self.turns[self.next..].iter().map(|turn| &self.present.packets[(turn & INDEX_MASK) as usize]);
        let to_come = self.ring.iter().chain(self.far.values()).flat_map(|day| &day.packets);
        left.chain(to_come).fold((0, 0), |(packets, bytes), packet| (packets + 1, bytes + u64::from(packet.wire_bytes)))
    }

    /// Whether nothing is left of the present day.
    #[inline]
    pub fn day_is_over(&self) -> bool {
        self.next == self.turns.len()
    }

    /// A time before which nothing arrives: while the day is not over, when the next packet arrives.
    #[inline]
    pub fn next_ps(&self) -> u64 {
        match self.turns.get(self.next) {
            Some(&turn) => self.at_ps(turn),
            None if self.upcoming == u64::MAX => u64::MAX,
            None => self.upcoming << self.shift,
        }
    }

    /// The next arrival of the day: when its transmission began, over which link, and the packet.
    #[inline(always)]
    pub fn pop(&mut self) -> (u64, u32, &Wire) {
        let turn = self.turns[self.next];
        self.next += 1;
        let index = (turn & INDEX_MASK) as usize;
        let (arrival, packet) = (self.present.arrivals[index], &self.present.packets[index]);
        (self.begun_ps(self.at_ps(turn), arrival.link, packet.wire_bytes), arrival.link, packet)
    }

    /// When a turn of the present day is.
    #[inline(always)]
    fn at_ps(&self, turn: u64) -> u64 {
        (self.today << self.shift) + (turn >> INDEX_BITS)
    }

    /// When the transmission began of so many bytes that are at the far end at `at_ps`.
    #[inline]
    fn begun_ps(&self, at_ps: u64, link: u32, wire_bytes: u16) -> u64 {
        let link = self.links[link as usize];
        at_ps - link.delay_ps - self.times[link.table + usize::from(wire_bytes)]
    }

    /// The place of a turn's arrival among those of one instant.
    #[inline]
    fn order(&self, turn: u64) -> (Order, u32) {
        let index = (turn & INDEX_MASK) as usize;
        let Arrival { link, run, .. } = self.present.arrivals[index];
        let begun_ps = self.begun_ps(self.at_ps(turn), link, self.present.packets[index].wire_bytes);
        (Order::new(begun_ps, self.runs[run as usize]), link)
    }

    /// Time of so many bytes on the wire.
    #[inline]
    pub fn sending_ps(&self, link: u32, wire_bytes: u16) -> u64 {
        self.times[self.links[link as usize].table + usize::from(wire_bytes)]
    }

    /// A packet will arrive, whose transmission belongs to `run` and ends at `sent_ps`.
    #[inline]
    pub fn push(&mut self, sent_ps: u64, link: u32, run: u32, packet: Wire) {
        let at_ps = sent_ps + self.links[link as usize].delay_ps;
        // A day has at most 2^32 ps.
        let within_ps = (at_ps & ((1 << self.shift) - 1)) as u32;
        let day = self.day(at_ps);
        day.arrivals.push(Arrival { within_ps, link, run });
        day.packets.push(packet);
    }

    /// Port `link` has packets waiting, the first of which it takes at `busy_until_ps`.
    #[inline]
    pub fn drive(&mut self, busy_until_ps: u64, link: u32) {
        let Link { delay_ps, table } = self.links[link as usize];
        // No packet is shorter than the first of the table.
        self.day(busy_until_ps + delay_ps + self.times[table]).drives.push(link);
    }

    /// Keeps a run as long as an arrival or a port refers to it by the place that is returned.
    #[inline]
    pub fn begin_run(&mut self, run: Run) -> u32 {
        self.runs.push(run);
        // Those that have ended are forgotten long before there are 2^32.
        (self.runs.len() - 1) as u32
    }

    /// The run at that place.
    #[inline]
    pub fn run(&self, place: u32) -> Run {
        self.runs[place as usize]
    }

    #[inline]
    fn day(&mut self, at_ps: u64) -> &mut Day {
        let number = at_ps >> self.shift;
        debug_assert!(number > self.today, "a day is complete when it begins");
        self.upcoming = self.upcoming.min(number);
        let ring_length = self.ring.len() as u64;
        if number - self.today > ring_length {
            return self.far.entry(number).or_default();
        }
        let day = &mut self.ring[(number & (ring_length - 1)) as usize];
        if day.is_new() {
            *day = spare(&mut self.spare);
        }
        day
    }

    /// Begins the next day that has anything. Every event before it has taken place.
    pub fn begin_day(&mut self, ports: &mut [impl Driven]) {
        self.collect(self.upcoming, ports);
        self.sort();
        // Packets are written in another order than they are read: one sweep brings those of the day into the cache.
        black_box(self.present.packets.iter().fold(0, |sum, packet| sum ^ packet.connection));
    }

    /// Begins day `number` with what is known of it and what its ports add.
    fn collect(&mut self, number: u64, ports: &mut [impl Driven]) {
        self.present.clear();
        self.spare.push(std::mem::take(&mut self.present));
        self.turns.clear();
        self.next = 0;
        if self.runs.len() > self.runs_max {
            self.forget_ended_runs(ports);
        }
        let slot = (number & (self.ring.len() as u64 - 1)) as usize;
        if let Some(day) = self.far.remove(&number) {
            // Nothing is in the ring that far ahead.
            let near = &mut self.ring[slot];
            near.arrivals.extend(day.arrivals);
            near.packets.extend(day.packets);
            near.drives.extend(day.drives);
        }
        // What the ports add to the day that begins belongs into the ring, however far ahead it was.
        self.today = number - 1;
        let mut drives = std::mem::take(&mut self.ring[slot].drives);
        // Only for memory: adjacent entries lie side by side.
        drives.sort_unstable();
        for batch in drives.chunks(BATCH) {
            // What they will read first is fetched at once, not one after the other.
            black_box(batch.iter().fold(0, |sum, &link| sum ^ ports[link as usize].peek()));
            for &link in batch {
                ports[link as usize].drive(number << self.shift, self);
            }
        }
        self.present = std::mem::take(&mut self.ring[slot]);
        self.present.drives = drives;
        self.today = number;
        let ring_length = self.ring.len() as u64;
        let near = (1..=ring_length).map(|ahead| number + ahead);
        let near = near.into_iter().find(|day| !self.ring[(day & (ring_length - 1)) as usize].is_empty());
        let far = self.far.keys().next().copied();
        self.upcoming = near.into_iter().chain(far).min().unwrap_or(u64::MAX);
    }

    /// The last arrival, as the cause of what it plans.
    pub fn cause(&self) -> Cause {
        let (order, link) = self.order(self.turns[self.next - 1]);
        Cause::Arrival(order, link)
    }

    /// Puts the present day's arrivals in order: by slots of time, about as many as arrivals, and then those of one
    /// slot by insertion.
    fn sort(&mut self) {
        let arrivals = &self.present.arrivals;
        let turn = |(index, arrival): (usize, &Arrival)| u64::from(arrival.within_ps) << INDEX_BITS | index as u64;
        self.turns.clear();
        if arrivals.len() < FEW {
            self.turns.extend(arrivals.iter().enumerate().map(turn));
        } else {
            let bits = arrivals.len().ilog2().min(SLOT_BITS);
            let down = self.shift.saturating_sub(bits);
            self.slots.clear();
            self.slots.resize(1 << (self.shift - down), 0);
            let slots = self.slots.as_mut_slice();
            for arrival in arrivals {
                slots[(arrival.within_ps >> down) as usize] += 1;
            }
            let mut start = 0;
            for slot in &mut *slots {
                start += std::mem::replace(slot, start);
            }
            self.turns.resize(arrivals.len(), 0);
            for (index, arrival) in arrivals.iter().enumerate() {
                let place = &mut slots[(arrival.within_ps >> down) as usize];
                self.turns[*place as usize] = turn((index, arrival));
                *place += 1;
            }
        }
        let ties = insert_each(&mut self.turns);
        if ties {
            self.sort_ties();
        }
        self.next = 0;
    }

    /// Puts arrivals of one instant in order.
    fn sort_ties(&mut self) {
        let mut turns = std::mem::take(&mut self.turns);
        let mut ordered = std::mem::take(&mut self.ordered);
        for tied in turns.chunk_by_mut(|one, other| one >> INDEX_BITS == other >> INDEX_BITS) {
            if tied.len() == 1 {
                continue;
            }
            ordered.extend(tied.iter().map(|&turn| {
                let (order, link) = self.order(turn);
                (order, link, turn)
            }));
            ordered.sort_unstable();
            for (place, (.., turn)) in tied.iter_mut().zip(ordered.drain(..)) {
                *place = turn;
            }
        }
        self.turns = turns;
        self.ordered = ordered;
    }

    /// Keeps only the runs that a port or an arrival to come refers to.
    #[cold]
    fn forget_ended_runs(&mut self, ports: &mut [impl Driven]) {
        const GONE: u32 = u32::MAX;
        let mut places = vec![GONE; self.runs.len()];
        let mut kept = Vec::with_capacity(self.runs.capacity());
        let mut count = 0;
        let arrivals = self.ring.iter_mut().chain(self.far.values_mut()).flat_map(|day| &mut day.arrivals);
        for run in arrivals.map(|arrival| &mut arrival.run).chain(ports.iter_mut().map(Driven::run_mut)) {
            let place = &mut places[*run as usize];
            if *place == GONE {
                *place = kept.len() as u32;
                kept.push(self.runs[*run as usize]);
            }
            *run = *place;
            count += 1;
        }
        self.runs = kept;
        self.runs_max = RUNS_MIN + 4 * count;
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

    /// Links of 10 Gbit/s with these delays.
    fn ports(delays_ps: &[u64]) -> Vec<Port> {
        let table = Serialization::new(Rate::from_bps(10_000_000_000).unwrap(), Follow::Standards, 54..=1_500);
        let port = |(link, &delay_ps): (usize, &u64)| {
            let qdisc = Qdisc::new(&QueueConfig::pfifo_fast(), 1_500, || Seed(0).stream("test"));
            Port::new(link as u32, Time::from_ps(delay_ps), table.clone(), qdisc)
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

    #[test]
    fn ports_of_a_day_without_arrivals_are_driven() {
        let mut ports = ports(&[0, 0]);
        let mut calendar = Calendar::new(&ports);
        // The memory of a day that had nothing is used again; and a copy has none to spare.
        calendar.collect(1, &mut ports);
        calendar.collect(2, &mut ports);
        for link in 0..2 {
            calendar = calendar.clone();
            calendar.drive(3 << calendar.shift, link);
        }
        assert_eq!(calendar.ring.iter().map(|day| day.drives.len()).sum::<usize>(), 2);
    }

    #[test]
    fn runs_that_nobody_refers_to_are_forgotten() {
        let mut ports = ports(&[0, 0]);
        let mut calendar = Calendar::new(&ports);
        // Times of arrival, half of them on both links: the run decides, and that of link 1 is the smaller one each time.
        for step in 0..10_000_u64 {
            for link in 0..2 {
                let run = calendar.begin_run(Run::idle(0, step, 1 - link));
                calendar.push(1_000_000 + step * 50_000, link, run, Wire::NOTHING);
            }
            while calendar.day_is_over() {
                calendar.begin_day(&mut ports);
            }
            assert_eq!((calendar.pop().1, calendar.day_is_over()), (1, false));
            assert_eq!((calendar.pop().1, calendar.day_is_over()), (0, true));
        }
        assert!(calendar.runs.len() < 2 * RUNS_MIN, "{}", calendar.runs.len());
    }

    proptest! {
        #[test]
        fn turns_are_sorted_however_they_lie(
            times in prop::collection::vec(prop_oneof![0_u64..8, 0_u64..1 << 20], 0..300),
            is_reversed: bool,
        ) {
            let mut turns: Vec<u64> =
                times.iter().enumerate().map(|(index, &at)| at << INDEX_BITS | index as u64).collect();
            if is_reversed {
                // As many moves as there can be.
                turns.sort_unstable_by_key(|&turn| Reverse(turn));
            }
            let mut expected = turns.clone();
            expected.sort_unstable();
            let ties = insert_each(&mut turns);
            prop_assert_eq!(&turns, &expected);
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
                    // Of one instant, what was sent first, as all are of one size.
                    heap.push(Reverse((at_ps, sent_ps, link)));
                }
                while calendar.day_is_over() && calendar.next_ps() < u64::MAX {
                    calendar.begin_day(&mut ports);
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
