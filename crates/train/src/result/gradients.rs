//! Tables and figures of data-parallel jobs.

use super::rows::{IterationRow, WorkerRow, margin, signed, slack, spread};
use super::summary::JobSummary;
use crate::bucket::Bucket;
use crate::caramel::transfers::PlannedTransfer;
use crate::caramel::{Boundaries, timeline};
use crate::communicator::DataParallel;
use crate::dag::OpKind;
use crate::job::CollectiveJob;
use crate::run::{IterationRecord, JobRecord, OperationRecord, TransferRecord};
use crate::spec::{ComputeOrderSpec, JobSpec, OrderSpec};
use gradtide_net::{Bytes, Time};
use gradtide_table::{Column, Table};
use gradtide_watch::check_cancelled_now;
use std::sync::Arc;

/// A data-parallel job with its record.
pub struct DataParallelResult<'a> {
    spec: &'a JobSpec,
    gradients: &'a DataParallel,
    trace: &'a JobRecord,
    /// Measured iterations of the slowest worker.
    iterations: &'a [IterationRecord],
    name: Arc<str>,
    /// Name of each bucket's first layer.
    bucket_names: Vec<Arc<str>>,
    /// Bytes of each bucket that are sent.
    bucket_bytes: Vec<Bytes>,
}

impl<'a> DataParallelResult<'a> {
    /// Returns whether the ops of a layer are host work. An op graph has no host work, and the indices of its ops do
    /// not refer to layers.
    fn is_host(&self, layer: u32) -> bool {
        self.spec.ops.is_none() && self.spec.layers[layer as usize].is_host
    }

    fn kind(&self, kind: OpKind) -> &'static str {
        match kind {
            OpKind::Update(layer) | OpKind::Forward(layer) | OpKind::Backward(layer) if self.is_host(layer) => "host",
            OpKind::Barrier => "barrier",
            OpKind::Update(_) => "update",
            OpKind::Forward(_) => "forward",
            OpKind::Backward(_) => "backward",
            OpKind::Compute(_) => "compute",
            OpKind::Transfer(_) => "transfer",
        }
    }

    /// Returns the name of the op's layer or, in an op graph, of the op. For a bucket, returns the name of its first
    /// layer.
    fn op_name(&self, kind: OpKind) -> String {
        match kind {
            OpKind::Barrier => String::new(),
            OpKind::Compute(_) => unreachable!("ops of layers have kinds of their own"),
            OpKind::Update(layer) | OpKind::Forward(layer) | OpKind::Backward(layer) => match &self.spec.ops {
                Some(ops) => ops.graph.ops[layer as usize].name.clone(),
                None => self.spec.layers[layer as usize].name.clone(),
            },
            OpKind::Transfer(bucket) => self.bucket_names[bucket as usize].to_string(),
        }
    }

    /// Combines a job with its record; `None` if the job is a parallel job.
    pub fn new(spec: &'a JobSpec, job: &'a CollectiveJob, trace: &'a JobRecord) -> Option<Self> {
        let gradients = job.gradients()?;
        Some(Self {
            spec,
            gradients,
            trace,
            iterations: trace.iterations(),
            name: spec.name.as_str().into(),
            bucket_names: (gradients.buckets.iter())
                .map(|bucket| spec.layers[bucket.first_layer() as usize].name.as_str().into())
                .collect(),
            bucket_bytes: (0..gradients.buckets.len() as u32).map(|bucket| gradients.sent_bytes(bucket)).collect(),
        })
    }

    fn blocks(&self) -> impl Iterator<Item = &[TransferRecord]> {
        self.trace.blocks()
    }

    /// Returns whether the workers differ in compute times or in the order of ops.
    fn differs(&self) -> bool {
        let has_own_order = self.spec.ops.as_ref().is_some_and(|ops| ops.order == ComputeOrderSpec::Random);
        self.spec.compute.noise_ppm > 0 || self.spec.compute.straggler.is_some() || has_own_order
    }

    /// Returns N, the time for which the transfers of one iteration occupy the network.
    fn comm(block: &[TransferRecord]) -> Time {
        block.iter().map(|transfer| transfer.busy).sum()
    }

    /// Returns the bound of [`timeline::lower_bound`] without a barrier, for the compute times of the slowest worker.
    /// The bound is limited to the mean iteration time, because a short run may end before its stalls reach their full
    /// length.
    fn lower_bound_ps(&self) -> f64 {
        let count = self.iterations.len() as u128;
        let compute: u128 = self.iterations.iter().map(|record| u128::from(record.compute.ps())).sum();
        let compute = Time::from_ps((compute / count) as u64);
        let mut busy = vec![Time::ZERO; self.gradients.buckets.len()];
        for block in self.blocks() {
            busy.iter_mut().zip(block).for_each(|(sum, transfer)| *sum += transfer.busy);
        }
        let transfer = |(index, (sum, bucket)): (u32, (Time, &Bucket))| {
            let (time, release, rank) = (Time::from_ps(sum.ps() / count as u64), Time::ZERO, Time::ZERO);
            PlannedTransfer { parameters: vec![index], bytes: bucket.bytes, time, release, rank }
        };
        let transfers: Vec<PlannedTransfer> =
            (0..).zip(busy.into_iter().zip(&self.gradients.buckets)).map(transfer).collect();
        // Each worker is bounded by its own windows, because a window from the update on one worker to the read on
        // another may be longer.
        let bound = |program: &Boundaries| timeline::lower_bound(&program.stretched(compute), &transfers);
        let bound = self.gradients.without_barrier.iter().map(bound).max().unwrap_or_default().ps() as f64;
        let total: u128 = self.iterations.iter().map(|record| u128::from(record.time.ps())).sum();
        let mean = total as f64 / count as f64;
        debug_assert!(
            bound <= self.most_ps(mean, compute),
            "a bound of {bound} ps, iterations of {mean} ps, and {:?}",
            self.trace.last_passes
        );
        bound.min(mean)
    }

    /// Returns the largest value that a correct bound can have for these iterations, for an assertion. A finite run can
    /// be faster than its steady state: the mean of k iterations may be below the bound by 1/k of the time returned by
    /// `waits` and `late`.
    ///
    /// The time from an update to a read in the next iteration is one iteration plus the increase of the read's stall
    /// over the previous iteration. Summed over all iterations, the increases are at most the stall of the last read
    /// (`waits`). If the channel is never idle, the time from the first update to a later read (`late`) is added. If
    /// workers or orders differ, no limit is known.
    fn most_ps(&self, mean: f64, compute: Time) -> f64 {
        if self.differs() || matches!(self.spec.schedule.order, OrderSpec::Random | OrderSpec::Arbitrary { .. }) {
            return f64::INFINITY;
        }
        let waits = |pass: &IterationRecord| pass.exposed + pass.barrier + pass.slowdown;
        let waits = self.trace.last_passes.iter().map(waits).max().unwrap_or_default();
        let late = |program: &Boundaries| {
            let windows = program.stretched(compute).windows;
            let read = windows.iter().map(|window| window.read).max().unwrap_or_default();
            read.saturating_since(windows.iter().map(|window| window.update).min().unwrap_or_default())
        };
        let late = self.gradients.without_barrier.iter().map(late).max().unwrap_or_default();
        (mean + (waits + late).ps() as f64 / self.iterations.len() as f64) * (1.0 + 1e-12) + 2.0
    }

    /// Returns the figures of the job.
    pub fn summary(&self) -> JobSummary {
        let records = self.iterations;
        let mean = |of: fn(&IterationRecord) -> Time| {
            records.iter().map(|record| of(record).ps() as f64).sum::<f64>() / records.len() as f64
        };
        let compute_ps: u128 = records.iter().map(|record| u128::from(record.computing().ps())).sum();
        let count = records.len() as u128;
        let all: Vec<&TransferRecord> = self.blocks().flatten().collect();
        JobSummary {
            name: self.spec.name.clone(),
            iteration_count: records.len() as u64,
            unmeasured: self.trace.unmeasured,
            worker_count: self.spec.worker_count() as u64,
            bucket_count: self.gradients.buckets.len() as u64,
            iteration_time_ps: records.iter().map(|record| record.time.ps()).collect(),
            // This division is exact if all times are equal.
            compute_ps: (compute_ps / count) as f64 + (compute_ps % count) as f64 / count as f64,
            host_ps: mean(|record| record.host),
            comm_ps: self.blocks().map(|block| Self::comm(block).ps() as f64).sum::<f64>() / records.len() as f64,
            exposed_ps: mean(|record| record.exposed),
            barrier_ps: mean(|record| record.barrier),
            slowdown_ps: mean(|record| record.slowdown),
            straggler_percent: 100.0 * self.trace.straggler_share(),
            slowest_worker: self.differs().then(|| self.trace.slowest() as u64),
            slack_ps: spread(all.iter().map(|transfer| slack(transfer)).collect()),
            margin_ps: spread(all.iter().map(|transfer| margin(transfer)).collect()),
            lower_bound_ps: self.lower_bound_ps(),
            parameter_bytes: self.spec.layers.iter().map(|layer| layer.parameter_bytes).sum(),
            bytes_per_worker: self
                .gradients
                .sent_by_busiest(self.bucket_bytes.iter().map(|bytes| u128::from(bytes.0)).sum()),
            asynchrony: None,
            step: None,
        }
    }
}

pub fn iterations<'a>(parts: &'a [DataParallelResult<'_>]) -> impl Iterator<Item = IterationRow> + 'a {
    parts.iter().flat_map(|part| {
        let comm = part.blocks().map(DataParallelResult::comm);
        let rows = part.iterations.iter().zip(comm).enumerate();
        rows.map(|(index, (&record, comm))| (part.name.clone(), index as u64, record, comm))
    })
}

pub fn workers<'a>(parts: &'a [DataParallelResult<'_>]) -> impl Iterator<Item = WorkerRow> + 'a {
    parts.iter().filter(|part| part.differs()).flat_map(|part| {
        (0..part.iterations.len()).flat_map(move |iteration| {
            part.trace.workers.iter().zip(part.gradients.collective.worker_hosts()).enumerate().map(
                move |(worker, (records, host))| {
                    let numbers = [iteration as u64, worker as u64, host.into()];
                    (part.name.clone(), numbers, records[iteration], None)
                },
            )
        })
    })
}

pub fn transfers(parts: &[DataParallelResult<'_>]) -> Table {
    let count = parts.iter().map(|part| part.iterations.len() * part.gradients.buckets.len()).sum();
    // The table is built column by column without an intermediate row, because there may be millions of rows.
    fn column<'a, T>(
        parts: &'a [DataParallelResult<'_>],
        count: usize,
        of: impl Fn(&'a DataParallelResult<'_>, usize, usize, &TransferRecord) -> T,
    ) -> Vec<T> {
        check_cancelled_now();
        let mut column = Vec::with_capacity(count);
        for part in parts {
            for (iteration, block) in part.blocks().enumerate() {
                column.extend(block.iter().enumerate().map(|(bucket, record)| of(part, iteration, bucket, record)));
            }
        }
        column
    }
    let texts = |of: fn(&DataParallelResult<'_>, usize) -> Arc<str>| {
        Column::Text(column(parts, count, |part, _, bucket, _| of(part, bucket)))
    };
    let counts =
        |of: fn(&DataParallelResult<'_>, usize, usize, &TransferRecord) -> u64| Column::Count(column(parts, count, of));
    let times = |of: fn(&TransferRecord) -> i64| Column::Time(column(parts, count, |_, _, _, record| of(record)));
    let mut table = Table::new(vec![
        ("job", texts(|part, _| part.name.clone())),
        ("iteration", counts(|_, iteration, _, _| iteration as u64)),
        ("bucket", counts(|_, _, bucket, _| bucket as u64)),
        ("first_layer", counts(|part, _, bucket, _| part.gradients.buckets[bucket].first_layer().into())),
        ("last_layer", counts(|part, _, bucket, _| part.gradients.buckets[bucket].last_layer().into())),
        ("layer", texts(|part, bucket| part.bucket_names[bucket].clone())),
        ("bytes", counts(|part, _, bucket, _| part.bucket_bytes[bucket].0)),
        ("chunks", counts(|part, _, bucket, _| part.gradients.chunk_count(bucket as u32))),
        ("rank", counts(|_, _, _, record| record.priority.into())),
        ("ready_us", times(|record| signed(record.ready))),
        ("start_us", times(|record| signed(record.start))),
        ("end_us", times(|record| signed(record.end))),
        ("needed_us", times(|record| signed(record.needed))),
        ("slack_us", times(slack)),
        ("margin_us", times(margin)),
    ]);
    if parts.iter().any(|part| part.gradients.changes_bands) {
        let share = |record: &TransferRecord| {
            (record.messages > 0).then(|| 100.0 * f64::from(record.high) / f64::from(record.messages))
        };
        let shares = column(parts, count, |_, _, _, record| share(record));
        table.columns.push(("high_percent".into(), Column::Ratio(shares)));
    }
    table
}

fn resource(kind: OpKind) -> &'static str {
    if matches!(kind, OpKind::Transfer(_)) { "network" } else { "compute" }
}

fn index(kind: OpKind) -> u32 {
    match kind {
        OpKind::Barrier => 0,
        OpKind::Update(index)
        | OpKind::Forward(index)
        | OpKind::Backward(index)
        | OpKind::Compute(index)
        | OpKind::Transfer(index) => index,
    }
}

pub fn operations(parts: &[DataParallelResult<'_>]) -> Table {
    let rows = || {
        parts.iter().flat_map(|part| {
            let from = part.trace.workers.iter().map(|records| records[0].start).min().unwrap_or(Time::ZERO);
            part.trace
                .operations
                .iter()
                // Ops of the iteration before the first measured one are included only if they extend into the measured
                // time.
                .filter(move |operation| operation.iteration >= 0 || operation.end > from)
                .map(move |operation| (part, operation))
        })
    };
    let texts = |of: fn(&DataParallelResult<'_>, &OperationRecord) -> String| {
        Column::Text(rows().map(|(part, operation)| of(part, operation).into()).collect())
    };
    let mut table = Table::new(vec![
        ("job", texts(|part, _| part.spec.name.clone())),
        ("iteration", Column::Signed(rows().map(|(_, operation)| Some(operation.iteration)).collect())),
        ("resource", texts(|_, operation| resource(operation.kind).into())),
        ("kind", texts(|part, operation| part.kind(operation.kind).into())),
        ("index", Column::Count(rows().map(|(_, operation)| index(operation.kind).into()).collect())),
        (
            "chunk",
            Column::Signed(
                rows()
                    .map(|(_, operation)| {
                        matches!(operation.kind, OpKind::Transfer(_)).then_some(operation.chunk as i64)
                    })
                    .collect(),
            ),
        ),
        ("name", texts(|part, operation| part.op_name(operation.kind))),
        ("start_us", Column::Time(rows().map(|(_, operation)| signed(operation.start)).collect())),
        ("end_us", Column::Time(rows().map(|(_, operation)| signed(operation.end)).collect())),
    ]);
    let mut add = |name: &str, of: fn(&DataParallelResult<'_>, &OperationRecord) -> Option<i64>| {
        let values = rows().map(|(part, operation)| of(part, operation)).collect();
        table.columns.push((name.into(), Column::Signed(values)));
    };
    if parts.iter().any(DataParallelResult::differs) {
        add("worker", |part, operation| match operation.kind {
            OpKind::Transfer(_) => None,
            _ => part.differs().then_some(operation.worker.into()),
        });
    }
    if parts.iter().any(|part| part.gradients.has_several_bands()) {
        add("band", |part, operation| match operation.kind {
            OpKind::Transfer(bucket) => Some(part.gradients.band(bucket, operation.chunk).index().into()),
            _ => None,
        });
    }
    table
}
