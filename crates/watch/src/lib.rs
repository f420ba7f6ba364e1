//! Cooperative cancellation of long computations, by Ctrl-C or at a limit of time or memory.
//!
//! [`watched`] runs a computation with a callback. The computation calls [`check_cancelled`] in every loop that can be
//! long, which polls the callback from time to time. If the callback returns false, the stack is unwound to
//! [`watched`], so the functions in between need no error path.
//!
//! This is the only crate with a clock and thread-local state. Neither affects results.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// Interval between calls of the callback. It is short for a waiting user, but long compared to a call of the callback,
/// which takes some microseconds.
const EVERY: Duration = Duration::from_millis(20);

/// Number of calls of [`check_cancelled`] per reading of the clock, because reading the clock takes as long as a short
/// loop iteration.
const CALLS: u32 = 64;

/// The cancellation callback of a computation.
struct Watch {
    ask: Box<dyn FnMut() -> bool>,
    asked_at: Instant,
}

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
    static CALL_COUNT: Cell<u32> = const { Cell::new(0) };
}

/// Payload of the panic that unwinds a cancelled computation.
struct Cancelled;

/// Restores the watch of the enclosing computation when it is dropped.
struct Outer(Option<Watch>);

impl Drop for Outer {
    fn drop(&mut self) {
        WATCH.set(self.0.take());
    }
}

/// Runs `work`. [`check_cancelled`] calls `goes_on` about every 20 ms during the work. Returns `None` if `goes_on`
/// returned false.
pub fn watched<T>(goes_on: impl FnMut() -> bool + 'static, work: impl FnOnce() -> T) -> Option<T> {
    let watch = Watch { ask: Box::new(goes_on), asked_at: Instant::now() };
    let _outer = Outer(WATCH.replace(Some(watch)));
    // Unwind safety: the state of cancelled work is dropped during unwinding, so no partial state is observable.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => Some(done),
        Err(thrown) if thrown.is::<Cancelled>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

/// Checks for cancellation. Outside [`watched`], the check has no effect.
///
/// The check is cheap enough for loop iterations of tens of nanoseconds. If iterations are shorter, call it in the
/// enclosing loop.
pub fn check_cancelled() {
    CALL_COUNT.with(|count| {
        let calls = count.get() + 1;
        count.set(calls % CALLS);
        if calls == CALLS {
            check_cancelled_now();
        }
    });
}

/// Checks for cancellation as [`check_cancelled`] does, but reads the clock at every call. Use it in loops with long
/// iterations, such as a loop over the columns of a table.
#[cold]
pub fn check_cancelled_now() {
    // The watch is removed during the callback, because the callback may itself run watched work.
    let Some(mut watch) = WATCH.take() else { return };
    let is_due = watch.asked_at.elapsed() >= EVERY;
    let goes_on = !is_due || (watch.ask)();
    if is_due {
        watch.asked_at = Instant::now();
    }
    WATCH.set(Some(watch));
    if !goes_on {
        resume_unwind(Box::new(Cancelled));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forever() {
        loop {
            check_cancelled();
        }
    }

    #[test]
    fn work_ends_when_it_is_told_so() {
        assert_eq!(watched(|| false, forever), None);
    }

    #[test]
    fn work_that_nobody_ends_gives_what_it_gives() {
        assert_eq!(watched(|| true, || (0..1000).map(|n| (check_cancelled(), n).1).sum::<u32>()), Some(499_500));
        check_cancelled();
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
