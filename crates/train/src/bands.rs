//! Interface of policies that choose the traffic class (band) of each chunk of a send queue, and may change it while
//! the chunk is sent.
//!
//! A send queue calls its [`BandPolicy`] when a transfer becomes ready, when a chunk could be picked, when the flows of
//! a chunk start, and when a message has arrived. The policies themselves are in [`research`](crate::research).

use crate::collective::Aggregation;
use crate::collective::messages::Bands;
use gradtide_net::{Band, Bytes, Network, Time};

/// Chooses and changes the bands of the chunks of a send queue. The queue numbers its chunks in the order in which it
/// picks them.
pub trait BandPolicy {
    /// Called when a transfer is ready. `_gave_at` yields one time per worker: the end of the worker's last op with
    /// dependents.
    fn on_ready(&mut self, _transfer: u32, _now: Time, _gave_at: &mut dyn Iterator<Item = Time>) {}

    /// Called when the queue could pick a chunk. Returns whether it picks the chunk now.
    fn on_pick(&mut self, _chunk: u64, _view: &View) -> Pick {
        Pick::Send
    }

    /// Called when the flows of a picked chunk start. `view` returns the state of the chunk's iteration. `start` starts
    /// the flows in a given band, either on the network itself or on a copy for a forecast.
    fn on_begin(&mut self, chunk: u64, view: &dyn Fn() -> View, start: &StartChunk<'_>) -> Begin;

    /// Called when a rank has received a message of a chunk, before the rank sends its next message. Returns the bands
    /// of the messages that follow.
    fn on_message(&mut self, arrival: &Arrival<'_>) -> NextMessage;
}

/// Starts the flows of a chunk in a given band on a given network.
pub type StartChunk<'a> = dyn Fn(Band, &mut dyn Network) -> Aggregation + 'a;

/// Decision on whether to pick a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// The chunk is picked.
    Send,
    /// The chunk is picked, and all chunks in flight change to this band.
    Raise(Band),
    /// The chunk waits until another chunk has ended.
    Wait,
}

/// State of the iteration of a chunk that could be picked or begins ("this chunk" below).
#[derive(Clone, Debug)]
pub struct View {
    /// Current time.
    pub now: Time,
    /// Iteration of the chunk.
    pub iteration: u32,
    /// Bytes of the chunk.
    pub bytes: Bytes,
    /// Compute time that each worker has completed since the start of the iteration. There is one entry if all workers
    /// are identical.
    pub positions: Vec<Time>,
    /// Bytes of each bucket that are neither sent nor in flight. The bytes of this chunk are not included.
    pub left: Vec<Bytes>,
    /// Buckets of the chunks in flight, followed by the bucket of this chunk.
    pub buckets: Vec<u32>,
    /// Numbers of the other chunks that are in flight.
    pub in_flight: Vec<u64>,
    /// Send priority of each bucket; the lowest number is sent first.
    pub priorities: Vec<u32>,
}

/// Decision on a chunk that begins.
#[derive(Clone, Debug)]
pub struct Begin {
    /// Bands of the chunk's messages.
    pub bands: Bands,
    /// Time at which the chunk will end, if the policy predicts it. The prediction must be exact.
    pub ends: Option<Time>,
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Current time.
    pub now: Time,
    /// Number of the message's chunk.
    pub chunk: u64,
    /// Rank that sent the message.
    pub from: u32,
    /// Rank that received the message.
    pub to: u32,
    /// Numbers of the chunks in flight, including the message's chunk.
    pub in_flight: &'a [u64],
}

/// Decision on the remaining messages of a chunk after an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextMessage {
    /// Whether the sender of the message sends the rest of the chunk in the high band.
    pub is_high: bool,
    /// Band in which the receiver sends from now on; `None` if it is unchanged.
    pub band: Option<Band>,
}
