//! A collective on a network: its messages, each sent when what it waits for has arrived.

use super::plan::{Action, Algorithm, Message, Plan, PlanError};
use super::progress::Progress;
use gradtide_net::{Band, Bytes, Completion, Connection, Flow, FlowId, HostId, Network, Rate, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// How a job aggregates what it has at hand.
#[derive(Clone, Debug)]
pub struct Collective {
    algorithm: Algorithm,
    /// Host of each rank.
    hosts: Vec<u32>,
    depth: u32,
    adding: Option<Rate>,
    size: MessageSize,
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
    addressing: Addressing,
    chunks: Vec<Progress>,
    /// Chunk and message of every flow under way.
    under_way: BTreeMap<FlowId, (u32, Message)>,
    adding: Option<Adding>,
    /// Chunks that are not complete.
    left_count: usize,
}

/// What makes a flow of a message.
#[derive(Clone, Debug)]
struct Addressing {
    hosts: Vec<u32>,
    size: MessageSize,
    band: Band,
    stream: u32,
}

/// Ranks add what they have received, one message after another.
#[derive(Debug)]
struct Adding {
    rate: Rate,
    /// When each rank has added all that it has received.
    free_at: Vec<Time>,
    /// Messages that are being added or wait for it: when that is over, in the order of arrival, and whose they are.
    waiting: BinaryHeap<Reverse<(Time, u64, u32, Message)>>,
    arrived_count: u64,
}

/// Parts differ by at most so many bytes, as in the thesis's simulator.
const ELEMENT_BYTES: u64 = 1;

impl Collective {
    /// Ranks on `hosts` carry out `algorithm` on buffers cut into `depth` chunks, and add what they receive at the rate
    /// `adding`, or in no time.
    ///
    /// # Errors
    /// [`PlanError`] if the ranks do not suit the algorithm, or `largest` bytes are too many for one buffer.
    pub fn new(
        algorithm: Algorithm,
        hosts: Vec<u32>,
        largest: Bytes,
        depth: u32,
        adding: Option<Rate>,
        size: MessageSize,
    ) -> Result<Self, PlanError> {
        Plan::new(&algorithm, hosts.len() as u32, largest, ELEMENT_BYTES)?;
        Ok(Self { algorithm, hosts, depth, adding, size })
    }

    /// What is sent of `bytes`.
    ///
    /// # Panics
    /// If there are more than the largest that it was made for.
    pub fn plan(&self, bytes: Bytes) -> Plan {
        let ranks = self.hosts.len() as u32;
        Plan::new(&self.algorithm, ranks, bytes, ELEMENT_BYTES).expect("a smaller plan than that of `new`")
    }

    /// Host of each rank.
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// Whether it is nothing but its plan: one chunk, even shares, and nothing to add.
    pub fn is_plain(&self) -> bool {
        self.depth == 1 && self.adding.is_none() && self.size == MessageSize::Even
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
    pub fn open(&self, band: Band, stream: u32, network: &mut dyn Network) -> usize {
        let (addressing, plan) = (self.addressing(band, stream), self.plan(Bytes(0)));
        let mut first: BTreeMap<(u32, u32), Message> = BTreeMap::new();
        for step in 0..plan.step_count() {
            for rank in 0..plan.ranks() {
                plan.sends(step, rank, &mut |message| {
                    first.entry((message.from, message.to)).or_insert(message);
                });
            }
        }
        first.values().for_each(|&message| {
            network.start(addressing.flow(message));
        });
        first.len()
    }

    /// Starts every message of `bytes` that waits for nothing.
    pub fn begin(&self, bytes: Bytes, band: Band, stream: u32, network: &mut dyn Network) -> Messages {
        let addressing = self.addressing(band, stream);
        let mut under_way = BTreeMap::new();
        let begin = |(chunk, plan)| {
            Progress::begin(plan, &mut |message: Message| {
                under_way.insert(network.start(addressing.flow(message)), (chunk, message));
            })
        };
        let chunks: Vec<Progress> = (0..).zip(self.plan(bytes).chunks(self.depth)).map(begin).collect();
        let adding = self.adding.map(|rate| Adding {
            rate,
            free_at: vec![Time::ZERO; self.hosts.len()],
            waiting: BinaryHeap::new(),
            arrived_count: 0,
        });
        let left_count = chunks.iter().filter(|chunk| !chunk.is_complete()).count();
        Messages { addressing, chunks, under_way, adding, left_count }
    }

    fn addressing(&self, band: Band, stream: u32) -> Addressing {
        Addressing { hosts: self.hosts.clone(), size: self.size, band, stream }
    }
}

impl Messages {
    /// Takes in that a message has arrived, and starts what it makes possible; `true` if nothing is left to do.
    pub fn on_completion(&mut self, completion: Completion, network: &mut dyn Network) -> bool {
        let (chunk, message) = self.under_way.remove(&completion.flow).expect("the message is under way");
        let is_added = match &mut self.adding {
            Some(adding) if message.action == Action::Reduce => {
                adding.is_added(network.now(), chunk, message, self.addressing.size)
            }
            _ => true,
        };
        if is_added {
            self.take_in(chunk, message, network);
        }
        self.left_count == 0
    }

    /// When the next message has been added.
    pub fn wakes_at(&self) -> Option<Time> {
        self.adding.as_ref()?.waiting.peek().map(|&Reverse((at, ..))| at)
    }

    /// Takes in what has been added by now, and starts what that makes possible; `true` if nothing is left to do.
    pub fn settle(&mut self, now: Time, network: &mut dyn Network) -> bool {
        while self.wakes_at().is_some_and(|at| at <= now) {
            let next = self.adding.as_mut().and_then(|adding| adding.waiting.pop());
            let Some(Reverse((_, _, chunk, message))) = next else { break };
            self.take_in(chunk, message, network);
        }
        self.left_count == 0
    }

    fn take_in(&mut self, chunk: u32, message: Message, network: &mut dyn Network) {
        let progress = &mut self.chunks[chunk as usize];
        progress.on_arrival(message.passage(), &mut |next| {
            self.under_way.insert(network.start(self.addressing.flow(next)), (chunk, next));
        });
        self.left_count -= usize::from(progress.is_complete());
    }
}

impl Adding {
    /// Queues a message at its receiver; whether it has been added now.
    fn is_added(&mut self, now: Time, chunk: u32, message: Message, size: MessageSize) -> bool {
        let free_at = &mut self.free_at[message.to as usize];
        let (bytes, parts) = size.of(message);
        let takes = self.rate.serialize(bytes, 1, parts).unwrap_or(Time::MAX);
        let over_at = Time::from_ps((*free_at).max(now).ps().saturating_add(takes.ps()));
        *free_at = over_at;
        if over_at > now {
            self.waiting.push(Reverse((over_at, self.arrived_count, chunk, message)));
            self.arrived_count += 1;
        }
        over_at == now
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
    fn flow(&self, message: Message) -> Flow {
        let (bytes, parts) = self.size.of(message);
        Flow {
            src: HostId(self.hosts[message.from as usize]),
            dst: HostId(self.hosts[message.to as usize]),
            bytes,
            rounds: 1,
            parts,
            hold: Time::ZERO,
            band: self.band,
            stream: self.stream,
            connection: Connection::Stream,
        }
    }
}
