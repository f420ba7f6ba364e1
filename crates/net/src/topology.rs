//! Hosts and the links between them.

use crate::units::{Rate, Time};

/// A host, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub u32);

/// One direction of a cable.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Rate at which payload moves: the nominal rate less what headers and retransmissions take.
    pub rate: Rate,
    /// Propagation delay.
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
