//! Engine 1: flows as fluids. Every flow runs at its max-min fair rate on the links of its path.
//! The file is longer than 600 lines because all of it reads and writes the state of the engine.
//!
//! ```text
//! enters(f)   = began(f) + hold + the sum of the delays of the links on its path
//! rate(f, t)  = max-min fair share among all flows that have entered and have bytes left (see crate::maxmin)
//! received(f) = the instant at which the integral of rate(f, t) since enters(f) equals the bytes of f
//! ```
//!
//! The first byte of a flow thus takes the delay, and rates are shares as seen by the receivers, as in SimGrid's
//! models. When a flow enters or is received, all rates change at that instant or, [within a bound](Fluid::within),
//! slightly earlier or later.
//!
//! Flows of one stream from one host to another share a connection. On a connection, a flow begins when the last byte
//! of the previous flow has left, one path delay before that byte is received. Bands are strict: a band shares the
//! capacity that higher bands leave.
//!
//! A message of a flow transfers exactly `bytes / parts` bytes, which may be a fraction. Links count the message's
//! [whole bytes](Flow::counted) when it is received, and while it is in flight, the bytes that have crossed, rounded
//! down.
//!
//! Internally, time is counted in femtoseconds and work in units of 2^-20 bit/s times 1 fs. Work is therefore an exact
//! integer function of rates and instants, and rounding errors do not accumulate. The instant at which a message is
//! received is rounded up to a femtosecond, so a chain of n messages is late by less than n fs. The clock shows
//! picoseconds, rounded down. A flow that is started between two picoseconds begins at the exact femtosecond.
//!
//! Not modelled: packets and their headers, queues, losses, windows. The rate of a link is its rate of payload.

mod bound;
mod connections;
mod due;
mod group;
mod shares;
mod work;

use crate::maxmin::{CAPACITY_LIMIT, ClassId, LinkId, MaxMin, PARTS};
use crate::route::{Hashes, Policy, RouteError, Routes};
use crate::topology::{Graph, PortId};
use crate::trace::{Counters, PortCounters};
use crate::units::{Bytes, Rate, Time};
use crate::{Band, Completion, Flow, FlowId, ForkNetwork, HostId, Network, Seed};
use bound::{Bound, EXACT_BELOW, Leaving, SolveTimer};
use connections::{Connections, FlowState, NO_FLOW, Stage};
use due::NEVER;
use gradtide_watch::check_cancelled;
use shares::Shares;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
pub use work::{ExclusivePath, Load};
use work::{FS_PER_PS, WORK_PER_BYTE, clock, joined, split, work};

/// The fluid engine.
#[derive(Clone, Debug)]
pub struct Fluid {
    links: Vec<FluidLink>,
    now_fs: u128,
    /// Flows and rates of each band. An entry is created when the band is first used.
    bands: Vec<Option<Box<Shares>>>,
    flows: Vec<FlowState>,
    free_flows: Vec<u32>,
    connections: Connections,
    /// Messages that have yet to enter, by the time at which they enter.
    timers: BTreeMap<u128, Vec<u32>>,
    /// Completions that have not been reported yet.
    completed: Vec<Completion>,
    started_count: u64,
    completed_count: u64,
    event_count: u64,
    solve_timer: SolveTimer,
    scratch: Scratch,
}

/// Reason why an engine cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FluidError {
    /// The graph does not connect its hosts.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The link's rate does not fit 64 bits in units of 2^-20 bit/s.
    #[error("link {port} carries {bps} bit/s; the fluid engine counts rates below {CAPACITY_LIMIT} bit/s")]
    TooFast {
        /// The link's port.
        port: u32,
        /// The link's rate.
        bps: u64,
    },
}

#[derive(Clone, Debug)]
struct FluidLink {
    rate: Rate,
    delay_ps: u64,
    /// Load of all received messages.
    received: Load,
}

/// Buffers that are kept between calls.
#[derive(Clone, Debug, Default)]
struct Scratch {
    groups: Vec<u32>,
    due: Vec<u32>,
}

impl Fluid {
    /// Creates an idle network at time zero. `seed` chooses the hashes of [`Policy::Ecmp`].
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
            links: links.collect::<Result<_, _>>()?,
            now_fs: 0,
            bands: (0..Band::COUNT).map(|_| None).collect(),
            flows: Vec::new(),
            free_flows: Vec::new(),
            connections: Connections::new(routes, Hashes::new(seed), graph.host_count),
            timers: BTreeMap::new(),
            completed: Vec::new(),
            started_count: 0,
            completed_count: 0,
            event_count: 0,
            solve_timer: SolveTimer::new(None),
            scratch: Scratch::default(),
        })
    }

    /// Returns the engine with a bounded error: finish times may be off by about `ppm` millionths of the time since the
    /// start. Finish times are exact while at most 16,384 flows are in flight.
    ///
    /// # Panics
    /// If a flow was started.
    pub fn within(self, ppm: NonZeroU32) -> Self {
        self.within_above(ppm, EXACT_BELOW)
    }

    /// Returns the engine of [`within`](Self::within), but with exact finish times while at most `exact_below` flows
    /// are in flight.
    ///
    /// # Panics
    /// If a flow was started.
    pub fn within_above(self, ppm: NonZeroU32, exact_below: u64) -> Self {
        assert_eq!(self.started_count, 0, "nothing has been sent");
        Self { solve_timer: SolveTimer::new(Some(Bound::new(ppm, exact_below))), ..self }
    }

    /// Returns the totals so far. Events are messages that enter or are received, and changes of a class's rate. There
    /// are no packets.
    pub fn counters(&self) -> Counters {
        Counters { events: self.event_count, ..Counters::default() }
    }

    /// Returns the totals of one port. They include the bytes of messages in flight that have crossed the link, and the
    /// time that these bytes take at the link's full rate.
    pub fn port_counters(&self, port: PortId) -> PortCounters {
        self.counters_of(port, self.load(port))
    }

    /// Returns the totals of one port whose link has carried `load`.
    pub fn counters_of(&self, port: PortId, load: Load) -> PortCounters {
        let rate_parts = u128::from(self.links[port.0 as usize].rate.bps()) * u128::from(PARTS);
        // The time is rounded down like the clock, so that no link is busy for longer than the clock has run.
        let busy_ps = load.work / (rate_parts * FS_PER_PS);
        PortCounters { bytes: load.bytes.0, busy: Time::from_ps(busy_ps as u64), ..PortCounters::default() }
    }

    /// Returns the load that has crossed the link of a port, including messages in flight.
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
        for &Reverse(leaving) in &self.solve_timer.leaving {
            let FlowState { work, counted, connection, .. } = self.flows[leaving.slot as usize];
            if self.connections.path(connection).contains(&LinkId(port.0)) {
                load += Load::of(work.saturating_sub(leaving.left(self.now_fs)), work, counted);
            }
        }
        load
    }

    /// Returns the number of links, which is also the number of ports.
    pub fn link_count(&self) -> u32 {
        self.links.len() as u32
    }

    /// Returns the number of flows started so far.
    pub fn started_count(&self) -> u64 {
        self.started_count
    }

    /// Returns the paths of the flows of `stream` between `pairs` of hosts, if all these flows can run at full rate
    /// simultaneously. Returns `None` if one flow slows another, or if a path has no links. The pairs must be distinct.
    ///
    /// Any subset of the flows also runs at full rate: rates that are feasible for all flows are feasible for a subset.
    pub fn exclusive_paths(
        &self,
        stream: u32,
        pairs: impl Iterator<Item = (HostId, HostId)>,
    ) -> Option<Vec<ExclusivePath>> {
        let mut left: Vec<u64> = self.links.iter().map(|link| link.rate.bps() * PARTS).collect();
        let paths = pairs.map(|(src, dst)| {
            let ports = self.connections.path_of_stream(stream, src, dst);
            let of = |port: &PortId| &self.links[port.0 as usize];
            let rate = ports.iter().map(|port| of(port).rate.bps() * PARTS).min()?;
            for port in &ports {
                let left = &mut left[port.0 as usize];
                *left = left.checked_sub(rate)?;
            }
            Some(ExclusivePath { rate, delay_ps: ports.iter().map(|port| of(port).delay_ps).sum(), ports })
        });
        paths.collect()
    }

    /// Returns the time of the next event, rounded up, or `None` if no event is pending.
    pub fn next_event(&mut self) -> Option<Time> {
        if !self.completed.is_empty() {
            return Some(self.now());
        }
        self.share();
        let next = self.next_at();
        (next < NEVER).then(|| Time::from_ps(next.div_ceil(FS_PER_PS) as u64))
    }

    /// Returns whether all flows have completed.
    pub fn is_idle(&self) -> bool {
        self.completed_count == self.started_count
    }

    /// Returns the rates of all flows that have entered, in bit/s.
    pub fn rates(&mut self) -> Vec<(FlowId, f64)> {
        self.share();
        let sending = self.flows.iter().filter_map(|flow| match flow.stage {
            Stage::Moving(class) => {
                let shares = self.bands[usize::from(flow.band.index())].as_ref()?;
                Some((flow.id, shares.groups.rate(class.0) as f64 / PARTS as f64))
            }
            _ => None,
        });
        let leaving = self.solve_timer.leaving.iter();
        let leaving =
            leaving.map(|Reverse(leaving)| (self.flows[leaving.slot as usize].id, leaving.rate as f64 / PARTS as f64));
        let sending = sending.chain(leaving);
        let mut rates: Vec<(FlowId, f64)> = sending.collect();
        rates.sort_unstable_by_key(|&(id, _)| id);
        rates
    }

    /// Returns the propagation delay of a connection's path, in fs.
    fn delay_fs(&self, connection: u32) -> u128 {
        let path = self.connections.path(connection).iter();
        u128::from(path.map(|link| self.links[link.0 as usize].delay_ps).sum::<u64>()) * FS_PER_PS
    }

    /// Begins the first flow in the queue of a connection. A flow that takes no time completes immediately; then the
    /// next one begins.
    fn serve(&mut self, connection: u32) {
        loop {
            let row = &self.connections.rows[connection as usize];
            let (first, own) = (row.first, row.own);
            if first == NO_FLOW {
                if own {
                    self.connections.close(connection);
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

    /// Lets a message enter the links of its path. Returns `true` if the flow completes immediately, because it has no
    /// bytes or its path has no links.
    fn enter(&mut self, slot: u32) -> bool {
        self.event_count += 1;
        let flow = &self.flows[slot as usize];
        let work = flow.work;
        if work == 0 || self.connections.path(flow.connection).is_empty() {
            return self.receive(slot);
        }
        let FlowState { began, began_fs, hold, connection, band, .. } = *flow;
        // Only the first message of a flow enters at `first_fs`. Later messages enter after that.
        let first_fs = joined(began, began_fs) + joined(hold, 0) + self.delay_fs(connection);
        self.solve_timer.enter(self.now_fs, band, first_fs >= self.now_fs);
        self.join(slot, work);
        false
    }

    /// Processes the last byte of a message at the end of its path.
    fn arrive(&mut self, slot: u32) {
        let FlowState { work, counted, connection, .. } = self.flows[slot as usize];
        for link in self.connections.path(connection) {
            self.links[link.0 as usize].received += Load { bytes: counted, work };
        }
        if self.receive(slot) {
            self.serve(connection);
        }
    }

    /// Processes a received message. Returns `true` if it was the last one of its flow.
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
        let connection = &mut self.connections.rows[flow.connection as usize];
        connection.first = flow.next;
        if flow.next == NO_FLOW {
            connection.last = NO_FLOW;
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

    /// Adds a flow with `work` left to the solver of its band.
    fn join(&mut self, slot: u32, work: u128) {
        let flow = &mut self.flows[slot as usize];
        let mut is_new = false;
        let shares = self.bands[usize::from(flow.band.index())].get_or_insert_with(|| {
            let capacities: Vec<u64> = self.links.iter().map(|link| link.rate.bps()).collect();
            is_new = true;
            Box::new(Shares::new(MaxMin::new(&capacities), capacities.len()))
        });
        let (path, own) = (self.connections.path(flow.connection), self.connections.rows[flow.connection as usize].own);
        // Flows of a stream on one connection never share a link at the same time, and their path is rarely equal to
        // that of another stream. Searching for a class with the same links would rarely succeed.
        let id = if own { shares.solver.add(path) } else { shares.solver.add_unshared(path) };
        flow.stage = Stage::Moving(id);
        shares.join(id, self.now_fs, (work, slot));
        if is_new {
            self.bands.iter_mut().flatten().for_each(|shares| shares.solver.touch_all());
        }
    }

    /// Moves the remaining work of a flow from band `before` to the flow's new band.
    fn move_band(&mut self, slot: u32, class: ClassId, before: Band) {
        let shares = self.bands[usize::from(before.index())].as_mut().expect("the band is in use");
        let left = shares.detach(class, slot, self.now_fs);
        self.solve_timer.leave_band(self.now_fs, before);
        self.solve_timer.enter(self.now_fs, self.flows[slot as usize].band, false);
        self.join(slot, left);
    }

    /// Removes the messages that are received by `until_fs` at their current rates from the solvers, so that the next
    /// solve does not count them.
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
                    self.solve_timer.leave(Leaving { at_fs, slot, rate }, flow.band);
                    flow.stage = Stage::Leaving;
                    shares.remove(ClassId(class));
                }
            }
        }
        (self.scratch.groups, self.scratch.due) = (groups, due);
    }

    /// Updates rates and finish times, if a solve is due.
    fn share(&mut self) {
        if self.solve_timer.solve_at_fs > self.now_fs {
            self.bands.iter_mut().flatten().for_each(|shares| shares.groups.plan(self.now_fs, &mut shares.due));
            return;
        }
        if let Some(until_fs) = self.solve_timer.horizon_fs(self.now_fs) {
            self.anticipate(until_fs);
        }
        self.solve_timer.solved();
        for band in 0..Band::COUNT {
            let (above, below) = self.bands.split_at_mut(band);
            let Some((Some(shares), below)) = below.split_first_mut() else { continue };
            let Shares { solver, groups, due, .. } = &mut **shares;
            solver.take_changed_levels(|link, rate, class_count| {
                self.event_count += class_count as u64;
                groups.set_rate(link.0, rate, self.now_fs);
            });
            solver.take_moved_classes(|id, link| {
                self.event_count += 1;
                groups.move_to(id.0, link.0, self.now_fs);
            });
            groups.plan(self.now_fs, due);
            // The next lower band shares the capacity that this band and higher ones leave.
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

    fn next_at(&self) -> u128 {
        let leaving = self.bands.iter().flatten().map(|shares| shares.due.first_at());
        let timer = self.timers.first_key_value().map_or(NEVER, |(&at, _)| at);
        let left = self.solve_timer.leaving.peek().map_or(NEVER, |Reverse(first)| first.at_fs);
        leaving.fold(timer, u128::min).min(self.solve_timer.solve_at_fs).min(left)
    }

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
        while let Some(slot) = self.solve_timer.take_left(self.now_fs) {
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

    /// Processes the messages of a class that are received now.
    fn receive_due(&mut self, of_band: usize, id: ClassId) {
        loop {
            let shares = self.bands[of_band].as_mut().expect("the band is in use");
            let Some((_, slot)) = shares.groups.first_by(id.0, self.now_fs) else { return };
            shares.remove(id);
            self.solve_timer.end(self.now_fs, self.flows[slot as usize].band);
            self.arrive(slot);
        }
    }
}

impl Network for Fluid {
    /// Returns the time, rounded down to a picosecond.
    fn now(&self) -> Time {
        clock(self.now_fs)
    }

    /// # Panics
    /// If a message has 2^54 bytes or more, or 2^32 flows or connections exist simultaneously.
    fn start(&mut self, flow: Flow) -> FlowId {
        let id = FlowId(self.started_count);
        self.started_count += 1;
        let connection = self.connections.open(&flow);
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
            next: NO_FLOW,
            band: flow.band,
            stage: Stage::Waiting,
        };
        let slot = self.free_flows.pop().unwrap_or(self.flows.len() as u32);
        if slot as usize == self.flows.len() {
            self.flows.push(state);
        } else {
            self.flows[slot as usize] = state;
        }
        let row = &mut self.connections.rows[connection as usize];
        let last = std::mem::replace(&mut row.last, slot);
        if row.first == NO_FLOW {
            row.first = slot;
            self.serve(connection);
        } else {
            self.flows[last as usize].next = slot;
        }
        id
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        // The clock is rounded down, so the exact time may already be up to 1 ps after `until`.
        let until_fs = (u128::from(until.ps()) * FS_PER_PS).max(self.now_fs);
        if done.is_empty() && self.completed.is_empty() {
            // Reuses the memory of the last completions.
            std::mem::swap(done, &mut self.completed);
        }
        // A flow that takes no time completes as soon as it is started, so the list may already contain completions.
        while self.completed.is_empty() {
            check_cancelled();
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
        // The remaining bytes are those of the message in flight, rounded up, because a flow on a connection of its own
        // has only one message.
        let of = |slot: u32, work: u128| {
            let FlowState { id, connection, .. } = self.flows[slot as usize];
            let bytes = Bytes(work.div_ceil(WORK_PER_BYTE) as u64);
            self.connections.rows[connection as usize].own.then_some((id, bytes))
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
        let leaving = self.solve_timer.leaving.iter().map(|Reverse(leaving)| (leaving.slot, leaving.left(self.now_fs)));
        left.extend(leaving.filter_map(|(slot, work)| of(slot, work)));
        left
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        for connection in 0..self.connections.rows.len() {
            let row = &self.connections.rows[connection];
            let mut slot = row.first;
            if (row.stream, row.band) != (stream, 0) {
                continue;
            }
            while slot != NO_FLOW {
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
