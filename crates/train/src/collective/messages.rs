//! A collective under way: the messages of plans on a network, each sent when what it waits for has arrived.

use super::plan::{Action, Message, Plan};
use super::progress::Progress;
use gradtide_net::{Band, Bytes, Completion, Connection, Flow, FlowId, HostId, Network, Rate, Time};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Plans under way side by side: the chunks of one collective. Each connection carries their messages in the order in
/// which they are started.
#[derive(Debug)]
pub struct Messages {
    /// Host of each rank.
    hosts: Vec<u32>,
    band: Band,
    stream: u32,
    chunks: Vec<Progress>,
    /// Chunk and message of every flow under way.
    under_way: BTreeMap<FlowId, (u32, Message)>,
    adding: Option<Adding>,
    /// Chunks that are not complete.
    left_count: usize,
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

/// Opens a connection for every pair of ranks that a plan sends between, by a message without bytes; returns how many.
pub fn open(plan: &Plan, hosts: &[u32], band: Band, stream: u32, network: &mut dyn Network) -> usize {
    let mut pairs = BTreeSet::new();
    for step in 0..plan.step_count() {
        for rank in 0..plan.ranks() {
            plan.sends(step, rank, &mut |message| {
                pairs.insert((message.from, message.to));
            });
        }
    }
    for &(from, to) in &pairs {
        network.start(flow(hosts, from, to, Bytes(0), band, stream));
    }
    pairs.len()
}

impl Messages {
    /// Cuts a plan into `depth` chunks and starts every message that waits for nothing. Rank i is on `hosts[i]`, and adds what it has received at
    /// the rate `adding`, or in no time.
    pub fn begin(
        plan: &Plan,
        depth: u32,
        hosts: &[u32],
        band: Band,
        stream: u32,
        adding: Option<Rate>,
        network: &mut dyn Network,
    ) -> Self {
        let mut under_way = BTreeMap::new();
        let mut begin = |(chunk, plan)| {
            Progress::begin(plan, &mut |message: Message| {
                let id = network.start(flow(hosts, message.from, message.to, message.bytes, band, stream));
                under_way.insert(id, (chunk, message));
            })
        };
        let chunks: Vec<Progress> = (0..).zip(plan.chunks(depth)).map(&mut begin).collect();
        let adding = adding.map(|rate| Adding {
            rate,
            free_at: vec![Time::ZERO; hosts.len()],
            waiting: BinaryHeap::new(),
            arrived_count: 0,
        });
        let left_count = chunks.iter().filter(|chunk| !chunk.is_complete()).count();
        Self { hosts: hosts.to_vec(), band, stream, chunks, under_way, adding, left_count }
    }

    /// Takes in that a message has arrived, and starts what it makes possible; `true` if nothing is left to do.
    pub fn on_completion(&mut self, completion: Completion, network: &mut dyn Network) -> bool {
        let (chunk, message) = self.under_way.remove(&completion.flow).expect("the message is under way");
        let over_at = match &mut self.adding {
            Some(adding) if message.action == Action::Reduce => adding.add(network.now(), chunk, message),
            _ => None,
        };
        if over_at.is_none() {
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
        progress.on_arrival(message, &mut |next| {
            let id = network.start(flow(&self.hosts, next.from, next.to, next.bytes, self.band, self.stream));
            self.under_way.insert(id, (chunk, next));
        });
        self.left_count -= usize::from(progress.is_complete());
    }
}

impl Adding {
    /// Queues a message at its receiver; when it will have been added, unless that is now.
    fn add(&mut self, now: Time, chunk: u32, message: Message) -> Option<Time> {
        let free_at = &mut self.free_at[message.to as usize];
        let takes = self.rate.serialize(message.bytes, 1, 1).unwrap_or(Time::MAX);
        let over_at = Time::from_ps((*free_at).max(now).ps().saturating_add(takes.ps()));
        *free_at = over_at;
        if over_at == now {
            return None;
        }
        self.waiting.push(Reverse((over_at, self.arrived_count, chunk, message)));
        self.arrived_count += 1;
        Some(over_at)
    }
}

/// A message from one rank to another.
fn flow(hosts: &[u32], from: u32, to: u32, bytes: Bytes, band: Band, stream: u32) -> Flow {
    Flow {
        src: HostId(hosts[from as usize]),
        dst: HostId(hosts[to as usize]),
        bytes,
        rounds: 1,
        parts: 1,
        hold: Time::ZERO,
        band,
        stream,
        connection: Connection::Stream,
    }
}
