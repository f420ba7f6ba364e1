//! Compute orders with early updates (Caramel, section 4.1), and the edges that enforce an order.

use super::{Boundaries, Boundary};
use crate::opdag::{Kind, Op, OpDag, OpDagError};
use gradtide_net::seed::Stream;
use gradtide_net::{Bytes, Time};
use gradtide_watch::check_cancelled;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use thiserror::Error;

/// Limit on the total compute time, in picoseconds. Below it, the times of several iterations fit in 64 bits.
pub const MAX_COMPUTE_PS: u128 = 1 << 56;

/// A parameter of an op DAG, which is read and updated once in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Bytes to aggregate.
    pub bytes: Bytes,
    /// Op of kind `recv` that represents the parameter. Ops with this input read the parameter.
    pub recv: u32,
    /// Last op that computes the parameter's gradient.
    pub update: u32,
}

/// A compute order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeOrder {
    /// Updates in the order of execution, each with the ops that it requires.
    pub tags: Vec<Tag>,
    /// Ops on which no update depends, in topological order. They run last.
    pub rest: Vec<u32>,
}

/// An update with the ops that run for it. Caramel calls this a tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Indices of the parameters that the last op updates.
    pub parameters: Vec<u32>,
    /// Ops in topological order: the ops on which the update depends but no earlier update does, then the update
    /// itself.
    pub ops: Vec<u32>,
}

/// Error: the parameters do not match the op DAG.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ComputeError {
    /// The DAG is invalid.
    #[error(transparent)]
    Dag(#[from] OpDagError),
    /// `recv` of a parameter is not a receive op, or `update` is not a compute op.
    #[error("parameter {0} is not received, or its update is not computed")]
    Kind(u32),
    /// The total compute time exceeds [`MAX_COMPUTE_PS`].
    #[error("the computation takes more than 20 hours")]
    TooLong,
}

impl ComputeOrder {
    /// Returns all compute ops in their order.
    pub fn ops(&self) -> Vec<u32> {
        self.tags.iter().flat_map(|tag| &tag.ops).chain(&self.rest).copied().collect()
    }

    /// Returns the op of each update, in order.
    pub fn updates(&self) -> impl Iterator<Item = u32> {
        self.tags.iter().map(|tag| *tag.ops.last().expect("an update needs itself"))
    }
}

/// Returns the compute ops in topological order; ties follow the order of the file.
///
/// # Errors
/// [`OpDagError`] on a cycle, a transfer with inputs, or an input that does not exist.
pub fn topological(dag: &OpDag) -> Result<Vec<u32>, OpDagError> {
    topological_by(dag, &vec![0; dag.ops.len()])
}

/// Returns the compute ops in a random topological order, as a framework without priorities executes them. `rng` draws
/// each next op among the ready ones.
///
/// # Errors
/// As [`topological`].
pub fn random(dag: &OpDag, rng: &mut Stream) -> Result<Vec<u32>, OpDagError> {
    let mut keys: Vec<u32> = (0..dag.ops.len() as u32).collect();
    rng.shuffle(&mut keys);
    topological_by(dag, &keys)
}

/// Returns a greedy order, which repeatedly takes the update whose remaining dependencies have the least compute time.
/// Ties follow the topological order.
///
/// # Errors
/// [`ComputeError`] if the parameters do not match the DAG.
///
/// # Source
/// Caramel, section 4.1, stage 1; A1 to A6 of the header of `mod.rs`.
pub fn greedy(dag: &OpDag, parameters: &[Parameter]) -> Result<ComputeOrder, ComputeError> {
    let order = topological(dag)?;
    check(dag, parameters)?;
    let mut place = vec![0; dag.ops.len()];
    order.iter().enumerate().for_each(|(at, &op)| place[op as usize] = at);
    let mut updates: Vec<u32> = parameters.iter().map(|parameter| parameter.update).collect();
    updates.sort_unstable_by_key(|&op| place[op as usize]);
    updates.dedup();

    // For each op, a bit set of the updates that depend on it. When the op is taken, its time is subtracted from the
    // costs of these updates.
    let words = updates.len().div_ceil(64);
    let mut needed_by = vec![0_u64; words * dag.ops.len()];
    for (update, &op) in updates.iter().enumerate() {
        needed_by[op as usize * words + update / 64] |= 1 << (update % 64);
    }
    for &op in order.iter().rev() {
        check_cancelled();
        for &input in &dag.ops[op as usize].inputs {
            for word in 0..words {
                needed_by[input as usize * words + word] |= needed_by[op as usize * words + word];
            }
        }
    }
    let needs = |op: u32, update: usize| needed_by[op as usize * words + update / 64] >> (update % 64) & 1 == 1;
    let mut costs = vec![0_u64; updates.len()];
    for &op in &order {
        let ticks = dag.ops[op as usize].time_ticks;
        (0..updates.len()).filter(|&update| needs(op, update)).for_each(|update| costs[update] += ticks);
    }
    let mut left = order;
    let mut waiting: Vec<usize> = (0..updates.len()).collect();
    let mut tags = Vec::new();
    while let Some(&next) = waiting.iter().min_by_key(|&&update| costs[update]) {
        waiting.retain(|&update| update != next);
        let (ops, others): (Vec<u32>, Vec<u32>) = left.into_iter().partition(|&op| needs(op, next));
        left = others;
        for &op in &ops {
            check_cancelled();
            let ticks = dag.ops[op as usize].time_ticks;
            waiting.iter().filter(|&&update| needs(op, update)).for_each(|&update| costs[update] -= ticks);
        }
        let updated = |parameter: &u32| parameters[*parameter as usize].update == updates[next];
        tags.push(Tag { parameters: (0..parameters.len() as u32).filter(updated).collect(), ops });
    }
    Ok(ComputeOrder { tags, rest: left })
}

/// Returns the DAG with edges that enforce the order of updates. The dependencies of an update begin when the previous
/// update has ended.
///
/// A barrier op of zero length separates two consecutive tags. The barrier depends on the update of the first tag. Ops
/// of the second tag without an input in the second tag depend on the barrier.
///
/// # Source
/// Caramel, section 4.1, stage 2; A7 to A10 of the header of `mod.rs`.
pub fn enforce(dag: &OpDag, order: &ComputeOrder) -> OpDag {
    let mut dag = dag.clone();
    let mut id = dag.ops.iter().map(|op| op.id).max().map_or(0, |id| id + 1);
    let mut tag_of = vec![usize::MAX; dag.ops.len()];
    let parts: Vec<&[u32]> = order.tags.iter().map(|tag| &tag.ops[..]).chain([&order.rest[..]]).collect();
    for (tag, ops) in parts.iter().enumerate() {
        ops.iter().for_each(|&op| tag_of[op as usize] = tag);
    }
    for (tag, update) in order.updates().enumerate() {
        let barrier = dag.ops.len() as u32;
        for &op in parts[tag + 1] {
            if !dag.ops[op as usize].inputs.iter().any(|&input| tag_of[input as usize] == tag + 1) {
                dag.ops[op as usize].inputs.push(barrier);
            }
        }
        tag_of.push(usize::MAX);
        dag.ops.push(Op { id, kind: Kind::Comp, inputs: vec![update], time_ticks: 0, param_only: false });
        id += 1;
    }
    dag
}

/// Returns the boundaries of a worker that computes `ops` one after the other. `tick` is the time unit of the DAG's op
/// durations. A parameter that no op reads counts as read at the end of the iteration.
///
/// # Errors
/// [`ComputeError`] if the parameters do not match the DAG, or if the total compute time is too long.
///
/// # Panics
/// If an update is missing from `ops`.
pub fn boundaries(dag: &OpDag, parameters: &[Parameter], ops: &[u32], tick: Time) -> Result<Boundaries, ComputeError> {
    check(dag, parameters)?;
    let ticks: u128 = ops.iter().map(|&op| u128::from(dag.ops[op as usize].time_ticks)).sum();
    if ticks * u128::from(tick.ps()) > MAX_COMPUTE_PS {
        return Err(ComputeError::TooLong);
    }
    let (mut starts, mut ends) = (vec![None; dag.ops.len()], vec![None; dag.ops.len()]);
    let mut now = Time::ZERO;
    for &op in ops {
        let it = &dag.ops[op as usize];
        for &input in it.inputs.iter().filter(|&&input| dag.ops[input as usize].kind == Kind::Recv) {
            starts[input as usize].get_or_insert(now);
        }
        now += Time::from_ps(it.time_ticks * tick.ps());
        ends[op as usize] = Some(now);
    }
    let window = |parameter: &Parameter| Boundary {
        bytes: parameter.bytes,
        update: ends[parameter.update as usize].expect("every update is computed"),
        read: starts[parameter.recv as usize].unwrap_or(now),
    };
    Ok(Boundaries { compute: now, windows: parameters.iter().map(window).collect() })
}

fn check(dag: &OpDag, parameters: &[Parameter]) -> Result<(), ComputeError> {
    let kind = |op: u32| dag.ops.get(op as usize).map(|op| op.kind).ok_or(OpDagError::NoSuchOp(op));
    for (index, parameter) in parameters.iter().enumerate() {
        if kind(parameter.recv)? != Kind::Recv || kind(parameter.update)? != Kind::Comp {
            return Err(ComputeError::Kind(index as u32));
        }
    }
    Ok(())
}

/// Returns the compute ops in topological order. Among ready ops, the op with the smallest (key, index) is first.
fn topological_by(dag: &OpDag, keys: &[u32]) -> Result<Vec<u32>, OpDagError> {
    let op_count = dag.ops.len();
    let mut readers = vec![Vec::new(); op_count];
    let mut missing = vec![0_u32; op_count];
    for (op, it) in dag.ops.iter().enumerate() {
        if it.kind == Kind::Recv && !it.inputs.is_empty() {
            return Err(OpDagError::RecvWithInputs(it.id));
        }
        for &input in &it.inputs {
            let kind = dag.ops.get(input as usize).ok_or(OpDagError::NoSuchOp(input))?.kind;
            if kind == Kind::Comp {
                readers[input as usize].push(op as u32);
                missing[op] += 1;
            }
        }
    }
    let waits = |op: &u32| dag.ops[*op as usize].kind == Kind::Comp;
    let key = |op: u32| Reverse((keys[op as usize], op));
    let first = (0..op_count as u32).filter(|op| waits(op) && missing[*op as usize] == 0);
    let mut ready: BinaryHeap<_> = first.map(key).collect();
    let mut order = Vec::new();
    while let Some(Reverse((_, op))) = ready.pop() {
        check_cancelled();
        order.push(op);
        for &reader in &readers[op as usize] {
            missing[reader as usize] -= 1;
            if missing[reader as usize] == 0 {
                ready.push(key(reader));
            }
        }
    }
    match (0..op_count).find(|&op| missing[op] > 0) {
        Some(op) => Err(OpDagError::Cycle(dag.ops[op].id)),
        None => Ok(order),
    }
}
