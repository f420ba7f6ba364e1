//! Connections between workers and parameter servers. They have no send queue: a connection transfers data in the order
//! in which transfers start.

use super::PsJob;
use gradtide_net::{Completion, FlowId, Network, Time};
use std::collections::BTreeMap;

/// A pull or push of a worker's current iteration.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Index of the worker.
    pub worker: u32,
    /// Index of the transfer.
    pub transfer: u32,
}

/// All connections of a job.
pub struct Connections {
    /// Transfers that are ready but have not started.
    ready: Vec<Sent>,
    under_way: BTreeMap<FlowId, Sent>,
    /// End of the last transfer of each connection, by worker, server and direction (pull, push).
    free_at: Vec<Vec<[Time; 2]>>,
}

impl Connections {
    /// Creates the connections of a job, which are idle.
    pub fn new(job: &PsJob) -> Self {
        let free_at = vec![vec![[Time::ZERO; 2]; job.servers.len()]; job.workers.len()];
        Self { ready: Vec::new(), under_way: BTreeMap::new(), free_at }
    }

    /// Queues a transfer that has become ready.
    pub fn on_ready(&mut self, worker: u32, transfer: u32) {
        self.ready.push(Sent { worker, transfer });
    }

    /// Starts all ready transfers. Calls `begun` with the worker of each transfer.
    pub fn send(&mut self, job: &PsJob, stream: u32, network: &mut dyn Network, mut begun: impl FnMut(u32)) {
        for sent in self.ready.drain(..) {
            let (parameter, is_push) = job.carried(sent.transfer);
            let (server, bytes) = (job.server_of[parameter as usize], job.graph.parameters[parameter as usize].bytes);
            let flow = job.flow(sent.worker as usize, server as usize, is_push, bytes, stream);
            self.under_way.insert(network.start(flow), sent);
            begun(sent.worker);
        }
    }

    /// Handles the end of a transfer. Returns the transfer, and the time at which its connection began to send it.
    pub fn on_completion(&mut self, now: Time, completion: Completion, job: &PsJob) -> (Sent, Time) {
        let sent = self.under_way.remove(&completion.flow).expect("the transfer is under way");
        let (parameter, is_push) = job.carried(sent.transfer);
        let server = job.server_of[parameter as usize] as usize;
        let free_at = &mut self.free_at[sent.worker as usize][server][usize::from(is_push)];
        let began = completion.began.max(*free_at);
        *free_at = now;
        (sent, began)
    }
}
