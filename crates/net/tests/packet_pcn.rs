//! Announced bursts on the packet engine: their start, the thresholds on their path, and the cost of a loss.
#![allow(missing_docs)]

mod study;

use gradtide_net::packet::{Capacity, MarkAt, Marking, PcnConfig, QueueConfig};
use gradtide_net::{Announced, Completion, Connection, Flow, Network, PacketConfig, PacketEngine, PortId, Time};
use proptest::prelude::*;
use study::*;

const HOSTS: u32 = 4;
/// Port of the switch that leads to the last host. A star numbers the ports of its hosts first, then those of the
/// switch.
const TO_LAST: PortId = PortId(2 * HOSTS - 1);
const TIMEOUT: Time = Time::from_ps(1_000_000 * NS);
const EXPIRE: Time = Time::from_ps(3_000_000 * NS);

fn engine(capacity: u32, pcn: Option<PcnConfig>) -> PacketEngine {
    PacketEngine::new(&star(HOSTS).graph(), engine_config(capacity, pcn)).unwrap()
}

fn engine_config(capacity: u32, pcn: Option<PcnConfig>) -> PacketConfig {
    let star = star(HOSTS);
    let mut config = PacketConfig { pcn, ..PacketConfig::basic_sim(&star) };
    config.tcp.ecn = true;
    config.switch_queue = QueueConfig {
        marking: Marking::Threshold { packets: 40, at: MarkAt::Enqueue },
        ..QueueConfig::fifo(Capacity::Packets(capacity))
    };
    config
}

fn pcn() -> Option<PcnConfig> {
    Some(PcnConfig { expire: EXPIRE, timeout: TIMEOUT })
}

fn burst(src: u32, bytes: u64) -> Flow {
    background(&Arrival { start_ns: 0, src, dst: HOSTS - 1, bytes, tos: 16 })
}

fn announced(packets: u32) -> Announced {
    Announced::new(packets).unwrap()
}

/// Returns the time at which all flows are complete.
fn end(engine: &mut PacketEngine, flow_count: usize) -> Time {
    let mut done = Vec::new();
    while done.len() < flow_count {
        engine.advance(Time::MAX, &mut done);
    }
    engine.now()
}

#[test]
fn the_burst_begins_when_the_answer_is_here_and_its_first_packet_restores_the_threshold() {
    // The announcement and its answer cross two hops each. A hop takes 10 us, and 51.2 ns (51 in whole nanoseconds) for
    // 64 bytes at 10 Gbit/s.
    let round_ns = 4 * (10_000 + 51);
    let plain = end(
        &mut {
            let mut engine = engine(1000, pcn());
            engine.start(burst(0, 100_000));
            engine
        },
        1,
    );
    let mut engine = engine(1000, pcn());
    engine.start(Flow { announced: Some(announced(10)), ..burst(0, 100_000) });
    let mut done = Vec::new();
    let mut lowered_ns = Vec::new();
    for now_ns in (0..200_000).step_by(100) {
        engine.advance(Time::from_ps(now_ns * NS), &mut done);
        match engine.threshold(TO_LAST) {
            Some(10) => lowered_ns.push(now_ns),
            threshold => assert_eq!(threshold, Some(40)),
        }
        assert_eq!(engine.threshold(PortId(0)), Some(40), "a host is no switch");
    }
    // The threshold is lowered when the announcement reaches the switch, and restored when the first segment reaches
    // it. In between are the round trips of the announcement and of the SYN (47 ns per packet and hop), one hop of 10
    // us, and 1.1 us for a segment of 1434 bytes.
    let (first, last) = (lowered_ns[0], lowered_ns[lowered_ns.len() - 1]);
    assert!((10_051..10_200).contains(&first), "lowered at {first} ns");
    assert!((2 * round_ns + 10_000..2 * round_ns + 11_500).contains(&last), "restored after {last} ns");
    assert!((last - first) / 100 + 1 == lowered_ns.len() as u64, "once and in one piece");
    let waited_ns = (end(&mut engine, 1).ps() - plain.ps()) / NS;
    assert_eq!(waited_ns, round_ns);
}

#[test]
fn what_an_application_needs_first_begins_with_the_answer() {
    let hold_ns = 300_000;
    let held = Flow { hold: Time::from_ps(hold_ns * NS), ..burst(0, 100_000) };
    let mut plain = engine(1000, pcn());
    plain.start(held);
    let mut engine = engine(1000, pcn());
    engine.start(Flow { announced: Some(announced(10)), ..held });
    // The answer to the announcement arrives after a round trip of four hops. The hold begins then and lasts longer
    // than the handshake. The first segment reaches the switch one hop and 1.1 us after the hold.
    let restored_ns = 4 * (10_000 + 51) + hold_ns + 10_000;
    let mut done = Vec::new();
    engine.advance(Time::from_ps((restored_ns - 1_000) * NS), &mut done);
    assert_eq!(engine.threshold(TO_LAST), Some(10));
    engine.advance(Time::from_ps((restored_ns + 2_000) * NS), &mut done);
    assert_eq!(engine.threshold(TO_LAST), Some(40));
    assert_eq!((end(&mut engine, 1) - end(&mut plain, 1)).ps(), 4 * (10_000 + 51) * NS);
}

#[test]
fn a_stream_announces_what_follows_a_pause_and_nothing_else() {
    let run = |is_announced: bool, pause_ns: u64| {
        let mut engine = engine(1000, pcn());
        let flow = Flow { connection: Connection::Stream, stream: 5, ..burst(0, 100_000) };
        engine.start(flow);
        let mut done = Vec::new();
        while done.is_empty() {
            engine.advance(Time::MAX, &mut done);
        }
        engine.advance(engine.now() + Time::from_ps(pause_ns * NS), &mut done);
        let start = engine.start(Flow { announced: is_announced.then(|| announced(10)), ..flow });
        assert_eq!(start.0, 1);
        (end(&mut engine, 1), engine)
    };
    let round = Time::from_ps(4 * (10_000 + 51) * NS);
    let (plain, _) = run(false, 100_000);
    let (with, _) = run(true, 100_000);
    assert_eq!(with - plain, round);
    // After a pause of 1 ns, the acknowledgement of the last segment is in flight. The connection is hence busy and
    // announces nothing.
    assert_eq!(run(true, 1).0, run(false, 1).0);
}

#[test]
fn a_lost_announcement_costs_the_timeout() {
    let star = star(HOSTS);
    let mut config = engine_config(1000, pcn());
    config.host_queue = QueueConfig::fifo(Capacity::Packets(0));
    let closes = |flow_count: u64, is_announced: bool| {
        let mut engine = PacketEngine::new(&star.graph(), config.clone()).unwrap();
        // One of three packets is on the wire, one in the device, and the third is dropped.
        for _ in 0..flow_count {
            engine.start(Flow { announced: is_announced.then(|| announced(5)), ..burst(0, 1_000) });
        }
        let mut done = Vec::new();
        while !done.iter().any(|completion: &Completion| completion.flow.0 + 1 == flow_count) {
            engine.advance(Time::MAX, &mut done);
        }
        engine.now()
    };
    assert_eq!(closes(3, true), closes(1, false) + TIMEOUT);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Several tenants send bursts through full queues. Announcements, answers and data are lost.
    #[test]
    fn every_burst_ends_and_every_threshold_is_restored(
        capacity in 0_u32..30,
        has_pcn in any::<bool>(),
        bursts in prop::collection::vec((0..HOSTS - 1, 0_u64..200_000, 0_u32..16, any::<bool>(), 0_u64..300), 1..12),
    ) {
        let run = |is_announced: bool| {
            let mut engine = engine(capacity, pcn().filter(|_| has_pcn));
            let mut done = Vec::new();
            for &(src, bytes, fifths, is_stream, pause_us) in &bursts {
                let connection = if is_stream { Connection::Stream } else { Connection::Own };
                let announced = is_announced.then(|| announced(5 * fifths));
                engine.start(Flow { connection, stream: src, announced, ..burst(src, bytes) });
                let until = engine.now() + Time::from_ps(pause_us * 1000 * NS);
                while engine.now() < until {
                    engine.advance(until, &mut done);
                }
            }
            let missing = bursts.len() - done.len();
            let ended = end(&mut engine, missing);
            engine.advance(ended + EXPIRE, &mut done);
            prop_assert!(engine.conserves_packets());
            for port in 0..2 * HOSTS {
                prop_assert_eq!(engine.threshold(PortId(port)), Some(40));
            }
            Ok(ended)
        };
        let (announced, plain) = (run(true)?, run(false)?);
        prop_assert!(has_pcn || announced == plain, "switches without PCN heed nothing");
    }
}
