//! A second executor of step graphs, for tests. Transfers take fixed times, and each communicator sends one transfer at
//! a time, first come, first served.

use gradtide_train::dag::OpId;
use gradtide_train::parallel::{GroupTransfer, Step};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Times at which each op of a step became ready, began and ended, in picoseconds.
#[derive(Clone, Debug)]
pub struct Times {
    pub ready: Vec<u64>,
    pub start: Vec<u64>,
    pub end: Vec<u64>,
}

struct Run<'a> {
    step: &'a Step,
    time: &'a dyn Fn(&GroupTransfer) -> u64,
    missing: Vec<Vec<u32>>,
    times: Vec<Times>,
    /// Waiting transfers of each communicator, and whether it has a transfer in flight.
    queues: Vec<(VecDeque<(usize, OpId)>, bool)>,
    ends: BinaryHeap<Reverse<(u64, u64, usize, OpId)>>,
    sequence: u64,
}

/// Executes `count` steps, one after the other.
pub fn run(step: &Step, count: usize, time: &dyn Fn(&GroupTransfer) -> u64) -> Vec<Times> {
    let dag = &step.dag;
    let (mut first, across) = (dag.within.indegrees(), dag.across.indegrees());
    for program in &dag.programs {
        program.ops.clone().skip(1).for_each(|op| first[op as usize] += 1);
    }
    let mut later: Vec<u32> = first.iter().zip(across).map(|(within, across)| within + across).collect();
    dag.programs.iter().for_each(|program| later[program.ops.start as usize] += 1);
    let unset = vec![u64::MAX; dag.ops.len()];
    let unset = Times { ready: unset.clone(), start: unset.clone(), end: unset };
    let mut run = Run {
        step,
        time,
        missing: (0..count).map(|index| if index == 0 { first.clone() } else { later.clone() }).collect(),
        times: vec![unset; count],
        queues: vec![(VecDeque::new(), false); step.groups.len()],
        ends: BinaryHeap::new(),
        sequence: 0,
    };
    for index in 0..count {
        (0..dag.ops.len() as OpId)
            .filter(|&op| run.missing[index][op as usize] == 0)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|op| run.on_ready(index, op, 0));
    }
    while let Some(Reverse((now, _, index, op))) = run.ends.pop() {
        run.on_end(index, op, now);
    }
    let is_done = run.times.iter().flat_map(|times| &times.end).all(|&end| end != u64::MAX);
    assert!(is_done, "ops wait for one another");
    run.times
}

impl Run<'_> {
    fn on_ready(&mut self, index: usize, op: OpId, now: u64) {
        self.times[index].ready[op as usize] = now;
        match self.transfer(op) {
            None => self.begin(index, op, now, self.step.dag.ops[op as usize].cost.ps()),
            Some(transfer) => {
                let queue = &mut self.queues[transfer.group as usize];
                queue.0.push_back((index, op));
                self.send(transfer.group, now);
            }
        }
    }

    fn on_end(&mut self, index: usize, op: OpId, now: u64) {
        let step = self.step;
        for &target in step.dag.within.from(op) {
            self.release(index, target, now);
        }
        for &target in step.dag.across.from(op) {
            self.release(index + 1, target, now);
        }
        if let Some(transfer) = self.transfer(op) {
            self.queues[transfer.group as usize].1 = false;
            self.send(transfer.group, now);
            return;
        }
        let is_in = |program: &&gradtide_train::dag::Program| program.ops.contains(&op);
        let program = step.dag.programs.iter().find(is_in).unwrap();
        match op + 1 < program.ops.end {
            true => self.release(index, op + 1, now),
            false => self.release(index + 1, program.ops.start, now),
        }
    }

    fn release(&mut self, index: usize, op: OpId, now: u64) {
        let Some(missing) = self.missing.get_mut(index) else { return };
        missing[op as usize] -= 1;
        if missing[op as usize] == 0 {
            self.on_ready(index, op, now);
        }
    }

    fn send(&mut self, group: u32, now: u64) {
        let (queue, is_busy) = &mut self.queues[group as usize];
        if let (false, Some(&(index, op))) = (*is_busy, queue.front()) {
            queue.pop_front();
            *is_busy = true;
            let time = (self.time)(&self.transfer(op).unwrap());
            self.begin(index, op, now, time);
        }
    }

    fn begin(&mut self, index: usize, op: OpId, now: u64, time: u64) {
        self.times[index].start[op as usize] = now;
        self.times[index].end[op as usize] = now + time;
        self.ends.push(Reverse((now + time, self.sequence, index, op)));
        self.sequence += 1;
    }

    fn transfer(&self, op: OpId) -> Option<GroupTransfer> {
        op.checked_sub(self.step.dag.compute_count).map(|index| self.step.transfers[index as usize])
    }
}
