//! Runs flows that all start at time zero until they have finished, with the max-min solver alone. This is enough to
//! check and to time the solver.
#![allow(dead_code)]

use gradtide_net::maxmin::{ClassId, LinkId, MaxMin, PARTS};
use std::collections::BTreeMap;

/// Returns the finish time in s of each flow, and the number of solves. Flow i sends `bytes[i]` over the links
/// `paths[i]`; capacities are in bit/s.
///
/// Flows that finish at one instant leave together. Two times are one instant if they differ by at most 1e-12 of the
/// flow's own time.
pub fn finish_times(capacities: &[u64], paths: &[Vec<LinkId>], bytes: &[u64]) -> (Vec<f64>, u64) {
    let mut solver = MaxMin::new(capacities);
    let mut active: Vec<(usize, ClassId, f64)> =
        (0..paths.len()).map(|flow| (flow, solver.add(&paths[flow]), bytes[flow] as f64 * 8.0)).collect();
    let mut finish = vec![0.0; paths.len()];
    let mut now = 0.0;
    let mut rates = vec![0.0; paths.len()];
    while !active.is_empty() {
        for (key, rate) in solver.rates() {
            rates[key.0 as usize] = rate as f64 / PARTS as f64;
        }
        let left = |&(_, key, bits): &(usize, ClassId, f64)| bits / rates[key.0 as usize];
        let step = active.iter().map(left).fold(f64::INFINITY, f64::min);
        now += step;
        active.retain_mut(|(flow, key, bits)| {
            *bits -= step * rates[key.0 as usize];
            let done = *bits <= bytes[*flow] as f64 * 8e-12;
            if done {
                finish[*flow] = now;
                solver.remove(*key);
            }
            !done
        });
    }
    (finish, solver.solve_count())
}

/// Reads flows as `src,dst,bytes` and routes as `flow,links`. Returns bytes, paths and the number of links.
pub fn read_flows(flows: &str, routes: &str) -> (Vec<u64>, Vec<Vec<LinkId>>, usize) {
    let bytes = flows.lines().skip(1).map(|line| line.rsplit(',').next().unwrap().parse().unwrap()).collect();
    let mut ids = BTreeMap::new();
    let mut paths = Vec::new();
    for line in routes.lines().skip(1) {
        let names = line.split(',').nth(1).unwrap().split_whitespace();
        paths.push(
            names
                .map(|name| {
                    let next = LinkId(ids.len() as u32);
                    *ids.entry(name.to_owned()).or_insert(next)
                })
                .collect(),
        );
    }
    (bytes, paths, ids.len())
}
