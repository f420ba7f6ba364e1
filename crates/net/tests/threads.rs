//! Packets on several threads: what anybody can see is what it is on one.

use gradtide_net::packet::tcp::Follow;
use gradtide_net::packet::tcp::congestion::{CongestionAlgorithm, dctcp};
use gradtide_net::packet::{Capacity, Discipline, MarkAt, Marking, QueueConfig};
use gradtide_net::route::Policy;
use gradtide_net::topology::Graph;
use gradtide_net::trace::{Counters, PortCounters, PortState};
use gradtide_net::{
    Band, Bytes, Completion, Connection, FatTree, Flow, HostId, Link, Network, PacketConfig, PacketEngine, PortId,
    Rate, Seed, Star, Threads, Time,
};
use proptest::prelude::*;
use std::sync::Arc;
use threads::Pool;

#[path = "../../py/src/threads.rs"]
mod threads;

/// Threads each of which must have so many packets in a segment; with 0 they are always used.
#[derive(Debug)]
struct Eager(Pool, u64);

impl Threads for Eager {
    fn start(&self, count: usize, work: Arc<dyn Fn(usize) + Send + Sync>) {
        self.0.start(count, work);
    }

    fn arrivals_least(&self) -> u64 {
        self.1
    }
}

/// What is run, in numbers.
#[derive(Clone, Debug)]
struct Case {
    /// Hosts on a star, or leaves, hosts on each and spines.
    shape: Result<u32, (u32, u32, u32)>,
    delay_ns: u64,
    packets: u32,
    discipline: u8,
    marking: u8,
    follow: Follow,
    seed: u64,
    spreads: bool,
    /// When, from, how many hosts further, bytes, and by what connection.
    flows: Vec<(u64, u32, u32, u64, u8)>,
    /// A flow of the same kind is started when one is complete, so many times.
    again: u32,
    /// How far an advance goes at most.
    step_ps: u64,
    arrivals_least: u64,
}

/// All that anybody can see.
#[derive(Debug, PartialEq)]
struct Seen {
    completions: Vec<(Time, Completion)>,
    counters: Counters,
    ports: Vec<PortCounters>,
    states: Vec<PortState>,
}

fn link(gbps: u64, delay_ns: u64) -> Link {
    Link { rate: Rate::from_bps(gbps * 1_000_000_000).unwrap(), delay: Time::from_ps(delay_ns * 1_000) }
}

impl Case {
    fn graph(&self) -> Graph {
        match self.shape {
            Ok(host_count) => Star { host_count, link: link(10, self.delay_ns) }.graph(),
            Err((leaves, hosts, spines)) => {
                let (down, up) = (link(10, self.delay_ns), link(25, self.delay_ns));
                FatTree::leaf_spine(leaves, hosts, spines, down, up).unwrap().graph()
            }
        }
    }

    fn config(&self, graph: &Graph) -> PacketConfig {
        let star = Star { host_count: graph.host_count, link: graph.links[0].link };
        let mut config = PacketConfig::basic_sim(&star);
        config.tcp.follow = self.follow;
        config.seed = Seed(self.seed);
        if self.spreads {
            config.routing = Policy::Spread;
        }
        let packets = self.packets;
        let discipline = match self.discipline {
            0 => Discipline::Fifo,
            1 => Discipline::PfifoFast,
            2 => Discipline::Strict { bands: 2 },
            _ => Discipline::Drr { quanta_bytes: vec![1_500, 3_000] },
        };
        let marking = match self.marking {
            0 => Marking::None,
            1 => Marking::Threshold { packets: packets / 2 + 1, at: MarkAt::Enqueue },
            _ => Marking::Red {
                min_packets: 2,
                max_packets: 2 + packets,
                max_probability_ppm: 100_000,
                weight_ppm: 100_000,
                ecn: true,
            },
        };
        if marking != Marking::None {
            config.tcp.ecn = true;
            config.tcp.algorithm = CongestionAlgorithm::Dctcp(dctcp::Parameters::default());
        }
        let queue = QueueConfig { discipline, marking, capacity: Capacity::Packets(packets) };
        (config.host_queue, config.switch_queue) = (queue.clone(), queue);
        config
    }

    fn flow(&self, hosts: u32, index: usize) -> Flow {
        let (_, src, further, bytes, kind) = self.flows[index % self.flows.len()];
        let src = src % hosts;
        let dst = (src + 1 + further % (hosts - 1)) % hosts;
        let connection = match kind % 4 {
            0 | 1 => Connection::Own,
            2 => Connection::Stream,
            _ => Connection::StreamBand { window: Bytes(40_000) },
        };
        let band = Band::new(kind % 3).unwrap();
        let hold = Time::from_ps(u64::from(kind / 4 % 2) * 700);
        let alone = Flow::alone(HostId(src), HostId(dst), Bytes(bytes));
        Flow { connection, band, stream: u32::from(kind % 4), hold, ..alone }
    }
}

fn run(case: &Case, count: usize) -> Seen {
    let graph = case.graph();
    let hosts = graph.host_count;
    let count = count.min(hosts as usize);
    let threads = Arc::new(Eager(Pool::new(count).unwrap(), case.arrivals_least));
    let mut engine = PacketEngine::on_threads(&graph, case.config(&graph), threads.clone(), count).unwrap();
    for (index, &(at_ps, ..)) in case.flows.iter().enumerate() {
        engine.schedule(Time::from_ps(at_ps), case.flow(hosts, index));
    }
    let (mut completions, mut states, mut done) = (Vec::new(), Vec::new(), Vec::new());
    let mut again = case.again;
    while !engine.is_idle() {
        engine.advance(Time::from_ps(engine.now().ps().saturating_add(case.step_ps)), &mut done);
        for completion in done.drain(..) {
            completions.push((engine.now(), completion));
            let (stream, band) = (completions.len() as u32 % 4, Band::new(completions.len() as u8 % 3).unwrap());
            engine.set_band(stream, band);
            if again > 0 {
                again -= 1;
                engine.start(case.flow(hosts, completions.len()));
            }
        }
        let port = PortId((completions.len() * 7 % graph.links.len()) as u32);
        states.push(engine.port_state(port));
    }
    assert!(engine.conserves_packets());
    let ports = (0..graph.links.len() as u32).map(|port| engine.port_counters(PortId(port))).collect();
    let has_arrivals = engine.counters().packet_hops > 0;
    if case.arrivals_least == 0 {
        assert_eq!(threads.0.starts() > 0, count > 1 && has_arrivals, "threads are used");
    }
    Seen { completions, counters: engine.counters(), ports, states }
}

prop_compose! {
    fn cases()(
        shape in prop_oneof![(2_u32..12).prop_map(Ok), (2_u32..5, 1_u32..4, 1_u32..4).prop_map(Err)],
        // Receivers repeat FINs every 3 us: on short links that is no sooner than a packet crosses one, on longer ones it is
        // for more than a day, on long ones not; and days have another length on several threads there.
        delay_ns in prop_oneof![2 => 0_u64..3_000, 2 => 3_000_u64..20_000, 1 => 20_000_u64..200_000],
        packets in 2_u32..40,
        discipline in 0_u8..4,
        marking in 0_u8..3,
        follow in prop_oneof![Just(Follow::Ns3), Just(Follow::Standards)],
        seed in 0_u64..9,
        spreads: bool,
        flows in prop::collection::vec(
            (prop_oneof![Just(0_u64), 0_u64..40_000_000], 0_u32..12, 0_u32..12, 1_u64..120_000, any::<u8>()),
            1..24,
        ),
        again in 0_u32..12,
        step_ps in prop_oneof![Just(u64::MAX), 5_000_000_u64..60_000_000],
        arrivals_least in prop_oneof![2 => Just(0_u64), 1 => 1_u64..5],
    ) -> Case {
        Case { shape, delay_ns, packets, discipline, marking, follow, seed, spreads, flows, again, step_ps, arrivals_least }
    }
}

fn check(case: &Case, counts: &[usize]) -> Result<(), TestCaseError> {
    let expected = run(case, 1);
    for &count in counts {
        let seen = run(case, count);
        // Not with all that is seen: it is long.
        let first = expected.completions.iter().zip(&seen.completions).find(|(one, other)| one != other);
        let port = expected.ports.iter().zip(&seen.ports).find(|(one, other)| one != other);
        let state = expected.states.iter().zip(&seen.states).find(|(one, other)| one != other);
        prop_assert!(seen == expected, "{count} threads: {first:?}, {port:?}, {state:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn threads_change_nothing(case in cases()) {
        check(&case, &[2, 3])?;
    }
}

proptest! {
    // Threads wait awake: where there are more than processors, each step takes its time.
    #![proptest_config(ProptestConfig { cases: 2, ..ProptestConfig::default() })]

    #[test]
    fn many_threads_change_nothing(case in cases()) {
        check(&case, &[4, 8, 16])?;
    }
}
