//! Times one collective on an otherwise idle fluid network, from the first message to the last arrival.
//!
//! Without background flows a job's collective always takes the same time, because the job has one collective in flight
//! at a time. The duration can therefore be computed once and reused.
//!
//! An [`ExclusivePath`] is a path whose links carry no other flow of the collective.

use super::messages::{Addressing, InFlight, MessageSize};
use super::plan::{CollectivePlan, EvenShare, Message, Passage};
use super::progress::Progress;
use gradtide_net::fluid::{ExclusivePath, Load};
use gradtide_net::{Bytes, Ends, Flow, Fluid, HostId, Network, PortId, Time};
use gradtide_watch::check_cancelled;

/// Result of a simulated collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Time from the first message to the last arrival.
    pub duration: Time,
    /// Number of messages sent.
    pub message_count: u64,
    /// Load of each link, by port.
    pub loads: Vec<Load>,
}

/// Simulates `plan` with rank i on `hosts[i]`. Times assume messages with exactly even shares; loads of links count
/// whole bytes.
///
/// If no two ranks of a ring share a bottleneck, the arrivals are computed rank by rank. The max-min rates of all flows
/// of the ring show whether this is the case. All other plans are simulated message by message.
///
/// # Panics
/// If the number of `hosts` is not the number of ranks, or if the network has carried traffic before.
pub fn run(plan: &CollectivePlan, hosts: &[u32], network: Fluid) -> Exchange {
    assert_eq!(plan.ranks() as usize, hosts.len(), "every rank has a host");
    assert!(network.counters().events == 0, "the network is fresh");
    match exclusive_paths(plan, hosts, 0, &network) {
        Some(paths) => on_exclusive_paths(plan, &paths, network.link_count()),
        None => message_by_message(plan, hosts, network, Time::MAX),
    }
}

/// Returns the path from each rank to the next for flows of `stream`. Returns `None` unless the plan is a ring without
/// a shared bottleneck.
pub fn exclusive_paths(
    plan: &CollectivePlan,
    hosts: &[u32],
    stream: u32,
    network: &Fluid,
) -> Option<Vec<ExclusivePath>> {
    if !plan.is_ring() || hosts.len() < 2 {
        return None;
    }
    let next = hosts.iter().cycle().skip(1);
    network.exclusive_paths(stream, hosts.iter().zip(next).map(|(&host, &next)| (HostId(host), HostId(next))))
}

/// Simulates any plan message by message, and stops at `until`.
///
/// # Panics
/// As [`run`].
pub fn message_by_message(plan: &CollectivePlan, hosts: &[u32], mut network: Fluid, until: Time) -> Exchange {
    let mut under_way: InFlight<Passage> = InFlight::default();
    let addressing = Addressing::new(hosts, MessageSize::Even);
    let start = |message: Message, under_way: &mut InFlight<Passage>, network: &mut Fluid| {
        let flow = network.start(addressing.flow(0, message));
        under_way.insert(flow, message.passage());
    };
    let mut progress = Progress::begin(plan.clone(), &mut |message| start(message, &mut under_way, &mut network));
    let mut arrived = Vec::new();
    while !under_way.is_empty() && network.now() < until {
        network.advance(until, &mut arrived);
        for completion in arrived.drain(..) {
            let passage = under_way.remove(completion.flow);
            progress.on_arrival(passage, &mut |message| start(message, &mut under_way, &mut network));
        }
    }
    assert!(progress.is_complete() || until < Time::MAX, "all messages have arrived");
    Exchange { duration: network.now(), message_count: network.started_count(), loads: loads(&network) }
}

/// Returns the bytes sent over each link of a network, by port.
pub fn loads(network: &Fluid) -> Vec<Load> {
    (0..network.link_count()).map(|port| network.load(PortId(port))).collect()
}

/// Computes a ring in which no two ranks share a bottleneck. Rank i starts its message of step k when it has sent its
/// own message of step k-1 and has received rank i-1's message of step k-1. Hence the time `left(i, k)`, at which rank
/// i has sent its message of step k, is
///
/// ```text
/// left(i, k) = max(left(i, k - 1), left(i - 1, k - 1) + delay(i - 1)) + message / rate(i)
/// ```
///
/// `delay(i)` and `rate(i)` belong to the path from rank i to the next; `message` is the size of a message.
pub fn on_exclusive_paths(plan: &CollectivePlan, paths: &[ExclusivePath], link_count: u32) -> Exchange {
    let even = share_of_ring(plan);
    let last = in_lock_step(plan, paths, even).or_else(|| {
        let left = steps_on_paths(plan, paths, even, |_, _| true);
        left.iter().zip(paths).map(|(left, path)| left + path.delay_fs()).max()
    });
    let mut loads = vec![Load::default(); link_count as usize];
    for (path, sent) in paths.iter().zip(plan.sent_in_ring()) {
        let load = Load::of_messages(plan.step_count().into(), even.bytes, even.parts, sent);
        cross(&mut loads, path, load);
    }
    Exchange {
        duration: ExclusivePath::clock(last.unwrap_or(0)),
        message_count: paths.len() as u64 * u64::from(plan.step_count()),
        loads,
    }
}

/// Returns the arrival of the last message, in femtoseconds, if all paths are identical. Every step then begins at the
/// same time on all ranks. Returns `None` if the paths differ.
fn in_lock_step(plan: &CollectivePlan, paths: &[ExclusivePath], even: EvenShare) -> Option<u128> {
    let cost = |path: &ExclusivePath| (path.sending_fs(even.bytes, even.parts), path.delay_fs());
    let first = cost(paths.first()?);
    let are_alike = paths.iter().all(|path| cost(path) == first);
    are_alike.then(|| u128::from(plan.step_count()) * (first.0 + first.1))
}

/// Returns the load of each link if the ring is stopped at the time `until` after its start.
pub fn loads_on_paths(plan: &CollectivePlan, paths: &[ExclusivePath], link_count: u32, until: Time) -> Vec<Load> {
    let even = share_of_ring(plan);
    let mut loads = vec![Load::default(); link_count as usize];
    steps_on_paths(plan, paths, even, |step, left| {
        let mut has_begun = false;
        for ((rank, path), left) in (0..).zip(paths).zip(left) {
            let enters = left + path.delay_fs() - path.sending_fs(even.bytes, even.parts);
            let Some(since) = ExclusivePath::fs(until).checked_sub(enters) else { continue };
            has_begun = true;
            plan.sends(step, rank, &mut |message| {
                let load = path.load_after(even.bytes, even.parts, message.bytes, since);
                cross(&mut loads, path, load);
            });
        }
        has_begun
    });
    loads
}

/// Returns the paths of a collective's flows, in order; `None` if two flows may share a link.
pub fn ways(flows: &[Flow], ends: &Ends, stream: u32, network: &Fluid) -> Option<Vec<ExclusivePath>> {
    // GPUs that share a network card start several flows on it.
    if ends.host.is_some() || ends.nodes.is_some_and(|nodes| nodes.card_count() < nodes.gpu_count()) {
        return None;
    }
    let ends_of = |flow: &Flow| ends.nodes.map_or((flow.src, flow.dst), |nodes| nodes.ends(flow.src, flow.dst));
    network.exclusive_paths(stream, flows.iter().map(ends_of))
}

/// Computes the duration in closed form for flows that share no link. The rounds of a flow follow one another, and each
/// takes its sending time plus the delay of the path.
pub fn of_flows(flows: &[Flow], paths: &[ExclusivePath], link_count: u32) -> Exchange {
    let end_fs = |(flow, path): (&Flow, &ExclusivePath)| {
        ExclusivePath::fs(flow.hold) + u128::from(flow.rounds) * round_fs(flow, path)
    };
    let last = flows.iter().zip(paths).map(end_fs).max().unwrap_or(0);
    let duration = ExclusivePath::clock(last);
    Exchange {
        duration,
        message_count: flows.iter().map(|flow| u64::from(flow.rounds)).sum(),
        loads: loads_of_flows(flows, paths, link_count, Time::MAX),
    }
}

/// Returns the load of each link if [`of_flows`] is stopped at the time `until` after its start.
pub fn loads_of_flows(flows: &[Flow], paths: &[ExclusivePath], link_count: u32, until: Time) -> Vec<Load> {
    let mut loads = vec![Load::default(); link_count as usize];
    for (flow, path) in flows.iter().zip(paths) {
        let round_fs = round_fs(flow, path);
        let sending_fs = ExclusivePath::fs(until).saturating_sub(ExclusivePath::fs(flow.hold));
        let rounds = sending_fs.checked_div(round_fs).map_or(flow.rounds, |done| done.min(flow.rounds.into()) as u32);
        let mut load =
            Load::of_messages(rounds.into(), flow.bytes, flow.parts, Bytes(flow.counted.0 * u64::from(rounds)));
        if rounds < flow.rounds
            && let Some(since_fs) = (sending_fs - u128::from(rounds) * round_fs).checked_sub(path.delay_fs())
        {
            load += path.load_after(flow.bytes, flow.parts, flow.counted, since_fs);
        }
        cross(&mut loads, path, load);
    }
    loads
}

/// Returns the duration of one round of a flow, in femtoseconds.
fn round_fs(flow: &Flow, path: &ExclusivePath) -> u128 {
    path.delay_fs() + path.sending_fs(flow.bytes, flow.parts)
}

fn cross(loads: &mut [Load], path: &ExclusivePath, load: Load) {
    path.ports().iter().for_each(|port| loads[port.0 as usize] += load);
}

fn share_of_ring(plan: &CollectivePlan) -> EvenShare {
    let mut share = None;
    plan.sends(0, 0, &mut |first| share = Some(first.even));
    share.expect("a ring sends in every step")
}

/// Returns the time at which each rank has sent its last message, in femtoseconds. After each step, `go_on` receives
/// the step and the time at which each rank has sent the step's message. The computation stops if `go_on` returns
/// `false`.
fn steps_on_paths(
    plan: &CollectivePlan,
    paths: &[ExclusivePath],
    even: EvenShare,
    mut go_on: impl FnMut(u32, &[u128]) -> bool,
) -> Vec<u128> {
    let ranks = paths.len();
    let sending: Vec<u128> = paths.iter().map(|path| path.sending_fs(even.bytes, even.parts)).collect();
    let delays: Vec<u128> = paths.iter().map(ExclusivePath::delay_fs).collect();
    let mut left = vec![0_u128; ranks];
    for step in 0..plan.step_count() {
        check_cancelled();
        // Arrival of the message that the previous rank sent in the previous step. The first step waits for no message.
        let mut arrival = if step == 0 { 0 } else { left[ranks - 1] + delays[ranks - 1] };
        for ((left, sending), delay) in left.iter_mut().zip(&sending).zip(&delays) {
            let before = *left;
            *left = before.max(arrival) + sending;
            arrival = if step == 0 { 0 } else { before + delay };
        }
        if !go_on(step, &left) {
            break;
        }
    }
    left
}
