//! Runs: a mutated scenario is rejected, or runs to its end on each engine. Then bytes are conserved, time does not go
//! back, and the parts of an iteration add up to its duration.

use gradtide_net::packet::tcp::CongestionAlgorithm;
use gradtide_net::{Bytes, Link, Time};
use gradtide_table::{Column, Table};
use gradtide_train::result::RunResult;
use gradtide_train::spec::{
    CableSpec, EngineSpec, GraphOpSpec, GraphSpec, JobSpec, LayerSpec, ProbeSpec, Spec, TopologySpec,
};
use gradtide_train::{RunError, messages, planned, routed, step_graph, transfer_times};
use gradtide_watch::watched;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Limit on the bytes of a model.
const MOST_BYTES: u128 = 1_000_000_000_000_000;

/// Limit on the messages and packets of a run, so that it takes milliseconds.
const MOST_WORK: u128 = 20_000;

/// Limit on the hosts of a network, the ranks of a job, and the switches.
const MOST_HOSTS: u128 = 64;

/// Time limit of a run. A run within [`MOST_WORK`] that takes longer does not end, or takes time out of proportion to
/// its size.
const PATIENCE: Duration = Duration::from_secs(25);

/// Runs a resolved scenario, and checks its results.
pub fn run(data: &[u8]) {
    let Ok(spec) = serde_json::from_slice::<Spec>(data) else { return };
    if !keeps_its_word(&spec) || !is_small(&spec) {
        return;
    }
    for engine in [EngineSpec::Fluid, EngineSpec::Packet] {
        let mut spec = spec.clone();
        spec.run.engine = engine;
        let begin = Instant::now();
        let in_time = watched(move || begin.elapsed() < PATIENCE, || check(&spec));
        assert!(in_time.is_some(), "a run of little work on the {engine:?} engine takes more than {PATIENCE:?}");
    }
}

fn check(spec: &Spec) {
    let _ = (step_graph(spec), routed::routed(spec));
    for index in 0..spec.jobs.len() {
        let _ = (planned(spec, index), transfer_times(spec, index), messages(spec, index, Bytes(1001)));
    }
    let first = gradtide_train::run(spec, &mut |_| true);
    let again = gradtide_train::run(&looked_at(spec), &mut |_| true);
    assert_eq!(told(&first), told(&again), "equal scenarios have equal results, whether somebody looks or not");
    if let Ok(result) = first {
        check_times(spec, &result);
        check_bytes(spec, &result);
    }
}

/// Returns the scenario with a probe, if it can have one.
fn looked_at(spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    if spec.run.engine == EngineSpec::Packet && spec.run.probe.is_none() {
        spec.run.probe =
            Some(ProbeSpec { every: Time::from_ps(1_000_000_000_000), links: Some(Vec::new()), cwnd: Vec::new() });
    }
    spec
}

/// Returns all results but the samples of the probe.
fn told(outcome: &Result<RunResult, RunError>) -> Result<String, &RunError> {
    outcome.as_ref().map(|result| {
        let RunResult { iterations, workers, transfers, operations, links, flows, queues: _, cwnd: _, summary } =
            result;
        let tables = [iterations, workers, transfers, operations, links, flows];
        let figures = (summary.event_count, summary.packet_hops, summary.drops, summary.end_ps, &summary.jobs);
        format!("{tables:?} {figures:?}")
    })
}

/// Returns whether Python could pass the scenario: the constraints of `spec` hold, and no run can exceed the simulated
/// clock (`check_limits` of `gradtide.scenario.resolve.run`).
fn keeps_its_word(spec: &Spec) -> bool {
    let Spec { cluster, traffic, jobs, run } = spec;
    let host = cluster.host.iter();
    let stages = host.clone().flat_map(|host| [host.stages.copy, host.stages.serialise, host.stages.receive]);
    let mut links = vec![cluster.link.nominal()];
    links.extend(cluster.node.map(|node| node.scale_up.nominal()));
    match &cluster.topology {
        TopologySpec::LeafSpine { fabric_link, .. } => links.push(*fabric_link),
        TopologySpec::Custom { cables, .. } => {
            links.extend(cables.iter().map(|&CableSpec { rate, delay, .. }| Link { rate, delay }))
        }
        _ => {}
    }
    let rates = links.iter().map(|link| link.rate).chain(stages.flatten());
    let rates = rates.chain(jobs.iter().filter_map(|job| job.collective.reduction_rate));
    let times = links.iter().map(|link| link.delay).chain(host.map(|host| host.message));
    let efficiencies = [Some(cluster.link), cluster.node.map(|node| node.scale_up)];
    let mut names: Vec<&String> =
        jobs.iter().map(|job| &job.name).chain(traffic.iter().map(|flows| &flows.name)).collect();
    names.sort_unstable();
    rates.into_iter().all(|rate| rate.bps() >= LEAST_BPS)
        && times.chain([cluster.host_latency]).all(|time| time.ps() <= LONGEST_PS)
        && efficiencies.iter().flatten().all(|link| (10_000..=1_000_000).contains(&link.efficiency_ppm))
        && names.windows(2).all(|pair| pair[0] != pair[1])
        && (1..=10_000).contains(&cluster.transport.initial_window_segments)
        && cluster.transport.segment_bytes > 0
        && run.timeline_iterations <= 1000
        && run.probe.as_ref().is_none_or(|probe| probe.every.ps() >= 1_000_000)
        && run.duration.is_none_or(|duration| (1..=LATEST_PS).contains(&duration.ps()))
        && traffic.iter().all(|flows| {
            flows.start.iter().all(|start| start.ps() <= LATEST_PS)
                && flows.setup.ps() <= LONGEST_PS
                && flows.idle.is_none_or(|idle| idle.ps() <= LONGEST_PS)
        })
        && jobs.iter().all(keeps_its_word_as_job)
}

/// Slowest rate, longest single duration and latest start with which a run of [`MOST_WORK`] stays below 2^63 ps.
const LEAST_BPS: u64 = 1_000_000;
const LONGEST_PS: u64 = 1_000_000_000_000;
const LATEST_PS: u64 = 1 << 61;

/// Limit on the parts of a chunk (`depth` of docs/reference/scenario.md).
const MOST_DEPTH: u32 = 1024;

fn keeps_its_word_as_job(job: &JobSpec) -> bool {
    let is_short = |time: u64| time <= LONGEST_PS;
    let is_ratio = |ppm: u64| (1_000_000..=100_000_000).contains(&ppm);
    let hosts: BTreeSet<&u32> = job.hosts.iter().collect();
    let graphs = job.ops.iter().map(|ops| &ops.graph).chain(job.servers.iter().filter_map(|job| job.graph.as_ref()));
    let receives = |graph: &GraphSpec| graph.ops.iter().filter(|op| op.receives_bytes.is_some()).count();
    let layer_times = |layer: &LayerSpec| [layer.forward_ps, layer.backward_ps, layer.update_ps];
    job.schedule.credit > 0
        && job.collective.depth.is_none_or(|depth| (1..=MOST_DEPTH).contains(&depth))
        && !job.layers.is_empty()
        && job.layers.iter().map(|layer| u128::from(layer.parameter_bytes)).sum::<u128>() <= MOST_BYTES
        && hosts.len() == job.hosts.len()
        && job.start.ps() <= LATEST_PS
        && [job.schedule.overhead, job.schedule.sync].map(Time::ps).into_iter().all(is_short)
        && job.layers.iter().flat_map(layer_times).all(is_short)
        && is_ratio(job.compute.overlap_slowdown_ppm)
        && job.compute.noise_ppm <= 1_000_000
        && job.compute.straggler.is_none_or(|slow| is_ratio(slow.factor_ppm) && slow.probability_ppm <= 1_000_000)
        && graphs.clone().all(|graph| receives(graph) == job.layers.len())
        && graphs.flat_map(|graph| &graph.ops).all(|op| is_short(op.time_ps) && op.receives_bytes != Some(0))
}

/// Returns whether the run is short on each engine.
fn is_small(spec: &Spec) -> bool {
    let hosts: u128 = match &spec.cluster.topology {
        TopologySpec::Star { hosts } => (*hosts).into(),
        TopologySpec::LeafSpine { leaves, hosts_per_leaf, spines, .. } => {
            u128::from(*leaves) * u128::from(*hosts_per_leaf) + u128::from(*leaves) * u128::from(*spines)
        }
        TopologySpec::Clos2 { ports, .. } if *ports <= 8 => 32,
        TopologySpec::Clos3 { ports, .. } if *ports <= 4 => 16,
        TopologySpec::Clos2 { .. } | TopologySpec::Clos3 { .. } => u128::MAX,
        TopologySpec::Custom { hosts, switches, cables } => {
            u128::from(*hosts) + (switches.len() + cables.len()) as u128
        }
    };
    let workers = hosts.saturating_mul(spec.cluster.node.map_or(1, |node| node.gpus).into());
    let flows: usize = spec.traffic.iter().map(|traffic| traffic.start.len()).sum();
    let flow_bytes: u128 =
        spec.traffic.iter().flat_map(|traffic| &traffic.bytes).map(|bytes| u128::from(bytes.0)).sum();
    let packets = |bytes: u128| bytes / u128::from(segment_bytes(spec).max(1));
    let work = |job: &JobSpec| {
        let (messages, bytes) = exchanged(job);
        messages.saturating_add(packets(bytes)).saturating_mul(u128::from(job.iterations.unwrap_or(2)) + 2)
    };
    let jobs = spec.jobs.iter().map(work).fold(0, u128::saturating_add);
    hosts <= MOST_HOSTS
        && workers <= MOST_HOSTS
        && spec.jobs.iter().all(|job| job.iterations.is_some() && job.hosts.len() as u128 <= MOST_HOSTS)
        && jobs.saturating_add(flows as u128).saturating_add(packets(flow_bytes)) <= MOST_WORK
}

/// Returns the payload of the smallest packets into which a sender cuts a large message.
fn segment_bytes(spec: &Spec) -> u32 {
    let transport = &spec.cluster.transport;
    match transport.congestion {
        CongestionAlgorithm::Ideal(_) => transport.segment_bytes,
        // A window that is smaller than a segment is sent as one packet.
        _ => transport.segment_bytes.min(u32::try_from(transport.window_bytes).unwrap_or(u32::MAX)),
    }
}

/// Returns upper bounds of the messages and bytes of an iteration.
fn exchanged(job: &JobSpec) -> (u128, u128) {
    if let Some(parallel) = &job.parallel {
        let mesh = parallel.mesh;
        let ranks = [mesh.tp, mesh.cp, mesh.fsdp, mesh.dp, mesh.pp].map(u128::from).iter().product::<u128>();
        let kinds = parallel.kinds.iter();
        let bytes = kinds.map(|kind| {
            let exchanged: u128 = kind.ops.iter().map(|op| u128::from(op.exchanged_bytes)).sum();
            let experts = u128::from(kind.expert_parameter_bytes) + u128::from(kind.expert_gradient_bytes);
            u128::from(kind.parameter_bytes) + u128::from(kind.gradient_bytes) + experts + 4 * exchanged
        });
        let steps = u128::from(parallel.micro_batches) * (parallel.blocks.len() as u128 + 1) * ranks;
        let bytes = bytes.max().unwrap_or(0) + 8 * u128::from(parallel.activation_bytes);
        let depth = u128::from(job.collective.depth.unwrap_or(1));
        return (steps.saturating_mul(8 * ranks * depth), steps.saturating_mul(4 * bytes));
    }
    if let Some(recorded) = &job.recorded {
        let ranks: u128 = recorded.step.classes.iter().map(|class| u128::from(class.ranks)).sum();
        let transfers = &recorded.step.transfers;
        let bytes: u128 = transfers.iter().map(|transfer| u128::from(transfer.bytes)).sum();
        return (ranks.saturating_pow(2).saturating_mul(transfers.len() as u128), bytes.saturating_mul(2 * ranks));
    }
    let of_graph =
        |ops: &[GraphOpSpec]| ops.iter().map(|op| u128::from(op.receives_bytes.unwrap_or(0)) + 1).sum::<u128>();
    let graph = job.servers.as_ref().and_then(|servers| servers.graph.as_ref());
    let bytes: u128 = job.layers.iter().map(|layer| u128::from(layer.parameter_bytes)).sum::<u128>()
        + graph.map_or(0, |graph| of_graph(&graph.ops));
    let ranks = job.hosts.len() as u32;
    let chunks = (job.layers.len() + graph.map_or(0, |graph| graph.ops.len())) as u128
        + job.schedule.chunk.map_or(0, |chunk| bytes / u128::from(chunk.0.max(1)));
    if job.servers.is_some() {
        return (chunks * 2 * u128::from(ranks), bytes.saturating_mul(2 * u128::from(ranks)));
    }
    if job.collective.algorithm.plan(ranks, Bytes(1), 1).is_err() {
        return (0, 0);
    }
    let counts = job.collective.algorithm.counts(ranks);
    let depth = u128::from(job.collective.depth.unwrap_or(64));
    (chunks.saturating_mul(depth).saturating_mul(counts.messages.into()), bytes.saturating_mul(counts.sent.into()))
}

// Results of a run

fn column<'a>(table: &'a Table, name: &str) -> &'a Column {
    let found = table.columns.iter().find(|(known, _)| known == name);
    &found.unwrap_or_else(|| panic!("no column is called {name}")).1
}

fn times<'a>(table: &'a Table, name: &str) -> &'a [i64] {
    match column(table, name) {
        Column::Time(times) => times,
        other => panic!("{name} has no times: {other:?}"),
    }
}

fn counts<'a>(table: &'a Table, name: &str) -> &'a [u64] {
    match column(table, name) {
        Column::Count(counts) => counts,
        other => panic!("{name} has no counts: {other:?}"),
    }
}

fn texts<'a>(table: &'a Table, name: &str) -> Vec<&'a str> {
    match column(table, name) {
        Column::Text(texts) => texts.iter().map(|text| &**text).collect(),
        other => panic!("{name} has no texts: {other:?}"),
    }
}

fn check_times(spec: &Spec, result: &RunResult) {
    let end = i64::try_from(result.summary.end_ps).expect("a run ends before 2^63 ps");
    let tables = [
        &result.iterations,
        &result.workers,
        &result.transfers,
        &result.operations,
        &result.links,
        &result.flows,
        &result.queues,
        &result.cwnd,
    ];
    assert!(tables.into_iter().all(|table| !table.is_ragged()), "a column is shorter than others");
    let rows = |table: &Table| table.row_count();

    let iterations = &result.iterations;
    let (starts, spans) = (times(iterations, "start_us"), times(iterations, "time_us"));
    let parts = ["compute_us", "exposed_us", "barrier_us", "slowdown_us"].map(|name| times(iterations, name));
    let jobs = texts(iterations, "job");
    for row in 0..rows(iterations) {
        assert!(parts.iter().all(|part| part[row] >= 0), "part of an iteration: {iterations:?}");
        assert_eq!(
            parts.iter().map(|part| part[row]).sum::<i64>(),
            spans[row],
            "parts of an iteration: {iterations:?}"
        );
        // The slowest worker of an iteration may begin the next one later than another worker.
        assert!(row == 0 || jobs[row] != jobs[row - 1] || starts[row] >= starts[row - 1], "{iterations:?}");
        assert!(starts[row] + spans[row] <= end, "an iteration ends after the run: {iterations:?}");
    }
    for table in [&result.transfers, &result.operations] {
        if rows(table) > 0 {
            let (starts, ends) = (times(table, "start_us"), times(table, "end_us"));
            assert!(starts.iter().zip(ends).all(|(start, end)| start <= end), "time goes back: {table:?}");
            assert!(ends.iter().all(|&one| one <= end), "after the end at {end} ps: {table:?}");
        }
    }
    if rows(&result.transfers) > 0 {
        let (ready, starts) = (times(&result.transfers, "ready_us"), times(&result.transfers, "start_us"));
        assert!(ready.iter().zip(starts).all(|(ready, start)| ready <= start), "sent early: {:?}", result.transfers);
    }
    assert!(times(&result.links, "busy_us").iter().all(|&busy| busy <= end), "{:?} {end}", result.links);
    let flows = &result.flows;
    if let (Column::MaybeTime(received), Column::MaybeTime(fct)) =
        (column(flows, "received_us"), column(flows, "fct_us"))
    {
        for (row, &start) in times(flows, "start_us").iter().enumerate() {
            assert!(fct[row].is_none_or(|span| span >= 0 && start + span <= end), "{flows:?} {end}");
            let is_in_turn = received[row].is_none_or(|span| span >= 0 && fct[row].is_none_or(|whole| span <= whole));
            assert!(is_in_turn, "received after it was over: {flows:?}");
        }
    }
    for job in &result.summary.jobs {
        let count = job.iteration_time_ps.len() as f64;
        let mean = job.iteration_time_ps.iter().map(|&time| time as f64).sum::<f64>() / count;
        // Means are rounded to 53 bits, some of them more than once.
        assert!(job.lower_bound_ps <= mean * (1.0 + 1e-12) + 2.0, "{}: a mean of {mean} ps: {job:?}", spec.jobs.len());
    }
}

/// Checks that links carry the bytes of the messages and flows that cross them, as `unconserved` of `tests/specs.py`
/// does.
fn check_bytes(spec: &Spec, result: &RunResult) {
    let is_of_host = |name: &str, start: &str| {
        name.strip_prefix(start).is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
    };
    let is_node_port = |end: &str| end.starts_with("node") && (end.contains(".gpu") || end.contains(".nic"));
    let (mut sent, mut received) = (0, 0);
    for (name, &bytes) in texts(&result.links, "link").into_iter().zip(counts(&result.links, "bytes")) {
        let is_alone = is_of_host(name, "h") && name[1..].chars().all(|digit| digit.is_ascii_digit());
        let bytes = u128::from(bytes);
        if is_alone || name.split_once("->").is_some_and(|(from, _)| is_node_port(from)) {
            sent += bytes;
        }
        let to_host = name
            .rsplit_once('-')
            .is_some_and(|(_, to)| is_of_host(to, "h") && to[1..].chars().all(|digit| digit.is_ascii_digit()));
        if to_host || name.rsplit_once("->").is_some_and(|(_, to)| is_node_port(to)) {
            received += bytes;
        }
    }
    let is_packet = spec.run.engine == EngineSpec::Packet;
    if spec.run.engine == EngineSpec::Fluid {
        assert_eq!(sent, received, "hosts send what hosts receive: {:?}", result.links);
    }
    if is_packet {
        assert!(received <= sent, "hosts sent {sent} and received {received} bytes: {:?}", result.links);
    }
    if spec.jobs.iter().any(JobSpec::is_parallel) {
        return;
    }
    let (least, most) = sent_bytes(spec, result);
    let told = format!("messages and flows have {least} to {most} bytes, hosts sent {sent} and received {received}");
    assert!(if is_packet { least <= received } else { least <= sent && sent <= most }, "{told}: {spec:?}");
}

/// Returns the least and the most bytes that hosts must have sent, as `sent_bytes` of `tests/specs.py` does.
fn sent_bytes(spec: &Spec, result: &RunResult) -> (u128, u128) {
    let is_cut = spec.run.duration.is_some_and(|duration| result.summary.end_ps >= duration.ps());
    let mut of_iteration: BTreeMap<&str, u128> = BTreeMap::new();
    if result.transfers.row_count() > 0 {
        let names = texts(&result.transfers, "job");
        let rows = names.into_iter().zip(counts(&result.transfers, "iteration"));
        for ((name, &iteration), &bytes) in rows.zip(counts(&result.transfers, "bytes")) {
            // All iterations send the same bytes.
            *of_iteration.entry(name).or_default() += if iteration == 0 { u128::from(bytes) } else { 0 };
        }
    }
    let (mut least, mut most) = (0_u128, 0);
    // A job that continues while other jobs run is stopped within an iteration.
    let cut = u128::from(is_cut || spec.jobs.len() > 1);
    for (job, did) in spec.jobs.iter().zip(&result.summary.jobs) {
        let sent = of_iteration.get(job.name.as_str()).copied().unwrap_or(0);
        let measured = u128::from(did.iteration_count);
        let mut count = measured + u128::from(did.unmeasured.before) + u128::from(did.unmeasured.after);
        if job.servers.is_some() {
            least += sent * measured;
            most += sent * (count + cut);
            continue;
        }
        let times = u128::from(job.collective.algorithm.counts(job.hosts.len() as u32).sent);
        let is_tree = job.collective.algorithm.name() == "tree";
        // The iteration before the first measured one counts, unless iterations are measured from the backward pass.
        count += u128::from(spec.run.engine != EngineSpec::Packet || job.ops.is_some());
        // Flows over nodes, and flows of trees, are rounded to whole bytes in each round; there are at most 2 n rounds.
        let ranks = job.hosts.len() as u128;
        let chunks = job.schedule.chunk.map_or(0, |chunk| sent / u128::from(chunk.0.max(1)));
        let rounded = match is_tree || spec.cluster.node.is_some() {
            true => (chunks + job.layers.len() as u128) * 2 * ranks * (2 * ranks + 1) * (count + cut),
            false => 0,
        };
        // Without a barrier, transfers of the last iteration may still be in flight in the next one.
        least += (sent * times * count.saturating_sub(cut)).saturating_sub(rounded);
        // In a tree, the card of a rank may carry as much as the card of an inner node.
        most += sent * (times + 2 * u128::from(is_tree)) * (count + cut) + rounded;
    }
    if let Column::MaybeTime(received) = column(&result.flows, "received_us") {
        for (&bytes, received) in counts(&result.flows, "bytes").iter().zip(received) {
            least += if received.is_some() { u128::from(bytes) } else { 0 };
            most += u128::from(bytes);
        }
    }
    (least, most)
}
