//! Aggregation by parameter servers: workers push their gradients to the servers and pull the sums. Each server sums
//! one shard.
//!
//! # Source
//! Li et al. (2014); Zhang et al. (2017), section 2.1.

use crate::collective::algorithm::{About, CollectiveAlgorithm, Row};
use crate::collective::counts::Counts;
use crate::collective::levels::CollectiveKind;
use crate::collective::pattern::{Action, BufferShare, Pattern, Send, others};
use crate::collective::plan::{Phase, PlanError};
use serde::Deserialize;

/// Aggregation by parameter servers. Some of the ranks are servers, all others are workers.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct ParameterServer {
    /// Number of servers.
    pub servers: u32,
    /// Choice of the ranks that are servers.
    pub placement: Placement,
}

/// Choice of the ranks that are parameter servers.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// The servers are the first ranks.
    ///
    /// # Source
    /// Zhang et al. (2017), fig. 3, left.
    #[default]
    Packed,
    /// The ranks are divided into one interval of equal length per server. In interval j the server is the rank at
    /// position j modulo the length of the interval, which spreads the traffic of the servers over the switches above.
    ///
    /// # Source
    /// Zhang et al. (2017), fig. 3, right, and section 2.1.
    Distributed,
    /// The last ranks, on hosts without workers.
    Separate,
}

const ABOUT: About = About {
    title: "parameter servers",
    operation: CollectiveKind::AllReduce,
    keys: &["ps"],
    needs_even_nodes: false,
    rows: &[Row {
        form: "",
        does: "all-reduce of the workers",
        steps: "2",
        bytes: "workers S, servers (N-s) S/s",
        source: "Li et al. (2014); Zhang et al. (2017)",
    }],
};

/// Sends part j of every worker to server j. `servers` is sorted.
#[derive(Debug)]
struct Push {
    servers: Vec<u32>,
}

/// Sends part j from server j to every worker.
#[derive(Debug)]
struct Pull {
    servers: Vec<u32>,
}

impl Placement {
    /// Returns the ranks of `servers` servers, in ascending order.
    ///
    /// # Panics
    /// If there are more servers than ranks.
    pub fn ranks(self, servers: u32, ranks: u32) -> Vec<u32> {
        assert!(servers <= ranks, "{servers} servers are some of {ranks} ranks");
        match self {
            Self::Packed => (0..servers).collect(),
            Self::Distributed => {
                let start = |j: u32| (u64::from(j) * u64::from(ranks) / u64::from(servers)) as u32;
                (0..servers).map(|j| start(j) + j % (start(j + 1) - start(j))).collect()
            }
            Self::Separate => (ranks - servers..ranks).collect(),
        }
    }
}

impl CollectiveAlgorithm for ParameterServer {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    fn phases(&self, ranks: u32) -> Result<Vec<Phase>, PlanError> {
        match self.servers {
            0 => Err(PlanError::NoServers),
            servers if servers >= ranks => Err(PlanError::NoWorkers(ranks)),
            _ => {
                let servers = self.servers(ranks);
                Ok(vec![Phase::of_all(Push { servers: servers.clone() }), Phase::of_all(Pull { servers })])
            }
        }
    }

    fn closed_form(&self, ranks: u32) -> Counts {
        let (servers, workers) = (u64::from(self.servers), u64::from(ranks.saturating_sub(self.servers)));
        let most = if workers > servers { (workers, servers) } else { (1, 1) };
        Counts { steps: 2, messages: 2 * servers * workers, sent: 2 * workers, most }
    }

    fn busiest(&self, ranks: u32, bytes: u128) -> f64 {
        let workers = f64::from(ranks) - f64::from(self.servers);
        bytes as f64 * (workers / f64::from(self.servers)).max(1.0)
    }

    fn servers(&self, ranks: u32) -> Vec<u32> {
        if ranks < 2 { Vec::new() } else { self.placement.ranks(self.servers, ranks) }
    }

    fn samples(ranks: u32) -> Vec<Self> {
        let of = |placement| Self { servers: (ranks / 4).max(1), placement };
        if ranks < 2 { Vec::new() } else { [Placement::Packed, Placement::Distributed].map(of).into() }
    }
}

impl Pattern for Push {
    fn step_count(&self, _n: u32) -> u32 {
        1
    }

    fn sends(&self, _step: u32, i: u32, _n: u32, send: Send<'_>) {
        if let Err(servers_before) = self.servers.binary_search(&i) {
            let count = self.servers.len();
            // Worker w sends to server w first, which avoids incast at one server.
            let worker = i as usize - servers_before;
            for j in (0..count).map(|k| (worker + k) % count) {
                send(self.servers[j], BufferShare::part(j as u32, count as u32), Action::Reduce);
            }
        }
    }

    fn receive_count(&self, _step: u32, i: u32, n: u32) -> u32 {
        if self.servers.binary_search(&i).is_ok() { n - self.servers.len() as u32 } else { 0 }
    }
}

impl Pattern for Pull {
    fn step_count(&self, _n: u32) -> u32 {
        1
    }

    fn sends(&self, _step: u32, i: u32, n: u32, send: Send<'_>) {
        if let Ok(j) = self.servers.binary_search(&i) {
            let share = BufferShare::part(j as u32, self.servers.len() as u32);
            let workers = others(i, n).filter(|rank| self.servers.binary_search(rank).is_err());
            workers.for_each(|worker| send(worker, share, Action::Copy));
        }
    }

    fn receive_count(&self, _step: u32, i: u32, _n: u32) -> u32 {
        if self.servers.binary_search(&i).is_err() { self.servers.len() as u32 } else { 0 }
    }
}
