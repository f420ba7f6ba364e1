//! Bindings of the trace readers. They take the contents of files and return tables and files.

use crate::convert::PyTable;
use crate::errors;
use crate::watch::{looked, watched};
use gradtide_trace::{Gap, RankTrace, TraceError, dag, step, tables};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The traces of a job's ranks.
#[pyclass(frozen, name = "Trace", module = "gradtide._core")]
pub struct PyTrace {
    ranks: Vec<(u32, Arc<RankTrace>)>,
}

impl PyTrace {
    fn rank(&self, rank: u32) -> PyResult<&RankTrace> {
        let found = self.ranks.iter().find(|(other, _)| *other == rank);
        found.map(|(_, trace)| trace.as_ref()).ok_or_else(|| PyKeyError::new_err(rank))
    }
}

#[pymethods]
impl PyTrace {
    /// Combines traces of single ranks. `numbers` contains their ranks.
    #[staticmethod]
    fn of_ranks(numbers: Vec<u32>, parts: Vec<Py<PyTrace>>) -> Self {
        let mut whole = Self { ranks: Vec::new() };
        for (number, part) in numbers.into_iter().zip(parts) {
            let part = part.get();
            whole.ranks.extend(part.ranks.iter().map(|(_, trace)| (number, trace.clone())));
        }
        whole.ranks.sort_by_key(|(rank, _)| *rank);
        whole
    }

    /// Reads a document that `to_dag` returned.
    #[staticmethod]
    fn from_dag(py: Python<'_>, text: &str) -> PyResult<Self> {
        let document: dag::Document =
            serde_json::from_str(text).map_err(|error| errors::from_trace_json(py, &error))?;
        let trace = dag::read(&document).map_err(|error| errors::from_trace(py, &error))?;
        Ok(Self { ranks: vec![(trace.about.rank.unwrap_or_default(), Arc::new(trace))] })
    }

    /// For each rank: its number, its rank according to the file, the number of ranks of the job, the schema version.
    #[getter]
    fn about(&self) -> Vec<(u32, Option<u32>, Option<u32>, String)> {
        let about = |(number, trace): &(u32, Arc<RankTrace>)| {
            (*number, trace.about.rank, trace.about.world_size, trace.about.version.clone())
        };
        self.ranks.iter().map(about).collect()
    }

    /// Number of gaps, i.e. of information that files lack or that cannot be represented: rank, kind of gap, name of
    /// the event in the file, and count.
    #[getter]
    fn gaps(&self) -> Vec<(u32, &'static str, String, u64)> {
        let of_rank = |(number, trace): &(u32, Arc<RankTrace>)| {
            let number = *number;
            let row = move |(gap, name, count): (Gap, &str, u64)| (number, gap.word(), name.to_owned(), count);
            trace.gaps.iter().map(row).collect::<Vec<_>>()
        };
        self.ranks.iter().flat_map(of_rank).collect()
    }

    /// Gaps of the step with index `place`, as in `gaps`. Gaps without a time are included.
    fn gaps_of_step(&self, py: Python<'_>, place: usize) -> PyResult<Vec<(u32, &'static str, String, u64)>> {
        let found = || {
            let step = step::steps(&self.ranks).steps.into_iter().nth(place)?;
            let of_rank = |((number, trace), &(start_ns, end_ns)): (&(u32, Arc<RankTrace>), &(u64, u64))| {
                let row = |(gap, name, count): (Gap, &str, u64)| (*number, gap.word(), name.to_owned(), count);
                trace.gaps.within(start_ns, end_ns).map(row).collect::<Vec<_>>()
            };
            Some(self.ranks.iter().zip(&step.windows_ns).flat_map(of_rank).collect())
        };
        watched(py, found)?.ok_or_else(|| PyKeyError::new_err(place))
    }

    /// Purposes of process groups by the name of the group, if the files contain them.
    #[getter]
    fn described(&self) -> BTreeMap<String, String> {
        self.ranks.iter().flat_map(|(_, trace)| trace.about.described.clone()).collect()
    }

    /// Ranks that occur in any group.
    #[getter]
    fn members(&self) -> Vec<u32> {
        let comms = self.ranks.iter().flat_map(|(_, trace)| &trace.ops).filter_map(|op| op.comm.as_ref());
        let groups: BTreeMap<_, _> =
            comms.filter_map(|comm| comm.ranks.as_ref()).map(|ranks| (ranks.as_ptr(), ranks)).collect();
        let members: BTreeSet<u32> = groups.into_values().flat_map(|ranks| ranks.iter().copied()).collect();
        members.into_iter().collect()
    }

    fn ranks(&self, py: Python<'_>) -> PyResult<PyTable> {
        watched(py, || PyTable::new(tables::ranks(&self.ranks)))
    }

    fn ops(&self, py: Python<'_>) -> PyResult<PyTable> {
        watched(py, || PyTable::new(tables::ops(&self.ranks)))
    }

    fn collectives(&self, py: Python<'_>) -> PyResult<PyTable> {
        watched(py, || PyTable::new(tables::collectives(&self.ranks)))
    }

    /// The steps of the job, in JSON.
    fn steps(&self, py: Python<'_>) -> PyResult<String> {
        watched(py, || serde_json::to_string(&step::steps(&self.ranks)))?.map_err(|error| errors::from_json(&error))
    }

    /// Analysis of the step with index `place`, in JSON. The details suffice for a plot with a width of `pixels`.
    fn step(&self, py: Python<'_>, place: usize, pixels: u64) -> PyResult<String> {
        let cut = || {
            let step = step::steps(&self.ranks).steps.into_iter().nth(place)?;
            Some(serde_json::to_string(&step::cut(&self.ranks, &step, pixels)))
        };
        let text = watched(py, cut)?.ok_or_else(|| PyKeyError::new_err(place))?;
        text.map_err(|error| errors::from_json(&error))
    }

    /// Returns a rank's trace as a Chakra file.
    fn to_chakra<'py>(&self, py: Python<'py>, rank: u32, version: &str) -> PyResult<Bound<'py, PyBytes>> {
        let trace = self.rank(rank)?;
        Ok(PyBytes::new(py, &watched(py, || gradtide_trace::chakra::write(trace, version))?))
    }

    /// Returns a rank's trace as an op DAG, in JSON.
    fn to_dag(&self, py: Python<'_>, rank: u32, cut: bool) -> PyResult<String> {
        let trace = self.rank(rank)?;
        // The file may lack its rank, but the caller has the rank from the file's name.
        let document = || dag::Document { rank: Some(rank), ..dag::write(trace, cut) };
        watched(py, || serde_json::to_string(&document()))?.map_err(|error| errors::from_json(&error))
    }
}

/// Reads a file of PyTorch's profiler, chunk by chunk.
#[pyfunction]
pub fn kineto(py: Python<'_>, chunks: &Bound<'_, PyIterator>) -> PyResult<PyTrace> {
    let mut reader = gradtide_trace::kineto::KinetoReader::default();
    feed(py, chunks, &mut |chunk| reader.feed(chunk))?;
    let trace = watched(py, || reader.finish())?.map_err(|error| errors::from_trace(py, &error))?;
    Ok(PyTrace { ranks: vec![(trace.about.rank.unwrap_or_default(), Arc::new(trace))] })
}

/// Reads a trace of PyTorch's `ExecutionTraceObserver`, chunk by chunk.
#[pyfunction]
pub fn execution_trace(py: Python<'_>, chunks: &Bound<'_, PyIterator>) -> PyResult<PyTrace> {
    let mut reader = gradtide_trace::execution_trace::ExecutionTraceReader::default();
    feed(py, chunks, &mut |chunk| reader.feed(chunk))?;
    let trace = watched(py, || reader.finish())?.map_err(|error| errors::from_trace(py, &error))?;
    Ok(PyTrace { ranks: vec![(trace.about.rank.unwrap_or_default(), Arc::new(trace))] })
}

/// Reads a Chakra execution trace, chunk by chunk.
#[pyfunction]
pub fn chakra(py: Python<'_>, chunks: &Bound<'_, PyIterator>) -> PyResult<PyTrace> {
    let mut reader = gradtide_trace::chakra::ChakraReader::default();
    feed(py, chunks, &mut |chunk| reader.feed(chunk))?;
    let trace = watched(py, || reader.finish())?.map_err(|error| errors::from_trace(py, &error))?;
    Ok(PyTrace { ranks: vec![(0, Arc::new(trace))] })
}

/// Passes every chunk to `take`. An exception of the iterator or Ctrl-C stops the reading and is raised.
fn feed(
    py: Python<'_>,
    chunks: &Bound<'_, PyIterator>,
    take: &mut (dyn FnMut(&[u8]) -> Result<(), TraceError> + Send),
) -> PyResult<()> {
    for chunk in chunks {
        let chunk = chunk?;
        let bytes = chunk.cast::<PyBytes>()?.as_bytes();
        watched(py, || take(bytes))?.map_err(|error| errors::from_trace(py, &error))?;
        looked(py)?;
    }
    Ok(())
}
