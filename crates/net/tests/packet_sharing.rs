//! Shares of flows in a parking lot and at one bottleneck, compared with theory. Expected values and tolerances are
//! computed here.
#![allow(missing_docs)]

mod bottleneck;
mod study;

use bottleneck::{
    CUBIC, DCTCP, GIGABIT, IDEAL, NEWRENO, S_NS, SEGMENT, cable, config, dumbbell, endless, fifo, held, marking, stream,
};
use gradtide_net::topology::Graph;
use gradtide_net::{Bytes, Network, PacketConfig, PacketEngine, PortId, Time};
use study::MS;

/// Returns three switches in a row, connected by gigabit links. Port 0 leads from the first to the second, and port 2
/// from the second to the third. Host 0 sends to host 1 over both links, host 2 to host 3 over the first, and host 4 to
/// host 5 over the second. Ports 5, 9 and 13 are those of the receivers. Without queues, all round trips take equally
/// long.
fn parking_lot(round_ns: u64) -> Graph {
    let hop_ns = round_ns / 8;
    let switch = |index: u32| 6 + index;
    let mut links = Vec::new();
    links.extend(cable(switch(0), switch(1), GIGABIT, hop_ns));
    links.extend(cable(switch(1), switch(2), GIGABIT, hop_ns));
    for (host, at, delay_ns) in
        [(1, 2, hop_ns), (0, 0, hop_ns), (3, 1, hop_ns), (2, 0, 2 * hop_ns), (5, 2, hop_ns), (4, 1, 2 * hop_ns)]
    {
        links.extend(cable(switch(at), host, 100 * GIGABIT, delay_ns));
    }
    Graph { host_count: 6, switch_count: 3, links, has_parts: false }
}

/// Returns the shares that the long flow and the two cross flows have of a gigabit.
fn parking_lot_shares(configuration: PacketConfig, round_ns: u64, (from_ms, to_ms): (u64, u64)) -> [f64; 3] {
    let mut engine = PacketEngine::new(&parking_lot(round_ns), configuration).unwrap();
    for (src, dst) in [(0, 1), (2, 3), (4, 5)] {
        engine.start(stream(src, dst, 1 << 50, src));
    }
    let mut done = Vec::new();
    let ports = [4, 8, 12].map(PortId);
    engine.advance(Time::from_ps(from_ms * MS), &mut done);
    let before = ports.map(|port| engine.port_counters(port).bytes);
    engine.advance(Time::from_ps(to_ms * MS), &mut done);
    let mut shares = [0.0; 3];
    for (index, port) in ports.into_iter().enumerate() {
        let bits = 8 * (engine.port_counters(port).bytes - before[index]);
        shares[index] = bits as f64 / ((to_ms - from_ms) as f64 * 1e6);
    }
    shares
}

#[test]
fn fixed_windows_in_a_parking_lot_share_by_round_trip() {
    // Every flow has a window of W packets. A round trip without queues has D packets, and each bottleneck has a queue
    // of q packets. By Little's law, the rates of the long flow and of a cross flow add up to W / (D + 2q) + W / (D +
    // q) = 1, which determines q and the shares. Tolerance: one packet in W.
    let round_ns = 80 * S_NS;
    let window = 120.0;
    let mut configuration = config(IDEAL, false, fifo(1_000));
    configuration.tcp.window = Bytes(120 * SEGMENT);
    let shares = parking_lot_shares(configuration, round_ns, (500, 1_500));
    let held = held(round_ns);
    let (mut low, mut high) = (0.0, 10.0 * window);
    for _ in 0..60 {
        let q = (low + high) / 2.0;
        let sum = window / (held + 2.0 * q) + window / (held + q);
        (low, high) = if sum > 1.0 { (q, high) } else { (low, q) };
    }
    let expected = [window / (held + 2.0 * low), window / (held + low), window / (held + low)];
    for (found, expected) in shares.into_iter().zip(expected) {
        assert!((found - expected).abs() <= 1.0 / window, "{shares:?}, theory {expected:?}");
    }
}

#[test]
fn a_long_flow_in_a_parking_lot_gets_less_than_its_cross_flows() {
    // When a bottleneck marks, it marks both its cross flow and the long flow, and both are halved. If the two
    // bottlenecks mark in turn, the long flow is halved twice as often as a cross flow, so its mean window is half as
    // large; if they mark together, the windows are equal. The long flow's round trip has one queue more: K plus the
    // growth of n windows. As windows grow by a segment per round trip, the ratio of the rates is at least (RTT_cross /
    // RTT_long)^2 / 2, and below 1.
    let (round_ns, threshold) = (80 * S_NS, 80_u32);
    let reno = |ecn, queue| parking_lot_shares(config(NEWRENO, ecn, queue), round_ns, (1_000, 4_000));
    let shares = reno(true, marking(threshold));
    let (held, queue) = (held(round_ns), f64::from(threshold) + 2.0);
    let least = ((held + queue) / (held + 2.0 * queue)).powi(2) / 2.0;
    for cross in [shares[1], shares[2]] {
        let ratio = shares[0] / cross;
        assert!((least..1.0).contains(&ratio), "{shares:?}: {least} <= {ratio} < 1");
        // Both links are full: the rates of the long flow and of a cross flow add up to the link's rate.
        assert!((shares[0] + cross - 1.0).abs() < 0.01, "{shares:?}");
    }
    // A tail drop affects one flow only, which may be the long one each time (Floyd & Jacobson 1992, phase effects).
    let dropped = reno(false, fifo(threshold));
    assert!(dropped[0] > 0.0 && dropped[0] < dropped[1].min(dropped[2]), "{dropped:?}");
}

#[test]
fn equal_flows_share_equally_in_the_long_run() {
    // Two flows, one bottleneck, equal round trips. Chiu & Jain (1989): additive increase and multiplicative decrease
    // converge to equal shares. After a cut, the two windows differ by up to half a window, so over many periods the
    // means agree to a few per cent.
    for (algorithm, ecn, queue) in
        [(NEWRENO, true, marking(60)), (CUBIC, true, marking(60)), (DCTCP, true, marking(20))]
    {
        let round_ns = 40 * S_NS;
        let mut engine = endless(&dumbbell(2, GIGABIT, round_ns), config(algorithm, ecn, queue));
        let mut done = Vec::new();
        engine.advance(Time::from_ps(1_000 * MS), &mut done);
        let sent = |engine: &mut PacketEngine| [2, 4].map(|port| engine.port_counters(PortId(port + 1)).bytes as f64);
        let before = sent(&mut engine);
        engine.advance(Time::from_ps(2_500 * MS), &mut done);
        let after = sent(&mut engine);
        let (first, second) = (after[0] - before[0], after[1] - before[1]);
        let share = first / (first + second);
        assert!((share - 0.5).abs() < 0.05, "{algorithm:?}: {share}");
    }
}
