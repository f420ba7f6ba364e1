//! Tests of the max-min solver: comparisons with SimGrid's finish times and with closed forms, and properties that hold
//! on every network.
#![allow(missing_docs)]

mod certificate;
mod drain;

use gradtide_net::maxmin::{ClassId, LinkId, MaxMin, PARTS};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn links(ids: &[u32]) -> Vec<LinkId> {
    ids.iter().map(|&id| LinkId(id)).collect()
}

fn data(name: &str) -> String {
    let path = format!("{}/../../validation/simgrid/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn finish_times_are_simgrids() {
    let (bytes, paths, link_count) = drain::read_flows(&data("f2000_128.csv"), &data("f2000_128_routes.csv"));
    let (ours, _) = drain::finish_times(&vec![32_000_000_000; link_count], &paths, &bytes);
    let theirs = data("f2000_128_fin.csv");
    assert_eq!(theirs.lines().count(), ours.len() + 1);
    for (flow, line) in theirs.lines().skip(1).enumerate() {
        let theirs: f64 = line.split(',').nth(1).unwrap().parse().unwrap();
        // SimGrid prints 12 digits, and rates are multiples of 1/PARTS, at worst 1e-10 of the slowest flow's rate. The
        // validation requires only 1e-6.
        assert!((ours[flow] / theirs - 1.0).abs() < 1e-9, "flow {flow}: {} s, SimGrid {theirs} s", ours[flow]);
    }
}

#[test]
fn a_star_incast_shares_the_last_link() {
    let mut solver = MaxMin::new(&[10; 9]);
    let keys: Vec<ClassId> = (0..8).map(|host| solver.add(&links(&[host, 8]))).collect();
    for key in keys {
        assert_eq!(solver.rate(key), 10 * PARTS / 8);
    }
    assert_eq!(solver.solve_count(), 1);
}

#[test]
fn a_permutation_has_every_link_alone() {
    let mut solver = MaxMin::new(&[7; 32]);
    for host in 0..16 {
        solver.add(&links(&[host, 16 + (host * 5 + 3) % 16]));
    }
    assert!(solver.rates().all(|(_, rate)| rate == 7 * PARTS));
}

#[test]
fn a_parking_lot_gives_the_long_flow_its_share_of_the_fullest_link() {
    // Link i has capacity 60 and carries the long flow and i + 1 short flows. The last link has the most flows, five,
    // so the long flow gets 60 / 5 = 12, and the short flows of link i share the other 48.
    let mut solver = MaxMin::new(&[60; 4]);
    let long = solver.add(&links(&[0, 1, 2, 3]));
    let short: Vec<Vec<ClassId>> =
        (0..4).map(|link| (0..=link).map(|_| solver.add(&links(&[link]))).collect()).collect();
    assert_eq!(solver.rate(long), 12 * PARTS);
    for (link, keys) in short.iter().enumerate() {
        for &key in keys {
            assert_eq!(solver.rate(key), 48 * PARTS / (link as u64 + 1));
        }
    }
    // Without the short flows of the last link, link 2 has the most flows, four.
    for &key in &short[3] {
        solver.remove(key);
    }
    assert_eq!(solver.rate(long), 15 * PARTS);
    assert_eq!(solver.rate(short[0][0]), 45 * PARTS);
}

#[test]
#[should_panic(expected = "a flow crosses a link once")]
fn a_link_twice_is_refused() {
    MaxMin::new(&[10, 10]).add(&links(&[1, 0, 1]));
}

/// A step of a history: either a flow arrives, with its links and whether it has its own class, or the n-th flow
/// present leaves.
#[derive(Clone, Debug)]
enum Step {
    Add(Vec<u32>, bool),
    Remove(prop::sample::Index),
    Read,
}

const LINKS: u32 = 12;

fn step() -> impl Strategy<Value = Step> {
    let path = prop::sample::subsequence((0..LINKS).collect::<Vec<_>>(), 1..5);
    prop_oneof![
        4 => (path, any::<bool>()).prop_map(|(path, apart)| Step::Add(path, apart)),
        2 => any::<prop::sample::Index>().prop_map(Step::Remove),
        2 => Just(Step::Read),
    ]
}

/// Generates capacities with few different values, so that links often fill at one level, and some values with few
/// divisors.
fn capacities() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![Just(20), Just(40), 1..100_u64], LINKS as usize)
}

type Present = Vec<(ClassId, Vec<LinkId>)>;

fn play(solver: &mut MaxMin, steps: &[Step], mut look: impl FnMut(&mut MaxMin, &Present)) {
    let mut present = Present::new();
    for step in steps {
        match step {
            Step::Add(path, apart) => {
                let path = links(path);
                let class = if *apart { solver.add_unshared(&path) } else { solver.add(&path) };
                present.push((class, path));
            }
            Step::Remove(index) if !present.is_empty() => {
                let (key, _) = present.swap_remove(index.index(present.len()));
                solver.remove(key);
            }
            Step::Remove(_) => {}
            Step::Read => look(solver, &present),
        }
    }
    look(solver, &present);
}

/// Reference for the solver, to the last bit: fills progressively from scratch, link by link.
fn filled(capacities: &[u64], paths: &[&[LinkId]]) -> Vec<u64> {
    let mut left: Vec<u64> = capacities.iter().map(|capacity| capacity * PARTS).collect();
    let mut rates = vec![None; paths.len()];
    loop {
        let mut count = vec![0; capacities.len()];
        for (path, _) in paths.iter().zip(&rates).filter(|(_, rate)| rate.is_none()) {
            path.iter().for_each(|link| count[link.0 as usize] += 1);
        }
        let shares: Vec<Option<u64>> = left.iter().zip(&count).map(|(left, &count)| left.checked_div(count)).collect();
        let Some(level) = shares.iter().flatten().min().copied() else {
            return rates.into_iter().map(|rate| rate.expect("no flow rises")).collect();
        };
        for (path, rate) in paths.iter().zip(&mut rates) {
            if rate.is_none() && path.iter().any(|link| shares[link.0 as usize] == Some(level)) {
                *rate = Some(level);
                path.iter().for_each(|link| left[link.0 as usize] -= level);
            }
        }
    }
}

/// Irregular traffic on a network of two layers with different levels. Flows and bottlenecks come and go one by one,
/// and the capacity of a link changes from time to time.
#[test]
fn rates_of_a_long_history_are_those_of_plain_filling() {
    for start_over in [0, 1, 3] {
        check_a_long_history(start_over);
    }
}

/// Checks a long history in which every `start_over`-th solve starts from scratch; with 0, no solve does.
fn check_a_long_history(start_over: u32) {
    const LEAVES: u32 = 8;
    const HOSTS: u32 = 64;
    const SPINES: u32 = 4;
    let mut state = 1_u64;
    let mut draw = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % below
    };
    let mut capacities: Vec<u64> =
        (0..2 * HOSTS + 2 * LEAVES * SPINES).map(|_| 1_000_000 + u64::from(draw(3))).collect();
    let mut solver = MaxMin::new(&capacities);
    let mut present = Present::new();
    for step in 0..600 {
        if step % 8 == 7 {
            let link = draw(capacities.len() as u32);
            capacities[link as usize] = u64::from(draw(2_000_000));
            solver.set_capacity(LinkId(link), capacities[link as usize] * PARTS);
        }
        if present.is_empty() || draw(600) > step {
            let (src, dst, spine) = (draw(HOSTS), draw(HOSTS), draw(SPINES));
            let port = |host: u32| 2 * HOSTS + 2 * (host / (HOSTS / LEAVES) * SPINES + spine);
            let path = links(&[2 * src, port(src), port(dst) + 1, 2 * dst + 1]);
            present.push((solver.add(&path), path));
        } else {
            let (class, _) = present.swap_remove(draw(present.len() as u32) as usize);
            solver.remove(class);
        }
        if step.checked_rem(start_over) == Some(0) {
            solver.start_over();
        }
        let paths: Vec<&[LinkId]> = present.iter().map(|(_, path)| &path[..]).collect();
        let ours: Vec<u64> = present.iter().map(|&(class, _)| solver.rate(class)).collect();
        assert_eq!(ours, filled(&capacities, &paths), "after {step} steps");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Bertsekas & Gallager: shares are max-min fair if and only if each flow has a bottleneck link.
    #[test]
    fn every_flow_has_a_full_link_on_which_none_is_faster(
        capacities in capacities(), steps in prop::collection::vec(step(), 1..60)
    ) {
        play(&mut MaxMin::new(&capacities), &steps, |solver, present| {
            let present: Vec<_> = present.iter().map(|(class, path)| (solver.rate(*class), &path[..])).collect();
            certificate::check(&capacities, &present);
        });
    }

    #[test]
    fn a_history_is_not_seen_in_the_rates(
        capacities in capacities(), steps in prop::collection::vec(step(), 1..60)
    ) {
        play(&mut MaxMin::new(&capacities), &steps, |solver, present| {
            let mut fresh = MaxMin::new(&capacities);
            let keys: Vec<ClassId> =
                present.iter().rev().map(|(_, path)| fresh.add(path)).collect();
            for ((key, _), fresh_key) in present.iter().zip(keys.into_iter().rev()) {
                assert_eq!(solver.rate(*key), fresh.rate(fresh_key));
            }
        });
    }

    /// Rates do not depend on which solves start from scratch, nor on the state before such a solve. Rates that are
    /// read by link equal those that are read by class.
    #[test]
    fn a_solve_from_scratch_gives_the_same_rates(
        capacities in capacities(), steps in prop::collection::vec(step(), 1..80), pattern: u64
    ) {
        let (mut reads, mut levels, mut holders) = (0, BTreeMap::new(), BTreeMap::new());
        play(&mut MaxMin::new(&capacities), &steps, |solver, present| {
            if pattern >> (reads % 64) & 1 == 1 {
                solver.start_over();
            }
            reads += 1;
            solver.take_changed_levels(|link, rate, _| {
                levels.insert(link, rate);
            });
            solver.take_moved_classes(|class, link| {
                holders.insert(class, link);
            });
            let paths: Vec<&[LinkId]> = present.iter().map(|(_, path)| &path[..]).collect();
            let rates: Vec<u64> = present.iter().map(|(class, _)| solver.rate(*class)).collect();
            assert_eq!(rates, filled(&capacities, &paths));
            let expected: Vec<u64> = present.iter().map(|(class, _)| levels[&holders[class]]).collect();
            assert_eq!(rates, expected);
            for link in (0..LINKS).map(LinkId) {
                let on_it = paths.iter().zip(&rates).filter(|(path, _)| path.contains(&link));
                assert_eq!(solver.used(link), on_it.map(|(_, rate)| rate).sum::<u64>());
            }
        });
    }

    /// Rates do not depend on the order of links. The same network is solved with its links numbered backwards, so no
    /// tie may be broken by order.
    #[test]
    fn the_order_of_links_is_not_seen_in_the_rates(
        capacities in capacities(), steps in prop::collection::vec(step(), 1..60)
    ) {
        play(&mut MaxMin::new(&capacities), &steps, |solver, present| {
            let turned: Vec<u64> = capacities.iter().rev().copied().collect();
            let mut backwards = MaxMin::new(&turned);
            let mut classes = Vec::new();
            for (_, path) in present {
                let path: Vec<LinkId> = path.iter().map(|link| LinkId(LINKS - 1 - link.0)).collect();
                classes.push(backwards.add(&path));
            }
            let rates: Vec<u64> = classes.iter().map(|&class| backwards.rate(class)).collect();
            let ours: Vec<u64> = present.iter().map(|(key, _)| solver.rate(*key)).collect();
            assert_eq!(rates, ours);
        });
    }

    /// A private link of ample capacity puts every flow into a class of its own, and must not change rates.
    #[test]
    fn classes_are_single_flows(
        capacities in capacities(),
        paths in prop::collection::vec(prop::sample::subsequence((0..4_u32).collect::<Vec<_>>(), 1..3), 1..40)
    ) {
        let mut together = MaxMin::new(&capacities);
        let apart: Vec<u64> = capacities.iter().copied().chain(paths.iter().map(|_| 1000)).collect();
        let mut apart = MaxMin::new(&apart);
        let mut classes = Vec::new();
        for (flow, path) in paths.iter().enumerate() {
            let mut path = links(path);
            let class = together.add(&path);
            path.push(LinkId(LINKS + flow as u32));
            classes.push((class, apart.add(&path)));
        }
        for (class, single) in classes {
            prop_assert_eq!(together.rate(class), apart.rate(single));
        }
    }
}
