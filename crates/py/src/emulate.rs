//! Emulation of a scenario's network with real packets. On systems other than Linux, every call raises an error.

use serde::Deserialize;

/// Options of an emulation that are not part of the scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
struct Options {
    /// Congestion control of the kernel.
    congestion: String,
    /// Band of each of the 64 DSCPs.
    bands: Vec<u8>,
    /// Maximum fraction of departures that may be late, in parts per million.
    late_ppm: u64,
    /// Links whose queues are sampled. `sample_ns` is the time between samples; 0: no samples.
    sampled: Vec<u32>,
    sample_ns: u64,
    /// Whether to compare the switches' decisions with those of the simulator.
    compares: bool,
}

/// A command on a host.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
struct ProgramSpec {
    command: Vec<String>,
    environment: Vec<(String, String)>,
    output: String,
    names: String,
}

#[cfg(target_os = "linux")]
pub use linux::Emulation;
#[cfg(not(target_os = "linux"))]
pub use other::Emulation;

#[cfg(target_os = "linux")]
mod linux {
    use super::{Options, ProgramSpec};
    use crate::errors;
    use gradtide_emulate::{
        Counts, Delays, Emulation as Core, EmulationConfig, EmulationError, Failure, Opening, Outcome, Program, Sample,
        SwitchConfig,
    };
    use gradtide_net::Band;
    use gradtide_train::engine::packet_config;
    use gradtide_train::fabric::Fabric;
    use gradtide_train::spec::Spec;
    use pyo3::prelude::*;
    use serde::Serialize;

    /// A running emulation of a scenario's network.
    #[pyclass(module = "gradtide._core")]
    pub struct Emulation {
        core: Core,
        link_names: Vec<String>,
    }

    /// Totals of one link.
    #[derive(Serialize)]
    struct LinkRow {
        link: String,
        packets: u64,
        bytes: u64,
        busy_ps: u64,
        drops: u64,
        marks: u64,
        queue_packets_max: u64,
        queue_bytes_max: u64,
    }

    #[derive(Serialize)]
    struct Results<'a> {
        duration_ps: u64,
        counts: &'a Counts,
        delays: &'a Delays,
        failure: Option<Failure>,
        differing: Option<u64>,
        links: Vec<LinkRow>,
        samples: &'a [Sample],
        openings: &'a [Opening],
    }

    fn refused(py: Python<'_>, error: &EmulationError) -> PyErr {
        let code = match error {
            EmulationError::Privilege(_) => "privilege",
            EmulationError::System { .. } => "system",
            EmulationError::Delay { .. } => "delay",
            EmulationError::Hosts { .. } => "hosts",
            EmulationError::Congestion(_) => "congestion",
            EmulationError::Route(_) => "route",
        };
        errors::from_emulation(py, code, &error.to_string())
    }

    fn config(spec: &Spec, options: &Options) -> Result<EmulationConfig, gradtide_train::RunError> {
        let fabric = Fabric::new(&spec.cluster).map_err(gradtide_train::SpecError::from)?;
        let packet = packet_config(spec, &fabric, &fabric.graph)?;
        let first = Band::new(0).expect("there is a first band");
        let mut bands = [first; 64];
        for (band, index) in bands.iter_mut().zip(&options.bands) {
            *band = Band::new(*index).unwrap_or(first);
        }
        let switch = SwitchConfig {
            bands,
            has_pcn: packet.pcn.is_some(),
            late_ppm: options.late_ppm,
            sampled: options.sampled.clone(),
            sample_ns: options.sample_ns,
            keeps_packets: options.compares,
        };
        Ok(EmulationConfig { graph: fabric.graph, packet, congestion: options.congestion.clone(), switch })
    }

    #[pymethods]
    impl Emulation {
        /// Creates the hosts of a resolved scenario and starts their switch.
        #[new]
        fn new(py: Python<'_>, spec_json: &str, options_json: &str) -> PyResult<Self> {
            let spec: Spec = serde_json::from_str(spec_json).map_err(|error| errors::from_json(&error))?;
            let options: Options = serde_json::from_str(options_json).map_err(|error| errors::from_json(&error))?;
            let config = config(&spec, &options).map_err(|error| errors::from_run(py, &error))?;
            let names = Fabric::new(&spec.cluster).map(|fabric| fabric.link_names).unwrap_or_default();
            let core = py.detach(|| Core::start(config)).map_err(|error| refused(py, &error))?;
            Ok(Self { core, link_names: names.iter().map(|name| name.to_string()).collect() })
        }

        /// Start of the run, in ns of CLOCK_REALTIME.
        #[getter]
        fn start_ns(&self) -> u64 {
            self.core.start_ns()
        }

        /// Whether the switch still runs.
        #[getter]
        fn is_running(&self) -> bool {
            self.core.is_running()
        }

        /// Starts a command on a host and returns its number. The command is killed when the calling thread ends.
        fn spawn(&mut self, py: Python<'_>, host: u32, program_json: &str) -> PyResult<usize> {
            let spec: ProgramSpec = serde_json::from_str(program_json).map_err(|error| errors::from_json(&error))?;
            let ProgramSpec { command, environment, output, names } = spec;
            let program = Program { command, environment, output, names };
            self.core.spawn(host, &program).map_err(|error| refused(py, &error))
        }

        /// Returns the exit status of a command, or None while it runs.
        fn status(&mut self, command: usize) -> Option<i32> {
            self.core.status(command)
        }

        /// Ends a command and all its processes.
        fn kill(&mut self, py: Python<'_>, command: usize) {
            py.detach(|| self.core.kill(command));
        }

        /// Kills all commands and stops the switch. Returns the results in JSON, or None if they were already returned.
        fn stop(&mut self, py: Python<'_>) -> PyResult<Option<String>> {
            let Some(Outcome { record, ports, differing }) = py.detach(|| self.core.stop()) else { return Ok(None) };
            let links = self.link_names.iter().zip(ports).map(|(link, port)| LinkRow {
                link: link.clone(),
                packets: port.packets,
                bytes: port.bytes,
                busy_ps: port.busy.ps(),
                drops: port.drops,
                marks: port.marks,
                queue_packets_max: port.queue_packets_max,
                queue_bytes_max: port.queue_bytes_max,
            });
            let results = Results {
                duration_ps: record.duration_ps,
                counts: &record.counts,
                delays: &record.delays,
                failure: record.failure,
                differing,
                links: links.collect(),
                samples: &record.samples,
                openings: &record.openings,
            };
            serde_json::to_string(&results).map(Some).map_err(|error| errors::from_json(&error))
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use crate::errors;
    use pyo3::prelude::*;

    /// An emulation, which only Linux supports.
    #[pyclass(module = "gradtide._core")]
    pub struct Emulation;

    #[pymethods]
    impl Emulation {
        /// Refuses.
        #[new]
        fn new(py: Python<'_>, _spec_json: &str, _options_json: &str) -> PyResult<Self> {
            Err(errors::from_emulation(py, "other", "only Linux has network namespaces"))
        }
    }
}
