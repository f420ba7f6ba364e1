//! Traces of other tools: a written trace is read back unchanged, in pieces of any size.

use gradtide_trace::step::{self, FoundBy, Passes, Step, Steps};
use gradtide_trace::tables::{clock_offsets_ns, waterfall};
use gradtide_trace::{
    About, CollectiveType, Comm, Gap, NodeType, RankTrace, StepPart, TraceError, TraceOp, chakra, dag, kineto,
};
use proptest::prelude::*;
use std::sync::Arc;

/// Reads bytes in pieces of `size`.
fn read_chakra(bytes: &[u8], size: usize) -> Result<RankTrace, TraceError> {
    let mut reader = chakra::ChakraReader::default();
    for chunk in bytes.chunks(size) {
        reader.feed(chunk)?;
    }
    reader.finish()
}

fn read_kineto(text: &str, size: usize) -> Result<RankTrace, TraceError> {
    let mut reader = kineto::KinetoReader::default();
    for chunk in text.as_bytes().chunks(size) {
        reader.feed(chunk)?;
    }
    reader.finish()
}

fn op(id: u64, kind: NodeType, start_ns: u64, duration_ns: u64) -> TraceOp {
    let comm = kind.is_comm().then(|| {
        let collective = (kind == NodeType::Coll).then_some(CollectiveType::AllReduce);
        Box::new(Comm { collective, bytes: Some(8), group: "0".into(), ..Comm::default() })
    });
    let name = "op".into();
    let (data_deps, ctrl_deps) = ([].into(), [].into());
    TraceOp {
        id,
        name,
        kind,
        is_host: false,
        pass: StepPart::Unsaid,
        start_ns,
        duration_ns,
        data_deps,
        ctrl_deps,
        comm,
    }
}

fn trace_of(ops: Vec<TraceOp>) -> RankTrace {
    RankTrace { ops, about: About { version: "0.0.4".into(), ..About::default() }, ..RankTrace::default() }
}

prop_compose! {
    /// Ops of every kind that depend on earlier ones; times in whole microseconds, as in Chakra.
    fn any_trace()(rows in prop::collection::vec(
        (0..NodeType::ALL.len(), 0..CollectiveType::ALL.len(), 0_u64..1 << 50, 0_u64..1 << 40, any::<u32>(), any::<(u16, u8)>()),
        1..30,
    )) -> RankTrace {
        let ops = rows.iter().enumerate().map(|(index, &(kind, collective, start, duration, bytes, (deps, other)))| {
            let kind = NodeType::ALL[kind];
            let id = |index: usize| index as u64 * 3 + 1;
            let earlier = |bits: u16| (0..index).filter(|at| bits >> (at % 16) & 1 == 1).map(id).collect();
            let collective = (kind == NodeType::Coll).then_some(CollectiveType::ALL[collective]);
            let ends = (kind != NodeType::Coll).then_some((other.into(), 7));
            let group = format!("g{}", other % 3).into();
            let comm = Comm { collective, bytes: Some(u64::from(bytes) + 1), group, ends, ..Comm::default() };
            TraceOp {
                id: id(index),
                name: format!("op {index} é").into(),
                kind,
                is_host: other % 2 == 0,
                pass: StepPart::Unsaid,
                start_ns: start * 1000,
                duration_ns: duration * 1000,
                data_deps: earlier(deps),
                ctrl_deps: earlier(!deps & 0x0f0f),
                comm: kind.is_comm().then(|| Box::new(comm)),
            }
        });
        trace_of(ops.collect())
    }
}

proptest! {
    #[test]
    fn chakra_keeps_ops_times_dependencies_and_transfers(trace in any_trace(), size in 1_usize..200) {
        for version in ["0.0.4", "1.0.0"] {
            let read = read_chakra(&chakra::write(&trace, version), size).unwrap();
            prop_assert_eq!(&read.about.version, version);
            prop_assert_eq!(&read.ops, &trace.ops);
        }
    }

    #[test]
    fn a_dag_is_the_trace_again(trace in any_trace()) {
        let text = serde_json::to_string(&dag::write(&trace, false)).unwrap();
        let read = dag::read(&serde_json::from_str(&text).unwrap()).unwrap();
        prop_assert_eq!(&read.ops, &trace.ops);
        prop_assert_eq!(chakra::write(&read, "0.0.4"), chakra::write(&trace, "0.0.4"));
    }

    #[test]
    fn a_chakra_file_that_is_cut_off_is_never_read_as_a_whole_one(trace in any_trace(), share in 0.0..1.0_f64) {
        let bytes = chakra::write(&trace, "0.0.4");
        let cut = (bytes.len() as f64 * share) as usize;
        match read_chakra(&bytes[..cut], 64) {
            // A file cut between two nodes is a complete file of fewer nodes: the format has no end marker.
            Ok(read) => prop_assert!(read.ops.len() < trace.ops.len()),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn bytes_of_anything_end_in_an_error_or_a_trace(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read_chakra(&bytes, 7);
        let mut reader = kineto::KinetoReader::default();
        let _ = bytes.chunks(7).try_for_each(|chunk| reader.feed(chunk)).map(|()| reader.finish());
    }

    #[test]
    fn the_parts_of_a_waterfall_sum_to_its_span(trace in any_trace()) {
        let parts = waterfall(&trace);
        prop_assert_eq!(parts.compute_ns + parts.exposed_ns + parts.idle_ns, parts.span_ns);
        prop_assert!(parts.overlapped_ns <= parts.compute_ns);
    }

    #[test]
    fn a_step_that_is_the_whole_trace_has_its_waterfall(trace in any_trace(), pixels in 1_u64..100) {
        let parts = waterfall(&trace);
        let ranks = [(4, Arc::new(trace))];
        let found = Steps { found_by: FoundBy::Whole, steps: vec![whole(&ranks)], partial: 0, untimed: 0 };
        let cut = step::cut(&ranks, &found.steps[0], pixels);
        let one = &cut.ranks[0];
        prop_assert_eq!(
            (one.span_ns, one.compute_ns, one.overlapped_ns, one.exposed_ns, one.idle_ns),
            (parts.span_ns, parts.compute_ns, parts.overlapped_ns, parts.exposed_ns, parts.idle_ns)
        );
        let Passes { forward_ns, backward_ns, update_ns, unsaid_ns } = one.passes;
        prop_assert_eq!(forward_ns + backward_ns + update_ns + unsaid_ns, parts.compute_ns);
        let seen = || cut.transfers.iter().flat_map(|transfer| &transfer.seen);
        prop_assert_eq!(seen().map(|seen| seen.exposed_ns).sum::<u64>(), parts.exposed_ns);
        prop_assert!(seen().all(|seen| seen.ready_ns <= seen.start_ns && seen.exposed_ns <= seen.duration_ns));
        // Intervals that were not merged are more than a pixel apart, so there are at most as many gaps as pixels.
        let most = 2 * pixels as usize + 2;
        prop_assert!(one.waiting.len() <= most && one.computing.len() <= 4 * most);
    }

    #[test]
    fn pieces_of_any_size_give_the_same_kineto_trace(size in 1_usize..400) {
        prop_assert_eq!(read_kineto(NCCL, size), read_kineto(NCCL, NCCL.len()));
    }
}

fn whole(ranks: &[(u32, Arc<RankTrace>)]) -> Step {
    let ends = |trace: &RankTrace| {
        let start = trace.ops.iter().map(|op| op.start_ns).min().unwrap();
        (start, trace.ops.iter().map(TraceOp::end_ns).max().unwrap())
    };
    Step { number: 0, windows_ns: ranks.iter().map(|(_, trace)| ends(trace)).collect() }
}

/// Two streams of a GPU: the all-reduce is launched after the first kernel, and overlaps with the second.
const NCCL: &str = r#" {"schemaVersion": 1, "x": {"a": ["}\\\"", {}]}, "y": -1.5e3,
 "distributedInfo": {"rank": 3, "world_size": 8, "pg_config": [
   {"pg_name": "0", "ranks": [0, 1, 2, 3, 4, 5, 6, 7]}, {"pg_name": "dp", "ranks": [1, 3]}]},
 "traceEvents": [
 {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "py\u0074hon ]}"}},
 {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 100.001, "dur": 5, "args": {"External id": 1}},
 {"ph": "X", "cat": "cpu_op", "name": "aten::inner", "pid": 1, "tid": 1, "ts": 101, "dur": 1, "args": {"External id": 2}},
 {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "pid": 1, "tid": 1, "ts": 107, "dur": 3, "args": {"External id": "3"}},
 {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1, "ts": 108, "dur": 1,
  "args": {"External id": 4, "Collective name": "allreduce", "In msg nelems": 500, "dtype": "BFloat16"}},
 {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 110, "dur": 10, "args": {"External id": 2, "correlation": 11}},
 {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "pid": 0, "tid": 20, "ts": 121, "dur": 30,
  "args": {"External id": 4, "correlation": 12, "Collective name": "allreduce", "In msg nelems": 500, "Out msg nelems": 500,
  "dtype": "BFloat16", "Process Group Name": "dp", "Group size": 2}},
 {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 125.5, "dur": 10, "args": {"correlation": 13}}
 ], "baseTimeNanoseconds": 1000000, "traceName": "a"}
"#;

#[test]
fn an_nccl_kernel_has_its_bytes_its_group_and_what_its_launch_came_after() {
    let trace = read_kineto(NCCL, 64).unwrap();
    let about = &trace.about;
    assert_eq!((about.rank, about.world_size, about.version.as_str()), (Some(3), Some(8), "1"));
    let names: Vec<&str> = trace.ops.iter().map(|op| &*op.name).collect();
    // The inner operator is part of the outer one; the call is the kernel that it launched.
    let kernel = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)";
    assert_eq!(names, ["aten::mm", "c10d::allreduce_", "gemm", kernel, "gemm"]);
    let [mm, _, first, all_reduce, second] = &trace.ops[..] else { panic!() };
    assert_eq!((mm.start_ns, mm.duration_ns), (1_100_001, 5_000));
    let comm = all_reduce.comm.as_ref().unwrap();
    assert_eq!((comm.bytes, &*comm.group, comm.ranks.as_deref()), (Some(1000), "dp", Some(&[1, 3][..])));
    assert!(first.ctrl_deps.is_empty()); // launched inside the first operator, with nothing before it
    assert_eq!(all_reduce.ctrl_deps[..], [mm.id, first.id]);
    assert_eq!(second.ctrl_deps[..], [first.id]);
    // Device: 10 us of compute, 1 us idle; then 4.5 us of exposed, 10 us of overlapped, 15.5 us of exposed transfer.
    let parts = waterfall(&trace);
    assert_eq!((parts.compute_ns, parts.overlapped_ns, parts.exposed_ns), (20_000, 10_000, 20_000));
    assert_eq!(parts.idle_ns, 9_999 + 1_000);
}

#[test]
fn what_is_waited_for_has_ended_before() {
    let trace = read_kineto(NCCL, 1000).unwrap();
    for op in &trace.ops {
        for dep in &op.ctrl_deps {
            let dep = &trace.ops[*dep as usize];
            assert!(dep.end_ns() <= op.start_ns, "{} waits for {}", op.name, dep.name);
        }
    }
}

#[test]
fn every_cut_of_a_kineto_file_is_refused() {
    let end = NCCL.trim_end().len();
    for cut in 0..end {
        let error = read_kineto(&NCCL[..cut], 50).expect_err("a part is no trace");
        match error {
            TraceError::Empty => assert!(NCCL[..cut].trim().is_empty()),
            TraceError::NotThis { .. } => assert!(!NCCL[..cut].contains("traceEvents\": [")),
            TraceError::Truncated { at, .. } => assert_eq!(at, cut as u64),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn what_is_no_trace_says_what_it_is() {
    let said = |text: &str| read_kineto(text, 10).unwrap_err().to_string();
    assert_eq!(said(""), "the file is empty");
    assert_eq!(said("\x7fELF"), "it is no Kineto trace: an unexpected '\\u{7f}', at byte 0");
    assert_eq!(said(r#"{"a": 1}"#), "it is no Kineto trace: no list `traceEvents` in it, at byte 8");
    assert!(said(r#"{"traceEvents": []}"#).contains("record with ProfilerActivity.CPU"));
    let bad = r#"{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1}]}"#;
    assert!(said(bad).starts_with("event 0, at byte 17: `ts` of \"k\" is \"soon\""), "{}", said(bad));
    assert_eq!(read_chakra(b"", 1).unwrap_err(), TraceError::Empty);
    // A file of zeros: empty metadata, and then a node without a type.
    let zeros = read_chakra(&[0; 100], 10).unwrap_err().to_string();
    assert_eq!(zeros, "it is no Chakra trace: no type of node has the number 0, at byte 1");
    let same = chakra::write(&trace_of(vec![op(1, NodeType::Comp, 0, 1000), op(1, NodeType::Comp, 0, 1000)]), "1.0.0");
    assert_eq!(read_chakra(&same, 9), Err(TraceError::SameId(1)));
}

#[test]
fn metadata_without_a_version_and_dependencies_on_nothing_are_read() {
    let mut waiting = op(5, NodeType::Comp, 0, 1000);
    waiting.data_deps = [4, 5, 6].into();
    let written = chakra::write(&trace_of(vec![waiting]), "0.0.4");
    // Before version 0.0.4, field 1 of the metadata contained attributes: here one named "a".
    let mut old = vec![5, 0x0a, 3, 0x0a, 1, b'a'];
    old.extend(&written[8..]);
    let trace = read_chakra(&old, 3).unwrap();
    assert_eq!((trace.about.version.as_str(), trace.gaps.count(Gap::Dependency)), ("", 2));
    assert_eq!(trace.ops[0].data_deps[..], [5]);
}

#[test]
fn a_cut_dag_has_transfers_that_start_without_waiting() {
    let mut coll = op(2, NodeType::Coll, 10_000, 1000);
    coll.ctrl_deps = [1].into();
    let trace = trace_of(vec![op(1, NodeType::Comp, 0, 1000), coll]);
    let json = |cut| serde_json::to_value(dag::write(&trace, cut)).unwrap();
    assert_eq!(json(false)["ops"][1]["inputs"], serde_json::json!([1]));
    assert_eq!(json(true)["ops"][1]["inputs"], serde_json::json!([]));
    assert_eq!(
        (json(true)["target"].as_u64(), json(true)["ops"][2]["inputs"].clone()),
        (Some(3), serde_json::json!([1, 2]))
    );
}

#[test]
fn a_clock_is_ahead_by_what_most_shared_ends_say() {
    let ends = |offset: u64, noise: [u64; 3]| {
        let ops = (0..3).map(|i| op(i, NodeType::Coll, 1_000_000 * i + offset, 500 + noise[i as usize])).collect();
        Arc::new(trace_of(ops))
    };
    let alone = Arc::new(trace_of(vec![op(0, NodeType::Comp, 0, 1)]));
    let ranks =
        [(0, ends(7_000_000, [0, 0, 0])), (1, ends(9_000_000, [40, 0, 0])), (2, ends(0, [0, 0, 90])), (3, alone)];
    assert_eq!(clock_offsets_ns(&ranks), [Some(0), Some(2_000_000), Some(-7_000_000), None]);
}

/// A step of 100 us from `start_us`: a forward pass until 20 us, a backward pass until 60 us, all-reduces of two equal
/// buckets, the second of which is exposed, and the update.
fn step_events(number: u64, start_us: u64) -> Vec<String> {
    let event = |category: &str, name: &str, thread: &str, start: u64, duration: u64| {
        format!(
            r#"{{"ph":"X","cat":"{category}","name":"{name}","pid":1,"tid":"{thread}","ts":{},"dur":{duration},
            "args":{{"Input Dims":[[100]],"Input type":["float"]}}}}"#,
            start_us + start
        )
    };
    vec![
        event("user_annotation", &format!("ProfilerStep#{number}"), "main", 0, 100),
        event("cpu_op", "aten::mm", "main", 0, 20),
        event("cpu_op", "autograd::engine::evaluate_function: A", "main", 20, 20),
        event("user_annotation", "gloo:all_reduce", "comm", 40, 10),
        event("cpu_op", "autograd::engine::evaluate_function: B", "main", 40, 20),
        event("user_annotation", "gloo:all_reduce", "comm", 60, 25),
        event("user_annotation", "Optimizer.step#SGD.step", "main", 84, 10),
        event("cpu_op", "aten::add_", "main", 85, 8),
    ]
}

fn steps_of(count: u64, without: &str) -> [(u32, Arc<RankTrace>); 1] {
    let events: Vec<String> = (0..count).flat_map(|i| step_events(i + 7, i * 100)).collect();
    let kept: Vec<String> = events.into_iter().filter(|event| without.is_empty() || !event.contains(without)).collect();
    let text = format!(r#"{{"traceEvents": [{}], "baseTimeNanoseconds": 5}}"#, kept.join(","));
    [(0, Arc::new(read_kineto(&text, 100).unwrap()))]
}

#[test]
fn steps_are_where_the_profiler_was_told_of_them() {
    let ranks = steps_of(3, "");
    let found = step::steps(&ranks);
    assert_eq!(found.found_by, FoundBy::Marks);
    let windows: Vec<_> = found.steps.iter().map(|step| (step.number, step.windows_ns[0])).collect();
    assert_eq!(windows, [(7, (5, 100_005)), (8, (100_005, 200_005)), (9, (200_005, 300_005))]);
    let cut = step::cut(&ranks, &found.steps[1], 1000);
    let one = &cut.ranks[0];
    let passes = Passes { forward_ns: 20_000, backward_ns: 40_000, update_ns: 8_000, unsaid_ns: 0 };
    assert_eq!((one.passes, one.backward_ns), (passes, Some(20_000)));
    assert_eq!((one.compute_ns, one.overlapped_ns, one.exposed_ns, one.idle_ns), (68_000, 10_000, 25_000, 7_000));
    assert_eq!(one.waiting, [(60_000, 85_000)]);
    let seen: Vec<_> =
        cut.transfers.iter().map(|one| (one.bytes, one.seen[0].start_ns, one.seen[0].exposed_ns)).collect();
    assert_eq!(seen, [(Some(400), 40_000, 0), (Some(400), 60_000, 25_000)]);
    assert_eq!(cut.transfers[1].seen[0].computed.backward_ns, 40_000);
}

#[test]
fn steps_without_marks_are_what_repeats_with_a_forward_pass() {
    let found = step::steps(&steps_of(3, "ProfilerStep"));
    assert_eq!(found.found_by, FoundBy::Transfers);
    // A window extends from the end of the last transfer of one step to that of the next step.
    let windows: Vec<_> = found.steps.iter().map(|step| step.windows_ns[0]).collect();
    assert_eq!(windows, [(5, 85_005), (85_005, 185_005), (185_005, 285_005)]);
    // Two equal buckets are not two steps.
    let one = step::steps(&steps_of(1, "ProfilerStep"));
    assert_eq!((one.found_by, one.steps.len()), (FoundBy::Whole, 1));
}

#[test]
fn kernels_are_of_the_pass_that_launches_them_and_of_the_device_s_step() {
    let event = |category: &str, name: &str, thread: u64, start: u64, duration: u64, args: &str| {
        format!(
            r#"{{"ph":"X","cat":"{category}","name":"{name}","pid":{},"tid":{thread},"ts":{start},"dur":{duration},"args":{{{args}}}}}"#,
            u8::from(thread < 5)
        )
    };
    // The host finishes its part of a step before the device begins it.
    let events = [
        event("user_annotation", "ProfilerStep#4", 1, 0, 30, ""),
        event("cpu_op", "aten::mm", 1, 1, 5, r#""External id":1"#),
        event("cpu_op", "autograd::engine::evaluate_function: A", 2, 8, 5, r#""External id":2"#),
        event("user_annotation", "Optimizer.step#Adam.step", 1, 20, 8, ""),
        event("cpu_op", "aten::add_", 1, 21, 5, r#""External id":3"#),
        event("gpu_user_annotation", "ProfilerStep#4", 7, 50, 60, ""),
        event("kernel", "gemm", 7, 50, 20, r#""External id":1,"correlation":1"#),
        event("kernel", "gemm", 7, 70, 20, r#""External id":2,"correlation":2"#),
        event("kernel", "add", 7, 95, 15, r#""External id":3,"correlation":3"#),
    ];
    let ranks = [(0, Arc::new(read_kineto(&format!(r#"{{"traceEvents": [{}]}}"#, events.join(",")), 77).unwrap()))];
    let found = step::steps(&ranks);
    assert_eq!((found.steps[0].number, found.steps[0].windows_ns[0]), (4, (50_000, 110_000)));
    let one = &step::cut(&ranks, &found.steps[0], 100).ranks[0];
    let passes = Passes { forward_ns: 20_000, backward_ns: 20_000, update_ns: 15_000, unsaid_ns: 0 };
    assert_eq!((one.passes, one.idle_ns), (passes, 5_000));
    // Without a mark on the device, the device's step is the work that the host's step launched.
    let events: Vec<_> = events.into_iter().filter(|event| !event.contains("gpu_user_annotation")).collect();
    let ranks = [(0, Arc::new(read_kineto(&format!(r#"{{"traceEvents": [{}]}}"#, events.join(",")), 77).unwrap()))];
    assert_eq!(step::steps(&ranks), found);
}
