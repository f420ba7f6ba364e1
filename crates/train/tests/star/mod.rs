//! The topology of a star, as in a scenario.

use serde_json::{Value, json};

/// Hosts around a switch, on links of this rate and delay.
pub fn star(hosts: u32, rate_bps: u64, delay_ps: u64) -> Value {
    json!({
        "topology": {"kind": "star", "hosts": hosts},
        "link": {"rate_bps": rate_bps, "delay_ps": delay_ps}
    })
}
