//! The co-tenancy study of Gao (2020), chapter 5, as a plain loop over [`Network`]: replayed background flows and one
//! ring all-reduce job. Tests, examples and benchmarks share it. The crate `train` contains the real driver of jobs.
#![allow(dead_code, missing_docs, clippy::print_stdout)]

use gradtide_net::packet::Capacity;
use gradtide_net::{
    Band, Bytes, Completion, Connection, Flow, FlowId, HostId, Link, Network, PacketConfig, PacketEngine, Rate, Star,
    Time,
};
use std::collections::BTreeMap;

pub const NS: u64 = 1_000;
pub const MS: u64 = 1_000_000_000;

/// Returns a star whose links have 10 Gbit/s and a delay of 10 us.
pub fn star(host_count: u32) -> Star {
    let rate = Rate::from_bps(10_000_000_000).unwrap();
    Star { host_count, link: Link { rate, delay: Time::from_ps(10_000 * NS) } }
}

pub fn engine(host_count: u32) -> PacketEngine {
    engine_with(host_count, 1000)
}

/// Returns an engine in which every port has a queue of `packets` packets.
pub fn engine_with(host_count: u32, packets: u32) -> PacketEngine {
    PacketEngine::new(&star(host_count).graph(), config(host_count, packets)).unwrap()
}

fn config(host_count: u32, packets: u32) -> PacketConfig {
    let mut config = PacketConfig::basic_sim(&star(host_count));
    config.host_queue.capacity = Capacity::Packets(packets);
    config.switch_queue.capacity = Capacity::Packets(packets);
    config
}

/// A background flow from a list.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub start_ns: u64,
    pub src: u32,
    pub dst: u32,
    pub bytes: u64,
    pub tos: u32,
}

/// A row of a list of flow completion times.
#[derive(Clone, Copy, Debug)]
pub struct Fct {
    pub bytes: u64,
    pub start_ns: u64,
    pub close_ns: u64,
    pub received_ns: u64,
    pub connected_ns: u64,
}

pub fn numbers(line: &str) -> Vec<u64> {
    line.split(',').map(|cell| cell.trim().parse().unwrap_or(0)).collect()
}

/// Reads rows of `start_ns,src,dst,bytes[,tos|,band]` after a header. The default is ToS 16 in band 0.
pub fn arrivals(text: &str) -> Vec<Arrival> {
    let header = text.lines().next().unwrap_or_default();
    let tos = |value: u64| if header.ends_with("band") { [16, 0, 8][value as usize] } else { value as u32 };
    let rows = text.lines().skip(1).filter(|line| !line.trim().is_empty()).map(numbers);
    rows.map(|row| Arrival {
        start_ns: row[0],
        src: row[1] as u32,
        dst: row[2] as u32,
        bytes: row[3],
        tos: row.get(4).map_or(16, |&value| tos(value)),
    })
    .collect()
}

/// Reads rows of `flow_id,start_ns,src,dst,bytes,tos,fct_close_ns,fct_rx_ns,conn_ns,status` after a header. Flows that
/// did not finish are None.
pub fn oracle(text: &str) -> Vec<Option<Fct>> {
    let rows = text.lines().skip(1).filter(|line| !line.trim().is_empty());
    rows.map(|line| {
        let row = numbers(line);
        line.trim_end().ends_with("YES").then(|| Fct {
            bytes: row[4],
            start_ns: row[1],
            close_ns: row[6],
            received_ns: row[7],
            connected_ns: row[8],
        })
    })
    .collect()
}

/// Returns the band of a ToS value by Linux's priomap.
pub fn band(tos: u32) -> Band {
    let index = match tos {
        0x10 => 0,
        0x08 => 2,
        _ => 1,
    };
    Band::new(index).unwrap()
}

pub const BACKGROUND: u32 = u32::MAX;

pub fn background(arrival: &Arrival) -> Flow {
    let alone = Flow::alone(HostId(arrival.src), HostId(arrival.dst), Bytes(arrival.bytes));
    Flow { band: band(arrival.tos), stream: BACKGROUND, ..alone }
}

pub fn fct(arrival: &Arrival, completion: &Completion, now: Time) -> Fct {
    let since = |time: Time| time.ps() / NS - arrival.start_ns;
    Fct {
        bytes: arrival.bytes,
        start_ns: arrival.start_ns,
        close_ns: since(now),
        received_ns: since(completion.received),
        connected_ns: since(completion.began),
    }
}

/// Runs a list of flows to the end. Flows are started one by one, each when it is due, in the order of their starts.
pub fn replay_one_by_one(engine: &mut PacketEngine, list: &[Arrival]) -> Vec<Option<Fct>> {
    let mut results = vec![None; list.len()];
    let mut done = Vec::new();
    let mut started_count = 0;
    loop {
        let due_ns = list.get(started_count).map_or(u64::MAX / NS, |arrival| arrival.start_ns);
        engine.advance(Time::from_ps(due_ns * NS), &mut done);
        if done.is_empty() && started_count == list.len() {
            return results;
        }
        for completion in done.drain(..) {
            let index = completion.flow.0 as usize;
            results[index] = Some(fct(&list[index], &completion, engine.now()));
        }
        while started_count < list.len() && engine.now().ps() == list[started_count].start_ns * NS {
            engine.start(background(&list[started_count]));
            started_count += 1;
        }
    }
}

/// Runs a list of flows to the end. All flows are scheduled in advance.
pub fn replay(engine: &mut PacketEngine, list: &[Arrival]) -> Vec<Option<Fct>> {
    for arrival in list {
        engine.schedule(Time::from_ps(arrival.start_ns * NS), background(arrival));
    }
    let mut results = vec![None; list.len()];
    let mut done = Vec::new();
    loop {
        engine.advance(Time::from_ps(100_000 * MS), &mut done);
        if done.is_empty() {
            return results;
        }
        for completion in done.drain(..) {
            let index = completion.flow.0 as usize;
            results[index] = Some(fct(&list[index], &completion, engine.now()));
        }
    }
}

/// The training job of Gao (2020), chapter 5: its compute time, and its gradient buckets in the order of the backward
/// pass.
#[derive(Clone, Debug)]
pub struct Job {
    pub worker_count: u32,
    pub forward_ns: Vec<u64>,
    pub backward_ns: Vec<u64>,
    /// Lowest layer and bytes of each bucket, in the order in which they become ready.
    pub buckets: Vec<(usize, u64)>,
    pub band: Band,
}

impl Job {
    pub fn thesis(iteration_ms: u64, tos: u32) -> Self {
        let layer_count = 50_usize;
        let (total, cap) = (100_000_000_u64, 5_333_329_u64);
        let span = (layer_count * (layer_count - 1)) as f64;
        let forward = iteration_ms as f64 * 1e6 / 3.0;
        let backward = 2.0 * forward;
        let (d, e) = (2.0 * forward / span, 2.0 * backward / span);
        // The author's program stores times in milliseconds as C `float`, and simulates them in whole nanoseconds.
        let to_float = |exact_ns: f64| (f64::from((exact_ns / 1e6) as f32) * 1e6) as u64;
        let forward_ns = (0..layer_count).map(|layer| {
            let exact = if layer == layer_count - 1 { d } else { 2.0 * forward / 50.0 - layer as f64 * d };
            to_float(exact)
        });
        let backward_ns = (0..layer_count).map(|layer| to_float(if layer == 0 { e } else { layer as f64 * e }));
        let unit = 2 * total / (9 * layer_count as u64);
        let bytes = |layer: usize| match layer * 4 / layer_count {
            _ if 2 * layer < layer_count => unit,
            _ if 4 * layer <= 3 * layer_count => 4 * unit,
            _ => 12 * unit,
        };
        let mut buckets: Vec<(usize, u64)> = Vec::new();
        let mut open = 0;
        for layer in (0..layer_count).rev() {
            let size = bytes(layer);
            match buckets.last_mut() {
                Some(last) if open > 0 && open + size <= cap => {
                    last.0 = layer;
                    last.1 += size;
                    open += size;
                }
                _ => {
                    buckets.push((layer, size));
                    open = if size > cap { 0 } else { size };
                }
            }
        }
        let mut job = Self {
            worker_count: 8,
            forward_ns: forward_ns.collect(),
            backward_ns: backward_ns.collect(),
            buckets,
            band: band(tos),
        };
        job.buckets.shrink_to_fit();
        job
    }
}

/// One all-reduce: its priority, the bytes of a partition, its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllReduce {
    pub layer: usize,
    pub partition_bytes: u64,
    pub start_ns: u64,
    pub end_ns: u64,
}

/// The result of a study run.
#[derive(Debug, Default)]
pub struct Outcome {
    pub fcts: Vec<Option<Fct>>,
    pub iterations_ns: Vec<u64>,
    pub all_reduces: Vec<AllReduce>,
}

/// State of the job's communication on all hosts: the all-reduce in flight, and the buckets that are ready.
struct Ring<'a> {
    job: &'a Job,
    /// Bucket whose all-reduce is in flight, and its start in ns. `received` counts each worker's partitions.
    current: Option<(usize, u64)>,
    received: Vec<u32>,
    ready: Vec<bool>,
    all_reduces: Vec<AllReduce>,
    flows: BTreeMap<FlowId, u32>,
}

impl Ring<'_> {
    fn send(&mut self, engine: &mut PacketEngine, worker: u32, bytes: u64) {
        let next = (worker + 1) % self.job.worker_count;
        let alone = Flow::alone(HostId(worker), HostId(next), Bytes(bytes));
        let id = engine.start(Flow { band: self.job.band, connection: Connection::Stream, ..alone });
        self.flows.insert(id, next);
    }

    fn partition(&self, bucket: usize) -> u64 {
        self.job.buckets[bucket].1 / u64::from(self.job.worker_count)
    }

    /// Starts the most urgent ready bucket on all workers, unless a bucket is in flight.
    fn launch(&mut self, engine: &mut PacketEngine) {
        if self.current.is_some() {
            return;
        }
        let urgent = (0..self.ready.len()).filter(|&bucket| self.ready[bucket]);
        let Some(bucket) = urgent.min_by_key(|&bucket| self.job.buckets[bucket].0) else { return };
        self.ready[bucket] = false;
        self.current = Some((bucket, engine.now().ps() / NS));
        self.received = vec![0; self.job.worker_count as usize];
        for worker in 0..self.job.worker_count {
            self.send(engine, worker, self.partition(bucket));
        }
    }

    /// Processes a partition that a worker has received. Returns the bucket if this was the last partition of the last
    /// worker.
    fn on_partition(&mut self, engine: &mut PacketEngine, id: FlowId) -> Option<usize> {
        let worker = self.flows.remove(&id)?;
        let (bucket, start_ns) = self.current?;
        let steps = 2 * (self.job.worker_count - 1);
        self.received[worker as usize] += 1;
        if self.received[worker as usize] < steps {
            self.send(engine, worker, self.partition(bucket));
            return None;
        }
        if self.received.iter().any(|&count| count < steps) {
            return None;
        }
        self.current = None;
        self.all_reduces.push(AllReduce {
            layer: self.job.buckets[bucket].0,
            partition_bytes: self.partition(bucket),
            start_ns,
            end_ns: engine.now().ps() / NS,
        });
        Some(bucket)
    }
}

/// Opens the connections of the ring. The job begins when all of them are established.
fn connect(engine: &mut PacketEngine, ring: &mut Ring) {
    for worker in 0..ring.job.worker_count {
        ring.send(engine, worker, 0);
    }
    let mut done = Vec::new();
    let mut open_count = 0;
    while open_count < ring.job.worker_count {
        engine.advance(Time::MAX, &mut done);
        open_count += done.drain(..).filter(|completion| ring.flows.remove(&completion.flow).is_some()).count() as u32;
    }
}

fn ring(job: &Job) -> Ring<'_> {
    Ring {
        job,
        current: None,
        received: Vec::new(),
        ready: vec![false; job.buckets.len()],
        all_reduces: Vec::new(),
        flows: BTreeMap::new(),
    }
}

/// Runs the all-reduces of all buckets without background flows. All buckets are ready from the start.
pub fn all_reduce_everything(engine: &mut PacketEngine, job: &Job) -> Vec<AllReduce> {
    let mut ring = ring(job);
    connect(engine, &mut ring);
    // The first bucket of the backward pass goes first, as in ns-3. The others become ready before it ends.
    ring.ready[0] = true;
    ring.launch(engine);
    ring.ready[1..].fill(true);
    let mut done = Vec::new();
    loop {
        engine.advance(Time::from_ps(100_000 * MS), &mut done);
        if done.is_empty() {
            return ring.all_reduces;
        }
        for completion in done.drain(..) {
            ring.on_partition(engine, completion.flow);
        }
        ring.launch(engine);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compute {
    Backward(usize),
    Forward(usize),
}

/// Runs the study: background flows of `list` next to `job`, for `end_ns`.
pub fn study(engine: &mut PacketEngine, list: &[Arrival], job: &Job, end_ns: u64) -> Outcome {
    let layer_count = job.forward_ns.len();
    let mut outcome = Outcome { fcts: vec![None; list.len()], ..Outcome::default() };
    let mut index_of = BTreeMap::new();
    for (index, arrival) in list.iter().enumerate() {
        index_of.insert(engine.schedule(Time::from_ps(arrival.start_ns * NS), background(arrival)), index);
    }
    let mut ring = ring(job);
    connect(engine, &mut ring);
    let bucket_of = |layer: usize| {
        job.buckets
            .iter()
            .rposition(|&(lowest, _)| lowest <= layer)
            .map(|_| job.buckets.iter().position(|&(lowest, _)| lowest <= layer).unwrap())
            .unwrap()
    };
    // Whether the all-reduce of each bucket of the last backward pass is complete.
    let mut summed = vec![true; job.buckets.len()];
    let mut began_ns = engine.now().ps() / NS;
    let mut compute = Compute::Backward(layer_count - 1);
    let mut compute_until = Some(began_ns + job.backward_ns[layer_count - 1]);
    let mut done = Vec::new();
    loop {
        let stop_ns = compute_until.unwrap_or(u64::MAX).min(end_ns);
        engine.advance(Time::from_ps(stop_ns * NS), &mut done);
        let now_ns = engine.now().ps() / NS;
        for completion in done.drain(..) {
            if let Some(&index) = index_of.get(&completion.flow) {
                outcome.fcts[index] = Some(fct(&list[index], &completion, engine.now()));
            } else if let Some(bucket) = ring.on_partition(engine, completion.flow) {
                summed[bucket] = true;
            }
        }
        if now_ns >= end_ns {
            outcome.all_reduces = ring.all_reduces;
            return outcome;
        }
        if compute_until == Some(now_ns) {
            compute_until = None;
            compute = match compute {
                Compute::Backward(layer) => {
                    if let Some(bucket) = job.buckets.iter().position(|&(lowest, _)| lowest == layer) {
                        ring.ready[bucket] = true;
                        summed[bucket] = false;
                    }
                    if layer > 0 { Compute::Backward(layer - 1) } else { Compute::Forward(0) }
                }
                Compute::Forward(layer) if layer + 1 < layer_count => Compute::Forward(layer + 1),
                Compute::Forward(_) => {
                    outcome.iterations_ns.push(now_ns - began_ns);
                    began_ns = now_ns;
                    Compute::Backward(layer_count - 1)
                }
            };
        }
        ring.launch(engine);
        if compute_until.is_none() {
            compute_until = match compute {
                Compute::Backward(layer) => Some(now_ns + job.backward_ns[layer]),
                Compute::Forward(layer) if summed[bucket_of(layer)] => Some(now_ns + job.forward_ns[layer]),
                Compute::Forward(_) => None,
            };
        }
    }
}
