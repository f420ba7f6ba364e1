//! The band policies, which only jobs with an adaptive priority use. Two modules depend on them: [`crate::job`], which
//! plans jobs, and the root of the crate, which passes the network to an oracle.
//!
//! `deadlines` is based on measurements of the workers. `oracle` has full knowledge of future flows and serves as a
//! comparison. Send queues depend only on the trait [`BandPolicy`].

mod chunk;
mod deadlines;
mod forecast;
mod measurements;
mod oracle;
#[cfg(test)]
mod tests;
mod workers;
mod world;

use crate::bands::BandPolicy;
use crate::collective::messages::Bands;
use crate::communicator::DataParallel;
use crate::spec::{AdaptiveSpec, DeadlineSpec, OracleSpec};
use deadlines::Deadlines;
use forecast::Group;
use gradtide_net::{Band, Bytes, Rate, Time};
use oracle::Oracle;
pub use oracle::Tradeoff;
use thiserror::Error;
pub use workers::Rule;
pub use world::World;

/// Policy by which the workers of a job change their bands.
#[derive(Clone, Debug)]
pub enum Adaptive {
    /// Policy based on deadlines that the workers compute.
    Deadlines(Rule),
    /// Policy with full knowledge of future flows.
    Oracle(Tradeoff),
}

/// Error: the policy is invalid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PolicyError {
    /// A band is outside the range of the network's bands.
    #[error("band {0} is not among the network's {count} bands", count = Band::COUNT)]
    Band(u8),
    /// The link rate is 0.
    #[error("a link carries nothing")]
    Link,
}

impl Adaptive {
    /// Creates the policy of a scenario.
    ///
    /// # Errors
    /// See [`PolicyError`].
    pub fn new(spec: AdaptiveSpec) -> Result<Self, PolicyError> {
        let band = |index: u8| Band::new(index).ok_or(PolicyError::Band(index));
        Ok(match spec {
            AdaptiveSpec::Deadline(DeadlineSpec {
                high,
                low,
                has_deadlines,
                credit,
                window_bytes,
                link_bps,
                round_trip_ps,
                tolerance_ppm,
                margin_ppm,
                exchange,
                counts_waits,
            }) => Self::Deadlines(Rule {
                high: band(high)?,
                low: band(low)?,
                has_deadlines,
                in_flight_limit: credit as usize,
                window: Bytes(window_bytes),
                link: Rate::from_bps(link_bps).ok_or(PolicyError::Link)?,
                round_trip: Time::from_ps(round_trip_ps),
                tolerance_ppm,
                margin_ppm,
                exchange,
                counts_waits,
            }),
            AdaptiveSpec::Oracle(OracleSpec { high, low, price_ppm, small_bytes }) => {
                Self::Oracle(Tradeoff::new(price_ppm, [band(low)?, band(high)?], Bytes(small_bytes)))
            }
        })
    }

    /// Returns the in-flight limit of the policy; `None` if the limit of the schedule applies.
    pub fn in_flight_limit(&self) -> Option<usize> {
        match self {
            Self::Deadlines(rule) => Some(rule.in_flight_limit),
            Self::Oracle(_) => None,
        }
    }

    /// Returns the bands in which `ranks` ranks open connections; `None` for the job's fixed bands.
    pub fn opening_bands(&self, ranks: usize) -> Option<Vec<Bands>> {
        match self {
            Self::Deadlines(rule) => Some([rule.high, rule.low].map(|band| rule.bands_of(ranks, |_| band)).into()),
            Self::Oracle(_) => None,
        }
    }

    /// Creates the policy of a job that aggregates `gradients`. `last_bucket` is the bucket that becomes ready last in
    /// an iteration. An oracle simulates the future in `world`.
    ///
    /// # Panics
    /// If the policy is an oracle and `world` is `None`.
    pub fn policy<'p, 'n: 'p, 's: 'p>(
        &self,
        gradients: &DataParallel,
        last_bucket: Option<u32>,
        world: Option<&World<'n, 's>>,
    ) -> Box<dyn BandPolicy + 'p> {
        let (rounds, count) = (gradients.collective.rounds(), gradients.collective.hosts().len());
        let group = Group::new(gradients.boundaries.clone(), rounds, count, last_bucket);
        match self {
            Self::Deadlines(rule) => Box::new(Deadlines::new(*rule, group)),
            Self::Oracle(tradeoff) => {
                Box::new(Oracle::new(tradeoff.clone(), group, world.expect("an oracle has a world").clone()))
            }
        }
    }
}
