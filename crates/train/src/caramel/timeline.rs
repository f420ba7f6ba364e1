//! Simulates iterations of a transfer plan on one compute stream and one channel.
//!
//! In every iteration, compute runs through the offsets from 0 to C. At an offset at which a parameter is read, compute
//! waits until the parameter's aggregation in the previous iteration has ended. The first iteration does not wait. A
//! transfer may be sent when compute has passed its release offset, so stalls delay the transfers of the plan.
//! The channel is work-conserving and non-preemptive.

use super::Boundaries;
use super::transfers::{PlannedTransfer, TransferPlan};
use gradtide_net::Time;
use gradtide_watch::check_cancelled;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Maximum number of simulated iterations. If communication takes slightly longer than computation, the backlog of the
/// channel stalls compute only after many iterations. With a thousand iterations, the remaining error is one or two
/// thousandths of an iteration.
pub const MAX_ITERATIONS: u32 = 1000;

/// A transfer that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentTransfer {
    /// Iteration of the transfer.
    pub iteration: u32,
    /// Index of the transfer in the plan.
    pub transfer: u32,
    /// Start on the channel.
    pub start: Time,
    /// End on the channel.
    pub end: Time,
}

/// Result of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Start of each iteration, followed by the end of the last iteration.
    pub starts: Vec<Time>,
    /// Index in `starts` of an earlier start at which the state of the channel equals its state at the last start. The
    /// iterations between the two starts repeat for ever.
    pub repeats_from: usize,
    /// All transfers, in the order in which they were sent.
    pub sent: Vec<SentTransfer>,
    /// Compute time C of an iteration.
    pub compute: Time,
    /// Transfer time N of an iteration.
    pub communication: Time,
}

impl Timeline {
    /// Returns T, the mean duration of the iterations that repeat, rounded up.
    pub fn iteration_time(&self) -> Time {
        let last = self.starts.len() - 1;
        let span = self.starts[last] - self.starts[self.repeats_from];
        Time::from_ps(span.ps().div_ceil((last - self.repeats_from) as u64))
    }
}

/// Simulates iterations until the state of the channel recurs, then sends the remaining transfers. If no state recurs
/// within [`MAX_ITERATIONS`], the second half of the iterations counts as the period.
///
/// # Panics
/// If the release offset of a transfer is later than the read that waits for the transfer, or if simulated time exceeds
/// 213 days.
pub fn run(boundaries: &Boundaries, plan: &TransferPlan) -> Timeline {
    let reads_at = |parameter: u32| {
        if plan.has_barrier { Time::ZERO } else { boundaries.windows[parameter as usize].read }
    };
    let mut events: Vec<(Time, ComputeEvent)> = Vec::new();
    for (index, transfer) in plan.transfers.iter().enumerate() {
        let read = transfer.parameters.iter().map(|&parameter| reads_at(parameter)).min().unwrap_or(Time::ZERO);
        assert!(transfer.release <= boundaries.compute + read, "compute would wait for what waits for it");
        let in_next = transfer.release >= boundaries.compute;
        let offset = if in_next { transfer.release - boundaries.compute } else { transfer.release };
        events.push((offset, ComputeEvent::Open { transfer: index as u32, in_next }));
    }
    for parameter in 0..boundaries.windows.len() as u32 {
        events.push((reads_at(parameter), ComputeEvent::Read(parameter)));
    }
    events.sort();

    let mut channel = Channel::new(boundaries, plan);
    let mut now = Time::ZERO;
    let mut starts = Vec::new();
    let mut seen = BTreeMap::new();
    let repeats_from = loop {
        let iteration = starts.len() as u32;
        starts.push(now);
        channel.send_until(now);
        // The first iteration does not wait for a previous one, so its state cannot recur.
        if iteration > 0
            && let Some(before) = seen.insert(channel.state(now, iteration), iteration)
        {
            break before as usize;
        }
        if iteration == MAX_ITERATIONS {
            break MAX_ITERATIONS as usize / 2;
        }
        let start = now;
        let mut stalled = Time::ZERO;
        for &(offset, event) in &events {
            check_cancelled();
            now = start + stalled + offset;
            match event {
                ComputeEvent::Open { in_next: true, .. } if iteration == 0 => {}
                ComputeEvent::Open { in_next, transfer } => channel.open(now, iteration - u32::from(in_next), transfer),
                ComputeEvent::Read(parameter) => stalled += channel.wait(now, iteration, parameter) - now,
            }
        }
        now = start + stalled + boundaries.compute;
    };
    // The remaining transfers of the last iteration are released without stalls, because no further iteration waits for
    // them.
    for &(offset, event) in &events {
        if let ComputeEvent::Open { in_next: true, transfer } = event {
            channel.open(now + offset, starts.len() as u32 - 2, transfer);
        }
    }
    channel.send_until(Time::MAX);
    let communication = plan.transfers.iter().map(|transfer| transfer.time).sum();
    Timeline { starts, repeats_from, sent: channel.sent, compute: boundaries.compute, communication }
}

/// Returns a lower bound of the iteration time. It holds for all plans on one channel that send these transfers, whole
/// or in pieces.
///
/// The bound is the maximum of C, of N, and of one sum for each pair of a read at r and a later update at u: u - r,
/// plus the time of all transfers with an update at or after u and a read at or before r. For a single transfer this
/// sum is a critical path (read, compute, update, aggregate, read).
///
/// Preemptive earliest deadline first attains the bound if all parameters are read before the first one is updated.
///
/// # Source
/// Horn (1974): minimal maximum lateness of jobs with release times and deadlines on one machine with preemption.
pub fn lower_bound(boundaries: &Boundaries, transfers: &[PlannedTransfer]) -> Time {
    let bound = boundaries.compute.max(transfers.iter().map(|transfer| transfer.time).sum());
    let window = |transfer: &PlannedTransfer| boundaries.group(transfer.parameters.clone()).window;
    let mut jobs: Vec<(Time, Time, Time)> =
        (transfers.iter()).map(|transfer| (window(transfer).update, window(transfer).read, transfer.time)).collect();
    jobs.sort_unstable_by_key(|&(update, ..)| Reverse(update));
    let mut reads: Vec<Time> = jobs.iter().map(|job| job.1).collect();
    reads.sort_unstable();
    reads.dedup();
    // For each time of a read: the total time of the transfers with an update at or after `first` and a read at or
    // before this time, minus this time.
    let mut sums = PrefixMaxima::new(reads.iter().map(|read| -i128::from(read.ps())).collect());
    let mut bound = i128::from(bound.ps());
    for (index, &(first, read, time)) in jobs.iter().enumerate() {
        sums.add(reads.partition_point(|&other| other < read), i128::from(time.ps()));
        if jobs.get(index + 1).is_none_or(|next| next.0 < first) {
            let earlier = reads.partition_point(|&read| read <= first);
            bound = bound.max(i128::from(first.ps()) + sums.prefix_max(earlier));
        }
    }
    Time::from_ps(u64::try_from(bound).unwrap_or(u64::MAX))
}

/// A segment tree over a sequence of numbers. It supports two operations: to add a value to all numbers from an index
/// on, and to return the maximum of a prefix. The leaves are the differences of consecutive numbers. Each node contains
/// the sum of its leaves and the maximum of their prefix sums.
struct PrefixMaxima {
    /// Number of leaves, a power of two.
    width: usize,
    /// For each node, the sum of the differences below it, and the maximum of their prefix sums.
    nodes: Vec<(i128, i128)>,
}

impl PrefixMaxima {
    fn new(numbers: Vec<i128>) -> Self {
        let width = numbers.len().next_power_of_two();
        let mut nodes = vec![(0, i128::MIN / 4); 2 * width];
        let mut before = 0;
        for (leaf, number) in numbers.into_iter().enumerate() {
            nodes[width + leaf] = (number - before, number - before);
            before = number;
        }
        let mut suffixes = Self { width, nodes };
        (1..width).rev().for_each(|node| suffixes.join(node));
        suffixes
    }

    fn join(&mut self, node: usize) {
        let ((left, left_max), (right, right_max)) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        self.nodes[node] = (left + right, left_max.max(left + right_max));
    }

    fn add(&mut self, from: usize, value: i128) {
        let mut node = self.width + from;
        self.nodes[node].0 += value;
        self.nodes[node].1 += value;
        while node > 1 {
            node /= 2;
            self.join(node);
        }
    }

    fn prefix_max(&self, count: usize) -> i128 {
        let (mut node, mut from, mut width) = (1, 0, self.width);
        let (mut sum, mut most) = (0, i128::MIN / 4);
        while from < count {
            if from + width <= count {
                return most.max(sum + self.nodes[node].1);
            }
            width /= 2;
            let (left, left_max) = self.nodes[2 * node];
            if from + width <= count {
                most = most.max(sum + left_max);
                (sum, from, node) = (sum + left, from + width, 2 * node + 1);
            } else {
                node *= 2;
            }
        }
        most
    }
}

/// An event at an offset of compute time. At equal offsets, releases of transfers (`Open`) precede reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ComputeEvent {
    Open { transfer: u32, in_next: bool },
    Read(u32),
}

/// State of the channel: the transfers in flight, then the released transfers that wait. An entry contains the
/// transfer's index and the number of iterations since the iteration to which it belongs. Transfers in flight also have
/// their remaining time.
type ChannelState = (Vec<(u32, u32, Time)>, Vec<(u32, u32)>);

/// The channel, simulated up to the time `known`. All releases before this time have been registered.
struct Channel<'a> {
    boundaries: &'a Boundaries,
    plan: &'a TransferPlan,
    /// Time up to which the channel is simulated. Transfers released before it are in `open` or have started.
    known: Time,
    /// Released transfers that have not started: send priority, index and iteration.
    open: BinaryHeap<Reverse<(Time, u32, u32)>>,
    /// For each parameter and parity of the iteration: the number of released transfers that have not started, and the
    /// end of the parameter's latest started transfer.
    missing: Vec<[(u32, Time); 2]>,
    /// Transfers that have started, in order.
    sent: Vec<SentTransfer>,
}

impl<'a> Channel<'a> {
    fn new(boundaries: &'a Boundaries, plan: &'a TransferPlan) -> Self {
        let missing = vec![[(0, Time::ZERO); 2]; boundaries.windows.len()];
        Self { boundaries, plan, known: Time::ZERO, open: BinaryHeap::new(), missing, sent: Vec::new() }
    }

    /// Returns the state that determines all future events, relative to the start of `iteration` at `now`.
    fn state(&self, now: Time, iteration: u32) -> ChannelState {
        let ago = |before: u32| iteration - before;
        let in_flight = self.in_flight(now).iter();
        let mut open: Vec<(u32, u32)> = self.open.iter().map(|Reverse(it)| (it.1, ago(it.2))).collect();
        open.sort_unstable();
        (in_flight.map(|it| (it.transfer, ago(it.iteration), it.end - now)).collect(), open)
    }

    fn in_flight(&self, now: Time) -> &[SentTransfer] {
        &self.sent[self.sent.partition_point(|sent| sent.end <= now)..]
    }

    /// Releases a transfer at `now`.
    fn open(&mut self, now: Time, iteration: u32, transfer: u32) {
        self.send_until(now);
        let it = &self.plan.transfers[transfer as usize];
        let passed = Time::from_ps(self.boundaries.compute.ps() * u64::from(iteration));
        self.open.push(Reverse((passed + it.rank, transfer, iteration)));
        let half = iteration as usize % 2;
        it.parameters.iter().for_each(|&parameter| self.missing[parameter as usize][half].0 += 1);
    }

    /// Returns the time at which a read that compute reaches at `now` can proceed. This is `now`, or the end of the
    /// parameter's aggregation of the previous iteration if that is later.
    fn wait(&mut self, now: Time, iteration: u32, parameter: u32) -> Time {
        self.send_until(now);
        let before = (iteration as usize + 1) % 2;
        while self.missing[parameter as usize][before].0 > 0 {
            self.send(self.next_start().expect("what is missing is open"));
        }
        now.max(self.missing[parameter as usize][before].1)
    }

    /// Starts the transfers that can start before `until`. At the time `until` itself, more transfers may be released
    /// first.
    fn send_until(&mut self, until: Time) {
        while let Some(turn) = self.next_start().filter(|&turn| turn < until) {
            self.send(turn);
        }
        self.known = self.known.max(until);
    }

    /// Returns the start of the next transfer, which requires that fewer than `credit` transfers are in flight.
    fn next_start(&self) -> Option<Time> {
        self.open.peek()?;
        let in_flight = self.in_flight(self.known);
        // Transfers end in the order in which they start.
        let must_end = (in_flight.len() + 1).checked_sub(self.plan.credit as usize);
        Some(match must_end {
            Some(count @ 1..) => in_flight[count - 1].end,
            _ => self.known,
        })
    }

    fn send(&mut self, turn: Time) {
        check_cancelled();
        let Reverse((_, transfer, iteration)) = self.open.pop().expect("it has its turn");
        let it = &self.plan.transfers[transfer as usize];
        let start = self.sent.last().map_or(turn, |last| last.end.max(turn));
        let end = start + it.time;
        self.known = self.known.max(turn);
        for &parameter in &it.parameters {
            let (count, last) = &mut self.missing[parameter as usize][iteration as usize % 2];
            *count -= 1;
            *last = end;
        }
        self.sent.push(SentTransfer { iteration, transfer, start, end });
    }
}
