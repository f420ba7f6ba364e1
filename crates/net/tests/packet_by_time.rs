//! Recovery by time (RACK-TLP with PRR) on a network: every flow ends, packets are conserved, and a lost tail costs a
//! probe instead of a timeout.
#![allow(missing_docs)]

mod study;

use gradtide_net::packet::tcp::congestion::{CongestionAlgorithm, cubic};
use gradtide_net::packet::tcp::{Follow, Recovery};
use gradtide_net::packet::{Capacity, QueueConfig};
use gradtide_net::{PacketConfig, PacketEngine};
use proptest::prelude::*;
use study::*;

const SEGMENT: u64 = 1380;

fn engine(hosts: u32, capacity: u32, recovery: Recovery) -> PacketEngine {
    let star = star(hosts);
    let mut config = PacketConfig::basic_sim(&star);
    config.switch_queue = QueueConfig::fifo(Capacity::Packets(capacity));
    config.tcp = config.tcp.with_linux_timers();
    config.tcp.follow = Follow::Standards;
    config.tcp.recovery = recovery;
    config.tcp.stamp_tick = recovery.stamp_tick().unwrap_or(config.tcp.stamp_tick);
    config.tcp.algorithm = CongestionAlgorithm::Cubic(cubic::Parameters { byte_counting: true, ..Default::default() });
    PacketEngine::new(&star.graph(), config).unwrap()
}

fn arrival(start_ns: u64, src: u32, dst: u32, bytes: u64) -> Arrival {
    Arrival { start_ns, src, dst, bytes, tos: 16 }
}

/// Two flows of 60 segments meet at a queue of about 20 packets and lose their last segments. With RFC 6675, only the
/// timeout of 200 ms repairs the loss. With recovery by time, a probe is sent after two round trips of at most 0.2 ms,
/// its acknowledgement reveals the other losses, and their repair takes another round trip.
#[test]
fn a_flow_that_loses_its_tail_does_not_wait_for_the_timeout() {
    let list = [arrival(0, 0, 2, 60 * SEGMENT), arrival(0, 1, 2, 60 * SEGMENT)];
    for capacity in [15, 20, 25] {
        let slowest_ms = |recovery| {
            let mut engine = engine(3, capacity, recovery);
            let results = replay(&mut engine, &list);
            assert!(engine.counters().drops > 0, "the queue overflows");
            results.iter().map(|fct| fct.unwrap().close_ns).max().unwrap() as f64 / 1e6
        };
        let (pipe, rack) = (slowest_ms(Recovery::Pipe), slowest_ms(Recovery::Rack));
        assert!(pipe > 200.0 && rack < 1.0, "{capacity}: {pipe} ms by RFC 6675, {rack} ms by RFC 8985");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_flow_completes_and_packets_are_conserved(
        flows in prop::collection::vec((0_u64..2_000_000, 0_u32..5, 1_u32..5, 0_u64..400_000), 1..25),
        capacity in 1_u32..60,
    ) {
        let list: Vec<Arrival> =
            flows.iter().map(|&(start_ns, src, ahead, bytes)| arrival(start_ns, src, (src + ahead) % 5, bytes)).collect();
        let mut engine = engine(5, capacity, Recovery::Rack);
        let results = replay(&mut engine, &list);
        prop_assert!(results.iter().all(Option::is_some));
        prop_assert!(engine.conserves_packets() && engine.is_idle());
    }
}
