//! The network of rank classes. Ranks that behave identically form a class, and one rank represents its class.
//!
//! On a single switch, all ranks of a class send equal messages over links of their own, along routes of equal length.
//! Two endpoints represent the class: a rank's port on the scale-up switch of its node, and its share of the node's
//! network cards.
//!
//! ```text
//! class c, endpoint 2c:      port ──► scale-up switch ──► port       rate and delay of cluster.node.scale_up
//! class c, endpoint 2c + 1:  card ──► network ──► card               cluster.link, of which a rank has nics / gpus
//! ```
//!
//! A collective consists of two flows for each of its classes, one from each endpoint to itself. An all-to-all has one
//! flow per peer. The collective is complete when all flows are complete. In rings and trees a message crosses both
//! levels, so the traffic between nodes starts after the rounds within the node. Alone on the network, the collective
//! takes
//!
//! ```text
//! time alone = rounds in the node · delay + max(bytes in the node / rate, bytes between / rate + rounds between · delay)
//! ```
//!
//! An endpoint consists of two hosts of the engine. With `n` endpoints, host `e` sends and host `n + e` receives for
//! endpoint `e`. The bytes and rounds of each level are computed in [`crate::collective::levels`].

use crate::collective::Aggregation;
use crate::collective::algorithms::Algorithm;
use crate::collective::levels::{CollectiveKind, Span};
use crate::collective::nodes::{Carriage, Links};
use crate::fabric;
use crate::fabric::NetworkError;
use crate::spec::{ClusterSpec, LinkSpec, TopologySpec};
use gradtide_net::route::Policy;
use gradtide_net::topology::Directed;
use gradtide_net::{
    Bytes, Connection, Flow, FlowId, Fluid, FluidError, Graph, HostId, Link, Network, NodeId, Rate, Seed, Time,
};
use std::sync::Arc;

/// The endpoints of all rank classes, with their links.
#[derive(Clone, Debug)]
pub struct Classes {
    class_count: u32,
    links: Links,
}

/// A collective of a group of rank classes.
#[derive(Clone, Copy, Debug)]
pub struct GroupOp<'a> {
    /// Kind of collective.
    pub kind: CollectiveKind,
    /// Size of the collective in bytes, as defined in [`crate::collective::levels`].
    pub bytes: Bytes,
    /// Distribution of the group's ranks over nodes.
    pub span: Span,
    /// Classes of the group's ranks. For a point-to-point send: the sender's class, then the receiver's class.
    pub classes: &'a [u32],
}

impl Classes {
    /// Creates the endpoints of `class_count` classes on a cluster. If the cluster has no nodes, every rank is alone on
    /// its host.
    ///
    /// # Errors
    /// [`NetworkError::SwitchesOfClasses`] for a network on which ranks are not identical,
    /// [`NetworkError::StagesOfClasses`], [`NetworkError::Node`] and [`NetworkError::ZeroRate`].
    pub fn new(cluster: &ClusterSpec, class_count: u32) -> Result<Self, NetworkError> {
        if cluster.host.is_some() {
            return Err(NetworkError::StagesOfClasses);
        }
        if !matches!(cluster.topology, TopologySpec::Star { .. }) {
            return Err(NetworkError::SwitchesOfClasses);
        }
        // All hosts of a star are identical.
        Ok(Self { class_count, links: links(cluster, &[])? })
    }

    /// Creates the endpoints of a single class, whose ranks are on `hosts`. Contention between ranks is not modelled.
    ///
    /// # Errors
    /// Those of [`links`].
    pub fn unshared(cluster: &ClusterSpec, hosts: &[u32]) -> Result<Self, NetworkError> {
        Ok(Self { class_count: 1, links: links(cluster, hosts)? })
    }

    /// Returns the links of a rank.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// Creates the fluid engine of the endpoints, whose senders and receivers form a star.
    ///
    /// # Errors
    /// [`FluidError`] if a link is too fast.
    pub fn fluid(&self, seed: Seed) -> Result<Fluid, FluidError> {
        let endpoints = self.endpoint_count();
        let switch = NodeId(2 * endpoints);
        let free = |link: Link| Link { delay: Time::ZERO, ..link };
        let numbered = || (0..).zip(self.ports());
        let out = numbered().map(|(e, link)| Directed { from: NodeId(e), to: switch, link });
        let into = numbered().map(|(e, link)| Directed { from: switch, to: NodeId(endpoints + e), link: free(link) });
        // A graph needs links in both directions; no flow uses these reverse links.
        let unused = numbered().flat_map(|(e, link)| {
            let (sender, receiver) = (NodeId(e), NodeId(endpoints + e));
            [Directed { from: switch, to: sender, link }, Directed { from: receiver, to: switch, link }]
        });
        let links = out.chain(into).chain(unused).collect();
        Fluid::new(&Graph { host_count: 2 * endpoints, switch_count: 1, links, has_parts: false }, Policy::Ecmp, seed)
    }

    /// Returns the names and rates of the links with flows, in the order of the fluid engine's ports: first the links
    /// out of the endpoints, then the links into them. `classes` contains the names of the classes.
    pub fn link_names(&self, classes: &[String]) -> Vec<(Arc<str>, u64)> {
        let rates = [self.links.scale_up.rate.bps(), self.links.nic.rate.bps()];
        let named = |out: bool| {
            classes.iter().flat_map(move |class| {
                let ends = [(format!("{class}.gpu"), "nvswitch"), (format!("{class}.nic"), "fabric")];
                ends.into_iter().zip(rates).map(move |((port, switch), rate)| {
                    let name = if out { format!("{port}->{switch}") } else { format!("{switch}->{port}") };
                    (name.into(), rate)
                })
            })
        };
        named(true).chain(named(false)).collect()
    }

    /// Returns the duration of a collective on an idle network. Returns `None` if it exceeds [`Time::MAX`], or if a
    /// message exceeds the limit of the engines.
    pub fn time(&self, op: &GroupOp<'_>) -> Option<Time> {
        let (_, levels) = Algorithm::fastest(op.kind, op.span, op.bytes, &self.links);
        self.links.time(&levels, op.bytes)
    }

    /// Starts a collective; returns `None` if it sends nothing.
    pub fn begin(&self, op: &GroupOp<'_>, carriage: Carriage, network: &mut dyn Network) -> Option<Aggregation> {
        let started: Vec<FlowId> = self.flows(op, carriage).into_iter().map(|flow| network.start(flow)).collect();
        match started[..] {
            [] => None,
            [flow] => Some(Aggregation::Whole(flow)),
            _ => Some(Aggregation::Several(started)),
        }
    }

    /// Returns the flows of a collective, which start at the same time.
    pub fn flows(&self, op: &GroupOp<'_>, carriage: Carriage) -> Vec<Flow> {
        let (_, levels) = Algorithm::fastest(op.kind, op.span, op.bytes, &self.links);
        let before = self.links.before_leaving(&levels);
        let both = |from: u32, to: u32| {
            let flows = |(from, to), load, before| {
                let (src, dst) = (HostId(from), HostId(self.endpoint_count() + to));
                // Collectives of one job share endpoints and may overlap, so each flow has a connection of its own.
                let connection = Connection::Own;
                let flows = self.links.flows_of(load, before, op.bytes, carriage);
                flows.map(move |flow| Flow { src, dst, connection, ..flow })
            };
            let inside = flows((2 * from, 2 * to), levels.scale_up, Time::ZERO);
            inside.chain(flows((2 * from + 1, 2 * to + 1), levels.nic, before))
        };
        match (op.kind, op.classes) {
            (CollectiveKind::Send, &[from, to]) => both(from, to).collect(),
            (_, classes) => classes.iter().flat_map(|&class| both(class, class)).collect(),
        }
    }

    fn endpoint_count(&self) -> u32 {
        2 * self.class_count
    }

    fn ports(&self) -> impl Iterator<Item = Link> {
        let Links { scale_up, nic, .. } = self.links;
        (0..self.class_count).flat_map(move |_| [scale_up, nic])
    }
}

/// Returns the links of a rank on `hosts`, without contention. The link between nodes has the slowest rate of these
/// hosts' network cards, and the delay of the longest route between these hosts.
///
/// # Errors
/// [`NetworkError::Node`], [`NetworkError::ZeroRate`] and the errors of the network's shape.
pub fn links(cluster: &ClusterSpec, hosts: &[u32]) -> Result<Links, NetworkError> {
    let Some(node) = &cluster.node else {
        let nic = link(&fabric::way(cluster, &hosts.iter().copied().collect())?, (1, 1))?;
        return Ok(Links { gpus: 1, scale_up: nic, nic });
    };
    fabric::check_node(node)?;
    let cards = hosts.iter().map(|&gpu| fabric::card(node, gpu)).collect();
    let inside = LinkSpec { delay: node.scale_up.delay.saturating_mul(2), ..node.scale_up };
    Ok(Links {
        gpus: node.gpus,
        scale_up: link(&inside, (1, 1))?,
        nic: link(&fabric::way(cluster, &cards)?, (node.nics, node.gpus))?,
    })
}

/// Returns a link with the fraction `part` of the payload rate of `spec`.
fn link(spec: &LinkSpec, part: (u32, u32)) -> Result<Link, NetworkError> {
    let bps =
        u128::from(fabric::payload(spec.rate, spec.efficiency_ppm)?.bps()) * u128::from(part.0) / u128::from(part.1);
    let rate = u64::try_from(bps).ok().and_then(Rate::from_bps).ok_or(NetworkError::ZeroRate)?;
    Ok(Link { rate, delay: spec.delay })
}
