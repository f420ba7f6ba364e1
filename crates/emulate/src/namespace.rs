//! Network namespaces of hosts, each with a veth pair to the switch.
//!
//! ```text
//! host 0: eth0 10.71.0.1 ── h0 ┐
//! host 1: eth0 10.71.0.2 ── h1 ┤ switch: a packet socket over h0, h1, …
//! ```
//!
//! A namespace has no name: it exists while a descriptor or a process refers to it, so nothing is left of it when the
//! process exits or is killed. Interfaces of hosts use no ARP, because the switch writes the destination's MAC address
//! into each frame.

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

/// Bytes per packet that a token bucket counts in addition to the IP packet: the Ethernet header.
const COUNTED: u64 = crate::frame::ETHERNET as u64;
/// Size of a host's token bucket, as a time in us at the bucket's rate. It makes up for a late timer of the kernel.
const BURST_US: u64 = 100;
/// Maximum length of the queue in front of a host's token bucket, in packets.
const LIMIT: u32 = 1_000;

pub(crate) struct Namespaces {
    /// Namespace of each host.
    pub hosts: Vec<OwnedFd>,
    /// Index of each host's interface in the switch's namespace.
    pub interfaces: Vec<u32>,
}

/// Returns the MAC address of a host's end of its veth pair or, with `is_switch`, of the switch's end.
pub(crate) fn mac(host: usize, is_switch: bool) -> [u8; 6] {
    // Locally administered.
    [2, 71, 0, u8::from(is_switch), (host >> 8) as u8, host as u8]
}

/// Runs `work` in a new thread, so that namespaces that it enters do not affect the calling thread.
fn apart<T: Send>(work: impl FnOnce() -> Result<T, Fault> + Send) -> Result<T, Fault> {
    let stopped = Fault { what: "thread", errno: libc::ECANCELED };
    thread::scope(|scope| scope.spawn(work).join().unwrap_or(Err(stopped)))
}

fn namespace() -> Result<OwnedFd, Fault> {
    sys::unshare("network namespace", libc::CLONE_NEWNET)?;
    let file = fs::File::open("/proc/thread-self/ns/net").map_err(|_| Fault::last("network namespace"))?;
    Ok(file.into())
}

/// Writes a kernel setting, such as a sysctl. Returns `false` if the kernel rejects it or does not have it.
fn set(path: &str, value: &str) -> bool {
    fs::write(path, value).is_ok()
}

impl Namespaces {
    /// Creates the hosts of a network, and moves the calling thread to a new namespace for the switch. `processors` are
    /// those that process received packets.
    pub fn create(config: &HostConfig, processors: &[usize]) -> Result<Self, Fault> {
        // The descriptor is not needed later: the calling thread stays in this namespace.
        let _switch = namespace()?;
        set("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        let netlink = Netlink::open()?;
        let (mut hosts, mut interfaces) = (Vec::new(), Vec::new());
        for (host, &rate_bps) in config.rates_bps.iter().enumerate() {
            let namespace = apart(namespace)?;
            let name = format!("h{host}");
            let near = End { name: &name, mac: mac(host, true) };
            let far = End { name: "eth0", mac: mac(host, false) };
            // Disabled before the interface exists, because IPv6 would otherwise send packets on it.
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
    // Without these offloads, the packet socket receives packets with checksums, and as they would be on the wire.
    for feature in [ethtool::TX_CHECKSUM, ethtool::TSO, ethtool::GSO] {
        sys::set_feature(&socket, "eth0", feature, false)?;
    }
    let netlink = Netlink::open()?;
    let (interface, loopback) = (sys::interface("eth0")?, sys::interface("lo")?);
    netlink.up(loopback, 0)?;
    netlink.address(interface, address(HostId(host as u32)))?;
    netlink.up(interface, libc::IFF_NOARP)?;
    netlink.route(interface, &config.congestion)?;
    // Full packets shall leave at the rate that the packet engine computes. The engine adds `FRAMING` bytes to a
    // packet, but the token bucket adds `COUNTED` bytes, so its rate is scaled.
    let packet = u64::from(config.mtu);
    let bytes_per_s = u128::from(rate_bps) * u128::from(packet + COUNTED)
        / (8 * u128::from(packet + u64::from(crate::frame::FRAMING)));
    let bytes_per_s = u64::try_from(bytes_per_s).unwrap_or(u64::MAX);
    let burst = (bytes_per_s / 1_000_000 * BURST_US).max(2 * (packet + COUNTED)).min(u64::from(u32::MAX)) as u32;
    netlink.token_bucket(interface, bytes_per_s.max(1), burst, LIMIT * (u32::from(config.mtu) + COUNTED as u32))?;
    set("/proc/sys/net/ipv4/tcp_ecn", if config.ecn { "1" } else { "0" });
    // Otherwise a connection inherits the slow-start threshold of an earlier connection to the same host.
    set("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
    receive_on(&socket, processors);
    Ok(())
}

/// Moves the processing of received packets away from the processor that sends them: to `processors` (RPS, which needs
/// root), or else to a kernel thread. Errors are ignored, because they only make packets later.
fn receive_on(socket: &OwnedFd, processors: &[usize]) {
    let mask: u64 = processors.iter().filter(|&&number| number < 64).map(|&number| 1 << number).sum();
    let seen = sys::unshare("mounts", libc::CLONE_NEWNS)
        .and_then(|()| sys::mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE))
        .and_then(|()| sys::mount(c"sysfs", c"/sys", c"sysfs", 0));
    if seen.is_ok() && !set("/sys/class/net/eth0/queues/rx-0/rps_cpus", &format!("{mask:x}")) {
        // GRO gives the veth interface a NAPI instance, which a kernel thread can poll. With RPS, GRO would only add
        // work on the sending processor.
        let _ = sys::set_feature(socket, "eth0", ethtool::GRO, true);
        set("/sys/class/net/eth0/threaded", "1");
    }
}
