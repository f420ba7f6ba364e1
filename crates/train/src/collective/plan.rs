//! Plans: a collective as messages between ranks, with their dependencies.
//!
//! Every rank passes through the same number of steps. A rank begins a step when it has begun the previous one and
//! every message sent to it in the previous one has arrived; it processes these, then sends its own. This is the only
//! dependency of messages ([`super::progress::Progress`] implements it). Messages are computed when they are sent: a
//! plan takes a few words, however many ranks it has.
//!
//! Reductions take no time here. An executor that models their time reports the arrival of a message with
//! [`Action::Reduce`] when its reduction has ended.

use super::pattern::{BufferShare, Pattern};
use gradtide_net::Bytes;
use thiserror::Error;

pub use super::pattern::Action;

/// A collective and its algorithm. S is the bytes of the plan, N its ranks, p the largest power of two up to N.
/// `docs/models/collectives.md` has the bytes and steps of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Ring all-reduce.
    ///
    /// # Source
    /// Patarasuk & Yuan (2009); thesis section 5.2.
    Ring,
    /// All-reduce by recursive vector halving with the rank at distance 1, 2 … p/2, and doubling on the way back. For N
    /// > p, the first N - p even ranks first send their S bytes to the next rank and get the result from it last.
    ///
    /// # Source
    /// Rabenseifner's algorithm in Thakur, Rabenseifner & Gropp (2005); Caramel section 2: "vector halving and distance
    /// doubling". The fold is that of MPICH's program.
    HalvingDoubling,
    /// All-reduce in two all-to-all steps: reduce-scatter, all-gather.
    ///
    /// # Source
    /// Caramel (Hashemi et al. 2020), section 2: "shuffle", after Dean & Ghemawat (2008).
    Shuffle,
    /// All-reduce along two binary trees, each with half of the bytes, pipelined in parts, with a chain within each
    /// node. The plan is that of the first tree; [`group`](super::group) builds all of them.
    ///
    /// # Source
    /// Sanders, Speck & Träff (2009); NCCL since 2.4 (Jeaugey 2019).
    Tree,
    /// All-reduce of whole buffers along one binary tree; the parent of rank i is (i-1)/2.
    ///
    /// # Source
    /// Sanders, Speck & Träff (2009), "binary tree"; their algorithm uses two.
    BinaryTree,
    /// All-reduce of whole buffers with the rank at distance 2^s in step s (recursive doubling); N > p by the fold of
    /// [`Self::HalvingDoubling`].
    ///
    /// # Source
    /// Zhang et al. (2017), section 2.1 and fig. 2; Thakur et al. (2005): recursive doubling.
    Butterfly,
    /// Binomial reduce in each group of consecutive ranks, butterfly among their first ranks, binomial broadcast.
    ///
    /// # Source
    /// Zhang et al. (2017), section 2.1 and fig. 2.
    ButterflyLayered {
        /// Ranks of a group; the last one may have fewer.
        group: u32,
    },
    /// Hierarchical all-reduce within and between groups of consecutive ranks.
    Hierarchical {
        /// Ranks of a group; the last one may have fewer, except with [`Inside::Sharded`].
        group: u32,
        /// Algorithm within a group.
        inside: Inside,
    },
    /// Workers push their gradients to servers, each of which sums one shard, and pull the sums.
    ///
    /// # Source
    /// Li et al. (2014); Zhang et al. (2017), section 2.1.
    ParameterServer {
        /// Ranks of the servers; all others are workers. See [`packed_servers`] and [`distributed_servers`] for the
        /// usual placements.
        servers: Vec<u32>,
    },
    /// Ring all-gather: part i of rank i goes to all ranks.
    ///
    /// # Source
    /// Thakur et al. (2005): ring all-gather.
    AllGather,
    /// Ring reduce-scatter: the sum of part i goes to rank i.
    ///
    /// # Source
    /// Patarasuk & Yuan (2009), the first half.
    ReduceScatter,
    /// Part j of the S bytes of every rank goes to rank j, all concurrently; rank i sends to i+1 first.
    ///
    /// # Source
    /// Thakur et al. (2005): MPICH's algorithm for medium messages, which posts all sends at once.
    AllToAll,
    /// From rank 0 to all, along a binomial tree.
    ///
    /// # Source
    /// Thakur et al. (2005): binomial tree.
    Broadcast,
    /// From rank 0 to rank 1.
    PointToPoint,
}

impl Algorithm {
    /// Bytes that the busiest rank sends of a buffer that divides evenly: [`Counts::most`] in floating point, summed
    /// term by term, because results print all its digits.
    pub fn sent_by_busiest(&self, ranks: u32, bytes: u128) -> f64 {
        let total = bytes as f64;
        let around = |ranks: u32, bytes: u128| (u128::from(ranks - 1) * bytes) as f64 / f64::from(ranks);
        let ring = |ranks| around(ranks, 2 * bytes);
        let levels = |ranks: u32| f64::from(ranks.next_power_of_two().ilog2());
        let fold = |ranks: u32| f64::from(u8::from(!ranks.is_power_of_two()));
        let butterfly = |ranks: u32| f64::from(ranks.ilog2()) + fold(ranks);
        let heads = |group: u32| ranks.div_ceil(group.min(ranks));
        let of_tree = |ranks: u32| f64::from((ranks - 1).min(ranks.div_ceil(2)).min(3));
        match self {
            Self::Ring | Self::Shuffle => ring(ranks),
            Self::HalvingDoubling => ring(1 << ranks.ilog2()) + fold(ranks) * total,
            Self::Tree => total * f64::from((ranks - 1).min(2)),
            Self::BinaryTree => total * of_tree(ranks),
            Self::Butterfly => total * butterfly(ranks),
            Self::ButterflyLayered { group } => total * (levels(ranks.min(*group)) + butterfly(heads(*group))),
            Self::Hierarchical { group, inside } => {
                let (group, heads) = (ranks.min(*group), heads(*group));
                match inside {
                    Inside::Reduce => levels(group) * total + ring(heads),
                    Inside::Ring => ring(group) + ring(heads) + levels(group) * total,
                    Inside::Sharded => ring(group) + ring(heads) / f64::from(group),
                    Inside::Chain => {
                        total * (of_tree(heads) + f64::from(group.min(2) - 1)).max(f64::from(group.min(3) - 1))
                    }
                }
            }
            Self::ParameterServer { servers } => {
                let workers = f64::from(ranks) - servers.len() as f64;
                total * (workers / servers.len() as f64).max(1.0)
            }
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => around(ranks, bytes),
            Self::Broadcast => total * levels(ranks),
            Self::PointToPoint => total,
        }
    }

    /// Steps, messages and bytes in closed form: the table of `docs/models/collectives.md`.
    pub fn counts(&self, ranks: u32) -> Counts {
        match self {
            Self::ParameterServer { servers } => Counts::of_servers(ranks.into(), servers.len() as u64),
            Self::ButterflyLayered { group } => {
                let (group, heads) = (ranks.min(*group), ranks.div_ceil(ranks.min(*group)));
                Self::Butterfly.counts(heads).between(ranks, group)
            }
            Self::Hierarchical { group, inside } => {
                let (group, heads) = (ranks.min(*group), ranks.div_ceil(ranks.min(*group)));
                let (within, between) = (Self::Ring.counts(group), Self::Ring.counts(heads));
                let last = Self::Ring.counts(ranks - (heads - 1) * group);
                match inside {
                    Inside::Reduce => between.between(ranks, group),
                    Inside::Sharded => Counts {
                        steps: within.steps + between.steps,
                        messages: u64::from(heads) * within.messages + u64::from(group) * between.messages,
                        sent: u64::from(heads) * within.sent + between.sent,
                        most: sum(within.most, (between.most.0, between.most.1 * u64::from(group))),
                    },
                    Inside::Ring => {
                        let down = u64::from(ranks - heads);
                        let full = u64::from(heads - 1);
                        let most = sum(within.most, between.most);
                        Counts {
                            steps: within.steps + between.steps + levels(group),
                            messages: full * within.messages + last.messages + between.messages + down,
                            sent: full * within.sent + last.sent + between.sent + down,
                            most: sum(most, (levels(group), 1)),
                        }
                    }
                    Inside::Chain => {
                        let (tree, up) = (Self::BinaryTree.counts(heads), u64::from(ranks - heads));
                        // The busiest rank is a head, or an inner rank of a chain.
                        let most = (tree.most.0 + u64::from(group.min(2) - 1)).max(u64::from(group.min(3) - 1));
                        Counts {
                            steps: tree.steps + 2 * u64::from(group - 1),
                            messages: tree.messages + 2 * up,
                            sent: tree.sent + 2 * up,
                            most: (most, 1),
                        }
                    }
                }
            }
            _ => self.alone(ranks),
        }
    }

    /// The counts of an algorithm that is not composed of others.
    fn alone(&self, ranks: u32) -> Counts {
        let n = u64::from(ranks);
        if n < 2 {
            return Counts { steps: 0, messages: 0, sent: 0, most: (0, 1) };
        }
        let (low, power) = (u64::from(ranks.ilog2()), 1_u64 << ranks.ilog2());
        let extra = n - power;
        let (is_folded, fold) = (u64::from(extra > 0), 2 * u64::from(extra > 0));
        let counts = |steps, messages, sent, most| Counts { steps, messages, sent, most };
        match self {
            Self::Ring => counts(2 * (n - 1), 2 * n * (n - 1), 2 * (n - 1), (2 * (n - 1), n)),
            Self::Shuffle => counts(2, 2 * n * (n - 1), 2 * (n - 1), (2 * (n - 1), n)),
            Self::AllGather | Self::ReduceScatter => counts(n - 1, n * (n - 1), n - 1, (n - 1, n)),
            Self::AllToAll => counts(1, n * (n - 1), n - 1, (n - 1, n)),
            // Every rank counts like the busiest, as the flow model does.
            Self::Tree => counts(2 * low, 4 * (n - 1), n * (n - 1).min(2), ((n - 1).min(2), 1)),
            Self::BinaryTree => counts(2 * low, 2 * (n - 1), 2 * (n - 1), ((n - 1).min(n.div_ceil(2)).min(3), 1)),
            Self::Broadcast => counts(levels(ranks), n - 1, n - 1, (levels(ranks), 1)),
            Self::PointToPoint => counts(1, 1, 1, (1, 1)),
            Self::Butterfly => {
                let messages = power * low + 2 * extra;
                counts(low + fold, messages, messages, (low + is_folded, 1))
            }
            Self::HalvingDoubling => {
                let most = sum((2 * (power - 1), power), (is_folded, 1));
                counts(2 * low + fold, 2 * power * low + 2 * extra, 2 * (power - 1) + 2 * extra, most)
            }
            Self::ButterflyLayered { .. } | Self::Hierarchical { .. } | Self::ParameterServer { .. } => {
                unreachable!("`counts` puts these together")
            }
        }
    }
}

/// Costs of one collective on S bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Dependent messages in sequence.
    pub steps: u64,
    /// Total number of messages.
    pub messages: u64,
    /// Total bytes, in units of S.
    pub sent: u64,
    /// Bytes of the busiest sender, in units of S: numerator and denominator.
    pub most: (u64, u64),
}

impl Counts {
    fn of_servers(ranks: u64, servers: u64) -> Self {
        let workers = ranks.saturating_sub(servers);
        let most = if workers > servers { (workers, servers) } else { (1, 1) };
        Self { steps: 2, messages: 2 * servers * workers, sent: 2 * workers, most }
    }

    /// These counts among the heads (first ranks) of groups, plus a binomial reduce before and a binomial broadcast
    /// after.
    fn between(self, ranks: u32, group: u32) -> Self {
        let below = u64::from(ranks - ranks.div_ceil(group));
        Self {
            steps: self.steps + 2 * levels(group),
            messages: self.messages + 2 * below,
            sent: self.sent + 2 * below,
            most: sum(self.most, (levels(group), 1)),
        }
    }
}

/// Depth of a binomial tree of `ranks`.
fn levels(ranks: u32) -> u64 {
    ranks.next_power_of_two().ilog2().into()
}

fn sum(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    if a.1 == b.1 { (a.0 + b.0, a.1) } else { (a.0 * b.1 + b.0 * a.1, a.1 * b.1) }
}

/// Algorithm of a hierarchical all-reduce within a group. The heads are the first ranks of all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// Binomial reduce to the head; ring among the heads; binomial broadcast.
    Reduce,
    /// Ring all-reduce; ring among the heads; binomial broadcast.
    ///
    /// # Source
    /// Jia et al. (2018): hierarchical all-reduce in three phases.
    Ring,
    /// Ring reduce-scatter; ring among all ranks with the same shard; ring all-gather.
    ///
    /// # Source
    /// BlueConnect (Cho et al. 2019), with two dimensions.
    Sharded,
    /// Chain to the head; one binary tree of the heads, up and down; back along the chain.
    ///
    /// # Source
    /// NCCL's trees since 2.4 (Jeaugey 2019); NCCL uses two.
    Chain,
}

/// A message of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// Step of the sender; the receiver processes it when its next step begins.
    pub step: u32,
    /// Rank that sends it.
    pub from: u32,
    /// Rank that receives it.
    pub to: u32,
    /// Offset of its bytes in the buffer, on both ranks. The buffer of an all-to-all is the concatenation of all N
    /// ranks' S bytes, of which rank i initially has those at i S.
    pub offset: u64,
    /// Its size; 0 for some messages if there are fewer elements than parts.
    pub bytes: Bytes,
    /// Its exact share of a buffer that can be cut anywhere.
    pub even: EvenShare,
    /// What the receiver does with its bytes.
    pub action: Action,
}

/// Identity of a message, by which its arrival is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Passage {
    /// Step in which it is sent.
    pub step: u32,
    /// Rank that sends it.
    pub from: u32,
    /// Rank that receives it.
    pub to: u32,
}

impl Message {
    /// Its identity.
    pub fn passage(self) -> Passage {
        Passage { step: self.step, from: self.from, to: self.to }
    }
}

/// `bytes / parts` bytes, possibly fractional; used by models without packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvenShare {
    /// Bytes of all the parts.
    pub bytes: Bytes,
    /// Number of parts; not 0.
    pub parts: u32,
}

/// Why a collective has no plan.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// Too few ranks.
    #[error("{ranks} ranks are too few: the collective has at least {least}")]
    TooFewRanks {
        /// Ranks.
        ranks: u32,
        /// Minimum.
        least: u32,
    },
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
    /// Sharding needs groups of one size.
    #[error("{ranks} ranks are no whole number of groups of {group}, which shards need")]
    UnevenGroups {
        /// Ranks.
        ranks: u32,
        /// Ranks of a group.
        group: u32,
    },
    /// Trees need the same number of ranks on each node, since all their chains have one length.
    #[error("{ranks} ranks are on {nodes} nodes with different numbers of them: trees need as many on each")]
    UnevenNodes {
        /// Ranks.
        ranks: u32,
        /// Nodes.
        nodes: u32,
    },
    /// No servers.
    #[error("there are no parameter servers")]
    NoServers,
    /// No workers.
    #[error("all {0} ranks are parameter servers: none is left to be a worker")]
    NoWorkers(u32),
    /// A server that is not a rank.
    #[error("parameter server {server} is none of the {ranks} ranks")]
    NoSuchServer {
        /// The server.
        server: u32,
        /// Ranks.
        ranks: u32,
    },
    /// A rank is listed twice as a server.
    #[error("rank {0} is a parameter server twice")]
    RepeatedServer(u32),
}

/// The first `servers` ranks.
///
/// # Source
/// Zhang et al. (2017), fig. 3, left.
pub fn packed_servers(servers: u32) -> Vec<u32> {
    (0..servers).collect()
}

/// One server in each of `servers` equal intervals of ranks; in interval j at position j modulo its length, so that
/// their traffic spreads over the switches above. None if there are more servers than ranks.
///
/// # Source
/// Zhang et al. (2017), fig. 3, right, and section 2.1.
pub fn distributed_servers(ranks: u32, servers: u32) -> Vec<u32> {
    if servers > ranks {
        return Vec::new();
    }
    let start = |j: u32| (u64::from(j) * u64::from(ranks) / u64::from(servers)) as u32;
    (0..servers).map(|j| start(j) + j % (start(j + 1) - start(j))).collect()
}

/// A collective as messages with dependencies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectivePlan {
    ranks: u32,
    buffer: Buffer,
    phases: Vec<Phase>,
}

/// A pattern, the subgroups that carry it out side by side, and the steps before it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Phase {
    pattern: Pattern,
    subgroups: Subgroups,
    steps_before: u32,
}

impl CollectivePlan {
    /// Builds the plan of an algorithm for `bytes` on each of `ranks` ranks. Parts differ by at most one element of
    /// `element_bytes`; a trailing partial element belongs to the last part. A single rank sends nothing.
    ///
    /// # Errors
    /// [`PlanError`] if the algorithm does not support these numbers.
    pub fn new(algorithm: &Algorithm, ranks: u32, bytes: Bytes, element_bytes: u64) -> Result<Self, PlanError> {
        let least = if *algorithm == Algorithm::PointToPoint { 2 } else { 1 };
        if ranks < least {
            return Err(PlanError::TooFewRanks { ranks, least });
        }
        if ranks > 1 << 30 {
            return Err(PlanError::TooManyRanks(ranks));
        }
        if element_bytes == 0 {
            return Err(PlanError::EmptyElement);
        }
        if bytes.0.checked_mul(u64::from(ranks)).is_none_or(|all| all >= 1 << 63) {
            return Err(PlanError::TooManyBytes(bytes.0));
        }
        let mut steps_before = 0;
        let phases = phases(algorithm, ranks)?.into_iter().map(|(pattern, subgroups)| {
            let phase = Phase { pattern, subgroups, steps_before };
            steps_before += phase.pattern.step_count(subgroups.largest(ranks));
            phase
        });
        Ok(Self { ranks, buffer: Buffer { start: 0, bytes: bytes.0, element_bytes }, phases: phases.collect() })
    }

    /// Cuts the buffer into `depth` contiguous chunks that differ by at most one element, each with a plan of its own.
    /// The chunks are independent: all may start at once; sent in order, they form a pipeline.
    ///
    /// # Panics
    /// If `depth` is zero.
    ///
    /// # Source
    /// Caramel (Hashemi et al. 2020), section 4.4. The caller implements its rule for the depth, from 1 for small sizes
    /// to 8.
    pub fn chunks(&self, depth: u32) -> impl Iterator<Item = Self> {
        assert!(depth > 0, "a buffer is cut into at least one chunk");
        let copies = if self.phases[0].pattern == Pattern::AllToAll { u64::from(self.ranks) } else { 1 };
        (0..depth).map(move |index| {
            let (offset, bytes) =
                self.buffer.range(BufferShare { origin: 0, first: index, end: index + 1, count: depth });
            let start = self.buffer.start + (offset - self.buffer.start) * copies;
            Self { buffer: Buffer { start, bytes, ..self.buffer }, ..self.clone() }
        })
    }

    /// N.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Bytes of its buffer.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.buffer.bytes)
    }

    /// Number of steps of every rank, including those in which it sends nothing. The critical path has as many
    /// messages, or slightly fewer if the number of ranks is not a power of two and some begin early:
    /// `docs/models/collectives.md`.
    pub fn step_count(&self) -> u32 {
        self.phases
            .last()
            .map_or(0, |last| last.steps_before + last.pattern.step_count(last.subgroups.largest(self.ranks)))
    }

    /// Calls `send` with the messages of a rank in a step, in the order in which it starts them.
    pub fn sends(&self, step: u32, rank: u32, send: &mut dyn FnMut(Message)) {
        let Some((phase, subgroup)) = self.place(step, rank) else { return };
        let buffer = subgroup.shard.map_or(self.buffer, |shard| {
            let (start, bytes) = self.buffer.range(shard);
            Buffer { start, bytes, ..self.buffer }
        });
        let whole = EvenShare { bytes: Bytes(self.buffer.bytes), parts: 1 };
        let whole = subgroup.shard.map_or(whole, |shard| whole.share(shard));
        phase.pattern.sends(step - phase.steps_before, subgroup.index, subgroup.size, &mut |to, share, action| {
            let (offset, bytes) = buffer.range(share);
            let (to, even) = (subgroup.rank(to), whole.share(share));
            send(Message { step, from: rank, to, offset, bytes: Bytes(bytes), even, action });
        });
    }

    /// Number of messages that a rank receives in a step.
    pub fn receive_count(&self, step: u32, rank: u32) -> u32 {
        self.place(step, rank).map_or(0, |(phase, subgroup)| {
            phase.pattern.receive_count(step - phase.steps_before, subgroup.index, subgroup.size)
        })
    }

    /// Whether a rank's next step also waits for the arrival of the messages that it sends in this one.
    pub fn is_one_at_a_time(&self, step: u32) -> bool {
        self.phase(step).pattern.is_one_at_a_time()
    }

    /// Whether the plan is a ring: in every step every rank sends one equal share to the next rank, and nothing else.
    pub fn is_ring(&self) -> bool {
        let is_ring =
            |pattern: &Pattern| matches!(pattern, Pattern::RingReduceScatter { .. } | Pattern::RingAllGather { .. });
        self.phases.iter().all(|phase| phase.subgroups == Subgroups::All && is_ring(&phase.pattern))
    }

    /// Whole bytes that each rank of a ring sends: in each phase, all parts but one.
    ///
    /// # Panics
    /// If [`is_ring`](Self::is_ring) is false.
    pub fn sent_in_ring(&self) -> impl Iterator<Item = Bytes> {
        let part = |index| Bytes(self.buffer.range(BufferShare::part(index, self.ranks)).1);
        let parts: Vec<Bytes> = (0..self.ranks).map(part).collect();
        (0..self.ranks).map(move |rank| {
            let of_phase = |phase: &Phase| {
                let kept = phase.pattern.ring_part(phase.pattern.step_count(self.ranks), rank, self.ranks);
                Bytes(self.buffer.bytes) - parts[kept as usize]
            };
            self.phases.iter().map(of_phase).sum()
        })
    }

    fn phase(&self, step: u32) -> &Phase {
        &self.phases[self.phases.partition_point(|phase| phase.steps_before <= step) - 1]
    }

    fn place(&self, step: u32, rank: u32) -> Option<(&Phase, Subgroup)> {
        let phase = self.phase(step);
        phase.subgroups.of(rank, self.ranks).map(|subgroup| (phase, subgroup))
    }
}

/// The phases of an algorithm.
fn phases(algorithm: &Algorithm, ranks: u32) -> Result<Vec<(Pattern, Subgroups)>, PlanError> {
    use Pattern::*;
    let ring = |shift| [RingReduceScatter { shift }, RingAllGather { shift }];
    let butterfly = [Fold, Butterfly, Unfold];
    let on = |subgroups: Subgroups, patterns: &[Pattern]| {
        patterns.iter().map(|pattern| (pattern.clone(), subgroups)).collect()
    };
    let all = |patterns: &[Pattern]| Ok(on(Subgroups::All, patterns));
    let layers = |group, inside: &[Pattern], heads: &[Pattern]| -> Result<Vec<_>, PlanError> {
        let heads: Vec<_> = on(Subgroups::Heads { group }, heads);
        let inside: Vec<_> = on(Subgroups::Inside { group }, inside);
        Ok([inside, heads, on(Subgroups::Inside { group }, &[BinomialBroadcast])].concat())
    };
    match algorithm {
        Algorithm::Ring => all(&ring(0)),
        Algorithm::HalvingDoubling => all(&[Fold, Halving, Doubling, Unfold]),
        Algorithm::Shuffle => all(&[DirectReduceScatter, DirectAllGather]),
        Algorithm::Tree | Algorithm::BinaryTree => all(&[TreeReduce, TreeBroadcast]),
        Algorithm::Butterfly => all(&butterfly),
        Algorithm::ButterflyLayered { group: 0 } | Algorithm::Hierarchical { group: 0, .. } => {
            Err(PlanError::EmptyGroup)
        }
        &Algorithm::ButterflyLayered { group } => layers(group, &[BinomialReduce], &butterfly),
        &Algorithm::Hierarchical { group, inside: Inside::Reduce } => layers(group, &[BinomialReduce], &ring(0)),
        &Algorithm::Hierarchical { group, inside: Inside::Ring } => layers(group, &ring(0), &ring(0)),
        &Algorithm::Hierarchical { group, inside: Inside::Sharded } => {
            if !ranks.is_multiple_of(group) {
                return Err(PlanError::UnevenGroups { ranks, group });
            }
            let [scatter, gather] = ring(1).map(|pattern| on(Subgroups::Inside { group }, &[pattern]));
            Ok([scatter, on(Subgroups::Across { group }, &ring(0)), gather].concat())
        }
        &Algorithm::Hierarchical { group, inside: Inside::Chain } => {
            let heads: Vec<_> = on(Subgroups::Heads { group }, &[TreeReduce, TreeBroadcast]);
            let [up, down] = [ChainReduce, ChainBroadcast].map(|pattern| on(Subgroups::Inside { group }, &[pattern]));
            Ok([up, heads, down].concat())
        }
        Algorithm::ParameterServer { servers } => {
            let servers = checked_servers(servers, ranks)?;
            all(&[Push { servers: servers.clone() }, Pull { servers }])
        }
        Algorithm::AllGather => all(&[RingAllGather { shift: 1 }]),
        Algorithm::ReduceScatter => all(&[RingReduceScatter { shift: 1 }]),
        Algorithm::AllToAll => all(&[AllToAll]),
        Algorithm::Broadcast => all(&[BinomialBroadcast]),
        Algorithm::PointToPoint => all(&[PointToPoint]),
    }
}

fn checked_servers(servers: &[u32], ranks: u32) -> Result<Vec<u32>, PlanError> {
    let mut servers = servers.to_vec();
    servers.sort_unstable();
    if let Some(twice) = servers.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(PlanError::RepeatedServer(twice[0]));
    }
    match servers.last() {
        None => Err(PlanError::NoServers),
        Some(&server) if server >= ranks => Err(PlanError::NoSuchServer { server, ranks }),
        Some(_) if servers.len() == ranks as usize => Err(PlanError::NoWorkers(ranks)),
        Some(_) => Ok(servers),
    }
}

/// A range of bytes that is cut into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Buffer {
    start: u64,
    bytes: u64,
    element_bytes: u64,
}

impl Buffer {
    /// Offset and bytes of a share. The parts with one element more come first, as in [`super::ring`]; a trailing
    /// partial element belongs to the last part.
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

/// The subgroups of ranks that run a pattern together (its `n` ranks). Groups are of consecutive ranks; the last one
/// may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subgroups {
    /// All ranks.
    All,
    /// Each group separately.
    Inside { group: u32 },
    /// The first ranks of all groups.
    Heads { group: u32 },
    /// For each i, the i-th ranks of all groups, on part i of the buffer. All groups have the same size.
    Across { group: u32 },
}

/// The position of one rank in its subgroup.
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

    /// Size of the largest subgroup.
    fn largest(self, ranks: u32) -> u32 {
        match self {
            Self::All => ranks,
            Self::Inside { group } => group.min(ranks),
            Self::Heads { group } | Self::Across { group } => ranks.div_ceil(group),
        }
    }
}
