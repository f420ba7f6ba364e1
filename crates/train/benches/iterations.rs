//! Measures iterations per second of the default engine on a job of 200 layers. The goal of the project is to simulate
//! 10,000 iterations in less than one second.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gradtide_train::spec::Spec;

const ITERATIONS: u64 = 10_000;

/// A model of 200 layers whose size grows with the index, as in deep networks. If `fusion_bytes` is 0, every layer is
/// its own transfer.
fn spec(fusion_bytes: u64, order: &str, barrier: bool) -> Spec {
    let layers: Vec<_> = (0..200_u64)
        .map(|layer| {
            serde_json::json!({
                "name": format!("layer{layer}"), "forward_ps": 1_500_000_000_u64, "backward_ps": 3_000_000_000_u64,
                "parameter_bytes": 100_000 + 4_000 * layer
            })
        })
        .collect();
    serde_json::from_value(serde_json::json!({
        "jobs": [{
            "name": "train", "layers": layers, "hosts": [0, 1, 2, 3, 4, 5, 6, 7], "iterations": ITERATIONS,
            "schedule": {"order": {"kind": order}, "fusion": {"kind": "cap", "bytes": fusion_bytes}, "barrier": barrier}
        }],
        "cluster": {
            "topology": {"kind": "star", "hosts": 8},
            "link": {"rate_bps": 2_000_000_000_u64, "delay_ps": 10_000_000}
        },
        "run": {"timeline_iterations": 2}
    }))
    .expect("a valid scenario")
}

fn iterations(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("10000 iterations of 200 layers");
    group.sample_size(10).throughput(Throughput::Elements(ITERATIONS));
    for (name, fusion_bytes, order, barrier) in [
        ("6.28 MB buckets, fifo with barrier", 6_280_000, "fifo", true),
        ("6.28 MB buckets, priority without barrier", 6_280_000, "priority", false),
        ("one bucket per layer, priority without barrier", 0, "priority", false),
        ("one bucket per layer, random without barrier", 0, "random", false),
    ] {
        let spec = spec(fusion_bytes, order, barrier);
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| gradtide_train::run(&spec, &mut |_| true).expect("a run"));
        });
    }
    group.finish();
}

criterion_group!(benches, iterations);
criterion_main!(benches);
