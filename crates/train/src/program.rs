//! The sequential program of each worker of an op graph. Its ops are in the listed order, in a random order, or in
//! Caramel's order.

use crate::caramel::compute::{self, ComputeError, Parameter};
use crate::dag::{DagOp, OpKind};
use crate::model::{ComputeStep, ComputeSteps};
use crate::opdag::{Kind, Op, OpDag};
use crate::ps::PsError;
use crate::ps::graph::WorkerGraph;
use crate::spec::{ComputeOrderSpec, LayerSpec, OpsSpec, TaskSpec};
use gradtide_net::Seed;
use thiserror::Error;

/// Error: the graph has no valid program.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProgramError {
    /// The graph is invalid.
    #[error(transparent)]
    Graph(#[from] PsError),
    /// The ops of the graph have no sequential order.
    #[error(transparent)]
    Compute(#[from] ComputeError),
    /// A layer has bytes to aggregate, but the graph does not both read and update it.
    #[error("nothing of `{0}` is read and updated, yet it has bytes to aggregate")]
    Untrained(String),
}

/// Creates the programs of all workers: one program for all, or one per worker if their orders differ. `layers` has an
/// entry for each parameter that the graph receives, in the order of the graph. Only trained parameters have bytes.
///
/// # Errors
/// See [`ProgramError`].
pub fn of_workers(
    spec: &OpsSpec,
    layers: &[LayerSpec],
    worker_count: u32,
    job: &str,
    seed: Seed,
) -> Result<Vec<ComputeSteps>, ProgramError> {
    let graph = WorkerGraph::new(&spec.graph, TaskSpec::Train)?;
    let mut is_trained = vec![false; layers.len()];
    for parameter in graph.parameters.iter().filter(|parameter| parameter.is_trained) {
        if let Some(trained) = is_trained.get_mut(parameter.layer as usize) {
            *trained = true;
        }
    }
    if let Some((layer, _)) =
        layers.iter().zip(is_trained).find(|(layer, trained)| layer.parameter_bytes > 0 && !trained)
    {
        return Err(ProgramError::Untrained(layer.name.clone()));
    }
    let (dag, parameters) = op_dag(&graph);
    let total: u128 = dag.ops.iter().map(|op| u128::from(op.time_ticks)).sum();
    if total > compute::MAX_COMPUTE_PS {
        return Err(ComputeError::TooLong.into());
    }
    let topological = |ops: Result<Vec<u32>, _>| ops.map_err(ComputeError::from);
    let orders = match spec.order {
        ComputeOrderSpec::Listed => vec![topological(compute::topological(&dag))?],
        ComputeOrderSpec::Caramel => vec![compute::greedy(&dag, &parameters)?.ops()],
        ComputeOrderSpec::Random => (0..worker_count)
            .map(|worker| {
                let mut luck = seed.stream(&format!("compute order/{job}/{worker}"));
                topological(compute::random(&dag, &mut luck))
            })
            .collect::<Result<_, _>>()?,
    };
    Ok(orders.iter().map(|ops| steps(&graph, &dag, ops)).collect())
}

/// Converts the graph to the form that [`compute`] uses, with the parameters before the ops.
fn op_dag(graph: &WorkerGraph) -> (OpDag, Vec<Parameter>) {
    let recv = |id| Op { id, kind: Kind::Recv, inputs: Vec::new(), time_ticks: 0, param_only: false };
    let count = graph.parameters.len() as u32;
    let mut ops: Vec<Op> = (0..u64::from(count)).map(recv).collect();
    for op in &graph.ops {
        let (id, time_ticks) = (ops.len() as u64, op.cost.ps());
        ops.push(Op { id, kind: Kind::Comp, inputs: Vec::new(), time_ticks, param_only: op.is_param_only });
    }
    for node in 0..ops.len() as u32 {
        graph.readers.from(node).iter().for_each(|&op| ops[(count + op) as usize].inputs.push(node));
    }
    let mut parameters = Vec::new();
    for (place, op) in (count..).zip(&graph.ops) {
        let updated = |&recv: &u32| Parameter { bytes: graph.parameters[recv as usize].bytes, recv, update: place };
        parameters.extend(op.updates.iter().map(updated));
    }
    // `compute` does not use the target, because programs contain all ops.
    let target = ops.len() as u32 - 1;
    (OpDag { ops, target }, parameters)
}

/// Converts a sequence of ops to steps. A parameter is read by the first step that uses it.
fn steps(graph: &WorkerGraph, dag: &OpDag, ops: &[u32]) -> ComputeSteps {
    let count = graph.parameters.len();
    let mut is_read = vec![false; count];
    let layer = |&parameter: &u32| graph.parameters[parameter as usize].layer;
    let step = |&place: &u32| {
        let op = &graph.ops[place as usize - count];
        let inputs = dag.ops[place as usize].inputs.iter();
        let first =
            inputs.filter(|&&input| (input as usize) < count && !std::mem::replace(&mut is_read[input as usize], true));
        let reads = first.filter(|&&input| graph.parameters[input as usize].is_trained).map(layer).collect();
        let kind = if op.is_forward { OpKind::Forward(op.index) } else { OpKind::Backward(op.index) };
        ComputeStep { op: DagOp::new(kind, op.cost), reads, updates: op.updates.iter().map(layer).collect() }
    };
    ComputeSteps(ops.iter().map(step).collect())
}
