//! Builders of pipelines: schedules of two stages, solved by hand, to the picosecond.
#![allow(missing_docs)]

mod reference;
mod steps;

use gradtide_train::parallel::{Label, Step};
use reference::{Times, run};
use serde_json::{Value, json};
use steps::{build, by_bytes, end, three_layers, with};

/// Two stages with one block each: 10 ps forward, 20 ps backward. A send between them takes 1 ps.
fn two_stages(schedule: &Value, micro_batches: u32) -> Step {
    let mut spec = with(
        three_layers(),
        &[
            ("/mesh/pp", json!(2)),
            ("/units", json!([1, 1])),
            ("/stages", json!([1, 1])),
            ("/optimizer_ps", json!([5, 5])),
            ("/activation_bytes", json!(1)),
            ("/micro_batches", json!(micro_batches)),
            ("/pipeline", schedule.clone()),
        ],
    );
    spec["blocks"] = json!([{"name": "a", "kind": 0}, {"name": "b", "kind": 0}]);
    build(spec)
}

fn computes(step: &Step, times: &Times, class: usize) -> Vec<String> {
    let ops = step.dag.programs[class].ops.clone().filter(|&op| times.end[op as usize] > times.start[op as usize]);
    let name = |label: Label| step.shown(label).to_string();
    let (start, end) = (&times.start, &times.end);
    ops.map(|op| op as usize).map(|op| format!("{}-{} {}", start[op], end[op], name(step.labels[op]))).collect()
}

#[test]
fn one_forward_one_backward_on_two_stages() {
    let step = two_stages(&json!({"kind": "one_f_one_b"}), 3);
    let times = &run(&step, 1, &by_bytes)[0];
    assert_eq!(
        computes(&step, times, 0),
        [
            "0-10 a.op forward, micro-batch 0",
            "10-20 a.op forward, micro-batch 1",
            "42-62 a.op backward, micro-batch 0",
            "62-72 a.op forward, micro-batch 2",
            "72-92 a.op backward, micro-batch 1",
            "104-124 a.op backward, micro-batch 2",
            "124-129 optimizer",
        ]
    );
    assert_eq!(
        computes(&step, times, 1),
        [
            "11-21 b.op forward, micro-batch 0",
            "21-41 b.op backward, micro-batch 0",
            "41-51 b.op forward, micro-batch 1",
            "51-71 b.op backward, micro-batch 1",
            "73-83 b.op forward, micro-batch 2",
            "83-103 b.op backward, micro-batch 2",
            "103-108 optimizer",
        ]
    );
    assert_eq!(step.groups.iter().map(|group| group.classes.clone()).collect::<Vec<_>>(), [[0, 1], [1, 0]]);
}

#[test]
fn gpipe_goes_forward_with_all_before_it_goes_backward() {
    let step = two_stages(&json!({"kind": "gpipe"}), 2);
    let times = &run(&step, 1, &by_bytes)[0];
    assert_eq!(
        computes(&step, times, 0),
        [
            "0-10 a.op forward, micro-batch 0",
            "10-20 a.op forward, micro-batch 1",
            "52-72 a.op backward, micro-batch 0",
            "72-92 a.op backward, micro-batch 1",
            "92-97 optimizer",
        ]
    );
    assert_eq!(
        computes(&step, times, 1),
        [
            "11-21 b.op forward, micro-batch 0",
            "21-31 b.op forward, micro-batch 1",
            "31-51 b.op backward, micro-batch 0",
            "51-71 b.op backward, micro-batch 1",
            "71-76 optimizer",
        ]
    );
}

#[test]
fn interleaved_stages_go_through_their_chunks_in_turn() {
    let mut spec = with(
        three_layers(),
        &[
            ("/mesh/pp", json!(2)),
            ("/units", json!([1, 1, 1, 1])),
            ("/stages", json!([1, 1, 1, 1])),
            ("/optimizer_ps", json!([5, 5])),
            ("/activation_bytes", json!(1)),
            ("/micro_batches", json!(2)),
            ("/pipeline", json!({"kind": "interleaved", "chunks": 2})),
        ],
    );
    let block = |name: &str| json!({"name": name, "kind": 0});
    spec["blocks"] = json!([block("a"), block("b"), block("c"), block("d")]);
    let step = build(spec);
    let times = &run(&step, 1, &by_bytes)[0];
    // Stage 0 has the blocks a and c, stage 1 has b and d. Stage 0 starts with four forward passes, stage 1 with three.
    assert_eq!(
        computes(&step, times, 0),
        [
            "0-10 a.op forward, micro-batch 0",
            "10-20 a.op forward, micro-batch 1",
            "22-32 c.op forward, micro-batch 0",
            "32-42 c.op forward, micro-batch 1",
            "64-84 c.op backward, micro-batch 0",
            "94-114 c.op backward, micro-batch 1",
            "114-134 a.op backward, micro-batch 0",
            "136-156 a.op backward, micro-batch 1",
            "156-161 optimizer",
        ]
    );
    assert_eq!(
        computes(&step, times, 1),
        [
            "11-21 b.op forward, micro-batch 0",
            "21-31 b.op forward, micro-batch 1",
            "33-43 d.op forward, micro-batch 0",
            "43-63 d.op backward, micro-batch 0",
            "63-73 d.op forward, micro-batch 1",
            "73-93 d.op backward, micro-batch 1",
            "93-113 b.op backward, micro-batch 0",
            "115-135 b.op backward, micro-batch 1",
            "135-140 optimizer",
        ]
    );
}

#[test]
fn the_norm_holds_all_stages_together() {
    let mut spec = with(
        three_layers(),
        &[
            ("/mesh/pp", json!(2)),
            ("/stages", json!([2, 1])),
            ("/optimizer_ps", json!([5, 7])),
            ("/activation_bytes", json!(1)),
            ("/norm_bytes", json!(4)),
            ("/tied_embedding_bytes", json!(50)),
        ],
    );
    let step = build(spec.clone());
    let times = run(&step, 2, &by_bytes);
    // Forward of a and b ends at 30, c runs forward and backward from 31 to 121, and b and a run backward from 122 to
    // 182. The sum of the tied embeddings (50 bytes) ends at 232, the norm (4 bytes) at 236. The optimizers end at 241
    // and 243.
    let begins = |times: &Times| step.dag.programs.iter().map(|it| times.start[it.ops.start as usize]).collect();
    let (first, second): (Vec<u64>, Vec<u64>) = (begins(&times[0]), begins(&times[1]));
    assert_eq!((first, second), (vec![0, 0], vec![241, 243]));
    spec["norm_bytes"] = json!(0);
    let step = build(spec);
    assert_eq!(end(&run(&step, 1, &by_bytes)[0]), 232 + 7);
}
