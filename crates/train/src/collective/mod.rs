//! Collectives: what a transfer becomes on the network.

pub mod exchange;
mod pattern;
pub mod plan;
pub mod progress;
pub mod ring;

use gradtide_net::{Completion, Flow, Network};

/// An aggregation under way.
#[derive(Debug)]
pub enum Aggregation {
    /// One flow stands for all hosts, which do the same at the same time.
    LockStep,
    /// Messages between hosts, each sent when the one that it builds on has arrived.
    Ring(ring::Messages),
}

impl Aggregation {
    /// Starts the whole aggregation as one flow.
    pub fn lock_step(flow: Flow, network: &mut dyn Network) -> Self {
        network.start(flow);
        Self::LockStep
    }

    /// Takes in that a flow is complete, and starts what it makes possible; `true` if this was the last.
    pub fn on_completion(&mut self, completion: Completion, network: &mut dyn Network) -> bool {
        match self {
            Self::LockStep => true,
            Self::Ring(messages) => messages.on_completion(completion, network),
        }
    }
}
