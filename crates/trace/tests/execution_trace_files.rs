//! Execution traces written by hand: groups, waits, bytes and types that a file leaves out, and damaged files.

mod pieces;

use gradtide_trace::{CollectiveType, Gap, NodeType, RankTrace, TraceError};
use pieces::read;
use std::collections::BTreeSet;

/// Returns a file of nodes `id, parent, name, scope, thread, inputs and their types, outputs and their types, more
/// attributes`.
fn file(nodes: &[String]) -> String {
    format!("{{\"schema\": \"1.1.1-chakra.0.0.4\", \"nodes\": [\n{}\n]}}", nodes.join(",\n"))
}

fn node(id: u64, parent: u64, name: &str, values: &str, types: &str) -> String {
    with(id, parent, name, (values, types), ("", ""), "")
}

fn with(
    id: u64,
    parent: u64,
    name: &str,
    (values, types): (&str, &str),
    (outputs, of): (&str, &str),
    more: &str,
) -> String {
    let scope = if name.starts_with(['[', '#']) { 7 } else { 0 };
    format!(
        "{{\"id\": {id}, \"name\": \"{name}\", \"ctrl_deps\": {parent}, \
         \"inputs\": {{\"values\": [{values}], \"types\": [{types}]}}, \
         \"outputs\": {{\"values\": [{outputs}], \"types\": [{of}]}}, \"attrs\": [\
         {{\"name\": \"scope\", \"value\": {scope}}}, {{\"name\": \"tid\", \"value\": 1}}{more}]}}"
    )
}

/// Returns the record of a transfer of 100 elements of 4 bytes in group "0" of ranks 0 to 3. Rank 2 wrote the record or
/// is the peer.
fn record(id: u64, parent: u64, sequence: &str, what: &str) -> String {
    let values = format!("[[9,8,0,100,4,\"cuda:0\"]], {sequence}, [\"0\",\"d\"], 2, \"{what}\", [], [], 0, 1, 4");
    node(id, parent, "record_param_comms", &values, RECORD_TYPES)
}

const RECORD_TYPES: &str = "\"GenericList[Tensor(float)]\", \"Int\", \"Tuple[String,String]\", \"Int\", \"String\", \
                            \"GenericList[]\", \"GenericList[]\", \"Int\", \"Int\", \"Int\"";

fn read_nodes(nodes: &[String]) -> RankTrace {
    read(&file(nodes), 100).expect("it is read")
}

fn waits(trace: &RankTrace, id: u64) -> Vec<u64> {
    let op = trace.ops.iter().find(|op| op.id == id).expect("it is kept");
    let all: BTreeSet<u64> = op.data_deps.iter().chain(&op.ctrl_deps).copied().collect();
    all.into_iter().collect()
}

#[test]
fn a_file_that_is_none_says_why() {
    let other = read("{\"schema\": \"2.0.0\", \"nodes\": []}", 9).expect_err("of another generation");
    assert!(matches!(&other, TraceError::Piece { what, .. } if what.contains("2.0.0")), "{other}");
    assert_eq!(read("", 9), Err(TraceError::Empty));
    assert!(matches!(read("{\"nodes\": []}", 9), Err(TraceError::NoOps { .. })));
    assert!(matches!(read("{\"traceEvents\": []}", 9), Err(TraceError::NotThis { .. })));
    assert!(matches!(read("[{\"id\": 1}]", 9), Err(TraceError::NotThis { .. })));
    let nodes = [node(2, 1, "aten::a", "", ""), node(3, 1, "aten::b", "", "")];
    let text = file(&nodes);
    let cut = &text[..text.len() - 5];
    assert!(matches!(read(cut, 9), Err(TraceError::Truncated { seen: 1, .. })), "{cut}");
    let twice = [nodes[0].clone(), nodes[0].clone()];
    assert_eq!(read(&file(&twice), 9), Err(TraceError::SameId(2)));
}

#[test]
fn a_parent_that_is_missing_or_later_is_none_and_counted() {
    let nodes = [node(2, 77, "aten::a", "", ""), node(3, 4, "aten::b", "", ""), node(4, 3, "aten::c", "", "")];
    let trace = read_nodes(&nodes);
    assert_eq!(trace.ops.iter().map(|op| op.id).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(trace.gaps.count(Gap::Dependency), 2);
}

#[test]
fn damage_costs_the_node_that_it_is_in() {
    let nodes = [
        node(2, 1, "aten::a", "nan, 1.0", "\"Double\", \"Double\""),
        node(3, 1, "a\\d", "", ""),
        "{\"name\": \"aten::none\"}".to_owned(),
        node(5, 1, "aten::d", "", ""),
    ];
    let trace = read_nodes(&nodes);
    assert_eq!(trace.ops.iter().map(|op| &*op.name).collect::<Vec<_>>(), ["aten::a", "a\\d", "aten::d"]);
    assert_eq!((trace.gaps.count(Gap::Mended), trace.gaps.count(Gap::Damaged)), (2, 1));
    assert!(trace.gaps.iter().any(|(gap, name, _)| gap == Gap::Damaged && name.contains("line 4")));
}

#[test]
fn a_group_of_one_sends_nothing_and_its_call_is_an_operator() {
    let alone = record(5, 4, "1", "allreduce").replace("0, 1, 4]", "0, 1, 1]");
    let trace = read_nodes(&[alone, node(4, 1, "c10d::allreduce_", "", "")]);
    assert_eq!(trace.ops.iter().map(|op| (op.id, op.kind)).collect::<Vec<_>>(), [(4, NodeType::Comp)]);
}

#[test]
fn a_call_without_a_record_is_the_transfer() {
    // ProcessGroupGloo writes no records of its own. The output of an all-gather comes first.
    let values = "[[1,2,0,400,2,\"cpu\"]], [[3,4,0,100,2,\"cpu\"]], \"<Object>\"";
    let types = "\"GenericList[Tensor(c10::BFloat16)]\", \"GenericList[Tensor(c10::BFloat16)]\", \"Object\"";
    let trace = read_nodes(&[node(4, 1, "c10d::allgather_", values, types)]);
    let comm = trace.ops[0].comm.as_ref().expect("it is a transfer");
    assert_eq!((comm.collective, comm.bytes), (Some(CollectiveType::AllGather), Some(200)));
    assert_eq!((comm.group.as_ref(), &comm.ranks), ("", &None));
}

#[test]
fn what_an_old_record_does_not_say_its_call_says() {
    let old = node(5, 4, "record_param_comms", "", "");
    let call = node(4, 1, "c10d::allreduce_", "[[1,2,0,100,8,\"cuda:0\"]]", "\"GenericList[Tensor(double)]\"");
    let trace = read_nodes(&[old.clone(), call]);
    let comm = trace.ops[0].comm.as_ref().expect("it is a transfer");
    assert_eq!((comm.collective, comm.bytes), (Some(CollectiveType::AllReduce), Some(800)));
    let alone = read_nodes(&[old]);
    assert_eq!(alone.ops[0].comm.as_ref().expect("it is a transfer").bytes, None);
    assert_eq!(alone.gaps.count(Gap::UnknownTransfer), 1);
}

#[test]
fn unknown_bytes_are_unknown_and_an_unknown_type_is_counted() {
    let more = |count: u64, dtype: &str| {
        format!(
            ", {{\"name\": \"collective_name\", \"value\": \"allreduce\"}}, {{\"name\": \"in_msg_nelems\", \
             \"value\": {count}}}, {{\"name\": \"dtype\", \"value\": \"{dtype}\"}}"
        )
    };
    let bytes = |count: u64, dtype: &str| {
        let one = with(2, 1, "record_param_comms", ("", ""), ("", ""), &more(count, dtype));
        let trace = read_nodes(&[one]);
        let bytes = trace.ops[0].comm.as_ref().expect("it is a transfer").bytes;
        (bytes, trace.gaps.count(Gap::Size), trace.gaps.count(Gap::ElementType))
    };
    assert_eq!(bytes(100, "BFloat16"), (Some(200), 0, 0));
    assert_eq!(bytes(100, "Quux"), (Some(400), 0, 1));
    assert_eq!(bytes(0, "Float"), (None, 1, 0));
    let barrier =
        with(2, 1, "record_param_comms", ("", ""), ("", ""), &more(0, "Byte").replace("allreduce", "barrier"));
    assert_eq!(read_nodes(&[barrier]).gaps.count(Gap::Size), 0);
}

#[test]
fn messages_name_both_ends_once_a_collective_says_the_rank() {
    let message = |id, what| record(id, 1, "[1,true]", what).replace("2, \"send\"", "3, \"send\"");
    let own = record(9, 1, "[1,false]", "allreduce").replace("2, \"allreduce\"", "1, \"allreduce\"");
    let trace = read_nodes(&[message(2, "send"), message(3, "recv"), own]);
    let ends = |index: usize| trace.ops[index].comm.as_ref().expect("it is a transfer").ends;
    assert_eq!((ends(0), ends(1), ends(2)), (Some((1, 3)), Some((2, 1)), None));
    assert_eq!(trace.about.rank, Some(1));
    // Messages run concurrently, and a send writes no storage.
    assert!(waits(&trace, 3).is_empty());
    let unknown = read_nodes(&[message(2, "send")]);
    assert_eq!(unknown.ops[0].comm.as_ref().expect("it is a transfer").ends, None);
}

#[test]
fn a_wait_is_for_the_transfer_of_its_number_and_group() {
    let other = |one: String| one.replace("[\"0\",\"d\"]", "[\"7\",\"e\"]").replace("[9,8,", "[9,6,");
    let wait = |id, group: &str| {
        let types = RECORD_TYPES.split_once(", ").expect("several").1;
        node(id, 1, "record_param_comms", &format!("5, [\"{group}\",\"\"], 2, \"wait\", [], [], -1, -1, 1"), types)
    };
    let begun = |group| {
        let nodes = [
            record(2, 1, "5", "allreduce"),
            other(record(3, 1, "5", "allreduce")),
            wait(4, group),
            node(6, 1, "aten::a", "", ""),
        ];
        waits(&read_nodes(&nodes), 6)
    };
    assert_eq!((begun("0"), begun("7"), begun("")), (vec![2], vec![3], vec![3]));
}

#[test]
fn a_kernel_of_triton_may_write_what_it_is_given() {
    let tensor = ("[1,2,0,10,4,\"cuda:0\"]", "\"Tensor(float)\"");
    let backend = ", {\"name\": \"kernel_backend\", \"value\": \"triton\"}";
    let nodes = [
        with(2, 1, "triton_poi_fused_0", tensor, ("", ""), backend),
        node(3, 1, "aten::a", "", ""),
        node(4, 1, "aten::b", tensor.0, tensor.1),
    ];
    assert_eq!(waits(&read_nodes(&nodes), 4), [2, 3]);
}

#[test]
fn a_view_writes_nothing() {
    let tensor = ("[1,2,0,10,4,\"cuda:0\"]", "\"Tensor(float)\"");
    let nodes = [
        with(2, 1, "aten::view", tensor, tensor, ""),
        node(3, 1, "aten::a", "", ""),
        node(4, 1, "aten::b", tensor.0, tensor.1),
    ];
    assert_eq!(waits(&read_nodes(&nodes), 4), [3]);
}

#[test]
fn a_functional_collective_names_the_group_of_its_call() {
    let tensor = ("[[1,2,0,10,4,\"cpu\"]], \"<Object>\"", "\"GenericList[Tensor(float)]\", \"Object\"");
    let around = "[1,3,0,10,4,\"cpu\"], \"sum\", \"7\"";
    let nodes = [
        node(3, 2, "c10d::allreduce_", tensor.0, tensor.1),
        node(2, 1, "_c10d_functional::all_reduce", around, "\"Tensor(float)\", \"String\", \"String\""),
    ];
    let trace = read_nodes(&nodes);
    let comm = trace.ops[0].comm.as_ref().expect("it is a transfer");
    assert_eq!((trace.ops.len(), &*comm.group, comm.bytes), (1, "7", Some(40)));
}

#[test]
fn what_is_after_a_blocking_transfer_waits_for_it() {
    let more = |value: &str| format!(", {{\"name\": \"is_asynchronized_op\", \"value\": {value}}}");
    let waited = |value: &str| {
        let values = "1, [\"0\",\"\"], 0, \"allreduce\", [], [], 0, 1, 4";
        let types = RECORD_TYPES.split_once(", ").expect("several").1;
        let one = with(2, 1, "record_param_comms", (values, types), ("", ""), &more(value));
        waits(&read_nodes(&[one, node(3, 1, "aten::a", "", "")]), 3)
    };
    assert_eq!((waited("0"), waited("1")), (vec![2], vec![]));
}

#[test]
fn groups_that_are_numbers_alone_stand_for_no_more_ranks_than_a_job_has() {
    let of = |id: u64| {
        let named = record(id, 1, "5", "allreduce").replace("[\"0\",", &format!("[\"{id}\","));
        named.replace("0, 1, 4]", "0, 1, 600000]")
    };
    let trace = read_nodes(&[of(2), of(3), of(4)]);
    let listed = |index: usize| trace.ops[index].comm.as_ref().expect("it is a transfer").ranks.is_some();
    assert_eq!([listed(0), listed(1), listed(2)], [true, false, false]);
    let more = record(2, 1, "5", "allreduce").replace("0, 1, 4]", "0, 1, 3000000]");
    assert!(matches!(read(&file(&[more]), 100), Err(TraceError::Ranks { .. })));
}
