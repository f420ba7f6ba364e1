//! Errors of scenarios and of runs that end without a result.

use crate::fabric::NetworkError;
use crate::job::JobError;
use crate::run::IterationError;
use gradtide_net::fluid::FluidError;
use gradtide_net::route::RouteError;
use thiserror::Error;

/// Error of a run without a result.
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

/// An invalid scenario. `gradtide.scenario` refuses all of these first, with a file and a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SpecError {
    /// No jobs and no background flows.
    #[error("the scenario has neither a job nor background traffic")]
    Nothing,
    /// An index beyond the last job.
    #[error("the scenario has no such job")]
    NoSuchJob,
    /// An invalid job.
    #[error("job {name}: {error}")]
    Job {
        /// Name of the job.
        name: String,
        /// Reason.
        error: JobError,
    },
    /// An invalid network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Hosts that are not connected.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// Links that the fluid engine does not support.
    #[error(transparent)]
    Fluid(#[from] FluidError),
    /// A rate accuracy, for an engine other than the fluid one.
    #[error("only rates of the fluid engine have an accuracy")]
    Accuracy,
    /// A host that does not exist.
    #[error("job {name} runs on host {host}, but the cluster has {host_count} hosts")]
    NoSuchHost {
        /// Name of the job.
        name: String,
        /// Index of the host.
        host: u32,
        /// Number of hosts of the cluster.
        host_count: u32,
    },
    /// Two workers of one job on one host.
    #[error("host {host} has two workers of job {name}")]
    SharedHost {
        /// Name of the job.
        name: String,
        /// Index of the host.
        host: u32,
    },
    /// A parallel job on rank classes beside another job or background flows.
    #[error(
        "job {name} divides its model over ranks: where one rank stands for all of its class, nothing else can be beside it"
    )]
    NotAlone {
        /// Name of the job.
        name: String,
    },
    /// An invalid background flow.
    #[error("flow {index} of {name} cannot be: {what}")]
    Flow {
        /// Name of its tenant.
        name: String,
        /// Index of the flow.
        index: usize,
        /// Reason.
        what: &'static str,
    },
    /// An invalid queue.
    #[error("the queue cannot be: {0}")]
    Queue(&'static str),
    /// A number that exceeds the engine's range.
    #[error("the {0} is too large: at most 65535")]
    TooLarge(&'static str),
    /// An oracle with several jobs: the future flows of other jobs would depend on its own choices.
    #[error("job {name}: an oracle sees a network with one job on it")]
    OracleOfSeveral {
        /// Name of the job.
        name: String,
    },
    /// A run without a limit.
    #[error("job {name} has no number of iterations and the run has no duration")]
    Endless {
        /// Name of the job.
        name: String,
    },
    /// Simulated time would pass 2^63 picoseconds.
    #[error("job {name} would run past 106 days of simulated time")]
    TooLong {
        /// Name of the job.
        name: String,
    },
    /// Counters of links would not fit in 64 bits.
    #[error("job {name} would send more than 2^64 bytes over a link; run fewer iterations")]
    TooManySent {
        /// Name of the job.
        name: String,
    },
    /// The results would not fit in memory.
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
