//! The network under a training job: links, queues and the engines that move flows over them.
//!
//! Layers, gradients and iterations do not occur here. The crate uses no file, clock, thread or global: time is
//! simulated ([`Network::now`]), so thousands of runs can share a process, and every run gives the same bytes.
//!
//! The crate above runs flows through [`Network`] alone.

pub mod event;
pub mod fluid;
#[cfg(test)]
mod host_queues;
pub mod hosts;
mod index;
pub mod maxmin;
pub mod nodes;
pub mod packet;
pub mod path;
pub mod route;
pub mod scale_up;
pub mod seed;
pub mod topology;
pub mod trace;
pub mod units;

pub use fluid::{Fluid, FluidError};
pub use hosts::{Host, Hosts};
pub use nodes::{Ends, Nodes};
pub use packet::{PacketConfig, PacketEngine};
pub use scale_up::ScaleUp;
pub use seed::Seed;
pub use topology::{FabricError, FatTree, Graph, HostId, Link, NodeId, PortId, Star};
pub use units::{Bytes, Rate, Ratio, Time};

use std::ops::DerefMut;

/// Identity of a flow, in the order of [`Network::start`] calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowId(pub u64);

/// Strict-priority band of a flow; 0 is served first. [`Band::COUNT`] bands, as in IEEE 802.1Q.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Band(u8);

impl Band {
    /// Number of bands.
    pub const COUNT: usize = 8;

    /// Band `index`, or `None` from [`Band::COUNT`] on.
    pub fn new(index: u8) -> Option<Self> {
        (usize::from(index) < Self::COUNT).then_some(Self(index))
    }

    /// Its number.
    pub const fn index(self) -> u8 {
        self.0
    }
}

/// Queue length, in packets, from which switches mark while a burst is announced (Kang et al. 2021, fig. 7): a multiple
/// of [`Announced::STEP`], because a packet has four bits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Announced(u8);

impl Announced {
    /// Packets per unit.
    pub const STEP: u32 = 5;

    /// `packets`, or `None` if a packet cannot carry the number: 0, 5, …, 75.
    pub fn new(packets: u32) -> Option<Self> {
        let fifths = packets / Self::STEP;
        (packets.is_multiple_of(Self::STEP) && fifths < 16).then_some(Self(fifths as u8))
    }

    /// Its four bits.
    pub const fn fifths(self) -> u8 {
        self.0
    }
}

/// Place of a flow in the list of its stream's flows. The order of starts may depend on the run, the place does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number among all flows of the list, from 0.
    pub number: u32,
    /// Its number among those of its source, from 1.
    pub of_source: u32,
}

/// Bytes that move from one host to another.
///
/// `rounds` and `parts` describe a host's share of a lock-step collective: `rounds` messages of `bytes / parts` each,
/// one after the other, every one followed by the propagation delay. A plain transfer has one of each. `bytes / parts`
/// need not be whole: rounding every message would shift an iteration by more than the nanosecond to which the engines
/// are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Sending host.
    pub src: HostId,
    /// Receiving host.
    pub dst: HostId,
    /// Bytes of payload; see `parts`.
    pub bytes: Bytes,
    /// Messages sent one after the other.
    pub rounds: u32,
    /// Number that `bytes` is divided by for each message; not 0.
    pub parts: u32,
    /// Whole bytes that counters count for each message: `bytes`, or the part of a buffer in `parts`. No time depends
    /// on them.
    pub counted: Bytes,
    /// Time for which the flow holds its queue before the first byte.
    pub hold: Time,
    /// Priority on the network.
    pub band: Band,
    /// Stream that the flow belongs to; returned in its [`Completion`].
    pub stream: u32,
    /// Connection that carries it.
    pub connection: Connection,
    /// Part of a collective that it belongs to. Messages of one part that a host starts at one instant for different
    /// hosts pass its stages together: see [`hosts`].
    pub part: Option<u32>,
    /// The burst as which its sender announces it to the switches; it begins when the receiver has answered. Engines
    /// without announcements start it at once.
    pub announced: Option<Announced>,
    /// Its place in a list, if its stream has one.
    pub listed: Option<Listed>,
}

impl Flow {
    /// Time of the flow on an idle link: the hold, and its messages one after the other, each followed by the delay.
    /// Rounded once, half up; `None` beyond [`Time::MAX`].
    pub fn time_alone(&self, link: &Link) -> Option<Time> {
        let sending = link.rate.serialize(self.bytes, self.rounds, self.parts)?;
        let propagation = link.delay.ps().checked_mul(u64::from(self.rounds))?;
        self.hold.checked_add(sending)?.checked_add(Time::from_ps(propagation))
    }

    /// A flow of one message, without hold, in the first band and on a connection of its own.
    pub const fn alone(src: HostId, dst: HostId, bytes: Bytes) -> Self {
        let (hold, band, connection) = (Time::ZERO, Band(0), Connection::Own);
        let (part, announced, listed) = (None, None, None);
        Self {
            src,
            dst,
            bytes,
            rounds: 1,
            parts: 1,
            counted: bytes,
            hold,
            band,
            stream: 0,
            connection,
            part,
            announced,
            listed,
        }
    }

    /// Key of a connection between two hosts: the stream, and its band where each band has a connection.
    pub(crate) fn stream_key(&self) -> StreamKey {
        let band = match self.connection {
            Connection::StreamBand { .. } => 1 + self.band.index(),
            Connection::Stream | Connection::Own => 0,
        };
        StreamKey { stream: self.stream, band }
    }
}

/// See [`Flow::stream_key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamKey {
    pub stream: u32,
    pub band: u8,
}

/// The connection that carries a flow. It determines when the flow is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// The stream's connection from `src` to `dst`: opened by its first flow, never closed, and shared by all its
    /// flows, whose bytes follow one another. Complete when the *receiver* has the last byte.
    #[default]
    Stream,
    /// The same, but one for each band of the stream, so that urgent flows do not queue behind others. At most `window`
    /// bytes are in flight, whatever congestion control allows; the first flow of each connection sets it. Engines
    /// without windows use the band alone.
    StreamBand {
        /// Most bytes without an acknowledgement.
        window: Bytes,
    },
    /// A connection of its own, opened at the start and closed at the end. Complete when the *sender* has closed it.
    Own,
}

/// A flow is complete; see [`Connection`] for what that means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which flow.
    pub flow: FlowId,
    /// Its stream.
    pub stream: u32,
    /// When it took the first place of its queue; for a connection of its own, when that was established.
    pub began: Time,
    /// When the receiver had the last byte.
    pub received: Time,
}

/// The interface of an engine. Control flows down, data flows up; an engine may process any number of its own events
/// inside one [`Network::advance`].
pub trait Network {
    /// Current simulated time.
    fn now(&self) -> Time;

    /// Starts a flow at [`now`](Network::now).
    fn start(&mut self, flow: Flow) -> FlowId;

    /// Runs to `until`, or to the first instant at which a flow completes, whichever is earlier, and appends every
    /// flow that completes at that instant to `done`. Flows started at one instant compete as if started together.
    ///
    /// An engine may leave its events at `until` itself to the next call, so that flows which the caller starts there
    /// come first; and it may return earlier, without a completion: see [`PacketEngine::pause_every`].
    fn advance(&mut self, until: Time, done: &mut Vec<Completion>);

    /// Payload that the receiver still lacks, of each flow in flight on a connection of its own ([`Connection::Own`]),
    /// in no particular order. A flow that is not in the list has delivered nothing.
    fn remaining(&self) -> Vec<(FlowId, Bytes)>;

    /// Sends the rest of `stream`, on its connections for all bands ([`Connection::Stream`]), in `band` from now on.
    /// Packets in flight keep their band. Engines that fix the band at the start of a flow ignore it.
    fn set_band(&mut self, _stream: u32, _band: Band) {}
}

/// An engine that can be copied, for policies that look ahead.
pub trait ForkNetwork: Network {
    /// An independent copy at [`now`](Network::now): with the same flows it behaves the same to the picosecond.
    fn fork(&self) -> Box<dyn ForkNetwork>;
}

/// A reference, a box.
impl<P: DerefMut<Target: Network>> Network for P {
    fn now(&self) -> Time {
        (**self).now()
    }

    fn start(&mut self, flow: Flow) -> FlowId {
        (**self).start(flow)
    }

    fn advance(&mut self, until: Time, done: &mut Vec<Completion>) {
        (**self).advance(until, done);
    }

    fn remaining(&self) -> Vec<(FlowId, Bytes)> {
        (**self).remaining()
    }

    fn set_band(&mut self, stream: u32, band: Band) {
        (**self).set_band(stream, band);
    }
}

impl<P: DerefMut<Target: ForkNetwork>> ForkNetwork for P {
    fn fork(&self) -> Box<dyn ForkNetwork> {
        (**self).fork()
    }
}
