//! Communicators: a communicator is a group of ranks with one serial communication stream, and turns its transfers into
//! flows.

use crate::bucket::Bucket;
use crate::caramel::Boundaries;
use crate::classes::{Classes, GroupOp};
use crate::collective::Aggregation;
use crate::collective::algorithms::Algorithm;
use crate::collective::group::GroupHosts;
use crate::collective::levels::{Levels, Span};
use crate::collective::messages::{Bands, Collective, MessageSize, Messages};
use crate::collective::nodes::{Carriage, Chunking};
use crate::dag::Dag;
use crate::parallel::GroupTransfer;
use crate::schedule::Scheduler;
use gradtide_net::{Band, Bytes, Connection, Flow, HostId, Network, Time};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A group of ranks with one send queue. Its transfers run one after the other, or concurrently up to a limit on the
/// chunks in flight.
pub struct Communicator {
    /// Name shown to users.
    pub name: Arc<str>,
    /// Rank classes of the group; empty for all classes.
    pub classes: Vec<u32>,
    /// Send order of the queue.
    pub scheduler: Box<dyn Scheduler>,
    /// Limit on the chunks in flight.
    pub in_flight_limit: usize,
    /// Minimum time between the end of a chunk on all ranks and the start of the next chunk.
    pub sync: Time,
    /// Kind of the transfers, with its parameters.
    pub carries: TransferKind,
}

/// Transfers of a communicator.
pub enum TransferKind {
    /// Gradients, aggregated bucket by bucket.
    Gradients(Box<DataParallel>),
    /// Collectives of a process group.
    Group(GroupCollectives),
}

/// Collectives of process groups that behave identically.
pub struct GroupCollectives {
    /// The network of the job's rank classes.
    pub network: Arc<Classes>,
    /// Distribution of a group's ranks over nodes.
    pub span: Span,
    /// All transfers of the job.
    pub transfers: Arc<[GroupTransfer]>,
    /// Traffic class of the flows.
    pub band: Band,
    /// Time between the start of each collective and its first byte.
    pub hold: Time,
    /// Ranks of the group if all ranks are simulated; `None` if one rank represents each class.
    pub ranks: Option<GroupRanks>,
}

/// The ranks of a process group, each with its host.
pub struct GroupRanks {
    /// Hosts of the ranks.
    pub hosts: GroupHosts,
    /// Size of messages whose bytes do not divide evenly.
    pub sizes: MessageSize,
    /// Pairs of hosts (sender, receiver) whose connections are opened before the job begins.
    pub opens: BTreeSet<(u32, u32)>,
}

/// Gradient aggregation of data-parallel workers.
pub struct DataParallel {
    /// Buckets, one for each transfer.
    pub buckets: Vec<Bucket>,
    /// Release time of each bucket, as an offset of compute time. An offset beyond the compute time of an iteration is
    /// in the next iteration.
    pub releases: Vec<Time>,
    /// Compute time of an iteration, and the window of each bucket. A bucket that is sent within its window delays no
    /// worker.
    pub boundaries: Boundaries,
    /// Windows that the buckets of each program would have without a barrier.
    pub without_barrier: Vec<Boundaries>,
    /// Collective that aggregates a chunk.
    pub collective: Collective,
    /// How the collective is represented on the network.
    pub form: AggregationForm,
    /// Whether a policy chooses the bands of chunks; otherwise `bands` determines them.
    pub changes_bands: bool,
    pub(crate) drops_remainder: bool,
    pub(crate) chunk: Option<Bytes>,
    /// Bands of each bucket. Each band applies from its byte offset on; there is at least one, and the first offset is
    /// 0.
    pub(crate) bands: Vec<Vec<(Bytes, Band)>>,
    /// Bands in which connections are opened: the band of layer 0, or all bands that a policy may choose.
    pub(crate) opening_bands: Vec<Bands>,
    pub(crate) has_several_bands: bool,
    pub(crate) hold: Time,
}

/// How an aggregation is represented on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AggregationForm {
    /// One flow represents all messages, for an engine that caches the duration of the collective.
    Cached,
    /// Messages are sent between hosts.
    EachHost {
        /// Whether connections are opened before the job begins.
        opens: bool,
    },
}

impl Communicator {
    /// Returns the number of chunks of a transfer.
    pub fn chunk_count(&self, transfer: u32) -> u64 {
        match &self.carries {
            TransferKind::Gradients(gradients) => gradients.chunk_count(transfer),
            TransferKind::Group(_) => 1,
        }
    }

    /// Returns the time from picking a chunk to the start of its first flow.
    pub fn delay_before_flows(&self) -> Time {
        match &self.carries {
            TransferKind::Gradients(gradients) => gradients.hold,
            TransferKind::Group(group) => group.hold,
        }
    }

    /// Returns the release time of each transfer: (k, offset of compute time in the k-th iteration after the transfer's
    /// own). Returns an empty list if no release time can delay a ready transfer.
    pub fn releases(&self) -> Vec<(u32, Time)> {
        match &self.carries {
            TransferKind::Gradients(gradients) => gradients.later_releases(),
            TransferKind::Group(_) => Vec::new(),
        }
    }

    /// Opens the connections that the communicator keeps for the whole run. Returns the number of flows that must end
    /// before the job can begin.
    pub fn open(&self, stream: u32, network: &mut dyn Network) -> usize {
        match &self.carries {
            TransferKind::Gradients(gradients) => gradients.open(stream, network),
            TransferKind::Group(group) => group.open(stream, network),
        }
    }

    /// Starts chunk `index` of a transfer with flows of `stream`. `bands` contains the bands of the workers if a policy
    /// chooses them.
    pub fn begin(
        &self,
        transfer: u32,
        index: u64,
        bands: Option<Bands>,
        stream: u32,
        network: &mut dyn Network,
    ) -> Aggregation {
        match &self.carries {
            TransferKind::Gradients(gradients) => gradients.aggregate(transfer, index, bands, stream, network),
            TransferKind::Group(group) => group.begin(&self.classes, transfer, stream, network),
        }
    }

    /// Returns the gradient aggregation if the transfers are gradients.
    pub fn gradients(&self) -> Option<&DataParallel> {
        match &self.carries {
            TransferKind::Gradients(gradients) => Some(gradients),
            TransferKind::Group(_) => None,
        }
    }
}

impl GroupCollectives {
    /// Returns a transfer as a collective of the given rank classes.
    pub fn op<'a>(&self, transfer: u32, classes: &'a [u32]) -> GroupOp<'a> {
        let GroupTransfer { kind, bytes, .. } = self.transfers[transfer as usize];
        GroupOp { kind, bytes, span: self.span, classes }
    }

    /// Returns the algorithm of a transfer, with the load of a rank at each level.
    pub fn algorithm(&self, transfer: u32) -> (Algorithm, Levels) {
        let op = self.op(transfer, &[]);
        Algorithm::fastest(op.kind, op.span, op.bytes, self.network.links())
    }

    fn begin(&self, classes: &[u32], transfer: u32, stream: u32, network: &mut dyn Network) -> Aggregation {
        let Some(GroupRanks { hosts, sizes, .. }) = &self.ranks else {
            let carriage = Carriage { band: self.band, stream };
            let begun = self.network.begin(&self.op(transfer, classes), carriage, network);
            return begun.expect("a group has at least two ranks");
        };
        let op = self.op(transfer, classes);
        let (algorithm, levels) = self.algorithm(transfer);
        // With even message sizes all rounds of a collective are identical, so one flow can contain them all.
        if *sizes == MessageSize::Even && algorithm.is_of_flows(op.span) {
            let carriage = Carriage { band: self.band, stream };
            let flows = self.network.links().flows(&levels, &hosts.nodes, op.bytes, Chunking::PLAIN, carriage);
            return Aggregation::Several(flows.into_iter().map(|flow| network.start(flow)).collect());
        }
        let plans = algorithm.group_plans(hosts, op.bytes, 1).expect("checked when the run is planned");
        Aggregation::Messages(Box::new(Messages::along(plans, *sizes, (self.band, stream), network)))
    }

    fn open(&self, stream: u32, network: &mut dyn Network) -> usize {
        let Some(GroupRanks { opens, .. }) = &self.ranks else { return 0 };
        for &(src, dst) in opens {
            let flow = Flow::alone(HostId(src), HostId(dst), Bytes(0));
            network.start(Flow { band: self.band, stream, connection: Connection::Stream, ..flow });
        }
        opens.len()
    }
}

impl DataParallel {
    /// Returns the number of chunks of a bucket.
    pub fn chunk_count(&self, bucket: u32) -> u64 {
        self.buckets[bucket as usize].chunk_count(self.chunk)
    }

    /// Returns chunk `index` of a bucket as one flow of `stream`, which represents all ranks.
    pub fn lock_step_flow(&self, bucket: u32, index: u64, stream: u32) -> Flow {
        let bytes = self.chunk_bytes(bucket, index);
        (self.collective.lock_step(bytes, self.band(bucket, index), stream, self.hold))
            .expect("a job of one worker has no buckets")
    }

    /// Returns the band of chunk `index` of a bucket. It is the band of the layer that contains the chunk's first byte.
    pub fn band(&self, bucket: u32, index: u64) -> Band {
        let begins = self.chunk.map_or(0, |chunk| index * chunk.0);
        let steps = &self.bands[bucket as usize];
        steps[steps.partition_point(|&(from, _)| from.0 <= begins) - 1].1
    }

    /// Returns whether the chunks of the job use different bands.
    pub fn has_several_bands(&self) -> bool {
        self.has_several_bands
    }

    /// Returns the bytes that the busiest rank sends to aggregate `bytes`.
    pub fn sent_by_busiest(&self, bytes: u128) -> f64 {
        if self.buckets.is_empty() { 0.0 } else { self.collective.sent_by_busiest(bytes) }
    }

    /// Returns the bytes that are sent for all chunks of a bucket.
    pub fn sent_bytes(&self, bucket: u32) -> Bytes {
        match self.drops_remainder {
            false => self.buckets[bucket as usize].bytes,
            true => (0..self.chunk_count(bucket)).map(|index| self.chunk_bytes(bucket, index)).sum(),
        }
    }

    /// Returns the bytes that are sent for a chunk.
    pub fn chunk_bytes(&self, bucket: u32, index: u64) -> Bytes {
        let bytes = self.buckets[bucket as usize].chunk_bytes(self.chunk, index);
        if self.drops_remainder { divisible(bytes, self.collective.hosts().len()) } else { bytes }
    }

    fn later_releases(&self) -> Vec<(u32, Time)> {
        let windows = &self.boundaries.windows;
        if self.releases.iter().zip(windows).all(|(&release, window)| release <= window.update) {
            return Vec::new();
        }
        // The list also has transfers that are never delayed: if several transfers have the same release time, they
        // must become ready in the order of the plan.
        let compute = self.boundaries.compute.ps().max(1);
        let release = |(&release, window): (&Time, &crate::caramel::Boundary)| {
            let release = release.max(window.update);
            ((release.ps() / compute) as u32, Time::from_ps(release.ps() % compute))
        };
        self.releases.iter().zip(windows).map(release).collect()
    }

    fn aggregate(
        &self,
        bucket: u32,
        index: u64,
        bands: Option<Bands>,
        stream: u32,
        network: &mut dyn Network,
    ) -> Aggregation {
        match self.form {
            AggregationForm::Cached => {
                let flow = Flow { hold: Time::ZERO, rounds: 1, parts: 1, ..self.lock_step_flow(bucket, index, stream) };
                Aggregation::whole(flow, network)
            }
            AggregationForm::EachHost { .. } => {
                let band = self.band(bucket, index);
                if self.has_several_bands {
                    // All data of earlier chunks has been received, so the connections have no data to send in another
                    // band.
                    network.set_band(stream, band);
                }
                let bands = bands.unwrap_or(Bands::Alike(band));
                self.collective.begin(self.chunk_bytes(bucket, index), bands, stream, network)
            }
        }
    }

    fn open(&self, stream: u32, network: &mut dyn Network) -> usize {
        match self.form {
            AggregationForm::EachHost { opens: true } if !self.buckets.is_empty() => {
                let open = |bands: &Bands| self.collective.open(bands.clone(), stream, network);
                self.opening_bands.iter().map(open).sum()
            }
            _ => 0,
        }
    }
}

/// Returns the transfer that the last op of the iteration that completes a gradient makes ready.
pub fn last_transfer(dag: &Dag) -> Option<u32> {
    let targets = (0..dag.compute_count).rev().find_map(|op| dag.within.from(op).iter().max().copied());
    targets.map(|target| target - dag.compute_count)
}

/// Updates `ranks` with the send order of the next iteration's transfers, each within its queue. The ranks of queues
/// whose scheduler does not satisfy `asks` stay unchanged.
pub fn rank(
    dag: &Dag,
    communicators: &mut [Communicator],
    asks: impl Fn(&dyn Scheduler) -> bool,
    ranks: &mut Vec<u32>,
) {
    if let [one] = communicators {
        if asks(one.scheduler.as_ref()) {
            one.scheduler.ranks(dag, ranks);
        }
        return;
    }
    let mut own = Vec::new();
    ranks.resize(dag.transfers.len(), 0);
    for (index, communicator) in (0..).zip(communicators) {
        if asks(communicator.scheduler.as_ref()) {
            communicator.scheduler.ranks(dag, &mut own);
            let all = ranks.iter_mut().zip(&own).zip(&dag.transfers);
            all.filter(|(_, transfer)| transfer.communicator == index).for_each(|((rank, &own), _)| *rank = own);
        }
    }
}

/// Returns the largest multiple of `parts` that is at most `bytes`.
pub fn divisible(bytes: Bytes, parts: usize) -> Bytes {
    let parts = parts as u64;
    Bytes(bytes.0 / parts * parts)
}
