//! A window that losses and marks do not change, for comparison with theory.

use super::control::{Ack, CongestionControl, CongestionWindow, Ecn};
use serde::{Deserialize, Serialize};

/// There are no parameters, because the window has the size of the buffers.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {}

/// The constant window.
#[derive(Clone, Debug)]
pub(crate) struct Ideal {
    window_bytes: u64,
}

impl CongestionControl for Ideal {
    type Parameters = Parameters;
    const SUMMARY: &'static str = "a window that never changes";
    const WINDOW: &'static str = "`window`, from the first segment to the last; losses are repaired";
    const ECN: Ecn = Ecn::Ignored;
    const KEEPS_TO_SYN_WINDOW: bool = false;

    fn new(_: &Parameters, buffer_bytes: u64) -> Self {
        Self { window_bytes: buffer_bytes }
    }

    fn start_window(&self, _: u64) -> u64 {
        self.window_bytes
    }

    #[inline]
    fn on_ack(&mut self, _: &mut CongestionWindow, _: &Ack) {}

    fn on_loss(&mut self, _: &CongestionWindow, _: u64, _: u64) -> u64 {
        self.window_bytes
    }
}
