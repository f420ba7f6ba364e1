//! The network of a scenario: its graph, and the names of its links.

use crate::spec::{CableSpec, ClusterSpec, LinkSpec, NodeSpec, TopologySpec};
use gradtide_net::path::Paths;
use gradtide_net::topology::Directed;
use gradtide_net::{Ends, FabricError, FatTree, Graph, HostId, Link, NodeId, Nodes, PortId, Rate, Star, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use thiserror::Error;

/// Error: the network is invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NetworkError {
    /// The topology is invalid.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A cable or a ratio is invalid.
    #[error("the network cannot be: {0}")]
    Cable(&'static str),
    /// Rank classes need routes of equal length and links that no other class uses.
    #[error("ranks are not alike on a network of several switches: classes need a star")]
    SwitchesOfClasses,
    /// Rank classes do not support host stages.
    #[error("ranks of a parallel job have no stages of hosts: leave out cluster.host")]
    StagesOfClasses,
    /// A node is invalid.
    #[error("cluster.node cannot be: {0}")]
    Node(&'static str),
    /// The rate of a link is 0, so no message would ever arrive.
    #[error("the links carry less than one bit per second")]
    ZeroRate,
}

/// Hosts, switches and links with their names.
#[derive(Debug)]
pub struct Fabric {
    /// Graph of the network on which engines run.
    pub graph: Graph,
    /// Name of each link, by the index of its port.
    pub link_names: Vec<Arc<str>>,
    /// Nominal rate of each link in bit/s; the graph contains the payload rates.
    pub nominal_bps: Vec<u64>,
    /// Elements between workers and the graph: the delays of host stacks, and the nodes, whose network cards and GPU
    /// ports are hosts of the graph.
    pub ends: Ends,
}

impl Fabric {
    /// Builds the network that `cluster` describes.
    ///
    /// # Errors
    /// [`NetworkError::Fabric`], [`NetworkError::Cable`] and [`NetworkError::Node`] for an invalid shape;
    /// [`NetworkError::ZeroRate`].
    pub fn new(cluster: &ClusterSpec) -> Result<Self, NetworkError> {
        let Wires { graph, names, nodes } = wires(&cluster.topology, cluster.link.nominal(), cluster.node.as_ref())?;
        Self::with_hosts(graph, names, nodes, cluster)
    }

    /// Creates the fabric from its graph at nominal rates: reduces the rates of links to payload rates, and adds the
    /// latency of the host stack to the links of hosts.
    fn with_hosts(
        mut graph: Graph,
        link_names: Vec<Arc<str>>,
        nodes: Option<Nodes>,
        cluster: &ClusterSpec,
    ) -> Result<Self, NetworkError> {
        if graph.links.is_empty() {
            return Err(NetworkError::Cable("it has a cable at least"));
        }
        let nominal_bps = graph.links.iter().map(|wire| wire.link.rate.bps()).collect();
        let card_count = nodes.map_or(graph.host_count, |nodes| nodes.card_count());
        for wire in &mut graph.links {
            let end = wire.from.0.min(wire.to.0);
            let is_port = (card_count..graph.host_count).contains(&end);
            let spec = cluster.node.as_ref().filter(|_| is_port).map_or(&cluster.link, |node| &node.scale_up);
            wire.link.rate = payload(wire.link.rate, spec.efficiency_ppm)?;
            if end < card_count {
                wire.link.delay = wire.link.delay.saturating_add(cluster.host_latency);
            }
        }
        Ok(Self { graph, link_names, nominal_bps, ends: Ends { nodes, host: cluster.host } })
    }

    /// Returns the graph of the network cards and the graph of the GPU ports; each numbers its hosts from 0. Returns
    /// `None` without nodes. In the whole network, the links of the card graph precede those of the port graph.
    pub fn apart(&self) -> Option<(Graph, Graph)> {
        let nodes = self.ends.nodes?;
        let Graph { host_count, switch_count, links, has_parts } = &self.graph;
        let (card_count, gpu_count, machines) = (nodes.card_count(), nodes.gpu_count(), nodes.count());
        let is_port = |wire: &&Directed| (card_count..*host_count).contains(&wire.from.0.min(wire.to.0));
        let moved = |wire: &Directed, place: &dyn Fn(NodeId) -> u32| {
            let (from, to) = (NodeId(place(wire.from)), NodeId(place(wire.to)));
            Directed { from, to, link: wire.link }
        };
        let of_cards = |id: NodeId| if id.0 < card_count { id.0 } else { id.0 - gpu_count };
        let first_switch = host_count + switch_count - machines;
        let of_ports =
            |id: NodeId| if id.0 < *host_count { id.0 - card_count } else { id.0 - first_switch + gpu_count };
        let cards = Graph {
            host_count: card_count,
            switch_count: switch_count - machines,
            links: links.iter().filter(|wire| !is_port(wire)).map(|wire| moved(wire, &of_cards)).collect(),
            has_parts: false,
        };
        let ports = Graph {
            host_count: gpu_count,
            switch_count: machines,
            links: links.iter().filter(is_port).map(|wire| moved(wire, &of_ports)).collect(),
            has_parts: *has_parts,
        };
        Some((cards, ports))
    }

    /// Returns the number of places for workers, which are hosts or, with nodes, GPUs. Each place has one worker.
    pub fn place_count(&self) -> u32 {
        self.ends.nodes.map_or(self.graph.host_count, |nodes| nodes.gpu_count())
    }

    /// Returns the paths between hosts, including the elements of [`ends`](Self::ends).
    pub fn paths(&self) -> Paths {
        Paths::new(&self.graph, &self.ends)
    }
}

/// Returns the number of links of the longest route between `used` hosts, where each route is the shortest between its
/// hosts. If `used` is empty, all hosts count.
pub fn longest_route(graph: &Graph, used: &BTreeSet<u32>) -> u32 {
    let node_count = (graph.host_count + graph.switch_count) as usize;
    let mut next = vec![Vec::new(); node_count];
    for wire in &graph.links {
        next[wire.from.0 as usize].push(wire.to.0);
    }
    let is_used = |host: u32| used.is_empty() || used.contains(&host);
    let hosts = (0..graph.host_count).filter(|&host| is_used(host));
    // Hosts of one switch have equal distances to all other hosts.
    let switches: BTreeSet<u32> = hosts.clone().flat_map(|host| next[host as usize].clone()).collect();
    let farthest = switches.iter().map(|&switch| {
        let mut distance = vec![u32::MAX; node_count];
        let mut reached = VecDeque::from([switch]);
        distance[switch as usize] = 1;
        while let Some(node) = reached.pop_front() {
            for &to in &next[node as usize] {
                if distance[to as usize] == u32::MAX {
                    distance[to as usize] = distance[node as usize] + 1;
                    // Hosts do not forward packets.
                    if to >= graph.host_count {
                        reached.push_back(to);
                    }
                }
            }
        }
        hosts.clone().map(|host| distance[host as usize]).filter(|&links| links != u32::MAX).max().unwrap_or(0)
    });
    farthest.max().unwrap_or(0).max(2)
}

/// Returns a link with the slowest rate and the longest delay of all links, except links of hosts that are not in
/// `used`. If `used` is empty, includes all links.
pub fn worst_link(graph: &Graph, used: &BTreeSet<u32>) -> Link {
    let is_used = |node: NodeId| used.is_empty() || node.0 >= graph.host_count || used.contains(&node.0);
    let links = || graph.links.iter().filter(|wire| is_used(wire.from) && is_used(wire.to)).map(|wire| wire.link);
    let rate = links().map(|link| link.rate).min_by_key(|rate| rate.bps()).expect("a network has links");
    Link { rate, delay: links().map(|link| link.delay).max().unwrap_or_default() }
}

/// Returns, as one link, the worst path of a message between two of these hosts: the slowest rate of the hosts' links,
/// and the delay of the longest route, including the host stacks. With fewer than two hosts, considers all hosts.
///
/// # Errors
/// As [`shape`].
pub fn way(cluster: &ClusterSpec, hosts: &BTreeSet<u32>) -> Result<LinkSpec, NetworkError> {
    let every @ Link { rate, delay } = cluster.link.nominal();
    let (rate, route) = match &cluster.topology {
        TopologySpec::Star { .. } => (rate, delay.saturating_mul(2)),
        TopologySpec::Custom { hosts: count, cables, .. } if hosts.len() > 1 => way_of_cables(cables, *count, hosts)?,
        TopologySpec::Custom { hosts: count, cables, .. } => way_of_cables(cables, *count, &(0..*count).collect())?,
        topology => {
            let inner =
                if let TopologySpec::LeafSpine { fabric_link, .. } = topology { fabric_link.delay } else { delay };
            let shape = shape(topology, every)?;
            let ends = hosts.first().zip(hosts.last()).filter(|(first, last)| first < last);
            let are_below = |children: u32| ends.is_some_and(|(first, last)| first / children == last / children);
            let hops = match shape.hops {
                _ if are_below(shape.hosts_per_edge) => 2,
                // Hosts below one child of the top switch do not use the top switch.
                hops if are_below(shape.shared_by) => hops - 2,
                hops => hops,
            };
            let inner = inner.saturating_mul(u64::from(hops.saturating_sub(2)));
            (rate, delay.saturating_mul(2).saturating_add(inner))
        }
    };
    let delay = route.saturating_add(cluster.host_latency.saturating_mul(2));
    Ok(LinkSpec { rate, delay, ..cluster.link })
}

/// Returns the rate of the slowest cable of `hosts`, and the delay of the longest route between them. Nodes below
/// `host_count` are hosts, all others switches.
fn way_of_cables(cables: &[CableSpec], host_count: u32, hosts: &BTreeSet<u32>) -> Result<(Rate, Time), NetworkError> {
    let mut next: BTreeMap<u32, Vec<(u32, Time)>> = BTreeMap::new();
    for &CableSpec { a, b, delay, .. } in cables {
        next.entry(a).or_default().push((b, delay));
        next.entry(b).or_default().push((a, delay));
    }
    let is_own = |cable: &&CableSpec| hosts.contains(&cable.a) || hosts.contains(&cable.b);
    let slowest = cables.iter().filter(is_own).map(|cable| cable.rate).min().ok_or(NetworkError::ZeroRate)?;
    let farthest = hosts.iter().map(|&host| {
        // For each node, the number of links and the largest delay of its shortest routes from `host`.
        let mut known = BTreeMap::from([(host, (0_u32, Time::ZERO))]);
        let mut reached = VecDeque::from([host]);
        while let Some(node) = reached.pop_front() {
            let (links, delay) = known[&node];
            // Hosts do not forward packets.
            if node < host_count && node != host {
                continue;
            }
            for &(to, cable) in next.get(&node).into_iter().flatten() {
                let there = (links + 1, delay.saturating_add(cable));
                match known.get_mut(&to) {
                    Some(known) if known.0 == there.0 => known.1 = known.1.max(there.1),
                    Some(_) => {}
                    None => {
                        known.insert(to, there);
                        reached.push_back(to);
                    }
                }
            }
        }
        hosts.iter().filter_map(|other| known.get(other)).map(|&(_, delay)| delay).max().unwrap_or_default()
    });
    Ok((slowest, farthest.max().unwrap_or_default()))
}

/// Returns the host that represents the network card of a GPU.
pub fn card(node: &NodeSpec, gpu: u32) -> u32 {
    Nodes::new(1, node.gpus, node.nics).map_or(gpu, |nodes| nodes.card(HostId(gpu)).0)
}

/// Checks that a node has GPUs, and that equal numbers of them share each network card.
///
/// # Errors
/// [`NetworkError::Node`].
pub fn check_node(node: &NodeSpec) -> Result<(), NetworkError> {
    if node.gpus == 0 || node.nics == 0 {
        return Err(NetworkError::Node("it has GPUs and network cards"));
    }
    if !node.gpus.is_multiple_of(node.nics) {
        return Err(NetworkError::Node("its network cards are shared by equal numbers of GPUs"));
    }
    Ok(())
}

/// Size of a network, which can be checked and estimated before the network is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of hosts.
    pub hosts: u32,
    /// Number of switches.
    pub switches: u32,
    /// Number of cables; each cable is two links.
    pub cables: u32,
    /// Number of ports of each switch. Some ports may be unused.
    pub ports: u32,
    /// Number of links of the longest route, from host to host.
    pub hops: u32,
    /// Number of hosts of an edge switch.
    pub hosts_per_edge: u32,
    /// Largest number of hosts whose traffic shares one link.
    pub shared_by: u32,
}

/// Returns the shape of a network, unless the network is given as a list of cables.
///
/// # Errors
/// As [`Fabric::new`], and [`NetworkError::Cable`] for a network that is given as a list of cables.
pub fn shape(topology: &TopologySpec, every: Link) -> Result<Shape, NetworkError> {
    let tree = tree(topology, every)?.ok_or(NetworkError::Cable("its shape is that of its cables"))?;
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

/// A network with the nominal rates of its links.
#[derive(Debug)]
pub struct Wires {
    /// Hosts, switches and links.
    pub graph: Graph,
    /// Name of each link, by the index of its port.
    pub names: Vec<Arc<str>>,
    /// Nodes whose network cards and GPU ports are the hosts; `None` without nodes.
    pub nodes: Option<Nodes>,
}

/// Builds the network at its nominal rates. Each node has its own switch for its GPUs.
///
/// # Errors
/// As [`Fabric::new`].
pub fn wires(topology: &TopologySpec, every: Link, node: Option<&NodeSpec>) -> Result<Wires, NetworkError> {
    let (graph, names) = match topology {
        TopologySpec::Custom { hosts, switches, cables } => wired(*hosts, switches, cables)?,
        _ => {
            let tree = tree(topology, every)?.expect("a network that is not given cable by cable is a tree");
            let graph = tree.graph();
            let names = (0..graph.links.len() as u32).map(|port| tree.link_name(&graph, PortId(port)).into()).collect();
            (graph, names)
        }
    };
    match node {
        None => Ok(Wires { graph, names, nodes: None }),
        Some(node) => with_ports(graph, names, node),
    }
}

/// Largest number of entries of routing tables, whose indices have 32 bits.
const MAX_ROUTES: u64 = 1 << 31;

/// Adds the GPU ports of nodes and the scale-up switches between them to a graph whose hosts are the nodes' network
/// cards.
fn with_ports(mut graph: Graph, mut names: Vec<Arc<str>>, node: &NodeSpec) -> Result<Wires, NetworkError> {
    check_node(node)?;
    let cards = graph.host_count;
    if cards == 0 || !cards.is_multiple_of(node.nics) {
        return Err(NetworkError::Node("the hosts of the topology are the network cards of whole nodes"));
    }
    let nodes =
        Nodes::new(cards / node.nics, node.gpus, node.nics).ok_or(NetworkError::Node("it has too many GPUs"))?;
    let gpus = nodes.gpu_count();
    let hosts = u64::from(cards) + u64::from(gpus);
    if (u64::from(graph.switch_count) + u64::from(cards / node.nics)) * hosts > MAX_ROUTES {
        return Err(NetworkError::Node("there are too many nodes for the tables of their routes"));
    }
    name_cards(&graph, &mut names, node);
    // Switches are numbered after all hosts, so adding the GPU ports raises their ids.
    let moved = |id: NodeId| if id.0 < cards { id } else { NodeId(id.0 + gpus) };
    for wire in &mut graph.links {
        (wire.from, wire.to) = (moved(wire.from), moved(wire.to));
    }
    let link = node.scale_up.nominal();
    let first_switch = cards + gpus + graph.switch_count;
    for gpu in 0..gpus {
        let machine = nodes.node(HostId(gpu));
        let (port, switch) = (NodeId(nodes.port(HostId(gpu)).0), NodeId(first_switch + machine));
        let name = format!("node{machine}.gpu{}", gpu % node.gpus);
        graph.links.extend([Directed { from: port, to: switch, link }, Directed { from: switch, to: port, link }]);
        names.extend([format!("{name}->nvswitch").into(), format!("nvswitch->{name}").into()]);
    }
    (graph.host_count, graph.switch_count) = (cards + gpus, graph.switch_count + cards / node.nics);
    graph.has_parts = true;
    Ok(Wires { graph, names, nodes: Some(nodes) })
}

/// Names the links of hosts after their network cards, as in `node3.nic5->leaf0` and `leaf0->node3.nic5`.
fn name_cards(graph: &Graph, names: &mut [Arc<str>], node: &NodeSpec) {
    let card = |host: NodeId| format!("node{}.nic{}", host.0 / node.nics, host.0 % node.nics);
    let mut switches = vec![String::new(); graph.host_count as usize];
    for (wire, name) in graph.links.iter().zip(&mut *names) {
        if wire.to.0 < graph.host_count {
            let switch = name.strip_suffix(&format!("-h{}", wire.to.0)).unwrap_or(name).to_owned();
            *name = format!("{switch}->{}", card(wire.to)).into();
            switches[wire.to.0 as usize] = switch;
        }
    }
    for (wire, name) in graph.links.iter().zip(names) {
        if wire.from.0 < graph.host_count {
            *name = format!("{}->{}", card(wire.from), switches[wire.from.0 as usize]).into();
        }
    }
}

/// Returns the rate of payload, which excludes headers and retransmissions.
pub(crate) fn payload(rate: Rate, efficiency_ppm: u64) -> Result<Rate, NetworkError> {
    let payload_bps = u128::from(rate.bps()) * u128::from(efficiency_ppm) / 1_000_000;
    u64::try_from(payload_bps).ok().and_then(Rate::from_bps).ok_or(NetworkError::ZeroRate)
}

/// Returns the fat tree of a topology; `None` if the topology is given as a list of cables.
fn tree(topology: &TopologySpec, every: Link) -> Result<Option<FatTree>, NetworkError> {
    Ok(Some(match *topology {
        TopologySpec::Custom { .. } => return Ok(None),
        TopologySpec::Star { hosts } => FatTree::from(Star { host_count: hosts, link: every }),
        TopologySpec::LeafSpine { leaves, hosts_per_leaf, spines, fabric_link } => {
            FatTree::leaf_spine(leaves, hosts_per_leaf, spines, every, fabric_link)?
        }
        TopologySpec::Clos2 { ports, bisection } => FatTree::clos2(ports, bisection, every)?,
        TopologySpec::Clos3 { ports, bisection } => FatTree::clos3(ports, bisection, every)?,
    }))
}

fn wired(hosts: u32, switches: &[String], cables: &[CableSpec]) -> Result<(Graph, Vec<Arc<str>>), NetworkError> {
    let mut links = Vec::with_capacity(2 * cables.len());
    for cable in cables {
        let link = Link { rate: cable.rate, delay: cable.delay };
        let (a, b) = (NodeId(cable.a), NodeId(cable.b));
        if a == b || a.0.max(b.0) as usize >= hosts as usize + switches.len() {
            return Err(NetworkError::Cable("a cable joins two nodes that there are"));
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
    Ok((Graph { host_count: hosts, switch_count: switches.len() as u32, links, has_parts: false }, names))
}
