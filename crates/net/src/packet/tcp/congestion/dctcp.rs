//! DCTCP: RFC 8257. The window is reduced in proportion to the fraction of marked bytes. It grows, and it is reduced
//! after losses, as in NewReno.

use super::control::{Ack, CongestionControl, CongestionWindow, Echo, Ecn};
use super::newreno;
use serde::{Deserialize, Serialize};

/// Parameters of DCTCP.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Weight g of a new observation in the estimate, in parts per million (RFC 8257, 4.2: 1/16).
    pub gain_ppm: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { gain_ppm: 62_500 }
    }
}

/// The state of DCTCP for one connection, with the names of RFC 8257, 3.3.
#[derive(Clone, Debug)]
pub(crate) struct Dctcp {
    /// Estimated fraction of marked bytes.
    alpha: f64,
    gain: f64,
    /// End of the current observation window, as a stream offset.
    window_end: u64,
    bytes_acked: u64,
    bytes_marked: u64,
}

impl CongestionControl for Dctcp {
    type Parameters = Parameters;
    const SUMMARY: &'static str = "RFC 8257";
    const WINDOW: &'static str = "Reno's growth; after marks `cwnd · (1 - alpha / 2)`, `alpha` the average share of \
                                  marked bytes, weight `gain` = 1/16 per window, 1 at first; after a loss Reno's half";
    const ECN: Ecn = Ecn::Scalable;

    fn new(parameters: &Parameters, _: u64) -> Self {
        // RFC 8257, 4.2: alpha begins at 1, so that the first mark halves the window.
        let gain = f64::from(parameters.gain_ppm) * 1e-6;
        Self { alpha: 1.0, gain, window_end: 0, bytes_acked: 0, bytes_marked: 0 }
    }

    #[inline]
    fn on_ack(&mut self, window: &mut CongestionWindow, ack: &Ack) {
        newreno::grow(window, ack.segments);
    }

    /// Updates the estimate of the fraction of marked bytes (RFC 8257, 3.3, steps 1 to 8).
    fn on_echo(&mut self, echo: &Echo) {
        self.bytes_acked += echo.bytes;
        if echo.is_marked {
            self.bytes_marked += echo.bytes;
        }
        if echo.una <= self.window_end {
            return;
        }
        let marked = self.bytes_marked as f64 / self.bytes_acked.max(1) as f64;
        self.alpha = self.alpha * (1.0 - self.gain) + self.gain * marked;
        self.window_end = echo.high;
        self.bytes_acked = 0;
        self.bytes_marked = 0;
    }

    /// Reduces the window after a loss as standard TCP does (RFC 8257, 3.4).
    fn on_loss(&mut self, window: &CongestionWindow, flight_size: u64, _: u64) -> u64 {
        newreno::ssthresh(window, flight_size)
    }

    /// Reduces the window after a mark (RFC 8257, 3.3, step 9), but not below two segments.
    fn on_mark(&mut self, window: &CongestionWindow, _: u64) -> Option<u64> {
        Some(((window.cwnd as f64 * (1.0 - self.alpha / 2.0)) as u64).max(2 * window.segment_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Dctcp {
        fn observe(&mut self, una: u64, high: u64, bytes: u64, is_marked: bool) {
            self.on_echo(&Echo { una, high, bytes, is_marked });
        }

        fn reduced(&mut self, cwnd: u64) -> u64 {
            self.on_mark(&CongestionWindow { cwnd, ssthresh: u64::MAX, segment_bytes: 1_000 }, cwnd).unwrap()
        }
    }

    #[test]
    fn alpha_moves_by_the_gain_once_per_window() {
        let mut dctcp = Dctcp::new(&Parameters::default(), 0);
        assert_eq!(dctcp.reduced(100_000), 50_000);
        // The first acknowledgement ends the window that began at 0, in which no packet was marked.
        dctcp.observe(1_000, 10_000, 1_000, false);
        assert_eq!(dctcp.alpha, 15.0 / 16.0);
        // The next window ends with the first acknowledgement beyond 10 000. A quarter of the bytes acknowledged in it
        // is marked.
        dctcp.observe(4_000, 20_000, 3_000, true);
        dctcp.observe(10_000, 20_000, 6_000, false);
        assert_eq!(dctcp.alpha, 15.0 / 16.0);
        dctcp.observe(13_000, 20_000, 3_000, false);
        assert_eq!(dctcp.alpha, 15.0 / 16.0 * (15.0 / 16.0) + 0.25 / 16.0);
    }

    #[test]
    fn without_marks_alpha_fades_and_the_window_hardly_shrinks() {
        let mut dctcp = Dctcp::new(&Parameters::default(), 0);
        for window in 1..=200 {
            dctcp.observe(window * 1_000, window * 1_000, 1_000, false);
        }
        assert!(dctcp.alpha < 1e-5 && dctcp.reduced(100_000) == 99_999);
        assert_eq!(dctcp.reduced(2_000), 2_000);
    }
}
