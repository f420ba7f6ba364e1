//! The sending endpoint.
//!
//! The states of congestion control are those of RFC 6675 and Linux: open, disorder (duplicate acknowledgements, but no
//! known loss), recovery (from fast retransmit until the recovery point is acknowledged), and loss (after a timeout).
//!
//! The sender deviates from the RFCs only where ns-3.37 does: see [`super::sack::Scoreboard`], [`Recovery`], and the
//! comments that mention ns-3. Behaviour that depends on [`Follow`] deviates only with [`Follow::Ns3`].
//!
//! The file is longer than 600 lines because recovery, ECN, the window and the timer all read and write the state of
//! one connection.

mod by_time;

use super::congestion::{Ack, Congestion, CongestionWindow, Echo, Ecn};
use super::rtt::Rtt;
use super::sack::Scoreboard;
use super::{Follow, Recovery, TcpConfig};
use crate::packet::wire::{Block, Wire, flag};
use crate::trace::Window;
use crate::units::Bytes;

/// Number of duplicate acknowledgements that start recovery (RFC 5681).
const DUP_ACKS: u32 = 3;
/// Deadline of a timer that is not running.
pub(crate) const NEVER: u64 = u64::MAX;
/// Maximum retransmission timeout (RFC 6298 (2.5)), in ps.
const RTO_MAX_PS: u64 = 60_000_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SenderState {
    SynSent,
    Established,
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CongestionState {
    Open,
    Disorder,
    Recovery,
    Loss,
}

/// The event for which the deadline of a sender is set, if the sender detects losses by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alarm {
    /// The retransmission timeout.
    Timeout,
    /// A tail loss probe is due (RFC 8985, 7.3).
    Probe,
    /// A segment counts as lost from now on (RFC 8985, 6.2, step 5).
    Reordering,
}

/// The sending endpoint of one connection. Fields are in the order of use.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Sender {
    /// First unacknowledged byte (SND.UNA).
    una: u64,
    /// First byte never sent (HighData).
    high: u64,
    /// End of the data that the application has written, as a stream offset.
    written: u64,
    pub cwnd: u64,
    pub ssthresh: u64,
    /// Recovery point (RFC 6675).
    recover: u64,
    /// Bytes in flight (RFC 6675's pipe), as last computed.
    flight: u64,
    /// Time at which the retransmission timer expires.
    pub deadline_ps: u64,
    rto_ps: u64,
    /// Maximum number of bytes in flight, regardless of the congestion window.
    window_bytes: u64,
    /// Maximum number of bytes in flight until data is first acknowledged. It is lower than `window_bytes`, because the
    /// window field of a SYN is not scaled (RFC 7323, 2.2).
    first_window_bytes: u64,
    /// Stream offset below which segments give no round-trip sample, because they may have been sent before a timeout.
    sample_from: u64,
    rtt: Rtt,
    /// Acknowledged bytes that do not yet make up a full segment.
    odd_bytes: u64,
    dup_acks: u32,
    pub state: SenderState,
    phase: CongestionState,
    /// Whether the application has closed the stream, so that the last segment carries FIN.
    pub closing: bool,
    fin_sent: bool,
    recover_active: bool,
    first_partial_ack: bool,
    /// Whether ECN has been negotiated.
    ecn: bool,
    /// ECN flags of new segments: ECT, and CWR on the first segment after a reduction (RFC 3168, 6.1.2).
    fresh_flags: u8,
    /// Whether the current acknowledgement carries ECE.
    echoed: bool,
    congestion: Congestion,
    /// Template of every packet.
    pub template: Wire,
    board: Scoreboard,
    /// Free space for this connection in its NIC, in bytes on the wire. The caller sets it before each event.
    pub room_bytes: u64,
    /// Stream offset up to which ECE is ignored, because the window was already reduced for that data (RFC 3168,
    /// 6.1.2).
    cwr_end: u64,
    syn_count: u32,
    pub retransmits: u64,
    pub timeouts: u64,
    by_time: by_time::State,
}

impl Sender {
    /// Creates a sender with at most `window` bytes in flight.
    pub fn new(config: &TcpConfig, window: Bytes, template: Wire) -> Self {
        let congestion = Congestion::new(&config.algorithm, config.window.0);
        Self {
            state: SenderState::SynSent,
            phase: CongestionState::Open,
            template,
            una: 0,
            high: 0,
            written: 0,
            closing: false,
            fin_sent: false,
            cwnd: congestion.start_window(config.initial_window_bytes()),
            ssthresh: u64::MAX,
            dup_acks: 0,
            recover: 0,
            recover_active: false,
            first_partial_ack: true,
            odd_bytes: 0,
            flight: 0,
            board: if config.recovery == Recovery::Rack { Scoreboard::by_time() } else { Scoreboard::default() },
            congestion,
            window_bytes: window.0,
            first_window_bytes: if config.algorithm.keeps_to_syn_window() {
                window.0.min(u64::from(u16::MAX))
            } else {
                window.0
            },
            room_bytes: u64::MAX,
            ecn: false,
            fresh_flags: 0,
            echoed: false,
            cwr_end: 0,
            rtt: Rtt::new(config.initial_rtt.ps() / 1000),
            sample_from: 0,
            rto_ps: 0,
            deadline_ps: NEVER,
            syn_count: 0,
            retransmits: 0,
            timeouts: 0,
            by_time: by_time::State::default(),
        }
    }

    /// Assigns `band` to later packets.
    pub fn set_band(&mut self, band: u8) {
        self.template = self.template.in_band(band);
    }

    /// Returns the number of bytes that are written but not acknowledged.
    pub fn backlog(&self) -> u64 {
        self.written.saturating_sub(self.una)
    }

    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the congestion window, ssthresh and the bytes in flight, for probes.
    pub fn window(&self) -> Window {
        let ssthresh = (self.ssthresh != u64::MAX).then_some(Bytes(self.ssthresh));
        Window { cwnd: Bytes(self.cwnd), ssthresh, flight: Bytes(self.high.saturating_sub(self.una)) }
    }

    pub fn is_closed(&self) -> bool {
        self.state == SenderState::Closed
    }

    pub fn is_established(&self) -> bool {
        self.state == SenderState::Established
    }

    /// Adds `bytes` to the stream. [`Sender::pump`] sends them.
    pub fn write(&mut self, bytes: u64) {
        self.written += bytes;
    }

    /// Sends or retransmits the SYN.
    pub fn connect(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        let backoff = 1_u64 << self.syn_count.min(20);
        self.syn_count += 1;
        self.rto_ps = config.connect_timeout.ps().saturating_mul(backoff).min(RTO_MAX_PS);
        self.start_timer(now_ps);
        // RFC 3168, 6.1.1.
        let flags = flag::SYN | if config.ecn { flag::ECE | flag::CWR } else { 0 };
        let syn = Wire { wire_bytes: config.syn_bytes, flags, ..self.template };
        out.push(syn.stamped(config.stamp(now_ps)));
    }

    /// Processes a SYN-ACK. Returns whether it is the first.
    pub fn on_syn_ack(&mut self, config: &TcpConfig, now_ps: u64, ack: &Wire, out: &mut Vec<Wire>) -> bool {
        if self.state != SenderState::SynSent {
            if config.follow == Follow::Ns3 {
                // In ns-3, every SYN-ACK sets the window, even one that was retransmitted because the last packet of
                // the handshake was lost.
                self.cwnd = self.congestion.start_window(config.initial_window_bytes());
                self.ssthresh = u64::MAX;
            }
            return false;
        }
        self.state = SenderState::Established;
        self.deadline_ps = NEVER;
        if config.ecn && ack.flags & (flag::ECE | flag::CWR) == flag::ECE {
            self.ecn = true;
            self.fresh_flags = flag::ECT;
        }
        self.sample(config, now_ps, ack.stamp());
        self.acknowledge(config, now_ps, out);
        true
    }

    /// Sends a pure acknowledgement of the receiver's SYN or FIN.
    fn acknowledge(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        let number = self.high + u64::from(self.fin_sent);
        out.push(self.template.numbered(number).stamped(config.stamp(now_ps)));
    }

    fn sample(&mut self, config: &TcpConfig, now_ps: u64, echo: u32) {
        let ticks = u64::from(config.stamp(now_ps).wrapping_sub(echo));
        // As in ns-3, a round trip within one tick counts as 1 us.
        let rtt_ns = if ticks == 0 { 1_000 } else { ticks * config.stamp_tick.ps() / 1_000 };
        self.rtt.sample(rtt_ns);
        self.rto_ps = self.timeout_ps(config);
    }

    fn timeout_ps(&self, config: &TcpConfig) -> u64 {
        (self.rtt.timeout_ns(1) * 1_000).max(config.min_rto.ps())
    }

    /// Processes an acknowledgement and its SACK blocks. Returns whether the acknowledgement closes the connection.
    pub fn on_ack(
        &mut self,
        config: &TcpConfig,
        now_ps: u64,
        ack: &Wire,
        blocks: &[Block],
        out: &mut Vec<Wire>,
    ) -> bool {
        if self.state != SenderState::Established {
            return false;
        }
        let acknowledged = ack.number_near(self.una);
        let end = self.high + u64::from(self.fin_sent);
        // ns-3 drops an acknowledgement that was overtaken by a later one, unless the sender has sent its FIN.
        let drops_old = config.follow == Follow::Ns3 && !self.fin_sent;
        if acknowledged > end || (acknowledged < self.una && drops_old) {
            return false;
        }
        if acknowledged > self.una && self.una >= self.sample_from && !self.board.head_retransmitted() {
            self.sample(config, now_ps, ack.stamp());
        }
        let by_time = config.recovery == Recovery::Rack;
        if by_time {
            self.board.begin_ack(config.stamp(now_ps));
        }
        let sacked_before = self.board.sacked_bytes();
        let sacked = if blocks.is_empty() { 0 } else { self.board.sack(blocks, config.follow) };
        // RFC 6675, section 2: an acknowledgement that newly SACKs data is a duplicate, even if its cumulative
        // acknowledgement is lower than the last one.
        let is_old = acknowledged < self.una;
        if is_old && (sacked == 0 || config.follow == Follow::Ns3) {
            return false;
        }
        let acknowledged = acknowledged.max(self.una);
        let before = self.una;
        let duplicate = sacked > 0 || (config.recovery == Recovery::Ns330 && self.board.reports_segments(blocks.len()));
        self.board.discard(acknowledged);
        self.una = acknowledged;
        self.flight = self.board.flight_bytes();
        if self.ecn && !is_old {
            self.on_echo(config, acknowledged - before, ack.flags & flag::ECE != 0);
        }
        if by_time {
            let delivered = acknowledged - before + self.board.sacked_bytes() - sacked_before;
            self.process_by_time(config, now_ps, before, (delivered, ack.stamp()));
        } else {
            self.process(config, now_ps, before, duplicate, out);
        }
        self.pump(config, now_ps, out);
        self.congestion.on_sent(&self.congestion_window(config), self.flight);
        if self.fin_sent && ack.flags & flag::FIN != 0 && acknowledged == end {
            self.state = SenderState::Closed;
            self.deadline_ps = NEVER;
            self.acknowledge(config, now_ps, out);
            return true;
        }
        false
    }

    /// Processes an acknowledgement by RFC 6675, section 5, up to step (C). `before` is the value of SND.UNA before the
    /// acknowledgement.
    fn process(&mut self, config: &TcpConfig, now_ps: u64, before: u64, duplicate: bool, out: &mut Vec<Wire>) {
        if duplicate {
            self.on_duplicate(config, now_ps, out);
        }
        if self.una == before {
            return;
        }
        let segment = u64::from(config.segment_bytes);
        let acknowledged = self.una - before;
        let mut segments = self.whole_segments(acknowledged, segment);
        if !duplicate {
            self.dup_acks = 0;
        }
        if self.una < self.recover && self.phase == CongestionState::Recovery {
            self.on_partial(config, now_ps, segments, out);
            return;
        }
        if self.una < self.recover && self.phase == CongestionState::Loss {
            self.grow(config, segments, now_ps);
            self.restart_timer(config, now_ps);
            return;
        }
        let early = config.recovery == Recovery::Ns330;
        match self.phase {
            CongestionState::Open => {}
            CongestionState::Disorder if duplicate => {}
            CongestionState::Disorder => self.phase = CongestionState::Open,
            CongestionState::Recovery => {
                self.first_partial_ack = true;
                segments = if early { 0 } else { acknowledged / segment };
                self.phase = CongestionState::Open;
                self.dup_acks = 0;
                self.cwnd = self.ssthresh;
            }
            CongestionState::Loss => {
                self.first_partial_ack = true;
                segments = (self.una - self.recover) / segment;
                self.phase = CongestionState::Open;
            }
        }
        if self.una >= self.recover {
            self.recover_active = false;
        }
        if self.phase == CongestionState::Open || early {
            self.grow(config, segments, now_ps);
            self.restart_timer(config, now_ps);
        }
    }

    /// Returns the number of segments that `acknowledged` bytes complete, and carries the remainder over.
    #[inline]
    fn whole_segments(&mut self, acknowledged: u64, segment: u64) -> u64 {
        let mut segments = acknowledged / segment;
        self.odd_bytes += acknowledged % segment;
        if self.odd_bytes >= segment {
            segments += 1;
            self.odd_bytes -= segment;
        }
        segments
    }

    #[inline]
    fn congestion_window(&self, config: &TcpConfig) -> CongestionWindow {
        let segment_bytes = u64::from(config.segment_bytes);
        CongestionWindow { cwnd: self.cwnd, ssthresh: self.ssthresh, segment_bytes }
    }

    fn grow(&mut self, config: &TcpConfig, segments: u64, now_ps: u64) {
        if self.echoed {
            // RFC 3168, 6.1.2: an acknowledgement with ECE does not increase the window.
            return;
        }
        let (rtt_ns, srtt_ns) = (self.rtt.latest_ns(), self.rtt.srtt_ns());
        let ack = Ack { now_ps, rtt_ns, srtt_ns, una: self.una, high: self.high, segments };
        let mut window = self.congestion_window(config);
        self.congestion.on_ack(&mut window, &ack);
        (self.cwnd, self.ssthresh) = (window.cwnd, window.ssthresh);
    }

    /// Processes the ECE flag of an acknowledgement of `bytes` new bytes (RFC 3168, 6.1.2). The window is reduced at
    /// most once per window of data.
    fn on_echo(&mut self, config: &TcpConfig, bytes: u64, ece: bool) {
        self.echoed = ece;
        self.congestion.on_echo(&Echo { una: self.una, high: self.high, bytes, is_marked: ece });
        // In recovery and after a timeout, the window has been reduced already.
        if !ece || self.una <= self.cwr_end || !matches!(self.phase, CongestionState::Open | CongestionState::Disorder)
        {
            return;
        }
        // Subtracts with saturation, because the acknowledgement of a FIN moves SND.UNA one beyond the last byte.
        let outstanding = (self.high + bytes).saturating_sub(self.una);
        let window = self.congestion_window(config);
        if let Some(ssthresh) = self.congestion.on_mark(&window, outstanding.min(self.cwnd)) {
            self.ssthresh = ssthresh;
            self.cwnd = ssthresh;
            self.on_reduced();
        }
    }

    /// After any reduction of the window, sends CWR to the receiver and ignores marks of data in flight.
    fn on_reduced(&mut self) {
        if self.ecn {
            self.fresh_flags |= flag::CWR;
            self.cwr_end = self.high;
        }
    }

    /// Processes an acknowledgement that newly SACKs data (RFC 6675, section 5).
    fn on_duplicate(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        match self.phase {
            CongestionState::Loss => {}
            CongestionState::Recovery => self.cwnd = self.ssthresh,
            CongestionState::Open | CongestionState::Disorder => {
                self.phase = CongestionState::Disorder;
                self.dup_acks += 1;
                let third = self.dup_acks == DUP_ACKS && (self.una >= self.recover || !self.recover_active);
                if third || self.board.is_lost(self.una + u64::from(config.segment_bytes)) {
                    self.enter_recovery(config, now_ps, out);
                }
            }
        }
    }

    /// Returns the FlightSize of RFC 5681, equation (4): all outstanding data except data sent by limited transmit (RFC
    /// 6675, step (4.2)). Before recovery, limited transmit accounts for all data beyond the window. ns-3 uses RFC
    /// 6675's pipe instead, which excludes SACKed and lost data.
    fn flight_size(&self, config: &TcpConfig) -> u64 {
        let outstanding = self.outstanding();
        match (config.follow, self.phase) {
            (Follow::Ns3, _) => self.board.flight_bytes(),
            (Follow::Standards, CongestionState::Recovery) => outstanding,
            (Follow::Standards, _) => outstanding.min(self.cwnd),
        }
    }

    fn ssthresh_after_timeout(&mut self, config: &TcpConfig) -> u64 {
        // RFC 5681, 3.1: ssthresh stays the same if the timer expires again for the same segment.
        let again = self.phase == CongestionState::Loss && self.board.head_retransmitted();
        if again && config.follow == Follow::Standards {
            return self.ssthresh;
        }
        let flight_size = self.flight_size(config);
        let ssthresh = self.congestion.on_timeout(&self.congestion_window(config), flight_size);
        // Recovery has already reduced ssthresh for the same losses. RFC 5681, equation (4), is an upper bound, so the
        // smaller value applies.
        let is_reduced = self.phase == CongestionState::Recovery && config.follow == Follow::Standards;
        if is_reduced { ssthresh.min(self.ssthresh) } else { ssthresh }
    }

    /// Starts recovery (RFC 6675, step (4)). The window is ssthresh until recovery ends.
    fn enter_recovery(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        if !self.board.head_lost() {
            self.board.mark_head_lost();
        }
        self.reduce_for_loss(config);
        self.recover = self.high;
        self.recover_active = true;
        self.phase = CongestionState::Recovery;
        self.flight = self.board.flight_bytes();
        self.cwnd = self.ssthresh;
        self.retransmit_one(config, now_ps, out);
    }

    /// Reduces ssthresh for a loss, unless a mark has already reduced it for the same data.
    fn reduce_for_loss(&mut self, config: &TcpConfig) {
        if self.una >= self.cwr_end || config.algorithm.ecn() == Ecn::Scalable {
            let (flight_size, outstanding) = (self.flight_size(config), self.outstanding());
            self.ssthresh = self.congestion.on_loss(&self.congestion_window(config), flight_size, outstanding);
            self.on_reduced();
        }
    }

    /// Returns the bytes sent but not acknowledged; 0 if the FIN was acknowledged, which is one beyond the last byte.
    #[inline]
    fn outstanding(&self) -> u64 {
        self.high.saturating_sub(self.una)
    }

    /// Processes an acknowledgement below the recovery point (RFC 6675, step (B)).
    fn on_partial(&mut self, config: &TcpConfig, now_ps: u64, segments: u64, out: &mut Vec<Wire>) {
        if segments >= 1 {
            self.cwnd = self.ssthresh;
        }
        if config.recovery == Recovery::Ns330 {
            self.board.forget_head_retransmission();
            self.retransmit_one(config, now_ps, out);
        } else if !self.board.retransmitted_up_to(self.una + u64::from(config.segment_bytes)) {
            self.retransmit_one(config, now_ps, out);
        }
        // RFC 6582, 3.2 (4): only the first partial acknowledgement restarts the timer.
        if self.first_partial_ack {
            self.restart_timer(config, now_ps);
        }
        self.first_partial_ack = false;
    }

    fn restart_timer(&mut self, config: &TcpConfig, now_ps: u64) {
        let outstanding = self.una < self.written || self.fin_sent;
        self.rto_ps = self.timeout_ps(config);
        if outstanding {
            self.start_timer(now_ps);
        } else {
            self.deadline_ps = NEVER;
        }
    }

    #[inline]
    fn start_timer(&mut self, now_ps: u64) {
        self.deadline_ps = now_ps + self.rto_ps;
    }

    /// Processes the expiry of the retransmission timer. `peer_aborted` is set if the receiver has finished and all its
    /// FINs were dropped.
    pub fn on_timeout(&mut self, config: &TcpConfig, now_ps: u64, peer_aborted: bool, out: &mut Vec<Wire>) {
        self.deadline_ps = NEVER;
        match self.state {
            SenderState::Closed => return,
            SenderState::SynSent => return self.connect(config, now_ps, out),
            SenderState::Established => {}
        }
        if self.una >= self.written {
            if self.fin_sent {
                self.rto_ps = (2 * self.rto_ps).min(RTO_MAX_PS);
                self.start_timer(now_ps);
                // In ns-3, a sender whose FIN was acknowledged waits for ever.
                if peer_aborted || self.una == self.high {
                    self.send_fin(config, now_ps, out);
                }
            }
            return;
        }
        if self.by_time.alarm != Alarm::Timeout {
            return self.on_early_alarm(config, now_ps, out);
        }
        self.timeouts += 1;
        if config.recovery == Recovery::Rack && matches!(self.phase, CongestionState::Open | CongestionState::Disorder)
        {
            self.remember_window();
        }
        self.ssthresh = self.ssthresh_after_timeout(config);
        self.dup_acks = 0;
        if config.recovery == Recovery::Rack {
            self.mark_timed_out(config, now_ps);
        } else {
            self.board.mark_all_lost();
        }
        self.recover = self.high;
        self.recover_active = true;
        self.rto_ps = (2 * self.rto_ps).min(RTO_MAX_PS);
        self.sample_from = self.high;
        self.phase = CongestionState::Loss;
        self.cwnd = self.congestion.start_window(u64::from(config.segment_bytes));
        self.on_reduced();
        self.pump(config, now_ps, out);
    }

    /// Sends as much as the window allows (RFC 6675, step (C)).
    #[inline]
    pub fn pump(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        if config.restart_after_idle || config.recovery == Recovery::Rack {
            self.send_by_time(config, now_ps, out);
        } else {
            self.send_allowed(config, now_ps, out);
        }
    }

    fn send_allowed(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        if self.state != SenderState::Established {
            return;
        }
        if self.una >= self.written {
            if self.closing && !self.fin_sent {
                self.fin_sent = true;
                self.rto_ps = self.timeout_ps(config);
                self.send_fin(config, now_ps, out);
            }
            return;
        }
        let window_bytes = self.offered_window();
        let segment = u64::from(config.segment_bytes);
        // A window of less than a segment is used for one short segment.
        let full = segment.min(window_bytes);
        loop {
            self.flight = self.board.flight_bytes();
            let window = self.cwnd.min(window_bytes).saturating_sub(self.flight);
            if window == 0 || self.room_bytes == 0 || (self.phase == CongestionState::Open && self.fin_sent) {
                return;
            }
            let lost = self.board.next_lost();
            let unsent = lost.is_none() && self.high < self.written && self.unused_window() > 0;
            let again = match lost {
                None if !unsent && self.phase == CongestionState::Recovery && config.recovery != Recovery::Rack => {
                    self.board.next_hole()
                }
                found => found,
            };
            let next = match again {
                Some(index) => self.board.start_of(index),
                None if unsent => self.high,
                None => return,
            };
            // Avoids the silly window syndrome, but without Nagle's delay.
            if window < full && self.written - next > window {
                return;
            }
            match again {
                Some(index) => self.retransmit(config, now_ps, index, window.min(segment) as u16, out),
                None => {
                    let room = self.unused_window().min(window).min(segment);
                    self.send_new(config, now_ps, room, out);
                }
            }
        }
    }

    /// Returns the number of new bytes that may be sent within the offered window.
    #[inline]
    fn unused_window(&self) -> u64 {
        self.offered_window().saturating_sub(self.high - self.una)
    }

    /// Returns the smaller of the receiver's window and the send buffer, in bytes.
    #[inline]
    fn offered_window(&self) -> u64 {
        if self.una == 0 { self.first_window_bytes } else { self.window_bytes }
    }

    #[inline]
    fn send_new(&mut self, config: &TcpConfig, now_ps: u64, room: u64, out: &mut Vec<Wire>) {
        let length = room.min(self.written - self.high) as u16;
        let stamp = config.stamp(now_ps);
        self.board.push(self.high, length, stamp);
        let flags = self.fresh_flags;
        self.fresh_flags &= !flag::CWR;
        self.emit((now_ps, stamp), self.high, length, flags, out);
        self.high += u64::from(length);
    }

    /// Fast retransmit: retransmits the first lost segment. If no segment counts as lost, follows NextSeg literally, as
    /// ns-3 does: sends a new segment, or, without new data, the first outstanding segment again.
    fn retransmit_one(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        self.flight = self.board.flight_bytes();
        let room = self.unused_window().min(u64::from(config.segment_bytes));
        match self.board.next_lost() {
            Some(index) => self.retransmit(config, now_ps, index, config.segment_bytes, out),
            None if self.high < self.written && room > 0 => self.send_new(config, now_ps, room, out),
            None if self.board.is_empty() => {}
            None => self.retransmit(config, now_ps, 0, config.segment_bytes, out),
        }
    }

    fn retransmit(&mut self, config: &TcpConfig, now_ps: u64, index: usize, bytes_max: u16, out: &mut Vec<Wire>) {
        let stamp = config.stamp(now_ps);
        let (start, end) = self.board.retransmit(index, bytes_max, stamp);
        self.retransmits += 1;
        self.note_retransmission(stamp);
        // RFC 3168, 6.1.5: retransmissions are not ECN-capable.
        self.emit((now_ps, stamp), start, (end - start) as u16, 0, out);
    }

    /// Appends a segment to `out`. It is sent at `now_ps` with the timestamp `stamp`.
    #[inline]
    fn emit(&mut self, (now_ps, stamp): (u64, u32), start: u64, length: u16, ecn_flags: u8, out: &mut Vec<Wire>) {
        let mut flags = self.template.flags | ecn_flags;
        if self.closing && start + u64::from(length) == self.written {
            flags |= flag::FIN;
            self.fin_sent = true;
        }
        if self.deadline_ps == NEVER {
            self.start_timer(now_ps);
        }
        let packet = Wire { flags, ..self.template }.numbered(start).stamped(stamp).carrying(length);
        self.room_bytes = self.room_bytes.saturating_sub(u64::from(packet.wire_bytes));
        out.push(packet);
    }

    fn send_fin(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        self.start_timer(now_ps);
        let flags = self.template.flags | flag::FIN;
        out.push(Wire { flags, ..self.template }.numbered(self.high).stamped(config.stamp(now_ps)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Follow;
    use super::super::congestion::{CongestionAlgorithm, cubic, dctcp, newreno};
    use super::*;
    use crate::units::{Rate, Time};

    const SEGMENT: u64 = 1380;
    const NEWRENO: CongestionAlgorithm = CongestionAlgorithm::NewReno(newreno::Parameters { byte_counting: false });

    fn config(follow: Follow, algorithm: CongestionAlgorithm) -> TcpConfig {
        let base = TcpConfig::basic_sim(2, Rate::from_bps(10_000_000_000).unwrap(), Time::from_ps(10_000_000));
        TcpConfig { follow, algorithm, initial_window_segments: 69, ..base }
    }

    /// Creates a sender that has sent 69 of many segments.
    fn sender(config: &TcpConfig) -> Sender {
        let mut sender = Sender::new(config, config.window, Wire::NOTHING);
        // The limit of the SYN's unscaled window ends with the first acknowledgement of data, not simulated here.
        sender.first_window_bytes = config.window.0;
        sender.write(1_000 * SEGMENT);
        sender.connect(config, 0, &mut Vec::new());
        sender.on_syn_ack(config, 1, &Wire { flags: flag::SYN, ..Wire::NOTHING }, &mut Vec::new());
        sender.pump(config, 2, &mut Vec::new());
        assert_eq!(sender.high, 69 * SEGMENT);
        sender
    }

    /// Delivers an acknowledgement up to segment `next`, with a SACK block of the segments `start..end`. Returns the
    /// number of packets sent.
    fn ack(sender: &mut Sender, config: &TcpConfig, next: u64, (start, end): (u64, u64)) -> usize {
        let mut out = Vec::new();
        let blocks = [(start * SEGMENT, end * SEGMENT)];
        sender.on_ack(config, 3, &Wire::NOTHING.numbered(next * SEGMENT), &blocks[..usize::from(end > 0)], &mut out);
        out.len()
    }

    /// 50 of 69 segments are lost. RFC 6675's pipe contains at most the other 19, whereas FlightSize contains all 69
    /// (RFC 5681, equation (4); RFC 9438, 4.6).
    #[test]
    fn ssthresh_is_a_share_of_flight_size_however_many_are_lost() {
        let cubic = CongestionAlgorithm::Cubic(cubic::Parameters::default());
        let dctcp = CongestionAlgorithm::Dctcp(dctcp::Parameters::default());
        for (algorithm, ssthresh) in
            [(NEWRENO, 69 * SEGMENT / 2), (dctcp, 69 * SEGMENT / 2), (cubic, 69 * SEGMENT * 7 / 10)]
        {
            let config = config(Follow::Standards, algorithm);
            let mut lost = sender(&config);
            for end in 51..=53 {
                ack(&mut lost, &config, 0, (50, end));
            }
            assert_eq!((lost.phase, lost.ssthresh), (CongestionState::Recovery, ssthresh), "{algorithm:?}");
            // The timeout occurs during recovery, for the same losses.
            lost.on_timeout(&config, 4, false, &mut Vec::new());
            assert_eq!(lost.ssthresh, ssthresh, "{algorithm:?}");
            let mut silent = sender(&config);
            for time in [4, 5] {
                // RFC 5681, 3.1: the second timeout of a segment leaves ssthresh unchanged.
                silent.on_timeout(&config, time, false, &mut Vec::new());
                assert_eq!((silent.phase, silent.ssthresh), (CongestionState::Loss, ssthresh), "{algorithm:?}");
            }
        }
        let config = config(Follow::Ns3, NEWRENO);
        let mut lost = sender(&config);
        for end in 51..=53 {
            ack(&mut lost, &config, 0, (50, end));
        }
        // In ns-3, ssthresh is half of the bytes in flight: 69 segments and two that were sent before the losses were
        // detected, minus 50 lost and three SACKed segments.
        assert_eq!(lost.ssthresh, (69 + 2 - 50 - 3) * SEGMENT / 2);
    }

    /// Three acknowledgements that SACK data above a lost segment are overtaken by one that was sent before the loss
    /// and acknowledges less. The SACK blocks of the three still count.
    #[test]
    fn blocks_of_an_acknowledgement_that_was_overtaken_count() {
        for (follow, phase) in
            [(Follow::Standards, CongestionState::Recovery), (Follow::Ns3, CongestionState::Disorder)]
        {
            let config = config(follow, NEWRENO);
            let mut sender = sender(&config);
            ack(&mut sender, &config, 20, (21, 22));
            // This acknowledgement covers only ten segments and was overtaken by the one of twenty segments above. Its
            // SACK blocks are new.
            ack(&mut sender, &config, 10, (21, 23));
            ack(&mut sender, &config, 10, (21, 24));
            assert_eq!((sender.phase, sender.una), (phase, 20 * SEGMENT), "{follow:?}");
            // This acknowledgement reports nothing new.
            assert_eq!(ack(&mut sender, &config, 10, (21, 24)), 0);
        }
    }
}
