//! Tables and figures of jobs with parameter servers, in the columns of all others. A bucket is a parameter here.

use super::{Column, IterationRow, JobSummary, Table, WorkerRow, signed, spread};
use crate::iteration::IterationRecord;
use crate::servers::{
    ServerJob, ServerJobRecord, ServerOperation, ServerOperationRecord, ServerTransferRecord, WorkerRecord,
};
use crate::spec::JobSpec;
use gradtide_net::Time;
use std::sync::Arc;

/// One job and what it did.
pub struct Served<'a> {
    pub spec: &'a JobSpec,
    pub plan: &'a ServerJob,
    pub trace: &'a ServerJobRecord,
    pub name: Arc<str>,
}

impl Served<'_> {
    /// Iterations of the worker that the others wait for.
    fn iterations(&self) -> &[WorkerRecord] {
        &self.trace.workers[self.trace.slowest()]
    }

    /// Figures of the job, as its slowest worker sees it; slack and margin are of all workers' pulls.
    pub fn summary(&self) -> JobSummary {
        let records = self.iterations();
        let count = records.len() as f64;
        let mean = |of: fn(&WorkerRecord) -> Time| {
            records.iter().map(|record| of(record).ps()).map(u128::from).sum::<u128>() as f64 / count
        };
        let compute_ps = mean(|record| record.compute);
        let all = self.trace.workers.iter().flatten();
        let share = |record: &WorkerRecord| waits(record).ps() as f64 / record.time.ps() as f64;
        let pulls = || self.trace.transfers.iter().filter(|transfer| !transfer.is_push);
        let graph = &self.plan.graph;
        JobSummary {
            name: self.spec.name.clone(),
            iteration_count: records.len() as u64,
            worker_count: self.plan.workers.len() as u64,
            bucket_count: graph.parameters.len() as u64,
            iteration_time_ps: records.iter().map(|record| record.time.ps()).collect(),
            compute_ps,
            comm_ps: mean(|record| record.comm),
            exposed_ps: mean(exposed),
            barrier_ps: mean(barrier),
            slowdown_ps: 0.0,
            straggler_percent: 100.0 * all.map(share).fold(0.0, f64::max),
            slowest_worker: (self.plan.workers.len() > 1).then(|| self.trace.slowest() as u64),
            slack_ps: spread(pulls().map(slack).collect()),
            margin_ps: spread(pulls().map(margin).collect()),
            lower_bound_ps: self.plan.lower_bound_ps(compute_ps / graph.compute_time().ps() as f64),
            parameter_bytes: graph.parameters.iter().map(|parameter| parameter.bytes.0).sum(),
            bytes_per_worker: self.plan.sent_by_busiest() as f64,
        }
    }
}

/// Compute stood still for a parameter.
fn exposed(record: &WorkerRecord) -> Time {
    record.computed - record.compute
}

/// All was computed, and the iteration was not over: gradients on their way, updates, other workers.
fn barrier(record: &WorkerRecord) -> Time {
    record.time - record.computed
}

/// The worker's own part was done, and another's was not.
fn waits(record: &WorkerRecord) -> Time {
    record.longest - record.own
}

fn slack(transfer: &ServerTransferRecord) -> i64 {
    signed(transfer.needed) - signed(transfer.ready)
}

fn margin(transfer: &ServerTransferRecord) -> i64 {
    signed(transfer.needed) - signed(transfer.end)
}

/// What an iteration was for a worker.
fn record(record: &WorkerRecord) -> IterationRecord {
    IterationRecord {
        start: record.start,
        time: record.time,
        compute: record.compute,
        straggler: waits(record),
        exposed: exposed(record),
        barrier: barrier(record),
        slowdown: Time::ZERO,
    }
}

/// One row per iteration, as the slowest worker sees it.
pub fn iterations<'a>(jobs: &'a [Served<'_>]) -> impl Iterator<Item = IterationRow> + 'a {
    jobs.iter().flat_map(|job| {
        let rows = job.iterations().iter().enumerate();
        rows.map(|(index, row)| (job.name.clone(), index as u64, record(row), row.comm))
    })
}

/// One row per iteration and worker.
pub fn workers<'a>(jobs: &'a [Served<'_>]) -> impl Iterator<Item = WorkerRow> + 'a {
    jobs.iter().flat_map(|job| {
        (0..job.iterations().len()).flat_map(move |iteration| {
            job.trace.workers.iter().zip(&job.plan.workers).enumerate().map(move |(worker, (records, &host))| {
                let numbers = [iteration as u64, worker as u64, host.into()];
                (job.name.clone(), numbers, record(&records[iteration]))
            })
        })
    })
}

/// One row per pull and push.
pub fn transfers(jobs: &[Served<'_>]) -> Table {
    let rows = || jobs.iter().flat_map(|job| job.trace.transfers.iter().map(move |transfer| (job, transfer)));
    let counts = |of: fn(&Served<'_>, &ServerTransferRecord) -> u64| {
        Column::Count(rows().map(|(job, transfer)| of(job, transfer)).collect())
    };
    let times = |of: fn(&ServerTransferRecord) -> i64| Column::Time(rows().map(|(_, transfer)| of(transfer)).collect());
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
        ("rank", counts(|_, transfer| transfer.rank.into())),
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

/// One row per op and transfer of the first iterations.
pub fn operations(jobs: &[Served<'_>]) -> Table {
    let rows = || jobs.iter().flat_map(|job| job.trace.operations.iter().map(move |operation| (job, operation)));
    let labels = ["compute", "network", "forward", "backward", "pull", "push"].map(Arc::<str>::from);
    let [compute, network, forward, backward, pull, push] = &labels;
    let text = |of: &dyn Fn(&Served<'_>, &ServerOperationRecord) -> Arc<str>| {
        Column::Text(rows().map(|(job, operation)| of(job, operation)).collect())
    };
    let times = |of: fn(&ServerOperationRecord) -> Time| {
        Column::Time(rows().map(|(_, operation)| signed(of(operation))).collect())
    };
    Table::new(vec![
        ("job", text(&|job, _| job.name.clone())),
        ("iteration", Column::Signed(rows().map(|(_, operation)| Some(operation.iteration.into())).collect())),
        (
            "resource",
            text(&|_, operation| {
                if matches!(operation.what, ServerOperation::Op(_)) { compute.clone() } else { network.clone() }
            }),
        ),
        (
            "kind",
            text(&|job, operation| match operation.what {
                ServerOperation::Op(op) if job.plan.graph.ops[op as usize].is_forward => forward.clone(),
                ServerOperation::Op(_) => backward.clone(),
                ServerOperation::Pull(_) => pull.clone(),
                ServerOperation::Push(_) => push.clone(),
            }),
        ),
        (
            "index",
            Column::Count(
                rows()
                    .map(|(job, operation)| match operation.what {
                        ServerOperation::Op(op) => job.plan.graph.ops[op as usize].index.into(),
                        ServerOperation::Pull(parameter) | ServerOperation::Push(parameter) => parameter.into(),
                    })
                    .collect(),
            ),
        ),
        (
            "chunk",
            Column::Signed(rows().map(|(_, op)| (!matches!(op.what, ServerOperation::Op(_))).then_some(0)).collect()),
        ),
        (
            "name",
            text(&|job, operation| match operation.what {
                ServerOperation::Op(op) => job.plan.graph.ops[op as usize].name.clone(),
                ServerOperation::Pull(parameter) | ServerOperation::Push(parameter) => {
                    job.plan.graph.parameters[parameter as usize].name.clone()
                }
            }),
        ),
        ("start_us", times(|operation| operation.start)),
        ("end_us", times(|operation| operation.end)),
        ("worker", Column::Signed(rows().map(|(_, operation)| Some(operation.worker.into())).collect())),
    ])
}
