//! Patterns: the messages of each step in one phase of a collective.
//!
//! A pattern is arithmetic on the index of a rank among the `n` ranks of its subgroup; nothing is stored per message.
//! It provides three functions that must agree, which a test checks: the number of steps, the messages that a rank
//! sends in a step, and the number of messages that it receives in a step.

/// What a rank does with the bytes that it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Reduces them into its buffer.
    Reduce,
    /// Overwrites its buffer.
    Copy,
}

/// A share of the buffer: parts `first..end` of `count` parts that differ by at most one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BufferShare {
    /// In an all-to-all, where each rank has a buffer of its own: the rank whose buffer it is.
    pub origin: u32,
    pub first: u32,
    pub end: u32,
    pub count: u32,
}

impl BufferShare {
    const WHOLE: Self = Self { origin: 0, first: 0, end: 1, count: 1 };

    pub fn part(index: u32, count: u32) -> Self {
        Self { origin: 0, first: index, end: index + 1, count }
    }
}

/// One phase of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// In step k rank i sends part i - `shift` - k to i+1; at the end i has the sum of part i+1 - `shift`.
    RingReduceScatter { shift: u32 },
    /// Gathers the result of [`Self::RingReduceScatter`] with the same `shift`.
    RingAllGather { shift: u32 },
    /// The n - 2^k surplus ranks send their data to the next rank and drop out.
    Fold,
    /// The receivers of [`Self::Fold`] return the result.
    Unfold,
    /// Sends half of the remaining data to the rank at distance 1, 2 … p/2.
    Halving,
    /// Sends all gathered data to the rank at distance p/2, p/4 … 1.
    Doubling,
    /// Sends the whole buffer to the rank at distance 1, 2 … p/2.
    Butterfly,
    /// Part j to rank j.
    DirectReduceScatter,
    /// Each rank's part to every other rank.
    DirectAllGather,
    /// Whole buffer to the parent (i-1)/2, deepest level first.
    TreeReduce,
    /// Whole buffer to the children 2i+1 and 2i+2.
    TreeBroadcast,
    /// Whole buffer from i to i-1, the last rank first.
    ChainReduce,
    /// Whole buffer from i to i+1, the first rank first.
    ChainBroadcast,
    /// Whole buffer from i to i - 2^k, where k is the lowest set bit of i.
    BinomialReduce,
    /// The tree of [`Self::BinomialReduce`] downwards, the largest subtree first.
    BinomialBroadcast,
    /// Part j of every worker to server j. The servers are sorted.
    Push { servers: Vec<u32> },
    /// Part j from server j to every worker.
    Pull { servers: Vec<u32> },
    /// Part j of every rank's buffer to rank j.
    AllToAll,
    /// Whole buffer from rank 0 to rank 1.
    PointToPoint,
}

impl Pattern {
    /// Number of steps for `n` ranks.
    pub fn step_count(&self, n: u32) -> u32 {
        match self {
            Self::RingReduceScatter { .. } | Self::RingAllGather { .. } | Self::ChainReduce | Self::ChainBroadcast => {
                n - 1
            }
            Self::Fold | Self::Unfold => u32::from(!n.is_power_of_two()),
            Self::Halving | Self::Doubling | Self::Butterfly | Self::TreeReduce | Self::TreeBroadcast => n.ilog2(),
            Self::BinomialReduce | Self::BinomialBroadcast => log2_ceil(n),
            Self::DirectReduceScatter | Self::DirectAllGather | Self::AllToAll => u32::from(n > 1),
            Self::Push { .. } | Self::Pull { .. } | Self::PointToPoint => 1,
        }
    }

    /// Whether a rank sends to one peer at a time: its next step also waits for the arrival of its own messages.
    pub fn is_one_at_a_time(&self) -> bool {
        matches!(self, Self::BinomialBroadcast)
    }

    /// Calls `send` for every message of rank `i` of `n` in `step`: receiver, share, and the receiver's action.
    pub fn sends(&self, step: u32, i: u32, n: u32, send: &mut dyn FnMut(u32, BufferShare, Action)) {
        if step >= self.step_count(n) {
            return;
        }
        let others = move || (1..n).map(move |distance| (i + distance) % n);
        match self {
            Self::RingReduceScatter { .. } => {
                send((i + 1) % n, BufferShare::part(self.ring_part(step, i, n), n), Action::Reduce);
            }
            Self::RingAllGather { .. } => {
                send((i + 1) % n, BufferShare::part(self.ring_part(step, i, n), n), Action::Copy);
            }
            Self::Fold => {
                if is_folded(i, n) {
                    send(i + 1, BufferShare::WHOLE, Action::Reduce);
                }
            }
            Self::Unfold => {
                if i > 0 && is_folded(i - 1, n) {
                    send(i - 1, BufferShare::WHOLE, Action::Copy);
                }
            }
            Self::Halving => {
                if let Some(j) = place(i, n) {
                    let (p, half) = (1 << n.ilog2(), 1 << (n.ilog2() - 1 - step));
                    let peer = kept_part(j, p) ^ half;
                    let first = peer & !(half - 1);
                    let share = BufferShare { origin: 0, first, end: first + half, count: p };
                    send(at_place(kept_part(peer, p), n), share, Action::Reduce);
                }
            }
            Self::Doubling => {
                if let Some(j) = place(i, n) {
                    let (p, block) = (1 << n.ilog2(), 1 << step);
                    let first = kept_part(j, p) & !(block - 1);
                    let share = BufferShare { origin: 0, first, end: first + block, count: p };
                    send(at_place(kept_part(kept_part(j, p) ^ block, p), n), share, Action::Copy);
                }
            }
            Self::Butterfly => {
                if let Some(j) = place(i, n) {
                    send(at_place(j ^ (1 << step), n), BufferShare::WHOLE, Action::Reduce);
                }
            }
            Self::DirectReduceScatter => others().for_each(|j| send(j, BufferShare::part(j, n), Action::Reduce)),
            Self::DirectAllGather => others().for_each(|j| send(j, BufferShare::part(i, n), Action::Copy)),
            Self::TreeReduce => {
                if (i + 1).ilog2() == n.ilog2() - step {
                    send((i - 1) / 2, BufferShare::WHOLE, Action::Reduce);
                }
            }
            Self::TreeBroadcast => {
                if (i + 1).ilog2() == step {
                    children(i, n).for_each(|child| send(child, BufferShare::WHOLE, Action::Copy));
                }
            }
            Self::ChainReduce => {
                if i > 0 && step == n - 1 - i {
                    send(i - 1, BufferShare::WHOLE, Action::Reduce);
                }
            }
            Self::ChainBroadcast => {
                if i == step {
                    send(i + 1, BufferShare::WHOLE, Action::Copy);
                }
            }
            Self::BinomialReduce => {
                if i.trailing_zeros() == step {
                    send(i - (1 << step), BufferShare::WHOLE, Action::Reduce);
                }
            }
            Self::BinomialBroadcast => {
                let subtree = 1 << (log2_ceil(n) - 1 - step);
                if i.is_multiple_of(2 * subtree) && i + subtree < n {
                    send(i + subtree, BufferShare::WHOLE, Action::Copy);
                }
            }
            Self::Push { servers } => {
                if let Err(servers_before) = servers.binary_search(&i) {
                    // Worker w begins with server w, which avoids incast at one server.
                    let worker = i as usize - servers_before;
                    for k in 0..servers.len() {
                        let j = (worker + k) % servers.len();
                        send(servers[j], BufferShare::part(j as u32, servers.len() as u32), Action::Reduce);
                    }
                }
            }
            Self::Pull { servers } => {
                if let Ok(j) = servers.binary_search(&i) {
                    let share = BufferShare::part(j as u32, servers.len() as u32);
                    others().filter(|rank| servers.binary_search(rank).is_err()).for_each(|worker| {
                        send(worker, share, Action::Copy);
                    });
                }
            }
            Self::AllToAll => {
                others().for_each(|j| send(j, BufferShare { origin: i, ..BufferShare::part(j, n) }, Action::Copy));
            }
            Self::PointToPoint => {
                if i == 0 {
                    send(1, BufferShare::WHOLE, Action::Copy);
                }
            }
        }
    }

    /// The part that rank `i` of a ring of `n` sends in `step`. With `step` equal to the step count: the part that it
    /// never sends.
    ///
    /// # Panics
    /// If the pattern is not a ring.
    pub fn ring_part(&self, step: u32, i: u32, n: u32) -> u32 {
        let ahead = match self {
            Self::RingReduceScatter { shift } => 2 * n - shift,
            Self::RingAllGather { shift } => 2 * n - shift + 1,
            other => unreachable!("{other:?} is no ring"),
        };
        (i + ahead - step) % n
    }

    /// Messages that rank `i` of `n` receives in `step`.
    pub fn receive_count(&self, step: u32, i: u32, n: u32) -> u32 {
        if step >= self.step_count(n) {
            return 0;
        }
        match self {
            Self::RingReduceScatter { .. } | Self::RingAllGather { .. } => 1,
            Self::Fold => u32::from(i > 0 && is_folded(i - 1, n)),
            Self::Unfold => u32::from(is_folded(i, n)),
            Self::Halving | Self::Doubling | Self::Butterfly => u32::from(place(i, n).is_some()),
            Self::DirectReduceScatter | Self::DirectAllGather | Self::AllToAll => n - 1,
            Self::TreeReduce if (i + 1).ilog2() + 1 == n.ilog2() - step => children(i, n).count() as u32,
            Self::TreeReduce => 0,
            Self::TreeBroadcast => u32::from((i + 1).ilog2() == step + 1),
            Self::ChainReduce => u32::from(step + i + 2 == n),
            Self::ChainBroadcast => u32::from(i == step + 1),
            Self::BinomialReduce => u32::from(i.is_multiple_of(2 << step) && i + (1 << step) < n),
            Self::BinomialBroadcast => u32::from(i.trailing_zeros() == log2_ceil(n) - 1 - step),
            Self::Push { servers } if servers.binary_search(&i).is_ok() => n - servers.len() as u32,
            Self::Pull { servers } if servers.binary_search(&i).is_err() => servers.len() as u32,
            Self::Push { .. } | Self::Pull { .. } => 0,
            Self::PointToPoint => u32::from(i == 1),
        }
    }
}

fn log2_ceil(n: u32) -> u32 {
    n.next_power_of_two().ilog2()
}

/// With `n` = 2^k + r ranks, whether `i` drops out: the even ones among the first 2r ranks do.
fn is_folded(i: u32, n: u32) -> bool {
    i < 2 * (n - (1 << n.ilog2())) && i.is_multiple_of(2)
}

/// Index of a rank among the 2^k remaining ranks; `None` if it has dropped out.
fn place(i: u32, n: u32) -> Option<u32> {
    let surplus = n - (1 << n.ilog2());
    match i {
        _ if is_folded(i, n) => None,
        _ if i < 2 * surplus => Some(i / 2),
        _ => Some(i - surplus),
    }
}

/// The rank at an index among the 2^k remaining ranks.
fn at_place(j: u32, n: u32) -> u32 {
    let surplus = n - (1 << n.ilog2());
    if j < surplus { 2 * j + 1 } else { j + surplus }
}

/// The part that index j ends up with after halving: j with its bits reversed, as the first halving decides the highest
/// bit. An involution.
fn kept_part(j: u32, p: u32) -> u32 {
    if p == 1 { j } else { j.reverse_bits() >> (u32::BITS - p.ilog2()) }
}

fn children(i: u32, n: u32) -> impl Iterator<Item = u32> {
    [2 * i + 1, 2 * i + 2].into_iter().filter(move |&child| child < n)
}
