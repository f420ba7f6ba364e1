//! The oracle: chooses the band of each chunk with full knowledge of future flows. It simulates the chunk in each band,
//! in copies of the network. It is not realisable, and serves as an upper bound for the policies.

use super::forecast::{Forecast, Group, pace_from};
use super::measurements::Average;
use super::world::{Outcome, World};
use crate::bands::{Arrival, BandPolicy, Begin, NextMessage, StartChunk, View};
use crate::collective::messages::Bands;
use gradtide_net::{Band, Bytes, Time};

/// Window of the oracle's average time per KiB, in chunks.
const ORACLE_MEMORY: u64 = 256;

/// Weighs the delay of an iteration against the time that flows save.
#[derive(Clone, Debug)]
pub struct Tradeoff {
    price_ppm: u64,
    /// Candidate bands, the low one first.
    pub bands: [Band; 2],
    /// Size in bytes of the largest flow whose time counts.
    pub small: Bytes,
    /// Average time per KiB of chunks that all workers send in the high band.
    high: Average,
}

impl Tradeoff {
    /// Creates a tradeoff that values a second of flow time at `price_ppm` millionths of a second of iteration time.
    pub fn new(price_ppm: u64, bands: [Band; 2], small: Bytes) -> Self {
        Self { price_ppm, bands, small, high: Average::default() }
    }

    /// Returns the index of the candidate band with the smallest loss; ties go to the first. The loss is the latest
    /// time at which a worker's compute passes its last need, plus the time that flows spend in the network multiplied
    /// by its price. Later chunks are assumed to have the average time per KiB of the last candidate, the high band.
    ///
    /// # Panics
    /// If `outcomes` is empty.
    pub fn choose(&mut self, chunk: Bytes, workers: &[Forecast<'_>], outcomes: &[Outcome]) -> usize {
        if let (Some(Forecast { now, .. }), Some(high)) = (workers.first(), outcomes.last()) {
            self.high.add(pace_from(high.ends.saturating_since(*now), chunk), ORACLE_MEMORY);
        }
        let loss = |&band: &usize| {
            let passes = workers.iter().map(|forecast| forecast.passes_at(outcomes[band].ends, self.high.mean));
            let passes = u128::from(passes.max().unwrap_or(Time::ZERO).ps());
            (passes * 1_000_000).saturating_add(outcomes[band].flow_time_ps.saturating_mul(self.price_ppm.into()))
        };
        (0..outcomes.len()).min_by_key(loss).expect("there is a candidate")
    }
}

/// The oracle of a job that sends one chunk at a time.
pub struct Oracle<'n, 's> {
    tradeoff: Tradeoff,
    group: Group,
    world: World<'n, 's>,
    /// Whether the oracle has chosen the high band for the current chunk.
    is_high: bool,
}

impl<'n, 's> Oracle<'n, 's> {
    /// Creates an oracle for these workers.
    pub fn new(tradeoff: Tradeoff, group: Group, world: World<'n, 's>) -> Self {
        Self { tradeoff, group, world, is_high: false }
    }
}

impl BandPolicy for Oracle<'_, '_> {
    fn on_begin(&mut self, _chunk: u64, view: &dyn Fn() -> View, start: &StartChunk<'_>) -> Begin {
        let Tradeoff { bands, small, .. } = self.tradeoff;
        let outcomes = self.world.outcomes(&bands, small, start);
        let view = view();
        let forecasts: Vec<Forecast<'_>> =
            (0..view.positions.len()).map(|rank| self.group.forecast(&view, rank, Bytes(0))).collect();
        let chosen = self.tradeoff.choose(view.bytes, &forecasts, &outcomes);
        self.is_high = chosen > 0;
        Begin { bands: Bands::Alike(bands[chosen]), ends: Some(outcomes[chosen].ends) }
    }

    fn on_message(&mut self, _arrival: &Arrival<'_>) -> NextMessage {
        NextMessage { is_high: self.is_high, band: None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::forecast::WindowEvent;
    use super::super::tests::{MS, boundaries, forecast, ms};
    use super::*;

    #[test]
    fn an_oracle_weighs_an_iteration_against_flows() {
        // The chunk begins at 10 ms and is needed at 40 ms. In the low band it ends 5 ms late, and flows spend 20 ms
        // less in the network.
        let boundaries = boundaries(30, &[(1024, 10, 10)]);
        let events = WindowEvent::all(&boundaries);
        let forecast = forecast(&boundaries, &events, &[Bytes(0)], &[0], 10);
        let outcome = |end, flows| Outcome { ends: ms(end), flow_time_ps: u128::from(flows * MS) };
        let bands = [2, 0].map(|band| Band::new(band).unwrap());
        let choice = |price_ppm, outcomes: &[Outcome]| {
            Tradeoff::new(price_ppm, bands, Bytes(100)).choose(Bytes(1024), &[forecast], outcomes)
        };
        let outcomes = [outcome(45, 30), outcome(12, 50)];
        assert_eq!(choice(249_999, &outcomes), 1);
        assert_eq!(choice(250_000, &outcomes), 0, "of two that are alike it is the first");
        // If the chunk ends within its slack, the low band costs nothing.
        assert_eq!(choice(0, &[outcome(40, 30), outcome(12, 50)]), 0);
        // The low band may also increase the time of flows.
        assert_eq!(choice(1, &[outcome(40, 51), outcome(12, 50)]), 1);
        assert_eq!(choice(u64::MAX, &[outcome(40, 51), Outcome { ends: Time::MAX, flow_time_ps: u128::MAX }]), 0);
    }
}
