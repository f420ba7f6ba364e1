//! Loss detection by time ([`Rack`](super::super::rack::Rack)), which replaces loss detection by the number of SACKed
//! segments.

use super::{DUP_THRESH, LOST, RETRANSMITTED, SACKED, Scoreboard};

impl Scoreboard {
    /// Creates an empty scoreboard that detects losses by time (RFC 8985).
    pub fn by_time() -> Self {
        Self { rack: Some(Box::default()), ..Self::default() }
    }

    /// Returns the bytes of all SACKed segments.
    pub fn sacked_bytes(&self) -> u64 {
        self.sacked_bytes
    }

    /// Returns the bytes of all lost segments, retransmitted or not.
    #[cfg(test)]
    pub fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Sets the time of the acknowledgement that is processed next, in ticks of timestamps.
    pub fn begin_ack(&mut self, now: u32) {
        if let Some(rack) = &mut self.rack {
            rack.now = now;
        }
    }

    /// Marks segments as lost by time (RFC 8985, 6.2, step 5). Returns whether there are any, and the time after which
    /// all other segments that were sent before the latest delivered one may count as lost, in ticks of timestamps.
    /// `wait` is the reordering window.
    pub fn detect_losses(&mut self, now: u32, wait: u32) -> (bool, Option<u32>) {
        let Some(rack) = self.rack.take() else { return (false, None) };
        let (mut is_new, mut next) = (false, None);
        for index in 0..self.segments.len() {
            let segment = self.segments[index];
            if segment.flags & SACKED != 0 || segment.flags & (LOST | RETRANSMITTED) == LOST {
                continue;
            }
            if !rack.was_sent_after(segment.stamp, segment.end()) {
                if segment.flags == 0 {
                    // Later segments were sent even later: retransmissions among them would require that this segment
                    // had already been marked as lost.
                    break;
                }
                continue;
            }
            match rack.time_left(segment.stamp, now, wait) {
                0 => {
                    self.lose(index);
                    is_new = true;
                }
                left => next = next.max(Some(left)),
            }
        }
        self.rack = Some(rack);
        (is_new, next)
    }

    /// Returns the reordering window in ticks of timestamps (RFC 8985, 6.2, step 4). `recovers` is set during recovery.
    /// `srtt` is the smoothed round-trip time in ticks.
    pub fn reordering_window(&self, recovers: bool, srtt: u32, segment_bytes: u64) -> u32 {
        let Some(rack) = &self.rack else { return 0 };
        let shows_loss = recovers || self.sacked_bytes >= u64::from(DUP_THRESH) * segment_bytes;
        rack.reordering_window(shows_loss, srtt)
    }

    /// After a timeout, marks the first segment as lost, and every segment for which a round trip plus the reordering
    /// window `wait` has passed (RFC 8985, 6.3).
    pub fn mark_timed_out(&mut self, now: u32, wait: u32) {
        let Some(rack) = self.rack.take() else { return };
        for index in 0..self.segments.len() {
            let segment = self.segments[index];
            let is_over = index == 0 || rack.time_left(segment.stamp, now, wait) == 0;
            if is_over && !segment.is(SACKED) && segment.flags & (LOST | RETRANSMITTED) != LOST {
                self.lose(index);
            }
        }
        self.rack = Some(rack);
    }

    /// Counts the lost segments as in flight again.
    pub fn unmark_lost(&mut self) {
        self.lost_bytes = 0;
        for segment in &mut self.segments {
            segment.flags &= !LOST;
        }
        self.lost_hint = self.front;
        self.hole_hint = self.front;
    }

    /// Marks a segment in flight as lost and as not retransmitted.
    fn lose(&mut self, index: usize) {
        let serial = self.front + index as u64;
        let segment = &mut self.segments[index];
        let bytes = u64::from(segment.length);
        if segment.is(RETRANSMITTED) {
            segment.flags &= !RETRANSMITTED;
            self.retransmitted_bytes -= bytes;
        }
        if !segment.is(LOST) {
            segment.flags |= LOST;
            self.lost_bytes += bytes;
        }
        self.lost_edge = self.lost_edge.max(serial + 1);
        self.lost_hint = self.lost_hint.min(serial);
        self.hole_hint = self.hole_hint.min(serial);
    }

    pub fn last_unsacked(&self) -> Option<usize> {
        self.segments.iter().rposition(|segment| !segment.is(SACKED))
    }
}
