//! Samples over time: when they are taken, and how many are kept.
//!
//! A probe exists only if the scenario configures one. It has no effect on the simulation: the engine runs to the next
//! sampling time, its state is recorded, and it continues. Long runs are thinned: when a table is full, every second
//! sampling time is discarded and the sampling interval doubles. Intervals thus stay equal, and memory stays bounded.

use crate::job::Job;
use crate::spec::{ProbeSpec, Spec};
use crate::traffic;
use gradtide_net::trace::{PortState, Window};
use gradtide_net::{Flow, FlowId, HostId, Time};
use std::collections::BTreeMap;
use std::iter::repeat_n;
use std::sync::Arc;

/// Limit on the rows of each table. A row takes about 100 bytes.
const ROW_LIMIT: usize = 1_000_000;

/// A probe and its samples so far.
#[derive(Debug)]
pub struct Probe {
    /// Sampled links: port index and name.
    pub links: Vec<(u32, Arc<str>)>,
    sources: Vec<Source>,
    next_at: Time,
    row_limit: usize,
    /// Sampled flows in flight that have a connection of their own.
    flows: BTreeMap<FlowId, Carried>,
    samples: Samples,
}

/// The connections of a job or of background flows that are sampled.
#[derive(Debug)]
struct Source {
    tenant: Arc<str>,
    stream: u32,
    flow: Option<u64>,
}

/// A connection, with the flow that uses it.
#[derive(Clone, Debug)]
pub struct Carried {
    /// Name of the job or of the background flows.
    pub tenant: Arc<str>,
    /// Number of the background flow. `None` for a job, because all its flows use the same connections.
    pub flow: Option<u64>,
    /// Sending host.
    pub src: HostId,
    /// Receiving host.
    pub dst: HostId,
}

/// Samples of a run.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Sampling interval after thinning.
    pub every: Time,
    /// Sampling times. The last one may be the end of the run.
    pub at: Vec<Time>,
    /// Names of the sampled links.
    pub links: Vec<Arc<str>>,
    /// State of each port at each sampling time, ordered by time.
    pub ports: Vec<PortState>,
    /// Congestion window of each connection at each sampling time, ordered by time: index into `at`, connection and
    /// state of the sender.
    pub windows: Vec<(u32, Carried, Window)>,
}

impl Probe {
    /// Creates a probe that samples the `links` that the scenario names, or all links if it names none.
    pub fn new(spec: &ProbeSpec, run: &Spec, jobs: &[Job], links: Vec<(u32, Arc<str>)>) -> Self {
        let is_meant = |name: &str| spec.links.as_ref().is_none_or(|meant| meant.iter().any(|other| other == name));
        let links: Vec<_> = links.into_iter().filter(|(_, name)| is_meant(name)).collect();
        // A job has a stream for each communicator.
        let jobs =
            (0..).zip(run.jobs.iter().zip(jobs).flat_map(|(spec, job)| repeat_n(&spec.name, job.stream_count())));
        let traffic = (run.traffic.iter().enumerate()).map(|(index, of)| (traffic::stream(index), &of.name));
        let streams: Vec<(u32, &String)> = jobs.chain(traffic).collect();
        let sources = spec.cwnd.iter().flat_map(|of| {
            let own = streams.iter().filter(|(_, name)| **name == of.tenant);
            own.map(|&(stream, name)| Source { tenant: name.as_str().into(), stream, flow: of.flow })
        });
        let every = spec.every.max(Time::from_ps(1));
        let names = links.iter().map(|(_, name)| name.clone()).collect();
        Self {
            sources: sources.collect(),
            next_at: every,
            row_limit: ROW_LIMIT,
            flows: BTreeMap::new(),
            samples: Samples { every, links: names, ..Samples::default() },
            links,
        }
    }

    /// Returns the time of the next sample.
    pub fn next_at(&self) -> Time {
        self.next_at
    }

    /// Returns whether a sample was taken at `now`.
    pub fn has_seen(&self, now: Time) -> bool {
        self.samples.at.last() == Some(&now)
    }

    /// Records the start of a flow.
    pub fn on_start(&mut self, id: FlowId, flow: &Flow) {
        let Some(number) = flow.listed.map(|listed| u64::from(listed.number)) else { return };
        let mut sources = self.sources.iter().filter(|source| source.stream == flow.stream);
        if let Some(source) = sources.find(|source| source.flow.is_none_or(|meant| meant == number)) {
            let tenant = source.tenant.clone();
            self.flows.insert(id, Carried { tenant, flow: Some(number), src: flow.src, dst: flow.dst });
        }
    }

    /// Records the completion of a flow.
    pub fn on_completion(&mut self, id: FlowId) {
        self.flows.remove(&id);
    }

    /// Returns the streams whose connections are sampled.
    pub fn streams(&self) -> impl Iterator<Item = u32> {
        self.sources.iter().map(|source| source.stream)
    }

    /// Records a sample at `now`.
    pub fn record(
        &mut self,
        now: Time,
        ports: impl Iterator<Item = PortState>,
        flows: impl Iterator<Item = (FlowId, Window)>,
        streams: impl Iterator<Item = (u32, HostId, HostId, Window)>,
    ) {
        let instant = self.samples.at.len() as u32;
        self.samples.at.push(now);
        self.samples.ports.extend(ports);
        let first = self.samples.windows.len();
        let of_flows = flows.filter_map(|(id, window)| Some((instant, self.flows.get(&id)?.clone(), window)));
        self.samples.windows.extend(of_flows);
        for (stream, src, dst, window) in streams {
            let source = self.sources.iter().find(|source| source.stream == stream).expect("streams are the sources'");
            let carried = Carried { tenant: source.tenant.clone(), flow: None, src, dst };
            self.samples.windows.push((instant, carried, window));
        }
        // The engine's order of connections is arbitrary, so rows are sorted.
        self.samples.windows[first..]
            .sort_by(|(_, a, _), (_, b, _)| (&a.tenant, a.flow, a.src, a.dst).cmp(&(&b.tenant, b.flow, b.src, b.dst)));
        while self.samples.at.len() > 1
            && self.samples.ports.len().max(self.samples.windows.len()).max(self.samples.at.len()) > self.row_limit
        {
            self.thin();
        }
        let step_ps = self.samples.every.ps();
        self.next_at = Time::from_ps((now.ps() / step_ps).saturating_add(1).saturating_mul(step_ps));
    }

    /// Doubles the sampling interval and discards all samples that are not at a multiple of the new interval.
    fn thin(&mut self) {
        let Samples { every, at, links, ports, windows } = &mut self.samples;
        *every = Time::from_ps(every.ps().saturating_mul(2));
        let kept: Vec<bool> = at.iter().map(|at| at.ps().is_multiple_of(every.ps())).collect();
        let mut place = 0;
        let places: Vec<u32> = (kept.iter())
            .map(|&is_kept| {
                place += u32::from(is_kept);
                place - u32::from(is_kept)
            })
            .collect();
        windows.retain(|&(instant, ..)| kept[instant as usize]);
        windows.iter_mut().for_each(|(instant, ..)| *instant = places[*instant as usize]);
        let mut index = 0..;
        let width = links.len();
        ports.retain(|_| index.next().is_some_and(|index: usize| kept[index / width]));
        let mut index = 0..;
        at.retain(|_| index.next().is_some_and(|index: usize| kept[index]));
    }

    /// Returns the samples.
    pub fn into_samples(self) -> Samples {
        self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradtide_net::Bytes;

    fn probe(row_limit: usize) -> Probe {
        let links: Vec<(u32, Arc<str>)> = vec![(0, "h0".into()), (1, "h1".into())];
        Probe {
            samples: Samples { every: Time::from_ps(10), links: vec!["h0".into(), "h1".into()], ..Samples::default() },
            links,
            sources: vec![Source { tenant: "train".into(), stream: 0, flow: None }],
            next_at: Time::from_ps(10),
            row_limit,
            flows: BTreeMap::new(),
        }
    }

    #[test]
    fn a_long_run_keeps_even_instants_and_no_more_rows_than_fit() {
        let mut probe = probe(64);
        for _ in 0..300 {
            let now = probe.next_at();
            let state = |port: u64| PortState { drops: now.ps() + port, ..PortState::default() };
            let window = Window { cwnd: Bytes(now.ps()), ssthresh: None, flight: Bytes(0) };
            let stream = (0, HostId(0), HostId(1), window);
            probe.record(now, (0..2).map(state), std::iter::empty(), std::iter::once(stream));
        }
        let samples = probe.into_samples();
        let every = samples.every.ps();
        assert!(samples.ports.len() <= 64 && samples.at.len() >= 16, "{} instants", samples.at.len());
        for (index, at) in samples.at.iter().enumerate() {
            assert_eq!(at.ps(), (index as u64 + 1) * every);
            assert_eq!([samples.ports[2 * index].drops, samples.ports[2 * index + 1].drops], [at.ps(), at.ps() + 1]);
            assert_eq!((samples.windows[index].0 as usize, samples.windows[index].2.cwnd.0), (index, at.ps()));
        }
    }
}
