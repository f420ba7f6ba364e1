//! Tests of all kinds of queues, of shared buffers, and of the states that observers read.
#![allow(missing_docs)]

mod study;

use gradtide_net::packet::{Capacity, Discipline, MarkAt, Marking, QueueConfig, SharedBuffer};
use gradtide_net::topology::{Directed, NodeId};
use gradtide_net::trace::PortState;
use gradtide_net::{Band, FatTree, Flow, Network, PacketConfig, PacketEngine, PortId, Time};
use proptest::prelude::*;
use study::*;

const HOSTS: u32 = 5;
const PORTS: u32 = 2 * HOSTS;
const LINK_BPS: f64 = 1e10;

fn engine_of(queue: QueueConfig, switch_buffer: Option<SharedBuffer>) -> PacketEngine {
    let star = star(HOSTS);
    let base = PacketConfig::basic_sim(&star);
    let config = PacketConfig { host_queue: queue.clone(), switch_queue: queue, switch_buffer, ..base };
    PacketEngine::new(&star.graph(), config).unwrap()
}

fn arrival(start_ns: u64, src: u32, dst: u32, bytes: u64) -> Arrival {
    Arrival { start_ns, src, dst, bytes, tos: 16 }
}

fn incast(bytes: u64) -> Vec<Arrival> {
    (0..4).map(|src| arrival(0, src, 4, bytes)).collect()
}

/// Returns the completion times of flows, each in the given band.
fn closes_ns(engine: &mut PacketEngine, flows: &[(Arrival, u8)]) -> Vec<u64> {
    for (arrival, band) in flows {
        engine.start(Flow { band: Band::new(*band).unwrap(), ..background(arrival) });
    }
    let (mut closes, mut done) = (vec![0; flows.len()], Vec::new());
    while closes.contains(&0) {
        engine.advance(Time::MAX, &mut done);
        for completion in done.drain(..) {
            closes[completion.flow.0 as usize] = engine.now().ps() / NS;
        }
    }
    closes
}

#[test]
fn weighted_bands_share_a_link_by_their_weights() {
    // Two flows that always have packets waiting share the link 3 to 1 while both send. Of 60 MB each, the first
    // completes when 80 MB have crossed the link, the second when all 120 MB have. Slow start and the rounds of the
    // scheduler shift these times by less than 3 %: the window has to open to 32 MiB, 14 doublings of a 1 ms round at
    // most.
    let discipline = Discipline::Drr { weights: vec![3, 1] };
    let queue = QueueConfig { discipline, capacity: Capacity::Packets(200_000), marking: Marking::None };
    let bytes = 60_000_000;
    let flows = [(arrival(0, 0, 2, bytes), 0), (arrival(0, 1, 2, bytes), 1)];
    let closes = closes_ns(&mut engine_of(queue, None), &flows);
    let wire_s = bytes as f64 * (1434.0 / 1380.0) * 8.0 / LINK_BPS;
    for (close_ns, share) in closes.iter().zip([4.0 / 3.0, 2.0]) {
        let (found, expected) = (*close_ns as f64 * 1e-9, share * wire_s);
        assert!((found / expected - 1.0).abs() < 0.03, "{found} s against {expected} s");
    }
}

#[test]
fn a_buffer_in_bytes_holds_as_many_full_packets_as_fit() {
    let queue = QueueConfig::fifo(Capacity::Bytes(50 * 1434));
    let mut engine = engine_of(queue, None);
    assert!(replay(&mut engine, &incast(2_000_000)).iter().all(Option::is_some));
    let counters = engine.port_counters(PortId(HOSTS + 4));
    assert!(counters.queue_bytes_max <= 50 * 1434 && counters.queue_packets_max >= 50 && counters.drops > 0);
}

#[test]
fn one_busy_port_of_a_shared_buffer_behaves_as_one_with_the_whole_buffer() {
    // With alpha as large as the buffer, a single queue may fill all of it.
    let capacity = Capacity::Packets(60);
    let shared = SharedBuffer { capacity, alpha_ppm: 60_000_000 };
    let queue = QueueConfig { capacity, ..QueueConfig::pfifo_fast() };
    let results = |buffer| {
        let mut engine = engine_of(queue.clone(), buffer);
        let fcts = replay(&mut engine, &incast(3_000_000));
        assert!(engine.counters().drops > 0);
        (fcts.iter().map(|fct| fct.unwrap().close_ns).collect::<Vec<_>>(), engine.counters())
    };
    assert_eq!(results(Some(shared)), results(None));
}

#[test]
fn a_busy_port_leaves_room_in_a_shared_buffer() {
    // A single queue is limited to alpha B / (1 + alpha), half of the buffer B with alpha = 1. The threshold with which
    // the last admitted packet was compared shrinks with that packet, so half of the packet may exceed it.
    let shared = SharedBuffer { capacity: Capacity::Bytes(400_000), alpha_ppm: 1_000_000 };
    let mut engine = engine_of(QueueConfig::pfifo_fast(), Some(shared));
    replay(&mut engine, &incast(3_000_000));
    let counters = engine.port_counters(PortId(HOSTS + 4));
    assert!(counters.drops > 0);
    assert!((200_000 - 2 * 1434..=200_000 + 1434 / 2).contains(&counters.queue_bytes_max), "{counters:?}");
}

/// Compares the fabric with another one that lists its links in another order and has an additional idle host on its
/// second leaf. RED drops the same packets in both.
#[test]
fn an_idle_host_and_another_order_of_links_change_no_coin_of_red() {
    let link = star(4).link;
    let plain = FatTree::leaf_spine(2, 2, 3, link, link).unwrap().graph();
    let mut other = plain.clone();
    other.host_count += 1;
    let moved = |node: NodeId| if node.0 < plain.host_count { node } else { NodeId(node.0 + 1) };
    for directed in &mut other.links {
        (directed.from, directed.to) = (moved(directed.from), moved(directed.to));
    }
    let (idle, leaf) = (NodeId(4), NodeId(6));
    other.links.extend([Directed { from: idle, to: leaf, link }, Directed { from: leaf, to: idle, link }]);
    other.links.reverse();
    let marking =
        Marking::Red { min_packets: 2, max_packets: 20, max_probability_ppm: 200_000, weight_ppm: 100_000, ecn: false };
    let queue = QueueConfig { marking, ..QueueConfig::fifo(Capacity::Packets(100)) };
    let flows: Vec<Arrival> = (0..12_u32)
        .map(|index| arrival(1_000 * u64::from(index), index % 2, 2 + index / 2 % 2, 300_000 + u64::from(index)))
        .collect();
    let [plain, other] = [plain, other].map(|graph| {
        let base = PacketConfig::basic_sim(&star(4));
        let mut engine =
            PacketEngine::new(&graph, PacketConfig { host_queue: queue.clone(), switch_queue: queue.clone(), ..base });
        let engine = engine.as_mut().unwrap();
        let closes: Vec<u64> = replay(engine, &flows).iter().map(|fct| fct.unwrap().close_ns).collect();
        (closes, engine.counters())
    });
    assert!(plain.1.drops > 20, "{:?}", plain.1);
    assert_eq!(plain, other);
}

#[test]
fn what_an_observer_sees_adds_up() {
    let mut engine = engine_of(QueueConfig { capacity: Capacity::Packets(30), ..QueueConfig::pfifo_fast() }, None);
    for arrival in incast(2_000_000) {
        engine.start(background(&arrival));
    }
    let (mut done, mut before) = (Vec::new(), vec![PortState::default(); PORTS as usize]);
    let step_ps = 70_000_001;
    for index in 1..=2_000_u64 {
        while engine.now().ps() < index * step_ps {
            engine.advance(Time::from_ps(index * step_ps), &mut done);
        }
        for port in 0..PORTS {
            let (state, last) = (engine.port_state(PortId(port)), before[port as usize]);
            assert!(state.queue_packets <= 30 && state.queue_bytes <= 30 * 1434);
            let busy_ps = (state.busy - last.busy).ps();
            assert!(busy_ps <= step_ps && state.drops >= last.drops, "busy for {busy_ps} of {step_ps} ps");
            before[port as usize] = state;
        }
    }
    assert_eq!(done.len(), 4);
    for port in 0..PORTS {
        let (state, counters) = (engine.port_state(PortId(port)), engine.port_counters(PortId(port)));
        assert_eq!((state.busy, state.drops, state.queue_packets), (counters.busy, counters.drops, 0));
    }
}

#[test]
fn windows_are_those_of_flows_under_way() {
    let mut engine = engine_of(QueueConfig::pfifo_fast(), None);
    let id = engine.start(background(&arrival(0, 0, 1, 1_000_000)));
    let (found, window) = engine.flow_windows().next().unwrap();
    // At the start, the window is ten segments (RFC 6928), and ssthresh is not set, because nothing was lost.
    assert_eq!((found, window.cwnd.0, window.ssthresh, window.flight.0), (id, 10 * 1380, None, 0));
    let mut done = Vec::new();
    engine.advance(Time::from_ps(100 * 1_000_000), &mut done);
    let (_, window) = engine.flow_windows().next().unwrap();
    assert!(window.flight.0 > 0 && window.flight.0 <= window.cwnd.0, "{window:?}");
    engine.advance(Time::MAX, &mut done);
    assert_eq!((done.len(), engine.flow_windows().count(), engine.is_idle()), (1, 0, false), "the other end closes");
}

fn queues() -> impl Strategy<Value = QueueConfig> {
    let discipline = prop_oneof![
        Just(Discipline::Fifo),
        Just(Discipline::PfifoFast),
        (1_u8..=8).prop_map(|bands| Discipline::Strict { bands }),
        prop::collection::vec(1_u16..4, 1..=8).prop_map(|weights| Discipline::Drr { weights }),
    ];
    let marking = prop_oneof![
        Just(Marking::None),
        (0_u32..20).prop_map(|packets| Marking::Threshold { packets, at: MarkAt::Enqueue }),
        (0_u32..20).prop_map(|packets| Marking::Threshold { packets, at: MarkAt::Dequeue }),
        (0_u32..10, 1_u32..20, any::<bool>()).prop_map(|(min_packets, more, ecn)| Marking::Red {
            min_packets,
            max_packets: min_packets + more,
            max_probability_ppm: 100_000,
            weight_ppm: 100_000,
            ecn,
        }),
    ];
    (discipline, capacities(), marking).prop_map(|(discipline, capacity, marking)| QueueConfig {
        discipline,
        capacity,
        marking,
    })
}

fn capacities() -> impl Strategy<Value = Capacity> {
    prop_oneof![(0_u32..60).prop_map(Capacity::Packets), (0_u64..90_000).prop_map(Capacity::Bytes)]
}

fn buffers() -> impl Strategy<Value = Option<SharedBuffer>> {
    let alpha_ppm = prop::sample::select(vec![125_000_u32, 1_000_000, 8_000_000]);
    prop::option::of((capacities(), alpha_ppm).prop_map(|(capacity, alpha_ppm)| SharedBuffer { capacity, alpha_ppm }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// In debug builds, the engine checks its invariants at every stop: bytes are conserved, queues stay within their
    /// buffers, time does not go back, and all flows are complete when no event is pending.
    #[test]
    fn every_kind_of_queue_delivers_every_flow_and_does_not_feel_that_it_is_watched(
        flows in prop::collection::vec(
            (0_u64..1_000_000, 0..HOSTS, 1..HOSTS, 0_u64..300_000, 0_u8..8), 1..20,
        ),
        queue in queues(),
        buffer in buffers(),
        step_ps in 20_000_000_u64..400_000_000,
    ) {
        let run = |is_watched: bool| {
            let mut engine = engine_of(queue.clone(), buffer);
            for &(start_ns, src, offset, bytes, band) in &flows {
                let arrival = arrival(start_ns, src, (src + offset) % HOSTS, bytes);
                let flow = Flow { band: Band::new(band).unwrap(), ..background(&arrival) };
                engine.schedule(Time::from_ps(start_ns * NS), flow);
            }
            let (mut done, mut ends) = (Vec::new(), Vec::new());
            while ends.len() < flows.len() {
                assert!(!engine.is_idle(), "flows are left and nothing happens");
                let is_early = is_watched && engine.now().ps() < 2_000 * step_ps;
                let until = if is_early { engine.now() + Time::from_ps(step_ps) } else { Time::MAX };
                engine.advance(until, &mut done);
                ends.extend(done.drain(..).map(|completion| (completion.flow, completion.received, engine.now())));
                if is_early {
                    (0..PORTS).for_each(|port| _ = engine.port_state(PortId(port)));
                }
            }
            assert!(engine.conserves_packets());
            let ports: Vec<_> = (0..PORTS).map(|port| engine.port_counters(PortId(port))).collect();
            (ends, ports, engine.counters())
        };
        prop_assert_eq!(run(true), run(false));
    }
}
