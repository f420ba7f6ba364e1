//! Combines two engines: messages between GPUs of one machine run over its scale-up switch on the fluid engine, and all
//! others on the engine of the network cards, usually the packet engine.
//!
//! ```text
//! hosts before `first_port`:    network cards, on any engine
//! hosts from `first_port` on:   ports of GPUs on the scale-up switches of their machines, on the fluid engine
//! ```
//!
//! NVLink and similar links use credits per hop instead of TCP and lose no packets, so max-min fair rates model them
//! better than any transport of the packet engine. The two engines share no link and advance event by event. Their
//! clocks differ by at most the picosecond to which the fluid engine's next event is rounded.

use crate::{Band, Bytes, Completion, Flow, FlowId, Fluid, ForkNetwork, HostId, Network, Time};
use std::borrow::BorrowMut;
use std::collections::VecDeque;

/// Combines an engine for the network cards with the fluid engine for the ports of the scale-up switches.
#[derive(Debug)]
pub struct ScaleUp<F, N> {
    first_port: u32,
    cards: N,
    ports: F,
    started_count: u64,
    of_cards: Started,
    of_ports: Started,
    arrived: Vec<Completion>,
}

/// The flows of one engine, by their ids on that engine. Each row contains the id that was returned to the caller, and
/// the start time. Rows are dropped from the front once their flows have completed.
#[derive(Clone, Debug, Default)]
struct Started {
    first: u64,
    rows: VecDeque<Option<(FlowId, Time)>>,
}

impl Started {
    /// Returns a completion with the id that was returned to the caller. The flow cannot have begun before its start
    /// time, although the fluid engine's clock may be behind by less than a picosecond.
    fn take(&mut self, completion: Completion) -> Completion {
        let row = &mut self.rows[(completion.flow.0 - self.first) as usize];
        let (flow, at) = row.take().expect("a flow completes once");
        while let Some(None) = self.rows.front() {
            self.rows.pop_front();
            self.first += 1;
        }
        Completion { flow, began: completion.began.max(at), ..completion }
    }

    /// Returns the remaining bytes of a flow, with the id that was returned to the caller.
    fn named(&self, (flow, bytes): (FlowId, Bytes)) -> Option<(FlowId, Bytes)> {
        let row = self.rows.get(flow.0.checked_sub(self.first)? as usize)?;
        row.map(|(outside, _)| (outside, bytes))
    }
}

impl<F, N> ScaleUp<F, N> {
    /// Creates a network of idle engines at time zero. The hosts of `ports` are numbered from `first_port` on.
    pub fn new(first_port: u32, cards: N, ports: F) -> Self {
        let (of_cards, of_ports) = (Started::default(), Started::default());
        Self { first_port, cards, ports, started_count: 0, of_cards, of_ports, arrived: Vec::new() }
    }

    /// Reports the completions of an engine, with the ids that were returned to the caller.
    fn report(arrived: &mut Vec<Completion>, started: &mut Started, done: &mut Vec<Completion>) {
        done.extend(arrived.drain(..).map(|completion| started.take(completion)));
    }
}

impl<F: BorrowMut<Fluid>, N: Network> Network for ScaleUp<F, N> {
    fn now(&self) -> Time {
        self.cards.now()
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        let id = FlowId(self.started_count);
        self.started_count += 1;
        let row = Some((id, self.now()));
        let port = |host: HostId| host.0.checked_sub(self.first_port).map(HostId);
        match port(flow.src).zip(port(flow.dst)) {
            Some((src, dst)) => {
                self.ports.borrow_mut().start(Flow { src, dst, ..flow });
                self.of_ports.rows.push_back(row);
            }
            None => {
                self.cards.start(flow);
                self.of_cards.rows.push_back(row);
            }
        }
        id
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        let before = done.len();
        loop {
            let ports = self.ports.borrow_mut();
            let next = ports.next_event().map_or(until, |at| at.max(self.cards.now()).min(until));
            self.cards.advance(next, &mut self.arrived);
            let now = self.cards.now();
            Self::report(&mut self.arrived, &mut self.of_cards, done);
            ports.advance(now, &mut self.arrived);
            Self::report(&mut self.arrived, &mut self.of_ports, done);
            // The engine of the cards may have returned before `next` without a completion.
            if done.len() > before || now >= until || now < next {
                return;
            }
        }
    }

    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        let of_cards = self.cards.remaining().into_iter().filter_map(|left| self.of_cards.named(left));
        let of_ports = self.ports.borrow().remaining().into_iter().filter_map(|left| self.of_ports.named(left));
        of_cards.chain(of_ports).collect()
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        self.cards.set_band(stream, band);
        self.ports.borrow_mut().set_band(stream, band);
    }
}

impl<F: BorrowMut<Fluid>, N: ForkNetwork> ForkNetwork for ScaleUp<F, N> {
    fn fork(&self) -> Box<dyn ForkNetwork> {
        let (cards, ports) = (self.cards.fork(), self.ports.borrow().clone());
        let (of_cards, of_ports) = (self.of_cards.clone(), self.of_ports.clone());
        let (first_port, started_count) = (self.first_port, self.started_count);
        Box::new(ScaleUp { first_port, cards, ports, started_count, of_cards, of_ports, arrived: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_queues::HostQueues;
    use crate::route::Policy;
    use crate::topology::Directed;
    use crate::{Connection, Graph, Link, NodeId, Rate, Seed};

    /// Creates a network of two cards and two ports. A card has 1 byte per nanosecond and a delay of 1 us; a port has 8
    /// bytes per nanosecond and a delay of 0.1 us in each direction.
    fn network() -> ScaleUp<Fluid, HostQueues> {
        let link = |bps, delay_ps| Link { rate: Rate::from_bps(bps).unwrap(), delay: Time::from_ps(delay_ps) };
        let (card, port) = (link(8_000_000_000, 1_000_000), link(64_000_000_000, 100_000));
        let both =
            |host| [(host, 2), (2, host)].map(|(from, to)| Directed { from: NodeId(from), to: NodeId(to), link: port });
        let links = (0..2).flat_map(both).collect();
        let graph = Graph { host_count: 2, switch_count: 1, links, has_parts: true };
        ScaleUp::new(2, HostQueues::new([card; 2]), Fluid::new(&graph, Policy::Ecmp, Seed(0)).unwrap())
    }

    fn flow(src: u32, dst: u32, bytes: u64) -> Flow {
        Flow { connection: Connection::Stream, ..Flow::alone(HostId(src), HostId(dst), Bytes(bytes)) }
    }

    fn next(network: &mut dyn Network) -> Vec<(u64, u64)> {
        let mut done = Vec::new();
        network.advance(Time::MAX, &mut done);
        done.iter().map(|completion| (completion.flow.0, network.now().ps())).collect()
    }

    #[test]
    fn each_message_goes_over_its_own_network_and_what_follows_begins_in_time() {
        let mut network = network();
        // 8000 bytes take 8 us plus 1 us between cards, and 1 us plus 0.2 us between ports.
        for (src, dst) in [(0, 1), (2, 3), (3, 2)] {
            network.start(flow(src, dst, 8_000));
        }
        assert_eq!(next(&mut network), [(1, 1_200_000), (2, 1_200_000)]);
        network.start(flow(2, 3, 8_000));
        assert_eq!(next(&mut network), [(3, 2_400_000)]);
        assert_eq!(next(&mut network), [(0, 9_000_000)]);
        network.start(flow(3, 2, 8_000));
        network.start(flow(1, 0, 1_000));
        assert_eq!(next(&mut network), [(4, 10_200_000)]);
        assert_eq!(next(&mut network), [(5, 11_000_000)]);
    }

    #[test]
    fn no_flow_begins_before_it_is_started() {
        let mut network = network();
        // Transfers between ports end between two picoseconds, because a third of a byte takes 41 and 2/3 ps.
        let start = |network: &mut ScaleUp<Fluid, HostQueues>, bytes| {
            let id = network.start(Flow { parts: 3, ..flow(2, 3, bytes) });
            (id, network.now())
        };
        let mut started = vec![start(&mut network, 1_000)];
        let mut done = Vec::new();
        for bytes in 1_000..1_100 {
            network.advance(Time::MAX, &mut done);
            for completion in done.drain(..) {
                let (id, at) = started[completion.flow.0 as usize];
                assert!(completion.flow == id && completion.began >= at, "{completion:?} was started at {at:?}");
            }
            started.push(start(&mut network, bytes));
        }
    }

    #[test]
    fn it_stops_where_it_is_told_to() {
        let mut network = network();
        network.start(flow(2, 3, 8_000));
        let mut done = Vec::new();
        for at in [500_000, 1_199_999, 1_200_000, 5_000_000] {
            network.advance(Time::from_ps(at), &mut done);
            assert_eq!((network.now().ps(), done.len()), (at, usize::from(at >= 1_200_000)));
        }
    }
}
