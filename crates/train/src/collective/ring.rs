//! Ring all-reduce.

use gradtide_net::{Band, Bytes, Completion, Connection, Flow, FlowId, HostId, Network, Time};
use std::collections::BTreeMap;

/// The ring all-reduce of `bytes` as the first of `hosts` sees it: 2(N-1) messages of S/N, each followed by the
/// propagation delay. All hosts do the same at the same time, so one stands for all. `None` for a single host,
/// which has nobody to send to.
///
/// # Source
/// Thesis eq. 4.1; Patarasuk & Yuan (2009).
pub fn lock_step(hosts: &[u32], bytes: Bytes, band: Band, stream: u32, hold: Time) -> Option<Flow> {
    let host_count = hosts.len() as u32;
    (host_count > 1).then(|| Flow {
        src: HostId(hosts[0]),
        dst: HostId(hosts[1]),
        bytes,
        rounds: 2 * (host_count - 1),
        parts: host_count,
        hold,
        band,
        stream,
        connection: Connection::Stream,
    })
}

/// Opens the connection of every host to the next one, by a message without bytes.
pub fn open(hosts: &[u32], band: Band, stream: u32, network: &mut dyn Network) {
    for worker in 0..hosts.len() as u32 {
        network.start(message(hosts, worker, Bytes(0), band, stream));
    }
}

/// A message from a worker to its right neighbour.
fn message(hosts: &[u32], worker: u32, bytes: Bytes, band: Band, stream: u32) -> Flow {
    Flow {
        src: HostId(hosts[worker as usize]),
        dst: HostId(hosts[(worker as usize + 1) % hosts.len()]),
        bytes,
        rounds: 1,
        parts: 1,
        hold: Time::ZERO,
        band,
        stream,
        connection: Connection::Stream,
    }
}

/// A ring all-reduce, message by message.
///
/// Worker i sends to worker i+1. In steps 0 … N-2 (reduce-scatter) it sends part i-k of step k, in steps
/// N-1 … 2N-3 (all-gather) part i+1-k' of step k' = k-(N-1); it sends a step's part as soon as it has received the
/// step before in full from its left neighbour.
///
/// # Source
/// Thesis section 5.2; Patarasuk & Yuan (2009). The remainder of S/N goes to the first parts.
#[derive(Debug)]
pub struct Messages {
    hosts: Vec<u32>,
    bytes: Bytes,
    band: Band,
    stream: u32,
    /// Worker and step of every message under way.
    under_way: BTreeMap<FlowId, (u32, u32)>,
    /// Messages that have not arrived.
    left_count: u64,
}

impl Messages {
    /// Starts step 0 on all workers.
    ///
    /// # Panics
    /// If there are fewer than two hosts.
    pub fn begin(hosts: &[u32], bytes: Bytes, band: Band, stream: u32, network: &mut dyn Network) -> Self {
        let host_count = hosts.len() as u64;
        assert!(host_count > 1, "a ring has at least two hosts");
        let left_count = host_count * 2 * (host_count - 1);
        let mut ring = Self { hosts: hosts.to_vec(), bytes, band, stream, under_way: BTreeMap::new(), left_count };
        for worker in 0..hosts.len() as u32 {
            ring.send(worker, 0, network);
        }
        ring
    }

    /// Takes in that a message has arrived, and sends what it makes possible; `true` if it was the last.
    pub fn on_completion(&mut self, completion: Completion, network: &mut dyn Network) -> bool {
        let (worker, step) = self.under_way.remove(&completion.flow).expect("the message is under way");
        self.left_count -= 1;
        let host_count = self.hosts.len() as u32;
        if step + 1 < 2 * (host_count - 1) {
            self.send((worker + 1) % host_count, step + 1, network);
        }
        self.left_count == 0
    }

    fn send(&mut self, worker: u32, step: u32, network: &mut dyn Network) {
        let host_count = self.hosts.len() as u32;
        let bytes = part_bytes(self.bytes, host_count, part_index(worker, step, host_count));
        let flow = message(&self.hosts, worker, bytes, self.band, self.stream);
        self.under_way.insert(network.start(flow), (worker, step));
    }
}

/// Which part worker `worker` sends in step `step`.
fn part_index(worker: u32, step: u32, host_count: u32) -> u32 {
    let [worker, step, host_count] = [worker, step, host_count].map(i64::from);
    let shift = if step < host_count - 1 { step } else { step - host_count };
    (worker - shift).rem_euclid(host_count) as u32
}

/// Bytes of part `index`: all parts differ by at most one byte and sum to `bytes`.
fn part_bytes(bytes: Bytes, host_count: u32, index: u32) -> Bytes {
    let (host_count, index) = (u64::from(host_count), u64::from(index));
    Bytes(bytes.0 / host_count + u64::from(index < bytes.0 % host_count))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every worker adds what it receives to its own part, then replaces: the sum is right everywhere.
    #[test]
    fn every_worker_ends_with_every_sum() {
        for host_count in 2..=9_u32 {
            let n = host_count as usize;
            // Worker w starts with 10^w in every part, so that a sum tells who is in it.
            let mut parts: Vec<Vec<u64>> = (0..n).map(|worker| vec![10_u64.pow(worker as u32); n]).collect();
            for step in 0..2 * (host_count - 1) {
                let sent: Vec<(usize, u64)> = (0..host_count)
                    .map(|worker| {
                        let index = part_index(worker, step, host_count) as usize;
                        (index, parts[worker as usize][index])
                    })
                    .collect();
                for (worker, (index, value)) in sent.into_iter().enumerate() {
                    let mine = &mut parts[(worker + 1) % n][index];
                    *mine = if step < host_count - 1 { *mine + value } else { value };
                }
            }
            let all = (0..host_count).map(|worker| 10_u64.pow(worker)).sum::<u64>();
            assert!(parts.iter().flatten().all(|&sum| sum == all), "{host_count}: {parts:?}");
        }
    }

    #[test]
    fn parts_differ_by_a_byte_and_sum_to_the_whole() {
        for (bytes, host_count) in [(10, 3), (2, 5), (5_333_328, 8), (2_222_220, 8)] {
            let parts: Vec<u64> = (0..host_count).map(|index| part_bytes(Bytes(bytes), host_count, index).0).collect();
            assert_eq!(parts.iter().sum::<u64>(), bytes);
            assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() <= 1);
        }
    }
}
