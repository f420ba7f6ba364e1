//! Python bindings of the core. They convert arguments and results, and contain no logic of their own.

mod convert;
mod emulate;
mod errors;
mod traces;
mod watch;

use convert::PyTable;
use gradtide_net::packet::tcp::CongestionAlgorithm;
use gradtide_net::{Bytes, Link, Rate, Time};
use gradtide_train::collective::algorithms::Algorithm;
use gradtide_train::collective::counts::Counts;
use gradtide_train::fabric::NetworkError;
use gradtide_train::fabric::{self, Shape};
use gradtide_train::opdag::OpDagError;
use gradtide_train::parallel::Step;
use gradtide_train::parallel_job::Load;
use gradtide_train::spec::Spec;
use pyo3::prelude::*;
use watch::{looked, watched};

/// A finished run.
#[pyclass(frozen, module = "gradtide._core")]
struct RunOutput {
    #[pyo3(get)]
    iterations: Py<PyTable>,
    #[pyo3(get)]
    workers: Py<PyTable>,
    #[pyo3(get)]
    transfers: Py<PyTable>,
    #[pyo3(get)]
    operations: Py<PyTable>,
    #[pyo3(get)]
    links: Py<PyTable>,
    #[pyo3(get)]
    flows: Py<PyTable>,
    #[pyo3(get)]
    queues: Py<PyTable>,
    #[pyo3(get)]
    cwnd: Py<PyTable>,
    /// Summary figures as a JSON document, with times in picoseconds.
    #[pyo3(get)]
    summary_json: String,
}

#[pymethods]
impl RunOutput {
    /// Returns the output as one JSON document without loss of precision, for [`RunOutput::from_json`].
    fn to_json(&self) -> PyResult<String> {
        let tables = [
            &self.iterations,
            &self.workers,
            &self.transfers,
            &self.operations,
            &self.links,
            &self.flows,
            &self.queues,
            &self.cwnd,
        ]
        .map(|table| table.get().core());
        serde_json::to_string(&(tables, &self.summary_json)).map_err(|error| errors::from_json(&error))
    }

    /// Reads a document of [`RunOutput::to_json`].
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        let (tables, summary_json): ([gradtide_table::Table; 8], String) =
            serde_json::from_str(text).map_err(|error| errors::from_json(&error))?;
        let [iterations, workers, transfers, operations, links, flows, queues, cwnd] =
            tables.map(|table| Py::new(py, PyTable::new(table)));
        Ok(Self {
            iterations: iterations?,
            workers: workers?,
            transfers: transfers?,
            operations: operations?,
            links: links?,
            flows: flows?,
            queues: queues?,
            cwnd: cwnd?,
            summary_json,
        })
    }
}

/// Runs a scenario that `gradtide.scenario` has resolved.
///
/// `progress` is called every few milliseconds with the completed share of the run, from 0 to 1. An exception of
/// `progress` aborts the run and is passed on. Ctrl-C and limits also abort the run, with their own exceptions; see
/// `watch`.
#[pyfunction]
#[pyo3(signature = (spec_json, progress=None))]
fn run(py: Python<'_>, spec_json: &str, progress: Option<Py<PyAny>>) -> PyResult<RunOutput> {
    // Parsing is slow with millions of flows, so it can be cancelled as well.
    let spec: Spec = watched(py, || serde_json::from_str(spec_json))?.map_err(|error| errors::from_json(&error))?;
    let outcome = watched(py, || {
        let mut raised = None;
        let mut observe = |share| {
            Python::attach(|py| {
                let reported = progress.as_ref().map_or(Ok(()), |progress| progress.call1(py, (share,)).map(drop));
                raised = reported.and_then(|()| looked(py)).err();
                raised.is_none()
            })
        };
        let ran = gradtide_train::run(&spec, &mut observe);
        raised.map_or(Ok(ran), Err)
    })??;
    let result = outcome.map_err(|error| errors::from_run(py, &error))?;
    let table = |table| Py::new(py, PyTable::new(table));
    Ok(RunOutput {
        iterations: table(result.iterations)?,
        workers: table(result.workers)?,
        transfers: table(result.transfers)?,
        operations: table(result.operations)?,
        links: table(result.links)?,
        flows: table(result.flows)?,
        queues: table(result.queues)?,
        cwnd: table(result.cwnd)?,
        summary_json: serde_json::to_string(&result.summary).map_err(|error| errors::from_json(&error))?,
    })
}

/// Returns the messages of one collective of job `job` of a resolved scenario, for a buffer of `bytes`.
#[pyfunction]
fn messages(py: Python<'_>, spec_json: &str, job: usize, bytes: u64) -> PyResult<PyTable> {
    let spec: Spec = serde_json::from_str(spec_json).map_err(|error| errors::from_json(&error))?;
    let table = watched(py, || gradtide_train::messages(&spec, job, Bytes(bytes)))?;
    table.map(PyTable::new).map_err(|error| errors::from_run(py, &error.into()))
}

/// Returns the costs of one collective on a buffer of S bytes: the number of steps, the number of messages, the total
/// bytes, and the bytes of the busiest sender as a fraction. Bytes are in units of S.
#[pyfunction]
fn collective_counts(algorithm_json: &str, ranks: u32) -> PyResult<(u64, u64, u64, (u64, u64))> {
    let algorithm: Algorithm = serde_json::from_str(algorithm_json).map_err(|error| errors::from_json(&error))?;
    let Counts { steps, messages, sent, most } = algorithm.counts(ranks);
    Ok((steps, messages, sent, most))
}

/// Returns the congestion control algorithms of the packet engine, each with the defaults of its parameters, in JSON.
#[pyfunction]
fn congestion_controls() -> PyResult<String> {
    serde_json::to_string(&CongestionAlgorithm::registered()).map_err(|error| errors::from_json(&error))
}

/// Returns the name of each collective algorithm and its description for docs and scenarios, in JSON. Only
/// `tools/generate.py` calls this function.
#[pyfunction]
fn collective_algorithms() -> PyResult<Vec<(&'static str, String)>> {
    let about = |one: Algorithm| serde_json::to_string(&one.description()).map(|about| (one.name(), about));
    Algorithm::all().map(about).collect::<Result<_, _>>().map_err(|error| errors::from_json(&error))
}

/// Returns the size of an iteration of a parallel job in which every rank is simulated: the number of compute ops and
/// transfers, the number of messages, and the bytes that cross network cards.
#[pyfunction]
fn ranks_load(py: Python<'_>, job_json: &str, cluster_json: &str) -> PyResult<(u64, u64, u64)> {
    let job = serde_json::from_str(job_json).map_err(|error| errors::from_json(&error))?;
    let cluster = serde_json::from_str(cluster_json).map_err(|error| errors::from_json(&error))?;
    let load = watched(py, || Load::new(&job, &cluster))?;
    let Load { ops, messages, bytes } = load.map_err(|error| errors::from_run(py, &error.into()))?;
    Ok((ops, messages, bytes))
}

/// Returns the size of a recorded step: the number of ranks, the number of compute ops and transfers, and the longest
/// compute time of a rank in picoseconds.
#[pyfunction]
fn recorded_size(py: Python<'_>, recorded_json: &str) -> PyResult<(u32, u64, u64)> {
    let recorded = serde_json::from_str(recorded_json).map_err(|error| errors::from_json(&error))?;
    let step = watched(py, || Step::recorded(&recorded))?;
    let step = step.map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
    Ok((step.rank_count(), step.dag.ops.len() as u64, step.longest().ps()))
}

fn link(py: Python<'_>, rate_bps: u64, delay_ps: u64) -> PyResult<Link> {
    let rate = Rate::from_bps(rate_bps).ok_or_else(|| errors::from_run(py, &NetworkError::ZeroRate.into()))?;
    Ok(Link { rate, delay: Time::from_ps(delay_ps) })
}

type ShapeRow = (u32, u32, u32, u32, u32, u32, u32);

/// Returns the dimensions of a star, leaf-spine or Clos network whose hosts have links of this rate and delay: the
/// numbers of hosts, switches, cables, ports per switch, links on the longest route, hosts per edge switch, and the
/// largest number of hosts whose traffic can share a link.
#[pyfunction]
fn network_shape(py: Python<'_>, topology_json: &str, rate_bps: u64, delay_ps: u64) -> PyResult<ShapeRow> {
    let topology = serde_json::from_str(topology_json).map_err(|error| errors::from_json(&error))?;
    let shape = fabric::shape(&topology, link(py, rate_bps, delay_ps)?);
    let Shape { hosts, switches, cables, ports, hops, hosts_per_edge, shared_by } =
        shape.map_err(|error| errors::from_run(py, &error.into()))?;
    Ok((hosts, switches, cables, ports, hops, hosts_per_edge, shared_by))
}

/// Returns the names of a network's links, by port. With `node_json`, the network is that of a cluster of nodes, whose
/// network cards are its hosts.
#[pyfunction]
#[pyo3(signature = (topology_json, rate_bps, delay_ps, node_json=None))]
fn link_names(
    py: Python<'_>,
    topology_json: &str,
    rate_bps: u64,
    delay_ps: u64,
    node_json: Option<&str>,
) -> PyResult<Vec<String>> {
    let topology = serde_json::from_str(topology_json).map_err(|error| errors::from_json(&error))?;
    let node = node_json.map(serde_json::from_str).transpose().map_err(|error| errors::from_json(&error))?;
    let link = link(py, rate_bps, delay_ps)?;
    let wires = watched(py, || fabric::wires(&topology, link, node.as_ref()))?;
    let wires = wires.map_err(|error| errors::from_run(py, &error.into()))?;
    Ok(wires.names.iter().map(|name| name.as_ref().to_owned()).collect())
}

/// Returns the transfer times, in picoseconds, that schedulers assume for the layers of job `job` of a resolved
/// scenario.
#[pyfunction]
fn transfer_times(py: Python<'_>, spec_json: &str, job: usize) -> PyResult<Vec<u64>> {
    let spec: Spec = serde_json::from_str(spec_json).map_err(|error| errors::from_json(&error))?;
    let times = watched(py, || gradtide_train::transfer_times(&spec, job))?;
    let times = times.map_err(|error| errors::from_run(py, &error.into()))?;
    Ok(times.into_iter().map(Time::ps).collect())
}

/// Returns the step of the scenario's parallel job in JSON, or None if there is no such job.
#[pyfunction]
fn step_graph(py: Python<'_>, spec_json: &str) -> PyResult<Option<String>> {
    let spec: Spec = serde_json::from_str(spec_json).map_err(|error| errors::from_json(&error))?;
    let graph = watched(py, || gradtide_train::step_graph(&spec))?;
    let graph = graph.map_err(|error| errors::from_run(py, &error.into()))?;
    graph.map(|graph| serde_json::to_string(&graph).map_err(|error| errors::from_json(&error))).transpose()
}

/// Returns the links, the timers and the route of every connection of a resolved scenario on the packet engine, in
/// JSON.
#[pyfunction]
fn routed(py: Python<'_>, spec_json: &str) -> PyResult<String> {
    let spec: Spec = serde_json::from_str(spec_json).map_err(|error| errors::from_json(&error))?;
    let routed = watched(py, || gradtide_train::routed::routed(&spec))?;
    let routed = routed.map_err(|error| errors::from_run(py, &error.into()))?;
    serde_json::to_string(&routed).map_err(|error| errors::from_json(&error))
}

/// Returns the planned transfers of an iteration of job `job` of a resolved scenario, by send priority. A transfer is a
/// bucket of layers and its release time, in picoseconds of compute.
#[pyfunction]
fn planned(py: Python<'_>, spec_json: &str, job: usize) -> PyResult<Vec<(Vec<u32>, u64)>> {
    let spec: Spec = serde_json::from_str(spec_json).map_err(|error| errors::from_json(&error))?;
    let sent = watched(py, || gradtide_train::planned(&spec, job))?;
    let sent = sent.map_err(|error| errors::from_run(py, &error.into()))?;
    Ok(sent.into_iter().map(|(layers, release)| (layers, release.ps())).collect())
}

/// Orders the transfers of an op DAG that `gradtide.order` has read. Takes and returns a JSON document.
#[pyfunction]
fn order(py: Python<'_>, spec_json: &str) -> PyResult<String> {
    let answer = watched(py, || {
        let spec = serde_json::from_str(spec_json).map_err(Refusal::Json)?;
        let ordered = gradtide_train::order::order(&spec).map_err(Refusal::Dag)?;
        serde_json::to_string(&ordered).map_err(Refusal::Json)
    })?;
    answer.map_err(|refusal| match refusal {
        Refusal::Json(error) => errors::from_json(&error),
        Refusal::Dag(error) => errors::from_dag(py, &error),
    })
}

enum Refusal {
    Json(serde_json::Error),
    Dag(OpDagError),
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<RunOutput>()?;
    module.add_class::<PyTable>()?;
    module.add_class::<emulate::Emulation>()?;
    module.add_class::<traces::PyTrace>()?;
    module.add_function(wrap_pyfunction!(traces::chakra, module)?)?;
    module.add_function(wrap_pyfunction!(traces::execution_trace, module)?)?;
    module.add_function(wrap_pyfunction!(traces::kineto, module)?)?;
    module.add_function(wrap_pyfunction!(collective_algorithms, module)?)?;
    module.add_function(wrap_pyfunction!(collective_counts, module)?)?;
    module.add_function(wrap_pyfunction!(congestion_controls, module)?)?;
    module.add_function(wrap_pyfunction!(link_names, module)?)?;
    module.add_function(wrap_pyfunction!(messages, module)?)?;
    module.add_function(wrap_pyfunction!(network_shape, module)?)?;
    module.add_function(wrap_pyfunction!(ranks_load, module)?)?;
    module.add_function(wrap_pyfunction!(recorded_size, module)?)?;
    module.add_function(wrap_pyfunction!(order, module)?)?;
    module.add_function(wrap_pyfunction!(planned, module)?)?;
    module.add_function(wrap_pyfunction!(routed, module)?)?;
    module.add_function(wrap_pyfunction!(step_graph, module)?)?;
    module.add_function(wrap_pyfunction!(transfer_times, module)?)?;
    module.add_function(wrap_pyfunction!(run, module)?)
}
