//! Caramel's rules against hand-solved cases and literal implementations, and plans against a tick-by-tick simulation.
#![allow(missing_docs)]

mod iterations;

use gradtide_net::route::Policy;
use gradtide_net::{Bytes, Fluid, Link, Rate, Seed, Star, Time};
use gradtide_train::caramel::batch::batch;
use gradtide_train::caramel::cost::{BENCHMARK_SIZES, Cost, CostError};
use gradtide_train::caramel::pack::pack;
use gradtide_train::caramel::timeline::{self, Timeline, lower_bound};
use gradtide_train::caramel::transfers::{self, PlannedTransfer, TransferPlan};
use gradtide_train::caramel::{Boundaries, Boundary, ParameterGroup};
use gradtide_train::collective::algorithm::CollectiveAlgorithm;
use gradtide_train::collective::algorithms::Ring;
use gradtide_train::collective::exchange;
use gradtide_train::collective::messages::Depth;
use iterations::{iteration, ps};
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Returns the cost function of messages: `fixed` + `per_byte` * d ps for d bytes, and 0 for a message without bytes.
fn line(fixed: u64, per_byte: u64) -> impl Fn(Bytes) -> Time {
    move |bytes| ps(if bytes.0 == 0 { 0 } else { fixed + per_byte * bytes.0 })
}

fn members(groups: &[ParameterGroup]) -> Vec<Vec<u32>> {
    groups.iter().map(|group| group.parameters.clone()).collect()
}

proptest! {
    /// f(2x) / (2 f(x)) > 0.8 is equivalent to 10 (a + 2 b x) > 16 (a + b x), an inequality of integers. The quotient
    /// 1.5 a / b is below 2^41. If it is not an integer, it is at least 1 / (2 b) > 2^-11 away from the nearest one, so
    /// its floor is correct despite rounding.
    #[test]
    fn the_threshold_is_what_a_search_finds(a in 1..1_u64 << 40, b in 1..1_u64 << 10) {
        let saves_little = |x: u64| 10 * u128::from(a + 2 * b * x) > 16 * u128::from(a + b * x);
        let (mut no, mut yes) = (0, 1 << 42);
        while yes - no > 1 {
            let middle = (no + yes) / 2;
            if saves_little(middle) { yes = middle } else { no = middle }
        }
        prop_assert_eq!(Cost { fixed_ps: a as f64, ps_per_byte: b as f64 }.threshold(), Bytes(yes));
    }

    /// For integers a and b the line through two points is exact up to two roundings, of a quotient and of a product
    /// with 2^22.
    #[test]
    fn a_fit_finds_the_line(a in 0..1_u64 << 40, b in 1..1_u64 << 10, late in 1..1_000_000_u64) {
        let f = line(a, b);
        let [small, large] = BENCHMARK_SIZES;
        // The median of three samples ignores one outlier.
        let samples = [large, small, small, large].map(|bytes| (bytes, f(bytes)));
        let cost = Cost::fit(&[&samples[..], &[(small, f(small) + ps(late))]].concat()).unwrap();
        prop_assert!((cost.ps_per_byte - b as f64).abs() < 1e-3);
        prop_assert!((cost.fixed_ps - a as f64).abs() < 1e-3 * f64::from(1 << 22));
    }

    #[test]
    fn no_chunk_is_smaller_than_the_threshold(bytes in 1..1_u64 << 40, threshold in 1..1_u64 << 30) {
        let chunks = Depth::Adaptive { threshold: Bytes(threshold) }.of(Bytes(bytes));
        prop_assert!((1..=8).contains(&chunks));
        prop_assert!(chunks == 1 || bytes / u64::from(chunks) >= threshold);
        prop_assert!(chunks == 8 || bytes / u64::from(chunks + 1) < threshold);
    }
}

/// At 10 Gbit/s a byte takes 800 ps. The threshold 1.5 a/b is 93 750 B for a fixed cost a of 50 us, and 1 875 000 B for
/// 1 ms; the next larger integer is returned.
#[test]
fn thresholds_of_a_ten_gigabit_network() {
    let threshold = |fixed_ps| Cost { fixed_ps, ps_per_byte: 800.0 }.threshold();
    assert_eq!(threshold(50e6), Bytes(93_751));
    assert_eq!(threshold(1e9), Bytes(1_875_001));
    assert_eq!(threshold(-1.0), Bytes(0));
    assert_eq!(Depth::Adaptive { threshold: Bytes(0) }.of(Bytes(1)), 8);
}

#[test]
fn a_fit_takes_two_sizes_and_a_slope() {
    assert_eq!(Cost::fit(&[(Bytes(64), ps(1)), (Bytes(64), ps(2))]), Err(CostError::OneSize));
    assert_eq!(Cost::fit(&[(Bytes(64), ps(2)), (Bytes(65), ps(2))]), Err(CostError::Flat));
}

/// A ring of N ranks on a star takes 2 (N-1) steps, each of d/N bytes and the delay of two links. Both measured times
/// are rounded to 1 ps, and the two sizes differ by 2^22 - 64 B.
#[test]
fn the_cost_of_a_ring_is_its_closed_form() {
    let link = Link { rate: Rate::from_bps(10_000_000_000).unwrap(), delay: ps(1_000_000) };
    let graph = Star { host_count: 8, link }.graph();
    let fluid = || Fluid::new(&graph, Policy::DModK, Seed(0)).unwrap();
    let hosts: Vec<u32> = (0..8).collect();
    let time = |bytes| {
        let plan = Ring.plan(8, bytes, 1).unwrap();
        (bytes, exchange::run(&plan, &hosts, fluid()).duration)
    };
    let cost = Cost::fit(&BENCHMARK_SIZES.map(time)).unwrap();
    assert!((cost.ps_per_byte - 14.0 / 8.0 * 800.0).abs() < 1e-5, "{cost:?}");
    assert!((cost.fixed_ps - 14.0 * 2e6).abs() < 2.0, "{cost:?}");
}

/// The threshold is X = 100 B, and a transfer of d bytes takes f(d) = 50 + d ps. Each case lists the (bytes, update
/// time) of the parameters and expects the batches in the order in which they are sent.
#[test]
fn batches_by_hand() {
    let sent = |rows: &[(u64, u64)]| {
        let windows: Vec<_> = rows.iter().map(|&(bytes, update)| (bytes, update, 0)).collect();
        members(&batch(&iteration(10_000, &windows), Bytes(100), &line(50, 1)))
    };
    // Rule A15 of `caramel/mod.rs`: the channel is idle at each update, so each small parameter is sent immediately.
    assert_eq!(sent(&[(10, 0), (10, 100)]), [[0], [1]]);
    // Parameter 0 occupies the channel until 60. Parameters 1 and 2 form a batch, which is sent after the last update.
    assert_eq!(sent(&[(10, 0), (10, 20), (10, 40)]), [vec![0], vec![1, 2]]);
    // Rule A14: parameter 0 has been sent at 60, when parameter 2 is updated, so parameter 1 is sent without waiting
    // for it.
    assert_eq!(sent(&[(10, 0), (10, 20), (10, 60)]), [[0], [1], [2]]);
    // Rule A12: a batch may exceed the threshold X by less than its last member. Rule A11: a parameter of 100 B is not
    // larger than X.
    assert_eq!(sent(&[(10, 0), (90, 20), (100, 30), (1, 40)]), [vec![0], vec![1, 2], vec![3]]);
    assert_eq!(sent(&[(10, 0), (50, 20), (50, 30), (1, 40), (1, 50)]), [vec![0], vec![1, 2, 3], vec![4]]);
    // Rule A13: the large parameter overtakes the open batch, which is sent last.
    assert_eq!(sent(&[(10, 0), (10, 20), (500, 30), (10, 40)]), [vec![0], vec![2], vec![1, 3]]);
    // Parameters with equal update times are batched in the order of the list.
    assert_eq!(sent(&[(10, 7), (10, 7), (10, 7)]), [vec![0], vec![1, 2]]);
    // Rule A16: the boundaries of a group are its latest update and its earliest read.
    let group = iteration(90, &[(3, 40, 20), (4, 70, 30)]).group(vec![0, 1]);
    assert_eq!(group.window, Boundary { bytes: Bytes(7), update: ps(70), read: ps(20) });
}

/// Draws boundaries in a random compute time C; all reads are before C. With `is_chain`, all reads are in the forward
/// pass and all updates in the backward pass.
fn iterations(is_chain: bool) -> impl Strategy<Value = Boundaries> {
    (1..60_u64, 1..60_u64).prop_flat_map(move |(forward, backward)| {
        let compute = forward + backward;
        let updates = if is_chain { forward..=compute } else { 0..=compute };
        let reads = if is_chain { 0..=forward } else { 0..=compute - 1 };
        prop::collection::vec((0..40_u64, updates, reads), 1..9).prop_map(move |windows| iteration(compute, &windows))
    })
}

/// Returns one plan of each kind.
fn plans(boundaries: &Boundaries, time: &dyn Fn(Bytes) -> Time) -> Vec<(&'static str, TransferPlan)> {
    let groups = batch(boundaries, Bytes(12), time);
    let alone = boundaries.alone();
    vec![
        ("fifo", transfers::first_in_first_out(&alone, true, time)),
        ("fifo without a barrier", transfers::first_in_first_out(&groups, false, time)),
        ("ddp", transfers::ddp(boundaries, Bytes(10), Bytes(50), time)),
        ("horovod", transfers::horovod(boundaries, Bytes(40), ps(5), time)),
        ("p3", transfers::earliest_deadline_first(boundaries, &alone, Bytes(4), 1, time)),
        ("bytescheduler", transfers::earliest_deadline_first(boundaries, &alone, Bytes(9), 2, time)),
        ("edf", transfers::earliest_deadline_first(boundaries, &groups, Bytes(4), 1, time)),
        ("packed", pack(boundaries, &groups, time).plan),
    ]
}

/// Simulates a plan in ticks of 1 ps, and returns the starts of the iterations. Every transfer of the plan must take at
/// least one tick. In a tick, an idle channel starts the released transfer with the smallest rank, and compute advances
/// unless a parameter that it reads has not arrived.
fn tick_by_tick(boundaries: &Boundaries, plan: &TransferPlan, iterations: u64) -> Vec<Time> {
    let compute = boundaries.compute.ps();
    let rank = |iteration: u64, index: usize| (iteration * compute + plan.transfers[index].rank.ps(), index);
    let release = |iteration: u64, index: usize| iteration * compute + plan.transfers[index].release.ps();
    let all = |iteration| (0..plan.transfers.len()).map(move |index| (iteration, index));
    let mut waiting: Vec<(u64, usize)> = (0..iterations).flat_map(all).collect();
    let mut under_way: Option<(u64, u64, usize)> = None;
    let (mut passed, mut now, mut starts) = (0, 0, vec![Time::ZERO]);
    loop {
        under_way = under_way.filter(|it| it.0 > now);
        if under_way.is_none() {
            let open = waiting.iter().copied().filter(|&(iteration, index)| release(iteration, index) <= passed);
            if let Some((iteration, index)) = open.min_by_key(|&(iteration, index)| rank(iteration, index)) {
                waiting.retain(|&it| it != (iteration, index));
                under_way = Some((now + plan.transfers[index].time.ps(), iteration, index));
            }
        }
        let is_missing = |iteration: u64, read: u64| {
            waiting.iter().copied().chain(under_way.map(|it| (it.1, it.2))).any(|(before, index)| {
                let reads = |&parameter: &u32| match plan.has_barrier {
                    true => read == 0,
                    false => boundaries.windows[parameter as usize].read.ps() == read,
                };
                before + 1 == iteration && plan.transfers[index].parameters.iter().any(reads)
            })
        };
        let (iteration, offset) = (passed / compute, passed % compute);
        if offset == 0 && starts.len() as u64 == iteration {
            starts.push(ps(now));
            if iteration == iterations {
                return starts;
            }
        }
        if !is_missing(iteration, offset) {
            passed += 1;
        }
        now += 1;
    }
}

/// Checks that every transfer is sent once in every iteration, and that no two overlap in time.
fn check_channel(plan: &TransferPlan, timeline: &Timeline) {
    let mut seen: Vec<(u32, u32)> = timeline.sent.iter().map(|sent| (sent.iteration, sent.transfer)).collect();
    seen.sort_unstable();
    let all = (0..timeline.starts.len() as u32 - 1)
        .flat_map(|iteration| (0..plan.transfers.len() as u32).map(move |index| (iteration, index)));
    assert_eq!(seen, all.collect::<Vec<_>>());
    assert!(timeline.sent.windows(2).all(|pair| pair[0].end <= pair[1].start));
}

proptest! {
    #[test]
    fn batches_conserve_bytes(boundaries in iterations(false), threshold in 0..100_u64, fixed in 0..50_u64) {
        let groups = batch(&boundaries, Bytes(threshold), &line(fixed, 1));
        let mut all: Vec<u32> = groups.iter().flat_map(|group| group.parameters.clone()).collect();
        all.sort_unstable();
        prop_assert_eq!(all, (0..boundaries.windows.len() as u32).collect::<Vec<_>>());
        let bytes = |windows: Vec<Boundary>| windows.iter().map(|window| window.bytes.0).sum::<u64>();
        prop_assert_eq!(bytes(groups.iter().map(|group| group.window).collect()), bytes(boundaries.windows.clone()));
        for group in groups.iter().filter(|group| group.parameters.len() > 1) {
            let last = boundaries.windows[*group.parameters.last().unwrap() as usize].bytes;
            prop_assert!(group.window.bytes.0 - last.0 <= threshold);
        }
    }

    /// Plans conserve the bytes of the model, whether parameters are fused or cut.
    #[test]
    fn plans_conserve_bytes(boundaries in iterations(false), fixed in 0..20_u64) {
        let bytes: u64 = boundaries.windows.iter().map(|window| window.bytes.0).sum();
        for (name, plan) in plans(&boundaries, &line(fixed, 1)) {
            prop_assert_eq!(plan.transfers.iter().map(|transfer| transfer.bytes.0).sum::<u64>(), bytes, "{}", name);
        }
    }

    /// Stage 2 places each transfer within the boundaries of all its parameters, and no two transfers overlap on the
    /// circular schedule. If stage 3 has nothing to place, the timeline sends every transfer at its planned time, and
    /// compute never stalls.
    #[test]
    fn packed_transfers_stay_inside_their_boundaries(boundaries in iterations(false), fixed in 0..12_u64) {
        let groups = batch(&boundaries, Bytes(12), &line(fixed, 1));
        let packed = pack(&boundaries, &groups, &line(fixed, 1));
        let hidden = &packed.plan.transfers[..packed.hidden_count];
        let mut taken = BTreeSet::new();
        for transfer in hidden {
            for &parameter in &transfer.parameters {
                let window = boundaries.windows[parameter as usize];
                prop_assert!(transfer.rank >= window.update);
                prop_assert!(transfer.rank + transfer.time <= boundaries.compute + window.read);
            }
            for at in transfer.rank.ps()..(transfer.rank + transfer.time).ps() {
                prop_assert!(taken.insert(at % boundaries.compute.ps()));
            }
        }
        let timeline = timeline::run(&boundaries, &packed.plan);
        if packed.hidden_count == groups.len() {
            prop_assert_eq!(timeline.iteration_time(), timeline.compute);
            for sent in &timeline.sent {
                let passed = boundaries.compute.ps() * u64::from(sent.iteration);
                prop_assert_eq!(sent.start, ps(passed) + packed.plan.transfers[sent.transfer as usize].rank);
            }
        }
        prop_assert_eq!(packed.plan.transfers.len(), groups.len());
    }

    #[test]
    fn without_communication_all_plans_tie(boundaries in iterations(false)) {
        for (name, plan) in plans(&boundaries, &|_| Time::ZERO) {
            let timeline = timeline::run(&boundaries, &plan);
            prop_assert_eq!(timeline.iteration_time(), boundaries.compute, "{}", name);
            prop_assert_eq!(timeline.communication, Time::ZERO);
        }
    }

    #[test]
    fn the_timeline_is_that_of_a_simulation_tick_by_tick(boundaries in iterations(false), fixed in 1..12_u64) {
        for (name, plan) in plans(&boundaries, &line(fixed, 1)) {
            let timeline = timeline::run(&boundaries, &plan);
            check_channel(&plan, &timeline);
            if plan.credit == 1 && plan.transfers.iter().all(|transfer| transfer.time > Time::ZERO) {
                let naive = tick_by_tick(&boundaries, &plan, timeline.starts.len() as u64 - 1);
                prop_assert_eq!(&timeline.starts, &naive, "{}", name);
            }
        }
    }

    #[test]
    fn no_plan_beats_the_bound(boundaries in iterations(false), fixed in 0..12_u64) {
        for (name, plan) in plans(&boundaries, &line(fixed, 1)) {
            let timeline = timeline::run(&boundaries, &plan);
            let time = timeline.iteration_time();
            prop_assert!(time >= lower_bound(&boundaries, &plan.transfers), "{} {:?}", name, time);
            prop_assert!(time <= timeline.compute + timeline.communication, "{}: T <= N + C", name);
        }
    }

    /// Preemptive EDF is optimal (Horn 1974). Here all parameters are read before the first update, and a chunk takes 1
    /// ps, the resolution of time, so EDF can preempt a transfer at any time.
    #[test]
    fn earliest_deadline_first_in_single_moments_is_the_optimum(boundaries in iterations(true)) {
        let groups = boundaries.alone();
        let plan = transfers::earliest_deadline_first(&boundaries, &groups, Bytes(1), 1, &line(0, 1));
        let timeline = timeline::run(&boundaries, &plan);
        prop_assert_eq!(timeline.iteration_time(), lower_bound(&boundaries, &plan.transfers));
    }
}

fn alone(bytes: u64, time: u64, release: u64, rank: u64, parameter: u32) -> PlannedTransfer {
    PlannedTransfer {
        parameters: vec![parameter],
        bytes: Bytes(bytes),
        time: ps(time),
        release: ps(release),
        rank: ps(rank),
    }
}

/// All times are in ps. Compute takes C = 100. Parameter 0 takes 70 to send and fits exactly between its update at 40
/// and its read at 10 of the next iteration (110). Parameter 1 takes 25, is updated at 60 and read at 20 of the next
/// iteration (120). After parameter 0 it is sent from 110 to 135 and is 15 late, whether it belongs to the backward or
/// to the forward pass.
#[test]
fn what_does_not_fit_is_placed_where_it_costs_least() {
    let boundaries = iteration(100, &[(70, 40, 10), (25, 60, 20)]);
    let packed = pack(&boundaries, &boundaries.alone(), &line(0, 1));
    assert_eq!(packed.hidden_count, 1);
    assert_eq!(packed.plan.transfers[0], alone(70, 70, 40, 40, 0));
    // Both places of stage 3 cost the same for parameter 1, so it is placed after the transfers of the backward pass.
    assert_eq!(packed.plan.transfers[1], alone(25, 25, 100, 110, 1));
    assert_eq!(timeline::run(&boundaries, &packed.plan).iteration_time(), ps(115));
    // Preemption would not help: both transfers, 95 in total, have to be sent between 40 and 120, so compute stalls by
    // 15 in any case.
    let edf = transfers::earliest_deadline_first(&boundaries, &boundaries.alone(), Bytes(1), 1, &line(0, 1));
    assert_eq!(timeline::run(&boundaries, &edf).iteration_time(), ps(115));
}

/// All times are in ps. Compute takes C = 100. Parameter 0 takes 70 and is sent from 40 to 110, between its update and
/// its read. Parameter 1 (15, read at 105) is placed behind it, from 110 to 125. Parameter 2 (5) is updated at 100 and
/// read at 100, the start of the next iteration. Behind parameter 1 it would end at 130 and stall compute by 30.
///
/// Ahead of parameter 1 it ends at 115 and stalls compute by 15. Parameter 1 then ends at 130. Compute, which is 15
/// late, reaches the read of parameter 1 at 120 and stalls by another 10. The total of 25 is smaller.
#[test]
fn what_is_read_first_may_overtake() {
    let boundaries = iteration(100, &[(70, 40, 10), (15, 60, 5), (5, 100, 0)]);
    let packed = pack(&boundaries, &boundaries.alone(), &line(0, 1));
    assert_eq!(packed.hidden_count, 1);
    assert_eq!(packed.plan.transfers[1..], [alone(15, 15, 100, 110, 1), alone(5, 5, 100, 100, 2)]);
    assert_eq!(timeline::run(&boundaries, &packed.plan).iteration_time(), ps(125));
}

/// All times are in ps. The parameter is updated at the end of compute, at 100, and its transfer takes 10 + 50. With a
/// barrier, all of the transfer is exposed, so an iteration takes 160. Without a barrier, the next iteration computes
/// until the read at 30 meanwhile, so an iteration takes 130.
#[test]
fn what_a_barrier_costs() {
    let boundaries = iteration(100, &[(50, 100, 30)]);
    let time = |has_barrier| {
        let plan = transfers::first_in_first_out(&boundaries.alone(), has_barrier, &line(10, 1));
        timeline::run(&boundaries, &plan).iteration_time()
    };
    assert_eq!((time(true), time(false)), (ps(160), ps(130)));
}

/// Buckets are filled from the last parameter to the first. 4 + 7 B reach the first cap of 10 B, and 30 + 20 B reach
/// the second cap of 50 B. A bucket is released at the latest update of its parameters.
#[test]
fn buckets_of_ddp() {
    let boundaries = iteration(100, &[(5, 90, 0), (20, 60, 5), (30, 80, 10), (7, 50, 20), (4, 55, 30)]);
    let plan = transfers::ddp(&boundaries, Bytes(10), Bytes(50), &line(0, 1));
    let rows: Vec<_> = plan.transfers.iter().map(|it| (it.parameters.clone(), it.bytes.0, it.release.ps())).collect();
    assert_eq!(rows, [(vec![4, 3], 11, 55), (vec![2, 1], 50, 80), (vec![0], 5, 90)]);
    assert!(plan.has_barrier);
}

/// All times are in ps. A transfer of d bytes takes 10 + d. Parameter 4 is sent at the end of the first cycle, from 10
/// to 45. The next cycle ends at 50: parameters 3, 2 and 1 have been updated, and 3 and 2 together reach the cap of 40
/// B. Parameter 0 is updated at 90, while the channel is busy until 115, so its cycle ends after compute, at 120, and
/// it is released at C = 100.
#[test]
fn fusion_of_horovod() {
    let boundaries = iteration(100, &[(25, 90, 0), (5, 49, 0), (30, 20, 0), (10, 12, 0), (25, 4, 0)]);
    let plan = transfers::horovod(&boundaries, Bytes(40), ps(10), &line(10, 1));
    let rows: Vec<_> = plan.transfers.iter().map(|it| (it.parameters.clone(), it.time.ps(), it.release.ps())).collect();
    assert_eq!(rows, [(vec![4], 35, 10), (vec![3, 2], 50, 50), (vec![1], 15, 50), (vec![0], 35, 100)]);
}

/// Four transfers of 10 B and 10 ps are ready at 0, and an urgent transfer at 5. With an in-flight limit of 1 it waits
/// only for the transfer in flight; with a limit of 2, for both transfers in flight.
#[test]
fn credit_cannot_be_overtaken() {
    let boundaries = iteration(100, &[(40, 0, 90), (10, 5, 0)]);
    let second = |credit| {
        let plan = transfers::earliest_deadline_first(&boundaries, &boundaries.alone(), Bytes(10), credit, &line(0, 1));
        let timeline = timeline::run(&boundaries, &plan);
        timeline.sent.iter().find(|sent| sent.transfer == 4).unwrap().start
    };
    assert_eq!([second(1), second(2), second(3), second(100)], [10, 20, 30, 40].map(ps));
}

/// VGG-16 as in TF-Slim, with 16 layers of equal compute time: 1 ms forward and 2 ms backward, 48 ms in total. A
/// message takes 0.2 ms plus a time per byte at which all bytes take 48 ms. One parameter has three quarters of all
/// bytes.
fn vgg16() -> (Boundaries, Cost) {
    let sizes = [
        1728, 64, 36864, 64, 73728, 128, 147456, 128, 294912, 256, 589824, 256, 589824, 256, 1179648, 512, 2359296,
        512, 2359296, 512, 2359296, 512, 2359296, 512, 2359296, 512, 102760448, 4096, 16777216, 4096, 4096000, 1000,
    ];
    let unit = 1_000_000_000;
    let window = |parameter: usize| {
        let layer = parameter as u64 / 2;
        (4 * sizes[parameter], (48 - 2 * layer) * unit, layer * unit)
    };
    let windows: Vec<(u64, u64, u64)> = (0..32).map(window).collect();
    let bytes: u64 = windows.iter().map(|window| window.0).sum();
    (iteration(48 * unit, &windows), Cost { fixed_ps: 2e8, ps_per_byte: 48.0 * unit as f64 / bytes as f64 })
}

/// Compares the utilisation C/T. Batching is faster than sending each parameter alone, and Caramel is faster than the
/// schedules that wait at a barrier: plain batches, Horovod and DDP. The values of EDF and of the bound are only
/// printed.
#[test]
fn shape_of_the_ablation_on_vgg16() {
    let (boundaries, cost) = vgg16();
    let time = |bytes| cost.time(bytes);
    let value = |plan: &TransferPlan| {
        let timeline = timeline::run(&boundaries, plan);
        timeline.compute.ps() as f64 / timeline.iteration_time().ps() as f64
    };
    let batches = batch(&boundaries, cost.threshold(), &time);
    let alone = value(&transfers::first_in_first_out(&boundaries.alone(), true, &time));
    let batched = value(&transfers::first_in_first_out(&batches, true, &time));
    let horovod = value(&transfers::horovod(&boundaries, Bytes(64 << 20), Time::ZERO, &time));
    let ddp = value(&transfers::ddp(&boundaries, transfers::DDP_FIRST_CAP, transfers::DDP_CAP, &time));
    let plan = gradtide_train::caramel::plan(&boundaries, cost.threshold(), &time);
    let caramel = value(&plan);
    let edf = [1, 4, 16, 32, 64, 512]
        .map(|mib| value(&transfers::earliest_deadline_first(&boundaries, &batches, Bytes(mib << 20), 1, &time)));
    let bound = boundaries.compute.ps() as f64 / lower_bound(&boundaries, &plan.transfers).ps() as f64;
    println!("alone {alone} batched {batched} horovod {horovod} ddp {ddp} caramel {caramel} edf {edf:?} bound {bound}");
    assert!(alone < batched && batched < caramel && horovod < caramel && ddp < caramel);
}
