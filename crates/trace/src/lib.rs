//! Readers for traces of other tools: PyTorch's profiler (Kineto) and ExecutionTraceObserver, and MLCommons Chakra. All
//! are converted to one representation ([`RankTrace`]).
//!
//! A reader consumes a file in chunks and keeps the ops of a step: computation, communication, and their dependencies.
//! The caller opens and decompresses the files and assigns them to ranks. docs/models/traces.md lists the contents and
//! gaps of each format. A "gap" is information that a file lacks or that the representation cannot hold.

pub mod chakra;
pub mod dag;
pub mod execution_trace;
mod job;
mod json;
mod kernels;
pub mod kineto;
mod sizes;
pub mod step;
pub mod tables;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;

/// Maximum size of a message or event, in bytes. It limits the memory that a corrupt file can allocate.
pub const MAX_PIECE_BYTES: usize = 16 << 20;

/// Maximum number of ranks of a job. It limits the memory that a number in a file can allocate.
pub const MAX_RANKS: u32 = 1_000_000;

/// Maximum number of ranks of a group that a table lists.
pub const MAX_LISTED_RANKS: usize = 1024;

/// The trace of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTrace {
    /// Ops, in the order of the file (Chakra) or of their start (Kineto, ExecutionTraceObserver).
    pub ops: Vec<TraceOp>,
    /// Steps marked by the profiler (`ProfilerStep#7`), in the order of the file, for the device as well as for the
    /// host.
    pub marks: Vec<Mark>,
    /// Start times of events without a duration, on the rank's own clock. These events are not in `ops`.
    pub untimed_ns: Vec<u64>,
    /// Metadata of the file.
    pub about: About,
    /// Counts of information that the file lacks or that `ops` cannot represent.
    pub gaps: Gaps,
}

/// Number of gaps, by kind of gap and by the name of the affected event in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps(BTreeMap<(Gap, Arc<str>), Counted>);

/// Invalid elements of a file, by gap ([`Gap::Mended`] or [`Gap::Damaged`]) and kind of element: their number, and the
/// line of the first.
#[derive(Default)]
pub(crate) struct Damage(BTreeMap<(Gap, Arc<str>), (u64, u64)>);

impl Damage {
    /// Counts one invalid element. `line` returns the line of the element; it is called only for the first element of a
    /// gap and kind.
    pub fn add(&mut self, gap: Gap, kind: &str, line: &mut dyn FnMut() -> u64) {
        self.0.entry((gap, kind.into())).or_insert_with(|| (0, line())).0 += 1;
    }

    /// Returns the line of the first invalid element, or `None` if there is none.
    pub fn first_line(&self) -> Option<u64> {
        self.0.values().map(|&(_, line)| line).min()
    }

    /// Adds the counts to the gaps of the file.
    pub fn add_to(&self, gaps: &mut Gaps) {
        for ((gap, kind), (count, line)) in &self.0 {
            gaps.add_many(*gap, &format!("{kind} from line {line}"), *count);
        }
    }
}

/// Number of gaps of one kind and name, with the times of the affected events if they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counted {
    /// Number of gaps whose time is unknown.
    untimed: u64,
    at_ns: Vec<u64>,
}

impl Counted {
    fn all(&self) -> u64 {
        self.untimed + self.at_ns.len() as u64
    }
}

impl Gaps {
    /// Counts one gap.
    pub fn add(&mut self, gap: Gap, name: &str) {
        self.add_many(gap, name, 1);
    }

    /// Counts `count` gaps.
    pub fn add_many(&mut self, gap: Gap, name: &str, count: u64) {
        if count > 0 {
            self.0.entry((gap, name.into())).or_default().untimed += count;
        }
    }

    /// Counts one gap for an event that began at `at_ns` on the rank's own clock.
    pub fn add_at(&mut self, gap: Gap, name: &str, at_ns: u64) {
        self.0.entry((gap, name.into())).or_default().at_ns.push(at_ns);
    }

    /// Returns the number of gaps for every kind and name.
    pub fn iter(&self) -> impl Iterator<Item = (Gap, &str, u64)> {
        self.0.iter().map(|((gap, name), counted)| (*gap, name.as_ref(), counted.all()))
    }

    /// Returns the number of gaps for every kind and name, counting only gaps between `start_ns` and `end_ns` and gaps
    /// without a time.
    pub fn within(&self, start_ns: u64, end_ns: u64) -> impl Iterator<Item = (Gap, &str, u64)> {
        let count = move |one: &Counted| {
            one.untimed + one.at_ns.iter().filter(|&&ns| (start_ns..end_ns).contains(&ns)).count() as u64
        };
        let counts = self.0.iter().map(move |((gap, name), counted)| (*gap, name.as_ref(), count(counted)));
        counts.filter(|&(.., count)| count > 0)
    }

    /// Returns the number of gaps of a kind.
    pub fn count(&self, gap: Gap) -> u64 {
        self.iter().filter(|&(other, ..)| other == gap).map(|(.., count)| count).sum()
    }
}

/// Kinds of gaps: which information is missing in a file or cannot be represented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gap {
    /// The size of a transfer.
    Size,
    /// The element type of a transfer is unknown. Float32 is assumed.
    ElementType,
    /// The kind of a collective is unknown. An all-reduce is assumed.
    CollectiveType,
    /// The kind of a transfer is unknown, and therefore its bytes. The transfer still counts as communication.
    UnknownTransfer,
    /// The process group of a collective is unknown, in a job with several groups. The collective is assumed to include
    /// all ranks.
    Group,
    /// No kernel or backend event was recorded for an enqueued communication call. The call is left out.
    UnmatchedCall,
    /// Events have an unknown category. They are left out.
    UnknownCategory,
    /// The duration of a compute node.
    Duration,
    /// No node has a start time, because the file describes a workload instead of a recording.
    Start,
    /// An op depends on an op that is not in the file. The dependency is left out.
    Dependency,
    /// Nodes with a duration neither compute nor communicate, such as writing a checkpoint. Their meaning is lost.
    Other,
    /// Events are invalid or lack a time. They are left out. The name of the gap is their category and the line of the
    /// first one.
    Damaged,
    /// Parts of events had invalid JSON and were repaired.
    Mended,
}

impl Gap {
    /// Returns the name of this kind of gap in Python.
    pub fn word(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::ElementType => "element_type",
            Self::CollectiveType => "collective_type",
            Self::UnknownTransfer => "unknown_transfer",
            Self::Group => "group",
            Self::UnmatchedCall => "unmatched_call",
            Self::UnknownCategory => "unknown_category",
            Self::Duration => "duration",
            Self::Start => "start",
            Self::Dependency => "dependency",
            Self::Other => "other",
            Self::Damaged => "damaged",
            Self::Mended => "mended",
        }
    }
}

/// A step that the profiler has marked, such as `ProfilerStep#7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Number of the step.
    pub number: u64,
    /// Whether the mark spans calls of the host. Otherwise, it spans the work that these calls launched on a device
    /// stream.
    pub is_host: bool,
    /// Start, on the rank's own clock.
    pub start_ns: u64,
    /// End, on the rank's own clock.
    pub end_ns: u64,
}

/// Metadata of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// Rank, if the file contains it.
    pub rank: Option<u32>,
    /// Number of ranks of the job, if the file contains it.
    pub world_size: Option<u32>,
    /// Version of the schema, or "".
    pub version: String,
    /// Purposes of process groups, such as `mesh_tp`, by the name of the group.
    pub described: BTreeMap<String, String>,
}

/// An op of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceOp {
    /// Id of the op in the file. Kineto has no ids, so the id is an index there.
    pub id: u64,
    /// Name of the op in the file.
    pub name: Arc<str>,
    /// Type of work.
    pub kind: NodeType,
    /// Whether the op runs on the host. On ranks with a device, such ops launch work on the device.
    pub is_host: bool,
    /// Part of the step to which the op belongs, if known.
    pub pass: StepPart,
    /// Start, on the rank's own clock.
    pub start_ns: u64,
    /// Duration.
    pub duration_ns: u64,
    /// Data dependencies: ids of the ops whose outputs this op reads.
    pub data_deps: Box<[u64]>,
    /// Control dependencies: ids of other ops that must end before this op.
    pub ctrl_deps: Box<[u64]>,
    /// Communication between ranks, if any.
    pub comm: Option<Box<Comm>>,
}

impl TraceOp {
    /// Returns the end, on the rank's own clock.
    pub fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }

    /// Returns the name of the kind of communication.
    pub fn transfer_word(&self) -> &'static str {
        match self.comm.as_ref().and_then(|comm| comm.collective) {
            Some(collective) => collective.word(),
            None if self.kind == NodeType::Coll => "unknown",
            None => self.kind.word(),
        }
    }
}

/// The part of a step to which an op belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepPart {
    /// The part is unknown. Forward passes are never marked, so their ops belong here.
    #[default]
    Unsaid,
    /// Backward pass: ops called by autograd's engine.
    Backward,
    /// Update: ops called by the optimizer.
    Update,
}

impl StepPart {
    /// Returns the part of a step to which a host op with this name belongs.
    pub fn of_name(name: &str) -> Self {
        if name.starts_with("autograd::engine::evaluate_function") { Self::Backward } else { Self::Unsaid }
    }
}

/// Communication between ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comm {
    /// Kind of collective; `None` for a point-to-point message and for a collective of unknown kind.
    pub collective: Option<CollectiveType>,
    /// Bytes of this rank's buffer according to the file, if known.
    pub bytes: Option<u64>,
    /// Name of the process group, or "".
    pub group: Arc<str>,
    /// Ranks of the process group, if the file lists them.
    pub ranks: Option<Arc<[u32]>>,
    /// Sender and receiver of a point-to-point message.
    pub ends: Option<(u32, u32)>,
    /// Tag that distinguishes messages between the same two ranks; 0 if there is none.
    pub tag: u32,
    /// Time at which the transfer became ready, if known: the time of its call, or the time at which its data had been
    /// computed.
    pub ready_ns: Option<u64>,
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All values, in the order of Chakra's numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Returns Chakra's number.
            pub fn number(self) -> i32 {
                match self { $(Self::$variant => $number),* }
            }

            /// Returns the name in tables and files.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// Returns the value with Chakra's number `number`.
            pub fn from_number(number: i32) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.number() == number)
            }

            /// Returns the value with name `word`.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }
        }
    };
}

numbered! {
    /// Type of an op; Chakra's `NodeType`.
    NodeType {
        /// Metadata of the trace.
        Metadata = 1, "metadata";
        /// Reads memory.
        MemLoad = 2, "mem_load";
        /// Writes memory.
        MemStore = 3, "mem_store";
        /// Computes.
        Comp = 4, "comp";
        /// Sends to one rank.
        Send = 5, "send";
        /// Receives from one rank.
        Recv = 6, "recv";
        /// Takes part in a collective.
        Coll = 7, "coll";
        /// Reads or writes a file.
        Storage = 8, "storage";
        /// Marks a batch.
        Batch = 9, "batch";
        /// Saves the state of training.
        Checkpoint = 10, "checkpoint";
    }
}

impl NodeType {
    /// Returns whether the op communicates between ranks.
    pub fn is_comm(self) -> bool {
        matches!(self, Self::Send | Self::Recv | Self::Coll)
    }

    /// Returns whether the op occupies a processor or its memory.
    pub fn is_busy(self) -> bool {
        matches!(self, Self::Comp | Self::MemLoad | Self::MemStore)
    }
}

numbered! {
    /// Chakra's `CollectiveCommType`.
    CollectiveType {
        /// Every rank gets the sum.
        AllReduce = 0, "all_reduce";
        /// One rank gets the sum.
        Reduce = 1, "reduce";
        /// Every rank gets the buffers of all.
        AllGather = 2, "all_gather";
        /// One rank gets the buffers of all.
        Gather = 3, "gather";
        /// One rank sends each rank its part.
        Scatter = 4, "scatter";
        /// One rank sends its buffer to all.
        Broadcast = 5, "broadcast";
        /// Each rank sends each rank a part.
        AllToAll = 6, "all_to_all";
        /// Each rank gets its part of the sum.
        ReduceScatter = 7, "reduce_scatter";
        /// Reduce-scatter with parts of equal size.
        ReduceScatterBlock = 8, "reduce_scatter_block";
        /// No rank proceeds before all have arrived.
        Barrier = 9, "barrier";
    }
}

/// Reason why a file cannot be read. Positions are byte offsets in the uncompressed file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TraceError {
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The file has another format.
    #[error("it is no {format}: {what}, at byte {at}")]
    NotThis {
        /// Expected format.
        format: &'static str,
        /// Content found instead.
        what: String,
        /// Byte offset of that content.
        at: u64,
    },
    /// The file is incomplete, because the recording or a copy was cut off.
    #[error("it is cut off at byte {at}, after {seen} {unit}; record or copy it again")]
    Truncated {
        /// Length of the file.
        at: u64,
        /// Number of complete pieces.
        seen: u64,
        /// Name of the pieces.
        unit: &'static str,
    },
    /// A piece is invalid.
    #[error("{unit} {number}, at byte {at}: {what}")]
    Piece {
        /// Name of the piece.
        unit: &'static str,
        /// Index of the piece, from 0.
        number: u64,
        /// Byte offset of the start of the piece.
        at: u64,
        /// Description of the fault.
        what: String,
    },
    /// The file is complete but contains no ops with a duration.
    #[error("it holds no ops: {what}")]
    NoOps {
        /// Advice to the user.
        what: Cow<'static, str>,
    },
    /// Two ops have the same id.
    #[error("two ops have the id {0}")]
    SameId(u64),
    /// A rank or a number of ranks is out of range.
    #[error("`{field}` is {value}; a job has at most 1,000,000 ranks")]
    Ranks {
        /// Field of the file.
        field: &'static str,
        /// Value of the field.
        value: u32,
    },
}

/// Interner for strings.
#[derive(Default)]
struct Names(BTreeMap<Arc<str>, ()>);

impl Names {
    fn get(&mut self, text: &str) -> Arc<str> {
        if let Some((known, ())) = self.0.get_key_value(text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        self.0.insert(text.clone(), ());
        text
    }
}

/// Checks that all ranks and the number of ranks are within [`MAX_RANKS`].
///
/// # Errors
/// [`TraceError::Ranks`].
fn plausible(rank: Option<u32>, world_size: Option<u32>, group: &[u32]) -> Result<(), TraceError> {
    let ranks = rank.map(|rank| ("rank", rank)).into_iter().chain(group.iter().map(|&rank| ("ranks", rank)));
    let wrong = ranks.clone().find(|&(_, rank)| rank >= MAX_RANKS);
    let wrong = wrong.or_else(|| Some(("world_size", world_size.filter(|&size| size > MAX_RANKS)?)));
    wrong.map_or(Ok(()), |(field, value)| Err(TraceError::Ranks { field, value }))
}

/// Removes dependencies on ops that the file does not contain, and counts the gaps that are common to all formats.
///
/// # Errors
/// [`TraceError::SameId`].
fn checked(ops: &mut [TraceOp], gaps: &mut Gaps) -> Result<(), TraceError> {
    let mut ids: Vec<u64> = ops.iter().map(|op| op.id).collect();
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(TraceError::SameId(pair[0]));
    }
    for op in ops {
        for deps in [&mut op.data_deps, &mut op.ctrl_deps] {
            let missing = deps.iter().filter(|dep| ids.binary_search(dep).is_err()).count();
            if missing > 0 {
                gaps.add_many(Gap::Dependency, &op.name, missing as u64);
                *deps = deps.iter().copied().filter(|dep| ids.binary_search(dep).is_ok()).collect();
            }
        }
        if let Some(comm) = &op.comm
            && comm.bytes.is_none()
            && comm.collective != Some(CollectiveType::Barrier)
            // Ops of unknown kind are already counted as [`Gap::UnknownTransfer`].
            && (op.kind != NodeType::Coll || comm.collective.is_some())
        {
            gaps.add_at(Gap::Size, &op.name, op.start_ns);
        }
        if op.duration_ns > 0 && !op.kind.is_comm() && !op.kind.is_busy() {
            gaps.add(Gap::Other, op.kind.word());
        }
    }
    Ok(())
}
