//! Long stretches of packets on several threads, with the same result as on one.
//!
//! Nothing that happens in a day of the [`Calendar`] can arrive in it, so all arrivals of a day are known when it
//! begins, and each thread goes through those of its [lane](super::lanes) alone:
//!
//! ```text
//! day      what the runs of the last day began with is put in the order of all lanes
//!          each lane drives its ports, and hands over to others what they have to do with
//!          each lane takes in what others have handed over, puts its day in order, and goes through its first segment
//! segment  each lane goes on through its day
//! ```
//!
//! A segment ends at the next instant at which something else happens: a flow starts, a timer or a deadline comes, a sender
//! hears that its receiver has closed, a message of a stream may be complete. Such an instant is left to one thread, which
//! has everything in its hands then, and does what it always does. The rest of a connection's life goes on in lanes: a
//! packet has to do with the end that it is for, and what comes [late](super::order::Late) lies with its end.
//!
//! Two arrivals of one instant in two lanes have to do with different ports and connections. Which was first matters
//! only to the [order](super::order::Order) of what they send, where that ends a port's idleness; so that is told when the
//! day is over.
//!
//! Only switches whose ports do not share anything are driven like that, and only if no deadline is shorter than the
//! longest day there may be.

use super::calendar::{Calendar, Open, Post};
use super::ends::{Arrived, Closes, Concern, DayBounds, Ends, News, Plan};
use super::host::Gone;
use super::lanes::{Lane, Map};
use super::order::{Look, Moment, open_label};
use super::port::Port;
use super::qdisc::Verdict;
use super::tcp::sender::NEVER;
use super::tcp::{Follow, TcpConfig};
use super::wire::{Wire, flag};
use super::{PacketEngine, Volume};
use crate::topology::{HostId, PortId};
use crate::units::Time;
use std::cmp::Reverse;
use std::fmt::Debug;
use std::hint::spin_loop;
use std::mem::{swap, take};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Who has threads: this crate starts none.
pub trait Threads: Debug + Send + Sync {
    /// Has `work` called with each of 1 to `count` - 1, on a thread of its own, and returns at once.
    fn start(&self, count: usize, work: Arc<dyn Fn(usize) + Send + Sync>);

    /// Arrivals that each thread must have in a segment of a day of the calendar, on average, for threads to be worth
    /// their while.
    fn arrivals_least(&self) -> u64 {
        15
    }
}

/// How often a thread looks whether others have come as far as it waits for, before it sleeps: for some tens of
/// microseconds, as long as it takes to wake up.
const LOOKS: u32 = 1 << 11;
/// How often after that was in vain, but for each time of so many.
const FEW_LOOKS: u32 = 1 << 6;
const TRIES: u32 = 16;

/// What one thread has in its hands: a lane, with the ends of connections at its hosts. Boxes, because they go from hand
/// to hand between cores.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Hands {
    lane: Box<Lane>,
    ends: Box<Ends>,
    tally: Tally,
    cuts: Cuts,
}

/// Instants of a day that are left to one thread.
#[derive(Debug, Default)]
struct Cuts {
    /// In no order.
    at_ps: Vec<u64>,
    /// Used by [`hand_over`] alone.
    closes: Closes,
}

/// What a lane has counted and put aside since it was last asked.
#[derive(Debug, Default)]
struct Tally {
    /// Arrivals, and what came late.
    events: u64,
    hops: u64,
    hop_bytes: u64,
    injected: Volume,
    delivered: Volume,
    dropped: Volume,
    /// Packets that were dropped, of which their connections are to hear.
    lost: Vec<Wire>,
    looks: Vec<Look>,
    gone: Vec<Gone>,
}

/// What the first thread reads of a lane after each task.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Report {
    /// The task that is done.
    number: AtomicU64,
    /// Of the stretch.
    events: AtomicU64,
    /// When the last event was, the next arrival is, and how many the day has left.
    last_ps: AtomicU64,
    next_ps: AtomicU64,
    left: AtomicU64,
    /// When the next late event is.
    late_ps: AtomicU64,
    /// How many arrivals and cuts the day had when it began, and when the first cut was. Others look at these when this
    /// lane may have gone on.
    arrivals: AtomicU64,
    cut_count: AtomicU64,
    cut_ps: AtomicU64,
    /// Its tally has something that others have to do with.
    has_news: AtomicBool,
}

/// What lanes have beside their ports and connections.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    /// Of a day that begins on one thread, by lane, and for each lane.
    posts: Vec<Vec<Post>>,
    open: Vec<Open>,
    /// Instants of the day that are left to one thread, the last one first, as far as they are still to come.
    cuts: Vec<u64>,
    /// By lane, when the next packet arrives today, as long as the engine has the lanes: see [`Calendar::due_ps`].
    due_ps: Vec<u64>,
    /// Kept from one stretch to the next.
    shared: Option<Arc<Shared>>,
}

impl Clone for Rooms {
    /// Threads serve one engine.
    fn clone(&self) -> Self {
        Self { cuts: self.cuts.clone(), due_ps: self.due_ps.clone(), ..Self::default() }
    }
}

impl Report {
    /// See [`Calendar::due_ps`].
    fn due_ps(&self) -> u64 {
        if self.left.load(Ordering::Relaxed) == 0 { u64::MAX } else { self.next_ps.load(Ordering::Relaxed) }
    }

    fn late_ps(&self) -> u64 {
        self.late_ps.load(Ordering::Relaxed)
    }
}

/// What all threads are to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// The day at that instant begins, and goes on to that other one if threads are of use.
    Day {
        at_ps: u64,
        to_ps: u64,
    },
    /// All arrivals of the day up to that instant.
    Segment {
        to_ps: u64,
    },
    Stop,
}

/// What threads work on: in a stretch the engine's, and nothing outside.
#[derive(Debug)]
pub(super) struct Shared {
    config: TcpConfig,
    map: Map,
    bounds: DayBounds,
    arrivals_least: u64,
    /// By lane.
    hands: Vec<RwLock<Hands>>,
    /// By lane that hands over, and lane that takes in.
    posts: Vec<Vec<RwLock<Post>>>,
    /// Told when a lane has come to the end of a day.
    open: Vec<RwLock<Open>>,
    reports: Vec<Report>,
    orders: Orders,
    barrier: Barrier,
    bell: Bell,
    /// By lane.
    vain: Vec<Vain>,
    has_failed: AtomicBool,
}

/// How often a thread has looked in vain, since it last did not.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Vain(AtomicU32);

/// Where the first thread says what is to be done. One cache line, which the others watch.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Orders {
    /// Of the task: grows by one each time.
    number: AtomicU64,
    kind: AtomicU64,
    at_ps: AtomicU64,
    to_ps: AtomicU64,
}

impl Orders {
    fn give(&self, task: Task) -> u64 {
        let (kind, at_ps, to_ps) = match task {
            Task::Stop => (0, 0, 0),
            Task::Segment { to_ps } => (1, 0, to_ps),
            Task::Day { at_ps, to_ps } => (2, at_ps, to_ps),
        };
        self.kind.store(kind, Ordering::Relaxed);
        self.at_ps.store(at_ps, Ordering::Relaxed);
        self.to_ps.store(to_ps, Ordering::Relaxed);
        let number = self.number.load(Ordering::Relaxed) + 1;
        self.number.store(number, Ordering::Release);
        number
    }

    /// The task, once its number has been seen.
    fn task(&self) -> Task {
        let to_ps = self.to_ps.load(Ordering::Relaxed);
        match self.kind.load(Ordering::Relaxed) {
            0 => Task::Stop,
            1 => Task::Segment { to_ps },
            _ => Task::Day { at_ps: self.at_ps.load(Ordering::Relaxed), to_ps },
        }
    }
}

/// All threads meet here.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Barrier {
    waiting: AtomicUsize,
    generation: AtomicUsize,
}

/// Where threads sleep that have waited for long, because others have their processors.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Bell {
    sleeper_count: AtomicUsize,
    lock: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Whoever has changed what others wait for says so.
    fn ring(&self) {
        // Either this sees who falls asleep, or that one sees the change.
        fence(Ordering::SeqCst);
        if self.sleeper_count.load(Ordering::Relaxed) > 0 {
            let _lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.rung.notify_all();
        }
    }

    /// Sleeps until it is so.
    #[cold]
    fn sleep_until(&self, is_so: impl Fn() -> bool) {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleeper_count.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !is_so() {
            lock = self.rung.wait(lock).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeper_count.fetch_sub(1, Ordering::Relaxed);
    }
}

// A thread that fails ends them all, so nobody sees what it has left.

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// First part of a day's begin: drives the ports of a lane.
fn collect(lane: &mut Lane, map: &Map, day_ps: u64) {
    let Lane { ports, calendar } = lane;
    calendar.collect(day_ps, ports, |link| map.division.port(PortId(link)).1);
}

/// Second part: hands over what other lanes than `own` have to do with, and finds the instants at which something has to do
/// with more than one end of a connection. What arrives at a host is here already.
fn hand_over(
    own: usize,
    calendar: &mut Calendar,
    ends: &mut Ends,
    posts: &mut [&mut Post],
    (map, bounds): (&Map, &DayBounds),
    cuts: &mut Cuts,
) {
    let Cuts { at_ps: cuts, closes } = cuts;
    cuts.clear();
    let mut pool = take(&mut ends.pool);
    let has_choice = map.has_choice();
    let lane_of = |at_ps, link, packet: &Wire| {
        if has_choice || !packet.is_routine() {
            match concern(ends, link, packet, map, bounds) {
                Concern::Own => (),
                Concern::Both => cuts.push(at_ps),
                Concern::Close => closes.add(at_ps, packet),
            }
        }
        map.lane_of(&ends.pairs, link, packet)
    };
    calendar.hand_over(own, lane_of, &mut pool, posts);
    ends.pool = pool;
    closes.find(|at_ps| cuts.push(at_ps));
}

/// What a packet has to do with that arrives over `link`.
fn concern(ends: &Ends, link: u32, packet: &Wire, map: &Map, bounds: &DayBounds) -> Concern {
    match ends.pairs.place(packet) {
        Some(place) if map.is_last(link) && !packet.is_routine() => ends.concern(place, packet, bounds),
        // It goes the way of whoever has its slot then.
        None if !map.is_last(link) && map.has_choice() => Concern::Both,
        // Nobody hears of what comes for a connection that is gone.
        _ => Concern::Own,
    }
}

/// Last part: takes in what a lane is handed, and puts its day in order.
fn take_in<'a>(calendar: &mut Calendar, ends: &mut Ends, posts: impl Iterator<Item = &'a Post>) {
    posts.for_each(|post| calendar.take_in(post, &mut ends.pool));
    calendar.put_in_order();
}

/// Tells the other threads that this one has failed, unless it comes to its end.
struct Alarm<'a> {
    shared: &'a Shared,
    is_over: bool,
}

impl<'a> Alarm<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self { shared, is_over: false }
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.has_failed.store(true, Ordering::Relaxed);
            self.shared.bell.ring();
        }
    }
}

impl Shared {
    fn new(engine: &PacketEngine) -> Self {
        let count = engine.lanes.len();
        Self {
            config: engine.config.tcp.clone(),
            map: engine.map.clone(),
            bounds: engine.bounds,
            arrivals_least: engine.threads.as_ref().map_or(0, |threads| threads.arrivals_least()),
            hands: (0..count).map(|_| RwLock::default()).collect(),
            posts: (0..count).map(|_| (0..count).map(|_| RwLock::default()).collect()).collect(),
            open: (0..count).map(|_| RwLock::default()).collect(),
            reports: (0..count).map(|_| Report::default()).collect(),
            orders: Orders::default(),
            barrier: Barrier::default(),
            bell: Bell::default(),
            vain: (0..count).map(|_| Vain::default()).collect(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Has thread `index` wait, awake at first, because others are seldom long.
    fn wait_until(&self, index: usize, is_so: impl Fn() -> bool) {
        let is_over = || is_so() || self.has_failed.load(Ordering::Relaxed);
        let Vain(vain) = &self.vain[index];
        let vain_count = vain.load(Ordering::Relaxed);
        let most = if vain_count.is_multiple_of(TRIES) { LOOKS } else { FEW_LOOKS };
        let mut looks = 0;
        while looks < most && !is_over() {
            looks += 1;
            spin_loop();
        }
        if looks == most {
            // Others have its processor, or that of whom it waits for.
            vain.store(vain_count.wrapping_add(1), Ordering::Relaxed);
            self.bell.sleep_until(is_over);
        } else if vain_count > 0 {
            vain.store(0, Ordering::Relaxed);
        }
        assert!(is_so(), "another thread has failed");
    }

    /// Returns when all threads have called it.
    fn meet(&self, index: usize) {
        let Barrier { waiting, generation } = &self.barrier;
        let present = generation.load(Ordering::Acquire);
        if waiting.fetch_add(1, Ordering::AcqRel) + 1 == self.hands.len() {
            waiting.store(0, Ordering::Relaxed);
            generation.store(present.wrapping_add(1), Ordering::Release);
            self.bell.ring();
        } else {
            self.wait_until(index, || generation.load(Ordering::Acquire) != present);
        }
    }

    /// What thread `index` does from task `number` on until it is to stop, but for the first, which says what to do.
    fn work(&self, index: usize, mut number: u64) {
        let mut alarm = Alarm::new(self);
        loop {
            self.wait_until(index, || self.orders.number.load(Ordering::Acquire) == number);
            let task = self.orders.task();
            self.take_part(index, task);
            self.reports[index].number.store(number, Ordering::Release);
            self.bell.ring();
            if task == Task::Stop {
                alarm.is_over = true;
                return;
            }
            number += 1;
        }
    }

    /// Has all threads do something; whether they have gone through arrivals.
    fn all(&self, task: Task) -> bool {
        let number = self.orders.give(task);
        self.bell.ring();
        let goes_on = self.take_part(0, task);
        for report in &self.reports[1..] {
            self.wait_until(0, || report.number.load(Ordering::Acquire) == number);
        }
        goes_on
    }

    fn take_part(&self, index: usize, task: Task) -> bool {
        let to_ps = match task {
            Task::Stop => return false,
            Task::Segment { to_ps } => to_ps,
            Task::Day { at_ps, to_ps } => {
                self.begin_day(index, at_ps);
                if !self.is_worth() {
                    return false;
                }
                to_ps.min(self.least(|report| &report.cut_ps))
            }
        };
        self.drive(index, to_ps);
        true
    }

    /// Whether threads are of use in the day that has begun.
    fn is_worth(&self) -> bool {
        let (arrivals, cuts) = (self.sum(|report| &report.arrivals), self.sum(|report| &report.cut_count));
        is_worth(self.reports.len(), arrivals, cuts, self.arrivals_least)
    }

    fn begin_day(&self, index: usize, day_ps: u64) {
        {
            // Each thread begins with another one, so that they do not ask for the same at once.
            let count = self.open.len();
            let open: Vec<_> = (0..count).map(|ahead| read(&self.open[(index + ahead) % count])).collect();
            let labels = open[0].labels(open[1..].iter().map(|other| &**other));
            write(&self.hands[index]).lane.calendar.label(&labels);
        }
        {
            let Hands { lane, ends, cuts, .. } = &mut *write(&self.hands[index]);
            collect(lane, &self.map, day_ps);
            let Report { arrivals, cut_count, cut_ps, .. } = &self.reports[index];
            arrivals.store(lane.calendar.count() as u64, Ordering::Relaxed);
            let mut posts: Vec<_> = self.posts[index].iter().map(write).collect();
            let mut posts: Vec<_> = posts.iter_mut().map(|post| &mut **post).collect();
            hand_over(index, &mut lane.calendar, ends, &mut posts, (&self.map, &self.bounds), cuts);
            cut_count.store(cuts.at_ps.len() as u64, Ordering::Relaxed);
            cut_ps.store(cuts.at_ps.iter().copied().min().unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        self.meet(index);
        let posts: Vec<_> = self.posts.iter().map(|posts| read(&posts[index])).collect();
        let Hands { lane, ends, .. } = &mut *write(&self.hands[index]);
        take_in(&mut lane.calendar, ends, posts.iter().map(|post| &**post));
        self.look_at(index, &mut lane.calendar, ends);
    }

    /// Goes through the day of a lane, up to an instant.
    fn drive(&self, index: usize, to_ps: u64) {
        let Hands { lane, ends, tally, .. } = &mut *write(&self.hands[index]);
        let Lane { ports, calendar } = &mut **lane;
        let map = &self.map;
        let mut out = Vec::new();
        let mut last_ps = 0;
        let place = |port: PortId| map.division.port(port).1;
        let put =
            |at: Moment, port: &mut Port, packet: Wire, calendar: &mut Calendar, ends: &mut Ends, tally: &mut Tally| {
                if port.send(at, packet, calendar) == Verdict::Dropped {
                    tally.dropped.add(&packet);
                    ends.pool.forget(packet);
                    if packet.matters_when_lost() {
                        tally.lost.push(packet);
                    }
                }
            };
        let mut late_ps = ends.late_ps();
        loop {
            let next_ps = calendar.due_ps();
            let (now_ps, planned_ps, answer, user) = if next_ps < to_ps && next_ps <= late_ps {
                let (planned_ps, link, &packet) = calendar.pop();
                tally.events += 1;
                tally.hops += 1;
                tally.hop_bytes += u64::from(packet.wire_bytes);
                last_ps = next_ps;
                let node = map.ends[link as usize];
                if node.0 >= map.host_count {
                    let at = Moment { now_ps: next_ps, planned_ps, label: open_label(calendar.open_place()) };
                    let port = &mut ports[place(map.port_of(&ends.pairs, node, &packet))];
                    put(at, port, packet, calendar, ends, tally);
                    continue;
                }
                tally.delivered.add(&packet);
                let Some(end) = ends.pairs.place(&packet) else {
                    ends.pool.forget(packet);
                    continue;
                };
                let room_bytes = if packet.flags & flag::REVERSE == 0 {
                    u64::MAX
                } else {
                    let card = &mut ports[place(map.first(HostId(packet.dst)))];
                    card.room_bytes((next_ps, planned_ps), packet.connection, calendar)
                };
                let (now, looks) = (Time::from_ps(next_ps), &mut tally.looks);
                let plan = |plan| match plan {
                    Plan::Look(look) => looks.push(look),
                    Plan::Late(at_ps) => late_ps = late_ps.min(at_ps),
                };
                let arrived = Arrived { now, packet: &packet, place: end, room_bytes, cause: || calendar.cause() };
                let answer = ends.deliver(&self.config, arrived, &mut out, plan);
                (next_ps, planned_ps, answer, (packet.connection, packet.generation))
            } else {
                if late_ps >= to_ps.min(calendar.day_end_ps()) {
                    break;
                }
                let Some(late) = ends.pop_late() else { break };
                let looks = &mut tally.looks;
                let plan = |plan| {
                    if let Plan::Look(look) = plan {
                        looks.push(look);
                    }
                };
                let room_bytes = ends.sends_late(&late).map_or(u64::MAX, |card| {
                    ports[place(card)].room_bytes((late.at_ps, late.planned_ps), late.connection, calendar)
                });
                let answer = ends.on_late(&self.config, &late, room_bytes, &mut out, plan);
                late_ps = ends.late_ps();
                if answer.is_some() {
                    tally.events += 1;
                    last_ps = late.at_ps;
                }
                calendar.set_late(Some(late));
                (late.at_ps, late.planned_ps, answer, (late.connection, late.generation))
            };
            if let Some((port, news)) = answer {
                debug_assert!(!matches!(news, News::Reached | News::Closed), "that ends a segment");
                if news == News::Gone {
                    let (event, (connection, generation)) = (calendar.event(), user);
                    tally.gone.push(Gone { at_ps: now_ps, event, connection, generation });
                }
                let at = Moment { now_ps, planned_ps, label: open_label(calendar.open_place()) };
                for packet in out.drain(..) {
                    tally.injected.add(&packet);
                    if self.config.follow == Follow::Standards {
                        calendar.enter_card(&packet);
                    }
                    put(at, &mut ports[place(port)], packet, calendar, ends, tally);
                }
            }
            calendar.set_late(None);
        }
        let report = &self.reports[index];
        report.events.store(tally.events, Ordering::Relaxed);
        report.last_ps.store(last_ps, Ordering::Relaxed);
        let has_news = !(tally.lost.is_empty() && tally.looks.is_empty() && tally.gone.is_empty());
        report.has_news.store(has_news, Ordering::Relaxed);
        self.look_at(index, calendar, ends);
    }

    /// A time before which nothing arrives: while the day is not over, when the next packet arrives.
    fn next_ps(&self) -> u64 {
        self.least(|report| &report.next_ps)
    }

    /// When the next late event of a lane is.
    fn late_ps(&self) -> u64 {
        self.least(|report| &report.late_ps)
    }

    /// How many arrivals the day has left.
    fn left(&self) -> u64 {
        self.sum(|report| &report.left)
    }

    /// The least of what all lanes report.
    fn least(&self, of: impl Fn(&Report) -> &AtomicU64) -> u64 {
        self.reports.iter().map(|report| of(report).load(Ordering::Relaxed)).min().unwrap_or(u64::MAX)
    }

    fn sum(&self, of: impl Fn(&Report) -> &AtomicU64) -> u64 {
        self.reports.iter().map(|report| of(report).load(Ordering::Relaxed)).sum()
    }

    /// Gives an engine what it has given for this, or takes it.
    fn exchange(&self, engine: &mut PacketEngine) {
        let connections = &mut engine.hosts.connections;
        let (first, more) = self.hands.split_first().expect("there are lanes");
        let first = &mut *write(first);
        swap(&mut engine.lanes.first, &mut first.lane);
        swap(&mut connections.ends.first, &mut first.ends);
        for ((lane, ends), hands) in engine.lanes.more.iter_mut().zip(&mut connections.ends.more).zip(more) {
            let hands = &mut *write(hands);
            swap(lane, &mut hands.lane);
            swap(ends, &mut hands.ends);
        }
    }

    /// The engine, which has everything, is about to give it back.
    fn look_at_all(&self, engine: &mut PacketEngine) {
        (0..engine.lanes.len()).for_each(|index| self.look_at_lane(index, engine));
    }

    fn look_at_lane(&self, index: usize, engine: &mut PacketEngine) {
        self.look_at(index, &mut engine.lanes[index].calendar, &engine.hosts.connections.ends[index]);
    }

    /// Tells what all are to know of a lane.
    fn look_at(&self, index: usize, calendar: &mut Calendar, ends: &Ends) {
        let report = &self.reports[index];
        report.next_ps.store(calendar.next_ps(), Ordering::Relaxed);
        report.left.store(calendar.left() as u64, Ordering::Relaxed);
        report.late_ps.store(ends.late_ps(), Ordering::Relaxed);
        if calendar.day_is_over() {
            calendar.tell_open(&mut write(&self.open[index]));
        }
    }
}

impl Tally {
    /// Tells the engine.
    fn tell(&mut self, engine: &mut PacketEngine) {
        self.tell_news(engine);
        let Self { hops, hop_bytes, injected, delivered, dropped, .. } = std::mem::take(self);
        engine.counters.packet_hops += hops;
        engine.counters.hop_bytes += hop_bytes;
        engine.injected.add_all(injected);
        engine.delivered.add_all(delivered);
        engine.dropped.add_all(dropped);
    }

    /// Tells it what others have to do with.
    fn tell_news(&mut self, engine: &mut PacketEngine) {
        self.lost.drain(..).for_each(|packet| engine.hosts.on_loss(engine.now, &packet));
        let now_ps = engine.now.ps();
        assert!(self.looks.iter().all(|look| look.at_ps > now_ps), "a segment ends before a deadline that comes in it");
        engine.hosts.look_at(self.looks.drain(..));
        engine.hosts.add_gone(self.gone.drain(..));
    }
}

impl Rooms {
    /// A day has begun, and lanes have these.
    fn set_cuts<'a>(&mut self, cuts: impl Iterator<Item = &'a Cuts>) {
        self.cuts.clear();
        cuts.for_each(|cuts| self.cuts.extend_from_slice(&cuts.at_ps));
        self.cuts.sort_unstable_by_key(|&cut_ps| Reverse(cut_ps));
        self.cuts.dedup();
    }

    /// When the next packet arrives today; `u64::MAX` if none does.
    #[inline]
    pub fn due_ps(&self) -> u64 {
        self.due_ps.iter().copied().min().unwrap_or(u64::MAX)
    }

    /// All lanes may have gone on.
    fn set_due(&mut self, due_ps: impl Iterator<Item = u64>) {
        self.due_ps.clear();
        self.due_ps.extend(due_ps);
    }

    /// A lane has gone on.
    #[inline]
    pub fn see_due(&mut self, lane: usize, calendar: &Calendar) {
        self.due_ps[lane] = calendar.due_ps();
    }

    /// The next cut that is not before an instant.
    fn next_cut_ps(&mut self, from_ps: u64) -> u64 {
        while self.cuts.pop_if(|cut_ps| *cut_ps < from_ps).is_some() {}
        self.cuts.last().copied().unwrap_or(u64::MAX)
    }
}

/// Whether threads are of use for so many arrivals in so many segments but one, where each needs so many on average.
fn is_worth(lane_count: usize, arrivals: u64, cut_count: u64, arrivals_least: u64) -> bool {
    arrivals / lane_count as u64 >= arrivals_least * (1 + cut_count)
}

impl PacketEngine {
    /// Whether threads are of use in what is left of the day.
    #[inline]
    pub(super) fn is_worth_threads(&self) -> bool {
        let Some(threads) = &self.threads else { return false };
        let left = self.lanes.iter().map(|lane| lane.calendar.left() as u64).sum();
        is_worth(self.lanes.len(), left, self.rooms.cuts.len() as u64, threads.arrivals_least())
    }

    /// All lanes may have gone on.
    fn see_all_due(&mut self) {
        self.rooms.set_due(self.lanes.iter().map(|lane| lane.calendar.due_ps()));
        self.hosts.see_lanes();
    }

    /// The lane of the next arrival, which is today.
    pub(super) fn next_lane(&self) -> usize {
        let due_ps = self.rooms.due_ps();
        let mut lanes = self.rooms.due_ps.iter().enumerate().filter(|&(_, &ps)| ps == due_ps).map(|(lane, _)| lane);
        let first = lanes.next().expect("something arrives");
        let calendar = |lane: usize| &self.lanes[lane].calendar;
        lanes.fold(first, |first, lane| if calendar(lane).cmp_next(calendar(first)).is_lt() { lane } else { first })
    }

    /// Begins the day of several lanes, on this thread. Nothing is handed over in a day that is too small for threads.
    pub(super) fn begin_day_of_lanes(&mut self, day_ps: u64) {
        let Self { lanes, map, bounds, rooms, hosts, threads, .. } = self;
        let (ends, count) = (&mut hosts.connections.ends, lanes.len());
        rooms.cuts.clear();
        rooms.posts.resize_with(count, || vec![Post::default(); count]);
        rooms.open.resize_with(count, Open::default);
        lanes.iter_mut().zip(&mut rooms.open).for_each(|(lane, open)| lane.calendar.tell_open(open));
        for (own, lane) in lanes.iter_mut().enumerate() {
            let others = (0..count).filter(|&other| other != own).map(|other| &rooms.open[other]);
            lane.calendar.label(&rooms.open[own].labels(others));
            collect(lane, map, day_ps);
        }
        let arrivals = lanes.iter().map(|lane| lane.calendar.count() as u64).sum();
        let arrivals_least = threads.as_ref().map_or(u64::MAX, |threads| threads.arrivals_least());
        if !is_worth(count, arrivals, 0, arrivals_least) {
            for Lane { calendar, .. } in lanes.iter_mut() {
                calendar.put_in_order();
                calendar.sweep();
            }
            self.see_all_due();
            return;
        }
        let mut cuts = Vec::new();
        for (own, (lane, ends)) in lanes.iter_mut().zip(ends.iter_mut()).enumerate() {
            cuts.push(Cuts::default());
            let mut posts: Vec<_> = rooms.posts[own].iter_mut().collect();
            hand_over(own, &mut lane.calendar, ends, &mut posts, (map, bounds), &mut cuts[own]);
        }
        for (own, (lane, ends)) in lanes.iter_mut().zip(ends.iter_mut()).enumerate() {
            take_in(&mut lane.calendar, ends, rooms.posts.iter().map(|posts| &posts[own]));
        }
        rooms.set_cuts(cuts.iter());
        self.see_all_due();
    }

    /// Goes on with threads up to `end_ps`, or to the next pause or completion, or until days are too small. A day has
    /// begun.
    pub(super) fn go_on_threads(&mut self, end_ps: u64) {
        let Some(threads) = self.threads.clone() else { return };
        let shared = self.rooms.shared.take().unwrap_or_else(|| Arc::new(Shared::new(self)));
        shared.look_at_all(self);
        self.give_lanes(&shared);
        let (theirs, number) = (Arc::clone(&shared), shared.orders.number.load(Ordering::Relaxed) + 1);
        threads.start(shared.hands.len(), Arc::new(move |index| theirs.work(index, number)));
        let mut alarm = Alarm::new(&shared);
        self.lead(&shared, end_ps);
        shared.all(Task::Stop);
        alarm.is_over = true;
        drop(alarm);
        shared.exchange(self);
        self.lanes.iter_mut().zip(&shared.open).for_each(|(lane, told)| lane.calendar.take_back_open(&mut write(told)));
        shared.hands.iter().for_each(|hands| write(hands).tally.tell(self));
        self.hosts.release_gone();
        self.see_all_due();
        self.refresh_other();
        self.rooms.shared = Some(shared);
    }

    /// What the first thread does while the others work with it.
    fn lead(&mut self, shared: &Shared, end_ps: u64) {
        let (events_before, mut events_alone) = (self.counters.events, 0);
        while self.counters.events < self.pause_at {
            let (next_ps, left) = (shared.next_ps(), shared.left());
            if left == 0 {
                // Lanes do what is late by themselves, but only while they go through a day.
                let other_ps = self.other_ps.min(shared.late_ps());
                let is_other = other_ps < next_ps || (self.other_ps == next_ps && !self.other_late);
                if next_ps.min(other_ps) >= end_ps {
                    return;
                }
                if is_other {
                    let before = self.counters.events;
                    let goes_on = self.alone(shared, other_ps);
                    events_alone += self.counters.events - before;
                    if !goes_on {
                        return;
                    }
                    continue;
                }
                self.begin_day_of_hosts(shared, next_ps);
                let goes_on = shared.all(Task::Day { at_ps: next_ps, to_ps: self.other_ps.min(end_ps) });
                // Hands are in other processors' caches.
                self.rooms.cuts.clear();
                if shared.sum(|report| &report.cut_count) > 0 {
                    let hands: Vec<_> = shared.hands.iter().map(read).collect();
                    self.rooms.set_cuts(hands.iter().map(|hands| &hands.cuts));
                }
                if !goes_on {
                    return;
                }
                self.hear(shared, events_before + events_alone);
                continue;
            }
            let cut_ps = self.rooms.next_cut_ps(next_ps).min(self.other_ps);
            if next_ps < cut_ps.min(end_ps) {
                shared.all(Task::Segment { to_ps: cut_ps.min(end_ps) });
                self.hear(shared, events_before + events_alone);
            } else {
                let before = self.counters.events;
                if cut_ps >= end_ps || !self.alone(shared, cut_ps) {
                    return;
                }
                events_alone += self.counters.events - before;
            }
        }
    }

    /// Lanes have everything to themselves from now on.
    fn give_lanes(&mut self, shared: &Shared) {
        shared.exchange(self);
        self.hosts.set_lanes_late(shared.reports.iter().map(|_| NEVER));
        self.refresh_other();
    }

    /// A day begins for connections.
    fn begin_day_of_hosts(&mut self, shared: &Shared, day_ps: u64) {
        let end_ps = day_ps + self.bounds.length_ps;
        if self.hosts.has_news(day_ps, end_ps) {
            shared.exchange(self);
            self.hosts.release_gone();
            self.hosts.hear_losses(day_ps);
            self.hosts.look_ahead(end_ps);
            shared.exchange(self);
            self.refresh_other();
        }
    }

    /// What happens up to an instant and at it, on this thread; `false` if a flow is complete, of which the caller is to
    /// hear.
    fn alone(&mut self, shared: &Shared, to_ps: u64) -> bool {
        shared.exchange(self);
        self.hosts.release_gone();
        // Lanes report it; their calendars are in other processors' caches.
        self.rooms.set_due(shared.reports.iter().map(Report::due_ps));
        self.hosts.set_lanes_late(shared.reports.iter().map(Report::late_ps));
        self.refresh_other();
        loop {
            let (next_ps, is_other) = self.next_event::<false>();
            if next_ps > to_ps || (!is_other && self.day_is_over::<false>()) {
                break;
            }
            self.take_event::<false>(next_ps, is_other);
        }
        for (index, report) in shared.reports.iter().enumerate() {
            let due_ps = self.rooms.due_ps[index];
            if due_ps == u64::MAX || due_ps != report.due_ps() || self.hosts.lanes_late_ps()[index] != report.late_ps()
            {
                shared.look_at_lane(index, self);
            }
        }
        self.give_lanes(shared);
        self.hosts.done.is_empty()
    }

    /// What lanes have done in a segment, beside so many events.
    fn hear(&mut self, shared: &Shared, events: u64) {
        self.counters.events = events + shared.sum(|report| &report.events);
        let last_ps = shared.reports.iter().map(|report| report.last_ps.load(Ordering::Relaxed)).max();
        // In none, perhaps.
        self.come_to(self.now.ps().max(last_ps.unwrap_or(0)));
        for (report, hands) in shared.reports.iter().zip(&shared.hands) {
            if report.has_news.load(Ordering::Relaxed) {
                write(hands).tally.tell_news(self);
            }
        }
        self.refresh_other();
    }
}
