//! A worker's op DAG as in TicTac (section 3): receive ops, compute ops, and their dependencies.
//!
//! Unlike [`crate::dag::Dag`], which describes an iteration of layers in program order and produces transfers, an
//! [`OpDag`] has transfers as its inputs, and only its edges restrict the order of compute. See
//! docs/decisions/17-op-dags-and-servers.md.

use serde::Deserialize;
use thiserror::Error;

/// Limit on the sum of all times of a DAG, in ticks. With this limit, several such sums can be added in 64 bits.
pub const MAX_TOTAL_TICKS: u64 = 1 << 62;

/// The ops of a DAG, and the target op.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpDag {
    /// Ops in the order in which the file lists them.
    pub ops: Vec<Op>,
    /// Index of the target op, with whose end the iteration is complete. Ops on which the target does not depend are
    /// ignored.
    pub target: u32,
}

/// An op.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Op {
    /// The user's number of the op. The smaller number breaks ties.
    pub id: u64,
    /// Kind of the op.
    pub kind: Kind,
    /// Indices of the ops on which this op depends, in the order of the file. TicTac's released code depends on this
    /// order.
    pub inputs: Vec<u32>,
    /// Duration of the transfer or computation, in ticks. The file chooses the unit of a tick.
    pub time_ticks: u64,
    /// Whether the op depends on parameters but not on the input of the model. An example is the cast of a parameter.
    pub param_only: bool,
}

/// Kind of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Receives a parameter. It is a root of the DAG.
    Recv,
    /// Computes.
    Comp,
}

/// An invalid DAG. `gradtide.scenario` reports all of these errors earlier, with a file and a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpDagError {
    /// The target or an input is not an op.
    #[error("op {0} does not exist")]
    NoSuchOp(u32),
    /// An op depends on itself.
    #[error("the op with id {0} waits for itself")]
    Cycle(u64),
    /// A receive op has inputs.
    #[error("the op with id {0} is received, and cannot wait for anything")]
    RecvWithInputs(u64),
    /// The target depends on no receive op, so there is nothing to order.
    #[error("the target needs nothing that is received")]
    NoRecv,
    /// The sum of times exceeds the limit.
    #[error("the times sum to more than 2^62 ticks")]
    TooLong,
}

impl OpDag {
    /// Returns the ops on which the target depends, each after its inputs, and the target last.
    ///
    /// # Errors
    /// Any of [`OpDagError`].
    pub fn needed(&self) -> Result<Vec<u32>, OpDagError> {
        #[derive(Clone, Copy, PartialEq)]
        enum Visit {
            New,
            Open,
            Done,
        }
        let op_count = self.ops.len();
        let known = |op: u32| if (op as usize) < op_count { Ok(op) } else { Err(OpDagError::NoSuchOp(op)) };
        let mut marks = vec![Visit::New; op_count];
        let mut needed = Vec::new();
        let mut total = 0_u64;
        let mut stack = vec![(known(self.target)?, 0)];
        while let Some((op, next)) = stack.pop() {
            let it = &self.ops[op as usize];
            if next == 0 {
                if it.kind == Kind::Recv && !it.inputs.is_empty() {
                    return Err(OpDagError::RecvWithInputs(it.id));
                }
                marks[op as usize] = Visit::Open;
                total = total
                    .checked_add(it.time_ticks)
                    .filter(|&sum| sum <= MAX_TOTAL_TICKS)
                    .ok_or(OpDagError::TooLong)?;
            }
            let Some(&input) = it.inputs.get(next) else {
                marks[op as usize] = Visit::Done;
                needed.push(op);
                continue;
            };
            stack.push((op, next + 1));
            match marks[known(input)? as usize] {
                Visit::New => stack.push((input, 0)),
                Visit::Open => return Err(OpDagError::Cycle(self.ops[input as usize].id)),
                Visit::Done => {}
            }
        }
        if !needed.iter().any(|&op| self.ops[op as usize].kind == Kind::Recv) {
            return Err(OpDagError::NoRecv);
        }
        Ok(needed)
    }

    /// Returns the receive ops in the order in which TicTac's released code discovers them. The code searches depth
    /// first from the target and takes the last input of an op first. It marks an op as visited when the op is popped
    /// from the stack, not when it is pushed.
    pub fn discovery(&self) -> Vec<u32> {
        let mut seen = vec![false; self.ops.len()];
        let mut found = Vec::new();
        let mut stack = vec![self.target];
        while let Some(op) = stack.pop() {
            if !std::mem::replace(&mut seen[op as usize], true) {
                let it = &self.ops[op as usize];
                match it.kind {
                    Kind::Recv => found.push(op),
                    Kind::Comp => stack.extend(&it.inputs),
                }
            }
        }
        found
    }
}
