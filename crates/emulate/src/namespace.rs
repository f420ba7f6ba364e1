//! Network namespaces of hosts, each with a veth pair to the switch.
//!
//! ```text
//! host 0: eth0 10.71.0.1 ── h0 ┐
//! host 1: eth0 10.71.0.2 ── h1 ┤ switch: a packet socket over h0, h1, …
//! ```
//!
//! A namespace has no name: it exists while a descriptor or a process refers to it, so nothing is left of it when the
//! process ends, however it ends. Interfaces of hosts have no ARP, because the switch addresses each frame to its host.

use crate::frame::address;
use crate::netlink::{End, Netlink};
use crate::sys::{self, Fault, ethtool};
use gradtide_net::HostId;
use std::fs;
use std::os::fd::OwnedFd;
use std::thread;

/// How hosts are connected.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Longest IP packet, in bytes.
    pub mtu: u16,
    /// Congestion control of the kernel.
    pub congestion: String,
    /// Whether TCP negotiates ECN.
    pub ecn: bool,
    /// Rate of each host's link, in bit/s.
    pub rates_bps: Vec<u64>,
}

/// Bytes that a token bucket counts beside the IP packet: the Ethernet header.
const COUNTED: u64 = crate::frame::ETHERNET as u64;
/// Time in which a host may send a burst at more than its rate, in us: the tokens that accumulate while the timer of the
/// bucket is late.
const BURST_US: u64 = 100;
/// Queue of a host's token bucket, in packets.
const LIMIT: u32 = 1_000;

/// The namespaces of a network.
pub(crate) struct Namespaces {
    /// Namespace of each host.
    pub hosts: Vec<OwnedFd>,
    /// Interface of each host in the switch's namespace.
    pub interfaces: Vec<u32>,
}

/// Returns the MAC address of a host's end; with `is_switch`, of the other end.
pub(crate) fn mac(host: usize, is_switch: bool) -> [u8; 6] {
    // Locally administered.
    [2, 71, 0, u8::from(is_switch), (host >> 8) as u8, host as u8]
}

/// Runs `work` in a thread of its own, whose namespaces nobody shares.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, Fault> + Send) -> Result<T, Fault> {
    let stopped = Fault { what: "thread", errno: libc::ECANCELED };
    thread::scope(|scope| scope.spawn(work).join().unwrap_or(Err(stopped)))
}

fn namespace() -> Result<OwnedFd, Fault> {
    sys::unshare("network namespace", libc::CLONE_NEWNET)?;
    let file = fs::File::open("/proc/thread-self/ns/net").map_err(|_| Fault::last("network namespace"))?;
    Ok(file.into())
}

/// Writes a setting of the thread's network namespace. Returns whether the kernel has it.
fn set(path: &str, value: &str) -> bool {
    fs::write(path, value).is_ok()
}

impl Namespaces {
    /// Creates the hosts of a network, and moves the thread to the new namespace of the switch. Packets are received on
    /// `processors`.
    pub fn create(config: &HostConfig, processors: &[usize]) -> Result<Self, Fault> {
        // Kept in the thread's own table until the socket is opened.
        let _switch = namespace()?;
        set("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        let netlink = Netlink::open()?;
        let (mut hosts, mut interfaces) = (Vec::new(), Vec::new());
        for (host, &rate_bps) in config.rates_bps.iter().enumerate() {
            let namespace = apart(namespace)?;
            let name = format!("h{host}");
            let near = End { name: &name, mac: mac(host, true) };
            let far = End { name: "eth0", mac: mac(host, false) };
            // IPv6 must be off before the interface exists, or it sends packets of its own.
            apart(|| {
                sys::enter(&namespace)?;
                set("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
                Ok(())
            })?;
            netlink.veth(&near, &far, u32::from(config.mtu), &namespace)?;
            apart(|| connect(&namespace, host, rate_bps, config, processors))?;
            let interface = sys::interface(&name)?;
            netlink.up(interface, 0)?;
            hosts.push(namespace);
            interfaces.push(interface);
        }
        Ok(Self { hosts, interfaces })
    }
}

/// Configures the interface of a host.
fn connect(
    namespace: &OwnedFd,
    host: usize,
    rate_bps: u64,
    config: &HostConfig,
    processors: &[usize],
) -> Result<(), Fault> {
    sys::enter(namespace)?;
    let socket = sys::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0)?;
    // A packet socket sees neither checksums that hardware would compute nor the parts of a large segment.
    for feature in [ethtool::TX_CHECKSUM, ethtool::TSO, ethtool::GSO] {
        sys::set_feature(&socket, "eth0", feature, false)?;
    }
    let netlink = Netlink::open()?;
    let (interface, loopback) = (sys::interface("eth0")?, sys::interface("lo")?);
    netlink.up(loopback, 0)?;
    netlink.address(interface, address(HostId(host as u32)))?;
    netlink.up(interface, libc::IFF_NOARP)?;
    netlink.route(interface, &config.congestion)?;
    // Full packets leave at the rate of the link, on which the packet engine counts fewer bytes of framing.
    let packet = u64::from(config.mtu);
    let bytes_per_s = u128::from(rate_bps) * u128::from(packet + COUNTED)
        / (8 * u128::from(packet + u64::from(crate::frame::FRAMING)));
    let bytes_per_s = u64::try_from(bytes_per_s).unwrap_or(u64::MAX);
    let burst = (bytes_per_s / 1_000_000 * BURST_US).max(2 * (packet + COUNTED)).min(u64::from(u32::MAX)) as u32;
    netlink.token_bucket(interface, bytes_per_s.max(1), burst, LIMIT * (u32::from(config.mtu) + COUNTED as u32))?;
    set("/proc/sys/net/ipv4/tcp_ecn", if config.ecn { "1" } else { "0" });
    // Otherwise a connection inherits the threshold of the last one.
    set("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
    receive_on(&socket, processors);
    Ok(())
}

/// Moves the processing of received packets away from the processor that sends them: to `processors` as root, otherwise
/// to a thread of the kernel. Errors are ignored, because this affects only how late packets are.
fn receive_on(socket: &OwnedFd, processors: &[usize]) {
    let mask: u64 = processors.iter().filter(|&&number| number < 64).map(|&number| 1 << number).sum();
    let seen = sys::unshare("mounts", libc::CLONE_NEWNS)
        .and_then(|()| sys::mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE))
        .and_then(|()| sys::mount(c"sysfs", c"/sys", c"sysfs", 0));
    if seen.is_ok() && !set("/sys/class/net/eth0/queues/rx-0/rps_cpus", &format!("{mask:x}")) {
        // With GRO, an interface has a queue of its own, which a thread can empty. Beside RPS it would only add work on
        // the processor that sends.
        let _ = sys::set_feature(socket, "eth0", ethtool::GRO, true);
        set("/sys/class/net/eth0/threaded", "1");
    }
}
