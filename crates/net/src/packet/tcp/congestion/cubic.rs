//! CUBIC: RFC 9438. Windows in segments and times in seconds, as there.
//!
//! ```text
//! W_cubic(t) = C (t - K)^3 + W_max        K = cbrt((W_max - cwnd_epoch) / C)
//! ```
//!
//! Slow start is that of [`super::newreno`]; where that is wanted it counts bytes (RFC 3465), and ends by [`HyStart`]
//! (RFC 9438, 4.10, recommends another, HyStart++). Left out: the undoing of reductions that prove spurious (4.9).

use super::ack::Ack;
use super::hystart::HyStart;

/// RFC 9438, 5: segments per second cubed.
const C: f64 = 0.4;
/// RFC 9438, 4.6: what a reduction leaves of the window.
const BETA: f64 = 0.7;
/// RFC 9438, 4.3: with it, Reno with BETA has Reno's own average window.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// A connection's state.
#[derive(Clone, Debug)]
pub(crate) struct Cubic {
    w_max: f64,
    /// The window before the last reduction.
    cwnd_prior: f64,
    /// What Reno's window would be now (4.3).
    w_est: f64,
    k_s: f64,
    /// Growth that does not make a byte yet.
    odd_bytes: f64,
    /// Length of the present stage of congestion avoidance; without one, the next acknowledgement begins it.
    stage_ps: Option<u64>,
    last_ps: u64,
    /// The next stage climbs back to `w_max`: a reduction came before it, and no timeout.
    climbs: bool,
    /// The window was full when the last acknowledgement had been answered.
    full: bool,
    pub hystart: Option<Box<HyStart>>,
    /// Most segments by which one acknowledgement grows slow start.
    slow_start_limit: u64,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            w_max: 0.0,
            cwnd_prior: 0.0,
            w_est: 0.0,
            k_s: 0.0,
            odd_bytes: 0.0,
            stage_ps: None,
            last_ps: 0,
            climbs: false,
            full: true,
            hystart: None,
            slow_start_limit: 1,
        }
    }
}

impl Cubic {
    pub fn new(hystart: bool, byte_counting: bool) -> Self {
        let slow_start_limit = if byte_counting { u64::MAX } else { 1 };
        Self { hystart: hystart.then(Box::default), slow_start_limit, ..Self::default() }
    }

    #[inline(never)]
    pub fn grow(&mut self, cwnd: u64, ssthresh: u64, segment_bytes: u64, ack: Ack) -> u64 {
        let since_ps = ack.now_ps - self.last_ps;
        self.last_ps = ack.now_ps;
        if !self.full || ack.segments == 0 {
            // RFC 9438, 5.8: a window that limits nothing does not grow, and the time does not count.
            self.stage_ps = self.stage_ps.map(|stage_ps| stage_ps + if self.full { since_ps } else { 0 });
            return cwnd;
        }
        if cwnd < ssthresh {
            self.stage_ps = None;
            return cwnd + segment_bytes * ack.segments.min(self.slow_start_limit);
        }
        let window = (cwnd as f64 + self.odd_bytes) / segment_bytes as f64;
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
        // 4.3: once the window before the reduction is reached, as fast as Reno.
        let alpha = if self.w_est < self.cwnd_prior { ALPHA } else { 1.0 };
        self.w_est += alpha * segments / window;
        let grown = if self.w_cubic(t_s) < self.w_est {
            window.max(self.w_est)
        } else {
            // 4.2, per segment acknowledged, so that delayed acknowledgements do not slow it.
            let target = self.w_cubic(t_s + ack.srtt_ns as f64 * 1e-9).clamp(window, 1.5 * window);
            window + (target - window) / window * segments
        };
        let bytes = grown * segment_bytes as f64;
        let whole = bytes as u64;
        self.odd_bytes = bytes - whole as f64;
        whole
    }

    fn begin_stage(&mut self, window: f64) {
        self.w_est = window;
        if self.climbs && window < self.w_max {
            self.k_s = cube_root((self.w_max - window) / C);
        } else {
            // 4.8 and 4.10: after a timeout or an unhurt slow start.
            self.k_s = 0.0;
            self.w_max = window;
        }
    }

    fn w_cubic(&self, t_s: f64) -> f64 {
        let d = t_s - self.k_s;
        C * d * d * d + self.w_max
    }

    /// Whether the window is full, so that it is what limits the sender.
    #[inline]
    pub fn on_sent(&mut self, full: bool) {
        self.full = full;
    }

    /// 4.6 and 4.7: ssthresh after a loss or a mark.
    pub fn reduce(&mut self, cwnd: u64, outstanding_bytes: u64, segment_bytes: u64) -> u64 {
        let window = cwnd as f64 / segment_bytes as f64;
        self.w_max = if window < self.w_max { window * (1.0 + BETA) / 2.0 } else { window };
        self.climbs = true;
        self.shrink(window, cwnd.min(outstanding_bytes), segment_bytes)
    }

    /// 4.8: ssthresh after a timeout.
    pub fn on_timeout(&mut self, cwnd: u64, flight_bytes: u64, segment_bytes: u64) -> u64 {
        self.climbs = false;
        // What it has seen of round trips is of another time.
        if let Some(hystart) = &mut self.hystart {
            **hystart = HyStart::default();
        }
        self.shrink(cwnd as f64 / segment_bytes as f64, flight_bytes, segment_bytes)
    }

    fn shrink(&mut self, window: f64, flight_bytes: u64, segment_bytes: u64) -> u64 {
        self.cwnd_prior = window;
        self.stage_ps = None;
        self.odd_bytes = 0.0;
        (flight_bytes * 7 / 10).max(2 * segment_bytes)
    }
}

/// The cube root of a positive number: Newton's method from a third of the exponent, so that every machine finds the
/// same bits (the library's may differ).
fn cube_root(x: f64) -> f64 {
    // The bits of a double are nearly its logarithm; the constant is 2/3 of the exponent's bias less what centres the
    // error. Off by 6 % at most; four steps make that 1e-19.
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

    /// One round trip of acknowledgements, one per two segments, evenly spread.
    fn round(cubic: &mut Cubic, mut cwnd: u64, now_ps: &mut u64, rtt_ps: u64) -> u64 {
        let ack_count = (cwnd / SEGMENT / 2).max(1);
        let begun_ps = *now_ps;
        for index in 1..=ack_count {
            *now_ps = begun_ps + rtt_ps * index / ack_count;
            let ack = Ack { now_ps: *now_ps, srtt_ns: rtt_ps / 1000, segments: 2 };
            cwnd = cubic.grow(cwnd, SEGMENT, SEGMENT, ack);
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
        // W_max 1000 segments, RTT 100 ms: K = cbrt(300 / 0.4) = 9.086 s, far above Reno's friendly region, which adds
        // 0.53 a round trip. The window aims one round trip ahead and gets there a round trip later: it lags by what
        // the aim moves within a round trip, at most C ((t+r-K)^3 - (t-K)^3) <= 3 C K^2 r = 9.9 segments at the start.
        let rtt_ps = 100_000_000_000;
        let mut cubic = Cubic::default();
        let mut cwnd = cubic.reduce(1_000_000, 1_000_000, SEGMENT);
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
        let mut cubic = Cubic::default();
        cubic.reduce(100_000, 100_000, SEGMENT);
        assert_eq!(cubic.w_max, 100.0);
        cubic.reduce(80_000, 80_000, SEGMENT);
        assert!((cubic.w_max - 80.0 * 0.85).abs() < 1e-9, "fast convergence (4.7)");
        cubic.reduce(80_000, 80_000, SEGMENT);
        assert_eq!(cubic.w_max, 80.0);
    }

    #[test]
    fn over_short_round_trips_it_is_as_fast_as_reno() {
        // RTT 100 us: t stays so small that W_cubic hardly moves; W_est adds ALPHA = 9/17 a round trip up to the
        // window before the reduction, then 1. Between 70 and 100 segments that takes 30 / (9/17) = 57 rounds.
        let mut cubic = Cubic::default();
        let mut cwnd = cubic.reduce(100_000, 100_000, SEGMENT);
        let mut now_ps = 1_000_000_000;
        let mut rounds = 0;
        while cwnd < 100_000 {
            cwnd = round(&mut cubic, cwnd, &mut now_ps, 100_000_000);
            rounds += 1;
        }
        // Rounds of whole pairs acknowledge up to one segment in 70 less than the window.
        assert!((56..=59).contains(&rounds), "{rounds} rounds");
        let before = cwnd;
        for _ in 0..20 {
            cwnd = round(&mut cubic, cwnd, &mut now_ps, 100_000_000);
        }
        let added = (cwnd - before) as f64 / 20_000.0;
        assert!((0.97..=1.01).contains(&added), "{added} segments a round trip");
    }

    #[test]
    fn after_a_timeout_the_first_stage_is_convex() {
        // K = 0 and W_max the window with which the stage begins (4.8).
        let mut cubic = Cubic::default();
        assert_eq!(cubic.on_timeout(1_000_000, 500_000, SEGMENT), 350_000);
        assert_eq!(cubic.grow(1000, 350_000, SEGMENT, Ack { now_ps: 1, srtt_ns: 1, segments: 1 }), 2000);
        cubic.grow(350_000, 350_000, SEGMENT, Ack { now_ps: 2, srtt_ns: 1, segments: 1 });
        assert_eq!((cubic.k_s, cubic.w_max), (0.0, 350.0));
    }

    #[test]
    fn slow_start_grows_by_one_segment_or_by_all_that_are_acknowledged() {
        for (byte_counting, grown) in [(false, 11_000), (true, 13_000)] {
            let ack = Ack { now_ps: 1, srtt_ns: 1, segments: 3 };
            assert_eq!(Cubic::new(false, byte_counting).grow(10_000, u64::MAX, SEGMENT, ack), grown);
        }
    }

    #[test]
    fn a_window_that_is_not_full_does_not_grow_and_stops_the_clock() {
        let mut cubic = Cubic::default();
        let mut cwnd = cubic.reduce(1_000_000, 1_000_000, SEGMENT);
        let mut now_ps = 0;
        cwnd = round(&mut cubic, cwnd, &mut now_ps, 100_000_000_000);
        let stage_ps = cubic.stage_ps;
        cubic.on_sent(false);
        // The acknowledgement after an hour's silence.
        now_ps += 3_600_000_000_000_000;
        assert_eq!(cubic.grow(cwnd, SEGMENT, SEGMENT, Ack { now_ps, srtt_ns: 100_000_000, segments: 2 }), cwnd);
        cubic.on_sent(true);
        assert_eq!(cubic.stage_ps, stage_ps);
    }
}
