//! Milliseconds that TIC and TAC take as op DAGs grow to 100,000 ops: `orders`.
//!
//! `train`: blocks of four branches, as in GoogLeNet, forward and backward, with a transposed weight for each second
//! convolution. `wide`: every op draws its inputs from the 60 ops and 12 transfers before it. `zeros`: the same, and a dozen
//! of its transfers take no time.
#![allow(missing_docs)]

use gradtide_train::opdag::{Kind, Op, OpDag};
use gradtide_train::order::makespan::Scorer;
use gradtide_train::order::needs::Needs;
use gradtide_train::order::tac::{Ties, tac};
use gradtide_train::order::tic::tic;
use std::time::Instant;

struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

struct Build {
    ops: Vec<Op>,
    draw: Draw,
}

impl Build {
    fn op(&mut self, kind: Kind, inputs: Vec<u32>, most_ticks: u64) -> u32 {
        let time_ticks = 1 + self.draw.below(most_ticks);
        self.ops.push(Op { id: self.ops.len() as u64, kind, inputs, time_ticks, param_only: false });
        self.ops.len() as u32 - 1
    }

    fn recv(&mut self, most_ticks: u64) -> u32 {
        self.op(Kind::Recv, Vec::new(), most_ticks)
    }

    fn comp(&mut self, inputs: Vec<u32>) -> u32 {
        self.op(Kind::Comp, inputs, 4000)
    }
}

fn train(op_count: usize) -> OpDag {
    let mut build = Build { ops: Vec::new(), draw: Draw(1) };
    let mut trunk = build.comp(Vec::new());
    let mut backward: Vec<(u32, u32)> = Vec::new();
    // A convolution is two transfers and five ops forward, and three ops backward.
    while 10 * build.ops.len() < 7 * op_count {
        let mut ends = Vec::new();
        for branch in 0..4 {
            let mut at = trunk;
            for depth in 0..1 + branch % 2 {
                let (weight, bias) = (build.recv(9000), build.recv(20));
                let kernel = if depth == 1 { build.comp(vec![weight]) } else { weight };
                let convolution = build.comp(vec![at, kernel, bias]);
                let statistics = build.comp(vec![convolution]);
                let normal = build.comp(vec![convolution, statistics]);
                backward.push((at, weight));
                at = build.comp(vec![normal]);
            }
            ends.push(at);
        }
        trunk = build.comp(ends);
    }
    let mut gradient = build.comp(vec![trunk]);
    let mut updates = Vec::new();
    for (activation, weight) in backward.into_iter().rev() {
        updates.push(build.comp(vec![gradient, activation]));
        gradient = build.comp(vec![gradient, weight, activation]);
    }
    updates.push(gradient);
    let target = build.comp(updates);
    OpDag { ops: build.ops, target }
}

fn wide(op_count: usize) -> OpDag {
    let mut build = Build { ops: Vec::new(), draw: Draw(2) };
    let (mut recvs, mut comps, mut used) = (Vec::new(), Vec::new(), Vec::new());
    while build.ops.len() < op_count - 1 {
        if build.draw.below(8) == 0 {
            recvs.push(build.recv(9000));
            used.push(false);
            continue;
        }
        let mut inputs = Vec::new();
        for (near, reach, count) in [(&comps, 60, 2), (&recvs, 12, 1)] {
            for _ in 0..count {
                let from = near.len().saturating_sub(reach);
                if from < near.len() {
                    inputs.push(near[from + build.draw.below((near.len() - from) as u64) as usize]);
                }
            }
        }
        comps.push(build.comp(inputs));
    }
    let ends: Vec<u32> = comps.iter().rev().take(60).chain(&recvs).copied().collect();
    let target = build.comp(ends);
    OpDag { ops: build.ops, target }
}

fn zeros(op_count: usize) -> OpDag {
    let mut dag = wide(op_count);
    let recvs = dag.ops.iter().filter(|op| op.kind == Kind::Recv).count();
    dag.ops.iter_mut().filter(|op| op.kind == Kind::Recv).step_by(recvs / 12).for_each(|op| op.time_ticks = 0);
    dag
}

/// CPU seconds of this process, by the kernel's account (10 ms steps); wall clock where there is none.
fn cpu_seconds(start: Instant) -> f64 {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return start.elapsed().as_secs_f64() };
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / 100.0
}

/// Milliseconds that `work` takes, of enough runs that the steps of the clock do not show.
fn milliseconds<T>(mut work: impl FnMut() -> T) -> f64 {
    let start = Instant::now();
    let before = cpu_seconds(start);
    let mut count = 0;
    loop {
        std::hint::black_box(work());
        count += 1;
        let seconds = cpu_seconds(start) - before;
        if seconds >= 0.5 {
            return seconds * 1e3 / f64::from(count);
        }
    }
}

fn main() {
    println!("   dag      ops    recvs    joins    read ms     tic ms     tac ms  ns per op");
    for (name, make) in [("train", train as fn(usize) -> OpDag), ("wide", wide), ("zeros", zeros)] {
        for op_count in [1_000, 10_000, 100_000] {
            let dag = make(op_count);
            let needs = Needs::new(&dag).unwrap();
            let order = tac(&needs, &needs.work_ticks, Ties::Id);
            assert!(Scorer::new(&needs).makespan(&order) >= needs.lower_bound_ticks());
            let read = milliseconds(|| Needs::new(&dag));
            let tic = milliseconds(|| tic(&needs));
            let tac = milliseconds(|| tac(&needs, &needs.work_ticks, Ties::Id));
            let (ops, recvs, joins) = (dag.ops.len(), needs.recv_count(), needs.join_count());
            let per_op = (read + tic + tac) * 1e6 / ops as f64;
            println!("{name:>6} {ops:>8} {recvs:>8} {joins:>8} {read:>10.3} {tic:>10.3} {tac:>10.3} {per_op:>10.0}");
        }
    }
}
