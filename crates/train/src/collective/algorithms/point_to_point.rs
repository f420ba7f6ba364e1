//! Point-to-point send. Rank 0 sends to rank 1. In a process group that is not a link between two ranks, every rank
//! sends to the next rank.

use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::group::{GroupHosts, GroupPlans};
use crate::collective::levels::{CollectiveKind, Levels, Span};
use crate::collective::pattern::{Action, BufferShare, Pattern, Send};
use crate::collective::plan::{Phase, PlanError};
use gradtide_net::Bytes;
use serde::Deserialize;

/// Point-to-point send.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct PointToPoint;

const ABOUT: About = About {
    title: "point_to_point",
    operation: CollectiveKind::Send,
    keys: &[],
    needs_even_nodes: false,
    rows: &[Row { form: "", does: "rank 0's buffer to rank 1", steps: "1", bytes: "S", source: "" }],
};

/// Sends the whole buffer from rank 0 to rank 1.
#[derive(Debug)]
struct FirstToSecond;

impl CollectiveAlgorithm for PointToPoint {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, _ranks: u32) -> Result<Vec<Phase>, PlanError> {
        Ok(vec![Phase::of_all(FirstToSecond)])
    }

    fn closed_form(&self, _ranks: u32) -> Counts {
        Counts { steps: 1, messages: 1, sent: 1, most: (1, 1) }
    }

    fn levels(&self, span: Span) -> Option<Levels> {
        let crosses = |is_here: bool| u64::from(is_here && span.ranks() > 1);
        Some(Levels::direct(crosses(span.nodes() == 1), crosses(span.nodes() > 1), 1))
    }

    fn group_plans(&self, group: &GroupHosts, bytes: Bytes, _depth: u32) -> Result<GroupPlans, PlanError> {
        let all = group.nodes.concat();
        let next = all.iter().cycle().skip(1);
        let mut hosts: Vec<Vec<u32>> = all.iter().zip(next).map(|(&host, &next)| vec![host, next]).collect();
        if group.is_link {
            hosts.truncate(1);
        }
        let plans = hosts.iter().map(|_| self.plan(2, bytes, 1)).collect::<Result<_, _>>()?;
        Ok(GroupPlans { plans, hosts })
    }

    fn group_messages(&self, span: Span, _bytes: Bytes, _depth: u32) -> u64 {
        span.ranks().into()
    }
}

impl Pattern for FirstToSecond {
    fn step_count(&self, _n: u32) -> u32 {
        1
    }

    fn sends(&self, _step: u32, i: u32, _n: u32, send: Send<'_>) {
        if i == 0 {
            send(1, BufferShare::WHOLE, Action::Copy);
        }
    }

    fn receive_count(&self, _step: u32, i: u32, _n: u32) -> u32 {
        u32::from(i == 1)
    }
}
