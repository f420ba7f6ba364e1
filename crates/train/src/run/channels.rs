//! The channels between workers and servers: a queue that holds nothing back, since a connection carries one transfer
//! after the other.

use super::queue::Ended;
use crate::servers::ServerJob;
use gradtide_net::{Completion, FlowId, Network, Time};
use std::collections::BTreeMap;

/// A transfer of a worker's iteration.
#[derive(Clone, Copy, Debug)]
struct Sent {
    worker: u32,
    iteration: u32,
    transfer: u32,
}

/// All channels of a job.
pub struct Channels {
    /// Ready, and not begun.
    ready: Vec<Sent>,
    under_way: BTreeMap<FlowId, Sent>,
    /// By worker and server, when the last transfer to the worker and from it ended.
    free_at: Vec<Vec<[Time; 2]>>,
}

impl Channels {
    /// Those of a job, idle.
    pub fn new(plan: &ServerJob) -> Self {
        let free_at = vec![vec![[Time::ZERO; 2]; plan.servers.len()]; plan.workers.len()];
        Self { ready: Vec::new(), under_way: BTreeMap::new(), free_at }
    }

    /// A transfer is ready.
    pub fn on_ready(&mut self, worker: u32, iteration: u32, transfer: u32) {
        self.ready.push(Sent { worker, iteration, transfer });
    }

    /// Begins all that is ready; calls `begun` with the worker of each.
    pub fn send(&mut self, plan: &ServerJob, stream: u32, network: &mut dyn Network, mut begun: impl FnMut(u32)) {
        for sent in self.ready.drain(..) {
            let (parameter, is_push) = plan.carried(sent.transfer);
            let (server, bytes) = (plan.server_of[parameter as usize], plan.graph.parameters[parameter as usize].bytes);
            let flow = plan.flow(sent.worker as usize, server as usize, is_push, bytes, stream);
            self.under_way.insert(network.start(flow), sent);
            begun(sent.worker);
        }
    }

    /// A transfer has ended: its worker, and since when the channel carried it.
    pub fn on_completion(&mut self, now: Time, completion: Completion, plan: &ServerJob) -> (u32, Ended) {
        let Sent { worker, iteration, transfer } =
            self.under_way.remove(&completion.flow).expect("the transfer is under way");
        let (parameter, is_push) = plan.carried(transfer);
        let server = plan.server_of[parameter as usize] as usize;
        let free_at = &mut self.free_at[worker as usize][server][usize::from(is_push)];
        let began = completion.began.max(*free_at);
        *free_at = now;
        (worker, Ended { transfer, iteration, chunk: 0, began })
    }
}
