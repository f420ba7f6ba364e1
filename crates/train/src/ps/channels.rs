//! Pull order of one worker with several parameter servers. Arrival times result from max-min fair rates; a local
//! search finds an order with a short iteration.

use crate::order::makespan::Scorer;
use crate::order::needs::{Needs, Recv};
use gradtide_net::{Bytes, Time};

/// Budget of the local search, in scoring steps. Unlike a time limit, it leads to the same order on every machine.
const SEARCH_STEPS: u64 = 20_000_000;

/// The channels from all servers to one worker, if the other workers pull in the same order.
pub struct Channels<'a> {
    /// Server of each parameter.
    pub server_of: &'a [u32],
    /// Size of each parameter.
    pub sizes: &'a [Bytes],
    /// The worker's share of each server's link, in bit/s.
    pub shares_bps: Vec<f64>,
    /// For each server, the index of the worker's inbound link on which its pulls arrive.
    pub entries: Vec<usize>,
    /// The worker's share of each inbound link, in bit/s.
    pub entry_bps: Vec<f64>,
    /// Propagation delay from each server.
    pub delays: Vec<Time>,
}

impl Channels<'_> {
    /// Returns the arrival time of each parameter in picoseconds, with the parameter's index in `order`, sorted by
    /// arrival. Each server sends its parameters one after another. The channels that are sending share links at
    /// max-min fair rates.
    fn arrivals(&self, order: &[u32]) -> Vec<(u64, usize)> {
        let mut waiting: Vec<Vec<usize>> = vec![Vec::new(); self.shares_bps.len()];
        let server = |place: usize| self.server_of[order[place] as usize] as usize;
        (0..order.len()).rev().for_each(|place| waiting[server(place)].push(place));
        let bits = |place: usize| self.sizes[order[place] as usize].0 as f64 * 8.0;
        let next = |waiting: &mut Vec<usize>| waiting.pop().map(|place| (place, bits(place)));
        let mut sending: Vec<Option<(usize, f64)>> = waiting.iter_mut().map(next).collect();
        let (mut now, mut arrived) = (0.0, Vec::with_capacity(order.len()));
        loop {
            let mut active: Vec<usize> = (0..sending.len()).filter(|&server| sending[server].is_some()).collect();
            active.sort_by(|&a, &b| self.shares_bps[a].total_cmp(&self.shares_bps[b]));
            let (mut left_bps, mut rates) = (self.entry_bps.clone(), vec![0.0_f64; sending.len()]);
            let mut left = vec![0; left_bps.len()];
            active.iter().for_each(|&server| left[self.entries[server]] += 1);
            for &server in &active {
                let entry = self.entries[server];
                rates[server] = self.shares_bps[server].min(left_bps[entry] / f64::from(left[entry]));
                left_bps[entry] -= rates[server];
                left[entry] -= 1;
            }
            let ends = |server: usize| sending[server].map_or(f64::INFINITY, |(_, left)| left / rates[server]);
            let Some(first) = active.iter().copied().min_by(|&a, &b| ends(a).total_cmp(&ends(b))) else { break };
            let step = ends(first);
            now += step;
            for &server in &active {
                let Some((place, left)) = sending[server] else { continue };
                let rest = left - step * rates[server];
                // Rounding errors leave less than a thousandth of a bit of a transfer that ends.
                if server == first || rest < 1e-3 {
                    arrived.push(((now * 1e12) as u64 + self.delays[server].ps(), place));
                    sending[server] = next(&mut waiting[server]);
                } else {
                    sending[server] = Some((place, rest));
                }
            }
        }
        arrived
    }
}

/// Returns the best of `orders` after a local search, which moves one transfer at a time as long as this makes the
/// iteration shorter.
pub fn best(
    needs: &Needs,
    channels: &Channels<'_>,
    parameter_of: &dyn Fn(Recv) -> u32,
    orders: Vec<Vec<Recv>>,
) -> Vec<Recv> {
    let mut scorer = Scorer::new(needs);
    let cost = scorer.cost() + needs.recv_count() as u64 * (8 + channels.shares_bps.len() as u64);
    let mut makespan = |order: &[Recv]| {
        let parameters: Vec<u32> = order.iter().map(|&recv| parameter_of(recv)).collect();
        let (at, places): (Vec<u64>, Vec<usize>) = channels.arrivals(&parameters).into_iter().unzip();
        scorer.makespan_at(&places.iter().map(|&place| order[place]).collect::<Vec<Recv>>(), at)
    };
    let scored = orders.into_iter().map(|order| (makespan(&order), order));
    let Some((mut least, mut order)) = scored.min_by_key(|(ticks, _)| *ticks) else { return Vec::new() };
    let mut tries = SEARCH_STEPS / cost;
    let mut is_better = true;
    while is_better {
        is_better = false;
        for from in 0..order.len() {
            for to in 0..order.len() {
                if tries == 0 || least <= needs.compute_ticks() {
                    return order;
                }
                tries -= 1;
                let mut moved = order.clone();
                let recv = moved.remove(from);
                moved.insert(to, recv);
                let ticks = makespan(&moved);
                if ticks < least {
                    (least, order, is_better) = (ticks, moved, true);
                }
            }
        }
    }
    order
}
