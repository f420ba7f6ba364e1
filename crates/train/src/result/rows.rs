//! Rows and columns that are common to all kinds of jobs.

use crate::run::{IterationRecord, TransferRecord};
use gradtide_net::Time;
use gradtide_table::{Column, Table};
use gradtide_watch::check_cancelled_now;
use std::sync::Arc;

/// Returns the slack of a transfer, in ps: the time at which it is needed minus the time at which it is ready.
pub fn slack(transfer: &TransferRecord) -> i64 {
    signed(transfer.needed) - signed(transfer.ready)
}

/// Returns the margin of a transfer, in ps: the time at which it is needed minus its end.
pub fn margin(transfer: &TransferRecord) -> i64 {
    signed(transfer.needed) - signed(transfer.end)
}

/// Converts a time to a signed number of picoseconds, the form of all times in results. [`crate::run()`] refuses runs
/// that approach 2^63 ps.
pub fn signed(time: Time) -> i64 {
    i64::try_from(time.ps()).expect("a run ends before 2^63 ps")
}

/// Returns the minimum, median and maximum of values. The median of an even number of values is the mean of the two in
/// the middle.
pub fn spread(values: Vec<i64>) -> Option<[f64; 3]> {
    spread_of(values.into_iter().map(|value| (value, 1)).collect())
}

/// Returns the minimum, median and maximum of values that are given with their multiplicities.
pub fn spread_of(mut values: Vec<(i64, u64)>) -> Option<[f64; 3]> {
    values.sort_unstable();
    let (&(first, _), &(last, _)) = (values.first()?, values.last()?);
    let count: u64 = values.iter().map(|&(_, times)| times).sum();
    let at = |place: u64| {
        let mut up_to = 0;
        let mut reached = values.iter().skip_while(|&&(_, times)| {
            up_to += times;
            up_to <= place
        });
        reached.next().map_or(last, |&(value, _)| value) as f64
    };
    Some([first as f64, (at((count - 1) / 2) + at(count / 2)) / 2.0, last as f64])
}

/// A row of the table of iterations: job, index of the iteration, record of the slowest worker, and N (the time for
/// which the transfers occupy the network).
pub type IterationRow = (Arc<str>, u64, IterationRecord, Time);

/// A row of the table of iterations by worker: job; iteration, worker and host; record of the iteration on the worker;
/// and, if workers are asynchronous, the staleness of its parameters, in iterations and in updates.
pub type WorkerRow = (Arc<str>, [u64; 3], IterationRecord, Option<(u32, Option<f64>)>);

/// Creates the table of iterations of all jobs.
pub fn iteration_table(rows: &[IterationRow]) -> Table {
    let times = |of: fn(&IterationRow) -> Time| Column::Time(rows.iter().map(|row| signed(of(row))).collect());
    let share = |record: &IterationRecord| record.computing().ps() as f64 / record.time.ps() as f64;
    let alpha = |(.., record, comm): &IterationRow| overlap(record.compute, *comm, record.time);
    let mut table = Table::new(vec![
        ("job", Column::Text(rows.iter().map(|(job, ..)| job.clone()).collect())),
        ("iteration", Column::Count(rows.iter().map(|&(_, index, ..)| index).collect())),
        ("start_us", times(|(.., record, _)| record.start)),
        ("time_us", times(|(.., record, _)| record.time)),
        ("compute_us", times(|(.., record, _)| record.computing())),
        ("comm_us", times(|&(.., comm)| comm)),
        ("exposed_us", times(|(.., record, _)| record.exposed)),
        ("barrier_us", times(|(.., record, _)| record.barrier)),
        ("slowdown_us", times(|(.., record, _)| record.slowdown)),
        ("alpha", Column::Ratio(rows.iter().map(alpha).collect())),
        ("utilisation", Column::Ratio(rows.iter().map(|(.., record, _)| Some(share(record))).collect())),
    ]);
    if rows.iter().any(|(.., record, _)| record.host > Time::ZERO) {
        table.columns.push((HOST_US.into(), times(|(.., record, _)| record.host)));
    }
    table
}

/// Name of the column with the time for which the device is idle because the host is working. Only recorded steps have
/// it.
const HOST_US: &str = "host_us";

/// Creates the table of iterations by worker.
pub fn worker_table(rows: &[WorkerRow]) -> Table {
    let counts = |index: usize| Column::Count(rows.iter().map(|(_, numbers, ..)| numbers[index]).collect());
    let times = |of: fn(&IterationRecord) -> Time| {
        check_cancelled_now();
        Column::Time(rows.iter().map(|(_, _, record, _)| signed(of(record))).collect())
    };
    let mut table = Table::new(vec![
        ("job", Column::Text(rows.iter().map(|(job, ..)| job.clone()).collect())),
        ("iteration", counts(0)),
        ("worker", counts(1)),
        ("host", counts(2)),
        ("start_us", times(|record| record.start)),
        ("time_us", times(|record| record.time)),
        ("compute_us", times(IterationRecord::computing)),
        ("exposed_us", times(|record| record.exposed)),
        ("barrier_us", times(|record| record.barrier)),
        ("slowdown_us", times(|record| record.slowdown)),
        ("straggler_us", times(|record| record.straggler)),
    ]);
    if rows.iter().any(|(_, _, record, _)| record.host > Time::ZERO) {
        table.columns.push((HOST_US.into(), times(|record| record.host)));
    }
    if rows.iter().any(|(.., staleness)| staleness.is_some()) {
        let iterations =
            rows.iter().map(|(.., staleness)| staleness.map(|(iterations, _)| iterations.into())).collect();
        let updates = rows.iter().map(|(.., staleness)| staleness.and_then(|(_, updates)| updates)).collect();
        table.columns.push(("staleness_iterations".into(), Column::Signed(iterations)));
        table.columns.push(("staleness_updates".into(), Column::Ratio(updates)));
    }
    table
}

/// Returns the overlap coefficient (N + C - T) / min(N, C) of TicTac, section 3.2, from the communication time N, the
/// compute time C and the iteration time T. Returns `None` if N or C is zero.
fn overlap(compute: Time, comm: Time, time: Time) -> Option<f64> {
    let shorter = compute.min(comm);
    (shorter > Time::ZERO).then(|| (signed(compute) + signed(comm) - signed(time)) as f64 / shorter.ps() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_what_would_break_a_row_and_keeps_every_picosecond() {
        let table = Table::new(vec![
            ("name", Column::Text(vec!["a,\"b\"".into(), "c".into()])),
            ("time_us", Column::Time(vec![-1_000_001, 2])),
            ("alpha", Column::Ratio(vec![Some(0.1), None])),
        ]);
        assert_eq!(table.to_csv(), "name,time_us,alpha\n\"a,\"\"b\"\"\",-1.000001,0.1\nc,0.000002,\n");
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
        assert_eq!(spread(vec![4, 1, 3, 2]), Some([1.0, 2.5, 4.0]));
        assert_eq!(spread(vec![]), None);
    }
}
