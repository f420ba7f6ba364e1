//! Lets long work be ended from outside: by Ctrl-C, by a limit of time or of memory.
//!
//! [`watched`] does some work and is told whom to ask; the work calls [`look`] in every loop that can be long. Whoever is
//! asked may say that the work is over. Then the stack is unwound to [`watched`], so no function in between has to know.
//!
//! This crate alone reads a clock and holds something for each thread. Neither has a part in what the work gives.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// Time between two questions: short for a user who waits, long beside what a question takes (some microseconds).
const EVERY: Duration = Duration::from_millis(20);

/// Calls of [`look`] between two looks at the clock, which takes as long as a short turn of a loop.
const CALLS: u32 = 64;

/// Who is asked whether the work goes on.
struct Watch {
    ask: Box<dyn FnMut() -> bool>,
    asked_at: Instant,
}

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
    static CALL_COUNT: Cell<u32> = const { Cell::new(0) };
}

/// What is thrown through work that is over.
struct Over;

/// Puts the watch of the work around this one back.
struct Outer(Option<Watch>);

impl Drop for Outer {
    fn drop(&mut self) {
        WATCH.set(self.0.take());
    }
}

/// Does `work`, and asks `goes_on` every few milliseconds where the work looks; `None` if the answer was no.
pub fn watched<T>(goes_on: impl FnMut() -> bool + 'static, work: impl FnOnce() -> T) -> Option<T> {
    let watch = Watch { ask: Box::new(goes_on), asked_at: Instant::now() };
    let _outer = Outer(WATCH.replace(Some(watch)));
    // What the work had in hand is lost with it, so nobody sees it half done.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Some(done),
        Err(thrown) if thrown.is::<Over>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// Lets the work around this call be ended here. Without a watch nothing happens.
///
/// Cheap enough for a turn that takes some tens of nanoseconds; the loops around shorter ones call it.
pub fn look() {
    CALL_COUNT.with(|count| {
        let calls = count.get() + 1;
        count.set(calls % CALLS);
        if calls == CALLS {
            look_now();
        }
    });
}

/// As [`look`], before a turn that may be long by itself, such as a column of a table.
#[cold]
pub fn look_now() {
    // Taken out meanwhile: the answer may itself be watched work.
    let Some(mut watch) = WATCH.take() else { return };
    let is_due = watch.asked_at.elapsed() >= EVERY;
    let goes_on = !is_due || (watch.ask)();
    if is_due {
        watch.asked_at = Instant::now();
    }
    WATCH.set(Some(watch));
    if !goes_on {
        resume_unwind(Box::new(Over));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forever() {
        loop {
            look();
        }
    }

    #[test]
    fn work_ends_when_it_is_told_so() {
        assert_eq!(watched(|| false, forever), None);
    }

    #[test]
    fn work_that_nobody_ends_gives_what_it_gives() {
        assert_eq!(watched(|| true, || (0..1000).map(|n| (look(), n).1).sum::<u32>()), Some(499_500));
        look();
    }

    #[test]
    fn the_work_around_is_watched_again_when_the_work_inside_is_over() {
        let inside_alone = || {
            assert_eq!(watched(|| false, forever), None);
            "goes on"
        };
        assert_eq!(watched(|| true, inside_alone), Some("goes on"));
        assert_eq!(watched(|| false, || (inside_alone(), forever())), None);
    }

    #[test]
    fn a_panic_stays_a_panic() {
        let caught = catch_unwind(|| watched(|| true, || std::panic::panic_any("a bug")));
        assert_eq!(caught.expect_err("it panics").downcast_ref(), Some(&"a bug"));
    }
}
