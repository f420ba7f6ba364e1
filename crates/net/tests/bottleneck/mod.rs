//! Connections over a bottleneck of 1 Gbit/s, with queues and transports for which a formula predicts the window.
//! Windows and queues are in packets of 1434 bytes on the wire.
#![allow(dead_code)] // Each test uses some of it.

use super::study::{Arrival, MS, NS, background, star};
use gradtide_net::packet::tcp::congestion::{CongestionAlgorithm, cubic, dctcp, ideal, newreno};
use gradtide_net::packet::{Capacity, MarkAt, Marking, QueueConfig};
use gradtide_net::topology::{Directed, Graph, Link, NodeId};
use gradtide_net::{Connection, Flow, Network, PacketConfig, PacketEngine, Rate, Time};

pub const SEGMENT: u64 = 1380;
pub const PACKET: u64 = 1434;
pub const ACK: u64 = 54;
pub const GIGABIT: u64 = 1_000_000_000;
/// Serialisation time of a packet at 1 Gbit/s.
pub const S_NS: u64 = 11_472;
pub const NEWRENO: CongestionAlgorithm = CongestionAlgorithm::NewReno(newreno::Parameters { byte_counting: false });
pub const IDEAL: CongestionAlgorithm = CongestionAlgorithm::Ideal(ideal::Parameters {});
pub const DCTCP: CongestionAlgorithm = CongestionAlgorithm::Dctcp(dctcp::Parameters { gain_ppm: 62_500 });
pub const CUBIC: CongestionAlgorithm =
    CongestionAlgorithm::Cubic(cubic::Parameters { hystart: false, byte_counting: false, as_linux: false });

/// Returns a flow on a stream. Streams never close, so the links carry only the stream's data and acknowledgements.
pub fn stream(src: u32, dst: u32, bytes: u64, stream: u32) -> Flow {
    let arrival = Arrival { start_ns: 0, src, dst, bytes, tos: 16 };
    Flow { connection: Connection::Stream, stream, ..background(&arrival) }
}

pub fn cable(a: u32, b: u32, bps: u64, delay_ns: u64) -> [Directed; 2] {
    let link = Link { rate: Rate::from_bps(bps).unwrap(), delay: Time::from_ps(delay_ns * NS) };
    [Directed { from: NodeId(a), to: NodeId(b), link }, Directed { from: NodeId(b), to: NodeId(a), link }]
}

/// Returns a network of `count` senders at 100 Gbit/s and one receiver at `bps`. The receiver's link is port 0.
pub fn dumbbell(count: u32, bps: u64, round_ns: u64) -> Graph {
    let delay_ns = round_ns / 4;
    let mut links = Vec::new();
    links.extend(cable(count + 1, count, bps, delay_ns));
    for host in 0..count {
        links.extend(cable(host, count + 1, 100 * GIGABIT, delay_ns));
    }
    Graph { host_count: count + 1, switch_count: 1, links, has_parts: false }
}

/// Returns the number of packets that are in flight on a [`dumbbell`] with empty queues. A round trip consists of four
/// delays and the transmissions of a packet and of an acknowledgement on both links.
pub fn held(round_ns: u64) -> f64 {
    (round_ns as f64 + 1.01 * (PACKET + ACK) as f64 * 8.0) / S_NS as f64
}

/// Returns a configuration with timers that are longer than any test, so that only the window limits the sender. Every
/// segment is acknowledged, as the theories assume.
pub fn config(algorithm: CongestionAlgorithm, ecn: bool, queue: QueueConfig) -> PacketConfig {
    let mut config = PacketConfig::basic_sim(&star(2));
    config.tcp.algorithm = algorithm;
    config.tcp.ecn = ecn;
    config.tcp.delayed_ack_segments = 1;
    config.tcp.min_rto = Time::from_ps(1_000 * MS);
    config.tcp.initial_rtt = Time::from_ps(1_000 * MS);
    config.host_queue = QueueConfig::fifo(Capacity::Packets(1_000_000));
    config.switch_queue = queue;
    config
}

pub fn fifo(packets: u32) -> QueueConfig {
    QueueConfig::fifo(Capacity::Packets(packets))
}

pub fn marking(packets: u32) -> QueueConfig {
    QueueConfig { marking: Marking::Threshold { packets, at: MarkAt::Enqueue }, ..fifo(1_000_000) }
}

pub fn endless(graph: &Graph, config: PacketConfig) -> PacketEngine {
    let receiver = graph.host_count - 1;
    let mut engine = PacketEngine::new(graph, config).unwrap();
    for src in 0..receiver {
        engine.start(stream(src, receiver, 1 << 50, src));
    }
    engine
}
