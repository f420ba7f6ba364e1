//! Parameter-server training, op by op, as in TicTac (2019), over any network engine.
//!
//! ```text
//! worker:  pull every parameter ─► run each op when its inputs are ready ─► push each gradient when it is ready
//! server:                   update a parameter when the gradients of all workers have arrived
//! ```
//!
//! Synchronous workers (called "in step") begin an iteration when the previous one has ended on all of them: with the
//! last update, or, in inference, with the last forward pass. Otherwise a worker begins when the servers have applied
//! its own gradients, each on arrival, and the slowest worker is within the staleness bound ([`PsJob::bound`]). A
//! worker has one compute resource, which is work-conserving and runs the ready op that is first in topological order.
//! Between a worker and a server there is one channel in each direction, the network's connection, which carries one
//! transfer at a time. Pulls go out in the worker's order: a server holds a pull back until its counter of pulls sent
//! to this worker has reached the pull's rank (TicTac section 5.1). Pushes go out when they are ready.
//!
//! This module contains neither the network, nor collectives, nor the tables of results (docs/models/servers.md,
//! docs/decisions/17-op-dags-and-servers.md).

mod channels;
pub mod clocks;
pub mod graph;
mod plan;
mod shard;
pub mod share;
mod wires;

pub use graph::{PsParameter, WorkerGraph, WorkerOp};
pub use plan::PsJob;
pub use shard::shards;

use crate::opdag::OpDagError;
use gradtide_net::Time;
use thiserror::Error;

/// Iterations of a parameter-server job.
#[derive(Debug, Default)]
pub struct ServedRecord {
    /// Complete iterations of every worker, in order; equal counts if workers are synchronous.
    pub workers: Vec<Vec<WorkerRecord>>,
    /// By worker: number of its first measured iteration.
    pub first: Vec<u32>,
    /// Iterations of the job if its workers are asynchronous: see [`share`].
    pub shared: Option<Vec<WorkerRecord>>,
}

impl ServedRecord {
    /// The worker with the longest mean own part, on which the others wait; the lowest index if several tie.
    pub fn slowest(&self) -> usize {
        let own =
            |worker: usize| -> u128 { self.workers[worker].iter().map(|record| u128::from(record.own.ps())).sum() };
        let count = |worker: usize| self.workers[worker].len() as u128;
        let longer = |&a: &usize, &b: &usize| (own(a) * count(b)).cmp(&(own(b) * count(a)));
        (0..self.workers.len()).rev().max_by(longer).unwrap_or(0)
    }

    /// Iterations of the job: those of its slowest worker, or, if workers are asynchronous, the shares of all of them.
    pub fn iterations(&self) -> &[WorkerRecord] {
        self.shared.as_deref().unwrap_or_else(|| &self.workers[self.slowest()])
    }
}

/// One iteration of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerRecord {
    /// Start; equal on all synchronous workers.
    pub start: Time,
    /// Time from the start until the worker may begin the next iteration.
    pub time: Time,
    /// Time to the end of the worker's own part: the end of its last op or the arrival of its last push, whichever is
    /// later.
    pub own: Time,
    /// Time from there to the end of the latest own part that the worker has to wait for.
    pub waited: Time,
    /// Time to the end of its last op.
    pub computed: Time,
    /// Total time of its ops.
    pub compute: Time,
    /// Part of `compute` in which the device was idle because the host ran.
    pub host: Time,
    /// Time in which at least one of its transfers was in flight.
    pub comm: Time,
    /// Staleness of the parameters it pulled; zero if workers are synchronous.
    pub staleness: Staleness,
}

/// Staleness of the parameters that a worker computes an iteration with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Staleness {
    /// Lead over the slowest worker when it began, in iterations.
    pub iterations: u32,
    /// Gradients of other workers applied to a parameter between the start of the iteration and this worker's gradient,
    /// summed over all parameters that it pushed.
    pub updates: u64,
    /// The maximum over these parameters.
    pub most_updates: u64,
}

/// An invalid parameter-server job. `gradtide.scenario` refuses all of these first, with a file and a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PsError {
    /// The target, an input or an updated parameter does not exist.
    #[error("op {0} does not exist")]
    NoSuchOp(u32),
    /// A parameter has no bytes.
    #[error("the op with id {0} receives no bytes")]
    NoBytes(u64),
    /// An op updates something that is not a parameter or that another op updates too, or is itself a receive op.
    #[error("the op with id {0} cannot update what it says")]
    Updates(u64),
    /// The ops have no topological order.
    #[error(transparent)]
    WorkerGraph(#[from] OpDagError),
    /// No servers, or no workers.
    #[error("{servers} servers of {hosts} hosts")]
    Count {
        /// Servers.
        servers: u32,
        /// Servers and workers.
        hosts: usize,
    },
    /// A setting that has no meaning here or is not supported.
    #[error("with servers op by op, {0}")]
    NoMeaning(&'static str),
    /// The order does not cover every parameter.
    #[error("the order ranks {ranks} of {parameters} parameters")]
    Ranks {
        /// Ranks given.
        ranks: usize,
        /// Parameters of the model.
        parameters: usize,
    },
    /// A share above 1,000,000 millionths.
    #[error("a share is at most one")]
    Share,
    /// The network has no such band.
    #[error("band {0} is not among the network's bands")]
    Band(u8),
    /// More than 2^64 bytes.
    #[error("the parameters are larger than 2^64 bytes")]
    TooManyBytes,
    /// Nothing takes any time, so iterations would repeat for ever at one instant.
    #[error("nothing takes any time")]
    NoTime,
}
