//! The network under a training job: links, queues and the engines that move flows over them.
//!
//! Nothing here knows a layer, a gradient or an iteration. No file, clock, thread or global is touched: time is
//! simulated ([`Network::now`]), so thousands of runs can live in one process and every run gives the same bytes.
//!
//! The crate above uses this one through [`Network`], and through nothing else.

pub mod event;
pub mod fluid;
pub mod hosts;
mod index;
pub mod maxmin;
pub mod nodes;
pub mod packet;
pub mod path;
#[cfg(test)]
mod pipe;
pub mod route;
pub mod scale_up;
pub mod seed;
pub mod topology;
pub mod trace;
pub mod units;

pub use fluid::{Fluid, FluidError};
pub use hosts::{Host, Hosts};
pub use nodes::{Ends, Nodes};
pub use packet::{PacketConfig, PacketEngine, Threads};
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

/// Queue length, in packets, from which switches are to mark while a burst is on its way (Kang et al. 2021, fig. 7): a
/// multiple of [`Announced::STEP`], since a packet has four bits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Announced(u8);

impl Announced {
    /// Packets per unit.
    pub const STEP: u32 = 5;

    /// `packets`, or `None` unless a packet can say it: 0, 5, …, 75.
    pub fn new(packets: u32) -> Option<Self> {
        let fifths = packets / Self::STEP;
        (packets.is_multiple_of(Self::STEP) && fifths < 16).then_some(Self(fifths as u8))
    }

    /// Its four bits.
    pub const fn fifths(self) -> u8 {
        self.0
    }
}

/// Where a flow is in the list of its stream's flows. What starts first may depend on the run, this does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Among all of them, from 0.
    pub number: u32,
    /// Among those of its source, from 1.
    pub of_source: u32,
}

/// Bytes that move from one host to another.
///
/// `rounds` and `parts` describe a lock-step collective as one of its hosts sees it: `rounds` messages of
/// `bytes / parts` each, one after the other, every one followed by the propagation delay. A plain transfer has one
/// of each. They are kept apart from `bytes` because `bytes / parts` need not be whole, and rounding every message
/// would move an iteration by more than the nanosecond that the engines are compared at.
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
    /// Whole bytes that counters count for each message: `bytes`, or of a buffer in `parts` the one that is sent. No
    /// time depends on them.
    pub counted: Bytes,
    /// Time for which the flow holds its queue before the first byte.
    pub hold: Time,
    /// Priority on the network.
    pub band: Band,
    /// Stream that the flow belongs to; returned in its [`Completion`].
    pub stream: u32,
    /// What carries it.
    pub connection: Connection,
    /// Part of a collective that it belongs to. Messages of one part that a host starts at one instant for different
    /// hosts go through its stages as one: see [`hosts`].
    pub part: Option<u32>,
    /// As what burst its sender announces it to the switches first; it begins when the receiver has answered. Engines
    /// whose switches heed no announcements start it at once.
    pub announced: Option<Announced>,
    /// Its place in a list, if its stream has one.
    pub listed: Option<Listed>,
}

impl Flow {
    /// Time for which it occupies a link that carries nothing else: the hold, and its messages one after the other, each
    /// followed by the delay. Rounded once, half up; `None` beyond [`Time::MAX`].
    pub fn time_alone(&self, link: &Link) -> Option<Time> {
        let sending = link.rate.serialize(self.bytes, self.rounds, self.parts)?;
        let propagation = link.delay.ps().checked_mul(u64::from(self.rounds))?;
        self.hold.checked_add(sending)?.checked_add(Time::from_ps(propagation))
    }

    /// Bytes in one message, at once, in the first band and on a connection of their own.
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

    /// What tells connections between two hosts apart: the stream, and a number for each of its bands that has one.
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

/// What carries a flow, and with it when the flow is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// The stream's connection from `src` to `dst`: opened by its first flow, never closed, and shared by all its
    /// flows, whose bytes follow one another. Complete when the *receiver* has the last byte.
    #[default]
    Stream,
    /// The same, but one for each band of the stream, so that what is urgent does not follow what is not. At most
    /// `window` bytes of it are under way, whatever congestion control allows; the first flow of each decides. Engines
    /// without windows heed the band alone.
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

/// What an engine can do. Control flows down, data flows up; an engine may process any number of its own events
/// inside one [`Network::advance`].
pub trait Network {
    /// Current simulated time.
    fn now(&self) -> Time;

    /// Starts a flow at [`now`](Network::now).
    fn start(&mut self, flow: Flow) -> FlowId;

    /// Runs to `until`, or to the first instant at which a flow completes, whichever is earlier, and appends every
    /// flow that completes at that instant to `done`. Flows started at one instant compete as if started together.
    ///
    /// An engine may leave what happens at `until` itself to the next call, so that what the caller starts there comes
    /// first; and it may be told to come back earlier now and then, with nothing complete: see
    /// [`PacketEngine::pause_every`].
    fn advance(&mut self, until: Time, done: &mut Vec<Completion>);

    /// How much payload of each flow under way on a connection of its own ([`Connection::Own`]) the receiver does not have
    /// yet, in no order that means anything. A flow that is not in the list has delivered nothing.
    fn remaining(&self) -> Vec<(FlowId, Bytes)>;

    /// What is still to be sent of `stream`, on connections of all its bands ([`Connection::Stream`]), goes in `band`
    /// from now on. Packets that are on their way stay where they are. Engines that fix the band at the start of a flow
    /// ignore it.
    fn set_band(&mut self, _stream: u32, _band: Band) {}
}

/// An engine that can be copied, for those who look ahead.
pub trait ForkNetwork: Network {
    /// A copy that goes its own way from [`now`](Network::now) on: with the same flows it does the same to the last
    /// picosecond, and what is done to one is not seen by the other.
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
