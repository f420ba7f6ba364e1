//! Boundaries: the windows in which parameters can be aggregated without delaying compute.

use gradtide_net::{Bytes, Time};

/// Window in which a parameter can be aggregated without delaying compute (Caramel, section 3.3.1, "boundary"). It
/// lasts from the op that updates the parameter to the op of the next iteration that reads it. Both offsets are compute
/// time without stalls, from the start of their iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Bytes to aggregate.
    pub bytes: Bytes,
    /// Offset of the end of the op that updates the parameter.
    pub update: Time,
    /// Offset, in the next iteration, of the start of the first op that reads the parameter.
    pub read: Time,
}

/// Compute time of an iteration, and the window of each parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boundaries {
    /// Total compute time C.
    pub compute: Time,
    /// Window of each parameter, in the order in which the model registers parameters.
    pub windows: Vec<Boundary>,
}

/// Parameters that are aggregated together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterGroup {
    /// Indices of the parameters.
    pub parameters: Vec<u32>,
    /// Window of the group: the total bytes, the latest update and the earliest read of its parameters (Caramel,
    /// section 4.3).
    pub window: Boundary,
}

impl Boundaries {
    /// Returns the intersection of all workers' windows. A parameter is ready when the last worker has updated it, and
    /// needed when the first worker reads it. Joint windows are therefore narrower if workers have different compute
    /// orders.
    ///
    /// # Panics
    /// If `workers` is empty, or if workers differ in the number of parameters.
    pub fn jointly(workers: &[Self]) -> Self {
        let mut all = workers[0].clone();
        for worker in &workers[1..] {
            assert_eq!(all.windows.len(), worker.windows.len(), "workers train one model");
            all.compute = all.compute.max(worker.compute);
            for (window, other) in all.windows.iter_mut().zip(&worker.windows) {
                window.update = window.update.max(other.update);
                window.read = window.read.min(other.read);
            }
        }
        all
    }

    /// Returns the boundaries scaled to a total compute time of `compute`. Offsets are rounded down.
    pub fn stretched(&self, compute: Time) -> Self {
        let (from, to) = (u128::from(self.compute.ps()).max(1), u128::from(compute.ps()));
        let own = |time: Time| Time::from_ps((u128::from(time.ps()) * to / from) as u64);
        let window = |window: &Boundary| Boundary { update: own(window.update), read: own(window.read), ..*window };
        Self { compute, windows: self.windows.iter().map(window).collect() }
    }

    /// Combines parameters into a group.
    ///
    /// # Panics
    /// If `parameters` is empty or a parameter does not exist.
    pub fn group(&self, parameters: Vec<u32>) -> ParameterGroup {
        let windows = || parameters.iter().map(|&parameter| self.windows[parameter as usize]);
        let window = Boundary {
            bytes: windows().map(|window| window.bytes).sum(),
            update: windows().map(|window| window.update).max().expect("a group has parameters"),
            read: windows().map(|window| window.read).min().expect("a group has parameters"),
        };
        ParameterGroup { parameters, window }
    }

    /// Returns one group per parameter.
    pub fn alone(&self) -> Vec<ParameterGroup> {
        (0..self.windows.len() as u32).map(|parameter| self.group(vec![parameter])).collect()
    }

    /// Returns the parameters by ascending update time. Ties are in the order of registration.
    pub fn by_update(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.windows.len() as u32).collect();
        order.sort_by_key(|&parameter| self.windows[parameter as usize].update);
        order
    }
}
