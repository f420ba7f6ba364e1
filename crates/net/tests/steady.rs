//! Steady stretches, skipped, beside the exact engine: when flows end, and how many packets that takes.
#![allow(missing_docs)]

mod study;

use gradtide_net::packet::tcp::CongestionAlgorithm;
use gradtide_net::packet::{MarkAt, Marking, QueueConfig, Steady};
use gradtide_net::trace::PortCounters;
use gradtide_net::{Bytes, Connection, Flow, FlowId, HostId, Network, PacketConfig, PacketEngine, PortId, Time};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use study::*;

const MB: u64 = 1_000_000;

fn ppm(ppm: u32) -> NonZeroU32 {
    NonZeroU32::new(ppm).unwrap()
}

fn engine_of(host_count: u32, change: impl FnOnce(&mut PacketConfig)) -> PacketEngine {
    let star = star(host_count);
    let mut config = PacketConfig::basic_sim(&star);
    change(&mut config);
    PacketEngine::new(&star.graph(), config).unwrap()
}

fn dctcp(config: &mut PacketConfig) {
    config.tcp.algorithm = CongestionAlgorithm::Dctcp { gain_ppm: 62_500 };
    config.tcp.ecn = true;
    config.switch_queue =
        QueueConfig { marking: Marking::Threshold { packets: 65, at: MarkAt::Enqueue }, ..QueueConfig::pfifo_fast() };
    config.host_queue = config.switch_queue.clone();
}

fn alone(src: u32, dst: u32, bytes: u64) -> Flow {
    Flow::alone(HostId(src), HostId(dst), Bytes(bytes))
}

fn stream(src: u32, dst: u32, bytes: u64) -> Flow {
    Flow { connection: Connection::Stream, ..alone(src, dst, bytes) }
}

/// Completion times in seconds, of flows that start at times in nanoseconds, in order.
fn times(network: &mut impl Network, list: &[(u64, Flow)]) -> Vec<f64> {
    let mut ends: BTreeMap<FlowId, f64> = BTreeMap::new();
    let (mut begun, mut done) = (BTreeMap::new(), Vec::new());
    let mut see = |network: &mut dyn Network, until: Time, begun: &BTreeMap<FlowId, Time>, count: usize| {
        while network.now() < until && ends.len() < count {
            network.advance(until, &mut done);
            let now = network.now();
            for completion in done.drain(..) {
                assert!(completion.began >= begun[&completion.flow] && completion.received <= now);
                ends.insert(completion.flow, (now - begun[&completion.flow]).ps() as f64 * 1e-12);
            }
        }
    };
    for &(at_ns, flow) in list {
        let at = Time::from_ps(at_ns * NS);
        see(network, at, &begun, usize::MAX);
        let id = network.start(flow);
        begun.insert(id, at);
    }
    see(network, Time::MAX, &begun, list.len());
    ends.into_values().collect()
}

/// How the two compare.
#[derive(Debug)]
struct Compared {
    exact: Vec<f64>,
    bounded: Vec<f64>,
    /// Packet hops simulated, exact over bounded.
    gain: f64,
    /// By port, exact and bounded.
    ports: Vec<(PortCounters, PortCounters)>,
}

impl Compared {
    /// Of each completion time.
    fn errors(&self) -> impl Iterator<Item = f64> {
        self.exact.iter().zip(&self.bounded).map(|(exact, bounded)| (bounded / exact - 1.0).abs())
    }

    /// The largest error of a completion time.
    fn worst(&self) -> f64 {
        self.errors().fold(0.0, f64::max)
    }

    /// The error of the mean.
    fn mean(&self) -> f64 {
        (self.bounded.iter().sum::<f64>() / self.exact.iter().sum::<f64>() - 1.0).abs()
    }
}

fn compare(engine: &PacketEngine, accuracy: u32, list: &[(u64, Flow)]) -> Compared {
    let (mut exact, mut bounded) = (engine.clone(), Steady::new(engine.clone(), ppm(accuracy)));
    let (of_exact, of_bounded) = (times(&mut exact, list), times(&mut bounded, list));
    let simulated = bounded.counters().packet_hops - bounded.skipped_hops();
    Compared {
        exact: of_exact,
        bounded: of_bounded,
        gain: exact.counters().packet_hops as f64 / simulated as f64,
        ports: (0..16).map(PortId).map(|port| (exact.port_counters(port), bounded.port_counters(port))).collect(),
    }
}

/// Without marks, and with marks and DCTCP.
fn transports() -> [PacketEngine; 2] {
    [engine_of(8, |_| ()), engine_of(8, dctcp)]
}

#[test]
fn a_long_flow_alone_takes_a_thirtieth_of_the_packets() {
    const BYTES: u64 = 4_000 * MB;
    for (engine, flow) in transports().into_iter().zip([alone(0, 1, BYTES), stream(0, 1, BYTES)]) {
        let mut bounded = Steady::new(engine, ppm(10_000));
        let took = times(&mut bounded, &[(0, flow)])[0];
        let hops = bounded.counters().packet_hops;
        let simulated = hops - bounded.skipped_hops();
        assert!(simulated * 30 <= hops, "{simulated} of {hops} hops");
        // The link is busy but for the first round trips: 1434 bytes on the wire for 1380 of payload at 10 Gbit/s.
        let segments = BYTES.div_ceil(1380);
        let least = segments as f64 * 1147e-9;
        assert!((least..=1.01 * least).contains(&took), "{took} s, at least {least} s");
        let port = bounded.port_counters(PortId(0));
        assert!((port.bytes as f64 / (segments * 1434) as f64 - 1.0).abs() < 0.01, "{port:?}");
        assert!((port.busy.ps() as f64 * 1e-12 / least - 1.0).abs() < 0.01, "{port:?}");
    }
}

#[test]
fn flows_on_links_of_their_own_end_within_the_accuracy() {
    // Both kinds of connections, and one that starts while the others are under way.
    let list = [(0, alone(0, 4, 150 * MB)), (0, stream(1, 5, 150 * MB)), (30_000_000, stream(2, 6, 100 * MB))];
    for engine in transports() {
        for accuracy in [1_000, 10_000, 100_000] {
            let compared = compare(&engine, accuracy, &list);
            assert!(compared.worst() <= f64::from(accuracy) * 1e-6, "{compared:?}");
            assert!(compared.gain > 2.0, "{compared:?}");
        }
    }
}

#[test]
fn messages_around_a_ring_end_within_the_accuracy() {
    // Every host sends and receives, so that acknowledgements wait behind data.
    let ring = |at_ns| (0..8).map(move |host| (at_ns, stream(host, (host + 1) % 8, 100 * MB)));
    let list: Vec<_> = ring(0).chain(ring(100_000_000)).collect();
    let compared = compare(&engine_of(8, dctcp), 10_000, &list);
    assert!(compared.worst() <= 0.01 && compared.gain > 4.0, "{compared:?}");
    for (exact, bounded) in compared.ports {
        assert!((bounded.bytes as f64 / exact.bytes as f64 - 1.0).abs() < 0.01, "{exact:?} {bounded:?}");
        assert!((bounded.busy.ps() as f64 / exact.busy.ps() as f64 - 1.0).abs() < 0.01, "{exact:?} {bounded:?}");
    }
}

#[test]
fn flows_that_share_a_port_are_not_steady_for_a_long_time() {
    // NewReno's sawteeth here take a quarter of a second: the mean over many is never known.
    let list: Vec<_> = (0..4).map(|src| (0, alone(src, 7, 50 * MB))).collect();
    let [unmarked, marked] = transports();
    let compared = compare(&unmarked, 10_000, &list);
    assert_eq!((compared.exact, compared.gain), (compared.bounded, 1.0));
    // Those of DCTCP take a millisecond.
    let compared = compare(&marked, 100_000, &list);
    assert!(compared.mean() <= 0.1 && compared.worst() <= 0.3 && compared.gain > 1.5, "{compared:?}");
}

#[test]
fn where_something_always_starts_every_packet_is_simulated() {
    let flow = |index: u32| (u64::from(index) * 50_000, alone(index % 7, 7 - index % 3, 40_000 + u64::from(index)));
    let list: Vec<_> = (0..400).filter(|index| index % 7 != 7 - index % 3).map(flow).collect();
    for engine in transports() {
        let compared = compare(&engine, 100_000, &list);
        assert_eq!((compared.exact, compared.gain), (compared.bounded, 1.0));
        assert!(compared.ports.iter().all(|(exact, bounded)| exact == bounded));
    }
}

#[test]
fn what_waits_to_be_written_is_written_in_time() {
    // Nothing is skipped until it is.
    let late = Flow { hold: Time::from_ps(60 * MS), ..stream(2, 3, MB) };
    let list = [(0, stream(0, 1, 200 * MB)), (20_000_000, late)];
    for engine in transports() {
        let compared = compare(&engine, 10_000, &list);
        assert!(compared.worst() <= 0.001 && compared.gain > 1.2, "{compared:?}");
    }
}

#[test]
fn time_goes_on_to_where_the_caller_asks_and_pauses_change_nothing() {
    let list = [(0, stream(0, 1, 200 * MB)), (77_777_777, stream(2, 3, MB))];
    let [engine, _] = transports();
    let (mut once, mut paused) = (Steady::new(engine.clone(), ppm(10_000)), engine);
    paused.pause_every(100);
    let mut paused = Steady::new(paused, ppm(10_000));
    assert_eq!(times(&mut once, &list), times(&mut paused, &list));
    assert_eq!((once.counters(), once.skipped()), (paused.counters(), paused.skipped()));
    assert!(once.skipped() > Time::ZERO);
}

/// Flows of a permutation of hosts: each host sends one at most, and receives one at most.
fn permutation() -> impl Strategy<Value = Vec<(u64, Flow)>> {
    let hosts = Just((0..8).collect::<Vec<u32>>()).prop_shuffle();
    let flows = prop::collection::vec((0..20_u64, 1..60_u64, any::<bool>(), any::<bool>()), 8);
    (hosts, flows).prop_map(|(hosts, flows)| {
        let flow = |((src, dst), (at_ms, mb, is_own, sends)): ((u32, u32), (u64, u64, bool, bool))| {
            let make = if is_own { alone } else { stream };
            sends.then(|| (at_ms * 1_000_000, make(src, dst, mb * MB)))
        };
        let pairs = (0..8).map(|index| (hosts[index], hosts[(index + 1) % 8]));
        let mut list: Vec<_> = pairs.zip(flows).filter_map(flow).collect();
        list.sort_by_key(|(at, _)| *at);
        list
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Where no two flows cross one link in one direction, each ends within the accuracy.
    #[test]
    fn flows_that_share_no_link_are_bounded(list in permutation(), marks in any::<bool>()) {
        prop_assume!(!list.is_empty());
        let engine = engine_of(8, |config| if marks { dctcp(config) });
        let compared = compare(&engine, 10_000, &list);
        prop_assert!(compared.worst() <= 0.01, "{compared:?}");
    }
}

/// Numbers below a bound, the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn flow(&mut self, src: u32, dst: u32, bytes: u64) -> Flow {
        if self.below(2) == 0 { alone(src, dst, bytes) } else { stream(src, dst, bytes) }
    }

    /// Up to six flows of 10 kB to 400 MB between any hosts.
    fn shared(&mut self) -> Vec<(u64, Flow)> {
        let mut one = |_| {
            let (src, off) = (self.below(8) as u32, 1 + self.below(7) as u32);
            let bytes = [MB / 100, MB, 10 * MB, 100 * MB, 400 * MB][self.below(5) as usize] + self.below(MB);
            (self.below(200_000_000), self.flow(src, (src + off) % 8, bytes))
        };
        let count = 1 + one(0).0 % 6;
        (0..count).map(&mut one).collect()
    }

    /// Up to seven flows of up to 400 MB: each host sends one at most, and receives one at most.
    fn apart(&mut self) -> Vec<(u64, Flow)> {
        let (step, count) = ([1, 3, 5, 7][self.below(4) as usize], 1 + self.below(7));
        let first = self.below(8) as u32;
        let host = |index: u64| (first + index as u32 * step) % 8;
        let pairs = (0..count).map(|index| (host(index), host(index + 1)));
        pairs
            .map(|(src, dst)| (self.below(20_000_000), (src, dst)))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|(at, (src, dst))| {
                let bytes = (1 + self.below(400)) * MB;
                (at, self.flow(src, dst, bytes))
            })
            .collect()
    }
}

/// The errors that docs/models/packet.md tells.
#[test]
#[ignore = "a minute in release builds; it prints and judges nothing"]
#[allow(clippy::print_stdout)]
fn errors_of_random_flows() {
    for (what, engine) in ["newreno", "dctcp"].into_iter().zip(transports()) {
        for (kind, make) in [("apart", Draw::apart as fn(&mut Draw) -> Vec<_>), ("shared", Draw::shared)] {
            let (mut draw, mut flows, mut means) = (Draw(1), Vec::new(), Vec::new());
            for _ in 0..120 {
                let mut list = make(&mut draw);
                list.sort_by_key(|(at, _)| *at);
                let compared = compare(&engine, 10_000, &list);
                flows.extend(compared.errors());
                means.push(compared.mean());
            }
            for (name, list) in [("flows", &mut flows), ("means", &mut means)] {
                list.sort_by(f64::total_cmp);
                let at = |percent: usize| 100.0 * list[(list.len() - 1) * percent / 100];
                let figures = [50, 95, 99, 100].map(|percent| format!("{:.3} %", at(percent)));
                println!("{what}, {kind}, {} {name}: 50, 95, 99, 100 % below {figures:?}", list.len());
            }
        }
    }
}
