//! Plans the transfers of a job from its schedule: buckets, their release times, send order and chunk size.
//!
//! The orders `caramel`, `edf` and `optimal` plan ahead. They need the cost of messages and the windows of an iteration
//! (`Boundaries`: for each gradient the time at which it is ready and the time of its first read), but no engine.
//! [`crate::caramel`] creates their plans. A parameter there is a layer with parameters here.

use crate::bucket::{Bucket, fuse, group};
use crate::caramel::batch::batch;
use crate::caramel::cost::Costs;
use crate::caramel::pack::pack;
use crate::caramel::transfers::{self, PlannedTransfer, TransferPlan};
use crate::caramel::{Boundaries, ParameterGroup, timeline};
use crate::model::{self, ComputeSteps};
use crate::schedule::{Arbitrary, Fifo, Given, LayerPriority, Random, Scheduler};
use crate::spec::{FusionSpec, JobSpec, OrderSpec, PlannedBucketSpec};
use gradtide_net::{Bytes, Seed, Time};
use std::cmp::Reverse;

/// The transfers of an iteration.
pub struct Planned {
    /// Buckets, in the order in which the backward pass completes them.
    pub buckets: Vec<Bucket>,
    /// Release time of each bucket, as an offset of compute time. An offset beyond the compute time of an iteration is
    /// in the next iteration.
    pub releases: Vec<Time>,
    /// Send order of the queue.
    pub scheduler: Box<dyn Scheduler>,
    /// Largest chunk in bytes; `None` if buckets are not cut into chunks.
    pub chunk: Option<Bytes>,
    /// Compute time of an iteration, and the window of each bucket. A bucket that is sent within its window delays no
    /// worker.
    pub boundaries: Boundaries,
    /// Windows that the buckets of each program would have without a barrier.
    pub without_barrier: Vec<Boundaries>,
}

/// Returns whether the schedule of a job needs the cost of messages.
pub fn asks_costs(spec: &JobSpec) -> bool {
    let schedule = &spec.schedule;
    let of_order = match schedule.order {
        OrderSpec::Caramel | OrderSpec::Optimal => true,
        OrderSpec::Edf => schedule.chunk.is_none(),
        _ => false,
    };
    let of_fusion = matches!(schedule.fusion, FusionSpec::Ready { .. } | FusionSpec::Adaptive);
    // A single worker sends nothing, and parameter servers plan their transfers in `ps::plan`.
    let exchanges = spec.hosts.len() > 1 && spec.servers.is_none();
    exchanges && (of_order || of_fusion || spec.collective.depth.is_none())
}

impl Planned {
    /// Plans the transfers of a job whose workers compute `programs`. The programs contain no barrier.
    ///
    /// # Panics
    /// If `costs` is `None` and the schedule needs them.
    pub fn new(spec: &JobSpec, programs: &[ComputeSteps], costs: Option<&Costs>, seed: Seed) -> Self {
        let sizes: Vec<Bytes> = spec.layers.iter().map(|layer| Bytes(layer.parameter_bytes)).collect();
        let (without_barrier, layer_of) = model::boundaries(programs, &sizes);
        let mut boundaries = Boundaries::jointly(&without_barrier);
        if spec.schedule.barrier {
            boundaries.windows.iter_mut().for_each(|window| window.read = Time::ZERO);
        }
        let iteration = Iteration { spec, sizes, boundaries, without_barrier, layer_of, costs };
        // A single worker has nothing to aggregate.
        if spec.hosts.len() == 1 {
            return iteration.in_order(Vec::new(), Box::new(Fifo));
        }
        let scheduler: Box<dyn Scheduler> = match &spec.schedule.order {
            OrderSpec::Fifo => Box::new(Fifo),
            // Each worker computes its ops in sequence, so the order of first reads is the order of priority for any op
            // graph.
            OrderSpec::Priority { .. } | OrderSpec::Tic | OrderSpec::Tac if spec.ops.is_some() => {
                return iteration.by_read();
            }
            OrderSpec::Priority { queues } => Box::new(LayerPriority { queue_count: *queues }),
            OrderSpec::Random => Box::new(Random { stream: seed.stream(&format!("order/{}", spec.name)) }),
            &OrderSpec::Arbitrary { disorder_ppm } => {
                Box::new(Arbitrary { stream: seed.stream(&format!("order/{}", spec.name)), disorder_ppm })
            }
            // The forward pass of a layer waits for the parameters of this layer and of all lower layers, so TIC and
            // TAC order a chain by layer. `tests/planned.rs` compares them.
            OrderSpec::Tic | OrderSpec::Tac | OrderSpec::TacFolded => Box::new(LayerPriority { queue_count: None }),
            OrderSpec::File { ranks, in_turn } => {
                let sends = iteration.sends();
                let rank = |sent: &ReleasedBucket| sent.bucket.layers.iter().map(|&layer| ranks[layer as usize]).min();
                let bucket_ranks: Vec<u32> = sends.iter().map(|sent| rank(sent).unwrap_or(u32::MAX)).collect();
                let given = Box::new(Given { bucket_ranks: bucket_ranks.clone() });
                let planned = iteration.in_order(sends, given);
                return if *in_turn { planned.in_turn(&bucket_ranks) } else { planned };
            }
            OrderSpec::Caramel => return iteration.packed(),
            OrderSpec::Edf => return iteration.by_deadline(),
            OrderSpec::Optimal => return iteration.best(),
            OrderSpec::Planned { buckets } => return iteration.as_listed(buckets),
        };
        iteration.in_order(iteration.sends(), scheduler)
    }

    /// Delays each bucket until all buckets of smaller rank are ready. The queue then follows the order strictly,
    /// because it sends the released bucket of the smallest rank.
    fn in_turn(mut self, ranks: &[u32]) -> Self {
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        order.sort_by_key(|&bucket| ranks[bucket]);
        let mut latest = Time::ZERO;
        for bucket in order {
            latest = latest.max(self.boundaries.windows[bucket].update);
            self.releases[bucket] = latest;
        }
        self
    }
}

/// A bucket and its release time.
struct ReleasedBucket {
    bucket: Bucket,
    release: Time,
}

/// The inputs of planning.
struct Iteration<'a> {
    spec: &'a JobSpec,
    /// Bytes of each layer.
    sizes: Vec<Bytes>,
    /// Windows of the layers that have parameters.
    boundaries: Boundaries,
    /// Windows that the layers of each program would have without a barrier.
    without_barrier: Vec<Boundaries>,
    /// Layer of each parameter, where the parameters are the layers with bytes.
    layer_of: Vec<u32>,
    costs: Option<&'a Costs>,
}

impl Iteration<'_> {
    fn costs(&self) -> &Costs {
        self.costs.expect("whoever asks for costs has them")
    }

    fn time(&self) -> impl Fn(Bytes) -> Time + '_ {
        |bytes| self.costs().time(bytes)
    }

    /// Returns the buckets that the fusion rule creates, each with its release time.
    fn sends(&self) -> Vec<ReleasedBucket> {
        let at_once = |bucket| ReleasedBucket { bucket, release: Time::ZERO };
        match &self.spec.schedule.fusion {
            FusionSpec::Cap { bytes } if self.spec.ops.is_some() => {
                // Here parameters take the place of layers. `fuse` begins with the last entry, so the parameter that is
                // updated first is last.
                let order: Vec<u32> = self.boundaries.by_update().into_iter().rev().collect();
                let window = |&parameter: &u32| self.boundaries.windows[parameter as usize];
                let sizes: Vec<Bytes> = order.iter().map(|parameter| window(parameter).bytes).collect();
                let of =
                    |bucket: Bucket| -> Vec<u32> { bucket.layers.iter().map(|&place| order[place as usize]).collect() };
                fuse(&sizes, *bytes).into_iter().map(|bucket| at_once(self.bucket(&of(bucket)))).collect()
            }
            FusionSpec::Cap { bytes } => fuse(&self.sizes, *bytes).into_iter().map(at_once).collect(),
            FusionSpec::Buckets { layer_counts } => group(&self.sizes, layer_counts).into_iter().map(at_once).collect(),
            &FusionSpec::Reach { first, bytes } => {
                self.of_plan(&transfers::ddp(&self.boundaries, first, bytes, &|_| Time::ZERO))
            }
            &FusionSpec::Ready { bytes, cycle } => {
                self.of_plan(&transfers::horovod(&self.boundaries, bytes, cycle, &self.time()))
            }
            FusionSpec::Adaptive => {
                let groups = batch(&self.boundaries, self.costs().threshold, &self.time());
                self.of_plan(&transfers::first_in_first_out(&groups, false, &|_| Time::ZERO))
            }
        }
    }

    fn groups(&self) -> Vec<ParameterGroup> {
        let parameter_of = |layer: &u32| self.layer_of.partition_point(|other| other < layer) as u32;
        let group = |sent: ReleasedBucket| self.boundaries.group(sent.bucket.layers.iter().map(parameter_of).collect());
        self.sends().into_iter().map(group).collect()
    }

    fn bucket(&self, parameters: &[u32]) -> Bucket {
        let mut layers: Vec<u32> = parameters.iter().map(|&parameter| self.layer_of[parameter as usize]).collect();
        layers.sort_unstable_by_key(|&layer| Reverse(layer));
        let bytes = parameters.iter().map(|&parameter| self.boundaries.windows[parameter as usize].bytes).sum();
        Bucket { layers, bytes }
    }

    fn of_plan(&self, plan: &TransferPlan) -> Vec<ReleasedBucket> {
        let sent = |it: &PlannedTransfer| ReleasedBucket { bucket: self.bucket(&it.parameters), release: it.release };
        plan.transfers.iter().map(sent).collect()
    }

    fn in_order(&self, sends: Vec<ReleasedBucket>, scheduler: Box<dyn Scheduler>) -> Planned {
        let buckets: Vec<Bucket> = sends.iter().map(|sent| sent.bucket.clone()).collect();
        let parameter_of = |layer: &u32| self.layer_of.partition_point(|other| other < layer) as u32;
        let by_bucket = |boundaries: &Boundaries| {
            let window = |bucket: &Bucket| boundaries.group(bucket.layers.iter().map(parameter_of).collect()).window;
            Boundaries { compute: boundaries.compute, windows: buckets.iter().map(window).collect() }
        };
        Planned {
            boundaries: by_bucket(&self.boundaries),
            without_barrier: self.without_barrier.iter().map(by_bucket).collect(),
            releases: sends.iter().map(|sent| sent.release).collect(),
            buckets,
            scheduler,
            chunk: self.spec.schedule.chunk,
        }
    }

    /// Orders buckets by their first read. Ties go to the bucket that is updated first.
    fn by_read(&self) -> Planned {
        let planned = self.in_order(self.sends(), Box::new(Fifo));
        let windows = Boundaries::jointly(&planned.without_barrier).windows;
        let mut order: Vec<u32> = (0..windows.len() as u32).collect();
        order.sort_by_key(|&bucket| (windows[bucket as usize].read, windows[bucket as usize].update));
        let mut bucket_ranks = vec![0; order.len()];
        (0..).zip(order).for_each(|(rank, bucket)| bucket_ranks[bucket as usize] = rank);
        Planned { scheduler: Box::new(Given { bucket_ranks }), ..planned }
    }

    /// Converts a plan to buckets in chunks of at most `chunk`. Consecutive transfers of the same parameters form one
    /// bucket.
    fn as_planned(&self, plan: &TransferPlan, chunk: Option<Bytes>) -> Planned {
        let mut firsts: Vec<usize> = (0..plan.transfers.len())
            .filter(|&index| {
                let before = index.checked_sub(1).map(|before| &plan.transfers[before].parameters);
                before != Some(&plan.transfers[index].parameters)
            })
            .collect();
        firsts.sort_by_key(|&index| (plan.transfers[index].rank, index));
        let mut ranked: Vec<(usize, u32)> = firsts.into_iter().zip(0..).collect();
        let update = |index: usize| self.boundaries.group(plan.transfers[index].parameters.clone()).window.update;
        ranked.sort_by_key(|&(index, _)| (update(index), index));
        let sent = |&(index, _): &(usize, u32)| {
            let it: &PlannedTransfer = &plan.transfers[index];
            ReleasedBucket { bucket: self.bucket(&it.parameters), release: it.release }
        };
        let sends = ranked.iter().map(sent).collect();
        let bucket_ranks = ranked.into_iter().map(|(_, rank)| rank).collect();
        Planned { chunk, ..self.in_order(sends, Box::new(Given { bucket_ranks })) }
    }

    fn packed(&self) -> Planned {
        let plan = pack(&self.boundaries, &self.groups(), &self.time()).plan;
        self.as_planned(&plan, self.spec.schedule.chunk)
    }

    /// Orders buckets as the scenario lists them. A bucket is released at the latest when compute has to wait for it.
    fn as_listed(&self, buckets: &[PlannedBucketSpec]) -> Planned {
        let listed = |it: &PlannedBucketSpec| {
            let parameter_of = |layer: &u32| self.layer_of.partition_point(|other| other < layer) as u32;
            let parameters: Vec<u32> = it.layers.iter().map(parameter_of).collect();
            let bucket = self.bucket(&parameters);
            let window = self.boundaries.group(parameters).window;
            let release = it.release.min(self.boundaries.compute + window.read);
            (window.update, ReleasedBucket { bucket, release })
        };
        let mut ranked: Vec<((Time, ReleasedBucket), u32)> = buckets.iter().map(listed).zip(0..).collect();
        ranked.sort_by_key(|&((update, _), rank)| (update, rank));
        let bucket_ranks = ranked.iter().map(|&(_, rank)| rank).collect();
        let sends = ranked.into_iter().map(|((_, sent), _)| sent).collect();
        self.in_order(sends, Box::new(Given { bucket_ranks }))
    }

    fn by_deadline(&self) -> Planned {
        let chunk = self.spec.schedule.chunk.unwrap_or_else(|| self.costs().chunk());
        let any_time = |_| Time::ZERO;
        let plan = transfers::earliest_deadline_first(&self.boundaries, &self.groups(), chunk, 1, &any_time);
        self.as_planned(&plan, Some(chunk))
    }

    /// Returns the plan with the shortest iteration. Ties go to the plan with the fewest transfers, then to the first
    /// one. The search covers all choices that the schedule leaves open: the grouping if fusion is adaptive, and the
    /// chunk size if the scenario sets none.
    fn best(&self) -> Planned {
        let mut best: Option<((Time, usize), TransferPlan, Option<Bytes>)> = None;
        let mut consider = |plan: TransferPlan, chunk| {
            let value = (timeline::run(&self.boundaries, &plan).iteration_time(), plan.transfers.len());
            if best.as_ref().is_none_or(|(least, ..)| value < *least) {
                best = Some((value, plan, chunk));
            }
        };
        let time = self.time();
        let given = self.spec.schedule.chunk;
        for groups in self.groupings() {
            let chunk = self.costs().chunk().0;
            let chunks = match given {
                Some(chunk) => vec![chunk],
                None => [chunk.div_ceil(4), chunk, chunk.saturating_mul(4)].map(Bytes).to_vec(),
            };
            if given.is_none() {
                consider(transfers::first_in_first_out(&groups, false, &time), None);
                let whole = Bytes(u64::MAX);
                consider(transfers::earliest_deadline_first(&self.boundaries, &groups, whole, 1, &time), None);
                if groups.len() <= MOST_PACKED {
                    consider(pack(&self.boundaries, &groups, &time).plan, None);
                }
            }
            for chunk in chunks {
                consider(transfers::earliest_deadline_first(&self.boundaries, &groups, chunk, 1, &time), Some(chunk));
            }
        }
        match best {
            Some((_, plan, chunk)) => self.as_planned(&plan, chunk),
            None => self.in_order(Vec::new(), Box::new(Fifo)),
        }
    }

    fn groupings(&self) -> Vec<Vec<ParameterGroup>> {
        if self.spec.schedule.fusion != FusionSpec::Adaptive {
            return vec![self.groups()];
        }
        if self.boundaries.windows.is_empty() {
            return Vec::new();
        }
        let (threshold, time) = (self.costs().threshold.0, self.time());
        let thresholds = [threshold, threshold.saturating_mul(4), threshold.saturating_mul(16), threshold / 4];
        let mut groupings: Vec<Vec<ParameterGroup>> =
            thresholds.iter().map(|&threshold| batch(&self.boundaries, Bytes(threshold), &time)).collect();
        groupings.push(self.boundaries.alone());
        let of = |plan: TransferPlan| -> Vec<ParameterGroup> {
            plan.transfers.into_iter().map(|transfer| self.boundaries.group(transfer.parameters)).collect()
        };
        groupings.push(of(transfers::ddp(&self.boundaries, transfers::DDP_FIRST_CAP, transfers::DDP_CAP, &time)));
        groupings.push(vec![self.boundaries.group((0..self.boundaries.windows.len() as u32).collect())]);
        groupings
    }
}

/// Largest number of groups for which the search considers packing, because its effort is quadratic in this number.
const MOST_PACKED: usize = 200;
