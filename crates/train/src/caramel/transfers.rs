//! Transfer plans of the systems that Caramel is compared with, and earliest deadline first. A plan lists transfers
//! with their release offset (`gate`) and send priority (`rank`). [`super::pack`] has Caramel's own.

use super::{Boundaries, ParameterGroup};
use gradtide_net::{Bytes, Time};

/// PyTorch DDP's cap of the first bucket: 1 MiB.
pub const DDP_FIRST_CAP: Bytes = Bytes(1 << 20);

/// PyTorch DDP's cap of every other bucket: 25 MiB.
pub const DDP_CAP: Bytes = Bytes(25 << 20);

/// A transfer: one collective per iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTransfer {
    /// Parameters of the transfer. A parameter's aggregation ends with the last of its transfers.
    pub parameters: Vec<u32>,
    /// Size of the transfer, in bytes.
    pub bytes: Bytes,
    /// Time on the channel.
    pub time: Time,
    /// Release time, as an offset of compute time; beyond C it lies in the next iteration.
    pub gate: Time,
    /// Send priority: among released transfers the smallest goes first. A compute offset like `gate`, so that leftovers
    /// of an iteration are ordered correctly against the transfers of the next.
    pub rank: Time,
}

/// The transfers of every iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferPlan {
    /// The transfers of one iteration; ties of `rank` follow this order.
    pub transfers: Vec<PlannedTransfer>,
    /// Whether the next forward pass waits for all transfers (a barrier).
    pub has_barrier: bool,
    /// In-flight limit, at least 1: transfers in flight can no longer be overtaken.
    pub credit: u32,
}

/// Creates a first-in-first-out plan: sends each group as a whole when all its parameters are updated.
pub fn first_in_first_out(groups: &[ParameterGroup], has_barrier: bool, time: &dyn Fn(Bytes) -> Time) -> TransferPlan {
    let transfer = |group: &ParameterGroup| {
        let window = group.window;
        let time = time(window.bytes);
        let parameters = group.parameters.clone();
        PlannedTransfer { parameters, bytes: window.bytes, time, gate: window.update, rank: window.update }
    };
    TransferPlan { transfers: groups.iter().map(transfer).collect(), has_barrier, credit: 1 }
}

/// Creates the plan of PyTorch DDP: buckets from the last parameter to the first, each closed by the parameter with
/// which it reaches its cap, sent in this order; with a barrier.
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
    // A complete bucket waits for the buckets before it: all ranks must send in one order.
    let mut gate = Time::ZERO;
    for transfer in &mut plan.transfers {
        gate = gate.max(transfer.gate);
        (transfer.gate, transfer.rank) = (gate, gate);
    }
    plan
}

/// Creates the plan of Horovod: at the end of every cycle, sends the updated parameters in messages of at most `cap`
/// bytes or one parameter; a cycle does not end before the previous one's messages have been sent. With a barrier. Once
/// compute is over, cycles determine only which parameters are fused, and transfers do not wait for them.
///
/// # Source
/// Sergeev & Del Balso (2018), section 4; Horovod's documentation of tensor fusion and of the cycle time.
pub fn horovod(boundaries: &Boundaries, cap: Bytes, cycle: Time, time: &dyn Fn(Bytes) -> Time) -> TransferPlan {
    let order = boundaries.by_update();
    let window = |parameter: u32| boundaries.windows[parameter as usize];
    let mut plan = TransferPlan { transfers: Vec::new(), has_barrier: true, credit: 1 };
    let (mut from, mut sent) = (0, Time::ZERO);
    while from < order.len() {
        let ready = sent.max(window(order[from]).update);
        let now = match cycle.ps() {
            0 => ready,
            // Saturates: a cycle may last until the end of the clock; all ends after compute are equivalent.
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

/// Creates an earliest-deadline-first plan in chunks: among updated parameters, sends the one that is read first;
/// non-preemptive within a chunk.
///
/// With infinitesimal chunks no plan on one channel is faster ([`super::timeline::lower_bound`]); every chunk pays its
/// own `time`. With one group per parameter, this is P3 (slices of 50,000 parameters of 4 B, in-flight limit of one)
/// and ByteScheduler (with its partition size and its credit): the first read is the first in the model.
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
