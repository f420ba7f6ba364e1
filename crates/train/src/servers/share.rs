//! Iterations of a job whose workers are not in step.
//!
//! ```text
//! worker 0   |───|───|───|───|───|───|         n = 2 workers: an iteration of the job is two of theirs.
//! worker 1   |───────────|───────────|         What a worker has done of an iteration counts by the share of
//! job        |─────|─────|─────|─────|         its time: 6 + 2 iterations of workers are 4 of the job.
//! ```
//!
//! So an iteration of the job has the samples and, on average, the bytes that it has in step. Iterations follow each
//! other without a gap, and n divided by their mean time is the sum of the workers' rates. A figure of such an iteration
//! is the mean over the workers of what they did in that time, again by shares.

use super::{Staleness, WorkerRecord};
use gradtide_net::Time;

/// Shares of an iteration that rounding may leave.
const ROUNDING: f64 = 1e-9;

/// Figures that are shared out: ops, time to the last op, transfers, waits.
const FIGURES: usize = 5;

/// What all workers do together at one time, per picosecond.
#[derive(Clone, Copy, Default)]
struct Pace {
    iterations: f64,
    figures: [f64; FIGURES],
}

impl Pace {
    fn of<'a>(records: impl Iterator<Item = &'a WorkerRecord>) -> Self {
        records.fold(Self::default(), |pace, record| pace.with(record, 1.0))
    }

    /// With another worker's iteration, or with `sign` -1 without it.
    fn with(mut self, record: &WorkerRecord, sign: f64) -> Self {
        let per_ps = sign / record.time.ps() as f64;
        self.iterations += per_ps;
        let figures = [record.compute, record.host, record.computed, record.comm, record.waited];
        self.figures.iter_mut().zip(figures).for_each(|(sum, figure)| *sum += per_ps * figure.ps() as f64);
        self
    }
}

/// At most `limit` iterations of the job, from `since` on, or from the start of the workers if that is later, as long as
/// all workers' iterations are complete.
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
    let present = |places: &[usize]| Pace::of(workers.iter().zip(places).map(|(records, &place)| &records[place]));
    let mut pace = present(&places);
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
            let is_complete = pace.iterations * (until - now) >= left - ROUNDING;
            let step = if is_complete { (left / pace.iterations).clamp(0.0, until - now) } else { until - now };
            now += step;
            done += pace.iterations * step;
            figures.iter_mut().zip(pace.figures).for_each(|(sum, per_ps)| *sum += per_ps * step);
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
        // Differences add up what is rounded, so now and then the sum is made anew.
        pace = match (index + 1) % workers.len() {
            0 => present(&places),
            _ => pace.with(&records[*place - 1], -1.0).with(&records[*place], 1.0),
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
