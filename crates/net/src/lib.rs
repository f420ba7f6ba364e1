//! The network under a training job: links, queues and the engines that move flows over them.
//!
//! Layers, gradients and iterations do not occur here. The crate uses no file, clock, thread or global state: time is
//! simulated ([`Network::now`]), so thousands of runs can share a process, and every run produces the same bytes.
//!
//! Callers run flows through [`Network`] alone.

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

/// Number of a flow, counted in the order of [`Network::start`] calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowId(pub u64);

/// Strict-priority band of a flow; 0 is served first. [`Band::COUNT`] bands, as in IEEE 802.1Q.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Band(u8);

impl Band {
    /// Number of bands.
    pub const COUNT: usize = 8;

    /// Returns band `index`, or `None` from [`Band::COUNT`] on.
    pub fn new(index: u8) -> Option<Self> {
        (usize::from(index) < Self::COUNT).then_some(Self(index))
    }

    /// Returns the index of the band.
    pub const fn index(self) -> u8 {
        self.0
    }
}

/// Queue length, in packets, from which switches mark while a burst is announced (Kang et al. 2021, fig. 7). It is a
/// multiple of [`Announced::STEP`], because a packet has only four bits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Announced(u8);

impl Announced {
    /// Packets per unit of the threshold's four bits.
    pub const STEP: u32 = 5;

    /// Returns a threshold of `packets`, which must be one of 0, 5, …, 75. Returns `None` for other numbers.
    pub fn new(packets: u32) -> Option<Self> {
        let fifths = packets / Self::STEP;
        (packets.is_multiple_of(Self::STEP) && fifths < 16).then_some(Self(fifths as u8))
    }

    /// Returns the threshold as the four bits in a packet.
    pub const fn fifths(self) -> u8 {
        self.0
    }
}

/// Position of a flow in the list of its stream's flows. Unlike the order of starts, the position does not depend on
/// the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Number of the flow among all flows in the list, from 0.
    pub number: u32,
    /// Number of the flow among the flows of its source, from 1.
    pub of_source: u32,
}

/// Bytes that move from one host to another.
///
/// `rounds` and `parts` describe a host's share of a lock-step collective: `rounds` consecutive messages of `bytes /
/// parts` bytes each. Every message is followed by the propagation delay. A plain transfer has `rounds = 1` and `parts
/// = 1`. `bytes / parts` may be a fraction, because rounding every message would shift an iteration by more than the
/// nanosecond to which the engines are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Sending host.
    pub src: HostId,
    /// Receiving host.
    pub dst: HostId,
    /// Bytes of payload; see `parts`.
    pub bytes: Bytes,
    /// Number of consecutive messages.
    pub rounds: u32,
    /// Divisor of `bytes` for each message; not 0.
    pub parts: u32,
    /// Whole bytes that counters add for each message, although `bytes / parts` may be a fraction. No time depends on
    /// this value.
    pub counted: Bytes,
    /// Time for which the flow occupies its connection before its first byte is sent.
    pub hold: Time,
    /// Priority on the network.
    pub band: Band,
    /// Number by which the caller groups flows, such as the buckets of a job. The network only returns it in the flow's
    /// [`Completion`].
    pub stream: u32,
    /// Connection that carries the flow.
    pub connection: Connection,
    /// Part of a collective to which the flow belongs. Messages of one part that a host starts at one instant for
    /// different hosts pass the host's stages together: see [`hosts`].
    pub part: Option<u32>,
    /// Announcement of the flow as a burst to the switches, if any. The burst begins when the receiver's answer
    /// arrives. Engines that do not model announcements start the flow immediately.
    pub announced: Option<Announced>,
    /// Position of the flow in the list of its stream's flows, if there is such a list.
    pub listed: Option<Listed>,
}

impl Flow {
    /// Returns the duration of the flow on an idle link: the hold and the consecutive messages, each followed by the
    /// delay. The total is rounded once, half up, to a picosecond. Returns `None` beyond [`Time::MAX`].
    pub fn time_alone(&self, link: &Link) -> Option<Time> {
        let sending = link.rate.serialize(self.bytes, self.rounds, self.parts)?;
        let propagation = link.delay.ps().checked_mul(u64::from(self.rounds))?;
        self.hold.checked_add(sending)?.checked_add(Time::from_ps(propagation))
    }

    /// Creates a flow of one message without hold, in the first band, on a connection of its own.
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

    /// Returns the key of the flow's connection from `src` to `dst`: the stream and, if each band has its own
    /// connection, the band.
    pub(crate) fn stream_key(&self) -> StreamKey {
        let band = match self.connection {
            Connection::StreamBand { .. } => 1 + self.band.index(),
            Connection::Stream | Connection::Own => 0,
        };
        StreamKey { stream: self.stream, band }
    }
}

/// Key of a connection between two hosts: see [`Flow::stream_key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamKey {
    pub stream: u32,
    pub band: u8,
}

/// The connection that carries a flow. It determines when the flow counts as complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// The stream's connection from `src` to `dst`. Its first flow opens it, and it is never closed. The bytes of all
    /// its flows follow one another. A flow is complete when the *receiver* has its last byte.
    #[default]
    Stream,
    /// A connection of the stream from `src` to `dst` for each band, so that urgent flows do not queue behind others.
    /// At most `window` bytes are in flight, even if congestion control allows more. The first flow of a connection
    /// sets this limit. Engines without windows ignore the limit.
    StreamBand {
        /// Maximum number of unacknowledged bytes.
        window: Bytes,
    },
    /// A connection for this flow alone. It is opened at the start of the flow and closed at the end. The flow is
    /// complete when the *sender* has closed the connection.
    Own,
}

/// The completion of a flow, as defined by its [`Connection`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The completed flow.
    pub flow: FlowId,
    /// Stream of the flow.
    pub stream: u32,
    /// Time at which the flow became the first in its queue; for a connection of its own, the time at which it was
    /// established.
    pub began: Time,
    /// Time at which the receiver had the last byte.
    pub received: Time,
}

/// The interface of an engine. Calls control the flows, and completions report their ends. An engine may process any
/// number of its own events inside one [`Network::advance`].
pub trait Network {
    /// Returns the current simulated time.
    fn now(&self) -> Time;

    /// Starts a flow at [`now`](Network::now).
    fn start(&mut self, flow: Flow) -> FlowId;

    /// Runs until `until` or until the first instant at which a flow completes, whichever is earlier. Appends every
    /// flow that completes at that instant to `done`. Flows that are started at one instant compete as if they were
    /// started together.
    ///
    /// An engine may leave its events at `until` itself to the next call, so that flows that the caller starts at that
    /// time come first. An engine may also return earlier without a completion: see [`PacketEngine::pause_every`].
    fn advance(&mut self, until: Time, done: &mut Vec<Completion>);

    /// Returns each flow in flight on a connection of its own ([`Connection::Own`]), with the payload bytes that its
    /// receiver has not received. The order is arbitrary. Flows that are not in the list have delivered nothing.
    fn remaining(&self) -> Vec<(FlowId, Bytes)>;

    /// From now on, sends the remaining data of `stream` in `band`. This applies only to connections that all bands
    /// share ([`Connection::Stream`]), and not to packets in flight. Engines that fix the band at the start of a flow
    /// ignore this call.
    fn set_band(&mut self, _stream: u32, _band: Band) {}
}

/// An engine that can be copied, for policies that simulate ahead.
pub trait ForkNetwork: Network {
    /// Returns an independent copy at [`now`](Network::now). For the same flows, the copy behaves identically, to the
    /// picosecond.
    fn fork(&self) -> Box<dyn ForkNetwork>;
}

/// References and boxes.
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
