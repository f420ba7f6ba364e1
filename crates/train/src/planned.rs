//! What a job sends, as its schedule says: its buckets, from when on each, in which order, and in which chunks.
//!
//! Orders that plan see the boundaries of an iteration and what messages cost, and no engine: the plans are those of
//! [`crate::caramel`], whose parameters are here the layers that have any.

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

/// What is sent in an iteration.
pub struct Planned {
    /// In the order of the backward pass that completes them.
    pub buckets: Vec<Bucket>,
    /// From which offset of compute time on each may be sent, once it is complete; beyond the compute time of an
    /// iteration it is an offset of the next.
    pub gates: Vec<Time>,
    /// Order of the transmission queue.
    pub scheduler: Box<dyn Scheduler>,
    /// Largest part that is sent at once.
    pub chunk: Option<Bytes>,
    /// Compute time, and between which offsets of it each bucket can be sent without delaying any worker.
    pub boundaries: Boundaries,
    /// The same of each program, if there were no barrier.
    pub without_barrier: Vec<Boundaries>,
}

/// Whether the schedule of a job asks what messages cost.
pub fn asks_costs(spec: &JobSpec) -> bool {
    let schedule = &spec.schedule;
    let of_order = match schedule.order {
        OrderSpec::Caramel | OrderSpec::Optimal => true,
        OrderSpec::Edf => schedule.chunk_bytes.is_none(),
        _ => false,
    };
    let of_fusion = matches!(schedule.fusion, FusionSpec::Ready { .. } | FusionSpec::Adaptive);
    // A single worker sends nothing, and what servers do op by op is planned elsewhere.
    let exchanges = spec.hosts.len() > 1 && spec.servers.is_none();
    exchanges && (of_order || of_fusion || spec.collective.depth.is_none())
}

impl Planned {
    /// Plans what a job sends whose workers compute `programs`, without a barrier.
    ///
    /// # Panics
    /// If there are no `costs` and the schedule asks for them.
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
            // Compute is in a line: what is read first, whatever the ops.
            OrderSpec::Priority { .. } | OrderSpec::Tic | OrderSpec::Tac if spec.ops.is_some() => {
                return iteration.by_read();
            }
            OrderSpec::Priority { queues } => Box::new(LayerPriority { queue_count: *queues }),
            OrderSpec::Random => Box::new(Random { stream: seed.stream(&format!("order/{}", spec.name)) }),
            &OrderSpec::Arbitrary { disorder_ppm } => {
                Box::new(Arbitrary { stream: seed.stream(&format!("order/{}", spec.name)), disorder_ppm })
            }
            // A layer's forward pass waits for its own parameters and those below, so TicTac's orders of a chain are
            // it: `tests/planned.rs` asks them.
            OrderSpec::Tic | OrderSpec::Tac | OrderSpec::TacFolded => Box::new(LayerPriority { queue_count: None }),
            OrderSpec::File { ranks, in_turn } => {
                let sends = iteration.sends();
                let rank = |sent: &GatedBucket| sent.bucket.layers.iter().map(|&layer| ranks[layer as usize]).min();
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

    /// The same, each bucket held back until all of smaller rank are complete: the queue, which takes the smallest rank
    /// that it may send, then sends none before them.
    fn in_turn(mut self, ranks: &[u32]) -> Self {
        let mut order: Vec<usize> = (0..ranks.len()).collect();
        order.sort_by_key(|&bucket| ranks[bucket]);
        let mut latest = Time::ZERO;
        for bucket in order {
            latest = latest.max(self.boundaries.windows[bucket].update);
            self.gates[bucket] = latest;
        }
        self
    }
}

/// A bucket, and from when on it may be sent.
struct GatedBucket {
    bucket: Bucket,
    gate: Time,
}

/// A job as planning sees it.
struct Iteration<'a> {
    spec: &'a JobSpec,
    /// Of all layers.
    sizes: Vec<Bytes>,
    /// Of layers that have parameters.
    boundaries: Boundaries,
    /// Of each program, if there were no barrier.
    without_barrier: Vec<Boundaries>,
    /// Layer of each parameter.
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

    /// What is sent together, and from when on.
    fn sends(&self) -> Vec<GatedBucket> {
        let at_once = |bucket| GatedBucket { bucket, gate: Time::ZERO };
        match &self.spec.schedule.fusion {
            FusionSpec::Cap { bytes } if self.spec.ops.is_some() => {
                // As layers, from the last to the first, if these are what is updated last to first.
                let order: Vec<u32> = self.boundaries.by_update().into_iter().rev().collect();
                let window = |&parameter: &u32| self.boundaries.windows[parameter as usize];
                let sizes: Vec<Bytes> = order.iter().map(|parameter| window(parameter).bytes).collect();
                let of =
                    |bucket: Bucket| -> Vec<u32> { bucket.layers.iter().map(|&place| order[place as usize]).collect() };
                fuse(&sizes, Bytes(*bytes)).into_iter().map(|bucket| at_once(self.bucket(&of(bucket)))).collect()
            }
            FusionSpec::Cap { bytes } => fuse(&self.sizes, Bytes(*bytes)).into_iter().map(at_once).collect(),
            FusionSpec::Buckets { layer_counts } => group(&self.sizes, layer_counts).into_iter().map(at_once).collect(),
            &FusionSpec::Reach { first_bytes, bytes } => {
                self.of_plan(&transfers::ddp(&self.boundaries, Bytes(first_bytes), Bytes(bytes), &|_| Time::ZERO))
            }
            &FusionSpec::Ready { bytes, cycle_ps } => {
                let cycle = Time::from_ps(cycle_ps);
                self.of_plan(&transfers::horovod(&self.boundaries, Bytes(bytes), cycle, &self.time()))
            }
            FusionSpec::Adaptive => {
                let groups = batch(&self.boundaries, self.costs().threshold, &self.time());
                self.of_plan(&transfers::first_in_first_out(&groups, false, &|_| Time::ZERO))
            }
        }
    }

    /// The same as groups of parameters.
    fn groups(&self) -> Vec<ParameterGroup> {
        let parameter_of = |layer: &u32| self.layer_of.partition_point(|other| other < layer) as u32;
        let group = |sent: GatedBucket| self.boundaries.group(sent.bucket.layers.iter().map(parameter_of).collect());
        self.sends().into_iter().map(group).collect()
    }

    fn bucket(&self, parameters: &[u32]) -> Bucket {
        let mut layers: Vec<u32> = parameters.iter().map(|&parameter| self.layer_of[parameter as usize]).collect();
        layers.sort_unstable_by_key(|&layer| Reverse(layer));
        let bytes = parameters.iter().map(|&parameter| self.boundaries.windows[parameter as usize].bytes).sum();
        Bucket { layers, bytes }
    }

    /// Every transfer of a plan as a bucket.
    fn of_plan(&self, plan: &TransferPlan) -> Vec<GatedBucket> {
        let sent = |it: &PlannedTransfer| GatedBucket { bucket: self.bucket(&it.parameters), gate: it.gate };
        plan.transfers.iter().map(sent).collect()
    }

    fn in_order(&self, sends: Vec<GatedBucket>, scheduler: Box<dyn Scheduler>) -> Planned {
        let buckets: Vec<Bucket> = sends.iter().map(|sent| sent.bucket.clone()).collect();
        let parameter_of = |layer: &u32| self.layer_of.partition_point(|other| other < layer) as u32;
        let by_bucket = |boundaries: &Boundaries| {
            let window = |bucket: &Bucket| boundaries.group(bucket.layers.iter().map(parameter_of).collect()).window;
            Boundaries { compute: boundaries.compute, windows: buckets.iter().map(window).collect() }
        };
        Planned {
            boundaries: by_bucket(&self.boundaries),
            without_barrier: self.without_barrier.iter().map(by_bucket).collect(),
            gates: sends.iter().map(|sent| sent.gate).collect(),
            buckets,
            scheduler,
            chunk: self.spec.schedule.chunk_bytes.map(Bytes),
        }
    }

    /// What is read first is sent first; ties go to what is updated first.
    fn by_read(&self) -> Planned {
        let planned = self.in_order(self.sends(), Box::new(Fifo));
        let windows = Boundaries::jointly(&planned.without_barrier).windows;
        let mut order: Vec<u32> = (0..windows.len() as u32).collect();
        order.sort_by_key(|&bucket| (windows[bucket as usize].read, windows[bucket as usize].update));
        let mut bucket_ranks = vec![0; order.len()];
        (0..).zip(order).for_each(|(rank, bucket)| bucket_ranks[bucket as usize] = rank);
        Planned { scheduler: Box::new(Given { bucket_ranks }), ..planned }
    }

    /// A plan in chunks of at most `chunk`: what follows one another of the same parameters is one bucket.
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
            GatedBucket { bucket: self.bucket(&it.parameters), gate: it.gate }
        };
        let sends = ranked.iter().map(sent).collect();
        let bucket_ranks = ranked.into_iter().map(|(_, rank)| rank).collect();
        Planned { chunk, ..self.in_order(sends, Box::new(Given { bucket_ranks })) }
    }

    fn packed(&self) -> Planned {
        let plan = pack(&self.boundaries, &self.groups(), &self.time()).plan;
        self.as_planned(&plan, self.spec.schedule.chunk_bytes.map(Bytes))
    }

    /// The buckets of a list, the first of it first. Compute that waits for a bucket opens its gate.
    fn as_listed(&self, buckets: &[PlannedBucketSpec]) -> Planned {
        let listed = |it: &PlannedBucketSpec| {
            let parameter_of = |layer: &u32| self.layer_of.partition_point(|other| other < layer) as u32;
            let parameters: Vec<u32> = it.layers.iter().map(parameter_of).collect();
            let bucket = self.bucket(&parameters);
            let window = self.boundaries.group(parameters).window;
            let gate = Time::from_ps(it.gate_ps).min(self.boundaries.compute + window.read);
            (window.update, GatedBucket { bucket, gate })
        };
        let mut ranked: Vec<((Time, GatedBucket), u32)> = buckets.iter().map(listed).zip(0..).collect();
        ranked.sort_by_key(|&((update, _), rank)| (update, rank));
        let bucket_ranks = ranked.iter().map(|&(_, rank)| rank).collect();
        let sends = ranked.into_iter().map(|((_, sent), _)| sent).collect();
        self.in_order(sends, Box::new(Given { bucket_ranks }))
    }

    fn by_deadline(&self) -> Planned {
        let chunk = self.spec.schedule.chunk_bytes.map_or_else(|| self.costs().chunk(), Bytes);
        let any_time = |_| Time::ZERO;
        let plan = transfers::earliest_deadline_first(&self.boundaries, &self.groups(), chunk, 1, &any_time);
        self.as_planned(&plan, Some(chunk))
    }

    /// The shortest iteration of all candidates; of several, the one with the fewest transfers, then the first. What
    /// the schedule leaves open is searched: what is sent together, if that is adaptive, and the chunk, if there is
    /// none.
    fn best(&self) -> Planned {
        let mut best: Option<((Time, usize), TransferPlan, Option<Bytes>)> = None;
        let mut look = |plan: TransferPlan, chunk| {
            let value = (timeline::run(&self.boundaries, &plan).iteration_time(), plan.transfers.len());
            if best.as_ref().is_none_or(|(least, ..)| value < *least) {
                best = Some((value, plan, chunk));
            }
        };
        let time = self.time();
        let given = self.spec.schedule.chunk_bytes.map(Bytes);
        for groups in self.groupings() {
            let chunk = self.costs().chunk().0;
            let chunks = match given {
                Some(chunk) => vec![chunk],
                None => [chunk.div_ceil(4), chunk, chunk.saturating_mul(4)].map(Bytes).to_vec(),
            };
            if given.is_none() {
                look(transfers::first_in_first_out(&groups, false, &time), None);
                let whole = Bytes(u64::MAX);
                look(transfers::earliest_deadline_first(&self.boundaries, &groups, whole, 1, &time), None);
                if groups.len() <= MOST_PACKED {
                    look(pack(&self.boundaries, &groups, &time).plan, None);
                }
            }
            for chunk in chunks {
                look(transfers::earliest_deadline_first(&self.boundaries, &groups, chunk, 1, &time), Some(chunk));
            }
        }
        match best {
            Some((_, plan, chunk)) => self.as_planned(&plan, chunk),
            None => self.in_order(Vec::new(), Box::new(Fifo)),
        }
    }

    /// What may be sent together.
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

/// Most groups for which the best order also tries packing, whose effort grows with their square.
const MOST_PACKED: usize = 200;
