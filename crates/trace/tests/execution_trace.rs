//! Random programs, written in each schema of PyTorch's ExecutionTraceObserver and read back: ops, dependencies,
//! transfers and bytes must equal those of the program.

mod pieces;

use gradtide_trace::execution_trace::ExecutionTraceReader;
use gradtide_trace::{CollectiveType, Gap, NodeType, RankTrace, StepPart, TraceError};
use pieces::read;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Format of one schema version.
#[derive(Clone, Copy, Debug)]
struct Spelling {
    schema: &'static str,
    /// Whether fields are flat, with `parent`, instead of attributes and `ctrl_deps`.
    is_flat: bool,
    group: Names,
    /// Whether `collective_name`, `in_msg_nelems` and so on are written in addition to the inputs.
    has_attributes: bool,
    has_strides: bool,
    /// Whether a sequence number is a pair.
    has_pairs: bool,
}

/// Identification of a group in a record.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Names {
    Nothing,
    Address,
    Pair,
}

const SPELLINGS: &[Spelling] = &[
    Spelling {
        schema: "1.0.1",
        is_flat: true,
        group: Names::Nothing,
        has_attributes: false,
        has_strides: false,
        has_pairs: false,
    },
    Spelling {
        schema: "1.0.2-chakra.0.0.4",
        is_flat: false,
        group: Names::Address,
        has_attributes: false,
        has_strides: false,
        has_pairs: false,
    },
    Spelling {
        schema: "1.0.3-chakra.0.0.4",
        is_flat: false,
        group: Names::Pair,
        has_attributes: false,
        has_strides: false,
        has_pairs: false,
    },
    Spelling {
        schema: "1.1.0-chakra.0.0.4",
        is_flat: false,
        group: Names::Pair,
        has_attributes: true,
        has_strides: false,
        has_pairs: false,
    },
    Spelling {
        schema: "1.1.1-chakra.0.0.4",
        is_flat: false,
        group: Names::Pair,
        has_attributes: true,
        has_strides: true,
        has_pairs: true,
    },
];

#[derive(Clone, Debug)]
enum Item {
    /// A call that reads storages and writes one storage, a new one or one of those (`in_place`). It may contain calls.
    Op { thread: usize, reads: Vec<u64>, writes: u64, in_place: bool, calls: usize },
    /// A transfer inside a call of c10d. The call may be inside an operator of the backward pass with other calls.
    Transfer {
        thread: usize,
        kind: usize,
        storage: u64,
        elements: u64,
        group: usize,
        is_nested: bool,
        is_blocking: bool,
    },
    /// A thread waits for the last transfer that has not been waited for.
    Wait { thread: usize },
}

const KINDS: &[(&str, &str, CollectiveType)] = &[
    ("allreduce_", "allreduce", CollectiveType::AllReduce),
    ("_allgather_base_", "_allgather_base", CollectiveType::AllGather),
    ("_reduce_scatter_base_", "_reduce_scatter_base", CollectiveType::ReduceScatter),
    ("broadcast_", "broadcast", CollectiveType::Broadcast),
    ("alltoall_base_", "all_to_all", CollectiveType::AllToAll),
];

/// Two groups: one of all four ranks, and one of two.
const GROUPS: &[(&str, u64, &[u32])] = &[("0", 4096, &[0, 1, 2, 3]), ("7", 8192, &[1, 3])];

fn any_item() -> impl Strategy<Value = Item> {
    let storage = || 1_u64..12;
    prop_oneof![
        4 => (0..2_usize, prop::collection::vec(storage(), 0..3), storage(), any::<bool>(), 0..3_usize).prop_map(
            |(thread, reads, writes, in_place, calls)| Item::Op { thread, reads, writes, in_place, calls }
        ),
        2 => (0..2_usize, 0..KINDS.len(), storage(), 1_u64..1 << 33, 0..2_usize, any::<(bool, bool)>()).prop_map(
            |(thread, kind, storage, elements, group, (is_nested, is_blocking))| {
                Item::Transfer { thread, kind, storage, elements, group, is_nested, is_blocking }
            }
        ),
        1 => (0..2_usize).prop_map(|thread| Item::Wait { thread }),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Expected {
    name: String,
    waits: BTreeSet<u64>,
    comm: Option<(CollectiveType, u64, String, Option<Vec<u32>>)>,
    pass: StepPart,
}

struct Writer {
    spelling: Spelling,
    nodes: Vec<String>,
    next: u64,
    expected: BTreeMap<u64, Expected>,
    last: [Option<u64>; 2],
    last_of_group: BTreeMap<usize, u64>,
    writers: BTreeMap<u64, u64>,
    awaited: [BTreeSet<u64>; 2],
    /// Id, sequence number and group of each transfer that has not been waited for.
    begun: Vec<(u64, u64, usize)>,
}

/// Returns the values and types of tensors of 4-byte elements, as one list or as separate arguments.
fn tensors(storages: &[(u64, u64)], is_list: bool) -> (Vec<String>, Vec<String>) {
    let value = |&(storage, count): &(u64, u64)| format!("[{},{storage},0,{count},4,\"cuda:1\"]", 1000 + storage);
    let values = storages.iter().map(value);
    if is_list {
        let names = vec!["Tensor(float)"; storages.len()].join(",");
        (vec![format!("[{}]", values.collect::<Vec<_>>().join(","))], vec![format!("GenericList[{names}]")])
    } else {
        (values.collect(), vec!["Tensor(float)".to_owned(); storages.len()])
    }
}

type Arguments = (Vec<String>, Vec<String>);

impl Writer {
    fn new(spelling: Spelling) -> Self {
        let mut new = Self {
            spelling,
            nodes: Vec::new(),
            next: 5,
            expected: BTreeMap::new(),
            last: [None; 2],
            last_of_group: BTreeMap::new(),
            writers: BTreeMap::new(),
            awaited: [BTreeSet::new(), BTreeSet::new()],
            begun: Vec::new(),
        };
        let none = || (Vec::new(), Vec::new());
        for thread in 0..2 {
            new.node(2 + thread, "[pytorch|profiler|execution_trace|thread]", 1, 7, thread, "", none(), none(), "");
        }
        if spelling.group != Names::Nothing {
            let group = |(name, address, ranks): &(&str, u64, &[u32])| {
                let listed = if ranks.len() == 4 { &[] } else { *ranks };
                let of = if spelling.group == Names::Address {
                    format!("\"backend_id\": {address}, ")
                } else {
                    String::new()
                };
                let size = ranks.len();
                format!(
                    "{{\"pg_name\": \"{name}\", {of}\"ranks\": {listed:?}, \"group_size\": {size}, \"group_count\": 2}}"
                )
            };
            let text = format!("[{}]", GROUPS.iter().map(group).collect::<Vec<_>>().join(", "));
            let values = (vec![format!("{text:?}")], vec!["String".to_owned()]);
            new.node(4, "## process_group:init ##", 2, 7, 0, "", values, none(), "");
        }
        new
    }

    fn id(&mut self) -> u64 {
        self.next += 3;
        self.next
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a node")]
    fn node(
        &mut self,
        id: u64,
        name: &str,
        parent: u64,
        scope: u64,
        thread: u64,
        schema: &str,
        (inputs, input_types): Arguments,
        (outputs, output_types): Arguments,
        more: &str,
    ) {
        let list = |values: &[String]| format!("[{}]", values.join(","));
        let quoted = |types: &[String]| format!("{types:?}");
        let (shapes, tid) = ("[[]]", thread + 1);
        let text = if self.spelling.is_flat {
            format!(
                "{{\"name\": \"{name}\", \"id\": {id}, \"rf_id\": 0, \"parent\": {parent}, \"fw_parent\": 0, \
                 \"seq_id\": -1, \"scope\": {scope}, \"tid\": {tid}, \"fw_tid\": 0, \"op_schema\": \"{schema}\", \
                 \"inputs\": {}, \"input_shapes\": {shapes}, \"input_types\": {}, \"outputs\": {}, \
                 \"output_shapes\": {shapes}, \"output_types\": {}}}",
                list(&inputs),
                quoted(&input_types),
                list(&outputs),
                quoted(&output_types)
            )
        } else {
            let strides = if self.spelling.has_strides { ", \"strides\": []" } else { "" };
            let mut text = String::new();
            for (key, values, types) in [("inputs", &inputs, &input_types), ("outputs", &outputs, &output_types)] {
                let (values, types) = (list(values), quoted(types));
                let _ = write!(
                    text,
                    "\"{key}\": {{\"values\": {values}, \"shapes\": {shapes}, \"types\": {types}{strides}}}, "
                );
            }
            let attribute =
                |name: &str, value: &str| format!("{{\"name\": \"{name}\", \"type\": \"x\", \"value\": {value}}}");
            let attrs = [
                attribute("scope", &scope.to_string()),
                attribute("tid", &tid.to_string()),
                attribute("op_schema", &format!("\"{schema}\"")),
                attribute("kernel_backend", "\"\""),
            ]
            .join(",\n");
            format!("{{\"id\": {id}, \"name\": \"{name}\", \"ctrl_deps\": {parent}, {text}\"attrs\": [{attrs}{more}]}}")
        };
        self.nodes.push(text);
    }

    /// Writes an operator whose inner operators do not become ops.
    fn operator(
        &mut self,
        name: &str,
        parent: u64,
        thread: usize,
        (reads, writes): (&[u64], u64),
        calls: usize,
    ) -> u64 {
        let pass = if name.starts_with("autograd") || parent > 3 { StepPart::Backward } else { StepPart::Unsaid };
        let id = self.id();
        let in_place = reads.contains(&writes);
        let mut waits: BTreeSet<u64> = std::mem::take(&mut self.awaited[thread]);
        waits.extend(self.last[thread].replace(id));
        waits.extend(reads.iter().filter_map(|storage| self.writers.get(storage)));
        self.writers.insert(writes, id);
        self.expected.insert(id, Expected { name: name.to_owned(), waits, comm: None, pass });
        let mut parents = vec![id];
        for _ in 0..calls {
            parents.push(self.id());
        }
        // Each call is nested in the previous one. A call is written when it returns, so the innermost is first.
        for place in (0..parents.len()).rev() {
            let around = if place == 0 { parent } else { parents[place - 1] };
            let own: Vec<String> = (0..reads.len())
                .map(|place| format!("Tensor{} x{place}", if reads[place] == writes { "(a!)" } else { "" }))
                .collect();
            let schema = format!("{name}({}, *, int n) -> Tensor", own.join(", "));
            let sizes: Vec<(u64, u64)> = reads.iter().map(|&storage| (storage, 9)).collect();
            let mut inputs = tensors(&sizes, false);
            inputs.0.push("1".into());
            inputs.1.push("Int".into());
            let outputs = if in_place { (Vec::new(), Vec::new()) } else { tensors(&[(writes, 9)], false) };
            let name = if place == 0 { name } else { "aten::inner" };
            let scope = (place % 2) as u64;
            self.node(parents[place], name, around, scope, thread as u64, &schema, inputs, outputs, "");
        }
        id
    }

    fn record(
        &mut self,
        id: u64,
        parent: u64,
        thread: usize,
        what: &str,
        transfer: Option<(u64, u64, usize)>,
        sequence: u64,
    ) {
        let spelling = self.spelling;
        let none = || (Vec::new(), Vec::new());
        let (mut inputs, outputs) = match transfer {
            Some((storage, count, _)) => (tensors(&[(storage, count)], true), tensors(&[(storage, count)], true)),
            None => (none(), none()),
        };
        let group = transfer.map(|(.., group)| group);
        let mut push = |value: String, name: &str| {
            inputs.0.push(value);
            inputs.1.push(name.to_owned());
        };
        match spelling.has_pairs {
            true => push(format!("[{sequence},false]"), "Tuple[Int,Bool]"),
            false => push(sequence.to_string(), "Int"),
        }
        match (spelling.group, group) {
            (Names::Pair, Some(group)) => push(format!("[\"{}\",\"desc\"]", GROUPS[group].0), "Tuple[String,String]"),
            (Names::Pair, None) => push("[\"\",\"\"]".to_owned(), "Tuple[String,String]"),
            (_, group) => push(group.map_or(0, |group| GROUPS[group].1).to_string(), "Int"),
        }
        // The rank of process 1 in its group (0 in the group of ranks 1 and 3), or the root of a broadcast.
        push(if group == Some(0) && what != "broadcast" { "1" } else { "0" }.to_owned(), "Int");
        push(format!("\"{what}\""), "String");
        push("[]".to_owned(), "GenericList[]");
        push("[]".to_owned(), "GenericList[]");
        let size = group.map_or(1, |group| GROUPS[group].2.len());
        if spelling.group == Names::Pair {
            let (first, stride) = [(0, 1), (1, 2)][group.unwrap_or(0)];
            push(first.to_string(), "Int");
            push(stride.to_string(), "Int");
        }
        push(size.to_string(), "Int");
        let mut more = String::new();
        if spelling.has_attributes {
            let mut add = |name: &str, value: String| {
                let _ = write!(more, ", \n  {{\"name\": \"{name}\", \"type\": \"x\", \"value\": {value}}}");
            };
            add("collective_name", format!("\"{what}\""));
            add("dtype", "\"Float\"".to_owned());
            add("in_msg_nelems", transfer.map_or(0, |(_, count, _)| count).to_string());
            if let Some(group) = group {
                add("pg_name", format!("\"{}\"", GROUPS[group].0));
            }
            add("pg_size", size.to_string());
        }
        self.node(id, "record_param_comms", parent, 0, thread as u64, "", inputs, outputs, &more);
    }

    fn item(&mut self, item: &Item) {
        let none = || (Vec::new(), Vec::new());
        match *item {
            Item::Op { thread, ref reads, writes, in_place, calls } => {
                let mut reads = reads.clone();
                reads.retain(|&one| one != writes);
                reads.extend(in_place.then_some(writes));
                self.operator("aten::mm", 2 + thread as u64, thread, (&reads, writes), calls);
            }
            Item::Transfer { thread, kind, storage, elements, group, is_nested, is_blocking } => {
                let (call_name, what, collective) = KINDS[kind];
                let thread_node = 2 + thread as u64;
                let parent = if is_nested { self.id() } else { thread_node };
                if is_nested {
                    self.operator("aten::before", parent, thread, (&[storage], storage), 0);
                }
                let (call, id, note) = (self.id(), self.id(), self.id());
                let mut waits = self.awaited[thread].clone();
                waits.extend(self.last[thread]);
                waits.extend(self.writers.insert(storage, id));
                let known = self.spelling.group != Names::Nothing;
                waits.extend(self.last_of_group.insert(if known { group } else { 0 }, id));
                let name = if known { GROUPS[group].0 } else { "" };
                let ranks = known.then(|| GROUPS[group].2.to_vec());
                let comm = Some((collective, 4 * elements, name.to_owned(), ranks));
                let pass = if is_nested { StepPart::Backward } else { StepPart::Unsaid };
                self.expected.insert(id, Expected { name: "record_param_comms".to_owned(), waits, comm, pass });
                let sequence = id;
                self.begun.push((id, sequence, group));
                let moved = || tensors(&[(storage, elements)], true);
                self.node(
                    note,
                    "nccl:something",
                    id,
                    7,
                    thread as u64,
                    "",
                    tensors(&[(storage, elements)], false),
                    none(),
                    "",
                );
                self.record(id, call, thread, what, Some((storage, elements, group)), sequence);
                if is_blocking {
                    self.awaited[thread].insert(id);
                }
                let mut called = moved();
                called.0.push((!is_blocking).to_string());
                called.1.push("Bool".to_owned());
                let call_name = format!("c10d::{call_name}");
                let schema = format!("{call_name}(Tensor[] tensors, bool asyncOp) -> Tensor[]");
                self.node(call, &call_name, parent, 0, thread as u64, &schema, called, moved(), "");
                if is_nested {
                    self.operator("aten::after", parent, thread, (&[storage], storage + 20), 1);
                    let name = "autograd::engine::evaluate_function: X";
                    self.node(parent, name, thread_node, 0, thread as u64, "", none(), none(), "");
                }
            }
            Item::Wait { thread } => {
                let id = self.id();
                let Some((begun, sequence, _)) = self.begun.pop() else { return };
                self.awaited[thread].insert(begun);
                self.record(id, 2 + thread as u64, thread, "wait", None, sequence);
            }
        }
    }

    fn file(&mut self) -> String {
        let none = || (Vec::new(), Vec::new());
        self.node(1, "[pytorch|profiler|execution_trace|process]", 1, 7, 0, "", none(), none(), "");
        let nodes = self.nodes.join(",\n    ");
        let schema = self.spelling.schema;
        format!(
            "{{\n  \"schema\": \"{schema}\", \"pid\": 1, \"time\": \"2024-04-17 16:29:57\", \"start_ts\": 1,\n  \
             \"nodes\": [\n    {nodes}\n  ],\n  \"finish_ts\": 2\n}}"
        )
    }
}

fn found(trace: &RankTrace) -> BTreeMap<u64, Expected> {
    let of = |op: &gradtide_trace::TraceOp| Expected {
        name: op.name.to_string(),
        waits: op.data_deps.iter().chain(&op.ctrl_deps).copied().collect(),
        comm: op.comm.as_ref().map(|comm| {
            let ranks = comm.ranks.as_ref().map(|ranks| ranks.to_vec());
            (comm.collective.expect("it is known"), comm.bytes.expect("they are known"), comm.group.to_string(), ranks)
        }),
        pass: op.pass,
    };
    trace.ops.iter().map(|op| (op.id, of(op))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_program_is_read_back_from_every_schema(items in prop::collection::vec(any_item(), 1..30), size in 1_usize..400) {
        for &spelling in SPELLINGS {
            let mut writer = Writer::new(spelling);
            items.iter().for_each(|item| writer.item(item));
            let text = writer.file();
            if writer.expected.is_empty() {
                let is_none = matches!(read(&text, size), Err(TraceError::NoOps { .. }));
                prop_assert!(is_none);
                continue;
            }
            let trace = read(&text, size).expect(&text);
            prop_assert_eq!(&found(&trace), &writer.expected, "{:?}\n{}", spelling, text);
            prop_assert_eq!(&trace.about.version, spelling.schema);
            let rooted = |expected: &Expected| expected.comm.as_ref().is_some_and(|comm| comm.0 != CollectiveType::Broadcast);
            let says_rank = spelling.group != Names::Nothing && writer.expected.values().any(rooted);
            prop_assert_eq!(trace.about.rank, says_rank.then_some(1));
            prop_assert_eq!(trace.gaps.count(Gap::Start), trace.ops.len() as u64);
            let computing = trace.ops.iter().filter(|op| op.kind == NodeType::Comp).count();
            prop_assert_eq!(trace.gaps.count(Gap::Duration), computing as u64);
            let others = [Gap::Dependency, Gap::Size, Gap::Damaged, Gap::Mended, Gap::UnknownTransfer, Gap::Group];
            prop_assert!(others.iter().all(|&gap| trace.gaps.count(gap) == 0), "{:?}", trace.gaps);
            prop_assert!(trace.ops.iter().all(|op| op.data_deps.iter().chain(&op.ctrl_deps).all(|&dep| dep < op.id)));
        }
    }

    #[test]
    fn damage_ends_in_an_error_or_a_trace(
        items in prop::collection::vec(any_item(), 1..6), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut writer = Writer::new(SPELLINGS[4]);
        items.iter().for_each(|item| writer.item(item));
        let mut text = writer.file().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        let mut reader = ExecutionTraceReader::default();
        if text.chunks(50).try_for_each(|chunk| reader.feed(chunk)).is_ok() {
            let _ = reader.finish();
        }
    }
}
