//! Plans: a collective as messages between ranks, each of which waits for others.
//!
//! Every rank works through the same number of steps. A rank's step begins when the rank has begun the step before
//! and every message sent to it in the step before has arrived; it takes these in, then sends its own. This one rule
//! is all that a message depends on ([`super::progress::Progress`] obeys it). Messages are computed when they are
//! sent: a plan is a few words, however many ranks it has.
//!
//! A reduction takes no time here. An executor that gives it a time reports the arrival of a message with
//! [`Action::Reduce`] when this time has passed.

use super::pattern::{BufferShare, Pattern};
use gradtide_net::Bytes;
use thiserror::Error;

pub use super::pattern::Action;

/// A collective, and the algorithm that carries it out. S is the bytes of the plan, N its ranks, p the largest power
/// of two that is at most N. `docs/models/collectives.md` has what each sends and how many steps it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// All-reduce in a ring.
    ///
    /// # Source
    /// Patarasuk & Yuan (2009); thesis section 5.2.
    Ring,
    /// All-reduce by recursive halving of what is sent, to the rank 1, 2 … p/2 away, and doubling on the way back. For
    /// N > p, the first N - p even ranks give their S bytes to the next one first and get the result from it last.
    ///
    /// # Source
    /// Rabenseifner's algorithm in Thakur, Rabenseifner & Gropp (2005); Caramel section 2: "vector halving and distance
    /// doubling". The fold is that of MPICH's program.
    HalvingDoubling,
    /// All-reduce in two steps of all to all: reduce-scatter, all-gather.
    ///
    /// # Source
    /// Caramel (Hashemi et al. 2020), section 2: "shuffle", after Dean & Ghemawat (2008).
    Shuffle,
    /// All-reduce up and down two binary trees, each with half of the bytes, part by part, with a chain within each node.
    /// Its plan is the first tree's; [`group`](super::group) has all of them.
    ///
    /// # Source
    /// Sanders, Speck & Träff (2009); NCCL since 2.4 (Jeaugey 2019).
    Tree,
    /// All-reduce of whole buffers up and down one binary tree, rank i below (i-1)/2.
    ///
    /// # Source
    /// Sanders, Speck & Träff (2009) call it the binary tree, of which they take two.
    BinaryTree,
    /// All-reduce of the whole gradient with the rank 2^s away in step s (recursive doubling); N > p by the fold.
    ///
    /// # Source
    /// Zhang et al. (2017), section 2.1 and fig. 2; Thakur et al. (2005): recursive doubling.
    Butterfly,
    /// Binomial reduce in each group of consecutive ranks, butterfly among their first ones, binomial broadcast.
    ///
    /// # Source
    /// Zhang et al. (2017), section 2.1 and fig. 2.
    ButterflyLayered {
        /// Ranks of a group; the last one may have fewer.
        group: u32,
    },
    /// All-reduce within groups of consecutive ranks and between them.
    Hierarchical {
        /// Ranks of a group; the last one may have fewer, but with [`Inside::Sharded`].
        group: u32,
        /// What happens within a group.
        inside: Inside,
    },
    /// Workers push their gradients to servers, each of which sums a shard, and pull the sums.
    ///
    /// # Source
    /// Li et al. (2014); Zhang et al. (2017), section 2.1.
    ParameterServer {
        /// Ranks of the servers; all others are workers. [`packed_servers`] and [`distributed_servers`] give usual
        /// ones.
        servers: Vec<u32>,
    },
    /// Part i, which rank i has, goes to all, in a ring.
    ///
    /// # Source
    /// Thakur et al. (2005): ring all-gather.
    AllGather,
    /// The sum of part i goes to rank i, in a ring.
    ///
    /// # Source
    /// Patarasuk & Yuan (2009), the first half.
    ReduceScatter,
    /// Part j of the S bytes of every rank goes to rank j, all at once; rank i sends to i+1 first.
    ///
    /// # Source
    /// Thakur et al. (2005): the one of MPICH for messages of medium size, which posts all sends at once.
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
    /// Bytes that the rank sends that sends most, of `bytes` that divide evenly: [`Counts::most`] in floating point,
    /// added up term by term, because results print all its digits.
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

    /// What one exchange takes, in closed form: the table of `docs/models/collectives.md`.
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
                        // A head, or a rank between two others.
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

    /// The counts of an algorithm without parts.
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
            // Every rank as the one that sends most, as flows have it.
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

/// What one exchange of S bytes takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Messages in sequence.
    pub steps: u64,
    /// Messages in all.
    pub messages: u64,
    /// Bytes in all, in units of S.
    pub sent: u64,
    /// Bytes of the rank that sends most, in units of S: numerator and denominator.
    pub most: (u64, u64),
}

impl Counts {
    fn of_servers(ranks: u64, servers: u64) -> Self {
        let workers = ranks.saturating_sub(servers);
        let most = if workers > servers { (workers, servers) } else { (1, 1) };
        Self { steps: 2, messages: 2 * servers * workers, sent: 2 * workers, most }
    }

    /// These counts among the first ranks of groups, with a binomial reduce before and a binomial broadcast after.
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

/// Levels of a binomial tree of so many ranks.
fn levels(ranks: u32) -> u64 {
    ranks.next_power_of_two().ilog2().into()
}

fn sum(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    if a.1 == b.1 { (a.0 + b.0, a.1) } else { (a.0 * b.1 + b.0 * a.1, a.1 * b.1) }
}

/// What a hierarchical all-reduce does within a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// Binomial reduce to the first rank; a ring among the first ones; binomial broadcast.
    Reduce,
    /// Ring all-reduce; a ring among the first ones; binomial broadcast.
    ///
    /// # Source
    /// Jia et al. (2018): hierarchical all-reduce in three phases.
    Ring,
    /// Ring reduce-scatter; a ring among all ranks that hold the same shard; ring all-gather.
    ///
    /// # Source
    /// BlueConnect (Cho et al. 2019), with two dimensions.
    Sharded,
    /// Along a chain to the first rank; up and down one binary tree of the first ones; back along the chain.
    ///
    /// # Source
    /// NCCL's trees since 2.4 (Jeaugey 2019), of which it takes two.
    Chain,
}

/// A message of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// Step in which the sender sends it; the receiver takes it in as its next step begins.
    pub step: u32,
    /// Rank that sends it.
    pub from: u32,
    /// Rank that receives it.
    pub to: u32,
    /// Where in the buffer its bytes stand, on both ranks. The buffer of an all-to-all is all N ranks' S bytes, one
    /// behind the other, and rank i begins with those at i S.
    pub offset: u64,
    /// Its bytes. Where there are fewer elements than parts, some messages have none.
    pub bytes: Bytes,
    /// Its share of the buffer if that could be cut anywhere.
    pub even: EvenShare,
    /// What the receiver does with them.
    pub action: Action,
}

/// What others wait for of a message: that it arrives.
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
    /// Its passage from one rank to the other.
    pub fn passage(self) -> Passage {
        Passage { step: self.step, from: self.from, to: self.to }
    }
}

/// `bytes / parts` bytes, which may be no whole number: what models take that know no packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvenShare {
    /// Bytes of all the parts.
    pub bytes: Bytes,
    /// Number of parts; not 0.
    pub parts: u32,
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// Nobody to take part.
    #[error("{ranks} ranks are too few: the collective has at least {least}")]
    TooFewRanks {
        /// Ranks.
        ranks: u32,
        /// Fewest that it takes.
        least: u32,
    },
    /// More than 2^30 ranks.
    #[error("{0} ranks are too many: at most 2^30")]
    TooManyRanks(u32),
    /// An element without bytes.
    #[error("an element has no bytes")]
    EmptyElement,
    /// Offsets would not fit.
    #[error("{0} bytes of each rank are too many: a buffer ends before 2^63")]
    TooManyBytes(u64),
    /// A group without ranks.
    #[error("a group has no ranks")]
    EmptyGroup,
    /// Shards need groups that are alike.
    #[error("{ranks} ranks are no whole number of groups of {group}, which shards need")]
    UnevenGroups {
        /// Ranks.
        ranks: u32,
        /// Ranks of a group.
        group: u32,
    },
    /// Trees have a chain in each node, all of one length.
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
    /// Nobody has a gradient.
    #[error("all {0} ranks are parameter servers: none is left to be a worker")]
    NoWorkers(u32),
    /// A server that is no rank.
    #[error("parameter server {server} is none of the {ranks} ranks")]
    NoSuchServer {
        /// The server.
        server: u32,
        /// Ranks.
        ranks: u32,
    },
    /// A rank that is a server twice.
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

/// One server in each of `servers` equal stretches of the ranks: in stretch j at place j, round and round, so that
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

/// A collective as messages, each of which waits for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectivePlan {
    ranks: u32,
    buffer: Buffer,
    phases: Vec<Phase>,
}

/// A pattern, the teams that carry it out side by side, and the steps before it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Phase {
    pattern: Pattern,
    teams: Teams,
    steps_before: u32,
}

impl CollectivePlan {
    /// The plan of an algorithm for `bytes` on each of `ranks` ranks. Parts differ by at most one element of
    /// `element_bytes`; bytes that are no whole element are in the last part. A single rank sends nothing.
    ///
    /// # Errors
    /// [`PlanError`] if the numbers do not suit the algorithm.
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
        let phases = phases(algorithm, ranks)?.into_iter().map(|(pattern, teams)| {
            let phase = Phase { pattern, teams, steps_before };
            steps_before += phase.pattern.step_count(teams.largest(ranks));
            phase
        });
        Ok(Self { ranks, buffer: Buffer { start: 0, bytes: bytes.0, element_bytes }, phases: phases.collect() })
    }

    /// Cuts the buffer into `depth` chunks, each of which goes through the plan by itself, so that one is in a later
    /// step while the next is in an earlier one. The chunks lie one behind the other and differ by at most one element.
    /// They are independent: all may begin at once, and who sends them in order has a pipeline.
    ///
    /// # Panics
    /// If `depth` is zero.
    ///
    /// # Source
    /// Caramel (Hashemi et al. 2020), section 4.4. Its rule for the depth, from 1 for small sizes to 8, is the
    /// caller's.
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

    /// Steps of every rank, in some of which it may send nothing. As many messages follow one upon another on the
    /// critical path, or a few less where ranks are no power of two and some begin early:
    /// `docs/models/collectives.md`.
    pub fn step_count(&self) -> u32 {
        self.phases.last().map_or(0, |last| last.steps_before + last.pattern.step_count(last.teams.largest(self.ranks)))
    }

    /// Tells `send` the messages that a rank sends in a step, in the order in which it starts them.
    pub fn sends(&self, step: u32, rank: u32, send: &mut dyn FnMut(Message)) {
        let Some((phase, team)) = self.place(step, rank) else { return };
        let buffer = team.shard.map_or(self.buffer, |shard| {
            let (start, bytes) = self.buffer.range(shard);
            Buffer { start, bytes, ..self.buffer }
        });
        let whole = EvenShare { bytes: Bytes(self.buffer.bytes), parts: 1 };
        let whole = team.shard.map_or(whole, |shard| whole.share(shard));
        phase.pattern.sends(step - phase.steps_before, team.index, team.size, &mut |to, share, action| {
            let (offset, bytes) = buffer.range(share);
            let (to, even) = (team.rank(to), whole.share(share));
            send(Message { step, from: rank, to, offset, bytes: Bytes(bytes), even, action });
        });
    }

    /// Messages that are sent to a rank in a step.
    pub fn receive_count(&self, step: u32, rank: u32) -> u32 {
        self.place(step, rank)
            .map_or(0, |(phase, team)| phase.pattern.receive_count(step - phase.steps_before, team.index, team.size))
    }

    /// Whether a rank's next step waits for the arrival of what it sends in this one, too.
    pub fn is_one_at_a_time(&self, step: u32) -> bool {
        self.phase(step).pattern.is_one_at_a_time()
    }

    /// Whether in every step every rank sends one equal share to the next rank, and nothing else.
    pub fn is_ring(&self) -> bool {
        let is_ring =
            |pattern: &Pattern| matches!(pattern, Pattern::RingReduceScatter { .. } | Pattern::RingAllGather { .. });
        self.phases.iter().all(|phase| phase.teams == Teams::All && is_ring(&phase.pattern))
    }

    /// Whole bytes that each rank of a ring sends: in each phase all parts but one.
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

    fn place(&self, step: u32, rank: u32) -> Option<(&Phase, Team)> {
        let phase = self.phase(step);
        phase.teams.of(rank, self.ranks).map(|team| (phase, team))
    }
}

/// The phases of an algorithm.
fn phases(algorithm: &Algorithm, ranks: u32) -> Result<Vec<(Pattern, Teams)>, PlanError> {
    use Pattern::*;
    let ring = |shift| [RingReduceScatter { shift }, RingAllGather { shift }];
    let butterfly = [Fold, Butterfly, Unfold];
    let on = |teams: Teams, patterns: &[Pattern]| patterns.iter().map(|pattern| (pattern.clone(), teams)).collect();
    let all = |patterns: &[Pattern]| Ok(on(Teams::All, patterns));
    let layers = |group, inside: &[Pattern], heads: &[Pattern]| -> Result<Vec<_>, PlanError> {
        let heads: Vec<_> = on(Teams::Heads { group }, heads);
        let inside: Vec<_> = on(Teams::Inside { group }, inside);
        Ok([inside, heads, on(Teams::Inside { group }, &[BinomialBroadcast])].concat())
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
            let [scatter, gather] = ring(1).map(|pattern| on(Teams::Inside { group }, &[pattern]));
            Ok([scatter, on(Teams::Across { group }, &ring(0)), gather].concat())
        }
        &Algorithm::Hierarchical { group, inside: Inside::Chain } => {
            let heads: Vec<_> = on(Teams::Heads { group }, &[TreeReduce, TreeBroadcast]);
            let [up, down] = [ChainReduce, ChainBroadcast].map(|pattern| on(Teams::Inside { group }, &[pattern]));
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

/// A stretch of bytes that is cut into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Buffer {
    start: u64,
    bytes: u64,
    element_bytes: u64,
}

impl Buffer {
    /// Offset and bytes of a share. The parts with one element more come first, as in [`super::ring`]; bytes that are
    /// no whole element go to the last part.
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

/// Which ranks carry out a pattern together. Groups are of consecutive ranks, the last one may be smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Teams {
    /// All ranks.
    All,
    /// Each group by itself.
    Inside { group: u32 },
    /// The first ranks of all groups.
    Heads { group: u32 },
    /// The i-th ranks of all groups, on part i of the buffer. All groups are alike.
    Across { group: u32 },
}

/// The place of one rank in its team.
struct Team {
    first: u32,
    stride: u32,
    size: u32,
    index: u32,
    shard: Option<BufferShare>,
}

impl Team {
    fn rank(&self, index: u32) -> u32 {
        self.first + index * self.stride
    }
}

impl Teams {
    fn of(self, rank: u32, ranks: u32) -> Option<Team> {
        let all = Team { first: 0, stride: 1, size: ranks, index: rank, shard: None };
        match self {
            Self::All => Some(all),
            Self::Inside { group } => {
                let first = rank / group * group;
                Some(Team { first, size: group.min(ranks - first), index: rank - first, ..all })
            }
            Self::Heads { group } => rank.is_multiple_of(group).then(|| Team {
                stride: group,
                size: self.largest(ranks),
                index: rank / group,
                ..all
            }),
            Self::Across { group } => {
                let first = rank % group;
                let shard = BufferShare { origin: 0, first, end: first + 1, count: group };
                let (size, index) = (self.largest(ranks), rank / group);
                Some(Team { first, stride: group, size, index, shard: Some(shard) })
            }
        }
    }

    /// Ranks of the largest team.
    fn largest(self, ranks: u32) -> u32 {
        match self {
            Self::All => ranks,
            Self::Inside { group } => group.min(ranks),
            Self::Heads { group } | Self::Across { group } => ranks.div_ceil(group),
        }
    }
}
