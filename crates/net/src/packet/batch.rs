//! The next arrivals of all links, in order.
//!
//! No packet arrives sooner after the event that sends it than the shortest link takes. So while the events of so
//! short a span take place, nothing they do can add an arrival to it: the span's arrivals are taken from the links at
//! once, and sorted once.

use super::agenda::Agenda;
use super::port::{Arrival, Order, Port};

/// The arrivals of one span.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The shortest time from an event that sends a packet to its arrival: no span is longer.
    span_max_ps: u64,
    span_ps: u64,
    start_ps: u64,
    /// By link, and of one link by time.
    arrivals: Vec<Arrival>,
    /// Their places among those of one instant.
    orders: Vec<Order>,
    /// In the order in which they take place: time within the span, and, in the low bits, the index of the arrival.
    turns: Vec<u64>,
    /// The first of `turns` that has not taken place.
    next: usize,
    links: Vec<u32>,
}

/// Bits of a turn that say which arrival.
const INDEX_BITS: u32 = 28;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// A span is to have about so many arrivals: few enough for the cache, enough for every busy link to give several.
const ARRIVALS: usize = 4096;

impl Batch {
    /// Nothing yet, from these links.
    pub fn new(ports: &[Port]) -> Self {
        let longest_ps = (1 << (64 - INDEX_BITS)) - 1;
        let span_max_ps = ports.iter().map(Port::latency_ps).min().unwrap_or(1).min(longest_ps);
        Self {
            span_max_ps,
            span_ps: span_max_ps,
            start_ps: 0,
            arrivals: Vec::new(),
            orders: Vec::new(),
            turns: Vec::new(),
            next: 0,
            links: Vec::new(),
        }
    }

    /// Arrivals still to take place.
    pub fn len(&self) -> usize {
        self.turns.len() - self.next
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next == self.turns.len()
    }

    /// When the next of them takes place.
    #[inline]
    pub fn next_ps(&self) -> Option<u64> {
        Some(self.start_ps + (self.turns.get(self.next)? >> INDEX_BITS))
    }

    /// The next of them.
    #[inline]
    pub fn pop(&mut self) -> &Arrival {
        let turn = self.turns[self.next];
        self.next += 1;
        &self.arrivals[(turn & INDEX_MASK) as usize]
    }

    /// Takes the arrivals of the span that begins at `start_ps`. Every earlier event has taken place.
    pub fn fill(&mut self, start_ps: u64, agenda: &mut Agenda, ports: &mut [Port]) {
        if self.turns.len() > 2 * ARRIVALS {
            self.span_ps = (self.span_ps / 2).max(1);
        } else if self.turns.len() < ARRIVALS / 2 {
            self.span_ps = (self.span_ps * 2).min(self.span_max_ps);
        }
        let end_ps = start_ps.saturating_add(self.span_ps);
        self.start_ps = start_ps;
        self.arrivals.clear();
        self.orders.clear();
        self.turns.clear();
        self.links.clear();
        self.next = 0;
        agenda.links_before(end_ps, &mut self.links);
        for &link in &self.links {
            let port = &mut ports[link as usize];
            port.catch_up(start_ps, 0);
            while let Some((at_ps, order, arrival)) = port.arrive_before(end_ps) {
                self.turns.push((at_ps - start_ps) << INDEX_BITS | self.arrivals.len() as u64);
                self.arrivals.push(arrival);
                self.orders.push(order);
            }
            agenda.set(link as usize, port.next_arrival_ps());
        }
        self.turns.sort_unstable();
        // Links come in ascending order: so do, of one instant, those that the order of events does not tell apart.
        let orders = &self.orders;
        for tied in self.turns.chunk_by_mut(|one, other| one >> INDEX_BITS == other >> INDEX_BITS) {
            if tied.len() > 1 {
                tied.sort_by_key(|turn| orders[(turn & INDEX_MASK) as usize]);
            }
        }
    }
}
