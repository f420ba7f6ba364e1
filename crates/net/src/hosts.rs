//! Costs of hosts: processing stages before and after the network interface, and a fixed time for each message.
//!
//! ```text
//! copy ─► serialise ─► message ─► network ─► receive
//! ```
//!
//! Every host has one server for each of these steps except the network. A server is first come, first served,
//! regardless of bands. All messages of one part of a collective ([`Flow::part`]) that a host starts at one instant
//! leave the first two stages together; then they are sent one after another. A transfer of a single part is thus at
//! one stage at a time, so k stages of rate r have the effective rate r/k. Several parts form a pipeline: d parts have
//! the effective rate r d/(d + k - 1).
//!
//! [`Hosts`] wraps any engine. It starts a flow on the engine when the flow has left the last stage of its sender, and
//! reports the flow as complete when it has left the last stage of its receiver. Flows on connections of their own skip
//! the stages. Computation on received data is not included.

use crate::event::EventQueue;
use crate::units::{Bytes, Rate, Time};
use crate::{Band, Completion, Connection, Flow, FlowId, ForkNetwork, HostId, Network};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Costs of every host.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Host {
    /// Time per sent message: the overhead o of LogP (Culler et al. 1993).
    #[serde(rename = "message_ps")]
    pub message: Time,
    /// Stages in series.
    pub stages: Stages,
}

/// Rates of the stages of a host. A stage without a rate takes no time.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
pub struct Stages {
    /// The first stage before the network interface.
    #[serde(rename = "copy_bps")]
    pub copy: Option<Rate>,
    /// The second stage before the network interface.
    #[serde(rename = "serialise_bps")]
    pub serialise: Option<Rate>,
    /// The stage after the network interface.
    #[serde(rename = "receive_bps")]
    pub receive: Option<Rate>,
}

impl Stages {
    /// Returns the stages before the network interface.
    pub fn sending(&self) -> impl Iterator<Item = Rate> + use<> {
        [self.copy, self.serialise].into_iter().flatten()
    }

    /// Returns the rates of the stages after the network interface.
    pub fn receiving(&self) -> impl Iterator<Item = Rate> + use<> {
        self.receive.into_iter()
    }
}

impl Host {
    /// Returns the time that the hosts add to a flow that waits for no other flow, or `None` beyond [`Time::MAX`].
    pub fn time(&self, flow: &Flow) -> Option<Time> {
        let message = std::iter::once(self.message_time(flow));
        let stages = stage_times(self.stages.sending().chain(self.stages.receiving()), flow);
        message.chain(stages).try_fold(Time::ZERO, |sum, time| sum.checked_add(time?))
    }

    /// Returns the time that `flows` together occupy each stage of their sender.
    fn times_together(&self, flows: &[Given]) -> Vec<Option<Time>> {
        let mut sums = vec![Some(Time::ZERO); self.stages.sending().count()];
        for (_, flow) in flows {
            let add =
                |(sum, time): (&mut Option<Time>, Option<Time>)| *sum = sum.and_then(|sum| sum.checked_add(time?));
            sums.iter_mut().zip(stage_times(self.stages.sending(), flow)).for_each(add);
        }
        sums
    }

    fn message_time(&self, flow: &Flow) -> Option<Time> {
        self.message.ps().checked_mul(flow.rounds.into()).map(Time::from_ps)
    }
}

fn stage_times(rates: impl Iterator<Item = Rate>, flow: &Flow) -> impl Iterator<Item = Option<Time>> {
    let Flow { bytes, rounds, parts, .. } = *flow;
    rates.map(move |rate| rate.serialize(bytes, rounds, parts))
}

/// A network between hosts with costs.
pub struct Hosts<N> {
    network: N,
    host: Host,
    state: State,
}

/// A flow started by the caller.
type Given = (FlowId, Flow);

#[derive(Clone, Debug, Default)]
struct State {
    /// Time at which each stage of each sender becomes idle.
    sending: Vec<Vec<Time>>,
    messages: Vec<Vec<Time>>,
    receiving: Vec<Vec<Time>>,
    started_count: u64,
    /// Flows that were started since the last [`Network::advance`].
    given: Vec<Given>,
    /// Flows in the stages of their senders, by the time at which they leave the last stage.
    waiting: BTreeMap<(Time, FlowId), Flow>,
    /// Flows on the network, by their ids on the inner network.
    under_way: BTreeMap<FlowId, (FlowId, Flow)>,
    /// Flows in stages of their receivers.
    arrived: EventQueue<Completion>,
}

impl<N: Network> Hosts<N> {
    /// Creates idle hosts around an idle network.
    pub fn new(host: Host, network: N) -> Self {
        Self { network, host, state: State::default() }
    }

    /// Moves the flows that were started at this instant into the stages of their senders.
    fn enter_stages(&mut self) {
        let now = self.network.now();
        for flows in together(std::mem::take(&mut self.state.given)) {
            let times = self.host.times_together(&flows);
            let ready_at = pass(&mut self.state.sending, flows[0].1.src, now, times.into_iter());
            for (id, flow) in flows {
                let cost = std::iter::once(self.host.message_time(&flow));
                let done_at = pass(&mut self.state.messages, flow.src, ready_at, cost);
                if done_at > now {
                    self.state.waiting.insert((done_at, id), flow);
                } else {
                    self.put(id, flow);
                }
            }
        }
    }

    /// Starts a flow on the inner network.
    fn put(&mut self, id: FlowId, flow: Flow) {
        let there = self.network.start(flow);
        self.state.under_way.insert(there, (id, flow));
    }

    fn receive(&mut self, completion: Completion, done: &mut Vec<Completion>) {
        let now = self.network.now();
        let (id, flow) = self.state.under_way.remove(&completion.flow).expect("the flow is on the network");
        if flow.connection == Connection::Own {
            done.push(Completion { flow: id, ..completion });
            return;
        }
        let received = pass(&mut self.state.receiving, flow.dst, now, stage_times(self.host.stages.receiving(), &flow));
        let completion = Completion { flow: id, received: received.max(completion.received), ..completion };
        if received > now {
            self.state.arrived.push(received, completion);
        } else {
            done.push(completion);
        }
    }
}

/// Groups flows by part, in the order of their starts. The messages of a part have different destinations, so a
/// repeated destination is the beginning of another transfer.
fn together(given: Vec<Given>) -> Vec<Vec<Given>> {
    let mut groups: Vec<Vec<Given>> = Vec::new();
    let mut open: BTreeMap<(HostId, u32), usize> = BTreeMap::new();
    for one in given {
        let flow = &one.1;
        let joins = |group: &&mut Vec<Given>| {
            let first = &group[0].1;
            flow.part.is_some() && first.part == flow.part && first.dst != flow.dst
        };
        match open.get(&(flow.src, flow.stream)).and_then(|&index| groups.get_mut(index)).filter(joins) {
            Some(group) => group.push(one),
            None => {
                open.insert((flow.src, flow.stream), groups.len());
                groups.push(vec![one]);
            }
        }
    }
    groups
}

/// Passes work that arrives at `now` through the stages of `host`, which need `times`. Returns the time at which the
/// work leaves the last stage.
fn pass(hosts: &mut Vec<Vec<Time>>, host: HostId, now: Time, times: impl Iterator<Item = Option<Time>>) -> Time {
    let index = host.0 as usize;
    if hosts.len() <= index {
        hosts.resize_with(index + 1, Vec::new);
    }
    let stages = &mut hosts[index];
    times.enumerate().fold(now, |at, (stage, time)| {
        if stages.len() <= stage {
            stages.push(Time::ZERO);
        }
        let time = time.expect("checked when the run is planned");
        stages[stage] = stages[stage].max(at).checked_add(time).expect("checked when the run is planned");
        stages[stage]
    })
}

impl<N: Network> Network for Hosts<N> {
    fn now(&self) -> Time {
        self.network.now()
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        let id = FlowId(self.state.started_count);
        self.state.started_count += 1;
        match flow.connection {
            Connection::Own => self.put(id, flow),
            Connection::Stream | Connection::StreamBand { .. } => self.state.given.push((id, flow)),
        }
        id
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        self.enter_stages();
        let (before, mut arrived) = (done.len(), Vec::new());
        loop {
            let leaves_at = self.state.waiting.first_key_value().map(|(&(at, _), _)| at);
            let next = leaves_at.into_iter().chain(self.state.arrived.next_at()).fold(until, Time::min);
            self.network.advance(next, &mut arrived);
            let now = self.network.now();
            let pauses = arrived.is_empty() && now < next;
            for completion in arrived.drain(..) {
                self.receive(completion, done);
            }
            while let Some((_, completion)) = self.state.arrived.pop_until(now) {
                done.push(completion);
            }
            while let Some(first) = self.state.waiting.first_entry().filter(|first| first.key().0 <= now) {
                let ((_, id), flow) = first.remove_entry();
                self.put(id, flow);
            }
            if pauses || done.len() > before || now >= until {
                return;
            }
        }
    }

    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        let known = |(there, bytes): (FlowId, Bytes)| Some((self.state.under_way.get(&there)?.0, bytes));
        self.network.remaining().into_iter().filter_map(known).collect()
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        let given = self.state.given.iter_mut().map(|(_, flow)| flow);
        given
            .chain(self.state.waiting.values_mut())
            .filter(|flow| flow.stream == stream)
            .for_each(|flow| flow.band = band);
        self.network.set_band(stream, band);
    }
}

impl<N: ForkNetwork> ForkNetwork for Hosts<N> {
    fn fork(&self) -> Box<dyn ForkNetwork> {
        Box::new(Hosts { network: self.network.fork(), host: self.host, state: self.state.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Link;
    use crate::host_queues::HostQueues;

    const MICROSECOND: u64 = 1_000_000;

    fn rate(bps: u64) -> Rate {
        Rate::from_bps(bps).unwrap()
    }

    /// Creates queues with a rate of 1 byte per nanosecond and a delay of one microsecond.
    fn queues(hosts: usize) -> HostQueues {
        let link = Link { rate: rate(8_000_000_000), delay: Time::from_ps(MICROSECOND) };
        HostQueues::new(std::iter::repeat_n(link, hosts))
    }

    fn flow(src: u32, dst: u32, bytes: u64) -> Flow {
        let connection = Connection::Stream;
        Flow { connection, ..Flow::alone(HostId(src), HostId(dst), Bytes(bytes)) }
    }

    /// Returns the completion time of each flow in microseconds, in order of completion.
    fn run_out(network: &mut dyn Network) -> Vec<(u64, u64)> {
        let mut order = Vec::new();
        loop {
            let mut done = Vec::new();
            network.advance(Time::MAX, &mut done);
            if done.is_empty() {
                return order;
            }
            order.extend(done.iter().map(|completion| (completion.flow.0, network.now().ps() / MICROSECOND)));
        }
    }

    #[test]
    fn one_message_is_at_one_stage_at_a_time_and_several_are_at_several() {
        // 1000 bytes take 2 us in each of two stages at the sender, 1 us on the wire, 1 us of delay and 4 us in the
        // receiver's stage.
        let fast = Some(rate(4_000_000_000));
        let stages = Stages { copy: fast, serialise: fast, receive: Some(rate(2_000_000_000)) };
        let host = Host { stages, ..Host::default() };
        let mut one = Hosts::new(host, queues(2));
        one.start(flow(0, 1, 1000));
        assert_eq!(run_out(&mut one), [(0, 2 + 2 + 2 + 4)]);
        assert_eq!(host.time(&flow(0, 1, 1000)), Some(Time::from_ps(8 * MICROSECOND)));
        // Of three flows, each completes 4 us after the previous one, the time of the slowest stage.
        let mut three = Hosts::new(host, queues(2));
        for _ in 0..3 {
            three.start(flow(0, 1, 1000));
        }
        assert_eq!(run_out(&mut three), [(0, 10), (1, 14), (2, 18)]);
    }

    #[test]
    fn messages_of_one_part_leave_their_stages_together() {
        // A message takes 2 us in the copy stage and 2 us in the transmission queue. The two messages of a part leave
        // the copy stage together, after 4 us.
        let stages = Stages { copy: Some(rate(4_000_000_000)), ..Stages::default() };
        let host = Host { stages, ..Host::default() };
        let mut network = Hosts::new(host, queues(3));
        let of = |part, dst| Flow { part: Some(part), ..flow(0, dst, 1000) };
        for flow in [of(0, 1), of(0, 2), of(1, 1), of(1, 2), of(1, 1)] {
            network.start(flow);
        }
        assert_eq!(run_out(&mut network), [(0, 6), (1, 8), (2, 10), (3, 12), (4, 14)]);
        // Flows without a part leave the copy stage one by one, at 2 us and at 4 us.
        let mut network = Hosts::new(host, queues(3));
        network.start(flow(0, 1, 1000));
        network.start(flow(0, 2, 1000));
        assert_eq!(run_out(&mut network), [(0, 4), (1, 6)]);
    }

    #[test]
    fn messages_cost_their_sender_one_after_the_other_and_hosts_do_not_meet() {
        let host = Host { message: Time::from_ps(5 * MICROSECOND), ..Host::default() };
        let mut network = Hosts::new(host, queues(3));
        network.start(flow(0, 2, 1000));
        network.start(flow(0, 2, 1000));
        network.start(flow(1, 2, 1000));
        assert_eq!(run_out(&mut network), [(0, 7), (2, 7), (1, 12)]);
    }

    #[test]
    fn a_receiver_takes_what_comes_from_two_senders_one_after_the_other() {
        let stages = Stages { receive: Some(rate(2_000_000_000)), ..Stages::default() };
        let mut network = Hosts::new(Host { stages, ..Host::default() }, queues(3));
        network.start(flow(0, 2, 1000));
        network.start(flow(1, 2, 1000));
        assert_eq!(run_out(&mut network), [(0, 6), (1, 10)]);
    }

    #[test]
    fn a_connection_of_its_own_passes_by() {
        let mut network = Hosts::new(Host { message: Time::from_ps(MICROSECOND), ..Host::default() }, queues(2));
        network.start(Flow { connection: Connection::Own, ..flow(0, 1, 1000) });
        assert_eq!(run_out(&mut network), [(0, 2)]);
    }

    #[test]
    fn what_waits_at_a_host_changes_its_band_with_its_stream() {
        let mut network = Hosts::new(Host { message: Time::from_ps(MICROSECOND), ..Host::default() }, queues(3));
        let band = |index| Band::new(index).unwrap();
        // Flow 0 occupies the transmission queue from 1 us on. Flows 1 and 2 wait for it from 2 us and 3 us on.
        network.start(flow(0, 2, 4000));
        network.start(Flow { band: band(1), stream: 1, ..flow(0, 2, 1000) });
        network.start(Flow { band: band(1), stream: 2, ..flow(0, 2, 1000) });
        network.set_band(2, band(0));
        assert_eq!(run_out(&mut network), [(0, 6), (2, 8), (1, 10)]);
    }

    #[test]
    fn hosts_stop_where_they_are_told_to() {
        let mut network = Hosts::new(Host { message: Time::from_ps(3 * MICROSECOND), ..Host::default() }, queues(2));
        network.start(flow(0, 1, 1000));
        let mut done = Vec::new();
        for at in [1, 3, 4, 5] {
            network.advance(Time::from_ps(at * MICROSECOND), &mut done);
            assert_eq!((network.now().ps(), done.len()), (at * MICROSECOND, usize::from(at == 5)));
        }
    }
}
