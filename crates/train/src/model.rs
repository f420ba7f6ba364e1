//! Creates the DAG of an iteration from buckets and from compute, which is given as layers or as a sequence of ops.

use crate::bucket::Bucket;
use crate::caramel::{Boundaries, Boundary};
use crate::dag::{Dag, DagOp, Edge, Edges, OpId, OpKind, Program, Transfer};
use crate::spec::LayerSpec;
use gradtide_net::{Bytes, Time};

/// The compute of one worker in an iteration, as ops in sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeSteps(pub Vec<ComputeStep>);

/// An op, with the layers that it is the first to read and the layers whose gradients it completes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeStep {
    /// Op of the DAG.
    pub op: DagOp,
    /// Layers whose aggregated gradients this step is the first to read.
    pub reads: Vec<u32>,
    /// Layers whose gradients this step completes.
    pub updates: Vec<u32>,
}

impl ComputeSteps {
    /// Creates the compute of a layered model. The forward pass goes from layer 0 up, with each layer's update just
    /// before its forward pass; the backward pass goes from the last layer down.
    ///
    /// # Source
    /// Gao (2020), figs 4.1 and 4.2; docs/models/training.md.
    pub fn of_layers(layers: &[LayerSpec]) -> Self {
        let mut steps = Vec::with_capacity(3 * layers.len());
        let mut step = |layer: &LayerSpec, kind, cost_ps, reads, updates| {
            let op = DagOp { kind, cost: Time::from_ps(cost_ps), is_host: layer.is_host };
            steps.push(ComputeStep { op, reads, updates });
        };
        for (index, layer) in (0..).zip(layers) {
            step(layer, OpKind::Update(index), layer.update_ps, vec![index], vec![]);
            step(layer, OpKind::Forward(index), layer.forward_ps, vec![], vec![]);
        }
        for (index, layer) in (0..layers.len() as u32).zip(layers).rev() {
            step(layer, OpKind::Backward(index), layer.backward_ps, vec![], vec![index]);
        }
        Self(steps)
    }

    /// Returns this compute with an additional barrier op at the start, which reads all layers. The barrier is followed
    /// by all updates, then by the other steps.
    #[must_use]
    pub fn behind_barrier(&self) -> Self {
        let reads = self.0.iter().flat_map(|step| &step.reads).copied().collect();
        let unread = |step: &ComputeStep| ComputeStep { reads: Vec::new(), ..step.clone() };
        let (updates, others): (Vec<ComputeStep>, Vec<ComputeStep>) =
            self.0.iter().map(unread).partition(|step| matches!(step.op.kind, OpKind::Update(_)));
        let barrier = ComputeStep { op: DagOp::new(OpKind::Barrier, Time::ZERO), reads, updates: Vec::new() };
        Self([barrier].into_iter().chain(updates).chain(others).collect())
    }
}

/// Creates the DAG of an iteration. There is one program per worker, or one for all workers.
///
/// A bucket's transfer waits for the gradients of all its layers on all workers. In the next iteration, the first
/// reader of each of these layers waits for the transfer.
pub fn iteration_dag(programs: &[ComputeSteps], buckets: &[Bucket], layer_count: u32) -> Dag {
    let compute_count = programs.iter().map(|steps| steps.0.len() as u32).sum();
    let mut ops: Vec<DagOp> = Vec::with_capacity(compute_count as usize + buckets.len());
    // For each program and layer, the op that completes the layer's gradient and the first op that reads the layer.
    let mut touches: Vec<Vec<[Option<OpId>; 2]>> = Vec::with_capacity(programs.len());
    let mut ranges = Vec::with_capacity(programs.len());
    for ComputeSteps(steps) in programs {
        let first = ops.len() as u32;
        let mut touched = vec![[None; 2]; layer_count as usize];
        for (op, step) in (first..).zip(steps) {
            ops.push(step.op);
            step.updates.iter().for_each(|&layer| touched[layer as usize][0] = Some(op));
            step.reads.iter().for_each(|&layer| touched[layer as usize][1] = Some(op));
        }
        touches.push(touched);
        let is_before = |step: &ComputeStep| matches!(step.op.kind, OpKind::Barrier | OpKind::Update(_));
        let is_backward = |step: &ComputeStep| matches!(step.op.kind, OpKind::Backward(_)) || !step.updates.is_empty();
        let forward = steps.iter().position(|step| !is_before(step)).unwrap_or(0) as u32;
        let last_read = steps.iter().rposition(|step| !step.reads.is_empty()).unwrap_or(0) as u32;
        let backward = steps.iter().position(is_backward).unwrap_or(0) as u32;
        ranges.push(Program {
            ops: first..ops.len() as u32,
            forward: first + forward,
            backward: first + backward.max(last_read),
        });
    }
    ops.extend((0..buckets.len() as u32).map(|bucket| DagOp::new(OpKind::Transfer(bucket), Time::ZERO)));
    let (mut within, mut across): (Vec<Edge>, Vec<Edge>) = (Vec::new(), Vec::new());
    let mut ends: Vec<OpId> = Vec::new();
    for (transfer, bucket) in (compute_count..).zip(buckets) {
        let mut each = |which: usize, edge: &mut dyn FnMut(OpId)| {
            let touched = |touched: &Vec<[Option<OpId>; 2]>| {
                bucket.layers.iter().filter_map(|&layer| touched[layer as usize][which]).collect::<Vec<OpId>>()
            };
            ends.clear();
            ends.extend(touches.iter().flat_map(touched));
            ends.sort_unstable();
            ends.dedup();
            ends.iter().for_each(|&op| edge(op));
        };
        each(0, &mut |op| within.push((op, transfer)));
        each(1, &mut |op| across.push((transfer, op)));
    }
    Dag {
        compute_count,
        layer_count,
        programs: ranges,
        transfers: buckets
            .iter()
            .map(|bucket| Transfer { first_layer: bucket.first_layer(), bytes: bucket.bytes, communicator: 0 })
            .collect(),
        within: Edges::new(ops.len(), &within),
        across: Edges::new(ops.len(), &across),
        ops,
    }
}

/// Returns, for each program, the windows in which gradients can be aggregated without delaying compute, and the layers
/// of these windows. There is a window for each layer with parameters. It lasts from the end of the step that completes
/// the layer's gradient to the start of the step that reads the layer. `sizes` contains the bytes of all layers.
pub fn boundaries(programs: &[ComputeSteps], sizes: &[Bytes]) -> (Vec<Boundaries>, Vec<u32>) {
    let layer_of: Vec<u32> = (0..).zip(sizes).filter(|(_, bytes)| bytes.0 > 0).map(|(layer, _)| layer).collect();
    let of_program = |ComputeSteps(steps): &ComputeSteps| {
        let (mut reads, mut updates) = (vec![Time::ZERO; sizes.len()], vec![Time::ZERO; sizes.len()]);
        let mut now = Time::ZERO;
        for step in steps {
            step.reads.iter().for_each(|&layer| reads[layer as usize] = now);
            now += step.op.cost;
            step.updates.iter().for_each(|&layer| updates[layer as usize] = now);
        }
        let window = |&layer: &u32| {
            let layer = layer as usize;
            Boundary { bytes: sizes[layer], update: updates[layer], read: reads[layer] }
        };
        Boundaries { compute: now, windows: layer_of.iter().map(window).collect() }
    };
    (programs.iter().map(of_program).collect(), layer_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::fuse;

    #[test]
    fn program_order_is_forward_up_then_backward_down() {
        let layer =
            |parameter_bytes| LayerSpec { forward_ps: 1, backward_ps: 2, parameter_bytes, ..LayerSpec::default() };
        let layers = [layer(5), layer(0), layer(5)];
        let buckets = fuse(&[Bytes(5), Bytes(0), Bytes(5)], Bytes(5));
        let steps = ComputeSteps::of_layers(&layers);
        for steps in [steps.behind_barrier(), steps] {
            let dag = iteration_dag(&[steps], &buckets, 3);
            assert!(dag.is_executable());
            assert_eq!(dag.compute_time(), Time::from_ps(9));
            let passes: Vec<OpKind> = dag.ops[..dag.compute_count as usize]
                .iter()
                .map(|op| op.kind)
                .filter(|kind| matches!(kind, OpKind::Forward(_) | OpKind::Backward(_)))
                .collect();
            use OpKind::{Backward, Forward};
            assert_eq!(passes, [Forward(0), Forward(1), Forward(2), Backward(2), Backward(1), Backward(0)]);
        }
    }
}
