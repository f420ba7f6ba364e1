//! Proactive congestion notification (Kang et al. 2021, sections 3.1 and 3.2): switches shorten queues before bursts.
//!
//! A sender announces its burst with a small packet, PCN-START, to the burst's receiver. Every switch on the path
//! lowers the marking threshold of the egress port that the packet takes, so that the other senders through that port
//! slow down. The receiver answers, and the sender starts the burst when the answer arrives, one round trip after the
//! announcement. The first packet of the burst withdraws the announcement at each port on its path.
//!
//! The paper counts announcements per port. Here, each port has a list of announcements by connection instead of a
//! counter. Hence a repeated announcement counts once, a packet withdraws only the announcement of its own connection,
//! and the number of announcements cannot fall below zero. If several thresholds are announced, the lowest applies. An
//! announcement expires if its burst never arrives, because packets were lost or the host failed.
//!
//! As in a P4 switch, a port only updates its threshold when a packet passes it.

use super::driver::PortDriver;
use super::event_key::EventTime;
use super::port::Port;
use super::wire::{Wire, flag};
use crate::Announced;
use crate::topology::{Directed, Graph, PortId};
use crate::units::Time;
use serde::Deserialize;

/// Configuration of PCN. It requires switch queues that mark by threshold.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct PcnConfig {
    /// Time after which a port discards an announcement.
    #[serde(rename = "expire_ps")]
    pub expire: Time,
    /// Time after which a sender starts a burst without an answer to its announcement.
    #[serde(rename = "timeout_ps")]
    pub timeout: Time,
}

/// Size of a PCN-START packet and its answer on the wire, in bytes: IPv4 over Ethernet, no payload (section 4.4).
const CONTROL_BYTES: u16 = 64;

/// The type-of-service field of a control packet (fig. 7): PCN-START flag, ACK flag, four bits with the threshold
/// divided by five, and two ECN bits that are 0 (not ECN-capable).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tos(u8);

impl Tos {
    const START: u8 = 1 << 7;
    const ACK: u8 = 1 << 6;

    fn start(announced: Announced) -> Self {
        Self(Self::START | announced.fifths() << 2)
    }

    fn answered(self) -> Self {
        Self(self.0 | Self::ACK)
    }

    fn is_start(self) -> bool {
        self.0 & (Self::START | Self::ACK) == Self::START
    }

    fn threshold_packets(self) -> u32 {
        u32::from((self.0 >> 2) & 15) * Announced::STEP
    }
}

/// Creates the PCN-START packet of the connection of `template`. The receiver's answer contains the same `number`.
pub(crate) fn start(template: Wire, announced: Announced, number: u64) -> Wire {
    let number = numbered(number, Tos::start(announced).0);
    Wire { flags: flag::PCN, wire_bytes: CONTROL_BYTES, ..template }.numbered(number)
}

/// Creates the receiver's answer to `packet`, addressed to host `dst`.
pub(crate) fn answer(packet: &Wire, dst: u32) -> Wire {
    let tos = Tos(packet.number() as u8).answered();
    let number = packet.number() & !0xff | u64::from(tos.0);
    Wire { dst, flags: flag::PCN | flag::REVERSE, ..*packet }.numbered(number)
}

/// Returns the [sequence number](Wire::number) that encodes announcement `number` and type of service `tos`.
pub(crate) fn numbered(number: u64, tos: u8) -> u64 {
    number << 8 | u64::from(tos)
}

/// Returns the number of the announcement that `packet` announces or answers.
pub(crate) fn number(packet: &Wire) -> u64 {
    packet.number() >> 8
}

/// A burst that was announced and whose first packet has not reached the port yet.
#[derive(Clone, Copy, Debug)]
struct Burst {
    connection: u32,
    generation: u16,
    threshold: u32,
    until_ps: u64,
}

/// Bursts announced at one port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bursts(Vec<Burst>);

impl Bursts {
    /// Processes a packet that passes the port at `now_ps`. Returns whether the list of bursts has changed. A new
    /// announcement expires after `expire_ps`.
    #[inline]
    pub fn on_packet(&mut self, now_ps: u64, packet: &Wire, expire_ps: u64) -> bool {
        if self.0.is_empty() && packet.flags & flag::PCN == 0 {
            return false;
        }
        let count = self.0.len();
        let is_own = |burst: &Burst| burst.connection == packet.connection && burst.generation == packet.generation;
        if packet.flags & flag::PCN == 0 {
            // Only data segments of the burst withdraw its announcement, in contrast to the handshake and to
            // acknowledgements, which travel in the other direction.
            let is_burst = packet.has_payload() && packet.flags & flag::REVERSE == 0;
            self.0.retain(|burst| burst.until_ps > now_ps && !(is_burst && is_own(burst)));
            return self.0.len() != count;
        }
        let tos = Tos(packet.number() as u8);
        self.0.retain(|burst| burst.until_ps > now_ps && !(tos.is_start() && is_own(burst)));
        if !tos.is_start() {
            return self.0.len() != count;
        }
        self.0.push(Burst {
            connection: packet.connection,
            generation: packet.generation,
            threshold: tos.threshold_packets(),
            until_ps: now_ps.saturating_add(expire_ps),
        });
        true
    }

    /// Returns the marking threshold of the port at `now_ps`, in packets; `initial` if no burst is announced.
    pub fn threshold(&self, now_ps: u64, initial: u32) -> u32 {
        let active = self.0.iter().filter(|burst| burst.until_ps > now_ps);
        active.map(|burst| burst.threshold).fold(initial, u32::min)
    }
}

/// The announcements at the egress ports of all switches.
#[derive(Clone, Debug)]
pub(crate) struct Switches {
    expire_ps: u64,
    initial: u32,
    /// Announced bursts by port; `None` for the ports of hosts.
    ports: Vec<Option<Bursts>>,
}

impl Switches {
    /// Creates the state of the switches of `graph`, whose queues mark from `initial` packets on while no burst is
    /// announced.
    pub fn new(graph: &Graph, config: PcnConfig, initial: u32) -> Self {
        let of = |link: &Directed| (link.from.0 >= graph.host_count).then(Bursts::default);
        Self { expire_ps: config.expire.ps(), initial, ports: graph.links.iter().map(of).collect() }
    }

    /// Processes `packet` before port `id` sends it.
    #[inline]
    pub fn on_packet(
        &mut self,
        ports: &mut [Port],
        id: PortId,
        at: EventTime,
        packet: &Wire,
        driver: &mut impl PortDriver,
    ) {
        let Some(bursts) = &mut self.ports[id.0 as usize] else { return };
        if bursts.on_packet(at.now_ps, packet, self.expire_ps) {
            let port = &mut ports[id.0 as usize];
            // Departures before this packet are computed with the old threshold.
            port.catch_up(at.now_ps, at.scheduled_ps, driver);
            port.set_threshold(bursts.threshold(at.now_ps, self.initial));
        }
    }

    /// Returns the marking threshold of port `id` at `now_ps`, in packets.
    pub fn threshold(&self, id: PortId, now_ps: u64) -> u32 {
        let bursts = self.ports[id.0 as usize].as_ref();
        bursts.map_or(self.initial, |bursts| bursts.threshold(now_ps, self.initial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventQueue;
    use crate::packet::host::Hosts;
    use crate::packet::tcp::TcpConfig;
    use crate::route::Hashes;
    use crate::units::Rate;
    use crate::{Bytes, Connection, Flow, FlowId, HostId, Seed};
    use std::collections::BTreeMap;

    const INITIAL: u32 = 40;
    const HOP: Time = Time::from_ps(1_000_000);
    const TIMEOUT: Time = Time::from_ps(20_000_000);
    const EXPIRE: Time = Time::from_ps(60_000_000);

    fn announced(packets: u32) -> Announced {
        Announced::new(packets).expect("a multiple of five")
    }

    fn of(connection: u32) -> Wire {
        Wire { connection, wire_bytes: 54, ..Wire::NOTHING }
    }

    fn data(connection: u32) -> Wire {
        of(connection).carrying(1380)
    }

    #[test]
    fn the_field_says_what_the_paper_draws() {
        // Kang et al., fig. 7: START flag, ACK flag, and the threshold divided by five in four bits.
        let packet = start(of(3), announced(10), 7);
        assert_eq!((packet.number() as u8, packet.wire_bytes, number(&packet)), (0b1000_1000, 64, 7));
        let reply = answer(&packet, 9);
        assert_eq!((reply.number() as u8, reply.dst, number(&reply)), (0b1100_1000, 9, 7));
        assert_eq!(reply.flags, flag::PCN | flag::REVERSE);
        assert_eq!(Tos(reply.number() as u8).threshold_packets(), 10);
        assert!([0, 5, 75].map(|packets| announced(packets).fifths()) == [0, 1, 15]);
        assert!([1, 12, 80].iter().all(|&packets| Announced::new(packets).is_none()));
    }

    #[test]
    fn the_least_of_eight_tenants_is_in_force_until_its_burst_comes() {
        let mut bursts = Bursts::default();
        for tenant in 0..8 {
            assert!(bursts.on_packet(0, &start(of(tenant), announced(35 - 5 * (tenant % 4)), 0), 1_000));
        }
        // Tenants 3 and 7 have announced a threshold of 20 packets, 2 and 6 of 25, 1 and 5 of 30, 0 and 4 of 35.
        let thresholds = [3, 7, 2, 6, 1, 5, 0, 4].map(|tenant| {
            let before = bursts.threshold(1, INITIAL);
            assert!(bursts.on_packet(1, &data(tenant), 1_000));
            assert!(!bursts.on_packet(1, &data(tenant), 1_000), "one packet takes back one announcement");
            before
        });
        assert_eq!(thresholds, [20, 20, 25, 25, 30, 30, 35, 35]);
        assert_eq!((bursts.threshold(1, INITIAL), bursts.0.len()), (INITIAL, 0));
    }

    #[test]
    fn nothing_but_its_own_segments_takes_an_announcement_back() {
        let mut bursts = Bursts::default();
        bursts.on_packet(0, &start(of(1), announced(10), 0), 1_000);
        let foreign = [
            data(2),
            of(1),
            Wire { generation: 1, ..data(1) },
            Wire { flags: flag::REVERSE, ..data(1) },
            answer(&start(of(1), announced(5), 0), 0),
        ];
        assert!(foreign.iter().all(|packet| !bursts.on_packet(1, packet, 1_000)));
        // A repeated announcement counts once and restarts the expiry.
        bursts.on_packet(500, &start(of(1), announced(15), 1), 1_000);
        assert_eq!((bursts.0.len(), bursts.threshold(1_499, INITIAL)), (1, 15));
        assert_eq!(bursts.threshold(1_500, INITIAL), INITIAL);
        assert!(bursts.on_packet(1_500, &of(2), 1_000) && bursts.0.is_empty());
    }

    /// A xorshift64* random number generator.
    struct Coin(u64);

    impl Coin {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end.max(1)
        }
    }

    /// The hosts of the engine, connected by a row of switches. A switch only has a list of announcements and loses
    /// packets.
    struct Path {
        hosts: Hosts,
        config: TcpConfig,
        now: Time,
        under_way: EventQueue<(usize, Wire)>,
        switches: Vec<Bursts>,
        /// Announcements of each switch, computed independently: threshold and expiry by connection.
        expected: Vec<BTreeMap<(u32, u16), (u32, u64)>>,
        last_start_ps: u64,
        expired_count: usize,
        taken_back_count: usize,
        coin: Coin,
    }

    impl Path {
        fn new(seed: u64, length: usize) -> Self {
            let rate = Rate::from_bps(10_000_000_000).expect("not zero");
            Self {
                hosts: Hosts::new(HOP.ps(), Hashes::new(Seed(0))),
                config: TcpConfig::basic_sim(2, rate, HOP),
                now: Time::ZERO,
                under_way: EventQueue::default(),
                switches: vec![Bursts::default(); length],
                expected: vec![BTreeMap::new(); length],
                last_start_ps: 0,
                expired_count: 0,
                taken_back_count: 0,
                coin: Coin(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            }
        }

        fn put(&mut self, out: &mut Vec<Wire>) {
            for packet in out.drain(..) {
                self.under_way.push(self.now + HOP, (0, packet));
            }
        }

        /// Passes a packet through a switch. One packet in ten is lost after the switch has processed it.
        fn pass(&mut self, hop: usize, packet: Wire) {
            let now_ps = self.now.ps();
            if packet.flags & flag::REVERSE == 0 {
                self.switches[hop].on_packet(now_ps, &packet, EXPIRE.ps());
                let expected = &mut self.expected[hop];
                let count = expected.len();
                expected.retain(|_, &mut (_, until_ps)| until_ps > now_ps);
                self.expired_count += count - expected.len();
                let key = (packet.connection, packet.generation);
                if packet.flags & flag::PCN != 0 {
                    expected.insert(key, (Tos(packet.number() as u8).threshold_packets(), now_ps + EXPIRE.ps()));
                    self.last_start_ps = now_ps;
                } else if packet.has_payload() {
                    self.taken_back_count += usize::from(expected.remove(&key).is_some());
                }
                let least = expected.values().map(|&(threshold, _)| threshold).fold(INITIAL, u32::min);
                assert_eq!(self.switches[hop].threshold(now_ps, INITIAL), least);
                assert_eq!(self.switches[hop].0.len(), expected.len(), "the counter is what has not come");
            }
            if self.coin.below(10) == 0 {
                if packet.connection != u32::MAX {
                    self.hosts.on_drop(self.now, &packet);
                }
            } else {
                self.under_way.push(self.now + HOP, (hop + 1, packet));
            }
        }

        fn run(&mut self, until: Time) -> usize {
            let mut out = Vec::new();
            loop {
                let (timer_ps, follow_up_ps) = self.hosts.next_at_ps();
                let timer = Time::from_ps(timer_ps.min(follow_up_ps));
                let packet = self.under_way.next_at().unwrap_or(Time::MAX);
                if packet.min(timer) > until || packet.min(timer) == Time::MAX {
                    break;
                }
                self.now = packet.min(timer);
                self.hosts.apply_losses(self.now.ps());
                if packet > timer {
                    if let Some(due) = self.hosts.pop(self.now) {
                        self.hosts.on_event(&self.config, self.now, due, u64::MAX, &mut out);
                    }
                } else if let Some((_, (hop, packet))) = self.under_way.pop_until(self.now) {
                    if hop < self.switches.len() {
                        self.pass(hop, packet);
                    } else if packet.connection != u32::MAX {
                        self.hosts.deliver(&self.config, self.now, &packet, u64::MAX, &mut out);
                    }
                }
                self.put(&mut out);
            }
            self.now = until.min(Time::from_ps(u64::MAX / 4));
            std::mem::take(&mut self.hosts.done).len()
        }
    }

    /// Runs ten thousand random sequences of announcements and bursts of up to eight tenants. Each switch loses one
    /// tenth of the packets of every kind: START, ACK, data and acknowledgements. Some hosts fail between announcement
    /// and burst.
    #[test]
    fn whatever_is_lost_every_burst_is_sent_and_every_threshold_restored() {
        let (mut taken_back_count, mut expired_count) = (0, 0);
        for seed in 0..10_000 {
            let mut path = Path::new(seed, 1 + seed as usize % 3);
            let (mut out, mut complete) = (Vec::new(), 0);
            let flow_count = 1 + path.coin.below(8);
            for id in 0..flow_count {
                let tenant = path.coin.below(8) as u32;
                let connection = if path.coin.below(2) == 0 { Connection::Own } else { Connection::Stream };
                let bytes = Bytes(1 + path.coin.below(12_000));
                let flow = Flow { stream: tenant, connection, ..Flow::alone(HostId(0), HostId(1), bytes) };
                let threshold = announced(5 * path.coin.below(8) as u32);
                let announced = (path.coin.below(4) > 0).then_some((threshold, TIMEOUT));
                let (config, now) = (path.config.clone(), path.now);
                path.hosts.start(&config, now, FlowId(id), &flow, announced, (PortId(0), PortId(1)), &mut out);
                path.put(&mut out);
                if path.coin.below(4) == 0 {
                    // This host fails right after its announcement.
                    path.pass(0, start(Wire { generation: id as u16, ..of(u32::MAX) }, threshold, 0));
                }
                let pause = Time::from_ps(path.coin.below(100) * 1_000_000);
                complete += path.run(now + pause);
            }
            complete += path.run(Time::MAX);
            assert_eq!(complete as u64, flow_count, "a lost announcement delays its burst and no more");
            let bound_ps = path.last_start_ps + EXPIRE.ps();
            for switch in &path.switches {
                assert_eq!(switch.threshold(bound_ps, INITIAL), INITIAL);
                // Only announcements of failed hosts remain.
                assert!(switch.0.iter().all(|burst| burst.connection == u32::MAX));
            }
            taken_back_count += path.taken_back_count;
            expired_count += path.expired_count;
        }
        // Both ways in which an announcement ends occurred often: withdrawal and expiry.
        assert!(taken_back_count > 10_000 && expired_count > 1_000, "{taken_back_count} and {expired_count}");
    }
}
