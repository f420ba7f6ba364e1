//! Deadline-based choice of the traffic class (band) in which each worker of a job sends its next message.
//!
//! ```text
//! own compute, ended buckets   ─► Forecast ─► deadline of the chunk ─┐
//! own messages, as they arrive ─► time per KiB of each band, bytes left     ─┴─► low, unless low is predicted to be late
//! ```
//!
//! A worker chooses a band when a chunk begins, and each time a message has arrived and the next one is sent. It uses
//! only local information: the progress of its compute, the duration of its rounds, the order of the buckets, and the
//! buckets that have ended, which the job's syncer announces to all workers. It has no access to the network or to
//! background flows. `docs/models/adaptive.md` states the rules.

use super::chunk::{Chunk, Expected, Receiving};
use super::forecast::{Forecast, PsPerKib, after, longer, pace_from, share, takes};
use super::measurements::{History, Waits};
use crate::collective::messages::Bands;
use gradtide_net::{Band, Bytes, Rate, Time};

/// Busy limit: the low band is tried only if a round in the high band takes at most this many times as long as on an
/// idle network. Beyond the limit the job's share of its links is so small that almost nothing remains for the low
/// band. The value is calibrated.
const BUSY_FACTOR: u64 = 6;

/// Parameters of the workers' decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Band of late chunks.
    pub high: Band,
    /// Band of chunks with slack.
    pub low: Band,
    /// Whether chunks have deadlines. If not, all chunks use the low band.
    pub has_deadlines: bool,
    /// In-flight limit of chunks in the low band. Chunks in the high band are sent one at a time.
    pub in_flight_limit: usize,
    /// Window of a connection in the low band, in bytes.
    pub window: Bytes,
    /// Rate of the slowest link.
    pub link: Rate,
    /// Round-trip time without queueing.
    pub round_trip: Time,
    /// Tolerated increase of the iteration time, relative to sending only in the high band, in millionths.
    pub tolerance_ppm: u64,
    /// Safety margin that is added to the measured duration of the remaining transfers, in millionths.
    pub margin_ppm: u64,
    /// Whether workers exchange measurements, so that the smallest slack of all workers determines the band of a new
    /// chunk.
    pub exchange: bool,
    /// Whether a worker's slack includes the time for which it waits for slower workers.
    pub counts_waits: bool,
}

impl Rule {
    /// Returns the bands of ranks that choose their bands individually.
    pub fn bands_of(&self, ranks: usize, band: impl Fn(usize) -> Band) -> Bands {
        Bands::OfRank { bands: (0..ranks).map(band).collect(), low: self.low, window: self.window }
    }
}

/// The workers of a job, each with its measurements.
#[derive(Clone, Debug)]
pub struct Workers {
    rule: Rule,
    /// Measurements of each worker; a single entry if workers exchange their measurements.
    history: Vec<History>,
    /// Waits of each worker.
    waits: Vec<Waits>,
    count: usize,
    iteration: Option<u32>,
}

/// The choice of a worker for a chunk.
struct Choice {
    /// Time by which compute passes its last need later if the chunk is sent in the low band than if it is sent in the
    /// high band.
    late: Time,
    /// Part of `late` that delays the job: the part that exceeds the worker's waits.
    cost: Time,
    receiving: Receiving,
}

impl Workers {
    /// Creates `count` workers without measurements.
    pub fn new(rule: Rule, count: usize) -> Self {
        let history = if rule.exchange { vec![History::new(count as u64)] } else { vec![History::new(1); count] };
        Self { rule, history, waits: vec![Waits::default(); count], count, iteration: None }
    }

    /// Returns the high or the low band.
    pub fn band(&self, is_high: bool) -> Band {
        if is_high { self.rule.high } else { self.rule.low }
    }

    /// Begins a chunk of an iteration, which each worker receives in `rounds` messages. `forecast` returns the forecast
    /// of a worker. Returns `None` if the chunk needs the high band but `may_be_high` is false.
    pub fn begin<'a>(
        &mut self,
        now: Time,
        (iteration, bytes, rounds): (u32, Bytes, u32),
        may_be_high: bool,
        forecast: &mut dyn FnMut(usize) -> Forecast<'a>,
    ) -> Option<Chunk> {
        let mut chunk = Chunk::new(bytes, rounds, self.count, false);
        if !self.rule.has_deadlines {
            return Some(chunk);
        }
        let is_first = self.iteration.replace(iteration) != Some(iteration);
        let Rule { exchange, link, round_trip, .. } = self.rule;
        // In a ring each of the N workers sends 1/N of the chunk in every round, and the next worker waits for this
        // message.
        let message = link.serialize(bytes, 1, self.count as u32).unwrap_or(Time::MAX);
        let idle = pace_from(after(message, round_trip), chunk.round);
        let mut costs = vec![Time::ZERO; self.history.len()];
        let mut lateness = vec![Time::ZERO; self.count];
        for (rank, receiving) in chunk.ranks.iter_mut().enumerate() {
            let forecast = forecast(rank);
            let Some(choice) = self.choose(rank, &forecast, (now, bytes, idle, is_first)) else {
                receiving.is_high = true;
                continue;
            };
            lateness[rank] = choice.late;
            let cost = &mut costs[if exchange { 0 } else { rank }];
            *cost = choice.cost.max(*cost);
            *receiving = choice.receiving;
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

    /// Returns the choice of one worker for a chunk, where `idle` is the time per KiB of a round on an idle network.
    /// Returns `None` if the chunk needs the high band because the network is busy or there are no measurements yet.
    fn choose(
        &mut self,
        rank: usize,
        forecast: &Forecast<'_>,
        (now, bytes, idle, is_first): (Time, Bytes, PsPerKib, bool),
    ) -> Option<Choice> {
        let Rule { in_flight_limit, exchange, tolerance_ppm, margin_ppm, .. } = self.rule;
        let index = if exchange { 0 } else { rank };
        let history = &mut self.history[index];
        if forecast.ahead.0 == 0 {
            history.since = now;
        }
        let (high, low) = history.times_per_kib();
        let is_known = low.is_some();
        let high = high.filter(|&high| is_known || high <= idle.saturating_mul(BUSY_FACTOR))?;
        let low = low.unwrap_or(high);
        let (begins, rest) = (after(now, takes(forecast.ahead, low)), longer(high, margin_ppm));
        let ends = [low, high].map(|per_kib| after(begins, takes(bytes, per_kib)));
        let [if_low, best] = [0, 1].map(|band| forecast.passes_about(ends[band], history.spreads[band].mean, rest));
        let waits = &mut self.waits[rank];
        if is_first {
            waits.left = waits.least();
        }
        let late = if_low.saturating_since(best);
        let cost = late.saturating_since(waits.left);
        if is_first && rank == index {
            history.save(share(best - now, tolerance_ppm));
        }
        if is_known && history.tried.0 > 0 {
            let tried =
                u128::from(std::mem::take(&mut history.tried.0)) * u128::from(cost.ps()) / u128::from(bytes.0.max(1));
            history.spend(Time::from_ps(tried as u64));
        }
        // A single low chunk among high chunks is slow, so the next chunks are expected to be low as well, and the
        // budget must cover all of them.
        let few = if history.is_high { in_flight_limit as u64 } else { 1 };
        let expected = Expected { begun: now, ends, began_high: false };
        let receiving = Receiving {
            is_high: cost.ps().saturating_mul(few) > history.budget.ps(),
            received: 0,
            deadline: forecast.deadline(after(after(best, history.budget), waits.left), rest),
            expected: (is_known && in_flight_limit == 1).then_some(expected),
        };
        Some(Choice { late, cost, receiving })
    }

    /// Records each worker's wait from its last gradient to the last gradient of the slowest worker. Called once per
    /// iteration, when all workers have computed their last gradients.
    pub fn on_computed(&mut self, waits: impl Iterator<Item = Time>) {
        if self.rule.counts_waits {
            self.waits.iter_mut().zip(waits).for_each(|(history, wait)| history.add(wait));
        }
    }

    /// Handles the arrival of a message of a chunk, before the worker sends the next message. `beside` is the number of
    /// chunks in flight in this chunk's band, including it. `are_high` is the band of all chunks in flight; `None` if
    /// they use different bands.
    pub fn on_received(&mut self, chunk: &mut Chunk, rank: usize, now: Time, (beside, are_high): (u32, Option<bool>)) {
        let history = &mut self.history[if self.rule.exchange { 0 } else { rank }];
        let receiving = &mut chunk.ranks[rank];
        history.on_received(now, chunk.round, are_high);
        receiving.received += 1;
        if let Some(expected) = receiving.expected.filter(|_| receiving.received == chunk.rounds) {
            history.on_last_message(now, expected);
        }
        if self.rule.has_deadlines && receiving.received < chunk.rounds && !receiving.is_high {
            // All chunks in this band share it equally.
            let left = Bytes(chunk.round.0 * u64::from(chunk.rounds - receiving.received) * u64::from(beside));
            if let (Some(high), Some(low)) = history.times_per_kib() {
                let [high, low] = [high, low].map(|per_kib| takes(left, per_kib));
                let spare = after(history.budget, self.waits[rank].left);
                receiving.is_high = after(now, low) > receiving.deadline && low - high > spare;
                chunk.high_count += usize::from(receiving.is_high);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::forecast::WindowEvent;
    use super::super::measurements::{Average, MEMORY, WAIT_ITERATIONS};
    use super::super::tests::{MS, SLOW, boundaries, forecast, ms};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_the_low_band_is_expected_to_cost_is_at_most_what_was_saved(
            tolerance_ppm in 0_u64..200_000, chunks in proptest::collection::vec((0_u32..4, 1_u64..30), 1..60),
        ) {
            // Every bucket is needed immediately, so the low band delays compute by all of its additional time, which
            // is 4 ms per KiB (5 ms instead of 1 ms).
            let boundaries = boundaries(1, &[(1024, 0, 0)]);
            let events = WindowEvent::all(&boundaries);
            let mut workers = knowing(Rule { tolerance_ppm, ..rule() }, 1, Some(1), Some(5));
            let (mut saved, mut spent, mut iteration) = (0, 0, 0);
            for (steps, kib) in chunks {
                let bytes = Bytes(1024 * kib);
                iteration += steps;
                let is_first = workers.iteration != Some(iteration);
                let mut forecast = |_| forecast(&boundaries, &events, &[Bytes(0)], &[0], 1);
                let chunk = workers.begin(ms(1), (iteration, bytes, 1), true, &mut forecast).unwrap();
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
            in_flight_limit: 1,
            window: Bytes(1024),
            // At this rate, a KiB takes 8 ms.
            link: Rate::from_bps(1_000_000).unwrap(),
            round_trip: Time::ZERO,
            tolerance_ppm: 0,
            margin_ppm: 0,
            exchange: true,
            counts_waits: false,
        }
    }

    /// Creates workers with known times per KiB of the high and the low band, in milliseconds per KiB.
    fn knowing(rule: Rule, count: usize, high: Option<u64>, low: Option<u64>) -> Workers {
        let mut workers = Workers::new(rule, count);
        for history in &mut workers.history {
            let average = |per_kib: u64| Average { mean: per_kib * SLOW, count: history.memory };
            (history.high, history.low) = (high.map_or(history.high, average), low.map_or(history.low, average));
        }
        workers
    }

    #[test]
    fn the_low_band_is_tried_once_the_high_one_is_known_unless_the_network_is_busy() {
        let boundaries = boundaries(1_000, &[(1024, 0, 0)]);
        let events = WindowEvent::all(&boundaries);
        let begins = |mut workers: Workers| {
            let mut forecast = |_| forecast(&boundaries, &events, &[Bytes(0)], &[0], 0);
            let begun = workers.begin(Time::ZERO, (0, Bytes(1024), 1), true, &mut forecast).unwrap();
            // A chunk that needs the high band waits if no further chunk may be high.
            assert_eq!(
                workers.begin(Time::ZERO, (0, Bytes(1024), 1), false, &mut forecast).is_none(),
                begun.is_high(0)
            );
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
        let events = WindowEvent::all(&boundaries);
        for exchange in [true, false] {
            let mut workers = Workers::new(Rule { exchange, ..rule() }, 2);
            let mut forecast = |_| forecast(&boundaries, &events, &[Bytes(0)], &[0], 0);
            let mut chunk = workers.begin(Time::ZERO, (0, Bytes(1024 * 6), 6), true, &mut forecast).unwrap();
            // The first message yields no sample, because the time since the message before it is unknown. After it
            // both workers receive 1 KiB in 4 ms, and again after an interval with mixed bands.
            for (at, are_high) in [(1, Some(true)), (5, Some(true)), (20, None), (30, Some(true)), (34, Some(true))] {
                for rank in 0..2 {
                    workers.on_received(&mut chunk, rank, ms(at), (1, are_high));
                }
            }
            let expected = if exchange { 1 } else { 2 };
            assert_eq!(workers.history.len(), expected);
            for history in &workers.history {
                // If two workers exchange measurements, the messages of both workers arrive at the same time, and each
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
        // band and 80 ms in the low band, which is 70 ms too long. The first worker has computed nothing yet and has
        // slack.
        let boundaries = boundaries(100, &[(1024, 0, 0)]);
        let events = WindowEvent::all(&boundaries);
        let begins = |counts_waits, waits: &[u64], exchange| {
            let mut workers = knowing(Rule { counts_waits, exchange, ..rule() }, 2, Some(1), Some(20));
            waits.iter().for_each(|&wait| workers.on_computed([Time::ZERO, ms(wait)].into_iter()));
            let mut forecast = |rank: usize| {
                let position = ms([0, 90][rank]);
                Forecast { position, ..forecast(&boundaries, &events, &[Bytes(0)], &[0], 0) }
            };
            [0, 0, 1].map(|iteration| {
                let chunk = workers.begin(Time::ZERO, (iteration, Bytes(4096), 1), true, &mut forecast).unwrap();
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
        // The bucket is needed at 100 ms. A KiB takes 20 ms in the low band, so the four KiB of the bucket are in time.
        // If the first KiB takes 50 ms, 50 ms are left for the other three, which need 60 ms.
        let boundaries = boundaries(100, &[(1024, 0, 0)]);
        let events = WindowEvent::all(&boundaries);
        let begun = |rule, at| {
            let mut workers = knowing(rule, 2, Some(1), Some(20));
            let mut forecast = |_| forecast(&boundaries, &events, &[Bytes(0)], &[0], 0);
            let mut chunk = workers.begin(Time::ZERO, (0, Bytes(4096), 4), false, &mut forecast).unwrap();
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
        // A KiB takes 10 ms in the low band, so four KiB behind six others end in 100 ms. Whether this is in time
        // depends on the compute time.
        for (compute, is_late) in [(101, false), (99, true)] {
            let boundaries = boundaries(compute, &[(1024, 0, 0)]);
            let events = WindowEvent::all(&boundaries);
            let mut workers = knowing(rule(), 1, Some(4), Some(10));
            let ahead = Bytes(6 * 1024);
            let mut forecast = |_| Forecast { ahead, ..forecast(&boundaries, &events, &[Bytes(0)], &[0], 0) };
            let chunk = workers.begin(Time::ZERO, (0, Bytes(4096), 4), true, &mut forecast).unwrap();
            assert_eq!(chunk.is_high(0), is_late, "{compute}");
        }
    }

    #[test]
    fn what_scatters_may_be_late_though_its_mean_is_in_time() {
        // The bucket is needed at 100 ms. In the low band its four KiB take 80 ms ± 50 %: either 40 ms, which is in
        // time, or 120 ms, which is 20 ms late. The average lateness is 10 ms.
        let boundaries = boundaries(100, &[(1024, 0, 0)]);
        let events = WindowEvent::all(&boundaries);
        let begins_high = |spread_ppm, tolerance_ppm| {
            let mut workers = knowing(Rule { tolerance_ppm, ..rule() }, 1, Some(1), Some(20));
            workers.history[0].spreads[0].mean = spread_ppm;
            let mut forecast = |_| forecast(&boundaries, &events, &[Bytes(0)], &[0], 0);
            workers.begin(Time::ZERO, (0, Bytes(4096), 4), true, &mut forecast).unwrap().is_high(0)
        };
        assert!(!begins_high(0, 0) && !begins_high(250_000, 0));
        let alone = forecast(&boundaries, &events, &[Bytes(0)], &[0], 0);
        for ends in [Time::from_ps(100_000_000_001), Time::from_ps(120_000_000_000)] {
            assert_eq!(alone.passes_about(ends, 0, SLOW), alone.passes_at(ends, SLOW));
        }
        assert!(begins_high(500_000, 0));
        // The budget is 9 or 11 ms.
        assert!(begins_high(500_000, 90_000) && !begins_high(500_000, 110_000));
    }

    #[test]
    fn chunks_that_go_one_by_one_tell_how_much_their_ends_scatter() {
        let boundaries = boundaries(1_000, &[(1024, 0, 0)]);
        let events = WindowEvent::all(&boundaries);
        for in_flight_limit in [1, 2] {
            let mut workers = knowing(Rule { in_flight_limit, ..rule() }, 1, Some(1), Some(20));
            for (at, ends) in [(0, 60), (100, 140)] {
                // The chunk is expected to take 80 ms.
                let mut forecast = |_| forecast(&boundaries, &events, &[Bytes(0)], &[0], at);
                let mut chunk = workers.begin(ms(at), (0, Bytes(4096), 1), true, &mut forecast).unwrap();
                workers.on_received(&mut chunk, 0, ms(ends), (1, None));
            }
            // The first chunk ends a quarter of its expected duration early, the second a half.
            let expected = if in_flight_limit == 1 { (375_000, 2) } else { (0, 0) };
            assert_eq!(workers.history[0].spreads.map(|spread| (spread.mean, spread.count)), [expected, (0, 0)]);
        }
    }

    #[test]
    fn a_chunk_that_one_worker_wants_high_tells_all_how_high_ones_scatter() {
        // Four KiB take 80 ms in the low band and are needed at 100 ms of compute. This is in time for one worker, and
        // 70 ms late for the other.
        let boundaries = boundaries(100, &[(1024, 0, 0)]);
        let events = WindowEvent::all(&boundaries);
        let mut workers = knowing(rule(), 2, Some(1), Some(20));
        let mut forecast = |rank: usize| {
            let position = ms([0, 90][rank]);
            Forecast { position, ..forecast(&boundaries, &events, &[Bytes(0)], &[0], 0) }
        };
        let mut chunk = workers.begin(Time::ZERO, (0, Bytes(4096), 1), true, &mut forecast).unwrap();
        assert!(chunk.is_everywhere(true));
        for rank in 0..2 {
            workers.on_received(&mut chunk, rank, ms(5), (1, Some(true)));
        }
        // The chunk takes 5 ms instead of the expected 4 ms.
        assert_eq!(workers.history[0].spreads.map(|spread| (spread.mean, spread.count)), [(0, 0), (250_000, 2)]);
    }

    #[test]
    fn a_margin_leaves_less_slack() {
        // The first bucket is needed at 49 ms, and the second, which has 20 KiB, at 50 ms. If the 4 KiB are sent in the
        // low band, the second bucket ends at 20 + 20 ms, or at 60 ms if it takes twice as long. If they are sent in
        // the high band, it ends at 44 ms at the latest.
        let boundaries = boundaries(49, &[(4096, 0, 0), (20 * 1024, 0, 1)]);
        let events = WindowEvent::all(&boundaries);
        for (margin_ppm, is_late) in [(0, false), (1_000_000, true)] {
            let mut workers = knowing(Rule { margin_ppm, ..rule() }, 1, Some(1), Some(5));
            let left = [Bytes(0), Bytes(20 * 1024)];
            let mut forecast = |_| forecast(&boundaries, &events, &left, &[0, 1], 0);
            let chunk = workers.begin(Time::ZERO, (0, Bytes(4096), 1), true, &mut forecast).unwrap();
            assert_eq!(chunk.is_high(0), is_late, "{margin_ppm}");
        }
    }

    #[test]
    fn what_was_tried_is_paid_for_once_its_cost_is_known() {
        // There is no slack. The low band is tried with 4 KiB, and later measurements show that each KiB takes 4 ms
        // more than in the high band.
        let boundaries = boundaries(1, &[(1024, 0, 0)]);
        let events = WindowEvent::all(&boundaries);
        let mut workers = knowing(Rule { tolerance_ppm: 500_000, ..rule() }, 1, Some(1), None);
        let begin = |workers: &mut Workers, iteration| {
            let mut forecast = |_| forecast(&boundaries, &events, &[Bytes(0)], &[0], 1);
            workers.begin(ms(1), (iteration, Bytes(4096), 1), true, &mut forecast).unwrap().is_high(0)
        };
        assert!(!begin(&mut workers, 0));
        workers.history[0].low = Average { mean: 5 * SLOW, count: workers.history[0].memory };
        // The cost is 16 ms. Each of two iterations has added 2 ms to the budget, so a debt of 12 ms remains.
        assert!(begin(&mut workers, 1));
        assert_eq!(workers.history[0].debt, ms(12));
        for iteration in 2..8 {
            assert!(begin(&mut workers, iteration));
        }
        assert_eq!((workers.history[0].debt, workers.history[0].budget), (Time::ZERO, Time::ZERO));
    }
}
