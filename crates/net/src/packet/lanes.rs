//! How a network is divided among threads: into lanes.
//!
//! A lane has some of the hosts, their ports and the switches' ports that lead to them; ports between switches are
//! spread evenly. It drives its ports, keeps what they send in a [`Calendar`], and serves the ends of connections at its
//! hosts. Only at the beginning of a day lanes hand over to one another what arrives in it: an arrival belongs to the lane
//! of its host, or of the port by which it leaves a switch.
//!
//! One lane is the rule. What [`super::threads`] does with several is the same to the last bit.

use super::calendar::Calendar;
use super::division::Division;
use super::ends::Pairs;
use super::port::Port;
use super::wire::Wire;
use crate::route::Routes;
use crate::topology::{Graph, HostId, NodeId, PortId};
use std::sync::Arc;

/// Ports of one lane, and all that will arrive from them.
#[derive(Clone, Debug, Default)]
#[repr(align(128))]
pub(crate) struct Lane {
    pub ports: Vec<Port>,
    pub calendar: Calendar,
}

/// Where everything is, and where packets go: what does not change.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    pub host_count: u32,
    /// Where each link ends.
    pub ends: Vec<NodeId>,
    routes: Routes,
    has_one_switch: bool,
    pub division: Arc<Division>,
}

impl Map {
    /// Of a graph in `count` lanes.
    pub fn new(graph: &Graph, routes: Routes, count: usize) -> Self {
        Self {
            host_count: graph.host_count,
            ends: graph.links.iter().map(|directed| directed.to).collect(),
            routes,
            has_one_switch: graph.switch_count == 1,
            division: Arc::new(Division::new(graph, count)),
        }
    }

    /// The port of a host.
    pub fn first(&self, host: HostId) -> PortId {
        self.routes.first(host.0)
    }

    /// The port through which switch `node` sends `packet`. All packets of one direction of a connection take one path.
    #[inline]
    pub fn port_of(&self, pairs: &Pairs, node: NodeId, packet: &Wire) -> PortId {
        self.routes.next(node.0 - self.host_count, packet.dst, || pairs.source_and_hash(packet))
    }

    /// Whether a switch may ask what connection a packet is of.
    pub fn has_choice(&self) -> bool {
        self.routes.have_choice()
    }

    /// Whether `link` ends at a host. What arrives there is in the lane of the port that sent it.
    #[inline]
    pub fn is_last(&self, link: u32) -> bool {
        self.ends[link as usize].0 < self.host_count
    }

    /// The lane that has to do with `packet` where `link` ends.
    #[inline]
    pub fn lane_of(&self, pairs: &Pairs, link: u32, packet: &Wire) -> usize {
        if self.has_one_switch || self.is_last(link) {
            return self.division.host(HostId(packet.dst));
        }
        self.division.port(self.port_of(pairs, self.ends[link as usize], packet)).0
    }
}
