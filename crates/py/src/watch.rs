//! Cancellation of computations in the core by Ctrl-C and limits.

use pyo3::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// Runs `work` without the GIL. Every few milliseconds its loops poll Python for cancellation.
///
/// # Errors
/// The exception of [`looked`] if the work was cancelled.
pub fn watched<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    py.detach(|| {
        let raised = Rc::new(RefCell::new(None));
        let of_work = raised.clone();
        let goes_on = move || {
            let end = Python::attach(looked).err();
            let goes_on = end.is_none();
            of_work.replace(end);
            goes_on
        };
        gradtide_watch::watched(goes_on, work).ok_or_else(|| raised.take().expect("something was raised"))
    })
}

/// Cancellation poll: raises `KeyboardInterrupt` after Ctrl-C, and the exception of `gradtide.watch` at a limit.
pub fn looked(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    py.import("gradtide.watch")?.getattr("check_cancelled")?.call0().map(drop)
}
