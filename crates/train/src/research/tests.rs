//! Iterations and forecasts for the tests of this module.

use super::forecast::{Forecast, PsPerKib, WindowEvent};
use crate::caramel::{Boundaries, Boundary};
use gradtide_net::{Bytes, Time};

pub const MS: u64 = 1_000_000_000;

pub fn ms(count: u64) -> Time {
    Time::from_ps(count * MS)
}

/// Returns the boundaries of an iteration that computes for `compute` ms. Each window consists of
/// bytes, update in ms and read in ms.
pub fn boundaries(compute: u64, windows: &[(u64, u64, u64)]) -> Boundaries {
    let window =
        |&(bytes, update, read): &(u64, u64, u64)| Boundary { bytes: Bytes(bytes), update: ms(update), read: ms(read) };
    Boundaries { compute: ms(compute), windows: windows.iter().map(window).collect() }
}

/// A time per KiB of one millisecond per 1024 bytes.
pub const SLOW: PsPerKib = MS;

pub fn forecast<'a>(
    boundaries: &'a Boundaries,
    events: &'a [WindowEvent],
    left: &'a [Bytes],
    priorities: &'a [u32],
    at: u64,
) -> Forecast<'a> {
    let (now, position) = (ms(at), ms(at));
    Forecast { boundaries, events, priorities, now, position, left, buckets: &[0], ahead: Bytes(0) }
}
