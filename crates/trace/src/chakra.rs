//! Reader and writer of MLCommons Chakra execution traces. A file consists of length-delimited protobuf messages:
//! `GlobalMetadata`, then nodes.
//!
//! The messages follow `et_def.proto` of schema 0.0.4; 1.0.0 has the same field numbers (docs/models/traces.md). Fields
//! that are not used (tensors, shapes) are skipped as unknown fields.

use crate::kernels::named;
use crate::{
    About, CollectiveType, Comm, Gap, Gaps, MAX_PIECE_BYTES, Names, NodeType, RankTrace, StepPart, TraceError, TraceOp,
    checked,
};
use gradtide_watch::check_cancelled;
use prost::Message;

const FORMAT: &str = "Chakra trace";
const NS_PER_US: u64 = 1000;

/// The message `GlobalMetadata`. Field 1 is read as bytes, because it was a list of attributes before version 0.0.4.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(bytes = "vec", repeated, tag = "1")]
    version: Vec<Vec<u8>>,
}

/// The message `Node`.
#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(int32, tag = "3")]
    kind: i32,
    #[prost(uint64, repeated, tag = "4")]
    ctrl_deps: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    data_deps: Vec<u64>,
    #[prost(uint64, tag = "6")]
    start_time_micros: u64,
    #[prost(uint64, tag = "7")]
    duration_micros: u64,
    #[prost(message, repeated, tag = "10")]
    attr: Vec<Attribute>,
}

/// The message `AttributeProto`.
#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(oneof = "Value", tags = "7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29")]
    value: Option<Value>,
}

/// The scalars of `AttributeProto.value`. Writers use different integer types for the same attribute.
#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(uint32, tag = "11")]
    Uint32(u32),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(sint32, tag = "15")]
    Sint32(i32),
    #[prost(sint64, tag = "17")]
    Sint64(i64),
    #[prost(fixed32, tag = "19")]
    Fixed32(u32),
    #[prost(fixed64, tag = "21")]
    Fixed64(u64),
    #[prost(sfixed32, tag = "23")]
    Sfixed32(i32),
    #[prost(sfixed64, tag = "25")]
    Sfixed64(i64),
    #[prost(bool, tag = "27")]
    Bool(bool),
    #[prost(string, tag = "29")]
    Text(String),
}

impl Value {
    fn whole(&self) -> Option<i128> {
        Some(match *self {
            Self::Int32(value) | Self::Sint32(value) | Self::Sfixed32(value) => value.into(),
            Self::Int64(value) | Self::Sint64(value) | Self::Sfixed64(value) => value.into(),
            Self::Uint32(value) | Self::Fixed32(value) => value.into(),
            Self::Uint64(value) | Self::Fixed64(value) => value.into(),
            Self::Bool(_) | Self::Text(_) => return None,
        })
    }
}

/// Reader of one rank's file, which it consumes chunk by chunk.
#[derive(Default)]
pub struct ChakraReader {
    pending: Vec<u8>,
    /// Number of bytes of `pending` that have been processed.
    done: usize,
    /// Offset of `pending` in the file.
    at: u64,
    messages: u64,
    trace: RankTrace,
    names: Names,
}

impl ChakraReader {
    /// Reads the next bytes of the file.
    ///
    /// # Errors
    /// [`TraceError::NotThis`] if the file has another format, [`TraceError::Piece`] if a node is invalid.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), TraceError> {
        self.pending.drain(..self.done);
        self.at += self.done as u64;
        self.done = 0;
        self.pending.extend_from_slice(chunk);
        while let Some((start, end)) = self.frame()? {
            check_cancelled();
            let message = &self.pending[start..end];
            let read = if self.messages == 0 {
                metadata(message).map(|about| self.trace.about = about)
            } else {
                op(message, &mut self.names, &mut self.trace.gaps).map(|op| self.trace.ops.push(op))
            };
            read.map_err(|what| self.fault(what))?;
            self.messages += 1;
            self.done = end;
        }
        Ok(())
    }

    /// Completes the trace at the end of the file.
    ///
    /// # Errors
    /// [`TraceError::Empty`], [`TraceError::Truncated`], [`TraceError::NoOps`] or [`TraceError::SameId`].
    pub fn finish(mut self) -> Result<RankTrace, TraceError> {
        let length = self.at + self.pending.len() as u64;
        if length == 0 {
            return Err(TraceError::Empty);
        }
        if self.done < self.pending.len() {
            if self.messages < 2 {
                return Err(self.fault("its first messages do not end".to_owned()));
            }
            return Err(TraceError::Truncated { at: length, seen: self.messages - 1, unit: "nodes" });
        }
        if self.trace.ops.is_empty() {
            return Err(TraceError::NoOps { what: "there are no nodes after the metadata".into() });
        }
        let RankTrace { ops, gaps, .. } = &mut self.trace;
        checked(ops, gaps)?;
        if ops.len() > 1 && ops.iter().all(|op| op.start_ns == 0) {
            gaps.add_many(Gap::Start, "", ops.len() as u64);
        }
        Ok(self.trace)
    }

    /// Returns the range of the next complete message in `pending`, or `None` if it is incomplete.
    fn frame(&self) -> Result<Option<(usize, usize)>, TraceError> {
        let rest = &self.pending[self.done..];
        // A varint ends with the first byte below 128, and has at most ten bytes.
        let Some(last) = rest.iter().take(10).position(|&byte| byte < 0x80) else {
            return if rest.len() < 10 {
                Ok(None)
            } else {
                Err(self.fault("a length of more than 64 bits".to_owned()))
            };
        };
        let length = rest[..=last].iter().rev().fold(0_u128, |sum, &byte| (sum << 7) | u128::from(byte & 0x7f));
        if length > MAX_PIECE_BYTES as u128 {
            return Err(self.fault(format!("a message of {length} bytes")));
        }
        let start = self.done + last + 1;
        let end = start + length as usize;
        Ok((end <= self.pending.len()).then_some((start, end)))
    }

    /// Returns the error for the current message. If this is the first node, the file is assumed to have another
    /// format.
    fn fault(&self, what: String) -> TraceError {
        let at = self.at + self.done as u64;
        match self.messages {
            0 | 1 => TraceError::NotThis { format: FORMAT, what, at },
            number => TraceError::Piece { unit: "node", number: number - 1, at, what },
        }
    }
}

fn metadata(message: &[u8]) -> Result<About, String> {
    let metadata = Metadata::decode(message).map_err(|error| error.to_string())?;
    let text = metadata.version.into_iter().next().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    let is_version = text.chars().all(|one| one.is_ascii_graphic());
    Ok(About { version: if is_version { text } else { String::new() }, ..About::default() })
}

fn op(message: &[u8], names: &mut Names, gaps: &mut Gaps) -> Result<TraceOp, String> {
    let node = Node::decode(message).map_err(|error| error.to_string())?;
    let kind =
        NodeType::from_number(node.kind).ok_or_else(|| format!("no type of node has the number {}", node.kind))?;
    let has = |name: &str| node.attr.iter().any(|attr| attr.name == name);
    // Workload generators write the number of operations, and leave the duration to a device model.
    if kind.is_busy() && node.duration_micros == 0 && has("num_ops") {
        gaps.add(Gap::Duration, &node.name);
    }
    let by_name = named(node.name.strip_prefix("c10d::").unwrap_or(&node.name)).and_then(|(_, collective)| collective);
    if kind == NodeType::Coll && !has("comm_type") && by_name.is_none() {
        gaps.add(Gap::CollectiveType, &node.name);
    }
    let nanoseconds = |micros: u64| micros.checked_mul(NS_PER_US).ok_or_else(|| format!("a time of {micros} us"));
    Ok(TraceOp {
        id: node.id,
        name: names.get(&node.name),
        kind,
        pass: StepPart::of_name(&node.name),
        is_host: node.attr.iter().any(|attr| attr.name == "is_cpu_op" && is_true(attr.value.as_ref())),
        start_ns: nanoseconds(node.start_time_micros)?,
        duration_ns: nanoseconds(node.duration_micros)?,
        comm: if kind.is_comm() { Some(Box::new(comm(kind, &node.attr, by_name, names)?)) } else { None },
        data_deps: node.data_deps.into(),
        ctrl_deps: node.ctrl_deps.into(),
    })
}

fn is_true(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Bool(value)) => *value,
        other => other.and_then(Value::whole).is_some_and(|value| value != 0),
    }
}

fn comm(
    kind: NodeType,
    attributes: &[Attribute],
    by_name: Option<CollectiveType>,
    names: &mut Names,
) -> Result<Comm, String> {
    let value = |name: &str| attributes.iter().find(|attr| attr.name == name).and_then(|attr| attr.value.as_ref());
    let whole = |name: &str| value(name).and_then(Value::whole);
    let collective = if kind == NodeType::Coll {
        // Without `comm_type`, the collective is read from the name of the node. If the name contains no collective, it
        // is an all-reduce, because writers may omit a `comm_type` of 0, the number of the all-reduce.
        let number = whole("comm_type").unwrap_or_else(|| by_name.map_or(0, |one| one.number().into()));
        let known = i32::try_from(number).ok().and_then(CollectiveType::from_number);
        Some(known.ok_or_else(|| format!("no collective has the number {number}"))?)
    } else {
        None
    };
    // Writers write 0 if the size is unknown.
    let size = whole("comm_size").filter(|&size| size != 0);
    let rank = |name: &str| whole(name).and_then(|rank| u32::try_from(rank).ok());
    Ok(Comm {
        collective,
        bytes: size.map(|size| u64::try_from(size).map_err(|_| format!("comm_size is {size}"))).transpose()?,
        group: match value("pg_name") {
            Some(Value::Text(name)) => names.get(name),
            other => names.get(&other.and_then(Value::whole).map_or(String::new(), |number| number.to_string())),
        },
        ranks: None,
        ends: rank("comm_src").zip(rank("comm_dst")),
        tag: rank("comm_tag").unwrap_or_default(),
        ready_ns: None,
    })
}

/// Writes a trace as a Chakra file. Times are whole microseconds: starts are rounded down, durations to the nearest.
pub fn write(trace: &RankTrace, version: &str) -> Vec<u8> {
    let mut file = Vec::new();
    put(&mut file, &Metadata { version: vec![version.into()] });
    for op in &trace.ops {
        check_cancelled();
        let mut attr = vec![Attribute { name: "is_cpu_op".into(), value: Some(Value::Bool(op.is_host)) }];
        if let Some(comm) = &op.comm {
            let mut push = |name: &str, value| attr.push(Attribute { name: name.into(), value: Some(value) });
            if let Some(collective) = comm.collective {
                push("comm_type", Value::Int64(collective.number().into()));
            }
            push("comm_size", Value::Int64(i64::try_from(comm.bytes.unwrap_or(0)).unwrap_or(i64::MAX)));
            if !comm.group.is_empty() {
                push("pg_name", Value::Text(comm.group.to_string()));
            }
            if let Some((from, to)) = comm.ends {
                // ASTRA-sim reads these fields only as `int32`, which is enough for ranks below a million.
                push("comm_src", Value::Int32(from as i32));
                push("comm_dst", Value::Int32(to as i32));
            }
            if comm.tag > 0 {
                push("comm_tag", Value::Int32(i32::try_from(comm.tag).unwrap_or(i32::MAX)));
            }
        }
        put(
            &mut file,
            &Node {
                id: op.id,
                name: op.name.to_string(),
                kind: op.kind.number(),
                ctrl_deps: op.ctrl_deps.to_vec(),
                data_deps: op.data_deps.to_vec(),
                start_time_micros: op.start_ns / NS_PER_US,
                duration_micros: op.duration_ns.saturating_add(NS_PER_US / 2) / NS_PER_US,
                attr,
            },
        );
    }
    file
}

fn put(file: &mut Vec<u8>, message: &impl Message) {
    // Encoding into a growing vector cannot fail.
    message.encode_length_delimited(file).expect("a vector grows");
}
