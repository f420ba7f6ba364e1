//! Tables and figures of jobs with parameter servers, in the columns that all jobs have. Each parameter counts as a
//! bucket.

use super::{PsJob, PsRecord, Staleness, WorkerRecord};
use crate::dag::OpKind;
use crate::result::rows::{IterationRow, WorkerRow, margin, signed, slack, spread};
use crate::result::summary::{Asynchrony, JobSummary, WorkerAsynchrony};
use crate::run::{IterationRecord, OperationRecord, TransferRecord};
use crate::spec::JobSpec;
use gradtide_net::Time;
use gradtide_table::{Column, Table};
use std::sync::Arc;

/// A job with parameter servers and its record.
pub struct PsResult<'a> {
    spec: &'a JobSpec,
    plan: &'a PsJob,
    record: &'a PsRecord,
    name: Arc<str>,
}

#[derive(Clone, Copy)]
struct Carried<'a> {
    iteration: u32,
    worker: u32,
    parameter: u32,
    is_push: bool,
    record: &'a TransferRecord,
}

impl<'a> PsResult<'a> {
    /// Combines a job of a scenario with its record.
    pub fn new(spec: &'a JobSpec, plan: &'a PsJob, record: &'a PsRecord) -> Self {
        Self { spec, plan, record, name: spec.name.as_str().into() }
    }

    fn iterations(&self) -> &[WorkerRecord] {
        self.record.iterations()
    }

    /// Returns the transfers of complete iterations, ordered by iteration and worker. Within these, pulls are ordered
    /// by parameter and followed by pushes in the order in which they became ready.
    fn carried(&self) -> impl Iterator<Item = Carried<'a>> {
        let (plan, record) = (self.plan, self.record);
        let (workers, first) = (&record.workers, &record.first);
        let most = workers.iter().map(Vec::len).max().unwrap_or(0) as u32;
        let complete = move |iteration: u32| {
            (0..)
                .zip(workers)
                .filter(move |(_, records)| (iteration as usize) < records.len())
                .map(|(worker, _)| worker)
        };
        let blocks =
            (0..most).flat_map(move |iteration| complete(iteration).map(move |worker: u32| (iteration, worker)));
        blocks.flat_map(move |(iteration, worker)| {
            let transfers = &record.transfers[worker as usize];
            let of = |transfer: u32| {
                let (parameter, is_push) = plan.carried(transfer);
                let record = transfers.get(iteration + first[worker as usize], transfer);
                Carried { iteration, worker, parameter, is_push, record }
            };
            let pulls = plan.graph.parameters.len() as u32;
            let mut block: Vec<Carried<'a>> = (0..pulls + plan.pushes.len() as u32).map(of).collect();
            block[pulls as usize..].sort_by_key(|push| push.record.priority);
            block
        })
    }

    /// Returns a lower bound on the iteration time for any order of transfers. The bound of asynchronous workers is
    /// limited to the measured time, because the job may end during an iteration that is shorter than the mean.
    fn lower_bound_ps(&self, time_ps: f64) -> f64 {
        let in_model = self.plan.graph.compute_time().ps() as f64;
        let factor = |records: &Vec<WorkerRecord>| mean_ps(records, |record| record.compute) / in_model;
        let factors: Vec<f64> = self.record.workers.iter().map(factor).collect();
        let bound = self.plan.lower_bound_ps(&factors);
        if self.plan.is_synchronous() { bound } else { bound.min(time_ps) }
    }

    /// Returns the figures of asynchronous workers; `None` if workers are synchronous.
    fn asynchrony(&self) -> Option<Asynchrony> {
        self.record.shared.as_ref()?;
        let pushed = self.plan.pushes.len();
        let of_worker = |records: &Vec<WorkerRecord>| {
            let staleness = || records.iter().map(|record| record.staleness);
            let count = records.len() as f64;
            let sum = |of: fn(Staleness) -> u64| staleness().map(of).map(u128::from).sum::<u128>() as f64;
            let mean_iterations = sum(|it| it.iterations.into()) / count;
            let most_iterations = staleness().map(|it| it.iterations).max().unwrap_or(0);
            let updates = (pushed > 0).then(|| {
                let most = staleness().map(|it| it.most_updates).max().unwrap_or(0);
                (sum(|it| it.updates) / (count * pushed as f64), most)
            });
            WorkerAsynchrony {
                iteration_count: records.len() as u64,
                time_ps: mean_ps(records, |record| record.time),
                bound_wait_ps: mean_ps(records, |record| record.waited),
                staleness_iterations: (mean_iterations, most_iterations.into()),
                staleness_updates: updates,
            }
        };
        Some(Asynchrony { bound: self.plan.bound, workers: self.record.workers.iter().map(of_worker).collect() })
    }

    /// Returns the figures of the job. They describe its slowest worker, or all workers if these are asynchronous.
    /// Slack and margin include the pulls of all workers.
    pub fn summary(&self) -> JobSummary {
        let records = self.iterations();
        let mean = |of| mean_ps(records, of);
        let all = self.record.workers.iter().flatten();
        let share = |record: &WorkerRecord| record.waited.ps() as f64 / record.time.ps() as f64;
        let pulls = || self.carried().filter(|transfer| !transfer.is_push);
        let graph = &self.plan.graph;
        JobSummary {
            name: self.spec.name.clone(),
            iteration_count: records.len() as u64,
            unmeasured: self.record.unmeasured,
            worker_count: self.plan.workers.len() as u64,
            bucket_count: graph.parameters.len() as u64,
            iteration_time_ps: records.iter().map(|record| record.time.ps()).collect(),
            compute_ps: mean(|record| record.compute - record.host),
            host_ps: mean(|record| record.host),
            comm_ps: mean(|record| record.comm),
            exposed_ps: mean(exposed),
            barrier_ps: mean(barrier),
            slowdown_ps: 0.0,
            straggler_percent: 100.0 * all.map(share).fold(0.0, f64::max),
            slowest_worker: (self.plan.workers.len() > 1).then(|| self.record.slowest() as u64),
            slack_ps: spread(pulls().map(|pull| slack(pull.record)).collect()),
            margin_ps: spread(pulls().map(|pull| margin(pull.record)).collect()),
            lower_bound_ps: self.lower_bound_ps(mean(|record| record.time)),
            parameter_bytes: graph.parameters.iter().map(|parameter| parameter.bytes.0).sum(),
            bytes_per_worker: self.plan.sent_by_busiest() as f64,
            asynchrony: self.asynchrony(),
            step: None,
        }
    }
}

/// Returns the time for which compute waits for parameters.
fn exposed(record: &WorkerRecord) -> Time {
    record.computed - record.compute
}

/// Returns the time from the end of compute to the end of the iteration, in which gradients are sent and applied and
/// the worker waits for others.
fn barrier(record: &WorkerRecord) -> Time {
    record.time - record.computed
}

fn mean_ps(records: &[WorkerRecord], of: fn(&WorkerRecord) -> Time) -> f64 {
    records.iter().map(|record| of(record).ps()).map(u128::from).sum::<u128>() as f64 / records.len() as f64
}

/// Converts the iteration of a worker to the record that jobs without servers use.
fn record(record: &WorkerRecord) -> IterationRecord {
    IterationRecord {
        start: record.start,
        time: record.time,
        compute: record.compute,
        host: record.host,
        straggler: record.waited,
        exposed: exposed(record),
        barrier: barrier(record),
        slowdown: Time::ZERO,
    }
}

/// Returns one row per iteration of the job.
pub fn iterations<'a>(jobs: &'a [PsResult<'_>]) -> impl Iterator<Item = IterationRow> + 'a {
    jobs.iter().flat_map(|job| {
        let rows = job.iterations().iter().enumerate();
        rows.map(|(index, row)| (job.name.clone(), index as u64, record(row), row.comm))
    })
}

/// Returns one row per iteration and worker.
pub fn workers<'a>(jobs: &'a [PsResult<'_>]) -> impl Iterator<Item = WorkerRow> + 'a {
    jobs.iter().flat_map(|job| {
        let most = job.record.workers.iter().map(Vec::len).max().unwrap_or(0);
        let pushed = job.plan.pushes.len();
        (0..most).flat_map(move |iteration| {
            let workers = job.record.workers.iter().zip(&job.plan.workers).enumerate();
            workers.filter_map(move |(worker, (records, &host))| {
                let numbers = [iteration as u64, worker as u64, host.into()];
                let row = records.get(iteration)?;
                let updates = (pushed > 0).then(|| row.staleness.updates as f64 / pushed as f64);
                let staleness = job.record.shared.is_some().then_some((row.staleness.iterations, updates));
                Some((job.name.clone(), numbers, record(row), staleness))
            })
        })
    })
}

/// Creates the table with one row for each pull and push.
pub fn transfers(jobs: &[PsResult<'_>]) -> Table {
    let all: Vec<(&PsResult<'_>, Carried<'_>)> =
        jobs.iter().flat_map(|job| job.carried().map(move |transfer| (job, transfer))).collect();
    let rows = || all.iter();
    let counts = |of: fn(&PsResult<'_>, &Carried<'_>) -> u64| {
        Column::Count(rows().map(|(job, transfer)| of(job, transfer)).collect())
    };
    let times =
        |of: fn(&TransferRecord) -> i64| Column::Time(rows().map(|(_, transfer)| of(transfer.record)).collect());
    let (pull, push): (Arc<str>, Arc<str>) = ("pull".into(), "push".into());
    Table::new(vec![
        ("job", Column::Text(rows().map(|(job, _)| job.name.clone()).collect())),
        ("iteration", counts(|_, transfer| transfer.iteration.into())),
        ("bucket", counts(|_, transfer| transfer.parameter.into())),
        ("first_layer", counts(|job, transfer| job.plan.graph.parameters[transfer.parameter as usize].layer.into())),
        ("last_layer", counts(|job, transfer| job.plan.graph.parameters[transfer.parameter as usize].layer.into())),
        (
            "layer",
            Column::Text(
                rows()
                    .map(|(job, transfer)| job.plan.graph.parameters[transfer.parameter as usize].name.clone())
                    .collect(),
            ),
        ),
        ("bytes", counts(|job, transfer| job.plan.graph.parameters[transfer.parameter as usize].bytes.0)),
        ("chunks", counts(|_, _| 1)),
        ("rank", counts(|_, transfer| transfer.record.priority.into())),
        ("ready_us", times(|transfer| signed(transfer.ready))),
        ("start_us", times(|transfer| signed(transfer.start))),
        ("end_us", times(|transfer| signed(transfer.end))),
        ("needed_us", times(|transfer| signed(transfer.needed))),
        ("slack_us", times(slack)),
        ("margin_us", times(margin)),
        (
            "direction",
            Column::Text(
                rows().map(|(_, transfer)| if transfer.is_push { push.clone() } else { pull.clone() }).collect(),
            ),
        ),
        ("worker", Column::Signed(rows().map(|(_, transfer)| Some(transfer.worker.into())).collect())),
        (
            "server",
            Column::Signed(
                rows().map(|(job, transfer)| Some(job.plan.server_of[transfer.parameter as usize].into())).collect(),
            ),
        ),
    ])
}

/// Creates the table with one row for each op and transfer of the first iterations.
pub fn operations(jobs: &[PsResult<'_>]) -> Table {
    let rows = || jobs.iter().flat_map(|job| job.record.operations.iter().map(move |operation| (job, operation)));
    let labels = ["compute", "network", "host", "forward", "backward", "pull", "push"].map(Arc::<str>::from);
    let [compute, network, host, forward, backward, pull, push] = &labels;
    // `Ok` with the index of an op of the graph, or `Err` with the parameter of a transfer and whether it is a push.
    let what = |job: &PsResult<'_>, operation: &OperationRecord| match operation.kind {
        OpKind::Transfer(transfer) => Err(job.plan.carried(transfer)),
        OpKind::Compute(op) => Ok(op as usize),
        _ => Ok(0),
    };
    let text = |of: &dyn Fn(&PsResult<'_>, &OperationRecord) -> Arc<str>| {
        Column::Text(rows().map(|(job, operation)| of(job, operation)).collect())
    };
    let times =
        |of: fn(&OperationRecord) -> Time| Column::Time(rows().map(|(_, operation)| signed(of(operation))).collect());
    Table::new(vec![
        ("job", text(&|job, _| job.name.clone())),
        ("iteration", Column::Signed(rows().map(|(_, operation)| Some(operation.iteration)).collect())),
        (
            "resource",
            text(&|job, operation| if what(job, operation).is_ok() { compute.clone() } else { network.clone() }),
        ),
        (
            "kind",
            text(&|job, operation| match what(job, operation) {
                Ok(op) if job.plan.graph.ops[op].is_host => host.clone(),
                Ok(op) if job.plan.graph.ops[op].is_forward => forward.clone(),
                Ok(_) => backward.clone(),
                Err((_, false)) => pull.clone(),
                Err((_, true)) => push.clone(),
            }),
        ),
        (
            "index",
            Column::Count(
                rows()
                    .map(|(job, operation)| match what(job, operation) {
                        Ok(op) => job.plan.graph.ops[op].index.into(),
                        Err((parameter, _)) => parameter.into(),
                    })
                    .collect(),
            ),
        ),
        ("chunk", Column::Signed(rows().map(|(job, operation)| what(job, operation).is_err().then_some(0)).collect())),
        (
            "name",
            text(&|job, operation| match what(job, operation) {
                Ok(op) => job.plan.graph.ops[op].name.clone(),
                Err((parameter, _)) => job.plan.graph.parameters[parameter as usize].name.clone(),
            }),
        ),
        ("start_us", times(|operation| operation.start)),
        ("end_us", times(|operation| operation.end)),
        ("worker", Column::Signed(rows().map(|(_, operation)| Some(operation.worker.into())).collect())),
    ])
}
