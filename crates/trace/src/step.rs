//! Finds the steps of a job in the traces of its ranks, and analyses a step: its time breakdown and its transfers.
//!
//! ```text
//! profiler marks, else repeating transfers, else the whole trace -> windows -> each rank's compute and communication
//! ```
//!
//! Compute and communication are two lists of disjoint intervals. Exposed communication is the part of the
//! communication without simultaneous compute. Each instant of exposed communication is attributed to the transfer that
//! has been in flight for the longest time.

use crate::tables::{Ranks, has_device, is_computing};
use crate::{CollectiveType, Comm, NodeType, RankTrace, StepPart, TraceOp};
use gradtide_watch::check_cancelled;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Method by which the steps of a trace were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundBy {
    /// Profiler marks: `ProfilerStep#7`.
    Marks,
    /// A repeating sequence of transfers.
    Transfers,
    /// No step was found, so the whole trace is one step.
    Whole,
}

/// The steps of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Steps {
    /// Method by which the steps were found.
    pub found_by: FoundBy,
    /// Steps, in order.
    pub steps: Vec<Step>,
    /// Number of steps that are missing on some ranks. They are left out.
    pub partial: u64,
    /// Number of steps that contain an event without a duration. They are left out.
    pub untimed: u64,
}

/// Time window of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Number of the step in the profiler, or its index from 0.
    pub number: u64,
    /// Start and end on each rank, on the rank's own clock.
    pub windows_ns: Vec<(u64, u64)>,
}

/// Windows of a rank's steps, by the number of the step.
type Windows = BTreeMap<u64, Window>;

#[derive(Clone, Copy)]
struct Window {
    start_ns: u64,
    end_ns: u64,
    /// Whether the recording ended before the step did.
    is_cut_off: bool,
}

/// Finds the steps of a trace.
///
/// A step lasts until the next one starts. A device mark ends with the last kernel of its step, so the time that the
/// device waits after it is unknown. The last step of a device is therefore cut off, and counts only if there is no
/// other. A host mark ends with its step.
pub fn steps(ranks: &Ranks) -> Steps {
    for (found_by, find) in [(FoundBy::Marks, marked as fn(&RankTrace) -> Windows), (FoundBy::Transfers, repeated)] {
        let found: Vec<Windows> = ranks.iter().map(|(_, trace)| find(trace)).collect();
        let Some(first) = found.first() else { break };
        let mut in_all: Vec<u64> =
            first.keys().copied().filter(|number| found.iter().all(|one| one.contains_key(number))).collect();
        if in_all.is_empty() {
            continue;
        }
        let known: BTreeSet<u64> = found.iter().flat_map(BTreeMap::keys).copied().collect();
        let partial = (known.len() - in_all.len()) as u64;
        let is_whole = |number: &u64| found.iter().all(|one| !one[number].is_cut_off);
        if in_all.iter().any(is_whole) {
            in_all.retain(is_whole);
        }
        let window = |one: &Windows, number| (one[number].start_ns, one[number].end_ns);
        let steps = in_all.iter().map(|number| {
            let windows_ns = found.iter().map(|one| window(one, number)).collect();
            Step { number: *number, windows_ns }
        });
        return timed(ranks, Steps { found_by, steps: steps.collect(), partial, untimed: 0 });
    }
    let windows_ns = ranks.iter().map(|(_, trace)| crate::tables::ends(trace)).collect();
    let steps = vec![Step { number: 0, windows_ns }];
    timed(ranks, Steps { found_by: FoundBy::Whole, steps, partial: 0, untimed: 0 })
}

/// Removes the steps that contain an event without a duration.
fn timed(ranks: &Ranks, mut found: Steps) -> Steps {
    let is_untimed = |step: &Step| {
        let mut of_ranks = ranks.iter().zip(&step.windows_ns);
        of_ranks
            .any(|((_, trace), &(start_ns, end_ns))| trace.untimed_ns.iter().any(|ns| (start_ns..end_ns).contains(ns)))
    };
    let all = found.steps.len();
    found.steps.retain(|step| !is_untimed(step));
    found.untimed = (all - found.steps.len()) as u64;
    found
}

/// Returns the steps by profiler marks. Device marks have precedence, because the host runs ahead of the device.
fn marked(trace: &RankTrace) -> Windows {
    let of_device = trace.marks.iter().any(|mark| !mark.is_host);
    let mut found = Windows::new();
    for mark in trace.marks.iter().filter(|mark| mark.is_host != of_device) {
        let window = Window { start_ns: mark.start_ns, end_ns: mark.end_ns, is_cut_off: of_device };
        let known = found.entry(mark.number).or_insert(window);
        (known.start_ns, known.end_ns) = (known.start_ns.min(mark.start_ns), known.end_ns.max(mark.end_ns));
    }
    let starts: BTreeMap<u64, u64> = found.iter().map(|(&number, window)| (number, window.start_ns)).collect();
    for (number, window) in &mut found {
        if let Some(&next) = starts.get(&number.saturating_add(1)).filter(|&&next| next > window.start_ns) {
            (window.end_ns, window.is_cut_off) = (next, false);
        }
    }
    found.retain(|_, window| window.end_ns > window.start_ns);
    found
}

/// Maximum number of periods that are tried. If all transfers are equal, every number is a period, and each try scans
/// all transfers.
const MAX_PERIODS: usize = 4096;

/// Returns the steps by the repeating sequence of transfers. Each step lasts from the end of the last transfer in one
/// period to the end of the last transfer in the next.
fn repeated(trace: &RankTrace) -> Windows {
    let mut moves: Vec<(&TraceOp, &Comm)> = trace.ops.iter().filter_map(|op| Some((op, op.comm.as_deref()?))).collect();
    moves.sort_by_key(|(op, _)| op.start_ns);
    let keys: Vec<_> =
        moves.iter().map(|(op, comm)| (op.kind, comm.collective, comm.bytes, comm.group.clone())).collect();
    // Failure function of Knuth, Morris & Pratt (1977): for each index, the length of the longest proper prefix that is
    // also a suffix of the sequence up to that index.
    let mut borders = vec![0_usize; keys.len()];
    for at in 1..keys.len() {
        let mut length = borders[at - 1];
        check_cancelled();
        while length > 0 && keys[length] != keys[at] {
            length = borders[length - 1];
        }
        borders[at] = length + usize::from(keys[length] == keys[at]);
    }
    let mut border = borders.last().copied().unwrap_or_default();
    let has_device = has_device(trace);
    let starts = |pass: StepPart| {
        let is_call = |op: &TraceOp| op.name.starts_with("c10d::");
        let of_pass = trace.ops.iter().filter(|op| is_computing(op, has_device) && op.pass == pass && !is_call(op));
        let mut starts: Vec<u64> = of_pass.map(|op| op.start_ns).collect();
        starts.sort_unstable();
        starts
    };
    let (backward, other) = (starts(StepPart::Backward), starts(StepPart::Unsaid));
    let has = |starts: &[u64], (start_ns, end_ns)| {
        starts.get(starts.partition_point(|&ns| ns < start_ns)).is_some_and(|&ns| ns < end_ns)
    };
    for _ in 0..MAX_PERIODS {
        if border == 0 {
            break;
        }
        let period = keys.len() - border;
        if 2 * period <= keys.len() {
            let ends = moves.chunks_exact(period).map(|cycle| cycle.iter().map(|(op, _)| op.end_ns()).max());
            let mut start_ns = crate::tables::ends(trace).0;
            let mut windows = Vec::new();
            for end_ns in ends.flatten() {
                windows.push((start_ns, end_ns));
                start_ns = end_ns;
            }
            // Equal buckets also repeat within a backward pass. A step must therefore contain a forward pass, and no
            // transfer before its own backward pass has begun.
            let is_whole = |(&window, cycle): (&(u64, u64), &[(&TraceOp, &Comm)])| {
                let first = backward.get(backward.partition_point(|&ns| ns < window.0));
                let sends_own = first.is_some_and(|&ns| cycle.iter().all(|(op, _)| op.start_ns >= ns));
                sends_own && has(&backward, window) && has(&other, window)
            };
            let is_sorted = windows.iter().all(|window| window.1 > window.0);
            let mut steps = windows.iter().zip(moves.chunks_exact(period));
            let is_plausible = if backward.is_empty() { period > 1 } else { steps.all(is_whole) };
            if is_sorted && is_plausible {
                let whole = |(start_ns, end_ns)| Window { start_ns, end_ns, is_cut_off: false };
                return (0..).zip(windows.into_iter().map(whole)).collect();
            }
        }
        border = borders[border - 1];
    }
    Windows::new()
}

/// Analysis of a step. Times count from the start of the step on each rank. These starts need not be simultaneous.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepTrace {
    /// Ranks, in order.
    pub ranks: Vec<RankStep>,
    /// Transfers as seen by every rank, in the order of their start on the first rank.
    pub transfers: Vec<StepTransfer>,
}

/// Time breakdown of a rank's step. Compute, exposed communication and idle time sum to its duration.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RankStep {
    /// Rank of the process.
    pub rank: u32,
    /// Duration of the step.
    pub span_ns: u64,
    /// Compute time.
    pub compute_ns: u64,
    /// Part of `compute_ns` that overlaps with communication.
    pub overlapped_ns: u64,
    /// Time with communication but without compute (exposed communication).
    pub exposed_ns: u64,
    /// Time without compute and without communication.
    pub idle_ns: u64,
    /// Compute time by pass.
    pub passes: Passes,
    /// Start of the backward pass; `None` if no op is known to belong to it.
    pub backward_ns: Option<u64>,
    /// For plots: compute intervals, merged if they are less than a pixel apart.
    pub computing: Vec<(u64, u64, &'static str)>,
    /// For plots: intervals of exposed communication.
    pub waiting: Vec<(u64, u64)>,
}

/// Compute time in each pass of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Passes {
    /// Compute before the first op of the backward pass.
    pub forward_ns: u64,
    /// Compute from the first to the last op of the backward pass.
    pub backward_ns: u64,
    /// Compute of the optimizer, and of other ops after the backward pass.
    pub update_ns: u64,
    /// All compute, if no op is known to belong to the backward pass; otherwise 0.
    pub unsaid_ns: u64,
}

/// A transfer, as recorded by the ranks of its group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTransfer {
    /// Name of the collective, or `send` or `recv`.
    pub collective: &'static str,
    /// Size of the largest buffer among the ranks, in bytes; `None` if no rank's file contains a size.
    pub bytes: Option<u64>,
    /// The group's name.
    pub group: String,
    /// Number of ranks of the group, if the file lists them.
    pub group_size: Option<usize>,
    /// View of each rank.
    pub seen: Vec<RankView>,
}

/// A transfer, as recorded by one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankView {
    /// Rank of the process.
    pub rank: u32,
    /// Ready time: the time of the call, or the time at which the data had been computed.
    pub ready_ns: i64,
    /// Start of the transfer.
    pub start_ns: i64,
    /// Duration, including the wait for other ranks.
    pub duration_ns: u64,
    /// Part of the duration in which the rank does not compute and no older transfer is in flight.
    pub exposed_ns: u64,
    /// Compute time of the step before the ready time.
    pub computed: Passes,
}

/// Analyses one step of the traces.
///
/// # Arguments
/// `pixels` is the width of the plot, which limits its detail.
pub fn cut(ranks: &Ranks, step: &Step, pixels: u64) -> StepTrace {
    let mut found = StepTrace::default();
    // Transfers of different ranks are matched by kind, group and number. If all ranks have the same number of
    // transfers, they are numbered within the whole trace, because ranks may disagree on the step to which a transfer
    // belongs. Otherwise, they are numbered within the step.
    let moves: Vec<Vec<Move>> = ranks.iter().map(|(_, trace)| moves(trace)).collect();
    let counts: Vec<BTreeMap<TransferKey, u64>> = moves.iter().map(|moves| counts(moves)).collect();
    let is_even = |what: &TransferKey| counts.iter().all(|one| one.get(what) == counts[0].get(what));
    let mut places: BTreeMap<(TransferKey, u64), usize> = BTreeMap::new();
    for (((rank, trace), &window), moves) in ranks.iter().zip(&step.windows_ns).zip(moves) {
        let (one, seen) = cut_rank(*rank, trace, moves, window, pixels);
        found.ranks.push(one);
        let mut firsts: BTreeMap<TransferKey, u64> = BTreeMap::new();
        for (Move { op, comm, nth, .. }, seen) in seen {
            let what = transfer_key(op, comm);
            let first = *firsts.entry(what.clone()).or_insert(nth);
            let nth = if is_even(&what) { nth } else { nth - first };
            let place = *places.entry((what, nth)).or_insert_with(|| {
                found.transfers.push(StepTransfer {
                    collective: op.transfer_word(),
                    bytes: None,
                    group: comm.group.to_string(),
                    group_size: comm.ranks.as_ref().map(|ranks| ranks.len()),
                    seen: Vec::new(),
                });
                found.transfers.len() - 1
            });
            found.transfers[place].bytes = found.transfers[place].bytes.max(comm.bytes);
            found.transfers[place].seen.push(seen);
        }
    }
    found
}

/// Key by which transfers of different ranks are matched.
type TransferKey = (Arc<str>, NodeType, Option<CollectiveType>);

fn transfer_key(op: &TraceOp, comm: &Comm) -> TransferKey {
    (comm.group.clone(), op.kind, comm.collective)
}

/// A transfer in a rank's trace.
struct Move<'a> {
    op: &'a TraceOp,
    comm: &'a Comm,
    /// Number of earlier transfers with the same key.
    nth: u64,
    /// Ready time.
    ready_ns: u64,
}

fn counts(moves: &[Move]) -> BTreeMap<TransferKey, u64> {
    let mut counts = BTreeMap::new();
    for one in moves {
        *counts.entry(transfer_key(one.op, one.comm)).or_default() += 1;
    }
    counts
}

/// Returns all transfers of a rank, in the order of their start.
fn moves(trace: &RankTrace) -> Vec<Move<'_>> {
    let sent = || trace.ops.iter().filter_map(|op| Some((op, op.comm.as_deref()?)));
    // A transfer without `ready_ns` is ready when its dependencies have ended.
    let is_needed = sent().any(|(_, comm)| comm.ready_ns.is_none());
    let others = trace.ops.iter().filter(|op| is_needed && op.comm.is_none());
    let mut ends: Vec<(u64, u64)> = others.map(|op| (op.id, op.end_ns())).collect();
    ends.sort_unstable();
    let end_ns = |dep: &u64| Some(ends[ends.binary_search_by_key(dep, |one| one.0).ok()?].1);
    let mut moves: Vec<Move> = sent()
        .map(|(op, comm)| {
            let computed_ns = op.data_deps.iter().chain(&op.ctrl_deps).filter_map(end_ns).max();
            let ready_ns = comm.ready_ns.or(computed_ns).unwrap_or(op.start_ns).min(op.start_ns);
            Move { op, comm, nth: 0, ready_ns }
        })
        .collect();
    moves.sort_by_key(|one| one.op.start_ns);
    let mut counts: BTreeMap<TransferKey, u64> = BTreeMap::new();
    for one in &mut moves {
        let count = counts.entry(transfer_key(one.op, one.comm)).or_default();
        one.nth = *count;
        *count += 1;
    }
    moves
}

/// Start, end and label of an interval.
type Interval<T> = (u64, u64, T);

fn cut_rank<'a>(
    rank: u32,
    trace: &'a RankTrace,
    mut moves: Vec<Move<'a>>,
    (start_ns, end_ns): (u64, u64),
    pixels: u64,
) -> (RankStep, Vec<(Move<'a>, RankView)>) {
    let has_device = has_device(trace);
    let is_inside = |op: &&TraceOp| op.duration_ns > 0 && op.start_ns < end_ns && op.end_ns() > start_ns;
    let busy: Vec<&TraceOp> = trace.ops.iter().filter(is_inside).filter(|op| is_computing(op, has_device)).collect();
    let backward = |op: &&&TraceOp| op.pass == StepPart::Backward && op.start_ns >= start_ns;
    let first_ns = busy.iter().filter(backward).map(|op| op.start_ns).min();
    let last_ns = busy.iter().filter(backward).map(|op| op.start_ns).max();
    let pass = |op: &TraceOp| match (op.pass, first_ns.zip(last_ns)) {
        (_, None) => 3,
        (StepPart::Update, _) => 2,
        (StepPart::Backward, _) => 1,
        (StepPart::Unsaid, Some((first_ns, _))) if op.start_ns < first_ns => 0,
        (StepPart::Unsaid, Some((_, last_ns))) => 1 + usize::from(op.start_ns > last_ns),
    };
    let clip = |op: &TraceOp| (op.start_ns.max(start_ns) - start_ns, op.end_ns().min(end_ns) - start_ns);
    let computing = disjoint(busy.iter().map(|op| (clip(op).0, clip(op).1, pass(op))).collect());

    // A transfer that becomes ready within a step belongs to that step, even if it continues or begins in the next one.
    let is_of = |ns: u64| (start_ns..end_ns).contains(&ns);
    moves.retain(|one| is_of(one.ready_ns) || is_of(one.op.start_ns) || is_inside(&one.op));
    let spans = (0..).zip(&moves).map(|(i, one)| (clip(one.op).0, clip(one.op).1, i));
    let moving = disjoint(spans.collect());

    let mut rank_step = RankStep { rank, span_ns: end_ns - start_ns, ..RankStep::default() };
    let mut exposed_ns = vec![0; moves.len()];
    let mut waiting: Vec<Interval<()>> = Vec::new();
    let mut next = 0;
    for &(from, to, index) in &moving {
        let mut at = from;
        while at < to {
            while computing.get(next).is_some_and(|&(_, end, _)| end <= at) {
                next += 1;
            }
            let (free_to, busy_to) = computing.get(next).map_or((to, to), |&(a, b, _)| (a.min(to), b.min(to)));
            if at < free_to {
                exposed_ns[index] += free_to - at;
                waiting.push((at, free_to, ()));
            }
            rank_step.overlapped_ns += busy_to.saturating_sub(free_to.max(at));
            at = busy_to.max(free_to);
        }
    }
    let before: Vec<[u64; 4]> = computing
        .iter()
        .scan([0; 4], |sums, &(from, to, pass)| {
            let before = *sums;
            sums[pass] += to - from;
            Some(before)
        })
        .collect();
    let sums = |until: u64| {
        let mut sums = [0; 4];
        if let Some(last) = computing.partition_point(|one| one.0 < until).checked_sub(1) {
            let (from, to, pass) = computing[last];
            sums = before[last];
            sums[pass] += to.min(until) - from;
        }
        Passes { forward_ns: sums[0], backward_ns: sums[1], update_ns: sums[2], unsaid_ns: sums[3] }
    };
    rank_step.passes = sums(u64::MAX);
    rank_step.compute_ns = computing.iter().map(|&(from, to, _)| to - from).sum();
    rank_step.exposed_ns = exposed_ns.iter().sum();
    rank_step.idle_ns = rank_step.span_ns - rank_step.compute_ns - rank_step.exposed_ns;
    rank_step.backward_ns = first_ns.map(|ns| ns - start_ns);
    let pixel_ns = rank_step.span_ns / pixels.max(1);
    let words = ["forward", "backward", "update", "unsaid"];
    rank_step.computing =
        joined(&computing, pixel_ns).into_iter().map(|(from, to, pass)| (from, to, words[pass])).collect();
    rank_step.waiting = joined(&waiting, pixel_ns).into_iter().map(|(from, to, ())| (from, to)).collect();

    let after = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX) - i64::try_from(start_ns).unwrap_or(i64::MAX);
    let seen = moves.into_iter().zip(exposed_ns).map(|(one, exposed_ns)| {
        let seen = RankView {
            rank,
            ready_ns: after(one.ready_ns),
            start_ns: after(one.op.start_ns),
            duration_ns: one.op.duration_ns,
            exposed_ns,
            computed: sums(one.ready_ns.saturating_sub(start_ns)),
        };
        (one, seen)
    });
    (rank_step, seen.collect())
}

/// Splits the union of spans into disjoint intervals. Each interval has the label of the span that began first.
fn disjoint(mut spans: Vec<Interval<usize>>) -> Vec<Interval<usize>> {
    spans.sort_unstable();
    let mut found: Vec<Interval<usize>> = Vec::with_capacity(spans.len());
    let mut at = 0;
    for (from, to, what) in spans {
        check_cancelled();
        let from = from.max(at);
        if to > from {
            found.push((from, to, what));
            at = to;
        }
    }
    found
}

/// Merges intervals with the same label that are at most `gap_ns` apart, which limits the size of a plot.
fn joined<T: Copy + Ord>(spans: &[Interval<T>], gap_ns: u64) -> Vec<Interval<T>> {
    let mut last: BTreeMap<T, Interval<T>> = BTreeMap::new();
    let mut found = Vec::new();
    for &(from, to, what) in spans {
        match last.get_mut(&what) {
            Some(open) if from <= open.1.saturating_add(gap_ns) => open.1 = to,
            _ => found.extend(last.insert(what, (from, to, what))),
        }
    }
    found.extend(last.into_values());
    found.sort_unstable();
    found
}
