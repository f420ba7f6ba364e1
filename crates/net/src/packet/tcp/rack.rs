//! Loss detection by time: RACK of RFC 8985.
//!
//! A segment counts as lost if a segment that was sent later has been delivered, and a round-trip time plus a
//! reordering window have passed since its own transmission. Times are RFC 7323 timestamps, in ticks.
//!
//! Differs from RFC 8985: receivers send no DSACK, so the reordering window stays at a quarter of the connection's
//! shortest round trip. As in Linux, a retransmission counts as delivered only if its acknowledgement arrives at least
//! the shortest round trip after it. Timestamps cannot decide this, because an acknowledgement does not echo the
//! timestamp of a segment that it SACKs (RFC 7323, 4.3).

/// A segment that was delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivered {
    /// Stream offset of its end.
    pub end: u64,
    /// Timestamp of its last transmission.
    pub stamp: u32,
    pub is_retransmitted: bool,
}

/// State of RACK, with the names of RFC 8985, 5.2.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rack {
    /// Time of the acknowledgement that is being processed.
    pub now: u32,
    /// `RACK.xmit_ts` and `RACK.end_seq`: the delivered segment that was sent last.
    latest: Option<(u32, u64)>,
    /// `RACK.rtt`: its round-trip time.
    rtt: u32,
    /// `RACK.min_RTT`; `None` before the first sample.
    rtt_min: Option<u32>,
    /// `RACK.fack`: the highest stream offset that was delivered.
    forward: u64,
    /// `RACK.reordering_seen`.
    has_reordering: bool,
}

/// Returns whether timestamp `one` is later than `other` (RFC 7323, 5.2: timestamps wrap).
pub(crate) fn is_later(one: u32, other: u32) -> bool {
    one.wrapping_sub(other) as i32 > 0
}

impl Rack {
    /// Processes the delivery of a segment: RFC 8985, section 6.2, steps 1 to 3.
    pub fn on_delivered(&mut self, segment: Delivered) {
        let Delivered { end, stamp, is_retransmitted } = segment;
        if end > self.forward {
            self.forward = end;
        } else if end < self.forward && !is_retransmitted {
            self.has_reordering = true;
        }
        let rtt = self.now.wrapping_sub(stamp);
        if is_retransmitted && self.rtt_min.is_some_and(|least| rtt < least) {
            // The acknowledgement belongs to the original transmission, not to the retransmission.
            return;
        }
        self.rtt_min = Some(self.rtt_min.map_or(rtt, |least| least.min(rtt)));
        self.rtt = rtt;
        if self.latest.is_none_or(|(sent, last)| is_later(stamp, sent) || (stamp == sent && end > last)) {
            self.latest = Some((stamp, end));
        }
    }

    /// Returns whether the latest delivered segment was sent after a segment with `stamp` and `end`.
    pub fn was_sent_after(&self, stamp: u32, end: u64) -> bool {
        self.latest.is_some_and(|(sent, last)| is_later(sent, stamp) || (sent == stamp && last > end))
    }

    /// Returns the time from `now` until a segment that was sent at `stamp` counts as lost, in ticks, given the
    /// reordering window `wait`. Returns 0 if the segment already counts as lost.
    pub fn time_left(&self, stamp: u32, now: u32, wait: u32) -> u32 {
        self.rtt.saturating_add(wait).saturating_sub(now.wrapping_sub(stamp))
    }

    /// Returns the reordering window in ticks: a quarter of the shortest round trip, but at most `srtt`. Returns 0 if
    /// `shows_loss` and no reordering has been observed.
    pub fn reordering_window(&self, shows_loss: bool, srtt: u32) -> u32 {
        if shows_loss && !self.has_reordering { 0 } else { (self.rtt_min.unwrap_or(0) / 4).min(srtt) }
    }
}
