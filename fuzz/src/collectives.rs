//! Plans of collectives: in any order of arrivals, every rank ends with the result of the collective.

#[path = "../../crates/train/tests/executed/mod.rs"]
mod executed;

use arbitrary::{Arbitrary, Unstructured};

/// Limit for which the values of all ranks fit into the sums of `executed`.
const MOST_RANKS: u32 = 17;
const MOST_BYTES: u16 = 400;

#[derive(Arbitrary, Debug)]
struct Exchange {
    ranks: u8,
    algorithm: u8,
    bytes: u16,
    depth: u8,
    /// Draws that determine which message arrives next.
    arrivals: Vec<u8>,
}

/// Executes an exchange of any size by any algorithm, and checks the plan as a whole and in chunks.
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
    // The closed form of trees counts two trees, but the plan has one.
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
