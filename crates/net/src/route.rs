//! Which port leads to which host: shortest paths, equal ones shared by hash.

use crate::topology::{Graph, NodeId, PortId};

/// Next-hop tables of all switches.
///
/// A table entry is a port, or, with its top bit set, a group of ports of equal distance. Hosts need no table: they
/// have one port.
#[derive(Debug)]
pub struct Routes {
    host_count: u32,
    /// `[switch][destination host]`.
    next: Vec<u32>,
    groups: Vec<Vec<PortId>>,
    first: Vec<PortId>,
    distance: Vec<u32>,
}

const GROUP: u32 = 1 << 31;
const UNREACHABLE: u32 = u32::MAX;

/// Why a graph has no routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// A host needs exactly one link out.
    #[error("host {host} has {count} links out; exactly 1 is needed")]
    HostLinks {
        /// The host.
        host: u32,
        /// How many it has.
        count: usize,
    },
    /// Some host cannot be reached.
    #[error("node {from} has no path to host {to}")]
    Unreachable {
        /// Where the path should begin.
        from: u32,
        /// Where it should end.
        to: u32,
    },
}

impl Routes {
    /// Shortest paths by hop count, all of them; ports of a group are in the order of their indices.
    ///
    /// # Errors
    /// [`RouteError`] if a host has not exactly one link out, or if a node cannot reach a host.
    pub fn shortest(graph: &Graph) -> Result<Self, RouteError> {
        let node_count = (graph.host_count + graph.switch_count) as usize;
        let mut out = vec![Vec::new(); node_count];
        let mut into = vec![Vec::new(); node_count];
        for (index, directed) in graph.links.iter().enumerate() {
            out[directed.from.0 as usize].push(PortId(index as u32));
            into[directed.to.0 as usize].push(PortId(index as u32));
        }
        let mut first = Vec::with_capacity(graph.host_count as usize);
        for host in 0..graph.host_count {
            let ports = &out[host as usize];
            if ports.len() != 1 {
                return Err(RouteError::HostLinks { host, count: ports.len() });
            }
            first.push(ports[0]);
        }
        let mut routes = Self {
            host_count: graph.host_count,
            next: vec![0; (graph.switch_count as usize) * (graph.host_count as usize)],
            groups: Vec::new(),
            first,
            distance: vec![UNREACHABLE; node_count],
        };
        let has_direct = routes.first.iter().any(|port| graph.far(*port).0 < graph.host_count);
        for host in 0..graph.host_count {
            let near = |host: u32| into[host as usize].iter().map(|&port| graph.near(port));
            // Hosts that hang on the same switches differ in nothing but the last hop.
            if host > 0 && !has_direct && near(host).eq(near(host - 1)) {
                routes.fill_beside(host, graph, &into[host as usize]);
            } else {
                routes.fill_towards(host, graph, &out, &into)?;
            }
        }
        routes.distance = Vec::new();
        Ok(routes)
    }

    fn fill_towards(
        &mut self,
        host: u32,
        graph: &Graph,
        out: &[Vec<PortId>],
        into: &[Vec<PortId>],
    ) -> Result<(), RouteError> {
        self.distance.fill(UNREACHABLE);
        self.distance[host as usize] = 0;
        let mut frontier = std::collections::VecDeque::from([NodeId(host)]);
        while let Some(node) = frontier.pop_front() {
            for &port in &into[node.0 as usize] {
                let before = graph.near(port);
                if self.distance[before.0 as usize] == UNREACHABLE {
                    self.distance[before.0 as usize] = self.distance[node.0 as usize] + 1;
                    // Hosts do not forward.
                    if before.0 >= graph.host_count {
                        frontier.push_back(before);
                    }
                }
            }
        }
        if let Some(from) = self.distance.iter().position(|&distance| distance == UNREACHABLE) {
            return Err(RouteError::Unreachable { from: from as u32, to: host });
        }
        for switch in 0..graph.switch_count {
            let node = (graph.host_count + switch) as usize;
            let closer = self.distance[node] - 1;
            let leads = |port: &PortId| self.distance[graph.far(*port).0 as usize] == closer;
            let ports: Vec<PortId> = out[node].iter().copied().filter(leads).collect();
            self.set(switch, host, ports);
        }
        Ok(())
    }

    /// As [`Routes::fill_towards`] for a host on the same switches as the one before it, whose distances still stand.
    fn fill_beside(&mut self, host: u32, graph: &Graph, into: &[PortId]) {
        for switch in 0..graph.switch_count {
            let node = graph.host_count + switch;
            if self.distance[node as usize] > 1 {
                let row = (switch * self.host_count) as usize;
                self.next[row + host as usize] = self.next[row + host as usize - 1];
            } else {
                let ports = into.iter().copied().filter(|&port| graph.near(port).0 == node).collect();
                self.set(switch, host, ports);
            }
        }
    }

    fn set(&mut self, switch: u32, host: u32, ports: Vec<PortId>) {
        let entry = if ports.len() == 1 { ports[0].0 } else { self.group(ports) };
        self.next[(switch * self.host_count + host) as usize] = entry;
    }

    fn group(&mut self, ports: Vec<PortId>) -> u32 {
        let index = self.groups.iter().rposition(|group| *group == ports).unwrap_or_else(|| {
            self.groups.push(ports);
            self.groups.len() - 1
        });
        GROUP | index as u32
    }

    /// The port of a host.
    pub fn first(&self, host: u32) -> PortId {
        self.first[host as usize]
    }

    /// The port of `switch` (by its index among switches) that leads to host `dst`; `hash` picks one of several.
    #[inline]
    pub fn next(&self, switch: u32, dst: u32, hash: u32) -> PortId {
        let entry = self.next[(switch * self.host_count + dst) as usize];
        if entry & GROUP == 0 {
            return PortId(entry);
        }
        let group = &self.groups[(entry & !GROUP) as usize];
        group[((u64::from(hash) * group.len() as u64) >> 32) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Directed;
    use crate::{Link, Rate, Star, Time};

    fn link() -> Link {
        Link { rate: Rate::from_bps(10_000_000_000).unwrap(), delay: Time::from_ps(1) }
    }

    #[test]
    fn a_star_has_one_way_to_every_host() {
        let graph = Star { host_count: 3, link: link() }.graph();
        let routes = Routes::shortest(&graph).unwrap();
        for host in 0..3 {
            assert_eq!(routes.first(host), PortId(host));
            assert_eq!(routes.next(0, host, 0), PortId(3 + host));
        }
    }

    #[test]
    fn two_spines_share_by_hash_and_local_traffic_stays_local() {
        // Hosts 0 and 1 on leaf 2, hosts... one per leaf here: 0 - leaf 2 - spines 4, 5 - leaf 3 - 1.
        let cables = [(0, 2), (1, 3), (2, 4), (2, 5), (3, 4), (3, 5)];
        let links = cables
            .iter()
            .flat_map(|&(a, b)| [(a, b), (b, a)])
            .map(|(from, to)| Directed { from: NodeId(from), to: NodeId(to), link: link() })
            .collect();
        let graph = Graph { host_count: 2, switch_count: 4, links };
        let routes = Routes::shortest(&graph).unwrap();
        assert_eq!(routes.next(0, 0, 7), PortId(1));
        assert_eq!(routes.next(0, 1, 0), PortId(4));
        assert_eq!(routes.next(0, 1, u32::MAX), PortId(6));
    }

    #[test]
    fn hosts_of_one_leaf_share_their_ways_but_for_the_last_hop() {
        // Hosts 0 to 2 on leaf 5, 3 and 4 on leaf 6; spines 7 and 8.
        let cables = [(0, 5), (1, 5), (2, 5), (3, 6), (4, 6), (5, 7), (5, 8), (6, 7), (6, 8)];
        let links: Vec<Directed> = cables
            .iter()
            .flat_map(|&(a, b)| [(a, b), (b, a)])
            .map(|(from, to)| Directed { from: NodeId(from), to: NodeId(to), link: link() })
            .collect();
        let graph = Graph { host_count: 5, switch_count: 4, links };
        let routes = Routes::shortest(&graph).unwrap();
        for (src, dst) in (0..5).flat_map(|src| (0..5).map(move |dst| (src, dst))).filter(|(src, dst)| src != dst) {
            for hash in [0, u32::MAX] {
                let mut node = graph.far(routes.first(src));
                let mut hop_count = 1;
                while node.0 >= graph.host_count {
                    node = graph.far(routes.next(node.0 - graph.host_count, dst, hash));
                    hop_count += 1;
                }
                let same_leaf = (src < 3) == (dst < 3);
                assert_eq!((node, hop_count), (NodeId(dst), if same_leaf { 2 } else { 4 }), "{src} to {dst}");
            }
        }
    }

    #[test]
    fn a_host_out_of_reach_is_told() {
        let mut graph = Star { host_count: 2, link: link() }.graph();
        graph.links.pop();
        assert_eq!(Routes::shortest(&graph).unwrap_err(), RouteError::Unreachable { from: 0, to: 1 });
        graph.links.remove(1);
        assert_eq!(Routes::shortest(&graph).unwrap_err(), RouteError::HostLinks { host: 1, count: 0 });
    }
}
