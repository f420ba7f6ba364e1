//! A rank's trace as an op DAG in JSON, as `gradtide.order` reads it. Additional fields make the conversion lossless.

use crate::{
    About, CollectiveType, Comm, Gaps, Names, NodeType, RankTrace, StepPart, TraceError, TraceOp, checked, plausible,
};
use gradtide_watch::check_cancelled;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An op DAG with additional fields. Times are in nanoseconds.
#[derive(Debug, Deserialize, Serialize)]
pub struct Document {
    /// Name and version of the schema: "gradtide.trace/1".
    pub schema: String,
    /// Rank of the trace.
    pub rank: Option<u32>,
    /// Number of ranks of the job, if known.
    pub world_size: Option<u32>,
    /// Id of the target, an artificial last op that depends on all ops on which no other op depends.
    pub target: u64,
    /// Ops in the order of the trace, then the target.
    pub ops: Vec<Row>,
}

/// An op of the document.
#[derive(Debug, Deserialize, Serialize)]
pub struct Row {
    id: u64,
    name: String,
    /// Kind of the op in an op DAG: `recv` or `comp`.
    kind: String,
    /// Type of the op in the trace; `None` for the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Data dependencies, then control dependencies.
    inputs: Vec<u64>,
    /// Number of control dependencies at the end of `inputs`.
    ctrl_inputs: usize,
    time: u64,
    start: u64,
    is_host: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    comm: Option<RowComm>,
}

#[derive(Debug, Deserialize, Serialize)]
struct RowComm {
    collective: Option<String>,
    bytes: Option<u64>,
    group: String,
    /// Ranks of the group. They are written only for the group's first transfer, because the file would otherwise grow
    /// with the number of transfers times the number of ranks.
    ranks: Option<Arc<[u32]>>,
    ends: Option<(u32, u32)>,
    #[serde(default, skip_serializing_if = "is_zero")]
    tag: u32,
}

fn is_zero(tag: &u32) -> bool {
    *tag == 0
}

const SCHEMA: &str = "gradtide.trace/1";

/// Converts a rank's trace to a document. With `cut`, receives have no dependencies, as in TicTac's DAGs. Without
/// `cut`, the document of a trace whose transfers have dependencies is not a valid op DAG.
pub fn write(trace: &RankTrace, cut: bool) -> Document {
    let mut groups = BTreeSet::new();
    let mut is_new = |op: &TraceOp| op.comm.as_ref().is_some_and(|comm| groups.insert(comm.group.clone()));
    let mut ops: Vec<Row> = trace.ops.iter().map(|op| row(op, cut, is_new(op))).collect();
    let mut is_input: Vec<u64> = ops.iter().flat_map(|row| &row.inputs).copied().collect();
    is_input.sort_unstable();
    let last = trace.ops.iter().map(|op| op.id).filter(|id| is_input.binary_search(id).is_err()).collect();
    let greatest = trace.ops.iter().map(|op| op.id).max().unwrap_or_default();
    let ids: BTreeSet<u64> = trace.ops.iter().map(|op| op.id).collect();
    let free = || (0..).zip(&ids).find(|(free, id)| free != *id).map_or(ids.len() as u64, |(free, _)| free);
    let target = greatest.checked_add(1).unwrap_or_else(free);
    ops.push(Row {
        id: target,
        name: "end".into(),
        kind: "comp".into(),
        node: None,
        inputs: last,
        ctrl_inputs: 0,
        time: 0,
        start: trace.ops.iter().map(TraceOp::end_ns).max().unwrap_or_default(),
        is_host: true,
        comm: None,
    });
    let About { rank, world_size, .. } = trace.about;
    Document { schema: SCHEMA.into(), rank, world_size, target, ops }
}

fn row(op: &TraceOp, cut: bool, is_first_of_group: bool) -> Row {
    let is_recv = matches!(op.kind, NodeType::Recv | NodeType::Coll);
    let is_cut = cut && is_recv;
    Row {
        id: op.id,
        name: op.name.to_string(),
        kind: if is_recv { "recv" } else { "comp" }.into(),
        node: Some(op.kind.word().into()),
        inputs: if is_cut { Vec::new() } else { op.data_deps.iter().chain(&op.ctrl_deps).copied().collect() },
        ctrl_inputs: if is_cut { 0 } else { op.ctrl_deps.len() },
        time: op.duration_ns,
        start: op.start_ns,
        is_host: op.is_host,
        comm: op.comm.as_ref().map(|comm| RowComm {
            collective: comm.collective.map(|one| one.word().into()),
            bytes: comm.bytes,
            group: comm.group.to_string(),
            ranks: comm.ranks.clone().filter(|_| is_first_of_group),
            ends: comm.ends,
            tag: comm.tag,
        }),
    }
}

/// Converts a document to a trace.
///
/// # Errors
/// [`TraceError::NotThis`] for another schema, [`TraceError::Piece`] for unknown names of kinds.
pub fn read(document: &Document) -> Result<RankTrace, TraceError> {
    if document.schema != SCHEMA {
        let what = format!("its schema is {:?}", document.schema);
        return Err(TraceError::NotThis { format: "DAG of a trace", what, at: 0 });
    }
    let mut names = Names::default();
    plausible(document.rank, document.world_size, &[])?;
    let mut groups: BTreeMap<&str, Arc<[u32]>> = BTreeMap::new();
    for comm in document.ops.iter().filter_map(|row| row.comm.as_ref()) {
        if let Some(ranks) = &comm.ranks {
            plausible(None, None, ranks)?;
            groups.entry(&comm.group).or_insert_with(|| ranks.clone());
        }
    }
    let mut ops = Vec::with_capacity(document.ops.len());
    for (number, row) in (0..).zip(&document.ops) {
        check_cancelled();
        let fault = |what| TraceError::Piece { unit: "op", number, at: 0, what };
        let Some(node) = &row.node else { continue };
        let kind = NodeType::from_word(node).ok_or_else(|| fault(format!("no node is called {node:?}")))?;
        let data_count = row
            .inputs
            .len()
            .checked_sub(row.ctrl_inputs)
            .ok_or_else(|| fault("fewer inputs than ctrl_inputs".into()))?;
        let comm = row.comm.as_ref().map(|comm| {
            let collective = comm.collective.as_deref().map(|word| {
                CollectiveType::from_word(word).ok_or_else(|| fault(format!("no collective is called {word:?}")))
            });
            Ok(Box::new(Comm {
                collective: collective.transpose()?,
                bytes: comm.bytes,
                group: names.get(&comm.group),
                ranks: comm.ranks.clone().or_else(|| groups.get(comm.group.as_str()).cloned()),
                ends: comm.ends,
                tag: comm.tag,
                ready_ns: None,
            }))
        });
        ops.push(TraceOp {
            id: row.id,
            comm: comm.transpose()?,
            name: names.get(&row.name),
            kind,
            is_host: row.is_host,
            pass: StepPart::of_name(&row.name),
            start_ns: row.start,
            duration_ns: row.time,
            data_deps: row.inputs[..data_count].into(),
            ctrl_deps: row.inputs[data_count..].into(),
        });
    }
    if ops.is_empty() {
        return Err(TraceError::NoOps { what: "the DAG holds its target alone".into() });
    }
    let mut gaps = Gaps::default();
    checked(&mut ops, &mut gaps)?;
    let about = About { rank: document.rank, world_size: document.world_size, ..About::default() };
    Ok(RankTrace { ops, about, gaps, ..RankTrace::default() })
}
