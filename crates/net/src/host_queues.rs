//! A reference engine for tests that has one transmission queue per host. Its results can be computed by hand (Gao
//! 2020, ch. 4).
//!
//! A flow occupies the queue of its source for
//!
//! ```text
//! hold + rounds · (bytes · 8 / (parts · rate) + delay)
//! ```
//!
//! and completes at the end of that time. `delay` is the delay of the whole path. A ring all-reduce of S bytes on N
//! hosts has `rounds = 2(N-1)` and `parts = N`. This gives eq. 4.1 of the thesis plus one propagation delay per ring
//! step, as in the author's simulator. Bands have strict priority without pre-emption, and each band is first come,
//! first served. Not modelled: the switch, the receivers, and sharing of links.

use crate::event::EventQueue;
use crate::topology::Link;
use crate::units::Time;
use crate::{Band, Bytes, Completion, Flow, FlowId, Network};
use std::collections::BTreeMap;

/// One transmission queue per host. Real switches have no such queue.
#[derive(Debug)]
pub struct HostQueues {
    now: Time,
    hosts: Vec<Host>,
    /// Hosts whose queue received a flow since the last [`Network::advance`].
    touched: Vec<u32>,
    departures: EventQueue<Departure>,
    started_count: u64,
}

#[derive(Debug)]
struct Host {
    link: Link,
    busy: bool,
    /// Waiting flows, ordered by band, then by arrival.
    waiting: BTreeMap<(Band, FlowId), Flow>,
}

#[derive(Debug)]
struct Departure {
    host: u32,
    completion: Completion,
}

impl HostQueues {
    /// Creates idle queues at time zero. `links` contains the outgoing link of each host.
    pub fn new(links: impl IntoIterator<Item = Link>) -> Self {
        let hosts = links.into_iter().map(|link| Host { link, busy: false, waiting: BTreeMap::new() }).collect();
        Self { now: Time::ZERO, hosts, touched: Vec::new(), departures: EventQueue::default(), started_count: 0 }
    }

    fn serve_next(&mut self, host_index: u32) {
        let host = &mut self.hosts[host_index as usize];
        if host.busy {
            return;
        }
        let Some(((_, id), flow)) = host.waiting.pop_first() else { return };
        host.busy = true;
        let occupancy = flow.time_alone(&host.link).expect("checked when the run is planned");
        let received = self.now + occupancy;
        let completion = Completion { flow: id, stream: flow.stream, began: self.now, received };
        self.departures.push(received, Departure { host: host_index, completion });
    }

    fn serve_touched(&mut self) {
        for index in 0..self.touched.len() {
            self.serve_next(self.touched[index]);
        }
        self.touched.clear();
    }
}

impl Network for HostQueues {
    fn now(&self) -> Time {
        self.now
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        let id = FlowId(self.started_count);
        self.started_count += 1;
        self.hosts[flow.src.0 as usize].waiting.insert((flow.band, id), flow);
        self.touched.push(flow.src.0);
        id
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        self.serve_touched();
        let instant = self.departures.next_at().map_or(until, |at| at.min(until));
        debug_assert!(instant >= self.now, "time never goes back");
        self.now = instant;
        while let Some((_, departure)) = self.departures.pop_until(instant) {
            self.hosts[departure.host as usize].busy = false;
            self.touched.push(departure.host);
            done.push(departure.completion);
        }
    }

    /// Returns an empty list. A flow arrives as a whole, so a flow in flight has delivered no bytes.
    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Policy;
    use crate::{Connection, Fluid, HostId, Link, Rate, Seed, Star};
    use proptest::prelude::*;
    use std::iter::repeat_n;

    const MICROSECOND: u64 = 1_000_000;

    fn links(host_count: usize) -> impl Iterator<Item = Link> {
        let rate = Rate::from_bps(8_000_000_000).unwrap(); // one byte per nanosecond
        repeat_n(Link { rate, delay: Time::from_ps(MICROSECOND) }, host_count)
    }

    fn flow(src: u32, bytes: u64, band: u8) -> Flow {
        Flow {
            src: HostId(src),
            dst: HostId(src + 1),
            bytes: Bytes(bytes),
            rounds: 1,
            parts: 1,
            counted: Bytes(bytes),
            hold: Time::ZERO,
            band: Band::new(band).unwrap(),
            stream: 0,
            connection: Connection::Stream,
            part: None,
            announced: None,
            listed: None,
        }
    }

    fn run_out(queues: &mut HostQueues) -> Vec<(u64, u64)> {
        let mut order = Vec::new();
        loop {
            let mut done = Vec::new();
            queues.advance(Time::MAX, &mut done);
            if done.is_empty() {
                return order;
            }
            order.extend(done.iter().map(|completion| (completion.flow.0, queues.now().ps() / 1000)));
        }
    }

    #[test]
    fn ring_of_eight_takes_fourteen_slices_and_delays() {
        // Eq. 4.1 with delays, for N = 8 hosts, S = 8000 bytes, B = 8 Gbit/s and d = 1 us: 2(N-1)·(S·8/(N·B) + d) =
        // 14·(8000/8 ns + 1000 ns) = 28 us.
        let ring = Flow { rounds: 14, parts: 8, ..flow(0, 8_000, 0) };
        let mut queues = HostQueues::new(links(8));
        queues.start(ring);
        assert_eq!(run_out(&mut queues), [(0, 28_000)]);
    }

    proptest! {
        /// Compares the completion time of a ring on the fluid engine, which simulates each message, with the closed
        /// form of [`HostQueues`]. The fluid engine rounds each message up to a femtosecond and the end down to a
        /// picosecond. [`HostQueues`] rounds once, half up.
        #[test]
        fn a_ring_on_a_star_takes_what_its_closed_form_says(
            ranks in 2..=64_u32, bytes in 0..1_000_000_000_u64, bps in 1_000_000..800_000_000_000_u64,
            delay_ps in prop_oneof![Just(0), 0..100_000_000_u64],
        ) {
            let link = Link { rate: Rate::from_bps(bps).unwrap(), delay: Time::from_ps(delay_ps) };
            let way = Link { delay: link.delay + link.delay, ..link };
            let (rounds, mut done) = (2 * (ranks - 1), Vec::new());
            let mut queues = HostQueues::new(repeat_n(way, ranks as usize));
            queues.start(Flow { rounds, parts: ranks, ..flow(0, bytes, 0) });
            queues.advance(Time::MAX, &mut done);
            let graph = Star { host_count: ranks, link }.graph();
            let mut fluid = Fluid::new(&graph, Policy::Ecmp, Seed(0)).unwrap();
            for _ in 0..rounds {
                for src in 0..ranks {
                    let dst = HostId((src + 1) % ranks);
                    fluid.start(Flow { parts: ranks, dst, ..flow(src, bytes, 0) });
                }
                done.clear();
                while done.len() < ranks as usize {
                    fluid.advance(Time::MAX, &mut done);
                }
            }
            prop_assert!(queues.now().ps().abs_diff(fluid.now().ps()) <= 1, "{:?} and {:?}", queues.now(), fluid.now());
        }
    }

    #[test]
    fn a_higher_band_goes_first_but_interrupts_nothing() {
        let mut queues = HostQueues::new(links(2));
        queues.start(flow(0, 1000, 1));
        queues.advance(Time::from_ps(1), &mut Vec::new());
        queues.start(flow(0, 1000, 1));
        queues.start(flow(0, 1000, 0));
        assert_eq!(run_out(&mut queues), [(0, 2_000), (2, 4_000), (1, 6_000)]);
    }

    #[test]
    fn flows_started_at_one_instant_compete_by_band() {
        let mut queues = HostQueues::new(links(2));
        queues.start(flow(0, 1000, 1));
        queues.start(flow(0, 1000, 0));
        assert_eq!(run_out(&mut queues), [(1, 2_000), (0, 4_000)]);
    }

    #[test]
    fn queues_of_two_hosts_are_independent() {
        let mut queues = HostQueues::new(links(3));
        queues.start(flow(0, 1000, 0));
        queues.start(flow(1, 1000, 0));
        assert_eq!(run_out(&mut queues), [(0, 2_000), (1, 2_000)]);
    }

    #[test]
    fn every_host_has_its_own_link() {
        let fast = Link { rate: Rate::from_bps(80_000_000_000).unwrap(), delay: Time::from_ps(500_000) };
        let mut queues = HostQueues::new(links(1).chain([fast]));
        queues.start(flow(0, 10_000, 0));
        queues.start(flow(1, 10_000, 0));
        assert_eq!(run_out(&mut queues), [(1, 1_500), (0, 11_000)]);
    }

    #[test]
    fn advance_stops_at_until_and_at_completions() {
        let mut queues = HostQueues::new(links(2));
        let mut done = Vec::new();
        queues.advance(Time::from_ps(5), &mut done);
        assert_eq!((queues.now().ps(), done.len()), (5, 0));
        queues.start(flow(0, 1000, 0));
        queues.advance(Time::from_ps(2 * MICROSECOND + 5), &mut done);
        assert_eq!((queues.now().ps(), done.len()), (2 * MICROSECOND + 5, 1));
    }
}
