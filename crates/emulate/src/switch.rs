//! Forwards real packets through a [`Forwarder`] in real time.
//!
//! Queues are computed from the arrival times that the kernel has stamped, not from the times at which the switch reads
//! the packets. Decisions are [`HOLD_BACK_NS`] behind the clock, so that packets are processed in the order of their
//! stamps. The first link of each packet has a longer delay than that, so a packet can still be sent at its computed
//! time.
//!
//! ```text
//! stamp           stamp + hold-back              computed time
//! arrival ───────►│ decided                       │ sent; later by the lateness
//! ```

use crate::frame::{self, Header, Key};
use crate::lateness::{Delays, Lateness};
use crate::namespace::mac;
use crate::ring::{BATCH, Ring, Sender};
use crate::sys;
use gradtide_net::packet::{Decision, Forwarder, Frame, Kind, Origin};
use gradtide_net::{Band, HostId, PortId, Time};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Time between the arrival of a packet and the decision on it, in ns. Measured: at most 1 of 100,000 packets then
/// reaches the switch after an event with a later time was decided. Without hold-back, 714 of 71,000 packets did.
pub const HOLD_BACK_NS: u64 = 50_000;
/// Time before the next event at which the switch stops sleeping and polls, in ns. On a loaded machine, where the
/// switch has real-time priority, [`SPIN_LOADED_NS`] applies.
const SPIN_NS: u64 = 60_000;
const SPIN_LOADED_NS: u64 = 15_000;
/// Time for which the machine counts as loaded after a pause of the switch (see [`GAP_NS`]), in ns.
const LOADED_NS: u64 = 2_000_000_000;
/// Longest sleep of the switch, in ns, so that it checks regularly whether to stop.
const SLEEP_NS: u64 = 1_000_000;
/// Unplanned pause of the switch beyond which the pause is counted, in ns.
const GAP_NS: u64 = 100_000;
/// Maximum number of packets per second, of all hosts together, that two processors can switch.
pub const PACKETS_PER_S: u64 = 280_000;
/// Length of the periods in which the number of packets is compared with [`PACKETS_PER_S`], in ns.
const PERIOD_NS: u64 = 100_000_000;
/// Percentage of a period that the switch must sleep to get real-time priority. The kernel stops a real-time thread for
/// 50 ms per second if it never sleeps while other threads wait.
const SLEPT_PERCENT: u64 = 15;
/// Number of departures from which too many late ones end the run.
const SETTLED: u64 = 10_000;

/// How the switch runs.
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Band of each DSCP.
    pub bands: [Band; 64],
    /// Whether switches react to announcements.
    pub has_pcn: bool,
    /// Maximum fraction of departures that may be late, in parts per million.
    pub late_ppm: u64,
    /// Ports whose queues are sampled.
    pub sampled: Vec<u32>,
    /// Time between samples, in ns. 0: no samples.
    pub sample_ns: u64,
    /// Whether to record the arrivals and decisions of the run, for [`gradtide_net::packet::replay`].
    pub keeps_packets: bool,
}

/// A queue at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Time since the start of the run, in ps.
    pub at_ps: u64,
    /// Port of the queue.
    pub port: u32,
    /// Packets in the queue.
    pub packets: u32,
    /// Bytes in the queue.
    pub bytes: u64,
    /// Total time for which the link has been busy, in ps.
    pub busy_ps: u64,
    /// Packets dropped so far.
    pub drops: u64,
    /// Packets marked so far.
    pub marks: u64,
    /// Current marking threshold of the queue in packets, if switches react to burst announcements.
    pub threshold: Option<u32>,
}

/// The first data packet of a connection. It shows whether the burst was announced before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Opening {
    /// Time at which the data packet arrived at the port of the sending host, in ps since the start of the run.
    pub at_ps: u64,
    /// Sending host.
    pub src: u32,
    /// Receiving host.
    pub dst: u32,
    /// Whether the connection was announced.
    pub is_announced: bool,
}

/// Counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Packets that hosts sent.
    pub sent: u64,
    /// Packets that reached their hosts.
    pub delivered: u64,
    /// Packets that queues dropped.
    pub dropped: u64,
    /// Packets that queues marked.
    pub marked: u64,
    /// Frames other than IPv4 packets between hosts.
    pub foreign: u64,
    /// Packets longer than the links carry.
    pub too_long: u64,
    /// Packets without a checksum.
    pub without_checksum: u64,
    /// Packets that reached the switch after an event with a later time was decided.
    pub out_of_order: u64,
    /// Longest time by which a packet was behind an event that was already decided, in ns.
    pub out_of_order_max_ns: u64,
    /// Frames that found the ring full.
    pub ring_drops: u64,
    /// Frames that the kernel refused to send.
    pub refused: u64,
    /// Unplanned pauses of the switch that were longer than 100 us.
    pub gaps: u64,
    /// Longest pause, in ns.
    pub gap_max_ns: u64,
    /// Number of times that the kernel gave the switch's processor to another task.
    pub involuntary_switches: u64,
    /// Largest number of packets per second, measured in periods of 100 ms.
    pub packets_per_s_max: u64,
    /// Change of the difference between CLOCK_REALTIME and CLOCK_MONOTONIC during the run, in ns.
    pub clock_step_ns: i64,
}

/// Why a run cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// More departures were late than allowed.
    Late,
    /// The ring was full.
    RingDrops,
    /// More packets than [`PACKETS_PER_S`].
    TooMany,
}

/// Everything that a run has recorded.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Counts.
    pub counts: Counts,
    /// Delays of departures beyond their computed times.
    pub delays: Delays,
    /// Queues over time.
    pub samples: Vec<Sample>,
    /// Beginnings of connections' data.
    pub openings: Vec<Opening>,
    /// Why the run ended early.
    pub failure: Option<Failure>,
    /// Length of the run, in ps.
    pub duration_ps: u64,
    /// Connections of the packets, if kept.
    pub origins: Vec<Origin>,
    /// Arrivals, if kept.
    pub arrivals: Vec<(Time, Frame)>,
    /// Decisions, if kept.
    pub decisions: Vec<Decision>,
}

/// Buffers of packets between arrival and decision.
#[derive(Default)]
struct Pool {
    buffers: Vec<Buffer>,
    free: Vec<u32>,
}

#[derive(Clone)]
struct Buffer {
    bytes: Vec<u8>,
    dst: u32,
    /// Number in the record of kept packets.
    number: u32,
}

impl Pool {
    fn take(&mut self, bytes: &[u8], dst: u32, number: u32) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(Buffer { bytes: Vec::with_capacity(2048), dst: 0, number: 0 });
            (self.buffers.len() - 1) as u32
        });
        let buffer = &mut self.buffers[place as usize];
        buffer.bytes.clear();
        buffer.bytes.extend_from_slice(bytes);
        (buffer.dst, buffer.number) = (dst, number);
        place
    }
}

/// State of one connection in one direction.
#[derive(Clone, Copy)]
struct Connection {
    number: u32,
    is_announced: bool,
    has_data: bool,
}

pub(crate) struct Switch {
    config: SwitchConfig,
    forwarder: Forwarder,
    ring: Ring,
    sender: Sender,
    /// Host of each interface. `interfaces` contains the interface of each host.
    hosts: BTreeMap<u32, u32>,
    interfaces: Vec<u32>,
    connections: BTreeMap<Key, Connection>,
    pool: Pool,
    /// Start of the run, in ns of CLOCK_REALTIME. `clock_offset_ns` is the difference to CLOCK_MONOTONIC at that time.
    start_ns: u64,
    clock_offset_ns: i64,
    decisions: Vec<Decision>,
    /// Packets to deliver, in the order of their departures: computed time in ps, and buffer.
    due: VecDeque<(u64, u32)>,
    lateness: Lateness,
    next_sample_ns: u64,
    /// Start of the current period in ns, and number of packets sent before it.
    period: (u64, u64),
    /// Time that the switch has slept in the current period, in ns.
    slept_ns: u64,
    /// Number of pauses before the current period. Until `loaded_until_ns`, the machine counts as loaded.
    gaps: u64,
    loaded_until_ns: u64,
    record: Record,
}

fn clock_offset_ns() -> i64 {
    sys::clock_ns(libc::CLOCK_REALTIME) as i64 - sys::clock_ns(libc::CLOCK_MONOTONIC) as i64
}

impl Switch {
    /// Creates the switch. The times of its run count from this call.
    pub fn new(config: SwitchConfig, forwarder: Forwarder, ring: Ring, sender: Sender, interfaces: Vec<u32>) -> Self {
        let hosts = (0..).zip(&interfaces).map(|(host, &interface)| (interface, host)).collect();
        let start_ns = sys::clock_ns(libc::CLOCK_REALTIME);
        Self {
            next_sample_ns: if config.sample_ns == 0 { u64::MAX } else { 0 },
            config,
            forwarder,
            ring,
            sender,
            hosts,
            interfaces,
            connections: BTreeMap::new(),
            pool: Pool::default(),
            start_ns,
            clock_offset_ns: clock_offset_ns(),
            decisions: Vec::new(),
            due: VecDeque::new(),
            lateness: Lateness::new(),
            period: (0, 0),
            slept_ns: 0,
            gaps: 0,
            loaded_until_ns: 0,
            record: Record::default(),
        }
    }

    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Returns the time since the start of the run, in ns.
    fn now_ns(&self) -> u64 {
        sys::clock_ns(libc::CLOCK_REALTIME).saturating_sub(self.start_ns)
    }

    /// Switches packets until `stops` returns true or the run cannot go on.
    pub fn run(&mut self, stops: impl Fn() -> bool) {
        let (mut last_ns, mut slept_ns, mut checked_ns) = (self.now_ns(), 0, 0);
        while self.record.failure.is_none() {
            let now_ns = self.now_ns();
            let gap_ns = now_ns.saturating_sub(last_ns).saturating_sub(slept_ns);
            if gap_ns > GAP_NS {
                self.record.counts.gaps += 1;
                self.record.counts.gap_max_ns = self.record.counts.gap_max_ns.max(gap_ns);
            }
            last_ns = now_ns;
            self.receive();
            self.decide(now_ns);
            self.depart();
            if now_ns >= checked_ns + SLEEP_NS {
                checked_ns = now_ns;
                self.check(now_ns);
                if stops() {
                    break;
                }
            }
            slept_ns = self.rest();
        }
    }

    /// Sleeps until shortly before the next event. Returns the planned maximum of the sleep in ns, 0 for none.
    fn rest(&mut self) -> u64 {
        let now_ns = self.now_ns();
        let due_ns = self.due.front().map_or(u64::MAX, |&(at_ps, _)| at_ps / 1_000);
        let next_ns = due_ns.min(self.forwarder.next_at().ps() / 1_000).min(self.next_sample_ns);
        let spin_ns = if now_ns < self.loaded_until_ns { SPIN_LOADED_NS } else { SPIN_NS };
        let free_ns = next_ns.saturating_sub(now_ns).saturating_sub(spin_ns).min(SLEEP_NS);
        if free_ns > 0 {
            self.ring.wait(free_ns);
            self.slept_ns += self.now_ns().saturating_sub(now_ns).min(free_ns);
        }
        free_ns
    }

    /// Reads received frames and passes them to the ports of the hosts that sent them.
    fn receive(&mut self) {
        let Self { ring, forwarder, hosts, connections, pool, config, record, decisions, start_ns, .. } = self;
        let mut received = 0;
        while received < 4 * BATCH
            && ring.read(|frame| {
                let header = Header::parse(frame.bytes);
                let Some((header, &host)) = header
                    .zip(hosts.get(&frame.interface))
                    .filter(|(header, host)| header.key.src.0 == **host && (header.key.dst.0 as usize) < hosts.len())
                else {
                    record.counts.foreign += 1;
                    return;
                };
                if header.wire_bytes > forwarder.bytes_max() {
                    record.counts.too_long += 1;
                    return;
                }
                record.counts.without_checksum += u64::from(frame.lacks_checksum);
                let at_ps = frame.at_ns.saturating_sub(*start_ns) * 1_000;
                let connection = connections.entry(header.key).or_insert_with(|| {
                    let origin = Origin { src: HostId(host), hash: header.key.hash() };
                    record.origins.push(origin);
                    Connection { number: forwarder.open(origin), is_announced: false, has_data: false }
                });
                let kind = if config.has_pcn { header.kind } else { without_announcement(header.kind) };
                connection.is_announced |= matches!(header.kind, Kind::Announcement(_));
                if header.kind == Kind::Data && !connection.has_data {
                    connection.has_data = true;
                    let (src, dst) = (header.key.src.0, header.key.dst.0);
                    record.openings.push(Opening { at_ps, src, dst, is_announced: connection.is_announced });
                }
                let number = record.arrivals.len() as u32;
                let place = pool.take(frame.bytes, header.key.dst.0, number);
                let packet = Frame {
                    number: place,
                    connection: connection.number,
                    dst: header.key.dst,
                    wire_bytes: header.wire_bytes,
                    band: config.bands[usize::from(header.tos >> 2)],
                    is_ecn_capable: header.is_ecn_capable(),
                    kind,
                };
                let late_ps = forwarder.send(Time::from_ps(at_ps), &packet, decisions).ps();
                if late_ps > 0 {
                    record.counts.out_of_order += 1;
                    let late_ns = late_ps.div_ceil(1_000);
                    record.counts.out_of_order_max_ns = record.counts.out_of_order_max_ns.max(late_ns);
                }
                record.counts.sent += 1;
                if config.keeps_packets {
                    record.arrivals.push((Time::from_ps(at_ps + late_ps), Frame { number, ..packet }));
                }
            })
        {
            received += 1;
        }
    }

    /// Decides on the packets that arrived at least [`HOLD_BACK_NS`] before `now_ns`, and takes samples.
    fn decide(&mut self, now_ns: u64) {
        let known_ns = now_ns.saturating_sub(HOLD_BACK_NS);
        if now_ns >= self.next_sample_ns {
            self.sample(known_ns);
        }
        self.forwarder.advance(Time::from_ps(known_ns * 1_000), &mut self.decisions);
        for decision in self.decisions.drain(..) {
            let buffer = &mut self.pool.buffers[decision.number as usize];
            if self.config.keeps_packets {
                self.record.decisions.push(Decision { number: buffer.number, ..decision });
            }
            if decision.dropped_by.is_some() {
                self.record.counts.dropped += 1;
                self.pool.free.push(decision.number);
                continue;
            }
            if decision.is_marked {
                self.record.counts.marked += 1;
                frame::mark(&mut buffer.bytes);
            }
            buffer.bytes[..6].copy_from_slice(&mac(buffer.dst as usize, false));
            self.due.push_back((decision.at.ps(), decision.number));
        }
    }

    fn depart(&mut self) {
        loop {
            let now_ps = self.now_ns() * 1_000;
            let count = self.due.iter().take(BATCH).take_while(|(at_ps, _)| *at_ps <= now_ps).count();
            if count == 0 {
                return;
            }
            let mut frames: [(u32, &[u8]); BATCH] = [(0, &[]); BATCH];
            for (place, (_, number)) in frames.iter_mut().zip(self.due.iter().take(count)) {
                let buffer = &self.pool.buffers[*number as usize];
                *place = (self.interfaces[buffer.dst as usize], &buffer.bytes);
            }
            self.record.counts.refused += self.sender.send(&frames[..count]);
            for (at_ps, number) in self.due.drain(..count) {
                self.lateness.add((now_ps - at_ps) / 1_000);
                self.pool.free.push(number);
            }
            self.record.counts.delivered += count as u64;
        }
    }

    fn sample(&mut self, known_ns: u64) {
        self.next_sample_ns += self.config.sample_ns;
        let at_ps = known_ns * 1_000 + self.forwarder.lookahead().ps();
        for &port in &self.config.sampled {
            let state = self.forwarder.port_state(PortId(port));
            let threshold = self.forwarder.threshold(PortId(port));
            self.record.samples.push(Sample {
                at_ps,
                port,
                packets: state.queue_packets,
                bytes: state.queue_bytes,
                busy_ps: state.busy.ps(),
                drops: state.drops,
                marks: state.marks,
                threshold,
            });
        }
    }

    /// Checks whether the run can go on.
    fn check(&mut self, now_ns: u64) {
        let counts = &mut self.record.counts;
        counts.ring_drops += self.ring.drops();
        let (began_ns, sent) = self.period;
        if now_ns >= began_ns + PERIOD_NS {
            let per_s = (counts.sent - sent) * 1_000_000_000 / (now_ns - began_ns);
            counts.packets_per_s_max = counts.packets_per_s_max.max(per_s);
            if counts.gaps > self.gaps {
                self.loaded_until_ns = now_ns + LOADED_NS;
            }
            let sleeps = 100 * self.slept_ns >= SLEPT_PERCENT * (now_ns - began_ns);
            sys::set_precedence(now_ns < self.loaded_until_ns && sleeps);
            self.gaps = counts.gaps;
            self.period = (now_ns, counts.sent);
            self.slept_ns = 0;
        }
        let is_late = self.lateness.late_ppm() > self.config.late_ppm && self.lateness.count() >= SETTLED;
        self.record.failure = match () {
            () if counts.ring_drops > 0 => Some(Failure::RingDrops),
            () if counts.packets_per_s_max > PACKETS_PER_S => Some(Failure::TooMany),
            () if is_late => Some(Failure::Late),
            () => None,
        };
    }

    /// Ends the run, and returns its record and the forwarder with the counters of all ports.
    pub fn finish(mut self) -> (Record, Forwarder) {
        let end_ns = self.now_ns();
        self.check(end_ns);
        if self.lateness.late_ppm() > self.config.late_ppm && self.record.failure.is_none() {
            self.record.failure = Some(Failure::Late);
        }
        self.record.duration_ps = end_ns * 1_000;
        self.record.delays = self.lateness.delays();
        self.record.counts.involuntary_switches = sys::involuntary_switches();
        self.record.counts.clock_step_ns = clock_offset_ns() - self.clock_offset_ns;
        (self.record, self.forwarder)
    }
}

fn without_announcement(kind: Kind) -> Kind {
    if matches!(kind, Kind::Announcement(_)) { Kind::Data } else { kind }
}
