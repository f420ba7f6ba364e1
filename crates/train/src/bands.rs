//! Policies that choose the traffic class (band) of each chunk of a send queue, and change it while the chunk is sent.
//!
//! A send queue calls its [`BandPolicy`] at four points: a transfer is ready, a chunk could be picked, its flows start,
//! a message has arrived. The policies themselves are in [`research`](crate::research).

use crate::collective::Aggregation;
use crate::collective::messages::Bands;
use gradtide_net::{Band, Bytes, Network, Time};

/// Chooses and changes the bands of the chunks of a send queue, which numbers them.
pub trait BandPolicy {
    /// A transfer is ready. `last_output_at` has the time at which each worker completed its last part of a transfer.
    fn on_ready(&mut self, _transfer: u32, _now: Time, _gave_at: &mut dyn Iterator<Item = Time>) {}

    /// The queue could pick a chunk.
    fn on_pick(&mut self, _chunk: u64, _view: &View) -> Pick {
        Pick::Send
    }

    /// The flows of a picked chunk start. `view` returns the rest of the iteration, and `start` starts the flows in a
    /// band, on the network or on a copy of it.
    fn on_begin(&mut self, chunk: u64, view: &dyn Fn() -> View, start: &StartChunk<'_>) -> Begin;

    /// A rank has received a message of a chunk, and sends its next one.
    fn on_message(&mut self, arrival: &Arrival<'_>) -> NextMessage;
}

/// Starts the flows of a chunk in a band.
pub type StartChunk<'a> = dyn Fn(Band, &mut dyn Network) -> Aggregation + 'a;

/// Whether a chunk is picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// It is.
    Send,
    /// It is, and all chunks in flight change to a band.
    Raise(Band),
    /// It waits until another chunk has ended.
    Wait,
}

/// The rest of an iteration when a chunk is picked or begins.
#[derive(Clone, Debug)]
pub struct View {
    /// Present time.
    pub now: Time,
    /// Iteration of the chunk.
    pub iteration: u32,
    /// Its bytes.
    pub bytes: Bytes,
    /// Compute progress of each worker since the start of the iteration; one entry if all are alike.
    pub positions: Vec<Time>,
    /// Bytes of every bucket that have not arrived, except those of this chunk and of others in flight.
    pub left: Vec<Bytes>,
    /// Buckets of the chunks in flight, and of this one.
    pub buckets: Vec<u32>,
    /// Chunks in flight, without this one.
    pub in_flight: Vec<u64>,
    /// Send priority of each bucket: the lowest goes first.
    pub priorities: Vec<u32>,
}

/// The choice for a chunk that begins.
#[derive(Clone, Debug)]
pub struct Begin {
    /// The bands.
    pub bands: Bands,
    /// When the chunk will end, if the policy predicts it. It must be exact.
    pub ends: Option<Time>,
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Present time.
    pub now: Time,
    /// Its chunk.
    pub chunk: u64,
    /// Its sender.
    pub from: u32,
    /// Its receiver.
    pub to: u32,
    /// Chunks in flight, with this one.
    pub in_flight: &'a [u64],
}

/// What a policy says of the messages of a chunk after an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextMessage {
    /// Whether the sender of the message sends the rest of the chunk in the high band.
    pub is_high: bool,
    /// Band in which its receiver sends from now on, if it may have changed.
    pub band: Option<Band>,
}
