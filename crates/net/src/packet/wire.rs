//! The representation of a packet. A packet is small because it is copied once or twice per hop.

/// A packet: 24 bytes, passed by value. Fields that contain several values have accessor methods. Fields are public for
/// struct update syntax (`..packet`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// Slot of the connection.
    pub connection: u32,
    /// Destination host.
    pub dst: u32,
    pub number_low: u32,
    /// Timestamp, see [`Wire::stamp`]. If the packet has SACK blocks, this is their index in the [`SackPool`], which
    /// then also stores the timestamp.
    pub stamp: u32,
    pub number_high: u16,
    /// Generation of the slot: distinguishes this connection's packets from those of earlier connections in the slot.
    pub generation: u16,
    /// Bytes on the wire, headers and framing included.
    pub wire_bytes: u16,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Band in every qdisc on the path, and the bits [`Wire::HAS_PAYLOAD`] and [`Wire::HAS_SACK`].
    pub band: u8,
}

impl Wire {
    const BAND: u8 = 7;
    const HAS_PAYLOAD: u8 = 1 << 7;
    const HAS_SACK: u8 = 1 << 6;
    /// Number of bits of a packet number. The full 64-bit number is the value nearest to a known one, as with TCP's
    /// 32-bit sequence numbers.
    const NUMBER_BITS: u32 = 48;

    /// A packet whose fields are all zero.
    pub const NOTHING: Self = Self {
        connection: 0,
        dst: 0,
        number_low: 0,
        stamp: 0,
        number_high: 0,
        generation: 0,
        wire_bytes: 0,
        flags: 0,
        band: 0,
    };

    /// Returns the number of the packet, modulo 2^48. Its meaning depends on the kind of packet:
    ///
    /// - data: stream offset of the first payload byte;
    /// - acknowledgement: next byte expected;
    /// - SYN-ACK: its own timestamp;
    /// - announcement of a burst, and answer to it: number of the announcement above the eight bits of the
    ///   type-of-service field.
    #[inline]
    pub fn number(&self) -> u64 {
        u64::from(self.number_high) << u32::BITS | u64::from(self.number_low)
    }

    /// Returns the full 64-bit number, provided that it differs from `near` by less than 2^47.
    #[inline]
    pub fn number_near(&self, near: u64) -> u64 {
        let unused = u64::BITS - Self::NUMBER_BITS;
        let ahead = (self.number().wrapping_sub(near) << unused) as i64 >> unused;
        near.wrapping_add_signed(ahead)
    }

    /// Returns the packet with number `number`.
    #[inline]
    pub fn numbered(self, number: u64) -> Self {
        Self { number_low: number as u32, number_high: (number >> u32::BITS) as u16, ..self }
    }

    /// Returns the timestamp of a data packet (RFC 7323, TSval) or the echo in an acknowledgement (TSecr). SACK blocks
    /// must have been [detached](SackPool::detach).
    #[inline]
    pub fn stamp(&self) -> u32 {
        debug_assert!(self.band & Self::HAS_SACK == 0, "the pool has it");
        self.stamp
    }

    /// Returns the packet with timestamp `stamp`.
    #[inline]
    pub fn stamped(self, stamp: u32) -> Self {
        Self { stamp, ..self }
    }

    #[inline]
    pub fn band(&self) -> u8 {
        self.band & Self::BAND
    }

    /// Returns the packet in band `band`.
    #[inline]
    pub fn in_band(self, band: u8) -> Self {
        Self { band: self.band & !Self::BAND | band, ..self }
    }

    /// Returns whether the packet carries data.
    #[inline]
    pub fn has_payload(&self) -> bool {
        self.band & Self::HAS_PAYLOAD != 0
    }

    #[inline]
    pub fn payload_bytes(&self, header_bytes: u16) -> u16 {
        if self.has_payload() { self.wire_bytes - header_bytes } else { 0 }
    }

    /// Returns the packet with `payload_bytes` of payload added. The packet must consist of headers only.
    #[inline]
    pub fn carrying(self, payload_bytes: u16) -> Self {
        let has_payload = if payload_bytes > 0 { Self::HAS_PAYLOAD } else { 0 };
        Self { wire_bytes: self.wire_bytes + payload_bytes, band: self.band | has_payload, ..self }
    }

    /// Returns whether the packet is data or acknowledges data, and neither opens nor closes a connection. The last
    /// packets of a handshake and of a close go from sender to receiver without payload, so they do not count.
    #[inline]
    pub fn is_data_or_ack(&self) -> bool {
        self.flags & (flag::SYN | flag::FIN | flag::PCN) == 0 && (self.flags & flag::REVERSE != 0 || self.has_payload())
    }

    /// Returns whether the packet is the FIN of a receiver. The receiver must react if the network drops this packet.
    #[inline]
    pub fn is_receiver_fin(&self) -> bool {
        let fin = flag::REVERSE | flag::FIN;
        self.flags & fin == fin
    }
}

/// Bits of [`Wire::flags`].
pub(crate) mod flag {
    /// Travels from the receiver of the data to its sender.
    pub const REVERSE: u8 = 1;
    /// Opens the connection.
    pub const SYN: u8 = 2;
    /// Ends the stream.
    pub const FIN: u8 = 4;
    /// ECN-capable transport (RFC 3168).
    pub const ECT: u8 = 8;
    /// Congestion experienced (RFC 3168).
    pub const CE: u8 = 16;
    /// The receiver's echo of CE (RFC 3168). On a SYN or a SYN-ACK, it announces support for ECN.
    pub const ECE: u8 = 32;
    /// The sender's answer to ECE: the window was reduced (RFC 3168). On a SYN, it announces support for ECN.
    pub const CWR: u8 = 64;
    /// An announcement of a burst or, with [`REVERSE`], the answer to one: see [`super::super::pcn`]. Such a packet is
    /// not TCP.
    pub const PCN: u8 = 128;
}

/// A range of stream offsets, `[start, end)`.
pub(crate) type Block = (u64, u64);

/// The SACK blocks of a packet and their number.
pub(crate) type Blocks = ([Block; SACK_BLOCKS], usize);

/// SACK blocks and timestamps of packets in flight. Packets store only an index, because most have no blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct SackPool {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    blocks: [Block; SACK_BLOCKS],
    count: u8,
    stamp: u32,
}

/// Maximum number of SACK blocks in one acknowledgement (RFC 2018): the 40 bytes of options minus 10 for timestamps and
/// 2 for the header of the SACK option, at 8 bytes a block.
pub(crate) const SACK_BLOCKS: usize = 3;

impl SackPool {
    /// Attaches the first [`SACK_BLOCKS`] of `blocks` to a packet. They are stored until [`SackPool::detach`].
    pub fn attach(&mut self, packet: Wire, blocks: &[Block]) -> Wire {
        if blocks.is_empty() {
            return packet;
        }
        let count = blocks.len().min(SACK_BLOCKS);
        let mut entry = Entry { blocks: [(0, 0); SACK_BLOCKS], count: count as u8, stamp: packet.stamp() };
        entry.blocks[..count].copy_from_slice(&blocks[..count]);
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place as usize] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        Wire { stamp: place, band: packet.band | Wire::HAS_SACK, ..packet }
    }

    /// Removes and returns the blocks of a packet, and frees their entry.
    #[inline]
    pub fn detach(&mut self, packet: &mut Wire) -> Blocks {
        if packet.band & Wire::HAS_SACK == 0 {
            return ([(0, 0); SACK_BLOCKS], 0);
        }
        let Entry { blocks, count, stamp } = self.entries[packet.stamp as usize];
        self.free.push(packet.stamp);
        (packet.stamp, packet.band) = (stamp, packet.band & !Wire::HAS_SACK);
        (blocks, usize::from(count))
    }

    /// Frees the entry of a dropped packet.
    #[inline]
    pub fn forget(&mut self, mut packet: Wire) {
        self.detach(&mut packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_twenty_four_bytes() {
        assert_eq!(size_of::<Wire>(), 24);
    }

    #[test]
    fn numbers_are_told_by_their_last_48_bits() {
        for near in [0_u64, 1 << 30, 1 << 47, (1 << 48) - 1, 3 << 60] {
            for ahead in [0_i64, 1, -1, 1 << 40, -(1 << 40), (1 << 47) - 1] {
                let number = near.wrapping_add_signed(ahead);
                assert_eq!(Wire::NOTHING.numbered(number).number_near(near), number);
            }
        }
    }

    #[test]
    fn blocks_leave_a_packet_as_it_was() {
        let mut pool = SackPool::default();
        let packet = Wire { wire_bytes: 54, ..Wire::NOTHING }.carrying(7).stamped(5).in_band(2);
        assert_eq!((packet.payload_bytes(54), packet.band(), packet.has_payload()), (7, 2, true));
        let mut plain = pool.attach(packet, &[]);
        assert_eq!((pool.detach(&mut plain), plain.stamp()), (([(0, 0); 3], 0), 5));
        let mut first = pool.attach(packet, &[(1, 2)]);
        let second = pool.attach(packet.stamped(6), &[(3, 4), (5, 6), (7, 8), (9, 10)]);
        assert_eq!((pool.detach(&mut first), first.stamp()), (([(1, 2), (0, 0), (0, 0)], 1), 5));
        let mut third = pool.attach(packet, &[(3, 4), (5, 6)]);
        assert_eq!((pool.entries.len(), third.band(), third.payload_bytes(54)), (2, 2, 7));
        assert_eq!(pool.detach(&mut third), ([(3, 4), (5, 6), (0, 0)], 2));
        pool.forget(second);
        assert_eq!(pool.free.len(), 2);
    }
}
