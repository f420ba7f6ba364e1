//! The buffer that the ports of one switch share.
//!
//! A shared-memory switch has one pool for all its ports, without reserved shares. To keep a busy port from taking the
//! whole pool, each queue may only grow to a threshold `T = alpha (B - Q)`, where `B` is the size of the pool and `Q`
//! the sum of all its queues (Choudhury & Hahne, «Dynamic queue length thresholds for shared-memory packet switches»,
//! 1998, eq. 1). Then `n` queues at the threshold hold `alpha B / (1 + n alpha)` each, and `B / (1 + n alpha)` stays
//! free for a port that was idle.
//!
//! Ports compute their departures lazily ([`Port::catch_up`]), so the last known occupancy of a port may be too high,
//! but never too low. A packet that fits according to the last known occupancies is therefore accepted without further
//! work. Only before a drop are all ports with waiting packets updated. The pool contains the packets in qdiscs, not
//! those in devices or in transmission.

use super::driver::PortDriver;
use super::event_key::EventTime;
use super::port::Port;
use super::qdisc::{Capacity, Verdict};
use super::wire::Wire;
use crate::topology::{Graph, PortId};
use serde::Deserialize;

/// Configuration of the shared buffer of each switch.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct SharedBuffer {
    /// Limit of the sum of all queues of the switch, in packets or in bytes.
    pub capacity: Capacity,
    /// Factor `alpha` of the threshold, in millionths.
    pub alpha_ppm: u32,
}

/// The shared buffers of all switches.
#[derive(Clone, Debug)]
pub(crate) struct SharedBuffers {
    config: SharedBuffer,
    /// Pool of each port; `u32::MAX` for the ports of hosts.
    pool_of: Vec<u32>,
    /// Last known occupancy of each port's queue, in the unit of the capacity.
    taken: Vec<u64>,
    /// Whether each port is in `waiting` of its pool.
    is_waiting: Vec<bool>,
    pools: Vec<Pool>,
}

#[derive(Clone, Debug, Default)]
struct Pool {
    /// Sum of the last known occupancies of all queues.
    used: u64,
    /// Ports whose queue may be non-empty, each listed once.
    waiting: Vec<u32>,
}

impl SharedBuffers {
    pub fn new(graph: &Graph, config: SharedBuffer) -> Self {
        let pool_of = graph.links.iter().map(|link| link.from.0.checked_sub(graph.host_count).unwrap_or(u32::MAX));
        Self {
            config,
            pool_of: pool_of.collect(),
            taken: vec![0; graph.links.len()],
            is_waiting: vec![false; graph.links.len()],
            pools: vec![Pool::default(); graph.switch_count as usize],
        }
    }

    /// Sends a packet by [`Port::send`], after limiting the port's queue to the current threshold of its pool.
    #[inline(never)]
    pub fn send(
        &mut self,
        ports: &mut [Port],
        id: PortId,
        at: EventTime,
        packet: Wire,
        driver: &mut impl PortDriver,
    ) -> Verdict {
        let (index, pool) = (id.0 as usize, self.pool_of[id.0 as usize] as usize);
        if pool >= self.pools.len() {
            return ports[index].send(at, packet, driver);
        }
        ports[index].catch_up(at.now_ps, at.scheduled_ps, driver);
        self.refresh(pool, index, &ports[index]);
        ports[index].set_capacity(self.limit(pool, index));
        if !ports[index].has_room(packet.wire_bytes) {
            self.refresh_all(pool, ports, at, driver);
            ports[index].set_capacity(self.limit(pool, index));
        }
        let verdict = ports[index].send(at, packet, driver);
        self.refresh(pool, index, &ports[index]);
        if self.taken[index] > 0 && !self.is_waiting[index] {
            self.is_waiting[index] = true;
            self.pools[pool].waiting.push(id.0);
        }
        verdict
    }

    /// Returns whether the queues of every switch fit into its buffer.
    pub fn holds(&self, ports: &[Port]) -> bool {
        self.pools.iter().enumerate().all(|(index, pool)| {
            let own = self.pool_of.iter().zip(ports).filter(|&(&of, _)| of as usize == index);
            let held: u64 = own.map(|(_, port)| self.taken_by(port)).sum();
            held <= pool.used && pool.used <= self.size()
        })
    }

    fn size(&self) -> u64 {
        match self.config.capacity {
            Capacity::Packets(packets) => u64::from(packets),
            Capacity::Bytes(bytes) => bytes,
        }
    }

    fn taken_by(&self, port: &Port) -> u64 {
        let (packets, bytes) = port.waiting();
        match self.config.capacity {
            Capacity::Packets(_) => u64::from(packets),
            Capacity::Bytes(_) => bytes,
        }
    }

    /// Returns the current limit of a port's queue: the threshold, or less if the queue would not fit into the free
    /// space.
    fn limit(&self, pool: usize, port: usize) -> Capacity {
        let free = self.size() - self.pools[pool].used;
        // The product does not overflow: 2^64 bytes times 2^32 millionths stay below 2^128.
        let threshold = u128::from(free) * u128::from(self.config.alpha_ppm) / 1_000_000;
        let limit = threshold.min(u128::from(self.taken[port] + free)) as u64;
        match self.config.capacity {
            // The limit is at most the pool's size.
            Capacity::Packets(_) => Capacity::Packets(limit as u32),
            Capacity::Bytes(_) => Capacity::Bytes(limit),
        }
    }

    fn refresh(&mut self, pool: usize, index: usize, port: &Port) {
        let taken = self.taken_by(port);
        self.pools[pool].used = self.pools[pool].used - self.taken[index] + taken;
        self.taken[index] = taken;
    }

    /// Updates the occupancies of all ports that may hold packets.
    fn refresh_all(&mut self, pool: usize, ports: &mut [Port], at: EventTime, driver: &mut impl PortDriver) {
        let mut waiting = std::mem::take(&mut self.pools[pool].waiting);
        waiting.retain(|&id| {
            let index = id as usize;
            ports[index].catch_up(at.now_ps, at.scheduled_ps, driver);
            self.refresh(pool, index, &ports[index]);
            self.is_waiting[index] = self.taken[index] > 0;
            self.is_waiting[index]
        });
        self.pools[pool].waiting = waiting;
    }
}

#[cfg(test)]
mod tests {
    use super::super::calendar::Calendar;
    use super::super::qdisc::{Qdisc, QueueConfig};
    use super::super::tcp::Follow;
    use super::super::timing::Serialization;
    use super::*;
    use crate::Seed;
    use crate::topology::{Link, Star};
    use crate::units::{Rate, Time};
    use proptest::prelude::*;

    const PACKET: u16 = 1_000;
    const SENDING_PS: u64 = 800_000;

    fn wire(band: u8, wire_bytes: u16) -> Wire {
        Wire { wire_bytes, ..Wire::NOTHING }.in_band(band)
    }

    /// Creates a star of hosts at 10 Gbit/s, where a packet takes 800 ns. Port `hosts + h` leads from the switch to
    /// host h.
    fn switch(hosts: u32, config: SharedBuffer) -> (Vec<Port>, SharedBuffers, Calendar) {
        let rate = Rate::from_bps(10_000_000_000).unwrap();
        let delay = Time::from_ps(1);
        let graph = Star { host_count: hosts, link: Link { rate, delay } }.graph();
        let table = Serialization::new(rate, Follow::Standards, 60..=PACKET);
        let qdisc = || Qdisc::new(&QueueConfig::pfifo_fast(), PACKET, || Seed(0).stream("test"));
        let ports: Vec<Port> = (0..2 * hosts).map(|link| Port::new(link, delay, table.clone(), qdisc())).collect();
        let calendar = Calendar::new(&ports);
        (ports, SharedBuffers::new(&graph, config), calendar)
    }

    fn at(now_ps: u64) -> EventTime {
        EventTime { now_ps, scheduled_ps: now_ps.saturating_sub(1), sequence: 0 }
    }

    #[test]
    fn queues_at_the_threshold_share_the_buffer_as_its_authors_say() {
        // Choudhury & Hahne, eq. 2: n ports with growing queues hold alpha B / (1 + n alpha) each. Packets arrive at
        // these ports in turn, so each queue is within one packet of that value.
        for (alpha_ppm, alpha) in [(500_000, 0.5), (1_000_000, 1.0), (4_000_000, 4.0)] {
            for count in 1..=6_u32 {
                for (capacity, unit) in [(Capacity::Packets(900), 1.0), (Capacity::Bytes(900_000), 1_000.0)] {
                    let (mut ports, mut buffers, mut calendar) = switch(6, SharedBuffer { capacity, alpha_ppm });
                    for _ in 0..1_000 {
                        for port in 6..6 + count {
                            buffers.send(&mut ports, PortId(port), at(2), wire(0, PACKET), &mut calendar);
                        }
                    }
                    let share = alpha * 900.0 / (1.0 + f64::from(count) * alpha);
                    for port in &ports[6..6 + count as usize] {
                        let taken = buffers.taken_by(port) as f64 / unit;
                        assert!((taken - share).abs() <= 1.0, "{count} ports, alpha {alpha}: {taken} against {share}");
                    }
                    assert!(buffers.holds(&ports));
                }
            }
        }
    }

    #[test]
    fn hosts_keep_queues_of_their_own() {
        let config = SharedBuffer { capacity: Capacity::Packets(1), alpha_ppm: 1_000_000 };
        let (mut ports, mut buffers, mut calendar) = switch(2, config);
        for _ in 0..100 {
            assert_eq!(buffers.send(&mut ports, PortId(0), at(2), wire(0, PACKET), &mut calendar), Verdict::Queued);
        }
    }

    proptest! {
        #[test]
        fn asking_the_other_ports_late_decides_as_asking_them_always(
            arrivals in prop::collection::vec((0_u64..2 * SENDING_PS, 4_u32..8, 0_u8..3, 60_u16..=PACKET), 1..400),
            packets in 0_u32..40,
            is_in_bytes: bool,
            alpha_ppm in prop::sample::select(vec![125_000_u32, 1_000_000, 8_000_000]),
        ) {
            let bytes = u64::from(packets) * u64::from(PACKET);
            let capacity = if is_in_bytes { Capacity::Bytes(bytes) } else { Capacity::Packets(packets) };
            let (mut lazy, mut buffers, mut later) = switch(4, SharedBuffer { capacity, alpha_ppm });
            let (mut eager, mut known, mut calendar) = switch(4, SharedBuffer { capacity, alpha_ppm });
            let mut now_ps = 2;
            for (pause_ps, port, band, wire_bytes) in arrivals {
                // Half of the arrivals are simultaneous with the previous one.
                now_ps += pause_ps.saturating_sub(SENDING_PS);
                known.refresh_all(0, &mut eager, at(now_ps), &mut calendar);
                let packet = wire(band, wire_bytes);
                let verdict = known.send(&mut eager, PortId(port), at(now_ps), packet, &mut calendar);
                prop_assert_eq!(buffers.send(&mut lazy, PortId(port), at(now_ps), packet, &mut later), verdict);
                prop_assert!(buffers.holds(&lazy) && known.holds(&eager));
            }
        }
    }
}
