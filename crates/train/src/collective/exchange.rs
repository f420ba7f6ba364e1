//! One exchange by itself: a plan on a fluid network that carries nothing else, from the first message to the last
//! arrival.
//!
//! A job has one collective on the network at a time. So, without background flows, an exchange always takes equally
//! long, and this result need not be simulated again.

use super::messages::{Addressing, InFlight, MessageSize};
use super::plan::{CollectivePlan, Message, Passage};
use super::progress::Progress;
use gradtide_net::fluid::Lane;
use gradtide_net::{Bytes, Fluid, HostId, Network, PortId, Time};
use gradtide_watch::look;

/// What an exchange took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// From the first message to the last arrival.
    pub duration: Time,
    /// Messages sent.
    pub message_count: u64,
    /// Bytes that crossed each link, by port, rounded half up.
    pub link_bytes: Vec<Bytes>,
}

/// Carries out `plan` with rank i on `hosts[i]`. Messages are exactly even shares, no whole numbers of bytes.
///
/// In a ring whose ranks never slow one another, which one look at the rates of all of them together tells, the
/// arrivals are computed rank by rank. Everything else is simulated message by message.
///
/// # Panics
/// If there are not as many hosts as ranks, or the network has carried something before.
pub fn run(plan: &CollectivePlan, hosts: &[u32], network: Fluid) -> Exchange {
    assert_eq!(plan.ranks() as usize, hosts.len(), "every rank has a host");
    assert!(network.counters().events == 0, "the network is fresh");
    match lanes(plan, hosts, 0, &network) {
        Some(lanes) => in_lanes(plan, &lanes, network.link_count()),
        None => message_by_message(plan, hosts, network),
    }
}

/// The ways from each rank to the next in a stream, if the plan is a ring whose ranks never slow one another.
pub fn lanes(plan: &CollectivePlan, hosts: &[u32], stream: u32, network: &Fluid) -> Option<Vec<Lane>> {
    if !plan.is_ring() || hosts.len() < 2 {
        return None;
    }
    let next = hosts.iter().cycle().skip(1);
    network.lanes(stream, hosts.iter().zip(next).map(|(&host, &next)| (HostId(host), HostId(next))))
}

/// As [`run`], and never in another way than message by message.
///
/// # Panics
/// As [`run`].
pub fn message_by_message(plan: &CollectivePlan, hosts: &[u32], mut network: Fluid) -> Exchange {
    let mut under_way: InFlight<Passage> = InFlight::default();
    let addressing = Addressing::new(hosts, MessageSize::Even);
    let start = |message: Message, under_way: &mut InFlight<Passage>, network: &mut Fluid| {
        let flow = network.start(addressing.flow(message));
        under_way.insert(flow, message.passage());
    };
    let mut progress = Progress::begin(plan.clone(), &mut |message| start(message, &mut under_way, &mut network));
    let mut arrived = Vec::new();
    while !under_way.is_empty() {
        network.advance(Time::MAX, &mut arrived);
        for completion in arrived.drain(..) {
            let passage = under_way.remove(completion.flow);
            progress.on_arrival(passage, &mut |message| start(message, &mut under_way, &mut network));
        }
    }
    assert!(progress.is_complete(), "all messages have arrived");
    let bytes = |port| Bytes(network.port_counters(PortId(port)).bytes);
    Exchange {
        duration: network.now(),
        message_count: network.started_count(),
        link_bytes: (0..network.link_count()).map(bytes).collect(),
    }
}

/// A ring of which every rank has its way to the next one for itself. A rank sends a step's message when it has sent
/// the last one and has received that of the step before:
///
/// ```text
/// left(i, k) = max(left(i, k - 1), left(i - 1, k - 1) + delay(i - 1)) + message / rate(i)
/// ```
pub fn in_lanes(plan: &CollectivePlan, lanes: &[Lane], link_count: u32) -> Exchange {
    let ranks = lanes.len();
    let mut message = None;
    plan.sends(0, 0, &mut |first| message = Some(first.even));
    let even = message.expect("a ring sends in every step");
    let sending: Vec<u128> = lanes.iter().map(|lane| lane.sending_fs(even.bytes, even.parts)).collect();
    let delays: Vec<u128> = lanes.iter().map(Lane::delay_fs).collect();
    let mut left = vec![0_u128; ranks];
    for step in 0..plan.step_count() {
        look();
        // Of the rank before, in the step before; in the first step nothing has to arrive.
        let mut arrival = if step == 0 { 0 } else { left[ranks - 1] + delays[ranks - 1] };
        for ((left, sending), delay) in left.iter_mut().zip(&sending).zip(&delays) {
            let before = *left;
            *left = before.max(arrival) + sending;
            arrival = if step == 0 { 0 } else { before + delay };
        }
    }
    let last = left.iter().zip(&delays).map(|(left, delay)| left + delay).max();
    let mut crossings = vec![0_u64; link_count as usize];
    for port in lanes.iter().flat_map(Lane::ports) {
        crossings[port.0 as usize] += u64::from(plan.step_count());
    }
    let bytes = |&count: &u64| {
        let (bytes, parts) = (u128::from(even.bytes.0) * u128::from(count), u128::from(even.parts));
        Bytes(((2 * bytes + parts) / (2 * parts)) as u64)
    };
    Exchange {
        duration: Lane::clock(last.unwrap_or(0)),
        message_count: ranks as u64 * u64::from(plan.step_count()),
        link_bytes: crossings.iter().map(bytes).collect(),
    }
}
