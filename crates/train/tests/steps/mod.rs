//! A step of three layers, built with changes and shown as a timeline.
#![allow(dead_code)] // Each test uses some of it.

use super::reference::{Times, run};
use gradtide_train::parallel::{GroupTransfer, Step};
use gradtide_train::spec::ParallelSpec;
use serde_json::{Value, json};

/// Three layers on one rank. Forward ops take 10, 20 and 30 ps, backward ops 20, 40 and 60 ps, and the optimizer 5 ps.
/// Each layer has 100 bytes of parameters and 100 bytes of gradients.
pub fn three_layers() -> Value {
    let kind = |forward: u64| {
        let op = json!({"name": "op", "forward_ps": forward, "backward_ps": 2 * forward});
        json!({"parameter_bytes": 100, "gradient_bytes": 100, "ops": [op]})
    };
    json!({
        "mesh": {}, "gpus_per_node": 8, "micro_batches": 1,
        "forward_prefetch": 1, "backward_prefetch": 1, "overlap_gradients": true,
        "kinds": [kind(10), kind(20), kind(30)],
        "blocks": [{"name": "a", "kind": 0}, {"name": "b", "kind": 1}, {"name": "c", "kind": 2}],
        "units": [1, 1, 1], "stages": [3], "optimizer_ps": [5], "activation_bytes": 10
    })
}

/// Returns the specification with each value of `changes` set at its path.
pub fn with(mut spec: Value, changes: &[(&str, Value)]) -> Value {
    for (path, value) in changes {
        let (parent, key) = path.rsplit_once('/').expect("a path");
        let parent = spec.pointer_mut(parent).unwrap_or_else(|| panic!("{parent} exists"));
        parent[key] = value.clone();
    }
    spec
}

pub fn build(spec: Value) -> Step {
    let spec: ParallelSpec = serde_json::from_value(spec).unwrap();
    let step = Step::new(&spec).unwrap();
    assert!(step.dag.is_executable());
    step
}

/// Returns the time of a transfer: 1 ps per byte.
pub fn by_bytes(transfer: &GroupTransfer) -> u64 {
    transfer.bytes.0
}

/// Returns the ops and transfers of a step by start time, as `start-end name`.
pub fn timeline(step: &Step, times: &Times, offset: u64) -> Vec<String> {
    let count = step.labels.len();
    let name = |op: usize| match op.checked_sub(count) {
        None => step.shown(step.labels[op]).to_string(),
        Some(index) => {
            let GroupTransfer { group, kind, label, .. } = step.transfers[index];
            let axis = step.groups[group as usize].axis.name();
            format!("{axis} {kind:?} {}", step.shown(label))
        }
    };
    let mut lines: Vec<(u64, u64, usize)> =
        (0..times.start.len()).map(|op| (times.start[op], times.end[op], op)).collect();
    lines.sort_unstable();
    let shown = |&(start, end, op): &(u64, u64, usize)| format!("{}-{} {}", start - offset, end - offset, name(op));
    lines.iter().map(shown).collect()
}

/// Checks the whole timeline of the first step. Lines omit micro-batch 0.
pub fn check(step: &Step, expected: &[&str]) {
    let times = run(step, 1, &by_bytes);
    let lines = timeline(step, &times[0], 0).into_iter().map(|line| line.replace(", micro-batch 0", ""));
    assert_eq!(lines.filter(|line| line != "0-0 begin").collect::<Vec<_>>(), expected);
}

pub fn end(times: &Times) -> u64 {
    *times.end.iter().max().unwrap()
}
