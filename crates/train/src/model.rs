//! Layers and buckets -> DAG.

use crate::bucket::Bucket;
use crate::caramel::{Boundaries, Window};
use crate::dag::{Dag, Edge, Edges, Op, OpKind, Transfer};
use crate::spec::LayerSpec;
use gradtide_net::{Bytes, Time};

/// One iteration of a layered model.
///
/// Program order: the barrier if there is one and every update; without a barrier, each layer's update just before
/// its forward pass; forward from layer 0 up; backward from the last layer down. A bucket's transfer waits for the
/// backward pass of all its layers. The next iteration's barrier waits for all transfers; without one, a layer's
/// update waits for its own bucket only.
///
/// # Source
/// Thesis figs 4.1 and 4.2; docs/models/pipe.md.
pub fn iteration_dag(layers: &[LayerSpec], buckets: &[Bucket], barrier: bool) -> Dag {
    let layer_count = layers.len() as u32;
    let update = |layer: u32| Op { kind: OpKind::Update(layer), cost: Time::from_ps(layers[layer as usize].update_ps) };
    let forward =
        |layer: u32| Op { kind: OpKind::Forward(layer), cost: Time::from_ps(layers[layer as usize].forward_ps) };
    let mut ops = Vec::with_capacity(3 * layers.len() + buckets.len() + 1);
    if barrier {
        ops.push(Op { kind: OpKind::Barrier, cost: Time::ZERO });
        ops.extend((0..layer_count).map(update));
        ops.extend((0..layer_count).map(forward));
    } else {
        ops.extend((0..layer_count).flat_map(|layer| [update(layer), forward(layer)]));
    }
    ops.extend(
        (0..layer_count)
            .rev()
            .map(|layer| Op { kind: OpKind::Backward(layer), cost: Time::from_ps(layers[layer as usize].backward_ps) }),
    );
    let compute_count = ops.len() as u32;
    ops.extend((0..buckets.len() as u32).map(|bucket| Op { kind: OpKind::Transfer(bucket), cost: Time::ZERO }));

    let update_op = |layer: u32| if barrier { 1 + layer } else { 2 * layer };
    let backward_op = |layer: u32| compute_count - 1 - layer;
    let (mut within, mut across): (Vec<Edge>, Vec<Edge>) = (Vec::new(), Vec::new());
    for (index, bucket) in buckets.iter().enumerate() {
        let transfer = compute_count + index as u32;
        within.extend(bucket.layers.iter().map(|&layer| (backward_op(layer), transfer)));
        if barrier {
            across.push((transfer, 0));
        } else {
            across.extend(bucket.layers.iter().map(|&layer| (transfer, update_op(layer))));
        }
    }
    Dag {
        compute_count,
        layer_count,
        transfers: buckets
            .iter()
            .map(|bucket| Transfer {
                first_layer: bucket.first_layer(),
                last_layer: bucket.last_layer(),
                bytes: bucket.bytes,
            })
            .collect(),
        within: Edges::new(ops.len(), &within),
        across: Edges::new(ops.len(), &across),
        ops,
    }
}

/// When the gradient of every layer can be aggregated without delaying compute, in the program order of
/// [`iteration_dag`]: from the end of its backward pass to the start of its update, or to the barrier. One window per
/// layer that has parameters, with the layer that it is of.
///
/// A model of ops, not layers, would have its order of computation here ([`crate::caramel::compute`]).
pub fn boundaries(layers: &[LayerSpec], barrier: bool) -> (Boundaries, Vec<u32>) {
    let dag = iteration_dag(layers, &[], barrier);
    let (mut reads, mut updates) = (vec![Time::ZERO; layers.len()], vec![Time::ZERO; layers.len()]);
    let mut now = Time::ZERO;
    for op in &dag.ops {
        match op.kind {
            OpKind::Update(layer) if !barrier => reads[layer as usize] = now,
            OpKind::Backward(layer) => updates[layer as usize] = now + op.cost,
            _ => {}
        }
        now += op.cost;
    }
    let sends = |layer: &u32| layers[*layer as usize].parameter_bytes > 0;
    let layer_of: Vec<u32> = (0..layers.len() as u32).filter(sends).collect();
    let window = |&layer: &u32| Window {
        bytes: Bytes(layers[layer as usize].parameter_bytes),
        update: updates[layer as usize],
        read: reads[layer as usize],
    };
    (Boundaries { compute: now, windows: layer_of.iter().map(window).collect() }, layer_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::fuse;

    #[test]
    fn program_order_is_forward_up_then_backward_down() {
        let layer = |bytes| LayerSpec {
            name: String::new(),
            forward_ps: 1,
            backward_ps: 2,
            update_ps: 0,
            parameter_bytes: bytes,
        };
        let layers = [layer(5), layer(0), layer(5)];
        let buckets = fuse(&[Bytes(5), Bytes(0), Bytes(5)], Bytes(5));
        for barrier in [false, true] {
            let dag = iteration_dag(&layers, &buckets, barrier);
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
