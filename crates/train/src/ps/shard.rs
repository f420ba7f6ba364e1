//! Assignment of parameters to servers.

use crate::spec::ShardSpec;
use gradtide_net::Bytes;
use std::cmp::Reverse;

/// Returns the server of each parameter.
///
/// [`ShardSpec::Bytes`] assigns parameters by descending size, each to the server with the fewest bytes so far; ties go
/// to the lowest index. TensorFlow's `GreedyLoadBalancingStrategy` assigns them in model order instead. In descending
/// order, the rule is Graham's LPT, whose largest load is at most a third above the optimum. [`ShardSpec::RoundRobin`]
/// assigns parameter i to server i mod `servers`.
pub fn shards(sizes: &[Bytes], servers: u32, spec: ShardSpec) -> Vec<u32> {
    match spec {
        ShardSpec::RoundRobin => (0..sizes.len() as u32).map(|parameter| parameter % servers).collect(),
        ShardSpec::Bytes => {
            let mut by_size: Vec<usize> = (0..sizes.len()).collect();
            by_size.sort_by_key(|&parameter| Reverse(sizes[parameter]));
            let mut loads = vec![0_u128; servers as usize];
            let mut server_of = vec![0; sizes.len()];
            for parameter in by_size {
                let (server, load) =
                    loads.iter_mut().enumerate().min_by_key(|(_, load)| **load).expect("there is a server");
                *load += u128::from(sizes[parameter].0);
                server_of[parameter] = server as u32;
            }
            server_of
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_go_to_the_emptiest_server_or_all_in_turn() {
        let sizes = [3, 9, 1, 6, 2].map(Bytes);
        // Assignment of these sizes to two servers, the largest first: 9 goes to server 0; 6 to 1; 3 to 1, because 6 <
        // 9; 2 to 0, because 9 = 9; 1 to 1, because 9 < 11.
        assert_eq!(shards(&sizes, 2, ShardSpec::Bytes), [1, 0, 1, 1, 0]);
        assert_eq!(shards(&sizes, 2, ShardSpec::RoundRobin), [0, 1, 0, 1, 0]);
        assert_eq!(shards(&sizes, 8, ShardSpec::Bytes), [2, 0, 4, 1, 3]);
    }
}
