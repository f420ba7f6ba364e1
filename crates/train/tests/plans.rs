//! Plans of collectives: their execution on arrays, and their messages and bytes against textbook formulas.

mod executed;

use executed::{Case, cases, check, execute, messages, part, plan, value};
use gradtide_net::{Band, Bytes, Completion, Flow, FlowId, Network, Rate, Time};
use gradtide_train::collective::algorithm::CollectiveAlgorithm;
use gradtide_train::collective::algorithms::hierarchical::{Hierarchical, Inside};
use gradtide_train::collective::algorithms::ps::{ParameterServer, Placement};
use gradtide_train::collective::algorithms::{
    Algorithm, AllGather, AllToAll, BinaryTree, Broadcast, Butterfly, ButterflyLayered, HalvingDoubling, PointToPoint,
    ReduceScatter, Ring, Shuffle, Tree, tree,
};
use gradtide_train::collective::group::GroupHosts;
use gradtide_train::collective::levels::CollectiveKind;
use gradtide_train::collective::messages::{Collective, Depth, MessageSize};
use gradtide_train::collective::plan::{CollectivePlan, PlanError};
use gradtide_train::collective::progress::Progress;
use proptest::prelude::*;
use proptest::sample::Index;

/// Returns the bytes that each rank sends, and the bytes that each rank receives.
fn traffic(plan: &CollectivePlan) -> (Vec<u64>, Vec<u64>) {
    let mut traffic = (vec![0; plan.ranks() as usize], vec![0; plan.ranks() as usize]);
    for message in messages(plan) {
        traffic.0[message.from as usize] += message.bytes.0;
        traffic.1[message.to as usize] += message.bytes.0;
    }
    traffic
}

/// Returns the number of messages on a plan's critical path: its rounds if every message takes one round.
fn critical_path(plan: &CollectivePlan) -> u32 {
    let mut under_way = Vec::new();
    let mut progress = Progress::begin(plan.clone(), &mut |message| under_way.push(message));
    let mut rounds = 0;
    while !under_way.is_empty() {
        rounds += 1;
        for message in std::mem::take(&mut under_way) {
            progress.on_arrival(message.passage(), &mut |message| under_way.push(message));
        }
    }
    assert!(progress.is_complete());
    rounds
}

/// Returns a small random generator of numbers below its argument.
fn drawer(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed | 1;
    move |count| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % count as u64) as usize
    }
}

#[test]
fn every_collective_does_what_it_promises_on_1_to_17_ranks() {
    for ranks in 1..=17 {
        for bytes in [0, 1, 5, 16, 37] {
            for case in cases(ranks, bytes) {
                // Messages are delivered first in, first out; last in, first out; and in random order.
                check(&case, &mut |_| 0);
                check(&case, &mut |count| count - 1);
                check(&case, &mut drawer(bytes));
            }
        }
    }
}

proptest! {
    #[test]
    fn no_order_of_arrivals_changes_a_result(ranks in 1..=17_u32, bytes in 0..80_u64, seed: u64, pick: Index) {
        check(pick.get(&cases(ranks, bytes)), &mut drawer(seed));
    }

    #[test]
    fn what_is_sent_is_what_is_awaited(ranks in 1..=70_u32, pick: Index) {
        let all = cases(ranks, 100);
        let plan = &pick.get(&all).plan;
        for step in 0..plan.step_count() {
            let mut received = vec![0; ranks as usize];
            for rank in 0..ranks {
                plan.sends(step, rank, &mut |message| received[message.to as usize] += 1);
            }
            let awaited: Vec<u32> = (0..ranks).map(|rank| plan.receive_count(step, rank)).collect();
            prop_assert_eq!(received, awaited);
        }
    }

    #[test]
    fn chunks_send_what_the_whole_sends(ranks in 2..=17_u32, bytes in 0..500_u64, depth in 1..9_u32, pick: Index) {
        let all = cases(ranks, bytes);
        let whole = &pick.get(&all).plan;
        let chunks: Vec<CollectivePlan> = whole.chunks(depth).collect();
        let sum = |of: &dyn Fn(&CollectivePlan) -> u64| chunks.iter().map(of).sum::<u64>();
        let total = |plan: &CollectivePlan| traffic(plan).0.iter().sum::<u64>();
        // Messages that carry the whole buffer keep their total bytes when the buffer is cut into chunks. Where ranks
        // keep parts of the buffer, the parts with an extra byte may fall to other ranks in a chunk than in the whole
        // buffer, which changes a message by at most one byte.
        prop_assert!(sum(&total).abs_diff(total(whole)) <= sum(&|plan| messages(plan).len() as u64));
        for chunk in &chunks {
            prop_assert_eq!(chunk.step_count(), whole.step_count());
        }
        // No byte of the buffer is in two chunks.
        let extent = |plan: &CollectivePlan| {
            let ends = messages(plan).into_iter().filter(|message| message.bytes.0 > 0);
            ends.fold((u64::MAX, 0), |(low, high), m| (low.min(m.offset), high.max(m.offset + m.bytes.0)))
        };
        let extents: Vec<_> = chunks.iter().map(extent).filter(|(low, high)| low < high).collect();
        prop_assert!(extents.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{:?}", extents);
    }
}

#[test]
fn a_pipelined_all_reduce_sums_every_chunk() {
    for (ranks, depth) in [(5, 3), (8, 4), (6, 7)] {
        let sums = |case: &Case| case.operation == CollectiveKind::AllReduce && case.servers.is_empty();
        for Case { name, plan, .. } in cases(ranks, 41).into_iter().filter(sums) {
            let mut buffers: Vec<Vec<u64>> =
                (0..ranks).map(|rank| (0..41).map(|place| value(rank, place)).collect()).collect();
            let expected: Vec<u64> = (0..41).map(|place| (0..ranks).map(|rank| value(rank, place)).sum()).collect();
            for chunk in plan.chunks(depth) {
                buffers = execute(&chunk, buffers, &mut drawer(u64::from(depth)));
            }
            assert!(buffers.iter().all(|buffer| *buffer == expected), "{name} {depth}");
        }
    }
}

#[test]
fn critical_paths_are_the_textbooks() {
    for ranks in 1..=40_u32 {
        let floor = ranks.ilog2();
        let ceil = ranks.next_power_of_two().ilog2();
        let fold = if ranks.is_power_of_two() { 0 } else { 2 };
        let one = u32::from(ranks > 1);
        let mut expected = vec![
            (Algorithm::from(Ring), 2 * (ranks - 1)),
            (HalvingDoubling.into(), 2 * floor + fold),
            (Shuffle.into(), 2 * one),
            (BinaryTree.into(), 2 * floor),
            (Butterfly.into(), floor + fold),
            (AllGather.into(), ranks - 1),
            (ReduceScatter.into(), ranks - 1),
            (AllToAll.into(), one),
            (Broadcast.into(), ceil),
        ];
        if ranks > 1 {
            expected.push((PointToPoint.into(), 1));
            expected.push((ParameterServer { servers: 1, placement: Placement::Packed }.into(), 2));
        }
        for group in (1..=ranks).filter(|&group| ranks.is_multiple_of(group)) {
            let inside = group.next_power_of_two().ilog2();
            let heads = ranks / group;
            let heads_fold = if heads.is_power_of_two() { 0 } else { 2 };
            expected.push((ButterflyLayered { group }.into(), 2 * inside + heads.ilog2() + heads_fold));
            let hierarchical = |inside| Algorithm::from(Hierarchical { group, inside });
            expected.push((hierarchical(Inside::Reduce), 2 * inside + 2 * (heads - 1)));
            expected.push((hierarchical(Inside::Ring), 2 * (group - 1) + 2 * (heads - 1) + inside));
            expected.push((hierarchical(Inside::Sharded), 2 * (group - 1) + 2 * (heads - 1)));
            let chained = CollectivePlan::new(tree::chained_tree(group), ranks, Bytes(1000), 1).unwrap();
            assert_eq!(critical_path(&chained), 2 * (group - 1) + 2 * heads.ilog2());
        }
        for (algorithm, steps) in expected {
            let plan = plan(algorithm, ranks, 1000);
            assert_eq!(plan.step_count(), steps, "{algorithm:?} {ranks}");
            // Let p be the largest power of two up to N. Each of the log2 p exchanges flips one bit of the place, so a
            // path through all of them leads from place a to place p - 1 - a. It has both a fold and an unfold message
            // only if both places are among the first N - p, which requires N - p > p/2. Otherwise the longest path is
            // one message shorter.
            let (members, group) = match algorithm {
                Algorithm::Butterfly(_) => (ranks, 1),
                Algorithm::ButterflyLayered(ButterflyLayered { group }) => (ranks / group, group),
                Algorithm::Hierarchical(Hierarchical { group, inside: Inside::Reduce }) => (1, group),
                _ => (1, 1),
            };
            let p = 1 << members.ilog2();
            let in_fold = u32::from(members > p && 2 * (members - p) <= p);
            // In a binomial reduce, the path from a rank to the root has one message per set bit of the rank's index.
            // If no index of the group has log2 of the next power of two set bits, the critical path is shorter than
            // the number of steps.
            let ones = (0..group).map(u32::count_ones).max().unwrap_or(0);
            let saved = in_fold + group.next_power_of_two().ilog2() - ones;
            assert_eq!(critical_path(&plan), steps - saved, "{algorithm:?} {ranks}");
        }
    }
}

#[test]
fn bytes_of_each_rank_are_the_textbooks() {
    for (ranks, bytes) in (1..=17_u32).flat_map(|ranks| [0, 1, 5, 16, 37, 1000, 1009].map(|bytes| (ranks, bytes))) {
        let rank_of = |shifted: u32| shifted % ranks;
        let own = |rank: u32| part(bytes, ranks, rank_of(rank));
        let each = |of: &dyn Fn(u32) -> u64| (0..ranks).map(of).collect::<Vec<u64>>();
        let sent_and_received =
            |algorithm: &dyn CollectiveAlgorithm| traffic(&algorithm.plan(ranks, Bytes(bytes), 1).unwrap());
        let log2 = u64::from(ranks.ilog2());

        // In the reduce-scatter, rank i ends with the sum of part i+1, the only part that it does not send. In the
        // all-gather, part i+2 arrives last, so rank i does not forward it. For equal parts this gives 2 S (N-1)/N
        // (Patarasuk & Yuan).
        let (sent, received) = sent_and_received(&Ring);
        assert_eq!(sent, each(&|i| 2 * bytes - own(i + 1) - own(i + 2)));
        assert_eq!(received, each(&|i| 2 * bytes - own(i) - own(i + 1)));

        // Shuffle and all-to-all send directly to all ranks, all-gather and reduce-scatter around the ring. A rank
        // sends (or receives) either all parts but one, or one part N-1 times.
        let (sent, received) = sent_and_received(&Shuffle);
        let n = u64::from(ranks);
        assert_eq!(sent, each(&|i| bytes - own(i) + (n - 1) * own(i)));
        assert_eq!(received, each(&|i| (n - 1) * own(i) + bytes - own(i)));
        let (sent, received) = sent_and_received(&AllGather);
        assert_eq!((sent, received), (each(&|i| bytes - own(i + 1)), each(&|i| bytes - own(i))));
        let (sent, received) = sent_and_received(&ReduceScatter);
        assert_eq!((sent, received), (each(&|i| bytes - own(i)), each(&|i| bytes - own(i + ranks - 1))));
        let (sent, received) = sent_and_received(&AllToAll);
        assert_eq!((sent, received), (each(&|i| bytes - own(i)), each(&|i| (n - 1) * own(i))));

        // In a tree, each of the N-1 edges carries S bytes up and S bytes down. A broadcast carries them down only.
        let (sent, received) = sent_and_received(&BinaryTree);
        let children = |i: u32| u64::from(2 * i + 1 < ranks) + u64::from(2 * i + 2 < ranks);
        assert_eq!(sent, each(&|i| bytes * (children(i) + u64::from(i > 0))));
        assert_eq!(received, sent);
        let (sent, received) = sent_and_received(&Broadcast);
        let below = |i: u32| (0..i.trailing_zeros().min(31)).filter(|bit| i + (1 << bit) < ranks).count() as u64;
        assert_eq!(sent, each(&|i| bytes * below(i)));
        assert_eq!(sent[0], bytes * u64::from(ranks.next_power_of_two().ilog2()));
        assert_eq!(received, each(&|i| if i > 0 { bytes } else { 0 }));

        // Let p be the largest power of two up to N. The first 2(N-p) ranks form pairs. Fold and unfold send S bytes
        // each way within a pair, and the even rank of a pair takes no part in the exchanges.
        let folded = 2 * (ranks - (1 << ranks.ilog2()));
        let is_out = |i: u32| i < folded && i.is_multiple_of(2);
        let with_fold = |i: u32, inner: u64| if is_out(i) { bytes } else { inner + bytes * u64::from(i < folded) };
        let (sent, received) = sent_and_received(&Butterfly);
        assert_eq!(sent, each(&|i| with_fold(i, log2 * bytes)));
        assert_eq!(received, sent);

        // The first halving step is with the place that differs in the lowest bit, and it decides the highest bit of
        // the part that a rank keeps. Hence the rank in a place keeps part j, where j is the place with its bits
        // reversed.
        //
        // Halving: the rank sends all parts but j, and receives the blocks of 1, 2 … p/2 parts that contain j.
        // Doubling: it sends these blocks and receives all parts but j. If p divides S, each of these is (p-1)/p S.
        let p = 1_u32 << ranks.ilog2();
        let (sent, received) = sent_and_received(&HalvingDoubling);
        for i in (0..ranks).filter(|&i| !is_out(i)) {
            let place = if i < folded { i / 2 } else { i - folded / 2 };
            let j = (0..p.ilog2()).fold(0, |reverse, bit| 2 * reverse + (place >> bit & 1));
            let block = |size: u32, of: u32| {
                let first = of & !(size - 1);
                (first..first + size).map(|index| part(bytes, p, index)).sum::<u64>()
            };
            let sizes = || (0..p.ilog2()).map(|bit| 1_u32 << bit);
            let own_blocks: u64 = sizes().map(|size| block(size, j)).sum();
            let kept = part(bytes, p, j);
            let fold = bytes * u64::from(i < folded);
            assert_eq!(sent[i as usize], bytes - kept + own_blocks + fold, "{ranks} {bytes} {i}");
            assert_eq!(received[i as usize], own_blocks + bytes - kept + fold, "{ranks} {bytes} {i}");
            if bytes.is_multiple_of(u64::from(p)) {
                assert_eq!(sent[i as usize], 2 * bytes / u64::from(p) * u64::from(p - 1) + fold);
            }
        }
        for i in (0..ranks).filter(|&i| is_out(i)) {
            assert_eq!((sent[i as usize], received[i as usize]), (bytes, bytes));
        }

        if ranks > 1 {
            // Each worker sends S and receives S; each server receives and sends its part of S once per worker.
            let servers = ParameterServer { servers: (ranks / 4).max(1), placement: Placement::Distributed };
            let list = servers.servers(ranks);
            let (sent, received) = sent_and_received(&servers);
            let workers = n - list.len() as u64;
            let expected = each(&|i| {
                let server = list.iter().position(|&server| server == i);
                server.map_or(bytes, |j| workers * part(bytes, list.len() as u32, j as u32))
            });
            assert_eq!((sent, received), (expected.clone(), expected));
            let (sent, received) = sent_and_received(&PointToPoint);
            assert_eq!((sent[0], received[1]), (bytes, bytes));
            assert_eq!((sent.iter().sum::<u64>(), received.iter().sum::<u64>()), (bytes, bytes));
        }
    }
}

/// Returns the bytes that rank `i` of a ring of `n` sends and receives in an all-reduce.
fn ring_bytes(bytes: u64, n: u32, i: u32) -> [u64; 2] {
    let own = |rank: u32| part(bytes, n, rank % n);
    [2 * bytes - own(i + 1) - own(i + 2), 2 * bytes - own(i) - own(i + 1)]
}

#[test]
fn bytes_of_each_rank_in_groups_are_the_sums_of_their_phases() {
    for (ranks, group) in (1..=17_u32).flat_map(|ranks| (1..=ranks).map(move |group| (ranks, group))) {
        for bytes in [1, 16, 37, 1009] {
            let traffic_of = |algorithm: &dyn CollectiveAlgorithm| {
                let (sent, received) = traffic(&algorithm.plan(ranks, Bytes(bytes), 1).unwrap());
                sent.into_iter().zip(received).map(|(sent, received)| [sent, received]).collect::<Vec<_>>()
            };
            let hierarchical = |inside| traffic_of(&Hierarchical { group, inside });
            let layered = traffic_of(&ButterflyLayered { group });
            let (by_reduce, by_ring) = (hierarchical(Inside::Reduce), hierarchical(Inside::Ring));
            let sharded = ranks.is_multiple_of(group).then(|| hierarchical(Inside::Sharded));
            let heads = ranks.div_ceil(group);
            let among_heads = traffic(&plan(Butterfly, heads, bytes)).0;
            for rank in 0..ranks {
                let (head, i) = (rank / group, rank % group);
                let size = group.min(ranks - head * group);
                // The children of rank i in a binomial tree are i + 2^b for each bit b below the lowest 1 bit of i.
                let lowest = if i == 0 { size } else { i & i.wrapping_neg() };
                let below = (0..31).filter(|bit| 1 << bit < lowest && i + (1 << bit) < size).count() as u64;
                let above = u64::from(i > 0);
                let add = |mut sum: [u64; 2], more: [u64; 2]| {
                    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
                    sum
                };
                let up_and_down = [bytes * (above + below); 2];
                let down = [bytes * below, bytes * above];
                let butterfly = if i == 0 { [among_heads[head as usize]; 2] } else { [0; 2] };
                let ring = if i == 0 { ring_bytes(bytes, heads, head) } else { [0; 2] };
                let what = format!("rank {rank} of {ranks} in groups of {group}, {bytes} bytes");
                assert_eq!(layered[rank as usize], add(up_and_down, butterfly), "{what}");
                assert_eq!(by_reduce[rank as usize], add(up_and_down, ring), "{what}");
                let inside = ring_bytes(bytes, size, i);
                assert_eq!(by_ring[rank as usize], add(add(inside, ring), down), "{what}");
                if let Some(sharded) = &sharded {
                    // Within the group there are a reduce-scatter and an all-gather. Between them, shard i is
                    // all-reduced along a ring across the groups.
                    let own = |place: u32| part(bytes, group, place % group);
                    let scatter = [bytes - own(i), bytes - own(i + group - 1)];
                    let gather = [bytes - own(i + 1), bytes - own(i)];
                    let across = ring_bytes(own(i), heads, head);
                    assert_eq!(sharded[rank as usize], add(add(scatter, across), gather), "{what}");
                }
            }
        }
    }
}

#[test]
fn the_largest_messages_of_halving_go_to_the_nearest_ranks() {
    // Vector halving with distance doubling, then the reverse: S/2 to the rank at distance 1, S/4 to the rank at
    // distance 2, ...
    let of_rank_0: Vec<(u32, u64)> = (messages(&plan(HalvingDoubling, 8, 800)).iter())
        .filter(|message| message.from == 0)
        .map(|message| (message.to, message.bytes.0))
        .collect();
    assert_eq!(of_rank_0, [(1, 400), (2, 200), (4, 100), (4, 100), (2, 200), (1, 400)]);
}

#[test]
fn layers_send_whole_gradients_within_and_between_groups() {
    for (ranks, group) in [(16_u32, 4_u32), (12, 4), (15, 3), (14, 4), (17, 5), (128, 8)] {
        let bytes = 1001;
        let groups = u64::from(ranks.div_ceil(group));
        let total = |algorithm: &dyn CollectiveAlgorithm| {
            { traffic(&algorithm.plan(ranks, Bytes(bytes), 1).unwrap()) }.0.iter().sum::<u64>()
        };
        let inside = 2 * (u64::from(ranks) - groups) * bytes;
        let p = 1 << groups.ilog2();
        let butterfly = (p * u64::from(groups.ilog2()) + 2 * (groups - p)) * bytes;
        assert_eq!(total(&ButterflyLayered { group }), inside + butterfly);
        let ring = 2 * (groups - 1) * bytes;
        assert_eq!(total(&Hierarchical { group, inside: Inside::Reduce }), inside + ring);
        // A ring all-reduce of n ranks sends 2 (n-1) S in total, which adds up to 2 (N - groups) S over all groups, as
        // much as a reduce and a broadcast in each group. The final broadcast adds half of that.
        let rings = inside + ring + inside / 2;
        assert_eq!(total(&Hierarchical { group, inside: Inside::Ring }), rings);
        if ranks.is_multiple_of(group) {
            // The reduce-scatters and all-gathers within groups send 2 (N - groups) S in total. The shards of the rings
            // between groups add up to S.
            assert_eq!(total(&Hierarchical { group, inside: Inside::Sharded }), inside + ring);
        }
    }
}

#[test]
fn parts_differ_by_at_most_one_element_and_no_byte_is_lost() {
    for (bytes, element) in [(1003, 4), (1004, 4), (17, 8), (3, 4), (0, 4), (1000, 1)] {
        let plan = ReduceScatter.plan(7, Bytes(bytes), element).unwrap();
        let mut sizes = vec![0; 7];
        // In the first step rank i sends part i-1.
        (0..7).for_each(|rank| plan.sends(0, rank, &mut |message| sizes[rank as usize] = message.bytes.0));
        assert_eq!(sizes.iter().sum::<u64>(), bytes);
        assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= element, "{sizes:?}");
        assert!(sizes.iter().filter(|&&size| size % element != 0).count() <= 1, "{sizes:?}");
    }
}

/// A network that delivers messages in the order of their starts and records the started ones. Its clock stands still.
#[derive(Default)]
struct InOrder {
    flows: Vec<Flow>,
    now: Time,
}

impl Network for InOrder {
    fn now(&self) -> Time {
        self.now
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        self.flows.push(flow);
        FlowId(self.flows.len() as u64 - 1)
    }

    fn advance(&mut self, _until: Time, _done: &mut Vec<Completion>) {}

    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        Vec::new()
    }
}

fn collective(algorithm: impl Into<Algorithm>, hosts: &[u32], depth: u32, adding: Option<Rate>) -> Collective {
    Collective::new(algorithm.into(), hosts.to_vec(), Bytes(1 << 40), Depth::Fixed(depth), adding, MessageSize::Whole)
        .unwrap()
}

fn arrival(flow: usize) -> Completion {
    Completion { flow: FlowId(flow as u64), stream: 0, began: Time::ZERO, received: Time::ZERO }
}

#[test]
fn a_ring_sends_the_parts_of_the_thesis() {
    // Gao (2020), section 5.2: worker i sends part i-k in step k = 0 … N-2, and part i+1-k' in step N-1+k', always to
    // worker i+1. The remainder of S/N goes to the first parts.
    let band = Band::new(0).unwrap();
    for (ranks, bytes) in [(2, 7), (3, 10), (8, 5_333_328), (8, 2_222_221), (17, 5)] {
        let hosts: Vec<u32> = (0..ranks).collect();
        let mut network = InOrder::default();
        let mut ring = collective(Ring, &hosts, 1, None).begin(Bytes(bytes), band, 0, &mut network);
        let n = i64::from(ranks);
        let mut expected: Vec<(u32, u32, Bytes)> = Vec::new();
        for step in 0..2 * (n - 1) {
            expected.extend((0..n).map(|i| {
                // The first step is in the order of ranks. Later, the arrival of worker i-1's previous message releases
                // the next message of worker i.
                let i = (i + step) % n;
                let index = if step < n - 1 { i - step } else { i + 1 - (step - (n - 1)) }.rem_euclid(n) as u32;
                (i as u32, ((i + 1) % n) as u32, Bytes(part(bytes, ranks, index)))
            }));
        }
        for next in 0.. {
            if ring.on_completion(arrival(next), &mut network) {
                assert_eq!(next + 1, expected.len());
                break;
            }
        }
        let sent: Vec<_> = network.flows.iter().map(|flow| (flow.src.0, flow.dst.0, flow.bytes)).collect();
        assert_eq!(sent, expected);
    }
}

#[test]
fn what_is_reduced_takes_its_time_one_message_after_another() {
    // Two of six ranks are servers. Each server receives half of the 1000 B from each of 4 workers and reduces at 1000
    // B/s, one message after another: 0.5 s per message.
    let band = Band::new(0).unwrap();
    let hosts: Vec<u32> = (0..6).collect();
    let servers = ParameterServer { servers: 2, placement: Placement::Packed };
    let mut network = InOrder::default();
    let rate = Rate::from_bps(8_000);
    let mut messages = collective(servers, &hosts, 1, rate).begin(Bytes(1000), band, 0, &mut network);
    assert_eq!((network.flows.len(), messages.wakes_at()), (8, None));
    (0..8).for_each(|flow| assert!(!messages.on_completion(arrival(flow), &mut network)));
    for tenths in [5, 10, 15, 20] {
        assert_eq!(network.flows.len(), 8, "nobody pulls before all is reduced");
        network.now = Time::from_ps(tenths * 100_000_000_000);
        assert_eq!(messages.wakes_at(), Some(network.now));
        assert!(!messages.settle(network.now, &mut network));
    }
    assert_eq!((network.flows.len(), messages.wakes_at()), (16, None));
    let last = (8..16).map(|flow| messages.on_completion(arrival(flow), &mut network)).collect::<Vec<_>>();
    assert_eq!(last, [false, false, false, false, false, false, false, true], "what is copied takes no time");
}

#[test]
fn chunks_are_under_way_side_by_side() {
    let band = Band::new(0).unwrap();
    let hosts: Vec<u32> = (10..14).collect();
    let mut network = InOrder::default();
    let mut messages = collective(Ring, &hosts, 3, None).begin(Bytes(1000), band, 0, &mut network);
    assert_eq!(network.flows.len(), 12, "the first step of every chunk");
    assert_eq!((network.flows[3].src.0, network.flows[3].dst.0), (13, 10), "ranks are on their hosts");
    let mut next = 0;
    while !messages.on_completion(arrival(next), &mut network) {
        next += 1;
    }
    assert_eq!(network.flows.len(), 3 * 2 * 3 * 4);
    assert_eq!(network.flows.iter().map(|flow| flow.bytes.0).sum::<u64>(), 2 * 3 * 1000);
}

#[test]
fn closed_forms_count_what_is_sent() {
    // A multiple of every number up to 17, so that all parts of the buffer have equal sizes.
    let bytes = 12_252_240 * 17 * 16;
    for ranks in 2..=17_u32 {
        let group = GroupHosts { nodes: (0..ranks).map(|rank| vec![rank]).collect(), is_link: true };
        for algorithm in Algorithm::samples(ranks) {
            let counts = algorithm.counts(ranks);
            let plans = algorithm.group_plans(&group, Bytes(16), 1).unwrap().plans;
            let message_count = plans.iter().map(|plan| messages(plan).len() as u64).sum::<u64>();
            assert_eq!(message_count, counts.messages, "{algorithm:?} of {ranks}");
            assert_eq!(u64::from(plans[0].step_count()), counts.steps, "{algorithm:?} of {ranks}");

            let closed = algorithm.sent_by_busiest(ranks, bytes.into());
            let exact = counts.most.0 as f64 / counts.most.1 as f64 * bytes as f64;
            assert!((closed - exact).abs() <= 1e-12 * exact, "{algorithm:?} of {ranks}: {closed} for {exact}");
            if algorithm == Algorithm::Tree(Tree) {
                // For `Tree`, the formula counts every rank like the busiest rank of both trees, so it is no sum over
                // ranks.
                continue;
            }
            let sent = traffic(&plan(algorithm, ranks, bytes)).0;
            assert_eq!(sent.iter().sum::<u64>(), counts.sent * bytes, "{algorithm:?} of {ranks}");
            let most = sent.into_iter().max().unwrap() as f64;
            assert!(closed >= most * (1.0 - 1e-9), "{algorithm:?} of {ranks}: {closed} for {most}");
            // For powers of two the closed form is exact. Otherwise the busiest place in the formula may have no rank.
            let group = match algorithm {
                Algorithm::ButterflyLayered(ButterflyLayered { group })
                | Algorithm::Hierarchical(Hierarchical { group, .. }) => group,
                _ => 1,
            };
            if ranks.is_power_of_two() && group.is_power_of_two() {
                assert!((closed - most).abs() <= 1e-9 * most, "{algorithm:?} of {ranks}: {closed} for {most}");
            }
        }
    }
}

#[test]
fn large_plans_come_to_their_end() {
    let servers = ParameterServer { servers: 128, placement: Placement::Distributed };
    for (algorithm, ranks, message_count) in [
        // Each rank that is not one of the 512 heads sends one message in the reduce and receives one in the broadcast.
        // Each head sends log2 512 messages in the butterfly.
        (Algorithm::from(ButterflyLayered { group: 32 }), 16_384, 2 * (16_384 - 512) + 512 * 9),
        (servers.into(), 1024, 2 * 128 * (1024 - 128)),
        (Ring.into(), 512, 2 * 511 * 512),
        (AllToAll.into(), 512, 511 * 512),
    ] {
        let mut under_way = std::collections::VecDeque::new();
        let mut arrived_count = 0;
        let plan = plan(algorithm, ranks, 100_000_000);
        let mut progress = Progress::begin(plan, &mut |message| under_way.push_back(message));
        while let Some(message) = under_way.pop_front() {
            arrived_count += 1;
            progress.on_arrival(message.passage(), &mut |message| under_way.push_back(message));
        }
        assert!(progress.is_complete());
        assert_eq!(arrived_count, message_count);
    }
}

#[test]
fn servers_are_packed_or_distributed() {
    assert_eq!(Placement::Packed.ranks(3, 5), [0, 1, 2]);
    assert_eq!(Placement::Separate.ranks(3, 5), [2, 3, 4]);
    // Zhang et al., fig. 3: server k is in the k-th sub-cluster of 8 ranks, at place k mod 8.
    assert_eq!(Placement::Distributed.ranks(16, 128)[..10], [0, 9, 18, 27, 36, 45, 54, 63, 64, 73]);
    assert_eq!(Placement::Distributed.ranks(3, 7), [0, 3, 6]);
}

#[test]
fn numbers_that_do_not_suit_are_refused_by_name() {
    let refused = |algorithm: &dyn CollectiveAlgorithm, ranks| algorithm.plan(ranks, Bytes(10), 1).unwrap_err();
    assert_eq!(refused(&Ring, 0), PlanError::NoRanks);
    assert_eq!(refused(&Ring, u32::MAX), PlanError::TooManyRanks(u32::MAX));
    assert_eq!(refused(&ButterflyLayered { group: 0 }, 4), PlanError::EmptyGroup);
    let sharded = Hierarchical { group: 4, inside: Inside::Sharded };
    assert_eq!(refused(&sharded, 6), PlanError::UnevenGroups { ranks: 6, group: 4 });
    for placement in [Placement::Packed, Placement::Distributed, Placement::Separate] {
        let servers = |servers| ParameterServer { servers, placement };
        assert_eq!(refused(&servers(0), 4), PlanError::NoServers);
        assert_eq!(refused(&servers(2), 2), PlanError::NoWorkers(2));
        assert_eq!(refused(&servers(u32::MAX), 2), PlanError::NoWorkers(2));
    }
    assert_eq!(Ring.plan(2, Bytes(10), 0).unwrap_err(), PlanError::EmptyElement);
    assert_eq!(Ring.plan(2, Bytes(1 << 62), 1).unwrap_err(), PlanError::TooManyBytes(1 << 62));
}
