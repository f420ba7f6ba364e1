//! Plans of collectives: whatever the order of arrivals, every rank ends with what the collective promises.

#[path = "../../crates/train/tests/executed/mod.rs"]
mod executed;

use arbitrary::{Arbitrary, Unstructured};

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
    let bytes = u64::from(exchange.bytes % MOST_BYTES);
    let all = executed::cases(ranks, bytes);
    let case = &all[usize::from(exchange.algorithm) % all.len()];
    let mut arrivals = exchange.arrivals.iter().cycle();
    executed::check(case, &mut |count| arrivals.next().map_or(0, |&drawn| usize::from(drawn) % count));

    let executed::Case { name, plan, .. } = case;
    let message_count = executed::messages(plan).len() as u64;
    // The closed form of trees is that of both.
    if let Some(algorithm) = case.algorithm.filter(|algorithm| algorithm.name() != "tree") {
        let counts = algorithm.counts(ranks);
        assert_eq!((u64::from(plan.step_count()), message_count), (counts.steps, counts.messages), "{name}");
    }
    let awaited = |step| (0..ranks).map(|rank| u64::from(plan.receive_count(step, rank))).sum::<u64>();
    assert_eq!((0..plan.step_count()).map(awaited).sum::<u64>(), message_count, "{name}");
    for chunk in plan.chunks(1 + u32::from(exchange.depth) % 8) {
        for message in executed::messages(&chunk) {
            assert!(message.offset + message.bytes.0 <= bytes * u64::from(ranks), "{name} {message:?}");
        }
    }
}
