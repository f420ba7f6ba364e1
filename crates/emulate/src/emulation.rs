//! A running emulation: the hosts' namespaces, the commands in them, and the thread that switches packets.

use crate::namespace::{HostConfig, Namespaces};
use crate::process::{self, Program};
use crate::ring::{Ring, Sender};
use crate::switch::{HOLD_BACK_NS, Record, Switch, SwitchConfig};
use crate::sys::{self, Fault};
use gradtide_net::packet::{Forwarder, PacketConfig, replay};
use gradtide_net::trace::PortCounters;
use gradtide_net::{Graph, PortId};
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use thiserror::Error;

/// Minimum delay of a host's link, in ns: the hold-back, and 10 us in which the switch processes a packet.
const DELAY_MIN_NS: u64 = HOLD_BACK_NS + 10_000;
const HOSTS_MAX: usize = 256;

/// An emulation cannot start or go on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EmulationError {
    /// The process may not create namespaces.
    #[error("this process may not create network namespaces ({0})")]
    Privilege(String),
    /// A call to the system failed.
    #[error("{what}: {error}")]
    System {
        /// What was attempted.
        what: String,
        /// The system's message.
        error: String,
    },
    /// The delay of a host's link is shorter than the time that the switch needs to forward a packet.
    #[error("host {host} has a link with a delay of {delay_ns} ns; {min_ns} ns are needed")]
    Delay {
        /// The host.
        host: u32,
        /// Delay of its link.
        delay_ns: u64,
        /// Least delay.
        min_ns: u64,
    },
    /// More hosts than supported.
    #[error("{count} hosts; at most {max} can be emulated")]
    Hosts {
        /// Number of hosts.
        count: usize,
        /// Largest number.
        max: usize,
    },
    /// The congestion control is not available in the kernel.
    #[error("this kernel has no congestion control {0}")]
    Congestion(String),
    /// The graph does not connect its hosts.
    #[error("{0}")]
    Route(String),
}

impl From<Fault> for EmulationError {
    fn from(fault: Fault) -> Self {
        let error = io::Error::from_raw_os_error(fault.errno).to_string();
        if fault.is_privilege() {
            return Self::Privilege(format!("{}: {error}", fault.what));
        }
        Self::System { what: fault.what.to_owned(), error }
    }
}

/// What to emulate.
#[derive(Clone, Debug)]
pub struct EmulationConfig {
    /// Hosts, switches and links.
    pub graph: Graph,
    /// Queue configuration of the switches, and packet sizes.
    pub packet: PacketConfig,
    /// Congestion control of the kernel.
    pub congestion: String,
    /// The switch.
    pub switch: SwitchConfig,
}

/// Results of an emulation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the switch recorded.
    pub record: Record,
    /// Totals of each port.
    pub ports: Vec<PortCounters>,
    /// Number of packets that the simulator, given the recorded arrivals, drops, marks or times differently. `None` if
    /// [`SwitchConfig::keeps_packets`] is unset.
    pub differing: Option<u64>,
}

/// A running emulation. Dropping it kills all commands and stops the switch.
pub struct Emulation {
    config: EmulationConfig,
    hosts: Vec<OwnedFd>,
    /// Start of the run, in ns of CLOCK_REALTIME.
    start_ns: u64,
    /// Processors of commands.
    processors: Vec<usize>,
    commands: Vec<Child>,
    stops: Arc<AtomicBool>,
    switch: Option<JoinHandle<(Record, Forwarder)>>,
}

/// Returns the processor of the switch and the processors of the commands. A single processor is used for both.
fn placement(mut all: Vec<usize>) -> (Vec<usize>, Vec<usize>) {
    match all.pop() {
        Some(last) if !all.is_empty() => (vec![last], all),
        last => (last.into_iter().collect(), last.into_iter().collect()),
    }
}

fn check(graph: &Graph) -> Result<(), EmulationError> {
    let count = graph.host_count as usize;
    if count > HOSTS_MAX {
        return Err(EmulationError::Hosts { count, max: HOSTS_MAX });
    }
    for link in &graph.links {
        let (host, delay_ns) = (link.from.0.min(link.to.0), link.link.delay.ps() / 1_000);
        if host < graph.host_count && delay_ns < DELAY_MIN_NS {
            return Err(EmulationError::Delay { host, delay_ns, min_ns: DELAY_MIN_NS });
        }
    }
    Ok(())
}

impl EmulationConfig {
    fn hosts(&self) -> HostConfig {
        let rate = |host| {
            let mut out = self.graph.links.iter().filter(move |link| link.from.0 == host);
            out.next().map_or(1, |link| link.link.rate.bps())
        };
        let tcp = &self.packet.tcp;
        HostConfig {
            mtu: tcp.header_bytes + tcp.segment_bytes - crate::frame::FRAMING,
            congestion: self.congestion.clone(),
            ecn: tcp.ecn,
            rates_bps: (0..self.graph.host_count).map(rate).collect(),
        }
    }
}

impl Emulation {
    /// Creates the hosts and starts the switch.
    ///
    /// # Errors
    /// [`EmulationError`] if the network cannot be emulated on this machine.
    pub fn start(config: EmulationConfig) -> Result<Self, EmulationError> {
        check(&config.graph)?;
        let forwarder = Forwarder::new(&config.graph, &config.packet);
        let forwarder = forwarder.map_err(|error| EmulationError::Route(error.to_string()))?;
        let (of_switch, processors) = placement(sys::processors());
        let stops = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = mpsc::channel();
        let (hosts, of_hosts, stopping) = (config.hosts(), processors.clone(), stops.clone());
        let switch_config = config.switch.clone();
        let run = move || {
            sys::without_slack();
            let created = Namespaces::create(&hosts, &of_hosts)
                .and_then(|namespaces| Ok((namespaces, Ring::open()?, Sender::open()?)));
            let (namespaces, ring, sender) = match created {
                Ok(created) => created,
                Err(fault) => {
                    let _ = ready.send(Err(fault));
                    return None;
                }
            };
            sys::run_on(&of_switch);
            let mut switch = Switch::new(switch_config, forwarder, ring, sender, namespaces.interfaces);
            let _ = ready.send(Ok((namespaces.hosts, switch.start_ns())));
            switch.run(|| stopping.load(Ordering::Relaxed));
            Some(switch.finish())
        };
        let thread = thread::Builder::new().name("switch".to_owned()).spawn(move || run().unwrap_or_else(stopped));
        let thread = thread.map_err(|error| of_system("thread", &error))?;
        let started = is_ready.recv().map_err(|error| of_system("thread", &io::Error::other(error)))?;
        let (hosts, start_ns) = started.map_err(|fault| match fault {
            Fault { what: "route", errno: libc::ENOENT } => EmulationError::Congestion(config.congestion.clone()),
            fault => fault.into(),
        })?;
        Ok(Self { config, hosts, start_ns, processors, commands: Vec::new(), stops, switch: Some(thread) })
    }

    /// Returns the start of the run, in ns of CLOCK_REALTIME.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Starts a command on a host and returns its number. The kernel kills the command when the calling thread ends.
    ///
    /// # Errors
    /// [`EmulationError::System`] if there is no such host, or if the command cannot be started.
    pub fn spawn(&mut self, host: u32, program: &Program) -> Result<usize, EmulationError> {
        let missing = || EmulationError::System { what: format!("host {host}"), error: "no such host".to_owned() };
        let namespace = self.hosts.get(host as usize).ok_or_else(missing)?;
        let child = process::start(namespace, program, &self.processors);
        let name = program.command.first().map_or("", String::as_str);
        self.commands.push(child.map_err(|error| of_system(name, &error))?);
        Ok(self.commands.len() - 1)
    }

    /// Returns the exit status of a command, or `None` while it runs. Killed by signal n, it has the status 128 + n.
    pub fn status(&mut self, command: usize) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        let status = self.commands.get_mut(command)?.try_wait().ok()??;
        status.code().or_else(|| status.signal().map(|signal| 128 + signal))
    }

    /// Ends a command and all its processes.
    pub fn kill(&mut self, command: usize) {
        if let Some(child) = self.commands.get_mut(command) {
            // Errors are ignored: they only mean that the command has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Returns whether the switch still runs.
    pub fn is_running(&self) -> bool {
        self.switch.as_ref().is_some_and(|switch| !switch.is_finished())
    }

    /// Kills all commands, stops the switch and returns the results. Returns `None` if it was already stopped.
    pub fn stop(&mut self) -> Option<Outcome> {
        (0..self.commands.len()).for_each(|command| self.kill(command));
        self.stops.store(true, Ordering::Relaxed);
        let (record, mut forwarder) = self.switch.take()?.join().ok()?;
        let ports = (0..self.config.graph.links.len() as u32).map(|port| forwarder.port_counters(PortId(port)));
        Some(Outcome { ports: ports.collect(), differing: self.differing(&record), record })
    }

    /// Simulates the recorded arrivals, and returns the number of packets on which simulation and emulation decide
    /// differently.
    fn differing(&self, record: &Record) -> Option<u64> {
        if !self.config.switch.keeps_packets {
            return None;
        }
        let mut arrivals = record.arrivals.clone();
        arrivals.sort_by_key(|(at, _)| *at);
        let replayed = replay(&self.config.graph, &self.config.packet, &record.origins, &arrivals).ok()?;
        let mut by_number = vec![None; arrivals.len()];
        for decision in replayed {
            by_number[decision.number as usize] = Some(decision);
        }
        let differs =
            |decision: &&gradtide_net::packet::Decision| by_number[decision.number as usize] != Some(**decision);
        Some(record.decisions.iter().filter(differs).count() as u64)
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        self.stop();
    }
}

fn of_system(what: &str, error: &io::Error) -> EmulationError {
    EmulationError::System { what: what.to_owned(), error: error.to_string() }
}

/// The record of a switch that never ran: `start` has returned its error.
fn stopped() -> (Record, Forwarder) {
    unreachable!("a switch without a network is never asked for results")
}
