//! Work, instants and loads of the fluid engine, as whole numbers, so that rounding errors do not accumulate.
//!
//! Time is counted in femtoseconds, and work in units of 2^-20 bit/s times 1 fs. The clock shows picoseconds, rounded
//! down.

use crate::maxmin::PARTS;
use crate::topology::PortId;
use crate::units::{Bytes, Time};
use std::ops::{AddAssign, Mul, Sub};

pub(super) const FS_PER_PS: u128 = 1_000;
/// Work of one byte, in units of 2^-20 bit/s times 1 fs.
pub(super) const WORK_PER_BYTE: u128 = 8 * PARTS as u128 * 1_000_000_000_000_000;

/// Returns the work of a message of `bytes / parts` bytes.
#[inline]
pub(super) fn work(bytes: Bytes, parts: u32) -> u128 {
    let work = u128::from(bytes.0).checked_mul(WORK_PER_BYTE).expect("a message is below 2^54 bytes");
    work / u128::from(parts)
}

/// Returns the clock's time at an instant, rounded down.
#[inline]
pub(super) fn clock(instant_fs: u128) -> Time {
    Time::from_ps((instant_fs / FS_PER_PS) as u64)
}

/// Splits an instant into the clock's time and the femtoseconds since.
#[inline]
pub(super) fn split(instant_fs: u128) -> (Time, u16) {
    let shown = clock(instant_fs);
    (shown, (instant_fs - joined(shown, 0)) as u16)
}

#[inline]
pub(super) fn joined(shown: Time, after_fs: u16) -> u128 {
    u128::from(shown.ps()) * FS_PER_PS + u128::from(after_fs)
}

/// Traffic that has crossed a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub(super) bytes: Bytes,
    /// Exact number of bytes, as work: the integral of the rate over time.
    pub(super) work: u128,
}

impl Load {
    /// Returns the load in whole bytes.
    pub fn bytes(self) -> Bytes {
        self.bytes
    }

    /// Returns the load of `count` messages of `bytes / parts` bytes each, which together count as `counted` whole
    /// bytes.
    pub fn of_messages(count: u64, bytes: Bytes, parts: u32, counted: Bytes) -> Self {
        Self { bytes: counted, work: work(bytes, parts) * u128::from(count) }
    }

    /// Returns the load that a message of `work` and of `counted` whole bytes has put on a link after `done` of its
    /// work.
    pub(super) fn of(done: u128, work: u128, counted: Bytes) -> Self {
        let bytes = if done < work { counted.min(Bytes((done / WORK_PER_BYTE) as u64)) } else { counted };
        Self { bytes, work: done.min(work) }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.work += other.work;
    }
}

impl Sub for Load {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self { bytes: self.bytes - earlier.bytes, work: self.work - earlier.work }
    }
}

impl Mul<u64> for Load {
    type Output = Self;
    fn mul(self, count: u64) -> Self {
        Self { bytes: self.bytes * count, work: self.work * u128::from(count) }
    }
}

/// A path between two hosts on which no other flow slows the flow between these hosts.
#[derive(Clone, Debug)]
pub struct ExclusivePath {
    pub(super) rate: u64,
    pub(super) delay_ps: u64,
    pub(super) ports: Vec<PortId>,
}

impl ExclusivePath {
    /// Returns the time to send `bytes / parts` bytes on the path, without the propagation delay, in fs, rounded up as
    /// in the engine.
    ///
    /// # Panics
    /// If there are 2^54 bytes or more.
    pub fn sending_fs(&self, bytes: Bytes, parts: u32) -> u128 {
        work(bytes, parts).div_ceil(u128::from(self.rate))
    }

    /// Returns the propagation delay in fs.
    pub fn delay_fs(&self) -> u128 {
        u128::from(self.delay_ps) * FS_PER_PS
    }

    /// Returns the load of a message of `bytes / parts` bytes, which counts as `counted` whole bytes, `fs` femtoseconds
    /// after it entered.
    pub fn load_after(&self, bytes: Bytes, parts: u32, counted: Bytes, fs: u128) -> Load {
        let work = work(bytes, parts);
        Load::of(if fs < self.sending_fs(bytes, parts) { u128::from(self.rate) * fs } else { work }, work, counted)
    }

    /// Returns the links of the path.
    pub fn ports(&self) -> &[PortId] {
        &self.ports
    }

    /// Converts an instant from fs to the time that the engine's clock shows.
    pub fn clock(instant_fs: u128) -> Time {
        clock(instant_fs)
    }

    /// Converts a time of the engine's clock to fs.
    pub fn fs(instant: Time) -> u128 {
        joined(instant, 0)
    }
}
