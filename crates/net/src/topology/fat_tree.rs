//! Stars, leaf-spine and Clos networks as extended generalised fat trees.

use super::{Directed, Graph, Link, NodeId, PortId, Star};
use crate::units::Ratio;

/// An extended generalised fat tree (Öhring et al. 1995, «On generalized fat trees», definition 1).
///
/// Hosts are on tier 0. A node of tier t has one link to each of its `parents` nodes on the tier above, and a node of
/// the tier above has `children` nodes below. The nodes up to tier t form trees side by side. The top of each tree
/// exists in P copies, where P is the product of `parents` over the tiers up to t. The parents of copy p on the next
/// tier are p + P·j, where the parent's number j runs from 0 to `parents` - 1.
///
/// Nodes are numbered by tier (hosts first), then by tree, then by copy. Ports are numbered by tier. Within a tier, the
/// links up come first, ordered by their lower ends and the parents' numbers; then the links down, ordered by their
/// upper ends and the children.
#[derive(Clone, Debug)]
pub struct FatTree {
    tiers: Vec<Tier>,
    switch_ports: u32,
}

/// The links between two tiers.
#[derive(Clone, Copy, Debug)]
struct Tier {
    /// Number of children of a node at the upper end.
    children: u32,
    /// Number of parents of a node at the lower end.
    parents: u32,
    link: Link,
}

/// Reason why a network cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// The number of ports is odd, but half of the ports of an edge switch must lead down.
    #[error("a Clos network needs switches with an even number of ports, 2 or more, not {ports}")]
    OddPorts {
        /// Number of ports of a switch.
        ports: u32,
    },
    /// `bisection * ports / 2`, the number of upper switches, is not a whole number.
    #[error("a bisection ratio of {bisection} with {ports}-port switches takes {bisection} x {half} switches, \
             which is no whole number", half = .ports / 2)]
    PartOfSwitch {
        /// Ratio of bandwidth upwards to bandwidth downwards.
        bisection: Ratio,
        /// Number of ports of a switch.
        ports: u32,
    },
    /// The ratio is above 1, but an edge switch cannot have more ports upwards than downwards.
    #[error("a Clos network has a bisection ratio of at most 1, not {bisection}")]
    AboveOne {
        /// Ratio of bandwidth upwards to bandwidth downwards.
        bisection: Ratio,
    },
    /// There is no host on a leaf, no leaf or no spine.
    #[error("a network has at least one host on every leaf, one leaf and one spine")]
    Empty,
    /// There are more nodes or links than fit 31-bit indices.
    #[error("a network has fewer than 2^31 hosts, switches and links")]
    TooLarge,
}

impl From<Star> for FatTree {
    fn from(star: Star) -> Self {
        let tiers = vec![Tier { children: star.host_count, parents: 1, link: star.link }];
        Self { tiers, switch_ports: star.host_count }
    }
}

impl FatTree {
    /// Creates a leaf-spine network. Each of `leaves` switches has `hosts_per_leaf` hosts and a link to each of
    /// `spines` switches. The capacity above the leaves may be less than, equal to or more than the capacity below.
    ///
    /// # Errors
    /// [`FabricError::Empty`] if a number is 0; [`FabricError::TooLarge`].
    pub fn leaf_spine(
        leaves: u32,
        hosts_per_leaf: u32,
        spines: u32,
        host_link: Link,
        fabric_link: Link,
    ) -> Result<Self, FabricError> {
        let tiers = vec![
            Tier { children: hosts_per_leaf, parents: 1, link: host_link },
            Tier { children: leaves, parents: spines, link: fabric_link },
        ];
        let switch_ports = hosts_per_leaf.checked_add(spines).ok_or(FabricError::TooLarge)?.max(leaves);
        Self { tiers, switch_ports }.checked()
    }

    /// Creates the 2-layered Clos network of k-port switches with bisection ratio r (Zhang et al. 2017, sec. 2.3 and
    /// table 1): k leaves with k/2 hosts each, and (k/2)·r spines. Each leaf has one link to each spine.
    ///
    /// # Errors
    /// [`FabricError`] if k is odd, r is above 1 or (k/2)·r is not a whole number.
    pub fn clos2(ports: u32, bisection: Ratio, link: Link) -> Result<Self, FabricError> {
        let (half, up) = halves(ports, bisection)?;
        let tiers = vec![Tier { children: half, parents: 1, link }, Tier { children: ports, parents: up, link }];
        Self { tiers, switch_ports: ports }.checked()
    }

    /// Creates the 3-layered Clos network of k-port switches with bisection ratio r (Zhang et al. 2017, sec. 2.3 and
    /// table 1; Al-Fares et al. 2008, sec. 2.2). It has k pods. A pod has k/2 edge switches with k/2 hosts each, and a
    /// = (k/2)·r aggregation switches. Each of the (k/2)·a roots has a port to every pod; aggregation switch i of a pod
    /// is connected to the roots i, i + a, i + 2a and so on.
    ///
    /// # Errors
    /// [`FabricError`] under the conditions of [`FatTree::clos2`].
    pub fn clos3(ports: u32, bisection: Ratio, link: Link) -> Result<Self, FabricError> {
        let (half, up) = halves(ports, bisection)?;
        let tiers = vec![
            Tier { children: half, parents: 1, link },
            Tier { children: half, parents: up, link },
            Tier { children: ports, parents: half, link },
        ];
        Self { tiers, switch_ports: ports }.checked()
    }

    fn checked(self) -> Result<Self, FabricError> {
        if self.tiers.iter().any(|tier| tier.children == 0 || tier.parents == 0) {
            return Err(FabricError::Empty);
        }
        let mut hosts: u128 = self.tiers.iter().map(|tier| u128::from(tier.children)).product();
        let (mut copies, mut links) = (1, 0);
        for tier in &self.tiers {
            // The number of nodes on a tier is the number of trees times the number of copies. Each node has `parents`
            // links up.
            links += 2 * hosts * copies * u128::from(tier.parents);
            hosts /= u128::from(tier.children);
            copies *= u128::from(tier.parents);
            if links >= 1 << 31 {
                return Err(FabricError::TooLarge);
            }
        }
        Ok(self)
    }

    /// Returns the number of hosts.
    pub fn host_count(&self) -> u32 {
        self.count(0)
    }

    /// Returns the number of switches.
    pub fn switch_count(&self) -> u32 {
        (1..=self.tiers.len()).map(|tier| self.count(tier)).sum()
    }

    /// Returns the number of cables. Each cable is two links.
    pub fn cable_count(&self) -> u32 {
        self.tiers.iter().enumerate().map(|(tier, above)| self.count(tier) * above.parents).sum()
    }

    /// Returns the number of ports per switch. All switches have the same number, but some leave ports unused.
    pub fn switch_ports(&self) -> u32 {
        self.switch_ports
    }

    /// Returns the number of links on the longest route.
    pub fn hop_count(&self) -> u32 {
        2 * self.tiers.len() as u32
    }

    /// Returns the number of hosts per edge switch.
    pub fn hosts_per_edge(&self) -> u32 {
        self.tiers[0].children
    }

    /// Returns the largest number of hosts whose traffic can share a link: the number of hosts below one child of a top
    /// switch.
    pub fn shared_by(&self) -> u32 {
        self.tiers[..self.tiers.len() - 1].iter().map(|tier| tier.children).product()
    }

    /// Returns hosts, switches and links, numbered as described at [`FatTree`].
    pub fn graph(&self) -> Graph {
        let mut links = Vec::with_capacity(2 * self.cable_count() as usize);
        let mut first = 0;
        for (tier, &Tier { children, parents, link }) in self.tiers.iter().enumerate() {
            let (lower, upper) = (self.count(tier), self.count(tier + 1));
            let copies = self.copies(tier);
            let node = |index| NodeId(first + index);
            let above = |tree, copy| NodeId(first + lower + tree * copies * parents + copy);
            links.extend((0..lower).flat_map(|index| {
                let (tree, copy) = (index / copies, index % copies);
                let to = move |number| above(tree / children, copy + copies * number);
                (0..parents).map(move |number| Directed { from: node(index), to: to(number), link })
            }));
            links.extend((0..upper).flat_map(|index| {
                let (tree, copy) = (index / (copies * parents), index % (copies * parents));
                let to = move |child| node((tree * children + child) * copies + copy % copies);
                (0..children).map(move |child| Directed { from: above(tree, copy), to: to(child), link })
            }));
            first += lower;
        }
        Graph { host_count: self.host_count(), switch_count: self.switch_count(), links, has_parts: false }
    }

    /// Returns the name of a node. Hosts are `h3`. The switch of a star is `s`; others are `leaf2` and `spine1`, or
    /// `edge2`, `agg1` and `root0`.
    pub fn node_name(&self, node: NodeId) -> String {
        let (mut tier, mut index) = (0, node.0);
        while index >= self.count(tier) {
            index -= self.count(tier);
            tier += 1;
        }
        let kind = match (self.tiers.len(), tier) {
            (_, 0) => "h",
            (1, _) => return "s".into(),
            (2, 1) => "leaf",
            (2, _) => "spine",
            (_, 1) => "edge",
            (_, 2) => "agg",
            _ => "root",
        };
        format!("{kind}{index}")
    }

    /// Returns the name of the link of `port` in [`FatTree::graph`]. A host's only link out has the name of the host,
    /// such as `h3`. Others are named after both ends, such as `leaf2-spine1` or `s-h3`.
    pub fn link_name(&self, graph: &Graph, port: PortId) -> String {
        let (from, to) = (graph.near(port), graph.far(port));
        if from.0 < graph.host_count {
            return self.node_name(from);
        }
        format!("{}-{}", self.node_name(from), self.node_name(to))
    }

    /// Returns the number of copies of a node of `tier`.
    fn copies(&self, tier: usize) -> u32 {
        self.tiers[..tier].iter().map(|tier| tier.parents).product()
    }

    /// Returns the number of nodes of `tier`.
    fn count(&self, tier: usize) -> u32 {
        self.copies(tier) * self.tiers[tier..].iter().map(|tier| tier.children).product::<u32>()
    }
}

/// Returns half of `ports`, and the fraction `bisection` of that half.
fn halves(ports: u32, bisection: Ratio) -> Result<(u32, u32), FabricError> {
    if ports == 0 || !ports.is_multiple_of(2) {
        return Err(FabricError::OddPorts { ports });
    }
    if bisection > Ratio::ONE {
        return Err(FabricError::AboveOne { bisection });
    }
    let up = bisection.of(ports / 2).ok_or(FabricError::PartOfSwitch { bisection, ports })?;
    Ok((ports / 2, up))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Rate, Time};

    fn link(bps: u64) -> Link {
        Link { rate: Rate::from_bps(bps).unwrap(), delay: Time::from_ps(1) }
    }

    fn ratio(numerator: u64, denominator: u64) -> Ratio {
        Ratio::new(numerator, denominator).unwrap()
    }

    fn names(tree: &FatTree) -> Vec<String> {
        let graph = tree.graph();
        (0..graph.links.len() as u32).map(|port| tree.link_name(&graph, PortId(port))).collect()
    }

    #[test]
    fn switches_and_cables_are_those_of_table_1() {
        // Zhang et al. 2017, table 1: with two layers, k/2 (2 + r) switches and k²/2 (1 + r) links for k²/2 nodes; with
        // three layers, k²/4 (2 + 3r) switches and k³/4 (1 + 2r) links for k³/4 nodes. With r = 1/d, all these numbers
        // are counted in units of 1/d.
        for (k, d) in [(4_u32, 1_u32), (4, 2), (8, 1), (8, 4), (16, 1), (16, 2), (16, 4), (16, 8), (32, 8), (64, 8)] {
            let r = ratio(1, d.into());
            let two = FatTree::clos2(k, r, link(1)).unwrap();
            assert_eq!(two.host_count(), k * k / 2);
            assert_eq!(two.switch_count() * d, k / 2 * (2 * d + 1));
            assert_eq!(two.cable_count() * d, k * k / 2 * (d + 1));
            let three = FatTree::clos3(k, r, link(1)).unwrap();
            assert_eq!(three.host_count(), k * k * k / 4);
            assert_eq!(three.switch_count() * d, k * k / 4 * (2 * d + 3));
            assert_eq!(three.cable_count() * d, k * k * k / 4 * (d + 2));
            for tree in [two, three] {
                let graph = tree.graph();
                assert_eq!((graph.host_count, graph.switch_count), (tree.host_count(), tree.switch_count()));
                assert_eq!(graph.links.len() as u32, 2 * tree.cable_count());
            }
        }
    }

    #[test]
    fn no_switch_has_more_ports_than_it_can() {
        for tree in [FatTree::clos2(8, ratio(3, 4), link(1)).unwrap(), FatTree::clos3(6, ratio(2, 3), link(1)).unwrap()]
        {
            let graph = tree.graph();
            let mut ends = vec![(0, 0); (graph.host_count + graph.switch_count) as usize];
            for directed in &graph.links {
                ends[directed.from.0 as usize].0 += 1;
                ends[directed.to.0 as usize].1 += 1;
            }
            for (node, (out, into)) in ends.into_iter().enumerate() {
                assert_eq!(out, into, "a cable is a link in each direction");
                let most = if node < graph.host_count as usize { 1 } else { tree.switch_ports() };
                assert!((1..=most).contains(&out), "node {node} has {out} cables");
            }
        }
    }

    #[test]
    fn half_of_the_leaves_reach_the_others_by_the_bisection_ratio() {
        // The network is cut between the tops and the first half of the trees below them. The bisection ratio is the
        // rate out of this half relative to the rate of its hosts.
        let trees = [
            FatTree::clos2(8, ratio(1, 4), link(10)).unwrap(),
            FatTree::clos3(8, ratio(1, 2), link(10)).unwrap(),
            FatTree::leaf_spine(4, 8, 2, link(10), link(25)).unwrap(),
        ];
        for (tree, expected) in trees.iter().zip([ratio(1, 4), ratio(1, 2), ratio(5, 8)]) {
            let graph = tree.graph();
            let tops = tree.tiers.len();
            let top = graph.host_count + graph.switch_count - tree.count(tops);
            let begin = top - tree.count(tops - 1);
            let half = begin + tree.count(tops - 1) / 2;
            let cut = graph.links.iter().filter(|to| (begin..half).contains(&to.from.0) && to.to.0 >= top);
            let out: u64 = cut.map(|directed| directed.link.rate.bps()).sum();
            assert_eq!(Ratio::new(out, u64::from(graph.host_count / 2) * 10), Some(expected));
        }
    }

    #[test]
    fn links_have_names() {
        let star = FatTree::from(Star { host_count: 2, link: link(1) });
        assert_eq!(names(&star), ["h0", "h1", "s-h0", "s-h1"]);
        let leaf_spine = names(&FatTree::leaf_spine(2, 1, 2, link(1), link(2)).unwrap());
        assert_eq!(leaf_spine[..4], ["h0", "h1", "leaf0-h0", "leaf1-h1"]);
        assert_eq!(leaf_spine[4..8], ["leaf0-spine0", "leaf0-spine1", "leaf1-spine0", "leaf1-spine1"]);
        assert_eq!(leaf_spine[8..], ["spine0-leaf0", "spine0-leaf1", "spine1-leaf0", "spine1-leaf1"]);
        let mut clos3 = names(&FatTree::clos3(4, Ratio::ONE, link(1)).unwrap());
        assert!(
            ["edge7-h15", "edge7-agg6", "agg7-root3", "agg6-root2", "root1-agg7"]
                .iter()
                .all(|&name| { clos3.iter().any(|other| other == name) })
        );
        clos3.sort();
        clos3.dedup();
        assert_eq!(clos3.len(), 96, "no two links have one name");
    }

    #[test]
    fn what_cannot_be_built_is_told() {
        let error = |tree: Result<FatTree, FabricError>| tree.unwrap_err().to_string();
        let text = "a Clos network needs switches with an even number of ports, 2 or more, not 7";
        assert_eq!(error(FatTree::clos2(7, Ratio::ONE, link(1))), text);
        let text = "a bisection ratio of 1/3 with 16-port switches takes 1/3 x 8 switches, which is no whole number";
        assert_eq!(error(FatTree::clos3(16, ratio(1, 3), link(1))), text);
        let text = "a Clos network has a bisection ratio of at most 1, not 2";
        assert_eq!(error(FatTree::clos2(16, ratio(2, 1), link(1))), text);
        assert_eq!(FatTree::leaf_spine(2, 0, 1, link(1), link(1)).unwrap_err(), FabricError::Empty);
        assert_eq!(FatTree::clos3(1 << 20, Ratio::ONE, link(1)).unwrap_err(), FabricError::TooLarge);
        assert_eq!(FatTree::clos2(u32::MAX - 1, Ratio::ONE, link(1)).unwrap_err(), FabricError::TooLarge);
    }
}
