//! Background flows, which are not training. Python draws or reads them; this module starts them.

use crate::spec::TrafficSpec;
use gradtide_net::{Announced, Band, Bytes, Completion, Flow, FlowId, HostId, Listed, Network, Seed, Time};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Streams below are those of jobs. A flow keeps its stream, and so its path, however many jobs there are.
const FIRST_STREAM: u32 = 1 << 16;

/// All background flows of a run, in the order of their tenants. Clones share them: an oracle looks at the flows that the
/// loop drives.
#[derive(Clone, Debug, Default)]
pub struct Background<'a>(Rc<RefCell<Vec<BackgroundFlows<'a>>>>);

impl<'a> Background<'a> {
    /// The flows of all tenants.
    pub fn new(tenants: Vec<BackgroundFlows<'a>>) -> Self {
        Self(Rc::new(RefCell::new(tenants)))
    }

    /// Flows of the same state that are not shared.
    pub fn copied(&self) -> Self {
        Self::new(self.0.borrow().clone())
    }

    /// Starts every flow that is due.
    pub fn settle(&self, now: Time, network: &mut dyn Network) {
        self.0.borrow_mut().iter_mut().for_each(|flows| flows.settle(now, network));
    }

    /// Records that a flow is complete, if it is one of these; returns whether it is.
    pub fn on_completion(&self, now: Time, completion: &Completion) -> bool {
        let index = completion.stream.checked_sub(FIRST_STREAM);
        if let Some(index) = index {
            self.0.borrow_mut()[index as usize].on_completion(now, completion);
        }
        index.is_some()
    }

    /// When the next flow starts, as far as known.
    pub fn wakes_at(&self) -> Option<Time> {
        self.0.borrow().iter().filter_map(BackgroundFlows::wakes_at).min()
    }

    /// Whether all flows are complete.
    pub fn is_finished(&self) -> bool {
        self.0.borrow().iter().all(BackgroundFlows::is_finished)
    }

    /// Completed share of the flows: the minimum over tenants.
    pub fn progress(&self) -> f64 {
        self.0.borrow().iter().map(BackgroundFlows::progress).fold(1.0, f64::min)
    }

    /// Records what flows under way have delivered when the run ends.
    pub fn on_end(&self, network: &dyn Network) {
        if !self.is_finished() {
            let remaining = network.remaining().into_iter().collect();
            self.0.borrow_mut().iter_mut().for_each(|flows| flows.on_end(&remaining));
        }
    }

    /// How long, in picoseconds, flows of at most `largest` bytes have been in the network between two times, all
    /// together.
    pub fn flow_time_ps(&self, from: Time, to: Time, largest: Bytes) -> u128 {
        self.0.borrow().iter().map(|flows| flows.flow_time_ps(from, to, largest)).sum()
    }

    /// What became of the flows of each tenant.
    pub fn into_outcomes(self) -> Vec<Vec<Outcome>> {
        self.0.take().into_iter().map(|flows| flows.outcomes).collect()
    }
}

/// The stream of the flows of the tenant with this index.
pub fn stream(index: usize) -> u32 {
    FIRST_STREAM + index as u32
}

/// The background flows of one tenant, and how they ended.
#[derive(Clone, Debug)]
pub struct BackgroundFlows<'a> {
    spec: &'a TrafficSpec,
    stream: u32,
    turns: Turns,
    /// By flow, what its jitter adds; empty if there is none.
    late: Vec<Time>,
    /// By flow, its number among those of its host's card.
    of_source: Vec<u32>,
    under_way: BTreeMap<FlowId, usize>,
    outcomes: Vec<Outcome>,
    completed_count: usize,
}

/// Which flow is next.
#[derive(Clone, Debug)]
enum Turns {
    /// Each at its time: so many have started. With jitter, time and flow of each, in order.
    ByTime(usize, Option<Vec<(Time, usize)>>),
    /// Each some time after the one before it of the same host.
    ByHost {
        /// When they start that can be told: time and flow.
        due: BTreeSet<(Time, usize)>,
        idle: Time,
        /// By flow, the next one of its host; the number of flows if there is none.
        next: Vec<usize>,
        /// Whether hosts wait for one another.
        together: bool,
        /// Flows whose hosts are done with the one before, and wait.
        ready: Vec<usize>,
    },
}

fn late_by(late: &[Time], index: usize) -> Time {
    late.get(index).copied().unwrap_or_default()
}

/// What became of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// When it started; `None` if the run ended first.
    pub start: Option<Time>,
    /// From its start to its completion at the sender; `None` if the run ended first.
    pub fct: Option<Time>,
    /// From its start to the last byte at the receiver.
    pub received: Option<Time>,
    /// Payload that the receiver has: all of a flow that is complete, else what it had when the run ended.
    pub delivered: Bytes,
}

impl<'a> BackgroundFlows<'a> {
    /// The flows of a tenant, which will carry `stream` and leave their hosts by `card`. Each starts up to `jitter` later than
    /// it could, by a draw of its own; when it started includes that.
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

    /// When its next flow starts, as far as known.
    fn wakes_at(&self) -> Option<Time> {
        match &self.turns {
            Turns::ByTime(count, None) => self.spec.start.get(*count).copied(),
            Turns::ByTime(count, Some(starts)) => starts.get(*count).map(|&(at, _)| at),
            Turns::ByHost { due, .. } => due.first().map(|&(at, _)| at),
        }
    }

    /// Whether all its flows are complete.
    fn is_finished(&self) -> bool {
        self.wakes_at().is_none() && self.under_way.is_empty()
    }

    /// What share of its flows is complete.
    fn progress(&self) -> f64 {
        let count = self.outcomes.len();
        if count == 0 { 1.0 } else { self.completed_count as f64 / count as f64 }
    }

    /// Starts every flow that is due.
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
                // A run has fewer than 2^32 flows.
                listed: Some(Listed { number: index as u32, of_source: self.of_source[index] }),
                ..Flow::alone(src, dst, self.spec.bytes[index])
            };
            let id = network.start(flow);
            self.under_way.insert(id, index);
            self.outcomes[index].start = Some(now);
        }
    }

    /// Records that a flow is complete.
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

    /// Records what flows under way have delivered when the run ends, given what [remains](Network::remaining) of each.
    fn on_end(&mut self, remaining: &BTreeMap<FlowId, Bytes>) {
        for (id, &index) in &self.under_way {
            let bytes = self.spec.bytes[index];
            self.outcomes[index].delivered = Bytes(remaining.get(id).map_or(0, |left| bytes.0.saturating_sub(left.0)));
        }
    }

    /// How long, in picoseconds, its flows of at most `largest` bytes have been in the network between two times, all
    /// together.
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
