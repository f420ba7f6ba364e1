//! The few rtnetlink requests that an emulated network needs: veth pairs, addresses, routes and a token bucket.
//!
//! A request consists of a header, a structure that depends on its type, and attributes. An attribute consists of
//! length, type and value, padded to four bytes. The kernel answers each with an error number.

use crate::sys::{self, Fault};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

/// Numbers of request and attribute types, from linux/rtnetlink.h, if_link.h, if_addr.h, pkt_sched.h and veth.h.
mod number {
    pub const NEW_LINK: u16 = 16;
    pub const NEW_ADDRESS: u16 = 20;
    pub const NEW_ROUTE: u16 = 24;
    pub const NEW_QDISC: u16 = 36;
    pub const IFLA_ADDRESS: u16 = 1;
    pub const IFLA_IFNAME: u16 = 3;
    pub const IFLA_MTU: u16 = 4;
    pub const IFLA_LINKINFO: u16 = 18;
    pub const IFLA_NET_NS_FD: u16 = 28;
    pub const IFLA_INFO_KIND: u16 = 1;
    pub const IFLA_INFO_DATA: u16 = 2;
    pub const VETH_INFO_PEER: u16 = 1;
    pub const IFA_LOCAL: u16 = 2;
    pub const RTA_DST: u16 = 1;
    pub const RTA_OIF: u16 = 4;
    pub const RTA_METRICS: u16 = 8;
    pub const RTAX_CC_ALGO: u16 = 16;
    pub const TCA_KIND: u16 = 1;
    pub const TCA_OPTIONS: u16 = 2;
    pub const TCA_TBF_PARMS: u16 = 1;
    pub const TCA_TBF_RATE64: u16 = 4;
    pub const TCA_TBF_BURST: u16 = 6;
    /// NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL and NLM_F_CREATE.
    pub const CREATE: u16 = 0x605;
}

/// A request under construction.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, header: &[u8]) -> Self {
        let mut bytes = vec![0; 16];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&number::CREATE.to_ne_bytes());
        bytes.extend(header);
        Self(bytes)
    }

    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        attribute(&mut self.0, kind, value);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend((4 + value.len() as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn nested(attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    attributes.iter().for_each(|(kind, value)| attribute(&mut bytes, *kind, value));
    bytes
}

fn text(value: &str) -> Vec<u8> {
    [value.as_bytes(), &[0]].concat()
}

/// struct ifinfomsg: family and type, index, flags, and a mask of the flags to change.
fn link_header(index: u32, flags: u32) -> Vec<u8> {
    [[0; 4], index.to_ne_bytes(), flags.to_ne_bytes(), flags.to_ne_bytes()].concat()
}

pub(crate) struct End<'a> {
    pub name: &'a str,
    pub mac: [u8; 6],
}

/// A socket that sends requests to the network namespace in which it was opened.
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    pub fn open() -> Result<Self, Fault> {
        sys::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE).map(Self)
    }

    fn send(&self, what: &'static str, request: Request) -> Result<(), Fault> {
        sys::send(&self.0, &request.finish()).map_err(|fault| fault.of(what))?;
        let mut answer = [0; 512];
        let length = sys::receive(&self.0, &mut answer).map_err(|fault| fault.of(what))?;
        // The answer is a header and struct nlmsgerr, which begins with the negated error number, 0 on success.
        let error = answer[..length].get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
        match error {
            Some(0) => Ok(()),
            error => Err(Fault { what, errno: error.map_or(libc::EBADMSG, |error| -error) }),
        }
    }

    /// Creates a veth pair whose second end is in the namespace `peer_namespace`.
    pub fn veth(&self, near: &End, far: &End, mtu: u32, peer_namespace: &OwnedFd) -> Result<(), Fault> {
        let (near_name, far_name) = (text(near.name), text(far.name));
        let (mtu, namespace) = (mtu.to_ne_bytes(), (peer_namespace.as_raw_fd() as u32).to_ne_bytes());
        let mut peer = link_header(0, 0);
        peer.extend(nested(&[
            (number::IFLA_IFNAME, &far_name),
            (number::IFLA_ADDRESS, &far.mac),
            (number::IFLA_MTU, &mtu),
            (number::IFLA_NET_NS_FD, &namespace),
        ]));
        let data = nested(&[(number::VETH_INFO_PEER, &peer)]);
        let info = nested(&[(number::IFLA_INFO_KIND, b"veth"), (number::IFLA_INFO_DATA, &data)]);
        let request = Request::new(number::NEW_LINK, &link_header(0, 0))
            .with(number::IFLA_IFNAME, &near_name)
            .with(number::IFLA_ADDRESS, &near.mac)
            .with(number::IFLA_MTU, &mtu)
            .with(number::IFLA_LINKINFO, &info);
        self.send("veth", request)
    }

    /// Sets an interface up and sets `flags` on it.
    pub fn up(&self, index: u32, flags: i32) -> Result<(), Fault> {
        let flags = (libc::IFF_UP | flags) as u32;
        let mut request = Request::new(number::NEW_LINK, &link_header(index, flags));
        // NLM_F_REQUEST and NLM_F_ACK, without NLM_F_CREATE: changes an existing interface.
        request.0[6..8].copy_from_slice(&5_u16.to_ne_bytes());
        self.send("interface up", request)
    }

    /// Adds an address without a subnet.
    pub fn address(&self, index: u32, address: Ipv4Addr) -> Result<(), Fault> {
        // struct ifaddrmsg: family, prefix length, flags, scope, index.
        let header = [&[libc::AF_INET as u8, 32, 0, 0][..], &index.to_ne_bytes()].concat();
        self.send("address", Request::new(number::NEW_ADDRESS, &header).with(number::IFA_LOCAL, &address.octets()))
    }

    /// Adds a route to all hosts. Connections over it use the congestion control `congestion`.
    pub fn route(&self, index: u32, congestion: &str) -> Result<(), Fault> {
        // struct rtmsg: family, prefix length of the destination in bits, of the source, ToS, table (main), protocol
        // (RTPROT_STATIC), scope (RT_SCOPE_LINK), type (unicast), flags.
        let header = [libc::AF_INET as u8, 16, 0, 0, 254, 4, 253, 1, 0, 0, 0, 0];
        let name = text(congestion);
        let metrics = nested(&[(number::RTAX_CC_ALGO, &name)]);
        let request = Request::new(number::NEW_ROUTE, &header)
            .with(number::RTA_DST, &[10, 71, 0, 0])
            .with(number::RTA_OIF, &index.to_ne_bytes())
            .with(number::RTA_METRICS, &metrics);
        self.send("route", request)
    }

    /// Limits the rate of an interface by a token bucket of `burst_bytes` behind a queue of `limit_bytes`.
    pub fn token_bucket(&self, index: u32, bytes_per_s: u64, burst_bytes: u32, limit_bytes: u32) -> Result<(), Fault> {
        // struct tcmsg: family, index, handle 1:0, parent root, info.
        let header = [[0; 4], index.to_ne_bytes(), 0x1_0000_u32.to_ne_bytes(), u32::MAX.to_ne_bytes(), [0; 4]].concat();
        // struct tc_tbf_qopt: rate and peak rate of 12 bytes each, limit, buffer and MTU. With a link layer (1:
        // Ethernet), the kernel needs no rate table. A rate above 32 bits is in an attribute of 64 bits.
        let mut options = [0; 36];
        options[1] = 1;
        options[8..12].copy_from_slice(&u32::try_from(bytes_per_s).unwrap_or(u32::MAX).to_ne_bytes());
        options[24..28].copy_from_slice(&limit_bytes.to_ne_bytes());
        let (rate, burst) = (bytes_per_s.to_ne_bytes(), burst_bytes.to_ne_bytes());
        let mut parameters = vec![(number::TCA_TBF_PARMS, &options[..]), (number::TCA_TBF_BURST, &burst[..])];
        if bytes_per_s > u64::from(u32::MAX) {
            parameters.push((number::TCA_TBF_RATE64, &rate));
        }
        let request = Request::new(number::NEW_QDISC, &header)
            .with(number::TCA_KIND, &text("tbf"))
            .with(number::TCA_OPTIONS, &nested(&parameters));
        self.send("token bucket", request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_to_four_bytes() {
        assert_eq!(nested(&[(3, &text("eth0"))]), [9, 0, 3, 0, b'e', b't', b'h', b'0', 0, 0, 0, 0]);
        let request = Request::new(number::NEW_ADDRESS, &[7; 8]).with(2, &[1, 2, 3, 4]).finish();
        assert_eq!((request.len(), request[0]), (32, 32));
    }
}
