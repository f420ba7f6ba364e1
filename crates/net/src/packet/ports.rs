//! Creates the ports of a network from its configuration: transmission times, qdiscs and link names.

use super::PacketConfig;
use super::pcn::Switches;
use super::port::Port;
use super::qdisc::{Capacity, Qdisc};
use super::tcp::Follow;
use super::timing::Serialization;
use crate::topology::{Graph, NodeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Generates link names. The name of a link does not depend on other links, except for parallel ones.
struct LinkNames<'a> {
    graph: &'a Graph,
    given: &'a [Arc<str>],
    /// Number of links with each name so far.
    counts: BTreeMap<String, u32>,
}

impl LinkNames<'_> {
    /// Returns the name of link `index`. Links must be requested in their order, because parallel links between two
    /// nodes are numbered.
    fn next(&mut self, index: usize) -> String {
        let node = |node: NodeId| match self.graph.switch(node) {
            Some(switch) => format!("switch{switch}"),
            None => format!("h{}", node.0),
        };
        let directed = &self.graph.links[index];
        let by_nodes = || format!("{}-{}", node(directed.from), node(directed.to));
        let name = self.given.get(index).map_or_else(by_nodes, |name| name.to_string());
        let count = self.counts.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 { name } else { format!("{name}/{count}") }
    }
}

/// Returns the length of the longest packet on the wire.
pub(crate) fn bytes_max(config: &PacketConfig) -> u16 {
    (config.tcp.header_bytes + config.tcp.segment_bytes).max(config.tcp.syn_bytes).max(128)
}

/// Creates the idle ports of all links of `graph`.
pub(crate) fn of(graph: &Graph, config: &PacketConfig) -> Vec<Port> {
    let packet_bytes = config.tcp.header_bytes + config.tcp.segment_bytes;
    let bytes_max = bytes_max(config);
    let mut tables: Vec<(u64, Serialization)> = Vec::new();
    let nic_limit_bytes = match config.host_queue.capacity {
        Capacity::Packets(packets) => u64::from(packets) * u64::from(bytes_max),
        Capacity::Bytes(bytes) => bytes,
    };
    let mut names = LinkNames { graph, given: &config.link_names, counts: BTreeMap::new() };
    let ports = graph.links.iter().enumerate().map(|(index, directed)| {
        let bps = directed.link.rate.bps();
        let table = match tables.iter().find(|(known, _)| *known == bps) {
            Some((_, table)) => table.clone(),
            None => {
                let table =
                    Serialization::new(directed.link.rate, config.tcp.follow, config.tcp.header_bytes..=bytes_max);
                tables.push((bps, table.clone()));
                table
            }
        };
        let is_nic = directed.from.0 < graph.host_count;
        let queue = if is_nic { &config.host_queue } else { &config.switch_queue };
        let name = names.next(index);
        let qdisc = Qdisc::new(queue, packet_bytes, || config.seed.stream(&format!("red/{name}")));
        let port = Port::new(index as u32, directed.link.delay, table, qdisc);
        // In ns-3, a full NIC drops packets.
        if is_nic && config.tcp.follow == Follow::Standards { port.into_nic(nic_limit_bytes) } else { port }
    });
    ports.collect()
}

/// Creates the PCN state of the switches, or `None` if `config` has no PCN or its queues do not mark by threshold.
pub(crate) fn pcn(graph: &Graph, config: &PacketConfig) -> Option<Switches> {
    let switches = config.pcn.zip(config.switch_queue.marking.threshold());
    switches.map(|(pcn, initial)| Switches::new(graph, pcn, initial))
}
