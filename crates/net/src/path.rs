//! The shared resources at the two ends of a path: the processing stages of its hosts, and the links of these hosts. On
//! nodes with several GPUs, the links are those of network cards or of GPU ports.
//!
//! Links between switches are not included, because routes choose them ([`crate::route`]).

use crate::{Ends, Graph, HostId, Link, Time};

/// A shared resource at an end of a path, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Passage {
    /// The stages of a sender.
    Sending(HostId),
    /// The link out of a host of the graph.
    Out(HostId),
    /// The link into a host of the graph.
    In(HostId),
    /// The stages of a receiver.
    Receiving(HostId),
}

impl Passage {
    /// Returns whether the resource belongs to the sender.
    pub fn is_sender(self) -> bool {
        matches!(self, Self::Sending(_) | Self::Out(_))
    }
}

/// The ends of all paths between the endpoints of a network. An endpoint is a host or a GPU of a node.
#[derive(Clone, Debug)]
pub struct Paths {
    ends: Ends,
    /// Link out of every host of the graph. The link into the host has the same rate and delay.
    links: Vec<Link>,
}

impl Paths {
    /// Returns the paths of a network with the layers `ends`.
    ///
    /// # Panics
    /// If the graph has no link.
    pub fn new(graph: &Graph, ends: &Ends) -> Self {
        let mut links = vec![graph.links[0].link; graph.host_count as usize];
        for wire in &graph.links {
            if let Some(link) = links.get_mut(wire.from.0 as usize) {
                *link = wire.link;
            }
        }
        Self { ends: ends.clone(), links }
    }

    /// Returns the resources at the ends of the path between two endpoints, the sender's first, with the rate and delay
    /// of each. The rate of a host's stages is that of the slowest stage.
    pub fn passages(&self, from: HostId, to: HostId) -> impl Iterator<Item = (Passage, Link)> {
        let (src, dst) = self.ends.nodes.map_or((from, to), |nodes| nodes.ends(from, to));
        let host = self.ends.host.unwrap_or_default().stages;
        let as_link = |rate| Link { rate, delay: Time::ZERO };
        let link = |host: HostId| Some(self.links[host.0 as usize]);
        let all = [
            (Passage::Sending(from), host.sending().min().map(as_link)),
            (Passage::Out(src), link(src)),
            (Passage::In(dst), link(dst)),
            (Passage::Receiving(to), host.receiving().min().map(as_link)),
        ];
        all.into_iter().filter_map(|(passage, link)| Some((passage, link?)))
    }
}
