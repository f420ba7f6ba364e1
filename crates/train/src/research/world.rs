//! Look-ahead for the oracle: simulates a chunk in each band, in copies of the network.
//!
//! ```text
//! network, background flows ─► fork ─► chunk begins in each band ─► end of the chunk ─► horizon ─► time of flows until then
//! ```
//!
//! A job with one chunk in flight uses the network only for this chunk, and the background flows do not depend on the
//! job. Until the chunk ends, a copy therefore behaves exactly like the network itself with the same bands, to the
//! picosecond. After this time the job is idle in the copy, because its next chunk has not been chosen.
//! [`Oracle`](super::oracle::Oracle) chooses a band from the outcomes.

use crate::bands::StartChunk;
use crate::collective::Aggregation;
use crate::traffic::Background;
use gradtide_net::{Band, Bytes, Completion, Flow, FlowId, ForkNetwork, Network, Time};
use gradtide_watch::check_cancelled;
use std::cell::RefCell;
use std::rc::Rc;

/// The network of a run and its background flows. Clones share both, because the main loop and the oracle each need
/// access.
#[derive(Clone)]
pub struct World<'n, 's> {
    network: Rc<RefCell<Box<dyn ForkNetwork + 'n>>>,
    background: Background<'s>,
}

/// The predicted outcome of a chunk in one band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Time at which the chunk ends on the last worker.
    pub ends: Time,
    /// Total time that background flows spend in the network, up to the latest end of the chunk in any candidate band.
    pub flow_time_ps: u128,
}

impl<'n, 's> World<'n, 's> {
    /// Combines a network and the background flows on it.
    pub fn new(network: Box<dyn ForkNetwork + 'n>, background: Background<'s>) -> Self {
        Self { network: Rc::new(RefCell::new(network)), background }
    }

    /// Predicts, for each of several bands, the end of a chunk and the total time that background flows of at most
    /// `largest` bytes spend in the network. `start` starts the chunk in a band.
    pub fn outcomes(&self, bands: &[Band], largest: Bytes, start: &StartChunk<'_>) -> Vec<Outcome> {
        let mut copies: Vec<Copied<'_>> = bands.iter().map(|&band| self.copy(band, start)).collect();
        let ends: Vec<Time> = copies.iter_mut().map(Copied::end).collect();
        let horizon = ends.iter().copied().fold(self.now(), Time::max);
        let outcome =
            |(copy, ends): (&mut Copied<'_>, Time)| Outcome { ends, flow_time_ps: copy.flow_time_ps(horizon, largest) };
        copies.iter_mut().zip(ends).map(outcome).collect()
    }

    fn copy(&self, band: Band, start: &StartChunk<'_>) -> Copied<'s> {
        let mut network = self.network.borrow().fork();
        let chunk = start(band, &mut network);
        let began = network.now();
        Copied { network, background: self.background.copied(), chunk: Some(chunk), began, done: Vec::new() }
    }
}

impl Network for World<'_, '_> {
    fn now(&self) -> Time {
        self.network.borrow().now()
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        self.network.borrow_mut().start(flow)
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        self.network.borrow_mut().advance(until, done);
    }

    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        self.network.borrow().remaining()
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        self.network.borrow_mut().set_band(stream, band);
    }
}

/// A copy of the network and of the background flows, in which a chunk has begun.
struct Copied<'s> {
    network: Box<dyn ForkNetwork>,
    background: Background<'s>,
    /// The chunk; `None` once it has ended.
    chunk: Option<Aggregation>,
    began: Time,
    done: Vec<Completion>,
}

impl Copied<'_> {
    /// Returns the time at which the chunk ends on the last worker; [`Time::MAX`] if it never ends.
    fn end(&mut self) -> Time {
        while self.chunk.is_some() {
            if !self.step(Time::MAX) {
                return Time::MAX;
            }
        }
        self.network.now()
    }

    /// Returns the total time, in picoseconds, that background flows of at most `largest` bytes spend in the network
    /// from the start of the chunk to `horizon`. After the end of the chunk, the job sends nothing.
    fn flow_time_ps(&mut self, horizon: Time, largest: Bytes) -> u128 {
        while self.network.now() < horizon && self.step(horizon) {}
        self.background.flow_time_ps(self.began, horizon, largest)
    }

    /// Advances to the next completion or start, but at most to `limit`, as the loop of [`run`](mod@crate::run) does.
    /// Returns whether events are left.
    fn step(&mut self, limit: Time) -> bool {
        check_cancelled();
        let Self { network, background, chunk, done, .. } = self;
        let now = network.now();
        if let Some(sent) = chunk
            && sent.wakes_at().is_some_and(|at| at <= now)
            && sent.settle(now, network)
        {
            *chunk = None;
            return true;
        }
        background.settle(now, network);
        let until = (background.wakes_at().into_iter())
            .chain(chunk.as_ref().and_then(Aggregation::wakes_at))
            .fold(limit, Time::min);
        network.advance(until, done);
        let goes_on = !done.is_empty() || until < Time::MAX;
        for completion in done.drain(..) {
            match chunk {
                Some(sent) if sent.has(completion.flow) => {
                    if sent.on_completion(completion, network) {
                        *chunk = None;
                    }
                }
                // Messages of other chunks of the job have no effect.
                _ => _ = background.on_completion(network.now(), &completion),
            }
        }
        goes_on
    }
}
