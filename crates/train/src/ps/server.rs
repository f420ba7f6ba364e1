//! State of the servers during a run: the times at which they add and apply the gradients that workers push.
//!
//! A server handles gradients in the order of their arrival. With synchronous workers it applies the sum of all
//! workers' gradients of a parameter; with asynchronous workers it applies each gradient on its own.

use super::PsJob;
use gradtide_net::Time;
use std::collections::VecDeque;

/// The servers of a job.
pub struct Servers {
    /// Time at which each server will have added and applied all gradients received so far.
    free_at: Vec<Time>,
    parameters: Vec<Parameter>,
}

/// Gradients of one parameter.
struct Parameter {
    /// Number of gradients of the iteration that have not arrived. Used for synchronous workers.
    missing_count: u32,
    /// Number of gradients that have arrived. Used for asynchronous workers.
    arrived_count: u64,
    applied_count: u64,
    /// Times at which the gradients that have arrived but are not applied will be applied.
    pending: VecDeque<Time>,
}

/// A gradient of an asynchronous worker. The server applies it without waiting for other workers.
#[derive(Clone, Copy, Debug)]
pub struct Applied {
    /// Time at which the gradient is applied.
    pub at: Time,
    /// Number of gradients of this parameter that arrived before this gradient.
    pub before: u64,
}

impl Servers {
    /// Creates idle servers.
    pub fn new(job: &PsJob) -> Self {
        let missing_count = job.workers.len() as u32;
        let parameter = |_| Parameter { missing_count, arrived_count: 0, applied_count: 0, pending: VecDeque::new() };
        Self {
            free_at: vec![Time::ZERO; job.servers.len()],
            parameters: (0..job.graph.parameters.len()).map(parameter).collect(),
        }
    }

    /// Handles the arrival of a gradient. Returns the time at which it is applied, unless workers are synchronous and
    /// the server waits for the gradients of all workers.
    pub fn on_pushed(&mut self, parameter: u32, now: Time, job: &PsJob) -> Option<Applied> {
        let free_at = &mut self.free_at[job.server_of[parameter as usize] as usize];
        *free_at = (*free_at).max(now) + job.adding_time(parameter);
        let update = job.graph.parameters[parameter as usize].update;
        let gradients = &mut self.parameters[parameter as usize];
        if job.is_synchronous() {
            gradients.missing_count -= 1;
            if gradients.missing_count == 0 {
                *free_at += update;
                gradients.missing_count = job.workers.len() as u32;
            }
            return None;
        }
        *free_at += update;
        gradients.arrived_count += 1;
        gradients.pending.push_back(*free_at);
        Some(Applied { at: *free_at, before: gradients.arrived_count - 1 })
    }

    /// Returns the time at which all gradients that have arrived will be applied.
    pub fn idle_at(&self) -> Time {
        self.free_at.iter().copied().max().unwrap_or(Time::ZERO)
    }

    /// Returns the number of gradients that have been applied to each parameter by `now`, for asynchronous workers.
    pub fn applied_counts(&mut self, now: Time) -> impl Iterator<Item = u64> {
        self.parameters.iter_mut().map(move |gradients| {
            while gradients.pending.front().is_some_and(|&at| at <= now) {
                gradients.pending.pop_front();
                gradients.applied_count += 1;
            }
            gradients.applied_count
        })
    }
}
