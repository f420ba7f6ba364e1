//! Plans: a plan is a collective as messages between ranks, with their dependencies.
//!
//! Every rank passes through the same number of steps. A rank begins a step when it has begun the previous step and
//! every message sent to it in that step has arrived. At the beginning of a step, the rank processes these messages and
//! then sends its own. Messages have no other dependencies. [`super::progress::Progress`] implements this rule.
//!
//! Messages are computed when they are sent, so a plan takes a few words of memory, irrespective of the number of
//! ranks.
//!
//! Reductions take no time here. An executor that models their time reports the arrival of a message with
//! [`Action::Reduce`] when its reduction has ended.

use super::pattern::{BufferShare, Pattern};
use gradtide_net::Bytes;
use std::sync::Arc;
use thiserror::Error;

pub use super::pattern::Action;

/// A message of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// Step in which the message is sent. The receiver processes it at the beginning of its next step.
    pub step: u32,
    /// Sending rank.
    pub from: u32,
    /// Receiving rank.
    pub to: u32,
    /// Offset of the message's bytes in the buffer, which is the same on both ranks. The buffer of an all-to-all is the
    /// concatenation of the S bytes of all ranks; initially, rank i has the range that begins at i S.
    pub offset: u64,
    /// Size in bytes. Some messages have 0 bytes if there are fewer elements than parts.
    pub bytes: Bytes,
    /// Exact share of the message, if a buffer could be divided at any fraction of a byte.
    pub even: EvenShare,
    /// Receiver's action on the bytes.
    pub action: Action,
}

/// Identity of a message, used to report its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Passage {
    /// Step in which the message is sent.
    pub step: u32,
    /// Sending rank.
    pub from: u32,
    /// Receiving rank.
    pub to: u32,
}

impl Message {
    /// Returns the identity of the message.
    pub fn passage(self) -> Passage {
        Passage { step: self.step, from: self.from, to: self.to }
    }
}

/// A size of `bytes / parts` bytes, possibly fractional, for models without packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvenShare {
    /// Total bytes of all parts.
    pub bytes: Bytes,
    /// Number of parts; not 0.
    pub parts: u32,
}

/// Error: a collective has no plan.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// There are no ranks.
    #[error("the collective has no ranks")]
    NoRanks,
    /// More than 2^30 ranks.
    #[error("{0} ranks are too many: at most 2^30")]
    TooManyRanks(u32),
    /// The element size is 0.
    #[error("an element has no bytes")]
    EmptyElement,
    /// Offsets would exceed 63 bits.
    #[error("{0} bytes of each rank are too many: a buffer ends before 2^63")]
    TooManyBytes(u64),
    /// A group without ranks.
    #[error("a group has no ranks")]
    EmptyGroup,
    /// The last group has fewer ranks, but shards need groups of one size.
    #[error("{ranks} ranks are no whole number of groups of {group}, which shards need")]
    UnevenGroups {
        /// Number of ranks.
        ranks: u32,
        /// Number of ranks of a group.
        group: u32,
    },
    /// Nodes have different numbers of ranks, but all chains of a tree must have one length.
    #[error("{ranks} ranks are on {nodes} nodes with different numbers of them: trees need as many on each")]
    UnevenNodes {
        /// Number of ranks.
        ranks: u32,
        /// Number of nodes.
        nodes: u32,
    },
    /// There are no servers.
    #[error("there are no parameter servers")]
    NoServers,
    /// All ranks are servers.
    #[error("all {0} ranks are parameter servers: none is left to be a worker")]
    NoWorkers(u32),
}

/// A collective as messages with dependencies.
#[derive(Clone, Debug)]
pub struct CollectivePlan {
    ranks: u32,
    buffer: Buffer,
    phases: Vec<Phase>,
}

/// A pattern, the subgroups that execute it concurrently, and the number of steps before it.
#[derive(Clone, Debug)]
pub struct Phase {
    pattern: Arc<dyn Pattern>,
    subgroups: Subgroups,
    steps_before: u32,
}

impl Phase {
    /// Creates a phase in which each of the subgroups executes the pattern.
    pub fn new(pattern: impl Pattern + 'static, subgroups: Subgroups) -> Self {
        Self { pattern: Arc::new(pattern), subgroups, steps_before: 0 }
    }

    /// Creates a phase in which all ranks execute the pattern together.
    pub fn of_all(pattern: impl Pattern + 'static) -> Self {
        Self::new(pattern, Subgroups::All)
    }

    /// Returns whether in every step every rank sends exactly one message, an equal share, to the next rank.
    pub fn is_ring(&self) -> bool {
        self.subgroups == Subgroups::All && self.pattern.ring_part(0, 0, 2).is_some()
    }

    fn step_count(&self, ranks: u32) -> u32 {
        self.pattern.step_count(self.subgroups.largest(ranks))
    }
}

impl CollectivePlan {
    /// Builds the plan of these phases for `bytes` on each of `ranks` ranks. Parts differ by at most one element of
    /// `element_bytes`. A trailing partial element belongs to the last part.
    ///
    /// # Errors
    /// [`PlanError::EmptyElement`] and [`PlanError::TooManyBytes`].
    pub fn new(mut phases: Vec<Phase>, ranks: u32, bytes: Bytes, element_bytes: u64) -> Result<Self, PlanError> {
        if element_bytes == 0 {
            return Err(PlanError::EmptyElement);
        }
        if bytes.0.checked_mul(u64::from(ranks)).is_none_or(|all| all >= 1 << 63) {
            return Err(PlanError::TooManyBytes(bytes.0));
        }
        let mut steps = 0;
        for phase in &mut phases {
            phase.steps_before = steps;
            steps += phase.step_count(ranks);
        }
        Ok(Self { ranks, buffer: Buffer { start: 0, bytes: bytes.0, element_bytes }, phases })
    }

    /// Cuts the buffer into `depth` contiguous chunks that differ by at most one element, and returns the plan of each.
    /// The chunks do not depend on each other, so all may start at once. Sent in order, they form a pipeline.
    ///
    /// # Panics
    /// If `depth` is zero.
    ///
    /// # Source
    /// Caramel (Hashemi et al. 2020), section 4.4. The caller implements the paper's rule for the depth, from 1 for
    /// small sizes to 8.
    pub fn chunks(&self, depth: u32) -> impl Iterator<Item = Self> {
        assert!(depth > 0, "a buffer is cut into at least one chunk");
        let has_each = self.phases.iter().any(|phase| phase.pattern.has_buffer_of_each_rank());
        let copies = if has_each { u64::from(self.ranks) } else { 1 };
        (0..depth).map(move |index| {
            let (offset, bytes) =
                self.buffer.range(BufferShare { origin: 0, first: index, end: index + 1, count: depth });
            let start = self.buffer.start + (offset - self.buffer.start) * copies;
            Self { buffer: Buffer { start, bytes, ..self.buffer }, ..self.clone() }
        })
    }

    /// Returns the number of ranks N.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Returns the bytes of the buffer.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.buffer.bytes)
    }

    /// Returns the number of steps of every rank, including steps in which the rank sends nothing. The critical path
    /// usually has this number of messages. It has slightly fewer if the number of ranks is not a power of two and some
    /// ranks begin early; see `docs/models/collectives.md`.
    pub fn step_count(&self) -> u32 {
        self.phases.last().map_or(0, |last| last.steps_before + last.step_count(self.ranks))
    }

    /// Calls `send` with the messages of a rank in a step, in the order in which the rank starts them.
    pub fn sends(&self, step: u32, rank: u32, send: &mut dyn FnMut(Message)) {
        let Some(Place { pattern, subgroup, local_step }) = self.place(step, rank) else { return };
        let buffer = subgroup.shard.map_or(self.buffer, |shard| {
            let (start, bytes) = self.buffer.range(shard);
            Buffer { start, bytes, ..self.buffer }
        });
        let whole = EvenShare { bytes: Bytes(self.buffer.bytes), parts: 1 };
        let whole = subgroup.shard.map_or(whole, |shard| whole.share(shard));
        pattern.sends(local_step, subgroup.index, subgroup.size, &mut |to, share, action| {
            let (offset, bytes) = buffer.range(share);
            let (to, even) = (subgroup.rank(to), whole.share(share));
            send(Message { step, from: rank, to, offset, bytes: Bytes(bytes), even, action });
        });
    }

    /// Returns the number of messages that a rank receives in a step.
    pub fn receive_count(&self, step: u32, rank: u32) -> u32 {
        self.place(step, rank).map_or(0, |Place { pattern, subgroup, local_step }| {
            pattern.receive_count(local_step, subgroup.index, subgroup.size)
        })
    }

    /// Returns whether a rank's next step also waits until the messages that the rank sends in this step have arrived.
    pub fn is_one_at_a_time(&self, step: u32) -> bool {
        self.phase(step).pattern.is_one_at_a_time()
    }

    /// Returns whether the plan is a ring: in every step every rank sends exactly one message, an equal share, to the
    /// next rank.
    pub fn is_ring(&self) -> bool {
        self.phases.iter().all(Phase::is_ring)
    }

    /// Returns the bytes that each rank of a ring sends, in parts of whole bytes. In each phase, a rank sends all parts
    /// but one.
    ///
    /// # Panics
    /// If the plan is no ring; see [`is_ring`](Self::is_ring).
    pub fn sent_in_ring(&self) -> impl Iterator<Item = Bytes> {
        let part = |index| Bytes(self.buffer.range(BufferShare::part(index, self.ranks)).1);
        let parts: Vec<Bytes> = (0..self.ranks).map(part).collect();
        (0..self.ranks).map(move |rank| {
            let of_phase = |phase: &Phase| {
                let kept = phase.pattern.ring_part(phase.step_count(self.ranks), rank, self.ranks);
                Bytes(self.buffer.bytes) - parts[kept.expect("the plan is a ring") as usize]
            };
            self.phases.iter().map(of_phase).sum()
        })
    }

    fn phase(&self, step: u32) -> &Phase {
        &self.phases[self.phases.partition_point(|phase| phase.steps_before <= step) - 1]
    }

    /// Returns the rank's place in the pattern of its subgroup; `None` if the rank is idle in this step.
    fn place(&self, step: u32, rank: u32) -> Option<Place<'_>> {
        let phase = self.phase(step);
        let (pattern, local_step) = (phase.pattern.as_ref(), step - phase.steps_before);
        let subgroup = phase.subgroups.of(rank, self.ranks)?;
        (local_step < pattern.step_count(subgroup.size)).then_some(Place { pattern, subgroup, local_step })
    }
}

/// Place of a rank's step in the pattern of its subgroup.
struct Place<'a> {
    pattern: &'a dyn Pattern,
    subgroup: Subgroup,
    local_step: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Buffer {
    start: u64,
    bytes: u64,
    element_bytes: u64,
}

impl Buffer {
    /// Returns the offset and the bytes of a share. The parts with one more element come first. A trailing partial
    /// element belongs to the last part.
    fn range(&self, share: BufferShare) -> (u64, u64) {
        let (elements, count) = (self.bytes / self.element_bytes, u64::from(share.count));
        let cut = |index: u32| match u64::from(index) {
            index if index == count => self.bytes,
            index => (elements / count * index + index.min(elements % count)) * self.element_bytes,
        };
        let own = self.start + u64::from(share.origin) * self.bytes;
        (own + cut(share.first), cut(share.end) - cut(share.first))
    }
}

impl EvenShare {
    fn share(self, BufferShare { first, end, count, .. }: BufferShare) -> Self {
        Self { bytes: Bytes(self.bytes.0 * u64::from(end - first)), parts: self.parts * count }
    }
}

/// The subgroups of ranks, each of which runs a pattern on its own. Groups consist of consecutive ranks; the last group
/// may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subgroups {
    /// One subgroup of all ranks.
    All,
    /// Each group is a subgroup.
    Inside {
        /// Number of ranks of a group.
        group: u32,
    },
    /// One subgroup of the first ranks of all groups.
    Heads {
        /// Number of ranks of a group.
        group: u32,
    },
    /// For each i, a subgroup of the i-th ranks of all groups, on part i of the buffer. All groups have the same size.
    Across {
        /// Number of ranks of a group.
        group: u32,
    },
}

struct Subgroup {
    first: u32,
    stride: u32,
    size: u32,
    index: u32,
    shard: Option<BufferShare>,
}

impl Subgroup {
    fn rank(&self, index: u32) -> u32 {
        self.first + index * self.stride
    }
}

impl Subgroups {
    fn of(self, rank: u32, ranks: u32) -> Option<Subgroup> {
        let all = Subgroup { first: 0, stride: 1, size: ranks, index: rank, shard: None };
        match self {
            Self::All => Some(all),
            Self::Inside { group } => {
                let first = rank / group * group;
                Some(Subgroup { first, size: group.min(ranks - first), index: rank - first, ..all })
            }
            Self::Heads { group } => rank.is_multiple_of(group).then(|| Subgroup {
                stride: group,
                size: self.largest(ranks),
                index: rank / group,
                ..all
            }),
            Self::Across { group } => {
                let first = rank % group;
                let shard = BufferShare { origin: 0, first, end: first + 1, count: group };
                let (size, index) = (self.largest(ranks), rank / group);
                Some(Subgroup { first, stride: group, size, index, shard: Some(shard) })
            }
        }
    }

    /// Returns the size of the largest subgroup.
    fn largest(self, ranks: u32) -> u32 {
        match self {
            Self::All => ranks,
            Self::Inside { group } => group.min(ranks),
            Self::Heads { group } | Self::Across { group } => ranks.div_ceil(group),
        }
    }
}
