//! Builders of parallel steps against closed forms, on random meshes, and the specifications that they refuse.
#![allow(missing_docs)]

mod parallel;
mod reference;
mod star;

use gradtide_net::{Band, Bytes, Completion, Flow, FlowId, Link, Network, Rate, Time};
use gradtide_train::classes::GroupOp;
use gradtide_train::collective::levels::{CollectiveKind, Span};
use gradtide_train::collective::nodes::Carriage;
use gradtide_train::dag::OpKind;
use gradtide_train::parallel::{Axis, Group, GroupTransfer, ParallelError, Step};
use gradtide_train::parallel_job;
use gradtide_train::run::{CollectiveExecutor, Done, Limits, RunContext};
use gradtide_train::schedule::{FirstNeed, Scheduler};
use gradtide_train::spec::Spec;
use gradtide_train::spec::{
    BlockKindSpec, BlockOpSpec, BlockSpec, MeshSpec, ParallelSpec, PipelineSpec, RoleSpec, ShardingSpec,
};
use gradtide_train::traffic::Background;
use parallel::{ACTIVATIONS, KEYS_AND_VALUES, TOKENS, op, scenario, transformer};
use proptest::prelude::*;
use reference::{Times, run};
use std::collections::{BTreeMap, BTreeSet};

fn step_time(spec: &ParallelSpec) -> u64 {
    let step = Step::new(spec).unwrap();
    run(&step, 1, &|_| 0)[0].end.iter().copied().max().unwrap()
}

#[test]
fn bubble_is_stages_minus_one_over_micro_batches() {
    let of_block = 3 * (600 + 1200);
    for pp in [2, 3, 4, 8] {
        for micro_batches in [1, 2, 5, 8, 24] {
            for pipeline in [PipelineSpec::Gpipe, PipelineSpec::OneFOneB] {
                let spec = ParallelSpec {
                    pipeline,
                    ..transformer(MeshSpec { pp, ..MeshSpec::default() }, pp, 2, micro_batches)
                };
                let ideal = 2 * of_block * u64::from(micro_batches);
                let bubble = ideal * u64::from(pp - 1) / u64::from(micro_batches);
                assert_eq!(step_time(&spec), ideal + bubble, "{pipeline:?}: pp {pp}, {micro_batches} micro-batches");
            }
        }
        for (chunks, rounds) in [(2, 1), (2, 3), (3, 2), (4, 1), (5, 4)] {
            let mesh = MeshSpec { pp, ..MeshSpec::default() };
            let spec = ParallelSpec {
                pipeline: PipelineSpec::Interleaved { chunks },
                ..transformer(mesh, pp * chunks, 1, rounds * pp)
            };
            let ideal = u64::from(chunks) * of_block * u64::from(rounds * pp);
            let bubble = ideal * u64::from(pp - 1) / u64::from(rounds * pp * chunks);
            assert_eq!(step_time(&spec), ideal + bubble, "pp {pp}, {chunks} chunks, {rounds} rounds");
        }
    }
}

fn axis() -> impl Strategy<Value = u32> {
    prop_oneof![Just(1_u32), Just(2), Just(4)]
}

fn meshes() -> impl Strategy<Value = MeshSpec> {
    let axes = (axis(), axis(), axis(), axis(), axis());
    axes.prop_flat_map(|(tp, cp, fsdp, dp, pp)| {
        let mesh = MeshSpec { tp, cp, ep: 1, fsdp, dp, pp };
        let divisors: Vec<u32> = (0..).map(|power| 1 << power).take_while(|ep| ep <= &(cp * fsdp * dp)).collect();
        prop::sample::select(divisors).prop_map(move |ep| MeshSpec { ep, ..mesh })
    })
}

fn one_stage() -> impl Strategy<Value = MeshSpec> {
    meshes().prop_map(|mesh| MeshSpec { pp: 1, ..mesh })
}

fn shardings() -> impl Strategy<Value = ShardingSpec> {
    prop::sample::select(vec![ShardingSpec::None, ShardingSpec::Zero1, ShardingSpec::Zero2, ShardingSpec::Zero3])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    /// Bytes of each axis and collective, summed over the stages: gradients and parameters as in ZeRO, four
    /// tensor-parallel sums per layer as in Megatron, and one activation per stage boundary and direction. Sizes are
    /// not divided by the number of ranks.
    #[test]
    fn bytes_are_those_of_the_closed_forms(
        mesh in meshes(),
        sharding in shardings(),
        sequence_parallel in any::<bool>(),
        overlap_gradients in any::<bool>(),
        blocks_of_stage in 1..4_u32,
        rounds in 1..4_u32,
        chunks in 1..4_u32,
    ) {
        let MeshSpec { tp, cp, ep, fsdp, dp, pp } = mesh;
        let chunks = if pp == 1 { 1 } else { chunks };
        let micro_batches = rounds * pp;
        let base = transformer(mesh, pp * chunks, blocks_of_stage, micro_batches);
        let pipeline = PipelineSpec::Interleaved { chunks };
        let spec = ParallelSpec { sharding, sequence_parallel, overlap_gradients, pipeline, ..base };
        let step = Step::new(&spec).unwrap();
        let mut sums: BTreeMap<(Axis, CollectiveKind), u64> = BTreeMap::new();
        for transfer in step.transfers.iter() {
            *sums.entry((step.groups[transfer.group as usize].axis, transfer.kind)).or_default() += transfer.bytes.0;
        }

        let mut expected: BTreeMap<(Axis, CollectiveKind), u64> = BTreeMap::new();
        let mut expect = |axis, kind, ranks: u32, bytes: u64| {
            if ranks > 1 && bytes > 0 {
                expected.insert((axis, kind), bytes);
            }
        };
        use CollectiveKind::{AllGather, AllReduce, AllToAll, ReduceScatter, Send};
        let (blocks, times) = (u64::from(pp * chunks * blocks_of_stage), u64::from(micro_batches));
        let block_times = blocks * times;
        // Korthikanti et al. (2022), section 4.2.2: four all-reduces per layer, or four all-gathers and four
        // reduce-scatters.
        if sequence_parallel {
            expect(Axis::Tensor, AllGather, tp, 4 * block_times * ACTIVATIONS);
            expect(Axis::Tensor, ReduceScatter, tp, 4 * block_times * ACTIVATIONS);
        } else {
            expect(Axis::Tensor, AllReduce, tp, 4 * block_times * ACTIVATIONS);
        }
        let sent = if sequence_parallel { ACTIVATIONS / u64::from(tp) } else { ACTIVATIONS };
        expect(Axis::Pipeline, Send, pp, 2 * u64::from(pp * chunks - 1) * times * sent);
        expect(Axis::Expert, AllToAll, ep, 4 * block_times * TOKENS);
        expect(Axis::Context, Send, cp, 3 * u64::from(cp - 1) * block_times * KEYS_AND_VALUES);
        expect(Axis::Norm, AllReduce, tp * cp * fsdp * dp * pp, 4);
        // Rajbhandari et al. (2020), section 7: gradients are reduced and parameters gathered; ZeRO-3 gathers them
        // twice.
        let each = |is_each: bool| if is_each && pp == 1 && sharding >= ShardingSpec::Zero2 { times } else { 1 };
        let (gathered, reduced) = (each(true), each(overlap_gradients));
        let gathers = |bytes: u64| match sharding {
            ShardingSpec::None => 0,
            ShardingSpec::Zero1 => blocks * bytes,
            ShardingSpec::Zero2 => gathered * blocks * bytes,
            ShardingSpec::Zero3 => gathered * (2 * blocks - 1) * bytes,
        };
        let mut data = |[sharded, replicated]: [Axis; 2], shards: u32, replicas: u32, parameters: u64, gradients: u64| {
            // With a pipeline, the number of ZeRO-3's repeated all-gathers depends on the order of micro-batches.
            if pp == 1 || sharding != ShardingSpec::Zero3 {
                expect(sharded, AllGather, shards, gathers(parameters));
            }
            expect(sharded, ReduceScatter, shards, reduced * blocks * gradients);
            expect(replicated, AllReduce, replicas, reduced * blocks * gradients / u64::from(shards));
        };
        let is_sharded = sharding != ShardingSpec::None;
        let shards = if is_sharded { cp * fsdp } else { 1 };
        let with_experts = if ep == 1 { 1 } else { 0 };
        let axes = [Axis::Sharded, Axis::Replicated];
        data(axes, shards, cp * fsdp * dp / shards, 48 + 480 * with_experts, 96 + 960 * with_experts);
        if ep > 1 {
            let shards = if is_sharded && ep <= cp * fsdp { cp * fsdp / ep } else { 1 };
            data([Axis::ExpertSharded, Axis::ExpertReplicated], shards, cp * fsdp * dp / ep / shards, 480, 960);
        }
        if pp > 1 && sharding == ShardingSpec::Zero3 {
            for axis in [Axis::Sharded, Axis::ExpertSharded] {
                sums.remove(&(axis, AllGather));
            }
        }
        prop_assert_eq!(sums, expected);
    }
}

fn specs() -> impl Strategy<Value = ParallelSpec> {
    let schedule = (0..3_u32, 1..4_u32, 1..4_u32, shardings());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let numbers = (0..4_u32, 0..4_u32, 0..2_u64, 0..2_u64, prop::collection::vec(1..4_u32, 12), 1..4_u32);
    let roles = [RoleSpec::Embedding, RoleSpec::Attention, RoleSpec::Mlp, RoleSpec::Experts, RoleSpec::Head];
    let kind = (prop::collection::vec((0..5_usize, 0..20_u64, 0..9_u64, any::<bool>()), 1..4), 0..3_u64, 0..3_u64);
    let kinds = prop::collection::vec(kind, 1..4);
    (meshes(), schedule, flags, numbers, kinds).prop_map(move |(mesh, schedule, flags, numbers, kinds)| {
        let (schedule, chunks, rounds, sharding) = schedule;
        let (sequence_parallel, overlap_gradients, communicates, is_small_node) = flags;
        let (forward_prefetch, backward_prefetch, norm_bytes, tied_embedding_bytes, counts, of_unit) = numbers;
        let chunks = if mesh.pp > 1 && schedule == 2 { chunks } else { 1 };
        let stages: Vec<u32> = counts[..(mesh.pp * chunks) as usize].to_vec();
        let kinds: Vec<BlockKindSpec> = (kinds.into_iter())
            .map(|(ops, dense, experts)| BlockKindSpec {
                parameter_bytes: dense,
                gradient_bytes: 2 * dense,
                expert_parameter_bytes: experts,
                expert_gradient_bytes: 2 * experts,
                ops: (ops.into_iter())
                    .map(|(role, forward, bytes, recomputes)| BlockOpSpec {
                        recompute_ps: if recomputes { forward } else { 0 },
                        recompute_communicates: recomputes && communicates,
                        ..op("op", roles[role], forward, bytes)
                    })
                    .collect(),
            })
            .collect();
        let count: u32 = stages.iter().sum();
        ParallelSpec {
            gpus_per_node: if is_small_node { 2 } else { 8 },
            sharding,
            pipeline: match schedule {
                0 => PipelineSpec::Gpipe,
                1 => PipelineSpec::OneFOneB,
                _ => PipelineSpec::Interleaved { chunks },
            },
            sequence_parallel,
            forward_prefetch,
            backward_prefetch,
            overlap_gradients,
            gloo: norm_bytes == tied_embedding_bytes,
            blocks: (0..count).map(|index| BlockSpec { name: "b".into(), kind: index % kinds.len() as u32 }).collect(),
            kinds,
            units: (stages.iter())
                .flat_map(|&count| (0..count).step_by(of_unit as usize).map(move |first| of_unit.min(count - first)))
                .collect(),
            stages,
            optimizer_ps: vec![3; mesh.pp as usize],
            norm_bytes,
            tied_embedding_bytes,
            ..transformer(mesh, mesh.pp, 1, rounds * mesh.pp)
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Every step ends, each rank executes all of its compute ops, and no rank is more than one step ahead.
    #[test]
    fn every_step_can_be_executed(spec in specs()) {
        let step = Step::new(&spec).unwrap();
        prop_assert!(step.dag.is_executable());
        let times = run(&step, 3, &|transfer| transfer.bytes.0 + 1);
        let starts = step.dag.programs.iter().map(|program| program.ops.start as usize);
        let begins = |index: usize| starts.clone().map(move |op| index + op);
        for pair in times.windows(2) {
            let latest = begins(0).map(|op| pair[0].start[op]).max();
            let earliest = begins(0).map(|op| pair[1].end[op]).min();
            let has_norm = spec.norm_bytes > 0 && spec.mesh != MeshSpec::default();
            prop_assert!(!has_norm || latest < earliest, "{latest:?} {earliest:?}");
        }
        let (second, third) = (begins(0).map(|op| times[1].start[op]).max(), begins(0).map(|op| times[2].start[op]).min());
        prop_assert!(second <= third, "a class is two steps ahead: {second:?} {third:?}");
        let computed: u64 = step.dag.ops.iter().map(|op| op.cost.ps()).sum();
        let of_block = |block: &BlockSpec| {
            let ops = &spec.kinds[block.kind as usize].ops;
            ops.iter().map(|op| op.forward_ps + op.backward_ps + op.recompute_ps).sum::<u64>()
        };
        let expected = spec.blocks.iter().map(of_block).sum::<u64>() * u64::from(spec.micro_batches);
        prop_assert_eq!(computed, expected + 3 * u64::from(spec.mesh.pp));
    }

    /// If at most two units are prefetched, the order in which transfers of a group become ready is also the order in
    /// which they are needed. With more units, a reduce-scatter may wait behind all-gathers that are needed later than
    /// its buffer.
    #[test]
    fn what_waits_is_sent_in_the_order_of_its_needs(
        mesh in one_stage(),
        sharding in shardings(),
        blocks in 2..12_u32,
        depths in (0..3_u32, 0..3_u32),
        of_unit in 1..4_u32,
        micro_batches in 1..4_u32,
        byte_ps in 1..300_u64,
    ) {
        let (forward_prefetch, backward_prefetch) = depths;
        let units = (0..blocks).step_by(of_unit as usize).map(|first| of_unit.min(blocks - first)).collect();
        let base = transformer(mesh, 1, blocks, micro_batches);
        let spec = ParallelSpec { sharding, forward_prefetch, backward_prefetch, units, ..base };
        let step = Step::new(&spec).unwrap();
        let Times { ready, start, .. } = &run(&step, 1, &|transfer| byte_ps * transfer.bytes.0 + 1)[0];
        let mut needs = Vec::new();
        FirstNeed.ranks(&step.dag, &mut needs);
        let transfers = 0..needs.len();
        for (first, second) in transfers.clone().flat_map(|first| transfers.clone().map(move |second| (first, second))) {
            let [was, would] = [first, second].map(|transfer| step.dag.transfer_op(transfer as u32) as usize);
            let is_of_one_group = step.transfers[first].group == step.transfers[second].group;
            if is_of_one_group && ready[would] < start[was] && start[was] < start[would] {
                prop_assert!(needs[first] <= needs[second], "{} before {}", needs[first], needs[second]);
            }
        }
    }

    /// Compares the placement of each group's ranks on nodes with an enumeration of all ranks.
    #[test]
    fn groups_lie_on_nodes_as_their_ranks_do(
        axes in prop::array::uniform5(1..5_u32),
        ep in 1..9_u32,
        gpus_per_node in 1..13_u32,
        sharding in shardings(),
    ) {
        let [tp, cp, fsdp, dp, pp] = axes;
        let mesh = MeshSpec { tp, cp, ep, fsdp, dp, pp };
        let spec = ParallelSpec { gpus_per_node, sharding, tied_embedding_bytes: 1, ..transformer(mesh, pp, 1, 1) };
        let (sharded, data) = (cp * fsdp, cp * fsdp * dp);
        if sharded % ep != 0 && !(ep % sharded == 0 && data % ep == 0) {
            prop_assert_eq!(Step::new(&spec).err(), Some(ParallelError::Experts {
                ep, sharded: sharded.into(), data: data.into(),
            }));
            return Ok(());
        }
        let shards = if sharding == ShardingSpec::None { 1 } else { sharded };
        let expert_shards = if sharding == ShardingSpec::None || ep > sharded { 1 } else { sharded / ep };
        // Ranks with the same key are in the same group.
        let all = |key: &dyn Fn(u32, u32, u32) -> (u32, u32, u32)| {
            let mut groups: BTreeMap<_, Vec<u32>> = BTreeMap::new();
            for rank in 0..tp * data * pp {
                let (in_tensor, in_data, stage) = (rank % tp, rank / tp % data, rank / tp / data);
                groups.entry((stage, key(in_tensor, in_data, rank))).or_default().push(rank);
            }
            groups.into_values().collect::<Vec<_>>()
        };
        let mut expected: Vec<(Axis, Vec<Vec<u32>>)> = vec![
            (Axis::Tensor, all(&|_, data, _| (data, 0, 0))),
            (Axis::Context, all(&|tensor, data, _| (tensor, data / cp, 0))),
            (Axis::Expert, all(&|tensor, data, _| (tensor, data / ep, 0))),
            (Axis::Sharded, all(&|tensor, data, _| (tensor, data / shards, 0))),
            (Axis::Replicated, all(&|tensor, data, _| (tensor, data % shards, 0))),
        ];
        if ep > 1 {
            let block = ep * expert_shards;
            expected.push((Axis::ExpertSharded, all(&|tensor, data, _| (tensor, data % ep, data / block))));
            expected.push((Axis::ExpertReplicated, all(&|tensor, data, _| (tensor, data % block, 0))));
        }
        let per_node = |group: &[u32]| {
            let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
            group.iter().for_each(|rank| *counts.entry(rank / gpus_per_node).or_default() += 1);
            let mut counts: Vec<u32> = counts.into_values().collect();
            counts.dedup();
            counts
        };
        let alike = |groups: &[Vec<u32>]| {
            let mut found: Vec<Vec<u32>> = groups.iter().map(|group| per_node(group)).collect();
            found.dedup();
            (found.len() == 1 && found[0].len() == 1).then(|| found[0][0])
        };
        match Step::new(&spec) {
            Ok(step) => {
                for (axis, groups) in &expected {
                    let mut found = step.groups.iter().filter(|group| group.axis == *axis).peekable();
                    prop_assert_eq!(found.peek().is_none(), groups[0].len() == 1, "{:?}", axis);
                    for group in found {
                        let per_node = alike(groups).expect("it was taken for even");
                        prop_assert_eq!(group.span, Span::new(groups[0].len() as u32, per_node).unwrap(), "{:?}", axis);
                    }
                }
                for group in step.groups.iter().filter(|group| matches!(group.axis, Axis::Pipeline | Axis::Embedding)) {
                    let ranks = tp * data;
                    let pairs: Vec<Vec<u32>> =
                        (0..ranks).map(|rank| group.classes.iter().map(|class| class * ranks + rank).collect()).collect();
                    let per_node = alike(&pairs).expect("it was taken for even");
                    prop_assert_eq!(group.span, Span::new(2, per_node).unwrap(), "{:?}", group);
                }
            }
            Err(ParallelError::Uneven { .. }) => {
                let norm = vec![(0..tp * data * pp).collect()];
                let is_even = expected.iter().all(|(_, groups)| alike(groups).is_some()) && alike(&norm).is_some();
                prop_assert!(!is_even || gpus_per_node % (tp * data) != 0 && tp * data % gpus_per_node != 0);
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}

/// A network on which no flow delays another.
#[derive(Default)]
struct Free {
    now: Time,
    started: u64,
    ends: BTreeSet<(Time, u64, u32)>,
}

/// A link on which a byte takes 10 ps and a message is delayed by 8 ps.
fn link() -> Link {
    Link { rate: Rate::from_bps(800_000_000_000).unwrap(), delay: Time::from_ps(8) }
}

impl Network for Free {
    fn now(&self) -> Time {
        self.now
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        let end = self.now.checked_add(flow.time_alone(&link()).unwrap()).unwrap();
        self.ends.insert((end, self.started, flow.stream));
        self.started += 1;
        FlowId(self.started - 1)
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        let first = self.ends.first().map_or(Time::MAX, |&(end, ..)| end);
        self.now = until.min(first);
        while let Some((received, flow, stream)) = self.ends.pop_first() {
            if received > self.now {
                self.ends.insert((received, flow, stream));
                break;
            }
            done.push(Completion { flow: FlowId(flow), stream, began: self.now, received });
        }
    }

    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        Vec::new()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// If no flow delays another, the executor gives the times of the reference for each op, to the picosecond.
    #[test]
    fn the_executor_does_what_the_reference_does(spec in specs()) {
        // Gloo sends two transfers at once, but the reference sends one after the other, so gloo is switched off.
        let spec = scenario(ParallelSpec { gpus_per_node: 1, gloo: false, ..spec }, "fluid");
        let (job, classes) = parallel_job::on_classes(&spec).unwrap().unwrap();
        let step = Step::new(spec.jobs[0].parallel.as_ref().unwrap()).unwrap();
        let time = |transfer: &GroupTransfer| {
            let Group { span, classes: of, .. } = &step.groups[transfer.group as usize];
            let op = GroupOp { kind: transfer.kind, bytes: transfer.bytes, span: *span, classes: of };
            let carriage = Carriage { band: Band::new(0).unwrap(), stream: 0 };
            classes.flows(&op, carriage).iter().map(|flow| flow.time_alone(&link()).unwrap().ps()).max().unwrap_or(0)
        };
        let expected = reference::run(&step, 2, &time);
        let limits = Limits { duration: None, timeline_iterations: 2 };
        let (mut job, mut network) = (job, Free::default());
        let executor = Box::new(CollectiveExecutor::new(&mut job, 0, RunContext::alone(limits), None));
        let done = gradtide_train::run::run(vec![executor], &Background::default(), &mut network, limits, &mut |_| true).unwrap();
        let [Done::Collective(_, record)] = &done[..] else { panic!("one job") };
        let mut count = 0;
        for op in &record.operations {
            let index = match op.kind {
                OpKind::Compute(index) => index as usize,
                OpKind::Transfer(index) => step.dag.transfer_op(index) as usize,
                kind => panic!("{kind:?} in a step"),
            };
            let Times { start, end, .. } = &expected[op.iteration as usize];
            prop_assert_eq!((op.start.ps(), op.end.ps()), (start[index], end[index]), "{:?}", op);
            count += 1;
        }
        prop_assert_eq!(count, 2 * step.dag.ops.len());
    }
}

#[test]
fn what_means_nothing_is_refused() {
    let good = || transformer(MeshSpec { pp: 2, fsdp: 4, ..MeshSpec::default() }, 4, 2, 4);
    let interleaved = PipelineSpec::Interleaved { chunks: 2 };
    let good = || ParallelSpec { pipeline: interleaved, ..good() };
    assert!(Step::new(&good()).is_ok());
    let refused = |change: &dyn Fn(&mut ParallelSpec)| {
        let mut spec = good();
        change(&mut spec);
        Step::new(&spec).err().expect("it means nothing")
    };
    use ParallelError as Error;
    assert_eq!(refused(&|spec| spec.mesh.tp = 0), Error::Zero("mesh.tp"));
    assert_eq!(refused(&|spec| spec.mesh.pp = 0), Error::Zero("mesh.pp"));
    assert_eq!(refused(&|spec| spec.gpus_per_node = 0), Error::Zero("gpus_per_node"));
    assert_eq!(refused(&|spec| spec.micro_batches = 0), Error::Zero("micro_batches"));
    assert_eq!(
        refused(&|spec| spec.pipeline = PipelineSpec::Interleaved { chunks: 0 }),
        Error::Zero("pipeline.chunks")
    );
    assert_eq!(refused(&|spec| spec.activation_bytes = 0), Error::Zero("activation_bytes"));
    assert_eq!(refused(&|spec| spec.blocks.clear()), Error::Zero("the number of blocks"));
    assert_eq!(refused(&|spec| spec.stages[1] = 0), Error::Zero("the number of blocks of a stage"));
    assert_eq!(refused(&|spec| spec.kinds[0].ops.clear()), Error::Zero("the number of ops of a block"));
    assert_eq!(refused(&|spec| spec.mesh.dp = u32::MAX), Error::TooManyRanks);
    assert_eq!(refused(&|spec| spec.mesh.ep = 3), Error::Experts { ep: 3, sharded: 4, data: 4 });
    assert_eq!(refused(&|spec| spec.mesh.tp = 3), Error::Uneven { axis: "tp", gpus: 8 });
    assert_eq!(refused(&|spec| spec.blocks[0].kind = 7), Error::NoSuchKind("layers.0".into()));
    assert_eq!(refused(&|spec| spec.stages.truncate(3)), Error::StageCount { stages: 3, wanted: 4 });
    assert_eq!(refused(&|spec| spec.pipeline = PipelineSpec::Gpipe), Error::StageCount { stages: 4, wanted: 2 });
    assert_eq!(refused(&|spec| spec.stages[0] = 3), Error::Stages { counted: 9, blocks: 8 });
    assert_eq!(refused(&|spec| spec.stages[0] = u32::MAX), Error::Stages { counted: 4294967301, blocks: 8 });
    assert_eq!(refused(&|spec| spec.units[1] = 0), Error::Zero("the number of blocks of a unit"));
    assert_eq!(refused(&|spec| spec.units.truncate(3)), Error::Units { counted: 3, blocks: 8 });
    assert_eq!(refused(&|spec| spec.units = vec![1, 2, 5]), Error::SplitUnit(2));
    assert_eq!(refused(&|spec| spec.micro_batches = 5), Error::Rounds { micro_batches: 5, pp: 2 });
    let alone = |spec: &mut ParallelSpec| {
        spec.mesh.pp = 1;
        spec.stages = vec![4, 4];
    };
    assert_eq!(refused(&alone), Error::InterleavedAlone);
    assert_eq!(refused(&|spec| spec.optimizer_ps.truncate(1)), Error::OptimizerTimes { given: 1, pp: 2 });
    let idle = |spec: &mut ParallelSpec| {
        for op in &mut spec.kinds[0].ops {
            (op.forward_ps, op.backward_ps) = (0, 0);
        }
    };
    assert_eq!(refused(&idle), Error::NoTime);
    assert_eq!(refused(&|spec| spec.optimizer_ps[0] = u64::MAX), Error::TooLong);
    assert_eq!(refused(&|spec| spec.kinds[0].ops[0].recompute_ps = u64::MAX), Error::TooLong);
    assert_eq!(refused(&|spec| spec.kinds[0].gradient_bytes = u64::MAX), Error::TooManyBytes);
    assert_eq!(refused(&|spec| spec.norm_bytes = u64::MAX), Error::TooManyBytes);
    assert_eq!(refused(&|spec| spec.kinds[0].ops[0].exchanged_bytes = u64::MAX), Error::TooManyBytes);
    assert_eq!(refused(&|spec| spec.micro_batches = u32::MAX - 1), Error::TooManyOps);
    assert_eq!(refused(&|spec| spec.mesh.cp = 1 << 24), Error::TooManyOps);
}

#[test]
fn a_parallel_job_that_its_cluster_cannot_have_is_refused() {
    let mesh = MeshSpec { fsdp: 4, ..MeshSpec::default() };
    let refused = |change: &dyn Fn(&mut Spec)| {
        let parallel = ParallelSpec { gpus_per_node: 1, ..transformer(mesh, 1, 2, 1) };
        let mut spec = scenario(parallel, "fluid");
        assert!(parallel_job::on_classes(&spec).is_ok_and(|planned| planned.is_some()));
        change(&mut spec);
        parallel_job::on_classes(&spec).err().expect("it means nothing").to_string()
    };
    let parallel = |spec: &mut Spec| spec.jobs[0].parallel.take().unwrap();
    assert!(refused(&|spec| _ = spec.jobs[0].hosts.pop()).contains("the mesh has 4 ranks, but the job has 3 workers"));
    assert!(refused(&|spec| spec.jobs[0].hosts[1] = 0).contains("must fill one node after the other"));
    let on_nodes = |spec: &mut Spec| {
        let parallel = ParallelSpec { gpus_per_node: 2, ..parallel(spec) };
        spec.jobs[0].parallel = Some(parallel);
    };
    assert!(refused(&on_nodes).contains("nodes of 2 GPUs, but those of the cluster have 1"));
    assert!(refused(&|spec| spec.jobs.push(spec.jobs[0].clone())).contains("nothing else can be beside it"));
    assert!(refused(&|spec| spec.jobs[0].iterations = None).contains("no number of iterations"));
    assert!(refused(&|spec| spec.jobs[0].bands = vec![0, 1]).contains("2 bands"));
    assert!(refused(&|spec| spec.jobs[0].bands = vec![200]).contains("band 200"));
    assert!(refused(&|spec| spec.jobs[0].compute.noise_ppm = 1).contains("workers that differ"));
    assert!(refused(&|spec| spec.jobs[0].compute.overlap_slowdown_ppm = 0).contains("below 1000000 ppm"));
    assert!(refused(&|spec| spec.jobs[0].schedule.chunk = Some(Bytes(1))).contains("chunks"));
    assert!(refused(&|spec| spec.jobs[0].schedule.overhead = Time::MAX).contains("past 106 days"));
    assert!(refused(&|spec| spec.jobs[0].iterations = Some(u32::MAX)).contains("would record"));
}
