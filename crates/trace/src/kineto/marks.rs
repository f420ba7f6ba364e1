//! Finds the time span on the device of each step that is marked on the host.

use crate::Mark;
use std::collections::BTreeMap;

/// Device marks are used only if they cover at least this share of the time of the launched work.
const MARKED: f64 = 0.5;

/// The device work that each host step launched.
pub(super) struct LaunchedSteps {
    /// Start, end and number of each host step, by start.
    steps: Vec<(u64, u64, u64)>,
    found: BTreeMap<u64, (u64, u64)>,
}

impl LaunchedSteps {
    pub(super) fn of(marks: &[Mark]) -> Self {
        let of_host = marks.iter().filter(|mark| mark.is_host).map(|mark| (mark.start_ns, mark.end_ns, mark.number));
        let mut steps: Vec<_> = of_host.collect();
        steps.sort_unstable();
        Self { steps, found: BTreeMap::new() }
    }

    /// Adds device work that was launched at `launch_ns`, with its start and end.
    pub(super) fn add(&mut self, launch_ns: u64, (start_ns, ended_ns): (u64, u64)) {
        let after = self.steps.partition_point(|step| step.0 <= launch_ns);
        if let Some(&(_, end_ns, number)) = after.checked_sub(1).map(|place| &self.steps[place])
            && launch_ns < end_ns
        {
            let window = self.found.entry(number).or_insert((start_ns, ended_ns));
            *window = (window.0.min(start_ns), window.1.max(ended_ns));
        }
    }

    /// Returns the marks of the file. If device marks are missing, or cover far less than the launched work as on ROCm,
    /// they are replaced by the spans of the work that each host step launched.
    pub(super) fn marks(self, mut marks: Vec<Mark>) -> Vec<Mark> {
        let length = |start_ns: u64, end_ns: u64| end_ns.saturating_sub(start_ns) as f64;
        let of_device = || marks.iter().filter(|mark| !mark.is_host);
        let both = of_device().filter_map(|mark| Some((mark, self.found.get(&mark.number)?)));
        let (marked, launched) = both.fold((0.0, 0.0), |sums, (mark, window)| {
            (sums.0 + length(mark.start_ns, mark.end_ns), sums.1 + length(window.0, window.1))
        });
        if marked < MARKED * launched {
            marks.retain(|mark| mark.is_host);
        }
        if marks.iter().all(|mark| mark.is_host) {
            let found = self.found.into_iter();
            marks.extend(found.map(|(number, (start_ns, end_ns))| Mark { number, is_host: false, start_ns, end_ns }));
        }
        marks
    }
}
