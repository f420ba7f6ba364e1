//! Timing-aware communication scheduling (TAC).
//!
//! A *join* is a compute node that needs two or more transfers ([`Needs`]). In a given state, finished transfers no
//! longer count as needed. Then
//!
//! - P of a transfer is the compute time of all nodes that need this transfer and no other.
//! - M of a transfer is its own time; M of a join is the total time of the transfers that it needs.
//! - M+ of a transfer is the smallest M of the joins that need it. It is infinite if there are no such joins.
//!
//! These are op.P, op.M and op.M+ of TicTac, Algorithm 1. Joins are stored in blocks of 64, so that a word has one bit
//! for each join of a block.

use super::needs::{BitWord, NeedNode, Needs, Recv, SET_SIZE, bits};
use gradtide_watch::check_cancelled;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;

/// Tie-break among transfers that TAC's comparator considers equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ties {
    /// Scans transfers by ascending id and keeps the first of equal transfers.
    Id,
    /// Follows the released code, which sorts the list of the previous round in every round with a stable sort and
    /// takes its first element.
    Upstream,
}

/// Returns the order of TAC (TicTac, Algorithm 3, with the comparator of Equation 2 as in the released code).
///
/// `work_ticks` is the compute time of each node: [`Needs::work_ticks`] or [`Needs::folded_ticks`].
pub fn tac(needs: &Needs, work_ticks: &[u64]) -> Vec<Recv> {
    Outstanding::new(needs, work_ticks).order_by(needs.recv_count(), |state| state.first_by_id())
}

/// The inputs of the comparator for one transfer: its P, M and M+.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    recv: Recv,
    p: u64,
    m: u64,
    m_plus: u64,
}

impl Candidate {
    /// Compares two transfers by Equation 2, then by M+. The comparison is not transitive: a transfer with P = M may
    /// equal two transfers that differ from each other.
    fn compare(&self, other: &Self) -> Ordering {
        self.equation_2(other).then(self.m_plus.cmp(&other.m_plus))
    }

    /// Orders transfer A before transfer B if min(P_B, M_A) < min(P_A, M_B). This is the rule of Johnson (1954) for two
    /// machines.
    fn equation_2(&self, other: &Self) -> Ordering {
        other.p.min(self.m).cmp(&self.p.min(other.m))
    }

    /// Returns whether this transfer precedes `other`.
    pub fn is_before(&self, other: &Self) -> bool {
        self.compare(other) == Ordering::Less
    }
}

/// Johnson's rule as a sort key, smaller first: transfers with P > M by ascending M, then transfers with P < M by
/// descending P. Equation 2 agrees with the key except for transfers with P = M. Equation 2 considers such a transfer
/// equal to transfers with different keys, whereas the key puts it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Gain(u64),
    Loss(std::cmp::Reverse<u64>),
    Even,
}

impl Key {
    fn new(p: u64, m: u64) -> Self {
        match p.cmp(&m) {
            Ordering::Greater => Self::Gain(m),
            Ordering::Equal => Self::Even,
            Ordering::Less => Self::Loss(std::cmp::Reverse(p)),
        }
    }
}

/// The keys of transfers, by id, in a segment tree that returns the minimum of a range. A transfer that is absent has
/// [`Key::Even`].
struct Keys {
    /// Number of leaves, a power of two.
    leaf_count: usize,
    /// Minimum of each node of the tree. The root is node 1, and the children of node i are nodes 2 i and 2 i + 1.
    least: Vec<Key>,
}

impl Keys {
    fn new(recv_count: usize) -> Self {
        let leaf_count = recv_count.next_power_of_two();
        Self { leaf_count, least: vec![Key::Even; 2 * leaf_count] }
    }

    fn has(&self, recv: Recv) -> bool {
        self.least[self.leaf_count + recv as usize] != Key::Even
    }

    fn set(&mut self, recv: Recv, key: Key) {
        let mut node = self.leaf_count + recv as usize;
        self.least[node] = key;
        while node > 1 {
            node /= 2;
            self.least[node] = self.least[2 * node].min(self.least[2 * node + 1]);
        }
    }

    /// Returns the transfers of a range that have the smallest key of the range, by ascending id.
    fn least(&self, within: Range<Recv>) -> Vec<Recv> {
        // Nodes of the tree that together cover the range, collected from both ends inwards.
        let (mut from, mut to) = (self.leaf_count + within.start as usize, self.leaf_count + within.end as usize);
        let (mut left, mut right) = (Vec::new(), Vec::new());
        while from < to {
            if from % 2 == 1 {
                left.push(from);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                right.push(to);
            }
            (from, to) = (from / 2, to / 2);
        }
        right.extend(left.into_iter().rev());
        let mut nodes = right;
        let Some(key) = nodes.iter().map(|&node| self.least[node]).min().filter(|&key| key != Key::Even) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        while let Some(node) = nodes.pop() {
            if self.least[node] != key {
                continue;
            }
            if node >= self.leaf_count {
                found.push((node - self.leaf_count) as Recv);
            } else {
                nodes.extend([2 * node + 1, 2 * node]);
            }
        }
        found
    }
}

/// Number of joins in a block, which is the number of bits of a word.
const BUCKET: usize = 64;

/// A block of 64 joins that are adjacent in topological order.
#[derive(Clone, Debug)]
struct JoinBlock {
    /// Offset that applies to M of each join of the block.
    shift_ticks: u64,
    /// Bit set of the block's live joins, which still need two or more transfers.
    live: u64,
    /// Minimum of (key, M+, id) over the transfers right above live joins of the block.
    best: Option<(Key, u64, Recv)>,
    is_stale: bool,
}

/// The outstanding transfers, which are not finished, with P, M and M+ of each.
///
/// A transfer is right above a join if a parent of the join needs this transfer and no other. M+ of a transfer is the
/// smallest M of the joins right below it. When a transfer finishes, its time is subtracted from M of every join that
/// needs it. In the most frequent case all live joins of a block need the transfer, which takes a single subtraction
/// from the offset of the block.
pub struct Outstanding<'a> {
    needs: &'a Needs,
    work_ticks: &'a [u64],
    children: Vec<Vec<u32>>,
    is_outstanding: Vec<bool>,
    p: Vec<u64>,
    /// Outstanding transfers with P = M.
    even: BTreeSet<Recv>,
    /// Keys of the outstanding transfers with P ≠ M, by id.
    keys: Keys,
    /// For each transfer, the nodes that need it and no other.
    held: Vec<Vec<NeedNode>>,
    /// For each join, the transfers right above it, with their keys.
    near: Vec<BTreeSet<(Key, Recv)>>,
    /// For each join, the number of its parents that need two or more transfers.
    blocked: Vec<u32>,
    /// M of each join, without the offset of its block.
    m: Vec<u64>,
    buckets: Vec<JoinBlock>,
    /// Index of the first block with live joins. It may be too small, but never too large.
    first_live: usize,
    /// Bit sets of the joins that need each transfer, with a row per transfer and a word per block.
    below: Vec<u64>,
}

impl<'a> Outstanding<'a> {
    /// Creates the initial state, in which no transfer is finished.
    pub fn new(needs: &'a Needs, work_ticks: &'a [u64]) -> Self {
        let (recv_count, join_count) = (needs.recv_count(), needs.join_count());
        let bucket = |first: usize| JoinBlock {
            shift_ticks: 0,
            live: u64::MAX >> (BUCKET - (join_count - first).min(BUCKET)),
            best: None,
            is_stale: true,
        };
        let mut state = Self {
            needs,
            work_ticks,
            children: needs.children(),
            is_outstanding: vec![true; recv_count],
            p: work_ticks[..recv_count].to_vec(),
            even: BTreeSet::new(),
            keys: Keys::new(recv_count),
            held: (0..recv_count as NeedNode).map(|recv| vec![recv]).collect(),
            near: vec![BTreeSet::new(); join_count],
            blocked: vec![0; join_count],
            m: vec![0; join_count],
            buckets: (0..join_count).step_by(BUCKET).map(bucket).collect(),
            first_live: 0,
            below: below(needs),
        };
        for recv in 0..recv_count {
            let key = state.key(recv as Recv);
            if key == Key::Even {
                state.even.insert(recv as Recv);
            }
            state.keys.set(recv as Recv, key);
            state.shift(recv as Recv, needs.recv_ticks[recv]);
        }
        for (join, parents) in needs.parents.iter().enumerate() {
            for &parent in parents {
                if (parent as usize) < recv_count {
                    let key = state.key(parent);
                    state.near[join].insert((key, parent));
                } else {
                    state.blocked[join] += 1;
                }
            }
        }
        state
    }

    fn key(&self, recv: Recv) -> Key {
        Key::new(self.p[recv as usize], self.needs.recv_ticks[recv as usize])
    }

    fn m_of(&self, join: u32) -> u64 {
        self.m[join as usize].wrapping_add(self.buckets[join as usize / BUCKET].shift_ticks)
    }

    /// Adds `ticks` to M of every join that needs `recv`. Negative `ticks` are in two's complement.
    fn shift(&mut self, recv: Recv, ticks: u64) {
        let row = recv as usize * self.buckets.len();
        for (index, bucket) in self.buckets.iter_mut().enumerate().skip(self.first_live) {
            let touched = self.below[row + index] & bucket.live;
            if touched == bucket.live {
                bucket.shift_ticks = bucket.shift_ticks.wrapping_add(ticks);
                if let Some((_, m_plus, _)) = &mut bucket.best {
                    *m_plus = m_plus.wrapping_add(ticks);
                }
            } else if touched != 0 {
                for join in bits(touched) {
                    let m = &mut self.m[index * BUCKET + join];
                    *m = m.wrapping_add(ticks);
                }
                bucket.is_stale = true;
            }
        }
    }

    /// Marks a transfer as finished. A join that now needs only one transfer is merged into the node of this transfer.
    fn finish(&mut self, recv: Recv) {
        let key = self.key(recv);
        self.even.remove(&recv);
        self.keys.set(recv, Key::Even);
        self.is_outstanding[recv as usize] = false;
        self.shift(recv, self.needs.recv_ticks[recv as usize].wrapping_neg());
        let mut changed = Vec::new();
        for node in std::mem::take(&mut self.held[recv as usize]) {
            for index in 0..self.children[node as usize].len() {
                let join = self.children[node as usize][index];
                self.near[join as usize].remove(&(key, recv));
                changed.push(join);
            }
        }
        let mut gains: Vec<(Recv, u64)> = Vec::new();
        while let Some(join) = changed.pop() {
            check_cancelled();
            let bucket = &mut self.buckets[join as usize / BUCKET];
            bucket.is_stale = true;
            let bit = 1 << (join as usize % BUCKET);
            let near = &self.near[join as usize];
            if self.blocked[join as usize] > 0 || near.len() != 1 || bucket.live & bit == 0 {
                continue;
            }
            bucket.live &= !bit;
            let &(key, owner) = near.first().expect("it has one");
            let node = (self.needs.recv_count() + join as usize) as NeedNode;
            gains.push((owner, self.work_ticks[node as usize]));
            self.held[owner as usize].push(node);
            for &child in &self.children[node as usize] {
                self.blocked[child as usize] -= 1;
                self.near[child as usize].insert((key, owner));
                changed.push(child);
            }
        }
        gains.sort_unstable();
        for gains in gains.chunk_by(|(owner, _), (next, _)| owner == next) {
            self.gain(gains[0].0, gains.iter().map(|&(_, ticks)| ticks).sum());
        }
    }

    /// Adds `ticks` to P of a transfer.
    fn gain(&mut self, recv: Recv, ticks: u64) {
        let before = self.key(recv);
        self.p[recv as usize] += ticks;
        let after = self.key(recv);
        if before == after {
            return;
        }
        self.even.remove(&recv);
        if after == Key::Even {
            self.even.insert(recv);
        }
        self.keys.set(recv, after);
        for &node in &self.held[recv as usize] {
            for &join in &self.children[node as usize] {
                let bucket = &mut self.buckets[join as usize / BUCKET];
                if self.near[join as usize].remove(&(before, recv)) {
                    self.near[join as usize].insert((after, recv));
                    bucket.is_stale = true;
                }
            }
        }
    }

    /// Returns the order in which `next` selects transfers. The last transfer is not selected, because it is the only
    /// one left.
    pub fn order_by(mut self, recv_count: usize, mut next: impl FnMut(&mut Self) -> Recv) -> Vec<Recv> {
        let mut order = Vec::with_capacity(recv_count);
        while order.len() + 1 < recv_count {
            check_cancelled();
            let recv = next(&mut self);
            order.push(recv);
            self.finish(recv);
        }
        order.extend(self.is_outstanding.iter().position(|&it| it).map(|recv| recv as Recv));
        order
    }

    /// Returns the transfer that a scan by ascending id selects. The scan keeps its current best transfer unless the
    /// next transfer is strictly before it.
    ///
    /// Usually this is the minimum of (key, M+, id). If a transfer with P = M is not after this minimum, the scan is
    /// simulated.
    fn first_by_id(&mut self) -> Recv {
        while self.buckets[self.first_live].live == 0 {
            self.first_live += 1;
        }
        for index in self.first_live..self.buckets.len() {
            check_cancelled();
            if self.buckets[index].is_stale {
                self.buckets[index].best = self.best_of(index);
                self.buckets[index].is_stale = false;
            }
        }
        let best = self.buckets[self.first_live..].iter().filter_map(|bucket| bucket.best).min();
        let (key, m_plus, recv) = best.expect("the target needs all that is outstanding, and that is several");
        let first = self.candidate(recv, m_plus);
        let comes_first = |&even: &Recv| match first.compare(&self.candidate_of(even)) {
            Ordering::Less => true,
            Ordering::Equal => recv < even,
            Ordering::Greater => false,
        };
        if key == Key::Even || self.even.iter().all(comes_first) {
            return recv;
        }
        let mut best: Option<Candidate> = None;
        let mut from = 0;
        for even in self.even.iter().copied() {
            let next = self.candidate_of(even);
            best = self.scan_uneven(best, from..even, &first);
            if best.is_none_or(|best| next.is_before(&best)) {
                best = Some(next);
            }
            from = even + 1;
        }
        let last = self.scan_uneven(best, from..self.needs.recv_count() as Recv, &first);
        last.expect("several are outstanding").recv
    }

    /// Continues a scan with the transfers of the range `within`, and returns the best transfer after it. `best` is the
    /// best transfer before the range. No transfer in the range has P = M.
    ///
    /// Within the range the comparator is the order by (key, M+, id). The minimum of the range therefore replaces
    /// `best` if the minimum is before `best`. If `best` has P = M, however, the first transfer of the range that is
    /// before `best` replaces it, and only the rest of the range competes with that transfer. `first` is the minimum of
    /// all transfers.
    fn scan_uneven(&self, best: Option<Candidate>, within: Range<Recv>, first: &Candidate) -> Option<Candidate> {
        let mut best = best;
        let mut from = within.start;
        if let Some(even) = best.filter(|best| best.p == best.m) {
            let is_before = |&recv: &Recv| self.keys.has(recv) && self.candidate_of(recv).is_before(&even);
            let Some(recv) = within.clone().find(is_before) else { return best };
            (best, from) = (None, recv);
        }
        let least = if (from..within.end).contains(&first.recv) {
            *first
        } else {
            let equals = self.keys.least(from..within.end).into_iter().map(|recv| self.candidate_of(recv));
            let Some(least) = equals.reduce(|least, next| if next.is_before(&least) { next } else { least }) else {
                return best;
            };
            least
        };
        Some(best.filter(|best| !least.is_before(best)).unwrap_or(least))
    }

    fn best_of(&self, bucket: usize) -> Option<(Key, u64, Recv)> {
        bits(self.buckets[bucket].live)
            .filter_map(|bit| {
                let join = bucket * BUCKET + bit;
                let &(key, recv) = self.near[join].first()?;
                Some((key, self.m_of(join as u32), recv))
            })
            .min()
    }

    /// Returns the inputs of the comparator for a transfer.
    pub fn candidate(&self, recv: Recv, m_plus: u64) -> Candidate {
        Candidate { recv, p: self.p[recv as usize], m: self.needs.recv_ticks[recv as usize], m_plus }
    }

    fn candidate_of(&self, recv: Recv) -> Candidate {
        self.candidate(recv, self.m_plus_of(recv))
    }

    /// Returns M+ of one transfer.
    fn m_plus_of(&self, recv: Recv) -> u64 {
        let held = self.held[recv as usize].iter();
        let joins = held.flat_map(|&node| &self.children[node as usize]);
        let live =
            joins.filter(|&&join| self.buckets[join as usize / BUCKET].live >> (join as usize % BUCKET) & 1 == 1);
        live.map(|&join| self.m_of(join)).min().unwrap_or(u64::MAX)
    }

    /// Returns M+ of every transfer.
    pub fn m_plus(&self) -> Vec<u64> {
        let mut m_plus = vec![u64::MAX; self.needs.recv_count()];
        for (index, bucket) in self.buckets.iter().enumerate() {
            for bit in bits(bucket.live) {
                let join = index * BUCKET + bit;
                let m = self.m_of(join as u32);
                for &(_, recv) in &self.near[join] {
                    m_plus[recv as usize] = m_plus[recv as usize].min(m);
                }
            }
        }
        m_plus
    }
}

/// Returns the bit sets of the joins that need each transfer, with a row per transfer and a word per block of 64 joins.
/// Sets of [`SET_SIZE`] joins at a time are propagated as bits from joins to their parents.
fn below(needs: &Needs) -> Vec<u64> {
    let (recv_count, join_count) = (needs.recv_count(), needs.join_count());
    let bucket_count = join_count.div_ceil(BUCKET);
    let mut rows = vec![0; recv_count * bucket_count];
    let mut paths = vec![BitWord::default(); recv_count + join_count];
    for first in (0..join_count).step_by(SET_SIZE) {
        paths.fill(BitWord::default());
        for join in (0..join_count.min(first + SET_SIZE)).rev() {
            check_cancelled();
            let mut path = paths[recv_count + join];
            if join >= first {
                path.add(&BitWord::of(join - first));
            }
            needs.parents[join].iter().for_each(|&parent| paths[parent as usize].add(&path));
        }
        let buckets = first / BUCKET..bucket_count.min((first + SET_SIZE) / BUCKET);
        for (recv, path) in paths[..recv_count].iter().enumerate() {
            let row = &mut rows[recv * bucket_count..][buckets.clone()];
            row.copy_from_slice(&path.0[..row.len()]);
        }
    }
    rows
}
