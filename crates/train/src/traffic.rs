//! Neighbours: flows that are not training. What they are is drawn or read by the face; here they are started.

use crate::spec::TrafficSpec;
use gradtide_net::{Band, Bytes, Completion, Connection, Flow, FlowId, HostId, Network, Time};
use std::collections::BTreeMap;

/// A neighbour and what became of its flows.
#[derive(Debug)]
pub struct Neighbour<'a> {
    spec: &'a TrafficSpec,
    stream: u32,
    started_count: usize,
    under_way: BTreeMap<FlowId, usize>,
    outcomes: Vec<Outcome>,
}

/// What became of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// From its start to its completion at the sender; `None` if the run ended first.
    pub fct: Option<Time>,
    /// From its start to the last byte at the receiver.
    pub received: Option<Time>,
}

impl<'a> Neighbour<'a> {
    /// A neighbour whose flows are to carry `stream`.
    pub fn new(spec: &'a TrafficSpec, stream: u32) -> Self {
        let outcomes = vec![Outcome::default(); spec.start_ps.len()];
        Self { spec, stream, started_count: 0, under_way: BTreeMap::new(), outcomes }
    }

    /// When its next flow starts.
    pub fn wakes_at(&self) -> Option<Time> {
        self.spec.start_ps.get(self.started_count).map(|&ps| Time::from_ps(ps))
    }

    /// Whether all its flows are complete.
    pub fn is_finished(&self) -> bool {
        self.started_count == self.outcomes.len() && self.under_way.is_empty()
    }

    /// Starts every flow that is due.
    pub fn settle(&mut self, now: Time, network: &mut dyn Network) {
        while self.wakes_at().is_some_and(|at| at <= now) {
            let index = self.started_count;
            let flow = Flow {
                src: HostId(self.spec.src[index]),
                dst: HostId(self.spec.dst[index]),
                bytes: Bytes(self.spec.bytes[index]),
                rounds: 1,
                parts: 1,
                hold: Time::ZERO,
                band: Band::new(self.spec.band[index]).expect("bands are checked when the run is planned"),
                stream: self.stream,
                connection: Connection::Own,
            };
            self.under_way.insert(network.start(flow), index);
            self.started_count += 1;
        }
    }

    /// Takes in that a flow is complete.
    pub fn on_completion(&mut self, now: Time, completion: Completion) {
        let index = self.under_way.remove(&completion.flow).expect("the flow is under way");
        let start = Time::from_ps(self.spec.start_ps[index]);
        self.outcomes[index] = Outcome { fct: Some(now - start), received: Some(completion.received - start) };
    }

    /// What became of its flows, in their order; those that did not start before the end are left out.
    pub fn into_outcomes(mut self) -> Vec<Outcome> {
        self.outcomes.truncate(self.started_count);
        self.outcomes
    }
}
