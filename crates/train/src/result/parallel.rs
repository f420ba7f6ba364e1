//! Tables and figures of parallel jobs, whose model is divided over ranks. They have the columns of all other jobs: a
//! transfer counts as a bucket, and a rank class as a worker.

use super::critical::{Causes, Span};
use super::rows::{IterationRow, signed, spread, spread_of};
use super::summary::{ClassSummary, GroupSummary, JobSummary, StepSummary};
use crate::collective::algorithms::Algorithm;
use crate::dag::{OpId, OpKind};
use crate::job::CollectiveJob;
use crate::parallel::{Axis, Group, GroupTransfer, RankClass, Step};
use crate::run::{IterationRecord, JobRecord, OperationRecord, TransferRecord};
use crate::spec::JobSpec;
use gradtide_net::Time;
use gradtide_table::{Column, Table};
use gradtide_watch::check_cancelled_now;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A parallel job and its record.
pub struct ParallelJob<'a> {
    spec: &'a JobSpec,
    step: &'a Step,
    trace: &'a JobRecord,
    name: Arc<str>,
    spans: Vec<Span>,
    critical: Vec<bool>,
    critical_path: Vec<OpId>,
    /// Stall of compute in the first iteration that each transfer caused.
    exposed: Vec<Time>,
    /// Total stall of compute in the first iteration, over all classes, because other ranks were not ready.
    for_others: Time,
}

impl<'a> ParallelJob<'a> {
    /// Combines a job with its record; `None` if the job is not a parallel job.
    pub fn new(spec: &'a JobSpec, job: &'a CollectiveJob, trace: &'a JobRecord) -> Option<Self> {
        let step = job.step.as_ref()?;
        let mut spans = vec![Span::default(); step.dag.ops.len()];
        for operation in trace.operations.iter().filter(|operation| operation.iteration == 0) {
            let op = match operation.kind {
                OpKind::Compute(op) => op,
                OpKind::Transfer(transfer) => step.dag.transfer_op(transfer),
                _ => continue,
            };
            spans[op as usize] = Span { start: operation.start, end: operation.end };
        }
        let began = trace.workers.iter().map(|records| records[0].start).min().unwrap_or(Time::ZERO);
        let causes = Causes::new(&step.dag, &spans);
        let critical_path = causes.critical_path();
        let mut exposed = vec![Time::ZERO; step.transfers.len()];
        let mut for_others = Time::ZERO;
        let transfer = |op: OpId| (op - step.dag.compute_count) as usize;
        let group = |op| &step.groups[step.transfers[transfer(op)].group as usize];
        let is_own = |class: usize, op| step.is_of_stage(group(op), step.classes[class].stage);
        for (gap, cause) in causes.waits(began, is_own) {
            match cause {
                Some(op) => exposed[transfer(op)] += gap,
                None => for_others += gap,
            }
        }
        let mut critical = vec![false; spans.len()];
        critical_path.iter().for_each(|&op| critical[op as usize] = true);
        Some(Self {
            spec,
            step,
            trace,
            name: spec.name.as_str().into(),
            spans,
            critical,
            critical_path,
            exposed,
            for_others,
        })
    }

    fn iterations(&self) -> &[IterationRecord] {
        self.trace.iterations()
    }

    fn blocks(&self) -> impl Iterator<Item = &[TransferRecord]> {
        self.trace.blocks()
    }

    fn group(&self, transfer: &GroupTransfer) -> &Group {
        &self.step.groups[transfer.group as usize]
    }

    /// Returns the number of process groups that the group of a transfer represents.
    fn group_count(&self, transfer: &GroupTransfer) -> u64 {
        let group = self.group(transfer);
        let members: u64 = group.classes.iter().map(|&class| u64::from(self.step.classes[class as usize].ranks)).sum();
        (members / u64::from(group.span.ranks())).max(1)
    }

    /// Returns the figures of the job. Compute time and stalls describe the class with the longest compute time.
    pub fn summary(&self) -> JobSummary {
        let records = self.iterations();
        let mean = |of: fn(&IterationRecord) -> Time| mean_ps(records, of);
        let counted = |index: usize| self.group_count(&self.step.transfers[index]);
        // A transfer between rank classes counts once for each process group that it represents.
        let all = |of: fn(&TransferRecord) -> i64| {
            let blocks = self.blocks().flat_map(|block| block.iter().enumerate());
            blocks.filter(|(_, record)| record.is_needed).map(|(at, record)| (of(record), counted(at))).collect()
        };
        let step = self.step_summary();
        JobSummary {
            name: self.spec.name.clone(),
            iteration_count: records.len() as u64,
            unmeasured: self.trace.unmeasured,
            worker_count: self.step.classes.iter().map(|class| u64::from(class.ranks)).sum(),
            bucket_count: self.step.transfers.len() as u64,
            iteration_time_ps: records.iter().map(|record| record.time.ps()).collect(),
            compute_ps: mean(IterationRecord::computing),
            host_ps: mean(|record| record.host),
            comm_ps: step.groups.iter().map(|group| group.busy_ps).sum(),
            exposed_ps: mean(|record| record.exposed),
            barrier_ps: mean(|record| record.barrier),
            slowdown_ps: mean(|record| record.slowdown),
            straggler_percent: 0.0,
            slowest_worker: (self.step.classes.len() > 1).then(|| self.trace.slowest() as u64),
            slack_ps: spread_of(all(slack)),
            margin_ps: spread_of(all(margin)),
            lower_bound_ps: mean(|record| record.compute),
            parameter_bytes: self.spec.layers.iter().map(|layer| layer.parameter_bytes).sum(),
            bytes_per_worker: step.groups.iter().map(|group| group.bytes_per_rank).sum(),
            asynchrony: None,
            step: Some(step),
        }
    }

    fn step_summary(&self) -> StepSummary {
        let of_class = |(class, records): (&RankClass, &Vec<IterationRecord>)| ClassSummary {
            ranks: class.ranks,
            compute_ps: mean_ps(records, IterationRecord::computing),
            host_ps: mean_ps(records, |record| record.host),
            exposed_ps: mean_ps(records, |record| record.exposed + record.barrier),
        };
        StepSummary {
            classes: self.step.classes.iter().zip(&self.trace.workers).map(of_class).collect(),
            groups: self.groups(),
            others_ps: self.for_others.ps() as f64 / self.step.classes.len() as f64,
            critical_ps: self.critical_ps(),
        }
    }

    fn groups(&self) -> Vec<GroupSummary> {
        let mut found: BTreeMap<Axis, (GroupSummary, Vec<i64>)> = BTreeMap::new();
        let iterations = self.iterations().len() as f64;
        // All classes have the same number of ranks.
        let classes = self.step.classes.len() as f64;
        let busy = self.blocks().fold(vec![Time::ZERO; self.step.transfers.len()], |mut sums, block| {
            sums.iter_mut().zip(block).for_each(|(sum, record)| *sum += record.end - record.start);
            sums
        });
        for (index, transfer) in self.step.transfers.iter().enumerate() {
            let group = self.group(transfer);
            let (summary, slacks) = found.entry(group.axis).or_insert_with(|| {
                let (ranks, per_node) = (group.span.ranks(), group.span.per_node());
                let name = self.step.name_of(group.axis).to_owned();
                let nothing = (0, 0.0, 0.0, 0.0);
                let (transfer_count, bytes_per_rank, busy_ps, exposed_ps) = nothing;
                let slack_ps = None;
                (
                    GroupSummary {
                        name,
                        ranks,
                        per_node,
                        transfer_count,
                        bytes_per_rank,
                        busy_ps,
                        exposed_ps,
                        slack_ps,
                    },
                    Vec::new(),
                )
            });
            let senders = if group.axis.is_link() { 1 } else { group.classes.len() };
            let share = senders as f64 / classes;
            let (_, loads) = Algorithm::of_group(transfer.kind, group.span);
            let sent = [loads.scale_up, loads.nic].map(|load| load.bytes(transfer.bytes).0 as f64);
            summary.transfer_count += u64::from(self.step.is_first_of_its_kind(group));
            summary.bytes_per_rank += share * sent.iter().sum::<f64>();
            summary.busy_ps += share * busy[index].ps() as f64 / iterations;
            summary.exposed_ps += self.exposed[index].ps() as f64 / classes;
            let records = self.blocks().map(|block| &block[index]).filter(|record| record.is_needed);
            slacks.extend(records.map(slack));
        }
        found.into_values().map(|(summary, slacks)| GroupSummary { slack_ps: spread(slacks), ..summary }).collect()
    }

    fn critical_ps(&self) -> Vec<(String, u64)> {
        let mut parts: Vec<(String, u64)> = Vec::new();
        let mut add = |name: &str, time: Time| match parts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += time.ps(),
            None => parts.push((name.to_owned(), time.ps())),
        };
        let mut reached = self.critical_path.first().map_or(Time::ZERO, |&op| self.spans[op as usize].start);
        for &op in &self.critical_path {
            let span = self.spans[op as usize];
            // The time before the first byte of a transfer belongs to the transfer, because it has been launched.
            let is_transfer = op >= self.step.dag.compute_count;
            add(if is_transfer { self.part(op) } else { "between" }, span.start - reached);
            add(self.part(op), span.end - span.start);
            reached = span.end;
        }
        parts.retain(|&(_, time)| time > 0);
        parts
    }

    /// Returns the part of the step to which an op belongs; for a transfer, the name of its axis.
    fn part(&self, op: OpId) -> &str {
        match op.checked_sub(self.step.dag.compute_count) {
            None => self.step.part_of(self.step.labels[op as usize]),
            Some(transfer) => self.step.name_of(self.group(&self.step.transfers[transfer as usize]).axis),
        }
    }
}

/// Returns the time at which compute needed a transfer. If compute already waited when the transfer became ready, this
/// is the time at which it became ready, so the transfer has no slack.
fn needed(record: &TransferRecord) -> Time {
    record.needed.max(record.ready)
}

fn slack(record: &TransferRecord) -> i64 {
    signed(needed(record)) - signed(record.ready)
}

fn margin(record: &TransferRecord) -> i64 {
    signed(needed(record)) - signed(record.end)
}

fn mean_ps(records: &[IterationRecord], of: fn(&IterationRecord) -> Time) -> f64 {
    records.iter().map(|record| u128::from(of(record).ps())).sum::<u128>() as f64 / records.len() as f64
}

pub fn iterations<'a>(jobs: &'a [ParallelJob<'_>]) -> impl Iterator<Item = IterationRow> + 'a {
    jobs.iter().flat_map(|job| {
        let busy = |block: &[TransferRecord]| block.iter().map(|record| record.busy).sum();
        let rows = job.iterations().iter().zip(job.blocks().map(busy)).enumerate();
        rows.map(|(index, (&record, busy))| (job.name.clone(), index as u64, record, busy))
    })
}

pub fn transfers(jobs: &[ParallelJob<'_>]) -> Table {
    let rows = || {
        jobs.iter().flat_map(|job| {
            job.blocks().enumerate().flat_map(move |(iteration, block)| {
                let numbered = block.iter().zip(job.step.transfers.iter()).enumerate();
                numbered
                    .map(move |(index, (record, transfer))| (job, [iteration as u64, index as u64], record, transfer))
            })
        })
    };
    let counts = |of: &dyn Fn([u64; 2], &TransferRecord, &GroupTransfer) -> u64| {
        check_cancelled_now();
        Column::Count(rows().map(|(_, numbers, record, transfer)| of(numbers, record, transfer)).collect())
    };
    let texts = |of: &dyn Fn(&ParallelJob<'_>, &GroupTransfer) -> Arc<str>| {
        check_cancelled_now();
        Column::Text(rows().map(|(job, _, _, transfer)| of(job, transfer)).collect())
    };
    let times = |of: fn(&TransferRecord) -> i64| Column::Time(rows().map(|(_, _, record, _)| of(record)).collect());
    let if_needed = |of: fn(&TransferRecord) -> i64| {
        Column::MaybeTime(rows().map(|(_, _, record, _)| record.is_needed.then(|| of(record))).collect())
    };
    let block = |transfer: &GroupTransfer| transfer.label.block().map_or(0, u64::from);
    Table::new(vec![
        ("job", texts(&|job, _| job.name.clone())),
        ("iteration", counts(&|[iteration, _], _, _| iteration)),
        ("bucket", counts(&|[_, index], _, _| index)),
        ("first_layer", counts(&|_, _, transfer| block(transfer))),
        ("last_layer", counts(&|_, _, transfer| block(transfer))),
        ("layer", texts(&|job, transfer| job.step.shown(transfer.label).to_string().into())),
        ("bytes", counts(&|_, _, transfer| transfer.bytes.0)),
        ("chunks", counts(&|_, _, _| 1)),
        ("rank", counts(&|_, record, _| record.priority.into())),
        ("ready_us", times(|record| signed(record.ready))),
        ("start_us", times(|record| signed(record.start))),
        ("end_us", times(|record| signed(record.end))),
        ("needed_us", if_needed(|record| signed(needed(record)))),
        ("slack_us", if_needed(slack)),
        ("margin_us", if_needed(margin)),
        ("group", texts(&|job, transfer| job.step.name_of(job.group(transfer).axis).into())),
        ("collective", texts(&|_, transfer| transfer.kind.name().into())),
        ("class", texts(&|job, transfer| classes(job.group(transfer)).into())),
    ])
}

/// Returns the classes of a group as text: `2` for one class, `2-3` for two, `0..7` for three or more consecutive
/// classes, and `0..56:8` for classes with a stride of 8.
fn classes(group: &Group) -> String {
    if let [first, second, .., last] = group.classes[..] {
        let apart = second - first;
        if group.classes.windows(2).all(|two| two[0] + apart == two[1]) {
            return if apart == 1 { format!("{first}..{last}") } else { format!("{first}..{last}:{apart}") };
        }
    }
    let numbers: Vec<String> = group.classes.iter().map(u32::to_string).collect();
    numbers.join("-")
}

/// Creates the table of the first iterations, with one row for each op of a class and one row for each transfer and
/// class that takes part in it.
pub fn operations(jobs: &[ParallelJob<'_>], timeline_iterations: u32) -> Table {
    let rows = || {
        jobs.iter().flat_map(|job| {
            let is_wanted = move |operation: &&OperationRecord| operation.iteration < i64::from(timeline_iterations);
            job.trace.operations.iter().filter(is_wanted).flat_map(move |operation| {
                let (op, classes) = match operation.kind {
                    OpKind::Transfer(transfer) => {
                        let group = job.group(&job.step.transfers[transfer as usize]);
                        (job.step.dag.transfer_op(transfer), group.classes.clone())
                    }
                    OpKind::Compute(op) => (op, vec![operation.worker]),
                    _ => (0, Vec::new()),
                };
                classes.into_iter().map(move |class| (job, operation, op, class))
            })
        })
    };
    let transfer = |job: &ParallelJob<'_>, op: OpId| op.checked_sub(job.step.dag.compute_count);
    let texts = |of: &dyn Fn(&ParallelJob<'_>, OpId) -> Arc<str>| {
        check_cancelled_now();
        Column::Text(rows().map(|(job, _, op, _)| of(job, op)).collect())
    };
    let exposed = |job: &ParallelJob<'_>, op: OpId| transfer(job, op).map(|transfer| job.exposed[transfer as usize]);
    Table::new(vec![
        ("job", texts(&|job, _| job.name.clone())),
        ("iteration", Column::Signed(rows().map(|(_, operation, ..)| Some(operation.iteration)).collect())),
        ("resource", texts(&|job, op| if transfer(job, op).is_some() { "network" } else { "compute" }.into())),
        ("kind", texts(&|job, op| if transfer(job, op).is_some() { "transfer" } else { job.part(op) }.into())),
        ("index", Column::Count(rows().map(|(job, _, op, _)| transfer(job, op).unwrap_or(op).into()).collect())),
        ("chunk", Column::Signed(rows().map(|(job, _, op, _)| transfer(job, op).map(|_| 0)).collect())),
        (
            "name",
            texts(&|job, op| {
                let label = match transfer(job, op) {
                    Some(transfer) => job.step.transfers[transfer as usize].label,
                    None => job.step.labels[op as usize],
                };
                job.step.shown(label).to_string().into()
            }),
        ),
        ("start_us", Column::Time(rows().map(|(_, operation, ..)| signed(operation.start)).collect())),
        ("end_us", Column::Time(rows().map(|(_, operation, ..)| signed(operation.end)).collect())),
        ("class", Column::Signed(rows().map(|(.., class)| Some(class.into())).collect())),
        ("group", texts(&|job, op| if transfer(job, op).is_some() { job.part(op) } else { "" }.into())),
        (
            "critical",
            Column::Signed(
                rows()
                    .map(|(job, operation, op, _)| {
                        Some(i64::from(operation.iteration == 0 && job.critical[op as usize]))
                    })
                    .collect(),
            ),
        ),
        (
            "exposed_us",
            Column::MaybeTime(
                rows()
                    .map(|(job, operation, op, _)| {
                        let first = operation.iteration == 0;
                        exposed(job, op).filter(|&time| first && time > Time::ZERO).map(signed)
                    })
                    .collect(),
            ),
        ),
    ])
}
