//! Ethernet frames with IPv4 packets, as the switch reads and marks them.
//!
//! ```text
//! 0        6        12    14                    34
//! | to MAC | from   | type | IPv4 header          | TCP or UDP
//!                            ^15 type of service
//! ```

use gradtide_net::HostId;
use gradtide_net::packet::Kind;
use std::net::Ipv4Addr;

/// Bytes of an Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Bytes of link-layer framing that the packet engine adds to each IP packet.
pub const FRAMING: u16 = 2;
const IPV4: [u8; 2] = [0x08, 0x00];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// "Congestion experienced" (CE) in the two ECN bits of the type of service (RFC 3168).
const CE: u8 = 3;
/// First bytes of the payload of a burst announcement, a UDP packet that `gradtide bursts` sends.
const ANNOUNCEMENT: &[u8] = b"PCN1";
/// Bits START and ACK in the type of service of a burst announcement (Kang et al. 2021, fig. 7).
const ANNOUNCES: u8 = 0b1100_0000;

/// Returns the address of a host.
pub fn address(host: HostId) -> Ipv4Addr {
    let number = (host.0 + 1).to_be_bytes();
    Ipv4Addr::new(10, 71, number[2], number[3])
}

/// Returns the host with this address, or `None` for an address outside of 10.71.0.0/16.
fn host(address: [u8; 4]) -> Option<HostId> {
    let number = u32::from(u16::from_be_bytes([address[2], address[3]]));
    (address[..2] == [10, 71]).then(|| number.checked_sub(1).map(HostId)).flatten()
}

/// Addresses and ports of one direction of a connection. TCP and UDP with the same ports count as one connection,
/// because a burst on a TCP connection is announced by a UDP packet with the same ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub src: HostId,
    pub dst: HostId,
    pub ports: [u8; 4],
}

impl Key {
    /// Returns the FNV-1a hash by which a switch chooses among equal-cost paths.
    pub fn hash(&self) -> u32 {
        let words = [self.src.0, self.dst.0, u32::from_be_bytes(self.ports)];
        let bytes = words.iter().flat_map(|word| word.to_be_bytes());
        bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }
}

/// What a switch needs of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub key: Key,
    /// Bytes of the IP packet and [`FRAMING`].
    pub wire_bytes: u16,
    pub tos: u8,
    pub kind: Kind,
}

impl Header {
    /// Reads a frame. Returns `None` if the frame is truncated or is not an IPv4 packet between hosts.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let ip = frame.get(ETHERNET..)?;
        if frame[12..ETHERNET] != IPV4 || ip.len() < 20 || ip[0] >> 4 != 4 {
            return None;
        }
        let total = u16::from_be_bytes([ip[2], ip[3]]);
        let header = usize::from(ip[0] & 15) * 4;
        let above = ip.get(header..usize::from(total))?;
        let address = |at: usize| [ip[at], ip[at + 1], ip[at + 2], ip[at + 3]];
        let (src, dst) = (host(address(12))?, host(address(16))?);
        let is_first = u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff == 0;
        let ports = above.first_chunk().copied().filter(|_| is_first && matches!(ip[9], TCP | UDP));
        let is_announcement = ip[9] == UDP && ip[1] & ANNOUNCES != 0 && above.get(8..12) == Some(ANNOUNCEMENT);
        let headers = if ip[9] == TCP { above.get(12).map_or(20, |offset| usize::from(offset >> 4) * 4) } else { 8 };
        let kind = match is_announcement {
            true => Kind::Announcement(ip[1]),
            false if above.len() > headers => Kind::Data,
            false => Kind::Empty,
        };
        let key = Key { src, dst, ports: ports.unwrap_or_default() };
        Some(Self { key, wire_bytes: total.checked_add(FRAMING)?, tos: ip[1], kind })
    }

    /// Returns whether the packet is ECN-capable or already marked.
    pub fn is_ecn_capable(&self) -> bool {
        self.tos & CE != 0 && !matches!(self.kind, Kind::Announcement(_))
    }
}

/// Sets the ECN mark "congestion experienced" in an IPv4 frame, and updates the checksum of the IP header.
pub(crate) fn mark(frame: &mut [u8]) {
    let before = u16::from_be_bytes([frame[ETHERNET], frame[ETHERNET + 1]]);
    frame[ETHERNET + 1] |= CE;
    let after = u16::from_be_bytes([frame[ETHERNET], frame[ETHERNET + 1]]);
    let check = ETHERNET + 10;
    // RFC 1624, eqn. 3: HC' = ~(~HC + ~m + m').
    let old = u16::from_be_bytes([frame[check], frame[check + 1]]);
    let mut sum = u32::from(!old) + u32::from(!before) + u32::from(after);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // The sum was folded to 16 bits.
    frame[check..check + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(protocol: u8, tos: u8, above: &[u8]) -> Vec<u8> {
        let total = (20 + above.len()) as u16;
        let mut ip = vec![0x45, tos, 0, 0, 0, 7, 0x40, 0, 64, protocol, 0, 0, 10, 71, 0, 3, 10, 71, 1, 1];
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        let check = checksum(&ip);
        ip[10..12].copy_from_slice(&check.to_be_bytes());
        let mut frame = vec![2; 12];
        frame.extend(IPV4);
        frame.extend(ip);
        frame.extend(above);
        frame
    }

    /// RFC 1071: ones' complement of the ones' complement sum.
    fn checksum(header: &[u8]) -> u16 {
        let mut sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    fn tcp(payload: usize) -> Vec<u8> {
        let mut above = vec![0; 32 + payload];
        above[..4].copy_from_slice(&[0x13, 0x88, 0x1d, 0x32]);
        above[12] = 8 << 4;
        above
    }

    #[test]
    fn addresses_and_hosts_are_one_to_one() {
        for number in [0, 1, 254, 255, 256, 65_534] {
            assert_eq!(host(address(HostId(number)).octets()), Some(HostId(number)));
        }
        assert_eq!((host([10, 71, 0, 0]), host([10, 72, 0, 1])), (None, None));
    }

    #[test]
    fn the_kind_depends_on_the_payload() {
        let header = Header::parse(&frame(TCP, 2, &tcp(100))).unwrap();
        assert_eq!((header.key.src, header.key.dst), (HostId(2), HostId(256)));
        assert_eq!((header.kind, header.wire_bytes, header.is_ecn_capable()), (Kind::Data, 20 + 32 + 100 + 2, true));
        assert_eq!(Header::parse(&frame(TCP, 0, &tcp(0))).unwrap().kind, Kind::Empty);
        let mut udp = vec![0x13, 0x88, 0x1d, 0x32, 0, 26, 0, 0];
        udp.extend(b"PCN1");
        udp.extend([0; 14]);
        let start = Header::parse(&frame(UDP, 0b1000_1000, &udp)).unwrap();
        assert_eq!((start.kind, start.is_ecn_capable()), (Kind::Announcement(0b1000_1000), false));
        assert_eq!(start.key, header.key, "a burst and its announcement are one connection");
        assert_eq!(Header::parse(&frame(UDP, 0, &udp)).unwrap().kind, Kind::Data);
    }

    #[test]
    fn no_cut_or_changed_frame_is_read_beyond_its_end() {
        for whole in [frame(TCP, 2, &tcp(9)), frame(UDP, 0x88, &[0; 8])] {
            for length in 0..whole.len() {
                assert!(Header::parse(&whole[..length]).is_none(), "{length}");
            }
            for at in 0..whole.len() {
                for value in [0, 1, 0x4f, 0x50, 0xff] {
                    let mut changed = whole.clone();
                    changed[at] = value;
                    let _ = Header::parse(&changed);
                }
            }
        }
    }

    #[test]
    fn a_mark_keeps_the_checksum_right() {
        for tos in 0..=255 {
            let mut marked = frame(TCP, tos, &tcp(3));
            mark(&mut marked);
            let ip = &marked[ETHERNET..ETHERNET + 20];
            assert_eq!((ip[1], checksum(ip)), (tos | CE, 0));
        }
    }
}
