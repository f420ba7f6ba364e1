//! Background flows, which do not belong to training. Python draws or reads them; this module starts them.

use crate::spec::TrafficSpec;
use gradtide_net::{Announced, Band, Bytes, Completion, Flow, FlowId, HostId, Listed, Network, Seed, Time};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// First stream of background flows; smaller numbers are streams of jobs. The stream of a flow, and thus its path, does
/// not depend on the number of jobs.
const FIRST_STREAM: u32 = 1 << 16;

/// All background flows of a run, in the order of their tenants. Clones share the flows, because an oracle reads the
/// state of the flows that the main loop starts.
#[derive(Clone, Debug, Default)]
pub struct Background<'a>(Rc<RefCell<Vec<BackgroundFlows<'a>>>>);

impl<'a> Background<'a> {
    /// Combines the flows of all tenants.
    pub fn new(tenants: Vec<BackgroundFlows<'a>>) -> Self {
        Self(Rc::new(RefCell::new(tenants)))
    }

    /// Returns an independent copy of the flows with their state.
    pub fn copied(&self) -> Self {
        Self::new(self.0.borrow().clone())
    }

    /// Starts every flow that is due.
    pub fn settle(&self, now: Time, network: &mut dyn Network) {
        self.0.borrow_mut().iter_mut().for_each(|flows| flows.settle(now, network));
    }

    /// Records the end of a flow. Returns whether the flow is a background flow.
    pub fn on_completion(&self, now: Time, completion: &Completion) -> bool {
        let index = completion.stream.checked_sub(FIRST_STREAM);
        if let Some(index) = index {
            self.0.borrow_mut()[index as usize].on_completion(now, completion);
        }
        index.is_some()
    }

    /// Returns the time of the next start of a flow, if it is known.
    pub fn wakes_at(&self) -> Option<Time> {
        self.0.borrow().iter().filter_map(BackgroundFlows::wakes_at).min()
    }

    /// Returns whether all flows are complete.
    pub fn is_finished(&self) -> bool {
        self.0.borrow().iter().all(BackgroundFlows::is_finished)
    }

    /// Returns the completed share of the flows, which is the minimum over all tenants.
    pub fn progress(&self) -> f64 {
        self.0.borrow().iter().map(BackgroundFlows::progress).fold(1.0, f64::min)
    }

    /// Records the bytes that have been delivered of flows in flight at the end of the run.
    pub fn on_end(&self, network: &dyn Network) {
        if !self.is_finished() {
            let remaining = network.remaining().into_iter().collect();
            self.0.borrow_mut().iter_mut().for_each(|flows| flows.on_end(&remaining));
        }
    }

    /// Returns the total time, in picoseconds, that flows of at most `largest` bytes have spent in the network between
    /// `from` and `to`.
    pub fn flow_time_ps(&self, from: Time, to: Time, largest: Bytes) -> u128 {
        self.0.borrow().iter().map(|flows| flows.flow_time_ps(from, to, largest)).sum()
    }

    /// Returns the outcomes of the flows of each tenant.
    pub fn into_outcomes(self) -> Vec<Vec<Outcome>> {
        self.0.take().into_iter().map(|flows| flows.outcomes).collect()
    }
}

/// Returns [`Flow::stream`] of all flows of the tenant with index `index`.
pub fn stream(index: usize) -> u32 {
    FIRST_STREAM + index as u32
}

/// The background flows of one tenant, with their outcomes.
#[derive(Clone, Debug)]
pub struct BackgroundFlows<'a> {
    spec: &'a TrafficSpec,
    stream: u32,
    turns: Turns,
    /// Random delay of each flow's start; empty if starts have no jitter.
    late: Vec<Time>,
    /// Sequence number of each flow among all flows that leave through the same card.
    of_source: Vec<u32>,
    under_way: BTreeMap<FlowId, usize>,
    outcomes: Vec<Outcome>,
    completed_count: usize,
}

/// Rule that determines which flow starts next.
#[derive(Clone, Debug)]
enum Turns {
    /// Each flow starts at its start time. The fields are the number of flows started and, if starts have jitter, the
    /// start times and indices of all flows in order of time.
    ByTime(usize, Option<Vec<(Time, usize)>>),
    /// Each flow starts after the end of the previous flow of its host and an idle time.
    ByHost {
        /// Flows whose start time is known, as time and index.
        due: BTreeSet<(Time, usize)>,
        idle: Time,
        /// For each flow, the index of the next flow of the same host, or the number of flows if there is none.
        next: Vec<usize>,
        /// Whether all hosts wait for one another.
        together: bool,
        /// Flows that wait for other hosts, although the previous flow of their own host has ended.
        ready: Vec<usize>,
    },
}

fn late_by(late: &[Time], index: usize) -> Time {
    late.get(index).copied().unwrap_or_default()
}

/// Outcome of a flow. Times are `None` if the run ended first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Start time.
    pub start: Option<Time>,
    /// Time from the start to the completion at the sender.
    pub fct: Option<Time>,
    /// Time from the start to the arrival of the last byte at the receiver.
    pub received: Option<Time>,
    /// Payload delivered to the receiver by the end of the run.
    pub delivered: Bytes,
}

impl<'a> BackgroundFlows<'a> {
    /// Creates the flows of a tenant, which use `stream` and leave their hosts through `card`. The start of each flow
    /// is delayed by a random time up to `jitter`. The recorded start includes this delay.
    pub fn new(spec: &'a TrafficSpec, stream: u32, card: impl Fn(HostId) -> HostId, seed: Seed, jitter: Time) -> Self {
        let count = spec.start.len();
        let has_jitter = jitter > Time::ZERO;
        let jitter_of = |index| seed.stream(&format!("start jitter/{}/{index}", spec.name));
        let draw = |index| Time::from_ps(jitter_of(index).below(jitter.ps()));
        let late: Vec<Time> = if has_jitter { (0..count).map(draw).collect() } else { Vec::new() };
        let mut counts = BTreeMap::new();
        let number = |&src: &u32| {
            let count: &mut u32 = counts.entry(card(HostId(src))).or_default();
            *count += 1;
            *count
        };
        let of_source = spec.src.iter().map(number).collect();
        let turns = match spec.idle {
            None if has_jitter => {
                let starts = spec.start.iter().zip(&late).map(|(start, late)| start.saturating_add(*late));
                let mut starts: Vec<_> = starts.zip(0..).collect();
                starts.sort_unstable();
                Turns::ByTime(0, Some(starts))
            }
            None => Turns::ByTime(0, None),
            Some(idle) => {
                let (mut next, mut due, mut last) = (vec![count; count], BTreeSet::new(), BTreeMap::new());
                for (index, &src) in spec.src.iter().enumerate() {
                    match last.insert(src, index) {
                        Some(before) => next[before] = index,
                        None => _ = due.insert((spec.start[index] + late_by(&late, index), index)),
                    }
                }
                Turns::ByHost { due, idle, next, together: spec.together, ready: Vec::new() }
            }
        };
        let (under_way, outcomes) = (BTreeMap::new(), vec![Outcome::default(); count]);
        Self { spec, stream, turns, late, of_source, under_way, outcomes, completed_count: 0 }
    }

    fn wakes_at(&self) -> Option<Time> {
        match &self.turns {
            Turns::ByTime(count, None) => self.spec.start.get(*count).copied(),
            Turns::ByTime(count, Some(starts)) => starts.get(*count).map(|&(at, _)| at),
            Turns::ByHost { due, .. } => due.first().map(|&(at, _)| at),
        }
    }

    fn is_finished(&self) -> bool {
        self.wakes_at().is_none() && self.under_way.is_empty()
    }

    fn progress(&self) -> f64 {
        let count = self.outcomes.len();
        if count == 0 { 1.0 } else { self.completed_count as f64 / count as f64 }
    }

    fn settle(&mut self, now: Time, network: &mut dyn Network) {
        while self.wakes_at().is_some_and(|at| at <= now) {
            let index = match &mut self.turns {
                Turns::ByTime(count, starts) => {
                    let next = *count;
                    *count += 1;
                    starts.as_ref().map_or(next, |starts| starts[next].1)
                }
                Turns::ByHost { due, .. } => due.pop_first().map_or(0, |(_, index)| index),
            };
            let (src, dst) = (HostId(self.spec.src[index]), HostId(self.spec.dst[index]));
            let flow = Flow {
                hold: self.spec.setup,
                band: Band::new(self.spec.band[index]).expect("bands are checked when the run is planned"),
                stream: self.stream,
                announced: self.spec.announced_packets.and_then(Announced::new),
                // A run has fewer than 2^32 background flows.
                listed: Some(Listed { number: index as u32, of_source: self.of_source[index] }),
                ..Flow::alone(src, dst, self.spec.bytes[index])
            };
            let id = network.start(flow);
            self.under_way.insert(id, index);
            self.outcomes[index].start = Some(now);
        }
    }

    /// Records the end of a flow, and schedules the next flow of its host.
    fn on_completion(&mut self, now: Time, completion: &Completion) {
        let index = self.under_way.remove(&completion.flow).expect("the flow is under way");
        self.completed_count += 1;
        let outcome = &mut self.outcomes[index];
        let start = outcome.start.expect("it is under way");
        (outcome.fct, outcome.received) = (Some(now - start), Some(completion.received - start));
        outcome.delivered = self.spec.bytes[index];
        if let Turns::ByHost { due, idle, next, together, ready } = &mut self.turns {
            ready.push(next[index]);
            if !*together || self.under_way.is_empty() {
                let starts = &self.spec.start;
                let known = ready.drain(..).filter_map(|next| Some((*starts.get(next)?, next)));
                due.extend(known.map(|(start, next)| (start.max(now + *idle) + late_by(&self.late, next), next)));
            }
        }
    }

    /// Records the bytes that have been delivered of flows in flight at the end of the run. `remaining` contains their
    /// [remaining](Network::remaining) bytes.
    fn on_end(&mut self, remaining: &BTreeMap<FlowId, Bytes>) {
        for (id, &index) in &self.under_way {
            let bytes = self.spec.bytes[index];
            self.outcomes[index].delivered = Bytes(remaining.get(id).map_or(0, |left| bytes.0.saturating_sub(left.0)));
        }
    }

    fn flow_time_ps(&self, from: Time, to: Time, largest: Bytes) -> u128 {
        let small = self.outcomes.iter().zip(&self.spec.bytes).filter(|&(_, &bytes)| bytes <= largest);
        let time = |(outcome, _): (&Outcome, _)| {
            let start = outcome.start?;
            let end = outcome.fct.map_or(to, |fct| to.min(start + fct));
            Some(u128::from(end.saturating_since(start.max(from)).ps()))
        };
        small.filter_map(time).sum()
    }
}
