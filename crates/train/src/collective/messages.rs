//! A collective simulated message by message. A message is sent when the messages on which it depends have arrived.

use super::Aggregation;
use super::algorithms::{Algorithm, ring};
use super::group::{GroupHosts, GroupPlans};
use super::levels::Levels;
use super::nodes::{Carriage, Chunking, Links};
use super::pattern::Action;
use super::plan::{CollectivePlan, Message, Passage, PlanError};
use super::progress::Progress;
use gradtide_net::{Announced, Band, Bytes, Completion, Connection, Flow, FlowId, HostId, Network, Rate, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// A job's collective: algorithm, hosts, pipelining, and rate of reductions.
#[derive(Clone, Debug)]
pub struct Collective {
    algorithm: Algorithm,
    /// Host of each rank.
    hosts: Vec<u32>,
    depth: Depth,
    adding: Option<Rate>,
    size: MessageSize,
    announced: Option<Announced>,
    over: Option<OverNodes>,
}

/// Nodes and links of a collective that uses trees or all network cards of its nodes.
#[derive(Clone, Debug)]
struct OverNodes {
    ranks: GroupHosts,
    links: Links,
}

/// Number of chunks into which a buffer is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Fixed number of chunks; not 0.
    Fixed(u32),
    /// The number of chunks is bytes / threshold, clamped to 1..=[`MAX_DEPTH`], so no chunk is smaller than the
    /// threshold unless the buffer is. Caramel, section 4.4, describes this rule without a formula (A30 of
    /// the header of `caramel/mod.rs`).
    Adaptive {
        /// Chunk size, in bytes, below which the cost of another chunk exceeds its gain.
        threshold: Bytes,
    },
}

/// Maximum adaptive depth (Caramel, section 4.4).
pub const MAX_DEPTH: u32 = 8;

impl Depth {
    /// Returns the number of chunks of a buffer of `bytes`.
    pub fn of(self, bytes: Bytes) -> u32 {
        let most = u64::from(MAX_DEPTH);
        match self {
            Self::Fixed(depth) => depth,
            Self::Adaptive { threshold } => {
                bytes.0.checked_div(threshold.0).map_or(MAX_DEPTH, |count| count.clamp(1, most) as u32)
            }
        }
    }
}

/// Size of the messages of a buffer that does not divide evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageSize {
    /// Whole bytes: message sizes differ by at most one byte.
    Whole,
    /// The exact fraction of the buffer.
    Even,
}

/// The concurrent plans of one collective, one per chunk. Each connection delivers their messages in the order in which
/// they were started.
#[derive(Debug)]
pub struct Messages {
    chunks: Vec<Progress>,
    outbox: Outbox,
    adding: Option<Reducer>,
    /// Number of incomplete chunks.
    left_count: usize,
}

/// Messages in flight.
#[derive(Debug)]
struct Outbox {
    addressing: Addressing,
    under_way: InFlight<MessageInFlight>,
}

/// Maps messages to flows.
#[derive(Clone, Debug)]
pub(super) struct Addressing {
    /// Host of each rank. Chunk i uses the list of index i modulo the number of lists.
    hosts: Vec<Vec<u32>>,
    size: MessageSize,
    bands: Bands,
    stream: u32,
    announced: Option<Announced>,
}

/// Traffic class (band) of each rank's messages.
#[derive(Clone, Debug)]
pub enum Bands {
    /// One band for all ranks.
    Alike(Band),
    /// One band per rank, with one connection per band. A connection in band `low` has at most `window` bytes in
    /// flight.
    OfRank {
        /// Band of each rank.
        bands: Vec<Band>,
        /// Band whose connections have a limited window.
        low: Band,
        /// Limit on the bytes in flight of a connection in band `low`.
        window: Bytes,
    },
}

impl From<Band> for Bands {
    fn from(band: Band) -> Self {
        Self::Alike(band)
    }
}

/// A message in flight, and the receiver's action on its bytes.
#[derive(Clone, Copy, Debug)]
struct MessageInFlight {
    chunk: u32,
    passage: Passage,
    bytes: Bytes,
    parts: u32,
    action: Action,
}

/// A value for each flow in flight. Flow ids ascend, so the rows are sorted. The row of an arrived flow is removed when
/// all earlier flows have arrived, or when the rows of arrived flows outnumber the others.
#[derive(Debug)]
pub(super) struct InFlight<T> {
    rows: VecDeque<(FlowId, Option<T>)>,
    count: usize,
}

/// Simulates reductions: each rank reduces its received messages one after another.
#[derive(Debug)]
struct Reducer {
    rate: Rate,
    /// Time at which each host will have reduced all received messages. A host that has received none has no entry.
    free_at: BTreeMap<u32, Time>,
    /// Messages that are being reduced or wait for their reduction: end of the reduction, arrival number, chunk and
    /// message.
    waiting: BinaryHeap<Reverse<(Time, u64, u32, Passage)>>,
    arrived_count: u64,
}

/// Element size in bytes. With 1 byte, the parts of a buffer differ by at most one byte, as in the simulator of Gao
/// (2020).
const ELEMENT_BYTES: u64 = 1;

impl Collective {
    /// Creates a collective whose ranks are on `hosts` and run `algorithm`. `depth` cuts buffers into chunks.
    /// Reductions run at the rate `adding`, or take no time if `adding` is `None`. `largest` is the size of the largest
    /// buffer.
    ///
    /// # Errors
    /// [`PlanError`] if the algorithm does not support the ranks, or if `largest` exceeds the limit of a buffer.
    pub fn new(
        algorithm: Algorithm,
        hosts: Vec<u32>,
        largest: Bytes,
        depth: Depth,
        adding: Option<Rate>,
        size: MessageSize,
    ) -> Result<Self, PlanError> {
        algorithm.plan(hosts.len() as u32, largest, ELEMENT_BYTES)?;
        Ok(Self { algorithm, hosts, depth, adding, size, announced: None, over: None })
    }

    /// Makes the collective use all network cards of its nodes, if its algorithm supports this; otherwise returns it
    /// unchanged. `links` are the links of a rank.
    ///
    /// # Errors
    /// [`PlanError`] if the algorithm does not support the distribution of ranks over nodes.
    pub fn over_nodes(self, links: &Links) -> Result<Self, PlanError> {
        let (mut nodes, mut places): (Vec<Vec<u32>>, _) = (Vec::new(), BTreeMap::new());
        for &host in &self.hosts {
            let place = *places.entry(host / links.gpus).or_insert(nodes.len());
            if place == nodes.len() {
                nodes.push(Vec::new());
            }
            nodes[place].push(host);
        }
        let ranks = GroupHosts { nodes, is_link: false };
        if self.hosts.len() < 2 || !self.algorithm.is_over_nodes(ranks.span()) {
            return Ok(self);
        }
        self.algorithm.group_plans(&ranks, Bytes(0), 1)?;
        Ok(Self { over: Some(OverNodes { ranks, links: *links }), ..self })
    }

    /// Sets the queue threshold that is announced to switches before each message; `None` announces nothing.
    pub fn announced(self, announced: Option<Announced>) -> Self {
        Self { announced, ..self }
    }

    /// Returns the plan for a buffer of `bytes`.
    ///
    /// # Panics
    /// If `bytes` exceeds `largest` of [`new`](Self::new).
    pub fn plan(&self, bytes: Bytes) -> CollectivePlan {
        let plan = self.algorithm.plan(self.hosts.len() as u32, bytes, ELEMENT_BYTES);
        plan.expect("a smaller plan than that of `new`")
    }

    /// Returns the concurrent plans for `bytes`, one per chunk, with the hosts of their ranks.
    fn plans(&self, bytes: Bytes) -> GroupPlans {
        let depth = self.depth.of(bytes);
        match &self.over {
            None => GroupPlans { plans: self.plan(bytes).chunks(depth).collect(), hosts: vec![self.hosts.clone()] },
            Some(OverNodes { ranks, .. }) => {
                self.algorithm.group_plans(ranks, bytes, depth).expect("a smaller plan than that of `new`")
            }
        }
    }

    /// Calls `visit` with every message of a buffer of `bytes`, preceded by the index of its chunk. Ranks are numbered
    /// as in the job.
    ///
    /// # Panics
    /// As [`plan`](Self::plan).
    pub fn each_message(&self, bytes: Bytes, visit: &mut dyn FnMut(u64, Message)) {
        let plans = self.plans(bytes);
        let places: BTreeMap<u32, u32> = self.hosts.iter().copied().zip(0..).collect();
        let mut start = 0;
        for (chunk, (plan, hosts)) in (0..).zip(plans.iter()) {
            for (step, rank) in (0..plan.step_count()).flat_map(|step| (0..plan.ranks()).map(move |rank| (step, rank)))
            {
                plan.sends(step, rank, &mut |sent| match &self.over {
                    None => visit(chunk, sent),
                    Some(_) => {
                        let [from, to] = [sent.from, sent.to].map(|rank| places[&hosts[rank as usize]]);
                        visit(chunk, Message { from, to, offset: start + sent.offset, ..sent });
                    }
                });
            }
            start += plan.bytes().0;
        }
    }

    /// Returns a copy with another depth.
    pub fn with_depth(&self, depth: Depth) -> Self {
        Self { depth, ..self.clone() }
    }

    /// Returns the rule that cuts buffers into chunks.
    pub fn depth(&self) -> Depth {
        self.depth
    }

    /// Returns whether the depth has an effect. It has none if the algorithm itself cuts its buffer into parts.
    pub fn has_depth(&self) -> bool {
        self.levels().is_none_or(|levels| !levels.is_pipelined)
    }

    /// Returns the number of messages that a rank receives one after another in a ring all-reduce.
    pub fn rounds(&self) -> u32 {
        2 * (self.hosts.len() as u32).saturating_sub(1)
    }

    /// Returns the host of each rank.
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// Returns a ring all-reduce of `bytes` as one flow that represents all hosts. See [`ring::lock_step`].
    pub fn lock_step(&self, bytes: Bytes, band: Band, stream: u32, hold: Time) -> Option<Flow> {
        ring::lock_step(&self.hosts, bytes, band, stream, hold)
    }

    /// Returns whether the timing depends on the plan alone, which requires one chunk, even shares, and reductions that
    /// take no time.
    pub fn is_plain(&self) -> bool {
        self.depth == Depth::Fixed(1) && self.size == MessageSize::Even && self.adding.is_none()
    }

    /// Returns whether the collective uses trees or all network cards of its nodes.
    pub fn is_over_nodes(&self) -> bool {
        self.over.is_some()
    }

    /// Returns the hosts of the ranks that compute, which excludes parameter servers.
    pub fn worker_hosts(&self) -> impl Iterator<Item = u32> {
        let servers = self.algorithm.servers(self.hosts.len() as u32);
        (0..).zip(&self.hosts).filter(move |(rank, _)| !servers.contains(rank)).map(|(_, &host)| host)
    }

    /// Returns the bytes that the busiest rank sends for a buffer of `bytes`.
    pub fn sent_by_busiest(&self, bytes: u128) -> f64 {
        self.algorithm.sent_by_busiest(self.hosts.len() as u32, bytes)
    }

    /// Opens a connection for every pair of communicating ranks by sending an empty message. Returns the number of
    /// connections.
    pub fn open(&self, bands: impl Into<Bands>, stream: u32, network: &mut dyn Network) -> usize {
        let mut first: BTreeMap<(u32, u32), Message> = BTreeMap::new();
        self.each_message(Bytes(0), &mut |_, message| {
            first.entry((message.from, message.to)).or_insert(message);
        });
        let addressing = self.addressing(vec![self.hosts.clone()], bands.into(), stream);
        first.values().for_each(|&message| {
            network.start(addressing.flow(0, message));
        });
        first.len()
    }

    /// Starts the collective on `bytes` by sending all flows or messages without a dependency.
    pub fn begin(&self, bytes: Bytes, bands: impl Into<Bands>, stream: u32, network: &mut dyn Network) -> Aggregation {
        let bands = bands.into();
        let flows = if let Bands::Alike(band) = bands { self.flows(bytes, band, stream) } else { None };
        match flows {
            Some(flows) => Aggregation::Several(flows.into_iter().map(|flow| network.start(flow)).collect()),
            None => Aggregation::Messages(Box::new(self.messages(bytes, bands, stream, network))),
        }
    }

    /// Returns the flows that model the collective; `None` if the collective is simulated message by message. Flows
    /// model a collective only if it uses all cards of its nodes and its messages have even shares. One flow contains
    /// all rounds of a rank, and does not wait for other flows of the collective.
    pub fn flows(&self, bytes: Bytes, band: Band, stream: u32) -> Option<Vec<Flow>> {
        let over = self.over.as_ref().filter(|_| self.size == MessageSize::Even)?;
        let chunking = Chunking { depth: self.depth.of(bytes), adding: self.adding };
        let carriage = Carriage { band, stream };
        Some(over.links.flows(&self.levels()?, &over.ranks.nodes, bytes, chunking, carriage))
    }

    /// Returns the load of a rank at each level, if the collective uses all cards of its nodes.
    fn levels(&self) -> Option<Levels> {
        self.over.as_ref().and_then(|over| self.algorithm.levels(over.ranks.span()))
    }

    fn messages(&self, bytes: Bytes, bands: Bands, stream: u32, network: &mut dyn Network) -> Messages {
        let adding = self.adding.map(|rate| Reducer {
            rate,
            free_at: BTreeMap::new(),
            waiting: BinaryHeap::new(),
            arrived_count: 0,
        });
        let GroupPlans { plans, hosts } = self.plans(bytes);
        Messages { adding, ..Messages::begin(plans, self.addressing(hosts, bands, stream), network) }
    }

    fn addressing(&self, hosts: Vec<Vec<u32>>, bands: Bands, stream: u32) -> Addressing {
        Addressing { hosts, size: self.size, bands, stream, announced: self.announced }
    }
}

impl Messages {
    /// Starts all messages of `plans` that have no dependency. All ranks send in one band, and reductions take no time.
    pub fn along(
        GroupPlans { plans, hosts }: GroupPlans,
        size: MessageSize,
        (band, stream): (Band, u32),
        network: &mut dyn Network,
    ) -> Self {
        let addressing = Addressing { hosts, size, bands: Bands::Alike(band), stream, announced: None };
        Self::begin(plans, addressing, network)
    }

    fn begin(plans: Vec<CollectivePlan>, addressing: Addressing, network: &mut dyn Network) -> Self {
        let mut outbox = Outbox { addressing, under_way: InFlight::default() };
        let begin = |(chunk, plan)| {
            Progress::begin(plan, &mut |message: Message| {
                outbox.send(chunk, message, network);
            })
        };
        let chunks: Vec<Progress> = (0..).zip(plans).map(begin).collect();
        let left_count = chunks.iter().filter(|chunk| !chunk.is_complete()).count();
        Messages { chunks, outbox, adding: None, left_count }
    }

    /// Handles the arrival of a message and sends the messages that depend on it. Returns whether the collective is
    /// complete.
    pub fn on_completion(&mut self, completion: Completion, network: &mut dyn Network) -> bool {
        let sent = self.outbox.under_way.remove(completion.flow);
        let is_reduced = match &mut self.adding {
            Some(adding) if sent.action == Action::Reduce => {
                adding.is_reduced(network.now(), sent, self.outbox.addressing.host(sent.chunk, sent.passage.to))
            }
            _ => true,
        };
        if is_reduced {
            self.on_arrival(sent.chunk, sent.passage, network);
        }
        self.left_count == 0
    }

    /// Returns whether a flow in flight belongs to this collective.
    pub fn has(&self, flow: FlowId) -> bool {
        self.outbox.under_way.has(flow)
    }

    /// Returns step, sender and receiver of a message in flight.
    pub fn passage(&self, flow: FlowId) -> Passage {
        self.outbox.under_way.get(flow).passage
    }

    /// Sets the band of the messages that `rank` has yet to send, if ranks choose their own bands.
    pub fn set_band(&mut self, rank: u32, band: Band) {
        if let Bands::OfRank { bands, .. } = &mut self.outbox.addressing.bands {
            bands[rank as usize] = band;
        }
    }

    /// Sets the band of the messages that all ranks have yet to send, if ranks choose their own bands.
    pub fn set_all_bands(&mut self, band: Band) {
        if let Bands::OfRank { bands, .. } = &mut self.outbox.addressing.bands {
            bands.fill(band);
        }
    }

    /// Returns the end of the next reduction, if there is one.
    pub fn wakes_at(&self) -> Option<Time> {
        self.adding.as_ref().and_then(Reducer::next_at)
    }

    /// Handles the reductions that have ended by `now` and sends the messages that depend on them. Returns whether the
    /// collective is complete.
    pub fn settle(&mut self, now: Time, network: &mut dyn Network) -> bool {
        while let Some((chunk, passage)) = self.adding.as_mut().and_then(|adding| adding.pop_until(now)) {
            self.on_arrival(chunk, passage, network);
        }
        self.left_count == 0
    }

    fn on_arrival(&mut self, chunk: u32, passage: Passage, network: &mut dyn Network) {
        let progress = &mut self.chunks[chunk as usize];
        progress.on_arrival(passage, &mut |next| self.outbox.send(chunk, next, network));
        self.left_count -= usize::from(progress.is_complete());
    }
}

impl<T> Default for InFlight<T> {
    fn default() -> Self {
        Self { rows: VecDeque::new(), count: 0 }
    }
}

impl<T> InFlight<T> {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a flow, whose id must be the largest so far.
    pub fn insert(&mut self, flow: FlowId, value: T) {
        self.rows.push_back((flow, Some(value)));
        self.count += 1;
    }

    fn has(&self, flow: FlowId) -> bool {
        self.rows.front().is_some_and(|&(first, _)| first <= flow)
            && self.rows.get(self.index(flow)).is_some_and(|(found, value)| *found == flow && value.is_some())
    }

    /// Returns the index of a flow's row.
    fn index(&self, flow: FlowId) -> usize {
        // Flow ids are usually consecutive, so this is usually the index of the flow. It is smaller if other flows have
        // been started in between.
        let at_most = self.rows.front().map_or(0, |&(first, _)| (flow.0 - first.0) as usize);
        match self.rows.get(at_most) {
            Some(&(found, _)) if found == flow => at_most,
            _ => self.rows.partition_point(|&(before, _)| before < flow),
        }
    }

    fn get(&self, flow: FlowId) -> &T {
        self.rows[self.index(flow)].1.as_ref().expect("a message arrives once")
    }

    /// Removes a flow in flight.
    pub fn remove(&mut self, flow: FlowId) -> T {
        let index = self.index(flow);
        let value = self.rows[index].1.take().expect("a message arrives once");
        self.count -= 1;
        while let Some((_, None)) = self.rows.front() {
            self.rows.pop_front();
        }
        if self.rows.len() > 2 * self.count + 64 {
            self.rows.retain(|(_, value)| value.is_some());
        }
        value
    }
}

impl Reducer {
    /// Queues a message at its receiver for reduction. Returns `true` if the reduction takes no time and is thus
    /// complete.
    fn is_reduced(&mut self, now: Time, sent: MessageInFlight, at: u32) -> bool {
        let free_at = self.free_at.entry(at).or_default();
        let duration = self.rate.serialize(sent.bytes, 1, sent.parts).unwrap_or(Time::MAX);
        let ends_at = Time::from_ps((*free_at).max(now).ps().saturating_add(duration.ps()));
        *free_at = ends_at;
        if ends_at > now {
            self.waiting.push(Reverse((ends_at, self.arrived_count, sent.chunk, sent.passage)));
            self.arrived_count += 1;
        }
        ends_at == now
    }

    fn next_at(&self) -> Option<Time> {
        self.waiting.peek().map(|&Reverse((at, ..))| at)
    }

    fn pop_until(&mut self, now: Time) -> Option<(u32, Passage)> {
        let Reverse((_, _, chunk, passage)) =
            self.next_at().filter(|&at| at <= now).and_then(|_| self.waiting.pop())?;
        Some((chunk, passage))
    }
}

impl Outbox {
    fn send(&mut self, chunk: u32, message: Message, network: &mut dyn Network) {
        let flow = Flow { part: Some(chunk), ..self.addressing.flow(chunk, message) };
        let Flow { bytes, parts, .. } = flow;
        let sent = MessageInFlight { chunk, passage: message.passage(), bytes, parts, action: message.action };
        let id = network.start(flow);
        self.under_way.insert(id, sent);
    }
}

impl MessageSize {
    fn of(self, message: Message) -> (Bytes, u32) {
        match self {
            Self::Whole => (message.bytes, 1),
            Self::Even => (message.even.bytes, message.even.parts),
        }
    }
}

impl Addressing {
    /// Creates an addressing that uses the first band of the first stream.
    pub fn new(hosts: &[u32], size: MessageSize) -> Self {
        let bands = Bands::Alike(Band::new(0).expect("there is a first band"));
        Self { hosts: vec![hosts.to_vec()], size, bands, stream: 0, announced: None }
    }

    fn host(&self, chunk: u32, rank: u32) -> u32 {
        self.hosts[chunk as usize % self.hosts.len()][rank as usize]
    }

    pub fn flow(&self, chunk: u32, message: Message) -> Flow {
        let (bytes, parts) = self.size.of(message);
        let (band, connection) = match &self.bands {
            Bands::Alike(band) => (*band, Connection::Stream),
            Bands::OfRank { bands, low, window } => {
                let band = bands[message.from as usize];
                let window = if band == *low { *window } else { Bytes(u64::MAX) };
                (band, Connection::StreamBand { window })
            }
        };
        Flow {
            src: HostId(self.host(chunk, message.from)),
            dst: HostId(self.host(chunk, message.to)),
            bytes,
            rounds: 1,
            parts,
            counted: message.bytes,
            hold: Time::ZERO,
            band,
            stream: self.stream,
            connection,
            part: None,
            announced: self.announced,
            listed: None,
        }
    }
}
