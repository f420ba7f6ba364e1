//! In which order a worker computes, so that its updates come early (Caramel, section 4.1), and edges that hold it to
//! that.

use super::{Boundaries, Boundary};
use crate::opdag::{Kind, Op, OpDag, OpDagError};
use gradtide_net::seed::Stream;
use gradtide_net::{Bytes, Time};
use gradtide_watch::look;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use thiserror::Error;

/// Longest computation that is accepted, in picoseconds: some iterations of it stay far from the end of 64 bits.
pub const MAX_COMPUTE_PS: u128 = 1 << 56;

/// A parameter of an op DAG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// What is aggregated.
    pub bytes: Bytes,
    /// The op of kind `recv` that stands for it: who has it among its inputs, reads it.
    pub recv: u32,
    /// The last op that makes its gradient.
    pub update: u32,
}

/// The order in which a worker computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeOrder {
    /// Updates, first to last, each with what it needs.
    pub tags: Vec<Tag>,
    /// Ops that no update needs, in topological order. They come last.
    pub rest: Vec<u32>,
}

/// An update in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Indices of the parameters that the op updates.
    pub parameters: Vec<u32>,
    /// What it needs and no update before it needed, in topological order; itself last.
    pub ops: Vec<u32>,
}

/// An op DAG and parameters that do not fit together.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ComputeError {
    /// The DAG means nothing.
    #[error(transparent)]
    Dag(#[from] OpDagError),
    /// A parameter is read by way of an op that computes, or updated by one that receives.
    #[error("parameter {0} is not received, or its update is not computed")]
    Kind(u32),
    /// All ops together take too long.
    #[error("the computation takes more than 20 hours")]
    TooLong,
}

impl ComputeOrder {
    /// All ops that compute, first to last.
    pub fn ops(&self) -> Vec<u32> {
        self.tags.iter().flat_map(|tag| &tag.ops).chain(&self.rest).copied().collect()
    }

    /// The op of each update, first to last.
    pub fn updates(&self) -> impl Iterator<Item = u32> {
        self.tags.iter().map(|tag| *tag.ops.last().expect("an update needs itself"))
    }
}

/// Ops that compute in topological order: of those that can run, the first one of the file.
///
/// # Errors
/// [`OpDagError`] if there is no such order, a transfer waits or an input does not exist.
pub fn topological(dag: &OpDag) -> Result<Vec<u32>, OpDagError> {
    linear(dag, &vec![0; dag.ops.len()])
}

/// Ops that compute in the order of a framework that knows none: of those that can run, any, as `luck` has it.
///
/// # Errors
/// As [`topological`].
pub fn random(dag: &OpDag, luck: &mut Stream) -> Result<Vec<u32>, OpDagError> {
    let mut keys: Vec<u32> = (0..dag.ops.len() as u32).collect();
    luck.shuffle(&mut keys);
    linear(dag, &keys)
}

/// Takes the update that is cheapest to reach, again and again: the one with the least compute time left among what it
/// needs. Ties go to the one that is first in topological order.
///
/// # Errors
/// [`ComputeError`] if the parameters do not suit the DAG.
///
/// # Source
/// Caramel, section 4.1, stage 1; A1 to A6 of docs/models/caramel.md.
pub fn greedy(dag: &OpDag, parameters: &[Parameter]) -> Result<ComputeOrder, ComputeError> {
    let order = topological(dag)?;
    check(dag, parameters)?;
    let mut place = vec![0; dag.ops.len()];
    order.iter().enumerate().for_each(|(at, &op)| place[op as usize] = at);
    let mut updates: Vec<u32> = parameters.iter().map(|parameter| parameter.update).collect();
    updates.sort_unstable_by_key(|&op| place[op as usize]);
    updates.dedup();

    // For every op the updates that need it, a bit each. Then an op that is done is taken from the cost of those.
    let words = updates.len().div_ceil(64);
    let mut needed_by = vec![0_u64; words * dag.ops.len()];
    for (update, &op) in updates.iter().enumerate() {
        needed_by[op as usize * words + update / 64] |= 1 << (update % 64);
    }
    for &op in order.iter().rev() {
        look();
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
            look();
            let ticks = dag.ops[op as usize].time_ticks;
            waiting.iter().filter(|&&update| needs(op, update)).for_each(|&update| costs[update] -= ticks);
        }
        let updated = |parameter: &u32| parameters[*parameter as usize].update == updates[next];
        tags.push(Tag { parameters: (0..parameters.len() as u32).filter(updated).collect(), ops });
    }
    Ok(ComputeOrder { tags, rest: left })
}

/// The DAG with edges that leave one order of updates: what an update needs begins when the update before it is done.
///
/// Between two tags stands one op that takes no time. It waits for the update of the first, and what the second needs
/// waits for it as far as it waits for nothing else of the second.
///
/// # Source
/// Caramel, section 4.1, stage 2; A7 to A10 of docs/models/caramel.md.
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

/// The boundaries of a worker that computes `ops` one after another, none before its inputs; a tick of the DAG takes
/// `tick`. A parameter that nobody reads is taken to be read at the end.
///
/// # Errors
/// [`ComputeError`] if the parameters do not suit the DAG, or all ops together take too long.
///
/// # Panics
/// If `ops` leaves out an update.
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

/// Ops that compute, each after its inputs; of those that can run, the one with the least key, then the first.
fn linear(dag: &OpDag, keys: &[u32]) -> Result<Vec<u32>, OpDagError> {
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
        look();
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
