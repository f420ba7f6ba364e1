//! Hosts and the links between them.

mod fat_tree;

pub use fat_tree::{FabricError, FatTree};

use crate::units::{Rate, Time};
use serde::Deserialize;

/// A host, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub u32);

/// A host or a switch: hosts first, in the order of [`HostId`], then switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// An egress port and the link it feeds, by index into [`Graph::links`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortId(pub u32);

/// One direction of a cable.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Rate at which payload moves: the nominal rate less what headers and retransmissions take.
    #[serde(rename = "rate_bps")]
    pub rate: Rate,
    /// Propagation delay.
    #[serde(default, rename = "delay_ps")]
    pub delay: Time,
}

/// Hosts around one switch, every host on a cable of its own.
#[derive(Clone, Copy, Debug)]
pub struct Star {
    /// Number of hosts.
    pub host_count: u32,
    /// Every link.
    pub link: Link,
}

/// Where a link begins and ends.
#[derive(Clone, Copy, Debug)]
pub struct Directed {
    /// The node whose egress port feeds the link.
    pub from: NodeId,
    /// The node at its far end.
    pub to: NodeId,
    /// Its rate and delay.
    pub link: Link,
}

/// Hosts, switches and directed links: what the packet engine runs on. Every host has exactly one link out.
#[derive(Clone, Debug)]
pub struct Graph {
    /// Number of hosts; they are the first nodes.
    pub host_count: u32,
    /// Number of switches.
    pub switch_count: u32,
    /// Links; the index of one is the [`PortId`] of its egress port.
    pub links: Vec<Directed>,
    /// Whether it is several networks without links and traffic between them. Else each host reaches all.
    pub has_parts: bool,
}

impl Graph {
    /// The node whose egress port `port` is.
    pub fn near(&self, port: PortId) -> NodeId {
        self.links[port.0 as usize].from
    }

    /// The node that `port` leads to.
    pub fn far(&self, port: PortId) -> NodeId {
        self.links[port.0 as usize].to
    }

    /// The index of a node among switches; `None` for a host.
    pub fn switch(&self, node: NodeId) -> Option<u32> {
        node.0.checked_sub(self.host_count)
    }
}

impl Star {
    /// The star as a graph. Port `h` leads from host `h` to the switch, port `host_count + h` back.
    pub fn graph(&self) -> Graph {
        FatTree::from(*self).graph()
    }
}
