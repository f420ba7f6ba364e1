//! Order of first need.

use super::Scheduler;
use crate::dag::{Dag, OpId};

/// Orders transfers by first need. The rank of a transfer is the position of the first op that depends on it, directly
/// or through other transfers. Transfers on which no op of the iteration depends are last.
///
/// TIC and TAC of TicTac (2019) reduce to this order if compute is a chain, because an op of a chain depends on the
/// transfers of all ops before it.
#[derive(Debug)]
pub struct FirstNeed;

impl Scheduler for FirstNeed {
    fn ranks(&mut self, dag: &Dag, ranks: &mut Vec<u32>) {
        ranks.clear();
        ranks.resize(dag.transfers.len(), u32::MAX);
        let mut awaited: Vec<Vec<OpId>> = vec![Vec::new(); dag.ops.len()];
        for transfer in dag.compute_count..dag.ops.len() as OpId {
            dag.within.from(transfer).iter().for_each(|&waits| awaited[waits as usize].push(transfer));
        }
        let longest = dag.programs.iter().map(|program| program.ops.len()).max().unwrap_or(0);
        for place in 0..longest {
            for op in dag.programs.iter().filter_map(|program| program.ops.clone().nth(place)) {
                let mut needed = std::mem::take(&mut awaited[op as usize]);
                while let Some(transfer) = needed.pop() {
                    let rank = &mut ranks[(transfer - dag.compute_count) as usize];
                    if *rank == u32::MAX {
                        *rank = place as u32;
                        needed.append(&mut awaited[transfer as usize]);
                    }
                }
            }
        }
    }
}
