//! Iterations on one compute stream and one channel: what a plan of transfers is worth.
//!
//! Compute runs through its offsets 0 to C again and again. At an offset where parameters are read it waits
//! until they have been aggregated in the previous iteration; the first iteration does not wait. A transfer may be
//! sent once compute has passed its gate, so what is planned moves with every stall. The channel is never idle while
//! something may be sent, and interrupts nothing.

use super::Boundaries;
use super::transfers::{PlannedTransfer, TransferPlan};
use gradtide_net::Time;
use gradtide_watch::look;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Most iterations that are run. Where communication takes a little longer than computation, it takes many until the
/// channel is so far behind that compute waits: with a thousand, what is still missing is a thousandth of an iteration
/// or two.
pub const MAX_ITERATIONS: u32 = 1000;

/// A transfer that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentTransfer {
    /// In which iteration it became due.
    pub iteration: u32,
    /// Index in the plan.
    pub transfer: u32,
    /// When the channel began with it.
    pub start: Time,
    /// When the channel was through.
    pub end: Time,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// When compute came to the start of each iteration and, last, to the end of the last one.
    pub starts: Vec<Time>,
    /// The start at which the channel stood as it did at the last one: what is between them repeats for ever.
    pub repeats_from: usize,
    /// All transfers as the channel sent them.
    pub sent: Vec<SentTransfer>,
    /// All computation of an iteration: C.
    pub compute: Time,
    /// All transfers of an iteration, one after another: N.
    pub communication: Time,
}

impl Timeline {
    /// From start to start, on average over the iterations that repeat, rounded up: T.
    pub fn iteration_time(&self) -> Time {
        let last = self.starts.len() - 1;
        let span = self.starts[last] - self.starts[self.repeats_from];
        Time::from_ps(span.ps().div_ceil((last - self.repeats_from) as u64))
    }
}

/// Runs iterations until one begins as an earlier one did, and then sends what is left. If none does within
/// [`MAX_ITERATIONS`], the second half is taken for what repeats.
///
/// # Panics
/// If a transfer may be sent only after compute has begun to wait for it, or simulated time passes 213 days.
pub fn run(boundaries: &Boundaries, plan: &TransferPlan) -> Timeline {
    let reads_at = |parameter: u32| {
        if plan.has_barrier { Time::ZERO } else { boundaries.windows[parameter as usize].read }
    };
    let mut moments: Vec<(Time, ComputeEvent)> = Vec::new();
    for (index, transfer) in plan.transfers.iter().enumerate() {
        let read = transfer.parameters.iter().map(|&parameter| reads_at(parameter)).min().unwrap_or(Time::ZERO);
        assert!(transfer.gate <= boundaries.compute + read, "compute would wait for what waits for it");
        let in_next = transfer.gate >= boundaries.compute;
        let offset = if in_next { transfer.gate - boundaries.compute } else { transfer.gate };
        moments.push((offset, ComputeEvent::Open { transfer: index as u32, in_next }));
    }
    for parameter in 0..boundaries.windows.len() as u32 {
        moments.push((reads_at(parameter), ComputeEvent::Read(parameter)));
    }
    moments.sort();

    let mut channel = Channel::new(boundaries, plan);
    let mut now = Time::ZERO;
    let mut starts = Vec::new();
    let mut seen = BTreeMap::new();
    let repeats_from = loop {
        let iteration = starts.len() as u32;
        starts.push(now);
        channel.send_until(now);
        // The first iteration is like no other: it has none before it.
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
        for &(offset, moment) in &moments {
            look();
            now = start + stalled + offset;
            match moment {
                ComputeEvent::Open { in_next: true, .. } if iteration == 0 => {}
                ComputeEvent::Open { in_next, transfer } => channel.open(now, iteration - u32::from(in_next), transfer),
                ComputeEvent::Read(parameter) => stalled += channel.wait(now, iteration, parameter) - now,
            }
        }
        now = start + stalled + boundaries.compute;
    };
    // The last iteration has none after it, in which compute would go on: what it left is sent as it comes.
    for &(offset, moment) in &moments {
        if let ComputeEvent::Open { in_next: true, transfer } = moment {
            channel.open(now + offset, starts.len() as u32 - 2, transfer);
        }
    }
    channel.send_until(Time::MAX);
    let communication = plan.transfers.iter().map(|transfer| transfer.time).sum();
    Timeline { starts, repeats_from, sent: channel.sent, compute: boundaries.compute, communication }
}

/// What no plan on one channel beats that sends these transfers, whole or in pieces: C; N; and for every update and
/// every earlier read the compute from that read to that update, and all transfers that lie between them. One such
/// transfer is a critical path: read, compute, update, aggregate, read.
///
/// Where all parameters are read before the first is updated, preemptive earliest deadline first reaches it.
///
/// # Source
/// Horn (1974): the least largest lateness of jobs with release times and deadlines on one machine with preemption.
pub fn lower_bound(boundaries: &Boundaries, transfers: &[PlannedTransfer]) -> Time {
    let bound = boundaries.compute.max(transfers.iter().map(|transfer| transfer.time).sum());
    let window = |transfer: &PlannedTransfer| boundaries.group(transfer.parameters.clone()).window;
    let mut jobs: Vec<(Time, Time, Time)> =
        (transfers.iter()).map(|transfer| (window(transfer).update, window(transfer).read, transfer.time)).collect();
    jobs.sort_unstable_by_key(|&(update, ..)| Reverse(update));
    let mut reads: Vec<Time> = jobs.iter().map(|job| job.1).collect();
    reads.sort_unstable();
    reads.dedup();
    // For each read the transfers that are read by then, less the read itself, of those updated at `first` or later.
    let mut sums = Suffixes::new(reads.iter().map(|read| -i128::from(read.ps())).collect());
    let mut bound = i128::from(bound.ps());
    for (index, &(first, read, time)) in jobs.iter().enumerate() {
        sums.add(reads.partition_point(|&other| other < read), i128::from(time.ps()));
        if jobs.get(index + 1).is_none_or(|next| next.0 < first) {
            let earlier = reads.partition_point(|&read| read <= first);
            bound = bound.max(i128::from(first.ps()) + sums.most_before(earlier));
        }
    }
    Time::from_ps(u64::try_from(bound).unwrap_or(u64::MAX))
}

/// Numbers in a row, to all of which from some place on something is added, and of whose first ones the largest is
/// asked for: a tree with the sums of halves, and their largest from the left.
struct Suffixes {
    /// Leaves, a power of two.
    width: usize,
    /// What has been added from the first leaf of a node on, and the largest sum from there to any of its leaves.
    nodes: Vec<(i128, i128)>,
}

impl Suffixes {
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
        let ((left, left_most), (right, right_most)) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        self.nodes[node] = (left + right, left_most.max(left + right_most));
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

    /// The largest of the first `count`.
    fn most_before(&self, count: usize) -> i128 {
        let (mut node, mut from, mut width) = (1, 0, self.width);
        let (mut sum, mut most) = (0, i128::MIN / 4);
        // Down the edge between what counts and what does not.
        while from < count {
            if from + width <= count {
                return most.max(sum + self.nodes[node].1);
            }
            width /= 2;
            let (left, left_most) = self.nodes[2 * node];
            if from + width <= count {
                most = most.max(sum + left_most);
                (sum, from, node) = (sum + left, from + width, 2 * node + 1);
            } else {
                node *= 2;
            }
        }
        most
    }
}

/// What happens when compute has come to an offset; what opens does so before what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ComputeEvent {
    Open { transfer: u32, in_next: bool },
    Read(u32),
}

/// What is under way, with the iteration that it is of and what is left of it, and what is open: see
/// [`Channel::state`].
type ChannelState = (Vec<(u32, u32, Time)>, Vec<(u32, u32)>);

/// The channel, which knows what may be sent up to some instant, and decides no further.
struct Channel<'a> {
    boundaries: &'a Boundaries,
    plan: &'a TransferPlan,
    /// Up to here everything has been opened.
    known: Time,
    /// May be sent: rank, index and iteration.
    open: BinaryHeap<Reverse<(Time, u32, u32)>>,
    /// Per parameter, for even and odd iterations: transfers that have not been handed over, and the end of the last
    /// one that has.
    missing: Vec<[(u32, Time); 2]>,
    /// Handed over, first to last.
    sent: Vec<SentTransfer>,
}

impl<'a> Channel<'a> {
    fn new(boundaries: &'a Boundaries, plan: &'a TransferPlan) -> Self {
        let missing = vec![[(0, Time::ZERO); 2]; boundaries.windows.len()];
        Self { boundaries, plan, known: Time::ZERO, open: BinaryHeap::new(), missing, sent: Vec::new() }
    }

    /// All that the future depends on, as seen from the start of an iteration at `now`.
    fn state(&self, now: Time, iteration: u32) -> ChannelState {
        let ago = |before: u32| iteration - before;
        let under_way = self.under_way(now).iter();
        let mut open: Vec<(u32, u32)> = self.open.iter().map(|Reverse(it)| (it.1, ago(it.2))).collect();
        open.sort_unstable();
        (under_way.map(|it| (it.transfer, ago(it.iteration), it.end - now)).collect(), open)
    }

    /// What has been handed over and is not through.
    fn under_way(&self, now: Time) -> &[SentTransfer] {
        &self.sent[self.sent.partition_point(|sent| sent.end <= now)..]
    }

    /// A transfer may be sent from `now` on.
    fn open(&mut self, now: Time, iteration: u32, transfer: u32) {
        self.send_until(now);
        let it = &self.plan.transfers[transfer as usize];
        let passed = Time::from_ps(self.boundaries.compute.ps() * u64::from(iteration));
        self.open.push(Reverse((passed + it.rank, transfer, iteration)));
        let half = iteration as usize % 2;
        it.parameters.iter().for_each(|&parameter| self.missing[parameter as usize][half].0 += 1);
    }

    /// When the aggregation of a parameter that an iteration reads at `now` has ended.
    fn wait(&mut self, now: Time, iteration: u32, parameter: u32) -> Time {
        self.send_until(now);
        let before = (iteration as usize + 1) % 2;
        while self.missing[parameter as usize][before].0 > 0 {
            self.send(self.turn().expect("what is missing is open"));
        }
        now.max(self.missing[parameter as usize][before].1)
    }

    /// Hands over what has its turn before `until`; from then on more may be open.
    fn send_until(&mut self, until: Time) {
        while let Some(turn) = self.turn().filter(|&turn| turn < until) {
            self.send(turn);
        }
        self.known = self.known.max(until);
    }

    /// When the first open transfer is handed over: as soon as the credit suffices.
    fn turn(&self) -> Option<Time> {
        self.open.peek()?;
        let under_way = self.under_way(self.known);
        // They end in the order in which they were handed over.
        let must_end = (under_way.len() + 1).checked_sub(self.plan.credit as usize);
        Some(match must_end {
            Some(count @ 1..) => under_way[count - 1].end,
            _ => self.known,
        })
    }

    fn send(&mut self, turn: Time) {
        look();
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
