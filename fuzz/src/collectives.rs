//! Plans of collectives: whatever the order of arrivals, every rank ends with what the collective promises.

#[path = "../../crates/train/tests/executed/mod.rs"]
mod executed;

use arbitrary::{Arbitrary, Unstructured};
use gradtide_train::collective::plan::Algorithm;

/// Values of that many ranks fit in the sums of `executed`.
const MOST_RANKS: u32 = 17;
const MOST_BYTES: u16 = 400;

#[derive(Arbitrary, Debug)]
struct Exchange {
    ranks: u8,
    algorithm: u8,
    bytes: u16,
    depth: u8,
    /// Which message arrives next.
    arrivals: Vec<u8>,
}

/// An exchange of any bytes by any algorithm, whole and in chunks.
pub fn collective(data: &[u8]) {
    let Ok(exchange) = Exchange::arbitrary(&mut Unstructured::new(data)) else { return };
    let ranks = 1 + u32::from(exchange.ranks) % MOST_RANKS;
    let all: Vec<Algorithm> = executed::all_reduces(ranks).into_iter().chain(executed::others(ranks)).collect();
    let algorithm = &all[usize::from(exchange.algorithm) % all.len()];
    let bytes = u64::from(exchange.bytes % MOST_BYTES);
    let mut arrivals = exchange.arrivals.iter().cycle();
    executed::check(algorithm, ranks, bytes, &mut |count| {
        arrivals.next().map_or(0, |&drawn| usize::from(drawn) % count)
    });

    let plan = executed::plan(algorithm, ranks, bytes);
    let messages = executed::messages(&plan);
    let counts = algorithm.counts(ranks);
    assert_eq!(messages.len() as u64, counts.messages, "{algorithm:?} {ranks}");
    assert_eq!(u64::from(plan.step_count()), counts.steps, "{algorithm:?} {ranks}");
    let awaited = |step| (0..ranks).map(|rank| u64::from(plan.receive_count(step, rank))).sum::<u64>();
    assert_eq!((0..plan.step_count()).map(awaited).sum::<u64>(), counts.messages, "{algorithm:?} {ranks}");
    for chunk in plan.chunks(1 + u32::from(exchange.depth) % 8) {
        for message in executed::messages(&chunk) {
            assert!(message.offset + message.bytes.0 <= bytes * u64::from(ranks), "{algorithm:?} {message:?}");
        }
    }
}
