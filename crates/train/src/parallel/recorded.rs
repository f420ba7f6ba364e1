//! Reads a recorded step from its document. The step has one class per rank, or a single class that represents all
//! ranks.
//!
//! A recording does not show on which part of the previous iteration an iteration depends. Every iteration therefore
//! waits for all of the previous iteration, on all ranks. To implement this, every program begins and ends with an op
//! of zero length.

use super::check::MOST_OPS;
use super::ranges::{GROUP_LIMIT, strided};
use super::{Axis, Group, GroupTransfer, Label, Names, ParallelError, Phase, RankClass, Step, Subject};
use crate::caramel::compute::MAX_COMPUTE_PS;
use crate::collective::levels::{CollectiveKind, Span};
use crate::dag::{Dag, DagOp, Edge, Edges, OpId, OpKind, Program, Transfer};
use crate::spec::{RecordedSpec, StepGroupSpec, StepSpec, StepTransferSpec};
use gradtide_net::{Bytes, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;
use std::sync::Arc;
use thiserror::Error;

/// Error: the document of a step is invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RecordedError {
    /// Several classes have several ranks. A step must have one class per rank, or one class for all ranks.
    #[error("has {classes} classes of {ranks} ranks: each rank must be a class, or all ranks one")]
    Classes {
        /// Number of classes.
        classes: usize,
        /// Total number of ranks of the classes.
        ranks: u64,
    },
    /// The ranks of a group are invalid.
    #[error("has a group {index} ({name}) whose ranks are not among those of the step, each once and at least two")]
    Group {
        /// Index of the group in the document.
        index: usize,
        /// Name of the group.
        name: String,
    },
    /// There are more process groups than streams that a job may use, and each group needs one.
    #[error("has {groups} process groups, more than {GROUP_LIMIT}")]
    Groups {
        /// Number of process groups.
        groups: usize,
    },
    /// The ranks of a group are not distributed evenly over nodes.
    #[error("has a group {name} of {ranks} ranks that do not lie evenly on nodes of {gpus} GPUs")]
    Uneven {
        /// Name of the group.
        name: String,
        /// Number of ranks of the group.
        ranks: u32,
        /// Number of GPUs of a node.
        gpus: u32,
    },
    /// The kind or the group of a transfer does not exist.
    #[error("has a transfer {index} ({name}) of a kind or group that does not exist: {kind} in group {group}")]
    Transfer {
        /// Index of the transfer in the document.
        index: usize,
        /// Name of the transfer.
        name: String,
        /// Kind of the transfer.
        kind: String,
        /// Index of the transfer's group.
        group: u32,
    },
    /// A transfer between two ranks is not a send.
    #[error("has a transfer {index} ({name}) from one rank to another and is no send: {kind}")]
    Message {
        /// Index of the transfer in the document.
        index: usize,
        /// Name of the transfer.
        name: String,
        /// Kind of the transfer.
        kind: String,
    },
    /// An op at the end of an edge does not exist.
    #[error("has an edge from op {from} to op {to}, and {ops} ops and transfers")]
    Edge {
        /// Source of the edge.
        from: OpId,
        /// Target of the edge.
        to: OpId,
        /// Number of ops and transfers.
        ops: u32,
    },
    /// Ops wait for each other.
    #[error("has ops that wait for each other")]
    Cycle,
}

/// Name of ops during which the device is idle because the host has not launched the next kernel yet.
const HOST: &str = "host";

/// Number of ops of a program that are not in the document: one of zero length at its start and one at its end.
const BOUNDS: u32 = 2;

impl Step {
    /// Reads a recorded step.
    ///
    /// # Errors
    /// See [`ParallelError`].
    pub fn recorded(spec: &RecordedSpec) -> Result<Self, ParallelError> {
        let RecordedSpec { gpus_per_node, step } = spec;
        sizes(spec)?;
        let ranks: u64 = step.classes.iter().map(|class| u64::from(class.ranks)).sum();
        let is_per_rank = step.classes.len() as u64 == ranks && ranks > 1;
        if !is_per_rank && step.classes.len() != 1 || step.classes.iter().any(|class| class.ranks == 0) {
            return Err(RecordedError::Classes { classes: step.classes.len(), ranks }.into());
        }
        let ranks = u32::try_from(ranks).map_err(|_| ParallelError::TooManyRanks)?;
        let mut names = Listed::default();
        let groups = (step.groups.iter().enumerate())
            .map(|(index, given)| group(index, given, ranks, is_per_rank, *gpus_per_node, &mut names))
            .collect::<Result<Vec<Group>, _>>()?;
        let transfers = (step.transfers.iter().enumerate())
            .map(|(index, given)| transfer(index, given, &groups, &mut names))
            .collect::<Result<Vec<GroupTransfer>, _>>()?;
        let class = |(stage, given): (u32, &crate::spec::StepClassSpec)| RankClass { ranks: given.ranks, stage };
        let classes = (0..).zip(&step.classes).map(class).collect();
        let (labels, costs, programs) = computes(step, &mut names);
        Ok(Self {
            dag: Arc::new(dag(step, costs, programs, &transfers)?),
            labels,
            classes,
            groups,
            transfers: transfers.into(),
            is_per_rank,
            gpus_per_node: *gpus_per_node,
            names: Names { blocks: Vec::new(), ops: Vec::new(), recorded: names.all },
        })
    }
}

/// A list of names without duplicates.
#[derive(Default)]
struct Listed {
    all: Vec<String>,
    places: BTreeMap<String, u32>,
}

impl Listed {
    fn place(&mut self, name: &str) -> u32 {
        if let Some(&place) = self.places.get(name) {
            return place;
        }
        let place = self.all.len() as u32;
        self.all.push(name.to_owned());
        self.places.insert(name.to_owned(), place);
        place
    }

    fn label(&mut self, name: &str) -> Label {
        Label { subject: Subject::Recorded(self.place(name)), phase: Phase::Begin, micro_batch: 0 }
    }
}

/// Checks that times, bytes and numbers of ops stay within their limits.
fn sizes(spec: &RecordedSpec) -> Result<(), ParallelError> {
    let RecordedSpec { gpus_per_node, step } = spec;
    let times = || step.classes.iter().flat_map(|class| class.ops.iter().map(|(_, time)| u128::from(*time)));
    let bytes: u128 = step.transfers.iter().map(|transfer| 2 * u128::from(transfer.bytes)).sum();
    let ops = times().count() as u128 + step.transfers.len() as u128 + step.classes.len() as u128;
    match times().sum::<u128>() {
        _ if *gpus_per_node == 0 => Err(ParallelError::Zero("gpus_per_node")),
        _ if step.classes.is_empty() => Err(ParallelError::Zero("the number of ranks")),
        0 => Err(ParallelError::NoTime),
        time if time > MAX_COMPUTE_PS => Err(ParallelError::TooLong),
        _ if bytes > u64::MAX.into() => Err(ParallelError::TooManyBytes),
        _ if ops > MOST_OPS => Err(ParallelError::TooManyOps),
        _ if step.groups.len() as u64 > GROUP_LIMIT => Err(RecordedError::Groups { groups: step.groups.len() }.into()),
        _ => Ok(()),
    }
}

fn group(
    index: usize,
    given: &StepGroupSpec,
    ranks: u32,
    is_per_rank: bool,
    gpus: u32,
    names: &mut Listed,
) -> Result<Group, RecordedError> {
    let wrong = || RecordedError::Group { index, name: given.name.clone() };
    let distinct: BTreeSet<u32> = given.classes.iter().copied().collect();
    let is_known = distinct.len() == given.classes.len() && distinct.last().is_some_and(|&last| last < ranks);
    let stride = given.stride.filter(|_| !is_per_rank);
    let reach = stride.map_or(u64::from(given.ranks), |stride| u64::from(stride) * u64::from(given.ranks));
    let is_whole = match (is_per_rank, stride) {
        (true, _) => given.classes.len() as u64 == u64::from(given.ranks),
        (false, None | Some(0)) => false,
        (false, Some(_)) => given.classes == [0] && u64::from(ranks).is_multiple_of(reach.max(1)),
    };
    if !is_known || !is_whole || given.ranks < 2 {
        return Err(wrong());
    }
    let members = match stride {
        Some(stride) => strided(0..ranks, given.ranks, stride),
        None => vec![given.classes.clone()],
    };
    let uneven = || RecordedError::Uneven { name: given.name.clone(), ranks: given.ranks, gpus };
    let per_node =
        members.iter().map(|members| on_a_node(members, gpus)).reduce(|one, other| one.filter(|_| one == other));
    let per_node = per_node.flatten().ok_or_else(uneven)?;
    let span = Span::new(given.ranks, per_node).map_err(|_| uneven())?;
    let is_link = is_per_rank && given.stride.is_none();
    if is_link && given.ranks != 2 {
        return Err(wrong());
    }
    let axis = if is_link { Axis::Message } else { Axis::Recorded(names.place(&given.name)) };
    let mut classes = given.classes.clone();
    if !is_link {
        // Sorted, because consecutive ranks share a node.
        classes.sort_unstable();
    }
    Ok(Group { axis, classes, span, stride })
}

/// Returns the number of `ranks` on each node that has any of them; `None` if this number differs between nodes.
fn on_a_node(ranks: &[u32], gpus: u32) -> Option<u32> {
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    ranks.iter().for_each(|rank| *counts.entry(rank / gpus).or_default() += 1);
    let mut counts = counts.into_values();
    let first = counts.next()?;
    counts.all(|count| count == first).then_some(first)
}

fn transfer(
    index: usize,
    given: &StepTransferSpec,
    groups: &[Group],
    names: &mut Listed,
) -> Result<GroupTransfer, RecordedError> {
    let StepTransferSpec { name, group, kind, bytes } = given;
    let known = CollectiveKind::ALL.into_iter().find(|known| known.name() == kind);
    let (Some(known), Some(of)) = (known, groups.get(*group as usize)) else {
        return Err(RecordedError::Transfer { index, name: name.clone(), kind: kind.clone(), group: *group });
    };
    if of.axis.is_link() && known != CollectiveKind::Send {
        return Err(RecordedError::Message { index, name: name.clone(), kind: kind.clone() });
    }
    Ok(GroupTransfer { group: *group, kind: known, bytes: Bytes(*bytes), label: names.label(name) })
}

/// Returns the program of each class, with an op of zero length before and after the ops of the document.
fn computes(step: &StepSpec, names: &mut Listed) -> (Vec<Label>, Vec<Time>, Vec<Program>) {
    let (mut labels, mut costs, mut programs) = (Vec::new(), Vec::new(), Vec::new());
    for class in &step.classes {
        let start = costs.len() as OpId;
        let own = class.ops.iter().map(|(name, time)| (names.label(name), Time::from_ps(*time)));
        let (begin, end) = (Label::of_all(Phase::Begin), Label::of_all(Phase::End));
        for (label, cost) in once((begin, Time::ZERO)).chain(own).chain(once((end, Time::ZERO))) {
            labels.push(label);
            costs.push(cost);
        }
        programs.push(Program { ops: start..costs.len() as OpId, forward: start, backward: start });
    }
    (labels, costs, programs)
}

fn dag(
    step: &StepSpec,
    costs: Vec<Time>,
    programs: Vec<Program>,
    transfers: &[GroupTransfer],
) -> Result<Dag, RecordedError> {
    let compute_count = costs.len() as u32;
    let ops = compute_count + transfers.len() as u32;
    let given = ops - BOUNDS * programs.len() as u32;
    // For each program, the index of the first op after it in the document.
    let ends: Vec<u32> = (1..).zip(&programs).map(|(count, program)| program.ops.end - BOUNDS * count).collect();
    let moved = |op: OpId| match ends.partition_point(|&end| end <= op) as u32 {
        before if op < given - transfers.len() as u32 => op + BOUNDS * before + 1,
        _ => op + ops - given,
    };
    let mut within: Vec<Edge> = Vec::new();
    for &(from, to) in &step.edges {
        if from >= given || to >= given || from == to {
            return Err(RecordedError::Edge { from, to, ops: given });
        }
        within.push((moved(from), moved(to)));
    }
    // A transfer without dependencies becomes ready when the iteration begins.
    let mut waits = vec![false; transfers.len()];
    let awaited = within.iter().filter_map(|&(_, to)| to.checked_sub(compute_count));
    awaited.for_each(|transfer| waits[transfer as usize] = true);
    let begin = programs[0].ops.start;
    within.extend((compute_count..).zip(waits).filter(|(_, waits)| !waits).map(|(transfer, _)| (begin, transfer)));
    keep_in_step(&programs, transfers.len() as u32, &mut within);
    let names = step.classes.iter().flat_map(|class| {
        let own = class.ops.iter().map(|(name, _)| name == HOST);
        once(false).chain(own).chain(once(false))
    });
    let computes = (0..).zip(costs.into_iter().zip(names)).map(|(op, (cost, is_host))| DagOp {
        kind: OpKind::Compute(op),
        cost,
        is_host,
    });
    let sends = (0..transfers.len() as u32).map(|transfer| DagOp::new(OpKind::Transfer(transfer), Time::ZERO));
    let queued =
        |transfer: &GroupTransfer| Transfer { first_layer: 0, bytes: transfer.bytes, communicator: transfer.group };
    let dag = Dag {
        ops: computes.chain(sends).collect(),
        compute_count,
        layer_count: 0,
        transfers: transfers.iter().map(queued).collect(),
        within: Edges::new(ops as usize, &within),
        across: Edges::new(ops as usize, &[]),
        programs,
    };
    if dag.is_executable() { Ok(dag) } else { Err(RecordedError::Cycle) }
}

/// Adds a barrier at the end of an iteration, so that no rank begins the next iteration earlier. The last op of the
/// first program waits for the last recorded op of each program, and for all transfers for which no other op waits. The
/// last op of every other program waits for the last op of the first program.
pub(super) fn keep_in_step(programs: &[Program], transfer_count: u32, within: &mut Vec<Edge>) {
    let compute_count = programs.last().map_or(0, |program| program.ops.end);
    let mut is_read = vec![false; transfer_count as usize];
    for &(from, _) in &*within {
        if let Some(transfer) = from.checked_sub(compute_count) {
            is_read[transfer as usize] = true;
        }
    }
    let mut ends = programs.iter().map(|program| program.ops.end - 1);
    let Some(first) = ends.next() else { return };
    within
        .extend((compute_count..).zip(is_read).filter(|(_, is_read)| !is_read).map(|(transfer, _)| (transfer, first)));
    within.extend(ends.flat_map(|end| [(end - 1, first), (first, end)]));
}
