//! Batching of parameters into transfers (Caramel, section 4.2).

use super::{Boundaries, ParameterGroup};
use gradtide_net::{Bytes, Time};

/// Batches parameters in the order of their updates. A parameter larger than `threshold` is sent alone. All other
/// parameters join the open batch. The batch is sent when it exceeds the threshold, or when the channel will be idle
/// before the next update.
///
/// Update times assume that compute never stalls. A transfer of d bytes takes `time(d)`.
///
/// # Source
/// Caramel, section 4.2; A11 to A16 of the header of `mod.rs`.
pub fn batch(boundaries: &Boundaries, threshold: Bytes, time: &dyn Fn(Bytes) -> Time) -> Vec<ParameterGroup> {
    let mut groups = Vec::new();
    // Time at which the channel will have sent all `groups`.
    let mut drained = Time::ZERO;
    let mut send = |parameters: Vec<u32>, now: Time, drained: &mut Time| {
        let group = boundaries.group(parameters);
        *drained = now.max(*drained) + time(group.window.bytes);
        groups.push(group);
    };
    let mut active: Vec<u32> = Vec::new();
    let mut active_bytes = 0;
    let order = boundaries.by_update();
    for (rank, &parameter) in order.iter().enumerate() {
        let window = boundaries.windows[parameter as usize];
        if window.bytes > threshold {
            // A13 of `mod.rs`: a large parameter overtakes the open batch.
            send(vec![parameter], window.update, &mut drained);
        } else {
            active.push(parameter);
            active_bytes += window.bytes.0;
        }
        let next = order.get(rank + 1).map_or(Time::MAX, |&next| boundaries.windows[next as usize].update);
        // A12 and A14 of `mod.rs`: this parameter counts towards the size of the batch, but `drained` does not include
        // its transfer yet.
        if !active.is_empty() && (active_bytes > threshold.0 || drained <= next) {
            send(std::mem::take(&mut active), window.update, &mut drained);
            active_bytes = 0;
        }
    }
    groups
}
