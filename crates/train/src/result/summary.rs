//! Figures of the summary, with one entry for each job of any kind.

use crate::run::Unmeasured;
use serde::Serialize;

/// Figures of a job. Times are in picoseconds, and means are over the measured iterations.
#[derive(Debug, Serialize)]
pub struct JobSummary {
    /// Key of the job in the scenario.
    pub name: String,
    /// Number of measured iterations.
    pub iteration_count: u64,
    /// Number of iterations that are not measured because not all jobs ran.
    pub unmeasured: Unmeasured,
    /// Number of workers, i.e. of ranks that compute. Parameter servers are not counted, wherever they are placed.
    pub worker_count: u64,
    /// Number of buckets.
    pub bucket_count: u64,
    /// T: duration of each measured iteration.
    pub iteration_time_ps: Vec<u64>,
    /// C: compute time of one iteration of the slowest worker, without stalls.
    pub compute_ps: f64,
    /// Time for which the device is idle during host work. Only recorded steps have host work.
    pub host_ps: f64,
    /// N: time for which the transfers of one iteration occupy the network.
    pub comm_ps: f64,
    /// Stall for gradients that the next op needs; a part of T.
    pub exposed_ps: f64,
    /// Stall that is due to the barrier alone; a part of T.
    pub barrier_ps: f64,
    /// Compute time added by overlap with transfers; a part of T.
    pub slowdown_ps: f64,
    /// Largest share of an iteration for which a worker waits for the compute of others, in per cent (TicTac, section
    /// 6).
    pub straggler_percent: f64,
    /// Index of the worker with the longest total compute time, whose times this summary contains. Absent if all
    /// workers are identical.
    pub slowest_worker: Option<u64>,
    /// Slack of a bucket: the time at which it is needed minus the time at which it is ready. Minimum, median and
    /// maximum over all measured iterations. Absent if no bucket is sent.
    pub slack_ps: Option<[f64; 3]>,
    /// Margin of a bucket: the time at which it is needed minus the end of its aggregation. Minimum, median and maximum
    /// over all measured iterations. Absent if no bucket is sent.
    pub margin_ps: Option<[f64; 3]>,
    /// Lower bound on the iteration time for any order of these messages, with or without a barrier. Each message takes
    /// its mean duration. The bound is the largest of the compute time, the time of all messages, and the longest path
    /// from a read over compute, update and messages to the next read.
    pub lower_bound_ps: f64,
    /// Size of the model's parameters, in bytes.
    pub parameter_bytes: u64,
    /// Bytes that the busiest sender sends in one iteration.
    pub bytes_per_worker: f64,
    /// Figures of asynchronous workers; present only for parameter servers.
    pub asynchrony: Option<Asynchrony>,
    /// Figures of the step; present only for parallel jobs.
    pub step: Option<StepSummary>,
}

/// Figures of workers that are asynchronous, or stale synchronous with a bound.
#[derive(Debug, Serialize)]
pub struct Asynchrony {
    /// Number of iterations by which a worker may be ahead of the slowest worker. Absent without a bound.
    pub bound: Option<u32>,
    /// One entry per worker.
    pub workers: Vec<WorkerAsynchrony>,
}

/// Means over all complete iterations of one worker. Times are in picoseconds.
#[derive(Debug, Serialize)]
pub struct WorkerAsynchrony {
    /// Number of complete iterations of the worker.
    pub iteration_count: u64,
    /// Time from the start of an iteration to the start of the next one.
    pub time_ps: f64,
    /// Part of `time_ps` in which the worker waits for slower workers.
    pub bound_wait_ps: f64,
    /// Lead of this worker over the slowest one when it began to pull, in iterations: mean and maximum.
    pub staleness_iterations: (f64, u64),
    /// Number of gradients of other workers that were applied to a parameter between this worker's pull and its own
    /// gradient: mean and maximum. Absent if the job pushes no gradients.
    pub staleness_updates: Option<(f64, u64)>,
}

/// Figures of a parallel job's step. Times are in picoseconds.
#[derive(Debug, Serialize)]
pub struct StepSummary {
    /// One entry per rank class.
    pub classes: Vec<ClassSummary>,
    /// Figures of process groups, one entry per axis, in the order of the mesh.
    pub groups: Vec<GroupSummary>,
    /// Time for which the compute of an average rank stalls because other ranks are not ready. This is the bubble of a
    /// pipeline.
    pub others_ps: f64,
    /// Composition of the first iteration's critical path: the time in each part of the step, in the transfers of each
    /// axis, and between them.
    pub critical_ps: Vec<(String, u64)>,
}

/// Means over the measured iterations of one rank of a class.
#[derive(Debug, Serialize)]
pub struct ClassSummary {
    /// Number of ranks of the class.
    pub ranks: u32,
    /// Compute time.
    pub compute_ps: f64,
    /// Time for which the device is idle during host work.
    pub host_ps: f64,
    /// Time for which compute stalls.
    pub exposed_ps: f64,
}

/// Figures of the groups of one axis in an iteration. Bytes and times describe an average rank of the job.
#[derive(Debug, Serialize)]
pub struct GroupSummary {
    /// Name of the axis.
    pub name: String,
    /// Number of ranks of one group.
    pub ranks: u32,
    /// Number of ranks of one group that are on the same node.
    pub per_node: u32,
    /// Number of transfers of one rank of each stage, summed over the stages.
    pub transfer_count: u64,
    /// Bytes sent by a rank.
    pub bytes_per_rank: f64,
    /// Time for which transfers are in progress.
    pub busy_ps: f64,
    /// Time for which compute stalls because of one of these transfers, as the dependency that ended last.
    pub exposed_ps: f64,
    /// Slack of the transfers that a compute op needs: the time at which a transfer is needed minus the time at which
    /// it is ready. Minimum, median and maximum.
    pub slack_ps: Option<[f64; 3]>,
}
