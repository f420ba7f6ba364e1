//! Maps Rust errors to Python exceptions.

use gradtide_trace::TraceError;
use gradtide_train::RunError;
use gradtide_train::opdag::OpDagError;
use pyo3::prelude::*;

/// JSON that `gradtide.scenario` should have rejected: our bug, not the user's.
pub fn from_json(error: &serde_json::Error) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(format!("the core does not understand the resolved scenario: {error}"))
}

/// An invalid scenario becomes `gradtide.errors.CoreRefusal`, a run that fails `SimulationError`.
pub fn from_run(py: Python<'_>, error: &RunError) -> PyErr {
    let class = match error {
        RunError::Spec(_) => "CoreRefusal",
        RunError::Iteration(_) => "SimulationError",
    };
    raised(py, class, &error.to_string())
}

/// An invalid op DAG becomes `gradtide.errors.CoreRefusal`.
pub fn from_dag(py: Python<'_>, error: &OpDagError) -> PyErr {
    raised(py, "CoreRefusal", &error.to_string())
}

/// An unreadable trace file becomes `gradtide.errors.TraceError`.
pub fn from_trace(py: Python<'_>, error: &TraceError) -> PyErr {
    raised(py, "TraceError", &error.to_string())
}

/// JSON that is not a trace document becomes `gradtide.errors.TraceError`.
pub fn from_trace_json(py: Python<'_>, error: &serde_json::Error) -> PyErr {
    raised(py, "TraceError", &format!("it is no DAG of a trace: {error}"))
}

fn raised(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let raise = || py.import("gradtide.errors")?.getattr(class)?.call1((message,));
    raise().map_or_else(|failed| failed, PyErr::from_value)
}
