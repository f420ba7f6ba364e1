//! Random steps, written as each version of each profiler writes them and read back: windows, compute, exposed
//! communication and bytes must equal those of the step.

use gradtide_trace::step::{self, FoundBy};
use gradtide_trace::{CollectiveType, Gap, NodeType, RankTrace, kineto};
use proptest::prelude::*;
use std::fmt::Write;
use std::sync::Arc;

/// A step, with durations in us: a forward pass, two parts of a backward pass, two all-reduces, an update, and idle
/// time of the host.
#[derive(Clone, Copy, Debug)]
struct Drawn {
    forward: u64,
    backward: [u64; 2],
    /// Durations of the all-reduces: the first overlaps with the second part of the backward pass, the second follows
    /// both parts.
    reduces: [u64; 2],
    elements: [u64; 2],
    update: u64,
    idle: u64,
    steps: u64,
    /// Difference between the correlation id of a launch and the external id of its operator, so that a correlation id
    /// may equal the external id of another operator.
    shift: u64,
}

impl Drawn {
    /// Returns the start of the second all-reduce, relative to the first kernel of the step.
    fn second_us(&self) -> u64 {
        self.forward + self.backward[0] + self.backward[1].max(self.reduces[0])
    }

    fn period_us(&self) -> u64 {
        self.second_us() + self.reduces[1] + self.update + self.idle
    }

    fn compute_us(&self) -> u64 {
        self.forward + self.backward[0] + self.backward[1] + self.update
    }

    fn exposed_us(&self) -> u64 {
        self.reduces[0].saturating_sub(self.backward[1]) + self.reduces[1]
    }
}

/// Meaning of a kernel's `External id`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum External {
    Operator,
    Correlation,
    Absent,
}

/// Position of the bytes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    OnKernel,
    OnRecord,
    OnCall,
    /// Together with the kind: `nccl:all_reduce`.
    OnAnnotation,
    Nowhere,
}

/// How much of a step's device work the device's mark covers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Marks {
    All,
    Little,
    Absent,
}

struct Spelling {
    what: &'static str,
    operator: &'static str,
    kernel: &'static str,
    runtime: &'static str,
    reduce: &'static str,
    external: External,
    said: Said,
    marks: Marks,
    is_list: bool,
}

const fn spelling(what: &'static str, reduce: &'static str, external: External, said: Said, marks: Marks) -> Spelling {
    let (operator, kernel, runtime) = ("cpu_op", "kernel", "cuda_runtime");
    Spelling { what, operator, kernel, runtime, reduce, external, said, marks, is_list: false }
}

const SPELLINGS: &[Spelling] = &[
    spelling("2.4", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", External::Operator, Said::OnKernel, Marks::All),
    spelling("2.4, no arguments", "ncclDevKernel_Generic(x)", External::Operator, Said::OnRecord, Marks::All),
    spelling("2.0", "ncclKernel_AllReduce_RING_LL_Sum_float(x)", External::Correlation, Said::OnCall, Marks::Absent),
    spelling(
        "1.12",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)",
        External::Correlation,
        Said::OnAnnotation,
        Marks::Absent,
    ),
    spelling(
        "2.0, record",
        "ncclKernel_AllReduce_TREE_LL_Sum_half(x)",
        External::Correlation,
        Said::OnRecord,
        Marks::All,
    ),
    spelling("graph", "ncclSymkDevKernel_AllReduce_AGxLL_R_sum(x)", External::Absent, Said::OnKernel, Marks::All),
    spelling("ROCm", "ncclDevKernel_Generic_4(x)", External::Operator, Said::OnRecord, Marks::Little),
    spelling("symmetric memory", "two_shot_all_reduce_kernel_inplace", External::Operator, Said::Nowhere, Marks::All),
    spelling(
        "vLLM",
        "void vllm::cross_device_reduce_2stage<half, 8>(x)",
        External::Operator,
        Said::Nowhere,
        Marks::All,
    ),
    spelling("DeepEP", "void deep_ep::intranode::combine<bf16, 8>(x)", External::Operator, Said::Nowhere, Marks::All),
    Spelling {
        operator: "Operator",
        kernel: "Kernel",
        runtime: "Runtime",
        ..spelling("1.8", "ncclAllReduceRingLLKernel_sum_f32(x)", External::Operator, Said::OnCall, Marks::Absent)
    },
    Spelling {
        runtime: "xpu_runtime",
        ..spelling("XPU", "oneccl_reduce_base<float, 2>", External::Operator, Said::OnRecord, Marks::Absent)
    },
    Spelling {
        kernel: "hpu_op",
        ..spelling("Habana", "NIC_all_reduce", External::Operator, Said::OnKernel, Marks::All)
    },
    Spelling {
        kernel: "Ascend Hardware",
        is_list: true,
        ..spelling("Ascend", "hcom_allReduce__123_0_1", External::Operator, Said::OnRecord, Marks::All)
    },
];

/// A kernel or copy on a device: name, stream, start and duration.
type Kernel<'a> = (&'a str, u64, u64, u64);

/// Writer of events, numbered in their order.
struct Writer<'a> {
    spelling: &'a Spelling,
    drawn: Drawn,
    events: Vec<String>,
    number: u64,
}

impl Writer<'_> {
    fn event(&mut self, category: &str, name: &str, thread: u64, start_us: u64, duration_us: u64, args: &str) {
        let pid = u64::from(thread < 5) * 99;
        self.events.push(format!(
            r#"{{"ph":"X","cat":"{category}","name":"{name}","pid":{pid},"tid":{thread},"ts":{start_us},"dur":{duration_us},"args":{{{args}}}}}"#
        ));
    }

    /// Writes an operator at `at_us`, its launch call, and the launched kernel.
    fn launch(&mut self, name: &str, at_us: u64, (kernel, stream, start_us, duration_us): Kernel, reduce: Option<u64>) {
        self.number += 1;
        let (number, correlation) = (self.number, self.number + self.drawn.shift);
        let Spelling { operator, runtime, said, external, .. } = *self.spelling;
        let nccl = |elements| {
            format!(
                r#","Collective name":"allreduce","In msg nelems":{elements},"dtype":"Float","Process Group Name":"0","Group size":2"#
            )
        };
        let args_of = |place: Said| reduce.filter(|_| place == said).map_or(String::new(), nccl);
        let dims = |place: Said| {
            reduce.filter(|_| place == said).map_or(String::new(), |elements| {
                format!(r#","Input Dims":[[[{elements}]],[],[]],"Input type":["TensorList","",""]"#)
            })
        };
        // A list of tensors without shapes gives no bytes.
        let list = reduce
            .filter(|_| said != Said::OnCall)
            .map_or("", |_| r#","Input Dims":[[],[]],"Input type":["TensorList",""]"#);
        let args = format!(r#""External id":{number}{}{list}"#, dims(Said::OnCall));
        self.event(operator, name, 2, at_us, 8, &args);
        if reduce.is_some() && said != Said::Nowhere {
            let record = format!(r#""External id":{number}{}"#, args_of(Said::OnRecord));
            self.event(operator, "record_param_comms", 2, at_us + 1, 6, &record);
        }
        if reduce.is_some() && said == Said::OnAnnotation {
            let args = format!(r#""x":0{}"#, dims(Said::OnAnnotation));
            self.event("user_annotation", "nccl:all_reduce", 2, at_us + 2, 4, &args);
        }
        self.event(
            runtime,
            "launch",
            2,
            at_us + 2,
            2,
            &format!(r#""External id":{correlation},"correlation":{correlation}"#),
        );
        let external = match external {
            External::Operator => format!(r#""External id":{number},"#),
            External::Correlation => format!(r#""External id":{correlation},"#),
            External::Absent => String::new(),
        };
        let args = format!(r#"{external}"correlation":{correlation}{}"#, args_of(Said::OnKernel));
        self.event(self.spelling.kernel, kernel, stream, start_us, duration_us, &args);
    }

    fn step(&mut self, number: u64, start_us: u64) {
        let Drawn { forward, backward, reduces, elements, update, .. } = self.drawn;
        let Spelling { operator, reduce, said, marks, .. } = *self.spelling;
        let (host_us, device_us) = (start_us, start_us + 100);
        let name = format!("ProfilerStep#{number}");
        let of_host = if operator == "cpu_op" { "user_annotation" } else { operator };
        self.event(of_host, &name, 1, host_us, self.drawn.period_us() - 1, "");
        let call = match said {
            Said::Nowhere => "symm_mem::call",
            _ => "c10d::allreduce_",
        };
        let node = "autograd::engine::evaluate_function: A";
        let second_us = device_us + forward + backward[0];
        self.launch("aten::mm", host_us + 2, ("gemm", 7, device_us, forward), None);
        self.launch(node, host_us + 12, ("gemm", 7, device_us + forward, backward[0]), None);
        self.launch(call, host_us + 22, (reduce, 20, second_us, reduces[0]), Some(elements[0]));
        self.launch(node, host_us + 32, ("gemm", 7, second_us, backward[1]), None);
        let last_us = device_us + self.drawn.second_us();
        self.launch(call, host_us + 42, (reduce, 20, last_us, reduces[1]), Some(elements[1]));
        self.launch("aten::add_", host_us + 52, ("adam", 7, last_us + reduces[1], update), None);
        let work_us = last_us + reduces[1] + update - device_us;
        match marks {
            Marks::All => self.event("gpu_user_annotation", &name, 7, device_us, work_us, ""),
            Marks::Little => self.event("gpu_user_annotation", &name, 7, device_us, work_us / 20, ""),
            Marks::Absent => {}
        }
    }
}

fn read(text: &str, size: usize) -> RankTrace {
    let mut reader = kineto::KinetoReader::default();
    for chunk in text.as_bytes().chunks(size) {
        reader.feed(chunk).unwrap();
    }
    reader.finish().unwrap()
}

fn written(spelling: &Spelling, drawn: Drawn) -> String {
    let mut writer = Writer { spelling, drawn, events: Vec::new(), number: 0 };
    for number in 0..drawn.steps {
        writer.step(number + 3, 1_000_000 + number * drawn.period_us());
    }
    let events = writer.events.join(",\n");
    if spelling.is_list {
        return format!("[{events}]");
    }
    let groups = r#""pg_config":[{"pg_name":"0","ranks":[0,1]}]"#;
    format!(r#"{{"distributedInfo":{{"backend":"nccl","rank":"0","world_size":2,{groups}}},"traceEvents":[{events}]}}"#)
}

prop_compose! {
    fn any_step()(
        (forward, backward, update) in (100_u64..5000, [100_u64..5000, 100_u64..5000], 100_u64..2000),
        (reduces, elements) in ([50_u64..5000, 50_u64..5000], [1_u64..10_000_000, 1_u64..10_000_000]),
        (idle, steps, shift) in (100_u64..50_000, 1_u64..5, 0_u64..30),
    ) -> Drawn {
        Drawn { forward, backward, reduces, elements, update, idle, steps, shift }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_step_is_read_alike_from_the_files_of_every_version(drawn in any_step(), size in 50_usize..5000) {
        for spelling in SPELLINGS {
            let what = spelling.what;
            let trace = read(&written(spelling, drawn), size);
            let sizes_unknown = trace.gaps.count(Gap::Size) + trace.gaps.count(Gap::UnknownTransfer);
            prop_assert_eq!(sizes_unknown, if spelling.said == Said::Nowhere { 2 * drawn.steps } else { 0 }, "{}", what);
            prop_assert_eq!(trace.gaps.count(Gap::UnmatchedCall), 0, "{}", what);
            let ranks = [(0, Arc::new(trace))];
            let found = step::steps(&ranks);
            prop_assert_eq!(found.found_by, FoundBy::Marks, "{}", what);
            // The last step is cut off, and counts only if there is no other step.
            prop_assert_eq!(found.steps.len() as u64, (drawn.steps - 1).max(1), "{}", what);
            for (number, one) in (3..).zip(&found.steps) {
                prop_assert_eq!(one.number, number);
                let cut = step::cut(&ranks, one, 10);
                let rank = &cut.ranks[0];
                let is_only = drawn.steps == 1;
                let span_us = drawn.period_us() - if is_only { drawn.idle } else { 0 };
                let parts = (rank.span_ns / 1000, rank.compute_ns / 1000, rank.exposed_ns / 1000);
                prop_assert_eq!(parts, (span_us, drawn.compute_us(), drawn.exposed_us()), "{}", what);
                let sent: Vec<Option<u64>> = cut.transfers.iter().map(|one| one.bytes).collect();
                let bytes = drawn.elements.map(|count| (spelling.said != Said::Nowhere).then_some(4 * count));
                prop_assert_eq!(sent, bytes, "{}", what);
            }
        }
    }
}

const SIMPLE: Drawn = Drawn {
    forward: 2000,
    backward: [3000, 3000],
    reduces: [3000, 3000],
    elements: [1_000_000, 10_000_000],
    update: 1000,
    idle: 900,
    steps: 3,
    shift: 40,
};

fn events_of(text: &str) -> (String, Vec<String>) {
    let (head, events) = text.split_once(r#""traceEvents":["#).unwrap();
    let events = events.strip_suffix("]}").unwrap();
    (format!(r#"{head}"traceEvents":["#), events.split(",\n").map(str::to_owned).collect())
}

fn joined(head: &str, events: &[String]) -> String {
    let mut text = head.to_owned();
    write!(text, "{}]}}", events.join(",\n")).unwrap();
    text
}

#[test]
fn a_call_before_and_a_kernel_after_the_recording_shift_no_bytes() {
    let (head, mut events) = events_of(&written(&SPELLINGS[2], SIMPLE));
    // Removes the first call with its two events, and the last communication kernel.
    let first = events.iter().position(|event| event.contains("c10d::allreduce_")).unwrap();
    events.drain(first..first + 3);
    let last = events.iter().rposition(|event| event.contains("ncclKernel")).unwrap();
    events.remove(last);
    let trace = read(&joined(&head, &events), 100);
    assert_eq!((trace.gaps.count(Gap::Size), trace.gaps.count(Gap::UnmatchedCall)), (1, 1));
    let ranks = [(0, Arc::new(trace))];
    let found = step::steps(&ranks);
    let sent: Vec<Option<u64>> = step::cut(&ranks, &found.steps[1], 10).transfers.iter().map(|one| one.bytes).collect();
    assert_eq!(sent, [Some(4_000_000), Some(40_000_000)]);
}

#[test]
fn a_call_that_only_enqueues_is_no_transfer() {
    for spelling in &SPELLINGS[..5] {
        let (head, events) = events_of(&written(spelling, SIMPLE));
        let of_host: Vec<String> = events.into_iter().filter(|event| !event.contains(r#""pid":0"#)).collect();
        let trace = read(&joined(&head, &of_host), 100);
        assert!(trace.ops.iter().all(|op| op.comm.is_none()), "{}", spelling.what);
        assert_eq!(trace.gaps.count(Gap::UnmatchedCall), 6, "{}", spelling.what);
    }
}

#[test]
fn a_group_of_one_sends_nothing() {
    let text = written(&SPELLINGS[0], SIMPLE);
    let alone =
        text.replace(r#""world_size":2"#, r#""world_size":1"#).replace(r#""Group size":2"#, r#""Group size":1"#);
    let trace = read(&alone, 100);
    assert!(trace.ops.iter().all(|op| op.comm.is_none()));
    assert_eq!(trace.gaps.count(Gap::UnmatchedCall), 0);
}

#[test]
fn an_all_to_all_of_sends_and_receives_counts_once() {
    for spelling in [&SPELLINGS[0], &SPELLINGS[2]] {
        let text = written(spelling, SIMPLE)
            .replace("allreduce_", "alltoall_base_")
            .replace("\"allreduce\"", "\"all_to_all\"");
        let text = text.replace("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_SendRecv");
        let trace = read(&text.replace("ncclKernel_AllReduce_RING_LL_Sum_float", "ncclKernel_SendRecv_RING"), 100);
        let kinds: Vec<_> = trace.ops.iter().filter_map(|op| op.comm.as_ref()).map(|comm| comm.collective).collect();
        assert_eq!(kinds, [Some(CollectiveType::AllToAll); 6], "{}", spelling.what);
    }
}

#[test]
fn a_call_says_what_is_done_and_a_kernel_s_name_only_how() {
    // NCCL's barrier is an all-reduce of one element.
    let text = written(&SPELLINGS[2], SIMPLE).replace("c10d::allreduce_", "c10d::barrier");
    let kinds = |trace: &RankTrace| -> Vec<_> {
        trace.ops.iter().filter_map(|op| op.comm.as_ref()).map(|comm| (comm.collective, comm.bytes)).collect()
    };
    assert_eq!(kinds(&read(&text, 100)), [(Some(CollectiveType::Barrier), Some(0)); 6]);
    // A kernel that sends or receives, without a call, so that its operation is unknown.
    let (head, mut events) = events_of(&written(&SPELLINGS[0], SIMPLE));
    let lone = r#"{"ph":"X","cat":"kernel","name":"ncclDevKernel_SendRecv(x)","pid":0,"tid":20,"ts":900000,"dur":9,"args":{}}"#;
    events.insert(0, lone.to_owned());
    let trace = read(&joined(&head, &events), 100);
    assert_eq!((kinds(&trace)[0], trace.gaps.count(Gap::UnknownTransfer)), ((None, None), 1));
}

#[test]
fn a_batch_of_messages_is_one_kernel_and_its_calls_were_seen_to_run() {
    // `isend` and `irecv` enqueue messages, and the end of the batch launches one kernel for all of them.
    let event = |category: &str, name: &str, thread: u64, start: u64, args: &str| {
        format!(
            r#"{{"ph":"X","cat":"{category}","name":"{name}","pid":{},"tid":{thread},"ts":{start},"dur":5,"args":{{{args}}}}}"#,
            thread / 9
        )
    };
    let message = |what: &str, start| {
        let said = format!(
            r#""Collective name":"{what}","In msg nelems":10,"dtype":"Float","Group size":4,"Dst Rank":1,"Src Rank":2"#
        );
        event("cpu_op", "record_param_comms", 1, start, &said)
    };
    let batch = |messages: &[&str]| {
        let mut events: Vec<String> = (10..).step_by(10).zip(messages).map(|(at, what)| message(what, at)).collect();
        events.push(event("cuda_runtime", "cudaLaunchKernelExC", 1, 90, r#""correlation":3"#));
        events.push(event(
            "kernel",
            "ncclDevKernel_SendRecv(x)",
            20,
            100,
            r#""correlation":3,"Collective name":"coalesced""#,
        ));
        read(&format!(r#"{{"distributedInfo":{{"rank":0,"world_size":4}},"traceEvents":[{}]}}"#, events.join(",")), 50)
    };
    for (messages, kind, bytes) in [
        (&["send"][..], NodeType::Send, Some(40)),
        (&["recv"][..], NodeType::Recv, Some(40)),
        (&["send", "recv"][..], NodeType::Coll, None),
    ] {
        let trace = batch(messages);
        let [op] = &trace.ops[..] else { panic!("{:?}", trace.ops) };
        assert_eq!((op.kind, op.comm.as_ref().unwrap().bytes), (kind, bytes));
        assert_eq!(trace.gaps.count(Gap::UnmatchedCall), 0);
    }
}

#[test]
fn damage_costs_what_it_touches() {
    let (head, events) = events_of(&written(&SPELLINGS[0], SIMPLE));
    let whole = read(&joined(&head, &events), 100);
    let extra = [
        r#"{"ph":"X","cat":"python_function","name":"C:\Users\u\train.py(1): step","ts":1,"dur":1}"#,
        "{\"ph\":\"X\",\"cat\":\"python_function\",\n\"name\":\"C:\\logs\\\",\n\"ts\":1,\"dur\":1}",
        r#"{"ph":"X","cat":"python_function","name":"say "hi" twice","ts":1,"dur":1}"#,
        r#"{"ph":"X","cat":"overhead","name":"x","ts":nan,"dur":-Infinity}"#,
        r#"{"ph":"X","cat":"cpu_op","name":"x","ts":"soon","dur":1}"#,
        "7",
    ];
    for (place, damage) in extra.iter().enumerate() {
        let mut more = events.clone();
        more.insert(5 * place, (*damage).to_owned());
        let trace = read(&joined(&head, &more), 33);
        assert_eq!(trace.ops, whole.ops, "{damage}");
        let gaps: Vec<_> = trace.gaps.iter().collect();
        assert!(gaps.iter().all(|(gap, ..)| matches!(gap, Gap::Damaged | Gap::Mended)), "{damage}: {gaps:?}");
        assert!(gaps[0].1.ends_with(&format!("from line {}", 5 * place + 1)), "{damage}: {gaps:?}");
    }
    // Infinite values in unused fields of an event have no effect.
    let infinite: Vec<String> =
        events.iter().map(|event| event.replace(r#""correlation""#, r#""blocks per SM": inf,"correlation""#)).collect();
    assert_eq!(read(&joined(&head, &infinite), 100).ops, whole.ops);
    // A kernel without a duration invalidates its step. It invalidates no other step if each step begins with its first
    // kernel.
    let unmarked = events_of(&written(&SPELLINGS[2], SIMPLE)).1;
    let changes = [(r#""dur":NaN"#, &events), (r#""other":1"#, &events), (r#""other":1"#, &unmarked)];
    for (without, events) in changes {
        let mut more = events.clone();
        let kernel = more.iter().position(|event| event.contains("gemm")).unwrap();
        more[kernel] = more[kernel].replace(r#""dur":2000"#, without);
        let ranks = [(0, Arc::new(read(&joined(&head, &more), 100)))];
        let found = step::steps(&ranks);
        let numbers: Vec<u64> = found.steps.iter().map(|one| one.number).collect();
        assert_eq!((numbers, found.untimed), (vec![4], 1), "{without}");
    }
}

#[test]
fn kernels_before_the_first_mark_are_no_gap_of_a_step() {
    let (head, mut events) = events_of(&written(&SPELLINGS[0], SIMPLE));
    let early =
        r#"{"ph":"X","cat":"kernel","name":"ncclDevKernel_Generic(x)","pid":0,"tid":20,"ts":900000,"dur":9,"args":{}}"#;
    events.insert(0, early.to_owned());
    let trace = read(&joined(&head, &events), 100);
    assert_eq!(trace.gaps.count(Gap::UnknownTransfer), 1);
    let ranks = [(0, Arc::new(trace))];
    for one in step::steps(&ranks).steps {
        let (start_ns, end_ns) = one.windows_ns[0];
        assert_eq!(ranks[0].1.gaps.within(start_ns, end_ns).count(), 0);
    }
}
