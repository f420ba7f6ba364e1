//! Iterations of a job whose workers are asynchronous.
//!
//! ```text
//! worker 0   |───|───|───|───|───|───|         n = 2 workers: one job iteration is two worker iterations.
//! worker 1   |───────────|───────────|         A partly completed worker iteration counts by the share of
//! job        |─────|─────|─────|─────|         its time: 6 + 2 worker iterations are 4 job iterations.
//! ```
//!
//! A job iteration thus has as many samples and, on average, as many bytes as a synchronous iteration. Job iterations
//! follow one another without a gap, and n divided by their mean time is the sum of the workers' rates in iterations
//! per time. A figure of a job iteration is the mean over all workers of their figures during this job iteration, where
//! partly overlapping worker iterations again count by the share of their time.

use super::{Staleness, WorkerRecord};
use gradtide_net::Time;

/// Tolerance for rounding errors, as a share of an iteration.
const ROUNDING: f64 = 1e-9;

/// Number of figures that are averaged: compute, host, time to the last op, transfers, waits.
const FIGURES: usize = 5;

/// Iterations and figures of all workers at one instant, per picosecond.
#[derive(Clone, Copy, Default)]
struct Rates {
    iterations: f64,
    figures: [f64; FIGURES],
}

impl Rates {
    fn of<'a>(records: impl Iterator<Item = &'a WorkerRecord>) -> Self {
        records.fold(Self::default(), |rates, record| rates.with(record, 1.0))
    }

    /// Adds the rates of a worker's iteration, or subtracts them if `sign` is -1.
    fn with(mut self, record: &WorkerRecord, sign: f64) -> Self {
        let per_ps = sign / record.time.ps() as f64;
        self.iterations += per_ps;
        let figures = [record.compute, record.host, record.computed, record.comm, record.waited];
        self.figures.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += per_ps * figure.ps() as f64);
        self
    }
}

/// Returns the iterations of the job, at most `limit`. They begin at the later of `since` and the start of the workers,
/// and end when any worker has no more records.
pub fn iterations(workers: &[Vec<WorkerRecord>], since: Time, limit: Option<u32>) -> Vec<WorkerRecord> {
    if workers.iter().any(Vec::is_empty) {
        return Vec::new();
    }
    let count = workers.len() as f64;
    let origin = workers[0][0].start.max(since);
    let is_before = |record: &WorkerRecord| record.start + record.time <= origin;
    let mut places: Vec<usize> = workers.iter().map(|records| records.partition_point(is_before)).collect();
    if workers.iter().zip(&places).any(|(records, &place)| place == records.len()) {
        return Vec::new();
    }
    let present = |places: &[usize]| Rates::of(workers.iter().zip(places).map(|(records, &place)| &records[place]));
    let mut rates = present(&places);
    let mut ends: Vec<(Time, usize)> = (workers.iter().enumerate())
        .flat_map(|(worker, records)| records.iter().map(move |record| (record.start + record.time, worker)))
        .filter(|&(end, _)| end > origin)
        .collect();
    ends.sort_unstable();
    let (mut now, mut done, mut figures) = (0.0, 0.0, [0.0; FIGURES]);
    let mut shared: Vec<WorkerRecord> = Vec::new();
    let mut began = origin;
    for (index, (end, worker)) in ends.into_iter().enumerate() {
        let until = (end - origin).ps() as f64;
        loop {
            if limit.is_some_and(|limit| shared.len() >= limit as usize) {
                return shared;
            }
            let left = count - done;
            let is_complete = rates.iterations * (until - now) >= left - ROUNDING;
            let step = if is_complete { (left / rates.iterations).clamp(0.0, until - now) } else { until - now };
            now += step;
            done += rates.iterations * step;
            figures.iter_mut().zip(rates.figures).for_each(|(sum, per_ps)| *sum += per_ps * step);
            if !is_complete {
                break;
            }
            let ended = origin + Time::from_ps((now + 0.5) as u64);
            shared.push(record(began, ended, figures.map(|figure| figure / count)));
            (began, done, figures) = (ended, 0.0, [0.0; FIGURES]);
        }
        let records = &workers[worker];
        let place = &mut places[worker];
        *place += 1;
        if *place == records.len() {
            break;
        }
        // The sum is recomputed periodically, because incremental updates accumulate rounding errors.
        rates = match (index + 1) % workers.len() {
            0 => present(&places),
            _ => rates.with(&records[*place - 1], -1.0).with(&records[*place], 1.0),
        };
    }
    shared
}

fn record(start: Time, end: Time, figures: [f64; FIGURES]) -> WorkerRecord {
    let time = end - start;
    let [compute, host, computed, comm, waited] = figures.map(|figure| Time::from_ps((figure + 0.5) as u64).min(time));
    let (computed, own) = (computed.max(compute), time - waited);
    WorkerRecord { start, time, own, waited, computed, compute, host, comm, staleness: Staleness::default() }
}
