//! A parameter-server job that is ready to run. It is built from a [`JobSpec`], which is validated in the process.

use super::channels::{self, Channels};
use super::wires::Wires;
use super::{PsError, WorkerGraph, shards};
use crate::jitter::{self, FactorStream, ONE_PPM};
use crate::opdag::OpDag;
use crate::order::needs::{Needs, Recv};
use crate::order::tac::Ties;
use crate::order::{self, OrderMethod};
use crate::spec::{JobSpec, OrderSpec, TaskSpec};
use gradtide_net::path::Paths;
use gradtide_net::seed::Stream;
use gradtide_net::{Band, Bytes, Connection, Flow, HostId, Network, Rate, Seed, Time};

/// A parameter-server job that is ready to run.
pub struct PsJob {
    /// Key of the job in the scenario.
    pub name: String,
    /// Start of the first iteration.
    pub start: Time,
    /// Number of measured iterations; `None` if only the duration limits the run.
    pub iteration_limit: Option<u32>,
    /// Compute jitter of each worker; `None` if all are identical.
    pub factors: Option<Vec<FactorStream>>,
    /// Op graph of a worker's iteration.
    pub graph: WorkerGraph,
    /// Host of each worker.
    pub workers: Vec<u32>,
    /// Host of each server.
    pub servers: Vec<u32>,
    /// Server of each parameter.
    pub server_of: Vec<u32>,
    /// Whether gradients are pushed.
    pub is_training: bool,
    /// Staleness bound: the number of iterations by which a worker may be ahead of the slowest worker. `None` if there
    /// is no bound; 0 makes workers synchronous.
    pub bound: Option<u32>,
    /// Time for which a transfer occupies its channel before its first byte.
    pub hold: Time,
    /// Band of all flows.
    pub band: Band,
    /// Rate at which a server adds gradients; `None` if additions take no time.
    pub adding: Option<Rate>,
    /// Whether connections are opened before the job begins.
    pub opens: bool,
    /// Parameter of each push.
    pub pushes: Vec<u32>,
    /// Pull order of each worker.
    pub pulls: Pulls,
    /// Pull time of each parameter that schedulers assume.
    expected: Vec<Time>,
    /// Lower bounds of transfer times.
    wires: Wires,
}

/// Order in which the workers pull, and the disorder that channels add.
pub struct Pulls {
    order: PullOrder,
    orders: Vec<Stream>,
    disorder_ppm: u64,
    disorders: Vec<Stream>,
}

/// Source of the pull order of an iteration.
enum PullOrder {
    /// One order for all workers and iterations.
    Fixed(Vec<u32>),
    /// A uniformly random order, drawn anew for each worker and iteration.
    Random,
    /// The order of the model with a share of random swaps, drawn anew for each worker and iteration.
    Arbitrary { disorder_ppm: u64 },
}

impl Pulls {
    /// Draws the pulls of a worker's next iteration. Returns the parameters by rank, and in the order in which they are
    /// sent, which may include random swaps.
    ///
    /// Swaps happen within a channel: a pull trades places with a later pull from the same server.
    pub fn next(&mut self, worker: usize, server_of: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let stream = &mut self.orders[worker];
        let listed = || (0..server_of.len() as u32).collect::<Vec<u32>>();
        let order = match &self.order {
            PullOrder::Fixed(order) => order.clone(),
            PullOrder::Random => {
                let mut order = listed();
                stream.shuffle(&mut order);
                order
            }
            &PullOrder::Arbitrary { disorder_ppm } => disordered(listed(), server_of, disorder_ppm, stream),
        };
        let handed = disordered(order.clone(), server_of, self.disorder_ppm, &mut self.disorders[worker]);
        (order, handed)
    }
}

/// Returns `order` with random swaps among the pulls of each server.
fn disordered(mut order: Vec<u32>, server_of: &[u32], disorder_ppm: u64, stream: &mut Stream) -> Vec<u32> {
    if disorder_ppm == 0 {
        return order;
    }
    for server in 0..server_of.iter().max().map_or(0, |&last| last + 1) {
        let places: Vec<usize> = (0..order.len()).filter(|&place| server_of[order[place] as usize] == server).collect();
        let mut own: Vec<u32> = places.iter().map(|&place| order[place]).collect();
        stream.disorder(&mut own, disorder_ppm);
        places.into_iter().zip(own).for_each(|(place, parameter)| order[place] = parameter);
    }
    order
}

impl PsJob {
    /// Plans a job on a network that has the given paths.
    ///
    /// # Errors
    /// See [`PsError`].
    pub fn new(spec: &JobSpec, seed: Seed, paths: &Paths, opens: bool) -> Result<Self, PsError> {
        let servers = spec.servers.as_ref().ok_or(PsError::NoMeaning("there are servers"))?;
        check(spec, opens)?;
        let host_count = spec.hosts.len();
        if servers.count == 0 || servers.count as usize >= host_count {
            return Err(PsError::Count { servers: servers.count, hosts: host_count });
        }
        let ranks = servers.placement.ranks(servers.count, host_count as u32);
        let graph = match &servers.graph {
            Some(graph) => WorkerGraph::new(graph, servers.task)?,
            None => WorkerGraph::chain(&spec.layers, servers.task)?,
        };
        if graph.compute_time() == Time::ZERO {
            return Err(PsError::NoTime);
        }
        let (workers, ranks): (Vec<u32>, Vec<u32>) =
            (0..host_count as u32).partition(|rank| ranks.binary_search(rank).is_err());
        jitter::check(&spec.compute, workers.len()).map_err(PsError::NoMeaning)?;
        let hosts_of = |ranks: Vec<u32>| -> Vec<u32> { ranks.iter().map(|&rank| spec.hosts[rank as usize]).collect() };
        let (workers, server_hosts) = (hosts_of(workers), hosts_of(ranks));
        let sizes: Vec<Bytes> = graph.parameters.iter().map(|parameter| parameter.bytes).collect();
        let server_of = shards(&sizes, servers.count, servers.shards);

        let total: u128 = sizes.iter().map(|size| u128::from(size.0)).sum();
        if total > u128::from(u64::MAX) {
            return Err(PsError::TooManyBytes);
        }
        let wires = Wires::new(&graph, &workers, &server_hosts, &server_of, paths);
        // TicTac's time oracle (section 5) measures pulls while all workers pull. The expected time of a pull is
        // therefore its share, by bytes, of the time in which all workers pull everything.
        let pulls = u128::from(wires.pulls().ps());
        let expected = |size: &Bytes| match total {
            0 => Time::ZERO,
            _ => Time::from_ps((u128::from(size.0) * pulls).div_ceil(total) as u64),
        };
        let expected: Vec<Time> = sizes.iter().map(expected).collect();
        let channels = wires.channels(&workers, &server_hosts, &server_of, &sizes, paths);
        let order = pull_order(spec, &graph, &expected, &channels, seed)?;
        let streams = |what: &str| {
            (0..workers.len()).map(|worker| seed.stream(&format!("{what}/{}/{worker}", spec.name))).collect()
        };
        Ok(Self {
            name: spec.name.clone(),
            start: spec.start,
            iteration_limit: spec.iterations,
            factors: FactorStream::of_workers(&spec.compute, workers.len() as u32, &spec.name, seed),
            pulls: Pulls {
                order,
                orders: streams("pulls"),
                disorder_ppm: servers.disorder_ppm,
                disorders: streams("disorder"),
            },
            is_training: servers.task == TaskSpec::Train,
            hold: spec.schedule.overhead,
            band: Band::new(spec.bands[0]).ok_or(PsError::Band(spec.bands[0]))?,
            adding: spec.collective.reduction_rate,
            opens,
            pushes: graph.pushes(),
            wires,
            bound: servers.sync.bound(),
            workers,
            servers: server_hosts,
            server_of,
            expected,
            graph,
        })
    }

    /// Returns the pull times that schedulers expect, by layer, or by parameter if the graph has no layers. The time of
    /// a layer without a parameter is 0.
    pub fn expected_times(&self) -> Vec<Time> {
        let most = self.graph.parameters.iter().map(|parameter| parameter.layer as usize + 1).max().unwrap_or(0);
        let mut times = vec![Time::ZERO; most];
        for (parameter, &time) in self.graph.parameters.iter().zip(&self.expected) {
            times[parameter.layer as usize] = time;
        }
        times
    }

    /// Returns a lower bound of the iteration time over all pull orders, in ps. `factors` is the factor of each
    /// worker's op times relative to the model. The bound is the larger of two times: the transfer time on the busiest
    /// link of a worker or a server, and the duration of a worker's iteration on an idle network. Delays in switches
    /// are ignored. Synchronous workers are limited by the slowest one. If the n workers are asynchronous, one
    /// iteration of the job consists of any n iterations of the workers.
    pub fn lower_bound_ps(&self, factors: &[f64]) -> f64 {
        let own = |(worker, &factor): (usize, &f64)| {
            self.isolated_ps(worker, factor).max(self.wires.of_worker(worker).ps() as f64)
        };
        let own = factors.iter().enumerate().map(own);
        let workers = match self.is_synchronous() {
            true => own.fold(0.0, f64::max),
            false => factors.len() as f64 / own.map(|time| 1.0 / time).sum::<f64>(),
        };
        workers.max(self.wires.together(self.is_synchronous()).ps() as f64)
    }

    /// Returns a lower bound of one worker's iteration on an idle network, in ps. It is the larger of the critical path
    /// and the total compute time.
    fn isolated_ps(&self, worker: usize, factor: f64) -> f64 {
        let graph = &self.graph;
        let compute = graph.compute_time().ps() as f64 * factor;
        let transfer = |parameter: u32| {
            let (server, bytes) = (self.server_of[parameter as usize], graph.parameters[parameter as usize].bytes);
            (self.wires.alone(worker, server, bytes) + self.hold).ps() as f64
        };
        let count = graph.parameters.len();
        let mut starts = vec![0.0_f64; graph.ops.len()];
        for parameter in 0..count as u32 {
            for &op in graph.readers.from(parameter) {
                starts[op as usize] = starts[op as usize].max(transfer(parameter));
            }
        }
        let mut path = 0.0_f64;
        for (op, it) in graph.ops.iter().enumerate() {
            let end = starts[op] + it.cost.ps() as f64 * factor;
            let pushed = it.updates.iter().map(|&parameter| {
                let adding = self.adding_time(parameter).ps() + graph.parameters[parameter as usize].update.ps();
                transfer(parameter) + adding as f64
            });
            path = path.max(end + pushed.fold(0.0, f64::max));
            for &reader in graph.readers.from((count + op) as u32) {
                starts[reader as usize] = starts[reader as usize].max(end);
            }
        }
        path.max(compute)
    }

    /// Returns whether workers are synchronous: each parameter has one update per iteration, with the sum of all
    /// workers' gradients.
    pub fn is_synchronous(&self) -> bool {
        self.bound == Some(0)
    }

    /// Returns the time in which a server adds one gradient of a parameter to the sum.
    pub fn adding_time(&self, parameter: u32) -> Time {
        let bits = u128::from(self.graph.parameters[parameter as usize].bytes.0) * 8 * 1_000_000_000_000;
        self.adding.map_or(Time::ZERO, |rate| {
            Time::from_ps(u64::try_from(bits.div_ceil(u128::from(rate.bps()))).unwrap_or(u64::MAX))
        })
    }

    /// Returns the bytes that the busiest sender sends in an iteration. The sender is a server, which sends to all
    /// workers, or a worker, which sends to all servers.
    pub fn sent_by_busiest(&self) -> u128 {
        let mut loads = vec![0_u128; self.servers.len()];
        let mut pushed = 0;
        for (parameter, &server) in self.graph.parameters.iter().zip(&self.server_of) {
            loads[server as usize] += u128::from(parameter.bytes.0) * self.workers.len() as u128;
            pushed += if parameter.is_trained { u128::from(parameter.bytes.0) } else { 0 };
        }
        loads.into_iter().max().unwrap_or(0).max(pushed)
    }

    /// Returns the number of transfers in a worker's iteration, in which the pulls come before the pushes.
    pub fn transfer_count(&self) -> usize {
        self.graph.parameters.len() + self.pushes.len()
    }

    /// Returns the parameter of a transfer in a worker's iteration, and whether the transfer is a push.
    pub fn carried(&self, transfer: u32) -> (u32, bool) {
        match (transfer as usize).checked_sub(self.graph.parameters.len()) {
            None => (transfer, false),
            Some(push) => (self.pushes[push], true),
        }
    }

    /// Returns a flow from a server to a worker, or from the worker to the server if `is_push`.
    pub fn flow(&self, worker: usize, server: usize, is_push: bool, bytes: Bytes, stream: u32) -> Flow {
        let (worker, server) = (HostId(self.workers[worker]), HostId(self.servers[server]));
        let (src, dst) = if is_push { (worker, server) } else { (server, worker) };
        let flow = Flow::alone(src, dst, bytes);
        Flow { hold: self.hold, band: self.band, stream, connection: Connection::Stream, ..flow }
    }

    /// Opens a connection from each server to each worker and, if gradients are pushed, in the other direction. Returns
    /// the number of connections.
    pub fn open(&self, stream: u32, network: &mut dyn Network) -> usize {
        let mut count = 0;
        for (worker, server) in
            (0..self.workers.len()).flat_map(|worker| (0..self.servers.len()).map(move |it| (worker, it)))
        {
            for is_push in [false, true] {
                if self.opens && (self.is_training || !is_push) {
                    network.start(self.flow(worker, server, is_push, Bytes(0), stream));
                    count += 1;
                }
            }
        }
        count
    }
}

fn pull_order(
    spec: &JobSpec,
    graph: &WorkerGraph,
    times: &[Time],
    channels: &Channels<'_>,
    seed: Seed,
) -> Result<PullOrder, PsError> {
    let scheduler = match &spec.schedule.order {
        OrderSpec::Random => return Ok(PullOrder::Random),
        &OrderSpec::Arbitrary { disorder_ppm } => return Ok(PullOrder::Arbitrary { disorder_ppm }),
        OrderSpec::Fifo => return Err(PsError::NoMeaning("all pulls are ready at once: there is no first in")),
        OrderSpec::Priority { queues: Some(_) } => {
            return Err(PsError::NoMeaning("every parameter has a queue of its own"));
        }
        OrderSpec::Priority { queues: None } => {
            return Ok(PullOrder::Fixed((0..graph.parameters.len() as u32).collect()));
        }
        OrderSpec::File { ranks, in_turn: _ } => {
            // The file has one rank per layer, or per parameter if the graph has no layers.
            let most = graph.parameters.iter().map(|parameter| parameter.layer as usize + 1).max().unwrap_or(0);
            if ranks.len() < most {
                return Err(PsError::Ranks { ranks: ranks.len(), parameters: most });
            }
            let mut order: Vec<u32> = (0..graph.parameters.len() as u32).collect();
            order.sort_by_key(|&parameter| ranks[graph.parameters[parameter as usize].layer as usize]);
            return Ok(PullOrder::Fixed(order));
        }
        OrderSpec::Caramel | OrderSpec::Edf | OrderSpec::Planned { .. } => {
            return Err(PsError::NoMeaning("it is an order of all-reduce"));
        }
        OrderSpec::Tic => OrderMethod::Tic,
        OrderSpec::Tac => OrderMethod::Tac,
        OrderSpec::TacFolded => OrderMethod::TacFolded,
        OrderSpec::Optimal => OrderMethod::Optimal,
    };
    let dag: OpDag = graph.timed(times);
    let needs = Needs::new(&dag)?;
    let parameter_of = |recv: Recv| graph.parameter_of(needs.recv_ops[recv as usize]);
    let mut wanted = order::OrderRequest { dag, scheduler, ties: Ties::Id, seed: seed.0 };
    let mut sequence = order::sequence(&needs, &wanted)?.order;
    if matches!(spec.schedule.order, OrderSpec::Optimal) && channels.shares_bps.len() > 1 {
        // The optimal order for one channel need not be optimal for several.
        let mut orders = vec![sequence];
        for scheduler in [OrderMethod::Layer, OrderMethod::Tic, OrderMethod::Tac, OrderMethod::TacFolded] {
            wanted.scheduler = scheduler;
            orders.push(order::sequence(&needs, &wanted)?.order);
        }
        sequence = channels::best(&needs, channels, &parameter_of, orders);
    }
    Ok(PullOrder::Fixed(sequence.into_iter().map(parameter_of).collect()))
}

fn check(spec: &JobSpec, opens: bool) -> Result<(), PsError> {
    let refused = [
        (opens && spec.schedule.overhead > Time::ZERO, "a TCP connection is not held before a transfer"),
        (spec.compute.overlap_slowdown_ppm != ONE_PPM, "compute is not slowed by transfers"),
        (spec.schedule.sync > Time::ZERO, "no transfer waits for others to complete"),
        (spec.schedule.credit != 1, "a connection carries one transfer at a time"),
        (spec.schedule.chunk.is_some(), "parameters are sent whole"),
        (spec.collective.depth != Some(1), "parameters are sent whole"),
        (spec.collective.drops_remainder(), "parameters are sent whole"),
        (spec.bands.len() != 1, "all transfers travel in one band"),
    ];
    match refused.into_iter().find(|&(is_wrong, _)| is_wrong) {
        Some((_, why)) => Err(PsError::NoMeaning(why)),
        None if spec.servers.as_ref().is_some_and(|servers| servers.disorder_ppm > ONE_PPM) => Err(PsError::Share),
        None => Ok(()),
    }
}
