//! The packet engine compared with arithmetic. Expected values and tolerances are computed here.
#![allow(missing_docs)]

mod study;

use gradtide_net::packet::tcp::congestion::{CongestionAlgorithm, ideal, newreno};
use gradtide_net::packet::tcp::{Follow, Recovery};
use gradtide_net::packet::{Capacity, QueueConfig};
use gradtide_net::{
    Band, Bytes, Connection, FatTree, Flow, HostId, Link, Network, PacketConfig, PacketEngine, PortId, Rate, Seed,
    Star, Time,
};
use proptest::prelude::*;
use study::*;

const DELAY_NS: u64 = 10_000;
const HEADER: u64 = 54; // IPv4 20, TCP 20, timestamps 12, framing 2
const SYN: u64 = 58; // IPv4 20, TCP 20, timestamps 10 + window scale 3 + SACK permitted 2, padded to 16, framing 2
const SEGMENT: u64 = 1380;

/// Serialisation time of a full packet at 10 Gbit/s.
const PACKET_TIME: Time = Time::from_ps(1_147_200);

/// Returns the serialisation time on a 10 Gbit/s link, in whole nanoseconds.
fn wire_ns(bytes: u64) -> u64 {
    (bytes * 8 + 5) / 10
}

/// Returns the time over two store-and-forward hops.
fn two_hops_ns(bytes: u64) -> u64 {
    2 * (wire_ns(bytes) + DELAY_NS)
}

fn arrival(src: u32, dst: u32, bytes: u64, tos: u32) -> Arrival {
    Arrival { start_ns: 0, src, dst, bytes, tos }
}

fn stream(src: u32, dst: u32, bytes: u64, stream: u32) -> Flow {
    Flow { connection: Connection::Stream, stream, ..background(&arrival(src, dst, bytes, 16)) }
}

fn engine_with(host_count: u32, change: impl FnOnce(&mut PacketConfig)) -> PacketEngine {
    let star = star(host_count);
    let mut config = PacketConfig::basic_sim(&star);
    change(&mut config);
    PacketEngine::new(&star.graph(), config).unwrap()
}

#[test]
fn one_segment_takes_its_handshake_its_bytes_and_its_close() {
    // The SYN crosses to the receiver and the SYN-ACK back. The application writes 1 ns later, and the segment crosses
    // with its FIN. The acknowledgement comes back, and the receiver's FIN right behind it.
    for bytes in [1, 100, 1380] {
        let results = replay(&mut engine(2), &[arrival(0, 1, bytes, 16)]);
        let fct = results[0].unwrap();
        let connected_ns = 2 * two_hops_ns(SYN);
        // The handshake's ACK starts 1 ns before the write and occupies the link for 43 ns, so the segment waits for 42
        // ns.
        let data_ns = 1 + wire_ns(HEADER) - 1 + two_hops_ns(HEADER + bytes);
        let close_ns = two_hops_ns(HEADER) + wire_ns(HEADER);
        assert_eq!(fct.connected_ns, connected_ns);
        assert_eq!(fct.received_ns, connected_ns + data_ns, "{bytes} B");
        assert_eq!(fct.close_ns, connected_ns + data_ns + close_ns, "{bytes} B");
    }
}

#[test]
fn a_flow_of_no_bytes_is_a_handshake_and_a_close() {
    let results = replay(&mut engine(2), &[arrival(0, 1, 0, 16)]);
    // The FIN is sent immediately after the handshake's ACK.
    let expected_ns = 2 * two_hops_ns(SYN) + wire_ns(HEADER) + 2 * two_hops_ns(HEADER) + wire_ns(HEADER);
    assert_eq!(results[0].unwrap().close_ns, expected_ns);
}

#[test]
fn a_warm_stream_moves_a_message_at_the_rate_of_the_link() {
    // The window covers the whole message, so its n segments leave back to back. The transfer takes n + 1
    // serialisations, because the switch stores and forwards the last segment, two delays, and 1 ns for the write.
    let mut engine = engine(2);
    let mut done = Vec::new();
    let bytes = 100 * SEGMENT;
    for _ in 0..40 {
        engine.start(stream(0, 1, bytes, 0));
        engine.advance(Time::MAX, &mut done);
    }
    engine.advance(engine.now() + Time::from_ps(MS), &mut done);
    let begun = engine.now();
    engine.start(stream(0, 1, bytes, 0));
    done.clear();
    engine.advance(Time::MAX, &mut done);
    let expected_ns = 1 + 101 * wire_ns(SEGMENT + HEADER) + 2 * DELAY_NS;
    assert_eq!((engine.now() - begun).ps() / NS, expected_ns);
    assert_eq!(done.len(), 1);
}

#[test]
fn slow_start_grows_by_half_per_round_trip_with_delayed_acknowledgements() {
    // Slow start begins with a window of 10 segments. Each acknowledgement adds one segment: of the first segment
    // alone, then of two segments each. The flow completes in the round in which the sum of the windows reaches its
    // number of segments. A round takes two hops there and two back, and the segments of a round leave back to back.
    let mut sent = 10;
    let mut window = 10;
    let mut odd = 0;
    let mut rounds = 1;
    let segments = 60;
    while sent < segments {
        let acknowledgements = if rounds == 1 { 1 + (window - 1) / 2 } else { (window + odd) / 2 };
        odd = if rounds == 1 { (window - 1) % 2 } else { (window + odd) % 2 };
        let acknowledged = window - odd;
        window = acknowledged.max(acknowledged + acknowledgements);
        sent += window;
        rounds += 1;
    }
    let results = replay(&mut engine(2), &[arrival(0, 1, segments * SEGMENT, 16)]);
    let transfer_ns = results[0].unwrap().received_ns - 2 * two_hops_ns(SYN);
    let round_ns = two_hops_ns(SEGMENT + HEADER) + two_hops_ns(HEADER);
    let least_ns = (rounds - 1) * round_ns;
    // An upper bound: the rounds, the last crossing, and the serialisation of all segments, part of which overlaps with
    // the rounds.
    let most_ns = least_ns + two_hops_ns(SEGMENT + HEADER) + segments * wire_ns(SEGMENT + HEADER);
    assert!((least_ns..=most_ns).contains(&transfer_ns), "{rounds} rounds: {least_ns} <= {transfer_ns} <= {most_ns}");
}

#[test]
fn flows_that_share_a_link_fill_it() {
    // The last of n flows into one host ends no earlier than the serialisation of all bytes, and at most 25 % later,
    // because the link idles only in slow start.
    for count in [2_u32, 4, 7] {
        let list: Vec<Arrival> = (0..count).map(|src| arrival(src, count, 20_000_000, 16)).collect();
        // The buffer holds all windows, so no packet is lost.
        let mut engine = engine_with(count + 1, |config| {
            config.switch_queue = QueueConfig { capacity: Capacity::Packets(200_000), ..QueueConfig::pfifo_fast() };
            config.host_queue = config.switch_queue.clone();
        });
        let last = replay(&mut engine, &list).iter().map(|fct| fct.unwrap().close_ns).max().unwrap();
        let segments = u64::from(count) * 20_000_000_u64.div_ceil(SEGMENT);
        let least = segments * wire_ns(SEGMENT + HEADER) - u64::from(count) * 1200;
        assert!(last >= least && last < least + least / 4, "{count} flows: {least} <= {last}");
        assert_eq!(engine.counters().drops, 0);
    }
}

#[test]
fn a_saturating_low_band_delays_a_high_one_by_two_packets_per_hop_and_round() {
    // A packet of the low band that is on the wire or in the device queue cannot be overtaken: two packets at the
    // host's port, and two at the switch's.
    let alone = replay(&mut engine(3), &[arrival(1, 2, 10 * SEGMENT, 16)])[0].unwrap();
    for src in [0, 1] {
        let late = Arrival { start_ns: 20_000_000, ..arrival(1, 2, 10 * SEGMENT, 16) };
        let beside = replay(&mut engine(3), &[arrival(src, 2, 50_000_000, 8), late])[1].unwrap();
        // Such packets delay three crossings of two hops each: of the SYN, of the data, and of the packet ahead of the
        // acknowledgements.
        let most_ns = 3 * 2 * 2 * wire_ns(SEGMENT + HEADER);
        assert!(beside.close_ns >= alone.close_ns && beside.close_ns <= alone.close_ns + most_ns, "from host {src}");
    }
}

#[test]
fn mirrored_flows_end_together() {
    let list = [arrival(0, 1, 5_000_000, 16), arrival(2, 3, 5_000_000, 16), arrival(3, 2, 5_000_000, 16)];
    let results = replay(&mut engine(4), &list);
    let alone = replay(&mut engine(4), &[arrival(0, 1, 5_000_000, 16)])[0].unwrap();
    assert_eq!(results[0].unwrap().close_ns, alone.close_ns, "flows that share nothing do not meet");
    assert_eq!(results[1].unwrap().close_ns, results[2].unwrap().close_ns);
}

#[test]
fn a_ring_step_is_its_bytes_and_one_serialisation_more() {
    // Gao (2020), equation 4.1, with headers: 2(N-1) steps, each with a partition of ceil(S/N / 1380) segments. A step
    // also takes one serialisation of a full segment at the switch, two delays, and 1 ns for the write.
    let all_reduces = all_reduce_everything(&mut engine(8), &Job::thesis(2240, 16));
    let partition = 666_666;
    let full = partition / SEGMENT;
    let step_ns = 1 + (full + 1) * wire_ns(SEGMENT + HEADER) + wire_ns(HEADER + partition % SEGMENT) + 2 * DELAY_NS;
    let warm = &all_reduces[5];
    assert_eq!(warm.partition_bytes, partition);
    assert_eq!(warm.end_ns - warm.start_ns, 14 * step_ns);
}

#[test]
fn a_lost_syn_comes_again_after_the_connect_timeout() {
    let connect_timeout = PacketConfig::basic_sim(&star(3)).tcp.connect_timeout;
    let mut engine = engine_with(3, |config| config.switch_queue = QueueConfig::fifo(Capacity::Packets(0)));
    // The switch's port has no queue. Two SYNs arrive at the same time, one for the wire and one for the device. The
    // third one arrives 46 ns later and may find the device full.
    let list = [arrival(0, 2, 0, 16), arrival(1, 2, 0, 16)];
    let late = Arrival { start_ns: 10, ..arrival(0, 2, 0, 16) };
    let results = replay(&mut engine, &[list[0], list[1], late]);
    let slow = results.iter().filter(|fct| fct.unwrap().connected_ns * NS > connect_timeout.ps()).count();
    assert!(slow <= 1 && results.iter().all(Option::is_some));
}

#[test]
fn a_tiny_buffer_loses_much_and_delivers_all() {
    for packets in [0, 1, 3, 10, 50] {
        let mut engine = engine_with(5, |config| config.switch_queue = QueueConfig::fifo(Capacity::Packets(packets)));
        let list: Vec<Arrival> = (0..4).map(|src| arrival(src, 4, 3_000_000, 16)).collect();
        let results = replay(&mut engine, &list);
        assert!(results.iter().all(Option::is_some), "{packets} packets");
        let counters = engine.counters();
        // Without a queue only SYNs collide. After their timeouts, the flows run one after the other and lose nothing.
        assert!(counters.drops > 0 && (counters.retransmits > 0 || packets == 0), "{packets} packets: {counters:?}");
        assert!(engine.port_counters(PortId(5 + 4)).queue_packets_max <= u64::from(packets));
        assert!(engine.conserves_packets());
    }
}

/// A transfer of 100 MB from an idle host overflows the host's own queue once, in slow start. Recovery by SACK alone
/// retransmits each lost segment once. If every partial acknowledgement causes a retransmission, a retransmitted
/// segment that fills a hole causes such an acknowledgement. The next hole, which was already retransmitted in the same
/// window, is then sent once more, so nearly every loss costs a second retransmission.
#[test]
fn resending_on_partial_acknowledgements_repeats_what_is_under_way() {
    let list = [arrival(0, 1, 100_000_000, 16)];
    let counters = [Recovery::Pipe, Recovery::Ns330].map(|recovery| {
        let mut engine = engine_with(2, |config| config.tcp.recovery = recovery);
        assert!(replay(&mut engine, &list)[0].is_some());
        engine.counters()
    });
    assert!(counters[0].drops > 0);
    assert_eq!(counters[0].retransmits, counters[0].drops);
    assert!(counters[1].retransmits > counters[1].drops * 3 / 2, "{:?}", counters[1]);
}

/// The windows hold many more packets than the NIC's queue of 100. No packet is lost, the link is never idle once it is
/// full, and all connections of a host share its NIC equally, in any order of starts.
#[test]
fn a_card_drops_nothing_that_it_has_not_sent_and_connections_share_it_alike() {
    let bytes = 10_000_000;
    let segments = bytes / SEGMENT;
    for algorithm in [
        CongestionAlgorithm::NewReno(newreno::Parameters { byte_counting: false }),
        CongestionAlgorithm::Ideal(ideal::Parameters {}),
    ] {
        let run = |starts_ns: &[u64]| {
            let mut engine = engine_with(3, |config| {
                config.tcp.follow = Follow::Standards;
                config.tcp.algorithm = algorithm;
                config.host_queue = QueueConfig::fifo(Capacity::Packets(100));
                config.switch_queue = QueueConfig::fifo(Capacity::Packets(1000));
            });
            let flows: Vec<Arrival> = (1..)
                .zip(starts_ns)
                .map(|(dst, &start_ns)| Arrival { start_ns, ..arrival(0, dst, bytes, 16) })
                .collect();
            let closes = replay(&mut engine, &flows).iter().map(|fct| fct.unwrap().close_ns).collect::<Vec<_>>();
            assert_eq!((engine.counters().drops, engine.counters().retransmits), (0, 0), "{algorithm:?}");
            closes
        };
        // A full packet takes 1147.2 ns. In slow start, the window doubles at least every second round of 44 us until
        // 40 packets fill the link. The handshake and the close take one round each.
        let wire_ns = segments * 11_472 / 10;
        let alone = run(&[0])[0];
        assert!((wire_ns..wire_ns + 8 * 44_000).contains(&alone), "{algorithm:?}: {alone} ns, of which {wire_ns} full");
        // Two simultaneous flows both take twice as long. If one starts half a flow later, each is alone for half a
        // flow and shares the link for a whole one.
        for (start_ns, factor) in [(0, 2.0), (wire_ns / 2, 1.5)] {
            for close_ns in run(&[0, start_ns]) {
                let took = close_ns as f64 / (factor * alone as f64);
                assert!((0.9..1.1).contains(&took), "{algorithm:?}, second at {start_ns} ns: {took}");
            }
        }
    }
}

/// Two senders in lock step overflow a port, and the phase of their packets decides whose packets are lost (Floyd &
/// Jacobson 1992). If both start together, the same host always loses. If each starts at a random time within a
/// packet's serialisation, each host loses for half of the seeds.
#[test]
fn who_loses_of_two_symmetric_senders_is_drawn() {
    let later = |seed: u64, most: Time| {
        let mut engine = engine_with(3, |config| {
            config.tcp.follow = Follow::Standards;
            config.switch_queue = QueueConfig::fifo(Capacity::Packets(50));
        });
        let mut done = Vec::new();
        let start = |src: u32| (Seed(seed).stream(&format!("start of {src}")).below(most.ps().max(1)), src);
        let mut starts = [start(0), start(1)];
        starts.sort_unstable();
        for (at_ps, src) in starts {
            engine.advance(Time::from_ps(at_ps), &mut done);
            engine.start(stream(src, 2, 1_000_000, src));
        }
        while done.len() < 2 {
            engine.advance(Time::MAX, &mut done);
        }
        assert!(engine.counters().drops > 0);
        done[1].stream
    };
    let seeds = 0..100;
    let first = later(0, Time::ZERO);
    assert!(seeds.clone().all(|seed| later(seed, Time::ZERO) == first));
    // The count is binomial with a standard deviation of 5. The tolerance is four of these.
    let count = seeds.map(|seed| later(seed, PACKET_TIME)).sum::<u32>();
    assert!((30..=70).contains(&count), "the second ends last for {count} of 100 seeds");
}

#[test]
fn one_lost_tail_waits_for_the_timeout() {
    // Two flows of 10 segments share a queue of 4 packets. If the last segments of a flow are lost, no later segment is
    // acknowledged selectively, so only the timeout detects the loss.
    let timeout_ns = PacketConfig::basic_sim(&star(3)).tcp.min_rto.ps() / NS;
    let mut engine = engine_with(3, |config| config.switch_queue = QueueConfig::fifo(Capacity::Packets(4)));
    let list = [arrival(0, 2, 10 * SEGMENT, 16), arrival(1, 2, 10 * SEGMENT, 16)];
    let results = replay(&mut engine, &list);
    let slowest = results.iter().map(|fct| fct.unwrap().close_ns).max().unwrap();
    assert!(engine.counters().timeouts > 0 && slowest > timeout_ns, "{slowest} > {timeout_ns}");
}

#[test]
fn a_stream_carries_flows_one_after_the_other() {
    let mut engine = engine(2);
    let ids =
        [engine.start(stream(0, 1, 100_000, 7)), engine.start(stream(0, 1, 1, 7)), engine.start(stream(0, 1, 0, 7))];
    let mut done = Vec::new();
    for _ in 0..3 {
        engine.advance(Time::MAX, &mut done);
    }
    let order: Vec<_> = done.iter().map(|completion| completion.flow).collect();
    assert_eq!(order, ids);
    assert!(done.iter().all(|completion| completion.stream == 7));
}

#[test]
fn a_stream_changes_its_band_on_the_way() {
    // Next to a saturating flow in the middle band, a stream in the low band hardly progresses. Raised to the high
    // band, it completes earlier.
    let run = |is_raised: bool| {
        let mut engine = engine(3);
        engine.start(background(&Arrival { tos: 0, ..arrival(0, 2, 50_000_000, 0) }));
        let low = Flow { band: Band::new(2).unwrap(), ..stream(1, 2, 1_000_000, 3) };
        let id = engine.start(low);
        let mut done = Vec::new();
        engine.advance(Time::from_ps(5 * MS), &mut done);
        if is_raised {
            engine.set_band(3, Band::new(0).unwrap());
        }
        while !done.iter().any(|completion| completion.flow == id) {
            engine.advance(Time::MAX, &mut done);
        }
        engine.now()
    };
    assert!(run(true) < run(false));
}

#[test]
fn a_connection_has_no_more_under_way_than_its_window() {
    // At most W bytes are in flight, and a round trip crosses four links, two in each direction. B bytes thus take at
    // least B / W - 1 round trips. Without a limit, the flow takes less than half as long.
    let bytes = 3_000_000;
    let time = |window: u64| {
        let mut engine = engine(2);
        let flow = Flow { connection: Connection::StreamBand { window: Bytes(window) }, ..stream(0, 1, bytes, 0) };
        engine.start(flow);
        engine.advance(Time::MAX, &mut Vec::new());
        engine.now().ps()
    };
    let least = (bytes / 13_800 - 1) * 4 * star(2).link.delay.ps();
    assert!(time(13_800) >= least && least > 2 * time(u64::MAX));
}

#[test]
fn a_window_of_less_than_a_segment_is_sent_as_such() {
    // The window is smaller than a segment, so the sender has to send partial segments. If it waited for room for a
    // full segment, it would never start. Each window takes at least one round trip over four links.
    let (bytes, window) = (10_000, 1_000);
    let mut engine = engine(2);
    engine.start(Flow { connection: Connection::StreamBand { window: Bytes(window) }, ..stream(0, 1, bytes, 0) });
    let mut done = Vec::new();
    engine.advance(Time::MAX, &mut done);
    assert!(done.len() == 1 && engine.now().ps() >= (bytes / window - 1) * 4 * star(2).link.delay.ps());
}

#[test]
fn pauses_change_nothing() {
    // The engine may pause between any two events. Flows that start during a pause still start at the same times.
    let run = |pause_every: u64| {
        let mut engine = engine_with(4, |_| {});
        engine.pause_every(pause_every);
        let (mut done, mut pauses) = (Vec::new(), 0_u64);
        for (index, start) in [0, 1_000_000, 40_000_000].into_iter().enumerate() {
            while engine.now() < Time::from_ps(start) {
                let before = done.len();
                engine.advance(Time::from_ps(start), &mut done);
                pauses += u64::from(done.len() == before && engine.now() < Time::from_ps(start));
            }
            engine.start(stream(index as u32, 3, 300_000, index as u32));
        }
        while done.len() < 3 {
            let before = done.len();
            engine.advance(Time::MAX, &mut done);
            pauses += u64::from(done.len() == before);
        }
        (done, engine.now(), engine.counters(), pauses)
    };
    let (done, end, counters, pauses) = run(u64::MAX);
    assert_eq!(pauses, 0);
    for pause_every in [1, 7, 100] {
        let (paused_done, paused_end, paused_counters, pauses) = run(pause_every);
        assert!(pauses > 0 && pauses <= counters.events / pause_every, "{pauses} pauses in {counters:?}");
        assert_eq!((&paused_done, paused_end, paused_counters), (&done, end, counters));
    }
}

#[test]
fn the_same_flows_give_the_same_bytes() {
    let list: Vec<Arrival> =
        (0..30).map(|index| arrival(index % 4, 4 + index % 3, 300_000 + u64::from(index), 16)).collect();
    let run = || replay(&mut engine(7), &list).iter().map(|fct| fct.unwrap().close_ns).collect::<Vec<_>>();
    assert_eq!(run(), run());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A link that is never idle carries its rate, except for less than a picosecond per packet, and never more.
    #[test]
    fn no_link_carries_more_than_its_rate(
        rates in prop::collection::vec(1_000_000_u64..7_200_000_000_000, 2),
        segment in 46_u16..9_000,
        is_tree in any::<bool>(),
    ) {
        let [near, far] = [rates[0], rates[1]].map(|bps| {
            Link { rate: Rate::from_bps(bps).unwrap(), delay: Time::from_ps(1_000 * NS) }
        });
        let graph = if is_tree {
            FatTree::leaf_spine(2, 1, 1, near, far).unwrap().graph()
        } else {
            Star { host_count: 2, link: near }.graph()
        };
        let mut config = PacketConfig::basic_sim(&Star { host_count: 2, link: near });
        config.tcp.follow = Follow::Standards;
        config.tcp.segment_bytes = segment;
        config.tcp.algorithm = CongestionAlgorithm::Ideal(ideal::Parameters {});
        let queue = QueueConfig::fifo(Capacity::Packets(100_000));
        (config.host_queue, config.switch_queue) = (queue.clone(), queue);
        let mut engine = PacketEngine::new(&graph, config).unwrap();
        engine.start(stream(0, 1, 1_000 * u64::from(segment), 0));
        let mut done = Vec::new();
        engine.advance(Time::MAX, &mut done);
        // Run until the last acknowledgement is transmitted.
        engine.advance(engine.now() + Time::from_ps(1_000 * MS), &mut done);
        for (index, directed) in (0..).zip(&graph.links) {
            let counters = engine.port_counters(PortId(index));
            let bits_ps = u128::from(counters.bytes) * 8 * 1_000_000_000_000;
            let bps = u128::from(directed.link.rate.bps());
            let carried_ps = bps * u128::from(counters.busy.ps());
            let rounded_ps = bps * u128::from(counters.packets);
            prop_assert!(bits_ps <= carried_ps && carried_ps <= bits_ps + rounded_ps, "{counters:?} at {bps} bit/s");
        }
    }

    #[test]
    fn every_flow_completes_and_packets_are_conserved(
        flows in prop::collection::vec(
            (0_u64..2_000_000, 0_u32..5, 1_u32..5, 0_u64..400_000, prop::sample::select(vec![0_u32, 8, 16])),
            1..25,
        ),
        packets in 0_u32..60,
    ) {
        let list: Vec<Arrival> = flows
            .iter()
            .map(|&(start_ns, src, offset, bytes, tos)| Arrival { start_ns, src, dst: (src + offset) % 5, bytes, tos })
            .collect();
        let queue = QueueConfig { capacity: Capacity::Packets(packets), ..QueueConfig::pfifo_fast() };
        let mut engine = engine_with(5, |config| { config.switch_queue = queue.clone(); config.host_queue = queue; });
        let results = replay(&mut engine, &list);
        for (arrival, fct) in list.iter().zip(results) {
            let fct = fct.unwrap();
            let segments = arrival.bytes.div_ceil(SEGMENT);
            prop_assert!(fct.close_ns >= wire_ns(arrival.bytes + segments * HEADER) + 2 * two_hops_ns(SYN) - segments);
            prop_assert!(fct.received_ns <= fct.close_ns);
        }
        prop_assert!(engine.conserves_packets());
        let _ = (Bytes(0), HostId(0));
    }
}
