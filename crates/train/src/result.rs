//! The results of a run: tables of exact numbers, and the figures of the summary. All kinds of jobs have the same
//! tables. `result/gradients.rs` fills them for data-parallel jobs, `result/parallel.rs` for parallel jobs, and
//! `ps/result.rs` for jobs with parameter servers.

pub mod critical;
mod gradients;
mod network;
mod parallel;
pub mod rows;
pub mod summary;

use crate::collective::messages::Collective;
use crate::collective::plan::Action;
use crate::engine::{LinkUsage, Usage};
use crate::ps::result::{self as ps, PsResult};
use crate::run::Done;
use crate::spec::Spec;
use crate::traffic::Background;
use gradients::DataParallelResult;
use gradtide_net::{Bytes, Time};
use gradtide_table::{Column, Table};
use parallel::ParallelJob;
use rows::{iteration_table, signed, worker_table};
use serde::Serialize;
use std::sync::Arc;
pub use summary::{Asynchrony, JobSummary, StepSummary, WorkerAsynchrony};

/// All results of a run.
#[derive(Debug)]
pub struct RunResult {
    /// One row per measured iteration of each job. Its figures describe the slowest worker.
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

/// Returns the messages between ranks in a collective on `bytes`, with one row per message, ordered by chunk, step and
/// sender.
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
    /// Number of compute ops and chunks that ended, plus the number of events inside the engine.
    pub event_count: u64,
    /// Number of packets sent, counted on each link that they pass.
    pub packet_hops: u64,
    /// Number of retransmission timeouts; `None` in the fluid engine.
    pub timeouts: Option<u64>,
    /// Number of packets dropped by the queues of switches.
    pub drops: u64,
    /// Number of packets dropped by the queues of hosts.
    pub host_drops: u64,
    /// Number of packets marked CE.
    pub ce_marks: u64,
    /// Largest queue of any port, in packets; `None` in the fluid engine.
    pub max_queue_packets: Option<u64>,
    /// Simulated time at the end of the run, in picoseconds.
    pub end_ps: u64,
    /// Sampling interval of the probe after thinning, in picoseconds; `None` without a probe.
    pub probe_every_ps: Option<u64>,
    /// Largest share of the run for which a link was busy.
    pub max_link_utilisation: f64,
}

impl RunResult {
    /// Collects the results of all jobs and background flows, and the counters of the engine.
    pub fn new(spec: &Spec, done: Vec<Done<'_>>, background: Background<'_>, end: Time, usage: Usage) -> Self {
        let (mut gradients, mut ps_jobs, mut parallel, mut summaries) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (spec, done) in spec.jobs.iter().zip(&done) {
            match done {
                Done::Ps(job, record) => {
                    let job = PsResult::new(spec, job, record);
                    summaries.push(job.summary());
                    ps_jobs.push(job);
                }
                Done::Collective(job, record) => {
                    if let Some(job) = ParallelJob::new(spec, job, record) {
                        summaries.push(job.summary());
                        parallel.push(job);
                    } else {
                        let job = DataParallelResult::new(spec, job, record)
                            .expect("what is not parallel aggregates gradients");
                        summaries.push(job.summary());
                        gradients.push(job);
                    }
                }
            }
        }
        let samples = usage.samples.unwrap_or_default();
        let used = usage.links;
        // The duration is 0 if the run has neither a job nor a flow.
        let utilisation = |link: &LinkUsage| link.busy.ps() as f64 / end.ps().max(1) as f64;
        Self {
            iterations: iteration_table(
                &(gradients::iterations(&gradients)
                    .chain(ps::iterations(&ps_jobs))
                    .chain(parallel::iterations(&parallel)))
                .collect::<Vec<_>>(),
            ),
            workers: worker_table(&gradients::workers(&gradients).chain(ps::workers(&ps_jobs)).collect::<Vec<_>>()),
            transfers: all(
                gradients::transfers(&gradients).and(ps::transfers(&ps_jobs)),
                parallel::transfers(&parallel),
            ),
            operations: all(
                gradients::operations(&gradients).and(ps::operations(&ps_jobs)),
                parallel::operations(&parallel, spec.run.timeline_iterations),
            ),
            flows: network::flows(spec, background, end),
            queues: network::queues(&samples),
            cwnd: network::cwnd(&samples),
            summary: Summary {
                jobs: summaries,
                event_count: usage.event_count + done.iter().map(Done::event_count).sum::<u64>(),
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

/// Combines the rows of `others` with those of parallel jobs. If only one kind has rows, the table has the columns of
/// this kind.
fn all(others: Table, parallel: Table) -> Table {
    if others.row_count() == 0 && parallel.row_count() > 0 { parallel } else { others.and(parallel) }
}
