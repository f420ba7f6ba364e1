//! The results of a run: tables of exact numbers, and the figures of the summary. `result/divided.rs` has those of
//! parallel jobs, `result/served.rs` those of jobs with parameter servers.

pub mod critical;
mod divided;
mod served;

use crate::bucket::Bucket;
use crate::caramel::transfers::PlannedTransfer;
use crate::caramel::{Boundaries, timeline};
use crate::collective::messages::Collective;
use crate::collective::pattern::Action;
use crate::communicator::DataParallel;
use crate::dag::OpKind;
use crate::engine::{LinkUsage, Usage};
use crate::job::Job;
use crate::probe::{Carried, Samples};
use crate::run::{Done, IterationRecord, JobRecord, OperationRecord, TransferRecord, Unmeasured};
use crate::spec::{ComputeOrderSpec, JobSpec, OrderSpec, Spec, TrafficSpec};
use crate::traffic::{BackgroundFlows, Outcome};
use divided::Divided;
pub use divided::StepSummary;
use gradtide_net::trace::{PortState, Window};
use gradtide_net::{Bytes, Time};
use gradtide_table::{Column, Table};
use gradtide_watch::look_now;
use serde::Serialize;
use served::Served;
use std::sync::Arc;

/// All results of a run.
#[derive(Debug)]
pub struct RunResult {
    /// One row per measured iteration of each job, from its slowest worker.
    pub iterations: Table,
    /// One row per worker and measured iteration of each job whose workers differ.
    pub workers: Table,
    /// One row per bucket of each measured iteration.
    pub transfers: Table,
    /// One row per op of the first measured iterations.
    pub operations: Table,
    /// One row per link.
    pub links: Table,
    /// One row per background flow that started.
    pub flows: Table,
    /// One row per sampled link and instant; empty without a probe.
    pub queues: Table,
    /// One row per sampled connection and instant; empty without a probe of windows.
    pub cwnd: Table,
    /// Figures of every job.
    pub summary: Summary,
}

/// The messages between ranks in a collective on `bytes`: one row per message, by chunk, step and sender.
pub fn messages(collective: &Collective, bytes: Bytes) -> Table {
    let mut counts: [Vec<u64>; 6] = Default::default();
    let (reduce, copy): (Arc<str>, Arc<str>) = ("reduce".into(), "copy".into());
    let mut actions = Vec::new();
    collective.each_message(bytes, &mut |chunk, sent| {
        let row = [chunk, u64::from(sent.step), sent.from.into(), sent.to.into(), sent.offset, sent.bytes.0];
        counts.iter_mut().zip(row).for_each(|(column, value)| column.push(value));
        actions.push(match sent.action {
            Action::Reduce => reduce.clone(),
            Action::Copy => copy.clone(),
        });
    });
    let names = ["chunk", "step", "from_rank", "to_rank", "offset_bytes", "bytes"].map(str::to_owned);
    let mut columns: Vec<_> = names.into_iter().zip(counts.map(Column::Count)).collect();
    columns.push(("action".to_owned(), Column::Text(actions)));
    Table { columns }
}

/// Figures of a run.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// One entry per job, in the order of the scenario.
    pub jobs: Vec<JobSummary>,
    /// Number of compute ops and chunks that ended, and of events inside the engine.
    pub event_count: u64,
    /// Number of packets sent on links.
    pub packet_hops: u64,
    /// Retransmission timeouts; absent where there are no packets.
    pub timeouts: Option<u64>,
    /// Packets dropped by the queues of switches.
    pub drops: u64,
    /// Packets dropped by the queues of hosts, before they were sent.
    pub host_drops: u64,
    /// Packets marked CE.
    pub ce_marks: u64,
    /// Longest queue of a port, in packets; absent where there are no packets.
    pub max_queue_packets: Option<u64>,
    /// Simulated time at the end.
    pub end_ps: u64,
    /// Time between two samples of the probe, which thins itself in a long run; absent without a probe.
    pub probe_every_ps: Option<u64>,
    /// Largest busy share of a link.
    pub max_link_utilisation: f64,
}

/// Figures of a job; times in picoseconds, means over the measured iterations.
#[derive(Debug, Serialize)]
pub struct JobSummary {
    /// Key of the job in the scenario.
    pub name: String,
    /// Measured iterations.
    pub iteration_count: u64,
    /// Iterations that are not measured because not all jobs ran.
    pub unmeasured: Unmeasured,
    /// Number of workers that compute: parameter servers do not count, wherever they are.
    pub worker_count: u64,
    /// Buckets.
    pub bucket_count: u64,
    /// T: duration of every iteration.
    pub iteration_time_ps: Vec<u64>,
    /// C: compute time of one iteration of the slowest worker, without stalls.
    pub compute_ps: f64,
    /// Time for which the device is idle for the host, in a recorded step.
    pub host_ps: f64,
    /// N: time for which the transfers of one iteration occupy the network.
    pub comm_ps: f64,
    /// Stall for gradients that the next op needs; a part of T.
    pub exposed_ps: f64,
    /// Stall that is due to the barrier alone; a part of T.
    pub barrier_ps: f64,
    /// Compute time added by overlap with transfers; a part of T.
    pub slowdown_ps: f64,
    /// Largest share of an iteration for which a worker waits for the compute of others, in per cent (TicTac section
    /// 6).
    pub straggler_percent: f64,
    /// The worker with the longest total compute time, to which the waterfall belongs; absent if all are alike.
    pub slowest_worker: Option<u64>,
    /// needed - ready: minimum, median, maximum over all buckets of all measured iterations; absent if none is sent.
    pub slack_ps: Option<[f64; 3]>,
    /// needed - end, likewise.
    pub margin_ps: Option<[f64; 3]>,
    /// Lower bound on the iteration time for any order of these messages, each with its mean duration, with or without
    /// a barrier: the largest of compute, all messages, and the time between an update and a read of it.
    pub lower_bound_ps: f64,
    /// Bytes of the model.
    pub parameter_bytes: u64,
    /// Bytes that the busiest sender sends in one iteration.
    pub bytes_per_worker: f64,
    /// Present only for parameter servers whose workers are not in step.
    pub asynchrony: Option<Asynchrony>,
    /// Present only for parallel jobs.
    pub step: Option<StepSummary>,
}

/// Figures of workers that are not in step (asynchronous, or stale synchronous with a bound).
#[derive(Debug, Serialize)]
pub struct Asynchrony {
    /// Iterations by which a worker may be ahead of the slowest; absent without a bound.
    pub bound: Option<u32>,
    /// One entry per worker.
    pub workers: Vec<WorkerAsynchrony>,
}

/// Means over all complete iterations of one worker; times in picoseconds.
#[derive(Debug, Serialize)]
pub struct WorkerAsynchrony {
    /// Number of these iterations.
    pub iteration_count: u64,
    /// From the start of an iteration to the start of the next.
    pub time_ps: f64,
    /// Part of `time_ps` spent in waiting for slower workers.
    pub bound_wait_ps: f64,
    /// Iterations by which the slowest worker was behind when this one began to pull: mean and maximum.
    pub staleness_iterations: (f64, u64),
    /// Gradients of other workers applied to a parameter between this worker's pull and its own gradient: mean and
    /// maximum; absent if the job pushes none.
    pub staleness_updates: Option<(f64, u64)>,
}

impl RunResult {
    /// Collects the results of all jobs and background flows, and the counts of the engine.
    pub fn new(
        spec: &Spec,
        done: Vec<Done<'_>>,
        background: Vec<BackgroundFlows<'_>>,
        end: Time,
        usage: Usage,
    ) -> Self {
        let (mut parts, mut served, mut divided, mut summaries) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (spec, Done { job, record }) in spec.jobs.iter().zip(&done) {
            if let Some(job) = Divided::new(spec, job, record) {
                summaries.push(job.summary());
                divided.push(job);
            } else if let Some(job) = Served::new(spec, job, record) {
                summaries.push(job.summary());
                served.push(job);
            } else {
                let part = Part::new(spec, job, record).expect("what is not divided aggregates gradients");
                summaries.push(part.summary());
                parts.push(part);
            }
        }
        let samples = usage.samples.unwrap_or_default();
        let used = usage.links;
        // The run takes no time if it has neither a job nor a flow.
        let utilisation = |link: &LinkUsage| link.busy.ps() as f64 / end.ps().max(1) as f64;
        Self {
            iterations: iteration_table(
                &(iterations(&parts).chain(served::iterations(&served)).chain(divided::iterations(&divided)))
                    .collect::<Vec<_>>(),
            ),
            workers: worker_table(&workers(&parts).chain(served::workers(&served)).collect::<Vec<_>>()),
            transfers: all(transfers(&parts).and(served::transfers(&served)), divided::transfers(&divided)),
            operations: all(
                operations(&parts).and(served::operations(&served)),
                divided::operations(&divided, spec.run.timeline_iterations),
            ),
            flows: flows(spec, background, end),
            queues: queues(&samples),
            cwnd: cwnd(&samples),
            summary: Summary {
                jobs: summaries,
                event_count: usage.event_count + done.iter().map(|done| done.record.event_count).sum::<u64>(),
                packet_hops: usage.packet_hops,
                timeouts: usage.timeouts,
                drops: used.iter().filter(|link| !link.is_of_host()).map(|link| link.drops).sum(),
                host_drops: used.iter().filter(|link| link.is_of_host()).map(|link| link.drops).sum(),
                ce_marks: used.iter().map(|link| link.ce_marks).sum(),
                max_queue_packets: used.iter().map(|link| link.max_queue_packets).max().flatten(),
                end_ps: end.ps(),
                probe_every_ps: spec.run.probe.as_ref().map(|_| samples.every.ps()),
                max_link_utilisation: used.iter().map(utilisation).fold(0.0, f64::max),
            },
            links: Table::new(vec![
                ("link", Column::Text(used.iter().map(|link| link.name.clone()).collect())),
                ("rate_bps", Column::Count(used.iter().map(|link| link.rate_bps).collect())),
                ("bytes", Column::Count(used.iter().map(|link| link.bytes).collect())),
                ("busy_us", Column::Time(used.iter().map(|link| signed(link.busy)).collect())),
                ("utilisation", Column::Ratio(used.iter().map(|link| Some(utilisation(link))).collect())),
                ("drops", Column::Count(used.iter().map(|link| link.drops).collect())),
                ("ce_marks", Column::Count(used.iter().map(|link| link.ce_marks).collect())),
                (
                    "max_queue_packets",
                    Column::Signed(used.iter().map(|link| link.max_queue_packets.map(|count| count as i64)).collect()),
                ),
            ]),
        }
    }
}

/// The rows of parallel jobs behind those of `others`, in the columns of the kinds of jobs that have rows.
fn all(others: Table, parallel: Table) -> Table {
    if others.row_count() == 0 && parallel.row_count() > 0 { parallel } else { others.and(parallel) }
}

/// A data-parallel job and its record.
struct Part<'a> {
    spec: &'a JobSpec,
    gradients: &'a DataParallel,
    trace: &'a JobRecord,
    /// Measured iterations of the slowest worker.
    iterations: &'a [IterationRecord],
    name: Arc<str>,
    /// Name of each bucket's first layer.
    bucket_names: Vec<Arc<str>>,
    /// Bytes of each bucket on the network.
    bucket_bytes: Vec<Bytes>,
}

impl<'a> Part<'a> {
    /// Whether the ops of a layer are host work. In op graphs, whose ops have other indices, none is.
    fn is_host(&self, layer: u32) -> bool {
        self.spec.ops.is_none() && self.spec.layers[layer as usize].is_host
    }

    fn new(spec: &'a JobSpec, job: &'a Job, trace: &'a JobRecord) -> Option<Self> {
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

    /// Transfers of the measured iterations, one slice per iteration.
    fn blocks(&self) -> impl Iterator<Item = &[TransferRecord]> {
        self.trace.blocks()
    }

    /// Whether its workers differ in compute times or in the order of ops.
    fn differs(&self) -> bool {
        let has_own_order = self.spec.ops.as_ref().is_some_and(|ops| ops.order == ComputeOrderSpec::Random);
        self.spec.compute.noise_ppm > 0 || self.spec.compute.straggler.is_some() || has_own_order
    }

    /// N: the time for which the transfers of one iteration occupy the network.
    fn comm(block: &[TransferRecord]) -> Time {
        block.iter().map(|transfer| transfer.busy).sum()
    }

    /// The bound of [`timeline::lower_bound`] without a barrier, with the compute times of the slowest worker, or the
    /// mean of the iterations if that is smaller: a short run may end before its stalls reach their full length.
    fn lower_bound_ps(&self) -> f64 {
        let count = self.iterations.len() as u128;
        let compute: u128 = self.iterations.iter().map(|record| u128::from(record.compute.ps())).sum();
        let compute = Time::from_ps((compute / count) as u64);
        let mut busy = vec![Time::ZERO; self.gradients.buckets.len()];
        for block in self.blocks() {
            busy.iter_mut().zip(block).for_each(|(sum, transfer)| *sum += transfer.busy);
        }
        let transfer = |(index, (sum, bucket)): (u32, (Time, &Bucket))| {
            let (time, gate, rank) = (Time::from_ps(sum.ps() / count as u64), Time::ZERO, Time::ZERO);
            PlannedTransfer { parameters: vec![index], bytes: bucket.bytes, time, gate, rank }
        };
        let transfers: Vec<PlannedTransfer> =
            (0..).zip(busy.into_iter().zip(&self.gradients.buckets)).map(transfer).collect();
        // Each worker is bound by its own windows. A window from one worker's update to another's read may be longer.
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

    /// Upper limit of a correct bound for these iterations, for an assertion: their mean, and a share of the time after
    /// them.
    ///
    /// The time from an update to a read in the next iteration is one iteration plus the increase of the read's stall
    /// over the previous iteration. Summed over all iterations, the increases are at most the stall of the last read. A
    /// channel that is never idle also has the time from the first update to a later read, beyond its iterations. No
    /// limit is known if workers or orders differ.
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

    fn summary(&self) -> JobSummary {
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
            // Exact if all times are equal.
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

fn slack(transfer: &TransferRecord) -> i64 {
    signed(transfer.needed) - signed(transfer.ready)
}

fn margin(transfer: &TransferRecord) -> i64 {
    signed(transfer.needed) - signed(transfer.end)
}

/// Times of results are signed; [`crate::run`] refuses runs that come near 2^63 ps.
fn signed(time: Time) -> i64 {
    i64::try_from(time.ps()).expect("a run ends before 2^63 ps")
}

/// Minimum, median (mean of the two in the middle) and maximum.
fn spread(values: Vec<i64>) -> Option<[f64; 3]> {
    spread_of(values.into_iter().map(|value| (value, 1)).collect())
}

/// The same for pairs of a value and its multiplicity.
fn spread_of(mut values: Vec<(i64, u64)>) -> Option<[f64; 3]> {
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

/// Job, iteration, its record on the slowest worker, and N.
type IterationRow = (Arc<str>, u64, IterationRecord, Time);

/// Job; iteration, worker and host; record of the iteration on the worker; and, if workers are not in step, the
/// staleness of its parameters, in iterations and in updates.
type WorkerRow = (Arc<str>, [u64; 3], IterationRecord, Option<(u32, Option<f64>)>);

fn iteration_table(rows: &[IterationRow]) -> Table {
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

/// Column of the time for which the device is idle for the host; only for recorded steps.
const HOST_US: &str = "host_us";

fn worker_table(rows: &[WorkerRow]) -> Table {
    let counts = |index: usize| Column::Count(rows.iter().map(|(_, numbers, ..)| numbers[index]).collect());
    let times = |of: fn(&IterationRecord) -> Time| {
        look_now();
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

fn iterations<'a>(parts: &'a [Part<'_>]) -> impl Iterator<Item = IterationRow> + 'a {
    parts.iter().flat_map(|part| {
        let comm = part.blocks().map(Part::comm);
        let rows = part.iterations.iter().zip(comm).enumerate();
        rows.map(|(index, (&record, comm))| (part.name.clone(), index as u64, record, comm))
    })
}

fn workers<'a>(parts: &'a [Part<'_>]) -> impl Iterator<Item = WorkerRow> + 'a {
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

/// Overlap coefficient (N + C - T) / min(N, C) of TicTac section 3.2; `None` if N or C is zero.
fn overlap(compute: Time, comm: Time, time: Time) -> Option<f64> {
    let shorter = compute.min(comm);
    (shorter > Time::ZERO).then(|| (signed(compute) + signed(comm) - signed(time)) as f64 / shorter.ps() as f64)
}

fn transfers(parts: &[Part<'_>]) -> Table {
    let count = parts.iter().map(|part| part.iterations.len() * part.gradients.buckets.len()).sum();
    // Built column by column without an intermediate row: there may be millions of rows.
    fn column<'a, T>(
        parts: &'a [Part<'_>],
        count: usize,
        of: impl Fn(&'a Part<'_>, usize, usize, &TransferRecord) -> T,
    ) -> Vec<T> {
        look_now();
        let mut column = Vec::with_capacity(count);
        for part in parts {
            for (iteration, block) in part.blocks().enumerate() {
                column.extend(block.iter().enumerate().map(|(bucket, record)| of(part, iteration, bucket, record)));
            }
        }
        column
    }
    let texts = |of: fn(&Part<'_>, usize) -> Arc<str>| {
        Column::Text(column(parts, count, |part, _, bucket, _| of(part, bucket)))
    };
    let counts = |of: fn(&Part<'_>, usize, usize, &TransferRecord) -> u64| Column::Count(column(parts, count, of));
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
        ("rank", counts(|_, _, _, record| record.rank.into())),
        ("ready_us", times(|record| signed(record.ready))),
        ("start_us", times(|record| signed(record.start))),
        ("end_us", times(|record| signed(record.end))),
        ("needed_us", times(|record| signed(record.needed))),
        ("slack_us", times(slack)),
        ("margin_us", times(margin)),
    ]);
    if parts.iter().any(|part| part.gradients.changes_bands()) {
        let share = |record: &TransferRecord| {
            (record.messages > 0).then(|| 100.0 * f64::from(record.high) / f64::from(record.messages))
        };
        let shares = column(parts, count, |_, _, _, record| share(record));
        table.columns.push(("high_percent".into(), Column::Ratio(shares)));
    }
    table
}

fn operations(parts: &[Part<'_>]) -> Table {
    let rows = || {
        parts.iter().flat_map(|part| {
            let from = part.trace.workers.iter().map(|records| records[0].start).min().unwrap_or(Time::ZERO);
            part.trace
                .operations
                .iter()
                // Ops of the iteration before the first only if they extend into the measured time.
                .filter(move |operation| operation.iteration >= 0 || operation.end > from)
                .map(move |operation| (part, operation))
        })
    };
    let texts = |of: fn(&Part<'_>, &OperationRecord) -> String| {
        Column::Text(rows().map(|(part, operation)| of(part, operation).into()).collect())
    };
    let mut table = Table::new(vec![
        ("job", texts(|part, _| part.spec.name.clone())),
        ("iteration", Column::Signed(rows().map(|(_, operation)| Some(operation.iteration)).collect())),
        (
            "resource",
            texts(|_, operation| match operation.kind {
                OpKind::Transfer(_) => "network".into(),
                _ => "compute".into(),
            }),
        ),
        (
            "kind",
            texts(|part, operation| {
                match operation.kind {
                    OpKind::Update(layer) | OpKind::Forward(layer) | OpKind::Backward(layer) if part.is_host(layer) => {
                        "host"
                    }
                    OpKind::Barrier => "barrier",
                    OpKind::Update(_) => "update",
                    OpKind::Forward(_) => "forward",
                    OpKind::Backward(_) => "backward",
                    OpKind::Compute(_) => "compute",
                    OpKind::Transfer(_) => "transfer",
                }
                .into()
            }),
        ),
        (
            "index",
            Column::Count(
                rows()
                    .map(|(_, operation)| match operation.kind {
                        OpKind::Barrier => 0,
                        OpKind::Update(index)
                        | OpKind::Forward(index)
                        | OpKind::Backward(index)
                        | OpKind::Compute(index)
                        | OpKind::Transfer(index) => index.into(),
                    })
                    .collect(),
            ),
        ),
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
        (
            "name",
            texts(|part, operation| match operation.kind {
                OpKind::Barrier => String::new(),
                OpKind::Compute(_) => unreachable!("ops of layers have kinds of their own"),
                OpKind::Update(layer) | OpKind::Forward(layer) | OpKind::Backward(layer) => match &part.spec.ops {
                    Some(ops) => ops.graph.ops[layer as usize].name.clone(),
                    None => part.spec.layers[layer as usize].name.clone(),
                },
                OpKind::Transfer(bucket) => {
                    let first_layer = part.gradients.buckets[bucket as usize].first_layer();
                    part.spec.layers[first_layer as usize].name.clone()
                }
            }),
        ),
        ("start_us", Column::Time(rows().map(|(_, operation)| signed(operation.start)).collect())),
        ("end_us", Column::Time(rows().map(|(_, operation)| signed(operation.end)).collect())),
    ]);
    let mut add = |name: &str, of: fn(&Part<'_>, &OperationRecord) -> Option<i64>| {
        let values = rows().map(|(part, operation)| of(part, operation)).collect();
        table.columns.push((name.into(), Column::Signed(values)));
    };
    if parts.iter().any(Part::differs) {
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

/// Mean rate of a flow's payload from its start until the receiver has the last byte, or until the run ends.
fn mean_rate_bps(outcome: &Outcome, end: Time) -> Option<f64> {
    let lasts = outcome.received.unwrap_or_else(|| end.saturating_since(outcome.start.unwrap_or(end)));
    (lasts > Time::ZERO).then(|| outcome.delivered.0 as f64 * 8.0 * 1e12 / lasts.ps() as f64)
}

fn flows(spec: &Spec, background: Vec<BackgroundFlows<'_>>, end: Time) -> Table {
    let outcomes: Vec<Vec<Outcome>> = background.into_iter().map(BackgroundFlows::into_outcomes).collect();
    let rows = || {
        (spec.traffic.iter().zip(&outcomes)).flat_map(|(traffic, outcomes)| {
            let started = outcomes.iter().enumerate().filter(|(_, outcome)| outcome.start.is_some());
            started.map(move |(index, outcome)| (traffic, index, outcome))
        })
    };
    let counts = |of: fn(&TrafficSpec, usize) -> u64| {
        look_now();
        Column::Count(rows().map(|(traffic, index, _)| of(traffic, index)).collect())
    };
    let times = |of: fn(&Outcome) -> Option<Time>| {
        look_now();
        Column::MaybeTime(rows().map(|(.., outcome)| of(outcome).map(signed)).collect())
    };
    Table::new(vec![
        ("traffic", Column::Text(rows().map(|(traffic, ..)| traffic.name.as_str().into()).collect())),
        ("flow", counts(|_, index| index as u64)),
        ("start_us", Column::Time(rows().map(|(.., outcome)| signed(outcome.start.unwrap_or_default())).collect())),
        ("src", counts(|traffic, index| traffic.src[index].into())),
        ("dst", counts(|traffic, index| traffic.dst[index].into())),
        ("bytes", counts(|traffic, index| traffic.bytes[index])),
        ("band", counts(|traffic, index| traffic.band[index].into())),
        ("fct_us", times(|outcome| outcome.fct)),
        ("received_us", times(|outcome| outcome.received)),
        ("delivered_bytes", Column::Count(rows().map(|(.., outcome)| outcome.delivered.0).collect())),
        ("mean_rate_bps", Column::Ratio(rows().map(|(.., outcome)| mean_rate_bps(outcome, end)).collect())),
    ])
}

/// Queue lengths at each sampled instant; busy share, drops and marks since the previous one.
fn queues(samples: &Samples) -> Table {
    let width = samples.links.len();
    let rows = || {
        samples.ports.iter().enumerate().map(move |(row, state)| {
            let before = row.checked_sub(width).map_or(PortState::default(), |row| samples.ports[row]);
            (row / width, row % width, before, state)
        })
    };
    let counts = |of: fn(&PortState, &PortState) -> u64| {
        Column::Count(rows().map(|(_, _, before, state)| of(&before, state)).collect())
    };
    let since = |instant: usize| samples.at[instant] - instant.checked_sub(1).map_or(Time::ZERO, |i| samples.at[i]);
    let busy = rows()
        .map(|(instant, _, before, state)| Some((state.busy - before.busy).ps() as f64 / since(instant).ps() as f64));
    Table::new(vec![
        ("time_us", Column::Time(rows().map(|(instant, ..)| signed(samples.at[instant])).collect())),
        ("link", Column::Text(rows().map(|(_, link, ..)| samples.links[link].clone()).collect())),
        ("queue_packets", counts(|_, state| state.queue_packets.into())),
        ("queue_bytes", counts(|_, state| state.queue_bytes)),
        ("utilisation", Column::Ratio(busy.collect())),
        ("drops", counts(|before, state| state.drops - before.drops)),
        ("ce_marks", counts(|before, state| state.marks - before.marks)),
        ("long_flows", counts(|_, state| state.long_flows.into())),
        ("long_flight_bytes", counts(|_, state| state.long_flight.0)),
    ])
}

fn cwnd(samples: &Samples) -> Table {
    let rows = &samples.windows;
    let counts = |of: fn(&Carried, &Window) -> u64| {
        Column::Count(rows.iter().map(|(_, carried, window)| of(carried, window)).collect())
    };
    let maybe = |of: fn(&Carried, &Window) -> Option<u64>| {
        let value = |(_, carried, window): &_| of(carried, window).map(|value| value as i64);
        Column::Signed(rows.iter().map(value).collect())
    };
    Table::new(vec![
        ("time_us", Column::Time(rows.iter().map(|&(at, ..)| signed(samples.at[at as usize])).collect())),
        ("tenant", Column::Text(rows.iter().map(|(_, carried, _)| carried.tenant.clone()).collect())),
        ("flow", maybe(|carried, _| carried.flow)),
        ("src", counts(|carried, _| carried.src.0.into())),
        ("dst", counts(|carried, _| carried.dst.0.into())),
        ("cwnd_bytes", counts(|_, window| window.cwnd.0)),
        ("ssthresh_bytes", maybe(|_, window| window.ssthresh.map(|bytes| bytes.0))),
        ("flight_bytes", counts(|_, window| window.flight.0)),
    ])
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
