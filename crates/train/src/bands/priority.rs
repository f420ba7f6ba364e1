//! Priority that follows the remaining slack: in which band each worker of a job sends what it sends next.
//!
//! ```text
//! own compute, ended buckets   ─► Outlook ─► deadline of the chunk ─┐
//! own messages, as they arrive ─► pace of either band, what is left ┴─► low unless that is predicted to be late
//! ```
//!
//! A worker chooses a band when a chunk begins, and when a message has arrived and it sends the next one. It uses only
//! what it has seen itself: how far it has computed, how long its rounds took, the order of the buckets, and which of
//! them have ended, which the job's syncer tells all workers. Nothing here sees the network or background flows.
//! `docs/models/adaptive.md` has the rules.

use crate::caramel::Boundaries;
use crate::collective::messages::Bands;
use gradtide_net::{Band, Bytes, Rate, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How the workers of a job decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The band of what is late.
    pub high: Band,
    /// The band of what has time.
    pub low: Band,
    /// Whether anything is ever late: all goes low if not.
    pub has_deadlines: bool,
    /// Chunks under way at one time as long as they go low; those that go high wait for each other.
    pub credit: usize,
    /// Most bytes that a connection has under way in the low band.
    pub window: Bytes,
    /// Rate of the slowest link, and a round trip without queues.
    pub link: Rate,
    /// See `link`.
    pub round_trip: Time,
    /// How much longer than in the high band an iteration may take, in millionths.
    pub tolerance_ppm: u64,
    /// How much longer than measured a worker takes what is left to be, in millionths.
    pub margin_ppm: u64,
    /// Whether the least slack of all workers decides in which band a chunk begins.
    pub exchange: bool,
    /// Whether a worker may be late by as long as it waits for slower ones anyway.
    pub counts_waits: bool,
}

impl Rule {
    /// Bands of ranks that change them.
    pub fn bands_of(&self, ranks: usize, band: impl Fn(usize) -> Band) -> Bands {
        Bands::OfRank { bands: (0..ranks).map(band).collect(), low: self.low, window: self.window }
    }
}

/// Rounds that an average looks back on: an iteration of some twenty buckets on eight workers. Calibration.
const MEMORY: u64 = 128;

/// How many times as long as on an idle network a round may take in the high band for the low one to be tried: where
/// the job gets a smaller share of its links, almost nothing is left for the low band. Calibration.
const BUSY: u64 = 6;

/// Chunks that the spread of their ends looks back on. Calibration.
const SPREAD_MEMORY: u64 = 16;

/// Iterations whose budgets are kept for later.
const SAVED: u64 = 8;

/// Iterations in which a worker must have waited for slower ones, to count on it in the next. Not calibrated.
const WAITED: usize = 8;

/// Chunks that the oracle's average looks back on.
const ORACLE_MEMORY: u64 = 256;

/// Picoseconds for 1024 bytes of a chunk.
type PsPerKib = u64;

fn takes(bytes: Bytes, pace: PsPerKib) -> Time {
    let ps = u128::from(bytes.0).saturating_mul(u128::from(pace)) / 1024;
    Time::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
}

/// Later than anything, if the clock does not go so far.
fn after(at: Time, time: Time) -> Time {
    at.checked_add(time).unwrap_or(Time::MAX)
}

fn pace_of(time: Time, bytes: Bytes) -> PsPerKib {
    (u128::from(time.ps()) * 1024 / u128::from(bytes.0.max(1))) as u64
}

fn longer(pace: PsPerKib, ppm: u64) -> PsPerKib {
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
    fn add(&mut self, sample: u64, memory: u64) {
        self.count = (self.count + 1).min(memory);
        let step = sample.abs_diff(self.mean) / self.count;
        self.mean = if sample >= self.mean { self.mean + step } else { self.mean - step };
    }

    fn known(&self, memory: u64) -> Option<u64> {
        (self.count >= memory / 2).then_some(self.mean)
    }
}

/// The workers of a job, each with what it has seen.
#[derive(Clone, Debug)]
pub struct Workers {
    rule: Rule,
    /// One of each, or one of all if they tell one another.
    own: Vec<Own>,
    /// Of each worker.
    waits: Vec<Waits>,
    count: usize,
    iteration: Option<u32>,
}

/// How long a worker waits in an iteration, when it has computed its gradients, for those of slower ones. By so much it
/// may be late, because the job waits for the slower ones. Who is the slowest never waits.
#[derive(Clone, Debug, Default)]
struct Waits {
    /// Those of the last iterations, the latest behind.
    last: VecDeque<Time>,
    /// What is left of the least of them in the present one.
    left: Time,
}

impl Waits {
    fn add(&mut self, wait: Time) {
        self.last.push_back(wait);
        if self.last.len() > WAITED {
            self.last.pop_front();
        }
    }

    /// What a worker can count on: the least, once there are enough.
    fn least(&self) -> Time {
        let least = self.last.iter().min().filter(|_| self.last.len() == WAITED);
        least.copied().unwrap_or(Time::ZERO)
    }
}

/// What one worker has seen, or all of them together.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    /// Messages that are seen in a round, and that averages look back on.
    share: u64,
    memory: u64,
    /// How long the network is busy with what comes while all goes high, and while all goes low.
    high: Average,
    low: Average,
    /// For chunks that begin low, and for those that begin high: the difference between their actual and expected end,
    /// as a share of the expected duration, in millionths. Only chunks that are sent one by one count: of several side
    /// by side, the end of one does not tell the end of all.
    spreads: [Average; 2],
    /// When the last message came, and whether all went high then, or all low.
    since: Time,
    were_high: Option<bool>,
    /// What is left of the time that the low band may cost, and what it has cost beyond that.
    budget: Time,
    debt: Time,
    /// Bytes that went low to find out what that costs.
    tried: Bytes,
    /// Whether the last chunk went high.
    is_high: bool,
}

impl Own {
    fn new(share: u64) -> Self {
        Self { share, memory: MEMORY * share, is_high: true, ..Self::default() }
    }

    /// What bytes take in the high and in the low band, if that is known: in the high one no more than in the other.
    fn paces(&self) -> (Option<PsPerKib>, Option<PsPerKib>) {
        let [high, low] = [self.high, self.low].map(|average| average.known(self.memory));
        (high.map(|high| high.min(low.unwrap_or(PsPerKib::MAX))), low)
    }

    /// An iteration begins, and with it there is `more` that the low band may cost.
    fn save(&mut self, more: Time) {
        let most = Time::from_ps(more.ps().saturating_mul(SAVED));
        self.budget = after(self.budget, more.saturating_since(self.debt)).min(most);
        self.debt = self.debt.saturating_since(more);
    }

    /// The low band costs so much.
    fn spend(&mut self, cost: Time) {
        self.debt = after(self.debt, cost.saturating_since(self.budget));
        self.budget = self.budget.saturating_since(cost);
    }

    /// A chunk has come of which so much was expected.
    fn on_through(&mut self, now: Time, Expected { begun, ends, began_high }: Expected) {
        let way = usize::from(began_high);
        let off = now.ps().abs_diff(ends[way].ps());
        let share_ppm = u128::from(off) * 1_000_000 / u128::from((ends[way] - begun).ps().max(1));
        let sample = u64::try_from(share_ppm).unwrap_or(u64::MAX);
        self.spreads[way].add(sample, SPREAD_MEMORY * self.share);
    }

    /// A message of a round of `bytes` has come.
    fn on_received(&mut self, now: Time, bytes: Bytes, are_high: Option<bool>) {
        let time = now - std::mem::replace(&mut self.since, now);
        if std::mem::replace(&mut self.were_high, are_high) == are_high
            && let Some(is_high) = are_high
        {
            let average = if is_high { &mut self.high } else { &mut self.low };
            average.add(pace_of(time, bytes).saturating_mul(self.share), self.memory);
        }
    }
}

/// A chunk under way.
#[derive(Clone, Debug)]
pub struct Chunk {
    round: Bytes,
    /// Messages that each worker receives of it.
    rounds: u32,
    ranks: Vec<Receiving>,
    /// How many workers send the rest of it high: asked with every message.
    high_count: usize,
}

/// What a worker does with a chunk.
#[derive(Clone, Copy, Debug)]
struct Receiving {
    is_high: bool,
    /// Messages received.
    received: u32,
    deadline: Time,
    /// What was expected of it, if it is alone and anything is known.
    expected: Option<Expected>,
}

/// What a worker expects of a chunk.
#[derive(Clone, Copy, Debug)]
struct Expected {
    begun: Time,
    /// When it ends if it begins low, or high.
    ends: [Time; 2],
    began_high: bool,
}

impl Chunk {
    /// Whether a worker sends the rest of it in the high band.
    pub fn is_high(&self, rank: usize) -> bool {
        self.ranks[rank].is_high
    }

    /// Whether any does.
    pub fn is_high_somewhere(&self) -> bool {
        self.high_count > 0
    }

    /// Whether all workers send the rest of it high, or all low.
    pub fn is_everywhere(&self, is_high: bool) -> bool {
        self.high_count == if is_high { self.ranks.len() } else { 0 }
    }

    /// One of so many bytes in `rounds` messages to each of `count` workers, that all of them send in one band.
    pub fn new(bytes: Bytes, rounds: u32, count: usize, is_high: bool) -> Self {
        let rounds = rounds.max(1);
        let receiving = Receiving { is_high, received: 0, deadline: Time::MAX, expected: None };
        let high_count = if is_high { count } else { 0 };
        Self { round: Bytes(bytes.0 / u64::from(rounds)), rounds, ranks: vec![receiving; count], high_count }
    }

    /// A more urgent one goes high: so does the rest of this.
    pub fn turn_high(&mut self) {
        self.ranks.iter_mut().for_each(|receiving| receiving.is_high = true);
        self.high_count = self.ranks.len();
    }

    /// Bytes that have not come to a worker.
    pub fn left(&self, rank: usize) -> Bytes {
        Bytes(self.round.0 * u64::from(self.rounds - self.ranks[rank].received))
    }
}

impl Workers {
    /// `count` workers that have seen nothing.
    pub fn new(rule: Rule, count: usize) -> Self {
        let own = if rule.exchange { vec![Own::new(count as u64)] } else { vec![Own::new(1); count] };
        Self { rule, own, waits: vec![Waits::default(); count], count, iteration: None }
    }

    /// The band of what is late, or of what has time.
    pub fn band(&self, is_high: bool) -> Band {
        if is_high { self.rule.high } else { self.rule.low }
    }

    /// See [`Rule::credit`].
    pub fn credit(&self) -> usize {
        self.rule.credit
    }

    /// A chunk of an iteration begins, of which each worker receives `rounds` messages; `outlook` says what is left, as
    /// a worker sees it. `None` if it is late and may not go high now.
    pub fn begin<'a>(
        &mut self,
        now: Time,
        (iteration, bytes, rounds): (u32, Bytes, u32),
        may_be_high: bool,
        outlook: &mut dyn FnMut(usize) -> Outlook<'a>,
    ) -> Option<Chunk> {
        let mut chunk = Chunk::new(bytes, rounds, self.count, false);
        if !self.rule.has_deadlines {
            return Some(chunk);
        }
        let is_first = self.iteration.replace(iteration) != Some(iteration);
        let Rule { credit, exchange, tolerance_ppm, margin_ppm, link, round_trip, .. } = self.rule;
        // In every round each worker sends a message of an N-th part, which the next one waits for.
        let message = link.serialize(bytes, 1, self.count as u32).unwrap_or(Time::MAX);
        let idle = pace_of(after(message, round_trip), chunk.round);
        let mut costs = vec![Time::ZERO; self.own.len()];
        let mut lateness = vec![Time::ZERO; self.count];
        for (rank, receiving) in chunk.ranks.iter_mut().enumerate() {
            let outlook = outlook(rank);
            let index = if exchange { 0 } else { rank };
            let own = &mut self.own[index];
            if outlook.ahead.0 == 0 {
                own.since = now;
            }
            let (high, low) = own.paces();
            let is_known = low.is_some();
            let Some(high) = high.filter(|&high| is_known || high <= idle.saturating_mul(BUSY)) else {
                receiving.is_high = true;
                continue;
            };
            let low = low.unwrap_or(high);
            let (begins, rest) = (after(now, takes(outlook.ahead, low)), longer(high, margin_ppm));
            let ends = [low, high].map(|pace| after(begins, takes(bytes, pace)));
            let [if_low, best] = [0, 1].map(|way| outlook.passes_about(ends[way], own.spreads[way].mean, rest));
            let waits = &mut self.waits[rank];
            if is_first {
                waits.left = waits.least();
            }
            lateness[rank] = if_low.saturating_since(best);
            let cost = lateness[rank].saturating_since(waits.left);
            if is_first && rank == index {
                own.save(share(best - now, tolerance_ppm));
            }
            if is_known && own.tried.0 > 0 {
                let tried =
                    u128::from(std::mem::take(&mut own.tried.0)) * u128::from(cost.ps()) / u128::from(bytes.0.max(1));
                own.spend(Time::from_ps(tried as u64));
            }
            // One low chunk alone among high ones is slow, so that the next few are to follow it.
            let few = if own.is_high { credit as u64 } else { 1 };
            receiving.deadline = outlook.deadline(after(after(best, own.budget), waits.left), rest);
            receiving.is_high = cost.ps().saturating_mul(few) > own.budget.ps();
            receiving.expected = (is_known && credit == 1).then_some(Expected { begun: now, ends, began_high: false });
            costs[index] = costs[index].max(cost);
        }
        chunk.high_count = chunk.ranks.iter().filter(|receiving| receiving.is_high).count();
        if chunk.is_high_somewhere() {
            if !may_be_high {
                return None;
            }
            if exchange {
                chunk.turn_high();
            }
        }
        for receiving in &mut chunk.ranks {
            receiving.expected.iter_mut().for_each(|expected| expected.began_high = receiving.is_high);
        }
        for ((waits, receiving), late) in self.waits.iter_mut().zip(&chunk.ranks).zip(lateness) {
            if !receiving.is_high {
                waits.left = waits.left.saturating_since(late);
            }
        }
        for ((own, receiving), cost) in self.own.iter_mut().zip(&chunk.ranks).zip(costs) {
            own.is_high = receiving.is_high;
            if !receiving.is_high {
                own.spend(cost);
                own.tried.0 += if own.low.known(own.memory).is_none() { bytes.0 } else { 0 };
            }
        }
        Some(chunk)
    }

    /// The last gradient of an iteration is there on all workers; each waited so long for it when it had its own.
    pub fn on_computed(&mut self, waits: impl Iterator<Item = Time>) {
        if self.rule.counts_waits {
            self.waits.iter_mut().zip(waits).for_each(|(own, wait)| own.add(wait));
        }
    }

    /// A worker has received a message of a chunk, and sends the next; `beside` chunks are under way in its band, it
    /// among them; `are_high`: all that are under way, or none of them; `None` if some are.
    pub fn on_received(&mut self, chunk: &mut Chunk, rank: usize, now: Time, (beside, are_high): (u32, Option<bool>)) {
        let own = &mut self.own[if self.rule.exchange { 0 } else { rank }];
        let receiving = &mut chunk.ranks[rank];
        own.on_received(now, chunk.round, are_high);
        receiving.received += 1;
        if let Some(expected) = receiving.expected.filter(|_| receiving.received == chunk.rounds) {
            own.on_through(now, expected);
        }
        if self.rule.has_deadlines && receiving.received < chunk.rounds && !receiving.is_high {
            // With its share of the network.
            let left = Bytes(chunk.round.0 * u64::from(chunk.rounds - receiving.received) * u64::from(beside));
            if let (Some(high), Some(low)) = own.paces() {
                let [high, low] = [high, low].map(|pace| takes(left, pace));
                let spare = after(own.budget, self.waits[rank].left);
                receiving.is_high = after(now, low) > receiving.deadline && low - high > spare;
                chunk.high_count += usize::from(receiving.is_high);
            }
        }
    }
}

/// One who knows what will be, and weighs what an iteration loses against what flows gain. No worker can: a bound for
/// what they can do.
#[derive(Clone, Debug)]
pub struct Oracle {
    price_ppm: u64,
    /// Bands to choose from: the low one and the high one.
    pub ways: [Band; 2],
    /// Largest flow whose time counts.
    pub small: Bytes,
    /// Pace of whole chunks that all workers send high.
    high: Average,
}

/// What comes of a chunk, sent in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreseen {
    /// When it has ended on all workers.
    pub ends: Time,
    /// How long flows are in the network until the last end of all ways, all together.
    pub flow_time_ps: u128,
}

impl Oracle {
    /// One to whom a second of a flow's time is worth so many millionths of a second of an iteration.
    pub fn new(price_ppm: u64, ways: [Band; 2], small: Bytes) -> Self {
        Self { price_ppm, ways, small, high: Average::default() }
    }

    /// Which of several ways to send a chunk of so many bytes loses least: the time at which the last worker's compute
    /// passes its last need, and beside it the time of flows at its price. Of equal ways it is the first. What follows
    /// the chunk is taken to be sent at the pace of chunks whose workers all send high, which is the last of the ways.
    ///
    /// # Panics
    /// If there is no way.
    pub fn choose(&mut self, chunk: Bytes, workers: &[Outlook<'_>], ways: &[Foreseen]) -> usize {
        if let (Some(Outlook { now, .. }), Some(high)) = (workers.first(), ways.last()) {
            self.high.add(pace_of(high.ends.saturating_since(*now), chunk), ORACLE_MEMORY);
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
    /// Bytes of every bucket that have not arrived, without those of the chunk and of others that are under way.
    pub left: &'a [Bytes],
    /// Whose chunk begins, and whose are under way.
    pub under_way: &'a [u32],
    /// Bytes under way that have not arrived.
    pub ahead: Bytes,
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
        let of_bucket = |(bucket, window): (u32, &crate::caramel::Boundary)| {
            let need = Self { at: boundaries.compute + window.read, is_need: true, bucket };
            [Self { at: window.update, is_need: false, bucket }, need]
        };
        let mut all: Vec<Self> = (0..).zip(&boundaries.windows).flat_map(of_bucket).collect();
        all.sort_unstable();
        all
    }
}

impl Outlook<'_> {
    /// The latest that what is under way may end, the chunk included, for compute to pass what it needs last by `goal`,
    /// if all that follows is sent at `pace`; the present if it would be late in any case. Latest finish times, from a
    /// forward simulation and not from the end back: which bucket goes when hangs on when the chunk ends.
    pub fn deadline(&self, goal: Time, pace: PsPerKib) -> Time {
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

    /// When compute passes the last need on average, if what is under way ends about `ends`: half of the time so much
    /// sooner and else so much later, as a share of the time until then in millionths. What has slack on average may be
    /// late half of the time.
    fn passes_about(&self, ends: Time, spread_ppm: u64, pace: PsPerKib) -> Time {
        if spread_ppm == 0 {
            return self.passes_at(ends, pace);
        }
        let spread = share(ends - self.now, spread_ppm.min(1_000_000)).ps();
        let [early, late] = [ends.ps() - spread, ends.ps().saturating_add(spread)]
            .map(|ends| self.passes_at(Time::from_ps(ends), pace).ps());
        // The later end need not be worse: which bucket goes next hangs on it.
        Time::from_ps(u64::midpoint(early, late))
    }

    /// When compute passes the last need, if what is under way ends at `ends`, the chunk included.
    fn passes_at(&self, ends: Time, pace: PsPerKib) -> Time {
        let Self { left, under_way, .. } = *self;
        let mut free_at = ends;
        let mut queue: BinaryHeap<Reverse<(u32, u32)>> = BinaryHeap::new();
        // When each bucket is there; MAX: not sent yet.
        let mut there: Vec<Time> = left.iter().map(|left| if left.0 > 0 { Time::MAX } else { Time::ZERO }).collect();
        for &bucket in under_way.iter().filter(|&&bucket| left[bucket as usize].0 == 0) {
            there[bucket as usize] = ends;
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
    use crate::caramel::Boundary;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000_000;

    fn ms(count: u64) -> Time {
        Time::from_ps(count * MS)
    }

    /// Windows of (bytes, update, read) in ms, of an iteration that computes for `compute` ms.
    fn boundaries(compute: u64, windows: &[(u64, u64, u64)]) -> Boundaries {
        let window = |&(bytes, update, read): &(u64, u64, u64)| Boundary {
            bytes: Bytes(bytes),
            update: ms(update),
            read: ms(read),
        };
        Boundaries { compute: ms(compute), windows: windows.iter().map(window).collect() }
    }

    /// A pace at which 1024 bytes take a millisecond.
    const SLOW: PsPerKib = MS;

    fn outlook<'a>(
        boundaries: &'a Boundaries,
        milestones: &'a [Milestone],
        left: &'a [Bytes],
        ranks: &'a [u32],
        at: u64,
    ) -> Outlook<'a> {
        let (now, position) = (ms(at), ms(at));
        Outlook { boundaries, milestones, ranks, now, position, left, under_way: &[0], ahead: Bytes(0) }
    }

    #[test]
    fn a_chunk_has_time_until_a_more_urgent_one_is_ready() {
        // Bucket 0 is ready at 10 ms and needed at 60; bucket 1 is ready at 30 ms, when the iteration of 30 ms ends,
        // needed at once, and takes 4 ms. Compute passes the last need 30 ms behind the first: at 34 + 30 = 64 ms at
        // best. The chunk of bucket 0 may not be in the way of bucket 1, so it ends by 30 ms.
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
        // The chunk is needed at 40 ms and begins at 10; it ends 5 ms late if low, and flows are 20 ms less in the
        // network.
        let boundaries = boundaries(30, &[(1024, 10, 10)]);
        let milestones = Milestone::all(&boundaries);
        let outlook = outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 10);
        let way = |end, flows| Foreseen { ends: ms(end), flow_time_ps: u128::from(flows * MS) };
        let bands = [2, 0].map(|band| Band::new(band).unwrap());
        let choice = |price_ppm, ways: &[Foreseen]| {
            Oracle::new(price_ppm, bands, Bytes(100)).choose(Bytes(1024), &[outlook], ways)
        };
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
        fn what_the_low_band_is_expected_to_cost_is_at_most_what_was_saved(
            tolerance_ppm in 0_u64..200_000, chunks in proptest::collection::vec((0_u32..4, 1_u64..30), 1..60),
        ) {
            // Every bucket is needed at once, so that all that the low band takes longer is lost: 4 ms of 5 for each
            // KiB.
            let boundaries = boundaries(1, &[(1024, 0, 0)]);
            let milestones = Milestone::all(&boundaries);
            let mut workers = knowing(Rule { tolerance_ppm, ..rule() }, 1, Some(1), Some(5));
            let (mut saved, mut spent, mut iteration) = (0, 0, 0);
            for (steps, kib) in chunks {
                let bytes = Bytes(1024 * kib);
                iteration += steps;
                let is_first = workers.iteration != Some(iteration);
                let mut outlook = |_| outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 1);
                let chunk = workers.begin(ms(1), (iteration, bytes, 1), true, &mut outlook).unwrap();
                saved += if is_first { kib * MS * tolerance_ppm / 1_000_000 } else { 0 };
                spent += if chunk.is_high(0) { 0 } else { 4 * kib * MS };
                prop_assert!(spent <= saved, "{spent} of {saved}");
            }
        }
    }

    fn rule() -> Rule {
        let [high, low] = [0, 2].map(|band| Band::new(band).unwrap());
        Rule {
            high,
            low,
            has_deadlines: true,
            credit: 1,
            window: Bytes(1024),
            // A KiB takes 8 ms.
            link: Rate::from_bps(1_000_000).unwrap(),
            round_trip: Time::ZERO,
            tolerance_ppm: 0,
            margin_ppm: 0,
            exchange: true,
            counts_waits: false,
        }
    }

    /// Workers that know how many milliseconds a KiB takes in either band.
    fn knowing(rule: Rule, count: usize, high: Option<u64>, low: Option<u64>) -> Workers {
        let mut workers = Workers::new(rule, count);
        for own in &mut workers.own {
            let average = |pace: u64| Average { mean: pace * SLOW, count: own.memory };
            (own.high, own.low) = (high.map_or(own.high, average), low.map_or(own.low, average));
        }
        workers
    }

    #[test]
    fn the_low_band_is_tried_once_the_high_one_is_known_unless_the_network_is_busy() {
        let boundaries = boundaries(1_000, &[(1024, 0, 0)]);
        let milestones = Milestone::all(&boundaries);
        let begins = |mut workers: Workers| {
            let mut outlook = |_| outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 0);
            let begun = workers.begin(Time::ZERO, (0, Bytes(1024), 1), true, &mut outlook).unwrap();
            // It may have to wait for others.
            assert_eq!(workers.begin(Time::ZERO, (0, Bytes(1024), 1), false, &mut outlook).is_none(), begun.is_high(0));
            begun.is_high(0)
        };
        assert!(begins(Workers::new(rule(), 1)));
        assert!(!begins(knowing(rule(), 1, Some(40), None)));
        assert!(begins(knowing(rule(), 1, Some(50), None)), "more than six times 8.2 ms");
        assert!(!begins(knowing(rule(), 1, Some(50), Some(60))), "there is slack");
        assert!(!begins(Workers::new(Rule { has_deadlines: false, ..rule() }, 1)));
    }

    #[test]
    fn averages_are_of_times_in_which_all_goes_in_one_band() {
        let boundaries = boundaries(1_000, &[(1024, 0, 0)]);
        let milestones = Milestone::all(&boundaries);
        for exchange in [true, false] {
            let mut workers = Workers::new(Rule { exchange, ..rule() }, 2);
            let mut outlook = |_| outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 0);
            let mut chunk = workers.begin(Time::ZERO, (0, Bytes(1024 * 6), 6), true, &mut outlook).unwrap();
            // The first tells no time, since nothing was known of what was before it; then both receive 1 KiB in 4 ms,
            // and once more after a time in which bands were mixed.
            for (at, are_high) in [(1, Some(true)), (5, Some(true)), (20, None), (30, Some(true)), (34, Some(true))] {
                for rank in 0..2 {
                    workers.on_received(&mut chunk, rank, ms(at), (1, are_high));
                }
            }
            let expected = if exchange { 1 } else { 2 };
            assert_eq!(workers.own.len(), expected);
            for own in &workers.own {
                // Of two that tell one another the second comes at the same time as the first, and counts for half a
                // round.
                let (count, memory) = if exchange { (6, 2 * MEMORY) } else { (2, MEMORY) };
                assert_eq!((own.high.count, own.low.count, own.memory), (count, 0, memory));
                let mean = if exchange { 16 * SLOW / 6 } else { 4 * SLOW };
                assert!(own.high.mean.abs_diff(mean) < 10, "{} {mean}", own.high.mean);
            }
        }
    }

    #[test]
    fn who_waits_for_slower_workers_may_be_late_by_as_long() {
        // Of two workers the second has computed 90 of 100 ms, behind which it needs what takes 4 ms in the high band
        // and 80 in the low one: 70 ms too long. The first has computed nothing and has time.
        let boundaries = boundaries(100, &[(1024, 0, 0)]);
        let milestones = Milestone::all(&boundaries);
        let begins = |counts_waits, waits: &[u64], exchange| {
            let mut workers = knowing(Rule { counts_waits, exchange, ..rule() }, 2, Some(1), Some(20));
            waits.iter().for_each(|&wait| workers.on_computed([Time::ZERO, ms(wait)].into_iter()));
            let mut outlook = |rank: usize| {
                let position = ms([0, 90][rank]);
                Outlook { position, ..outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 0) }
            };
            [0, 0, 1].map(|iteration| {
                let chunk = workers.begin(Time::ZERO, (iteration, Bytes(4096), 1), true, &mut outlook).unwrap();
                [chunk.is_high(0), chunk.is_high(1)]
            })
        };
        let (all, last, none) = ([true; 2], [false, true], [false; 2]);
        for (exchange, high) in [(true, all), (false, last)] {
            assert_eq!(begins(true, &[70; WAITED], exchange), [none, high, none], "once in an iteration");
            assert_eq!(begins(true, &[69; WAITED], exchange), [high; 3]);
            assert_eq!(begins(true, &[70; WAITED - 1], exchange), [high; 3], "too few iterations tell nothing");
            assert_eq!(begins(true, &[500, 500, 500, 0, 500, 500, 500, 500], exchange), [high; 3]);
            assert_eq!(begins(false, &[500; WAITED], exchange), [high; 3]);
        }
        assert_eq!(begins(true, &[140; WAITED], true), [none; 3]);
    }

    #[test]
    fn a_worker_turns_high_in_the_course_of_a_chunk_once_it_is_late() {
        // Needed at 100 ms. In the low band four KiB take 80 ms; when the first has taken 50, the rest come too late.
        let boundaries = boundaries(100, &[(1024, 0, 0)]);
        let milestones = Milestone::all(&boundaries);
        let begun = |rule, at| {
            let mut workers = knowing(rule, 2, Some(1), Some(20));
            let mut outlook = |_| outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 0);
            let mut chunk = workers.begin(Time::ZERO, (0, Bytes(4096), 4), false, &mut outlook).unwrap();
            assert!(!chunk.is_high_somewhere());
            workers.on_received(&mut chunk, 0, ms(at), (1, Some(false)));
            assert_eq!(chunk.left(0), Bytes(3072));
            assert!(!chunk.is_high(1) && chunk.is_everywhere(false) != chunk.is_high(0));
            chunk.is_high(0)
        };
        assert!(!begun(rule(), 20));
        assert!(begun(rule(), 50));
        assert!(!begun(Rule { has_deadlines: false, ..rule() }, 50));
    }

    #[test]
    fn a_chunk_comes_behind_what_is_under_way() {
        // In the low band a KiB takes 10 ms: four of them behind six end 100 ms from now, in time or not.
        for (compute, is_late) in [(101, false), (99, true)] {
            let boundaries = boundaries(compute, &[(1024, 0, 0)]);
            let milestones = Milestone::all(&boundaries);
            let mut workers = knowing(rule(), 1, Some(4), Some(10));
            let ahead = Bytes(6 * 1024);
            let mut outlook = |_| Outlook { ahead, ..outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 0) };
            let chunk = workers.begin(Time::ZERO, (0, Bytes(4096), 4), true, &mut outlook).unwrap();
            assert_eq!(chunk.is_high(0), is_late, "{compute}");
        }
    }

    #[test]
    fn what_scatters_may_be_late_though_its_mean_is_in_time() {
        // Needed at 100 ms. In the low band four KiB take 80 ms give or take a half: 40 or 120, late by 10 on average.
        let boundaries = boundaries(100, &[(1024, 0, 0)]);
        let milestones = Milestone::all(&boundaries);
        let begins_high = |spread_ppm, tolerance_ppm| {
            let mut workers = knowing(Rule { tolerance_ppm, ..rule() }, 1, Some(1), Some(20));
            workers.own[0].spreads[0].mean = spread_ppm;
            let mut outlook = |_| outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 0);
            workers.begin(Time::ZERO, (0, Bytes(4096), 4), true, &mut outlook).unwrap().is_high(0)
        };
        assert!(!begins_high(0, 0) && !begins_high(250_000, 0));
        let alone = outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 0);
        for ends in [Time::from_ps(100_000_000_001), Time::from_ps(120_000_000_000)] {
            assert_eq!(alone.passes_about(ends, 0, SLOW), alone.passes_at(ends, SLOW));
        }
        assert!(begins_high(500_000, 0));
        // A budget of 9 or of 11 ms.
        assert!(begins_high(500_000, 90_000) && !begins_high(500_000, 110_000));
    }

    #[test]
    fn chunks_that_go_one_by_one_tell_how_much_their_ends_scatter() {
        let boundaries = boundaries(1_000, &[(1024, 0, 0)]);
        let milestones = Milestone::all(&boundaries);
        for credit in [1, 2] {
            let mut workers = knowing(Rule { credit, ..rule() }, 1, Some(1), Some(20));
            for (at, ends) in [(0, 60), (100, 140)] {
                // Expected to take 80 ms.
                let mut outlook = |_| outlook(&boundaries, &milestones, &[Bytes(0)], &[0], at);
                let mut chunk = workers.begin(ms(at), (0, Bytes(4096), 1), true, &mut outlook).unwrap();
                workers.on_received(&mut chunk, 0, ms(ends), (1, None));
            }
            // A quarter sooner, then half.
            let expected = if credit == 1 { (375_000, 2) } else { (0, 0) };
            assert_eq!(workers.own[0].spreads.map(|spread| (spread.mean, spread.count)), [expected, (0, 0)]);
        }
    }

    #[test]
    fn a_chunk_that_one_worker_wants_high_tells_all_how_high_ones_scatter() {
        // Low, four KiB take 80 ms. They are needed at 100 ms of compute: in time for one worker, 70 ms late for the
        // other.
        let boundaries = boundaries(100, &[(1024, 0, 0)]);
        let milestones = Milestone::all(&boundaries);
        let mut workers = knowing(rule(), 2, Some(1), Some(20));
        let mut outlook = |rank: usize| {
            let position = ms([0, 90][rank]);
            Outlook { position, ..outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 0) }
        };
        let mut chunk = workers.begin(Time::ZERO, (0, Bytes(4096), 1), true, &mut outlook).unwrap();
        assert!(chunk.is_everywhere(true));
        for rank in 0..2 {
            workers.on_received(&mut chunk, rank, ms(5), (1, Some(true)));
        }
        // 5 ms in place of 4.
        assert_eq!(workers.own[0].spreads.map(|spread| (spread.mean, spread.count)), [(0, 0), (250_000, 2)]);
    }

    #[test]
    fn a_margin_leaves_less_slack() {
        // The second bucket, of 20 KiB, is needed at 50 ms, and the first at 49. Behind 4 KiB in the low band it is
        // through at 20 + 20 ms; if it takes twice as long, at 60, and behind the high band at 44.
        let boundaries = boundaries(49, &[(4096, 0, 0), (20 * 1024, 0, 1)]);
        let milestones = Milestone::all(&boundaries);
        for (margin_ppm, is_late) in [(0, false), (1_000_000, true)] {
            let mut workers = knowing(Rule { margin_ppm, ..rule() }, 1, Some(1), Some(5));
            let left = [Bytes(0), Bytes(20 * 1024)];
            let mut outlook = |_| outlook(&boundaries, &milestones, &left, &[0, 1], 0);
            let chunk = workers.begin(Time::ZERO, (0, Bytes(4096), 1), true, &mut outlook).unwrap();
            assert_eq!(chunk.is_high(0), is_late, "{margin_ppm}");
        }
    }

    #[test]
    fn what_was_tried_is_paid_for_once_its_cost_is_known() {
        // Without slack: 4 KiB are tried, which turn out to take 4 ms more each than in the high band.
        let boundaries = boundaries(1, &[(1024, 0, 0)]);
        let milestones = Milestone::all(&boundaries);
        let mut workers = knowing(Rule { tolerance_ppm: 500_000, ..rule() }, 1, Some(1), None);
        let begin = |workers: &mut Workers, iteration| {
            let mut outlook = |_| outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 1);
            workers.begin(ms(1), (iteration, Bytes(4096), 1), true, &mut outlook).unwrap().is_high(0)
        };
        assert!(!begin(&mut workers, 0));
        workers.own[0].low = Average { mean: 5 * SLOW, count: workers.own[0].memory };
        // Each iteration saves 2 ms of its 4; the first had as much, and 12 are owed.
        assert!(begin(&mut workers, 1));
        assert_eq!(workers.own[0].debt, ms(12));
        for iteration in 2..8 {
            assert!(begin(&mut workers, iteration));
        }
        assert_eq!((workers.own[0].debt, workers.own[0].budget), (Time::ZERO, Time::ZERO));
    }
}
