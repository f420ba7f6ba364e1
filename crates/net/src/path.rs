//! What a message passes at its two ends: stages of hosts, and links of hosts, or of the cards and ports of nodes.
//!
//! What does not live here: links between switches, which routes choose ([`crate::route`]).

use crate::{Ends, Graph, HostId, Link, Time};

/// Something at an end of a path that carries messages in one direction, those of all who share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Passage {
    /// The stages of a place that sends.
    Sending(HostId),
    /// The link out of a host of the graph.
    Out(HostId),
    /// The link into a host of the graph.
    In(HostId),
    /// The stages of a place that receives.
    Receiving(HostId),
}

impl Passage {
    /// Whether it is at the end of the sender.
    pub fn is_sender(self) -> bool {
        matches!(self, Self::Sending(_) | Self::Out(_))
    }
}

/// The ends of all paths between the places of a network: hosts, or GPUs of nodes.
#[derive(Clone, Debug)]
pub struct Paths {
    ends: Ends,
    /// Link out of every host of the graph; that into it is the same.
    links: Vec<Link>,
}

impl Paths {
    /// Of a network with `ends` around it.
    ///
    /// # Panics
    /// If it has no link.
    pub fn new(graph: &Graph, ends: &Ends) -> Self {
        let mut links = vec![graph.links[0].link; graph.host_count as usize];
        for wire in &graph.links {
            if let Some(link) = links.get_mut(wire.from.0 as usize) {
                *link = wire.link;
            }
        }
        Self { ends: ends.clone(), links }
    }

    /// What a message from one place to another passes, the sender's end first, and the rate and delay of each. Stages
    /// are as fast as the slowest of them.
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
