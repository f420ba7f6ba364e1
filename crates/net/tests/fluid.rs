//! Tests of the fluid engine: comparisons with closed forms, with an exact solution in fractions, with SimGrid's finish
//! times and with the packet engine, and properties that hold on every network.
#![allow(missing_docs)]

mod flows;

use flows::{US, flow, fluid, in_band, link, star};
use gradtide_net::packet::tcp::congestion::{CongestionAlgorithm, ideal};
use gradtide_net::packet::{Capacity, Discipline, Marking, QueueConfig};
use gradtide_net::route::{Hashes, Policy, Routes};
use gradtide_net::{
    Band, Bytes, Connection, FatTree, Flow, FlowId, Fluid, FluidError, Graph, Link, Network, PacketConfig,
    PacketEngine, PortId, Rate, Ratio, Seed, Star, Time,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn stream(src: u32, dst: u32, bytes: u64) -> Flow {
    Flow { connection: Connection::Stream, ..flow(src, dst, bytes) }
}

/// Returns the times in ps at which `count` flows are received, in the order of their starts.
fn received(network: &mut dyn Network, count: usize) -> Vec<u64> {
    let mut done = Vec::new();
    while done.len() < count {
        let before = done.len();
        network.advance(Time::MAX, &mut done);
        assert!(done[before..].iter().all(|completion| completion.received == network.now()));
    }
    done.sort_by_key(|completion| completion.flow);
    done.iter().map(|completion| completion.received.ps()).collect()
}

fn times(graph: &Graph, flows: &[Flow]) -> Vec<u64> {
    let mut network = fluid(graph);
    for &flow in flows {
        network.start(flow);
    }
    let times = received(&mut network, flows.len());
    assert!(network.is_idle());
    times
}

/// A flow of zero duration completes at the instant of its start, even if other flows are in flight and no later event
/// is pending.
#[test]
fn what_takes_no_time_is_told_at_the_instant_of_its_start() {
    assert_eq!(times(&star(2), &[flow(0, 1, 1_000), flow(0, 0, 5_000), stream(1, 1, 0)]), [3 * US, 0, 0]);
    assert_eq!(times(&star(2), &[flow(0, 0, 5_000)]), [0]);
}

#[test]
fn a_message_takes_its_delays_and_its_bytes() {
    assert_eq!(times(&star(2), &[flow(0, 1, 3_000)]), [5 * US]);
    assert_eq!(times(&star(2), &[flow(0, 1, 0)]), [2 * US]);
    // A third of a byte takes 333.33 ps, which the clock rounds down.
    assert_eq!(times(&star(2), &[Flow { parts: 3, ..flow(0, 1, 1) }]), [2 * US + 333]);
}

#[test]
fn an_incast_takes_all_its_bytes_and_a_permutation_its_longest() {
    let incast: Vec<Flow> = (0..7).map(|src| flow(src, 7, 1_000)).collect();
    assert_eq!(times(&star(8), &incast), [9 * US; 7]);
    let permutation: Vec<Flow> = (0..8).map(|src| flow(src, (src * 3 + 1) % 8, 1_000 * u64::from(src + 1))).collect();
    assert_eq!(times(&star(8), &permutation), [3, 4, 5, 6, 7, 8, 9, 10].map(|us| us * US));
}

#[test]
fn what_remains_of_a_flow_is_what_its_share_has_not_moved() {
    let mut network = fluid(&star(3));
    let (first, second) = (network.start(flow(0, 2, 10_000)), network.start(flow(1, 2, 2_000)));
    network.start(stream(1, 0, 5_000));
    let mut done = Vec::new();
    let mut at = |us: u64| {
        while network.now() < Time::from_ps(us * US) {
            network.advance(Time::from_ps(us * US), &mut done);
        }
        let mut left = network.remaining();
        left.sort();
        left
    };
    // Both flows enter after 2 us of delay and share the link at 500 bytes per microsecond. Streams are not reported.
    assert_eq!(at(1), []);
    assert_eq!(at(4), [(first, Bytes(9_000)), (second, Bytes(1_000))]);
    // The second flow has ended at 6 us.
    assert_eq!(at(8), [(first, Bytes(6_000))]);
}

#[test]
fn flows_of_a_stream_follow_one_another_and_others_share() {
    assert_eq!(times(&star(2), &[stream(0, 1, 1_000), stream(0, 1, 2_000)]), [3 * US, 5 * US]);
    assert_eq!(times(&star(2), &[flow(0, 1, 1_000), flow(0, 1, 2_000)]), [4 * US, 5 * US]);
    // Flows to two receivers share the sender's link.
    assert_eq!(times(&star(3), &[stream(0, 1, 1_000), stream(0, 2, 1_000)]), [4 * US, 4 * US]);
}

#[test]
fn a_stream_that_rested_takes_its_delay_again() {
    // The first message has left after 1 us and is received after 3 us.
    for (start_us, received_us) in [(0, 4), (1, 4), (2, 5), (10, 13)] {
        let mut network = fluid(&star(2));
        network.start(stream(0, 1, 1_000));
        let mut done = Vec::new();
        while network.now().ps() < start_us * US {
            network.advance(Time::from_ps(start_us * US), &mut done);
        }
        network.start(stream(0, 1, 1_000));
        let last = received(&mut network, 2 - done.len());
        assert_eq!(last.last(), Some(&(received_us * US)), "started at {start_us} us");
    }
}

#[test]
fn a_lock_step_ring_takes_its_slices_and_delays() {
    // The closed form of `HostQueues`: hold + 2(N-1)·(S·8/(N·B) + d), here with two links of 1 us each.
    let ring = Flow { rounds: 14, parts: 8, hold: Time::from_ps(5 * US), ..stream(0, 1, 8_000) };
    assert_eq!(times(&star(8), &[ring, stream(0, 1, 1_000)]), [(5 + 14 * 3) * US, (5 + 14 * 3 + 1) * US]);
}

#[test]
fn a_band_has_what_those_before_it_leave() {
    // In every order of starts, the flow of band 0 is not slowed down, and each other flow follows the flow of the next
    // higher band.
    for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]] {
        let flows = order.map(|band| in_band(band, flow(0, 1, 1_000)));
        let times = times(&star(2), &flows);
        assert_eq!(times, order.map(|band| (3 + u64::from(band)) * US), "{order:?}");
    }
    // Capacity that a high band cannot use because of another link is available to lower bands. Here hosts 0 and 1
    // share the link to host 3, so band 0 uses half of host 0's link, and band 5 uses the other half.
    let flows = [in_band(0, flow(0, 3, 1_000)), in_band(0, flow(1, 3, 1_000)), in_band(5, flow(0, 2, 1_000))];
    assert_eq!(times(&star(4), &flows), [4 * US; 3]);
}

#[test]
fn a_stream_changes_its_band_with_what_is_left() {
    let mut network = fluid(&star(2));
    network.start(in_band(0, stream(0, 1, 2_000)));
    network.start(in_band(1, stream(0, 1, 2_000)));
    network.start(in_band(1, stream(0, 1, 1_000)));
    network.advance(Time::from_ps(3 * US), &mut Vec::new());
    // Half of the first flow has crossed by 3 us. Both streams then share the link in band 1, until the second stream
    // is raised to band 0 at 4 us.
    network.set_band(0, Band::new(1).unwrap());
    network.advance(Time::from_ps(4 * US), &mut Vec::new());
    network.set_band(1, Band::new(0).unwrap());
    // At 4 us, 500 bytes of the first flow and 1500 of the second are left. The second flow ends at 5.5 us, its
    // successor on the stream at 6.5 us, and the first flow at 7 us.
    assert_eq!(received(&mut network, 3), [7 * US, 5 * US + US / 2, 6 * US + US / 2]);
}

#[test]
fn bands_of_a_stream_can_have_connections_of_their_own() {
    // On one connection, an urgent flow follows a non-urgent one. With one connection per band, it is sent first on the
    // same link. A thousand bytes take 1 us, and the delay of the path is 2 us.
    let begun = |connection| {
        let mut network = fluid(&star(2));
        for (band, bytes) in [(1, 3_000), (0, 1_000)] {
            network.start(Flow { connection, band: Band::new(band).unwrap(), ..stream(0, 1, bytes) });
        }
        received(&mut network, 2)
    };
    assert_eq!(begun(Connection::Stream), [5 * US, 6 * US]);
    assert_eq!(begun(Connection::StreamBand { window: Bytes(1) }), [6 * US, 3 * US]);
}

#[test]
fn ports_count_what_has_crossed() {
    let mut network = fluid(&star(3));
    network.start(flow(0, 2, 3_000));
    network.start(flow(1, 2, 1_000));
    network.advance(Time::from_ps(3 * US), &mut Vec::new());
    // Both flows have entered at 2 us and used half of their link's rate for 1 us.
    let bytes = |network: &Fluid| [0, 1, 5].map(|port| network.port_counters(PortId(port)).bytes);
    assert_eq!(bytes(&network), [500, 500, 1_000]);
    received(&mut network, 2);
    assert_eq!(bytes(&network), [3_000, 1_000, 4_000]);
    assert_eq!(network.port_counters(PortId(5)).busy, Time::from_ps(4 * US));
}

#[test]
fn messages_count_in_whole_bytes_and_those_under_way_as_far_as_they_have_come() {
    // The flow takes the time of a third of 8000 bytes. Of three ranks, two count a part of 2667 bytes and one a part
    // of 2666 bytes. The last case, 1000 bytes, is artificial.
    for (counted, halfway) in [(2_666, 1_333), (2_667, 1_333), (1_000, 1_000)] {
        let mut network = fluid(&star(2));
        network.start(Flow { parts: 3, counted: Bytes(counted), ..flow(0, 1, 8_000) });
        let bytes = |network: &Fluid| [0, 3].map(|port| network.port_counters(PortId(port)).bytes);
        network.advance(Time::from_ps(2 * US + 1_333_900), &mut Vec::new());
        assert_eq!(bytes(&network), [halfway; 2]);
        received(&mut network, 1);
        assert_eq!(bytes(&network), [counted; 2]);
        // 2666 2/3 bytes at 1 B/ns, rounded down.
        assert_eq!(network.port_counters(PortId(0)).busy, Time::from_ps(2_666_666));
    }
}

#[test]
fn an_advance_stops_at_its_time_and_at_completions() {
    let mut network = fluid(&star(2));
    let mut done = Vec::new();
    network.start(flow(0, 1, 1_000));
    network.advance(Time::from_ps(US), &mut done);
    assert_eq!((network.now().ps(), done.len()), (US, 0));
    network.advance(Time::MAX, &mut done);
    assert_eq!((network.now().ps(), done.len(), done[0].flow), (3 * US, 1, FlowId(0)));
    assert_eq!(done[0].began, Time::ZERO);
}

#[test]
fn a_link_too_fast_for_the_solver_is_told() {
    let link = Link { rate: Rate::from_bps(20_000_000_000_000).unwrap(), ..link() };
    let error = Fluid::new(&Star { host_count: 2, link }.graph(), Policy::Ecmp, Seed(0)).unwrap_err();
    assert_eq!(error, FluidError::TooFast { port: 0, bps: 20_000_000_000_000 });
}

/// Finish times of 2000 flows on 128 hosts equal SimGrid's: see `validation/simgrid/README.md`.
#[test]
fn finish_times_are_simgrids() {
    let data = |name: &str| {
        let path = format!("{}/../../validation/simgrid/data/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let link = Link { rate: Rate::from_bps(32_000_000_000).unwrap(), delay: Time::ZERO };
    let graph = FatTree::clos2(16, Ratio::new(1, 2).unwrap(), link).unwrap().graph();
    let flows: Vec<Flow> = data("f2000_128.csv")
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<u64> = line.split(',').map(|field| field.parse().unwrap()).collect();
            flow(fields[0] as u32, fields[1] as u32, fields[2])
        })
        .collect();
    let ours = times(&graph, &flows);
    for (line, ours) in data("f2000_128_fin.csv").lines().skip(1).zip(ours) {
        let theirs: f64 = line.split(',').nth(1).unwrap().parse().unwrap();
        // The clock has a resolution of 1 ps, and SimGrid prints 12 digits. The validation requires only 1e-6.
        let late_ps = ours as f64 - theirs * 1e12;
        assert!(late_ps.abs() < 1.0 + theirs * 1e12 * 1e-11, "{line}: {ours} ps");
    }
}

/// An exact fraction. An operation whose result does not fit returns `None`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Exact(i128, i128);

impl Exact {
    fn new(numerator: i128, denominator: i128) -> Self {
        let (mut a, mut b) = (numerator.abs(), denominator.abs());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let sign = denominator.signum();
        Self(sign * numerator / a.max(1), sign * denominator / a.max(1))
    }
    fn plus(self, o: Self) -> Option<Self> {
        let sum = self.0.checked_mul(o.1)?.checked_add(o.0.checked_mul(self.1)?)?;
        Some(Self::new(sum, self.1.checked_mul(o.1)?))
    }
    fn times(self, o: Self) -> Option<Self> {
        Some(Self::new(self.0.checked_mul(o.0)?, self.1.checked_mul(o.1)?))
    }
    fn minus(self, o: Self) -> Option<Self> {
        self.plus(Self(-o.0, o.1))
    }
    fn over(self, o: Self) -> Option<Self> {
        self.times(Self::new(o.1, o.0))
    }
    fn less(self, o: Self) -> Option<bool> {
        Some(self.minus(o)?.0 < 0)
    }
}

/// Computes rates by progressive filling in exact fractions, for flows over `paths` on links of 1 B/ns.
fn exact_rates(paths: &[Vec<u32>]) -> Option<Vec<Exact>> {
    let mut rates: Vec<Option<Exact>> = vec![None; paths.len()];
    while rates.iter().any(Option::is_none) {
        let mut lowest: Option<(Exact, u32)> = None;
        let open: Vec<u32> =
            paths.iter().zip(&rates).filter(|(_, r)| r.is_none()).flat_map(|(p, _)| p.clone()).collect();
        for &link in &open {
            let mut left = Exact(1, 1);
            let mut rising = 0;
            for (path, rate) in paths.iter().zip(&rates).filter(|(path, _)| path.contains(&link)) {
                match rate {
                    Some(rate) => left = left.minus(*rate)?,
                    None => rising += 1,
                }
                let _ = path;
            }
            let level = left.over(Exact(rising, 1))?;
            if lowest.is_none_or(|(least, _)| level.less(least) == Some(true)) {
                lowest = Some((level, link));
            }
        }
        let (level, link) = lowest?;
        for (path, rate) in paths.iter().zip(&mut rates) {
            if rate.is_none() && path.contains(&link) {
                *rate = Some(level);
            }
        }
    }
    rates.into_iter().collect()
}

/// Returns the time in ns at which each flow is received. A flow consists of its start in ns, its bytes and its path;
/// each link has a delay of 1000 ns.
fn exact_times(flows: &[(u64, u64, Vec<u32>)]) -> Option<Vec<Exact>> {
    let enter = |flow: &(u64, u64, Vec<u32>)| Exact::new(i128::from(flow.0) + 1_000 * flow.2.len() as i128, 1);
    let mut left: Vec<Exact> = flows.iter().map(|flow| Exact::new(flow.1.into(), 1)).collect();
    let mut ends: Vec<Option<Exact>> = vec![None; flows.len()];
    let mut now = Exact(0, 1);
    while ends.iter().any(Option::is_none) {
        let mut active = Vec::new();
        let mut next: Option<Exact> = None;
        for (index, flow) in flows.iter().enumerate().filter(|&(index, _)| ends[index].is_none()) {
            if now.less(enter(flow))? {
                next = match next {
                    Some(next) if next.less(enter(flow))? => Some(next),
                    _ => Some(enter(flow)),
                };
            } else {
                active.push(index);
            }
        }
        let rates = exact_rates(&active.iter().map(|&index| flows[index].2.clone()).collect::<Vec<_>>())?;
        for (&index, &rate) in active.iter().zip(&rates) {
            let end = now.plus(left[index].over(rate)?)?;
            if next.is_none() || end.less(next?)? {
                next = Some(end);
            }
        }
        let span = next?.minus(now)?;
        for (&index, &rate) in active.iter().zip(&rates) {
            left[index] = left[index].minus(span.times(rate)?)?;
            if left[index].0 == 0 {
                ends[index] = next;
            }
        }
        now = next?;
    }
    ends.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The engine is late by less than 1 fs per event, plus 1e-14 of the time because shares are rounded. The clock is
    /// rounded down to whole picoseconds, so a time may be early by up to 1 ps.
    #[test]
    fn times_are_those_of_exact_fractions(
        flows in prop::collection::vec((0..3_000_u64, 0..5_u32, 1..5_u32, 1..20_000_u64), 1..8)
    ) {
        let graph = star(5);
        let routes = Routes::shortest(&graph).unwrap();
        let mut flows: Vec<(u64, u32, u32, u64)> =
            flows.into_iter().map(|(start, src, skip, bytes)| (start, src, (src + skip) % 5, bytes)).collect();
        flows.sort_unstable();
        let of = |&(start, src, dst, bytes): &(u64, u32, u32, u64)| {
            (start, bytes, routes.path(src, dst, 0).iter().map(|port| port.0).collect())
        };
        let exact = exact_times(&flows.iter().map(of).collect::<Vec<_>>());
        prop_assume!(exact.is_some());
        let mut network = fluid(&graph);
        let mut done = Vec::new();
        for &(start, src, dst, bytes) in &flows {
            while network.now().ps() < start * 1_000 {
                network.advance(Time::from_ps(start * 1_000), &mut done);
            }
            network.start(flow(src, dst, bytes));
        }
        while !network.is_idle() {
            network.advance(Time::MAX, &mut done);
        }
        done.sort_by_key(|completion| completion.flow);
        for (completion, exact) in done.iter().zip(exact.unwrap()) {
            let exact_ps = exact.0 as f64 / exact.1 as f64 * 1e3;
            let late_ps = completion.received.ps() as f64 - exact_ps;
            prop_assert!((-1.0..0.1).contains(&late_ps), "{:?} is {late_ps} ps late", completion);
        }
    }

    /// Bertsekas & Gallager: shares are max-min fair if and only if each flow has a bottleneck link.
    #[test]
    fn every_flow_has_a_full_link_on_which_none_is_faster(
        pairs in prop::collection::vec((0..16_u32, 1..16_u32), 1..60), policy in 0..3_usize, seed: u64
    ) {
        let graph = FatTree::clos3(4, Ratio::ONE, Link { delay: Time::ZERO, ..link() }).unwrap().graph();
        let policy = [Policy::Ecmp, Policy::DModK, Policy::Spread][policy];
        let mut network = Fluid::new(&graph, policy, Seed(seed)).unwrap();
        let routes = Routes::shortest(&graph).unwrap().by(policy);
        let (mut hashes, mut paths) = (Hashes::new(Seed(seed)), BTreeMap::new());
        for (number, (src, skip)) in pairs.into_iter().enumerate() {
            let dst = (src + skip) % 16;
            let flow = flow(src, dst, 1_000 + number as u64);
            paths.insert(network.start(flow), routes.path(src, dst, hashes.open(&flow)));
        }
        let mut left = paths.len();
        while left > 0 {
            let rates: BTreeMap<FlowId, f64> = network.rates().into_iter().collect();
            prop_assert_eq!(rates.len(), left);
            let mut used = vec![0.0; graph.links.len()];
            let mut fastest = vec![0.0_f64; graph.links.len()];
            for (id, &rate) in &rates {
                for port in &paths[id] {
                    used[port.0 as usize] += rate;
                    fastest[port.0 as usize] = rate.max(fastest[port.0 as usize]);
                }
            }
            prop_assert!(used.iter().all(|&used| used <= 8e9 * (1.0 + 1e-12)));
            for (id, &rate) in &rates {
                let is_bottleneck = |port: &PortId| {
                    used[port.0 as usize] > 8e9 * (1.0 - 1e-12) && rate >= fastest[port.0 as usize]
                };
                prop_assert!(paths[id].iter().any(is_bottleneck), "{id:?} at {rate}");
            }
            let mut done = Vec::new();
            network.advance(Time::MAX, &mut done);
            left -= done.len();
        }
    }

    /// Twice the rates and half the delays halve all times, up to 1 ps by which each clock is rounded down.
    #[test]
    fn a_faster_network_is_the_same_one_sooner(
        pairs in prop::collection::vec((0..8_u32, 1..8_u32, 0..50_000_u64, 0..3_u8), 1..40)
    ) {
        let of = |link| FatTree::clos2(4, Ratio::new(1, 2).unwrap(), link).unwrap().graph();
        let twice = Link { rate: Rate::from_bps(16_000_000_000).unwrap(), delay: Time::from_ps(US / 2) };
        let flows: Vec<Flow> = pairs.into_iter()
            .map(|(src, skip, bytes, band)| in_band(band, stream(src, (src + skip) % 8, bytes))).collect();
        for (slow, fast) in times(&of(link()), &flows).into_iter().zip(times(&of(twice), &flows)) {
            prop_assert!(slow.abs_diff(2 * fast) <= 2, "{slow} and {fast}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// Equal flows of n segments go from one leaf to another. Each has its own sender and receiver, so neither data nor
    /// acknowledgements of different flows interfere. Spine `dst mod spines` carries k flows. Its queue is first come,
    /// first served. This is fair here, although not in general, because the senders fill the queue at equal rates.
    ///
    /// A packet has one segment and takes 1 us on every link. Because packets are stored and forwarded, the last packet
    /// is one microsecond later for each link after the first. The last packet of a flow is one of the last k packets
    /// on the shared link. A write takes 1 ns before the first packet is sent. Window and queue can hold the whole
    /// flow.
    #[test]
    fn packets_of_the_ideal_transport_take_what_fluids_take(
        spines in 1..5_u32, senders in 1..9_u32, segments in 1..200_u64
    ) {
        const SEGMENT: u64 = 1_196;
        const WIRE: u64 = 1_250;
        let link = Link { rate: Rate::from_bps(10_000_000_000).unwrap(), delay: Time::from_ps(US) };
        let graph = FatTree::leaf_spine(2, senders, spines, link, link).unwrap().graph();
        let queue = QueueConfig {
            discipline: Discipline::Fifo,
            capacity: Capacity::Packets(100_000),
            marking: Marking::None,
        };
        let mut config = PacketConfig::basic_sim(&Star { host_count: 2 * senders, link });
        (config.host_queue, config.switch_queue, config.routing) = (queue.clone(), queue, Policy::DModK);
        config.tcp.segment_bytes = SEGMENT as u16;
        config.tcp.algorithm = CongestionAlgorithm::Ideal(ideal::Parameters {});
        config.tcp.window = Bytes(SEGMENT * 1_000);
        let mut packets = PacketEngine::new(&graph, config).unwrap();
        // Open the connections.
        for src in 0..senders {
            packets.start(stream(src, senders + src, 0));
        }
        received(&mut packets, senders as usize);
        // The flows start after the last packets of the handshakes.
        let begin = packets.now().ps() + 1_000 * US;
        packets.advance(Time::from_ps(begin), &mut Vec::new());
        let mut fluids = fluid(&graph);
        for src in 0..senders {
            packets.start(stream(src, senders + src, segments * SEGMENT));
            fluids.start(stream(src, senders + src, segments * WIRE));
        }
        let theirs = received(&mut fluids, senders as usize);
        for ((src, packet), fluid) in (0..senders).zip(received(&mut packets, senders as usize)).zip(theirs) {
            let sharers = (0..senders).filter(|other| (senders + other) % spines == (senders + src) % spines).count() as i64;
            let difference_ns = (packet as i64 - begin as i64 - fluid as i64) / 1_000;
            let hops = 4;
            let range = (hops - 1 - (sharers - 1)) * 1_000..=(hops - 1) * 1_000 + 1;
            prop_assert!(range.contains(&difference_ns), "{src}: {difference_ns} ns is not in {range:?}");
        }
    }
}
