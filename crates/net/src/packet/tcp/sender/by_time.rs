//! Recovery by time, as in Linux: RACK-TLP (RFC 8985) with proportional rate reduction (PRR, RFC 9937).
//!
//! RACK ([`super::super::rack`]) decides which segments are lost. The last segments of a flow have no later segments
//! that could reveal their loss, so a tail loss probe is sent before the retransmission timeout. During recovery, PRR
//! spreads the reduction of the window over a round trip.
//!
//! A reduction is undone if the first acknowledgement after a retransmission echoes an earlier timestamp, so that the
//! original segment has arrived (Eifel: RFC 3522 and 4015). Not modelled: F-RTO (RFC 5682), which needs no timestamps, and
//! DSACK.

use super::{Alarm, CongestionState, NEVER, Sender};
use crate::packet::tcp::rack::is_later;
use crate::packet::tcp::{Recovery, TcpConfig};
use crate::packet::wire::Wire;

/// Time until a tail loss probe if no round-trip time has been measured yet (RFC 8985, 7.2).
const PROBE_WITHOUT_SAMPLE_PS: u64 = 1_000_000_000_000;

/// State of recovery by time.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Meaning of [`Sender::deadline_ps`].
    pub alarm: Alarm,
    /// Time of the retransmission timeout, computed when the alarm was last set. No probe is sent after it.
    timeout_ps: u64,
    /// Number of bytes sent so far, including retransmissions. `sent_ps` is the time of the last transmission.
    sent_bytes: u64,
    sent_ps: u64,
    /// Time from the last acknowledgement until further segments may count as lost, in ticks of timestamps.
    reordering: Option<u32>,
    /// `TLP.end_seq`: end of the data when the last probe was sent. `None` once acknowledgements show its fate.
    probe_end: Option<u64>,
    /// `TLP.is_retrans`: whether the probe was a retransmission.
    probe_is_retransmission: bool,
    /// `SND.NXT` when the alarm was last set. If new data has been sent since, the alarm must be set again.
    armed_high: u64,
    prr: Prr,
    undo: Option<Undo>,
}

/// The window before a reduction, while the reduction may prove unnecessary.
#[derive(Clone, Copy, Debug)]
struct Undo {
    cwnd: u64,
    ssthresh: u64,
    /// `RetransmitTS` of RFC 3522: timestamp of the first retransmission after the reduction.
    retransmitted: Option<u32>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            alarm: Alarm::Timeout,
            timeout_ps: NEVER,
            sent_bytes: 0,
            sent_ps: 0,
            reordering: None,
            probe_end: None,
            probe_is_retransmission: false,
            armed_high: 0,
            prr: Prr::default(),
            undo: None,
        }
    }
}

/// Proportional rate reduction, with the names of RFC 9937.
#[derive(Clone, Copy, Debug, Default)]
struct Prr {
    /// `prr_delivered`: bytes delivered during recovery.
    delivered: u64,
    /// [`State::sent_bytes`] when recovery began. `prr_out` is the number of bytes sent since then.
    sent_before: u64,
    /// `RecoverFS`: bytes outstanding when recovery began.
    outstanding: u64,
}

impl Sender {
    /// Processes an acknowledgement that newly delivered `delivered` bytes and echoes timestamp `echo`. `before` is the
    /// value of SND.UNA before it.
    pub(super) fn process_by_time(
        &mut self,
        config: &TcpConfig,
        now_ps: u64,
        before: u64,
        (delivered, echo): (u64, u32),
    ) {
        let acknowledged = self.una - before;
        if acknowledged > 0 {
            self.undo_if_needless(config, echo);
        }
        let segments = self.whole_segments(acknowledged, u64::from(config.segment_bytes));
        self.judge_probe(config, acknowledged == 0 && delivered == 0);
        let is_over = self.una >= self.recover;
        if acknowledged > 0 {
            let phase = self.phase;
            if is_over && matches!(phase, CongestionState::Recovery | CongestionState::Loss) {
                self.phase = CongestionState::Open;
                self.by_time.undo = None;
            }
            match phase {
                CongestionState::Recovery if is_over => self.cwnd = self.ssthresh,
                // The acknowledgement that ends slow start after a timeout counts for the window, too (RFC 5681, 3.1).
                CongestionState::Open | CongestionState::Loss => self.grow(config, segments, now_ps),
                _ => {}
            }
            self.by_time.alarm = Alarm::Timeout;
            self.restart_timer(config, now_ps);
        }
        let is_new = self.find_losses(config, now_ps);
        let is_sacked = self.board.sacked_bytes() > 0;
        match self.phase {
            CongestionState::Open if is_sacked => self.phase = CongestionState::Disorder,
            CongestionState::Disorder if !is_sacked => self.phase = CongestionState::Open,
            CongestionState::Recovery => self.reduce_in_proportion(config, delivered, acknowledged > 0 && !is_new),
            _ => {}
        }
        if acknowledged > 0 || delivered > 0 {
            // The alarm must be set again, because the acknowledgement delivered data.
            self.by_time.armed_high = 0;
        }
    }

    /// Marks the segments that count as lost by now, and then enters recovery. Returns whether there are any.
    fn find_losses(&mut self, config: &TcpConfig, now_ps: u64) -> bool {
        let wait = self.reordering_window(config);
        let (is_new, next) = self.board.detect_losses(config.stamp(now_ps), wait);
        self.by_time.reordering = next;
        if is_new && matches!(self.phase, CongestionState::Open | CongestionState::Disorder) {
            self.remember_window();
            self.reduce_for_loss(config);
            self.recover = self.high;
            self.phase = CongestionState::Recovery;
            let sent_before = self.by_time.sent_bytes;
            self.by_time.prr = Prr { delivered: 0, sent_before, outstanding: self.outstanding() };
            self.by_time.probe_end = None;
        }
        is_new
    }

    /// Sets the window during recovery (RFC 9937, section 6). `is_safe` is the RFC's SafeACK: the acknowledgement
    /// advances SND.UNA and shows no further loss, so one more segment than was delivered may be sent.
    fn reduce_in_proportion(&mut self, config: &TcpConfig, delivered: u64, is_safe: bool) {
        let segment = u64::from(config.segment_bytes);
        let pipe = self.board.flight_bytes();
        let prr = &mut self.by_time.prr;
        prr.delivered += delivered;
        let sent = self.by_time.sent_bytes - prr.sent_before;
        let allowed = if pipe > self.ssthresh {
            (u128::from(prr.delivered) * u128::from(self.ssthresh)).div_ceil(u128::from(prr.outstanding.max(1))) as u64
        } else {
            let limit = prr.delivered.saturating_sub(sent).max(delivered) + if is_safe { segment } else { 0 };
            sent + limit.min(self.ssthresh - pipe)
        };
        let mut count = allowed.saturating_sub(sent);
        if sent == 0 {
            // The first retransmission is never delayed (fast retransmit).
            count = count.max(segment);
        }
        self.cwnd = pipe + count;
    }

    /// Keeps the window for [`Self::undo_if_needless`], before a reduction for a loss.
    pub(super) fn remember_window(&mut self) {
        self.by_time.undo = Some(Undo { cwnd: self.cwnd, ssthresh: self.ssthresh, retransmitted: None });
    }

    /// Notes the timestamp of a retransmission.
    pub(super) fn note_retransmission(&mut self, stamp: u32) {
        if let Some(undo) = &mut self.by_time.undo {
            undo.retransmitted.get_or_insert(stamp);
        }
    }

    /// Undoes the last reduction if an acknowledgement of new data that echoes `echo` shows that no segment was lost. The
    /// first acknowledgement after the retransmission decides.
    fn undo_if_needless(&mut self, config: &TcpConfig, echo: u32) {
        let Some((undo, retransmitted)) = self.by_time.undo.and_then(|undo| Some((undo, undo.retransmitted?))) else {
            return;
        };
        self.by_time.undo = None;
        if !is_later(retransmitted, echo) {
            return;
        }
        self.cwnd = self.cwnd.max(undo.cwnd);
        self.ssthresh = self.ssthresh.max(undo.ssthresh);
        self.board.unmark_lost();
        self.flight = self.board.flight_bytes();
        self.phase = CongestionState::Open;
        self.sample_from = self.una;
        self.rto_ps = self.timeout_ps(config);
    }

    fn reordering_window(&self, config: &TcpConfig) -> u32 {
        let recovers = matches!(self.phase, CongestionState::Recovery | CongestionState::Loss);
        let srtt = (self.rtt.srtt_ns() * 1_000 / config.stamp_tick.ps()) as u32;
        self.board.reordering_window(recovers, srtt, u64::from(config.segment_bytes))
    }

    /// After a retransmission timeout, marks segments as lost (RFC 8985, 6.3).
    pub(super) fn mark_timed_out(&mut self, config: &TcpConfig, now_ps: u64) {
        let wait = self.reordering_window(config);
        self.board.mark_timed_out(config.stamp(now_ps), wait);
        self.by_time.probe_end = None;
        self.by_time.reordering = None;
        self.by_time.armed_high = 0;
    }

    /// Sends as much data as the window allows. The window is first reduced to the restart window if nothing was sent
    /// for longer than the retransmission timeout (RFC 5681, 4.1).
    pub(super) fn send_by_time(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        let is_idle = self.una >= self.high && now_ps > self.by_time.sent_ps.saturating_add(self.rto_ps);
        if config.restart_after_idle && is_idle {
            self.cwnd = self.cwnd.min(self.congestion.start_window(config.initial_window_bytes()));
        }
        let before = out.len();
        self.send_allowed(config, now_ps, out);
        self.count_sent(config, now_ps, &out[before..]);
        if config.recovery == Recovery::Rack {
            self.set_alarm(config, now_ps);
        }
    }

    fn count_sent(&mut self, config: &TcpConfig, now_ps: u64, sent: &[Wire]) {
        if !sent.is_empty() {
            self.by_time.sent_ps = now_ps;
            let bytes = sent.iter().map(|packet| u64::from(packet.payload_bytes(config.header_bytes)));
            self.by_time.sent_bytes += bytes.sum::<u64>();
        }
    }

    /// Sets the deadline to the earliest alarm, after an acknowledgement or new data.
    pub(super) fn set_alarm(&mut self, config: &TcpConfig, now_ps: u64) {
        let is_unchanged = self.by_time.armed_high == self.high;
        if self.deadline_ps == NEVER || self.una >= self.high || is_unchanged {
            return;
        }
        self.by_time.armed_high = self.high;
        if self.by_time.alarm == Alarm::Timeout {
            self.by_time.timeout_ps = self.deadline_ps;
        }
        let timeout_ps = self.by_time.timeout_ps;
        let (alarm, at_ps) = match self.by_time.reordering {
            Some(ticks) => (Alarm::Reordering, now_ps + u64::from(ticks) * config.stamp_tick.ps()),
            None if self.may_probe() => (Alarm::Probe, (now_ps + self.probe_after_ps(config)).min(timeout_ps)),
            None => (Alarm::Timeout, timeout_ps),
        };
        (self.by_time.alarm, self.deadline_ps) =
            if at_ps < timeout_ps { (alarm, at_ps) } else { (Alarm::Timeout, timeout_ps) };
    }

    /// Returns whether a tail loss probe may be scheduled (RFC 8985, 7.2): no segment is SACKed, the sender is not in
    /// recovery, and no probe is in flight.
    fn may_probe(&self) -> bool {
        self.phase == CongestionState::Open && self.board.sacked_bytes() == 0 && self.by_time.probe_end.is_none()
    }

    /// Returns the time until a tail loss probe (RFC 8985, 7.2).
    fn probe_after_ps(&self, config: &TcpConfig) -> u64 {
        if !self.rtt.is_sampled() {
            return PROBE_WITHOUT_SAMPLE_PS;
        }
        let is_single = self.outstanding() <= u64::from(config.segment_bytes);
        let delay_ps = if is_single { config.delayed_ack_timeout.ps() } else { 0 };
        2 * self.rtt.srtt_ns() * 1_000 + delay_ps
    }

    /// Processes an alarm before the retransmission timeout.
    pub(super) fn on_early_alarm(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        let alarm = self.by_time.alarm;
        // The retransmission timeout is the next alarm until another alarm is set.
        (self.by_time.alarm, self.deadline_ps) = (Alarm::Timeout, self.by_time.timeout_ps);
        self.by_time.armed_high = 0;
        if alarm == Alarm::Probe {
            self.probe(config, now_ps, out);
            return;
        }
        self.find_losses(config, now_ps);
        if self.phase == CongestionState::Recovery {
            self.reduce_in_proportion(config, 0, false);
        }
        self.pump(config, now_ps, out);
    }

    /// Sends a tail loss probe: new data if there is any, otherwise the last segment again (RFC 8985, 7.3). Then the
    /// retransmission timeout applies.
    fn probe(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        let before = out.len();
        let room = self.unused_window().min(u64::from(config.segment_bytes));
        let has_new = self.high < self.written && room > 0;
        if has_new {
            self.send_new(config, now_ps, room, out);
        } else if let Some(index) = self.board.last_unsacked() {
            self.retransmit(config, now_ps, index, config.segment_bytes, out);
        }
        self.count_sent(config, now_ps, &out[before..]);
        self.by_time.probe_end = Some(self.high);
        self.by_time.probe_is_retransmission = !has_new;
        self.by_time.armed_high = self.high;
        self.rto_ps = self.timeout_ps(config);
        self.start_timer(now_ps);
    }

    /// Determines whether an acknowledgement shows that the last probe repaired a loss. If so, reduces the window (RFC
    /// 8985, 7.4). `is_repeated` is set if the acknowledgement delivers nothing.
    fn judge_probe(&mut self, config: &TcpConfig, is_repeated: bool) {
        let Some(end) = self.by_time.probe_end.filter(|&end| self.una >= end) else { return };
        let repaired = self.by_time.probe_is_retransmission && self.una > end;
        if !self.by_time.probe_is_retransmission || self.una > end || is_repeated {
            self.by_time.probe_end = None;
        }
        if repaired && self.phase == CongestionState::Open {
            self.reduce_for_loss(config);
            self.cwnd = self.ssthresh;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::congestion::{Congestion, CongestionAlgorithm, cubic, dctcp};
    use super::super::super::{Follow, Recovery, TcpConfig};
    use super::super::CongestionState;
    use super::*;
    use crate::packet::wire::{Block, flag};
    use crate::units::{Rate, Time};

    const SEGMENT: u64 = 1_000;
    const MS: u64 = 1_000_000_000;

    /// A scripted sender with an initial window of ten segments of 1000 bytes.
    struct Script {
        config: TcpConfig,
        sender: Sender,
    }

    impl Script {
        /// Opens a connection whose handshake takes `rtt_ms` milliseconds.
        fn new(rtt_ms: u64) -> Self {
            let base = TcpConfig::over(4, Rate::from_bps(10_000_000_000).unwrap(), Time::from_ps(1_000_000));
            let rules = cubic::Parameters { byte_counting: true, as_linux: true, ..Default::default() };
            let algorithm = CongestionAlgorithm::Cubic(rules);
            let recovery = Recovery::Rack;
            let stamp_tick = recovery.stamp_tick().unwrap();
            let config =
                TcpConfig { segment_bytes: 1_000, algorithm, recovery, stamp_tick, follow: Follow::Standards, ..base }
                    .with_linux_timers();
            let mut sender = Sender::new(&config, config.window, Wire { wire_bytes: 54, ..Wire::NOTHING });
            sender.connect(&config, 0, &mut Vec::new());
            let syn_ack = Wire { flags: flag::SYN | flag::REVERSE, ..Wire::NOTHING };
            sender.on_syn_ack(&config, rtt_ms * MS, &syn_ack, &mut Vec::new());
            Self { config, sender }
        }

        /// Returns the numbers of the segments in `out`, counted from 0.
        fn numbers(out: &[Wire]) -> Vec<u64> {
            out.iter().map(|packet| packet.number() / SEGMENT).collect()
        }

        /// Writes this number of segments at `at_ms`. Returns the numbers of the segments that are sent.
        fn write(&mut self, at_ms: u64, segments: u64) -> Vec<u64> {
            let mut out = Vec::new();
            self.sender.write(segments * SEGMENT);
            self.sender.pump(&self.config, at_ms * MS, &mut out);
            Self::numbers(&out)
        }

        /// Delivers an acknowledgement of all segments below `next`, with SACK blocks in segment numbers. It echoes the
        /// timestamp of `echo_ms`. Returns the numbers of the segments that are sent.
        fn ack(&mut self, (at_ms, echo_ms): (u64, u64), next: u64, blocks: &[(u64, u64)]) -> Vec<u64> {
            let mut out = Vec::new();
            let blocks: Vec<Block> = blocks.iter().map(|&(start, end)| (start * SEGMENT, end * SEGMENT)).collect();
            let echo = self.config.stamp(echo_ms * MS);
            let packet = Wire { flags: flag::REVERSE, ..Wire::NOTHING }.numbered(next * SEGMENT).stamped(echo);
            self.sender.on_ack(&self.config, at_ms * MS, &packet, &blocks, &mut out);
            Self::numbers(&out)
        }

        /// Expires the alarm at its deadline. Returns the deadline in us and the numbers of the segments that are sent.
        fn expire(&mut self) -> (u64, Vec<u64>) {
            let mut out = Vec::new();
            let at_ps = self.sender.deadline_ps;
            self.sender.on_timeout(&self.config, at_ps, false, &mut out);
            (at_ps / 1_000_000, Self::numbers(&out))
        }
    }

    /// Segments 0 to 3 of ten are lost. From the third SACK on, each SACK releases one retransmission (RFC 9937).
    /// Afterwards the window is 0.7 of ten segments. The steps are those of packetdrill's prr-ss-30pkt-lost1_4, commit
    /// 2c4001c4.
    #[test]
    fn each_sack_releases_one_of_four_retransmissions() {
        let mut script = Script::new(10);
        assert_eq!(script.write(10, 10), (0..10).collect::<Vec<_>>());
        let sent: Vec<_> =
            (5..=10).map(|end| script.ack((if end == 5 { 20 } else { 22 }, 10), 0, &[(4, end)])).collect();
        assert_eq!(sent, [vec![], vec![], vec![0], vec![1], vec![2], vec![3]]);
        for next in [1, 2, 3, 10] {
            assert_eq!(script.ack((32, 22), next, if next < 10 { &[(4, 10)] } else { &[] }), []);
        }
        assert_eq!(script.sender.phase, CongestionState::Open);
        assert_eq!(script.write(42, 10), (10..17).collect::<Vec<_>>());
    }

    /// Ten of twenty segments are lost. While more than ssthresh bytes are in flight, PRR sends in proportion to the
    /// delivered bytes; below ssthresh, it sends one segment more than was delivered. The steps are those of
    /// packetdrill's prr-ss-30pkt-lost-1_4-11_16.
    #[test]
    fn recovery_of_ten_losses_has_three_phases() {
        let mut script = Script::new(10);
        script.write(10, 20);
        assert_eq!(script.ack((20, 10), 0, &[(4, 5)]), [10]);
        assert_eq!(script.ack((22, 10), 0, &[(4, 6)]), [11]);
        for (at_ms, end, sent) in [(24, 7, 0), (26, 8, 1), (28, 9, 2), (30, 10, 3)] {
            assert_eq!(script.ack((at_ms, 10), 0, &[(4, end)]), [sent], "{end}");
        }
        assert_eq!(script.ack((32, 20), 0, &[(4, 11)]), [12]);
        assert_eq!(script.ack((34, 22), 0, &[(4, 12)]), [13]);
        assert_eq!(script.ack((44, 24), 1, &[(4, 12)]), [14, 15]);
        // Segment 1 was retransmitted before segment 2, and only segment 2 has arrived. RACK sends segment 1 again.
        assert_eq!(script.ack((46, 28), 1, &[(2, 12)]), [1, 16]);
        assert_eq!(script.ack((48, 32), 1, &[(2, 13)]), [17]);
        assert_eq!(script.ack((50, 34), 1, &[(2, 14)]), [18]);
    }

    /// The SACK of one segment is no evidence of a loss yet. A quarter of the round trip later, all segments below it
    /// count as lost. The steps are those of packetdrill's sack-shift-sacked-7-5-6-8-9-fack.
    #[test]
    fn a_segment_is_lost_a_quarter_of_a_round_trip_after_later_ones_arrive() {
        let mut script = Script::new(100);
        script.write(100, 10);
        assert_eq!(script.ack((200, 100), 0, &[(7, 8)]), []);
        assert_eq!(script.sender.phase, CongestionState::Disorder);
        assert_eq!(script.expire(), (225_000, vec![0]));
        assert_eq!(script.sender.board.lost_bytes(), 7 * SEGMENT);
        for (blocks, sent, lost) in
            [(&[(5, 6), (7, 8)][..], 1, 6), (&[(5, 8)], 2, 5), (&[(5, 9)], 3, 5), (&[(5, 10)], 4, 5)]
        {
            assert_eq!(script.ack((227, 100), 0, blocks), [sent]);
            assert_eq!(script.sender.board.lost_bytes(), lost * SEGMENT);
        }
        assert_eq!(script.ack((327, 227), 10, &[]), []);
        assert_eq!(script.sender.phase, CongestionState::Open);
    }

    /// The last of three segments is lost. The probe retransmits it before the retransmission timeout.
    #[test]
    fn a_probe_repairs_a_lost_tail_and_reduces_the_window() {
        let mut script = Script::new(10);
        script.write(10, 3);
        assert_eq!(script.ack((20, 10), 2, &[]), []);
        // The probe waits for two round trips of 10 ms after 20 ms, and for another 40 ms because the acknowledgement
        // of a single segment in flight may be delayed.
        assert_eq!(script.expire(), (80_000, vec![2]));
        assert_eq!(script.ack((90, 80), 3, &[]), []);
        let before = script.sender.cwnd;
        assert_eq!((script.sender.timeouts, script.sender.deadline_ps), (0, NEVER));
        // The next acknowledgement of new data shows that the probe repaired a loss (RFC 8985, 7.4.2).
        script.write(100, 2);
        script.ack((110, 100), 5, &[]);
        assert!(script.sender.cwnd < before, "{} < {before}", script.sender.cwnd);
    }

    /// If the probe is lost as well, the retransmission timeout follows.
    #[test]
    fn a_lost_probe_is_followed_by_the_timeout() {
        let mut script = Script::new(10);
        script.write(10, 1);
        assert_eq!(script.expire(), (70_000, vec![0]));
        // The minimum retransmission timeout of 200 ms counts from the probe.
        assert_eq!(script.expire(), (270_000, vec![0]));
        assert_eq!((script.sender.timeouts, script.sender.phase), (1, CongestionState::Loss));
    }

    /// The timeout was too early: the acknowledgement of the original segments arrives after the retransmission of the
    /// first one. Its timestamp tells it from the acknowledgement of the retransmission.
    #[test]
    fn a_reduction_for_delayed_acknowledgements_is_undone() {
        for (echo_ms, is_undone) in [(10, true), (230, false)] {
            let mut script = Script::new(10);
            script.write(10, 10);
            let (cwnd, ssthresh) = (script.sender.cwnd, script.sender.ssthresh);
            // The first alarm is the tail loss probe, the second one the timeout.
            assert_eq!(script.expire().1, [9]);
            assert_eq!(script.expire().1, [0]);
            assert_eq!((script.sender.phase, script.sender.cwnd), (CongestionState::Loss, SEGMENT));
            script.ack((300, echo_ms), 5, &[]);
            assert_eq!(script.sender.phase == CongestionState::Open, is_undone, "echo {echo_ms}");
            assert_eq!(script.sender.cwnd >= cwnd && script.sender.ssthresh == ssthresh, is_undone, "echo {echo_ms}");
            assert_eq!(script.sender.board.lost_bytes() == 0, is_undone, "echo {echo_ms}");
        }
    }

    #[test]
    fn a_reduction_for_reordered_segments_is_undone() {
        for (echo_ms, is_undone) in [(10, true), (20, false)] {
            let mut script = Script::new(10);
            script.write(10, 10);
            let cwnd = script.sender.cwnd;
            assert_eq!(script.ack((20, 10), 0, &[(1, 4)]), [0]);
            assert_eq!(script.sender.phase, CongestionState::Recovery);
            script.ack((21, echo_ms), 4, &[]);
            assert_eq!(script.sender.cwnd >= cwnd, is_undone, "echo {echo_ms}");
            assert_eq!(script.sender.phase == CongestionState::Open, is_undone, "echo {echo_ms}");
        }
    }

    fn window(script: &Script) -> u64 {
        script.sender.cwnd / SEGMENT
    }

    /// A window that was full grows in slow start while its data are acknowledged, although nothing follows; one that was
    /// used by 9 of 10 segments grows to twice 9. The steps are those of packetdrill's slow-start-app-limited and
    /// slow-start-app-limited-9-packets-out.
    #[test]
    fn slow_start_grows_to_twice_what_was_in_flight() {
        for (written, windows) in [(10, [12, 14, 16, 18, 20]), (9, [12, 14, 16, 18, 18])] {
            let mut script = Script::new(100);
            script.write(100, written);
            for (step, expected) in windows.into_iter().enumerate() {
                let next = (2 * (step as u64 + 1)).min(written);
                script.ack((205 + 5 * step as u64, 100), next, &[]);
                assert_eq!(window(&script), expected, "{written} segments, {next} acknowledged");
            }
        }
    }

    /// After a timeout of one segment at a window of ten, slow start begins at one segment and ends at seven, 0.7 of the
    /// window. The steps are those of packetdrill's cubic-rto-ss-ca-cwnd-bump.
    #[test]
    fn a_timeout_leaves_seven_tenths_of_the_window_as_ssthresh() {
        let mut script = Script::new(100);
        script.write(100, 1);
        assert_eq!(script.ack((200, 100), 1, &[]), []);
        assert_eq!(script.write(200, 1), [1]);
        while script.sender.phase != CongestionState::Loss {
            assert_eq!(script.expire().1, [1]);
        }
        assert_eq!((window(&script), script.sender.ssthresh), (1, 7 * SEGMENT));
        let sent_ms = script.sender.by_time.sent_ps / MS;
        script.ack((sent_ms + 100, sent_ms), 2, &[]);
        assert_eq!((window(&script), script.write(sent_ms + 100, 200)), (2, vec![2, 3]));
        let mut at_ms = sent_ms + 200;
        for (next, expected) in
            [(3, vec![4, 5]), (4, vec![6, 7]), (5, vec![8, 9]), (6, vec![10, 11]), (7, vec![12, 13])]
        {
            assert_eq!(script.ack((at_ms, at_ms - 100), next, &[]), expected, "{next}");
            at_ms += 2;
        }
        assert_eq!(window(&script), 7);
        for (next, expected) in [(8, 14), (9, 15), (10, 16), (11, 17), (12, 18)] {
            assert_eq!(script.ack((at_ms, at_ms - 100), next, &[]), [expected], "{next}");
            at_ms += 2;
        }
    }

    /// A lost retransmission is detected by the delivery of data that was sent after it.
    #[test]
    fn a_lost_retransmission_is_sent_again_without_a_timeout() {
        let mut script = Script::new(10);
        script.write(10, 20);
        assert_eq!(script.ack((20, 10), 0, &[(1, 4)]), [0]);
        let sent = script.ack((30, 10), 0, &[(1, 10)]);
        assert_eq!(sent[0], 10);
        // Segment 10 was sent 10 ms after the retransmission of segment 0, and is delivered.
        let sent = script.ack((41, 30), 0, &[(1, 11)]);
        assert_eq!((sent[0], script.sender.timeouts), (0, 0));
    }

    /// After an idle time longer than the retransmission timeout, the window is the initial window (RFC 5681, 4.1).
    #[test]
    fn an_idle_connection_restarts_from_the_initial_window() {
        for (restarts, idle_ms, window) in [(true, 150, 20), (true, 1_000, 10), (false, 1_000, 20)] {
            let mut script = Script::new(10);
            script.config.restart_after_idle = restarts;
            script.write(10, 10);
            script.ack((20, 10), 10, &[]);
            assert_eq!(script.write(20 + idle_ms, 40).len(), window);
        }
    }

    /// DCTCP reduces its window for a loss even if marks have already reduced it for the same data (RFC 8257, 3.5).
    /// CUBIC reduces it only once (RFC 3168, 6.1.2). Recovery by time and RFC 6675 have the same rule.
    #[test]
    fn a_loss_after_a_mark_reduces_the_window_again_only_with_dctcp() {
        let cubic = CongestionAlgorithm::Cubic(cubic::Parameters::default());
        for (algorithm, reduces) in [(CongestionAlgorithm::Dctcp(dctcp::Parameters::default()), true), (cubic, false)] {
            let mut script = Script::new(10);
            script.config.algorithm = algorithm;
            script.sender.congestion = Congestion::new(&algorithm, script.config.window.0);
            script.write(10, 20);
            // A mark has reduced the window for all data in flight.
            script.sender.cwr_end = script.sender.high;
            script.sender.ssthresh = 10 * SEGMENT;
            script.ack((20, 10), 0, &[(1, 4)]);
            assert_eq!(script.sender.phase, CongestionState::Recovery);
            assert_eq!(script.sender.ssthresh < 10 * SEGMENT, reduces, "{algorithm:?}");
        }
    }
}
