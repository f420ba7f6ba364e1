//! Plans: what is sent, from when on, and what goes before what. Those of systems that Caramel is compared with, and
//! earliest deadline first. [`super::pack`] has Caramel's own.

use super::{Boundaries, ParameterGroup};
use gradtide_net::{Bytes, Time};

/// PyTorch DDP's cap of the first bucket: 1 MiB.
pub const DDP_FIRST_CAP: Bytes = Bytes(1 << 20);

/// PyTorch DDP's cap of every other bucket: 25 MiB.
pub const DDP_CAP: Bytes = Bytes(25 << 20);

/// A message of a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTransfer {
    /// Its parameters; a parameter is aggregated when all its transfers have ended.
    pub parameters: Vec<u32>,
    /// Its bytes.
    pub bytes: Bytes,
    /// How long it has the channel.
    pub time: Time,
    /// Compute offset from which on it may be sent; beyond C it is an offset of the next iteration.
    pub gate: Time,
    /// Of those that may be sent, the one with the smallest goes first. A compute offset like `gate`, so that what is
    /// left of an iteration goes before the next one's where it should.
    pub rank: Time,
}

/// What is sent in every iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferPlan {
    /// Of one iteration; equal ranks go in this order.
    pub transfers: Vec<PlannedTransfer>,
    /// Whether the next forward pass waits for all of them.
    pub has_barrier: bool,
    /// Transfers that are handed to the network before earlier ones have ended, and can no longer be overtaken; not 0.
    /// With 1, one at a time.
    pub credit: u32,
}

/// Sent in the order of updates, each group as a whole when it is complete.
pub fn first_in_first_out(groups: &[ParameterGroup], has_barrier: bool, time: &dyn Fn(Bytes) -> Time) -> TransferPlan {
    let transfer = |group: &ParameterGroup| {
        let window = group.window;
        let time = time(window.bytes);
        let parameters = group.parameters.clone();
        PlannedTransfer { parameters, bytes: window.bytes, time, gate: window.update, rank: window.update }
    };
    TransferPlan { transfers: groups.iter().map(transfer).collect(), has_barrier, credit: 1 }
}

/// PyTorch DDP: buckets from the last parameter to the first, each closed by the parameter with which it reaches its
/// cap, and sent in this order; a barrier.
///
/// # Source
/// Li et al. (2020), "PyTorch Distributed", section 3.2; `compute_bucket_assignment_by_size` of PyTorch's reducer.
pub fn ddp(boundaries: &Boundaries, first_cap: Bytes, cap: Bytes, time: &dyn Fn(Bytes) -> Time) -> TransferPlan {
    let mut buckets: Vec<Vec<u32>> = Vec::new();
    let mut room = 0;
    for parameter in (0..boundaries.windows.len() as u32).rev() {
        if room == 0 {
            room = if buckets.is_empty() { first_cap.0 } else { cap.0 };
            buckets.push(Vec::new());
        }
        buckets.last_mut().expect("one is open").push(parameter);
        room = room.saturating_sub(boundaries.windows[parameter as usize].bytes.0);
    }
    let groups: Vec<ParameterGroup> = buckets.into_iter().map(|parameters| boundaries.group(parameters)).collect();
    let mut plan = first_in_first_out(&groups, true, time);
    // A bucket that is complete waits for those in front of it: all ranks must send in one order.
    let mut gate = Time::ZERO;
    for transfer in &mut plan.transfers {
        gate = gate.max(transfer.gate);
        (transfer.gate, transfer.rank) = (gate, gate);
    }
    plan
}

/// Horovod: at the end of every cycle what has been updated is sent, in messages of at most `cap` bytes, or of one
/// parameter; a cycle does not end before the one before has been sent. A barrier. Once compute is over, the ends of
/// cycles decide what is sent together, and are not waited for.
///
/// # Source
/// Sergeev & Del Balso (2018), section 4; its documentation of tensor fusion and of the cycle time.
pub fn horovod(boundaries: &Boundaries, cap: Bytes, cycle: Time, time: &dyn Fn(Bytes) -> Time) -> TransferPlan {
    let order = boundaries.by_update();
    let window = |parameter: u32| boundaries.windows[parameter as usize];
    let mut plan = TransferPlan { transfers: Vec::new(), has_barrier: true, credit: 1 };
    let (mut from, mut sent) = (0, Time::ZERO);
    while from < order.len() {
        let ready = sent.max(window(order[from]).update);
        let now = match cycle.ps() {
            0 => ready,
            // A cycle may be as long as the clock runs; all that ends after compute is alike.
            cycle => Time::from_ps(ready.ps().div_ceil(cycle).saturating_mul(cycle)),
        };
        sent = now;
        while from < order.len() && window(order[from]).update <= now {
            let mut bytes = 0;
            let fits = |&&parameter: &&u32| {
                bytes += window(parameter).bytes.0;
                window(parameter).update <= now && bytes <= cap.0
            };
            let count = order[from..].iter().take_while(fits).count().max(1);
            let group = boundaries.group(order[from..from + count].to_vec());
            let (bytes, time) = (group.window.bytes, time(group.window.bytes));
            let gate = now.min(boundaries.compute);
            plan.transfers.push(PlannedTransfer { parameters: group.parameters, bytes, time, gate, rank: now });
            from += count;
            sent = sent.checked_add(time).unwrap_or(Time::MAX);
        }
    }
    plan
}

/// Earliest deadline first, in chunks: of what has been updated, what is read first is sent first, and no chunk is
/// interrupted.
///
/// In chunks of one moment each no plan on one channel is faster ([`super::timeline::lower_bound`]); every chunk pays
/// its own `time`. With every parameter alone, this is P3 (slices of 50,000 parameters of 4 B, a credit of one) and
/// ByteScheduler (its partition and its credit): what is read first is what lies first in the model.
///
/// # Source
/// Horn (1974): preemptive earliest deadline first minimises the largest lateness. Jayarajan et al. (2019), section 4;
/// Peng et al. (2019), section 4.
///
/// # Panics
/// If a chunk has no bytes.
pub fn earliest_deadline_first(
    boundaries: &Boundaries,
    groups: &[ParameterGroup],
    chunk: Bytes,
    credit: u32,
    time: &dyn Fn(Bytes) -> Time,
) -> TransferPlan {
    assert!(chunk.0 > 0, "a chunk has bytes");
    let mut transfers = Vec::new();
    for group in groups {
        let (gate, rank) = (group.window.update, boundaries.compute + group.window.read);
        let mut left = group.window.bytes.0;
        while left > 0 {
            let bytes = Bytes(left.min(chunk.0));
            left -= bytes.0;
            transfers.push(PlannedTransfer {
                parameters: group.parameters.clone(),
                bytes,
                time: time(bytes),
                gate,
                rank,
            });
        }
    }
    TransferPlan { transfers, has_barrier: false, credit }
}
