//! The network of a scenario: its graph, and what users call its links.

use crate::SpecError;
use crate::spec::{CableSpec, ClusterSpec, HostSpec, NodeSpec, TopologySpec, WireSpec};
use gradtide_net::topology::Directed;
use gradtide_net::{FatTree, Graph, Host, Link, NodeId, PortId, Rate, Ratio, Star, Time};
use std::sync::Arc;

/// Hosts, switches and links with their names.
#[derive(Debug)]
pub struct Fabric {
    /// What engines run on.
    pub graph: Graph,
    /// Name of every link, by the index of its port.
    pub link_names: Vec<Arc<str>>,
    /// Nominal rate of every link; in the graph is what is left to gradients.
    pub nominal_bps: Vec<u64>,
    /// The same as a star, if it is one.
    pub star: Option<Star>,
    /// What its hosts add to a message, if anything.
    pub host: Option<Host>,
}

impl Fabric {
    /// The network that `cluster` describes.
    ///
    /// # Errors
    /// [`SpecError::Fabric`] and [`SpecError::Cable`] for a shape that cannot be, [`SpecError::ZeroRate`].
    pub fn new(cluster: &ClusterSpec) -> Result<Self, SpecError> {
        let (graph, names) =
            wires(&cluster.topology, WireSpec { rate_bps: cluster.link.rate_bps, delay_ps: cluster.link.delay_ps })?;
        Self::with_hosts(graph, names, cluster)
    }

    /// Takes from the links what headers take, and adds to those of hosts the time in a host's stack.
    fn with_hosts(mut graph: Graph, link_names: Vec<Arc<str>>, cluster: &ClusterSpec) -> Result<Self, SpecError> {
        if graph.links.is_empty() {
            return Err(SpecError::Cable("it has a cable at least"));
        }
        let nominal_bps = graph.links.iter().map(|wire| wire.link.rate.bps()).collect();
        for wire in &mut graph.links {
            let payload_bps = u128::from(wire.link.rate.bps()) * u128::from(cluster.link.efficiency_ppm) / 1_000_000;
            wire.link.rate = u64::try_from(payload_bps).ok().and_then(Rate::from_bps).ok_or(SpecError::ZeroRate)?;
            if wire.from.0.min(wire.to.0) < graph.host_count {
                let delay_ps = wire.link.delay.ps().saturating_add(cluster.host_latency_ps);
                wire.link.delay = Time::from_ps(delay_ps);
            }
        }
        let star = match cluster.topology {
            TopologySpec::Star { hosts: host_count } => Some(Star { host_count, link: graph.links[0].link }),
            _ => None,
        };
        Ok(Self { graph, link_names, nominal_bps, star, host: cluster.host.map(host) })
    }

    /// The link out of every host, as fast as what the host sends gets through; that into it is the same.
    pub fn host_links(&self) -> Vec<Link> {
        let mut links = vec![self.graph.links[0].link; self.graph.host_count as usize];
        for wire in &self.graph.links {
            if let Some(link) = links.get_mut(wire.from.0 as usize) {
                *link = wire.link;
            }
        }
        if let Some(slowest) = self.host.as_ref().and_then(Host::slowest) {
            links.iter_mut().for_each(|link| link.rate = link.rate.min(slowest));
        }
        links
    }

    /// The slowest rate and the longest delay of all links.
    pub fn worst_link(&self) -> Link {
        let links = || self.graph.links.iter().map(|wire| wire.link);
        let rate = links().map(|link| link.rate).min_by_key(|rate| rate.bps()).expect("a network has links");
        Link { rate, delay: links().map(|link| link.delay).max().unwrap_or_default() }
    }
}

/// Whether every GPU of a node has a card.
///
/// # Errors
/// [`SpecError::Node`].
pub fn check_node(node: &NodeSpec) -> Result<(), SpecError> {
    if node.gpus == 0 || node.nics == 0 {
        return Err(SpecError::Node("it has GPUs and network cards"));
    }
    if !node.gpus.is_multiple_of(node.nics) {
        return Err(SpecError::Node("its network cards are shared by equal numbers of GPUs"));
    }
    Ok(())
}

/// What checks and estimates ask of a network before it is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of hosts.
    pub hosts: u32,
    /// Number of switches.
    pub switches: u32,
    /// Number of cables; each is two links.
    pub cables: u32,
    /// Ports of its switches, all alike; not all are used everywhere.
    pub ports: u32,
    /// Links of the longest route.
    pub hops: u32,
    /// Hosts of an edge switch.
    pub hosts_per_edge: u32,
    /// Hosts that one link can carry the traffic of.
    pub shared_by: u32,
}

/// The shape of a network that is not given cable by cable.
///
/// # Errors
/// As [`Fabric::new`]; and [`SpecError::Cable`] for a network that is given cable by cable.
pub fn shape(topology: &TopologySpec, every: WireSpec) -> Result<Shape, SpecError> {
    let tree = tree(topology, every)?.ok_or(SpecError::Cable("its shape is that of its cables"))?;
    Ok(Shape {
        hosts: tree.host_count(),
        switches: tree.switch_count(),
        cables: tree.cable_count(),
        ports: tree.switch_ports(),
        hops: tree.hop_count(),
        hosts_per_edge: tree.hosts_per_edge(),
        shared_by: tree.shared_by(),
    })
}

/// The network at its nominal rates, and the name of every link by the index of its port.
///
/// # Errors
/// As [`Fabric::new`].
pub fn wires(topology: &TopologySpec, every: WireSpec) -> Result<(Graph, Vec<Arc<str>>), SpecError> {
    if let TopologySpec::Custom { hosts, switches, cables } = topology {
        return wired(*hosts, switches, cables);
    }
    let tree = tree(topology, every)?.expect("a network that is not given cable by cable is a tree");
    let graph = tree.graph();
    let names = (0..graph.links.len() as u32).map(|port| tree.link_name(&graph, PortId(port)).into()).collect();
    Ok((graph, names))
}

/// The tree that a topology is; `None` for one that is given cable by cable.
fn tree(topology: &TopologySpec, every: WireSpec) -> Result<Option<FatTree>, SpecError> {
    let every = link(every)?;
    let ratio = |[up, down]: [u64; 2]| Ratio::new(up, down).ok_or(SpecError::Cable("a ratio is above 0"));
    Ok(Some(match *topology {
        TopologySpec::Custom { .. } => return Ok(None),
        TopologySpec::Star { hosts } => FatTree::from(Star { host_count: hosts, link: every }),
        TopologySpec::LeafSpine { leaves, hosts_per_leaf, spines, fabric_link } => {
            FatTree::leaf_spine(leaves, hosts_per_leaf, spines, every, link(fabric_link)?)?
        }
        TopologySpec::Clos2 { ports, bisection } => FatTree::clos2(ports, ratio(bisection)?, every)?,
        TopologySpec::Clos3 { ports, bisection } => FatTree::clos3(ports, ratio(bisection)?, every)?,
    }))
}

fn wired(hosts: u32, switches: &[String], cables: &[CableSpec]) -> Result<(Graph, Vec<Arc<str>>), SpecError> {
    let mut links = Vec::with_capacity(2 * cables.len());
    for cable in cables {
        let link = link(WireSpec { rate_bps: cable.rate_bps, delay_ps: cable.delay_ps })?;
        let (a, b) = (NodeId(cable.a), NodeId(cable.b));
        if a == b || a.0.max(b.0) as usize >= hosts as usize + switches.len() {
            return Err(SpecError::Cable("a cable joins two nodes that there are"));
        }
        links.extend([Directed { from: a, to: b, link }, Directed { from: b, to: a, link }]);
    }
    let name = |node: NodeId| match node.0.checked_sub(hosts) {
        None => format!("h{}", node.0),
        Some(switch) => switches[switch as usize].clone(),
    };
    let names = (links.iter())
        .map(|wire| match wire.from.0 < hosts {
            true => name(wire.from).into(),
            false => format!("{}-{}", name(wire.from), name(wire.to)).into(),
        })
        .collect();
    Ok((Graph { host_count: hosts, switch_count: switches.len() as u32, links }, names))
}

fn host(HostSpec { message_ps, stages }: HostSpec) -> Host {
    let rates = |bps: &[Option<u64>]| bps.iter().flatten().filter_map(|&bps| Rate::from_bps(bps)).collect();
    Host {
        message: Time::from_ps(message_ps),
        sending: rates(&[stages.copy_bps, stages.serialise_bps]),
        receiving: rates(&[stages.receive_bps]),
    }
}

fn link(wire: WireSpec) -> Result<Link, SpecError> {
    let rate = Rate::from_bps(wire.rate_bps).ok_or(SpecError::ZeroRate)?;
    Ok(Link { rate, delay: Time::from_ps(wire.delay_ps) })
}
