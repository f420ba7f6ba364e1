//! Reader for traces of PyTorch's `ExecutionTraceObserver`: a JSON object with a list `nodes`, one node per operator
//! call.
//!
//! The file contains a graph but no times. A node is written when its call returns, so children precede their parent.
//! Ids ascend with the start of calls. The outermost operators become ops, as do transfers at any depth. An operator
//! that contains a transfer is replaced by its child operators, because some of them run before the transfer and others
//! may depend on it.
//!
//! The file is longer than 600 lines because all stages read and write the tree of one rank.
//!
//! ```text
//! thread ─ ProfilerStep#4 ─ aten::linear                                   op: outermost operator
//!        └ evaluate_function ┬ AccumulateGrad                              op: its parent contains a transfer
//!                            └ c10d::allreduce_ ─ record_param_comms       transfer
//! ```
//!
//! An op depends on the previous op of its thread, and on the last writer of each storage that it reads. A collective
//! also depends on the previous collective of its group, whereas a message does not. The op after a `wait` depends on
//! the transfer with the sequence number of the `wait`. Every dependency has a smaller id, so there are no cycles.
//!
//! Sources: pytorch/pytorch torch/csrc/profiler/standalone/execution_trace_observer.cpp (schemas 1.0.1 to 1.1.1),
//! torch/csrc/distributed/c10d/ParamCommsUtils.hpp (inputs of `record_param_comms`), torch/profiler/profiler.py and
//! torch/distributed/distributed_c10d.py (`## process_group:init ##`). The differences between versions are those in
//! facebookresearch/param et_replay/execution_trace.py.

use crate::job::{Distributed, ProcessGroup};
use crate::json::{Layout, Piece, Splitter, mended};
use crate::kernels::{NO_TRANSFER, Transferred, named};
use crate::sizes::{ASSUMED_ELEMENT_BYTES, element_bytes, has_output};
use crate::{
    About, CollectiveType, Comm, Damage, Gap, Gaps, MAX_RANKS, Names, NodeType, RankTrace, StepPart, TraceError,
    TraceOp, checked, plausible,
};
use gradtide_watch::check_cancelled;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const LAYOUT: Layout =
    Layout { format: "execution trace of PyTorch", list: "nodes", unit: "node", units: "nodes", may_be_bare: false };

/// Name of c10d's record of a backend call (ATen/record_function.h, `kParamCommsCallName`).
const RECORD: &str = "record_param_comms";

/// Node to which `ExecutionTraceObserver.start` writes the process groups.
const GROUPS: &str = "## process_group:init ##";

/// Values of `RecordScope` (ATen/record_function.h) that are operators: function, backward function, static-runtime op.
/// Nodes of other scopes enclose operators or are parts of one.
const OPERATORS: &[u64] = &[FUNCTION, 1, 8];
const FUNCTION: u64 = 0;

/// A node as written in the file, in any schema.
#[derive(Deserialize)]
struct Written<'a> {
    id: u64,
    #[serde(borrow)]
    name: Cow<'a, str>,
    /// Parent of the node, from schema 1.0.2 on.
    #[serde(borrow)]
    ctrl_deps: Option<&'a RawValue>,
    /// Parent of the node, up to schema 1.0.1.
    #[serde(borrow)]
    parent: Option<&'a RawValue>,
    /// Arguments: values, types and shapes from schema 1.0.2 on, but only values up to schema 1.0.1.
    #[serde(borrow)]
    inputs: Option<&'a RawValue>,
    #[serde(borrow)]
    outputs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input_types: Vec<Cow<'a, str>>,
    #[serde(borrow, default)]
    output_types: Vec<Cow<'a, str>>,
    scope: Option<u64>,
    tid: Option<u64>,
    #[serde(borrow)]
    op_schema: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    attrs: Vec<Attribute<'a>>,
}

#[derive(Deserialize)]
struct Attribute<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    value: Option<&'a RawValue>,
}

impl Written<'_> {
    fn attribute(&self, name: &str) -> Option<&str> {
        self.attrs.iter().find(|attr| attr.name == name)?.value.map(RawValue::get)
    }

    fn whole(&self, name: &str) -> Option<u64> {
        self.attribute(name)?.trim_matches('"').parse().ok()
    }

    fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.attribute(name)?).ok()
    }
}

/// The inputs or outputs of a call.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments<'a> {
    values: Vec<Value>,
    #[serde(borrow)]
    types: Vec<Cow<'a, str>>,
}

impl<'a> Arguments<'a> {
    fn read(raw: Option<&'a RawValue>, types: &[Cow<'a, str>]) -> Result<Self, String> {
        let Some(raw) = raw else { return Ok(Self::default()) };
        let text = raw.get();
        if text.starts_with('{') {
            return serde_json::from_str(text).map_err(|error| error.to_string());
        }
        let values = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Ok(Self { values, types: types.to_vec() })
    }

    /// Returns the tensors of one argument, including those in nested lists.
    fn tensors(&self, place: usize) -> Vec<Tensor> {
        let mut found = Vec::new();
        if let (Some(name), Some(value)) = (self.types.get(place), self.values.get(place))
            && name.contains("Tensor(")
        {
            add_tensors(value, &mut found);
        }
        found
    }

    fn storages(&self) -> BTreeSet<u64> {
        let all = (0..self.values.len()).flat_map(|place| self.tensors(place));
        all.map(|tensor| tensor.storage).filter(|&storage| storage > 0).collect()
    }

    /// Returns the total bytes of the tensors from argument `from` on. Returns `None` if there are no tensors or if
    /// their shapes are symbolic.
    fn bytes(&self, from: usize) -> Option<u64> {
        let all = (from..self.values.len()).flat_map(|place| self.tensors(place));
        let bytes = all.map(|tensor| tensor.bytes).fold(0, u64::saturating_add);
        Some(bytes).filter(|&bytes| bytes > 0)
    }
}

/// A tensor, written as `[id, storage, offset, number of elements, bytes per element, device]`.
struct Tensor {
    /// Id of the storage; 0 if the tensor has no identifiable storage.
    storage: u64,
    bytes: u64,
}

fn add_tensors(value: &Value, found: &mut Vec<Tensor>) {
    let Some(parts) = value.as_array() else { return };
    if let [id, storage, _, count, size, ..] = parts.as_slice()
        && let (Some(_), Some(storage), Some(count), Some(size)) =
            (id.as_u64(), storage.as_u64(), count.as_u64(), size.as_u64())
    {
        found.push(Tensor { storage, bytes: count.saturating_mul(size) });
        return;
    }
    parts.iter().for_each(|part| add_tensors(part, found));
}

struct Node {
    id: u64,
    name: Arc<str>,
    parent: u64,
    thread: u64,
    /// Whether the node is an operator call, as opposed to an enclosing thread, step or annotation.
    is_operator: bool,
    /// Storages that the node reads or writes.
    reads: Box<[u64]>,
    writes: Box<[u64]>,
    record: Option<Box<Record>>,
}

/// Information about a transfer in a node.
#[derive(Default)]
struct Record {
    /// Whether a backend wrote the record. Otherwise, the information comes from the call itself, because in old
    /// versions only NCCL writes records.
    is_of_backend: bool,
    /// Name of the operation in the backend.
    what: String,
    kind: Option<Transferred>,
    bytes: Option<u64>,
    /// Whether the element type is unknown and assumed to be float32.
    is_assumed: bool,
    /// Sequence number of the transfer, to which a `wait` refers.
    sequence: Sequence,
    group: Group,
    group_size: Option<u64>,
    /// First rank of the group, and stride between its ranks.
    first: Option<u32>,
    stride: Option<u32>,
    /// A rank within the group: of the peer for a message, of the root for a rooted collective, otherwise of this
    /// process.
    rank: Option<u32>,
    /// Whether the next op of the thread depends on the transfer, because the call was made with `async_op=False`.
    is_blocking: bool,
}

impl Record {
    fn moves(&self) -> bool {
        !NO_TRANSFER.contains(&&*self.what)
    }
}

/// Sequence number of a transfer, and whether the transfer is a message. Collectives and messages are numbered
/// separately.
type Sequence = Option<(u64, bool)>;

/// Identification of a process group in a record.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    #[default]
    Unsaid,
    Name(String),
    /// Address of the group in the process, up to schema 1.0.2.
    Address(u64),
}

/// Reader of one rank's file, which it consumes chunk by chunk.
pub struct ExecutionTraceReader {
    splitter: Splitter,
    nodes: Nodes,
}

#[derive(Default)]
struct Nodes {
    nodes: Vec<Node>,
    names: Names,
    distributed: Distributed,
    version: String,
    /// Nodes with invalid JSON.
    damage: Damage,
    gaps: Gaps,
}

impl Default for ExecutionTraceReader {
    fn default() -> Self {
        Self { splitter: Splitter::new(LAYOUT), nodes: Nodes::default() }
    }
}

impl ExecutionTraceReader {
    /// Reads the next bytes of the file.
    ///
    /// # Errors
    /// [`TraceError::NotThis`] if the file has another format, [`TraceError::Piece`] if its schema version is not
    /// supported.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), TraceError> {
        let nodes = &mut self.nodes;
        self.splitter.feed(chunk, &mut |piece| match piece {
            Piece::Element(text, line) => {
                nodes.node(text, line);
                Ok(())
            }
            Piece::Field("schema", text) => nodes.schema(text),
            Piece::Field(..) => Ok(()),
        })
    }

    /// Completes the trace at the end of the file.
    ///
    /// # Errors
    /// [`TraceError::Empty`], [`TraceError::NotThis`], [`TraceError::Truncated`], [`TraceError::NoOps`] or
    /// [`TraceError::SameId`].
    pub fn finish(self) -> Result<RankTrace, TraceError> {
        self.splitter.finish()?;
        self.nodes.finish()
    }
}

impl Nodes {
    fn schema(&mut self, text: &[u8]) -> Result<(), String> {
        let shown = String::from_utf8_lossy(text);
        self.version = shown.trim_matches('"').to_owned();
        if self.version.starts_with("1.") {
            return Ok(());
        }
        Err(format!("`schema` is {shown}; versions 1.0.1 to 1.1 are read: record it with another PyTorch"))
    }

    /// Reads a node. If the node is damaged, no other node is affected.
    fn node(&mut self, text: &[u8], line: &mut dyn FnMut() -> u64) {
        check_cancelled();
        let read = |text: &[u8], nodes: &mut Self| -> Result<(), String> {
            let written: Written = serde_json::from_slice(text).map_err(|error| error.to_string())?;
            nodes.add(&written)
        };
        if read(text, self).is_ok() {
            return;
        }
        let gap = if read(&mended(text), self).is_ok() { Gap::Mended } else { Gap::Damaged };
        self.damage.add(gap, "node", line);
    }

    fn add(&mut self, written: &Written) -> Result<(), String> {
        let inputs = Arguments::read(written.inputs, &written.input_types)?;
        let outputs = Arguments::read(written.outputs, &written.output_types)?;
        let name = &*written.name;
        if name == GROUPS {
            self.groups(&inputs)?;
        }
        let schema = written.op_schema.clone().map(Cow::into_owned).or_else(|| written.text("op_schema"));
        let schema = schema.unwrap_or_default();
        let parent = written.ctrl_deps.or(written.parent).map_or("", RawValue::get);
        let has_kernel = written.text("kernel_backend").is_some_and(|backend| !backend.is_empty());
        let scope = written.scope.or_else(|| written.whole("scope")).unwrap_or(FUNCTION);
        let record = match name.split_once("::") {
            _ if name == RECORD => Some(backend_record(written, &inputs)),
            Some(("c10d", what)) => named(what).map(|kind| call_record(what, kind, &inputs, &schema)),
            // This op encloses the c10d call: _c10d_functional::all_reduce(tensor, operation, name of the group).
            Some(("_c10d_functional" | "_c10d_functional_autograd", _)) => {
                let group = inputs.values.last().and_then(Value::as_str).map(|name| Group::Name(name.to_owned()));
                group.map(|group| Record { group, ..Record::default() })
            }
            _ => None,
        };
        let writes = match record.as_ref().map(|record| record.kind.map(|kind| kind.0)) {
            Some(Some(NodeType::Send)) => BTreeSet::new(),
            Some(Some(NodeType::Recv)) => inputs.storages(),
            Some(_) => outputs.storages(),
            None => written_by(&inputs, &outputs, &schema, has_kernel),
        };
        self.nodes.push(Node {
            id: written.id,
            name: self.names.get(name),
            // A node has exactly one parent, although the format allows several from 1.0.2 on.
            parent: parent.trim_matches(['[', ']', ' ']).split(',').next().unwrap_or("").trim().parse().unwrap_or(0),
            thread: written.tid.or_else(|| written.whole("tid")).unwrap_or(0),
            is_operator: OPERATORS.contains(&scope) || has_kernel,
            reads: inputs.storages().into_iter().collect(),
            writes: writes.into_iter().collect(),
            record: record.map(Box::new),
        });
        Ok(())
    }

    fn groups(&mut self, inputs: &Arguments) -> Result<(), String> {
        let Some(text) = inputs.values.first().and_then(Value::as_str) else { return Ok(()) };
        let groups: Vec<ProcessGroup> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        // The observer writes the process groups again at every start.
        let known: BTreeSet<String> = self.distributed.pg_config.iter().map(|group| group.pg_name.clone()).collect();
        let new = groups.into_iter().filter(|group| !known.contains(&group.pg_name));
        new.into_iter().try_for_each(|group| self.distributed.add(group))
    }

    fn finish(mut self) -> Result<RankTrace, TraceError> {
        self.nodes.sort_by_key(|node| node.id);
        if let Some(pair) = self.nodes.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(TraceError::SameId(pair[0].id));
        }
        let groups = Groups::of(&self.distributed, &self.nodes)?;
        let tree = Tree::of(&self.nodes, &groups, &mut self.gaps);
        let mut graph = Graph::default();
        for index in 0..self.nodes.len() {
            check_cancelled();
            graph.add(index, &self.nodes, &tree, &groups, &mut self.gaps);
        }
        let mut ops = graph.finish();
        if ops.is_empty() {
            return Err(TraceError::NoOps {
                what: match self.damage.first_line() {
                    Some(line) => format!("no node can be read, from line {line} on; record it again").into(),
                    None => "no node is a call of an operator; start the observer before the step".into(),
                },
            });
        }
        let rank = groups.own_rank(&self.nodes, &tree);
        for op in &mut ops {
            let Some(comm) = &mut op.comm else { continue };
            // So far, `ends` only contains the peer's rank.
            comm.ends = comm.ends.and_then(|(other, _)| {
                let own = rank?;
                Some(if op.kind == NodeType::Send { (own, other) } else { (other, own) })
            });
            if op.kind == NodeType::Coll && comm.collective.is_none() {
                self.gaps.add(Gap::UnknownTransfer, &op.name);
            } else if self.distributed.pg_config.len() > 1 && comm.group.is_empty() {
                self.gaps.add(Gap::Group, &op.name);
            }
        }
        self.damage.add_to(&mut self.gaps);
        self.gaps.add_many(Gap::Start, "", ops.len() as u64);
        self.gaps.add_many(Gap::Duration, "", ops.iter().filter(|op| op.comm.is_none()).count() as u64);
        checked(&mut ops, &mut self.gaps)?;
        let about = About {
            rank,
            world_size: groups.world_size,
            version: self.version,
            described: self.distributed.described(),
        };
        Ok(RankTrace { ops, about, gaps: self.gaps, ..RankTrace::default() })
    }
}

/// Reads a backend's record of a call. From schema 1.1.0 on, the information is in attributes. Before, it is in the
/// inputs: `[tensors], sequence number, group, rank, name, sizes of parts in, out, (first rank, stride,) ranks of the
/// group`.
///
/// If the call transfers nothing, there are no tensors. A sequence number may be a pair. A group is an address up to
/// 1.0.2, and a name and a description in later versions.
fn backend_record(written: &Written, inputs: &Arguments) -> Record {
    let values = &inputs.values;
    let is_name = |&place: &usize| values[place].is_string() && values.get(place + 1).is_some_and(Value::is_array);
    let name = (0..values.len()).find(is_name);
    let is_tensor = |place: usize| inputs.types.get(place).is_some_and(|name| name.contains("Tensor("));
    let before = |back: usize| {
        let place = name?.checked_sub(back).filter(|&place| !is_tensor(place))?;
        values.get(place)
    };
    let small = |value: Option<&Value>| value?.as_u64().and_then(|value| u32::try_from(value).ok());
    let after: Vec<i64> =
        name.map_or_else(Vec::new, |name| values[name + 1..].iter().filter_map(Value::as_i64).collect());
    let (first, stride, size) = match *after {
        [first, stride, size, ..] => (Some(first), Some(stride), Some(size)),
        [size, ..] => (None, None, Some(size)),
        [] => (None, None, None),
    };
    let narrow = |value: Option<i64>| value.and_then(|value| u32::try_from(value).ok());
    let what = written.text("collective_name");
    let what = what.or_else(|| Some(values[name?].as_str()?.to_owned())).unwrap_or_default();
    let kind = named(&what);
    let elements = written.whole("in_msg_nelems").filter(|&count| count > 0);
    let known = written.text("dtype").and_then(|name| element_bytes(&name));
    let counted = elements.zip(known).map(|(count, bytes)| count.saturating_mul(bytes)).or_else(|| inputs.bytes(0));
    Record {
        is_of_backend: true,
        bytes: counted.or_else(|| Some(elements?.saturating_mul(ASSUMED_ELEMENT_BYTES))),
        is_assumed: counted.is_none() && elements.is_some(),
        sequence: before(3).and_then(|value| {
            let is_message = value.get(1).and_then(Value::as_bool).unwrap_or(false);
            Some((value.get(0).unwrap_or(value).as_u64()?, is_message))
        }),
        group: match (written.text("pg_name"), before(2)) {
            (Some(name), _) if !name.is_empty() => Group::Name(name),
            (_, Some(Value::Array(parts))) => {
                let name = parts.first().and_then(Value::as_str).filter(|name| !name.is_empty());
                name.map_or(Group::Unsaid, |name| Group::Name(name.to_owned()))
            }
            (_, Some(Value::String(name))) if !name.is_empty() => Group::Name(name.clone()),
            (_, Some(value)) => value.as_u64().filter(|&one| one > 0).map_or(Group::Unsaid, Group::Address),
            (_, None) => Group::Unsaid,
        },
        group_size: written.whole("pg_size").or(size.and_then(|size| u64::try_from(size).ok())),
        first: narrow(first),
        stride: narrow(stride),
        rank: small(before(1)),
        is_blocking: written.whole("is_asynchronized_op") == Some(0),
        what,
        kind,
    }
}

/// Reads a c10d call of a backend that writes no records: `c10d::allreduce_(tensors, group, …)`.
fn call_record(what: &str, kind: Transferred, inputs: &Arguments, schema: &str) -> Record {
    // If the output differs in size from the input, the output comes first: c10d::_reduce_scatter_base_(output, input,
    // …).
    let skipped = usize::from(kind.1.is_some_and(has_output));
    // Signatures: c10d::send(tensors, group, destination, tag) and c10d::recv_(tensors, group, source, tag).
    let peer = inputs.values.get(2).and_then(Value::as_u64).filter(|_| kind.0 != NodeType::Coll);
    Record {
        what: what.to_owned(),
        kind: Some(kind),
        bytes: inputs.bytes(skipped),
        rank: peer.and_then(|peer| u32::try_from(peer).ok()),
        is_blocking: parameters(schema)
            .iter()
            .position(|one| *one == "bool asyncOp")
            .is_some_and(|place| inputs.values.get(place) == Some(&Value::Bool(false))),
        ..Record::default()
    }
}

/// Returns the storages that a call writes: outputs that are not views of an input, and inputs that the schema marks as
/// written, as in `aten::add_(Tensor(a!) self, …)`. A Triton kernel has no such marks, so all its arguments count as
/// written.
fn written_by(inputs: &Arguments, outputs: &Arguments, schema: &str, has_kernel: bool) -> BTreeSet<u64> {
    let read = inputs.storages();
    let mut written: BTreeSet<u64> = outputs.storages().difference(&read).copied().collect();
    if has_kernel {
        written.extend(&read);
    } else if schema.contains('!') {
        for (place, _) in parameters(schema).iter().enumerate().filter(|(_, one)| one.contains('!')) {
            written.extend(inputs.tensors(place).iter().map(|tensor| tensor.storage).filter(|&one| one > 0));
        }
    }
    written
}

/// Returns the parameters in a schema such as `aten::mul.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)`, in the
/// order of the inputs.
fn parameters(schema: &str) -> Vec<&str> {
    let (_, rest) = schema.split_once('(').unwrap_or_default();
    let (mut found, mut depth, mut from) = (Vec::new(), 0_u32, 0);
    for (at, one) in rest.char_indices() {
        match one {
            '(' | '[' => depth += 1,
            ')' | ',' if depth == 0 => {
                found.push(rest[from..at].trim());
                from = at + 1;
                if one == ')' {
                    break;
                }
            }
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    found.retain(|one| *one != "*");
    found
}

/// The process groups of a job.
struct Groups {
    world_size: Option<u32>,
    /// Groups by the identifier that records use.
    known: BTreeMap<Group, Known>,
}

#[derive(Clone, Default)]
struct Known {
    name: Arc<str>,
    ranks: Option<Arc<[u32]>>,
    size: Option<u64>,
}

impl Groups {
    /// # Errors
    /// [`TraceError::Ranks`] if there are more than [`MAX_RANKS`].
    fn of(distributed: &Distributed, nodes: &[Node]) -> Result<Self, TraceError> {
        // `pg_config_info` lists no ranks for a group of all ranks.
        let size = |group: &ProcessGroup| group.pg_size.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        let mut world_size = distributed.pg_config.iter().find(|group| group.ranks.is_empty()).and_then(size);
        let mut known = BTreeMap::new();
        let records = || nodes.iter().filter_map(|node| node.record.as_deref()).filter(|record| record.moves());
        if distributed.pg_config.is_empty() {
            // The first group of a job contains all ranks of the job.
            let of_all = |record: &Record| record.group == Group::Name("0".into()) && record.first == Some(0);
            let size = records().find(|record| of_all(record)).and_then(|record| record.group_size);
            world_size = size.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        }
        plausible(None, world_size, &[])?;
        let all: Option<Arc<[u32]>> = world_size.map(|size| (0..size).collect());
        // Budget for groups whose ranks the file gives only by number and stride. The budget limits the memory that a
        // file can allocate.
        let mut room = u64::from(MAX_RANKS);
        for record in records() {
            if known.contains_key(&record.group) {
                continue;
            }
            let listed = match &record.group {
                Group::Unsaid if distributed.pg_config.len() == 1 => distributed.pg_config.first(),
                Group::Unsaid => None,
                Group::Name(name) => distributed.group(name),
                Group::Address(id) => distributed.pg_config.iter().find(|group| group.backend_id == Some(*id)),
            };
            let size = record.group_size.or_else(|| distributed.group_size(&listed?.pg_name));
            let size = size.or_else(|| world_size.map(u64::from).filter(|&size| size == 1));
            let name = match (&record.group, listed) {
                (Group::Name(name), _) => name.as_str(),
                (_, listed) => listed.map_or("", |group| group.pg_name.as_str()),
            };
            let ranks =
                listed.and_then(|group| if group.ranks.is_empty() { all.clone() } else { Some(group.ranks.clone()) });
            let ranks = ranks.or_else(|| strided(record.first?, record.stride?, record.group_size?, &mut room));
            known.insert(record.group.clone(), Known { name: name.into(), ranks, size });
        }
        Ok(Self { world_size, known })
    }

    /// Returns whether a record belongs to a group of one rank. Such a group transfers nothing.
    fn is_of_one(&self, record: &Record) -> bool {
        record.group_size.or_else(|| self.known.get(&record.group)?.size) == Some(1)
    }

    /// Returns the rank of this trace, which the records of rootless collectives contain; `None` if these records
    /// differ.
    fn own_rank(&self, nodes: &[Node], tree: &Tree) -> Option<u32> {
        use CollectiveType::{AllGather, AllReduce, AllToAll, Barrier, ReduceScatter};
        let rootless = [AllGather, AllReduce, AllToAll, Barrier, ReduceScatter];
        let records = nodes.iter().enumerate().filter(|&(index, _)| tree.is_transfer[index]);
        let records = records.filter_map(|(_, node)| node.record.as_deref()).filter(|record| record.is_of_backend);
        let said: BTreeSet<u32> = records
            .filter(|record| record.kind.and_then(|kind| kind.1).is_some_and(|kind| rootless.contains(&kind)))
            .filter_map(|record| self.known.get(&record.group)?.rank(record.rank?))
            .collect();
        if said.len() == 1 { said.first().copied() } else { None }
    }
}

impl Known {
    /// Returns the global rank of the rank with number `within` in the group.
    fn rank(&self, within: u32) -> Option<u32> {
        self.ranks.as_ref()?.get(within as usize).copied()
    }
}

/// Returns the ranks of a group with a constant stride, or `None` if the budget `room` is too small.
fn strided(first: u32, stride: u32, size: u64, room: &mut u64) -> Option<Arc<[u32]>> {
    let last = u64::from(first).checked_add(u64::from(stride).checked_mul(size.checked_sub(1)?)?)?;
    if stride == 0 || last >= u64::from(MAX_RANKS) {
        return None;
    }
    *room = room.checked_sub(size)?;
    Some((0..size as u32).map(|place| first + stride * place).collect())
}

/// The call tree. All lists are indexed by node, in the order of ids.
struct Tree {
    is_transfer: Vec<bool>,
    /// For an operator that becomes an op and for all nodes inside it: the index of that operator.
    op: Vec<Option<usize>>,
    /// Index of the enclosing c10d call. Its information completes the records of old versions.
    call: Vec<Option<usize>>,
    part: Vec<StepPart>,
}

impl Tree {
    fn of(nodes: &[Node], groups: &Groups, gaps: &mut Gaps) -> Self {
        // A parent begins before its children, so its id is smaller. The node of the process is its own parent.
        let parent_of = |(index, node): (usize, &Node)| {
            let found = nodes[..index].binary_search_by_key(&node.parent, |one| one.id).ok();
            if found.is_none() && node.parent != node.id && node.parent > 1 {
                gaps.add(Gap::Dependency, &node.name);
            }
            found
        };
        let parent: Vec<Option<usize>> = nodes.iter().enumerate().map(parent_of).collect();
        let count = nodes.len();
        let mut has_record = vec![false; count];
        for index in (0..count).rev() {
            let is_record = nodes[index].record.as_ref().is_some_and(|record| record.is_of_backend);
            if let Some(parent) = parent[index].filter(|_| is_record || has_record[index]) {
                has_record[parent] = true;
            }
        }
        let mut is_transfer = vec![false; count];
        let mut is_inside = vec![false; count];
        let mut part = vec![StepPart::Unsaid; count];
        let mut call = vec![None; count];
        for index in 0..count {
            let node = &nodes[index];
            if let Some(parent) = parent[index] {
                is_inside[index] = is_inside[parent] || is_transfer[parent];
                part[index] = part[parent];
                let is_call = nodes[parent].record.as_ref().is_some_and(|record| !record.is_of_backend);
                call[index] = if is_call { Some(parent) } else { call[parent] };
            }
            if part[index] == StepPart::Unsaid {
                let is_update = node.name.starts_with("Optimizer.step#");
                part[index] = if is_update { StepPart::Update } else { StepPart::of_name(&node.name) };
            }
            // If the call contains a record, the record represents the transfer, because it has more detail.
            is_transfer[index] = !is_inside[index]
                && node.record.as_deref().is_some_and(|record| {
                    let is_said = record.is_of_backend || (record.kind.is_some() && !has_record[index]);
                    is_said && record.moves() && !groups.is_of_one(record)
                });
        }
        let mut has_transfer = vec![false; count];
        for index in (0..count).rev() {
            if let Some(parent) = parent[index].filter(|_| is_transfer[index] || has_transfer[index]) {
                has_transfer[parent] = true;
            }
        }
        let mut op: Vec<Option<usize>> = vec![None; count];
        for index in 0..count {
            let is_own = nodes[index].is_operator
                && !has_transfer[index]
                && !is_transfer[index]
                && !is_inside[index]
                && !nodes[index].record.as_ref().is_some_and(|record| record.is_of_backend);
            op[index] = parent[index].and_then(|parent| op[parent]).or(is_own.then_some(index));
        }
        Self { is_transfer, op, call, part }
    }
}

/// The ops so far, and the state that determines the dependencies of later ops.
#[derive(Default)]
struct Graph {
    ops: Vec<TraceOp>,
    /// Data and control dependencies of each op.
    deps: Vec<[BTreeSet<u64>; 2]>,
    /// Index in `ops` of each operator, by the index of its node.
    places: BTreeMap<usize, usize>,
    /// Id of the last operator of each thread.
    last: BTreeMap<u64, u64>,
    /// Id of the last collective of each group. Collectives of a group run one after another, while messages may run
    /// concurrently.
    last_of_group: BTreeMap<Arc<str>, u64>,
    /// Id of the op that last wrote each storage.
    writers: BTreeMap<u64, u64>,
    /// Transfers for which no `wait` has followed yet, by sequence number.
    begun: BTreeMap<Sequence, Vec<(Group, u64)>>,
    /// Transfers for which each thread has waited since its last operator.
    awaited: BTreeMap<u64, BTreeSet<u64>>,
}

impl Graph {
    /// Adds a node. Nodes must be added in the order of their start.
    fn add(&mut self, index: usize, nodes: &[Node], tree: &Tree, groups: &Groups, gaps: &mut Gaps) {
        let node = &nodes[index];
        let record = node.record.as_deref();
        let call = tree.call[index].and_then(|call| nodes[call].record.as_deref());
        let place = match (record, tree.op[index]) {
            _ if tree.is_transfer[index] => self.transfer(node, tree.part[index], [record, call], groups, gaps),
            (_, Some(op)) if op == index => self.operator(index, node, tree.part[index]),
            (_, Some(op)) => self.places[&op],
            (Some(record), None) if record.what == "wait" => {
                self.wait(node.thread, record, None);
                return;
            }
            _ => return,
        };
        let id = self.ops[place].id;
        if let Some(record) = record.filter(|record| record.what == "wait") {
            self.wait(node.thread, record, Some(place));
        }
        // A writer that began after this operator did runs inside it, so the operator as a whole cannot depend on that
        // writer.
        let written = node.reads.iter().filter_map(|storage| self.writers.get(storage)).filter(|&&one| one < id);
        self.deps[place][0].extend(written);
        self.writers.extend(node.writes.iter().map(|&storage| (storage, id)));
    }

    /// Processes a `wait`. If the `wait` lies within an operator, the operator depends on the transfer; otherwise, the
    /// next op of the thread does.
    ///
    /// In old versions a `wait` lacks the group, or the sequence number as well. It then refers to the last transfer
    /// that began.
    fn wait(&mut self, thread: u64, wait: &Record, operator: Option<usize>) {
        let Some(begun) = self.begun.get_mut(&wait.sequence) else { return };
        let is_it = |(group, _): &(Group, u64)| wait.group == Group::Unsaid || wait.group == *group;
        let Some(place) = begun.iter().rposition(is_it) else { return };
        let (_, transfer) = begun.remove(place);
        match operator {
            Some(place) if transfer < self.ops[place].id => self.deps[place][1].insert(transfer),
            _ => self.awaited.entry(thread).or_default().insert(transfer),
        };
    }

    fn operator(&mut self, index: usize, node: &Node, pass: StepPart) -> usize {
        let mut waits = self.awaited.remove(&node.thread).unwrap_or_default();
        waits.extend(self.last.insert(node.thread, node.id));
        self.places.insert(index, self.ops.len());
        self.push(node, pass, NodeType::Comp, None, waits)
    }

    fn transfer(
        &mut self,
        node: &Node,
        pass: StepPart,
        [record, call]: [Option<&Record>; 2],
        groups: &Groups,
        gaps: &mut Gaps,
    ) -> usize {
        let record = record.expect("a transfer has a record");
        // The call is asynchronous, so later ops depend on data or on a `wait`, but not on the call.
        let mut waits = self.awaited.get(&node.thread).cloned().unwrap_or_default();
        waits.extend(self.last.get(&node.thread));
        let (kind, collective) = record.kind.or(call.and_then(|call| call.kind)).unwrap_or((NodeType::Coll, None));
        let bytes = record.bytes.or(call.and_then(|call| call.bytes));
        let called = call.map_or(&Group::Unsaid, |call| &call.group);
        let key = if record.group == Group::Unsaid { called } else { &record.group };
        let known = groups.known.get(key).cloned().unwrap_or_default();
        let group = known.name.clone();
        if kind == NodeType::Coll {
            waits.extend(self.last_of_group.insert(group.clone(), node.id));
        }
        self.begun.entry(record.sequence).or_default().push((record.group.clone(), node.id));
        if record.is_blocking || call.is_some_and(|call| call.is_blocking) {
            self.awaited.entry(node.thread).or_default().insert(node.id);
        }
        let is_barrier = collective == Some(CollectiveType::Barrier);
        if record.is_assumed && !is_barrier {
            gaps.add(Gap::ElementType, &node.name);
        }
        let peer = record.rank.filter(|_| kind != NodeType::Coll);
        let comm = Comm {
            collective,
            bytes: if is_barrier { Some(0) } else { bytes },
            // Until the rank of this trace is known, the peer represents both ends.
            ends: peer.and_then(|peer| known.rank(peer)).map(|rank| (rank, rank)),
            ranks: known.ranks,
            group,
            ..Comm::default()
        };
        self.push(node, pass, kind, Some(Box::new(comm)), waits)
    }

    fn push(
        &mut self,
        node: &Node,
        pass: StepPart,
        kind: NodeType,
        comm: Option<Box<Comm>>,
        waits: BTreeSet<u64>,
    ) -> usize {
        self.deps.push([BTreeSet::new(), waits]);
        self.ops.push(TraceOp {
            id: node.id,
            name: node.name.clone(),
            kind,
            is_host: comm.is_none(),
            pass,
            start_ns: 0,
            duration_ns: 0,
            data_deps: Box::default(),
            ctrl_deps: Box::default(),
            comm,
        });
        self.ops.len() - 1
    }

    fn finish(self) -> Vec<TraceOp> {
        let mut ops = self.ops;
        for (op, [data, ctrl]) in ops.iter_mut().zip(self.deps) {
            op.ctrl_deps = ctrl.difference(&data).copied().collect();
            op.data_deps = data.into_iter().collect();
        }
        ops
    }
}
