//! The one table of what a Rust error becomes in Python.

use gradtide_trace::TraceError;
use gradtide_train::RunError;
use gradtide_train::opdag::OpDagError;
use pyo3::prelude::*;

/// What `gradtide.scenario` should have caught: our bug, not the user's.
pub fn from_json(error: &serde_json::Error) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(format!("the core does not understand the resolved scenario: {error}"))
}

/// A scenario that means nothing becomes `gradtide.errors.ScenarioError`, a run that cannot go on `SimulationError`.
pub fn from_run(py: Python<'_>, error: &RunError) -> PyErr {
    let class = match error {
        RunError::Spec(_) => "CoreRefusal",
        RunError::Iteration(_) => "SimulationError",
    };
    raised(py, class, &error.to_string())
}

/// An op DAG that means nothing becomes `gradtide.errors.CoreRefusal`.
pub fn from_dag(py: Python<'_>, error: &OpDagError) -> PyErr {
    raised(py, "CoreRefusal", &error.to_string())
}

/// A foreign file that is no trace becomes `gradtide.errors.TraceError`.
pub fn from_trace(py: Python<'_>, error: &TraceError) -> PyErr {
    raised(py, "TraceError", &error.to_string())
}

/// So does JSON that is no document of a trace.
pub fn from_trace_json(py: Python<'_>, error: &serde_json::Error) -> PyErr {
    raised(py, "TraceError", &format!("it is no DAG of a trace: {error}"))
}

/// Threads that the system does not give become `gradtide.errors.SimulationError`.
pub fn from_threads(py: Python<'_>, count: usize, error: &std::io::Error) -> PyErr {
    let message = format!("the system does not give this process {count} threads ({error}); ask for fewer");
    raised(py, "SimulationError", &message)
}

fn raised(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let raise = || py.import("gradtide.errors")?.getattr(class)?.call1((message,));
    raise().map_or_else(|failed| failed, PyErr::from_value)
}
