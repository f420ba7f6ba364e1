//! Deadline-based choice of the traffic class (band) in which each worker of a job sends its next message.
//!
//! ```text
//! own compute, ended buckets   ─► Outlook ─► deadline of the chunk ─┐
//! own messages, as they arrive ─► pace of each band, bytes left     ┴─► low, unless low is predicted to be late
//! ```
//!
//! A worker chooses a band when a chunk begins, and when a message has arrived and it sends the next one. It uses only
//! local knowledge: the progress of its compute, the duration of its rounds, the order of the buckets, and which
//! buckets have ended, as the job's syncer announces to all workers. Neither the network nor background flows are
//! visible here. `docs/models/adaptive.md` has the rules.
//!
//! A *pace* is the time per KiB of a chunk in one band; an [`Outlook`] is the forecast of the rest of an iteration, and
//! a [`Milestone`] an event in it: a bucket becomes ready, or compute needs it.

use crate::caramel::Boundaries;
use crate::collective::messages::Bands;
use gradtide_net::{Band, Bytes, Rate, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Parameters of the workers' decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Band of late chunks.
    pub high: Band,
    /// Band of chunks with slack.
    pub low: Band,
    /// Whether chunks have deadlines; if not, all use the low band.
    pub has_deadlines: bool,
    /// In-flight limit for low chunks; high chunks are sent one at a time.
    pub credit: usize,
    /// Window of a connection in the low band.
    pub window: Bytes,
    /// Rate of the slowest link, and a round trip without queues.
    pub link: Rate,
    /// See `link`.
    pub round_trip: Time,
    /// Tolerated increase of the iteration time over the high band, in millionths.
    pub tolerance_ppm: u64,
    /// Safety margin on the measured duration of the remaining transfers, in millionths.
    pub margin_ppm: u64,
    /// Whether the band of a new chunk follows from the smallest slack of all workers.
    pub exchange: bool,
    /// Whether a worker may be late by as long as it waits for slower workers anyway.
    pub counts_waits: bool,
}

impl Rule {
    /// Bands of ranks that each choose their own.
    pub fn bands_of(&self, ranks: usize, band: impl Fn(usize) -> Band) -> Bands {
        Bands::OfRank { bands: (0..ranks).map(band).collect(), low: self.low, window: self.window }
    }
}

/// Window of an average, in rounds: an iteration of some twenty buckets on eight workers. Calibration.
const MEMORY: u64 = 128;

/// The low band is tried only if a round in the high band takes at most this many times its duration on an idle
/// network: where the job's share of its links is smaller, almost nothing is left for the low band. Calibration.
const BUSY_FACTOR: u64 = 6;

/// Window of the spread of chunk ends, in chunks. Calibration.
const SPREAD_MEMORY: u64 = 16;

/// Limit on the saved budget, in iterations.
const SAVED_ITERATIONS: u64 = 8;

/// Number of iterations in which a worker must have waited for slower ones before the next one counts on it. Not
/// calibrated.
const WAIT_ITERATIONS: usize = 8;

/// Window of the oracle's average, in chunks.
const ORACLE_MEMORY: u64 = 256;

/// Picoseconds for 1024 bytes of a chunk.
type PsPerKib = u64;

fn takes(bytes: Bytes, pace: PsPerKib) -> Time {
    let ps = u128::from(bytes.0).saturating_mul(u128::from(pace)) / 1024;
    Time::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
}

/// The sum, saturated at the end of the clock.
fn after(at: Time, time: Time) -> Time {
    at.checked_add(time).unwrap_or(Time::MAX)
}

fn pace_from(time: Time, bytes: Bytes) -> PsPerKib {
    (u128::from(time.ps()) * 1024 / u128::from(bytes.0.max(1))) as u64
}

fn longer(pace: PsPerKib, ppm: u64) -> PsPerKib {
    let scaled = u128::from(pace) * (1_000_000 + u128::from(ppm)) / 1_000_000;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn share(time: Time, ppm: u64) -> Time {
    Time::from_ps((u128::from(time.ps()) * u128::from(ppm) / 1_000_000) as u64)
}

/// An exponential moving average; the plain mean of the first samples.
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

/// The workers of a job, each with its measurements.
#[derive(Clone, Debug)]
pub struct Workers {
    rule: Rule,
    /// One per worker, or a single one if workers exchange their measurements.
    history: Vec<History>,
    /// One per worker.
    waits: Vec<Waits>,
    count: usize,
    iteration: Option<u32>,
}

/// How long a worker waits in an iteration, after its last gradient, for those of slower workers. It may be late by
/// this time without delaying the job. The slowest worker never waits.
#[derive(Clone, Debug, Default)]
struct Waits {
    /// Waits of recent iterations, the latest last.
    last: VecDeque<Time>,
    /// Unused rest of their minimum in the present iteration.
    left: Time,
}

impl Waits {
    fn add(&mut self, wait: Time) {
        self.last.push_back(wait);
        if self.last.len() > WAIT_ITERATIONS {
            self.last.pop_front();
        }
    }

    /// The wait that a worker can count on: the minimum, once there are enough samples.
    fn least(&self) -> Time {
        let least = self.last.iter().min().filter(|_| self.last.len() == WAIT_ITERATIONS);
        least.copied().unwrap_or(Time::ZERO)
    }
}

/// Measurements and budget of one worker, or of all together.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    /// Number of messages observed per round, and length of the averages' window in messages.
    share: u64,
    memory: u64,
    /// Average pace while all chunks in flight are high, and while all are low.
    high: Average,
    low: Average,
    /// For chunks that begin low, and for those that begin high: the difference between their actual and their expected
    /// end, as a share of the expected duration, in millionths. Only chunks that are sent one at a time count: with
    /// several in flight, the end of one says little about the others.
    spreads: [Average; 2],
    /// When the last message arrived, and whether all chunks were high then (`Some(true)`) or low (`Some(false)`).
    since: Time,
    were_high: Option<bool>,
    /// Remaining time that the low band may cost, and the cost beyond it.
    budget: Time,
    debt: Time,
    /// Bytes sent low before the pace of the low band was known.
    tried: Bytes,
    /// Whether the last chunk was high.
    is_high: bool,
}

impl History {
    fn new(share: u64) -> Self {
        Self { share, memory: MEMORY * share, is_high: true, ..Self::default() }
    }

    /// Pace of the high and of the low band, where known. The high one is at most the low one.
    fn paces(&self) -> (Option<PsPerKib>, Option<PsPerKib>) {
        let [high, low] = [self.high, self.low].map(|average| average.known(self.memory));
        (high.map(|high| high.min(low.unwrap_or(PsPerKib::MAX))), low)
    }

    /// Adds the budget of a new iteration: `more` is the time that the low band may cost in it.
    fn save(&mut self, more: Time) {
        let most = Time::from_ps(more.ps().saturating_mul(SAVED_ITERATIONS));
        self.budget = after(self.budget, more.saturating_since(self.debt)).min(most);
        self.debt = self.debt.saturating_since(more);
    }

    /// Charges the cost of the low band.
    fn spend(&mut self, cost: Time) {
        self.debt = after(self.debt, cost.saturating_since(self.budget));
        self.budget = self.budget.saturating_since(cost);
    }

    /// Records the difference between the actual and the expected end of a chunk.
    fn on_last_message(&mut self, now: Time, Expected { begun, ends, began_high }: Expected) {
        let way = usize::from(began_high);
        let off = now.ps().abs_diff(ends[way].ps());
        let share_ppm = u128::from(off) * 1_000_000 / u128::from((ends[way] - begun).ps().max(1));
        let sample = u64::try_from(share_ppm).unwrap_or(u64::MAX);
        self.spreads[way].add(sample, SPREAD_MEMORY * self.share);
    }

    /// Updates the averages with a message of a round of `bytes`.
    fn on_received(&mut self, now: Time, bytes: Bytes, are_high: Option<bool>) {
        let time = now - std::mem::replace(&mut self.since, now);
        if std::mem::replace(&mut self.were_high, are_high) == are_high
            && let Some(is_high) = are_high
        {
            let average = if is_high { &mut self.high } else { &mut self.low };
            average.add(pace_from(time, bytes).saturating_mul(self.share), self.memory);
        }
    }
}

/// A chunk in flight.
#[derive(Clone, Debug)]
pub struct Chunk {
    round: Bytes,
    /// Number of messages that each worker receives of it.
    rounds: u32,
    ranks: Vec<Receiving>,
    /// Number of workers that send the rest of it high; cached because every message reads it.
    high_count: usize,
}

/// State of a chunk on one worker.
#[derive(Clone, Copy, Debug)]
struct Receiving {
    is_high: bool,
    /// Number of messages received.
    received: u32,
    deadline: Time,
    /// Expected end, if the chunk is sent alone and the paces are known.
    expected: Option<Expected>,
}

/// A worker's expectation for a chunk.
#[derive(Clone, Copy, Debug)]
struct Expected {
    begun: Time,
    /// End of the chunk if it begins low, or high.
    ends: [Time; 2],
    began_high: bool,
}

impl Chunk {
    /// Whether a worker sends the rest of it in the high band.
    pub fn is_high(&self, rank: usize) -> bool {
        self.ranks[rank].is_high
    }

    /// Whether any worker does.
    pub fn is_high_somewhere(&self) -> bool {
        self.high_count > 0
    }

    /// Whether all workers send the rest of it high, or all low.
    pub fn is_everywhere(&self, is_high: bool) -> bool {
        self.high_count == if is_high { self.ranks.len() } else { 0 }
    }

    /// A chunk of `bytes` in `rounds` messages to each of `count` workers, all of which begin in the same band.
    pub fn new(bytes: Bytes, rounds: u32, count: usize, is_high: bool) -> Self {
        let rounds = rounds.max(1);
        let receiving = Receiving { is_high, received: 0, deadline: Time::MAX, expected: None };
        let high_count = if is_high { count } else { 0 };
        Self { round: Bytes(bytes.0 / u64::from(rounds)), rounds, ranks: vec![receiving; count], high_count }
    }

    /// Moves the rest of the chunk to the high band, because a more urgent one uses it.
    pub fn turn_high(&mut self) {
        self.ranks.iter_mut().for_each(|receiving| receiving.is_high = true);
        self.high_count = self.ranks.len();
    }

    /// Bytes that a worker has not received.
    pub fn left(&self, rank: usize) -> Bytes {
        Bytes(self.round.0 * u64::from(self.rounds - self.ranks[rank].received))
    }
}

impl Workers {
    /// `count` workers without measurements.
    pub fn new(rule: Rule, count: usize) -> Self {
        let history = if rule.exchange { vec![History::new(count as u64)] } else { vec![History::new(1); count] };
        Self { rule, history, waits: vec![Waits::default(); count], count, iteration: None }
    }

    /// The high or the low band.
    pub fn band(&self, is_high: bool) -> Band {
        if is_high { self.rule.high } else { self.rule.low }
    }

    /// See [`Rule::credit`].
    pub fn credit(&self) -> usize {
        self.rule.credit
    }

    /// Begins a chunk of an iteration, of which each worker receives `rounds` messages. `outlook` returns the forecast
    /// of a worker. `None` if the chunk is late but may not be high now.
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
        // Ring: in every round each worker sends 1/N of the chunk, and the next worker waits for it.
        let message = link.serialize(bytes, 1, self.count as u32).unwrap_or(Time::MAX);
        let idle = pace_from(after(message, round_trip), chunk.round);
        let mut costs = vec![Time::ZERO; self.history.len()];
        let mut lateness = vec![Time::ZERO; self.count];
        for (rank, receiving) in chunk.ranks.iter_mut().enumerate() {
            let outlook = outlook(rank);
            let index = if exchange { 0 } else { rank };
            let history = &mut self.history[index];
            if outlook.ahead.0 == 0 {
                history.since = now;
            }
            let (high, low) = history.paces();
            let is_known = low.is_some();
            let Some(high) = high.filter(|&high| is_known || high <= idle.saturating_mul(BUSY_FACTOR)) else {
                receiving.is_high = true;
                continue;
            };
            let low = low.unwrap_or(high);
            let (begins, rest) = (after(now, takes(outlook.ahead, low)), longer(high, margin_ppm));
            let ends = [low, high].map(|pace| after(begins, takes(bytes, pace)));
            let [if_low, best] = [0, 1].map(|way| outlook.passes_about(ends[way], history.spreads[way].mean, rest));
            let waits = &mut self.waits[rank];
            if is_first {
                waits.left = waits.least();
            }
            lateness[rank] = if_low.saturating_since(best);
            let cost = lateness[rank].saturating_since(waits.left);
            if is_first && rank == index {
                history.save(share(best - now, tolerance_ppm));
            }
            if is_known && history.tried.0 > 0 {
                let tried = u128::from(std::mem::take(&mut history.tried.0)) * u128::from(cost.ps())
                    / u128::from(bytes.0.max(1));
                history.spend(Time::from_ps(tried as u64));
            }
            // A single low chunk among high ones is slow, so the next few are expected to be low as well.
            let few = if history.is_high { credit as u64 } else { 1 };
            receiving.deadline = outlook.deadline(after(after(best, history.budget), waits.left), rest);
            receiving.is_high = cost.ps().saturating_mul(few) > history.budget.ps();
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
        for ((history, receiving), cost) in self.history.iter_mut().zip(&chunk.ranks).zip(costs) {
            history.is_high = receiving.is_high;
            if !receiving.is_high {
                history.spend(cost);
                history.tried.0 += if history.low.known(history.memory).is_none() { bytes.0 } else { 0 };
            }
        }
        Some(chunk)
    }

    /// Records, once all workers have computed the last gradient of an iteration, how long each has waited for it since
    /// its own.
    pub fn on_computed(&mut self, waits: impl Iterator<Item = Time>) {
        if self.rule.counts_waits {
            self.waits.iter_mut().zip(waits).for_each(|(history, wait)| history.add(wait));
        }
    }

    /// Handles the arrival of a message of a chunk; the worker then sends the next one. `beside` is the number of
    /// chunks in flight in its band, this one included; `are_high` is `Some` if all chunks in flight are in one band.
    pub fn on_received(&mut self, chunk: &mut Chunk, rank: usize, now: Time, (beside, are_high): (u32, Option<bool>)) {
        let history = &mut self.history[if self.rule.exchange { 0 } else { rank }];
        let receiving = &mut chunk.ranks[rank];
        history.on_received(now, chunk.round, are_high);
        receiving.received += 1;
        if let Some(expected) = receiving.expected.filter(|_| receiving.received == chunk.rounds) {
            history.on_last_message(now, expected);
        }
        if self.rule.has_deadlines && receiving.received < chunk.rounds && !receiving.is_high {
            // All chunks of this band share it equally.
            let left = Bytes(chunk.round.0 * u64::from(chunk.rounds - receiving.received) * u64::from(beside));
            if let (Some(high), Some(low)) = history.paces() {
                let [high, low] = [high, low].map(|pace| takes(left, pace));
                let spare = after(history.budget, self.waits[rank].left);
                receiving.is_high = after(now, low) > receiving.deadline && low - high > spare;
                chunk.high_count += usize::from(receiving.is_high);
            }
        }
    }
}

/// Chooses bands with full knowledge of future flows: trades the iteration's delay against the time saved for flows.
/// Not realisable; an upper bound for the policies.
#[derive(Clone, Debug)]
pub struct Oracle {
    price_ppm: u64,
    /// Candidate bands: low, then high.
    pub ways: [Band; 2],
    /// Largest flow whose time counts.
    pub small: Bytes,
    /// Average pace of chunks that all workers send high.
    high: Average,
}

/// The predicted outcome of a chunk in one band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreseen {
    /// When it has ended on all workers.
    pub ends: Time,
    /// Total time of the flows in the network until the latest end over all candidate bands.
    pub flow_time_ps: u128,
}

impl Oracle {
    /// An oracle that values a second of flow time at `price_ppm` millionths of a second of iteration time.
    pub fn new(price_ppm: u64, ways: [Band; 2], small: Bytes) -> Self {
        Self { price_ppm, ways, small, high: Average::default() }
    }

    /// Index of the candidate with the smallest loss: the time at which the last worker's compute passes its last need,
    /// plus the time of flows at their price. Ties go to the first. Later chunks are assumed to be sent at the pace of
    /// chunks that all workers send high, the last candidate.
    ///
    /// # Panics
    /// If `ways` is empty.
    pub fn choose(&mut self, chunk: Bytes, workers: &[Outlook<'_>], ways: &[Foreseen]) -> usize {
        if let (Some(Outlook { now, .. }), Some(high)) = (workers.first(), ways.last()) {
            self.high.add(pace_from(high.ends.saturating_since(*now), chunk), ORACLE_MEMORY);
        }
        let loss = |&way: &usize| {
            let passes = workers.iter().map(|outlook| outlook.passes_at(ways[way].ends, self.high.mean));
            let passes = u128::from(passes.max().unwrap_or(Time::ZERO).ps());
            (passes * 1_000_000).saturating_add(ways[way].flow_time_ps.saturating_mul(self.price_ppm.into()))
        };
        (0..ways.len()).min_by_key(loss).expect("there is a way")
    }
}

/// The forecast of the rest of an iteration, from one worker's point of view when a chunk begins.
#[derive(Clone, Copy, Debug)]
pub struct Outlook<'a> {
    /// Window of each bucket: the offsets of compute between which it can be sent without a delay.
    pub boundaries: &'a Boundaries,
    /// Starts and ends of the windows, in order.
    pub milestones: &'a [Milestone],
    /// Send order of the queue.
    pub ranks: &'a [u32],
    /// Present time, and progress of compute since the start of the iteration.
    pub now: Time,
    /// See `now`.
    pub position: Time,
    /// Bytes of every bucket that have not arrived, except those of this chunk and of others in flight.
    pub left: &'a [Bytes],
    /// Buckets of the chunk that begins and of those in flight.
    pub under_way: &'a [u32],
    /// Bytes in flight that have not arrived.
    pub ahead: Bytes,
}

/// The event that a bucket becomes ready, or that it is needed; at equal offsets needs come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Milestone {
    /// Offset of compute time.
    pub at: Time,
    /// Whether the bucket is needed, rather than ready.
    pub is_need: bool,
    /// Index of the bucket.
    pub bucket: u32,
}

impl Milestone {
    /// Events of all buckets in the order in which compute passes them; needs belong to the next iteration.
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
    /// The latest end of the chunk, and of those in flight, for which compute passes its last need by `goal`, if the
    /// rest is sent at `pace`; the present time if this is impossible. Found by bisection over forward simulations
    /// instead of a backward pass, because the order of later buckets depends on when the chunk ends.
    pub fn deadline(&self, goal: Time, pace: PsPerKib) -> Time {
        let (mut from, mut to) = (self.now.ps(), goal.ps().max(self.now.ps()));
        if self.passes_at(self.now, pace) > goal {
            return self.now;
        }
        // Precision of a microsecond: no chunk whose band is chosen is shorter.
        while to - from > 1_000_000 {
            let middle = from + (to - from) / 2;
            if self.passes_at(Time::from_ps(middle), pace) <= goal { from = middle } else { to = middle }
        }
        Time::from_ps(from)
    }

    /// Mean time at which compute passes its last need, if chunks in flight end around `ends`: half of the time earlier
    /// and half later, by `spread_ppm` millionths of the time until then. A chunk with slack on average may still be
    /// late half of the time.
    fn passes_about(&self, ends: Time, spread_ppm: u64, pace: PsPerKib) -> Time {
        if spread_ppm == 0 {
            return self.passes_at(ends, pace);
        }
        let spread = share(ends - self.now, spread_ppm.min(1_000_000)).ps();
        let [early, late] = [ends.ps() - spread, ends.ps().saturating_add(spread)]
            .map(|ends| self.passes_at(Time::from_ps(ends), pace).ps());
        // The later end is not always worse: the next bucket depends on it.
        Time::from_ps(u64::midpoint(early, late))
    }

    /// When compute passes its last need, if the chunk and those in flight end at `ends`.
    fn passes_at(&self, ends: Time, pace: PsPerKib) -> Time {
        let Self { left, under_way, .. } = *self;
        let mut free_at = ends;
        let mut queue: BinaryHeap<Reverse<(u32, u32)>> = BinaryHeap::new();
        // When each bucket arrives; MAX if it is not sent yet.
        let mut arrives: Vec<Time> = left.iter().map(|left| if left.0 > 0 { Time::MAX } else { Time::ZERO }).collect();
        for &bucket in under_way.iter().filter(|&&bucket| left[bucket as usize].0 == 0) {
            arrives[bucket as usize] = ends;
        }
        for (bucket, window) in (0..).zip(&self.boundaries.windows) {
            if left[bucket as usize].0 > 0 && window.update <= self.position {
                queue.push(Reverse((self.ranks[bucket as usize], bucket)));
            }
        }
        let (mut now, mut position) = (self.now, self.position);
        let send = |queue: &mut BinaryHeap<Reverse<(u32, u32)>>, free_at: &mut Time, arrives: &mut Vec<Time>| {
            let Reverse((_, bucket)) = queue.pop()?;
            *free_at = after(*free_at, takes(left[bucket as usize], pace));
            arrives[bucket as usize] = *free_at;
            Some(())
        };
        for &Milestone { at, is_need, bucket } in self.milestones {
            if at < self.position || (!is_need && at == self.position) {
                continue;
            }
            now = after(now, at - position);
            position = at;
            while free_at < now && send(&mut queue, &mut free_at, &mut arrives).is_some() {}
            if !is_need {
                if left[bucket as usize].0 > 0 {
                    free_at = free_at.max(now);
                    queue.push(Reverse((self.ranks[bucket as usize], bucket)));
                }
                continue;
            }
            while arrives[bucket as usize] == Time::MAX && send(&mut queue, &mut free_at, &mut arrives).is_some() {}
            now = now.max(arrives[bucket as usize]);
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
        // needed at once, and takes 4 ms. Compute passes the last need 30 ms after the first: at 34 + 30 = 64 ms at
        // best. The chunk of bucket 0 must not delay bucket 1, so it ends by 30 ms.
        let boundaries = boundaries(30, &[(1024, 10, 30), (4096, 30, 0)]);
        let milestones = Milestone::all(&boundaries);
        let left = [Bytes(0), Bytes(4096)];
        let outlook = outlook(&boundaries, &milestones, &left, &[1, 0], 10);
        let best = outlook.passes_at(ms(11), SLOW);
        assert_eq!(best, ms(64));
        let deadline = outlook.deadline(best, SLOW);
        assert!(ms(30) >= deadline && deadline >= ms(30) - Time::from_ps(1_000_000), "{deadline:?}");
        // With a budget of 5 ms it may delay bucket 1 by 5 ms.
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
        // The chunk is needed at 40 ms and begins at 10. In the low band it ends 5 ms late, and flows spend 20 ms less
        // in the network.
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
        // The low band may also cost flow time.
        assert_eq!(choice(1, &[way(40, 51), way(12, 50)]), 1);
        assert_eq!(choice(u64::MAX, &[way(40, 51), Foreseen { ends: Time::MAX, flow_time_ps: u128::MAX }]), 0);
    }

    /// The rest of a random iteration at a random time; ranks are a permutation.
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
            // Not monotone: after a chunk that ends later, another order may be shorter by one bucket (Graham's
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
            // Every bucket is needed at once, so each extra millisecond of the low band is lost: 4 ms of 5 per KiB.
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

    /// Workers with known paces, in milliseconds per KiB, in either band.
    fn knowing(rule: Rule, count: usize, high: Option<u64>, low: Option<u64>) -> Workers {
        let mut workers = Workers::new(rule, count);
        for history in &mut workers.history {
            let average = |pace: u64| Average { mean: pace * SLOW, count: history.memory };
            (history.high, history.low) = (high.map_or(history.high, average), low.map_or(history.low, average));
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
            // A high chunk waits if no more may be high.
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
            // The first message gives no sample, since the time before it is unknown. Then both receive 1 KiB in 4 ms,
            // and once more after an interval of mixed bands.
            for (at, are_high) in [(1, Some(true)), (5, Some(true)), (20, None), (30, Some(true)), (34, Some(true))] {
                for rank in 0..2 {
                    workers.on_received(&mut chunk, rank, ms(at), (1, are_high));
                }
            }
            let expected = if exchange { 1 } else { 2 };
            assert_eq!(workers.history.len(), expected);
            for history in &workers.history {
                // If two workers exchange measurements, the second message arrives at the same time as the first, and
                // counts for half a round.
                let (count, memory) = if exchange { (6, 2 * MEMORY) } else { (2, MEMORY) };
                assert_eq!((history.high.count, history.low.count, history.memory), (count, 0, memory));
                let mean = if exchange { 16 * SLOW / 6 } else { 4 * SLOW };
                assert!(history.high.mean.abs_diff(mean) < 10, "{} {mean}", history.high.mean);
            }
        }
    }

    #[test]
    fn who_waits_for_slower_workers_may_be_late_by_as_long() {
        // The second of two workers has computed 90 of 100 ms. The next transfer that it needs takes 4 ms in the high
        // band and 80 in the low one: 70 ms too long. The first worker has computed nothing and has slack.
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
            assert_eq!(begins(true, &[70; WAIT_ITERATIONS], exchange), [none, high, none], "once in an iteration");
            assert_eq!(begins(true, &[69; WAIT_ITERATIONS], exchange), [high; 3]);
            assert_eq!(
                begins(true, &[70; WAIT_ITERATIONS - 1], exchange),
                [high; 3],
                "too few iterations tell nothing"
            );
            assert_eq!(begins(true, &[500, 500, 500, 0, 500, 500, 500, 500], exchange), [high; 3]);
            assert_eq!(begins(false, &[500; WAIT_ITERATIONS], exchange), [high; 3]);
        }
        assert_eq!(begins(true, &[140; WAIT_ITERATIONS], true), [none; 3]);
    }

    #[test]
    fn a_worker_turns_high_in_the_course_of_a_chunk_once_it_is_late() {
        // Needed at 100 ms. In the low band four KiB take 80 ms; if the first takes 50, the others are late.
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
        // In the low band a KiB takes 10 ms: four of them after six end 100 ms from now, in time or not.
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
        // Needed at 100 ms. In the low band four KiB take 80 ms ± 50 %: 40 or 120, late by 10 on average.
        let boundaries = boundaries(100, &[(1024, 0, 0)]);
        let milestones = Milestone::all(&boundaries);
        let begins_high = |spread_ppm, tolerance_ppm| {
            let mut workers = knowing(Rule { tolerance_ppm, ..rule() }, 1, Some(1), Some(20));
            workers.history[0].spreads[0].mean = spread_ppm;
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
            // Early by a quarter, then by half.
            let expected = if credit == 1 { (375_000, 2) } else { (0, 0) };
            assert_eq!(workers.history[0].spreads.map(|spread| (spread.mean, spread.count)), [expected, (0, 0)]);
        }
    }

    #[test]
    fn a_chunk_that_one_worker_wants_high_tells_all_how_high_ones_scatter() {
        // In the low band four KiB take 80 ms. They are needed at 100 ms of compute: in time for one worker, 70 ms late
        // for the other.
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
        // 5 ms instead of 4.
        assert_eq!(workers.history[0].spreads.map(|spread| (spread.mean, spread.count)), [(0, 0), (250_000, 2)]);
    }

    #[test]
    fn a_margin_leaves_less_slack() {
        // The second bucket, of 20 KiB, is needed at 50 ms, the first at 49. After 4 KiB in the low band, the second
        // ends at 20 + 20 ms; at half the pace at 60 ms, and after the high band at 44.
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
        // Without slack: the low band is tried with 4 KiB, each of which turns out to take 4 ms more than in the high
        // band.
        let boundaries = boundaries(1, &[(1024, 0, 0)]);
        let milestones = Milestone::all(&boundaries);
        let mut workers = knowing(Rule { tolerance_ppm: 500_000, ..rule() }, 1, Some(1), None);
        let begin = |workers: &mut Workers, iteration| {
            let mut outlook = |_| outlook(&boundaries, &milestones, &[Bytes(0)], &[0], 1);
            workers.begin(ms(1), (iteration, Bytes(4096), 1), true, &mut outlook).unwrap().is_high(0)
        };
        assert!(!begin(&mut workers, 0));
        workers.history[0].low = Average { mean: 5 * SLOW, count: workers.history[0].memory };
        // Each iteration adds 2 ms to the budget, the first one included, so 12 of 16 ms are owed.
        assert!(begin(&mut workers, 1));
        assert_eq!(workers.history[0].debt, ms(12));
        for iteration in 2..8 {
            assert!(begin(&mut workers, iteration));
        }
        assert_eq!((workers.history[0].debt, workers.history[0].budget), (Time::ZERO, Time::ZERO));
    }
}
