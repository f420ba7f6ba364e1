//! State of a program that is being written: ops and transfers that later ones wait for.

use crate::spec::ParallelSpec;

/// An op or transfer, while the number of compute ops is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Compute(u32),
    Transfer(u32),
}

/// State of parameters and gradients while the graph is written.
#[derive(Default)]
pub(super) struct Parameters {
    /// Whether the parameters of a unit have been gathered, or their gather issued.
    pub is_gathered: Vec<bool>,
    /// Issued all-gathers of each unit that no op waits for yet.
    pub arriving: Vec<Vec<Node>>,
    /// Reductions that no op waits for yet.
    pub reduced: Vec<Node>,
    /// Reduce-scatters of the unit whose backward pass was last.
    pub scattering: Vec<Node>,
}

impl Parameters {
    pub fn new(spec: &ParallelSpec) -> Self {
        let count = spec.units.len();
        Self { is_gathered: vec![false; count], arriving: vec![Vec::new(); count], ..Self::default() }
    }
}
