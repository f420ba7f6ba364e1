//! Additive increase, multiplicative decrease: Chiu & Jain 1989, with a factor of its own.

use super::control::{Ack, CongestionControl, CongestionWindow};
use super::newreno;
use serde::{Deserialize, Serialize};

/// Parameters of AIMD.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Share of the window that a reduction leaves, in parts per million.
    pub factor_ppm: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { factor_ppm: 500_000 }
    }
}

/// The factor.
#[derive(Clone, Debug)]
pub(crate) struct Aimd {
    factor_ppm: u64,
}

impl CongestionControl for Aimd {
    type Parameters = Parameters;
    const SUMMARY: &'static str = "Chiu & Jain 1989";
    const WINDOW: &'static str = "Reno's growth; `factor` of FlightSize after a loss or mark";

    fn new(parameters: &Parameters, _: u64) -> Self {
        Self { factor_ppm: parameters.factor_ppm.into() }
    }

    #[inline]
    fn on_ack(&mut self, window: &mut CongestionWindow, ack: &Ack) {
        newreno::grow(window, ack.segments);
    }

    fn on_loss(&mut self, window: &CongestionWindow, flight_size: u64, _: u64) -> u64 {
        (flight_size * self.factor_ppm / 1_000_000).max(2 * window.segment_bytes)
    }
}
