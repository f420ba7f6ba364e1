//! A star, as a scenario hands it down.

use serde_json::{Value, json};

/// Hosts around a switch, on links of this rate and delay.
pub fn star(hosts: u32, rate_bps: u64, delay_ps: u64) -> Value {
    json!({
        "topology": {"kind": "star", "hosts": hosts}, "routing": "ecmp", "host_latency_ps": 0,
        "link": {"rate_bps": rate_bps, "delay_ps": delay_ps, "efficiency_ppm": 1_000_000},
        "queue": {"discipline": {"kind": "pfifo_fast"}, "capacity": {"packets": 1000}, "mark": null},
        "switch_buffer": null,
        "transport": {
            "congestion": {"kind": "newreno"}, "ecn": false, "segment_bytes": 1380,
            "initial_window_segments": 10, "window_bytes": 1 << 25, "recovery": "sack", "timers": "derived"
        }
    })
}
