//! Cancellation of computations in the core, by Ctrl-C or at a limit of time or memory.

use pyo3::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// Runs `work` without the GIL. Every few milliseconds, the loops of `work` call Python to check for cancellation.
///
/// # Errors
/// If the work was cancelled, the exception that [`looked`] raised.
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

/// Checks for cancellation. Raises `KeyboardInterrupt` after Ctrl-C, and the exception of `gradtide.watch` at a limit.
pub fn looked(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    py.import("gradtide.watch")?.getattr("check_cancelled")?.call0().map(drop)
}
