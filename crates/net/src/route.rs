//! Next-hop tables of shortest paths, and the policy that chooses among equal-cost paths.

use crate::topology::{Graph, NodeId, PortId};
use crate::{Connection, Flow, Seed, StreamKey};
use gradtide_watch::check_cancelled;
use serde::Deserialize;
use std::collections::{BTreeMap, VecDeque};

/// Policy by which a switch chooses among ports of equal distance.
///
/// On a [fat tree](crate::topology::FatTree) these ports are the links up, and the choices on the way up determine the
/// path. The formulas below use these numbers of a switch on tier t: M is the number of hosts below the switch, m the
/// number below each of its children, and P the product of the parent counts of the tiers below t. For other graphs,
/// [`Routes::shortest`] computes substitutes for these numbers, and all policies still choose shortest paths.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Choice by a hash of the connection (RFC 2992): see [`Hashes`]. Each tier uses different digits of the hash. With
    /// the same digits, all flows that leave a switch by one port would also leave the next switch by one port.
    #[default]
    Ecmp,
    /// Parent `dst / P mod parents`, so that the traffic to a host comes down from one top switch (D-mod-K: Zahavi et
    /// al. 2010, «Optimized InfiniBand fat-tree routing for shift all-to-all communication patterns»; used by SimGrid's
    /// fat trees).
    DModK,
    /// Parent `(s + g(d - s mod b)) mod b mod parents`. Here b = M/m is the number of children; s = `src / m mod b` and
    /// d = `dst / m mod b` are the numbers of the children towards source and destination. For an odd b, g(x) = 2x mod
    /// b. For an even b, g(x) is 2x below b/2 and 2x + 1 - b from there on.
    ///
    /// Flows with the same distance between source and destination share no link of a Clos network with r = 1, because
    /// s alone distinguishes them. Hosts with the same number on every edge switch, such as the heads of sub-clusters,
    /// are separated on the next tier by the number of the edge switch. From one s to all d, and from all s to one d,
    /// every parent gets an equal share, because g is a permutation. So is g(x) - x, except that one value occurs twice
    /// if b is even. This exception is unavoidable, because cyclic groups of even order have no orthomorphism (Hall &
    /// Paige 1955). A switch with more parents than children uses only as many parents as it has children.
    Spread,
}

/// The quantities of a switch that the formulas of [`Policy`] use.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// P: product of the parent counts of the tiers below.
    stride: u32,
    /// m: number of hosts below each child.
    hosts_per_child: u32,
    /// b: number of children.
    child_count: u32,
}

impl Place {
    fn spread(&self, src: u32, dst: u32) -> u32 {
        let count = self.child_count;
        let digit = |host: u32| host / self.hosts_per_child % count;
        let (from, to) = (digit(src), digit(dst));
        let twice = 2 * ((to + count - from) % count);
        let wrapped = if twice < count { twice } else { twice - count + u32::from(count.is_multiple_of(2)) };
        (from + wrapped) % count
    }
}

/// Next-hop tables of all switches.
///
/// A table entry is a port or, with the top bit set, a group of ports of equal distance. Hosts need no table, because
/// they have one port. All hosts on one switch share a column of the table, because their routes differ only in the
/// last hop.
#[derive(Clone, Debug)]
pub struct Routes {
    host_count: u32,
    column_count: u32,
    /// Table entries `[switch][column]`. On the switch of the column's hosts, the entry is [`LAST_HOP`].
    next: Vec<u32>,
    /// Column of each destination host.
    columns: Vec<Column>,
    groups: Vec<Vec<PortId>>,
    first: Vec<PortId>,
    /// The node at the far end of each link.
    ends: Vec<NodeId>,
    /// Numbers of each switch for the policies.
    places: Vec<Place>,
    policy: Policy,
    /// Index in `groups` of each list of ports. The map is used only while the tables are filled.
    known: BTreeMap<Vec<PortId>, u32>,
}

/// Position of a host in the tables.
#[derive(Clone, Copy, Debug)]
struct Column {
    number: u32,
    /// Entry for the host in the table of the switch to which the host is attached.
    last_hop: u32,
}

/// A graph with the state of the searches that fill the tables.
struct Search<'a> {
    graph: &'a Graph,
    /// Links to each host.
    last: Vec<Vec<PortId>>,
    /// Links from and to each switch, without those from or to hosts.
    out: Vec<Vec<PortId>>,
    into: Vec<Vec<PortId>>,
    /// Distance of each switch from the host of the current column.
    distance: Vec<u32>,
    frontier: VecDeque<u32>,
    ports: Vec<PortId>,
}

/// Hashes of connections, for [`Policy::Ecmp`].
///
/// A switch hashes addresses and ports. Here, source, destination, stream and band take their place. A flow's own
/// connection also needs a number among those of its source and stream: the flow's position in its list or, without a
/// list, the order of opening. A flow thus has the same hash on every engine, independent of other connections. The key
/// of the hash is drawn from the run's seed.
#[derive(Clone, Debug)]
pub struct Hashes {
    key: u64,
    /// Number of [`Connection::Own`] opened so far, by source and stream.
    own_counts: BTreeMap<(u32, u32), u32>,
}

impl Hashes {
    /// Creates the hashes of a run in which no connection was opened yet.
    pub fn new(seed: Seed) -> Self {
        Self { key: seed.stream("ecmp").word(), own_counts: BTreeMap::new() }
    }

    /// Returns the hash of the connection that `flow` opens. This function must be called once for each connection,
    /// because it counts flows' own connections.
    pub fn open(&mut self, flow: &Flow) -> u32 {
        let (src, stream) = (flow.src.0, flow.stream);
        if flow.connection != Connection::Own {
            return self.of_stream(src, flow.dst.0, flow.stream_key());
        }
        let count = self.own_counts.entry((src, stream)).or_default();
        *count += 1;
        let number = flow.listed.map_or(*count, |listed| listed.of_source);
        self.hash([src, flow.dst.0, stream, 0, number])
    }

    /// Returns the hash of a stream's connection.
    pub(crate) fn of_stream(&self, src: u32, dst: u32, StreamKey { stream, band }: StreamKey) -> u32 {
        self.hash([src, dst, stream, u32::from(band), 0])
    }

    fn hash(&self, words: [u32; 5]) -> u32 {
        (words.into_iter().fold(self.key, |mixed, word| mix(mixed ^ u64::from(word))) >> 32) as u32
    }
}

/// Returns the hash of a connection's reverse direction.
#[inline]
pub fn reverse(hash: u32) -> u32 {
    (mix(u64::from(hash)) >> 32) as u32
}

/// Performs one step of SplitMix64 (Steele, Lea & Flood 2014): every bit of the input reaches every bit of the output.
#[inline]
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

const GROUP: u32 = 1 << 31;
const UNREACHABLE: u32 = u32::MAX;
/// Sentinel: an entry that is replaced by the [`Column::last_hop`] of the destination.
const LAST_HOP: u32 = u32::MAX - 1;

/// Reason why routes cannot be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// A host does not have exactly one link out.
    #[error("host {host} has {count} links out; exactly 1 is needed")]
    HostLinks {
        /// The host.
        host: u32,
        /// Number of links out of the host.
        count: usize,
    },
    /// Some host cannot be reached.
    #[error("node {from} has no path to host {to}")]
    Unreachable {
        /// Node at which the path should begin.
        from: u32,
        /// Host at which the path should end.
        to: u32,
    },
}

impl Routes {
    /// Computes all shortest paths by hop count. A hash chooses among equal-cost ports unless [`Routes::by`] selects
    /// another policy.
    ///
    /// # Errors
    /// [`RouteError`] if a host does not have exactly one link out, or if a node cannot reach a host.
    pub fn shortest(graph: &Graph) -> Result<Self, RouteError> {
        let mut out = vec![Vec::new(); (graph.host_count + graph.switch_count) as usize];
        for (index, directed) in graph.links.iter().enumerate() {
            out[directed.from.0 as usize].push(PortId(index as u32));
        }
        let mut first = Vec::with_capacity(graph.host_count as usize);
        for host in 0..graph.host_count {
            let ports = &out[host as usize];
            if ports.len() != 1 {
                return Err(RouteError::HostLinks { host, count: ports.len() });
            }
            first.push(ports[0]);
        }
        let mut search = Search::new(graph);
        let (numbers, firsts) = search.columns();
        let mut routes = Self {
            host_count: graph.host_count,
            column_count: firsts.len() as u32,
            next: vec![LAST_HOP; (graph.switch_count as usize) * firsts.len()],
            columns: Vec::with_capacity(numbers.len()),
            groups: Vec::new(),
            first,
            ends: graph.links.iter().map(|directed| directed.to).collect(),
            places: places(graph, &out),
            policy: Policy::Ecmp,
            known: BTreeMap::new(),
        };
        for (host, number) in (0..).zip(numbers) {
            check_cancelled();
            let last_hop = search.switch_of(host).map_or(UNREACHABLE, |_| routes.entry(&search.last[host as usize]));
            routes.columns.push(Column { number, last_hop });
        }
        for (number, &host) in (0..).zip(&firsts) {
            routes.fill(number, host, &mut search)?;
        }
        routes.known = BTreeMap::new();
        Ok(routes)
    }

    /// Returns these routes with another policy for the choice among equal-cost paths.
    #[must_use]
    pub fn by(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// Fills column `number` with the next hops towards `host`.
    fn fill(&mut self, number: u32, host: u32, search: &mut Search<'_>) -> Result<(), RouteError> {
        search.measure(host, &self.first)?;
        let (graph, own) = (search.graph, search.switch_of(host));
        for switch in 0..graph.switch_count {
            check_cancelled();
            if own == Some(switch) {
                continue;
            }
            search.ports.clear();
            let entry = match search.distance[switch as usize] {
                UNREACHABLE => UNREACHABLE,
                distance => {
                    let closer = |port: &&PortId| match distance {
                        1 => graph.switch(graph.near(**port)) == Some(switch),
                        _ => graph.switch(graph.far(**port)).is_some_and(|to| search.distance[to as usize] < distance),
                    };
                    let links = if distance == 1 { &search.last[host as usize] } else { &search.out[switch as usize] };
                    search.ports.extend(links.iter().filter(closer));
                    // A policy chooses by position in the group, so the order must not depend on the order of the
                    // graph's links.
                    search.ports.sort_by_key(|&port| graph.far(port));
                    self.entry(&search.ports)
                }
            };
            self.next[(switch * self.column_count + number) as usize] = entry;
        }
        Ok(())
    }

    fn entry(&mut self, ports: &[PortId]) -> u32 {
        if let [port] = ports {
            return port.0;
        }
        let known = self.known.get(ports).copied();
        GROUP
            | known.unwrap_or_else(|| {
                let index = self.groups.len() as u32;
                self.groups.push(ports.to_vec());
                self.known.insert(ports.to_vec(), index);
                index
            })
    }

    /// Returns the port of a host.
    pub fn first(&self, host: u32) -> PortId {
        self.first[host as usize]
    }

    /// Returns the port of `switch`, an index among switches, towards host `dst`. `flow` returns the source and the
    /// hash of the flow; it is called only if there are several ports.
    #[inline]
    pub fn next(&self, switch: u32, dst: u32, flow: impl FnOnce() -> (u32, u32)) -> PortId {
        let Column { number, last_hop } = self.columns[dst as usize];
        let mut entry = self.next[(switch * self.column_count + number) as usize];
        if entry == LAST_HOP {
            entry = last_hop;
        }
        if entry & GROUP == 0 {
            return PortId(entry);
        }
        let (src, hash) = flow();
        self.choose(switch, &self.groups[(entry & !GROUP) as usize], src, dst, hash)
    }

    fn choose(&self, switch: u32, group: &[PortId], src: u32, dst: u32, hash: u32) -> PortId {
        let place = &self.places[switch as usize];
        let count = group.len() as u32;
        let number = match self.policy {
            // The hash is interpreted as a fraction of 2^32. Multiplication by `stride` removes the digits that lower
            // tiers have used.
            Policy::Ecmp => ((u64::from(hash.wrapping_mul(place.stride)) * u64::from(count)) >> 32) as u32,
            Policy::DModK => dst / place.stride % count,
            Policy::Spread => place.spread(src, dst) % count,
        };
        group[number as usize]
    }

    /// Returns the links from host `src` to host `dst`, in order, for a flow with hash `hash`, which must be uniform
    /// over 32 bits. The path is empty if both are the same host.
    pub fn path(&self, src: u32, dst: u32, hash: u32) -> Vec<PortId> {
        let mut path = Vec::new();
        self.each_hop(src, dst, hash, |port| path.push(port));
        path
    }

    /// Calls `each` with each link of [`Routes::path`], without allocating a list.
    #[inline]
    pub fn each_hop(&self, src: u32, dst: u32, hash: u32, mut each: impl FnMut(PortId)) {
        if src == dst {
            return;
        }
        let mut port = self.first(src);
        each(port);
        while let Some(switch) = self.ends[port.0 as usize].0.checked_sub(self.host_count) {
            port = self.next(switch, dst, || (src, hash));
            each(port);
        }
    }
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph) -> Self {
        let switch_count = graph.switch_count as usize;
        let mut search = Self {
            graph,
            last: vec![Vec::new(); graph.host_count as usize],
            out: vec![Vec::new(); switch_count],
            into: vec![Vec::new(); switch_count],
            distance: vec![UNREACHABLE; switch_count],
            frontier: VecDeque::new(),
            ports: Vec::new(),
        };
        for (port, directed) in (0..).map(PortId).zip(&graph.links) {
            match (graph.switch(directed.from), graph.switch(directed.to)) {
                (_, None) => search.last[directed.to.0 as usize].push(port),
                (None, Some(_)) => {}
                (Some(from), Some(to)) => {
                    search.out[from as usize].push(port);
                    search.into[to as usize].push(port);
                }
            }
        }
        search
    }

    /// Returns the switches with a link to a host.
    fn near(&self, host: u32) -> impl Iterator<Item = Option<u32>> {
        self.last[host as usize].iter().map(|&port| self.graph.switch(self.graph.near(port)))
    }

    /// Returns the switch of a host, if all links to the host come from that switch.
    fn switch_of(&self, host: u32) -> Option<u32> {
        let mut near = self.near(host);
        let first = near.next()??;
        near.all(|other| other == Some(first)).then_some(first)
    }

    /// Returns the column of every host, and the first host of every column.
    fn columns(&self) -> (Vec<u32>, Vec<u32>) {
        let mut of_switch = BTreeMap::new();
        let mut firsts = Vec::new();
        let numbers = (0..self.graph.host_count).map(|host| {
            let mut add = || {
                firsts.push(host);
                firsts.len() as u32 - 1
            };
            match self.switch_of(host) {
                Some(switch) => *of_switch.entry(switch).or_insert_with(add),
                None => add(),
            }
        });
        (numbers.collect(), firsts)
    }

    /// Computes the distance of each switch from `host`. Paths do not lead through other hosts.
    fn measure(&mut self, host: u32, first: &[PortId]) -> Result<(), RouteError> {
        let graph = self.graph;
        self.distance.fill(UNREACHABLE);
        for port in &self.last[host as usize] {
            if let Some(switch) = graph.switch(graph.near(*port))
                && self.distance[switch as usize] == UNREACHABLE
            {
                self.distance[switch as usize] = 1;
                self.frontier.push_back(switch);
            }
        }
        while let Some(switch) = self.frontier.pop_front() {
            check_cancelled();
            for &port in &self.into[switch as usize] {
                let before = (graph.near(port).0 - graph.host_count) as usize;
                if self.distance[before] == UNREACHABLE {
                    self.distance[before] = self.distance[switch as usize] + 1;
                    self.frontier.push_back(before as u32);
                }
            }
        }
        if graph.has_parts {
            return Ok(());
        }
        let is_reached = |node: NodeId| match graph.switch(node) {
            Some(switch) => self.distance[switch as usize] != UNREACHABLE,
            None => node.0 == host,
        };
        let lost_host = (0..graph.host_count).find(|&one| one != host && !is_reached(graph.far(first[one as usize])));
        let lost_switch = || (graph.host_count..).take(self.distance.len()).find(|&node| !is_reached(NodeId(node)));
        match lost_host.or_else(lost_switch) {
            Some(from) => Err(RouteError::Unreachable { from, to: host }),
            None => Ok(()),
        }
    }
}

/// Computes the quantities of each switch that the policies' formulas use. The tier of a switch is its distance from
/// the nearest host. In graphs other than fat trees, the children of a switch may differ; then the maximum is used.
fn places(graph: &Graph, out: &[Vec<PortId>]) -> Vec<Place> {
    let host_count = graph.host_count as usize;
    let mut tier = vec![UNREACHABLE; out.len()];
    tier[..host_count].fill(0);
    let mut order: Vec<usize> = (0..host_count).collect();
    let mut seen = 0;
    // For each node: its stride, the number of hosts below it, and the number of hosts below its largest child.
    let mut counts = vec![(1_u32, 0_u32, 1_u32); out.len()];
    while let Some(&node) = order.get(seen) {
        seen += 1;
        if tier[node] == 0 {
            counts[node].1 = 1;
        }
        let mut above: Vec<usize> = out[node].iter().map(|&port| graph.far(port).0 as usize).collect();
        for &up in &above {
            if tier[up] == UNREACHABLE {
                tier[up] = tier[node] + 1;
                order.push(up);
            }
        }
        above.retain(|&up| tier[up] == tier[node] + 1);
        let stride = counts[node].0.saturating_mul(above.len() as u32);
        above.sort_unstable();
        above.dedup();
        let hosts = counts[node].1;
        for up in above {
            let (largest_stride, below, of_child) = &mut counts[up];
            *largest_stride = stride.max(*largest_stride);
            *below = below.saturating_add(hosts);
            *of_child = hosts.max(*of_child);
        }
    }
    let switches = counts[host_count..].iter();
    switches
        .map(|&(stride, below, hosts_per_child)| Place {
            stride,
            hosts_per_child,
            child_count: (below / hosts_per_child).max(1),
        })
        .collect()
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
            assert_eq!(routes.next(0, host, || (0, 0)), PortId(3 + host));
        }
    }

    #[test]
    fn two_spines_share_by_hash_and_local_traffic_stays_local() {
        // Host 0 is on leaf 2, host 1 on leaf 3; spines 4 and 5 connect the leaves.
        let cables = [(0, 2), (1, 3), (2, 4), (2, 5), (3, 4), (3, 5)];
        let links = cables
            .iter()
            .flat_map(|&(a, b)| [(a, b), (b, a)])
            .map(|(from, to)| Directed { from: NodeId(from), to: NodeId(to), link: link() })
            .collect();
        let graph = Graph { host_count: 2, switch_count: 4, links, has_parts: false };
        let routes = Routes::shortest(&graph).unwrap();
        assert_eq!(routes.next(0, 0, || (0, 7)), PortId(1));
        assert_eq!(routes.next(0, 1, || (0, 0)), PortId(4));
        assert_eq!(routes.next(0, 1, || (0, u32::MAX)), PortId(6));
    }

    #[test]
    fn hosts_of_one_leaf_share_their_ways_but_for_the_last_hop() {
        // Hosts 0 to 2 are on leaf 5, 3 and 4 on leaf 6; spines 7 and 8 connect the leaves.
        let cables = [(0, 5), (1, 5), (2, 5), (3, 6), (4, 6), (5, 7), (5, 8), (6, 7), (6, 8)];
        let links: Vec<Directed> = cables
            .iter()
            .flat_map(|&(a, b)| [(a, b), (b, a)])
            .map(|(from, to)| Directed { from: NodeId(from), to: NodeId(to), link: link() })
            .collect();
        let graph = Graph { host_count: 5, switch_count: 4, links, has_parts: false };
        let routes = Routes::shortest(&graph).unwrap();
        for (src, dst) in (0..5).flat_map(|src| (0..5).map(move |dst| (src, dst))).filter(|(src, dst)| src != dst) {
            for hash in [0, u32::MAX] {
                let path = routes.path(src, dst, hash);
                let end = path.last().map(|&port| graph.far(port));
                let same_leaf = (src < 3) == (dst < 3);
                assert_eq!((end, path.len()), (Some(NodeId(dst)), if same_leaf { 2 } else { 4 }), "{src} to {dst}");
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
