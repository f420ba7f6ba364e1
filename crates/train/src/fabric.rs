//! The network of a scenario: its graph, and what users call its links.

use crate::SpecError;
use crate::spec::{ClusterSpec, TopologySpec, WireSpec};
use gradtide_net::topology::Directed;
use gradtide_net::{FatTree, Graph, Link, NodeId, PortId, Rate, Ratio, Star, Time};
use std::sync::Arc;

/// Hosts, switches and links with their names.
#[derive(Debug)]
pub struct Fabric {
    /// What engines run on.
    pub graph: Graph,
    /// Name of every link, by the index of its port.
    pub link_names: Vec<Arc<str>>,
    /// Links that a message crosses on a star; `None` for any other network.
    pub star: Option<Star>,
}

impl Fabric {
    /// The network that `cluster` describes.
    ///
    /// # Errors
    /// [`SpecError::Fabric`] and [`SpecError::Cable`] for a shape that cannot be, [`SpecError::ZeroRate`].
    pub fn new(cluster: &ClusterSpec) -> Result<Self, SpecError> {
        let link = |wire: WireSpec| link(wire, cluster.link.efficiency_ppm);
        let every = link(WireSpec { rate_bps: cluster.link.rate_bps, delay_ps: cluster.link.delay_ps })?;
        let ratio = |[up, down]: [u64; 2]| Ratio::new(up, down).ok_or(SpecError::Cable("a ratio is above 0"));
        let tree = match &cluster.topology {
            &TopologySpec::Star { hosts } => FatTree::from(Star { host_count: hosts, link: every }),
            &TopologySpec::LeafSpine { leaves, hosts_per_leaf, spines, fabric_link } => {
                FatTree::leaf_spine(leaves, hosts_per_leaf, spines, every, link(fabric_link)?)?
            }
            &TopologySpec::Clos2 { ports, bisection } => FatTree::clos2(ports, ratio(bisection)?, every)?,
            &TopologySpec::Clos3 { ports, bisection } => FatTree::clos3(ports, ratio(bisection)?, every)?,
            TopologySpec::Custom { hosts, switches, cables } => {
                if cables.is_empty() {
                    return Err(SpecError::Cable("a network has one at least"));
                }
                let mut links = Vec::with_capacity(2 * cables.len());
                for cable in cables {
                    let link = link(WireSpec { rate_bps: cable.rate_bps, delay_ps: cable.delay_ps })?;
                    let (a, b) = (NodeId(cable.a), NodeId(cable.b));
                    if a == b || a.0.max(b.0) as usize >= *hosts as usize + switches.len() {
                        return Err(SpecError::Cable("it joins two nodes that there are"));
                    }
                    links.extend([Directed { from: a, to: b, link }, Directed { from: b, to: a, link }]);
                }
                let graph = Graph { host_count: *hosts, switch_count: switches.len() as u32, links };
                let name = |node: NodeId| match node.0.checked_sub(*hosts) {
                    None => format!("h{}", node.0),
                    Some(switch) => switches[switch as usize].clone(),
                };
                let link_names = (graph.links.iter())
                    .map(|wire| match wire.from.0 < *hosts {
                        true => name(wire.from).into(),
                        false => format!("{}-{}", name(wire.from), name(wire.to)).into(),
                    })
                    .collect();
                return Ok(Self { graph, link_names, star: None }.behind_hosts(cluster));
            }
        };
        let graph = tree.graph();
        let link_names =
            (0..graph.links.len() as u32).map(|port| tree.link_name(&graph, PortId(port)).into()).collect();
        let star = match cluster.topology {
            TopologySpec::Star { hosts: host_count } => Some(Star { host_count, link: every }),
            _ => None,
        };
        Ok(Self { graph, link_names, star }.behind_hosts(cluster))
    }

    /// The slowest rate and the longest delay of all links.
    pub fn worst_link(&self) -> Link {
        let links = || self.graph.links.iter().map(|wire| wire.link);
        let rate = links().map(|link| link.rate).min_by_key(|rate| rate.bps()).expect("a network with hosts has links");
        Link { rate, delay: links().map(|link| link.delay).max().unwrap_or_default() }
    }

    /// Adds the time in a host's stack to the links that begin or end at one.
    fn behind_hosts(mut self, cluster: &ClusterSpec) -> Self {
        let later = |delay: Time| Time::from_ps(delay.ps().saturating_add(cluster.host_latency_ps));
        let host_count = self.graph.host_count;
        for wire in &mut self.graph.links {
            if wire.from.0.min(wire.to.0) < host_count {
                wire.link.delay = later(wire.link.delay);
            }
        }
        if let Some(star) = &mut self.star {
            star.link.delay = later(star.link.delay);
        }
        self
    }
}

fn link(wire: WireSpec, efficiency_ppm: u64) -> Result<Link, SpecError> {
    let payload_bps = u128::from(wire.rate_bps) * u128::from(efficiency_ppm) / 1_000_000;
    let rate = u64::try_from(payload_bps).ok().and_then(Rate::from_bps).ok_or(SpecError::ZeroRate)?;
    Ok(Link { rate, delay: Time::from_ps(wire.delay_ps) })
}
