//! A switch: looks up the port, and passes the packet on at once.

use super::host::Hosts;
use super::wire::Wire;
use crate::route::Routes;
use crate::topology::{NodeId, PortId};

/// The port through which switch `node` sends `packet`. All packets of one direction of a connection take one path.
#[inline]
pub(crate) fn port_of(routes: &Routes, host_count: u32, hosts: &Hosts, node: NodeId, packet: &Wire) -> PortId {
    routes.next(node.0 - host_count, packet.dst, || {
        let direction = u32::from(packet.flags & super::wire::flag::REVERSE);
        let key = packet.connection << 1 | direction;
        // Fibonacci hashing (Knuth 6.4): neighbouring connections are spread evenly.
        let hash = (key ^ u32::from(packet.generation) << 16).wrapping_mul(0x9e37_79b1);
        (hosts.source(packet), hash)
    })
}
