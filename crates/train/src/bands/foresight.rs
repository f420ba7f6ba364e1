//! Look-ahead for the oracle: simulates a chunk in each band, in a copy of the network.
//!
//! ```text
//! network, background flows ─► fork ─► chunk begins in each band ─► end of the chunk ─► horizon ─► time of flows until then
//! ```
//!
//! A job with one chunk in flight uses the network only for this chunk, and the background flows do not depend on the
//! job. So, until the chunk ends, a copy behaves exactly as the network itself does with the same bands, to the
//! picosecond. After that the job of the copy is idle, because its next chunk has not been chosen.
//! [`Oracle`](super::priority::Oracle) makes the choice.

use super::priority::Foreseen;
use crate::collective::Aggregation;
use crate::traffic::BackgroundFlows;
use gradtide_net::{Band, Bytes, Completion, Network, Time};
use gradtide_watch::look;

/// Predicts the end of a chunk, and the time of the background flows, for each of several bands. `begin` starts the
/// chunk in a band. Flows of at most `largest` bytes count.
///
/// # Panics
/// If the network cannot be copied.
pub fn foresee(
    network: &dyn Network,
    background: &[BackgroundFlows<'_>],
    largest: Bytes,
    ways: &[Band],
    begin: &dyn Fn(Band, &mut dyn Network) -> Aggregation,
) -> Vec<Foreseen> {
    let fork = |&band: &Band| World::fork(network, background, &|network| begin(band, network));
    let mut worlds: Vec<World<'_>> =
        ways.iter().map(fork).collect::<Option<_>>().expect("engines that carry messages can be copied");
    let ends: Vec<Time> = worlds.iter_mut().map(World::end).collect();
    let horizon = ends.iter().copied().fold(network.now(), Time::max);
    let seen =
        |(world, ends): (&mut World<'_>, Time)| Foreseen { ends, flow_time_ps: world.flow_time_ps(horizon, largest) };
    worlds.iter_mut().zip(ends).map(seen).collect()
}

/// A copy of the network and of the background flows, in which a chunk has begun.
struct World<'a> {
    network: Box<dyn Network>,
    background: Vec<BackgroundFlows<'a>>,
    /// `None` once it has ended.
    chunk: Option<Aggregation>,
    began: Time,
    done: Vec<Completion>,
}

impl<'a> World<'a> {
    /// Copies the present state and starts the chunk by `begin`; `None` if the network cannot be copied.
    fn fork(
        network: &dyn Network,
        background: &[BackgroundFlows<'a>],
        begin: &dyn Fn(&mut dyn Network) -> Aggregation,
    ) -> Option<Self> {
        let mut network = network.fork()?;
        let chunk = begin(network.as_mut());
        let began = network.now();
        Some(Self { network, background: background.to_vec(), chunk: Some(chunk), began, done: Vec::new() })
    }

    /// When the chunk has ended on all workers; [`Time::MAX`] if it never does.
    fn end(&mut self) -> Time {
        while self.chunk.is_some() {
            if !self.step(Time::MAX) {
                return Time::MAX;
            }
        }
        self.network.now()
    }

    /// The sum of the times, in picoseconds, that background flows of at most `largest` bytes spend in the network from
    /// the start of the chunk to `horizon`. The job sends nothing once its chunk has ended.
    fn flow_time_ps(&mut self, horizon: Time, largest: Bytes) -> u128 {
        while self.network.now() < horizon && self.step(horizon) {}
        let flows = self.background.iter().map(|flows| flows.flow_time_ps(self.began, horizon, largest));
        flows.sum()
    }

    /// Advances to the next completion or start, or to `limit`, like the loop of [`run`](mod@crate::run); `false` if no
    /// event is left.
    fn step(&mut self, limit: Time) -> bool {
        look();
        let now = self.network.now();
        if let Some(chunk) = &mut self.chunk
            && chunk.wakes_at().is_some_and(|at| at <= now)
            && chunk.settle(now, self.network.as_mut())
        {
            self.chunk = None;
            return true;
        }
        for flows in &mut self.background {
            flows.settle(now, self.network.as_mut());
        }
        let until = (self.background.iter().filter_map(BackgroundFlows::wakes_at))
            .chain(self.chunk.as_ref().and_then(Aggregation::wakes_at))
            .fold(limit, Time::min);
        self.network.advance(until, &mut self.done);
        let goes_on = !self.done.is_empty() || until < Time::MAX;
        for completion in self.done.drain(..) {
            let now = self.network.now();
            match &mut self.chunk {
                Some(chunk) if chunk.has(completion.flow) => {
                    if chunk.on_completion(completion, self.network.as_mut()) {
                        self.chunk = None;
                    }
                }
                _ => {
                    let mut background = self.background.iter_mut();
                    if let Some(flows) = background.find(|flows| flows.stream() == completion.stream) {
                        flows.on_completion(now, completion);
                    }
                }
            }
        }
        goes_on
    }
}
