//! Traces of `torch.profiler` (Kineto): a JSON object with `distributedInfo` and a list `traceEvents`.
//!
//! The file has spans on threads and streams, and no graph. What is kept as an op: outermost operators of each thread,
//! kernels and copies of each stream, and collectives. What is taken for a dependency is only what must have been one:
//! the op before it on the same thread or stream, and what its launch came after. A dependency always ends before what
//! waits for it starts. What waits *for* a collective is not in these files, so no op does (docs/models/traces.md).
//!
//! ```text
//! event -> span (what it is: kernels.rs; damage: json.rs) -> launch of each kernel (join.rs) -> transfer, step, pass
//! ```

mod join;
mod marks;

use crate::job::{Distributed, ENQUEUE};
use crate::json::{Layout, Piece, Splitter, mended};
use crate::kernels::{self, Moving, NO_TRANSFER, Transferred};
use crate::sizes::{ASSUMED_ELEMENT_BYTES, element_bytes, has_output, input_bytes};
use crate::{
    About, CollectiveType, Comm, Gap, Gaps, Mark, Names, NodeType, RankTrace, StepPart, TraceError, TraceOp, checked,
};
use gradtide_watch::look;
use join::{Join, Launch, Place};
use marks::LaunchedSteps;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const LAYOUT: Layout =
    Layout { format: "Kineto trace", list: "traceEvents", unit: "event", units: "events", may_be_bare: true };

/// Categories of events of a device, by version: PyTorch 1.8 wrote them with capitals; Habana's and Ascend's profilers have
/// their own (libkineto/include/ActivityType.h).
const DEVICE: &[&str] = &[
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "Kernel",
    "Memcpy",
    "Memset",
    "collective_comm",
    "hpu_op",
    "Ascend Hardware",
];

/// Categories of operators of the host.
const HOST: &[&str] = &["cpu_op", "Operator"];

/// Categories of events that hold no work of their own, beside calls of a runtime or a driver: notes, and what the
/// profiler says of itself.
const NO_WORK: &[&str] = &[
    "ac2g",
    "cpu_instant_event",
    "cuda_event",
    "cuda_profiler_range",
    "cuda_sync",
    "fwdbwd",
    "gpu_user_annotation",
    "overhead",
    "python_function",
    "Trace",
    "user_annotation",
    "",
];

/// Backends of c10d that say of themselves while bytes move: `gloo:all_reduce`.
const MOVE: &[&str] = &["gloo", "mpi", "ucc"];

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    ph: Cow<'a, str>,
    #[serde(borrow, default)]
    cat: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    pid: Option<&'a RawValue>,
    #[serde(borrow)]
    tid: Option<&'a RawValue>,
    #[serde(borrow)]
    ts: Option<&'a RawValue>,
    #[serde(borrow)]
    dur: Option<&'a RawValue>,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
}

/// Of all that is in `args`; whole numbers stand in quotes in some versions.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Args<'a> {
    #[serde(borrow, rename = "External id")]
    external: Option<&'a RawValue>,
    #[serde(borrow)]
    correlation: Option<&'a RawValue>,
    #[serde(borrow, rename = "Collective name")]
    collective: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "In msg nelems")]
    elements: Option<&'a RawValue>,
    #[serde(borrow)]
    dtype: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "Process Group Name")]
    group: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "Group size")]
    group_size: Option<&'a RawValue>,
    #[serde(borrow, rename = "Src Rank")]
    from: Option<&'a RawValue>,
    #[serde(borrow, rename = "Dst Rank")]
    to: Option<&'a RawValue>,
    #[serde(rename = "Input Dims")]
    dims: Option<Value>,
    #[serde(rename = "Input type")]
    types: Option<Value>,
    #[serde(rename = "Concrete Inputs")]
    inputs: Option<Value>,
}

/// Of all that is in `args` of a call of a runtime.
#[derive(Deserialize)]
struct OfLaunch<'a> {
    #[serde(borrow)]
    correlation: Option<&'a RawValue>,
}

/// Where an event of a transfer comes from: the later ones say more about it, and stand for the earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// The call, `c10d::allreduce_`.
    Call,
    /// What a backend that enqueues records of the call: `record_param_comms`, `nccl:all_reduce`.
    Record,
    /// What a backend of the host says of itself while bytes move: `gloo:all_reduce`.
    Backend,
    /// The kernel that moves the bytes.
    Kernel,
}

/// What an event says of a transfer.
struct Said {
    level: Level,
    kind: Option<Transferred>,
    /// Bytes of the rank's buffer.
    bytes: Option<u64>,
    group: Arc<str>,
    /// Ranks of the group.
    group_size: Option<u64>,
    /// The rank at the other end of a message.
    peer: Option<u32>,
    /// Whether arguments, or the name of a call, say what it is; `record_param_comms` of old versions says nothing.
    is_named: bool,
    /// Of a kernel, whether calls of c10d say what it moves.
    is_of_backend: bool,
}

struct Span {
    name: Arc<str>,
    lane: u32,
    start_ns: u64,
    duration_ns: u64,
    is_host: bool,
    /// Joins a kernel to the operator that launched it, where there is no [`Launch`] of it.
    external: Option<u64>,
    /// Joins a kernel to its [`Launch`], and numbers launches in their order.
    correlation: Option<u64>,
    said: Option<Box<Said>>,
    /// Whether its thread waits in it for what moves, and so computes nothing.
    waits: bool,
}

impl Span {
    fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }

    fn level(&self) -> Option<Level> {
        self.said.as_ref().map(|said| said.level)
    }

    /// Whether it is an op of the host; what backends say of transfers is none.
    fn is_operator(&self) -> bool {
        self.is_host && self.level().is_none_or(|level| level == Level::Call)
    }
}

/// Reads one rank's file, chunk by chunk.
pub struct KinetoReader {
    splitter: Splitter,
    events: Events,
}

#[derive(Default)]
struct Events {
    spans: Vec<Span>,
    marks: Vec<Mark>,
    /// Calls of a runtime or a driver.
    launches: Vec<Launch>,
    /// Calls of the optimizer's step: thread, start, end.
    updates: Vec<(u32, u64, u64)>,
    lanes: BTreeMap<String, u32>,
    lane: String,
    names: Names,
    moving: BTreeMap<Arc<str>, Option<Moving>>,
    /// Events that are no JSON, by whether they could be read otherwise and by category: how many, and the first's line.
    damage: BTreeMap<(Gap, Arc<str>), (u64, u64)>,
    /// When something began of which nobody knows how long it took, and whether a device did it.
    untimed: Vec<(u64, bool)>,
    /// What a device did of which nobody knows how long it took: its launch's number and its start.
    untimed_launches: Vec<(u64, u64)>,
    distributed: Distributed,
    version: String,
    base_ns: u64,
    gaps: Gaps,
}

impl Default for KinetoReader {
    fn default() -> Self {
        Self { splitter: Splitter::new(LAYOUT), events: Events::default() }
    }
}

impl KinetoReader {
    /// Reads the next bytes of the file.
    ///
    /// # Errors
    /// [`TraceError::NotThis`] if it is something else, [`TraceError::Piece`] if an event means nothing.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), TraceError> {
        let events = &mut self.events;
        self.splitter.feed(chunk, &mut |piece| match piece {
            Piece::Element(text, line) => events.event(text, line),
            Piece::Field(key, text) => events.field(key, text),
        })
    }

    /// Ends the file.
    ///
    /// # Errors
    /// [`TraceError::Empty`], [`TraceError::NotThis`], [`TraceError::Truncated`] or [`TraceError::NoOps`].
    pub fn finish(self) -> Result<RankTrace, TraceError> {
        self.splitter.finish()?;
        self.events.finish()
    }
}

impl Events {
    fn field(&mut self, key: &str, text: &[u8]) -> Result<(), String> {
        let wrong = |error: serde_json::Error| format!("`{key}`: {error}");
        match key {
            "distributedInfo" => {
                self.distributed = Distributed::read(text).map_err(|what| format!("`{key}`: {what}"))?
            }
            "schemaVersion" => self.version = String::from_utf8_lossy(text).trim().to_owned(),
            "baseTimeNanoseconds" => self.base_ns = serde_json::from_slice(text).map_err(wrong)?,
            _ => {}
        }
        Ok(())
    }

    /// Reads an event; what is damaged in it costs no more than it touches.
    fn event(&mut self, text: &[u8], line: &mut dyn FnMut() -> u64) -> Result<(), String> {
        if let Ok(event) = serde_json::from_slice::<Event>(text)
            && let Some(args) = arguments(&event)
        {
            return self.read(&event, &args, line);
        }
        let text = mended(text);
        let Ok(event) = serde_json::from_slice::<Event>(&text) else {
            return self.unreadable(&String::from_utf8_lossy(&text), line);
        };
        self.damaged(Gap::Mended, &event.cat, line);
        // Arguments that mean nothing cost what is read of them.
        self.read(&event, &arguments(&event).unwrap_or_default(), line)
    }

    /// Counts an event that is no JSON even so, by the category that stands in it.
    fn unreadable(&mut self, text: &str, line: &mut dyn FnMut() -> u64) -> Result<(), String> {
        let value = |key: &str| {
            let rest = text.split_once(&format!("\"{key}\":"))?.1.trim_start();
            let rest = rest.strip_prefix('"').unwrap_or(rest);
            Some(rest.split(['"', ',', '}', '\n']).next().unwrap_or_default().trim())
        };
        let category = value("cat").unwrap_or_default();
        self.damaged(Gap::Damaged, category, line);
        let is_device = DEVICE.contains(&category);
        if is_device || HOST.contains(&category) {
            match value("ts").and_then(nanoseconds) {
                Some(start_ns) => self.untimed.push((start_ns, is_device)),
                None if is_device => {
                    return Err("its `ts` cannot be read, so nobody can tell in which step it is".into());
                }
                None => {}
            }
        }
        Ok(())
    }

    fn damaged(&mut self, gap: Gap, category: &str, line: &mut dyn FnMut() -> u64) {
        let category = self.names.get(if category.is_empty() { "no category" } else { category });
        self.damage.entry((gap, category)).or_insert_with(|| (0, line())).0 += 1;
    }

    fn read(&mut self, event: &Event, args: &Args, line: &mut dyn FnMut() -> u64) -> Result<(), String> {
        let category = &*event.cat;
        let is_device = DEVICE.contains(&category);
        let is_operator = HOST.contains(&category);
        let is_annotation = category == "user_annotation";
        let is_launch = is_launch(category);
        let is_note = is_operator || is_annotation || category == "gpu_user_annotation";
        let backend = event.name.split_once(':').filter(|_| is_annotation);
        let backend = backend.filter(|(one, _)| MOVE.contains(one) || ENQUEUE.contains(one));
        let step = event.name.strip_prefix("ProfilerStep#").filter(|_| is_note).and_then(|text| text.parse().ok());
        let is_update = (is_annotation || is_operator) && event.name.starts_with("Optimizer.step#");
        let is_kept = is_device || is_launch || backend.is_some() || is_update || step.is_some() || is_operator;
        if &*event.ph != "X" || !is_kept {
            if &*event.ph == "X" && !NO_WORK.contains(&category) {
                self.gaps.add(Gap::UnknownCategory, category);
            }
            return Ok(());
        }
        let time = |raw: Option<&RawValue>| raw.and_then(|raw| nanoseconds(raw.get()));
        let Some(start_ns) = time(event.ts) else {
            if is_device || step.is_some() {
                let shown = event.ts.map_or("missing", RawValue::get);
                return Err(format!("`ts` of {:?} is {shown}, so nobody can tell in which step it is", event.name));
            }
            self.damaged(Gap::Damaged, category, line);
            return Ok(());
        };
        if is_launch {
            if let Some(correlation) = whole(args.correlation) {
                let lane = self.lane(event)?;
                self.launches.push(Launch { correlation, place: Place { lane, at_ns: start_ns } });
            }
            return Ok(());
        }
        let Some(duration_ns) = time(event.dur) else {
            self.damaged(Gap::Damaged, category, line);
            if !is_update {
                self.untimed.push((start_ns, is_device));
            }
            if let Some(correlation) = whole(args.correlation).filter(|_| is_device) {
                self.untimed_launches.push((correlation, start_ns));
            }
            return Ok(());
        };
        let end_ns = start_ns.saturating_add(duration_ns);
        if let Some(number) = step {
            self.marks.push(Mark { number, is_host: category != "gpu_user_annotation", start_ns, end_ns });
            return Ok(());
        }
        let lane = self.lane(event)?;
        if is_update {
            self.updates.push((lane, start_ns, end_ns));
            if is_annotation {
                return Ok(());
            }
        }
        let name = self.names.get(&event.name);
        let said = if is_device { self.kernel(&name, category, args) } else { self.call(&name, backend, args) };
        self.spans.push(Span {
            name,
            lane,
            start_ns,
            duration_ns,
            is_host: !is_device,
            external: whole(args.external),
            correlation: whole(args.correlation),
            said: said.map(Box::new),
            waits: event.name == "_c10d_functional::wait_tensor",
        });
        Ok(())
    }

    /// The number of an event's thread or stream.
    fn lane(&mut self, event: &Event) -> Result<u32, String> {
        let raw = |raw: Option<&'_ RawValue>| raw.map_or("", RawValue::get).to_owned();
        self.lane.clear();
        self.lane.push_str(&raw(event.pid));
        self.lane.push(' ');
        self.lane.push_str(&raw(event.tid));
        if let Some(&lane) = self.lanes.get(&self.lane) {
            return Ok(lane);
        }
        let lane = u32::try_from(self.lanes.len()).map_err(|error| error.to_string())?;
        self.lanes.insert(self.lane.clone(), lane);
        Ok(lane)
    }

    /// What a kernel moves between ranks, if it does.
    fn kernel(&mut self, name: &Arc<str>, category: &str, args: &Args) -> Option<Said> {
        let known = *self.moving.entry(name.clone()).or_insert_with(|| kernels::moving(name));
        let is_told = args.collective.is_some() || category == "collective_comm";
        let unnamed = Moving { kind: None, is_of_backend: true };
        let Moving { kind, is_of_backend } = known.or(is_told.then_some(unnamed))?;
        let kind = args.collective.as_deref().and_then(kernels::named).or(kind);
        Some(self.said(Level::Kernel, kind, name, args, is_of_backend))
    }

    /// What an event of the host says of a transfer, if it does.
    fn call(&mut self, name: &str, backend: Option<(&str, &str)>, args: &Args) -> Option<Said> {
        let what = args.collective.as_deref().or(backend.map(|(_, what)| what));
        if what.is_some_and(|what| NO_TRANSFER.contains(&what)) {
            return None;
        }
        let is_record = name == "record_param_comms" || args.collective.is_some();
        let (level, kind) = match backend {
            Some((one, _)) if MOVE.contains(&one) => (Level::Backend, what.and_then(kernels::named)),
            None if !is_record => (Level::Call, Some(kernels::named(name.strip_prefix("c10d::")?)?)),
            _ => (Level::Record, what.and_then(kernels::named)),
        };
        Some(self.said(level, kind, name, args, true))
    }

    fn said(&mut self, level: Level, kind: Option<Transferred>, name: &str, args: &Args, is_of_backend: bool) -> Said {
        let collective = kind.and_then(|kind| kind.1);
        let is_barrier = collective == Some(CollectiveType::Barrier);
        let size = match whole(args.elements) {
            Some(count) => {
                let known = element_bytes(args.dtype.as_deref().unwrap_or(""));
                let assumed = u64::from(known.is_none() && count > 0);
                Some((count.saturating_mul(known.unwrap_or(ASSUMED_ELEMENT_BYTES)), assumed))
            }
            // A call that divides or joins has its output first, as c10d::_reduce_scatter_base_(output, input, …).
            None => input_bytes(
                args.dims.as_ref(),
                args.types.as_ref(),
                usize::from(level == Level::Call && collective.is_some_and(has_output)),
            )
            // Lists of arguments without a tensor among them say nothing of a size.
            .filter(|&(bytes, _)| bytes > 0),
        };
        let (bytes, assumed) = match size {
            _ if is_barrier => (Some(0), 0),
            Some((bytes, assumed)) => (Some(bytes), assumed),
            None => (None, 0),
        };
        if assumed > 0 && level >= Level::Backend {
            self.gaps.add(Gap::ElementType, name);
        }
        let rank = |raw| whole(raw).and_then(|rank| u32::try_from(rank).ok());
        // c10d::send(tensors, group, destination, tag); c10d::recv_(tensors, group, source, tag).
        let third = || args.inputs.as_ref()?.get(2)?.as_str()?.parse().ok();
        let peer = match kind.map(|kind| kind.0) {
            Some(NodeType::Send) => rank(args.to).or_else(third),
            Some(NodeType::Recv) => rank(args.from).or_else(third),
            _ => None,
        };
        Said {
            level,
            kind,
            bytes,
            group: self.names.get(args.group.as_deref().unwrap_or("")),
            group_size: whole(args.group_size),
            peer,
            is_named: args.collective.is_some() || (level < Level::Kernel && kind.is_some()),
            is_of_backend,
        }
    }

    fn finish(mut self) -> Result<RankTrace, TraceError> {
        self.spans.sort_by_key(|span| (span.start_ns, u64::MAX - span.duration_ns));
        self.leave_out_groups_of_one();
        self.name_sums_for_parts();
        self.cut_at_waits();
        let outer = self.outermost();
        let join = Join::new(std::mem::take(&mut self.launches), &self.spans, &outer);
        let mut transfers = self.of_host();
        let mut origins: BTreeMap<usize, Place> = BTreeMap::new();
        let mut operators: BTreeMap<usize, usize> = BTreeMap::new();
        self.of_device(&join, &mut transfers, &mut origins, &mut operators);
        self.of_batches(&join, &mut transfers, &origins);
        let has_device = self.spans.iter().any(|span| !span.is_host && span.duration_ns > 0);
        self.count_enqueued(&join, &mut transfers, has_device);
        let mut ids = vec![None; self.spans.len()];
        let mut kept = Vec::new();
        for (index, span) in self.spans.iter().enumerate() {
            let is_comp = if span.is_host {
                span.is_operator() && outer[index] == Some(index) && !span.waits
            } else {
                span.said.is_none()
            };
            if transfers.contains_key(&index) || is_comp {
                ids[index] = Some(kept.len() as u64);
                kept.push(index);
            }
        }
        if kept.is_empty() {
            let first = self.damage.values().map(|&(_, line)| line).min();
            let what = match first {
                Some(line) => {
                    format!("no event of it can be read, from line {line} on; export the recording again").into()
                }
                None => "no event is an operator (cpu_op), a kernel or a collective; record with ProfilerActivity.CPU"
                    .into(),
            };
            return Err(TraceError::NoOps { what });
        }
        self.updates.sort_unstable();
        let mut launched = LaunchedSteps::of(&self.marks);
        let mut seen = OpsSoFar::default();
        let mut ops = Vec::with_capacity(kept.len());
        for &index in &kept {
            look();
            let span = &self.spans[index];
            let transfer = transfers.get(&index);
            let mut deps = BTreeSet::new();
            // On its own thread or stream, one after another.
            deps.extend(seen.before(span.lane, span.start_ns, &self.spans));
            // What the launching thread had done when it launched this.
            let call = transfer.and_then(|transfer| transfer.call).map(|call| &self.spans[call]);
            let origin =
                call.map(|call| Place { lane: call.lane, at_ns: call.start_ns }).or(origins.get(&index).copied());
            if let Some(place) = origin {
                deps.extend(seen.before(place.lane, place.at_ns.min(span.start_ns), &self.spans));
            }
            let pass = match origin.filter(|_| !span.is_host) {
                Some(place) => {
                    launched.add(place.at_ns, (span.start_ns, span.end_ns()));
                    self.pass(place, operators.get(&index).map_or("", |&operator| &self.spans[operator].name))
                }
                None => self.pass(Place { lane: span.lane, at_ns: span.start_ns }, &span.name),
            };
            let ready_ns = call.filter(|_| span.is_host).map(|call| call.start_ns.min(span.start_ns));
            // ProcessGroupNCCL makes its stream wait for what the stream of the caller holds at that time.
            if transfer.is_some()
                && let Some(number) = span.correlation.filter(|_| !span.is_host)
            {
                deps.extend(seen.launched_before(number, span.start_ns, &self.spans));
            }
            seen.push(index, span);
            let comm = transfer.map(|transfer| {
                let mut comm = self.described(transfer);
                comm.ready_ns = ready_ns.map(|ns| self.base_ns.saturating_add(ns));
                Box::new(comm)
            });
            ops.push(TraceOp {
                id: ids[index].expect("a kept span has an id"),
                name: span.name.clone(),
                kind: transfer.map_or(NodeType::Comp, |one| one.kind.map_or(NodeType::Coll, |kind| kind.0)),
                is_host: span.is_host,
                pass,
                start_ns: self.base_ns.saturating_add(span.start_ns),
                duration_ns: transfer.map_or(span.duration_ns, |one| one.end_ns.saturating_sub(span.start_ns)),
                data_deps: Box::default(),
                ctrl_deps: deps.into_iter().filter_map(|dep| ids[dep]).collect(),
                comm,
            });
        }
        let has_groups = self.distributed.pg_config.len() > 1;
        for op in &ops {
            let Some(comm) = &op.comm else { continue };
            if op.kind == NodeType::Coll && comm.collective.is_none() {
                self.gaps.add_at(Gap::UnknownTransfer, &op.name, op.start_ns);
            } else if has_groups && comm.group.is_empty() && comm.collective.is_some() {
                self.gaps.add_at(Gap::Group, &op.name, op.start_ns);
            }
        }
        // Its step is at least that long, and so is the one that is left out.
        for &(correlation, start_ns) in &self.untimed_launches {
            if let Some(place) = join.launch_of(correlation, start_ns) {
                launched.add(place.at_ns, (start_ns, start_ns));
            }
        }
        self.marks = launched.marks(std::mem::take(&mut self.marks));
        for mark in &mut self.marks {
            mark.start_ns = mark.start_ns.saturating_add(self.base_ns);
            mark.end_ns = mark.end_ns.saturating_add(self.base_ns);
        }
        for ((gap, category), (count, line)) in &self.damage {
            self.gaps.add_many(*gap, &format!("{category} from line {line}"), *count);
        }
        // Of a rank with a device nobody counts what the host took.
        let untimed = self.untimed.iter().filter(|&&(_, is_device)| is_device || !has_device);
        let untimed_ns = untimed.map(|&(ns, _)| ns.saturating_add(self.base_ns)).collect();
        let Distributed { rank, world_size, .. } = self.distributed;
        let about = About { rank, world_size, version: self.version, described: self.distributed.described() };
        checked(&mut ops, &mut self.gaps)?;
        Ok(RankTrace { ops, marks: self.marks, untimed_ns, about, gaps: self.gaps })
    }

    /// Takes what a group of one rank sends for what it is: nothing.
    fn leave_out_groups_of_one(&mut self) {
        let distributed = &self.distributed;
        for span in &mut self.spans {
            let size =
                span.said.as_ref().and_then(|said| said.group_size.or_else(|| distributed.group_size(&said.group)));
            if size == Some(1) {
                span.said = None;
            }
        }
    }

    /// Transfers of backends that run on the host, each with its call where that can be told.
    ///
    /// Threads of gloo record no number of a call, so calls and events of a kind are matched in their order; not at all,
    /// if there are not as many of both, or a call begins after its event.
    fn of_host(&self) -> BTreeMap<usize, Transfer> {
        let mut found: BTreeMap<Transferred, [Vec<usize>; 2]> = BTreeMap::new();
        let mut transfers = BTreeMap::new();
        for (index, span) in self.spans.iter().enumerate() {
            look();
            let Some(said) = span.said.as_deref().filter(|_| span.is_host && span.level() != Some(Level::Record))
            else {
                continue;
            };
            if let Some(kind) = said.kind {
                found.entry(kind).or_default()[usize::from(said.level == Level::Backend)].push(index);
            }
            if said.level == Level::Backend {
                transfers.insert(index, Transfer::of(index, span, said.kind));
            }
        }
        for [calls, events] in found.values() {
            let begins_before =
                |(&call, &event): (&usize, &usize)| self.spans[call].start_ns <= self.spans[event].start_ns;
            if calls.len() == events.len() && calls.iter().zip(events).all(begins_before) {
                for (&call, event) in calls.iter().zip(events) {
                    transfers.entry(*event).and_modify(|transfer| transfer.call = Some(call));
                }
            }
        }
        transfers
    }

    /// Joins every kernel to where it was launched, and each that moves bytes to what is said of it there.
    fn of_device(
        &self,
        join: &Join,
        transfers: &mut BTreeMap<usize, Transfer>,
        origins: &mut BTreeMap<usize, Place>,
        operators: &mut BTreeMap<usize, usize>,
    ) {
        // The first kernel of a call, by its stream: the others of the call go on with the same transfer.
        let mut firsts: BTreeMap<(usize, u32), usize> = BTreeMap::new();
        for (index, span) in self.spans.iter().enumerate().filter(|(_, span)| !span.is_host) {
            look();
            let origin = join.origin(span, &self.spans);
            if let Some(origin) = &origin {
                origins.insert(index, origin.place);
                operators.extend(origin.operator.map(|operator| (index, operator)));
            }
            let Some(said) = span.said.as_deref() else { continue };
            let of_call = origin.map_or_else(Vec::new, |origin| origin.said);
            let of_call = if said.is_of_backend { of_call } else { Vec::new() };
            let kind_of = |one: &usize| self.spans[*one].said.as_ref().and_then(|said| said.kind);
            // The call says what is done; a kernel's name how: a barrier is an all-reduce to it, and an all-to-all sends.
            let called = of_call.iter().find_map(kind_of).filter(|_| !said.is_named);
            let kind = called.or(said.kind);
            if let Some(&call) = of_call.first() {
                let first = *firsts.entry((call, span.lane)).or_insert(index);
                if let Some(transfer) = transfers.get_mut(&first)
                    && transfer.kind == kind
                {
                    transfer.end_ns = transfer.end_ns.max(span.end_ns());
                    continue;
                }
            }
            transfers.insert(index, Transfer { said: of_call, ..Transfer::of(index, span, kind) });
        }
    }

    /// Joins kernels of no call to the messages that a thread enqueued before: in a batch of them NCCL launches one kernel
    /// for all at the end, which is none of theirs.
    fn of_batches(&self, join: &Join, transfers: &mut BTreeMap<usize, Transfer>, origins: &BTreeMap<usize, Place>) {
        let mut joined: BTreeSet<usize> = transfers.values().flat_map(|one| one.said.iter().copied()).collect();
        let is_batch = |index: &usize| {
            let said = self.spans[*index].said.as_deref();
            said.is_some_and(|said| said.is_of_backend && !self.spans[*index].is_host)
                && transfers[index].kind.is_none()
        };
        let mut batches: Vec<(Place, usize)> = transfers
            .keys()
            .filter(|index| is_batch(index))
            .filter_map(|&one| Some((*origins.get(&one)?, one)))
            .collect();
        batches.sort_unstable();
        let mut last = Place { lane: u32::MAX, at_ns: 0 };
        for (place, index) in batches {
            let after = if last.lane == place.lane { last } else { Place { at_ns: 0, ..place } };
            last = place;
            let kind_of = |one: usize| self.spans[one].said.as_deref().and_then(|said| said.kind);
            let is_message = |one: &usize| kind_of(*one).is_some_and(|kind| kind.0 != NodeType::Coll);
            let messages: Vec<usize> =
                join.said_between(after, place.at_ns).filter(|one| !joined.contains(one)).filter(is_message).collect();
            joined.extend(&messages);
            let transfer = transfers.get_mut(&index).expect("a batch is a transfer");
            // Of several messages at once no one kind, size or end is that of the kernel.
            let outer: BTreeSet<usize> = messages.iter().map(|&one| join.outermost_said(one, &self.spans)).collect();
            if outer.len() == 1 {
                transfer.kind = kind_of(messages[0]);
                transfer.said = messages;
                transfer.said.sort_by_key(|&one| (std::cmp::Reverse(self.spans[one].level()), one));
            } else {
                transfer.batch = messages;
            }
        }
    }

    /// Finds calls that were never seen to run. A backend that enqueues says nothing of when bytes move, so they are
    /// counted and left out; of another backend, that records nothing of itself, a call stands for its transfer.
    fn count_enqueued(&mut self, join: &Join, transfers: &mut BTreeMap<usize, Transfer>, has_device: bool) {
        let outermost = |&index: &usize| join.outermost_said(index, &self.spans);
        let seen: BTreeSet<usize> =
            transfers.values().flat_map(|one| one.said.iter().chain(&one.batch).map(outermost)).collect();
        let mut records: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, span) in self.spans.iter().enumerate().filter(|(_, span)| span.level() == Some(Level::Record)) {
            if span.said.as_ref().is_some_and(|said| said.is_named) {
                records.entry(outermost(&index)).or_insert(index);
            }
        }
        let is_call = |span: &Span| span.level().is_some_and(|level| level < Level::Backend);
        let calls: Vec<usize> = (0..self.spans.len())
            .filter(|&index| is_call(&self.spans[index]) && outermost(&index) == index && !seen.contains(&index))
            .collect();
        let mut others: BTreeMap<Transferred, Vec<usize>> = BTreeMap::new();
        for call in calls {
            let said = self.spans[call].said.as_deref().expect("a call says something");
            let enqueues = self.distributed.enqueues(&said.group);
            // Only backends that enqueue have records, though an old one may name nothing.
            let record = records.get(&call);
            if record.is_some() || (said.level == Level::Call && enqueues.unwrap_or(has_device)) {
                let is_call = said.level == Level::Call;
                self.never_run(record.copied().filter(|_| !is_call).unwrap_or(call));
            } else if let Some(kind) = said.kind {
                others.entry(kind).or_default().push(call);
            }
        }
        for (kind, calls) in others {
            let is_event = |one: &Transfer| one.kind == Some(kind) && self.spans[one.index].is_host;
            let events = transfers.values().filter(|one| is_event(one)).count();
            if events == 0 {
                let of_call = |call| (call, Transfer::of(call, &self.spans[call], Some(kind)));
                transfers.extend(calls.into_iter().map(of_call));
                continue;
            }
            for &call in calls.iter().skip(events) {
                self.never_run(call);
            }
        }
    }

    /// Gives a backend's sum that carries out a reduce-scatter the name of that.
    ///
    /// ProcessGroupGloo has no reduce-scatter: it sums all of it, and each rank keeps its part
    /// (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp). Calls and sums are matched in their order, by their bytes;
    /// if one is left over, nothing is named otherwise.
    fn name_sums_for_parts(&mut self) {
        let sum = (NodeType::Coll, Some(CollectiveType::AllReduce));
        let part = (NodeType::Coll, Some(CollectiveType::ReduceScatter));
        let at = |wanted: Level, kinds: &[Transferred]| -> Vec<usize> {
            let said = |index: usize| self.spans[index].said.as_deref();
            let is_one = |said: &Said| said.level == wanted && said.kind.is_some_and(|kind| kinds.contains(&kind));
            (0..self.spans.len()).filter(|&index| said(index).is_some_and(is_one)).collect()
        };
        let bytes = |index: usize| self.spans[index].said.as_deref().and_then(|said| said.bytes);
        let (calls, mut sums) = (at(Level::Call, &[sum, part]), at(Level::Backend, &[sum]));
        let has_own = !at(Level::Backend, &[part]).is_empty() || !at(Level::Kernel, &[sum, part]).is_empty();
        if has_own || calls.len() != sums.len() || at(Level::Call, &[part]).is_empty() {
            return;
        }
        let mut found = Vec::new();
        for call in calls {
            let begun =
                |&sum: &usize| self.spans[sum].start_ns >= self.spans[call].start_ns && bytes(sum) == bytes(call);
            let Some(place) = sums.iter().position(begun) else { return };
            found.push((call, sums.remove(place)));
        }
        for (call, sum) in found {
            let of = self.spans[call].said.as_deref().and_then(|said| said.kind);
            if of == Some(part)
                && let Some(said) = self.spans[sum].said.as_deref_mut()
            {
                said.kind = Some(part);
            }
        }
    }

    /// Cuts operators where their thread waits for a transfer, so that only the rest counts as computing.
    ///
    /// A thread waits in a call that lasts until its transfer is at least half done; a call that returns sooner has
    /// begun it and gone on.
    fn cut_at_waits(&mut self) {
        for (transfer, Transfer { call, .. }) in self.of_host() {
            let Some(call) = call else { continue };
            let half_ns = self.spans[transfer].start_ns.saturating_add(self.spans[transfer].duration_ns / 2);
            self.spans[call].waits = self.spans[call].end_ns() >= half_ns;
        }
        let mut open: Vec<Option<usize>> = vec![None; self.lanes.len()];
        for index in 0..self.spans.len() {
            look();
            let span = &self.spans[index];
            let (lane, start_ns, end_ns, waits) = (span.lane as usize, span.start_ns, span.end_ns(), span.waits);
            let is_backend = !span.is_operator();
            let around = open[lane].filter(|&one| start_ns < self.spans[one].end_ns());
            match around {
                Some(one) if waits => {
                    let around = &mut self.spans[one];
                    let rest_ns = around.end_ns().saturating_sub(end_ns);
                    around.duration_ns = start_ns - around.start_ns;
                    let name = around.name.clone();
                    open[lane] = None;
                    if rest_ns > 0 {
                        open[lane] = Some(self.spans.len());
                        self.spans.push(Span {
                            name,
                            lane: lane as u32,
                            start_ns: end_ns,
                            duration_ns: rest_ns,
                            is_host: true,
                            external: None,
                            correlation: None,
                            said: None,
                            waits: false,
                        });
                    }
                }
                None if !waits && !is_backend => open[lane] = Some(index),
                _ => {}
            }
        }
        self.spans.sort_by_key(|span| (span.start_ns, u64::MAX - span.duration_ns));
    }

    /// The part of a step that is done at a place, by an operator of a name: the optimizer's within a call of its step.
    fn pass(&self, Place { lane, at_ns }: Place, name: &str) -> StepPart {
        let place = self.updates.partition_point(|&(other, start_ns, _)| (other, start_ns) <= (lane, at_ns));
        match place.checked_sub(1).map(|before| self.updates[before]) {
            Some((other, _, end_ns)) if other == lane && at_ns < end_ns => StepPart::Update,
            _ => StepPart::of_name(name),
        }
    }

    /// For each span the operator around it that is in no other; `None` of a backend's span, and of what is done in it.
    fn outermost(&self) -> Vec<Option<usize>> {
        let mut open: Vec<Option<usize>> = vec![None; self.lanes.len()];
        let mut backend_ends_ns = vec![0; self.lanes.len()];
        let mut outer = Vec::with_capacity(self.spans.len());
        for (index, span) in self.spans.iter().enumerate() {
            look();
            let backend_end_ns = &mut backend_ends_ns[span.lane as usize];
            if span.is_host && !span.is_operator() {
                *backend_end_ns = span.end_ns();
            }
            if span.is_host && span.start_ns < *backend_end_ns {
                outer.push(None);
                continue;
            }
            let around = &mut open[span.lane as usize];
            if !around.is_some_and(|one| span.is_host && span.start_ns < self.spans[one].end_ns()) {
                *around = Some(index);
            }
            outer.push(*around);
        }
        outer
    }

    fn never_run(&mut self, call: usize) {
        let span = &self.spans[call];
        let name = match span.said.as_deref() {
            // An annotation names its kind itself: nccl:all_reduce.
            Some(Said { level: Level::Record, kind, .. }) if !span.name.contains(':') => {
                let word = |(kind, collective): Transferred| collective.map_or(kind.word(), CollectiveType::word);
                format!("{} of {}", span.name, kind.map_or("an unknown kind", word))
            }
            _ => span.name.to_string(),
        };
        self.gaps.add_at(Gap::UnmatchedCall, &name, self.base_ns.saturating_add(span.start_ns));
    }

    /// All that is known of a transfer: what its span says, then what was said where it was called, the innermost first,
    /// then what the job has one of. Bytes come by identifier alone: what is matched by its place says none.
    fn described(&self, transfer: &Transfer) -> Comm {
        let own = self.spans[transfer.index].said.as_deref();
        let called = || transfer.said.iter().filter_map(|&index| self.spans[index].said.as_deref());
        let all = || own.into_iter().chain(called());
        let (kind, collective) = transfer.kind.unwrap_or((NodeType::Coll, None));
        let matched = transfer.call.and_then(|call| self.spans[call].said.as_deref());
        let peer = all().chain(matched).find_map(|said| said.peer);
        let me = self.distributed.rank.unwrap_or_default();
        let group = all().map(|said| &said.group).find(|group| !group.is_empty());
        let listed = self.distributed.group(group.map_or("", |group| group));
        Comm {
            collective,
            bytes: all().find_map(|said| said.bytes),
            group: match (group, listed) {
                (Some(group), _) => group.clone(),
                (None, listed) => listed.map_or("", |group| group.pg_name.as_str()).into(),
            },
            ranks: listed.map(|group| group.ranks.clone()).filter(|ranks| !ranks.is_empty()),
            ends: match kind {
                NodeType::Send => peer.map(|to| (me, to)),
                NodeType::Recv => peer.map(|from| (from, me)),
                _ => None,
            },
            ..Comm::default()
        }
    }
}

/// A transfer, and where what is known of it stands.
struct Transfer {
    /// The span that stands for it.
    index: usize,
    kind: Option<Transferred>,
    end_ns: u64,
    /// Of a backend of the host: the call that is matched by its place in the order.
    call: Option<usize>,
    /// Of a kernel: what was said where it was launched.
    said: Vec<usize>,
    /// Of a kernel: the messages of which it is all.
    batch: Vec<usize>,
}

impl Transfer {
    fn of(index: usize, span: &Span, kind: Option<Transferred>) -> Self {
        Self { index, kind, end_ns: span.end_ns(), call: None, said: Vec::new(), batch: Vec::new() }
    }
}

/// Ops so far, by thread or stream in the order of their start.
#[derive(Default)]
struct OpsSoFar {
    lanes: BTreeMap<u32, Vec<usize>>,
    /// Kernels that compute, by launch.
    launched: BTreeMap<u64, usize>,
}

impl OpsSoFar {
    fn push(&mut self, index: usize, span: &Span) {
        self.lanes.entry(span.lane).or_default().push(index);
        if let (Some(number), false, None) = (span.correlation, span.is_host, &span.said) {
            self.launched.insert(number, index);
        }
    }

    /// The last op of a lane that had ended at `by_ns`.
    fn before(&self, lane: u32, by_ns: u64, spans: &[Span]) -> Option<usize> {
        let lane = self.lanes.get(&lane)?;
        // What is queued is launched long before it starts: much of its thread may have been seen since.
        let begun = lane.partition_point(|&one| spans[one].start_ns <= by_ns);
        // Ops of a lane do not overlap but where a backend's span lies among operators, so few are looked at.
        lane[..begun].iter().rev().take(64).copied().find(|&one| spans[one].end_ns() <= by_ns)
    }

    /// The last kernel that was launched before launch `number` and had ended at `by_ns`.
    fn launched_before(&self, number: u64, by_ns: u64, spans: &[Span]) -> Option<usize> {
        let (_, &one) = self.launched.range(..number).next_back()?;
        (spans[one].end_ns() <= by_ns).then_some(one)
    }
}

/// Whether a category is of calls of a runtime or a driver, which launch what a device does.
fn is_launch(category: &str) -> bool {
    category.ends_with("_runtime") || category.ends_with("_driver") || category == "Runtime"
}

/// The arguments of an event, as far as its category has some that are read; `None` if they mean nothing.
fn arguments<'a>(event: &Event<'a>) -> Option<Args<'a>> {
    let category = &*event.cat;
    let Some(raw) = event.args else { return Some(Args::default()) };
    if is_launch(category) {
        let OfLaunch { correlation } = serde_json::from_str(raw.get()).ok()?;
        return Some(Args { correlation, ..Args::default() });
    }
    if DEVICE.contains(&category) || HOST.contains(&category) || category == "user_annotation" {
        return serde_json::from_str(raw.get()).ok();
    }
    Some(Args::default())
}

fn whole(raw: Option<&RawValue>) -> Option<u64> {
    raw?.get().trim_matches('"').parse().ok()
}

/// A decimal number of microseconds, to the nanosecond: as a float it would lose them.
fn nanoseconds(text: &str) -> Option<u64> {
    let text = text.trim_matches('"');
    if text.contains(['e', 'E']) {
        let value = text.parse::<f64>().ok()? * 1e3;
        return (0.0..1.8e19).contains(&value).then_some(value.round() as u64);
    }
    let (micros, part) = text.split_once('.').unwrap_or((text, ""));
    // A span that was still open when the profiler stopped has a negative duration in some versions.
    if micros.starts_with('-') {
        return Some(0);
    }
    let digits: String = part.chars().chain("000".chars()).take(3).collect();
    micros.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(digits.parse().ok()?)
}
