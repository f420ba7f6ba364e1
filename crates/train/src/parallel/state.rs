//! State of a program that is being written: the ops and transfers for which later ops wait.

use crate::spec::ParallelSpec;

/// An op or transfer. Its index in the graph is unknown until all compute ops have been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Compute(u32),
    Transfer(u32),
}

/// State of parameters and gradients while the graph is written.
#[derive(Default)]
pub(super) struct Parameters {
    /// Whether the parameters of a unit have been gathered, or are being gathered.
    pub is_gathered: Vec<bool>,
    /// For each unit, the all-gathers that have been issued but for which no op waits yet.
    pub arriving: Vec<Vec<Node>>,
    /// Reductions for which no op waits yet.
    pub reduced: Vec<Node>,
    /// Reduce-scatters of the unit whose backward pass was written last.
    pub scattering: Vec<Node>,
}

impl Parameters {
    pub fn new(spec: &ParallelSpec) -> Self {
        let count = spec.units.len();
        Self { is_gathered: vec![false; count], arriving: vec![Vec::new(); count], ..Self::default() }
    }
}
