//! The op graph of one worker's iteration: the parameters that it pulls, and its ops with their dependencies.

use super::PsError;
use crate::dag::{Edge, Edges};
use crate::opdag::{Kind, Op, OpDag};
use crate::spec::{GraphOpSpec, GraphSpec, LayerSpec, TaskSpec};
use gradtide_net::{Bytes, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// A node of the graph, which is a parameter or an op: the index of a parameter, or the number of parameters plus the
/// index of an op.
pub type WorkerNode = u32;

/// One iteration of a worker. Ops are in topological order and parameters in model order. Nodes on which the iteration
/// does not depend are omitted.
#[derive(Clone, Debug)]
pub struct WorkerGraph {
    /// Parameters, which the worker pulls.
    pub parameters: Vec<PsParameter>,
    /// Ops, which the worker computes.
    pub ops: Vec<WorkerOp>,
    /// Edges from every node to the ops that depend on it.
    pub readers: Edges,
    /// Edges from every op to the parameters that it reads. An op also reads a parameter through an op that depends
    /// only on parameters; such an op itself has no edges here.
    pub uses: Edges,
    /// This iteration in the form that [`crate::order`] uses, with transfer times of zero.
    dag: OpDag,
    /// Index in `dag` of every parameter.
    recvs: Vec<u32>,
}

/// A parameter of the model.
#[derive(Clone, Debug)]
pub struct PsParameter {
    /// Name of the parameter shown to users.
    pub name: Arc<str>,
    /// Size of one pull or push.
    pub bytes: Bytes,
    /// Time that the parameter's server takes to apply the summed gradient.
    pub update: Time,
    /// Whether the gradient is computed and pushed.
    pub is_trained: bool,
    /// Index of the parameter's layer. If the graph has no layers, the index of the parameter among all parameters of
    /// the graph.
    pub layer: u32,
}

/// An op.
#[derive(Clone, Debug)]
pub struct WorkerOp {
    /// Name shown to users.
    pub name: Arc<str>,
    /// Compute time.
    pub cost: Time,
    /// Whether the op belongs to the forward pass.
    pub is_forward: bool,
    /// Whether the op depends only on parameters.
    pub is_param_only: bool,
    /// Parameters whose gradients are complete when the op ends.
    pub updates: Vec<u32>,
    /// Index of the op's first push among all pushes of the iteration.
    pub first_push: u32,
    /// Index of the op's layer. If the graph has no layers, the index of the op in the graph.
    pub index: u32,
    /// Whether the op runs on the host; see [`DagOp::is_host`](crate::dag::DagOp::is_host).
    pub is_host: bool,
}

impl WorkerGraph {
    /// Creates the iteration of an op graph.
    ///
    /// # Errors
    /// [`PsError`] if the graph is invalid.
    pub fn new(spec: &GraphSpec, task: TaskSpec) -> Result<Self, PsError> {
        Self::of(spec, task, None)
    }

    /// Creates the iteration of a layered model. All layers are pulled. The forward pass of a layer follows the forward
    /// pass of the previous layer. Its backward pass follows the backward pass of the next layer and completes its
    /// gradient.
    ///
    /// # Errors
    /// [`PsError`] if there are no layers, or if no parameter is received.
    pub fn chain(layers: &[LayerSpec], task: TaskSpec) -> Result<Self, PsError> {
        let count = layers.len() as u32;
        if count == 0 {
            return Err(PsError::NoTime);
        }
        let op = |name: &str, inputs, receives_bytes, time_ps, updates| GraphOpSpec {
            id: 0,
            name: name.into(),
            inputs,
            receives_bytes,
            time_ps,
            param_only: false,
            updates,
        };
        let mut ops = Vec::with_capacity(3 * layers.len());
        let mut recvs: Vec<Option<u32>> = Vec::with_capacity(layers.len());
        let mut layer_of: Vec<u32> = Vec::with_capacity(3 * layers.len());
        for (layer, index) in layers.iter().zip(0..) {
            recvs.push((layer.parameter_bytes > 0).then_some(ops.len() as u32));
            if layer.parameter_bytes > 0 {
                ops.push(op(&layer.name, vec![], Some(layer.parameter_bytes), layer.update_ps, vec![]));
                layer_of.push(index);
            }
        }
        let first = ops.len() as u32;
        for (layer, index) in layers.iter().zip(0..) {
            let before = (index > 0).then(|| first + index - 1);
            let inputs = before.into_iter().chain(recvs[index as usize]).collect();
            // The servers apply updates, so `update_ps` of a host layer is host work before its forward pass.
            let of_host_ps = if layer.is_host { layer.update_ps } else { 0 };
            ops.push(op(&layer.name, inputs, None, of_host_ps + layer.forward_ps, vec![]));
            layer_of.push(index);
        }
        for (index, layer) in layers.iter().enumerate().rev() {
            let before = ops.len() as u32 - 1;
            ops.push(op(&layer.name, vec![before], None, layer.backward_ps, Vec::from_iter(recvs[index])));
            layer_of.push(index as u32);
        }
        (0..).zip(&mut ops).for_each(|(id, op)| op.id = id);
        let target = ops.len() as u32 - 1;
        let graph = GraphSpec { ops, target, inference_target: Some(first + count - 1) };
        Self::of(&graph, task, Some((layers, &layer_of)))
    }

    /// Creates the iteration of an op graph. For a layered model, `chain` contains the layers, and the layer of every
    /// op.
    fn of(spec: &GraphSpec, task: TaskSpec, chain: Option<(&[LayerSpec], &[u32])>) -> Result<Self, PsError> {
        let layer_of = chain.map(|(_, layer_of)| layer_of);
        check(spec)?;
        let mut roots = vec![spec.target];
        match task {
            TaskSpec::Inference => roots = vec![spec.inference_target.unwrap_or(spec.target)],
            TaskSpec::Train => roots.extend(updating(spec).filter(|&op| op != spec.target)),
        }
        let dag = op_dag(spec, &roots);
        let mut needed = dag.needed()?;
        needed.retain(|&op| (op as usize) < spec.ops.len());
        let order = by_file(spec, &needed);
        let is_recv = |&op: &u32| spec.ops[op as usize].receives_bytes.is_some();
        let (mut recvs, ops): (Vec<u32>, Vec<u32>) = order.into_iter().partition(is_recv);
        recvs.sort_unstable();
        let mut node_of: Vec<Option<WorkerNode>> = vec![None; spec.ops.len()];
        (0..).zip(recvs.iter().chain(&ops)).for_each(|(node, &op)| node_of[op as usize] = Some(node));

        let forward = spec.inference_target.map(|target| ancestors(spec, target));
        // Without `inference_target`, the forward pass ends before the first op that completes a gradient.
        let first_gradient = ops.iter().position(|&op| !spec.ops[op as usize].updates.is_empty()).unwrap_or(ops.len());
        let of_op = |(place, &index): (usize, &u32)| {
            let op = &spec.ops[index as usize];
            let updates = match task {
                TaskSpec::Train => op.updates.iter().filter_map(|&recv| node_of[recv as usize]).collect(),
                TaskSpec::Inference => Vec::new(),
            };
            WorkerOp {
                name: op.name.as_str().into(),
                cost: Time::from_ps(op.time_ps),
                is_forward: forward.as_ref().map_or(place < first_gradient, |forward| forward[index as usize]),
                is_param_only: op.param_only,
                updates,
                first_push: 0,
                index: layer_of.map_or(index, |layers| layers[index as usize]),
                is_host: chain.is_some_and(|(layers, of)| layers[of[index as usize] as usize].is_host),
            }
        };
        let all_recvs: Vec<u32> = (0..spec.ops.len() as u32).filter(is_recv).collect();
        let of_recv = |&index: &u32| {
            let op = &spec.ops[index as usize];
            PsParameter {
                name: op.name.as_str().into(),
                bytes: Bytes(op.receives_bytes.unwrap_or(0)),
                update: Time::from_ps(op.time_ps),
                is_trained: false,
                layer: match layer_of {
                    Some(layers) => layers[index as usize],
                    None => all_recvs.partition_point(|&recv| recv < index) as u32,
                },
            }
        };
        let mut parameters: Vec<PsParameter> = recvs.iter().map(of_recv).collect();
        let mut worker_ops: Vec<WorkerOp> = ops.iter().enumerate().map(of_op).collect();
        let mut push_count = 0;
        for op in &mut worker_ops {
            op.first_push = push_count;
            push_count += op.updates.len() as u32;
        }
        for &parameter in worker_ops.iter().flat_map(|op| &op.updates) {
            parameters[parameter as usize].is_trained = true;
        }

        let inputs_of = |&index: &u32| {
            let inputs = spec.ops[index as usize].inputs.iter();
            let mut inputs: Vec<WorkerNode> = inputs.filter_map(|&input| node_of[input as usize]).collect();
            inputs.sort_unstable();
            inputs.dedup();
            inputs
        };
        let inputs: Vec<Vec<WorkerNode>> = ops.iter().map(inputs_of).collect();
        let edges: Vec<Edge> =
            (0..).zip(&inputs).flat_map(|(op, inputs)| inputs.iter().map(move |&input| (input, op))).collect();
        let readers = Edges::new(recvs.len() + ops.len(), &edges);
        let uses = uses(&worker_ops, &inputs, recvs.len());
        Ok(Self { parameters, ops: worker_ops, readers, uses, dag, recvs })
    }

    /// Returns the parameters whose gradients are pushed, in the order of the ops that complete them.
    pub fn pushes(&self) -> Vec<u32> {
        self.ops.iter().flat_map(|op| &op.updates).copied().collect()
    }

    /// Returns the compute time of an iteration.
    pub fn compute_time(&self) -> Time {
        self.ops.iter().map(|op| op.cost).sum()
    }

    /// Returns the iteration as an op DAG whose pulls take `times`, by parameter.
    pub fn timed(&self, times: &[Time]) -> OpDag {
        let mut dag = self.dag.clone();
        self.recvs.iter().zip(times).for_each(|(&op, time)| dag.ops[op as usize].time_ticks = time.ps());
        dag
    }

    /// Returns the index of the parameter that the receive op `op` of the DAG pulls.
    pub fn parameter_of(&self, op: u32) -> u32 {
        self.recvs.binary_search(&op).expect("it is received") as u32
    }
}

/// Returns the edges of [`WorkerGraph::uses`].
fn uses(ops: &[WorkerOp], inputs: &[Vec<WorkerNode>], parameter_count: usize) -> Edges {
    let mut uses: Vec<Edge> = Vec::new();
    let mut via_params: Vec<Vec<u32>> = vec![Vec::new(); ops.len()];
    for (op, inputs) in inputs.iter().enumerate() {
        let mut used: Vec<u32> = Vec::new();
        for &input in inputs {
            match (input as usize).checked_sub(parameter_count) {
                None => used.push(input),
                Some(before) => used.extend(&via_params[before]),
            }
        }
        used.sort_unstable();
        used.dedup();
        if ops[op].is_param_only {
            via_params[op] = used;
        } else {
            uses.extend(used.into_iter().map(|parameter| (op as u32, parameter)));
        }
    }
    Edges::new(ops.len(), &uses)
}

fn check(spec: &GraphSpec) -> Result<(), PsError> {
    let known = |&op: &u32| match spec.ops.get(op as usize) {
        Some(op) => Ok(op),
        None => Err(PsError::NoSuchOp(op)),
    };
    known(&spec.target)?;
    spec.inference_target.as_ref().map(known).transpose()?;
    let mut is_updated = vec![false; spec.ops.len()];
    for op in &spec.ops {
        for input in &op.inputs {
            known(input)?;
        }
        if op.receives_bytes == Some(0) {
            return Err(PsError::NoBytes(op.id));
        }
        if op.receives_bytes.is_some() && !op.updates.is_empty() {
            return Err(PsError::Updates(op.id));
        }
        for recv in &op.updates {
            let twice = std::mem::replace(&mut is_updated[known(recv).map(|_| *recv as usize)?], true);
            if twice || spec.ops[*recv as usize].receives_bytes.is_none() {
                return Err(PsError::Updates(op.id));
            }
        }
    }
    Ok(())
}

fn updating(spec: &GraphSpec) -> impl Iterator<Item = u32> + '_ {
    (0..).zip(&spec.ops).filter(|(_, op)| !op.updates.is_empty()).map(|(index, _)| index)
}

/// Returns the graph in the form that [`crate::order`] uses. If there are several roots, an op that takes no time
/// follows them as the target.
fn op_dag(spec: &GraphSpec, roots: &[u32]) -> OpDag {
    let of = |op: &GraphOpSpec| Op {
        id: op.id,
        kind: if op.receives_bytes.is_some() { Kind::Recv } else { Kind::Comp },
        inputs: op.inputs.clone(),
        time_ticks: if op.receives_bytes.is_some() { 0 } else { op.time_ps },
        param_only: op.param_only,
    };
    let mut ops: Vec<Op> = spec.ops.iter().map(of).collect();
    let mut target = roots[0];
    if roots.len() > 1 {
        target = ops.len() as u32;
        let id = ops.iter().map(|op| op.id).max().unwrap_or(0).saturating_add(1);
        ops.push(Op { id, kind: Kind::Comp, inputs: roots.to_vec(), time_ticks: 0, param_only: false });
    }
    OpDag { ops, target }
}

/// Sorts `needed` topologically. Ties are in the order of the file.
fn by_file(spec: &GraphSpec, needed: &[u32]) -> Vec<u32> {
    let mut missing = vec![0_u32; spec.ops.len()];
    let mut edges: Vec<Edge> = Vec::new();
    for &op in needed {
        missing[op as usize] = spec.ops[op as usize].inputs.len() as u32;
        edges.extend(spec.ops[op as usize].inputs.iter().map(|&input| (input, op)));
    }
    let readers = Edges::new(spec.ops.len(), &edges);
    let mut ready: BinaryHeap<Reverse<u32>> =
        needed.iter().filter(|&&op| missing[op as usize] == 0).map(|&op| Reverse(op)).collect();
    let mut order = Vec::with_capacity(needed.len());
    while let Some(Reverse(op)) = ready.pop() {
        order.push(op);
        for &reader in readers.from(op) {
            missing[reader as usize] -= 1;
            if missing[reader as usize] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    order
}

/// Returns, for each op, whether `target` depends on it.
fn ancestors(spec: &GraphSpec, target: u32) -> Vec<bool> {
    let mut is_needed = vec![false; spec.ops.len()];
    let mut stack = vec![target];
    while let Some(op) = stack.pop() {
        if !std::mem::replace(&mut is_needed[op as usize], true) {
            stack.extend(&spec.ops[op as usize].inputs);
        }
    }
    is_needed
}
