//! The next arrivals of all links, in order.
//!
//! No packet arrives sooner after the event that sends it than the shortest link takes. So while the events of so
//! short a span take place, nothing they do can add an arrival to it: the span's arrivals are taken from the links at
//! once, and sorted once.

use super::agenda::Agenda;
use super::port::{Arrival, Port};

/// The arrivals of one span.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Length of a span: the shortest time from an event that sends a packet to its arrival.
    span_ps: u64,
    /// By link.
    arrivals: Vec<Arrival>,
    /// Places in `arrivals` (low half), in the order in which they take place; the high half is the time within the span.
    turns: Vec<u64>,
    /// The first of `turns` that has not taken place.
    next: usize,
    links: Vec<u32>,
}

/// Bits of a turn that say which arrival.
const INDEX_BITS: u32 = 28;

impl Batch {
    /// Nothing yet, from these links.
    pub fn new(ports: &[Port]) -> Self {
        let longest_ps = (1 << (64 - INDEX_BITS)) - 1;
        let span_ps = ports.iter().map(Port::latency_ps).min().unwrap_or(1).min(longest_ps);
        Self { span_ps, arrivals: Vec::new(), turns: Vec::new(), next: 0, links: Vec::new() }
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
        let turn = self.turns.get(self.next)?;
        Some(self.arrivals[(turn & INDEX_MASK) as usize].at_ps)
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
        let end_ps = start_ps.saturating_add(self.span_ps);
        self.arrivals.clear();
        self.turns.clear();
        self.links.clear();
        self.next = 0;
        agenda.links_before(end_ps, &mut self.links);
        for &link in &self.links {
            let port = &mut ports[link as usize];
            port.arrivals(start_ps, end_ps, &mut self.arrivals);
            agenda.set(link as usize, port.next_arrival_ps());
        }
        let turn = |(index, arrival): (usize, &Arrival)| (arrival.at_ps - start_ps) << INDEX_BITS | index as u64;
        self.turns.extend(self.arrivals.iter().enumerate().map(turn));
        self.turns.sort_unstable();
        // Links are in ascending order: so are, of one instant, those that the order of events does not tell apart.
        let arrivals = &self.arrivals;
        for tied in self.turns.chunk_by_mut(|one, other| one >> INDEX_BITS == other >> INDEX_BITS) {
            if tied.len() > 1 {
                tied.sort_by_key(|turn| arrivals[(turn & INDEX_MASK) as usize].order);
            }
        }
    }
}

const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
