//! Tables of background flows and of the samples of a probe.

use super::rows::signed;
use crate::probe::{Carried, Samples};
use crate::spec::{Spec, TrafficSpec};
use crate::traffic::{Background, Outcome};
use gradtide_net::Time;
use gradtide_net::trace::{PortState, Window};
use gradtide_table::{Column, Table};
use gradtide_watch::check_cancelled_now;

/// Returns the mean rate of a flow's payload, from its start until the receiver has the last byte or the run ends.
fn mean_rate_bps(outcome: &Outcome, end: Time) -> Option<f64> {
    let lasts = outcome.received.unwrap_or_else(|| end.saturating_since(outcome.start.unwrap_or(end)));
    (lasts > Time::ZERO).then(|| outcome.delivered.0 as f64 * 8.0 * 1e12 / lasts.ps() as f64)
}

/// Creates the table with one row per background flow that started.
pub fn flows(spec: &Spec, background: Background<'_>, end: Time) -> Table {
    let outcomes = background.into_outcomes();
    let rows = || {
        (spec.traffic.iter().zip(&outcomes)).flat_map(|(traffic, outcomes)| {
            let started = outcomes.iter().enumerate().filter(|(_, outcome)| outcome.start.is_some());
            started.map(move |(index, outcome)| (traffic, index, outcome))
        })
    };
    let counts = |of: fn(&TrafficSpec, usize) -> u64| {
        check_cancelled_now();
        Column::Count(rows().map(|(traffic, index, _)| of(traffic, index)).collect())
    };
    let times = |of: fn(&Outcome) -> Option<Time>| {
        check_cancelled_now();
        Column::MaybeTime(rows().map(|(.., outcome)| of(outcome).map(signed)).collect())
    };
    Table::new(vec![
        ("traffic", Column::Text(rows().map(|(traffic, ..)| traffic.name.as_str().into()).collect())),
        ("flow", counts(|_, index| index as u64)),
        ("start_us", Column::Time(rows().map(|(.., outcome)| signed(outcome.start.unwrap_or_default())).collect())),
        ("src", counts(|traffic, index| traffic.src[index].into())),
        ("dst", counts(|traffic, index| traffic.dst[index].into())),
        ("bytes", counts(|traffic, index| traffic.bytes[index].0)),
        ("band", counts(|traffic, index| traffic.band[index].into())),
        ("fct_us", times(|outcome| outcome.fct)),
        ("received_us", times(|outcome| outcome.received)),
        ("delivered_bytes", Column::Count(rows().map(|(.., outcome)| outcome.delivered.0).collect())),
        ("mean_rate_bps", Column::Ratio(rows().map(|(.., outcome)| mean_rate_bps(outcome, end)).collect())),
    ])
}

/// Creates the table of queues. Queue lengths are those at each sampling time; busy share, drops and marks are counted
/// since the previous sampling time.
pub fn queues(samples: &Samples) -> Table {
    let width = samples.links.len();
    let rows = || {
        samples.ports.iter().enumerate().map(move |(row, state)| {
            let before = row.checked_sub(width).map_or(PortState::default(), |row| samples.ports[row]);
            (row / width, row % width, before, state)
        })
    };
    let counts = |of: fn(&PortState, &PortState) -> u64| {
        Column::Count(rows().map(|(_, _, before, state)| of(&before, state)).collect())
    };
    let since = |instant: usize| samples.at[instant] - instant.checked_sub(1).map_or(Time::ZERO, |i| samples.at[i]);
    let busy = rows()
        .map(|(instant, _, before, state)| Some((state.busy - before.busy).ps() as f64 / since(instant).ps() as f64));
    Table::new(vec![
        ("time_us", Column::Time(rows().map(|(instant, ..)| signed(samples.at[instant])).collect())),
        ("link", Column::Text(rows().map(|(_, link, ..)| samples.links[link].clone()).collect())),
        ("queue_packets", counts(|_, state| state.queue_packets.into())),
        ("queue_bytes", counts(|_, state| state.queue_bytes)),
        ("utilisation", Column::Ratio(busy.collect())),
        ("drops", counts(|before, state| state.drops - before.drops)),
        ("ce_marks", counts(|before, state| state.marks - before.marks)),
        ("long_flows", counts(|_, state| state.long_flows.into())),
        ("long_flight_bytes", counts(|_, state| state.long_flight.0)),
    ])
}

pub fn cwnd(samples: &Samples) -> Table {
    let rows = &samples.windows;
    let counts = |of: fn(&Carried, &Window) -> u64| {
        Column::Count(rows.iter().map(|(_, carried, window)| of(carried, window)).collect())
    };
    let maybe = |of: fn(&Carried, &Window) -> Option<u64>| {
        let value = |(_, carried, window): &_| of(carried, window).map(|value| value as i64);
        Column::Signed(rows.iter().map(value).collect())
    };
    Table::new(vec![
        ("time_us", Column::Time(rows.iter().map(|&(at, ..)| signed(samples.at[at as usize])).collect())),
        ("tenant", Column::Text(rows.iter().map(|(_, carried, _)| carried.tenant.clone()).collect())),
        ("flow", maybe(|carried, _| carried.flow)),
        ("src", counts(|carried, _| carried.src.0.into())),
        ("dst", counts(|carried, _| carried.dst.0.into())),
        ("cwnd_bytes", counts(|_, window| window.cwnd.0)),
        ("ssthresh_bytes", maybe(|_, window| window.ssthresh.map(|bytes| bytes.0))),
        ("flight_bytes", counts(|_, window| window.flight.0)),
    ])
}
