//! Simulates recorded packets on the ports and the calendar of the packet engine.

use super::super::PacketConfig;
use super::super::calendar::Calendar;
use super::super::event_key::EventTime;
use super::super::qdisc::Verdict;
use super::fabric::{Fabric, Origin};
use super::{Decision, Frame};
use crate::route::RouteError;
use crate::topology::Graph;
use crate::units::Time;

/// Simulates packets that hosts send at given times. Returns the decisions in the order of their times. `origins`
/// contains the connections in the order in which [`Forwarder::open`](super::Forwarder::open) numbered them. `frames`
/// is in the order of time.
///
/// # Errors
/// [`RouteError`] if the graph does not connect its hosts.
/// # Panics
/// If a frame has an earlier time than the frame before it.
pub fn replay(
    graph: &Graph,
    config: &PacketConfig,
    origins: &[Origin],
    frames: &[(Time, Frame)],
) -> Result<Vec<Decision>, RouteError> {
    let mut fabric = Fabric::new(graph, config, Calendar::new)?;
    fabric.origins = origins.to_vec();
    let mut decisions = Vec::with_capacity(frames.len());
    let mut frames = frames.iter().peekable();
    let (mut now_ps, mut sequence) = (0, 0);
    let mut number = |at_ps: u64| {
        assert!(at_ps >= now_ps, "time never goes back");
        sequence = if at_ps == now_ps { sequence + 1 } else { 0 };
        now_ps = at_ps;
        sequence
    };
    loop {
        let link_ps = fabric.driver.next_ps();
        if let Some((at, frame)) = frames.peek().filter(|(at, _)| at.ps() <= link_ps) {
            let (now_ps, packet) = (at.ps(), frame.wire());
            let at = EventTime { now_ps, scheduled_ps: 0, sequence: number(now_ps) };
            let (port, verdict) = fabric.enter(at, packet);
            if verdict == Verdict::Dropped {
                decisions.push(Decision::of(now_ps, &packet, Some(port)));
            }
            frames.next();
            continue;
        }
        if link_ps == u64::MAX {
            return Ok(decisions);
        }
        if fabric.driver.bucket_is_done() {
            fabric.driver.begin_bucket(&mut fabric.ports);
            continue;
        }
        let (start_ps, link, packet) = fabric.driver.pop();
        let packet = *packet;
        let Some(port) = fabric.port_after(link, &packet) else {
            number(link_ps);
            decisions.push(Decision::of(link_ps, &packet, None));
            continue;
        };
        let at = EventTime { now_ps: link_ps, scheduled_ps: start_ps, sequence: number(link_ps) };
        if fabric.send(port, at, packet) == Verdict::Dropped {
            decisions.push(Decision::of(link_ps, &packet, Some(port)));
        }
    }
}
