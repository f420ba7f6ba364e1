//! The packet engine for traffic that repeats itself: what has been simulated once is not simulated again.
//!
//! Where the network is quiet and all flows are complete, its [`State`] is compared with those of all such moments
//! before. If it is a state seen before, and the same flows are started at the same distances in time, the network does
//! what it did then; so the answers are given that were given then, and the engine rests. Nothing is assumed of
//! transports: one that resets when idle is back in its state after every exchange, one whose window goes on growing
//! after a cycle of iterations, and one that never comes back is simulated from the first packet to the last.
//!
//! ```text
//! moments   0 --a--> 1 --b--> 2 --a--> 3 --b--> 1 --a--> 2 ...      states by number, episodes by letter
//! engine    runs     runs     runs     runs     rests at 1
//! ```
//!
//! An episode goes from one such moment to the next. Those that have been answered and not simulated form a way through
//! the states, from where the engine rests. A loop in it changes nothing: it is dropped, and only its totals are kept.
//! When something is started that has not been seen, the engine goes the way that is left. So no episode is simulated
//! more often than without a memory.
//!
//! Some of what a state would have to tell hardly ever comes again, and has no effect: by how much a congestion window
//! is larger than its sender's own, bytes of parts of segments, and, since the engine's clock is behind once a loop has
//! been dropped, how round trips were rounded to ticks of timestamps. States leave it out as long as that is so
//! ([`Omits`]). Should it have an effect after such a loop has been dropped, everything since the first one is simulated
//! once more, and nothing is looked for after that.

use super::PacketEngine;
use super::state::{Omits, State};
use super::totals::Totals;
use crate::topology::PortId;
use crate::trace::{Counters, PortCounters};
use crate::units::Time;
use crate::{Band, Bytes, Completion, Flow, FlowId, Network};
use std::collections::BTreeMap;

/// Memory in bytes that states and episodes may take: with more, nothing is looked for any more.
const BYTES_MAX: usize = 256 << 20;
/// Episodes of one state that are compared with a new one: where each is unlike all others, none will come again.
const ALIKE_MAX: usize = 64;

/// The packet engine, with a memory.
#[derive(Debug)]
pub struct Recall {
    engine: PacketEngine,
    /// Of the caller.
    now: Time,
    started_count: u64,
    /// Of the loops that have been dropped.
    dropped: Dropped,
    memory: Option<Box<Memory>>,
}

/// What the engine has not done, because it had done it before.
#[derive(Clone, Debug, Default)]
struct Dropped {
    time: Time,
    flow_count: u64,
    totals: Totals,
}

/// What has been seen.
#[derive(Debug, Default)]
struct Memory {
    kinds: Kinds,
    /// Each with a number, from 0 on.
    states: BTreeMap<State, u32>,
    episodes: Vec<Episode>,
    /// Of each state, the episodes that begin with it.
    after: Vec<Vec<u32>>,
    /// Of each state.
    omits: Vec<Omits>,
    bytes: usize,
    present: Present,
    /// The engine rests at an earlier moment: the way and the present episode are yet to be simulated.
    rests: bool,
    /// The state in which it does.
    rest: u32,
    /// Episodes since then, and how long each took.
    way: Vec<(u32, Time)>,
    /// Of each state, which episode of the way leads to it, if that one does.
    place: Vec<usize>,
    /// Episodes that begin as the present one has begun, while the engine rests.
    alike: Vec<u32>,
    kept: Option<Box<Kept>>,
    /// States tell odd bytes up to that number of episodes: those had an effect not long ago.
    tells_odd_bytes_until: usize,
}

/// From one moment at which all flows are complete to a later one.
#[derive(Debug)]
struct Episode {
    to: u32,
    lasts: Lasts,
    seen: Seen,
    totals: Totals,
}

/// When an episode ends in its last state: that long after it began.
#[derive(Clone, Copy, Debug)]
enum Lasts {
    /// At no other time.
    Exactly(Time),
    /// Then or later.
    AtLeast(Time),
}

/// What was started, and what was complete when. Times count from the beginning of the episode, flows from its first.
#[derive(Clone, Debug, Default)]
struct Seen {
    starts: Vec<Start>,
    ends: Vec<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    at: Time,
    /// How many flows were complete.
    after: u32,
    /// Number of a flow that is the same in all.
    kind: u32,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at: Time,
    /// Which of the starts.
    flow: u32,
}

/// All flows that differ in anything, each with a number: there are few, and they come again and again.
#[derive(Debug, Default)]
struct Kinds {
    numbers: BTreeMap<Flow, u32>,
    flows: Vec<Flow>,
}

impl Kinds {
    fn number(&mut self, flow: Flow) -> u32 {
        *self.numbers.entry(flow).or_insert_with(|| {
            self.flows.push(flow);
            (self.flows.len() - 1) as u32
        })
    }

    fn bytes(&self) -> usize {
        3 * size_of_val(&*self.flows)
    }
}

/// The episode under way.
#[derive(Debug, Default)]
struct Present {
    /// The state that it began with, unless that is not known.
    from: Option<u32>,
    began: Time,
    first_flow: u64,
    seen: Seen,
    /// Totals of the engine when it began, and what [`super::host::Hosts::effects`] was.
    before: Totals,
    effects: (u64, u64),
    /// It has something that is not written down.
    is_odd: bool,
}

/// What comes next in an episode.
enum Next {
    Start(Time),
    End(Time),
    Nothing,
}

/// The engine when the first loop was dropped whose state left something out, and the episodes from then on.
#[derive(Debug)]
struct Kept {
    engine: PacketEngine,
    dropped: Dropped,
    since: Vec<(u32, Time)>,
    /// What the states did not tell at which loops were dropped.
    omits: Omits,
}

impl Present {
    fn start(&self, now: Time, kind: u32) -> Start {
        Start { at: now - self.began, after: self.seen.ends.len() as u32, kind }
    }
}

impl Lasts {
    fn fits(self, took: Time) -> bool {
        match self {
            Self::Exactly(time) => took == time,
            Self::AtLeast(time) => took >= time,
        }
    }
}

impl Seen {
    fn bytes(&self) -> usize {
        size_of_val(&*self.starts) + size_of_val(&*self.ends)
    }

    /// Nothing is under way.
    fn is_complete(&self) -> bool {
        self.starts.len() == self.ends.len()
    }

    /// What follows what `other` has seen, which began alike.
    fn next(&self, other: &Self) -> Next {
        let (starts, ends) = (other.starts.len(), other.ends.len());
        match (self.starts.get(starts), self.ends.get(ends)) {
            (Some(start), _) if start.after as usize == ends => Next::Start(start.at),
            (_, Some(end)) => Next::End(end.at),
            _ => Next::Nothing,
        }
    }

    /// Lets `engine` do the same once more, and come to the end of it `took` from now.
    fn repeat(&self, kinds: &Kinds, engine: &mut PacketEngine, took: Time) {
        let (began, mut done) = (engine.now(), Vec::new());
        let mut see = |engine: &mut PacketEngine, count: usize| {
            while done.len() < count {
                engine.advance(Time::MAX, &mut done);
            }
        };
        for start in &self.starts {
            see(engine, start.after as usize);
            go_on(engine, began + start.at);
            engine.start(kinds.flows[start.kind as usize]);
        }
        see(engine, self.ends.len());
        debug_assert!(done.iter().zip(&self.ends).all(|(now, then)| now.received == began + then.at));
        go_on(engine, took.later(began));
    }
}

/// Lets time go on while nothing completes.
fn go_on(engine: &mut PacketEngine, until: Time) {
    let mut done = Vec::new();
    while engine.now() < until {
        engine.advance(until, &mut done);
    }
    assert!(done.is_empty() && engine.now() == until, "the same state is followed by the same");
}

impl Memory {
    /// The number of a state.
    fn number(&mut self, state: State) -> u32 {
        let count = self.after.len() as u32;
        self.bytes += state.bytes();
        let omits = state.omits;
        let number = *self.states.entry(state).or_insert(count);
        if number == count {
            self.after.push(Vec::new());
            self.omits.push(omits);
            self.place.push(0);
        }
        number
    }

    /// The present episode of a running engine has come to its end in `state`.
    fn end_episode(&mut self, engine: &mut PacketEngine, state: State, now: Time, started_count: u64) {
        let took = now - self.present.began;
        let quiet_ps = engine.now().ps().checked_sub(engine.day_end_ps()).filter(|_| state.is_lasting);
        // Flows of no bytes send nothing: it may have been quiet before the episode began.
        let lasts = quiet_ps
            .map_or(Lasts::Exactly(took), |quiet_ps| Lasts::AtLeast(took.saturating_since(Time::from_ps(quiet_ps))));
        let (to, totals) = (self.number(state), Totals::of(engine));
        let next = Present { from: Some(to), began: now, first_flow: started_count, ..Present::default() };
        let Present { from, mut seen, before, effects, is_odd, .. } = std::mem::replace(&mut self.present, next);
        if let Some(from) = from {
            let omits = self.omits[from as usize];
            // What was not told at the beginning does not decide what is told at the end.
            let tells_more = omits.or(self.omits[to as usize]) != self.omits[to as usize];
            let is_odd = is_odd || tells_more || engine.reveals(omits, effects);
            if engine.reveals(Omits { odd_bytes: omits.odd_bytes, ..Omits::default() }, effects) {
                // Longer each time.
                self.tells_odd_bytes_until = 2 * self.episodes.len() + 16;
            }
            let episode = self.episodes.len() as u32;
            seen.starts.shrink_to_fit();
            seen.ends.shrink_to_fit();
            self.bytes += seen.bytes() + size_of::<Episode>() + size_of_val(&*totals.ports);
            self.episodes.push(Episode { to, lasts, seen, totals: totals.since(&before) });
            let after = &mut self.after[from as usize];
            if !is_odd && after.len() < ALIKE_MAX {
                after.push(episode);
            }
            if let Some(kept) = &mut self.kept {
                kept.since.push((episode, took));
            }
        }
        self.present.before = totals;
        self.present.effects = engine.hosts.effects();
        self.rest = to;
    }

    /// The present episode has turned out to be a known one, at its end; the engine rests.
    fn pass(&mut self, engine: &PacketEngine, episode: u32, now: Time, started_count: u64, dropped: &mut Dropped) {
        let took = now - self.present.began;
        let to = self.episodes[episode as usize].to;
        self.way.push((episode, took));
        if let Some(kept) = &mut self.kept {
            kept.since.push((episode, took));
        }
        self.present = Present { from: Some(to), began: now, first_flow: started_count, ..Present::default() };
        let place = self.place[to as usize];
        let is_on_way = self.way.get(place).is_some_and(|&(earlier, _)| self.episodes[earlier as usize].to == to);
        let loop_begins = if to == self.rest {
            0
        } else if is_on_way && place + 1 < self.way.len() {
            place + 1
        } else {
            self.place[to as usize] = self.way.len() - 1;
            return;
        };
        let omits = self.omits[to as usize];
        match &mut self.kept {
            Some(kept) => kept.omits = kept.omits.or(omits),
            None if omits == Omits::default() => {}
            None => {
                let (engine, dropped, since) = (engine.clone(), dropped.clone(), self.way.clone());
                self.kept = Some(Box::new(Kept { engine, dropped, since, omits }));
            }
        }
        for (episode, took) in self.way.drain(loop_begins..) {
            let episode = &self.episodes[episode as usize];
            dropped.time += took;
            dropped.flow_count += episode.seen.starts.len() as u64;
            dropped.totals.add(&episode.totals);
        }
    }

    /// Whether states tell odd bytes. Not once a loop has been dropped without them: the engine's are others.
    fn tells_odd_bytes(&self) -> bool {
        let are_known = self.kept.as_ref().is_none_or(|kept| !kept.omits.odd_bytes);
        are_known && self.episodes.len() < self.tells_odd_bytes_until
    }

    /// Whether `start` is known to come next; the engine rests.
    fn expects(&mut self, start: &Start) -> bool {
        let next = self.present.seen.starts.len();
        let comes = |episode: &u32| self.episodes[*episode as usize].seen.starts.get(next) == Some(start);
        let alike: Vec<u32> = self.alike.iter().copied().filter(comes).collect();
        let is_known = !alike.is_empty();
        if is_known {
            self.alike = alike;
        }
        is_known
    }

    /// The episode that the present one is, if it ends `took` after it began.
    fn ended(&self, took: Time) -> Option<u32> {
        let ends = |episode: &u32| {
            let Episode { seen, lasts, .. } = &self.episodes[*episode as usize];
            matches!(seen.next(&self.present.seen), Next::Nothing) && lasts.fits(took)
        };
        self.alike.iter().copied().find(ends)
    }

    /// Begins to rest, if an episode from the present state begins with `start`.
    fn rest(&mut self, start: &Start) -> bool {
        let Some(from) = self.present.from.filter(|_| self.present.seen.starts.is_empty()) else { return false };
        let begins = |episode: &u32| self.episodes[*episode as usize].seen.starts.first() == Some(start);
        self.alike = self.after[from as usize].iter().copied().filter(begins).collect();
        let is_known = !self.alike.is_empty();
        self.rests |= is_known;
        is_known
    }

    /// What is complete next, and before `until`. The time to which the caller may go on, and those flows; `None` if
    /// that has not been seen.
    fn answer(&mut self, until: Time) -> Option<(Time, Vec<Completion>)> {
        let Self { episodes, alike, present, kinds, .. } = self;
        let until = until.earlier(present.began);
        let next = |episode: &u32| episodes[*episode as usize].seen.next(&present.seen);
        let end = alike.iter().find_map(|episode| match next(episode) {
            Next::End(at) => Some((*episode, at)),
            Next::Start(_) | Next::Nothing => None,
        });
        if let Some((episode, at)) = end.filter(|&(_, at)| at < until) {
            alike.retain(|episode| matches!(next(episode), Next::End(_)));
            let ends = &episodes[episode as usize].seen.ends[present.seen.ends.len()..];
            let before = present.seen.ends.len();
            present.seen.ends.extend(ends.iter().take_while(|end| end.at == at));
            let complete = present.seen.ends[before..].iter().map(|end| {
                let start = present.seen.starts[end.flow as usize];
                let (flow, stream) = (FlowId(end.flow.into()), kinds.flows[start.kind as usize].stream);
                Completion { flow, stream, began: start.at, received: at }
            });
            return Some((at, complete.collect()));
        }
        let is_known = |at: &Time| *at >= until;
        let start = alike.iter().any(|episode| matches!(next(episode), Next::Start(at) if is_known(&at)));
        if end.is_none() && !start && !present.seen.is_complete() {
            return None;
        }
        alike.retain(|episode| !matches!(next(episode), Next::Start(at) if !is_known(&at)));
        Some((until, Vec::new()))
    }
}

impl Recall {
    /// With a memory, for traffic that may repeat itself; without, it is the engine and no more.
    pub fn new(engine: PacketEngine, remembers: bool) -> Self {
        let (now, memory) = (engine.now(), remembers.then(Box::default));
        Self { engine, now, started_count: 0, dropped: Dropped::default(), memory }
    }

    /// The engine itself, for an observer: from now on every packet is simulated.
    pub fn engine(&mut self) -> &mut PacketEngine {
        self.forget();
        &mut self.engine
    }

    /// Totals so far, those of what was answered from memory included.
    pub fn counters(&mut self) -> Counters {
        self.catch_up();
        self.dropped.totals.counters_with(&self.engine)
    }

    /// Totals of one port so far, in the same way.
    pub fn port_counters(&mut self, port: PortId) -> PortCounters {
        self.catch_up();
        self.dropped.totals.port_counters_with(&mut self.engine, port)
    }

    /// Packet hops of what was answered from memory alone.
    pub fn recalled_hops(&self) -> u64 {
        self.dropped.totals.counters.packet_hops
    }

    fn on_engine(&self, at: Time) -> Time {
        at.earlier(self.dropped.time)
    }

    /// The engine comes to the present.
    fn catch_up(&mut self) {
        let until = self.on_engine(self.now);
        let Some(memory) = self.memory.as_mut().filter(|memory| memory.rests) else { return };
        for (episode, took) in memory.way.drain(..) {
            memory.episodes[episode as usize].seen.repeat(&memory.kinds, &mut self.engine, took);
        }
        memory.rests = false;
        memory.alike.clear();
        memory.present.before = Totals::of(&mut self.engine);
        memory.present.effects = self.engine.hosts.effects();
        let took = until.earlier(self.engine.now());
        memory.present.seen.repeat(&memory.kinds, &mut self.engine, took);
        if self.is_revealed() {
            self.simulate_again();
        }
    }

    /// Whether something has had an effect that was not told of a state at which a loop was dropped: the engine is not
    /// what it would have been.
    fn is_revealed(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| {
            let kept = memory.kept.as_ref();
            kept.is_some_and(|kept| self.engine.reveals(kept.omits, memory.present.effects))
        })
    }

    /// Nothing is looked for any more.
    fn forget(&mut self) {
        self.catch_up();
        if self.memory.as_ref().is_some_and(|memory| memory.kept.is_some()) {
            self.simulate_again();
        }
        self.memory = None;
    }

    /// Everything since the first loop that was dropped is simulated, up to the present.
    #[cold]
    fn simulate_again(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let Memory { kinds, episodes, present, kept: Some(kept), .. } = *memory else { return };
        self.engine = kept.engine;
        self.dropped = kept.dropped;
        for (episode, took) in kept.since {
            episodes[episode as usize].seen.repeat(&kinds, &mut self.engine, took);
        }
        let took = self.on_engine(self.now).earlier(self.engine.now());
        present.seen.repeat(&kinds, &mut self.engine, took);
    }

    /// A flow of that number is about to be started. Whether what follows is known.
    fn recalls(&mut self, kind: u32) -> bool {
        let Some(memory) = &mut self.memory else { return false };
        let first = Start { at: Time::ZERO, after: 0, kind };
        if memory.rests {
            if memory.expects(&memory.present.start(self.now, kind)) {
                return true;
            }
            let took = self.now - memory.present.began;
            if let Some(episode) = memory.ended(took) {
                memory.pass(&self.engine, episode, self.now, self.started_count, &mut self.dropped);
                if memory.rest(&first) {
                    return true;
                }
            }
            self.catch_up();
        }
        let Some(memory) = &mut self.memory else { return false };
        let bytes = memory.bytes + memory.present.seen.bytes() + memory.kinds.bytes();
        if bytes + self.engine.hosts.state_bytes() > BYTES_MAX {
            self.forget();
            return false;
        }
        let is_known = memory.present.from.is_some() && memory.present.seen.starts.is_empty();
        if memory.present.seen.is_complete()
            && !is_known
            && let Some(state) = self.engine.state(memory.tells_odd_bytes())
        {
            memory.end_episode(&mut self.engine, state, self.now, self.started_count);
            if memory.rest(&first) {
                return true;
            }
        }
        false
    }
}

impl Network for Recall {
    fn now(&self) -> Time {
        self.now
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        let kind = self.memory.as_mut().map_or(0, |memory| memory.kinds.number(flow));
        let is_recalled = self.recalls(kind);
        if !is_recalled {
            self.engine.start(flow);
        }
        if let Some(memory) = &mut self.memory {
            let start = memory.present.start(self.now, kind);
            memory.present.is_odd |= !is_recalled && self.engine.has_completed();
            memory.present.seen.starts.push(start);
        }
        self.started_count += 1;
        FlowId(self.started_count - 1)
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        if let Some(memory) = self.memory.as_mut().filter(|memory| memory.rests) {
            let Present { began, first_flow, .. } = memory.present;
            if let Some((at, ends)) = memory.answer(until) {
                self.now = at.later(began);
                done.extend(ends.into_iter().map(|end| end.later(began, first_flow)));
                return;
            }
            self.catch_up();
        }
        let first = done.len();
        self.engine.advance(self.on_engine(until), done);
        if self.is_revealed() {
            done.truncate(first);
            self.simulate_again();
            self.engine.advance(self.on_engine(until), done);
        }
        self.now = self.engine.now().later(self.dropped.time);
        for completion in &mut done[first..] {
            *completion = completion.later(self.dropped.time, self.dropped.flow_count);
            if let Some(memory) = &mut self.memory {
                let present = &mut memory.present;
                let (at, flow) = (self.now - present.began, (completion.flow.0 - present.first_flow) as u32);
                let began = present.began + present.seen.starts[flow as usize].at;
                present.is_odd |= completion.began != began || completion.received != self.now;
                present.seen.ends.push(End { at, flow });
            }
        }
    }

    /// Of an engine that does not rest: what may repeat itself has no flows on connections of their own.
    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        let outside = |(flow, bytes): (FlowId, Bytes)| (FlowId(flow.0 + self.dropped.flow_count), bytes);
        self.engine.remaining().into_iter().map(outside).collect()
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        self.forget();
        self.engine.set_band(stream, band);
    }

    /// Without a memory only.
    fn fork(&self) -> Option<Box<dyn Network>> {
        if self.memory.is_none() { self.engine.fork() } else { None }
    }
}
