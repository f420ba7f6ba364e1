//! A hierarchical collective modelled by flows, one for each rank and level.
//!
//! ```text
//! rank p of a node ──► rank p + 1 of the node             traffic of a rank's port on the scale-up switch
//! rank p of a node ──► rank p of the next node            traffic of its share of the network cards
//! ```
//!
//! A flow has the bytes and the rounds of its level ([`levels`](super::levels)), and starts with the collective. In
//! rings and trees a message crosses both levels, so the flow out of the node waits for the rounds within the node. A
//! rank has the same flows whether all ranks are simulated or one represents its class (`crate::classes`).
//!
//! # Chunks and reductions
//! A round sends m bytes at rate r, with propagation delay D. If the buffer is cut into d chunks, a rank sends the
//! other d-1 chunks while one is in flight, so only max(0, D - (d-1)/d m/r) of the delay is exposed. In the last round
//! all of it is exposed. A rank that reduces at rate a takes m/a in each round with a reduction. Hence the duration of
//! a round is
//!
//! ```text
//! round = max(m/r, m/a, (m/r + m/a) / d + D)
//! ```
//!
//! Chunks have no effect on trees, because a tree cuts its buffer into parts itself. Its ranks reduce one part while
//! the next one arrives.

use super::levels::{Levels, PortLoad, Span};
use gradtide_net::{Band, Bytes, Connection, Flow, HostId, Link, Rate, Time};

/// The links of a rank.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// Number of GPUs per node.
    pub gpus: u32,
    /// Link of the rank's port on the scale-up switch of its node.
    pub scale_up: Link,
    /// A link with the rank's share of the rate of the node's network cards.
    pub nic: Link,
}

/// Traffic class and stream of a collective's flows.
#[derive(Clone, Copy, Debug)]
pub struct Carriage {
    /// Traffic class (band) of the flows.
    pub band: Band,
    /// Stream of the flows.
    pub stream: u32,
}

/// Pipelining and reduction rate of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunking {
    /// Number of chunks per buffer; not 0.
    pub depth: u32,
    /// Rate at which a rank reduces; `None` if reductions take no time.
    pub adding: Option<Rate>,
}

impl Chunking {
    /// One chunk per buffer, and reductions that take no time.
    pub const PLAIN: Self = Self { depth: 1, adding: None };
}

/// Size in bytes that messages of the fluid engine must stay below.
const MESSAGE_LIMIT: Bytes = Bytes(1 << 54);

impl Links {
    /// Returns the duration of a collective on an idle network. Returns `None` if it exceeds [`Time::MAX`], or if a
    /// message is too large for the engine.
    pub fn time(&self, levels: &Levels, bytes: Bytes) -> Option<Time> {
        let at = |link: &Link, load: PortLoad, before: Time| {
            let (message, parts) = load.message(bytes);
            let (rounds, count) = (load.rounds(), load.rounds() * load.peers());
            if count == 0 || message >= MESSAGE_LIMIT {
                return (count == 0).then_some(Time::ZERO);
            }
            let delays = link.delay.ps().checked_mul(rounds.into())?;
            link.rate.serialize(message, count, parts)?.checked_add(before)?.checked_add(Time::from_ps(delays))
        };
        let inside = at(&self.scale_up, levels.scale_up, Time::ZERO)?;
        Some(inside.max(at(&self.nic, levels.nic, self.before_leaving(levels))?))
    }

    /// Returns the time for which the flow out of the node waits for the rounds within the node.
    pub fn before_leaving(&self, levels: &Levels) -> Time {
        let rounds = if levels.crosses_both { levels.scale_up.rounds() } else { 0 };
        Time::from_ps(self.scale_up.delay.ps().saturating_mul(rounds.into()))
    }

    /// Returns the flows of a load, one for each peer to which the rank sends concurrently. Their first byte is sent
    /// after the time `before`. The caller sets their endpoints. Flows share a link equally, so an all-to-all, which
    /// has more flows, gets a larger share than a concurrent ring.
    pub fn flows_of(
        &self,
        load: PortLoad,
        before: Time,
        bytes: Bytes,
        carriage: Carriage,
    ) -> impl Iterator<Item = Flow> {
        let (message, parts) = load.message(bytes);
        let (rounds, peers) = (load.rounds(), load.peers());
        let each = move |peer: u32| {
            let up_to = |count: u32| u128::from(load.bytes(bytes).0) * u128::from(count) / u128::from(peers);
            Flow {
                src: HostId(0),
                dst: HostId(0),
                bytes: message,
                rounds,
                parts,
                counted: Bytes((up_to(peer + 1) - up_to(peer)) as u64 / u64::from(rounds)),
                hold: before,
                band: carriage.band,
                stream: carriage.stream,
                connection: Connection::Stream,
                part: None,
                announced: None,
                listed: None,
            }
        };
        (0..peers).map(each)
    }

    /// Returns the flows of all ranks. `nodes` lists the ranks of each node in order.
    pub fn flows(
        &self,
        levels: &Levels,
        nodes: &[Vec<u32>],
        bytes: Bytes,
        chunking: Chunking,
        carriage: Carriage,
    ) -> Vec<Flow> {
        let Some(span) = Span::of_nodes(nodes.iter().map(Vec::len)) else { return Vec::new() };
        let rings = span.per_node() as usize;
        let adds = self.reduction_time(levels, bytes, chunking);
        // Delay that chunks leave exposed. If chunks hide nothing, this is `None` and the path's delay applies.
        let exposed = |link: &Link, load: PortLoad| self.exposed_delay(levels, link, load, bytes, chunking);
        let (inside, passing) = (exposed(&self.scale_up, levels.scale_up), exposed(&self.scale_up, levels.passing));
        let outside = exposed(&self.nic, levels.nic);
        let before = match inside {
            Some(left) if levels.crosses_both => Time::from_ps(left.ps().saturating_add(self.scale_up.delay.ps())),
            _ => self.before_leaving(levels),
        };
        let flow = |src: u32, dst: u32, load, before: Time, waits: Option<Time>| {
            let hold = [before, adds, waits.unwrap_or_default()].into_iter().map(|time| time.ps());
            let before = Time::from_ps(hold.fold(0, u64::saturating_add));
            let flow = self.flows_of(load, before, bytes, carriage).next()?;
            let flow = Flow { src: HostId(src), dst: HostId(dst), ..flow };
            let sent = load.bytes(bytes);
            let whole = Flow { bytes: sent, rounds: 1, parts: 1, counted: sent, ..flow };
            Some(if waits.is_some() { whole } else { flow })
        };
        let flows_of = |(index, node): (usize, &Vec<u32>)| {
            let next = &nodes[(index + 1) % nodes.len()];
            let of_rank = move |(place, &rank): (usize, &u32)| {
                let beside = node[(place + 1) % node.len()];
                let (load, waits) = if place < rings { (levels.scale_up, inside) } else { (levels.passing, passing) };
                let within = flow(rank, beside, load, Time::ZERO, waits);
                let leaving = (place < rings).then(|| flow(rank, next[place], levels.nic, before, outside));
                [within, leaving.flatten()]
            };
            node.iter().enumerate().flat_map(of_rank).flatten().collect::<Vec<_>>()
        };
        nodes.iter().enumerate().flat_map(flows_of).collect()
    }

    /// Returns the exposed delay of all rounds but the last; `None` if chunks do not hide any delay.
    fn exposed_delay(
        &self,
        levels: &Levels,
        link: &Link,
        load: PortLoad,
        bytes: Bytes,
        chunking: Chunking,
    ) -> Option<Time> {
        if chunking.depth == 1 || levels.is_pipelined || load.rounds() == 0 {
            return None;
        }
        let sending = u128::from(serialization(link.rate, load.bytes(bytes)).ps()) * u128::from(chunking.depth - 1)
            / (u128::from(load.rounds()) * u128::from(chunking.depth));
        let each = u128::from(link.delay.ps()).saturating_sub(sending);
        Some(picoseconds(each * u128::from(load.rounds() - 1)))
    }

    /// Returns the time that reductions add to the collective, over all rounds.
    fn reduction_time(&self, levels: &Levels, bytes: Bytes, chunking: Chunking) -> Time {
        let Some(rate) = chunking.adding.filter(|_| levels.reductions > 0) else { return Time::ZERO };
        let both = [(&self.scale_up, levels.scale_up), (&self.nic, levels.nic)];
        let sending =
            both.map(|(link, load)| u128::from(serialization(link.rate, load.bytes(bytes)).ps())).into_iter().max();
        let (sending, all) = (sending.unwrap_or(0), u128::from(serialization(rate, bytes).ps()));
        if levels.is_pipelined {
            return picoseconds(all.saturating_sub(sending));
        }
        let rounds = u128::from(both.iter().map(|(_, load)| load.rounds()).sum::<u32>().max(1));
        let delays = both.map(|(link, load)| u128::from(link.delay.ps()) * u128::from(load.rounds()));
        let (sending, delay) = (sending / rounds, delays.iter().sum::<u128>() / rounds);
        let (adding, depth) = (all / u128::from(levels.reductions + 1), u128::from(chunking.depth));
        let round = |adding| sending.max(adding).max((sending + adding) / depth + delay);
        picoseconds((round(adding) - round(0)) * u128::from(levels.reductions))
    }
}

/// Returns the serialization time of `bytes`.
fn serialization(rate: Rate, bytes: Bytes) -> Time {
    rate.serialize(bytes, 1, 1).unwrap_or(Time::MAX)
}

fn picoseconds(time: u128) -> Time {
    Time::from_ps(u64::try_from(time).unwrap_or(u64::MAX))
}
