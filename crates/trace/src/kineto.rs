//! Reader for `torch.profiler` (Kineto) traces: a JSON object with `distributedInfo` and a list `traceEvents`.
//!
//! The file contains spans on host threads and device streams, both of which are called tracks here, but no graph. The
//! outermost operators of each thread become ops, as do the kernels and copies of each stream, and collectives. Only
//! dependencies that must have existed are added: on the previous op of the same track, and on the op before the
//! launch. A dependency always ends before its dependent starts. The files do not show which ops wait for a collective,
//! so no op depends on a collective (docs/models/traces.md). In fields and functions, `said` is the `TransferInfo` of a
//! span, or the indices of the spans that have one.
//!
//! The file is longer than 600 lines because all stages read and write the spans of one rank.
//!
//! ```text
//! event -> span (kind: kernels.rs; damage: json.rs) -> launch of each kernel (join.rs) -> transfer, step, pass
//! ```

mod join;
mod marks;
mod span;

use crate::job::{Distributed, ENQUEUE};
use crate::json::{Layout, Piece, Splitter, mended};
use crate::kernels::{self, Moving, NO_TRANSFER, Transferred};
use crate::sizes::{ASSUMED_ELEMENT_BYTES, element_bytes, has_output, input_bytes};
use crate::{
    About, CollectiveType, Comm, Damage, Gap, Gaps, Mark, Names, NodeType, RankTrace, StepPart, TraceError, TraceOp,
    checked,
};
use gradtide_watch::check_cancelled;
use join::{Join, Launch, Place};
use marks::LaunchedSteps;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use span::{Level, Span, TransferInfo};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const LAYOUT: Layout =
    Layout { format: "Kineto trace", list: "traceEvents", unit: "event", units: "events", may_be_bare: true };

/// Categories of device events. PyTorch 1.8 capitalised them; Habana's and Ascend's profilers have their own
/// (libkineto/include/ActivityType.h).
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

/// Categories of host operators.
const HOST: &[&str] = &["cpu_op", "Operator"];

/// Categories of events that are not work: annotations, and events of the profiler itself. Calls of a runtime or a
/// driver are not work either: see [`is_launch`].
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

/// Backends of c10d that record their own events during a transfer, such as `gloo:all_reduce`.
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

/// The fields of `args` that are used. Some versions write integers as strings.
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

/// The only field of `args` that is read for calls of a runtime or driver.
#[derive(Deserialize)]
struct OfLaunch<'a> {
    #[serde(borrow)]
    correlation: Option<&'a RawValue>,
}

/// Reader of one rank's file, which it consumes chunk by chunk.
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
    /// Calls of the optimizer's step: thread, start and end.
    updates: Vec<(u32, u64, u64)>,
    tracks: BTreeMap<String, u32>,
    track: String,
    names: Names,
    moving: BTreeMap<Arc<str>, Option<Moving>>,
    /// Events with invalid JSON, by category.
    damage: Damage,
    /// Start times of events without a duration, and whether the event ran on a device.
    untimed: Vec<(u64, bool)>,
    /// Device events without a duration: correlation id and start time.
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
    /// [`TraceError::NotThis`] if the file has another format, [`TraceError::Piece`] if an event is invalid.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), TraceError> {
        let events = &mut self.events;
        self.splitter.feed(chunk, &mut |piece| match piece {
            Piece::Element(text, line) => events.event(text, line),
            Piece::Field(key, text) => events.field(key, text),
        })
    }

    /// Completes the trace at the end of the file.
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

    /// Reads an event. If the event is damaged, only its damaged fields are lost.
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
        // Arguments that cannot be read count as absent.
        self.read(&event, &arguments(&event).unwrap_or_default(), line)
    }

    /// Counts an event that cannot be repaired. Its category is searched for in the text.
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
        self.damage.add(gap, if category.is_empty() { "no category" } else { category }, line);
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
                let track = self.track(event)?;
                self.launches.push(Launch { correlation, place: Place { track, at_ns: start_ns } });
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
        let track = self.track(event)?;
        if is_update {
            self.updates.push((track, start_ns, end_ns));
            if is_annotation {
                return Ok(());
            }
        }
        let name = self.names.get(&event.name);
        let said = if is_device { self.kernel(&name, category, args) } else { self.call(&name, backend, args) };
        self.spans.push(Span {
            name,
            track,
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

    /// Returns the index of an event's track, which is its thread or stream.
    fn track(&mut self, event: &Event) -> Result<u32, String> {
        let raw = |raw: Option<&'_ RawValue>| raw.map_or("", RawValue::get).to_owned();
        self.track.clear();
        self.track.push_str(&raw(event.pid));
        self.track.push(' ');
        self.track.push_str(&raw(event.tid));
        if let Some(&track) = self.tracks.get(&self.track) {
            return Ok(track);
        }
        let track = u32::try_from(self.tracks.len()).map_err(|error| error.to_string())?;
        self.tracks.insert(self.track.clone(), track);
        Ok(track)
    }

    /// Returns the transfer information of a kernel, if the kernel communicates.
    fn kernel(&mut self, name: &Arc<str>, category: &str, args: &Args) -> Option<TransferInfo> {
        let known = *self.moving.entry(name.clone()).or_insert_with(|| kernels::moving(name));
        let is_annotated = args.collective.is_some() || category == "collective_comm";
        let unnamed = Moving { kind: None, is_of_backend: true };
        let Moving { kind, is_of_backend } = known.or(is_annotated.then_some(unnamed))?;
        let kind = args.collective.as_deref().and_then(kernels::named).or(kind);
        Some(self.transfer_info(Level::Kernel, kind, name, args, is_of_backend))
    }

    /// Returns the transfer information of a host event, if any.
    fn call(&mut self, name: &str, backend: Option<(&str, &str)>, args: &Args) -> Option<TransferInfo> {
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
        Some(self.transfer_info(level, kind, name, args, true))
    }

    fn transfer_info(
        &mut self,
        level: Level,
        kind: Option<Transferred>,
        name: &str,
        args: &Args,
        is_of_backend: bool,
    ) -> TransferInfo {
        let collective = kind.and_then(|kind| kind.1);
        let is_barrier = collective == Some(CollectiveType::Barrier);
        let size = match whole(args.elements) {
            Some(count) => {
                let known = element_bytes(args.dtype.as_deref().unwrap_or(""));
                let assumed = u64::from(known.is_none() && count > 0);
                Some((count.saturating_mul(known.unwrap_or(ASSUMED_ELEMENT_BYTES)), assumed))
            }
            // If the output differs in size from the input, the output comes first: c10d::_reduce_scatter_base_(output,
            // input, …).
            None => input_bytes(
                args.dims.as_ref(),
                args.types.as_ref(),
                usize::from(level == Level::Call && collective.is_some_and(has_output)),
            )
            // A list of arguments without a tensor gives no size.
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
        // Signatures: c10d::send(tensors, group, destination, tag) and c10d::recv_(tensors, group, source, tag).
        let third = || args.inputs.as_ref()?.get(2)?.as_str()?.parse().ok();
        let peer = match kind.map(|kind| kind.0) {
            Some(NodeType::Send) => rank(args.to).or_else(third),
            Some(NodeType::Recv) => rank(args.from).or_else(third),
            _ => None,
        };
        TransferInfo {
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
        let has_device = self.spans.iter().any(|span| !span.is_host && span.duration_ns > 0);
        let found = self.transfers(&join, has_device);
        let kept = self.kept(&outer, &found.transfers);
        if kept.is_empty() {
            return Err(self.no_ops());
        }
        self.updates.sort_unstable();
        let mut launched = LaunchedSteps::of(&self.marks);
        let mut ops = self.ops(&kept, &found, &mut launched);
        self.add_gaps(&ops);
        // Extends each step to the start of its untimed events, so that the step is recognised as untimed.
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
        self.damage.add_to(&mut self.gaps);
        // On a rank with a device, only untimed events of the device count.
        let untimed = self.untimed.iter().filter(|&&(_, is_device)| is_device || !has_device);
        let untimed_ns = untimed.map(|&(ns, _)| ns.saturating_add(self.base_ns)).collect();
        let Distributed { rank, world_size, .. } = self.distributed;
        let about = About { rank, world_size, version: self.version, described: self.distributed.described() };
        checked(&mut ops, &mut self.gaps)?;
        Ok(RankTrace { ops, marks: self.marks, untimed_ns, about, gaps: self.gaps })
    }

    /// Returns all transfers, and for every kernel its launch and its operator.
    fn transfers(&mut self, join: &Join, has_device: bool) -> Found {
        let mut found = Found { transfers: self.host_transfers(), ..Found::default() };
        self.device_transfers(join, &mut found.transfers, &mut found.origins, &mut found.operators);
        self.batch_transfers(join, &mut found.transfers, &found.origins);
        self.count_enqueued(join, &mut found.transfers, has_device);
        found
    }

    /// Returns the spans that become ops: transfers, outermost operators, and kernels.
    fn kept(&self, outer: &[Option<usize>], transfers: &BTreeMap<usize, Transfer>) -> Vec<usize> {
        let is_comp = |index: usize, span: &Span| {
            if span.is_host {
                span.is_operator() && outer[index] == Some(index) && !span.waits
            } else {
                span.said.is_none()
            }
        };
        let spans = self.spans.iter().enumerate();
        spans.filter(|&(index, span)| transfers.contains_key(&index) || is_comp(index, span)).map(|one| one.0).collect()
    }

    fn no_ops(&self) -> TraceError {
        let what = match self.damage.first_line() {
            Some(line) => format!("no event of it can be read, from line {line} on; export the recording again").into(),
            None => {
                "no event is an operator (cpu_op), a kernel or a collective; record with ProfilerActivity.CPU".into()
            }
        };
        TraceError::NoOps { what }
    }

    /// Creates the ops of the kept spans. Adds the kernels that each step launched to `launched`.
    fn ops(&self, kept: &[usize], found: &Found, launched: &mut LaunchedSteps) -> Vec<TraceOp> {
        let mut ids = vec![None; self.spans.len()];
        (0..).zip(kept).for_each(|(id, &index)| ids[index] = Some(id));
        let mut seen = OpsSoFar::default();
        let mut ops = Vec::with_capacity(kept.len());
        for &index in kept {
            check_cancelled();
            let span = &self.spans[index];
            let transfer = found.transfers.get(&index);
            let mut deps = BTreeSet::new();
            // The op depends on the previous op of its thread or stream, because these run one after another.
            deps.extend(seen.before(span.track, span.start_ns, &self.spans));
            // The op also depends on the last op of the launching thread before the launch.
            let call = transfer.and_then(|transfer| transfer.call).map(|call| &self.spans[call]);
            let launch = call.map(|call| Place { track: call.track, at_ns: call.start_ns });
            let origin = launch.or(found.origins.get(&index).copied());
            if let Some(place) = origin {
                deps.extend(seen.before(place.track, place.at_ns.min(span.start_ns), &self.spans));
            }
            let pass = match origin.filter(|_| !span.is_host) {
                Some(place) => {
                    launched.add(place.at_ns, (span.start_ns, span.end_ns()));
                    self.pass(place, found.operators.get(&index).map_or("", |&operator| &self.spans[operator].name))
                }
                None => self.pass(Place { track: span.track, at_ns: span.start_ns }, &span.name),
            };
            let ready_ns = call.filter(|_| span.is_host).map(|call| call.start_ns.min(span.start_ns));
            // At a call, ProcessGroupNCCL makes its stream wait for the work that is then queued on the caller's
            // stream.
            if transfer.is_some()
                && let Some(number) = span.correlation.filter(|_| !span.is_host)
            {
                deps.extend(seen.launched_before(number, span.start_ns, &self.spans));
            }
            seen.push(index, span);
            let comm = transfer.map(|transfer| {
                let mut comm = self.merged_comm(transfer);
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
        ops
    }

    /// Counts the transfers whose kind or group is unknown.
    fn add_gaps(&mut self, ops: &[TraceOp]) {
        let has_groups = self.distributed.pg_config.len() > 1;
        for op in ops {
            let Some(comm) = &op.comm else { continue };
            if op.kind == NodeType::Coll && comm.collective.is_none() {
                self.gaps.add_at(Gap::UnknownTransfer, &op.name, op.start_ns);
            } else if has_groups && comm.group.is_empty() && comm.collective.is_some() {
                self.gaps.add_at(Gap::Group, &op.name, op.start_ns);
            }
        }
    }

    /// Drops the transfers of groups of one rank, because they send nothing.
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

    /// Returns the transfers of host backends, each with its call if the call can be determined.
    ///
    /// Gloo's threads do not record the id of the call, so the calls and events of each kind are matched in order. They
    /// are not matched if their numbers differ or if a call begins after its event.
    fn host_transfers(&self) -> BTreeMap<usize, Transfer> {
        let mut found: BTreeMap<Transferred, [Vec<usize>; 2]> = BTreeMap::new();
        let mut transfers = BTreeMap::new();
        for (index, span) in self.spans.iter().enumerate() {
            check_cancelled();
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

    /// Finds the launch of every kernel and, for communication kernels, the transfer information at the launch.
    fn device_transfers(
        &self,
        join: &Join,
        transfers: &mut BTreeMap<usize, Transfer>,
        origins: &mut BTreeMap<usize, Place>,
        operators: &mut BTreeMap<usize, usize>,
    ) {
        // First kernel of each call on each stream. Further kernels of the call continue the same transfer.
        let mut firsts: BTreeMap<(usize, u32), usize> = BTreeMap::new();
        for (index, span) in self.spans.iter().enumerate().filter(|(_, span)| !span.is_host) {
            check_cancelled();
            let origin = join.origin(span, &self.spans);
            if let Some(origin) = &origin {
                origins.insert(index, origin.place);
                operators.extend(origin.operator.map(|operator| (index, operator)));
            }
            let Some(said) = span.said.as_deref() else { continue };
            let of_call = origin.map_or_else(Vec::new, |origin| origin.said);
            let of_call = if said.is_of_backend { of_call } else { Vec::new() };
            let kind_of = |one: &usize| self.spans[*one].said.as_ref().and_then(|said| said.kind);
            // The call gives the kind of the collective, whereas the name of the kernel gives its implementation: a
            // barrier runs as an all-reduce, and an all-to-all as sends.
            let called = of_call.iter().find_map(kind_of).filter(|_| !said.is_named);
            let kind = called.or(said.kind);
            if let Some(&call) = of_call.first() {
                let first = *firsts.entry((call, span.track)).or_insert(index);
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

    /// Links a kernel without a call to the messages that its thread enqueued before. For a batch of messages, NCCL
    /// launches one kernel after all their calls.
    fn batch_transfers(
        &self,
        join: &Join,
        transfers: &mut BTreeMap<usize, Transfer>,
        origins: &BTreeMap<usize, Place>,
    ) {
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
        let mut last = Place { track: u32::MAX, at_ns: 0 };
        for (place, index) in batches {
            let after = if last.track == place.track { last } else { Place { at_ns: 0, ..place } };
            last = place;
            let kind_of = |one: usize| self.spans[one].said.as_deref().and_then(|said| said.kind);
            let is_message = |one: &usize| kind_of(*one).is_some_and(|kind| kind.0 != NodeType::Coll);
            let messages: Vec<usize> =
                join.said_between(after, place.at_ns).filter(|one| !joined.contains(one)).filter(is_message).collect();
            joined.extend(&messages);
            let transfer = transfers.get_mut(&index).expect("a batch is a transfer");
            // A kernel for several messages has no single kind, size or peer.
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

    /// Finds calls for which no execution was recorded. If the backend enqueues transfers, the call does not show when
    /// bytes move, so it is counted as a gap and left out. If the backend has no events of its own, the call itself
    /// counts as the transfer.
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
            // Only backends that enqueue write records, although old records may lack the kind.
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

    /// Turns all-reduces by which a backend implements reduce-scatters into reduce-scatters.
    ///
    /// ProcessGroupGloo has no native reduce-scatter: it all-reduces the whole buffer, and each rank keeps its part
    /// (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp). Calls and all-reduces are matched in order and by bytes.
    /// Unless all of them match, nothing is changed.
    fn name_sums_for_parts(&mut self) {
        let sum = (NodeType::Coll, Some(CollectiveType::AllReduce));
        let part = (NodeType::Coll, Some(CollectiveType::ReduceScatter));
        let at = |wanted: Level, kinds: &[Transferred]| -> Vec<usize> {
            let said = |index: usize| self.spans[index].said.as_deref();
            let is_one =
                |said: &TransferInfo| said.level == wanted && said.kind.is_some_and(|kind| kinds.contains(&kind));
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

    /// Splits operators at waits for a transfer, so that only the rest counts as compute.
    ///
    /// A call that lasts until its transfer is at least half done counts as blocking. A call that returns earlier is
    /// asynchronous.
    fn cut_at_waits(&mut self) {
        for (transfer, Transfer { call, .. }) in self.host_transfers() {
            let Some(call) = call else { continue };
            let half_ns = self.spans[transfer].start_ns.saturating_add(self.spans[transfer].duration_ns / 2);
            self.spans[call].waits = self.spans[call].end_ns() >= half_ns;
        }
        let mut open: Vec<Option<usize>> = vec![None; self.tracks.len()];
        for index in 0..self.spans.len() {
            check_cancelled();
            let span = &self.spans[index];
            let (track, start_ns, end_ns, waits) = (span.track as usize, span.start_ns, span.end_ns(), span.waits);
            let is_backend = !span.is_operator();
            let around = open[track].filter(|&one| start_ns < self.spans[one].end_ns());
            match around {
                Some(one) if waits => {
                    let around = &mut self.spans[one];
                    let rest_ns = around.end_ns().saturating_sub(end_ns);
                    around.duration_ns = start_ns - around.start_ns;
                    let name = around.name.clone();
                    open[track] = None;
                    if rest_ns > 0 {
                        open[track] = Some(self.spans.len());
                        self.spans.push(Span {
                            name,
                            track: track as u32,
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
                None if !waits && !is_backend => open[track] = Some(index),
                _ => {}
            }
        }
        self.spans.sort_by_key(|span| (span.start_ns, u64::MAX - span.duration_ns));
    }

    /// Returns the part of the step to which an operator called `name` at a place belongs. It is `Update` within a call
    /// of the optimizer's step.
    fn pass(&self, Place { track, at_ns }: Place, name: &str) -> StepPart {
        let place = self.updates.partition_point(|&(other, start_ns, _)| (other, start_ns) <= (track, at_ns));
        match place.checked_sub(1).map(|before| self.updates[before]) {
            Some((other, _, end_ns)) if other == track && at_ns < end_ns => StepPart::Update,
            _ => StepPart::of_name(name),
        }
    }

    /// Returns the outermost enclosing operator of each span. Returns `None` for a backend's span and for spans inside
    /// it.
    fn outermost(&self) -> Vec<Option<usize>> {
        let mut open: Vec<Option<usize>> = vec![None; self.tracks.len()];
        let mut backend_ends_ns = vec![0; self.tracks.len()];
        let mut outer = Vec::with_capacity(self.spans.len());
        for (index, span) in self.spans.iter().enumerate() {
            check_cancelled();
            let backend_end_ns = &mut backend_ends_ns[span.track as usize];
            if span.is_host && !span.is_operator() {
                *backend_end_ns = span.end_ns();
            }
            if span.is_host && span.start_ns < *backend_end_ns {
                outer.push(None);
                continue;
            }
            let around = &mut open[span.track as usize];
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
            // The name of an annotation, such as nccl:all_reduce, already contains its kind.
            Some(TransferInfo { level: Level::Record, kind, .. }) if !span.name.contains(':') => {
                let word = |(kind, collective): Transferred| collective.map_or(kind.word(), CollectiveType::word);
                format!("{} of {}", span.name, kind.map_or("an unknown kind", word))
            }
            _ => span.name.to_string(),
        };
        self.gaps.add_at(Gap::UnmatchedCall, &name, self.base_ns.saturating_add(span.start_ns));
    }

    /// Merges the information about a transfer. Its own span has precedence, then the calls at its launch, innermost
    /// first, then the job's only group. Bytes are taken only from events that are linked by id, not from events that
    /// are matched by order.
    fn merged_comm(&self, transfer: &Transfer) -> Comm {
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

/// Transfers by the index of their span. For each kernel, `origins` contains the place of its launch, `operators` the
/// operator that launched it.
#[derive(Default)]
struct Found {
    transfers: BTreeMap<usize, Transfer>,
    origins: BTreeMap<usize, Place>,
    operators: BTreeMap<usize, usize>,
}

/// A transfer, and the spans that contain information about it.
struct Transfer {
    /// Index of the span that represents the transfer.
    index: usize,
    kind: Option<Transferred>,
    end_ns: u64,
    /// For a host backend: the call that is matched by order.
    call: Option<usize>,
    /// For a kernel: the spans around its launch that contain transfer information.
    said: Vec<usize>,
    /// For a kernel that sends a batch of messages: the spans of these messages.
    batch: Vec<usize>,
}

impl Transfer {
    fn of(index: usize, span: &Span, kind: Option<Transferred>) -> Self {
        Self { index, kind, end_ns: span.end_ns(), call: None, said: Vec::new(), batch: Vec::new() }
    }
}

/// Indices of the ops so far, by track and start.
#[derive(Default)]
struct OpsSoFar {
    tracks: BTreeMap<u32, Vec<usize>>,
    /// Compute kernels, by correlation id.
    launched: BTreeMap<u64, usize>,
}

impl OpsSoFar {
    fn push(&mut self, index: usize, span: &Span) {
        self.tracks.entry(span.track).or_default().push(index);
        if let (Some(number), false, None) = (span.correlation, span.is_host, &span.said) {
            self.launched.insert(number, index);
        }
    }

    /// Returns the last op of a track that ended at or before `by_ns`.
    fn before(&self, track: u32, by_ns: u64, spans: &[Span]) -> Option<usize> {
        let track = self.tracks.get(&track)?;
        // A binary search, because a queued kernel is launched long before it starts, and many later ops of the
        // launching thread may have been added since.
        let begun = track.partition_point(|&one| spans[one].start_ns <= by_ns);
        // Ops of a track overlap only where a backend's span lies among operators, so a short scan is enough.
        track[..begun].iter().rev().take(64).copied().find(|&one| spans[one].end_ns() <= by_ns)
    }

    /// Returns the kernel that was launched last before correlation id `number`, if it ended at or before `by_ns`.
    fn launched_before(&self, number: u64, by_ns: u64, spans: &[Span]) -> Option<usize> {
        let (_, &one) = self.launched.range(..number).next_back()?;
        (spans[one].end_ns() <= by_ns).then_some(one)
    }
}

/// Returns whether a category contains calls of a runtime or a driver, which launch device work.
fn is_launch(category: &str) -> bool {
    category.ends_with("_runtime") || category.ends_with("_driver") || category == "Runtime"
}

/// Returns the arguments of an event, or `None` if they are invalid. If no arguments are used in the event's category,
/// the result is empty.
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

/// Parses microseconds with decimals, exactly to the nanosecond. A float would lose digits.
fn nanoseconds(text: &str) -> Option<u64> {
    let text = text.trim_matches('"');
    if text.contains(['e', 'E']) {
        let value = text.parse::<f64>().ok()? * 1e3;
        return (0.0..1.8e19).contains(&value).then_some(value.round() as u64);
    }
    let (micros, part) = text.split_once('.').unwrap_or((text, ""));
    // In some versions, a span that is still open when the profiler stops has a negative duration.
    if micros.starts_with('-') {
        return Some(0);
    }
    let digits: String = part.chars().chain("000".chars()).take(3).collect();
    micros.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(digits.parse().ok()?)
}
