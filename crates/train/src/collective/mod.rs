//! Collectives: what a transfer becomes on the network.

pub mod exchange;
pub mod group;
pub mod levels;
pub mod messages;
pub mod nodes;
mod pattern;
pub mod plan;
pub mod progress;
pub mod ring;

use gradtide_net::{Completion, Flow, FlowId, Network, Time};

/// An aggregation under way.
#[derive(Debug)]
pub enum Aggregation {
    /// One flow stands for all.
    Whole(FlowId),
    /// So do several at once: those of each level and class that have not ended.
    Several(Vec<FlowId>),
    /// Messages between hosts, each sent when what it waits for has arrived.
    Messages(Box<messages::Messages>),
}

impl Aggregation {
    /// Starts the whole aggregation as one flow.
    pub fn whole(flow: Flow, network: &mut dyn Network) -> Self {
        Self::Whole(network.start(flow))
    }

    /// Whether a flow under way is one of its own.
    pub fn has(&self, flow: FlowId) -> bool {
        match self {
            Self::Whole(own) => *own == flow,
            Self::Several(own) => own.contains(&flow),
            Self::Messages(messages) => messages.has(flow),
        }
    }

    /// Its messages, if there are several.
    pub fn messages(&mut self) -> Option<&mut messages::Messages> {
        match self {
            Self::Whole(_) | Self::Several(_) => None,
            Self::Messages(messages) => Some(messages),
        }
    }

    /// Handles the end of a flow and starts what waited for it; `true` if this was the last.
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

    /// When something next ends of which the network does not tell.
    pub fn wakes_at(&self) -> Option<Time> {
        match self {
            Self::Whole(_) | Self::Several(_) => None,
            Self::Messages(messages) => messages.wakes_at(),
        }
    }

    /// Handles what has ended by now and starts what waited for it; `true` if this was the last.
    pub fn settle(&mut self, now: Time, network: &mut dyn Network) -> bool {
        match self {
            Self::Whole(_) | Self::Several(_) => false,
            Self::Messages(messages) => messages.settle(now, network),
        }
    }
}
