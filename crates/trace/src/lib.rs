//! Traces that other tools recorded: PyTorch's profiler (Kineto) and ExecutionTraceObserver, and MLCommons Chakra, read
//! into one form.
//!
//! A reader is fed chunks of a file and keeps what a step is made of: what was computed, what was sent, and what waited
//! for what. Files, compression and names of ranks are the caller's. What each format says and does not say:
//! docs/models/traces.md.

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

/// Largest message or event that is accepted, in bytes; it bounds the memory that a broken file can ask for.
pub const MAX_PIECE_BYTES: usize = 16 << 20;

/// Most ranks of a job; no number in a file stands for more memory than this many ranks take.
pub const MAX_RANKS: u32 = 1_000_000;

/// Most ranks of a group that a table lists.
pub const MAX_LISTED_RANKS: usize = 1024;

/// What one rank did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTrace {
    /// In the order of the file (Chakra), or of their start (Kineto, ExecutionTraceObserver).
    pub ops: Vec<TraceOp>,
    /// Steps that the profiler was told of, in the order of the file; device's and host's.
    pub marks: Vec<Mark>,
    /// When something began, on the rank's own clock, of which the file does not say how long it took; it is no op.
    pub untimed_ns: Vec<u64>,
    /// What the file says of itself.
    pub about: About,
    /// What the file does not say, or what `ops` cannot represent.
    pub gaps: Gaps,
}

/// How often something is missing: by what it is, and by the name that the file has for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gaps(BTreeMap<(Gap, Arc<str>), Counted>);

/// How often, and when, where that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counted {
    /// Those of which nobody knows when.
    untimed: u64,
    at_ns: Vec<u64>,
}

impl Counted {
    fn all(&self) -> u64 {
        self.untimed + self.at_ns.len() as u64
    }
}

impl Gaps {
    /// Counts one more.
    pub fn add(&mut self, gap: Gap, name: &str) {
        self.add_many(gap, name, 1);
    }

    /// Counts `count` more.
    pub fn add_many(&mut self, gap: Gap, name: &str, count: u64) {
        if count > 0 {
            self.0.entry((gap, name.into())).or_default().untimed += count;
        }
    }

    /// Counts one more, of something that began at a time on the rank's own clock.
    pub fn add_at(&mut self, gap: Gap, name: &str, at_ns: u64) {
        self.0.entry((gap, name.into())).or_default().at_ns.push(at_ns);
    }

    /// Every kind of gap and name, with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Gap, &str, u64)> {
        self.0.iter().map(|((gap, name), counted)| (*gap, name.as_ref(), counted.all()))
    }

    /// The same of what is within a window, and of what nobody knows when it was.
    pub fn within(&self, start_ns: u64, end_ns: u64) -> impl Iterator<Item = (Gap, &str, u64)> {
        let count = move |one: &Counted| {
            one.untimed + one.at_ns.iter().filter(|&&ns| (start_ns..end_ns).contains(&ns)).count() as u64
        };
        let counts = self.0.iter().map(move |((gap, name), counted)| (*gap, name.as_ref(), count(counted)));
        counts.filter(|&(.., count)| count > 0)
    }

    /// How many there are of a kind.
    pub fn count(&self, gap: Gap) -> u64 {
        self.iter().filter(|&(other, ..)| other == gap).map(|(.., count)| count).sum()
    }
}

/// What is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gap {
    /// The size of a transfer.
    Size,
    /// The element type of a transfer, whose elements count as float32.
    ElementType,
    /// The kind of a collective, which counts as an all-reduce.
    CollectiveType,
    /// The kind of a transfer, and so its bytes; it is communication all the same.
    UnknownTransfer,
    /// The process group of a collective, where the job has several; it counts as one of all ranks.
    Group,
    /// The kernel or backend event of a call that moves bytes: it was enqueued and never seen to run; it is left out.
    UnmatchedCall,
    /// Events of a category that this program does not know; they are left out.
    UnknownCategory,
    /// The duration of a node that computes something.
    Duration,
    /// The start of every node: the file describes a workload, and nothing was recorded.
    Start,
    /// The op that a dependency names; the dependency is left out.
    Dependency,
    /// Nodes that neither compute nor move anything but take time, as those that write a checkpoint.
    Other,
    /// Events that mean nothing, or lack a time; they are left out. Named by their category and the first one's line.
    Damaged,
    /// Events with something in them that is no JSON; the rest of them is read.
    Mended,
}

impl Gap {
    /// The word that Python has for it.
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

/// A step that the profiler was told of: `ProfilerStep#7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its number.
    pub number: u64,
    /// Whether it spans calls of the host, or what a stream of a device did because of them.
    pub is_host: bool,
    /// When it started, on the rank's own clock.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// What a file says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// The rank, where the file names it.
    pub rank: Option<u32>,
    /// Ranks of the job, where the file names them.
    pub world_size: Option<u32>,
    /// The schema's version, or "".
    pub version: String,
    /// What process groups are for, as in `mesh_tp`, by their names.
    pub described: BTreeMap<String, String>,
}

/// A vertex of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceOp {
    /// The file's number of it; Kineto has none, and gets its place.
    pub id: u64,
    /// The file's name of it.
    pub name: Arc<str>,
    /// What it does.
    pub kind: NodeType,
    /// Whether a processor does it that also launches work on a device.
    pub is_host: bool,
    /// Which part of a step it is of, where that is known.
    pub pass: StepPart,
    /// When it started, on the rank's own clock.
    pub start_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// Ids of the ops whose data it reads.
    pub data_deps: Box<[u64]>,
    /// Ids of the ops that it waits for without reading their data.
    pub ctrl_deps: Box<[u64]>,
    /// What it moves, if it moves anything between ranks.
    pub comm: Option<Box<Comm>>,
}

impl TraceOp {
    /// When it ended.
    pub fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }

    /// The word for what it moves.
    pub fn transfer_word(&self) -> &'static str {
        match self.comm.as_ref().and_then(|comm| comm.collective) {
            Some(collective) => collective.word(),
            None if self.kind == NodeType::Coll => "unknown",
            None => self.kind.word(),
        }
    }
}

/// The part of a step that an op says it is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepPart {
    /// Nothing is said.
    #[default]
    Unsaid,
    /// Autograd's engine calls it.
    Backward,
    /// The optimizer does.
    Update,
}

impl StepPart {
    /// What the name of an op of the host says.
    pub fn of_name(name: &str) -> Self {
        if name.starts_with("autograd::engine::evaluate_function") { Self::Backward } else { Self::Unsaid }
    }
}

/// What moves between ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comm {
    /// Which collective, or `None` of a message between two ranks, and of a collective of unknown kind.
    pub collective: Option<CollectiveType>,
    /// Bytes of this rank's buffer, as the file counts them, where it says them.
    pub bytes: Option<u64>,
    /// The process group's name, or "".
    pub group: Arc<str>,
    /// The group's ranks, where the file lists them.
    pub ranks: Option<Arc<[u32]>>,
    /// Who sends and who receives, of a message between two ranks.
    pub ends: Option<(u32, u32)>,
    /// What tells it from other messages between the same ranks; 0 where nothing does.
    pub tag: u32,
    /// When it could have started, where the file says it: when it was called, or what it sends was computed.
    pub ready_ns: Option<u64>,
}

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// Every one, in the order of Chakra's numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Chakra's number.
            pub fn number(self) -> i32 {
                match self { $(Self::$variant => $number),* }
            }

            /// The word that tables and files have for it.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// What Chakra's number stands for.
            pub fn from_number(number: i32) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.number() == number)
            }

            /// What a word stands for.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }
        }
    };
}

numbered! {
    /// What an op does; Chakra's `NodeType`.
    NodeType {
        /// Describes the trace.
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
    /// Whether it moves bytes between ranks.
    pub fn is_comm(self) -> bool {
        matches!(self, Self::Send | Self::Recv | Self::Coll)
    }

    /// Whether it occupies a processor or its memory.
    pub fn is_busy(self) -> bool {
        matches!(self, Self::Comp | Self::MemLoad | Self::MemStore)
    }
}

numbered! {
    /// Chakra's `CollectiveCommType`, in the field's words.
    CollectiveType {
        /// Everybody gets the sum.
        AllReduce = 0, "all_reduce";
        /// One rank gets the sum.
        Reduce = 1, "reduce";
        /// Everybody gets everything.
        AllGather = 2, "all_gather";
        /// One rank gets everything.
        Gather = 3, "gather";
        /// One rank gives each its part.
        Scatter = 4, "scatter";
        /// One rank gives all the same.
        Broadcast = 5, "broadcast";
        /// Each gives each a part.
        AllToAll = 6, "all_to_all";
        /// Each gets its part of the sum.
        ReduceScatter = 7, "reduce_scatter";
        /// The same, with parts of one size.
        ReduceScatterBlock = 8, "reduce_scatter_block";
        /// Nobody goes on before all have come.
        Barrier = 9, "barrier";
    }
}

/// Why a file is no trace. Places are byte offsets in the uncompressed file.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TraceError {
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// It starts with something else.
    #[error("it is no {format}: {what}, at byte {at}")]
    NotThis {
        /// What was expected.
        format: &'static str,
        /// What is there.
        what: String,
        /// Where.
        at: u64,
    },
    /// It ends in the middle; the recording was cut off, or the copy was.
    #[error("it is cut off at byte {at}, after {seen} {unit}; record or copy it again")]
    Truncated {
        /// Its length.
        at: u64,
        /// Whole pieces before that.
        seen: u64,
        /// What the pieces are called.
        unit: &'static str,
    },
    /// One piece means nothing.
    #[error("{unit} {number}, at byte {at}: {what}")]
    Piece {
        /// What it is called.
        unit: &'static str,
        /// Which one, from 0.
        number: u64,
        /// Where it starts.
        at: u64,
        /// What is wrong.
        what: String,
    },
    /// Whole, and without anything that takes time.
    #[error("it holds no ops: {what}")]
    NoOps {
        /// What to do about it.
        what: Cow<'static, str>,
    },
    /// Two ops of one number.
    #[error("two ops have the id {0}")]
    SameId(u64),
    /// A rank or a number of ranks that no job has.
    #[error("`{field}` is {value}; a job has at most 1,000,000 ranks")]
    Ranks {
        /// What the file calls it.
        field: &'static str,
        /// What the file says.
        value: u32,
    },
}

/// Texts that occur often, each kept once.
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

/// Refuses ranks that no job has: those of the file, and those of a group.
///
/// # Errors
/// [`TraceError::Ranks`].
fn plausible(rank: Option<u32>, world_size: Option<u32>, group: &[u32]) -> Result<(), TraceError> {
    let ranks = rank.map(|rank| ("rank", rank)).into_iter().chain(group.iter().map(|&rank| ("ranks", rank)));
    let wrong = ranks.clone().find(|&(_, rank)| rank >= MAX_RANKS);
    let wrong = wrong.or_else(|| Some(("world_size", world_size.filter(|&size| size > MAX_RANKS)?)));
    wrong.map_or(Ok(()), |(field, value)| Err(TraceError::Ranks { field, value }))
}

/// Leaves out dependencies on ops that the file does not hold, and counts what ops lack in every format.
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
            // Of an unknown kind that is said already.
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
