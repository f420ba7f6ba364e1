//! A worker's op DAG as TicTac (section 3) has it: what is received, what is computed, and what needs what.
//!
//! It is not [`crate::dag`]: that one is an iteration of layers in program order, and its transfers come out of it;
//! here transfers go in, and compute has no program order but what the edges say
//! (docs/decisions/17-op-dags-and-servers.md).

use serde::Deserialize;
use thiserror::Error;

/// Sum of all times of a DAG that is accepted, in ticks: sums of sums stay far from the end of 64 bits.
pub const MAX_TOTAL_TICKS: u64 = 1 << 62;

/// Ops, and the one that everything is for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpDag {
    /// In the order of the file.
    pub ops: Vec<Op>,
    /// Index of the op that is waited for. What it does not need is not looked at.
    pub target: u32,
}

/// A vertex.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Op {
    /// The user's name of it; ties go to the smaller one.
    pub id: u64,
    /// What it does.
    pub kind: Kind,
    /// Indices of what it waits for, in the order of the file: TicTac's released code depends on that order.
    pub inputs: Vec<u32>,
    /// How long the transfer or the computation takes, in ticks of the file's own unit.
    pub time_ticks: u64,
    /// Whether it depends on parameters alone (a cast, a transpose), and not on the input of the model.
    pub param_only: bool,
}

/// What an op does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Receives a parameter: a root of the DAG.
    Recv,
    /// Computes.
    Comp,
}

/// A DAG that means nothing. `gradtide.scenario` refuses these first, with a file and a line.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpDagError {
    /// The target or an input is no op.
    #[error("op {0} does not exist")]
    NoSuchOp(u32),
    /// An op waits for itself.
    #[error("the op with id {0} waits for itself")]
    Cycle(u64),
    /// A transfer that waits.
    #[error("the op with id {0} is received, and cannot wait for anything")]
    RecvWithInputs(u64),
    /// Nothing to put in order.
    #[error("the target needs nothing that is received")]
    NoRecv,
    /// The sum of times would leave 64 bits.
    #[error("the times sum to more than 2^62 ticks")]
    TooLong,
}

impl OpDag {
    /// Ops that the target needs, itself last, each after its inputs.
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

    /// Received ops in the order in which TicTac's released code finds them: depth first from the target, an op's last
    /// input first, an op when it is taken from the stack and not when it is put there.
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
