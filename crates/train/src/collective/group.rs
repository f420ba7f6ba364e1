//! Process groups whose ranks are all simulated. A group runs several plans concurrently; in total, they load the
//! network as [`levels`](super::levels) states.
//!
//! Out of scope: the plans of an algorithm, the choice between algorithms, and the order of transfers.

use super::levels::Span;
use super::plan::{CollectivePlan, Phase, PlanError};
use gradtide_net::Bytes;
use std::collections::BTreeSet;

/// The ranks of a process group.
#[derive(Clone, Debug)]
pub struct GroupHosts {
    /// Hosts of the ranks of each node, in order; no node is empty.
    pub nodes: Vec<Vec<u32>>,
    /// Whether the group is a point-to-point link, in which only the first rank sends, to the second rank. In other
    /// groups every rank sends to the next rank.
    pub is_link: bool,
}

/// Concurrent plans, and the hosts of their ranks. If there are fewer host lists than plans, plan i uses the list at
/// index i modulo the number of lists.
#[derive(Clone, Debug)]
pub struct GroupPlans {
    /// Plans in the order in which they begin.
    pub plans: Vec<CollectivePlan>,
    /// Lists of hosts: the host of each rank of a plan.
    pub hosts: Vec<Vec<u32>>,
}

impl GroupPlans {
    /// Returns each plan with the hosts of its ranks.
    pub fn iter(&self) -> impl Iterator<Item = (&CollectivePlan, &Vec<u32>)> {
        self.plans.iter().zip(self.hosts.iter().cycle())
    }

    /// Returns the pairs (sender, receiver) of hosts that communicate.
    pub fn pairs(&self) -> BTreeSet<(u32, u32)> {
        let mut pairs = BTreeSet::new();
        for (plan, hosts) in self.iter() {
            // Every step of a ring sends to the same ranks.
            let step_count = if plan.is_ring() { plan.step_count().min(1) } else { plan.step_count() };
            for (step, rank) in (0..step_count).flat_map(|step| (0..plan.ranks()).map(move |rank| (step, rank))) {
                plan.sends(step, rank, &mut |message| {
                    pairs.insert((hosts[message.from as usize], hosts[message.to as usize]));
                });
            }
        }
        pairs
    }
}

impl GroupHosts {
    /// Returns the distribution of the group's ranks over nodes.
    ///
    /// # Panics
    /// If the group is empty.
    pub fn span(&self) -> Span {
        Span::of_nodes(self.nodes.iter().map(Vec::len)).expect("a group has ranks on each of its nodes")
    }

    /// Creates `count` concurrent copies of a plan. Each copy transfers its share of the bytes, in `depth` parts.
    /// `turn` returns, for each copy, the number of places by which the ranks of each node are rotated, and whether the
    /// nodes are in reverse order.
    ///
    /// # Errors
    /// As [`CollectivePlan::new`].
    pub fn plans(
        &self,
        phases: &[Phase],
        bytes: Bytes,
        (count, depth): (u64, u64),
        turn: impl Fn(u64) -> (usize, bool),
    ) -> Result<GroupPlans, PlanError> {
        let ranks = self.span().ranks();
        let plan = |part| CollectivePlan::new(phases.to_vec(), ranks, part, 1);
        // Plans are ordered by part, so that the first parts of all copies begin first.
        let plans = parts(bytes, count * depth).map(plan).collect::<Result<_, _>>()?;
        Ok(GroupPlans { plans, hosts: (0..count).map(|copy| self.turned(turn(copy))).collect() })
    }

    fn turned(&self, (by, is_reversed): (usize, bool)) -> Vec<u32> {
        let rotated = |node: &Vec<u32>| {
            let mut node = node.clone();
            let count = node.len();
            node.rotate_left(by % count);
            node
        };
        let mut nodes: Vec<Vec<u32>> = self.nodes.iter().map(rotated).collect();
        if is_reversed {
            nodes.reverse();
        }
        nodes.concat()
    }
}

/// Divides `bytes` into parts that differ by at most one byte.
fn parts(bytes: Bytes, count: u64) -> impl Iterator<Item = Bytes> {
    let before = move |index: u64| (u128::from(bytes.0) * u128::from(index) / u128::from(count)) as u64;
    (0..count).map(move |index| Bytes(before(index + 1) - before(index)))
}
