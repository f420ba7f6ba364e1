//! Why a scenario is refused, or a run ends without a result.

use crate::fabric::NetworkError;
use crate::job::JobError;
use crate::run::IterationError;
use gradtide_net::fluid::FluidError;
use gradtide_net::route::RouteError;
use thiserror::Error;

/// Why a run gave no result.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// The scenario means nothing.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The run could not go on.
    #[error(transparent)]
    Iteration(#[from] IterationError),
}

impl From<NetworkError> for RunError {
    fn from(error: NetworkError) -> Self {
        Self::Spec(error.into())
    }
}

/// A scenario that means nothing. `gradtide.scenario` refuses these first, with a file and a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SpecError {
    /// No jobs and no background flows.
    #[error("the scenario has neither a job nor background traffic")]
    Nothing,
    /// An index beyond the last job.
    #[error("the scenario has no such job")]
    NoSuchJob,
    /// A job that means nothing.
    #[error("job {name}: {error}")]
    Job {
        /// Name of the job.
        name: String,
        /// What is wrong.
        error: JobError,
    },
    /// A network that cannot be.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Hosts that are not connected.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// Links that the fluid engine cannot count.
    #[error(transparent)]
    Fluid(#[from] FluidError),
    /// An accuracy of rates for an engine that has none.
    #[error("only rates of the fluid engine have an accuracy")]
    Accuracy,
    /// A host that does not exist.
    #[error("job {name} runs on host {host}, but the cluster has {host_count} hosts")]
    NoSuchHost {
        /// Name of the job.
        name: String,
        /// Index of the host.
        host: u32,
        /// Hosts of the cluster.
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
    /// A model that is divided over ranks beside something else.
    #[error(
        "job {name} divides its model over ranks: where one rank stands for all of its class, nothing else can be beside it"
    )]
    NotAlone {
        /// Name of the job.
        name: String,
    },
    /// A background flow that is not valid.
    #[error("flow {index} of {name} cannot be: {what}")]
    Flow {
        /// Name of its tenant.
        name: String,
        /// Which of its flows.
        index: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A queue that cannot be.
    #[error("the queue cannot be: {0}")]
    Queue(&'static str),
    /// A number that the engine has no room for.
    #[error("the {0} is too large: at most 65535")]
    TooLarge(&'static str),
    /// Foresight is of one job: what others are about to send is decided by what this one does.
    #[error("job {name}: an oracle sees a network with one job on it")]
    OracleOfSeveral {
        /// Name of the job.
        name: String,
    },
    /// Nothing ends the run.
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
        /// Iterations times buckets.
        records: u64,
        /// Most that a run keeps.
        limit: u64,
    },
}
