//! Exports the network of a packet run for another simulator: its links, its timers, and the path of every connection.
//! Nothing is simulated.

use crate::engine;
use crate::error::SpecError;
use crate::fabric::Fabric;
use crate::fabric::NetworkError;
use crate::spec::{JobSpec, Spec};
use crate::{check_flows, check_hosts, traffic};
use gradtide_net::route::{Hashes, Routes, reverse};
use gradtide_net::{Band, Bytes, Connection, Flow, HostId};
use gradtide_watch::check_cancelled;
use serde::Serialize;

/// A network with the paths of its connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Routed {
    /// Number of hosts. Nodes with a smaller index are hosts, all others are switches.
    pub hosts: u32,
    /// Number of switches.
    pub switches: u32,
    /// Directed links.
    pub links: Vec<RoutedLink>,
    /// Timers of TCP.
    pub timers: Timers,
    /// Paths of each tenant's flows, in the order in which the flows start.
    pub flows: Vec<Vec<Ways>>,
    /// For each job, paths from every rank's host to the next rank's host.
    pub rings: Vec<Vec<Ways>>,
}

/// A directed link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoutedLink {
    /// Name shown to users.
    pub name: String,
    /// Node at the sending end.
    pub from: u32,
    /// Node at the receiving end.
    pub to: u32,
    /// Rate of the link in the packet engine, in bit/s.
    pub rate_bps: u64,
    /// Propagation delay, including the latency of the host stack.
    pub delay_ps: u64,
}

/// Timers, as defined in [`gradtide_net::packet::tcp::TcpConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Timers {
    /// Minimum retransmission timeout.
    pub min_rto_ps: u64,
    /// Estimate of the round-trip time before the first sample.
    pub initial_rtt_ps: u64,
    /// Timeout of the first SYN.
    pub connect_timeout_ps: u64,
    /// Longest delay of an acknowledgement (delayed ACK).
    pub delayed_ack_ps: u64,
}

/// The links that a connection uses in each direction, as indices in [`Routed::links`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ways {
    /// Links from the host that opens the connection to the other host.
    pub there: Vec<u32>,
    /// Links in the opposite direction.
    pub back: Vec<u32>,
}

/// Exports the network of a scenario on the packet engine.
///
/// # Errors
/// [`SpecError`] if the scenario is invalid or the packet engine does not support it.
pub fn routed(spec: &Spec) -> Result<Routed, SpecError> {
    if spec.cluster.node.is_some() {
        return Err(NetworkError::Node("messages between the GPUs of a node cross no link of the network").into());
    }
    let fabric = Fabric::new(&spec.cluster)?;
    spec.jobs.iter().try_for_each(|job| check_hosts(job, fabric.place_count()))?;
    spec.traffic.iter().try_for_each(|traffic| check_flows(traffic, fabric.place_count()))?;
    let graph = &fabric.graph;
    let config = engine::packet_config(spec, &fabric, graph)?;
    let routes = Routes::shortest(graph)?.by(config.routing);
    let mut hashes = Hashes::new(config.seed);
    let mut ways = |flow: &Flow| {
        check_cancelled();
        let hash = hashes.open(flow);
        let (src, dst) = (flow.src.0, flow.dst.0);
        let links = |src, dst, hash| routes.path(src, dst, hash).iter().map(|port| port.0).collect();
        Ways { there: links(src, dst, hash), back: links(dst, src, reverse(hash)) }
    };
    let mut flows = Vec::new();
    for (index, tenant) in spec.traffic.iter().enumerate() {
        let pairs = tenant.src.iter().zip(&tenant.dst).zip(&tenant.band);
        let flow = |((&src, &dst), &band)| connection(src, dst, traffic::stream(index), band, Connection::Own);
        flows.push(pairs.map(|pair| ways(&flow(pair))).collect());
    }
    let ring = |(stream, job): (u32, &JobSpec)| {
        let next = job.hosts.iter().cycle().skip(1);
        let band = job.bands.first().copied().unwrap_or_default();
        let flow = |(&src, &dst)| connection(src, dst, stream, band, Connection::Stream);
        job.hosts.iter().zip(next).map(|pair| ways(&flow(pair))).collect()
    };
    let rings = (0..).zip(&spec.jobs).map(ring).collect();
    let links = graph.links.iter().zip(&fabric.link_names).map(|(wire, name)| RoutedLink {
        name: name.to_string(),
        from: wire.from.0,
        to: wire.to.0,
        rate_bps: wire.link.rate.bps(),
        delay_ps: wire.link.delay.ps(),
    });
    let timers = Timers {
        min_rto_ps: config.tcp.min_rto.ps(),
        initial_rtt_ps: config.tcp.initial_rtt.ps(),
        connect_timeout_ps: config.tcp.connect_timeout.ps(),
        delayed_ack_ps: config.tcp.delayed_ack_timeout.ps(),
    };
    let (hosts, switches) = (graph.host_count, graph.switch_count);
    Ok(Routed { hosts, switches, links: links.collect(), timers, flows, rings })
}

fn connection(src: u32, dst: u32, stream: u32, band: u8, connection: Connection) -> Flow {
    let band = Band::new(band).or(Band::new(0)).expect("there is a first band");
    Flow { band, stream, connection, ..Flow::alone(HostId(src), HostId(dst), Bytes(0)) }
}
