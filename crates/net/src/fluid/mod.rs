//! Engine 1: flows as fluids. Every flow runs at its max-min fair rate on the links of its path.
//!
//! ```text
//! enters(f)   = began(f) + hold + the sum of the delays of the links on its path
//! rate(f, t)  = max-min fair among all that have entered and have bytes left (see crate::maxmin)
//! received(f) = the instant at which the integral of rate(f, t) since enters(f) is the flow's bytes
//! ```
//!
//! So the first byte of a flow takes the delay, and shares are those that the receivers see: as in SimGrid's models.
//! Rates change when a flow enters or is received, at once and everywhere; [within a bound](Fluid::within) they may
//! change a little earlier or later. Flows of one stream from one host to another
//! are one connection, on which one begins when the last byte of the one before has left, which is the delay before it
//! is received. Bands are strict: a band has what the bands before it leave. A message of `bytes / parts` takes exactly
//! the time of that, no whole number of bytes; links count its [whole bytes](Flow::counted) when it is received, and of
//! one under way what has crossed, rounded down.
//!
//! Inside, time is counted in femtoseconds and work in 2^-20 bit/s times 1 fs, so that work is an exact integer
//! function of rates and instants and nothing drifts. An instant at which a message is received is rounded up to a
//! femtosecond; the clock shows picoseconds, rounded down, and what starts at an instant of the clock starts at the
//! femtosecond that it stands for. So a chain of n messages is late by less than n fs.
//!
//! What does not live here: packets and their headers, queues, losses, windows. Links have the rate of payload.

mod bound;
mod due;
mod group;

use crate::index::{self, Index};
use crate::maxmin::{CAPACITY_LIMIT, ClassId, LinkId, MaxMin, PARTS};
use crate::route::{Hashes, Policy, RouteError, Routes};
use crate::topology::{Graph, PortId};
use crate::trace::{Counters, PortCounters};
use crate::units::{Bytes, Rate, Time};
use crate::{Band, Completion, Connection, Flow, FlowId, ForkNetwork, HostId, Network, Seed, StreamKey};
use bound::{Bound, EXACT_BELOW, Leaving, Pace};
use due::{Due, NEVER};
use gradtide_watch::look;
use group::Groups;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::num::NonZeroU32;
use std::ops::{AddAssign, Mul, Sub};

/// The fluid engine.
#[derive(Clone, Debug)]
pub struct Fluid {
    routes: Routes,
    hashes: Hashes,
    links: Vec<FluidLink>,
    now_fs: u128,
    /// By band, made when the band is first used.
    bands: Vec<Option<Box<Shares>>>,
    flows: Vec<FlowState>,
    free_flows: Vec<u32>,
    connections: Vec<ConnectionState>,
    /// Links that connections cross: see [`ConnectionState::path`].
    paths: Vec<LinkId>,
    free_connections: Vec<u32>,
    /// By source, the connections that are a stream's.
    streams: Vec<Index>,
    /// Messages that enter, by when.
    timers: BTreeMap<u128, Vec<u32>>,
    /// What has completed and has not been told.
    completed: Vec<Completion>,
    started_count: u64,
    completed_count: u64,
    event_count: u64,
    pace: Pace,
    scratch: Scratch,
}

/// A way between two hosts that its flows have for themselves.
#[derive(Clone, Debug)]
pub struct Lane {
    rate: u64,
    delay_ps: u64,
    ports: Vec<PortId>,
}

/// What has crossed a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    bytes: Bytes,
    /// That of the exact shares, which is time at a rate.
    work: u128,
}

impl Load {
    /// Whole bytes.
    pub fn bytes(self) -> Bytes {
        self.bytes
    }

    /// Of so many messages of `bytes / parts`, which are counted as `counted` in all.
    pub fn of_messages(count: u64, bytes: Bytes, parts: u32, counted: Bytes) -> Self {
        Self { bytes: counted, work: work(bytes, parts) * u128::from(count) }
    }

    /// Of a message, when so much of its work is done.
    fn of(done: u128, work: u128, counted: Bytes) -> Self {
        let bytes = if done < work { counted.min(Bytes((done / WORK_PER_BYTE) as u64)) } else { counted };
        Self { bytes, work: done.min(work) }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.work += other.work;
    }
}

impl Sub for Load {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self { bytes: self.bytes - earlier.bytes, work: self.work - earlier.work }
    }
}

impl Mul<u64> for Load {
    type Output = Self;
    fn mul(self, count: u64) -> Self {
        Self { bytes: self.bytes * count, work: self.work * u128::from(count) }
    }
}

impl Lane {
    /// How long `bytes / parts` bytes take to leave, in fs, rounded up as in the engine.
    ///
    /// # Panics
    /// If there are 2^54 bytes or more.
    pub fn sending_fs(&self, bytes: Bytes, parts: u32) -> u128 {
        work(bytes, parts).div_ceil(u128::from(self.rate))
    }

    /// How long they are on the way after that, in fs.
    pub fn delay_fs(&self) -> u128 {
        u128::from(self.delay_ps) * FS_PER_PS
    }

    /// What has crossed a link of `bytes / parts` bytes, counted as `counted`, so many fs after they entered.
    pub fn load_after(&self, bytes: Bytes, parts: u32, counted: Bytes, fs: u128) -> Load {
        let work = work(bytes, parts);
        Load::of(if fs < self.sending_fs(bytes, parts) { u128::from(self.rate) * fs } else { work }, work, counted)
    }

    /// What is crossed.
    pub fn ports(&self) -> &[PortId] {
        &self.ports
    }

    /// What the engine's clock shows at an instant in fs.
    pub fn clock(instant_fs: u128) -> Time {
        clock(instant_fs)
    }

    /// The fs that an instant of the clock stands for.
    pub fn fs(instant: Time) -> u128 {
        joined(instant, 0)
    }
}

/// Why there is no such engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FluidError {
    /// The graph does not connect its hosts.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// Rates are counted in 2^-20 bit/s, in 64 bits.
    #[error("link {port} carries {bps} bit/s; the fluid engine counts rates below {CAPACITY_LIMIT} bit/s")]
    TooFast {
        /// The link's port.
        port: u32,
        /// Its rate.
        bps: u64,
    },
}

#[derive(Clone, Debug)]
struct FluidLink {
    rate: Rate,
    delay_ps: u64,
    /// Of messages that have been received.
    received: Load,
}

/// Of one band.
#[derive(Clone, Debug)]
struct Shares {
    solver: MaxMin,
    /// Classes by the links at which they are held.
    groups: Groups,
    /// By class, the same as its `first` of its other messages; for no more classes than ever had some.
    later: Vec<BinaryHeap<Reverse<(u128, u32)>>>,
    /// When the next message of each group is received.
    due: Due,
}

#[derive(Clone, Debug)]
struct FlowState {
    id: FlowId,
    /// When it was started, and from when it has the first place on its connection: what the clock shows, and the fs
    /// since. Apart, for they are shorter so.
    began: Time,
    began_fs: u16,
    hold: Time,
    /// Of one message.
    work: u128,
    counted: Bytes,
    rounds_left: u32,
    connection: u32,
    /// The next one on the connection; [`NONE`] if there is none.
    next: u32,
    band: Band,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Another is before it on its connection, or it has been received.
    Waiting,
    /// Has the first place on its connection, and its message has not entered yet.
    Beginning,
    Moving(ClassId),
    /// Ends soon, and is no longer in a class.
    Leaving,
}

/// Flows between two hosts that follow one another. Kept small, as there may be one for every two hosts.
#[derive(Clone, Debug)]
struct ConnectionState {
    dst: u32,
    stream: u32,
    /// The flow that has the first place, and the last in the row; [`NONE`] without flows.
    first: u32,
    last: u32,
    /// Where in `paths` its links begin, and how many there are.
    path: u32,
    hop_count: u16,
    own: bool,
    /// See [`StreamKey`].
    band: u8,
}

/// Kept for its memory alone.
#[derive(Clone, Debug, Default)]
struct Scratch {
    groups: Vec<u32>,
    due: Vec<u32>,
}

const NONE: u32 = u32::MAX;
const NOBODY: (u128, u32) = (u128::MAX, NONE);
const FS_PER_PS: u128 = 1_000;
/// In 2^-20 bit/s times 1 fs.
const WORK_PER_BYTE: u128 = 8 * PARTS as u128 * 1_000_000_000_000_000;

impl Fluid {
    /// An idle network at time zero. `seed` chooses the hashes of [`Policy::Ecmp`].
    ///
    /// # Errors
    /// [`FluidError`] if the graph does not connect its hosts, or a link is too fast.
    pub fn new(graph: &Graph, policy: Policy, seed: Seed) -> Result<Self, FluidError> {
        let routes = Routes::shortest(graph)?.by(policy);
        let links = graph.links.iter().enumerate().map(|(port, directed)| {
            let (rate, delay_ps) = (directed.link.rate, directed.link.delay.ps());
            if rate.bps() < CAPACITY_LIMIT {
                Ok(FluidLink { rate, delay_ps, received: Load::default() })
            } else {
                Err(FluidError::TooFast { port: port as u32, bps: rate.bps() })
            }
        });
        Ok(Self {
            routes,
            hashes: Hashes::new(seed),
            links: links.collect::<Result<_, _>>()?,
            now_fs: 0,
            bands: (0..Band::COUNT).map(|_| None).collect(),
            flows: Vec::new(),
            free_flows: Vec::new(),
            connections: Vec::new(),
            paths: Vec::new(),
            free_connections: Vec::new(),
            streams: vec![Index::default(); graph.host_count as usize],
            timers: BTreeMap::new(),
            completed: Vec::new(),
            started_count: 0,
            completed_count: 0,
            event_count: 0,
            pace: Pace::new(None),
            scratch: Scratch::default(),
        })
    }

    /// The same network, through which nothing has been sent, with finish times that may be off by about so many
    /// millionths of the time from start to end. With 16,384 flows at a time or fewer they are exact.
    ///
    /// # Panics
    /// If something has been sent.
    pub fn within(self, ppm: NonZeroU32) -> Self {
        self.within_above(ppm, EXACT_BELOW)
    }

    /// As [`within`](Self::within), and exact with at most `exact_below` flows at a time.
    ///
    /// # Panics
    /// If something has been sent.
    pub fn within_above(self, ppm: NonZeroU32, exact_below: u64) -> Self {
        assert_eq!(self.started_count, 0, "nothing has been sent");
        Self { pace: Pace::new(Some(Bound::new(ppm, exact_below))), ..self }
    }

    /// Totals so far. Events are messages that enter or are received, and changes of a rate; there are no packets.
    pub fn counters(&self) -> Counters {
        Counters { events: self.event_count, ..Counters::default() }
    }

    /// Totals of one port, with what has crossed of the messages under way: whole bytes, and the time that messages
    /// take at the link's full rate.
    pub fn port_counters(&self, port: PortId) -> PortCounters {
        self.counters_of(port, self.load(port))
    }

    /// Totals of one port that so much has crossed.
    pub fn counters_of(&self, port: PortId, load: Load) -> PortCounters {
        let rate_parts = u128::from(self.links[port.0 as usize].rate.bps()) * u128::from(PARTS);
        // Rounded down like the clock: no link is busy for longer than the clock has run.
        let busy_ps = load.work / (rate_parts * FS_PER_PS);
        PortCounters { bytes: load.bytes.0, busy: Time::from_ps(busy_ps as u64), ..PortCounters::default() }
    }

    /// What has crossed the link of a port.
    pub fn load(&self, port: PortId) -> Load {
        let mut load = self.links[port.0 as usize].received;
        for shares in self.bands.iter().flatten() {
            for id in shares.solver.classes(LinkId(port.0)) {
                let done = shares.groups.work_at(id.0, self.now_fs);
                let later = shares.later.get(id.0 as usize).into_iter().flatten();
                let flows = later.map(|&Reverse(flow)| flow).chain([shares.groups.first(id.0)]);
                for (target, flow) in flows {
                    let FlowState { work, counted, .. } = self.flows[flow as usize];
                    load += Load::of((work + done).saturating_sub(target), work, counted);
                }
            }
        }
        for &Reverse(leaving) in &self.pace.leaving {
            let FlowState { work, counted, connection, .. } = self.flows[leaving.slot as usize];
            if self.path(connection).contains(&LinkId(port.0)) {
                load += Load::of(work.saturating_sub(leaving.left(self.now_fs)), work, counted);
            }
        }
        load
    }

    /// Links, and with them ports.
    pub fn link_count(&self) -> u32 {
        self.links.len() as u32
    }

    /// Flows started so far.
    pub fn started_count(&self) -> u64 {
        self.started_count
    }

    /// The paths of a stream's flows in one band between these distinct pairs of hosts, if each flow is as fast beside
    /// all others as alone. `None` if one slows another, or has no path.
    ///
    /// Then any subset of them is as fast, too: rates that all flows can have at once, a subset can have, and no
    /// max-min fair share is higher.
    pub fn lanes(&self, stream: u32, pairs: impl Iterator<Item = (HostId, HostId)>) -> Option<Vec<Lane>> {
        let mut left: Vec<u64> = self.links.iter().map(|link| link.rate.bps() * PARTS).collect();
        let lanes = pairs.map(|(src, dst)| {
            let hash = self.hashes.of_stream(src.0, dst.0, StreamKey { stream, band: 0 });
            let ports = self.routes.path(src.0, dst.0, hash);
            let of = |port: &PortId| &self.links[port.0 as usize];
            let rate = ports.iter().map(|port| of(port).rate.bps() * PARTS).min()?;
            for port in &ports {
                let left = &mut left[port.0 as usize];
                *left = left.checked_sub(rate)?;
            }
            Some(Lane { rate, delay_ps: ports.iter().map(|port| of(port).delay_ps).sum(), ports })
        });
        lanes.collect()
    }

    /// By when something happens next, rounded up; `None` if nothing will unless a flow is started.
    pub fn next_event(&mut self) -> Option<Time> {
        if !self.completed.is_empty() {
            return Some(self.now());
        }
        self.share();
        let next = self.next_at();
        (next < NEVER).then(|| Time::from_ps(next.div_ceil(FS_PER_PS) as u64))
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.completed_count == self.started_count
    }

    /// Rates in bit/s of the flows that have entered, by flow.
    pub fn rates(&mut self) -> Vec<(FlowId, f64)> {
        self.share();
        let sending = self.flows.iter().filter_map(|flow| match flow.stage {
            Stage::Moving(class) => {
                let shares = self.bands[usize::from(flow.band.index())].as_ref()?;
                Some((flow.id, shares.groups.rate(class.0) as f64 / PARTS as f64))
            }
            _ => None,
        });
        let leaving = self.pace.leaving.iter();
        let leaving =
            leaving.map(|Reverse(leaving)| (self.flows[leaving.slot as usize].id, leaving.rate as f64 / PARTS as f64));
        let sending = sending.chain(leaving);
        let mut rates: Vec<(FlowId, f64)> = sending.collect();
        rates.sort_unstable_by_key(|&(id, _)| id);
        rates
    }

    fn connection(&mut self, flow: &Flow) -> u32 {
        let own = flow.connection == Connection::Own;
        let (src, dst, StreamKey { stream, band }) = (flow.src.0, flow.dst.0, flow.stream_key());
        let hash = index::hash([dst, stream ^ u32::from(band) << 24]);
        let connections = &self.connections;
        let is_it = |index: u32| {
            let known = &connections[index as usize];
            (known.dst, known.stream, known.band) == (dst, stream, band)
        };
        if let Some(known) = (!own).then(|| self.streams[flow.src.0 as usize].find(hash, is_it)).flatten() {
            return known;
        }
        let index = self.free_connections.pop().unwrap_or(self.connections.len() as u32);
        let begin = self.paths.len();
        self.routes.each_hop(src, dst, self.hashes.open(flow), |port| {
            self.paths.push(LinkId(port.0));
        });
        let hop_count = u16::try_from(self.paths.len() - begin).expect("a path has fewer than 2^16 links");
        let mut path = begin as u32;
        if let Some(last) = self.connections.get(index as usize).filter(|last| hop_count <= last.hop_count) {
            // What the last connection of this number had is large enough.
            self.paths.copy_within(begin.., last.path as usize);
            self.paths.truncate(begin);
            path = last.path;
        }
        let new = ConnectionState { dst, stream, first: NONE, last: NONE, path, hop_count, own, band };
        if index as usize == self.connections.len() {
            self.connections.push(new);
        } else {
            self.connections[index as usize] = new;
        }
        if !own {
            self.streams[flow.src.0 as usize].insert(hash, index);
        }
        index
    }

    /// The links that a connection crosses.
    fn path(&self, connection: u32) -> &[LinkId] {
        let ConnectionState { path, hop_count, .. } = self.connections[connection as usize];
        &self.paths[path as usize..][..usize::from(hop_count)]
    }

    /// How long what is sent on a connection is on the way, but for the sending.
    fn delay_fs(&self, connection: u32) -> u128 {
        let path = self.path(connection);
        u128::from(path.iter().map(|link| self.links[link.0 as usize].delay_ps).sum::<u64>()) * FS_PER_PS
    }

    /// Lets the flows of a connection pass, the first of which has just got its place, until one takes time.
    fn serve(&mut self, connection: u32) {
        loop {
            let ConnectionState { first, own, .. } = self.connections[connection as usize];
            if first == NONE {
                if own {
                    self.free_connections.push(connection);
                }
                return;
            }
            let delay_fs = self.delay_fs(connection);
            let flow = &mut self.flows[first as usize];
            let mut began_fs = joined(flow.began, flow.began_fs);
            if began_fs + delay_fs < self.now_fs {
                began_fs = self.now_fs - delay_fs;
                (flow.began, flow.began_fs) = split(began_fs);
            }
            flow.stage = Stage::Beginning;
            let enters_fs = began_fs + u128::from(flow.hold.ps()) * FS_PER_PS + delay_fs;
            if enters_fs > self.now_fs {
                self.timers.entry(enters_fs).or_default().push(first);
                return;
            }
            if !self.enter(first) {
                return;
            }
        }
    }

    /// A message enters the links of its path; `true` if that was all of the flow, for want of bytes or of links.
    fn enter(&mut self, slot: u32) -> bool {
        self.event_count += 1;
        let flow = &self.flows[slot as usize];
        let work = flow.work;
        if work == 0 || self.connections[flow.connection as usize].hop_count == 0 {
            return self.receive(slot);
        }
        let FlowState { began, began_fs, hold, connection, band, .. } = *flow;
        // Later messages of a flow enter later than the first.
        let first_fs = joined(began, began_fs) + joined(hold, 0) + self.delay_fs(connection);
        self.pace.enter(self.now_fs, band, first_fs >= self.now_fs);
        self.join(slot, work);
        false
    }

    /// All of a message has crossed the links of its path.
    fn arrive(&mut self, slot: u32) {
        let FlowState { work, counted, connection, .. } = self.flows[slot as usize];
        let ConnectionState { path, hop_count, .. } = self.connections[connection as usize];
        for link in &self.paths[path as usize..][..usize::from(hop_count)] {
            self.links[link.0 as usize].received += Load { bytes: counted, work };
        }
        if self.receive(slot) {
            self.serve(connection);
        }
    }

    /// A message has been received; `true` if it was the flow's last one, which gives up its place.
    fn receive(&mut self, slot: u32) -> bool {
        self.event_count += 1;
        let flow = &mut self.flows[slot as usize];
        if flow.rounds_left > 1 {
            flow.rounds_left -= 1;
            flow.stage = Stage::Beginning;
            let enters_fs = self.now_fs + self.delay_fs(self.flows[slot as usize].connection);
            self.timers.entry(enters_fs).or_default().push(slot);
            return false;
        }
        let connection = &mut self.connections[flow.connection as usize];
        connection.first = flow.next;
        if flow.next == NONE {
            connection.last = NONE;
        }
        let FlowState { id, began, .. } = *flow;
        let stream = connection.stream;
        let received = clock(self.now_fs);
        self.completed.push(Completion { flow: id, stream, began, received });
        self.completed_count += 1;
        flow.stage = Stage::Waiting;
        self.free_flows.push(slot);
        true
    }

    /// Puts a flow with so much work left on the links of its path.
    fn join(&mut self, slot: u32, work: u128) {
        let flow = &mut self.flows[slot as usize];
        let ConnectionState { path: begin, hop_count, own, .. } = self.connections[flow.connection as usize];
        let mut is_new = false;
        let shares = self.bands[usize::from(flow.band.index())].get_or_insert_with(|| {
            let capacities: Vec<u64> = self.links.iter().map(|link| link.rate.bps()).collect();
            is_new = true;
            Box::new(Shares::new(MaxMin::new(&capacities), capacities.len()))
        });
        let path = &self.paths[begin as usize..][..usize::from(hop_count)];
        // A stream has one flow at a time on a connection, and seldom as much as another stream between the same hosts.
        let id = if own { shares.solver.add(path) } else { shares.solver.add_apart(path) };
        flow.stage = Stage::Moving(id);
        shares.join(id, self.now_fs, (work, slot));
        if is_new {
            self.bands.iter_mut().flatten().for_each(|shares| shares.solver.touch_all());
        }
    }

    /// Takes what a flow has left to another band.
    fn move_band(&mut self, slot: u32, class: ClassId, before: Band) {
        let shares = self.bands[usize::from(before.index())].as_mut().expect("the band is in use");
        let left = shares.part(class, slot, self.now_fs);
        self.pace.part(self.now_fs, before);
        self.pace.enter(self.now_fs, self.flows[slot as usize].band, false);
        self.join(slot, left);
    }

    /// Takes the messages that end by `until_fs` at their present rates out of what is solved.
    fn anticipate(&mut self, until_fs: u128) {
        let (mut groups, mut due) = (std::mem::take(&mut self.scratch.groups), std::mem::take(&mut self.scratch.due));
        for shares in self.bands.iter_mut().flatten() {
            shares.groups.plan(self.now_fs, &mut shares.due);
            shares.due.take(until_fs, &mut groups);
            groups.drain(..).for_each(|link| shares.groups.take(link, until_fs, &mut due));
            due.sort_unstable();
            for class in due.drain(..) {
                let (rate, done) = (shares.groups.rate(class), shares.groups.work_at(class, self.now_fs));
                while let Some((target, slot)) = shares.groups.first_by(class, until_fs) {
                    let at_fs = self.now_fs + target.saturating_sub(done).div_ceil(rate.into());
                    let flow = &mut self.flows[slot as usize];
                    self.pace.leave(Leaving { at_fs, slot, rate }, flow.band);
                    flow.stage = Stage::Leaving;
                    shares.remove(ClassId(class));
                }
            }
        }
        (self.scratch.groups, self.scratch.due) = (groups, due);
    }

    /// Brings rates and the instants at which flows leave up to date.
    fn share(&mut self) {
        if self.pace.solve_at_fs > self.now_fs {
            self.bands.iter_mut().flatten().for_each(|shares| shares.groups.plan(self.now_fs, &mut shares.due));
            return;
        }
        if let Some(until_fs) = self.pace.horizon_fs(self.now_fs) {
            self.anticipate(until_fs);
        }
        self.pace.solved();
        for band in 0..Band::COUNT {
            let (above, below) = self.bands.split_at_mut(band);
            let Some((Some(shares), below)) = below.split_first_mut() else { continue };
            let Shares { solver, groups, due, .. } = &mut **shares;
            solver.take_turned(|link, rate, class_count| {
                self.event_count += class_count as u64;
                groups.turn(link.0, rate, self.now_fs);
            });
            solver.take_moved(|id, link| {
                self.event_count += 1;
                groups.put(id.0, link.0, self.now_fs);
            });
            groups.plan(self.now_fs, due);
            // What this band and those before it use is not there for those behind.
            let Some(next) = below.iter_mut().flatten().next() else { continue };
            let mut before: Vec<&mut Box<Shares>> = above.iter_mut().flatten().collect();
            let (links, next) = (&self.links, &mut next.solver);
            let mut touched = Vec::new();
            shares.solver.take_touched(|link| touched.push(link));
            before.push(shares);
            for link in touched {
                let used: u64 = before.iter_mut().map(|shares| shares.solver.used(link)).sum();
                next.set_capacity(link, links[link.0 as usize].rate.bps() * PARTS - used);
            }
        }
    }

    /// When something happens next.
    fn next_at(&self) -> u128 {
        let leaving = self.bands.iter().flatten().map(|shares| shares.due.first_at());
        let timer = self.timers.first_key_value().map_or(NEVER, |(&at, _)| at);
        let left = self.pace.leaving.peek().map_or(NEVER, |Reverse(first)| first.at_fs);
        leaving.fold(timer, u128::min).min(self.pace.solve_at_fs).min(left)
    }

    /// All that happens at `now_fs`, but for what newly shared rates bring.
    fn step(&mut self) {
        let (mut groups, mut due) = (std::mem::take(&mut self.scratch.groups), std::mem::take(&mut self.scratch.due));
        for band in 0..Band::COUNT {
            let Some(shares) = &mut self.bands[band] else { continue };
            if shares.due.first_at() > self.now_fs {
                continue;
            }
            shares.due.take(self.now_fs, &mut groups);
            groups.drain(..).for_each(|link| shares.groups.take(link, self.now_fs, &mut due));
            due.sort_unstable();
            for class in due.drain(..) {
                self.receive_due(band, ClassId(class));
            }
        }
        (self.scratch.groups, self.scratch.due) = (groups, due);
        while let Some(slot) = self.pace.take_left(self.now_fs) {
            self.arrive(slot);
        }
        while let Some(entry) = self.timers.first_entry() {
            if *entry.key() > self.now_fs {
                break;
            }
            for slot in entry.remove() {
                let connection = self.flows[slot as usize].connection;
                if self.enter(slot) {
                    self.serve(connection);
                }
            }
        }
    }

    /// Lets those messages of a class arrive that have done their work.
    fn receive_due(&mut self, of_band: usize, id: ClassId) {
        loop {
            let shares = self.bands[of_band].as_mut().expect("the band is in use");
            let Some((_, slot)) = shares.groups.first_by(id.0, self.now_fs) else { return };
            shares.remove(id);
            self.pace.end(self.now_fs, self.flows[slot as usize].band);
            self.arrive(slot);
        }
    }
}

impl Shares {
    fn new(solver: MaxMin, link_count: usize) -> Self {
        Self { solver, groups: Groups::new(link_count), later: Vec::new(), due: Due::default() }
    }

    /// A flow of `work` comes to a class; it is planned for when rates are known.
    fn join(&mut self, id: ClassId, now_fs: u128, (work, slot): (u128, u32)) {
        self.groups.open(id.0);
        let target =
            self.groups.work_at(id.0, now_fs).checked_add(work).expect("work stays below 2^128: see `Fluid::start`");
        let (new, known) = ((target, slot), self.groups.first(id.0));
        let later = new.max(known);
        if new < known {
            self.groups.set_first(id.0, new);
        }
        if later != NOBODY {
            let index = id.0 as usize;
            if index >= self.later.len() {
                self.later.resize_with(index + 1, BinaryHeap::new);
            }
            self.later[index].push(Reverse(later));
        }
    }

    /// Removes the first flow of a class.
    fn remove(&mut self, id: ClassId) {
        let is_empty = !self.solver.remove(id);
        let next = if is_empty { None } else { self.later[id.0 as usize].pop() };
        match next {
            Some(Reverse(next)) => self.groups.set_first(id.0, next),
            None => self.groups.close(id.0),
        }
    }

    /// Takes a flow out of a class; tells the work that it has left.
    fn part(&mut self, id: ClassId, slot: u32, now_fs: u128) -> u128 {
        let done = self.groups.work_at(id.0, now_fs);
        let (mut target, first) = self.groups.first(id.0);
        if first == slot {
            self.remove(id);
        } else {
            self.solver.remove(id);
            self.later[id.0 as usize].retain(|&Reverse((of_flow, flow))| {
                target = if flow == slot { of_flow } else { target };
                flow != slot
            });
        }
        target.saturating_sub(done)
    }
}

/// Of a message of `bytes / parts`.
fn work(bytes: Bytes, parts: u32) -> u128 {
    let work = u128::from(bytes.0).checked_mul(WORK_PER_BYTE).expect("a message is below 2^54 bytes");
    work / u128::from(parts)
}

/// What the clock shows: it is never ahead.
fn clock(instant_fs: u128) -> Time {
    Time::from_ps((instant_fs / FS_PER_PS) as u64)
}

/// An instant in the space of a flow: what the clock shows, and how many fs after that it is.
fn split(instant_fs: u128) -> (Time, u16) {
    let shown = clock(instant_fs);
    (shown, (instant_fs - joined(shown, 0)) as u16)
}

fn joined(shown: Time, after_fs: u16) -> u128 {
    u128::from(shown.ps()) * FS_PER_PS + u128::from(after_fs)
}

impl Network for Fluid {
    /// Rounded down to a picosecond.
    fn now(&self) -> Time {
        clock(self.now_fs)
    }

    /// # Panics
    /// If a message has 2^54 bytes or more, or there are more than 2^32 flows or connections at once.
    fn start(&mut self, flow: Flow) -> FlowId {
        let id = FlowId(self.started_count);
        self.started_count += 1;
        let connection = self.connection(&flow);
        let (began, began_fs) = split(self.now_fs);
        let state = FlowState {
            id,
            began,
            began_fs,
            hold: flow.hold,
            work: work(flow.bytes, flow.parts),
            counted: flow.counted,
            rounds_left: flow.rounds,
            connection,
            next: NONE,
            band: flow.band,
            stage: Stage::Waiting,
        };
        let slot = self.free_flows.pop().unwrap_or(self.flows.len() as u32);
        if slot as usize == self.flows.len() {
            self.flows.push(state);
        } else {
            self.flows[slot as usize] = state;
        }
        let row = &mut self.connections[connection as usize];
        let last = std::mem::replace(&mut row.last, slot);
        if row.first == NONE {
            row.first = slot;
            self.serve(connection);
        } else {
            self.flows[last as usize].next = slot;
        }
        id
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        // The clock shows an instant up to 1 ps after it.
        let until_fs = (u128::from(until.ps()) * FS_PER_PS).max(self.now_fs);
        if done.is_empty() && self.completed.is_empty() {
            // The memory of the last ones.
            std::mem::swap(done, &mut self.completed);
        }
        // What takes no time is complete when it is started.
        while self.completed.is_empty() {
            look();
            self.share();
            let next = self.next_at();
            if next > until_fs {
                self.now_fs = until_fs;
                return;
            }
            self.now_fs = next;
            self.step();
        }
        self.completed.sort_unstable_by_key(|completion| completion.flow);
        if done.is_empty() {
            std::mem::swap(done, &mut self.completed);
        } else {
            done.append(&mut self.completed);
        }
    }

    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        // Of the message under way, rounded up to whole bytes; the flows asked for have one.
        let of = |slot: u32, work: u128| {
            let FlowState { id, connection, .. } = self.flows[slot as usize];
            let bytes = Bytes(work.div_ceil(WORK_PER_BYTE) as u64);
            self.connections[connection as usize].own.then_some((id, bytes))
        };
        let classes = self.flows.iter().filter_map(|flow| match flow.stage {
            Stage::Moving(class) => Some((flow.band, class.0)),
            _ => None,
        });
        let mut left = Vec::new();
        for (band, class) in classes.collect::<BTreeSet<_>>() {
            let shares = self.bands[usize::from(band.index())].as_ref().expect("the band is in use");
            let done = shares.groups.work_at(class, self.now_fs);
            let later = shares.later.get(class as usize).into_iter().flatten();
            let targets = later.map(|&Reverse(flow)| flow).chain([shares.groups.first(class)]);
            left.extend(targets.filter_map(|(target, slot)| of(slot, target.saturating_sub(done))));
        }
        let leaving = self.pace.leaving.iter().map(|Reverse(leaving)| (leaving.slot, leaving.left(self.now_fs)));
        left.extend(leaving.filter_map(|(slot, work)| of(slot, work)));
        left
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        for connection in 0..self.connections.len() {
            let row = &self.connections[connection];
            let mut slot = row.first;
            if (row.stream, row.band) != (stream, 0) {
                continue;
            }
            while slot != NONE {
                let flow = &mut self.flows[slot as usize];
                let before = std::mem::replace(&mut flow.band, band);
                let next = flow.next;
                if let (Stage::Moving(class), true) = (flow.stage, before != band) {
                    self.move_band(slot, class, before);
                }
                slot = next;
            }
        }
    }
}

impl ForkNetwork for Fluid {
    fn fork(&self) -> Box<dyn ForkNetwork> {
        Box::new(self.clone())
    }
}
