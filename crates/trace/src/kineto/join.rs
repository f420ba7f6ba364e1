//! Links kernels to the host calls that launched them. A track is a host thread or a device stream. `said` are spans
//! with transfer information: `c10d` calls and their records.
//!
//! ```text
//! kernel -> correlation -> call of the runtime or the driver -> its place (thread, time) -> enclosing operator
//!        -> External id, if there is no such call -> place of the operator
//! ```
//!
//! Before 2024, a kernel's `External id` is a copy of its `correlation`, and may coincide with the id of an unrelated
//! operator. External ids are therefore used only in files in which both ids lead to the same operator for most
//! kernels. A call that starts after the kernel cannot have launched it.

use super::span::{Level, Span};
use gradtide_watch::check_cancelled;

/// A point in time on a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub track: u32,
    pub at_ns: u64,
}

/// A call of the runtime or the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Launch {
    pub correlation: u64,
    pub place: Place,
}

/// Index of launches, operators and transfer calls.
pub(super) struct Join {
    launches: Vec<Launch>,
    /// Operators by external id.
    externals: Vec<(u64, usize)>,
    /// Outermost operators by thread and start. They do not overlap.
    outer: Vec<(Place, usize)>,
    /// Transfer calls and records by thread and start.
    said: Vec<(Place, usize)>,
    trusts_externals: bool,
}

/// The place at which a kernel was launched, with the operator and the transfer calls around it.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub place: Place,
    /// The outermost operator at `place`.
    pub operator: Option<usize>,
    /// Transfer calls and records at `place`, innermost first.
    pub said: Vec<usize>,
}

/// Maximum nesting of the calls and records of one transfer: `c10d::`, `record_param_comms`, and levels in between.
const MOST_NESTED: usize = 8;

impl Join {
    /// Creates the index.
    ///
    /// # Arguments
    /// `spans` must be sorted by start. `outer` contains the outermost enclosing operator of each span.
    pub fn new(mut launches: Vec<Launch>, spans: &[Span], outer: &[Option<usize>]) -> Self {
        launches.sort_unstable();
        let hosts = || spans.iter().enumerate().filter(|(_, span)| span.is_host);
        let at = |span: &Span| Place { track: span.track, at_ns: span.start_ns };
        let mut externals: Vec<(u64, usize)> =
            hosts().filter_map(|(index, span)| Some((span.external?, index))).collect();
        externals.sort_unstable();
        let is_outer = |index: usize| outer[index] == Some(index);
        let mut outermost: Vec<(Place, usize)> =
            hosts().filter(|&(index, _)| is_outer(index)).map(|(index, span)| (at(span), index)).collect();
        outermost.sort_unstable();
        let is_call = |span: &Span| span.level().is_some_and(|level| level < Level::Backend);
        let mut said: Vec<(Place, usize)> =
            hosts().filter(|(_, span)| is_call(span)).map(|(index, span)| (at(span), index)).collect();
        said.sort_unstable();
        let mut join = Self { launches, externals, outer: outermost, said, trusts_externals: true };
        join.trusts_externals = join.agrees(spans);
        join
    }

    /// Returns whether `External id` and `correlation` lead to the same operator for most kernels.
    fn agrees(&self, spans: &[Span]) -> bool {
        let (mut same, mut other) = (0_u64, 0_u64);
        for span in spans.iter().filter(|span| !span.is_host) {
            check_cancelled();
            let Some(place) = self.launch(span) else { continue };
            let Some(external) = span.external else { continue };
            let Some(around) = self.around(place, spans) else { continue };
            let is_same = self.by_external(external).any(|index| {
                let one = &spans[index];
                one.track == place.track
                    && spans[around].start_ns <= one.start_ns
                    && one.end_ns() <= spans[around].end_ns()
            });
            *if is_same { &mut same } else { &mut other } += 1;
        }
        same >= other
    }

    fn launch(&self, kernel: &Span) -> Option<Place> {
        self.launch_of(kernel.correlation?, kernel.start_ns)
    }

    /// Returns the place of the latest call with correlation id `correlation` that does not start after the kernel.
    pub fn launch_of(&self, correlation: u64, start_ns: u64) -> Option<Place> {
        let from = self.launches.partition_point(|launch| launch.correlation < correlation);
        let same = self.launches[from..].iter().take_while(|launch| launch.correlation == correlation);
        same.map(|launch| launch.place).filter(|place| place.at_ns <= start_ns).max_by_key(|place| place.at_ns)
    }

    fn by_external(&self, external: u64) -> impl Iterator<Item = usize> {
        let from = self.externals.partition_point(|one| one.0 < external);
        self.externals[from..].iter().take_while(move |one| one.0 == external).map(|one| one.1)
    }

    /// Returns the outermost operator at a place.
    fn around(&self, place: Place, spans: &[Span]) -> Option<usize> {
        let after = self.outer.partition_point(|one| one.0 <= place);
        let (start, index) = self.outer[after.checked_sub(1)?];
        (start.track == place.track && place.at_ns <= spans[index].end_ns()).then_some(index)
    }

    /// Returns the transfer calls and records around a place, innermost first.
    fn said_around(&self, place: Place, spans: &[Span]) -> Vec<usize> {
        let after = self.said.partition_point(|one| one.0 <= place);
        let near = self.said[..after].iter().rev().take(MOST_NESTED).take_while(|one| one.0.track == place.track);
        near.map(|one| one.1).filter(|&index| place.at_ns <= spans[index].end_ns()).collect()
    }

    /// Returns the transfer calls and records on a thread between two times, in order.
    pub fn said_between(&self, after: Place, before_ns: u64) -> impl Iterator<Item = usize> {
        let from = self.said.partition_point(|one| one.0 <= after);
        let until = self.said.partition_point(|one| one.0 < Place { at_ns: before_ns, ..after });
        self.said[from..until.max(from)].iter().map(|one| one.1)
    }

    /// Returns the outermost transfer call or record around the one at `index`.
    pub fn outermost_said(&self, index: usize, spans: &[Span]) -> usize {
        let span = &spans[index];
        let around = self.said_around(Place { track: span.track, at_ns: span.start_ns }, spans);
        around.into_iter().rfind(|&one| spans[one].end_ns() >= span.end_ns()).unwrap_or(index)
    }

    /// Returns the origin of a kernel, if the file shows it.
    pub fn origin(&self, kernel: &Span, spans: &[Span]) -> Option<Origin> {
        if let Some(place) = self.launch(kernel) {
            return Some(Origin { place, operator: self.around(place, spans), said: self.said_around(place, spans) });
        }
        let external = kernel.external.filter(|_| self.trusts_externals)?;
        let before = |&index: &usize| spans[index].start_ns <= kernel.start_ns;
        let numbered: Vec<usize> = self.by_external(external).filter(before).collect();
        let first = &spans[*numbered.first()?];
        let place = Place { track: first.track, at_ns: first.start_ns };
        let is_said = |&index: &usize| spans[index].level().is_some_and(|level| level < Level::Backend);
        let mut said: Vec<usize> = numbered.iter().copied().filter(is_said).collect();
        said.extend(self.said_around(place, spans));
        // A record has more detail than the call around it, so it comes first.
        said.sort_by_key(|&index| (std::cmp::Reverse(spans[index].level()), index));
        said.dedup();
        Some(Origin { place, operator: self.around(place, spans), said })
    }
}
