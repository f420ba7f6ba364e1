//! The packet engine within an accuracy: stretches in which nothing changes are skipped.
//!
//! Time is measured in windows. If every flow under way has moved the same number of bytes in each of the last windows,
//! and nothing of what decides its rate is about to change, the caller's clock jumps. Every flow is given the bytes that
//! it would have moved. No packet, timer or sequence number moves: the bytes are taken from the end of what the flow has
//! still to send. So the engine's clock falls behind the caller's, and the last packets of every flow are simulated.
//!
//! ```text
//! caller   |--simulated--|~~~~~~~~~~~~ skipped ~~~~~~~~~~~|--simulated--| flow ends
//! engine   |--simulated--|--simulated--| flow ends
//! ```
//!
//! A flow counts as steady if its mean rate over the windows is known within half of the accuracy (two standard errors),
//! and if one of these holds:
//!
//! - It is alone on a link that is always busy, and stays busy when congestion control reduces the window.
//! - Its sender's own limit bounds what it has under way, and nothing was lost or marked.
//! - Congestion control reduced its window in each of the windows: its rate is the mean over many such cycles.
//!
//! A flow that grows and has not met a loss or mark yet is not steady, however even its rate is: a change is due. So is one
//! if a queue would be full before the stretch ends.
//!
//! Windows become longer as long as flows are not steady. They begin again when a flow starts or ends. All flows of the
//! network are steady at once, or nothing is skipped.

use super::PacketEngine;
use super::host::Progress;
use super::tcp::sender::Sender;
use super::totals::Totals;
use crate::topology::PortId;
use crate::trace::{Counters, PortCounters};
use crate::units::Time;
use crate::{Band, Bytes, Completion, Flow, FlowId, Network};
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

/// Windows whose rates are compared.
const WINDOWS: usize = 8;
/// Windows after which they are joined in pairs, if flows are not steady.
const WINDOWS_MAX: usize = 2 * WINDOWS;
/// Times that a window's length is skipped at most for it: what was measured is not trusted for longer.
const SKIP_MOST: u64 = 64;
/// Packet hops that a stretch must have to be skipped: a skip disturbs what follows, and these take about 5 ms to
/// simulate.
const HOPS_LEAST: u64 = 1 << 17;
/// Packet hops skipped, over those simulated, below which stretches are not worth it.
const SKIPPED_LEAST: f64 = 0.125;
/// Reductions of a congestion window in all windows together, if its rate is the mean over them.
const REDUCTIONS_LEAST: u64 = 16;

/// The packet engine, with steady stretches skipped.
#[derive(Debug)]
pub struct Steady {
    engine: PacketEngine,
    /// Part by which a rate may be off.
    accuracy: f64,
    /// Of the caller.
    now: Time,
    /// How far the caller's clock is ahead of the engine's.
    skipped: Time,
    /// How far it was when a flow was started; absent if it was not.
    ahead: BTreeMap<FlowId, Time>,
    under_way: u64,
    /// What would have been counted in the time that was skipped.
    added: Totals,
    /// The shortest window, and the present one.
    least: Time,
    window: Time,
    /// When the present window ends, on the engine's clock.
    due: Time,
    /// At the ends of windows.
    seen: VecDeque<Seen>,
    /// Time that may be skipped, in all, for what has been simulated.
    credit: Time,
    /// What has been skipped since a flow started or ended, or reduced its window.
    stretched: Time,
    /// Bytes that each flow is to be given with the next skip, because only whole pairs of segments are skipped.
    owed: Vec<f64>,
}

/// What was seen at the end of a window.
#[derive(Debug)]
struct Seen {
    at: Time,
    /// By flow under way.
    flows: Vec<Sight>,
    /// Packets that wait, by port.
    queues: Vec<u32>,
    totals: Totals,
}

#[derive(Clone, Copy, Debug)]
struct Sight {
    arrived: u64,
    reductions: u64,
    /// It repairs no loss.
    is_open: bool,
}

/// What may be skipped.
struct Stretch {
    lasts: Time,
    /// Bytes per picosecond of each flow.
    rates: Vec<f64>,
}

impl Steady {
    /// Rates may be off by `ppm` millionths. Where switches heed announcements of bursts, nothing is skipped.
    pub fn new(engine: PacketEngine, ppm: NonZeroU32) -> Self {
        let accuracy = f64::from(ppm.get()) * 1e-6;
        let segment_ps = engine.ports().map(super::port::Port::segment_ps).min().unwrap_or(1);
        // All windows together have so many segments that a pair more or less is within half of the accuracy.
        let segments = (0.5 / accuracy).ceil().max(4.0) as u64;
        let (now, least) = (engine.now(), Time::from_ps(segments * segment_ps));
        Self {
            engine,
            accuracy,
            now,
            skipped: Time::ZERO,
            ahead: BTreeMap::new(),
            under_way: 0,
            added: Totals::default(),
            least,
            window: least,
            due: now + least,
            seen: VecDeque::new(),
            credit: Time::ZERO,
            stretched: Time::ZERO,
            owed: Vec::new(),
        }
    }

    /// Totals so far, with what would have been counted in the time that was skipped.
    pub fn counters(&self) -> Counters {
        self.added.counters_with(&self.engine)
    }

    /// Totals of one port so far, in the same way.
    pub fn port_counters(&mut self, port: PortId) -> PortCounters {
        self.added.port_counters_with(&mut self.engine, port)
    }

    /// Simulated time that was skipped.
    pub fn skipped(&self) -> Time {
        self.skipped
    }

    /// Packet hops that were not simulated.
    pub fn skipped_hops(&self) -> u64 {
        self.added.counters.packet_hops
    }

    /// The measurement begins again.
    fn begin(&mut self) {
        self.seen.clear();
        self.owed.clear();
        self.window = self.least;
        self.due = self.engine.now() + self.least;
        self.credit = Time::ZERO;
        self.stretched = Time::ZERO;
    }

    /// A window is over.
    fn look(&mut self) {
        let sight = |flow: Progress<'_>| Sight {
            arrived: flow.arrived,
            reductions: flow.sender.reductions,
            is_open: flow.sender.is_open(),
        };
        let flows: Vec<Sight> = self.engine.hosts.progress().map(sight).collect();
        let totals = Totals::of(&mut self.engine);
        let queues = self.engine.ports().map(|port| port.waiting().0).collect();
        let reductions = |flows: &[Sight]| flows.iter().map(|flow| flow.reductions).sum::<u64>();
        if self.seen.back().is_some_and(|last| reductions(&last.flows) != reductions(&flows)) {
            self.stretched = Time::ZERO;
        }
        self.seen.push_back(Seen { at: self.engine.now(), flows, queues, totals });
        self.credit += Time::from_ps(self.window.ps() * SKIP_MOST);
        if self.seen.len() > WINDOWS_MAX && self.window.ps() < Time::MAX.ps() / 1024 {
            let mut is_kept = false;
            self.seen.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.window = self.window + self.window;
        }
        self.due = self.engine.now() + self.window;
    }

    /// What may be skipped from now on, if a window has just ended.
    fn stretch(&self, until: Time) -> Option<Stretch> {
        let last = self.seen.back().filter(|last| last.at == self.engine.now() && self.seen.len() > WINDOWS)?;
        let windows = self.seen.len() - 1 - WINDOWS;
        let first = &self.seen[windows];
        let has_timeouts = first.totals.counters.timeouts != last.totals.counters.timeouts;
        // What is due at an instant of the engine would be late by what is skipped.
        let is_due = self.engine.hosts.awaits_timers() || self.engine.scheduled.next_at().is_some();
        if self.engine.pcn.is_some() || has_timeouts || is_due {
            return None;
        }
        let mut lasts = until - self.now;
        let segment = f64::from(self.engine.config.tcp.segment_bytes);
        let span_ps = (last.at - first.at).ps() as f64;
        let mut rates = Vec::with_capacity(last.flows.len());
        for (index, flow) in self.engine.hosts.progress().enumerate() {
            let rate = self.steady_bytes(windows, index)? / span_ps;
            // The end of a flow is simulated, from a round trip and a window before its last packet is sent.
            let flight = flow.sender.window().flight.0 as f64;
            let end = (flow.unsent? as f64 - flight) - rate * self.least.ps() as f64 - 2.0 * segment;
            lasts = lasts.min(Time::from_ps((end / rate).max(0.0) as u64));
            rates.push(rate);
        }
        // A part of a stretch in which something changes would be lived through twice.
        let is_whole = self.is_worth(lasts, first, last) && lasts <= self.settled(first, last)?;
        lasts = lasts.min(self.credit);
        (is_whole && lasts.ps() >= 4 * self.window.ps()).then_some(Stretch { lasts, rates })
    }

    /// Whether a stretch gains enough to disturb what follows. So a run of many short flows is simulated exactly: in it, one
    /// packet more or less decides which flows lose packets.
    fn is_worth(&self, lasts: Time, first: &Seen, last: &Seen) -> bool {
        let hops = |seen: &Seen| seen.totals.counters.packet_hops;
        let ratio = lasts.ps() as f64 / (last.at - first.at).ps() as f64;
        let more = (hops(last) - hops(first)) as f64 * ratio;
        more >= HOPS_LEAST as f64 && self.skipped_hops() as f64 + more >= SKIPPED_LEAST * hops(last) as f64
    }

    /// Bytes that a flow has moved in the last windows, if it was about the same in each.
    fn steady_bytes(&self, first: usize, flow: usize) -> Option<f64> {
        let arrived = |index: usize| self.seen[index].flows[flow].arrived as f64;
        let moved = arrived(first + WINDOWS) - arrived(first);
        let mean = moved / WINDOWS as f64;
        let squares: f64 = (first..first + WINDOWS)
            .map(|index| {
                let off = arrived(index + 1) - arrived(index) - mean;
                off * off
            })
            .sum();
        let error = 2.0 * (squares / (WINDOWS * (WINDOWS - 1)) as f64).sqrt();
        // Bytes are acknowledged in pairs of segments.
        let pair = 2.0 * f64::from(self.engine.config.tcp.segment_bytes);
        (error <= mean * self.accuracy / 2.0 && pair <= moved * self.accuracy / 2.0).then_some(moved)
    }

    /// How long nothing that decides a flow's rate changes; `None` if something is changing.
    fn settled(&self, first: &Seen, last: &Seen) -> Option<Time> {
        let paths = self.engine.hosts.progress();
        let paths: Vec<Vec<PortId>> =
            paths.map(|flow| self.engine.path(flow.src_port, &flow.sender.template).collect()).collect();
        let mut sharers = vec![0_u32; self.engine.map.ends.len()];
        paths.iter().flatten().for_each(|port| sharers[port.0 as usize] += 1);
        let busy_ps = (1.0 - self.accuracy / 2.0) * (last.at - first.at).ps() as f64;
        let is_busy = |port: &PortId| {
            let busy = |seen: &Seen| seen.totals.ports[port.0 as usize].busy;
            (busy(last) - busy(first)).ps() as f64 >= busy_ps
        };
        let segment = u64::from(self.engine.config.tcp.segment_bytes);
        // Packets that a queue has left when congestion control reduces the window.
        let spare = |port: &PortId, sender: &Sender| {
            let queue = u64::from(last.queues[port.0 as usize]) * segment;
            let left = sender.ssthresh.saturating_add(queue).checked_sub(sender.window().flight.0)?;
            (sender.cwnd >= sender.ssthresh).then_some(left as f64 / segment as f64)
        };
        let sights = || self.seen.iter().skip(self.seen.len() - 1 - WINDOWS);
        let mut windows = f64::MAX;
        // A queue may grow where it is the flow's own, or where marks and losses are what keeps it.
        let mut may_grow = vec![false; self.engine.map.ends.len()];
        for (index, (flow, path)) in self.engine.hosts.progress().zip(&paths).enumerate() {
            let reductions = |seen: &Seen| seen.flows[index].reductions;
            let reduced = reductions(last) - reductions(first);
            if reduced > 0 {
                let mut pairs = sights().zip(sights().skip(1));
                if reduced < REDUCTIONS_LEAST || pairs.any(|(before, after)| reductions(after) == reductions(before)) {
                    return None;
                }
                path.iter().for_each(|port| may_grow[port.0 as usize] = true);
                continue;
            }
            if sights().any(|seen| !seen.flows[index].is_open) {
                return None;
            }
            if flow.sender.is_at_limit() {
                continue;
            }
            let is_alone = |port: &&PortId| sharers[port.0 as usize] == 1 && is_busy(port);
            let links = path.iter().filter(is_alone).filter_map(|port| Some((port, spare(port, flow.sender)?)));
            let (port, spare) = links.max_by(|left, right| left.1.total_cmp(&right.1))?;
            may_grow[port.0 as usize] = true;
            windows = windows.min(spare / self.slope(*port).0.min(0.0).abs());
        }
        for path in &paths {
            for (hop, port) in path.iter().enumerate() {
                if !may_grow[port.0 as usize] {
                    let room = self.engine.queue_limit(hop == 0) - f64::from(last.queues[port.0 as usize]);
                    windows = windows.min(room / self.slope(*port).1.max(0.0));
                }
            }
        }
        let lasts = Time::from_ps((windows * self.window.ps() as f64) as u64);
        Some(lasts.saturating_since(self.stretched))
    }

    /// The least and the most that a queue may grow per window, in packets: a line through what was seen, two standard
    /// errors off.
    fn slope(&self, port: PortId) -> (f64, f64) {
        let queues =
            || self.seen.iter().skip(self.seen.len() - 1 - WINDOWS).map(|seen| f64::from(seen.queues[port.0 as usize]));
        let count = (WINDOWS + 1) as f64;
        let mean = queues().sum::<f64>() / count;
        let places = || (0..).map(|index: u32| f64::from(index) - WINDOWS as f64 / 2.0);
        let squares: f64 = places().take(WINDOWS + 1).map(|place| place * place).sum();
        let slope = queues().zip(places()).map(|(queue, place)| (queue - mean) * place).sum::<f64>() / squares;
        let off = queues().zip(places()).map(|(queue, place)| {
            let off = queue - mean - slope * place;
            off * off
        });
        let error = 2.0 * (off.sum::<f64>() / (count - 2.0) / squares).sqrt();
        (slope - error, slope + error)
    }

    /// The caller's clock jumps.
    fn skip(&mut self, stretch: &Stretch) {
        let (Some(last), Some(first)) = (self.seen.back(), self.seen.iter().rev().nth(WINDOWS)) else { return };
        let totals = last.totals.since(&first.totals).scaled(stretch.lasts, last.at - first.at);
        self.added.add(&totals);
        // Whole pairs of segments, so that the receiver goes on to acknowledge every second one.
        let tcp = &self.engine.config.tcp;
        let pair = f64::from(tcp.segment_bytes) * f64::from(tcp.delayed_ack_segments.max(1));
        let connections: Vec<u32> = self.engine.hosts.progress().map(|flow| flow.connection).collect();
        self.owed.resize(connections.len(), 0.0);
        for ((connection, rate), owed) in connections.into_iter().zip(&stretch.rates).zip(&mut self.owed) {
            *owed += rate * stretch.lasts.ps() as f64;
            let pairs = (*owed / pair).floor().max(0.0);
            *owed -= pairs * pair;
            self.engine.hosts.skip(connection, (pairs * pair) as u64);
        }
        self.skipped += stretch.lasts;
        self.now += stretch.lasts;
        self.credit = self.credit - stretch.lasts;
        self.stretched += stretch.lasts;
    }

    fn on_engine(&self, at: Time) -> Time {
        at.earlier(self.skipped)
    }

    /// The caller's clock follows the engine's.
    fn follow(&mut self) {
        self.now = self.engine.now().later(self.skipped);
    }
}

impl Network for Steady {
    fn now(&self) -> Time {
        self.now
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        let id = self.engine.start(flow);
        self.under_way += 1;
        if self.skipped > Time::ZERO {
            self.ahead.insert(id, self.skipped);
        }
        self.begin();
        id
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        let before = done.len();
        loop {
            let is_measured = self.under_way > 0;
            let end = self.on_engine(until);
            let target = if is_measured { end.min(self.due) } else { end };
            self.engine.advance(target, done);
            self.follow();
            if done.len() > before {
                for completion in &mut done[before..] {
                    // What began before a skip began when the clocks were closer.
                    let began = completion.began + self.ahead.remove(&completion.flow).unwrap_or(Time::ZERO);
                    *completion = Completion { began, received: completion.received + self.skipped, ..*completion };
                    self.under_way -= 1;
                }
                self.begin();
                return;
            }
            if self.engine.now() < target || !is_measured {
                return;
            }
            if target == self.due {
                self.look();
            }
            if let Some(stretch) = self.stretch(until) {
                self.skip(&stretch);
            }
            if self.now == until {
                return;
            }
        }
    }

    /// What is skipped is taken from the end of a flow, so what is left is the engine's.
    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        self.engine.remaining()
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        self.engine.set_band(stream, band);
        self.begin();
    }
}
