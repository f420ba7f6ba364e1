//! Connections of the fluid engine: each has a queue of flows that are sent one after another, and a path.

use crate::index::{self, Index};
use crate::maxmin::{ClassId, LinkId};
use crate::route::{Hashes, Routes};
use crate::topology::PortId;
use crate::units::{Bytes, Time};
use crate::{Band, Connection, Flow, FlowId, HostId, StreamKey};

/// Sentinel: no flow.
pub(super) const NO_FLOW: u32 = u32::MAX;

/// A flow that has been started and has not completed.
#[derive(Clone, Debug)]
pub(super) struct FlowState {
    pub id: FlowId,
    /// Time at which the flow was started or, if the flow had to wait for its connection, at which it became the first
    /// one. The time is stored as the clock's time and the femtoseconds since, which takes less memory than one number
    /// of 128 bits.
    pub began: Time,
    pub began_fs: u16,
    pub hold: Time,
    /// Work of each message.
    pub work: u128,
    pub counted: Bytes,
    pub rounds_left: u32,
    pub connection: u32,
    /// The next flow on the connection; [`NO_FLOW`] for the last one.
    pub next: u32,
    pub band: Band,
    pub stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Queued behind another flow on its connection, or completely received.
    Waiting,
    /// First in the queue of its connection. Its next message has not entered the network yet.
    Beginning,
    Moving(ClassId),
    /// Ending soon, and no longer counted by the solver.
    Leaving,
}

/// All open connections, with their paths.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    routes: Routes,
    hashes: Hashes,
    pub rows: Vec<ConnectionState>,
    /// Links of all connections' paths: see [`ConnectionState::path`].
    links: Vec<LinkId>,
    free: Vec<u32>,
    /// Connections of streams, by source host.
    streams: Vec<Index>,
}

/// A queue of flows between two hosts. It is small, because every pair of hosts may have one.
#[derive(Clone, Debug)]
pub(super) struct ConnectionState {
    dst: u32,
    pub stream: u32,
    /// First and last flow of the queue. Both are [`NO_FLOW`] if the queue is empty.
    pub first: u32,
    pub last: u32,
    /// Start of the connection's path in [`Connections::links`]. `hop_count` is its number of links.
    path: u32,
    pub hop_count: u16,
    pub own: bool,
    /// See [`StreamKey`].
    pub band: u8,
}

impl Connections {
    pub fn new(routes: Routes, hashes: Hashes, host_count: u32) -> Self {
        let streams = vec![Index::default(); host_count as usize];
        Self { routes, hashes, rows: Vec::new(), links: Vec::new(), free: Vec::new(), streams }
    }

    /// Returns the connection of a flow. Opens it if necessary.
    pub fn open(&mut self, flow: &Flow) -> u32 {
        let own = flow.connection == Connection::Own;
        let (src, dst, StreamKey { stream, band }) = (flow.src.0, flow.dst.0, flow.stream_key());
        let hash = index::hash([dst, stream ^ u32::from(band) << 24]);
        let connections = &self.rows;
        let is_same = |index: u32| {
            let known = &connections[index as usize];
            (known.dst, known.stream, known.band) == (dst, stream, band)
        };
        if let Some(known) = (!own).then(|| self.streams[flow.src.0 as usize].find(hash, is_same)).flatten() {
            return known;
        }
        let index = self.free.pop().unwrap_or(self.rows.len() as u32);
        let begin = self.links.len();
        self.routes.each_hop(src, dst, self.hashes.open(flow), |port| {
            self.links.push(LinkId(port.0));
        });
        let hop_count = u16::try_from(self.links.len() - begin).expect("a path has fewer than 2^16 links");
        let mut path = begin as u32;
        if let Some(last) = self.rows.get(index as usize).filter(|last| hop_count <= last.hop_count) {
            // The path fits into the space of the connection that had this index before.
            self.links.copy_within(begin.., last.path as usize);
            self.links.truncate(begin);
            path = last.path;
        }
        let new = ConnectionState { dst, stream, first: NO_FLOW, last: NO_FLOW, path, hop_count, own, band };
        if index as usize == self.rows.len() {
            self.rows.push(new);
        } else {
            self.rows[index as usize] = new;
        }
        if !own {
            self.streams[flow.src.0 as usize].insert(hash, index);
        }
        index
    }

    /// Returns the links of a connection's path.
    #[inline]
    pub fn path(&self, connection: u32) -> &[LinkId] {
        let ConnectionState { path, hop_count, .. } = self.rows[connection as usize];
        &self.links[path as usize..][..usize::from(hop_count)]
    }

    /// Closes a connection without flows.
    pub fn close(&mut self, connection: u32) {
        self.free.push(connection);
    }

    /// Returns the path of the flows of `stream`, if all bands share one connection from `src` to `dst`.
    pub fn path_of_stream(&self, stream: u32, src: HostId, dst: HostId) -> Vec<PortId> {
        let hash = self.hashes.of_stream(src.0, dst.0, StreamKey { stream, band: 0 });
        self.routes.path(src.0, dst.0, hash)
    }
}
