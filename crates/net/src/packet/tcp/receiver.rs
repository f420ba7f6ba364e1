//! The receiving end: acknowledgements, and the close that answers the sender's.

use super::TcpConfig;
use super::rtt::Rtt;
use super::sack::Reassembly;
use super::sender::NEVER;
use crate::packet::wire::{SackPool, Wire, flag};

/// Times that the final FIN is repeated without an answer (ns-3: data retries).
const FIN_REPEATS: u8 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Listen,
    SynReceived,
    Established,
    /// FIN received and answered; the sender's last acknowledgement is awaited.
    LastAck,
    /// The last acknowledgement is here, or the FIN has been repeated for the last time.
    Gone {
        since_ps: u64,
    },
}

/// One connection's receiving end. Fields in the order of use.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Receiver {
    /// Next byte expected (RCV.NXT); one more after a FIN.
    next: u64,
    /// Highest acknowledgement sent.
    acknowledged: u64,
    state: State,
    /// When the SYN-ACK is repeated, the delayed acknowledgement sent, or the final FIN repeated.
    pub deadline_ps: u64,
    /// Timestamp to echo (RFC 7323, TS.Recent).
    echo: u32,
    /// In-order segments since the last acknowledgement.
    held_count: u8,
    fin_repeats: u8,
    fin: Option<u64>,
    /// Every packet starts as a copy of it.
    template: Wire,
    reassembly: Reassembly,
    rtt: Rtt,
    syn_ack_stamp: u32,
    syn_ack_count: u32,
}

impl Receiver {
    /// `template` travels from the receiver to the sender.
    pub fn new(config: &TcpConfig, template: Wire) -> Self {
        Self {
            state: State::Listen,
            template,
            next: 0,
            acknowledged: 0,
            echo: 0,
            held_count: 0,
            fin: None,
            reassembly: Reassembly::default(),
            rtt: Rtt::new(config.initial_rtt.ps() / 1000),
            syn_ack_stamp: 0,
            syn_ack_count: 0,
            fin_repeats: 0,
            deadline_ps: NEVER,
        }
    }

    /// Stream bytes received in order.
    #[inline]
    pub fn received(&self) -> u64 {
        match self.fin {
            Some(fin) => self.next.min(fin),
            None => self.next,
        }
    }

    /// Whether it needs its slot only to answer a sender that has not closed.
    pub fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone { .. })
    }

    /// Later packets travel in `band`.
    pub fn set_band(&mut self, band: u8) {
        self.template.band = band;
    }

    /// A SYN.
    pub fn on_syn(&mut self, config: &TcpConfig, now_ps: u64, syn: &Wire, out: &mut Vec<Wire>) {
        match self.state {
            State::Listen => {
                self.state = State::SynReceived;
                self.echo = syn.stamp;
                self.send_syn_ack(config, now_ps, out);
                self.arm_syn_ack(config, now_ps);
            }
            State::SynReceived => self.send_syn_ack(config, now_ps, out),
            State::Established | State::LastAck | State::Gone { .. } => {}
        }
    }

    fn send_syn_ack(&mut self, config: &TcpConfig, now_ps: u64, out: &mut Vec<Wire>) {
        self.syn_ack_stamp = config.stamp(now_ps);
        let flags = self.template.flags | flag::SYN;
        out.push(Wire { wire_bytes: config.syn_bytes, flags, stamp: self.echo, ..self.template });
    }

    fn arm_syn_ack(&mut self, config: &TcpConfig, now_ps: u64) {
        let backoff = 1_u64 << self.syn_ack_count.min(10);
        self.syn_ack_count += 1;
        self.deadline_ps = now_ps + config.connect_timeout.ps().saturating_mul(backoff);
    }

    /// Anything but a SYN from the sender.
    pub fn on_packet(
        &mut self,
        config: &TcpConfig,
        now_ps: u64,
        packet: &Wire,
        pool: &mut SackPool,
        out: &mut Vec<Wire>,
    ) {
        if self.state == State::SynReceived {
            self.state = State::Established;
            self.deadline_ps = NEVER;
            // The first segment is acknowledged at once.
            self.held_count = config.delayed_ack_segments;
            let ticks = u64::from(config.stamp(now_ps).wrapping_sub(self.syn_ack_stamp));
            self.rtt.sample(if ticks == 0 { 1_000 } else { ticks * config.stamp_tick.ps() / 1_000 });
        }
        let has_fin = packet.flags & flag::FIN != 0;
        if packet.payload_bytes == 0 && !has_fin {
            if self.state == State::LastAck && packet.number >= self.next {
                self.state = State::Gone { since_ps: now_ps };
                self.deadline_ps = NEVER;
            }
            return;
        }
        match self.state {
            State::Listen | State::SynReceived => {}
            State::Established => self.on_data(config, now_ps, packet, has_fin, pool, out),
            State::LastAck => self.acknowledge(config, pool, out, self.template.flags | flag::FIN),
            // ns-3 forgets the connection now and ignores what comes. Differs from it: a segment that a timeout has
            // sent again is answered, or a sender that has lost every FIN would never end.
            State::Gone { since_ps } if now_ps - since_ps < config.min_rto.ps() / 2 => {}
            State::Gone { .. } => self.acknowledge(config, pool, out, self.template.flags | flag::FIN),
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
        let start = packet.number;
        let end = start + u64::from(packet.payload_bytes);
        let expected = self.next;
        if start == expected && start <= self.acknowledged {
            // RFC 7323, 4.3 (2).
            self.echo = packet.stamp;
        }
        if has_fin {
            self.fin = Some(end);
        }
        let fresh = if end <= expected {
            has_fin && end == expected
        } else if start <= expected && self.reassembly.is_empty() {
            self.next = end;
            true
        } else if start <= expected {
            self.next = self.reassembly.advance(end);
            true
        } else {
            self.reassembly.insert(start, end)
        };
        if !fresh {
            self.acknowledge(config, pool, out, self.template.flags);
            return;
        }
        let finished = self.fin == Some(self.next);
        if finished {
            self.next += 1;
        }
        if !finished && self.next == end && self.reassembly.is_empty() {
            self.held_count += 1;
            if self.held_count >= config.delayed_ack_segments {
                self.acknowledge(config, pool, out, self.template.flags);
            } else if self.deadline_ps == NEVER {
                self.deadline_ps = now_ps + config.delayed_ack_timeout.ps();
            }
            return;
        }
        if !finished || has_fin {
            // RFC 5681, 4.2: out of order, or a gap filled; ns-3 acknowledges a FIN's data and the FIN apart.
            self.acknowledge(config, pool, out, self.template.flags);
        }
        if finished {
            self.state = State::LastAck;
            self.fin_repeats = 0;
            self.acknowledge(config, pool, out, self.template.flags | flag::FIN);
            self.deadline_ps = now_ps + self.rtt.timeout_ns(1) * 1_000;
        }
    }

    fn acknowledge(&mut self, config: &TcpConfig, pool: &mut SackPool, out: &mut Vec<Wire>, flags: u8) {
        self.held_count = 0;
        if self.state == State::Established {
            self.deadline_ps = NEVER;
        }
        self.acknowledged = self.acknowledged.max(self.next);
        let blocks = self.reassembly.report();
        let wire_bytes = config.ack_bytes(blocks.len().min(crate::packet::wire::SACK_BLOCKS));
        let sack = pool.put(blocks);
        out.push(Wire { number: self.next, stamp: self.echo, wire_bytes, sack, flags, ..self.template });
    }

    /// The deadline has come.
    pub fn on_timeout(&mut self, config: &TcpConfig, now_ps: u64, pool: &mut SackPool, out: &mut Vec<Wire>) {
        self.deadline_ps = NEVER;
        match self.state {
            State::Listen => {}
            State::SynReceived => {
                self.send_syn_ack(config, now_ps, out);
                self.arm_syn_ack(config, now_ps);
            }
            State::Established => self.acknowledge(config, pool, out, self.template.flags),
            State::LastAck if self.fin_repeats == FIN_REPEATS => self.state = State::Gone { since_ps: now_ps },
            State::Gone { .. } => {}
            State::LastAck => {
                self.fin_repeats += 1;
                self.acknowledge(config, pool, out, self.template.flags | flag::FIN);
                self.deadline_ps = now_ps + self.rtt.timeout_ns(1) * 1_000;
            }
        }
    }
}
