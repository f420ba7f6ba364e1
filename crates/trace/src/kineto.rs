//! Traces of `torch.profiler` (Kineto): a JSON object with `distributedInfo` and a list `traceEvents`.
//!
//! The file has spans on threads and streams, and no graph. What is kept as an op: outermost operators of each thread,
//! kernels and copies of each stream, and collectives. What is taken for a dependency is only what must have been one:
//! the op before it on the same thread or stream, and what its launch came after. A dependency always ends before what
//! waits for it starts. What waits *for* a collective is not in these files, so no op does (docs/models/traces.md).

use crate::json::{Piece, Splitter};
use crate::{
    About, CollectiveType, Comm, Gap, Gaps, Mark, Names, NodeType, RankTrace, StepPart, TraceError, TraceOp, checked,
};
use gradtide_watch::look;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of an element whose type the file does not name: those of float32.
const ASSUMED_ELEMENT_BYTES: u64 = 4;

/// Categories of events that hold no work of their own: calls that launch it, notes, and what the profiler says of
/// itself.
const NO_WORK: &[&str] = &[
    "ac2g",
    "cpu_instant_event",
    "cuda_driver",
    "cuda_profiler_range",
    "cuda_runtime",
    "cuda_sync",
    "fwdbwd",
    "gpu_user_annotation",
    "mtia_runtime",
    "overhead",
    "privateuse1_driver",
    "privateuse1_runtime",
    "python_function",
    "Trace",
    "user_annotation",
    "xpu_runtime",
    "",
];

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

#[derive(Default, Deserialize)]
#[serde(default)]
struct Distributed {
    rank: Option<u32>,
    world_size: Option<u32>,
    pg_config: Vec<ProcessGroup>,
    /// Places in `pg_config` by name; of two groups with one name, the first.
    #[serde(skip)]
    place: BTreeMap<String, usize>,
}

impl Distributed {
    fn read(text: &[u8]) -> Result<Self, String> {
        let mut read: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        crate::plausible(read.rank, read.world_size, &[]).map_err(|error| error.to_string())?;
        for (place, group) in read.pg_config.iter().enumerate() {
            crate::plausible(None, None, &group.ranks).map_err(|error| error.to_string())?;
            read.place.entry(group.pg_name.clone()).or_insert(place);
        }
        Ok(read)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ProcessGroup {
    pg_name: String,
    pg_desc: String,
    ranks: Arc<[u32]>,
}

/// Where an event of a transfer comes from: the later ones say more about it, and stand for the earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// The call, `c10d::allreduce_`.
    Call,
    /// What the backend says of itself: `gloo:all_reduce`, `record_param_comms`.
    Backend,
    /// The kernel that moves the bytes.
    Kernel,
}

/// What kind of transfer an event is of.
type Transferred = (NodeType, Option<CollectiveType>);

struct Span {
    name: Arc<str>,
    lane: u32,
    start_ns: u64,
    duration_ns: u64,
    is_host: bool,
    /// Joins a kernel to the operator that launched it.
    external: Option<u64>,
    /// Numbers launches in their order.
    correlation: Option<u64>,
    comm: Option<Box<(Level, NodeType, Comm)>>,
    /// Whether its thread waits in it for what moves, and so computes nothing.
    waits: bool,
}

impl Span {
    fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
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
    /// Calls of the optimizer's step: thread, start, end.
    updates: Vec<(u32, u64, u64)>,
    lanes: BTreeMap<String, u32>,
    names: Names,
    distributed: Distributed,
    version: String,
    base_ns: u64,
    gaps: Gaps,
}

impl Default for KinetoReader {
    fn default() -> Self {
        Self { splitter: Splitter::new(), events: Events::default() }
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
            Piece::Event(text) => events.event(text),
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

    fn event(&mut self, text: &[u8]) -> Result<(), String> {
        let event: Event = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let is_device = matches!(&*event.cat, "kernel" | "gpu_memcpy" | "gpu_memset");
        let is_note = matches!(&*event.cat, "user_annotation" | "gpu_user_annotation");
        let is_backend = &*event.cat == "user_annotation" && event.name.starts_with("gloo:");
        let step = event.name.strip_prefix("ProfilerStep#").filter(|_| is_note).and_then(|text| text.parse().ok());
        let is_update = &*event.cat == "user_annotation" && event.name.starts_with("Optimizer.step#");
        let is_kept = is_device || is_backend || is_update || step.is_some() || &*event.cat == "cpu_op";
        if &*event.ph != "X" || !is_kept {
            if &*event.ph == "X" && !NO_WORK.contains(&&*event.cat) {
                self.gaps.add(Gap::UnknownCategory, &event.cat);
            }
            return Ok(());
        }
        let time = |raw: Option<&RawValue>, key: &str| {
            let raw = raw.map(RawValue::get).ok_or_else(|| format!("{:?} has no `{key}`", event.name))?;
            nanoseconds(raw).ok_or_else(|| format!("`{key}` of {:?} is {raw}", event.name))
        };
        let (start_ns, duration_ns) = (time(event.ts, "ts")?, time(event.dur, "dur")?);
        if let Some(number) = step {
            let is_host = &*event.cat == "user_annotation";
            self.marks.push(Mark { number, is_host, start_ns, end_ns: start_ns.saturating_add(duration_ns) });
            return Ok(());
        }
        let raw = |raw: Option<&RawValue>| raw.map_or("", RawValue::get).to_owned();
        let lane = raw(event.pid) + " " + &raw(event.tid);
        let lanes = u32::try_from(self.lanes.len()).map_err(|error| error.to_string())?;
        let lane = *self.lanes.entry(lane).or_insert(lanes);
        if is_update {
            self.updates.push((lane, start_ns, start_ns.saturating_add(duration_ns)));
            return Ok(());
        }
        let args: Args = match event.args {
            Some(raw) => serde_json::from_str(raw.get()).map_err(|error| format!("`args`: {error}"))?,
            None => Args::default(),
        };
        let level = if is_device {
            Level::Kernel
        } else if is_backend || args.collective.is_some() {
            Level::Backend
        } else {
            Level::Call
        };
        let comm = self.comm(level, &event.name, &args).map(|(kind, comm)| Box::new((level, kind, comm)));
        if comm.is_none()
            && let Some(name) = unknown_transfer(level, &event.name, &args)
        {
            self.gaps.add(Gap::UnknownTransfer, name);
        }
        self.spans.push(Span {
            name: self.names.get(&event.name),
            lane,
            start_ns,
            duration_ns,
            is_host: !is_device,
            external: whole(args.external),
            correlation: whole(args.correlation),
            comm,
            waits: event.name == "_c10d_functional::wait_tensor",
        });
        Ok(())
    }

    /// What an event moves, if it moves anything.
    fn comm(&mut self, level: Level, name: &str, args: &Args) -> Option<(NodeType, Comm)> {
        let (kind, collective) = match level {
            Level::Call => moved(name.strip_prefix("c10d::")?)?,
            Level::Backend => moved(args.collective.as_deref().or(name.strip_prefix("gloo:"))?)?,
            Level::Kernel => {
                let rest = name.strip_prefix("ncclDevKernel_").or(name.strip_prefix("ncclKernel_"));
                moved(args.collective.as_deref().or(rest)?)?
            }
        };
        let size = match whole(args.elements) {
            Some(count) => {
                Some((count.saturating_mul(element_bytes(args.dtype.as_deref().unwrap_or("")).unwrap_or(4)), 0))
            }
            // A call that divides or joins has its output first, as c10d::_reduce_scatter_base_(output, input, …).
            None => input_bytes(
                args.dims.as_ref(),
                args.types.as_ref(),
                usize::from(level == Level::Call && collective.is_some_and(has_output)),
            ),
        };
        let rank = |raw| whole(raw).and_then(|rank| u32::try_from(rank).ok());
        // c10d::send(tensors, group, destination, tag); c10d::recv_(tensors, group, source, tag).
        let peer = || args.inputs.as_ref()?.get(2)?.as_str()?.parse().ok();
        let me = self.distributed.rank.unwrap_or_default();
        let ends = match kind {
            NodeType::Send => rank(args.to).or_else(peer).map(|to| (me, to)),
            NodeType::Recv => rank(args.from).or_else(peer).map(|from| (from, me)),
            _ => None,
        };
        let is_barrier = collective == Some(CollectiveType::Barrier);
        let (bytes, assumed) = if is_barrier { (0, 0) } else { size.unwrap_or((UNKNOWN, 0)) };
        let group = args.group.as_deref().unwrap_or("");
        if assumed > 0 && level > Level::Call {
            self.gaps.add(Gap::ElementType, name);
        }
        Some((
            kind,
            Comm { collective, bytes, group: self.names.get(group), ranks: None, ends, tag: 0, ready_ns: None },
        ))
    }

    fn finish(mut self) -> Result<RankTrace, TraceError> {
        self.spans.sort_by_key(|span| (span.start_ns, u64::MAX - span.duration_ns));
        self.name_sums_for_parts();
        self.cut_at_waits();
        let outer = self.outermost();
        let moving = self.moving();
        self.count_unmatched();
        let mut ids = vec![None; self.spans.len()];
        let mut kept = Vec::new();
        for (index, span) in self.spans.iter().enumerate() {
            let is_comp = span.comm.as_ref().is_none_or(|comm| comm.0 == Level::Call)
                && outer[index] == Some(index)
                && !span.waits;
            if moving.contains_key(&index) || is_comp {
                ids[index] = Some(kept.len() as u64);
                kept.push(index);
            }
        }
        if kept.is_empty() {
            return Err(TraceError::NoOps {
                what: "no event is an operator (cpu_op), a kernel or a collective; record with ProfilerActivity.CPU",
            });
        }
        let launches = self.launches(&outer);
        self.updates.sort_unstable();
        let mut launched = LaunchedSteps::of(&self.marks);
        let mut seen = OpsSoFar::default();
        let mut ops = Vec::with_capacity(kept.len());
        for &index in &kept {
            look();
            let span = &self.spans[index];
            let mut deps = BTreeSet::new();
            // On its own thread or stream, one after another.
            deps.extend(seen.before(span.lane, span.start_ns, &self.spans));
            // What the launching thread had done when it launched this.
            let call = moving.get(&index).copied().flatten().or_else(|| {
                let external = span.external.filter(|_| !span.is_host)?;
                let place = launches.binary_search_by_key(&external, |launch| launch.0).ok()?;
                Some(launches[place].1)
            });
            if let Some(call) = call.map(|call| &self.spans[call]) {
                deps.extend(seen.before(call.lane, call.start_ns.min(span.start_ns), &self.spans));
            }
            if let Some(call) = call.filter(|_| !span.is_host) {
                launched.add(self.spans[call].start_ns, span);
            }
            let pass =
                call.filter(|_| !span.is_host).map_or_else(|| self.pass(span), |call| self.pass(&self.spans[call]));
            let ready_ns = call.filter(|_| span.is_host).map(|call| self.spans[call].start_ns.min(span.start_ns));
            // ProcessGroupNCCL makes its stream wait for what the stream of the caller holds at that time.
            if moving.contains_key(&index)
                && let Some(number) = span.correlation.filter(|_| !span.is_host)
            {
                deps.extend(seen.launched_before(number, span.start_ns, &self.spans));
            }
            seen.push(index, span);
            ops.push(TraceOp {
                id: ids[index].expect("a kept span has an id"),
                name: span.name.clone(),
                kind: moving
                    .get(&index)
                    .map_or(NodeType::Comp, |_| span.comm.as_ref().map_or(NodeType::Comp, |comm| comm.1)),
                is_host: span.is_host,
                pass,
                start_ns: self.base_ns.saturating_add(span.start_ns),
                duration_ns: span.duration_ns,
                data_deps: Box::default(),
                ctrl_deps: deps.into_iter().filter_map(|dep| ids[dep]).collect(),
                comm: moving.get(&index).and_then(|&call| {
                    let mut comm = self.described(index, call)?;
                    comm.ready_ns = ready_ns.map(|ns| self.base_ns.saturating_add(ns));
                    Some(comm)
                }),
            });
        }
        let has_groups = self.distributed.pg_config.len() > 1;
        for op in &mut ops {
            let Some(comm) = &mut op.comm else { continue };
            if comm.bytes == UNKNOWN {
                comm.bytes = 0;
            }
            if has_groups && comm.group.is_empty() && comm.collective.is_some() {
                self.gaps.add(Gap::Group, &op.name);
            }
        }
        self.marks.extend(launched.marks());
        for mark in &mut self.marks {
            mark.start_ns = mark.start_ns.saturating_add(self.base_ns);
            mark.end_ns = mark.end_ns.saturating_add(self.base_ns);
        }
        let Distributed { rank, world_size, .. } = self.distributed;
        let described = self.distributed.pg_config.iter().filter(|group| !matches!(&*group.pg_desc, "" | "undefined"));
        let described = described.map(|group| (group.pg_name.clone(), group.pg_desc.clone())).collect();
        let about = About { rank, world_size, version: self.version, described };
        checked(&mut ops, &mut self.gaps)?;
        Ok(RankTrace { ops, marks: self.marks, about, gaps: self.gaps })
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
            let is_one = |span: &Span| {
                let comm = span.comm.as_deref();
                comm.is_some_and(|(level, kind, comm)| *level == wanted && kinds.contains(&(*kind, comm.collective)))
            };
            (0..self.spans.len()).filter(|&index| is_one(&self.spans[index])).collect()
        };
        let bytes = |index: usize| self.spans[index].comm.as_deref().map_or(0, |comm| comm.2.bytes);
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
            let of = self.spans[call].comm.as_deref().map(|comm| (comm.1, comm.2.collective));
            if of == Some(part)
                && let Some(comm) = self.spans[sum].comm.as_deref_mut()
            {
                comm.2.collective = part.1;
            }
        }
    }

    /// Cuts operators where their thread waits for a transfer, so that only the rest counts as computing.
    ///
    /// A thread waits in a call that lasts until its transfer is at least half done; a call that returns sooner has
    /// begun it and gone on.
    fn cut_at_waits(&mut self) {
        for (transfer, call) in self.moving() {
            let Some(call) = call.filter(|_| self.spans[transfer].is_host) else { continue };
            let half_ns = self.spans[transfer].start_ns.saturating_add(self.spans[transfer].duration_ns / 2);
            self.spans[call].waits = self.spans[call].end_ns() >= half_ns;
        }
        let mut open: Vec<Option<usize>> = vec![None; self.lanes.len()];
        for index in 0..self.spans.len() {
            look();
            let span = &self.spans[index];
            let (lane, start_ns, end_ns, waits) = (span.lane as usize, span.start_ns, span.end_ns(), span.waits);
            let is_backend = span.comm.as_ref().is_some_and(|comm| comm.0 != Level::Call);
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
                            comm: None,
                            waits: false,
                        });
                    }
                }
                None if !waits && !is_backend && span.is_host => open[lane] = Some(index),
                _ => {}
            }
        }
        self.spans.sort_by_key(|span| (span.start_ns, u64::MAX - span.duration_ns));
    }

    /// The part of a step that an operator is of: the optimizer's if it is within a call of its step.
    fn pass(&self, span: &Span) -> StepPart {
        let place = self.updates.partition_point(|&(lane, start_ns, _)| (lane, start_ns) <= (span.lane, span.start_ns));
        match place.checked_sub(1).map(|before| self.updates[before]) {
            Some((lane, _, end_ns)) if lane == span.lane && span.start_ns < end_ns => StepPart::Update,
            _ => StepPart::of_name(&span.name),
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
            if span.comm.as_ref().is_some_and(|comm| comm.0 == Level::Backend) {
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

    /// The spans that stand for transfers, each with the call that launched it where that can be told.
    fn moving(&self) -> BTreeMap<usize, Option<usize>> {
        let mut found: BTreeMap<Transferred, BTreeMap<Level, Vec<usize>>> = BTreeMap::new();
        for (index, span) in self.spans.iter().enumerate() {
            look();
            if let Some((level, kind, comm)) = span.comm.as_deref() {
                found.entry((*kind, comm.collective)).or_default().entry(*level).or_default().push(index);
            }
        }
        let mut moving = BTreeMap::new();
        for levels in found.values() {
            let Some((level, best)) = levels.last_key_value() else { continue };
            let calls = levels.get(&Level::Call).filter(|calls| calls.len() == best.len());
            for (place, &index) in best.iter().enumerate() {
                let call = calls.filter(|_| *level > Level::Call).map(|calls| calls[place]);
                moving.insert(index, call);
            }
        }
        moving
    }

    /// Counts calls that move bytes and have no kernel or backend event, where others of their kind have one.
    fn count_unmatched(&mut self) {
        let mut counts: BTreeMap<Transferred, BTreeMap<Level, (u64, Arc<str>)>> = BTreeMap::new();
        for span in &self.spans {
            if let Some((level, kind, comm)) = span.comm.as_deref() {
                let levels = counts.entry((*kind, comm.collective)).or_default();
                levels.entry(*level).or_insert_with(|| (0, span.name.clone())).0 += 1;
            }
        }
        for levels in counts.into_values() {
            let best = levels.last_key_value().map_or(0, |(_, (count, _))| *count);
            if let Some((count, name)) = levels.into_values().max_by_key(|&(count, _)| count) {
                self.gaps.add_many(Gap::UnmatchedCall, &name, count - best);
            }
        }
    }

    /// The number of every operator, and the outermost one around it, by number.
    fn launches(&self, outer: &[Option<usize>]) -> Vec<(u64, usize)> {
        let of_host = self.spans.iter().zip(outer).filter(|(span, _)| span.is_host);
        let mut launches: Vec<_> = of_host.filter_map(|(span, &outer)| Some((span.external?, outer?))).collect();
        launches.sort_unstable();
        launches.dedup_by_key(|launch| launch.0);
        launches
    }

    /// All that is known of a transfer: what its span says, then what its call says, then what the job has one of.
    fn described(&self, index: usize, call: Option<usize>) -> Option<Box<Comm>> {
        let of = |index: usize| self.spans[index].comm.as_deref().map(|comm| &comm.2);
        let mut comm = of(index)?.clone();
        if let Some(call) = call.and_then(of) {
            comm.ends = comm.ends.or(call.ends);
            if comm.bytes == UNKNOWN {
                comm.bytes = call.bytes;
            }
        }
        let groups = &self.distributed.pg_config;
        let group = match groups.as_slice() {
            [only] if comm.group.is_empty() => Some(only),
            _ => self.distributed.place.get(&*comm.group).map(|&place| &groups[place]),
        };
        if let Some(group) = group {
            comm.group = group.pg_name.as_str().into();
            comm.ranks = Some(group.ranks.clone()).filter(|ranks| !ranks.is_empty());
        }
        Some(Box::new(comm))
    }
}

/// What a device did because of the host's steps, for files that have no marks of the device.
struct LaunchedSteps {
    /// Host's steps by their start: start, end, number.
    steps: Vec<(u64, u64, u64)>,
    found: BTreeMap<u64, (u64, u64)>,
}

impl LaunchedSteps {
    fn of(marks: &[Mark]) -> Self {
        let is_needed = marks.iter().all(|mark| mark.is_host);
        let of_host = marks.iter().filter(|_| is_needed).map(|mark| (mark.start_ns, mark.end_ns, mark.number));
        let mut steps: Vec<_> = of_host.collect();
        steps.sort_unstable();
        Self { steps, found: BTreeMap::new() }
    }

    fn add(&mut self, launch_ns: u64, span: &Span) {
        let after = self.steps.partition_point(|step| step.0 <= launch_ns);
        if let Some(&(_, end_ns, number)) = after.checked_sub(1).map(|place| &self.steps[place])
            && launch_ns < end_ns
        {
            let window = self.found.entry(number).or_insert((span.start_ns, span.end_ns()));
            *window = (window.0.min(span.start_ns), window.1.max(span.end_ns()));
        }
    }

    fn marks(self) -> impl Iterator<Item = Mark> {
        let found = self.found.into_iter();
        found.map(|(number, (start_ns, end_ns))| Mark { number, is_host: false, start_ns, end_ns })
    }
}

/// Bytes of a transfer whose size is not in the file.
const UNKNOWN: u64 = u64::MAX;

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
        if let (Some(number), false, None) = (span.correlation, span.is_host, &span.comm) {
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

/// What a name of PyTorch, gloo or NCCL moves: `allreduce_`, `_reduce_scatter_base`, `AllGather_RING_LL`.
fn moved(name: &str) -> Option<(NodeType, Option<CollectiveType>)> {
    let plain: String = name.chars().filter(|&one| one != '_').collect::<String>().to_ascii_lowercase();
    let collectives = [
        ("allreduce", CollectiveType::AllReduce),
        ("allgather", CollectiveType::AllGather),
        ("alltoall", CollectiveType::AllToAll),
        ("reducescatter", CollectiveType::ReduceScatter),
        ("broadcast", CollectiveType::Broadcast),
        ("reduce", CollectiveType::Reduce),
        ("gather", CollectiveType::Gather),
        ("scatter", CollectiveType::Scatter),
        ("barrier", CollectiveType::Barrier),
    ];
    match collectives.iter().find(|(word, _)| plain.starts_with(word)) {
        Some(&(_, collective)) => Some((NodeType::Coll, Some(collective))),
        // NCCL's kernel `SendRecv` counts as one that sends, where its arguments do not say what it is.
        None if plain.starts_with("send") => Some((NodeType::Send, None)),
        None if plain.starts_with("recv") => Some((NodeType::Recv, None)),
        None => None,
    }
}

/// The name of an event that says it moves bytes, in a way that [`moved`] does not know.
fn unknown_transfer<'a>(level: Level, name: &'a str, args: &'a Args) -> Option<&'a str> {
    // What ProcessGroupNCCL records of a group and of its streams moves nothing.
    const NO_TRANSFER: &[&str] = &["", "wait", "init", "startCoalescing", "endCoalescing"];
    let backend = args.collective.as_deref().or(name.strip_prefix("gloo:"));
    match level {
        Level::Call => None,
        Level::Backend => backend.filter(|one| !NO_TRANSFER.contains(one)),
        Level::Kernel => name.starts_with("nccl").then_some(name),
    }
}

/// Bytes of an element, by PyTorch's names for types, in C++ and in NCCL's arguments.
fn element_bytes(name: &str) -> Option<u64> {
    let name = name.strip_prefix("c10::").unwrap_or(name).to_ascii_lowercase();
    Some(match name.as_str() {
        "unsigned char" | "signed char" | "char" | "byte" | "bool" => 1,
        _ if name.starts_with("float8") => 1,
        "half" | "bfloat16" | "short" | "short int" => 2,
        "float" | "int" => 4,
        "double" | "long" | "long int" | "complexfloat" | "complex<float>" => 8,
        "complexdouble" | "complex<double>" => 16,
        _ => return None,
    })
}

/// Bytes of the tensors among an operator's inputs, and how many of them are of unknown type; `None` if no shapes were
/// recorded.
///
/// # Arguments
/// `skipped`: inputs at the beginning that are no input but memory for the output.
fn input_bytes(dims: Option<&Value>, types: Option<&Value>, skipped: usize) -> Option<(u64, u64)> {
    let (dims, types) = (dims?.as_array()?, types?.as_array()?);
    let (mut bytes, mut assumed) = (0_u64, 0);
    for (shape, name) in dims.iter().zip(types).skip(skipped) {
        let name = name.as_str().unwrap_or("");
        let known = element_bytes(name);
        if known.is_none() && name != "TensorList" {
            continue;
        }
        assumed += u64::from(known.is_none());
        bytes = bytes.saturating_add(element_count(shape).saturating_mul(known.unwrap_or(ASSUMED_ELEMENT_BYTES)));
    }
    Some((bytes, assumed))
}

/// Whether the output of a collective is no memory of its input.
fn has_output(collective: CollectiveType) -> bool {
    use CollectiveType::{AllGather, AllToAll, Gather, ReduceScatter, ReduceScatterBlock, Scatter};
    matches!(collective, AllGather | AllToAll | Gather | ReduceScatter | ReduceScatterBlock | Scatter)
}

/// Elements of a shape, or of a list of shapes.
fn element_count(shape: &Value) -> u64 {
    let Some(parts) = shape.as_array() else { return 0 };
    if parts.iter().any(Value::is_array) {
        return parts.iter().map(element_count).fold(0, u64::saturating_add);
    }
    parts.iter().filter_map(Value::as_u64).fold(1, u64::saturating_mul)
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
