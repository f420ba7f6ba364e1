//! What an engine has counted, all of it at once.

use super::PacketEngine;
use crate::topology::PortId;
use crate::trace::{Counters, PortCounters, Tally};

/// Totals of the run and of each port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub counters: Counters,
    /// By port.
    pub ports: Vec<PortCounters>,
}

impl Totals {
    pub fn of(engine: &mut PacketEngine) -> Self {
        let ports = (0..engine.map.ends.len() as u32).map(|port| engine.port_counters(PortId(port))).collect();
        Self { counters: engine.counters(), ports }
    }

    /// What `engine` has counted, and these.
    pub fn counters_with(&self, engine: &PacketEngine) -> Counters {
        let mut counters = engine.counters();
        counters.add(&self.counters);
        counters
    }

    /// The same of one port.
    pub fn port_counters_with(&self, engine: &mut PacketEngine, port: PortId) -> PortCounters {
        let mut counters = engine.port_counters(port);
        if let Some(more) = self.ports.get(port.0 as usize) {
            counters.add(more);
        }
        counters
    }

    pub fn since(&self, before: &Self) -> Self {
        let ports = self.ports.iter().zip(&before.ports).map(|(now, then)| now.since(then)).collect();
        Self { counters: self.counters.since(&before.counters), ports }
    }

    pub fn add(&mut self, more: &Self) {
        self.counters.add(&more.counters);
        self.ports.resize(more.ports.len(), PortCounters::default());
        self.ports.iter_mut().zip(&more.ports).for_each(|(sum, more)| sum.add(more));
    }
}
