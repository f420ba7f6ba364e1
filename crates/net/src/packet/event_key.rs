//! Event keys: the order of events at one instant.
//!
//! As in any event-driven simulator, simultaneous events take place in the order in which they were scheduled. Results
//! depend on that order: a saturated network has many ties, and ties decide which packets are lost.

use std::cmp::Reverse;

/// Time and tie-break of the current event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventTime {
    pub now_ps: u64,
    /// Time at which the event was scheduled. Of two simultaneous events, the one that was scheduled first takes place
    /// first.
    pub scheduled_ps: u64,
    /// Sequence number among the events at `now_ps`.
    pub sequence: u32,
}

/// Key that orders simultaneous arrivals: by the start of their transmissions, then by the time at which these starts
/// were scheduled, then by the time at which the scheduling event was scheduled, and so on. In a packet train, each
/// start is scheduled at the start of the previous transmission. Two trains with equal transmission times therefore tie
/// at each step back, until the beginning of one of them. The key skips these steps and contains the beginning of the
/// train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventKey {
    /// Start of the transmission.
    start_ps: u64,
    /// Time at which the start of the transmission was scheduled. In a train, that is the start of the previous
    /// transmission, because the end of a transmission is scheduled at its start.
    scheduled_ps: u64,
    /// [`Train::since_ps`] of the transmission's train.
    since_ps: i64,
    train_scheduled_ps: u64,
    busy_period: BusyPeriod,
}

/// The event that ended the idle time of a port, as the last tie-break. The later event comes first. Simultaneous
/// events are ordered by sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct BusyPeriod {
    at_ps: Reverse<u64>,
    sequence: u32,
}

impl EventKey {
    #[inline]
    pub fn new(start_ps: u64, train: Train) -> Self {
        let Train { since_ps, scheduled_ps: train_scheduled_ps, busy_period, .. } = train;
        Self { start_ps, scheduled_ps: train.scheduled_ps(start_ps), since_ps, train_scheduled_ps, busy_period }
    }
}

/// A packet train: back-to-back transmissions of equal length on a port. The keys of all its arrivals are derived from
/// it. Arrivals store only the index of their train, because many share a train and only ties need it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Train {
    /// Time from the start of one transmission to the start of the next; 0 if the port was idle before the train.
    sending_ps: u64,
    /// Sort key for two trains whose transmissions start at the same times: the start of the last transmission before
    /// the train, with a sign. Of the two trains, compare the one that began later. When the last transmission before
    /// it started, the other train also started a transmission, which had been scheduled `sending_ps` earlier. If the
    /// last transmission was scheduled even earlier than that, its train comes first and the sign is negative.
    /// Otherwise the sign is positive.
    since_ps: i64,
    /// Time at which the start of the train's first transmission was scheduled.
    scheduled_ps: u64,
    busy_period: BusyPeriod,
}

impl Train {
    /// Creates the train of a transmission that ends a port's idle time at `start_ps`. The event that starts the
    /// transmission was scheduled at `scheduled_ps` and has the number `sequence` among the events at `start_ps`.
    #[inline]
    pub fn idle(start_ps: u64, scheduled_ps: u64, sequence: u32) -> Self {
        let busy_period = BusyPeriod { at_ps: Reverse(start_ps), sequence };
        Self { sending_ps: 0, since_ps: -(start_ps as i64), scheduled_ps, busy_period }
    }

    /// Returns the train of the next transmission. The previous transmission belonged to this train, started at
    /// `start_ps` and took `sending_ps`.
    #[inline]
    pub fn followed(self, start_ps: u64, sending_ps: u64) -> Self {
        let scheduled_ps = self.scheduled_ps(start_ps);
        let ahead = scheduled_ps + sending_ps < start_ps;
        let since_ps = if ahead { -(start_ps as i64) } else { start_ps as i64 };
        Self { sending_ps, since_ps, scheduled_ps, busy_period: self.busy_period }
    }

    /// Returns the time at which the start of a transmission at `start_ps` was scheduled.
    #[inline]
    fn scheduled_ps(&self, start_ps: u64) -> u64 {
        if self.sending_ps == 0 { self.scheduled_ps } else { start_ps - self.sending_ps }
    }
}

/// An event that checks whether the timer of an endpoint has expired. It has no effect if the deadline has moved.
/// Simultaneous checks are ordered by connection, so that checks without effect do not change the order of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerCheck {
    pub at_ps: u64,
    pub connection: u32,
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Sender,
    Receiver,
}

/// An event that was scheduled less than a link latency ahead. It takes place after simultaneous arrivals, which were
/// scheduled earlier. Simultaneous follow-ups take place in the order in which they were scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FollowUp {
    pub at_ps: u64,
    pub scheduled_ps: u64,
    pub origin: Origin,
    pub connection: u32,
    pub generation: u16,
    pub kind: FollowUpKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FollowUpKind {
    /// The receiver repeats its FIN, or aborts the connection after the last repetition.
    Fin,
    /// Answer to a SYN.
    Accept,
    /// The sender transmits data that the application has written.
    Pump,
}

/// Tie-break of follow-up events that were scheduled at the same time. A follow-up may cause further ones; of two such
/// chains, the shorter comes first, because arrivals come before follow-ups. At equal length, chains that began at a
/// local event come before chains that began at an arrival, because local events come before arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin {
    /// Length of the chain of follow-up events that led to this one.
    depth: u8,
    /// Whether the chain began at an arrival.
    is_arrival: bool,
    /// Sequence number of the chain.
    number: u64,
}

impl Origin {
    /// Origin of events that are scheduled by an arrival.
    pub const ARRIVAL: Self = Self { depth: 0, is_arrival: true, number: 0 };
    /// Origin of events that are scheduled by neither an arrival nor a follow-up.
    pub const LOCAL: Self = Self { depth: 0, is_arrival: false, number: 0 };

    /// Returns the origin of an event that is scheduled by a follow-up with this origin.
    pub fn after(self) -> Self {
        Self { depth: self.depth + 1, ..self }
    }

    /// Returns the origin with the sequence number `number` if the chain of follow-ups begins here. An existing chain
    /// keeps its number.
    pub fn or_numbered(self, number: u64) -> Self {
        if self.depth == 0 { Self { number, ..self } } else { self }
    }
}

impl FollowUp {
    pub fn new(
        (at_ps, scheduled_ps): (u64, u64),
        origin: Origin,
        kind: FollowUpKind,
        (connection, generation): (u32, u16),
    ) -> Self {
        Self { at_ps, scheduled_ps, origin, connection, generation, kind }
    }

    /// Returns the endpoint that handles the follow-up.
    pub fn end(&self) -> End {
        if self.kind == FollowUpKind::Pump { End::Sender } else { End::Receiver }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follow_ups_take_place_in_the_order_in_which_they_were_scheduled() {
        // In this test, the receiver repeats its FIN every 3 us.
        let follow_up = |scheduled_ps, depth, is_arrival, number| {
            let origin = Origin { depth, is_arrival, number };
            FollowUp::new((scheduled_ps + 3, scheduled_ps), origin, FollowUpKind::Fin, (0, 0))
        };
        let in_order = [
            follow_up(6, 0, false, 8),
            follow_up(6, 0, false, 9),
            // At time 6, events that were scheduled by an arrival come after local events. They come before events that
            // were scheduled by a follow-up, whose chain began with a FIN that arrived at time 3 or earlier.
            follow_up(6, 0, true, 4),
            follow_up(6, 0, true, 7),
            follow_up(6, 1, true, 3),
            follow_up(6, 2, true, 1),
            follow_up(7, 0, false, 2),
        ];
        assert!(in_order.is_sorted());
        assert!(in_order.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
