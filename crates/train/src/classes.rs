//! The network of rank classes: ranks that behave alike are one.
//!
//! On a network that does not block, the ranks of a class send alike through links that nobody else uses. So two
//! endpoints stand for all of them: a port on the scale-up switch of a node, and a rank's share of the node's network
//! cards.
//!
//! ```text
//! class c, endpoint 2c:      port ──► scale-up switch ──► port       rate and delay of cluster.node.scale_up
//! class c, endpoint 2c + 1:  card ──► network ──► card               cluster.link, of which a rank has nics / gpus
//! ```
//!
//! A collective is, for each of its classes, one flow from the first endpoint to itself, and one from the second; it is
//! complete when all are. In rings and trees a message crosses both levels, so what leaves the node waits for the rounds
//! within it:
//!
//! ```text
//! time alone = rounds in the node · delay + max(bytes in the node / rate, bytes between / rate + rounds between · delay)
//! ```
//!
//! An endpoint is two hosts of an engine: of `n` endpoints, host `e` sends for `e` and host `n + e` receives for it. What
//! does not live here: how many bytes and rounds a level has ([`crate::collective::levels`]).

use crate::SpecError;
use crate::collective::Aggregation;
use crate::collective::levels::{self, CollectiveKind, Levels, PortLoad, Span};
use crate::fabric;
use crate::spec::{ClusterSpec, LinkSpec, TopologySpec, WireSpec};
use gradtide_net::route::Policy;
use gradtide_net::topology::Directed;
use gradtide_net::{
    Band, Bytes, Connection, Flow, FlowId, Fluid, FluidError, Graph, HostId, Link, Network, NodeId, Rate, Seed, Time,
};
use std::sync::Arc;

/// Endpoints of rank classes, each with its link.
#[derive(Clone, Debug)]
pub struct Classes {
    class_count: u32,
    scale_up: Link,
    nic: Link,
}

/// A collective of a group, as the classes of its ranks see it.
#[derive(Clone, Copy, Debug)]
pub struct GroupOp<'a> {
    /// What it does.
    pub kind: CollectiveKind,
    /// See [`levels`].
    pub bytes: Bytes,
    /// Where its ranks are.
    pub span: Span,
    /// Whose ranks they are; of a send from one class to another the sender's and the receiver's.
    pub classes: &'a [u32],
}

/// How it goes on the network, beside what it is.
#[derive(Clone, Copy, Debug)]
pub struct Carriage {
    /// Priority.
    pub band: Band,
    /// Stream of its flows.
    pub stream: u32,
    /// Time before its first byte.
    pub hold: Time,
}

/// Which way a collective goes: what it costs both levels, and whether a message crosses both.
#[derive(Clone, Copy, Debug)]
struct Way {
    levels: Levels,
    crosses_both: bool,
}

/// Messages of the fluid engine are below so many bytes.
const MESSAGE_LIMIT: Bytes = Bytes(1 << 54);

impl Classes {
    /// The endpoints of so many classes on a cluster; without nodes, every rank has a host for itself.
    ///
    /// # Errors
    /// [`SpecError::Blocks`] for a network whose links ranks share, [`SpecError::StagesOfClasses`], [`SpecError::Node`]
    /// and [`SpecError::ZeroRate`].
    pub fn new(cluster: &ClusterSpec, class_count: u32) -> Result<Self, SpecError> {
        if cluster.host.is_some() {
            return Err(SpecError::StagesOfClasses);
        }
        if fabric::blocks(&cluster.topology, cluster.link.rate_bps) {
            return Err(SpecError::Blocks);
        }
        Self::unshared(cluster, class_count)
    }

    /// The same as if no link were shared: what ranks have at best.
    ///
    /// # Errors
    /// [`SpecError::Node`] and [`SpecError::ZeroRate`].
    pub fn unshared(cluster: &ClusterSpec, class_count: u32) -> Result<Self, SpecError> {
        let card = &cluster.link;
        let delay_ps = route_delay_ps(cluster)?;
        let Some(node) = &cluster.node else {
            let nic = link(card, (1, 1), delay_ps)?;
            return Ok(Self { class_count, scale_up: nic, nic });
        };
        fabric::check_node(node)?;
        let inside_ps = node.scale_up.delay_ps.saturating_mul(2);
        Ok(Self {
            class_count,
            scale_up: link(&node.scale_up, (1, 1), inside_ps)?,
            nic: link(card, (node.nics, node.gpus), delay_ps)?,
        })
    }

    /// The fluid engine: a star of senders and receivers.
    ///
    /// # Errors
    /// [`FluidError`] if a link is too fast.
    pub fn fluid(&self, seed: Seed) -> Result<Fluid, FluidError> {
        let endpoints = self.endpoint_count();
        let switch = NodeId(2 * endpoints);
        let free = |link: Link| Link { delay: Time::ZERO, ..link };
        let numbered = || (0..).zip(self.links());
        let out = numbered().map(|(e, link)| Directed { from: NodeId(e), to: switch, link });
        let into = numbered().map(|(e, link)| Directed { from: switch, to: NodeId(endpoints + e), link: free(link) });
        // Every host has a link in each direction; nothing goes over these.
        let unused = numbered().flat_map(|(e, link)| {
            let (sender, receiver) = (NodeId(e), NodeId(endpoints + e));
            [Directed { from: switch, to: sender, link }, Directed { from: receiver, to: switch, link }]
        });
        let links = out.chain(into).chain(unused).collect();
        Fluid::new(&Graph { host_count: 2 * endpoints, switch_count: 1, links, has_parts: false }, Policy::Ecmp, seed)
    }

    /// Names and rates of the links that carry something, by the port of the fluid engine, for classes of these names:
    /// first those out of all endpoints, then those into them.
    pub fn link_names(&self, classes: &[String]) -> Vec<(Arc<str>, u64)> {
        let rates = [self.scale_up.rate.bps(), self.nic.rate.bps()];
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

    /// How long a collective takes on an idle network, or `None` beyond [`Time::MAX`] and for messages that no engine
    /// takes.
    pub fn time(&self, op: &GroupOp<'_>) -> Option<Time> {
        self.time_of(self.way(op), op.bytes)
    }

    /// Starts a collective; `None` if there is nothing to send.
    pub fn begin(&self, op: &GroupOp<'_>, carriage: Carriage, network: &mut dyn Network) -> Option<Aggregation> {
        let started: Vec<FlowId> = self.flows(op, carriage).into_iter().map(|flow| network.start(flow)).collect();
        match started[..] {
            [] => None,
            [flow] => Some(Aggregation::Whole(flow)),
            _ => Some(Aggregation::Several(started)),
        }
    }

    /// The flows of a collective, all of which start with it.
    pub fn flows(&self, op: &GroupOp<'_>, carriage: Carriage) -> Vec<Flow> {
        let way = self.way(op);
        let before = self.before_leaving(way);
        let both = |from: u32, to: u32| {
            let flow = |ends, load, before| self.flow(ends, load, before, op.bytes, carriage);
            let inside = flow((2 * from, 2 * to), way.levels.scale_up, Time::ZERO);
            inside.into_iter().chain(flow((2 * from + 1, 2 * to + 1), way.levels.nic, before))
        };
        match (op.kind, op.classes) {
            (CollectiveKind::Send, &[from, to]) => both(from, to).collect(),
            (_, classes) => classes.iter().flat_map(|&class| both(class, class)).collect(),
        }
    }

    fn endpoint_count(&self) -> u32 {
        2 * self.class_count
    }

    fn links(&self) -> impl Iterator<Item = Link> {
        let (scale_up, nic) = (self.scale_up, self.nic);
        (0..self.class_count).flat_map(move |_| [scale_up, nic])
    }

    /// Whether trees take less time alone than rings.
    pub fn is_tree(&self, op: &GroupOp<'_>) -> bool {
        self.tree(op).is_some()
    }

    fn tree(&self, op: &GroupOp<'_>) -> Option<Way> {
        let time = |way| self.time_of(way, op.bytes).unwrap_or(Time::MAX);
        let tree = Way { levels: levels::tree(op.kind, op.span)?, crosses_both: true };
        (time(tree) < time(Self::ring(op))).then_some(tree)
    }

    fn ring(op: &GroupOp<'_>) -> Way {
        let crosses_both = !matches!(op.kind, CollectiveKind::AllToAll | CollectiveKind::Send);
        Way { levels: levels::levels(op.kind, op.span), crosses_both }
    }

    /// Of rings and trees the one that takes less time alone, as NCCL chooses.
    fn way(&self, op: &GroupOp<'_>) -> Way {
        self.tree(op).unwrap_or_else(|| Self::ring(op))
    }

    /// For how long what leaves the node waits for the rounds within it.
    fn before_leaving(&self, way: Way) -> Time {
        let rounds = if way.crosses_both { way.levels.scale_up.rounds() } else { 0 };
        Time::from_ps(self.scale_up.delay.ps().saturating_mul(rounds.into()))
    }

    fn time_of(&self, way: Way, bytes: Bytes) -> Option<Time> {
        let carriage = Carriage { band: Band::new(0)?, stream: 0, hold: Time::ZERO };
        let at = |link: &Link, load: PortLoad, before: Time| match self.flow((0, 0), load, before, bytes, carriage) {
            None => Some(Time::ZERO),
            Some(flow) if flow.bytes >= MESSAGE_LIMIT => None,
            Some(flow) => flow.time_alone(link),
        };
        let inside = at(&self.scale_up, way.levels.scale_up, Time::ZERO)?;
        Some(inside.max(at(&self.nic, way.levels.nic, self.before_leaving(way))?))
    }

    /// What a load is on the network from one endpoint to another.
    fn flow(
        &self,
        (from, to): (u32, u32),
        load: PortLoad,
        before: Time,
        bytes: Bytes,
        carriage: Carriage,
    ) -> Option<Flow> {
        let (rounds, bytes) = (load.rounds(), load.bytes(bytes));
        (rounds > 0).then(|| Flow {
            src: HostId(from),
            dst: HostId(self.endpoint_count() + to),
            bytes,
            rounds,
            parts: rounds,
            counted: Bytes(bytes.0 / u64::from(rounds)),
            hold: Time::from_ps(carriage.hold.ps().saturating_add(before.ps())),
            band: carriage.band,
            stream: carriage.stream,
            // Collectives of one job share endpoints and do not follow one another.
            connection: Connection::Own,
            part: None,
            announced: None,
        })
    }
}

/// A link with `part` of the payload rate.
fn link(spec: &LinkSpec, part: (u32, u32), delay_ps: u64) -> Result<Link, SpecError> {
    let whole = Rate::from_bps(spec.rate_bps).ok_or(SpecError::ZeroRate)?;
    let bps = u128::from(fabric::payload(whole, spec.efficiency_ppm)?.bps()) * u128::from(part.0) / u128::from(part.1);
    let rate = u64::try_from(bps).ok().and_then(Rate::from_bps).ok_or(SpecError::ZeroRate)?;
    Ok(Link { rate, delay: Time::from_ps(delay_ps) })
}

/// Delay of the longest route between two hosts; of a network that is given cable by cable, over two of its longest.
fn route_delay_ps(cluster: &ClusterSpec) -> Result<u64, SpecError> {
    let LinkSpec { rate_bps, delay_ps, .. } = cluster.link;
    let every = WireSpec { rate_bps, delay_ps };
    let inner_hops = || fabric::shape(&cluster.topology, every).map(|shape| u64::from(shape.hops).saturating_sub(2));
    let (end_ps, inner_hops, inner_ps) = match &cluster.topology {
        TopologySpec::Star { .. } => (delay_ps, 0, 0),
        TopologySpec::LeafSpine { fabric_link, .. } => (delay_ps, inner_hops()?, fabric_link.delay_ps),
        TopologySpec::Clos2 { .. } | TopologySpec::Clos3 { .. } => (delay_ps, inner_hops()?, delay_ps),
        TopologySpec::Custom { cables, .. } => {
            (cables.iter().map(|cable| cable.delay_ps).max().unwrap_or_default(), 0, 0)
        }
    };
    let ends_ps = end_ps.saturating_add(cluster.host_latency_ps).saturating_mul(2);
    Ok(ends_ps.saturating_add(inner_ps.saturating_mul(inner_hops)))
}
