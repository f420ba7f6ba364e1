//! A copy of a network is independent of the original and behaves identically with the same flows.
#![allow(missing_docs)]

use gradtide_net::packet::tcp::congestion::{CongestionAlgorithm, cubic, dctcp, newreno};
use gradtide_net::packet::{Capacity, SharedBuffer};
use gradtide_net::route::Policy;
use gradtide_net::topology::Link;
use gradtide_net::{
    Band, Bytes, Completion, Connection, Flow, Fluid, ForkNetwork, HostId, Network, PacketConfig, PacketEngine, Rate,
    Seed, Star, Time,
};
use proptest::prelude::*;

const HOSTS: u32 = 4;
const US: u64 = 1_000_000;

/// A flow and its start: start in microseconds, source and destination, bytes, band, and whether the flow has a
/// connection of its own.
type Start = (u64, u32, u32, u64, u8, bool);

fn star() -> Star {
    let link = Link { rate: Rate::from_bps(1_000_000_000).unwrap(), delay: Time::from_ps(10 * US) };
    Star { host_count: HOSTS, link }
}

fn engine(kind: usize) -> Box<dyn ForkNetwork> {
    let graph = star().graph();
    if kind == 0 {
        return Box::new(Fluid::new(&graph, Policy::Ecmp, Seed(0)).unwrap());
    }
    let mut config = PacketConfig::basic_sim(&star());
    config.switch_queue.capacity = Capacity::Packets(20);
    config.tcp.algorithm = match kind {
        1 => CongestionAlgorithm::NewReno(newreno::Parameters { byte_counting: true }),
        2 => CongestionAlgorithm::Cubic(cubic::Parameters { hystart: true, byte_counting: true, as_linux: true }),
        _ => CongestionAlgorithm::Dctcp(dctcp::Parameters::default()),
    };
    if kind == 3 {
        config.switch_buffer = Some(SharedBuffer { capacity: Capacity::Packets(60), alpha_ppm: 1_000_000 });
    }
    let mut engine = PacketEngine::new(&graph, config).unwrap();
    engine.pause_every(1000);
    Box::new(engine)
}

/// Starts the flows whose start lies between `from` and `to`, and runs until `to` in steps of `step` ps.
fn go(network: &mut dyn Network, starts: &[Start], from: Time, to: Time, step: u64) -> Vec<(Time, Completion)> {
    let mut all = Vec::new();
    let mut next = starts.partition_point(|start| start.0 * US < from.ps());
    while network.now() < to {
        while let Some(&(at, src, hop, bytes, band, own)) = starts.get(next)
            && at * US <= network.now().ps()
        {
            let connection = if own { Connection::Own } else { Connection::Stream };
            let (src, dst) = (HostId(src), HostId((src + hop) % HOSTS));
            let band = Band::new(band).unwrap();
            network.start(Flow { band, connection, stream: u32::from(own), ..Flow::alone(src, dst, Bytes(bytes)) });
            next += 1;
        }
        let due = starts.get(next).map_or(to, |start| to.min(Time::from_ps(start.0 * US)));
        let look = Time::from_ps(network.now().ps().saturating_add(step));
        let mut done = Vec::new();
        network.advance(due.min(look), &mut done);
        all.extend(done.into_iter().map(|completion| (network.now(), completion)));
    }
    all
}

fn starts() -> impl Strategy<Value = Vec<Start>> {
    let start = (0_u64..20_000, 0..HOSTS, 1..HOSTS, 1_u64..400_000, 0_u8..3, any::<bool>());
    proptest::collection::vec(start, 1..40).prop_map(|mut starts| {
        starts.sort_unstable();
        starts
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_does_what_the_network_does(
        starts in starts(), kind in 0_usize..4, at in 1_u64..25_000, step in 50_u64..5_000,
    ) {
        let (at, end) = (Time::from_ps(at * US), Time::from_ps(10_000_000 * US));
        let mut alone = engine(kind);
        let mut expected = go(alone.as_mut(), &starts, Time::ZERO, at, u64::MAX);
        expected.extend(go(alone.as_mut(), &starts, at, end, u64::MAX));

        let mut network = engine(kind);
        let before = go(network.as_mut(), &starts, Time::ZERO, at, u64::MAX);
        let [mut copy, mut other] = [(); 2].map(|()| network.fork());
        // The other copy gets another flow, and the first copy runs in other steps. Neither affects the network.
        other.start(Flow::alone(HostId(0), HostId(1), Bytes(1_000_000)));
        other.set_band(0, Band::new(2).unwrap());
        go(other.as_mut(), &starts, at, end, u64::MAX);
        for (network, step) in [(&mut copy, if kind == 0 { u64::MAX } else { step * US }), (&mut network, u64::MAX)] {
            let after = go(network.as_mut(), &starts, at, end, step);
            prop_assert_eq!(&[&before[..], &after[..]].concat(), &expected);
        }
    }
}
