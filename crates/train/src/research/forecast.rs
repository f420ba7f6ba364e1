//! The forecast of the rest of an iteration from the state of one worker, and the deadlines that follow from it.
//!
//! A *time per KiB* is the time that a chunk takes per KiB in one band. A [`WindowEvent`]is a time in the rest of the
//! iteration at which a bucket becomes ready or compute needs a bucket.

use crate::bands::View;
use crate::caramel::Boundaries;
use gradtide_net::{Bytes, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Time per KiB: the time that a chunk takes per 1024 bytes, in picoseconds.
pub type PsPerKib = u64;

pub fn takes(bytes: Bytes, per_kib: PsPerKib) -> Time {
    let ps = u128::from(bytes.0).saturating_mul(u128::from(per_kib)) / 1024;
    Time::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
}

/// Returns the sum of two times, limited to the end of the clock.
pub fn after(at: Time, time: Time) -> Time {
    at.checked_add(time).unwrap_or(Time::MAX)
}

pub fn pace_from(time: Time, bytes: Bytes) -> PsPerKib {
    (u128::from(time.ps()) * 1024 / u128::from(bytes.0.max(1))) as u64
}

pub fn longer(per_kib: PsPerKib, ppm: u64) -> PsPerKib {
    let scaled = u128::from(per_kib) * (1_000_000 + u128::from(ppm)) / 1_000_000;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

pub fn share(time: Time, ppm: u64) -> Time {
    Time::from_ps((u128::from(time.ps()) * u128::from(ppm) / 1_000_000) as u64)
}
/// The workers of a job and the windows of their buckets.
#[derive(Clone, Debug)]
pub struct Group {
    boundaries: Boundaries,
    events: Vec<WindowEvent>,
    /// Number of messages in which each worker receives a chunk.
    pub rounds: u32,
    /// Number of workers.
    pub count: usize,
    /// Bucket that becomes ready last in an iteration.
    pub last_bucket: Option<u32>,
}

impl Group {
    /// Creates a group of `count` workers, each of which receives a chunk in `rounds` messages. `last_bucket` is the
    /// bucket that becomes ready last in an iteration.
    pub fn new(boundaries: Boundaries, rounds: u32, count: usize, last_bucket: Option<u32>) -> Self {
        Self { events: WindowEvent::all(&boundaries), boundaries, rounds, count, last_bucket }
    }

    /// Returns the forecast of a worker when a chunk begins. `ahead` is the number of bytes in flight that precede the
    /// chunk.
    pub fn forecast<'a>(&'a self, view: &'a View, rank: usize, ahead: Bytes) -> Forecast<'a> {
        Forecast {
            boundaries: &self.boundaries,
            events: &self.events,
            priorities: &view.priorities,
            now: view.now,
            position: view.positions[if view.positions.len() > 1 { rank } else { 0 }],
            left: &view.left,
            buckets: &view.buckets,
            ahead,
        }
    }
}

/// Forecast of the rest of an iteration, from the state of one worker at the beginning of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct Forecast<'a> {
    /// Window of each bucket. A bucket that is sent within its window causes no delay.
    pub boundaries: &'a Boundaries,
    /// Starts and ends of all windows, in order.
    pub events: &'a [WindowEvent],
    /// Send priority of each bucket; the lowest number is sent first.
    pub priorities: &'a [u32],
    /// Current time.
    pub now: Time,
    /// Compute time that the worker has completed since the start of the iteration.
    pub position: Time,
    /// Bytes of each bucket that are neither sent nor in flight. The chunk that begins is not included.
    pub left: &'a [Bytes],
    /// Buckets of the chunks in flight, and of the chunk that begins.
    pub buckets: &'a [u32],
    /// Bytes in flight that precede the chunk.
    pub ahead: Bytes,
}

/// Event at which a bucket becomes ready or is needed. At equal offsets, buckets that become ready come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowEvent {
    /// Offset of compute time.
    pub at: Time,
    /// Whether the bucket is needed; otherwise it becomes ready.
    pub is_need: bool,
    /// Index of the bucket.
    pub bucket: u32,
}

impl WindowEvent {
    /// Returns the events of all buckets in the order in which compute passes them. Needs belong to the next iteration.
    pub fn all(boundaries: &Boundaries) -> Vec<Self> {
        let of_bucket = |(bucket, window): (u32, &crate::caramel::Boundary)| {
            let need = Self { at: boundaries.compute + window.read, is_need: true, bucket };
            [Self { at: window.update, is_need: false, bucket }, need]
        };
        let mut all: Vec<Self> = (0..).zip(&boundaries.windows).flat_map(of_bucket).collect();
        all.sort_unstable();
        all
    }
}

impl Forecast<'_> {
    /// Returns the deadline of the chunk: the latest time at which it and the chunks in flight may end such that
    /// compute passes its last need of a bucket by `goal`. The rest of the iteration is sent at `per_kib`. Returns the
    /// current time if `goal` cannot be met.
    ///
    /// The deadline is found by bisection over forward simulations. A backward pass is not possible, because the order
    /// of later buckets depends on the end of the chunk.
    pub fn deadline(&self, goal: Time, per_kib: PsPerKib) -> Time {
        let (mut from, mut to) = (self.now.ps(), goal.ps().max(self.now.ps()));
        if self.passes_at(self.now, per_kib) > goal {
            return self.now;
        }
        // A precision of one microsecond suffices, because no chunk whose band is chosen is shorter.
        while to - from > 1_000_000 {
            let middle = from + (to - from) / 2;
            if self.passes_at(Time::from_ps(middle), per_kib) <= goal { from = middle } else { to = middle }
        }
        Time::from_ps(from)
    }

    /// Returns the mean time at which compute passes its last need, over two equally likely ends of the chunks in
    /// flight. The chunks end before or after `ends` by `spread_ppm` millionths of the time until `ends`. The mean
    /// matters because a chunk that has slack on average may be late in half of the cases.
    pub fn passes_about(&self, ends: Time, spread_ppm: u64, per_kib: PsPerKib) -> Time {
        if spread_ppm == 0 {
            return self.passes_at(ends, per_kib);
        }
        let spread = share(ends - self.now, spread_ppm.min(1_000_000)).ps();
        let [early, late] = [ends.ps() - spread, ends.ps().saturating_add(spread)]
            .map(|ends| self.passes_at(Time::from_ps(ends), per_kib).ps());
        // The later end is not always worse, because the choice of the next bucket depends on the end.
        Time::from_ps(u64::midpoint(early, late))
    }

    /// Returns the time at which compute passes its last need, if the chunk and those in flight end at `ends`. The rest
    /// of the iteration is sent at `per_kib`.
    pub fn passes_at(&self, ends: Time, per_kib: PsPerKib) -> Time {
        let Self { left, buckets, .. } = *self;
        let mut free_at = ends;
        let mut queue: BinaryHeap<Reverse<(u32, u32)>> = BinaryHeap::new();
        // Arrival time of each bucket; `Time::MAX` as long as the bucket is not sent.
        let mut arrives: Vec<Time> = left.iter().map(|left| if left.0 > 0 { Time::MAX } else { Time::ZERO }).collect();
        for &bucket in buckets.iter().filter(|&&bucket| left[bucket as usize].0 == 0) {
            arrives[bucket as usize] = ends;
        }
        for (bucket, window) in (0..).zip(&self.boundaries.windows) {
            if left[bucket as usize].0 > 0 && window.update <= self.position {
                queue.push(Reverse((self.priorities[bucket as usize], bucket)));
            }
        }
        let (mut now, mut position) = (self.now, self.position);
        let send = |queue: &mut BinaryHeap<Reverse<(u32, u32)>>, free_at: &mut Time, arrives: &mut Vec<Time>| {
            let Reverse((_, bucket)) = queue.pop()?;
            *free_at = after(*free_at, takes(left[bucket as usize], per_kib));
            arrives[bucket as usize] = *free_at;
            Some(())
        };
        for &WindowEvent { at, is_need, bucket } in self.events {
            if at < self.position || (!is_need && at == self.position) {
                continue;
            }
            now = after(now, at - position);
            position = at;
            while free_at < now && send(&mut queue, &mut free_at, &mut arrives).is_some() {}
            if !is_need {
                if left[bucket as usize].0 > 0 {
                    free_at = free_at.max(now);
                    queue.push(Reverse((self.priorities[bucket as usize], bucket)));
                }
                continue;
            }
            while arrives[bucket as usize] == Time::MAX && send(&mut queue, &mut free_at, &mut arrives).is_some() {}
            now = now.max(arrives[bucket as usize]);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::research::tests::{SLOW, boundaries, forecast, ms};
    use proptest::prelude::*;

    #[test]
    fn a_chunk_has_time_until_a_more_urgent_one_is_ready() {
        // The iteration takes 30 ms. Bucket 0 is ready at 10 ms and needed at 60 ms. Bucket 1 is ready at 30 ms, is
        // needed immediately, and takes 4 ms. Compute therefore passes the need of bucket 1 at 34 ms and the last need,
        // of bucket 0, at 64 ms. The chunk of bucket 0 must not delay bucket 1, so its deadline is 30 ms.
        let boundaries = boundaries(30, &[(1024, 10, 30), (4096, 30, 0)]);
        let events = WindowEvent::all(&boundaries);
        let left = [Bytes(0), Bytes(4096)];
        let forecast = forecast(&boundaries, &events, &left, &[1, 0], 10);
        let best = forecast.passes_at(ms(11), SLOW);
        assert_eq!(best, ms(64));
        let deadline = forecast.deadline(best, SLOW);
        assert!(ms(30) >= deadline && deadline >= ms(30) - Time::from_ps(1_000_000), "{deadline:?}");
        // With a budget of 5 ms the chunk may delay bucket 1 by 5 ms.
        let deadline = forecast.deadline(best + ms(5), SLOW);
        assert!(ms(35) >= deadline && deadline >= ms(35) - Time::from_ps(1_000_000), "{deadline:?}");
    }

    #[test]
    fn without_anything_behind_it_a_chunk_has_its_slack() {
        let boundaries = boundaries(30, &[(1024, 10, 20)]);
        let events = WindowEvent::all(&boundaries);
        let forecast = forecast(&boundaries, &events, &[Bytes(0)], &[0], 10);
        let best = forecast.passes_at(ms(11), SLOW);
        let deadline = forecast.deadline(best, SLOW);
        assert!(ms(50) >= deadline && deadline >= ms(50) - Time::from_ps(1_000_000), "{deadline:?}");
    }

    /// Returns the rest of a random iteration at a random time. The priorities are a permutation.
    fn remainders() -> impl Strategy<Value = (Boundaries, Vec<Bytes>, Vec<u32>, u64)> {
        let window = (1_u64..5_000, 1_u64..40, 0_u64..40);
        (proptest::collection::vec(window, 1..6), 1_u64..40).prop_flat_map(|(windows, at)| {
            let priorities: Vec<u32> = (0..windows.len() as u32).collect();
            Just(priorities).prop_shuffle().prop_map(move |priorities| {
                let boundaries = boundaries(40, &windows);
                let mut left: Vec<Bytes> = boundaries.windows.iter().map(|window| window.bytes).collect();
                left[0] = Bytes(0);
                (boundaries, left, priorities, at)
            })
        })
    }

    proptest! {
        #[test]
        fn compute_never_gains_by_a_chunk_that_ends_later(
            (boundaries, left, priorities, at) in remainders(), first in 0_u64..90, second in 0_u64..90,
        ) {
            let events = WindowEvent::all(&boundaries);
            let forecast = forecast(&boundaries, &events, &left, &priorities, at);
            let [early, late] = [first.min(second), first.max(second)].map(|end| forecast.passes_at(ms(at + end), SLOW));
            // The end of compute is not monotone in the end of the chunk. If the chunk ends later, another order of
            // buckets may be shorter by one bucket (Graham's anomalies), although the last need waits for all of them.
            let most = left.iter().map(|left| takes(*left, SLOW)).max().unwrap_or(Time::ZERO);
            prop_assert!(early <= late + most);
        }

        #[test]
        fn a_deadline_can_be_met_and_is_not_before_now(
            (boundaries, left, priorities, at) in remainders(), budget in 0_u64..20,
        ) {
            let events = WindowEvent::all(&boundaries);
            let forecast = forecast(&boundaries, &events, &left, &priorities, at);
            let goal = forecast.passes_at(ms(at), SLOW) + ms(budget);
            let deadline = forecast.deadline(goal, SLOW);
            prop_assert!(deadline >= ms(at));
            prop_assert!(forecast.passes_at(deadline, SLOW) <= goal);
        }
    }
}
