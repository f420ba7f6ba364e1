//! Orders of op DAGs: every order contains each transfer once, and its makespan is within the reported bounds.

use gradtide_train::opdag::{Kind, OpDag};
use gradtide_train::order::{OrderMethod, OrderRequest, order as ordered};

/// Limit on the ops of a DAG. The effort of TAC grows with the cube of the number of transfers.
const MOST_OPS: usize = 200;

/// Limit on the transfers of a DAG for which the optimal order is searched.
const MOST_SEARCHED: usize = 12;

/// Checks the answer to a request of `gradtide order`, and compares it with the optimal order.
pub fn order(data: &[u8]) {
    let Ok(request) = serde_json::from_slice::<OrderRequest>(data) else { return };
    if request.dag.ops.len() > MOST_OPS || request.dag.ops.iter().map(|op| op.inputs.len()).sum::<usize>() > 1000 {
        return;
    }
    let recv_count = request.dag.ops.iter().filter(|op| op.kind == Kind::Recv).count();
    let is_searched = recv_count <= MOST_SEARCHED;
    if matches!(request.scheduler, OrderMethod::Optimal) && !is_searched {
        return;
    }
    let makespan = check(&request);
    let best = is_searched.then(|| check(&OrderRequest { scheduler: OrderMethod::Optimal, ..request.clone() }));
    if let (Some(makespan), Some(Some((best, proven)))) = (makespan, best) {
        assert!(makespan.0 >= proven, "an order takes {} ticks; none takes less than {proven}", makespan.0);
        assert!(best >= makespan.1, "the best order takes {best} ticks; none takes less than {}", makespan.1);
    }
}

/// Checks an answer. Returns its makespan and its proven bound.
fn check(request: &OrderRequest) -> Option<(u64, u64)> {
    let answer = ordered(request);
    assert_eq!(ordered(request), answer, "equal requests have equal answers");
    let answer = answer.ok()?;
    let mut transfers = answer.order.clone();
    transfers.sort_unstable();
    assert_eq!(transfers, needed_recvs(&request.dag), "each transfer that the target needs is there once");
    assert_eq!(answer.priority.len(), answer.order.len());
    assert!(answer.priority.is_sorted(), "smaller priorities go first: {:?}", answer.priority);
    assert!(answer.lower_bound_ticks <= answer.proven_bound_ticks, "{answer:?}");
    assert!(answer.proven_bound_ticks <= answer.makespan_ticks, "{answer:?}");
    let all: u64 = needed(&request.dag).iter().map(|&op| request.dag.ops[op as usize].time_ticks).sum();
    assert!(answer.makespan_ticks <= all, "one thing after the other takes {all} ticks: {answer:?}");
    Some((answer.makespan_ticks, answer.proven_bound_ticks))
}

/// Returns the ops that the target needs. Unlike the implementation, it follows the inputs from the target.
fn needed(dag: &OpDag) -> Vec<u32> {
    let mut found = vec![dag.target];
    let mut next = 0;
    while next < found.len() {
        for &input in &dag.ops[found[next] as usize].inputs {
            if !found.contains(&input) {
                found.push(input);
            }
        }
        next += 1;
    }
    found
}

fn needed_recvs(dag: &OpDag) -> Vec<u32> {
    let mut recvs: Vec<u32> = needed(dag).into_iter().filter(|&op| dag.ops[op as usize].kind == Kind::Recv).collect();
    recvs.sort_unstable();
    recvs
}
