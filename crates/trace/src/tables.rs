//! Tables of a job's traces, with one row per rank, per op or per transfer.

use crate::{CollectiveType, Gap, MAX_LISTED_RANKS, NodeType, RankTrace, TraceOp};
use gradtide_table::{Column, Table};
use gradtide_watch::check_cancelled;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The traces of a job's ranks, in the order of the ranks.
pub type Ranks = [(u32, Arc<RankTrace>)];

/// Time breakdown of a rank from the start of its first op to the end of its last. Compute, exposed communication and
/// idle time sum to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waterfall {
    /// Total time.
    pub span_ns: u64,
    /// Compute time.
    pub compute_ns: u64,
    /// Part of `compute_ns` that overlaps with communication.
    pub overlapped_ns: u64,
    /// Time with communication but without compute (exposed communication).
    pub exposed_ns: u64,
    /// Time without compute and without communication.
    pub idle_ns: u64,
}

/// Returns whether a rank has compute ops on a device.
pub(crate) fn has_device(trace: &RankTrace) -> bool {
    trace.ops.iter().any(|op| op.kind.is_busy() && !op.is_host && op.duration_ns > 0)
}

/// Returns whether an op counts as compute. On a rank with a device, only device ops do.
pub(crate) fn is_computing(op: &TraceOp, has_device: bool) -> bool {
    op.kind.is_busy() && op.is_host != has_device
}

/// Returns the time breakdown of a rank. If the rank has a device, only device ops count as compute, because the host
/// only launches them.
pub fn waterfall(trace: &RankTrace) -> Waterfall {
    let has_device = has_device(trace);
    // Events of a sweep over time: +1 at the start and -1 at the end of each compute or communication op.
    let mut edges: Vec<(u64, i8, i8)> = Vec::with_capacity(2 * trace.ops.len());
    for op in trace.ops.iter().filter(|op| op.duration_ns > 0) {
        let (compute, comm) = (i8::from(is_computing(op, has_device)), i8::from(op.kind.is_comm()));
        edges.push((op.start_ns, compute, comm));
        edges.push((op.end_ns(), -compute, -comm));
    }
    edges.sort_unstable();
    let (start, end) = ends(trace);
    let mut parts = Waterfall { span_ns: end - start, ..Waterfall::default() };
    let (mut at, mut computing, mut moving) = (start, 0_i64, 0_i64);
    for (time, compute, comm) in edges.into_iter().chain([(end, 0, 0)]) {
        check_cancelled();
        let lasted = time - at;
        match (computing > 0, moving > 0) {
            (true, is_overlapped) => {
                parts.compute_ns += lasted;
                parts.overlapped_ns += if is_overlapped { lasted } else { 0 };
            }
            (false, true) => parts.exposed_ns += lasted,
            (false, false) => parts.idle_ns += lasted,
        }
        at = time;
        computing += i64::from(compute);
        moving += i64::from(comm);
    }
    parts
}

/// Returns the offset of each rank's clock from the clock of the first rank, in ns, positive if the clock is ahead. The
/// offset is the median difference between the ends of collectives, matched by group, kind and number. Only collectives
/// that synchronise their ranks are used, because these end simultaneously on all ranks, whereas their starts may
/// differ widely. The offset is `None` if a rank has no such collective in common with the first rank.
pub fn clock_offsets_ns(ranks: &Ranks) -> Vec<Option<i64>> {
    let ends: Vec<_> = ranks.iter().map(|(_, trace)| shared_ends(trace)).collect();
    let Some(first) = ends.first() else { return Vec::new() };
    let offset = |other: &BTreeMap<_, Vec<u64>>| {
        let mut differences: Vec<i64> = Vec::new();
        for (key, mine) in other {
            // If the counts differ, for example because one recording is longer, the collectives cannot be matched.
            if let Some(theirs) = first.get(key).filter(|theirs| theirs.len() == mine.len()) {
                differences.extend(mine.iter().zip(theirs).map(|(&mine, &theirs)| mine.wrapping_sub(theirs) as i64));
            }
        }
        let middle = differences.len() / 2;
        (!differences.is_empty()).then(|| *differences.select_nth_unstable(middle).1)
    };
    ends.iter().map(offset).collect()
}

fn shared_ends(trace: &RankTrace) -> BTreeMap<(Arc<str>, CollectiveType), Vec<u64>> {
    let mut ends: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for op in &trace.ops {
        if let Some(comm) = &op.comm
            && let Some(
                one @ (CollectiveType::AllReduce
                | CollectiveType::AllGather
                | CollectiveType::AllToAll
                | CollectiveType::ReduceScatter
                | CollectiveType::ReduceScatterBlock
                | CollectiveType::Barrier),
            ) = comm.collective
        {
            ends.entry((comm.group.clone(), one)).or_default().push(op.end_ns());
        }
    }
    ends
}

/// Returns one row per rank: counts, time breakdown and clock offset.
pub fn ranks(ranks: &Ranks) -> Table {
    let parts: Vec<Waterfall> = ranks.iter().map(|(_, trace)| waterfall(trace)).collect();
    let count = |of: fn(&RankTrace) -> u64| Column::Count(ranks.iter().map(|(_, trace)| of(trace)).collect());
    let time = |of: fn(&Waterfall) -> u64| Column::Time(parts.iter().map(|one| picoseconds(of(one))).collect());
    let offsets = clock_offsets_ns(ranks).into_iter().map(|ns| ns.map(|ns| ns.saturating_mul(1000))).collect();
    table(vec![
        ("rank", Column::Count(ranks.iter().map(|(rank, _)| (*rank).into()).collect())),
        ("ops", count(|trace| trace.ops.len() as u64)),
        ("transfers", count(|trace| trace.ops.iter().filter(|op| op.comm.is_some()).count() as u64)),
        (
            "transfer_bytes",
            count(|trace| trace.ops.iter().filter_map(|op| op.comm.as_ref()?.bytes).fold(0, u64::saturating_add)),
        ),
        ("dangling_deps", count(|trace| trace.gaps.count(Gap::Dependency))),
        ("span_us", time(|parts| parts.span_ns)),
        ("compute_us", time(|parts| parts.compute_ns)),
        ("overlapped_us", time(|parts| parts.overlapped_ns)),
        ("exposed_us", time(|parts| parts.exposed_ns)),
        ("idle_us", time(|parts| parts.idle_ns)),
        ("clock_offset_us", Column::MaybeTime(offsets)),
    ])
}

/// Returns one row per op. Times count from the start of the rank's first op, on the rank's own clock.
pub fn ops(ranks: &Ranks) -> Table {
    let mut rows = Rows::default();
    let (mut hosts, mut data, mut ctrl) = (Vec::new(), Vec::new(), Vec::new());
    for (rank, trace) in ranks {
        let (start, _) = ends(trace);
        for op in &trace.ops {
            check_cancelled();
            rows.push(*rank, op, start);
            hosts.push(op.is_host);
            data.push(list(op.data_deps.iter()));
            ctrl.push(list(op.ctrl_deps.iter()));
        }
    }
    let mut columns = rows.columns();
    columns.push(("is_host", Column::Flag(hosts)));
    columns.push(("data_deps", Column::Text(data)));
    columns.push(("ctrl_deps", Column::Text(ctrl)));
    table(columns)
}

/// Returns one row per communication op.
pub fn collectives(ranks: &Ranks) -> Table {
    let mut rows = Rows::default();
    let (mut what, mut bytes, mut groups, mut members) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut from, mut to) = (Vec::new(), Vec::new());
    let mut words: BTreeMap<&str, Arc<str>> = BTreeMap::new();
    for (rank, trace) in ranks {
        let (start, _) = ends(trace);
        for op in &trace.ops {
            check_cancelled();
            let Some(comm) = &op.comm else { continue };
            rows.push(*rank, op, start);
            let word = op.transfer_word();
            what.push(words.entry(word).or_insert_with(|| word.into()).clone());
            bytes.push(comm.bytes);
            groups.push(comm.group.clone());
            members.push(comm.ranks.as_ref().map_or_else(|| "".into(), |ranks| group(ranks)));
            from.push(comm.ends.map(|ends| ends.0.into()));
            to.push(comm.ends.map(|ends| ends.1.into()));
        }
    }
    let mut columns = rows.columns();
    columns.retain(|(name, _)| *name != "kind");
    columns.push(("collective", Column::Text(what)));
    columns.push(("bytes", counts(bytes)));
    columns.push(("group", Column::Text(groups)));
    columns.push(("group_ranks", Column::Text(members)));
    columns.push(("from_rank", Column::Signed(from)));
    columns.push(("to_rank", Column::Signed(to)));
    table(columns)
}

/// Returns a `Count` column if all values are known, and a `Signed` column otherwise, because Python's integer arrays
/// cannot contain absent values.
fn counts(values: Vec<Option<u64>>) -> Column {
    match values.iter().copied().collect() {
        Some(known) => Column::Count(known),
        None => {
            let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            Column::Signed(values.into_iter().map(|value| value.map(signed)).collect())
        }
    }
}

/// The columns common to all ops.
#[derive(Default)]
struct Rows {
    ranks: Vec<u64>,
    ids: Vec<u64>,
    names: Vec<Arc<str>>,
    kinds: Vec<Arc<str>>,
    starts: Vec<i64>,
    durations: Vec<i64>,
    words: BTreeMap<NodeType, Arc<str>>,
}

impl Rows {
    fn push(&mut self, rank: u32, op: &TraceOp, start_ns: u64) {
        self.ranks.push(rank.into());
        self.ids.push(op.id);
        self.names.push(op.name.clone());
        self.kinds.push(self.words.entry(op.kind).or_insert_with(|| op.kind.word().into()).clone());
        self.starts.push(picoseconds(op.start_ns - start_ns));
        self.durations.push(picoseconds(op.duration_ns));
    }

    fn columns(self) -> Vec<(&'static str, Column)> {
        vec![
            ("rank", Column::Count(self.ranks)),
            ("id", Column::Count(self.ids)),
            ("name", Column::Text(self.names)),
            ("kind", Column::Text(self.kinds)),
            ("start_us", Column::Time(self.starts)),
            ("duration_us", Column::Time(self.durations)),
        ]
    }
}

/// Returns the start of a rank's first op and the latest end of its ops.
pub(crate) fn ends(trace: &RankTrace) -> (u64, u64) {
    let start = trace.ops.iter().map(|op| op.start_ns).min().unwrap_or_default();
    (start, trace.ops.iter().map(TraceOp::end_ns).max().unwrap_or_default())
}

fn picoseconds(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX).saturating_mul(1000)
}

fn list<T: ToString>(values: impl Iterator<Item = T>) -> Arc<str> {
    values.map(|value| value.to_string()).collect::<Vec<_>>().join(" ").into()
}

/// Returns the ranks of a group as text. Long lists are truncated, because a table has one row per transfer.
fn group(ranks: &[u32]) -> Arc<str> {
    let listed = list(ranks.iter().take(MAX_LISTED_RANKS));
    match ranks.len().checked_sub(MAX_LISTED_RANKS) {
        None | Some(0) => listed,
        Some(more) => format!("{listed} and {more} more").into(),
    }
}

fn table(columns: Vec<(&str, Column)>) -> Table {
    Table { columns: columns.into_iter().map(|(name, column)| (name.to_owned(), column)).collect() }
}
