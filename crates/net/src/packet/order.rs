//! Event keys: the order of events at one instant.
//!
//! Simultaneous events take place in the order in which they were planned, as in any event-driven simulator. Results
//! depend on that order: a saturated network is full of ties, and its losses depend on them.

use std::cmp::Reverse;

/// An instant as an event sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Now.
    pub now_ps: u64,
    /// When the event was planned: of two at one instant, the one planned earlier comes first.
    pub planned_ps: u64,
    /// Of two events of one instant, the later one has the larger label.
    pub label: u32,
}

/// The order of arrivals at one instant: that in which their transmissions began, which is that in which the events
/// behind them were planned, and so on. Transmissions of equal length, back to back on several ports, stay in step
/// and in order for as long as they last; so it is enough to know how a port joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order {
    /// When the transmission began.
    begun_ps: u64,
    /// When the event that began it was planned: the end of the transmission before it when that one began.
    planned_ps: u64,
    /// See [`Run`].
    since_ps: i64,
    run_planned_ps: u64,
    chain: Chain,
}

/// Which event ended a port's idleness: of a later instant first, of one instant in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Chain {
    at_ps: Reverse<u64>,
    label: u32,
}

impl Order {
    /// Of a transmission of `run` that began at `begun_ps`.
    #[inline]
    pub fn new(begun_ps: u64, run: Run) -> Self {
        let Run { since_ps, planned_ps: run_planned_ps, chain, .. } = run;
        Self { begun_ps, planned_ps: run.planned_ps(begun_ps), since_ps, run_planned_ps, chain }
    }
}

/// Transmissions of a port that follow one another at equal distances. The order of an arrival is told by its run, which
/// is kept apart from the arrivals because many of them share it and only ties look at it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    /// Each begins this long after the one before it; 0 for the one that ends the port's idleness.
    sending_ps: u64,
    /// When the transmission before it began: negative, with the latest first, if the first of the run was planned
    /// before those that it fell into step with; positive if after.
    since_ps: i64,
    /// When the first of the run was planned.
    planned_ps: u64,
    chain: Chain,
}

impl Run {
    /// Of the transmission that ends a port's idleness at `begun_ps`.
    #[inline]
    pub fn idle(begun_ps: u64, planned_ps: u64, label: u32) -> Self {
        let chain = Chain { at_ps: Reverse(begun_ps), label };
        Self { sending_ps: 0, since_ps: -(begun_ps as i64), planned_ps, chain }
    }

    /// Of a transmission that takes `sending_ps` and follows one of this run, which began at `begun_ps`.
    #[inline]
    pub fn followed(self, begun_ps: u64, sending_ps: u64) -> Self {
        let planned_ps = self.planned_ps(begun_ps);
        let ahead = planned_ps + sending_ps < begun_ps;
        let since_ps = if ahead { -(begun_ps as i64) } else { begun_ps as i64 };
        Self { sending_ps, since_ps, planned_ps, chain: self.chain }
    }

    /// When the event was planned that began a transmission at `begun_ps`.
    #[inline]
    fn planned_ps(&self, begun_ps: u64) -> u64 {
        if self.sending_ps == 0 { self.planned_ps } else { begun_ps - self.sending_ps }
    }
}

/// When a connection's end is looked at because of its deadline, which may have moved on by then. At one instant they
/// come in order of connections: it must not depend on looks that found nothing due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Look {
    pub at_ps: u64,
    pub connection: u32,
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Sender,
    Receiver,
}

/// Something that comes after all that arrives at its instant, because it was planned later than that: sooner before it
/// than a packet crosses a link. Of one instant, in the order in which they were planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Late {
    pub at_ps: u64,
    pub planned_ps: u64,
    /// How many late events led to it, one after the other, from its `cause`. Of two that were planned at one instant, the
    /// one with fewer comes first: what arrives at an instant is before what is late.
    pub repeats: u8,
    pub cause: Cause,
    pub connection: u32,
    pub generation: u16,
    pub kind: LateKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LateKind {
    /// The receiver repeats its FIN, or gives up.
    Fin,
    /// A SYN is answered.
    Accept,
    /// What the application has written is looked at.
    Pump,
}

/// What has planned something, among all that could at its instant, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// No arrival, and nothing late: of two, the first has the smaller number.
    Other(u64),
    Arrival(Order, u32),
}

impl Late {
    pub fn new(
        (at_ps, planned_ps): (u64, u64),
        cause: Cause,
        kind: LateKind,
        (connection, generation): (u32, u16),
    ) -> Self {
        Self { at_ps, planned_ps, repeats: 0, cause, connection, generation, kind }
    }

    /// The end of its connection that it is for.
    pub fn end(&self) -> End {
        if self.kind == LateKind::Pump { End::Sender } else { End::Receiver }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_comes_in_the_order_in_which_it_was_planned() {
        // A FIN is repeated every 3 us.
        let late = |planned_ps, repeats, cause| Late {
            repeats,
            ..Late::new((planned_ps + 3, planned_ps), cause, LateKind::Fin, (0, 0))
        };
        let arrival = |begun_ps, link| Cause::Arrival(Order::new(begun_ps, Run::default()), link);
        let in_order = [
            late(6, 0, Cause::Other(8)),
            late(6, 0, Cause::Other(9)),
            // What arrives at 6 comes after all else but for what is late: that of the FIN that came at 3, or before.
            late(6, 0, arrival(1, 7)),
            late(6, 0, arrival(2, 3)),
            late(6, 0, arrival(2, 4)),
            late(6, 1, arrival(0, 1)),
            late(6, 2, arrival(0, 1)),
            late(7, 0, Cause::Other(1)),
        ];
        assert!(in_order.is_sorted());
        assert!(in_order.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
