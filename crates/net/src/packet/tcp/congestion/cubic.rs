//! CUBIC: RFC 9438. As in the RFC, windows are in segments and times in seconds.
//!
//! ```text
//! W_cubic(t) = C (t - K)^3 + W_max        K = cbrt((W_max - cwnd_epoch) / C)
//! ```
//!
//! By default, slow start works as in [`super::newreno`]. Optionally it counts bytes (RFC 3465), and `HyStart` ends it
//! early (RFC 9438, 4.10, recommends HyStart++ for this). Not implemented: undoing spurious reductions (4.9).

mod hystart;

use super::control::{Ack, CongestionControl, CongestionWindow};
use crate::units::Time;
use hystart::HyStart;
use serde::{Deserialize, Serialize};

/// Constant of the cubic function (RFC 9438, 5), in segments per second cubed.
const C: f64 = 0.4;
/// Multiplicative decrease factor (RFC 9438, 4.6).
const BETA: f64 = 0.7;
/// Additive increase with which a Reno flow of decrease factor BETA has the same average window as standard Reno (RFC
/// 9438, 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// Parameters of CUBIC.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Whether HyStart ends slow start.
    pub hystart: bool,
    /// Whether slow start increases the window by every segment that an acknowledgement covers (RFC 3465 without its
    /// limit L, as in Linux), instead of one segment per acknowledgement.
    pub byte_counting: bool,
    /// Whether Linux's differences from RFC 9438 apply. The growth per acknowledged segment is computed again only when
    /// the window has changed by a segment, or [`GROWTH_PS`] after the last time. Before the first loss, the window
    /// grows by at least 5 % a round trip. In slow start, it grows while it is less than twice the largest amount of data
    /// that was in flight in the last round trip, even if it is not full. A timeout reduces ssthresh to a share of the
    /// window instead of the data in flight. HyStart allows for delayed acknowledgements.
    pub as_linux: bool,
}

/// Time after which Linux computes the growth again although the window has not changed.
const GROWTH_PS: u64 = 31_250_000_000;
/// Minimum growth per acknowledged segment in Linux before the first loss.
const GROWTH_BEFORE_LOSS: f64 = 0.05;
/// Maximum segment offload of Linux, in bytes: HyStart expects acknowledgements of four such bursts at once.
const OFFLOAD_BYTES: u64 = 65_536;
/// Maximum delay of acknowledgements for which HyStart allows, in ns.
const ALLOWANCE_NS: u64 = 1_000_000;

/// Growth per acknowledged segment, as of the last time that it was computed.
#[derive(Clone, Copy, Debug)]
struct Growth {
    /// In segments.
    per_segment: f64,
    /// Window in whole segments, and time, when it was computed.
    segments: u64,
    at_ps: u64,
}

/// The state of CUBIC for one connection.
#[derive(Clone, Debug)]
pub(crate) struct Cubic {
    w_max: f64,
    /// Window before the last reduction, in segments.
    cwnd_prior: f64,
    /// Estimate of the window that Reno would have now (RFC 9438, 4.3).
    w_est: f64,
    k_s: f64,
    /// Growth of less than a byte that is carried over to the next acknowledgement.
    residue_bytes: f64,
    /// Time spent in the current stage of congestion avoidance; `None` until an acknowledgement begins a stage.
    stage_ps: Option<u64>,
    last_ps: u64,
    /// Whether the next stage climbs back to `w_max`: `true` after a loss or mark, `false` after a timeout.
    climbs: bool,
    /// Whether the window was fully used after the last acknowledgement.
    full: bool,
    /// Most bytes in flight in this round trip, and its end: the first unsent byte at its beginning.
    used_bytes: u64,
    round_end: u64,
    hystart: Option<Box<HyStart>>,
    /// Maximum number of segments by which an acknowledgement grows the window in slow start.
    slow_start_limit: u64,
    /// Whether Linux's rules apply, and the growth as of its last computation in this stage.
    is_linux: bool,
    growth: Option<Growth>,
}

impl CongestionControl for Cubic {
    type Parameters = Parameters;
    const SUMMARY: &'static str = "RFC 9438";
    const WINDOW: &'static str = "`C (t - K)³ + W_max`, with `C = 0.4`, `K = ∛((W_max - cwnd) / C)`; at least Reno's \
                                  average; 0.7 after a loss or mark, fast convergence";

    fn new(parameters: &Parameters, _: u64) -> Self {
        Self {
            w_max: 0.0,
            cwnd_prior: 0.0,
            w_est: 0.0,
            k_s: 0.0,
            residue_bytes: 0.0,
            stage_ps: None,
            last_ps: 0,
            climbs: false,
            full: true,
            used_bytes: 0,
            round_end: 0,
            hystart: parameters.hystart.then(Box::default),
            slow_start_limit: if parameters.byte_counting { u64::MAX } else { 1 },
            is_linux: parameters.as_linux,
            growth: None,
        }
    }

    /// Returns 1 us if HyStart is on, because HyStart compares round-trip times. Linux also measures them in
    /// microseconds, whatever the tick of timestamps.
    fn stamp_tick(parameters: &Parameters) -> Option<Time> {
        parameters.hystart.then_some(Time::from_ps(1_000_000))
    }

    #[inline(never)]
    fn on_ack(&mut self, window: &mut CongestionWindow, ack: &Ack) {
        let is_linux = self.is_linux;
        let ends = |hystart: &mut Box<HyStart>| {
            let allowance_ns = if is_linux { allowance_ns(window.cwnd, ack) } else { 0 };
            hystart.ends_slow_start(ack, window.cwnd / window.segment_bytes, allowance_ns)
        };
        if window.cwnd < window.ssthresh && ack.segments > 0 && self.hystart.as_mut().is_some_and(ends) {
            window.ssthresh = window.cwnd;
        }
        if self.is_linux {
            self.note_use(window.segment_bytes, ack);
        }
        window.cwnd = self.grown(window, ack);
    }

    /// Records whether the window is fully used, because only then does the window limit the sender.
    #[inline]
    fn on_sent(&mut self, window: &CongestionWindow, flight_bytes: u64) {
        self.full = flight_bytes + window.segment_bytes > window.cwnd;
    }

    /// Reduces the window after a loss (RFC 9438, 4.6), with fast convergence (4.7).
    fn on_loss(&mut self, window: &CongestionWindow, _: u64, outstanding_bytes: u64) -> u64 {
        let segments = window.cwnd as f64 / window.segment_bytes as f64;
        self.w_max = if segments < self.w_max { segments * (1.0 + BETA) / 2.0 } else { segments };
        self.climbs = true;
        self.shrink(window, window.cwnd.min(outstanding_bytes))
    }

    /// Reduces the window after a timeout: 4.8.
    fn on_timeout(&mut self, window: &CongestionWindow, flight_size: u64) -> u64 {
        self.climbs = false;
        // HyStart starts again, because the network may have changed.
        if let Some(hystart) = &mut self.hystart {
            **hystart = HyStart::default();
        }
        self.shrink(window, if self.is_linux { window.cwnd } else { flight_size })
    }
}

impl Cubic {
    /// Notes the bytes that were in flight before an acknowledgement.
    fn note_use(&mut self, segment_bytes: u64, ack: &Ack) {
        // The acknowledgement of a FIN is above the data.
        let used_bytes = ack.high.saturating_sub(ack.una) + ack.segments * segment_bytes;
        if ack.una > self.round_end {
            (self.round_end, self.used_bytes) = (ack.high, used_bytes);
        } else {
            self.used_bytes = self.used_bytes.max(used_bytes);
        }
    }

    /// Returns the window after an acknowledgement.
    fn grown(&mut self, window: &CongestionWindow, ack: &Ack) -> u64 {
        let CongestionWindow { cwnd, ssthresh, segment_bytes } = *window;
        let since_ps = ack.now_ps - self.last_ps;
        self.last_ps = ack.now_ps;
        let is_limit = match self.is_linux && cwnd < ssthresh {
            true => cwnd < 2 * self.used_bytes,
            false => self.full,
        };
        if !is_limit || ack.segments == 0 {
            // RFC 9438, 5.8: a window that does not limit the sender does not grow, and the time in that state does not
            // count.
            self.stage_ps = self.stage_ps.map(|stage_ps| stage_ps + if is_limit { since_ps } else { 0 });
            return cwnd;
        }
        if cwnd < ssthresh {
            self.stage_ps = None;
            return cwnd + segment_bytes * ack.segments.min(self.slow_start_limit);
        }
        let window = (cwnd as f64 + self.residue_bytes) / segment_bytes as f64;
        let stage_ps = match self.stage_ps {
            Some(stage_ps) => stage_ps + since_ps,
            None => {
                self.begin_stage(window);
                0
            }
        };
        self.stage_ps = Some(stage_ps);
        let t_s = stage_ps as f64 * 1e-12;
        let segments = ack.segments as f64;
        // RFC 9438, 4.3: W_est grows at the rate of standard Reno once it has reached the window before the reduction.
        let alpha = if self.w_est < self.cwnd_prior { ALPHA } else { 1.0 };
        self.w_est += alpha * segments / window;
        if self.is_linux {
            return self.grown_as_in_linux(window, segment_bytes, ack, t_s);
        }
        let grown = if self.w_cubic(t_s) < self.w_est {
            window.max(self.w_est)
        } else {
            // RFC 9438, 4.2, applied once per acknowledged segment, so that delayed acknowledgements do not slow the
            // growth.
            let target = self.w_cubic(t_s + ack.srtt_ns as f64 * 1e-9).clamp(window, 1.5 * window);
            window + (target - window) / window * segments
        };
        self.whole_bytes(grown, segment_bytes)
    }

    /// Returns the whole bytes of a window in segments, and keeps the rest for the next acknowledgement.
    fn whole_bytes(&mut self, window: f64, segment_bytes: u64) -> u64 {
        let bytes = window * segment_bytes as f64;
        let whole = bytes as u64;
        self.residue_bytes = bytes - whole as f64;
        whole
    }

    /// Returns the window after an acknowledgement, `t_s` seconds after the stage began, with the growth of the last
    /// computation. At most every second acknowledged segment grows the window by one.
    fn grown_as_in_linux(&mut self, window: f64, segment_bytes: u64, ack: &Ack, t_s: f64) -> u64 {
        let whole = window as u64;
        let growth = match self.growth {
            Some(last) if last.segments == whole && ack.now_ps - last.at_ps <= GROWTH_PS => last,
            _ => {
                let target = self.w_cubic(t_s + ack.srtt_ns as f64 * 1e-9);
                let cubic = ((target - window) / window).max(0.01 / window);
                let cubic = if self.climbs { cubic } else { cubic.max(GROWTH_BEFORE_LOSS) };
                let reno = (self.w_est - window) / window;
                Growth { per_segment: cubic.max(reno).min(0.5), segments: whole, at_ps: ack.now_ps }
            }
        };
        self.growth = Some(growth);
        self.whole_bytes(window + growth.per_segment * ack.segments as f64, segment_bytes)
    }

    fn begin_stage(&mut self, window: f64) {
        self.w_est = window;
        if self.climbs && window < self.w_max {
            self.k_s = cube_root((self.w_max - window) / C);
        } else {
            // RFC 9438, 4.8 and 4.10: this stage follows a timeout, or a slow start that ended without losses.
            self.k_s = 0.0;
            self.w_max = window;
        }
    }

    fn w_cubic(&self, t_s: f64) -> f64 {
        let d = t_s - self.k_s;
        C * d * d * d + self.w_max
    }

    fn shrink(&mut self, window: &CongestionWindow, flight_bytes: u64) -> u64 {
        self.cwnd_prior = window.cwnd as f64 / window.segment_bytes as f64;
        self.stage_ps = None;
        self.growth = None;
        self.residue_bytes = 0.0;
        (flight_bytes * 7 / 10).max(2 * window.segment_bytes)
    }
}

/// Returns the delay of acknowledgements for which Linux's HyStart allows at a window of `cwnd` bytes. Its pacing rate in
/// slow start is two windows in a round trip.
fn allowance_ns(cwnd: u64, ack: &Ack) -> u64 {
    (4 * OFFLOAD_BYTES * ack.srtt_ns / (2 * cwnd)).min(ALLOWANCE_NS)
}

/// Returns the cube root of a positive number. Newton's method gives the same bits on every machine, whereas `cbrt` of
/// the platform's library may not.
fn cube_root(x: f64) -> f64 {
    // The bits of a double approximate its logarithm, so a third of them approximates the cube root. The constant is
    // 2/3 of the exponent's bias, less a correction that centres the error. The initial error is at most 6 %, and four
    // steps reduce it to 1e-19.
    let mut root = f64::from_bits(x.to_bits() / 3 + 0x2a9f_7893_0000_0000);
    for _ in 0..4 {
        root -= (root - x / (root * root)) / 3.0;
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1000;

    fn cubic() -> Cubic {
        Cubic::new(&Parameters::default(), 0)
    }

    fn window(cwnd: u64, ssthresh: u64) -> CongestionWindow {
        CongestionWindow { cwnd, ssthresh, segment_bytes: SEGMENT }
    }

    fn acknowledged(now_ps: u64, rtt_ns: u64, segments: u64) -> Ack {
        Ack { now_ps, rtt_ns, srtt_ns: rtt_ns, una: 0, high: 0, segments }
    }

    fn grow(cubic: &mut Cubic, cwnd: u64, ssthresh: u64, ack: Ack) -> u64 {
        let mut window = window(cwnd, ssthresh);
        cubic.on_ack(&mut window, &ack);
        window.cwnd
    }

    fn reduce(cubic: &mut Cubic, cwnd: u64) -> u64 {
        cubic.on_loss(&window(cwnd, u64::MAX), cwnd, cwnd)
    }

    /// Simulates one round trip of evenly spaced acknowledgements, each of two segments.
    fn round(cubic: &mut Cubic, mut cwnd: u64, now_ps: &mut u64, rtt_ps: u64) -> u64 {
        let ack_count = (cwnd / SEGMENT / 2).max(1);
        let begun_ps = *now_ps;
        for index in 1..=ack_count {
            *now_ps = begun_ps + rtt_ps * index / ack_count;
            cwnd = grow(cubic, cwnd, SEGMENT, acknowledged(*now_ps, rtt_ps / 1000, 2));
        }
        cwnd
    }

    #[test]
    fn the_cube_root_is_exact_to_the_last_digits() {
        let mut x = 1e-12;
        while x < 1e12 {
            x *= 1.37;
            let root = cube_root(x);
            assert!((root * root * root / x - 1.0).abs() < 4.0 * f64::EPSILON, "cube_root({x}) = {root}");
        }
    }

    #[test]
    fn between_losses_the_window_follows_the_cubic() {
        // W_max = 1000 segments and a round trip r = 100 ms give K = cbrt(300 / 0.4) = 9.086 s. The window is far above
        // the Reno-friendly region, which grows by only 0.53 segments a round trip. The window aims at W_cubic one
        // round trip ahead and reaches it one round trip later. It therefore lags by the change of W_cubic within a
        // round trip, at most C ((t+r-K)^3 - (t-K)^3) <= 3 C K^2 r = 9.9 segments, at the start.
        let rtt_ps = 100_000_000_000;
        let mut cubic = cubic();
        let mut cwnd = reduce(&mut cubic, 1_000_000);
        assert_eq!(cwnd, 700_000);
        let (mut now_ps, mut first_ps) = (7_000_000_000_000, None);
        let k_s = cube_root(300.0 / 0.4);
        let mut seen_convex = false;
        for _ in 0..150 {
            cwnd = round(&mut cubic, cwnd, &mut now_ps, rtt_ps);
            let begun_ps = *first_ps.get_or_insert(now_ps - rtt_ps);
            let t_s = (now_ps - begun_ps) as f64 * 1e-12;
            let (d, far) = (t_s - k_s, (t_s - k_s).abs() + 0.1);
            let expected = 0.4 * d * d * d + 1000.0;
            let slope = 3.0 * 0.4 * far * far;
            let found = cwnd as f64 / SEGMENT as f64;
            assert!((found - expected).abs() <= 1.0 + 0.1 * slope, "t {t_s}: {found}, W_cubic {expected}");
            seen_convex |= found > 1000.0;
        }
        assert!(seen_convex);
    }

    #[test]
    fn a_window_below_the_last_summit_lowers_the_next() {
        let mut cubic = cubic();
        reduce(&mut cubic, 100_000);
        assert_eq!(cubic.w_max, 100.0);
        reduce(&mut cubic, 80_000);
        assert!((cubic.w_max - 80.0 * 0.85).abs() < 1e-9, "fast convergence (4.7)");
        reduce(&mut cubic, 80_000);
        assert_eq!(cubic.w_max, 80.0);
    }

    #[test]
    fn over_short_round_trips_it_is_as_fast_as_reno() {
        // With a round trip of 100 us, t stays so small that W_cubic hardly changes. W_est grows by ALPHA = 9/17
        // segments a round trip up to the window before the reduction, then by 1. From 70 to 100 segments that takes 30
        // / (9/17) = 57 rounds.
        let mut cubic = cubic();
        let mut cwnd = reduce(&mut cubic, 100_000);
        let mut now_ps = 1_000_000_000;
        let mut rounds = 0;
        while cwnd < 100_000 {
            cwnd = round(&mut cubic, cwnd, &mut now_ps, 100_000_000);
            rounds += 1;
        }
        // A round acknowledges pairs of segments, so it may acknowledge one segment less than the window (>= 70).
        assert!((56..=59).contains(&rounds), "{rounds} rounds");
        let before = cwnd;
        for _ in 0..20 {
            cwnd = round(&mut cubic, cwnd, &mut now_ps, 100_000_000);
        }
        let added = (cwnd - before) as f64 / 20_000.0;
        assert!((0.97..=1.01).contains(&added), "{added} segments a round trip");
    }

    #[test]
    fn as_linux_growth_is_computed_again_after_31_ms_or_a_segment() {
        let rules = Parameters { as_linux: true, ..Parameters::default() };
        let mut cubic = Cubic::new(&rules, 0);
        let mut cwnd = reduce(&mut cubic, 100_000);
        // Round trips of 1 ms: Reno would grow by 0.53 segments each. The first computation sees a window without
        // growth, and W_cubic hardly grows, so for 31 ms the window keeps its 70 segments.
        let mut now_ps = 1_000_000_000;
        for _ in 0..31 {
            cwnd = round(&mut cubic, cwnd, &mut now_ps, 1_000_000_000);
        }
        assert_eq!(cwnd / SEGMENT, 70);
        // Then it catches up: by 31 ms of Reno's growth, 16 segments, within two or three round trips.
        for _ in 0..4 {
            cwnd = round(&mut cubic, cwnd, &mut now_ps, 1_000_000_000);
        }
        assert!((80..=90).contains(&(cwnd / SEGMENT)), "{cwnd}");
    }

    #[test]
    fn as_linux_the_window_grows_by_a_twentieth_before_the_first_loss() {
        let rules = Parameters { as_linux: true, ..Parameters::default() };
        for (is_linux, expected) in [(true, 105_000), (false, 100_600)] {
            let mut cubic = Cubic::new(&Parameters { as_linux: is_linux, ..rules }, 0);
            let mut now_ps = 1_000_000_000;
            // HyStart ended slow start at 100 segments, without a loss.
            let cwnd = round(&mut cubic, 100_000, &mut now_ps, 1_000_000_000);
            assert!(cwnd.abs_diff(expected) < 600, "{cwnd}, expected {expected}");
        }
    }

    #[test]
    fn after_a_timeout_the_first_stage_is_convex() {
        // After a timeout, K = 0, and W_max is the window at the beginning of the stage (RFC 9438, 4.8).
        let mut cubic = cubic();
        assert_eq!(cubic.on_timeout(&window(1_000_000, u64::MAX), 500_000), 350_000);
        assert_eq!(grow(&mut cubic, 1000, 350_000, acknowledged(1, 1, 1)), 2000);
        grow(&mut cubic, 350_000, 350_000, acknowledged(2, 1, 1));
        assert_eq!((cubic.k_s, cubic.w_max), (0.0, 350.0));
    }

    #[test]
    fn slow_start_grows_by_one_segment_or_by_all_that_are_acknowledged() {
        for (byte_counting, grown) in [(false, 11_000), (true, 13_000)] {
            let mut cubic = Cubic::new(&Parameters { byte_counting, ..Default::default() }, 0);
            assert_eq!(grow(&mut cubic, 10_000, u64::MAX, acknowledged(1, 1, 3)), grown);
        }
    }

    #[test]
    fn a_window_that_is_not_full_does_not_grow_and_stops_the_clock() {
        let mut cubic = cubic();
        let mut cwnd = reduce(&mut cubic, 1_000_000);
        let mut now_ps = 0;
        cwnd = round(&mut cubic, cwnd, &mut now_ps, 100_000_000_000);
        let stage_ps = cubic.stage_ps;
        cubic.full = false;
        // This acknowledgement comes after an hour of silence.
        now_ps += 3_600_000_000_000_000;
        assert_eq!(grow(&mut cubic, cwnd, SEGMENT, acknowledged(now_ps, 100_000_000, 2)), cwnd);
        cubic.full = true;
        assert_eq!(cubic.stage_ps, stage_ps);
    }
}
