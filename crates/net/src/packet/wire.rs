//! A packet, as small as it can be: it is copied once or twice per hop.

/// What moves over a link: 32 bytes, by value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    /// Data: stream offset of the first payload byte. Acknowledgement: next byte expected. SYN-ACK: its own timestamp.
    /// Announcement of a burst and its answer: its number, and in the low eight bits the type-of-service field.
    pub number: u64,
    /// Slot of the connection.
    pub connection: u32,
    /// Host that it is for.
    pub dst: u32,
    /// Data: timestamp (RFC 7323 TSval). Acknowledgement: its echo (TSecr).
    pub stamp: u32,
    /// Place of the SACK blocks in the [`SackPool`], or [`NO_SACK`].
    pub sack: u32,
    /// Which user of the slot, so that a late packet of a closed connection is told apart.
    pub generation: u16,
    /// Bytes on the wire, headers and framing included.
    pub wire_bytes: u16,
    /// Bytes of payload.
    pub payload_bytes: u16,
    /// See [`flag`].
    pub flags: u8,
    /// Band of every qdisc on the way.
    pub band: u8,
}

impl Wire {
    /// What an empty place holds.
    pub const NOTHING: Self = Self {
        number: 0,
        connection: 0,
        dst: 0,
        stamp: 0,
        sack: NO_SACK,
        generation: 0,
        wire_bytes: 0,
        payload_bytes: 0,
        flags: 0,
        band: 0,
    };

    /// Whether it is data or acknowledges data, and neither opens nor closes a connection. The handshake and the close
    /// end with a packet that carries nothing.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.flags & (flag::SYN | flag::FIN | flag::PCN) == 0
            && (self.flags & flag::REVERSE != 0 || self.payload_bytes > 0)
    }

    /// Whether its connection is to hear of its loss: it is a receiver's FIN.
    #[inline]
    pub fn matters_when_lost(&self) -> bool {
        let fin = flag::REVERSE | flag::FIN;
        self.flags & fin == fin
    }
}

/// No SACK blocks.
pub(crate) const NO_SACK: u32 = u32::MAX;

/// Bits of [`Wire::flags`].
pub(crate) mod flag {
    /// From the receiver of the data to its sender.
    pub const REVERSE: u8 = 1;
    /// Opens the connection.
    pub const SYN: u8 = 2;
    /// No more data after this.
    pub const FIN: u8 = 4;
    /// ECN-capable transport (RFC 3168).
    pub const ECT: u8 = 8;
    /// Congestion experienced (RFC 3168).
    pub const CE: u8 = 16;
    /// The receiver's echo of CE (RFC 3168); on a SYN: will use ECN.
    pub const ECE: u8 = 32;
    /// The sender's answer to ECE: window reduced (RFC 3168); on a SYN: will use ECN.
    pub const CWR: u8 = 64;
    /// An announcement of a burst, or with [`REVERSE`] its answer: see [`super::super::pcn`]. No TCP in it.
    pub const PCN: u8 = 128;
}

/// A range of stream offsets, `[start, end)`.
pub(crate) type Block = (u64, u64);

/// The SACK blocks of a packet, and how many there are.
pub(crate) type Blocks = ([Block; SACK_BLOCKS], usize);

/// SACK blocks of packets under way. With the timestamp option there is room for three (RFC 2018).
#[derive(Clone, Debug, Default)]
pub(crate) struct SackPool {
    blocks: Vec<([Block; SACK_BLOCKS], u8)>,
    free: Vec<u32>,
}

/// Most blocks in one acknowledgement beside the timestamp option: (40 - 10 - 2) / 8.
pub(crate) const SACK_BLOCKS: usize = 3;

impl SackPool {
    /// Keeps up to [`SACK_BLOCKS`] of `blocks` until [`SackPool::take`].
    pub fn put(&mut self, blocks: &[Block]) -> u32 {
        let count = blocks.len().min(SACK_BLOCKS);
        if count == 0 {
            return NO_SACK;
        }
        let mut kept = [(0, 0); SACK_BLOCKS];
        kept[..count].copy_from_slice(&blocks[..count]);
        self.put_back((kept, count))
    }

    /// Keeps what [`SackPool::take`] of this or another pool gave.
    pub fn put_back(&mut self, (blocks, count): Blocks) -> u32 {
        let entry = (blocks, count as u8);
        match self.free.pop() {
            Some(index) => {
                self.blocks[index as usize] = entry;
                index
            }
            None => {
                self.blocks.push(entry);
                (self.blocks.len() - 1) as u32
            }
        }
    }

    /// Gives the blocks back and frees their place.
    pub fn take(&mut self, index: u32) -> Blocks {
        if index == NO_SACK {
            return ([(0, 0); SACK_BLOCKS], 0);
        }
        self.free.push(index);
        let (blocks, count) = self.blocks[index as usize];
        (blocks, usize::from(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_thirty_two_bytes() {
        assert_eq!(size_of::<Wire>(), 32);
    }

    #[test]
    fn places_are_used_again() {
        let mut pool = SackPool::default();
        assert_eq!(pool.put(&[]), NO_SACK);
        let first = pool.put(&[(1, 2)]);
        assert_eq!(pool.take(first), ([(1, 2), (0, 0), (0, 0)], 1));
        assert_eq!(pool.put(&[(3, 4), (5, 6)]), first);
    }
}
