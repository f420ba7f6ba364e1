//! Receives and sends the frames of the switch: one packet socket receives into a ring of shared memory (TPACKET_V2),
//! and another one sends in batches.
//!
//! The kernel writes each received frame with its arrival time into the next slot of the ring and sets the slot's
//! status to "user". The switch reads the frame and sets the status to "kernel". If the ring is full, the kernel drops
//! and counts the frame.

use crate::sys::{self, Fault};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{mem, ptr, slice};

/// Bytes of a slot of the ring, enough for the kernel's headers and the longest frame.
const SLOT: usize = 2048;
const SLOTS: usize = 1 << 14;
const BLOCK: usize = 1 << 16;
/// Maximum number of frames that one system call sends.
pub(crate) const BATCH: usize = 16;

pub(crate) struct Received<'a> {
    /// Interface that received the frame.
    pub interface: u32,
    /// Arrival, in ns of CLOCK_REALTIME.
    pub at_ns: u64,
    pub bytes: &'a [u8],
    /// Whether the frame arrived without a checksum, which hardware would have added.
    pub lacks_checksum: bool,
}

pub(crate) struct Ring {
    socket: OwnedFd,
    memory: *mut u8,
    next: usize,
}

// SAFETY: only the ring accesses its memory, and only one thread owns the ring.
unsafe impl Send for Ring {}

impl Ring {
    /// Opens the ring, which receives from all interfaces of the thread's network namespace.
    pub fn open() -> Result<Self, Fault> {
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0)?;
        sys::set_option(&socket, "TPACKET_V2", libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as i32))?;
        sys::set_option(&socket, "PACKET_IGNORE_OUTGOING", PACKET_IGNORE_OUTGOING, &1_i32)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (SLOT * SLOTS / BLOCK) as u32,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: SLOTS as u32,
        };
        sys::set_option(&socket, "PACKET_RX_RING", libc::PACKET_RX_RING, &request)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, of the size of the ring.
        let memory =
            unsafe { libc::mmap(ptr::null_mut(), SLOT * SLOTS, protection, libc::MAP_SHARED, socket.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(Fault::last("ring memory"));
        }
        let ring = Self { socket, memory: memory.cast(), next: 0 };
        sys::bind_packets(&ring.socket, libc::ETH_P_ALL)?;
        Ok(ring)
    }

    /// Passes the next received frame to `read`. Returns `false` if there is none.
    pub fn read(&mut self, read: impl FnOnce(&Received)) -> bool {
        // SAFETY: `next` is below the number of slots, and slots are aligned to their size.
        let slot = unsafe { self.memory.add(self.next * SLOT) };
        // SAFETY: a slot begins with its status, which the kernel writes concurrently.
        let status = unsafe { AtomicU32::from_ptr(slot.cast()) };
        let seen = status.load(Ordering::Acquire);
        if seen & libc::TP_STATUS_USER == 0 {
            return false;
        }
        // SAFETY: the kernel has completed the slot. It contains the header, the address, and `tp_snaplen` bytes from
        // `tp_mac` on, which the kernel has limited to the slot.
        let received = unsafe {
            let header = &*slot.cast::<libc::tpacket2_hdr>();
            let address = &*slot.add(ADDRESS).cast::<libc::sockaddr_ll>();
            Received {
                interface: address.sll_ifindex as u32,
                at_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
                bytes: slice::from_raw_parts(slot.add(usize::from(header.tp_mac)), header.tp_snaplen as usize),
                lacks_checksum: seen & TP_STATUS_CSUMNOTREADY != 0,
            }
        };
        read(&received);
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
        true
    }

    /// Waits until a frame arrives, but at most `ns` nanoseconds.
    pub fn wait(&self, ns: u64) {
        sys::wait_readable(&self.socket, ns);
    }

    /// Returns the number of frames that were dropped because the ring was full, since the last call.
    pub fn drops(&self) -> u64 {
        sys::packet_statistics(&self.socket).map_or(0, |(_, drops)| u64::from(drops))
    }
}

/// linux/if_packet.h.
const PACKET_IGNORE_OUTGOING: i32 = 23;
const TP_STATUS_CSUMNOTREADY: u32 = 8;
/// Offset of the sender's address in a slot: the size of the header, rounded up to 16 bytes.
const ADDRESS: usize = mem::size_of::<libc::tpacket2_hdr>().next_multiple_of(16);

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: unmaps the memory that `open` mapped. No reference to it is left.
        unsafe { libc::munmap(self.memory.cast(), SLOT * SLOTS) };
    }
}

pub(crate) struct Sender {
    socket: OwnedFd,
}

impl Sender {
    pub fn open() -> Result<Self, Fault> {
        let socket = sys::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0)?;
        sys::set_option(&socket, "PACKET_QDISC_BYPASS", libc::PACKET_QDISC_BYPASS, &1_i32)?;
        // A larger buffer than the system's limit needs CAP_NET_ADMIN outside of user namespaces. On failure, the
        // default size applies.
        let _ = sys::set_level(&socket, "send buffer", libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &(8_i32 << 20));
        Ok(Self { socket })
    }

    /// Sends at most [`BATCH`] frames, given with the index of their interface. Returns the number of frames that the
    /// kernel refused.
    pub fn send(&self, frames: &[(u32, &[u8])]) -> u64 {
        assert!(frames.len() <= BATCH, "a batch at most");
        // SAFETY: all-zero values of these structures are valid.
        let (mut addresses, mut parts, mut messages): (
            [libc::sockaddr_ll; BATCH],
            [libc::iovec; BATCH],
            [libc::mmsghdr; BATCH],
        ) = unsafe { (mem::zeroed(), mem::zeroed(), mem::zeroed()) };
        for (index, (interface, bytes)) in frames.iter().enumerate() {
            addresses[index].sll_family = libc::AF_PACKET as u16;
            addresses[index].sll_protocol = (libc::ETH_P_IP as u16).to_be();
            addresses[index].sll_ifindex = *interface as i32;
            addresses[index].sll_halen = 6;
            parts[index] = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            let message = &mut messages[index].msg_hdr;
            message.msg_name = ptr::from_mut(&mut addresses[index]).cast();
            message.msg_namelen = mem::size_of::<libc::sockaddr_ll>() as u32;
            message.msg_iov = &mut parts[index];
            message.msg_iovlen = 1;
        }
        let (mut next, mut refused) = (0, 0);
        while next < frames.len() {
            let left = (frames.len() - next) as u32;
            // SAFETY: the messages from `next` on refer to addresses, parts and frames that outlive the call.
            let sent =
                unsafe { libc::sendmmsg(self.socket.as_raw_fd(), &mut messages[next], left, libc::MSG_DONTWAIT) };
            if sent <= 0 {
                refused += 1;
                next += 1;
            } else {
                next += sent as usize;
            }
        }
        refused
    }
}
