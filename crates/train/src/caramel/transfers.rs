//! Transfer plans of the systems with which Caramel is compared, and of earliest deadline first. A plan lists transfers
//! with their release offset and send priority (`rank`). Caramel's own plan is created in [`super::pack`].

use super::{Boundaries, ParameterGroup};
use gradtide_net::{Bytes, Time};

/// Size limit of PyTorch DDP's first bucket: 1 MiB.
pub const DDP_FIRST_CAP: Bytes = Bytes(1 << 20);

/// Size limit of PyTorch DDP's other buckets: 25 MiB.
pub const DDP_CAP: Bytes = Bytes(25 << 20);

/// A planned transfer. It is one collective, which every iteration repeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedTransfer {
    /// Parameters of the transfer. The aggregation of a parameter ends with the last of its transfers.
    pub parameters: Vec<u32>,
    /// Size of the transfer, in bytes.
    pub bytes: Bytes,
    /// Time on the channel.
    pub time: Time,
    /// Release time, as an offset of compute time. An offset beyond C, the compute time of an iteration, is in the next
    /// iteration.
    pub release: Time,
    /// Send priority; among released transfers, the smallest is sent first. It is an offset of compute time like
    /// `release`, so that it also orders transfers left over from an iteration and transfers of the next iteration.
    pub rank: Time,
}

/// The transfers of an iteration. All iterations are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferPlan {
    /// Transfers of one iteration. Transfers with equal `rank` are sent in this order.
    pub transfers: Vec<PlannedTransfer>,
    /// Whether the next forward pass waits for all transfers (a barrier).
    pub has_barrier: bool,
    /// Maximum number of transfers in flight, at least 1. Transfers in flight cannot be overtaken.
    pub credit: u32,
}

/// Creates a first-in-first-out plan, which sends each group as a whole when all its parameters are updated.
pub fn first_in_first_out(groups: &[ParameterGroup], has_barrier: bool, time: &dyn Fn(Bytes) -> Time) -> TransferPlan {
    let transfer = |group: &ParameterGroup| {
        let window = group.window;
        let time = time(window.bytes);
        let parameters = group.parameters.clone();
        PlannedTransfer { parameters, bytes: window.bytes, time, release: window.update, rank: window.update }
    };
    TransferPlan { transfers: groups.iter().map(transfer).collect(), has_barrier, credit: 1 }
}

/// Creates the plan of PyTorch DDP, which has a barrier. Buckets are filled from the last parameter to the first, and
/// each is closed by the parameter with which it reaches its cap. Buckets are sent in this order.
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
    // A complete bucket waits for all buckets before it, because all ranks must send in one order.
    let mut release = Time::ZERO;
    for transfer in &mut plan.transfers {
        release = release.max(transfer.release);
        (transfer.release, transfer.rank) = (release, release);
    }
    plan
}

/// Creates the plan of Horovod, which has a barrier. At the end of every cycle, the updated parameters are sent in
/// messages of at most `cap` bytes, or of one larger parameter. A cycle does not end before the messages of the
/// previous cycle have been sent. After the end of compute, cycles determine only which parameters are fused; transfers
/// do not wait for them.
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
            // Saturates, because a cycle may last until the end of the clock. All cycle ends after the end of compute
            // are equivalent.
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
            let release = now.min(boundaries.compute);
            plan.transfers.push(PlannedTransfer { parameters: group.parameters, bytes, time, release, rank: now });
            from += count;
            sent = sent.checked_add(time).unwrap_or(Time::MAX);
        }
    }
    plan
}

/// Creates an earliest-deadline-first plan in chunks. Among the updated parameters, the parameter that is read first is
/// sent first. A chunk is not preempted.
///
/// With infinitesimal chunks no plan on one channel is faster ([`super::timeline::lower_bound`]), but every chunk takes
/// its own `time`, which includes a fixed cost. With one group per parameter, this is the plan of P3 (slices of 50,000
/// parameters of 4 B, in-flight limit of one) and of ByteScheduler (with its partition size and its credit), because
/// the parameter that is read first is the first of the model.
///
/// # Source
/// Horn (1974): preemptive earliest deadline first minimises the largest lateness. Jayarajan et al. (2019), section 4;
/// Peng et al. (2019), section 4.
///
/// # Panics
/// If `chunk` is 0 bytes.
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
        let (release, rank) = (group.window.update, boundaries.compute + group.window.read);
        let mut left = group.window.bytes.0;
        while left > 0 {
            let bytes = Bytes(left.min(chunk.0));
            left -= bytes.0;
            transfers.push(PlannedTransfer {
                parameters: group.parameters.clone(),
                bytes,
                time: time(bytes),
                release,
                rank,
            });
        }
    }
    TransferPlan { transfers, has_barrier: false, credit }
}
