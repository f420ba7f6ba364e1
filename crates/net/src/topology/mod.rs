//! Hosts and the links between them.

mod fat_tree;

pub use fat_tree::{FabricError, FatTree};

use crate::units::{Rate, Time};
use serde::Deserialize;

/// A host, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub u32);

/// A host or a switch, by index. Hosts come first, in the order of [`HostId`], then switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// An egress port, and the link that it feeds, by the index of the link in [`Graph::links`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortId(pub u32);

/// One direction of a cable.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Rate of payload, that is, the nominal rate minus headers and retransmissions.
    #[serde(rename = "rate_bps")]
    pub rate: Rate,
    /// Propagation delay.
    #[serde(default, rename = "delay_ps")]
    pub delay: Time,
}

/// Hosts around one switch, each on its own cable.
#[derive(Clone, Copy, Debug)]
pub struct Star {
    /// Number of hosts.
    pub host_count: u32,
    /// Rate and delay of every link.
    pub link: Link,
}

/// A link with its two ends.
#[derive(Clone, Copy, Debug)]
pub struct Directed {
    /// The node whose egress port feeds the link.
    pub from: NodeId,
    /// The node at the far end of the link.
    pub to: NodeId,
    /// Rate and delay of the link.
    pub link: Link,
}

/// A network of hosts, switches and directed links. Every host must have exactly one link out.
#[derive(Clone, Debug)]
pub struct Graph {
    /// Number of hosts; hosts are the first nodes.
    pub host_count: u32,
    /// Number of switches.
    pub switch_count: u32,
    /// Links; the index of a link is the [`PortId`] of its egress port.
    pub links: Vec<Directed>,
    /// Whether the graph consists of several networks without links or traffic between them. Otherwise, each host must
    /// reach all others.
    pub has_parts: bool,
}

impl Graph {
    /// Returns the node whose egress port is `port`.
    pub fn near(&self, port: PortId) -> NodeId {
        self.links[port.0 as usize].from
    }

    /// Returns the node at the far end of `port`'s link.
    pub fn far(&self, port: PortId) -> NodeId {
        self.links[port.0 as usize].to
    }

    /// Returns the index of a node among switches; `None` for a host.
    pub fn switch(&self, node: NodeId) -> Option<u32> {
        node.0.checked_sub(self.host_count)
    }
}

impl Star {
    /// Returns the star as a graph. Port `h` leads from host `h` to the switch, and port `host_count + h` from the
    /// switch to host `h`.
    pub fn graph(&self) -> Graph {
        FatTree::from(*self).graph()
    }
}
