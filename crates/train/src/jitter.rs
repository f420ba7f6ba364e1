//! Compute jitter: in each iteration, the compute times of each worker are multiplied by
//!
//! ```text
//! factor = noise · (straggler factor if the worker is the straggler and slow in this iteration, else 1)
//! ```
//!
//! noise is uniformly distributed within 1 ± √3 · (coefficient of variation), so its mean is 1. Every kind of draw has
//! a random stream of its own, from which each iteration draws once, whether the draw is used or not. Two runs with the
//! same seed therefore have the same draws even if other settings differ. All arithmetic is in integers, so that draws
//! are equal on all platforms.

use crate::spec::{ComputeSpec, StragglerSpec};
use gradtide_net::seed::Stream;
use gradtide_net::{Seed, Time};

/// A factor of 1, in millionths.
pub const ONE_PPM: u64 = 1_000_000;

/// √3, in millionths. The standard deviation of a uniform distribution of half width h is h / √3.
const SQRT3_PPM: u64 = 1_732_051;

/// Checks the compute jitter for this number of workers.
///
/// # Errors
/// A sentence that states why the jitter is invalid.
pub fn check(spec: &ComputeSpec, worker_count: usize) -> Result<(), &'static str> {
    if spec.noise_ppm > ONE_PPM / 2 {
        return Err("noise beyond one half would give times below zero");
    }
    let Some(straggler) = spec.straggler else { return Ok(()) };
    if straggler.worker.is_some_and(|worker| worker as usize >= worker_count) {
        return Err("the straggler is none of the workers");
    }
    if !(ONE_PPM..=1000 * ONE_PPM).contains(&straggler.factor_ppm) {
        return Err("a straggler takes 1 to 1000 times as long");
    }
    if straggler.probability_ppm > ONE_PPM {
        return Err("a probability is at most one");
    }
    Ok(())
}

/// Source of the jitter factors of one worker, one for each iteration.
#[derive(Debug)]
pub struct FactorStream {
    half_width_ppm: u64,
    noise: Stream,
    straggler: Option<Straggler>,
}

/// The random streams of the straggler. Every worker has an identical copy, from which it determines whether it is the
/// straggler.
#[derive(Debug)]
struct Straggler {
    spec: StragglerSpec,
    worker: u32,
    worker_count: u32,
    is_slow: Stream,
    which: Stream,
}

impl FactorStream {
    /// Returns the jitter of a job's workers; `None` if all workers are identical.
    pub fn of_workers(spec: &ComputeSpec, worker_count: u32, job: &str, seed: Seed) -> Option<Vec<Self>> {
        (spec.noise_ppm > 0 || spec.straggler.is_some()).then(|| Self::of_each(spec, worker_count, job, seed))
    }

    /// Returns the jitter of each worker, even if all workers are identical.
    pub fn of_each(spec: &ComputeSpec, worker_count: u32, job: &str, seed: Seed) -> Vec<Self> {
        let of_worker = |worker| Self {
            half_width_ppm: half_width_ppm(spec.noise_ppm),
            noise: seed.stream(&format!("compute/{job}/{worker}")),
            straggler: spec.straggler.map(|spec| Straggler {
                spec,
                worker,
                worker_count,
                is_slow: seed.stream(&format!("straggler/{job}")),
                which: seed.stream(&format!("straggler/{job}/worker")),
            }),
        };
        (0..worker_count).map(of_worker).collect()
    }

    /// Draws the factor of the next iteration, in millionths.
    pub fn next_ppm(&mut self) -> u64 {
        let noise_ppm = ONE_PPM - self.half_width_ppm + self.noise.below(2 * self.half_width_ppm + 1);
        match self.straggler.as_mut().map_or(ONE_PPM, Straggler::next_ppm) {
            ONE_PPM => noise_ppm,
            factor_ppm => stretched(noise_ppm, factor_ppm),
        }
    }
}

impl Straggler {
    fn next_ppm(&mut self) -> u64 {
        let is_slow = self.is_slow.below(ONE_PPM) < self.spec.probability_ppm;
        let drawn = self.which.below(u64::from(self.worker_count)) as u32;
        let is_meant = self.spec.worker.unwrap_or(drawn) == self.worker;
        if is_slow && is_meant { self.spec.factor_ppm } else { ONE_PPM }
    }
}

/// Compute jitter of one worker in its current iteration.
#[derive(Debug)]
pub struct Jitter {
    /// Source of factors; `None` if all workers are identical.
    stream: Option<FactorStream>,
    factor_ppm: u64,
}

impl Jitter {
    /// Creates the jitter of `count` workers in their first iteration.
    pub fn of_workers(streams: Option<Vec<FactorStream>>, count: usize) -> Vec<Self> {
        let streams: Vec<Option<FactorStream>> = streams
            .map_or_else(|| (0..count).map(|_| None).collect(), |streams| streams.into_iter().map(Some).collect());
        let first = |mut stream: Option<FactorStream>| {
            let factor_ppm = stream.as_mut().map_or(ONE_PPM, FactorStream::next_ppm);
            Self { stream, factor_ppm }
        };
        streams.into_iter().map(first).collect()
    }

    /// Draws the factor of the next iteration.
    pub fn begin_iteration(&mut self) {
        if let Some(stream) = &mut self.stream {
            self.factor_ppm = stream.next_ppm();
        }
    }

    /// Returns the duration of an op that takes `cost` without jitter.
    #[inline]
    pub fn stretched(&self, cost: Time) -> Time {
        if self.factor_ppm == ONE_PPM { cost } else { Time::from_ps(stretched(cost.ps(), self.factor_ppm)) }
    }
}

/// Returns the smallest and the largest factor that a worker can draw, in millionths.
pub fn range_ppm(spec: &ComputeSpec) -> (u64, u64) {
    let width_ppm = half_width_ppm(spec.noise_ppm);
    let factor_ppm = spec.straggler.map_or(ONE_PPM, |straggler| straggler.factor_ppm);
    (ONE_PPM - width_ppm, stretched(ONE_PPM + width_ppm, factor_ppm))
}

/// Returns `value` times a factor in millionths, rounded half up.
pub fn stretched(value: u64, factor_ppm: u64) -> u64 {
    ((u128::from(value) * u128::from(factor_ppm) + u128::from(ONE_PPM / 2)) / u128::from(ONE_PPM)) as u64
}

fn half_width_ppm(noise_ppm: u64) -> u64 {
    stretched(noise_ppm, SQRT3_PPM)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(spec: &ComputeSpec, workers: u32, iterations: usize) -> Vec<Vec<u64>> {
        let streams = FactorStream::of_workers(spec, workers, "train", Seed(7)).expect("workers that differ");
        streams.into_iter().map(|mut stream| (0..iterations).map(|_| stream.next_ppm()).collect()).collect()
    }

    const fn straggler(worker: Option<u32>, probability_ppm: u64) -> StragglerSpec {
        StragglerSpec { worker, factor_ppm: 1_500_000, probability_ppm }
    }

    #[test]
    fn workers_without_noise_or_straggler_are_alike() {
        assert!(FactorStream::of_workers(&ComputeSpec::default(), 8, "train", Seed(0)).is_none());
    }

    #[test]
    fn noise_has_the_mean_and_the_variation_that_it_says() {
        let drawn = factors(&ComputeSpec { noise_ppm: 100_000, ..ComputeSpec::default() }, 4, 25_000);
        let all: Vec<f64> = drawn.iter().flatten().map(|&ppm| ppm as f64 / 1e6).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let variance = all.iter().map(|factor| (factor - mean) * (factor - mean)).sum::<f64>() / all.len() as f64;
        // With n = 100,000 draws, the standard error of the mean is 0.1/√n = 0.00032. The fourth central moment of a
        // uniform distribution is 9/5 of its squared variance, so the standard error of the standard deviation is
        // 0.1·√(4/5 / 4n) = 0.00014. The tolerances are five of these errors.
        assert!((mean - 1.0).abs() < 0.0016, "{mean}");
        assert!((variance.sqrt() - 0.1).abs() < 0.0007, "{}", variance.sqrt());
        let edge = 1.0 - 0.1 * 3_f64.sqrt();
        assert!(all.iter().all(|&factor| (edge - 2e-6..=2.0 - edge + 2e-6).contains(&factor)));
        assert_ne!(drawn[0], drawn[1]);
    }

    #[test]
    fn in_every_iteration_one_worker_is_drawn_to_be_slow() {
        let drawn =
            factors(&ComputeSpec { straggler: Some(straggler(None, 1_000_000)), ..ComputeSpec::default() }, 5, 1000);
        for iteration in 0..1000 {
            assert_eq!(drawn.iter().filter(|worker| worker[iteration] == 1_500_000).count(), 1);
        }
        assert!(drawn.iter().all(|worker| worker.contains(&1_500_000)));
    }

    #[test]
    fn luck_does_not_depend_on_what_else_is_asked() {
        let slow = |spec: &ComputeSpec, workers, worker: usize| -> Vec<bool> {
            factors(spec, workers, 500)[worker].iter().map(|&ppm| ppm > 1_300_000).collect()
        };
        let plain = slow(&ComputeSpec { straggler: Some(straggler(Some(2), 300_000)), ..ComputeSpec::default() }, 4, 2);
        let noisy = slow(
            &ComputeSpec { noise_ppm: 10_000, straggler: Some(straggler(Some(2), 300_000)), ..ComputeSpec::default() },
            8,
            2,
        );
        assert_eq!(plain, noisy);
        let often = slow(&ComputeSpec { straggler: Some(straggler(Some(2), 600_000)), ..ComputeSpec::default() }, 4, 2);
        assert!(plain.iter().zip(&often).all(|(rare, often)| often | !rare), "a rarer straggler is slow no more often");
    }
}
