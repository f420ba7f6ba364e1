//! The max-min solver: after any history of flows and capacities, its rates satisfy the certificate of max-min
//! fairness, and equal those of a solver without this history.

#[path = "../../crates/net/tests/certificate/mod.rs"]
mod certificate;

use arbitrary::{Arbitrary, Unstructured};
use gradtide_net::maxmin::{ClassId, LinkId, MaxMin, PARTS};

const LINKS: usize = 12;
const MOST_STEPS: usize = 200;

#[derive(Arbitrary, Debug)]
struct History {
    capacities: [u32; LINKS],
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// Adds a flow over the links of these bits, in its own class if true.
    Add(u16, bool),
    Remove(u8),
    /// Changes the capacity of a link.
    Set(u8, u32),
    Read,
}

/// Plays a history of flows, and checks the rates.
pub fn maxmin(data: &[u8]) {
    let Ok(history) = History::arbitrary(&mut Unstructured::new(data)) else { return };
    let mut capacities = history.capacities.map(u64::from);
    let mut solver = MaxMin::new(&capacities);
    let mut present: Vec<(ClassId, Vec<LinkId>)> = Vec::new();
    for step in history.steps.iter().take(MOST_STEPS) {
        match *step {
            Step::Add(bits, apart) => {
                let path: Vec<LinkId> = (0..LINKS as u32).filter(|link| bits >> link & 1 == 1).map(LinkId).collect();
                if !path.is_empty() {
                    let class = if apart { solver.add_unshared(&path) } else { solver.add(&path) };
                    present.push((class, path));
                }
            }
            Step::Remove(index) if !present.is_empty() => {
                let (class, _) = present.swap_remove(usize::from(index) % present.len());
                solver.remove(class);
            }
            Step::Remove(_) => {}
            Step::Set(link, capacity) => {
                let link = usize::from(link) % LINKS;
                capacities[link] = capacity.into();
                solver.set_capacity(LinkId(link as u32), u64::from(capacity) * PARTS);
            }
            Step::Read => check(&mut solver, &capacities, &present),
        }
    }
    check(&mut solver, &capacities, &present);
}

fn check(solver: &mut MaxMin, capacities: &[u64], present: &[(ClassId, Vec<LinkId>)]) {
    let rates: Vec<u64> = present.iter().map(|(class, _)| solver.rate(*class)).collect();
    let flows: Vec<(u64, &[LinkId])> = rates.iter().zip(present).map(|(&rate, (_, path))| (rate, &path[..])).collect();
    certificate::check(capacities, &flows);
    let mut fresh = MaxMin::new(capacities);
    let classes: Vec<ClassId> = present.iter().rev().map(|(_, path)| fresh.add(path)).collect();
    let again: Vec<u64> = classes.iter().rev().map(|&class| fresh.rate(class)).collect();
    assert_eq!(rates, again, "a history is seen in the rates");
    for link in 0..LINKS {
        let used: u64 =
            flows.iter().filter(|(_, path)| path.contains(&LinkId(link as u32))).map(|(rate, _)| rate).sum();
        assert_eq!(solver.used(LinkId(link as u32)), used, "the sum of the rates on link {link}");
    }
}
