//! Collectives: each turns a transfer into flows or messages on the network.

pub mod algorithm;
pub mod algorithms;
pub mod counts;
pub mod exchange;
pub mod group;
pub mod levels;
pub mod messages;
pub mod nodes;
pub mod pattern;
pub mod plan;
pub mod progress;

use gradtide_net::{Completion, Flow, FlowId, Network, Time};

/// A collective in progress.
#[derive(Debug)]
pub enum Aggregation {
    /// One flow models the whole collective.
    Whole(FlowId),
    /// Concurrent flows model the collective, one for each level and each rank or class of ranks. The list contains the
    /// flows in flight.
    Several(Vec<FlowId>),
    /// Messages between hosts. Each is sent when the messages on which it depends have arrived.
    Messages(Box<messages::Messages>),
}

impl Aggregation {
    /// Starts a collective that is modelled by one flow.
    pub fn whole(flow: Flow, network: &mut dyn Network) -> Self {
        Self::Whole(network.start(flow))
    }

    /// Returns whether a flow in flight belongs to this collective.
    pub fn has(&self, flow: FlowId) -> bool {
        match self {
            Self::Whole(own) => *own == flow,
            Self::Several(own) => own.contains(&flow),
            Self::Messages(messages) => messages.has(flow),
        }
    }

    /// Returns the messages, if the collective is simulated message by message.
    pub fn messages(&mut self) -> Option<&mut messages::Messages> {
        match self {
            Self::Whole(_) | Self::Several(_) => None,
            Self::Messages(messages) => Some(messages),
        }
    }

    /// Handles the end of a flow and sends the messages that depend on it. Returns whether the collective is complete.
    pub fn on_completion(&mut self, completion: Completion, network: &mut dyn Network) -> bool {
        match self {
            Self::Whole(_) => true,
            Self::Several(own) => {
                own.retain(|&flow| flow != completion.flow);
                own.is_empty()
            }
            Self::Messages(messages) => messages.on_completion(completion, network),
        }
    }

    /// Returns the end of the next reduction. The network does not report the ends of reductions.
    pub fn wakes_at(&self) -> Option<Time> {
        match self {
            Self::Whole(_) | Self::Several(_) => None,
            Self::Messages(messages) => messages.wakes_at(),
        }
    }

    /// Handles the reductions that have ended by `now` and sends the messages that depend on them. Returns whether the
    /// collective is complete.
    pub fn settle(&mut self, now: Time, network: &mut dyn Network) -> bool {
        match self {
            Self::Whole(_) | Self::Several(_) => false,
            Self::Messages(messages) => messages.settle(now, network),
        }
    }
}
