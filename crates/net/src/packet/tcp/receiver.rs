//! The receiving endpoint: acknowledgements, and the close in answer to the sender's FIN.

use super::TcpConfig;
use super::congestion::Ecn;
use super::rtt::Rtt;
use super::sack::Reassembly;
use super::sender::NEVER;
use crate::packet::wire::{SackPool, Wire, flag};

/// Number of times that the receiver repeats its final FIN without an answer (ns-3: the number of data retries).
const FIN_REPEATS: u8 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiverState {
    Listen,
    SynReceived,
    Established,
    /// FIN received and answered. The sender's last acknowledgement is outstanding.
    LastAck,
    /// The last acknowledgement has arrived, or the last repetition of the FIN has timed out.
    Finished,
}

/// The receiving endpoint of one connection. Fields are in the order of use, so that in-order data needs only the first
/// 40 bytes.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Receiver {
    /// Next byte expected (RCV.NXT). A FIN counts as one byte.
    next: u64,
    /// Highest acknowledgement sent.
    acknowledged: u64,
    /// Time at which the receiver repeats the SYN-ACK or the final FIN, or sends the delayed acknowledgement.
    pub deadline_ps: u64,
    /// Stream offset of the FIN; [`u64::MAX`] before it has arrived.
    fin: u64,
    /// Timestamp to echo (RFC 7323, TS.Recent).
    pub echo: u32,
    state: ReceiverState,
    /// Number of in-order segments since the last acknowledgement.
    held_count: u8,
    /// ECN flags of packets to send: ECT if ECN was negotiated, and ECE while acknowledgements carry it (with DCTCP,
    /// the state DCTCP.CE).
    ecn: u8,
    /// Whether all received data is in order.
    is_ordered: bool,
    /// Template of every packet.
    template: Wire,
    /// Out-of-order data. The memory is allocated when the first out-of-order segment arrives.
    reassembly: Option<Box<Reassembly>>,
    /// Number of FINs sent, minus those that the network dropped.
    fins_alive: u32,
    fin_repeats: u8,
    /// Timestamp of the SYN-ACK that reached the sender first; until then, of the first SYN-ACK sent.
    pub syn_ack_stamp: u32,
    syn_ack_count: u32,
    /// Time at which the FIN is repeated after SRTT + 4 RTTVAR. `fin_rto_ps` is a second timer for the retransmission
    /// timeout.
    fin_repeat_ps: u64,
    fin_rto_ps: u64,
    rtt: Rtt,
}

impl Receiver {
    /// Creates a receiver. `template` is addressed from the receiver to the sender.
    pub fn new(config: &TcpConfig, template: Wire) -> Self {
        Self {
            state: ReceiverState::Listen,
            template,
            next: 0,
            acknowledged: 0,
            echo: 0,
            held_count: 0,
            fin: u64::MAX,
            ecn: 0,
            is_ordered: true,
            reassembly: None,
            rtt: Rtt::new(config.initial_rtt.ps() / 1000),
            syn_ack_stamp: 0,
            syn_ack_count: 0,
            fin_repeat_ps: NEVER,
            fin_rto_ps: NEVER,
            fin_repeats: 0,
            fins_alive: 0,
            deadline_ps: NEVER,
        }
    }

    /// Returns the number of stream bytes received in order.
    #[inline]
    pub fn received(&self) -> u64 {
        self.next.min(self.fin)
    }

    /// Returns whether the receiver has finished. It keeps its slot, because it must answer an open sender.
    pub fn is_finished(&self) -> bool {
        self.state == ReceiverState::Finished
    }

    /// Returns whether the receiver has finished and the network has dropped all its FINs. The sender then receives no
    /// FIN.
    pub fn aborted_silently(&self) -> bool {
        self.is_finished() && self.fins_alive == 0
    }

    /// Records that the network dropped a FIN.
    pub fn on_lost_fin(&mut self) {
        self.fins_alive -= 1;
    }

    /// Returns whether the receiver has sent its FIN and waits for the last acknowledgement. Its deadline is then the
    /// time at which it repeats the FIN.
    pub fn awaits_last_ack(&self) -> bool {
        self.state == ReceiverState::LastAck
    }

    /// Assigns `band` to later packets.
    pub fn set_band(&mut self, band: u8) {
        self.template = self.template.in_band(band);
    }

    /// Processes a SYN. Returns `true` for the first one, which [`Receiver::accept`] must answer.
    pub fn on_syn(&mut self, config: &TcpConfig, now_ps: u64, syn: &Wire, out: &mut Vec<Wire>) -> bool {
        match self.state {
            ReceiverState::Listen => {
                self.state = ReceiverState::SynReceived;
                self.echo = syn.stamp();
                // RFC 3168, 6.1.1.
                let both = flag::ECE | flag::CWR;
                self.ecn = if config.ecn && syn.flags & both == both { flag::ECT } else { 0 };
                return true;
            }
            ReceiverState::SynReceived => out.push(self.syn_ack(config, now_ps)),
            ReceiverState::Established | ReceiverState::LastAck | ReceiverState::Finished => {}
        }
        false
    }

    /// Answers the first SYN.
    pub fn accept(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        self.syn_ack_stamp = config.stamp(now_ps);
        out.push(self.syn_ack(config, now_ps));
        self.arm_syn_ack(config, now_ps);
    }

    fn syn_ack(&self, config: &TcpConfig, now_ps: u64) -> Wire {
        let flags = self.template.flags | flag::SYN | if self.ecn != 0 { flag::ECE } else { 0 };
        let packet = Wire { wire_bytes: config.syn_bytes, flags, ..self.template };
        packet.numbered(config.stamp(now_ps).into()).stamped(self.echo)
    }

    fn arm_syn_ack(&mut self, config: &TcpConfig, now_ps: u64) {
        let backoff = 1_u64 << self.syn_ack_count.min(10);
        self.syn_ack_count += 1;
        self.deadline_ps = now_ps + config.connect_timeout.ps().saturating_mul(backoff);
    }

    /// Processes a packet of the sender that is not a SYN.
    pub fn on_packet(
        &mut self,
        config: &TcpConfig,
        now_ps: u64,
        packet: &Wire,
        pool: &mut SackPool,
        out: &mut Vec<Wire>,
    ) {
        let has_fin = packet.flags & flag::FIN != 0;
        if self.state == ReceiverState::SynReceived {
            if !self.rtt.is_sampled() {
                let ticks = u64::from(config.stamp(now_ps).wrapping_sub(self.syn_ack_stamp));
                self.rtt.sample(if ticks == 0 { 1_000 } else { ticks * config.stamp_tick.ps() / 1_000 });
            }
            if has_fin && packet.number_near(self.next) > self.next {
                // In ns-3, if the last packet of the handshake was lost, an out-of-sequence FIN is ignored together
                // with its data.
                return;
            }
            self.state = ReceiverState::Established;
            self.deadline_ps = NEVER;
            // Makes the receiver acknowledge the first segment immediately.
            self.held_count = config.delayed_ack_segments;
        }
        if !packet.has_payload() && !has_fin {
            if self.state == ReceiverState::LastAck && packet.number_near(self.next) >= self.next {
                self.state = ReceiverState::Finished;
                self.deadline_ps = NEVER;
            }
            return;
        }
        match self.state {
            ReceiverState::Listen | ReceiverState::SynReceived => {}
            ReceiverState::Established => self.on_data(config, now_ps, packet, has_fin, pool, out),
            // In ns-3, only the FIN's own timer repeats the FIN.
            ReceiverState::LastAck => self.acknowledge(config, pool, out, self.template.flags),
            // In this state, ns-3 has removed the connection and ignores later packets. Differs from ns-3: if every FIN
            // was dropped, the receiver answers retransmissions, because the sender would otherwise never close.
            ReceiverState::Finished if self.fins_alive > 0 => {}
            ReceiverState::Finished => self.acknowledge(config, pool, out, self.template.flags | flag::FIN),
        }
    }

    fn on_data(
        &mut self,
        config: &TcpConfig,
        now_ps: u64,
        packet: &Wire,
        has_fin: bool,
        pool: &mut SackPool,
        out: &mut Vec<Wire>,
    ) {
        if self.ecn != 0 && packet.has_payload() {
            self.on_codepoint(config, packet, pool, out);
        }
        let start = packet.number_near(self.next);
        let end = start + u64::from(packet.payload_bytes(config.header_bytes));
        let expected = self.next;
        if start == expected && start <= self.acknowledged {
            // RFC 7323, 4.3 (2).
            self.echo = packet.stamp();
        }
        if has_fin {
            self.fin = end;
        }
        let fresh = if end <= expected {
            has_fin && end == expected
        } else if start <= expected && self.is_ordered {
            self.next = end;
            true
        } else if start <= expected {
            if let Some(reassembly) = &mut self.reassembly {
                self.next = reassembly.advance(end);
                self.is_ordered = reassembly.is_empty();
            }
            true
        } else {
            self.is_ordered = false;
            self.reassembly.get_or_insert_default().insert(start, end)
        };
        if !fresh {
            self.acknowledge(config, pool, out, self.template.flags);
            return;
        }
        let finished = self.fin == self.next;
        if finished {
            self.next += 1;
        }
        if !finished && self.next == end && self.is_ordered {
            self.held_count = self.held_count.saturating_add(1);
            if self.held_count >= config.delayed_ack_segments {
                self.acknowledge(config, pool, out, self.template.flags);
            } else if self.deadline_ps == NEVER {
                self.deadline_ps = now_ps + config.delayed_ack_timeout.ps();
            }
            return;
        }
        if !finished || has_fin {
            // RFC 5681, 4.2: data that is out of order or fills a gap is acknowledged immediately. ns-3 acknowledges
            // the data of a FIN and the FIN separately.
            self.acknowledge(config, pool, out, self.template.flags);
        }
        if finished {
            self.state = ReceiverState::LastAck;
            self.fin_repeats = 0;
            self.acknowledge(config, pool, out, self.template.flags | flag::FIN);
            self.fin_repeat_ps = now_ps + self.fin_wait_ps();
            self.fin_rto_ps = now_ps + self.rto_ps(config);
            self.deadline_ps = self.fin_repeat_ps.min(self.fin_rto_ps);
        }
    }

    fn fin_wait_ps(&self) -> u64 {
        self.rtt.timeout_ns(1) * 1_000
    }

    fn rto_ps(&self, config: &TcpConfig) -> u64 {
        self.fin_wait_ps().max(config.min_rto.ps())
    }

    /// Updates the ECN flags of later acknowledgements from the ECN field of a data packet.
    fn on_codepoint(&mut self, config: &TcpConfig, packet: &Wire, pool: &mut SackPool, out: &mut Vec<Wire>) {
        let ece = if packet.flags & flag::CE == 0 { 0 } else { flag::ECE };
        if config.algorithm.ecn() != Ecn::Scalable {
            // RFC 3168, 6.1.3: ECE is sent until a packet with CWR arrives, and again if that packet itself is marked.
            let kept = if packet.flags & flag::CWR == 0 { self.ecn & flag::ECE } else { 0 };
            self.ecn = flag::ECT | kept | ece;
        } else if ece != self.ecn & flag::ECE {
            // RFC 8257, 3.2: each acknowledgement covers only marked or only unmarked packets, so that the sender can
            // count the marked ones. When the marking changes, the packets that wait for a delayed acknowledgement are
            // acknowledged first, and the first packet after the change is acknowledged immediately.
            if self.next > self.acknowledged {
                self.acknowledge(config, pool, out, self.template.flags);
            }
            self.ecn = flag::ECT | ece;
            self.held_count = config.delayed_ack_segments;
        }
    }

    fn acknowledge(&mut self, config: &TcpConfig, pool: &mut SackPool, out: &mut Vec<Wire>, flags: u8) {
        self.held_count = 0;
        if self.state == ReceiverState::Established {
            self.deadline_ps = NEVER;
        }
        self.acknowledged = self.acknowledged.max(self.next);
        let held = self.reassembly.as_ref().filter(|_| !self.is_ordered);
        let blocks = held.map_or(&[][..], |reassembly| reassembly.report());
        let wire_bytes = config.ack_bytes(blocks.len().min(crate::packet::wire::SACK_BLOCKS));
        self.fins_alive += u32::from(flags & flag::FIN != 0);
        let flags = flags | self.ecn & flag::ECE;
        let packet = Wire { wire_bytes, flags, ..self.template }.numbered(self.next).stamped(self.echo);
        out.push(pool.attach(packet, blocks));
    }

    /// Processes the expiry of the deadline.
    pub fn on_timeout(&mut self, config: &TcpConfig, now_ps: u64, pool: &mut SackPool, out: &mut Vec<Wire>) {
        self.deadline_ps = NEVER;
        match self.state {
            ReceiverState::Listen => {}
            ReceiverState::SynReceived => {
                out.push(self.syn_ack(config, now_ps));
                self.arm_syn_ack(config, now_ps);
            }
            ReceiverState::Established => self.acknowledge(config, pool, out, self.template.flags),
            ReceiverState::Finished => {}
            ReceiverState::LastAck => {
                if self.fin_repeat_ps > now_ps {
                    self.fin_rto_ps = now_ps + self.rto_ps(config);
                } else if self.fin_repeats < FIN_REPEATS {
                    self.fin_repeats += 1;
                    self.fin_repeat_ps = now_ps + self.fin_wait_ps();
                } else {
                    self.state = ReceiverState::Finished;
                    return;
                }
                self.acknowledge(config, pool, out, self.template.flags | flag::FIN);
                self.deadline_ps = self.fin_repeat_ps.min(self.fin_rto_ps);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tcp::congestion::{CongestionAlgorithm, dctcp, newreno};
    use crate::packet::tcp::sender::Sender;
    use crate::units::{Rate, Time};

    const SEGMENT: u16 = 1380;
    const NEWRENO: CongestionAlgorithm = CongestionAlgorithm::NewReno(newreno::Parameters { byte_counting: false });

    fn config(algorithm: CongestionAlgorithm, ecn: bool) -> TcpConfig {
        let rate = Rate::from_bps(10_000_000_000).expect("not zero");
        TcpConfig { algorithm, ecn, ..TcpConfig::basic_sim(2, rate, Time::from_ps(10_000_000)) }
    }

    fn template(flags: u8) -> Wire {
        Wire { wire_bytes: 54, flags, ..Wire::NOTHING }
    }

    /// Creates both endpoints after the handshake, with ten segments in flight.
    fn pair(config: &TcpConfig) -> (Sender, Receiver, SackPool, Vec<Wire>) {
        let (mut sender, mut receiver) =
            (Sender::new(config, config.window, template(0)), Receiver::new(config, template(flag::REVERSE)));
        let (mut pool, mut there, mut back) = (SackPool::default(), Vec::new(), Vec::new());
        sender.write(1_000_000);
        sender.connect(config, 0, &mut there);
        assert!(receiver.on_syn(config, 1, &there[0], &mut back) && back.is_empty());
        receiver.accept(config, 1, &mut back);
        sender.on_syn_ack(config, 2, &back[0], &mut there);
        receiver.on_packet(config, 3, &there[1], &mut pool, &mut back);
        assert_eq!(there[0].flags & flag::ECT | back[0].flags & flag::ECT | there[1].flags & flag::ECT, 0);
        there.clear();
        sender.pump(config, 4, &mut there);
        (sender, receiver, pool, there)
    }

    /// Returns, for each acknowledgement, the total number of acknowledged segments and whether it has the ECE flag.
    fn echoes(
        config: &TcpConfig,
        receiver: &mut Receiver,
        pool: &mut SackPool,
        packets: &[Wire],
        marked: &[usize],
    ) -> Vec<(u64, bool)> {
        let mut out = Vec::new();
        for (index, packet) in packets.iter().enumerate() {
            let ce = if marked.contains(&index) { flag::CE } else { 0 };
            receiver.on_packet(config, 5, &Wire { flags: packet.flags | ce, ..*packet }, pool, &mut out);
        }
        out.iter().map(|ack| (ack.number() / u64::from(SEGMENT), ack.flags & flag::ECE != 0)).collect()
    }

    #[test]
    fn without_ecn_nothing_is_capable() {
        let config = config(NEWRENO, false);
        let (_, _, _, packets) = pair(&config);
        assert!(packets.len() == 10 && packets.iter().all(|packet| packet.flags == 0));
    }

    #[test]
    fn a_mark_is_echoed_until_it_is_answered() {
        let config = config(NEWRENO, true);
        let (mut sender, mut receiver, mut pool, packets) = pair(&config);
        assert!(packets.iter().all(|packet| packet.flags == flag::ECT));
        // The receiver acknowledges the first segment immediately, then every second one.
        let acks = echoes(&config, &mut receiver, &mut pool, &packets, &[3]);
        assert_eq!(acks, [(1, false), (3, false), (5, true), (7, true), (9, true)]);
        // Only the first ECE halves the window. The next new segment has the CWR flag.
        let mut out = Vec::new();
        for (segments, ece) in [(1, false), (3, false), (5, true), (7, true), (9, true), (11, true)] {
            let flags = flag::REVERSE | if ece { flag::ECE } else { 0 };
            let ack = template(flags).numbered(segments * u64::from(SEGMENT));
            sender.on_ack(&config, 6, &ack, &[], &mut out);
        }
        // The window had ten segments, and each of the two acknowledgements without ECE increased it by one. After the
        // reduction to six, new segments can be sent once segment eleven is acknowledged.
        assert_eq!(sender.ssthresh, 6 * u64::from(SEGMENT));
        assert_eq!(sender.cwnd, sender.ssthresh);
        let answers = out.iter().filter(|packet| packet.flags & flag::CWR != 0).count();
        assert_eq!(answers, 1);
        // CWR ends the echo of ECE.
        let next = out.iter().position(|packet| packet.flags & flag::CWR != 0).expect("counted above");
        let before = echoes(&config, &mut receiver, &mut pool, &out[..next], &[]);
        assert!(!before.is_empty() && before.iter().all(|&(_, ece)| ece));
        echoes(&config, &mut receiver, &mut pool, &out[next..=next], &[]);
        assert_eq!(receiver.ecn & flag::ECE, 0);
    }

    #[test]
    fn dctcp_acknowledges_marked_and_unmarked_apart() {
        let config = config(CongestionAlgorithm::Dctcp(dctcp::Parameters::default()), true);
        let (_, mut receiver, mut pool, packets) = pair(&config);
        // Of segments 1 to 10, segments 4, 5 and 7 are marked. Segment 1 is acknowledged immediately, and 2 and 3
        // together. Segment 4, the first marked one, is acknowledged immediately. When 6 arrives unmarked, 5 is
        // acknowledged with ECE first, then 6 without. Segments 7 and 8 change the marking again, and 9 and 10 are
        // acknowledged together.
        let acks = echoes(&config, &mut receiver, &mut pool, &packets, &[3, 4, 6]);
        let expected = [(1, false), (3, false), (4, true), (5, true), (6, false), (7, true), (8, false), (10, false)];
        assert_eq!(acks, expected);
    }

    #[test]
    fn a_fin_out_of_sequence_does_not_complete_a_handshake() {
        let config = config(NEWRENO, false);
        let (mut receiver, mut pool, mut back) =
            (Receiver::new(&config, template(flag::REVERSE)), SackPool::default(), Vec::new());
        receiver.on_syn(&config, 1, &template(flag::SYN), &mut back);
        receiver.accept(&config, 1, &mut back);
        back.clear();
        let segment = |number, flags| template(flags).numbered(number).carrying(SEGMENT);
        receiver.on_packet(&config, 2, &segment(u64::from(SEGMENT), flag::FIN), &mut pool, &mut back);
        assert!(back.is_empty() && receiver.received() == 0);
        receiver.on_packet(&config, 3, &segment(0, 0), &mut pool, &mut back);
        // The last segment was ignored.
        assert_eq!((back.len(), back[0].number(), pool.detach(&mut back[0]).1), (1, u64::from(SEGMENT), 0));
    }

    #[test]
    fn a_closed_receiver_is_silent_unless_every_fin_was_lost() {
        let config = config(NEWRENO, false);
        let (_, mut receiver, mut pool, packets) = pair(&config);
        let (mut out, last) = (Vec::new(), packets.len() - 1);
        for (index, packet) in packets.iter().enumerate() {
            let flags = if index == last { flag::FIN } else { 0 };
            receiver.on_packet(&config, 5, &Wire { flags, ..*packet }, &mut pool, &mut out);
        }
        let again = |receiver: &mut Receiver, pool: &mut SackPool| {
            let mut out = Vec::new();
            receiver.on_packet(&config, 6, &packets[0], pool, &mut out);
            out.iter().map(|packet| packet.flags & flag::FIN).collect::<Vec<u8>>()
        };
        assert_eq!(again(&mut receiver, &mut pool), [0]);
        while !receiver.is_finished() {
            receiver.on_timeout(&config, receiver.deadline_ps, &mut pool, &mut out);
        }
        let fin_count = out.iter().filter(|packet| packet.flags & flag::FIN != 0).count();
        assert_eq!(fin_count, 1 + usize::from(FIN_REPEATS));
        assert_eq!(again(&mut receiver, &mut pool), []);
        (0..fin_count).for_each(|_| receiver.on_lost_fin());
        assert_eq!(again(&mut receiver, &mut pool), [flag::FIN]);
    }

    #[test]
    fn what_is_sent_again_is_not_capable() {
        let config = config(NEWRENO, true);
        let (mut sender, _, _, packets) = pair(&config);
        let mut out = Vec::new();
        sender.on_timeout(&config, 1_000_000_000_000, false, &mut out);
        assert!(!out.is_empty() && out.iter().all(|packet| packet.number() < packets.len() as u64 * 1380));
        assert!(out.iter().all(|packet| packet.flags & (flag::ECT | flag::CWR) == 0));
    }
}
