//! The queue discipline of a port: enqueue, mark, drop and dequeue, independent of TCP and of time.
//!
//! This file contains the bands, the capacity and the thresholds. Algorithms that have their own state have their own
//! file.

mod drr;
mod red;

use crate::packet::wire::{Wire, flag};
use crate::seed::Stream;
use drr::Drr;
use red::Red;
use serde::Deserialize;
use std::collections::VecDeque;

/// Maximum length of the queue.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Capacity {
    /// Limit in packets of any size, summed over all bands.
    Packets(u32),
    /// Limit in bytes on the wire, summed over all bands.
    Bytes(u64),
}

impl Capacity {
    /// Returns the limits in packets and in bytes, one of them infinite.
    fn limits(self) -> (u32, u64) {
        match self {
            Self::Packets(packets) => (packets, u64::MAX),
            Self::Bytes(bytes) => (u32::MAX, bytes),
        }
    }
}

/// Order in which packets are sent.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Discipline {
    /// First come, first served.
    Fifo,
    /// Linux's pfifo_fast: three bands with strict priority. Bands of flows above 2 count as band 2.
    PfifoFast,
    /// Up to 8 bands with strict priority; band 0 is served first. Bands of flows above the last band count as the
    /// last.
    Strict {
        /// Number of bands, 1 to 8.
        bands: u8,
    },
    /// Deficit round robin (Shreedhar & Varghese 1995), one queue per band.
    Drr {
        /// Weight of each of 1 to 8 bands: the number of full packets that the band may send per round. A weight must
        /// not be 0, because only a quantum of at least one full packet guarantees that every round sends something
        /// (sec. 3.2).
        weights: Vec<u16>,
    },
}

/// The time at which the queue length is compared with the marking threshold.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum MarkAt {
    /// Arrival of the packet (DCTCP).
    Enqueue,
    /// Departure of the packet (ECN*). The sender receives the mark earlier, by the time that the packet spent in the
    /// queue.
    Dequeue,
}

/// Active queue management. Only ECN-capable packets are marked.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Marking {
    /// Tail drop only.
    #[default]
    #[serde(skip)]
    None,
    /// Packets are marked (CE) while the queue contains at least `packets`.
    Threshold {
        /// Queue length, not counting the packet itself.
        packets: u32,
        /// Time at which the queue length is compared.
        at: MarkAt,
    },
    /// Random early detection (Floyd & Jacobson 1993). It selects packets to be marked or dropped, with a probability
    /// that depends on the average queue length in packets.
    Red {
        /// Average queue length below which no packet is selected.
        min_packets: u32,
        /// Average queue length from which every packet is selected.
        max_packets: u32,
        /// Probability of selection just below `max_packets`, in parts per million.
        max_probability_ppm: u32,
        /// Weight of the current queue length in the average, per arrival (w_q), in parts per million.
        weight_ppm: u32,
        /// Whether selected packets are marked CE if they are ECN-capable. All other selected packets are dropped.
        ecn: bool,
    },
}

impl Marking {
    /// Returns the queue length from which packets are marked; `None` unless the marking is [`Marking::Threshold`].
    pub fn threshold(&self) -> Option<u32> {
        match self {
            Self::Threshold { packets, .. } => Some(*packets),
            Self::None | Self::Red { .. } => None,
        }
    }
}

/// A qdisc as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Order in which packets are sent.
    pub discipline: Discipline,
    /// Maximum length of the queue.
    pub capacity: Capacity,
    /// Active queue management.
    pub marking: Marking,
}

impl QueueConfig {
    /// Returns pfifo_fast with a capacity of 1000 packets, as in Gao (2020), chapter 5.
    pub fn pfifo_fast() -> Self {
        Self { discipline: Discipline::PfifoFast, capacity: Capacity::Packets(1000), marking: Marking::None }
    }

    /// Returns a FIFO queue of capacity `capacity`.
    pub fn fifo(capacity: Capacity) -> Self {
        Self { discipline: Discipline::Fifo, capacity, marking: Marking::None }
    }
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Queued,
    Dropped,
}

/// A queue discipline with its queues. The first cache line contains everything that a port reads; the bands of most
/// qdiscs follow. Rarely used state is in `rest`.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Qdisc {
    count: u32,
    capacity_packets: u32,
    bytes: u64,
    capacity_bytes: u64,
    bytes_max: u64,
    packets_max: u32,
    /// Bit b is set while band b is non-empty.
    waiting: u8,
    band_count: u8,
    /// Whether arrivals or departures are marked.
    is_marking: bool,
    /// Whether the discipline is deficit round robin.
    is_by_turn: bool,
    bands: [VecDeque<Wire>; NEAR_BANDS],
    rest: Box<Rest>,
}

/// Number of bands stored in the qdisc itself: enough for pfifo_fast.
const NEAR_BANDS: usize = 3;

/// State that only some qdiscs use, and counters of rare events.
#[derive(Clone, Debug)]
struct Rest {
    marking: Marking,
    /// State of [`Discipline::Drr`].
    drr: Option<Drr>,
    /// State of [`Marking::Red`].
    red: Option<Box<Red>>,
    bands: Vec<VecDeque<Wire>>,
    marks: u64,
    drops: u64,
    /// Whether packets are never dropped.
    keeps_all: bool,
}

impl Qdisc {
    /// Creates an empty qdisc. `packet_bytes` is the size of a full packet on the wire; `coin` creates RED's random
    /// stream.
    pub fn new(config: &QueueConfig, packet_bytes: u16, coin: impl FnOnce() -> Stream) -> Self {
        let band_count = match &config.discipline {
            Discipline::Fifo => 1,
            Discipline::PfifoFast => 3,
            Discipline::Strict { bands } => usize::from(*bands).clamp(1, 8),
            Discipline::Drr { weights } => weights.len(),
        };
        let drr = match &config.discipline {
            Discipline::Drr { weights } => Some(Drr::new(weights, packet_bytes)),
            _ => None,
        };
        let (capacity_packets, capacity_bytes) = config.capacity.limits();
        Self {
            count: 0,
            capacity_packets,
            bytes: 0,
            capacity_bytes,
            bytes_max: 0,
            packets_max: 0,
            waiting: 0,
            // There are at most 8 bands.
            band_count: band_count as u8,
            is_marking: config.marking != Marking::None,
            is_by_turn: drr.is_some(),
            bands: Default::default(),
            rest: Box::new(Rest {
                drr,
                marking: config.marking,
                red: matches!(config.marking, Marking::Red { .. }).then(|| Box::new(Red::new(coin()))),
                bands: (NEAR_BANDS..band_count).map(|_| VecDeque::new()).collect(),
                marks: 0,
                drops: 0,
                keeps_all: false,
            }),
        }
    }

    /// Disables tail drops and RED's drops from now on.
    pub fn keep_all(&mut self) {
        self.set_capacity(Capacity::Packets(u32::MAX));
        self.rest.keeps_all = true;
    }

    #[inline]
    fn band(&mut self, band: usize) -> &mut VecDeque<Wire> {
        if band < NEAR_BANDS { &mut self.bands[band] } else { &mut self.rest.bands[band - NEAR_BANDS] }
    }

    /// Returns the longest queue so far, in packets and in bytes.
    pub fn longest(&self) -> (u32, u64) {
        (self.packets_max, self.bytes_max)
    }

    pub fn marks(&self) -> u64 {
        self.rest.marks
    }

    pub fn drops(&self) -> u64 {
        self.rest.drops
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub fn packets(&self) -> u32 {
        self.count
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub fn has_room(&self, wire_bytes: u16) -> bool {
        self.count < self.capacity_packets && self.bytes + u64::from(wire_bytes) <= self.capacity_bytes
    }

    /// Sets the capacity for later packets. Queued packets stay.
    pub fn set_capacity(&mut self, capacity: Capacity) {
        (self.capacity_packets, self.capacity_bytes) = capacity.limits();
    }

    /// Sets the queue length from which later packets are marked.
    pub fn set_threshold(&mut self, threshold: u32) {
        if let Marking::Threshold { packets, .. } = &mut self.rest.marking {
            *packets = threshold;
        }
    }

    /// Marks or drops a packet that bypasses the queue, because the port is idle or the device has room.
    #[inline]
    pub fn pass(&mut self, packet: &mut Wire) -> Verdict {
        if self.is_marking { self.mark_on_arrival(packet) } else { Verdict::Queued }
    }

    /// Reads the memory that [`Qdisc::dequeue`] will read, as a prefetch.
    #[inline]
    pub fn peek(&self) -> u64 {
        self.bands[0].front().map_or(0, |packet| u64::from(packet.connection))
    }

    /// Enqueues or drops the packet.
    #[inline]
    pub fn enqueue(&mut self, mut packet: Wire) -> Verdict {
        if !self.has_room(packet.wire_bytes) {
            self.rest.drops += 1;
            return Verdict::Dropped;
        }
        if self.is_marking && self.mark_on_arrival(&mut packet) == Verdict::Dropped {
            return Verdict::Dropped;
        }
        let band = usize::from(packet.band().min(self.band_count - 1));
        self.band(band).push_back(packet);
        self.waiting |= 1 << band;
        self.count += 1;
        self.bytes += u64::from(packet.wire_bytes);
        self.packets_max = self.packets_max.max(self.count);
        self.bytes_max = self.bytes_max.max(self.bytes);
        debug_assert!(self.count <= self.capacity_packets && self.bytes <= self.capacity_bytes, "queue within buffer");
        Verdict::Queued
    }

    /// Removes and returns the next packet. The queue must not be empty.
    #[inline]
    pub fn dequeue(&mut self) -> Wire {
        let band = if self.is_by_turn { self.next_by_turn() } else { self.waiting.trailing_zeros() as usize };
        let queue = self.band(band);
        let mut packet = queue.pop_front().expect("its bit says that the band holds something");
        if queue.is_empty() {
            // Restarts the deque at the beginning of its memory, so that a short queue stays in the same cache lines.
            queue.clear();
            self.waiting &= !(1 << band);
        }
        self.count -= 1;
        self.bytes -= u64::from(packet.wire_bytes);
        if self.is_marking {
            self.mark_on_departure(&mut packet);
        }
        packet
    }

    fn next_by_turn(&mut self) -> usize {
        let Self { bands: near, rest, .. } = self;
        let Rest { drr, bands, .. } = &mut **rest;
        let drr = drr.as_mut().expect("`new` noted that bands take turns");
        drr.next(|band| {
            let band = if band < NEAR_BANDS { &near[band] } else { &bands[band - NEAR_BANDS] };
            band.front().map(|head| u32::from(head.wire_bytes))
        })
    }

    #[inline(never)]
    fn mark_on_arrival(&mut self, packet: &mut Wire) -> Verdict {
        let rest = &mut *self.rest;
        match rest.marking {
            Marking::Threshold { packets, at: MarkAt::Enqueue } if self.count >= packets => {
                rest.mark(packet);
                Verdict::Queued
            }
            Marking::Red { min_packets, max_packets, max_probability_ppm, weight_ppm, ecn } => {
                let red = rest.red.as_mut().expect("`new` made it, as the marking asks for it");
                red.on_arrival(self.count, weight_ppm);
                let is_hit = red.hits(min_packets, max_packets, max_probability_ppm);
                if is_hit && !(ecn && rest.mark(packet)) && !rest.keeps_all {
                    rest.drops += 1;
                    return Verdict::Dropped;
                }
                Verdict::Queued
            }
            _ => Verdict::Queued,
        }
    }

    #[inline(never)]
    fn mark_on_departure(&mut self, packet: &mut Wire) {
        if let Marking::Threshold { packets, at: MarkAt::Dequeue } = self.rest.marking
            && self.count >= packets
        {
            self.rest.mark(packet);
        }
    }
}

impl Rest {
    fn mark(&mut self, packet: &mut Wire) -> bool {
        let capable = packet.flags & flag::ECT != 0;
        if capable {
            packet.flags |= flag::CE;
            self.marks += 1;
        }
        capable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Seed;

    fn qdisc(config: &QueueConfig, seed: u64) -> Qdisc {
        Qdisc::new(config, 1000, || Seed(seed).stream("red"))
    }

    fn packet(number: u64, band: u8, wire_bytes: u16) -> Wire {
        Wire { wire_bytes, flags: flag::ECT, ..Wire::NOTHING }.numbered(number).in_band(band)
    }

    fn drain(qdisc: &mut Qdisc) -> Vec<u64> {
        std::iter::from_fn(|| (!qdisc.is_empty()).then(|| qdisc.dequeue().number())).collect()
    }

    #[test]
    fn pfifo_fast_is_strict_over_three_bands_that_share_one_limit() {
        let config = QueueConfig { capacity: Capacity::Packets(4), ..QueueConfig::pfifo_fast() };
        let mut qdisc = qdisc(&config, 0);
        for (number, band) in [(0, 7), (1, 1), (2, 0), (3, 1)] {
            assert_eq!(qdisc.enqueue(packet(number, band, 100)), Verdict::Queued);
        }
        assert_eq!(qdisc.enqueue(packet(4, 0, 100)), Verdict::Dropped);
        assert_eq!(qdisc.longest().0, 4);
        assert_eq!(drain(&mut qdisc), [2, 1, 3, 0]);
    }

    #[test]
    fn a_limit_in_bytes_lets_the_small_one_in() {
        let mut qdisc = qdisc(&QueueConfig::fifo(Capacity::Bytes(250)), 0);
        assert_eq!(qdisc.enqueue(packet(0, 0, 200)), Verdict::Queued);
        assert_eq!(qdisc.enqueue(packet(1, 0, 100)), Verdict::Dropped);
        assert_eq!(qdisc.enqueue(packet(2, 3, 50)), Verdict::Queued);
        assert_eq!((qdisc.bytes(), qdisc.packets()), (250, 2));
        assert_eq!(drain(&mut qdisc), [0, 2]);
    }

    #[test]
    fn deficit_round_robin_shares_bytes_by_quantum() {
        let discipline = Discipline::Drr { weights: vec![2, 1] };
        let config = QueueConfig { discipline, capacity: Capacity::Packets(100), marking: Marking::None };
        let mut qdisc = qdisc(&config, 0);
        for number in 0..8 {
            qdisc.enqueue(packet(number, 0, 500));
            qdisc.enqueue(packet(100 + number, 1, 500));
        }
        let order = drain(&mut qdisc);
        assert_eq!(order[..9], [0, 1, 2, 3, 100, 101, 4, 5, 6]);
    }

    #[test]
    fn the_threshold_counts_the_queue_without_the_packet_itself() {
        for (at, marked) in [(MarkAt::Enqueue, [2_u64, 3]), (MarkAt::Dequeue, [0, 1])] {
            let marking = Marking::Threshold { packets: 2, at };
            let mut qdisc = qdisc(&QueueConfig { marking, ..QueueConfig::fifo(Capacity::Packets(9)) }, 0);
            for number in 0..4 {
                qdisc.enqueue(packet(number, 0, 100));
            }
            let out: Vec<u64> = std::iter::from_fn(|| (!qdisc.is_empty()).then(|| qdisc.dequeue()))
                .filter(|packet| packet.flags & flag::CE != 0)
                .map(|packet| packet.number())
                .collect();
            assert_eq!(out, marked);
        }
    }

    const RED: Marking = Marking::Red {
        min_packets: 5,
        max_packets: 10,
        max_probability_ppm: 100_000,
        weight_ppm: 1_000_000,
        ecn: true,
    };

    #[test]
    fn red_marks_nothing_below_and_all_above() {
        let mut qdisc = qdisc(&QueueConfig { marking: RED, ..QueueConfig::fifo(Capacity::Packets(99)) }, 1);
        for number in 0..20 {
            qdisc.enqueue(packet(number, 0, 100));
        }
        let marked: Vec<u64> = std::iter::from_fn(|| (!qdisc.is_empty()).then(|| qdisc.dequeue()))
            .filter(|packet| packet.flags & flag::CE != 0)
            .map(|packet| packet.number())
            .collect();
        assert!(
            marked.iter().all(|&number| number >= 5) && marked.ends_with(&[10, 11, 12, 13, 14, 15, 16, 17, 18, 19])
        );
    }

    #[test]
    fn red_spreads_its_marks_evenly() {
        // With an average of 9 packets, thresholds of 5 and 10 and a maximum probability of 10 %, RED selects with p =
        // 8 %. The gaps between marks are then uniform on 1 to 1/p = 12.5. In whole packets, the longest gap is 13 and
        // the mean is 1 + the sum of max(0, 1 - n p) over n >= 1, which is 6.76.
        let mut qdisc = qdisc(&QueueConfig { marking: RED, ..QueueConfig::fifo(Capacity::Packets(99)) }, 7);
        let (mut gaps, mut gap) = (Vec::new(), 0);
        for number in 0..9 {
            qdisc.enqueue(packet(number, 0, 100));
        }
        for _ in 0..20_000 {
            gap += 1;
            let mut passing = packet(0, 0, 100);
            assert_eq!(qdisc.pass(&mut passing), Verdict::Queued);
            if passing.flags & flag::CE != 0 {
                gaps.push(std::mem::take(&mut gap));
            }
        }
        let mean = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64;
        let expected = 1.0 + (1..=12).map(|n| 1.0 - f64::from(n) * 0.08).sum::<f64>();
        // There are about 2960 gaps between marks with a standard deviation of 12.5 / sqrt(12) = 3.6. The tolerance is
        // four standard errors.
        let tolerance = 4.0 * 3.7 / (gaps.len() as f64).sqrt();
        assert!((mean - expected).abs() < tolerance, "{mean} against {expected} +- {tolerance}");
        assert_eq!(gaps.iter().max(), Some(&13));
    }

    #[test]
    fn red_drops_what_it_may_not_mark() {
        for (ecn, flags, verdict) in
            [(true, flag::ECT, Verdict::Queued), (true, 0, Verdict::Dropped), (false, flag::ECT, Verdict::Dropped)]
        {
            let Marking::Red { min_packets, max_packets, max_probability_ppm, weight_ppm, .. } = RED else { panic!() };
            let marking = Marking::Red { min_packets, max_packets, max_probability_ppm, weight_ppm, ecn };
            let mut qdisc = qdisc(&QueueConfig { marking, ..QueueConfig::fifo(Capacity::Packets(99)) }, 1);
            while qdisc.packets() < 10 {
                qdisc.enqueue(packet(0, 0, 100));
            }
            assert_eq!(qdisc.enqueue(Wire { flags, ..packet(1, 0, 100) }), verdict);
        }
    }
}
