//! Compares the forwarder and the replay with runs of the packet engine, packet by packet.

use super::super::buffer::SharedBuffer;
use super::super::event_key::EventTime;
use super::super::tcp::Follow;
use super::super::{Capacity, Discipline, Log, MarkAt, Marking, PacketEngine, PcnConfig, QueueConfig};
use super::*;
use crate::topology::{FatTree, Link, Star};
use crate::units::{Bytes, Rate};
use crate::{Announced, Connection, Flow, Network};
use proptest::prelude::*;
use std::collections::BTreeMap;

const HOSTS: u32 = 6;
const US: u64 = 1_000_000;

/// An observed packet: time of the arrival or drop, start of its transmission, port, number and flags.
type Seen = (u64, u64, u32, u64, u8);

/// A flow: start in us, source, distance from source to destination in host numbers, bytes, band, whether announced.
type TestFlow = (u64, u32, u32, u64, u8, bool);

fn link(gbps: u64, delay_us: u64) -> Link {
    Link { rate: Rate::from_bps(gbps * 1_000_000_000).unwrap(), delay: Time::from_ps(delay_us * US) }
}

/// Returns a star, or two leaf switches with three hosts each and two paths between them, whose uplinks are slower.
fn graph(is_star: bool) -> Graph {
    if is_star {
        return Star { host_count: HOSTS, link: link(10, 10) }.graph();
    }
    FatTree::leaf_spine(2, HOSTS / 2, 2, link(10, 10), link(5, 7)).unwrap().graph()
}

/// On the star, hosts' ports drop packets, as in ns-3. On the leaf-spine network, they hold back their senders.
fn config(is_star: bool, queue: QueueConfig, buffer: Option<SharedBuffer>, pcn: Option<PcnConfig>) -> PacketConfig {
    let mut config = PacketConfig::basic_sim(&Star { host_count: HOSTS, link: link(10, 10) });
    config.tcp.ecn = true;
    config.tcp.follow = if is_star { Follow::Ns3 } else { Follow::Standards };
    PacketConfig { switch_queue: queue, switch_buffer: buffer, pcn, ..config }
}

/// Runs `flows` on the engine and returns its log.
fn run(graph: &Graph, config: &PacketConfig, flows: &[TestFlow]) -> Log {
    let is_star = graph.switch_count == 1;
    let mut engine = PacketEngine::new(graph, config.clone()).unwrap();
    engine.log = Some(Box::default());
    for &(start_us, src, ahead, bytes, band, is_announced) in flows {
        let flow = Flow {
            band: Band::new(band).unwrap(),
            // A stream's connection is never closed. The engine may route late packets of a closed connection by the
            // hash of the next connection in the same slot, which the forwarder does not do.
            connection: if band % 2 == 0 && is_star { Connection::Own } else { Connection::Stream },
            announced: is_announced.then(|| Announced::new(5).unwrap()),
            stream: src,
            ..Flow::alone(HostId(src), HostId((src + ahead) % HOSTS), Bytes(bytes))
        };
        engine.schedule(Time::from_ps(start_us * US), flow);
    }
    let mut done = Vec::new();
    while !engine.is_idle() {
        engine.advance(Time::MAX, &mut done);
    }
    assert_eq!(done.len(), flows.len());
    *engine.log.unwrap()
}

/// The packets that hosts sent in a run, with connections numbered in the forwarder's way.
struct Sent {
    origins: Vec<Origin>,
    packets: Vec<(EventTime, Wire)>,
}

impl Sent {
    fn of(log: &Log) -> Self {
        let mut known: BTreeMap<(u32, u16, u8), u32> = BTreeMap::new();
        let mut origins = Vec::new();
        let packets = log.sent.iter().map(|&(at, src, hash, packet)| {
            let key = (packet.connection, packet.generation, packet.flags & flag::REVERSE);
            let connection = *known.entry(key).or_insert_with(|| {
                origins.push(Origin { src: HostId(src), hash });
                (origins.len() - 1) as u32
            });
            // Events of hosts take place either before all arrivals of the same time or after them.
            let sequence = match log.first_arrivals.get(&at.now_ps) {
                Some(&first) if at.sequence >= first => FIRST_ARRIVAL + at.sequence - first,
                _ => at.sequence,
            };
            (EventTime { sequence, ..at }, Wire { connection, generation: 0, ..packet })
        });
        let packets = packets.collect();
        Self { origins, packets }
    }
}

fn seen(at_ps: u64, start_ps: u64, port: u32, packet: &Wire) -> Seen {
    (at_ps, start_ps, port, packet.number(), packet.flags)
}

/// Sends the packets of a log through a forwarder that is advanced every `step_ps`. Returns all arrivals and drops.
fn forward(graph: &Graph, config: &PacketConfig, sent: &Sent, step_ps: u64) -> (Vec<Seen>, Vec<Seen>, Forwarder) {
    let mut forwarder = Forwarder::new(graph, config).unwrap();
    forwarder.fabric.origins = sent.origins.clone();
    let (mut arrivals, mut drops, mut decisions) = (Vec::new(), Vec::new(), Vec::new());
    let mut advance = |forwarder: &mut Forwarder, until_ps: u64, drops: &mut Vec<Seen>| {
        let Fabric { ports, driver, .. } = &mut forwarder.fabric;
        while let Some((at_ps, link)) = driver.pop_host(until_ps) {
            ports[link as usize].on_schedule(at_ps, driver);
        }
        let until_ps = until_ps.saturating_add(forwarder.lookahead_ps);
        while let Some(next) = forwarder.fabric.driver.pop(until_ps) {
            let Next::Arrival(arrival) = next else {
                forwarder.on_event(next, &mut decisions);
                continue;
            };
            arrivals.push(seen(arrival.at_ps, arrival.start_ps, arrival.link, &arrival.packet));
            forwarder.on_event(next, &mut decisions);
            for decision in decisions.drain(..) {
                if let Some(port) = decision.dropped_by {
                    drops.push(seen(decision.at.ps(), 0, port.0, &arrival.packet));
                }
            }
            let (at_switch_ps, at_host_ps) = forwarder.fabric.driver.next_ps();
            assert!(at_switch_ps.min(at_host_ps) >= arrival.at_ps, "time never goes back");
        }
        forwarder.fabric.driver.drop_ended_trains(&mut forwarder.fabric.ports);
    };
    let mut now_ps = 0;
    for &(at, packet) in &sent.packets {
        while now_ps + step_ps < at.now_ps {
            now_ps += step_ps;
            advance(&mut forwarder, now_ps, &mut drops);
        }
        let (port, verdict) = forwarder.fabric.enter(at, packet);
        if verdict == Verdict::Dropped {
            drops.push(seen(at.now_ps, 0, port.0, &packet));
        }
    }
    advance(&mut forwarder, u64::MAX, &mut drops);
    (arrivals, drops, forwarder)
}

fn sorted(mut list: Vec<Seen>) -> Vec<Seen> {
    list.sort_unstable();
    list
}

/// Asserts that the forwarder treats the packets of an engine's run as the engine did. Returns the numbers of arrivals,
/// drops and marks.
fn assert_same(graph: &Graph, config: &PacketConfig, flows: &[TestFlow], step_ps: u64) -> (usize, usize, usize) {
    let log = run(graph, config, flows);
    let sent = Sent::of(&log);
    let (arrivals, drops, _) = forward(graph, config, &sent, step_ps);
    let of_engine: Vec<Seen> =
        log.arrivals.iter().map(|(at_ps, start_ps, link, packet)| seen(*at_ps, *start_ps, *link, packet)).collect();
    for (index, (ours, engine)) in arrivals.iter().zip(&of_engine).enumerate() {
        assert_eq!(ours, engine, "arrival {index}");
    }
    assert_eq!(arrivals.len(), of_engine.len());
    let of_engine: Vec<Seen> = log.drops.iter().map(|(at_ps, port, packet)| seen(*at_ps, 0, *port, packet)).collect();
    // The lists are sorted, because the forwarder advances hosts' ports before earlier events of switches.
    assert_eq!(sorted(drops), sorted(of_engine.clone()));
    let marks = log.arrivals.iter().filter(|(.., packet)| packet.flags & flag::CE != 0).count();
    (log.arrivals.len(), of_engine.len(), marks)
}

/// Returns flows from all hosts to all hosts that overload several ports simultaneously.
fn flows() -> Vec<TestFlow> {
    let flow = |index: u32| {
        let (src, ahead) = (index % HOSTS, 1 + index / 2 % (HOSTS - 1));
        (
            u64::from(index / 4) * 30,
            src,
            ahead,
            60_000 + 977 * u64::from(index),
            (index % 5) as u8,
            index.is_multiple_of(3),
        )
    };
    (0..60).map(flow).collect()
}

fn queues() -> Vec<(&'static str, QueueConfig, Option<SharedBuffer>, Option<PcnConfig>)> {
    let few = Capacity::Packets(25);
    let fifo = QueueConfig::fifo(few);
    let by = |discipline| QueueConfig { discipline, ..fifo.clone() };
    let marked = |marking| QueueConfig { marking, ..fifo.clone() };
    let threshold = |at| marked(Marking::Threshold { packets: 8, at });
    let red = |ecn| {
        let (min_packets, max_packets, max_probability_ppm, weight_ppm) = (4, 18, 100_000, 50_000);
        marked(Marking::Red { min_packets, max_packets, max_probability_ppm, weight_ppm, ecn })
    };
    let expire = Time::from_ps(500 * US);
    let pcn = PcnConfig { expire, timeout: Time::from_ps(300 * US) };
    let shared = SharedBuffer { capacity: Capacity::Bytes(70_000), alpha_ppm: 500_000 };
    vec![
        ("fifo", fifo.clone(), None, None),
        ("pfifo_fast", by(Discipline::PfifoFast), None, None),
        ("strict", by(Discipline::Strict { bands: 5 }), None, None),
        ("drr", by(Discipline::Drr { weights: vec![3, 1, 1, 2, 1] }), None, None),
        ("ecn on arrival", threshold(MarkAt::Enqueue), None, None),
        ("ecn on departure", threshold(MarkAt::Dequeue), None, None),
        ("red", red(false), None, None),
        ("red with ecn", red(true), None, None),
        ("shared buffer", QueueConfig::pfifo_fast(), Some(shared), None),
        ("pcn", threshold(MarkAt::Enqueue), None, Some(pcn)),
        ("pcn with a shared buffer", threshold(MarkAt::Enqueue), Some(shared), Some(pcn)),
    ]
}

#[test]
fn every_discipline_decides_as_in_the_engine() {
    for is_star in [true, false] {
        for (name, queue, buffer, pcn) in queues() {
            let marks_some = queue.marking.threshold().is_some();
            let found = assert_same(&graph(is_star), &config(is_star, queue, buffer, pcn), &flows(), 3 * US);
            let (packets, drops, marks) = found;
            assert!(packets > 10_000 && drops > 0, "{name}: {found:?}");
            assert!(!marks_some || marks > 100, "{name}: {found:?}");
        }
    }
}

fn frames(flows: &[(u64, u32, u32, u16, u8, u8)]) -> (Vec<Origin>, Vec<(Time, Frame)>) {
    let mut now_ps = 0;
    let mut origins = Vec::new();
    let frames = flows.iter().enumerate().map(|(number, &(pause_ns, src, ahead, wire_bytes, band, kind))| {
        now_ps += pause_ns * 1_000;
        origins.push(Origin { src: HostId(src), hash: src.wrapping_mul(0x9e37_79b9).wrapping_add(ahead) });
        let kind = match kind {
            0 => Kind::Announcement(0b1000_0100),
            1 => Kind::Empty,
            _ => Kind::Data,
        };
        let number = number as u32;
        let frame = Frame {
            number,
            connection: number,
            dst: HostId((src + ahead) % HOSTS),
            wire_bytes,
            band: Band::new(band).unwrap(),
            is_ecn_capable: !number.is_multiple_of(4),
            kind,
        };
        (Time::from_ps(now_ps), frame)
    });
    let frames = frames.collect();
    (origins, frames)
}

#[test]
fn a_late_packet_is_sent_later_and_counted() {
    let config = config(true, QueueConfig::pfifo_fast(), None, None);
    let mut forwarder = Forwarder::new(&graph(true), &config).unwrap();
    let connection = forwarder.open(Origin { src: HostId(1), hash: 0 });
    let (_, frames) = frames(&[(0, 1, 2, 1_000, 0, 2)]);
    let frame = Frame { connection, ..frames[0].1 };
    let mut decisions = Vec::new();
    // Delay of 10 us, and 43 ns for 54 bytes at 10 Gbit/s, in whole nanoseconds.
    assert_eq!(forwarder.lookahead().ps(), 10 * US + 43_000);
    forwarder.advance(Time::from_ps(5 * US), &mut decisions);
    assert_eq!(forwarder.send(Time::from_ps(5 * US), &frame, &mut decisions), Time::ZERO);
    assert_eq!(forwarder.send(Time::from_ps(2 * US), &frame, &mut decisions).ps(), 3 * US);
    forwarder.advance(Time::from_ps(100 * US), &mut decisions);
    // Two hops of 10 us; 1,000 bytes at 10 Gbit/s take 0.8 us.
    let times: Vec<u64> = decisions.iter().map(|decision| decision.at.ps()).collect();
    assert_eq!(times, [26_600_000, 27_400_000]);
    let counters = forwarder.port_counters(PortId(HOSTS + 3));
    assert_eq!((counters.packets, counters.bytes, counters.busy.ps()), (2, 2_000, 1_600_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn runs_of_the_engine_are_forwarded_as_they_were(
        flows in prop::collection::vec(
            (0_u64..600, 0..HOSTS, 1..HOSTS, 1_u64..120_000, 0_u8..8, any::<bool>()), 1..24,
        ),
        is_star: bool,
        queue in prop::sample::select(queues()),
        step_ps in US / 10..50 * US,
    ) {
        let (_, queue, buffer, pcn) = queue;
        assert_same(&graph(is_star), &config(is_star, queue, buffer, pcn), &flows, step_ps);
    }

    #[test]
    fn a_replay_of_what_was_forwarded_decides_the_same(
        flows in prop::collection::vec(
            (0_u64..700, 0..HOSTS, 1..HOSTS, 60_u16..=1_434, 0_u8..8, 0_u8..8), 1..900,
        ),
        is_star: bool,
        queue in prop::sample::select(queues()),
        hold_back_ps in prop_oneof![Just(0), 0..10 * US],
    ) {
        let (_, queue, buffer, pcn) = queue;
        let (graph, config) = (graph(is_star), config(is_star, queue, buffer, pcn));
        let (origins, frames) = frames(&flows);
        let mut forwarder = Forwarder::new(&graph, &config).unwrap();
        for origin in &origins {
            forwarder.open(*origin);
        }
        let mut decisions = Vec::new();
        for (at, frame) in &frames {
            // All packets sent before `at` are known.
            forwarder.advance(Time::from_ps(at.ps().saturating_sub(hold_back_ps)), &mut decisions);
            prop_assert_eq!(forwarder.send(*at, frame, &mut decisions), Time::ZERO);
        }
        forwarder.advance(Time::MAX, &mut decisions);
        let mut replayed = replay(&graph, &config, &origins, &frames).unwrap();
        prop_assert_eq!(decisions.len(), frames.len());
        // The lists are sorted, because hosts' ports may drop packets before earlier events of switches are processed,
        // and because simultaneous decisions have no defined order.
        decisions.sort_unstable_by_key(|decision| (decision.at, decision.number));
        replayed.sort_unstable_by_key(|decision| (decision.at, decision.number));
        prop_assert_eq!(decisions, replayed);
    }
}
