//! Errors of scenarios and of runs that end without a result.

use crate::fabric::NetworkError;
use crate::job::JobError;
use crate::run::IterationError;
use gradtide_net::fluid::FluidError;
use gradtide_net::route::RouteError;
use thiserror::Error;

/// Error that ends a run without a result.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// The scenario is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The run could not continue.
    #[error(transparent)]
    Iteration(#[from] IterationError),
}

impl From<NetworkError> for RunError {
    fn from(error: NetworkError) -> Self {
        Self::Spec(error.into())
    }
}

/// An invalid scenario. `gradtide.scenario` reports all of these errors earlier, with a file and a
/// line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SpecError {
    /// The scenario has neither jobs nor background flows.
    #[error("the scenario has neither a job nor background traffic")]
    Nothing,
    /// The index is beyond the last job.
    #[error("the scenario has no such job")]
    NoSuchJob,
    /// A job is invalid.
    #[error("job {name}: {error}")]
    Job {
        /// Name of the job.
        name: String,
        /// Reason.
        error: JobError,
    },
    /// The network is invalid.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Two hosts that communicate are not connected.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The fluid engine does not support a link.
    #[error(transparent)]
    Fluid(#[from] FluidError),
    /// A rate accuracy is set for an engine other than the fluid one.
    #[error("only rates of the fluid engine have an accuracy")]
    Accuracy,
    /// A job runs on a host that does not exist.
    #[error("job {name} runs on host {host}, but the cluster has {host_count} hosts")]
    NoSuchHost {
        /// Name of the job.
        name: String,
        /// Index of the host.
        host: u32,
        /// Number of hosts of the cluster.
        host_count: u32,
    },
    /// Two workers of one job are on one host.
    #[error("host {host} has two workers of job {name}")]
    SharedHost {
        /// Name of the job.
        name: String,
        /// Index of the host.
        host: u32,
    },
    /// A parallel job on rank classes runs together with another job or background flows.
    #[error(
        "job {name} divides its model over ranks: where one rank stands for all of its class, nothing else can be beside it"
    )]
    NotAlone {
        /// Name of the job.
        name: String,
    },
    /// A background flow is invalid.
    #[error("flow {index} of {name} cannot be: {what}")]
    Flow {
        /// Name of the flow's tenant.
        name: String,
        /// Index of the flow.
        index: usize,
        /// Reason.
        what: &'static str,
    },
    /// A queue is invalid.
    #[error("the queue cannot be: {0}")]
    Queue(&'static str),
    /// A number exceeds the range of the engine.
    #[error("the {0} is too large: at most 65535")]
    TooLarge(&'static str),
    /// An oracle runs together with other jobs, whose future flows would depend on its choices.
    #[error("job {name}: an oracle sees a network with one job on it")]
    OracleOfSeveral {
        /// Name of the job.
        name: String,
    },
    /// Neither the iterations of a job nor the duration of the run are limited.
    #[error("job {name} has no number of iterations and the run has no duration")]
    Endless {
        /// Name of the job.
        name: String,
    },
    /// Simulated time would exceed 2^63 picoseconds.
    #[error("job {name} would run past 106 days of simulated time")]
    TooLong {
        /// Name of the job.
        name: String,
    },
    /// The byte counters of links would not fit in 64 bits.
    #[error("job {name} would send more than 2^64 bytes over a link; run fewer iterations")]
    TooManySent {
        /// Name of the job.
        name: String,
    },
    /// The records of the run would not fit in memory.
    #[error("job {name} would record {records} transfers, more than {limit}; run fewer iterations or larger buckets")]
    TooManyRecords {
        /// Name of the job.
        name: String,
        /// Number of records: iterations times buckets.
        records: u64,
        /// Limit of a run.
        limit: u64,
    },
}
