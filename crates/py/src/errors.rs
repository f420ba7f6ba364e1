//! Maps Rust errors to Python exceptions.

use gradtide_trace::TraceError;
use gradtide_train::RunError;
use gradtide_train::opdag::OpDagError;
use pyo3::prelude::*;

/// Converts an error in JSON that `gradtide.scenario` has written, which is our bug and not the user's.
pub fn from_json(error: &serde_json::Error) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(format!("the core does not understand the resolved scenario: {error}"))
}

/// Converts an invalid scenario to `gradtide.errors.CoreRefusal`, and the failure of a run to `SimulationError`.
pub fn from_run(py: Python<'_>, error: &RunError) -> PyErr {
    let class = match error {
        RunError::Spec(_) => "CoreRefusal",
        RunError::Iteration(_) => "SimulationError",
    };
    raised(py, class, &error.to_string())
}

/// Converts an invalid op DAG to `gradtide.errors.CoreRefusal`.
pub fn from_dag(py: Python<'_>, error: &OpDagError) -> PyErr {
    raised(py, "CoreRefusal", &error.to_string())
}

/// Converts an unreadable trace file to `gradtide.errors.TraceError`.
pub fn from_trace(py: Python<'_>, error: &TraceError) -> PyErr {
    raised(py, "TraceError", &error.to_string())
}

/// Converts JSON that is not a trace document to `gradtide.errors.TraceError`.
pub fn from_trace_json(py: Python<'_>, error: &serde_json::Error) -> PyErr {
    raised(py, "TraceError", &format!("it is no DAG of a trace: {error}"))
}

/// Converts the reason why an emulation is refused to `gradtide.errors.EmulationRefusal`, whose first argument is
/// `code`.
pub fn from_emulation(py: Python<'_>, code: &str, message: &str) -> PyErr {
    let raise = || py.import("gradtide.errors")?.getattr("EmulationRefusal")?.call1((code, message));
    raise().map_or_else(|failed| failed, PyErr::from_value)
}

fn raised(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let raise = || py.import("gradtide.errors")?.getattr(class)?.call1((message,));
    raise().map_or_else(|failed| failed, PyErr::from_value)
}
