//! A collective on a network: its messages, each sent when what it waits for has arrived.

use super::Aggregation;
use super::group::{GroupHosts, GroupMessages, Ways};
use super::levels::CollectiveKind;
use super::nodes::{Carriage, Links, Pace, Way};
use super::plan::{Action, Algorithm, CollectivePlan, Message, Passage, PlanError};
use super::progress::Progress;
use super::ring;
use gradtide_net::{Announced, Band, Bytes, Completion, Connection, Flow, FlowId, HostId, Network, Rate, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// How a job aggregates what it has at hand.
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

/// A collective over all cards of the nodes that its ranks are on, or along trees.
#[derive(Clone, Debug)]
struct OverNodes {
    ranks: GroupHosts,
    kind: CollectiveKind,
    is_tree: bool,
    links: Links,
}

/// Chunks into which a buffer is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// As many whatever its size; not 0.
    Fixed(u32),
    /// As many as thresholds fit in, from 1 to [`MAX_DEPTH`]: no chunk is smaller than the threshold but that of a
    /// buffer that is (Caramel, section 4.4, which has no formula; A30 of docs/models/caramel.md).
    Adaptive {
        /// The size below which cutting costs more than it saves.
        threshold: Bytes,
    },
}

/// Most chunks of a buffer whose depth adapts (Caramel, section 4.4).
pub const MAX_DEPTH: u32 = 8;

impl Depth {
    /// Chunks of `bytes`.
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

/// What a message carries of a buffer that does not divide evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageSize {
    /// Whole bytes.
    Whole,
    /// Exactly its share.
    Even,
}

/// Plans under way side by side: the chunks of one collective. Each connection carries their messages in the order in
/// which they are started.
#[derive(Debug)]
pub struct Messages {
    chunks: Vec<Progress>,
    outbox: Outbox,
    adding: Option<Adding>,
    /// Chunks that are not complete.
    left_count: usize,
}

/// Messages on the network.
#[derive(Debug)]
struct Outbox {
    addressing: Addressing,
    under_way: InFlight<MessageInFlight>,
}

/// What makes a flow of a message.
#[derive(Clone, Debug)]
pub(super) struct Addressing {
    /// Host of each rank; where chunks have ways of their own, those of the first chunk, of the second, ….
    hosts: Vec<Vec<u32>>,
    size: MessageSize,
    bands: Bands,
    stream: u32,
    announced: Option<Announced>,
}

/// In which band ranks send.
#[derive(Clone, Debug)]
pub enum Bands {
    /// All in one.
    Alike(Band),
    /// Each in its own, on a connection for each band; in `low` with at most `window` bytes under way.
    OfRank {
        /// By rank.
        bands: Vec<Band>,
        /// See `window`.
        low: Band,
        /// Bytes.
        window: Bytes,
    },
}

impl From<Band> for Bands {
    fn from(band: Band) -> Self {
        Self::Alike(band)
    }
}

/// A message under way: its chunk and passage, and what the receiver does with its bytes.
#[derive(Clone, Copy, Debug)]
struct MessageInFlight {
    chunk: u32,
    passage: Passage,
    bytes: Bytes,
    parts: u32,
    action: Action,
}

/// A value for each flow under way. Flows are numbered as they start, so the rows are in order. The row of an arrived
/// flow is dropped when all earlier flows have arrived, or when such rows outnumber the others.
#[derive(Debug)]
pub(super) struct InFlight<T> {
    rows: VecDeque<(FlowId, Option<T>)>,
    count: usize,
}

/// Ranks add what they have received, one message after another.
#[derive(Debug)]
struct Adding {
    rate: Rate,
    /// When each host has added all that it has received; absent, if it has received nothing.
    free_at: BTreeMap<u32, Time>,
    /// Messages that are being added or wait for it: when that is over, in the order of arrival, and whose they are.
    waiting: BinaryHeap<Reverse<(Time, u64, u32, Passage)>>,
    arrived_count: u64,
}

/// Parts differ by at most so many bytes, as in the thesis's simulator.
const ELEMENT_BYTES: u64 = 1;

impl Collective {
    /// Ranks on `hosts` carry out `algorithm` on buffers cut into chunks as `depth` says, and add what they receive at
    /// the rate `adding`, or in no time.
    ///
    /// # Errors
    /// [`PlanError`] if the ranks do not suit the algorithm, or `largest` bytes are too many for one buffer.
    pub fn new(
        algorithm: Algorithm,
        hosts: Vec<u32>,
        largest: Bytes,
        depth: Depth,
        adding: Option<Rate>,
        size: MessageSize,
    ) -> Result<Self, PlanError> {
        CollectivePlan::new(&algorithm, hosts.len() as u32, largest, ELEMENT_BYTES)?;
        Ok(Self { algorithm, hosts, depth, adding, size, announced: None, over: None })
    }

    /// The same on nodes whose ranks have these links: rings over all cards of several nodes; and trees, wherever.
    ///
    /// # Errors
    /// [`PlanError`] if trees go over nodes with different numbers of ranks.
    pub fn over_nodes(self, links: &Links) -> Result<Self, PlanError> {
        let kind = match self.algorithm {
            Algorithm::Ring | Algorithm::Tree => CollectiveKind::AllReduce,
            Algorithm::AllGather => CollectiveKind::AllGather,
            Algorithm::ReduceScatter => CollectiveKind::ReduceScatter,
            _ => return Ok(self),
        };
        let mut nodes: Vec<(u32, Vec<u32>)> = Vec::new();
        for &host in &self.hosts {
            let node = host / links.gpus;
            match nodes.iter_mut().find(|(other, _)| *other == node) {
                Some((_, hosts)) => hosts.push(host),
                None => nodes.push((node, vec![host])),
            }
        }
        let ranks = GroupHosts { nodes: nodes.into_iter().map(|(_, hosts)| hosts).collect(), is_link: false };
        let is_tree = self.algorithm == Algorithm::Tree;
        if self.hosts.len() < 2 || (!is_tree && ranks.span().is_on_one_level()) {
            return Ok(self);
        }
        ranks.check(GroupMessages { kind, bytes: Bytes(0), is_tree, depth: 1 })?;
        Ok(Self { over: Some(OverNodes { ranks, kind, is_tree, links: *links }), ..self })
    }

    /// The same, with every message announced as a burst.
    pub fn announced(self, announced: Option<Announced>) -> Self {
        Self { announced, ..self }
    }

    /// What is sent of `bytes`.
    ///
    /// # Panics
    /// If there are more than the largest that it was made for.
    pub fn plan(&self, bytes: Bytes) -> CollectivePlan {
        let ranks = self.hosts.len() as u32;
        CollectivePlan::new(&self.algorithm, ranks, bytes, ELEMENT_BYTES).expect("a smaller plan than that of `new`")
    }

    /// Plans that go side by side for `bytes`: those of their chunks, each with the host of each of its ranks, round and round.
    ///
    /// # Panics
    /// As [`plan`](Self::plan).
    fn ways(&self, bytes: Bytes) -> Ways {
        let depth = self.depth.of(bytes);
        match &self.over {
            None => (self.plan(bytes).chunks(depth).collect(), vec![self.hosts.clone()]),
            Some(OverNodes { ranks, kind, is_tree, .. }) => {
                let op = GroupMessages { kind: *kind, bytes, is_tree: *is_tree, depth };
                ranks.ways(op).expect("a smaller plan than that of `new`")
            }
        }
    }

    /// Tells `visit` every message for `bytes`, with its chunk, from rank to rank as the job counts them.
    ///
    /// # Panics
    /// As [`plan`](Self::plan).
    pub fn each_message(&self, bytes: Bytes, visit: &mut dyn FnMut(u64, Message)) {
        let (plans, hosts) = self.ways(bytes);
        let places: BTreeMap<u32, u32> = self.hosts.iter().copied().zip(0..).collect();
        let mut start = 0;
        for (chunk, (plan, hosts)) in (0..).zip(plans.iter().zip(hosts.iter().cycle())) {
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

    /// The same on buffers that are cut in another way.
    pub fn with_depth(&self, depth: Depth) -> Self {
        Self { depth, ..self.clone() }
    }

    /// Into how many chunks buffers are cut.
    pub fn depth(&self) -> Depth {
        self.depth
    }

    /// Whether that changes anything: trees are cut into parts of their own.
    pub fn has_depth(&self) -> bool {
        self.over.as_ref().is_none_or(|over| !over.is_tree)
    }

    /// Messages that a rank of a ring receives, one after the other.
    pub fn rounds(&self) -> u32 {
        2 * (self.hosts.len() as u32).saturating_sub(1)
    }

    /// Host of each rank.
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// A ring on `bytes` as one flow that stands for all hosts; see [`ring::lock_step`].
    pub fn lock_step(&self, bytes: Bytes, band: Band, stream: u32, hold: Time) -> Option<Flow> {
        ring::lock_step(&self.hosts, bytes, band, stream, hold)
    }

    /// Whether it is nothing but its plan: one chunk, even shares, and no time to add.
    pub fn is_plain(&self) -> bool {
        self.depth == Depth::Fixed(1) && self.size == MessageSize::Even && self.adding.is_none()
    }

    /// Whether it goes over all cards of nodes, or along trees.
    pub fn is_over_nodes(&self) -> bool {
        self.over.is_some()
    }

    /// Hosts of ranks that compute: all but parameter servers.
    pub fn worker_hosts(&self) -> impl Iterator<Item = u32> {
        let servers = match &self.algorithm {
            Algorithm::ParameterServer { servers } => &servers[..],
            _ => &[],
        };
        (0..).zip(&self.hosts).filter(|(rank, _)| !servers.contains(rank)).map(|(_, &host)| host)
    }

    /// Bytes of `bytes` that the rank sends that sends most.
    pub fn sent_by_busiest(&self, bytes: u128) -> f64 {
        self.algorithm.sent_by_busiest(self.hosts.len() as u32, bytes)
    }

    /// Opens a connection for every pair of ranks that send to each other, by a message without bytes; how many.
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

    /// Starts everything of `bytes` that does not wait for something else.
    pub fn begin(&self, bytes: Bytes, bands: impl Into<Bands>, stream: u32, network: &mut dyn Network) -> Aggregation {
        let bands = bands.into();
        let flows = if let Bands::Alike(band) = bands { self.flows(bytes, band, stream) } else { None };
        match flows {
            Some(flows) => Aggregation::Several(flows.into_iter().map(|flow| network.start(flow)).collect()),
            None => Aggregation::Messages(Box::new(self.messages(bytes, bands, stream, network))),
        }
    }

    /// The flows that stand for its messages, if any do: over nodes, where messages are even shares, nothing tells the rounds
    /// of a collective apart, and a flow has them all. Their ends depend on the collective alone.
    pub fn flows(&self, bytes: Bytes, band: Band, stream: u32) -> Option<Vec<Flow>> {
        let over = self.over.as_ref().filter(|_| self.size == MessageSize::Even)?;
        let pace = Pace { depth: self.depth.of(bytes), adding: self.adding };
        let carriage = Carriage { band, stream };
        Some(over.links.flows(over.way(), &over.ranks.nodes, bytes, pace, carriage))
    }

    fn messages(&self, bytes: Bytes, bands: Bands, stream: u32, network: &mut dyn Network) -> Messages {
        let adding = self.adding.map(|rate| Adding {
            rate,
            free_at: BTreeMap::new(),
            waiting: BinaryHeap::new(),
            arrived_count: 0,
        });
        let (plans, hosts) = self.ways(bytes);
        Messages { adding, ..Messages::begin(plans, self.addressing(hosts, bands, stream), network) }
    }

    fn addressing(&self, hosts: Vec<Vec<u32>>, bands: Bands, stream: u32) -> Addressing {
        Addressing { hosts, size: self.size, bands, stream, announced: self.announced }
    }
}

impl OverNodes {
    fn way(&self) -> Way {
        let span = self.ranks.span();
        if self.is_tree { Way::tree(span) } else { Way::ring(self.kind, span) }
    }
}

impl Messages {
    /// Starts every message of these plans that does not wait for another. Ranks of the i-th are on the i-th of `hosts`,
    /// round and round, and send in one band; what is received is added in no time.
    pub fn along(
        plans: Vec<CollectivePlan>,
        hosts: Vec<Vec<u32>>,
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

    /// Handles the arrival of a message and starts what waited for it; `true` if nothing is left to do.
    pub fn on_completion(&mut self, completion: Completion, network: &mut dyn Network) -> bool {
        let sent = self.outbox.under_way.remove(completion.flow);
        let is_added = match &mut self.adding {
            Some(adding) if sent.action == Action::Reduce => {
                adding.is_added(network.now(), sent, self.outbox.addressing.host(sent.chunk, sent.passage.to))
            }
            _ => true,
        };
        if is_added {
            self.take_in(sent.chunk, sent.passage, network);
        }
        self.left_count == 0
    }

    /// Whether a flow is one of its messages under way.
    pub fn has(&self, flow: FlowId) -> bool {
        self.outbox.under_way.has(flow)
    }

    /// From which rank to which a message under way goes.
    pub fn passage(&self, flow: FlowId) -> Passage {
        self.outbox.under_way.get(flow).passage
    }

    /// Messages that `rank` has yet to send go in `band`, if ranks have bands of their own.
    pub fn set_band(&mut self, rank: u32, band: Band) {
        if let Bands::OfRank { bands, .. } = &mut self.outbox.addressing.bands {
            bands[rank as usize] = band;
        }
    }

    /// When the next message has been added.
    pub fn wakes_at(&self) -> Option<Time> {
        self.adding.as_ref().and_then(Adding::next_at)
    }

    /// Handles the additions that have ended by now and starts what waited for them; `true` if nothing is left to do.
    pub fn settle(&mut self, now: Time, network: &mut dyn Network) -> bool {
        while let Some((chunk, passage)) = self.adding.as_mut().and_then(|adding| adding.pop_until(now)) {
            self.take_in(chunk, passage, network);
        }
        self.left_count == 0
    }

    fn take_in(&mut self, chunk: u32, passage: Passage, network: &mut dyn Network) {
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

    /// Adds a flow that was started after all others.
    pub fn insert(&mut self, flow: FlowId, of_flow: T) {
        self.rows.push_back((flow, Some(of_flow)));
        self.count += 1;
    }

    fn has(&self, flow: FlowId) -> bool {
        self.rows.front().is_some_and(|&(first, _)| first <= flow)
            && self.rows.get(self.index(flow)).is_some_and(|(found, of_flow)| *found == flow && of_flow.is_some())
    }

    /// The row of a flow that is under way.
    fn index(&self, flow: FlowId) -> usize {
        // Exact if nobody else has started a flow.
        let at_most = self.rows.front().map_or(0, |&(first, _)| (flow.0 - first.0) as usize);
        match self.rows.get(at_most) {
            Some(&(found, _)) if found == flow => at_most,
            _ => self.rows.partition_point(|&(before, _)| before < flow),
        }
    }

    /// The value of a flow that is under way.
    fn get(&self, flow: FlowId) -> &T {
        self.rows[self.index(flow)].1.as_ref().expect("a message arrives once")
    }

    /// Removes a flow that is under way.
    pub fn remove(&mut self, flow: FlowId) -> T {
        let index = self.index(flow);
        let of_flow = self.rows[index].1.take().expect("a message arrives once");
        self.count -= 1;
        while let Some((_, None)) = self.rows.front() {
            self.rows.pop_front();
        }
        if self.rows.len() > 2 * self.count + 64 {
            self.rows.retain(|(_, of_flow)| of_flow.is_some());
        }
        of_flow
    }
}

impl Adding {
    /// Queues a message at its receiver; whether it has been added now.
    fn is_added(&mut self, now: Time, sent: MessageInFlight, at: u32) -> bool {
        let free_at = self.free_at.entry(at).or_default();
        let takes = self.rate.serialize(sent.bytes, 1, sent.parts).unwrap_or(Time::MAX);
        let over_at = Time::from_ps((*free_at).max(now).ps().saturating_add(takes.ps()));
        *free_at = over_at;
        if over_at > now {
            self.waiting.push(Reverse((over_at, self.arrived_count, sent.chunk, sent.passage)));
            self.arrived_count += 1;
        }
        over_at == now
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
    /// In the first band of the first stream.
    pub fn new(hosts: &[u32], size: MessageSize) -> Self {
        let bands = Bands::Alike(Band::new(0).expect("there is a first band"));
        Self { hosts: vec![hosts.to_vec()], size, bands, stream: 0, announced: None }
    }

    /// Host of a rank in a chunk.
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
