//! Work of the core that Ctrl-C and limits can end, whatever it is doing.

use pyo3::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;

/// Does `work` without the interpreter's lock. Every few milliseconds it asks Python whether to go on, in every loop of
/// the core that can be long.
///
/// # Errors
/// What [`looked`] raises: the work is not done then.
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

/// Raises what ends the work: `KeyboardInterrupt` after Ctrl-C, and whatever `gradtide.watch` raises at a limit.
pub fn looked(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    py.import("gradtide.watch")?.getattr("look")?.call0().map(drop)
}
