//! Transports against theory: windows, queues and shares as derived in papers and RFCs, computed here with their
//! tolerances. Windows and queues are in packets of 1434 bytes on the wire, and `s` is the serialisation time of a
//! packet on the bottleneck.
#![allow(missing_docs)]

mod bottleneck;
mod study;

use bottleneck::{
    CUBIC, DCTCP, GIGABIT, IDEAL, NEWRENO, S_NS, SEGMENT, config, dumbbell, endless, fifo, held, marking, stream,
};
use gradtide_net::packet::tcp::congestion::{CongestionAlgorithm, cubic};
use gradtide_net::packet::{MarkAt, Marking, QueueConfig};
use gradtide_net::{Bytes, Network, PacketConfig, PacketEngine, PortId, Time};
use proptest::prelude::*;
use study::{Arrival, MS, NS, replay, star};

/// Observations of port 0 between two times.
#[derive(Debug, Default)]
struct Seen {
    /// Fraction of the time in which the link is busy.
    busy: f64,
    queue_min: f64,
    queue_max: f64,
    queue_mean: f64,
    /// Times of congestion events: the first drop or mark after at least two round trips without any.
    cuts_ns: Vec<u64>,
}

impl Seen {
    fn period_ns(&self) -> f64 {
        let (first, last) = (self.cuts_ns[0], self.cuts_ns[self.cuts_ns.len() - 1]);
        (last - first) as f64 / (self.cuts_ns.len() - 1) as f64
    }
}

fn watch(engine: &mut PacketEngine, from_ns: u64, to_ns: u64, every_ns: u64, round_ns: u64) -> Seen {
    let mut done = Vec::new();
    engine.advance(Time::from_ps(from_ns * NS), &mut done);
    let before = engine.port_counters(PortId(0));
    let mut last = before.drops + before.marks;
    let mut last_cut_ns = 0;
    let mut seen = Seen { queue_min: f64::MAX, ..Seen::default() };
    let mut now_ns = from_ns;
    let mut count = 0.0;
    while now_ns < to_ns {
        now_ns += every_ns;
        engine.advance(Time::from_ps(now_ns * NS), &mut done);
        let queue = f64::from(engine.port_state(PortId(0)).queue_packets);
        seen.queue_min = seen.queue_min.min(queue);
        seen.queue_max = seen.queue_max.max(queue);
        seen.queue_mean += queue;
        count += 1.0;
        let counters = engine.port_counters(PortId(0));
        if counters.drops + counters.marks > last {
            if now_ns > last_cut_ns + 2 * round_ns {
                seen.cuts_ns.push(now_ns);
            }
            last_cut_ns = now_ns;
            last = counters.drops + counters.marks;
        }
    }
    seen.queue_mean /= count;
    let busy_ps = engine.port_counters(PortId(0)).busy.ps() - before.busy.ps();
    seen.busy = busy_ps as f64 / ((now_ns - from_ns) * NS) as f64;
    seen
}

#[test]
fn hystart_ends_slow_start_with_the_link_full_and_half_a_round_trip_of_queue() {
    // HyStart ends slow start when the train of acknowledgements of a round exceeds half a round trip. Every segment is
    // acknowledged, so acknowledgements are s apart, D of them per round trip, and a round that begins with window w
    // has a train of w s. With w <= D/2 the train stays below D/2 s, and the window doubles. With D/2 < w <= D, slow
    // start ends with w + D/2 segments: D to 1.5 D. Tolerance: a few segments, because windows are whole, round trips
    // are in whole microseconds, and the last acknowledgement still grows the window. CUBIC then grows the window
    // without a loss.
    for round in [48_u64, 100, 330, 1_000] {
        let run = |hystart| {
            let mut configuration = config(
                CongestionAlgorithm::Cubic(cubic::Parameters { hystart, ..Default::default() }),
                false,
                fifo(round as u32 * 4),
            );
            configuration.tcp.stamp_tick = Time::from_ps(1_000_000);
            let mut engine = endless(&dumbbell(1, GIGABIT, round * S_NS), configuration);
            let mut done = Vec::new();
            let mut at_exit = None;
            for step in 1..=40 * 64 {
                engine.advance(Time::from_ps(step * round * S_NS * NS / 64), &mut done);
                let window = engine.stream_windows(0).next().expect("a stream").2;
                at_exit = at_exit.or(window.ssthresh.map(|ssthresh| ssthresh.0 as f64 / SEGMENT as f64));
            }
            let busy = engine.port_counters(PortId(0)).busy;
            engine.advance(Time::from_ps(50 * round * S_NS * NS), &mut done);
            let share = (engine.port_counters(PortId(0)).busy.ps() - busy.ps()) as f64;
            let full = share / (10 * round * S_NS * NS) as f64;
            (at_exit.expect("slow start ends"), engine.counters().drops, full)
        };
        let held = held(round * S_NS);
        let (window, drops, busy) = run(true);
        assert!((held - 2.0..=1.5 * held + 3.0).contains(&window), "{held} held, slow start ends at {window}");
        assert_eq!((drops, busy > 0.999), (0, true), "{busy}");
        // Without HyStart, slow start ends when the queue of four round trips overflows: the window is then five round
        // trips.
        let (_, drops, _) = run(false);
        assert!(drops > round, "{drops}");
    }
}

/// Observes a gigabit bottleneck with `round` packets per round trip, every 3 us from `from_ms` to `to_ms`.
fn saw(
    algorithm: CongestionAlgorithm,
    ecn: bool,
    queue: QueueConfig,
    count: u32,
    round: u64,
    (from_ms, to_ms): (u64, u64),
) -> Saw {
    let round_ns = round * S_NS;
    let mut engine = endless(&dumbbell(count, GIGABIT, round_ns), config(algorithm, ecn, queue));
    let seen = watch(&mut engine, from_ms * 1_000_000, to_ms * 1_000_000, 3_000, 2 * round_ns);
    Saw { seen, held: held(round_ns), drops: engine.counters().drops, retransmits: engine.counters().retransmits }
}

struct Saw {
    seen: Seen,
    held: f64,
    drops: u64,
    retransmits: u64,
}

/// Returns the number of acknowledgements during which congestion avoidance grows the window from `from` to `to`, by
/// RFC 5681, equation (3), in whole bytes. While the queue is not empty, an acknowledgement arrives every `s`.
fn acks_between(from: f64, to: f64) -> f64 {
    let (mut cwnd, end) = ((from * SEGMENT as f64) as u64, (to * SEGMENT as f64) as u64);
    let mut count = 0.0;
    while cwnd < end {
        cwnd += SEGMENT * SEGMENT / cwnd;
        count += 1.0;
    }
    count
}

#[test]
fn slow_start_doubles_per_round_trip() {
    // 10 (2^r - 1) segments take r round trips. Acknowledgements arrive S apart, and each releases two segments, so the
    // segments of a round cross the bottleneck back to back. The last of the 10 2^(r-1) segments of round r thus
    // arrives (10 2^(r-1) - 1) S after the first one, which arrives r - 1 round trips after the first segment of the
    // flow.
    let round_ns = 1_000 * S_NS;
    for rounds in 1..=5_u32 {
        let graph = dumbbell(1, GIGABIT, round_ns);
        let mut engine = PacketEngine::new(&graph, config(NEWRENO, false, fifo(1_000))).unwrap();
        let segments = 10 * ((1 << rounds) - 1);
        engine.start(stream(0, 1, segments * SEGMENT, 0));
        let mut done = Vec::new();
        engine.advance(Time::MAX, &mut done);
        // Serialisation times of a SYN, an acknowledgement and a packet: 5, 4 and 115 ns at 100 Gbit/s; 464 ns, 432 ns
        // and S at 1 Gbit/s.
        let connected_ns = 2 * (5 + 464) + round_ns;
        // The handshake's acknowledgement precedes the first packet on both links.
        let first_ns = connected_ns + 4 + round_ns / 4 + 432 + S_NS + round_ns / 4;
        let each_ns = 115 + S_NS + 432 + 4 + round_ns;
        let last = 10 * (1 << (rounds - 1)) - 1;
        let expected_ns = first_ns + u64::from(rounds - 1) * each_ns + last * S_NS;
        assert_eq!(done[0].received.ps() / NS, expected_ns, "{rounds} rounds, {segments} segments");
    }
}

#[test]
fn renos_window_saws_between_a_half_and_the_whole() {
    // One flow, and a buffer B larger than the capacity D of a round trip. The window peaks at W = D + B + 1, including
    // the packet in the device. A loss leaves W/2, so the queue falls to W/2 - D - 1, which is above zero: the link is
    // always busy. Tolerance: the lost segment and three SACKed ones may be missing from the flight that is halved
    // (-2), and windows are whole segments (1).
    let (buffer, round) = (60.0, 40);
    let saw = saw(NEWRENO, false, fifo(60), 1, round, (1_000, 3_000));
    let top = saw.held + buffer + 1.0;
    let low = top / 2.0 - saw.held - 1.0;
    assert!(saw.seen.busy > 0.99999, "busy {}", saw.seen.busy);
    assert_eq!(saw.seen.queue_max, buffer);
    assert!((low - 3.0..=low + 1.0).contains(&saw.seen.queue_min), "{} of {low}", saw.seen.queue_min);
    // A period is the growth from W/2 to the first window above W, with one acknowledgement per s, and up to two
    // windows until the loss is detected and repaired.
    let (least, most) = (acks_between(top / 2.0, top), acks_between(top / 2.0 - 3.0, top + 2.0) + 2.0 * top);
    let period = saw.seen.period_ns() / S_NS as f64;
    assert!((least..=most).contains(&period), "period {least} <= {period} <= {most}");
}

#[test]
fn reno_without_a_buffer_uses_three_quarters() {
    // With a queue of two packets, the window varies between W/2 and W = D + 4: two packets in the queue, one in the
    // device, one dropped. All round trips take the same time, and a window above D fills the link. A period has at
    // least W/2 round trips of growth. Detection and recovery add up to two round trips, at a rate between half and
    // full.
    let saw = saw(NEWRENO, false, fifo(2), 1, 100, (1_000, 3_000));
    let top = saw.held + 4.0;
    let windows: Vec<f64> = (0..=(top / 2.0) as u32).map(|step| top / 2.0 + f64::from(step)).collect();
    let climb = windows.iter().map(|window| (window / saw.held).min(1.0)).sum::<f64>() / windows.len() as f64;
    let slack = 0.25 * 2.0 / windows.len() as f64 + 1.0 / saw.held;
    assert!((climb - 0.75).abs() < 0.04, "the rounded theory itself: {climb}");
    assert!((saw.seen.busy - climb).abs() <= slack, "busy {} of {climb}, give or take {slack}", saw.seen.busy);
}

#[test]
fn marks_in_place_of_losses_keep_the_link_busy_and_drop_nothing() {
    // A marking threshold K acts like a buffer B. The window is halved when the mark is echoed, a round trip later, in
    // which each of n windows grows by one more segment. As K > D, halving all windows leaves more than D packets in
    // flight.
    for (algorithm, floor) in [(NEWRENO, 0.5), (CUBIC, 0.7)] {
        for count in [1, 2, 8] {
            let saw = saw(algorithm, true, marking(60), count, 40, (1_000, 2_000));
            assert_eq!((saw.drops, saw.retransmits), (0, 0));
            assert!(saw.seen.busy > 0.99999, "busy {}", saw.seen.busy);
            assert!(saw.seen.queue_max <= 60.0 + f64::from(count), "{count} flows: {}", saw.seen.queue_max);
            // The queue is lowest if all flows cut their windows at the same time. Each window may be two packets
            // smaller, because of segments that are acknowledged together and of rounding.
            let low = floor * (saw.held + 61.0) - saw.held - 1.0 - 2.0 * f64::from(count);
            assert!(saw.seen.queue_min >= low, "{algorithm:?}, {count} flows: {} >= {low}", saw.seen.queue_min);
        }
    }
}

#[test]
fn a_mark_is_answered_once_per_window() {
    // If the sender reacted twice to the marks of a window, W/4 instead of W/2 would be left. The queue would run
    // empty, and the period would be longer.
    let saw = saw(NEWRENO, true, marking(60), 1, 40, (1_000, 3_000));
    let top = saw.held + 61.0;
    let (least, most) = (acks_between(top / 2.0, top), acks_between(top / 2.0 - 3.0, top + 2.0) + 2.0 * top);
    let period = saw.seen.period_ns() / S_NS as f64;
    assert!(saw.seen.queue_min > 0.0 && (least..=most).contains(&period), "period {least} <= {period} <= {most}");
}

#[test]
fn dctcp_holds_the_queue_at_the_threshold() {
    // Alizadeh et al. (2010), section 3.3, for n flows in step: Q_max = K + n (eq. 10), amplitude A = sqrt(2 n (D + K))
    // / 2 (eq. 8), Q_min = K + n - A (eq. 12), period sqrt(2 (D + K) / n) / 2 round trips of D + K (eq. 9). Tolerance:
    // one packet at both ends, because windows are whole; and a longer period, because acknowledgements with ECE do not
    // grow the window (RFC 3168), whereas in the paper it grows in every round trip.
    for (count, threshold) in [(1, 20), (1, 40), (2, 20), (2, 40)] {
        let saw = saw(DCTCP, true, marking(threshold), count, 40, (1_000, 3_000));
        let (k, n) = (f64::from(threshold), f64::from(count));
        let filled = saw.held + k;
        let amplitude = (2.0 * n * filled).sqrt() / 2.0;
        let found = saw.seen.queue_max - saw.seen.queue_min;
        assert_eq!((saw.drops, saw.retransmits), (0, 0));
        assert!(saw.seen.busy > 0.99999, "busy {}", saw.seen.busy);
        assert!((saw.seen.queue_max - k - n).abs() <= 1.0, "K {k}, n {n}: Q_max {}", saw.seen.queue_max);
        assert!((found - amplitude).abs() <= 2.0, "K {k}, n {n}: amplitude {found}, theory {amplitude}");
        let mean = k + n - amplitude / 2.0;
        assert!((saw.seen.queue_mean - mean).abs() <= 2.0, "K {k}, n {n}: {} of {mean}", saw.seen.queue_mean);
        if count == 1 {
            let period = saw.seen.period_ns() / S_NS as f64 / filled;
            let theory = (2.0 * filled / n).sqrt() / 2.0;
            assert!((theory..=theory + 1.5).contains(&period), "K {k}: period {period}, theory {theory} round trips");
        }
    }
}

#[test]
fn dctcp_needs_a_threshold_of_a_seventh_of_the_round_trip() {
    // Alizadeh et al. (2010), section 3.4, eq. 13: with K > D/7 the queue never runs empty, for any n. With a much
    // smaller K, eq. 12 is negative for one flow, and the link idles.
    let round = 160;
    let (held, enough, little) = (held(round * S_NS), 30, 3);
    assert!(f64::from(enough) > held / 7.0);
    assert!(f64::from(little) + 1.0 < (2.0 * (held + f64::from(little))).sqrt() / 2.0);
    for count in [1, 2, 4] {
        let full = saw(DCTCP, true, marking(enough), count, round, (500, 1_500));
        assert!(full.seen.busy > 0.9999, "{count} flows: {}", full.seen.busy);
    }
    let short = saw(DCTCP, true, marking(little), 1, round, (500, 1_500));
    assert!(short.seen.queue_min == 0.0 && short.seen.busy < 0.9999, "busy {}", short.seen.busy);
}

#[test]
fn dctcp_keeps_a_shorter_queue_than_reno_with_the_same_marks() {
    for count in [1, 2, 8] {
        let [dctcp, reno] =
            [DCTCP, NEWRENO].map(|algorithm| saw(algorithm, true, marking(20), count, 40, (1_000, 2_000)));
        let swing = |saw: &Saw| saw.seen.queue_max - saw.seen.queue_min;
        // With Reno, a reduction empties the queue or lowers it by half of D + K + 1, which is 31 packets. With DCTCP
        // it lowers the queue by A: 5.5 packets for one flow, 15.6 for eight.
        assert!(swing(&dctcp) < swing(&reno) && dctcp.seen.busy > reno.seen.busy, "{count} flows");
    }
}

#[test]
fn cubic_saws_at_renos_pace_on_short_round_trips() {
    // RFC 9438, 4.3: K = cbrt(0.3 W / 0.4) is in the order of seconds, the period of milliseconds, so the window equals
    // W_est throughout. It grows from 0.7 W to W by 9/17 segments per round trip. With a queue a round trip takes W s,
    // so this takes (1 - 0.49) W^2 / (2 * 9/17) s. Up to two windows are added until the mark is echoed and ECE ends.
    let saw = saw(CUBIC, true, marking(60), 1, 40, (1_000, 3_000));
    let per_epoch = |top: f64| 0.51 * top * top * 17.0 / 18.0;
    let top = saw.held + 61.0;
    let low = 0.7 * top - saw.held - 1.0;
    let (least, most) = (per_epoch(top), per_epoch(top + 2.0) + 2.0 * top);
    let period = saw.seen.period_ns() / S_NS as f64;
    assert!((least..=most).contains(&period), "period {least} <= {period} <= {most}");
    assert!((low - 2.0..=low + 2.0).contains(&saw.seen.queue_min), "{} of {low}", saw.seen.queue_min);
}

#[test]
fn cubic_climbs_back_along_its_curve_on_long_round_trips() {
    // At 100 Mbit/s and 100 ms, D is 873 packets. K = 600 packets are the marking threshold, so W is about 1480 and K_s
    // = cbrt(0.3 W / 0.4) = 10.3 s, in which Reno would add 70 segments. While the queue is not empty, the flight D + 1
    // + queue must equal W_cubic(t).
    let bps = 100_000_000;
    let (round_ns, s_ns) = (100_000_000, 114_720);
    let held = (round_ns + 1_488 * 81) as f64 / s_ns as f64;
    let mut configuration = config(CUBIC, true, marking(600));
    configuration.tcp.stamp_tick = Time::from_ps(MS / 1_000);
    let mut engine = endless(&dumbbell(1, bps, round_ns), configuration);
    let step_ns = 20_000_000;
    let mut done = Vec::new();
    let mut flights: Vec<f64> = Vec::new();
    for step in 1..=2_500 {
        engine.advance(Time::from_ps(step * step_ns * NS), &mut done);
        flights.push(held + 1.0 + f64::from(engine.port_state(PortId(0)).queue_packets));
    }
    assert_eq!(engine.counters().drops, 0);
    // A peak is the last sample before the flight falls by a tenth within half a second.
    let mut summits: Vec<usize> = Vec::new();
    for index in 0..flights.len() - 25 {
        let falls = flights[index + 25] < 0.9 * flights[index];
        let is_top = flights[index..index + 25].iter().all(|&flight| flight <= flights[index]);
        if falls && is_top && summits.last().is_none_or(|&last| index > last + 100) {
            summits.push(index);
        }
    }
    // RFC 9438, 4.7 (fast convergence): a peak below the last W_max sets W_max to 0.85 of the peak. A single flow then
    // grows beyond this W_max with increasing speed and overshoots the marking threshold, so the next peak sets W_max
    // above the threshold. In the next epoch the flow reaches the threshold before W_max. Hence two kinds of epochs
    // alternate.
    let round_s = (held + 600.0) * s_ns as f64 * 1e-9;
    // The first peak, at the end of slow start, is twice as high. Two reductions follow, so the next peak is below its
    // W_max.
    let mut w_max = f64::INFINITY;
    let mut kinds = [0, 0];
    for pair in summits[1..].windows(2) {
        let top = flights[pair[0]];
        kinds[usize::from(top < w_max)] += 1;
        w_max = if top < w_max { 0.85 * top } else { top };
        let k_s = ((w_max - 0.7 * top) / 0.4).cbrt();
        // The mark is set shortly before a peak and echoed a round trip later. For another round trip, until CWR has
        // reached the receiver, no acknowledgement grows the window. A stage thus begins half to two and a half round
        // trips after the peak.
        let curve = |t_s: f64| 0.4 * (t_s - k_s).powi(3) + w_max;
        for (after, &found) in flights[pair[0]..pair[1]].iter().enumerate().skip(25) {
            let t_s = after as f64 * step_ns as f64 * 1e-9;
            let (least, most) = (curve(t_s - 2.5 * round_s) - 2.0, curve(t_s - 0.5 * round_s) + 2.0);
            assert!((least..=most).contains(&found), "{t_s} s after {top}: {least} <= {found} <= {most}");
            assert!(most - least < 0.05 * top, "the bounds themselves: {least} to {most} of {top}");
        }
    }
    assert!(kinds[0] > 0 && kinds[1] > 0, "both kinds: {kinds:?}");
}

#[test]
fn the_ideal_transport_is_at_line_rate_to_the_nanosecond() {
    // The window is above D, so after the handshake any number of packets leave back to back, and they cross the
    // bottleneck back to back.
    let round_ns = 40 * S_NS;
    for segments in [1, 10, 100, 1_000] {
        let mut configuration = config(IDEAL, false, fifo(1_000));
        configuration.tcp.window = Bytes(80 * SEGMENT);
        configuration.tcp.delayed_ack_segments = 2;
        let mut engine = PacketEngine::new(&dumbbell(1, GIGABIT, round_ns), configuration).unwrap();
        engine.start(stream(0, 1, segments * SEGMENT, 0));
        let mut done = Vec::new();
        engine.advance(Time::MAX, &mut done);
        let connected_ns = 2 * (5 + 464) + round_ns;
        // The handshake's acknowledgement precedes the data on both links.
        let expected_ns = connected_ns + 4 + round_ns / 4 + 432 + segments * S_NS + round_ns / 4;
        assert_eq!(done[0].received.ps() / NS, expected_ns, "{segments} segments");
    }
}

#[test]
fn incast_of_ideal_flows_takes_their_bytes_to_the_nanosecond() {
    // n windows of 80 packets fit into the queue, so the bottleneck is never idle after its first packet.
    let round_ns = 40 * S_NS;
    for count in [2_u32, 4, 8] {
        let segments = 500;
        let mut configuration = config(IDEAL, false, fifo(1_000));
        configuration.tcp.window = Bytes(80 * SEGMENT);
        let mut engine = PacketEngine::new(&dumbbell(count, GIGABIT, round_ns), configuration).unwrap();
        for src in 0..count {
            engine.start(stream(src, count, segments * SEGMENT, src));
        }
        let mut done = Vec::new();
        let mut last_ns = 0;
        for _ in 0..count {
            done.clear();
            engine.advance(Time::MAX, &mut done);
            last_ns = done[done.len() - 1].received.ps() / NS;
        }
        // The SYNs wait for one another at the bottleneck, so connections are established 464 ns apart. The
        // acknowledgement of each handshake precedes the data of its flow. From the first acknowledgement on, the
        // bottleneck is never idle: it carries n acknowledgements of handshakes and all data.
        let first_ns = 2 * (5 + 464) + round_ns + 4 + round_ns / 4;
        let busy_ns = u64::from(count) * (432 + segments * S_NS);
        assert_eq!(last_ns, first_ns + busy_ns + round_ns / 4, "{count} flows");
        assert_eq!(engine.counters().drops, 0);
    }
}

#[test]
fn the_ideal_transport_repairs_what_a_small_queue_drops() {
    let mut configuration = config(IDEAL, false, fifo(20));
    configuration.tcp.window = Bytes(80 * SEGMENT);
    let mut engine = PacketEngine::new(&dumbbell(4, GIGABIT, 40 * S_NS), configuration).unwrap();
    for src in 0..4 {
        engine.start(stream(src, 4, 300 * SEGMENT, src));
    }
    let mut done = Vec::new();
    while done.len() < 4 {
        engine.advance(Time::MAX, &mut done);
    }
    assert!(engine.counters().drops > 0 && engine.counters().retransmits >= engine.counters().drops);
    assert!(engine.conserves_packets());
}

#[test]
fn a_mark_on_a_flows_last_acknowledgement_is_survived() {
    // A threshold of zero marks every segment, the FIN included. The acknowledgement of a FIN is one beyond the last
    // byte.
    for algorithm in [NEWRENO, CUBIC, DCTCP] {
        for segments in [1, 2, 3, 40] {
            let mut engine =
                PacketEngine::new(&dumbbell(1, GIGABIT, 40 * S_NS), config(algorithm, true, marking(0))).unwrap();
            let flow = Arrival { start_ns: 0, src: 0, dst: 1, bytes: segments * SEGMENT, tos: 16 };
            assert!(replay(&mut engine, &[flow])[0].is_some());
            assert_eq!(engine.counters().marks, segments);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_flow_of_every_transport_completes_and_packets_are_conserved(
        flows in prop::collection::vec((0_u64..2_000_000, 0_u32..5, 1_u32..5, 0_u64..400_000), 1..25),
        packets in 1_u32..60,
        threshold in 0_u32..40,
        algorithm in prop::sample::select(CongestionAlgorithm::registered()).prop_map(|one| one.algorithm),
        ecn in prop::bool::ANY,
    ) {
        let list: Vec<Arrival> = flows
            .iter()
            .map(|&(start_ns, src, offset, bytes)| Arrival { start_ns, src, dst: (src + offset) % 5, bytes, tos: 16 })
            .collect();
        let star = star(5);
        let mut configuration = PacketConfig::basic_sim(&star);
        configuration.tcp.algorithm = algorithm;
        configuration.tcp.ecn = ecn;
        configuration.tcp.window = Bytes(80 * SEGMENT);
        let marks = Marking::Threshold { packets: threshold, at: MarkAt::Enqueue };
        configuration.switch_queue = QueueConfig { marking: marks, ..fifo(packets) };
        configuration.host_queue = configuration.switch_queue.clone();
        let mut engine = PacketEngine::new(&star.graph(), configuration).unwrap();
        let results = replay(&mut engine, &list);
        prop_assert!(results.iter().all(Option::is_some));
        prop_assert!(engine.conserves_packets());
        prop_assert!(ecn || engine.counters().marks == 0);
        prop_assert!(engine.port_counters(PortId(0)).queue_packets_max <= u64::from(packets));
    }
}
