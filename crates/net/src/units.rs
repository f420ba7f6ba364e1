//! Types of quantities: time, bytes, rates and ratios, with their arithmetic. In JSON, they are whole numbers of the
//! unit at the end of their field's name; a ratio is a pair of numbers.

use serde::Deserialize;
use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};

/// A point or a span of simulated time, in picoseconds. At every Ethernet rate from 1 to 1600 Gbit/s, a byte takes a
/// whole number of picoseconds. The maximum is 213 days.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of the simulation, or an empty span.
    pub const ZERO: Self = Self(0);
    /// The latest time.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns a time of `ps` picoseconds.
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// Returns the time in picoseconds.
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// Returns the span from `earlier` to `self`, or zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Returns the sum, at most [`Time::MAX`].
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Returns the product, at most [`Time::MAX`].
    pub const fn saturating_mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// Returns the sum, or `None` beyond [`Time::MAX`].
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }
}

impl Add for Time {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.checked_add(other.0).expect("simulated time stays below 213 days: checked when the run is planned"))
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Time {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self(self.0.checked_sub(earlier.0).expect("time never goes back"))
    }
}

impl Sum for Time {
    fn sum<I: Iterator<Item = Self>>(spans: I) -> Self {
        spans.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Time {
    /// Writes the time in microseconds, always with six decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// An amount of data in bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

const BYTES_FIT: &str = "bytes of a run stay below 2^64: checked when the run is planned";

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.checked_add(other.0).expect(BYTES_FIT))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, part: Self) -> Self {
        Self(self.0.checked_sub(part.0).expect("a part is no larger than the whole"))
    }
}

impl Mul<u64> for Bytes {
    type Output = Self;
    fn mul(self, count: u64) -> Self {
        Self(self.0.checked_mul(count).expect(BYTES_FIT))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self(0), Add::add)
    }
}

/// A rate in bits per second, never 0.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(try_from = "u64")]
pub struct Rate(u64);

impl Rate {
    /// The fastest rate.
    pub const MAX: Self = Self(u64::MAX);

    const BITS_PER_BYTE_PS_PER_S: u128 = 8 * 1_000_000_000_000;

    /// Returns a rate of `bps` bits per second, or `None` for 0.
    pub const fn from_bps(bps: u64) -> Option<Self> {
        if bps == 0 { None } else { Some(Self(bps)) }
    }

    /// Returns the rate in bits per second.
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// Returns the time to put `bytes` on a link of this rate, at most [`Time::MAX`]. The time is rounded up to a
    /// picosecond, so that the link never exceeds its rate.
    pub fn transmit(self, bytes: Bytes) -> Time {
        let exact = (u128::from(bytes.0) * Self::BITS_PER_BYTE_PS_PER_S).div_ceil(u128::from(self.0));
        u64::try_from(exact).map_or(Time::MAX, Time::from_ps)
    }

    /// Returns the time to put `rounds` consecutive messages of `bytes / parts` bytes each on a link of this rate, or
    /// `None` beyond [`Time::MAX`]. The total is rounded once, half up, to a picosecond.
    ///
    /// # Panics
    /// If `parts` is 0.
    pub fn serialize(self, bytes: Bytes, rounds: u32, parts: u32) -> Option<Time> {
        let numerator = u128::from(bytes.0) * u128::from(rounds);
        let numerator = numerator.checked_mul(Self::BITS_PER_BYTE_PS_PER_S)?;
        let denominator = u128::from(self.0) * u128::from(parts);
        let rounded = numerator.checked_add(denominator / 2)? / denominator;
        u64::try_from(rounded).ok().map(Time::from_ps)
    }
}

impl TryFrom<u64> for Rate {
    type Error = &'static str;

    fn try_from(bps: u64) -> Result<Self, Self::Error> {
        Self::from_bps(bps).ok_or("a rate is above 0")
    }
}

/// An exact fraction above 0, in lowest terms.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "(u64, u64)")]
pub struct Ratio {
    numerator: u64,
    denominator: u64,
}

impl Ratio {
    /// The ratio 1.
    pub const ONE: Self = Self { numerator: 1, denominator: 1 };

    /// Returns `numerator / denominator`, or `None` if either is 0.
    pub const fn new(numerator: u64, denominator: u64) -> Option<Self> {
        if numerator == 0 || denominator == 0 {
            return None;
        }
        let (mut divisor, mut rest) = (numerator, denominator);
        while rest != 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        Some(Self { numerator: numerator / divisor, denominator: denominator / divisor })
    }

    /// Returns the numerator in lowest terms.
    pub const fn numerator(self) -> u64 {
        self.numerator
    }

    /// Returns the denominator in lowest terms.
    pub const fn denominator(self) -> u64 {
        self.denominator
    }

    /// Returns `count` times this ratio, or `None` if that is not a whole number of 32 bits.
    pub fn of(self, count: u32) -> Option<u32> {
        let parts = u128::from(count) * u128::from(self.numerator);
        let denominator = u128::from(self.denominator);
        if parts % denominator == 0 { u32::try_from(parts / denominator).ok() } else { None }
    }
}

impl TryFrom<(u64, u64)> for Ratio {
    type Error = &'static str;

    fn try_from((numerator, denominator): (u64, u64)) -> Result<Self, Self::Error> {
        Self::new(numerator, denominator).ok_or("a ratio is above 0")
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ratio {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let cross = |a: &Self, b: &Self| u128::from(a.numerator) * u128::from(b.denominator);
        cross(self, other).cmp(&cross(other, self))
    }
}

impl fmt::Display for Ratio {
    /// Writes the ratio as `1/4`, or as `1` if it is a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => write!(f, "{}", self.numerator),
            _ => write!(f, "{}/{}", self.numerator, self.denominator),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic = "stay below 2^64"]
    fn a_sum_of_bytes_that_does_not_fit_is_no_small_number() {
        let _ = [Bytes(u64::MAX), Bytes(2)].into_iter().sum::<Bytes>();
    }

    #[test]
    fn a_byte_at_one_gigabit_takes_eight_nanoseconds() {
        let gigabit = Rate::from_bps(1_000_000_000).unwrap();
        assert_eq!(gigabit.serialize(Bytes(1), 1, 1), Some(Time::from_ps(8_000)));
        // Two messages of a third of a byte take 16000 / 3 = 5333.33 ps.
        assert_eq!(gigabit.serialize(Bytes(1), 2, 3), Some(Time::from_ps(5_333)));
        // Two thirds round up.
        assert_eq!(gigabit.serialize(Bytes(2), 1, 3), Some(Time::from_ps(5_333)));
        assert_eq!(gigabit.serialize(Bytes(1), 1, 3), Some(Time::from_ps(2_667)));
    }

    #[test]
    fn a_transfer_of_more_than_213_days_is_none() {
        let bit = Rate::from_bps(1).unwrap();
        assert_eq!(bit.serialize(Bytes(u64::MAX), u32::MAX, 1), None);
        assert_eq!(bit.serialize(Bytes(10_000_000), 1, 1), None);
        assert!(bit.serialize(Bytes(1_000_000), 1, 1).is_some());
    }

    #[test]
    fn zero_rate_does_not_exist() {
        assert_eq!(Rate::from_bps(0), None);
    }

    #[test]
    fn ratios_are_exact() {
        let ratio = |numerator, denominator| Ratio::new(numerator, denominator).unwrap();
        assert_eq!(ratio(6, 8), ratio(3, 4));
        assert_eq!((ratio(3, 4).of(8), ratio(3, 4).of(6), ratio(2, 1).of(u32::MAX)), (Some(6), None, None));
        assert!(ratio(1, 3) < ratio(3, 8) && ratio(1, 1) == Ratio::ONE);
        assert_eq!((ratio(2, 8).to_string(), ratio(4, 2).to_string()), ("1/4".into(), "2".into()));
        assert_eq!((Ratio::new(0, 1), Ratio::new(1, 0)), (None, None));
    }

    #[test]
    fn time_prints_microseconds_to_the_picosecond() {
        assert_eq!(Time::from_ps(1_000_001).to_string(), "1.000001");
    }
}
