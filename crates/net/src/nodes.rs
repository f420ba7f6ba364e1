//! Machines (nodes) with several GPUs, as a layer around any engine. Each GPU has a port on the scale-up switch of its
//! machine, and the GPUs share the network cards of the machine.
//!
//! ```text
//! hosts of the engine:   cards of node 0, of node 1, …, then ports of GPU 0, of GPU 1, …
//! GPU r:                 number r mod gpus on node r / gpus; its card on the node is (r mod gpus) · nics / gpus
//! from GPU a to GPU b:   on one node between their ports, otherwise between their cards
//! ```
//!
//! The caller addresses GPUs as hosts. Two GPUs have a connection of their own for each stream, even if other GPUs
//! share their cards. To this end, a stream of the caller becomes one stream of the engine for each pair of GPUs behind
//! two cards.
//!
//! The engine simulates the links of cards and ports.

use crate::{Band, Bytes, Completion, Flow, FlowId, ForkNetwork, Host, HostId, Hosts, Network, Time};

/// Numbers of machines, GPUs and cards, and the hosts of the engine that represent each GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    gpus: u32,
    nics: u32,
    count: u32,
}

/// Maximum number of GPUs that share a card. Larger numbers would use up the engine's stream numbers, of which each
/// pair of GPUs behind two cards needs one per stream.
const MOST_SHARING: u32 = 64;

impl Nodes {
    /// Creates `count` machines, each with `gpus` GPUs and `nics` cards. Returns `None` if there are no cards, if the
    /// cards do not all have the same number of GPUs, if that number exceeds 64, or if there are 2^32 endpoints.
    pub fn new(count: u32, gpus: u32, nics: u32) -> Option<Self> {
        let shared_alike = nics > 0 && gpus > 0 && gpus.is_multiple_of(nics) && gpus / nics <= MOST_SHARING;
        gpus.checked_add(nics)?.checked_mul(count)?;
        shared_alike.then_some(Self { gpus, nics, count })
    }

    /// Returns the number of machines.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the total number of GPUs.
    pub fn gpu_count(&self) -> u32 {
        self.count * self.gpus
    }

    /// Returns the total number of network cards.
    pub fn card_count(&self) -> u32 {
        self.count * self.nics
    }

    /// Returns the host that is the card of a GPU.
    pub fn card(&self, gpu: HostId) -> HostId {
        HostId(gpu.0 / self.gpus * self.nics + gpu.0 % self.gpus * self.nics / self.gpus)
    }

    /// Returns the host that is the port of a GPU on the scale-up switch.
    pub fn port(&self, gpu: HostId) -> HostId {
        HostId(self.card_count() + gpu.0)
    }

    /// Returns the machine of a GPU.
    pub fn node(&self, gpu: HostId) -> u32 {
        gpu.0 / self.gpus
    }

    /// Returns the number of pairs of a sending and a receiving GPU behind the same two cards.
    fn pairs(&self) -> u32 {
        (self.gpus / self.nics).pow(2)
    }

    /// Returns the index of a pair of GPUs among the pairs behind the same two cards.
    fn pair(&self, src: HostId, dst: HostId) -> u32 {
        let sharing = self.gpus / self.nics;
        src.0 % sharing * sharing + dst.0 % sharing
    }

    /// Returns the source and destination hosts of a message between two GPUs.
    pub fn ends(&self, src: HostId, dst: HostId) -> (HostId, HostId) {
        if self.node(src) == self.node(dst) {
            (self.port(src), self.port(dst))
        } else {
            (self.card(src), self.card(dst))
        }
    }
}

/// A network whose hosts are GPUs.
struct Gpus<N> {
    nodes: Nodes,
    network: N,
}

impl<N> Gpus<N> {
    fn translated(&self, flow: Flow) -> Flow {
        let (src, dst) = self.nodes.ends(flow.src, flow.dst);
        let stream = flow.stream * self.nodes.pairs() + self.nodes.pair(flow.src, flow.dst);
        Flow { src, dst, stream, ..flow }
    }
}

impl<N: Network> Network for Gpus<N> {
    fn now(&self) -> Time {
        self.network.now()
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        self.network.start(self.translated(flow))
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        let before = done.len();
        self.network.advance(until, done);
        done[before..].iter_mut().for_each(|completion| completion.stream /= self.nodes.pairs());
    }

    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        self.network.remaining()
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        let pairs = self.nodes.pairs();
        (stream * pairs..(stream + 1) * pairs).for_each(|stream| self.network.set_band(stream, band));
    }
}

impl<N: ForkNetwork> ForkNetwork for Gpus<N> {
    fn fork(&self) -> Box<dyn ForkNetwork> {
        Box::new(Gpus { nodes: self.nodes, network: self.network.fork() })
    }
}

/// Layers around an engine: nodes with several GPUs, and host costs.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    /// Machines with several GPUs; `None` if hosts are workers themselves.
    pub nodes: Option<Nodes>,
    /// Costs of hosts, if any.
    pub host: Option<Host>,
}

impl Ends {
    /// Returns the network wrapped in these layers.
    pub fn around<'a>(&self, network: impl ForkNetwork + 'a) -> Box<dyn ForkNetwork + 'a> {
        match (self.nodes, self.host) {
            (None, None) => Box::new(network),
            (None, Some(host)) => Box::new(Hosts::new(host, network)),
            (Some(nodes), None) => Box::new(Gpus { nodes, network }),
            (Some(nodes), Some(host)) => Box::new(Hosts::new(host, Gpus { nodes, network })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_node_go_between_ports_and_others_between_cards() {
        let nodes = Nodes::new(2, 8, 4).unwrap();
        assert_eq!((nodes.card_count(), nodes.gpu_count()), (8, 16));
        assert_eq!(nodes.ends(HostId(1), HostId(7)), (HostId(8 + 1), HostId(8 + 7)));
        // GPUs 6 and 7 of a node share the node's fourth card.
        assert_eq!(nodes.ends(HostId(7), HostId(8)), (HostId(3), HostId(4)));
        assert_eq!(nodes.ends(HostId(14), HostId(6)), (HostId(7), HostId(3)));
    }

    #[test]
    fn nodes_that_cannot_be_are_none() {
        for (count, gpus, nics) in [(1, 8, 0), (1, 0, 0), (1, 8, 3), (1, 4, 8), (1 << 29, 8, 8)] {
            assert_eq!(Nodes::new(count, gpus, nics), None, "{count} nodes of {gpus} GPUs and {nics} cards");
        }
    }
}
