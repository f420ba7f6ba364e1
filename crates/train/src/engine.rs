//! Dispatch over the network engines: creates the engine that a scenario selects, and returns its counters.

use crate::classes::{self, Classes};
use crate::collective::messages::{Collective, MessageSize};
use crate::communicator::AggregationForm;
use crate::error::SpecError;
use crate::exchange_cache::ExchangeCache;
use crate::fabric::{self, Fabric};
use crate::job::{CollectiveJob, EngineMode, Job, Pass};
use crate::planned::asks_costs;
use crate::probe::{Probe, Samples};
use crate::spec::{EngineSpec, JobSpec, QueueSpec, RunSpec, Spec, TimersSpec, TopologySpec};
use gradtide_net::packet::tcp::{Follow, TcpConfig};
use gradtide_net::packet::{Discipline, Marking, QueueConfig};
use gradtide_net::trace::{Counters, PortCounters};
use gradtide_net::{
    Band, Bytes, Completion, Ends, Flow, FlowId, Fluid, ForkNetwork, Graph, Host, HostId, Link, Network, PacketConfig,
    PacketEngine, PortId, ScaleUp, Seed, Time,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A network engine, with the names and nominal rates (bit/s) of its links.
pub enum Engine {
    /// Fluid engine, in which flows share links at max-min fair rates.
    Fluid(Box<Fluid>, Vec<(Arc<str>, u64)>),
    /// Fluid engine that caches the duration of each exchange, for a job that is alone on the network.
    ExchangeCache(Box<ExchangeCache>, Vec<(Arc<str>, u64)>),
    /// Packet engine, with queues and TCP. If the cluster has nodes, the ports of their GPUs are simulated as a
    /// separate fluid network.
    Packet(Box<Watched>, Option<Box<GpuPorts>>, Vec<(Arc<str>, u64)>),
}

/// The GPU ports on the scale-up switches of nodes, a fluid network that is simulated separately from the packet
/// network of the nodes' network cards.
#[derive(Debug)]
pub struct GpuPorts {
    /// First host id that represents a GPU port. Smaller ids represent network cards.
    first: u32,
    fluid: Fluid,
}

/// The packet engine, with a probe if the scenario configures one.
#[derive(Debug)]
pub struct Watched {
    engine: PacketEngine,
    probe: Option<Probe>,
}

/// Counters of one link.
#[derive(Clone, Debug)]
pub struct LinkUsage {
    /// Name of the link: `h3` for the link out of host 3; for all other links the names of both ends, as in
    /// `leaf2-spine1`.
    pub name: Arc<str>,
    /// Nominal rate in bit/s.
    pub rate_bps: u64,
    /// Bytes sent on the link; with headers in the packet engine.
    pub bytes: u64,
    /// Total time for which the link was busy.
    pub busy: Time,
    /// Packets dropped by the link's queue.
    pub drops: u64,
    /// Packets marked CE in the link's queue.
    pub ce_marks: u64,
    /// Largest number of packets in the queue at one time; `None` in the fluid engine.
    pub max_queue_packets: Option<u64>,
}

impl LinkUsage {
    /// Returns whether the sender of the link is a host rather than a switch.
    pub fn is_of_host(&self) -> bool {
        !self.name.contains('-')
    }
}

/// Counters of an engine.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Number of events that the engine processed.
    pub event_count: u64,
    /// Number of packets sent, counted on each link that they pass.
    pub packet_hops: u64,
    /// Number of retransmission timeouts; `None` in the fluid engine.
    pub timeouts: Option<u64>,
    /// Counters of each link.
    pub links: Vec<LinkUsage>,
    /// Samples of the probe, if the scenario configures one.
    pub samples: Option<Samples>,
}

/// Number of events of the packet engine between two checks for cancellation, about 5 ms of wall time.
const PAUSE_EVERY: u64 = 1 << 16;

/// Returns the mode in which the engine of a scenario runs a job. On the packet engine, a job starts with the backward
/// pass and its iterations are measured from there, as in the simulator of Gao (2020), chapter 5.
///
/// # Errors
/// As [`classes::links`].
pub fn mode(spec: &Spec, job: &JobSpec) -> Result<EngineMode, SpecError> {
    let (measured_from, messages, sizes) = match spec.run.engine {
        EngineSpec::Fluid if uses_cache(spec) => (Pass::Forward, AggregationForm::Cached, MessageSize::Even),
        EngineSpec::Fluid => (Pass::Forward, AggregationForm::EachHost { opens: false }, MessageSize::Even),
        EngineSpec::Packet => (Pass::Backward, AggregationForm::EachHost { opens: true }, MessageSize::Whole),
    };
    Ok(EngineMode { measured_from, messages, sizes, links: classes::links(&spec.cluster, &job.hosts)? })
}

/// Returns whether exchange times can be cached, which requires that one job is alone on the network and has at most
/// one exchange in flight.
fn uses_cache(spec: &Spec) -> bool {
    let one_at_a_time = |job: &JobSpec| job.servers.is_none() && !job.is_parallel() && job.schedule.credit == 1;
    spec.traffic.is_empty() && matches!(&spec.jobs[..], [job] if one_at_a_time(job))
}

/// Times one collective on an otherwise idle network. Scenarios of the packet engine also use the times of the fluid
/// engine, which include neither headers nor queues.
pub struct Idle {
    /// The network; `None` if no job has a schedule that needs collective times.
    fluid: Option<Box<Fluid>>,
    ends: Ends,
}

impl Idle {
    /// Creates the network of a scenario if a job has a schedule that needs collective times.
    ///
    /// # Errors
    /// As [`Fluid::new`].
    pub fn new(spec: &Spec, fabric: &Fabric) -> Result<Self, SpecError> {
        if spec.jobs.iter().any(asks_costs) {
            Self::requested(spec, fabric)
        } else {
            Ok(Self { fluid: None, ends: Ends::default() })
        }
    }

    /// Creates the network of a scenario regardless of its schedules.
    ///
    /// # Errors
    /// As [`Fluid::new`].
    pub fn requested(spec: &Spec, fabric: &Fabric) -> Result<Self, SpecError> {
        Ok(Self { fluid: Some(Box::new(fluid(spec, &fabric.graph)?)), ends: fabric.ends.clone() })
    }

    /// Returns the duration of a collective of `bytes`, for the job whose flows use `stream`.
    ///
    /// # Panics
    /// If [`new`](Self::new) created no network, because no job has a schedule that needs collective times.
    pub fn time(&mut self, stream: u32, collective: &Collective, bytes: Bytes) -> Time {
        let fluid = self.fluid.take().expect("somebody asks");
        let mut cache = ExchangeCache::new(*fluid, collective.clone(), stream, self.ends.clone());
        let time = cache.time(bytes);
        self.fluid = Some(Box::new(cache.into_fluid()));
        time
    }
}

impl Engine {
    /// Creates an engine with an idle network.
    ///
    /// # Errors
    /// [`SpecError`] if the engine cannot run the jobs to their ends.
    pub fn new(spec: &Spec, fabric: Fabric, jobs: &[Job]) -> Result<Self, SpecError> {
        let run = &spec.run;
        if run.accuracy_ppm.is_some() && run.engine != EngineSpec::Fluid {
            return Err(SpecError::Accuracy);
        }
        let links = || fabric.link_names.iter().cloned().zip(fabric.nominal_bps.iter().copied()).collect();
        match run.engine {
            EngineSpec::Fluid => {
                if let TopologySpec::Star { .. } = spec.cluster.topology {
                    let cable = fabric::worst_link(&fabric.graph, &BTreeSet::new());
                    let delay = Time::from_ps(cable.delay.ps().saturating_mul(2));
                    let (way, host) = (Link { delay, ..cable }, fabric.ends.host.as_ref());
                    for (stream, job) in (0..).zip(jobs) {
                        if let Job::Collective(job) = job {
                            check_length(run, &way, host, job, stream)?;
                        }
                    }
                }
                let fluid = fluid(spec, &fabric.graph)?;
                match jobs {
                    [Job::Collective(job)]
                        if uses_cache(spec)
                            && let Some(gradients) = job.gradients() =>
                    {
                        let cache = ExchangeCache::new(fluid, gradients.collective.clone(), 0, fabric.ends.clone());
                        Ok(Self::ExchangeCache(Box::new(cache), links()))
                    }
                    _ => Ok(Self::Fluid(Box::new(fluid), links())),
                }
            }
            EngineSpec::Packet => {
                let apart = fabric.apart();
                let graph = apart.as_ref().map_or(&fabric.graph, |(cards, _)| cards);
                let config = packet_config(spec, &fabric, graph)?;
                let mut engine = PacketEngine::new(graph, config)?;
                engine.pause_every(PAUSE_EVERY);
                let named = || (0..).zip(fabric.link_names.iter().cloned()).take(graph.links.len()).collect();
                let probe = run.probe.as_ref().map(|probe| Probe::new(probe, spec, jobs, named()));
                let ports = apart.as_ref().map(|(cards, ports)| {
                    Ok::<_, SpecError>(Box::new(GpuPorts { first: cards.host_count, fluid: fluid(spec, ports)? }))
                });
                Ok(Self::Packet(Box::new(Watched { engine, probe }), ports.transpose()?, links()))
            }
        }
    }

    /// Creates the engine of rank classes with an idle network. `names` contains the names of the classes.
    ///
    /// # Errors
    /// As [`Fluid::new`].
    pub fn of_classes(run: &RunSpec, classes: &Classes, names: &[String]) -> Result<Self, SpecError> {
        let fluid = as_exact_as(run, classes.fluid(Seed(run.seed))?);
        Ok(Self::Fluid(Box::new(fluid), classes.link_names(names)))
    }

    /// Returns the network interface for a job. `ends` adds the delays of hosts to messages.
    pub fn network(&mut self, ends: &Ends) -> Box<dyn Network + '_> {
        match self {
            // The cached exchange times already include the delays of hosts.
            Self::ExchangeCache(cache, _) => Box::new(cache.as_mut()),
            _ => self.forkable(ends),
        }
    }

    /// Returns the network with support for forks, i.e. copies on which a policy simulates the future.
    ///
    /// # Panics
    /// If the engine caches exchange times, because a job that is alone on the network needs no forks.
    pub fn forkable(&mut self, ends: &Ends) -> Box<dyn ForkNetwork + '_> {
        match self {
            Self::ExchangeCache(..) => unreachable!("nobody copies the network of a job that is alone"),
            Self::Fluid(fluid, _) => ends.around(fluid.as_mut()),
            Self::Packet(watched, None, _) => ends.around(watched.as_mut()),
            Self::Packet(watched, Some(ports), _) => {
                ends.around(ScaleUp::new(ports.first, watched.as_mut(), &mut ports.fluid))
            }
        }
    }

    /// Returns the counters of the engine, and the samples of the probe up to now.
    pub fn usage(&mut self) -> Usage {
        match self {
            Self::Fluid(fluid, links) => Usage {
                event_count: fluid.counters().events,
                links: link_usage(links, |port| fluid.port_counters(PortId(port)), false),
                ..Usage::default()
            },
            Self::ExchangeCache(cache, links) => {
                let loads = cache.loads();
                let counters = |port| cache.fluid().counters_of(PortId(port), loads[port as usize]);
                let links = link_usage(links, counters, false);
                Usage { event_count: cache.event_count(), links, ..Usage::default() }
            }
            Self::Packet(watched, ports, links) => {
                let samples = watched.samples();
                let engine = &mut watched.engine;
                let port_links = ports.as_ref().map_or(0, |ports| ports.fluid.link_count() as usize);
                let (of_cards, of_ports) = links.split_at(links.len() - port_links);
                let mut usage = link_usage(of_cards, |port| engine.port_counters(PortId(port)), true);
                let Counters { mut events, packet_hops, timeouts, .. } = engine.counters();
                if let Some(GpuPorts { fluid, .. }) = ports.as_deref() {
                    usage.extend(link_usage(of_ports, |port| fluid.port_counters(PortId(port)), false));
                    events += fluid.counters().events;
                }
                Usage { event_count: events, packet_hops, timeouts: Some(timeouts), links: usage, samples }
            }
        }
    }
}

fn link_usage(
    links: &[(Arc<str>, u64)],
    mut counters: impl FnMut(u32) -> PortCounters,
    has_packets: bool,
) -> Vec<LinkUsage> {
    (0..)
        .zip(links)
        .map(|(port, (name, rate_bps))| {
            let used = counters(port);
            LinkUsage {
                name: name.clone(),
                rate_bps: *rate_bps,
                bytes: used.bytes,
                busy: used.busy,
                drops: used.drops,
                ce_marks: used.marks,
                max_queue_packets: has_packets.then_some(used.queue_packets_max),
            }
        })
        .collect()
}

impl Watched {
    fn look(&mut self) {
        let Some(probe) = self.probe.as_mut() else { return };
        let engine = &mut self.engine;
        let now = engine.now();
        let ports: Vec<_> = probe.links.iter().map(|&(port, _)| engine.port_state(PortId(port))).collect();
        let streams: Vec<_> = (probe.streams())
            .flat_map(|stream| engine.stream_windows(stream).map(move |(src, dst, window)| (stream, src, dst, window)))
            .collect();
        probe.record(now, ports.into_iter(), engine.flow_windows(), streams.into_iter());
    }

    /// Takes a last sample at the end of the run, and returns all samples.
    fn samples(&mut self) -> Option<Samples> {
        let now = self.now();
        let is_due = self.probe.as_ref().is_some_and(|probe| !probe.has_seen(now));
        if is_due {
            self.look();
        }
        self.probe.take().map(Probe::into_samples)
    }
}

impl Network for Watched {
    fn now(&self) -> Time {
        self.engine.now()
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        let id = self.engine.start(flow);
        if let Some(probe) = &mut self.probe {
            probe.on_start(id, &flow);
        }
        id
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        let before = done.len();
        let mut paused = false;
        while let Some(probe) = &self.probe {
            let next_at = probe.next_at();
            // An idle network has nothing to sample, and if `until` is `Time::MAX` the loop would not end.
            if next_at > until || (until == Time::MAX && self.engine.is_idle()) {
                break;
            }
            self.engine.advance(next_at, done);
            paused = self.now() < next_at;
            if !paused {
                self.look();
            }
            if paused || done.len() > before {
                break;
            }
        }
        if !paused && done.len() == before {
            self.engine.advance(until, done);
        }
        if let Some(probe) = &mut self.probe {
            done[before..].iter().for_each(|completion| probe.on_completion(completion.flow));
        }
    }

    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        self.engine.remaining()
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        self.engine.set_band(stream, band);
    }
}

impl ForkNetwork for Watched {
    /// Forks the engine without the probe, because only the actual run is sampled.
    fn fork(&self) -> Box<dyn ForkNetwork> {
        self.engine.fork()
    }
}

fn fluid(spec: &Spec, graph: &Graph) -> Result<Fluid, SpecError> {
    Ok(as_exact_as(&spec.run, Fluid::new(graph, spec.cluster.routing, Seed(spec.run.seed))?))
}

/// Sets the rate accuracy of the run. It applies to the simulation and to the collective times that planning uses.
fn as_exact_as(run: &RunSpec, fluid: Fluid) -> Fluid {
    match run.accuracy_ppm {
        Some(ppm) => fluid.within(ppm),
        None => fluid,
    }
}

/// Returns the hosts that send or receive messages. If the cluster has nodes, returns the network cards of these hosts.
fn used_cards(spec: &Spec, fabric: &Fabric) -> BTreeSet<u32> {
    let jobs = spec.jobs.iter().flat_map(|job| &job.hosts);
    let flows = spec.traffic.iter().flat_map(|traffic| traffic.src.iter().chain(&traffic.dst));
    let card = |place: &u32| fabric.ends.nodes.map_or(*place, |nodes| nodes.card(HostId(*place)).0);
    jobs.chain(flows).map(card).collect()
}

/// Returns the configuration of the packet engine for `graph`. This is the graph of `fabric`, or its first part, which
/// contains the network cards.
///
/// # Errors
/// [`SpecError`] for a configuration that the packet engine does not support.
pub fn packet_config(spec: &Spec, fabric: &Fabric, graph: &Graph) -> Result<PacketConfig, SpecError> {
    let cluster = &spec.cluster;
    // Timers are derived from the slowest link and the longest route that messages may use. On a star all routes have
    // equal length. Idle hosts have no effect on timers, except if the run follows ns-3, whose timers depend on all
    // hosts.
    let used = used_cards(spec, fabric);
    let base = match spec.run.follow {
        Follow::Standards => {
            let link = fabric::worst_link(graph, &used);
            TcpConfig::over(2 * fabric::longest_route(graph, &used), link.rate, link.delay)
        }
        Follow::Ns3 => {
            let link = fabric::worst_link(graph, &BTreeSet::new());
            TcpConfig::basic_sim(graph.host_count, link.rate, link.delay)
        }
    };
    let transport = &cluster.transport;
    let narrow = |value: u32, what| u16::try_from(value).map_err(|_| SpecError::TooLarge(what));
    let base = match transport.timers {
        TimersSpec::Derived => base,
        TimersSpec::Linux => base.with_linux_timers(),
    };
    let base = match transport.min_rto {
        None => base,
        Some(min_rto) => base.with_min_rto(min_rto),
    };
    let stamp_tick = transport.recovery.stamp_tick().or(transport.congestion.stamp_tick());
    let tcp = TcpConfig {
        segment_bytes: narrow(transport.segment_bytes, "segment")?,
        initial_window_segments: narrow(transport.initial_window_segments, "initial window")?,
        window: Bytes(transport.window_bytes),
        algorithm: transport.congestion,
        ecn: transport.ecn,
        follow: spec.run.follow,
        recovery: transport.recovery,
        restart_after_idle: transport.restart_after_idle,
        stamp_tick: stamp_tick.unwrap_or(base.stamp_tick),
        ..base
    };
    check_queue(&cluster.queue)?;
    let QueueSpec { discipline, capacity, mark, pcn } = cluster.queue.clone();
    let queue = QueueConfig { discipline, capacity, marking: mark.unwrap_or_default() };
    Ok(PacketConfig {
        tcp,
        pcn,
        host_queue: queue.clone(),
        switch_queue: queue,
        switch_buffer: cluster.switch_buffer,
        routing: cluster.routing,
        seed: Seed(spec.run.seed),
        link_names: fabric.link_names.clone(),
    })
}

/// Checks that a queue's configuration is valid.
fn check_queue(queue: &QueueSpec) -> Result<(), SpecError> {
    if let Discipline::Drr { weights } = &queue.discipline
        && (!(1..=Band::COUNT).contains(&weights.len()) || weights.contains(&0))
    {
        return Err(SpecError::Queue("one to eight bands have a weight above 0 each"));
    }
    if let Some(Marking::Red { min_packets, max_packets, max_probability_ppm, weight_ppm, .. }) = queue.mark
        && (min_packets >= max_packets || max_probability_ppm > 1_000_000 || weight_ppm > 1_000_000)
    {
        return Err(SpecError::Queue("RED has a least average below its greatest, and shares up to 1"));
    }
    if queue.pcn.is_some() && queue.mark.and_then(|mark| mark.threshold()).is_none() {
        return Err(SpecError::Queue("switches that heed announcements mark by threshold"));
    }
    Ok(())
}

/// Largest number of records of a run: one per transfer or, if workers differ, one per worker and iteration. A record
/// takes 48 bytes during the run and about 170 bytes in the result table, so the limit corresponds to 4.4 GB.
pub const RECORD_LIMIT: u64 = 20_000_000;

/// Returns the duration of a flow on an otherwise idle route (`way`), including the time on its hosts.
fn longest(way: &Link, host: Option<&Host>, flow: &Flow) -> Option<Time> {
    flow.time_alone(way)?.checked_add(host.map_or(Some(Time::ZERO), |host| host.time(flow))?)
}

/// Checks the limits of a run: simulated time stays below half of [`Time::MAX`], so that differences fit in a signed
/// integer; records fit in memory; byte counters of links fit in 64 bits.
fn check_length(
    run: &RunSpec,
    way: &Link,
    host: Option<&Host>,
    job: &CollectiveJob,
    stream: u32,
) -> Result<(), SpecError> {
    let too_long = || SpecError::TooLong { name: job.name.clone() };
    let mut sending: u128 = 0;
    let [communicator] = &job.communicators[..] else { return Ok(()) };
    let Some(gradients) = communicator.gradients() else { return Ok(()) };
    for bucket in 0..gradients.buckets.len() as u32 {
        let chunk_count = gradients.chunk_count(bucket);
        let longest = longest(way, host, &gradients.lock_step_flow(bucket, 0, stream)).ok_or_else(too_long)?;
        sending += (u128::from(longest.ps()) + u128::from(communicator.sync.ps())) * u128::from(chunk_count);
    }
    let compute = u128::from(job.dag.compute_time().ps());
    let (least_ppm, largest_ppm) = job.jitter_range_ppm;
    let slowest = (compute * u128::from(largest_ppm)).div_ceil(1_000_000);
    let iteration = slowest * u128::from(job.overlap_slowdown_ppm).div_ceil(1_000_000) + sending;
    let start = u128::from(job.start.ps());
    let duration = run.duration.map(|duration| u128::from(duration.ps()));
    // Every iteration takes at least the compute time. The warm-up iteration and the last pass are not among the
    // measured iterations.
    let least = compute * u128::from(least_ppm) / 1_000_000;
    let iterations = job
        .iteration_limit
        .map_or(u128::MAX, u128::from)
        .min(duration.map_or(u128::MAX, |duration| duration.div_ceil(least.max(1)) + 1));
    let by_iterations = iterations.saturating_add(2).saturating_mul(iteration).saturating_add(start);
    let by_duration = duration.map_or(u128::MAX, |duration| start.max(duration) + 3 * iteration);
    if by_iterations.min(by_duration) > u128::from(Time::MAX.ps() / 2) {
        return Err(too_long());
    }
    let worker_count = job.factors.as_ref().map_or(1, Vec::len);
    let records = iterations.saturating_mul(gradients.buckets.len().max(worker_count) as u128);
    if records > u128::from(RECORD_LIMIT) {
        let records = u64::try_from(records).unwrap_or(u64::MAX);
        return Err(SpecError::TooManyRecords { name: job.name.clone(), records, limit: RECORD_LIMIT });
    }
    // A rank of a ring sends at most twice the buffer.
    let bytes: u128 = gradients.buckets.iter().map(|bucket| u128::from(bucket.bytes.0)).sum();
    if iterations.saturating_add(2).saturating_mul(2 * bytes) > u128::from(u64::MAX) {
        return Err(SpecError::TooManySent { name: job.name.clone() });
    }
    Ok(())
}
