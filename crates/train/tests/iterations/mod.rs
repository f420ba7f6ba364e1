//! Iterations for Caramel's rules, from times in picoseconds.

use gradtide_net::{Bytes, Time};
use gradtide_train::caramel::{Boundaries, Boundary};

pub fn ps(ps: u64) -> Time {
    Time::from_ps(ps)
}

/// Makes an iteration from its compute time in ps and the (bytes, update time, read time) of each parameter.
pub fn iteration(compute: u64, windows: &[(u64, u64, u64)]) -> Boundaries {
    let window =
        |&(bytes, update, read): &(u64, u64, u64)| Boundary { bytes: Bytes(bytes), update: ps(update), read: ps(read) };
    Boundaries { compute: ps(compute), windows: windows.iter().map(window).collect() }
}
