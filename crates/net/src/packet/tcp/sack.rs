//! The sender's scoreboard of outstanding segments (RFC 6675), and the receiver's reassembly of out-of-order data (RFC
//! 2018).

mod by_time;

use super::Follow;
use super::rack::{Delivered, Rack};
use crate::packet::wire::Block;
use std::collections::VecDeque;

/// A segment counts as lost if this many segments above it are SACKed (RFC 6675, DupThresh).
const DUP_THRESH: u32 = 3;

const SACKED: u8 = 1;
const LOST: u8 = 2;
const RETRANSMITTED: u8 = 4;

/// An outstanding segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    length: u16,
    flags: u8,
    /// Timestamp of the last transmission.
    stamp: u32,
}

impl Segment {
    fn end(&self) -> u64 {
        self.start + u64::from(self.length)
    }

    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the data of the segment that loss detection by time needs.
    fn delivered(&self) -> Delivered {
        Delivered { end: self.end(), stamp: self.stamp, is_retransmitted: self.is(RETRANSMITTED) }
    }
}

/// Outstanding segments in order, with byte counts by state. Fields are in the order of use.
///
/// Differs from RFC 6675: a segment counts as lost when three *segments* above it are SACKed, as in ns-3.37 and Linux,
/// and not by the number of SACKed bytes.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Scoreboard {
    segments: VecDeque<Segment>,
    sent_bytes: u64,
    sacked_bytes: u64,
    lost_bytes: u64,
    retransmitted_bytes: u64,
    /// Serial number of the first outstanding segment. All segments of the connection are numbered serially, and the
    /// fields below are such numbers.
    front: u64,
    /// Serial number of the highest SACKed segment.
    highest_sacked: Option<u64>,
    /// Serial number below which every segment is SACKed or lost.
    lost_edge: u64,
    /// Serial number below which every lost segment has been retransmitted.
    lost_hint: u64,
    /// Serial number below which every segment is SACKed or retransmitted.
    hole_hint: u64,
    /// SACK blocks of the last acknowledgement, each with the range of whole segments in it. The next acknowledgement
    /// need not visit these segments again.
    seen: [(Block, Block); 3],
    /// State of loss detection by time. If present, it replaces loss detection by the number of SACKed segments.
    rack: Option<Box<Rack>>,
}

impl Scoreboard {
    /// Appends a segment that was sent for the first time, with timestamp `stamp`.
    #[inline]
    pub fn push(&mut self, start: u64, length: u16, stamp: u32) {
        self.segments.push_back(Segment { start, length, flags: 0, stamp });
        self.sent_bytes += u64::from(length);
    }

    /// Returns the bytes in flight (RFC 6675's pipe).
    #[inline]
    pub fn flight_bytes(&self) -> u64 {
        self.sent_bytes - self.sacked_bytes - self.lost_bytes + self.retransmitted_bytes
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    #[inline]
    pub fn head_retransmitted(&self) -> bool {
        self.segments.front().is_some_and(|head| head.is(RETRANSMITTED))
    }

    /// Clears the retransmitted flag of the first segment, so that it is retransmitted next.
    pub fn forget_head_retransmission(&mut self) {
        let Some(head) = self.segments.front_mut().filter(|head| head.is(RETRANSMITTED)) else { return };
        head.flags &= !RETRANSMITTED;
        self.retransmitted_bytes -= u64::from(head.length);
        self.lost_hint = self.front;
        self.hole_hint = self.front;
    }

    /// Applies SACK blocks. Returns the number of newly SACKed bytes. With [`Follow::Ns3`], a retransmitted segment
    /// that is SACKed stays in [`Scoreboard::flight_bytes`] until it is acknowledged cumulatively.
    pub fn sack(&mut self, blocks: &[Block], follow: Follow) -> u64 {
        let before = self.sacked_bytes;
        let mut seen = self.seen;
        for (slot, &block) in seen.iter_mut().zip(blocks) {
            *slot = (block, self.sack_block(block, follow));
        }
        self.seen = seen;
        let newly = self.sacked_bytes - before;
        if newly > 0 && self.rack.is_none() {
            self.mark_lost();
        }
        newly
    }

    /// Returns whether any of the first `count` stored blocks covers a whole outstanding segment.
    pub fn reports_segments(&self, count: usize) -> bool {
        self.seen.iter().take(count).any(|&(_, whole)| whole.0 < whole.1)
    }

    /// Marks the segments that lie in a SACK block. Returns the range of these whole segments.
    fn sack_block(&mut self, block: Block, follow: Follow) -> Block {
        let (mut start, mut end) = block;
        let (mut whole_start, mut whole_end) = (u64::MAX, 0);
        for &(seen, whole) in &self.seen {
            if whole.0 >= whole.1 {
                continue;
            }
            if seen.0 == block.0 && seen.1 <= end {
                (start, whole_start) = (whole.1, whole.0);
            } else if seen.1 == block.1 && seen.0 > start {
                (end, whole_end) = (whole.0, whole.1);
            }
        }
        let mut index = self.segments.partition_point(|segment| segment.start < start);
        while let Some(segment) = self.segments.get_mut(index) {
            // Only segments that lie entirely inside the block are SACKed.
            if segment.end() > end {
                break;
            }
            if !segment.is(SACKED) {
                let bytes = u64::from(segment.length);
                if let Some(rack) = &mut self.rack {
                    rack.on_delivered(segment.delivered());
                }
                if segment.is(LOST) {
                    segment.flags &= !LOST;
                    self.lost_bytes -= bytes;
                }
                if segment.is(RETRANSMITTED) && follow == Follow::Standards {
                    segment.flags &= !RETRANSMITTED;
                    self.retransmitted_bytes -= bytes;
                }
                segment.flags |= SACKED;
                self.sacked_bytes += bytes;
                let serial = self.front + index as u64;
                self.highest_sacked = self.highest_sacked.max(Some(serial));
            }
            whole_start = whole_start.min(segment.start);
            whole_end = whole_end.max(segment.end());
            index += 1;
        }
        (whole_start, whole_end.max(start.min(end)))
    }

    /// Marks every segment with three SACKed segments above it as lost (RFC 6675, IsLost).
    fn mark_lost(&mut self) {
        let Some(highest) = self.highest_sacked else { return };
        let mut sacked_count = 0;
        let mut serial = highest;
        while serial > self.front {
            if self.segments[(serial - self.front) as usize].is(SACKED) {
                sacked_count += 1;
                if sacked_count == DUP_THRESH {
                    break;
                }
            }
            serial -= 1;
        }
        if sacked_count < DUP_THRESH {
            return;
        }
        self.set_lost(0);
        for candidate in self.lost_edge.max(self.front)..serial {
            self.set_lost((candidate - self.front) as usize);
        }
        self.lost_edge = self.lost_edge.max(serial);
    }

    fn set_lost(&mut self, index: usize) {
        let segment = &mut self.segments[index];
        if !segment.is(SACKED | LOST) {
            segment.flags |= LOST;
            self.lost_bytes += u64::from(segment.length);
            self.lost_hint = self.lost_hint.min(self.front + index as u64);
        }
    }

    /// Marks the first segment as lost and not yet retransmitted, regardless of its previous state.
    pub fn mark_head_lost(&mut self) {
        let Some(head) = self.segments.front_mut() else { return };
        let bytes = u64::from(head.length);
        if head.is(SACKED) {
            self.sacked_bytes -= bytes;
        }
        if head.is(RETRANSMITTED) {
            self.retransmitted_bytes -= bytes;
        }
        if !head.is(LOST) {
            self.lost_bytes += bytes;
        }
        head.flags = LOST;
        self.lost_hint = self.front;
        self.hole_hint = self.front;
        self.seen = Default::default();
    }

    /// After a timeout, marks every segment that is not SACKed as lost, and none as retransmitted (RFC 6675, 5.1). SACK
    /// information is kept, as erratum 1610 allows.
    pub fn mark_all_lost(&mut self) {
        self.lost_bytes = 0;
        self.retransmitted_bytes = 0;
        for segment in &mut self.segments {
            segment.flags &= SACKED;
            if segment.flags == 0 {
                segment.flags = LOST;
                self.lost_bytes += u64::from(segment.length);
            }
        }
        self.lost_edge = self.front + self.segments.len() as u64;
        self.lost_hint = self.front;
        self.hole_hint = self.front;
    }

    pub fn head_lost(&self) -> bool {
        self.segments.front().is_some_and(|head| head.is(LOST))
    }

    /// Returns whether the first segment at or above `offset` that is either lost or SACKed is lost.
    pub fn is_lost(&self, offset: u64) -> bool {
        let Some(highest) = self.highest_sacked else { return false };
        let highest_index = (highest - self.front) as usize;
        if offset >= self.segments[highest_index].start {
            return false;
        }
        let first = self.segments.partition_point(|segment| segment.start < offset);
        let decided = self.segments.iter().skip(first).find(|segment| segment.is(LOST | SACKED));
        decided.is_some_and(|segment| segment.is(LOST))
    }

    /// Returns the first segment that is lost and not retransmitted: RFC 6675, NextSeg rule (1).
    #[inline]
    pub fn next_lost(&mut self) -> Option<usize> {
        if self.lost_bytes == 0 {
            return None;
        }
        let bound = self.lost_edge.max(self.front + 1).min(self.front + self.segments.len() as u64);
        let mut serial = self.lost_hint.max(self.front);
        while serial < bound {
            let index = (serial - self.front) as usize;
            if self.segments[index].flags == LOST {
                self.lost_hint = serial;
                return Some(index);
            }
            serial += 1;
        }
        self.lost_hint = serial;
        None
    }

    /// Returns the first segment that is neither SACKed nor retransmitted: RFC 6675, NextSeg rule (3).
    pub fn next_hole(&mut self) -> Option<usize> {
        let mut serial = self.hole_hint.max(self.front);
        let end = self.front + self.segments.len() as u64;
        while serial < end {
            let index = (serial - self.front) as usize;
            if !self.segments[index].is(SACKED | RETRANSMITTED) {
                self.hole_hint = serial;
                return Some(index);
            }
            serial += 1;
        }
        self.hole_hint = serial;
        None
    }

    pub fn start_of(&self, index: usize) -> u64 {
        self.segments[index].start
    }

    /// Marks segment `index` as retransmitted with timestamp `stamp` and returns its range. If the segment is shorter
    /// than `bytes_max`, it is first extended by the beginning of the next segment, unless that one is SACKed or only
    /// one of the two is lost.
    pub fn retransmit(&mut self, index: usize, bytes_max: u16, stamp: u32) -> Block {
        self.join(index, bytes_max);
        let segment = &mut self.segments[index];
        segment.stamp = stamp;
        if !segment.is(RETRANSMITTED) {
            segment.flags |= RETRANSMITTED;
            self.retransmitted_bytes += u64::from(segment.length);
        }
        (segment.start, segment.end())
    }

    fn join(&mut self, index: usize, bytes_max: u16) {
        let this = self.segments[index];
        let Some(&next) = self.segments.get(index + 1) else { return };
        if this.length >= bytes_max || next.is(SACKED) || this.is(LOST) != next.is(LOST) {
            return;
        }
        let moved = (bytes_max - this.length).min(next.length);
        let mut flags = this.flags;
        for segment in [this, next] {
            // The merged segment counts as retransmitted only if both of its parts do.
            if segment.is(RETRANSMITTED) && !(this.is(RETRANSMITTED) && next.is(RETRANSMITTED)) {
                self.retransmitted_bytes -= u64::from(segment.length);
                flags &= !RETRANSMITTED;
            }
        }
        let first = &mut self.segments[index];
        first.length += moved;
        first.flags = flags;
        let second = &mut self.segments[index + 1];
        second.start += u64::from(moved);
        second.length -= moved;
        second.flags = flags;
        let serial = self.front + index as u64;
        if second.length == 0 {
            self.segments.remove(index + 1);
            for edge in [&mut self.lost_edge, &mut self.lost_hint, &mut self.hole_hint] {
                *edge -= u64::from(*edge > serial + 1);
            }
            self.highest_sacked = self.highest_sacked.map(|highest| highest - u64::from(highest > serial + 1));
        }
        if flags & RETRANSMITTED == 0 {
            self.lost_hint = self.lost_hint.min(serial);
            self.hole_hint = self.hole_hint.min(serial);
        }
    }

    /// Returns whether a segment that ends at `offset` has been retransmitted and is not SACKed.
    pub fn retransmitted_up_to(&self, offset: u64) -> bool {
        let index = self.segments.partition_point(|segment| segment.end() < offset);
        self.segments
            .get(index)
            .is_some_and(|segment| segment.end() == offset && segment.flags & (SACKED | RETRANSMITTED) == RETRANSMITTED)
    }

    /// Removes all data below `acknowledged`.
    #[inline]
    pub fn discard(&mut self, acknowledged: u64) {
        while let Some(head) = self.segments.front_mut() {
            if head.start >= acknowledged {
                break;
            }
            let whole = head.end() <= acknowledged;
            if let Some(rack) = self.rack.as_mut().filter(|_| whole && !head.is(SACKED)) {
                rack.on_delivered(head.delivered());
            }
            let bytes = if whole { u64::from(head.length) } else { acknowledged - head.start };
            self.sent_bytes -= bytes;
            if head.flags != 0 {
                self.sacked_bytes -= if head.is(SACKED) { bytes } else { 0 };
                self.lost_bytes -= if head.is(LOST) { bytes } else { 0 };
                self.retransmitted_bytes -= if head.is(RETRANSMITTED) { bytes } else { 0 };
            }
            if !whole {
                head.start = acknowledged;
                head.length -= bytes as u16;
                break;
            }
            self.segments.pop_front();
            self.front += 1;
        }
        if self.highest_sacked.is_some_and(|highest| highest <= self.front) {
            self.highest_sacked = None;
        }
        if self.segments.front().is_some_and(|head| head.is(SACKED)) {
            // A SACKed segment at the front would have been acknowledged. So the receiver has reneged, or the segment's
            // boundaries have changed.
            self.mark_head_lost();
        }
    }
}

/// Out-of-order data of a receiver, and the SACK blocks that report it.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct Reassembly {
    /// Disjoint ranges in ascending order, all above the next byte expected.
    ranges: Vec<Block>,
    /// SACK blocks, most recent first (RFC 2018, 4). Four are stored, although only three fit into a packet.
    report: [Block; 4],
    report_count: usize,
}

impl Reassembly {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the blocks to report, most recent first.
    #[inline]
    pub fn report(&self) -> &[Block] {
        &self.report[..self.report_count]
    }

    /// Stores `[start, end)`, which must lie above the next byte expected. Returns `false` if all of it was stored
    /// already.
    pub fn insert(&mut self, mut start: u64, mut end: u64) -> bool {
        let first = self.ranges.partition_point(|range| range.1 < start);
        // The part of the range that is new. Trimming the ends is enough, because retransmissions keep segment
        // boundaries.
        let (mut new_start, mut new_end) = (start, end);
        let mut last = first;
        while let Some(&(range_start, range_end)) = self.ranges.get(last)
            && range_start <= end
        {
            if range_start <= new_start {
                new_start = new_start.max(range_end);
            }
            if range_end >= new_end {
                new_end = new_end.min(range_start);
            }
            start = start.min(range_start);
            end = end.max(range_end);
            last += 1;
        }
        if new_start >= new_end {
            return false;
        }
        if first == last {
            self.ranges.insert(first, (start, end));
        } else {
            self.ranges[first] = (start, end);
            self.ranges.drain(first + 1..last);
        }
        self.remember((new_start, new_end));
        true
    }

    /// Inserts a block as the most recent one, merged with the stored blocks that it touches.
    fn remember(&mut self, block: Block) {
        let mut joined = block;
        let mut kept = [(0, 0); 5];
        let mut kept_count = 0;
        for &old in &self.report[..self.report_count] {
            if old.1 == joined.0 {
                joined.0 = old.0;
            } else if old.0 == joined.1 {
                joined.1 = old.1;
            } else {
                kept[kept_count] = old;
                kept_count += 1;
            }
        }
        self.report_count = (kept_count + 1).min(4);
        self.report[0] = joined;
        self.report[1..self.report_count].copy_from_slice(&kept[..self.report_count - 1]);
    }

    /// Advances the next byte expected to `next`, or to the end of the stored ranges that are then in order. Returns
    /// the new value.
    pub fn advance(&mut self, next: u64) -> u64 {
        let mut next = next;
        let mut used = 0;
        for &(start, end) in &self.ranges {
            if start > next {
                break;
            }
            next = next.max(end);
            used += 1;
        }
        self.ranges.drain(..used);
        let mut kept_count = 0;
        for index in 0..self.report_count {
            if self.report[index].1 > next {
                self.report[kept_count] = self.report[index];
                kept_count += 1;
            }
        }
        self.report_count = kept_count;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ten() -> Scoreboard {
        let mut board = Scoreboard::default();
        for index in 0..10 {
            board.push(index * 100, 100, 0);
        }
        board
    }

    #[test]
    fn three_segments_above_make_a_loss() {
        let mut board = ten();
        assert_eq!(board.sack(&[(200, 300)], Follow::Ns3), 100);
        assert_eq!(board.sack(&[(200, 400)], Follow::Ns3), 100);
        assert!(!board.head_lost() && board.next_lost().is_none());
        assert_eq!(board.sack(&[(600, 700), (200, 400)], Follow::Ns3), 100);
        // Segments 200, 300 and 600 are SACKed. Hence 0 and 100 are lost, whereas 400 and 500 have only one SACKed
        // segment above them.
        assert_eq!(board.flight_bytes(), 1000 - 300 - 200);
        assert_eq!(board.next_lost(), Some(0));
        assert_eq!(board.retransmit(0, 100, 0), (0, 100));
        assert_eq!(board.next_lost(), Some(1));
        assert_eq!(board.flight_bytes(), 600);
        assert!(board.is_lost(100) && !board.is_lost(400));
        board.discard(400);
        assert_eq!(board.flight_bytes(), 500);
    }

    /// RFC 6675, SetPipe: SACKed data is not in flight, no matter how often it was sent. In ns-3, a SACKed
    /// retransmission still counts as in flight.
    #[test]
    fn what_was_sent_again_leaves_the_pipe_when_it_is_sacked() {
        for (follow, bytes) in [(Follow::Standards, 0), (Follow::Ns3, 200)] {
            let mut board = ten();
            board.mark_all_lost();
            for index in 0..2 {
                board.retransmit(index, 100, 0);
            }
            assert_eq!(board.flight_bytes(), 200);
            board.sack(&[(0, 200)], follow);
            assert_eq!(board.flight_bytes(), bytes);
        }
    }

    #[test]
    fn a_timeout_keeps_sacks_and_loses_the_rest() {
        let mut board = ten();
        board.sack(&[(500, 600)], Follow::Ns3);
        board.mark_all_lost();
        assert_eq!(board.flight_bytes(), 0);
        for index in [0, 1, 2, 3, 4, 6, 7, 8, 9] {
            assert_eq!(board.next_lost(), Some(index));
            board.retransmit(index, 100, 0);
        }
        assert_eq!(board.next_lost(), None);
    }

    #[test]
    fn a_short_segment_goes_again_with_the_start_of_the_next() {
        let mut board = Scoreboard::default();
        for (start, length) in [(0, 100), (100, 30), (130, 100), (230, 100)] {
            board.push(start, length, 0);
        }
        board.mark_all_lost();
        assert_eq!(board.retransmit(0, 100, 0), (0, 100));
        assert_eq!(board.next_lost(), Some(1));
        assert_eq!(board.retransmit(1, 100, 0), (100, 200));
        assert_eq!(board.next_lost(), Some(2));
        // The remaining 30 bytes of the third segment are merged with 70 bytes of the fourth.
        assert_eq!(board.retransmit(2, 100, 0), (200, 300));
        assert_eq!(board.retransmit(3, 100, 0), (300, 330));
        assert_eq!(board.flight_bytes(), 330);
        board.discard(330);
        assert_eq!((board.flight_bytes(), board.is_empty()), (0, true));
    }

    #[test]
    fn the_receiver_reports_the_latest_first_and_forgets_what_is_in_order() {
        let mut held = Reassembly::default();
        assert!(held.insert(100, 200));
        assert!(held.insert(300, 400));
        assert!(!held.insert(300, 400));
        assert_eq!(held.report(), [(300, 400), (100, 200)]);
        assert!(held.insert(200, 300));
        assert_eq!(held.report(), [(100, 400)]);
        assert!(held.insert(500, 600));
        assert_eq!(held.advance(100), 400);
        assert_eq!(held.report(), [(500, 600)]);
        assert!(!held.is_empty());
        assert_eq!(held.advance(500), 600);
        assert!(held.is_empty());
    }
}
