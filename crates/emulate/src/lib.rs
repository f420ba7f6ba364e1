//! Emulates the network of a scenario with real packets: hosts are network namespaces, and a thread forwards their
//! frames as the packet engine's switches do.
//!
//! ```text
//! command ── kernel's TCP ── eth0 ══ veth ══ packet socket ── Forwarder (crate net) ── packet socket ══ veth ══ …
//! ```
//!
//! Only this crate reads clocks, opens sockets and starts processes. The crate `net` decides what happens to a packet.
//! Emulation runs on Linux only, and needs the right to create namespaces: root, or root of a user namespace. It
//! changes nothing outside the namespaces that it creates, and they vanish when the process ends.

mod lateness;

pub use lateness::{Delays, LATE_NS};

#[cfg(target_os = "linux")]
mod emulation;
#[cfg(target_os = "linux")]
mod frame;
#[cfg(target_os = "linux")]
mod namespace;
#[cfg(target_os = "linux")]
mod netlink;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(target_os = "linux")]
mod switch;
#[cfg(target_os = "linux")]
mod sys;

#[cfg(target_os = "linux")]
pub use emulation::{Emulation, EmulationConfig, EmulationError, Outcome};
#[cfg(target_os = "linux")]
pub use frame::{FRAMING, address};
#[cfg(target_os = "linux")]
pub use namespace::HostConfig;
#[cfg(target_os = "linux")]
pub use process::Program;
#[cfg(target_os = "linux")]
pub use switch::{Counts, Failure, HOLD_BACK_NS, Opening, PACKETS_PER_S, Record, Sample, SwitchConfig};
