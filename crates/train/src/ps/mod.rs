//! Parameter-server training, op by op, as in TicTac (2019), over any network engine.
//!
//! ```text
//! worker:  pull every parameter ─► run each op when its inputs are ready ─► push each gradient when it is ready
//! server:                   update a parameter when the gradients of all workers have arrived
//! ```
//!
//! Synchronous workers begin an iteration when the previous one has ended on all of them, with the last update or, in
//! inference, with the last forward pass. An asynchronous worker begins an iteration when the servers have applied its
//! own gradients, each on arrival, and the slowest worker is within the staleness bound ([`PsJob::bound`]). A worker
//! has one compute resource, which is work-conserving and runs the ready op that is first in topological order. Between
//! a worker and a server there is one channel in each direction, which is a connection of the network and sends one
//! transfer at a time. Pulls are sent in the worker's order: a server delays a pull until its counter of pulls sent to
//! this worker has reached the rank of the pull (TicTac, section 5.1). Pushes are sent when they are ready.
//!
//! A job is planned by `plan` (with `graph`, `shard`, `wires` and `channels`), executed by `executor` (with `worker`,
//! `server`, `connections` and `clocks`) and evaluated by `result`. See docs/models/servers.md and
//! docs/decisions/17-op-dags-and-servers.md. Out of scope: the network and collectives.

mod channels;
pub mod clocks;
mod connections;
mod executor;
pub mod graph;
mod plan;
mod record;
pub mod result;
mod server;
mod shard;
pub mod share;
mod wires;
mod worker;

pub use executor::PsExecutor;
pub use graph::{PsParameter, WorkerGraph, WorkerOp};
pub use plan::PsJob;
pub use record::{PsRecord, Staleness, WorkerRecord};
pub use shard::shards;

use crate::opdag::OpDagError;
use thiserror::Error;

/// An invalid parameter-server job. `gradtide.scenario` reports all of these errors earlier, with a file and a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PsError {
    /// An op that is named as the target, as the input of an op or as a parameter to update does not exist.
    #[error("op {0} does not exist")]
    NoSuchOp(u32),
    /// A parameter has no bytes.
    #[error("the op with id {0} receives no bytes")]
    NoBytes(u64),
    /// A receive op has updates, or an op updates something that is not a parameter or that another op updates too.
    #[error("the op with id {0} cannot update what it says")]
    Updates(u64),
    /// The ops have no topological order.
    #[error(transparent)]
    WorkerGraph(#[from] OpDagError),
    /// There are no servers, or no workers.
    #[error("{servers} servers of {hosts} hosts")]
    Count {
        /// Number of servers.
        servers: u32,
        /// Number of servers and workers.
        hosts: usize,
    },
    /// A setting has no meaning for parameter servers, or is not supported.
    #[error("with servers op by op, {0}")]
    NoMeaning(&'static str),
    /// The order does not rank every parameter.
    #[error("the order ranks {ranks} of {parameters} parameters")]
    Ranks {
        /// Number of ranks given.
        ranks: usize,
        /// Number of parameters of the model.
        parameters: usize,
    },
    /// A share exceeds 1,000,000 millionths.
    #[error("a share is at most one")]
    Share,
    /// The band is outside the range of the network's bands.
    #[error("band {0} is not among the network's bands")]
    Band(u8),
    /// The parameters have more than 2^64 bytes.
    #[error("the parameters are larger than 2^64 bytes")]
    TooManyBytes,
    /// The iteration takes no time, and would be repeated for ever at one instant.
    #[error("nothing takes any time")]
    NoTime,
}
