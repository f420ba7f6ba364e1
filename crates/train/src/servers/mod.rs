//! Training with parameter servers as TicTac (2019) has it, op by op, over any network engine.
//!
//! ```text
//! worker:  pull every parameter ─► ops, as what they wait for is there ─► push every gradient when it is there
//! server:                                     update a parameter when all workers' gradients of it are there
//! ```
//!
//! Workers in step begin an iteration when the one before has ended on all of them: with the last update, or without
//! pushes, in inference, with the last forward pass. Otherwise a worker begins when servers have applied its own
//! gradients, each as it comes, and the slowest worker is not too far behind ([`ServerJob::bound`]). Every worker has one compute resource, which is
//! never idle while an op is ready and takes the ready op that comes first in topological order. Between a worker and a
//! server there is one channel in each direction, the network's connection, which carries one transfer after the other.
//! Pulls are handed to it in the worker's order, at most: a server holds one back until the counter of what it has
//! handed over for this worker has come to its rank (TicTac section 5.1). Pushes are handed over when they are ready.
//!
//! What the network is, how collectives work and what tables are made of it are no matter of this module
//! (docs/models/servers.md, docs/decisions/17-op-dags-and-servers.md).

mod channels;
pub mod clocks;
pub mod graph;
mod plan;
mod shard;
pub mod share;
mod wires;

pub use graph::{ServedParameter, WorkerGraph, WorkerOp};
pub use plan::ServerJob;
pub use shard::shards;

use crate::opdag::OpDagError;
use gradtide_net::Time;
use thiserror::Error;

/// Iterations of workers with parameter servers.
#[derive(Debug, Default)]
pub struct ServedRecord {
    /// Complete iterations of every worker, in order; where they are in step, as many of one as of another.
    pub workers: Vec<Vec<WorkerRecord>>,
    /// The iteration of each worker that is the first of those; earlier ones are not measured.
    pub first: Vec<u32>,
    /// Iterations of the job, where its workers are not in step: see [`share`].
    pub shared: Option<Vec<WorkerRecord>>,
}

impl ServedRecord {
    /// The worker whose own part of an iteration takes longest on average, the first of several: what others wait for.
    pub fn slowest(&self) -> usize {
        let own =
            |worker: usize| -> u128 { self.workers[worker].iter().map(|record| u128::from(record.own.ps())).sum() };
        let count = |worker: usize| self.workers[worker].len() as u128;
        let longer = |&a: &usize, &b: &usize| (own(a) * count(b)).cmp(&(own(b) * count(a)));
        (0..self.workers.len()).rev().max_by(longer).unwrap_or(0)
    }

    /// Iterations of the job: as its slowest worker sees them, or shares of all workers' that are not in step.
    pub fn iterations(&self) -> &[WorkerRecord] {
        self.shared.as_deref().unwrap_or_else(|| &self.workers[self.slowest()])
    }
}

/// One iteration of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerRecord {
    /// Start; the same on all workers in step.
    pub start: Time,
    /// To when the worker may begin the next one.
    pub time: Time,
    /// To the end of the worker's own part: its last push has arrived, or its last op is done.
    pub own: Time,
    /// From there to the end of the longest own part that it has to wait for.
    pub waited: Time,
    /// To the end of its last op.
    pub computed: Time,
    /// What its ops take.
    pub compute: Time,
    /// Of it, the device stood idle for the host.
    pub host: Time,
    /// Time for which a transfer of its own was under way.
    pub comm: Time,
    /// How old what it pulled was; zero in step.
    pub staleness: Staleness,
}

/// How old the parameters are that a worker computes an iteration with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Staleness {
    /// Iterations by which the worker was ahead of the slowest when it began.
    pub iterations: u32,
    /// Gradients of others that were applied to a parameter between the start of the iteration and its own gradient:
    /// the sum over all parameters that it pushed.
    pub updates: u64,
    /// The most of any of them.
    pub most_updates: u64,
}

/// A job with servers that means nothing. `gradtide.scenario` refuses all of these first, with a file and a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ServersError {
    /// The target, an input or an updated parameter is no op.
    #[error("op {0} does not exist")]
    NoSuchOp(u32),
    /// A parameter of no bytes.
    #[error("the op with id {0} receives no bytes")]
    NoBytes(u64),
    /// What is updated is no parameter, or by two ops, or the op receives something itself.
    #[error("the op with id {0} cannot update what it says")]
    Updates(u64),
    /// No order of ops.
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
    /// Something that has no meaning or is not built.
    #[error("with servers op by op, {0}")]
    NoMeaning(&'static str),
    /// An order of another number of parameters.
    #[error("the order ranks {ranks} of {parameters} parameters")]
    Ranks {
        /// Ranks given.
        ranks: usize,
        /// Parameters of the model.
        parameters: usize,
    },
    /// More than one parameter in a million.
    #[error("a share is at most one")]
    Share,
    /// A band outside the network's.
    #[error("band {0} is not among the network's bands")]
    Band(u8),
    /// More bytes than 64 bits count.
    #[error("the parameters are larger than 2^64 bytes")]
    TooManyBytes,
    /// An iteration that takes no time would be repeated for ever at one instant.
    #[error("nothing takes any time")]
    NoTime,
}
