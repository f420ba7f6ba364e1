//! With a memory, the packet engine gives the same answers as without: every completion, to the picosecond, and every
//! counter.
#![allow(missing_docs)]

use gradtide_net::packet::tcp::{CongestionAlgorithm, Follow};
use gradtide_net::packet::{Capacity, Discipline, MarkAt, Marking, Recall, SharedBuffer};
use gradtide_net::topology::Link;
use gradtide_net::trace::{Counters, PortCounters};
use gradtide_net::{
    Band, Bytes, Completion, Connection, FatTree, Flow, FlowId, Graph, HostId, Network, PacketConfig, PacketEngine,
    PortId, Rate, Star, Time,
};
use proptest::prelude::*;

const HOSTS: u32 = 4;
const US: u64 = 1_000_000;
const MS: u64 = 1_000 * US;

/// A lock-step exchange: each host sends to the one `hop` further on, `rounds` times one message after another, each
/// once it has the message of the host before it.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    bytes: u64,
    rounds: u32,
    hop: u32,
    /// Of each host.
    bands: [u8; HOSTS as usize],
    /// From its end to the beginning of the next one.
    pause_ps: u64,
}

const fn exchange(bytes: u64, rounds: u32, pause_ps: u64) -> Exchange {
    Exchange { bytes, rounds, hop: 1, bands: [0; HOSTS as usize], pause_ps }
}

/// What a caller sees.
#[derive(Debug, PartialEq)]
struct Outcome {
    ids: Vec<FlowId>,
    done: Vec<(Time, Completion)>,
    counters: Counters,
    ports: Vec<PortCounters>,
}

fn star() -> Star {
    let link = Link { rate: Rate::from_bps(10_000_000_000).unwrap(), delay: Time::from_ps(10 * US) };
    Star { host_count: HOSTS, link }
}

/// One queue of so many packets at every port.
fn config(algorithm: CongestionAlgorithm, packets: u32) -> PacketConfig {
    let mut config = PacketConfig::basic_sim(&star());
    config.tcp.algorithm = algorithm;
    config.host_queue.capacity = Capacity::Packets(packets);
    config.switch_queue.capacity = Capacity::Packets(packets);
    if matches!(algorithm, CongestionAlgorithm::Dctcp { .. }) {
        config.tcp.ecn = true;
        let marking = Marking::Threshold { packets: 20, at: MarkAt::Enqueue };
        (config.host_queue.marking, config.switch_queue.marking) = (marking, marking);
    }
    config
}

/// Carries out `exchanges`, and then waits for `rest`. The hops that were recalled, before anybody looked at counters.
fn run(graph: &Graph, config: &PacketConfig, exchanges: &[Exchange], rest: Time, remembers: bool) -> (Outcome, u64) {
    let mut engine = PacketEngine::new(graph, config.clone()).unwrap();
    engine.pause_every(997);
    let mut network = Recall::new(engine, remembers);
    let (mut ids, mut all, mut done) = (Vec::new(), Vec::new(), Vec::new());
    let wait = |network: &mut Recall, all: &mut Vec<(Time, Completion)>, until: Time| {
        let mut done = Vec::new();
        while network.now() < until {
            network.advance(until, &mut done);
            all.extend(done.drain(..).map(|completion| (network.now(), completion)));
        }
    };
    for &Exchange { bytes, rounds, hop, bands, pause_ps } in exchanges {
        let mut sender_of = std::collections::BTreeMap::new();
        let mut left = [rounds; HOSTS as usize];
        let mut send = |network: &mut Recall, host: u32, sender_of: &mut std::collections::BTreeMap<FlowId, u32>| {
            let flow = Flow::alone(HostId(host), HostId((host + hop) % HOSTS), Bytes(bytes));
            let band = Band::new(bands[host as usize]).unwrap();
            let id = network.start(Flow { stream: hop, band, connection: Connection::Stream, ..flow });
            sender_of.insert(id, host);
            ids.push(id);
        };
        for host in 0..HOSTS {
            send(&mut network, host, &mut sender_of);
        }
        while left.iter().any(|&rounds| rounds > 0) {
            network.advance(Time::MAX, &mut done);
            for completion in done.drain(..) {
                all.push((network.now(), completion));
                let receiver = (sender_of[&completion.flow] + hop) % HOSTS;
                left[receiver as usize] -= 1;
                if left[receiver as usize] > 0 {
                    send(&mut network, receiver, &mut sender_of);
                }
            }
        }
        let until = network.now() + Time::from_ps(pause_ps);
        wait(&mut network, &mut all, until);
    }
    let until = network.now() + rest;
    wait(&mut network, &mut all, until);
    let recalled = network.recalled_hops();
    let ports = (0..graph.links.len() as u32).map(|port| network.port_counters(PortId(port))).collect();
    (Outcome { ids, done: all, counters: network.counters(), ports }, recalled)
}

/// How many hops there were, and how many of them were recalled.
fn same(graph: &Graph, config: &PacketConfig, exchanges: &[Exchange], rest: Time) -> (u64, u64) {
    let (plain, none) = run(graph, config, exchanges, rest, false);
    let (with_memory, recalled) = run(graph, config, exchanges, rest, true);
    assert_eq!(none, 0);
    assert!(with_memory == plain, "{:?} and {:?}", with_memory.counters, plain.counters);
    (plain.counters.packet_hops, recalled)
}

fn repeated(iteration: &[Exchange], count: usize) -> Vec<Exchange> {
    iteration.iter().copied().cycle().take(iteration.len() * count).collect()
}

const NEW_RENO: CongestionAlgorithm = CongestionAlgorithm::NewReno;
const DCTCP: CongestionAlgorithm = CongestionAlgorithm::Dctcp { gain_ppm: 62_500 };
const IDEAL: CongestionAlgorithm = CongestionAlgorithm::Ideal;
const CUBIC: CongestionAlgorithm = CongestionAlgorithm::Cubic { hystart: false, byte_counting: false };

#[test]
fn a_fixed_window_does_the_same_from_the_second_iteration_on() {
    // Segments are of 1380 bytes: 100 of them, and so nothing is left to be acknowledged late.
    let iteration = [exchange(138_000, 6, MS), exchange(1_380_000, 6, 7 * MS)];
    let mut config = config(IDEAL, 1000);
    config.tcp.window = Bytes(1_000_000);
    let (hops, recalled) = same(&star().graph(), &config, &repeated(&iteration, 100), Time::ZERO);
    assert!(recalled * 100 > hops * 95, "{recalled} of {hops}");
}

#[test]
fn a_window_that_limits_nothing_any_more_does_the_same_again() {
    let iteration = [exchange(1_000_000, 6, MS), exchange(1_000_000, 6, 20 * MS)];
    let mut config = config(NEW_RENO, 1000);
    config.tcp.window = Bytes(1_000_000);
    let (hops, recalled) = same(&star().graph(), &config, &repeated(&iteration, 60), Time::ZERO);
    assert!(recalled * 100 > hops * 80, "{recalled} of {hops}");
}

#[test]
fn windows_that_lose_come_back_after_some_iterations() {
    let iteration = [exchange(4_140_000, 3, 20 * MS)];
    let (hops, recalled) = same(&star().graph(), &config(NEW_RENO, 100), &repeated(&iteration, 200), Time::ZERO);
    assert!(recalled * 2 > hops, "{recalled} of {hops}");
}

#[test]
fn a_state_that_tells_more_than_the_one_before_it_is_not_taken_for_its_end() {
    // States tell bytes of parts of segments in some iterations, and in others not.
    let exchanges = repeated(&[exchange(100_000, 2, 5 * MS)], 70);
    let mut config = config(NEW_RENO, 12);
    config.tcp.window = Bytes(400_000);
    for count in [40, 59, 70] {
        same(&star().graph(), &config, &exchanges[..count], Time::ZERO);
    }
}

#[test]
fn what_is_unlike_anything_before_is_simulated() {
    // The pauses grow, and acknowledgements are late: no two exchanges begin alike.
    let exchanges: Vec<Exchange> = (0..40).map(|index| exchange(1_001 + 7_000 * index, 3, index * US)).collect();
    assert_eq!(same(&star().graph(), &config(NEW_RENO, 50), &exchanges, Time::ZERO).1, 0);
    // Cubic windows grow by the clock.
    let iteration = [exchange(4_140_000, 3, 20 * MS)];
    same(&star().graph(), &config(CUBIC, 100), &repeated(&iteration, 30), Time::ZERO);
}

#[test]
fn a_run_may_end_anywhere() {
    let iteration = [exchange(1_000_000, 6, MS), exchange(414_000, 2, 9 * MS)];
    let mut config = config(NEW_RENO, 1000);
    config.tcp.window = Bytes(200_000);
    for rest_ps in [0, 1, 30 * US, 3 * MS, 1_000 * MS] {
        let (_, recalled) = same(&star().graph(), &config, &repeated(&iteration, 30), Time::from_ps(rest_ps));
        assert!(recalled > 0);
    }
}

#[test]
fn disciplines_buffers_and_fabrics_are_part_of_the_state() {
    // Two hosts of a leaf share its link to the spine.
    let tree = FatTree::leaf_spine(2, 2, 1, star().link, star().link).unwrap().graph();
    let iteration = [
        Exchange { hop: 2, bands: [0, 1, 2, 0], ..exchange(2_761_000, 3, MS) },
        Exchange { bands: [2, 2, 0, 1], ..exchange(690_500, 3, 15 * MS) },
    ];
    for (algorithm, is_shared) in [(IDEAL, false), (IDEAL, true), (NEW_RENO, false), (NEW_RENO, true), (DCTCP, true)] {
        let mut config = config(algorithm, 100);
        config.tcp.window = Bytes(60_000);
        let quanta_bytes = vec![1_500, 3_000, 4_500];
        config.switch_queue.discipline = Discipline::Drr { quanta_bytes };
        config.switch_buffer =
            is_shared.then_some(SharedBuffer { capacity: Capacity::Packets(150), alpha_ppm: 1_000_000 });
        let (hops, recalled) = same(&tree, &config, &repeated(&iteration, 60), Time::ZERO);
        assert!(recalled > 0 || algorithm == DCTCP, "{algorithm:?} with {is_shared}: {recalled} of {hops}");
    }
}

#[test]
fn windows_that_follow_marks_come_back_when_the_estimate_of_marks_does() {
    let iteration = [exchange(1_380_000, 3, 5 * MS)];
    let (hops, recalled) = same(&star().graph(), &config(DCTCP, 1000), &repeated(&iteration, 400), Time::ZERO);
    assert!(recalled * 4 > hops, "{recalled} of {hops}");
}

#[test]
fn parts_of_segments_add_up_to_one() {
    // Two acknowledgements of 700 bytes make the window grow by a segment, and a large message shows how large it is.
    let mut exchanges = repeated(&[exchange(700, 1, 5 * MS)], 100);
    exchanges.push(exchange(552_000, 1, 5 * MS));
    same(&star().graph(), &config(NEW_RENO, 1000), &exchanges, Time::ZERO);
}

#[test]
fn what_states_left_out_is_made_good_when_it_has_an_effect() {
    // Windows limit nothing, and exchanges repeat; then one overflows the queue, and windows are reduced.
    let quiet = [exchange(690_000, 6, 5 * MS)];
    let mut config = config(NEW_RENO, 600);
    config.tcp.window = Bytes(1_000_000);
    let mut exchanges = repeated(&quiet, 60);
    let (_, recalled) = same(&star().graph(), &config, &exchanges, Time::ZERO);
    assert!(recalled > 0);
    exchanges.extend(repeated(&[exchange(13_800_000, 2, 5 * MS)], 3));
    exchanges.extend(repeated(&quiet, 20));
    let (_, recalled) = same(&star().graph(), &config, &exchanges, Time::ZERO);
    assert_eq!(recalled, 0, "all of it has been simulated again");
}

#[test]
fn longer_round_trips_bring_phases_of_timestamps_back() {
    // Acknowledgements are up to 2 ms late; then 13.8 MB wait for 11 ms in a queue, longer than the least timeout.
    let quiet = [exchange(69_000, 4, 3 * MS + 7 * US)];
    let mut config = config(IDEAL, 10_000);
    config.tcp.window = Bytes(9_000_000);
    config.tcp.min_rto = Time::from_ps(5 * MS);
    let mut exchanges = repeated(&quiet, 40);
    let (_, recalled) = same(&star().graph(), &config, &exchanges, Time::ZERO);
    assert!(recalled > 0);
    exchanges.extend(repeated(&[exchange(13_800_000, 1, 2 * MS)], 3));
    exchanges.extend(repeated(&quiet, 20));
    let (_, recalled) = same(&star().graph(), &config, &exchanges, Time::ZERO);
    assert_eq!(recalled, 0, "all of it has been simulated again");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// A few kinds of exchanges, in any order, many times: what was seen comes again, and what was not comes in between.
    #[test]
    fn whatever_comes_again_is_the_same(
        algorithm in prop::sample::select(vec![NEW_RENO, NEW_RENO, DCTCP, CUBIC, IDEAL]),
        packets in prop::sample::select(vec![12_u32, 13, 60, 1_000, 1_001]),
        window in prop::sample::select(vec![40_000_u64, 400_000, 4_000_000]),
        kinds in prop::collection::vec(
            (prop::sample::select(vec![1_u64, 1_380, 2_000, 27_600, 100_000, 552_000]), 1_u32..4, 1_u32..4, prop::array::uniform4(0_u8..3)),
            1..4,
        ),
        pauses in prop::collection::vec(
            prop::sample::select(vec![0_u64, 1, 30 * US, 200 * US, 201 * US, 2 * MS, 5 * MS, 40 * MS]),
            1..3,
        ),
        order in prop::collection::vec((0_usize..12, 0_usize..8), 1..80),
        rest_us in 0_u64..300,
    ) {
        let exchanges: Vec<Exchange> = order.iter().map(|&(index, pause)| {
            // Most often the first kind and pause.
            let (bytes, rounds, hop, bands) = kinds[if index < kinds.len() { index } else { 0 }];
            let pause_ps = pauses[if pause < pauses.len() { pause } else { 0 }];
            Exchange { bytes, rounds, hop, bands, pause_ps }
        }).collect();
        let mut config = config(algorithm, packets);
        if packets.is_multiple_of(2) {
            config.tcp.follow = Follow::Standards;
        }
        config.tcp.window = Bytes(window);
        same(&star().graph(), &config, &exchanges, Time::from_ps(rest_us * US));
    }
}
