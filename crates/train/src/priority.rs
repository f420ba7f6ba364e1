//! Priority that follows the remaining slack: in which band each worker of a job sends what it sends next.
//!
//! ```text
//! own compute, what is through ─► Outlook ─► deadline of the chunk ─┐
//! own messages, as they arrive ─► pace of either band, what is left ┴─► low unless that is predicted to be late
//! ```
//!
//! A worker is asked when a chunk begins, and when it has received a message and so sends the next. It answers from what it
//! has seen itself: how far it has computed, how long its rounds took, the order of buckets and which of them are through,
//! which the job's syncer tells all. Nothing here sees a network or a neighbour. `docs/models/adaptive.md` has the rules.

use crate::caramel::Boundaries;
use gradtide_net::{Band, Bytes, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How the workers of a job decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The band of what is late.
    pub high: Band,
    /// The band of what has time.
    pub low: Band,
    /// How much longer than in the high band an iteration may take, in millionths.
    pub tolerance_ppm: u64,
    /// How much longer than measured a worker takes what is left to be, in millionths.
    pub margin_ppm: u64,
    /// Whether the least slack of all workers decides in which band a chunk begins.
    pub exchange: bool,
}

/// Rounds that an average looks back on: an iteration of some twenty buckets on eight workers. Calibration.
const MEMORY: u64 = 256;

/// Picoseconds for 1024 bytes of a chunk.
type Pace = u64;

fn takes(bytes: Bytes, pace: Pace) -> Time {
    let ps = u128::from(bytes.0).saturating_mul(u128::from(pace)) / 1024;
    Time::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
}

/// Later than anything, if the clock does not go so far.
fn after(at: Time, time: Time) -> Time {
    at.checked_add(time).unwrap_or(Time::MAX)
}

fn pace_of(time: Time, bytes: Bytes) -> Pace {
    (u128::from(time.ps()) * 1024 / u128::from(bytes.0.max(1))) as u64
}

fn longer(pace: Pace, ppm: u64) -> Pace {
    let scaled = u128::from(pace) * (1_000_000 + u128::from(ppm)) / 1_000_000;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn share(time: Time, ppm: u64) -> Time {
    Time::from_ps((u128::from(time.ps()) * u128::from(ppm) / 1_000_000) as u64)
}

/// A moving average; of few samples, their mean.
#[derive(Clone, Copy, Debug, Default)]
struct Average {
    mean: u64,
    count: u64,
}

impl Average {
    fn add(&mut self, sample: u64) {
        self.count = (self.count + 1).min(MEMORY);
        let step = sample.abs_diff(self.mean) / self.count;
        self.mean = if sample >= self.mean { self.mean + step } else { self.mean - step };
    }

    fn known(&self) -> Option<u64> {
        (self.count > 0).then_some(self.mean)
    }
}

/// The workers of a job, each with what it has seen.
#[derive(Clone, Debug)]
pub struct Workers {
    rule: Rule,
    own: Vec<Own>,
    iteration: Option<u32>,
    chunk: Bytes,
    /// Messages that each worker receives of the chunk.
    rounds: u32,
}

#[derive(Clone, Copy, Debug)]
struct Own {
    is_high: bool,
    /// Messages received of the chunk, and when the last was; before the first, when the chunk began.
    received: u32,
    since: Time,
    /// Whether its last message has been acknowledged.
    is_delivered: bool,
    /// The least that a round has taken it.
    least: Pace,
    /// What a round takes it in either band.
    high: Average,
    low: Average,
    /// What is left of the time that the low band may cost in this iteration.
    budget: Time,
    deadline: Time,
}

impl Own {
    /// What a round takes in the high band: no more than in the low one, and the least as long as nothing is known.
    fn high_pace(&self) -> Pace {
        self.high.known().map_or(self.least, |high| self.low.known().map_or(high, |low| high.min(low)))
    }

    fn low_pace(&self) -> Pace {
        self.low.known().unwrap_or(self.least).max(self.high_pace())
    }
}

impl Workers {
    /// `count` workers that have seen nothing.
    pub fn new(rule: Rule, count: usize) -> Self {
        let own = Own {
            is_high: false,
            received: 0,
            since: Time::ZERO,
            is_delivered: true,
            least: 0,
            high: Average::default(),
            low: Average::default(),
            budget: Time::ZERO,
            deadline: Time::MAX,
        };
        Self { rule, own: vec![own; count], iteration: None, chunk: Bytes(0), rounds: 1 }
    }

    /// In which band a worker sends now.
    pub fn band(&self, rank: usize) -> Band {
        self.band_of(self.own[rank].is_high)
    }

    /// The high band, or the low one.
    pub fn band_of(&self, is_high: bool) -> Band {
        if is_high { self.rule.high } else { self.rule.low }
    }

    /// Whether it is the high one.
    pub fn is_high(&self, rank: usize) -> bool {
        self.own[rank].is_high
    }

    /// A chunk of an iteration begins, of which each worker receives `rounds` messages; `outlook` says what is left, as
    /// a worker sees it.
    pub fn begin<'a>(
        &mut self,
        now: Time,
        (iteration, chunk, rounds): (u32, Bytes, u32),
        outlook: &mut dyn FnMut(usize) -> Outlook<'a>,
    ) {
        (self.chunk, self.rounds) = (chunk, rounds.max(1));
        let is_first = self.iteration.replace(iteration) != Some(iteration);
        let mut costs = Vec::with_capacity(self.own.len());
        for rank in 0..self.own.len() {
            let outlook = outlook(rank);
            let own = &mut self.own[rank];
            let (high, low) = (own.high_pace(), own.low_pace());
            let best = outlook.passes_at(after(now, takes(chunk, high)), high);
            if is_first {
                own.budget = share(best - now, self.rule.tolerance_ppm);
            }
            own.deadline = outlook.deadline(after(best, own.budget), longer(high, self.rule.margin_ppm));
            (own.received, own.since, own.is_delivered) = (0, now, true);
            costs.push(outlook.passes_at(after(now, takes(chunk, low)), high).saturating_since(best));
        }
        for rank in 0..self.own.len() {
            self.own[rank].is_high = self.is_late(rank, now);
        }
        if self.rule.exchange && self.own.iter().any(|own| own.is_high) {
            self.own.iter_mut().for_each(|own| own.is_high = true);
        }
        for (own, cost) in self.own.iter_mut().zip(costs) {
            own.is_delivered = false;
            if !own.is_high {
                own.budget = own.budget.saturating_since(cost);
            }
        }
    }

    /// A chunk begins in a band that is chosen for the workers, and that none of them changes.
    pub fn begin_in(&mut self, now: Time, chunk: Bytes, rounds: u32, is_high: bool) {
        (self.chunk, self.rounds) = (chunk, rounds.max(1));
        for own in &mut self.own {
            (own.is_high, own.deadline) = (is_high, Time::MAX);
            (own.received, own.since, own.is_delivered) = (0, now, false);
        }
    }

    /// A worker's own last message has been acknowledged. Acknowledgements are said to take no time: they take half a round
    /// trip, of a message some hundred.
    pub fn on_delivered(&mut self, rank: usize) {
        self.own[rank].is_delivered = true;
    }

    /// A worker has received a message, and sends the next.
    pub fn on_received(&mut self, rank: usize, now: Time) {
        let bytes = self.round_bytes();
        let own = &mut self.own[rank];
        let sample = pace_of(now - own.since, bytes);
        own.least = if own.least == 0 { sample } else { own.least.min(sample) };
        if own.is_high {
            own.high.add(sample)
        } else {
            own.low.add(sample)
        }
        own.received += 1;
        own.since = now;
        if own.received < self.rounds {
            // What is under way would be overtaken and taken for lost.
            let turns = !own.is_high && own.is_delivered && self.is_late(rank, now);
            let own = &mut self.own[rank];
            own.is_high |= turns;
            own.is_delivered = false;
        }
    }

    fn round_bytes(&self) -> Bytes {
        Bytes(self.chunk.0 / u64::from(self.rounds))
    }

    /// Whether the rest of the chunk would end behind its deadline in the low band.
    fn is_late(&self, rank: usize, now: Time) -> bool {
        let own = &self.own[rank];
        let left = Bytes(self.round_bytes().0 * u64::from(self.rounds - own.received));
        after(now, takes(left, own.low_pace())) > own.deadline
    }
}

/// One who knows what will be, and weighs what an iteration loses against what flows gain. No worker can: a bound for
/// what they can do.
#[derive(Clone, Debug)]
pub struct Oracle {
    price_ppm: u64,
    /// Largest flow whose time counts.
    pub small: Bytes,
    /// Pace of whole chunks that all workers send high.
    high: Average,
}

/// What comes of a chunk, sent in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreseen {
    /// When it is through on all workers.
    pub ends: Time,
    /// How long flows are in the network until the last end of all ways, all together.
    pub flow_time_ps: u128,
}

impl Oracle {
    /// One to whom a second of a flow's time is worth so many millionths of a second of an iteration.
    pub fn new(price_ppm: u64, small: Bytes) -> Self {
        Self { price_ppm, small, high: Average::default() }
    }

    /// Which of several ways to send a chunk loses least: the time at which the last worker's compute passes its last need,
    /// and beside it the time of flows at its price. Of equal ways it is the first. What follows the chunk is taken
    /// to be sent at the pace of chunks whose workers all send high, which is the last of the ways.
    ///
    /// # Panics
    /// If there is no way.
    pub fn choose(&mut self, workers: &[Outlook<'_>], ways: &[Foreseen]) -> usize {
        let of_chunk = workers.first().map(|outlook| (outlook.now, outlook.chunk));
        if let (Some((now, chunk)), Some(high)) = (of_chunk, ways.last()) {
            self.high.add(pace_of(high.ends.saturating_since(now), chunk));
        }
        let loss = |&way: &usize| {
            let passes = workers.iter().map(|outlook| outlook.passes_at(ways[way].ends, self.high.mean));
            let passes = u128::from(passes.max().unwrap_or(Time::ZERO).ps());
            (passes * 1_000_000).saturating_add(ways[way].flow_time_ps.saturating_mul(self.price_ppm.into()))
        };
        (0..ways.len()).min_by_key(loss).expect("there is a way")
    }
}

/// What is left to be sent of an iteration, as a worker sees it when a chunk begins.
#[derive(Clone, Copy, Debug)]
pub struct Outlook<'a> {
    /// Between which offsets of compute each bucket can be sent.
    pub boundaries: &'a Boundaries,
    /// All their ends, in order.
    pub milestones: &'a [Milestone],
    /// The order of the queue.
    pub ranks: &'a [u32],
    /// Present time, and how far compute has come from the start of the iteration.
    pub now: Time,
    /// See `now`.
    pub position: Time,
    /// Bytes of every bucket that have not arrived, without those of the chunk.
    pub left: &'a [Bytes],
    /// Whose chunk begins.
    pub bucket: u32,
    /// Its bytes.
    pub chunk: Bytes,
}

/// Where a bucket becomes ready, or is needed; the latter behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Milestone {
    /// Offset of compute.
    pub at: Time,
    /// Which of the two.
    pub is_need: bool,
    /// Which.
    pub bucket: u32,
}

impl Milestone {
    /// Those of all buckets, in the order in which compute passes them; the next iteration behind this one.
    pub fn all(boundaries: &Boundaries) -> Vec<Self> {
        let of_bucket = |(bucket, window): (u32, &crate::caramel::Window)| {
            let need = Self { at: boundaries.compute + window.read, is_need: true, bucket };
            [Self { at: window.update, is_need: false, bucket }, need]
        };
        let mut all: Vec<Self> = (0..).zip(&boundaries.windows).flat_map(of_bucket).collect();
        all.sort_unstable();
        all
    }
}

impl Outlook<'_> {
    /// The latest that the chunk may end for compute to pass what it needs last by `goal`, if all that follows is sent at
    /// `pace`; the present if it would be late in any case. Latest finish times, from a forward simulation and not
    /// from the end back: which bucket goes when hangs on when the chunk ends.
    pub fn deadline(&self, goal: Time, pace: Pace) -> Time {
        let (mut from, mut to) = (self.now.ps(), goal.ps().max(self.now.ps()));
        if self.passes_at(self.now, pace) > goal {
            return self.now;
        }
        // To a microsecond: nothing that is decided takes less.
        while to - from > 1_000_000 {
            let middle = from + (to - from) / 2;
            if self.passes_at(Time::from_ps(middle), pace) <= goal { from = middle } else { to = middle }
        }
        Time::from_ps(from)
    }

    /// When compute passes the last need, if the chunk ends at `ends`.
    fn passes_at(&self, ends: Time, pace: Pace) -> Time {
        let Self { left, bucket: current, .. } = *self;
        let mut free_at = ends;
        let mut queue: BinaryHeap<Reverse<(u32, u32)>> = BinaryHeap::new();
        // When each bucket is there; MAX: not sent yet.
        let mut there: Vec<Time> = left.iter().map(|left| if left.0 > 0 { Time::MAX } else { Time::ZERO }).collect();
        if left[current as usize].0 == 0 {
            there[current as usize] = ends;
        }
        for (bucket, window) in (0..).zip(&self.boundaries.windows) {
            if left[bucket as usize].0 > 0 && window.update <= self.position {
                queue.push(Reverse((self.ranks[bucket as usize], bucket)));
            }
        }
        let (mut now, mut position) = (self.now, self.position);
        let send = |queue: &mut BinaryHeap<Reverse<(u32, u32)>>, free_at: &mut Time, there: &mut Vec<Time>| {
            let Reverse((_, bucket)) = queue.pop()?;
            *free_at = after(*free_at, takes(left[bucket as usize], pace));
            there[bucket as usize] = *free_at;
            Some(())
        };
        for &Milestone { at, is_need, bucket } in self.milestones {
            if at < self.position || (!is_need && at == self.position) {
                continue;
            }
            now = after(now, at - position);
            position = at;
            while free_at < now && send(&mut queue, &mut free_at, &mut there).is_some() {}
            if !is_need {
                if left[bucket as usize].0 > 0 {
                    free_at = free_at.max(now);
                    queue.push(Reverse((self.ranks[bucket as usize], bucket)));
                }
                continue;
            }
            while there[bucket as usize] == Time::MAX && send(&mut queue, &mut free_at, &mut there).is_some() {}
            now = now.max(there[bucket as usize]);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caramel::Window;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000_000;

    fn ms(count: u64) -> Time {
        Time::from_ps(count * MS)
    }

    /// Windows of (bytes, update, read) in ms, of an iteration that computes for `compute` ms.
    fn boundaries(compute: u64, windows: &[(u64, u64, u64)]) -> Boundaries {
        let window = |&(bytes, update, read): &(u64, u64, u64)| Window {
            bytes: Bytes(bytes),
            update: ms(update),
            read: ms(read),
        };
        Boundaries { compute: ms(compute), windows: windows.iter().map(window).collect() }
    }

    /// A pace at which 1024 bytes take a millisecond.
    const SLOW: Pace = MS;

    fn outlook<'a>(
        boundaries: &'a Boundaries,
        milestones: &'a [Milestone],
        left: &'a [Bytes],
        ranks: &'a [u32],
        at: u64,
    ) -> Outlook<'a> {
        let (now, position) = (ms(at), ms(at));
        Outlook { boundaries, milestones, ranks, now, position, left, bucket: 0, chunk: Bytes(1024) }
    }

    #[test]
    fn a_chunk_has_time_until_a_more_urgent_one_is_ready() {
        // Bucket 0 is ready at 10 ms and needed at 60; bucket 1 is ready at 30 ms, when the iteration of 30 ms ends, needed at
        // once, and takes 4 ms. Compute passes the last need 30 ms behind the first: at 34 + 30 = 64 ms at best. The chunk of
        // bucket 0 may not be in the way of bucket 1, so it ends by 30 ms.
        let boundaries = boundaries(30, &[(1024, 10, 30), (4096, 30, 0)]);
        let milestones = Milestone::all(&boundaries);
        let left = [Bytes(0), Bytes(4096)];
        let outlook = outlook(&boundaries, &milestones, &left, &[1, 0], 10);
        let best = outlook.passes_at(ms(11), SLOW);
        assert_eq!(best, ms(64));
        let deadline = outlook.deadline(best, SLOW);
        assert!(ms(30) >= deadline && deadline >= ms(30) - Time::from_ps(1_000_000), "{deadline:?}");
        // With 5 ms to lose it may be 5 ms in its way.
        let deadline = outlook.deadline(best + ms(5), SLOW);
        assert!(ms(35) >= deadline && deadline >= ms(35) - Time::from_ps(1_000_000), "{deadline:?}");
    }

    #[test]
    fn without_anything_behind_it_a_chunk_has_its_slack() {
        let boundaries = boundaries(30, &[(1024, 10, 20)]);
        let milestones = Milestone::all(&boundaries);
        let outlook = outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 10);
        let best = outlook.passes_at(ms(11), SLOW);
        let deadline = outlook.deadline(best, SLOW);
        assert!(ms(50) >= deadline && deadline >= ms(50) - Time::from_ps(1_000_000), "{deadline:?}");
    }

    #[test]
    fn an_oracle_weighs_an_iteration_against_flows() {
        // The chunk is needed at 40 ms and begins at 10; it ends 5 ms late if low, and flows are 20 ms less in the network.
        let boundaries = boundaries(30, &[(1024, 10, 10)]);
        let milestones = Milestone::all(&boundaries);
        let outlook = outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 10);
        let way = |end, flows| Foreseen { ends: ms(end), flow_time_ps: u128::from(flows * MS) };
        let choice = |price_ppm, ways: &[Foreseen]| Oracle::new(price_ppm, Bytes(100)).choose(&[outlook], ways);
        let ways = [way(45, 30), way(12, 50)];
        assert_eq!(choice(249_999, &ways), 1);
        assert_eq!(choice(250_000, &ways), 0, "of two that are alike it is the first");
        // Within the slack it costs nothing.
        assert_eq!(choice(0, &[way(40, 30), way(12, 50)]), 0);
        // Flows may be worse off.
        assert_eq!(choice(1, &[way(40, 51), way(12, 50)]), 1);
        assert_eq!(choice(u64::MAX, &[way(40, 51), Foreseen { ends: Time::MAX, flow_time_ps: u128::MAX }]), 0);
    }

    /// What is left of a random iteration at a random moment; ranks are a permutation.
    fn remainders() -> impl Strategy<Value = (Boundaries, Vec<Bytes>, Vec<u32>, u64)> {
        let window = (1_u64..5_000, 1_u64..40, 0_u64..40);
        (proptest::collection::vec(window, 1..6), 1_u64..40).prop_flat_map(|(windows, at)| {
            let ranks: Vec<u32> = (0..windows.len() as u32).collect();
            Just(ranks).prop_shuffle().prop_map(move |ranks| {
                let boundaries = boundaries(40, &windows);
                let mut left: Vec<Bytes> = boundaries.windows.iter().map(|window| window.bytes).collect();
                left[0] = Bytes(0);
                (boundaries, left, ranks, at)
            })
        })
    }

    proptest! {
        #[test]
        fn compute_never_gains_by_a_chunk_that_ends_later(
            (boundaries, left, ranks, at) in remainders(), first in 0_u64..90, second in 0_u64..90,
        ) {
            let milestones = Milestone::all(&boundaries);
            let outlook = outlook(&boundaries, &milestones, &left, &ranks, at);
            let [early, late] = [first.min(second), first.max(second)].map(|end| outlook.passes_at(ms(at + end), SLOW));
            // Not strict lists: behind a chunk that ends later another order may be shorter by one bucket (Graham's
            // anomalies), but the last need waits for all of them.
            let most = left.iter().map(|left| takes(*left, SLOW)).max().unwrap_or(Time::ZERO);
            prop_assert!(early <= late + most);
        }

        #[test]
        fn a_deadline_can_be_met_and_is_not_before_now(
            (boundaries, left, ranks, at) in remainders(), budget in 0_u64..20,
        ) {
            let milestones = Milestone::all(&boundaries);
            let outlook = outlook(&boundaries, &milestones, &left, &ranks, at);
            let goal = outlook.passes_at(ms(at), SLOW) + ms(budget);
            let deadline = outlook.deadline(goal, SLOW);
            prop_assert!(deadline >= ms(at));
            prop_assert!(outlook.passes_at(deadline, SLOW) <= goal);
        }

        #[test]
        fn with_endless_slack_all_is_low_and_with_an_endless_margin_high(
            rounds in 1_u32..20, times in proptest::collection::vec(1_u64..1_000, 1..40), exchange: bool,
        ) {
            let [high, low] = [0, 2].map(|band| Band::new(band).unwrap());
            let boundaries = boundaries(1_000_000_000, &[(1024, 0, 500_000_000), (1024, 1, 1)]);
            let milestones = Milestone::all(&boundaries);
            for (margin_ppm, left) in [(0, Bytes(0)), (u64::MAX, Bytes(1024))] {
                let mut workers = Workers::new(Rule { high, low, tolerance_ppm: 0, margin_ppm, exchange }, 3);
                let mut now = Time::ZERO;
                for (chunk, time) in times.iter().enumerate() {
                    let left = [Bytes(0), left];
                    let outlook = Outlook {
                        boundaries: &boundaries, milestones: &milestones, ranks: &[0, 1], now, position: Time::ZERO,
                        left: &left, bucket: 0, chunk: Bytes(1024),
                    };
                    workers.begin(now, (0, Bytes(1024), rounds), &mut |_| outlook);
                    for _ in 0..rounds {
                        now += ms(*time);
                        // From the second chunk on there is a pace to be multiplied.
                        let expected = margin_ppm > 0 && chunk > 0;
                        (0..3).for_each(|rank| workers.on_delivered(rank));
                        for rank in 0..3 {
                            if chunk > 0 || margin_ppm == 0 {
                                prop_assert_eq!(workers.is_high(rank), expected);
                            }
                            workers.on_received(rank, now);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_worker_turns_high_only_when_nothing_of_its_own_is_under_way() {
        let [high, low] = [0, 2].map(|band| Band::new(band).unwrap());
        let boundaries = boundaries(100, &[(1024, 0, 0)]);
        let milestones = Milestone::all(&boundaries);
        let mut workers = Workers::new(Rule { high, low, tolerance_ppm: 0, margin_ppm: 0, exchange: true }, 2);
        workers
            .begin(Time::ZERO, (0, Bytes(1024), 4), &mut |_| outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 0));
        assert!(!workers.is_high(0) && !workers.is_high(1));
        // Needed at 100 ms; a round has taken 90 ms, so that the three that are left come too late.
        workers.on_delivered(0);
        workers.on_received(0, ms(90));
        workers.on_received(1, ms(90));
        assert!(workers.is_high(0));
        assert!(!workers.is_high(1), "its message would be overtaken");
        workers.on_delivered(1);
        workers.on_received(1, ms(91));
        assert!(workers.is_high(1));
    }
}
