//! The send queue of a communicator. It applies the send order, chunking, the in-flight limit and release times.
//!
//! A release time consists of an iteration and an offset of compute time in it. A ready transfer is `held` until its
//! release time has passed. A [`BandPolicy`] may choose the traffic class (band) of each chunk, and may change it while
//! the chunk is being sent.

use super::record::Records;
use super::streams::Streams;
use crate::bands::{Arrival, BandPolicy, Begin, NextMessage, Pick, View};
use crate::collective::Aggregation;
use crate::collective::messages::Bands;
use crate::collective::plan::Passage;
use crate::communicator::Communicator;
use crate::dag::Dag;
use gradtide_net::{Completion, FlowId, Network, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A transfer in the queue. The derived order is the send order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ready {
    /// Iteration of the transfer. All transfers of an iteration precede those of the next one.
    pub iteration: u32,
    /// Send priority; the lowest number is sent first.
    priority: u32,
    /// Sequence number in order of readiness.
    sequence: u64,
    /// Index of the transfer.
    pub transfer: u32,
    /// Next chunk to send.
    pub chunk: u64,
}

/// A ready transfer before its release time. The derived order is the order of release times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    /// Release time: the iteration, and the offset of compute time in it.
    release: (u32, Time),
    iteration: u32,
    transfer: u32,
}

/// A chunk that the queue has picked.
#[derive(Debug)]
struct Sending {
    /// Number of the chunk among all picked chunks.
    number: u64,
    ready: Ready,
    /// Time at which the chunk's first flow starts.
    begins_at: Time,
    /// The chunk's flows, once started.
    aggregation: Option<Aggregation>,
    /// End of the chunk as the band policy predicted it, or `None` without a prediction. The prediction must be exact.
    predicted_end: Option<Time>,
}

/// A chunk that has ended on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// Index of the transfer.
    pub transfer: u32,
    /// Iteration of the transfer.
    pub iteration: u32,
    /// Index of the chunk in the transfer.
    pub chunk: u64,
    /// Time at which the chunk's first flow started.
    pub began: Time,
}

/// State of the job that a queue reads.
#[derive(Clone, Copy)]
pub struct QueueContext<'a> {
    /// Communicator of the queue.
    pub communicator: &'a Communicator,
    /// Stream of the communicator's flows.
    pub stream: u32,
    /// Graph of one iteration.
    pub dag: &'a Dag,
    /// Compute streams, for release times.
    pub streams: &'a Streams,
    /// Send priority of each transfer; the lowest number is sent first.
    pub priorities: &'a [u32],
    /// Current time.
    pub now: Time,
}

/// The queue of a communicator.
pub struct SendQueue<'p> {
    queue: BinaryHeap<Reverse<Ready>>,
    ready_count: u64,
    /// Release time of each transfer: (k, offset of compute time in the k-th iteration after the transfer's own). Empty
    /// if the schedule has no release times.
    release_times: Vec<(u32, Time)>,
    /// Ready transfers before their release time.
    held: BinaryHeap<Reverse<Held>>,
    /// Picked chunks, in the order in which they were picked.
    sending: Vec<Sending>,
    /// Number of chunks picked so far.
    picked_count: u64,
    /// Number of picked chunks that have not started a flow yet.
    unbegun_count: usize,
    in_flight_limit: usize,
    /// Whether the band policy has refused to send the next chunk until another chunk ends.
    is_refused: bool,
    /// Time up to which `TransferRecord::busy` has been counted.
    counted_to: Time,
    /// Time from which the next chunk may be sent: the global syncer takes the time `sync` after each chunk.
    free_at: Time,
    sync: Time,
    /// Policy that chooses bands; `None` if bands are fixed.
    policy: Option<Box<dyn BandPolicy + 'p>>,
}

impl<'p> SendQueue<'p> {
    /// Creates an empty queue.
    pub fn new(communicator: &Communicator, policy: Option<Box<dyn BandPolicy + 'p>>) -> Self {
        Self {
            queue: BinaryHeap::new(),
            ready_count: 0,
            release_times: communicator.releases(),
            held: BinaryHeap::new(),
            sending: Vec::new(),
            picked_count: 0,
            unbegun_count: 0,
            in_flight_limit: communicator.in_flight_limit,
            is_refused: false,
            counted_to: Time::ZERO,
            free_at: Time::ZERO,
            sync: communicator.sync,
            policy,
        }
    }

    /// Returns whether a chunk is in progress.
    #[inline]
    pub fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Returns whether a call of [`send`](Self::send) could have an effect, now or later.
    #[inline]
    pub fn may_send(&self) -> bool {
        self.unbegun_count > 0 || (!self.queue.is_empty() && self.can_pick()) || !self.held.is_empty()
    }

    /// Returns the time of the queue's next event outside the network.
    #[inline]
    pub fn wakes_at(&self, dag: &Dag, streams: &Streams) -> Time {
        let mut at = Time::MAX;
        for sending in &self.sending {
            at = at.min(match &sending.aggregation {
                None => sending.begins_at,
                Some(aggregation) => aggregation.wakes_at().unwrap_or(Time::MAX),
            });
        }
        if self.can_pick() && !self.queue.is_empty() {
            at = at.min(self.free_at);
        }
        at.min(self.next_release(dag, streams).unwrap_or(Time::MAX))
    }

    /// Adds a transfer that has become ready, or holds it until its release time.
    pub fn on_ready(&mut self, transfer: u32, iteration: u32, context: &QueueContext<'_>) {
        if let Some(policy) = &mut self.policy {
            let mut last_output_at = context.streams.workers.iter().map(|worker| worker.last_output_at);
            policy.on_ready(transfer, context.now, &mut last_output_at);
        }
        match self.release_times.get(transfer as usize) {
            Some(&(later, offset)) => {
                self.held.push(Reverse(Held { release: (iteration + later, offset), iteration, transfer }));
            }
            None => self.enqueue(transfer, iteration, context.priorities),
        }
    }

    fn enqueue(&mut self, transfer: u32, iteration: u32, priorities: &[u32]) {
        let (priority, sequence) = (priorities[transfer as usize], self.ready_count);
        self.queue.push(Reverse(Ready { iteration, priority, sequence, transfer, chunk: 0 }));
        self.ready_count += 1;
    }

    /// Returns the earliest release time of a held transfer, or `None` if it cannot be predicted because a worker
    /// stalls.
    #[inline]
    fn next_release(&self, dag: &Dag, streams: &Streams) -> Option<Time> {
        let &Reverse(Held { release, .. }) = self.held.peek()?;
        streams.passes_at(release, dag)
    }

    /// Handles one chunk's reductions that have ended by now, because the network reports only arrivals. Returns the
    /// chunk if its last reduction has ended.
    #[inline]
    pub fn settle(&mut self, now: Time, network: &mut dyn Network, records: &mut Records) -> Option<Ended> {
        let has_ended = |sending: &mut Sending| match &mut sending.aggregation {
            Some(aggregation) if aggregation.wakes_at().is_some_and(|at| at <= now) => aggregation.settle(now, network),
            _ => false,
        };
        let index = self.sending.iter_mut().rposition(has_ended)?;
        Some(self.on_aggregated(index, now, records))
    }

    /// Handles the end of a flow. Returns the chunk if this was its last flow.
    pub fn on_completion(
        &mut self,
        now: Time,
        completion: Completion,
        network: &mut dyn Network,
        records: &mut Records,
    ) -> Option<Ended> {
        let has = |sending: &Sending| sending.aggregation.as_ref().is_some_and(|it| it.has(completion.flow));
        let index = if self.sending.len() == 1 { Some(0) } else { self.sending.iter().position(has) };
        let index = index.expect("the queue has a chunk under way");
        if self.policy.is_some() {
            self.on_message(index, completion.flow, now, records);
        }
        let aggregation = self.sending[index].aggregation.as_mut().expect("its flows have started");
        aggregation.on_completion(completion, network).then(|| self.on_aggregated(index, now, records))
    }

    /// Passes the arrival of a message to the band policy, which chooses the band of the receiver's next message.
    fn on_message(&mut self, index: usize, flow: FlowId, now: Time, records: &mut Records) {
        let in_flight = self.in_flight();
        let Sending { number, aggregation, ready, .. } = &mut self.sending[index];
        let messages = aggregation.as_mut().and_then(Aggregation::messages);
        let (Some(messages), Some(policy)) = (messages, &mut self.policy) else { return };
        let Passage { from, to, .. } = messages.passage(flow);
        let arrival = Arrival { now, chunk: *number, from, to, in_flight: &in_flight };
        let NextMessage { is_high, band } = policy.on_message(&arrival);
        if let Some(band) = band {
            messages.set_band(to, band);
        }
        let record = records.of(ready.iteration, ready.transfer);
        record.messages += 1;
        record.high += u32::from(is_high);
    }

    fn in_flight(&self) -> Vec<u64> {
        self.sending.iter().map(|sending| sending.number).collect()
    }

    fn on_aggregated(&mut self, index: usize, now: Time, records: &mut Records) -> Ended {
        self.is_refused = false;
        self.count_busy(now, records);
        let Sending { ready, begins_at, predicted_end, .. } = self.sending.remove(index);
        assert!(predicted_end.is_none_or(|at| at == now), "what was foreseen comes: {predicted_end:?}, not {now:?}");
        self.free_at = now + self.sync;
        Ended { transfer: ready.transfer, iteration: ready.iteration, chunk: ready.chunk, began: begins_at }
    }

    /// Queues the transfers whose release time has passed, picks chunks, and starts their flows.
    pub fn send(&mut self, context: &QueueContext<'_>, network: &mut dyn Network, records: &mut Records) {
        let (now, communicator) = (context.now, context.communicator);
        while self.next_release(context.dag, context.streams).is_some_and(|at| at <= now)
            && let Some(Reverse(held)) = self.held.pop()
        {
            self.enqueue(held.transfer, held.iteration, context.priorities);
        }
        while self.can_pick()
            && self.free_at <= now
            && let Some(&Reverse(ready)) = self.queue.peek()
        {
            if !self.may_pick(ready, context, records) {
                break;
            }
            self.queue.pop();
            let begins_at = now + communicator.delay_before_flows();
            if ready.chunk + 1 < communicator.chunk_count(ready.transfer) {
                self.queue.push(Reverse(Ready { chunk: ready.chunk + 1, ..ready }));
            }
            self.unbegun_count += 1;
            let number = self.picked_count;
            self.picked_count += 1;
            self.sending.push(Sending { number, ready, begins_at, aggregation: None, predicted_end: None });
        }
        let sending_count = if self.unbegun_count > 0 { self.sending.len() } else { 0 };
        for index in 0..sending_count {
            let Sending { ready: Ready { transfer, chunk, .. }, begins_at, .. } = self.sending[index];
            if self.sending[index].aggregation.is_none() && begins_at <= now {
                self.count_busy(now, records);
                let bands = self.bands(index, context, network, records);
                let aggregation = communicator.begin(transfer, chunk, bands, context.stream, network);
                self.sending[index].aggregation = Some(aggregation);
                self.unbegun_count -= 1;
            }
        }
    }

    fn may_pick(&mut self, ready: Ready, context: &QueueContext<'_>, records: &Records) -> bool {
        let Some(policy) = &mut self.policy else { return true };
        let view = view(ready, &self.sending, context, records);
        match policy.on_pick(self.picked_count, &view) {
            Pick::Send => {}
            Pick::Wait => self.is_refused = true,
            Pick::Raise(band) => {
                let aggregations = self.sending.iter_mut().filter_map(|sending| sending.aggregation.as_mut());
                aggregations.filter_map(Aggregation::messages).for_each(|messages| messages.set_all_bands(band));
            }
        }
        !self.is_refused
    }

    /// Returns the bands that the policy chooses for a chunk that begins. Returns `None` without a policy; the job's
    /// fixed bands then apply.
    fn bands(
        &mut self,
        index: usize,
        context: &QueueContext<'_>,
        network: &mut dyn Network,
        records: &Records,
    ) -> Option<Bands> {
        let policy = self.policy.as_mut()?;
        let Sending { number, ready, .. } = self.sending[index];
        let start = |band, network: &mut dyn Network| {
            network.set_band(context.stream, band);
            let bands = Some(Bands::Alike(band));
            context.communicator.begin(ready.transfer, ready.chunk, bands, context.stream, network)
        };
        let Begin { bands, ends } = policy.on_begin(number, &|| view(ready, &[], context, records), &start);
        if let Bands::Alike(band) = bands {
            network.set_band(context.stream, band);
        }
        self.sending[index].predicted_end = ends;
        Some(bands)
    }

    /// Returns whether the in-flight limit and the band policy admit another chunk.
    #[inline]
    fn can_pick(&self) -> bool {
        self.sending.len() < self.in_flight_limit && !self.is_refused
    }

    /// Adds the time since the last call to the busy time of the first chunk in progress.
    fn count_busy(&mut self, now: Time, records: &mut Records) {
        if let Some(first) = self.sending.first().filter(|first| first.aggregation.is_some()) {
            records.of(first.ready.iteration, first.ready.transfer).busy += now - self.counted_to;
        }
        self.counted_to = now;
    }
}

/// Returns the state of an iteration that the band policy reads before a chunk is sent. The bytes left of each bucket
/// exclude this chunk and the chunks in flight.
fn view(ready: Ready, in_flight: &[Sending], context: &QueueContext<'_>, records: &Records) -> View {
    let Ready { iteration, transfer, chunk, .. } = ready;
    let gradients = context.communicator.gradients().expect("bands change where gradients are aggregated");
    let mut buckets: Vec<u32> = in_flight.iter().map(|sending| sending.ready.transfer).collect();
    buckets.push(transfer);
    let left_of = |other: u32| {
        let begun = buckets.iter().filter(|&&begun| begun == other).count() as u64;
        let gone = u64::from(records.get(iteration, other).arrived_count) + begun;
        (gone..gradients.chunk_count(other)).map(|chunk| gradients.chunk_bytes(other, chunk)).sum()
    };
    View {
        now: context.now,
        iteration,
        bytes: gradients.chunk_bytes(transfer, chunk),
        positions: context.streams.positions(iteration, gradients.boundaries.compute, context.now),
        left: (0..gradients.buckets.len() as u32).map(left_of).collect(),
        buckets,
        in_flight: in_flight.iter().map(|sending| sending.number).collect(),
        priorities: context.priorities.to_vec(),
    }
}
