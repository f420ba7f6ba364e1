//! A switch: looks up the port, and passes the packet on at once.

use super::host::Hosts;
use super::wire::Wire;
use crate::route::Routes;
use crate::topology::{NodeId, PortId};

/// The port through which switch `node` sends `packet`. All packets of one direction of a connection take one path.
#[inline]
pub(crate) fn port_of(routes: &Routes, host_count: u32, hosts: &Hosts, node: NodeId, packet: &Wire) -> PortId {
    routes.next(node.0 - host_count, packet.dst, || hosts.source_and_hash(packet))
}
