//! Which [lane](super::lanes) has which host and which port.

use crate::topology::{Directed, Graph, HostId, PortId};
use std::ops::{Index, IndexMut};

/// One of a kind for each lane. The first lies in here, and costs nothing more where there is one lane. The others are
/// in boxes, because they go from hand to hand between cores.
#[derive(Clone, Debug)]
pub(crate) struct PerLane<T> {
    pub first: T,
    pub more: Vec<Box<T>>,
}

impl<T> PerLane<T> {
    /// For `count` lanes, one at least.
    pub fn new(count: usize, each: impl Fn() -> T) -> Self {
        Self { first: each(), more: (1..count).map(|_| Box::new(each())).collect() }
    }

    #[inline]
    pub fn len(&self) -> usize {
        1 + self.more.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        std::iter::once(&self.first).chain(self.more.iter().map(|one| &**one))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        std::iter::once(&mut self.first).chain(self.more.iter_mut().map(|one| &mut **one))
    }
}

impl<T> Index<usize> for PerLane<T> {
    type Output = T;

    #[inline]
    fn index(&self, lane: usize) -> &T {
        if lane == 0 { &self.first } else { &self.more[lane - 1] }
    }
}

impl<T> IndexMut<usize> for PerLane<T> {
    #[inline]
    fn index_mut(&mut self, lane: usize) -> &mut T {
        if lane == 0 { &mut self.first } else { &mut self.more[lane - 1] }
    }
}

/// Which lane has what.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    count: usize,
    /// By port, where it lies; empty if there is one lane.
    ports: Vec<Spot>,
    /// By host, its lane; empty if there is one lane.
    hosts: Vec<u32>,
}

/// Where a port lies.
#[derive(Clone, Copy, Debug)]
struct Spot {
    lane: u32,
    /// Among its lane's.
    place: u32,
}

/// Hosts are dealt out to lanes in so many blocks for each. Neighbours talk more to one another than to others, and they
/// do so at about the same time: few blocks mean less to hand over, many that lanes are busy at the same time.
const BLOCKS: usize = 8;

impl Division {
    /// One lane.
    pub fn whole() -> Self {
        Self { count: 1, ports: Vec::new(), hosts: Vec::new() }
    }

    /// Into `count` lanes.
    pub fn new(graph: &Graph, count: usize) -> Self {
        if count == 1 {
            return Self::whole();
        }
        let host_count = graph.host_count as usize;
        let lane_of = |host: usize| (host * BLOCKS * count / host_count % count) as u32;
        let (mut inner_count, mut places) = (0, vec![0; count]);
        let spot = |directed: &Directed| {
            // Hosts are the first nodes.
            let host = directed.from.0.min(directed.to.0) as usize;
            let lane = if host < host_count {
                lane_of(host)
            } else {
                inner_count += 1;
                (inner_count % count) as u32
            };
            let place = &mut places[lane as usize];
            *place += 1;
            Spot { lane, place: *place - 1 }
        };
        let ports = graph.links.iter().map(spot).collect();
        Self { count, ports, hosts: (0..host_count).map(lane_of).collect() }
    }

    /// Number of lanes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The lane of a port, and its place in it.
    #[inline]
    pub fn port(&self, port: PortId) -> (usize, usize) {
        if self.count == 1 {
            return (0, port.0 as usize);
        }
        let Spot { lane, place } = self.ports[port.0 as usize];
        (lane as usize, place as usize)
    }

    /// The lane of a host.
    #[inline]
    pub fn host(&self, host: HostId) -> usize {
        if self.count == 1 { 0 } else { self.hosts[host.0 as usize] as usize }
    }
}
