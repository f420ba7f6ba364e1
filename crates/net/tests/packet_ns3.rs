//! The packet engine against ns-3.37: every time in `validation/ns3/data`, to the nanosecond.
//!
//! The validation allows errors of 2 % (one flow, two bands), 5 % (incast) and 0.5 % (ring) and, in the study, of 5 %
//! of each size class's mean, 10 % of its p99 and 1 % of an iteration. The engine follows ns-3's order of events, so no
//! error is needed. Conversely, a saturated network is chaotic, so a single event out of order would soon exceed these
//! tolerances.
#![allow(missing_docs)]

mod study;

use study::*;

fn data(name: &str) -> String {
    let path = format!("{}/../../validation/ns3/data/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn check_micro(case: &str) {
    check_small(case, 1000);
}

/// Checks a small case. Every port has a queue of `packets` packets.
fn check_small(case: &str, packets: u32) {
    let list = arrivals(&data(&format!("in_{case}.csv")));
    let expected = oracle(&data(&format!("fct_{case}.csv")));
    let host_count = list.iter().map(|arrival| arrival.src.max(arrival.dst) + 1).max().unwrap();
    check_rows(case, &replay(&mut engine_with(host_count, packets), &list), &expected);
    check_rows(case, &replay_one_by_one(&mut engine_with(host_count, packets), &list), &expected);
}

fn check_rows(case: &str, results: &[Option<Fct>], expected: &[Option<Fct>]) {
    for (index, (ours, theirs)) in results.iter().zip(expected).enumerate() {
        let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
        assert_eq!(
            (ours.connected_ns, ours.received_ns, ours.close_ns),
            (theirs.connected_ns, theirs.received_ns, theirs.close_ns),
            "{case}, flow {index}: connected, last byte received, closed, in ns"
        );
    }
    assert_eq!(results.len(), expected.len());
}

#[test]
fn one_flow() {
    check_micro("a_single_1MB");
    check_micro("a_single_10MB");
    check_micro("a_single_100MB");
}

#[test]
fn incast_of_two_four_and_eight() {
    check_micro("b_incast_2x10MB");
    check_micro("b_incast_4x10MB");
    check_micro("b_incast_8x10MB");
}

#[test]
fn a_high_flow_beside_a_low_one() {
    check_micro("d_prio");
    check_micro("d_prio_same_src");
}

#[test]
fn flows_that_meet() {
    check_micro("e_share_1ms");
    check_micro("g_prio_10MB_same_src");
    check_micro("h_websearch_50");
    check_micro("i_tiny");
}

/// For each of twelve flows, a SYN is due in the nanosecond in which a packet reaches the flow's host. The SYN is sent
/// first, no matter whether the engine received the flow in advance or at that time.
#[test]
fn a_flow_that_is_due_when_a_packet_arrives() {
    check_micro("o_due_on_arrival");
}

#[test]
fn ties_at_a_small_queue() {
    check_small("f_incast_16x1MB_100p", 100);
}

/// Bursts are written in the nanosecond in which a transmission from the same host ends, and their queues overflow. The
/// first packet of a burst finds the queue unchanged, and the second one finds one more place.
#[test]
fn a_burst_when_a_packet_leaves() {
    check_small("p_burst_at_departure", 20);
}

#[test]
fn an_idle_port_holds_one_packet_more() {
    check_small("n_single_1MB_1p", 1);
}

/// 300 flows of all sizes start within milliseconds, so that SYNs, FINs and acknowledgements are also lost, overtaken
/// and delayed.
#[test]
#[cfg_attr(debug_assertions, ignore = "two million packet-hops: a fraction of a second in release")]
fn the_beginning_and_the_end_of_a_connection_under_loss() {
    check_small("m_mixed_4x1000p", 1000);
    check_small("m_mixed_6x100p", 100);
    check_small("m_mixed_8x60p", 60);
    check_small("m_mixed_8x100p", 100);
    check_small("m_mixed_8x300p", 300);
}

fn check_all_reduces(ours: &[AllReduce], name: &str) {
    let text = data(name);
    let theirs: Vec<AllReduce> = text
        .lines()
        .skip(1)
        .map(numbers)
        .map(|row| AllReduce { layer: row[0] as usize, partition_bytes: row[1], start_ns: row[2], end_ns: row[3] })
        .collect();
    assert_eq!(ours.len(), theirs.len());
    for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "all-reduce {index}");
    }
}

#[test]
fn a_ring_of_eight_alone() {
    let all_reduces = all_reduce_everything(&mut engine(8), &Job::thesis(2240, 16));
    check_all_reduces(&all_reduces, "allreduce_c_ring_nobg.csv");
}

fn check_study(case: &str, job_tos: u32) {
    let text = data(&format!("study_{case}_fct.csv"));
    let rows: Vec<Vec<u64>> = text.lines().skip(1).map(numbers).collect();
    let list: Vec<Arrival> = rows
        .iter()
        .map(|row| Arrival { start_ns: row[0], src: row[1] as u32, dst: row[2] as u32, bytes: row[3], tos: 16 })
        .collect();
    let outcome = study(&mut engine(8), &list, &Job::thesis(2240, job_tos), 12_000_000_000);
    for ((index, row), line) in rows.iter().enumerate().zip(text.lines().skip(1)) {
        let theirs = line.ends_with("YES").then_some((row[6], row[5], row[4]));
        let ours = outcome.fcts[index].map(|fct| (fct.connected_ns, fct.received_ns, fct.close_ns));
        assert_eq!(ours, theirs, "{case}, flow {index}: connected, last byte received, closed, in ns");
    }
    check_all_reduces(&outcome.all_reduces, &format!("study_{case}_allreduce.csv"));
    let iterations = data(&format!("study_{case}_iters.csv"));
    let theirs: Vec<u64> =
        iterations.lines().skip(1).filter(|line| !line.ends_with("-1")).map(|line| numbers(line)[3]).collect();
    assert_eq!(outcome.iterations_ns, theirs);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "25 million packet-hops: a second in release")]
fn the_study_with_the_job_in_the_same_band() {
    check_study("R16_f23_same", 16);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "25 million packet-hops: a second in release")]
fn the_study_with_the_job_in_the_lower_band() {
    check_study("R16_f23_low", 8);
}
