//! Ports, routes, shared buffers and PCN of a network without hosts. [`Forwarder`](super::Forwarder) and
//! [`replay`](super::replay()) share this code.

use super::super::buffer::SharedBuffers;
use super::super::driver::PortDriver;
use super::super::event_key::EventTime;
use super::super::port::Port;
use super::super::qdisc::Verdict;
use super::super::wire::Wire;
use super::super::{PacketConfig, pcn, ports};
use crate::HostId;
use crate::route::{RouteError, Routes};
use crate::topology::{Graph, NodeId, PortId};

/// Source and hash of one direction of a connection. Together they determine the choice among equal-cost paths.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// Sending host.
    pub src: HostId,
    /// Hash of addresses and ports.
    pub hash: u32,
}

/// Ports and routes over `D`.
#[derive(Clone, Debug)]
pub(super) struct Fabric<D> {
    pub host_count: u32,
    pub link_ends: Vec<NodeId>,
    pub routes: Routes,
    pub ports: Vec<Port>,
    pub origins: Vec<Origin>,
    buffers: Option<SharedBuffers>,
    pcn: Option<pcn::Switches>,
    pub driver: D,
}

impl<D: PortDriver> Fabric<D> {
    /// Creates an idle network. `driver` creates the driver of the network's ports.
    pub fn new(graph: &Graph, config: &PacketConfig, driver: impl FnOnce(&[Port]) -> D) -> Result<Self, RouteError> {
        let ports = ports::of(graph, config);
        Ok(Self {
            host_count: graph.host_count,
            link_ends: graph.links.iter().map(|directed| directed.to).collect(),
            routes: Routes::shortest(graph)?.by(config.routing),
            origins: Vec::new(),
            buffers: config.switch_buffer.map(|buffer| SharedBuffers::new(graph, buffer)),
            pcn: ports::pcn(graph, config),
            driver: driver(&ports),
            ports,
        })
    }

    /// Sends a packet through port `id`. First, the port's list of announced bursts is updated if the packet announces
    /// a burst or belongs to one.
    pub fn send(&mut self, id: PortId, at: EventTime, packet: Wire) -> Verdict {
        let Self { ports, driver, .. } = self;
        if let Some(switches) = &mut self.pcn {
            switches.on_packet(ports, id, at, &packet, driver);
        }
        match &mut self.buffers {
            None => ports[id.0 as usize].send(at, packet, driver),
            Some(buffers) => buffers.send(ports, id, at, packet, driver),
        }
    }

    /// Sends a packet through its source's port. Returns that port.
    pub fn enter(&mut self, at: EventTime, packet: Wire) -> (PortId, Verdict) {
        let port = self.routes.first(self.origins[packet.connection as usize].src.0);
        self.driver.enter_nic(&packet);
        (port, self.send(port, at, packet))
    }

    /// Returns the egress port of `packet` at the switch at the far end of `link`, or `None` if a host is there.
    pub fn port_after(&self, link: u32, packet: &Wire) -> Option<PortId> {
        let switch = self.link_ends[link as usize].0.checked_sub(self.host_count)?;
        let origin = || {
            let Origin { src, hash } = self.origins[packet.connection as usize];
            (src.0, hash)
        };
        Some(self.routes.next(switch, packet.dst, origin))
    }

    pub fn is_of_host(&self, port: PortId) -> bool {
        (0..self.host_count).any(|host| self.routes.first(host) == port)
    }

    /// Returns the current marking threshold of `port`; `None` without PCN.
    pub fn threshold(&self, port: PortId, now_ps: u64) -> Option<u32> {
        self.pcn.as_ref().map(|switches| switches.threshold(port, now_ps))
    }
}
